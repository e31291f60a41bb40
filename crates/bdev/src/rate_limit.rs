//! Limits operations and bytes per second, over all reactors together, by the generic cell rate algorithm.
//!
//! Each limit is one number: the time at which the next operation would be due if all came evenly. An operation moves it
//! on by its cost and waits until that is no further ahead than the burst. So operations are served in the order in which
//! they arrive, whatever their reactor, and a single atomic exchange is all they share.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::hold::Hold;
use crate::io::{Done, Io, Op};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
pub struct RateLimitDevice {
    name: String,
    child: Arc<dyn BlockDevice>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
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

impl RateLimitDevice {
    /// `child`, no faster than `limits`.
    pub fn new(name: &str, child: Arc<dyn BlockDevice>, limits: Limits) -> RateLimitDevice {
        let device = RateLimitDevice { name: name.to_string(), child, shared: Arc::default() };
        device.set(limits);
        device
    }

    /// Changes the limits for operations submitted from now on.
    pub fn set(&self, limits: Limits) {
        self.shared.iops.store(limits.iops, Relaxed);
        self.shared.bytes_per_second.store(limits.bytes_per_second, Relaxed);
        self.shared.burst_ns.store(limits.burst_ns, Relaxed);
        self.shared.io_due_ns.store(0, Relaxed);
        self.shared.bytes_due_ns.store(0, Relaxed);
    }

    /// The limits now.
    pub fn limits(&self) -> Limits {
        Limits {
            iops: self.shared.iops.load(Relaxed),
            bytes_per_second: self.shared.bytes_per_second.load(Relaxed),
            burst_ns: self.shared.burst_ns.load(Relaxed),
        }
    }
}

impl BlockDevice for RateLimitDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "rate-limit"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(RateLimitChannel {
            hold: Hold::new(self.child.open_channel(reactor)?, reactor),
            shared: self.shared.clone(),
            reactor: reactor.clone(),
            block_size: self.child.info().block_size as u64,
        }))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.child.clone()]
    }

    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        self.child.resize(reactor, blocks)
    }

    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        self.child.refresh(reactor)
    }
}

struct RateLimitChannel {
    hold: Hold,
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    block_size: u64,
}

impl RateLimitChannel {
    fn pause_ns(&self, io: &Io) -> u64 {
        let shared = &self.shared;
        let (iops, bandwidth) = (shared.iops.load(Relaxed), shared.bytes_per_second.load(Relaxed));
        // A flush makes earlier writes durable; holding it up would only delay what was paid for.
        if (iops == 0 && bandwidth == 0) || io.op == Op::Flush {
            return 0;
        }
        let (now, burst) = (self.reactor.now_ns(), shared.burst_ns.load(Relaxed));
        let mut pause = 0;
        if iops > 0 {
            pause = reserve(&shared.io_due_ns, cost_ns(1, iops), now, burst);
        }
        let moves_data = !matches!(io.op, Op::WriteZeroes | Op::Unmap);
        if bandwidth > 0 && moves_data {
            let bytes = io.nblocks as u64 * self.block_size;
            pause = pause.max(reserve(&shared.bytes_due_ns, cost_ns(bytes, bandwidth), now, burst));
        }
        pause
    }
}

impl Channel for RateLimitChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let pause = self.pause_ns(&io);
        self.hold.submit(io, pause)
    }

    fn abort(&self, tag: u64) {
        self.hold.abort(tag);
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
