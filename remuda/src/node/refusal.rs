//! Why the node did not do what was asked: the object, the cause and the next step, with a kind that programs can act on.

use base::Errno;
use bdev::Status;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What sort of refusal; each has its JSON-RPC code and process exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The world said no: I/O, permissions, network.
    Failed,
    /// The request contradicts itself or has a bad value.
    Invalid,
    /// There is no such object.
    NotFound,
    /// It exists already, is in use, or belongs to the configuration file.
    Conflict,
    /// Not enough room.
    NoSpace,
    /// The node is stopping.
    Stopping,
}

impl RefusalKind {
    /// What sort an operation's bad end is.
    pub fn of(status: Status) -> RefusalKind {
        match status {
            Status::NoSpace | Status::Os(Errno::ENOSPC) => RefusalKind::NoSpace,
            _ => RefusalKind::Failed,
        }
    }

    /// Error code in JSON-RPC answers; -32000 to -32099 are the server's own.
    pub fn rpc_code(self) -> i64 {
        match self {
            RefusalKind::Failed => -32000,
            RefusalKind::Invalid => -32602,
            RefusalKind::NotFound => -32004,
            RefusalKind::Conflict => -32005,
            RefusalKind::NoSpace => -32006,
            RefusalKind::Stopping => -32007,
        }
    }
}

/// A request that was not carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// What sort.
    pub kind: RefusalKind,
    /// The object, such as `volume 'v0'`.
    pub object: String,
    /// Why not.
    pub cause: String,
    /// What to do about it; may be empty.
    pub next: String,
}

impl Refusal {
    /// A refusal of `kind`.
    pub fn new(
        kind: RefusalKind,
        object: impl Into<String>,
        cause: impl Into<String>,
        next: impl Into<String>,
    ) -> Refusal {
        Refusal { kind, object: object.into(), cause: cause.into(), next: next.into() }
    }

    /// An object that is not there, with the nearest name that is.
    pub fn not_found<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Refusal {
        let next = match crate::config::nearest(name, known) {
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("see 'remuda {what} list'"),
        };
        Refusal::new(RefusalKind::NotFound, format!("{what} '{name}'"), "there is no such object", next)
    }

    /// A clash with what is there.
    pub fn conflict(object: impl Into<String>, cause: impl Into<String>, next: impl Into<String>) -> Refusal {
        Refusal::new(RefusalKind::Conflict, object, cause, next)
    }

    /// A bad value.
    pub fn invalid(object: impl Into<String>, cause: impl Into<String>, next: impl Into<String>) -> Refusal {
        Refusal::new(RefusalKind::Invalid, object, cause, next)
    }

    /// The world said no.
    pub fn failed(object: impl Into<String>, cause: impl fmt::Display, next: impl Into<String>) -> Refusal {
        Refusal::new(RefusalKind::Failed, object, cause.to_string(), next)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.cause)?;
        if self.next.is_empty() { Ok(()) } else { write!(f, "; {}", self.next) }
    }
}

impl std::error::Error for Refusal {}
