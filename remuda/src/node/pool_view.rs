//! What the node tells about pools.

use super::flatten::FlattenView;
use super::pool_log::ForgetLogSteps;
use super::pool_written::{DeviceWrittenView, StreamView, streams};
use super::pools::{PoolSlot, UNPOISONED};
use super::scrub_view::{ScrubState, ScrubView};
use super::state::Origin;
use super::view::FlashCacheView;
use crate::config::{LogDef, PoolDef};
use base::ByteSize;
use bdev::BlockDevice;
use engine::{EXTENT_BLOCKS, PlanError, PoolLayout, PoolStatus, PoolVolume, Shape, ShardStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// The shape of a pool that is hot but for a flash cache.
pub const WARM: &str = "warm";

const EXTENT_BYTES: u64 = EXTENT_BLOCKS as u64 * engine::BLOCK_BYTES as u64;

/// A pool: its definition, and its numbers while it is open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolView {
    /// Name.
    pub name: String,
    /// `open`, `full` (open, but new blocks are refused), `trouble` (open, but upkeep fails or it does not answer), `closed`,
    /// `checking` (closed, and being checked), or `forgetting` (closed, and its log is being given up).
    pub state: String,
    /// Why it is closed, what fails, what is lost; and what to do.
    pub problems: Vec<String>,
    /// Those of the problems because of which hosts do not get what they should.
    #[serde(default)]
    pub failing: Vec<String>,
    /// Who defined it.
    pub origin: Origin,
    /// Its definition.
    pub definition: PoolDef,
    /// Its numbers while it is open.
    pub open: Option<PoolNumbers>,
    /// The flash cache that reads of its capacity device go through, if there is one: that makes it a warm pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// How far giving up its log is, while that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgetting: Option<ForgetLogSteps>,
    /// How that cache does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_cache: Option<FlashCacheView>,
}

/// Numbers of an open pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PoolNumbers {
    /// Identity.
    pub uuid: Uuid,
    /// How it lies on its devices, whatever its definition says by now.
    #[serde(default)]
    pub layout: LayoutView,
    /// Volumes.
    pub volumes: usize,
    /// Snapshots of these.
    #[serde(default)]
    pub snapshots: usize,
    /// Volumes and snapshots, those that are being deleted among them, that there is room for.
    #[serde(default)]
    pub volumes_max: u64,
    /// Bytes of these volumes as hosts see them.
    #[serde(default)]
    pub provisioned_bytes: u64,
    /// Bytes that volumes and snapshots have in the pool, in extents of 4 MiB.
    #[serde(default)]
    pub allocated_bytes: u64,
    /// The same by volume and snapshot; for who lists volumes.
    #[serde(skip)]
    pub allocated: BTreeMap<String, u64>,
    /// Deleted volumes and snapshots that have not gone yet.
    #[serde(default)]
    pub going: usize,
    /// Of these, those that nothing lies over: 0 when all that nobody shows have gone.
    #[serde(default)]
    pub going_unshown: usize,
    /// Extents that these still have.
    #[serde(default)]
    pub going_extents: u64,
    /// Volumes that are being made independent of what they were cloned from, or of which that has failed.
    #[serde(default)]
    pub flattening: Vec<FlattenView>,
    /// Bytes of the capacity device in use by the pool.
    pub capacity_bytes: u64,
    /// Bytes by which the capacity device has become larger; `pool grow` takes them into use.
    #[serde(default)]
    pub unused_bytes: u64,
    /// Why it would not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused_why: Option<String>,
    /// Bytes of the log device in use by the pool.
    pub log_bytes: u64,
    /// What is acknowledged survives a power loss.
    pub log_durable: bool,
    /// Log records replayed when it was opened.
    pub recovered_records: u64,
    /// Blocks whose newest bytes were found in the log then.
    pub recovered_blocks: u64,
    /// Time that opening it took.
    pub recovered_ns: u64,
    /// Copies of its superblocks and its catalog that were found damaged then, and written anew from the other one.
    #[serde(default)]
    pub repaired_copies: u64,
    /// Bytes by which the capacity device would have to become larger before `pool forget-log` could give up the log now: what of
    /// thin volumes would be lost with it takes extents that there are not.
    #[serde(default)]
    pub forget_log_growth_bytes: u64,
    /// Log records replayed per second then; nothing was measured when there were too few.
    pub replay_rate: Option<f64>,
    /// Everything is being moved to the capacity device.
    pub settling: bool,
    /// Shards, by number, that have no free extent while volumes may still need one there: writes to new places fail.
    #[serde(default)]
    pub full_shards: Vec<u16>,
    /// The scrub that runs, or was the last one; without its lists of blocks and of metadata.
    pub scrub: ScrubView,
    /// Bytes written to its devices since it was opened, by what they were.
    #[serde(default)]
    pub streams: Vec<StreamView>,
    /// Bytes written to each device below it since then, as these count them.
    #[serde(default)]
    pub devices: Vec<DeviceWrittenView>,
    /// Where the capacity device is made of others: bytes that all of these have got, per byte written by hosts or by flattening.
    /// With parity, that is among them; of a mirror, all legs are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drives_amplification: Option<f64>,
    /// All shards together.
    pub total: ShardNumbers,
    /// Shards by number.
    pub shards: Vec<ShardNumbers>,
}

