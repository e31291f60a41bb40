//! Which extent of the shard holds which extent of a volume, and which are free.

use crate::units::SLICE_EXTENTS;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// A fixed, fast hash for small integer keys: the same order in every run.
#[derive(Clone, Copy, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(*byte as u64);
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(29) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

pub(crate) type FixedState = BuildHasherDefault<KeyHasher>;

/// Where the extents of one slice are; a line of the cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Slice([u32; SLICE_EXTENTS as usize]);

impl Slice {
    /// As slice number `slice`: (extent of the volume, extent of the shard) of those it has.
    fn held(&self, slice: u32) -> impl Iterator<Item = (u32, u32)> {
        let held = self.0.into_iter().enumerate().filter(|(_, extent)| *extent != NONE);
        held.map(move |(index, extent)| (slice * SLICE_EXTENTS + index as u32, extent))
    }
}

const NO_EXTENTS: Slice = Slice([NONE; SLICE_EXTENTS as usize]);

/// Extents that follow one another from this one on.
fn run(first: u32) -> Slice {
    Slice(std::array::from_fn(|index| first + index as u32))
}

/// Slices of a volume that are found together: few enough that a volume with little in it takes little, enough that what leads
/// to a slice stays in the caches.
const GROUP_SLICES: u32 = 64;

const GROUP_EXTENTS: u32 = GROUP_SLICES * SLICE_EXTENTS;

/// Of each slice its index in [`Places::slices`], or none, or with [`RUN`] the first of its extents, which follow one another. So a slice that was
/// written in order is found in its group, without another line of the cache, and takes no more memory than that.
type Group = [u32; GROUP_SLICES as usize];

const RUN: u32 = 1 << 31;

/// The first extent of a slice in one run.
fn run_at(slot: u32) -> Option<u32> {
    (slot != NONE && slot & RUN != 0).then_some(slot & !RUN)
}

/// See the module.
pub(crate) struct Places {
    /// Volume and number of each group that has extents -> its index in `groups`.
    index: HashMap<(u32, u32), u32, FixedState>,
    groups: Vec<Group>,
    /// Indices in `groups` that nobody has.
    groups_unused: Vec<u32>,
    slices: Vec<Slice>,
    /// Indices in `slices` that nobody has.
    slices_unused: Vec<u32>,
    /// How many extents each volume has; none of those without.
    held: HashMap<u32, u32, FixedState>,
    /// One bit per extent: in use (or unusable).
    used: Vec<u64>,
    extents: u32,
    free: u32,
    /// Where the next search begins.
    cursor: u32,
}

impl Places {
    /// All free.
    pub(crate) fn new(extents: u32) -> Places {
        let mut places = Places {
            index: HashMap::default(),
            groups: Vec::new(),
            groups_unused: Vec::new(),
            slices: Vec::new(),
            slices_unused: Vec::new(),
            held: HashMap::default(),
            used: Vec::new(),
            extents: 0,
            free: 0,
            cursor: 0,
        };
        places.grow(extents);
        places
    }

    /// More extents exist; they are free.
    pub(crate) fn grow(&mut self, extents: u32) {
        assert!(extents < RUN, "a shard has fewer extents than can be addressed");
        self.used.resize((extents as usize).div_ceil(64), 0);
        self.free += extents - self.extents;
        self.extents = extents;
    }

    #[inline]
    fn slot(&self, volume: u32, slice: u32) -> Option<u32> {
        let group = *self.index.get(&(volume, slice / GROUP_SLICES))?;
        let slot = self.groups[group as usize][(slice % GROUP_SLICES) as usize];
        (slot != NONE).then_some(slot)
    }

    fn slice_at(&self, slot: u32) -> Slice {
        run_at(slot).map_or_else(|| self.slices[slot as usize], run)
    }

    /// Every slice of which the group is among `wanted`: volume, number, extents. In no particular order.
    fn slices_of(&self, wanted: impl Fn(u32, u32) -> bool) -> impl Iterator<Item = (u32, u32, Slice)> {
        let groups = self.index.iter().filter(move |((volume, group), _)| wanted(*volume, *group));
        groups.flat_map(|((volume, group), slot)| {
            let slices = (group * GROUP_SLICES..).zip(&self.groups[*slot as usize]).filter(|(_, slot)| **slot != NONE);
            slices.map(|(slice, slot)| (*volume, slice, self.slice_at(*slot)))
        })
    }

    /// The extent is looked up soon.
    #[inline]
    pub(crate) fn prefetch(&self, volume: u32, vextent: u32) {
        let slot = self.slot(volume, vextent / SLICE_EXTENTS);
        if let Some(slice) = slot.and_then(|slot| self.slices.get(slot as usize)) {
            reactor::prefetch(slice);
        }
    }

