//! The zones in memory: what is written of each, and whose turn it is. Pure decisions, under one lock, by whom and when is the
//! caller's. Block numbers are relative to the zone's first block.

use super::ZoneBandsStatus;
use crate::io::Status;
use crate::zone::{Zone, ZoneState};
use crate::zone_wait::Wakes;
use std::task::{Poll, Waker};

/// What may be done with a zone, as far as that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Empty,
    /// Written in part: it takes one of the places for active zones.
    Active,
    Full,
    ReadOnly,
    Offline,
}

impl Phase {
    fn of(zone: &Zone) -> Phase {
        match zone.state {
            ZoneState::Empty => Phase::Empty,
            ZoneState::Full => Phase::Full,
            ZoneState::ReadOnly => Phase::ReadOnly,
            ZoneState::Offline => Phase::Offline,
            state if state.is_active() => Phase::Active,
            _ => Phase::Offline,
        }
    }
}

/// One zone.
#[derive(Clone, Copy, Debug)]
struct Cell {
    phase: Phase,
    /// Where the next write goes.
    pointer: u64,
    /// Something is under way on it: one write, or a change of state.
    busy: bool,
    /// A write has failed so, or the zone was given up: until it is reset it takes no more, since what is still to come was meant
    /// to follow.
    broken: Option<Status>,
}

/// Whether a write may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// Now; the zone is busy with it.
    Now,
    /// Not yet.
    Wait(Waits),
    /// Never, for this reason: that of the write which was to come before it.
    Refused(Status),
}

/// What a write waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// What is under way on the zone.
    Turn,
    /// Blocks before it that nobody has written yet.
    Gap,
    /// Another zone must be full, finished or reset first.
    Limit,
}

/// See the module.
pub(super) struct States {
    cells: Box<[Cell]>,
    /// Blocks of a zone.
    blocks: u64,
    /// Most zones in [`Phase::Active`]; 0 is no limit.
    active_max: u32,
    active: u32,
    /// Writes that were not where their zone goes on.
    misplaced: u64,
    waiting: Vec<Waker>,
    is_changed: bool,
    changes: u64,
}

impl States {
    /// `found` are all zones as reported, in order.
    pub(super) fn new(found: &[Zone], blocks: u64, active_max: u32) -> States {
        let cell = Cell { phase: Phase::Empty, pointer: 0, busy: false, broken: None };
        let cells = vec![cell; found.len()].into();
        let mut states = States {
            cells,
            blocks,
            active_max,
            active: 0,
            misplaced: 0,
            waiting: Vec::new(),
            is_changed: false,
            changes: 0,
        };
        found.iter().enumerate().for_each(|(zone, found)| states.learn(zone, found));
        states
    }

    pub(super) fn status(&self) -> ZoneBandsStatus {
        let mut status = ZoneBandsStatus { zones: self.cells.len() as u64, ..ZoneBandsStatus::default() };
        (status.misplaced_writes, status.open_max) = (self.misplaced, self.active_max);
        for cell in &self.cells {
            *match cell.phase {
                Phase::Empty => &mut status.empty,
                Phase::Active => &mut status.open,
                Phase::Full => &mut status.full,
                Phase::ReadOnly => &mut status.read_only,
                Phase::Offline => &mut status.offline,
            } += 1;
        }
        status
    }

    pub(super) fn phase(&self, zone: usize) -> Phase {
        self.cells[zone].phase
    }

    pub(super) fn pointer(&self, zone: usize) -> u64 {
        self.cells[zone].pointer
    }

    /// Blocks of a zone that are read from the drive; what follows is zeroes. `None`: nothing can be read.
    pub(super) fn readable(&self, zone: usize) -> Option<u64> {
        match self.cells[zone].phase {
            Phase::Offline => None,
            // The pointer means nothing there; the drive knows.
            Phase::Full | Phase::ReadOnly => Some(self.blocks),
            Phase::Empty | Phase::Active => Some(self.cells[zone].pointer),
        }
    }

    pub(super) fn begin_write(&mut self, zone: usize, at: u64) -> Begin {
        let cell = &mut self.cells[zone];
        if let Some(status) = cell.broken {
            return Begin::Refused(status);
        }
        if cell.busy {
            return Begin::Wait(Waits::Turn);
        }
        match cell.phase {
            Phase::ReadOnly | Phase::Offline => return Begin::Refused(Status::WriteError),
            Phase::Empty | Phase::Active if at > cell.pointer => return Begin::Wait(Waits::Gap),
            Phase::Empty | Phase::Active if at == cell.pointer => {}
            _ => {
                self.misplaced += 1;
                return Begin::Refused(Status::WriteError);
            }
        }
        if cell.phase == Phase::Empty && self.active_max > 0 && self.active >= self.active_max {
            return Begin::Wait(Waits::Limit);
        }
        cell.busy = true;
        self.set_phase(zone, Phase::Active);
        Begin::Now
    }

