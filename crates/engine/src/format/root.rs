//! A shard's root: what a checkpoint made durable. Bytes: `docs/formats/pool.md`.

use crate::format::band::{BAND_ENTRY_BYTES, BandEntry};
use crate::format::record::READ_NUMBER_MAX;
use crate::format::superblock::{Shape, Superblock};
use crate::format::{Malformed, generation};
use crate::units::LogTail;
use base::crc32c;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"RMDAROOT";
const SHORT: Malformed = Malformed("it is too short");
const HEADER_BYTES: usize = size_of::<RawHeader>();
const ENTRY_BYTES: usize = size_of::<RawEntry>();
/// Flag: the log was closed.
const LOG_CLOSED: u16 = 1;
/// Flag: how many bands follow is said behind the header. Without it they are as many as the pool was created with.
const BANDS_COUNTED: u16 = 2;
/// The slot of a table page that was never written, since all of its extents are free.
const NO_SLOT: u8 = 255;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    crc: U32,
    shard: U16,
    flags: U16,
    pool: [u8; 8],
    generation: U64,
    epoch: U32,
    tables: U32,
    tail_segment: U64,
    tail_lsn: U64,
    log_durable: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    crc: U32,
    slot: u8,
    reserved: [u8; 3],
}

/// Behind the header of a root that has [`BANDS_COUNTED`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawCount {
    bands: U32,
    reserved: [u8; 4],
}

const COUNT_BYTES: usize = size_of::<RawCount>();

const _: () = assert!(HEADER_BYTES == 64 && ENTRY_BYTES == 8);

/// What the superblock says of a shard's bands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RootBands {
    /// With which the pool was created.
    pub(crate) created: u32,
    /// Those that it has grown by as well. Older roots know fewer.
    pub(crate) all: u32,
    /// Blocks of each.
    pub(crate) band_blocks: u32,
}

impl RootBands {
    /// Of every shard of a pool.
    pub(crate) fn of(superblock: &Superblock) -> RootBands {
        let layout = &superblock.bands;
        let all = if superblock.shape == Shape::Shaped { superblock.shard_bands() } else { 0 };
        RootBands { created: layout.bands, all, band_blocks: layout.band_blocks }
    }
}

/// Where a table page is and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableRef {
    pub(crate) crc: u32,
    pub(crate) slot: u8,
}

/// How far the log goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogNote {
    /// Every record before this one was durable; 0 from programs that did not note it.
    pub(crate) durable_lsn: u64,
    /// There is none from there on of the root's epoch or an older one, and never will be.
    pub(crate) is_closed: bool,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) shard: u16,
    pub(crate) generation: u64,
    pub(crate) epoch: u32,
    pub(crate) tail: LogTail,
    /// What was known of the log when this was written.
    pub(crate) log: LogNote,
    /// `None`: never written, all of its extents are free. There may be fewer than the shard has: a region was added.
    pub(crate) tables: Vec<Option<TableRef>>,
    /// The shard's bands; none where there are none. There may be fewer than the shard has, the others are free: the pool has grown.
    pub(crate) bands: Vec<BandEntry>,
}

/// Bytes of a root over so many table pages and bands, in a pool that was created with so many of these for each shard.
pub(crate) fn root_bytes(tables: u32, bands: u32, created_bands: u32) -> u64 {
    let count = if bands == created_bands { 0 } else { COUNT_BYTES };
    (HEADER_BYTES + count) as u64 + tables as u64 * ENTRY_BYTES as u64 + bands as u64 * BAND_ENTRY_BYTES as u64
}

/// The bytes by which structures tell their pool.
pub(crate) fn pool_mark(pool: Uuid) -> [u8; 8] {
    pool.as_bytes()[..8].try_into().expect("eight of sixteen")
}

