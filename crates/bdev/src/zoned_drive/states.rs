//! The zones of a drive as far as this side must know them: where each goes on, and what of it was acknowledged. Pure decisions,
//! under one lock. All block numbers here are relative to the zone's first block.
//!
//! Writes of a zone take their places when they are submitted, go to the drive one after the other, and end in order. When one
//! fails those behind it fail too, and the zone is *in doubt*: how far it is written only the drive knows, and is asked before
//! anything else is written there.

use crate::io::Status;
use crate::zone::{Zone, ZoneState};
use crate::zone_wait::{Holds, Waiters, Wakes};
use smallvec::SmallVec;
use std::task::{Poll, Waker};

/// Which writes a zone takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Writable,
    Full,
    ReadOnly,
    Offline,
}

struct Cell {
    phase: Phase,
    /// Blocks that can be written.
    capacity: u64,
    /// Where the next write goes; writes before it may be under way.
    pointer: u64,
    /// Written and acknowledged.
    done: u64,
    /// Writes under way.
    in_flight: u32,
    /// A write under way has failed, as which those behind it fail too.
    failed: Option<Status>,
    in_doubt: bool,
    /// Somebody changes or asks for its state; writes wait.
    held: bool,
}

/// Whether a write has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// At this block.
    At(u64),
    /// Not yet: wait until the zone moves.
    Wait,
    /// The drive must be asked for the zone first.
    Ask,
}

/// See the module.
pub(super) struct States {
    cells: Box<[Cell]>,
    waiters: Waiters,
}

impl States {
    pub(super) fn new(zones: &[Zone]) -> States {
        let cell = |zone: &Zone| {
            let mut cell = Cell {
                phase: Phase::Writable,
                capacity: 0,
                pointer: 0,
                done: 0,
                in_flight: 0,
                failed: None,
                in_doubt: false,
                held: false,
            };
            cell.learn(zone);
            cell
        };
        States { cells: zones.iter().map(cell).collect(), waiters: Waiters::default() }
    }

    /// Blocks of a zone, from its first on, that are read from the drive; the others are zeroes.
    pub(super) fn readable(&self, zone: usize) -> Result<u64, Status> {
        match self.cells[zone].phase {
            Phase::Offline => Err(Status::ZoneOffline),
            _ => Ok(self.cells[zone].done),
        }
    }

    // --- writes -----------------------------------------------------------------------------------------------------

    /// Begins a write of `blocks` at block `at`, or at the pointer.
    pub(super) fn begin_write(&mut self, zone: usize, at: Option<u64>, blocks: u64) -> Result<Begin, Status> {
        let cell = &mut self.cells[zone];
        if cell.held || cell.failed.is_some() {
            return Ok(Begin::Wait);
        }
        if cell.in_doubt {
            return Ok(Begin::Ask);
        }
        match cell.phase {
            Phase::Full => return Err(Status::ZoneFull),
            Phase::ReadOnly => return Err(Status::ZoneReadOnly),
            Phase::Offline => return Err(Status::ZoneOffline),
            Phase::Writable if cell.pointer == cell.capacity => return Err(Status::ZoneFull),
            Phase::Writable => {}
        }
        if at.is_some_and(|at| at != cell.pointer) {
            return Err(Status::ZoneInvalidWrite);
        }
        if blocks > cell.capacity - cell.pointer {
            return Err(Status::ZoneBoundary);
        }
        let start = cell.pointer;
        cell.pointer += blocks;
        cell.in_flight += 1;
        Ok(Begin::At(start))
    }

    /// Waits until all writes before this one have ended; an error when one of them has failed.
    pub(super) fn poll_turn(&mut self, zone: usize, start: u64, waker: &Waker) -> Poll<Result<(), Status>> {
        let cell = &self.cells[zone];
        match cell.failed {
            Some(status) => return Poll::Ready(Err(status)),
            None if cell.done == start => return Poll::Ready(Ok(())),
            None => {}
        }
        self.waiters.wait(zone, waker);
        Poll::Pending
    }

    /// A write has ended, and its last block is before `end`, if all went well.
    pub(super) fn end_write(&mut self, zone: usize, end: u64, status: Status) {
        let cell = &mut self.cells[zone];
        cell.in_flight -= 1;
        match status {
            Status::Ok => {
                cell.done = end;
                if end == cell.capacity {
                    cell.phase = Phase::Full;
                }
            }
            // Nothing was written then. Other errors are of this write, and those behind it only come to nothing.
            Status::ZoneTooManyOpen | Status::ZoneTooManyActive => cell.fail(status),
            _ => cell.fail(Status::WriteError),
        }
        if cell.in_flight == 0 {
            (cell.failed, cell.pointer) = (None, cell.done);
        }
        self.waiters.wake(zone);
    }

    // --- changes of state -------------------------------------------------------------------------------------------

    /// Waits until a write of a zone may begin.
    pub(super) fn poll_writable(&mut self, zone: usize, waker: &Waker) -> Poll<()> {
        if !self.cells[zone].held && self.cells[zone].failed.is_none() {
            return Poll::Ready(());
        }
        self.waiters.wait(zone, waker);
        Poll::Pending
    }

    pub(super) fn is_in_doubt(&self, zone: usize) -> bool {
        self.cells[zone].in_doubt
    }

    /// What the drive did with a zone is not known.
    pub(super) fn doubt(&mut self, zone: usize) {
        self.cells[zone].in_doubt = true;
    }

