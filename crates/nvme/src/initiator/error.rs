//! Why a controller could not be used.

use std::fmt;
use std::net::SocketAddr;
use thiserror::Error;
use uuid::Uuid;

use crate::host::InfoError;
use crate::spec::fabrics::InvalidParameter;
use crate::spec::{Nqn, Status};
use crate::tcp::Fault;
use crate::tls::TlsFailure;

use super::authenticate::AuthenticationError;
use super::controller::NamespaceIds;
use super::link::Broken;
use super::options::OptionsError;

/// Why an admin or Fabrics command has no answer that could be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// The controller refused it.
    #[error("{}", .0.fabrics_text().unwrap_or("unknown status"))]
    Status(Status),
    /// The connection ended first.
    #[error("connection lost: {0}")]
    Lost(Broken),
    /// The answer says something with which this host cannot work.
    #[error(transparent)]
    Unusable(#[from] InfoError),
}

/// What a controller shows of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its identifiers.
    pub ids: NamespaceIds,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Blocks from one zone to the next; 0 of one without zones.
    pub zone_blocks: u64,
}

impl Seen {
    /// Whether it is another look at the same namespace, which may have another size by now.
    pub(super) fn is_resized(&self, later: &Seen) -> bool {
        *self == Seen { blocks: self.blocks, ..*later }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks of {} bytes, ", self.blocks, self.block_size)?;
        if self.zone_blocks > 0 {
            write!(f, "zones of {} blocks, ", self.zone_blocks)?;
        }
        let mut named = false;
        if let Some(uuid) = self.ids.uuid {
            write!(f, "UUID {}", Uuid::from_bytes(uuid))?;
            named = true;
        }
        for (name, id) in
            [("NGUID", self.ids.nguid.as_ref().map(|id| &id[..])), ("EUI64", self.ids.eui64.as_ref().map(|id| &id[..]))]
        {
            if let Some(id) = id {
                write!(f, "{}{name} ", if named { ", " } else { "" })?;
                id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                named = true;
            }
        }
        if named { Ok(()) } else { f.write_str("without any identifier") }
    }
}

/// Why a controller could not be used: what was tried, with whom, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// The options cannot work.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// No TCP connection.
    #[error("cannot connect to {address}: {reason}; is a target listening there?")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// Why not.
        reason: Broken,
    },
    /// The TCP connection works, but not with TLS.
    #[error("no TLS with {address}: {failure}{}", tls_hint(.failure))]
    Tls {
        /// The address.
        address: SocketAddr,
        /// Why not.
        failure: TlsFailure,
    },
    /// The TCP connection works, but no NVMe/TCP controller answers on it.
    #[error("no NVMe/TCP connection with {address}: {reason}")]
    Negotiation {
        /// The address.
        address: SocketAddr,
        /// Why not.
        reason: Broken,
    },
    /// The controller does not do the digests that were asked for.
    #[error("{address} does not agree to the digests asked for; turn header_digest and data_digest off to do without")]
    Digests {
        /// The address.
        address: SocketAddr,
    },
    /// Fabrics Connect was refused.
    #[error("queue {queue} of {subsystem} at {address} cannot be connected: {}", connect_text(.error, .invalid))]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The subsystem.
        subsystem: Nqn,
        /// The queue.
        queue: u16,
        /// Why not.
        error: CommandError,
        /// Which field the controller did not like.
        invalid: Option<InvalidParameter>,
    },
    /// Host and controller do not trust each other.
    #[error("queue {queue} of {subsystem} at {address} cannot be authenticated: {error}")]
    Authentication {
        /// The address.
        address: SocketAddr,
        /// The subsystem.
        subsystem: Nqn,
        /// The queue.
        queue: u16,
        /// Why not.
        error: AuthenticationError,
    },
    /// A step of the set-up failed.
    #[error("controller {controller} of {subsystem}: cannot {action}: {error}")]
    Command {
        /// The controller's identifier.
        controller: u16,
        /// The subsystem.
        subsystem: Nqn,
        /// What was tried.
        action: &'static str,
        /// Why not.
        error: CommandError,
    },
    /// The controller did not become ready.
    #[error("controller {controller} of {subsystem} did not become ready within {timeout_ms} ms")]
    NotReady {
        /// The controller's identifier.
        controller: u16,
        /// The subsystem.
        subsystem: Nqn,
        /// The time it asked for.
        timeout_ms: u32,
    },
    /// The subsystem has no such namespace.
    #[error("{subsystem} has no namespace {nsid}; it has {}", list_text(.available))]
    NoNamespace {
        /// The subsystem.
        subsystem: Nqn,
        /// The namespace asked for, 0 for the first.
        nsid: u32,
        /// Those it has, as far as one page goes.
        available: Vec<u32>,
    },
    /// The path leads to another namespace than the device's other paths, or than it was.
    #[error(
        "namespace {nsid} of {subsystem} at {address} is another one: expected {}, found {}; check the address, and that all paths \
         export one namespace under one identifier", seen.0, seen.1
    )]
    OtherNamespace {
        /// The address.
        address: SocketAddr,
        /// The subsystem.
        subsystem: Nqn,
        /// The namespace.
        nsid: u32,
        /// What was expected, and what was found.
        seen: Box<(Seen, Seen)>,
    },
    /// It took too long.
    #[error("connecting to {address} took longer than {timeout_ms} ms")]
    Timeout {
        /// The address.
        address: SocketAddr,
        /// The limit.
        timeout_ms: u64,
    },
}

/// Why no other namespace can take the place of a device's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoReplacement {
    /// It is still there.
    #[error("{0} is connected to the namespace that it is")]
    InUse(SocketAddr),
    /// Nothing else was seen.
    #[error("no path has shown another namespace so far")]
    NotSeen,
    /// Paths show different ones.
    #[error("its paths lead to different namespaces: {} ({}) and {} ({})", .0[0].0, .0[0].1, .0[1].0, .0[1].1)]
    Differ(Box<[(SocketAddr, Seen); 2]>),
    /// Who uses the device could not go on with it.
    #[error("blocks or zones are of another size: it is {}, and {} shows {}", .0.0, .0.1, .0.2)]
    Shape(Box<(Seen, SocketAddr, Seen)>),
}

impl ConnectError {
    /// Whether the same attempt may succeed later: the network or a busy target, not a refusal.
    pub fn is_transient(&self) -> bool {
        match self {
            ConnectError::Options(_) | ConnectError::Digests { .. } => false,
            ConnectError::Tls { failure: TlsFailure::NotBuilt, .. } => false,
            ConnectError::Command { error: CommandError::Unusable(_), .. } => false,
            ConnectError::Connect { error: CommandError::Status(status), .. } => !status.do_not_retry(),
            ConnectError::Authentication { error, .. } => error.is_transient(),
            _ => true,
        }
    }
}

fn tls_hint(failure: &TlsFailure) -> &'static str {
    match failure {
        TlsFailure::Protocol(_) | TlsFailure::Closed => {
            "; check that the target has this key (tls_key) for this host's NQN and that subsystem"
        }
        _ => "",
    }
}

fn connect_text(error: &CommandError, invalid: &Option<InvalidParameter>) -> String {
    invalid.map_or_else(|| error.to_string(), |invalid| invalid.to_string())
}

fn list_text(nsids: &[u32]) -> String {
    match nsids {
        [] => "none".to_string(),
        nsids => nsids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl From<Fault> for CommandError {
    fn from(fault: Fault) -> Self {
        CommandError::Lost(Broken::Fault(fault))
    }
}
