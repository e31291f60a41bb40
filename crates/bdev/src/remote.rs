//! A device served by one reactor for all: other reactors send it their operations and get them back, buffers and all.
//!
//! For devices that cannot have a channel on every core (one hardware queue, one file that must be written by one
//! thread). When that reactor stops, operations end as [`Status::Gone`]. Nothing is allocated per operation: the
//! operation travels inside the message, the answer inside another.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::{Done, Io, Status};
use reactor::{IoFuture, Reactor, ReactorHandle, SgList};
use std::rc::Rc;
use std::sync::Arc;

/// See the module.
pub struct RemoteDevice {
    child: Arc<dyn BlockDevice>,
    home: ReactorHandle,
    /// Under which number the home reactor keeps the child's channel.
    kept: u64,
}

/// As the home reactor keeps the child's channel.
type Kept = Rc<dyn Channel>;

impl RemoteDevice {
    /// Serves `child` on the calling reactor.
    pub fn new(home: &Rc<Reactor>, child: Arc<dyn BlockDevice>) -> Result<RemoteDevice, DeviceError> {
        let channel = child.open_channel(home)?;
        let kept = home.keep::<Kept>(Rc::new(channel));
        Ok(RemoteDevice { child, home: home.handle(), kept })
    }
}

impl BlockDevice for RemoteDevice {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        "remote-core"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let home = self.home.index();
        if reactor.index() == home {
            return self.child.open_channel(reactor);
        }
        if home >= reactor.group_size() {
            let reason = format!("reactor {} cannot reach reactor {home}: they are not in one group", reactor.index());
            return Err(DeviceError::Config { device: self.name().to_string(), reason });
        }
        Ok(Rc::new(RemoteChannel { reactor: reactor.clone(), home, kept: self.kept }))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.child.clone()]
    }

    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        Some((0, lba, u64::MAX))
    }

    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        self.child.resize(reactor, blocks)
    }

    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        self.child.refresh(reactor)
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        let kept = self.kept;
        self.home.run(move |reactor| reactor.release::<Kept>(kept));
    }
}

struct RemoteChannel {
    reactor: Rc<Reactor>,
    home: usize,
    kept: u64,
}

impl Channel for RemoteChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let (reactor, home, kept) = (self.reactor.clone(), self.home, self.kept);
        let Io { op, flags, stream, nblocks, lba, arg, tag, .. } = io;
        IoFuture::steps(&self.reactor, async move {
            let serve = move |there: Rc<Reactor>| async move {
                match there.kept::<Kept>(kept) {
                    Some(channel) => channel.submit(io).await,
                    None => io.done(Status::Gone),
                }
            };
            // The buffers are lost with the reactor that had them; their memory is not.
            let lost = Io { op, flags, stream, nblocks, lba, arg, tag, bufs: SgList::new() };
            reactor.try_call_on(home, serve).await.unwrap_or_else(|| lost.done(Status::Gone))
        })
    }

    fn abort(&self, tag: u64) {
        let kept = self.kept;
        self.reactor.post(self.home, move |there| {
            if let Some(channel) = there.kept::<Kept>(kept) {
                channel.abort(tag);
            }
        });
    }
}
