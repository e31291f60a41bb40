//! Locks on block ranges of one device, for operations that take several steps: shared by any number, or exclusive.
//!
//! Works across reactors: a device has one, all its channels use it. The table is cut into shards by address, each
//! behind a mutex that is held for a few instructions and never across an await; waiting is asynchronous. Within a shard
//! locks are granted in order of arrival, so nobody starves. Shards are taken in ascending order, so nobody deadlocks.

use smallvec::SmallVec;
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

const SHARDS: u64 = 64;

/// See the module.
pub(crate) struct RangeLock {
    shards: Box<[Mutex<Shard>]>,
    shard_blocks: u64,
}

#[derive(Default)]
struct Shard {
    /// In order of arrival.
    entries: Vec<Entry>,
    next_id: u64,
}

struct Entry {
    id: u64,
    start: u64,
    end: u64,
    exclusive: bool,
    granted: bool,
    waker: Option<Waker>,
}

impl Entry {
    fn conflicts(&self, other: &Entry) -> bool {
        (self.exclusive || other.exclusive) && self.start < other.end && other.start < self.end
    }
}

impl RangeLock {
    /// For a device whose operations are mostly much smaller than `shard_blocks`.
    pub(crate) fn new(shard_blocks: u64) -> RangeLock {
        RangeLock { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), shard_blocks: shard_blocks.max(1) }
    }

    /// Waits until `blocks` blocks from `start` are held; dropping the guard (or this future) lets go.
    pub(crate) async fn lock(&self, start: u64, blocks: u64, exclusive: bool) -> RangeGuard<'_> {
        let mut guard = RangeGuard { lock: self, held: SmallVec::new() };
        let (first, last) = (start / self.shard_blocks, (start + blocks.max(1) - 1) / self.shard_blocks);
        let (low, high) = (first % SHARDS, last % SHARDS);
        let all = last - first >= SHARDS - 1;
        for shard in 0..SHARDS {
            let touched =
                all || if low <= high { low <= shard && shard <= high } else { shard <= high || low <= shard };
            if touched {
                let (id, granted) = self.enter(shard, start, start + blocks, exclusive);
                guard.held.push((shard, id));
                if !granted {
                    std::future::poll_fn(|cx| self.poll_granted(shard, id, cx.waker())).await;
                }
            }
        }
        guard
    }

    /// As [`lock`](Self::lock) where that would not wait; `None` where it would, and for ranges of several shards.
    #[inline]
    pub(crate) fn try_lock(&self, start: u64, blocks: u64, exclusive: bool) -> Option<RangeGuard<'_>> {
        let first = start / self.shard_blocks;
        if first != (start + blocks.max(1) - 1) / self.shard_blocks {
            return None;
        }
        let (index, end) = (first % SHARDS, start + blocks);
        let mut shard = self.shard(index);
        let id = shard.next_id;
        let entry = Entry { id, start, end, exclusive, granted: true, waker: None };
        if shard.entries.iter().any(|earlier| earlier.conflicts(&entry)) {
            return None;
        }
        shard.next_id += 1;
        shard.entries.push(entry);
        Some(RangeGuard { lock: self, held: SmallVec::from_iter([(index, id)]) })
    }

    fn shard(&self, index: u64) -> MutexGuard<'_, Shard> {
        self.shards[index as usize].lock().expect("nothing panics while holding a shard")
    }

    fn enter(&self, shard: u64, start: u64, end: u64, exclusive: bool) -> (u64, bool) {
        let mut shard = self.shard(shard);
        let id = shard.next_id;
        shard.next_id += 1;
        let mut entry = Entry { id, start, end, exclusive, granted: false, waker: None };
        entry.granted = !shard.entries.iter().any(|earlier| earlier.conflicts(&entry));
        let granted = entry.granted;
        shard.entries.push(entry);
        (id, granted)
    }

    fn poll_granted(&self, shard: u64, id: u64, waker: &Waker) -> Poll<()> {
        let mut shard = self.shard(shard);
        let entry = shard.entries.iter_mut().find(|entry| entry.id == id).expect("an entry stays until its guard goes");
        if entry.granted {
            return Poll::Ready(());
        }
        entry.waker = Some(waker.clone());
        Poll::Pending
    }

    fn leave(&self, shard: u64, id: u64) {
        let mut wakers: SmallVec<[Waker; 4]> = SmallVec::new();
        let mut shard = self.shard(shard);
        shard.entries.retain(|entry| entry.id != id);
        for index in 0..shard.entries.len() {
            let (earlier, rest) = shard.entries.split_at_mut(index);
            let entry = &mut rest[0];
            if !entry.granted && !earlier.iter().any(|other| other.conflicts(entry)) {
                entry.granted = true;
                wakers.extend(entry.waker.take());
            }
        }
        drop(shard);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Held ranges; let go on drop.
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    held: SmallVec<[(u64, u64); 2]>,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        for (shard, id) in self.held.drain(..) {
            self.lock.leave(shard, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::Context;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_lock_that_would_wait_is_not_tried_and_one_that_was_is_let_go() {
        let lock = RangeLock::new(16);
        let first = lock.try_lock(4, 4, true).unwrap();
        assert!(lock.try_lock(6, 1, false).is_none() && lock.try_lock(8, 2, true).is_some());
        assert!(lock.try_lock(14, 4, false).is_none(), "of two shards");
        let mut waiting = pin!(lock.lock(7, 2, false));
        assert!(poll(waiting.as_mut()).is_pending());
        assert!(lock.try_lock(8, 1, true).is_none(), "not past those who wait");
        drop(first);
        assert!(poll(waiting.as_mut()).is_ready() && lock.try_lock(8, 1, true).is_some());
    }

    #[test]
    fn overlapping_exclusive_ranges_wait_their_turn_and_others_do_not() {
        let lock = RangeLock::new(16);
        let Poll::Ready(first) = poll(pin!(lock.lock(10, 20, true))) else { panic!("nothing is held yet") };
        let mut second = pin!(lock.lock(29, 1, true));
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(pin!(lock.lock(30, 100, true))).is_ready());
        drop(first);
        assert!(poll(second.as_mut()).is_ready());
    }

    #[test]
    fn readers_share_but_do_not_overtake_a_waiting_writer() {
        let lock = RangeLock::new(16);
        let Poll::Ready(reader) = poll(pin!(lock.lock(0, 8, false))) else { panic!() };
        assert!(poll(pin!(lock.lock(0, 8, false))).is_ready());
        let mut writer = pin!(lock.lock(4, 1, true));
        assert!(poll(writer.as_mut()).is_pending());
        let mut late = pin!(lock.lock(4, 1, false));
        assert!(poll(late.as_mut()).is_pending());
        drop(reader);
        let Poll::Ready(held) = poll(writer.as_mut()) else { panic!() };
        assert!(poll(late.as_mut()).is_pending());
        drop(held);
        assert!(poll(late.as_mut()).is_ready());
    }

    #[test]
    fn a_waiter_that_goes_away_blocks_nobody() {
        let lock = RangeLock::new(16);
        let Poll::Ready(held) = poll(pin!(lock.lock(0, 8, false))) else { panic!() };
        {
            let mut gone = Box::pin(lock.lock(0, 8, true));
            assert!(poll(gone.as_mut()).is_pending());
        }
        assert!(poll(pin!(lock.lock(0, 8, false))).is_ready());
        drop(held);
        assert!(poll(pin!(lock.lock(0, 1 << 40, true))).is_ready());
    }
}
