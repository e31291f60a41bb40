//! What the node tells about pools.

use super::pools::{PoolSlot, UNPOISONED};
use super::state::Origin;
use super::view::FlashCacheView;
use crate::config::PoolDef;
use bdev::BlockDevice;
use engine::{BadRun, EXTENT_BLOCKS, Pool, PoolStatus, PoolVolume, ShardStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

const EXTENT_BYTES: u64 = EXTENT_BLOCKS as u64 * engine::BLOCK_BYTES as u64;

/// A pool: its definition, and its numbers while it is open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolView {
    /// Name.
    pub name: String,
    /// `open`, `full` (open, but new blocks are refused), `trouble` (open, but upkeep fails), `closed`, or `checking` (closed, and
    /// being checked).
    pub state: String,
    /// Why it is closed, what fails, what is lost; and what to do.
    pub problems: Vec<String>,
    /// Who defined it.
    pub origin: Origin,
    /// Its definition.
    pub definition: PoolDef,
    /// Its numbers while it is open.
    pub open: Option<PoolNumbers>,
    /// The flash cache that is its capacity device, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_cache: Option<FlashCacheView>,
}

/// Numbers of an open pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolNumbers {
    /// Identity.
    pub uuid: Uuid,
    /// Volumes.
    pub volumes: usize,
    /// Snapshots of these.
    #[serde(default)]
    pub snapshots: usize,
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
    /// Extents that these still have.
    #[serde(default)]
    pub going_extents: u64,
    /// Bytes of the capacity device in use by the pool.
    pub capacity_bytes: u64,
    /// Bytes by which the capacity device has become larger; `pool grow` takes them into use.
    #[serde(default)]
    pub unused_bytes: u64,
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
    /// Log records replayed per second then; nothing was measured when there were too few.
    pub replay_rate: Option<f64>,
    /// Everything is being moved to the capacity device.
    pub settling: bool,
    /// The scrub that runs, or was the last one; without its list.
    pub scrub: ScrubView,
    /// All shards together.
    pub total: ShardNumbers,
    /// Shards by number.
    pub shards: Vec<ShardNumbers>,
}

/// How far the scrub of a pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubState {
    /// There was none since the pool was opened.
    #[default]
    None,
    /// It is under way.
    Running,
    /// It was stopped before its end, and goes on from there.
    Stopped,
    /// It came to its end.
    Done,
}

/// A scrub of a pool: how far it is, and what it has found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ScrubView {
    /// How far, in a word.
    pub state: ScrubState,
    /// Extents passed.
    pub extents_done: u64,
    /// Extents to pass.
    pub extents_total: u64,
    /// Bytes that were good.
    pub good_bytes: u64,
    /// Blocks of 4 KiB that did not match their checksums or could not be read.
    pub corrupt_blocks: u64,
    /// Blocks of 4 KiB that are known to be lost.
    pub lost_blocks: u64,
    /// Blocks of 4 KiB that were damaged in one version of the device and were written anew from another.
    #[serde(default)]
    pub healed_blocks: u64,
    /// The first runs of bad blocks.
    pub bad: Vec<BadRunView>,
    /// Bad blocks of 4 KiB that are not in that list.
    pub bad_left_off: u64,
}

/// Blocks of a volume that cannot be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BadRunView {
    /// The volume.
    pub volume: String,
    /// The first of them, as hosts count.
    pub lba: u64,
    /// How many.
    pub blocks: u64,
    /// Bytes of one.
    pub block_size: u32,
    /// They are known to be lost; otherwise they do not match their checksums or cannot be read.
    pub lost: bool,
}

