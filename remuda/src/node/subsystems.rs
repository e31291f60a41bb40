//! Subsystems: which volumes hosts see, and which hosts may.

use super::export::{NamespaceSpec, SubsystemSpec};
use super::refusal::Refusal;
use super::reservations;
use super::state::{Origin, State, SubsystemOverlay};
use super::view::{HostView, NamespaceView, SubsystemView};
use super::{NamespaceRecord, Node, OBJECTS_MAX, Subsystem, SubsystemRecord};
use crate::config::{ANY_HOST_WITH_KEYS, check_ascii, check_nqn};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Namespaces of one subsystem at most; what one active-namespace-list page holds.
pub const NAMESPACES_MAX: usize = 1024;
/// Hosts of one subsystem at most.
pub const HOSTS_MAX: usize = 1024;
/// What may be said of a namespace that is added.
#[derive(Clone, Debug, Default)]
pub struct NewNamespace {
    /// Namespace id; `None` is the next free one.
    pub nsid: Option<u32>,
    /// The hosts that see it; `None` is every host.
    pub hosts: Option<Vec<String>>,
    /// Its group for asymmetric access; `None` is the first.
    pub ana_group: Option<u32>,
    /// Its identity, if not its volume's.
    pub uuid: Option<Uuid>,
}

const MODEL_DEFAULT: &str = "Remuda";

fn new_serial() -> String {
    let bytes = *Uuid::new_v4().as_bytes();
    format!("RM{}", bytes[..8].iter().map(|byte| format!("{byte:02X}")).collect::<String>())
}

/// A namespace that is no longer shown takes its reservations with it, whatever is shown in its place.
fn end_reservations(state: &mut State, nqn: &str, shown: &[NamespaceRecord]) {
    if let Some(kept) = state.reservations.get_mut(nqn) {
        kept.retain(|nsid, _| shown.iter().any(|namespace| namespace.nsid == *nsid));
    }
    state.reservations.retain(|_, kept| !kept.is_empty());
}

impl Node {
    pub(super) async fn open_subsystems(&mut self) -> Result<(), Refusal> {
        for entry in self.config.subsystems.clone() {
            let nqn = entry.nqn.value.clone();
            let overlay = self.state.subsystem_overlays.entry(nqn.clone()).or_default();
            if overlay.serial.is_empty() {
                overlay.serial = new_serial();
            }
            let namespaces = entry.namespaces.iter();
            let namespaces = namespaces.map(|one| {
                let hosts = one.hosts.as_ref().map(|hosts| hosts.iter().map(|host| host.value.clone()).collect());
                let uuid = one.uuid.as_ref().map(|uuid| uuid.value);
                let (nsid, volume) = (one.nsid.value, one.volume.value.clone());
                NamespaceRecord { nsid, volume, hosts, ana_group: one.ana_group, uuid }
            });
            let mut configured = SubsystemRecord {
                serial: entry.serial.clone().unwrap_or_else(|| overlay.serial.clone()),
                model: entry.model.clone().unwrap_or_else(|| MODEL_DEFAULT.to_string()),
                allow_any_host: entry.allow_any_host,
                hosts: entry.hosts.iter().map(|host| host.value.clone()).collect(),
                namespaces: namespaces.collect(),
                ana: super::ana::records(&entry.ana),
                controller_ids: entry.controller_ids,
            };
            configured.namespaces.sort_by_key(|namespace| namespace.nsid);
            let record = apply(&configured, overlay);
            self.subsystems.insert(nqn, Subsystem { origin: Origin::Config, record, configured: Some(configured) });
        }
        for (nqn, record) in self.state.subsystems.clone() {
            if self.subsystems.contains_key(&nqn) {
                let path = &self.config.source.path;
                self.warn(format!(
                    "subsystem '{nqn}' is defined in {path} and was also created at run time: the file wins"
                ));
                continue;
            }
            self.subsystems.insert(nqn, Subsystem { origin: Origin::Runtime, record, configured: None });
        }
        self.forget_reservations()?;
        self.load_host_keys()?;
        self.load_tls_keys()?;
        for nqn in self.subsystems.keys().cloned().collect::<Vec<_>>() {
            self.announce(&nqn).await?;
        }
        self.remember_shown()
    }

