//! What goes wrong again and again is told when it begins, when it becomes something else, and then seldom: whoever reads a log
//! needs the other lines, too.

use bdev::Status;
use std::cell::Cell;

/// Between two lines that say the same.
const EVERY_NS: u64 = 60_000_000_000;

/// See the module.
#[derive(Default)]
pub(super) struct Seldom(Cell<Option<(Status, u64)>>);

impl Seldom {
    /// Whether this failure is to be told now.
    pub(super) fn is_due(&self, status: Status, now_ns: u64) -> bool {
        let is_new = |(told, at_ns)| told != status || now_ns.saturating_sub(at_ns) >= EVERY_NS;
        let is_due = self.0.get().is_none_or(is_new);
        if is_due {
            self.0.set(Some((status, now_ns)));
        }
        is_due
    }

    /// It goes on: whether a failure had been told.
    pub(super) fn ends(&self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_when_it_begins_changes_or_has_lasted_long() {
        let seldom = Seldom::default();
        let told = [(0, Status::NoSpace), (1, Status::NoSpace), (2, Status::WriteError), (3, Status::WriteError)];
        assert_eq!(told.map(|(at, status)| seldom.is_due(status, at)), [true, false, true, false]);
        assert!(seldom.is_due(Status::WriteError, 2 + EVERY_NS));
        assert!(seldom.ends() && !seldom.ends());
        assert!(seldom.is_due(Status::WriteError, 2 + EVERY_NS));
    }
}
