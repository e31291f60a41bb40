//! `hot-pool-images`, and the same of the other shapes: one life of a pool, photographed at its write boundaries. Each photograph
//! is what some crash would have left of the media at that moment, with what the oracle knew then; it is opened in a world of its
//! own, twice.
//!
//! A crash point counts when its image is distinct, both recoveries agree, and what they find is allowed. Of some the log is lost
//! besides.

mod lost_log;
mod recovery;

use crate::Run;
use crate::blocks::{Crew, Judge, Mix};
use crate::crashes::{Opening, SECOND_NS, start};
use crate::ground::Ground;
use crate::hot_pool::{EXTENT_BLOCKS, OpenedPool, Plan, SHADOW_FRONT_BLOCKS, add_log, defect_of, make, settle, view};
use crate::sides::{Side, Sides};
use crate::{redundant_pool, warm_pool, zoned_pool};
use base::Rng;
use bdev::{BlockDevice, Io, Lba, Op};
use engine::Pool;
use reactor::Reactor;
use recovery::Laboratory;
use sim::oracle::{CellOracle, Snapshot};
use sim::{Boundary, CacheLoss, Crash, Failure, Image, Mutation, ScheduleFaults, Step, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Crash points of a run.
const POINTS_MAX: u64 = 120;
/// The same where several disks are recovered.
const POINTS_OF_SEVERAL_MAX: u64 = 40;
/// Virtual time of a run.
const LIFE_NS: u64 = 20 * SECOND_NS;

/// Steps of a run: a bound on livelock.
const STEPS_MAX: u64 = 3_000_000;

/// What a crash would leave, and what the oracles knew.
struct Photograph {
    image: Image,
    cells: Rc<Snapshot>,
    sides: Rc<Sides>,
}

/// Takes photographs at write boundaries.
struct Camera {
    rng: RefCell<Rng>,
    /// One write boundary in so many is looked at.
    every: u64,
    oracle: Rc<RefCell<CellOracle>>,
    sides: Rc<RefCell<Sides>>,
    taken: RefCell<Vec<Photograph>>,
    ready: Cell<bool>,
}

impl Camera {
    fn look(&self, boundary: &Boundary<'_>) {
        let rng = &mut *self.rng.borrow_mut();
        if !self.ready.get() || !rng.one_in(self.every) {
            return;
        }
        let (cells, sides) = (Rc::new(self.oracle.borrow().snapshot()), Rc::new(self.sides.borrow().clone()));
        for _ in 0..rng.between(1, 4) {
            let crash = if rng.one_in(4) { Crash::Kill } else { Crash::PowerCut };
            let image = boundary.image(crash, CacheLoss::pick(rng), rng);
            self.taken.borrow_mut().push(Photograph { image, cells: cells.clone(), sides: sides.clone() });
        }
    }
}

fn pick(rng: &mut Rng, mutation: Option<Mutation>) -> Plan {
    let plan = Plan::pick(rng);
    // The fewest segments, and room for every extent that is touched.
    let segments = rng.between(5, 9) * plan.shards as u64;
    let plan = Plan {
        log_bytes: (16 + segments * plan.segment_blocks as u64) * 4096,
        capacity_bytes: (plan.shards as u64 * 20 + 2) << 22,
        reactors: 1,
        idle_ns: rng.between(50_000, 5_000_000),
        defect: defect_of(mutation),
        ..plan
    };
    // Without asking chance, so that seeds that once found something keep their plans.
    let plan = match plan.idle_ns % 4 {
        1 => plan.layered_if(true, 50),
        _ => plan,
    };
    match plan.segment_blocks.is_multiple_of(12) || mutation == Some(Mutation::MoveEarly) {
        true => plan.with_refusing_places(rng),
        false => plan,
    }
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let mutation = run.world.handle().mutation();
    let plan = pick(&mut run.rng, mutation);
    run_with(run, plan, Ground::Disk)
}

/// The same with a shaped pool.
pub(crate) fn run_shaped(run: &mut Run) -> Result<(), Failure> {
    let mutation = run.world.handle().mutation();
    let plan = Plan { refusing: 0, ..pick(&mut run.rng, mutation) }.shaped(&mut run.rng);
    run_with(run, plan, Ground::Disk)
}

/// A pool on one core, over a device that has a larger head than planned.
fn with_shadow(plan: Plan) -> Plan {
    Plan { reactors: 1, capacity_bytes: plan.capacity_bytes + SHADOW_FRONT_BLOCKS * 4096, ..plan }
}

/// The same over members with parity, one of which may be away when the pool is opened again.
pub(crate) fn run_parity(run: &mut Run) -> Result<(), Failure> {
    let (plan, array) = redundant_pool::pick_parity(&mut run.rng, run.world.handle().mutation());
    run_with(run, with_shadow(plan), Ground::Array(array.with_shadow()))
}

/// The same over a mirror, one leg of which may be away.
pub(crate) fn run_mirror(run: &mut Run) -> Result<(), Failure> {
    let (plan, array) = redundant_pool::pick_mirror(&mut run.rng, run.world.handle().mutation());
    run_with(run, Plan { reactors: 1, ..plan }, Ground::Array(array))
}

/// The same on zones.
pub(crate) fn run_zoned(run: &mut Run) -> Result<(), Failure> {
    let (plan, drive) = zoned_pool::pick(&mut run.rng, run.world.handle().mutation());
    run_with(run, with_shadow(plan), Ground::Zones(drive.with_shadow()))
}

/// The same with a warm pool, whose flash may be away when it is opened again.
pub(crate) fn run_warm(run: &mut Run) -> Result<(), Failure> {
    let (plan, shelf) = warm_pool::pick(&mut run.rng);
    let defect = defect_of(run.world.handle().mutation());
    run_with(run, Plan { reactors: 1, defect, ..plan }, Ground::Warm(shelf))
}

fn run_with(run: &mut Run, plan: Plan, ground: Ground) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    // Hardware lies from when the pool is open: what is lost then was acknowledged by it.
    let mutation = world.handle().mutation();
    world.set_mutation(None);
    world.handle().note(format!("{ground:?} {plan:?}"));
    let mix = Mix {
        block_bytes: 1 << plan.block_shift,
        discards: rng.one_in(2),
        blocks_max: rng.between(1, 16),
        always_durable: true,
        abandon: 0,
        ..Mix::pick(rng, 1 << plan.block_shift)
    };
    let node = world.add_node();
    add_log(world, rng, plan, node);
    ground.add_disks(world, &plan, node, || !rng.one_in(4));
    make(world, node, plan, move |reactor| Box::pin(async move { ground.devices(&plan, &reactor, true, None).await }))?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    let judge = Judge::new(world.handle(), node, mix, plan.blocks() << plan.block_shift);
    let camera = Rc::new(Camera {
        rng: RefCell::new(rng.fork()),
        // Extents move late, when there has been much to see already.
        every: if plan.refuses() { rng.between(8, 40) } else { rng.between(1, 16) },
        oracle: judge.oracle.clone(),
        sides: Rc::default(),
        taken: RefCell::default(),
        ready: Cell::new(false),
    });
    let watcher = camera.clone();
    world.watch_writes(node, move |boundary| watcher.look(boundary));

    let pool = OpenedPool::default();
    let slot = pool.clone();
    let opening = move |reactor: Rc<Reactor>| -> Opening {
        let slot = slot.clone();
        Box::pin(async move {
            let devices = ground.devices(&plan, &reactor, false, None).await?;
            let pool = plan.open(&reactor, devices).await?;
            slot.replace(Some(pool.clone()));
            view(&plan, &pool)
        })
    };
    let device = match start(world, node, 1, opening, LIFE_NS)? {
        Some(Ok(device)) => device,
        other => return Err(Failure::new(format!("the pool does not open: {:?}", other.and_then(Result::err)))),
    };
    let pool = pool.take().expect("opened a moment ago");
    let reactor = world.reactor(node, 0);
    let channel = device.open_channel(&reactor).map_err(|error| Failure::new(error.to_string()))?;
    let crew = Crew::default();
    let tasks = rng.between(1, 4);
    for task in 0..tasks {
        let work = judge.clone().work(reactor.clone(), channel.clone(), task, tasks, rng.between(20, 150));
        reactor.spawn(crew.member(work));
    }
    let other = Beside { plan, judge: judge.clone(), pool: pool.clone(), rng: rng.fork() };
    reactor.spawn(crew.member(other.work(reactor.clone(), rng.between(1, 12))));
    if rng.one_in(2) {
        let layered = plan.is_layered();
        let side = Side { pool, judge, sides: camera.sides.clone(), rng: rng.fork(), layered };
        reactor.spawn(crew.member(side.work(reactor.clone(), rng.between(5, 40))));
    }
    drop((device, channel, reactor));

    world.set_mutation(mutation);
    camera.ready.set(true);
    let mut laboratory = Laboratory::new(plan, ground, rng.fork());
    let until = world.now_ns() + LIFE_NS;
    let points_max = if matches!(ground, Ground::Disk) { POINTS_MAX } else { POINTS_OF_SEVERAL_MAX };
    while !crew.is_done() && laboratory.points() < points_max {
        let idle = world.step() == Step::Idle && !crew.is_done();
        world.check()?;
        if idle || world.now_ns() > until || world.steps() > STEPS_MAX {
            let (steps, now_ns) = (world.steps(), world.now_ns());
            return Err(Failure::new(format!(
                "the work does not come to an end: idle {idle}, step {steps}, {now_ns} ns"
            )));
        }
        examine(world, &camera, &mut laboratory, &mut run.points)?;
    }
    Ok(())
}

