//! Virtio-blk as the specification has it (Virtual I/O Device 1.2, section 5.2), and the feature bits around it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Sectors of requests and of the configuration, whatever the block size is.
pub const SECTOR_BYTES: u64 = 512;
/// Bytes that a Get ID request asks for.
pub const ID_BYTES: usize = 20;

/// Feature bits.
pub mod feature {
    /// `size_max` holds.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// `seg_max` holds.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk is read-only.
    pub const RO: u64 = 1 << 5;
    /// `blk_size` holds.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// Flush is there.
    pub const FLUSH: u64 = 1 << 9;
    /// The topology fields hold.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// `writeback` can be set (not offered).
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// Several queues.
    pub const MQ: u64 = 1 << 12;
    /// Discard is there.
    pub const DISCARD: u64 = 1 << 13;
    /// Write zeroes is there.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Descriptors may refer to tables of descriptors.
    pub const INDIRECT: u64 = 1 << 28;
    /// Notifications are suppressed by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The front end may negotiate protocol features (vhost-user's own bit).
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Not a legacy device.
    pub const VERSION_1: u64 = 1 << 32;
}

/// Types of requests.
pub mod request {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Flush.
    pub const FLUSH: u32 = 4;
    /// Get ID.
    pub const GET_ID: u32 = 8;
    /// Discard.
    pub const DISCARD: u32 = 11;
    /// Write zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// How requests end.
pub mod status {
    /// As asked.
    pub const OK: u8 = 0;
    /// Not done.
    pub const IOERR: u8 = 1;
    /// The device does not do this.
    pub const UNSUPP: u8 = 2;
}

/// The beginning of every request (section 5.2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RequestHeader {
    /// One of [`request`].
    pub kind: u32,
    /// Unused.
    pub reserved: u32,
    /// First sector of reads and writes.
    pub sector: u64,
}
const _: () = assert!(size_of::<RequestHeader>() == 16);

/// One range of a discard or write-zeroes request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RangeEntry {
    /// First sector.
    pub sector: u64,
    /// Sectors.
    pub sectors: u32,
    /// Bit 0: deallocation is welcome.
    pub flags: u32,
}
const _: () = assert!(size_of::<RangeEntry>() == 16);

/// Write zeroes: the range may be deallocated.
pub const RANGE_UNMAP: u32 = 1;

/// The configuration space (section 5.2.4), up to the fields of write zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, packed)]
pub struct Config {
    /// Size in sectors.
    pub capacity: u64,
    /// Largest segment, bytes.
    pub size_max: u32,
    /// Most segments of a request.
    pub seg_max: u32,
    /// Cylinders, heads, sectors: not told.
    pub geometry: [u8; 4],
    /// Bytes per block.
    pub blk_size: u32,
    /// Blocks per physical block, as a power of two.
    pub physical_block_exp: u8,
    /// First aligned block.
    pub alignment_offset: u8,
    /// Least good I/O size, blocks.
    pub min_io_size: u16,
    /// Best I/O size, blocks.
    pub opt_io_size: u32,
    /// 1: writes may be cached until a flush.
    pub writeback: u8,
    /// Unused.
    pub unused0: u8,
    /// Queues.
    pub num_queues: u16,
    /// Largest discard range, sectors.
    pub max_discard_sectors: u32,
    /// Most ranges of a discard.
    pub max_discard_seg: u32,
    /// Alignment of discards, sectors.
    pub discard_sector_alignment: u32,
    /// Largest write-zeroes range, sectors.
    pub max_write_zeroes_sectors: u32,
    /// Most ranges of a write zeroes.
    pub max_write_zeroes_seg: u32,
    /// 1: write zeroes may deallocate.
    pub write_zeroes_may_unmap: u8,
    /// Unused.
    pub unused1: [u8; 3],
}
const _: () = assert!(size_of::<Config>() == 60);
