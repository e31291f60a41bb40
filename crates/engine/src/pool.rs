//! A pool: a log device and a capacity device under shards, and the volumes in it.
//!
//! One reactor has the *control* part (superblocks, catalog); each shard lives on one reactor; everything else reaches
//! them by messages.

use crate::check::{self, CheckOptions, CheckReport};
use crate::error::{Grounds, PoolError};
use crate::forget::{self, ForgetProgress, ForgottenLog};
use crate::format::catalog::{VolumeEntry, VolumeState, catalog_entries_max};
use crate::format::superblock::{Role, Shape, Superblock};
use crate::holds::Holds;
use crate::layout::{self, CreateOptions, Identities, RowLayout};
use crate::log_device::LogDevice;
use crate::meta::media::Media;
use crate::meta::{self, Catalog, CatalogStore, Damage, DirtyJournal, Edit, Meta};
use crate::meter::Metered;
use crate::names::Names;
use crate::shard::{Defect, ExtentOwner, Hurry, Shard, ShardParts, ShardRecovery, ShardTuning};
use crate::together::Together;
use crate::units::{BLOCK_BYTES, Below, LogTail};
use crate::volume::{PoolVolume, Shown, VolumeIdentity};
use bdev::{BlockDevice, Channel, DeviceInfo, Disks, Io, Lba, Status};
use reactor::sync::Notify;
use reactor::{IoFuture, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use uuid::Uuid;

mod changes;
mod control;
mod flatten;
mod glance;
mod pair;
mod reap;
mod review;
mod scrub;
mod snapshots;
mod table;
mod tree;

use control::{Control, ControlSlot, ControlWrites};
use pair::{check_none_is_older, check_pair, check_role, no_log};
use table::Volumes;

pub(crate) use pair::{Older, check_writable, find_older, next_epoch, went_apart};

pub use changes::Changes;
pub use flatten::{FlattenState, FlattenStatus};
pub use tree::{SnapshotInfo, VolumeInfo};

/// Bytes at the start of a device that must be zero for it to count as unused; Btrfs begins at 64 KiB.
pub(crate) const UNUSED_BYTES: usize = 128 << 10;
/// Where replay of a new pool begins.
pub(crate) const FIRST: LogTail = LogTail { segment: 1, lsn: 1 };

/// A pool's devices.
#[derive(Clone)]
pub struct PoolDevices {
    /// Its log.
    pub log: LogDevice,
    /// What blocks are placed on.
    pub capacity: Arc<dyn BlockDevice>,
}

/// How to open a pool.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Reactors that take shards, in turn; empty: the calling one.
    pub reactors: Vec<usize>,
    /// Memory for map pages over all shards; `None`: 16 MiB per TiB of capacity. At least 1 MiB per shard, see
    /// [`ShardTuning::map_cache_bytes_min`].
    pub map_cache_bytes: Option<usize>,
    /// [`ShardTuning::reinsertion_percent`].
    pub reinsertion_percent: Option<u32>,
    /// Everything else.
    pub tuning: Option<ShardTuning>,
}

/// What opening a pool found and took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolRecovery {
    /// Log records replayed.
    pub records: u64,
    /// Blocks whose newest bytes are in the log.
    pub log_blocks: u64,
    /// From the first read to the last shard being ready.
    pub elapsed_ns: u64,
    /// Copies of superblocks and of the catalog that were not valid, and were written anew from the other one. A crash can leave
    /// one; more come from a device that is failing.
    pub repaired_copies: u64,
}

/// How a pool lies on its devices: fixed when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    /// How blocks are placed.
    pub shape: Shape,
    /// Of a shaped pool: bytes of a band.
    pub band_bytes: Option<u64>,
    /// Of a shaped pool: bytes of which writes to the capacity device are multiples.
    pub write_unit_bytes: Option<u64>,
    /// Of a shaped pool on a device that is written in whole rows: bytes of a row, without its parity.
    pub row_bytes: Option<u64>,
}

/// What an audit of a pool found, in memory alone: a damaged block is found by reading it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolAudit {
    /// The extents in use, by shard and extent. Those of a volume being deleted or cut are among them until they are freed.
    pub extents: Vec<ExtentOwner>,
    /// What contradicts itself, in words; empty unless there is a defect.
    pub problems: Vec<String>,
}

