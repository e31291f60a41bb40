//! Pools that are being made: all of one or nothing.
//!
//! Before anything is written to a device, what is to be made is noted in the node's state, with the ids that it will have. One
//! more change of the state makes it the node's, and takes the note away. Where that does not come to pass (an error, a kill,
//! a power cut) what was made goes again, at once or when the node starts: the starts of the devices are wiped, which were blank
//! before. What does not carry the noted ids is somebody else's by now and is left alone.

use super::build::{Opener, open_device};
use super::pools::object;
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::state::State;
use super::{DeviceSlot, Node, Origin};
use crate::config::{DeviceDef, LogDef, PoolDef};
use bdev::BlockDevice;
use engine::{Holds, PoolError};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The start of the node waits so long for devices of a pool that was half made.
const UNMAKE_PATIENCE: Duration = Duration::from_secs(10);

/// A pool that is being made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Making {
    /// The pool, and the id that it will have.
    pub pool: PoolDef,
    /// See `pool`.
    pub pool_id: Uuid,
    /// The flash cache that is made for it, and the id that it will have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<(DeviceDef, Uuid)>,
}

impl Making {
    pub(super) fn new(pool: &PoolDef, cache: Option<&DeviceDef>) -> Making {
        let cache = cache.map(|def| (def.clone(), Uuid::new_v4()));
        Making { pool: pool.clone(), pool_id: Uuid::new_v4(), cache }
    }

    /// The devices that it is made of, and that were there before.
    fn devices(&self) -> Vec<&str> {
        let made = self.cache.as_ref().map(|(def, _)| def);
        let there = self.pool.devices().into_iter().filter(|name| made.is_none_or(|def| def.name != *name));
        there.chain(made.iter().flat_map(|def| def.children()).map(String::as_str)).collect()
    }
}

impl Node {
    /// Notes that a pool is about to be made, of devices that are blank, as is seen to first unless `force`.
    pub(super) async fn note_making(&mut self, making: &Making, force: bool) -> Result<(), Refusal> {
        for name in making.devices().into_iter().filter(|_| !force) {
            match self.holds(name).await?.map_err(|error| super::build::refused(object(&making.pool.name), error))? {
                Holds::Nothing => {}
                holds => {
                    let (pool, device) = (making.pool.name.clone(), name.to_string());
                    let error = PoolError::InUse { pool, device, holds: Box::new(holds) };
                    let other = self.other_device(&error).await;
                    return Err(super::pools::pool_refused(&making.pool.name, error, &other));
                }
            }
        }
        let mut state = self.state.clone();
        state.making.push(making.clone());
        self.remember(state)
    }

    /// What is at the start of a device.
    pub(super) async fn holds(&self, device: &str) -> Result<Result<Holds, bdev::DeviceError>, Refusal> {
        let device = self.open_device(device)?;
        on_reactor_async(self.reactors.first(), move |reactor| async move {
            let channel = device.open_channel(&reactor)?;
            Holds::look(&reactor, &channel, device.info()).await.map_err(|status| {
                let device = device.name().to_string();
                bdev::DeviceError::Io { device, action: "read it", status }
            })
        })
        .await
    }

    /// Opens a cache that is being made, as a device of this node that its state does not know yet.
    pub(super) async fn make_cache(&mut self, def: &DeviceDef, id: Uuid) -> Result<(), Refusal> {
        let children = self.children_of(def)?;
        let opener = Opener { known: None, file: None, cache_id: Some(*id.as_bytes()), ..self.opener(&def.name) };
        let opened = open_device(def, children, &opener).await?;
        let slot = DeviceSlot { def: def.clone(), origin: Origin::Runtime, live: Ok(opened), awaited: None };
        self.devices.insert(def.name.clone(), slot);
        Ok(())
    }

    /// Takes back what was left of pools that were being made when the node ended. What cannot be is tried again at the next start,
    /// and when somebody wants the devices.
    pub(super) async fn unmake_all(&mut self) {
        for making in self.state.making.clone() {
            let name = &making.pool.name;
            let unmade = tokio::time::timeout(UNMAKE_PATIENCE, self.unmake(&making)).await.unwrap_or_else(|_| {
                let devices = making.devices().join("', '");
                let cause =
                    format!("one of its devices, '{devices}', has not answered for {} s", UNMAKE_PATIENCE.as_secs());
                Err(Refusal::failed(object(name), cause, "see to the device, and restart the node"))
            });
            match unmade {
                Ok(()) => {
                    tracing::warn!("pool '{name}' was half made when the node ended: what there was of it is gone")
                }
                Err(refusal) => {
                    tracing::warn!(
                        "pool '{name}' was half made when the node ended, and what there is of it stays: {refusal}"
                    );
                }
            }
        }
    }

    /// The same of those on any of these devices, before something else is made of them.
    pub(super) async fn unmake_on(&mut self, wanted: &Making) -> Result<(), Refusal> {
        let clashes = |making: &Making| making.devices().iter().any(|device| wanted.devices().contains(device));
        let left: Vec<Making> = self.state.making.iter().filter(|making| clashes(making)).cloned().collect();
        for making in left {
            self.unmake(&making).await?;
        }
        Ok(())
    }

