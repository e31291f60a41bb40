//! Destage: what an extent has in the log goes to where placement wants it, sorted and merged, and its map page learns of
//! it.
//!
//! A block is overwritten in place only while its whole newest content is in the log, at or after the log's tail: a torn
//! overwrite is repaired by replay. That is why deltas are merged into whole blocks, in the log, first.

use super::data::one;
use super::dirty_blocks::BlockSet;
use super::index::Taken;
use super::log_map::{IN_PLACE, LogPlace};
use super::patience::Refused;
use super::{Defect, MERGE_BYTES_MAX, Shard, Target, add};
use crate::log::{Class, Record};
use crate::meta;
use crate::together::Together;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use base::crc32c;
use bdev::{Io, Status};
use reactor::{BUF_BYTES_MAX, Buf, IoFuture, SgList};
use smallvec::SmallVec;
use std::rc::Rc;

/// Extents that are destaged together: what one drive has to do.
pub(super) const EXTENTS_MAX: usize = 16;
/// Writes of one extent under way at the same time.
pub(super) const WRITES_MAX: usize = 8;
/// Blocks read and written at a time.
pub(super) const RUN_BLOCKS_MAX: usize = BUF_BYTES_MAX / BLOCK_BYTES;

/// Runs of one extent that are moved before what they have earned is told, and others have their turn: a device that answers
/// at once must not keep the writers waiting for as long as whole extents take.
const RUNS_PER_TURN: usize = 8;

/// A block of the log on its way.
#[derive(Clone, Copy)]
pub(super) struct Moving {
    pub(super) block: u32,
    pub(super) place: LogPlace,
}

impl Shard {
    /// Destages one dirty extent that has been taken from the index. Whether it is clean now, but for what came since.
    pub(super) async fn destage(self: &Rc<Self>, taken: Taken) -> Result<bool, Status> {
        let (extent, has_holes) = (taken.extent, taken.dirty.holes.is_some());
        // Of a free extent only a move speaks, which has not come to its end.
        let held_back = self.held_back.borrow().contains(&extent) || self.meta.descriptor(extent).is_free();
        let mut ended = if held_back { Ok(Destaged::InPart) } else { self.destage_steps(&taken).await };
        match ended {
            Ok(_) if !held_back => self.patience.answered(Refused::Place(extent)),
            // Should a move not be possible, the extent stays where it is, and is tried again.
            Err(Status::WriteError)
                if self.meta.bands().is_none()
                    && self.is_given_up(Refused::Place(extent))
                    && self.relocate(extent).await.is_ok() =>
            {
                ended = Ok(Destaged::Whole);
            }
            _ => {}
        }
        // An extent that has been left is nothing to the index any more, and may be somebody else's by now.
        if ended != Ok(Destaged::Left) {
            self.index.settle(extent, ended == Ok(Destaged::Whole));
        }
        self.settled.notify_all();
        if has_holes && ended == Ok(Destaged::Whole) {
            self.free_emptied(extent).await;
        }
        ended.map(|destaged| destaged != Destaged::InPart)
    }

