//! The superblock: identity and geometry of a pool, on both of its devices. Bytes: `docs/formats/pool.md`.
//!
//! What decodes is sane: nothing overlaps, everything lies inside the devices, and every shard's extents are numbered
//! without gaps. So the rest of the engine computes places without checking them again.

use crate::format::generation;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use base::crc32c;
use thiserror::Error;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"RMDAPOOL";
/// The major version that this code reads and writes.
pub const VERSION_MAJOR: u16 = 1;
const VERSION_MINOR: u16 = 0;
/// Incompatible feature: the pool's shape is [`Shape::Shaped`].
const SHAPED: u64 = 1;
/// Incompatible feature: volumes of the pool may lie over others, see [`Superblock::layered`].
const LAYERED: u64 = 2;
/// Incompatible feature: the unit of writes of a shaped pool, or a band, need not be a power of two.
const ODD_UNITS: u64 = 4;
/// Incompatible feature: a shaped pool has grown; regions have brought bands with them, and roots count theirs.
const GROWN_BANDS: u64 = 8;
/// Incompatible feature: the capacity device of a shaped pool has a shadow of the index, see [`Superblock::shadow`].
const SHADOWED: u64 = 16;
/// Incompatible features that this code knows.
const INCOMPATIBLE_KNOWN: u64 = SHAPED | LAYERED | ODD_UNITS | GROWN_BANDS | SHADOWED;
/// A shadow answers for at most so many times the extents with which the pool was created, whatever room it has.
const SHADOW_MAX: u32 = 16;
/// Features that this code can write.
const WRITABLE_KNOWN: u64 = 0;

/// Copies of the superblock, in blocks 0 and 1 of each device.
pub const SUPERBLOCK_COPIES: u64 = 2;
/// Most regions of a pool.
pub const REGIONS_MAX: usize = 160;
/// Most shards of a pool.
pub const SHARDS_MAX: u16 = 64;
/// Most bytes of a pool's name.
pub const POOL_NAME_BYTES_MAX: usize = 64;
/// Extents that a shard can address: 2^32 blocks.
pub const SHARD_EXTENTS_MAX: u32 = 1 << 22;
/// Blocks of a shard's log that places in it can name: 2^32 units of 64 bytes.
pub const SHARD_LOG_BLOCKS_MAX: u64 = 1 << 26;
/// The first block of the log device that may belong to a segment.
pub const LOG_RESERVED_BLOCKS: u32 = 16;
/// The data of a region begin at a multiple of so many blocks (1 MiB).
pub const REGION_ALIGN_BLOCKS: u64 = 256;
/// Fewest bands of a shard: open ones, those that GC needs, and some to choose from.
pub const BANDS_MIN: u32 = 16;
/// Largest unit of writes to a band: a stripe.
pub const UNIT_BLOCKS_MAX: u32 = 256;
/// Descriptors in a table page.
pub const TABLE_DESCRIPTORS: u32 = 126;

/// Which of a pool's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The log device.
    Log,
    /// The capacity device.
    Capacity,
}

/// How a pool is made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A log device in front of a capacity device, blocks placed where their extent is.
    Hot,
    /// A log device, which has the index as well, in front of a capacity device that is written in long runs alone.
    Shaped,
}

impl Shape {
    /// As messages and options call it.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Hot => "hot",
            Shape::Shaped => "shaped",
        }
    }

    /// Of what a pool has of its log device and of its capacity device: that of the one with the index, and in a shaped pool that
    /// of the one with the bands.
    pub(crate) fn index_and_bands<T>(self, log: T, capacity: T) -> (T, Option<T>) {
        match self {
            Shape::Hot => (capacity, None),
            Shape::Shaped => (log, Some(capacity)),
        }
    }
}

/// How the capacity device of a shaped pool is cut up; all zero in other pools. Lengths are in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandLayout {
    /// First block of shard 0's first band, on the capacity device.
    pub start: u64,
    /// Bands of each shard, as created; what it has grown by is with the regions.
    pub bands: u32,
    /// Blocks of a band.
    pub band_blocks: u32,
    /// Writes to a band are multiples of this.
    pub unit_blocks: u32,
    /// First block of the index (roots, then regions), on the log device.
    pub index_start: u32,
}

