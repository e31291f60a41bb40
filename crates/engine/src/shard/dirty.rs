//! Extents that have something in the log which the capacity device does not know yet, in the order of their first
//! such record.
//!
//! ```text
//! (absent) --record--> queued --take--> destaging --settle, nothing new--> (absent)
//!                        ^                  |
//!                        +---settle, new records meanwhile
//! ```
//!
//! Where the capacity device is made of disks that seek they queue in [lanes](super::lane), one for each disk; otherwise in
//! one.

use super::dirty_blocks::{BlockSet, DirtyBlocks, Kept};
use super::lane::{Entry, Lane};
use crate::units::{EXTENT_BLOCKS, LogTail};
use reactor::Table;
use std::collections::VecDeque;
use zerocopy::FromZeros;

const NONE: u32 = u32::MAX;

/// What the log knows about one extent and its map page does not, as it was when it was taken.
#[derive(Clone, Debug)]
pub(crate) struct DirtyExtent {
    extent: u32,
    first: LogTail,
    /// Blocks that are holes now.
    pub(crate) holes: Option<Box<BlockSet>>,
    /// Blocks that are lost now.
    pub(crate) lost: Option<Box<BlockSet>>,
    /// Blocks whose newest bytes (or checksum) are in the log map, or in a chain of deltas.
    pub(crate) blocks: BlockSet,
}

const NO_RECORD: LogTail = LogTail { segment: u64::MAX, lsn: u64::MAX };

/// Blocks that are not there, as the map page does not know.
#[derive(Clone, Debug, Default)]
struct Gone {
    holes: Option<Box<BlockSet>>,
    lost: Option<Box<BlockSet>>,
}

/// The same, of an extent that is dirty: half a line of the cache, so that many extents with a block or two each take little memory.
#[derive(Debug, FromZeros)]
#[repr(align(32))]
pub(crate) struct Live {
    /// The first record that is not in the map page.
    first: LogTail,
    gone: Option<Box<Gone>>,
    blocks: Kept,
}

const _: () = assert!(size_of::<Live>() == 32);

/// An extent that is being destaged.
#[derive(Debug)]
struct UnderWay {
    extent: u32,
    /// The first record that the destage leaves, or that has come since.
    since: LogTail,
    /// The destage leaves some of it.
    is_left: bool,
}

/// The lane of an extent.
pub(crate) type LaneOf = Box<dyn Fn(u32) -> usize>;

/// See the module.
pub(crate) struct DirtyExtents {
    /// Per extent its slot, or none.
    index: Vec<u32>,
    /// Per slot what is in it.
    slab: Table<Live>,
    /// Slots from here on have never been used.
    slab_used: usize,
    /// Those of each slot.
    dirty: DirtyBlocks,
    free: Vec<u32>,
    /// At least one. An entry holds while the extent is queued with that very record.
    lanes: Vec<Lane>,
    /// Where there are several.
    lane_of: Option<LaneOf>,
    /// Extents of which a destage has left the younger part, by first record: in the midst of those of the others.
    left: VecDeque<Entry>,
    /// Extents being destaged, few.
    under_way: Vec<UnderWay>,
    blocks: u64,
}

impl DirtyExtents {
    pub(crate) fn new(extents: u32) -> DirtyExtents {
        // Room for all is asked for at once and not touched: growing would copy it again and again, in a replay above all.
        DirtyExtents {
            index: vec![NONE; extents as usize],
            slab: Table::zeroed(extents as usize),
            slab_used: 0,
            dirty: DirtyBlocks::new(extents as usize),
            free: Vec::new(),
            lanes: vec![Lane::default()],
            lane_of: None,
            left: VecDeque::new(),
            under_way: Vec::new(),
            blocks: 0,
        }
    }

    /// So many extents may become dirty one after the other, as in a replay: their queue does not grow by copying then.
    pub(crate) fn expect(&mut self, extents: usize) {
        self.lanes[0].reserve(extents.min(self.index.len()));
    }

    /// From now on extents queue in so many lanes.
    pub(crate) fn divide(&mut self, lanes: usize, lane_of: LaneOf) {
        let mut queued: Vec<Entry> = self.lanes.iter_mut().flat_map(Lane::drain).collect();
        queued.sort_unstable_by_key(|(_, first)| *first);
        self.lanes = (0..lanes).map(|_| Lane::default()).collect();
        self.lane_of = Some(lane_of);
        queued.into_iter().for_each(|(extent, first)| self.lane(extent).push((extent, first)));
    }

