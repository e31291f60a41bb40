//! `hot-pool`: a pool with a log in persistent memory or on a disk, under kills and power cuts, disks that fail and a log
//! that is always nearly full. What is acknowledged is durable, whatever it was and wherever destage had got.
//!
//! The volumes are seen through windows that lie over the ends of extents and slices, so that a small oracle meets
//! allocation, many shards and operations that are cut in two.

use crate::Run;
use crate::blocks::{Judge, Mix};
use crate::crashed;
use crate::crashes::{Life, Opening, Rig, SECOND_NS, SHORT, Working, start};
use crate::forgetful::ForgetfulDevice;
use base::Rng;
use bdev::{
    BlockDevice, ErrorDevice, ErrorRule, Extent, Fault, FileDevice, FileDeviceOptions, Lba, LinearDevice, Op,
    StatsDevice, Status, When,
};
use engine::layout::{Identities, plan};
use engine::{
    CheckOptions, CreateOptions, Defect, LogDevice, Marks, OpenOptions, Pool, PoolDevices, PoolError, Severity, Shape,
    ShardTuning, Superblock, policy, read_superblocks,
};
use reactor::Reactor;
use sim::{DiskFaults, DiskOptions, Failure, Handle, Mutation, NodeId, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

pub(crate) const LOG: &str = "/log";
pub(crate) const CAPACITY: &str = "/capacity";
pub(crate) const EXTENT_BLOCKS: u64 = 1024;
pub(crate) const SLICE_BLOCKS: u64 = 16 * EXTENT_BLOCKS;
/// Volumes and snapshots for which there is room where there are any of the latter.
const LAYERED_VOLUMES_MAX: u32 = 40;
/// Of the capacity device of a shaped pool, for what is not in bands.
pub(crate) const FRONT_BLOCKS: u64 = 16 << 8;
/// With a shadow of the index and its roots, which have room for sixteen times as many bands.
pub(crate) const SHADOW_FRONT_BLOCKS: u64 = 8 * FRONT_BLOCKS;

/// What a pool is made of and how it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) mapped: bool,
    pub(crate) shards: u16,
    pub(crate) segment_blocks: u32,
    pub(crate) log_bytes: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) block_size: u32,
    pub(crate) block_shift: u16,
    pub(crate) volumes: u64,
    /// Volumes and snapshots for which there is room.
    pub(crate) volumes_max: u32,
    pub(crate) windows: u64,
    pub(crate) window_blocks: u64,
    pub(crate) reactors: usize,
    pub(crate) idle_ns: u64,
    pub(crate) depth: usize,
    pub(crate) bypass_bytes: u32,
    /// Memory for the map pages of a few extents alone.
    pub(crate) small_cache: bool,
    /// Extents of each shard whose places refuse writes: those whose bits are set.
    pub(crate) refusing: u64,
    /// The same of places of map pages: both of an even extent, the first of an odd one.
    pub(crate) refusing_maps: u64,
    /// One flush of the capacity device in so many fails, and forgets what it covered; 0 is none.
    pub(crate) forgets: u64,
    /// The capacity device works for so many flushes, and from then on none succeeds; 0 is for ever.
    pub(crate) flushes: u64,
    /// See [`ShardTuning::evacuates`].
    pub(crate) evacuates: bool,
    /// See [`ShardTuning::marks`].
    pub(crate) marks: Option<Marks>,
    pub(crate) defect: Option<Defect>,
    /// Which of the log devices it has had is in use, from 0.
    pub(crate) log_number: u64,
    /// Of a shaped pool.
    pub(crate) bands: Option<BandPlan>,
}

/// What the bands of a shaped pool are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BandPlan {
    pub(crate) band_blocks: u32,
    pub(crate) unit_blocks: u32,
    pub(crate) overprovision: u8,
    /// Bands in use above which GC works; as many as it chooses itself if there is nothing here.
    pub(crate) used_bands: Option<u32>,
    /// Bytes that the capacity device may become larger by.
    pub(crate) growth_bytes: u64,
}

