//! One request of a guest: read from its chain, carried out on the device, answered into its chain.

use crate::chain::{self, Chain, Segment};
use crate::disk::{Disk, RANGE_BYTES_MAX, RANGES_MAX, REQUEST_BYTES_MAX};
use crate::memory::Memory;
use crate::spec::{ID_BYTES, RANGE_UNMAP, RangeEntry, RequestHeader, request, status};
use crate::split::RingError;
use bdev::{Channel, Done, Flags, Io, Lba, Op, Status};
use reactor::{BUF_BYTES_MAX, Buf, Reactor, SgList};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::IntoBytes;

const HEADER_BYTES: usize = size_of::<RequestHeader>();

/// What a request asks for, as far as the queue must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Ranges,
    Other,
}

/// A request under way; its parts are reused.
#[derive(Default)]
pub(crate) struct Request {
    pub head: u16,
    pub chain: Chain,
    pub memory: Option<Rc<Memory>>,
    header: RequestHeader,
    /// Bytes before the status, of what the device writes.
    room: u64,
    /// Bytes behind the header, of what the guest wrote.
    data: u64,
}

/// How a request ends: its status, and bytes of data given to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub status: u8,
    pub bytes: u64,
}

impl Outcome {
    pub(crate) fn new(status: u8) -> Outcome {
        Outcome { status, bytes: 0 }
    }
}

/// What the device lacks no answer to at once, or does in one piece.
pub(crate) enum Step {
    /// The answer is known.
    Ended(Outcome),
    /// One operation of the device does it.
    Submit(Io),
    /// It takes several, or must wait for memory.
    Pieces,
}

impl Request {
    /// Reads the header; an error when there is none, or no place for a status.
    pub(crate) fn open(&mut self, memory: &Rc<Memory>) -> Result<(), RingError> {
        let (readable, writable) = (chain::bytes(&self.chain.readable), chain::bytes(&self.chain.writable));
        if readable < HEADER_BYTES as u64 || writable == 0 {
            return Err(RingError::NoRequest { head: self.head, readable, writable });
        }
        let mut raw = [0; HEADER_BYTES];
        chain::gather(memory, &self.chain.readable, 0, &mut raw)?;
        self.header = zerocopy::transmute!(raw);
        (self.room, self.data) = (writable - 1, readable - HEADER_BYTES as u64);
        self.memory = Some(memory.clone());
        Ok(())
    }

    pub(crate) fn kind(&self) -> Kind {
        match u32::from_le(self.header.kind) {
            request::IN => Kind::Read,
            request::OUT => Kind::Write,
            request::FLUSH => Kind::Flush,
            request::DISCARD | request::WRITE_ZEROES => Kind::Ranges,
            _ => Kind::Other,
        }
    }

    /// Bytes of buffers that it has at a time.
    pub(crate) fn buffered(&self) -> u64 {
        let bytes = match self.kind() {
            Kind::Read => self.room,
            Kind::Write => self.data,
            _ => 0,
        };
        bytes.min(BUF_BYTES_MAX as u64)
    }

    /// Bytes of data that it carries to the device.
    pub(crate) fn written(&self) -> u64 {
        self.data
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("an opened request has its memory")
    }

    fn sector(&self) -> u64 {
        u64::from_le(self.header.sector)
    }

    /// The first step: everything for most requests.
    #[inline]
    pub(crate) fn step(&self, disk: &Disk, reactor: &Reactor, features: u64) -> Step {
        if self.room.max(self.data) > REQUEST_BYTES_MAX {
            return Step::Ended(Outcome::new(status::IOERR));
        }
        match u32::from_le(self.header.kind) {
            request::IN => self.read(disk, reactor),
            request::OUT if disk.read_only() => Step::Ended(Outcome::new(status::IOERR)),
            request::OUT => self.write(disk, reactor, features),
            request::FLUSH => Step::Submit(Io::flush()),
            request::GET_ID => Step::Ended(self.id(disk)),
            request::DISCARD | request::WRITE_ZEROES => {
                let op = self.range_op();
                match disk.device().info().ops.contains(op) {
                    true if disk.read_only() => Step::Ended(Outcome::new(status::IOERR)),
                    true => Step::Pieces,
                    false => Step::Ended(Outcome::new(status::UNSUPP)),
                }
            }
            _ => Step::Ended(Outcome::new(status::UNSUPP)),
        }
    }

    fn range_op(&self) -> Op {
        if u32::from_le(self.header.kind) == request::DISCARD { Op::Unmap } else { Op::WriteZeroes }
    }