    async fn destage_steps(self: &Rc<Self>, taken: &Taken) -> Result<Destaged, Status> {
        if let Some(bands) = self.meta.bands() {
            return self.destage_to_bands(bands, taken).await;
        }
        let (extent, taken) = (taken.extent, &taken.dirty);
        let failures = self.meta.flush_failures();
        let owner = self.meta.descriptor(extent);
        let first = extent * EXTENT_BLOCKS;
        self.index.prefetch_set(first, &taken.blocks);
        // Before anything is merged: deltas over a block that only a damaged page knew make it lost.
        let page = self.page_to_change(extent).await?;
        for index in taken.blocks.iter() {
            if self.index.has_chain(first + index) {
                if self.is_broken(Defect::OverwriteUnmerged) {
                    self.overwrite_unmerged(owner, first + index).await?;
                }
                let has_room = self.log.has_room(MERGE_BYTES_MAX);
                if !has_room || self.tuning.evacuates {
                    match self.evacuate(extent, false).await {
                        Ok(true) => return Ok(Destaged::Left),
                        Ok(false) if !has_room => return Ok(Destaged::InPart),
                        Err(status) if !has_room || status.is_gone() => return Err(status),
                        _ => {}
                    }
                }
                self.merge(owner.volume, owner.vextent, index).await?;
            }
        }
        let (mut moving, mut all): (Vec<Moving>, bool) = (Vec::with_capacity(taken.blocks.count() as usize), true);
        for index in taken.blocks.iter() {
            let block = first + index;
            // Deltas have come over it again, or it is a hole or lost now: then there is, or was, a later record.
            match self.index.logged(block).filter(|_| !self.index.has_chain(block)) {
                Some(place) => moving.push(Moving { block, place }),
                None => all &= !self.index.has_chain(block),
            }
        }
        let (waiting, is_held) = self.move_blocks(owner, &mut moving).await?;
        all &= !is_held;
        if self.meta.flush_failures() != failures {
            // Some of it may be lost; it stays dirty. From here to the end nothing waits.
            return Ok(Destaged::InPart);
        }
        // Holes first: a block that was trimmed and then written again is in both.
        for (set, value) in [(&taken.holes, meta::HOLE), (&taken.lost, meta::LOST)] {
            set.iter().flat_map(|set| set.iter()).for_each(|index| page.set(index, value));
        }
        // What was copied since has taken the place of these lines in the caches.
        self.index.prefetch_set(first, &taken.blocks);
        let mut moved = BlockSet::EMPTY;
        for Moving { block, place } in &moving {
            moved.insert(block % EXTENT_BLOCKS);
            page.set(block % EXTENT_BLOCKS, meta::stored_crc(place.crc));
            self.index.settled(*block, *place);
        }
        self.index.settled_holes(taken, &moved);
        waiting.map_or(Ok(if all { Destaged::Whole } else { Destaged::InPart }), Err)
    }

    /// See [`Defect::OverwriteUnmerged`].
    async fn overwrite_unmerged(self: &Rc<Self>, owner: meta::Descriptor, block: u32) -> Result<(), Status> {
        let (offset, bytes) = (block % EXTENT_BLOCKS * BLOCK_BYTES as u32, BLOCK_BYTES as u32);
        let target = Target { volume: owner.volume, vextent: owner.vextent, offset, bytes };
        let buf = bdev::steps::alloc(&self.reactor, BLOCK_BYTES).await?;
        let read = self.read_blocks(target, one(buf)).await;
        read.status.check()?;
        let write = |lba, blocks| Io::write(lba, blocks, read.bufs);
        self.capacity.submit(self.capacity_io(self.meta.data_block(block), 1, write)).await.status.check()
    }