/// How a pool lies on its devices: fixed when it was made. All but the shape is of shaped pools alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutView {
    /// `hot`, `shaped`, or `warm`: in place as hot, with reads cached on flash.
    pub shape: String,
    /// Bytes of a band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band_bytes: Option<u64>,
    /// Bytes of which writes to the capacity device are multiples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_unit_bytes: Option<u64>,
    /// Bytes of a row of the capacity device, without its parity, where that is written in whole rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_bytes: Option<u64>,
    /// Members of the parity device that the capacity device is; one of them has the parity of each row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parity_members: Option<usize>,
}

impl LayoutView {
    fn of(layout: PoolLayout) -> LayoutView {
        let PoolLayout { shape, band_bytes, write_unit_bytes, row_bytes } = layout;
        LayoutView { shape: shape.name().to_string(), band_bytes, write_unit_bytes, row_bytes, parity_members: None }
    }
}

/// Numbers of a shard, or of all of a pool's together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ShardNumbers {
    /// Bytes of log.
    pub log_bytes: u64,
    /// Bytes of log that can be written.
    pub log_free_bytes: u64,
    /// Share of the log in use, 0 to 1.
    pub log_fill: f64,
    /// Bytes whose newest copy is in the log alone.
    pub dirty_bytes: u64,
    /// Extents.
    pub extents: u64,
    /// Extents that no volume has.
    pub free_extents: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Extents whose places refuse writes; they are not used any more.
    pub unusable_extents: u64,
    /// Bytes written by hosts since it was opened.
    pub user_write_bytes: u64,
    /// Bytes read by hosts.
    pub user_read_bytes: u64,
    /// Of those, read from the log.
    pub log_hit_bytes: u64,
    /// Bytes that flattening has written: what volumes showed of others and is their own now.
    #[serde(default)]
    pub flattened_bytes: u64,
    /// Bytes written to the log device.
    pub log_write_bytes: u64,
    /// Bytes written to the capacity device.
    pub capacity_write_bytes: u64,
    /// Bands of a shaped pool.
    #[serde(default)]
    pub bands: u64,
    /// Of those, bands that may be written.
    #[serde(default)]
    pub free_bands: u64,
    /// Bands that are free with the next checkpoint.
    #[serde(default)]
    pub pending_bands: u64,
    /// Bands that have refused writes and are not used any more.
    #[serde(default)]
    pub retired_bands: u64,
    /// Bytes in bands that volumes have, about.
    #[serde(default)]
    pub band_valid_bytes: u64,
    /// Bytes that bands hold at most.
    #[serde(default)]
    pub band_total_bytes: u64,
    /// Share of the bands' room that volumes have, 0 to 1.
    #[serde(default)]
    pub band_valid_share: Option<f64>,
    /// Bytes that garbage collection has moved.
    #[serde(default)]
    pub collected_bytes: u64,
    /// Bytes of blocks that are written often, which went to the log once more instead of to bands.
    #[serde(default)]
    pub reinserted_bytes: u64,
    /// Bytes of headers and padding written to bands.
    #[serde(default)]
    pub padding_bytes: u64,
    /// Bytes that garbage collection has to move for what has been destaged, while fewer bands are free than there should be.
    #[serde(default)]
    pub gc_debt_bytes: u64,
    /// The debt at which destage waits for it, and writers with that.
    #[serde(default)]
    pub gc_debt_max_bytes: u64,
    /// The debt as a share of that; of a pool, in the shard where it is largest.
    #[serde(default)]
    pub gc_debt_share: Option<f64>,
    /// Bytes to the log per byte written by hosts or by flattening.
    pub log_amplification: Option<f64>,
    /// Bytes to the capacity device per byte written by hosts or by flattening.
    pub capacity_amplification: Option<f64>,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Log records that a crash now would have replayed.
    pub replay_records: u64,
    /// Slices, of 64 MiB, that would be lost with the log device now; none given: everything would be.
    #[serde(default)]
    pub dirty_slices: Option<u64>,
    /// How long that would take, by the measured rate, or by a usual one until there is that.
    pub recovery_estimate_ns: Option<u64>,
    /// Blocks that failed their checksum.
    pub corrupt_blocks: u64,
    /// Blocks that were lost since it was opened: reading one is an error until it is written again.
    pub lost_blocks: u64,
    /// Bytes that are known to be lost, whenever that was.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Extents that these are in.
    #[serde(default)]
    pub lost_extents: u64,
    /// Extents besides that may have lost blocks: they are being looked at.
    #[serde(default)]
    pub uncounted_lost_extents: u64,
    /// Blocks that were damaged in one version of the device and were written anew from another.
    #[serde(default)]
    pub healed_blocks: u64,
    /// Damaged headers of stripes that scrubs have found while blocks were in use there.
    #[serde(default)]
    pub damaged_headers: u64,
    /// Copies of structures of the metadata that scrubs have found damaged.
    #[serde(default)]
    pub damaged_metadata: u64,
    /// Of these, the ones that were written anew.
    #[serde(default)]
    pub repaired_metadata: u64,
    /// Disks that seek and are destaged to each by itself; 0: none is known.
    #[serde(default)]
    pub disks: u64,
    /// Of those, disks that hosts read, which destage leaves alone while the log has room.
    #[serde(default)]
    pub read_disks: u64,
    /// Writes waiting for room in the log.
    pub waiting_writes: u64,
    /// Writes that ever waited.
    pub waits: u64,
    /// Memory of its structures.
    pub memory_bytes: u64,
    /// Scrubs under way.
    pub scrubs_running: u64,
    /// Extents that the scrub has passed.
    pub scrubbed_extents: u64,
    /// Bad blocks that it has found.
    pub scrub_bad_blocks: u64,
    /// Scrubs that came to their end.
    pub scrubs: u64,
    /// Why upkeep fails, while it does.
    pub trouble: Option<String>,
    /// Why all writes to the log fail, while they do.
    pub log_trouble: Option<String>,
    /// Segments of the log that are left alone, since writing them failed just now or reading them did when the pool was opened.
    pub resting_segments: u64,
}

