//! The waist: what a block device is ([`BlockDevice`]) and how one reactor talks to it ([`Channel`]).

use crate::disks::ReadGauge;
use crate::io::{Done, Io, Op, OpSet, Status};
use crate::zone_changes::ZoneChanges;
use reactor::{Errno, IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;
use thiserror::Error;

/// What a device is and can do. Asked for at any time; only `blocks` changes, and only by a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Bytes per block: a power of two from 512 to 65,536.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Operations that it performs.
    pub ops: OpSet,
    /// Best I/O size and alignment, in blocks (1 when it does not matter).
    pub optimal_io_blocks: u32,
    /// Largest single operation, in blocks; larger ones must be split by the caller.
    pub max_io_blocks: u32,
    /// Writes of up to so many blocks are atomic across power loss; 0 where even a single block may be torn, because
    /// blocks are larger than the medium's sectors.
    pub atomic_write_blocks: u32,
    /// Atomicity ends at multiples of so many blocks; 0 is no boundary.
    pub atomic_boundary_blocks: u32,
    /// Largest compare-and-write, in blocks; it does not cross an atomic boundary either.
    pub compare_and_write_blocks: u32,
    /// Completed writes may be lost on power failure until a flush.
    pub volatile_cache: bool,
    /// Unmapped blocks read as zeroes.
    pub unmap_reads_zero: bool,
    /// Reads without buffers are accepted ([`Flags::LOAN`](crate::io::Flags::LOAN)): the device lends its memory, or
    /// takes buffers from the reactor's pool.
    pub loans: bool,
    /// Zone size and limits of a zoned device.
    pub zoned: Option<ZonedInfo>,
    /// Number of write streams (0 is none).
    pub streams: u16,
    /// Where only whole rows can be written.
    pub rows: Option<RowInfo>,
    /// How many versions of its blocks a read can ask for; 1 where there is only the usual read. That is version 0; the others
    /// are what the device keeps, or can compute, apart from each other, so that whoever can tell wrong bytes from right ones
    /// finds right ones wherever they are. One that there is not of these blocks ends as
    /// [`Status::Unsupported`], one that cannot be had now as [`Status::Gone`].
    pub versions: u8,
}

/// The part of a device that takes whole rows alone. In front of it anything can be written; behind it, reads too are of any
/// blocks, and writes and unmaps of whole rows: others are [`Status::Invalid`]. A row that was being written when the power
/// failed, or a member of the device, reads as anything, so nobody may need what it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowInfo {
    /// First block of the first row.
    pub start: u64,
    /// Blocks of each row.
    pub blocks: u32,
    /// Where rows come in zones.
    pub zones: Option<RowZones>,
}

/// Rows in zones: those of a zone are written from its first one to its last, and again only when the zone has been reset,
/// which an unmap of exactly that zone does; other unmaps are [`Status::Invalid`]. A write ahead of the rows that are written
/// waits for those between, for some seconds. After a write that failed a zone takes no more until it is reset. [`Op::ZoneFinish`] at a zone's first block gives up what is not written of it;
/// [`Op::ZoneReport`] tells what is. A zone that cannot be written ends writes as [`Status::WriteError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowZones {
    /// Blocks of a zone: whole rows. The first zone begins with the first row, and each where the one before it ends.
    pub blocks: u64,
    /// Most zones that may be written in part at once: the write that begins another one waits for one to be full, finished
    /// or reset; 0 is no limit.
    pub open_max: u32,
}

/// Geometry of a zoned device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonedInfo {
    /// Blocks per zone.
    pub zone_blocks: u64,
    /// Writable blocks per zone.
    pub zone_capacity_blocks: u64,
    /// Most zones open at once; 0 is no limit.
    pub open_zones_max: u32,
    /// Most zones active at once; 0 is no limit.
    pub active_zones_max: u32,
    /// Bytes of a zone's descriptor extension, a multiple of 64; 0 where there are none.
    pub extension_bytes: u32,
}

impl ZonedInfo {
    /// The zone that has block `lba`.
    pub fn zone_of(&self, lba: u64) -> u64 {
        lba / self.zone_blocks
    }
}

