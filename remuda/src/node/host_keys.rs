//! Keys with which hosts authenticate themselves, and the node to them.
//!
//! A key given at run time is read once and kept in the node's state, which is for its owner alone; a configured one stays in
//! its file and is read when the node starts. A key given at run time to a host with a configured one holds until the file is
//! told another. Keys are in no answer, log or audit log: what shows them in text is made for the state file alone.

use super::export::HostKeySpec;
use super::refusal::Refusal;
use super::view::{HostKeyView, SubsystemView};
use super::{Node, Origin};
use crate::clock::{since_1970, timestamp};
use crate::config::host_key::{HostKeyEntry, read_dhchap_key};
use nvme::auth::{DhGroup, Hash, KeyPair, Policy, Secret};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Longest time for which a former key may go on being good.
pub const GRACE_MAX: Duration = Duration::from_secs(90 * 24 * 3600);

/// A secret as the state file holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSecret(pub Arc<Secret>);

impl Serialize for StoredSecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_text())
    }
}

impl<'de> Deserialize<'de> for StoredSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = zeroize::Zeroizing::new(String::deserialize(deserializer)?);
        Secret::parse(&text).map(|secret| StoredSecret(Arc::new(secret))).map_err(serde::de::Error::custom)
    }
}

/// A host's key, and the node's towards it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyPairRecord {
    /// The host's.
    pub key: StoredSecret,
    /// The node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ctrl_key: Option<StoredSecret>,
}

impl KeyPairRecord {
    fn pair(&self) -> KeyPair {
        KeyPair { host: self.key.0.clone(), controller: self.ctrl_key.as_ref().map(|key| key.0.clone()) }
    }
}

/// A pair that is good for a while after it was replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FormerKeys {
    /// The keys.
    pub pair: KeyPairRecord,
    /// Until when, in seconds since 1970.
    pub until: u64,
}

/// How a host authenticates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostKeyRecord {
    /// The keys.
    pub pair: KeyPairRecord,
    /// Names of hashes; empty is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<String>,
    /// Names of groups; empty is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The keys before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<FormerKeys>,
    /// The key file in the configuration at that time; another one there ends this record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<String>,
}

/// Keys by subsystem and host.
pub type HostKeys = BTreeMap<String, BTreeMap<String, HostKeyRecord>>;

/// New keys of a host, as a command names them.
#[derive(Clone, Debug, Default)]
pub struct NewHostKeys {
    /// File with its key.
    pub key_file: String,
    /// File with the node's key towards it; otherwise that is as before.
    pub ctrl_key_file: Option<String>,
    /// The node proves nothing to it any more.
    pub no_ctrl_key: bool,
    /// Hashes; empty is as before, and all at first.
    pub hashes: Vec<Hash>,
    /// Groups; empty is as before, and all at first.
    pub groups: Vec<DhGroup>,
    /// For how long the keys until now are good too.
    pub grace: Duration,
}

fn names<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str) -> Vec<String> {
    all.iter().map(|one| name(*one).to_string()).collect()
}

/// Reads the key files of one host.
fn read(
    object: &str,
    key_file: &str,
    ctrl_key_file: Option<&str>,
    hashes: &[Hash],
    groups: &[DhGroup],
) -> Result<HostKeyRecord, Refusal> {
    let read = |path: &str| {
        let read = read_dhchap_key(path).map(StoredSecret);
        read.map_err(|(cause, next)| Refusal::failed(object, cause, next))
    };
    let pair = KeyPairRecord { key: read(key_file)?, ctrl_key: ctrl_key_file.map(read).transpose()? };
    pair.check(object)?;
    let (hashes, groups) = (names(hashes, Hash::name), names(groups, DhGroup::name));
    Ok(HostKeyRecord { pair, hashes, groups, former: None, configured: None })
}

impl KeyPairRecord {
    fn check(&self, object: &str) -> Result<(), Refusal> {
        if self.ctrl_key.as_ref() != Some(&self.key) {
            return Ok(());
        }
        let next = "make another one: remuda key generate FILE";
        Err(Refusal::invalid(object, "the host's key and the node's are the same", next))
    }
}

