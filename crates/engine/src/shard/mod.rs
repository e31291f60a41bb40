//! A shard: one reactor's part of a pool, with its own log, index and extents. Nothing in it is shared and nothing locks.
//!
//! Writes go to the log and are done (`write`); reads find the newest bytes wherever they are and verify them (`read`);
//! upkeep moves what the log holds to where placement wants it and makes checkpoints (`destage`, `house`). The index
//! (`index`) learns from log records alone, so opening (`open`) is replaying them.

mod absorb;
mod alone;
mod audit;
mod bypass;
mod changes;
mod close;
mod collect;
mod cramped;
mod data;
mod destage;
mod dirty;
mod dirty_blocks;
mod evacuate;
mod flatten;
mod found;
mod freeze;
mod full;
mod gc;
pub(crate) mod heat;
mod house;
mod index;
mod knock;
mod lacks;
mod lane;
mod lineage;
mod locks;
mod log_map;
pub mod log_policy;
mod lost;
mod mend;
mod metadata;
mod open;
mod pace;
mod patience;
mod places;
mod read;
mod read_ahead;
mod recount;
mod reinsert;
mod relocate;
mod retire;
mod scrub;
mod seldom;
mod settled;
mod shadow;
mod shape;
mod shown_by;
mod slack;
mod sweep;
mod take_over;
mod trim;
mod turns;
mod unflushed;
mod unspoken;
mod verify;
mod write;

use crate::format::superblock::Superblock;
use crate::log::Log;
use crate::log_device::OpenLog;
use crate::meta::{DirtyJournal, Meta};
use crate::meter::Meter;
use crate::names::Names;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, LogTail, SLICE_EXTENTS};
use bdev::{BlockDevice, Channel, DeviceInfo, Io, Lba, Status};
use index::Index;
use lineage::Lineage;
use locks::{Locks, Range};
use pace::{Fill, Pace};
use patience::Patience;
use reactor::sync::Notify;
use reactor::{Reactor, SgList};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub use audit::ExtentOwner;
pub(crate) use changes::{Between, add_change};
pub use changes::{Change, ChangeKind};
pub(crate) use flatten::FlattenProgress;
pub(crate) use freeze::Succession;
pub use metadata::{BAD_METADATA_MAX, BadMetadata};
pub(crate) use metadata::{CommonReview, Place as MetadataPlace};
pub use open::ShardRecovery;
pub(crate) use open::{ShardParts, fits};
pub use pace::Marks;
pub(crate) use patience::{PATIENCE_NS, TRIES_MIN};
pub use scrub::{BadRun, SCRUB_FINDINGS_MAX, ScrubCourse, ScrubStand, ScrubStatus};
pub(crate) use slack::{Hurry, pause_ns};
pub use unspoken::{BAD_HEADERS_MAX, BadHeader};
pub(crate) use verify::BadBlock;

/// A block in offsets and lengths inside of an extent.
const BLOCK: u32 = BLOCK_BYTES as u32;
/// Log bytes that merging the deltas over one block takes at most: a group of a header and a block.
const MERGE_BYTES_MAX: u64 = 2 * BLOCK_BYTES as u64;
/// Times that a read is planned anew because blocks moved meanwhile, before it waits a turn between attempts.
const EAGER_ATTEMPTS: u32 = 8;

/// Bytes of one extent of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Volume.
    pub(crate) volume: u32,
    /// Extent of the volume.
    pub(crate) vextent: u32,
    /// First byte in the extent.
    pub(crate) offset: u32,
    /// Number of bytes; the range stays inside the extent.
    pub(crate) bytes: u32,
}

impl Target {
    /// Whether it is made of whole blocks.
    #[inline]
    fn is_whole(&self) -> bool {
        (self.offset | self.bytes).is_multiple_of(BLOCK_BYTES as u32)
    }

    /// The blocks it touches, as indices in the extent.
    fn blocks(&self) -> std::ops::Range<u32> {
        let block = BLOCK_BYTES as u32;
        self.offset / block..(self.offset + self.bytes).div_ceil(block)
    }

    fn range(&self) -> Range {
        let first = self.vextent as u64 * EXTENT_BLOCKS as u64;
        let blocks = self.blocks();
        Range { volume: self.volume, start: first + blocks.start as u64, end: first + blocks.end as u64 }
    }

