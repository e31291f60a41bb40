//! Reads of zones: what is written is read below, what is behind that is zero, whatever lies there.

use crate::device::Channel;
use crate::io::{Done, Io, Lba, Status};
use crate::steps;
use reactor::Reactor;
use reactor::buf::{sg_append, sg_split_off, sg_zero};
use std::rc::Rc;

/// How far zones are written, and where that is.
pub(crate) struct Written<R, P> {
    pub(crate) zone_blocks: u64,
    pub(crate) block_size: u32,
    /// Most blocks of a read below.
    pub(crate) max_io_blocks: u32,
    /// Blocks of a zone, from its first on, that are read below.
    pub(crate) readable: R,
    /// The block below that a block of a zone is.
    pub(crate) place: P,
}

impl<R: Fn(usize) -> Result<u64, Status>, P: Fn(usize, u64) -> u64> Written<R, P> {
    /// Reads across zones and pointers.
    pub(crate) async fn read(&self, reactor: &Rc<Reactor>, below: &dyn Channel, mut io: Io) -> Done {
        if let Err(status) = steps::provide(reactor, &mut io, self.block_size).await {
            return io.done(status);
        }
        let mut rest = std::mem::take(&mut io.bufs);
        let (mut lba, mut status) = (io.lba.0, Status::Ok);
        while lba < io.end() && status.is_ok() {
            let (zone, at) = ((lba / self.zone_blocks) as usize, lba % self.zone_blocks);
            let written = match (self.readable)(zone) {
                Ok(written) => written,
                Err(error) => {
                    status = error;
                    break;
                }
            };
            let is_written = at < written;
            let end = if is_written { written } else { self.zone_blocks };
            let most = if is_written { u64::from(self.max_io_blocks) } else { u64::MAX };
            let count = (end - at).min(io.end() - lba).min(most);
            let tail = sg_split_off(&mut rest, count as usize * self.block_size as usize);
            let mut bufs = std::mem::replace(&mut rest, tail);
            if is_written {
                let place = Lba((self.place)(zone, at));
                let read = Io { tag: io.tag, ..Io::read(place, count as u32, bufs) };
                let done = below.submit(read).await;
                (status, bufs) = (done.status, done.io.bufs);
            } else {
                sg_zero(&mut bufs);
            }
            sg_append(&mut io.bufs, bufs);
            lba += count;
        }
        sg_append(&mut io.bufs, rest);
        io.done(status)
    }
}