    #[inline]
    fn lane(&mut self, extent: u32) -> &mut Lane {
        let lane = self.lane_of.as_ref().map_or(0, |lane_of| lane_of(extent));
        &mut self.lanes[lane]
    }

    /// More extents exist.
    pub(crate) fn grow(&mut self, extents: u32) {
        self.index.resize(extents as usize, NONE);
        self.slab = std::mem::replace(&mut self.slab, Table::zeroed(0)).extended(extents as usize);
        self.dirty.grow(extents as usize);
    }

    #[inline]
    fn slot(&self, extent: u32) -> Option<usize> {
        match self.index[extent as usize] {
            NONE => None,
            slot => Some(slot as usize),
        }
    }

    /// Whether there are all of these blocks.
    #[inline]
    pub(crate) fn covers(&self, first: u32, blocks: u32) -> bool {
        first.checked_add(blocks).is_some_and(|end| end.div_ceil(EXTENT_BLOCKS) as usize <= self.index.len())
    }

    #[inline]
    pub(crate) fn get(&self, extent: u32) -> Option<&Live> {
        self.slot(extent).map(|slot| &self.slab[slot])
    }

    pub(crate) fn get_mut(&mut self, extent: u32) -> Option<&mut Live> {
        self.slot(extent).map(|slot| &mut self.slab[slot])
    }

    /// Whether a block's newest bytes (or checksum) are in the log map, or in a chain of deltas.
    #[inline]
    pub(crate) fn has(&self, block: u32) -> bool {
        let slot = self.slot(block / EXTENT_BLOCKS);
        slot.is_some_and(|slot| self.dirty.has(slot, &self.slab[slot].blocks, block % EXTENT_BLOCKS))
    }

    /// The block is marked soon: where the extent's state is, is wanted, and where that goes if it has none yet.
    #[inline]
    pub(crate) fn prefetch_slot(&self, block: u32) {
        reactor::prefetch(&self.index[(block / EXTENT_BLOCKS) as usize]);
        if let Some(slot) = self.free.last() {
            self.prefetch_at(*slot as usize);
        }
    }

    /// The block is marked soon.
    #[inline]
    pub(crate) fn prefetch(&self, block: u32) {
        if let Some(slot) = self.slot(block / EXTENT_BLOCKS) {
            self.prefetch_at(slot);
        }
    }

    #[inline]
    fn prefetch_at(&self, slot: usize) {
        reactor::prefetch(&self.slab[slot]);
        self.dirty.prefetch(slot);
    }

    fn under_way_of(&mut self, extent: u32) -> Option<&mut UnderWay> {
        self.under_way.iter_mut().find(|other| other.extent == extent)
    }

    /// The slot of an extent that record `at` says something about.
    fn touch(&mut self, extent: u32, at: LogTail) -> usize {
        let mut slot = self.index[extent as usize];
        if slot == NONE {
            slot = self.free.pop().unwrap_or_else(|| {
                self.slab_used += 1;
                self.slab_used as u32 - 1
            });
            self.slab[slot as usize] = Live::new(at);
            self.index[extent as usize] = slot;
            self.lane(extent).push((extent, at));
        }
        if self.slab[slot as usize].blocks.is_destaging
            && let Some(under_way) = self.under_way_of(extent)
            && under_way.since == NO_RECORD
        {
            under_way.since = at;
        }
        slot as usize
    }

    /// Forgets an extent (it is free now, or settled).
    pub(crate) fn forget(&mut self, extent: u32) {
        let slot = std::mem::replace(&mut self.index[extent as usize], NONE);
        if slot != NONE {
            self.empty(slot as usize);
            self.slab[slot as usize].gone = None;
            self.free.push(slot);
            self.under_way.retain(|other| other.extent != extent);
        }
    }

    fn empty(&mut self, slot: usize) {
        self.dirty.clear(slot, &mut self.slab[slot].blocks);
    }

    /// The dirty blocks of a slot.
    fn set_of(&self, slot: usize) -> BlockSet {
        self.dirty.set(slot, &self.slab[slot].blocks)
    }

