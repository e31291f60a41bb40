//! A device that acknowledges some writes and forgets them: what a mirror copies from leg to leg never arrives, as if the
//! mirror did not copy. For the mutations that prove the mirror's checkers.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Lba, Op, Status};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct Lossy {
    pub(crate) child: Arc<dyn BlockDevice>,
    pub(crate) loss: Loss,
}

/// Which writes are forgotten.
#[derive(Clone, Copy)]
pub(crate) struct Loss {
    /// Metadata lie before this block; they are kept.
    pub(crate) from: Lba,
    pub(crate) of: fn(&Io) -> bool,
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
        Ok(Rc::new(LossyChannel { child: self.child.open_channel(reactor)?, loss: self.loss }))
    }
}

struct LossyChannel {
    child: Rc<dyn Channel>,
    loss: Loss,
}

impl Channel for LossyChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if io.op == Op::Write && io.lba >= self.loss.from && (self.loss.of)(&io) {
            return IoFuture::ready(io.done(Status::Ok));
        }
        self.child.submit(io)
    }
}