    /// Reservations of namespaces that a changed configuration file has taken away end with them.
    fn forget_reservations(&mut self) -> Result<(), Refusal> {
        let mut state = self.state.clone();
        for nqn in self.state.reservations.keys() {
            let shown = self.subsystems.get(nqn).map_or(&[][..], |subsystem| &subsystem.record.namespaces);
            end_reservations(&mut state, nqn, shown);
        }
        if state == self.state { Ok(()) } else { self.remember(state) }
    }

    /// Tells the target how a subsystem should be. Namespaces whose volume is closed are left out; one in a pool that is
    /// not open is shown, and not ready.
    async fn announce(&mut self, nqn: &str) -> Result<(), Refusal> {
        self.announce_without(nqn, &[]).await
    }

    /// The same without the namespaces of some volumes.
    async fn announce_without(&mut self, nqn: &str, hidden: &[String]) -> Result<(), Refusal> {
        let record = self.subsystems[nqn].record.clone();
        let mut namespaces = Vec::new();
        for namespace in record.namespaces.iter().filter(|namespace| !hidden.contains(&namespace.volume)) {
            if let Some((device, uuid)) = self.export_of(&namespace.volume) {
                let (nsid, ana_group) = (namespace.nsid, namespace.ana_group);
                let uuid = namespace.uuid.unwrap_or(uuid);
                let reservations = self.kept_reservations(nqn, nsid, uuid);
                let hosts = namespace.hosts.clone();
                namespaces.push(NamespaceSpec { nsid, device, uuid, reservations, hosts, ana_group });
            }
        }
        let spec = SubsystemSpec {
            nqn: nqn.to_string(),
            serial: record.serial,
            model: record.model,
            allow_any_host: record.allow_any_host,
            hosts: record.hosts,
            keys: self.host_key_specs(nqn),
            tls_keys: self.tls_key_specs(nqn),
            namespaces,
            ana: record.ana,
            controller_ids: record.controller_ids,
        };
        self.exporter.put(spec).await
    }

    /// Tells the target about every subsystem that shows `volume`, and the doors that do.
    pub(super) async fn announce_volume(&mut self, volume: &str) -> Result<(), Refusal> {
        let shows =
            |subsystem: &&Subsystem| subsystem.record.namespaces.iter().any(|namespace| namespace.volume == volume);
        let nqns = self.subsystems.iter().filter(|(_, subsystem)| shows(subsystem)).map(|(nqn, _)| nqn.clone());
        for nqn in nqns.collect::<Vec<_>>() {
            self.announce(&nqn).await?;
        }
        self.announce_to_doors(volume).await;
        Ok(())
    }

    /// Shows hosts the volumes of a pool that has opened in place of what stood for them.
    pub(super) async fn announce_pool(&mut self, pool: &str) -> Result<(), Refusal> {
        let volumes: Vec<String> = self.volumes_of_pool(pool).map(str::to_string).collect();
        let shows = |subsystem: &Subsystem| {
            subsystem.record.namespaces.iter().any(|namespace| volumes.contains(&namespace.volume))
        };
        let nqns = self.subsystems.iter().filter(|(_, subsystem)| shows(subsystem)).map(|(nqn, _)| nqn.clone());
        for nqn in nqns.collect::<Vec<_>>() {
            // The identity is the same: only a namespace that went away is taken anew.
            self.announce_without(&nqn, &volumes).await?;
            self.announce(&nqn).await?;
        }
        for volume in &volumes {
            self.announce_to_doors(volume).await;
        }
        self.remember_shown()
    }

