//! The bands of a shaped pool as a policy: victims and ages as the engine has them, by the engine's own rules (`engine::policy`), on a
//! modelled drive. What is moved goes to one band at a time, in turns with what comes from the log, as the engine has it on drives
//! without write streams; on others it makes no difference. Data is counted in blocks; a stripe's header takes one block of 256. Padding
//! is left out.

use super::drive::Drive;
use super::space::{BLOCK, GROUP_BLOCKS};
use engine::policy;
use std::collections::VecDeque;

const NONE: u32 = u32::MAX;
const USER: usize = 0;
const MOVED: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Closed,
}

#[derive(Clone, Copy)]
struct Band {
    state: State,
    valid: u32,
    written: u32,
    /// Of its blocks, on average: the clock when they were new.
    stamp: u64,
    /// The clock when it became full.
    closed: u64,
}

/// How large everything is that is simulated.
#[derive(Clone, Copy, Debug)]
pub struct BandShape {
    pub bands: u32,
    /// Blocks of a band, headers included.
    pub band_blocks: u32,
    pub unit_blocks: u32,
    /// Parts that have a reserve each.
    pub shards: u32,
    /// Blocks that volumes have.
    pub blocks: u32,
}

/// Blocks written to the capacity device.
#[derive(Clone, Copy, Debug, Default)]
pub struct BandCounts {
    pub user: u64,
    pub collected: u64,
    pub headers: u64,
}

/// No band is free, and none is worth collecting.
#[derive(Debug, PartialEq, Eq)]
pub struct NoRoom;

pub struct BandModel {
    shape: BandShape,
    slots: u32,
    bands: Vec<Band>,
    free: VecDeque<u32>,
    open: [Option<u32>; 2],
    place: Vec<u32>,
    owner: Vec<u32>,
    clock: u64,
    low: usize,
    /// Blocks of the last victim that were needed.
    victim_valid: u32,
    pub counts: BandCounts,
    pub drive: Drive,
}

impl BandModel {
    pub fn new(shape: BandShape, drive: Drive) -> BandModel {
        let slots = shape.band_blocks - shape.band_blocks.div_ceil(256);
        let empty = Band { state: State::Free, valid: 0, written: 0, stamp: 0, closed: 0 };
        let low = policy::free_bands_low(shape.bands / shape.shards, shape.band_blocks) * shape.shards;
        BandModel {
            shape,
            slots,
            bands: vec![empty; shape.bands as usize],
            free: (0..shape.bands).collect(),
            open: [None; 2],
            place: vec![NONE; shape.blocks as usize],
            owner: vec![NONE; shape.bands as usize * slots as usize],
            clock: 0,
            low: low as usize,
            victim_valid: 0,
            counts: BandCounts::default(),
            drive,
        }
    }

    /// A block comes from the log, which has blocks anew that bands have as well, as `has_anew` says.
    pub fn destage(&mut self, block: u32, has_anew: &impl Fn(u32) -> bool) -> Result<(), NoRoom> {
        if self.open[USER].is_none() {
            self.collect(has_anew)?;
        }
        self.clock += 1;
        self.counts.user += 1;
        self.append(USER, block, self.clock);
        Ok(())
    }

    /// The block is a hole from now on.
    pub fn trim(&mut self, block: u32) {
        let place = std::mem::replace(&mut self.place[block as usize], NONE);
        if place != NONE {
            self.owner[place as usize] = NONE;
            self.lose(place / self.slots);
        }
    }

    /// Blocks of all bands.
    pub fn blocks(&self) -> u64 {
        u64::from(self.shape.bands) * u64::from(self.shape.band_blocks)
    }

    /// Whether all bands have been written once more than filling them took.
    pub fn is_steady(&self) -> bool {
        self.counts.user + self.counts.collected >= 2 * self.blocks()
    }

    /// Of the last victim the blocks that were needed, and all.
    pub fn last_victim(&self) -> (u32, u32) {
        (self.victim_valid, self.slots)
    }

    fn lose(&mut self, band: u32) {
        self.bands[band as usize].valid -= 1;
        self.free_if_empty(band);
    }

    fn free_if_empty(&mut self, number: u32) {
        let band = &mut self.bands[number as usize];
        if band.state == State::Closed && band.valid == 0 {
            band.state = State::Free;
            self.free.push_back(number);
            self.drive.free_band(self.start(number), self.band_bytes());
        }
    }

    fn band_bytes(&self) -> u64 {
        u64::from(self.shape.band_blocks) * BLOCK
    }

    fn start(&self, band: u32) -> u64 {
        u64::from(band) * self.band_bytes()
    }

    /// Gives the drive blocks of a band, from a slot on.
    fn write(&mut self, band: u32, stream: usize, slot: u32, blocks: u32) {
        let (start, offset) = (self.start(band), u64::from(slot) * BLOCK);
        self.drive.write_band(start, offset, u64::from(blocks) * BLOCK, stream as u16);
    }

