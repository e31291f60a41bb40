//! Where everything of a pool lies: planning alone, no I/O.
//!
//! Metadata areas are sized at creation for sixteen times the capacity: growing adds regions and moves nothing.

use crate::error::Grounds;
use crate::format::catalog::catalog_bytes;
use crate::format::dirty::DIRTY_ENTRIES;
use crate::format::root::root_bytes;
use crate::format::superblock::{
    BandLayout, LOG_RESERVED_BLOCKS, LogKind, Opening, POOL_NAME_BYTES_MAX, REGION_ALIGN_BLOCKS, REGIONS_MAX, Region,
    Role, SHARD_EXTENTS_MAX, SHARD_LOG_BLOCKS_MAX, SHARDS_MAX, SUPERBLOCK_COPIES, Shape, Superblock, TABLE_DESCRIPTORS,
    UNIT_BLOCKS_MAX,
};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, SLICE_EXTENTS};
use thiserror::Error;
use uuid::Uuid;

mod rows;
mod shaped;

pub(crate) use rows::fault as rows_fault;
pub use rows::{RowLayout, ZoneLayout};
pub use shaped::{OVERPROVISION_DEFAULT, OVERPROVISION_MAX, OVERPROVISION_MIN, UNIT_BLOCKS_DEFAULT};

const MIB_BLOCKS: u64 = (1 << 20) / BLOCK_BYTES as u64;
const GIB_BLOCKS: u64 = MIB_BLOCKS << 10;
/// Smallest log device, and the least share of it that a shard gets.
pub const LOG_BLOCKS_MIN: u64 = 64 * MIB_BLOCKS;
/// Smallest capacity device.
pub const CAPACITY_BLOCKS_MIN: u64 = 256 * MIB_BLOCKS;
/// Least segments of a shard: fewer would let a single one being closed take a large part of the log.
pub const SEGMENTS_MIN: u32 = 32;
/// Sizes of segments: the smallest holds several of the largest records, the largest is freed in one go.
pub const SEGMENT_BLOCKS_MIN: u32 = MIB_BLOCKS as u32;
/// See [`SEGMENT_BLOCKS_MIN`].
pub const SEGMENT_BLOCKS_MAX: u32 = 16 * MIB_BLOCKS as u32;
/// Most volumes that may be asked for: a catalog of 16 MiB, twice.
pub const VOLUMES_MAX: u32 = 65_536;
/// Shards that are planned unless told otherwise.
const SHARDS_DEFAULT_MAX: u64 = 8;
/// How much larger the capacity may become without moving a root or a journal.
const GROWTH: u64 = 16;
/// Additions to a journal copy between two compactions, beyond those that its base is written over.
const JOURNAL_SPARE_BLOCKS: u64 = 64;

/// What a pool shall be like.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Its name, 1 to 64 bytes.
    pub name: String,
    /// How blocks are placed.
    pub shape: Shape,
    /// Of a shaped pool: percent of the bands' space that volumes do not get.
    pub overprovision: Option<u8>,
    /// Of a shaped pool: blocks of a band, a power of two; over rows a multiple of the unit.
    pub band_blocks: Option<u32>,
    /// Of a shaped pool: blocks of which writes to the capacity device are multiples, a power of two; best the drive's
    /// indirection unit. Over rows a multiple of a row.
    pub unit_blocks: Option<u32>,
    /// Of a shaped pool: blocks of the capacity device up to which the log device keeps room for the index of a pool that grows.
    pub grow_to_blocks: Option<u64>,
    /// The rows of the capacity device; [`Pool::plan`](crate::Pool::plan) fills them in.
    pub rows: Option<RowLayout>,
    /// Number of shards.
    pub shards: Option<u16>,
    /// Blocks of a segment, a power of two.
    pub segment_blocks: Option<u32>,
    /// How records are appended.
    pub log_kind: LogKind,
    /// Volumes for which the catalog has room.
    pub volumes_max: Option<u32>,
    /// Its UUID, by which what is half made is known again; chosen at random unless given.
    pub pool: Option<Uuid>,
    /// Sizes below the minimum and segments of any size, for simulations and tests: everything works, nothing fast.
    pub tiny: bool,
}

