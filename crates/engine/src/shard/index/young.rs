//! What of an extent is destaged when its turn comes. With `least` the blocks that were written in the younger half of what is
//! dirty stay in the log: many of them are written again there, and those written often never leave it under load.
//!
//! Of the older ones, those that are [written often](super::super::heat) go to the head of the log once more.
//!
//! What stays is dirty from the first record of that half on. So each extent has its turn twice while the log goes round once, with
//! a read and a write of its map page each time; where an extent has few blocks in the log, that would cost more than it saves. So an
//! extent with fewer than `least` old ones to destage gives all it has but what is written often; one with none at all is passed over.

use super::super::Defect;
use super::super::dirty::{DirtyExtent, LaneOf};
use super::super::dirty_blocks::BlockSet;
use super::super::heat::Heat;
use super::super::log_policy::{AGES, takes_old_alone};
use super::{Index, State};
use crate::units::{EXTENT_BLOCKS, LogTail};

/// Extents that are passed over at a time.
const PASSED_MAX: u32 = 16;
/// Least segments of which the younger half stays.
const SEGMENTS_MIN: usize = 2;

/// What stays in the log when an extent is destaged under load.
#[derive(Clone, Copy)]
pub(crate) struct Keeps<'a> {
    /// See the module.
    pub(crate) least: u32,
    pub(crate) heat: Option<&'a Heat>,
}

/// What becomes of what an extent has in the log.
pub(crate) struct Taken {
    pub(crate) extent: u32,
    /// What is destaged.
    pub(crate) dirty: DirtyExtent,
    /// What goes to the head of the log.
    pub(crate) reinserted: BlockSet,
}

impl Index {
    /// The dirty extent whose turn it is, and what becomes of what it has; see the module.
    pub(crate) fn take_dirty(&self, keeps: Option<Keeps<'_>>) -> Option<Taken> {
        let state = &mut *self.state.borrow_mut();
        let young = keeps.and_then(|keeps| Some((keeps, state.young()?)));
        let mut passed = 0;
        loop {
            let (extent, dirty) = state.dirty.take()?;
            let mut taken = Taken { extent, dirty, reinserted: BlockSet::EMPTY };
            let Some((keeps, young)) = young else { return Some(taken) };
            let old = state.older(extent, &taken.dirty, young, self.segment_units);
            // With deltas, or after a failed flush, an extent may have nothing before that.
            if !taken.dirty.is_before(young) {
                return Some(taken);
            }
            let from = if self.defect == Some(Defect::ForgetYoung) { state.next() } else { young };
            if old.is_empty() && taken.dirty.has_blocks_alone() && passed < PASSED_MAX {
                state.dirty.leave(extent, from);
                state.dirty.settle(extent, true);
                passed += 1;
                continue;
            }
            if state.share_out(&mut taken, old, keeps) {
                state.dirty.leave(extent, from);
            }
            return Some(taken);
        }
    }
}

impl Index {
    /// From now on extents that are dirty queue in so many lanes.
    pub(crate) fn divide(&self, lanes: usize, lane_of: LaneOf) {
        self.state.borrow_mut().dirty.divide(lanes, lane_of);
    }

    /// The next extent of a lane's [sweep](super::super::lane) over so many segments of the log, with all that it has.
    pub(crate) fn take_next(&self, lane: usize, segments: u64) -> Option<Taken> {
        let (extent, dirty) = self.state.borrow_mut().dirty.take_next(lane, segments)?;
        Some(Taken { extent, dirty, reinserted: BlockSet::EMPTY })
    }
}

impl State {
    /// The record from which on what is dirty is young; `None` when the log has too few segments to tell.
    fn young(&mut self) -> Option<LogTail> {
        let tail = self.dirty.tail()?;
        let from = self.starts.partition_point(|start| start.segment <= tail.segment);
        let segments = self.starts.len() - from;
        (segments >= SEGMENTS_MIN).then(|| self.starts[from + segments / AGES])
    }

    /// Decides what becomes of the `old` blocks and the others. Whether something stays where it is.
    fn share_out(&self, taken: &mut Taken, old: BlockSet, Keeps { least, heat }: Keeps<'_>) -> bool {
        let (first, all) = (taken.extent * EXTENT_BLOCKS, taken.dirty.blocks);
        let is_whole = |block| self.whole_in_log(block).is_some();
        if let Some(heat) = heat {
            let is_hot = |index: &u32| is_whole(first + index) && heat.reinserts(first + index);
            old.iter().filter(is_hot).for_each(|index| taken.reinserted.insert(index));
        }
        let due = old.without(&taken.reinserted);
        taken.dirty.blocks = match heat {
            _ if takes_old_alone(due.count(), taken.reinserted.count(), least) => due,
            None => all,
            Some(heat) => {
                let mut due = all.without(&taken.reinserted);
                let young = all.without(&old);
                let stays = |index: &u32| is_whole(first + index) && heat.is_hot(first + index);
                young.iter().filter(stays).for_each(|index| due.remove(index));
                due
            }
        };
        taken.dirty.blocks.count() + taken.reinserted.count() < all.count()
    }

    /// What was taken of an extent, without the blocks that are whole in the log from a record on.
    fn older(&self, extent: u32, taken: &DirtyExtent, young: LogTail, segment_units: u32) -> BlockSet {
        let first = extent * EXTENT_BLOCKS;
        taken.blocks.iter().for_each(|index| self.map.prefetch(first + index));
        let is_young = |block| {
            let place = self.whole_in_log(block);
            place.is_some_and(|place| self.segment_at(place.at, segment_units) >= young.segment)
        };
        let mut old = BlockSet::EMPTY;
        taken.blocks.iter().filter(|index| !is_young(first + index)).for_each(|index| old.insert(index));
        old
    }
}
