//! Admission of writes: as fast as the log takes them while it has room, as fast as destage frees it when it is filling.
//!
//! Between the soft limit and a full log a write needs credit, and destage gives credit for every byte that it settles:
//! four bytes for one at the soft limit, one for one halfway, a quarter when the log is full. So writers slow down gradually towards
//! the speed of the capacity device, where a limit without credit would let them run into a wall and stop; and the log comes to rest
//! somewhere between, with room on both sides for what comes and goes.

use bdev::Status;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Shares of the log, in 256ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// So much is kept: destage takes what is older. The more an extent has in the log when its turn comes, the fewer map pages are
    /// read and written for the same blocks.
    pub start: u64,
    /// From here on writes need credit.
    pub soft: u64,
}

/// Blocks in place: half of the log is for bursts, which a disk takes long for.
pub(crate) const IN_PLACE: Marks = Marks { start: 128, soft: 176 };
/// Blocks in place on [disks that seek](super::sweep): those that are idle make room for the times in which they are not.
pub(crate) const ON_DISKS: Marks = Marks { start: 96, soft: 176 };
/// Bands: what is overwritten in the log is neither destaged nor, as long as it is there, moved by the collector.
pub(crate) const IN_BANDS: Marks = Marks { start: 160, soft: 208 };

/// Most credit kept: a burst of so many bytes.
const CREDIT_MAX: u64 = 8 << 20;

/// How full the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) bytes_free: u64,
    pub(crate) bytes_total: u64,
    /// What user writes must leave.
    pub(crate) bytes_reserved: u64,
}

impl Fill {
    /// Used share in 256ths.
    pub(crate) fn share(&self) -> u64 {
        let used = self.bytes_total.saturating_sub(self.bytes_free);
        used * 256 / self.bytes_total.max(1)
    }
}

/// A write that waits for its turn.
struct Waiter {
    id: u64,
    bytes: u64,
    waker: Option<Waker>,
}

/// See the module.
pub(crate) struct Pace {
    pub(crate) marks: Marks,
    credit: Cell<u64>,
    /// In the order of their ids.
    waiting: RefCell<VecDeque<Waiter>>,
    next: Cell<u64>,
    /// Bytes of writes that need not wait any more and have not gone on yet.
    granted: Cell<u64>,
    /// Writes that had to wait.
    waits: Cell<u64>,
    /// Writes that have waited and for which there was room.
    lets: Cell<u64>,
    /// Ids of those that were refused and have not gone on yet, and why.
    refused: RefCell<BTreeMap<u64, Status>>,
}

impl Pace {
    /// Nobody waits, and there is no credit. Panics when the marks are not in order.
    pub(crate) fn new(marks: Marks) -> Pace {
        assert!(marks.start <= marks.soft && marks.soft < 256, "{marks:?} are no shares of a log");
        Pace {
            marks,
            credit: Cell::default(),
            waiting: RefCell::default(),
            next: Cell::default(),
            granted: Cell::default(),
            waits: Cell::default(),
            lets: Cell::default(),
            refused: RefCell::default(),
        }
    }

    /// Whether a write of `bytes` may be appended now; takes its credit.
    #[inline]
    pub(crate) fn admits(&self, bytes: u64, fill: Fill) -> bool {
        self.waiting.borrow().is_empty() && self.fits(bytes, fill)
    }

