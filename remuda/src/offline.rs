//! Devices without a node: those of a configuration file (and of what a node has made at run time), opened for a command that
//! works on a pool that is at rest. Nothing that is missing is made.

use crate::cli::exit::{Exit, Failure};
use crate::config::{Config, DeviceDef, DeviceParams, LogDef, PoolDef};
use crate::node::pool_check::mapped_log_of;
use crate::node::reactors::{END_MAX_NS, Reactors};
use crate::node::{
    Opened, Opener, Refusal, RefusalKind, StateView, as_it_is, close_device, open_device, prepare_memory,
};
use bdev::BlockDevice;
use engine::LogDevice;
use reactor::{PoolConfig, ReactorConfig};
use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::sync::Arc;

/// A reactor and a control thread for one command.
pub struct Offline {
    runtime: tokio::runtime::Runtime,
    reactors: Reactors,
}

impl Offline {
    /// Starts them.
    pub fn start() -> Result<Offline, Failure> {
        let pool = PoolConfig { bytes_max: 64 << 20 };
        let reactors = Reactors::start_with(vec![None], ReactorConfig { pool, ..ReactorConfig::default() }, END_MAX_NS);
        let reactors = reactors.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| Failure::new(Exit::Failed, format!("cannot start the control thread: {error}")))?;
        Ok(Offline { runtime, reactors })
    }

    /// The reactor.
    pub fn reactor(&self) -> &reactor::ReactorHandle {
        self.reactors.first()
    }

    /// Runs the command.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// How devices are opened.
    pub fn opener(&self) -> Opener {
        Opener { make: false, ..Opener::without_node(self.reactor()) }
    }
}

/// Definitions of devices by name.
pub type Definitions = BTreeMap<String, DeviceDef>;

/// Opens a device after those below it; returns all of them, itself last. A mirror or a parity device does without a part that is
/// missing.
pub async fn open_with_children(name: &str, defs: &Definitions, opener: &Opener) -> Result<Vec<Opened>, Refusal> {
    let known = defs.keys().map(String::as_str);
    let def = defs.get(name).ok_or_else(|| Refusal::not_found("device", name, known))?;
    let (mut all, mut children) = (Vec::new(), Vec::new());
    for (place, child) in def.children().iter().enumerate() {
        match Box::pin(open_with_children(child, defs, opener)).await {
            Ok(opened) => {
                children.push(opened.last().map(|opened| opened.device.clone()));
                all.extend(opened);
            }
            Err(_) if def.may_lack(place) => children.push(None),
            Err(refusal) => return Err(refusal),
        }
    }
    all.push(open_device(def, children, opener).await?);
    Ok(all)
}

/// Closes what [`open_with_children`] has opened; the first failure is returned.
pub async fn close_all(all: &[Opened], reactor: &reactor::ReactorHandle) -> Result<(), Refusal> {
    let mut ended = Ok(());
    for opened in all.iter().rev() {
        ended = ended.and(close_device(reactor, opened).await);
    }
    ended
}

/// A pool at rest, as its node knows it.
pub struct RestingPool {
    /// What it is made of.
    pub def: PoolDef,
    /// Devices of its node.
    pub devices: Definitions,
    _state: StateView,
}

impl RestingPool {
    /// Looks a pool up in a configuration file and in what its node has made at run time; keeps the node from starting.
    pub fn find(name: &str, path: &str) -> Result<RestingPool, Failure> {
        let config = Config::load(path)?;
        let state = StateView::open(&config.node.state_dir).map_err(|error| match error.is_conflict() {
            true => {
                let message = format!("{error}; a pool that the node has not opened can be checked without --config");
                Failure::new(Exit::Conflict, message)
            }
            false => Failure::new(Exit::Failed, error.to_string()),
        })?;
        let configured = config.pools.iter().map(|entry| &entry.def);
        let pools: Vec<&PoolDef> = configured.chain(&state.state.pools).collect();
        let def = pools.iter().find(|def| def.name == name).map(|def| (*def).clone());
        let known = pools.iter().map(|def| def.name.as_str());
        let def = def.ok_or_else(|| Refusal::not_found("pool", name, known))?;
        let made = state.state.devices.iter().map(|def| (def.name.clone(), def.clone()));
        let configured = config.devices.iter().map(|entry| (entry.def.name.clone(), entry.def.clone()));
        Ok(RestingPool { def, devices: made.chain(configured).collect(), _state: state })
    }
}