impl Plan {
    pub(crate) fn pick(rng: &mut Rng) -> Plan {
        let shards = rng.between(1, 3) as u16;
        let segment_blocks = rng.between(80, 128) as u32;
        // Few segments, so that the log goes round often.
        let segments = rng.between(8, 14) * shards as u64;
        Plan {
            mapped: rng.one_in(2),
            shards,
            segment_blocks,
            log_bytes: (16 + segments * segment_blocks as u64) * 4096,
            capacity_bytes: (shards as u64 * rng.between(15, 18) + 2) * (4 << 20),
            block_size: if rng.one_in(2) { 512 } else { 4096 },
            block_shift: if rng.one_in(2) { 9 } else { 12 },
            volumes: rng.between(1, 2),
            volumes_max: 8,
            windows: rng.between(2, 4),
            window_blocks: 2 * rng.between(2, 6),
            reactors: rng.between(1, 2) as usize,
            idle_ns: rng.between(100_000, 20_000_000),
            depth: rng.between(1, 4) as usize,
            bypass_bytes: 4096 * rng.between(1, 20) as u32,
            small_cache: rng.one_in(2),
            refusing: 0,
            refusing_maps: 0,
            forgets: 0,
            flushes: 0,
            evacuates: false,
            marks: None,
            defect: None,
            log_number: 0,
            bands: None,
        }
    }

    /// The same as a shaped pool, most of whose bands GC keeps free.
    pub(crate) fn shaped(self, rng: &mut Rng) -> Plan {
        let unit_blocks = 1u32 << rng.below(3);
        // Few blocks are written in a life: in larger bands none would be collected.
        let band_blocks = 8u32 << rng.below(3);
        let plan = self.with_bands(rng, unit_blocks, band_blocks);
        // Settled whenever it is idle, a log seldom has something old and something young.
        let Some(marks) = plan.marks else { return plan };
        Plan { marks: Some(Marks { start: marks.start / 4, ..marks }), idle_ns: plan.idle_ns + SECOND_NS, ..plan }
    }

    /// The same with bands of this shape.
    pub(crate) fn with_bands(self, rng: &mut Rng, unit_blocks: u32, band_blocks: u32) -> Plan {
        let overprovision = rng.between(5, 40) as u8;
        // As many extents as in place, the index beside the log, and the bands that are kept back.
        let extents = self.capacity_bytes / (4 << 20) + self.shards as u64;
        let whole = band_blocks as u64 * 100 / (band_blocks as u64 - 1) + 3;
        let blocks = extents * EXTENT_BLOCKS * whole / (100 - overprovision as u64);
        let bands = blocks / band_blocks as u64 + self.shards as u64 * 10;
        // Of few units, more of them: one has to be worth draining.
        let needed = extents.div_ceil(self.shards as u64) * EXTENT_BLOCKS;
        let holds = |bands: &u64| policy::collectable_blocks(*bands, band_blocks, unit_blocks) >= needed;
        let least = (1..).find(holds).expect("a band of two units holds something");
        let bands = bands.max(least * self.shards as u64);
        let front = FRONT_BLOCKS;
        // Map pages, and roots for sixteen times as many bands.
        let index = extents * 4 + self.shards as u64 * 64 + bands * 16 * 32 / 2048;
        // Destage at work for most of the time, with something old and something young in the log.
        let start = rng.between(24, 160);
        let marks = rng.one_in(2).then(|| Marks { start, soft: rng.between(start, 208) });
        Plan {
            log_bytes: self.log_bytes + index * 4096,
            capacity_bytes: (front + bands * band_blocks as u64) * 4096,
            bands: Some(BandPlan {
                band_blocks,
                unit_blocks,
                overprovision,
                used_bands: Some(rng.between(1, 8) as u32),
                growth_bytes: 0,
            }),
            marks,
            ..self
        }
    }

    /// The same, with GC that works only when it has to.
    pub(crate) fn with_lazy_gc(self) -> Plan {
        Plan { bands: self.bands.map(|bands| BandPlan { used_bands: None, ..bands }), ..self }
    }

