//! A volume as a block device: a contiguous window on its device, which can be moved never and resized any time.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Lba, Op, Status};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
pub struct Window {
    name: String,
    below: Arc<dyn BlockDevice>,
    first: u64,
    blocks: Arc<AtomicU64>,
}

impl Window {
    /// `blocks` blocks of `below` from `first` on.
    pub fn new(name: &str, below: Arc<dyn BlockDevice>, first: u64, blocks: u64) -> Window {
        Window { name: name.to_string(), below, first, blocks: Arc::new(AtomicU64::new(blocks)) }
    }
}

impl BlockDevice for Window {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "volume"
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { blocks: self.blocks.load(Ordering::Relaxed), ..self.below.info() }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let below = self.below.open_channel(reactor)?;
        Ok(Rc::new(WindowChannel { below, first: self.first, blocks: self.blocks.clone() }))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.below.clone()]
    }

    fn resize<'a>(&'a self, _: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        self.blocks.store(blocks, Ordering::Relaxed);
        IoFuture::ready(Ok(()))
    }
}

struct WindowChannel {
    below: Rc<dyn Channel>,
    first: u64,
    blocks: Arc<AtomicU64>,
}

impl WindowChannel {
    fn back(first: u64, mut done: Done) -> Done {
        done.io.lba.0 = done.io.lba.0.wrapping_sub(first);
        if done.io.op == Op::Copy {
            done.io.arg -= first;
        }
        done
    }
}

impl Channel for WindowChannel {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        if io.op == Op::Flush {
            return self.below.submit(io);
        }
        let blocks = self.blocks.load(Ordering::Relaxed);
        let inside = |first: u64| first <= blocks && io.nblocks as u64 <= blocks - first;
        if !inside(io.lba.0) || (io.op == Op::Copy && !inside(io.arg)) {
            return IoFuture::ready(io.done(Status::OutOfRange));
        }
        let first = self.first;
        io.lba = Lba(io.lba.0 + first);
        if io.op == Op::Copy {
            io.arg += first;
        }
        match self.below.submit(io).try_ready() {
            Ok(done) => IoFuture::ready(WindowChannel::back(first, done)),
            Err(below) => IoFuture::new(async move { WindowChannel::back(first, below.await) }),
        }
    }

    fn abort(&self, tag: u64) {
        self.below.abort(tag);
    }
}
