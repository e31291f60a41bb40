//! What is behind the log: bands, or places.

use super::bands::{BandModel, NoRoom};
use super::in_place::InPlace;
use super::log::LogModel;

pub enum Capacity {
    Bands(BandModel),
    InPlace(InPlace),
}

/// Blocks written to the capacity device.
#[derive(Clone, Copy, Debug, Default)]
pub struct CapacityCounts {
    pub from_log: u64,
    /// Of bands: moved by the collector, and headers of stripes.
    pub collected: u64,
    pub headers: u64,
    /// In place.
    pub map_pages: u64,
}

impl CapacityCounts {
    pub fn since(&self, before: &CapacityCounts) -> CapacityCounts {
        CapacityCounts {
            from_log: self.from_log - before.from_log,
            collected: self.collected - before.collected,
            headers: self.headers - before.headers,
            map_pages: self.map_pages - before.map_pages,
        }
    }
}

impl Capacity {
    pub fn counts(&self) -> CapacityCounts {
        match self {
            Capacity::Bands(bands) => {
                let counts = bands.counts;
                let (from_log, collected, headers) = (counts.user, counts.collected, counts.headers);
                CapacityCounts { from_log, collected, headers, map_pages: 0 }
            }
            Capacity::InPlace(place) => {
                let counts = place.counts;
                CapacityCounts { from_log: counts.destaged, map_pages: counts.map_pages, ..CapacityCounts::default() }
            }
        }
    }

    /// Blocks are there before anything else is.
    pub fn fill(&mut self, blocks: std::ops::Range<u32>) {
        match self {
            Capacity::Bands(bands) => blocks.for_each(|block| {
                bands.destage(block, &|_| false).expect("what volumes have fits, and in order nothing is collected");
            }),
            Capacity::InPlace(place) => place.fill(blocks),
        }
    }

    /// Blocks leave the log, each with its extent; `log` may have them anew by then.
    pub fn destage(&mut self, due: &mut [(u32, u32)], log: &LogModel) -> Result<(), NoRoom> {
        match self {
            Capacity::Bands(bands) => {
                due.iter().try_for_each(|(block, _)| bands.destage(*block, &|block| log.has(block)))
            }
            Capacity::InPlace(place) => {
                place.destage(due);
                Ok(())
            }
        }
    }

    /// A block has gone to the log.
    pub fn appended(&mut self) {
        if let Capacity::InPlace(place) = self {
            place.appended(1);
        }
    }

    /// The block is a hole from now on.
    pub fn trim(&mut self, block: u32) {
        if let Capacity::Bands(bands) = self {
            bands.trim(block);
        }
    }

    /// Of the last victim of the collector the blocks that were needed, and all.
    pub fn last_victim(&self) -> (u32, u32) {
        match self {
            Capacity::Bands(bands) => bands.last_victim(),
            Capacity::InPlace(_) => (0, 1),
        }
    }

    /// Bytes given to the drive, and programmed.
    pub fn drive_bytes(&self) -> (u64, u64) {
        match self {
            Capacity::Bands(bands) => bands.drive.bytes(),
            Capacity::InPlace(place) => place.drive_bytes(),
        }
    }
}