    /// The same, with room on the log device for the index of so much more.
    pub(crate) fn growing(self, growth_bytes: u64) -> Plan {
        // Two slots of two blocks for each extent, table pages, and what is rounded up.
        let index = growth_bytes / (4 << 20) * 4 + self.shards as u64 * 16;
        let bands = self.bands.map(|bands| BandPlan { growth_bytes, ..bands });
        Plan { log_bytes: self.log_bytes + index * 4096, bands, ..self }
    }

    /// If `layered`, the same with room for snapshots and clones, and for so many extents of each shard.
    pub(crate) fn layered_if(self, layered: bool, extents: u64) -> Plan {
        let capacity_bytes = (self.shards as u64 * extents + 2) * (4 << 20);
        if layered { Plan { volumes_max: LAYERED_VOLUMES_MAX, capacity_bytes, ..self } } else { self }
    }

    /// Whether it has been given room for these.
    pub(crate) fn is_layered(&self) -> bool {
        self.volumes_max == LAYERED_VOLUMES_MAX
    }

    /// Some places of extents refuse writes, and there are enough others.
    pub(crate) fn with_refusing_places(self, rng: &mut Rng) -> Plan {
        let mut pick = |most| (0..most).fold(0, |bits, _| bits | 1 << rng.below(20));
        let (refusing, refusing_maps) = (pick(6), pick(4));
        let capacity_bytes = self.capacity_bytes.max((self.shards as u64 * 30 + 2) << 22);
        Plan { capacity_bytes, refusing, refusing_maps, ..self }
    }

    /// Whether the capacity device fails now and then, so that what is asked of the pool may have to be asked again.
    pub(crate) fn refuses(&self) -> bool {
        self.refusing | self.refusing_maps | self.forgets != 0
    }

