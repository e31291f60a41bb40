//! What a pool tells about itself.

use crate::pool::{FlattenStatus, PoolLayout, PoolRecovery};
use crate::shard::{ScrubStatus, Shard};
use crate::units::BLOCK_BYTES;
use std::collections::BTreeMap;
use uuid::Uuid;

/// How a pool is.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: Uuid,
    /// How it lies on its devices.
    pub layout: PoolLayout,
    /// Bytes of the capacity device that it uses.
    pub capacity_bytes: u64,
    /// Bytes by which that has become larger since: [`Pool::grow`](crate::Pool::grow) takes them into use.
    pub unused_bytes: u64,
    /// Bytes of the log device that it uses.
    pub log_bytes: u64,
    /// Whether what is in the log survives a power loss.
    pub log_durable: bool,
    /// Number of volumes.
    pub volumes: usize,
    /// Number of snapshots.
    pub snapshots: usize,
    /// Deleted volumes and snapshots that have not gone yet.
    pub going: usize,
    /// Extents that these still have.
    pub going_extents: u64,
    /// Flattenings, by volume, that are under way or have failed.
    pub flattening: Vec<(String, FlattenStatus)>,
    /// What opening it took.
    pub recovery: PoolRecovery,
    /// Bytes by which the capacity device would have to become larger before the log could be given up now: what of thin volumes
    /// is lost with it takes extents that there are not. 0: none.
    pub forget_growth_bytes: u64,
    /// Its shards.
    pub shards: Vec<ShardStatus>,
}

impl PoolStatus {
    /// Extents that each layer has, over all shards.
    pub fn held(&self) -> BTreeMap<u32, u64> {
        let mut held = BTreeMap::new();
        for (layer, extents) in self.shards.iter().flat_map(|shard| &shard.held) {
            *held.entry(*layer).or_default() += *extents as u64;
        }
        held
    }
}

/// How a shard is: bytes and counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShardStatus {
    /// Its number.
    pub number: u16,
    /// Log bytes in all, and not needed any more.
    pub log_bytes: u64,
    /// Log bytes that may be written.
    pub log_free_bytes: u64,
    /// Bytes whose newest copy is in the log alone.
    pub dirty_bytes: u64,
    /// Extents, and how many are free.
    pub extents: u32,
    /// Extents that nobody has.
    pub free_extents: u32,
    /// The layers that have extents, and how many; see [`PoolVolume::layer`](crate::PoolVolume::layer).
    pub held: Vec<(u32, u32)>,
    /// Extents whose places refuse writes and are not used any more.
    pub unusable_extents: u32,
    /// Bytes that hosts have written.
    pub user_write_bytes: u64,
    /// Bytes that hosts have read.
    pub user_read_bytes: u64,
    /// Of those, bytes that came from the log.
    pub log_hit_bytes: u64,
    /// Of the bytes written, those that went past the log.
    pub bypassed_bytes: u64,
    /// Bytes that flattening has written beside them: what volumes showed of others and is their own now.
    pub flattened_bytes: u64,
    /// Bytes written to the log device.
    pub log_write_bytes: u64,
    /// Bytes written to the capacity device: data and metadata.
    pub capacity_write_bytes: u64,
    /// Bands, of a shaped pool.
    pub bands: BandStatus,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Log records since the last checkpoint's tail: what recovery would replay.
    pub replay_records: u64,
    /// Slices, of 64 MiB, that would be lost with the log device now; `None` when everything would be, as in a shaped pool
    /// without a shadow of its index.
    pub dirty_slices: Option<u64>,
    /// Blocks that failed their checksum.
    pub corrupt_blocks: u64,
    /// Blocks that were damaged in one version, and have been written anew from another.
    pub healed_blocks: u64,
    /// Blocks that the capacity device gave back wrongly, or not at all, and that were right when its versions were asked for.
    pub rescued_blocks: u64,
    /// Blocks that are lost.
    pub lost_blocks: u64,
    /// Writes that wait for room in the log.
    pub waiting_writes: usize,
    /// Writes that ever had to.
    pub waits: u64,
    /// Bytes of memory that the shard's structures take.
    pub memory_bytes: usize,
    /// The scrub that runs, or was the last one.
    pub scrub: ScrubStatus,
    /// Why upkeep fails, while it does.
    pub trouble: Option<String>,
    /// Why all writes to the log fail, while they do.
    pub log_trouble: Option<String>,
    /// Segments of the log that are left alone, since writing them failed just now or reading them did at opening.
    pub resting_segments: u32,
}

