//! Closing the log: it takes no more records, and the capacity device knows where it ends.

use super::{Defect, Shard};
use std::rc::Rc;

/// Wait for what is under way before what waits for room is refused.
const WAIT_NS: u64 = 100_000_000;

impl Shard {
    /// Ends the log when nothing of it is under way any more. What is in it stays there. A note that cannot be written is
    /// missing: the next opening looks for the end as after a crash.
    pub(super) async fn close_log(self: &Rc<Self>) {
        // Nobody makes room any more: what waits for it is refused.
        while self.reactor.timeout(WAIT_NS, std::pin::pin!(self.log.drain())).await.is_none() {
            self.log.refuse_waiting();
        }
        // From here to its end nothing waits: nothing is appended that the note does not have.
        self.log.close_for_good();
        if self.is_broken(Defect::ForgetEnd) {
            return;
        }
        if let Err(status) = self.meta.close_log(self.log.next().lsn).await {
            tracing::warn!(
                "pool '{}': where the log of shard {} ends could not be noted: {status}",
                self.pool_name,
                self.number
            );
        }
    }
}
