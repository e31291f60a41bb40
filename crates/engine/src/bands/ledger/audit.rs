//! Whether what is known of bands is what map pages say.

use super::{Ledger, State};
use crate::bands::BandAt;

impl Ledger {
    /// What contradicts itself, in words. `named`: every block of a map page that has a place, with its place, in the order of these.
    pub(in crate::bands) fn audit(&self, named: &[(BandAt, u32)]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut counts = vec![0; self.bands.len()];
        for (at, block) in named {
            let number = self.geometry.band_of(*at) as usize;
            if let Some(count) = counts.get_mut(number).filter(|_| self.is_place(*at)) {
                *count += 1;
                continue;
            }
            let band = self.bands.get(number).map(|band| (band.state, band.written));
            problems.push(format!("I4: block {block} is at place {} of band {number}, which is {band:?}", at.0));
        }
        for (number, (band, count)) in self.bands.iter().zip(counts).enumerate() {
            // After an opening counts are hints, and those of a band in which something was not found stay that.
            let is_exact = self.is_exact && !band.doubtful;
            if band.is_in_use() && is_exact && band.valid != count {
                problems.push(format!("I3: {} blocks of band {number} are counted, and there are {count}", band.valid));
            }
            if !band.is_in_use() && band.valid > 0 {
                let (valid, state) = (band.valid, band.state);
                problems.push(format!("I3: {valid} blocks are counted of band {number}, which is {state:?}"));
            }
        }
        let sum: u64 = self.bands.iter().map(|band| band.valid as u64).sum();
        if sum != self.valid_blocks {
            problems
                .push(format!("I3: {} blocks of bands are counted in all, and {sum} one by one", self.valid_blocks));
        }
        let mut free: Vec<u32> = self.free.iter().copied().collect();
        free.sort_unstable();
        let are_free = (0..self.geometry.bands).filter(|band| self.bands[*band as usize].state == State::Free);
        if !are_free.eq(free.iter().copied()) {
            problems.push(format!("I3: bands {free:?} are said to be free, and are not these"));
        }
        problems
    }
}
