//! Destage of a shaped pool: what an extent has in the log is appended to a stripe of the bands, and its map page says
//! where.
//!
//! Nothing that a durable map page leads to is overwritten, so nothing has to be in the log as a whole block first: deltas are
//! laid over their block on the way. No record tells of it either; until a checkpoint has the page, the log has the bytes.
//!
//! Not so where deltas lie over what lies below the layer, which may come to an end, in an extent that was allocated since where the
//! durable checkpoint begins its replay. That may find it freed before, by its former owner, and then knows nothing of the map page that a
//! later checkpoint has of it. So these are written to the log as whole blocks first.

use super::data::{COPIES_AHEAD, copy_out, one};
use super::destage::{Destaged, Moving, RUN_BLOCKS_MAX, Stop};
use super::dirty_blocks::BlockSet;
use super::index::{Place, Taken};
use super::log_map::{IN_PLACE, LogPlace};
use super::{BLOCK, Defect, Shard, Target, add};
use crate::bands::{Bands, Entry, Stream, Writer};
use crate::meta;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use base::crc32c;
use bdev::Status;
use smallvec::SmallVec;
use std::rc::Rc;

/// What makes a block up.
#[derive(Clone, Copy)]
enum Source {
    /// A whole copy in the log.
    Log(LogPlace),
    /// Deltas: how many, and the last one.
    Deltas((usize, LogPlace)),
}

/// A block that is being appended; one without a place has been left out.
struct Moved {
    block: u32,
    crc: u32,
    source: Source,
}

/// A destage under way.
struct Load {
    writer: Writer,
    /// In the order in which they are appended.
    moved: Vec<Moved>,
}

impl Load {
    async fn append(&mut self, run: &[Moving], fill: impl FnMut(usize, &mut [u8]) -> bool) -> Result<(), Status> {
        let entry = |moving: &Moving| Entry { block: moving.block, crc: meta::stored_crc(moving.place.crc) };
        let entries: SmallVec<[Entry; RUN_BLOCKS_MAX]> = run.iter().map(entry).collect();
        let of_log = |moving: &Moving| {
            let source = Source::Log(moving.place);
            Moved { block: moving.block, crc: moving.place.crc, source }
        };
        self.moved.extend(run.iter().map(of_log));
        self.writer.append(&entries, fill).await
    }
}

impl Shard {
    /// As [`destage`](Self::destage), into bands.
    pub(super) async fn destage_to_bands(
        self: &Rc<Self>,
        bands: &Rc<Bands>,
        taken: &Taken,
    ) -> Result<Destaged, Status> {
        // Bands that the root found at opening calls free may be those of an older one, which still holds.
        self.meta.settle().await?;
        let Taken { extent, dirty: taken, reinserted } = taken;
        let owner = self.meta.descriptor(*extent);
        let first = extent * EXTENT_BLOCKS;
        let in_log = |index: u32| {
            let place = self.index.logged(first + index).filter(|place| place.at != IN_PLACE)?;
            Some(Moving { block: first + index, place })
        };
        // From the start, so that the extents of a round share their stripes.
        let writer = (!taken.blocks.is_empty()).then(|| bands.writer(Stream::User));
        let hot: Vec<Moving> = reinserted.iter().filter_map(in_log).collect();
        let due = taken.blocks.with(&self.reinsert(owner, &hot).await?);
        if due.is_empty() && taken.has_blocks_alone() {
            return Ok(Destaged::Whole);
        }
        let writer = writer.unwrap_or_else(|| bands.writer(Stream::User));
        let mut load = Load { writer, moved: Vec::new() };
        let page = self.page_to_change(*extent).await?;
        let (mut logged, mut under): (Vec<Moving>, SmallVec<[u32; 8]>) = (Vec::new(), SmallVec::new());
        // Blocks that become whole in the log, and are destaged later on.
        let mut merged_first: SmallVec<[u32; 8]> = SmallVec::new();
        for index in due.iter() {
            match in_log(index) {
                _ if self.index.has_chain(first + index) => match self.is_laid_in_log(*extent, first + index) {
                    true => merged_first.push(first + index),
                    false => under.push(first + index),
                },
                Some(moving) => logged.push(moving),
                // It is a hole or lost now: then there is, or was, a later record.
                None => {}
            }
        }
        // What has been appended before an error goes on all the same.
        let (unreadable, mut waiting) = match self.load_from_log(&mut load, &logged).await {
            Ok(found) => found,
            Err(status) => (SmallVec::new(), Some(status)),
        };
        if waiting != Some(Status::NoSpace) {
            match self.load_merged(&mut load, owner, &under).await {
                // In the log, it is found out what is to become of one that cannot be read.
                Ok(damaged) => merged_first.extend(damaged),
                Err(status) => waiting = Some(status),
            }
        }
        let Load { writer, moved } = load;
        let places = writer.finish().await?;
        let appended = moved.len().min(places.len());
        let blocks = (0..appended).filter(|index| places.get(*index).is_some()).count() as u64;
        add(&self.counters.destaged_bytes, blocks * BLOCK_BYTES as u64);
        self.owe_for(bands, blocks);
        let all = waiting.is_none() && unreadable.is_empty() && merged_first.is_empty();
        // Holes first: a block that was trimmed and then written again is in both.
        for (set, value) in [(&taken.holes, meta::HOLE), (&taken.lost, meta::LOST)] {
            set.iter().flat_map(|set| set.iter()).for_each(|index| page.set(index, value));
        }
        self.index.prefetch_set(first, &due);
        let mut known = BlockSet::EMPTY;
        for (index, Moved { block, crc, source }) in moved.iter().enumerate().take(appended) {
            let is_misplaced = self.is_broken(Defect::PlaceTwice) && index % 4 == 1;
            let Some(at) = places.get(index - is_misplaced as usize) else { continue };
            let is_newest = match source {
                Source::Log(place) => {
                    self.index.settled(*block, *place);
                    true
                }
                Source::Deltas(mark) => self.index.settled_whole(*block, *mark),
            };
            // What is not the newest has a record since.
            if is_newest {
                known.insert(block % EXTENT_BLOCKS);
                page.place(block % EXTENT_BLOCKS, meta::stored_crc(*crc), at);
            }
        }
        drop(places);
        self.index.settled_holes(taken, &known);
        for lost in unreadable {
            self.give_up(owner, lost).await?;
        }
        for block in merged_first {
            self.merge(owner.volume, owner.vextent, block % EXTENT_BLOCKS).await?;
        }
        waiting.map_or(Ok(if all { Destaged::Whole } else { Destaged::InPart }), Err)
    }