    /// The capacity device, some of whose places refuse writes.
    fn refusing(&self, capacity: Arc<dyn BlockDevice>) -> Result<Arc<dyn BlockDevice>, String> {
        if self.refusing | self.refusing_maps == 0 {
            return Ok(capacity);
        }
        let scale = 4096 / self.block_size as u64;
        let mut rules = Vec::new();
        let mut refuse = |block: u64, blocks: u64| {
            let always = ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError));
            rules.push(ErrorRule { lba: Lba(block * scale), blocks: blocks * scale, ..always });
        };
        for region in self.superblock().regions {
            for index in (0..64).filter(|index| self.refusing & 1 << index != 0) {
                refuse(region.data_start() + index * EXTENT_BLOCKS, EXTENT_BLOCKS);
            }
            for index in (0..region.extents.min(64)).filter(|index| self.refusing_maps & 1 << index != 0) {
                refuse(region.map_slot(index, 0), if index % 2 == 0 { 2 } else { 1 });
            }
        }
        let device = ErrorDevice::new("refusing", capacity, &rules, 1).map_err(|error| error.to_string())?;
        Ok(Arc::new(device))
    }

    pub(crate) fn log_path(&self) -> String {
        if self.log_number == 0 { LOG.into() } else { format!("{LOG}{}", self.log_number) }
    }

    /// Opens the log device of the pool.
    pub(crate) fn log_device(&self, reactor: &Rc<Reactor>) -> Result<LogDevice, String> {
        let path = self.log_path();
        if self.mapped {
            return Ok(LogDevice::Mapped { path, bytes: self.log_bytes, volatile_allowed: false });
        }
        Ok(LogDevice::Block(self.file(reactor, &path)?))
    }

    /// Opens one of the disks.
    pub(crate) fn file(&self, reactor: &Rc<Reactor>, path: &str) -> Result<Arc<dyn BlockDevice>, String> {
        let options = FileDeviceOptions { block_size: self.block_size, ..FileDeviceOptions::new(path) };
        let opened = FileDevice::open(reactor, path, options).map_err(|error| error.to_string())?;
        Ok(Arc::new(opened))
    }

    /// Opens the devices of the pool.
    pub(crate) fn devices(&self, reactor: &Rc<Reactor>) -> Result<PoolDevices, String> {
        let log = self.log_device(reactor)?;
        // Counted, so that destage to one that turns sees whether it is read.
        let mut capacity: Arc<dyn BlockDevice> = Arc::new(StatsDevice::new(self.file(reactor, CAPACITY)?));
        if self.forgets > 0 {
            capacity = Arc::new(ForgetfulDevice::over(capacity, self.forgets, reactor.now_ns()));
        }
        if self.flushes > 0 {
            let fails = ErrorRule::always(&[Op::Flush], Fault::Fail(Status::WriteError));
            let fails = ErrorRule { when: When::From(self.flushes), ..fails };
            let tired = ErrorDevice::new("tired", capacity, &[fails], 1).map_err(|error| error.to_string())?;
            capacity = Arc::new(tired);
        }
        // Over its cache: a place that refuses writes does so at once.
        Ok(PoolDevices { log, capacity: self.refusing(capacity)? })
    }

    /// Blocks of the volumes that are seen, in volume blocks: windows over the ends of extents and slices.
    pub(crate) fn windows(&self) -> Vec<Extent> {
        let per = 1u64 << (12 - self.block_shift);
        let half = self.window_blocks / 2;
        let mut windows = Vec::new();
        for volume in 0..self.volumes {
            for window in 0..self.windows {
                // Extent 0/1, slice 0/1, extent 1/2, slice 1/2.
                let middle = match window {
                    0 => EXTENT_BLOCKS,
                    1 => SLICE_BLOCKS,
                    2 => 2 * EXTENT_BLOCKS,
                    _ => 2 * SLICE_BLOCKS,
                };
                let start = (middle - half) * per;
                windows.push(Extent { child: volume as usize, start, blocks: self.window_blocks * per });
            }
        }
        windows
    }

    pub(crate) fn blocks(&self) -> u64 {
        (self.volumes * self.windows * self.window_blocks) << (12 - self.block_shift)
    }

    fn create_options(&self) -> CreateOptions {
        CreateOptions {
            name: "pool".into(),
            shards: Some(self.shards),
            segment_blocks: Some(self.segment_blocks),
            volumes_max: Some(self.volumes_max),
            tiny: true,
            shape: if self.bands.is_some() { Shape::Shaped } else { Shape::Hot },
            overprovision: self.bands.map(|bands| bands.overprovision),
            band_blocks: self.bands.map(|bands| bands.band_blocks),
            unit_blocks: self.bands.map(|bands| bands.unit_blocks),
            grow_to_blocks: self.bands.map(|bands| (self.capacity_bytes + bands.growth_bytes) / 4096),
            ..CreateOptions::default()
        }
    }

    /// Where everything is on the capacity device.
    pub(crate) fn superblock(&self) -> Superblock {
        let (log, capacity) = (self.log_bytes / 4096, self.capacity_bytes / 4096);
        let nobody = Identities { pool: Uuid::nil(), log: Uuid::nil(), capacity: Uuid::nil() };
        plan(log, capacity, &self.create_options(), nobody, 0).expect("pools of this plan exist").1
    }

    /// Where silent damage may begin on the capacity device of a pool of one shard: at its map pages. Of superblocks, roots
    /// and journals, damage to one copy cannot always be told from a torn write; a pool does not open without its table
    /// pages.
    pub(crate) fn damage_from(&self) -> u64 {
        let superblock = self.superblock();
        match superblock.shape {
            Shape::Hot => superblock.regions[0].map_slot(0, 0) * 4096,
            Shape::Shaped => superblock.bands.start * 4096,
        }
    }

    /// Makes the pool and its volumes.
    pub(crate) async fn create_on(self, reactor: Rc<Reactor>, devices: PoolDevices) -> Result<(), String> {
        let made = Pool::create(&reactor, &devices, &self.create_options(), 0, false).await;
        made.map_err(|error| error.to_string())?;
        let pool = self.open(&reactor, devices).await?;
        for volume in 0..self.volumes {
            let blocks = 3 * SLICE_BLOCKS;
            let made = pool.create_volume(&reactor, &format!("v{volume}"), blocks, self.block_shift, 0).await;
            made.map_err(|error| error.to_string())?;
        }
        pool.close(&reactor).await;
        Ok(())
    }

    /// Checks the closed pool with everything that can be looked at, and finds nothing.
    pub(crate) async fn check_closed(&self, reactor: &Rc<Reactor>, sim: &Handle) {
        let devices = self.devices(reactor).expect("the devices are there");
        let options = CheckOptions { payloads: true, data: true, repair: false };
        let report = crashed::check(reactor, &devices, options).await;
        let wrong =
            report.as_ref().map_or(None, |report| report.findings.iter().find(|one| one.severity > Severity::Note));
        sim.expect(wrong.is_none() && report.is_ok(), || {
            format!("a check of the closed pool finds: {wrong:?} {:?}", report.as_ref().err())
        });
    }

    /// Some operations of its disks take long from now on, or none.
    pub(crate) fn slow_down(&self, world: &mut World, rng: &mut Rng, node: NodeId) {
        let log = (!self.mapped).then(|| self.log_path());
        for path in [Some(CAPACITY.to_string()), log].into_iter().flatten() {
            let slow = if rng.one_in(3) { 0 } else { rng.between(2, 40) };
            world.set_disk_faults(node, &path, DiskFaults { slow, ..DiskFaults::default() });
        }
    }

    pub(crate) async fn open(&self, reactor: &Rc<Reactor>, devices: PoolDevices) -> Result<Arc<Pool>, String> {
        let tuning = ShardTuning {
            idle_ns: self.idle_ns,
            destage_depth: Some(self.depth),
            bypass_bytes_min: self.bypass_bytes,
            bypass_run_bytes: self.bypass_bytes as u64,
            evacuates: self.evacuates,
            marks: self.marks,
            // By what is chosen anyway, so that the rest of a seed's plan stays as it is.
            lends: Some(self.idle_ns.is_multiple_of(2)),
            // An extent has some at most.
            old_blocks_min: 1,
            used_bands: self.bands.and_then(|bands| bands.used_bands),
            turns: self.idle_ns.is_multiple_of(3).then_some(true),
            reinsertion_percent: Some([0, 100, 100, 100, 400][(self.idle_ns % 5) as usize]),
            reinsertion_count: Some(1 + (self.idle_ns % 2) as u32),
            defect: self.defect,
            // Fewer pages than there are extents, so that reads miss them; otherwise more.
            map_cache_bytes_min: if self.small_cache { 0 } else { ShardTuning::default().map_cache_bytes_min },
            ..ShardTuning::default()
        };
        let options = OpenOptions {
            reactors: (0..self.reactors).collect(),
            map_cache_bytes: self.small_cache.then_some(0),
            reinsertion_percent: None,
            tuning: Some(tuning),
        };
        let before = epoch(reactor, &devices).await;
        let pool = Pool::open(reactor, &devices, &options).await.map_err(|error| error.to_string())?;
        if let (Some(before), Some(after)) = (before, epoch(reactor, &devices).await)
            && before >= after
        {
            return Err(format!(
                "I5: the epoch was {before}, and is {after} after an opening: records of two may meet"
            ));
        }
        Ok(pool)
    }
}

