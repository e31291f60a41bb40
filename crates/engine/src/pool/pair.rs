//! Whether the devices that a pool is opened on are its own, belong together, and are as new as each other.

use super::PoolDevices;
use crate::error::{Grounds, PoolError};
use crate::forget::{BEYOND_SHADOW, SEGMENTS_BEYOND};
use crate::format::EPOCH_MAX;
use crate::format::dirty::IndexNote;
use crate::format::root::Root;
use crate::format::segment::Segment;
use crate::format::superblock::{Role, Shape, Superblock, SuperblockError};
use crate::holds::Holds;
use crate::log::{self, LogGeometry, Medium};
use crate::log_device::OpenLog;
use crate::meta::journal::read_newer;
use crate::meta::media::Media;
use crate::meta::{MetaError, read_roots};
use crate::units::LogTail;
use bdev::are_known_to_differ;
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

/// So many segments that a log should have, and has not, are looked into: the one where replay begins may not have been begun.
const MISSED_MIN: u64 = 3;
/// And so many records make it an older copy: fewer may have rotted at the end of a segment.
const RECORDS_MISSED_MIN: u64 = 128;

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
    if went_apart(capacity, log) {
        return refuse(format!(
            "'{}' and '{}' went on apart: both have seen {} openings of the pool, and not the same ones. One of them is of another copy of \
             the pool; bring the one back that was in use with the other",
            devices.log.name(),
            devices.capacity.name(),
            capacity.epoch
        ));
    }
    if capacity.log_kind != devices.log.kind() {
        let (is, wanted) = (capacity.log_kind, devices.log.kind());
        return refuse(format!("its log was made {is}, and is opened {wanted}"));
    }
    Ok(())
}

/// Whether the two have seen equally many openings of the pool, and not the same ones. Which of them is the one that is wanted does
/// not show.
pub(crate) fn went_apart(capacity: &Superblock, log: &Superblock) -> bool {
    capacity.epoch == log.epoch && are_known_to_differ(capacity.opening.id, log.opening.id)
}

/// A device that is an older copy of what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Older {
    pub(crate) role: Role,
    /// Openings of the pool that it has seen.
    seen: u32,
    /// Openings that the other device has seen.
    newest: u32,
}

impl Older {
    /// How that shows, said of the device; `other` is the name of the other one.
    pub(crate) fn how(&self, other: &str) -> String {
        match (self.seen, self.newest) {
            (seen, newest) if seen < newest => {
                format!("it has seen {seen} openings of the pool, {other} {newest}")
            }
            (seen, _) => format!("{other} goes on from what was written later in opening {seen} of the pool"),
        }
    }
}

/// Finds the one of a pool's devices that is an older copy. Each opening raises the epoch on the log device, then on the capacity
/// device, and appends nothing before that: so the log is never behind, and has no segment of an epoch that the capacity device has
/// not seen. Of copies of one opening, those tell that a later checkpoint has left behind.
pub(crate) async fn find_older(
    reactor: &Rc<Reactor>,
    capacity: &Superblock,
    log: &Superblock,
    media: &Media,
    open_log: &OpenLog,
) -> Option<Older> {
    let newest = capacity.epoch;
    let medium_of = |shard| open_log.medium(reactor, capacity.segment_start(shard, 0));
    if log.epoch < newest {
        return Some(Older { role: Role::Log, seen: log.epoch, newest });
    }
    // Otherwise a crash may have come between the two.
    if log.epoch > newest {
        if are_known_to_differ(log.opening.before, capacity.opening.id) {
            return Some(Older { role: Role::Capacity, seen: newest, newest: log.epoch });
        }
        for shard in 0..capacity.shards {
            let (medium, geometry) = (medium_of(shard), LogGeometry::of(capacity, shard));
            // What cannot be read is looked at when the shard opens.
            if let Ok(newest) = log::newest_epoch(&medium, &geometry).await
                && newest > capacity.epoch
            {
                return Some(Older { role: Role::Capacity, seen: capacity.epoch, newest });
            }
        }
    }
    let log_media = Media::new(reactor, open_log.channel.clone(), &open_log.info).ok()?;
    let shadow = capacity.shadow();
    for shard in 0..capacity.shards {
        let role = match capacity.shape {
            Shape::Hot => behind_in_hot(media, capacity, &log_media, &medium_of(shard), shard).await,
            Shape::Shaped => {
                let roots = read_roots(&log_media, capacity, shard).await;
                // No root is written before both devices have its epoch.
                let latest = roots.iter().flatten().map(|root| root.epoch).max().unwrap_or(0);
                if latest > newest {
                    return Some(Older { role: Role::Capacity, seen: newest, newest: latest });
                }
                let root = newest_of(roots);
                let is_before = is_before_journal(root.as_ref(), media, capacity, shard).await
                    || match &shadow {
                        Some(shadow) => is_before_shadow(root.as_ref(), media, shadow, shard).await,
                        None => false,
                    };
                is_before.then_some(Role::Log)
            }
        };
        if let Some(role) = role {
            return Some(Older { role, seen: newest, newest });
        }
    }
    None
}

