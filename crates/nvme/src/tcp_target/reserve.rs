//! Reservation commands: from a queue to the home, into force on every reactor, and back as an answer.
//!
//! One change of a namespace's reservations at a time: planned, kept where it has to last, put in force, and known to every reactor before
//! the next one is planned and before it is acknowledged. From then on no queue admits what it forbids. What was admitted
//! before goes on, except that a preemption with abort is acknowledged only when nothing of the preempted hosts is left in
//! any device (`preempt.rs`).

use super::connection::Connection;
use super::home::Home;
use super::local::Local;
use super::store::{ReservedNamespace, Saved};
use crate::spec::reservation::{Keys, ReservationCommand};
use crate::spec::{Cqe, NSID_ALL, Status};
use crate::target::io::{IoCommand, IoOp};
use crate::target::reservation::{HostId, Request};
use crate::target::{Controller, ControllerHandle, Keep, PlannedReservation, SubsystemId, Target};
use reactor::sync::Notify;
use reactor::{Buf, SgList};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

type Key = (SubsystemId, u32);

/// So long an administrator waits for a namespace, and everything else that the node does at command with him.
const CLEARING_WAITS_NS: u64 = 2_000_000_000;

/// What the home needs to let changes of reservations go one after the other.
#[derive(Default)]
pub(super) struct Reserving {
    /// Namespaces whose reservations are being changed.
    under_way: RefCell<BTreeSet<Key>>,
    /// Preemptions, by number, whose hosts may still have commands in devices.
    ending: RefCell<BTreeMap<u64, Key>>,
    next_ending: Cell<u64>,
    /// What became of saves, by their numbers.
    saves: RefCell<BTreeMap<u64, Option<bool>>>,
    next_save: Cell<u64>,
    moved: Notify,
}

/// The right to change reservations of a namespace, until it is dropped.
pub(super) struct Turn<'a>(&'a Reserving, Key);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.under_way.borrow_mut().remove(&self.1);
        self.0.moved.notify_all();
    }
}

/// A preemption whose hosts may still have commands in devices.
struct Ending<'a>(&'a Reserving, u64);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.ending.borrow_mut().remove(&self.1);
        self.0.moved.notify_all();
    }
}

impl Reserving {
    /// Waits until nothing else changes, or depends on, the reservations of a namespace.
    pub(super) async fn turn(&self, key: Key) -> Turn<'_> {
        self.moved.wait_until(|| !self.under_way.borrow().contains(&key)).await;
        self.under_way.borrow_mut().insert(key);
        Turn(self, key)
    }

    fn begin_ending(&self, key: Key) -> Ending<'_> {
        let number = self.next_ending.replace(self.next_ending.get() + 1);
        self.ending.borrow_mut().insert(number, key);
        Ending(self, number)
    }

    /// Waits for the preemptions of a namespace that have begun by now: who asks for one again must not be told that the
    /// hosts are gone before they are.
    async fn all_ended(&self, key: Key) {
        let next = self.next_ending.get();
        let is_over = || self.ending.borrow().range(..next).all(|(_, other)| *other != key);
        self.moved.wait_until(is_over).await;
    }
}

impl Home {
    /// Changes the reservations of a namespace; durable where they have to be, and in force, when it returns.
    pub(super) async fn reserve(
        self: &Rc<Self>,
        controller: ControllerHandle,
        nsid: u32,
        request: Request,
    ) -> Result<(), Status> {
        let subsystem = self.with_target(|target| target.controller(controller).map(|found| found.subsystem()));
        let subsystem = subsystem.ok_or(Status::ABORTED_SQ_DELETION.dnr())?;
        let plan = |target: &Target| target.plan_reservation(controller, nsid, &request);
        let turn = self.reserving.turn((subsystem, nsid)).await;
        self.change_reservations(turn, plan, request.aborts()).await
    }

    /// Ends the registration of one host, or all of them with the reservation, as an administrator asks. `NAMESPACE_NOT_READY` when
    /// something else, a format above all, has the namespace for longer than [`CLEARING_WAITS_NS`].
    pub(super) async fn clear_reservations(
        self: &Rc<Self>,
        (subsystem, nsid): Key,
        host: Option<HostId>,
    ) -> Result<(), Status> {
        let plan = |target: &Target| target.plan_clearing(subsystem, nsid, host);
        let turn = self.reactor.timeout(CLEARING_WAITS_NS, self.reserving.turn((subsystem, nsid))).await;
        self.change_reservations(turn.ok_or(Status::NAMESPACE_NOT_READY)?, plan, false).await
    }

    /// Carries a plan out whose turn it is.
    async fn change_reservations(
        self: &Rc<Self>,
        turn: Turn<'_>,
        plan: impl FnOnce(&Target) -> Result<PlannedReservation, Status>,
        aborts: bool,
    ) -> Result<(), Status> {
        let (subsystem, nsid) = turn.1;
        let planned = self.with_target(plan)?;
        assert_eq!(planned.namespace(), (subsystem, nsid), "the namespace whose turn it is");
        self.keep_reservation(&planned).await?;
        let preempted = self.change(|target| target.commit_reservation(planned))?;
        // Where this message has been, every later command is judged by the new state.
        for index in 0..self.shared.loads.len() {
            self.reactor.try_call_on(index, |_| async {}).await;
        }
        let ending = (!preempted.is_empty()).then(|| self.reserving.begin_ending((subsystem, nsid)));
        drop(turn);
        if !preempted.is_empty() {
            self.end_commands(subsystem, nsid, &preempted).await;
        }
        drop(ending);
        if aborts {
            self.reserving.all_ended((subsystem, nsid)).await;
        }
        Ok(())
    }

