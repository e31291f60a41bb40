//! `hot-pool-changes`: a hot pool that is changed while it is used, and crashed at any step of it. Beside the work volumes
//! are created, resized and deleted, in half of the runs with snapshots and clones, the capacity device and the pool grow, a scrub runs; between two lives the pool is
//! checked and repaired, and it is opened on another number of reactors. `shaped-pool-changes` is the same with a shaped pool, which
//! grows by bands.
//!
//! No hardware fails here, so that a check has to find nothing but what a crash leaves, whenever and however often it runs
//! and however far its repairs got; so that a scrub finds every block good; and so that every operation succeeds.
//!
//! # The invariants of the engine, and who holds hot pools to them
//!
//! | | |
//! |---|---|
//! | I1 what is acknowledged is read, across crashes, nothing is torn | the cell oracle in all hot-pool scenarios; `hot-pool-images` for tears; the audit: log space is free only when a durable checkpoint covers it |
//! | I2 one owner of a place | the audit, here beside the work, in `hot-pool-images` after every recovery; in shaped pools of places in bands as well |
//! | I3 counts are what is counted | the audit: dirty blocks, free extents, and no extent without an owner; in shaped pools what is live in each band |
//! | I4 nothing leads to what is free | the audit: log map, deltas and destage of free extents; in shaped pools map pages into bands |
//! | I5 the newest record wins, replay is idempotent | `hot-pool-images` recovers twice; every opening raises the epoch durably, which is judged wherever a pool is opened; order and numbers of records: `engine-log` |
//! | I6 upkeep always has room and ends | `hot-pool-full` and the same of shaped and warm pools, and on zones: the work ends although log and capacity are full |
//! | I7 write rule of zones | not for hot pools: they write in place, on devices without zones |
//! | I8 reported write amplification | here, at rest: what the pool says that it has written to each device is what this has got since it was opened |
//! | I9 wear budget | not for hot pools: there is no cache that admits |
//! | I10 no bytes that their checksum does not confirm | `hot-pool-rot`, `shaped-pool-rot`, and `hot-pool` on disks that misdirect and lose writes, too; the scrub here finds nothing where nothing is wrong |
//! | I11 adoption of shared memory | not built |
//! | I12 same seed, same trace | the tests of all scenarios, and `xtask` |

use crate::Run;
use crate::blocks::{Crew, Judge, Mix};
use crate::crashed;
use crate::crashes::{Opening, Rig, SECOND_NS, SHORT, Working};
use crate::hot_pool::{CAPACITY, Plan, create, defect_of, view};
use crate::sides::{self, Side, Sides};
use base::Rng;
use bdev::BlockDevice;
use engine::{CheckOptions, Pool, PoolError, ScrubStatus, WriteStreams};
use reactor::Reactor;
use sim::{Crash, Failure, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Times that the capacity device becomes larger, at most: a superblock has room for so many regions.
const GROWTHS_MAX: u64 = 3;
const EXTENT_BYTES: u64 = 4 << 20;
/// What a shard of a shaped pool grows by at a time, at most, in bytes of so many extents.
const SHAPED_GROWTH_EXTENTS_MAX: u64 = 7;
/// Between two looks at what was written, and how many there are until upkeep must have come to rest.
const REST_NS: u64 = SECOND_NS / 10;
const RESTS_MAX: usize = 50;
/// Bytes a second of a scrub that does not wait.
const SCRUB_FAST: u64 = 1 << 40;

/// The pool in use, and the device that grows.
#[derive(Clone)]
struct InUse {
    pool: Arc<Pool>,
    capacity: Arc<dyn BlockDevice>,
    /// What this process had written before it opened the pool.
    before: Written,
}

/// Bytes that have reached the disks of the log and of the capacity device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    /// None where the log is in memory.
    log: u64,
    capacity: u64,
}

/// What outlives the processes.
struct Stage {
    plan: Plan,
    judge: Judge,
    reactors: Rc<Cell<usize>>,
    sides: Rc<RefCell<Sides>>,
    growths: Cell<u64>,
    in_use: RefCell<Option<InUse>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let plan = roomy(&mut run.rng);
    run_with(run, plan)
}

pub(crate) fn run_shaped(run: &mut Run) -> Result<(), Failure> {
    let rng = &mut run.rng;
    let plan = roomy(rng).shaped(rng);
    let growth = GROWTHS_MAX * plan.shards as u64 * SHAPED_GROWTH_EXTENTS_MAX * EXTENT_BYTES;
    run_with(run, plan.growing(growth))
}

/// With room for every extent that is touched.
fn roomy(rng: &mut Rng) -> Plan {
    let plan = Plan::pick(rng);
    let plan = Plan { capacity_bytes: (plan.shards as u64 * 20 + 2) * EXTENT_BYTES, ..plan };
    // Without asking chance, so that seeds that once found something keep their plans.
    plan.layered_if(plan.idle_ns.is_multiple_of(2), 70)
}

