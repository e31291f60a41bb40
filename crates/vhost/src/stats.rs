//! What a door counts. Each queue has counters of its own, written by its reactor alone and added up when read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one queue.
#[derive(Default)]
pub struct Counters {
    pub(crate) reads: Count,
    pub(crate) writes: Count,
    pub(crate) flushes: Count,
    pub(crate) discards: Count,
    pub(crate) other: Count,
    pub(crate) errors: Count,
    pub(crate) read_bytes: Count,
    pub(crate) write_bytes: Count,
    pub(crate) kicks: Count,
    pub(crate) calls: Count,
    pub(crate) stopped: Count,
    pub(crate) resubmitted: Count,
}

/// One counter with one writer.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, by: u64) {
        // One writer: no locked instruction needed.
        self.0.store(self.0.load(Relaxed).wrapping_add(by), Relaxed);
    }
}

/// What a door has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Reads that have ended.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and write zeroes.
    pub discards: u64,
    /// Get ID and what is unknown.
    pub other: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Bytes given to guests.
    pub read_bytes: u64,
    /// Bytes taken from guests.
    pub write_bytes: u64,
    /// Kicks by guests.
    pub kicks: u64,
    /// Calls of guests.
    pub calls: u64,
    /// Queues stopped because of what a guest wrote into them.
    pub stopped: u64,
    /// Requests that an earlier daemon, or connection, had left under way.
    pub resubmitted: u64,
}

impl Totals {
    /// Adds a queue's counters.
    pub(crate) fn add(&mut self, counters: &Counters) {
        let read = |count: &Count| count.0.load(Relaxed);
        self.reads += read(&counters.reads);
        self.writes += read(&counters.writes);
        self.flushes += read(&counters.flushes);
        self.discards += read(&counters.discards);
        self.other += read(&counters.other);
        self.errors += read(&counters.errors);
        self.read_bytes += read(&counters.read_bytes);
        self.write_bytes += read(&counters.write_bytes);
        self.kicks += read(&counters.kicks);
        self.calls += read(&counters.calls);
        self.stopped += read(&counters.stopped);
        self.resubmitted += read(&counters.resubmitted);
    }
}