    fn append(&mut self, stream: usize, block: u32, stamp: u64) {
        let number = self.open[stream].unwrap_or_else(|| self.open_next(stream));
        let band = &mut self.bands[number as usize];
        let slot = band.written;
        let weighed = u128::from(band.stamp) * u128::from(slot) + u128::from(stamp);
        band.stamp = (weighed / u128::from(slot + 1)) as u64;
        band.written += 1;
        band.valid += 1;
        let place = number * self.slots + slot;
        let old = std::mem::replace(&mut self.place[block as usize], place);
        self.owner[place as usize] = block;
        if old != NONE {
            self.owner[old as usize] = NONE;
            self.lose(old / self.slots);
        }
        let (written, slots) = (slot + 1, self.slots);
        if written == slots {
            // What is left of the last unit, and the headers.
            let from = slots / GROUP_BLOCKS * GROUP_BLOCKS;
            self.counts.headers += u64::from(self.shape.band_blocks - slots);
            self.write(number, stream, from, self.shape.band_blocks - from);
            self.open[stream] = None;
            let band = &mut self.bands[number as usize];
            (band.state, band.closed) = (State::Closed, self.clock);
            self.free_if_empty(number);
        } else if written.is_multiple_of(GROUP_BLOCKS) {
            self.write(number, stream, written - GROUP_BLOCKS, GROUP_BLOCKS);
        }
    }

    fn open_next(&mut self, stream: usize) -> u32 {
        let number = self.free.pop_front().expect("collecting leaves a reserve of bands");
        self.bands[number as usize] = Band { state: State::Open, valid: 0, written: 0, stamp: self.clock, closed: 0 };
        self.open[stream] = Some(number);
        number
    }

    /// Empties bands until enough are free.
    fn collect(&mut self, has_anew: &impl Fn(u32) -> bool) -> Result<(), NoRoom> {
        while self.free.len() < self.low {
            if !self.collect_one(has_anew) {
                let reserve = policy::RESERVE_BANDS as usize;
                return if self.free.len() > reserve { Ok(()) } else { Err(NoRoom) };
            }
        }
        Ok(())
    }

    fn collect_one(&mut self, has_anew: &impl Fn(u32) -> bool) -> bool {
        let critical = policy::is_critical(self.free.len());
        let worth = |number: u32| {
            let band = &self.bands[number as usize];
            let is_full = band.state == State::Closed;
            let idle = self.clock.saturating_sub(band.closed).max(1);
            is_full
                .then(|| policy::worth(self.shape.band_blocks, band.valid, self.shape.unit_blocks, idle, critical))
                .flatten()
        };
        let best = (0..self.shape.bands).filter_map(|number| Some((worth(number)?, number)));
        let Some((_, victim)) = best.max_by_key(|(worth, number)| (*worth, std::cmp::Reverse(*number))) else {
            return false;
        };
        let band = self.bands[victim as usize];
        self.victim_valid = band.valid;
        for slot in 0..self.slots {
            let block = self.owner[(victim * self.slots + slot) as usize];
            if block == NONE {
                continue;
            }
            if has_anew(block) {
                // What the log has anew is not moved: it is nowhere until it is destaged.
                self.trim(block);
            } else {
                self.counts.collected += 1;
                self.append(MOVED, block, band.stamp);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::drive::{DriveKind, DriveShape};
    use super::*;
    use base::Rng;

    fn model(bands: u32, blocks: u32) -> BandModel {
        let shape = BandShape { bands, band_blocks: 256, unit_blocks: 16, shards: 1, blocks };
        let (bytes, band_bytes) = (u64::from(bands) * 256 * BLOCK, 256 * BLOCK);
        let kind = DriveKind::Conventional;
        let drive = Drive::new(DriveShape { kind, bytes, band_bytes, spare_percent: 10, unit_bytes: 64 << 10 });
        BandModel::new(shape, drive.unwrap())
    }

    #[test]
    fn every_block_has_one_place_and_bands_count_theirs() {
        let mut bands = model(64, 10_000);
        let mut rng = Rng::new(1);
        (0..10_000).for_each(|block| bands.destage(block, &|_| false).unwrap());
        (0..100_000).for_each(|_| bands.destage(rng.below(10_000) as u32, &|_| false).unwrap());
        for block in 0..10_000 {
            assert_eq!(bands.owner[bands.place[block as usize] as usize], block);
        }
        let valid: u32 = bands.bands.iter().map(|band| band.valid).sum();
        assert_eq!(valid, 10_000);
        assert!(bands.free.len() + 1 >= bands.low, "{} free", bands.free.len());
    }

    #[test]
    fn uniform_writes_cost_about_what_is_known_of_them() {
        // Of 256 bands 16 are free or open, so a fifth of the rest is spare: 1.7 when the oldest goes first.
        let blocks = 256 * 255 * 3 / 4;
        let mut bands = model(256, blocks);
        let mut rng = Rng::new(2);
        (0..blocks).for_each(|block| bands.destage(block, &|_| false).unwrap());
        let mut run = || {
            let before = bands.counts;
            (0..blocks * 2).for_each(|_| bands.destage(rng.below(u64::from(blocks)) as u32, &|_| false).unwrap());
            (bands.counts.collected - before.collected) as f64 / (bands.counts.user - before.user) as f64
        };
        run();
        let moved = run();
        assert!((1.2..2.0).contains(&moved), "{moved} blocks moved for each");
    }

    #[test]
    fn writes_in_order_and_trims_are_not_collected_for() {
        let mut bands = model(64, 12_000);
        for _ in 0..5 {
            (0..12_000).for_each(|block| bands.destage(block, &|_| false).unwrap());
        }
        assert_eq!(bands.counts.collected, 0);
        (0..12_000).for_each(|block| bands.trim(block));
        assert_eq!(bands.bands.iter().map(|band| band.valid).sum::<u32>(), 0);
    }
}