impl Default for CreateOptions {
    fn default() -> CreateOptions {
        CreateOptions {
            name: String::new(),
            shape: Shape::Hot,
            overprovision: None,
            band_blocks: None,
            unit_blocks: None,
            grow_to_blocks: None,
            rows: None,
            shards: None,
            segment_blocks: None,
            log_kind: LogKind::Block,
            volumes_max: None,
            pool: None,
            tiny: false,
        }
    }
}

/// The identities of a new pool and its devices.
#[derive(Clone, Copy, Debug)]
pub struct Identities {
    /// The pool.
    pub pool: Uuid,
    /// Its log device.
    pub log: Uuid,
    /// Its capacity device.
    pub capacity: Uuid,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The log device is too small.
    #[error("the log device has {} MiB: a log device needs at least {} MiB (and a capacity device {} MiB)",
        .blocks / MIB_BLOCKS, LOG_BLOCKS_MIN / MIB_BLOCKS, CAPACITY_BLOCKS_MIN / MIB_BLOCKS)]
    LogTooSmall {
        /// Its size.
        blocks: u64,
    },
    /// The capacity device is too small.
    #[error("the capacity device has {} MiB: a capacity device needs at least {} MiB (and a log device {} MiB)",
        .blocks / MIB_BLOCKS, CAPACITY_BLOCKS_MIN / MIB_BLOCKS, LOG_BLOCKS_MIN / MIB_BLOCKS)]
    CapacityTooSmall {
        /// Its size.
        blocks: u64,
    },
    /// The name cannot be written down.
    #[error("the pool's name needs 1 to {POOL_NAME_BYTES_MAX} bytes, none of them zero")]
    Name,
    /// The devices are too small for so many shards.
    #[error("{shards} shards: these devices have room for 1 to {most} ({} MiB of log and {} MiB of capacity each)",
        LOG_BLOCKS_MIN / MIB_BLOCKS, SLICE_EXTENTS * EXTENT_BLOCKS / MIB_BLOCKS as u32)]
    Shards {
        /// As asked.
        shards: u16,
        /// Possible.
        most: u16,
    },
    /// No segments of this size.
    #[error("segments of {} KiB: expected a power of two from {} to {} KiB", u64::from(*.blocks) * 4, SEGMENT_BLOCKS_MIN * 4, .most * 4)]
    Segment {
        /// As asked.
        blocks: u32,
        /// Possible with this log.
        most: u32,
    },
    /// No catalog for so many volumes.
    #[error("room for {volumes} volumes: expected 1 to {most} on a capacity device of this size")]
    Volumes {
        /// As asked.
        volumes: u32,
        /// Possible.
        most: u32,
    },
    /// No room for the index of a shaped pool.
    #[error("the log device has {} MiB: beside a log of at least {} MiB it has to hold the index of a shaped pool, \
        here {} MiB (0.4 % of the capacity)",
        .blocks / MIB_BLOCKS, LOG_BLOCKS_MIN / MIB_BLOCKS, .index.div_ceil(MIB_BLOCKS))]
    IndexTooLarge {
        /// Size of the log device.
        blocks: u64,
        /// Size of the index.
        index: u64,
    },
    /// No room for the index of what a shaped pool would grow by.
    #[error("the log device has {} MiB and no room for the index of what would be added: that takes a log device of {} MiB \
        (enlarge it; a new pool keeps room with --grow-to)", .blocks / MIB_BLOCKS, .needed.div_ceil(MIB_BLOCKS))]
    IndexFull {
        /// Size of the log device.
        blocks: u64,
        /// Size that suffices.
        needed: u64,
    },
    /// Room to grow to less than there is.
    #[error("room to grow to {} MiB: the capacity device has {} already", .blocks / MIB_BLOCKS, .capacity / MIB_BLOCKS)]
    GrowTo {
        /// As asked.
        blocks: u64,
        /// What there is.
        capacity: u64,
    },
    /// Too few bands.
    #[error("bands of {} KiB: the capacity device gives each of {shards} shards {bands} of them, and {least} are the least; \
        use smaller bands, fewer shards or a larger device", .band_blocks * 4)]
    Bands {
        /// Blocks of a band.
        band_blocks: u32,
        /// Shards.
        shards: u16,
        /// Bands of each.
        bands: u64,
        /// Bands that each needs.
        least: u32,
    },
    /// A size of a shaped pool that is no power of two, or out of bounds.
    #[error("{what} of {} KiB: expected a power of two from {} to {} KiB", u64::from(*.blocks) * 4, .least * 4, .most * 4)]
    BandSize {
        /// Which size.
        what: &'static str,
        /// As asked.
        blocks: u32,
        /// Possible.
        least: u32,
        /// Possible.
        most: u32,
    },
    /// A size of a shaped pool over rows that is no multiple of what it has to be, or out of bounds.
    #[error("{what} of {} KiB: expected a multiple of {} KiB, from {} to {} KiB",
        u64::from(*.blocks) * 4, .of * 4, .least * 4, .most * 4)]
    RowSize {
        /// Which size.
        what: &'static str,
        /// As asked.
        blocks: u32,
        /// The row or the unit.
        of: u32,
        /// Possible.
        least: u32,
        /// Possible.
        most: u32,
    },
    /// A size of bands over zones.
    #[error("bands of {} KiB: on a zoned device a band is a zone, of {} KiB; leave the size out", u64::from(*.asked) * 4, .blocks * 4)]
    ZoneSize {
        /// As asked.
        asked: u32,
        /// Of a zone.
        blocks: u32,
    },
    /// A unit of writes that zones are not made of.
    #[error(
        "a unit of writes of {} KiB: expected a multiple of {} KiB that divides a zone's {} KiB, up to {} KiB",
        u64::from(*.blocks) * 4, .row * 4, .zone * 4, UNIT_BLOCKS_MAX * 4
    )]
    ZoneUnit {
        /// As asked.
        blocks: u32,
        /// Blocks of a row.
        row: u32,
        /// Of a zone.
        zone: u32,
    },
    /// Too many shards for a zoned device.
    #[error("{shards} shards keep up to {needed} zones open, and the capacity device allows {open_max}: {}",
        if *.most > 0 { format!("make the pool with {most} shards or fewer (--shards {most})") }
        else { "too few for any pool; use a device that allows 3 or more".to_string() })]
    OpenZones {
        /// Allowed by the device.
        open_max: u32,
        /// As asked.
        shards: u16,
        /// Zones that these need.
        needed: u32,
        /// Shards that would do.
        most: u32,
    },
    /// A hot pool over rows.
    #[error("the capacity device is written in whole rows alone; make the pool a shaped one (--shape shaped)")]
    RowsNotShaped,
    /// What is in front of the rows does not suffice.
    #[error("the capacity device has {} KiB in front of its rows, and the pool keeps {} KiB there; make the device anew \
        with a larger head", .blocks * 4, .needed * 4)]
    HeadTooSmall {
        /// What there is.
        blocks: u64,
        /// What it takes.
        needed: u64,
    },
    /// Over-provisioning out of bounds.
    #[error("over-provisioning of {0} %: expected {OVERPROVISION_MIN} to {OVERPROVISION_MAX}")]
    Overprovision(u8),
    /// Only for shaped pools.
    #[error("{0} is for shaped pools")]
    NotShaped(&'static str),
    /// The new size adds nothing.
    #[error("the capacity device has {} MiB: growing this pool takes at least {}",
        .blocks / MIB_BLOCKS, .least.div_ceil(MIB_BLOCKS))]
    GrowTooSmall {
        /// Its size.
        blocks: u64,
        /// Size from which on growing works.
        least: u64,
    },
    /// The pool has grown as far as it can.
    #[error("the pool cannot grow further: {0}; create a new pool and copy its volumes")]
    GrownUp(&'static str),
}