impl BandLayout {
    /// Whether what reads it must be able to do with units and bands of any length.
    fn is_odd(&self) -> bool {
        let is_odd = |blocks: u32| blocks > 0 && !blocks.is_power_of_two();
        is_odd(self.unit_blocks) || is_odd(self.band_blocks)
    }
}

/// Bands of one shard that lie one after the other on the capacity device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandRun {
    /// First block of the first of them.
    pub start: u64,
    /// How many.
    pub bands: u32,
}

/// How records are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Stores and a fence.
    Mapped,
    /// Block writes of groups.
    Block,
}

impl std::fmt::Display for LogKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LogKind::Mapped => "for persistent memory",
            LogKind::Block => "for a block device",
        })
    }
}

/// Blocks of a map page: checksums, and in a shaped pool places.
pub fn map_page_blocks(shape: Shape) -> u32 {
    match shape {
        Shape::Hot => 1,
        Shape::Shaped => 2,
    }
}

/// A run of extents of one shard, with their table pages and map pages in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// What the pool is: in a shaped one, extents have no blocks of their own and map pages say where theirs are.
    pub shape: Shape,
    /// First block, of the first table page.
    pub start: u64,
    /// First extent, as its shard counts.
    pub first_extent: u32,
    /// Number of extents.
    pub extents: u32,
    /// Whose they are.
    pub shard: u16,
    /// Bands that came with it, when a shaped pool grew; 0 for the bands of [`BandLayout`].
    pub bands: u32,
}

impl Region {
    /// Number of table pages.
    pub fn table_pages(&self) -> u32 {
        self.extents.div_ceil(TABLE_DESCRIPTORS)
    }

    /// Block of a slot of the region's table page number `index`.
    pub fn table_slot(&self, index: u32, slot: u8) -> u64 {
        debug_assert!(index < self.table_pages() && slot < 2);
        self.start + index as u64 * 2 + slot as u64
    }

    /// Block of a slot of the map page of the region's extent number `index`.
    pub fn map_slot(&self, index: u32, slot: u8) -> u64 {
        debug_assert!(index < self.extents && slot < 2);
        self.start
            + self.table_pages() as u64 * 2
            + (index as u64 * 2 + slot as u64) * map_page_blocks(self.shape) as u64
    }

    /// First block after the pages.
    pub(crate) fn pages_end(&self) -> u64 {
        self.start + (self.table_pages() as u64 + self.extents as u64 * map_page_blocks(self.shape) as u64) * 2
    }

    /// Most extents whose pages, of a region of this shape, take no more than so many blocks.
    pub(crate) fn extents_of_pages(shape: Shape, blocks: u64) -> u64 {
        let (of_table, of_page) = (2, 2 * map_page_blocks(shape) as u64);
        let table = of_table + TABLE_DESCRIPTORS as u64 * of_page;
        let rest = (blocks % table).saturating_sub(of_table) / of_page;
        blocks / table * TABLE_DESCRIPTORS as u64 + rest
    }

    /// First block of the first extent, where extents have blocks.
    pub fn data_start(&self) -> u64 {
        self.pages_end().next_multiple_of(REGION_ALIGN_BLOCKS)
    }

    /// The block after the last extent.
    pub fn end(&self) -> u64 {
        match self.shape {
            Shape::Hot => self.data_start() + self.extents as u64 * EXTENT_BLOCKS as u64,
            Shape::Shaped => self.pages_end(),
        }
    }
}