fn run_with(run: &mut Run, plan: Plan) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    world.handle().note(format!("{plan:?}"));
    let mix = Mix {
        block_bytes: 1 << plan.block_shift,
        blocks_max: rng.between(1, 16),
        always_durable: true,
        ..Mix::pick(rng, 1 << plan.block_shift)
    };
    let node = world.add_node();
    create(world, rng, plan, node)?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    let judge = Judge::new(world.handle(), node, mix, plan.blocks() << plan.block_shift);
    let reactors = Rc::new(Cell::new(1));
    let stage = Rc::new(Stage {
        plan: Plan { defect: defect_of(world.handle().mutation()), ..plan },
        judge: judge.clone(),
        reactors: reactors.clone(),
        sides: Rc::default(),
        growths: Cell::new(0),
        in_use: RefCell::default(),
    });
    let (opener, changer, closer) = (stage.clone(), stage.clone(), stage.clone());
    let rig = Rig {
        judge,
        node,
        reactors: reactors.clone(),
        life: SHORT,
        open: Box::new(move |reactor| -> Opening {
            let stage = opener.clone();
            Box::pin(async move { stage.open(reactor).await })
        }),
        beside: Box::new(move |reactor, _| -> Working {
            let stage = changer.clone();
            Box::pin(async move { stage.change(reactor).await })
        }),
        close: Box::new(move |reactor, _| -> Working {
            let stage = closer.clone();
            Box::pin(async move { stage.close(reactor).await })
        }),
    };
    for round in 0..rng.between(1, 4) {
        reactors.set(rng.between(1, 3) as usize);
        world.handle().note(format!("round {round} on {} reactors", reactors.get()));
        rig.round(world, rng)?;
    }
    reactors.set(rng.between(1, 3) as usize);
    rig.finish(world)?;
    world.crash(node, Crash::Kill);
    world.boot(node, 1, World::reactor_config());
    let crew = Crew::default();
    world.spawn(node, 0, |reactor| crew.member(async move { stage.check_closed(reactor).await }));
    world.run_until("the closed pool to be checked", 60 * SECOND_NS, |_| crew.is_done())
}

impl Stage {
    /// What a process that is going down sees proves nothing.
    fn expect(&self, holds: bool, text: impl FnOnce() -> String) {
        self.judge.expect(holds, text);
    }

    async fn open(&self, reactor: Rc<Reactor>) -> Result<Arc<dyn BlockDevice>, String> {
        let plan = Plan { reactors: self.reactors.get(), ..self.plan };
        let rng = &mut self.judge.sim.rng();
        let devices = plan.devices(&reactor)?;
        if rng.one_in(2) {
            crashed::check_somehow(&self.judge, &self.plan, &reactor, &devices, rng).await?;
        }
        let capacity = devices.capacity.clone();
        let before = self.written();
        let pool = plan.open(&reactor, devices).await?;
        crashed::audit(&self.judge, &reactor, &pool).await;
        sides::look(&self.judge, &self.sides, &reactor, &pool).await?;
        self.in_use.replace(Some(InUse { pool: pool.clone(), capacity, before }));
        view(&plan, &pool)
    }

    /// Everything that is done beside the work.
    async fn change(self: Rc<Self>, reactor: Rc<Reactor>) {
        let Some(InUse { pool, .. }) = self.in_use.borrow().clone() else { return };
        let rng = &mut self.judge.sim.rng();
        let (judge, sides, layered) = (self.judge.clone(), self.sides.clone(), self.plan.is_layered());
        let side = Side { pool, judge, sides, rng: rng.fork(), layered };
        let side = reactor.spawn_join(side.work(reactor.clone(), rng.between(0, 20)));
        let (stage, there, fork) = (self.clone(), reactor.clone(), rng.fork());
        let looking = reactor.spawn_join(async move { stage.look(there, fork).await });
        for _ in 0..rng.below(8) {
            reactor.sleep_ns(rng.below(3_000_000)).await;
            self.change_once(&reactor, rng).await;
        }
        side.await;
        looking.await;
    }

    async fn look(&self, reactor: Rc<Reactor>, mut rng: Rng) {
        let Some(InUse { pool, .. }) = self.in_use.borrow().clone() else { return };
        for _ in 0..rng.below(60) {
            reactor.sleep_ns(rng.below(300_000)).await;
            crashed::audit(&self.judge, &reactor, &pool).await;
        }
    }

    async fn change_once(&self, reactor: &Rc<Reactor>, rng: &mut Rng) {
        let Some(InUse { pool, capacity, .. }) = self.in_use.borrow().clone() else { return };
        match rng.below(6) {
            0 | 1 => {
                let settled = pool.settle(reactor).await;
                self.expect(settled.is_ok(), || format!("settling failed: {settled:?}"));
            }
            2 => pool.scrub(reactor, if rng.one_in(2) { SCRUB_FAST } else { rng.between(1, 1 << 24) }).await,
            3 => pool.cancel_scrub(reactor).await,
            _ => self.grow(reactor, &pool, &*capacity, rng).await,
        }
    }

