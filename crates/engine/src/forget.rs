//! Giving up a log: everything that may have been newer in it is lost, and nothing stale comes back.
//!
//! ```text
//! 1 room: grow into a capacity device that has become larger, if extents are missing     3 a checkpoint of every shard
//! 2 the new log device's superblock, with an identity that the pool does not know yet    4 the pool takes it for its log
//! ```
//! Until 4 is durable the pool belongs to its old log, and all of it may be repeated. What 3 leaves is good with the old
//! log too: what is lost is lost, and its tails are past every record that the old log can hold.
//!
//! A shard whose dirty journal is damaged loses all that volumes have in it ([named]), and gets a new journal: in a hot pool when its
//! checkpoint is durable, of nothing; in a shaped one of all of its slices, since its shadow does not say that they are lost.
//!
//! A shaped pool, whose log device has the index as well, gets a [new one](crate::rebuild) on the new log device instead, from what
//! the capacity device has. Only that tells which blocks [nothing has](unfound): they are not foreseen.

mod named;
mod progress;
mod showing;
mod unfound;

pub use progress::{ForgetProgress, ForgetSteps};
pub use showing::SHOWN_BY_MAX;
pub use unfound::{BlockRange, UNFOUND_RANGES_MAX, UnfoundBlocks};

pub(crate) use showing::{Showing, ShownBy};
pub(crate) use unfound::Unfound;

use crate::error::{Grounds, PoolError};
use crate::format::dirty::{DIRTY_ENTRIES, DirtySlice};
use crate::format::record::READ_NUMBER_MAX;
use crate::format::superblock::{
    LOG_RESERVED_BLOCKS, Role, SHARD_LOG_BLOCKS_MAX, SUPERBLOCK_COPIES, Shape, Superblock, without_opening,
};
use crate::holds::Holds;
use crate::layout::{self, PlanError};
use crate::log::{self, LogGeometry};
use crate::log_device::OpenLog;
use crate::meta::journal::has_room;
use crate::meta::media::Media;
use crate::meta::{self, BLOCKS_LOST, Catalog, Descriptor, DirtyJournal, Meta, Object, UNUSABLE};
use crate::pool::{PoolDevices, check_writable, find_older, next_epoch, read_start, went_apart};
use crate::rebuild::{CACHE_BYTES, Failed, Places, Rebuild, band_reads};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, LogTail, SLICE_EXTENTS};
use bdev::{Channel, DeviceInfo, Status};
use reactor::Reactor;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// A shard's log holds fewer segments and records than that after any tail.
pub(crate) const SEGMENTS_BEYOND: u64 = 1 << 32;
const RECORDS_BEYOND: u64 = 1 << 33;
/// The same since the last checkpoint of a shadow, which under load may be long ago: an exbibyte of small writes.
pub(crate) const BEYOND_SHADOW: u64 = 1 << 48;

/// What a volume loses with a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRanges {
    /// The volume's name.
    pub volume: String,
    /// Ranges of it that cannot be read.
    pub ranges: u64,
    /// Their blocks, of 4 KiB.
    pub blocks: u64,
    /// Other volumes and snapshots that show some of them, at most [`SHOWN_BY_MAX`]: there they cannot be read either.
    pub shown_by: Vec<String>,
}

/// What giving up a log takes, or took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForgottenLog {
    /// Slices that may have had something in the log alone.
    pub slices: u64,
    /// Shards whose dirty journal is damaged: of these, all slices may have had something there.
    pub shards_without_journal: u64,
    /// Extents all of whose blocks are lost now.
    pub lost_extents: u64,
    /// Extents given back: of volumes that there are not, or claimed twice.
    pub freed_extents: u64,
    /// The volumes that lose something.
    pub volumes: Vec<LostRanges>,
    /// What of volumes was elsewhere, and cannot be found there: it is lost as well. `None`: only doing it tells, since all of
    /// a shaped pool's capacity device has to be read for that.
    pub unfound: Option<Vec<UnfoundBlocks>>,
}

/// A shard, read.
struct Opened {
    /// In a shaped pool, the shadow of the index.
    meta: Rc<Meta>,
    tail: LogTail,
    loss: Loss,
    /// What the journal that the shard gets names; `None`: it has one.
    new_journal: Option<BTreeSet<DirtySlice>>,
}

