//! `parity-pool`: a shaped pool over a parity device, one of whose members dies, or fails now and then, at any moment: under
//! load, while the device or the pool opens, in a rebuild, and its replacement too. Nobody who uses the pool notices: no
//! operation fails, what is acknowledged is durable over kills and power cuts, and nothing stale is read. In the end every
//! member is in sync, and the loss of any one of them costs nothing. Now and then the disks have become larger, and the parity
//! device and the pool grow.
//!
//! `mirror-pool` is the same of a pool of either shape over a mirror and its legs. Instead of dying, one of these may rot, and
//! lose or misdirect what is written to it. After a crash a mirror makes equal what was being written, from whichever leg it
//! reads, and can not know which of them is right: then what is read may be an error, and never wrong.

use crate::Run;
use crate::bays::{Bays, DISKS_PER_BAY, path};
use crate::blocks::{Judge, Mix};
use crate::crashed;
use crate::crashes::{Opening, Rig, SHORT, Working};
use crate::hot_pool::{self, OpenedPool, Plan, add_log};
use crate::redundant::{Array, Redundant};
use crate::sides::{self, Side, Sides};
use base::Rng;
use bdev::BlockDevice;
use engine::PoolDevices;
use reactor::Reactor;
use sim::{DiskFaults, DiskOptions, Failure, Handle, Mutation, NodeId, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Times that members are looked after in a life.
const CARES: u32 = 3;
/// Bytes a second of a scrub that does not wait.
const SCRUB_FAST: u64 = 1 << 40;

/// What goes wrong with one disk at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hardware {
    /// It dies, and is replaced.
    Dies,
    /// It fails now and then, so that reads may fail in one version and not in another.
    Fails,
    /// It has something else than what was written to it.
    Lies,
}

impl Hardware {
    fn pick(rng: &mut Rng, plan: &Plan, array: &Array) -> Hardware {
        let fails = rng.one_in(3);
        // Parts of blocks over a damaged one cannot be told from it any more.
        let may_lie = matches!(array, Array::Mirror(_)) && plan.block_shift == 12 && plan.shards == 1;
        match fails {
            true => Hardware::Fails,
            false if may_lie && rng.one_in(2) => Hardware::Lies,
            false => Hardware::Dies,
        }
    }
}

/// Everything that a process opens.
#[derive(Clone)]
struct Rack {
    plan: Plan,
    array: Array,
    bays: Rc<Bays>,
    pool: OpenedPool,
    hardware: Hardware,
    opened: Rc<RefCell<Option<Redundant>>>,
    sides: Rc<RefCell<Sides>>,
    /// Bytes of the redundant device when it was made.
    made_bytes: Rc<Cell<u64>>,
    sim: Handle,
}

impl Rack {
    async fn devices(&self, reactor: &Rc<Reactor>, create: bool) -> Result<PoolDevices, String> {
        let log = self.plan.log_device(reactor)?;
        // Before it is open: a member may die in the opening.
        self.bays.doom();
        if !self.array.swaps() {
            self.bays.replace_dead();
        }
        let members = self.bays.devices(reactor)?;
        let opened = self.array.open(reactor, members, create).await?;
        self.bays.look(&opened);
        if create {
            self.made_bytes.set(opened.info().bytes());
        }
        self.opened.replace(Some(opened.clone()));
        Ok(PoolDevices { log, capacity: opened.device() })
    }

    async fn open(self, judge: Judge, reactor: Rc<Reactor>) -> Result<Arc<dyn BlockDevice>, String> {
        let devices = self.devices(&reactor, false).await?;
        self.bays.doom();
        // What a disk cannot read, or has wrong, a check finds in one version.
        if self.hardware == Hardware::Dies && judge.sim.rng().one_in(4) {
            crashed::check_somehow(&judge, &self.plan, &reactor, &devices, &mut judge.sim.rng()).await?;
        }
        let pool = self.plan.open(&reactor, devices).await?;
        sides::look(&judge, &self.sides, &reactor, &pool).await?;
        self.pool.replace(Some(pool.clone()));
        hot_pool::view(&self.plan, &pool)
    }

    /// Members that die or are replaced never make the parity device answer with anything but what was written: a pool would
    /// take another version, and nobody else would notice.
    async fn prove_right(&self, reactor: &Rc<Reactor>) {
        let pool = self.pool.borrow().clone();
        let Some(pool) = pool.filter(|_| self.hardware == Hardware::Dies) else { return };
        let shards = pool.status(reactor).await.shards;
        let damaged: u64 = shards.iter().map(|shard| shard.rescued_blocks + shard.healed_blocks).sum();
        self.sim.expect(damaged == 0, || format!("{damaged} blocks were damaged in one version, and no disk rots"));
    }

    /// Snapshots and clones come and go beside the work.
    fn begin_side(&self, judge: &Judge, reactor: &Rc<Reactor>) -> Option<Working> {
        // Nothing of that may fail.
        let pool = self.pool.borrow().clone().filter(|_| self.plan.is_layered() && !judge.mix.errors_allowed)?;
        let rng = &mut judge.sim.rng();
        let side = Side { pool, judge: judge.clone(), sides: self.sides.clone(), rng: rng.fork(), layered: true };
        Some(Box::pin(reactor.spawn_join(side.work(reactor.clone(), rng.between(0, 25)))))
    }

