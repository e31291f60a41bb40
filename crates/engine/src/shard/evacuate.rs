//! Emptying a log that has no room left, not even for merging deltas: an extent with deltas is written, merged, to a free
//! extent, and a checkpoint alone makes that one the volume's.
//!
//! The reserve keeps an open pool from coming to this. But every life of a pool begins a segment of its own, and lives that
//! each end in the middle of emptying the log use the reserve up.
//!
//! No record tells of the change, so none that is replayed may contradict it: both extents must be ones of which no record
//! from the new tail on says whose they are. What records say of the old extent's blocks is about an extent that nobody has
//! then, and does not count. Until the checkpoint is durable the volume's extent is held: a write to it would be in a record
//! that means nothing after a crash. And until then the old extent is not free.

use super::locks::Held;
use super::patience::Refused;
use super::relocate::Fate;
use super::{BLOCK, Defect, Shard, Target};
use crate::meta;
use crate::units::EXTENT_BLOCKS;
use bdev::Status;
use std::rc::Rc;

impl Shard {
    /// Empties an extent, which is being destaged, without the log. False when others have to be first; an error leaves
    /// everything as it was.
    pub(super) async fn evacuate(self: &Rc<Self>, extent: u32) -> Result<bool, Status> {
        let owner = self.meta.descriptor(extent);
        let whole = Target { volume: owner.volume, vextent: owner.vextent, offset: 0, bytes: EXTENT_BLOCKS * BLOCK };
        let held = self.locks.lock(whole.range()).await;
        self.log.barrier().await;
        let tail = self.index.tail_without(extent);
        if self.index.is_named(extent, tail) {
            // Of the oldest, no record that would be replayed can say that it was allocated.
            let is_oldest = self.index.tail().is_none_or(|oldest| oldest < tail);
            return if is_oldest { Err(Status::NoSpace) } else { Ok(false) };
        }
        let Some(new) = self.index.reserve_unnamed(tail) else { return Err(Status::NoSpace) };
        self.held_back.borrow_mut().push(new);
        let moved = self.evacuate_to(new, extent, &whole, held).await;
        self.let_go(new);
        moved?;
        tracing::info!(
            "pool '{}': the log of shard {} has no room to merge extent {extent}; it has moved to extent {new}",
            self.pool_name,
            self.number
        );
        Ok(true)
    }

    /// Writers to the extent wait while `held` is there.
    async fn evacuate_to(self: &Rc<Self>, new: u32, extent: u32, whole: &Target, held: Held<'_>) -> Result<(), Status> {
        match self.copy_extent(whole, extent, new).await {
            Ok(fates) => {
                let change = || self.settle_in(extent, new, &fates);
                let settled = match self.is_broken(Defect::EvacuateEarly) {
                    true => {
                        change();
                        Ok(())
                    }
                    false => self.checkpoint_after(change).await,
                };
                if settled.is_err() {
                    // Closing, and the change is not durable: nothing may be written to the extent any more.
                    std::mem::forget(held);
                    return Err(Status::Gone);
                }
                self.report_lost(extent, &fates);
                self.patience.answered(Refused::Place(extent));
                Ok(())
            }
            Err(status) => {
                self.index.unreserve(new);
                Err(status)
            }
        }
    }

    /// Makes the new extent the volume's, in one step: no reader finds it without its page.
    fn settle_in(&self, extent: u32, new: u32, fates: &[Fate]) {
        self.index.evacuated(extent, new);
        let page = self.meta.renew_page(new);
        for (index, fate) in (0..).zip(fates) {
            let value = match fate {
                Fate::Hole => meta::HOLE,
                Fate::Lost { .. } => meta::LOST,
                Fate::Copied(crc) => meta::stored_crc(*crc),
            };
            page.set(index, value);
        }
    }
}
