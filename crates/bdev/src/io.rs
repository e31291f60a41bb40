//! One block I/O: what is asked ([`Io`]) and how it ended ([`Done`]).

use base::Errno;
use reactor::SgList;
use std::fmt;

/// A logical block address of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// What to do. Block ranges are `lba .. lba + nblocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Op {
    /// Read into `bufs`; with [`Flags::LOAN`] and no buffers, the device provides them.
    Read,
    /// Write `bufs`. Of writes that overlap in time each block ends as one of them left it, whole, whatever the medium's
    /// own unit is; in which order is open, block by block. A read beside them may see parts of either, within a block
    /// too.
    Write,
    /// Make blocks read as zero.
    WriteZeroes,
    /// Deallocate blocks; what they read as afterwards is the device's `unmap_reads_zero`.
    Unmap,
    /// Make all completed writes durable. No range.
    Flush,
    /// Compare the blocks with `bufs`.
    Compare,
    /// Compare with the first half of `bufs` and, when equal, write the second half; atomically.
    CompareAndWrite,
    /// Copy `nblocks` from block `arg` to `lba`. Source blocks that are written meanwhile are read like any other.
    Copy,
    /// Check that the blocks can be read (and pass their checksums) without transferring them.
    Verify,
    /// Make the zone at `lba` empty.
    ZoneReset,
    /// Open the zone at `lba`.
    ZoneOpen,
    /// Close the zone at `lba`.
    ZoneClose,
    /// Fill up the zone at `lba`.
    ZoneFinish,
    /// Append `bufs` to the zone at `lba`; `Done::io.lba` is where they went.
    ZoneAppend,
    /// Take the read-only zone at `lba` out of use.
    ZoneOffline,
    /// Describe `nblocks` zones, from the one that has block `lba` on, in `bufs`: a [`Zone`](crate::Zone) record each.
    ZoneReport,
    /// Make everything that was written before unreadable for good, by replacing the key that encrypts it; durable when it
    /// completes. What the blocks read as afterwards is open. No range. When it fails, everything is as it was, or the device
    /// is [`Status::Gone`].
    CryptoErase,
    /// Make blocks unreadable until they are written again: reads, and all that reads them, fail as [`Status::ReadError`].
    /// Durable when it completes.
    WriteUncorrectable,
    /// Set the descriptor extension of the empty zone at `lba` to `bufs`; it is closed then. Durable when it completes.
    ZoneSetExtension,
    /// Read the descriptor extension of the zone at `lba` into `bufs`; zeroes where it has none.
    ZoneReadExtension,
}

impl Op {
    /// Every operation, in order.
    pub const ALL: [Op; 20] = [
        Op::Read,
        Op::Write,
        Op::WriteZeroes,
        Op::Unmap,
        Op::Flush,
        Op::Compare,
        Op::CompareAndWrite,
        Op::Copy,
        Op::Verify,
        Op::ZoneReset,
        Op::ZoneOpen,
        Op::ZoneClose,
        Op::ZoneFinish,
        Op::ZoneAppend,
        Op::ZoneOffline,
        Op::ZoneReport,
        Op::CryptoErase,
        Op::WriteUncorrectable,
        Op::ZoneSetExtension,
        Op::ZoneReadExtension,
    ];

    /// The name used in metrics and configuration.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::WriteZeroes => "write_zeroes",
            Op::Unmap => "unmap",
            Op::Flush => "flush",
            Op::Compare => "compare",
            Op::CompareAndWrite => "compare_and_write",
            Op::Copy => "copy",
            Op::Verify => "verify",
            Op::ZoneReset => "zone_reset",
            Op::ZoneOpen => "zone_open",
            Op::ZoneClose => "zone_close",
            Op::ZoneFinish => "zone_finish",
            Op::ZoneAppend => "zone_append",
            Op::ZoneOffline => "zone_offline",
            Op::ZoneReport => "zone_report",
            Op::CryptoErase => "crypto_erase",
            Op::WriteUncorrectable => "write_uncorrectable",
            Op::ZoneSetExtension => "zone_set_extension",
            Op::ZoneReadExtension => "zone_read_extension",
        }
    }

    /// Whether the operation changes blocks.
    pub fn modifies(self) -> bool {
        let only_reads = matches!(self, Op::Read | Op::Compare | Op::Verify | Op::ZoneReport | Op::ZoneReadExtension);
        !only_reads && self != Op::Flush
    }

    /// Whether the operation moves zones from one state to another.
    pub const fn manages_zones(self) -> bool {
        OpSet::ZONE_MANAGEMENT.contains(self)
    }
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpSet(u32);