/// What is to be said of a shard's extents.
#[derive(Default)]
struct Loss {
    slices: u64,
    lost: Vec<(u32, Descriptor)>,
    freed: Vec<u32>,
    /// Extents of volumes that have none yet.
    missing: Vec<(u32, u32)>,
    /// Extents that nobody has.
    free: Vec<u32>,
}

impl Loss {
    /// Extents of volumes that are lost.
    fn places(&self) -> BTreeSet<(u32, u32)> {
        let lost = self.lost.iter().map(|(_, descriptor)| (descriptor.volume, descriptor.vextent));
        lost.chain(self.missing.iter().copied()).collect()
    }
}

struct Forgetting<'a> {
    reactor: &'a Rc<Reactor>,
    devices: &'a PoolDevices,
    capacity: Rc<dyn Channel>,
    info: DeviceInfo,
    superblock: Superblock,
    progress: &'a Arc<ForgetProgress>,
}

/// See [`Pool::forget_log`](crate::Pool::forget_log); `device` is the new log device's identity, and without one nothing is
/// written.
pub(crate) async fn forget_log(
    reactor: &Rc<Reactor>,
    devices: &PoolDevices,
    device: Option<Uuid>,
    force: bool,
    progress: &Arc<ForgetProgress>,
) -> Result<ForgottenLog, PoolError> {
    let (capacity, info) = (devices.capacity.open_channel(reactor)?, devices.capacity.info());
    let superblock = meta::read_superblocks(reactor, capacity.clone(), info).await?;
    let mut this = Forgetting { reactor, devices, capacity, info, superblock, progress };
    if this.superblock.role != Role::Capacity {
        return Err(this.refuse(Grounds::Devices, format!("'{}' is not its capacity device", devices.capacity.name())));
    }
    check_writable(&this.superblock, this.devices.capacity.name())?;
    if this.superblock.shape == Shape::Shaped && !this.superblock.shadowed {
        let reason = "is shaped and has no shadow of its index (it was made by an older program, or with too little room in front \
                      of its bands): the log device holds the index, and without it nothing can be found; restore the log \
                      device, or create the pool anew and copy its volumes from a backup";
        return Err(this.refuse(Grounds::Devices, reason.to_string()));
    }
    let log = devices.log.open(reactor, &this.superblock.name)?;
    let epoch = this.judge_log(&log, force).await?;
    let mut on_log = this.log_superblock(&this.superblock, device.unwrap_or_default(), epoch)?;
    let (catalog, mut shards) = this.read_shards().await?;
    let mut done = this.losses(&catalog, &shards).await?;
    done.unfound = (on_log.shape == Shape::Hot).then(Vec::new);
    let Some(device) = device else { return Ok(done) };
    if let Some(needed) = this.needed(&shards) {
        this.grow(needed).await?;
        (_, shards) = this.read_shards().await?;
        if this.needed(&shards).is_some() {
            return Err(this.too_small(needed));
        }
        on_log = this.log_superblock(&this.superblock, device, epoch)?;
    }
    let bands = match on_log.shape {
        Shape::Hot => 0,
        Shape::Shaped => (0..).zip(&shards).map(|(number, shard)| band_reads(&on_log, number, &shard.meta)).sum(),
    };
    progress.begin(shards.len() as u64, bands);
    this.go_on()?;
    meta::write_superblock(reactor, log.channel.clone(), log.info, &mut on_log).await?;
    let mut unfound = Unfound::default();
    for (number, shard) in (0..).zip(shards) {
        this.go_on()?;
        let new_journal = shard.new_journal.clone();
        match on_log.shape {
            Shape::Hot => this.lose(shard).await?,
            Shape::Shaped => this.rebuild(&log, &on_log, &catalog, number, shard, &mut unfound).await?,
        }
        if let Some(slices) = new_journal {
            let media = Media::new(reactor, this.capacity.clone(), &this.info)?;
            let renewed = DirtyJournal::renew(&media, &this.superblock, number, &slices).await;
            renewed.map_err(|status| this.io("make a dirty journal anew", status))?;
        }
        progress.shard_done();
    }
    done.unfound = Some(unfound.into_volumes(&catalog));
    this.go_on()?;
    let mut owner = Superblock { role: Role::Capacity, device: on_log.other, other: device, ..on_log };
    owner.generation = this.superblock.generation;
    meta::write_superblock(reactor, this.capacity.clone(), this.info, &mut owner).await?;
    Ok(done)
}

