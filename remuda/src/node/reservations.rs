//! Reservations of hosts that are to last over a loss of power: the target asks, the node remembers.
//!
//! The target changes one reservation at a time and acknowledges it when the node has made it durable, so that at most one
//! request is on its way. A namespace is known by its identity: another one of its number has none of its reservations.

use super::Node;
use super::refusal::{Refusal, RefusalKind};
use super::view::{RegistrantView, ReservationView, ReservedView};
use nvme::spec::Nqn;
use nvme::spec::reservation::ReservationType;
use nvme::target::reservation::{HostId, Registrant, Reservation, Table};
use nvme::tcp_target::{ReservationStore, ReservedNamespace, Saved};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
    /// NQNs of hosts, as far as they are known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<Uuid, String>,
}

impl ReservationRecord {
    fn of(uuid: Uuid, table: &Table) -> ReservationRecord {
        let id = |host: HostId| Uuid::from_bytes(host.0);
        let named = table.registrants().iter().filter_map(|one| Some((one.host, table.name(one.host)?)));
        ReservationRecord {
            uuid,
            generation: table.generation(),
            kind: table.reservation().map(|held| held.kind as u8),
            holder: table.reservation().and_then(|held| held.holder).map(id),
            registrants: table.registrants().iter().map(|one| (id(one.host), one.key)).collect(),
            names: named.map(|(host, name)| (id(host), name.to_string())).collect(),
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
        let mut table = Table::restore(self.generation, reservation, registrants.collect())?;
        for (host, name) in &self.names {
            // For people alone: one that is no name is as good as none.
            if let Ok(name) = Nqn::new(name) {
                table.note_name(id(*host), &name);
            }
        }
        Some(table)
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

/// Registrations as an administrator sees and ends them.
impl Node {
    /// The next request of the target to keep a reservation; none before there is a queue for them.
    pub async fn next_kept(&mut self) -> Option<KeepReservation> {
        self.kept.as_mut()?.recv().await
    }

    /// What is reserved, everywhere or in one subsystem.
    pub async fn reservation_list(&self, nqn: Option<&str>) -> Result<Vec<ReservedView>, Refusal> {
        let subsystems = match nqn {
            Some(nqn) => vec![self.subsystem_show(nqn).await?],
            None => self.subsystem_list(),
        };
        let nqns = subsystems.iter().map(|subsystem| subsystem.nqn.clone()).collect();
        let tables = self.exporter.reservations_of(nqns).await;
        let mut reserved = Vec::new();
        for (subsystem, tables) in subsystems.iter().zip(tables) {
            for (nsid, table) in tables {
                let shown = subsystem.namespaces.iter().find(|namespace| namespace.nsid == nsid);
                let volume = shown.map(|namespace| namespace.volume.clone()).unwrap_or_default();
                let reservation = view(nsid, &table);
                reserved.push(ReservedView { nqn: subsystem.nqn.clone(), volume, reservation });
            }
        }
        Ok(reserved)
    }

    /// Ends all registrations of a namespace with its reservation, or the registration of one host; other hosts are told. Gives
    /// what is left.
    pub async fn reservation_clear(&mut self, namespace: &str, host: Option<&str>) -> Result<ReservedView, Refusal> {
        self.check_running()?;
        let (nqn, nsid, volume) = self.namespace_named(namespace)?;
        let object = format!("namespace {nsid} of subsystem '{nqn}'");
        let table = self.table_of(&nqn, nsid).await;
        if table.registrants().is_empty() {
            return Err(Refusal::conflict(object, "no host has registered with it", "see 'remuda reservation list'"));
        }
        let host = host.map(|named| registrant(&table, &object, named)).transpose()?;
        let mut clearing = self.exporter.clear_reservations(&nqn, nsid, host);
        let cleared = loop {
            tokio::select! {
                cleared = &mut clearing => break cleared,
                // The target does not put in force what has not been kept first.
                Some(request) = self.next_kept() => self.keep_reservation(request),
            }
        };
        let cleared = cleared.unwrap_or_else(|_| Err("the target has stopped".to_string()));
        cleared.map_err(|reason| Refusal::failed(&object, reason, "see 'remuda reservation list', and try again"))?;
        match host {
            Some(host) => tracing::warn!(nqn, nsid, %host, "a host's registration was ended by command"),
            None => tracing::warn!(nqn, nsid, "reservation and registrations were cleared by command"),
        }
        let reservation = view(nsid, &self.table_of(&nqn, nsid).await);
        Ok(ReservedView { nqn, volume, reservation })
    }

    async fn table_of(&self, nqn: &str, nsid: u32) -> Table {
        let tables = self.exporter.reservations(nqn).await;
        tables.into_iter().find(|(found, _)| *found == nsid).map(|(_, table)| table).unwrap_or_default()
    }

    /// The namespace of this name, `NQN/NSID`, or the only one that shows the volume of this name; with its volume.
    fn namespace_named(&self, name: &str) -> Result<(String, u32, String), Refusal> {
        let mut shown = Vec::new();
        for (nqn, subsystem) in &self.subsystems {
            for namespace in &subsystem.record.namespaces {
                if namespace.volume == name || format!("{nqn}/{}", namespace.nsid) == name {
                    shown.push((nqn.clone(), namespace.nsid, namespace.volume.clone()));
                }
            }
        }
        if shown.len() > 1 {
            let names: Vec<String> = shown.iter().map(|(nqn, nsid, _)| format!("{nqn}/{nsid}")).collect();
            let cause = format!("it is shown as several namespaces: {}", names.join(", "));
            return Err(Refusal::conflict(format!("volume '{name}'"), cause, "name one of them"));
        }
        shown.pop().ok_or_else(|| {
            let next = "give the name of a volume that hosts see, or NQN/NSID; see 'remuda subsystem list'";
            Refusal::new(RefusalKind::NotFound, format!("namespace '{name}'"), "there is no such namespace", next)
        })
    }
}

/// The registrant that is meant, by NQN or host identifier.
fn registrant(table: &Table, object: &str, named: &str) -> Result<HostId, Refusal> {
    let id = Uuid::parse_str(named).ok().map(|id| HostId(*id.as_bytes()));
    let is_meant = |host: HostId| id == Some(host) || table.name(host).is_some_and(|name| name.as_str() == named);
    let meant: Vec<HostId> = table.registrants().iter().map(|one| one.host).filter(|host| is_meant(*host)).collect();
    match meant[..] {
        [host] => Ok(host),
        [] => {
            let ids: Vec<String> = table.registrants().iter().map(|one| one.host.to_string()).collect();
            let next =
                format!("registered are the host identifiers {}; older registrations have no NQN", ids.join(", "));
            Err(Refusal::new(RefusalKind::NotFound, object, format!("host '{named}' has not registered"), next))
        }
        _ => {
            let ids: Vec<String> = meant.iter().map(HostId::to_string).collect();
            let cause = format!("host '{named}' has registered under several identifiers");
            Err(Refusal::conflict(object, cause, format!("name one of them: {}", ids.join(", "))))
        }
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
                host_nqn: table.name(one.host).map(ToString::to_string),
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
            let mut table = Table::restore(7, Some(Reservation { kind, holder }), registrants.clone()).expect("sound");
            table.note_name(HostId([1; 16]), &Nqn::new("nqn.2026-11.org.example:h").expect("valid"));
            let record = ReservationRecord::of(uuid, &table);
            let text = serde_json::to_string(&record).expect("serialises");
            let read: ReservationRecord = serde_json::from_str(&text).expect("its own text");
            assert_eq!((read.uuid, read.table()), (uuid, Some(table)));
            assert_eq!(ReservationRecord { kind: Some(7), ..record.clone() }.table(), None);
            assert_eq!(ReservationRecord { registrants: Vec::new(), ..record }.table(), None);
        }
    }
}