    /// Adds a block to a slot, counted; the state of its extent.
    #[inline]
    fn add(&mut self, slot: usize, index: u32) -> &mut Live {
        let state = &mut self.slab[slot];
        self.blocks += self.dirty.insert(slot, &mut state.blocks, index) as u64;
        state
    }

    /// The queued extent whose record is the oldest, to be destaged now; what it had is returned as a copy.
    pub(crate) fn take(&mut self) -> Option<(u32, DirtyExtent)> {
        self.pass_over();
        let queued =
            self.lanes.iter_mut().filter_map(|lane| Some((lane.oldest()?, lane))).min_by_key(|(first, _)| *first);
        let left = self.left.front().filter(|(_, first)| queued.as_ref().is_none_or(|(other, _)| first < other));
        let extent = match left {
            Some((extent, _)) => {
                let extent = *extent;
                self.left.pop_front();
                extent
            }
            None => queued?.1.take_oldest()?,
        };
        Some(self.taken(extent))
    }

    /// As [`take`](Self::take), the next one of a lane's sweep over so many segments of the log.
    pub(crate) fn take_next(&mut self, lane: usize, segments: u64) -> Option<(u32, DirtyExtent)> {
        let DirtyExtents { index, slab, lanes, .. } = self;
        let extent = lanes[lane].take_next(segments, |entry| holds(index, slab, entry))?;
        Some(self.taken(extent))
    }

    fn taken(&mut self, extent: u32) -> (u32, DirtyExtent) {
        let slot = self.slot(extent).expect("what is queued is dirty");
        let blocks = self.set_of(slot);
        let state = &mut self.slab[slot];
        state.blocks.is_destaging = true;
        let Gone { holes, lost } = state.gone.as_deref().cloned().unwrap_or_default();
        let copy = DirtyExtent { extent, first: state.first, holes, lost, blocks };
        self.under_way.push(UnderWay { extent, since: NO_RECORD, is_left: false });
        (extent, copy)
    }

    /// Of an extent that has been taken, what is in the log from this record on, which is behind its first one, stays dirty,
    /// whatever comes of the destage.
    pub(crate) fn leave(&mut self, extent: u32, from: LogTail) {
        if let Some(under_way) = self.under_way_of(extent) {
            (under_way.since, under_way.is_left) = (from, true);
        }
    }

    /// Entries in front that do not hold any more go.
    fn pass_over(&mut self) {
        let DirtyExtents { index, slab, lanes, left, .. } = self;
        lanes.iter_mut().for_each(|lane| lane.pass_over(|entry| holds(index, slab, entry)));
        while left.front().is_some_and(|entry| !holds(index, slab, entry)) {
            left.pop_front();
        }
    }

    /// A destage has ended. With `done` what is left dates from after its start; otherwise from before.
    pub(crate) fn settle(&mut self, extent: u32, done: bool) {
        let ended = self.under_way.iter().position(|other| other.extent == extent);
        let ended = ended.map(|at| self.under_way.swap_remove(at));
        let Some(slot) = self.slot(extent) else { return };
        let clean = self.set_of(slot).is_empty() && self.slab[slot].gone.is_none();
        let state = &mut self.slab[slot];
        state.blocks.is_destaging = false;
        let (since, is_left) = ended.map_or((NO_RECORD, false), |ended| (ended.since, ended.is_left));
        if done && clean {
            self.forget(extent);
            return;
        }
        if done {
            assert!(since != NO_RECORD, "what is dirty after a destage was left or written since");
            state.first = since;
        }
        let first = state.first;
        if is_left && done && self.left.back().is_none_or(|(_, last)| *last <= first) {
            return self.left.push_back((extent, first));
        }
        self.lane(extent).insert((extent, first));
    }

    /// The oldest record that a map page does not have; `None` when all do.
    pub(crate) fn tail(&mut self) -> Option<LogTail> {
        self.pass_over();
        let queued = self.lanes.iter().filter_map(Lane::oldest).chain(self.left.front().map(|(_, first)| *first));
        let under_way = self.under_way.iter().filter_map(|other| self.get(other.extent)).map(|state| state.first).min();
        queued.chain(under_way).min()
    }

    /// The oldest record that the map page of any other extent does not have.
    pub(crate) fn oldest_but(&self, extent: u32) -> Option<LogTail> {
        self.extents()
            .filter(|other| *other != extent)
            .filter_map(|other| self.get(other))
            .map(|state| state.first)
            .min()
    }

