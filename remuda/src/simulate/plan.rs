//! What pool there would be: planned as `pool create` plans it, and how small a part of it is simulated.

use super::args::{PoolShape, SimulateArgs, usage};
use super::drive::DriveKind;
use super::space::{BLOCK, GROUP_BLOCKS};
use crate::cli::exit::Failure;
use base::ByteSize;
use engine::layout::{self, PlanError, RowLayout, ZoneLayout};
use engine::log_policy::Placement;
use engine::{CreateOptions, Superblock};
use uuid::Uuid;

/// So many blocks of a log are simulated at least.
const LOG_BLOCKS_MIN: u64 = 1024;
/// Zones of a drive, unless told otherwise.
const ZONE: ByteSize = ByteSize(1 << 30);

/// The plan of the pool.
pub struct Plan {
    pub shape: PoolShape,
    pub drive: DriveKind,
    pub volume_bytes: u64,
    pub log_bytes: u64,
    /// Of a shaped pool.
    pub bands: Option<BandPlan>,
    /// One block in `2^shift` is simulated.
    pub shift: u32,
}

#[derive(Clone, Copy)]
pub struct BandPlan {
    pub bands: u32,
    pub band_bytes: u64,
    pub shards: u32,
    pub unit_blocks: u32,
}

impl Plan {
    /// Where what leaves the log goes.
    pub fn placement(&self) -> Placement {
        match self.shape {
            PoolShape::Shaped => Placement::Bands,
            _ if self.drive == DriveKind::Disk => Placement::OnDisks,
            _ => Placement::InPlace,
        }
    }

    /// The part of a number of bytes that is simulated.
    pub fn scaled(&self, bytes: u64) -> u64 {
        bytes >> self.shift
    }
}

/// Plans the pool, of which about `blocks_max` blocks are simulated at most.
pub fn plan(args: &SimulateArgs, blocks_max: u64) -> Result<Plan, Failure> {
    let blocks = |size: ByteSize| u32::try_from(size.0 / BLOCK).unwrap_or(u32::MAX);
    for (name, size) in [("--band", args.band), ("--write-unit", args.write_unit)] {
        if size.is_some_and(|size| size.0 == 0 || !size.0.is_multiple_of(BLOCK)) {
            return Err(usage(format!("{name}: expected a multiple of 4KiB")));
        }
    }
    let (is_shaped, is_zoned) = (args.shape == PoolShape::Shaped, args.drive() == DriveKind::Zoned);
    let options = CreateOptions {
        name: "simulated".to_string(),
        shape: args.shape.of_engine(),
        overprovision: is_shaped.then(|| args.overprovision()),
        band_blocks: args.band.map(blocks).filter(|_| !is_zoned),
        unit_blocks: args.write_unit.map(blocks),
        ..CreateOptions::default()
    };
    let planned = match is_zoned {
        true => plan_zoned(args, options, blocks(args.band.unwrap_or(ZONE))),
        false => plan_on(args, args.capacity.0 / BLOCK, &options),
    };
    let planned = planned.map_err(|error| usage(format!("there can be no such pool: {error}")))?;
    let shards = u32::from(planned.shards);
    let extents: u64 = planned.regions.iter().map(|region| u64::from(region.extents)).sum();
    let volume_blocks = extents * u64::from(engine::EXTENT_BLOCKS);
    let bands = is_shaped.then(|| BandPlan {
        bands: planned.bands.bands.saturating_mul(shards),
        band_bytes: u64::from(planned.bands.band_blocks) * BLOCK,
        shards,
        unit_blocks: planned.bands.unit_blocks,
    });
    let log_bytes = u64::from(planned.segments) * u64::from(planned.segment_blocks) * u64::from(shards) * BLOCK;
    let shift_max = match &bands {
        // Some write units at least stay of a band.
        Some(bands) => (bands.band_bytes / BLOCK / u64::from(2 * GROUP_BLOCKS)).max(1).ilog2(),
        None => (log_bytes / BLOCK / LOG_BLOCKS_MIN).max(1).ilog2(),
    };
    let shift = (0..shift_max).find(|shift| volume_blocks >> shift <= blocks_max).unwrap_or(shift_max);
    if volume_blocks >> shift > 4 * blocks_max || bands.is_some_and(|bands| bands.bands > 1 << 20) {
        return Err(usage(match &bands {
            Some(bands) => format!("{} bands are too many to be simulated: use a larger --band", bands.bands),
            None => format!(
                "a log of {} before {} is too small to be simulated: give it a larger --log",
                args.log, args.capacity
            ),
        }));
    }
    Ok(Plan { shape: args.shape, drive: args.drive(), volume_bytes: volume_blocks * BLOCK, log_bytes, bands, shift })
}

fn plan_on(args: &SimulateArgs, capacity_blocks: u64, options: &CreateOptions) -> Result<Superblock, PlanError> {
    let nil = Uuid::nil();
    let identities = layout::Identities { pool: nil, log: nil, capacity: nil };
    layout::plan(args.log.0 / BLOCK, capacity_blocks, options, identities, 0).map(|(_, planned)| planned)
}

/// On zones, with a small device in front of them that is as large as it has to be.
fn plan_zoned(args: &SimulateArgs, options: CreateOptions, zone_blocks: u32) -> Result<Superblock, PlanError> {
    let mut head = 0;
    loop {
        let zones = Some(ZoneLayout { blocks: zone_blocks, open_max: 0 });
        let rows = Some(RowLayout { start: head, blocks: 1, zones });
        match plan_on(args, head + args.capacity.0 / BLOCK, &CreateOptions { rows, ..options.clone() }) {
            Err(PlanError::HeadTooSmall { needed, .. }) if needed > head => head = needed,
            planned => return planned,
        }
    }
}
