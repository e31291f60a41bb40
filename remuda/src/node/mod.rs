//! The node: its objects, what it remembers of them, and every change that can be made to them while it runs.
//!
//! One task owns it; requests reach it one at a time. A change is checked, made live, remembered durably, then announced
//! to the target; what fails before it is remembered is undone.
//!
//! Objects come from two places. The configuration file wins: an object made at run time whose name the file now uses is
//! set aside with a warning. What is changed at run time about a configured object is kept as an overlay on the file.

mod absent;
mod ana;
mod awaited;
mod build;
mod connect_hint;
mod destroying;
mod devices;
pub mod differences;
pub mod export;
mod extents;
mod file_watch;
pub mod flatten;
mod host_keys;
mod keys;
mod lacking;
mod legs;
mod limits;
pub mod look;
mod making;
mod paths;
mod pool_advice;
mod pool_care;
pub mod pool_check;
mod pool_log;
pub mod pool_view;
mod pool_volumes;
pub mod pool_written;
mod pools;
pub mod reactors;
pub mod redundant;
mod referrals;
pub mod refusal;
mod remote;
mod reservations;
pub mod scrub_view;
mod scrubs;
mod snapshots;
pub mod state;
pub mod stats;
mod stream_refusal;
mod subsystems;
mod target;
mod tls_keys;
mod told;
mod transfers;
mod vhost;
pub mod view;
mod volumes;
mod window;
mod zones;

pub use awaited::Arrival;
pub use build::{Handle, Opened, Opener, as_it_is, close as close_device, open_device};
pub use export::Exporter;
pub use host_keys::NewHostKeys;
pub use lacking::{Lacking, lacking};
pub use legs::Joined;
pub use pool_log::{ForgetLogProgress, LogLoss, UnfoundView};
pub use pools::{pool_refused, prepare_memory};
pub use reactors::Reactors;
pub use referrals::REFERRALS_MAX;
pub use refusal::{Refusal, RefusalKind};
pub use reservations::{KeepReservation, ReservationDoor};
pub use state::{AUDIT_LOG, Origin, State, StateView, Store, exposed};
pub use subsystems::NewNamespace;
pub use told::told;
pub use transfers::Transfer;

use crate::config::{Config, DeviceDef};
use awaited::Awaited;
use bdev::{RateLimitDevice, StatsDevice};
use file_watch::FileWatch;
use host_keys::HostKeys;
use legs::LegOut;
use pool_log::Endings;
use pool_view::PoolView;
use pool_volumes::PoolVolumeSlot;
use pools::PoolSlot;
use state::{NamespaceRecord, SubsystemRecord};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;
pub use target::TcpExporter;
use tls_keys::TlsKeys;
use tokio::sync::mpsc;
use transfers::Transfers;
use vhost::VhostSlot;
use view::StatusView;
pub use volumes::NewSize;

/// Objects of each sort at most.
pub const OBJECTS_MAX: usize = 4096;

struct DeviceSlot {
    def: DeviceDef,
    origin: Origin,
    /// The device, or why it could not be opened.
    live: Result<Opened, String>,
    /// It is tried again while the node runs.
    awaited: Option<Awaited>,
}

struct Subsystem {
    origin: Origin,
    /// As it is now.
    record: SubsystemRecord,
    /// As the configuration file has it.
    configured: Option<SubsystemRecord>,
}

/// See the module.
pub struct Node {
    config: Config,
    store: Store,
    state: State,
    reactors: Reactors,
    exporter: Box<dyn Exporter>,
    devices: BTreeMap<String, DeviceSlot>,
    /// Parts out of their mirrors and parity devices that have been tried, by device and number.
    legs_out: BTreeMap<(String, usize), LegOut>,
    pools: BTreeMap<String, PoolSlot>,
    /// Scrubs whose course is to be noted, by pool.
    scrubs: BTreeMap<String, scrubs::Followed>,
    /// All open volumes, on devices and in pools.
    volumes: BTreeMap<String, Arc<StatsDevice>>,
    /// What holds volumes to their limits, for as long as they are open.
    limiters: BTreeMap<String, Weak<RateLimitDevice>>,
    /// Those in pools.
    pool_volumes: BTreeMap<String, PoolVolumeSlot>,
    subsystems: BTreeMap<String, Subsystem>,
    /// Keys of hosts, configured ones included.
    host_keys: HostKeys,
    tls_keys: TlsKeys,
    /// Doors for virtual machines.
    vhosts: BTreeMap<String, VhostSlot>,
    transfers: Transfers,
    endings: Endings,
    warnings: Vec<String>,
    /// Why the last attempt to save its state failed.
    state_problem: Option<String>,
    /// What is wrong with its audit log now.
    pub audit_problem: Option<String>,
    /// What the target asks to be remembered of reservations.
    pub kept: Option<mpsc::UnboundedReceiver<KeepReservation>>,
    /// Attempts so far to open devices, and take in legs, that are waited for.
    attempts: u64,
    started: Instant,
    files: FileWatch,
    /// Address of `/metrics`, once it is known.
    pub metrics: Option<String>,
    /// Address of the console, once it is known.
    pub console: Option<String>,
    /// No more changes.
    pub stopping: bool,
}

