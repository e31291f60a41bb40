//! Connect: from a fresh connection to a queue of a controller (Base 2.0, sections 3.3.2.2 and 6.3).

use std::net::SocketAddr;

use zerocopy::FromBytes;

use super::controller::{Association, Controller};
use super::refusal::{CNTLID, HOSTID, HOSTNQN, QID, RefusedConnect, SQSIZE, SUBNQN, WhyRefused, name_of};
use super::reservation::HostId;
use super::{ControllerHandle, DISCOVERY, SubsystemId, Target, TargetEvent};
use crate::spec::fabrics::{
    self, CATTR_DISABLE_SQ_FLOW_CONTROL, CNTLID_DYNAMIC, CONNECT_AUTHENTICATION_REQUIRED, ConnectCommand, ConnectData,
    InvalidParameter,
};
use crate::spec::opcode::FabricsType;
use crate::spec::{Cqe, Nqn, Sqe, Status};
use crate::tls::TlsKey;

/// A queue that was connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Its controller.
    pub controller: ControllerHandle,
    /// Its subsystem.
    pub subsystem: SubsystemId,
    /// Its number: 0 is the admin queue.
    pub qid: u16,
    /// Its entries: commands that may be outstanding.
    pub entries: u16,
    /// Whether completions carry the submission queue head.
    pub flow_control: bool,
    /// The host has to authenticate itself before anything else.
    pub needs_authentication: bool,
    /// The answer to Connect.
    pub cqe: Cqe,
}

enum Refusal {
    Status(Status),
    Parameter(InvalidParameter),
    /// The identifier is that of another host.
    Identifier,
    /// The connection is not encrypted as this host's has to be.
    Channel,
    /// There is no such subsystem.
    NoSubsystem,
}

impl Refusal {
    fn cqe(&self, cid: u16) -> Cqe {
        match self {
            Refusal::Status(status) => Cqe::new(cid, *status),
            Refusal::Parameter(parameter) => parameter.to_cqe(cid),
            Refusal::Identifier => HOSTID.to_cqe(cid),
            Refusal::Channel => Cqe::new(cid, Status::CONNECT_INVALID_HOST.dnr()),
            Refusal::NoSubsystem => SUBNQN.to_cqe(cid),
        }
    }

    fn why(&self) -> WhyRefused {
        match self {
            Refusal::Status(status) if status.kind() == Status::CONNECT_INVALID_HOST => WhyRefused::NotAllowed,
            Refusal::Status(status) if status.kind() == Status::CONNECT_CONTROLLER_BUSY => WhyRefused::Limit,
            Refusal::Status(status) if status.kind() == Status::COMMAND_SEQUENCE_ERROR => {
                WhyRefused::Parameter("order of commands")
            }
            Refusal::Status(_) => WhyRefused::Parameter("connect data"),
            Refusal::Parameter(parameter) => WhyRefused::Parameter(name_of(*parameter)),
            Refusal::Identifier => WhyRefused::Identifier,
            Refusal::Channel => WhyRefused::Tls,
            Refusal::NoSubsystem => WhyRefused::UnknownSubsystem,
        }
    }
}

impl From<InvalidParameter> for Refusal {
    fn from(parameter: InvalidParameter) -> Self {
        Refusal::Parameter(parameter)
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Refusal::Status(status)
    }
}