/// What everybody who deals with a pool shares.
pub(crate) struct PoolShared {
    name: String,
    uuid: Uuid,
    /// Tells apart the pools that were ever open in this process.
    instance: u64,
    /// The reactor of the control part.
    control: usize,
    /// The reactor of each shard.
    homes: Vec<usize>,
    log_durable: bool,
    /// See [`Pool::epoch`].
    epoch: u32,
    /// What its layers are called.
    names: Arc<Names>,
    /// Of those who wait until what was deleted is gone.
    hurry: Hurry,
    /// What tests of the tests break on purpose.
    defect: Option<Defect>,
}

/// The shards of one pool that live on one reactor.
#[derive(Default)]
pub(crate) struct ShardTable {
    shards: RefCell<BTreeMap<u16, Rc<Shard>>>,
}

impl ShardTable {
    pub(crate) fn on(reactor: &Reactor, instance: u64) -> Rc<ShardTable> {
        reactor.kept_or(instance, ShardTable::default)
    }

    pub(crate) fn get(&self, number: u16) -> Option<Rc<Shard>> {
        self.shards.borrow().get(&number).cloned()
    }
}

impl PoolShared {
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    pub(crate) fn table(&self, reactor: &Reactor) -> Rc<ShardTable> {
        ShardTable::on(reactor, self.instance)
    }

    /// The shard that owns a slice of the volumes of one origin.
    #[inline]
    pub(crate) fn shard_of(&self, origin: u32, slice: u32) -> u16 {
        (origin.wrapping_add(slice) % self.homes.len() as u32) as u16
    }

    /// The reactor of the control part.
    pub(crate) fn control_home(&self) -> usize {
        self.control
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> u64 {
        self.homes.len() as u64
    }

    pub(crate) fn home_of(&self, shard: u16) -> usize {
        self.homes[shard as usize]
    }

    /// Runs something on a shard, where it lives; `None` when the pool is closed.
    pub(crate) async fn on_shard<T, F>(
        &self,
        reactor: &Rc<Reactor>,
        number: u16,
        run: impl FnOnce(Rc<Shard>) -> F + Send + 'static,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let instance = self.instance;
        let run = move |there: Rc<Reactor>| async move {
            match ShardTable::on(&there, instance).get(number) {
                Some(shard) => Some(run(shard).await),
                None => None,
            }
        };
        reactor.call_on(self.home_of(number), run).await
    }

    /// Runs something on every shard, one after the other.
    async fn on_shards<T, F>(
        &self,
        reactor: &Rc<Reactor>,
        make: impl Fn(Rc<Shard>) -> F + Copy + Send + 'static,
    ) -> Vec<Option<T>>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let mut results = Vec::new();
        for number in 0..self.homes.len() as u16 {
            results.push(self.on_shard(reactor, number, make).await);
        }
        results
    }

    /// As [`on_shards`](Self::on_shards), on all of them at the same time.
    async fn on_all_shards<T, A, F>(
        &self,
        reactor: &Rc<Reactor>,
        argument: A,
        make: impl Fn(Rc<Shard>, A) -> F + Copy + Send + 'static,
    ) -> Vec<Option<T>>
    where
        T: Send + 'static,
        A: Clone + Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.on_all_shards_telling(reactor, argument, make, |_| {}).await
    }

    /// The same, which tells of each as it ends: the others may take long.
    async fn on_all_shards_telling<T, A, F>(
        &self,
        reactor: &Rc<Reactor>,
        argument: A,
        make: impl Fn(Rc<Shard>, A) -> F + Copy + Send + 'static,
        mut tell: impl FnMut(&Option<T>),
    ) -> Vec<Option<T>>
    where
        T: Send + 'static,
        A: Clone + Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let mut running = Together::new();
        for number in 0..self.homes.len() as u16 {
            let argument = argument.clone();
            running.push(IoFuture::new(self.on_shard(reactor, number, move |shard| make(shard, argument))));
        }
        let mut results = Vec::new();
        while let Some(result) = running.first().await {
            tell(&result);
            results.push(result);
        }
        results
    }

    /// Makes whole extents of a volume read as zeroes.
    pub(crate) async fn trim_range(&self, reactor: &Rc<Reactor>, volume: u32, first: u32, count: u32) -> Status {
        let end = first.saturating_add(count);
        let trimmed =
            self.on_shards(reactor, move |shard| async move { shard.trim_range(volume, first, end).await }).await;
        trimmed.into_iter().map(|ended| ended.unwrap_or(Err(Status::Gone))).find_map(Result::err).unwrap_or(Status::Ok)
    }

    /// Gives back the extents of a layer from `first` on.
    async fn free_from(&self, reactor: &Rc<Reactor>, layer: u32, first: u32) -> Status {
        let free = move |shard: Rc<Shard>, hurry| async move { shard.free_range(layer, first, u32::MAX, hurry).await };
        let freed = self.on_all_shards(reactor, self.hurry.clone(), free).await;
        freed.into_iter().map(|ended| ended.unwrap_or(Err(Status::Gone))).find_map(Result::err).unwrap_or(Status::Ok)
    }

    /// Changes a volume's size in the catalog, and makes what is gained read as zeroes.
    pub(crate) async fn resize_volume(
        self: &Arc<Self>,
        reactor: &Rc<Reactor>,
        shown: Shown,
        blocks: u64,
    ) -> Result<(), PoolError> {
        let shared = self.clone();
        let resize = move |there: Rc<Reactor>| async move { Control::of(&there, &shared)?.resize(shown, blocks).await };
        reactor.call_on(self.control, resize).await
    }

    fn refuse(&self, grounds: Grounds, reason: String) -> PoolError {
        PoolError::Refused { pool: self.name.clone(), grounds, reason }
    }

    fn io_error(&self, action: &'static str, status: Status) -> PoolError {
        PoolError::Io { pool: self.name.clone(), action, status }
    }
}

