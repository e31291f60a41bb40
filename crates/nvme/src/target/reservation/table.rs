//! The registrants and the reservation of one namespace, and what each command makes of them.
//!
//! ```text
//!               Acquire                           Acquire of the same type by a holder: no change
//!  not held --------------> held by one or all    Preempt of the holder: held by another, perhaps of another type
//!     ^                        |
//!     \_ Release, Clear, the (last) holder unregisters or is unregistered
//! ```
//! A command is judged as a whole before anything changes: one that is refused leaves no trace.

use super::{HostId, REGISTRANTS_MAX};
use crate::spec::reservation::{
    AcquireAction, Keys, PersistenceChange, RegisterAction, ReleaseAction, ReservationCommand, ReservationNotice,
    ReservationType,
};
use crate::spec::{Nqn, Status};
use std::collections::BTreeMap;

/// A host that has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// Who.
    pub host: HostId,
    /// Its key, never zero.
    pub key: u64,
}

/// The reservation of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// What it is.
    pub kind: ReservationType,
    /// The registrant that holds it; `None` where all registrants do.
    pub holder: Option<HostId>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    generation: u32,
    persistent: bool,
    reservation: Option<Reservation>,
    /// In the order of registration.
    registrants: Vec<Registrant>,
    /// What registrants call themselves, as far as it is known; for people.
    names: BTreeMap<HostId, Nqn>,
}

/// What a host wants changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A reservation command.
    Command(ReservationCommand, Keys),
    /// The Reservation Persistence feature is set.
    Persistence(bool),
}

impl Request {
    /// Whether commands of other hosts are to end before it is acknowledged.
    pub fn aborts(&self) -> bool {
        let Request::Command(ReservationCommand::Acquire { action, .. }, _) = self else { return false };
        *action == AcquireAction::PreemptAndAbort
    }
}

/// What follows from a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Hosts that are told of it.
    pub notices: Vec<(HostId, ReservationNotice)>,
    /// Hosts whose commands are to end before the change is acknowledged.
    pub aborted: Vec<HostId>,
}

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();

impl Table {
    /// Nobody has registered.
    pub const fn new() -> Table {
        Table { generation: 0, persistent: false, reservation: None, registrants: Vec::new(), names: BTreeMap::new() }
    }

    /// A table as it was kept over a loss of power; `None` if it contradicts itself.
    pub fn restore(generation: u32, reservation: Option<Reservation>, registrants: Vec<Registrant>) -> Option<Table> {
        let mut hosts: Vec<HostId> = registrants.iter().map(|one| one.host).collect();
        hosts.sort();
        hosts.dedup();
        let is_sound = |held: Reservation| match held.holder {
            Some(holder) => !held.kind.is_all_registrants() && hosts.contains(&holder),
            None => held.kind.is_all_registrants() && !hosts.is_empty(),
        };
        let keys_are_sound = registrants.iter().all(|one| one.key != 0 && one.host != HostId::NONE);
        let distinct = hosts.len() == registrants.len() && hosts.len() <= REGISTRANTS_MAX;
        (distinct && keys_are_sound && reservation.is_none_or(is_sound)).then_some(Table {
            generation,
            persistent: true,
            reservation,
            registrants,
            names: BTreeMap::new(),
        })
    }

    /// What a registrant called itself when it last changed something here.
    pub fn name(&self, host: HostId) -> Option<&Nqn> {
        self.names.get(&host)
    }

    /// Notes what a host calls itself, if it is a registrant.
    pub fn note_name(&mut self, host: HostId, name: &Nqn) {
        if self.key_of(host).is_some() {
            self.names.insert(host, name.clone());
        }
        self.forget_names();
    }

    fn forget_names(&mut self) {
        let registrants = &self.registrants;
        self.names.retain(|host, _| registrants.iter().any(|one| one.host == *host));
    }

    /// Counts what changed registrations (GEN).
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether it lasts over a loss of power (PTPLS).
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// The reservation, if there is one.
    pub fn reservation(&self) -> Option<Reservation> {
        self.reservation
    }

    /// Registrants, in the order of registration.
    pub fn registrants(&self) -> &[Registrant] {
        &self.registrants
    }

    /// Whether a host holds the reservation.
    pub fn is_holder(&self, host: HostId) -> bool {
        self.reservation.is_some_and(|held| match held.holder {
            Some(holder) => holder == host,
            None => self.key_of(host).is_some(),
        })
    }

    fn key_of(&self, host: HostId) -> Option<u64> {
        self.registrants.iter().find(|one| one.host == host).map(|one| one.key)
    }

