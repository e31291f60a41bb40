//! Damage to one copy of what a pool has twice, where the other one is valid.

use super::{MetaError, Object};
use std::fmt;

/// A copy that cannot be used.
#[derive(Debug)]
pub(crate) struct Damage {
    object: Object,
    /// Where, in blocks of 4 KiB.
    block: u64,
    reason: String,
}

impl Damage {
    pub(super) fn new(object: Object, block: u64, reason: impl fmt::Display) -> Damage {
        Damage { object, block, reason: reason.to_string() }
    }

    /// Without what to do where there is no valid copy.
    pub(super) fn of(object: Object, block: u64, error: &MetaError) -> Damage {
        match error {
            MetaError::Damaged { reason, .. } => Damage::new(object, block, reason),
            MetaError::Io { status, .. } => Damage::new(object, block, status),
            other => Damage::new(object, block, other),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one copy of {}, at block {}, is damaged ({})", self.object, self.block, self.reason)
    }
}
