//! Reads and writes of zones, and the channel that takes them.

use super::Inner;
use super::states::Begin;
use crate::device::Channel;
use crate::io::{Done, Io, Lba, Op, Status};
use crate::split;
use crate::steps::{self, Medium};
use crate::zone_reads::Written;
use reactor::{IoFuture, Reactor};
use std::future::poll_fn;
use std::rc::Rc;

pub(super) struct ZonedDriveChannel(pub(super) Rc<Inner>);

impl Channel for ZonedDriveChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.0.shared.info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        if self.0.shared.options.read_only && io.op.modifies() {
            return IoFuture::ready(io.done(Status::ReadOnly));
        }
        match io.op {
            Op::Flush => self.0.blocks.submit(io),
            Op::Read if self.0.is_written(&io) => split::pass(&*self.0.blocks, self.0.shared.first + io.lba.0, io),
            Op::Read => {
                let inner = self.0.clone();
                IoFuture::steps(&self.0.reactor, async move { inner.transfer(io).await })
            }
            Op::Write | Op::ZoneAppend => {
                // Now, and not when somebody first waits: writes that were submitted in order are in order.
                let begun = match self.0.begin(&io) {
                    Ok(begun) => begun,
                    Err(status) => return IoFuture::ready(io.done(status)),
                };
                let inner = self.0.clone();
                IoFuture::steps(&self.0.reactor, async move { inner.write(io, begun).await })
            }
            _ => {
                let inner = self.0.clone();
                IoFuture::steps(&self.0.reactor, async move {
                    let mut io = io;
                    let status = steps::status_of(inner.perform(&mut io).await);
                    io.done(status)
                })
            }
        }
    }

    fn abort(&self, tag: u64) {
        self.0.blocks.abort(tag);
    }
}

/// A write that has taken its place in a zone. Dropped before its end, it has failed.
struct Writing {
    inner: Rc<Inner>,
    zone: usize,
    start: u64,
    end: u64,
    is_over: bool,
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_over {
            self.inner.with(|states| states.end_write(self.zone, self.end, Status::Aborted));
        }
    }
}

impl Writing {
    fn end(mut self, status: Status) {
        self.is_over = true;
        self.inner.with(|states| states.end_write(self.zone, self.end, status));
    }
}

/// Whether a write has its place.
enum Begun {
    At(Writing),
    Wait,
    Ask,
}

impl Medium for Inner {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    fn block_size(&self) -> u32 {
        self.shared.info.block_size
    }

    /// Reads across zones and pointers; what is not written is zero.
    async fn transfer(&self, io: Io) -> Done {
        let zones = Written {
            zone_blocks: self.shared.geometry.zone_blocks,
            block_size: self.shared.info.block_size,
            max_io_blocks: self.shared.info.max_io_blocks,
            readable: |zone| self.with(|states| states.readable(zone)),
            place: |zone, at| self.shared.first + zone as u64 * self.shared.geometry.zone_blocks + at,
        };
        zones.read(&self.reactor, &*self.blocks, io).await
    }
}

impl Inner {
    async fn perform(&self, io: &mut Io) -> Result<(), Status> {
        match io.op {
            Op::Compare => steps::compare(self, io).await,
            Op::Verify => steps::verify(self, io).await,
            Op::ZoneReport => self.report(io).await,
            _ => self.manage(io).await,
        }
    }

    /// Whether a read concerns one zone, and what is written of it.
    fn is_written(&self, io: &Io) -> bool {
        let (zone, at) = self.split(io.lba);
        self.with(|states| states.readable(zone)).is_ok_and(|written| at + u64::from(io.nblocks) <= written)
    }

    /// Takes a write's place, where it has one now.
    fn begin(self: &Rc<Self>, io: &Io) -> Result<Begun, Status> {
        let (zone, at) = self.split(io.lba);
        let blocks = u64::from(io.nblocks);
        let at = (io.op == Op::Write).then_some(at);
        Ok(match self.with(|states| states.begin_write(zone, at, blocks))? {
            Begin::At(start) => {
                Begun::At(Writing { inner: self.clone(), zone, start, end: start + blocks, is_over: false })
            }
            Begin::Wait => Begun::Wait,
            Begin::Ask => Begun::Ask,
        })
    }

    async fn write(self: &Rc<Self>, mut io: Io, mut begun: Begun) -> Done {
        let (zone, _) = self.split(io.lba);
        let writing = loop {
            match begun {
                Begun::At(writing) => break writing,
                Begun::Wait => poll_fn(|cx| self.with(|states| states.poll_writable(zone, cx.waker()))).await,
                Begun::Ask => {
                    if let Err(status) = self.ask(zone).await {
                        return io.done(status);
                    }
                }
            }
            begun = match self.begin(&io) {
                Ok(begun) => begun,
                Err(status) => return io.done(status),
            };
        };
        let start = writing.start;
        let turn = poll_fn(|cx| self.with(|states| states.poll_turn(zone, start, cx.waker()))).await;
        if let Err(status) = turn {
            // A write before this one has failed, and nothing may lie behind a hole.
            writing.end(status);
            return io.done(status);
        }
        let lba = Lba(zone as u64 * self.shared.geometry.zone_blocks + start);
        let bufs = std::mem::take(&mut io.bufs);
        let place = Lba(self.shared.first + lba.0);
        let below = Io { flags: io.flags, stream: io.stream, tag: io.tag, ..Io::write(place, io.nblocks, bufs) };
        let done = self.blocks.submit(below).await;
        io.bufs = done.io.bufs;
        writing.end(done.status);
        if io.op == Op::ZoneAppend && done.status.is_ok() {
            io.lba = lba;
        }
        io.done(done.status)
    }
}
