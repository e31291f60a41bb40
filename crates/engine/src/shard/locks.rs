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

/// See the module.
#[derive(Default)]
pub(crate) struct Locks {
    held: RefCell<SmallVec<[(u64, Range); 8]>>,
    next: Cell<u64>,
    released: Notify,
}

impl Locks {
    /// Whether somebody holds part of the range.
    #[inline]
    pub(crate) fn blocks(&self, range: &Range) -> bool {
        let held = self.held.borrow();
        !held.is_empty() && held.iter().any(|(_, other)| other.overlaps(range))
    }

    /// Waits until nobody holds part of the range. Somebody may again, later in the same turn.
    pub(crate) async fn passable(&self, range: &Range) {
        self.released.wait_until(|| !self.blocks(range)).await;
    }

    /// Holds the range from the moment nobody else does; dropping the guard lets go.
    pub(crate) async fn lock(&self, range: Range) -> Held<'_> {
        self.passable(&range).await;
        let id = self.next.replace(self.next.get() + 1);
        self.held.borrow_mut().push((id, range));
        Held { locks: self, id }
    }
}

/// A held range.
pub(crate) struct Held<'a> {
    locks: &'a Locks,
    id: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.locks.held.borrow_mut().retain(|(id, _)| *id != self.id);
        self.locks.released.notify_all();
    }
}