impl DeviceInfo {
    /// A device of `blocks` blocks that does reads, writes and flushes.
    pub fn basic(block_size: u32, blocks: u64) -> DeviceInfo {
        DeviceInfo {
            block_size,
            blocks,
            ops: OpSet::of(&[Op::Read, Op::Write, Op::Flush]),
            optimal_io_blocks: 1,
            max_io_blocks: (1 << 20) / block_size,
            atomic_write_blocks: 1,
            atomic_boundary_blocks: 0,
            compare_and_write_blocks: 1,
            volatile_cache: false,
            unmap_reads_zero: false,
            loans: false,
            zoned: None,
            streams: 0,
            rows: None,
            versions: 1,
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * self.block_size as u64
    }

    /// The checks every device makes before it acts: operation known, range inside, buffers as long as the range.
    #[inline]
    pub fn check(&self, io: &Io) -> Result<(), Status> {
        if !self.ops.contains(io.op) {
            return Err(Status::Unsupported);
        }
        if io.op == Op::Flush {
            return Ok(());
        }
        if io.op == Op::CryptoErase {
            return if io.nblocks == 0 && io.bufs.is_empty() { Ok(()) } else { Err(Status::Invalid) };
        }
        let is_of_zone =
            matches!(io.op, Op::ZoneReport | Op::ZoneAppend | Op::ZoneSetExtension | Op::ZoneReadExtension);
        if let Some(zoned) = &self.zoned
            && (io.op.manages_zones() || is_of_zone)
        {
            return self.check_zone(zoned, io);
        }
        if let Some(RowInfo { start, zones: Some(zones), .. }) = &self.rows
            && matches!(io.op, Op::ZoneFinish | Op::ZoneReport)
        {
            return self.check_row_zone(*start, zones, io);
        }
        if io.nblocks == 0 {
            return Err(Status::Invalid);
        }
        if io.lba.0 > self.blocks || io.nblocks as u64 > self.blocks - io.lba.0 {
            return Err(Status::OutOfRange);
        }
        self.check_data(io)
    }

    fn check_zone(&self, zoned: &ZonedInfo, io: &Io) -> Result<(), Status> {
        let is_start = io.lba.0.is_multiple_of(zoned.zone_blocks);
        if io.op.manages_zones() {
            return match io.flags.has(crate::io::Flags::ALL_ZONES) {
                _ if io.nblocks != 0 || !io.bufs.is_empty() => Err(Status::Invalid),
                true => Ok(()),
                false if io.lba.0 >= self.blocks => Err(Status::OutOfRange),
                false if !is_start => Err(Status::Invalid),
                false => Ok(()),
            };
        }
        if matches!(io.op, Op::ZoneSetExtension | Op::ZoneReadExtension) {
            return match reactor::buf::sg_len(&io.bufs) == zoned.extension_bytes as usize {
                _ if io.lba.0 >= self.blocks => Err(Status::OutOfRange),
                true if is_start && io.nblocks == 0 => Ok(()),
                _ => Err(Status::Invalid),
            };
        }
        if io.nblocks == 0 || (io.op == Op::ZoneAppend && !is_start) {
            return Err(Status::Invalid);
        }
        if io.lba.0 >= self.blocks {
            return Err(Status::OutOfRange);
        }
        if io.op == Op::ZoneAppend {
            return self.check_data(io);
        }
        if io.nblocks as u64 > (self.blocks - io.lba.0).div_ceil(zoned.zone_blocks) {
            return Err(Status::OutOfRange);
        }
        let wanted = io.nblocks as usize * crate::zone::ZONE_RECORD_BYTES;
        if reactor::buf::sg_len(&io.bufs) == wanted { Ok(()) } else { Err(Status::Invalid) }
    }

    /// Of rows in zones one is finished or described at a time.
    fn check_row_zone(&self, start: u64, zones: &RowZones, io: &Io) -> Result<(), Status> {
        let (blocks, bytes) = if io.op == Op::ZoneReport { (1, crate::zone::ZONE_RECORD_BYTES) } else { (0, 0) };
        if io.lba.0 >= self.blocks {
            return Err(Status::OutOfRange);
        }
        let is_start = io.lba.0.checked_sub(start).is_some_and(|at| at.is_multiple_of(zones.blocks));
        let fits = io.nblocks == blocks && reactor::buf::sg_len(&io.bufs) == bytes;
        if is_start && fits && io.flags == crate::io::Flags::NONE { Ok(()) } else { Err(Status::Invalid) }
    }

    #[inline]
    fn check_data(&self, io: &Io) -> Result<(), Status> {
        let bytes = io.nblocks as usize * self.block_size as usize;
        let wanted = match io.op {
            Op::Read if io.arg >= self.versions as u64 => return Err(Status::Invalid),
            Op::Read if io.bufs.is_empty() && self.lends(io) => return Ok(()),
            Op::Read | Op::Write | Op::Compare | Op::ZoneAppend => bytes,
            Op::CompareAndWrite if !self.is_unit(io, self.compare_and_write_blocks) => return Err(Status::Invalid),
            Op::CompareAndWrite => bytes * 2,
            Op::Copy if io.arg > self.blocks || io.nblocks as u64 > self.blocks - io.arg => {
                return Err(Status::OutOfRange);
            }
            _ => 0,
        };
        if io.flags.has(crate::io::Flags::ATOMIC) && !self.is_unit(io, self.atomic_write_blocks) {
            return Err(Status::Invalid);
        }
        if reactor::buf::sg_len(&io.bufs) == wanted { Ok(()) } else { Err(Status::Invalid) }
    }
}

impl DeviceInfo {
    /// Atomic unit and boundary of what begins at block `start`: units shifted against a boundary may cross it.
    pub(crate) fn atomic_from(&self, start: u64) -> (u32, u32) {
        match self.atomic_boundary_blocks {
            boundary if boundary > 0 && !start.is_multiple_of(boundary as u64) => (self.atomic_write_blocks.min(1), 0),
            boundary => (self.atomic_write_blocks, boundary),
        }
    }

