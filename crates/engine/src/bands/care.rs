//! What is done with whole bands in the background: telling the device what nobody needs any more, and over zones giving up
//! what is not written of one, and resetting it before it is used again.
//!
//! Over zones a band that is free may be written all the same: it was opened after the root that an opening found. So all
//! free bands are reset before they are used, which costs nothing where a zone is empty. None is before the root that calls it
//! free is known to be durable: a former one, to which a power loss goes back, may lead there.

use super::{BandDefect, Bands};
use bdev::Status;
use std::rc::Rc;

/// Pause before what a device has refused is asked for again.
const RETRY_NS: u64 = 200_000_000;
/// A zone that cannot be reset is out of use after so many attempts.
const RESETS_MAX: u32 = 8;

impl Bands {
    /// Begins nothing any more that outlives its caller, and waits for what is under way: whoever opens the bands next must not
    /// meet it.
    pub(crate) async fn rest(&self) {
        self.resting.set(true);
        self.changed.wait_until(|| !self.caring.get() && self.desks.borrow().under_way == 0).await;
    }

    /// Over zones: the bands are what these say, of which a crash may have left more or less than the table has. Before anything is
    /// written; reads only.
    pub(crate) async fn adopt_zones(&self) {
        if !self.medium.has_zones() {
            return;
        }
        for band in 0..self.geometry.bands {
            if !self.ledger.borrow().keeps_zone(band) {
                continue;
            }
            let first = self.device_block(self.geometry.at(band, 0));
            match self.medium.zone(first).await {
                Ok(zone) => self.ledger.borrow_mut().adopt_zone(band, zone),
                Err(status) => {
                    tracing::warn!(band, %status, "the zone of a band cannot be asked for; the band takes no more");
                    self.ledger.borrow_mut().adopt_zone(band, super::medium::BandZone::Unknown);
                }
            }
        }
    }

    /// The same where bands are zones, for what happens with every stripe.
    pub(super) fn care_for_zones(self: &Rc<Self>) {
        if self.medium.has_zones() {
            self.care();
        }
    }

    /// Unmaps in the background what a checkpoint has freed, and finishes zones that are given up. To be begun after an
    /// opening that has succeeded.
    pub(crate) fn care(self: &Rc<Self>) {
        if self.resting.get() || !self.has_cares() || self.caring.replace(true) {
            return;
        }
        let bands = self.clone();
        self.medium.reactor.spawn_eager(async move {
            while !bands.resting.get() && bands.has_cares() {
                let finished = bands.finish_zones().await;
                let unmapped = bands.unmap_freed().await;
                if !finished || !unmapped {
                    // What rests now need not wait for long.
                    bands.medium.reactor.sleep_ns(RETRY_NS).await;
                }
            }
            bands.caring.set(false);
            bands.changed.notify_all();
        });
    }

    fn has_cares(&self) -> bool {
        let ledger = self.ledger.borrow();
        ledger.has_to_finish() || (!self.waits_for_root.get() && ledger.next_to_unmap(0).is_some())
    }

    /// Whether the owner is to see to it that the root which was found is durable, and to [say so](Self::root_settled).
    pub(crate) fn waits_for_root(&self) -> bool {
        self.waits_for_root.get()
    }

    /// The root that was found at opening is durable.
    pub(crate) fn root_settled(self: &Rc<Self>) {
        self.waits_for_root.set(false);
        self.care();
    }

    /// Why zones are not reset now, if the last attempt has failed.
    pub(crate) fn reset_error(&self) -> Option<Status> {
        self.reset_error.get()
    }

    /// Whether all have been.
    async fn finish_zones(&self) -> bool {
        let mut all = true;
        let bands: Vec<u32> = self.ledger.borrow().to_finish().collect();
        for band in bands {
            let first = self.device_block(self.geometry.at(band, 0));
            let is_broken = self.ledger.borrow().is_broken(BandDefect::SkipFinish);
            let ended = if is_broken { Ok(()) } else { self.medium.finish_zone(first).await };
            match ended {
                Ok(()) => self.ledger.borrow_mut().finished(band),
                Err(_) => all = false,
            }
        }
        all
    }

    /// Whether all have been, or need not be.
    async fn unmap_freed(&self) -> bool {
        let mut all = true;
        let mut next = 0;
        while !self.resting.get() && !self.waits_for_root.get() {
            // Writes may wait for places that these take.
            if all && self.ledger.borrow().has_to_finish() {
                all = self.finish_zones().await;
            }
            let found = self.ledger.borrow().next_to_unmap(next);
            let Some(band) = found else { break };
            next = band + 1;
            let first = self.device_block(self.geometry.at(band, 0));
            let is_broken = self.ledger.borrow().is_broken(BandDefect::SkipReset);
            let blocks = self.geometry.band_blocks as u64;
            let ended = if is_broken { Ok(()) } else { self.medium.unmap(first, blocks).await };
            match ended {
                Ok(()) => {
                    self.reset_error.set(None);
                    self.count(|stats| stats.unmapped += 1);
                }
                Err(status) if self.medium.has_zones() => {
                    self.reset_error.set(Some(status));
                    let is_medium = status == Status::WriteError;
                    if self.ledger.borrow_mut().reset_failed(band, is_medium, RESETS_MAX) {
                        tracing::warn!(band, %status, "the zone of a band cannot be reset; the band is out of use");
                    } else {
                        all = false;
                    }
                    continue;
                }
                // A device that does not want to know keeps the band's old blocks: that costs it room, and us nothing.
                Err(_) => {}
            }
            self.ledger.borrow_mut().unmapped(band);
            self.changed.notify_all();
        }
        all
    }
}