    /// Copies blocks from the log to their places. What the log does not give back leaves the list: either it has been
    /// overwritten meanwhile, or it is lost, or it is to be tried again for the reason that is returned. So does what a disk may not
    /// be given [now](super::sweep); whether there is any.
    async fn move_blocks(
        self: &Rc<Self>,
        owner: meta::Descriptor,
        moving: &mut Vec<Moving>,
    ) -> Result<(Option<Status>, bool), Status> {
        let mut under_way: Together<'_, bdev::Done> = Together::new();
        let mut unreadable: SmallVec<[Moving; 4]> = SmallVec::new();
        let (mut left, mut waiting) = (BlockSet::EMPTY, None);
        let mut ended = Ok(());
        let (mut at, mut runs, mut blocks, mut is_held) = (0, 0, 0, false);
        // After a failed flush, what is destaged again may be right in its place, and wrong in the log.
        let mut lends = self.lends && self.meta.flush_failures() == 0;
        while at < moving.len() {
            if moving[at].place.at == IN_PLACE {
                at += 1;
                continue;
            }
            let (length, writes_max) = self.may_write(moving[at].block, run_length(&moving[at..]));
            if writes_max == 0 {
                moving[at..at + length].iter().for_each(|moving| left.insert(moving.block % EXTENT_BLOCKS));
                (at, is_held) = (at + length, true);
                continue;
            }
            runs += 1;
            if runs % RUNS_PER_TURN == 0 || !self.may_move_now() {
                self.pace.earned(std::mem::take(&mut blocks) * BLOCK_BYTES as u64, self.fill());
                self.reactor.yield_now().await;
                while !self.may_move_now() {
                    self.reactor.yield_now().await;
                }
            }
            self.moved_in.set(self.reactor.turns());
            let run = &moving[at..at + length];
            while under_way.len() >= writes_max {
                let done = under_way.first().await;
                ended = ended.and(done.map_or(Ok(()), |done| self.count_destaged(&done)));
            }
            if lends && let Some((write, is_right)) = self.write_lent(run) {
                under_way.push(write);
                if is_right {
                    (at, blocks) = (at + run.len(), blocks + run.len() as u64);
                    continue;
                }
                lends = false;
                // All of them together: one may wait for another.
                while let Some(done) = under_way.first().await {
                    ended = ended.and(self.count_destaged(&done));
                }
            }
            let (good, stop) = match self.write_copied(run).await {
                Ok((write, good, stop)) => {
                    write.into_iter().for_each(|write| under_way.push(write));
                    (good, stop)
                }
                Err(status) => {
                    ended = ended.and(Err(status));
                    break;
                }
            };
            (at, blocks) = (at + good, blocks + good as u64);
            match stop {
                Some(Stop::Lost) => unreadable.push(moving[at]),
                // The others go on: an extent of which something always fails to be read gets smaller all the same.
                Some(Stop::Later(status)) => {
                    left.insert(moving[at].block % EXTENT_BLOCKS);
                    waiting = Some(status);
                }
                None => continue,
            }
            at += 1;
        }
        while let Some(done) = under_way.first().await {
            ended = ended.and(self.count_destaged(&done));
        }
        ended?;
        self.pace.earned(blocks * BLOCK_BYTES as u64, self.fill());
        unreadable.iter().for_each(|lost| left.insert(lost.block % EXTENT_BLOCKS));
        moving.retain(|moved| !left.contains(moved.block % EXTENT_BLOCKS));
        for lost in unreadable {
            self.give_up(owner, lost).await?;
        }
        Ok((waiting, is_held))
    }

    /// What the device has taken counts, what it has refused does not.
    pub(super) fn count_destaged(&self, done: &bdev::Done) -> Result<(), Status> {
        done.status.check()?;
        add(&self.counters.destaged_bytes, done.io.nblocks as u64 * self.capacity_info.block_size as u64);
        Ok(())
    }

    /// Writes a run as a mapped log lends it; whether every block was right. That is looked at after the write: a device in
    /// memory has fetched the blocks then, as the checksum alone would not as fast. Until replay or a destage has found
    /// out what becomes of a block that is wrong, the log has its newest version, whatever is in its place.
    fn write_lent(&self, run: &[Moving]) -> Option<(IoFuture<'_, bdev::Done>, bool)> {
        let mut bufs = SgList::new();
        for Moving { place, .. } in run {
            bufs.push(self.log.try_loan(place.at, BLOCK_BYTES)?);
        }
        let views: SgList = bufs.iter_mut().map(Buf::duplicate).collect();
        let write = self.write_in_place(run, bufs);
        let is_right = views.iter().zip(run).all(|(view, moving)| crc32c(view.as_slice()) == moving.place.crc);
        Some((write, is_right))
    }

    /// Begins to write a run that has been read and checked, up to the first block that the log does not give back; what is to
    /// become of that.
    async fn write_copied(
        &self,
        run: &[Moving],
    ) -> Result<(Option<IoFuture<'_, bdev::Done>>, usize, Option<Stop>), Status> {
        let mut buf = bdev::steps::alloc(&self.reactor, run.len() * BLOCK_BYTES).await?;
        let (good, stop) = self.read_run(run, &mut buf).await?;
        if good == 0 {
            return Ok((None, 0, stop));
        }
        buf.truncate(good * BLOCK_BYTES);
        Ok((Some(self.write_in_place(&run[..good], one(buf))), good, stop))
    }

