//! Delays every operation by a fixed time and a random one, per class, before passing it on.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::hold::Hold;
use crate::io::{Done, Io, Op};
use base::Rng;
use reactor::{IoFuture, Reactor};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
pub struct DelayDevice {
    name: String,
    child: Arc<dyn BlockDevice>,
    shared: Arc<Shared>,
    seed: u64,
}

#[derive(Default)]
struct Shared {
    /// Fixed and jitter of read, write, flush.
    ns: [[AtomicU64; 2]; 3],
}

impl DelayDevice {
    /// Delays the operations of `child`; `seed` fixes the jitter.
    pub fn new(name: &str, child: Arc<dyn BlockDevice>, delays: Delays, seed: u64) -> DelayDevice {
        let device = DelayDevice { name: name.to_string(), child, shared: Arc::default(), seed };
        device.set(delays);
        device
    }

    /// Changes the delays of operations submitted from now on.
    pub fn set(&self, delays: Delays) {
        for (cells, delay) in self.shared.ns.iter().zip([delays.read, delays.write, delays.flush]) {
            cells[0].store(delay.fixed_ns, Relaxed);
            cells[1].store(delay.jitter_ns, Relaxed);
        }
    }
}

impl BlockDevice for DelayDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "delay"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(DelayChannel {
            hold: Hold::new(self.child.open_channel(reactor)?, reactor),
            shared: self.shared.clone(),
            rng: RefCell::new(Rng::new(self.seed ^ (reactor.index() as u64) << 32)),
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

struct DelayChannel {
    hold: Hold,
    shared: Arc<Shared>,
    rng: RefCell<Rng>,
}

impl Channel for DelayChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let class = match io.op {
            Op::Flush => 2,
            op if op.modifies() => 1,
            _ => 0,
        };
        let (fixed, jitter) = (self.shared.ns[class][0].load(Relaxed), self.shared.ns[class][1].load(Relaxed));
        let pause = if jitter == 0 { fixed } else { fixed + self.rng.borrow_mut().below(jitter + 1) };
        self.hold.submit(io, pause)
    }

    fn abort(&self, tag: u64) {
        self.hold.abort(tag);
    }
}
