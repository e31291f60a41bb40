//! Reads and writes of zones, and the channel that takes them.

use super::states::Begin;
use super::{Inner, Shared};
use crate::device::Channel;
use crate::io::{Done, Flags, Io, Lba, Op, Status};
use crate::split;
use crate::steps::{self, Medium};
use crate::zone::Zone;
use crate::zone_reads::Written;
use reactor::{IoFuture, Reactor};
use std::future::poll_fn;
use std::rc::Rc;

pub(super) struct ZonedChannel(pub(super) Rc<Inner>);

impl Channel for ZonedChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.0.shared.info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        match io.op {
            Op::Read => match self.0.whole(&io) {
                Some(place) => split::pass(self.0.child(), place, io),
                None => {
                    let inner = self.0.clone();
                    IoFuture::steps(&self.0.reactor, async move { inner.read(io).await })
                }
            },
            Op::Write | Op::WriteZeroes | Op::ZoneAppend => {
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
        self.0.child().abort(tag);
    }
}

/// A write that has taken its place in a zone. Dropped before its end, it has failed.
struct Writing {
    inner: Rc<Inner>,
    zone: usize,
    start: u64,
    blocks: u64,
    is_over: bool,
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_over {
            self.inner.with(|states| states.abandon_write(self.zone, self.start));
        }
    }
}

impl Writing {
    /// Ends when the writes before it have.
    async fn end(mut self, status: Status) -> Status {
        let (zone, start, blocks) = (self.zone, self.start, self.blocks);
        if !status.is_ok() {
            self.inner.with(|states| states.fail_write(zone, start));
        }
        let counts =
            poll_fn(|cx| self.inner.with(|states| states.poll_end_write(zone, start, blocks, cx.waker()))).await;
        self.is_over = true;
        match status {
            // A write before this one has failed, and nothing may lie behind a hole.
            Status::Ok if !counts => Status::WriteError,
            status => status,
        }
    }
}

impl Medium for Inner {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    fn block_size(&self) -> u32 {
        self.shared.info.block_size
    }

    async fn transfer(&self, io: Io) -> Done {
        self.read(io).await
    }
}

/// Writes of zeroes below, where zones are no concern any more.
struct Below<'a>(&'a Inner);

impl Medium for Below<'_> {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.0.reactor
    }

    fn block_size(&self) -> u32 {
        self.0.shared.info.block_size
    }

    async fn transfer(&self, io: Io) -> Done {
        self.0.send(io).await
    }
}

impl Inner {
    async fn perform(&self, io: &mut Io) -> Result<(), Status> {
        match io.op {
            Op::Flush => self.flush(None).await,
            Op::Compare => steps::compare(self, io).await,
            Op::Verify => steps::verify(self, io).await,
            Op::ZoneReport => {
                let first = (io.lba.0 / self.shared.geometry.zone_blocks) as usize;
                let zones: Vec<Zone> =
                    self.with(|states| (first..first + io.nblocks as usize).map(|zone| states.zone(zone)).collect());
                Zone::store_report(zones, &mut io.bufs);
                Ok(())
            }
            Op::ZoneSetExtension => self.set_extension(io).await,
            Op::ZoneReadExtension => self.read_extension(io).await,
            _ => self.manage(io).await,
        }
    }

    // --- reads ------------------------------------------------------------------------------------------------------

    fn split(&self, lba: u64) -> (usize, u64) {
        let zone_blocks = self.shared.geometry.zone_blocks;
        ((lba / zone_blocks) as usize, lba % zone_blocks)
    }

    /// Where a read that concerns one zone, and what is written of it, is done as a whole.
    fn whole(&self, io: &Io) -> Option<u64> {
        let (zone, at) = self.split(io.lba.0);
        let written = self.with(|states| states.readable(zone)).ok()?;
        let is_whole = at + u64::from(io.nblocks) <= written && io.nblocks <= self.shared.base.max_io_blocks;
        is_whole.then(|| self.shared.geometry.place(zone, at))
    }

    /// Reads across zones and pointers; what is not written is zero.
    async fn read(&self, io: Io) -> Done {
        let Shared { geometry, base, info, .. } = &*self.shared;
        let zones = Written {
            zone_blocks: geometry.zone_blocks,
            block_size: info.block_size,
            max_io_blocks: base.max_io_blocks,
            readable: |zone| self.with(|states| states.readable(zone)),
            place: |zone, at| geometry.place(zone, at),
        };
        zones.read(&self.reactor, self.child(), io).await
    }

    // --- writes -----------------------------------------------------------------------------------------------------

    /// Takes a write's place; none while its zone is being changed.
    fn begin(self: &Rc<Self>, io: &Io) -> Result<Option<Writing>, Status> {
        let (zone, at) = self.split(io.lba.0);
        let blocks = u64::from(io.nblocks);
        let at = (io.op != Op::ZoneAppend).then_some(at);
        Ok(match self.with(|states| states.begin_write(zone, at, blocks))? {
            Begin::At(start) => Some(Writing { inner: self.clone(), zone, start, blocks, is_over: false }),
            Begin::Wait => None,
        })
    }

    async fn write(self: &Rc<Self>, mut io: Io, mut begun: Option<Writing>) -> Done {
        let writing = loop {
            if let Some(writing) = begun.take() {
                break writing;
            }
            let (zone, _) = self.split(io.lba.0);
            poll_fn(|cx| self.with(|states| states.poll_writable(zone, cx.waker()))).await;
            begun = match self.begin(&io) {
                Ok(begun) => begun,
                Err(status) => return io.done(status),
            };
        };
        let zone = writing.zone;
        let lba = zone as u64 * self.shared.geometry.zone_blocks + writing.start;
        let place = Lba(self.shared.geometry.place(zone, writing.start));
        // What is forced is flushed with the pointer, below.
        let flags = Flags(io.flags.0 & Flags::LOAN.0);
        let is_zeroes = io.op == Op::WriteZeroes;
        let op = if is_zeroes { Op::WriteZeroes } else { Op::Write };
        let bufs = std::mem::take(&mut io.bufs);
        let below = Io { op, flags, stream: io.stream, tag: io.tag, bufs, ..Io::new(op, place, io.nblocks) };
        let status = if is_zeroes && !self.shared.base.ops.contains(Op::WriteZeroes) {
            steps::status_of(steps::write_zeroes(&Below(self), &below).await)
        } else {
            let done = self.send(below).await;
            io.bufs = done.io.bufs;
            done.status
        };
        let mut status = writing.end(status).await;
        if io.op == Op::ZoneAppend && status.is_ok() {
            io.lba = Lba(lba);
        }
        if io.flags.has(Flags::FUA) && status.is_ok() {
            status = steps::status_of(self.flush(Some(zone)).await);
        }
        io.done(status)
    }

    /// Hands a write to the device below, in as many parts as that wants.
    async fn send(&self, io: Io) -> Done {
        if io.op == Op::WriteZeroes || io.nblocks <= self.shared.base.max_io_blocks {
            return self.child().submit(io).await;
        }
        let (most, block_size) = (u64::from(self.shared.base.max_io_blocks), self.shared.info.block_size);
        split::runs(&self.reactor, &self.child, block_size, io, |lba| (0, lba, most)).await
    }
}