    async fn audit(&self, judge: &Judge, reactor: &Rc<Reactor>) {
        let pool = self.pool.borrow().clone();
        if let Some(pool) = pool {
            crashed::audit(judge, reactor, &pool).await;
        }
    }

    /// Begins to read all versions of every block: what the member that was just taken in lacks must not be among them.
    async fn scrub(&self, reactor: &Rc<Reactor>) {
        let pool = self.pool.borrow().clone();
        if let Some(pool) = pool {
            pool.scrub(reactor, SCRUB_FAST).await;
        }
    }

    /// The disks have become larger, by a part of what they may or by all.
    async fn grow(&self, reactor: &Rc<Reactor>, opened: &Redundant, by: u64) {
        let steps = self.steps(opened).saturating_add(by).min(self.array.steps_max());
        self.bays.grow(self.array.disk_bytes(steps));
        // A member may die, or fail, right now; and the least that helps a pool may not have come together.
        let refreshed = opened.device().refresh(reactor).await;
        let pool = self.pool.borrow().clone();
        let grown = match pool {
            Some(pool) => Some(pool.grow(reactor).await),
            None => None,
        };
        self.sim.note(format!("disks larger by {steps} steps: {:?}, {grown:?}", refreshed.map(|info| info.blocks)));
    }

    /// Replaces what is dead, takes in what has failed, and rebuilds it.
    async fn care(&self, reactor: &Rc<Reactor>) {
        let Some(opened) = self.opened.borrow().clone() else { return };
        if let Some(member) = opened.failed() {
            let is_absent = opened.is_absent(member);
            let is_replaced = self.bays.is_dead(member) && (is_absent || self.array.swaps());
            if is_replaced {
                self.bays.replace(member);
            }
            let is_new = is_replaced || is_absent;
            let device = if is_new { self.bays.device(reactor, member) } else { Ok(None) };
            // It may die, or fail, right now.
            match device {
                Ok(device) => match opened.join(reactor, member, device).await {
                    Ok(()) => self.scrub(reactor).await,
                    Err(error) => self.sim.note(format!("not taken in: {error}")),
                },
                Err(error) => self.sim.note(format!("not opened: {error}")),
            }
        }
        if opened.rebuild(reactor).await.is_ok() {
            self.bays.look(&opened);
        }
    }

    /// What it has grown by.
    fn steps(&self, opened: &Redundant) -> u64 {
        (opened.info().bytes() - self.made_bytes.get()) / self.array.step_bytes()
    }
}

/// Where a pool may be kept over members with parity.
pub(crate) fn pick_parity(rng: &mut Rng, mutation: Option<Mutation>) -> (Plan, Array) {
    Array::parity(rng, mutation, pick)
}

/// A pool of either shape, and a mirror below it.
pub(crate) fn pick_mirror(rng: &mut Rng, mutation: Option<Mutation>) -> (Plan, Array) {
    let plan = pick(rng);
    let plan = if rng.one_in(2) { plan.shaped(rng) } else { plan };
    Array::mirror(rng, mutation, plan)
}

/// Without asking chance whether there are layers, so that seeds that once found something keep their plans.
fn pick(rng: &mut Rng) -> Plan {
    let plan = Plan::pick(rng);
    plan.layered_if(plan.idle_ns.is_multiple_of(2), 36)
}

pub(crate) fn run_parity(run: &mut Run) -> Result<(), Failure> {
    let (plan, array) = pick_parity(&mut run.rng, run.world.handle().mutation());
    run_with(run, plan, array)
}

/// The same over a mirror.
pub(crate) fn run_mirror(run: &mut Run) -> Result<(), Failure> {
    let (plan, array) = pick_mirror(&mut run.rng, run.world.handle().mutation());
    run_with(run, plan, array)
}

