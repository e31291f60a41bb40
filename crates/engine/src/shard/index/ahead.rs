//! What records of a replay touch is on its way before it is their turn.

use super::Index;
use crate::log::{Ahead, Record};

/// A log may speak of blocks that there are not.
impl Ahead for Index {
    #[inline]
    fn far(&self, record: &Record) {
        if let Record::Write { first, crcs } | Record::InPlace { first, crcs } = record
            && self.state.borrow().dirty.covers(*first, crcs.len() as u32)
        {
            self.prefetch(*first, crcs.len() as u32);
        }
    }

    #[inline]
    fn near(&self, record: &Record) {
        let state = self.state.borrow();
        if let Record::Write { first, .. } | Record::InPlace { first, .. } = record
            && state.dirty.covers(*first, 1)
        {
            state.dirty.prefetch(*first);
        }
    }
}
