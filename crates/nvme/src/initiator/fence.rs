//! Which commands may be sent again after a connection was lost, and when: the rules that keep an old write from landing
//! on top of a newer one.
//!
//! # The danger
//! A write `W1` was sent and the connection broke before its answer. The controller may have done it, may never have seen
//! it, or may *still* do it: it sits in a socket buffer, in a queue, in a disk's queue. A new association says nothing
//! about the old one: with the dynamic controller model every connect makes a new controller beside the old. So while
//! `W1` may still be done,
//! * sending `W1` again and reporting success lets a later `W2` to the same blocks be overwritten by the first `W1`;
//! * reporting an error instead does not help: the next write to these blocks can be overwritten just the same.
//!
//! Hosts that simply reconnect and resend have been seen to corrupt data in exactly this way. What matters is therefore not
//! only which commands are *replayed*, but which commands, new ones included, are *sent* while `W1` may still be done.
//!
//! # The rules
//! A modifying command that was issued and not answered when its connection ended makes its blocks *suspect*, until the
//! old association is known to be *fenced*: no command of it will be done any more.
//! 1. Reads, compares, verifies and flushes are sent at once, replays and new ones alike. A read that overlaps `W1`
//!    returns old or new data, which is what a read beside an unfinished write may return.
//! 2. A modifying command that touches no suspect block is sent at once.
//! 3. A modifying command that touches a suspect block waits for the fence: the replay of `W1` and every later write to
//!    its blocks. Writes, zeroes and deallocations are idempotent, and after the fence nothing older can follow them.
//! 4. With [`Replay::Exclusive`](super::Replay::Exclusive) the caller promises that no other host writes to the namespace.
//!    Then the replay of `W1` itself need not wait once every association that was in force when `W1` became suspect, on
//!    whichever path, has ended, unless *another* suspect write overlaps it: the copies of `W1` carry the same data, nothing
//!    but this host could write in between, and rule 3 holds back what this host would write. What it had already sent is the
//!    reason for waiting: a `W2` over the same blocks that is under way on a connection that lives can be done after the replay
//!    and be acknowledged, and then the first `W1` lands on it. When the association has ended, `W2` was answered, and so is
//!    older than the replay, or is suspect too. Later overlapping writes still wait.
//! 5. A compare-and-write is not idempotent: a second attempt would compare with what the first wrote. It is never sent
//!    again; it ends as aborted, after the fence, so that whoever then reads the blocks sees what remains there.
//! 6. A copy carries no data: what `W1` copies is what its source holds when it is done, which may be a later write's. So its
//!    replay waits for the fence even with `Exclusive`, and after that is a copy like any other. One whose source overlaps its
//!    destination would read what its first attempt wrote; such are made of reads and writes (`compound`).
//! 7. A request may end with an error before the fence (fail-fast, time limit, close). Its blocks stay suspect.
//!
//! # What counts as a fence
//! * *Controller reset*: the admin queue still worked, CC.EN was cleared and CSTS.RDY became 0. A controller level reset
//!   ends all outstanding commands and deletes all I/O queues (Base 2.0, section 3.7.2). So a lost or stuck I/O queue costs
//!   no waiting.
//! * *Cross-controller reset* (Base 2.3, section 9.6.2.2): the new association's controller is told to reset the old one,
//!   named by identifier, uniquifier and random number, and answers that it is done.
//! * *Time*: 2 keep-alive times (3 with traffic based keep alive), and the controller's command quiesce time (CQT), after
//!   this end closed the old association's last connection (Base 2.1, section 9.6.2). The controller's timer was last
//!   restarted by something that this host sent before it closed; that may have arrived up to one keep-alive time late,
//!   since otherwise the timer would have expired already; it then runs for another. With traffic based keep alive the
//!   timer is only looked at once per period, hence the third. Controllers of before 2.1 do not report CQT: then
//!   [`Options::quiesce_ns`](super::Options::quiesce_ns) stands in for it. This relies on the controller's keep-alive
//!   timer, which is why keep alive cannot be turned off.
//!
//! # Several paths
//! A device with several paths has one fence for all of them ([`Board`]): a write that was lost on one path makes its blocks
//! suspect on every path, before anybody can send it, or anything else, elsewhere. So the rules above are the rules of failing
//! over: reads move to another path at once, and so do writes to blocks that are not suspect; a write whose outcome is unknown
//! moves when the association that it was lost with is fenced. [`Replay::Exclusive`](super::Replay::Exclusive) does not make that
//! sooner while another path keeps the association that it had: rule 4 waits for the end of all of them.
//! What a controller *answered* is done with, whatever it said, and is sent elsewhere at once: nothing is suspect after a
//! refusal for the sake of an asymmetric access state.
//!
//! A lost association is fenced through its own path alone, by resetting its controller, or by time. Another path may lead to
//! another target that knows nothing of the lost controller; a controller that is asked to reset one it has never heard of
//! says that it is done, which is right where it has ended before, and means nothing there.
//!
//! # What this does not cover
//! Suspicion lives in this process: a host that was killed and starts again knows nothing of its former self's writes, and
//! nothing here orders the writes of different hosts. Reservations, or the volume layer's epochs, do that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Most suspect ranges that are kept apart; beyond it everything is suspect that an association with suspects may reach.
const SUSPECTS_MAX: usize = 4096;

