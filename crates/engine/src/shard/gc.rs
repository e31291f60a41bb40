//! Garbage collection of a shaped pool's bands: what is live in a victim moves to another band, and a checkpoint makes the
//! victim free.
//!
//! A stripe says which blocks were written to it; whether one is live, its map page alone knows. So the counts by which
//! victims are chosen may be wrong, after a crash or a page that could not be read: they cost time, nothing else.

use super::patience::Refused;
use super::{Defect, Shard, add};
use crate::bands::{BandAt, Bands, Cursor, Entry, Room, Stream, Stripe, Writer, policy};
use crate::meta::{self, Page};
use crate::together::Together;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, extent_of};
use base::crc32c;
use bdev::{Io, Status};
use reactor::{BUF_BYTES_MAX, Buf};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const RUN_BLOCKS_MAX: usize = BUF_BYTES_MAX / BLOCK_BYTES;
/// Reads of one stripe under way at the same time.
const READS_MAX: usize = 8;
/// Blocks that are moved before the stripe they go to is written as it is: some whole ones.
const BATCH_BLOCKS: u64 = 4 * 255;
/// Victims that a batch takes blocks from.
const VICTIMS_MAX: usize = 4;

/// Wait for bands that are being unmapped, or counted.
const WAIT_NS: u64 = 100_000;
/// A victim of which something cannot be read is left alone for so long: half as long as it takes to try 32 times before patience ends.
const ASIDE_NS: u64 = 1_000_000_000;

/// How far GC has got.
#[derive(Default)]
pub(super) struct Gc {
    /// The victim.
    cursor: RefCell<Option<Cursor>>,
    /// Blocks to move before destage may go on.
    owed: Cell<u64>,
    /// Blocks that were valid in the victim when it was chosen.
    victim_valid: Cell<u32>,
    /// No band is worth collecting.
    is_exhausted: Cell<bool>,
    /// Bands of which something could not be read, and until when they are left alone.
    aside: RefCell<SmallVec<[(u32, u64); 4]>>,
    /// What is live is being counted, or has been since the opening.
    pub(super) is_recounting: Cell<bool>,
    pub(super) is_recounted: Cell<bool>,
    pub(super) moved_blocks: Cell<u64>,
}

/// A victim, as far as a batch empties it.
struct Drain {
    cursor: Cursor,
    writer: Writer,
    /// In the order in which they were appended.
    live: Vec<Live>,
    end: End,
}

/// How far a batch has got with a victim.
#[derive(Clone, Copy)]
enum End {
    /// There are more stripes.
    Later,
    /// There are none.
    Whole,
    /// Something could not be read, or has no place to go to.
    Failed(Status),
}

/// A live block of a stripe.
#[derive(Clone, Copy)]
struct Live {
    entry: Entry,
    at: BandAt,
}

impl Shard {
    /// Free bands below which GC works.
    fn low_of(&self, room: &Room) -> u32 {
        match self.tuning.used_bands {
            Some(used) => room.bands.saturating_sub(used),
            None => policy::free_bands_low(room.bands),
        }
    }

    /// Blocks have been destaged: in the long run as many have to be collected as the victims make them.
    pub(super) fn owe_for(&self, bands: &Bands, blocks: u64) {
        let room = bands.room();
        let low = self.low_of(&room);
        if room.free >= low {
            return self.gc.owed.set(0);
        }
        // v blocks are moved to gain n - v.
        let (valid, total) = (self.gc.victim_valid.get() as u64, bands.band_data_blocks() as u64);
        let owed = self.gc.owed.get() + (blocks * valid / total.saturating_sub(valid).max(1)).max(1);
        // The fewer bands are free, the more of the past is made up for.
        let behind = (low - room.free) as u64 * total / 8;
        self.gc.owed.set(owed.min(behind.max(BATCH_BLOCKS)));
    }

    /// Collects a batch if that is called for. Whether there was a victim.
    pub(super) async fn collect_some(self: &Rc<Self>) -> Result<bool, Status> {
        let Some(bands) = self.meta.bands() else { return Ok(false) };
        let room = bands.room();
        let is_out = !bands.may_append(Stream::User);
        if self.gc.is_recounting.get() {
            // By counts that are being made, a full band may look empty.
            if is_out {
                self.reactor.sleep_ns(WAIT_NS).await;
            }
            return Ok(is_out);
        }
        let is_called = bands.has_suspects() || room.free < self.low_of(&room) && self.gc.owed.get() > 0;
        if !is_out && !is_called {
            return Ok(false);
        }
        let found = self.collect(bands).await?;
        self.gc.is_exhausted.set(!found);
        if !found && is_out {
            if room.unmapping > 0 {
                if let Some(status) = bands.reset_error() {
                    return Err(status);
                }
                self.reactor.sleep_ns(WAIT_NS).await;
                return Ok(true);
            }
            // No band seems worth it, by counts that may be too high.
            self.recount_once();
            return Ok(self.gc.is_recounting.get());
        }
        Ok(found)
    }

