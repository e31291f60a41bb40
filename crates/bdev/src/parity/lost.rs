//! Rows that a rebuild could not make whole: in place of a block that was lost there is noise, and what is computed from it
//! means nothing. It must not be written over a block that may be read again one day.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Rows kept. With more, all rows count as such.
const ROWS_MAX: usize = 65_536;

/// See the module. Since the device was opened.
#[derive(Default)]
pub(super) struct LostRows {
    rows: Mutex<BTreeSet<u64>>,
    /// Of these; `u64::MAX` when there were too many.
    count: AtomicU64,
}

impl LostRows {
    /// A block of a row has been lost. The caller holds the row.
    pub(super) fn insert(&self, row: u64) {
        self.change(|rows| {
            rows.insert(row);
        });
    }

    /// Rows have been written, whole. The caller holds them.
    pub(super) fn written(&self, written: &Range<u64>) {
        if self.count.load(Acquire) > 0 {
            self.change(|rows| rows.retain(|row| !written.contains(row)));
        }
    }

    pub(super) fn contains(&self, row: u64) -> bool {
        match self.count.load(Acquire) {
            0 => false,
            u64::MAX => true,
            _ => self.rows.lock().expect("nothing panics while holding the rows").contains(&row),
        }
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let mut rows = self.rows.lock().expect("nothing panics while holding the rows");
        if self.count.load(Acquire) == u64::MAX {
            return;
        }
        change(&mut rows);
        let count = if rows.len() > ROWS_MAX { u64::MAX } else { rows.len() as u64 };
        if count == u64::MAX {
            rows.clear();
        }
        self.count.store(count, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_kept_until_they_are_written_and_too_many_are_all() {
        let lost = LostRows::default();
        [5, 7, 9].into_iter().for_each(|row| lost.insert(row));
        lost.written(&(6..8));
        assert_eq!([5, 6, 7, 9].map(|row| lost.contains(row)), [true, false, false, true]);
        (0..=ROWS_MAX as u64).for_each(|row| lost.insert(row * 3));
        assert!(lost.contains(1) && lost.contains(u64::MAX));
        lost.written(&(0..10));
        assert!(lost.contains(5));
    }
}
