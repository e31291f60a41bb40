//! What the node tells about pools.

use super::pools::PoolSlot;
use super::state::Origin;
use crate::config::PoolDef;
use engine::{EXTENT_BLOCKS, PoolStatus, ShardStatus};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

const EXTENT_BYTES: u64 = EXTENT_BLOCKS as u64 * engine::BLOCK_BYTES as u64;

/// A pool: its definition, and its numbers while it is open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolView {
    /// Name.
    pub name: String,
    /// `open`, `trouble` (open, but upkeep fails), or `closed`.
    pub state: String,
    /// Why it is closed, what fails, what is lost; and what to do.
    pub problems: Vec<String>,
    /// Who defined it.
    pub origin: Origin,
    /// Its definition.
    pub definition: PoolDef,
    /// Its numbers while it is open.
    pub open: Option<PoolNumbers>,
}

/// Numbers of an open pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolNumbers {
    /// Identity.
    pub uuid: Uuid,
    /// Volumes.
    pub volumes: usize,
    /// Bytes of the capacity device in use by the pool.
    pub capacity_bytes: u64,
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
    /// All shards together.
    pub total: ShardNumbers,
    /// Shards by number.
    pub shards: Vec<ShardNumbers>,
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
    /// Writes waiting for room in the log.
    pub waiting_writes: u64,
    /// Writes that ever waited.
    pub waits: u64,
    /// Memory of its structures.
    pub memory_bytes: u64,
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
            user_write_bytes: shard.user_write_bytes,
            user_read_bytes: shard.user_read_bytes,
            log_hit_bytes: shard.log_hit_bytes,
            log_write_bytes: shard.log_write_bytes,
            capacity_write_bytes: shard.capacity_write_bytes,
            checkpoints: shard.checkpoints,
            replay_records: shard.replay_records,
            corrupt_blocks: shard.corrupt_blocks,
            lost_blocks: shard.lost_blocks,
            waiting_writes: shard.waiting_writes as u64,
            waits: shard.waits,
            memory_bytes: shard.memory_bytes as u64,
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
        self.user_write_bytes += shard.user_write_bytes;
        self.user_read_bytes += shard.user_read_bytes;
        self.log_hit_bytes += shard.log_hit_bytes;
        self.log_write_bytes += shard.log_write_bytes;
        self.capacity_write_bytes += shard.capacity_write_bytes;
        self.checkpoints += shard.checkpoints;
        self.replay_records += shard.replay_records;
        self.corrupt_blocks += shard.corrupt_blocks;
        self.lost_blocks += shard.lost_blocks;
        self.waiting_writes += shard.waiting_writes;
        self.waits += shard.waits;
        self.memory_bytes += shard.memory_bytes;
        self.trouble = self.trouble.take().or_else(|| shard.trouble.clone());
    }

    fn with_ratios(mut self, replay_rate: Option<f64>) -> ShardNumbers {
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        self.log_fill = share(self.log_bytes.saturating_sub(self.log_free_bytes), self.log_bytes).unwrap_or(0.0);
        self.log_amplification = share(self.log_write_bytes, self.user_write_bytes);
        self.capacity_amplification = share(self.capacity_write_bytes, self.user_write_bytes);
        self.recovery_estimate_ns = replay_rate.map(|rate| (self.replay_records as f64 / rate * 1e9) as u64);
        self
    }
}

/// Records from which on the time to open a pool says something about the rate of replay.
const RATE_RECORDS_MIN: u64 = 1000;

impl PoolNumbers {
    fn of(status: PoolStatus, settling: bool) -> PoolNumbers {
        let recovery = status.recovery;
        let measured = recovery.records >= RATE_RECORDS_MIN && recovery.elapsed_ns > 0;
        let replay_rate = measured.then(|| recovery.records as f64 * 1e9 / recovery.elapsed_ns as f64);
        let plain: Vec<ShardNumbers> = status.shards.iter().map(ShardNumbers::of).collect();
        let mut total = ShardNumbers::default();
        plain.iter().for_each(|shard| total.add(shard));
        PoolNumbers {
            uuid: status.uuid,
            volumes: status.volumes,
            capacity_bytes: status.capacity_bytes,
            log_bytes: status.log_bytes,
            log_durable: status.log_durable,
            recovered_records: recovery.records,
            recovered_blocks: recovery.log_blocks,
            recovered_ns: recovery.elapsed_ns,
            replay_rate,
            settling,
            total: total.with_ratios(replay_rate),
            shards: plain.into_iter().map(|shard| shard.with_ratios(replay_rate)).collect(),
        }
    }
}

impl PoolView {
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
        let open = status.map(|status| PoolNumbers::of(status, settling));
        if let Some(open) = &open {
            problems.extend(open.total.trouble.as_ref().map(|trouble| {
                format!("moving blocks to the capacity device fails: {trouble}; see to device '{}'", slot.def.capacity)
            }));
            if open.total.free_extents == 0 {
                problems.push("no free extent: writes to new places fail; delete or trim volumes".to_string());
            }
            if open.total.lost_blocks + open.total.corrupt_blocks > 0 {
                let (lost, corrupt) = (open.total.lost_blocks, open.total.corrupt_blocks);
                problems
                    .push(format!("{lost} blocks lost, {corrupt} failed their checksum: restore them from elsewhere"));
            }
            if !open.log_durable {
                problems.push("its log does not survive a power loss".to_string());
            }
        }
        let failing = open.as_ref().is_some_and(|open| open.total.trouble.is_some());
        let state = match (&open, failing) {
            (None, _) => "closed",
            (Some(_), true) => "trouble",
            (Some(_), false) => "open",
        };
        PoolView {
            name: slot.def.name.clone(),
            state: state.to_string(),
            problems,
            origin: slot.origin,
            definition: slot.def.clone(),
            open,
        }
    }
}
