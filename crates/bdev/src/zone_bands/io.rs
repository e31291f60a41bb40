//! The data path: what goes to the head, what to which zone, and in which order.

use super::states::{Begin, Waits};
use super::zones::Turn;
use super::{Inner, ZoneBandsDefect, of_write};
use crate::device::Channel;
use crate::io::{Done, Flags, Io, Lba, Op, Status};
use crate::split;
use crate::steps;
use reactor::IoFuture;
use reactor::buf::{sg_append, sg_split_off};
use std::future::poll_fn;
use std::rc::Rc;

/// Longest wait of a write for what is to be written before it, or for a zone that makes room for it, while nothing of that
/// is under way: then whoever should have seen to it does not.
const WAIT_NS: u64 = 10_000_000_000;

pub(super) struct ZoneBandsChannel(pub(super) Rc<Inner>);

impl Channel for ZoneBandsChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.0.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        let geometry = &self.0.shared.geometry;
        if io.end() <= geometry.head && matches!(io.op, Op::Read | Op::Write) {
            return split::pass(&*self.0.head, geometry.head_start + io.lba.0, io);
        }
        match io.op {
            Op::Read => match self.0.whole(&io) {
                Some((place, zone)) => self.0.pass_read(io, place, zone),
                None => {
                    let inner = self.0.clone();
                    IoFuture::steps(&self.0.reactor, async move { inner.read(io).await })
                }
            },
            Op::Write => {
                let inner = self.0.clone();
                IoFuture::steps(&self.0.reactor, async move { inner.write(io).await })
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
        self.0.head.abort(tag);
        self.0.zoned.abort(tag);
    }
}

impl Inner {
    /// What can be done where: anything in the head, whole rows of one zone behind it.
    fn check(&self, io: &Io) -> Result<(), Status> {
        self.shared.info.check(io)?;
        let geometry = &self.shared.geometry;
        match io.op {
            Op::Write if io.end() <= geometry.head => Ok(()),
            Op::Write | Op::Unmap if io.lba.0 < geometry.head => Err(Status::Invalid),
            Op::Write => {
                let ((_, at), blocks, row) = (geometry.split(io.lba.0), io.nblocks as u64, geometry.row as u64);
                let is_whole = at.is_multiple_of(row) && blocks.is_multiple_of(row) && at + blocks <= geometry.zone;
                if is_whole { Ok(()) } else { Err(Status::Invalid) }
            }
            Op::Unmap if geometry.split(io.lba.0).1 == 0 && io.nblocks as u64 == geometry.zone => Ok(()),
            Op::Unmap => Err(Status::Invalid),
            _ => Ok(()),
        }
    }

    async fn perform(&self, io: &mut Io) -> Result<(), Status> {
        let zone = |io: &Io| self.shared.geometry.split(io.lba.0).0;
        match io.op {
            Op::Flush => {
                self.heed_changes().await;
                let (head, zoned) = (self.head.submit(Io::flush()), self.zoned.submit(Io::flush()));
                let (head, zoned) = (head.await.status.check(), zoned.await.status.check());
                head.and(zoned)
            }
            Op::Unmap => self.reset(zone(io)).await,
            Op::ZoneFinish => self.finish(zone(io)).await,
            _ => {
                self.tell(io);
                Ok(())
            }
        }
    }

    // --- reads ------------------------------------------------------------------------------------------------------

    /// Where on the zoned device a read is done as a whole: what is written of one zone.
    fn whole(&self, io: &Io) -> Option<(u64, usize)> {
        let geometry = &self.shared.geometry;
        if io.lba.0 < geometry.head {
            return None;
        }
        let (zone, at) = geometry.split(io.lba.0);
        let written = self.with(|states| states.readable(zone))?;
        let is_whole = at + io.nblocks as u64 <= written && io.nblocks <= self.shared.info.max_io_blocks;
        is_whole.then(|| (geometry.start_below(zone) + at, zone))
    }

