//! Which band is drained next, and where what is still valid in it goes.
//!
//! Cost-benefit: a band of which the share `u` is valid is worth `(1 - u) * age / (1 + u)`: what is gained, for how long it is
//! likely to last, for reading what is valid and writing it again. Ages are in blocks that user streams have written since.

use super::{Ledger, State};
use crate::bands::{STREAMS, Stream};
use crate::format::stripe::STRIPE_DATA_MAX;

/// What is collected before so many usual lifetimes have passed is young.
const YOUNG_LIFETIMES: u64 = 4;
/// Keeps the worths of bands apart when they are whole numbers.
const WORTH_SCALE: u128 = 1024;

impl Ledger {
    /// The band to be drained next; it is walked from now on.
    pub(in crate::bands) fn victim(&mut self) -> Option<u32> {
        let critical = self.free.len() <= STREAMS;
        let best = (0..self.geometry.bands).filter_map(|band| Some((self.worth(band, critical)?, band)));
        let (_, band) = best.max_by_key(|(worth, band)| (*worth, std::cmp::Reverse(*band)))?;
        self.bands[band as usize].walked = true;
        if self.bands[band as usize].stream == Stream::User as u8 {
            let age = self.age(band);
            self.lifetime = if self.lifetime == 0 { age } else { self.lifetime - self.lifetime / 16 + age / 16 };
        }
        Some(band)
    }

    fn age(&self, band: u32) -> u64 {
        self.clock.saturating_sub(self.bands[band as usize].stamp).max(1)
    }

    /// What draining a band is worth; `None` when it cannot be drained or nothing is gained by it.
    fn worth(&self, number: u32, critical: bool) -> Option<u128> {
        let band = &self.bands[number as usize];
        // What is held may be about to enter a map, and nobody would find it yet.
        let is_awaited = band.held + band.under_way > 0;
        if band.state != State::Closed || band.walked || band.stuck || is_awaited {
            return None;
        }
        if band.failing {
            return Some(u128::MAX);
        }
        let (whole, valid) = (self.geometry.band_blocks, band.valid.min(self.geometry.band_blocks));
        // What it takes elsewhere, with headers, and padding at the end.
        let moved = valid + valid.div_ceil(STRIPE_DATA_MAX as u32) + self.geometry.unit_blocks;
        if moved >= whole {
            return None;
        }
        let gain = (whole - valid) as u128;
        let weighed = || (gain * self.age(number) as u128 * WORTH_SCALE) / (whole + valid) as u128;
        Some(if critical { gain } else { weighed() })
    }

    /// The stream for what is still valid in a band that is drained, and its age.
    pub(in crate::bands) fn heir(&self, number: u32) -> (Stream, u64) {
        let band = &self.bands[number as usize];
        let young =
            band.stream == Stream::User as u8 && self.age(number) < self.lifetime.saturating_mul(YOUNG_LIFETIMES);
        (if young { Stream::Young } else { Stream::Old }, band.stamp)
    }

    pub(in crate::bands) fn walk_of(&self, number: u32) -> (u64, u32) {
        let band = &self.bands[number as usize];
        (band.generation, band.written)
    }

    /// Whoever drains a band has stopped.
    pub(in crate::bands) fn left_alone(&mut self, number: u32) {
        self.bands[number as usize].walked = false;
        self.settle(number);
    }

    /// Nothing in the band is needed any more, says who drains it; `whole`: has seen every stripe. Whether that can be.
    pub(in crate::bands) fn drained(&mut self, number: u32, whole: bool) -> bool {
        let band = &mut self.bands[number as usize];
        assert!(band.walked && band.state == State::Closed, "who drains a band keeps it");
        if whole {
            self.valid_blocks -= band.valid as u64;
            (band.valid, band.doubtful, band.is_empty) = (0, false, true);
        }
        let is_empty = self.is_trusted(number) && self.bands[number as usize].valid == 0;
        self.bands[number as usize].stuck = !is_empty;
        is_empty
    }
}