/// Destages everything, again after a pause as long as that fails and `go_on` says so: what a device refuses is given up
/// after a while.
pub(crate) async fn settle_patiently(
    pool: &Pool,
    reactor: &Rc<Reactor>,
    pause_ns: u64,
    mut go_on: impl FnMut() -> bool,
) -> Result<(), PoolError> {
    let mut settled = pool.settle(reactor).await;
    while settled.is_err() && go_on() {
        reactor.sleep_ns(pause_ns).await;
        settled = pool.settle(reactor).await;
    }
    settled
}

/// Destages everything. Places that refuse writes are given up one after the other.
pub(crate) async fn settle(
    plan: Plan,
    pool: &Pool,
    reactor: &Rc<Reactor>,
    go_on: impl Fn() -> bool,
) -> Result<(), PoolError> {
    settle_patiently(pool, reactor, SECOND_NS / 4, || plan.refuses() && go_on()).await
}

/// What a mutation breaks in the engine.
pub(crate) fn defect_of(mutation: Option<Mutation>) -> Option<Defect> {
    match mutation? {
        Mutation::OverwriteUnmerged => Some(Defect::OverwriteUnmerged),
        Mutation::ReleaseEarly => Some(Defect::ReleaseEarly),
        Mutation::ForgetTrims => Some(Defect::ForgetTrims),
        Mutation::TailPastDirty => Some(Defect::TailPastDirty),
        Mutation::MoveEarly => Some(Defect::MoveEarly),
        Mutation::SummaryEarly => Some(Defect::SummaryEarly),
        Mutation::KeepEpoch => Some(Defect::KeepEpoch),
        Mutation::LeakExtents => Some(Defect::LeakExtents),
        Mutation::KeepMappings => Some(Defect::KeepMappings),
        Mutation::SkipVerify => Some(Defect::SkipVerify),
        Mutation::OverlapBands => Some(Defect::OverlapBands),
        Mutation::NoReserve => Some(Defect::NoReserve),
        Mutation::SkipJournal => Some(Defect::SkipJournal),
        Mutation::RetireEarly => Some(Defect::RetireEarly),
        Mutation::SkipShadow => Some(Defect::SkipShadow),
        Mutation::ForgetEnd => Some(Defect::ForgetEnd),
        Mutation::EvacuateEarly => Some(Defect::EvacuateEarly),
        Mutation::ForgetLive => Some(Defect::ForgetLive),
        Mutation::DropLogged => Some(Defect::DropLogged),
        Mutation::ForgetYoung => Some(Defect::ForgetYoung),
        Mutation::ReinsertOld => Some(Defect::ReinsertOld),
        Mutation::FreeEarly => Some(Defect::FreeEarly),
        Mutation::TrustFlushes => Some(Defect::TrustFlushes),
        Mutation::SkipReset => Some(Defect::SkipReset),
        Mutation::SkipFinish => Some(Defect::SkipFinish),
        Mutation::WaitForEver => Some(Defect::WaitForEver),
        Mutation::ForgetBetween => Some(Defect::ForgetBetween),
        Mutation::WriteFrozen => Some(Defect::WriteFrozen),
        Mutation::AbsorbExtents => Some(Defect::AbsorbExtents),
        Mutation::ForgetOwn => Some(Defect::ForgetOwn),
        Mutation::FreezeEarly => Some(Defect::FreezeEarly),
        Mutation::FlattenHalf => Some(Defect::FlattenHalf),
        Mutation::RollBackApart => Some(Defect::RollBackApart),
        Mutation::HideEarly => Some(Defect::HideEarly),
        Mutation::RestForGood => Some(Defect::RestForGood),
        Mutation::OneVersion => Some(Defect::OneVersion),
        Mutation::TrustVersion => Some(Defect::TrustVersion),
        Mutation::SkipHeaders => Some(Defect::SkipHeaders),
        Mutation::SkipShadowScrub => Some(Defect::SkipShadowScrub),
        Mutation::RepairUnwritten => Some(Defect::RepairUnwritten),
        Mutation::MiscountWrites => Some(Defect::MiscountWrites),
        Mutation::MiscountBand => Some(Defect::MiscountBand),
        Mutation::PlaceTwice => Some(Defect::PlaceTwice),
        _ => None,
    }
}

