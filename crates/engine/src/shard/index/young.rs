//! What of an extent is destaged when its turn comes. With `least` the blocks that were written in the younger half of what is
//! dirty stay in the log: many of them are written again there, and those written often never leave it under load.
//!
//! What stays is dirty from the first record of that half on. So each extent has its turn twice while the log goes round once, with
//! a read and a write of its map page each time; where an extent has few blocks in the log, that would cost more than it saves. So an
//! extent with fewer than `least` old ones gives all it has; one with none at all is passed over.

use super::super::Defect;
use super::super::dirty::{BlockSet, DirtyExtent};
use super::super::log_map::IN_PLACE;
use super::{Index, State};
use crate::units::{EXTENT_BLOCKS, LogTail};

/// Extents that are passed over at a time.
const PASSED_MAX: u32 = 16;
/// Least segments of which the younger half stays.
const SEGMENTS_MIN: usize = 2;

impl Index {
    /// The dirty extent whose turn it is, and what it has; see the module.
    pub(crate) fn take_dirty(&self, least: Option<u32>) -> Option<(u32, DirtyExtent)> {
        let state = &mut *self.state.borrow_mut();
        let young = least.and_then(|least| Some((least, state.young()?)));
        let mut passed = 0;
        loop {
            let (extent, mut taken) = state.dirty.take()?;
            let Some((least, young)) = young else { return Some((extent, taken)) };
            let old = state.older(extent, &taken, young, self.segment_units);
            // With deltas, or after a failed flush, an extent may have nothing before that.
            if !taken.is_before(young) {
                return Some((extent, taken));
            }
            let from = if self.defect == Some(Defect::ForgetYoung) { state.next() } else { young };
            if old.is_empty() && taken.has_blocks_alone() && passed < PASSED_MAX {
                state.dirty.leave(extent, from);
                state.dirty.settle(extent, true);
                passed += 1;
                continue;
            }
            if old != taken.blocks && old.count() >= least {
                taken.blocks = old;
                state.dirty.leave(extent, from);
            }
            return Some((extent, taken));
        }
    }
}

impl State {
    /// The record from which on what is dirty is young; `None` when the log has too few segments to tell.
    fn young(&mut self) -> Option<LogTail> {
        let tail = self.dirty.tail()?;
        let from = self.starts.partition_point(|start| start.segment <= tail.segment);
        let segments = self.starts.len() - from;
        (segments >= SEGMENTS_MIN).then(|| self.starts[from + segments / 2])
    }

    /// What was taken of an extent, without the blocks that are whole in the log from a record on.
    fn older(&self, extent: u32, taken: &DirtyExtent, young: LogTail, segment_units: u32) -> BlockSet {
        let first = extent * EXTENT_BLOCKS;
        taken.blocks.iter().for_each(|index| self.map.prefetch(first + index));
        let is_young = |block| {
            let place = self.map.get(block).filter(|place| place.at != IN_PLACE);
            place.is_some_and(|place| self.segment_at(place.at, segment_units) >= young.segment)
                && !self.chains.contains_key(&block)
        };
        let mut old = BlockSet::EMPTY;
        taken.blocks.iter().filter(|index| !is_young(first + index)).for_each(|index| old.insert(index));
        old
    }
}
