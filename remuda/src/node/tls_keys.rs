//! Keys with which hosts connect by TLS. As the keys with which they authenticate themselves (`host_keys`): one given at run time is
//! kept in the node's state, a configured one stays in its file and is read when the node starts, and no answer or log shows any.

use super::export::TlsKeySpec;
use super::refusal::Refusal;
use super::view::{SubsystemView, TlsKeyView};
use super::{Node, Origin};
use crate::clock::{since_1970, timestamp};
use crate::config::host_key::{NO_TLS, NO_TLS_NEXT, read_tls_key};
use crate::node::host_keys::GRACE_MAX;
use nvme::tls::Psk;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A key as the state file holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPsk(pub Arc<Psk>);

impl Serialize for StoredPsk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_text())
    }
}

impl<'de> Deserialize<'de> for StoredPsk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = zeroize::Zeroizing::new(String::deserialize(deserializer)?);
        Psk::parse(&text).map(|psk| StoredPsk(Arc::new(psk))).map_err(serde::de::Error::custom)
    }
}

/// A key that is good for a while after it was replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FormerPsk {
    /// The key.
    pub key: StoredPsk,
    /// Until when, in seconds since 1970.
    pub until: u64,
}

/// The key of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlsKeyRecord {
    /// The key.
    pub key: StoredPsk,
    /// The key before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<FormerPsk>,
    /// The key file in the configuration at that time; another one there ends this record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<String>,
}

/// Keys by subsystem and host.
pub type TlsKeys = BTreeMap<String, BTreeMap<String, TlsKeyRecord>>;

impl TlsKeyRecord {
    fn spec(&self, host: &str) -> TlsKeySpec {
        let former = self.former.as_ref();
        let keys = std::iter::once(&self.key).chain(former.map(|former| &former.key));
        TlsKeySpec {
            host: host.to_string(),
            keys: keys.map(|key| key.0.clone()).collect(),
            former_until: SystemTime::UNIX_EPOCH + Duration::from_secs(former.map_or(0, |former| former.until)),
        }
    }

    /// What may be shown of it.
    fn view(&self, now: SystemTime) -> TlsKeyView {
        let former = self.former.as_ref().map(|former| former.until).filter(|until| *until > since_1970(now));
        TlsKeyView { hash: self.key.0.hash().name().to_string(), former_key_until: former.map(timestamp) }
    }
}

fn read(object: &str, file: &str) -> Result<TlsKeyRecord, Refusal> {
    let key = read_tls_key(file).map_err(|(cause, next)| Refusal::failed(object, cause, next))?;
    Ok(TlsKeyRecord { key: StoredPsk(key), former: None, configured: None })
}

fn object(nqn: &str, host: &str) -> String {
    format!("host '{host}' of subsystem '{nqn}'")
}

impl Node {
    /// Reads the configured keys, and takes those over that were given at run time.
    pub(super) fn load_tls_keys(&mut self) -> Result<(), Refusal> {
        let mut state = self.state.clone();
        for entry in self.config.subsystems.clone() {
            let nqn = entry.nqn.value.as_str();
            if let Some(kept) = state.tls_keys.get_mut(nqn) {
                kept.retain(|host, record| record.configured == self.configured_tls_key(nqn, host));
            }
            for one in &entry.host_keys {
                let Some(file) = &one.tls_key_file else { continue };
                let record = read(&object(nqn, &one.host.value), &file.value)?;
                self.tls_keys.entry(nqn.to_string()).or_default().insert(one.host.value.clone(), record);
            }
        }
        state.tls_keys.retain(|_, hosts| !hosts.is_empty());
        for (nqn, hosts) in &state.tls_keys {
            self.tls_keys.entry(nqn.clone()).or_default().extend(hosts.clone());
        }
        if state == self.state { Ok(()) } else { self.remember(state) }
    }

    /// With which keys the hosts of a subsystem connect.
    pub(super) fn tls_key_specs(&self, nqn: &str) -> Vec<TlsKeySpec> {
        let hosts = self.tls_keys.get(nqn).into_iter().flatten();
        hosts.map(|(host, record)| record.spec(host)).collect()
    }

    /// What may be shown of a host's key.
    pub(super) fn tls_key_view(&self, nqn: &str, host: &str) -> Option<TlsKeyView> {
        Some(self.tls_keys.get(nqn)?.get(host)?.view(SystemTime::now()))
    }

