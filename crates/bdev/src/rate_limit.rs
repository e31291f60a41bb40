//! Limits operations and bytes per second, over all reactors together, by the generic cell rate algorithm.
//!
//! Each limit is one number: the time at which the next operation would be due if all came evenly. An operation moves it
//! on by its cost and waits until that is no further ahead than the burst. So operations are served in the order in which
//! they arrive, whatever their reactor, and a single atomic exchange is all they share.

use crate::device::{BlockDevice, Channel, DeviceInfo};
use crate::filter::{Filter, Policy};
use crate::hold::{Hold, Pace};
use crate::io::{Io, Op};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Limits; 0 is none. Can be changed at run time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Operations per second.
    pub iops: u64,
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// How much may be done at once after a pause, as time at the limit, ns.
    pub burst_ns: u64,
}

/// See the module.
pub type RateLimitDevice = Filter<RateLimitPolicy>;

/// Limits and how much of them is used up, shared by everything that is held to them together.
#[derive(Default)]
pub struct RateLimiter {
    changes: AtomicU64,
    iops: AtomicU64,
    bytes_per_second: AtomicU64,
    burst_ns: AtomicU64,
    /// When the next operation, and the next byte, would be due.
    io_due_ns: AtomicU64,
    bytes_due_ns: AtomicU64,
}

/// Moves `due` on by `cost_ns` and returns how long to wait.
fn reserve(due: &AtomicU64, cost_ns: u64, now_ns: u64, burst_ns: u64) -> u64 {
    let mut old = due.load(Relaxed);
    loop {
        let start = old.max(now_ns);
        match due.compare_exchange_weak(old, start.saturating_add(cost_ns), Relaxed, Relaxed) {
            Ok(_) => return start.saturating_sub(now_ns.saturating_add(burst_ns)),
            Err(other) => old = other,
        }
    }
}

fn cost_ns(amount: u64, per_second: u64) -> u64 {
    (amount as u128 * 1_000_000_000 / per_second as u128) as u64
}

impl RateLimiter {
    /// Changes the limits. What was used up is forgotten.
    pub fn set(&self, limits: Limits) {
        self.iops.store(limits.iops, Relaxed);
        self.bytes_per_second.store(limits.bytes_per_second, Relaxed);
        self.burst_ns.store(limits.burst_ns, Relaxed);
        self.io_due_ns.store(0, Relaxed);
        self.bytes_due_ns.store(0, Relaxed);
        self.changes.fetch_add(1, Release);
    }

    /// The limits now.
    pub fn limits(&self) -> Limits {
        Limits {
            iops: self.iops.load(Relaxed),
            bytes_per_second: self.bytes_per_second.load(Relaxed),
            burst_ns: self.burst_ns.load(Relaxed),
        }
    }

    /// Whether an operation that comes now would have to wait.
    pub fn is_used_up(&self, now_ns: u64) -> bool {
        let from_ns = now_ns.saturating_add(self.burst_ns.load(Relaxed));
        let waits = |limit: &AtomicU64, due_ns: &AtomicU64| limit.load(Relaxed) > 0 && due_ns.load(Relaxed) > from_ns;
        waits(&self.iops, &self.io_due_ns) || waits(&self.bytes_per_second, &self.bytes_due_ns)
    }

    /// Moves with every change of the limits.
    pub fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    /// Pays for an operation that moves `bytes`; how long the limits want it to wait, ns.
    #[inline]
    pub fn pay(&self, bytes: u64, now_ns: u64) -> u64 {
        let iops = self.iops.load(Relaxed);
        let pause = match iops {
            0 => 0,
            _ => reserve(&self.io_due_ns, cost_ns(1, iops), now_ns, self.burst_ns.load(Relaxed)),
        };
        pause.max(self.pay_bytes(bytes, now_ns))
    }

    /// As [`pay`](Self::pay), for bytes of an operation that has been paid for.
    #[inline]
    pub fn pay_bytes(&self, bytes: u64, now_ns: u64) -> u64 {
        let bandwidth = self.bytes_per_second.load(Relaxed);
        if bandwidth == 0 || bytes == 0 {
            return 0;
        }
        reserve(&self.bytes_due_ns, cost_ns(bytes, bandwidth), now_ns, self.burst_ns.load(Relaxed))
    }
}

/// The limits of a [`RateLimitDevice`].
#[derive(Default)]
pub struct RateLimitPolicy(RateLimiter);

impl RateLimitDevice {
    /// `child`, no faster than `limits`.
    pub fn new(name: &str, child: Arc<dyn BlockDevice>, limits: Limits) -> RateLimitDevice {
        let device = RateLimitDevice { name: name.to_string(), child, policy: Arc::default() };
        device.set(limits);
        device
    }

    /// Changes the limits; operations that are being held up follow within [`HOLD_LOOK_NS`](crate::HOLD_LOOK_NS).
    pub fn set(&self, limits: Limits) {
        self.policy.0.set(limits);
    }

    /// The limits now.
    pub fn limits(&self) -> Limits {
        self.policy.0.limits()
    }
}

impl Policy for RateLimitPolicy {
    const KIND: &'static str = "rate-limit";

    fn channel(self: &Arc<Self>, child: Rc<dyn Channel>, info: DeviceInfo, reactor: &Rc<Reactor>) -> Rc<dyn Channel> {
        let pace = RateLimitPace { policy: self.clone(), block_size: info.block_size as u64 };
        Rc::new(Hold::new(child, reactor, pace))
    }
}

struct RateLimitPace {
    policy: Arc<RateLimitPolicy>,
    block_size: u64,
}

impl Pace for RateLimitPace {
    fn changes(&self) -> u64 {
        self.policy.0.changes()
    }

    /// Pays for the operation. After a change everything that waits pays again, by the new limits and from now on.
    fn due_ns(&self, io: &Io, _: u64, now_ns: u64) -> u64 {
        // A flush makes earlier writes durable; holding it up would only delay what was paid for.
        if io.op == Op::Flush {
            return now_ns;
        }
        let moves_data = !matches!(io.op, Op::WriteZeroes | Op::Unmap | Op::WriteUncorrectable);
        let bytes = if moves_data { io.nblocks as u64 * self.block_size } else { 0 };
        now_ns.saturating_add(self.policy.0.pay(bytes, now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_operations_come_evenly() {
        let due = AtomicU64::new(0);
        let waits: Vec<u64> = (0..6).map(|_| reserve(&due, 100, 1000, 250)).collect();
        assert_eq!(waits, [0, 0, 0, 50, 150, 250]);
        // After a pause the burst is there again, and no more than it.
        assert_eq!((0..5).map(|_| reserve(&due, 100, 9000, 250)).collect::<Vec<_>>(), [0, 0, 0, 50, 150]);
    }
}
