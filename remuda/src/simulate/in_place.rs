//! The capacity device of a pool that places blocks where their addresses say: what leaves the log is written there, sorted and merged,
//! and the map pages of what has changed at every checkpoint. Roots, tables and journals are left out: they are some pages of each. So are
//! trims: an engine that writes in place does not pass them on.

use super::drive::Drive;
use super::space::{BLOCK, GROUP_BLOCKS, is_sampled};
use engine::log_policy::CHECKPOINT_PART;
use std::collections::{BTreeSet, HashMap};

/// Blocks written to the capacity device.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlaceCounts {
    pub destaged: u64,
    pub map_pages: u64,
}

pub struct InPlace {
    /// None: disks, of which only what they are given counts.
    drive: Option<Drive>,
    shift: u32,
    /// Blocks in front of the map pages, on the drive.
    blocks: u32,
    /// Blocks that go to the log from one checkpoint to the next.
    checkpoint_blocks: u64,
    appended: u64,
    /// Extents whose map pages have changed since the last checkpoint.
    changed: BTreeSet<u32>,
    /// Of each extent the place of its map page, and which of its two slots is written next.
    pages: HashMap<u32, (u32, bool)>,
    pub counts: InPlaceCounts,
}

/// Blocks of a drive that map pages of so many extents take.
pub fn map_blocks(extents: u32) -> u64 {
    u64::from(2 * extents).next_multiple_of(u64::from(GROUP_BLOCKS))
}

impl InPlace {
    /// For `blocks` blocks of volumes behind a log of `log_blocks`. A `drive` has room for them and for their map pages.
    pub fn new(blocks: u32, log_blocks: u64, shift: u32, drive: Option<Drive>) -> InPlace {
        InPlace {
            drive,
            shift,
            blocks,
            checkpoint_blocks: (log_blocks / CHECKPOINT_PART).max(1),
            appended: 0,
            changed: BTreeSet::new(),
            pages: HashMap::new(),
            counts: InPlaceCounts::default(),
        }
    }

    /// Blocks are there before anything else is.
    pub fn fill(&mut self, blocks: std::ops::Range<u32>) {
        if let Some(drive) = &mut self.drive {
            drive.write(u64::from(blocks.start) * BLOCK, blocks.len() as u64 * BLOCK);
        }
    }

    /// So many blocks have gone to the log.
    pub fn appended(&mut self, blocks: u64) {
        self.appended += blocks;
        if self.appended >= self.checkpoint_blocks {
            self.appended = 0;
            self.checkpoint();
        }
    }

    /// Blocks leave the log, each with its extent.
    pub fn destage(&mut self, due: &mut [(u32, u32)]) {
        due.sort_unstable();
        self.counts.destaged += due.len() as u64;
        self.changed.extend(due.iter().map(|(_, extent)| *extent).filter(|extent| is_sampled(*extent, self.shift)));
        let Some(drive) = &mut self.drive else { return };
        for run in due.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
            drive.write(u64::from(run[0].0) * BLOCK, run.len() as u64 * BLOCK);
        }
    }

    /// Writes the map pages of what has changed.
    fn checkpoint(&mut self) {
        self.counts.map_pages += self.changed.len() as u64;
        let Some(drive) = &mut self.drive else { return self.changed.clear() };
        let slots = (drive.capacity_bytes() / BLOCK).saturating_sub(u64::from(self.blocks)) / 2;
        for extent in std::mem::take(&mut self.changed) {
            let number = self.pages.len() as u32;
            let (page, second) = self.pages.entry(extent).or_insert((number, false));
            let at = u64::from(self.blocks) + 2 * (u64::from(*page) % slots.max(1)) + u64::from(*second);
            *second = !*second;
            drive.write(at * BLOCK, BLOCK);
        }
    }

    /// Bytes given to the drive, and programmed.
    pub fn drive_bytes(&self) -> (u64, u64) {
        self.drive.as_ref().map_or((0, 0), Drive::bytes)
    }

    /// Whether the drive's flash has been programmed once more than filling it took.
    pub fn is_steady(&self, filled_bytes: u64) -> bool {
        self.drive.as_ref().is_none_or(|drive| drive.bytes().1 >= filled_bytes + drive.raw_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::drive::{DriveKind, DriveShape};
    use super::*;

    #[test]
    fn neighbours_go_together_and_a_map_page_once_for_each_checkpoint() {
        let (kind, bytes) = (DriveKind::Conventional, (4096 + map_blocks(4)) * BLOCK);
        let shape = DriveShape { kind, bytes, band_bytes: 0, spare_percent: 30, unit_bytes: 4096 };
        let mut place = InPlace::new(4096, 160, 0, Some(Drive::new(shape).unwrap()));
        place.destage(&mut [(9, 0), (7, 0), (8, 0), (2000, 1)]);
        assert_eq!((place.counts.destaged, place.counts.map_pages, place.drive_bytes().0), (4, 0, 4 * BLOCK));
        place.destage(&mut [(10, 0)]);
        place.appended(10);
        assert_eq!((place.counts.map_pages, place.drive_bytes().0), (2, 7 * BLOCK));
        place.appended(10);
        assert_eq!(place.counts.map_pages, 2, "nothing has changed");
    }

    #[test]
    fn disks_are_given_everything_and_program_nothing() {
        let mut place = InPlace::new(4096, 160, 0, None);
        place.destage(&mut [(1, 0)]);
        place.appended(10);
        assert_eq!((place.counts.destaged, place.counts.map_pages, place.drive_bytes()), (1, 1, (0, 0)));
    }
}
