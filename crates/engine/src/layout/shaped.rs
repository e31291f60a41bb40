//! Planning a shaped pool: bands on the capacity device, the index on the log device.
//!
//! ```text
//! capacity device   | superblock x2 | catalog x2 | roots of the shadow, journals | shadow | (aligned) bands of shard 0 | bands of shard 1 | ...
//! log device        | superblock x2 | segments | roots | regions (table pages, map pages)
//! ```

use super::rows::{RowLayout, ZoneLayout};
use super::{
    CreateOptions, GIB_BLOCKS, MIB_BLOCKS, PlanError, plan_catalog, plan_journal, plan_root, shard_extents_at_most,
};
use crate::bands::{RESERVE_BANDS, STREAMS, policy, stripe_blocks_max};
use crate::format::root::root_bytes;
use crate::format::superblock::{
    BANDS_MIN, BandLayout, REGION_ALIGN_BLOCKS, Region, SHARD_EXTENTS_MAX, SHARD_LOG_BLOCKS_MAX, SUPERBLOCK_COPIES,
    Shape, Superblock, UNIT_BLOCKS_MAX,
};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use std::cmp::Reverse;

/// Percent of the space that volumes do not get, unless told otherwise.
pub const OVERPROVISION_DEFAULT: u8 = 15;
/// Least over-provisioning, in percent: with less, most of what GC writes is what it has read.
pub const OVERPROVISION_MIN: u8 = 5;
/// Most over-provisioning, in percent.
pub const OVERPROVISION_MAX: u8 = 75;
/// Unit of writes unless told otherwise: 64 KiB, the largest indirection unit of today's drives.
pub const UNIT_BLOCKS_DEFAULT: u32 = 16;
const BAND_BLOCKS_MIN: u32 = MIB_BLOCKS as u32 * 4;
const BAND_BLOCKS_MAX: u32 = GIB_BLOCKS as u32;
/// Bands of a shard that are planned for where the device is large enough: few would make GC coarse.
const BANDS_WANTED: u64 = 256;
/// Units that a band has where that is no loss: the fewer there are, the more has to be kept free so that draining a band is a gain.
const BAND_UNITS_WANTED: u32 = 8;
/// Percent of what bands hold beside headers that is not lost to padding.
const UNPADDED: u64 = 98;

/// Blocks at the start that a pool wipes when it is destroyed.
const FRONT_BLOCKS_MIN: u64 = crate::pool::UNUSED_BYTES as u64 / BLOCK_BYTES as u64;

/// A plan of the bands and what describes them.
#[derive(Clone)]
pub(super) struct Bands {
    layout: BandLayout,
    shards: u16,
    extents: u32,
    pub(super) root_blocks: u32,
    /// Of the capacity device.
    capacity_blocks: u64,
    grow_to_blocks: Option<u64>,
    /// There is room for a shadow in front of the bands.
    shadowed: bool,
}

/// Blocks in front of the bands.
#[derive(Clone, Copy)]
struct Front {
    /// Superblocks, catalog and journals.
    needed: u64,
    /// The shadow of the index, and its roots.
    shadow: u64,
}

pub(super) fn refuse_options(options: &CreateOptions) -> Result<(), PlanError> {
    match options {
        CreateOptions { overprovision: Some(_), .. } => Err(PlanError::NotShaped("over-provisioning")),
        CreateOptions { band_blocks: Some(_), .. } => Err(PlanError::NotShaped("a size of bands")),
        CreateOptions { unit_blocks: Some(_), .. } => Err(PlanError::NotShaped("a unit of writes")),
        CreateOptions { grow_to_blocks: Some(_), .. } => Err(PlanError::NotShaped("room to grow")),
        _ => Ok(()),
    }
}

fn size(what: &'static str, blocks: u32, least: u32, most: u32) -> Result<u32, PlanError> {
    if blocks.is_power_of_two() && (least..=most).contains(&blocks) {
        return Ok(blocks);
    }
    Err(PlanError::BandSize { what, blocks, least, most })
}