impl ScrubView {
    pub(super) fn of(status: &PoolStatus, pool: &Pool) -> ScrubView {
        let volumes = pool.volumes();
        let run = |bad: &BadRun| {
            let volume = volumes.iter().find(|volume| volume.layer() == bad.volume);
            let shift = volume.map_or(12, |volume| volume.identity().block_shift);
            let name = volume.map_or_else(|| format!("number {}", bad.volume), |volume| volume.identity().name.clone());
            let (lba, blocks) = (bad.first << (12 - shift), (bad.blocks as u64) << (12 - shift));
            BadRunView { volume: name, lba, blocks, block_size: 1 << shift, lost: bad.lost }
        };
        let mut view = ScrubView::default();
        let (mut running, mut listed) = (false, 0);
        for scrub in status.shards.iter().map(|shard| &shard.scrub) {
            running |= scrub.running;
            view.extents_done += scrub.extents_done as u64;
            view.extents_total += scrub.extents_total as u64;
            view.good_bytes += scrub.good_blocks * engine::BLOCK_BYTES as u64;
            view.corrupt_blocks += scrub.corrupt_blocks;
            view.lost_blocks += scrub.lost_blocks;
            view.healed_blocks += scrub.healed_blocks;
            view.bad.extend(scrub.bad.iter().map(run));
            listed += scrub.bad.iter().map(|bad| bad.blocks as u64).sum::<u64>();
        }
        view.bad.sort_by(|one, other| (&one.volume, one.lba).cmp(&(&other.volume, other.lba)));
        view.bad_left_off = (view.corrupt_blocks + view.lost_blocks).saturating_sub(listed);
        view.state = match () {
            () if running => ScrubState::Running,
            () if view.extents_total == 0 => ScrubState::None,
            () if view.extents_done == view.extents_total => ScrubState::Done,
            () => ScrubState::Stopped,
        };
        view
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
    /// Bytes of headers and padding written to bands.
    #[serde(default)]
    pub padding_bytes: u64,
    /// Bytes to the log per byte written by hosts.
    pub log_amplification: Option<f64>,
    /// Bytes to the capacity device per byte written by hosts.
    pub capacity_amplification: Option<f64>,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Log records that a crash now would have replayed.
    pub replay_records: u64,
    /// How long that would take, by the measured rate.
    pub recovery_estimate_ns: Option<u64>,
    /// Blocks that failed their checksum.
    pub corrupt_blocks: u64,
    /// Blocks that are lost: reading one is an error until it is written again.
    pub lost_blocks: u64,
    /// Blocks that were damaged in one version of the device and were written anew from another.
    #[serde(default)]
    pub healed_blocks: u64,
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
    /// Scrubs that came to their end since the pool was opened.
    pub scrubs: u64,
    /// Why upkeep fails, while it does.
    pub trouble: Option<String>,
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
            log_write_bytes: shard.log_write_bytes,
            capacity_write_bytes: shard.capacity_write_bytes,
            bands: shard.bands.bands as u64,
            free_bands: shard.bands.free as u64,
            pending_bands: shard.bands.pending as u64,
            retired_bands: shard.bands.retired as u64,
            band_valid_bytes: shard.bands.valid_bytes,
            band_total_bytes: shard.bands.total_bytes,
            collected_bytes: shard.bands.collected_bytes,
            padding_bytes: shard.bands.padding_bytes,
            checkpoints: shard.checkpoints,
            replay_records: shard.replay_records,
            corrupt_blocks: shard.corrupt_blocks,
            lost_blocks: shard.lost_blocks,
            healed_blocks: shard.healed_blocks,
            waiting_writes: shard.waiting_writes as u64,
            waits: shard.waits,
            memory_bytes: shard.memory_bytes as u64,
            scrubs_running: shard.scrub.running as u64,
            scrubbed_extents: shard.scrub.extents_done as u64,
            scrub_bad_blocks: shard.scrub.corrupt_blocks + shard.scrub.lost_blocks,
            scrubs: shard.scrub.completed,
            trouble: shard.trouble.clone(),
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
        self.log_write_bytes += shard.log_write_bytes;
        self.capacity_write_bytes += shard.capacity_write_bytes;
        self.bands += shard.bands;
        self.free_bands += shard.free_bands;
        self.pending_bands += shard.pending_bands;
        self.retired_bands += shard.retired_bands;
        self.band_valid_bytes += shard.band_valid_bytes;
        self.band_total_bytes += shard.band_total_bytes;
        self.collected_bytes += shard.collected_bytes;
        self.padding_bytes += shard.padding_bytes;
        self.checkpoints += shard.checkpoints;
        self.replay_records += shard.replay_records;
        self.corrupt_blocks += shard.corrupt_blocks;
        self.lost_blocks += shard.lost_blocks;
        self.healed_blocks += shard.healed_blocks;
        self.waiting_writes += shard.waiting_writes;
        self.waits += shard.waits;
        self.memory_bytes += shard.memory_bytes;
        self.scrubs_running += shard.scrubs_running;
        self.scrubbed_extents += shard.scrubbed_extents;
        self.scrub_bad_blocks += shard.scrub_bad_blocks;
        self.scrubs += shard.scrubs;
        self.trouble = self.trouble.take().or_else(|| shard.trouble.clone());
    }

    fn with_ratios(mut self, replay_rate: Option<f64>) -> ShardNumbers {
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        self.log_fill = share(self.log_bytes.saturating_sub(self.log_free_bytes), self.log_bytes).unwrap_or(0.0);
        self.log_amplification = share(self.log_write_bytes, self.user_write_bytes);
        self.capacity_amplification = share(self.capacity_write_bytes, self.user_write_bytes);
        self.band_valid_share = share(self.band_valid_bytes, self.band_total_bytes);
        self.recovery_estimate_ns = replay_rate.map(|rate| (self.replay_records as f64 / rate * 1e9) as u64);
        self
    }
}

/// Records from which on the time to open a pool says something about the rate of replay.
const RATE_RECORDS_MIN: u64 = 1000;

