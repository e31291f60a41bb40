//! Flattening: what a volume and its snapshots show of other volumes becomes their own, in the background, so that what it
//! was cloned from can go.
//!
//! The lowest of the volume's own layers gets all that it shows of the layers below (`shard/flatten.rs`); then the catalog
//! says that nothing lies below it. Until that is durable nothing has changed, so it may end at any time and begin again. A
//! layer is not flattened while one that goes is given to it: extents would change under it. Of a pool's volumes one is flattened at
//! a time, the others wait.
//!
//! ```text
//!            flatten              all of it is copied
//! (nothing) --------> Running ---------------------------> Done
//!                     |     ^ \  no room, or it fails again and again
//!                stop v     |  `-------------------------> Failed
//!                   Stopped -'  flatten (from there as well)
//! ```

use super::control::Control;
use super::reap::{CLOSE_LOOK_NS, RETRY_NS};
use super::{Grounds, Pool, PoolError};
use crate::format::catalog::VolumeEntry;
use crate::meta::Edit;
use crate::shard::{FlattenProgress, Shard};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use bdev::Status;
use reactor::Reactor;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Failures in a row, without anything being copied between them, after which it ends: more than it takes until a block that
/// cannot be read is given up.
const FAILURES_MAX: u32 = 2 * crate::shard::TRIES_MIN;
const EXTENT_BYTES: u64 = EXTENT_BLOCKS as u64 * BLOCK_BYTES as u64;

/// Whether a volume is being flattened; see the module for how one follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlattenState {
    /// It is under way.
    Running,
    /// Somebody has stopped it.
    Stopped,
    /// It has ended before its end, see [`FlattenStatus::trouble`].
    Failed,
    /// The volume depends on no other one.
    Done,
}

/// How far the flattening of a volume is, or how the last one since the pool was opened has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlattenStatus {
    /// In a word.
    pub state: FlattenState,
    /// Extents passed, of `extents_total`; from the first one again when it had to begin again.
    pub extents_done: u64,
    /// Extents of 4 MiB in which something is shown of others.
    pub extents_total: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Blocks of 4 KiB that could not be read where they came from; reading them is an error in the volume as well.
    pub lost_blocks: u64,
    /// Why it fails, or has failed.
    pub trouble: Option<String>,
}

/// The flattening of one volume.
pub(super) struct Flattening {
    uuid: Uuid,
    name: String,
    state: Cell<FlattenState>,
    is_stopped: Cell<bool>,
    /// The layer that is being written to.
    layer: Cell<Option<u32>>,
    progress: Arc<FlattenProgress>,
    trouble: RefCell<Option<String>>,
}

impl Flattening {
    fn new(uuid: Uuid, name: &str) -> Flattening {
        Flattening {
            uuid,
            name: name.to_string(),
            state: Cell::new(FlattenState::Running),
            is_stopped: Cell::new(false),
            layer: Cell::new(None),
            progress: Arc::default(),
            trouble: RefCell::default(),
        }
    }

    fn is_running(&self) -> bool {
        self.state.get() == FlattenState::Running
    }

    fn status(&self) -> FlattenStatus {
        let ((extents_done, extents_total), (copied, lost_blocks)) = (self.progress.extents(), self.progress.blocks());
        FlattenStatus {
            state: self.state.get(),
            extents_done,
            extents_total,
            copied_bytes: copied * BLOCK_BYTES as u64,
            lost_blocks,
            trouble: self.trouble.borrow().clone(),
        }
    }
}

impl Pool {
    /// Begins to make a volume, and its snapshots, independent of what it was cloned from, in the background. Nothing that is
    /// read changes by it; the volume may be used meanwhile, and everything be done to it that can be done to volumes. When it
    /// is interrupted, by closing the pool or by a crash, what has been copied stays, and the next one goes on from there.
    pub async fn flatten(&self, reactor: &Rc<Reactor>, volume: &str) -> Result<FlattenStatus, PoolError> {
        let (name, uuid) = (volume.to_string(), self.live(volume)?.identity().uuid);
        self.on_control(reactor, move |control| async move { control.flatten(&name, uuid).await }).await
    }

