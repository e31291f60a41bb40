//! Reservations of namespaces: who has registered, who holds what, and what that allows (Base 2.0, section 8.19).
//!
//! A registrant is a host, known by its identifier, with all of its controllers. [`Table`] is the state of one namespace
//! and changes by whole commands; [`Access`] is what queues go by; [`notice`] is what hosts are told. Nothing here does I/O: a
//! changed table is made durable, where it has to last, by the caller, before it takes the place of the old one.

mod access;
mod notice;
#[cfg(test)]
mod oracle;
mod report;
mod table;
#[cfg(test)]
mod tests;

pub use access::{Access, AccessKind};
pub(super) use notice::Notices;
pub(super) use report::report;
pub use table::{Change, Registrant, Request, Reservation, Table};

use core::fmt;

/// Hosts that may be registered with one namespace at once.
pub const REGISTRANTS_MAX: usize = 256;

/// A host's identifier, as Connect has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// The identifier that belongs to nobody: such a host cannot be told from others, and does not register.
    pub const NONE: HostId = HostId([0; 16]);
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