    /// Whether GC or a checkpoint gives back bands.
    fn bands_will_be_free(&self, bands: &Bands) -> bool {
        let room = bands.room();
        room.pending + room.unmapping > 0 || !self.gc.is_exhausted.get()
    }

    /// Whether there is a band to destage to, or no hope for one.
    pub(super) fn may_destage(&self, bands: &Bands) -> bool {
        bands.may_append(Stream::User) || !self.bands_will_be_free(bands)
    }

    /// Whether blocks have to be collected before more is destaged.
    pub(super) fn owes_blocks(&self, bands: &Bands) -> bool {
        let room = bands.room();
        let is_behind = room.free < self.low_of(&room) && self.gc.owed.get() > 0;
        is_behind && !self.gc.is_exhausted.get() && !self.gc.is_recounting.get()
    }

    /// Extents that are destaged together: no more than there are bands for.
    pub(super) fn destage_depth(&self) -> usize {
        let Some(bands) = self.meta.bands() else { return self.tuning.destage_depth };
        let room = bands.room();
        let blocks = room.free.saturating_sub(room.reserve) as u64 * bands.band_data_blocks() as u64;
        self.tuning.destage_depth.min((blocks / EXTENT_BLOCKS as u64).max(1) as usize)
    }

    /// Whether bands wait for a checkpoint and are missed.
    pub(super) fn bands_are_missed(&self, bands: &Bands) -> bool {
        let (room, low) = (bands.room(), self.low_of(&bands.room()));
        let many = room.pending >= (low / 4).max(1);
        room.pending > 0 && (!bands.may_append(Stream::User) || room.free < low && many)
    }

    /// Moves a batch of live blocks out of victims. Whether there was one.
    async fn collect(self: &Rc<Self>, bands: &Rc<Bands>) -> Result<bool, Status> {
        self.meta.settle().await?;
        let mut drains: SmallVec<[Drain; VICTIMS_MAX]> = SmallVec::new();
        let mut blocks = 0;
        while blocks < BATCH_BLOCKS && drains.len() < VICTIMS_MAX {
            let begun = self.gc.cursor.borrow_mut().take();
            let Some(cursor) = begun.or_else(|| self.next_victim(bands)) else { break };
            let end = End::Later;
            let mut drain = Drain { writer: bands.mover(&cursor), cursor, live: Vec::new(), end };
            let loaded = self.load_victim(bands, &mut drain, BATCH_BLOCKS - blocks).await;
            if let Err(status) = loaded {
                // What could be read goes on, and so does everything else.
                drain.end = End::Failed(status);
            }
            blocks += drain.live.len() as u64;
            drains.push(drain);
            if loaded == Err(Status::NoSpace) {
                break;
            }
        }
        let found = !drains.is_empty();
        // All of them before the first is waited for: they share stripes.
        drains.iter_mut().for_each(|drain| drain.writer.end());
        for Drain { cursor, writer, live, end } in drains {
            let places = match writer.finish().await {
                Ok(places) => places,
                Err(status) => {
                    self.put_aside(cursor.band(), status);
                    continue;
                }
            };
            let mut moved = Ok(());
            for (index, live) in live.iter().enumerate().take(places.len()) {
                if let Some(to) = places.get(index) {
                    moved = moved.and(self.move_entry(live, to).await);
                }
            }
            drop(places);
            match (end, moved) {
                (End::Failed(status), _) | (_, Err(status)) => {
                    self.put_aside(cursor.band(), status);
                    continue;
                }
                (End::Later, Ok(())) => {
                    *self.gc.cursor.borrow_mut() = Some(cursor);
                    continue;
                }
                (End::Whole, Ok(())) => {}
            }
            let (band, unknown) = (cursor.band(), cursor.passed_over());
            if !bands.drained(cursor) {
                tracing::warn!(
                    "pool '{}': band {band} of shard {} has {unknown} write units whose headers are damaged, and maybe blocks in \
                     use there: it is not collected until what is in use has been counted; the blocks can be read",
                    self.pool_name,
                    self.number
                );
            }
        }
        self.gc.owed.set(self.gc.owed.get().saturating_sub(blocks));
        add(&self.gc.moved_blocks, blocks);
        Ok(found)
    }

    /// A victim that could not be emptied now is left alone for a while; what has moved of it has moved.
    fn put_aside(&self, band: u32, status: Status) {
        let (pool, shard) = (&self.pool_name, self.number);
        tracing::warn!("pool '{pool}': band {band} of shard {shard} cannot be collected: {status}; it is tried again");
        self.gc.aside.borrow_mut().push((band, self.reactor.now_ns() + ASIDE_NS));
    }