    /// Whether so many bytes more leave the reserve, and what has been granted.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u64, fill: Fill) -> bool {
        fill.bytes_free >= fill.bytes_reserved + self.granted.get() + bytes
    }

    #[inline]
    fn fits(&self, bytes: u64, fill: Fill) -> bool {
        // Larger than a small log can promise: its parts wait in the log.
        let bytes = bytes.min(fill.bytes_total / 4);
        if !self.has_room(bytes, fill) {
            return false;
        }
        if fill.share() < self.marks.soft {
            return true;
        }
        match self.credit.get().checked_sub(bytes.min(CREDIT_MAX)) {
            Some(rest) => {
                self.credit.set(rest);
                true
            }
            None => false,
        }
    }

    /// Waits for the turn of a write of `bytes`, and takes its credit. The log may have filled again when the caller goes
    /// on, by records that do not ask.
    /// It has its turn from this call on. Fails when it is [refused](Self::refuse).
    pub(crate) fn admit(&self, bytes: u64) -> impl Future<Output = Result<(), Status>> + '_ {
        self.waits.set(self.waits.get() + 1);
        let id = self.next.replace(self.next.get() + 1);
        self.waiting.borrow_mut().push_back(Waiter { id, bytes, waker: None });
        let leave = Leave { pace: self, id, bytes };
        async move {
            poll_fn(|cx| match self.find(id) {
                Some(index) => {
                    self.waiting.borrow_mut()[index].waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            })
            .await;
            let refused = self.refused.borrow().get(&id).copied();
            drop(leave);
            refused.map_or(Ok(()), Err)
        }
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.waiting.borrow().binary_search_by_key(&id, |waiter| waiter.id).ok()
    }

    /// Destage has settled `bytes`, or log space has been released.
    pub(crate) fn earned(&self, bytes: u64, fill: Fill) {
        let soft = self.marks.soft;
        let span = 256 - soft;
        let over = fill.share().clamp(soft, 255) - soft;
        // From 4 at the soft limit to 1 halfway, and a quarter at the end.
        let gain_64ths = match (2 * over).checked_sub(span) {
            None => 256 - 2 * over * 192 / span,
            Some(beyond) => 64 - beyond * 48 / span,
        };
        let credit = self.credit.get() + bytes * gain_64ths / 64;
        self.credit.set(credit.min(CREDIT_MAX));
        self.grant(fill);
    }

    /// Lets in everybody for whom there is room and credit, in order. All at once: were each to wait for the one before,
    /// writers that come back faster than that would queue for ever, with an empty log.
    fn grant(&self, fill: Fill) {
        loop {
            let first = self.waiting.borrow().front().map(|first| first.bytes);
            if first.is_none_or(|bytes| !self.fits(bytes, fill)) {
                return;
            }
            self.lets.set(self.lets.get() + 1);
            self.let_in_first();
        }
    }

    /// Lets in the first that waits, whatever room there is, unless somebody was let in who has not gone on yet.
    pub(crate) fn let_in_alone(&self) {
        if self.granted.get() == 0 {
            self.let_in_first();
        }
    }

    fn let_in_first(&self) {
        let Some(first) = self.waiting.borrow_mut().pop_front() else { return };
        self.granted.set(self.granted.get() + first.bytes);
        if let Some(waker) = first.waker {
            waker.wake();
        }
    }

    /// Everybody who waits fails.
    pub(crate) fn refuse(&self, status: Status) {
        let waiting = self.waiting.take();
        self.refused.borrow_mut().extend(waiting.iter().map(|waiter| (waiter.id, status)));
        waiting.into_iter().filter_map(|waiter| waiter.waker).for_each(Waker::wake);
    }

    /// Writes that have waited and for which there was room, so far.
    pub(crate) fn lets(&self) -> u64 {
        self.lets.get()
    }

    /// Writes that are waiting.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Writes that have had to wait so far.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.get()
    }
}