    /// Namespaces that show `volume`, as `NQN/nsid`, and doors, as `vhost/NAME`.
    pub(super) fn exports_of(&self, volume: &str) -> Vec<String> {
        let mut exports = Vec::new();
        for (nqn, subsystem) in &self.subsystems {
            let shown = subsystem.record.namespaces.iter().filter(|namespace| namespace.volume == volume);
            exports.extend(shown.map(|namespace| format!("{nqn}/{}", namespace.nsid)));
        }
        exports.extend(self.doors_of(volume));
        exports
    }

    /// The volumes that hosts may use.
    pub(super) fn exported(&self) -> BTreeSet<&str> {
        let shown = self.subsystems.values().flat_map(|subsystem| &subsystem.record.namespaces);
        let shown = shown.map(|namespace| namespace.volume.as_str());
        shown.chain(self.volumes_at_doors()).collect()
    }

    /// How one of [`exports_of`](Self::exports_of) is ended.
    pub(super) fn end_export(export: &str) -> String {
        if let Some(door) = export.strip_prefix("vhost/") {
            return format!(
                "delete the door first: remuda vhost delete {door} (with --force while a virtual machine uses it)"
            );
        }
        let (nqn, nsid) = export.rsplit_once('/').unwrap_or((export, ""));
        format!(
            "remove the namespace first: remuda subsystem remove-namespace {nqn} {nsid} (with --force while hosts are \
             connected)"
        )
    }

    fn subsystem(&self, nqn: &str) -> Result<&Subsystem, Refusal> {
        let known = self.subsystems.keys().map(String::as_str);
        self.subsystems.get(nqn).ok_or_else(|| Refusal::not_found("subsystem", nqn, known))
    }

    fn subsystem_view(&self, nqn: &str, subsystem: &Subsystem) -> SubsystemView {
        let record = &subsystem.record;
        let namespaces = record.namespaces.iter().map(|namespace| {
            let volume = self.identity_of(&namespace.volume);
            NamespaceView {
                nsid: namespace.nsid,
                volume: namespace.volume.clone(),
                size: volume.map_or(0, |(size, _)| size),
                uuid: namespace.uuid.or(volume.map(|(_, uuid)| uuid)),
                hosts: namespace.hosts.clone(),
                ana_group: namespace.ana_group,
            }
        });
        SubsystemView {
            nqn: nqn.to_string(),
            serial: record.serial.clone(),
            model: record.model.clone(),
            allow_any_host: record.allow_any_host,
            hosts: record.hosts.clone(),
            namespaces: namespaces.collect(),
            ana: super::ana::views(&record.ana),
            reservations: Vec::new(),
            addresses: self.addresses(),
            tls_addresses: self.tls_addresses(),
            origin: subsystem.origin,
            differs_from_file: subsystem.configured.as_ref().is_some_and(|configured| configured != record),
        }
    }

    /// All subsystems.
    pub fn subsystem_list(&self) -> Vec<SubsystemView> {
        self.subsystems.iter().map(|(nqn, subsystem)| self.subsystem_view(nqn, subsystem)).collect()
    }

    /// One subsystem, with what its hosts have reserved.
    pub async fn subsystem_show(&self, nqn: &str) -> Result<SubsystemView, Refusal> {
        let view = self.subsystem_view(nqn, self.subsystem(nqn)?);
        let tables = self.exporter.reservations(nqn).await;
        let reservations = tables.iter().map(|(nsid, table)| reservations::view(*nsid, table)).collect();
        Ok(SubsystemView { reservations, ..view })
    }