/// Opens a shard on its reactor, which is this one.
async fn open_shard(
    reactor: &Rc<Reactor>,
    number: u16,
    devices: &PoolDevices,
    shared: &Arc<PoolShared>,
    superblock: &Superblock,
    layers: &[(u32, Below)],
    tuning: ShardTuning,
) -> Result<ShardRecovery, PoolError> {
    let first_log_block = superblock.segments_start as u64
        + number as u64 * superblock.segments as u64 * superblock.segment_blocks as u64;
    let parts = ShardParts {
        reactor: reactor.clone(),
        number,
        pool_name: shared.name.as_str().into(),
        superblock: superblock.clone(),
        log: devices.log.open(reactor, &shared.name)?,
        first_log_block,
        capacity: devices.capacity.open_channel(reactor)?,
        capacity_info: devices.capacity.info(),
        capacity_device: devices.capacity.clone(),
        names: shared.names.clone(),
        log_name: devices.log.name().into(),
        disks: devices.capacity.seeks().then(|| Disks::below(&devices.capacity)),
        for_shadow: superblock.shadowed.then(|| devices.capacity.open_channel(reactor)).transpose()?,
        tuning,
        layers: layers.to_vec(),
    };
    let (shard, recovery) = Shard::open(parts).await?;
    shared.table(reactor).shards.borrow_mut().insert(number, shard);
    Ok(recovery)
}

/// An open pool.
pub struct Pool {
    shared: Arc<PoolShared>,
    layout: PoolLayout,
    recovery: PoolRecovery,
    capacity: Arc<dyn BlockDevice>,
    capacity_blocks: AtomicU64,
    log: LogDevice,
    log_blocks: AtomicU64,
    volumes: Mutex<Volumes>,
}

fn unusable(pool: &str, grounds: Grounds, device: &str, reason: &str) -> PoolError {
    PoolError::Refused { pool: pool.to_string(), grounds, reason: format!("'{device}' cannot be used: {reason}") }
}

/// Counts copies of what a pool has twice that were written anew, and tells of each.
struct Repaired<'a> {
    pool: &'a str,
    copies: u64,
}

impl Repaired<'_> {
    fn tell(&mut self, device: &str, damage: &Damage) {
        let pool = self.pool;
        self.copies += 1;
        tracing::warn!(
            "pool '{pool}': device '{device}': {damage}; it was written again from its other copy: a crash can leave this \
             once, a device where it happens again is failing"
        );
    }
}

/// A log is written at any block.
fn refuse_rows(pool: &str, device: &str, info: &DeviceInfo) -> Result<(), PoolError> {
    match info.rows {
        None => Ok(()),
        Some(_) => {
            Err(unusable(pool, Grounds::Value, device, "a log is not written in whole rows; name another log device"))
        }
    }
}

static INSTANCES: AtomicU64 = AtomicU64::new(1);

fn random_uuid(reactor: &Reactor) -> Uuid {
    let driver = reactor.driver();
    let bits = (driver.random_u64() as u128) << 64 | driver.random_u64() as u128;
    uuid::Builder::from_random_bytes(bits.to_le_bytes()).into_uuid()
}