    /// Has it stop, soon: see [`flattened`](Self::flattened).
    pub async fn stop_flatten(&self, reactor: &Rc<Reactor>, volume: &str) -> Result<FlattenStatus, PoolError> {
        let (name, uuid) = (volume.to_string(), self.live(volume)?.identity().uuid);
        self.on_control(reactor, move |control| async move {
            let flattening = control.flattening(&name, uuid)?;
            flattening.is_stopped.set(true);
            flattening.progress.halt();
            control.idle.notify_all();
            Ok(flattening.status())
        })
        .await
    }

    /// How far it is, or how it has ended; `None` when there was none since the pool was opened.
    pub async fn flatten_status(
        &self,
        reactor: &Rc<Reactor>,
        volume: &str,
    ) -> Result<Option<FlattenStatus>, PoolError> {
        let uuid = self.live(volume)?.identity().uuid;
        self.on_control(
            reactor,
            move |control| async move { Ok(control.flattening_of(uuid).map(|found| found.status())) },
        )
        .await
    }

    /// Waits for its end.
    pub async fn flattened(&self, reactor: &Rc<Reactor>, volume: &str) -> Result<FlattenStatus, PoolError> {
        let (name, uuid) = (volume.to_string(), self.live(volume)?.identity().uuid);
        self.on_control(reactor, move |control| async move {
            let flattening = control.flattening(&name, uuid)?;
            control.idle.wait_until(|| !flattening.is_running()).await;
            Ok(flattening.status())
        })
        .await
    }

    pub(super) async fn on_control<T, F>(
        &self,
        reactor: &Rc<Reactor>,
        work: impl FnOnce(Rc<Control>) -> F + Send + 'static,
    ) -> Result<T, PoolError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, PoolError>> + 'static,
    {
        let shared = self.shared.clone();
        let run = move |there: Rc<Reactor>| async move { work(Control::of(&there, &shared)?).await };
        reactor.call_on(self.shared.control, run).await
    }
}

impl Control {
    /// Those that are under way or have failed, by volume.
    pub(super) fn flattenings_told(&self) -> Vec<(String, FlattenStatus)> {
        let told = |found: &&Rc<Flattening>| matches!(found.state.get(), FlattenState::Running | FlattenState::Failed);
        let flattenings = self.flattenings.borrow();
        flattenings.iter().filter(told).map(|found| (found.name.clone(), found.status())).collect()
    }

    fn flattening_of(&self, uuid: Uuid) -> Option<Rc<Flattening>> {
        self.flattenings.borrow().iter().find(|flattening| flattening.uuid == uuid).cloned()
    }

    fn flattening(&self, name: &str, uuid: Uuid) -> Result<Rc<Flattening>, PoolError> {
        let none = || {
            self.shared.refuse(Grounds::Missing, format!("volume '{name}' was not flattened since the pool was opened"))
        };
        self.flattening_of(uuid).ok_or_else(none)
    }

    async fn flatten(self: &Rc<Self>, name: &str, uuid: Uuid) -> Result<FlattenStatus, PoolError> {
        if self.flattening_of(uuid).is_some_and(|flattening| flattening.is_running()) {
            return Err(self.shared.refuse(Grounds::State, format!("volume '{name}' is being flattened already")));
        }
        let Some(layer) = self.lowest_own(uuid)? else {
            return Err(self
                .shared
                .refuse(Grounds::State, format!("volume '{name}' is not a clone: nothing lies below it")));
        };
        self.check_room_to_flatten(name, layer).await?;
        // Whoever came first is at it.
        if self.flattening_of(uuid).is_some_and(|flattening| flattening.is_running()) {
            return Err(self.shared.refuse(Grounds::State, format!("volume '{name}' is being flattened already")));
        }
        let flattening = Rc::new(Flattening::new(uuid, name));
        let mut all = self.flattenings.borrow_mut();
        let catalog = self.catalog.borrow();
        let is_there = |uuid| catalog.live().any(|entry| entry.uuid == uuid);
        all.retain(|other| other.is_running() || other.uuid != uuid && is_there(other.uuid));
        all.push(flattening.clone());
        let (control, status) = (self.clone(), flattening.status());
        self.reactor.spawn(async move { control.run_flattening(&flattening).await });
        Ok(status)
    }