impl PlanError {
    /// On what grounds a pool is refused of which there is no plan.
    pub fn grounds(&self) -> Grounds {
        match self {
            PlanError::LogTooSmall { .. }
            | PlanError::CapacityTooSmall { .. }
            | PlanError::IndexTooLarge { .. }
            | PlanError::IndexFull { .. }
            | PlanError::HeadTooSmall { .. }
            | PlanError::GrowTooSmall { .. }
            | PlanError::GrownUp(_) => Grounds::Room,
            PlanError::Name
            | PlanError::Shards { .. }
            | PlanError::Segment { .. }
            | PlanError::Volumes { .. }
            | PlanError::GrowTo { .. }
            | PlanError::Bands { .. }
            | PlanError::BandSize { .. }
            | PlanError::RowSize { .. }
            | PlanError::ZoneSize { .. }
            | PlanError::ZoneUnit { .. }
            | PlanError::OpenZones { .. }
            | PlanError::RowsNotShaped
            | PlanError::Overprovision(_)
            | PlanError::NotShaped(_) => Grounds::Value,
        }
    }
}

/// Plans a pool: the superblocks of its log device and of its capacity device.
pub fn plan(
    log_blocks: u64,
    capacity_blocks: u64,
    options: &CreateOptions,
    identities: Identities,
    created_s: u64,
) -> Result<(Superblock, Superblock), PlanError> {
    if log_blocks < LOG_BLOCKS_MIN && !options.tiny {
        return Err(PlanError::LogTooSmall { blocks: log_blocks });
    }
    if capacity_blocks < CAPACITY_BLOCKS_MIN && !options.tiny {
        return Err(PlanError::CapacityTooSmall { blocks: capacity_blocks });
    }
    if options.name.is_empty() || options.name.len() > POOL_NAME_BYTES_MAX || options.name.contains('\0') {
        return Err(PlanError::Name);
    }
    let shards = match options.shards {
        Some(shards) if options.tiny => shards.clamp(1, SHARDS_MAX),
        asked => {
            let most = options.rows.and_then(|rows| rows.zones).map_or(u32::MAX, |zones| zones.shards_max());
            let planned = plan_shards(log_blocks, capacity_blocks, asked)?;
            // As many as the open zones of a zoned device allow, unless a number is asked for.
            if asked.is_none() { planned.min(most.clamp(1, SHARDS_MAX as u32) as u16) } else { planned }
        }
    };
    let bands = match options.shape {
        Shape::Shaped => Some(shaped::plan_bands(capacity_blocks, shards, log_blocks, options)?),
        Shape::Hot if options.rows.is_some() => return Err(PlanError::RowsNotShaped),
        Shape::Hot => {
            shaped::refuse_options(options)?;
            None
        }
    };
    let index_blocks = bands
        .as_ref()
        .map_or(0, |bands| bands.index_blocks() + bands.spare_blocks(if options.tiny { 0 } else { log_blocks }));
    let left = log_blocks.saturating_sub(LOG_RESERVED_BLOCKS as u64 + index_blocks);
    if bands.is_some() && left < shards as u64 * LOG_BLOCKS_MIN / 2 && !options.tiny {
        return Err(PlanError::IndexTooLarge { blocks: log_blocks, index: index_blocks });
    }
    let shard_log = (left / shards as u64).min(SHARD_LOG_BLOCKS_MAX);
    let segment_blocks = match options.segment_blocks {
        Some(blocks) if options.tiny => blocks,
        asked => plan_segment(shard_log, asked)?,
    };
    let catalog_blocks = plan_catalog(capacity_blocks, options.volumes_max)?;
    let shard_extents = shard_extents_at_most(capacity_blocks, shards);
    let mut capacity = Superblock {
        read_only_features: 0,
        compatible_features: 0,
        pool: identities.pool,
        device: identities.capacity,
        other: identities.log,
        generation: 0,
        epoch: 0,
        opening: Opening::default(),
        role: Role::Capacity,
        shape: options.shape,
        shards,
        log_blocks,
        capacity_blocks,
        segment_blocks,
        segments: (shard_log / segment_blocks as u64) as u32,
        segments_start: LOG_RESERVED_BLOCKS,
        log_kind: options.log_kind,
        catalog_start: SUPERBLOCK_COPIES as u32,
        catalog_blocks,
        shards_start: SUPERBLOCK_COPIES as u32 + 2 * catalog_blocks,
        root_blocks: bands.as_ref().map_or_else(|| plan_root(shard_extents, 0, 0), |bands| bands.root_blocks),
        journal_blocks: plan_journal(shard_extents, shard_log),
        layered: false,
        shadowed: false,
        created_s,
        name: options.name.clone(),
        bands: BandLayout::default(),
        regions: Vec::new(),
    };
    match bands {
        Some(bands) => bands.put(&mut capacity),
        None => {
            let start = capacity.shards_end();
            let added = add_regions(&mut capacity, start, |_, _| SHARD_EXTENTS_MAX);
            added.map_err(|_| PlanError::CapacityTooSmall { blocks: capacity_blocks })?;
        }
    }
    capacity.check().expect("a plan is sane");
    let log = Superblock { role: Role::Log, device: identities.log, other: identities.capacity, ..capacity.clone() };
    Ok((log, capacity))
}