impl Target {
    /// Processes the first command of a connection, which must be Connect. `data` is what came with it, `via` the local address
    /// that the host reached, `tls` its key where the connection is encrypted.
    ///
    /// # Errors
    /// Why not, and the completion that says so. The connection may try again (Base 2.0, section 3.3.2.2).
    pub fn connect(
        &mut self,
        now_ns: u64,
        sqe: &Sqe,
        data: &[u8],
        via: SocketAddr,
        tls: Option<&TlsKey>,
    ) -> Result<Connected, RefusedConnect> {
        let connected = match fabrics::fabrics_type(sqe) {
            Some(FabricsType::Connect) => self.try_connect(now_ns, ConnectCommand::of(sqe), data, via, tls),
            _ => Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into()),
        };
        connected.map_err(|refusal| {
            let named = ConnectData::ref_from_prefix(data).ok();
            RefusedConnect {
                cqe: refusal.cqe(sqe.cid.get()),
                why: refusal.why(),
                host: named.and_then(|(data, _)| host_of(data).ok()),
                subsystem: named.and_then(|(data, _)| Nqn::from_field(&data.subnqn).ok()),
            }
        })
    }

    /// The I/O queue that stands in the way of a Connect, if it is one of the same host's controller.
    pub fn queue_in_place_of(&self, sqe: &Sqe, data: &[u8]) -> Option<(ControllerHandle, u16)> {
        if fabrics::fabrics_type(sqe) != Some(FabricsType::Connect) {
            return None;
        }
        let (data, _) = ConnectData::ref_from_prefix(data).ok()?;
        let (host_nqn, qid) = (host_of(data).ok()?, ConnectCommand::of(sqe).qid.get());
        let subsystem = self.find_subsystem(&Nqn::from_field(&data.subnqn).ok()?)?;
        let is_wanted = |found: &Controller| {
            (found.subsystem(), found.cntlid()) == (subsystem, data.cntlid.get())
                && *found.host_nqn() == host_nqn
                && *found.host_id() == data.hostid
        };
        let (handle, controller) = self.controllers.iter().find(|(_, found)| is_wanted(found))?;
        (qid > 0 && controller.has_queue(qid)).then_some((*handle, qid))
    }

    fn try_connect(
        &mut self,
        now_ns: u64,
        command: &ConnectCommand,
        data: &[u8],
        via: SocketAddr,
        tls: Option<&TlsKey>,
    ) -> Result<Connected, Refusal> {
        let (data, _) =
            ConnectData::ref_from_prefix(data).map_err(|_| Refusal::Status(Status::DATA_SGL_LENGTH_INVALID.dnr()))?;
        if command.recfmt.get() != 0 {
            return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.dnr().into());
        }
        let subnqn = Nqn::from_field(&data.subnqn).map_err(|_| SUBNQN)?;
        let host_nqn = host_of(data)?;
        let subsystem = self.find_subsystem(&subnqn).ok_or(Refusal::NoSubsystem)?;
        if !self.subsystems[&subsystem].is_allowed(&host_nqn) {
            return Err(Status::CONNECT_INVALID_HOST.dnr().into());
        }
        if !self.is_channel_of(now_ns, tls, &host_nqn, &subnqn) {
            return Err(Refusal::Channel);
        }
        let entries_max =
            if command.qid.get() == 0 { self.config.admin_entries_max } else { self.config.queue_entries_max };
        let sqsize = command.sqsize.get();
        if sqsize == 0 || sqsize >= entries_max {
            return Err(SQSIZE.into());
        }
        // (There is nothing to be done under another's identifier at the discovery service.)
        if subsystem != DISCOVERY && self.is_anothers(HostId(data.hostid), &host_nqn) {
            return Err(Refusal::Identifier);
        }
        let association = Association { subsystem, cntlid: data.cntlid.get(), host_nqn, host_id: data.hostid, via };
        let handle = match command.qid.get() {
            0 => self.connect_admin(now_ns, association, command.kato.get())?,
            qid => self.connect_io(now_ns, &association, qid)?,
        };
        let flow_control = command.cattr & CATTR_DISABLE_SQ_FLOW_CONTROL == 0;
        let policy = self.subsystems[&subsystem].policy(self.controllers[&handle].host_nqn());
        let needs_authentication = policy.is_some();
        // A key for TLS has proven who it is; where more is wanted, that does.
        let is_proven = tls.is_some() && subsystem != DISCOVERY && !needs_authentication;
        if is_proven && command.qid.get() == 0 && !self.own_identifier(handle) {
            self.controllers.remove(&handle);
            return Err(Refusal::Identifier);
        }
        let controller = self.controllers.get_mut(&handle).expect("it was found or made just now");
        if needs_authentication {
            controller.queue_unproven(command.qid.get());
        }
        let required = if needs_authentication { CONNECT_AUTHENTICATION_REQUIRED } else { 0 };
        let mut cqe = Cqe::success(command.cid.get(), u32::from(controller.cntlid()) | required);
        if !flow_control {
            cqe.sqhd.set(0xffff); // "Granted", as the response of Connect has it (Base 2.0, section 6.3).
        }
        let qid = command.qid.get();
        self.dialogues.remove(&(handle, qid));
        let entries = sqsize + 1;
        Ok(Connected { controller: handle, subsystem, qid, entries, flow_control, needs_authentication, cqe })
    }

    /// The admin queue makes a controller: this target follows the dynamic controller model.
    fn connect_admin(
        &mut self,
        now_ns: u64,
        mut association: Association,
        kato_ms: u32,
    ) -> Result<ControllerHandle, Refusal> {
        if association.cntlid != CNTLID_DYNAMIC {
            return Err(CNTLID.into());
        }
        if self.controllers.len() >= self.config.controllers_max {
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        association.cntlid = self.free_cntlid(association.subsystem).ok_or(Status::CONNECT_CONTROLLER_BUSY)?;
        let handle = ControllerHandle(self.next_controller);
        self.next_controller += 1;
        let controller = Controller::new(association, self.instances.next(), &self.config, kato_ms, now_ns);
        assert!(self.controllers.insert(handle, controller).is_none());
        Ok(handle)
    }

    fn free_cntlid(&mut self, id: SubsystemId) -> Option<u16> {
        let in_use: std::collections::BTreeSet<u16> =
            self.controllers.values().filter(|found| found.subsystem() == id).map(Controller::cntlid).collect();
        let subsystem = self.subsystems.get_mut(&id).expect("the caller found it");
        let ((first, last), start) = (subsystem.config().controller_ids, subsystem.next_cntlid);
        let cntlid = (start..=last).chain(first..start).find(|cntlid| !in_use.contains(cntlid))?;
        subsystem.next_cntlid = if cntlid == last { first } else { cntlid + 1 };
        Some(cntlid)
    }

    fn connect_io(&mut self, now_ns: u64, wanted: &Association, qid: u16) -> Result<ControllerHandle, Refusal> {
        let is_wanted = |found: &Controller| found.subsystem() == wanted.subsystem && found.cntlid() == wanted.cntlid;
        let (handle, controller) = self.controllers.iter_mut().find(|(_, found)| is_wanted(found)).ok_or(CNTLID)?;
        if *controller.host_nqn() != wanted.host_nqn {
            return Err(HOSTNQN.into());
        }
        if *controller.host_id() != wanted.host_id {
            return Err(HOSTID.into());
        }
        if controller.is_discovery() || qid > controller.features.queue_count() {
            return Err(QID.into());
        }
        if !controller.takes_queues() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into());
        }
        // Whoever has not proven who it is keeps nobody from its place: the next one gets it.
        if controller.is_unproven(qid) {
            controller.remove_queue(qid);
            self.events.push_back(TargetEvent::CloseQueue { controller: *handle, qid });
        }
        if !controller.add_queue(qid) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into());
        }
        controller.note_activity(now_ns);
        Ok(*handle)
    }
}

/// The name of the host that connects. Some hosts (SPDK's tools among them) send none: they go by their host identifier.
fn host_of(data: &ConnectData) -> Result<Nqn, InvalidParameter> {
    match data.hostnqn[0] {
        0 => Ok(Nqn::from_uuid(uuid::Uuid::from_bytes(data.hostid))),
        _ => Nqn::from_field(&data.hostnqn).map_err(|_| HOSTNQN),
    }
}
