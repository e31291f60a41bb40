//! Over zones: what the zone of a band is, and what has to become of it.

use super::{Band, Ledger, State};
use crate::bands::medium::BandZone;

impl Ledger {
    /// Whether the zone of a band matters as it is: it is not reset anyway. Of one out of use it may still be open.
    pub(in crate::bands) fn keeps_zone(&self, number: u32) -> bool {
        !matches!(self.bands[number as usize].state, State::Free | State::Unmapping)
    }

    /// After an opening: a band is gone on with where its zone is. What the table has beyond that was under way in a crash, and
    /// nothing leads there.
    pub(in crate::bands) fn adopt_zone(&mut self, number: u32, zone: BandZone) {
        let band = &mut self.bands[number as usize];
        if band.state == State::Retired {
            return self.note_unfinished(number, !matches!(zone, BandZone::Done | BandZone::Written(0)));
        }
        let is_next = zone == BandZone::Written(band.written);
        if let BandZone::Written(written) | BandZone::Torn(written) = zone {
            band.written = band.written.min(written);
            self.valid_blocks -= band.valid.saturating_sub(band.written) as u64;
            band.valid = band.valid.min(band.written);
        }
        // An empty one takes no place of those that may be open.
        let may_be_open = !matches!(zone, BandZone::Done | BandZone::Written(0));
        let goes_on = is_next && band.state == State::Open;
        self.note_unfinished(number, may_be_open && !goes_on);
        if self.bands[number as usize].state == State::Open && !is_next {
            self.open.iter_mut().filter(|open| **open == Some(number)).for_each(|open| *open = None);
            self.bands[number as usize].state = State::Closed;
        }
        self.settle(number);
    }

    /// Whether any band is to be finished.
    pub(in crate::bands) fn has_to_finish(&self) -> bool {
        self.to_finish().next().is_some()
    }

    /// Bands whose zones are given up, and not under way. Those that are reset soon are finished by that.
    pub(in crate::bands) fn to_finish(&self) -> impl Iterator<Item = u32> {
        let is_idle = |state: State| matches!(state, State::Closed | State::Pending(_) | State::Retired);
        let may_be = move |number: &u32| {
            let band = &self.bands[*number as usize];
            band.writing == 0 && is_idle(band.state)
        };
        self.unfinished.iter().copied().filter(may_be)
    }

    pub(in crate::bands) fn finished(&mut self, number: u32) {
        self.unfinished.remove(&number);
    }

    /// Notes whether the zone of a band takes no more and is not full.
    pub(super) fn note_unfinished(&mut self, number: u32, unfinished: bool) {
        match unfinished {
            true => self.unfinished.insert(number),
            false => self.unfinished.remove(&number),
        };
    }

    /// A zone could not be reset. True: it is out of use now, having refused that so often while others were reset or written.
    pub(in crate::bands) fn reset_failed(&mut self, number: u32, is_medium: bool, most: u32) -> bool {
        let successes = self.successes;
        let band = &mut self.bands[number as usize];
        assert_eq!(band.state, State::Unmapping, "nobody else takes a band that is unmapped");
        let is_alone = std::mem::replace(&mut band.reset_at, successes) != successes;
        band.resets += (is_medium && is_alone) as u32;
        if band.resets < most {
            return false;
        }
        // It may take one of the places for zones that are open.
        (band.state, band.failing) = (State::Retired, true);
        self.note_unfinished(number, true);
        self.failed += 1;
        true
    }

    /// What was written to a band may be lost, although it can be read: it takes no more, and is drained first.
    pub(in crate::bands) fn distrust(&mut self, number: u32) {
        if !self.bands[number as usize].is_in_use() {
            return;
        }
        self.bands[number as usize].suspect = true;
        if self.bands[number as usize].state == State::Open {
            self.open.iter_mut().filter(|open| **open == Some(number)).for_each(|open| *open = None);
            self.close(number);
        }
    }

    /// Blocks that are still needed where they may be lost.
    pub(in crate::bands) fn suspect_blocks(&self) -> u64 {
        let suspects = self.bands.iter().filter(|band| band.suspect && band.is_in_use() && !band.stuck);
        suspects.map(|band| band.valid as u64).sum()
    }

    /// Whether anything is still needed where it may be lost.
    pub(in crate::bands) fn has_suspects(&self) -> bool {
        self.bands.iter().any(|band| band.suspect && band.is_in_use() && !band.stuck)
    }

    /// As [`has_suspects`](Self::has_suspects), or whether the root of a checkpoint that has begun may lead there, since its pages
    /// were written before all that was needed had moved.
    pub(in crate::bands) fn is_led_to_suspects(&self) -> bool {
        let drained = |band: &Band| band.suspect && matches!(band.state, State::Pending(since) if since >= self.begun);
        self.has_suspects() || self.bands.iter().any(drained)
    }

    /// What is still where it may be lost stays there.
    pub(in crate::bands) fn trust_again(&mut self) {
        self.bands.iter_mut().for_each(|band| band.suspect = false);
    }
}