/// Names a request over all its attempts: number of the lane that took it first, and order of acceptance there.
pub(super) type Owner = (u32, u64);

/// Blocks that an unanswered modifying command of a lost connection may still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suspect {
    /// First block.
    pub(super) start: u64,
    /// The block after the last.
    pub(super) end: u64,
    /// The request.
    pub(super) owner: Owner,
    /// The association on which the command was sent.
    pub(super) association: u64,
    /// The newest association of any path when this became suspect; set by the fence.
    pub(super) newest: u64,
}

impl Suspect {
    fn is_same(&self, other: &Suspect) -> bool {
        *self == Suspect { newest: self.newest, ..*other }
    }
}

/// The suspect blocks of all associations that are not fenced, as lanes see them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fence {
    suspects: Vec<Suspect>,
    /// Associations whose connections may carry commands that are not suspect.
    in_force: Vec<u64>,
    /// The newest one, from 1.
    newest: u64,
}

impl Fence {
    /// Whether a modifying request over `start..end` must wait. `replay_of` names a request that is exempt from its own
    /// suspicion once nothing that was sent beside it is under way (rule 4).
    pub(super) fn holds(&self, start: u64, end: u64, replay_of: Option<Owner>) -> bool {
        let overlaps = |suspect: &&Suspect| suspect.start < end && start < suspect.end;
        let is_exempt = |suspect: &Suspect| Some(suspect.owner) == replay_of && !self.is_beside_others(suspect);
        self.suspects.iter().filter(overlaps).any(|suspect| !is_exempt(suspect))
    }

    /// Whether an association that was in force when this became suspect still is.
    fn is_beside_others(&self, suspect: &Suspect) -> bool {
        self.in_force.iter().any(|association| *association <= suspect.newest)
    }

    /// Numbers a new association.
    fn begin(&mut self) -> u64 {
        self.newest += 1;
        self.in_force.push(self.newest);
        self.newest
    }

    /// The last connection of an association has ended, and what was under way on it is suspect.
    fn end(&mut self, association: u64) {
        self.in_force.retain(|other| *other != association);
    }

    /// Whether nothing is suspect.
    pub(super) fn is_empty(&self) -> bool {
        self.suspects.is_empty()
    }

    /// Adds what a lane reports of a lost connection.
    pub(super) fn add(&mut self, suspects: impl IntoIterator<Item = Suspect>) {
        for suspect in suspects {
            let suspect = Suspect { newest: self.newest, ..suspect };
            self.suspects.retain(|other| !other.is_same(&suspect));
            self.suspects.push(suspect);
            if self.suspects.len() > SUSPECTS_MAX {
                // Each association is fenced by itself, in any order.
                let mut associations: Vec<u64> = self.suspects.iter().map(|suspect| suspect.association).collect();
                associations.sort_unstable();
                associations.dedup();
                let (owner, newest) = ((u32::MAX, u64::MAX), self.newest);
                let all = |association| Suspect { start: 0, end: u64::MAX, owner, association, newest };
                self.suspects = associations.into_iter().map(all).collect();
            }
        }
    }

    /// Forgets the suspects of one association, which has been fenced.
    pub(super) fn lift(&mut self, association: u64) {
        self.suspects.retain(|suspect| suspect.association != association);
    }

    /// For lanes: `None` when nothing is suspect.
    fn share(&self) -> Option<Arc<Fence>> {
        (!self.is_empty()).then(|| Arc::new(self.clone()))
    }
}

/// The fence of a device, over all its paths and reactors.
///
/// Lanes have copies, and compare the version before each modifying command: one load of a value that changes only when a
/// connection is lost or fenced. No message could do that: between the loss on one reactor and its arrival on another one,
/// that one could send a write too early.
#[derive(Debug, Default)]
pub(super) struct Board {
    fence: Mutex<Fence>,
    version: AtomicU64,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Fence> {
        self.fence.lock().expect("nothing panics while it holds this lock")
    }

    fn change<T>(&self, action: impl FnOnce(&mut Fence) -> T) -> T {
        let mut fence = self.lock();
        let result = action(&mut fence);
        self.version.fetch_add(1, Ordering::Release);
        result
    }

    /// A number for an association of any path, from 1, before it has its first connection for block operations.
    pub(super) fn begin(&self) -> u64 {
        self.change(Fence::begin)
    }

    /// No connection of an association is left, and what was under way on them was [added](Self::add).
    pub(super) fn end(&self, association: u64) {
        self.change(|fence| fence.end(association));
    }