    async fn grow(&self, reactor: &Rc<Reactor>, pool: &Pool, capacity: &dyn BlockDevice, rng: &mut Rng) {
        let before = pool.status(reactor).await;
        let grows = self.growths.get() < GROWTHS_MAX && rng.one_in(2);
        if grows {
            self.growths.set(self.growths.get() + 1);
            let info = capacity.info();
            let bytes = match self.plan.bands {
                None => rng.between(1, 2) * EXTENT_BYTES + (2 << 20),
                // Over-provisioning, headers and the unit of writes take their part: three quarters of bands of two units.
                Some(_) => rng.between(5, SHAPED_GROWTH_EXTENTS_MAX) * EXTENT_BYTES,
            };
            let bytes = info.bytes() + self.plan.shards as u64 * bytes;
            let resized = capacity.resize(reactor, bytes / info.block_size as u64).await;
            self.expect(resized.is_ok(), || format!("the capacity device does not grow: {resized:?}"));
        }
        let grown = pool.grow(reactor).await;
        let refused = matches!(grown, Err(PoolError::Plan { .. }));
        self.expect(grown.is_ok() || refused && !grows, || format!("growing the pool failed: {grown:?}"));
        let after = pool.status(reactor).await;
        let more = before.shards.iter().zip(&after.shards).all(|(before, after)| before.extents < after.extents);
        self.expect(more || grown.is_err(), || format!("a shard did not grow: {before:?}, then {after:?}"));
    }

    /// Without faults: a scrub of what is left finds nothing at all.
    async fn close(&self, reactor: Rc<Reactor>) {
        let Some(InUse { pool, before, .. }) = self.in_use.take() else { return };
        let found = sides::find(&reactor, &pool).await;
        let judged = found.and_then(|found| self.sides.borrow().judge(&found));
        self.expect(judged.is_ok(), || format!("in the end: {judged:?}"));
        pool.cancel_scrub(&reactor).await;
        let completed = |pool: &Arc<Pool>| {
            let (pool, reactor) = (pool.clone(), reactor.clone());
            async move { pool.status(&reactor).await.shards.into_iter().map(|shard| shard.scrub).collect::<Vec<_>>() }
        };
        pool.scrub(&reactor, SCRUB_FAST).await;
        let mut scrubs = completed(&pool).await;
        while scrubs.iter().any(|scrub| scrub.running) {
            reactor.sleep_ns(1_000_000).await;
            scrubs = completed(&pool).await;
        }
        let found = |scrub: &ScrubStatus| scrub.corrupt_blocks + scrub.lost_blocks + scrub.damaged_headers;
        let bad = scrubs.iter().find(|scrub| scrub.completed == 0 || found(scrub) > 0);
        self.expect(bad.is_none(), || format!("a scrub where nothing is wrong: {bad:?}"));
        let settled = pool.settle(&reactor).await;
        self.expect(settled.is_ok(), || format!("settling failed: {settled:?}"));
        crashed::audit(&self.judge, &reactor, &pool).await;
        self.judge_written(&reactor, &pool, before).await;
        pool.close(&reactor).await;
    }

    fn written(&self) -> Written {
        let (sim, node) = (&self.judge.sim, self.judge.node);
        Written { log: sim.written(node, &self.plan.log_path()), capacity: sim.written(node, CAPACITY) }
    }

    /// I8: what the pool says that it has written is what its disks have got. A write counts here when it reaches the disk, and
    /// there when it has been answered, so that both are compared when upkeep has come to rest, which it does.
    async fn judge_written(&self, reactor: &Rc<Reactor>, pool: &Pool, before: Written) {
        let mut seen = None;
        for _ in 0..RESTS_MAX {
            let status = pool.status(reactor).await;
            let sum = |of: fn(&WriteStreams) -> u64| status.shards.iter().map(|shard| of(&shard.streams)).sum::<u64>();
            let log = if self.plan.mapped { 0 } else { sum(|streams| streams.log.total()) };
            let told = Written { log, capacity: sum(|streams| streams.capacity.total()) };
            let now = self.written();
            let got = Written { log: now.log - before.log, capacity: now.capacity - before.capacity };
            if told == got {
                return;
            }
            seen = Some((told, got));
            reactor.sleep_ns(REST_NS).await;
        }
        self.expect(false, || {
            let (told, got) = seen.expect("it was looked at");
            format!("I8: the pool says that it has written {told:?}, and its disks have got {got:?}")
        });
    }

    /// As [`check`](Self::check), with everything that can be looked at; the pool has been closed.
    async fn check_closed(&self, reactor: Rc<Reactor>) {
        let options = CheckOptions { payloads: true, data: true, repair: false };
        let checked = match self.plan.devices(&reactor) {
            Ok(devices) => crashed::check(&reactor, &devices, options).await,
            Err(error) => Err(error),
        };
        match checked {
            Ok(report) => crashed::judge_report(&self.judge, &self.plan, &report),
            Err(error) => self.expect(false, || error),
        }
    }
}
