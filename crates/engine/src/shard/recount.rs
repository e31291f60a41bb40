//! Counting what is live in the bands of a shaped pool. After an opening the counts are those of a root, made while pages
//! changed: hints, by which GC chooses, and by which alone no band is free. Once everything is at rest they are counted
//! again, from the map pages; then a band is free as soon as nothing in it is live, without being walked.

use super::Shard;
use crate::bands::Bands;
use crate::meta;
use bdev::Status;
use std::rc::Rc;

/// Extents between which others have their turn.
const EXTENTS_PER_TURN: u32 = 16;

impl Shard {
    /// Begins a recount, the first time that it is called.
    pub(super) fn recount_once(self: &Rc<Self>) {
        let Some(bands) = self.meta.bands().filter(|bands| !bands.room().is_exact) else { return };
        if self.gc.is_recounted.replace(true) {
            return;
        }
        self.gc.is_recounting.set(true);
        let (shard, bands) = (self.clone(), bands.clone());
        self.reactor.spawn(async move {
            if let Err(status) = shard.recount(&bands).await {
                tracing::warn!(
                    "pool '{}': what is in use of the bands of shard {} could not be counted: {status}; GC finds out band by band",
                    shard.pool_name,
                    shard.number
                );
            }
            // Everything is told again, whether it was counted or not.
            shard.meta.tally().into_iter().for_each(|tally| tally.count_to(u32::MAX));
            shard.gc.is_recounting.set(false);
            shard.settled.notify_all();
        });
    }

    async fn recount(self: &Rc<Self>, bands: &Rc<Bands>) -> Result<(), Status> {
        let Some(tally) = self.meta.tally() else { return Ok(()) };
        tally.count_to(0);
        bands.recount_begun();
        let mut extent = 0;
        while extent < self.meta.extents() {
            if self.is_stopping() {
                return Ok(());
            }
            let has_page = |flags: u32| flags & meta::MAP_PAGE != 0 || self.meta.page(extent).is_some();
            let owner = self.meta.descriptor(extent);
            if !owner.is_free() && has_page(owner.flags) {
                let page = self.meta.load(extent).await?;
                // It may have become another one's meanwhile: then this page leads nowhere.
                if page.is_current() {
                    page.count_live();
                }
            }
            extent += 1;
            tally.count_to(extent);
            if extent.is_multiple_of(EXTENTS_PER_TURN) {
                self.reactor.yield_now().await;
            }
        }
        bands.recount_ended();
        Ok(())
    }
}