    fn id(&self, disk: &Disk) -> Outcome {
        let mut id = [0; ID_BYTES];
        let serial = disk.serial().as_bytes();
        let len = serial.len().min(ID_BYTES);
        id[..len].copy_from_slice(&serial[..len]);
        let fits = self.room.min(ID_BYTES as u64) as usize;
        match chain::scatter(self.memory(), &self.chain.writable, 0, &id[..fits]) {
            Ok(()) => Outcome { status: status::OK, bytes: fits as u64 },
            Err(_) => Outcome::new(status::IOERR),
        }
    }

    #[inline]
    fn read(&self, disk: &Disk, reactor: &Reactor) -> Step {
        let Some((lba, count)) = disk.blocks(self.sector(), self.room) else {
            return Step::Ended(Outcome::new(status::IOERR));
        };
        if count == 0 {
            return Step::Ended(Outcome::new(status::OK));
        }
        let info = disk.device().info();
        if count > u64::from(info.max_io_blocks) || self.room > BUF_BYTES_MAX as u64 {
            return Step::Pieces;
        }
        if info.loans {
            return Step::Submit(Io::read_loan(Lba(lba), count as u32));
        }
        match reactor.pool().try_alloc(self.room as usize) {
            Some(buf) => Step::Submit(Io::read(Lba(lba), count as u32, SgList::from_iter([buf]))),
            None => Step::Pieces,
        }
    }

    #[inline]
    fn write(&self, disk: &Disk, reactor: &Reactor, features: u64) -> Step {
        let Some((lba, count)) = disk.blocks(self.sector(), self.data) else {
            return Step::Ended(Outcome::new(status::IOERR));
        };
        if count == 0 {
            return Step::Ended(Outcome::new(status::OK));
        }
        if count > u64::from(disk.device().info().max_io_blocks) || self.data > BUF_BYTES_MAX as u64 {
            return Step::Pieces;
        }
        // Copied, once: a guest may change its memory while a checksum is being made of it, or one leg of two is written.
        let Some(mut buf) = reactor.pool().try_alloc(self.data as usize) else { return Step::Pieces };
        match self.take(0, &mut buf) {
            true => {
                let io = Io::write(Lba(lba), count as u32, SgList::from_iter([buf]));
                Step::Submit(Io { flags: disk.write_flags(features), ..io })
            }
            false => Step::Ended(Outcome::new(status::IOERR)),
        }
    }

    /// Copies data from byte `at` of what the guest wrote; false when it is not in shared memory.
    fn take(&self, at: u64, buf: &mut Buf) -> bool {
        let target = buf.as_mut_slice();
        chain::gather(self.memory(), &self.chain.readable, HEADER_BYTES as u64 + at, target).is_ok()
    }

    /// Gives the guest what was read, from byte `at` of its data on.
    #[inline]
    fn give(&self, mut at: u64, bufs: &[Buf]) -> bool {
        bufs.iter().all(|buf| {
            let given = chain::scatter(self.memory(), &self.chain.writable, at, buf.as_slice()).is_ok();
            at += buf.len() as u64;
            given
        })
    }

    /// The end of a request that one operation did.
    #[inline]
    pub(crate) fn conclude(&self, done: &Done) -> Outcome {
        if !done.status.is_ok() {
            return Outcome::new(status_of(done.status));
        }
        if done.io.op != Op::Read {
            return Outcome::new(status::OK);
        }
        match self.give(0, &done.io.bufs) {
            true => Outcome { status: status::OK, bytes: self.room },
            false => Outcome::new(status::IOERR),
        }
    }

    /// Carries out a request of several operations, one after the other, with a turn for others between them.
    /// `None`: `closing` was set meanwhile, and the rest was not begun.
    pub(crate) async fn pieces(
        &self,
        disk: &Disk,
        reactor: &Rc<Reactor>,
        channel: &dyn Channel,
        features: u64,
        closing: &AtomicBool,
    ) -> Option<Outcome> {
        let flags = disk.write_flags(features);
        let status = match self.kind() {
            Kind::Read => self.transfer(disk, reactor, channel, Op::Read, Flags::NONE, closing).await?,
            Kind::Write => self.transfer(disk, reactor, channel, Op::Write, flags, closing).await?,
            _ => self.ranges(disk, reactor, channel, flags, closing).await?,
        };
        let bytes = if status == status::OK && self.kind() == Kind::Read { self.room } else { 0 };
        Some(Outcome { status, bytes })
    }