/// Of a band over rows: a multiple of the unit, and so many that there is something in it that draining another one is worth.
fn row_band(blocks: u32, unit_blocks: u32) -> Result<u32, PlanError> {
    let one = RESERVE_BANDS as u64 + STREAMS as u64 + 1;
    let is_enough = |least: &u32| policy::collectable_blocks(one, *least, unit_blocks) > 0;
    let least = (2..).map(|units| units * unit_blocks).find(is_enough).expect("more units hold something");
    if blocks >= least && blocks.is_multiple_of(unit_blocks) && blocks <= BAND_BLOCKS_MAX {
        return Ok(blocks);
    }
    Err(PlanError::RowSize { what: "a band", blocks, of: unit_blocks, least, most: BAND_BLOCKS_MAX })
}

/// Over rows, as many as make the usual unit.
fn plan_unit(options: &CreateOptions) -> Result<u32, PlanError> {
    let what = "a unit of writes";
    let Some(rows) = options.rows else {
        return size(what, options.unit_blocks.unwrap_or(UNIT_BLOCKS_DEFAULT), 1, UNIT_BLOCKS_MAX);
    };
    let usual = UNIT_BLOCKS_DEFAULT.next_multiple_of(rows.blocks.max(1));
    if let Some(zones) = rows.zones {
        // Not beyond the usual one, unless rows are; and so that a zone is made of them.
        let mut fitting = (1..=usual / rows.blocks.max(1)).rev().map(|count| count * rows.blocks);
        let chosen = options.unit_blocks.or_else(|| fitting.find(|unit| zones.blocks.is_multiple_of(*unit)));
        let blocks = chosen.unwrap_or(rows.blocks);
        let is_made_of = |whole: u32, part: u32| part > 0 && whole.is_multiple_of(part);
        let fits = is_made_of(blocks, rows.blocks) && is_made_of(zones.blocks, blocks) && blocks <= UNIT_BLOCKS_MAX;
        return if fits {
            Ok(blocks)
        } else {
            Err(PlanError::ZoneUnit { blocks, row: rows.blocks, zone: zones.blocks })
        };
    }
    let blocks = options.unit_blocks.unwrap_or(if usual > UNIT_BLOCKS_MAX { rows.blocks } else { usual });
    if blocks > 0 && blocks.is_multiple_of(rows.blocks) && blocks <= UNIT_BLOCKS_MAX {
        return Ok(blocks);
    }
    Err(PlanError::RowSize { what, blocks, of: rows.blocks, least: rows.blocks, most: UNIT_BLOCKS_MAX })
}

/// A band is a zone.
fn plan_zones(zones: ZoneLayout, shards: u16, unit_blocks: u32, options: &CreateOptions) -> Result<u32, PlanError> {
    let ZoneLayout { blocks, open_max } = zones;
    if let Some(asked) = options.band_blocks.filter(|asked| *asked != blocks) {
        return Err(PlanError::ZoneSize { asked, blocks });
    }
    if open_max > 0 && open_max < ZoneLayout::open_needed(shards) {
        let most = zones.shards_max();
        return Err(PlanError::OpenZones { open_max, shards, needed: ZoneLayout::open_needed(shards), most });
    }
    match blocks < 2 * unit_blocks {
        true => Err(PlanError::ZoneUnit { blocks: unit_blocks, row: unit_blocks, zone: blocks }),
        false => Ok(blocks),
    }
}

