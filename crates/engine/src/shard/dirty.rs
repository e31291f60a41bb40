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

use super::lane::{Entry, Lane};
use crate::units::{EXTENT_BLOCKS, LogTail};
use reactor::Table;
use std::collections::VecDeque;
use zerocopy::FromZeros;

const WORDS: usize = EXTENT_BLOCKS as usize / 64;
const NONE: u32 = u32::MAX;

/// One bit per block of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSet([u64; WORDS]);

impl Default for BlockSet {
    fn default() -> BlockSet {
        BlockSet::EMPTY
    }
}

impl BlockSet {
    pub(crate) const EMPTY: BlockSet = BlockSet([0; WORDS]);
    pub(crate) const FULL: BlockSet = BlockSet([u64::MAX; WORDS]);

    #[inline]
    pub(crate) fn contains(&self, index: u32) -> bool {
        self.0[index as usize / 64] & (1 << (index % 64)) != 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, index: u32) {
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    #[inline]
    pub(crate) fn remove(&mut self, index: u32) {
        self.0[index as usize / 64] &= !(1 << (index % 64));
    }

    pub(crate) fn without(&self, other: &BlockSet) -> BlockSet {
        BlockSet(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    pub(crate) fn with(&self, other: &BlockSet) -> BlockSet {
        BlockSet(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(index as u32 * 64 + bit)
            })
        })
    }
}

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

/// Blocks that an extent has beside its state; the slab of sets has those of extents with more.
const FEW: usize = 4;
const NO_BLOCK: u16 = u16::MAX;
const NO_RECORD: LogTail = LogTail { segment: u64::MAX, lsn: u64::MAX };

/// The same, of an extent that is dirty: a line of the cache, so that many extents with a block or two each take little memory.
#[derive(Debug, FromZeros)]
#[repr(align(64))]
pub(crate) struct Live {
    /// The first record that is not in the map page.
    first: LogTail,
    /// While it is being destaged: the first record that the destage leaves, or that has come since.
    since: LogTail,
    pub(crate) holes: Option<Box<BlockSet>>,
    pub(crate) lost: Option<Box<BlockSet>>,
    /// The blocks, unless there are `many`.
    few: [u16; FEW],
    /// The blocks are in the set of this slot.
    many: bool,
    destaging: bool,
    /// The destage leaves some of it.
    is_left: bool,
}

const _: () = assert!(size_of::<Live>() == 64);

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
    /// Per slot that may ever be used the bits of its blocks, when it has many; zero otherwise, and mostly never touched.
    sets: Vec<[u64; WORDS]>,
    /// Slots from here on have never had many blocks.
    sets_used: usize,
    free: Vec<u32>,
    /// At least one. An entry holds while the extent is queued with that very record.
    lanes: Vec<Lane>,
    /// Where there are several.
    lane_of: Option<LaneOf>,
    /// Extents of which a destage has left the younger part, by first record: in the midst of those of the others.
    left: VecDeque<Entry>,
    /// Extents being destaged, few.
    under_way: Vec<u32>,
    blocks: u64,
}

impl DirtyExtents {
    pub(crate) fn new(extents: u32) -> DirtyExtents {
        // Room for all is asked for at once and not touched: growing would copy it again and again, in a replay above all.
        DirtyExtents {
            index: vec![NONE; extents as usize],
            slab: Table::zeroed(extents as usize),
            slab_used: 0,
            sets: vec![[0; WORDS]; extents as usize],
            sets_used: 0,
            free: Vec::new(),
            lanes: vec![Lane::default()],
            lane_of: None,
            left: VecDeque::new(),
            under_way: Vec::new(),
            blocks: 0,
        }
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
        // Not resized: that would touch all of it.
        let mut sets = vec![[0; WORDS]; extents as usize];
        sets[..self.sets_used].copy_from_slice(&self.sets[..self.sets_used]);
        self.sets = sets;
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
        self.slot(block / EXTENT_BLOCKS).is_some_and(|slot| {
            let (state, index) = (&self.slab[slot], block % EXTENT_BLOCKS);
            if state.many { bit(&self.sets[slot], index) } else { state.few.contains(&(index as u16)) }
        })
    }

