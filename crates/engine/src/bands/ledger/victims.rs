//! Which band is drained next: by the rules of [`policy`].

use super::{Ledger, State};
use crate::bands::policy;

impl Ledger {
    /// The band to be drained next; it is walked from now on.
    pub(in crate::bands) fn victim(&mut self) -> Option<u32> {
        let critical = policy::is_critical(self.free.len());
        let best = (0..self.geometry.bands).filter_map(|band| Some((self.worth(band, critical)?, band)));
        let (_, band) = best.max_by_key(|(worth, band)| (*worth, std::cmp::Reverse(*band)))?;
        self.bands[band as usize].walked = true;
        Some(band)
    }

    /// What draining a band is worth; `None` when it cannot be drained or nothing is gained by it.
    fn worth(&self, number: u32, critical: bool) -> Option<u128> {
        let band = &self.bands[number as usize];
        // What is held may be about to enter a map, and nobody would find it yet.
        let is_awaited = band.held + band.under_way > 0;
        if band.state != State::Closed || band.walked || band.stuck || is_awaited {
            return None;
        }
        if band.failing || band.suspect {
            return Some(u128::MAX);
        }
        let (whole, unit) = (self.geometry.band_blocks, self.geometry.unit_blocks);
        let idle = self.clock.saturating_sub(band.closed).max(1);
        policy::worth(whole, band.valid, unit, idle, critical)
    }

    /// When the blocks of a band came from the log, on average.
    pub(in crate::bands) fn stamp(&self, number: u32) -> u64 {
        self.bands[number as usize].stamp
    }

    pub(in crate::bands) fn walk_of(&self, number: u32) -> (u64, u32) {
        let band = &self.bands[number as usize];
        (band.generation, band.written)
    }

    /// The same of a band that is in use.
    pub(in crate::bands) fn in_use(&self, number: u32) -> Option<(u64, u32)> {
        self.bands[number as usize].is_in_use().then(|| self.walk_of(number))
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
