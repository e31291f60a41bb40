//! Ranges of volumes that upkeep holds for itself: writers wait, readers do not.
//!
//! Writers take no lock: they look here, and append in the same step. Whoever holds a range waits for the records that
//! were appended before to be placed, and then knows the newest state of it.

use reactor::sync::Notify;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};

/// Blocks of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) volume: u32,
    /// First block.
    pub(crate) start: u64,
    /// Block after the last.
    pub(crate) end: u64,
}

impl Range {
    fn overlaps(&self, other: &Range) -> bool {
        self.volume == other.volume && self.start < other.end && other.start < self.end
    }
}

struct Hold {
    id: u64,
    range: Range,
    writes: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locks {
    held: RefCell<SmallVec<[Hold; 8]>>,
    next: Cell<u64>,
    released: Notify,
}

impl Locks {
    /// Whether somebody holds part of the range.
    #[inline]
    pub(crate) fn blocks(&self, range: &Range) -> bool {
        let held = self.held.borrow();
        !held.is_empty() && held.iter().any(|hold| hold.range.overlaps(range))
    }

    /// Waits until nobody holds part of the range. Somebody may again, later in the same turn.
    pub(crate) async fn passable(&self, range: &Range) {
        self.released.wait_until(|| !self.blocks(range)).await;
    }

    /// Holds the range from the moment nobody else does; dropping the guard lets go.
    pub(crate) async fn lock(&self, range: Range) -> Held<'_> {
        self.hold(range, false).await
    }

    /// As [`lock`](Self::lock), for what somebody outside writes.
    pub(crate) async fn lock_to_write(&self, range: Range) -> Held<'_> {
        self.hold(range, true).await
    }

    async fn hold(&self, range: Range, writes: bool) -> Held<'_> {
        self.passable(&range).await;
        let id = self.next.replace(self.next.get() + 1);
        self.held.borrow_mut().push(Hold { id, range, writes });
        Held { locks: self, id }
    }

    /// Waits until nobody holds part of a volume to write there.
    pub(crate) async fn without_writers(&self, volume: u32) {
        let is_writer = |hold: &Hold| hold.writes && hold.range.volume == volume;
        self.released.wait_until(|| !self.held.borrow().iter().any(is_writer)).await;
    }
}

/// A held range.
pub(crate) struct Held<'a> {
    locks: &'a Locks,
    id: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.locks.held.borrow_mut().retain(|hold| hold.id != self.id);
        self.locks.released.notify_all();
    }
}
