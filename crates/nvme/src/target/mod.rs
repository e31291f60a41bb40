//! The target without I/O: subsystems, namespaces, controllers and queues as a host sees them.
//!
//! [`Target`] owns every subsystem and controller of a node and belongs to one reactor: Connect, Fabrics and admin commands of
//! all queues are brought to it; they are rare. I/O commands never pass through it: each queue decodes its own with [`io`]
//! against the [`Namespace`] values that it was given, on its own reactor.
//!
//! Time is an argument (`now_ns`, any monotonic origin). What the target wants done is collected as [`TargetEvent`]s: after
//! every call, take them with [`Target::poll_event`]; call [`Target::handle_timeout`] when [`Target::poll_timeout`] is due.
#![forbid(unsafe_code)]

mod admin;
mod ana;
mod auth;
mod changed_zones;
mod connect;
mod controller;
mod discovery;
mod event;
mod feature;
mod format;
mod identify;
mod identity;
mod instance;
pub mod io;
mod log;
mod mask;
mod model;
pub mod queue;
mod refusal;
pub mod reservation;
mod reserve;
#[cfg(test)]
mod tests;
mod timestamp;
mod tls;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

pub use admin::{AdminOutcome, cross_reset_done};
pub use ana::{ANA_GROUPS_MAX, AnaStates};
pub use auth::{AuthOutcome, HostPolicy};
pub use connect::Connected;
pub use controller::{Controller, ControllerState};
pub use event::AER_MAX;
use instance::Instances;
pub use mask::{Mask, shows};
pub use model::{COPY_RANGES_MAX, Health, ModelError, Namespace, Subsystem, SubsystemConfig, TargetConfig, Zoned};
pub use refusal::{RefusedConnect, WhyRefused};
pub use reserve::{Keep, PlannedReservation};

use bdev::ChangedZones;

use crate::auth::ControllerSide;
use crate::spec::opcode::{FABRICS, FabricsType};
use crate::spec::{Cqe, Nqn, Sqe, Status, fabrics};
use crate::tls::Keyring;
use discovery::Port;

/// A controller, for as long as the target lives; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerHandle(u64);

/// A subsystem, for as long as the target lives; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubsystemId(u32);

/// Why a controller has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyClosed {
    /// See [`Target::handle_timeout`].
    #[error("nothing was heard of it for its keep-alive time")]
    Silent,
    /// The connection of its admin queue is gone.
    #[error("its admin queue is gone")]
    QueueGone,
    /// The host has lost its access, or there is nothing left to have access to.
    #[error("disconnected by this node, which takes its access away")]
    Revoked,
    /// Another host has proven itself with the same host identifier.
    #[error("another host has proven to own its host identifier")]
    IdentifierOwned,
    /// The host asked for it at another of its controllers (Cross-Controller Reset).
    #[error("its host has ended it from another controller")]
    CrossReset,
}

/// What the target wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetEvent {
    /// Send this completion on the controller's admin queue: an asynchronous event, or an aborted request for one.
    Complete {
        /// Whose admin queue.
        controller: ControllerHandle,
        /// The completion.
        cqe: Cqe,
    },
    /// Close the connection of this I/O queue.
    CloseQueue {
        /// Whose queue.
        controller: ControllerHandle,
        /// Which, from one.
        qid: u16,
    },
    /// Close all connections of a controller. It no longer exists.
    CloseController {
        /// Which.
        controller: ControllerHandle,
        /// Why it has ended.
        why: WhyClosed,
    },
    /// A controller was reset, and its queues were closed with [`TargetEvent::CloseQueue`]: when no command of any queue
    /// that it ever had is carried out any more, call [`Target::reset_complete`].
    Reset {
        /// Which.
        controller: ControllerHandle,
    },
    /// The host asks for a shutdown: make what it wrote durable, then call [`Target::shutdown_complete`].
    Shutdown {
        /// Whose host.
        controller: ControllerHandle,
    },
    /// From now on writes of this controller are durable when they complete (`false`), or need a flush (`true`).
    WriteCache {
        /// Which controller.
        controller: ControllerHandle,
        /// Volatile write cache enabled.
        enabled: bool,
    },
    /// What a namespace's reservations allow has changed: I/O queues take the new [`Target::access`] before the change is
    /// acknowledged.
    ReservationChanged {
        /// Which subsystem.
        subsystem: SubsystemId,
        /// Which namespace.
        nsid: u32,
    },
    /// A namespace of a subsystem was added, removed or changed, is seen by other hosts, or its group has other states: I/O
    /// queues take the new [`Target::namespace`], [`Subsystem::mask`] and [`Subsystem::ana`] before the hosts hear of it.
    NamespaceChanged {
        /// Which subsystem.
        subsystem: SubsystemId,
        /// Which namespace.
        nsid: u32,
    },
}

