//! `zoned-pool`: a shaped pool over a zoned device and a small one that is written in place, with limits of open zones, small
//! zones, zones that become read-only or go offline while nobody needs them, disks that fail, kills and power cuts. What is
//! acknowledged is durable; every write is where its zone goes on, and no zone is begun beyond the limit: the zoned device
//! refuses anything else, and one such refusal is a violation.

use crate::Run;
use crate::blocks::{Judge, Mix, is};
use crate::crashed;
use crate::crashes::{Opening, Rig, SECOND_NS, SHORT, Working};
use crate::ground::Ground;
use crate::hot_pool::{self, FRONT_BLOCKS, OpenedPool, Plan, SHADOW_FRONT_BLOCKS, add_log, defect_of};
use crate::sides::{self, Side, Sides};
use base::Rng;
use bdev::{
    BlockDevice, Delay, DelayDevice, Delays, DeviceSpec, FileDeviceOptions, ZoneBandsDefect, ZoneBandsDevice,
    ZoneBandsOptions, ZoneState, ZonedDevice, ZonedOptions,
};
use engine::PoolDevices;
use reactor::{FileZones, Reactor};
use sim::{DiskFaults, Failure, Handle, Mutation, NodeId, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const HEAD: &str = "/head";
const ZONES: &str = "/zones";
/// Zones beside those that the pool is planned for: they may go away.
const SPARE_ZONES: u64 = 6;
/// Zones that a shard writes to at a time: one for what comes from its log, one for what is moved.
const STREAMS: u32 = 2;
/// Zones that go away in a life.
const LOST_PER_LIFE: u64 = 2;

/// What the devices below the pool are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drive {
    /// Blocks of 4 KiB of a zone.
    capacity: u64,
    zones: u64,
    active_max: u32,
    open_max: u32,
    /// Operations are held up by so much at most on their way down, each by another time.
    jitter_ns: u64,
    seed: u64,
    /// Blocks of its head.
    head_blocks: u64,
    /// The zones are those of the drive itself, and not of a device over one that has none.
    is_zoned: bool,
    defect: Option<ZoneBandsDefect>,
}

impl Drive {
    /// The same with room for a shadow of the index.
    pub(crate) fn with_shadow(self) -> Drive {
        Drive { head_blocks: SHADOW_FRONT_BLOCKS, ..self }
    }

    /// The same with zones of its own.
    fn with_zones(self) -> Drive {
        Drive { is_zoned: true, ..self }
    }

    /// Zones of the drive without a pointer: where it has some, they are the head.
    fn conventional(&self) -> u64 {
        let has_some = self.is_zoned && self.seed.is_multiple_of(2);
        if has_some { (self.head_blocks * 4096 + 8192).div_ceil(self.zone_bytes()) } else { 0 }
    }

    fn zone_bytes(&self) -> u64 {
        self.capacity.next_power_of_two() * 4096
    }

    /// The zones of the disk at a path, where it has some itself, which is written in units of so many bytes.
    pub(crate) fn zones_of(&self, path: &str, write_bytes: u32) -> Option<FileZones> {
        let (bytes, capacity_bytes) = (self.zone_bytes(), self.capacity * 4096);
        let (open_max, active_max) = (self.open_max, self.active_max);
        let conventional = self.conventional();
        let zones = FileZones { bytes, capacity_bytes, write_bytes, conventional, open_max, active_max };
        (self.is_zoned && path == ZONES).then_some(zones)
    }

    /// Of both disks, the path and the bytes.
    pub(crate) fn disks(&self) -> Vec<(String, u64)> {
        if self.conventional() > 0 {
            return vec![(ZONES.into(), (self.conventional() + self.zones) * self.zone_bytes())];
        }
        if self.is_zoned {
            return vec![(HEAD.into(), self.head_blocks * 4096 + 8192), (ZONES.into(), self.zones * self.zone_bytes())];
        }
        // Behind the labels and the table of zones, which begins its data on a megabyte.
        let zones_bytes = (self.zones * (self.capacity * 4096 + 2 * 8) + (2 << 20)).next_multiple_of(4096);
        vec![(HEAD.into(), self.head_blocks * 4096 + 8192), (ZONES.into(), zones_bytes)]
    }