    /// Hosts and where they are allowed; `*` is every host.
    pub async fn host_list(&self, nqn: Option<&str>) -> Result<Vec<HostView>, Refusal> {
        if let Some(nqn) = nqn {
            self.subsystem(nqn)?;
        }
        let mut connected = self.exporter.counters().await.hosts;
        let mut hosts: Vec<HostView> = Vec::new();
        for (name, subsystem) in self.subsystems.iter().filter(|(name, _)| nqn.is_none_or(|nqn| nqn == *name)) {
            let view = |host: &str| HostView {
                host: host.to_string(),
                subsystem: name.clone(),
                dhchap: self.host_key_view(name, host),
                tls: self.tls_key_view(name, host),
                connected: Vec::new(),
            };
            let first = hosts.len();
            let listed = &subsystem.record.hosts;
            if subsystem.record.allow_any_host {
                hosts.push(view("*"));
                hosts.extend(self.keyed_hosts(name).filter(|host| !listed.contains(*host)).map(|host| view(host)));
            }
            hosts.extend(listed.iter().map(|host| view(host)));
            let (here, elsewhere) = connected.into_iter().partition(|one| one.subsystem == *name);
            connected = elsewhere;
            for one in here {
                let views = &mut hosts[first..];
                let by_name = views.iter().position(|view| view.host == one.host);
                let found = by_name.or_else(|| views.iter().position(|view| view.host == "*"));
                found.into_iter().for_each(|at| views[at].connected.push(one.clone()));
            }
        }
        Ok(hosts)
    }

    /// Hosts with keys for a subsystem, each once.
    fn keyed_hosts(&self, nqn: &str) -> impl Iterator<Item = &String> {
        let authenticating = self.host_keys.get(nqn).into_iter().flat_map(|keys| keys.keys());
        let encrypting = self.tls_keys.get(nqn).into_iter().flat_map(|keys| keys.keys());
        authenticating.chain(encrypting).collect::<BTreeSet<_>>().into_iter()
    }

    /// Remembers `subsystem` as it now is, and tells the target.
    pub(super) async fn change(&mut self, nqn: &str, subsystem: Subsystem) -> Result<SubsystemView, Refusal> {
        let mut state = self.state.clone();
        end_reservations(&mut state, nqn, &subsystem.record.namespaces);
        match &subsystem.configured {
            None => {
                state.subsystems.insert(nqn.to_string(), subsystem.record.clone());
            }
            Some(configured) => {
                let serial =
                    state.subsystem_overlays.get(nqn).map(|overlay| overlay.serial.clone()).unwrap_or_default();
                state.subsystem_overlays.insert(nqn.to_string(), difference(configured, &subsystem.record, serial));
            }
        }
        self.remember(state)?;
        self.subsystems.insert(nqn.to_string(), subsystem);
        self.remember_shown()?;
        self.announce(nqn).await?;
        self.subsystem_show(nqn).await
    }

    pub(super) fn copy_of(&self, nqn: &str) -> Result<Subsystem, Refusal> {
        let subsystem = self.subsystem(nqn)?;
        Ok(Subsystem {
            origin: subsystem.origin,
            record: subsystem.record.clone(),
            configured: subsystem.configured.clone(),
        })
    }

