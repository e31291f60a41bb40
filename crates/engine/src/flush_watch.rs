//! A device of an open pool, whose failed flushes everybody hears of who writes to it.
//!
//! What a failed flush covered may be lost, whoever asked for the flush, and the next one succeeds all the same. So a flush on
//! a channel fails, once, when another channel's has failed since this one flushed last: its user then does what has to be
//! done after a failed flush.

use crate::log_device::LogDevice;
use crate::pool::PoolDevices;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, FlushEar, FlushLine, Io, Op, Status};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;

/// See the module.
pub(crate) struct FlushWatch {
    below: Arc<dyn BlockDevice>,
    line: Arc<FlushLine>,
}

impl FlushWatch {
    /// Watches over a device.
    pub(crate) fn over(below: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        Arc::new(FlushWatch { below: below.clone(), line: Arc::default() })
    }
}

impl PoolDevices {
    /// The same, watched over.
    pub(crate) fn watched(&self) -> PoolDevices {
        let log = match &self.log {
            LogDevice::Block(device) => LogDevice::Block(FlushWatch::over(device)),
            mapped => mapped.clone(),
        };
        PoolDevices { log, capacity: FlushWatch::over(&self.capacity) }
    }
}

impl BlockDevice for FlushWatch {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn kind(&self) -> &'static str {
        self.below.kind()
    }

    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let below = self.below.open_channel(reactor)?;
        Ok(Rc::new(Watched { below, ear: FlushEar::new(&self.line), reactor: reactor.clone() }))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.below.clone()]
    }

    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        Some((0, lba, u64::MAX))
    }
}

struct Watched {
    below: Rc<dyn Channel>,
    ear: FlushEar,
    reactor: Rc<Reactor>,
}

impl Watched {
    async fn flush(&self, io: Io) -> Done {
        let (below, flush) = (self.below.clone(), Io { tag: io.tag, ..Io::flush() });
        let runs = async move { below.submit(flush).await.status.check() };
        io.done(self.ear.flush(&self.reactor, runs).await.err().unwrap_or(Status::Ok))
    }
}

impl Channel for Watched {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        match io.op {
            Op::Flush => IoFuture::new(self.flush(io)),
            _ => self.below.submit(io),
        }
    }

    fn abort(&self, tag: u64) {
        self.below.abort(tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bdev::{ErrorDevice, ErrorRule, Fault, MemDevice, When};
    use reactor::ReactorConfig;
    use reactor::linux::LinuxDriver;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    fn flush(reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>) -> Status {
        let channel = channel.clone();
        let mut ended = reactor.spawn_join(async move { channel.submit(Io::flush()).await.status });
        while !ended.is_finished() {
            reactor.turn();
        }
        match Pin::new(&mut ended).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(status) => status,
            Poll::Pending => unreachable!("it is finished"),
        }
    }

    #[test]
    fn a_failed_flush_is_told_once_on_every_channel() {
        let driver = LinuxDriver::new().expect("io_uring is available");
        let reactor = Reactor::new(0, Rc::new(driver), ReactorConfig::default());
        let memory = MemDevice::new("memory", 4096, 8, 8).expect("memory");
        let second =
            ErrorRule { when: When::Nth(2), ..ErrorRule::always(&[Op::Flush], Fault::Fail(Status::WriteError)) };
        let failing = ErrorDevice::new("failing", Arc::new(memory), &[second], 1).expect("rules");
        let device = FlushWatch::over(&(Arc::new(failing) as Arc<dyn BlockDevice>));
        let [one, other] = [(); 2].map(|()| device.open_channel(&reactor).expect("a channel"));
        assert_eq!(flush(&reactor, &one), Status::Ok);
        assert_eq!(flush(&reactor, &one), Status::WriteError);
        assert_eq!(flush(&reactor, &one), Status::Ok, "it knows");
        let later = device.open_channel(&reactor).expect("a channel");
        assert_eq!(flush(&reactor, &other), Status::WriteError, "what it wrote may be lost, too");
        assert_eq!(flush(&reactor, &other), Status::Ok);
        assert_eq!(flush(&reactor, &later), Status::Ok, "it had nothing to lose");
    }
}