    /// Changes the table as `host` asks.
    ///
    /// `can_persist` says whether a persistent table would be kept.
    ///
    /// # Errors
    /// The status of the command; nothing has changed then.
    pub fn apply(&mut self, host: HostId, request: &Request, can_persist: bool) -> Result<Change, Status> {
        let change = match *request {
            Request::Persistence(on) => {
                if on && !can_persist {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                self.persistent = on;
                Ok(Change::default())
            }
            // Without an identifier it could not be told from others that have none.
            Request::Command(..) if host == HostId::NONE => return Err(Status::HOST_ID_MISSING.dnr()),
            Request::Command(ReservationCommand::Register { action, ignore_key, persistence }, keys) => {
                if persistence == PersistenceChange::On && !can_persist {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                let change = self.register(host, action, ignore_key, keys)?;
                match persistence {
                    PersistenceChange::Keep => {}
                    PersistenceChange::On => self.persistent = true,
                    PersistenceChange::Off => self.persistent = false,
                }
                Ok(change)
            }
            Request::Command(ReservationCommand::Acquire { action, kind }, keys) => {
                self.check_key(host, keys)?;
                match action {
                    AcquireAction::Acquire => self.acquire(host, kind),
                    AcquireAction::Preempt => self.preempt(host, kind, keys.other.get()),
                    AcquireAction::PreemptAndAbort => {
                        let mut change = self.preempt(host, kind, keys.other.get())?;
                        let lost = |one: &&(HostId, _)| one.1 == ReservationNotice::RegistrationPreempted;
                        change.aborted = change.notices.iter().filter(lost).map(|one| one.0).collect();
                        Ok(change)
                    }
                }
            }
            Request::Command(ReservationCommand::Release { action, kind }, keys) => {
                self.check_key(host, keys)?;
                match action {
                    ReleaseAction::Release => self.release(host, kind),
                    ReleaseAction::Clear => Ok(self.clear(host)),
                }
            }
        };
        self.assert_sound();
        change
    }

    fn assert_sound(&self) {
        assert!(self.registrants.len() <= REGISTRANTS_MAX);
        if let Some(held) = self.reservation {
            assert_eq!(held.holder.is_none(), held.kind.is_all_registrants());
            assert!(!self.registrants.is_empty(), "a reservation is held by registrants");
            assert!(held.holder.is_none_or(|holder| self.key_of(holder).is_some()), "a holder has registered");
        }
    }

    fn check_key(&self, host: HostId, keys: Keys) -> Result<(), Status> {
        if self.key_of(host) == Some(keys.current.get()) { Ok(()) } else { Err(CONFLICT) }
    }

    /// Section 8.19.3 to 8.19.5.
    fn register(
        &mut self,
        host: HostId,
        action: RegisterAction,
        ignore_key: bool,
        keys: Keys,
    ) -> Result<Change, Status> {
        let new = keys.other.get();
        let registered = self.key_of(host);
        let is_known = |key| ignore_key || key == keys.current.get();
        let mut change = Change::default();
        if action != RegisterAction::Unregister && new == 0 {
            // Zero names all other registrants of some reservations when it is preempted: nobody's key.
            return Err(Status::INVALID_FIELD.dnr());
        }
        match (action, registered) {
            (RegisterAction::Register, Some(key)) if key == new => {}
            (RegisterAction::Register, Some(_)) => return Err(CONFLICT),
            (RegisterAction::Replace, Some(key)) if is_known(key) => self.set_key(host, new),
            (RegisterAction::Register, None) => self.add(host, new)?,
            // "Whatever I had, now it is this": the key's absence is ignored as its value is.
            (RegisterAction::Replace, None) if ignore_key => self.add(host, new)?,
            (RegisterAction::Unregister, Some(key)) if is_known(key) => {
                self.unregister(host, &mut change);
            }
            (RegisterAction::Replace | RegisterAction::Unregister, _) => return Err(CONFLICT),
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(change)
    }

    fn unregister(&mut self, host: HostId, change: &mut Change) {
        let before = self.reservation;
        self.remove(&[host]);
        // Those that were let in by this reservation may want to hold one now.
        if let Some(held) = before
            && self.reservation.is_none()
            && !held.kind.is_of_holder_alone()
        {
            self.tell_registrants(host, ReservationNotice::ReservationReleased, change);
        }
    }

    /// Ends a registration as an administrator asks, and the reservation with it where it is held by that host: the host is told
    /// as by a preemption, the others as by its own command. `None`: it has not registered.
    pub fn evict(&mut self, host: HostId) -> Option<Change> {
        self.key_of(host)?;
        let mut change =
            Change { notices: vec![(host, ReservationNotice::RegistrationPreempted)], aborted: Vec::new() };
        self.unregister(host, &mut change);
        self.forget_names();
        self.generation = self.generation.wrapping_add(1);
        self.assert_sound();
        Some(change)
    }

    /// Ends all registrations and the reservation as an administrator asks: registrants are told as by Clear.
    pub fn clear_all(&mut self) -> Change {
        let change = self.clear(HostId::NONE);
        self.forget_names();
        change
    }

    fn add(&mut self, host: HostId, key: u64) -> Result<(), Status> {
        if self.registrants.len() == REGISTRANTS_MAX {
            return Err(Status::INTERNAL_ERROR.dnr());
        }
        self.registrants.push(Registrant { host, key });
        Ok(())
    }

    fn set_key(&mut self, host: HostId, key: u64) {
        for one in self.registrants.iter_mut().filter(|one| one.host == host) {
            one.key = key;
        }
    }

    /// Section 8.19.6.
    fn acquire(&mut self, host: HostId, kind: ReservationType) -> Result<Change, Status> {
        match self.reservation {
            None => self.hold(host, kind),
            Some(held) if held.kind == kind && self.is_holder(host) => {}
            Some(_) => return Err(CONFLICT),
        }
        Ok(Change::default())
    }

    fn hold(&mut self, host: HostId, kind: ReservationType) {
        let holder = (!kind.is_all_registrants()).then_some(host);
        self.reservation = Some(Reservation { kind, holder });
    }

    /// Section 8.19.7. A preempted reservation passes to `host`, which keeps its registration whatever key is named; where
    /// registrations alone are preempted, a host may end its own.
    fn preempt(&mut self, host: HostId, kind: ReservationType, named: u64) -> Result<Change, Status> {
        let before = self.reservation;
        let holder_key = before.and_then(|held| held.holder).and_then(|holder| self.key_of(holder));
        let takes_over = match before {
            Some(held) if held.kind.is_all_registrants() => named == 0,
            Some(_) if named == 0 => return Err(Status::INVALID_FIELD.dnr()),
            Some(_) => holder_key == Some(named),
            None => false,
        };
        let is_lost = |one: &&Registrant| match takes_over {
            true => one.host != host && (named == 0 || one.key == named),
            false => one.key == named,
        };
        let lost: Vec<HostId> = self.registrants.iter().filter(is_lost).map(|one| one.host).collect();
        if !takes_over && lost.is_empty() {
            return Err(CONFLICT);
        }
        self.remove(&lost);
        let mut change = Change::default();
        let others = lost.iter().filter(|one| **one != host);
        change.notices.extend(others.map(|one| (*one, ReservationNotice::RegistrationPreempted)));
        if takes_over {
            self.hold(host, kind);
            if before.is_some_and(|held| held.kind != kind) {
                self.tell_registrants(host, ReservationNotice::ReservationReleased, &mut change);
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(change)
    }

    /// Section 8.19.8. A registrant that does not hold the reservation has nothing to give back, which is no error.
    fn release(&mut self, host: HostId, kind: Option<ReservationType>) -> Result<Change, Status> {
        let mut change = Change::default();
        let Some(held) = self.reservation.filter(|_| self.is_holder(host)) else { return Ok(change) };
        if kind != Some(held.kind) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.reservation = None;
        if !held.kind.is_of_holder_alone() {
            self.tell_registrants(host, ReservationNotice::ReservationReleased, &mut change);
        }
        Ok(change)
    }

    /// Section 8.19.9.
    fn clear(&mut self, host: HostId) -> Change {
        let mut change = Change::default();
        self.tell_registrants(host, ReservationNotice::ReservationPreempted, &mut change);
        self.registrants.clear();
        self.reservation = None;
        self.generation = self.generation.wrapping_add(1);
        change
    }

    /// Takes registrations away, and the reservation with its (last) holder.
    fn remove(&mut self, hosts: &[HostId]) {
        self.registrants.retain(|one| !hosts.contains(&one.host));
        let is_orphan = |held: &Reservation| match held.holder {
            Some(holder) => hosts.contains(&holder),
            None => self.registrants.is_empty(),
        };
        if self.reservation.as_ref().is_some_and(is_orphan) {
            self.reservation = None;
        }
    }

    fn tell_registrants(&self, but: HostId, notice: ReservationNotice, change: &mut Change) {
        let others = self.registrants.iter().filter(|one| one.host != but);
        change.notices.extend(others.map(|one| (one.host, notice)));
    }
}
