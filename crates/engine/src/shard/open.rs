//! Opening a shard: the checkpoint, then the log.

use super::heat::Heat;
use super::index::Index;
use super::lineage::Lineage;
use super::pace::{self, Pace};
use super::shadow::Shadow;
use super::sweep::Sweeps;
use super::{Counters, Defect, Shard, ShardTuning};
use crate::bands::BandDefect;
use crate::error::{Grounds, PoolError};
use crate::format::dirty::DirtySlice;
use crate::format::superblock::Superblock;
use crate::log::{self, Log, LogGeometry, Placed, Record, Sink};
use crate::log_device::OpenLog;
use crate::meta::{DirtyJournal, Meta};
use crate::meter::Meter;
use crate::names::Names;
use crate::units::{Below, EXTENT_BLOCKS, extent_of};
use bdev::{BlockDevice, Channel, DeviceInfo, Disks};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// What a shard is opened from.
pub(crate) struct ShardParts {
    pub(crate) reactor: Rc<Reactor>,
    pub(crate) number: u16,
    pub(crate) pool_name: Rc<str>,
    /// With this opening's epoch, already durable.
    pub(crate) superblock: Superblock,
    pub(crate) log: OpenLog,
    /// Where the shard's segments begin.
    pub(crate) first_log_block: u64,
    pub(crate) capacity: Rc<dyn Channel>,
    pub(crate) capacity_info: DeviceInfo,
    pub(crate) capacity_device: Arc<dyn BlockDevice>,
    /// What the pool's layers are called.
    pub(crate) names: Arc<Names>,
    pub(crate) log_name: Rc<str>,
    /// The disks below the capacity device, where they seek.
    pub(crate) disks: Option<Disks>,
    /// A channel of its own to the capacity device, for the shadow: each channel is told [once](crate::flush_watch) of a flush that
    /// failed. Without it, nothing is copied.
    pub(crate) for_shadow: Option<Rc<dyn Channel>>,
    pub(crate) tuning: ShardTuning,
    /// Layers that lie over others.
    pub(crate) layers: Vec<(u32, Below)>,
}

/// What opening found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardRecovery {
    /// Records replayed.
    pub records: u64,
    /// Blocks whose newest bytes are in the log.
    pub log_blocks: u64,
}

/// Whether a record is about extents of this shard, and does not cross the end of one.
pub(crate) fn fits(record: &Record, extents: u32) -> bool {
    let inside = |first: u32, blocks: u32| {
        let last = first.checked_add(blocks.max(1) - 1);
        extent_of(first) < extents && last.is_some_and(|last| extent_of(last) == extent_of(first))
    };
    match record {
        Record::Write { first, crcs } | Record::InPlace { first, crcs } => inside(*first, crcs.len() as u32),
        Record::Delta { block, .. } => inside(*block, 1),
        Record::Trim { first, blocks } | Record::Lost { first, blocks } => inside(*first, *blocks),
        Record::Allocate { extent, volume, .. } | Record::HandOver { extent, volume, .. } => {
            *extent < extents && *volume != 0
        }
        Record::Free { extent, .. } => *extent < extents,
        Record::Move { extent, volume, former, .. } => *extent < extents && *former < extents && *volume != 0,
    }
}

/// Puts into the journal what it lacks although the log speaks of it: its end has rotted, which looks as if nothing had been added.
/// Without that, what only the log has would not be called lost with it.
async fn complete_journal(journal: &Rc<DirtyJournal>, index: &Index, former: Vec<DirtySlice>, pool: &str, shard: u16) {
    let lacks = |slice: &DirtySlice| !journal.names(*slice);
    let mut slices = index.slices_spoken_for(lacks);
    slices.extend(former.into_iter().filter(lacks));
    if slices.is_empty() {
        return;
    }
    slices.sort_unstable();
    slices.dedup();
    tracing::warn!(
        "pool '{pool}': the dirty journal of shard {shard} lacks {} slices that the log speaks of; they are added",
        slices.len()
    );
    for (volume, slice) in slices {
        if let Err(status) = journal.add(volume, slice).await {
            tracing::warn!("pool '{pool}': the dirty journal of shard {shard} cannot be completed: {status}");
            return;
        }
    }
}