impl Forgetting<'_> {
    fn refuse(&self, grounds: Grounds, reason: String) -> PoolError {
        PoolError::Refused { pool: self.superblock.name.clone(), grounds, reason }
    }

    /// Whether the device may become the pool's log; the epoch to go on with.
    async fn judge_log(&self, log: &OpenLog, force: bool) -> Result<u32, PoolError> {
        let found = match meta::read_superblocks(self.reactor, log.channel.clone(), log.info).await {
            Ok(found) => found,
            Err(_) => {
                let start = read_start(self.reactor, &log.channel, &log.info).await;
                let start = start.map_err(|status| self.io("read the new log device", status))?;
                let epoch = next_epoch(&self.superblock, &self.superblock)?;
                if !force && start.iter().any(|byte| *byte != 0) && !is_torn_copy(&start, &self.copies(epoch)?) {
                    return Err(self.in_use(log).await);
                }
                return Ok(epoch);
            }
        };
        let is_ours =
            found.role == Role::Log && found.pool == self.superblock.pool && found.other == self.superblock.device;
        if is_ours && found.device == self.superblock.other {
            self.judge_own_log(log, &found, force).await?;
        } else if !is_ours && !force {
            return Err(self.in_use(log).await);
        }
        if is_ours { next_epoch(&self.superblock, &found) } else { next_epoch(&self.superblock, &self.superblock) }
    }

    /// Whether its own log may be given up for a new one on the same device.
    async fn judge_own_log(&self, log: &OpenLog, found: &Superblock, force: bool) -> Result<(), PoolError> {
        let (name, capacity) = (self.devices.log.name(), self.devices.capacity.name());
        if went_apart(&self.superblock, found) {
            let reason = format!(
                "'{name}' is not the log that was in use with '{capacity}': both have seen {} openings of the pool, and not the same ones; \
                 bring that log back, or, if it is lost, give it up with --force",
                found.epoch
            );
            return if force { Ok(()) } else { Err(self.refuse(Grounds::Devices, reason)) };
        }
        let media = Media::new(self.reactor, self.capacity.clone(), &self.info)?;
        let reason = match find_older(self.reactor, &self.superblock, found, &media, log).await {
            // Whatever is said here: nothing would say any more that what the pool then shows is old.
            Some(older) if older.role == Role::Capacity => {
                let how = older.how(&format!("its log '{name}'"));
                let reason = format!(
                    "'{capacity}' is an older copy of its capacity device: {how}; without the log the pool would show what is old: bring the newer one back, and open the pool"
                );
                return Err(self.refuse(Grounds::Devices, reason));
            }
            _ if force => return Ok(()),
            Some(older) => format!(
                "'{name}' is an older copy of its log: {}; bring the newer one back, or, if that is lost, give it up with --force",
                older.how(&format!("'{capacity}'"))
            ),
            None if !self.is_readable(log).await => return Ok(()),
            None => match self.shard_without_journal().await? {
                Some(shard) => format!(
                    "'{name}' is its log, and can be read; {} is damaged, and 'pool check --repair' makes it anew from the log, without \
                     any loss. With force the log is given up all the same",
                    Object::Journal { shard }
                ),
                None => format!(
                    "'{name}' is its log, and can be read: open the pool. With force it is given up all the same"
                ),
            },
        };
        Err(self.refuse(Grounds::State, reason))
    }

    /// The first shard of whose dirty journal no copy is valid.
    async fn shard_without_journal(&self) -> Result<Option<u16>, PoolError> {
        let media = Media::new(self.reactor, self.capacity.clone(), &self.info)?;
        for shard in 0..self.superblock.shards {
            if named::in_journal(&media, &self.superblock, shard).await?.is_none() {
                return Ok(Some(shard));
            }
        }
        Ok(None)
    }

    /// Why a device that holds something does not become its log.
    async fn in_use(&self, log: &OpenLog) -> PoolError {
        match Holds::look(self.reactor, &log.channel, log.info).await {
            Ok(holds) => {
                let (pool, device) = (self.superblock.name.clone(), self.devices.log.name().to_string());
                PoolError::InUse { pool, device, holds: holds.into() }
            }
            Err(status) => self.io("read the new log device", status),
        }
    }

    /// Whether opening the pool with this log would succeed, as far as the log is concerned.
    async fn is_readable(&self, log: &OpenLog) -> bool {
        let superblock = &self.superblock;
        let (on_log, on_capacity) = ((log.channel.clone(), log.info), (self.capacity.clone(), self.info));
        let ((index, info), _) = superblock.shape.index_and_bands(on_log, on_capacity);
        for shard in 0..superblock.shards {
            let opened = Meta::open(self.reactor, index.clone(), info, superblock, shard, 0).await;
            let Ok((meta, _)) = opened else { return false };
            let geometry = LogGeometry::of(superblock, shard);
            let medium = log.medium(self.reactor, superblock.segment_start(shard, 0));
            match log::survey(&medium, geometry, meta.log_known(superblock.epoch), &mut |_, _| {}).await {
                Ok(head) if head.lost.is_empty() => {}
                _ => return false,
            }
        }
        true
    }

    /// What an earlier attempt may have written to the new log device: with what it grew into, where that comes last.
    fn copies(&self, epoch: u32) -> Result<Vec<[u8; BLOCK_BYTES]>, PoolError> {
        let copy_of = |superblock: &Superblock| {
            let mut copy = [0; BLOCK_BYTES];
            self.log_superblock(superblock, Uuid::nil(), epoch)?.encode(&mut copy);
            Ok(copy)
        };
        let grown = self.plan_grow().ok();
        [Some(&self.superblock), grown.as_ref()].into_iter().flatten().map(copy_of).collect()
    }

    /// The new log's superblock: as many segments as it has room for, and the journals can answer for. In a shaped pool everything is
    /// where it was.
    fn log_superblock(&self, superblock: &Superblock, device: Uuid, epoch: u32) -> Result<Superblock, PoolError> {
        let log_blocks = self.devices.log.blocks();
        let on_log = Superblock {
            role: Role::Log,
            device,
            other: superblock.device,
            generation: 0,
            epoch,
            log_kind: self.devices.log.kind(),
            ..superblock.clone()
        };
        if superblock.shape == Shape::Shaped {
            return match log_blocks < superblock.log_blocks {
                true => Err(self.log_too_small(superblock.log_blocks)),
                false => Ok(on_log),
            };
        }
        let shards = superblock.shards as u64;
        let room = log_blocks.saturating_sub(LOG_RESERVED_BLOCKS as u64) / shards;
        let extents = (0..superblock.shards).map(|shard| superblock.shard_extents(shard)).max().unwrap_or(0) as u64;
        // A compaction needs all slices of a journal in one of its copies.
        let slices = superblock.journal_blocks as u64 / 2 * DIRTY_ENTRIES as u64;
        let answered = if extents <= slices { u64::MAX } else { slices };
        let segment_blocks = superblock.segment_blocks as u64;
        let segments = room.min(SHARD_LOG_BLOCKS_MAX).min(answered) / segment_blocks;
        let least = (layout::SEGMENTS_MIN.min(superblock.segments) as u64).max(log::SEGMENTS_MIN as u64);
        if segments < least {
            return Err(self.log_too_small(LOG_RESERVED_BLOCKS as u64 + shards * least * segment_blocks));
        }
        Ok(Superblock { log_blocks, segments: segments as u32, segments_start: LOG_RESERVED_BLOCKS, ..on_log })
    }

    fn log_too_small(&self, blocks: u64) -> PoolError {
        let (name, bytes) = (self.devices.log.name(), |blocks: u64| blocks * BLOCK_BYTES as u64);
        let has = bytes(self.devices.log.blocks());
        self.refuse(Grounds::Room, format!("'{name}' has {has} bytes: its log needs at least {}", bytes(blocks)))
    }

    // --- what is lost -----------------------------------------------------------------------------------------------

    async fn read_shards(&self) -> Result<(Catalog, Vec<Opened>), PoolError> {
        let (channel, info, superblock) = (self.capacity.clone(), self.info, &self.superblock);
        let catalog = Catalog::load(self.reactor, channel.clone(), info, superblock).await?;
        let shadow = superblock.shadow();
        let of_capacity = shadow.as_ref().unwrap_or(superblock);
        let media = Media::new(self.reactor, channel.clone(), &info)?;
        let mut shards = Vec::new();
        for shard in 0..superblock.shards {
            self.go_on()?;
            let (meta, tail) = Meta::open(self.reactor, channel.clone(), info, of_capacity, shard, CACHE_BYTES).await?;
            let journal = named::in_journal(&media, superblock, shard).await?;
            let is_lost = journal.is_none();
            let slices = match journal {
                Some(slices) => slices,
                None => named::all_slices(&catalog, superblock, shard)?,
            };
            let loss = loss(&meta, superblock.shard_extents(shard), &slices, &catalog);
            let new_journal = is_lost.then(|| if shadow.is_some() { slices } else { BTreeSet::new() });
            if new_journal.as_ref().is_some_and(|slices| !has_room(superblock, slices.len())) {
                let (journal, slices) = (Object::Journal { shard }, loss.slices);
                let reason = format!(
                    "{journal} is damaged, and has no room for all of the shard's {slices} slices: restore the capacity device from a \
                     backup"
                );
                return Err(self.refuse(Grounds::Devices, reason));
            }
            if tail.segment.max(tail.lsn) + BEYOND_SHADOW >= READ_NUMBER_MAX {
                return Err(self.refuse(
                    Grounds::Devices,
                    "has given up its log too often: copy its volumes to a new pool".to_string(),
                ));
            }
            shards.push(Opened { meta, tail, loss, new_journal });
        }
        Ok((catalog, shards))
    }

    /// What all shards lose, by volume.
    async fn losses(&self, catalog: &Catalog, shards: &[Opened]) -> Result<ForgottenLog, PoolError> {
        let (mut lost, mut shown_by): (Vec<(u32, u32)>, _) = (Vec::new(), ShownBy::default());
        let mut all = ForgottenLog::default();
        for Opened { meta, loss, new_journal, .. } in shards {
            all.slices += loss.slices;
            all.shards_without_journal += new_journal.is_some() as u64;
            all.freed_extents += loss.freed.len() as u64;
            let of_shard = loss.places();
            let showing = Showing::new(catalog, meta.clone(), of_shard.clone());
            for (layer, vextent) in &of_shard {
                self.go_on()?;
                let noted = showing.note(*layer, *vextent, 0..EXTENT_BLOCKS, &mut shown_by).await;
                noted.map_err(|status| self.io("read a map page", status))?;
            }
            lost.extend(of_shard);
        }
        all.lost_extents = lost.len() as u64;
        lost.sort_unstable();
        for of_volume in lost.chunk_by(|one, next| one.0 == next.0) {
            let Some(entry) = catalog.get(of_volume[0].0) else { continue };
            let blocks = of_volume.iter().map(|(_, vextent)| {
                let first = *vextent as u64 * EXTENT_BLOCKS as u64;
                entry.blocks.saturating_sub(first).min(EXTENT_BLOCKS as u64)
            });
            let ranges = of_volume.chunk_by(|one, next| one.1 + 1 == next.1).count() as u64;
            let shown_by = shown_by.names(entry.id, catalog);
            all.volumes.push(LostRanges { volume: entry.name.clone(), ranges, blocks: blocks.sum(), shown_by });
        }
        Ok(all)
    }

    /// Extents by which each shard has to grow, when there are too few.
    fn needed(&self, shards: &[Opened]) -> Option<u64> {
        let short = shards.iter().map(|shard| shard.loss.missing.len().saturating_sub(shard.loss.free.len()) as u64);
        short.max().filter(|short| *short > 0)
    }

    fn too_small(&self, extents: u64) -> PoolError {
        let mib = growth_mib(&self.superblock, extents);
        self.refuse(Grounds::Room, format!(
            "has too little free space to note what is lost; make the capacity device '{}' {mib} MiB larger and try again",
            self.devices.capacity.name()
        ))
    }

    fn plan_grow(&self) -> Result<Superblock, PlanError> {
        let log_blocks = match self.superblock.shape {
            Shape::Hot => self.superblock.log_blocks,
            Shape::Shaped => self.devices.log.blocks(),
        };
        layout::plan_grow(&self.superblock, log_blocks, self.info.bytes() / BLOCK_BYTES as u64)
    }

    /// Takes into use what the capacity device has become larger by. That alone is good with the old log as well; but not in a
    /// shaped pool, where the old log device may have no room for the index of it: there it comes last.
    async fn grow(&mut self, extents: u64) -> Result<(), PoolError> {
        let mut grown = self.plan_grow().map_err(|error| match error {
            PlanError::IndexFull { .. } => PoolError::Plan { pool: self.superblock.name.clone(), error },
            _ => self.too_small(extents),
        })?;
        let enough = |shard| (grown.shard_extents(shard) - self.superblock.shard_extents(shard)) as u64 >= extents;
        if !(0..grown.shards).all(enough) {
            return Err(self.too_small(extents));
        }
        if grown.shape == Shape::Hot {
            meta::write_superblock(self.reactor, self.capacity.clone(), self.info, &mut grown).await?;
        }
        self.superblock = grown;
        Ok(())
    }

    fn go_on(&self) -> Result<(), PoolError> {
        self.progress.go_on().map_err(|stopped| stopped.of_pool(&self.superblock.name))
    }

    async fn lose(&self, Opened { meta, tail, loss, .. }: Opened) -> Result<(), PoolError> {
        loss.freed.iter().for_each(|extent| meta.set_descriptor(*extent, Descriptor::default()));
        note_lost(&meta, loss);
        let tail = LogTail { segment: tail.segment + SEGMENTS_BEYOND, lsn: tail.lsn + RECORDS_BEYOND };
        meta.checkpoint(tail).await.map_err(|status| self.io("write a checkpoint", status))
    }

    /// Makes the index of a shaped pool's shard on its new log device, and notes what cannot be found.
    async fn rebuild(
        &self,
        log: &OpenLog,
        on_log: &Superblock,
        catalog: &Catalog,
        shard: u16,
        Opened { meta: shadow, tail, loss, .. }: Opened,
        unfound: &mut Unfound,
    ) -> Result<(), PoolError> {
        let failed = |error: Failed| error.of_pool(&self.superblock.name);
        let places = Places {
            reactor: self.reactor,
            superblock: on_log,
            catalog,
            log: (log.channel.clone(), log.info),
            capacity: (self.capacity.clone(), self.info),
            progress: self.progress,
        };
        let gone: BTreeSet<u32> =
            loss.lost.iter().map(|(extent, _)| *extent).chain(loss.freed.iter().copied()).collect();
        let showing = Showing::new(catalog, shadow.clone(), loss.places());
        let keeps = |shadow: &Meta, extent: u32| !shadow.descriptor(extent).is_free() && !gone.contains(&extent);
        let rebuild = Rebuild::new(&places, shard, shadow, keeps, &showing, unfound).await.map_err(failed)?;
        note_lost(rebuild.meta(), loss);
        let tail = LogTail { segment: tail.segment + BEYOND_SHADOW, lsn: tail.lsn + BEYOND_SHADOW };
        rebuild.finish(tail).await.map_err(failed)
    }

    fn io(&self, action: &'static str, status: Status) -> PoolError {
        PoolError::Io { pool: self.superblock.name.clone(), action, status }
    }
}

