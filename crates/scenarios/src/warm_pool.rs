//! `warm-pool`: a hot pool over a flash cache over slow disks, one after the other or as a stripe, on a node that is killed and loses power. Flash rots, lies, fails, does
//! not answer, is away for a life and comes back, or is put back to what it was before; the disks may fail, too. What is acknowledged
//! is durable and nothing stale is read, by volumes, snapshots and clones alike; flash's failures are nobody's errors, and nobody
//! waits for it for long. In no 24 hours more is written to flash than the budget allows. What has been read of a volume, its clones
//! find in the cache. Now and then the disks have become larger, and the cache and the pool grow, and stay so.

use crate::Run;
use crate::blocks::{Judge, Mix};
use crate::crashed;
use crate::crashes::{Life, Opening, Rig, SECOND_NS, SHORT, Working, any_crash, live};
use crate::flash_cache::{Meter, Metered, defect, read_all, write_all};
use crate::ground::Ground;
use crate::hot_pool::{self, OpenedPool, Plan, add_log};
use crate::sides::{self, Side, Sides, read_cells};
use base::Rng;
use bdev::flash_cache::{FlashCacheDefect, Mode};
use bdev::{
    BlockDevice, Extent, FlashCacheDevice, FlashCacheOptions, Io, Lba, LinearDevice, Op, StatsDevice, StripeDevice,
};
use engine::{CheckOptions, Defect, Pool, PoolDevices, PoolError};
use reactor::{Reactor, SgList};
use sim::oracle::fill_cell;
use sim::{Crash, DiskFaults, Failure, Mutation, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const FLASH: &str = "/flash";
const BLOCK: u64 = 4096;
/// Of the slow disks together, for what the cache notes there.
const NOTES_BYTES: u64 = 8 << 20;
/// Bytes of a segment of flash.
const SEGMENT_BYTES: u64 = 16 * BLOCK;
/// A life in which flash that does not answer is noticed.
const LONG: Life = Life { ns: 6 * SECOND_NS, writes: 2_000 };
/// The longest that a read may take while the disks work, whatever flash does: it may need map pages of several layers.
const READ_MAX_NS: u64 = 3 * SECOND_NS;
/// The same of what brings the cache to rest, which waits for writes of flash.
const SETTLE_MAX_NS: u64 = 15 * SECOND_NS;
/// Blocks of the volume of which there is a clone in the end.
const SHARED_BLOCKS: u64 = 24;
/// Times that these are read at most, until all of them are in the cache.
const READINGS_MAX: u64 = 40;
/// Times that the disks become larger, at most: a superblock has room for so many regions.
const GROWTHS_MAX: u64 = 3;
const EXTENT_BYTES: u64 = 4 << 20;

/// What is below the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shelf {
    disks: u64,
    /// One after the other, and not as a stripe.
    in_a_row: bool,
    chunk_bytes: u64,
    disk_bytes: u64,
    flash_bytes: u64,
    region_bytes: u64,
    /// Bytes a day; ample unless there is something to say of it.
    write_budget: u64,
    is_ample: bool,
    /// Flash is away at some openings.
    is_away: bool,
    /// Flash is put back to what it was, at some openings.
    goes_back: bool,
    defect: Option<FlashCacheDefect>,
}

impl Shelf {
    /// Of each disk and of flash, the path and the bytes.
    pub(crate) fn disks(&self) -> Vec<(String, u64)> {
        let slow = (0..self.disks).map(|number| (disk_path(number), self.disk_bytes));
        slow.chain([(FLASH.to_string(), self.flash_bytes)]).collect()
    }

    /// Whether flash is, and which of it: there is one.
    pub(crate) fn away_for_a_life(&self, rng: &mut Rng) -> Option<u64> {
        (self.is_away && rng.one_in(3)).then_some(0)
    }

