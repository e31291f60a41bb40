//! Whether the devices that a pool is opened on are its own, belong together, and are as new as each other.

use super::PoolDevices;
use crate::error::{Grounds, PoolError};
use crate::format::superblock::{Role, Superblock, SuperblockError};
use crate::holds::Holds;
use crate::log::{self, LogGeometry};
use crate::log_device::OpenLog;
use crate::meta::MetaError;
use reactor::Reactor;
use std::rc::Rc;

pub(super) fn check_role(found: &Superblock, wanted: Role, device: &str) -> Result<(), PoolError> {
    if found.role == wanted {
        return Ok(());
    }
    let reason = format!("'{device}' is its {} device, not its {} device", found.role.name(), wanted.name());
    Err(PoolError::Refused { pool: found.name.clone(), grounds: Grounds::Devices, reason })
}

/// An opening writes: it needs to know all that writing needs.
pub(crate) fn check_writable(found: &Superblock, device: &str) -> Result<(), PoolError> {
    match found.unwritable_features() {
        0 => Ok(()),
        bits => {
            let what = format!("features that this program can read but not write (bits {bits:#x})");
            let reason = format!("'{device}' has {what}; use a newer program");
            Err(PoolError::Refused { pool: found.name.clone(), grounds: Grounds::Devices, reason })
        }
    }
}

/// Whether two devices are the log and the capacity device of one pool.
pub(super) fn check_pair(capacity: &Superblock, log: &Superblock, devices: &PoolDevices) -> Result<(), PoolError> {
    let refuse =
        |reason: String| Err(PoolError::Refused { pool: capacity.name.clone(), grounds: Grounds::Devices, reason });
    if capacity.pool != log.pool || capacity.other != log.device || log.other != capacity.device {
        return refuse(format!(
            "'{}' is the log of pool '{}' ({}), not the one that belongs to '{}'; if that one is lost, 'pool forget-log' gives it \
             up",
            devices.log.name(),
            log.name,
            log.pool,
            devices.capacity.name()
        ));
    }
    if capacity.log_kind != devices.log.kind() {
        let (is, wanted) = (capacity.log_kind, devices.log.kind());
        return refuse(format!("its log was made {is}, and is opened {wanted}"));
    }
    Ok(())
}

/// A device that is an older copy of what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Older {
    pub(crate) role: Role,
    /// Openings of the pool that it has seen.
    pub(crate) seen: u32,
    /// Openings that the other device has seen.
    pub(crate) newest: u32,
}

/// Finds the one of a pool's devices that is an older copy. Each opening raises the epoch on the log device, then on the capacity
/// device, and appends nothing before that: so the log is never behind, and has no segment of an epoch that the capacity device has
/// not seen.
pub(crate) async fn find_older(
    reactor: &Rc<Reactor>,
    capacity: &Superblock,
    log: &Superblock,
    open_log: &OpenLog,
) -> Option<Older> {
    if log.epoch < capacity.epoch {
        return Some(Older { role: Role::Log, seen: log.epoch, newest: capacity.epoch });
    }
    // Otherwise a crash may have come between the two.
    if log.epoch > capacity.epoch {
        for shard in 0..capacity.shards {
            let medium = open_log.medium(reactor, capacity.segment_start(shard, 0));
            let geometry = LogGeometry::of(capacity, shard);
            // What cannot be read is looked at when the shard opens.
            if let Ok(newest) = log::newest_epoch(&medium, &geometry).await
                && newest > capacity.epoch
            {
                return Some(Older { role: Role::Capacity, seen: capacity.epoch, newest });
            }
        }
    }
    None
}

/// Refuses a device that is an [older](find_older) copy of what it was.
pub(super) async fn check_none_is_older(
    reactor: &Rc<Reactor>,
    capacity: &Superblock,
    log: &Superblock,
    devices: &PoolDevices,
    open_log: &OpenLog,
) -> Result<(), PoolError> {
    let Some(Older { role, seen, newest }) = find_older(reactor, capacity, log, open_log).await else { return Ok(()) };
    let (log_name, name) = (devices.log.name(), devices.capacity.name());
    let (device, what, other, else_what) = match role {
        Role::Log => (log_name, "log", name, ", or, if that is lost, give it up with 'pool forget-log --force'"),
        Role::Capacity => (name, "capacity device", log_name, ""),
    };
    let reason = format!(
        "'{device}' is an older copy of its {what}: it has seen {seen} openings of the pool, '{other}' {newest}; bring the newer one \
         back{else_what}"
    );
    Err(PoolError::Refused { pool: capacity.name.clone(), grounds: Grounds::Devices, reason })
}

/// Says what to do about a log device without a superblock.
pub(super) fn no_log(
    capacity: &Superblock,
    devices: &PoolDevices,
    error: MetaError,
    holds: Option<Holds>,
) -> PoolError {
    match error {
        MetaError::Superblock(SuperblockError::NotAPool { .. } | SuperblockError::Damaged(_)) => {
            let found = holds.map_or_else(|| error.to_string(), |holds| format!("it holds {holds}"));
            let reason = format!(
                "'{}' is not its log ({found}); name the right device, try 'pool check --repair', or, if the log is lost, give it \
                 up with 'pool forget-log'",
                devices.log.name()
            );
            PoolError::Refused { pool: capacity.name.clone(), grounds: Grounds::Devices, reason }
        }
        error => error.into(),
    }
}

/// An epoch that neither device has seen.
pub(crate) fn next_epoch(one: &Superblock, other: &Superblock) -> Result<u32, PoolError> {
    let next = one.epoch.max(other.epoch).checked_add(1);
    next.ok_or_else(|| PoolError::Refused {
        pool: one.name.clone(),
        grounds: Grounds::Devices,
        reason: "was opened too often: copy its volumes to a new pool".to_string(),
    })
}