impl ShardNumbers {
    fn of(shard: &ShardStatus) -> ShardNumbers {
        ShardNumbers {
            log_bytes: shard.log_bytes,
            log_free_bytes: shard.log_free_bytes,
            dirty_bytes: shard.dirty_bytes,
            extents: shard.extents as u64,
            free_extents: shard.free_extents as u64,
            free_bytes: shard.free_extents as u64 * EXTENT_BYTES,
            unusable_extents: shard.unusable_extents as u64,
            user_write_bytes: shard.user_write_bytes,
            user_read_bytes: shard.user_read_bytes,
            log_hit_bytes: shard.log_hit_bytes,
            flattened_bytes: shard.flattened_bytes,
            log_write_bytes: shard.streams.log.total(),
            capacity_write_bytes: shard.streams.capacity.total(),
            bands: shard.bands.bands as u64,
            free_bands: shard.bands.free as u64,
            pending_bands: shard.bands.pending as u64,
            retired_bands: shard.bands.retired as u64,
            band_valid_bytes: shard.bands.valid_bytes,
            band_total_bytes: shard.bands.total_bytes,
            collected_bytes: shard.bands.collected_bytes,
            reinserted_bytes: shard.bands.reinserted_bytes,
            padding_bytes: shard.bands.padding_bytes,
            gc_debt_bytes: shard.bands.debt_bytes,
            gc_debt_max_bytes: shard.bands.debt_max_bytes,
            gc_debt_share: share(shard.bands.debt_bytes, shard.bands.debt_max_bytes),
            checkpoints: shard.checkpoints,
            replay_records: shard.replay_records,
            dirty_slices: shard.dirty_slices,
            corrupt_blocks: shard.corrupt_blocks,
            lost_blocks: shard.lost_blocks,
            lost_bytes: shard.lost.blocks * engine::BLOCK_BYTES as u64,
            lost_extents: shard.lost.extents as u64,
            uncounted_lost_extents: shard.lost.uncounted as u64,
            healed_blocks: shard.healed_blocks,
            damaged_headers: shard.damaged_headers,
            damaged_metadata: shard.damaged_metadata,
            repaired_metadata: shard.repaired_metadata,
            disks: shard.disks as u64,
            read_disks: shard.read_disks as u64,
            waiting_writes: shard.waiting_writes as u64,
            waits: shard.waits,
            memory_bytes: shard.memory_bytes as u64,
            scrubs_running: shard.scrub.running as u64,
            scrubbed_extents: shard.scrub.extents_done as u64,
            scrub_bad_blocks: shard.scrub.corrupt_blocks + shard.scrub.lost_blocks,
            scrubs: shard.scrub.completed,
            trouble: shard.trouble.clone(),
            log_trouble: shard.log_trouble.clone(),
            resting_segments: shard.resting_segments as u64,
            ..ShardNumbers::default()
        }
    }

