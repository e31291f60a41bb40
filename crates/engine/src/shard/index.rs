//! The index of a shard: where the newest bytes of every block are.
//!
//! It learns from records in lsn order, live from the log and at opening from replay, through the same function; so
//! what recovery builds is what was there. Knowledge moves from here into map pages when an extent is destaged.
//!
//! A block is looked up in this order: deltas over it, the log map, holes and losses that the map page does not know
//! yet, the map page.

mod ahead;
mod named;
mod spoken;
mod watch;
mod young;

pub(crate) use young::{Keeps, Taken};

use super::Defect;
use super::dirty::{DirtyExtent, DirtyExtents, Live};
use super::dirty_blocks::BlockSet;
use super::log_map::{IN_PLACE, LogMap, LogPlace, Near, Units};
use super::places::{FixedState, Places};
use crate::bands::BandAt;
use crate::log::{Placed, Record, Sink};
use crate::meta::{self, Descriptor, Meta, Replacement};
use crate::units::{EXTENT_BLOCKS, LogAt, LogTail, SLICE_EXTENTS, extent_of};
use named::Named;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

/// Deltas of a block before they are merged into a whole one.
pub(crate) const CHAIN_MAX: usize = 16;

/// Blocks of a write that are prefetched: about as many misses as a core has under way.
const PREFETCHED_MAX: u32 = 8;
/// Blocks that are looked up ahead when a segment is used again.
const RECLAIM_AHEAD: usize = 8;

/// Where a block's newest bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the log.
    Log(LogPlace),
    /// Where placement puts it, with this stored checksum. In a shaped pool that is a place in the bands.
    Settled(u32, BandAt),
    /// Nowhere: it reads as zeroes.
    Hole,
    /// Where the layer below has it; nowhere if there is none.
    Inherit,
    /// They are gone.
    Lost,
    /// The map page knows, and is not in memory.
    NeedsPage,
    /// Under deltas; without them it would be `base`.
    Deltas(Chain, Box<Place>),
}

/// What knows the checksums of settled blocks.
pub(crate) enum Knows {
    /// The map page.
    Page(meta::Page),
    /// The map page, which is not in memory.
    Media,
}

/// Bytes in the log that go over a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) offset: u16,
    pub(crate) bytes: u16,
    pub(crate) place: LogPlace,
}

/// Deltas of a block, oldest first.
pub(crate) type Chain = SmallVec<[Delta; 4]>;

struct State {
    map: LogMap,
    dirty: DirtyExtents,
    places: Places,
    chains: HashMap<u32, Chain, FixedState>,
    /// Per segment place, where in the map the blocks are that were written there.
    segments: Box<[Vec<Near>]>,
    /// Per segment place, the segment that was written there last.
    sequences: Box<[u64]>,
    /// The first record of each segment since the tail's.
    starts: VecDeque<LogTail>,
    /// Extents that must not be used any more.
    unusable: u32,
    named: Named,
    /// Extents that volumes had and have no more: what lay below them shows, or lies elsewhere.
    uncovered: u64,
    /// The last record, and where the log was then.
    last: LogTail,
    watch: watch::Watch,
}

/// See the module.
pub(crate) struct Index {
    meta: Rc<Meta>,
    state: RefCell<State>,
    segment_units: u32,
    defect: Option<Defect>,
}

/// What is in the index, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexStats {
    pub(crate) log_blocks: u64,
    pub(crate) dirty_blocks: u64,
    pub(crate) dirty_extents: u64,
    pub(crate) chains: u64,
    pub(crate) free_extents: u32,
    pub(crate) unusable_extents: u32,
    pub(crate) memory_bytes: usize,
}

