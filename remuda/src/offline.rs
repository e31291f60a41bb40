//! Devices without a node: those of a configuration file (and of what a node has made at run time), opened for a command that
//! works on a pool that is at rest. Nothing that is missing is made, and for a command that only looks nothing is written at all.

use crate::cli::exit::{Exit, Failure};
use crate::config::{Config, DeviceDef, DeviceParams, LogDef, PoolDef};
use crate::node::pool_check::mapped_log_of;
use crate::node::reactors::{END_MAX_NS, Reactors};
use crate::node::{
    Handle, Lacking, Opened, Opener, Refusal, RefusalKind, StateView, as_it_is, close_device, lacking, open_device,
    prepare_memory,
};
use bdev::{BlockDevice, OpenFor, ReadOnlyDevice};
use engine::{Finding, LogDevice};
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

    /// How devices are opened for a purpose.
    pub fn opener(&self, purpose: OpenFor) -> Opener {
        Opener { make: false, purpose, ..Opener::without_node(self.reactor()) }
    }
}

/// Definitions of devices by name.
pub type Definitions = BTreeMap<String, DeviceDef>;

/// Devices that are open, each behind those below it.
#[derive(Default)]
pub struct Stack {
    all: Vec<Opened>,
    /// What some of them lack.
    lacking: Vec<Lacking>,
}

impl Stack {
    /// The topmost device.
    fn device(&self) -> Arc<dyn BlockDevice> {
        self.all.last().expect("the device itself is there").device.clone()
    }

    fn append(&mut self, mut other: Stack) {
        self.all.append(&mut other.all);
        self.lacking.append(&mut other.lacking);
    }

    /// Refuses to use devices of which a part is not there.
    fn refuse_absent(&self) -> Result<(), Refusal> {
        let Some(absent) = self.lacking.iter().find(|lacking| lacking.is_absent) else { return Ok(()) };
        let Finding { object, place, meaning, .. } = &absent.finding;
        let next = "bring it back; or add --degraded to repair without it: it is given up then, and filled anew when it is back";
        Err(Refusal::conflict(format!("{object} of {place}"), meaning, next))
    }

    /// Closes them; the first failure is returned. What was only looked at has nothing to bring to rest.
    async fn close(&self, opener: &Opener) -> Result<(), Refusal> {
        let mut ended = Ok(());
        let is_used = |opened: &&Opened| opener.purpose == OpenFor::Use || matches!(opened.handle, Handle::Nvmf(_));
        for opened in self.all.iter().rev().filter(is_used) {
            ended = ended.and(close_device(&opener.reactor, opened).await);
        }
        ended
    }
}

/// Opens a device after those below it. A mirror, a parity device or a flash cache does without a part that is missing.
async fn open_with_children(name: &str, defs: &Definitions, opener: &Opener) -> Result<Stack, Refusal> {
    let known = defs.keys().map(String::as_str);
    let def = defs.get(name).ok_or_else(|| Refusal::not_found("device", name, known))?;
    let (mut stack, mut children, mut closed) = (Stack::default(), Vec::new(), BTreeMap::new());
    for (place, child) in def.children().iter().enumerate() {
        match Box::pin(open_with_children(child, defs, opener)).await {
            Ok(below) => {
                children.push(Some(below.device()));
                stack.append(below);
            }
            // One that somebody else has is not missing.
            Err(refusal) if !opener.may_lack(def, place) || refusal.kind == RefusalKind::Conflict => {
                return Err(refusal);
            }
            Err(refusal) => {
                children.push(None);
                closed.insert(child.as_str(), refusal.to_string());
            }
        }
    }
    let opened = open_device(def, children, opener).await?;
    stack.lacking.extend(lacking(def, &opened, |child| closed.get(child).cloned()));
    stack.all.push(opened);
    Ok(stack)
}

/// What a check is given of a device: one that is only looked at refuses writes.
fn given(device: Arc<dyn BlockDevice>, opener: &Opener) -> Arc<dyn BlockDevice> {
    match opener.purpose {
        OpenFor::Use => device,
        OpenFor::Inspect => Arc::new(ReadOnlyDevice::new(device)),
    }
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
    stack: Stack,
    _lock: Option<File>,
}

impl RestingDevices {
    /// Opens them. A log that another process uses is an error, one that is missing is not. To be used, a device must not lack a
    /// part that it could do without, unless the opener says so: it would be given up. Whether it does is looked at first, so that
    /// a refusal leaves all of them as they are.
    pub async fn open(pool: &RestingPool, opener: &Opener) -> Result<RestingDevices, Refusal> {
        if opener.purpose == OpenFor::Use && !opener.start_degraded {
            let look = Opener { purpose: OpenFor::Inspect, ..opener.clone() };
            let seen = RestingDevices::open_now(pool, &look).await?;
            seen.stack.refuse_absent()?;
            seen.close(&look).await?;
        }
        RestingDevices::open_now(pool, opener).await
    }

    async fn open_now(pool: &RestingPool, opener: &Opener) -> Result<RestingDevices, Refusal> {
        let mut stack = open_with_children(&pool.def.capacity, &pool.devices, opener).await.map_err(as_it_is)?;
        let capacity = given(stack.device(), opener);
        let (log, lock) = match &pool.def.log {
            LogDef::Device(name) => match open_with_children(name, &pool.devices, opener).await {
                Ok(below) => {
                    let log = given(below.device(), opener);
                    stack.append(below);
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
        RestingDevices { capacity, log, stack, _lock: lock }.unless_in_use()
    }

    /// The same for paths: files or drives.
    pub async fn open_paths(capacity: &str, log: Option<&str>, opener: &Opener) -> Result<RestingDevices, Refusal> {
        let open = async |path: &str| {
            let def = file(path);
            let defs = Definitions::from([(def.name.clone(), def)]);
            open_with_children(path, &defs, opener).await
        };
        let mut stack = open(capacity).await?;
        let capacity = given(stack.device(), opener);
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
                None => match open(path).await {
                    Ok(below) => {
                        let log = given(below.device(), opener);
                        stack.append(below);
                        (Ok(LogDevice::Block(log)), None)
                    }
                    Err(refusal) => (Err(refusal), None),
                },
            },
        };
        RestingDevices { capacity, log, stack, _lock: lock }.unless_in_use()
    }

    fn unless_in_use(self) -> Result<RestingDevices, Refusal> {
        match &self.log {
            Err(refusal) if refusal.kind == RefusalKind::Conflict => Err(refusal.clone()),
            _ => Ok(self),
        }
    }

    /// What devices below the pool lack, as they were opened.
    pub fn lacking(&self) -> Vec<Finding> {
        self.stack.lacking.iter().map(|lacking| lacking.finding.clone()).collect()
    }

    /// Closes them; `opener` is the one that they were opened by.
    pub async fn close(&self, opener: &Opener) -> Result<(), Refusal> {
        self.stack.close(opener).await
    }
}

fn file(path: &str) -> DeviceDef {
    let path = path.to_string();
    DeviceDef { name: path.clone(), params: DeviceParams::File { path, size: None, block_size: None, direct: true } }
}