    fn slice(&self) -> u32 {
        self.vextent / SLICE_EXTENTS
    }
}

/// How an operation ended, with its buffers.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) bufs: SgList,
}

/// What a shard has done, in numbers that only grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) user_write_bytes: Cell<u64>,
    pub(crate) user_read_bytes: Cell<u64>,
    pub(crate) log_hit_bytes: Cell<u64>,
    pub(crate) destaged_bytes: Cell<u64>,
    pub(crate) reinserted_bytes: Cell<u64>,
    pub(crate) bypassed_bytes: Cell<u64>,
    pub(crate) flattened_bytes: Cell<u64>,
    /// Bytes that opening the log has written to a block log.
    opening_log_bytes: Meter,
    pub(crate) corrupt_blocks: Cell<u64>,
    pub(crate) healed_blocks: Cell<u64>,
    pub(crate) rescued_blocks: Cell<u64>,
    pub(crate) lost_blocks: Cell<u64>,
    pub(crate) damaged_headers: Cell<u64>,
    pub(crate) damaged_metadata: Cell<u64>,
    pub(crate) repaired_metadata: Cell<u64>,
}

fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}

/// What an operator may want to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardTuning {
    /// Bytes of map pages kept in memory.
    pub map_cache_bytes: usize,
    /// Fewer are not kept, whatever is asked for.
    pub map_cache_bytes_min: usize,
    /// Extents destaged at the same time, three times as many where destage and GC take turns; `None`: as placement wants it.
    pub destage_depth: Option<usize>,
    /// After so long without a write, everything is destaged.
    pub idle_ns: u64,
    /// Writes at least so large may go past the log, when they are sequential and the log is filling.
    pub bypass_bytes_min: u32,
    /// Bytes after which a stream of such writes counts as sequential.
    pub bypass_run_bytes: u64,
    /// Extents are evacuated wherever that is possible, as if the log had no room to merge deltas or to move: for tests.
    pub evacuates: bool,
    /// Of a shaped pool: bands of a shard in use above which GC works; `None`: all but one in 32 and the reserve.
    pub used_bands: Option<u32>,
    /// Of a shaped pool on a drive that puts together what is written at the same time: whether destage and GC write whole bands in
    /// turns; `None`: where the log has room for that.
    pub turns: Option<bool>,
    /// When destage begins and writes need credit; `None`: as placement wants it.
    pub marks: Option<Marks>,
    /// Of a shaped pool: least blocks for which an extent is destaged without those that were written lately, where little has to
    /// be moved for what bands get; otherwise [fewer](crate::log_policy::old_blocks_min).
    pub old_blocks_min: u32,
    /// Of a shaped pool: for each hundred bytes that users write, so many at most are written to the log once more, of blocks that are
    /// written often, instead of to the capacity device; `None`: 50, and only while writers wait for that device.
    pub reinsertion_percent: Option<u32>,
    /// Blocks written so often are; `None`: by how often others are written, and what is left of that share.
    pub reinsertion_count: Option<u32>,
    /// Destage in place writes a mapped log's own memory, and checks it then; `None`: where writes are done at once.
    pub lends: Option<bool>,
    /// Breaks something on purpose.
    pub defect: Option<Defect>,
}