impl PoolNumbers {
    fn of(status: PoolStatus, settling: bool, scrub: ScrubView, volumes: &[Arc<PoolVolume>]) -> PoolNumbers {
        let held = status.held();
        let allocated = volumes.iter().map(|volume| {
            (volume.name().to_string(), held.get(&volume.layer()).map_or(0, |extents| extents * EXTENT_BYTES))
        });
        let written = volumes.iter().filter(|volume| !volume.identity().is_snapshot);
        let recovery = status.recovery;
        let measured = recovery.records >= RATE_RECORDS_MIN && recovery.elapsed_ns > 0;
        let replay_rate = measured.then(|| recovery.records as f64 * 1e9 / recovery.elapsed_ns as f64);
        let plain: Vec<ShardNumbers> = status.shards.iter().map(ShardNumbers::of).collect();
        let mut total = ShardNumbers::default();
        plain.iter().for_each(|shard| total.add(shard));
        PoolNumbers {
            uuid: status.uuid,
            volumes: status.volumes,
            snapshots: status.snapshots,
            provisioned_bytes: written.map(|volume| volume.info().bytes()).sum(),
            allocated_bytes: held.values().sum::<u64>() * EXTENT_BYTES,
            allocated: allocated.collect(),
            going: status.going,
            going_extents: status.going_extents,
            capacity_bytes: status.capacity_bytes,
            unused_bytes: status.unused_bytes,
            log_bytes: status.log_bytes,
            log_durable: status.log_durable,
            recovered_records: recovery.records,
            recovered_blocks: recovery.log_blocks,
            recovered_ns: recovery.elapsed_ns,
            replay_rate,
            settling,
            scrub,
            total: total.with_ratios(replay_rate),
            shards: plain.into_iter().map(|shard| shard.with_ratios(replay_rate)).collect(),
        }
    }
}

impl PoolView {
    /// Hosts get what they should.
    pub fn is_well(&self) -> bool {
        self.state == "open"
    }

    /// What is wrong, a line each that names the pool.
    pub fn problem_lines(&self) -> impl Iterator<Item = String> {
        self.problems.iter().map(|problem| format!("pool '{}' ({}): {problem}", self.name, self.state))
    }

    /// A pool's definition, with the numbers that it gave if it is open.
    pub(super) fn of(slot: &PoolSlot, status: Option<PoolStatus>) -> PoolView {
        let mut problems = Vec::new();
        let (settling, settle_error) = match &slot.live {
            Ok(open) => open.settling(),
            Err(refusal) => {
                let next = if refusal.next.is_empty() { String::new() } else { format!("; {}", refusal.next) };
                problems.push(format!("{}{next}", refusal.cause));
                (false, None)
            }
        };
        problems.extend(settle_error.map(|error| format!("the last settle failed: {error}")));
        let open = status.zip(slot.live.as_ref().ok()).map(|(status, open)| {
            let scrub = ScrubView { bad: Vec::new(), ..ScrubView::of(&status, &open.pool) };
            PoolNumbers::of(status, settling, scrub, &open.pool.volumes())
        });
        if let Some(open) = &open {
            problems.extend(open.total.trouble.as_ref().map(|trouble| {
                format!("moving blocks to the capacity device fails: {trouble}; see to device '{}'", slot.def.capacity)
            }));
            if open.total.unusable_extents > 0 {
                let unusable = open.total.unusable_extents;
                problems.push(format!("{unusable} unusable extents: the capacity device refuses to write them"));
            }
            if open.total.free_extents == 0 {
                problems.push("no free extent: writes to new places fail; delete or trim volumes".to_string());
            }
            if open.total.lost_blocks + open.total.corrupt_blocks > 0 {
                let (lost, corrupt) = (open.total.lost_blocks, open.total.corrupt_blocks);
                problems
                    .push(format!("{lost} blocks lost, {corrupt} failed their checksum: restore them from elsewhere"));
            }
            if open.total.scrub_bad_blocks > 0 {
                let (bad, name) = (open.total.scrub_bad_blocks, &slot.def.name);
                problems.push(format!(
                    "the scrub found {bad} blocks that cannot be read: 'remuda pool scrub {name} --status' lists them"
                ));
            }
            if !open.log_durable {
                problems.push("its log does not survive a power loss".to_string());
            }
        }
        let failing = open.as_ref().is_some_and(|open| open.total.trouble.is_some());
        let full = open.as_ref().is_some_and(|open| open.total.free_extents == 0);
        let checking = slot.check.lock().expect(UNPOISONED).running;
        let state = match (&open, failing) {
            (None, _) if checking => "checking",
            (None, _) => "closed",
            (Some(_), true) => "trouble",
            (Some(_), false) if full => "full",
            (Some(_), false) => "open",
        };
        PoolView {
            name: slot.def.name.clone(),
            state: state.to_string(),
            problems,
            origin: slot.origin,
            definition: slot.def.clone(),
            open,
            flash_cache: None,
        }
    }
}
