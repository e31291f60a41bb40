//! Lines of the log that peers cause: one of a kind in each second, and with it how many others there were since the last one.

use std::cell::Cell;

/// Lines of one kind are at least so far apart.
const PAUSE_NS: u64 = 1_000_000_000;

/// Lines of one kind. See the module.
#[derive(Debug, Default)]
pub(super) struct Sparing {
    next_ns: Cell<u64>,
    left_out: Cell<u64>,
}

impl Sparing {
    /// Whether a line may be written now. One that may not is counted.
    pub(super) fn admit(&self, now_ns: u64) -> bool {
        let admitted = now_ns >= self.next_ns.get();
        match admitted {
            true => self.next_ns.set(now_ns.saturating_add(PAUSE_NS)),
            false => self.left_out.set(self.left_out.get() + 1),
        }
        admitted
    }

    /// Lines that were not written since this was last asked; `None` without any.
    pub(super) fn others(&self) -> Option<u64> {
        Some(self.left_out.take()).filter(|others| *others > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_how_many_were_left_out() {
        let lines = Sparing::default();
        assert!(lines.admit(5));
        assert_eq!(lines.others(), None);
        for now_ns in [5, 6, PAUSE_NS + 4] {
            assert!(!lines.admit(now_ns));
        }
        assert!(lines.admit(PAUSE_NS + 5));
        assert_eq!((lines.others(), lines.others()), (Some(3), None));
    }
}