    /// Takes back what there is of a pool that is not made after all.
    pub(super) async fn unmake(&mut self, making: &Making) -> Result<(), Refusal> {
        let pool = making.pool_id;
        let ours = move |start: &[u8]| engine::is_of_pool(start, pool);
        let mut foreign = Vec::new();
        if let Some((def, id)) = &making.cache {
            self.devices.remove(&def.name);
            let id = *id.as_bytes();
            let of_cache = move |start: &[u8]| bdev::flash_cache::is_of_cache(start, id);
            let slow = self.open_device(&def.children()[0])?;
            let flash = self.open_device(&def.children()[1])?;
            // What stands on the cache goes first: without the cache nobody finds it.
            if self.start_is(&slow, of_cache).await? {
                let children = self.children_of(def)?;
                let opener = Opener { make: false, ..self.opener(&def.name) };
                match open_device(def, children, &opener).await {
                    Ok(opened) => _ = self.take_back(&opened.device, ours).await?,
                    // It was never whole, so that nothing was made on it.
                    Err(refusal) => tracing::debug!("half a cache: {refusal}"),
                }
            }
            for device in [flash, slow] {
                if self.take_back(&device, of_cache).await? {
                    foreign.push(device.name().to_string());
                }
            }
        } else if self.devices.contains_key(&making.pool.capacity) {
            let capacity = self.open_device(&making.pool.capacity)?;
            if self.take_back(&capacity, ours).await? {
                foreign.push(making.pool.capacity.clone());
            }
        }
        // A device that has been deleted meanwhile is none of the node's business.
        let has_log = match &making.pool.log {
            LogDef::Device(device) => self.devices.contains_key(device),
            LogDef::Pmem { .. } => true,
        };
        if has_log && let (true, log) = self.take_back_log(&making.pool, pool).await? {
            foreign.push(log);
        }
        if !foreign.is_empty() {
            let (name, devices) = (&making.pool.name, foreign.join("', '"));
            tracing::warn!(
                "what is on '{devices}' is not of pool '{name}', which was half made there: it stays as it is"
            );
        }
        let mut state = self.state.clone();
        state.making.retain(|other| other.pool_id != making.pool_id);
        self.remember(state)
    }

    async fn start_is(
        &self,
        device: &Arc<dyn BlockDevice>,
        ours: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> Result<bool, Refusal> {
        let (name, device) = (device.name().to_string(), device.clone());
        let read = on_reactor_async(self.reactors.first(), move |reactor| async move {
            engine::read_device_start(&reactor, &device).await
        });
        let start = read.await?.map_err(|error| super::pools::pool_refused(&name, error, ""))?;
        Ok(ours(&start))
    }

    /// Wipes the start of a pool's log device if that is this pool's; whether it holds somebody else's, and its name.
    pub(super) async fn take_back_log(&self, def: &PoolDef, pool: Uuid) -> Result<(bool, String), Refusal> {
        match &def.log {
            LogDef::Device(device) => {
                // Whether it may be a log at all does not matter here.
                let device = self.open_device(device)?;
                let is_foreign = self.take_back(&device, move |start| engine::is_of_pool(start, pool)).await?;
                return Ok((is_foreign, device.name().to_string()));
            }
            // A file that came to be for the pool and has gone again.
            LogDef::Pmem { path, .. } if !std::path::Path::new(path).exists() => return Ok((false, path.clone())),
            LogDef::Pmem { .. } => {}
        }
        let (log, _lock) = self.log_device(def, false)?;
        let (name, shown) = (def.name.clone(), log.name().to_string());
        let taken = on_reactor_async(self.reactors.first(), move |reactor| async move {
            engine::take_back_log(&reactor, &log, &name, pool).await
        });
        let is_foreign = taken.await?.map_err(|error| super::pools::pool_refused(&def.name, error, ""))?;
        Ok((is_foreign, shown))
    }

    /// Wipes the start of a device that is ours; whether it holds somebody else's.
    pub(super) async fn take_back(
        &self,
        device: &Arc<dyn BlockDevice>,
        ours: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> Result<bool, Refusal> {
        let (name, device) = (device.name().to_string(), device.clone());
        let taken = on_reactor_async(self.reactors.first(), move |reactor| async move {
            engine::take_back(&reactor, &device, ours).await
        });
        taken.await?.map_err(|error| super::pools::pool_refused(&name, error, ""))
    }
}

impl State {
    /// A pool that was being made is there.
    pub(super) fn made(&mut self, making: &Making) {
        self.making.retain(|other| other.pool_id != making.pool_id);
        if let Some((def, _)) = &making.cache {
            self.devices.retain(|other| other.name != def.name);
            self.devices.push(def.clone());
        }
        self.pools.retain(|other| other.name != making.pool.name);
        self.pools.push(making.pool.clone());
    }
}
