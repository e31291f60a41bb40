//! When a band may be used again, and what a root says of it.

use super::{Band, Ledger, State};
use crate::bands::BandDefect;
use crate::format::band::{BandEntry, BandState};

/// A checkpoint that has begun; by default one before all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(u64);

impl Ledger {
    pub(in crate::bands) fn checkpoint_begun(&mut self) -> Token {
        self.begun += 1;
        Token(self.begun)
    }

    /// Drained bands that the checkpoint has freed are to be unmapped first, if that can be done.
    pub(in crate::bands) fn checkpointed(&mut self, token: Token, unmap: bool) {
        for number in 0..self.geometry.bands {
            let band = &mut self.bands[number as usize];
            let State::Pending(since) = band.state else { continue };
            if since >= token.0 {
                continue;
            }
            if band.failing {
                band.state = State::Retired;
            } else if unmap || self.zoned {
                band.state = State::Unmapping;
            } else {
                self.free_now(number);
            }
        }
    }

    pub(super) fn free_now(&mut self, number: u32) {
        let band = &mut self.bands[number as usize];
        (band.state, band.written) = (State::Free, 0);
        match self.defect {
            // Soon, so that it shows.
            Some(BandDefect::FreeAtOnce) => self.free.push_front(number),
            _ => self.free.push_back(number),
        }
    }

    /// Free, but over zones not before it has been reset.
    pub(super) fn give_back(&mut self, number: u32) {
        match self.zoned {
            true => self.bands[number as usize].state = State::Unmapping,
            false => self.free_now(number),
        }
    }

    /// The first band from that one on.
    pub(in crate::bands) fn next_to_unmap(&self, from: u32) -> Option<u32> {
        let rest = self.bands.iter().skip(from as usize);
        rest.zip(from..).find(|(band, _)| band.state == State::Unmapping).map(|(_, number)| number)
    }

    pub(in crate::bands) fn unmapped(&mut self, number: u32) {
        assert_eq!(self.bands[number as usize].state, State::Unmapping, "nobody else takes a band that is unmapped");
        self.successes += 1;
        // A zone that has been reset is empty.
        self.unfinished.remove(&number);
        self.free_now(number);
    }

    pub(in crate::bands) fn table(&self, token: Token) -> Vec<BandEntry> {
        let entry = |band: &Band| {
            let state = match band.state {
                State::Pending(since) if since < token.0 && band.failing => BandState::Retired,
                State::Pending(since) if since < token.0 => BandState::Free,
                State::Free | State::Unmapping => BandState::Free,
                State::Open => BandState::Open,
                State::Closed | State::Pending(_) if band.failing => BandState::Failing,
                State::Closed | State::Pending(_) => BandState::Closed,
                State::Retired => BandState::Retired,
            };
            let (written, valid) = if state == BandState::Free { (0, 0) } else { (band.written, band.valid) };
            let valid = valid.min(written);
            BandEntry { state, stream: band.stream, written, valid, generation: band.generation, stamp: band.stamp }
        };
        self.bands.iter().map(entry).collect()
    }
}