    pub(crate) async fn open(
        &self,
        plan: &Plan,
        reactor: &Rc<Reactor>,
        create: bool,
    ) -> Result<(Option<Arc<ZonedDevice>>, Arc<ZoneBandsDevice>), String> {
        if self.is_zoned {
            let options = FileDeviceOptions { block_size: plan.block_size, ..FileDeviceOptions::new(ZONES) };
            let built = bdev::build(reactor, "zones", &DeviceSpec::File(options), vec![]).await;
            let zones = built.map_err(|error| error.to_string())?.device();
            let head = zones.conventional();
            return Ok((None, self.bands(plan, reactor, zones, head, create).await?));
        }
        let options = ZonedOptions {
            create,
            zone_bytes: self.zone_bytes(),
            capacity_bytes: self.capacity * 4096,
            open_zones_max: self.open_max,
            active_zones_max: self.active_max,
            ..ZonedOptions::default()
        };
        let zoned = ZonedDevice::open(reactor, "zones", plan.file(reactor, ZONES)?, &options).await;
        let zoned = Arc::new(zoned.map_err(|error| error.to_string())?);
        Ok((Some(zoned.clone()), self.bands(plan, reactor, zoned, None, create).await?))
    }

    async fn bands(
        &self,
        plan: &Plan,
        reactor: &Rc<Reactor>,
        zoned: Arc<dyn BlockDevice>,
        head: Option<Arc<dyn BlockDevice>>,
        create: bool,
    ) -> Result<Arc<ZoneBandsDevice>, String> {
        let options = ZoneBandsOptions { create, force: false, defect: self.defect };
        let head = head.map_or_else(|| plan.file(reactor, HEAD), Ok)?;
        let bands = ZoneBandsDevice::open(reactor, "bands", head, zoned, &options).await;
        Ok(Arc::new(bands.map_err(|error| error.to_string())?))
    }

    /// The device, on which operations are held up.
    pub(crate) fn behind(&self, bands: Arc<ZoneBandsDevice>) -> Arc<dyn BlockDevice> {
        let delay = Delay { fixed_ns: 0, jitter_ns: self.jitter_ns };
        if self.jitter_ns == 0 {
            return bands;
        }
        let delays = Delays { read: Delay::default(), write: delay, flush: delay };
        Arc::new(DelayDevice::new("late", bands, delays, self.seed))
    }
}

/// Everything that a process opens, and what of it outlives the process for the checker.
#[derive(Clone)]
struct Scene {
    plan: Plan,
    drive: Drive,
    sim: Handle,
    node: NodeId,
    pool: OpenedPool,
    bands: Rc<RefCell<Option<Arc<ZoneBandsDevice>>>>,
    zoned: Rc<RefCell<Option<Arc<ZonedDevice>>>>,
    sides: Rc<RefCell<Sides>>,
    /// Zones that may still go away.
    to_lose: Rc<Cell<u64>>,
    rng: Rc<RefCell<Rng>>,
    /// What is looked at before an opening.
    checks: Rc<RefCell<Rng>>,
}

impl Scene {
    async fn devices(&self, reactor: &Rc<Reactor>, create: bool) -> Result<PoolDevices, String> {
        self.look();
        let log = self.plan.log_device(reactor)?;
        let (zoned, bands) = self.drive.open(&self.plan, reactor, create).await?;
        self.zoned.replace(zoned);
        self.bands.replace(Some(bands.clone()));
        Ok(PoolDevices { log, capacity: self.drive.behind(bands) })
    }

    async fn open(self, judge: Judge, reactor: Rc<Reactor>) -> Result<Arc<dyn BlockDevice>, String> {
        let devices = self.devices(&reactor, false).await?;
        // Without asking chance which pools, so that seeds that once found something keep their plans.
        let is_checked = self.plan.idle_ns % 4 > 1 && !judge.mix.errors_allowed;
        if is_checked && self.checks.borrow_mut().one_in(2) {
            let mut rng = self.checks.borrow_mut().fork();
            crashed::check_somehow(&judge, &self.plan, &reactor, &devices, &mut rng).await?;
        }
        let pool = self.plan.open(&reactor, devices).await?;
        sides::look(&judge, &self.sides, &reactor, &pool).await?;
        self.pool.replace(Some(pool.clone()));
        hot_pool::view(&self.plan, &pool)
    }

    /// Judges what the device that was opened last was asked to do.
    fn look(&self) {
        let Some(bands) = self.bands.borrow_mut().take() else { return };
        let status = bands.status();
        self.sim.expect(status.misplaced_writes == 0, || {
            format!("writes that were not where their zones go on, or one zone too many: {status:?}")
        });
    }

