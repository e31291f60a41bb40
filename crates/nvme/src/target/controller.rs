//! One controller: its properties and what they allow (Base 2.0, sections 3.1.3 and 3.5 to 3.7).
//!
//! ```text
//!            CC.EN = 1               CC.SHN != 0             made durable
//! Disabled ------------> Ready ---------------------> ShuttingDown -----------> ShutDown
//!    ^                     |                               |                       |
//!    |                     | CC.EN = 0                     | CC.EN = 0             | CC.EN = 0
//!    |  commands ended     v                               v                       v
//!    \_________________ Resetting <________________________/_______________________/
//! ```
//! In `Disabled` and `Resetting` only Fabrics commands are taken. A reset (`CC.EN = 0`) deletes the I/O queues and forgets
//! features and events; CSTS.RDY stays 1 until the commands that were under way have ended, since hosts take its end for
//! the word that none of them will be done any more (Base 2.0, section 3.7.2).

use std::collections::{BTreeSet, VecDeque};

use bdev::ChangedZones;
use zerocopy::byteorder::little_endian::U64;

use super::changed_zones::ZoneLists;
use super::event::Events;
use super::feature::Features;
use super::instance::{Instance, Instances};
use super::log::{ChangedNamespaces, ErrorLog};
use super::model::Subsystem;
use super::reservation::Notices;
use super::timestamp::Timestamp;
use super::{ControllerHandle, DISCOVERY, SubsystemId, TargetConfig, TargetEvent};
use crate::spec::event::EventResult;
use crate::spec::fabrics::PropertyCommand;
use crate::spec::property::{self, Capabilities, Configuration, ControllerStatus, Version};
use crate::spec::{Cqe, Nqn, Sqe, Status, feature};

/// The version that controllers report.
pub(super) const VERSION: Version = Version::V2_0;

const NS_PER_MS: u64 = 1_000_000;

/// Where a controller stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ControllerState {
    /// CC.EN is 0.
    Disabled,
    /// CC.EN and CSTS.RDY are 1.
    Ready,
    /// CC.EN is 0, and commands of the deleted queues are not at their end yet.
    Resetting,
    /// The host notified a shutdown; data is being made durable.
    ShuttingDown,
    /// Done: the host may disconnect or reset.
    ShutDown,
}

/// Who a controller belongs to and how it was connected.
#[derive(Clone, Debug)]
pub(super) struct Association {
    pub(super) subsystem: SubsystemId,
    pub(super) cntlid: u16,
    pub(super) host_nqn: Nqn,
    pub(super) host_id: [u8; 16],
    /// The local address that the host reached.
    pub(super) via: std::net::SocketAddr,
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    association: Association,
    cap: Capabilities,
    cc: Configuration,
    state: ControllerState,
    instance: Instance,
    /// Keep alive timeout; zero is none.
    kato_ns: u64,
    last_heard_ns: u64,
    queues: BTreeSet<u16>,
    /// Queues whose host has yet to authenticate itself.
    unproven: BTreeSet<u16>,
    pub(super) features: Features,
    pub(super) events: Events,
    pub(super) errors: ErrorLog,
    pub(super) changed: ChangedNamespaces,
    pub(super) changed_zones: ZoneLists,
    pub(super) notices: Notices,
    pub(super) timestamp: Timestamp,
    pub(super) aborts_pending: u8,
}

