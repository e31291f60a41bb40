//! Telling the device what nobody needs any more.

use super::Bands;
use std::rc::Rc;

impl Bands {
    /// Begins nothing any more that outlives its caller, and waits for what is under way: whoever opens the bands next must not
    /// meet it.
    pub(crate) async fn rest(&self) {
        self.resting.set(true);
        self.changed.wait_until(|| !self.unmapping.get() && self.desks.borrow().under_way == 0).await;
    }

    /// Unmaps in the background what a checkpoint has freed.
    pub(super) fn unmap_freed(self: &Rc<Self>) {
        if self.resting.get() || self.unmapping.replace(true) {
            return;
        }
        let bands = self.clone();
        self.medium.reactor.spawn_eager(async move {
            while !bands.resting.get() {
                let next = bands.ledger.borrow().next_to_unmap();
                let Some(band) = next else { break };
                let first = bands.device_block(bands.geometry.at(band, 0));
                // A device that does not want to know keeps the band's old blocks: that costs it room, and us nothing.
                if bands.medium.unmap(first, bands.geometry.band_blocks as u64).await.is_ok() {
                    bands.count(|stats| stats.unmapped += 1);
                }
                bands.ledger.borrow_mut().unmapped(band);
                bands.changed.notify_all();
            }
            bands.unmapping.set(false);
            bands.changed.notify_all();
        });
    }
}