    /// Adds what counts; ratios come last.
    fn add(&mut self, shard: &ShardNumbers) {
        self.log_bytes += shard.log_bytes;
        self.log_free_bytes += shard.log_free_bytes;
        self.dirty_bytes += shard.dirty_bytes;
        self.extents += shard.extents;
        self.free_extents += shard.free_extents;
        self.free_bytes += shard.free_bytes;
        self.unusable_extents += shard.unusable_extents;
        self.user_write_bytes += shard.user_write_bytes;
        self.user_read_bytes += shard.user_read_bytes;
        self.log_hit_bytes += shard.log_hit_bytes;
        self.flattened_bytes += shard.flattened_bytes;
        self.log_write_bytes += shard.log_write_bytes;
        self.capacity_write_bytes += shard.capacity_write_bytes;
        self.bands += shard.bands;
        self.free_bands += shard.free_bands;
        self.pending_bands += shard.pending_bands;
        self.retired_bands += shard.retired_bands;
        self.band_valid_bytes += shard.band_valid_bytes;
        self.band_total_bytes += shard.band_total_bytes;
        self.collected_bytes += shard.collected_bytes;
        self.reinserted_bytes += shard.reinserted_bytes;
        self.padding_bytes += shard.padding_bytes;
        self.gc_debt_bytes += shard.gc_debt_bytes;
        self.gc_debt_max_bytes += shard.gc_debt_max_bytes;
        // Nothing is less than anything.
        self.gc_debt_share =
            if shard.gc_debt_share > self.gc_debt_share { shard.gc_debt_share } else { self.gc_debt_share };
        self.checkpoints += shard.checkpoints;
        self.replay_records += shard.replay_records;
        self.dirty_slices = self.dirty_slices.zip(shard.dirty_slices).map(|(all, of_shard)| all + of_shard);
        self.corrupt_blocks += shard.corrupt_blocks;
        self.lost_blocks += shard.lost_blocks;
        self.lost_bytes += shard.lost_bytes;
        self.lost_extents += shard.lost_extents;
        self.uncounted_lost_extents += shard.uncounted_lost_extents;
        self.healed_blocks += shard.healed_blocks;
        self.damaged_headers += shard.damaged_headers;
        self.damaged_metadata += shard.damaged_metadata;
        self.repaired_metadata += shard.repaired_metadata;
        // All shards are on the same disks.
        self.disks = self.disks.max(shard.disks);
        self.read_disks = self.read_disks.max(shard.read_disks);
        self.waiting_writes += shard.waiting_writes;
        self.waits += shard.waits;
        self.memory_bytes += shard.memory_bytes;
        self.scrubs_running += shard.scrubs_running;
        self.scrubbed_extents += shard.scrubbed_extents;
        self.scrub_bad_blocks += shard.scrub_bad_blocks;
        self.scrubs += shard.scrubs;
        self.trouble = self.trouble.take().or_else(|| shard.trouble.clone());
        self.log_trouble = self.log_trouble.take().or_else(|| shard.log_trouble.clone());
        self.resting_segments += shard.resting_segments;
    }

    /// What is known to be lost, without a scrub.
    pub fn lost_text(&self) -> String {
        let (lost, extents) = (ByteSize(self.lost_bytes), self.lost_extents);
        match self.uncounted_lost_extents {
            0 => format!("{lost} in {extents} extents"),
            more => format!("{lost} in {extents} extents, {more} more are being looked at"),
        }
    }

