//! The NVMe/TCP target: connections on reactors, devices behind them.
//!
//! One reactor is the *home*: it owns subsystems and controllers ([`crate::target`]), accepts connections and hands each to
//! the reactor that has the fewest. Connect, Fabrics and admin commands travel to the home; I/O commands stay on their
//! connection's reactor and go straight to the device's channel there.
//!
//! Not here: what commands mean ([`crate::target`]), what PDUs look like ([`crate::tcp`]), who may listen where (the node).

mod authenticate;
mod cid_map;
mod cid_set;
mod connection;
mod control;
mod copy;
mod erase;
mod execute;
mod flights;
mod fused;
mod greetings;
mod guests;
mod home;
mod local;
mod output;
mod pace;
mod pieces;
mod preempt;
mod progress;
mod receive;
mod reserve;
mod room;
mod share;
mod sparing;
mod store;
mod traffic;
mod zone_watch;
mod zones;

use crate::auth::Policy;
use crate::spec::{Nqn, Status};
use crate::target::reservation::{Access, HostId, Table};
use crate::target::{self, AnaStates, Mask, ModelError, SubsystemConfig, SubsystemId, TargetConfig, WhyRefused};
use crate::tls::{HostPsks, Psk, TlsFailure};
use base::Errno;
use bdev::BlockDevice;
use home::Home;
use local::Local;
use reactor::{BUF_BYTES_MAX, Reactor, ReactorHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
pub use store::{ReservationStore, ReservedNamespace, Saved};
use thiserror::Error;
pub use traffic::{HostTraffic, Traffic};

/// Limits and habits of a target.
#[derive(Clone, Debug)]
pub struct Config {
    /// What controllers tell their hosts.
    pub model: TargetConfig,
    /// Most connections at once; further ones are closed at once.
    pub connections_max: usize,
    /// Grant header and data digests to hosts that ask for them.
    pub allow_digests: bool,
    /// End successful reads with a flag in the data PDU instead of a response capsule (TCP Transport 1.0, section 3.3.2.1).
    pub c2h_success: bool,
    /// Time from accepting a connection to a successful Connect, ns.
    pub handshake_timeout_ns: u64,
    /// Time from a successful Connect until a host that has to authenticate itself has done so, ns.
    pub authentication_timeout_ns: u64,
    /// Time for which a host may refuse to take data, or to send data that it was asked for, ns.
    pub stall_timeout_ns: u64,
    /// Bytes that a host must take in each `stall_timeout_ns` while more wait for it than its socket holds.
    pub stall_bytes_min: usize,
    /// Keeps reservations over a loss of power. Without it none last, and hosts are told so.
    pub reservation_store: Option<Arc<dyn ReservationStore>>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            model: TargetConfig::default(),
            connections_max: 4096,
            allow_digests: true,
            c2h_success: true,
            handshake_timeout_ns: 10_000_000_000,
            authentication_timeout_ns: 60_000_000_000,
            stall_timeout_ns: 30_000_000_000,
            stall_bytes_min: 64 << 10,
            reservation_store: None,
        }
    }
}

/// Why the target could not do what the node asked.
#[derive(Debug, Error)]
pub enum TargetError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {errno}{}", listen_hint(*errno))]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        errno: Errno,
    },
    /// Nothing can be encrypted there.
    #[error("cannot listen on {address} with TLS: {failure}")]
    Tls {
        /// Which.
        address: SocketAddr,
        /// Why.
        failure: TlsFailure,
    },
    /// No subsystem of this name.
    #[error("no subsystem '{0}'")]
    NoSuchSubsystem(String),
    /// The model refuses.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device cannot be exported.
    #[error("device '{device}' cannot be exported: {reason}")]
    Device {
        /// Which.
        device: String,
        /// Why.
        reason: String,
    },
    /// Reservations could not be changed.
    #[error("the reservations of namespace {nsid} of '{nqn}' are as they were: {reason}")]
    Reservations {
        /// The subsystem.
        nqn: String,
        /// The namespace.
        nsid: u32,
        /// Why.
        reason: &'static str,
    },
    /// The reactors have stopped.
    #[error("the target has stopped")]
    Stopped,
}

