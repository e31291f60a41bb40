//! Counters of a reactor: written by its thread alone, read by any.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Where a reactor's time went.
#[derive(Default)]
pub struct ReactorStats {
    turns: AtomicU64,
    busy_ns: AtomicU64,
    spin_ns: AtomicU64,
    sleep_ns: AtomicU64,
    sleeps: AtomicU64,
    worked: AtomicBool,
}

/// A copy of a reactor's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorCounters {
    /// Turns taken.
    pub turns: u64,
    /// Time in turns that found work, ns.
    pub busy_ns: u64,
    /// Time in turns that found none, ns.
    pub spin_ns: u64,
    /// Time asleep, ns.
    pub sleep_ns: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
}

fn add(cell: &AtomicU64, by: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
}

impl ReactorStats {
    pub(crate) fn turn(&self, work: usize) {
        add(&self.turns, 1);
        self.worked.store(work > 0, Relaxed);
    }

    pub(crate) fn read_turns(&self) -> u64 {
        self.turns.load(Relaxed)
    }

    pub(crate) fn last_turn_worked(&self) -> bool {
        self.worked.load(Relaxed)
    }

    pub(crate) fn spent(&self, ns: u64, busy: bool) {
        add(if busy { &self.busy_ns } else { &self.spin_ns }, ns);
    }

    pub(crate) fn slept(&self, ns: u64) {
        add(&self.sleep_ns, ns);
        add(&self.sleeps, 1);
    }

    /// The counters now.
    pub fn read(&self) -> ReactorCounters {
        ReactorCounters {
            turns: self.turns.load(Relaxed),
            busy_ns: self.busy_ns.load(Relaxed),
            spin_ns: self.spin_ns.load(Relaxed),
            sleep_ns: self.sleep_ns.load(Relaxed),
            sleeps: self.sleeps.load(Relaxed),
        }
    }
}