    /// Changes with the suspects.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The suspect blocks now, and the version that they are.
    pub(super) fn read(&self) -> (u64, Option<Arc<Fence>>) {
        let fence = self.lock();
        (self.version(), fence.share())
    }

    /// Adds what a lost connection leaves behind, before any of it is sent again or said to have failed.
    pub(super) fn add(&self, suspects: Vec<Suspect>) {
        if !suspects.is_empty() {
            self.change(|fence| fence.add(suspects));
        }
    }

    /// An association has been fenced.
    pub(super) fn lift(&self, association: u64) {
        self.change(|fence| fence.lift(association));
    }

    /// Whether an association left something behind that it may still do.
    pub(super) fn suspects(&self, association: u64) -> bool {
        self.lock().suspects.iter().any(|suspect| suspect.association == association)
    }
}

/// How long the old association may go on after this end closed its connections, in nanoseconds (see the module).
pub(super) fn hold_ns(keep_alive_ms: u32, traffic_based: bool, command_quiesce_ms: u16, quiesce_ns: u64) -> u64 {
    let periods = if traffic_based { 3 } else { 2 };
    let quiesce_ns = match command_quiesce_ms {
        0 => quiesce_ns,
        reported => u64::from(reported) * 1_000_000,
    };
    u64::from(keep_alive_ms) * 1_000_000 * periods + quiesce_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect(start: u64, end: u64, sequence: u64, association: u64) -> Suspect {
        Suspect { start, end, owner: (1, sequence), association, newest: 0 }
    }

    #[test]
    fn only_writes_that_touch_suspect_blocks_wait() {
        let mut fence = Fence::default();
        fence.add([suspect(10, 20, 1, 1)]);
        for (start, end, held) in [(0, 10, false), (20, 30, false), (9, 11, true), (19, 20, true), (0, 100, true)] {
            assert_eq!(fence.holds(start, end, None), held, "{start}..{end}");
        }
    }

    #[test]
    fn a_replay_passes_its_own_suspicion_but_not_anothers() {
        let mut fence = Fence::default();
        fence.add([suspect(10, 20, 1, 1)]);
        assert!(!fence.holds(10, 20, Some((1, 1))));
        fence.add([suspect(15, 25, 2, 1)]);
        assert!(fence.holds(10, 20, Some((1, 1))));
    }

    #[test]
    fn a_replay_waits_for_the_end_of_what_was_sent_beside_it() {
        let mut fence = Fence::default();
        let (lost, beside) = (fence.begin(), fence.begin());
        fence.add([suspect(10, 20, 1, lost)]);
        fence.end(lost);
        assert!(fence.holds(10, 20, Some((1, 1))), "an overlapping write may be under way on the other path");
        let later = fence.begin();
        fence.end(beside);
        assert!(!fence.holds(10, 20, Some((1, 1))), "what began later was held back");
        fence.add([suspect(10, 20, 1, later)]);
        assert!(fence.holds(10, 20, Some((1, 1))), "lost again");
        fence.end(later);
        assert!(!fence.holds(10, 20, Some((1, 1))) && fence.holds(10, 20, Some((1, 2))));
    }

    #[test]
    fn each_association_is_lifted_by_its_own_fence() {
        let mut fence = Fence::default();
        fence.add([suspect(0, 1, 1, 1), suspect(0, 1, 1, 2), suspect(0, 1, 1, 2)]);
        fence.lift(1);
        assert!(fence.holds(0, 1, None));
        fence.lift(2);
        assert!(fence.is_empty());
    }

    #[test]
    fn too_many_ranges_make_everything_suspect_until_the_last_fence() {
        for order in [[0, 1], [1, 0]] {
            let mut fence = Fence::default();
            fence.add((0..=SUSPECTS_MAX as u64).map(|index| suspect(index * 2, index * 2 + 1, index, index / 4000)));
            assert!(fence.holds(1, 2, None) && fence.holds(1 << 40, 1 << 41, Some((1, 0))));
            fence.lift(order[0]);
            assert!(fence.holds(1, 2, None));
            fence.lift(order[1]);
            assert!(fence.is_empty());
        }
    }

    #[test]
    fn a_board_has_another_version_after_each_change() {
        let board = Board::default();
        let before = board.version();
        board.add(Vec::new());
        assert_eq!((board.version(), board.read().1), (before, None));
        board.add(vec![suspect(0, 1, 1, 7)]);
        assert!(board.suspects(7) && !board.suspects(8));
        let (version, fence) = board.read();
        assert!(version != before && fence.is_some_and(|fence| fence.holds(0, 1, None)));
        board.lift(7);
        assert!(board.version() != version && board.read().1.is_none());
    }

    #[test]
    fn the_holding_time_counts_late_keep_alives_and_quiescing() {
        assert_eq!(hold_ns(5000, false, 0, 1_000_000_000), 11_000_000_000);
        assert_eq!(hold_ns(5000, true, 200, 1_000_000_000), 15_200_000_000);
    }
}