    /// The dirty extents, in ascending order.
    pub(crate) fn extents(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.index).filter(|(_, slot)| **slot != NONE).map(|(extent, _)| extent)
    }

    /// How many blocks are dirty when that is not what is counted.
    pub(crate) fn miscounted(&self) -> Option<u64> {
        let slots = self.extents().filter_map(|extent| self.slot(extent));
        let dirty = slots.map(|slot| self.set_of(slot).count() as u64).sum();
        (dirty != self.blocks).then_some(dirty)
    }

    /// Number of dirty extents.
    pub(crate) fn len(&self) -> usize {
        self.slab_used - self.free.len()
    }

    pub(crate) fn is_destaging(&self, extent: u32) -> bool {
        self.under_way.iter().any(|other| other.extent == extent)
    }

    /// Extents being destaged.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Bytes of memory it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.index.capacity() * 4
            + self.slab_used * size_of::<Live>()
            + self.dirty.memory_bytes()
            + self.lanes.iter().map(Lane::memory_bytes).sum::<usize>()
            + self.left.capacity() * size_of::<Entry>()
    }

    /// Dirty blocks in all extents.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The block is in the log map from record `at` on.
    #[inline]
    pub(crate) fn mark(&mut self, block: u32, at: LogTail) {
        let index = block % EXTENT_BLOCKS;
        let slot = self.touch(block / EXTENT_BLOCKS, at);
        let state = self.add(slot, index);
        if let Some(gone) = &mut state.gone {
            [&mut gone.holes, &mut gone.lost].into_iter().flatten().for_each(|set| set.remove(index));
        }
    }

    /// These blocks are in the log map, whether they have been destaged or not, and are to be destaged from record `tail` on.
    pub(crate) fn mark_again(&mut self, blocks: &[u32], tail: LogTail) {
        for block in blocks {
            let slot = self.touch(block / EXTENT_BLOCKS, tail);
            let state = self.add(slot, block % EXTENT_BLOCKS);
            // One that is older already stays so: the tail may have moved on past it.
            state.first = state.first.min(tail);
            if state.blocks.is_destaging
                && let Some(under_way) = self.under_way_of(block / EXTENT_BLOCKS)
            {
                // Whatever the destage does: it does not do this.
                under_way.since = under_way.since.min(tail);
            }
        }
        // In their order again.
        let queued = self.extents().filter_map(|extent| Some((extent, self.get(extent)?)));
        let queued = queued.filter(|(_, state)| !state.blocks.is_destaging);
        let mut queue: Vec<Entry> = queued.map(|(extent, state)| (extent, state.first)).collect();
        queue.sort_by_key(|(_, first)| *first);
        self.left.clear();
        self.lanes.iter_mut().for_each(|lane| drop(lane.drain()));
        queue.into_iter().for_each(|(extent, first)| self.lane(extent).push((extent, first)));
    }

    /// There are bytes over the block from record `at` on; what is below stays as it is.
    pub(crate) fn mark_over(&mut self, block: u32, at: LogTail) {
        let slot = self.touch(block / EXTENT_BLOCKS, at);
        self.add(slot, block % EXTENT_BLOCKS);
    }

    /// The block is a hole from record `at` on.
    pub(crate) fn mark_hole(&mut self, block: u32, at: LogTail) {
        let (slot, index) = (self.touch(block / EXTENT_BLOCKS, at), block % EXTENT_BLOCKS);
        let gone = self.slab[slot].gone.get_or_insert_default();
        gone.holes.get_or_insert_default().insert(index);
        if let Some(lost) = &mut gone.lost {
            lost.remove(index);
        }
    }

    /// The block is lost from record `at` on.
    pub(crate) fn mark_lost(&mut self, block: u32, at: LogTail) {
        let (slot, index) = (self.touch(block / EXTENT_BLOCKS, at), block % EXTENT_BLOCKS);
        let gone = self.slab[slot].gone.get_or_insert_default();
        gone.lost.get_or_insert_default().insert(index);
        if let Some(holes) = &mut gone.holes {
            holes.remove(index);
        }
    }

    /// The block is no longer dirty.
    pub(crate) fn unmark(&mut self, block: u32) {
        let Some(slot) = self.slot(block / EXTENT_BLOCKS) else { return };
        let state = &mut self.slab[slot];
        self.blocks -= self.dirty.remove(slot, &mut state.blocks, block % EXTENT_BLOCKS) as u64;
    }

    /// All dirty blocks of an extent are no longer.
    pub(crate) fn unmark_all(&mut self, extent: u32) {
        let Some(slot) = self.slot(extent) else { return };
        self.blocks -= self.set_of(slot).count() as u64;
        self.empty(slot);
    }
}