impl OpSet {
    /// What a device of plain blocks can do: everything but zones, erasure and unreadable blocks.
    pub const BLOCKS: OpSet = OpSet::of(&[
        Op::Read,
        Op::Write,
        Op::WriteZeroes,
        Op::Unmap,
        Op::Flush,
        Op::Compare,
        Op::CompareAndWrite,
        Op::Copy,
        Op::Verify,
    ]);

    /// What moves zones from one state to another.
    pub const ZONE_MANAGEMENT: OpSet =
        OpSet::of(&[Op::ZoneReset, Op::ZoneOpen, Op::ZoneClose, Op::ZoneFinish, Op::ZoneOffline]);

    /// The set of `ops`.
    pub const fn of(ops: &[Op]) -> OpSet {
        let mut bits = 0;
        let mut index = 0;
        while index < ops.len() {
            bits |= 1 << ops[index] as u32;
            index += 1;
        }
        OpSet(bits)
    }

    /// Whether `op` is in the set.
    pub const fn contains(self, op: Op) -> bool {
        self.0 & (1 << op as u32) != 0
    }

    /// Operations in both sets.
    pub const fn intersection(self, other: OpSet) -> OpSet {
        OpSet(self.0 & other.0)
    }

    /// The set less `op`.
    pub const fn without(self, op: Op) -> OpSet {
        OpSet(self.0 & !(1 << op as u32))
    }

    /// The set, with copies where these can be made of its reads and writes.
    pub const fn with_copy(self) -> OpSet {
        if self.contains(Op::Read) && self.contains(Op::Write) { self.union(OpSet::of(&[Op::Copy])) } else { self }
    }

    /// Operations in either set.
    pub const fn union(self, other: OpSet) -> OpSet {
        OpSet(self.0 | other.0)
    }
}

/// Modifiers of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// No modifier.
    pub const NONE: Flags = Flags(0);
    /// Forced unit access: durable before it completes.
    pub const FUA: Flags = Flags(1);
    /// All or nothing across power loss; the range is within the device's atomic unit and boundary.
    pub const ATOMIC: Flags = Flags(2);
    /// The device may answer a read with buffers of its own instead of filling the caller's. These may be its memory, and
    /// change when the blocks are written meanwhile, even after the read has ended: who computes over what it passes on,
    /// a checksum or a digest, asks for a copy.
    pub const LOAN: Flags = Flags(4);

    /// Zone management of all zones that are in a state which it ends, wherever `lba` is: open those that are closed, close
    /// those that are open, finish those that are either, reset those and the full ones, take the read-only ones offline.
    pub const ALL_ZONES: Flags = Flags(8);
    /// A read for upkeep, which no host waits for: it does not count as use of a disk (see [`Disks`](crate::Disks)).
    pub const LAZY: Flags = Flags(16);

    /// Whether all of `other` is set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// As asked.
    Ok,
    /// The device does not do this operation (or not with these flags).
    Unsupported,
    /// The request contradicts itself: buffer length, alignment, zero length.
    Invalid,
    /// The range goes past the end of the device.
    OutOfRange,
    /// A compare found different data.
    Miscompare,
    /// Blocks could not be read back.
    ReadError,
    /// Blocks were read but are not what was written (checksum).
    Corrupt,
    /// Blocks could not be written.
    WriteError,
    /// No space left.
    NoSpace,
    /// The device is read-only.
    ReadOnly,
    /// Given up on request, or because the device is closing or resetting.
    Aborted,
    /// The device or the path to it is gone, for now or for good.
    Gone,
    /// As [`Gone`](Self::Gone): targets are there, and say that the device cannot be reached through them now.
    Inaccessible,
    /// Another host's reservation forbids it.
    ReservationConflict,
    /// Write not at the zone's write pointer.
    ZoneInvalidWrite,
    /// The zone is full.
    ZoneFull,
    /// The zone is read-only.
    ZoneReadOnly,
    /// The zone is offline.
    ZoneOffline,
    /// The range crosses a zone boundary.
    ZoneBoundary,
    /// Too many open zones.
    ZoneTooManyOpen,
    /// Too many active zones.
    ZoneTooManyActive,
    /// The zone's state does not allow the transition.
    ZoneInvalidTransition,
    /// The operating system reported this.
    Os(Errno),
}

impl Status {
    /// Whether the operation did what was asked.
    #[inline]
    pub fn is_ok(self) -> bool {
        self == Status::Ok
    }

    /// Whether the device, or every path to it, is gone.
    #[inline]
    pub fn is_gone(self) -> bool {
        matches!(self, Status::Gone | Status::Inaccessible)
    }