impl Index {
    /// An index over what the checkpoint says; records after `tail` are to be replayed into it.
    pub(crate) fn new(
        meta: Rc<Meta>,
        segments: u32,
        segment_blocks: u32,
        tail: LogTail,
        defect: Option<Defect>,
    ) -> Index {
        let extents = meta.extents();
        let (mut places, mut unusable) = (Places::new(extents), 0);
        for extent in 0..extents {
            let descriptor = meta.descriptor(extent);
            unusable += (descriptor.flags & meta::UNUSABLE != 0) as u32;
            if descriptor.volume != 0 {
                places.assign(extent, descriptor.volume, descriptor.vextent);
            } else if descriptor.flags & meta::UNUSABLE != 0 {
                places.occupy(extent);
            }
        }
        let mut sequences = vec![0; segments as usize].into_boxed_slice();
        sequences[(tail.segment % u64::from(segments)) as usize] = tail.segment;
        let state = State {
            map: LogMap::new(segments as usize * segment_blocks as usize),
            dirty: DirtyExtents::new(extents),
            places,
            chains: HashMap::default(),
            segments: (0..segments).map(|_| Vec::new()).collect(),
            sequences,
            starts: VecDeque::new(),
            unusable,
            named: Named::new(extents),
            uncovered: 0,
            last: LogTail { segment: tail.segment, lsn: tail.lsn.saturating_sub(1) },
            watch: watch::Watch::default(),
        };
        let segment_units = segment_blocks * (crate::units::BLOCK_BYTES as u64 / LogAt::UNIT) as u32;
        Index { meta, state: RefCell::new(state), segment_units, defect }
    }

    /// A replay is about slices of these, so many, above all.
    pub(crate) fn expect_slices(&self, slices: usize) {
        self.state.borrow_mut().dirty.expect(slices * SLICE_EXTENTS as usize);
    }

    // --- looking ----------------------------------------------------------------------------------------------------

    /// Where an extent of a volume is.
    #[inline]
    pub(crate) fn extent(&self, volume: u32, vextent: u32) -> Option<u32> {
        self.state.borrow().places.get(volume, vextent)
    }

    /// How many extents of a slice of a volume, of those up to `end`, have no place.
    pub(crate) fn missing(&self, volume: u32, slice: u32, end: u32) -> u32 {
        self.state.borrow().places.missing(volume, slice, end)
    }

    /// The place of an extent of a volume is looked up soon.
    #[inline]
    pub(crate) fn expect(&self, volume: u32, vextent: u32) {
        self.state.borrow().places.prefetch(volume, vextent);
    }

    /// Grows whenever a volume loses an extent: what was found below it before may not be what lies there now.
    #[inline]
    pub(crate) fn uncovered(&self) -> u64 {
        self.state.borrow().uncovered
    }

    /// Blocks of one extent are written soon: what [`placed`](Sink::placed) touches is on its way meanwhile.
    #[inline]
    pub(crate) fn prefetch(&self, first: u32, blocks: u32) {
        let state = self.state.borrow();
        state.dirty.prefetch_slot(first);
        (first..first + blocks.min(PREFETCHED_MAX)).for_each(|block| state.map.prefetch(block));
    }

    /// Blocks of an extent, whose first is `first`, are looked up soon.
    pub(crate) fn prefetch_set(&self, first: u32, blocks: &BlockSet) {
        let state = self.state.borrow();
        blocks.iter().for_each(|index| state.map.prefetch(first + index));
    }

    /// Where a block's newest bytes are.
    #[inline]
    pub(crate) fn place(&self, block: u32) -> Place {
        let state = self.state.borrow();
        if !state.chains.is_empty()
            && let Some(chain) = state.chains.get(&block)
        {
            return Place::Deltas(chain.clone(), Box::new(self.base(&state, block)));
        }
        self.base(&state, block)
    }

    #[inline]
    fn base(&self, state: &State, block: u32) -> Place {
        if let Some(place) = state.map.get(block) {
            return match place.at {
                IN_PLACE => Place::Settled(meta::stored_crc(place.crc), BandAt(meta::NOWHERE)),
                _ => Place::Log(place),
            };
        }
        let (extent, index) = (extent_of(block), block % EXTENT_BLOCKS);
        if let Some(dirty) = state.dirty.get(extent) {
            if dirty.is_hole(index) {
                return Place::Hole;
            }
            if dirty.is_lost(index) {
                return Place::Lost;
            }
        }
        if let Some(page) = self.meta.page(extent) {
            return match page.get(index) {
                meta::HOLE => Place::Hole,
                meta::LOST => Place::Lost,
                meta::INHERIT => Place::Inherit,
                crc => Place::Settled(crc, page.band_at(index)),
            };
        }
        let descriptor = self.meta.descriptor(extent);
        match descriptor.flags {
            flags if flags & meta::MAP_PAGE != 0 => Place::NeedsPage,
            flags if flags & meta::BLOCKS_LOST != 0 => Place::Lost,
            flags if flags & meta::BLOCKS_INHERIT != 0 => Place::Inherit,
            // The record that gives it to its volume is on its way.
            _ if descriptor.is_free() => Place::Inherit,
            _ => Place::Hole,
        }
    }