impl Node {
    /// Opens everything that configuration and state name. A configured object that cannot be opened is an error; one
    /// made at run time, and any pool, is reported and left closed. What needs a remote target that cannot be reached is
    /// waited for.
    pub async fn start(
        config: Config,
        store: Store,
        state: State,
        reactors: Reactors,
        exporter: Box<dyn Exporter>,
    ) -> Result<Node, Refusal> {
        let mut node = Node {
            config,
            store,
            state,
            reactors,
            exporter,
            devices: BTreeMap::new(),
            legs_out: BTreeMap::new(),
            pools: BTreeMap::new(),
            scrubs: BTreeMap::new(),
            volumes: BTreeMap::new(),
            limiters: BTreeMap::new(),
            pool_volumes: BTreeMap::new(),
            subsystems: BTreeMap::new(),
            host_keys: HostKeys::new(),
            tls_keys: TlsKeys::new(),
            vhosts: BTreeMap::new(),
            transfers: Transfers::default(),
            endings: Endings::default(),
            warnings: Vec::new(),
            state_problem: None,
            audit_problem: None,
            kept: None,
            attempts: 0,
            started: Instant::now(),
            files: FileWatch::default(),
            metrics: None,
            console: None,
            stopping: false,
        };
        let before = node.state.clone();
        node.open_devices().await?;
        node.open_volumes()?;
        node.unmake_all().await;
        node.go_on_destroying().await;
        node.open_pools().await;
        node.open_subsystems().await?;
        node.announce_referrals().await?;
        node.announce_limits().await?;
        node.open_doors().await;
        node.exporter.listen(node.config.nvmf.listen.clone(), node.config.nvmf.listen_tls.clone()).await?;
        if node.state != before {
            node.remember(node.state.clone())?;
        }
        for warning in node.warnings.iter().chain(&node.closed()) {
            tracing::warn!("{warning}");
        }
        Ok(node)
    }

    /// Whether the state can be saved: asked before something is written for what it has to name.
    fn check_saving(&mut self) -> Result<(), Refusal> {
        self.remember(self.state.clone())
    }

    /// Makes `state` durable, then current.
    fn remember(&mut self, state: State) -> Result<(), Refusal> {
        let full = "check the space and the health of the disk below the state directory; nothing was changed";
        let saved = self.store.save(&state);
        self.state_problem = saved.as_ref().err().map(ToString::to_string);
        saved.map_err(|error| Refusal::failed("node state", error, full))?;
        self.state = state;
        Ok(())
    }

    /// Whether the last attempt to save its state failed.
    pub fn is_unsaved(&self) -> bool {
        self.state_problem.is_some()
    }

    /// Saves its state again, which has not changed: to see whether that is possible.
    pub fn save_again(&mut self) {
        if self.remember(self.state.clone()).is_ok() {
            tracing::warn!("state directory {}: its state can be saved again", self.store.dir().display());
        }
    }

    fn check_running(&self) -> Result<(), Refusal> {
        if self.stopping {
            return Err(Refusal::new(RefusalKind::Stopping, "node", "it is stopping", "start it again first"));
        }
        Ok(())
    }

    fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// A warning that arises while the node runs.
    fn warn_now(&mut self, warning: String) {
        tracing::warn!("{warning}");
        self.warn(warning);
    }

    /// What cannot be used now or is degraded, and why.
    fn closed(&self) -> Vec<String> {
        let mut closed = Vec::new();
        for (name, slot) in &self.devices {
            match &slot.live {
                Err(reason) => {
                    closed.push(format!("device '{name}' is not open: {}", devices::why_closed(name, reason)))
                }
                Ok(opened) => {
                    closed.extend(redundant::degraded(name, opened, slot.def.children()));
                    closed.extend(paths::unreachable_paths(name, opened));
                }
            }
        }
        closed.extend(self.not_served());
        closed
    }

    /// What hosts and guests do not get now, and why.
    fn not_served(&self) -> Vec<String> {
        let mut closed = Vec::new();
        let configured = self.config.volumes.iter().map(|entry| (&entry.name.value, &entry.device.value));
        let known = self.state.volumes.iter().map(|(name, record)| (name, &record.device));
        for (volume, device) in configured.chain(known).collect::<BTreeMap<_, _>>() {
            if !self.volumes.contains_key(volume) && self.is_closed(device) {
                closed.push(format!("volume '{volume}' is not served: its device '{device}' is not open"));
            }
        }
        for (nqn, subsystem) in &self.subsystems {
            for namespace in &subsystem.record.namespaces {
                let (nsid, volume) = (namespace.nsid, &namespace.volume);
                if !self.volumes.contains_key(volume) {
                    closed.push(format!(
                        "subsystem '{nqn}': namespace {nsid} is not shown, volume '{volume}' is not open"
                    ));
                }
            }
        }
        closed.extend(self.closed_doors());
        closed
    }