    fn pass_read<'a>(self: &'a Rc<Self>, io: Io, place: u64, zone: usize) -> IoFuture<'a, Done> {
        match split::pass(&*self.zoned, place, io).try_ready() {
            Ok(done) if !is_of_zone(done.status) => IoFuture::ready(done),
            Ok(done) => {
                let inner = self.clone();
                IoFuture::steps(&self.reactor, async move { inner.lost(zone, done).await })
            }
            Err(future) => IoFuture::new(async move {
                let done = future.await;
                if is_of_zone(done.status) { self.lost(zone, done).await } else { done }
            }),
        }
    }

    /// A zone that says it cannot be read.
    async fn lost(&self, zone: usize, done: Done) -> Done {
        let _turn = Turn::take(self, zone).await;
        self.ask(zone).await;
        done.io.done(Status::ReadError)
    }

    /// Reads across the head, zones and pointers; what is not written of a zone is zero.
    async fn read(&self, mut io: Io) -> Done {
        let (geometry, block_size) = (self.shared.geometry, self.shared.info.block_size);
        if let Err(status) = steps::provide(&self.reactor, &mut io, block_size).await {
            return io.done(status);
        }
        let mut rest = std::mem::take(&mut io.bufs);
        let (mut lba, mut status) = (io.lba.0, Status::Ok);
        while lba < io.end() && status.is_ok() {
            let most = (io.end() - lba).min(self.shared.info.max_io_blocks as u64);
            let (source, count) = if lba < geometry.head {
                (Source::Head(geometry.head_start + lba), most.min(geometry.head - lba))
            } else {
                let (zone, at) = geometry.split(lba);
                let left = most.min(geometry.zone - at);
                match self.with(|states| states.readable(zone)) {
                    None => (Source::Nowhere, left),
                    Some(written) if at < written => {
                        (Source::Zone(geometry.start_below(zone) + at, zone), left.min(written - at))
                    }
                    Some(_) => (Source::Zeroes, left),
                }
            };
            let tail = sg_split_off(&mut rest, count as usize * block_size as usize);
            let mut bufs = std::mem::replace(&mut rest, tail);
            let read = |at: u64, bufs| Io { tag: io.tag, arg: io.arg, ..Io::read(Lba(at), count as u32, bufs) };
            match source {
                Source::Head(at) => {
                    let done = self.head.submit(read(at, bufs)).await;
                    (status, bufs) = (done.status, done.io.bufs);
                }
                Source::Zone(at, zone) => {
                    let mut done = self.zoned.submit(read(at, bufs)).await;
                    if is_of_zone(done.status) {
                        done = self.lost(zone, done).await;
                    }
                    (status, bufs) = (done.status, done.io.bufs);
                }
                Source::Zeroes => bufs.iter_mut().for_each(|buf| buf.as_mut_slice().fill(0)),
                Source::Nowhere => status = Status::ReadError,
            }
            sg_append(&mut io.bufs, bufs);
            lba += count;
        }
        sg_append(&mut io.bufs, rest);
        io.done(status)
    }

    // --- writes -----------------------------------------------------------------------------------------------------

    /// Waits until a write is where its zone goes on, and takes the zone.
    async fn begin(&self, zone: usize, at: u64) -> Result<Turn<'_>, Status> {
        let mut since_ns = self.reactor.now_ns();
        loop {
            let (begun, changes) = self.with(|states| (states.begin_write(zone, at), states.changes()));
            let waits = match begun {
                Begin::Now => return Ok(Turn::taken(self, zone)),
                Begin::Refused(status) => return Err(status),
                Begin::Wait(waits) => waits,
            };
            let now_ns = self.reactor.now_ns();
            if waits == Waits::Turn {
                since_ns = now_ns;
            }
            if now_ns - since_ns >= WAIT_NS {
                self.with(|states| states.count_misplaced());
                // The zone is not to blame for writes that never came.
                return Err(if waits == Waits::Limit { Status::ZoneTooManyActive } else { Status::Aborted });
            }
            let changed = poll_fn(|cx| self.with(|states| states.poll_change(changes, cx.waker())));
            self.reactor.timeout(WAIT_NS - (now_ns - since_ns), changed).await;
        }
    }

    async fn write(&self, mut io: Io) -> Done {
        let (zone, at) = self.shared.geometry.split(io.lba.0);
        let is_broken = self.shared.defect == Some(ZoneBandsDefect::WriteAhead);
        let turn = if is_broken { Ok(None) } else { self.begin(zone, at).await.map(Some) };
        let mut turn = match turn {
            Ok(turn) => turn,
            Err(status) => return io.done(status),
        };
        let (lba, blocks) = (Lba(self.shared.geometry.start_below(zone) + at), io.nblocks as u64);
        let bufs = std::mem::take(&mut io.bufs);
        let flags = Flags(io.flags.0 & (Flags::FUA.0 | Flags::LOAN.0));
        let below = Io { flags, stream: io.stream, tag: io.tag, ..Io::write(lba, io.nblocks, bufs) };
        let done = self.zoned.submit(below).await;
        io.bufs = done.io.bufs;
        let mut status = done.status;
        let Some(turn) = &mut turn else {
            self.with(|states| {
                if is_of_order(status) {
                    states.count_misplaced()
                }
            });
            self.ask(zone).await;
            return io.done(of_write(status));
        };
        if status.is_ok() {
            let is_last = self.with(|states| states.wrote(zone, blocks));
            if is_last && self.shared.geometry.zone == self.shared.zone_capacity {
                self.with(|states| states.set_full(zone));
            } else if is_last {
                // What is left of it is no row.
                let _ = self.finish_taken(zone).await;
            }
        } else {
            turn.breaks = Some(of_write(status));
            self.with(|states| {
                if is_of_order(status) {
                    states.count_misplaced()
                }
            });
            self.ask(zone).await;
            status = of_write(status);
        }
        io.done(status)
    }
}

/// Where a part of a read is.
enum Source {
    Head(u64),
    Zone(u64, usize),
    Zeroes,
    Nowhere,
}

fn is_of_zone(status: Status) -> bool {
    status == Status::ZoneOffline
}

/// Refusals that the order of writes and the limits are there to avoid.
fn is_of_order(status: Status) -> bool {
    matches!(status, Status::ZoneInvalidWrite | Status::ZoneTooManyOpen | Status::ZoneTooManyActive)
}
