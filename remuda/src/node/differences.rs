//! Where a running node is not what its configuration file says: what commands have added and changed, and what has been
//! changed in the file since it was read.

use super::Node;
use super::pool_advice::is_gone;
use super::snapshots::is_snapshot;
use super::state::{Origin, SubsystemOverlay};
use crate::config::limit::Rates;
use crate::config::written::Written;
use crate::config::{Config, NodeConfig};
use bdev::BlockDevice;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// How the file is by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileIs {
    /// As it was when the node read it.
    Same,
    /// Other text.
    Changed,
    /// It would be refused.
    Wrong,
    /// Not there.
    Gone,
}

/// Which way something differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Differs {
    /// A command has made it; the node remembers it.
    AddedAtRunTime,
    /// A command has changed it.
    ChangedAtRunTime,
    /// The file has it by now; the node has it after a restart.
    AddedToTheFile,
    /// The file has it no more; the node has it until a restart.
    RemovedFromTheFile,
    /// The file says something else by now; that is in force after a restart.
    ChangedInTheFile,
}

/// One difference.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DifferenceView {
    /// What differs.
    pub object: String,
    /// Which way.
    pub differs: Differs,
    /// In what, as far as that can be said in a line.
    pub detail: String,
}

/// All of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DifferencesView {
    /// The configuration file.
    pub config: String,
    /// How it is by now.
    pub file: FileIs,
    /// The differences; with a file that is wrong or gone, those of commands alone.
    pub differences: Vec<DifferenceView>,
}

impl Node {
    /// Compares the node with its configuration file.
    pub fn differences(&self) -> DifferencesView {
        let path = &self.config.source.path;
        let mut differences = self.changed_at_run_time();
        let file = match Config::load(path) {
            Err(_) if is_gone(path) => FileIs::Gone,
            Err(_) => FileIs::Wrong,
            Ok(read) if read.source.text == self.config.source.text => FileIs::Same,
            Ok(read) => {
                differences.extend(changed_in_file(&self.config, &read));
                FileIs::Changed
            }
        };
        let config = std::path::absolute(path).map_or_else(|_| path.clone(), |path| path.display().to_string());
        DifferencesView { config, file, differences }
    }

