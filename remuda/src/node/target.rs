//! Subsystems through the NVMe/TCP target: brings it from what it shows to what it should show.

use super::export::{Answer, ExportCounters, Exporter, NamespaceSpec, SubsystemSpec};
use super::reactors::on_reactor;
use super::refusal::Refusal;
use super::reservations::ReservationDoor;
use super::state::AnaRecord;
use crate::config::NvmfConfig;
use base::Errno;
use bdev::Limits;
use nvme::spec::Nqn;
use nvme::spec::ana::AnaState;
use nvme::target::reservation::{HostId, Table};
use nvme::target::{AnaStates, SubsystemConfig, TargetConfig};
use nvme::tcp_target::{Config, HostTraffic, NewNamespace, TargetError, TargetHome, TcpTarget};
use reactor::ReactorHandle;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::oneshot;

/// How long a stopping target waits for its connections to end, and how often it looks.
const DRAIN_LOOK: std::time::Duration = std::time::Duration::from_millis(2);

/// How long a killed node's address may take to become free.
const LISTEN_PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts to listen.
const LISTEN_PAUSE: Duration = Duration::from_millis(1);

/// A listening NVMe/TCP target.
pub struct TcpExporter {
    target: TcpTarget,
    home: ReactorHandle,
    addresses: RefCell<Vec<SocketAddr>>,
    tls_addresses: RefCell<Vec<SocketAddr>>,
    shown: RefCell<BTreeMap<String, SubsystemSpec>>,
}

impl TcpExporter {
    /// A target on all reactors, which has reservations kept behind `door`; it does not listen yet.
    pub fn new(config: &NvmfConfig, reactors: &[ReactorHandle], door: ReservationDoor) -> TcpExporter {
        let defaults = TargetConfig::default();
        let model = TargetConfig {
            io_queues_max: config.io_queues,
            queue_entries_max: config.queue_size,
            transfer_len_max: config.max_io_size,
            capsule_data_max: config.in_capsule_size,
            ..defaults
        };
        let config = Config {
            model,
            connections_max: config.max_connections as usize,
            allow_digests: config.digests,
            stall_timeout_ns: config.stall_timeout_ns,
            stall_bytes_min: config.stall_bytes_min,
            reservation_store: Some(Arc::new(door)),
            ..Config::default()
        };
        TcpExporter {
            target: TcpTarget::new(reactors, config),
            home: reactors[0].clone(),
            addresses: RefCell::default(),
            tls_addresses: RefCell::default(),
            shown: RefCell::default(),
        }
    }

    async fn at_home<T: Send + 'static>(
        &self,
        object: &str,
        action: impl FnOnce(&TargetHome) -> Result<T, TargetError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let target = self.target.clone();
        let done = on_reactor(&self.home, move |reactor| action(&target.at_home(reactor))).await?;
        done.map_err(|error| Refusal::failed(object, error, ""))
    }

    /// A node that was killed a moment ago may still hold the address: the kernel takes a dead process's io_uring apart in
    /// the background, and its listening socket with it. Waiting a little is what makes restarts dependable.
    async fn listen_patiently(&self, address: SocketAddr, tls: bool) -> Result<SocketAddr, Refusal> {
        let deadline = Instant::now() + LISTEN_PATIENCE;
        let listen = move |home: &TargetHome| if tls { home.listen_tls(address) } else { home.listen(address) };
        loop {
            let attempt = self.at_home("NVMe/TCP target", move |home| match listen(home) {
                Err(TargetError::Listen { errno: Errno::EADDRINUSE, .. }) if Instant::now() < deadline => Ok(None),
                outcome => outcome.map(Some),
            });
            match attempt.await? {
                Some(address) => return Ok(address),
                None => tokio::time::sleep(LISTEN_PAUSE).await,
            }
        }
    }

    async fn change(&self, now: SubsystemSpec) -> Result<(), Refusal> {
        let object = format!("subsystem '{}'", now.nqn);
        let before = self.shown.borrow().get(&now.nqn).cloned();
        let wished = now.clone();
        self.at_home(&object, move |home| bring(home, before, &wished)).await?;
        self.shown.borrow_mut().insert(now.nqn.clone(), now);
        Ok(())
    }
}