impl Controller {
    pub(super) fn new(
        association: Association,
        instance: Instance,
        config: &TargetConfig,
        kato_ms: u32,
        now_ns: u64,
    ) -> Self {
        let mut controller = Controller {
            association,
            cap: Capabilities::new(u32::from(config.queue_entries_max), 7_500),
            cc: Configuration::default(),
            state: ControllerState::Disabled,
            instance,
            kato_ns: 0,
            last_heard_ns: now_ns,
            queues: BTreeSet::new(),
            unproven: BTreeSet::new(),
            features: Features::new(config.io_queues_max),
            events: Events::default(),
            errors: ErrorLog::default(),
            changed: ChangedNamespaces::default(),
            changed_zones: ZoneLists::default(),
            notices: Notices::default(),
            timestamp: Timestamp::new(now_ns),
            aborts_pending: 0,
        };
        let is_unguarded = kato_ms == 0 && controller.is_discovery();
        controller.set_kato_ms(if is_unguarded { config.discovery_timeout_ms } else { kato_ms });
        controller
    }

    /// Its subsystem.
    pub fn subsystem(&self) -> SubsystemId {
        self.association.subsystem
    }

    /// Its identifier within the subsystem.
    pub fn cntlid(&self) -> u16 {
        self.association.cntlid
    }

    /// Its host.
    pub fn host_nqn(&self) -> &Nqn {
        &self.association.host_nqn
    }

    /// Its host's identifier.
    pub fn host_id(&self) -> &[u8; 16] {
        &self.association.host_id
    }

    /// Where it stands.
    pub fn state(&self) -> ControllerState {
        self.state
    }

    /// What tells it from others that had or will have its identifier.
    pub(super) fn instance(&self) -> Instance {
        self.instance
    }

    /// Whether both controllers belong to one host.
    pub(super) fn is_of(&self, host_nqn: &Nqn, host_id: &[u8; 16]) -> bool {
        self.host_nqn() == host_nqn && self.host_id() == host_id
    }

    /// Whether it serves discovery.
    pub fn is_discovery(&self) -> bool {
        self.association.subsystem == DISCOVERY
    }

