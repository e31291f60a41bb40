//! A volume as a block device: a contiguous window on its device, which can be moved never and resized any time.
//!
//! What concerns the whole of a device, a cryptographic erase, is done by a window that covers all of it and by no other.

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
        let (below, blocks) = (self.below.info(), self.blocks.load(Ordering::Relaxed));
        let ops = if blocks == below.blocks { below.ops } else { below.ops.without(Op::CryptoErase) };
        DeviceInfo { blocks, ops, ..below }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let below = self.below.open_channel(reactor)?;
        let (device, blocks) = (self.below.clone(), self.blocks.clone());
        Ok(Rc::new(WindowChannel { below, device, first: self.first, blocks }))
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
    device: Arc<dyn BlockDevice>,
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
        if io.op == Op::CryptoErase {
            // Elsewhere on the device there are, or will be, other volumes.
            return match blocks == self.device.info().blocks {
                true => self.below.submit(io),
                false => IoFuture::ready(io.done(Status::Unsupported)),
            };
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use bdev::{MemDevice, OpSet};

    /// A device that could be erased.
    struct Erasable(MemDevice);

    impl BlockDevice for Erasable {
        fn name(&self) -> &str {
            self.0.name()
        }

        fn kind(&self) -> &'static str {
            self.0.kind()
        }

        fn info(&self) -> DeviceInfo {
            let info = self.0.info();
            DeviceInfo { ops: info.ops.union(OpSet::of(&[Op::CryptoErase])), ..info }
        }

        fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
            self.0.open_channel(reactor)
        }
    }

    #[test]
    fn only_a_window_on_all_of_a_device_offers_to_erase_it() {
        let device: Arc<dyn BlockDevice> = Arc::new(Erasable(MemDevice::new("m", 512, 64, 64).unwrap()));
        for (first, blocks, offers) in [(0, 64, true), (0, 63, false), (1, 63, false), (32, 32, false)] {
            let window = Window::new("v", device.clone(), first, blocks);
            assert_eq!(window.info().ops.contains(Op::CryptoErase), offers, "{first}+{blocks}");
        }
    }
}
