//! `parity-pool`: a shaped pool over a parity device, one of whose members dies, or fails now and then, at any moment: under
//! load, while the device or the pool opens, in a rebuild, and its replacement too. Nobody who uses the pool notices: no
//! operation fails, what is acknowledged is durable over kills and power cuts, and nothing stale is read. In the end every
//! member is in sync, and the loss of any one of them costs nothing. Now and then the disks have become larger, and the parity
//! device and the pool grow.

use crate::Run;
use crate::blocks::{Judge, Mix};
use crate::crashed;
use crate::crashes::{Opening, Rig, SHORT, Working};
use crate::hot_pool::{self, EXTENT_BLOCKS, FRONT_BLOCKS, OpenedPool, Plan, add_log, defect_of};
use crate::parity_bays::{Bays, DISKS_PER_BAY, path};
use crate::sides::{self, Side, Sides};
use base::Rng;
use bdev::{BlockDevice, MemberState, ParityDefect, ParityDevice, ParityOptions};
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

/// What the parity device is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array {
    members: usize,
    chunk_blocks: u64,
    rows: u64,
    /// Rows that it has in the end, when it has grown.
    rows_max: u64,
    note_bytes: u64,
    /// Blocks of its head.
    head_blocks: u64,
    defect: Option<ParityDefect>,
}

impl Array {
    fn options(&self, create: bool) -> ParityOptions {
        ParityOptions {
            create,
            chunk_bytes: self.chunk_blocks * 4096,
            head_bytes: self.head_blocks * 4096,
            rebuild_note_bytes: self.note_bytes,
            defect: self.defect,
            ..ParityOptions::default()
        }
    }

    /// What each member needs for so many rows.
    fn member_bytes(&self, rows: u64) -> u64 {
        8192 + self.head_blocks * 4096 + rows * self.chunk_blocks * 4096
    }

    /// The same with room for a shadow of the index.
    pub(crate) fn with_shadow(self) -> Array {
        Array { head_blocks: 4 * FRONT_BLOCKS, ..self }
    }

    /// The first disk of each bay, and its bytes.
    pub(crate) fn disks(&self) -> Vec<(String, u64)> {
        (0..self.members).map(|bay| (path(bay, 0), self.member_bytes(self.rows))).collect()
    }

    /// Opens these, but for one that is `away`.
    pub(crate) fn first_disks(&self, plan: &Plan, reactor: &Rc<Reactor>, away: Option<u64>) -> Result<Members, String> {
        let is_away = |bay: usize| away.is_some_and(|away| away % self.members as u64 == bay as u64);
        let disk = |bay| if is_away(bay) { Ok(None) } else { plan.file(reactor, &path(bay, 0)).map(Some) };
        (0..self.members).map(disk).collect()
    }

    pub(crate) async fn open(
        &self,
        reactor: &Rc<Reactor>,
        members: Members,
        create: bool,
    ) -> Result<Arc<ParityDevice>, String> {
        let opened = ParityDevice::open(reactor, "parity", members, &self.options(create)).await;
        Ok(Arc::new(opened.map_err(|error| error.to_string())?))
    }
}

/// The disk in each bay, where one is found.
type Members = Vec<Option<Arc<dyn BlockDevice>>>;

/// Everything that a process opens.
#[derive(Clone)]
struct Rack {
    plan: Plan,
    array: Array,
    bays: Rc<Bays>,
    pool: OpenedPool,
    /// A member fails now and then, so that reads may fail in one version and not in another.
    is_loud: bool,
    parity: Rc<RefCell<Option<Arc<ParityDevice>>>>,
    sides: Rc<RefCell<Sides>>,
    /// Blocks of the parity device when it was made.
    made_blocks: Rc<Cell<u64>>,
    sim: Handle,
}

impl Rack {
    async fn devices(&self, reactor: &Rc<Reactor>, create: bool) -> Result<PoolDevices, String> {
        let log = self.plan.log_device(reactor)?;
        // Before it is open: a member may die in the opening.
        self.bays.doom();
        let members = self.bays.devices(reactor)?;
        let parity = self.array.open(reactor, members, create).await?;
        self.bays.look(&parity);
        parity.compare_in_background(reactor);
        if create {
            self.made_blocks.set(parity.info().blocks);
        }
        self.parity.replace(Some(parity.clone()));
        Ok(PoolDevices { log, capacity: parity })
    }