    /// The file in which the configuration has a host's key.
    fn configured_tls_key(&self, nqn: &str, host: &str) -> Option<String> {
        let entry = self.config.subsystems.iter().find(|entry| entry.nqn.value == nqn)?;
        let entry = entry.host_keys.iter().find(|one| one.host.value == host)?;
        entry.tls_key_file.as_ref().map(|file| file.value.clone())
    }

    /// Gives a host another key for TLS, or its first one, and lets it connect. Connections that exist stay.
    pub async fn host_set_tls_key(
        &mut self,
        nqn: &str,
        host: &str,
        file: &str,
        grace: Duration,
    ) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let object = object(nqn, host);
        self.check_host_may_be_added(nqn, host)?;
        if !nvme::tls::IS_BUILT {
            return Err(Refusal::invalid(object, NO_TLS, NO_TLS_NEXT));
        }
        if grace > GRACE_MAX {
            return Err(Refusal::invalid(object, "a former key is good for 90 days at most", "give a shorter time"));
        }
        let mut record = read(&object, file)?;
        record.configured = self.configured_tls_key(nqn, host);
        let before = self.tls_keys.get(nqn).and_then(|hosts| hosts.get(host));
        if let Some(before) = before.filter(|before| !grace.is_zero() && before.key != record.key) {
            let until = since_1970(SystemTime::now() + grace);
            record.former = Some(FormerPsk { key: before.key.clone(), until });
        }
        let mut state = self.state.clone();
        state.tls_keys.entry(nqn.to_string()).or_default().insert(host.to_string(), record.clone());
        self.remember(state)?;
        self.tls_keys.entry(nqn.to_string()).or_default().insert(host.to_string(), record);
        tracing::info!(nqn, host, "the host's TLS key was set");
        self.host_allow(nqn, Some(host)).await
    }

    /// Takes a host's key for TLS away: it connects without.
    pub async fn host_clear_tls_key(&mut self, nqn: &str, host: &str) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let object = object(nqn, host);
        self.check_host_may_be_added(nqn, host)?;
        if self.configured_tls_key(nqn, host).is_some() {
            return Err(self.belongs_to_config(format!("the TLS key of {object}")));
        }
        if self.tls_key_view(nqn, host).is_none() {
            return Err(Refusal::conflict(object, "it has no TLS key", ""));
        }
        self.forget_tls_keys(nqn, Some(host))?;
        tracing::warn!(nqn, host, "the host's TLS key was taken away: what it sends is not encrypted any more");
        self.host_allow(nqn, Some(host)).await
    }

    /// Forgets the keys of a host that may not connect any more, or of a whole subsystem. Configured ones stay.
    pub(super) fn forget_tls_keys(&mut self, nqn: &str, host: Option<&str>) -> Result<(), Refusal> {
        let mut state = self.state.clone();
        match (host, state.tls_keys.get_mut(nqn)) {
            (Some(host), Some(hosts)) => drop(hosts.remove(host)),
            _ => drop(state.tls_keys.remove(nqn)),
        }
        state.tls_keys.retain(|_, hosts| !hosts.is_empty());
        if state != self.state {
            self.remember(state)?;
        }
        let is_configured = self.subsystems.get(nqn).is_some_and(|subsystem| subsystem.origin == Origin::Config);
        let mut hosts = self.tls_keys.remove(nqn).unwrap_or_default();
        hosts.retain(|known, _| {
            let stays = is_configured && self.configured_tls_key(nqn, known).is_some();
            stays || host.is_some_and(|host| host != known)
        });
        if !hosts.is_empty() {
            self.tls_keys.insert(nqn.to_string(), hosts);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::auth::Hash;

    #[test]
    fn keys_come_back_from_the_state_and_are_shown_nowhere_else() {
        let key = |seed: u8| StoredPsk(Arc::new(Psk::generate(Hash::Sha256, &mut |bytes| bytes.fill(seed))));
        let former = Some(FormerPsk { key: key(2), until: 1_800_000_000 });
        let record = TlsKeyRecord { key: key(1), former, configured: None };
        let text = serde_json::to_string(&record).expect("serialises");
        assert!(text.contains("NVMeTLSkey-1:01:"), "the state has it");
        assert_eq!(serde_json::from_str::<TlsKeyRecord>(&text).expect("parses"), record);
        let shown = serde_json::to_string(&record.view(SystemTime::UNIX_EPOCH)).expect("serialises");
        let spec = record.spec("nqn.2014-08.org.example:h");
        for text in [shown, format!("{record:?}"), format!("{spec:?}")] {
            assert!(!text.contains("NVMeTLS") && !text.contains("AQEB"), "{text}");
        }
        assert_eq!((spec.keys.len(), since_1970(spec.former_until)), (2, 1_800_000_000));
    }
}
