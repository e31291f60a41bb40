//! How many extents giving up the log now would lack: each extent of a slice that may have something in the log alone is noted as
//! lost, and one that has no place yet takes a free one for that (see `forget.rs`).

use super::Shard;
use crate::units::{EXTENT_BLOCKS, SLICE_EXTENTS};
use std::rc::Rc;

/// Slices that are looked at in a turn.
const SLICES_PER_TURN: usize = 1024;

impl Shard {
    /// Extents that there would be too few of; `sizes` are those of the layers that count, in blocks and by layer.
    pub(crate) async fn lacks_to_forget(self: &Rc<Self>, sizes: &[(u32, u64)]) -> u64 {
        let free = || u64::from(self.index.stats().free_extents);
        let Some(slices) = self.dirty_slices() else { return 0 };
        if slices * u64::from(SLICE_EXTENTS) <= free() {
            return 0;
        }
        let mut missing = 0;
        for (number, (layer, slice)) in self.journal.entries().into_iter().enumerate() {
            if number % SLICES_PER_TURN == SLICES_PER_TURN - 1 {
                self.reactor.yield_now().await;
            }
            let Ok(found) = sizes.binary_search_by_key(&layer, |(layer, _)| *layer) else { continue };
            let end = sizes[found].1.div_ceil(EXTENT_BLOCKS as u64).min(u64::from(u32::MAX)) as u32;
            missing += u64::from(self.index.missing(layer, slice, end));
        }
        missing.saturating_sub(free())
    }
}
