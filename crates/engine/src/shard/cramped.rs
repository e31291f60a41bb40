//! A log without a free segment, after writes that failed and took segments, or after lives that ended while it was emptied. Destage may
//! need records of its own (of merged deltas, of what is lost, of a move), and room for them may have to come from the very
//! checkpoint that waits for it. Then those records are refused: destage fails, says so, and is tried again, and who writes gets
//! an error instead of waiting for ever.

use super::patience::PATIENCE_NS;
use super::{Defect, Shard};
use base::Errno;
use bdev::Status;
use std::cell::Cell;
use std::rc::Rc;

/// So long nothing has been destaged and nobody has made a checkpoint before records are refused: longer than a device that works takes.
const WAIT_NS: u64 = 10_000_000_000;
/// So long upkeep fails and makes no room before who waits for some fails as well: longer than [`PATIENCE_NS`], after which
/// it goes on without what cannot be read.
const STALL_NS: u64 = PATIENCE_NS + WAIT_NS;
/// The same when records have been refused before, and nothing has become better since.
const WAIT_AGAIN_NS: u64 = 100_000_000;

/// What changes when there is more room, or will be: the durable tail's record, the writes for which there was some, and what
/// has been given up that upkeep waited for.
type Progress = (u64, u64, u64);

/// Upkeep that fails while somebody waits for room.
#[derive(Clone, Copy)]
struct Failing {
    since_ns: u64,
    progress: Progress,
    /// Who waits is refused.
    refuses: bool,
}

/// See [`Shard::refuse_if_stalled`].
#[derive(Default)]
pub(super) struct Stall(Cell<Option<Failing>>);

impl Shard {
    /// Upkeep has failed. Who waits for room that it does not make gets an error in the end: the device it fails on may never
    /// come back (a file takes no flush any more after one that failed).
    pub(super) fn refuse_if_stalled(&self, status: Status) {
        let (now_ns, progress) = (self.reactor.now_ns(), self.progress());
        let waiting = self.pace.waiting();
        let somebody_waits = waiting > 0 || self.log.is_stalled();
        let before = self.house.stall.0.get();
        let going_on = before.filter(|failing| failing.progress == progress && (somebody_waits || failing.refuses));
        let mut failing = going_on.unwrap_or(Failing { since_ns: now_ns, progress, refuses: false });
        failing.refuses |= now_ns - failing.since_ns >= STALL_NS && !self.is_broken(Defect::WaitForEver);
        self.house.stall.0.set(Some(failing));
        if !failing.refuses || !somebody_waits {
            return;
        }
        if self.house.refusals.is_due(status, now_ns) {
            self.tell_refused(status, waiting, now_ns - failing.since_ns);
        }
        // What upkeep could not read is not what these writes are about.
        let status = if status == Status::Os(Errno::ENOSPC) { Status::NoSpace } else { status };
        let is_of_writes = matches!(status, Status::WriteError | Status::NoSpace) || status.is_gone();
        self.pace.refuse(if is_of_writes { status } else { Status::WriteError });
        self.log.refuse_waiting();
    }

    fn tell_refused(&self, status: Status, waiting: usize, failing_ns: u64) {
        tracing::error!(
            "pool '{}': the log of shard {} is full, and upkeep, which would make room, has failed for {} s, with '{status}' the \
             last time: {waiting} writes are refused, and others that come; see to the pool's devices ('{}' and the log '{}'), then open them \
             anew by restarting the node",
            self.pool_name,
            self.number,
            failing_ns / 1_000_000_000,
            self.capacity_device.name(),
            self.log_name
        );
    }

    /// The first write to a slice at rest waits for the dirty journal, which its device refuses: hosts get errors, and nobody else would
    /// notice while the pool has nothing to do.
    pub(super) fn tell_unjournaled(&self, status: Status) {
        if self.house.refusals.is_due(status, self.reactor.now_ns()) {
            tracing::error!(
                "pool '{}': the dirty journal of shard {} on device '{}' cannot be written: {status}; writes to what was at rest are \
                 refused: see to the device",
                self.pool_name,
                self.number,
                self.capacity_device.name()
            );
        }
    }

    fn progress(&self) -> Progress {
        (self.durable_tail().lsn, self.pace.lets(), self.patience.gave_ups())
    }

    /// Upkeep has succeeded.
    pub(super) fn ends_stall(&self) {
        self.house.stall.0.set(None);
        self.house.refusals.ends();
    }

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