    /// A new, empty subsystem.
    pub async fn subsystem_create(
        &mut self,
        nqn: &str,
        serial: Option<String>,
        model: Option<String>,
        allow_any_host: bool,
        hosts: Vec<String>,
        controller_ids: Option<(u16, u16)>,
    ) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let object = format!("subsystem '{nqn}'");
        check_nqn(nqn).map_err(|reason| Refusal::invalid(&object, reason, ""))?;
        if self.subsystems.contains_key(nqn) {
            return Err(Refusal::conflict(object, "it exists already", "choose another name, or delete it first"));
        }
        if self.subsystems.len() >= OBJECTS_MAX {
            return Err(Refusal::conflict(
                object,
                format!("there are {OBJECTS_MAX} subsystems already"),
                "delete some first",
            ));
        }
        for (text, max) in [(&serial, 20), (&model, 40)] {
            if let Some(text) = text {
                check_ascii(text, max).map_err(|reason| Refusal::invalid(&object, reason, ""))?;
            }
        }
        for host in &hosts {
            check_nqn(host).map_err(|reason| Refusal::invalid(&object, reason, ""))?;
        }
        let record = SubsystemRecord {
            serial: serial.unwrap_or_else(new_serial),
            model: model.unwrap_or_else(|| MODEL_DEFAULT.to_string()),
            allow_any_host,
            hosts,
            namespaces: Vec::new(),
            ana: Vec::new(),
            controller_ids,
        };
        let view = self.change(nqn, Subsystem { origin: Origin::Runtime, record, configured: None }).await?;
        tracing::info!(nqn, "subsystem created");
        Ok(view)
    }

    /// Removes a subsystem; its hosts are disconnected, its volumes stay.
    pub async fn subsystem_delete(&mut self, nqn: &str, force: bool) -> Result<(), Refusal> {
        self.check_running()?;
        if self.subsystem(nqn)?.origin == Origin::Config {
            return Err(self.belongs_to_config(format!("subsystem '{nqn}'")));
        }
        if !force && !self.subsystem(nqn)?.record.namespaces.is_empty() {
            self.check_nobody_loses(format!("subsystem '{nqn}'"), nqn, None).await?;
        }
        let mut state = self.state.clone();
        state.subsystems.remove(nqn);
        state.reservations.remove(nqn);
        self.remember(state)?;
        self.forget_host_keys(nqn, None)?;
        self.forget_tls_keys(nqn, None)?;
        self.subsystems.remove(nqn);
        self.remember_shown()?;
        self.exporter.remove(nqn).await?;
        tracing::info!(nqn, "subsystem deleted");
        Ok(())
    }

    /// Shows `volume` as a namespace.
    pub async fn namespace_add(
        &mut self,
        nqn: &str,
        volume: &str,
        new: NewNamespace,
    ) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let NewNamespace { nsid, hosts, ana_group, uuid } = new;
        let object = format!("subsystem '{nqn}'");
        let hosts = hosts.map(|hosts| checked_mask(&object, hosts)).transpose()?;
        let mut subsystem = self.copy_of(nqn)?;
        self.volume_device(volume)?;
        self.check_not_imported(volume)?;
        let namespaces = &mut subsystem.record.namespaces;
        if let Some(shown) = namespaces.iter().find(|namespace| namespace.volume == volume) {
            let cause = format!("volume '{volume}' is its namespace {} already", shown.nsid);
            return Err(Refusal::conflict(object, cause, ""));
        }
        if namespaces.len() >= NAMESPACES_MAX {
            let cause = format!("it has {NAMESPACES_MAX} namespaces already");
            return Err(Refusal::conflict(object, cause, "use another subsystem"));
        }
        let taken = |nsid: u32| namespaces.iter().any(|namespace| namespace.nsid == nsid);
        let nsid = match nsid {
            Some(nsid) if taken(nsid) => {
                return Err(Refusal::conflict(
                    object,
                    format!("namespace {nsid} exists already"),
                    "choose another nsid, or none",
                ));
            }
            Some(nsid) => nsid,
            None => (1..).find(|nsid| !taken(*nsid)).expect("fewer namespaces than ids"),
        };
        let ana_group = ana_group.unwrap_or(1);
        namespaces.push(NamespaceRecord { nsid, volume: volume.to_string(), hosts, ana_group, uuid });
        namespaces.sort_by_key(|namespace| namespace.nsid);
        let view = self.change(nqn, subsystem).await?;
        tracing::info!(nqn, nsid, volume, "namespace added");
        Ok(view)
    }

    /// Shows a namespace to these hosts alone, or to every host that may connect.
    pub async fn namespace_mask(
        &mut self,
        nqn: &str,
        nsid: u32,
        hosts: Option<Vec<String>>,
    ) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let mut subsystem = self.copy_of(nqn)?;
        let object = format!("namespace {nsid} of subsystem '{nqn}'");
        let hosts = hosts.map(|hosts| checked_mask(&object, hosts)).transpose()?;
        let namespaces = &mut subsystem.record.namespaces;
        let Some(namespace) = namespaces.iter_mut().find(|namespace| namespace.nsid == nsid) else {
            return Err(no_namespace(&subsystem.record, nqn, nsid));
        };
        namespace.hosts = hosts;
        let view = self.change(nqn, subsystem).await?;
        tracing::info!(nqn, nsid, "hosts of a namespace set");
        Ok(view)
    }

    /// Hides a namespace; the volume stays.
    pub async fn namespace_remove(&mut self, nqn: &str, nsid: u32, force: bool) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let mut subsystem = self.copy_of(nqn)?;
        let namespaces = &mut subsystem.record.namespaces;
        let Some(place) = namespaces.iter().position(|namespace| namespace.nsid == nsid) else {
            return Err(no_namespace(&subsystem.record, nqn, nsid));
        };
        let old = namespaces.remove(place);
        // One that is not open serves nobody.
        if !force && self.volumes.contains_key(&old.volume) {
            let object = format!("namespace {nsid} (volume '{}') of subsystem '{nqn}'", old.volume);
            self.check_nobody_loses(object, nqn, old.hosts.as_deref()).await?;
        }
        let view = self.change(nqn, subsystem).await?;
        tracing::info!(nqn, nsid, "namespace removed");
        Ok(view)
    }

    /// Refuses what would take a subsystem, or the namespaces that only `seen_by` see, from hosts that are connected.
    async fn check_nobody_loses(&self, object: String, nqn: &str, seen_by: Option<&[String]>) -> Result<(), Refusal> {
        let losing = self.connected_hosts(nqn, seen_by).await;
        if losing.is_empty() {
            return Ok(());
        }
        let cause = format!("hosts are connected and would lose it: {}", losing.join(", "));
        Err(Refusal::conflict(object, cause, "disconnect them first (nvme disconnect -n NQN), or add --force"))
    }

    /// Hosts that are connected to a subsystem, of `seen_by` if that is given.
    async fn connected_hosts(&self, nqn: &str, seen_by: Option<&[String]>) -> Vec<String> {
        let seen = self.exporter.counters().await;
        let users = seen.hosts.into_iter().filter(|host| host.subsystem == nqn);
        let users: BTreeSet<String> = users.map(|user| user.host).collect();
        users.into_iter().filter(|user| seen_by.is_none_or(|hosts| hosts.contains(user))).collect()
    }

    /// Refuses to make a volume smaller under hosts that are connected, and under virtual machines.
    pub(super) async fn check_nobody_is_cut(&self, volume: &str) -> Result<(), Refusal> {
        let object = format!("volume '{volume}'");
        for (nqn, subsystem) in &self.subsystems {
            for namespace in subsystem.record.namespaces.iter().filter(|namespace| namespace.volume == volume) {
                let hosts = self.connected_hosts(nqn, namespace.hosts.as_deref()).await;
                if !hosts.is_empty() {
                    let nsid = namespace.nsid;
                    let cause =
                        format!("it is namespace {nsid} of '{nqn}', where hosts are connected: {}", hosts.join(", "));
                    let next = "disconnect them first (nvme disconnect -n NQN), or add --force";
                    return Err(Refusal::conflict(object, cause, next));
                }
            }
        }
        if let Some(door) = self.machines().into_iter().find(|door| door.volume == volume && door.queues > 0) {
            let cause = format!("process {}, a virtual machine, uses it through vhost '{}'", door.peer, door.name);
            return Err(Refusal::conflict(object, cause, "detach the disk or end it first, or add --force"));
        }
        Ok(())
    }

    /// Whether a host can be let into a subsystem that exists.
    pub(super) fn check_host_may_be_added(&self, nqn: &str, host: &str) -> Result<(), Refusal> {
        let object = format!("subsystem '{nqn}'");
        let hosts = &self.subsystem(nqn)?.record.hosts;
        check_nqn(host).map_err(|reason| Refusal::invalid(&object, reason, ""))?;
        if hosts.len() >= HOSTS_MAX && !hosts.iter().any(|known| known == host) {
            let cause = format!("it allows {HOSTS_MAX} hosts already");
            return Err(Refusal::conflict(object, cause, "disallow some first"));
        }
        Ok(())
    }

    /// Lets a host connect, or every host.
    pub async fn host_allow(&mut self, nqn: &str, host: Option<&str>) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let mut subsystem = self.copy_of(nqn)?;
        match host {
            None => subsystem.record.allow_any_host = true,
            Some(host) => {
                self.check_host_may_be_added(nqn, host)?;
                let hosts = &mut subsystem.record.hosts;
                if !hosts.iter().any(|known| known == host) {
                    hosts.push(host.to_string());
                }
            }
        }
        let is_any = subsystem.record.allow_any_host;
        let view = self.change(nqn, subsystem).await?;
        if is_any && self.keyed_hosts(nqn).next().is_some() {
            tracing::warn!(nqn, "it has keys of hosts and lets in every host: {ANY_HOST_WITH_KEYS}");
        }
        Ok(view)
    }

    /// Takes a host's permission back, or that of hosts that are not listed; those connected are disconnected.
    pub async fn host_disallow(&mut self, nqn: &str, host: Option<&str>) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let mut subsystem = self.copy_of(nqn)?;
        match host {
            None => subsystem.record.allow_any_host = false,
            Some(host) => {
                let before = subsystem.record.hosts.len();
                let known = subsystem.record.hosts.clone();
                subsystem.record.hosts.retain(|known| known != host);
                if subsystem.record.hosts.len() == before {
                    return Err(Refusal::not_found("host", host, known.iter().map(String::as_str)));
                }
            }
        }
        let view = self.change(nqn, subsystem).await?;
        let Some(host) = host else { return Ok(view) };
        // After that: a host without keys is one that needs none.
        self.forget_host_keys(nqn, Some(host))?;
        self.forget_tls_keys(nqn, Some(host))?;
        let subsystem = self.copy_of(nqn)?;
        self.change(nqn, subsystem).await
    }
}

