//! What a reservation allows (Base 2.0, section 8.19, figure "command behavior in the presence of a reservation").
//!
//! Queues look at a value of their own: [`Access`] is made anew with each change and handed to them whole, so that a command
//! is judged without a lock, and without any look where there is no reservation.

use super::{HostId, Table};

/// The two groups of commands that a reservation tells apart. Reservation commands are judged by [`Table`] itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Read, Compare, Verify.
    Read,
    /// Write, Write Zeroes, Dataset Management, Flush.
    Write,
}

/// Who may do what with a namespace that is reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Reading is for `allowed` too, not only writing.
    excludes_reads: bool,
    /// Hosts that may do everything, sorted.
    allowed: Vec<HostId>,
}

impl Access {
    /// What a table allows; `None` without a reservation: everything to everybody.
    pub fn of(table: &Table) -> Option<Access> {
        let held = table.reservation()?;
        let may_all = |host: &HostId| !held.kind.is_of_holder_alone() || table.is_holder(*host);
        let mut allowed: Vec<HostId> = table.registrants().iter().map(|one| one.host).filter(may_all).collect();
        allowed.sort();
        Some(Access { excludes_reads: held.kind.is_exclusive_access(), allowed })
    }

    /// Whether a command of a host may be carried out.
    #[inline]
    pub fn allows(&self, host: HostId, kind: AccessKind) -> bool {
        (kind == AccessKind::Read && !self.excludes_reads) || self.allowed.binary_search(&host).is_ok()
    }
}
