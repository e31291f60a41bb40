//! After a flush of the capacity device that failed. What it covered may be lost, although it reads well and the next flush
//! succeeds; so what was written in place since the last flush that succeeded is written again.
//!
//! The log has all of that: what was written before the durable checkpoint's tail was found, its flush has covered, and
//! nothing from that tail on has been released. What did not come from the log (moves, writes past it) counts only after a
//! flush of its own. (In a shaped pool the bands write their stripes again.) Files, and many drives, refuse all flushes after
//! one that failed: nothing is written again before one has succeeded.

use super::{Defect, Shard};
use bdev::Status;
use std::rc::Rc;

impl Shard {
    /// As [`heed_failed_flush`](Self::heed_failed_flush), while no checkpoint is being made: what is destaged again may be
    /// before the tail of that one.
    pub(super) async fn heed_failed_flush_alone(self: &Rc<Self>) -> Result<(), Status> {
        if self.meta.flush_failures() == self.house.heeded.get() {
            return Ok(());
        }
        let _alone = self.alone().await;
        self.heed_failed_flush().await
    }

    /// If a flush has failed since this was done last: what is in place and not durable is to be destaged again. Fails while
    /// flushes fail.
    pub(super) async fn heed_failed_flush(&self) -> Result<(), Status> {
        let failures = self.meta.flush_failures();
        if let Some(bands) = self.meta.bands() {
            self.house.heeded.set(failures);
            if bands.take_lost() {
                self.index.destage_again(self.meta.durable_tail());
            }
            return Ok(());
        }
        if failures == self.house.heeded.get() {
            return Ok(());
        }
        self.meta.flush().await?;
        self.house.heeded.set(failures);
        if self.is_broken(Defect::TrustFlushes) {
            return Ok(());
        }
        self.meta.distrust_unflushed();
        let blocks = self.index.destage_again(self.meta.durable_tail());
        tracing::warn!(
            "pool '{}': a flush of the capacity device has failed, and what was written before may be lost there: {blocks} \
             blocks of shard {} are written again, from the log",
            self.pool_name,
            self.number
        );
        Ok(())
    }
}