pub(super) fn plan_bands(
    capacity_blocks: u64,
    shards: u16,
    log_blocks: u64,
    options: &CreateOptions,
) -> Result<Bands, PlanError> {
    let percent = options.overprovision.unwrap_or(OVERPROVISION_DEFAULT);
    if !(OVERPROVISION_MIN..=OVERPROVISION_MAX).contains(&percent) {
        return Err(PlanError::Overprovision(percent));
    }
    if let Some(blocks) = options.grow_to_blocks.filter(|blocks| *blocks < capacity_blocks) {
        return Err(PlanError::GrowTo { blocks, capacity: capacity_blocks });
    }
    let journal_blocks = plan_journal(
        shard_extents_at_most(capacity_blocks, shards),
        (log_blocks / shards as u64).min(SHARD_LOG_BLOCKS_MAX),
    );
    let needed = SUPERBLOCK_COPIES
        + 2 * plan_catalog(capacity_blocks, options.volumes_max)? as u64
        + 2 * journal_blocks as u64 * shards as u64;
    let without = plan_behind(Front { needed, shadow: 0 }, capacity_blocks, shards, percent, options)?;
    // Its own space takes some of the extents that it is for; so there is a little more than it needs.
    let shadow = without.shadow_blocks();
    let with = match options.rows {
        None => plan_behind(Front { needed, shadow }, capacity_blocks, shards, percent, options).ok(),
        // What the device has in front of its rows is what it has.
        Some(rows) => (rows.start >= needed + without.roots_blocks() + without.shadow_least()).then(|| without.clone()),
    };
    Ok(with.map_or(without, |bands| Bands { shadowed: true, ..bands }))
}

/// What a shard has for its bands.
struct Space {
    shard_blocks: u64,
    unit_blocks: u32,
    /// Over-provisioning.
    percent: u8,
}

impl Space {
    fn bands(&self, band_blocks: u32) -> u64 {
        (self.shard_blocks / band_blocks as u64).min((u32::MAX - 1) as u64 / band_blocks as u64)
    }

    /// Extents whose blocks there is always room for, and to write them again, in bands of this size.
    fn extents(&self, band_blocks: u32) -> u64 {
        self.extents_in(self.bands(band_blocks), band_blocks)
    }

    fn extents_in(&self, bands: u64, band_blocks: u32) -> u64 {
        let band_data = (band_blocks - band_blocks.div_ceil(stripe_blocks_max(self.unit_blocks))) as u64;
        let data = bands.saturating_sub(RESERVE_BANDS as u64) * band_data * UNPADDED / 100;
        let provided = data * (100 - self.percent as u64) / 100;
        provided.min(policy::collectable_blocks(bands, band_blocks, self.unit_blocks)) / EXTENT_BLOCKS as u64
    }

    /// The size that gives the most extents, from the usual one to that of as many units as are wanted.
    fn best_band(&self, usual: u32) -> u32 {
        let most = BAND_UNITS_WANTED.saturating_mul(self.unit_blocks).clamp(usual, BAND_BLOCKS_MAX.max(usual));
        let sizes = std::iter::successors(Some(usual), |size| size.checked_mul(2).filter(|size| *size <= most));
        sizes.max_by_key(|size| (self.extents(*size), Reverse(*size))).unwrap_or(usual)
    }
}