    /// The newest whole copy of a block in the log, when it is there and nothing lies over it.
    #[inline]
    pub(crate) fn log_place(&self, block: u32) -> Option<LogPlace> {
        self.state.borrow().whole_in_log(block)
    }

    /// As [`log_place`](Self::log_place), of `count` blocks whose first is at `place`: when all of them are in the log.
    #[inline]
    pub(crate) fn log_places(&self, first: u32, place: LogPlace, count: u32) -> Option<SmallVec<[LogPlace; 8]>> {
        let rest = first + 1..first + count;
        rest.clone().for_each(|block| self.state.borrow().map.prefetch(block));
        std::iter::once(Some(place)).chain(rest.map(|block| self.log_place(block))).collect()
    }

    /// What knows the checksums of blocks of an extent that all lie where placement puts them, as far as the log knows.
    #[inline]
    pub(crate) fn knows(&self, extent: u32, blocks: Range<u32>) -> Option<Knows> {
        let state = self.state.borrow();
        let first = extent * EXTENT_BLOCKS;
        let is_in_log = |block: u32| {
            state.map.get(block).is_some() || !state.chains.is_empty() && state.chains.contains_key(&block)
        };
        let is_bare = |dirty: &Live| blocks.clone().any(|index| dirty.is_hole(index) || dirty.is_lost(index));
        if blocks.clone().any(|index| is_in_log(first + index)) || state.dirty.get(extent).is_some_and(is_bare) {
            return None;
        }
        match self.meta.page(extent) {
            Some(page) => Some(Knows::Page(page)),
            None => (self.meta.descriptor(extent).flags & meta::MAP_PAGE != 0).then_some(Knows::Media),
        }
    }

    /// Whether there are deltas over a block.
    pub(crate) fn has_chain(&self, block: u32) -> bool {
        self.state.borrow().chains.contains_key(&block)
    }

    /// Where a block is that deltas may lie over.
    pub(crate) fn below_deltas(&self, block: u32) -> Place {
        self.base(&self.state.borrow(), block)
    }

    /// Tells a new map page, whose blocks are all lost, what the log knows of them. How many blocks that leaves lost which
    /// were not before; those under deltas are not counted, since merging them will.
    ///
    /// In a shaped pool only destage knows a place to enter: blocks that it has moved already, and that the log still has since
    /// the durable checkpoint, which begins its replay at `tail`, are to be destaged again.
    pub(crate) fn recall(&self, page: &meta::Page, tail: LogTail) -> u32 {
        let state = &mut *self.state.borrow_mut();
        let mut again = Vec::new();
        let dirty = state.dirty.get(page.extent());
        let mut lost = 0;
        for index in 0..EXTENT_BLOCKS {
            let block = page.extent() * EXTENT_BLOCKS + index;
            let logged = state.map.get(block);
            if let Some(place) = logged.filter(|_| self.meta.bands().is_some()) {
                if state.segment_at(place.at, self.segment_units) >= tail.segment {
                    again.push(block);
                } else {
                    lost += !state.dirty.has(block) as u32;
                }
            } else if let Some(place) = logged {
                // In place it may still be an older one: then the log has it, and goes before the page.
                page.set(index, meta::stored_crc(place.crc));
            } else if dirty.is_some_and(|dirty| dirty.is_hole(index)) {
                page.set(index, meta::HOLE);
            } else if !dirty.is_some_and(|dirty| dirty.is_lost(index)) && !state.chains.contains_key(&block) {
                lost += 1;
            }
        }
        if !again.is_empty() {
            state.dirty.mark_again(&again, tail);
        }
        lost
    }

    /// The deltas over a block as they are now: how many, and the last one.
    pub(crate) fn chain_mark(&self, block: u32) -> Option<(usize, LogPlace)> {
        let state = self.state.borrow();
        let chain = state.chains.get(&block)?;
        Some((chain.len(), chain.last()?.place))
    }

    /// The block is where its map page says, with the deltas that `mark` speaks of: if these are still there, under others
    /// maybe that have come since. If not, a later record says something else of the block.
    pub(crate) fn settled_whole(&self, block: u32, mark: (usize, LogPlace)) -> bool {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let (count, last) = mark;
        let Some(chain) = state.chains.get_mut(&block) else { return false };
        if chain.get(count - 1).is_none_or(|delta| delta.place != last) {
            return false;
        }
        chain.drain(..count);
        if chain.is_empty() {
            state.drop_block(block);
        } else {
            state.map.remove(block);
        }
        // What was below the deltas.
        if let Some(dirty) = state.dirty.get_mut(extent_of(block)) {
            let mut below = BlockSet::EMPTY;
            below.insert(block % EXTENT_BLOCKS);
            dirty.settle_gone(&below, &below);
        }
        true
    }

