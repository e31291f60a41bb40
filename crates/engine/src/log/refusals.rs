//! A device that refuses writes. The records of a write that failed go to the next segment, at once the first time, then after
//! longer and longer pauses. When several fail in a row it is not the place: then everything is refused for a while, so that
//! writers hear of it soon, and one write now and then finds out whether the device takes any again.

use bdev::Status;

/// Failures in a row after which everything is refused: with the pauses, after half a second.
const FAILURES_MAX: u32 = 8;
/// The pause after the second failure in a row; twice as long after each further one.
const PAUSE_NS: u64 = 4_000_000;
/// From one attempt to the next, of a device that refuses everything.
const ATTEMPT_NS: u64 = 1_000_000_000;

pub(super) struct Refusals {
    in_a_row: u32,
    /// How the last one ended.
    last: Status,
    /// Everything is refused until then.
    until_ns: u64,
}

impl Refusals {
    pub(super) fn new() -> Refusals {
        Refusals { in_a_row: 0, last: Status::NoSpace, until_ns: 0 }
    }

    /// A write failed. How long to wait with what is to be written next, ns.
    pub(super) fn failed(&mut self, status: Status, now_ns: u64) -> u64 {
        (self.in_a_row, self.last) = (self.in_a_row.saturating_add(1), status);
        if self.is_refused() {
            self.until_ns = now_ns + ATTEMPT_NS;
            return 0;
        }
        if self.in_a_row == 1 { 0 } else { PAUSE_NS << (self.in_a_row - 2) }
    }

    /// A write succeeded; whether it ends a time in which everything was refused.
    #[inline]
    pub(super) fn worked(&mut self) -> bool {
        let was_refused = self.is_refused();
        self.in_a_row = 0;
        was_refused
    }

    /// Whether it is not even tried now.
    pub(super) fn holds(&self, now_ns: u64) -> bool {
        self.is_refused() && now_ns < self.until_ns
    }

    /// Whether everything is refused, apart from an attempt now and then.
    pub(super) fn is_refused(&self) -> bool {
        self.in_a_row >= FAILURES_MAX
    }

    /// Whether this is the failure with which that began.
    pub(super) fn has_just_begun(&self) -> bool {
        self.in_a_row == FAILURES_MAX
    }

    /// What writers are told when there is no segment for them.
    pub(super) fn status(&self) -> Status {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_some_failures_in_a_row_one_write_a_second_is_tried() {
        let mut refusals = Refusals::new();
        let pauses: Vec<u64> = (0..8).map(|_| refusals.failed(Status::WriteError, 5) / 1_000_000).collect();
        assert_eq!(pauses, [0, 4, 8, 16, 32, 64, 128, 0]);
        assert_eq!((refusals.has_just_begun(), refusals.status()), (true, Status::WriteError));
        assert!(refusals.holds(5 + ATTEMPT_NS - 1) && !refusals.holds(5 + ATTEMPT_NS));
        assert_eq!(refusals.failed(Status::NoSpace, ATTEMPT_NS), 0);
        assert!(!refusals.has_just_begun() && refusals.holds(2 * ATTEMPT_NS - 1));
        assert!(refusals.worked() && !refusals.holds(0) && !refusals.worked());
        assert_eq!(refusals.failed(Status::WriteError, 9), 0);
        assert!(!refusals.is_refused());
    }
}
