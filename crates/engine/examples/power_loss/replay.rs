//! The pool as of one point of a recording after the other.

use super::Failure;
use super::common::disk::{Disk, Image};
use super::common::reactor;
use super::history::{self, BLOCK, History, WRITERS};
use super::record::{Entry, Recording};
use base::Rng;
use bdev::{BlockDevice, Io, Lba};
use engine::{CheckOptions, LogDevice, OpenOptions, Pool, PoolDevices, Severity};
use reactor::{Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

/// Random halves of what a flush makes durable that are tried.
const SUBSETS: u64 = 8;
const MIB_BLOCKS: u64 = (1 << 20) / BLOCK as u64;

/// The recorded device: the log, and the capacity device behind it.
#[derive(Clone)]
struct Media {
    log_blocks: u64,
    capacity_blocks: u64,
    log: Image,
    capacity: Image,
}

impl Media {
    fn new([log_mib, capacity_mib]: [u64; 2]) -> Media {
        let (log_blocks, capacity_blocks) = (log_mib * MIB_BLOCKS, capacity_mib * MIB_BLOCKS);
        Media { log_blocks, capacity_blocks, log: Image::new(), capacity: Image::new() }
    }

    /// The part that a block is in, and its number there.
    fn place(&mut self, block: u64) -> (&mut Image, u64) {
        match block.checked_sub(self.log_blocks) {
            None => (&mut self.log, block),
            Some(block) => (&mut self.capacity, block),
        }
    }

    fn apply(&mut self, entry: &Entry) {
        let mut at = entry.at;
        let mut rest = &entry.data[..];
        while !rest.is_empty() {
            let ((image, block), within) = (self.place(at / BLOCK as u64), at as usize % BLOCK);
            let len = rest.len().min(BLOCK - within);
            let target = image.entry(block).or_insert_with(|| Arc::new(vec![0; BLOCK]));
            Arc::make_mut(target)[within..within + len].copy_from_slice(&rest[..len]);
            (at, rest) = (at + len as u64, &rest[len..]);
        }
        // The device below is memory of the guest: what is discarded reads as zeroes.
        for block in entry.at / BLOCK as u64..(entry.at + entry.discarded) / BLOCK as u64 {
            let (image, block) = self.place(block);
            image.remove(&block);
        }
    }

    fn devices(&self) -> PoolDevices {
        let log: Arc<dyn BlockDevice> = Disk::with("log", self.log_blocks, self.log.clone());
        PoolDevices {
            log: LogDevice::Block(log),
            capacity: Disk::with("capacity", self.capacity_blocks, self.capacity.clone()),
        }
    }
}

/// What was tried.
#[derive(Default)]
struct Tally {
    points: u64,
    subsets: u64,
    replayed: u64,
    steps: u64,
}

struct Replay {
    reactor: Rc<Reactor>,
    histories: Vec<History>,
    tally: Tally,
}

pub fn replay(recording: &str, seed: u64, sizes_mib: [u64; 2], points: u64) -> Result<(), Failure> {
    let (total, flushes) = count_points(recording)?;
    let mut input = Recording::open(recording).map_err(Failure::Other)?;
    let histories = (0..WRITERS).map(|writer| History::new(seed, writer)).collect();
    let there = reactor();
    let mut replay = Replay { reactor: there.clone(), histories, tally: Tally::default() };
    let (mut media, mut rng) = (Media::new(sizes_mib), Rng::new(seed));
    let mut waiting: Vec<Entry> = Vec::new();
    let (mut seen, mut number) = (0u64, 0u64);
    while let Some(entry) = input.next().map_err(Failure::Other)? {
        number += 1;
        if !is_point(&entry) {
            waiting.push(entry);
            continue;
        }
        // Evenly spread, all of them when there are no more than that; checkpoints flush, so flushes are the last to be left out.
        let chosen = entry.flags.flush() && flushes <= points
            || seen * points.min(total) / total != (seen + 1) * points.min(total) / total;
        seen += 1;
        if entry.flags.flush() {
            // Until it has completed, the devices have kept what they pleased of what was not flushed.
            for _ in 0..if chosen && !waiting.is_empty() { SUBSETS } else { 0 } {
                let mut some = media.clone();
                waiting.iter().filter(|_| rng.one_in(2)).for_each(|entry| some.apply(entry));
                replay.try_point(&some, &format!("in part of what entry {number} makes durable"))?;
                replay.tally.subsets += 1;
            }
            waiting.drain(..).for_each(|entry| media.apply(&entry));
        }
        media.apply(&entry);
        if let Some(steps) = entry.mark.as_deref().and_then(history::read_mark) {
            replay.histories.iter_mut().zip(steps).for_each(|(history, noted)| history.advance(noted));
        }
        if chosen {
            replay.try_point(&media, &format!("at entry {number}"))?;
            replay.tally.points += 1;
        }
    }
    replay.tally.steps = replay.histories.iter().map(|history| history.noted() as u64).sum();
    let Tally { points, subsets, replayed, steps } = replay.tally;
    println!(
        "{points} of {total} durable points, {subsets} parts of flushes: all of {steps} steps; {replayed} records replayed"
    );
    match steps {
        0 => Err(Failure::Other("nothing was acknowledged in this recording".to_string())),
        _ => Ok(()),
    }
}

/// Whether power may fail right behind it, with something new durable or noted.
fn is_point(entry: &Entry) -> bool {
    entry.flags.flush() || entry.flags.fua() || entry.mark.is_some()
}

/// Points of a recording, and how many of them are flushes.
fn count_points(recording: &str) -> Result<(u64, u64), Failure> {
    let mut input = Recording::open(recording).map_err(Failure::Other)?;
    let (entries, mut points) = (input.left(), 0);
    let [mut flushes, mut fua, mut marks] = [0u64; 3];
    while let Some(entry) = input.next().map_err(Failure::Other)? {
        points += is_point(&entry) as u64;
        flushes += entry.flags.flush() as u64;
        fua += entry.flags.fua() as u64;
        marks += entry.mark.is_some() as u64;
    }
    println!("{entries} entries: {flushes} flushes, {fua} FUA writes, {marks} marks");
    Ok((points, flushes))
}

impl Replay {
    fn try_point(&mut self, media: &Media, at: &str) -> Result<(), Failure> {
        // Until something was acknowledged there may be no pool.
        if self.histories.iter().all(|history| history.noted() == 0) {
            return Ok(());
        }
        let (inner, devices) = (self.reactor.clone(), media.devices());
        let looked = self.reactor.block_on(async move { look(&inner, devices).await });
        let (replayed, contents) = looked.map_err(|what| Failure::Lost(format!("{at}: {what}")))?;
        self.tally.replayed += replayed;
        for (history, found) in self.histories.iter().zip(&contents) {
            history.check(found).map_err(|what| Failure::Lost(format!("{at}: {what}")))?;
        }
        Ok(())
    }
}

/// Checks and opens the pool and reads the blocks of every writer.
async fn look(reactor: &Rc<Reactor>, devices: PoolDevices) -> Result<(u64, Vec<Vec<u8>>), String> {
    let report = Pool::check(reactor, &devices.capacity, Some(&devices.log), CheckOptions::default()).await;
    let report = report.map_err(|error| format!("the pool cannot be checked: {error}"))?;
    if let Some(finding) = report.findings.iter().find(|finding| finding.severity == Severity::Error) {
        return Err(format!("the check says: {finding}"));
    }
    let pool = Pool::open(reactor, &devices, &OpenOptions::default()).await;
    let pool = pool.map_err(|error| format!("the pool does not open: {error}"))?;
    let volume = pool.volume("v0").ok_or("the volume is gone")?;
    let channel = volume.open_channel(reactor).map_err(|error| error.to_string())?;
    let mut contents = Vec::new();
    for writer in 0..WRITERS {
        let mut content = Vec::new();
        for block in history::blocks_of(writer).step_by(64) {
            let mut bufs = SgList::new();
            bufs.push(reactor.pool().alloc(64 * BLOCK).await);
            let done = channel.submit(Io::read(Lba(block), 64, bufs)).await;
            done.status.check().map_err(|status| format!("blocks {block} to {}: {status}", block + 63))?;
            content.extend_from_slice(done.io.bufs[0].as_slice());
        }
        contents.push(content);
    }
    drop(channel);
    pool.close(reactor).await;
    Ok((pool.recovery().records, contents))
}