/// Everything that hosts can see of a node.
#[derive(Debug)]
pub struct Target {
    config: TargetConfig,
    subsystems: BTreeMap<SubsystemId, Subsystem>,
    controllers: BTreeMap<ControllerHandle, Controller>,
    /// Reservations of namespaces with which anybody has registered.
    tables: BTreeMap<(SubsystemId, u32), reservation::Table>,
    /// Authentications of queues, of those that have begun one.
    dialogues: BTreeMap<(ControllerHandle, u16), ControllerSide>,
    /// Hosts that have proven who they are, by the identifiers that are theirs.
    owners: BTreeMap<reservation::HostId, Nqn>,
    ports: BTreeMap<u16, Port>,
    /// Keys for encrypted connections.
    keyring: Keyring,
    /// Other discovery services that hosts are told of.
    referrals: BTreeSet<SocketAddr>,
    /// Generation of the discovery log: changes whenever any host's view of it may.
    generation: u64,
    next_subsystem: u32,
    next_controller: u64,
    instances: Instances,
    events: VecDeque<TargetEvent>,
}

/// The discovery subsystem, always there.
const DISCOVERY: SubsystemId = SubsystemId(0);

impl Target {
    /// A target with nothing but the discovery subsystem. `seed` is another one each time a node starts: from it come the
    /// random numbers by which hosts tell controllers apart that had the same identifier.
    pub fn new(config: TargetConfig, seed: u64) -> Self {
        config.assert_valid();
        let mut subsystems = BTreeMap::new();
        subsystems.insert(DISCOVERY, Subsystem::discovery());
        Target {
            config,
            subsystems,
            controllers: BTreeMap::new(),
            tables: BTreeMap::new(),
            dialogues: BTreeMap::new(),
            owners: BTreeMap::new(),
            ports: BTreeMap::new(),
            keyring: Keyring::default(),
            referrals: BTreeSet::new(),
            generation: 1,
            next_subsystem: DISCOVERY.0 + 1,
            next_controller: 1,
            instances: Instances::new(seed),
            events: VecDeque::new(),
        }
    }

    /// The limits that it was built with.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// A controller, if it still exists.
    pub fn controller(&self, handle: ControllerHandle) -> Option<&Controller> {
        self.controllers.get(&handle)
    }

    /// Every controller, in order of creation.
    pub fn controllers(&self) -> impl Iterator<Item = (ControllerHandle, &Controller)> {
        self.controllers.iter().map(|(handle, controller)| (*handle, controller))
    }

