//! Work that nobody waits for, such as removing what deleted snapshots had, leaves most of the time of core and devices to
//! users while there are any. It goes on at full speed when they are silent, when somebody waits for its end, and when there is
//! no room but what it makes.

use super::Shard;
use reactor::Reactor;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Work that takes less is not worth a pause.
const STINT_NS: u64 = 200_000;
/// A pause is so many times as long as the work before it.
const PAUSE_SHARE: u64 = 4;
/// And at most so long.
const PAUSE_MAX_NS: u64 = 50_000_000;

/// How many wait for the end of background work; known to all shards of a pool.
#[derive(Clone, Default)]
pub(crate) struct Hurry(Arc<AtomicU32>);

impl Hurry {
    /// Somebody waits, until this is dropped.
    pub(crate) fn wait(&self) -> Waiting {
        self.0.fetch_add(1, Ordering::Relaxed);
        Waiting(self.clone())
    }

    /// Somebody waits, to the end of the pool.
    pub(crate) fn wait_for_good(&self) {
        std::mem::forget(self.wait());
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// See [`Hurry::wait`].
pub(crate) struct Waiting(Hurry);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long work that nobody waits for pauses when it has taken so long and others are at it.
pub(crate) fn pause_ns(worked_ns: u64) -> u64 {
    (worked_ns * PAUSE_SHARE).min(PAUSE_MAX_NS)
}

/// Background work of a shard, which gives way between its parts.
pub(super) struct Slack {
    reactor: Rc<Reactor>,
    hurry: Hurry,
    began_ns: Cell<u64>,
    /// What users had read and written then.
    moved: Cell<u64>,
}

impl Slack {
    pub(super) fn new(shard: &Shard, hurry: Hurry) -> Slack {
        let reactor = shard.reactor.clone();
        let began_ns = Cell::new(reactor.clock_ns());
        Slack { reactor, hurry, began_ns, moved: Cell::new(shard.moved_by_users()) }
    }

    /// Between two parts of the work.
    pub(super) async fn give_way(&self, shard: &Shard) {
        let worked_ns = self.reactor.clock_ns().saturating_sub(self.began_ns.get());
        if worked_ns < STINT_NS {
            return;
        }
        let moved = shard.moved_by_users();
        let is_alone = self.moved.get() == moved;
        if is_alone || self.hurry.is_on() || shard.full.is_full() || shard.is_stopping() {
            self.reactor.yield_now().await;
        } else {
            self.reactor.sleep_ns(pause_ns(worked_ns)).await;
        }
        self.began_ns.set(self.reactor.clock_ns());
        self.moved.set(moved);
    }
}

impl Shard {
    pub(super) fn moved_by_users(&self) -> u64 {
        self.counters.user_write_bytes.get().wrapping_add(self.counters.user_read_bytes.get())
    }
}