    async fn run_flattening(self: &Rc<Self>, flattening: &Flattening) {
        let ended = self.flatten_all(flattening).await;
        let state = match ended {
            Ok(true) => FlattenState::Done,
            Ok(false) => FlattenState::Stopped,
            Err(error) => {
                tracing::warn!("volume '{}' is not flattened: {error}", flattening.name);
                flattening.trouble.replace(Some(error.to_string()));
                FlattenState::Failed
            }
        };
        flattening.state.set(state);
        self.idle.notify_all();
        // What was only waiting for its last heir can go, though it be that of one of several layers.
        self.reap_beside();
    }

    /// All that the volume's own layers show of others, layer by layer. False: it was stopped.
    async fn flatten_all(&self, flattening: &Flattening) -> Result<bool, PoolError> {
        // One at a time: together they would leave nothing of the devices, nor of the memory, to users.
        let turn = self.turn_unless(&self.is_flattening_one, || self.is_ending(flattening)).await;
        let Some(_turn) = turn else { return Ok(false) };
        let mut failures = 0;
        loop {
            let Some(layer) = self.lowest_own(flattening.uuid)? else { return Ok(true) };
            if self.is_ending(flattening) {
                return Ok(false);
            }
            if self.is_given_something(layer) {
                let given = || !self.is_given_something(layer) || self.is_ending(flattening);
                self.idle.wait_until(given).await;
                continue;
            }
            let before = flattening.progress.blocks();
            flattening.layer.set(Some(layer));
            let ended = self.flatten_layer(layer, flattening).await;
            flattening.layer.set(None);
            self.idle.notify_all();
            let Err(error) = ended else { continue };
            if self.is_ending(flattening) {
                return Ok(false);
            }
            if let PoolError::Io { status: Status::NoSpace, .. } = error {
                self.check_room_to_flatten(&flattening.name, layer).await?;
            }
            failures = if flattening.progress.blocks() == before { failures + 1 } else { 1 };
            if failures == FAILURES_MAX {
                return Err(error);
            }
            tracing::warn!("flattening volume '{}': {error}; it is tried again", flattening.name);
            flattening.trouble.replace(Some(error.to_string()));
            for _ in 0..RETRY_NS / CLOSE_LOOK_NS {
                self.reactor.sleep_ns(CLOSE_LOOK_NS).await;
                if self.is_ending(flattening) {
                    return Ok(false);
                }
            }
            flattening.trouble.replace(None);
        }
    }

    fn is_ending(&self, flattening: &Flattening) -> bool {
        self.closing.get() || flattening.is_stopped.get()
    }

    /// The lowest layer of the volume, or of a snapshot of it, that lies over one of another volume.
    fn lowest_own(&self, uuid: Uuid) -> Result<Option<u32>, PoolError> {
        let catalog = self.catalog.borrow();
        let Some(volume) = catalog.live().find(|entry| entry.uuid == uuid) else {
            return Err(self.shared.refuse(Grounds::Missing, "the volume has been deleted meanwhile".to_string()));
        };
        let mut own: BTreeMap<u32, &VolumeEntry> =
            catalog.snapshots(&volume.name).map(|entry| (entry.id, entry)).collect();
        own.insert(volume.id, volume);
        let is_lowest = |entry: &&VolumeEntry| {
            let mut below = catalog.get(entry.parent);
            let is_over_others = below.is_some();
            while let Some(other) = below.filter(|other| !own.contains_key(&other.id)) {
                below = catalog.get(other.parent);
            }
            is_over_others && below.is_none()
        };
        Ok(own.values().copied().find(is_lowest).map(|entry| entry.id))
    }