    /// The next thing to do, if any.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] must be called next.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.controllers.values().filter_map(Controller::deadline_ns).min()
    }

    /// Ends controllers whose host has been silent for longer than its keep alive timeout.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        let silent: Vec<_> = self.silent(now_ns).collect();
        for handle in silent {
            self.close_controller(handle, WhyClosed::Silent);
        }
    }

    /// The controllers that [`Self::handle_timeout`] would end.
    pub fn silent(&self, now_ns: u64) -> impl Iterator<Item = ControllerHandle> + '_ {
        let is_due = move |controller: &Controller| controller.deadline_ns().is_some_and(|due_ns| due_ns <= now_ns);
        self.controllers.iter().filter(move |(_, controller)| is_due(controller)).map(|(handle, _)| *handle)
    }

    /// The host was heard on any of the controller's queues.
    pub fn note_activity(&mut self, now_ns: u64, handle: ControllerHandle) {
        if let Some(controller) = self.controllers.get_mut(&handle) {
            controller.note_activity(now_ns);
        }
    }

    /// Processes a Fabrics command other than Connect, of queue `qid` of a controller. The second value says that the queue's
    /// connection is to be closed once the answer is sent (Disconnect).
    pub fn fabrics(&mut self, now_ns: u64, handle: ControllerHandle, qid: u16, sqe: &Sqe) -> (Cqe, bool) {
        assert_eq!(sqe.opcode, FABRICS);
        let cid = sqe.cid.get();
        let refuse = |status: Status| (Cqe::new(cid, status.dnr()), false);
        let Some(controller) = self.controllers.get_mut(&handle) else {
            return refuse(Status::ABORTED_SQ_DELETION);
        };
        controller.note_activity(now_ns);
        match fabrics::fabrics_type(sqe) {
            Some(FabricsType::Connect) => refuse(Status::COMMAND_SEQUENCE_ERROR),
            Some(FabricsType::Disconnect) if qid == 0 => refuse(Status::INVALID_QUEUE_TYPE),
            Some(FabricsType::Disconnect) if fabrics::disconnect_record_format(sqe) != 0 => {
                refuse(Status::CONNECT_INCOMPATIBLE_FORMAT)
            }
            Some(FabricsType::Disconnect) => {
                controller.remove_queue(qid);
                (Cqe::success(cid, 0), true)
            }
            Some(FabricsType::PropertyGet) if qid == 0 => (controller.property_get(sqe), false),
            Some(FabricsType::PropertySet) if qid == 0 => {
                (controller.property_set(sqe, handle, &mut self.instances, &mut self.events), false)
            }
            // A type that is unknown, or not for this queue. Authentication comes with data and goes another way.
            _ => refuse(Status::INVALID_OPCODE),
        }
    }

    /// A queue's connection is gone, for whatever reason. The end of the admin queue is the end of the controller.
    pub fn queue_closed(&mut self, handle: ControllerHandle, qid: u16) {
        self.dialogues.remove(&(handle, qid));
        if qid == 0 {
            self.close_controller(handle, WhyClosed::QueueGone);
        } else if let Some(controller) = self.controllers.get_mut(&handle) {
            controller.remove_queue(qid);
        }
    }

    /// Answers [`TargetEvent::Reset`].
    pub fn reset_complete(&mut self, handle: ControllerHandle) {
        if let Some(controller) = self.controllers.get_mut(&handle) {
            controller.reset_complete(handle, &mut self.events);
        }
    }

    /// Answers [`TargetEvent::Shutdown`].
    pub fn shutdown_complete(&mut self, handle: ControllerHandle) {
        if let Some(controller) = self.controllers.get_mut(&handle) {
            controller.shutdown_complete();
        }
    }

    fn close_controller(&mut self, handle: ControllerHandle, why: WhyClosed) {
        if self.controllers.remove(&handle).is_some() {
            self.dialogues.retain(|(of, _), _| *of != handle);
            self.events.push_back(TargetEvent::CloseController { controller: handle, why });
        }
    }

    fn close_controllers_where(&mut self, why: WhyClosed, unwanted: impl Fn(&Controller) -> bool) {
        let handles: BTreeSet<_> =
            self.controllers.iter().filter(|(_, controller)| unwanted(controller)).map(|(handle, _)| *handle).collect();
        for handle in handles {
            self.close_controller(handle, why);
        }
    }
}