/// MiB by which the capacity device has to become larger, so that each shard gets so many extents more.
pub(crate) fn growth_mib(superblock: &Superblock, extents: u64) -> u64 {
    let shards = superblock.shards as u64;
    let bytes = |blocks: u64| blocks * shards * BLOCK_BYTES as u64;
    match superblock.shape {
        Shape::Hot => {
            // Metadata and alignment beside: one part in 256, and 2 MiB per shard.
            let bytes = bytes(extents * EXTENT_BLOCKS as u64);
            ((bytes + bytes / 256) >> 20) + 2 * shards + 1
        }
        // The bands that extents come with.
        Shape::Shaped => {
            let layout = &superblock.bands;
            let created = superblock.shard_regions(0).next().map_or(1, |region| region.extents.max(1)) as u64;
            let bands = (extents * layout.bands as u64).div_ceil(created) + 1;
            (bytes(bands * layout.band_blocks as u64) >> 20) + 1
        }
    }
}

/// Enters what is lost.
fn note_lost(meta: &Meta, loss: Loss) {
    for (extent, descriptor) in loss.lost {
        let flags = descriptor.flags | BLOCKS_LOST;
        // By way of a free extent: one that was lost before keeps its map page otherwise, with what was written since.
        meta.set_descriptor(extent, Descriptor::default());
        meta.set_descriptor(extent, Descriptor { flags, ..descriptor });
    }
    for ((volume, vextent), extent) in loss.missing.into_iter().zip(loss.free) {
        let fresh = Descriptor { volume, vextent, flags: BLOCKS_LOST, ..Descriptor::default() };
        meta.set_descriptor(extent, fresh);
    }
}

