//! How far giving up a log is, and a way to end it before its end.
//!
//! Whoever asks is on another thread than the reactor that does it. These are plain counters and a flag: nothing else is read
//! because of what they say, so they need neither a message nor an order.

use crate::rebuild::Failed;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// What is shared with whoever watches; see the module. Each attempt has one of its own.
#[derive(Debug, Default)]
pub struct ForgetProgress {
    shards_done: AtomicU64,
    shards: AtomicU64,
    bands_read: AtomicU64,
    bands: AtomicU64,
    stop: AtomicBool,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgetSteps {
    /// Shards whose losses are noted.
    pub shards_done: u64,
    /// All of them; 0 until they have been read.
    pub shards: u64,
    /// Bands read: in a shaped pool they take the time.
    pub bands_read: u64,
    /// All that are to be read, each as often as it is; 0 in other pools.
    pub bands: u64,
}

impl ForgetProgress {
    /// How far it is.
    pub fn steps(&self) -> ForgetSteps {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        ForgetSteps {
            shards_done: of(&self.shards_done),
            shards: of(&self.shards),
            bands_read: of(&self.bands_read),
            bands: of(&self.bands),
        }
    }

    /// Has it end as soon as it can. The pool is as any interruption leaves it: it belongs to its old log, though of a hot pool
    /// part of what is to be lost may be lost already, or to the new one when that was already so.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    pub(crate) fn go_on(&self) -> Result<(), Failed> {
        if self.stop.load(Relaxed) { Err(Failed::Stopped) } else { Ok(()) }
    }

    /// What is to be done.
    pub(super) fn begin(&self, shards: u64, bands: u64) {
        self.shards.store(shards, Relaxed);
        self.bands.store(bands, Relaxed);
    }

    pub(super) fn shard_done(&self) {
        self.shards_done.fetch_add(1, Relaxed);
    }

    pub(crate) fn band_read(&self) {
        self.bands_read.fetch_add(1, Relaxed);
    }
}