/// Administration of the node: what exists, who may see it.
impl Target {
    /// Adds a subsystem without namespaces.
    pub fn add_subsystem(&mut self, config: SubsystemConfig) -> Result<SubsystemId, ModelError> {
        if self.find_subsystem(&config.nqn).is_some() {
            return Err(ModelError::SubsystemExists(config.nqn));
        }
        let id = SubsystemId(self.next_subsystem);
        self.next_subsystem += 1;
        self.subsystems.insert(id, Subsystem::new(config)?);
        self.discovery_changed();
        Ok(id)
    }

    /// Removes a subsystem and ends its controllers.
    pub fn remove_subsystem(&mut self, id: SubsystemId) -> Result<(), ModelError> {
        let removed = if id == DISCOVERY { None } else { self.subsystems.remove(&id) };
        self.keyring.forget(removed.ok_or(ModelError::NoSuchSubsystem)?.nqn());
        self.close_controllers_where(WhyClosed::Revoked, |controller| controller.subsystem() == id);
        self.tables.retain(|(subsystem, _), _| *subsystem != id);
        self.discovery_changed();
        Ok(())
    }

    /// The subsystem with this name.
    pub fn find_subsystem(&self, nqn: &Nqn) -> Option<SubsystemId> {
        self.subsystems.iter().find(|(_, subsystem)| subsystem.nqn() == nqn).map(|(id, _)| *id)
    }

    /// A subsystem.
    pub fn subsystem(&self, id: SubsystemId) -> Option<&Subsystem> {
        self.subsystems.get(&id)
    }

    /// A namespace of a subsystem.
    pub fn namespace(&self, id: SubsystemId, nsid: u32) -> Option<&Namespace> {
        self.subsystems.get(&id)?.namespace(nsid)
    }

    /// Adds a namespace; without an `nsid` the lowest free one is taken.
    pub fn add_namespace(
        &mut self,
        id: SubsystemId,
        nsid: Option<u32>,
        namespace: Namespace,
    ) -> Result<u32, ModelError> {
        self.add_masked_namespace(id, nsid, namespace, None)
    }

    /// The same, seen by these hosts alone.
    pub fn add_masked_namespace(
        &mut self,
        id: SubsystemId,
        nsid: Option<u32>,
        namespace: Namespace,
        mask: Option<Mask>,
    ) -> Result<u32, ModelError> {
        mask::check(mask.as_ref())?;
        let subsystem = self.nvm_subsystem_mut(id)?;
        let nsid = subsystem.add_namespace(nsid, namespace)?;
        subsystem.masks.extend(mask.map(|mask| (nsid, mask)));
        self.namespace_changed(id, nsid);
        Ok(nsid)
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, id: SubsystemId, nsid: u32) -> Result<(), ModelError> {
        let subsystem = self.nvm_subsystem_mut(id)?;
        subsystem.remove_namespace(nsid)?;
        let mask = subsystem.masks.remove(&nsid);
        self.forget_reservations(id, nsid);
        self.tell_of_namespace(id, nsid, |host| shows(mask.as_ref(), host));
        Ok(())
    }

    /// Gives a namespace another number of blocks; `crypto_erase` says whether it can be erased as it is then.
    pub fn resize_namespace(
        &mut self,
        id: SubsystemId,
        nsid: u32,
        block_count: u64,
        crypto_erase: bool,
    ) -> Result<(), ModelError> {
        self.nvm_subsystem_mut(id)?.resize_namespace(nsid, block_count, crypto_erase)?;
        self.namespace_changed(id, nsid);
        Ok(())
    }

    /// Zones of a namespace have changed by themselves.
    pub fn zones_changed(&mut self, id: SubsystemId, nsid: u32, changed: &ChangedZones) {
        let Some(subsystem) = self.subsystems.get(&id) else { return };
        for (handle, controller) in &mut self.controllers {
            if controller.subsystem() == id && controller.namespace(subsystem, nsid).is_some() {
                controller.zones_changed(*handle, nsid, changed, &mut self.events);
            }
        }
    }

