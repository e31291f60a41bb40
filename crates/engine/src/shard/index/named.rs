//! Which record spoke last of whose an extent is.

use reactor::Table;

/// Per extent the number of that record, or zero. A table rather than a map: a replay may name every extent.
pub(super) struct Named(Table<u64>);

impl Named {
    pub(super) fn new(extents: u32) -> Named {
        Named(Table::zeroed(extents as usize))
    }

    /// More extents exist.
    pub(super) fn grow(&mut self, extents: u32) {
        self.0 = std::mem::replace(&mut self.0, Table::zeroed(0)).extended(extents as usize);
    }

    pub(super) fn insert(&mut self, extent: u32, lsn: u64) {
        self.0[extent as usize] = lsn;
    }

    /// Whether a record from number `from` on is about the extent.
    pub(super) fn is_named(&self, extent: u32, from: u64) -> bool {
        let lsn = self.0[extent as usize];
        lsn != 0 && lsn >= from
    }

    /// The extents that any record was about.
    pub(super) fn extents(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&*self.0).filter(|(_, lsn)| **lsn != 0).map(|(extent, _)| extent)
    }

    /// Bytes of memory it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}
