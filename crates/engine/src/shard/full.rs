//! A shard without a free extent: writes to new places fail, which the log of the program hears once, and once more when there
//! is room again. Room enough: not with every extent that is trimmed and taken anew.

use super::Shard;
use std::cell::Cell;

/// There is room again when one extent in so many is free.
const ROOM_SHARE: u32 = 64;

/// Whether writes have failed for want of an extent, and it has been said.
#[derive(Default)]
pub(super) struct Fullness(Cell<bool>);

impl Shard {
    /// A write has found no free extent.
    #[cold]
    pub(super) fn note_full(&self) {
        if !self.full.0.replace(true) {
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
        if self.full.0.get() {
            self.look_for_room();
        }
    }

    #[cold]
    fn look_for_room(&self) {
        let free = self.index.stats().free_extents;
        if free >= (self.meta.extents() / ROOM_SHARE).max(1) {
            self.full.0.set(false);
            tracing::info!(
                "pool '{}' has room again: {free} extents of shard {} are free, and writes succeed",
                self.pool_name,
                self.number
            );
        }
    }
}
