//! A shard without a free extent: writes to new places fail, which the log of the program hears once, and once more when there
//! is room again. Room enough: not with every extent that is trimmed and taken anew.

use super::Shard;
use std::cell::Cell;

/// There is room again when one extent in so many is free.
const ROOM_SHARE: u32 = 64;

/// It is said once in so long: hosts may trim and write again as often as they like.
const SAID_EVERY_NS: u64 = 60_000_000_000;

/// Whether writes fail for want of an extent, and whether it has been said.
#[derive(Default)]
pub(super) struct Fullness {
    /// A write has failed for want of an extent, and there has not been room enough since.
    is_full: Cell<bool>,
    /// It has been said, and that there is room again has not.
    is_said: Cell<bool>,
    /// When it was said last.
    said_ns: Cell<Option<u64>>,
}

impl Fullness {
    /// Whether writes fail for want of an extent.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.get()
    }

    /// A write has failed: whether that is to be said. Where it was said a moment ago, a later write's failure says it.
    fn filled(&self, now_ns: u64) -> bool {
        self.is_full.set(true);
        let is_recent = self.said_ns.get().is_some_and(|said_ns| now_ns.saturating_sub(said_ns) < SAID_EVERY_NS);
        if self.is_said.get() || is_recent {
            return false;
        }
        self.is_said.set(true);
        self.said_ns.set(Some(now_ns));
        true
    }

    /// There is room enough again: whether that is to be said.
    fn emptied(&self) -> bool {
        self.is_full.set(false);
        self.is_said.replace(false)
    }
}

impl Shard {
    /// A write has found no free extent.
    #[cold]
    pub(super) fn note_full(&self) {
        if self.full.filled(self.reactor.now_ns()) {
            tracing::error!(
                "pool '{}' is full: shard {} has no free extent, and writes to places that were not written before fail with \
                 'no space'; delete or trim volumes, delete snapshots, or let the capacity device grow and call 'remuda pool \
                 grow {}'",
                self.pool_name,
                self.number,
                self.pool_name,
            );
        }
    }

    /// Extents may have become free.
    #[inline]
    pub(super) fn note_room(&self) {
        if self.full.is_full.get() {
            self.look_for_room();
        }
    }

    #[cold]
    fn look_for_room(&self) {
        let free = self.index.stats().free_extents;
        if free < (self.meta.extents() / ROOM_SHARE).max(1) {
            return;
        }
        if self.full.emptied() {
            tracing::info!(
                "pool '{}' has room again: {free} extents of shard {} are free, and writes succeed",
                self.pool_name,
                self.number
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_last_is_how_it_is() {
        let full = Fullness::default();
        let second = 1_000_000_000;
        assert!(full.filled(0) && !full.filled(1), "said once");
        assert!(full.emptied() && !full.emptied());
        assert!(!full.filled(20 * second), "said a moment ago");
        assert!(full.filled(60 * second), "and true for longer than that");
        assert!(full.emptied());
        assert!(!full.filled(70 * second) && !full.emptied(), "nobody heard that it was full");
    }
}
