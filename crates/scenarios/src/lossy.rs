//! A device that acknowledges forced writes and forgets them: what a mirror copies from leg to leg before a read never
//! arrives, as if the mirror did not copy. For the mutation that proves the mirror's checker.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Flags, Io, Lba, Op, Status};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct Lossy {
    pub(crate) child: Arc<dyn BlockDevice>,
    /// Metadata lie before this block; they are kept.
    pub(crate) from: Lba,
}

impl BlockDevice for Lossy {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        "lossy"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(LossyChannel { child: self.child.open_channel(reactor)?, from: self.from }))
    }
}

struct LossyChannel {
    child: Rc<dyn Channel>,
    from: Lba,
}

impl Channel for LossyChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if io.op == Op::Write && io.flags.has(Flags::FUA) && io.lba >= self.from {
            return IoFuture::ready(io.done(Status::Ok));
        }
        self.child.submit(io)
    }
}