    /// How many deltas there are over a block.
    pub(crate) fn chain_len(&self, block: u32) -> usize {
        self.state.borrow().chains.get(&block).map_or(0, |chain| chain.len())
    }

    /// Blocks with deltas over them.
    #[inline]
    pub(crate) fn chains(&self) -> usize {
        self.state.borrow().chains.len()
    }

    /// Whether the log map takes checksums of `blocks` more blocks that are not in the log.
    pub(crate) fn takes_in_place(&self, blocks: usize) -> bool {
        let state = self.state.borrow();
        // Half of the slack: the rest is for blocks that are in the log, of which there are never too many.
        state.map.len() + blocks < state.map.blocks_max() - state.map.blocks_max() / 16
    }

    /// The first record that map pages and descriptors do not have; `None` when they have all.
    pub(crate) fn tail(&self) -> Option<LogTail> {
        self.state.borrow_mut().dirty.tail()
    }

    /// The record after the last.
    pub(crate) fn next(&self) -> LogTail {
        self.state.borrow().next()
    }

    /// The last record placed.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.state.borrow().last.lsn
    }

    pub(crate) fn stats(&self) -> IndexStats {
        let state = self.state.borrow();
        IndexStats {
            log_blocks: state.map.len() as u64,
            dirty_blocks: state.dirty.blocks(),
            dirty_extents: state.dirty.len() as u64,
            chains: state.chains.len() as u64,
            free_extents: state.places.free(),
            unusable_extents: state.unusable,
            memory_bytes: state.map.memory_bytes()
                + state.dirty.memory_bytes()
                + state.places.memory_bytes()
                + state.named.memory_bytes()
                + state.segments.iter().map(|blocks| blocks.capacity() * size_of::<Near>()).sum::<usize>(),
        }
    }

    /// What contradicts itself, in words: nothing, unless there is a defect. `idle` says that no record is under way.
    pub(crate) fn audit(&self, idle: bool) -> Vec<String> {
        let state = self.state.borrow();
        let mut problems = Vec::new();
        for extent in 0..self.meta.extents() {
            let owner = self.meta.descriptor(extent);
            let found = state.places.get(owner.volume, owner.vextent);
            if owner.volume != 0 && found != Some(extent) {
                let (volume, vextent) = (owner.volume, owner.vextent);
                problems.push(format!(
                    "I2: extent {extent} is said to be extent {vextent} of volume {volume}, which is at {found:?}"
                ));
            }
        }
        // A move prepares an extent that it has taken while nobody owns it.
        let is_free = |extent: &u32| self.meta.descriptor(*extent).volume == 0;
        let is_idle = |extent: &u32| is_free(extent) && !state.places.is_used(*extent);
        let free = |block: u32| is_idle(&extent_of(block));
        let mut used: Vec<(u32, u32)> = Vec::new();
        for (block, place) in state.map.iter() {
            if free(block) {
                problems.push(format!("I4: block {block} is in the log map, and its extent is free"));
            }
            if place.at != IN_PLACE {
                used.push((place.at.0, block));
            }
        }
        problems.extend(
            state
                .chains
                .keys()
                .filter(|block| free(**block))
                .map(|block| format!("I4: block {block} of a free extent has deltas")),
        );
        used.sort_unstable();
        let shared = used.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        problems.extend(
            shared.map(|pair| format!("I2: blocks {} and {} are at one place of the log", pair[0].1, pair[1].1)),
        );
        let dirty = state.dirty.extents().filter(is_idle);
        problems.extend(dirty.map(|extent| format!("I4: extent {extent} is free and is to be destaged")));
        problems.extend(
            state
                .dirty
                .miscounted()
                .map(|count| format!("I3: {} dirty blocks are counted, and there are {count}", state.dirty.blocks())),
        );
        let used = (0..self.meta.extents()).filter(|extent| state.places.is_used(*extent));
        let used: Vec<u32> = used.collect();
        if used.len() as u32 + state.places.free() != self.meta.extents() {
            let (free, extents) = (state.places.free(), self.meta.extents());
            problems.push(format!("I3: {free} of {extents} extents are counted as free, and {} are used", used.len()));
        }
        let unused = |extent: &u32| is_free(extent) && self.meta.descriptor(*extent).flags & meta::UNUSABLE == 0;
        // Until its record is durable, an allocated extent has no owner.
        let leaked = used.into_iter().filter(|extent| idle && unused(extent));
        problems.extend(leaked.map(|extent| format!("I3: extent {extent} is taken, and nobody has it")));
        problems.sort_unstable();
        problems
    }

    // --- extents ----------------------------------------------------------------------------------------------------

    /// Takes a free extent for an extent of a volume. It counts from now on; its record must be appended at once.
    pub(crate) fn allocate(&self, volume: u32, vextent: u32) -> Option<u32> {
        self.state.borrow_mut().places.allocate(volume, vextent)
    }

    /// Undoes an allocation whose record could not be appended.
    pub(crate) fn unallocate(&self, extent: u32, volume: u32, vextent: u32) {
        let mut state = self.state.borrow_mut();
        state.places.detach(volume, vextent);
        state.places.vacate(extent);
        state.name_refused(extent);
    }

    /// Takes a free extent for nobody yet.
    pub(crate) fn reserve(&self) -> Option<u32> {
        self.state.borrow_mut().places.reserve()
    }

    /// Gives a reserved extent back: what records said of it does not count.
    pub(crate) fn unreserve(&self, extent: u32) {
        let mut state = self.state.borrow_mut();
        state.clear(extent, self.defect);
        state.places.vacate(extent);
        state.name_refused(extent);
    }

    /// A record that says whose the extent is was refused.
    pub(crate) fn name_refused(&self, extent: u32) {
        self.state.borrow_mut().name_refused(extent);
    }

    /// Where replay would begin if an extent were clean.
    pub(crate) fn tail_without(&self, extent: u32) -> LogTail {
        let oldest = self.state.borrow().dirty.oldest_but(extent);
        oldest.unwrap_or_else(|| self.next())
    }

    /// Whether a record from `tail` on says whose an extent is.
    pub(crate) fn is_named(&self, extent: u32, tail: LogTail) -> bool {
        self.state.borrow().is_named(extent, tail)
    }

    /// Takes a free extent for nobody yet, one of which no record from `tail` on speaks.
    pub(crate) fn reserve_unnamed(&self, tail: LogTail) -> Option<u32> {
        let mut state = self.state.borrow_mut();
        let mut passed = Vec::new();
        let found = loop {
            match state.places.reserve() {
                Some(extent) if state.is_named(extent, tail) => passed.push(extent),
                found => break found,
            }
        };
        passed.into_iter().for_each(|extent| state.places.vacate(extent));
        found
    }

    /// Gives an extent back that [`reserve_unnamed`](Self::reserve_unnamed) took, and of which no record speaks.
    pub(crate) fn vacate(&self, extent: u32) {
        self.state.borrow_mut().places.vacate(extent);
    }

    /// What an extent had is in another one, which has its place, as of the durable checkpoint.
    pub(crate) fn evacuated(&self, Replacement { old, new, left }: Replacement) {
        let mut state = self.state.borrow_mut();
        let owner = self.meta.descriptor(new);
        state.clear(old, self.defect);
        state.places.assign(new, owner.volume, owner.vextent);
        // Records that would be replayed may speak of its blocks.
        let last = state.last.lsn;
        state.named.insert(old, last);
        if left.flags & meta::UNUSABLE != 0 {
            state.unusable += 1;
        } else {
            state.places.vacate(old);
        }
    }

    /// A checkpoint is durable whose replay begins at `tail`.
    pub(crate) fn checkpointed(&self, tail: LogTail) {
        let mut state = self.state.borrow_mut();
        while state.starts.front().is_some_and(|start| start.segment <= tail.segment) {
            state.starts.pop_front();
        }
    }

    /// After replay: what records say of extents that nobody has does not count. A move did not come to its end.
    pub(crate) fn forget_ownerless(&self) {
        let mut state = self.state.borrow_mut();
        let is_free = |extent: &u32| self.meta.descriptor(*extent).is_free();
        let ownerless: Vec<u32> = state.dirty.extents().filter(is_free).collect();
        for extent in ownerless {
            let last = state.last.lsn;
            state.named.insert(extent, last);
            state.clear(extent, self.defect);
        }
    }

    /// The volumes that have extents, and how many.
    pub(crate) fn held(&self) -> Vec<(u32, u32)> {
        self.state.borrow().places.held()
    }

    /// How many extents a volume has.
    pub(crate) fn held_by(&self, volume: u32) -> u32 {
        self.state.borrow().places.held_by(volume)
    }

    /// Extents `range` of a volume: (extent of the volume, extent of the shard).
    pub(crate) fn extents_of(&self, volume: u32, range: Range<u32>) -> Vec<(u32, u32)> {
        self.state.borrow().places.of_volume(volume, range)
    }

    /// Extents `range` that any of these volumes has here, in order.
    pub(crate) fn extents_of_any(&self, volumes: &[u32], range: Range<u32>) -> Vec<u32> {
        self.state.borrow().places.of_any(volumes, range)
    }

    /// The shard has more extents.
    pub(crate) fn grow(&self, extents: u32) {
        let mut state = self.state.borrow_mut();
        state.places.grow(extents);
        state.dirty.grow(extents);
        state.named.grow(extents);
    }

    // --- destage ----------------------------------------------------------------------------------------------------

    /// Ends a destage. `done` says that the map page has everything that `taken` had.
    pub(crate) fn settle(&self, extent: u32, done: bool) {
        self.state.borrow_mut().dirty.settle(extent, done);
    }

    /// What the log map says of a block, deltas aside.
    pub(crate) fn logged(&self, block: u32) -> Option<LogPlace> {
        self.state.borrow().map.get(block)
    }

    /// Whether the log has something of a block that its map page does not know.
    pub(crate) fn is_dirty(&self, block: u32) -> bool {
        let (state, index) = (self.state.borrow(), block % EXTENT_BLOCKS);
        let is_bare = |dirty: &Live| dirty.is_hole(index) || dirty.is_lost(index);
        state.dirty.has(block) || state.dirty.get(extent_of(block)).is_some_and(is_bare)
    }

    /// Whether a block is a hole, or whole in the log, and its map page does not know: nobody reads any more what that leads to, nor
    /// would anybody after a crash. Replay brings a block back whose record is behind the durable tail: blocks of the tail's own
    /// segment may be before it, and are dirty all the same when they are destaged again.
    pub(crate) fn is_superseded(&self, block: u32) -> bool {
        let (state, index) = (self.state.borrow(), block % EXTENT_BLOCKS);
        let logged = || state.whole_in_log(block);
        if self.defect == Some(Defect::DropLogged) {
            return logged().is_some();
        }
        let tail = self.meta.durable_tail();
        let is_whole = || logged().is_some_and(|place| state.segment_at(place.at, self.segment_units) > tail.segment);
        let is_hole = || state.dirty.get(extent_of(block)).is_some_and(|dirty| dirty.is_hole(index));
        state.dirty.has(block) && is_whole() || is_hole()
    }

    /// The block as in `place` is where placement puts it, and the map page says so.
    pub(crate) fn settled(&self, block: u32, place: LogPlace) {
        let mut state = self.state.borrow_mut();
        if state.chains.contains_key(&block) || state.map.get(block) != Some(place) {
            return;
        }
        state.dirty.unmark(block);
        if place.at == IN_PLACE {
            state.map.remove(block);
        }
    }

    /// The map page knows the holes and losses that `taken` had, but for the blocks in `moved`: it knows those as written,
    /// and one that is a hole now has become that since.
    pub(crate) fn settled_holes(&self, taken: &DirtyExtent, moved: &BlockSet) {
        let mut state = self.state.borrow_mut();
        let Some(live) = state.dirty.get_mut(taken.extent()) else { return };
        let known = |set: &Option<Box<BlockSet>>| set.as_ref().map_or(BlockSet::EMPTY, |set| set.without(moved));
        live.settle_gone(&known(&taken.holes), &known(&taken.lost));
    }

    /// What the log has from `tail` on, where the durable checkpoint begins its replay, is to be destaged (once more). How many
    /// blocks that makes dirty.
    pub(crate) fn destage_again(&self, tail: LogTail) -> u64 {
        let state = &mut *self.state.borrow_mut();
        let places = state.segments.len() as u64;
        let first = tail.segment.max((state.last.segment + 1).saturating_sub(places));
        let mut blocks = Vec::new();
        for segment in first..=state.last.segment {
            let place = (segment % places) as u32;
            let units = Units { first: place * self.segment_units, count: self.segment_units };
            let found = state.segments[place as usize].iter().flat_map(|near| state.map.near(*near));
            blocks.extend(found.filter(|(_, found)| units.contain(found.at)).map(|(block, _)| block));
        }
        blocks.sort_unstable();
        blocks.dedup();
        let before = state.dirty.blocks();
        state.dirty.mark_again(&blocks, tail);
        state.dirty.blocks() - before
    }

    pub(crate) fn is_destaging(&self, extent: u32) -> bool {
        self.state.borrow().dirty.is_destaging(extent)
    }

    /// Extents that are dirty, those being destaged included.
    pub(crate) fn dirty_extents(&self) -> usize {
        self.state.borrow().dirty.len()
    }

    pub(crate) fn destages_under_way(&self) -> usize {
        self.state.borrow().dirty.under_way()
    }
}

