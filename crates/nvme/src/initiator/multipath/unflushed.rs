//! Whether a path has been written to since it was last flushed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// See the module. Atomics, since lanes of all reactors note their writes here: a load each, and a store after a flush alone.
#[derive(Debug, Default)]
pub(in crate::initiator) struct Unflushed {
    /// Something was written and acknowledged after the last flush began.
    is_written: AtomicBool,
    /// Flushes under way: what they are for is not durable yet.
    flushes: AtomicU32,
}

impl Unflushed {
    /// A write has been acknowledged.
    #[inline]
    pub(in crate::initiator) fn note_written(&self) {
        // Seen too late that a flush has begun, this is still before its command was sent, and the write is older.
        if !self.is_written.load(Ordering::Relaxed) {
            self.is_written.store(true, Ordering::Release);
        }
    }

    /// Whether a flush that begins now has to go this way.
    pub(in crate::initiator) fn is_due(&self) -> bool {
        self.is_written.load(Ordering::Acquire) || self.flushes.load(Ordering::Acquire) > 0
    }

    /// A flush is about to be sent this way.
    pub(in crate::initiator) fn begin(&self) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.is_written.swap(false, Ordering::SeqCst);
    }

    /// It has ended.
    pub(in crate::initiator) fn end(&self, is_done: bool) {
        if !is_done {
            self.is_written.store(true, Ordering::SeqCst);
        }
        self.flushes.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_due_until_one_that_began_after_the_write_is_done() {
        let path = Unflushed::default();
        assert!(!path.is_due());
        path.note_written();
        path.begin();
        assert!(path.is_due(), "one under way may fail");
        path.end(false);
        assert!(path.is_due());
        path.begin();
        path.note_written();
        path.end(true);
        assert!(path.is_due(), "written while it was under way");
        path.begin();
        path.end(true);
        assert!(!path.is_due());
    }
}