/// Identity and geometry. All places and lengths are in blocks of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Features without which a pool may only be read.
    pub read_only_features: u64,
    /// Features that may be ignored.
    pub compatible_features: u64,
    /// The pool.
    pub pool: Uuid,
    /// This device.
    pub device: Uuid,
    /// The pool's other device.
    pub other: Uuid,
    /// Larger is newer.
    pub generation: u64,
    /// Raised by every open.
    pub epoch: u32,
    /// Which opening that was.
    pub opening: Opening,
    /// What this device is.
    pub role: Role,
    /// What the pool is.
    pub shape: Shape,
    /// Number of shards.
    pub shards: u16,
    /// Blocks of the log device that the pool uses.
    pub log_blocks: u64,
    /// Blocks of the capacity device that the pool uses.
    pub capacity_blocks: u64,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Segments of each shard.
    pub segments: u32,
    /// First block of shard 0's first segment.
    pub segments_start: u32,
    /// How records are appended.
    pub log_kind: LogKind,
    /// First block of the catalog.
    pub catalog_start: u32,
    /// Blocks of one of its two copies.
    pub catalog_blocks: u32,
    /// First block of shard 0's root.
    pub shards_start: u32,
    /// Blocks of one of a shard's two roots.
    pub root_blocks: u32,
    /// Blocks of one of a shard's two journals.
    pub journal_blocks: u32,
    /// Volumes may lie over others: a snapshot or a clone was made once.
    pub layered: bool,
    /// A shaped pool has a [shadow](Self::shadow) of its index on the capacity device.
    pub shadowed: bool,
    /// When the pool was created, seconds since 1970.
    pub created_s: u64,
    /// The pool's name.
    pub name: String,
    /// The bands of a shaped pool.
    pub bands: BandLayout,
    /// Where the extents are: on the capacity device, in a shaped pool on the log device.
    pub regions: Vec<Region>,
}

/// What an opening of a pool is known by. Copies of a pool that are used apart count their openings alike; these differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// Chosen at random. 0: it is not known, since an older program opened the pool, or nobody did.
    pub id: u64,
    /// The last opening that the capacity device had seen before.
    pub before: u64,
}

impl Opening {
    /// The next one, after `self` of the capacity device.
    pub(crate) fn next(self, random: u64) -> Opening {
        Opening { id: random.max(1), before: self.id }
    }
}

/// Why a block is not a superblock that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SuperblockError {
    /// No trace of a pool.
    #[error("{}", if *.blank { "the device is blank: it holds no pool" } else { "the device holds no pool, but other data" })]
    NotAPool {
        /// Nothing but zeroes was found.
        blank: bool,
    },
    /// It was a superblock.
    #[error("the superblock is damaged ({0}); restore it from the pool's other device or from a backup")]
    Damaged(&'static str),
    /// Made by later software.
    #[error(
        "the pool has format {0}, and this program reads {VERSION_MAJOR}; use the program that wrote it, or a newer one"
    )]
    NewerVersion(u16),
    /// Made by later software, or by this one built otherwise.
    #[error("the pool uses features that this program does not know (bits {0:#x}); use a newer program")]
    UnknownFeature(u64),
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRegion {
    start: U64,
    first_extent: U32,
    extents: U32,
    shard: U16,
    bands: U32,
    /// Not of the region: see [`RawSuperblock::spare`].
    spare: [u8; 2],
}

/// What the spare bytes of the table's entries are together.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSpare {
    opening: U64,
    opening_before: U64,
    reserved: [u8; 2 * REGIONS_MAX - 16],
}

/// Whether a block is a superblock of this pool, whole or torn.
pub(crate) fn names_pool(block: &[u8], pool: Uuid) -> bool {
    let at = std::mem::offset_of!(RawSuperblock, pool);
    block.starts_with(&MAGIC) && block[at..at + 16] == *pool.as_bytes()
}

/// Takes out of a block that is a superblock, whole or torn, by which opening it was written: every opening writes something else there.
pub(crate) fn without_opening(block: &mut [u8; BLOCK_BYTES]) {
    let raw: &mut RawSuperblock = zerocopy::transmute_mut!(block);
    raw.set_spare(RawSpare { opening: U64::ZERO, opening_before: U64::ZERO, ..raw.spare() });
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSuperblock {
    magic: [u8; 8],
    crc: U32,
    major: U16,
    minor: U16,
    incompatible: U64,
    read_only: U64,
    compatible: U64,
    pool: [u8; 16],
    device: [u8; 16],
    other: [u8; 16],
    generation: U64,
    epoch: U32,
    role: u8,
    shape: u8,
    shards: U16,
    segment_blocks: U32,
    segments: U32,
    segments_start: U32,
    log_kind: u8,
    reserved_a: [u8; 3],
    log_blocks: U64,
    catalog_start: U32,
    catalog_blocks: U32,
    shards_start: U32,
    root_blocks: U32,
    journal_blocks: U32,
    regions_used: U32,
    created_s: U64,
    name: [u8; POOL_NAME_BYTES_MAX],
    capacity_blocks: U64,
    bands_start: U64,
    bands: U32,
    band_blocks: U32,
    unit_blocks: U32,
    index_start: U32,
    regions: [RawRegion; REGIONS_MAX],
}

const _: () = assert!(size_of::<RawSuperblock>() == BLOCK_BYTES && size_of::<RawRegion>() == 24);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, generation) == 88);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, segment_blocks) == 104);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, log_blocks) == 120);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, created_s) == 152);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, capacity_blocks) == 224);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, regions) == 256);

