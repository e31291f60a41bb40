//! The sleep gate: how a reactor goes to sleep without losing a wake-up.
//!
//! ```text
//! sleeper: sleeping = true; fence; look for work again; none -> block      (prepare_sleep, then the driver's wait)
//! sender:  publish work;    fence; sleeping? -> swap to false and wake it  (notify)
//! ```
//! The two fences order "publish" before "read sleeping" and "set sleeping" before "look again", so at least one side
//! sees the other (store-buffering litmus test). `tests/loom_gate.rs` compiles this very file over
//! loom's atomics (hence `gate_atomics`) and explores every interleaving.

use crate::gate_atomics::{AtomicBool, Ordering, fence};

/// Whether a reactor is, or is about to be, asleep.
pub struct SleepGate {
    sleeping: AtomicBool,
}

impl SleepGate {
    /// An open gate: the reactor is awake.
    pub fn new() -> Self {
        SleepGate { sleeping: AtomicBool::new(false) }
    }

    /// Called by the sleeper before its last look for work.
    pub fn prepare_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Called by the sleeper when it is awake again, or found work in its last look.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Whether the sleeper was seen asleep: then a sender [tells](Self::notify) it at once. Otherwise it may have gone to sleep unseen,
    /// and has to be told all the same, which costs more and may wait for other work.
    #[inline]
    pub fn seems_asleep(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    /// Called by a sender after it has published work; true when the sleeper must be woken by this sender.
    #[must_use]
    pub fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel)
    }
}

impl Default for SleepGate {
    fn default() -> Self {
        SleepGate::new()
    }
}