    /// The status for a driver error of a read or write.
    pub fn of_errno(errno: Errno, op: Op) -> Status {
        match errno {
            Errno::EIO if op.modifies() => Status::WriteError,
            Errno::EIO => Status::ReadError,
            Errno::ENOSPC => Status::NoSpace,
            Errno::EROFS => Status::ReadOnly,
            Errno::EOPNOTSUPP => Status::Unsupported,
            Errno::ECANCELED => Status::Aborted,
            Errno::ENODEV | Errno::ENXIO => Status::Gone,
            Errno::ETOOMANYREFS if op.modifies() => Status::ZoneTooManyOpen,
            Errno::EOVERFLOW if op.modifies() => Status::ZoneTooManyActive,
            other => Status::Os(other),
        }
    }

    /// Why a status could not be `Ok`, or nothing.
    pub fn check(self) -> Result<(), Status> {
        if self.is_ok() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Ok => "success",
            Status::Unsupported => "operation not supported by the device",
            Status::Invalid => "invalid request",
            Status::OutOfRange => "range past the end of the device",
            Status::Miscompare => "compared data differ",
            Status::ReadError => "unrecovered read error",
            Status::Corrupt => "data failed its checksum",
            Status::WriteError => "write fault",
            Status::NoSpace => "no space left on the device",
            Status::ReadOnly => "device is read-only",
            Status::Aborted => "operation aborted",
            Status::Gone => "device is gone",
            Status::Inaccessible => "no path leads to the device now: its targets say that it is inaccessible (ANA)",
            Status::ReservationConflict => "reservation conflict",
            Status::ZoneInvalidWrite => "write is not at the zone's write pointer",
            Status::ZoneFull => "zone is full",
            Status::ZoneReadOnly => "zone is read-only",
            Status::ZoneOffline => "zone is offline",
            Status::ZoneBoundary => "range crosses a zone boundary",
            Status::ZoneTooManyOpen => "too many open zones",
            Status::ZoneTooManyActive => "too many active zones",
            Status::ZoneInvalidTransition => "zone state does not allow this",
            Status::Os(errno) => return write!(f, "{errno}"),
        })
    }
}

impl std::error::Error for Status {}

/// One operation. Moves into the device and comes back in [`Done`], buffers and all.
#[derive(Debug)]
pub struct Io {
    /// What to do.
    pub op: Op,
    /// Modifiers.
    pub flags: Flags,
    /// Write stream (0 is none).
    pub stream: u16,
    /// Number of blocks; of zones for a report; 0 for zone management and extensions.
    pub nblocks: u32,
    /// First block; the first of the zone for zone management and appends.
    pub lba: Lba,
    /// The source block of a copy; which version of the blocks a read asks for (see
    /// [`DeviceInfo::versions`](crate::DeviceInfo::versions)); otherwise 0.
    pub arg: u64,
    /// The caller's mark, untouched by devices; names the operation to `Channel::abort`.
    pub tag: u64,
    /// The data: `nblocks` blocks for reads, writes, compares; twice that for compare-and-write; records for zone reports; extensions;
    /// else empty.
    pub bufs: SgList,
}

impl Io {
    /// An operation without data.
    pub fn new(op: Op, lba: Lba, nblocks: u32) -> Io {
        Io { op, flags: Flags::NONE, stream: 0, nblocks, lba, arg: 0, tag: 0, bufs: SgList::new() }
    }

    /// A read into `bufs`.
    pub fn read(lba: Lba, nblocks: u32, bufs: SgList) -> Io {
        Io { bufs, ..Io::new(Op::Read, lba, nblocks) }
    }

    /// A read whose buffers the device provides (see [`Flags::LOAN`]).
    pub fn read_loan(lba: Lba, nblocks: u32) -> Io {
        Io { flags: Flags::LOAN, ..Io::new(Op::Read, lba, nblocks) }
    }

    /// A read of one version of the blocks into `bufs`.
    pub fn read_version(lba: Lba, nblocks: u32, version: u8, bufs: SgList) -> Io {
        Io { arg: version as u64, ..Io::read(lba, nblocks, bufs) }
    }

    /// A write of `bufs`.
    pub fn write(lba: Lba, nblocks: u32, bufs: SgList) -> Io {
        Io { bufs, ..Io::new(Op::Write, lba, nblocks) }
    }

    /// A flush.
    pub fn flush() -> Io {
        Io::new(Op::Flush, Lba(0), 0)
    }

    /// The block after the last.
    pub fn end(&self) -> u64 {
        self.lba.0.saturating_add(self.nblocks as u64)
    }

    /// This operation, ended.
    #[inline]
    pub fn done(self, status: Status) -> Done {
        Done { io: self, status }
    }
}

/// An ended operation.
#[derive(Debug)]
pub struct Done {
    /// The operation, with its buffers (and, after a zone append, its block).
    pub io: Io,
    /// How it ended.
    pub status: Status,
}