impl Pool {
    /// Plans a pool on a log device and a capacity device, by name, that need not be there yet: their superblocks, as
    /// [`create`](Self::create) writes them.
    pub fn plan(
        log: (&str, DeviceInfo),
        capacity: (&str, DeviceInfo),
        options: &CreateOptions,
        identities: Identities,
        created_s: u64,
    ) -> Result<(Superblock, Superblock), PoolError> {
        let name = &options.name;
        refuse_rows(name, log.0, &log.1)?;
        let rows = RowLayout::of(&capacity.1).map_err(|reason| unusable(name, Grounds::Devices, capacity.0, reason))?;
        let options = CreateOptions { rows, ..options.clone() };
        let blocks = |info: &DeviceInfo| info.bytes() / BLOCK_BYTES as u64;
        let planned = layout::plan(blocks(&log.1), blocks(&capacity.1), &options, identities, created_s);
        planned.map_err(|error| PoolError::Plan { pool: name.clone(), error })
    }

    /// Makes a pool. Devices that hold anything are refused unless `force`.
    pub async fn create(
        reactor: &Rc<Reactor>,
        devices: &PoolDevices,
        options: &CreateOptions,
        created_s: u64,
        force: bool,
    ) -> Result<(), PoolError> {
        let name = &options.name;
        let (log, info) = (devices.log.open(reactor, name)?, devices.capacity.info());
        let capacity = devices.capacity.open_channel(reactor)?;
        let both = [(devices.log.name(), &log.channel, log.info), (devices.capacity.name(), &capacity, info)];
        for (device, channel, info) in both {
            match Holds::look(reactor, channel, info).await {
                Ok(Holds::Nothing) => {}
                Ok(holds) if force => tracing::warn!("pool '{name}' is made over what '{device}' held: {holds}"),
                Ok(holds) => {
                    return Err(PoolError::InUse {
                        pool: name.clone(),
                        device: device.to_string(),
                        holds: holds.into(),
                    });
                }
                Err(_) if force => {}
                Err(status) => {
                    return Err(PoolError::Io { pool: name.clone(), action: "read the devices", status });
                }
            }
        }
        let [pool, log_id, capacity_id] = [(); 3].map(|_| random_uuid(reactor));
        let identities = Identities { pool: options.pool.unwrap_or(pool), log: log_id, capacity: capacity_id };
        let options = CreateOptions { log_kind: devices.log.kind(), ..options.clone() };
        let (on_log, on_capacity) = ((devices.log.name(), log.info), (devices.capacity.name(), info));
        let (mut log_super, mut capacity_super) = Pool::plan(on_log, on_capacity, &options, identities, created_s)?;
        // What an older pool has there must not be believed while it is being written over.
        meta::wipe_superblocks(reactor, capacity.clone(), info).await?;
        meta::wipe_superblocks(reactor, log.channel.clone(), log.info).await?;
        let (on_log, on_capacity) = ((log.channel.clone(), log.info), (capacity.clone(), info));
        let ((index, index_info), _) = capacity_super.shape.index_and_bands(on_log, on_capacity);
        for shard in 0..capacity_super.shards {
            Meta::format(reactor, index.clone(), index_info, &capacity_super, shard, FIRST).await?;
            if let Some(shadow) = capacity_super.shadow() {
                Meta::format(reactor, capacity.clone(), info, &shadow, shard, FIRST).await?;
            }
            DirtyJournal::format(reactor, capacity.clone(), info, &capacity_super, shard).await?;
        }
        CatalogStore::new(reactor, capacity.clone(), info, &capacity_super)?.store(&Edit::default()).await?;
        // The capacity device last: only with it is this a pool.
        meta::write_superblock(reactor, log.channel.clone(), log.info, &mut log_super).await?;
        meta::write_superblock(reactor, capacity, info, &mut capacity_super).await?;
        Ok(())
    }

    /// Checks a pool that is not open, and [repairs](CheckOptions::repair) it when asked. `log` is `None` when its device is
    /// missing. What is wrong is in the report; an error means that the devices cannot be used at all.
    pub async fn check(
        reactor: &Rc<Reactor>,
        capacity: &Arc<dyn BlockDevice>,
        log: Option<&LogDevice>,
        options: CheckOptions,
    ) -> Result<CheckReport, PoolError> {
        check::check(reactor, capacity, log, options).await
    }