impl State {
    /// The record after the last.
    fn next(&self) -> LogTail {
        LogTail { segment: self.last.segment, lsn: self.last.lsn + 1 }
    }

    /// See [`Index::log_place`].
    #[inline]
    fn whole_in_log(&self, block: u32) -> Option<LogPlace> {
        if !self.chains.is_empty() && self.chains.contains_key(&block) {
            return None;
        }
        self.map.get(block).filter(|place| place.at != IN_PLACE)
    }

    /// The segment that has this place of a block that is in the log.
    fn segment_at(&self, at: LogAt, segment_units: u32) -> u64 {
        self.sequences.get((at.0 / segment_units) as usize).copied().unwrap_or(0)
    }

    /// Nothing in the log counts for the block any more.
    fn drop_block(&mut self, block: u32) {
        self.map.remove(block);
        if !self.chains.is_empty() {
            self.chains.remove(&block);
        }
        self.dirty.unmark(block);
    }

    /// Nothing in the log counts for the extent any more.
    fn clear(&mut self, extent: u32, defect: Option<Defect>) {
        let first = extent * EXTENT_BLOCKS;
        for block in first..first + EXTENT_BLOCKS {
            if defect != Some(Defect::KeepMappings) {
                self.map.remove(block);
            }
            if !self.chains.is_empty() {
                self.chains.remove(&block);
            }
        }
        self.dirty.unmark_all(extent);
        self.dirty.forget(extent);
    }