    fn lends(&self, io: &Io) -> bool {
        self.loans && io.flags.has(crate::io::Flags::LOAN) && io.nblocks <= self.max_io_blocks
    }

    /// Whether the range has at most `blocks_max` blocks and crosses no atomic boundary.
    fn is_unit(&self, io: &Io, blocks_max: u32) -> bool {
        let boundary = self.atomic_boundary_blocks as u64;
        io.nblocks <= blocks_max && (boundary == 0 || io.lba.0 / boundary == io.end().saturating_sub(1) / boundary)
    }
}

/// Why a device could not be opened or changed.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The operating system said no.
    #[error("device '{device}': cannot {action} {object}: {errno}{hint}")]
    Os {
        /// The device's name.
        device: String,
        /// What was tried.
        action: &'static str,
        /// The path or address.
        object: String,
        /// Why not.
        errno: Errno,
        /// What to do about it, starting with a separator, or empty.
        hint: &'static str,
    },
    /// An operation on the device, or on one below it, ended badly.
    #[error("device '{device}': cannot {action}: {status}")]
    Io {
        /// The device's name.
        device: String,
        /// What was tried.
        action: &'static str,
        /// How it ended.
        status: Status,
    },
    /// The configuration cannot work.
    #[error("device '{device}': {reason}")]
    Config {
        /// The device's name.
        device: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A device is too small for what it is to hold.
    #[error("device '{device}': {reason}")]
    TooSmall {
        /// The device's name.
        device: String,
        /// Which one, what it has and what is needed.
        reason: String,
    },
    /// How things are does not allow it.
    #[error("device '{device}': {reason}")]
    State {
        /// The device's name.
        device: String,
        /// What stands in the way, and what to do about it.
        reason: String,
    },
}

/// A device: shared by all reactors, reached through a channel on each.
pub trait BlockDevice: Send + Sync {
    /// Its name, unique in a node.
    fn name(&self) -> &str;
    /// Its kind, as in configuration (`file`, `stripe`, ...).
    fn kind(&self) -> &'static str;
    /// What it is now.
    fn info(&self) -> DeviceInfo;
    /// A channel for the calling reactor.
    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError>;
    /// The devices it stands on.
    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        Vec::new()
    }
    /// Where a block lies below: on which of its [children](Self::children), which block that is there, and for how many
    /// blocks it goes on like this at least. `None`: a block is not one block of one child, or there are no children.
    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        let _ = lba;
        None
    }
    /// How many of its children, from the first on, [`place`](Self::place) may name.
    fn placed_on(&self) -> usize {
        usize::MAX
    }
    /// Whether the time that an operation takes depends on where the one before it was: a disk with an arm is below.
    fn seeks(&self) -> bool {
        self.children().iter().any(|child| child.seeks())
    }
    /// Whoever can tell wrong bytes from right ones has found wrong ones in this version of a block, and has put them right: that is
    /// counted against the device that they came from, where it is one among several, and its name returned.
    fn note_wrong(&self, lba: u64, version: u8) -> Option<String> {
        let (child, below, _) = self.place(lba)?;
        self.children().get(child)?.note_wrong(below, version)
    }
    /// What counts its reads, if anything does.
    fn read_gauge(&self) -> Option<Arc<dyn ReadGauge>> {
        None
    }
    /// Of a zoned device, the part in front of its zones that is written in place, where it has one.
    fn conventional(&self) -> Option<Arc<dyn BlockDevice>> {
        match &self.children()[..] {
            [child] if self.info().zoned.is_some() => child.conventional(),
            _ => None,
        }
    }

    /// Where it notes zones that change by themselves; a device that passes zones on has those of the one below.
    fn zone_changes(&self) -> Option<Arc<ZoneChanges>> {
        match &self.children()[..] {
            [child] if self.info().zoned.is_some() => child.zone_changes(),
            _ => None,
        }
    }
    /// Changes its size; the devices that cannot say why. With a reactor, because a file must be reopened and metadata
    /// rewritten where I/O can be done.
    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        let _ = (reactor, blocks);
        let reason = format!("a '{}' device cannot be resized", self.kind());
        IoFuture::ready(Err(DeviceError::Config { device: self.name().to_string(), reason }))
    }
    /// Looks again at what lies below (a disk that has grown) and returns what the device is now.
    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        let _ = reactor;
        IoFuture::ready(Ok(self.info()))
    }
}

/// One reactor's way to a device. Not `Send`; no locks.
pub trait Channel {
    /// Starts an operation. It has been accepted when this returns; dropping the future abandons the wait, not the
    /// operation. Completions never run inside this call.
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done>;
    /// Whether writes have been done when [`submit`](Self::submit) returns, from memory of any alignment.
    fn writes_at_once(&self) -> bool {
        false
    }
    /// Tries to end early the operations submitted with `tag`; they complete as [`Status::Aborted`] or as if nothing had
    /// been asked.
    fn abort(&self, tag: u64) {
        let _ = tag;
    }
}