/// Plans the use of a capacity device that has become larger: each shard gets a region more. What is there stays where it
/// is. For the superblocks of both devices.
///
/// A shaped pool gets bands of the new space, and extents in proportion: as many as the log device, of `new_log_blocks` by now, has
/// room for the index of. What is left over of the new space, the superblock does not count.
pub fn plan_grow(current: &Superblock, new_log_blocks: u64, new_capacity_blocks: u64) -> Result<Superblock, PlanError> {
    let mut grown = current.clone();
    if current.regions.len() + current.shards as usize > REGIONS_MAX {
        return Err(PlanError::GrownUp("its superblock has no room for another region of each shard"));
    }
    if (0..current.shards).any(|shard| current.shard_extents(shard) == SHARD_EXTENTS_MAX) {
        return Err(PlanError::GrownUp("a shard addresses at most 16 TiB"));
    }
    if current.shape == Shape::Shaped {
        shaped::grow(&mut grown, new_log_blocks, new_capacity_blocks)?;
        // What was read may be sane and no plan of ours.
        grown.check().map_err(PlanError::GrownUp)?;
        return Ok(grown);
    }
    let start = current.regions.iter().map(Region::end).max().unwrap_or(current.shards_end());
    grown.capacity_blocks = new_capacity_blocks;
    // As many table pages as a root has room for.
    let (empty, entry) = (root_bytes(0, 0, 0), root_bytes(1, 0, 0) - root_bytes(0, 0, 0));
    let tables_most = (grown.root_blocks as u64 * BLOCK_BYTES as u64).saturating_sub(empty) / entry;
    let room = |pool: &Superblock, shard: u16| {
        let tables = tables_most.saturating_sub(pool.shard_table_pages(shard) as u64);
        (tables * TABLE_DESCRIPTORS as u64).min(SHARD_EXTENTS_MAX as u64) as u32
    };
    if (0..grown.shards).any(|shard| room(current, shard) == 0) {
        return Err(PlanError::GrownUp("its roots are full"));
    }
    let added = add_regions(&mut grown, start, room);
    added.map_err(|least| PlanError::GrowTooSmall { blocks: new_capacity_blocks, least })?;
    if (0..grown.shards).any(|shard| room(&grown, shard) == 0) {
        grown.capacity_blocks = grown.regions.iter().map(Region::end).max().expect("regions were added");
    }
    grown.check().map_err(PlanError::GrownUp)?;
    Ok(grown)
}

