//! Reservations of hosts that are to last over a loss of power: the target asks, the node remembers.
//!
//! The target changes one reservation at a time and acknowledges it when the node has made it durable, so that at most one
//! request is on its way. A namespace is known by its identity: another one of its number has none of its reservations.

use super::Node;
use super::refusal::Refusal;
use super::view::{RegistrantView, ReservationView};
use nvme::spec::reservation::ReservationType;
use nvme::target::reservation::{HostId, Registrant, Reservation, Table};
use nvme::tcp_target::{ReservationStore, ReservedNamespace, Saved};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use uuid::Uuid;

/// The reservations of a namespace, as the state remembers them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationRecord {
    /// Identity of the namespace.
    pub uuid: Uuid,
    /// Counts changes of registrations.
    pub generation: u32,
    /// NVMe's number of the type of reservation, none if nobody holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<u8>,
    /// Who holds it, where not all registrants do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Uuid>,
    /// Hosts and their keys, in the order of registration.
    pub registrants: Vec<(Uuid, u64)>,
}

impl ReservationRecord {
    fn of(uuid: Uuid, table: &Table) -> ReservationRecord {
        let id = |host: HostId| Uuid::from_bytes(host.0);
        ReservationRecord {
            uuid,
            generation: table.generation(),
            kind: table.reservation().map(|held| held.kind as u8),
            holder: table.reservation().and_then(|held| held.holder).map(id),
            registrants: table.registrants().iter().map(|one| (id(one.host), one.key)).collect(),
        }
    }

    /// The table again; `None` when the record contradicts itself.
    fn table(&self) -> Option<Table> {
        let id = |host: Uuid| HostId(*host.as_bytes());
        let reservation = match self.kind {
            Some(kind) => Some(Reservation { kind: ReservationType::from_u8(kind)?, holder: self.holder.map(id) }),
            None => None,
        };
        let registrants = self.registrants.iter().map(|(host, key)| Registrant { host: id(*host), key: *key });
        Table::restore(self.generation, reservation, registrants.collect())
    }
}

/// What the target asks to be remembered, or forgotten.
#[derive(Debug)]
pub struct KeepReservation {
    of: ReservedNamespace,
    table: Option<Table>,
    saved: Saved,
}

/// The target's door to the node. The queue behind it is never longer than the one change that the target has under way.
#[derive(Debug)]
pub struct ReservationDoor(pub mpsc::UnboundedSender<KeepReservation>);

impl ReservationStore for ReservationDoor {
    fn save(&self, of: ReservedNamespace, table: Option<Table>, saved: Saved) {
        // With the node gone the request is dropped, which says that nothing was saved.
        let _ = self.0.send(KeepReservation { of, table, saved });
    }
}

impl Node {
    /// Remembers the reservations of a namespace, then says so.
    pub fn keep_reservation(&mut self, request: KeepReservation) {
        let KeepReservation { of, table, saved } = request;
        let outcome = self.try_keep(&of, table.as_ref());
        if let Err(refusal) = &outcome {
            tracing::error!(nqn = of.subsystem, nsid = of.nsid, "reservation not kept, the host is told: {refusal}");
        }
        saved.done(outcome.is_ok());
    }

    fn try_keep(&mut self, of: &ReservedNamespace, table: Option<&Table>) -> Result<(), Refusal> {
        self.check_running()?;
        let mut state = self.state.clone();
        let shown = self
            .subsystems
            .get(&of.subsystem)
            .is_some_and(|subsystem| subsystem.record.namespaces.iter().any(|namespace| namespace.nsid == of.nsid));
        let kept = state.reservations.entry(of.subsystem.clone()).or_default();
        match table.filter(|_| shown) {
            Some(table) => drop(kept.insert(of.nsid, ReservationRecord::of(of.uuid, table))),
            None => drop(kept.remove(&of.nsid)),
        }
        if kept.is_empty() {
            state.reservations.remove(&of.subsystem);
        }
        self.remember(state)
    }

    /// What was remembered of a namespace that is about to be shown.
    pub(super) fn kept_reservations(&mut self, nqn: &str, nsid: u32, uuid: Uuid) -> Option<Table> {
        let record = self.state.reservations.get(nqn)?.get(&nsid).filter(|record| record.uuid == uuid)?;
        let table = record.table();
        if table.is_none() {
            self.warn_now(format!(
                "subsystem '{nqn}': the remembered reservations of namespace {nsid} contradict themselves and are \
                 dropped; have the hosts register again"
            ));
        }
        table
    }
}

/// A table as users see it.
pub(super) fn view(nsid: u32, table: &Table) -> ReservationView {
    ReservationView {
        nsid,
        kind: table.reservation().map(|held| held.kind.text().to_string()),
        persistent: table.is_persistent(),
        generation: table.generation(),
        registrants: table
            .registrants()
            .iter()
            .map(|one| RegistrantView {
                host_id: Uuid::from_bytes(one.host.0),
                key: format!("{:#x}", one.key),
                holder: table.is_holder(one.host),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_gives_the_table_back_and_a_bent_one_none() {
        let registrants =
            vec![Registrant { host: HostId([1; 16]), key: u64::MAX }, Registrant { host: HostId([2; 16]), key: 1 }];
        let uuid = Uuid::from_u128(9);
        for kind in ReservationType::ALL {
            let holder = (!kind.is_all_registrants()).then_some(HostId([2; 16]));
            let table = Table::restore(7, Some(Reservation { kind, holder }), registrants.clone()).expect("sound");
            let record = ReservationRecord::of(uuid, &table);
            let text = serde_json::to_string(&record).expect("serialises");
            let read: ReservationRecord = serde_json::from_str(&text).expect("its own text");
            assert_eq!((read.uuid, read.table()), (uuid, Some(table)));
            assert_eq!(ReservationRecord { kind: Some(7), ..record.clone() }.table(), None);
            assert_eq!(ReservationRecord { registrants: Vec::new(), ..record }.table(), None);
        }
    }
}