/// NQNs of hosts that are to see a namespace, in order and each once.
fn checked_mask(object: &str, mut hosts: Vec<String>) -> Result<Vec<String>, Refusal> {
    for host in &hosts {
        check_nqn(host).map_err(|reason| Refusal::invalid(object, reason, ""))?;
    }
    hosts.sort();
    hosts.dedup();
    if hosts.len() > HOSTS_MAX {
        let cause = format!("at most {HOSTS_MAX} hosts can be named");
        return Err(Refusal::invalid(object, cause, "use another subsystem for some of them"));
    }
    Ok(hosts)
}

fn no_namespace(record: &SubsystemRecord, nqn: &str, nsid: u32) -> Refusal {
    let ids: Vec<_> = record.namespaces.iter().map(|namespace| namespace.nsid.to_string()).collect();
    let next = if ids.is_empty() { "it has none".to_string() } else { format!("it has {}", ids.join(", ")) };
    let object = format!("namespace {nsid} of subsystem '{nqn}'");
    Refusal::new(super::RefusalKind::NotFound, object, "there is no such namespace", next)
}

/// The configured subsystem with its run-time changes.
fn apply(configured: &SubsystemRecord, overlay: &SubsystemOverlay) -> SubsystemRecord {
    let mut record = configured.clone();
    record.namespaces.retain(|namespace| !overlay.removed.contains(namespace));
    for added in &overlay.added {
        // The file wins: a run-time namespace gives way to a configured one with its id or its volume.
        let clash = |other: &NamespaceRecord| other.nsid == added.nsid || other.volume == added.volume;
        match record.namespaces.iter_mut().find(|other| clash(other)) {
            None => record.namespaces.push(added.clone()),
            // But who may not see it stays so: the file may have changed in other words of the same namespace.
            Some(same) if same.volume == added.volume && same.hosts != added.hosts && added.hosts.is_some() => {
                tracing::warn!(
                    nsid = same.nsid,
                    volume = %same.volume,
                    "the file says something else of a namespace that was masked at run time: the mask stays"
                );
                same.hosts = added.hosts.clone();
            }
            Some(_) => {}
        }
    }
    record.namespaces.sort_by_key(|namespace| namespace.nsid);
    record.hosts.retain(|host| !overlay.hosts_disallowed.contains(host));
    for host in &overlay.hosts_allowed {
        if !record.hosts.contains(host) {
            record.hosts.push(host.clone());
        }
    }
    record.allow_any_host = overlay.allow_any_host.unwrap_or(record.allow_any_host);
    record.ana = overlay.ana.clone().unwrap_or(record.ana);
    record
}