/// Shares the blocks from `start` on among the shards, each of which takes so many extents at most. `Err`: the size of the device from
/// which on each gets some.
fn add_regions(superblock: &mut Superblock, start: u64, room: impl Fn(&Superblock, u16) -> u32) -> Result<(), u64> {
    let shards = superblock.shards as u64;
    let least = start + shards * smallest_region_blocks();
    if superblock.capacity_blocks < least {
        return Err(least);
    }
    let mut at = start;
    for shard in 0..superblock.shards {
        let share = (superblock.capacity_blocks - at) / (shards - shard as u64);
        let first_extent = superblock.shard_extents(shard);
        let extents = extents_in(at, share).min(SHARD_EXTENTS_MAX - first_extent).min(room(superblock, shard));
        let region = Region { shape: Shape::Hot, start: at, first_extent, extents, shard, bands: 0 };
        at = region.end();
        superblock.regions.push(region);
    }
    Ok(())
}

/// Blocks in which an extent fits wherever they begin.
fn smallest_region_blocks() -> u64 {
    // Two slots of a table page, two of a map page, and the most that aligning the data may skip.
    4 + REGION_ALIGN_BLOCKS - 1 + EXTENT_BLOCKS as u64
}

/// Most extents of a region of `blocks` blocks from `start` on.
fn extents_in(start: u64, blocks: u64) -> u32 {
    // An extent takes its blocks and the two slots of its map page; table pages and alignment take a few more.
    let mut extents = (blocks / (EXTENT_BLOCKS as u64 + 2)).min(SHARD_EXTENTS_MAX as u64) as u32;
    let fits = |extents| {
        Region { shape: Shape::Hot, start, first_extent: 0, extents, shard: 0, bands: 0 }.end() <= start + blocks
    };
    while extents > 0 && !fits(extents) {
        extents -= 1;
    }
    extents
}