    /// See [`Index::is_named`].
    fn is_named(&self, extent: u32, tail: LogTail) -> bool {
        self.named.is_named(extent, tail.lsn)
    }

    /// A record about an extent was refused, and may be in the log all the same, as the last one.
    fn name_refused(&mut self, extent: u32) {
        self.named.insert(extent, self.last.lsn + 1);
    }

    /// A record about blocks of an extent that nobody has: a move begins with such.
    fn name_ownerless(&mut self, meta: &Meta, first: u32, lsn: u64) {
        if meta.descriptor(extent_of(first)).is_free() {
            self.named.insert(extent_of(first), lsn);
        }
    }

    /// The extent is a volume's; its blocks are what `flags` say, as far as map pages know.
    fn give(&mut self, meta: &Meta, extent: u32, volume: u32, vextent: u32, flags: u32) {
        self.places.assign(extent, volume, vextent);
        // Replay passes through what was before the extent became unusable.
        self.unusable -= (meta.descriptor(extent).flags & meta::UNUSABLE != 0) as u32;
        meta.set_descriptor(extent, Descriptor { volume, vextent, flags, ..Descriptor::default() });
    }

    fn free(&mut self, meta: &Meta, extent: u32, unusable: bool, defect: Option<Defect>) {
        self.clear(extent, defect);
        let owner = meta.descriptor(extent);
        if owner.volume != 0 && self.places.get(owner.volume, owner.vextent) == Some(extent) {
            self.places.detach(owner.volume, owner.vextent);
            self.uncovered += 1;
        }
        let flags = if unusable { meta::UNUSABLE } else { 0 };
        let was = owner.flags & meta::UNUSABLE != 0;
        self.unusable = self.unusable + unusable as u32 - was as u32;
        meta.set_descriptor(extent, Descriptor { flags, ..Descriptor::default() });
        if !unusable && defect != Some(Defect::LeakExtents) {
            self.places.vacate(extent);
        }
    }
}