/// The run-time changes that turn `configured` into `now`.
pub(super) fn difference(configured: &SubsystemRecord, now: &SubsystemRecord, serial: String) -> SubsystemOverlay {
    fn missing<T: PartialEq + Clone>(from: &[T], within: &[T]) -> Vec<T> {
        from.iter().filter(|one| !within.contains(one)).cloned().collect()
    }
    SubsystemOverlay {
        serial,
        added: missing(&now.namespaces, &configured.namespaces),
        removed: missing(&configured.namespaces, &now.namespaces),
        hosts_allowed: missing(&now.hosts, &configured.hosts),
        hosts_disallowed: missing(&configured.hosts, &now.hosts),
        allow_any_host: (now.allow_any_host != configured.allow_any_host).then_some(now.allow_any_host),
        ana: (now.ana != configured.ana).then(|| now.ana.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::AnaRecord;
    use super::*;

    fn record(namespaces: &[(u32, &str)], hosts: &[&str], any: bool) -> SubsystemRecord {
        SubsystemRecord {
            serial: "S".into(),
            model: "M".into(),
            allow_any_host: any,
            hosts: hosts.iter().map(ToString::to_string).collect(),
            ana: Vec::new(),
            controller_ids: None,
            namespaces: namespaces
                .iter()
                .map(|(nsid, volume)| NamespaceRecord {
                    nsid: *nsid,
                    volume: volume.to_string(),
                    hosts: None,
                    ana_group: 1,
                    uuid: None,
                })
                .collect(),
        }
    }

    fn masked(mut record: SubsystemRecord) -> SubsystemRecord {
        record.namespaces[0].hosts = Some(vec!["h1".into()]);
        record.ana = vec![AnaRecord { group: 1, port: None, state: "inaccessible".into() }];
        record
    }

    #[test]
    fn an_overlay_of_the_difference_gives_the_changed_subsystem_back() {
        let configured = record(&[(1, "a"), (2, "b")], &["h1", "h2"], false);
        for now in [
            record(&[(1, "a"), (2, "b")], &["h1", "h2"], false),
            record(&[(2, "b"), (3, "c")], &["h2", "h3"], true),
            record(&[], &[], false),
            masked(record(&[(1, "a"), (2, "b")], &["h1", "h2"], false)),
        ] {
            assert_eq!(apply(&configured, &difference(&configured, &now, "S".into())), now);
        }
    }

    #[test]
    fn the_file_wins_over_a_namespace_added_at_run_time() {
        let overlay = difference(&record(&[], &[], false), &record(&[(1, "mine")], &[], false), "S".into());
        let configured = record(&[(1, "theirs")], &[], false);
        assert_eq!(apply(&configured, &overlay).namespaces, configured.namespaces);
    }

    #[test]
    fn serials_are_twenty_printable_characters_at_most() {
        assert!(check_ascii(&new_serial(), 20).is_ok());
        assert_ne!(new_serial(), new_serial());
    }
}
