//! Counts what is written through a channel of which little is asked: superblocks, the catalog, what opening a log writes. The
//! paths of data, map pages and records count for themselves.

use bdev::{Channel, Done, Io, Op};
use reactor::IoFuture;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes that were written.
pub(crate) type Meter = Rc<Cell<u64>>;

/// See the module.
pub(crate) struct Metered {
    channel: Rc<dyn Channel>,
    block_size: u32,
    written: Meter,
}

impl Metered {
    /// A channel of a device with blocks of so many bytes, counted in `written`.
    pub(crate) fn over(channel: Rc<dyn Channel>, block_size: u32, written: &Meter) -> Rc<dyn Channel> {
        Rc::new(Metered { channel, block_size, written: written.clone() })
    }

    fn count(&self, done: Done) -> Done {
        if done.io.op == Op::Write && done.status.is_ok() {
            self.written.set(self.written.get() + u64::from(done.io.nblocks) * u64::from(self.block_size));
        }
        done
    }
}

impl Channel for Metered {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        match self.channel.submit(io).try_ready() {
            Ok(done) => IoFuture::ready(self.count(done)),
            Err(future) => IoFuture::new(async move { self.count(future.await) }),
        }
    }

    fn writes_at_once(&self) -> bool {
        self.channel.writes_at_once()
    }

    fn abort(&self, tag: u64) {
        self.channel.abort(tag);
    }
}