    /// Lets a host in.
    pub fn allow_host(&mut self, id: SubsystemId, host: Nqn) -> Result<(), ModelError> {
        self.nvm_subsystem_mut(id)?.allow_host(host)?;
        self.discovery_changed();
        Ok(())
    }

    /// Locks a host out and ends its controllers, unless every host is allowed.
    pub fn disallow_host(&mut self, id: SubsystemId, host: &Nqn) -> Result<(), ModelError> {
        let subsystem = self.nvm_subsystem_mut(id)?;
        subsystem.disallow_host(host);
        if !subsystem.is_allowed(host) {
            let is_theirs = |controller: &Controller| controller.subsystem() == id && controller.host_nqn() == host;
            self.close_controllers_where(WhyClosed::Revoked, is_theirs);
        }
        self.discovery_changed();
        Ok(())
    }

    /// Lets every host in, or only those that are listed; hosts that are no longer allowed lose their controllers.
    pub fn set_allow_any_host(&mut self, id: SubsystemId, allow: bool) -> Result<(), ModelError> {
        self.nvm_subsystem_mut(id)?.set_allow_any_host(allow);
        let subsystem = self.subsystems[&id].clone();
        self.close_controllers_where(WhyClosed::Revoked, |controller| {
            controller.subsystem() == id && !subsystem.is_allowed(controller.host_nqn())
        });
        self.discovery_changed();
        Ok(())
    }

    /// States what the SMART log of a subsystem says from now on.
    pub fn set_health(&mut self, id: SubsystemId, health: Health) -> Result<(), ModelError> {
        self.subsystems.get_mut(&id).ok_or(ModelError::NoSuchSubsystem)?.health = health;
        Ok(())
    }

    /// A port on which the node listens, as discovery tells it. An unspecified address (0.0.0.0, ::) is told as the address
    /// that the asking host reached. With `tls` all connections there are encrypted.
    pub fn add_port(&mut self, id: u16, address: SocketAddr, tls: bool) {
        self.ports.insert(id, Port { address, tls });
        self.discovery_changed();
    }

    /// The node no longer listens there. Connections that exist stay.
    pub fn remove_port(&mut self, id: u16) {
        if self.ports.remove(&id).is_some() {
            self.discovery_changed();
        }
    }

    /// Other discovery services that hosts are told of, all of them.
    pub fn set_referrals(&mut self, referrals: BTreeSet<SocketAddr>) {
        if self.referrals != referrals {
            self.referrals = referrals;
            self.discovery_changed();
        }
    }

    /// A namespace was added, resized or otherwise changed: tells the queues, then the hosts that see it.
    fn namespace_changed(&mut self, id: SubsystemId, nsid: u32) {
        let mask = self.subsystems[&id].mask(nsid).cloned();
        self.tell_of_namespace(id, nsid, |host| shows(mask.as_ref(), host));
    }

    /// A namespace has changed for some hosts: tells the queues, then those hosts.
    fn tell_of_namespace(&mut self, id: SubsystemId, nsid: u32, concerns: impl Fn(&Nqn) -> bool) {
        let Some(subsystem) = self.subsystems.get_mut(&id) else { return };
        subsystem.groups.note_change();
        self.events.push_back(TargetEvent::NamespaceChanged { subsystem: id, nsid });
        for (handle, controller) in &mut self.controllers {
            if controller.subsystem() == id && concerns(controller.host_nqn()) {
                controller.namespace_changed(*handle, subsystem, nsid, &mut self.events);
            }
        }
    }

    fn discovery_changed(&mut self) {
        self.generation += 1;
        for (handle, controller) in &mut self.controllers {
            controller.discovery_changed(*handle, &mut self.events);
        }
    }

    fn nvm_subsystem_mut(&mut self, id: SubsystemId) -> Result<&mut Subsystem, ModelError> {
        match self.subsystems.get_mut(&id) {
            Some(subsystem) if id != DISCOVERY => Ok(subsystem),
            _ => Err(ModelError::NoSuchSubsystem),
        }
    }
}