    /// The block is marked soon: where the extent's state is, is wanted, and where that goes if it has none yet.
    #[inline]
    pub(crate) fn prefetch_slot(&self, block: u32) {
        reactor::prefetch(&self.index[(block / EXTENT_BLOCKS) as usize]);
        if let Some(slot) = self.free.last() {
            self.prefetch_at(*slot as usize, block);
        }
    }

    /// The block is marked soon.
    #[inline]
    pub(crate) fn prefetch(&self, block: u32) {
        if let Some(slot) = self.slot(block / EXTENT_BLOCKS) {
            self.prefetch_at(slot, block);
        }
    }

    #[inline]
    fn prefetch_at(&self, slot: usize, block: u32) {
        reactor::prefetch(&self.slab[slot]);
        if slot < self.sets_used {
            reactor::prefetch(&self.sets[slot][(block % EXTENT_BLOCKS) as usize / 64]);
        }
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
        let state = &mut self.slab[slot as usize];
        if state.destaging && state.since == NO_RECORD {
            state.since = at;
        }
        slot as usize
    }

    /// Forgets an extent (it is free now, or settled).
    pub(crate) fn forget(&mut self, extent: u32) {
        let slot = std::mem::replace(&mut self.index[extent as usize], NONE);
        if slot != NONE {
            self.empty(slot as usize);
            let state = &mut self.slab[slot as usize];
            (state.holes, state.lost) = (None, None);
            self.free.push(slot);
            self.under_way.retain(|other| *other != extent);
        }
    }

    fn empty(&mut self, slot: usize) {
        let state = &mut self.slab[slot];
        if state.many {
            self.sets[slot] = [0; WORDS];
        }
        (state.many, state.few) = (false, [NO_BLOCK; FEW]);
    }

    /// The dirty blocks of a slot.
    fn set_of(&self, slot: usize) -> BlockSet {
        let state = &self.slab[slot];
        if state.many {
            return BlockSet(self.sets[slot]);
        }
        let mut set = BlockSet::EMPTY;
        state.few.iter().filter(|index| **index != NO_BLOCK).for_each(|index| set.insert(*index as u32));
        set
    }

    /// Adds a block to a slot, counted; the state of its extent.
    #[inline]
    fn add(&mut self, slot: usize, index: u32) -> &mut Live {
        let (state, set) = (&mut self.slab[slot], &mut self.sets[slot]);
        let fresh = if state.many {
            !bit(set, index)
        } else if state.few.contains(&(index as u16)) {
            false
        } else if let Some(room) = state.few.iter_mut().find(|other| **other == NO_BLOCK) {
            *room = index as u16;
            true
        } else {
            state.few.iter().for_each(|other| set[*other as usize / 64] |= 1 << (other % 64));
            state.many = true;
            self.sets_used = self.sets_used.max(slot + 1);
            true
        };
        if state.many {
            set[index as usize / 64] |= 1 << (index % 64);
        }
        self.blocks += fresh as u64;
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
        state.destaging = true;
        (state.since, state.is_left) = (NO_RECORD, false);
        let (first, holes, lost) = (state.first, state.holes.clone(), state.lost.clone());
        let copy = DirtyExtent { extent, first, holes, lost, blocks };
        self.under_way.push(extent);
        (extent, copy)
    }