/// Takes the steps from `before` to `now`. Hosts lose permissions first and gain them last.
fn bring(home: &TargetHome, before: Option<SubsystemSpec>, now: &SubsystemSpec) -> Result<(), TargetError> {
    let nqn = now.nqn.as_str();
    let before = match before {
        Some(before) => before,
        None => {
            let name = Nqn::new(nqn).map_err(|_| TargetError::NoSuchSubsystem(nqn.to_string()))?;
            let config = SubsystemConfig {
                serial: now.serial.clone(),
                model: now.model.clone(),
                allow_any_host: false,
                ..SubsystemConfig::new(name)
            };
            let controller_ids = now.controller_ids.unwrap_or(config.controller_ids);
            let config = SubsystemConfig { controller_ids, ..config };
            home.add_subsystem(config)?;
            let (hosts, keys, tls_keys) = (Vec::new(), Vec::new(), Vec::new());
            let (namespaces, ana) = (Vec::new(), Vec::new());
            SubsystemSpec { allow_any_host: false, hosts, keys, tls_keys, namespaces, ana, ..now.clone() }
        }
    };
    for key in now.keys.iter().filter(|key| !before.keys.contains(key)) {
        home.set_host_policy(nqn, &key.host, Some(key.policy.clone()), left_ns(key.former_until))?;
    }
    for key in now.tls_keys.iter().filter(|key| !before.tls_keys.contains(key)) {
        home.set_host_psks(nqn, &key.host, key.keys.clone(), left_ns(key.former_until))?;
    }
    for host in before.hosts.iter().filter(|host| !now.hosts.contains(host)) {
        home.disallow_host(nqn, host)?;
    }
    let (states_before, states) = (ana_states(&before.ana), ana_states(&now.ana));
    for group in states_before.keys().chain(states.keys()) {
        if states_before.get(group) != states.get(group) {
            home.set_ana(nqn, *group, states.get(group).cloned().unwrap_or_default())?;
        }
    }
    let same = |old: &NamespaceSpec, new: &NamespaceSpec| {
        (old.nsid, old.uuid, old.ana_group) == (new.nsid, new.uuid, new.ana_group)
    };
    for old in &before.namespaces {
        let stays = now.namespaces.iter().any(|new| same(old, new));
        if !stays {
            home.remove_namespace(nqn, old.nsid)?;
        }
    }
    for new in &now.namespaces {
        let there = before.namespaces.iter().any(|old| same(old, new));
        if !there {
            let shown = NewNamespace {
                nsid: Some(new.nsid),
                reservations: new.reservations.clone(),
                hosts: new.hosts.clone(),
                ana_group: new.ana_group,
                ..NewNamespace::new(new.device.clone(), new.uuid)
            };
            home.show_namespace(nqn, shown)?;
        } else if !before.namespaces.iter().any(|old| old.nsid == new.nsid && old.hosts == new.hosts) {
            home.set_namespace_hosts(nqn, new.nsid, new.hosts.as_deref())?;
        }
    }
    home.refresh_sizes();
    for host in now.hosts.iter().filter(|host| !before.hosts.contains(host)) {
        home.allow_host(nqn, host)?;
    }
    for key in before.keys.iter().filter(|key| !now.keys.iter().any(|kept| kept.host == key.host)) {
        home.set_host_policy(nqn, &key.host, None, 0)?;
    }
    for key in before.tls_keys.iter().filter(|key| !now.tls_keys.iter().any(|kept| kept.host == key.host)) {
        home.set_host_psks(nqn, &key.host, Vec::new(), 0)?;
    }
    if before.allow_any_host != now.allow_any_host {
        home.set_allow_any_host(nqn, now.allow_any_host)?;
    }
    Ok(())
}

/// Nanoseconds from now until then.
fn left_ns(until: SystemTime) -> u64 {
    let left = until.duration_since(SystemTime::now()).unwrap_or_default();
    u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)
}

/// The states of each group.
fn ana_states(records: &[AnaRecord]) -> BTreeMap<u32, AnaStates> {
    let mut groups: BTreeMap<u32, AnaStates> = BTreeMap::new();
    for AnaRecord { group, port, state } in records {
        let states = groups.entry(*group).or_default();
        let state = AnaState::from_name(state).unwrap_or_default();
        match port {
            Some(port) => drop(states.ports.insert(*port, state)),
            None => states.everywhere = state,
        }
    }
    groups
}