    fn next_victim(&self, bands: &Rc<Bands>) -> Option<Cursor> {
        let now_ns = self.reactor.now_ns();
        let mut aside = self.gc.aside.borrow_mut();
        aside.retain(|(_, until_ns)| *until_ns > now_ns);
        // Held until there is another one, so that none of them is found again.
        let mut passed: SmallVec<[Cursor; 4]> = SmallVec::new();
        let cursor = loop {
            let cursor = bands.victim()?;
            if !aside.iter().any(|(band, _)| *band == cursor.band()) {
                break cursor;
            }
            passed.push(cursor);
        };
        self.gc.victim_valid.set(bands.valid(cursor.band()));
        Some(cursor)
    }

    /// Appends about so many blocks of a victim.
    async fn load_victim(self: &Rc<Self>, bands: &Rc<Bands>, drain: &mut Drain, most: u64) -> Result<(), Status> {
        while (drain.live.len() as u64) < most {
            let Some(stripe) = drain.cursor.next_stripe().await? else {
                drain.end = End::Whole;
                return Ok(());
            };
            for (live, buf) in self.read_live(bands, &stripe).await? {
                let entries: SmallVec<[Entry; RUN_BLOCKS_MAX]> = live.iter().map(|live| live.entry).collect();
                // Before, so that what is appended of it before an error is known.
                drain.live.extend_from_slice(&live);
                let fill = |index: usize, bytes: &mut [u8]| {
                    bytes.copy_from_slice(&buf.as_slice()[index * BLOCK_BYTES..][..BLOCK_BYTES]);
                    true
                };
                drain.writer.append(&entries, fill).await?;
            }
        }
        Ok(())
    }

    /// The block is at its new place from now on, if it is still at the old one.
    async fn move_entry(self: &Rc<Self>, live: &Live, to: BandAt) -> Result<(), Status> {
        let Some(page) = self.page_of(live.entry.block).await? else { return Ok(()) };
        let index = live.entry.block % EXTENT_BLOCKS;
        if page.get(index) == live.entry.crc && page.band_at(index) == live.at {
            page.place(index, live.entry.crc, to);
        }
        Ok(())
    }

    /// The map page of a block, if it can be anywhere.
    async fn page_of(self: &Rc<Self>, block: u32) -> Result<Option<Page>, Status> {
        let extent = extent_of(block);
        if extent >= self.meta.extents() {
            return Ok(None);
        }
        let owner = self.meta.descriptor(extent);
        if owner.is_free() || owner.flags & meta::MAP_PAGE == 0 && self.meta.page(extent).is_none() {
            return Ok(None);
        }
        self.page_to_change(extent).await.map(Some)
    }

    /// What is live in a stripe, read and verified.
    async fn read_live(
        self: &Rc<Self>,
        bands: &Rc<Bands>,
        stripe: &Stripe,
    ) -> Result<Vec<(SmallVec<[Live; RUN_BLOCKS_MAX]>, Buf)>, Status> {
        let mut live: Vec<Live> = Vec::new();
        let mut page: Option<Page> = None;
        for (at, entry) in stripe.entries() {
            let extent = extent_of(entry.block);
            if page.as_ref().is_none_or(|page| page.extent() != extent) {
                page = self.page_of(entry.block).await?;
            }
            let Some(page) = page.as_ref().filter(|page| page.extent() == extent) else { continue };
            let index = entry.block % EXTENT_BLOCKS;
            let is_live = page.get(index) == entry.crc && page.band_at(index) == at;
            if is_live && !(self.is_broken(Defect::ForgetLive) && index % 2 == 1) {
                live.push(Live { entry, at });
            }
        }
        drop(page);
        let mut runs: Vec<SmallVec<[Live; RUN_BLOCKS_MAX]>> = Vec::new();
        for block in live {
            let follows = |run: &SmallVec<[Live; RUN_BLOCKS_MAX]>| {
                run.len() < RUN_BLOCKS_MAX && run.last().is_some_and(|last| last.at.0 + 1 == block.at.0)
            };
            match runs.last_mut() {
                Some(run) if follows(run) => run.push(block),
                _ => runs.push(SmallVec::from_slice(&[block])),
            }
        }
        let (mut read, mut under_way, mut ended) = (Vec::with_capacity(runs.len()), Together::new(), Ok(()));
        for run in runs {
            if under_way.len() == READS_MAX
                && let Some(done) = under_way.first().await
            {
                take_read(done, &mut read, &mut ended);
            }
            under_way.push(reactor::IoFuture::new(self.clone().read_run_of_band(bands.clone(), run)));
        }
        while let Some(done) = under_way.first().await {
            take_read(done, &mut read, &mut ended);
        }
        ended.map(|()| read)
    }

