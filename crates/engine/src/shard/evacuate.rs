//! Emptying a log that has no room left, not even for merging deltas: an extent with deltas is written, merged, to a free
//! extent, and a checkpoint alone makes that one the volume's.
//!
//! The reserve keeps an open pool from coming to this. But every life of a pool begins a segment of its own, and lives that
//! each end in the middle of emptying the log use the reserve up. An extent whose map page refuses writes leaves like this
//! too, when the log has no room for the records of a move: no checkpoint would succeed before.
//!
//! No record tells of the change, so none that is replayed may contradict it: both extents must be ones of which no record
//! from the new tail on says whose they are. What records say of the old extent's blocks is about an extent that nobody has
//! then, and does not count. Until the checkpoint is durable the volume's extent is held: a write to it would be in a record
//! that means nothing after a crash. A checkpoint that fails before its root is written leaves everything as it was, and
//! whoever asked tries again: what refuses a write may be a map page that has to move first.

use super::locks::Held;
use super::patience::Refused;
use super::relocate::Fate;
use super::{BLOCK, Shard, Target};
use crate::meta::{self, Descriptor, Replacement};
use crate::units::EXTENT_BLOCKS;
use bdev::Status;
use std::rc::Rc;

impl Shard {
    /// Empties an extent, which is being destaged or held back, without the log. False when others have to be first; an error
    /// leaves everything as it was. An extent that `is_refused` something is never used again.
    pub(super) async fn evacuate(self: &Rc<Self>, extent: u32, is_refused: bool) -> Result<bool, Status> {
        let owner = self.meta.descriptor(extent);
        let whole = Target { volume: owner.volume, vextent: owner.vextent, offset: 0, bytes: EXTENT_BLOCKS * BLOCK };
        let held = self.locks.lock(whole.range()).await;
        self.log.barrier().await;
        if self.index.extent(whole.volume, whole.vextent) != Some(extent) {
            // It was given back meanwhile.
            return Ok(false);
        }
        let tail = self.index.tail_without(extent);
        if self.index.is_named(extent, tail) {
            // Of the oldest, no record that would be replayed can say that it was allocated.
            let is_oldest = self.index.tail().is_none_or(|oldest| oldest < tail);
            return if is_oldest { Err(Status::NoSpace) } else { Ok(false) };
        }
        let Some(new) = self.index.reserve_unnamed(tail) else { return Err(Status::NoSpace) };
        let left = Descriptor { flags: if is_refused { meta::UNUSABLE } else { 0 }, ..Descriptor::default() };
        self.held_back.borrow_mut().push(new);
        let moved = self.evacuate_to(&whole, Replacement { old: extent, new, left }, held).await;
        self.let_go(new);
        moved?;
        tracing::info!(
            "pool '{}': the log of shard {} has no room for what moving extent {extent} takes; it is extent {new} now",
            self.pool_name,
            self.number
        );
        Ok(true)
    }

    /// Writers to the extent wait while `held` is there.
    async fn evacuate_to(
        self: &Rc<Self>,
        whole: &Target,
        replacement: Replacement,
        held: Held<'_>,
    ) -> Result<(), Status> {
        let Replacement { old, new, .. } = replacement;
        let failures = self.meta.flush_failures();
        let settled = match self.copy_extent(whole, old, new).await {
            Ok(fates) => {
                let known = self.checkpoint_replacing(replacement, failures, |page| fill(page, &fates)).await;
                known.map(|is_known| (is_known, fates))
            }
            Err(status) => Err(status),
        };
        match settled {
            Ok((true, fates)) => {
                self.report_lost(old, &fates);
                self.patience.answered(Refused::Place(old));
                Ok(())
            }
            Ok((false, _)) => {
                // Nothing may be written to the extent any more.
                std::mem::forget(held);
                Err(Status::Gone)
            }
            Err(status) => {
                self.index.vacate(new);
                Err(status)
            }
        }
    }
}

/// What the new extent's map page says.
fn fill(page: &meta::Page, fates: &[Fate]) {
    for (index, fate) in (0..).zip(fates) {
        let value = match fate {
            Fate::Hole => meta::HOLE,
            Fate::Lost { .. } => meta::LOST,
            Fate::Copied(crc) => meta::stored_crc(*crc),
        };
        page.set(index, value);
    }
}