fn listen_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EADDRINUSE => "; another process listens there: choose another port or stop it",
        Errno::EADDRNOTAVAIL => "; no interface of this machine has that address",
        Errno::EACCES => "; ports below 1024 need privileges",
        _ => "",
    }
}

/// What queues take of a namespace.
#[derive(Clone)]
struct Export {
    device: Arc<dyn BlockDevice>,
    model: target::Namespace,
    /// What its reservation allows; `None` without one.
    access: Option<Arc<Access>>,
    /// The hosts that see it; `None` is every host.
    mask: Option<Mask>,
    /// At which ports it is reached; `None` is at all.
    ana: Option<Arc<AnaStates>>,
}

/// A namespace to be added to a subsystem.
pub struct NewNamespace {
    /// Its identifier; `None` is the lowest free one.
    pub nsid: Option<u32>,
    /// What stores its blocks.
    pub device: Arc<dyn BlockDevice>,
    /// Its identity.
    pub uuid: uuid::Uuid,
    /// The reservations that it had before a loss of power.
    pub reservations: Option<Table>,
    /// NQNs of the hosts that see it; `None` is every host.
    pub hosts: Option<Vec<String>>,
    /// Its group for asymmetric namespace access.
    pub ana_group: u32,
}

impl NewNamespace {
    /// One that every host sees, without reservations and under the lowest free identifier.
    pub fn new(device: Arc<dyn BlockDevice>, uuid: uuid::Uuid) -> NewNamespace {
        NewNamespace { nsid: None, device, uuid, reservations: None, hosts: None, ana_group: 1 }
    }
}

/// What all reactors share. The lock is taken when a queue meets a namespace for the first time after a change, and by
/// administration; never per command.
struct Shared {
    instance: u64,
    home: usize,
    config: Arc<Config>,
    exports: Mutex<BTreeMap<(SubsystemId, u32), Export>>,
    /// Changes with `exports`.
    generation: AtomicU64,
    connections: AtomicUsize,
    /// Failed commands on their way to the error log.
    records: AtomicUsize,
    loads: Vec<AtomicUsize>,
    meters: traffic::Meters,
    refusals: guests::Refusals,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(SubsystemId, u32), Export>> {
        self.exports.lock().expect("nothing panics while holding this lock")
    }