    /// Without faults each stream of each shard has one zone open at most.
    fn count_open(&self) {
        let Some(bands) = self.bands.borrow().clone() else { return };
        let (status, most) = (bands.status(), STREAMS as u64 * self.plan.shards as u64);
        self.sim.expect(status.open <= most, || format!("more than {most} zones are open, at rest: {status:?}"));
    }

    /// Takes away a zone: one that is empty altogether, or the writing of one that is not.
    async fn lose_one(&self, reactor: &Rc<Reactor>) {
        let zoned = self.zoned.borrow().clone();
        if self.to_lose.get() == 0 || zoned.is_none() != self.drive.is_zoned || !self.sim.alive(self.node) {
            return;
        }
        let empty: Vec<bool> = match &zoned {
            Some(zoned) => zoned.zones().iter().map(|zone| zone.state == ZoneState::Empty).collect(),
            None => self.sim.empty_zones(self.node, ZONES),
        };
        let (zone, state) = {
            let rng = &mut *self.rng.borrow_mut();
            // Not the one of the label.
            let zone = rng.between(1, empty.len() as u64 - 1);
            let is_empty = empty[zone as usize];
            (zone, if is_empty && rng.one_in(2) { ZoneState::Offline } else { ZoneState::ReadOnly })
        };
        self.to_lose.set(self.to_lose.get() - 1);
        self.sim.note(format!("zone {zone} becomes {}", state.name()));
        match zoned {
            // The disk may refuse to note it.
            Some(zoned) => drop(zoned.retire(reactor, zone, state, Duration::from_secs(1)).await),
            None => self.sim.retire_zone(self.node, ZONES, zone, state == ZoneState::Offline),
        }
    }
}

pub(crate) fn pick(rng: &mut Rng, mutation: Option<Mutation>) -> (Plan, Drive) {
    pick_for(rng, mutation, |rng| {
        let plan = Plan::pick(rng);
        // Without asking chance, so that seeds that once found something keep their plans.
        plan.layered_if(plan.idle_ns.is_multiple_of(2), 36)
    })
}

/// Zones for a pool in place, and this as one that is shaped.
pub(crate) fn pick_for(
    rng: &mut Rng,
    mutation: Option<Mutation>,
    in_place: impl FnOnce(&mut Rng) -> Plan,
) -> (Plan, Drive) {
    let unit_blocks = 1u32 << rng.below(3);
    let band_blocks = unit_blocks * rng.between(2, 6) as u32 * if unit_blocks == 1 { 4 } else { 2 };
    let plan = in_place(rng).with_bands(rng, unit_blocks, band_blocks);
    let plan = Plan { defect: defect_of(mutation), ..plan };
    let zones = (plan.capacity_bytes / 4096 - FRONT_BLOCKS).div_ceil(band_blocks as u64) + SPARE_ZONES + 1;
    let needed = STREAMS * plan.shards as u32 + 1;
    let is_limited = rng.one_in(2);
    let active_max = if is_limited { needed + rng.below(4) as u32 } else { 0 };
    // As the standard has it, a drive closes a zone that nobody opened on purpose when it wants to open another one.
    let open_max = if is_limited && rng.one_in(2) { needed } else { 0 };
    let ahead = mutation == Some(Mutation::WriteAhead);
    let jitter_ns = if rng.one_in(2) || ahead { rng.between(1_000, 300_000) } else { 0 };
    let defect = ahead.then_some(ZoneBandsDefect::WriteAhead);
    let (seed, head_blocks, capacity) = (rng.next_u64(), FRONT_BLOCKS / 4, band_blocks as u64);
    let is_zoned = false;
    (plan, Drive { capacity, zones, active_max, open_max, jitter_ns, seed, head_blocks, is_zoned, defect })
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (plan, drive) = pick(&mut run.rng, run.world.handle().mutation());
    run_on(run, plan, drive)
}

/// The same on a drive that has the zones itself.
pub(crate) fn run_drive(run: &mut Run) -> Result<(), Failure> {
    let (plan, drive) = pick(&mut run.rng, run.world.handle().mutation());
    run_on(run, plan, drive.with_zones())
}