/// Whether the start of a device holds nothing but what a crash in step 2 has left of a superblock: words of one of `ours`, apart
/// from those that an earlier attempt wrote otherwise: checksum, identity of the device, generation, epoch, opening, and what the
/// pool has grown by since (segments, regions, size of the capacity device).
fn is_torn_copy(start: &[u8], ours: &[[u8; BLOCK_BYTES]]) -> bool {
    const OTHERWISE: [usize; 8] = [8, 56, 64, 88, 96, 104, 144, 224];
    let (blocks, _) = start.as_chunks::<BLOCK_BYTES>();
    let Some((copies, rest)) = blocks.split_at_checked(SUPERBLOCK_COPIES as usize) else { return false };
    let comparable = |copy: &[u8; BLOCK_BYTES]| {
        let mut copy = *copy;
        without_opening(&mut copy);
        copy
    };
    let ours: Vec<_> = ours.iter().map(comparable).collect();
    let is_ours = |(index, word): (usize, &[u8])| {
        let at = index * 8;
        let is_of_one = || ours.iter().any(|copy| *word == copy[at..at + 8]);
        OTHERWISE.contains(&at) || is_of_one() || word.iter().all(|byte| *byte == 0)
    };
    rest.iter().flatten().all(|byte| *byte == 0)
        && copies.iter().map(comparable).all(|copy| copy.chunks_exact(8).enumerate().all(is_ours))
}