/// Whether an entry of a queue holds.
#[inline]
fn holds(index: &[u32], slab: &[Live], (extent, first): &Entry) -> bool {
    let slot = index[*extent as usize];
    slot != NONE && !slab[slot as usize].blocks.is_destaging && slab[slot as usize].first == *first
}

impl Live {
    fn new(first: LogTail) -> Live {
        Live { first, gone: None, blocks: Kept::EMPTY }
    }

    /// Whether the block is a hole that the map page does not know.
    #[inline]
    pub(crate) fn is_hole(&self, index: u32) -> bool {
        self.gone.as_ref().and_then(|gone| gone.holes.as_ref()).is_some_and(|holes| holes.contains(index))
    }

    /// Whether the block is lost, and the map page does not know.
    #[inline]
    pub(crate) fn is_lost(&self, index: u32) -> bool {
        self.gone.as_ref().and_then(|gone| gone.lost.as_ref()).is_some_and(|lost| lost.contains(index))
    }

    /// The map page knows these holes and these losses, or something lies over them.
    pub(crate) fn settle_gone(&mut self, holes: &BlockSet, lost: &BlockSet) {
        let Some(gone) = &mut self.gone else { return };
        for (mine, settled) in [(&mut gone.holes, holes), (&mut gone.lost, lost)] {
            let rest = mine.take().map(|set| Box::new(set.without(settled)));
            *mine = rest.filter(|set| !set.is_empty());
        }
        if gone.holes.is_none() && gone.lost.is_none() {
            self.gone = None;
        }
    }
}

impl DirtyExtent {
    /// The extent.
    pub(crate) fn extent(&self) -> u32 {
        self.extent
    }

    /// Whether its first record is before this one.
    pub(crate) fn is_before(&self, young: LogTail) -> bool {
        self.first < young
    }

    /// Whether it has blocks only: neither holes nor losses.
    pub(crate) fn has_blocks_alone(&self) -> bool {
        self.holes.is_none() && self.lost.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lsn: u64) -> LogTail {
        LogTail { segment: 1, lsn }
    }

    #[test]
    fn the_tail_is_the_oldest_record_not_yet_settled() {
        let mut dirty = DirtyExtents::new(8);
        dirty.mark(5, at(10));
        dirty.mark(2000, at(11));
        dirty.mark(6, at(12));
        assert_eq!(dirty.tail(), Some(at(10)));
        let (extent, state) = dirty.take().expect("two are dirty");
        assert_eq!((extent, state.blocks.count()), (0, 2));
        dirty.mark(7, at(13));
        assert_eq!(dirty.tail(), Some(at(10)), "until it is settled");
        dirty.unmark(5);
        dirty.unmark(6);
        dirty.settle(0, true);
        assert_eq!(dirty.tail(), Some(at(11)));
        assert_eq!(dirty.take().expect("extent 1").0, 1);
        dirty.unmark(2000);
        dirty.settle(1, true);
        assert_eq!(dirty.tail(), Some(at(13)));
        assert_eq!((dirty.len(), dirty.blocks()), (1, 1));
    }

    #[test]
    fn what_is_marked_again_is_the_oldest_and_no_destage_under_way_makes_it_clean() {
        let mut dirty = DirtyExtents::new(8);
        dirty.mark(5, at(10));
        dirty.mark(2000, at(11));
        assert_eq!(dirty.take().expect("dirty").0, 0);
        dirty.mark_again(&[3000, 5], at(4));
        assert_eq!((dirty.tail(), dirty.blocks(), dirty.len()), (Some(at(4)), 3, 3));
        dirty.settle(0, true);
        assert_eq!(dirty.take().expect("dirty").0, 2);
        assert_eq!(dirty.take().expect("dirty").0, 0);
        dirty.unmark(5);
        dirty.settle(0, true);
        dirty.unmark(3000);
        dirty.settle(2, true);
        assert_eq!(dirty.tail(), Some(at(11)));
    }

