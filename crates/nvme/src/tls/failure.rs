//! Why there is no TLS with a peer.

use core::fmt;
use thiserror::Error;

use super::keyring::NoKey;
use crate::spec::Nqn;

/// Bytes that are shown of what a peer has sent.
const SHOWN_MAX: usize = 300;

/// Bytes of a peer, made fit for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown(String);

impl Shown {
    /// The beginning of some bytes.
    pub fn new(bytes: &[u8]) -> Shown {
        let (shown, more) = bytes.split_at(bytes.len().min(SHOWN_MAX));
        Shown(format!("\"{}\"{}", shown.escape_ascii(), if more.is_empty() { "" } else { "..." }))
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why there is no TLS with a peer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TlsFailure {
    /// This program was built without it.
    #[error("this build has no TLS; build it with `--features tls`, which needs OpenSSL (libssl-dev)")]
    NotBuilt,
    /// The peer speaks something else.
    #[error("the peer does not speak TLS, without which nothing is said here; connect with TLS")]
    NotTls,
    /// The peer speaks TLS where there is none.
    #[error("the peer speaks TLS, and this listener does not; connect without it, or name the address in listen_tls")]
    NotWanted,
    /// The host offers no key.
    #[error("the host offers no pre-shared key")]
    NoIdentity,
    /// There is no key for what the host offers.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// The host knows the name of the key, and not the key.
    #[error("host {host} does not have the TLS key that it names for {subsystem}; check that both sides have the same")]
    WrongKey {
        /// The host that was named.
        host: Nqn,
        /// The subsystem that was named.
        subsystem: Nqn,
    },
    /// More than a handshake needs.
    #[error("the peer sends more than a handshake needs")]
    TooLong,
    /// The connection ended in the middle of it.
    #[error("the peer closed the connection during the handshake")]
    Closed,
    /// The handshake was not over in time.
    #[error("the peer did not end the handshake in time")]
    Late,
    /// What OpenSSL says.
    #[error("{0}")]
    Protocol(String),
}
