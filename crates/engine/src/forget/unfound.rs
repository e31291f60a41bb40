//! Blocks of a shaped pool that were not in its log alone, and that no stripe has: they are damaged, and lost. Only reading all
//! stripes tells.

use super::ShownBy;
use crate::format::catalog::VolumeEntry;
use crate::meta::Catalog;
use std::collections::BTreeMap;

/// Ranges of such blocks that are listed at most, over all volumes; the blocks of all are counted.
pub const UNFOUND_RANGES_MAX: usize = 1024;

/// Some blocks of a volume, of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first.
    pub first: u64,
    /// How many.
    pub blocks: u64,
}

impl BlockRange {
    fn end(&self) -> u64 {
        self.first + self.blocks
    }
}

/// What of a volume is in no stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfoundBlocks {
    /// The volume's name.
    pub volume: String,
    /// How many blocks.
    pub blocks: u64,
    /// Where, in the order of the blocks: of all volumes together [`UNFOUND_RANGES_MAX`] ranges at most.
    pub ranges: Vec<BlockRange>,
    /// Other volumes and snapshots that show some of them, at most [`SHOWN_BY_MAX`](super::SHOWN_BY_MAX): there they cannot be
    /// read either.
    pub shown_by: Vec<String>,
}

/// All of it, by the numbers of the volumes, in the order in which it is noticed.
#[derive(Default)]
pub(crate) struct Unfound {
    volumes: BTreeMap<u32, UnfoundBlocks>,
    ranges: usize,
    shown_by: ShownBy,
}

impl Unfound {
    /// Notes blocks of a volume; those past its end are nobody's.
    pub(crate) fn note(&mut self, entry: &VolumeEntry, range: BlockRange) {
        let blocks = entry.blocks.saturating_sub(range.first).min(range.blocks);
        if blocks == 0 {
            return;
        }
        let volume = || entry.name.clone();
        let none = || UnfoundBlocks { volume: volume(), blocks: 0, ranges: Vec::new(), shown_by: Vec::new() };
        let found = self.volumes.entry(entry.id).or_insert_with(none);
        found.blocks += blocks;
        match found.ranges.last_mut() {
            Some(last) if last.end() == range.first => last.blocks += blocks,
            _ if self.ranges < UNFOUND_RANGES_MAX => {
                self.ranges += 1;
                found.ranges.push(BlockRange { blocks, ..range });
            }
            _ => {}
        }
    }

    /// Who else shows it.
    pub(crate) fn shown_by(&mut self) -> &mut ShownBy {
        &mut self.shown_by
    }

    /// By volumes.
    pub(super) fn into_volumes(mut self, catalog: &Catalog) -> Vec<UnfoundBlocks> {
        for (layer, UnfoundBlocks { ranges, shown_by, .. }) in &mut self.volumes {
            *shown_by = self.shown_by.names(*layer, catalog);
            ranges.sort_unstable_by_key(|range| range.first);
            ranges.dedup_by(|next, range| {
                let joins = range.end() == next.first;
                range.blocks += if joins { next.blocks } else { 0 };
                joins
            });
        }
        self.volumes.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::catalog::VolumeState;
    use uuid::Uuid;

    fn entry(id: u32, blocks: u64) -> VolumeEntry {
        VolumeEntry {
            id,
            state: VolumeState::Live,
            name: format!("v{id}"),
            uuid: Uuid::from_u128(id as u128),
            content: Uuid::from_u128(id as u128),
            blocks,
            block_shift: 12,
            created_s: 0,
            origin: id,
            parent: 0,
            overlap: 0,
        }
    }

    #[test]
    fn ranges_are_joined_cut_at_the_end_of_the_volume_and_counted_beyond_what_is_listed() {
        let (one, two) = (entry(1, 100), entry(2, 1 << 40));
        let mut unfound = Unfound::default();
        for (first, blocks) in [(50, 10), (60, 5), (40, 10), (90, 20), (100, 7)] {
            unfound.note(&one, BlockRange { first, blocks });
        }
        for range in 0..2 * UNFOUND_RANGES_MAX as u64 {
            unfound.note(&two, BlockRange { first: 3 * range, blocks: 2 });
        }
        let volumes = unfound.into_volumes(&Catalog::default());
        let ranges = vec![BlockRange { first: 40, blocks: 25 }, BlockRange { first: 90, blocks: 10 }];
        assert_eq!(volumes[0], UnfoundBlocks { volume: "v1".to_string(), blocks: 35, ranges, shown_by: Vec::new() });
        assert_eq!(
            (volumes[1].blocks, volumes[1].ranges.len()),
            (4 * UNFOUND_RANGES_MAX as u64, UNFOUND_RANGES_MAX - 3)
        );
    }
}