fn plan_shards(log_blocks: u64, capacity_blocks: u64, asked: Option<u16>) -> Result<u16, PlanError> {
    let by_log = log_blocks / LOG_BLOCKS_MIN;
    let by_capacity = capacity_blocks / (SLICE_EXTENTS as u64 * EXTENT_BLOCKS as u64) / 2;
    let most = by_log.min(by_capacity).clamp(1, SHARDS_MAX as u64) as u16;
    match asked {
        Some(shards) if shards == 0 || shards > most => Err(PlanError::Shards { shards, most }),
        Some(shards) => Ok(shards),
        None => {
            let addressed = capacity_blocks.div_ceil(SHARD_EXTENTS_MAX as u64 * EXTENT_BLOCKS as u64);
            let wanted = (capacity_blocks / (4 * GIB_BLOCKS)).clamp(1, SHARDS_DEFAULT_MAX).max(addressed);
            Ok(wanted.min(most as u64) as u16)
        }
    }
}

fn plan_segment(shard_log: u64, asked: Option<u32>) -> Result<u32, PlanError> {
    let floor_power = |blocks: u64| 1u32 << blocks.min(SEGMENT_BLOCKS_MAX as u64).ilog2();
    let most = floor_power(shard_log / SEGMENTS_MIN as u64);
    match asked {
        Some(blocks) if blocks.is_power_of_two() && (SEGMENT_BLOCKS_MIN..=most).contains(&blocks) => Ok(blocks),
        Some(blocks) => Err(PlanError::Segment { blocks, most }),
        None => Ok(floor_power(shard_log / 64).max(SEGMENT_BLOCKS_MIN)),
    }
}

fn plan_catalog(capacity_blocks: u64, asked: Option<u32>) -> Result<u32, PlanError> {
    let blocks = |volumes: u32| catalog_bytes(volumes as u64).div_ceil(BLOCK_BYTES as u64) as u32;
    // 4,096 from 1 GiB on, 0.2 % of the space in two copies; from 256 GiB on 16 for each GiB.
    let least = (capacity_blocks / (GIB_BLOCKS / 4_096)).clamp(1, 4_096);
    let usual = least.max(capacity_blocks / (GIB_BLOCKS / 16)).min(VOLUMES_MAX as u64) as u32;
    // At most about 3 % of the space.
    let most = (usual as u64 * 16).min(VOLUMES_MAX as u64) as u32;
    match asked {
        Some(volumes) if volumes == 0 || volumes > most => Err(PlanError::Volumes { volumes, most }),
        asked => Ok(blocks(asked.unwrap_or(usual))),
    }
}

fn shard_extents_at_most(capacity_blocks: u64, shards: u16) -> u64 {
    (capacity_blocks / EXTENT_BLOCKS as u64 / shards as u64).min(SHARD_EXTENTS_MAX as u64)
}

fn plan_root(shard_extents: u64, bands: u32, bands_most: u32) -> u32 {
    let grown = (shard_extents * GROWTH).min(SHARD_EXTENTS_MAX as u64);
    let grown_bands = (bands as u64 * GROWTH).min(bands_most as u64) as u32;
    // Each region may leave a part of its last table page unused.
    let tables = grown.div_ceil(TABLE_DESCRIPTORS as u64) + REGIONS_MAX as u64;
    root_bytes(tables as u32, grown_bands, bands).div_ceil(BLOCK_BYTES as u64) as u32
}

fn plan_journal(shard_extents: u64, shard_log: u64) -> u32 {
    // A slice in the journal has an extent, and at least a block in the log.
    let slices = (shard_extents * GROWTH).min(SHARD_EXTENTS_MAX as u64).min(shard_log);
    (slices.div_ceil(DIRTY_ENTRIES as u64) * 2 + JOURNAL_SPARE_BLOCKS) as u32
}

#[cfg(test)]
mod tests;
