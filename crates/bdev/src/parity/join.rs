//! Giving the place of a failed or absent member to a device, while the parity device is used.

use super::format::{MemberState, Superblock};
use super::meta::went_apart;
use super::open::{Overwrite, Seen, fits, look, random_id};
use super::{Inner, ParityDevice};
use crate::device::{BlockDevice, DeviceError};
use crate::io::Status;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

impl ParityDevice {
    /// Takes `device` in as member `member`, which has failed or is absent: another device, or with `None` the one that it has.
    /// Writes reach it from now on; it counts when [`rebuild`](Self::rebuild), which is to be called next, has written all of it.
    ///
    /// Refused, and nothing is changed, where the device holds anything but zeroes or this very member, unless `overwrite`
    /// says that all it holds may go. Waits for all writes under way, and holds up new ones meanwhile.
    pub async fn join(
        &self,
        reactor: &Rc<Reactor>,
        member: usize,
        device: Option<Arc<dyn BlockDevice>>,
        overwrite: bool,
    ) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let refused = |reason: String| DeviceError::Config { device: shared.name.clone(), reason };
        let failed = |status| DeviceError::Io { device: shared.name.clone(), action: "take in a member", status };
        let _join = shared.join_turn.lock(0, 1, true).await;
        if member >= shared.members.len() {
            return Err(refused(format!(
                "there is no member {member}, the last is member {}",
                shared.members.len() - 1
            )));
        }
        if shared.state(member) != MemberState::Failed {
            let name = shared.member_name(member);
            return Err(refused(format!("{name} is in use; one that has not failed is not replaced")));
        }
        let device = device.or_else(|| shared.members[member].device());
        let Some(device) = device else { return Err(refused(format!("{} is absent", shared.member_name(member)))) };
        // Before anything is held up: a device that does not answer must not stop the others.
        let current = shared.superblock.lock().expect("nothing panics while holding the superblock").clone();
        fits(&current, &*device).map_err(refused)?;
        if device.info().volatile_cache && !shared.opened.volatile_cache {
            let name = device.name();
            return Err(refused(format!(
                "'{name}' has a volatile cache, and the device was opened without any; close it and open it with '{name}'"
            )));
        }
        let may = if overwrite { Overwrite::All } else { Overwrite::Nothing };
        let seen = look(reactor, &shared.name, &device, may).await?;
        if let Some(why) = &seen.unfit {
            let way = if overwrite { "" } else { "; rejoin it with --overwrite to give up what it holds" };
            return Err(refused(format!("{why}{way}")));
        }
        if !overwrite {
            may_go(&current, &seen, member, device.name()).map_err(refused)?;
        }
        let inner = self.inner(reactor);
        // With the whole device held no write is under way that does not know of it.
        let _alone = shared.ranges.lock(0, shared.geometry().blocks(), true).await;
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        {
            let mut superblock = shared.superblock.lock().expect("nothing panics while holding the superblock");
            // What the device held before must not look newer than what is written now.
            let of_this = seen.superblock.as_ref().filter(|found| found.array_id == superblock.array_id);
            let found = of_this.map_or(0, |found| found.generation);
            superblock.generation = superblock.generation.max(found);
            superblock.members[member].id = random_id(reactor);
        }
        let before = shared.members[member].take_in(Some(device));
        shared.members[member].slot_first.store(seen.slot_first, Release);
        shared.members[member].generation.store(seen.generation(), Release);
        shared.rebuilt_rows.store(0, Release);
        *shared.halted.lock().expect("nothing panics while holding a reason") = None;
        inner.set_state(member, MemberState::Rebuilding);
        let outcome = inner.write_superblocks().await;
        if outcome.is_ok() && shared.state(member) == MemberState::Rebuilding {
            shared.members[member].set_older(None);
            return Ok(());
        }
        // As it was: it can be tried again, with this device or another one.
        inner.set_state(member, MemberState::Failed);
        shared.members[member].take_in(before);
        Err(failed(outcome.err().unwrap_or(Status::WriteError)))
    }
}

/// Whether what a device holds is nothing, or what this member was.
fn may_go(current: &Superblock, seen: &Seen, member: usize, name: &str) -> Result<(), String> {
    let way = "rejoin it with --overwrite to give up what it holds";
    match &seen.superblock {
        None if seen.blank => Ok(()),
        None => Err(format!("'{name}' cannot be read; replace it")),
        Some(own) if own.array_id != current.array_id => {
            Err(format!("'{name}' belongs to another parity device; {way}"))
        }
        Some(own) if own.member_index != member => {
            Err(format!("'{name}' is member {} of this device; {way}", own.member_index))
        }
        Some(own) if went_apart(own, current) => {
            Err(format!("'{name}' was used without the other members, as a part of a copy of the device; {way}"))
        }
        Some(_) => Ok(()),
    }
}

impl Inner {
    /// Times that the place of a member was taken.
    pub(super) fn joins(&self, member: usize) -> u32 {
        self.shared.members[member].joins.load(Acquire)
    }
}
