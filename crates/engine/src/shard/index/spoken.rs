//! Of which extents the log says something that checkpoints, or their map pages, do not know.

use super::Index;

impl Index {
    /// Extents of volumes, {volume, its extent}, of which the log says something that the checkpoint does not.
    pub(crate) fn spoken_for(&self) -> Vec<(u32, u32)> {
        let state = self.state.borrow();
        let extents = state.dirty.extents().chain(state.named.extents());
        let owners = extents.map(|extent| self.meta.descriptor(extent)).filter(|owner| !owner.is_free());
        owners.map(|owner| (owner.volume, owner.vextent)).collect()
    }

    /// Whether the log has nothing of an extent that its map page does not know.
    pub(crate) fn is_clean(&self, extent: u32) -> bool {
        self.state.borrow().dirty.get(extent).is_none()
    }
}
