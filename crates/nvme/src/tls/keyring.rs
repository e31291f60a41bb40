//! The keys that a target has for its hosts, as handshakes look them up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use thiserror::Error;

use super::derive::Form;
use super::identity::{Identity, TlsKey};
use super::{Psk, Shown};
use crate::spec::Nqn;

/// The keys of one host for one subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPsks {
    /// The key; those that follow were good before it.
    pub keys: Vec<Arc<Psk>>,
    /// Until when all of them are good; then the first is. `None` is for ever.
    pub former_until_ns: Option<u64>,
}

impl HostPsks {
    fn at(&self, now_ns: u64) -> impl Iterator<Item = &Arc<Psk>> {
        let former = self.former_until_ns.is_none_or(|until_ns| now_ns < until_ns);
        self.keys.iter().take(if former { usize::MAX } else { 1 })
    }
}

/// By host and subsystem.
type Hosts = BTreeMap<Nqn, BTreeMap<Nqn, HostPsks>>;

/// Keys of a host that are tried for an identity; more than that it can only have at the discovery service.
const CANDIDATES_MAX: usize = 256;
/// Hosts with keys, at most.
pub const HOSTS_MAX: usize = 65_536;

/// See the module. Clones are the same keyring: the target changes it, and handshakes on every reactor look into it, which is the
/// only time that its lock is taken.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    hosts: Arc<Mutex<Hosts>>,
}

/// Why there is no key for what a host offers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoKey {
    /// Not of this transport.
    #[error("the key is offered as {0}, which is no identity of NVMe/TCP")]
    Form(Shown),
    /// A host or a subsystem without one.
    #[error("host {host} has no TLS key for {subsystem} here; give it one (tls_key, host allow --tls-key)")]
    Unknown {
        /// The host that was named.
        host: Nqn,
        /// The subsystem that was named.
        subsystem: Nqn,
    },
    /// The digest is that of another key.
    #[error("host {host} offers another TLS key for {subsystem} than it has here; check that both have the same")]
    Other {
        /// The host that was named.
        host: Nqn,
        /// The subsystem that was named.
        subsystem: Nqn,
    },
}

impl Keyring {
    fn lock(&self) -> MutexGuard<'_, Hosts> {
        self.hosts.lock().expect("nothing panics while holding this lock")
    }

    /// Changes the keys of a host for a subsystem; `None` takes them away. False when there are too many.
    #[must_use]
    pub fn set(&self, subsystem: &Nqn, host: &Nqn, psks: Option<HostPsks>) -> bool {
        let mut hosts = self.lock();
        let Some(psks) = psks else {
            if let Some(subsystems) = hosts.get_mut(host) {
                subsystems.remove(subsystem);
                if subsystems.is_empty() {
                    hosts.remove(host);
                }
            }
            return true;
        };
        let has_room = hosts.len() < HOSTS_MAX || hosts.contains_key(host);
        if has_room {
            hosts.entry(host.clone()).or_default().insert(subsystem.clone(), psks);
        }
        has_room
    }

    /// Forgets all keys for a subsystem.
    pub fn forget(&self, subsystem: &Nqn) {
        self.lock().retain(|_, subsystems| {
            subsystems.remove(subsystem);
            !subsystems.is_empty()
        });
    }

    /// Whether a host has a key for a subsystem.
    pub fn has(&self, subsystem: &Nqn, host: &Nqn) -> bool {
        self.lock().get(host).is_some_and(|subsystems| subsystems.contains_key(subsystem))
    }

    /// Whether this very key is good: identities of version 0 do not tell keys of a host apart.
    pub fn has_key(&self, key: &TlsKey, now_ns: u64) -> bool {
        let found = self.find(key.identity.to_string().as_bytes(), now_ns);
        found.is_ok_and(|keys| keys.iter().any(|one| one.secret() == key.secret()))
    }

    /// The keys that an identity may mean, the preferred one first: a single one where it has a digest. A host reaches the
    /// discovery service with any key that it has for a subsystem.
    pub fn find(&self, offered: &[u8], now_ns: u64) -> Result<Vec<TlsKey>, NoKey> {
        let identity = Identity::parse(offered).ok_or_else(|| NoKey::Form(Shown::new(offered)))?;
        let Identity { host, subsystem, .. } = &identity;
        // Nobody waits for this lock while names are derived of keys.
        let psks: Vec<Arc<Psk>> = {
            let hosts = self.lock();
            let subsystems = hosts.get(host).into_iter().flatten();
            let named = subsystems.filter(|(nqn, _)| *nqn == subsystem || subsystem.is_discovery());
            named.flat_map(|(_, psks)| psks.at(now_ns)).take(CANDIDATES_MAX).cloned().collect()
        };
        if psks.is_empty() {
            return Err(NoKey::Unknown { host: host.clone(), subsystem: subsystem.clone() });
        }
        let psks = psks.iter().filter(|psk| psk.hash() == identity.hash);
        let mut both = psks.flat_map(|psk| Form::ALL.map(|form| (psk, form)));
        let found: Vec<TlsKey> = match identity.digest {
            None => both.filter_map(|(psk, form)| TlsKey::version_0(psk, form, host, subsystem)).collect(),
            Some(_) => {
                let key = both.find_map(|(psk, form)| {
                    Some(TlsKey::new(psk, form, host, subsystem)).filter(|key| key.identity == identity)
                });
                key.into_iter().collect()
            }
        };
        if found.is_empty() {
            return Err(NoKey::Other { host: host.clone(), subsystem: subsystem.clone() });
        }
        Ok(found)
    }
}