    /// Whether a layer that goes is, or is about to be, given to this one.
    fn is_given_something(&self, layer: u32) -> bool {
        let catalog = self.catalog.borrow();
        let below = catalog.get(layer).map(|entry| entry.parent);
        self.reaping.get() && below.is_some_and(|below| catalog.going_under(1).contains(&below))
    }

    /// Gives a layer what it shows of those below it, and says so when it has all of that; it may be halted before.
    async fn flatten_layer(&self, layer: u32, flattening: &Flattening) -> Result<(), PoolError> {
        let progress = &flattening.progress;
        progress.begin();
        let flatten =
            move |shard: Rc<Shard>, progress: Arc<FlattenProgress>| async move { shard.flatten(layer, progress).await };
        let failed = |status| self.shared.io_error("copy what a clone shows of others", status);
        // The other shards go on, and may take long.
        let tell = |ended: &Option<Result<bool, Status>>| {
            if let Some(Err(status)) = ended
                && !self.is_ending(flattening)
            {
                flattening.trouble.replace(Some(failed(*status).to_string()));
            }
        };
        let mut is_done = true;
        for ended in self.shared.on_all_shards_telling(&self.reactor, progress.clone(), flatten, tell).await {
            is_done &= ended.unwrap_or(Err(Status::Gone)).map_err(failed)?;
        }
        if !is_done {
            return Ok(());
        }
        let _alone = self.alone().await;
        let mut edit = Edit::default();
        if let Ok(entry) = self.entry(layer) {
            edit.put(VolumeEntry { parent: 0, overlap: 0, ..entry });
        }
        self.change(edit).await?;
        self.lay(&self.entry(layer)?).await;
        Ok(())
    }

    /// Refuses when a shard has less room than flattening a layer may take.
    async fn check_room_to_flatten(&self, volume: &str, layer: u32) -> Result<(), PoolError> {
        let takes = move |shard: Rc<Shard>| async move { shard.flatten_takes(layer) };
        let takes = self.shared.on_shards(&self.reactor, takes).await;
        let short: Vec<(u64, u64)> = takes.into_iter().flatten().filter(|(needed, free)| needed > free).collect();
        if short.is_empty() {
            return Ok(());
        }
        Err(PoolError::NoRoom {
            pool: self.shared.name.clone(),
            volume: volume.to_string(),
            needed_bytes: short.iter().map(|(needed, _)| needed * EXTENT_BYTES).sum(),
            free_bytes: short.iter().map(|(_, free)| free * EXTENT_BYTES).sum(),
        })
    }

    /// Has no layer flattened that goes, or that something is given to: waits until what is under way has ended.
    pub(super) async fn unflattened(&self, layers: &BTreeSet<u32>) {
        let is_one = |flattening: &Rc<Flattening>| {
            let layer = flattening.layer.get();
            layer.is_some_and(|layer| layers.contains(&layer))
        };
        let is_any = || self.flattenings.borrow().iter().any(is_one);
        self.flattenings.borrow().iter().filter(|flattening| is_one(flattening)).for_each(|it| it.progress.halt());
        self.idle.wait_until(|| !is_any()).await;
    }

    /// Has all of it end, for good when the pool is being closed.
    pub(super) fn halt_flattening(&self) {
        self.flattenings.borrow().iter().for_each(|flattening| flattening.progress.halt());
        self.idle.notify_all();
    }

    /// Whether any volume is being flattened.
    pub(super) fn is_flattening(&self) -> bool {
        self.flattenings.borrow().iter().any(|flattening| flattening.is_running())
    }
}