/// Every extent of a slice in the journal is lost, whether it has blocks yet or not: the log may have allocated it. What
/// two extents claim, the log would have told; so that is lost as well.
/// The shard has `extents` of them; of some the store may not know.
fn loss(meta: &Meta, extents: u32, dirty: &BTreeSet<DirtySlice>, catalog: &Catalog) -> Loss {
    let mut loss = Loss { slices: dirty.len() as u64, ..Loss::default() };
    let mut holders: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut doubled: BTreeSet<u32> = BTreeSet::new();
    for extent in 0..extents {
        let descriptor = if extent < meta.extents() { meta.descriptor(extent) } else { Descriptor::default() };
        let key = (descriptor.volume, descriptor.vextent);
        if descriptor.is_free() {
            if descriptor.flags & UNUSABLE == 0 {
                loss.free.push(extent);
            }
        } else if catalog.get(descriptor.volume).is_none() {
            loss.freed.push(extent);
        } else if let Some(first) = holders.get(&key) {
            doubled.insert(*first);
            loss.freed.push(extent);
        } else {
            holders.insert(key, extent);
        }
    }
    for ((volume, vextent), extent) in &holders {
        if dirty.contains(&(*volume, vextent / SLICE_EXTENTS)) || doubled.contains(extent) {
            loss.lost.push((*extent, meta.descriptor(*extent)));
        }
    }
    // Slots of an extent that is freed here are still the durable root's until the checkpoint; the store sees to that.
    loss.free.extend(&loss.freed);
    for (volume, slice) in dirty {
        let Some(entry) = catalog.get(*volume).filter(|entry| catalog.counts(entry)) else {
            continue;
        };
        let end = entry.blocks.div_ceil(EXTENT_BLOCKS as u64).min(u32::MAX as u64) as u32;
        let first = slice.saturating_mul(SLICE_EXTENTS);
        let extents = first..first.saturating_add(SLICE_EXTENTS).min(end);
        loss.missing.extend(extents.map(|vextent| (*volume, vextent)).filter(|key| !holders.contains_key(key)));
    }
    loss
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_copy_is_told_from_what_others_left() {
        let ours: [[u8; BLOCK_BYTES]; 2] = [1, 2].map(|bit| std::array::from_fn(|at| at as u8 | bit));
        let mut start = vec![0; 128 << 10];
        assert!(is_torn_copy(&start, &ours));
        start[512..1024].copy_from_slice(&ours[0][512..1024]);
        start[1024..1032].copy_from_slice(&ours[1][1024..1032]);
        start[BLOCK_BYTES + 56..BLOCK_BYTES + 72].fill(7);
        start[BLOCK_BYTES + 256 + 22..][..2].fill(9);
        assert!(is_torn_copy(&start, &ours), "a sector of one copy, another identity, another opening");
        let mut partitioned = start.clone();
        partitioned[510..512].copy_from_slice(&[0x55, 0xAA]);
        assert!(!is_torn_copy(&partitioned, &ours));
        start[64 << 10] = 1;
        assert!(!is_torn_copy(&start, &ours));
    }
}