    /// What the drive says of a zone that is held and quiet. What was finished in this life stays readable as far as it was
    /// written: the pointer of a full zone means nothing.
    pub(super) fn learn(&mut self, zone: usize, found: &Zone) {
        self.cells[zone].learn(found);
    }

    pub(super) fn set_empty(&mut self, zone: usize) {
        let cell = &mut self.cells[zone];
        (cell.phase, cell.pointer, cell.done, cell.in_doubt) = (Phase::Writable, 0, 0, false);
    }

    pub(super) fn set_full(&mut self, zone: usize) {
        self.cells[zone].phase = Phase::Full;
    }
}

impl Wakes for States {
    type Woken = SmallVec<[Waker; 4]>;

    fn take_woken(&mut self) -> Self::Woken {
        self.waiters.take_woken()
    }
}

impl Holds for States {
    fn poll_hold(&mut self, zone: usize, waker: &Waker) -> Poll<()> {
        let cell = &mut self.cells[zone];
        if cell.held || cell.failed.is_some() {
            self.waiters.wait(zone, waker);
            return Poll::Pending;
        }
        cell.held = true;
        Poll::Ready(())
    }

    fn poll_quiet(&mut self, zone: usize, waker: &Waker) -> Poll<()> {
        if self.cells[zone].in_flight == 0 {
            return Poll::Ready(());
        }
        self.waiters.wait(zone, waker);
        Poll::Pending
    }

    fn release(&mut self, zone: usize) {
        self.cells[zone].held = false;
        self.waiters.wake(zone);
    }
}

impl Cell {
    fn fail(&mut self, status: Status) {
        (self.failed, self.in_doubt) = (self.failed.or(Some(status)), true);
    }

    fn learn(&mut self, zone: &Zone) {
        let known = std::mem::replace(&mut self.in_doubt, false) || self.phase != Phase::Full;
        self.capacity = zone.capacity;
        self.phase = match zone.state {
            ZoneState::ReadOnly => Phase::ReadOnly,
            ZoneState::Offline => Phase::Offline,
            ZoneState::Full => Phase::Full,
            _ => Phase::Writable,
        };
        let written = match self.phase {
            Phase::Writable => zone.write_pointer.saturating_sub(zone.start).min(zone.capacity),
            // Everything there is to read.
            Phase::Full | Phase::ReadOnly if known => zone.capacity,
            _ => self.done,
        };
        (self.pointer, self.done) = (written, written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(state: ZoneState, written: u64) -> Zone {
        Zone { start: 100, capacity: 10, write_pointer: 100 + written, state, has_extension: false }
    }

    fn states() -> States {
        States::new(&[zone(ZoneState::Closed, 3)])
    }

    #[test]
    fn writes_take_their_places_at_once_and_end_in_order() {
        let mut states = states();
        assert_eq!(states.begin_write(0, Some(4), 1), Err(Status::ZoneInvalidWrite));
        assert_eq!(states.begin_write(0, Some(3), 8), Err(Status::ZoneBoundary));
        assert_eq!(states.begin_write(0, Some(3), 2), Ok(Begin::At(3)));
        assert_eq!(states.begin_write(0, None, 5), Ok(Begin::At(5)));
        assert_eq!(states.begin_write(0, None, 1), Err(Status::ZoneFull));
        let waker = Waker::noop();
        assert_eq!(states.poll_turn(0, 5, waker), Poll::Pending);
        assert_eq!(states.poll_turn(0, 3, waker), Poll::Ready(Ok(())));
        states.end_write(0, 5, Status::Ok);
        assert_eq!((states.readable(0), states.poll_turn(0, 5, waker)), (Ok(5), Poll::Ready(Ok(()))));
        states.end_write(0, 10, Status::Ok);
        assert_eq!(states.begin_write(0, Some(10), 1), Err(Status::ZoneFull));
    }

    #[test]
    fn behind_a_failed_write_all_fail_and_then_the_drive_is_asked() {
        let mut states = states();
        for _ in 0..3 {
            assert!(matches!(states.begin_write(0, None, 1), Ok(Begin::At(_))));
        }
        states.end_write(0, 4, Status::Gone);
        let waker = Waker::noop();
        assert_eq!(states.poll_turn(0, 4, waker), Poll::Ready(Err(Status::WriteError)));
        assert_eq!(states.begin_write(0, None, 1), Ok(Begin::Wait));
        assert_eq!(states.poll_hold(0, waker), Poll::Pending);
        states.end_write(0, 5, Status::WriteError);
        states.end_write(0, 6, Status::WriteError);
        assert_eq!(states.begin_write(0, None, 1), Ok(Begin::Ask));
        assert_eq!(states.poll_hold(0, waker), Poll::Ready(()));
        states.learn(0, &zone(ZoneState::ImplicitlyOpen, 4));
        states.release(0);
        assert_eq!(states.begin_write(0, None, 1), Ok(Begin::At(4)));
    }

    #[test]
    fn what_was_written_of_a_finished_zone_is_remembered() {
        let mut states = states();
        states.set_full(0);
        states.learn(0, &zone(ZoneState::Full, 10));
        assert_eq!(states.readable(0), Ok(3));
        states.set_empty(0);
        assert_eq!((states.readable(0), states.begin_write(0, Some(0), 1)), (Ok(0), Ok(Begin::At(0))));
        assert_eq!(States::new(&[zone(ZoneState::Full, 0)]).readable(0), Ok(10));
        assert_eq!(States::new(&[zone(ZoneState::Offline, 0)]).readable(0), Err(Status::ZoneOffline));
    }
}