    /// Makes the slow disks below a cache larger by so many bytes in all. Of disks in a row the last one, behind which nothing is.
    async fn enlarge(&self, reactor: &Rc<Reactor>, cache: &FlashCacheDevice, bytes: u64) -> Result<(), String> {
        let slow = cache.children().swap_remove(0);
        let disks = if self.disks == 1 { vec![slow] } else { slow.children() };
        let grows = if self.in_a_row { &disks[disks.len() - 1..] } else { &disks[..] };
        let more = (bytes / grows.len() as u64).next_multiple_of(self.chunk_bytes);
        for disk in grows {
            let info = disk.info();
            let resized = disk.resize(reactor, (info.bytes() + more) / info.block_size as u64).await;
            resized.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn slow(&self, plan: &Plan, reactor: &Rc<Reactor>) -> Result<Arc<dyn BlockDevice>, String> {
        let disk = |number| {
            // Counted, so that destage sees which of them are read.
            let disk = StatsDevice::new(plan.file(reactor, &disk_path(number))?);
            Ok::<Arc<dyn BlockDevice>, String>(Arc::new(disk))
        };
        let mut disks = (0..self.disks).map(disk).collect::<Result<Vec<_>, String>>()?;
        if disks.len() == 1 {
            return Ok(disks.remove(0));
        }
        if self.in_a_row {
            let extent =
                |(child, disk): (usize, &Arc<dyn BlockDevice>)| Extent { child, start: 0, blocks: disk.info().blocks };
            let extents = disks.iter().enumerate().map(extent).collect();
            let row = LinearDevice::new("row", disks, extents).map_err(|error| error.to_string())?;
            return Ok(Arc::new(row));
        }
        let chunk_blocks = (self.chunk_bytes / plan.block_size as u64) as u32;
        let stripe = StripeDevice::new("stripe", disks, chunk_blocks).map_err(|error| error.to_string())?;
        Ok(Arc::new(stripe))
    }

    /// Opens the cache over the disks, and makes it first if it has not been made.
    pub(crate) async fn open(
        &self,
        plan: &Plan,
        reactor: &Rc<Reactor>,
        flash: Option<Arc<dyn BlockDevice>>,
    ) -> Result<Arc<FlashCacheDevice>, String> {
        let options = FlashCacheOptions {
            create: true,
            without_cache: true,
            write_budget: self.write_budget,
            segment_bytes: SEGMENT_BYTES,
            region_bytes: self.region_bytes,
            loads_after_ns: (self.flash_bytes / BLOCK).is_multiple_of(2).then_some(self.flash_bytes),
            defect: self.defect,
            ..FlashCacheOptions::default()
        };
        let cache = FlashCacheDevice::open(reactor, "cache", self.slow(plan, reactor)?, flash, &options).await;
        Ok(Arc::new(cache.map_err(|error| error.to_string())?))
    }
}

/// What outlives the processes.
#[derive(Clone)]
struct Stage {
    plan: Plan,
    shelf: Shelf,
    judge: Judge,
    reactors: Rc<Cell<usize>>,
    /// The disks below may fail.
    slow_fails: bool,
    /// Nothing happens to flash any more.
    calm: Rc<Cell<bool>>,
    meter: Meter,
    /// Flash is there and cannot be used: its label has rotted.
    is_useless: Rc<Cell<bool>>,
    /// What flash was.
    old: Rc<RefCell<Option<Vec<u8>>>>,
    sides: Rc<RefCell<Sides>>,
    pool: OpenedPool,
    cache: Rc<RefCell<Option<Arc<FlashCacheDevice>>>>,
    growths: Rc<Cell<u64>>,
    /// Extents that the pool has had for certain.
    extents: Rc<Cell<u64>>,
}

fn disk_path(number: u64) -> String {
    format!("/slow{number}")
}

pub(crate) fn pick(rng: &mut Rng) -> (Plan, Shelf) {
    let plan = Plan::pick(rng);
    // Few segments of the log, so that what is read lies on the disks; room for every extent of every layer.
    let segments = rng.between(6, 9) * plan.shards as u64;
    let plan = Plan {
        log_bytes: (16 + segments * plan.segment_blocks as u64) * BLOCK,
        idle_ns: rng.between(50_000, 5_000_000),
        ..plan.layered_if(true, 60)
    };
    let shelf = pick_for(rng, &plan);
    (plan, shelf)
}

/// What may be below such a pool, with nothing broken.
pub(crate) fn pick_for(rng: &mut Rng, plan: &Plan) -> Shelf {
    let disks = rng.between(1, 4);
    let chunk_bytes = BLOCK << rng.below(6);
    let is_ample = rng.one_in(2);
    Shelf {
        disks,
        in_a_row: rng.one_in(2),
        chunk_bytes,
        disk_bytes: ((plan.capacity_bytes + NOTES_BYTES) / disks).next_multiple_of(chunk_bytes),
        flash_bytes: SEGMENT_BYTES * rng.between(9, 40) + BLOCK * rng.below(16),
        region_bytes: BLOCK * rng.between(8, 512),
        write_budget: if is_ample { 1 << rng.between(50, 60) } else { SEGMENT_BYTES * rng.between(45, 200) },
        is_ample,
        is_away: rng.one_in(3),
        goes_back: rng.one_in(3),
        defect: None,
    }
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let (plan, shelf) = pick(rng);
    // Of the others that flash knows as well, flash alone does it.
    let skips = (world.handle().mutation() == Some(Mutation::SkipJournal)).then_some(Defect::SkipJournal);
    let plan = Plan { defect: skips, ..plan };
    world.handle().note(format!("{shelf:?} {plan:?}"));
    let slow_fails = rng.one_in(3);
    let mix = Mix {
        block_bytes: 1 << plan.block_shift,
        discards: rng.one_in(2),
        blocks_max: rng.between(1, 16),
        always_durable: true,
        // A write that fails costs nothing that was written before.
        errors_allowed: slow_fails,
        reads_may_fail: false,
        ..Mix::pick(rng, 1 << plan.block_shift)
    };
    let node = world.add_node();
    let judge = Judge::new(world.handle(), node, mix, plan.blocks() << plan.block_shift);
    let reactors = Rc::new(Cell::new(plan.reactors));
    let stage = Stage {
        plan,
        shelf,
        judge: judge.clone(),
        reactors: reactors.clone(),
        slow_fails,
        calm: Rc::new(Cell::new(true)),
        meter: Meter::default(),
        is_useless: Rc::default(),
        old: Rc::default(),
        sides: Rc::default(),
        pool: OpenedPool::default(),
        cache: Rc::default(),
        growths: Rc::default(),
        extents: Rc::default(),
    };
    stage.create(world, rng)?;
    stage.calm.set(false);
    let life = stage.break_hardware(world, rng);
    world.set_schedule(ScheduleFaults::swarm(rng));
    let stage = Stage { shelf: Shelf { defect: defect(&world.handle()), ..shelf }, ..stage };
    let (opener, worker, closer) = (stage.clone(), stage.clone(), stage.clone());
    let rig = Rig {
        judge,
        node,
        reactors: reactors.clone(),
        life,
        open: Box::new(move |reactor| -> Opening { Box::pin(opener.clone().open(reactor)) }),
        beside: Box::new(move |reactor, device| -> Working { Box::pin(worker.clone().beside(reactor, device)) }),
        close: Box::new(move |reactor, _| -> Working { Box::pin(closer.clone().close(reactor)) }),
    };
    for round in 0..rng.between(1, 5) {
        reactors.set(rng.between(1, 3) as usize);
        world.handle().note(format!("round {round} on {} reactors", reactors.get()));
        rig.round(world, rng)?;
    }
    stage.calm.set(true);
    rig.finish(world)?;
    world.crash(node, Crash::Kill);
    if stage.is_useless.get() {
        let last = stage.clone();
        live(world, node, 1, "flash to be replaced", 60 * SECOND_NS, |reactor| last.replace_flash(reactor))?;
        world.crash(node, Crash::Kill);
    }
    let last = stage.clone();
    live(world, node, reactors.get(), "a clone to be read", 120 * SECOND_NS, |reactor| last.share(reactor))?;
    world.crash(node, any_crash(rng));
    let (most, _) = stage.meter.judge();
    let used = most as f64 / shelf.write_budget as f64;
    world
        .handle()
        .expect(used <= 1.05, || format!("{most} bytes written to flash in 24 hours, {used:.3} of the budget"));
    let last = stage.clone();
    live(world, node, 1, "the closed pool to be checked", 60 * SECOND_NS, |reactor| last.check_closed(reactor))
}

impl Stage {
    // --- devices ----------------------------------------------------------------------------------------------------

    /// Flash, if it is there: it may be what it was long before.
    async fn flash(&self, reactor: &Rc<Reactor>, rng: &mut Rng) -> Result<Option<Arc<dyn BlockDevice>>, String> {
        let flash = self.plan.file(reactor, FLASH)?;
        if self.calm.get() {
            return Ok(Some(self.metered(flash)));
        }
        if self.shelf.goes_back && rng.one_in(3) {
            let copy = reactor.timeout(SECOND_NS, read_all(reactor, &flash)).await.flatten();
            if let Some(copy) = copy {
                self.old.replace(Some(copy));
            }
        } else if self.shelf.goes_back && rng.one_in(3) {
            let copy = self.old.take();
            if let Some(copy) = copy {
                self.judge.sim.note("flash is what it was before");
                reactor.timeout(SECOND_NS, write_all(reactor, &flash, &copy)).await;
            }
        }
        let is_there = self.shelf.away_for_a_life(rng).is_none();
        Ok(is_there.then(|| self.metered(flash)))
    }

    /// By a drive that is blank, without a process that uses the former one.
    async fn replace_flash(self, reactor: Rc<Reactor>) {
        match self.plan.file(&reactor, FLASH) {
            Ok(flash) => write_all(&reactor, &flash, &vec![0; self.shelf.flash_bytes as usize]).await,
            Err(error) => self.judge.expect(false, || error),
        }
    }

    fn metered(&self, child: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        Arc::new(Metered { child, meter: self.meter.clone() })
    }

    async fn devices(&self, reactor: &Rc<Reactor>) -> Result<PoolDevices, String> {
        let log = self.plan.log_device(reactor)?;
        let flash = self.flash(reactor, &mut self.judge.sim.rng()).await?;
        let cache = self.shelf.open(&self.plan, reactor, flash).await?;
        self.cache.replace(Some(cache.clone()));
        Ok(PoolDevices { log, capacity: cache })
    }

    fn cache(&self) -> Option<Arc<FlashCacheDevice>> {
        self.cache.borrow().clone()
    }

    async fn open_pool(&self, reactor: &Rc<Reactor>, devices: PoolDevices) -> Result<Arc<Pool>, String> {
        Plan { reactors: self.reactors.get(), ..self.plan }.open(reactor, devices).await
    }

    async fn open(self, reactor: Rc<Reactor>) -> Result<Arc<dyn BlockDevice>, String> {
        let devices = self.devices(&reactor).await?;
        if !self.slow_fails && self.judge.sim.rng().one_in(4) {
            let rng = &mut self.judge.sim.rng();
            crashed::check_somehow(&self.judge, &self.plan, &reactor, &devices, rng).await?;
        }
        let pool = self.open_pool(&reactor, devices).await?;
        self.look_at_extents(&reactor, &pool).await;
        crashed::audit(&self.judge, &reactor, &pool).await;
        sides::look(&self.judge, &self.sides, &reactor, &pool).await?;
        self.pool.replace(Some(pool.clone()));
        hot_pool::view(&self.plan, &pool)
    }

    /// Makes the disks, the cache, the pool and its volumes, on hardware that does not fail yet.
    fn create(&self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        let (plan, node) = (self.plan, self.judge.node);
        add_log(world, rng, plan, node);
        Ground::Warm(self.shelf).add_disks(world, &plan, node, || !rng.one_in(4));
        let stage = self.clone();
        hot_pool::make(world, node, plan, move |reactor| {
            let stage = stage.clone();
            Box::pin(async move { stage.devices(&reactor).await })
        })
    }

    /// What may go wrong from now on, and how long lives are with that.
    fn break_hardware(&self, world: &mut World, rng: &mut Rng) -> Life {
        let (node, sim) = (self.judge.node, world.handle());
        if self.slow_fails {
            let disk = disk_path(rng.below(self.shelf.disks));
            let faults = DiskFaults { read_error: 0, latent_error: 0, ..DiskFaults::swarm_loud(rng) };
            world.set_disk_faults(node, &disk, faults);
        }
        let (loud, silent) = (DiskFaults::swarm_loud(rng), DiskFaults::swarm_silent(rng));
        let faults = match sim.mutation() {
            // What is not checked has to be wrong to be found.
            Some(Mutation::SkipVerify) => DiskFaults { bit_rot: 5, ..DiskFaults::default() },
            Some(Mutation::WaitForEver) => DiskFaults { stuck: 20, ..DiskFaults::default() },
            _ if rng.one_in(2) => DiskFaults {
                bit_rot: silent.bit_rot,
                lost_write: silent.lost_write,
                misdirected_write: silent.misdirected_write,
                ..loud
            },
            _ => DiskFaults::default(),
        };
        let life = if faults.stuck > 0 { LONG } else { SHORT };
        world.set_disk_faults(node, FLASH, faults);
        life
    }

    // --- work -------------------------------------------------------------------------------------------------------

    /// Snapshots and clones, reads of what is read often, and rest for the pool and the cache.
    async fn beside(self, reactor: Rc<Reactor>, device: Arc<dyn BlockDevice>) {
        let (Some(pool), Some(cache)) = (self.pool.borrow().clone(), self.cache()) else { return };
        let rng = &mut self.judge.sim.rng();
        let side = (!self.slow_fails && rng.one_in(2)).then(|| {
            let (judge, sides) = (self.judge.clone(), self.sides.clone());
            let side = Side { pool: pool.clone(), judge, sides, rng: rng.fork(), layered: true };
            reactor.spawn_join(side.work(reactor.clone(), rng.between(0, 30)))
        });
        let Ok(channel) = device.open_channel(&reactor) else { return };
        let blocks = self.judge.blocks();
        let hot = rng.between(2, 24).min(blocks / 2);
        let first = rng.below(blocks - hot + 1);
        for _ in 0..rng.between(20, 200) {
            let lba = first + rng.below(hot);
            let read = reactor.timeout(READ_MAX_NS, self.judge.read(&reactor, &channel, rng, lba, 1)).await;
            self.judge.expect(read.is_some() || self.slow_fails, || format!("a read of {lba} waits for flash"));
            match rng.below(40) {
                0 => {
                    let settled = pool.settle(&reactor).await;
                    self.judge.expect(settled.is_ok() || self.slow_fails, || format!("settling failed: {settled:?}"));
                }
                1 => self.settle_cache(&reactor, &cache).await,
                2 => crashed::audit(&self.judge, &reactor, &pool).await,
                3 => self.grow(&reactor, &pool, &cache, rng).await,
                _ => {}
            }
        }
        if let Some(side) = side {
            side.await;
        }
        let status = cache.status(reactor.now_ns());
        self.judge.sim.note(format!(
            "{} hits, {} blocks cached, flash is {}",
            status.counts.hits,
            status.cached_blocks,
            status.mode.name()
        ));
    }

    /// The disks become larger, or have become so before; what lies over them grows.
    async fn grow(&self, reactor: &Rc<Reactor>, pool: &Pool, cache: &FlashCacheDevice, rng: &mut Rng) {
        let grows = self.growths.get() < GROWTHS_MAX && rng.one_in(2);
        if grows {
            self.growths.set(self.growths.get() + 1);
            let bytes = self.plan.shards as u64 * rng.between(1, 2) * EXTENT_BYTES + (4 << 20);
            let enlarged = self.shelf.enlarge(reactor, cache, bytes).await;
            self.judge.expect(enlarged.is_ok(), || format!("the disks do not grow: {enlarged:?}"));
        }
        let (before, refreshed) = (cache.info().blocks, cache.refresh(reactor).await);
        self.judge.expect(refreshed.is_ok() || self.slow_fails, || format!("the cache does not grow: {refreshed:?}"));
        let has_room = refreshed.is_ok_and(|info| grows && info.blocks > before);
        let grown = pool.grow(reactor).await;
        self.judge.sim.note(format!("the pool grows: {grown:?}"));
        // There may be nothing to grow by.
        let is_refused = matches!(grown, Err(PoolError::Plan { .. })) && !has_room;
        self.judge
            .expect(grown.is_ok() || is_refused || self.slow_fails, || format!("the pool does not grow: {grown:?}"));
        self.look_at_extents(reactor, pool).await;
    }

    /// What the pool has grown by it keeps.
    async fn look_at_extents(&self, reactor: &Rc<Reactor>, pool: &Pool) {
        let shards = pool.status(reactor).await.shards;
        let (extents, before) = (shards.iter().map(|shard| shard.extents as u64).sum(), self.extents.get());
        self.judge.expect(extents >= before, || format!("the pool has {extents} extents and had {before} once"));
        if self.judge.sim.alive(self.judge.node) {
            self.extents.set(extents);
        }
    }

    /// Brings the cache to rest, in the midst of everything.
    async fn settle_cache(&self, reactor: &Rc<Reactor>, cache: &FlashCacheDevice) {
        let settled = reactor.timeout(SETTLE_MAX_NS, cache.settle(reactor)).await;
        self.judge.expect(settled.is_some() || self.slow_fails, || "the cache's rest waits for flash".to_string());
    }

    async fn close(self, reactor: Rc<Reactor>) {
        let pool = self.pool.borrow_mut().take();
        let Some(pool) = pool else { return };
        let looked = sides::look(&self.judge, &self.sides, &reactor, &pool).await;
        self.judge.expect(looked.is_ok(), || format!("in the end: {looked:?}"));
        let ended = self.write_base(&reactor, &pool).await;
        self.judge.expect(ended.is_ok(), || format!("without faults: {ended:?}"));
        crashed::audit(&self.judge, &reactor, &pool).await;
        pool.close(&reactor).await;
        let cache = self.cache.borrow_mut().take();
        if let Some(cache) = cache {
            self.is_useless.set(cache.status(reactor.now_ns()).mode == Mode::Absent);
            self.settle_cache(&reactor, &cache).await;
        }
    }

    /// A volume whose blocks lie on the disks alone when the pool is opened again.
    async fn write_base(&self, reactor: &Rc<Reactor>, pool: &Pool) -> Result<(), String> {
        let made = pool.create_volume(reactor, "base", 2 * SHARED_BLOCKS, 12, 0).await;
        let volume = made.map_err(|error| error.to_string())?;
        let channel = volume.open_channel(reactor).map_err(|error| error.to_string())?;
        for block in 0..SHARED_BLOCKS {
            let mut buf = reactor.pool().alloc(BLOCK as usize).await;
            fill_cell(buf.as_mut_slice(), block + 1, block as usize);
            let mut bufs = SgList::new();
            bufs.push(buf);
            let done = channel.submit(Io::write(Lba(block), 1, bufs)).await;
            done.status.check().map_err(|status| format!("writing the base: {status}"))?;
        }
        pool.settle(reactor).await.map_err(|error| error.to_string())
    }

    // --- a clone ----------------------------------------------------------------------------------------------------

    /// Without faults: what has been read of a volume, its clone finds in the cache.
    async fn share(self, reactor: Rc<Reactor>) {
        let ended = self.read_clone(&reactor).await;
        self.judge.expect(ended.is_ok(), || format!("a clone and its base: {ended:?}"));
    }

    async fn read_clone(&self, reactor: &Rc<Reactor>) -> Result<(), String> {
        let devices = self.devices(reactor).await?;
        let cache = self.cache().ok_or("the cache has just been opened")?;
        let pool = self.open_pool(reactor, devices).await?;
        reactor.keep(Rc::new(pool.clone()));
        let snapshot = pool.snapshot(reactor, &[("base", "shared")], 0).await;
        snapshot.map_err(|error| error.to_string())?;
        let cloned = pool.clone_volume(reactor, "base@shared", "clone", 0).await;
        cloned.map_err(|error| error.to_string())?;
        let blocks = SHARED_BLOCKS * BLOCK / self.plan.block_size as u64;
        let hits_of = |volume: &'static str| {
            let (pool, cache) = (pool.clone(), cache.clone());
            async move {
                let before = cache.status(reactor.now_ns()).counts.hits;
                read_shared(reactor, &pool, volume).await?;
                Ok::<u64, String>(cache.status(reactor.now_ns()).counts.hits - before)
            }
        };
        let mut hits = 0;
        for _ in 0..READINGS_MAX {
            hits = hits_of("base").await?;
            if hits == blocks {
                break;
            }
            // What has been let in goes to flash.
            reactor.sleep_ns(1_000_000).await;
        }
        // A block of which a part is on flash and the rest still in memory is read from the disk, where there are smaller ones.
        let is_cached = hits >= blocks / 2 || !self.shelf.is_ample;
        self.judge.expect(is_cached, || {
            format!("what is read over and over has {hits} hits of {blocks}: {:?}", cache.status(reactor.now_ns()))
        });
        let cloned = hits_of("clone").await?;
        self.judge.expect(cloned >= hits || !self.shelf.is_ample, || {
            format!("a clone has {cloned} hits where its base, which has read the same, has {hits}")
        });
        // From here on they are two: the cache must not mix them up.
        let volume = pool.volume("clone").ok_or("the clone is missing")?;
        let channel = volume.open_channel(reactor).map_err(|error| error.to_string())?;
        let trimmed = channel.submit(Io::new(Op::Unmap, Lba(0), SHARED_BLOCKS as u32)).await;
        trimmed.status.check().map_err(|status| format!("trimming a clone: {status}"))?;
        pool.settle(reactor).await.map_err(|error| error.to_string())?;
        let values = read_cells(reactor, &*volume, 0..SHARED_BLOCKS, BLOCK as usize).await?;
        self.judge.expect(values.iter().all(|value| *value == Ok(0)), || format!("the clone has {values:?}"));
        read_shared(reactor, &pool, "base").await?;
        pool.close(reactor).await;
        Ok(())
    }

    async fn check_closed(self, reactor: Rc<Reactor>) {
        let options = CheckOptions { payloads: true, data: true, repair: false };
        let checked = match self.devices(&reactor).await {
            Ok(devices) => crashed::check(&reactor, &devices, options).await,
            Err(error) => Err(error),
        };
        match checked {
            Ok(report) => crashed::judge_report(&self.judge, &self.plan, &report),
            Err(error) => self.judge.expect(false, || error),
        }
    }
}

/// Reads the blocks that a volume and its clone share, which must be what was written.
async fn read_shared(reactor: &Rc<Reactor>, pool: &Pool, volume: &str) -> Result<(), String> {
    let device = pool.volume(volume).ok_or(format!("volume {volume} is missing"))?;
    for block in 0..SHARED_BLOCKS {
        let values = read_cells(reactor, &*device, block..block + 1, BLOCK as usize).await?;
        if values != [Ok(block + 1)] {
            return Err(format!("block {block} of {volume} is {values:?}"));
        }
    }
    Ok(())
}