    /// Where an extent of a volume is.
    #[inline]
    pub(crate) fn get(&self, volume: u32, vextent: u32) -> Option<u32> {
        let slot = self.slot(volume, vextent / SLICE_EXTENTS)?;
        let index = vextent % SLICE_EXTENTS;
        if let Some(first) = run_at(slot) {
            return Some(first + index);
        }
        let extent = self.slices[slot as usize].0[index as usize];
        (extent != NONE).then_some(extent)
    }

    /// How many extents of a slice, of those up to `end`, have no place.
    pub(crate) fn missing(&self, volume: u32, slice: u32, end: u32) -> u32 {
        let wanted = end.saturating_sub(slice.saturating_mul(SLICE_EXTENTS)).min(SLICE_EXTENTS);
        let Some(slot) = self.slot(volume, slice) else { return wanted };
        let held = self.slice_at(slot).held(slice).filter(|(vextent, _)| *vextent < end).count() as u32;
        wanted - held
    }

    /// A free extent is taken for an extent of a volume; `None` when there is none.
    pub(crate) fn allocate(&mut self, volume: u32, vextent: u32) -> Option<u32> {
        let extent = self.reserve()?;
        self.assign(extent, volume, vextent);
        Some(extent)
    }

    /// A free extent is taken for nobody yet; `None` when there is none.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        let extent = self.find_free()?;
        self.occupy(extent);
        self.cursor = (extent + 1) % self.extents;
        Some(extent)
    }

    /// This extent belongs to that extent of a volume, and to no other from now on.
    pub(crate) fn assign(&mut self, extent: u32, volume: u32, vextent: u32) {
        self.occupy(extent);
        let slice = vextent / SLICE_EXTENTS;
        let group = *self
            .index
            .entry((volume, slice / GROUP_SLICES))
            .or_insert_with(|| fresh(&mut self.groups, &mut self.groups_unused, [NONE; GROUP_SLICES as usize]));
        let slot = &mut self.groups[group as usize][(slice % GROUP_SLICES) as usize];
        let index = vextent % SLICE_EXTENTS;
        if let Some(first) = run_at(*slot) {
            if first + index == extent {
                return;
            }
            *slot = fresh(&mut self.slices, &mut self.slices_unused, run(first));
        } else if *slot == NONE {
            *slot = fresh(&mut self.slices, &mut self.slices_unused, NO_EXTENTS);
        }
        let extents = &mut self.slices[*slot as usize].0;
        if extents[index as usize] == NONE {
            *self.held.entry(volume).or_default() += 1;
        }
        extents[index as usize] = extent;
        let first = extents[0];
        if (0..).zip(extents.iter()).all(|(index, extent)| first.checked_add(index) == Some(*extent)) {
            self.slices_unused.push(std::mem::replace(slot, RUN | first));
        }
    }

    /// The extent is not free, whoever has it.
    pub(crate) fn occupy(&mut self, extent: u32) {
        let (word, bit) = (extent as usize / 64, 1 << (extent % 64));
        self.free -= (self.used[word] & bit == 0) as u32;
        self.used[word] |= bit;
    }

    /// The volume's extent is nowhere from now on; the extent itself stays taken until [`vacate`](Self::vacate).
    pub(crate) fn detach(&mut self, volume: u32, vextent: u32) {
        let slice = vextent / SLICE_EXTENTS;
        let key = (volume, slice / GROUP_SLICES);
        let Some(group) = self.index.get(&key).copied() else { return };
        let slots = &mut self.groups[group as usize];
        let slot = &mut slots[(slice % GROUP_SLICES) as usize];
        if let Some(first) = run_at(*slot) {
            *slot = fresh(&mut self.slices, &mut self.slices_unused, run(first));
        }
        let Some(extents) = self.slices.get_mut(*slot as usize) else { return };
        if std::mem::replace(&mut extents.0[(vextent % SLICE_EXTENTS) as usize], NONE) == NONE {
            return;
        }
        let held = self.held.get_mut(&volume).expect("it had this extent");
        *held -= 1;
        if *held == 0 {
            self.held.remove(&volume);
        }
        if extents.0.iter().any(|extent| *extent != NONE) {
            return;
        }
        self.slices_unused.push(std::mem::replace(slot, NONE));
        if slots.iter().all(|slot| *slot == NONE) {
            self.index.remove(&key);
            self.groups_unused.push(group);
        }
    }

    /// The extent can be used again.
    pub(crate) fn vacate(&mut self, extent: u32) {
        let (word, bit) = (extent as usize / 64, 1 << (extent % 64));
        self.free += (self.used[word] & bit != 0) as u32;
        self.used[word] &= !bit;
    }

    /// Whether somebody has the extent, or nobody may.
    pub(crate) fn is_used(&self, extent: u32) -> bool {
        self.used[extent as usize / 64] & 1 << (extent % 64) != 0
    }

    /// How many extents a volume has.
    pub(crate) fn held_by(&self, volume: u32) -> u32 {
        self.held.get(&volume).copied().unwrap_or(0)
    }

    /// The volumes that have extents, and how many, by volume.
    pub(crate) fn held(&self) -> Vec<(u32, u32)> {
        let mut held: Vec<(u32, u32)> = self.held.iter().map(|(volume, extents)| (*volume, *extents)).collect();
        held.sort_unstable();
        held
    }

    /// Extents that nobody has.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Extents `range` of a volume, in order: (extent of the volume, extent of the shard).
    pub(crate) fn of_volume(&self, volume: u32, range: Range<u32>) -> Vec<(u32, u32)> {
        let mut found: Vec<(u32, u32)> = Vec::new();
        if self.held_by(volume) == 0 {
            return found;
        }
        let groups = range.start / GROUP_EXTENTS..range.end.div_ceil(GROUP_EXTENTS);
        for (_, slice, extents) in self.slices_of(|owner, group| owner == volume && groups.contains(&group)) {
            found.extend(extents.held(slice).filter(|(vextent, _)| range.contains(vextent)));
        }
        found.sort_unstable();
        found
    }

    /// Extents `range` that any of these volumes has, in order.
    pub(crate) fn of_any(&self, volumes: &[u32], range: Range<u32>) -> Vec<u32> {
        let mut volumes = volumes.to_vec();
        volumes.sort_unstable();
        let slices = range.start / SLICE_EXTENTS..range.end.div_ceil(SLICE_EXTENTS);
        let mut found: Vec<u32> = Vec::new();
        let mut add = |slice: u32, extents: Slice| {
            found.extend(extents.held(slice).map(|(vextent, _)| vextent).filter(|vextent| range.contains(vextent)));
        };
        // Whatever is fewer: what there may be, or what there is.
        if slices.len() * volumes.len() < self.groups.len() * GROUP_SLICES as usize {
            for (slice, owner) in slices.flat_map(|slice| volumes.iter().map(move |owner| (slice, *owner))) {
                if let Some(slot) = self.slot(owner, slice) {
                    add(slice, self.slice_at(slot));
                }
            }
        } else {
            let groups = range.start / GROUP_EXTENTS..range.end.div_ceil(GROUP_EXTENTS);
            let wanted = |owner: u32, group: u32| groups.contains(&group) && volumes.binary_search(&owner).is_ok();
            self.slices_of(wanted).for_each(|(_, slice, extents)| add(slice, extents));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Bytes of memory it takes, roughly.
    pub(crate) fn memory_bytes(&self) -> usize {
        let index = self.index.capacity() * (size_of::<((u32, u32), u32)>() + 1);
        let groups = self.groups.capacity() * size_of::<Group>() + self.groups_unused.capacity() * 4;
        let slices = self.slices.capacity() * size_of::<Slice>() + self.slices_unused.capacity() * 4;
        let held = self.held.capacity() * (size_of::<(u32, u32)>() + 1);
        self.used.len() * 8 + index + groups + slices + held
    }

    /// Extents lie one after the other on the device, so taking the next free one keeps sequential writes sequential.
    fn find_free(&self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let words = self.used.len();
        for step in 0..=words {
            let word = (self.cursor as usize / 64 + step) % words;
            let skip = if step == 0 { (1u64 << (self.cursor % 64)) - 1 } else { 0 };
            let candidate = (!(self.used[word] | skip)).trailing_zeros() + word as u32 * 64;
            if !(self.used[word] | skip) != 0 && candidate < self.extents {
                return Some(candidate);
            }
        }
        None
    }
}

/// The index of an element that nobody had, which is `new` now.
fn fresh<T>(all: &mut Vec<T>, unused: &mut Vec<u32>, new: T) -> u32 {
    match unused.pop() {
        Some(slot) => {
            all[slot as usize] = new;
            slot
        }
        None => {
            all.push(new);
            all.len() as u32 - 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_extent_is_found_once_and_again_when_vacated() {
        let mut places = Places::new(70);
        let taken: Vec<u32> = (0..70).map(|index| places.allocate(1, index).expect("free")).collect();
        assert_eq!(taken, (0..70).collect::<Vec<u32>>());
        assert_eq!((places.allocate(1, 99), places.free()), (None, 0));
        places.detach(1, 33);
        assert_eq!((places.get(1, 33), places.free()), (None, 0));
        places.detach(1, 33);
        assert_eq!(places.held_by(1), 69, "what is nowhere is not taken twice");
        places.vacate(33);
        assert_eq!(places.allocate(2, 7), Some(33));
        assert_eq!(places.get(2, 7), Some(33));
        assert_eq!(places.of_volume(2, 0..u32::MAX), vec![(7, 33)]);
        assert_eq!(places.of_volume(1, 15..18).iter().map(|(vextent, _)| *vextent).collect::<Vec<_>>(), [15, 16, 17]);
        assert_eq!((places.of_any(&[2, 1], 6..9), places.of_any(&[2], 0..u32::MAX)), (vec![6, 7, 8], vec![7]));
        assert_eq!(places.of_any(&[1, 2, 3], 30..36), [30, 31, 32, 34, 35]);
    }

    #[test]
    fn slices_in_one_run_take_no_room_and_stay_what_they_are_when_one_of_them_goes() {
        let mut places = Places::new(400);
        (0..320).for_each(|vextent| assert_eq!(places.allocate(1, vextent), Some(vextent)));
        assert_eq!((places.slices.len(), places.slices_unused.len()), (1, 1), "one at a time was not complete");
        let mut model: Vec<Option<u32>> = (0..320).map(Some).collect();
        let check = |places: &Places, model: &[Option<u32>]| {
            assert!((0..).zip(model).all(|(vextent, extent)| places.get(1, vextent) == *extent));
            let all: Vec<(u32, u32)> = (0..).zip(model).filter_map(|(at, extent)| Some((at, (*extent)?))).collect();
            assert_eq!(places.of_volume(1, 0..u32::MAX), all);
            assert_eq!(places.of_any(&[1], 0..u32::MAX), all.iter().map(|(at, _)| *at).collect::<Vec<_>>());
            assert_eq!(places.held_by(1) as usize, all.len());
        };
        check(&places, &model);
        for (vextent, extent) in
            [(0, None), (17, Some(330)), (47, None), (47, Some(47)), (64, Some(64)), (17, Some(17))]
        {
            match extent {
                Some(extent) => places.assign(extent, 1, vextent),
                None => places.detach(1, vextent),
            }
            model[vextent as usize] = extent;
            check(&places, &model);
        }
        assert_eq!(places.slices.len() - places.slices_unused.len(), 1, "slice 0 alone has a gap");
        (0..320).for_each(|vextent| places.detach(1, vextent));
        check(&places, &[None; 320]);
        assert_eq!((places.index.len(), places.slices.len()), (0, places.slices_unused.len()));
    }

    #[test]
    fn far_extents_of_volumes_take_room_only_while_they_are_there() {
        let mut places = Places::new(100);
        let at = [0, 15, 16, GROUP_EXTENTS - 1, GROUP_EXTENTS, u32::MAX - 1];
        for (extent, (volume, vextent)) in (0..).zip([1, 2].into_iter().flat_map(|volume| at.map(|at| (volume, at)))) {
            places.assign(extent, volume, vextent);
        }
        let all: Vec<(u32, u32)> = at.into_iter().zip(6..).collect();
        assert_eq!(places.of_volume(2, 0..u32::MAX), all);
        assert_eq!(places.of_volume(2, 16..GROUP_EXTENTS), all[2..4]);
        assert_eq!(places.of_any(&[2, 1], 0..u32::MAX), at);
        let room = (places.groups.len(), places.slices.len());
        assert_eq!(places.held(), [(1, 6), (2, 6)]);
        let missing = [(0, 320), (0, 15), (0, 8), (1, 320), (1, 17), (1, 16), (1, 3), (2, 320), (2, 33)];
        let missing = missing.map(|(slice, end)| places.missing(1, slice, end));
        assert_eq!(missing, [14, 14, 7, 15, 0, 0, 0, 16, 1]);
        places.assign(80, 2, 15);
        assert_eq!(places.held_by(2), 6, "one in place of another");
        for volume in [1, 2] {
            at.iter().for_each(|at| places.detach(volume, *at));
        }
        assert_eq!((places.index.len(), places.of_any(&[1, 2], 0..u32::MAX)), (0, vec![]));
        assert_eq!(places.held(), []);
        for at in at {
            places.assign(50, 3, at);
            assert_eq!(places.get(3, at), Some(50));
            places.assign(51, 4, at);
        }
        assert_eq!((places.groups.len(), places.slices.len()), room);
    }
}