impl Root {
    /// The root's bytes, in a pool that was created with so many bands for each shard; the rest of its blocks is zero.
    pub(crate) fn encode(&self, pool: Uuid, created_bands: u32) -> Vec<u8> {
        let is_counted = self.bands.len() as u32 != created_bands;
        let flags = if self.log.is_closed { LOG_CLOSED } else { 0 } | if is_counted { BANDS_COUNTED } else { 0 };
        let header = RawHeader {
            magic: MAGIC,
            crc: U32::ZERO,
            shard: self.shard.into(),
            flags: flags.into(),
            pool: pool_mark(pool),
            generation: self.generation.into(),
            epoch: self.epoch.into(),
            tables: (self.tables.len() as u32).into(),
            tail_segment: self.tail.segment.into(),
            tail_lsn: self.tail.lsn.into(),
            log_durable: self.log.durable_lsn.into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        if is_counted {
            bytes.extend(RawCount { bands: (self.bands.len() as u32).into(), reserved: [0; 4] }.as_bytes());
        }
        for table in &self.tables {
            let (crc, slot) = table.map_or((0, NO_SLOT), |table| (table.crc, table.slot));
            bytes.extend(RawEntry { crc: crc.into(), slot, reserved: [0; 3] }.as_bytes());
        }
        self.bands.iter().for_each(|band| bytes.extend(band.encode()));
        let crc = crc32c(&bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The root at the start of `bytes`, its blocks, of a shard with these bands.
    pub(crate) fn decode(bytes: &[u8], pool: Uuid, shard: u16, bands: RootBands) -> Result<Root, Malformed> {
        let (header, rest) = RawHeader::read_from_prefix(bytes).map_err(|_| SHORT)?;
        if header.magic != MAGIC {
            return Err(Malformed("it has no magic number"));
        }
        let RootBands { created, all, band_blocks } = bands;
        let is_counted = header.flags.get() & BANDS_COUNTED != 0;
        let (count, rest) = rest.split_at_checked(if is_counted { COUNT_BYTES } else { 0 }).ok_or(SHORT)?;
        let bands = RawCount::read_from_bytes(count).map_or(created, |count| count.bands.get());
        let entries_bytes = header.tables.get() as usize * ENTRY_BYTES;
        let bands_bytes = bands as usize * BAND_ENTRY_BYTES;
        let whole = entries_bytes.checked_add(bands_bytes).and_then(|bytes| rest.get(..bytes));
        let (entries, band_entries) = whole.ok_or(Malformed("it has more entries than room"))?.split_at(entries_bytes);
        let zeroed = RawHeader { crc: U32::ZERO, ..header };
        if base::crc::crc32c_slices([zeroed.as_bytes(), count, entries, band_entries]) != header.crc.get() {
            return Err(Malformed("its checksum is wrong"));
        }
        if bands > all {
            return Err(Malformed("it has more bands than the shard"));
        }
        let numbers = [header.tail_segment.get(), header.tail_lsn.get(), header.log_durable.get()];
        if numbers.iter().any(|number| *number >= READ_NUMBER_MAX) {
            return Err(Malformed("a number of the log is out of range"));
        }
        if header.shard != shard || header.pool != pool_mark(pool) {
            return Err(Malformed("it belongs to another shard or pool"));
        }
        let mut tables = Vec::with_capacity(entries.len() / ENTRY_BYTES);
        for bytes in entries.chunks_exact(ENTRY_BYTES) {
            let raw = RawEntry::read_from_bytes(bytes).expect("the sizes are equal");
            tables.push(match raw.slot {
                NO_SLOT => None,
                slot @ (0 | 1) => Some(TableRef { crc: raw.crc.get(), slot }),
                _ => return Err(Malformed("a table page is in no slot")),
            });
        }
        let mut bands = Vec::with_capacity(band_entries.len() / BAND_ENTRY_BYTES);
        for bytes in band_entries.chunks_exact(BAND_ENTRY_BYTES) {
            bands.push(BandEntry::decode(bytes, band_blocks)?);
        }
        Ok(Root {
            shard,
            generation: generation(header.generation.get())?,
            epoch: header.epoch.get(),
            tail: LogTail { segment: header.tail_segment.get(), lsn: header.tail_lsn.get() },
            log: LogNote { durable_lsn: header.log_durable.get(), is_closed: header.flags.get() & LOG_CLOSED != 0 },
            tables,
            bands,
        })
    }
}