/// What tests of the crash tests break on purpose: one step done too early or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A block under deltas is overwritten in place before it is in the log as a whole.
    OverwriteUnmerged,
    /// Log space is freed before the checkpoint that makes it free is durable.
    ReleaseEarly,
    /// Replay passes over trims.
    ForgetTrims,
    /// A checkpoint's tail is behind records that the checkpoint does not have.
    TailPastDirty,
    /// The blocks of a damaged map page are holes instead of lost.
    HolesForLost,
    /// An extent counts as moved before its blocks have been.
    MoveEarly,
    /// A page of a mapped log's summary is stored before its records are durable.
    SummaryEarly,
    /// An opening raises the epoch in memory, and not on the devices.
    KeepEpoch,
    /// An extent that is given back is never used again.
    LeakExtents,
    /// What the log has of an extent that is given back still counts.
    KeepMappings,
    /// What is read from the devices is not verified.
    SkipVerify,
    /// Bands that are added lie over those that there were.
    OverlapBands,
    /// User writes may take the room in the log that destage needs.
    NoReserve,
    /// Writes do not wait for the dirty journal.
    SkipJournal,
    /// Where a closed log ends is not noted.
    ForgetEnd,
    /// An extent that is evacuated is in its new place before a checkpoint says so.
    EvacuateEarly,
    /// Slices leave the dirty journal at every checkpoint, whatever of them the log alone has.
    RetireEarly,
    /// Slices leave the dirty journal of a shaped pool although the shadow does not have them.
    SkipShadow,
    /// GC passes over live blocks.
    ForgetLive,
    /// GC gives up blocks that the log has as well.
    DropLogged,
    /// Replay begins behind what a destage has left in the log.
    ForgetYoung,
    /// What is reinserted into the log is not looked at again before: it may have been written anew.
    ReinsertOld,
    /// Bands are free as soon as they are empty, without a checkpoint.
    FreeEarly,
    /// What was written before a flush that failed is not written again.
    TrustFlushes,
    /// Over zones: a free band is opened without a reset.
    SkipReset,
    /// Over zones: one that is given up is not finished.
    SkipFinish,
    /// Who waits for room in the log waits for ever when upkeep fails for good.
    WaitForEver,
    /// What differs between two snapshots is looked for in the later one alone, and not in those between them.
    ForgetBetween,
    /// Writes that are under way when a snapshot is made go to it.
    WriteFrozen,
    /// Of what a deleted snapshot had and the layer above it shows, only whole extents are kept.
    AbsorbExtents,
    /// Of what a layer has of its own, half is lost when it takes over an extent of a deleted snapshot.
    ForgetOwn,
    /// The snapshot that an import makes is there before the stream has been read.
    FreezeEarly,
    /// Flattening a volume leaves out every second block that it shows of another one.
    FlattenHalf,
    /// Volumes that are rolled back together are so one after the other.
    RollBackApart,
    /// An extent hides what lies below it before the record that gives it to its volume is durable.
    HideEarly,
    /// A segment of the log to which a write has failed is not used again until the pool is opened again.
    RestForGood,
    /// Of a block that is damaged no other version is tried.
    OneVersion,
    /// What another version has is taken for right without a look at its checksum.
    TrustVersion,
    /// A scrub does not read the headers of stripes.
    SkipHeaders,
    /// A scrub does not read the shadow of the index.
    SkipShadowScrub,
    /// What a scrub finds damaged of the metadata counts as written anew, and is not.
    RepairUnwritten,
    /// The dirty journal is left out of what is told to have been written.
    MiscountWrites,
    /// Some blocks that die in bands still count.
    MiscountBand,
    /// A destage says of some blocks that they are where the one before them is.
    PlaceTwice,
}

impl Default for ShardTuning {
    fn default() -> ShardTuning {
        ShardTuning {
            map_cache_bytes: 1 << 20,
            map_cache_bytes_min: 1 << 20,
            destage_depth: None,
            idle_ns: 1_000_000_000,
            bypass_bytes_min: 64 << 10,
            bypass_run_bytes: 2 << 20,
            evacuates: false,
            used_bands: None,
            turns: None,
            marks: None,
            lends: None,
            old_blocks_min: log_policy::OLD_BLOCKS_MIN,
            reinsertion_percent: None,
            reinsertion_count: None,
            defect: None,
        }
    }
}

