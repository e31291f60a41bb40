//! Which slices leave the dirty journal: those of which a durable checkpoint has everything, and nothing is on its way.
//!
//! Writers ask the journal for their slice in the very step in which they append. So time is cut into *rounds*, and a slice
//! that was asked for in a round at the latest has no record but those that were appended until that round's end. When the
//! last of these has ended, the log says from which number on there is none of them (the round's *bound*); and a
//! checkpoint whose tail is not before the bound has all that they said. Others may be appending all the while.

use super::{Defect, Shard};
use crate::units::LogTail;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Most rounds that wait for a checkpoint; a further one is not ended, and so takes in more.
const ROUNDS_MAX: usize = 32;

struct Round {
    number: u64,
    /// Appends that had to wait until its end.
    appends: u64,
    /// Every record of the round has a smaller number.
    bound: Option<u64>,
}

/// Rounds that have ended and wait for a checkpoint, the oldest first.
#[derive(Default)]
pub(super) struct Rounds(RefCell<VecDeque<Round>>);

impl Shard {
    /// Ends a round, unless many wait already.
    pub(super) fn end_round(&self) {
        let mut rounds = self.rounds.0.borrow_mut();
        if rounds.len() < ROUNDS_MAX {
            let (number, appends) = (self.journal.end_round(), self.log.appends());
            rounds.push_back(Round { number, appends, bound: None });
        }
        drop(rounds);
        self.bind_rounds();
    }

    /// Looks which rounds have no append under way any more.
    pub(super) fn bind_rounds(&self) {
        let mut rounds = self.rounds.0.borrow_mut();
        let next = self.log.next().lsn;
        let ended = rounds.iter_mut().filter(|round| round.bound.is_none() && self.log.has_ended(round.appends));
        ended.for_each(|round| round.bound = Some(next));
    }

    /// A checkpoint with this tail is durable.
    pub(super) fn retire_slices(&self, tail: LogTail) {
        if self.shadow.as_ref().is_some_and(|shadow| shadow.is_copying()) {
            // One that becomes due again meanwhile would not be told from what is being copied.
            return;
        }
        let mut rounds = self.rounds.0.borrow_mut();
        let early = self.is_broken(Defect::RetireEarly);
        let is_done = |round: &Round| early || round.bound.is_some_and(|bound| bound <= tail.lsn);
        let mut last = None;
        while rounds.front().is_some_and(is_done) {
            last = rounds.pop_front();
        }
        if let Some(last) = last {
            self.journal.retire_unasked(last.number);
        }
    }
}