    #[test]
    fn what_is_marked_again_from_a_later_tail_keeps_the_earlier_one() {
        let mut dirty = DirtyExtents::new(8);
        dirty.mark_again(&[5], at(4));
        dirty.mark_again(&[6], at(8));
        assert_eq!(dirty.tail(), Some(at(4)));
        assert_eq!(dirty.take().expect("dirty").0, 0);
        dirty.mark_again(&[7], at(9));
        dirty.mark_again(&[8], at(10));
        (5..=7).for_each(|block| dirty.unmark(block));
        dirty.settle(0, true);
        assert_eq!(dirty.tail(), Some(at(9)));
    }

    #[test]
    fn what_a_destage_leaves_is_the_tail_when_its_turn_comes() {
        let mut dirty = DirtyExtents::new(8);
        dirty.mark(5, at(10));
        dirty.mark(6, at(20));
        dirty.mark(1024, at(15));
        dirty.mark(2048, at(25));
        assert_eq!(dirty.take().expect("dirty").0, 0);
        dirty.leave(0, at(20));
        dirty.mark(7, at(30));
        dirty.unmark(5);
        dirty.settle(0, true);
        assert_eq!(dirty.tail(), Some(at(15)));
        assert_eq!(dirty.take().expect("dirty").0, 1);
        dirty.unmark(1024);
        dirty.settle(1, true);
        assert_eq!((dirty.tail(), dirty.blocks()), (Some(at(20)), 3));
        assert_eq!(dirty.take().expect("dirty").0, 0, "before what was written after what it has left");
        dirty.settle(0, false);
        assert_eq!(dirty.tail(), Some(at(20)));
    }

    #[test]
    fn blocks_are_covered_up_to_the_last_one_of_the_last_extent() {
        let (dirty, end) = (DirtyExtents::new(2), 2 * EXTENT_BLOCKS);
        assert!([(0, 1), (end - 1, 1), (end - 64, 64)].iter().all(|(first, blocks)| dirty.covers(*first, *blocks)));
        let beyond = [(end, 1), (end - 1, 2), (end + 5, 1), (u32::MAX, 1), (u32::MAX, 64)];
        assert!(!beyond.iter().any(|(first, blocks)| dirty.covers(*first, *blocks)));
    }

    #[test]
    fn few_and_many_blocks_are_the_same_as_in_one_set() {
        let (mut dirty, mut rng) = (DirtyExtents::new(4), base::Rng::new(1));
        let mut model = std::collections::BTreeSet::<u32>::new();
        for lsn in 1..40_000 {
            let spread = [6, 40, 1024][rng.below(3) as usize];
            let block = rng.below(4) as u32 * EXTENT_BLOCKS + rng.below(spread) as u32;
            let extent = block / EXTENT_BLOCKS;
            match rng.below(40) {
                0 => {
                    dirty.unmark_all(extent);
                    dirty.forget(extent);
                    model.retain(|other| other / EXTENT_BLOCKS != extent);
                }
                1 => dirty.grow(4),
                2..20 => {
                    dirty.unmark(block);
                    model.remove(&block);
                }
                _ => {
                    dirty.mark(block, at(lsn));
                    model.insert(block);
                }
            }
            assert_eq!((dirty.has(block), dirty.blocks()), (model.contains(&block), model.len() as u64));
            if lsn % 100 == 0
                && let Some((extent, taken)) = dirty.take()
            {
                let expected = model.range(extent * EXTENT_BLOCKS..(extent + 1) * EXTENT_BLOCKS);
                assert!(taken.blocks.iter().map(|index| extent * EXTENT_BLOCKS + index).eq(expected.copied()));
                dirty.settle(extent, false);
                assert_eq!(dirty.miscounted(), None);
            }
        }
    }

    #[test]
    fn a_failed_destage_keeps_its_place() {
        let mut dirty = DirtyExtents::new(8);
        dirty.mark(5, at(10));
        dirty.mark(2000, at(11));
        assert_eq!(dirty.take().expect("dirty").0, 0);
        dirty.settle(0, false);
        assert_eq!(dirty.tail(), Some(at(10)));
        assert_eq!(dirty.take().expect("dirty").0, 0);
    }
}