    async fn open(self, judge: Judge, reactor: Rc<Reactor>) -> Result<Arc<dyn BlockDevice>, String> {
        let devices = self.devices(&reactor, false).await?;
        self.bays.doom();
        let pool = self.plan.open(&reactor, devices).await?;
        sides::look(&judge, &self.sides, &reactor, &pool).await?;
        self.pool.replace(Some(pool.clone()));
        hot_pool::view(&self.plan, &pool)
    }

    /// Members that die or are replaced never make the parity device answer with anything but what was written: a pool would
    /// take another version, and nobody else would notice.
    async fn prove_right(&self, reactor: &Rc<Reactor>) {
        let pool = self.pool.borrow().clone();
        let Some(pool) = pool.filter(|_| !self.is_loud) else { return };
        let shards = pool.status(reactor).await.shards;
        let damaged: u64 = shards.iter().map(|shard| shard.rescued_blocks + shard.healed_blocks).sum();
        self.sim.expect(damaged == 0, || format!("{damaged} blocks were damaged in one version, and no disk rots"));
    }

    /// Snapshots and clones come and go beside the work.
    fn begin_side(&self, judge: &Judge, reactor: &Rc<Reactor>) -> Option<Working> {
        let pool = self.pool.borrow().clone().filter(|_| self.plan.is_layered())?;
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
    async fn grow(&self, reactor: &Rc<Reactor>, parity: &ParityDevice, by: u64) {
        let Array { rows, rows_max, .. } = self.array;
        let info = parity.info();
        let now = info.rows.map_or(0, |rows| (info.blocks - rows.start) / rows.blocks as u64);
        let rows = now.saturating_add(by).clamp(rows, rows_max);
        self.bays.grow(self.array.member_bytes(rows));
        // A member may die, or fail, right now; and the least that helps a pool may not have come together.
        let refreshed = parity.refresh(reactor).await;
        let pool = self.pool.borrow().clone();
        let grown = match pool {
            Some(pool) => Some(pool.grow(reactor).await),
            None => None,
        };
        self.sim.note(format!("disks of {rows} rows: {:?}, {grown:?}", refreshed.map(|info| info.blocks)));
    }

    /// Replaces what is dead, takes in what has failed, and rebuilds it.
    async fn care(&self, reactor: &Rc<Reactor>) {
        let Some(parity) = self.parity.borrow().clone() else { return };
        let failed = parity.members().iter().position(|member| member.state == MemberState::Failed);
        if let Some(member) = failed {
            let is_dead = self.bays.is_dead(member);
            if is_dead {
                self.bays.replace(member);
            }
            let is_new = is_dead || parity.members()[member].name.is_none();
            let device = if is_new { self.bays.device(reactor, member) } else { Ok(None) };
            // It may die, or fail, right now.
            match device {
                Ok(device) => match parity.join(reactor, member, device, false).await {
                    Ok(()) => self.scrub(reactor).await,
                    Err(error) => self.sim.note(format!("not taken in: {error}")),
                },
                Err(error) => self.sim.note(format!("not opened: {error}")),
            }
        }
        if parity.rebuild(reactor).await.is_ok() {
            self.bays.look(&parity);
        }
    }
}

pub(crate) fn pick(rng: &mut Rng, mutation: Option<Mutation>) -> (Plan, Array) {
    let members = rng.between(3, 5) as usize;
    let chunk_blocks = 1 << rng.below(2);
    let row_blocks = (members as u64 - 1) * chunk_blocks;
    let unit_blocks = row_blocks as u32 * rng.between(1, 2) as u32;
    let band_blocks = unit_blocks * rng.between(2, 4) as u32;
    let plan = Plan::pick(rng);
    // Without asking chance, so that seeds that once found something keep their plans.
    let plan = plan.layered_if(plan.idle_ns.is_multiple_of(2), 36).with_bands(rng, unit_blocks, band_blocks);
    let plan = Plan { defect: defect_of(mutation), ..plan };
    let rows = (plan.capacity_bytes / 4096 - FRONT_BLOCKS).div_ceil(row_blocks);
    let growth_bytes = rng.below(3) * plan.shards as u64 * EXTENT_BLOCKS * 4096;
    // Of an extent, the bands that it takes with what is kept back.
    let rows_max = rows + (growth_bytes * 2 / 4096).div_ceil(row_blocks);
    let plan = plan.growing(growth_bytes);
    let defect = match mutation {
        Some(Mutation::SkipParity) => Some(ParityDefect::SkipParity),
        Some(Mutation::SkipRecord) => Some(ParityDefect::SkipRecord),
        Some(Mutation::ReadUnbuilt) => Some(ParityDefect::ReadUnbuilt),
        Some(Mutation::GrowUnrecorded) => Some(ParityDefect::GrowUnrecorded),
        _ => None,
    };
    let (note_bytes, head_blocks) = (rng.between(1, 40) << 16, FRONT_BLOCKS / 4);
    (plan, Array { members, chunk_blocks, rows, rows_max, note_bytes, head_blocks, defect })
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let (plan, array) = pick(rng, world.handle().mutation());
    world.handle().note(format!("{array:?} {plan:?}"));
    let mix = Mix {
        block_bytes: 1 << plan.block_shift,
        discards: rng.one_in(2),
        blocks_max: rng.between(1, 16),
        always_durable: true,
        ..Mix::pick(rng, 1 << plan.block_shift)
    };
    let node = world.add_node();
    let bays =
        Rc::new(Bays::new(array.members, plan.block_size, array.member_bytes(array.rows), Rng::new(rng.next_u64())));
    let (pool, parity, is_loud) = (OpenedPool::default(), Rc::default(), rng.one_in(3));
    let (made_blocks, sides) = (Rc::default(), Rc::default());
    let rack = Rack { plan, array, bays, pool, is_loud, parity, sides, made_blocks, sim: world.handle() };
    create(world, rng, &rack, node)?;
    // Either one member fails now and then, or members die, one at a time.
    if is_loud {
        let bay = rng.below(array.members as u64) as usize;
        let faults = DiskFaults { stuck: 0, damage_from: 8192, ..DiskFaults::swarm_loud(rng) };
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
                let parity = rack.parity.borrow().clone().filter(|_| grows);
                if let Some(parity) = parity {
                    let by = rng.borrow_mut().below(rack.array.rows_max - rack.array.rows + 1);
                    rack.grow(&reactor, &parity, by).await;
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
    let victim = rng.below(array.members as u64) as usize;
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
    let Some(parity) = rack.parity.borrow().clone() else { return };
    let members = parity.members();
    let in_sync = members.iter().all(|member| member.state == MemberState::InSync);
    judge.sim.expect(in_sync, || format!("without faults a member is not in sync: {members:?}"));
    rack.prove_right(&reactor).await;
    rack.audit(&judge, &reactor).await;
    rack.grow(&reactor, &parity, u64::MAX).await;
    let (info, Array { rows, rows_max, .. }) = (parity.info(), rack.array);
    let grown = info.rows.map_or(0, |row| (info.blocks - rack.made_blocks.get()) / row.blocks as u64);
    judge.sim.expect(grown == rows_max - rows, || format!("it grew by {grown} rows, from {rows} to {rows_max}"));
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
    rack.parity.borrow_mut().take();
}

/// Makes the disks, the parity device, the pool and its volumes, on hardware that does not fail yet.
fn create(world: &mut World, rng: &mut Rng, rack: &Rack, node: NodeId) -> Result<(), Failure> {
    let (plan, array) = (rack.plan, rack.array);
    add_log(world, rng, plan, node);
    let least = array.member_bytes(array.rows_max);
    for (bay, disk) in (0..array.members).flat_map(|bay| (0..DISKS_PER_BAY).map(move |disk| (bay, disk))) {
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