    fn export(&self, subsystem: SubsystemId, nsid: u32, export: Export) {
        self.lock().insert((subsystem, nsid), export);
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn set_access(&self, subsystem: SubsystemId, nsid: u32, access: Option<Access>) {
        let mut exports = self.lock();
        let Some(export) = exports.get_mut(&(subsystem, nsid)) else { return };
        // Every queue looks again after a change, so what is none must not look like one.
        if export.access.as_deref() != access.as_ref() {
            export.access = access.map(Arc::new);
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Who sees a namespace, and where it is reached.
    fn set_view(&self, subsystem: SubsystemId, nsid: u32, mask: Option<Mask>, ana: Option<Arc<AnaStates>>) {
        let mut exports = self.lock();
        let Some(export) = exports.get_mut(&(subsystem, nsid)) else { return };
        if (&export.mask, &export.ana) != (&mask, &ana) {
            (export.mask, export.ana) = (mask, ana);
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    fn unexport(&self, subsystem: SubsystemId, nsid: u32) {
        self.lock().remove(&(subsystem, nsid));
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn exported(&self, subsystem: SubsystemId, nsid: u32) -> Option<Export> {
        self.lock().get(&(subsystem, nsid)).cloned()
    }

    fn exports(&self) -> Vec<((SubsystemId, u32), Export)> {
        self.lock().iter().map(|(key, export)| (*key, export.clone())).collect()
    }

    fn namespace_ids(&self, subsystem: SubsystemId) -> Vec<u32> {
        self.lock().range((subsystem, 0)..=(subsystem, u32::MAX)).map(|((_, nsid), _)| *nsid).collect()
    }

    /// Counts a connection on a reactor; false when there are too many.
    fn connection_begun(&self, reactor: usize) -> bool {
        if self.connections.load(Ordering::Relaxed) >= self.config.connections_max {
            return false;
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.loads[reactor].fetch_add(1, Ordering::Relaxed);
        true
    }

    fn connection_ended(&self, reactor: usize) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        self.loads[reactor].fetch_sub(1, Ordering::Relaxed);
    }

    fn least_loaded(&self) -> usize {
        let load = |index: &usize| self.loads[*index].load(Ordering::Relaxed);
        (0..self.loads.len()).min_by_key(load).expect("a target has at least one reactor")
    }
}

/// A connected host, as the node shows it.
#[derive(Clone, Debug)]
pub struct HostInfo {
    /// Its NQN.
    pub host_nqn: String,
    /// The subsystem it uses.
    pub subsystem_nqn: String,
    /// The controller made for it.
    pub cntlid: u16,
    /// Its I/O queues.
    pub io_queues: usize,
    /// Its keep-alive timeout in ms; 0 is none.
    pub kato_ms: u32,
    /// Its host identifier.
    pub host_id: uuid::Uuid,
    /// Addresses that its connections come from, each once, that of its admin queue first.
    pub peers: Vec<IpAddr>,
    /// All of its connections are encrypted.
    pub tls: bool,
    /// It has authenticated itself on all of its connections.
    pub authenticated: bool,
    /// A limit holds it back now.
    pub throttled: bool,
}

/// The target's part on its home reactor: everything the node does with it. Use it there, or through [`TcpTarget`].
#[derive(Clone)]
pub struct TargetHome {
    reactor: Rc<Reactor>,
    shared: Arc<Shared>,
}

impl TargetHome {
    fn home(&self) -> Rc<Home> {
        Home::of(&self.reactor, &self.shared)
    }

    fn find(&self, nqn: &str) -> Result<SubsystemId, TargetError> {
        let parsed = Nqn::new(nqn).ok();
        let found = parsed.and_then(|nqn| self.home().with_target(|target| target.find_subsystem(&nqn)));
        found.ok_or_else(|| TargetError::NoSuchSubsystem(nqn.to_string()))
    }

    /// Listens on `address` (port 0 picks one); returns the address in use.
    pub fn listen(&self, address: SocketAddr) -> Result<SocketAddr, TargetError> {
        self.home().listen(address, false)
    }

    /// The same for a port where every connection is encrypted with TLS 1.3 and the key of its host.
    pub fn listen_tls(&self, address: SocketAddr) -> Result<SocketAddr, TargetError> {
        self.home().listen(address, true)
    }

    /// Adds a subsystem without namespaces.
    pub fn add_subsystem(&self, config: SubsystemConfig) -> Result<(), TargetError> {
        self.home().change(|target| target.add_subsystem(config))?;
        Ok(())
    }

    /// Removes a subsystem; its hosts are disconnected.
    pub fn remove_subsystem(&self, nqn: &str) -> Result<(), TargetError> {
        let id = self.find(nqn)?;
        self.home().change(|target| target.remove_subsystem(id))?;
        for nsid in self.shared.namespace_ids(id) {
            self.home().unexport(id, nsid);
        }
        Ok(())
    }

    /// Exports a device as a namespace of a subsystem, under `nsid` or the lowest free one; hosts are told.
    pub fn add_namespace(
        &self,
        nqn: &str,
        nsid: Option<u32>,
        device: Arc<dyn BlockDevice>,
        uuid: uuid::Uuid,
    ) -> Result<u32, TargetError> {
        self.show_namespace(nqn, NewNamespace { nsid, ..NewNamespace::new(device, uuid) })
    }

    /// The same, with all that may be said of a namespace.
    pub fn show_namespace(&self, nqn: &str, new: NewNamespace) -> Result<u32, TargetError> {
        let id = self.find(nqn)?;
        let mask = new.hosts.map(|hosts| parse_mask(&hosts)).transpose()?;
        let mut model = model_of(&*new.device, new.uuid, self.shared.config.model.transfer_len_max)?;
        model.ana_group = new.ana_group;
        let export = Export { device: new.device, model, access: None, mask, ana: None };
        Ok(self.home().add_namespace(id, new.nsid, export, new.reservations)?)
    }

    /// Shows a namespace to these hosts alone, or to every host that may connect; hosts for which it comes or goes are told,
    /// commands under way complete.
    pub fn set_namespace_hosts(&self, nqn: &str, nsid: u32, hosts: Option<&[String]>) -> Result<(), TargetError> {
        let id = self.find(nqn)?;
        let mask = hosts.map(parse_mask).transpose()?;
        self.home().change(|target| target.set_mask(id, nsid, mask))?;
        Ok(())
    }

    /// The reservations of a subsystem's namespaces, those with which nobody has registered left out.
    pub fn reservations(&self, nqn: &str) -> Result<Vec<(u32, Table)>, TargetError> {
        let id = self.find(nqn)?;
        Ok(self.home().with_target(|target| {
            let nsids = target.subsystem(id).into_iter().flat_map(|found| found.namespaces()).map(|(nsid, _)| nsid);
            let tables = nsids.map(|nsid| (nsid, target.reservations(id, nsid).clone()));
            tables.filter(|(_, table)| !table.registrants().is_empty()).collect()
        }))
    }

    /// Ends the registration of one host with a namespace, or all of them with the reservation. Hosts are told; durable where it has
    /// to be, and in force, when it returns. The reservation store is asked meanwhile.
    pub async fn clear_reservations(&self, nqn: &str, nsid: u32, host: Option<HostId>) -> Result<(), TargetError> {
        let id = self.find(nqn)?;
        let cleared = self.home().clear_reservations((id, nsid), host).await;
        cleared.map_err(|status| TargetError::Reservations {
            nqn: nqn.to_string(),
            nsid,
            reason: match status.kind() {
                Status::INVALID_NAMESPACE => "there is no such namespace any more",
                Status::RESERVATION_CONFLICT => "the host is not registered any more",
                Status::NAMESPACE_NOT_READY => {
                    "it is being formatted, or a host changes its reservations; try again then"
                }
                _ => "the change could not be made durable; see the node's log",
            },
        })
    }

    /// Removes a namespace; hosts are told, commands under way complete.
    pub fn remove_namespace(&self, nqn: &str, nsid: u32) -> Result<(), TargetError> {
        let id = self.find(nqn)?;
        self.home().change(|target| target.remove_namespace(id, nsid))?;
        Ok(())
    }

    /// Looks at the sizes of all exported devices again; hosts of those that changed are told.
    pub fn refresh_sizes(&self) {
        self.home().refresh_sizes();
    }

    /// Lets a host use a subsystem.
    pub fn allow_host(&self, nqn: &str, host: &str) -> Result<(), TargetError> {
        let id = self.find(nqn)?;
        let host = parse_nqn(host)?;
        self.home().change(|target| target.allow_host(id, host))?;
        Ok(())
    }

    /// States how a host authenticates to a subsystem from its next connection on; `None` is not at all. Pairs of keys but
    /// the first are good for `former_for_ns` from now on.
    pub fn set_host_policy(
        &self,
        nqn: &str,
        host: &str,
        policy: Option<Policy>,
        former_for_ns: u64,
    ) -> Result<(), TargetError> {
        let id = self.find(nqn)?;
        let host = parse_nqn(host)?;
        let former_until_ns = Some(self.reactor.now_ns().saturating_add(former_for_ns));
        let policy = policy.map(|policy| target::HostPolicy { policy, former_until_ns });
        self.home().change(|target| target.set_host_policy(id, &host, policy))?;
        Ok(())
    }

    /// States with which keys for TLS a host connects to a subsystem from its next connection on; none is without TLS. Keys but
    /// the first are good for `former_for_ns` from now on.
    pub fn set_host_psks(
        &self,
        nqn: &str,
        host: &str,
        keys: Vec<Arc<Psk>>,
        former_for_ns: u64,
    ) -> Result<(), TargetError> {
        let id = self.find(nqn)?;
        let host = parse_nqn(host)?;
        let former_until_ns = Some(self.reactor.now_ns().saturating_add(former_for_ns));
        let psks = (!keys.is_empty()).then_some(HostPsks { keys, former_until_ns });
        self.home().change(|target| target.set_host_psks(id, &host, psks))?;
        Ok(())
    }

    /// Locks a host out of a subsystem and disconnects it.
    pub fn disallow_host(&self, nqn: &str, host: &str) -> Result<(), TargetError> {
        let id = self.find(nqn)?;
        let host = parse_nqn(host)?;
        self.home().change(|target| target.disallow_host(id, &host))?;
        Ok(())
    }

    /// Opens a subsystem to every host, or to the listed ones only.
    pub fn set_allow_any_host(&self, nqn: &str, allow: bool) -> Result<(), TargetError> {
        let id = self.find(nqn)?;
        self.home().change(|target| target.set_allow_any_host(id, allow))?;
        Ok(())
    }

    /// Other discovery services that hosts are told of, all of them.
    pub fn set_referrals(&self, referrals: BTreeSet<SocketAddr>) {
        self.home().change(|target| target.set_referrals(referrals));
    }

    /// Gives a group of a subsystem's namespaces other states of asymmetric access; hosts at ports where it changes are told,
    /// commands under way complete.
    pub fn set_ana(&self, nqn: &str, group: u32, states: AnaStates) -> Result<(), TargetError> {
        let id = self.find(nqn)?;
        self.home().change(|target| target.set_ana(id, group, states))?;
        Ok(())
    }

    /// Limits what a host may do, over all of its connections; zero is no limit.
    pub fn set_host_limits(&self, host: &str, limits: bdev::Limits) -> Result<(), TargetError> {
        self.shared.meters.set(&parse_nqn(host)?, limits, self.shared.loads.len());
        Ok(())
    }

    /// What each host has done that is connected or has limits.
    pub fn traffic(&self) -> Vec<HostTraffic> {
        self.shared.meters.all()
    }

    /// The hosts that are connected now.
    pub fn hosts(&self) -> Vec<HostInfo> {
        let (home, now_ns) = (self.home(), self.reactor.now_ns());
        home.with_target(|target| {
            let describe = |(handle, controller): (target::ControllerHandle, &target::Controller)| {
                let places = home.places(handle);
                let mut peers: Vec<IpAddr> = Vec::new();
                for ip in places.iter().map(|place| place.peer.ip()) {
                    if !peers.contains(&ip) {
                        peers.push(ip);
                    }
                }
                HostInfo {
                    host_nqn: controller.host_nqn().to_string(),
                    subsystem_nqn: target
                        .subsystem(controller.subsystem())
                        .map(|s| s.nqn().to_string())
                        .unwrap_or_default(),
                    cntlid: controller.cntlid(),
                    io_queues: controller.queues().filter(|qid| *qid > 0).count(),
                    kato_ms: controller.kato_ms(),
                    host_id: uuid::Uuid::from_bytes(*controller.host_id()),
                    peers,
                    tls: !places.is_empty() && places.iter().all(|place| place.tls),
                    authenticated: !places.is_empty() && places.iter().all(|place| place.authenticated),
                    throttled: self.shared.meters.is_throttled(controller.host_nqn(), now_ns),
                }
            };
            target.controllers().map(describe).collect()
        })
    }

    /// How often hosts were turned away, by reason.
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        WhyRefused::LABELS.into_iter().zip(self.shared.refusals.counts()).collect()
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Stops listening and ends every connection on every reactor; listening again is possible.
    pub fn close(&self) {
        self.home().stop_listening();
        for index in 0..self.shared.loads.len() {
            let shared = self.shared.clone();
            self.reactor.post(index, move |reactor| Local::of(reactor, &shared).close());
        }
    }
}

fn parse_nqn(text: &str) -> Result<Nqn, TargetError> {
    Nqn::new(text).map_err(|_| TargetError::NoSuchSubsystem(text.to_string()))
}

fn parse_mask(hosts: &[String]) -> Result<Mask, TargetError> {
    Ok(Arc::new(hosts.iter().map(|host| parse_nqn(host)).collect::<Result<_, _>>()?))
}

fn model_of(
    device: &dyn BlockDevice,
    uuid: uuid::Uuid,
    transfer_len_max: u32,
) -> Result<target::Namespace, TargetError> {
    let info = device.info();
    let refuse = |reason: &str| TargetError::Device { device: device.name().to_string(), reason: reason.to_string() };
    let io_bytes_max = u64::from(info.max_io_blocks) * u64::from(info.block_size);
    if info.zoned.is_some() && io_bytes_max < u64::from(transfer_len_max) {
        return Err(refuse("an append to a zone cannot be split, and it takes less at once than a host may send"));
    }
    if info.blocks == 0 {
        return Err(refuse("it has no blocks"));
    }
    let mut model = target::Namespace::new(info.block_size.trailing_zeros() as u8, info.blocks, uuid);
    model.read_only = !info.ops.contains(bdev::Op::Write);
    model.volatile_cache = info.volatile_cache;
    model.crypto_erase = info.ops.contains(bdev::Op::CryptoErase);
    model.write_uncorrectable = info.ops.contains(bdev::Op::WriteUncorrectable);
    model.deallocate = info.ops.contains(bdev::Op::Unmap) && info.unmap_reads_zero;
    model.optimal_write_blocks = u16::try_from(info.optimal_io_blocks).unwrap_or(0);
    model.copy_range_blocks_max = info.max_io_blocks.clamp(1, u16::MAX.into()) as u16;
    model.zoned = info.zoned.map(|zoned| target::Zoned {
        zone_blocks: zoned.zone_blocks,
        open_zones_max: zoned.open_zones_max,
        active_zones_max: zoned.active_zones_max,
        extension_bytes: zoned.extension_bytes,
    });
    model.atomic_write_blocks = info.atomic_write_blocks.max(1);
    model.atomic_boundary_blocks = u16::try_from(info.atomic_boundary_blocks).unwrap_or(0);
    Ok(model)
}

/// A running target, usable from any thread that is no reactor.
#[derive(Clone)]
pub struct TcpTarget {
    home: ReactorHandle,
    shared: Arc<Shared>,
}

impl TcpTarget {
    /// A target on these reactors, which are one group; the first is its home. Nothing listens yet.
    pub fn new(reactors: &[ReactorHandle], mut config: Config) -> TcpTarget {
        static NEXT_INSTANCE: AtomicU64 = AtomicU64::new(1);
        let home = reactors.first().expect("a target needs a reactor").clone();
        config.model.persists_reservations = config.reservation_store.is_some();
        assert!(config.model.transfer_len_max as usize <= BUF_BYTES_MAX, "a transfer fits into one buffer");
        let shared = Shared {
            // An identity, not an order: it never reaches a trace.
            instance: NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed),
            home: home.index(),
            config: Arc::new(config),
            exports: Mutex::default(),
            generation: AtomicU64::new(1),
            connections: AtomicUsize::new(0),
            records: AtomicUsize::new(0),
            loads: reactors.iter().map(|_| AtomicUsize::new(0)).collect(),
            meters: traffic::Meters::default(),
            refusals: guests::Refusals::default(),
        };
        TcpTarget { home, shared: Arc::new(shared) }
    }

    /// The home part, for code that runs on the home reactor.
    pub fn at_home(&self, reactor: &Rc<Reactor>) -> TargetHome {
        assert_eq!(reactor.index(), self.shared.home, "the home part lives on the home reactor");
        TargetHome { reactor: reactor.clone(), shared: self.shared.clone() }
    }

    /// Does something with the target on its home reactor, and waits for the result.
    pub fn call<T: Send + 'static>(
        &self,
        action: impl FnOnce(&TargetHome) -> Result<T, TargetError> + Send + 'static,
    ) -> Result<T, TargetError> {
        let this = self.clone();
        self.home.call(move |reactor| action(&this.at_home(reactor))).unwrap_or(Err(TargetError::Stopped))
    }
}