    fn write_in_place(&self, run: &[Moving], bufs: SgList) -> IoFuture<'_, bdev::Done> {
        let place = self.meta.data_block(run[0].block);
        self.capacity.submit(self.capacity_io(place, run.len() as u32, |lba, blocks| Io::write(lba, blocks, bufs)))
    }

    /// Whether this turn has time for a run. One in each there is always, however long hosts make it.
    pub(super) fn may_move_now(&self) -> bool {
        self.moved_in.get() != self.reactor.turns() || !self.reactor.is_turn_long()
    }

    /// Reads a run of blocks from the log: how many, up to the first that cannot be read, and what is to become of that.
    pub(super) async fn read_run(&self, run: &[Moving], buf: &mut Buf) -> Result<(usize, Option<Stop>), Status> {
        let ahead = self.read_ahead(run, buf).await;
        for (step, Moving { place, .. }) in run.iter().enumerate().filter(|(step, _)| !ahead.contains(*step as u32)) {
            let target = &mut buf.as_mut_slice()[step * BLOCK_BYTES..][..BLOCK_BYTES];
            let mut right = false;
            let what = Refused::Log(place.at);
            // Twice, in case it was the way and not the medium.
            for first in [true, false] {
                if !self.log.try_read(place.at, 0, target) {
                    let read = match self.log.read(place.at, 0, BLOCK_BYTES).await {
                        Err(status) if self.may_rescue_logged(status) => self
                            .log
                            .read_right(place.at, BLOCK_BYTES, place.crc)
                            .await
                            .and_then(|right| right.ok_or(status)),
                        read => read,
                    };
                    let bytes: SgList = match read {
                        Ok(bytes) => bytes,
                        Err(Status::Corrupt) => continue,
                        Err(Status::ReadError) if first && self.is_tried_again(what) => continue,
                        Err(Status::ReadError) if self.is_lost(what).await => break,
                        Err(Status::ReadError) => return Ok((step, Some(Stop::Later(Status::ReadError)))),
                        Err(status) => return Err(status),
                    };
                    self.patience.answered(what);
                    super::data::copy_out(&bytes, 0, target);
                }
                right = crc32c(target) == place.crc;
                if right {
                    break;
                }
            }
            if !right && self.may_rescue_logged(Status::Corrupt) {
                match self.log.read_right(place.at, BLOCK_BYTES, place.crc).await {
                    Ok(Some(bytes)) => {
                        super::data::copy_out(&bytes, 0, &mut buf.as_mut_slice()[step * BLOCK_BYTES..][..BLOCK_BYTES]);
                        right = true;
                    }
                    Ok(None) => {}
                    Err(_) if self.is_lost(what).await => {}
                    Err(status) => return Ok((step, Some(Stop::Later(status)))),
                }
            }
            if !right {
                return Ok((step, Some(Stop::Lost)));
            }
        }
        Ok((run.len(), None))
    }

    /// Records that a block is lost, unless it has been overwritten meanwhile.
    pub(super) async fn give_up(self: &Rc<Self>, owner: meta::Descriptor, lost: Moving) -> Result<(), Status> {
        let offset = lost.block % EXTENT_BLOCKS * BLOCK_BYTES as u32;
        let target = Target { volume: owner.volume, vextent: owner.vextent, offset, bytes: BLOCK_BYTES as u32 };
        let _held = self.locks.lock(target.range()).await;
        self.log.barrier().await;
        if self.index.logged(lost.block) != Some(lost.place) {
            return Ok(());
        }
        // Up to the record, what the checkpoint has may be an older version.
        self.note_slice(&target).await?;
        tracing::error!(
            "pool '{}': block {} of shard {} is lost: the log does not give it back",
            self.pool_name,
            lost.block,
            self.number
        );
        add(&self.counters.lost_blocks, 1);
        let record = Record::Lost { first: lost.block, blocks: 1 };
        self.log.append(record, SgList::new(), Class::Internal).await.result.map(|_| ())
    }
}

/// How a destage has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destaged {
    /// The map page has everything that was taken.
    Whole,
    /// Something is left, to be tried again.
    InPart,
    /// What the extent had is in another one.
    Left,
}

/// Why a block is not moved.
pub(super) enum Stop {
    /// It is given up.
    Lost,
    /// The next destage tries it again.
    Later(Status),
}

/// How many blocks from the first are neighbours on the capacity device and have bytes in the log.
fn run_length(moving: &[Moving]) -> usize {
    let follows =
        |index: usize| moving[index].block == moving[index - 1].block + 1 && moving[index].place.at != IN_PLACE;
    let most = moving.len().min(RUN_BLOCKS_MAX);
    (1..most).find(|index| !follows(*index)).unwrap_or(most)
}