    /// I/O queues that are connected.
    pub fn queues(&self) -> impl Iterator<Item = u16> + '_ {
        self.queues.iter().copied()
    }

    /// Whether writes may be volatile until flushed.
    pub fn write_cache_enabled(&self) -> bool {
        self.features.write_cache
    }

    /// Whether its host asked for all command sets (CC.CSS = 110b), and not for the NVM command set alone.
    pub(super) fn has_all_command_sets(&self) -> bool {
        self.cc.css() == property::CSS_ALL
    }

    /// Keep alive timeout in milliseconds, zero for none.
    pub fn kato_ms(&self) -> u32 {
        u32::try_from(self.kato_ns / NS_PER_MS).unwrap_or(u32::MAX)
    }

    pub(super) fn via(&self) -> std::net::SocketAddr {
        self.association.via
    }

    /// When silence of the host ends this controller. Not while the target itself is at work on a shutdown, during which hosts
    /// need not keep alive (Base 2.0, section 3.9).
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        (self.kato_ns > 0 && self.state != ControllerState::ShuttingDown)
            .then(|| self.last_heard_ns.saturating_add(self.kato_ns))
    }

    pub(super) fn note_activity(&mut self, now_ns: u64) {
        self.last_heard_ns = self.last_heard_ns.max(now_ns);
    }

    /// Rounds up to the granularity that Identify Controller states (KAS).
    pub(super) fn set_kato_ms(&mut self, kato_ms: u32) {
        let granule = KAS_UNITS * 100;
        self.kato_ns = u64::from(kato_ms).next_multiple_of(granule) * NS_PER_MS;
    }

    pub(super) fn add_queue(&mut self, qid: u16) -> bool {
        self.queues.insert(qid)
    }

    pub(super) fn has_queue(&self, qid: u16) -> bool {
        self.queues.contains(&qid)
    }

    pub(super) fn has_queues(&self) -> bool {
        !self.queues.is_empty()
    }

    pub(super) fn remove_queue(&mut self, qid: u16) {
        self.queues.remove(&qid);
        self.unproven.remove(&qid);
    }

    pub(super) fn queue_unproven(&mut self, qid: u16) {
        self.unproven.insert(qid);
    }

    pub(super) fn queue_proven(&mut self, qid: u16) {
        self.unproven.remove(&qid);
    }

    pub(super) fn is_unproven(&self, qid: u16) -> bool {
        self.unproven.contains(&qid)
    }

    /// Whether I/O queues may be connected: ready, with the entry sizes that exist.
    pub(super) fn takes_queues(&self) -> bool {
        self.state == ControllerState::Ready && self.cc.iosqes() == 6 && self.cc.iocqes() == 4
    }

    pub(super) fn property_get(&self, sqe: &Sqe) -> Cqe {
        let command = PropertyCommand::of(sqe);
        let cid = command.cid.get();
        let refuse = Cqe::new(cid, Status::INVALID_FIELD.dnr());
        let Some(size) = command.size() else { return refuse };
        let value = match (command.offset.get(), size) {
            (property::CAP, 8) => self.cap.0,
            (property::VS, 4) => u64::from(VERSION.0),
            (property::CC, 4) => u64::from(self.cc.0),
            (property::CSTS, 4) => u64::from(self.status().0),
            (property::NSSR, 4) => 0,
            _ => return refuse,
        };
        Cqe { result: U64::new(value), ..Cqe::new(cid, Status::SUCCESS) }
    }

    pub(super) fn property_set(
        &mut self,
        sqe: &Sqe,
        handle: ControllerHandle,
        instances: &mut Instances,
        out: &mut VecDeque<TargetEvent>,
    ) -> Cqe {
        let command = PropertyCommand::of(sqe);
        let cid = command.cid.get();
        let accepted = match (command.offset.get(), command.size()) {
            (property::CC, Some(4)) => {
                self.configure(Configuration(command.value.get() as u32), handle, instances, out)
            }
            _ => false,
        };
        Cqe::new(cid, if accepted { Status::SUCCESS } else { Status::INVALID_FIELD.dnr() })
    }

    /// Writes CC; false if a field has a value that this controller cannot take.
    fn configure(
        &mut self,
        cc: Configuration,
        handle: ControllerHandle,
        instances: &mut Instances,
        out: &mut VecDeque<TargetEvent>,
    ) -> bool {
        let enabling = cc.enable() && !self.cc.enable();
        if enabling {
            if self.state == ControllerState::Resetting {
                return false;
            }
            // A discovery controller has no I/O queues: hosts leave the entry sizes zero (Base 2.0, figure 46).
            let has_sizes = cc.iosqes() == 6 && cc.iocqes() == 4;
            let no_sizes = cc.iosqes() == 0 && cc.iocqes() == 0;
            let sizes_ok = has_sizes || (self.is_discovery() && no_sizes);
            if !sizes_ok || cc.mps() != 0 || cc.ams() != 0 || !self.cap.supports_css(cc.css()) || cc.shn() != 0 {
                return false;
            }
        }
        let disabling = !cc.enable() && self.cc.enable();
        self.cc = cc;
        if disabling {
            self.reset(handle, instances.next(), out);
        } else if enabling {
            self.state = ControllerState::Ready;
        }
        self.begin_shutdown(handle, out);
        true
    }

    /// Follows CC.SHN, which a reset under way delays.
    fn begin_shutdown(&mut self, handle: ControllerHandle, out: &mut VecDeque<TargetEvent>) {
        if self.cc.shn() != 0 && matches!(self.state, ControllerState::Ready | ControllerState::Disabled) {
            self.state = ControllerState::ShuttingDown;
            out.push_back(TargetEvent::Shutdown { controller: handle });
        }
    }

    fn reset(&mut self, handle: ControllerHandle, next: Instance, out: &mut VecDeque<TargetEvent>) {
        self.state = ControllerState::Disabled;
        self.instance = next;
        for qid in core::mem::take(&mut self.queues) {
            self.unproven.remove(&qid);
            out.push_back(TargetEvent::CloseQueue { controller: handle, qid });
        }
        if !self.features.write_cache {
            out.push_back(TargetEvent::WriteCache { controller: handle, enabled: true });
        }
        self.features.reset();
        self.events.reset(handle, out);
        self.changed = ChangedNamespaces::default();
        self.changed_zones = ZoneLists::default();
        self.notices = Notices::default();
        // The host was heard when it asked for the reset.
        self.timestamp = Timestamp::new(self.last_heard_ns);
        self.aborts_pending = 0;
        if !self.is_discovery() {
            self.state = ControllerState::Resetting;
            out.push_back(TargetEvent::Reset { controller: handle });
        }
    }

    pub(super) fn reset_complete(&mut self, handle: ControllerHandle, out: &mut VecDeque<TargetEvent>) {
        if self.state == ControllerState::Resetting {
            self.state = ControllerState::Disabled;
            self.begin_shutdown(handle, out);
        }
    }

    pub(super) fn shutdown_complete(&mut self) {
        if self.state == ControllerState::ShuttingDown {
            self.state = ControllerState::ShutDown;
        }
    }

    fn status(&self) -> ControllerStatus {
        let ready = if self.cc.enable() { ControllerStatus::READY } else { 0 };
        ControllerStatus(match self.state {
            ControllerState::Disabled => 0,
            ControllerState::Ready => ready,
            ControllerState::Resetting => ControllerStatus::READY,
            ControllerState::ShuttingDown => ready | ControllerStatus::SHUTDOWN_OCCURRING,
            ControllerState::ShutDown => ready | ControllerStatus::SHUTDOWN_COMPLETE,
        })
    }

    /// A namespace of `subsystem` has changed, has come or is gone.
    pub(super) fn namespace_changed(
        &mut self,
        handle: ControllerHandle,
        subsystem: &Subsystem,
        nsid: u32,
        out: &mut VecDeque<TargetEvent>,
    ) {
        self.changed.add(nsid);
        if self.namespace(subsystem, nsid).is_none() {
            self.events.withdraw(EventResult::ZONES_CHANGED, nsid);
            if let Some(other) = self.changed_zones.clear(nsid) {
                self.tell_of_zones(handle, other, out);
            }
        }
        if self.features.event_mask & feature::event::NAMESPACE_ATTRIBUTE != 0 {
            self.events.push(EventResult::NAMESPACE_CHANGED, handle, out);
        }
    }

    /// Zones of a namespace that it sees have changed by themselves.
    pub(super) fn zones_changed(
        &mut self,
        handle: ControllerHandle,
        nsid: u32,
        changed: &ChangedZones,
        out: &mut VecDeque<TargetEvent>,
    ) {
        self.changed_zones.add(nsid, changed);
        self.tell_of_zones(handle, nsid, out);
    }

    /// There is something to be read of the zones of a namespace.
    pub(super) fn tell_of_zones(&mut self, handle: ControllerHandle, nsid: u32, out: &mut VecDeque<TargetEvent>) {
        if self.features.event_mask & feature::event::ZONE_DESCRIPTOR_CHANGE != 0 {
            self.events.push_about(EventResult::ZONES_CHANGED, nsid, handle, out);
        }
    }

    pub(super) fn ana_changed(&mut self, handle: ControllerHandle, out: &mut VecDeque<TargetEvent>) {
        if self.features.event_mask & feature::event::ANA_CHANGE != 0 {
            self.events.push(EventResult::ANA_CHANGED, handle, out);
        }
    }

    pub(super) fn discovery_changed(&mut self, handle: ControllerHandle, out: &mut VecDeque<TargetEvent>) {
        if self.is_discovery() && self.features.event_mask & feature::event::DISCOVERY_CHANGE != 0 {
            self.events.push(EventResult::DISCOVERY_CHANGED, handle, out);
        }
    }
}

/// KAS: granularity of keep alive in units of 100 ms.
pub(super) const KAS_UNITS: u64 = 1;
