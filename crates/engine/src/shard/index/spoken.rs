//! Of which extents the log says something that checkpoints, or their map pages, do not know.

use super::Index;
use crate::format::dirty::DirtySlice;

impl Index {
    /// The wanted slices of which the log says something that the checkpoint does not; some of them twice.
    pub(crate) fn slices_spoken_for(&self, is_wanted: impl Fn(&DirtySlice) -> bool) -> Vec<DirtySlice> {
        let state = self.state.borrow();
        let extents = state.dirty.extents().chain(state.named.extents());
        let owners = extents.map(|extent| self.meta.descriptor(extent)).filter(|owner| !owner.is_free());
        owners.map(|owner| owner.slice()).filter(is_wanted).collect()
    }

    /// Whether the log has nothing of an extent that its map page does not know.
    pub(crate) fn is_clean(&self, extent: u32) -> bool {
        self.state.borrow().dirty.get(extent).is_none()
    }
}