/// The devices of a pool at rest, open.
pub struct RestingDevices {
    /// What blocks end up on.
    pub capacity: Arc<dyn BlockDevice>,
    /// Its log, or why there is none.
    pub log: Result<LogDevice, Refusal>,
    all: Vec<Opened>,
    _lock: Option<File>,
}

impl RestingDevices {
    /// Opens them. A log that another process uses is an error, one that is missing is not.
    pub async fn open(pool: &RestingPool, opener: &Opener) -> Result<RestingDevices, Refusal> {
        let mut all = open_with_children(&pool.def.capacity, &pool.devices, opener).await.map_err(as_it_is)?;
        let capacity = all.last().expect("the device itself is there").device.clone();
        let (log, lock) = match &pool.def.log {
            LogDef::Device(name) => match open_with_children(name, &pool.devices, opener).await {
                Ok(opened) => {
                    let log = opened.last().expect("the device itself is there").device.clone();
                    all.extend(opened);
                    (Ok(LogDevice::Block(log)), None)
                }
                Err(refusal) => (Err(refusal), None),
            },
            LogDef::Pmem { path, size, .. } => match prepare_memory(&pool.def.name, path, *size, false) {
                // Checking stores nothing that would have to survive.
                Ok(file) => {
                    (Ok(LogDevice::Mapped { path: path.clone(), bytes: *size, volatile_allowed: true }), Some(file))
                }
                Err(refusal) => (Err(refusal), None),
            },
        };
        RestingDevices { capacity, log, all, _lock: lock }.unless_in_use()
    }

    /// The same for paths: files or drives.
    pub async fn open_paths(capacity: &str, log: Option<&str>, opener: &Opener) -> Result<RestingDevices, Refusal> {
        let mut all = vec![open_device(&file(capacity), Vec::new(), opener).await?];
        let capacity = all[0].device.clone();
        let missing = || Refusal::failed("log device", "it is not named", "name it with --log PATH");
        let (log, lock) = match log {
            None => (Err(missing()), None),
            Some(path) => match mapped_log_of(&opener.reactor, capacity.clone()).await? {
                Some(bytes) => match prepare_memory(path, path, bytes, false) {
                    Ok(lock) => {
                        let log = LogDevice::Mapped { path: path.to_string(), bytes, volatile_allowed: true };
                        (Ok(log), Some(lock))
                    }
                    Err(refusal) => {
                        (Err(Refusal { object: format!("log {path}"), next: String::new(), ..refusal }), None)
                    }
                },
                None => match open_device(&file(path), Vec::new(), opener).await {
                    Ok(opened) => {
                        all.push(opened.clone());
                        (Ok(LogDevice::Block(opened.device)), None)
                    }
                    Err(refusal) => (Err(refusal), None),
                },
            },
        };
        RestingDevices { capacity, log, all, _lock: lock }.unless_in_use()
    }

    fn unless_in_use(self) -> Result<RestingDevices, Refusal> {
        match &self.log {
            Err(refusal) if refusal.kind == RefusalKind::Conflict => Err(refusal.clone()),
            _ => Ok(self),
        }
    }

    /// Closes them.
    pub async fn close(&self, reactor: &reactor::ReactorHandle) -> Result<(), Refusal> {
        close_all(&self.all, reactor).await
    }
}

fn file(path: &str) -> DeviceDef {
    let path = path.to_string();
    DeviceDef { name: path.clone(), params: DeviceParams::File { path, size: None, block_size: None, direct: true } }
}
