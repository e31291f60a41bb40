//! What a pool tells about itself.

use crate::bands::Stream;
use crate::layout::PlanError;
use crate::meta::LostBlocks;
use crate::pool::{FlattenStatus, PoolLayout, PoolRecovery};
use crate::shard::{Defect, ScrubStatus, Shard};
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
    /// Why it would not.
    pub unused_why: Option<PlanError>,
    /// Bytes of the log device that it uses.
    pub log_bytes: u64,
    /// Whether what is in the log survives a power loss.
    pub log_durable: bool,
    /// Number of volumes.
    pub volumes: usize,
    /// Number of snapshots.
    pub snapshots: usize,
    /// Volumes and snapshots, those that are being deleted among them, that there is room for.
    pub volumes_max: u64,
    /// Deleted volumes and snapshots that have not gone yet.
    pub going: usize,
    /// Of these, those that nothing lies over and whose turn it is: 0 when all that nobody shows have gone.
    pub going_unshown: usize,
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
    /// Bytes that flattening has written beside them: what volumes showed of others and is their own now.
    pub flattened_bytes: u64,
    /// Bytes written to both devices, by what they were. Those of the superblocks and of the catalog, which are all shards', count
    /// with the first.
    pub streams: WriteStreams,
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
    /// Blocks that have been lost since the pool was opened.
    pub lost_blocks: u64,
    /// What is lost, whenever that was.
    pub lost: LostBlocks,
    /// Damaged headers of stripes that scrubs have found, while blocks were in use there.
    pub damaged_headers: u64,
    /// Copies of structures of the metadata that scrubs have found damaged. What all shards have in common counts with the first one.
    pub damaged_metadata: u64,
    /// Of these, the ones that were written anew.
    pub repaired_metadata: u64,
    /// Disks below that seek, where each is destaged to by itself; 0: none is known.
    pub disks: usize,
    /// Of those, disks that hosts read, and to which destage writes only what the log has no room to keep.
    pub read_disks: usize,
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

/// Bytes written to a pool's devices since it was opened, by what they were. A write that failed does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteStreams {
    /// To the log device.
    pub log: LogStreams,
    /// To the capacity device.
    pub capacity: CapacityStreams,
}

/// Bytes written to the log device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStreams {
    /// What hosts and flattening wrote, and deltas merged into whole blocks.
    pub data: u64,
    /// Blocks that are written often, once more.
    pub reinserted: u64,
    /// Headers of records and segments, summaries, padding.
    pub headers: u64,
    /// Map and table pages of a shaped pool.
    pub index: u64,
    /// Superblocks, and the roots of a shaped pool.
    pub metadata: u64,
}

/// Bytes written to the capacity device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapacityStreams {
    /// What hosts and flattening wrote, and extents that moved away from places that refuse writes.
    pub data: u64,
    /// What hosts wrote in order into places never written before, past the log.
    pub bypassed: u64,
    /// What was still needed of bands that were collected.
    pub collected: u64,
    /// Headers of stripes, and padding.
    pub padding: u64,
    /// Map and table pages, which a shaped pool has on the log device.
    pub index: u64,
    /// Pages of a shaped pool's shadow of that.
    pub shadow: u64,
    /// Roots, dirty journals, superblocks and the catalog.
    pub metadata: u64,
}

impl LogStreams {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.data + self.reinserted + self.headers + self.index + self.metadata
    }
}

impl CapacityStreams {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.data + self.bypassed + self.collected + self.padding + self.index + self.shadow + self.metadata
    }
}

impl WriteStreams {
    fn of(shard: &Shard) -> WriteStreams {
        let (log, meta, shadow) = (shard.log().stats(), shard.meta().stats(), shard.shadow_stats());
        let counters = shard.counters();
        let reinserted = counters.reinserted_bytes.get().min(log.user_bytes);
        let on_log = LogStreams {
            data: log.user_bytes - reinserted,
            reinserted,
            headers: log.medium_bytes - log.user_bytes + shard.opening_log_bytes(),
            ..LogStreams::default()
        };
        let journal = if shard.is_broken(Defect::MiscountWrites) { 0 } else { shard.journal_bytes() };
        let Some(bands) = shard.meta().bands() else {
            let capacity = CapacityStreams {
                data: counters.destaged_bytes.get(),
                bypassed: counters.bypassed_bytes.get(),
                index: meta.page_bytes,
                metadata: meta.root_bytes + journal,
                ..CapacityStreams::default()
            };
            return WriteStreams { log: on_log, capacity };
        };
        let (stats, bytes) = (bands.stats(), |blocks: u64| blocks * BLOCK_BYTES as u64);
        WriteStreams {
            log: LogStreams { index: meta.page_bytes, metadata: meta.root_bytes, ..on_log },
            capacity: CapacityStreams {
                data: bytes(stats.data_blocks[Stream::User as usize]),
                collected: bytes(stats.data_blocks[Stream::Moved as usize]),
                padding: bytes(stats.stripes + stats.padding_blocks + stats.rewritten_blocks),
                shadow: shadow.page_bytes,
                metadata: shadow.root_bytes + journal,
                index: 0,
                bypassed: 0,
            },
        }
    }
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
    /// Bytes that the collector has to move for what has been destaged, while fewer bands are free than there should be.
    pub debt_bytes: u64,
    /// The debt at which destage waits for the collector, and writers with it.
    pub debt_max_bytes: u64,
}

impl BandStatus {
    fn of(shard: &Shard) -> BandStatus {
        let Some(bands) = shard.meta().bands() else { return BandStatus::default() };
        let (room, stats) = (bands.room(), bands.stats());
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let (debt_blocks, debt_max_blocks) = shard.gc_debt(bands);
        BandStatus {
            bands: room.bands,
            free: room.free,
            pending: room.pending + room.unmapping,
            retired: room.retired,
            valid_bytes: bytes(room.valid_blocks),
            total_bytes: bytes(room.total_blocks),
            collected_bytes: bytes(shard.collected_blocks()),
            reinserted_bytes: shard.counters().reinserted_bytes.get(),
            padding_bytes: bytes(stats.stripes + stats.padding_blocks + stats.rewritten_blocks),
            write_bytes: stats.bytes(),
            debt_bytes: bytes(debt_blocks),
            debt_max_bytes: bytes(debt_max_blocks),
        }
    }
}

impl ShardStatus {
    pub(crate) fn of(shard: &Shard) -> ShardStatus {
        let (index, counters, room) = (shard.index_stats(), shard.counters(), shard.log().room());
        let (log, meta) = (shard.log().stats(), shard.meta().stats());
        let (waiting_writes, waits) = shard.waits();
        let (shadow, (disks, read_disks)) = (shard.shadow_stats(), shard.disks());
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
            flattened_bytes: counters.flattened_bytes.get(),
            streams: WriteStreams::of(shard),
            bands: BandStatus::of(shard),
            checkpoints: meta.checkpoints,
            replay_records: shard.replay_records(),
            dirty_slices: shard.dirty_slices(),
            corrupt_blocks: counters.corrupt_blocks.get(),
            healed_blocks: counters.healed_blocks.get(),
            damaged_headers: counters.damaged_headers.get(),
            damaged_metadata: counters.damaged_metadata.get(),
            repaired_metadata: counters.repaired_metadata.get(),
            rescued_blocks: counters.rescued_blocks.get(),
            lost_blocks: counters.lost_blocks.get(),
            lost: shard.meta().lost_blocks(),
            disks,
            read_disks,
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