    /// Times that zones have changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Waits until zones have changed since then.
    pub(super) fn poll_change(&mut self, since: u64, waker: &Waker) -> Poll<()> {
        if self.changes != since {
            return Poll::Ready(());
        }
        self.waiting.push(waker.clone());
        Poll::Pending
    }

    /// The write that was under way has added so many blocks. Whether the zone has all of its rows.
    pub(super) fn wrote(&mut self, zone: usize, blocks: u64) -> bool {
        let cell = &mut self.cells[zone];
        cell.pointer += blocks;
        assert!(cell.busy && cell.pointer <= self.blocks, "one write at a time, inside the zone");
        cell.pointer == self.blocks
    }

    /// Takes the zone for a change of its state.
    pub(super) fn poll_take(&mut self, zone: usize, waker: &Waker) -> Poll<()> {
        if self.cells[zone].busy {
            self.waiting.push(waker.clone());
            return Poll::Pending;
        }
        self.cells[zone].busy = true;
        Poll::Ready(())
    }

    /// Lets the zone go. `broken`: it takes no more until it is reset.
    pub(super) fn release(&mut self, zone: usize, broken: Option<Status>) {
        let cell = &mut self.cells[zone];
        (cell.busy, cell.broken) = (false, cell.broken.or(broken));
        self.is_changed = true;
    }

    /// A write that the drive refused because of where it was, or of zones that are open.
    pub(super) fn count_misplaced(&mut self) {
        self.misplaced += 1;
    }

    pub(super) fn set_full(&mut self, zone: usize) {
        self.set_phase(zone, Phase::Full);
    }

    pub(super) fn set_empty(&mut self, zone: usize) {
        (self.cells[zone].pointer, self.cells[zone].broken) = (0, None);
        self.set_phase(zone, Phase::Empty);
    }

    /// A zone is what the drive says.
    pub(super) fn learn(&mut self, zone: usize, found: &Zone) {
        let written = found.write_pointer.saturating_sub(found.start).min(self.blocks);
        let phase = Phase::of(found);
        self.cells[zone].pointer = if matches!(phase, Phase::Empty | Phase::Active) { written } else { self.blocks };
        self.set_phase(zone, phase);
    }

    fn set_phase(&mut self, zone: usize, phase: Phase) {
        let before = std::mem::replace(&mut self.cells[zone].phase, phase);
        self.active += (phase == Phase::Active) as u32;
        self.active -= (before == Phase::Active) as u32;
        self.is_changed |= before != phase;
    }
}

impl Wakes for States {
    type Woken = Vec<Waker>;

    fn take_woken(&mut self) -> Self::Woken {
        if !std::mem::take(&mut self.is_changed) {
            return Vec::new();
        }
        self.changes += 1;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(states: &[(ZoneState, u64)]) -> Vec<Zone> {
        let zone = |(index, (state, written)): (usize, &(ZoneState, u64))| {
            let start = index as u64 * 100;
            Zone { start, capacity: 64, write_pointer: start + written, state: *state, has_extension: false }
        };
        states.iter().enumerate().map(zone).collect()
    }

    #[test]
    fn a_write_goes_when_its_predecessors_have_ended_and_never_when_one_has_failed() {
        let mut states = States::new(&zones(&[(ZoneState::Empty, 0)]), 64, 0);
        assert_eq!(states.begin_write(0, 16), Begin::Wait(Waits::Gap));
        assert_eq!(states.begin_write(0, 0), Begin::Now);
        assert_eq!(states.begin_write(0, 16), Begin::Wait(Waits::Turn));
        assert!(!states.wrote(0, 16));
        states.release(0, None);
        assert_eq!(states.begin_write(0, 16), Begin::Now);
        states.release(0, Some(Status::Gone));
        assert_eq!(states.begin_write(0, 32), Begin::Refused(Status::Gone), "the path failed, not the zone");
        assert_eq!(states.status().misplaced_writes, 0);
        assert_eq!(states.begin_write(0, 16), Begin::Refused(Status::Gone));
        states.set_empty(0);
        assert_eq!(states.begin_write(0, 0), Begin::Now);
        states.wrote(0, 64);
        states.set_full(0);
        states.release(0, None);
        assert_eq!(states.begin_write(0, 0), Begin::Refused(Status::WriteError));
        assert_eq!(states.status().misplaced_writes, 1);
    }

    #[test]
    fn a_zone_is_begun_when_another_one_is_given_up() {
        let found = zones(&[(ZoneState::Closed, 5), (ZoneState::Empty, 0), (ZoneState::Offline, 0)]);
        let mut states = States::new(&found, 64, 1);
        assert_eq!((states.pointer(0), states.readable(1), states.readable(2)), (5, Some(0), None));
        assert_eq!(states.begin_write(1, 0), Begin::Wait(Waits::Limit));
        states.set_full(0);
        assert_eq!(states.readable(0), Some(64));
        assert_eq!(states.begin_write(1, 0), Begin::Now);
        let status = states.status();
        assert_eq!((status.empty, status.open, status.full, status.offline), (0, 1, 1, 1));
    }
}