    /// Whether a device is there but could not be opened.
    fn is_closed(&self, device: &str) -> bool {
        self.devices.get(device).is_some_and(|slot| slot.live.is_err())
    }

    /// The node as a whole.
    pub async fn status(&self) -> StatusView {
        self.status_with(&self.pool_list().await).await
    }

    /// The same, with the pools as they were seen a moment ago.
    async fn status_with(&self, pools: &[PoolView]) -> StatusView {
        let seen = self.exporter.counters().await;
        StatusView {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            node_id: self.state.node_id,
            uptime_ns: self.started.elapsed().as_nanos() as u64,
            state_dir: self.store.dir().display().to_string(),
            config: std::path::absolute(&self.config.source.path)
                .map_or_else(|_| self.config.source.path.clone(), |path| path.display().to_string()),
            nvmf_listen: self.addresses(),
            nvmf_listen_tls: self.tls_addresses(),
            metrics: self.metrics.clone(),
            console: self.console.clone(),
            connections: seen.connections,
            hosts: seen.hosts,
            machines: self.machines(),
            devices: self.devices.len(),
            pools: self.pools.len(),
            volumes: self.state.volumes.len()
                + self.pool_volumes.values().filter(|slot| !snapshots::is_snapshot(&slot.volume)).count(),
            subsystems: self.subsystems.len(),
            vhosts: self.vhosts.len(),
            reactors: self.reactors.views().await,
            failing: self.failing(pools),
            warnings: self.problems(pools),
        }
    }

    /// What wants attention; `pools` as they were seen a moment ago.
    pub fn problems(&self, pools: &[PoolView]) -> Vec<String> {
        let mut problems = self.warnings.clone();
        problems.extend(self.state_problem.iter().map(|problem| format!("{problem}: commands that change it fail")));
        problems.extend(self.audit_problem.clone());
        problems.extend(self.closed());
        problems.extend(self.file_problems());
        problems.extend(pools.iter().flat_map(PoolView::problem_lines));
        problems
    }

    /// Those of them because of which hosts and guests do not get what they should: that pools are not open, full or in
    /// trouble, and what is not served.
    pub fn failing(&self, pools: &[PoolView]) -> Vec<String> {
        let pools = pools.iter().flat_map(PoolView::failing_lines);
        pools.chain(self.not_served()).collect()
    }

    /// The configuration it was started with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its reactors.
    pub fn reactors(&self) -> &Reactors {
        &self.reactors
    }

    /// Its target.
    pub fn exporter(&self) -> &dyn Exporter {
        &*self.exporter
    }

    fn addresses(&self) -> Vec<String> {
        self.exporter.addresses().iter().map(ToString::to_string).collect()
    }

    fn tls_addresses(&self) -> Vec<String> {
        self.exporter.tls_addresses().iter().map(ToString::to_string).collect()
    }

    /// Lets hosts go, makes everything acknowledged durable, and ends the reactors. The caller has a deadline.
    pub async fn drain(&mut self) {
        self.stopping = true;
        self.stop_forgetting().await;
        tokio::join!(self.transfers.stop(), self.exporter.drain());
        self.close_doors().await;
        self.note_scrubs_at_end().await;
        self.close_pools().await;
        // A device is closed before those it stands on: deeper ones hold what it writes while it settles.
        let mut slots: Vec<(&String, &DeviceSlot)> = self.devices.iter().collect();
        slots.sort_by_key(|(name, _)| std::cmp::Reverse(self.height(name)));
        for (name, slot) in slots {
            let Ok(opened) = &slot.live else { continue };
            match build::close(self.reactors.first(), opened).await {
                Ok(()) => tracing::debug!(device = %name, "flushed"),
                Err(error) => tracing::error!(device = %name, "{error}"),
            }
        }
    }

    /// How many devices there are below a device, at most.
    fn height(&self, name: &str) -> usize {
        let children = self.devices.get(name).map_or(&[][..], |slot| slot.def.children());
        children.iter().map(|child| self.height(child) + 1).max().unwrap_or(0)
    }

    /// Ends the reactors.
    pub fn stop(mut self) {
        self.vhosts.clear();
        self.volumes.clear();
        self.pool_volumes.clear();
        self.pools.clear();
        self.devices.clear();
        self.reactors.stop();
    }
}
