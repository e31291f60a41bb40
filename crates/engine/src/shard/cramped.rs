//! A log without a free segment, after writes that failed and took segments, or after lives that ended while it was emptied. Destage may
//! need records of its own (of merged deltas, of what is lost, of a move), and room for them may have to come from the very
//! checkpoint that waits for it. Then those records are refused: destage fails, says so, and is tried again, and who writes gets
//! an error instead of waiting for ever.

use super::Shard;
use bdev::Status;
use std::rc::Rc;

/// So long nothing has been destaged and nobody has made a checkpoint before records are refused: longer than a device that works takes.
const WAIT_NS: u64 = 10_000_000_000;
/// The same when records have been refused before, and nothing has become better since.
const WAIT_AGAIN_NS: u64 = 100_000_000;

impl Shard {
    /// Waits for a destage to end, and lets it fail when it can do nothing else.
    pub(super) async fn unless_cramped(
        &self,
        mut destage: impl Future<Output = Result<bool, Status>> + Unpin,
    ) -> Result<bool, Status> {
        loop {
            let before = self.counters.destaged_bytes.get();
            let wait_ns = if self.log.has_refused() { WAIT_AGAIN_NS } else { WAIT_NS };
            match self.reactor.timeout(wait_ns, &mut destage).await {
                Some(ended) => return ended,
                None if self.is_checkpointing() || self.counters.destaged_bytes.get() > before => {}
                None => self.log.refuse_waiting(),
            }
        }
    }

    /// When all that could be destaged is held back: it may be by somebody who waits for room that only destage makes.
    pub(super) fn unblock(&self) {
        let now_ns = self.reactor.now_ns();
        let since_ns = self.house.blocked_since.get().unwrap_or(now_ns);
        self.house.blocked_since.set(Some(since_ns));
        let wait_ns = if self.log.has_refused() { WAIT_AGAIN_NS } else { WAIT_NS };
        if now_ns - since_ns < wait_ns {
            return;
        }
        let is_under_way = self.is_checkpointing() || self.index.destages_under_way() > 0;
        if !is_under_way && self.durable_tail().segment >= self.tail().segment {
            self.log.refuse_waiting();
        }
    }

    /// After an upkeep that has failed: what has been destaged all the same may free a segment; if not, who waits first goes
    /// on, and fails.
    pub(super) async fn relieve(self: &Rc<Self>) {
        if !self.log.is_cramped() {
            return;
        }
        // An error is the upkeep's own the next time.
        let _ = self.checkpoint().await;
        if self.log.is_hopeless() {
            self.log.refuse_waiting();
            self.pace.let_in_alone();
        }
    }
}
