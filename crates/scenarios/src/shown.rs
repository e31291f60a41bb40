//! A disk that shows only a part of itself, until it has grown.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that disks show of themselves.
pub(crate) type ShownBytes = Arc<AtomicU64>;

/// See the module.
pub(crate) struct Shown {
    pub(crate) child: Arc<dyn BlockDevice>,
    pub(crate) bytes: ShownBytes,
}

impl BlockDevice for Shown {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        "shown"
    }

    fn info(&self) -> DeviceInfo {
        let info = self.child.info();
        DeviceInfo { blocks: info.blocks.min(self.bytes.load(Relaxed) / info.block_size as u64), ..info }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        self.child.open_channel(reactor)
    }

    fn refresh<'a>(&'a self, _: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        IoFuture::ready(Ok(self.info()))
    }
}