impl RawSuperblock {
    fn spare(&self) -> RawSpare {
        let mut bytes = [0; 2 * REGIONS_MAX];
        bytes.chunks_exact_mut(2).zip(&self.regions).for_each(|(two, region)| two.copy_from_slice(&region.spare));
        zerocopy::transmute!(bytes)
    }

    fn set_spare(&mut self, spare: RawSpare) {
        let bytes: [u8; 2 * REGIONS_MAX] = zerocopy::transmute!(spare);
        bytes.chunks_exact(2).zip(&mut self.regions).for_each(|(two, region)| region.spare.copy_from_slice(two));
    }
}

impl Superblock {
    /// What the pool's other device says.
    pub(crate) fn counterpart(&self) -> Superblock {
        let role = match self.role {
            Role::Log => Role::Capacity,
            Role::Capacity => Role::Log,
        };
        Superblock { role, device: self.other, other: self.device, ..self.clone() }
    }

    /// What segments and roots carry of the pool's identity.
    pub fn pool_prefix(&self) -> [u8; 8] {
        self.pool.as_bytes()[..8].try_into().expect("a UUID has 16 bytes")
    }

    /// Whether every feature that writing needs is known here.
    pub fn is_writable(&self) -> bool {
        self.unwritable_features() == 0
    }

    /// Features of the pool because of which this program may only read it.
    pub fn unwritable_features(&self) -> u64 {
        self.read_only_features & !WRITABLE_KNOWN
    }

    /// The regions of a shard, in the order of their extents.
    pub fn shard_regions(&self, shard: u16) -> impl Iterator<Item = &Region> {
        self.regions.iter().filter(move |region| region.shard == shard)
    }

    /// Number of extents of a shard.
    pub fn shard_extents(&self, shard: u16) -> u32 {
        self.shard_regions(shard).map(|region| region.extents).sum()
    }

    /// Number of table pages of a shard.
    pub fn shard_table_pages(&self, shard: u16) -> u32 {
        self.shard_regions(shard).map(Region::table_pages).sum()
    }

    /// First block on the log device of segment place `place` of a shard.
    pub fn segment_start(&self, shard: u16, place: u32) -> u64 {
        debug_assert!(shard < self.shards && place < self.segments);
        let segments = shard as u64 * self.segments as u64 + place as u64;
        self.segments_start as u64 + segments * self.segment_blocks as u64
    }

    /// First block of a copy of the catalog.
    pub fn catalog_copy(&self, copy: u8) -> u64 {
        self.catalog_start as u64 + copy as u64 * self.catalog_blocks as u64
    }

    /// Blocks of the two roots of a shard that stand in front of its journals.
    fn roots_before_journals(&self) -> u64 {
        match self.shape {
            Shape::Shaped if !self.shadowed => 0,
            _ => self.root_blocks as u64 * 2,
        }
    }

    /// The store that a shaped pool keeps on its capacity device, between the journals and the bands, as that of a hot pool would
    /// say it: one region for each shard, of as many extents as there is room for, whose map pages have checksums and no places.
    /// `None`: it has no such shadow.
    pub fn shadow(&self) -> Option<Superblock> {
        if !self.shadowed {
            return None;
        }
        let (start, shards) = (self.shards_end(), self.shards as u64);
        let room = self.bands.start.saturating_sub(start) / shards;
        let region = |shard| {
            let created = self.shard_regions(shard).next().map_or(0, |region| region.extents);
            let most = created.saturating_mul(SHADOW_MAX).min(SHARD_EXTENTS_MAX);
            let extents = Region::extents_of_pages(Shape::Hot, room).min(most as u64) as u32;
            let start = start + shard as u64 * room;
            Region { shape: Shape::Hot, start, first_extent: 0, extents, shard, bands: 0 }
        };
        let regions = (0..self.shards).map(region).collect();
        Some(Superblock { shape: Shape::Hot, bands: BandLayout::default(), regions, ..self.clone() })
    }