/// The epoch that the capacity device's superblock states, if it can be read.
async fn epoch(reactor: &Rc<Reactor>, devices: &PoolDevices) -> Option<u32> {
    let channel = devices.capacity.open_channel(reactor).ok()?;
    let found = read_superblocks(reactor, channel, devices.capacity.info()).await;
    found.ok().map(|superblock| superblock.epoch)
}

/// The windows, with the pool that is under them.
pub(crate) fn view(plan: &Plan, pool: &Arc<Pool>) -> Result<Arc<dyn BlockDevice>, String> {
    view_of(plan, pool, "")
}

/// The windows of what the volumes' names followed by `suffix` name.
pub(crate) fn view_of(plan: &Plan, pool: &Arc<Pool>, suffix: &str) -> Result<Arc<dyn BlockDevice>, String> {
    let volumes = (0..plan.volumes).map(|volume| {
        let name = format!("v{volume}{suffix}");
        let found = pool.volume(&name);
        found.map(|volume| volume as Arc<dyn BlockDevice>).ok_or(format!("volume {name} is missing"))
    });
    let volumes = volumes.collect::<Result<Vec<_>, String>>()?;
    let device = LinearDevice::new("windows", volumes, plan.windows()).map_err(|error| error.to_string())?;
    Ok(Arc::new(device))
}