    async fn transfer(
        &self,
        disk: &Disk,
        reactor: &Rc<Reactor>,
        channel: &dyn Channel,
        op: Op,
        flags: Flags,
        closing: &AtomicBool,
    ) -> Option<u8> {
        let info = disk.device().info();
        let bytes = if op == Op::Read { self.room } else { self.data };
        let Some((lba, count)) = disk.blocks(self.sector(), bytes) else { return Some(status::IOERR) };
        let step = u64::from(info.max_io_blocks).min(BUF_BYTES_MAX as u64 / u64::from(info.block_size));
        let mut at = 0;
        while at < count {
            let blocks = step.min(count - at);
            let (len, from) = ((blocks * u64::from(info.block_size)) as usize, at * u64::from(info.block_size));
            if closing.load(Ordering::Relaxed) {
                return None;
            }
            // (the share of the queue bounds what waits here; buffers come back as other requests end)
            let mut buf = reactor.pool().alloc(len).await;
            if op == Op::Write && !self.take(from, &mut buf) {
                return Some(status::IOERR);
            }
            let io = Io { flags, bufs: SgList::from_iter([buf]), ..Io::new(op, Lba(lba + at), blocks as u32) };
            let done = channel.submit(io).await;
            if !done.status.is_ok() {
                return Some(status_of(done.status));
            }
            if op == Op::Read && !self.give(from, &done.io.bufs) {
                return Some(status::IOERR);
            }
            at += blocks;
            reactor.yield_now().await;
        }
        Some(status::OK)
    }

    /// Discard and write zeroes (section 5.2.6.2).
    async fn ranges(
        &self,
        disk: &Disk,
        reactor: &Rc<Reactor>,
        channel: &dyn Channel,
        flags: Flags,
        closing: &AtomicBool,
    ) -> Option<u8> {
        const ENTRY_BYTES: u64 = size_of::<RangeEntry>() as u64;
        let count = self.data / ENTRY_BYTES;
        if count == 0 || !self.data.is_multiple_of(ENTRY_BYTES) || count > RANGES_MAX as u64 {
            return Some(status::IOERR);
        }
        let mut entries = [RangeEntry::default(); RANGES_MAX];
        let entries = &mut entries[..count as usize];
        let from = HEADER_BYTES as u64;
        if chain::gather(self.memory(), &self.chain.readable, from, entries.as_mut_bytes()).is_err() {
            return Some(status::IOERR);
        }
        let info = disk.device().info();
        let zeroes = self.range_op() == Op::WriteZeroes;
        for entry in entries.iter() {
            let known = if zeroes { RANGE_UNMAP } else { 0 };
            let unmap = u32::from_le(entry.flags);
            if unmap & !known != 0 {
                return Some(status::UNSUPP);
            }
            let bytes = u64::from(u32::from_le(entry.sectors)) * crate::spec::SECTOR_BYTES;
            if bytes > RANGE_BYTES_MAX {
                return Some(status::IOERR);
            }
            let Some((lba, count)) = disk.blocks(u64::from_le(entry.sector), bytes) else { return Some(status::IOERR) };
            // Deallocating has no forced unit access.
            let frees = unmap != 0 && info.ops.contains(Op::Unmap) && info.unmap_reads_zero && flags == Flags::NONE;
            let (op, flags) = match zeroes && !frees {
                true => (Op::WriteZeroes, flags),
                false => (Op::Unmap, Flags::NONE),
            };
            let mut at = 0;
            while at < count {
                if closing.load(Ordering::Relaxed) {
                    return None;
                }
                let blocks = bdev::steps::bare_blocks(info.block_size, lba + at, count - at);
                let io = Io { flags, ..Io::new(op, Lba(lba + at), blocks) };
                let done = channel.submit(io).await;
                if !done.status.is_ok() {
                    return Some(status_of(done.status));
                }
                at += u64::from(blocks);
                reactor.yield_now().await;
            }
        }
        Some(status::OK)
    }

    /// Writes the status behind the data; false when there is no shared memory there.
    #[inline]
    pub(crate) fn answer(&self, outcome: Outcome) -> bool {
        let Some(Segment { address, len }) = self.chain.writable.last().copied() else { return false };
        let at = address.checked_add(u64::from(len) - 1);
        at.is_some_and(|at| self.memory().write(at, &[outcome.status]).is_ok())
    }
}

fn status_of(status: Status) -> u8 {
    if status == Status::Unsupported { status::UNSUPP } else { status::IOERR }
}