impl Shard {
    /// Opens a shard. Its [upkeep](Self::start_upkeep) is still to be started, and must be before it is closed.
    pub(crate) async fn open(parts: ShardParts) -> Result<(Rc<Shard>, ShardRecovery), PoolError> {
        Shard::recover(parts, true).await
    }

    /// Begins to destage and to make checkpoints.
    pub(crate) fn start_upkeep(self: &Rc<Self>) {
        if let Some(bands) = self.meta.bands() {
            bands.care();
        }
        self.reactor.spawn(self.clone().keep_house());
        if self.meta.has_lost_uncounted() {
            self.reactor.spawn(self.clone().count_lost());
        }
    }

    /// A shard to read from, without upkeep: nothing is written. Its epoch need not be durable.
    pub(crate) async fn inspect(parts: ShardParts) -> Result<Rc<Shard>, PoolError> {
        Ok(Shard::recover(parts, false).await?.0)
    }

    async fn recover(parts: ShardParts, writes: bool) -> Result<(Rc<Shard>, ShardRecovery), PoolError> {
        let ShardParts { reactor, number, pool_name, superblock, capacity, capacity_info, .. } = parts;
        let (tuning, capacity_device, log_name) = (parts.tuning, parts.capacity_device, parts.log_name);
        let names = parts.names;
        let medium = parts.log.medium(&reactor, parts.first_log_block);
        let opening_log_bytes = Meter::default();
        let found_on = medium.metered(&opening_log_bytes);
        let (on_log, on_capacity) = ((parts.log.channel.clone(), parts.log.info), (capacity.clone(), capacity_info));
        let ((index_channel, index_info), bands) = superblock.shape.index_and_bands(on_log, on_capacity);
        let cache = tuning.map_cache_bytes;
        let (meta, tail) =
            Meta::open_over(&reactor, index_channel, index_info, &superblock, number, cache, &[], bands).await?;
        let journal = DirtyJournal::open(&reactor, capacity.clone(), capacity_info, &superblock, number).await?;
        let geometry = LogGeometry::of(&superblock, number);
        let index = Rc::new(Index::new(meta.clone(), geometry.segments, geometry.segment_blocks, tail, tuning.defect));
        index.expect_slices(journal.len());
        let (mut recovery, mut misfit, extents) = (ShardRecovery::default(), None, meta.extents());
        // This opening has raised the epoch by one.
        let known = meta.log_known(superblock.epoch - 1);
        // Slices of volumes that had extents before records took them away.
        let mut former: Vec<DirtySlice> = Vec::new();
        let mut visit = |record: &Record, placed: Placed| {
            if misfit.is_some() || !fits(record, extents) {
                misfit = misfit.or(Some(placed.lsn));
                return;
            }
            if tuning.defect == Some(Defect::ForgetTrims) && matches!(record, Record::Trim { .. }) {
                return;
            }
            recovery.records += 1;
            if let Record::Free { extent, .. } | Record::HandOver { extent, .. } = record {
                let owner = meta.descriptor(*extent);
                former.extend((!owner.is_free()).then(|| owner.slice()));
            }
            index.placed(record, placed);
        };
        let head = log::read_log(&found_on, geometry, known, writes, &*index, &mut visit).await?;
        if let Some(lsn) = misfit {
            let reason = format!(
                "record {lsn} of shard {number} speaks of blocks that there are not; the log is not this pool's, or damaged"
            );
            return Err(PoolError::Refused { pool: pool_name.to_string(), grounds: Grounds::Devices, reason });
        }
        if let Some(lost) = head.lost.first() {
            let reason = format!(
                "the log of shard {number} is damaged: {lost} cannot be read, later records can; 'pool forget-log' gives up what \
                 is not certain"
            );
            return Err(PoolError::Refused { pool: pool_name.to_string(), grounds: Grounds::Devices, reason });
        }
        if head.epoch >= superblock.epoch {
            let reason = format!(
                "the log of shard {number} has epoch {}, and the superblocks only {}; restore them from a backup",
                head.epoch, superblock.epoch
            );
            return Err(PoolError::Refused { pool: pool_name.to_string(), grounds: Grounds::Devices, reason });
        }
        let journals = !matches!(tuning.defect, Some(Defect::SkipJournal | Defect::RetireEarly | Defect::SkipShadow));
        if writes && journals {
            complete_journal(&journal, &index, former, &pool_name, number).await;
        }
        if writes && let Err(status) = journal.note_opening().await {
            tracing::warn!(
                "pool '{pool_name}': the dirty journal of shard {number} cannot note this opening: {status}"
            );
        }
        index.forget_ownerless();
        recovery.log_blocks = index.stats().log_blocks;
        let log = Log::new(medium, geometry, head, tail, superblock.epoch, index.clone());
        log.call_it(format!("pool '{pool_name}': the log of shard {number} on device '{log_name}'"));
        if tuning.defect == Some(Defect::HideEarly) {
            meta.hide_early();
        }
        let of_bands = match tuning.defect {
            Some(Defect::FreeEarly) => Some(BandDefect::FreeAtOnce),
            Some(Defect::TrustFlushes) => Some(BandDefect::TrustFlushes),
            Some(Defect::OverlapBands) => Some(BandDefect::OverlapAdded),
            Some(Defect::SkipReset) => Some(BandDefect::SkipReset),
            Some(Defect::SkipFinish) => Some(BandDefect::SkipFinish),
            Some(Defect::MiscountBand) => Some(BandDefect::Miscount),
            _ => None,
        };
        if let (Some(bands), Some(defect)) = (meta.bands(), of_bands) {
            bands.break_rule(defect);
        }
        if let Some(bands) = meta.bands().filter(|_| writes) {
            bands.adopt_zones().await;
        }
        match tuning.defect {
            Some(Defect::SummaryEarly) => log.store_summaries_early(),
            Some(Defect::RestForGood) => log.rest_for_good(),
            _ => {}
        }
        let lends = tuning.lends.unwrap_or_else(|| capacity.writes_at_once());
        let disks = parts.disks.filter(|_| meta.bands().is_none());
        let marks = tuning.marks.unwrap_or(match (&disks, meta.bands()) {
            (Some(_), _) => pace::ON_DISKS,
            (None, Some(_)) => pace::IN_BANDS,
            (None, None) => pace::IN_PLACE,
        });
        let log_blocks = geometry.segments as u64 * geometry.segment_blocks as u64;
        let blocks = extents as u64 * EXTENT_BLOCKS as u64;
        let heat = || Heat::new(log_blocks, blocks, tuning.reinsertion_percent, tuning.reinsertion_count);
        let heat = meta.bands().is_some().then(heat);
        let shard = Rc::new(Shard {
            reactor: reactor.clone(),
            number,
            pool_name,
            log,
            _log_device: parts.log,
            index,
            lineage: Lineage::new(&parts.layers),
            meta,
            journal,
            capacity,
            capacity_info,
            capacity_device,
            names,
            log_name,
            writes,
            tuning,
            pace: Pace::new(marks),
            patience: Default::default(),
            locks: Default::default(),
            freezer: Default::default(),
            counters: Counters { opening_log_bytes, ..Counters::default() },
            house: Default::default(),
            gc: Default::default(),
            heat,
            scrub: Default::default(),
            mender: Default::default(),
            rounds: Default::default(),
            shadow: superblock.shadow().zip(parts.for_shadow).map(|(shadow, channel)| Shadow::new(shadow, channel)),
            sweeps: disks.map(Sweeps::new),
            settled: Default::default(),
            held_back: Default::default(),
            streams: Default::default(),
            moved_in: std::cell::Cell::new(u64::MAX),
            unlogged: Default::default(),
            merging: Default::default(),
            first: tail,
            lends,
            full: Default::default(),
        });
        shard.decide_on_turns();
        shard.divide_by_disks();
        Ok((shard, recovery))
    }
}