    /// Reads neighbours. What does not match its checksum, or cannot be read for long, becomes lost and leaves the run.
    async fn read_run_of_band(
        self: Rc<Self>,
        bands: Rc<Bands>,
        run: SmallVec<[Live; RUN_BLOCKS_MAX]>,
    ) -> Result<(SmallVec<[Live; RUN_BLOCKS_MAX]>, Buf), Status> {
        let mut buf = bdev::steps::alloc(&self.reactor, run.len() * BLOCK_BYTES).await?;
        let status = self.read_band_blocks(&bands, run[0].at, &mut buf).await;
        let is_right = |bytes: &[u8], live: &Live| meta::stored_crc(crc32c(bytes)) == live.entry.crc;
        let blocks = |buf: &Buf| -> bool {
            buf.as_slice().chunks_exact(BLOCK_BYTES).zip(&run).all(|(bytes, live)| is_right(bytes, live))
        };
        if status == Status::Ok && blocks(&buf) {
            return Ok((run, buf));
        }
        // One by one, once more, in case it was the way and not the medium.
        let mut good: SmallVec<[Live; RUN_BLOCKS_MAX]> = SmallVec::new();
        for live in run {
            let mut one = bdev::steps::alloc(&self.reactor, BLOCK_BYTES).await?;
            let status = self.read_band_blocks(&bands, live.at, &mut one).await;
            let is_wrong = !status.is_ok() || !is_right(one.as_slice(), &live);
            if is_wrong && let Some(found) = self.rescue_of_band(&bands, &live, status).await {
                buf.as_mut_slice()[good.len() * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(found.as_slice());
                good.push(live);
                continue;
            }
            let is_lost = match status {
                Status::Ok => {
                    self.patience.answered(Refused::Block(live.entry.block));
                    !is_right(one.as_slice(), &live)
                }
                Status::ReadError => {
                    if !self.is_lost(Refused::Block(live.entry.block)).await {
                        return Err(status);
                    }
                    true
                }
                status => return Err(status),
            };
            if is_lost {
                self.lose_block(&live).await?;
                continue;
            }
            buf.as_mut_slice()[good.len() * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(one.as_slice());
            good.push(live);
        }
        buf.truncate(good.len() * BLOCK_BYTES);
        Ok((good, buf))
    }

    /// A block whose band does not give it back, in another version. It is written anew with the others that move.
    async fn rescue_of_band(&self, bands: &Bands, live: &Live, status: Status) -> Option<Buf> {
        let status = if status.is_ok() { Status::Corrupt } else { status };
        if !self.may_rescue(status) {
            return None;
        }
        let found = self.rescue(bands.device_block(live.at), live.entry.crc).await?;
        let owner = self.meta.descriptor(extent_of(live.entry.block));
        let block = owner.vextent as u64 * EXTENT_BLOCKS as u64 + (live.entry.block % EXTENT_BLOCKS) as u64;
        self.note_healed(owner.volume, block, &[0]);
        Some(found)
    }

    async fn read_band_blocks(&self, bands: &Bands, at: BandAt, buf: &mut Buf) -> Status {
        let blocks = (buf.len() / BLOCK_BYTES) as u32;
        let part = match bdev::steps::alloc(&self.reactor, buf.len()).await {
            Ok(part) => part,
            Err(status) => return status,
        };
        let io = self
            .capacity_io(bands.device_block(at), blocks, |lba, blocks| Io::read(lba, blocks, super::data::one(part)));
        let done = self.capacity.submit(io).await;
        if done.status.is_ok() {
            super::data::copy_out(&done.io.bufs, 0, buf.as_mut_slice());
        }
        done.status
    }

    /// The only copy of a block is damaged: it cannot go anywhere.
    async fn lose_block(self: &Rc<Self>, live: &Live) -> Result<(), Status> {
        let Some(page) = self.page_of(live.entry.block).await? else { return Ok(()) };
        let index = live.entry.block % EXTENT_BLOCKS;
        if page.get(index) != live.entry.crc || page.band_at(index) != live.at {
            return Ok(());
        }
        page.set(index, meta::LOST);
        let owner = self.meta.descriptor(page.extent());
        tracing::error!(
            "pool '{}': block {} of volume {} (of 4 KiB) is lost: its band gives it back no more",
            self.pool_name,
            owner.vextent as u64 * EXTENT_BLOCKS as u64 + index as u64,
            owner.volume
        );
        add(&self.counters.lost_blocks, 1);
        Ok(())
    }
}

type ReadRun = (SmallVec<[Live; RUN_BLOCKS_MAX]>, Buf);

fn take_read(done: Result<ReadRun, Status>, read: &mut Vec<ReadRun>, ended: &mut Result<(), Status>) {
    match done {
        Ok((live, buf)) if !live.is_empty() => read.push((live, buf)),
        Ok(_) => {}
        Err(status) => *ended = Err(status),
    }
}