    /// Whether the deltas over a block are laid over it in the log. Where that has no room to spare they are not, and what lies below is
    /// [needed](Self::let_below_go) for longer.
    fn is_laid_in_log(&self, extent: u32, block: u32) -> bool {
        let lies_below = self.index.below_deltas(block) == Place::Inherit;
        if !lies_below || !self.index.is_named(extent, self.durable_tail()) {
            return false;
        }
        let fill = self.fill();
        let has_room = fill.bytes_free > 2 * fill.bytes_reserved;
        if !has_room {
            self.unlogged.set(self.index.last_lsn());
        }
        has_room
    }

    /// Makes sure that no replay needs what lies below a layer for what deltas were laid over it: before it may come to an end.
    pub(super) async fn let_below_go(self: &Rc<Self>) -> Result<(), Status> {
        self.checkpoint().await?;
        while self.durable_tail().lsn <= self.unlogged.get() {
            self.settle().await?;
        }
        Ok(())
    }

    /// Appends whole copies from the log. Which the log does not give back, and why others are to be tried again.
    async fn load_from_log(
        self: &Rc<Self>,
        load: &mut Load,
        logged: &[Moving],
    ) -> Result<(SmallVec<[Moving; 4]>, Option<Status>), Status> {
        let (mut unreadable, mut waiting): (SmallVec<[Moving; 4]>, Option<Status>) = (SmallVec::new(), None);
        for run in logged.chunks(RUN_BLOCKS_MAX) {
            while !self.may_move_now() {
                self.reactor.yield_now().await;
            }
            self.moved_in.set(self.reactor.turns());
            let mut missed: SmallVec<[Moving; RUN_BLOCKS_MAX]> = SmallVec::new();
            // A mapped log gives its bytes at once.
            if self.log.is_mapped() {
                let expect = |ahead: &Moving| self.log.expect(ahead.place.at, BLOCK_BYTES);
                run.iter().take(COPIES_AHEAD).for_each(expect);
                let fill = |index: usize, bytes: &mut [u8]| {
                    run.get(index + COPIES_AHEAD).into_iter().for_each(expect);
                    let place: LogPlace = run[index].place;
                    let right = self.log.try_read(place.at, 0, bytes) && crc32c(bytes) == place.crc;
                    if !right {
                        missed.push(run[index]);
                    }
                    right
                };
                load.append(run, fill).await?;
            } else {
                missed.extend_from_slice(run);
            }
            let mut at = 0;
            while at < missed.len() {
                let mut buf = bdev::steps::alloc(&self.reactor, (missed.len() - at) * BLOCK_BYTES).await?;
                let (good, stop) = self.read_run(&missed[at..], &mut buf).await?;
                let fill = |index: usize, bytes: &mut [u8]| {
                    bytes.copy_from_slice(&buf.as_slice()[index * BLOCK_BYTES..][..BLOCK_BYTES]);
                    true
                };
                load.append(&missed[at..at + good], fill).await?;
                match stop {
                    Some(Stop::Lost) => unreadable.push(missed[at + good]),
                    Some(Stop::Later(status)) => waiting = Some(status),
                    None => {}
                }
                at += good + stop.is_some() as usize;
            }
        }
        Ok((unreadable, waiting))
    }

    /// Appends blocks with the deltas over them. Which cannot be read.
    async fn load_merged(
        self: &Rc<Self>,
        load: &mut Load,
        owner: meta::Descriptor,
        under: &[u32],
    ) -> Result<SmallVec<[u32; 8]>, Status> {
        let mut damaged = SmallVec::new();
        for block in under {
            let offset = block % EXTENT_BLOCKS * BLOCK;
            let target = Target { volume: owner.volume, vextent: owner.vextent, offset, bytes: BLOCK };
            let buf = bdev::steps::alloc(&self.reactor, BLOCK_BYTES).await?;
            let read = self.read_blocks(target, one(buf)).await;
            // Nothing has waited since what was read was the newest.
            let Some(mark) = self.index.chain_mark(*block).filter(|_| read.status == Status::Ok) else {
                damaged.extend((read.status != Status::Ok).then_some(*block));
                continue;
            };
            let mut whole = [0u8; BLOCK_BYTES];
            copy_out(&read.bufs, 0, &mut whole);
            let crc = crc32c(&whole);
            load.moved.push(Moved { block: *block, crc, source: Source::Deltas(mark) });
            let entry = Entry { block: *block, crc: meta::stored_crc(crc) };
            let fill = |_: usize, bytes: &mut [u8]| {
                bytes.copy_from_slice(&whole);
                true
            };
            load.writer.append(&[entry], fill).await?;
        }
        Ok(damaged)
    }
}
