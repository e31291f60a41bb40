//! Delays every operation by a fixed time and a random one, per class, before passing it on.

use crate::device::{BlockDevice, Channel, DeviceInfo};
use crate::filter::{Filter, Policy};
use crate::hold::{Hold, Pace};
use crate::io::{Io, Op};
use base::Rng;
use reactor::Reactor;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// How long one class of operations is held up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// Always, ns.
    pub fixed_ns: u64,
    /// At most so much more, uniformly distributed, ns.
    pub jitter_ns: u64,
}

/// Delays of all classes; can be changed at run time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Reads, compares and verifies.
    pub read: Delay,
    /// Everything that changes blocks.
    pub write: Delay,
    /// Flushes.
    pub flush: Delay,
}

/// See the module.
pub type DelayDevice = Filter<DelayPolicy>;

/// The delays of a [`DelayDevice`].
pub struct DelayPolicy {
    /// Fixed and jitter of read, write, flush.
    ns: [[AtomicU64; 2]; 3],
    changes: AtomicU64,
    seed: u64,
}

impl DelayDevice {
    /// Delays the operations of `child`; `seed` fixes the jitter.
    pub fn new(name: &str, child: Arc<dyn BlockDevice>, delays: Delays, seed: u64) -> DelayDevice {
        let policy = Arc::new(DelayPolicy { ns: Default::default(), changes: AtomicU64::new(0), seed });
        let device = DelayDevice { name: name.to_string(), child, policy };
        device.set(delays);
        device
    }

    /// Changes the delays; operations that are being held up follow within [`HOLD_LOOK_NS`](crate::HOLD_LOOK_NS).
    pub fn set(&self, delays: Delays) {
        for (cells, delay) in self.policy.ns.iter().zip([delays.read, delays.write, delays.flush]) {
            cells[0].store(delay.fixed_ns, Relaxed);
            cells[1].store(delay.jitter_ns, Relaxed);
        }
        self.policy.changes.fetch_add(1, Release);
    }
}

impl Policy for DelayPolicy {
    const KIND: &'static str = "delay";

    fn channel(self: &Arc<Self>, child: Rc<dyn Channel>, _: DeviceInfo, reactor: &Rc<Reactor>) -> Rc<dyn Channel> {
        let rng = RefCell::new(Rng::new(self.seed ^ (reactor.index() as u64) << 32));
        Rc::new(Hold::new(child, reactor, DelayPace { policy: self.clone(), rng }))
    }
}

struct DelayPace {
    policy: Arc<DelayPolicy>,
    rng: RefCell<Rng>,
}

impl Pace for DelayPace {
    fn changes(&self) -> u64 {
        self.policy.changes.load(Acquire)
    }

    fn due_ns(&self, io: &Io, came_ns: u64, _: u64) -> u64 {
        let class = match io.op {
            Op::Flush => 2,
            op if op.modifies() => 1,
            _ => 0,
        };
        let (fixed, jitter) = (self.policy.ns[class][0].load(Relaxed), self.policy.ns[class][1].load(Relaxed));
        let random = if jitter == 0 { 0 } else { self.rng.borrow_mut().below(jitter.saturating_add(1)) };
        came_ns.saturating_add(fixed).saturating_add(random)
    }
}