/// Ends a wait, or gives it up.
struct Leave<'a> {
    pace: &'a Pace,
    id: u64,
    bytes: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        match self.pace.find(self.id) {
            Some(index) => drop(self.pace.waiting.borrow_mut().remove(index)),
            None if self.pace.refused.borrow_mut().remove(&self.id).is_some() => {}
            None => self.pace.granted.set(self.pace.granted.get() - self.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(free: u64) -> Fill {
        Fill { bytes_free: free, bytes_total: 256 << 20, bytes_reserved: 8 << 20 }
    }

    #[test]
    fn credit_is_needed_above_the_soft_limit_only() {
        let pace = Pace::new(IN_PLACE);
        assert!(pace.admits(4096, fill(200 << 20)));
        assert!(!pace.admits(4096, fill(60 << 20)));
        pace.earned(1024, fill(80 << 20));
        assert!(pace.admits(4096, fill(60 << 20)), "four for one at the soft limit");
        assert!(!pace.admits(4096, fill(60 << 20)));
        pace.earned(1 << 20, fill(60 << 20));
        assert!(!pace.admits(4096, fill(8 << 20)), "the reserve is never given away");
    }

    #[test]
    fn the_fuller_the_log_the_less_credit() {
        let credit = |free: u64| {
            let pace = Pace::new(IN_PLACE);
            pace.earned(64 << 10, fill(free << 20));
            pace.credit.get() >> 10
        };
        assert_eq!([80, 60, 40, 20, 1].map(credit), [256, 160, 64, 40, 18]);
        assert!((1..80).all(|free| credit(free) <= credit(free + 1)), "it never rises");
    }

    #[test]
    fn room_lets_in_all_for_whom_it_suffices_in_order() {
        let pace = Pace::new(IN_PLACE);
        let mut cx = std::task::Context::from_waker(Waker::noop());
        let mut writes: Vec<_> = (0..3).map(|_| Box::pin(pace.admit(30 << 20))).collect();
        assert!(writes.iter_mut().all(|write| write.as_mut().poll(&mut cx).is_pending()));
        assert!(!pace.admits(4096, fill(200 << 20)), "nobody overtakes");
        pace.earned(0, fill(100 << 20));
        let polled: Vec<bool> = writes.iter_mut().map(|write| write.as_mut().poll(&mut cx).is_ready()).collect();
        assert_eq!((polled, pace.waiting()), (vec![true, true, true], 0));
        let mut given_up = Box::pin(pace.admit(4096));
        assert!(given_up.as_mut().poll(&mut cx).is_pending());
        drop(given_up);
        assert!(pace.admits(4096, fill(200 << 20)));
    }

    #[test]
    fn who_waits_can_be_refused_and_leaves_nothing_behind() {
        let pace = Pace::new(IN_PLACE);
        let mut cx = std::task::Context::from_waker(Waker::noop());
        let mut writes: Vec<_> = (0..3).map(|_| Box::pin(pace.admit(50 << 20))).collect();
        assert!(writes.iter_mut().all(|write| write.as_mut().poll(&mut cx).is_pending()));
        pace.earned(0, fill(100 << 20));
        pace.refuse(Status::WriteError);
        assert_eq!(writes[0].as_mut().poll(&mut cx), Poll::Ready(Ok(())), "it was let in before");
        assert_eq!(writes[1].as_mut().poll(&mut cx), Poll::Ready(Err(Status::WriteError)));
        drop(writes);
        assert_eq!((pace.waiting(), pace.granted.get(), pace.lets()), (0, 0, 1));
        assert!(pace.refused.borrow().is_empty() && pace.admits(4096, fill(200 << 20)));
    }

    #[test]
    fn what_was_granted_counts_until_it_is_used() {
        let pace = Pace::new(IN_PLACE);
        let mut cx = std::task::Context::from_waker(Waker::noop());
        let mut writes: Vec<_> = (0..2).map(|_| Box::pin(pace.admit(50 << 20))).collect();
        assert!(writes.iter_mut().all(|write| write.as_mut().poll(&mut cx).is_pending()));
        pace.earned(0, fill(100 << 20));
        assert_eq!(pace.waiting(), 1, "100 MiB less the reserve are not enough for both");
        assert!(writes[0].as_mut().poll(&mut cx).is_ready());
        drop(writes.remove(0));
        pace.earned(0, fill(100 << 20));
        assert!(writes[0].as_mut().poll(&mut cx).is_ready());
    }
}