    /// Takes the start of a closed pool from its devices, so that they count as unused. Of a device that carries no
    /// superblock of a pool of this name, nothing is touched.
    pub async fn destroy(reactor: &Rc<Reactor>, devices: &PoolDevices, name: &str) -> Result<(), PoolError> {
        let log = devices.log.open(reactor, name)?;
        let capacity = devices.capacity.open_channel(reactor)?;
        for (channel, info) in [(capacity, devices.capacity.info()), (log.channel.clone(), log.info)] {
            let found = meta::read_superblocks(reactor, channel.clone(), info).await;
            if found.is_ok_and(|found| found.name == name) {
                meta::wipe_start(reactor, channel, info, UNUSED_BYTES).await?;
            }
        }
        Ok(())
    }

    /// Opens a pool.
    pub async fn open(
        reactor: &Rc<Reactor>,
        devices: &PoolDevices,
        options: &OpenOptions,
    ) -> Result<Arc<Pool>, PoolError> {
        let began_ns = reactor.clock_ns();
        let info = devices.capacity.info();
        let written = ControlWrites::default();
        let capacity = Metered::over(devices.capacity.open_channel(reactor)?, info.block_size, &written.capacity);
        let (mut superblock, damaged) = meta::survey_superblocks(reactor, capacity.clone(), info).await?;
        check_role(&superblock, Role::Capacity, devices.capacity.name())?;
        let name = superblock.name.clone();
        if let Some(reason) = layout::rows_fault(&superblock, &info) {
            return Err(unusable(&name, Grounds::Devices, devices.capacity.name(), &reason));
        }
        let log = devices.log.open(reactor, &name)?.metered(&written.log);
        let found = meta::survey_superblocks(reactor, log.channel.clone(), log.info).await;
        let (mut log_super, damaged_of_log) = match found {
            Ok(found) => found,
            Err(error) => {
                let holds = Holds::look(reactor, &log.channel, log.info).await.ok();
                return Err(no_log(&superblock, devices, error, holds));
            }
        };
        check_role(&log_super, Role::Log, devices.log.name())?;
        check_pair(&superblock, &log_super, devices)?;
        let media = Media::new(reactor, capacity.clone(), &info)?;
        check_none_is_older(reactor, &superblock, &log_super, devices, &media, &log).await?;
        check_writable(&superblock, devices.capacity.name())?;
        check_writable(&log_super, devices.log.name())?;
        // Raised on both before anything is appended, so that no record of this opening looks like one of another.
        let epoch = next_epoch(&superblock, &log_super)?;
        superblock.epoch = epoch;
        superblock.opening = superblock.opening.next(reactor.driver().random_u64());
        // A crash while the pool grew may have left the log device behind.
        log_super = Superblock {
            role: Role::Log,
            device: log_super.device,
            other: log_super.other,
            generation: log_super.generation,
            ..superblock.clone()
        };
        let defect = options.tuning.and_then(|tuning| tuning.defect);
        if defect != Some(Defect::KeepEpoch) {
            meta::write_superblock(reactor, log.channel.clone(), log.info, &mut log_super).await?;
            meta::write_superblock(reactor, capacity.clone(), info, &mut superblock).await?;
        }
        let mut repaired = Repaired { pool: &name, copies: 0 };
        damaged_of_log.iter().for_each(|damage| repaired.tell(devices.log.name(), damage));
        damaged.iter().for_each(|damage| repaired.tell(devices.capacity.name(), damage));
        let (mut store, catalog, damage) = CatalogStore::open(reactor, capacity.clone(), info, &superblock).await?;
        if let Some(damage) = damage {
            match store.store(&Edit::default()).await {
                Ok(()) => repaired.tell(devices.capacity.name(), &damage),
                Err(error) => {
                    store.renew(&catalog);
                    tracing::warn!(
                        "pool '{name}': device '{}': {damage}, and it cannot be written again from its other copy: {error}",
                        devices.capacity.name()
                    );
                }
            }
        }
        let repaired_copies = repaired.copies;

        let reactors = if options.reactors.is_empty() { vec![reactor.index()] } else { options.reactors.clone() };
        let shared = Arc::new(PoolShared {
            name: name.clone(),
            uuid: superblock.pool,
            instance: INSTANCES.fetch_add(1, Relaxed),
            control: reactor.index(),
            homes: (0..superblock.shards as usize).map(|shard| reactors[shard % reactors.len()]).collect(),
            log_durable: log.durable,
            epoch,
            names: Arc::default(),
            hurry: Hurry::default(),
            defect,
        });
        let mut pool = Pool {
            recovery: PoolRecovery { repaired_copies, ..PoolRecovery::default() },
            capacity: devices.capacity.clone(),
            capacity_blocks: AtomicU64::new(superblock.capacity_blocks),
            log: devices.log.clone(),
            log_blocks: AtomicU64::new(superblock.log_blocks),
            volumes: Mutex::new(Volumes::told_to(shared.names.clone())),
            layout: PoolLayout::of(&superblock, &info),
            shared: shared.clone(),
        };
        let opened = pool.open_shards(reactor, devices, options, &superblock, &catalog).await;
        if let Err(error) = opened {
            pool.close(reactor).await;
            return Err(error);
        }
        pool.recovery.elapsed_ns = reactor.clock_ns() - began_ns;
        let volumes = catalog.volumes().values().filter(|entry| entry.state != VolumeState::Deleting);
        for entry in volumes {
            pool.known_volumes().insert(entry.id, Arc::new(volume_of(&shared, entry)));
        }
        let control = Rc::new(Control {
            reactor: reactor.clone(),
            shared: shared.clone(),
            capacity,
            capacity_info: info,
            log,
            superblock: RefCell::new(superblock),
            catalog: RefCell::new(catalog),
            store: Cell::new(Some(store)),
            busy: Cell::new(false),
            reaping: Cell::new(false),
            flattenings: RefCell::default(),
            is_flattening_one: Cell::new(false),
            idle: Notify::default(),
            closing: Cell::new(false),
            written,
        });
        *reactor.kept_or(shared.instance, ControlSlot::default).0.borrow_mut() = Some(control.clone());
        reactor.spawn(async move {
            if let Err(error) = control.tidy_up().await {
                tracing::warn!("{error}; it is tried again when the pool is opened next");
            }
        });
        Ok(Arc::new(pool))
    }

