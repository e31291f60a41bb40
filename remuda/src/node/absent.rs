//! Stands for a volume whose pool is not open: hosts find it where it was, and hear "not ready" until it is back.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Status};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;

/// See the module.
pub struct AbsentVolume {
    name: String,
    info: DeviceInfo,
}

impl AbsentVolume {
    /// As hosts know it.
    pub fn new(name: &str, block_size: u32, blocks: u64) -> AbsentVolume {
        AbsentVolume { name: name.to_string(), info: DeviceInfo::basic(block_size, blocks) }
    }
}

impl BlockDevice for AbsentVolume {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "absent"
    }

    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn open_channel(&self, _: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(AbsentChannel))
    }
}

struct AbsentChannel;

impl Channel for AbsentChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        IoFuture::ready(io.done(Status::Gone))
    }
}