fn plan_behind(
    Front { needed, shadow }: Front,
    capacity_blocks: u64,
    shards: u16,
    percent: u8,
    options: &CreateOptions,
) -> Result<Bands, PlanError> {
    let unit_blocks = plan_unit(options)?;
    let start = match options.rows {
        None => (needed + shadow).next_multiple_of(REGION_ALIGN_BLOCKS.max(unit_blocks as u64)),
        Some(RowLayout { start, .. }) if start >= needed.max(FRONT_BLOCKS_MIN) => start,
        Some(RowLayout { start, .. }) => {
            return Err(PlanError::HeadTooSmall { blocks: start, needed: needed.max(FRONT_BLOCKS_MIN) });
        }
    };
    let shard_blocks = capacity_blocks.saturating_sub(start) / shards as u64;
    let usual = 1u32 << (shard_blocks / BANDS_WANTED).clamp(1, BAND_BLOCKS_MAX as u64).ilog2();
    let least = if options.tiny { 2 * unit_blocks } else { BAND_BLOCKS_MIN.max(2 * unit_blocks) };
    let usual = usual.max(least).next_multiple_of(unit_blocks).min(BAND_BLOCKS_MAX / unit_blocks * unit_blocks);
    let space = Space { shard_blocks, unit_blocks, percent };
    let band_blocks = match (options.rows, options.band_blocks) {
        (Some(RowLayout { zones: Some(zones), .. }), _) => plan_zones(zones, shards, unit_blocks, options)?,
        (_, None) => space.best_band(usual),
        (None, Some(asked)) => size("a band", asked, least, BAND_BLOCKS_MAX)?,
        (Some(_), Some(asked)) => row_band(asked, unit_blocks)?,
    };
    let (bands, extents) = (space.bands(band_blocks), space.extents(band_blocks));
    if bands < BANDS_MIN as u64 || extents == 0 {
        let holds_one = |bands: &u32| space.extents_in(*bands as u64, band_blocks) > 0;
        let least = (BANDS_MIN..u32::MAX / band_blocks).take(1 << 16).find(holds_one).unwrap_or(u32::MAX / band_blocks);
        return Err(PlanError::Bands { band_blocks, shards, bands, least });
    }
    let (bands, extents) = (bands as u32, extents.min(SHARD_EXTENTS_MAX as u64) as u32);
    // Where the index begins is known when the segments are.
    let layout = BandLayout { start, bands, band_blocks, unit_blocks, index_start: 0 };
    let root_blocks = plan_root(extents as u64, bands, u32::MAX / band_blocks);
    // Zones are as many as they are.
    let never = options.rows.is_some_and(|rows| rows.zones.is_some()).then_some(capacity_blocks);
    let grow_to_blocks = options.grow_to_blocks.or(never);
    Ok(Bands { layout, shards, extents, root_blocks, capacity_blocks, grow_to_blocks, shadowed: false })
}

/// Extents that come with bands: in the proportion of a shard that was created with `extents` in `of_bands`.
fn extents_of(bands: u64, extents: u32, of_bands: u32) -> u64 {
    bands.saturating_mul(extents as u64) / (of_bands - RESERVE_BANDS) as u64
}

/// Adds bands of a capacity device that has become larger, and regions for their extents on the log device.
pub(super) fn grow(pool: &mut Superblock, log_blocks: u64, capacity_blocks: u64) -> Result<(), PlanError> {
    let (shards, BandLayout { bands: created, band_blocks, .. }) = (pool.shards as u64, pool.bands);
    let (old_bands, bands_end) = (pool.shard_bands(), pool.bands_end());
    let created_extents = pool.shard_regions(0).next().expect("a shard has a region").extents;
    let first_extent = pool.shard_extents(0);
    let log_blocks = log_blocks.max(pool.log_blocks);
    let index_end = pool.regions.iter().map(Region::end).max().expect("a shard has a region");
    let region = |bands: u64| {
        let left = (SHARD_EXTENTS_MAX - first_extent) as u64;
        let extents = extents_of(bands, created_extents, created).min(left) as u32;
        Region { shape: Shape::Shaped, start: 0, first_extent, extents, shard: 0, bands: bands as u32 }
    };
    let least = ((created - RESERVE_BANDS) as u64).div_ceil(created_extents as u64);
    let wanted = capacity_blocks.saturating_sub(bands_end) / (shards * band_blocks as u64);
    if wanted < least {
        let least = bands_end + least * shards * band_blocks as u64;
        return Err(PlanError::GrowTooSmall { blocks: capacity_blocks, least });
    }
    let addressed = (((u32::MAX - 1) / band_blocks - old_bands) as u64).min(wanted);
    if addressed < least || region(least).extents == 0 {
        return Err(PlanError::GrownUp("a shard addresses at most 16 TiB"));
    }
    let has_root = |bands: u64| {
        let tables = pool.shard_table_pages(0) + region(bands).table_pages();
        let bytes = root_bytes(tables, old_bands + bands as u32, created);
        bytes <= pool.root_blocks as u64 * BLOCK_BYTES as u64
    };
    if !has_root(least) {
        return Err(PlanError::GrownUp("its roots are full"));
    }
    let index_blocks = |bands: u64| index_end + region(bands).end() * shards;
    let fits = |bands: u64| has_root(bands) && index_blocks(bands) <= log_blocks;
    if !fits(least) {
        return Err(PlanError::IndexFull { blocks: log_blocks, needed: index_blocks(addressed) });
    }
    let (mut bands, mut too_many) = (least, addressed + 1);
    while bands + 1 < too_many {
        let middle = bands.midpoint(too_many);
        *(if fits(middle) { &mut bands } else { &mut too_many }) = middle;
    }
    let mut start = index_end;
    for shard in 0..pool.shards {
        let region = Region { start, shard, ..region(bands) };
        // Each begins where the one before ends.
        start += region.end() - region.start;
        pool.regions.push(region);
    }
    pool.log_blocks = if start > pool.log_blocks { log_blocks } else { pool.log_blocks };
    pool.capacity_blocks = if bands == wanted { capacity_blocks } else { pool.bands_end() };
    Ok(())
}

