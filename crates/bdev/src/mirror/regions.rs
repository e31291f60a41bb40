//! The regions of a mirror in use: what is known of each, and how large they are. Both may grow, while all else goes on.

use super::format::{PAGE_REGIONS, PAGES_MAX};
use std::ops::{Index, RangeInclusive};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use zerocopy::FromZeros;

/// A word for each region: [`DIRTY`], [`NEEDS_SYNC`], [`ADDED`], and how many writes are under way. Atomic because all reactors write to all
/// regions; one addition per write, no lock.
pub(super) struct Regions {
    /// Those of each bitmap page, as soon as there is one of them: never moved and never dropped, since readers do not hold anything.
    pages: [OnceLock<Box<[AtomicU32]>>; PAGES_MAX],
    count: AtomicUsize,
    /// Blocks of one.
    blocks: AtomicU64,
}

/// Its bit is set on the legs.
pub(super) const DIRTY: u32 = 1 << 31;
/// Legs may differ there.
pub(super) const NEEDS_SYNC: u32 = 1 << 30;
/// The mirror has grown by it since it was opened, and it has not been copied yet: what legs have there is of no one, or was written
/// by this mirror to all of them.
pub(super) const ADDED: u32 = 1 << 29;

impl Regions {
    /// As many as a device has, nothing known of any.
    pub(super) fn new(region_blocks: u64, device_blocks: u64) -> Regions {
        let regions = Regions {
            pages: std::array::from_fn(|_| OnceLock::new()),
            count: AtomicUsize::new(0),
            blocks: AtomicU64::new(region_blocks),
        };
        regions.extend(device_blocks);
        regions
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count.load(Acquire)
    }

    /// Blocks of one.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.load(Acquire)
    }

    /// Those of some blocks.
    pub(super) fn of(&self, lba: u64, nblocks: u64) -> RangeInclusive<usize> {
        let blocks = self.blocks();
        let last = (lba + nblocks.max(1) - 1) / blocks;
        (lba / blocks) as usize..=last as usize
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AtomicU32> {
        (0..self.len()).map(|region| &self[region])
    }

    /// Adds those that a larger device has.
    pub(super) fn extend(&self, device_blocks: u64) {
        let count = device_blocks.div_ceil(self.blocks()) as usize;
        for page in &self.pages[..count.div_ceil(PAGE_REGIONS)] {
            page.get_or_init(|| {
                // Untouched memory until it is needed.
                let words = <[AtomicU32]>::new_box_zeroed_with_elems(PAGE_REGIONS);
                words.unwrap_or_else(|_| {
                    std::alloc::handle_alloc_error(std::alloc::Layout::new::<[u32; PAGE_REGIONS]>())
                })
            });
        }
        self.count.fetch_max(count, AcqRel);
    }

    /// Makes them this much larger, where nothing is known but that all bits are set. No write is under way. A reader that still
    /// goes by the smaller size looks at the word of another one.
    pub(super) fn enlarge(&self, region_blocks: u64, device_blocks: u64) {
        let count = device_blocks.div_ceil(region_blocks) as usize;
        (0..count.min(self.len())).for_each(|region| self[region].store(DIRTY, Release));
        self.blocks.store(region_blocks, Release);
        self.count.store(count.min(self.len()), Release);
        self.extend(device_blocks);
    }
}

impl Index<usize> for Regions {
    type Output = AtomicU32;

    #[inline]
    fn index(&self, region: usize) -> &AtomicU32 {
        let page = self.pages[region / PAGE_REGIONS].get().expect("regions that there are have words");
        &page[region % PAGE_REGIONS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_become_more_and_larger() {
        let regions = Regions::new(10, 95);
        assert_eq!((regions.len(), regions.of(9, 2), regions.of(90, 5)), (10, 0..=1, 9..=9));
        regions[9].store(NEEDS_SYNC, Release);
        regions.extend(10 * PAGE_REGIONS as u64 + 1);
        assert_eq!(regions.len(), PAGE_REGIONS + 1);
        assert_eq!(regions[9].load(Acquire), NEEDS_SYNC);
        assert_eq!(regions[PAGE_REGIONS].load(Acquire), 0);
        regions.enlarge(20, 10 * PAGE_REGIONS as u64 + 1);
        assert_eq!((regions.len(), regions.of(9, 2), regions.blocks()), (PAGE_REGIONS / 2 + 1, 0..=0, 20));
        assert!(regions.iter().all(|word| word.load(Acquire) == DIRTY));
    }
}
