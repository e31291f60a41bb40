//! Layers that go: what those above them show is given to them, the rest is given back. In the background; what a crash leaves is
//! done when the pool is opened next.
//!
//! There may be thousands of them, so those that can go together do, up to [`BATCH`], with one change of the catalog: layers that
//! nobody shows (each when all that lie over it are among them, from above), whatever they have, since that is freed before; else
//! layers that have nothing, whoever lies over them takes what is below. A layer that has something, and an heir, goes alone.

use super::PoolError;
use super::control::Control;
use crate::format::catalog::VolumeEntry;
use crate::meta::Edit;
use crate::shard::{Shard, pause_ns};
use crate::units::Below;
use bdev::Status;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// How long it takes until what failed is tried again, and how often it is looked whether the pool is being closed.
pub(super) const RETRY_NS: u64 = 10_000_000_000;
pub(super) const CLOSE_LOOK_NS: u64 = 100_000_000;
/// Most layers that go together: looking for them, and telling the shards, is done in one turn of the reactor.
const BATCH: usize = 256;

/// Layers that go together: all of them without an heir, in an order in which each comes after those that lie over it; or with one
/// each.
struct Batch {
    layers: Vec<u32>,
    have_heirs: bool,
}

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
        let (mut passed, mut ended, moved) = (BTreeSet::new(), Ok(()), Cell::new(0));
        let mut next = self.next_to_go(&passed);
        while let Some(batch) = next.filter(|_| !self.closing.get()) {
            let (began_ns, before) = (self.reactor.clock_ns(), moved.get());
            match self.remove(&batch, &moved).await {
                Ok(()) => {}
                Err((Some(layer), error)) => {
                    passed.insert(layer);
                    ended = ended.and(Err(error));
                }
                Err((None, error)) => return ended.and(Err(error)),
            }
            next = self.next_to_go(&passed);
            if next.is_some() {
                self.pause(began_ns, before != moved.get()).await;
            }
        }
        ended
    }

    /// Leaves most of the time to those who use the pool, as the shards' part of the work does, unless somebody waits.
    async fn pause(&self, began_ns: u64, is_used: bool) {
        let worked_ns = self.reactor.clock_ns().saturating_sub(began_ns);
        if is_used && !self.shared.hurry.is_on() {
            self.reactor.sleep_ns(pause_ns(worked_ns)).await;
        } else {
            self.reactor.yield_now().await;
        }
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
        let mut left = layers.to_vec();
        // A layer is older than what lies over it: from the youngest on, none that has been passed becomes one that is left.
        left.sort_unstable();
        let left = RefCell::new(left);
        let is_any_left = || {
            let mut left = left.borrow_mut();
            while left.pop_if(|layer| !self.is_left(*layer)).is_some() {}
            !left.is_empty()
        };
        // Somebody who is at it takes those first that need not be moved.
        self.idle.wait_until(|| !is_any_left() || !self.reaping.get()).await;
        if is_any_left() {
            let reaped = self.reap().await;
            if is_any_left() {
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
        catalog.get(layer).is_some() && catalog.over(layer).next().is_none()
    }

    /// Layers that go. Those that nobody shows come first: what would go to them need not be moved.
    fn next_to_go(&self, passed: &BTreeSet<u32>) -> Option<Batch> {
        let catalog = self.catalog.borrow();
        let of = |showing| catalog.going_under(showing).iter().copied().filter(|layer| !passed.contains(layer));
        let mut layers: Vec<u32> = of(0).take(BATCH).collect();
        if layers.is_empty() {
            let layers: Vec<u32> = of(1).take(BATCH).collect();
            return (!layers.is_empty()).then_some(Batch { layers, have_heirs: true });
        }
        // How many lie over a layer that are not among them.
        let mut others: BTreeMap<u32, usize> = BTreeMap::new();
        let mut at = 0;
        while at < layers.len() && layers.len() < BATCH {
            let below = catalog.get(layers[at]).map_or(0, |entry| entry.parent);
            at += 1;
            if !catalog.going().contains(&below) || passed.contains(&below) {
                continue;
            }
            let others = others.entry(below).or_insert_with(|| catalog.over(below).count());
            *others -= 1;
            if *others == 0 {
                layers.push(below);
            }
        }
        Some(Batch { layers, have_heirs: false })
    }

    /// Removes some or all of these. An error comes with the layer that it is about, if it is about one.
    async fn remove(&self, batch: &Batch, moved: &Cell<u64>) -> Result<(), (Option<u32>, PoolError)> {
        let layers: Arc<[u32]> = batch.layers.as_slice().into();
        let of_all = |error| (None, error);
        self.unflattened(&self.with_heirs(&layers)).await;
        // Every shard has heard of what the catalog says.
        drop(self.alone().await);
        let look = |shard: Rc<Shard>, layers: Arc<[u32]>| async move { shard.look_at_going(&layers).await };
        let failed = |status| self.shared.io_error("free what a deleted volume or snapshot has", status);
        let (mut held, mut total) = (BTreeSet::new(), 0u64);
        for found in self.shared.on_all_shards(&self.reactor, layers.clone(), look).await {
            let (layers, moved) = found.ok_or_else(|| of_all(failed(Status::Gone)))?;
            held.extend(layers);
            total = total.wrapping_add(moved);
        }
        moved.set(total);
        let mut ended = Ok(());
        let mut gone: Vec<u32> = Vec::new();
        if !batch.have_heirs {
            for layer in &batch.layers {
                if self.closing.get() {
                    break;
                }
                if held.contains(layer) {
                    let status = self.shared.free_from(&self.reactor, *layer, 0).await;
                    if let Err(status) = status.check() {
                        ended = Err((Some(*layer), failed(status)));
                        break;
                    }
                }
                gone.push(*layer);
            }
        } else if let Some(layer) = layers.iter().find(|_| held.len() == layers.len()) {
            let Some(heir) = self.catalog.borrow().only_over(*layer) else { return Ok(()) };
            match self.absorb(*layer, heir).await {
                Ok(true) => gone.push(*layer),
                Ok(false) => return Ok(()),
                Err(status) => return Err((Some(*layer), failed(status))),
            }
        } else {
            gone.extend(layers.iter().filter(|layer| !held.contains(layer)));
        }
        self.take_out(gone, batch.have_heirs).await.map_err(of_all)?;
        ended
    }

    /// These layers, and those that lie over them.
    fn with_heirs(&self, layers: &[u32]) -> BTreeSet<u32> {
        let catalog = self.catalog.borrow();
        layers.iter().flat_map(|layer| catalog.over(*layer).chain([*layer])).collect()
    }

    /// Takes layers that have nothing any more out of the catalog, and tells the shards.
    async fn take_out(&self, layers: Vec<u32>, have_heirs: bool) -> Result<(), PoolError> {
        let _alone = self.alone().await;
        let edit = {
            let catalog = self.catalog.borrow();
            let mut gone = BTreeSet::new();
            for layer in layers {
                let may_go = match have_heirs {
                    true => catalog.going_under(1).contains(&layer),
                    false => catalog.going().contains(&layer) && catalog.over(layer).all(|over| gone.contains(&over)),
                };
                // Something has changed meanwhile: it is looked at anew.
                if may_go {
                    gone.insert(layer);
                }
            }
            catalog.without(&gone)
        };
        self.change(edit.clone()).await?;
        self.lay_all(&edit).await;
        Ok(())
    }

    /// Tells all shards what the layers that have changed lie over.
    async fn lay_all(&self, edit: &Edit) {
        let below =
            |entry: &VolumeEntry| (entry.parent != 0).then_some(Below { layer: entry.parent, blocks: entry.overlap });
        let layers: Arc<[(u32, Option<Below>)]> =
            edit.entries().map(|(id, entry)| (id, entry.and_then(below))).collect();
        let lay = |shard: Rc<Shard>, layers: Arc<[(u32, Option<Below>)]>| async move { shard.lay_all(&layers) };
        self.shared.on_all_shards(&self.reactor, layers, lay).await;
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