impl Bands {
    fn region(&self, shard: u16, start: u64) -> Region {
        Region { shape: Shape::Shaped, start, first_extent: 0, extents: self.extents, shard, bands: 0 }
    }

    /// Blocks of the log device that the index takes.
    pub(super) fn index_blocks(&self) -> u64 {
        (self.region(0, 0).end() + 2 * self.root_blocks as u64) * self.shards as u64
    }

    /// Extents of each shard that come with a capacity device of so many blocks.
    fn added_extents(&self, capacity_blocks: u64) -> u32 {
        let added = capacity_blocks.saturating_sub(self.capacity_blocks);
        let bands = (added / self.shards as u64).div_ceil(self.layout.band_blocks as u64);
        extents_of(bands, self.extents, self.layout.bands).min(SHARD_EXTENTS_MAX as u64) as u32
    }

    /// Blocks of the log device that are kept for the index of a pool that has grown. Unless told otherwise, for twice the
    /// capacity where that takes no more than an eighth of the log.
    pub(super) fn spare_blocks(&self, log_blocks: u64) -> u64 {
        let blocks = |capacity_blocks: u64| {
            let extents = self.added_extents(capacity_blocks);
            Region { extents, ..self.region(0, 0) }.end() * self.shards as u64
        };
        match self.grow_to_blocks {
            Some(capacity_blocks) => blocks(capacity_blocks),
            None => Some(blocks(2 * self.capacity_blocks)).filter(|spare| *spare <= log_blocks / 8).unwrap_or(0),
        }
    }

    /// Blocks of the capacity device that the roots of a shadow take.
    fn roots_blocks(&self) -> u64 {
        2 * self.root_blocks as u64 * self.shards as u64
    }

    /// Blocks that a shadow of so many extents of each shard takes.
    fn shadow_of(&self, extents: u32) -> u64 {
        let shadow = Region { shape: Shape::Hot, extents, ..self.region(0, 0) };
        shadow.pages_end() * self.shards as u64
    }

    /// The least for which it is worth having one.
    fn shadow_least(&self) -> u64 {
        self.shadow_of(1)
    }

    /// Blocks that a shadow and its roots take: of all extents, and of those that a pool with room to grow gets.
    fn shadow_blocks(&self) -> u64 {
        let added = self.grow_to_blocks.map_or(0, |blocks| self.added_extents(blocks));
        self.roots_blocks() + self.shadow_of(self.extents.saturating_add(added).min(SHARD_EXTENTS_MAX))
    }

    /// Enters the plan into a superblock that has everything else.
    pub(super) fn put(self, superblock: &mut Superblock) {
        let log_end = superblock.segments_start as u64
            + superblock.segments as u64 * superblock.segment_blocks as u64 * superblock.shards as u64;
        superblock.bands = BandLayout { index_start: log_end as u32, ..self.layout };
        superblock.shadowed = self.shadowed;
        let mut at = superblock.index_roots_end();
        for shard in 0..self.shards {
            let region = self.region(shard, at);
            at = region.end();
            superblock.regions.push(region);
        }
    }
}
