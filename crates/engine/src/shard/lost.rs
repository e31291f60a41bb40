//! Looking, after an opening, at the map pages of extents that may have lost blocks: then it is known how many these are.

use super::Shard;
use std::rc::Rc;

/// Extents that are passed over in one turn.
const TURN_EXTENTS: u32 = 4096;

impl Shard {
    pub(super) async fn count_lost(self: Rc<Self>) {
        for extent in 0..self.meta.extents() {
            if extent % TURN_EXTENTS == 0 {
                self.reactor.yield_now().await;
            }
            if self.is_stopping() || !self.meta.has_lost_uncounted() {
                return;
            }
            if self.meta.is_lost_uncounted(extent) {
                // One that is damaged is reported where it is read.
                let _ = self.meta.load(extent).await;
                self.reactor.yield_now().await;
            }
        }
    }
}