    async fn open_shards(
        &mut self,
        reactor: &Rc<Reactor>,
        devices: &PoolDevices,
        options: &OpenOptions,
        superblock: &Superblock,
        catalog: &Catalog,
    ) -> Result<(), PoolError> {
        let devices = &devices.watched();
        let layers = meta::catalog::layers(catalog.volumes());
        let shards = superblock.shards as usize;
        let cache = options.map_cache_bytes.unwrap_or((superblock.capacity_blocks / 16) as usize) / shards;
        let tuning = options.tuning.unwrap_or_default();
        let map_cache_bytes = cache.max(tuning.map_cache_bytes_min);
        let reinsertion_percent = options.reinsertion_percent.or(tuning.reinsertion_percent);
        let tuning = ShardTuning { map_cache_bytes, reinsertion_percent, ..tuning };
        let mut homes: Vec<usize> = self.shared.homes.clone();
        homes.sort_unstable();
        homes.dedup();
        // Reactors work side by side; each opens its shards one after the other, so that they do not wait for its buffers
        // in a circle.
        let mut opening = Together::new();
        for home in homes {
            let (devices, shared, superblock) = (devices.clone(), self.shared.clone(), superblock.clone());
            let layers = layers.clone();
            let open = move |there: Rc<Reactor>| async move {
                let (mut found, mut outcome) = (PoolRecovery::default(), Ok(()));
                for number in (0..superblock.shards).filter(|number| shared.home_of(*number) == home) {
                    match open_shard(&there, number, &devices, &shared, &superblock, &layers, tuning).await {
                        Ok(recovery) => {
                            found.records += recovery.records;
                            found.log_blocks += recovery.log_blocks;
                        }
                        Err(error) => {
                            outcome = Err(error);
                            break;
                        }
                    }
                }
                // Not before: hosts wait for the last one to be open, and nobody for what the first has to destage.
                shared.table(&there).shards.borrow().values().for_each(Shard::start_upkeep);
                outcome.map(|()| found)
            };
            opening.push(IoFuture::new(reactor.call_on(home, open)));
        }
        let mut outcome = Ok(());
        // All of them end before the pool is closed again because of one.
        while let Some(opened) = opening.first().await {
            match opened {
                Ok(found) => {
                    self.recovery.records += found.records;
                    self.recovery.log_blocks += found.log_blocks;
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// A shard that lives on this reactor.
    pub(crate) fn shard_here(&self, reactor: &Reactor, number: u16) -> Option<Rc<Shard>> {
        self.shared.table(reactor).get(number)
    }

    /// How it lies on its devices.
    pub fn layout(&self) -> PoolLayout {
        self.layout
    }

    /// The names of its log device and of its capacity device.
    pub fn device_names(&self) -> [&str; 2] {
        [self.log.name(), self.capacity.name()]
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its identity.
    pub fn uuid(&self) -> Uuid {
        self.shared.uuid
    }

    /// The number of this opening: whoever opens the pool next, or gives up its log, counts on.
    pub fn epoch(&self) -> u32 {
        self.shared.epoch
    }

    /// What opening it took.
    pub fn recovery(&self) -> PoolRecovery {
        self.recovery
    }

    /// Its volumes.
    pub fn volumes(&self) -> Vec<Arc<PoolVolume>> {
        self.known_volumes().all().cloned().collect()
    }

    /// How many volumes, and how many snapshots, there are.
    pub fn volume_counts(&self) -> (usize, usize) {
        self.known_volumes().counts()
    }

    /// A volume by name.
    pub fn volume(&self, name: &str) -> Option<Arc<PoolVolume>> {
        self.known_volumes().of_name(name).cloned()
    }

    fn known_volumes(&self) -> MutexGuard<'_, Volumes> {
        self.volumes.lock().expect("nothing panics while holding the list of volumes")
    }

    /// Creates a volume of `blocks` blocks of 4 KiB, all zeroes, that hosts see in blocks of `1 << block_shift` bytes.
    pub async fn create_volume(
        &self,
        reactor: &Rc<Reactor>,
        name: &str,
        blocks: u64,
        block_shift: u16,
        created_s: u64,
    ) -> Result<Arc<PoolVolume>, PoolError> {
        let (shared, uuid, name) = (self.shared.clone(), random_uuid(reactor), name.to_string());
        if !matches!(block_shift, 9 | 12) {
            let reason = format!("a volume with blocks of {} bytes: expected 512 or 4096", 1u64 << block_shift.min(63));
            return Err(self.shared.refuse(Grounds::Value, reason));
        }
        self.check_volume_name(&name)?;
        let create = move |there: Rc<Reactor>| async move {
            Control::of(&there, &shared)?.create(&name, blocks, block_shift, uuid, created_s).await
        };
        let entry = reactor.call_on(self.shared.control, create).await?;
        let volume = Arc::new(volume_of(&self.shared, &entry));
        self.known_volumes().insert(entry.id, volume.clone());
        Ok(volume)
    }

    /// Takes into use by what the capacity device has become larger, while I/O goes on; its new size in bytes. Refused,
    /// naming the least useful size, when that adds nothing. In a shaped pool the index grows on the log device, into room that was
    /// kept there or that this has become larger by: what has no room there stays for another time.
    pub async fn grow(&self, reactor: &Rc<Reactor>) -> Result<u64, PoolError> {
        let (shared, blocks) = (self.shared.clone(), self.capacity.info().bytes() / BLOCK_BYTES as u64);
        let log_blocks = self.log.blocks();
        let grow =
            move |there: Rc<Reactor>| async move { Control::of(&there, &shared)?.grow(log_blocks, blocks).await };
        let (log_blocks, capacity_blocks) = reactor.call_on(self.shared.control, grow).await?;
        self.log_blocks.store(log_blocks, Relaxed);
        self.capacity_blocks.store(capacity_blocks, Relaxed);
        Ok(capacity_blocks * BLOCK_BYTES as u64)
    }

    /// Gives up a log device that is lost, or damaged in its middle, for the new (or the damaged) one in `devices`. The pool
    /// must not be open. Every block that may have been newer in the old log is lost from then on: reading it is an error
    /// until it is written. Unless `force`, a device that holds anything else is refused, and so is a log that can be read.
    ///
    /// It may be repeated when it was interrupted, or [stopped](ForgetProgress::stop): until it has ended, the pool belongs to
    /// its old log. `progress` says how far it is.
    pub async fn forget_log(
        reactor: &Rc<Reactor>,
        devices: &PoolDevices,
        force: bool,
        progress: &Arc<ForgetProgress>,
    ) -> Result<ForgottenLog, PoolError> {
        forget::forget_log(reactor, devices, Some(random_uuid(reactor)), force, progress).await
    }

    /// What [`forget_log`](Self::forget_log) with the same arguments would take, or why it would be refused; reads only.
    pub async fn foresee_forget_log(
        reactor: &Rc<Reactor>,
        devices: &PoolDevices,
        force: bool,
    ) -> Result<ForgottenLog, PoolError> {
        forget::forget_log(reactor, devices, None, force, &Arc::default()).await
    }

    /// As [`OpenOptions::reinsertion_percent`], from now on.
    pub async fn set_reinsertion(&self, reactor: &Rc<Reactor>, percent: Option<u32>) {
        self.shared.on_shards(reactor, move |shard| async move { shard.set_reinsertion(percent) }).await;
    }

    /// Who has which extent, and everything that contradicts itself; see [`PoolAudit`].
    pub async fn audit(&self, reactor: &Rc<Reactor>) -> Result<PoolAudit, PoolError> {
        let found = self.shared.on_shards(reactor, |shard| async move { shard.audit() }).await;
        let shared = self.shared.clone();
        let ids = move |there: Rc<Reactor>| async move {
            let control = Control::of(&there, &shared)?;
            let ids: Vec<u32> = control.catalog.borrow().volumes().keys().copied().collect();
            Ok::<_, PoolError>(ids)
        };
        let ids = reactor.call_on(self.shared.control, ids).await?;
        let mut audit = PoolAudit::default();
        for (owners, problems) in found.into_iter().flatten() {
            audit.extents.extend(owners);
            audit.problems.extend(problems);
        }
        for owner in audit.extents.iter().filter(|owner| ids.binary_search(&owner.volume).is_err()) {
            let ExtentOwner { shard, extent, volume, .. } = owner;
            audit
                .problems
                .push(format!("extent {extent} of shard {shard} belongs to volume {volume}, which there is not"));
        }
        Ok(audit)
    }

    /// What is wrong with where the map pages of a shaped pool say that blocks are, in words: two blocks at one place, places in bands that
    /// are free, counts of bands that are not what leads to them. For tests: all map pages come into memory.
    pub async fn audit_places(&self, reactor: &Rc<Reactor>) -> Vec<String> {
        let found = self.shared.on_shards(reactor, |shard| async move { shard.audit_places().await }).await;
        found.into_iter().flatten().flatten().collect()
    }

    /// Destages everything and makes a checkpoint, so that nothing is in the log alone.
    pub async fn settle(&self, reactor: &Rc<Reactor>) -> Result<(), PoolError> {
        let ended = self.shared.on_shards(reactor, |shard| async move { shard.settle().await }).await;
        let failed = ended.into_iter().flatten().find_map(Result::err);
        failed.map_or(Ok(()), |status| Err(self.shared.io_error("destage", status)))
    }

    pub(crate) fn is_broken(&self, defect: Defect) -> bool {
        self.shared.defect == Some(defect)
    }

    /// Closes it. What is in the log stays there; nobody may use the volumes any more.
    pub async fn close(&self, reactor: &Rc<Reactor>) {
        let shared = self.shared.clone();
        let end_changes = move |there: Rc<Reactor>| async move {
            if let Ok(control) = Control::of(&there, &shared) {
                control.close().await;
            }
        };
        reactor.call_on(self.shared.control, end_changes).await;
        self.shared.on_shards(reactor, |shard| async move { shard.close().await }).await;
        for home in &self.shared.homes {
            let instance = self.shared.instance;
            let clear = move |there: Rc<Reactor>| async move {
                ShardTable::on(&there, instance).shards.borrow_mut().clear();
            };
            reactor.call_on(*home, clear).await;
        }
        let instance = self.shared.instance;
        let forget = move |there: Rc<Reactor>| async move {
            there.kept_or(instance, ControlSlot::default).0.borrow_mut().take();
        };
        reactor.call_on(self.shared.control, forget).await;
    }
}

/// Volumes for which the catalog has room.
fn volumes_max(superblock: &Superblock) -> u64 {
    catalog_entries_max(superblock.catalog_blocks as u64 * BLOCK_BYTES as u64)
}

fn volume_of(shared: &Arc<PoolShared>, entry: &VolumeEntry) -> PoolVolume {
    let identity = VolumeIdentity {
        name: entry.name.clone(),
        uuid: entry.uuid,
        block_shift: entry.block_shift,
        origin: entry.origin,
        is_snapshot: entry.state == VolumeState::Snapshot,
    };
    PoolVolume::new(shared.clone(), identity, entry.id, entry.blocks)
}

/// The start of a device, to see whether anything is there.
pub(crate) async fn read_start(
    reactor: &Rc<Reactor>,
    channel: &Rc<dyn Channel>,
    info: &DeviceInfo,
) -> Result<Vec<u8>, Status> {
    let buf = bdev::steps::alloc(reactor, UNUSED_BYTES).await?;
    let mut bufs = reactor::SgList::new();
    bufs.push(buf);
    let done = channel.submit(Io::read(Lba(0), UNUSED_BYTES as u32 / info.block_size, bufs)).await;
    done.status.check()?;
    Ok(done.io.bufs.iter().flat_map(|buf| buf.as_slice().iter().copied()).collect())
}