fn examine(world: &mut World, camera: &Camera, laboratory: &mut Laboratory, points: &mut u64) -> Result<(), Failure> {
    for photograph in camera.taken.take() {
        let found = laboratory.examine(&photograph)?;
        *points = laboratory.points();
        world.handle().event("an image {} recovers as {}", [photograph.image.hash(), found, 0, 0]);
    }
    Ok(())
}

/// What is done to the volumes beside the work in the windows: whole extents are trimmed, everything is destaged.
struct Beside {
    plan: Plan,
    judge: Judge,
    pool: Arc<Pool>,
    rng: Rng,
}

impl Beside {
    async fn work(mut self, reactor: Rc<Reactor>, count: u64) {
        for _ in 0..count {
            reactor.sleep_ns(self.rng.below(2_000_000)).await;
            if self.rng.one_in(2) {
                if let Err(error) = settle(self.plan, &self.pool, &reactor, || true).await {
                    self.judge.sim.violation(format!("settling failed: {error}"));
                }
            } else {
                self.trim(&reactor).await;
            }
        }
    }

    async fn trim(&mut self, reactor: &Rc<Reactor>) {
        let volume = self.rng.below(self.plan.volumes);
        let first = [0, 1, 2, 15, 16, 31][self.rng.below(6) as usize];
        let count = self.rng.between(1, 2);
        let per = 1u64 << (12 - self.plan.block_shift);
        let blocks = first * EXTENT_BLOCKS * per..(first + count) * EXTENT_BLOCKS * per;
        let mut tickets = Vec::new();
        let mut seen = 0;
        for window in self.plan.windows() {
            let (start, end) = (window.start.max(blocks.start), (window.start + window.blocks).min(blocks.end));
            if window.child as u64 == volume && start < end {
                // A block of the volume is a cell.
                let cells = (seen + start - window.start) as usize..(seen + end - window.start) as usize;
                tickets.push(self.judge.oracle.borrow_mut().begin_write(cells, 0));
            }
            seen += window.blocks;
        }
        let device = self.pool.volume(&format!("v{volume}")).expect("the volumes of the windows stay");
        let channel = device.open_channel(reactor).expect("volumes open on every reactor");
        let io = Io::new(Op::Unmap, Lba(blocks.start), (blocks.end - blocks.start) as u32);
        let done = channel.submit(io).await;
        self.judge.sim.expect(done.status.is_ok(), || format!("a trim of extents failed with '{}'", done.status));
        for ticket in tickets {
            self.judge.oracle.borrow_mut().end_write(ticket, true, true);
        }
    }
}