    fn shard_start(&self, shard: u16) -> u64 {
        self.shards_start as u64 + shard as u64 * (self.roots_before_journals() + self.journal_blocks as u64 * 2)
    }

    /// First block of a copy of a shard's root, on the device that has the regions.
    pub fn root_copy(&self, shard: u16, copy: u8) -> u64 {
        let start = match self.shape {
            Shape::Hot => self.shard_start(shard),
            Shape::Shaped => self.bands.index_start as u64 + shard as u64 * self.root_blocks as u64 * 2,
        };
        start + copy as u64 * self.root_blocks as u64
    }

    /// First block of a copy of a shard's journal, on the capacity device.
    pub fn journal_copy(&self, shard: u16, copy: u8) -> u64 {
        self.shard_start(shard) + self.roots_before_journals() + copy as u64 * self.journal_blocks as u64
    }

    /// The first block after the roots of a shaped pool, on the log device.
    pub fn index_roots_end(&self) -> u64 {
        self.bands.index_start as u64 + self.shards as u64 * self.root_blocks as u64 * 2
    }

    /// Where the bands of a shard are on the capacity device, in the order of their numbers. Each time that the pool grew, a run
    /// for each shard came behind those that there were.
    pub fn band_runs(&self, shard: u16) -> impl Iterator<Item = BandRun> + '_ {
        let bands =
            std::iter::once(self.bands.bands).chain(self.shard_regions(shard).skip(1).map(|region| region.bands));
        bands.scan(self.bands.start, move |of_growth, bands| {
            let run_blocks = bands as u64 * self.bands.band_blocks as u64;
            let start = *of_growth + shard as u64 * run_blocks;
            *of_growth += self.shards as u64 * run_blocks;
            Some(BandRun { start, bands })
        })
    }

    /// Number of bands of each shard.
    pub fn shard_bands(&self) -> u32 {
        self.band_runs(0).map(|run| run.bands).sum()
    }

    /// The block after the last band, on the capacity device.
    pub fn bands_end(&self) -> u64 {
        self.bands.start + self.shards as u64 * self.shard_bands() as u64 * self.bands.band_blocks as u64
    }

    /// The block after the last root and journal.
    pub fn shards_end(&self) -> u64 {
        self.shard_start(self.shards)
    }

    fn has_grown_bands(&self) -> bool {
        self.regions.iter().any(|region| region.bands > 0)
    }

    /// The bytes of one copy. Panics when the geometry is not sane or the name too long: planning sees to both.
    pub fn encode(&self, block: &mut [u8; BLOCK_BYTES]) {
        self.check().unwrap_or_else(|reason| panic!("a superblock that could not be read again: {reason}"));
        let mut raw = RawSuperblock::new_zeroed();
        raw.magic = MAGIC;
        (raw.major, raw.minor) = (VERSION_MAJOR.into(), VERSION_MINOR.into());
        (raw.read_only, raw.compatible) = (self.read_only_features.into(), self.compatible_features.into());
        (raw.pool, raw.device, raw.other) = (self.pool.into_bytes(), self.device.into_bytes(), self.other.into_bytes());
        (raw.generation, raw.epoch) = (self.generation.into(), self.epoch.into());
        raw.role = match self.role {
            Role::Log => 1,
            Role::Capacity => 2,
        };
        (raw.shape, raw.incompatible) = match self.shape {
            Shape::Hot => (1, U64::ZERO),
            Shape::Shaped => (2, SHAPED.into()),
        };
        if self.layered {
            raw.incompatible = (raw.incompatible.get() | LAYERED).into();
        }
        if self.bands.is_odd() {
            raw.incompatible = (raw.incompatible.get() | ODD_UNITS).into();
        }
        if self.has_grown_bands() {
            raw.incompatible = (raw.incompatible.get() | GROWN_BANDS).into();
        }
        if self.shadowed {
            raw.incompatible = (raw.incompatible.get() | SHADOWED).into();
        }
        let bands = &self.bands;
        (raw.bands_start, raw.bands, raw.band_blocks) =
            (bands.start.into(), bands.bands.into(), bands.band_blocks.into());
        (raw.unit_blocks, raw.index_start) = (bands.unit_blocks.into(), bands.index_start.into());
        raw.log_kind = match self.log_kind {
            LogKind::Mapped => 1,
            LogKind::Block => 2,
        };
        raw.shards = self.shards.into();
        (raw.log_blocks, raw.capacity_blocks) = (self.log_blocks.into(), self.capacity_blocks.into());
        (raw.segment_blocks, raw.segments) = (self.segment_blocks.into(), self.segments.into());
        raw.segments_start = self.segments_start.into();
        (raw.catalog_start, raw.catalog_blocks) = (self.catalog_start.into(), self.catalog_blocks.into());
        raw.shards_start = self.shards_start.into();
        (raw.root_blocks, raw.journal_blocks) = (self.root_blocks.into(), self.journal_blocks.into());
        raw.regions_used = (self.regions.len() as u32).into();
        raw.created_s = self.created_s.into();
        raw.name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        for (raw, region) in raw.regions.iter_mut().zip(&self.regions) {
            (raw.start, raw.shard) = (region.start.into(), region.shard.into());
            (raw.first_extent, raw.extents) = (region.first_extent.into(), region.extents.into());
            raw.bands = region.bands.into();
        }
        let Opening { id, before } = self.opening;
        raw.set_spare(RawSpare { opening: id.into(), opening_before: before.into(), ..RawSpare::new_zeroed() });
        raw.crc = crc32c(raw.as_bytes()).into();
        block.copy_from_slice(raw.as_bytes());
    }

    /// The superblock in a block.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Superblock, SuperblockError> {
        let mut raw = RawSuperblock::read_from_bytes(block).expect("the sizes are equal");
        if raw.magic != MAGIC {
            return Err(SuperblockError::NotAPool { blank: block.iter().all(|byte| *byte == 0) });
        }
        let crc = std::mem::replace(&mut raw.crc, U32::ZERO);
        if crc32c(raw.as_bytes()) != crc.get() {
            return Err(SuperblockError::Damaged("its checksum is wrong"));
        }
        if raw.major != VERSION_MAJOR {
            return Err(SuperblockError::NewerVersion(raw.major.get()));
        }
        let unknown = raw.incompatible.get() & !INCOMPATIBLE_KNOWN;
        if unknown != 0 {
            return Err(SuperblockError::UnknownFeature(unknown));
        }
        let superblock = Superblock::of_raw(&raw).map_err(SuperblockError::Damaged)?;
        superblock.check().map_err(SuperblockError::Damaged)?;
        Ok(superblock)
    }

    fn of_raw(raw: &RawSuperblock) -> Result<Superblock, &'static str> {
        let regions = raw.regions.get(..raw.regions_used.get() as usize).ok_or("it has too many regions")?;
        let shape = match (raw.shape, raw.incompatible.get() & SHAPED) {
            (1, 0) => Shape::Hot,
            (2, SHAPED) => Shape::Shaped,
            _ => return Err("the shape of the pool is unknown"),
        };
        let region = |raw: &RawRegion| Region {
            shape,
            start: raw.start.get(),
            first_extent: raw.first_extent.get(),
            extents: raw.extents.get(),
            shard: raw.shard.get(),
            bands: raw.bands.get(),
        };
        if raw.incompatible.get() & GROWN_BANDS == 0 && regions.iter().any(|region| region.bands.get() > 0) {
            return Err("it has grown by bands and does not say so");
        }
        let bands = BandLayout {
            start: raw.bands_start.get(),
            bands: raw.bands.get(),
            band_blocks: raw.band_blocks.get(),
            unit_blocks: raw.unit_blocks.get(),
            index_start: raw.index_start.get(),
        };
        if bands.is_odd() && raw.incompatible.get() & ODD_UNITS == 0 {
            return Err("the bands or the unit of writes are no powers of two");
        }
        let spare = raw.spare();
        let used = raw.name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Ok(Superblock {
            read_only_features: raw.read_only.get(),
            compatible_features: raw.compatible.get(),
            pool: Uuid::from_bytes(raw.pool),
            device: Uuid::from_bytes(raw.device),
            other: Uuid::from_bytes(raw.other),
            generation: generation(raw.generation.get()).map_err(|error| error.0)?,
            epoch: raw.epoch.get(),
            opening: Opening { id: spare.opening.get(), before: spare.opening_before.get() },
            role: match raw.role {
                1 => Role::Log,
                2 => Role::Capacity,
                _ => return Err("the role of the device is unknown"),
            },
            shape,
            layered: raw.incompatible.get() & LAYERED != 0,
            shadowed: raw.incompatible.get() & SHADOWED != 0,
            shards: raw.shards.get(),
            log_blocks: raw.log_blocks.get(),
            capacity_blocks: raw.capacity_blocks.get(),
            segment_blocks: raw.segment_blocks.get(),
            segments: raw.segments.get(),
            segments_start: raw.segments_start.get(),
            log_kind: match raw.log_kind {
                1 => LogKind::Mapped,
                2 => LogKind::Block,
                _ => return Err("the kind of the log is unknown"),
            },
            catalog_start: raw.catalog_start.get(),
            catalog_blocks: raw.catalog_blocks.get(),
            shards_start: raw.shards_start.get(),
            root_blocks: raw.root_blocks.get(),
            journal_blocks: raw.journal_blocks.get(),
            created_s: raw.created_s.get(),
            bands,
            name: std::str::from_utf8(&raw.name[..used]).map_err(|_| "the name is not UTF-8")?.to_string(),
            regions: regions.iter().map(region).collect(),
        })
    }

    /// Whether the geometry can be used; if not, why.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let hold = |holds: bool, reason| if holds { Ok(()) } else { Err(reason) };
        hold(
            self.name.len() <= POOL_NAME_BYTES_MAX && !self.name.contains('\0'),
            "the name is too long or has zeroes",
        )?;
        hold(self.name.chars().all(base::is_shown), "the name has characters that nobody sees")?;
        hold((1..=SHARDS_MAX).contains(&self.shards), "the number of shards is not 1 to 64")?;
        // No product of the log's u32 and u16 fields overflows a u64.
        let shard_log = self.segment_blocks as u64 * self.segments as u64;
        hold(self.segments > 1 && self.segment_blocks > 1, "a shard's log has no segments")?;
        hold(shard_log <= SHARD_LOG_BLOCKS_MAX, "a shard's log is longer than its places can name")?;
        hold(self.segments_start >= LOG_RESERVED_BLOCKS, "the segments overlap the superblocks")?;
        let log_end = self.segments_start as u64 + shard_log * self.shards as u64;
        hold(log_end <= self.log_blocks, "the segments go past the end of the log device")?;
        let catalog = (self.catalog_start as u64, self.catalog_copy(2));
        let shards = (self.shards_start as u64, self.shards_end());
        hold(self.catalog_blocks > 0 && self.root_blocks > 0 && self.journal_blocks > 0, "an area is empty")?;
        // So that no sum of places overflows.
        hold(self.capacity_blocks <= u64::MAX >> 13 && self.log_blocks <= u64::MAX >> 13, "a device is too large")?;
        let metadata = [(0, SUPERBLOCK_COPIES), catalog, shards];
        match self.shape {
            Shape::Hot => {
                let has_bands = self.bands != BandLayout::default() || self.has_grown_bands();
                hold(!has_bands, "a pool that is not shaped has bands")?;
                hold(!self.shadowed, "a pool that is not shaped has a shadow")?;
                self.check_regions(&metadata, self.capacity_blocks)
            }
            Shape::Shaped => {
                self.check_bands(&metadata)?;
                self.check_regions(&[(0, log_end), (log_end, self.index_roots_end())], self.log_blocks)?;
                hold(self.bands.index_start as u64 >= log_end, "the index overlaps the segments")?;
                let shadow = self.shadow();
                let mut regions = shadow.iter().flat_map(|shadow| &shadow.regions);
                hold(regions.all(|region| region.extents > 0), "the shadow of the index has no room")
            }
        }
    }

    fn check_bands(&self, metadata: &[(u64, u64)]) -> Result<(), &'static str> {
        let BandLayout { start, bands, band_blocks, unit_blocks, .. } = self.bands;
        let is_unit = (1..=UNIT_BLOCKS_MAX).contains(&unit_blocks);
        if bands < BANDS_MIN || !is_unit || band_blocks < 2 || !band_blocks.is_multiple_of(unit_blocks) {
            return Err("the bands are too few, or no multiple of the unit of writes");
        }
        if self.regions.len() > REGIONS_MAX {
            return Err("there are too many regions");
        }
        let mut growths = [0u32; REGIONS_MAX];
        let mut shard_bands = bands as u64;
        for shard in 0..self.shards {
            let mut regions = self.shard_regions(shard).map(|region| region.bands);
            if regions.next().unwrap_or(0) != 0 {
                return Err("the first region of a shard has bands of its own");
            }
            let mut of_shard = 0;
            for (growth, bands) in regions.enumerate() {
                if bands == 0 || (shard > 0 && growths[growth] != bands) {
                    return Err("the shards have not grown by equally many bands");
                }
                (growths[growth], of_shard) = (bands, growth + 1);
                shard_bands += if shard == 0 { bands as u64 } else { 0 };
            }
            if growths[of_shard..].iter().any(|bands| *bands > 0) {
                return Err("the shards have not grown equally often");
            }
        }
        if shard_bands.checked_mul(band_blocks as u64).is_none_or(|blocks| blocks >= u32::MAX as u64) {
            return Err("a shard has more blocks in bands than its places can name");
        }
        let blocks = shard_bands * band_blocks as u64 * self.shards as u64;
        if start > self.capacity_blocks || start + blocks > self.capacity_blocks {
            return Err("the bands go past the end of the capacity device");
        }
        areas_fit(metadata.to_vec(), start)
    }

    /// The regions, on a device of so many blocks, beside what else is there.
    fn check_regions(&self, metadata: &[(u64, u64)], device_blocks: u64) -> Result<(), &'static str> {
        if self.regions.len() > REGIONS_MAX {
            return Err("there are too many regions");
        }
        let mut next_extent = [0u32; SHARDS_MAX as usize];
        let mut ranges = metadata.to_vec();
        for region in &self.regions {
            if region.shard >= self.shards {
                return Err("a region belongs to no shard");
            }
            let next = &mut next_extent[region.shard as usize];
            if region.extents == 0 || region.extents > SHARD_EXTENTS_MAX || region.first_extent != *next {
                return Err("the extents of a shard are not numbered in order");
            }
            *next += region.extents;
            if *next > SHARD_EXTENTS_MAX {
                return Err("a shard has more extents than it can address");
            }
            // So that the sums below cannot overflow.
            if region.start > device_blocks {
                return Err("a region goes past the end of its device");
            }
            ranges.push((region.start, region.end()));
        }
        if next_extent[..self.shards as usize].contains(&0) {
            return Err("a shard has no extents");
        }
        areas_fit(ranges, device_blocks)?;
        let tables = (0..self.shards).map(|shard| self.shard_table_pages(shard)).max().unwrap_or(0);
        let bands = super::root::RootBands::of(self);
        if super::root::root_bytes(tables, bands.all, bands.created) > self.root_blocks as u64 * BLOCK_BYTES as u64 {
            return Err("the roots have no room for all table pages");
        }
        Ok(())
    }
}

/// Whether areas of a device, from block to block, lie side by side in front of `end`.
fn areas_fit(mut areas: Vec<(u64, u64)>, end: u64) -> Result<(), &'static str> {
    areas.sort_unstable();
    if areas.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err("two areas of a device overlap");
    }
    if areas.last().is_some_and(|last| last.1 > end) {
        return Err("an area goes past the end of its device");
    }
    Ok(())
}

impl Role {
    /// As messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Log => "log",
            Role::Capacity => "capacity",
        }
    }
}
