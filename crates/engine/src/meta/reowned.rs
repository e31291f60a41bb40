//! Which extents have got another owner, for who keeps a copy of whose they are.

use super::{Meta, slot_of};
use std::cell::{Cell, RefCell};

#[derive(Default)]
pub(super) struct Reowned {
    /// Somebody wants to know.
    noted: Cell<bool>,
    extents: RefCell<Vec<u32>>,
}

impl Reowned {
    pub(super) fn note(&self, extent: u32) {
        if !self.noted.get() {
            return;
        }
        let mut extents = self.extents.borrow_mut();
        if extents.len() == extents.capacity() {
            // It need not hold more than there are, however long nobody asks.
            extents.sort_unstable();
            extents.dedup();
            let kept = extents.len();
            extents.reserve(kept + 1);
        }
        extents.push(extent);
    }
}

impl Meta {
    /// Extents that get another owner are noted from now on; so far it may be any.
    pub(crate) fn note_reowned(&self) {
        self.reowned.noted.set(true);
        *self.reowned.extents.borrow_mut() = (0..self.extents()).collect();
    }

    /// The extents that may have got another owner since this was asked for, some of them more than once.
    pub(crate) fn take_reowned(&self) -> Vec<u32> {
        self.reowned.extents.take()
    }

    /// Whether the extent has a map page, in memory or on the media.
    pub(crate) fn has_page(&self, extent: u32) -> bool {
        let cell = self.cell(extent);
        cell.frame.get() > 0 || slot_of(cell.descriptor.get()).is_some()
    }
}