    fn with_ratios(mut self, replay_rate: f64) -> ShardNumbers {
        self.log_fill = share(self.log_bytes.saturating_sub(self.log_free_bytes), self.log_bytes).unwrap_or(0.0);
        // What flattening copies takes the same way as what hosts write.
        let written = self.user_write_bytes + self.flattened_bytes;
        self.log_amplification = share(self.log_write_bytes, written);
        self.capacity_amplification = share(self.capacity_write_bytes, written);
        self.band_valid_share = share(self.band_valid_bytes, self.band_total_bytes);
        self.recovery_estimate_ns = Some((self.replay_records as f64 / replay_rate * 1e9) as u64);
        self
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Until the pool's own rate of replay has been measured: ns for a record of a log in memory, and of one on a device; above what
/// `docs/performance.md` has, of which a small machine may fall short.
const REPLAY_MAPPED_NS: f64 = 300.0;
const REPLAY_BLOCK_NS: f64 = 500.0;

/// Records from which on the time to open a pool says something about the rate of replay.
const RATE_RECORDS_MIN: u64 = 1000;

/// Why `pool grow` would not take what a device has become larger by, and what to do about it.
fn unused_why(why: &PlanError, log: &LogDef) -> String {
    match (why, log) {
        (PlanError::IndexFull { .. }, LogDef::Pmem { path, .. }) => {
            format!("{why}; '{path}' cannot be enlarged: that takes a new pool with a larger log")
        }
        (PlanError::IndexFull { .. }, LogDef::Device(_)) => format!("{why}; when that is larger: 'remuda pool grow'"),
        _ => why.to_string(),
    }
}

impl PoolNumbers {
    fn of(
        status: PoolStatus,
        log: &LogDef,
        settling: bool,
        scrub: ScrubView,
        volumes: &[Arc<PoolVolume>],
    ) -> PoolNumbers {
        let held = status.held();
        let allocated = volumes.iter().map(|volume| {
            (volume.name().to_string(), held.get(&volume.layer()).map_or(0, |extents| extents * EXTENT_BYTES))
        });
        let allocated: BTreeMap<String, u64> = allocated.collect();
        let written = volumes.iter().filter(|volume| !volume.identity().is_snapshot);
        let flattening = status.flattening.iter().map(|(volume, status)| FlattenView::of(volume, Some(status.clone())));
        let recovery = status.recovery;
        let measured = recovery.records >= RATE_RECORDS_MIN && recovery.elapsed_ns > 0;
        let replay_rate = measured.then(|| recovery.records as f64 * 1e9 / recovery.elapsed_ns as f64);
        let usual_ns = if matches!(log, LogDef::Pmem { .. }) { REPLAY_MAPPED_NS } else { REPLAY_BLOCK_NS };
        let rate = replay_rate.unwrap_or(1e9 / usual_ns);
        let plain: Vec<ShardNumbers> = status.shards.iter().map(ShardNumbers::of).collect();
        let mut total = ShardNumbers { dirty_slices: Some(0), ..ShardNumbers::default() };
        plain.iter().for_each(|shard| total.add(shard));
        PoolNumbers {
            uuid: status.uuid,
            layout: LayoutView::of(status.layout),
            volumes: status.volumes,
            snapshots: status.snapshots,
            volumes_max: status.volumes_max,
            provisioned_bytes: written.map(|volume| volume.info().bytes()).sum(),
            allocated_bytes: allocated.values().sum(),
            allocated,
            going: status.going,
            going_unshown: status.going_unshown,
            going_extents: status.going_extents,
            flattening: flattening.collect(),
            capacity_bytes: status.capacity_bytes,
            unused_bytes: status.unused_bytes,
            unused_why: status.unused_why.map(|why| unused_why(&why, log)),
            log_bytes: status.log_bytes,
            log_durable: status.log_durable,
            recovered_records: recovery.records,
            recovered_blocks: recovery.log_blocks,
            recovered_ns: recovery.elapsed_ns,
            repaired_copies: recovery.repaired_copies,
            forget_log_growth_bytes: status.forget_growth_bytes,
            replay_rate,
            settling,
            full_shards: full_shards(&status.shards, volumes),
            scrub,
            streams: streams(&status.shards, total.user_write_bytes + total.flattened_bytes),
            devices: Vec::new(),
            drives_amplification: None,
            total: total.with_ratios(rate),
            shards: plain.into_iter().map(|shard| shard.with_ratios(rate)).collect(),
        }
    }

    /// How an open pool is, in a word.
    fn state(&self) -> &'static str {
        match () {
            () if self.total.trouble.is_some() || self.total.log_trouble.is_some() => "trouble",
            () if !self.full_shards.is_empty() => "full",
            () => "open",
        }
    }

    /// What is wrong: what hosts notice to `failing`, everything else to `problems`.
    fn judge(&self, def: &PoolDef, problems: &mut Vec<String>, failing: &mut Vec<String>) {
        let log = match &def.log {
            LogDef::Device(log) => format!("device '{log}'"),
            LogDef::Pmem { path, .. } => format!("'{path}'"),
        };
        if let Some(trouble) = &self.total.log_trouble {
            failing.push(format!(
                "its log refuses writes: {trouble}; writes of hosts fail, and one is tried every second until it takes them again: \
                 see to {log}"
            ));
        } else if self.total.resting_segments > 0 {
            problems.push(format!(
                "{} segments of its log are left alone for a while: writing them failed, or reading them did when it was opened; if that \
                 goes on, replace {log}",
                self.total.resting_segments
            ));
        }
        if let (Some(trouble), None) = (&self.total.trouble, &self.total.log_trouble) {
            let devices = match &def.log {
                // The index of a shaped pool is on its log device.
                LogDef::Device(log) if self.layout.shape != Shape::Hot.name() => {
                    format!("devices '{}' and '{log}'", def.capacity)
                }
                _ => format!("device '{}'", def.capacity),
            };
            failing.push(format!("moving blocks to the capacity device fails: {trouble}; see to {devices}"));
        }
        if !self.full_shards.is_empty() {
            let (name, full) = (&def.name, self.full_shards.iter().map(ToString::to_string).collect::<Vec<_>>());
            failing.push(format!(
                "no free extent in {} of {} shards ({}): writes to new places there fail; delete or trim volumes, delete \
                 snapshots, or let the capacity device grow: remuda pool grow {name}",
                full.len(),
                self.shards.len(),
                full.join(", ")
            ));
        }
        for FlattenView { volume, trouble, .. } in &self.flattening {
            if let Some(trouble) = trouble {
                problems.push(format!(
                    "volume '{volume}' cannot be flattened: {trouble}; remuda volume flatten {volume} --status"
                ));
            }
        }
        let wanted = def.placement.shape().name();
        if self.layout.shape != wanted {
            let (name, shape) = (&def.name, &self.layout.shape);
            problems.push(format!(
                "it is defined as a {wanted} pool, and was made a {shape} one, which it stays: write shape = \"{shape}\" in its \
                 definition, or make a new pool and copy its volumes ('remuda pool show {name}' has its layout)"
            ));
        }
        if self.total.unusable_extents > 0 {
            let unusable = self.total.unusable_extents;
            problems.push(format!("{unusable} unusable extents: the capacity device refuses to write them"));
        }
        if self.total.lost_blocks + self.total.corrupt_blocks > 0 {
            let (lost, corrupt) = (self.total.lost_blocks, self.total.corrupt_blocks);
            problems.push(format!(
                "since it was opened, {lost} blocks were lost, {corrupt} reads of blocks failed their checksum: 'remuda pool \
                 scrub {}' lists them; restore them from elsewhere",
                def.name
            ));
        }
        if self.total.lost_bytes > 0 {
            problems.push(format!(
                "lost: {}; reading that is an error until it is written: 'remuda pool scrub {}' lists it; restore it from elsewhere",
                self.total.lost_text(),
                def.name
            ));
        }
        let (bad, name) = (self.total.scrub_bad_blocks, &def.name);
        if bad > 0 {
            problems.push(format!(
                "the scrub found {bad} blocks that cannot be read: 'remuda pool scrub {name} --status' lists them"
            ));
        }
        let rotten = self.scrub.damaged_metadata.saturating_sub(self.scrub.repaired_metadata);
        if rotten > 0 && self.scrub.state != ScrubState::Running {
            problems.push(format!(
                "the scrub found {rotten} structures of the metadata damaged that were not written anew: 'remuda pool scrub {name} --status' \
                 says which, and what to do"
            ));
        }
        if self.scrub.state != ScrubState::Done && self.scrub.bad_before > bad {
            problems.push(format!(
                "the scrub before this one found {} blocks that cannot be read; let this one come to its end: remuda pool scrub {name}",
                self.scrub.bad_before
            ));
        }
        if !self.log_durable {
            problems.push("its log does not survive a power loss".to_string());
        }
    }
}

/// Shards that have no free extent while a volume has not all of its extents there: one that has can be written anywhere.
fn full_shards(shards: &[ShardStatus], volumes: &[Arc<PoolVolume>]) -> Vec<u16> {
    let written = || volumes.iter().filter(|volume| !volume.identity().is_snapshot);
    let wants = |shard: &ShardStatus| {
        let held: BTreeMap<u32, u32> = shard.held.iter().copied().collect();
        // What a snapshot has is of another layer, and a write to that takes an extent.
        let held = |volume: &PoolVolume| u64::from(held.get(&volume.layer()).copied().unwrap_or(0));
        written().any(|volume| held(volume) < volume.extents_of_shard(shard.number))
    };
    shards.iter().filter(|shard| shard.free_extents == 0 && wants(shard)).map(|shard| shard.number).collect()
}

/// How a pool is that gave no numbers, in a word; one that is `live` has not answered, which fails its hosts.
fn without_numbers(live: bool, closed: &'static str, failing: &mut Vec<String>) -> &'static str {
    if live {
        failing.push("it does not answer: see the log, and restart the node".to_string());
        return "trouble";
    }
    closed
}

impl PoolView {
    /// Hosts get what they should.
    pub fn is_well(&self) -> bool {
        self.state == "open" && self.failing.is_empty()
    }

    /// What is wrong, a line each that names the pool.
    pub fn problem_lines(&self) -> impl Iterator<Item = String> {
        self.lines(&self.problems)
    }

    /// The same of what hosts notice.
    pub fn failing_lines(&self) -> impl Iterator<Item = String> {
        self.lines(&self.failing)
    }

    fn lines(&self, problems: &[String]) -> impl Iterator<Item = String> {
        problems.iter().map(|problem| format!("pool '{}' ({}): {problem}", self.name, self.state))
    }

    /// Reads of its capacity device go through this flash cache. What is hot but for that is warm.
    pub(super) fn reads_cached_on(&mut self, cache: &str) {
        self.cache = Some(cache.to_string());
        if let Some(open) = self.open.as_mut().filter(|open| open.layout.shape == Shape::Hot.name()) {
            open.layout.shape = WARM.to_string();
        }
    }

    /// A pool's definition, with the numbers that it gave if it is open.
    pub(super) fn of(slot: &PoolSlot, status: Option<PoolStatus>) -> PoolView {
        let (mut problems, mut failing) = (Vec::new(), Vec::new());
        let forgetting = slot.forget.under_way.as_ref().map(|under_way| under_way.steps());
        let (settling, settle_error) = match (&slot.live, forgetting) {
            (Ok(open), _) => open.settling(),
            (Err(_), Some(steps)) => {
                failing.push(format!("its log is being given up ({}), then it is opened", steps.words()));
                (false, None)
            }
            (Err(refusal), None) => {
                let next = if refusal.next.is_empty() { String::new() } else { format!("; {}", refusal.next) };
                failing.push(format!("{}{next}", refusal.cause));
                (false, None)
            }
        };
        problems.extend(settle_error.map(|error| format!("the last settle failed: {error}")));
        let open = status.zip(slot.live.as_ref().ok()).map(|(status, open)| {
            let scrub = ScrubView { bad: Vec::new(), bad_metadata: Vec::new(), ..ScrubView::of(&status, &open.pool) };
            PoolNumbers::of(status, &slot.def.log, settling, scrub, &open.pool.volumes())
        });
        let closed = match (slot.check.lock().expect(UNPOISONED).running, forgetting) {
            (true, _) => "checking",
            (false, Some(_)) => "forgetting",
            (false, None) => "closed",
        };
        let state = match &open {
            Some(open) => {
                open.judge(&slot.def, &mut problems, &mut failing);
                open.state()
            }
            None => without_numbers(slot.live.is_ok(), closed, &mut failing),
        };
        // What fails comes first.
        problems.splice(0..0, failing.iter().cloned());
        PoolView {
            name: slot.def.name.clone(),
            state: state.to_string(),
            problems,
            failing,
            origin: slot.origin,
            definition: slot.def.clone(),
            open,
            cache: None,
            forgetting,
            flash_cache: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool_log::ForgetRun;
    use super::super::refusal::{Refusal, RefusalKind};
    use super::*;
    use crate::config::{LogDef, PlacementDef};

    fn def() -> PoolDef {
        PoolDef {
            name: "hot".into(),
            log: LogDef::Device("log".into()),
            capacity: "big".into(),
            shards: None,
            volumes_max: None,
            map_cache: None,
            reinsertion: None,
            placement: PlacementDef::Hot,
        }
    }

    fn judged(open: &PoolNumbers) -> (Vec<String>, Vec<String>) {
        let (mut problems, mut failing) = (Vec::new(), Vec::new());
        open.judge(&def(), &mut problems, &mut failing);
        (problems, failing)
    }

    #[test]
    fn what_fails_nobody_is_told_apart_from_what_does() {
        let mut open = PoolNumbers {
            shards: vec![ShardNumbers::default(); 2],
            layout: LayoutView { shape: "hot".into(), ..LayoutView::default() },
            ..PoolNumbers::default()
        };
        let (problems, failing) = judged(&open);
        assert!(
            problems.iter().any(|line| line.contains("power loss")) && failing.is_empty(),
            "{problems:?} {failing:?}"
        );
        assert_eq!(open.state(), "open");
        open.full_shards = vec![1];
        let (problems, failing) = judged(&open);
        assert!(failing[0].contains("no free extent in 1 of 2 shards (1)"), "{failing:?}");
        assert_eq!((problems.len(), failing.len(), open.state()), (1, 1, "full"));
        open.total.trouble = Some("write error".into());
        assert_eq!((judged(&open).1.len(), open.state()), (2, "trouble"));
        open.total.resting_segments = 3;
        assert!(judged(&open).0.iter().any(|line| line.contains("3 segments of its log are left alone")));
        // What cannot be moved for want of a log is its trouble alone.
        open.total.log_trouble = Some("no space left on the device".into());
        let (problems, failing) = judged(&open);
        assert_eq!((problems.len(), failing.len(), open.state()), (1, 2, "trouble"));
        assert!(failing[0].contains("refuses writes: no space left on the device"), "{failing:?}");
        (open.total.resting_segments, open.total.log_trouble) = (0, None);
        open.log_durable = true;
        assert!(judged(&open).0.is_empty());
        open.layout.shape = "shaped".into();
        let (problems, _) = judged(&open);
        assert!(problems.len() == 1 && problems[0].contains("defined as a hot pool, and was made a shaped one"));
    }

    #[test]
    fn what_flattening_copies_is_no_amplification_of_what_hosts_write() {
        let of = |user_write_bytes, flattened_bytes| {
            let numbers = ShardNumbers {
                user_write_bytes,
                flattened_bytes,
                log_write_bytes: 110,
                capacity_write_bytes: 120,
                ..ShardNumbers::default()
            };
            let numbers = numbers.with_ratios(1.0);
            (numbers.log_amplification, numbers.capacity_amplification)
        };
        assert_eq!(of(0, 100), (Some(1.1), Some(1.2)));
        assert_eq!(of(10, 90), of(100, 0));
        assert_eq!(of(0, 0), (None, None));
    }

    #[test]
    fn a_closed_pool_fails_with_its_reason() {
        let refusal = Refusal::new(RefusalKind::Failed, "pool 'hot'", "its log is gone", "look for it");
        let (check, forget) = (Arc::default(), ForgetRun::default());
        let slot = PoolSlot { def: def(), origin: Origin::Config, live: Err(refusal), check, forget };
        let view = PoolView::of(&slot, None);
        assert!(view.state == "closed" && !view.is_well(), "{view:?}");
        assert_eq!(view.failing_lines().collect::<Vec<_>>(), ["pool 'hot' (closed): its log is gone; look for it"]);
        assert_eq!(view.failing, view.problems);
    }

    #[test]
    fn a_pool_that_does_not_answer_fails_and_one_that_is_checked_has_its_reason_already() {
        let mut failing = Vec::new();
        assert_eq!(without_numbers(false, "checking", &mut failing), "checking");
        assert!(failing.is_empty());
        assert_eq!(without_numbers(true, "closed", &mut failing), "trouble");
        assert!(failing[0].contains("does not answer"), "{failing:?}");
    }
}