    /// The Reservation Persistence feature, of one namespace or of all.
    pub(super) async fn set_persistence(self: &Rc<Self>, controller: ControllerHandle, nsid: u32, on: bool) -> Status {
        let of_all = |target: &Target, found: &Controller| {
            let subsystem = target.subsystem(found.subsystem());
            let ids = subsystem.into_iter().flat_map(|subsystem| subsystem.namespaces_of(found.host_nqn()));
            ids.collect()
        };
        let nsids = self.with_target(|target| match target.controller(controller) {
            Some(found) if nsid == NSID_ALL => Some(of_all(target, found)),
            found => found.map(|_| vec![nsid]),
        });
        let Some(nsids): Option<Vec<u32>> = nsids else { return Status::ABORTED_SQ_DELETION.dnr() };
        for nsid in nsids {
            if let Err(status) = self.reserve(controller, nsid, Request::Persistence(on)).await {
                return status;
            }
        }
        Status::SUCCESS
    }

    async fn keep_reservation(self: &Rc<Self>, planned: &PlannedReservation) -> Result<(), Status> {
        let table = match planned.keep() {
            Keep::Nothing => return Ok(()),
            Keep::Table(table) => Some(table),
            Keep::Absence => None,
        };
        let store = self.shared.config.reservation_store.as_ref().expect("without a store no table is persistent");
        let (subsystem, nsid) = planned.namespace();
        let nqn = self.with_target(|target| target.subsystem(subsystem).map(|found| found.nqn().to_string()));
        let subsystem = nqn.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let of = ReservedNamespace { subsystem, nsid, uuid: planned.uuid() };
        let number = self.reserving.next_save.get();
        self.reserving.next_save.set(number + 1);
        self.reserving.saves.borrow_mut().insert(number, None);
        let (shared, home) = (self.shared.clone(), self.reactor.handle());
        let saved = Saved::new(move |durable| {
            home.run(move |reactor| {
                let home = Home::of(reactor, &shared);
                home.reserving.saves.borrow_mut().insert(number, Some(durable));
                home.reserving.moved.notify_all();
            });
        });
        store.save(of, table, saved);
        let answered = || self.reserving.saves.borrow()[&number].is_some();
        self.reserving.moved.wait_until(answered).await;
        match self.reserving.saves.borrow_mut().remove(&number) {
            Some(Some(true)) => Ok(()),
            // Nothing has changed; it may do another time.
            _ => Err(Status::INTERNAL_ERROR),
        }
    }

    async fn end_commands(self: &Rc<Self>, subsystem: SubsystemId, nsid: u32, hosts: &[HostId]) {
        let everywhere: Vec<_> = (0..self.shared.loads.len())
            .map(|index| {
                let (this, shared, hosts) = (self.clone(), self.shared.clone(), hosts.to_vec());
                self.reactor.spawn_join(async move {
                    let end = move |reactor| async move {
                        Local::of(&reactor, &shared).end_commands(subsystem, nsid, &hosts).await;
                    };
                    this.reactor.try_call_on(index, end).await
                })
            })
            .collect();
        for ended in everywhere {
            ended.await;
        }
    }

    fn report(&self, controller: ControllerHandle, nsid: u32, extended: bool, len: usize) -> Result<Vec<u8>, Status> {
        let mut out = vec![0; len];
        self.with_target(|target| target.report_reservations(controller, nsid, extended, &mut out)).map(|()| out)
    }
}

impl Connection {
    /// A command that changes reservations, with its keys.
    pub(super) fn reserve(self: &Rc<Self>, command: &IoCommand, reserve: ReservationCommand, data: &Buf) {
        let owner = self.owner.get().expect("a queue has an owner");
        let Some(keys) = Keys::from_data(data.as_slice()) else {
            return self.answer_status(command.cid, Status::DATA_SGL_LENGTH_INVALID.dnr());
        };
        let (this, shared, command) = (self.clone(), self.local.shared.clone(), *command);
        self.reactor.spawn(async move {
            let request = Request::Command(reserve, keys);
            let home = this.local.shared.home;
            let changed = this.reactor.call_on(home, move |reactor| async move {
                Home::of(&reactor, &shared).reserve(owner.controller, command.nsid, request).await
            });
            this.answer_status(command.cid, changed.await.err().unwrap_or(Status::SUCCESS));
        });
    }

    /// Reservation Report.
    pub(super) fn report_reservations(self: &Rc<Self>, command: &IoCommand) {
        let IoOp::ReservationReport { extended } = command.op else { unreachable!("the caller has looked") };
        let owner = self.owner.get().expect("a queue has an owner");
        let (this, shared, command) = (self.clone(), self.local.shared.clone(), *command);
        self.reactor.spawn(async move {
            let len = command.data_len as usize;
            // A host that asks for much and reads nothing waits for itself.
            if this.take_share(command.cid, len).await.is_none() {
                return this.answer_status(command.cid, Status::ABORT_REQUESTED);
            }
            let home = this.local.shared.home;
            let report = this.reactor.call_on(home, move |reactor| async move {
                Home::of(&reactor, &shared).report(owner.controller, command.nsid, extended, len)
            });
            let report = report.await;
            this.release_share(len);
            match report {
                Ok(data) => {
                    let cqe = Cqe::new(command.cid, Status::SUCCESS);
                    this.answer_data(cqe, SgList::from_iter([Buf::from_vec(data)]));
                }
                Err(status) => this.answer_status(command.cid, status),
            }
        });
    }
}