impl HostKeyRecord {
    fn spec(&self, host: &str) -> HostKeySpec {
        let mut policy = Policy::new(self.pair.pair());
        let hashes: Vec<_> = self.hashes.iter().filter_map(|name| Hash::from_name(name)).collect();
        let groups: Vec<_> = self.groups.iter().filter_map(|name| DhGroup::from_name(name)).collect();
        if !hashes.is_empty() {
            policy.hashes = hashes;
        }
        if !groups.is_empty() {
            policy.groups = groups;
        }
        policy.pairs.extend(self.former.iter().map(|former| former.pair.pair()));
        let until = self.former.as_ref().map_or(0, |former| former.until);
        let former_until = SystemTime::UNIX_EPOCH + Duration::from_secs(until);
        HostKeySpec { host: host.to_string(), policy, former_until }
    }

    /// What may be shown of it.
    fn view(&self, now: SystemTime) -> HostKeyView {
        let former = self.former.as_ref().map(|former| former.until).filter(|until| *until > since_1970(now));
        HostKeyView {
            both_sides: self.pair.ctrl_key.is_some(),
            hashes: self.hashes.clone(),
            dhgroups: self.groups.clone(),
            former_key_until: former.map(timestamp),
        }
    }
}

impl Node {
    /// Reads the configured keys, and takes those over that were given at run time.
    pub(super) fn load_host_keys(&mut self) -> Result<(), Refusal> {
        let mut state = self.state.clone();
        for entry in self.config.subsystems.clone() {
            let nqn = entry.nqn.value.as_str();
            let kept = state.host_keys.get(nqn).cloned().unwrap_or_default();
            for (host, record) in &kept {
                let now = entry.host_keys.iter().find(|one| one.host.value == *host);
                let file = now.and_then(|one| one.key_file.as_ref());
                if record.configured != file.map(|file| file.value.clone()) {
                    state.host_keys.get_mut(nqn).expect("it was there").remove(host);
                }
            }
            for HostKeyEntry { host, key_file, ctrl_key_file, hashes, groups, .. } in &entry.host_keys {
                let Some(key_file) = key_file else { continue };
                let object = format!("host '{}' of subsystem '{nqn}'", host.value);
                let ctrl_key_file = ctrl_key_file.as_ref().map(|file| file.value.as_str());
                let record = read(&object, &key_file.value, ctrl_key_file, hashes, groups)?;
                self.host_keys.entry(nqn.to_string()).or_default().insert(host.value.clone(), record);
            }
        }
        state.host_keys.retain(|_, hosts| !hosts.is_empty());
        for (nqn, hosts) in &state.host_keys {
            self.host_keys.entry(nqn.clone()).or_default().extend(hosts.clone());
        }
        if state == self.state { Ok(()) } else { self.remember(state) }
    }

    /// How the hosts of a subsystem authenticate.
    pub(super) fn host_key_specs(&self, nqn: &str) -> Vec<HostKeySpec> {
        let hosts = self.host_keys.get(nqn).into_iter().flatten();
        hosts.map(|(host, record)| record.spec(host)).collect()
    }

    /// What may be shown of a host's key.
    pub(super) fn host_key_view(&self, nqn: &str, host: &str) -> Option<HostKeyView> {
        Some(self.host_keys.get(nqn)?.get(host)?.view(SystemTime::now()))
    }

    fn configured_key(&self, nqn: &str, host: &str) -> Option<&HostKeyEntry> {
        let entry = self.config.subsystems.iter().find(|entry| entry.nqn.value == nqn)?;
        entry.host_keys.iter().find(|one| one.host.value == host && one.key_file.is_some())
    }