fn run_on(run: &mut Run, plan: Plan, drive: Drive) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    world.handle().note(format!("{drive:?} {plan:?}"));
    let mut mix = Mix {
        block_bytes: 1 << plan.block_shift,
        discards: rng.one_in(2),
        blocks_max: rng.between(1, 16),
        always_durable: true,
        ..Mix::pick(rng, 1 << plan.block_shift)
    };
    let node = world.add_node();
    let scene = Scene {
        plan,
        drive,
        sim: world.handle(),
        node,
        pool: OpenedPool::default(),
        bands: Rc::default(),
        zoned: Rc::default(),
        sides: Rc::default(),
        to_lose: Rc::new(Cell::new(if rng.one_in(2) { SPARE_ZONES } else { 0 })),
        rng: Rc::new(RefCell::new(Rng::new(rng.next_u64()))),
        checks: Rc::new(RefCell::new(Rng::new(plan.idle_ns))),
    };
    create(world, rng, &scene)?;
    if rng.one_in(3) && !is(&world.handle(), Mutation::FlushDoesNothing) {
        // A write or a flush that fails costs nothing that was written before.
        (mix.reads_may_fail, mix.errors_allowed) = (false, true);
        let path = if rng.one_in(3) && drive.conventional() == 0 { HEAD } else { ZONES };
        let faults = DiskFaults { read_error: 0, latent_error: 0, ..DiskFaults::swarm_loud(rng) };
        world.set_disk_faults(node, path, faults);
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    let judge = Judge::new(world.handle(), node, mix.clone(), plan.blocks() << plan.block_shift);
    let (to_open, opening) = (scene.clone(), judge.clone());
    let open = move |reactor: Rc<Reactor>| -> Opening { Box::pin(to_open.clone().open(opening.clone(), reactor)) };
    let (beside_it, settles, pause_ns) = (scene.clone(), rng.one_in(2), rng.between(0, 5_000_000));
    let audited = judge.clone();
    let beside = move |reactor: Rc<Reactor>, _: Arc<dyn BlockDevice>| -> Working {
        let (scene, judge) = (beside_it.clone(), audited.clone());
        Box::pin(async move {
            let pool = scene.pool.borrow().clone();
            // Snapshots and clones come and go, where nothing of that may fail.
            let pool = pool.filter(|_| plan.is_layered() && !judge.mix.errors_allowed);
            let side = pool.map(|pool| {
                let (judge, sides, rng) = (judge.clone(), scene.sides.clone(), &mut judge.sim.rng());
                let side = Side { pool, judge, sides, rng: rng.fork(), layered: true };
                reactor.spawn_join(side.work(reactor.clone(), rng.between(0, 25)))
            });
            for _ in 0..LOST_PER_LIFE {
                reactor.sleep_ns(pause_ns).await;
                scene.lose_one(&reactor).await;
            }
            let pool = scene.pool.borrow().clone();
            if let Some(pool) = &pool {
                crashed::audit(&judge, &reactor, pool).await;
            }
            if let Some(pool) = pool.filter(|_| settles) {
                // It may fail with the disks; the next one goes on.
                let alive = || scene.sim.alive(scene.node);
                let _ = hot_pool::settle(scene.plan, &pool, &reactor, alive).await;
            }
            if let Some(side) = side {
                side.await;
            }
        })
    };
    let (to_close, last) = (scene.clone(), judge.clone());
    let close = move |reactor: Rc<Reactor>, _: Arc<dyn BlockDevice>| -> Working {
        let (scene, judge) = (to_close.clone(), last.clone());
        Box::pin(async move {
            // What is given up is finished soon, whether or not there is a limit.
            reactor.sleep_ns(SECOND_NS).await;
            scene.count_open();
            let pool = scene.pool.borrow_mut().take();
            if let Some(pool) = pool {
                let looked = sides::look(&judge, &scene.sides, &reactor, &pool).await;
                judge.expect(looked.is_ok(), || format!("in the end: {looked:?}"));
                crashed::audit(&judge, &reactor, &pool).await;
                pool.close(&reactor).await;
            }
            scene.look();
            scene.zoned.borrow_mut().take();
        })
    };
    let rig = Rig {
        judge,
        node,
        reactors: Rc::new(Cell::new(plan.reactors)),
        life: SHORT,
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

/// Makes the disks, the zones, the pool and its volumes, on hardware that does not fail yet.
fn create(world: &mut World, rng: &mut Rng, scene: &Scene) -> Result<(), Failure> {
    let (plan, node) = (scene.plan, scene.node);
    add_log(world, rng, plan, node);
    Ground::Zones(scene.drive).add_disks(world, &plan, node, || !rng.one_in(4));
    let scene = scene.clone();
    hot_pool::make(world, node, plan, move |reactor| {
        let scene = scene.clone();
        Box::pin(async move { scene.devices(&reactor, true).await })
    })
}