/// The pool that was opened last.
pub(crate) type OpenedPool = Rc<RefCell<Option<Arc<Pool>>>>;

/// Opens the pool, leaves it in `slot` and returns its windows.
pub(crate) fn opening(plan: Plan, slot: OpenedPool) -> impl Fn(Rc<Reactor>) -> Opening {
    move |reactor| {
        let slot = slot.clone();
        Box::pin(async move {
            let devices = plan.devices(&reactor)?;
            let pool = plan.open(&reactor, devices).await?;
            slot.replace(Some(pool.clone()));
            view(&plan, &pool)
        })
    }
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let plan = Plan::pick(&mut run.rng);
    run_with(run, plan)
}

/// The same with a shaped pool.
pub(crate) fn run_shaped(run: &mut Run) -> Result<(), Failure> {
    let plan = Plan::pick(&mut run.rng).shaped(&mut run.rng);
    let defect = defect_of(run.world.handle().mutation());
    run_with(run, Plan { defect, ..plan })
}

fn run_with(run: &mut Run, mut plan: Plan) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let mutation = world.handle().mutation();
    if plan.bands.is_some() {
        // Extents have no places of their own.
    } else if rng.one_in(4) || mutation == Some(Mutation::MoveEarly) {
        plan = plan.with_refusing_places(rng);
        plan.defect = (mutation == Some(Mutation::MoveEarly)).then_some(Defect::MoveEarly);
    }
    // Of a number that is drawn anyway.
    plan.evacuates = plan.idle_ns.is_multiple_of(4);
    if mutation == Some(Mutation::EvacuateEarly) {
        (plan.evacuates, plan.defect) = (true, Some(Defect::EvacuateEarly));
    }
    if plan.idle_ns % 7 == 3 || mutation == Some(Mutation::TrustFlushes) {
        plan.forgets = 4 + plan.idle_ns % 5;
    }
    if mutation == Some(Mutation::TrustFlushes) {
        plan.defect = Some(Defect::TrustFlushes);
    }
    world.handle().note(format!("{plan:?}"));
    let mut mix = Mix {
        block_bytes: 1 << plan.block_shift,
        discards: rng.one_in(2),
        blocks_max: rng.between(1, 16),
        always_durable: true,
        ..Mix::pick(rng, 1 << plan.block_shift)
    };
    let node = world.add_node();
    create(world, rng, Plan { forgets: 0, ..plan }, node)?;
    // Parts of blocks over a damaged one cannot be told from it any more, so that not even a new write makes it whole.
    let faults = if plan.block_shift == 12 && plan.shards == 1 && rng.one_in(2) {
        Some(DiskFaults { damage_from: plan.damage_from(), ..DiskFaults::swarm_silent(rng) })
    } else if rng.one_in(3) {
        // A write or a flush that fails costs nothing that was written before.
        mix.reads_may_fail = false;
        Some(DiskFaults { read_error: 0, latent_error: 0, ..DiskFaults::swarm_loud(rng) })
    } else {
        None
    };
    // One kind of failing flushes at a time: one that fails below is for ever.
    if let Some(faults) = faults.filter(|_| plan.forgets == 0) {
        mix.errors_allowed = true;
        world.set_disk_faults(node, CAPACITY, faults);
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    let judge = Judge::new(world.handle(), node, mix.clone(), plan.blocks() << plan.block_shift);
    // The pool as opened last, for what is done beside the work.
    let opened = OpenedPool::default();
    let open = opening(plan, opened.clone());
    let settles = rng.one_in(2);
    let (to_close, last) = (opened.clone(), judge.clone());
    let close = move |reactor: Rc<Reactor>, _: Arc<dyn BlockDevice>| -> Working {
        let (pool, judge) = (to_close.borrow_mut().take(), last.clone());
        Box::pin(async move {
            if let Some(pool) = pool {
                crashed::audit_places(&judge, &reactor, &pool).await;
                pool.close(&reactor).await;
            }
        })
    };
    let (handle, audited, audit_after_ns) = (world.handle(), judge.clone(), plan.idle_ns % 10_000_000);
    let beside = move |reactor: Rc<Reactor>, _: Arc<dyn BlockDevice>| -> Working {
        let (pool, handle, judge) = (opened.borrow().clone(), handle.clone(), audited.clone());
        Box::pin(async move {
            let Some(pool) = pool else { return };
            if plan.bands.is_some() {
                reactor.sleep_ns(audit_after_ns).await;
                crashed::audit_places(&judge, &reactor, &pool).await;
            }
            if settles {
                // It may fail with the disks; the next one goes on.
                let _ = settle(plan, &pool, &reactor, || handle.alive(node)).await;
            }
        })
    };
    let rig = Rig {
        judge,
        node,
        reactors: Rc::new(Cell::new(plan.reactors)),
        // Places are not given up at once.
        life: if !plan.refuses() { SHORT } else { Life { ns: 4 * SECOND_NS, writes: 600 } },
        open: Box::new(open),
        beside: Box::new(beside),
        close: Box::new(close),
    };
    for round in 0..rng.between(1, 5) {
        world.handle().note(format!("round {round}"));
        rig.round(world, rng)?;
    }
    rig.finish(world)
}