/// How the bands of a shard are; all zero where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandStatus {
    /// Bands in all.
    pub bands: u32,
    /// Those that may be written.
    pub free: u32,
    /// Those that are free with the next checkpoint.
    pub pending: u32,
    /// Those that have refused writes and are not used any more.
    pub retired: u32,
    /// Bytes that map pages lead to: about, after an opening.
    pub valid_bytes: u64,
    /// Bytes of data that bands in use and free ones hold at most.
    pub total_bytes: u64,
    /// Bytes that garbage collection has moved.
    pub collected_bytes: u64,
    /// Bytes of blocks that are written often, which went to the log once more instead of to bands.
    pub reinserted_bytes: u64,
    /// Bytes of headers and padding that were written.
    pub padding_bytes: u64,
    /// Bytes written to bands in all.
    pub write_bytes: u64,
}

impl BandStatus {
    fn of(shard: &Shard) -> BandStatus {
        let Some(bands) = shard.meta().bands() else { return BandStatus::default() };
        let (room, stats) = (bands.room(), bands.stats());
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        BandStatus {
            bands: room.bands,
            free: room.free,
            pending: room.pending + room.unmapping,
            retired: room.retired,
            valid_bytes: bytes(room.valid_blocks),
            total_bytes: bytes(room.total_blocks),
            collected_bytes: bytes(shard.collected_blocks()),
            reinserted_bytes: shard.counters().reinserted_bytes.get(),
            padding_bytes: bytes(stats.stripes + stats.padding_blocks),
            write_bytes: stats.bytes(),
        }
    }
}

impl ShardStatus {
    pub(crate) fn of(shard: &Shard) -> ShardStatus {
        let (index, counters, room) = (shard.index_stats(), shard.counters(), shard.log().room());
        let (log, meta) = (shard.log().stats(), shard.meta().stats());
        let (waiting_writes, waits) = shard.waits();
        let (bands, is_shaped) = (BandStatus::of(shard), shard.meta().bands().is_some());
        let page_blocks = 1 + is_shaped as u64;
        let index_bytes = (meta.page_writes * page_blocks + meta.table_writes) * BLOCK_BYTES as u64;
        let shadow = shard.shadow_stats();
        let shadow_bytes = (shadow.page_writes + shadow.table_writes) * BLOCK_BYTES as u64;
        ShardStatus {
            number: shard.number(),
            log_bytes: room.bytes_total,
            log_free_bytes: room.bytes_free,
            dirty_bytes: index.dirty_blocks * BLOCK_BYTES as u64,
            extents: shard.meta().extents(),
            free_extents: index.free_extents,
            held: shard.held(),
            unusable_extents: index.unusable_extents,
            user_write_bytes: counters.user_write_bytes.get(),
            user_read_bytes: counters.user_read_bytes.get(),
            log_hit_bytes: counters.log_hit_bytes.get(),
            bypassed_bytes: counters.bypassed_bytes.get(),
            flattened_bytes: counters.flattened_bytes.get(),
            log_write_bytes: log.medium_bytes + if is_shaped { index_bytes } else { 0 },
            capacity_write_bytes: match is_shaped {
                true => bands.write_bytes + shadow_bytes,
                false => counters.destaged_bytes.get() + counters.bypassed_bytes.get() + index_bytes,
            },
            bands,
            checkpoints: meta.checkpoints,
            replay_records: shard.replay_records(),
            dirty_slices: shard.dirty_slices(),
            corrupt_blocks: counters.corrupt_blocks.get(),
            healed_blocks: counters.healed_blocks.get(),
            rescued_blocks: counters.rescued_blocks.get(),
            lost_blocks: counters.lost_blocks.get(),
            waiting_writes,
            waits,
            memory_bytes: index.memory_bytes + meta.memory_bytes + shadow.memory_bytes + shard.heat_bytes(),
            scrub: shard.scrub_status(),
            trouble: shard.last_error().map(|status| status.to_string()),
            log_trouble: shard.log().refusal().map(|status| status.to_string()),
            resting_segments: log.resting,
        }
    }
}