fn run_with(run: &mut Run, plan: Plan, array: Array) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    world.handle().note(format!("{array:?} {plan:?}"));
    let mut mix = Mix {
        block_bytes: 1 << plan.block_shift,
        discards: rng.one_in(2),
        blocks_max: rng.between(1, 16),
        always_durable: true,
        ..Mix::pick(rng, 1 << plan.block_shift)
    };
    let node = world.add_node();
    let bays = Rc::new(Bays::new(array.bays(), plan.block_size, array.disk_bytes(0), Rng::new(rng.next_u64())));
    let (pool, opened, hardware) = (OpenedPool::default(), Rc::default(), Hardware::pick(rng, &plan, &array));
    let (made_bytes, sides) = (Rc::default(), Rc::default());
    let rack = Rack { plan, array, bays, pool, hardware, opened, sides, made_bytes, sim: world.handle() };
    create(world, rng, &rack, node)?;
    mix.errors_allowed = hardware == Hardware::Lies;
    if hardware != Hardware::Dies {
        let bay = rng.below(array.bays() as u64) as usize;
        let faults = match hardware {
            Hardware::Lies => {
                let damage_from = array.data_from() + plan.damage_from();
                DiskFaults { damage_from, ..DiskFaults::swarm_silent(rng) }
            }
            _ => DiskFaults { stuck: 0, damage_from: 8192, ..DiskFaults::swarm_loud(rng) },
        };
        world.set_disk_faults(node, &path(bay, 0), faults);
        rack.bays.calm.set(true);
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    let judge = Judge::new(world.handle(), node, mix.clone(), plan.blocks() << plan.block_shift);
    let (to_open, opening) = (rack.clone(), judge.clone());
    let open = move |reactor: Rc<Reactor>| -> Opening { Box::pin(to_open.clone().open(opening.clone(), reactor)) };
    let (to_care, cares_after_ns) = (rack.clone(), rng.between(0, 5_000_000));
    let audited = judge.clone();
    let care_rng = Rc::new(RefCell::new(Rng::new(rng.next_u64())));
    let beside = move |reactor: Rc<Reactor>, _: Arc<dyn BlockDevice>| -> Working {
        let (rack, rng, judge) = (to_care.clone(), care_rng.clone(), audited.clone());
        Box::pin(async move {
            let side = rack.begin_side(&judge, &reactor);
            for _ in 0..CARES {
                reactor.sleep_ns(cares_after_ns).await;
                rack.care(&reactor).await;
                let grows = rng.borrow_mut().one_in(3);
                let opened = rack.opened.borrow().clone().filter(|_| grows);
                if let Some(opened) = opened {
                    let by = rng.borrow_mut().below(rack.array.steps_max() + 1);
                    rack.grow(&reactor, &opened, by).await;
                }
                rack.prove_right(&reactor).await;
                rack.audit(&judge, &reactor).await;
                rack.bays.doom();
            }
            if let Some(side) = side {
                side.await;
            }
        })
    };
    let (to_close, last) = (rack.clone(), judge.clone());
    let victim = rng.below(array.bays() as u64) as usize;
    let close = move |reactor: Rc<Reactor>, device: Arc<dyn BlockDevice>| -> Working {
        Box::pin(prove_redundant(to_close.clone(), last.clone(), reactor, device, victim))
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
    rack.bays.calm_down();
    rig.finish(world)
}

/// Without faults every member is in sync in the end; then any one of them can go.
async fn prove_redundant(rack: Rack, judge: Judge, reactor: Rc<Reactor>, device: Arc<dyn BlockDevice>, victim: usize) {
    let Some(opened) = rack.opened.borrow().clone() else { return };
    judge.sim.expect(opened.is_whole(), || format!("without faults a disk is not in sync: {}", opened.states()));
    rack.prove_right(&reactor).await;
    rack.audit(&judge, &reactor).await;
    // A mirror grows when its legs are equal, and they may be growing right now.
    let rebuilt = opened.rebuild(&reactor).await;
    judge.sim.expect(rebuilt.is_ok(), || format!("without faults a disk is not rebuilt: {rebuilt:?}"));
    rack.grow(&reactor, &opened, u64::MAX).await;
    let (grown, most) = (rack.steps(&opened), rack.array.steps_max());
    judge.sim.expect(grown == most, || format!("it grew by {grown} steps of {most}"));
    let pool = rack.pool.borrow_mut().take();
    if let Some(pool) = &pool
        && let Err(error) = pool.settle(&reactor).await
    {
        judge.sim.violation(format!("without faults the pool does not settle: {error}"));
    }
    rack.bays.kill(victim);
    if let Some(pool) = &pool {
        let looked = sides::look(&judge, &rack.sides, &reactor, pool).await;
        judge.expect(looked.is_ok(), || format!("without one member: {looked:?}"));
    }
    match device.open_channel(&reactor) {
        Ok(channel) => judge.clone().verify_all(reactor.clone(), channel).await,
        Err(error) => judge.sim.violation(format!("without faults no channel opens: {error}")),
    }
    if let Some(pool) = pool {
        pool.close(&reactor).await;
    }
    rack.opened.borrow_mut().take();
}

/// Makes the disks, the redundant device, the pool and its volumes, on hardware that does not fail yet.
fn create(world: &mut World, rng: &mut Rng, rack: &Rack, node: NodeId) -> Result<(), Failure> {
    let (plan, array) = (rack.plan, rack.array);
    add_log(world, rng, plan, node);
    let least = array.disk_bytes(array.steps_max());
    for (bay, disk) in (0..array.bays()).flat_map(|bay| (0..DISKS_PER_BAY).map(move |disk| (bay, disk))) {
        let bytes = least + if disk == 0 { 0 } else { 4096 * rng.below(100) };
        // A replacement with a cache where none had one is refused, rightly.
        let options = DiskOptions { bytes, unit: plan.block_size, volatile_cache: true, ..DiskOptions::default() };
        world.add_disk(node, &path(bay, disk), options, DiskFaults::default());
    }
    let rack = rack.clone();
    hot_pool::make(world, node, plan, move |reactor| {
        let rack = rack.clone();
        Box::pin(async move { rack.devices(&reactor, true).await })
    })
}