/// See the module.
pub(crate) struct Shard {
    reactor: Rc<Reactor>,
    /// Its number in the pool.
    number: u16,
    pool_name: Rc<str>,
    log: Rc<Log>,
    /// Keeps what the log lies on.
    _log_device: OpenLog,
    index: Rc<Index>,
    lineage: Lineage,
    meta: Rc<Meta>,
    journal: Rc<DirtyJournal>,
    capacity: Rc<dyn Channel>,
    capacity_info: DeviceInfo,
    capacity_device: Arc<dyn BlockDevice>,
    names: Arc<Names>,
    log_name: Rc<str>,
    /// It may write, and is not only looked at.
    writes: bool,
    tuning: ShardTuning,
    pace: Pace,
    patience: Patience,
    locks: Locks,
    freezer: freeze::Freezer,
    counters: Counters,
    house: house::House,
    gc: gc::Gc,
    /// Of a shaped pool.
    heat: Option<heat::Heat>,
    scrub: scrub::Scrub,
    mender: mend::Mender,
    /// What may leave the dirty journal.
    rounds: retire::Rounds,
    /// Of a shaped pool that has one.
    shadow: Option<shadow::Shadow>,
    /// Where placement is in place, on disks that seek.
    sweeps: Option<sweep::Sweeps>,
    /// A destage or a checkpoint has ended.
    settled: Notify,
    /// Extents that are not destaged for now: they are being given back, or written past the log. Once for each reason.
    held_back: RefCell<smallvec::SmallVec<[u32; 8]>>,
    streams: bypass::Streams,
    /// The first record that was replayed, and its segment.
    first: LogTail,
    /// The turn in which destage last moved something.
    moved_in: Cell<u64>,
    /// The last record when deltas were last laid over what lies below without a record; 0: never.
    unlogged: std::cell::Cell<u64>,
    /// Blocks being merged in the background, so that none is merged twice.
    merging: RefCell<smallvec::SmallVec<[u32; 8]>>,
    /// See [`ShardTuning::lends`].
    lends: bool,
    full: full::Fullness,
}

impl Shard {
    /// Takes the regions of a grown pool into use.
    pub(crate) fn grow(&self, superblock: &Superblock) {
        self.meta.grow(superblock);
        self.index.grow(self.meta.extents());
        self.note_room();
    }

    /// Its number in the pool.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn meta(&self) -> &Rc<Meta> {
        &self.meta
    }

    pub(crate) fn log(&self) -> &Rc<Log> {
        &self.log
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Blocks that GC has moved.
    pub(crate) fn collected_blocks(&self) -> u64 {
        self.gc.moved_blocks.get()
    }

    /// Bytes written to the dirty journal.
    pub(crate) fn journal_bytes(&self) -> u64 {
        self.journal.written_bytes()
    }

    /// Bytes that opening the log has written.
    pub(crate) fn opening_log_bytes(&self) -> u64 {
        self.counters.opening_log_bytes.get()
    }

    /// As [`ShardTuning::reinsertion_percent`], from now on.
    pub(crate) fn set_reinsertion(&self, percent: Option<u32>) {
        self.heat.iter().for_each(|heat| heat.set_percent(percent));
    }

    /// Memory for how often blocks are written.
    pub(crate) fn heat_bytes(&self) -> usize {
        self.heat.as_ref().map_or(0, heat::Heat::memory_bytes)
    }

    pub(crate) fn index_stats(&self) -> index::IndexStats {
        self.index.stats()
    }

    /// Writes that wait for room in the log now, and writes that ever had to.
    pub(crate) fn waits(&self) -> (usize, u64) {
        (self.pace.waiting(), self.pace.waits())
    }

    /// Merging the deltas over a block takes log space before it can free any: what that will take does not count as free.
    #[inline]
    fn fill(&self) -> Fill {
        let room = self.log.room();
        let bytes_reserved = (room.bytes_total / 32).max(2 * room.bytes_total / room.segments_total.max(1) as u64);
        if self.is_broken(Defect::NoReserve) {
            return Fill { bytes_free: room.bytes_free, bytes_total: room.bytes_total, bytes_reserved: 0 };
        }
        let owed = self.index.chains() as u64 * MERGE_BYTES_MAX;
        Fill { bytes_free: room.bytes_free.saturating_sub(owed), bytes_total: room.bytes_total, bytes_reserved }
    }

    /// An operation on blocks of the capacity device, which may have smaller blocks than the engine.
    fn capacity_io(&self, block: u64, blocks: u32, make: impl FnOnce(Lba, u32) -> Io) -> Io {
        let scale = self.capacity_scale();
        make(Lba(block * scale as u64), blocks * scale)
    }

    /// Blocks of the capacity device in one of 4 KiB.
    fn capacity_scale(&self) -> u32 {
        BLOCK_BYTES as u32 / self.capacity_info.block_size
    }

    pub(crate) fn is_broken(&self, defect: Defect) -> bool {
        self.tuning.defect == Some(defect)
    }
}