    /// Gives a host other keys, or its first ones, and lets it connect. Connections that exist stay.
    pub async fn host_set_key(&mut self, nqn: &str, host: &str, new: &NewHostKeys) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let object = format!("host '{host}' of subsystem '{nqn}'");
        self.check_host_may_be_added(nqn, host)?;
        if new.grace > GRACE_MAX {
            return Err(Refusal::invalid(object, "a former key is good for 90 days at most", "give a shorter time"));
        }
        let mut record = read(&object, &new.key_file, new.ctrl_key_file.as_deref(), &new.hashes, &new.groups)?;
        let configured = self.configured_key(nqn, host).and_then(|entry| entry.key_file.as_ref());
        record.configured = configured.map(|file| file.value.clone());
        let before = self.host_keys.get(nqn).and_then(|hosts| hosts.get(host));
        if let Some(before) = before {
            // Another key of the host is all that was asked for.
            let kept = before.pair.ctrl_key.clone().filter(|_| !new.no_ctrl_key);
            record.pair.ctrl_key = record.pair.ctrl_key.or(kept);
            record.pair.check(&object)?;
            for (given, known) in [(&mut record.hashes, &before.hashes), (&mut record.groups, &before.groups)] {
                if given.is_empty() {
                    given.clone_from(known);
                }
            }
        }
        if let Some(before) = before.filter(|before| !new.grace.is_zero() && before.pair != record.pair) {
            let until = since_1970(SystemTime::now() + new.grace);
            record.former = Some(FormerKeys { pair: before.pair.clone(), until });
        }
        let mut state = self.state.clone();
        state.host_keys.entry(nqn.to_string()).or_default().insert(host.to_string(), record.clone());
        self.remember(state)?;
        self.host_keys.entry(nqn.to_string()).or_default().insert(host.to_string(), record);
        tracing::info!(nqn, host, "the host's key was set");
        self.host_allow(nqn, Some(host)).await
    }

    /// Takes a host's key away: it need not authenticate any more.
    pub async fn host_clear_key(&mut self, nqn: &str, host: &str) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let object = format!("host '{host}' of subsystem '{nqn}'");
        self.check_host_may_be_added(nqn, host)?;
        if self.configured_key(nqn, host).is_some() {
            return Err(self.belongs_to_config(format!("the key of {object}")));
        }
        if !self.host_keys.get(nqn).is_some_and(|hosts| hosts.contains_key(host)) {
            return Err(Refusal::conflict(object, "it has no key", ""));
        }
        self.forget_host_keys(nqn, Some(host))?;
        tracing::warn!(nqn, host, "the host's key was taken away: it need not authenticate any more");
        self.host_allow(nqn, Some(host)).await
    }

    /// Forgets the keys of a host that may not connect any more, or of a whole subsystem. Configured ones stay.
    pub(super) fn forget_host_keys(&mut self, nqn: &str, host: Option<&str>) -> Result<(), Refusal> {
        let mut state = self.state.clone();
        match (host, state.host_keys.get_mut(nqn)) {
            (Some(host), Some(hosts)) => drop(hosts.remove(host)),
            _ => drop(state.host_keys.remove(nqn)),
        }
        state.host_keys.retain(|_, hosts| !hosts.is_empty());
        if state != self.state {
            self.remember(state)?;
        }
        let configured: Vec<String> = match self.subsystems.get(nqn).map(|subsystem| subsystem.origin) {
            Some(Origin::Config) => {
                let entry = self.config.subsystems.iter().find(|entry| entry.nqn.value == nqn);
                let keyed = entry.into_iter().flat_map(|entry| &entry.host_keys).filter(|one| one.key_file.is_some());
                keyed.map(|one| one.host.value.clone()).collect()
            }
            _ => Vec::new(),
        };
        if let Some(hosts) = self.host_keys.get_mut(nqn) {
            hosts.retain(|known, _| configured.contains(known) || host.is_some_and(|host| host != known));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> HostKeyRecord {
        let secret = |seed: u8| StoredSecret(Arc::new(Secret::generate(None, &mut |bytes| bytes.fill(seed))));
        let pair = KeyPairRecord { key: secret(1), ctrl_key: Some(secret(2)) };
        let former = Some(FormerKeys { pair: KeyPairRecord { key: secret(3), ctrl_key: None }, until: 1_800_000_000 });
        HostKeyRecord { pair, hashes: vec!["sha384".into()], groups: Vec::new(), former, configured: None }
    }

    #[test]
    fn keys_come_back_from_the_state_and_are_shown_nowhere_else() {
        let record = record();
        let text = serde_json::to_string(&record).expect("serialises");
        assert!(text.contains("DHHC-1:00:"), "the state has it");
        assert_eq!(serde_json::from_str::<HostKeyRecord>(&text).expect("parses"), record);
        let shown = serde_json::to_string(&record.view(SystemTime::UNIX_EPOCH)).expect("serialises");
        for text in [shown, format!("{record:?}"), format!("{:?}", record.spec("nqn.2014-08.org.example:h"))] {
            assert!(!text.contains("DHHC") && !text.contains("AQEB"), "{text}");
        }
    }

    #[test]
    fn a_policy_has_the_former_pair_last_and_the_hashes_that_were_named() {
        let spec = record().spec("nqn.2014-08.org.example:h");
        assert_eq!(spec.policy.pairs.len(), 2);
        assert_eq!(spec.policy.pairs[0], record().pair.pair());
        assert_eq!(spec.policy.hashes, [Hash::Sha384]);
        assert_eq!(spec.policy.groups, DhGroup::ALL);
        assert_eq!(since_1970(spec.former_until), 1_800_000_000);
    }
}
