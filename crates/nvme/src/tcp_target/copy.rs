//! Copy: source ranges of a namespace to one place of it, one range after the other.
//!
//! A device that copies by itself is asked to; for others, zoned ones among them, blocks travel through one buffer of the
//! pool. Ranges are never larger than an operation of the device may be.

use super::connection::Connection;
use super::execute::status_for_host;
use super::local::Namespace;
use crate::spec::{Cqe, Status};
use crate::target::io::{self, IoCommand};
use bdev::{Flags, Io, Lba, Op};
use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;
use zerocopy::byteorder::little_endian::U64;

/// Bytes that travel at once: one such buffer per command.
const PIECE_BYTES: usize = 64 << 10;

impl Connection {
    /// Copies the ranges in `data`. An answer that says that it failed tells which range was not copied as a whole.
    pub(super) fn copy(self: &Rc<Self>, command: &IoCommand, namespace: Rc<Namespace>, data: &Buf, range_count: u16) {
        let cid = command.cid;
        let ranges = match io::copy_ranges(data.as_slice(), range_count, command.slba, &namespace.model) {
            Ok(ranges) => ranges,
            Err(status) => return self.answer_status(cid, status),
        };
        let (flags, tag) = (self.write_flags(command), self.tag(cid));
        let (this, command, mut to) = (self.clone(), *command, command.slba);
        let blocks: u64 = ranges.iter().map(|(_, count)| u64::from(*count)).sum();
        self.spend(blocks << namespace.model.block_shift);
        self.meter_bytes(blocks << namespace.model.block_shift);
        self.reactor.spawn_eager(async move {
            // For the one buffer that it may need.
            if this.take_share(cid, PIECE_BYTES).await.is_none() {
                return this.answer_status(cid, Status::ABORT_REQUESTED);
            }
            if let Err(status) = this.admit_again(&command) {
                this.release_share(PIECE_BYTES);
                return this.answer_status(cid, status);
            }
            let flight = this.take_off();
            let mut cqe = Cqe::new(cid, Status::SUCCESS);
            for (index, (slba, count)) in ranges.into_iter().enumerate() {
                let io = Io { flags, tag, arg: slba, ..Io::new(Op::Copy, Lba(to), count) };
                let status = this.copy_range(&namespace, io).await;
                if !status.is_ok() {
                    cqe = Cqe { result: U64::new(index as u64), ..Cqe::new(cid, status_for_host(status, Op::Write)) };
                    break;
                }
                to += u64::from(count);
                this.reactor.yield_now().await;
            }
            this.land(flight);
            this.release_share(PIECE_BYTES);
            this.answer(cqe);
        });
    }

    async fn copy_range(&self, namespace: &Namespace, io: Io) -> bdev::Status {
        match self.may_go_on(namespace, Op::Copy) {
            Err(status) => status,
            Ok(()) if namespace.does(Op::Copy, io.nblocks) => namespace.channel.submit(io).await.status,
            Ok(()) => carry_out(&self.reactor, namespace, io, || self.may_go_on(namespace, Op::Copy)).await,
        }
    }
}

async fn carry_out(
    reactor: &Rc<Reactor>,
    namespace: &Namespace,
    io: Io,
    may_go_on: impl Fn() -> Result<(), bdev::Status>,
) -> bdev::Status {
    let block_shift = namespace.model.block_shift;
    let most = ((PIECE_BYTES >> block_shift).max(1) as u32).min(namespace.max_io_blocks);
    let step = most.min(io.nblocks);
    let bytes = (step as usize) << block_shift;
    // From the heap when the pool is dry: waiting for memory while holding some could be for ever.
    let buf = reactor.pool().try_alloc(bytes).unwrap_or_else(|| Buf::from_vec(vec![0; bytes]));
    let mut scratch = SgList::from_iter([buf]);
    // As if the source had been read before: a destination behind its source is copied from the front, one in front of it
    // from its end. Zones are written from the front alone, and nothing in them can be written over its source.
    let backwards = io.lba.0 > io.arg && io.lba.0 - io.arg < u64::from(io.nblocks) && namespace.model.zoned.is_none();
    let mut moved = 0;
    while moved < io.nblocks {
        if let Err(status) = may_go_on() {
            return status;
        }
        let count = step.min(io.nblocks - moved);
        let at = u64::from(if backwards { io.nblocks - moved - count } else { moved });
        let unused = reactor::buf::sg_split_off(&mut scratch, (count as usize) << block_shift);
        let read = Io { tag: io.tag, ..Io::read(Lba(io.arg + at), count, scratch) };
        let done = namespace.channel.submit(read).await;
        if !done.status.is_ok() {
            return done.status;
        }
        let flags = Flags(io.flags.0 & Flags::FUA.0);
        let write = Io { flags, tag: io.tag, ..Io::write(Lba(io.lba.0 + at), count, done.io.bufs) };
        let done = namespace.channel.submit(write).await;
        if !done.status.is_ok() {
            return done.status;
        }
        scratch = done.io.bufs;
        reactor::buf::sg_append(&mut scratch, unused);
        moved += count;
        reactor.yield_now().await;
    }
    bdev::Status::Ok
}