fn disk_options(rng: &mut Rng, plan: Plan, bytes: u64) -> DiskOptions {
    DiskOptions { bytes, unit: plan.block_size, volatile_cache: !rng.one_in(4), ..DiskOptions::default() }
}

/// Makes the disk of a log that needs one; persistent memory comes about when it is mapped.
pub(crate) fn add_log(world: &mut World, rng: &mut Rng, plan: Plan, node: NodeId) {
    if !plan.mapped {
        let options = disk_options(rng, plan, plan.log_bytes);
        world.add_disk(node, &plan.log_path(), options, DiskFaults::default());
    }
}

/// Makes the disks, the pool and its volumes, on hardware that does not fail yet.
pub(crate) fn create(world: &mut World, rng: &mut Rng, plan: Plan, node: NodeId) -> Result<(), Failure> {
    add_log(world, rng, plan, node);
    // No draw of its own: seeds that have found something stay as they are.
    let rotates = plan.idle_ns % 3 == 1;
    let options = DiskOptions { rotates, ..disk_options(rng, plan, plan.capacity_bytes) };
    world.add_disk(node, CAPACITY, options, DiskFaults::default());
    make(world, node, plan, move |reactor| Box::pin(async move { plan.devices(&reactor) }))
}

/// The devices of a pool, when they have been opened.
pub(crate) type Devices = Pin<Box<dyn Future<Output = Result<PoolDevices, String>>>>;

/// Makes the pool and its volumes on devices that are opened to be made themselves; then the process ends.
pub(crate) fn make(
    world: &mut World,
    node: NodeId,
    plan: Plan,
    devices: impl Fn(Rc<Reactor>) -> Devices,
) -> Result<(), Failure> {
    let opening = |reactor: Rc<Reactor>| -> Opening {
        let devices = devices(reactor.clone());
        Box::pin(async move {
            plan.create_on(reactor, devices.await?).await?;
            let nothing = bdev::NullDevice::new("made", 512, 1, false).map_err(|error| error.to_string())?;
            Ok(Arc::new(nothing) as Arc<dyn BlockDevice>)
        })
    };
    let made = start(world, node, plan.reactors, opening, 60 * SECOND_NS)?;
    if !matches!(made, Some(Ok(_))) {
        return Err(Failure::new(format!("the pool cannot be made: {:?}", made.map(|made| made.err()))));
    }
    drop(made);
    world.crash(node, sim::Crash::Kill);
    Ok(())
}