impl Sink for Index {
    #[inline]
    fn coming(&self, record: &Record) {
        if let Record::Write { first, .. } = record {
            self.state.borrow().dirty.prefetch(*first);
        }
    }

    fn placed(&self, record: &Record, placed: Placed) {
        let here = LogTail { segment: placed.segment, lsn: placed.lsn };
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if here.segment != state.last.segment {
            state.starts.push_back(here);
            state.sequences[(here.segment % state.segments.len() as u64) as usize] = here.segment;
        }
        state.last = here;
        state.watch.note(record);
        match record {
            Record::Write { first, crcs } => {
                let segment = (placed.segment % state.segments.len() as u64) as usize;
                for (step, crc) in crcs.iter().enumerate() {
                    let (block, at) = (first + step as u32, LogAt(placed.at.0 + step as u32 * 64));
                    state.map.set(block, LogPlace { at, crc: *crc });
                    if !state.chains.is_empty() {
                        state.chains.remove(&block);
                    }
                    state.dirty.mark(block, here);
                    state.segments[segment].push(Near::of(block));
                }
            }
            Record::Delta { block, offset, bytes, crc } => {
                let place = LogPlace { at: placed.at, crc: *crc };
                let delta = Delta { offset: *offset, bytes: *bytes, place };
                state.chains.entry(*block).or_default().push(delta);
                state.dirty.mark_over(*block, here);
            }
            Record::Trim { first, blocks } => {
                state.name_ownerless(&self.meta, *first, placed.lsn);
                for block in *first..*first + *blocks {
                    state.drop_block(block);
                    state.dirty.mark_hole(block, here);
                }
            }
            Record::Allocate { extent, volume, vextent, over } => {
                if state.dirty.get(*extent).is_some() {
                    // What a move said of it that did not come to its end.
                    state.clear(*extent, self.defect);
                }
                let flags = if *over { meta::BLOCKS_INHERIT } else { 0 };
                state.give(&self.meta, *extent, *volume, *vextent, flags);
                state.named.insert(*extent, placed.lsn);
            }
            Record::Free { extent, unusable } => {
                state.free(&self.meta, *extent, *unusable, self.defect);
                state.named.insert(*extent, placed.lsn);
            }
            Record::Move { extent, volume, vextent, former } => {
                state.give(&self.meta, *extent, *volume, *vextent, 0);
                state.free(&self.meta, *former, true, self.defect);
                [*extent, *former].into_iter().for_each(|extent| state.named.insert(extent, placed.lsn));
            }
            Record::HandOver { extent, volume, vextent } => {
                let owner = self.meta.descriptor(*extent);
                state.named.insert(*extent, placed.lsn);
                if owner.is_free() {
                    // It was given back later, as a checkpoint knows already.
                    return;
                }
                if state.places.get(owner.volume, owner.vextent) == Some(*extent) {
                    state.places.detach(owner.volume, owner.vextent);
                }
                state.places.assign(*extent, *volume, *vextent);
                self.meta.hand_over(*extent, *volume, *vextent);
                state.uncovered += 1;
            }
            Record::InPlace { first, crcs } => {
                state.name_ownerless(&self.meta, *first, placed.lsn);
                for (step, crc) in crcs.iter().enumerate() {
                    let block = first + step as u32;
                    state.map.set(block, LogPlace { at: IN_PLACE, crc: *crc });
                    if !state.chains.is_empty() {
                        state.chains.remove(&block);
                    }
                    state.dirty.mark(block, here);
                }
            }
            Record::Lost { first, blocks } => {
                state.name_ownerless(&self.meta, *first, placed.lsn);
                for block in *first..*first + *blocks {
                    state.drop_block(block);
                    state.dirty.mark_lost(block, here);
                }
            }
        }
    }

    fn reclaimed(&self, segment: u64) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let place = (segment % state.segments.len() as u64) as u32;
        let units = Units { first: place * self.segment_units, count: self.segment_units };
        let mut list = std::mem::take(&mut state.segments[place as usize]);
        let State { map, chains, dirty, .. } = state;
        for (step, near) in list.iter().enumerate() {
            if let Some(later) = list.get(step + RECLAIM_AHEAD) {
                map.prefetch_near(*later);
            }
            // (`None`: there is something newer)
            let Some((block, found)) = map.remove_near(*near, units) else { continue };
            // Deltas over a settled base keep the block dirty, not the base.
            let whole = !chains.contains_key(&block);
            assert!(
                !(whole && dirty.has(block)),
                "log segment {segment} holds block {block} at {found:?}, which is nowhere else"
            );
        }
        list.clear();
        // Kept for its capacity.
        state.segments[place as usize] = list;
    }
}
