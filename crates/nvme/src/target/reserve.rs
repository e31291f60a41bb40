//! Reservations among controllers: from a host's request to a table, to those who are told, and to what queues go by.
//!
//! A change is made in two steps, since one that has to last is made durable in between: [`Target::plan_reservation`] says
//! what would be, [`Target::commit_reservation`] puts it in force. The caller lets one change of a namespace end before it
//! plans the next.

use super::reservation::{Access, Change, HostId, Request, Table, report};
use super::{Controller, ControllerHandle, Namespace, SubsystemId, Target, TargetEvent, shows};
use crate::spec::Status;
use crate::spec::event::EventResult;

/// A change of a namespace's reservations that is not in force yet.
#[derive(Clone, Debug)]
pub struct PlannedReservation {
    subsystem: SubsystemId,
    nsid: u32,
    /// The namespace may have been replaced by another of its number when the change is to be in force.
    uuid: uuid::Uuid,
    before_persisted: bool,
    is_new: bool,
    table: Table,
    change: Change,
}

/// What has to be durable before a change is put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// This table.
    Table(Table),
    /// That there is none any more.
    Absence,
}

impl PlannedReservation {
    /// What has to be durable first.
    pub fn keep(&self) -> Keep {
        match (self.table.is_persistent(), self.before_persisted) {
            (true, _) if self.is_new => Keep::Table(self.table.clone()),
            (false, true) => Keep::Absence,
            _ => Keep::Nothing,
        }
    }

    /// The namespace.
    pub fn namespace(&self) -> (SubsystemId, u32) {
        (self.subsystem, self.nsid)
    }

    /// Its identity.
    pub fn uuid(&self) -> uuid::Uuid {
        self.uuid
    }
}

impl Target {
    /// Judges a request of a controller's host.
    ///
    /// # Errors
    /// The status to complete the command with; nothing changes.
    pub fn plan_reservation(
        &self,
        handle: ControllerHandle,
        nsid: u32,
        request: &Request,
    ) -> Result<PlannedReservation, Status> {
        let controller = self.controllers.get(&handle).ok_or(Status::ABORTED_SQ_DELETION.dnr())?;
        let subsystem = controller.subsystem();
        let namespace = self.namespace_of(controller, nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let before = self.reservations(subsystem, nsid);
        let mut table = before.clone();
        let host = HostId(*controller.host_id());
        let change = table.apply(host, request, self.config.persists_reservations)?;
        table.note_name(host, controller.host_nqn());
        let (before_persisted, is_new) = (before.is_persistent(), table != *before);
        Ok(PlannedReservation { subsystem, nsid, uuid: namespace.uuid, before_persisted, is_new, table, change })
    }

    /// Judges an administrator's wish to end the registration of one host, or all of them with the reservation.
    ///
    /// # Errors
    /// No such namespace, or the host has not registered with it.
    pub fn plan_clearing(
        &self,
        subsystem: SubsystemId,
        nsid: u32,
        host: Option<HostId>,
    ) -> Result<PlannedReservation, Status> {
        let namespace = self.namespace(subsystem, nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let before = self.reservations(subsystem, nsid);
        let mut table = before.clone();
        let change = match host {
            Some(host) => table.evict(host).ok_or(Status::RESERVATION_CONFLICT.dnr())?,
            None => table.clear_all(),
        };
        let (before_persisted, is_new) = (before.is_persistent(), table != *before);
        Ok(PlannedReservation { subsystem, nsid, uuid: namespace.uuid, before_persisted, is_new, table, change })
    }

    /// Puts a change in force: hosts are told of it. Returns the hosts whose commands on the namespace have to end before it
    /// is acknowledged.
    ///
    /// # Errors
    /// The status to complete the command with when the namespace has gone meanwhile.
    pub fn commit_reservation(&mut self, planned: PlannedReservation) -> Result<Vec<HostId>, Status> {
        let PlannedReservation { subsystem, nsid, uuid, table, change, .. } = planned;
        let is_there = self.namespace(subsystem, nsid).is_some_and(|namespace| namespace.uuid == uuid);
        if !is_there {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        self.tables.insert((subsystem, nsid), table);
        self.events.push_back(TargetEvent::ReservationChanged { subsystem, nsid });
        let mask = self.subsystems[&subsystem].mask(nsid);
        let sees = |one: &Controller| one.subsystem() == subsystem && shows(mask, one.host_nqn());
        for (handle, controller) in self.controllers.iter_mut().filter(|(_, one)| sees(one)) {
            let host = HostId(*controller.host_id());
            for (_, notice) in change.notices.iter().filter(|(told, _)| *told == host) {
                if controller.notices.add(*notice, nsid) {
                    controller.events.push(EventResult::RESERVATION_NOTIFICATION, *handle, &mut self.events);
                }
            }
        }
        Ok(change.aborted)
    }

    /// The reservations of a namespace; an empty table if nobody has registered.
    pub fn reservations(&self, subsystem: SubsystemId, nsid: u32) -> &Table {
        static NONE: Table = Table::new();
        self.tables.get(&(subsystem, nsid)).unwrap_or(&NONE)
    }

    /// What queues go by; `None` where everything is allowed.
    pub fn access(&self, subsystem: SubsystemId, nsid: u32) -> Option<Access> {
        Access::of(self.reservations(subsystem, nsid))
    }

    /// Gives a namespace that was just added the reservations that it had before a loss of power.
    pub fn restore_reservations(&mut self, subsystem: SubsystemId, nsid: u32, table: Table) {
        assert!(self.namespace(subsystem, nsid).is_some(), "the caller has added it");
        self.tables.insert((subsystem, nsid), table);
    }

    /// A namespace, if it exists for this controller's host.
    fn namespace_of(&self, controller: &Controller, nsid: u32) -> Option<&Namespace> {
        self.subsystems.get(&controller.subsystem())?.namespace_of(controller.host_nqn(), nsid)
    }

    /// Writes the report of a namespace's reservations for a controller's host.
    ///
    /// # Errors
    /// The status to complete the command with.
    pub fn report_reservations(
        &self,
        handle: ControllerHandle,
        nsid: u32,
        extended: bool,
        out: &mut [u8],
    ) -> Result<(), Status> {
        let controller = self.controllers.get(&handle).ok_or(Status::ABORTED_SQ_DELETION.dnr())?;
        let subsystem = controller.subsystem();
        self.namespace_of(controller, nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        if !extended {
            // Host identifiers have 128 bits on fabrics, which the small structure cannot tell.
            return Err(Status::HOST_ID_INCONSISTENT.dnr());
        }
        report(self.reservations(subsystem, nsid), out);
        Ok(())
    }

    /// A namespace is gone, and its reservations with it.
    pub(super) fn forget_reservations(&mut self, subsystem: SubsystemId, nsid: u32) {
        self.tables.remove(&(subsystem, nsid));
        for controller in self.controllers.values_mut().filter(|one| one.subsystem() == subsystem) {
            controller.notices.forget(nsid);
        }
    }
}