    fn changed_at_run_time(&self) -> Vec<DifferenceView> {
        let mut found = Vec::new();
        let mut note = |differs, object: String, detail: String| found.push(DifferenceView { object, differs, detail });
        let (added, changed) = (Differs::AddedAtRunTime, Differs::ChangedAtRunTime);
        for (name, slot) in &self.devices {
            let configured = self.config.devices.iter().find(|entry| entry.def.name == *name);
            match configured.filter(|_| slot.origin == Origin::Config) {
                None => note(added, format!("device '{name}'"), slot.def.kind().to_string()),
                Some(entry) if entry.def != slot.def => {
                    note(changed, format!("device '{name}'"), changed_keys(&entry.def, &slot.def));
                }
                Some(_) => {}
            }
        }
        for (name, slot) in self.pools.iter().filter(|(_, slot)| slot.origin == Origin::Runtime) {
            note(added, format!("pool '{name}'"), format!("capacity on device '{}'", slot.def.capacity));
        }
        for (name, record) in &self.state.volumes {
            let entry = self.config.volumes.iter().find(|entry| entry.name.value == *name);
            match entry.map(|entry| entry.size.as_ref()) {
                None => note(added, format!("volume '{name}'"), format!("on device '{}'", record.device)),
                Some(Some(size)) if size.value != record.size => {
                    note(changed, format!("volume '{name}'"), format!("size: {} -> {}", size.value, record.size));
                }
                Some(_) => {}
            }
        }
        let open = self.pool_volumes.iter().filter(|(_, slot)| !is_snapshot(&slot.volume));
        let open = open.map(|(name, slot)| (name, &slot.pool, slot.volume.info().bytes()));
        // Snapshots have an '@' in their names, and volumes none.
        let absent = self.absent_volumes().filter(|(name, _)| !name.contains('@'));
        let absent = absent.map(|(name, shown)| (name, &shown.pool, shown.blocks * shown.block_size as u64));
        for (name, pool, size) in open.chain(absent) {
            let entry = self.config.pool_volumes.iter().find(|entry| entry.name.value == *name);
            match entry {
                None => note(added, format!("volume '{name}'"), format!("in pool '{pool}'")),
                Some(entry) if entry.size != size => {
                    note(changed, format!("volume '{name}'"), format!("size: {} -> {size}", entry.size));
                }
                Some(_) => {}
            }
        }
        for (nqn, subsystem) in &self.subsystems {
            let Some(configured) = &subsystem.configured else {
                note(added, format!("subsystem '{nqn}'"), format!("{} namespaces", subsystem.record.namespaces.len()));
                continue;
            };
            if *configured != subsystem.record {
                let overlay = super::subsystems::difference(configured, &subsystem.record, String::new());
                note(changed, format!("subsystem '{nqn}'"), what_changed(&overlay));
            }
        }
        for (name, record) in &self.state.vhosts {
            note(added, format!("vhost '{name}'"), format!("volume '{}'", record.volume));
        }
        for record in &self.state.limits {
            let configured = self.config.limits.iter().find(|entry| entry.of.value == record.of);
            if record.configured == configured.map(|entry| entry.rates) {
                let differs = if configured.is_some() { changed } else { added };
                note(differs, format!("limit of {}", record.of), rates(record.rates));
            }
        }
        for address in self.state.referrals.iter().filter(|address| !self.config.nvmf.referrals.contains(address)) {
            note(added, format!("referral {address}"), String::new());
        }
        let dhchap = self.state.host_keys.iter().flat_map(|(nqn, hosts)| hosts.keys().map(move |host| (nqn, host)));
        let tls = self.state.tls_keys.iter().flat_map(|(nqn, hosts)| hosts.keys().map(move |host| (nqn, host)));
        for (nqn, host) in dhchap.chain(tls).collect::<BTreeSet<_>>() {
            note(added, format!("keys of host '{host}'"), format!("for subsystem '{nqn}'"));
        }
        found
    }
}

fn rates(rates: Rates) -> String {
    let show = |rate: Option<u64>| rate.map_or("none".to_string(), |rate| rate.to_string());
    format!("iops: {}; bandwidth: {}", show(rates.iops), show(rates.bandwidth))
}

fn what_changed(overlay: &SubsystemOverlay) -> String {
    let namespaces = |list: &[super::NamespaceRecord]| {
        list.iter().map(|one| format!("{} ({})", one.nsid, one.volume)).collect::<Vec<_>>().join(", ")
    };
    let mut parts = Vec::new();
    let lists = [
        ("namespaces added: ", namespaces(&overlay.added)),
        ("namespaces removed: ", namespaces(&overlay.removed)),
        ("hosts allowed: ", overlay.hosts_allowed.join(", ")),
        ("hosts disallowed: ", overlay.hosts_disallowed.join(", ")),
    ];
    parts.extend(lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(what, list)| format!("{what}{list}")));
    parts.extend(overlay.allow_any_host.map(|any| format!("allow_any_host: {any}")));
    parts.extend(overlay.ana.as_ref().map(|_| "asymmetric access".to_string()));
    parts.join("; ")
}

/// The keys in which two definitions differ, with both values.
fn changed_keys<T: Serialize>(before: &T, after: &T) -> String {
    let fields = |of: &T| match serde_json::to_value(of) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (before, after) = (fields(before), fields(after));
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let show = |value: Option<&Value>| value.map_or("none".to_string(), Value::to_string);
    let differ = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let each = differ.map(|key| format!("{key}: {} -> {}", show(before.get(key)), show(after.get(key))));
    each.collect::<Vec<_>>().join("; ")
}

