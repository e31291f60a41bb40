//! Which slices of a volume are a shard's: they go round the shards, beginning at one that the volume's family says.

use crate::format::catalog::VolumeEntry;
use crate::units::{EXTENT_BLOCKS, SLICE_EXTENTS};
use std::ops::Range;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardSlices {
    first: u32,
    step: u32,
    /// How many.
    slices: u32,
    /// Extents of the volume, other shards' included.
    end: u32,
}

impl ShardSlices {
    pub(crate) fn of(volume: &VolumeEntry, shard: u16, shards: u32) -> ShardSlices {
        let end = volume.blocks.div_ceil(EXTENT_BLOCKS as u64).min(u32::MAX as u64) as u32;
        let first = (shard as u32 + shards - volume.origin % shards) % shards;
        let slices = end.div_ceil(SLICE_EXTENTS).saturating_sub(first).div_ceil(shards);
        ShardSlices { first, step: shards, slices, end }
    }

    /// Their numbers.
    pub(crate) fn slices(self) -> impl DoubleEndedIterator<Item = u32> {
        (0..self.slices).map(move |index| self.first + index * self.step)
    }

    /// Their extents, in order.
    pub(crate) fn extents(self) -> impl DoubleEndedIterator<Item = u32> {
        self.slices().flat_map(move |slice| self.extents_of(slice))
    }

    /// How many extents they have.
    pub(crate) fn extent_count(self) -> u64 {
        let Some(last) = self.slices().next_back() else { return 0 };
        (self.slices as u64 - 1) * SLICE_EXTENTS as u64 + self.extents_of(last).len() as u64
    }

    /// Whether an extent of the volume is in one of them.
    pub(crate) fn has(self, vextent: u32) -> bool {
        vextent < self.end && vextent / SLICE_EXTENTS % self.step == self.first
    }

    fn extents_of(self, slice: u32) -> Range<u32> {
        let first = slice * SLICE_EXTENTS;
        first..first.saturating_add(SLICE_EXTENTS).min(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::catalog::VolumeState;
    use uuid::Uuid;

    fn volume(blocks: u64, origin: u32) -> VolumeEntry {
        VolumeEntry {
            id: 9,
            state: VolumeState::Live,
            block_shift: 12,
            blocks,
            uuid: Uuid::nil(),
            content: Uuid::nil(),
            created_s: 0,
            name: "v".into(),
            parent: 0,
            overlap: 0,
            origin,
        }
    }

    #[test]
    fn the_shards_have_all_extents_of_a_volume_and_none_twice() {
        for (extents, shards) in [(0, 1), (1, 3), (16, 2), (17, 2), (100, 3), (48, 4), (1000, 7)] {
            for origin in 1..5 {
                let volume = volume((extents as u64 * EXTENT_BLOCKS as u64).saturating_sub(5), origin);
                let of = |shard: u32| ShardSlices::of(&volume, shard as u16, shards);
                let mut all: Vec<u32> = (0..shards).flat_map(|shard| of(shard).extents()).collect();
                all.sort_unstable();
                assert_eq!(all, (0..extents).collect::<Vec<u32>>());
                for shard in 0..shards {
                    assert!(of(shard).extents().all(|extent| of(shard).has(extent)));
                    let of_shard = |extent: &u32| (origin + extent / SLICE_EXTENTS) % shards == shard;
                    assert!((0..extents).filter(of_shard).eq(of(shard).extents()));
                    assert_eq!(of(shard).extent_count(), of(shard).extents().count() as u64);
                }
            }
        }
    }

    #[test]
    fn the_largest_volume_is_counted_without_being_walked() {
        let volume = volume(u64::MAX, 1);
        let all = (0..3).map(|shard| ShardSlices::of(&volume, shard, 3).extent_count()).sum::<u64>();
        assert_eq!(all, u32::MAX as u64);
        assert_eq!(
            (0..3).filter_map(|shard| ShardSlices::of(&volume, shard, 3).extents().next_back()).max(),
            Some(u32::MAX - 1)
        );
    }
}
