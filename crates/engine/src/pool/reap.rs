//! Layers that go: what those above them show is given to them, the rest is given back. In the background, one after the
//! other; what a crash leaves is done when the pool is opened next.

use super::PoolError;
use super::control::Control;
use crate::format::catalog::VolumeState;
use crate::shard::Shard;
use bdev::Status;
use std::collections::BTreeSet;
use std::rc::Rc;

/// How long it takes until what failed is tried again, and how often it is looked whether the pool is being closed.
pub(super) const RETRY_NS: u64 = 10_000_000_000;
pub(super) const CLOSE_LOOK_NS: u64 = 100_000_000;

impl Control {
    /// Removes all layers that are to go and can, as fast as that goes: somebody waits for it.
    pub(super) async fn reap(&self) -> Result<(), PoolError> {
        let _waiting = self.shared.hurry.wait();
        self.reap_at_leisure().await
    }

    /// Removes all layers that are to go and can: those that at most one layer lies over. The first error is returned when
    /// everything else has been done.
    async fn reap_at_leisure(&self) -> Result<(), PoolError> {
        let _turn = self.turn(&self.reaping).await;
        let (mut passed, mut ended) = (BTreeSet::new(), Ok(()));
        while let Some((layer, heir)) = self.next_to_go(&passed).filter(|_| !self.closing.get()) {
            if let Err(error) = self.remove(layer, heir).await {
                passed.insert(layer);
                ended = ended.and(Err(error));
            }
        }
        ended
    }

    /// As [`reap`](Self::reap), in the background and giving way to users, again and again while it fails.
    pub(super) fn reap_beside(self: &Rc<Self>) {
        let control = self.clone();
        self.reactor.spawn(async move {
            while let Err(error) = control.reap_at_leisure().await {
                if control.closing.get() {
                    return;
                }
                tracing::warn!("{error}; it is tried again");
                for _ in 0..RETRY_NS / CLOSE_LOOK_NS {
                    control.reactor.sleep_ns(CLOSE_LOOK_NS).await;
                    if control.closing.get() {
                        return;
                    }
                }
            }
        });
    }

    /// Waits until those of these layers have gone that nothing lies over.
    pub(super) async fn gone(self: &Rc<Self>, layers: &[u32]) -> Result<(), PoolError> {
        let _waiting = self.shared.hurry.wait();
        let is_left = || layers.iter().any(|layer| self.is_left(*layer));
        // Somebody who is at it takes those first that need not be moved.
        self.idle.wait_until(|| !is_left() || !self.reaping.get()).await;
        if is_left() {
            let reaped = self.reap().await;
            if is_left() {
                self.reap_beside();
                return reaped;
            }
        }
        self.reap_beside();
        Ok(())
    }

    /// Whether a layer that should have gone has not, although nothing lies over it.
    fn is_left(&self, layer: u32) -> bool {
        let catalog = self.catalog.borrow();
        catalog.volumes.contains_key(&layer) && catalog.over(layer).next().is_none()
    }

    /// A layer that goes, and the one that shows it, if there is one. Layers that nobody shows come first: what would go to
    /// them need not be moved.
    fn next_to_go(&self, passed: &BTreeSet<u32>) -> Option<(u32, Option<u32>)> {
        let catalog = self.catalog.borrow();
        let going = catalog.volumes.values().filter(|entry| entry.state == VolumeState::Deleting);
        let going = going.filter(|entry| !passed.contains(&entry.id)).filter_map(|entry| {
            let mut over = catalog.over(entry.id);
            let heir = over.next();
            over.next().is_none().then_some((entry.id, heir.map(|heir| heir.id)))
        });
        going.min_by_key(|(layer, heir)| (heir.is_some(), *layer))
    }

    async fn remove(&self, layer: u32, heir: Option<u32>) -> Result<(), PoolError> {
        self.unflattened([Some(layer), heir]).await;
        // Every shard has heard of what the catalog says.
        drop(self.alone().await);
        if self.catalog.borrow().over(layer).next().map(|heir| heir.id) != heir {
            // Nothing lies below that one any more.
            return Ok(());
        }
        let is_done = match heir {
            None => self.shared.free_from(&self.reactor, layer, 0).await.check().map(|()| true),
            Some(heir) => self.absorb(layer, heir).await,
        };
        let failed = |status| self.shared.io_error("free what a deleted volume or snapshot has", status);
        if !is_done.map_err(failed)? {
            return Ok(());
        }
        let _alone = self.alone().await;
        let below = self.entry(layer)?;
        self.change(|catalog| {
            if let Some(heir) = heir.and_then(|heir| catalog.volumes.get_mut(&heir)) {
                (heir.parent, heir.overlap) = (below.parent, heir.overlap.min(below.overlap));
            }
            catalog.volumes.remove(&layer);
        })
        .await?;
        if let Some(heir) = heir {
            self.lay(&self.entry(heir)?).await;
        }
        self.shared.on_shards(&self.reactor, move |shard| async move { shard.lay(layer, None) }).await;
        Ok(())
    }

    /// A part of it in each shard; whether that was all.
    async fn absorb(&self, layer: u32, heir: u32) -> Result<bool, Status> {
        let absorb = move |shard: Rc<Shard>, hurry| async move { shard.absorb(layer, heir, hurry).await };
        let mut is_done = true;
        for ended in self.shared.on_all_shards(&self.reactor, self.shared.hurry.clone(), absorb).await {
            is_done &= ended.unwrap_or(Err(Status::Gone))?;
        }
        Ok(is_done)
    }
}
