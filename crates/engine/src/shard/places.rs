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

/// See the module.
pub(crate) struct Places {
    slices: HashMap<(u32, u32), [u32; SLICE_EXTENTS as usize], FixedState>,
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
        let mut places = Places { slices: HashMap::default(), used: Vec::new(), extents: 0, free: 0, cursor: 0 };
        places.grow(extents);
        places
    }

    /// More extents exist; they are free.
    pub(crate) fn grow(&mut self, extents: u32) {
        self.used.resize((extents as usize).div_ceil(64), 0);
        self.free += extents - self.extents;
        self.extents = extents;
    }

    /// So many extents are about to be assigned, whole slices mostly.
    pub(crate) fn expect(&mut self, extents: usize) {
        self.slices.reserve(extents / SLICE_EXTENTS as usize);
    }

    /// Where an extent of a volume is.
    #[inline]
    pub(crate) fn get(&self, volume: u32, vextent: u32) -> Option<u32> {
        let slice = self.slices.get(&(volume, vextent / SLICE_EXTENTS))?;
        let extent = slice[(vextent % SLICE_EXTENTS) as usize];
        (extent != NONE).then_some(extent)
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
        let key = (volume, vextent / SLICE_EXTENTS);
        self.slices.entry(key).or_insert([NONE; SLICE_EXTENTS as usize])[(vextent % SLICE_EXTENTS) as usize] = extent;
    }

    /// The extent is not free, whoever has it.
    pub(crate) fn occupy(&mut self, extent: u32) {
        let (word, bit) = (extent as usize / 64, 1 << (extent % 64));
        self.free -= (self.used[word] & bit == 0) as u32;
        self.used[word] |= bit;
    }

    /// The volume's extent is nowhere from now on; the extent itself stays taken until [`vacate`](Self::vacate).
    pub(crate) fn detach(&mut self, volume: u32, vextent: u32) {
        let key = (volume, vextent / SLICE_EXTENTS);
        let Some(slice) = self.slices.get_mut(&key) else { return };
        slice[(vextent % SLICE_EXTENTS) as usize] = NONE;
        if slice.iter().all(|extent| *extent == NONE) {
            self.slices.remove(&key);
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

    /// Extents that nobody has.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Extents `range` of a volume, in order: (extent of the volume, extent of the shard).
    pub(crate) fn of_volume(&self, volume: u32, range: Range<u32>) -> Vec<(u32, u32)> {
        let mut found: Vec<(u32, u32)> = Vec::new();
        let (first, end) = (range.start / SLICE_EXTENTS, range.end.div_ceil(SLICE_EXTENTS));
        for ((owner, slice), extents) in &self.slices {
            if *owner == volume && (first..end).contains(slice) {
                let held = extents.iter().enumerate().filter(|(_, extent)| **extent != NONE);
                let all = held.map(|(index, extent)| (slice * SLICE_EXTENTS + index as u32, *extent));
                found.extend(all.filter(|(vextent, _)| range.contains(vextent)));
            }
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
        let mut add = |slice: u32, extents: &[u32]| {
            let held = (slice * SLICE_EXTENTS..).zip(extents).filter(|(_, extent)| **extent != NONE);
            found.extend(held.map(|(vextent, _)| vextent).filter(|vextent| range.contains(vextent)));
        };
        // Whatever is fewer: what there may be, or what there is.
        if slices.len() * volumes.len() < self.slices.len() {
            for (slice, owner) in slices.flat_map(|slice| volumes.iter().map(move |owner| (slice, *owner))) {
                if let Some(extents) = self.slices.get(&(owner, slice)) {
                    add(slice, extents);
                }
            }
        } else {
            for ((owner, slice), extents) in &self.slices {
                if slices.contains(slice) && volumes.binary_search(owner).is_ok() {
                    add(*slice, extents);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Bytes of memory it takes, roughly.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.used.len() * 8 + self.slices.capacity() * (size_of::<((u32, u32), [u32; SLICE_EXTENTS as usize])>() + 1)
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
        places.vacate(33);
        assert_eq!(places.allocate(2, 7), Some(33));
        assert_eq!(places.get(2, 7), Some(33));
        assert_eq!(places.of_volume(2, 0..u32::MAX), vec![(7, 33)]);
        assert_eq!(places.of_volume(1, 15..18).iter().map(|(vextent, _)| *vextent).collect::<Vec<_>>(), [15, 16, 17]);
        assert_eq!((places.of_any(&[2, 1], 6..9), places.of_any(&[2], 0..u32::MAX)), (vec![6, 7, 8], vec![7]));
        assert_eq!(places.of_any(&[1, 2, 3], 30..36), [30, 31, 32, 34, 35]);
    }
}