/// Everything in a configuration by its name, as text that is the same where the meaning is.
fn objects(config: &Config) -> BTreeMap<String, String> {
    let mut objects = BTreeMap::new();
    // The default address of metrics means the same when it is written down.
    let node = NodeConfig { metrics_explicit: false, ..config.node.clone() };
    objects.insert("[node]".to_string(), format!("{node:?}"));
    objects.insert("[nvmf]".to_string(), format!("{:?}", config.nvmf));
    let devices = config.devices.iter().map(|one| (format!("device '{}'", one.def.name), format!("{:?}", one.def)));
    let pools = config.pools.iter().map(|one| (format!("pool '{}'", one.def.name), format!("{:?}", one.def)));
    let volumes = config.volumes.iter().map(|one| (format!("volume '{}'", one.name.value), format!("{one:?}")));
    let in_pools = config.pool_volumes.iter();
    let in_pools = in_pools.map(|one| (format!("volume '{}'", one.name.value), format!("{one:?}")));
    let subsystems = config.subsystems.iter();
    let subsystems = subsystems.map(|one| (format!("subsystem '{}'", one.nqn.value), format!("{one:?}")));
    let vhosts = config.vhosts.iter().map(|one| (format!("vhost '{}'", one.name.value), format!("{one:?}")));
    let limits = config.limits.iter().map(|one| (format!("limit of {}", one.of.value), format!("{:?}", one.rates)));
    objects.extend(devices.chain(pools).chain(volumes).chain(in_pools).chain(subsystems).chain(vhosts).chain(limits));
    objects
}

fn changed_in_file(running: &Config, read: &Config) -> Vec<DifferenceView> {
    let (before, after) = (objects(running), objects(read));
    let written = (Written::of(&running.source.text), Written::of(&read.source.text));
    let limit = |config: &Config, object: &str| {
        let mut limits = config.limits.iter();
        limits.find(|one| object == format!("limit of {}", one.of.value)).map(|one| rates(one.rates))
    };
    let mut found = Vec::new();
    for object in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let differs = match (before.get(object), after.get(object)) {
            (Some(before), Some(after)) if before == after => continue,
            (Some(_), Some(_)) => Differs::ChangedInTheFile,
            (None, _) => Differs::AddedToTheFile,
            (_, None) => Differs::RemovedFromTheFile,
        };
        let detail = match differs {
            Differs::ChangedInTheFile => match (limit(running, object), limit(read, object)) {
                (Some(before), Some(after)) => format!("{before} -> {after}"),
                _ => written.0.changes(&written.1, object),
            },
            _ => String::new(),
        };
        found.push(DifferenceView { object: object.clone(), differs, detail });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_that_is_written_down_is_no_difference() {
        let config = |text: &str| Config::parse("/x/node.toml", text.to_string()).unwrap();
        let differ = |one: &str, other: &str| changed_in_file(&config(one), &config(other)).len();
        assert_eq!(differ("", "[node]\nmetrics_listen = '127.0.0.1:9420'\n"), 0);
        assert_eq!(differ("", "[node]\nmetrics_listen = '127.0.0.1:9421'\n"), 1);
        let limit = |iops: u32| format!("[[limit]]\nvolume = 'v'\niops = {iops}\n");
        let device = "[[device]]\nname = 'd'\nkind = 'mem'\nsize = '1MiB'\n[[volume]]\nname = 'v'\ndevice = 'd'\n";
        let differ = |one: &str, other: &str| {
            changed_in_file(&config(&format!("{device}{one}")), &config(&format!("{device}{other}")))
        };
        assert_eq!(
            differ(&limit(1000), &limit(2000))[0].detail,
            "iops: 1000; bandwidth: none -> iops: 2000; bandwidth: none"
        );
        let [changed] = &differ("[nvmf]\nio_queues = 4\n", "[nvmf]\nio_queues = 8\n")[..] else {
            panic!("one difference")
        };
        assert_eq!((changed.object.as_str(), changed.detail.as_str()), ("[nvmf]", "io_queues: 4 -> 8"));
    }

    #[test]
    fn a_file_that_cannot_be_looked_at_is_not_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        std::fs::write(path("file"), "").unwrap();
        assert!(is_gone(&path("nothing")) && !is_gone(&path("file")));
        // What is below a file cannot be looked at, whoever asks.
        assert!(!is_gone(&path("file/below")));
    }
}