    /// Of an extent that has been taken, what is in the log from this record on, which is behind its first one, stays dirty,
    /// whatever comes of the destage.
    pub(crate) fn leave(&mut self, extent: u32, from: LogTail) {
        if let Some(state) = self.get_mut(extent) {
            (state.since, state.is_left) = (from, true);
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
        self.under_way.retain(|other| *other != extent);
        let Some(slot) = self.slot(extent) else { return };
        let no_blocks = self.set_of(slot).is_empty();
        let state = &mut self.slab[slot];
        state.destaging = false;
        let since = std::mem::replace(&mut state.since, NO_RECORD);
        let clean = no_blocks && state.holes.is_none() && state.lost.is_none();
        if done && clean {
            self.forget(extent);
            return;
        }
        if done {
            assert!(since != NO_RECORD, "what is dirty after a destage was left or written since");
            state.first = since;
        }
        let (first, is_left) = (state.first, state.is_left);
        if is_left && done && self.left.back().is_none_or(|(_, last)| *last <= first) {
            return self.left.push_back((extent, first));
        }
        self.lane(extent).insert((extent, first));
    }

    /// The oldest record that a map page does not have; `None` when all do.
    pub(crate) fn tail(&mut self) -> Option<LogTail> {
        self.pass_over();
        let queued = self.lanes.iter().filter_map(Lane::oldest).chain(self.left.front().map(|(_, first)| *first));
        let under_way = self.under_way.iter().filter_map(|extent| self.get(*extent)).map(|state| state.first).min();
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
        self.under_way.contains(&extent)
    }

    /// Extents being destaged.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Bytes of memory it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.index.capacity() * 4
            + self.slab_used * size_of::<Live>()
            + self.sets_used * size_of::<BlockSet>()
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
        if let Some(holes) = &mut state.holes {
            holes.remove(index);
        }
        if let Some(lost) = &mut state.lost {
            lost.remove(index);
        }
    }

    /// These blocks are in the log map, whether they have been destaged or not, and are to be destaged from record `tail` on.
    pub(crate) fn mark_again(&mut self, blocks: &[u32], tail: LogTail) {
        for block in blocks {
            let slot = self.touch(block / EXTENT_BLOCKS, tail);
            let state = self.add(slot, block % EXTENT_BLOCKS);
            // One that is older already stays so: the tail may have moved on past it.
            state.first = state.first.min(tail);
            if state.destaging {
                // Whatever the destage does: it does not do this.
                state.since = state.since.min(tail);
            }
        }
        // In their order again.
        let queued = self.extents().filter_map(|extent| Some((extent, self.get(extent)?)));
        let queued = queued.filter(|(_, state)| !state.destaging);
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
        let state = &mut self.slab[slot];
        state.holes.get_or_insert_with(Default::default).insert(index);
        if let Some(lost) = &mut state.lost {
            lost.remove(index);
        }
    }

    /// The block is lost from record `at` on.
    pub(crate) fn mark_lost(&mut self, block: u32, at: LogTail) {
        let (slot, index) = (self.touch(block / EXTENT_BLOCKS, at), block % EXTENT_BLOCKS);
        let state = &mut self.slab[slot];
        state.lost.get_or_insert_with(Default::default).insert(index);
        if let Some(holes) = &mut state.holes {
            holes.remove(index);
        }
    }

    /// The block is no longer dirty.
    pub(crate) fn unmark(&mut self, block: u32) {
        let Some(slot) = self.slot(block / EXTENT_BLOCKS) else { return };
        let (state, set, index) = (&mut self.slab[slot], &mut self.sets[slot], block % EXTENT_BLOCKS);
        let was = if state.many {
            let was = bit(set, index);
            set[index as usize / 64] &= !(1 << (index % 64));
            was
        } else {
            let found = state.few.iter_mut().find(|other| **other == index as u16);
            found.map(|other| *other = NO_BLOCK).is_some()
        };
        self.blocks -= was as u64;
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
    slot != NONE && !slab[slot as usize].destaging && slab[slot as usize].first == *first
}

#[inline]
fn bit(set: &[u64; WORDS], index: u32) -> bool {
    set[index as usize / 64] & (1 << (index % 64)) != 0
}

impl Live {
    fn new(first: LogTail) -> Live {
        let (holes, lost, few) = (None, None, [NO_BLOCK; FEW]);
        Live { first, since: NO_RECORD, holes, lost, few, many: false, destaging: false, is_left: false }
    }

    /// Whether the block is a hole that the map page does not know.
    #[inline]
    pub(crate) fn is_hole(&self, index: u32) -> bool {
        self.holes.as_ref().is_some_and(|holes| holes.contains(index))
    }

    /// Whether the block is lost, and the map page does not know.
    #[inline]
    pub(crate) fn is_lost(&self, index: u32) -> bool {
        self.lost.as_ref().is_some_and(|lost| lost.contains(index))
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