/// Whether the index of a shaped pool, on the log device, is older than its shadow: that has what a durable root of the index had, so
/// it begins replay at the same place at the latest. One that begins far beyond is of a log that was not given up to the end.
async fn is_before_shadow(root: Option<&Root>, media: &Media, shadow: &Superblock, shard: u16) -> bool {
    let shadows = read_roots(media, shadow, shard).await;
    let Some(shadow) = shadows.into_iter().flatten().max_by_key(|root| root.generation) else { return false };
    let Some(root) = root else { return false };
    root.tail < shadow.tail && shadow.tail.lsn.saturating_sub(root.tail.lsn) < BEYOND_SHADOW / 2
}

/// Whether the index of a shaped pool is older than what the dirty journal, on the capacity device, says of it.
async fn is_before_journal(root: Option<&Root>, media: &Media, capacity: &Superblock, shard: u16) -> bool {
    let (Some(root), Ok(journal)) = (root, read_newer(media, capacity, shard).await) else { return false };
    let own = IndexNote::of(capacity.other, root.generation);
    journal.index.log == own.log && journal.index.root > own.root
}

/// What is in the place of a segment of the log.
enum Found {
    /// A segment of this shard.
    Segment(Segment),
    /// Nothing was ever written there.
    Blank,
    /// Something else, or what has rotted.
    Other,
}

/// Which device of a hot pool is behind the other, going by where the root, on the capacity device, begins replay, and what
/// the log has. It has the segment where that is, unless that was just about to be begun, and all records before it as far as their places
/// were not used again; and no segment is used again before a durable root begins replay behind it.
async fn behind_in_hot(
    media: &Media,
    capacity: &Superblock,
    log_media: &Media,
    log_medium: &Medium,
    shard: u16,
) -> Option<Role> {
    let root = newest_of(read_roots(media, capacity, shard).await)?;
    let found = async |sequence: u64| {
        let place = (sequence % capacity.segments as u64) as u32;
        let Ok(bytes) = log_media.read_bytes(capacity.segment_start(shard, place), 1).await else {
            return Found::Other;
        };
        match Segment::decode(&bytes) {
            Some(Ok(found)) if found.is_of(capacity.pool_prefix(), shard) => Found::Segment(found),
            None if bytes.iter().all(|byte| *byte == 0) => Found::Blank,
            _ => Found::Other,
        }
    };
    let tail = root.tail.segment;
    let mut newest: Option<Segment> = None;
    for back in 0..capacity.segments as u64 {
        let Some(wanted) = tail.checked_sub(back) else { break };
        match found(wanted).await {
            Found::Segment(found) if found.sequence == wanted && back < MISSED_MIN => return None,
            // A log that was given up may have later ones, of openings before.
            Found::Segment(found) if found.sequence > wanted => {
                let is_ahead = back == 0 && found.epoch >= capacity.epoch;
                return is_ahead.then_some(Role::Capacity);
            }
            // Of a log that was given up all are far behind.
            Found::Segment(found) if tail - found.sequence < SEGMENTS_BEYOND / 2 => {
                newest = newest.into_iter().chain([found]).max_by_key(|found| found.sequence);
            }
            // What is damaged says nothing, so all that should be there must be known not to be.
            Found::Other if back < MISSED_MIN => return None,
            _ => {}
        }
    }
    // Numbers may have been left out, of segments that could not be written: only the records tell.
    let newest = newest?;
    let geometry = LogGeometry::of(capacity, shard);
    let mut end_lsn = newest.first_lsn;
    let from = LogTail { segment: newest.sequence, lsn: newest.first_lsn };
    let read = log::survey(log_medium, geometry, from.into(), &mut |_, placed| end_lsn = placed.lsn + 1).await.ok()?;
    (read.lost.is_empty() && root.tail.lsn.saturating_sub(end_lsn) >= RECORDS_MISSED_MIN).then_some(Role::Log)
}

/// The newer copy of a root, where both are as they should be: of a damaged one nothing can be told.
fn newest_of([first, second]: [Option<Root>; 2]) -> Option<Root> {
    let (first, second) = (first?, second?);
    Some(if second.generation > first.generation { second } else { first })
}

/// Refuses a device that is an [older](find_older) copy of what it was.
pub(super) async fn check_none_is_older(
    reactor: &Rc<Reactor>,
    capacity: &Superblock,
    log: &Superblock,
    devices: &PoolDevices,
    media: &Media,
    open_log: &OpenLog,
) -> Result<(), PoolError> {
    let Some(older) = find_older(reactor, capacity, log, media, open_log).await else { return Ok(()) };
    let (log_name, name) = (devices.log.name(), devices.capacity.name());
    let (device, what, other, else_what) = match older.role {
        Role::Log => (log_name, "log", name, ", or, if that is lost, give it up with 'pool forget-log --force'"),
        Role::Capacity => (name, "capacity device", log_name, ""),
    };
    let how = older.how(&format!("'{other}'"));
    let reason = format!("'{device}' is an older copy of its {what}: {how}; bring the newer one back{else_what}");
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
    next.filter(|next| *next < EPOCH_MAX).ok_or_else(|| PoolError::Refused {
        pool: one.name.clone(),
        grounds: Grounds::Devices,
        reason: "was opened too often: copy its volumes to a new pool".to_string(),
    })
}