impl Exporter for TcpExporter {
    fn listen(&self, plain: Vec<SocketAddr>, tls: Vec<SocketAddr>) -> Answer<'_, Result<(), Refusal>> {
        Box::pin(async move {
            for address in plain {
                let address = self.listen_patiently(address, false).await?;
                self.addresses.borrow_mut().push(address);
            }
            for address in tls {
                let address = self.listen_patiently(address, true).await?;
                self.tls_addresses.borrow_mut().push(address);
            }
            Ok(())
        })
    }

    fn refer(&self, addresses: Vec<SocketAddr>) -> Answer<'_, Result<(), Refusal>> {
        Box::pin(self.at_home("NVMe/TCP target", move |home| {
            home.set_referrals(addresses.into_iter().collect());
            Ok(())
        }))
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.borrow().clone()
    }

    fn tls_addresses(&self) -> Vec<SocketAddr> {
        self.tls_addresses.borrow().clone()
    }

    fn put(&self, subsystem: SubsystemSpec) -> Answer<'_, Result<(), Refusal>> {
        Box::pin(self.change(subsystem))
    }

    fn remove<'a>(&'a self, nqn: &'a str) -> Answer<'a, Result<(), Refusal>> {
        Box::pin(async move {
            let name = nqn.to_string();
            self.at_home(&format!("subsystem '{nqn}'"), move |home| home.remove_subsystem(&name)).await?;
            self.shown.borrow_mut().remove(nqn);
            Ok(())
        })
    }

    fn limit<'a>(&'a self, host: &'a str, limits: Limits) -> Answer<'a, Result<(), Refusal>> {
        let name = host.to_string();
        Box::pin(async move {
            self.at_home(&format!("host '{host}'"), move |home| home.set_host_limits(&name, limits)).await
        })
    }

    fn traffic(&self) -> Answer<'_, Vec<HostTraffic>> {
        Box::pin(async move { self.at_home("NVMe/TCP target", |home| Ok(home.traffic())).await.unwrap_or_default() })
    }

    fn counters(&self) -> Answer<'_, ExportCounters> {
        Box::pin(async move {
            let counted = self.at_home("NVMe/TCP target", |home| {
                let hosts = home.hosts().into_iter().map(|host| super::view::ConnectedHost {
                    host: host.host_nqn,
                    subsystem: host.subsystem_nqn,
                    controller: host.cntlid,
                    io_queues: host.io_queues,
                    keep_alive_ms: host.kato_ms,
                    host_id: host.host_id,
                    peers: host.peers.iter().map(ToString::to_string).collect(),
                    tls: host.tls,
                    authenticated: host.authenticated,
                    throttled: host.throttled,
                });
                let (connections, refusals) = (home.connections() as u64, home.refusals());
                Ok(ExportCounters { connections, hosts: hosts.collect(), refusals })
            });
            counted.await.unwrap_or_default()
        })
    }

    fn reservations<'a>(&'a self, nqn: &'a str) -> Answer<'a, Vec<(u32, Table)>> {
        Box::pin(async move {
            let name = nqn.to_string();
            let tables = self.at_home(nqn, move |home| home.reservations(&name)).await;
            tables.unwrap_or_default()
        })
    }

    fn reservations_of(&self, nqns: Vec<String>) -> Answer<'_, Vec<Vec<(u32, Table)>>> {
        Box::pin(async move {
            let each =
                move |home: &TargetHome| nqns.iter().map(|nqn| home.reservations(nqn).unwrap_or_default()).collect();
            self.at_home("NVMe/TCP target", move |home| Ok(each(home))).await.unwrap_or_default()
        })
    }

    fn clear_reservations(&self, nqn: &str, nsid: u32, host: Option<HostId>) -> oneshot::Receiver<Result<(), String>> {
        let (reply, cleared) = oneshot::channel();
        let (target, nqn) = (self.target.clone(), nqn.to_string());
        self.home.run(move |reactor| {
            let home = target.at_home(reactor);
            reactor.spawn(async move {
                let outcome = home.clear_reservations(&nqn, nsid, host).await;
                let _ = reply.send(outcome.map_err(|error| error.to_string()));
            });
        });
        cleared
    }

    fn drain(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let closing = self.at_home("NVMe/TCP target", |home| {
                home.close();
                Ok(())
            });
            let _ = closing.await;
            loop {
                let left = self.at_home("NVMe/TCP target", |home| Ok(home.connections())).await;
                if left.unwrap_or(0) == 0 {
                    return;
                }
                tokio::time::sleep(DRAIN_LOOK).await;
            }
        })
    }
}
