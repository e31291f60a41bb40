//! The tiered engine: a log on fast media in front of capacity devices, one index, one recovery.
//!
//! Words and decisions are in `docs/decisions/engine.md`, bytes in `docs/formats/pool.md`. Nothing here reads a clock, a
//! file or a socket: time and media come from the reactor and from the devices below, so the simulator runs all of it.
#![forbid(unsafe_code)]

mod bands;
mod check;
mod checksums;
mod error;
mod flush_watch;
mod forget;
mod format;
mod half_made;
mod holds;
pub mod layout;
pub mod log;
mod log_device;
pub mod measure;
mod meta;
mod meter;
mod names;
mod pool;
mod rebuild;
mod remains;
mod shard;
mod shard_slices;
mod status;
mod stream;
mod together;
mod units;
mod versions;
mod volume;

pub use bands::policy;
pub use check::{CheckCounts, CheckOptions, CheckReport, FINDINGS_MAX, Finding, Severity};
pub use error::{Grounds, PoolError, volatile_log};
pub use forget::{
    BlockRange, ForgetProgress, ForgetSteps, ForgottenLog, LostRanges, SHOWN_BY_MAX, UNFOUND_RANGES_MAX, UnfoundBlocks,
};
pub use format::Malformed;
pub use format::catalog::{VOLUME_NAME_BYTES_MAX, VolumeEntry, VolumeState};
pub use format::superblock::{
    BandLayout, LogKind, Opening, Region, Role, SHARDS_MAX, SUPERBLOCK_COPIES, Shape, Superblock, SuperblockError,
};
pub use format::table::{BLOCKS_LOST, Descriptor, MAP_PAGE, MAP_SLOT_1, UNUSABLE};
pub use half_made::{is_of_pool, pool_of_log, read_device_start, take_back, take_back_log};
pub use holds::Holds;
pub use layout::{CreateOptions, PlanError, VOLUMES_MAX};
pub use log_device::LogDevice;
pub use meta::catalog::{Catalog, Edit};
pub use meta::catalog_store::CatalogStore;
pub use meta::flaw::{MetadataKind, Rot};
pub use meta::journal::DirtyJournal;
pub use meta::page::{HOLE, INHERIT, LOST, Page, stored_crc};
pub use meta::superblocks::{read_superblocks, wipe_superblocks, write_superblock};
pub use meta::{LostBlocks, Meta, MetaError, MetaStats, Object};
pub use pool::{
    Changes, FlattenState, FlattenStatus, OpenOptions, Pool, PoolAudit, PoolDevices, PoolLayout, PoolRecovery,
    SnapshotInfo, VolumeInfo,
};
pub use shard::heat::{Heat, PERCENT_MAX as REINSERTION_PERCENT_MAX};
pub use shard::log_policy;
pub use shard::{
    BAD_HEADERS_MAX, BAD_METADATA_MAX, BadHeader, BadMetadata, BadRun, Change, ChangeKind, Defect, ExtentOwner, Marks,
    SCRUB_FINDINGS_MAX, ScrubCourse, ScrubStand, ScrubStatus, ShardRecovery, ShardTuning,
};
pub use status::{BandStatus, CapacityStreams, LogStreams, PoolStatus, ShardStatus, WriteStreams};
pub use stream::{
    CheckName, ImportOptions, Imported, StreamAbout, StreamError, StreamSink, StreamSource, StreamTotals,
    StreamVerifier,
};
pub use units::{
    ATOMIC_BLOCKS, BLOCK_BYTES, EXTENT_BLOCKS, LogAt, LogTail, RECORD_BLOCKS_MAX, SLICE_EXTENTS, extent_of,
};
pub use volume::{PoolVolume, VolumeIdentity};
