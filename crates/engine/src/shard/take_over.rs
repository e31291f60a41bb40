//! Where a layer that goes and the layer above it both have an extent, and the upper one has little in it: that is written to
//! the lower one's, and the upper one's own extent is given back. What is there then can change its owner as a whole.
//!
//! Nobody but the upper layer shows what is written so, and there it is what it shows already: whenever a crash comes, the
//! same bytes are seen. Writers go on meanwhile; what they change is written once more. They wait for a few blocks at a time, and at
//! the end for the last of those.

use super::index::Place;
use super::patience::Needed;
use super::slack::Slack;
use super::{BLOCK, Defect, Shard, Target};
use crate::log::{Class, Record};
use crate::units::EXTENT_BLOCKS;
use bdev::Status;
use reactor::SgList;
use std::rc::Rc;

/// Blocks for which writers wait, at a time and at the end.
const RUN_BLOCKS: usize = 8;
/// Log bytes of so many: each block in a record of its own.
const RUN_BYTES_MAX: u64 = 2 * RUN_BLOCKS as u64 * BLOCK as u64;
/// How often what has been changed meanwhile is written again, until it is too much.
const PASSES_MAX: u32 = 4;

/// An extent of both layers.
#[derive(Clone, Copy)]
pub(super) struct Both {
    /// That of the layer that goes.
    pub(super) below: Target,
    pub(super) old: u32,
    /// That of the layer above it.
    pub(super) above: Target,
    pub(super) new: u32,
}

impl Both {
    fn block_above(&self, index: u32) -> (Target, u32) {
        (Target { offset: index * BLOCK, bytes: BLOCK, ..self.above }, self.new * EXTENT_BLOCKS + index)
    }
}

impl Shard {
    /// Writes what the upper layer has of its own to the lower one's extent, and gives the upper one's back. False when that is
    /// not possible or not worth it, and nothing has changed to those who read.
    pub(super) async fn take_over(self: &Rc<Self>, both: Both, slack: &Slack) -> Result<bool, Status> {
        self.index.watch(both.new);
        let taken = self.take_over_watched(both, slack).await;
        self.index.unwatch();
        taken
    }

    async fn take_over_watched(self: &Rc<Self>, both: Both, slack: &Slack) -> Result<bool, Status> {
        let Some(mut left) = self.own_if_few(both).await? else { return Ok(false) };
        for _ in 0..PASSES_MAX {
            for run in left.chunks(RUN_BLOCKS) {
                slack.give_way(self).await;
                self.wait_for_room(RUN_BYTES_MAX).await?;
                if !self.write_down(both, run).await? {
                    return Ok(false);
                }
            }
            let changed = self.index.watched();
            if changed.count() as usize <= RUN_BLOCKS / 2 {
                return self.take_over_rest(both, changed.iter().collect()).await;
            }
            left = changed.iter().collect();
        }
        Ok(false)
    }

    /// The blocks that the upper layer has of its own, where these are fewer than those it shows of the lower one.
    async fn own_if_few(self: &Rc<Self>, both: Both) -> Result<Option<Vec<u32>>, Status> {
        // What the upper layer has where it shows nothing of the lower one would not be seen there.
        if self.shown(both.below.volume, both.above.volume, both.above.vextent) < EXTENT_BLOCKS {
            return Ok(None);
        }
        // In memory until all have been looked at.
        let _pages = (self.page_to_change(both.old).await?, self.page_to_change(both.new).await?);
        if !self.are_here(both) {
            return Ok(None);
        }
        let place = |extent: u32, index: u32| self.index.place(extent * EXTENT_BLOCKS + index);
        let own: Vec<u32> = (0..EXTENT_BLOCKS).filter(|index| place(both.new, *index) != Place::Inherit).collect();
        let has_bytes = |index| !matches!(place(both.old, index), Place::Inherit | Place::Hole);
        let shows = |index: &u32| place(both.new, *index) == Place::Inherit && has_bytes(*index);
        let shown = (0..EXTENT_BLOCKS).filter(shows).count();
        Ok((own.len() < shown).then_some(own))
    }

    fn are_here(&self, both: Both) -> bool {
        let is_here = |target: Target, extent| self.index.extent(target.volume, target.vextent) == Some(extent);
        is_here(both.below, both.old) && is_here(both.above, both.new)
    }

    /// Writes some blocks, in ascending order, to the lower layer's extent. False when that is not possible.
    async fn write_down(self: &Rc<Self>, both: Both, run: &[u32]) -> Result<bool, Status> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(true) };
        let part = |target| Target { offset: first * BLOCK, bytes: (last + 1 - first) * BLOCK, ..target };
        let _held = self.locks.lock(part(both.above).range()).await;
        // It must not move to another place meanwhile.
        let _held_below = self.locks.lock(part(both.below).range()).await;
        self.log.barrier().await;
        if !self.are_here(both) {
            return Ok(false);
        }
        let written = self.write_down_held(both, run).await;
        self.house.wrote(self);
        written
    }

    async fn write_down_held(self: &Rc<Self>, both: Both, run: &[u32]) -> Result<bool, Status> {
        for index in run {
            if self.is_broken(Defect::ForgetOwn) && index % 2 == 1 {
                continue;
            }
            let (above, block) = both.block_above(*index);
            let page = self.page_to_change(both.new).await?;
            let place = self.index.place(block);
            drop(page);
            let first = both.old * EXTENT_BLOCKS + index;
            let (record, bufs) = match place {
                Place::Inherit => continue,
                Place::Hole => (Record::Trim { first, blocks: 1 }, SgList::new()),
                Place::Lost => (Record::Lost { first, blocks: 1 }, SgList::new()),
                _ => match self.read_needed(above, block).await {
                    Ok(Needed::Bytes(bufs)) => (Record::write(first, 1), bufs),
                    // It stays where it is, and is found there by those who read or mend it.
                    Ok(Needed::Lost { .. }) | Err(Status::ReadError) => return Ok(false),
                    Err(status) => return Err(status),
                },
            };
            self.note_slice(&both.below).await?;
            self.log.append(record, bufs, Class::Internal).await.result?;
        }
        Ok(true)
    }

    /// The last of it, with which the upper layer's extent goes.
    async fn take_over_rest(self: &Rc<Self>, both: Both, left: Vec<u32>) -> Result<bool, Status> {
        // Before it is held back: room may be what its destage makes.
        self.wait_for_room(RUN_BYTES_MAX).await?;
        self.held_back.borrow_mut().push(both.new);
        let taken = self.take_over_undisturbed(both, left).await;
        self.let_go(both.new);
        self.house.wrote(self);
        self.note_room();
        taken
    }

    async fn take_over_undisturbed(self: &Rc<Self>, both: Both, mut left: Vec<u32>) -> Result<bool, Status> {
        self.settled.wait_until(|| !self.index.is_destaging(both.new)).await;
        let _held = self.locks.lock(both.above.range()).await;
        let _held_below = self.locks.lock(both.below.range()).await;
        self.log.barrier().await;
        left.extend(self.index.watched().iter());
        if !self.are_here(both) || left.len() > RUN_BLOCKS {
            return Ok(false);
        }
        left.sort_unstable();
        left.dedup();
        Ok(self.write_down_held(both, &left).await? && self.free_held(both.above, both.new).await?)
    }
}
