//! Encrypted connections: which hosts need one, and whose they are (TCP Transport 1.1, section 3.6).
//!
//! A host that has a key for a subsystem connects to it with TLS alone: else whoever takes its name would go without. An
//! encrypted connection is that host's for that subsystem whose names are in the identity of its key. At the discovery
//! service a key is wanted where the listener wants one.

use super::model::ModelError;
use super::{SubsystemId, Target};
use crate::spec::Nqn;
use crate::tls::{HostPsks, Keyring, TlsKey};

impl Target {
    /// The keys of all hosts, for handshakes.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// States with which keys a host connects to a subsystem from its next connection on; `None` is without TLS.
    pub fn set_host_psks(&mut self, id: SubsystemId, host: &Nqn, psks: Option<HostPsks>) -> Result<(), ModelError> {
        let nqn = self.nvm_subsystem_mut(id)?.nqn().clone();
        if self.keyring.set(&nqn, host, psks) { Ok(()) } else { Err(ModelError::HostsFull) }
    }

    /// Whether a connection with this key, or without TLS, may be `host`'s for `subsystem`. The key must still be good: it may
    /// have been taken away since the handshake.
    pub(super) fn is_channel_of(&self, now_ns: u64, tls: Option<&TlsKey>, host: &Nqn, subsystem: &Nqn) -> bool {
        match tls {
            Some(key) => {
                let identity = &key.identity;
                identity.host == *host && identity.subsystem == *subsystem && self.keyring.has_key(key, now_ns)
            }
            None => !self.keyring.has(subsystem, host),
        }
    }
}
