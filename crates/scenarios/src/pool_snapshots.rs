//! `pool-snapshots`: pools of either shape whose volumes have snapshots, are cloned, rolled back and deleted while they are
//! used, crashed at any step.
//!
//! Three things are held against what is read. Snapshots of the volumes that the work is done on are made while it is being
//! done: each is judged as a read that began and ended with it, and must be the same whenever it is read again. Two volumes
//! are written by turns, in order, and rolled back together: in a snapshot of both, and after a crash, the second is never
//! ahead of the first. Side volumes, which one task works with alone, are known exactly, and so is everything that is made
//! of them.

use crate::Run;
use crate::blocks::{Judge, Mix};
use crate::crashed;
use crate::crashes::{Opening, Rig, SHORT, Working};
use crate::hot_pool::{Plan, SLICE_BLOCKS, create, defect_of, view, view_of};
use crate::sides::{self, Side, Sides, read_cells};
use base::Rng;
use bdev::{BlockDevice, Io, Lba};
use engine::{ChangeKind, CheckOptions, Pool};
use reactor::{Reactor, SgList};
use sim::Failure;
use sim::ScheduleFaults;
use sim::oracle::fill_cell;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

const EXTENT_BYTES: u64 = 4 << 20;
/// Snapshots of the work's volumes at the same time.
const SHOTS_MAX: usize = 3;
/// The volumes that are written by turns, each in one block: of slices that different shards have.
const TURNS: [(&str, u64); 2] = [("turn0", 0), ("turn1", SLICE_BLOCKS)];

/// What the volumes of a snapshot hold, cell by cell.
type Values = Vec<u64>;

/// What outlives the processes.
struct Stage {
    plan: Plan,
    judge: Judge,
    reactors: Rc<Cell<usize>>,
    sides: Rc<RefCell<Sides>>,
    /// Snapshots that were made, by the ends of their names; with what they hold, once they have been read.
    shots: RefCell<BTreeMap<String, Option<Values>>>,
    shots_made: Cell<u64>,
    turns: Cell<u64>,
    /// Snapshots are being made, or gone back to: one of these at a time, since who finds a volume changed meanwhile is refused.
    layering: Cell<bool>,
    pool: RefCell<Option<Arc<Pool>>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let plan = Plan::pick(rng);
    // Room for every extent of every layer.
    let plan = Plan { capacity_bytes: (plan.shards as u64 * 70 + 2) * EXTENT_BYTES, volumes_max: 40, ..plan };
    let plan = if rng.one_in(2) { plan.shaped(rng) } else { plan };
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
        shots: RefCell::default(),
        shots_made: Cell::new(0),
        turns: Cell::new(1),
        layering: Cell::new(false),
        pool: RefCell::default(),
    });
    let (opener, changer, closer) = (stage.clone(), stage.clone(), stage);
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
    rig.finish(world)
}

impl Stage {
    /// What a process that is going down sees proves nothing.
    fn expect(&self, holds: bool, text: impl FnOnce() -> String) {
        self.judge.expect(holds, text);
    }

    fn is_alive(&self) -> bool {
        self.judge.sim.alive(self.judge.node)
    }

    async fn open(&self, reactor: Rc<Reactor>) -> Result<Arc<dyn BlockDevice>, String> {
        // Whoever was at it went with its process.
        self.layering.set(false);
        let plan = Plan { reactors: self.reactors.get(), ..self.plan };
        let rng = &mut self.judge.sim.rng();
        let devices = plan.devices(&reactor)?;
        if rng.one_in(2) {
            let options = CheckOptions { payloads: rng.one_in(2), data: rng.one_in(4), repair: rng.one_in(2) };
            crashed::judge_report(&self.judge, &plan, &crashed::check(&reactor, &devices, options).await?);
        }
        let pool = plan.open(&reactor, devices).await?;
        crashed::audit(&self.judge, &reactor, &pool).await;
        sides::look(&self.judge, &self.sides, &reactor, &pool).await?;
        for (name, _) in TURNS {
            if pool.volume(name).is_none() {
                let made = pool.create_volume(&reactor, name, 2 * SLICE_BLOCKS, 12, 0).await;
                made.map_err(|error| error.to_string())?;
            }
        }
        self.compare_turns(&reactor, &pool, "").await;
        for name in self.shots.borrow().keys() {
            let is_there = (0..plan.volumes).all(|volume| pool.volume(&format!("v{volume}@{name}")).is_some());
            self.expect(is_there, || format!("after a crash snapshot {name} is missing"));
        }
        self.read_shots(&reactor, &pool).await;
        self.pool.replace(Some(pool.clone()));
        view(&plan, &pool)
    }

    /// Everything that is done beside the work.
    async fn change(self: Rc<Self>, reactor: Rc<Reactor>) {
        let Some(pool) = self.pool.borrow().clone() else { return };
        let rng = &mut self.judge.sim.rng();
        let (judge, sides) = (self.judge.clone(), self.sides.clone());
        let side = Side { pool: pool.clone(), judge, sides, rng: rng.fork(), layered: true };
        let side = reactor.spawn_join(side.work(reactor.clone(), rng.between(0, 30)));
        let (stage, there, turned) = (self.clone(), reactor.clone(), pool.clone());
        let turns = rng.below(60);
        let turner = rng.fork();
        let turning = reactor.spawn_join(async move { stage.take_turns(&there, &turned, turns, turner).await });
        for _ in 0..rng.below(8) {
            reactor.sleep_ns(rng.below(2_000_000)).await;
            match rng.below(8) {
                0 => {
                    let settled = pool.settle(&reactor).await;
                    self.expect(settled.is_ok(), || format!("settling failed: {settled:?}"));
                }
                1 => crashed::audit(&self.judge, &reactor, &pool).await,
                2 => self.delete_shot(&reactor, &pool, rng).await,
                3 => {
                    self.read_shots(&reactor, &pool).await;
                    self.compare_shots(&reactor, &pool, rng).await;
                }
                _ => self.shoot(&reactor, &pool, rng).await,
            }
        }
        side.await;
        turning.await;
    }

    /// A snapshot of all volumes of the work, and of those that take turns.
    async fn shoot(&self, reactor: &Rc<Reactor>, pool: &Arc<Pool>, rng: &mut Rng) {
        if self.shots.borrow().len() >= SHOTS_MAX {
            return self.delete_shot(reactor, pool, rng).await;
        }
        if self.layering.replace(true) {
            return;
        }
        let number = self.shots_made.replace(self.shots_made.get() + 1);
        let name = format!("w{number}");
        let cells = self.judge.oracle.borrow().cells();
        let ticket = self.judge.oracle.borrow_mut().begin_read(0..cells);
        let volumes: Vec<String> = (0..self.plan.volumes).map(|volume| format!("v{volume}")).collect();
        let all = volumes.iter().map(String::as_str).chain(TURNS.map(|(name, _)| name));
        let wanted: Vec<(&str, &str)> = all.map(|volume| (volume, name.as_str())).collect();
        let made = pool.snapshot(reactor, &wanted, 0).await;
        self.layering.set(false);
        if !self.is_alive() {
            return;
        }
        // As it is when the snapshot has been made: what is written from here on is not in it.
        let mut then = self.judge.oracle.borrow().clone();
        self.expect(made.is_ok(), || format!("a snapshot cannot be made: {:?}", made.err()));
        self.shots.borrow_mut().insert(name.clone(), None);
        let Some(values) = self.read_shot(reactor, pool, &name).await else { return };
        let judged = then.end_read(ticket, &values.iter().map(|value| Ok(*value)).collect::<Vec<_>>());
        self.expect(judged.is_ok(), || format!("snapshot {name} is not of the moment it was made: {judged:?}"));
        self.keep(&name, values);
        self.compare_turns(reactor, pool, &name).await;
    }

    fn keep(&self, name: &str, values: Values) {
        if !self.is_alive() {
            return;
        }
        if let Some(known) = self.shots.borrow_mut().get_mut(name) {
            let same = known.as_ref().is_none_or(|known| *known == values);
            let known = known.get_or_insert_with(|| values.clone());
            self.judge.sim.expect(same, || format!("snapshot {name} has changed from {known:?} to {values:?}"));
        }
    }

    async fn read_shot(&self, reactor: &Rc<Reactor>, pool: &Arc<Pool>, name: &str) -> Option<Values> {
        let device = match view_of(&self.plan, pool, &format!("@{name}")) {
            Ok(device) => device,
            // It has been deleted meanwhile.
            Err(_) => return None,
        };
        let (cells, step) = (self.judge.oracle.borrow().cells() as u64, 16);
        let mut values = Values::new();
        for first in (0..cells).step_by(step) {
            let run = first..(first + step as u64).min(cells);
            match read_cells(reactor, &*device, run, 1 << self.plan.block_shift).await {
                Ok(found) => {
                    for value in found {
                        let value = value.map_err(|text| format!("snapshot {name}: {text}"));
                        self.expect(value.is_ok(), || value.clone().expect_err("it is an error"));
                        values.push(value.ok()?);
                    }
                }
                Err(error) => {
                    let is_there = self.shots.borrow().contains_key(name);
                    self.expect(!is_there, || format!("snapshot {name}: {error}"));
                    return None;
                }
            }
        }
        Some(values)
    }

    async fn read_shots(&self, reactor: &Rc<Reactor>, pool: &Arc<Pool>) {
        let names: Vec<String> = self.shots.borrow().keys().cloned().collect();
        for name in names {
            if let Some(values) = self.read_shot(reactor, pool, &name).await {
                self.keep(&name, values);
                self.compare_turns(reactor, pool, &name).await;
            }
        }
    }

    /// Where two snapshots hold something else, the engine has to say that they differ; and what reads as zeroes, that it does.
    async fn compare_shots(&self, reactor: &Rc<Reactor>, pool: &Arc<Pool>, rng: &mut Rng) {
        let shots: Vec<(String, Values)> = {
            let shots = self.shots.borrow();
            shots.iter().filter_map(|(name, values)| Some((name.clone(), values.clone()?))).collect()
        };
        if shots.len() < 2 {
            return;
        }
        // In the order in which they were made: their numbers grow.
        let mut by_number = shots;
        by_number.sort_by_key(|(name, _)| name[1..].parse::<u64>().expect("a number behind a letter"));
        let first = rng.below(by_number.len() as u64 - 1) as usize;
        let ((since, before), (name, after)) =
            (&by_number[first], &by_number[rng.between(first as u64 + 1, by_number.len() as u64 - 1) as usize]);
        let mut found = Vec::new();
        for volume in 0..self.plan.volumes {
            let (of, since) = (format!("v{volume}@{name}"), format!("v{volume}@{since}"));
            let (mut changes, mut from) = (Vec::new(), Some(0));
            while let Some(block) = from {
                match pool.changes(reactor, &of, Some(&since), block, rng.between(1, 8) as usize).await {
                    Ok(more) => {
                        changes.extend(more.changes);
                        from = more.next;
                    }
                    Err(error) => {
                        let is_there = |name: &str| self.shots.borrow().contains_key(name);
                        let both = is_there(&by_number[first].0) && is_there(name);
                        return self
                            .expect(!both, || format!("what differs from {since} in {of} is not told: {error}"));
                    }
                }
            }
            found.push(changes);
        }
        let shift = 12 - self.plan.block_shift;
        let cells = self.plan.windows().into_iter().flat_map(|window| {
            (window.start..window.start + window.blocks).map(move |block| (window.child, block >> shift))
        });
        for (((volume, block), before), after) in cells.zip(before).zip(after) {
            let change =
                found[volume].iter().find(|change| (change.first..change.first + change.blocks).contains(&block));
            let is_right = match change {
                None => before == after,
                Some(change) => change.kind != ChangeKind::Hole || *after == 0,
            };
            self.expect(is_right, || {
                format!("block {block} of v{volume} is {before} in {since} and {after} in {name}: told was {change:?}")
            });
        }
    }

    async fn delete_shot(&self, reactor: &Rc<Reactor>, pool: &Pool, rng: &mut Rng) {
        let names: Vec<String> = self.shots.borrow().keys().cloned().collect();
        let Some(name) = names.get(rng.below(names.len().max(1) as u64) as usize) else { return };
        // From here on it may be there or not.
        self.shots.borrow_mut().remove(name);
        let of_all = (0..self.plan.volumes).map(|volume| format!("v{volume}"));
        for volume in of_all.chain(TURNS.map(|(name, _)| name.to_string())) {
            let deleted = pool.delete_snapshot(reactor, &format!("{volume}@{name}")).await;
            self.expect(deleted.is_ok(), || format!("a snapshot cannot be deleted: {deleted:?}"));
        }
    }

    async fn take_turns(&self, reactor: &Rc<Reactor>, pool: &Pool, count: u64, mut rng: Rng) {
        for _ in 0..count {
            if rng.one_in(8) {
                self.turn_back(reactor, pool, &mut rng).await;
            }
            let turn = self.turns.replace(self.turns.get() + 1);
            for (name, block) in TURNS {
                let Some(volume) = pool.volume(name) else { return };
                let channel = volume.open_channel(reactor).expect("volumes open on every reactor");
                let mut buf = reactor.pool().alloc(4096).await;
                fill_cell(buf.as_mut_slice(), turn, block as usize);
                let mut bufs = SgList::new();
                bufs.push(buf);
                let done = channel.submit(Io::write(Lba(block), 1, bufs)).await;
                self.expect(done.status.is_ok(), || format!("a turn cannot be written: {}", done.status));
                if !self.is_alive() {
                    return;
                }
            }
        }
    }

    /// Rolls both volumes that take turns back to a snapshot, between two turns.
    async fn turn_back(&self, reactor: &Rc<Reactor>, pool: &Pool, rng: &mut Rng) {
        let names: Vec<String> = self.shots.borrow().keys().cloned().collect();
        let Some(name) = names.get(rng.below(names.len().max(1) as u64) as usize) else { return };
        if self.layering.replace(true) {
            return;
        }
        let [first, second] = TURNS.map(|(volume, _)| format!("{volume}@{name}"));
        let rolled = pool.roll_back_all(reactor, &[&first, &second]).await;
        self.layering.set(false);
        let is_there = self.shots.borrow().contains_key(name);
        self.expect(rolled.is_ok() || !is_there, || format!("two volumes cannot be rolled back: {rolled:?}"));
        self.compare_turns(reactor, pool, "").await;
    }

    /// The second of the volumes that take turns is where the first is, or one turn behind: in a snapshot or, without its name, now.
    /// After a crash in the middle of a turn the next one begins with the first again.
    async fn compare_turns(&self, reactor: &Rc<Reactor>, pool: &Pool, name: &str) {
        let mut turns = Vec::new();
        let of = |volume: &str| if name.is_empty() { volume.to_string() } else { format!("{volume}@{name}") };
        for (volume, block) in TURNS {
            let Some(device) = pool.volume(&of(volume)) else { return };
            let Ok(found) = read_cells(reactor, &*device, block..block + 1, 4096).await else { return };
            turns.push(found[0].clone());
        }
        if let [Ok(first), Ok(second)] = turns.as_slice() {
            self.expect(second <= first, || {
                format!("'{}' has turn {second} and '{}' only {first}", of(TURNS[1].0), of(TURNS[0].0))
            });
        } else {
            self.expect(false, || format!("'{}' and '{}' have turns {turns:?}", of(TURNS[0].0), of(TURNS[1].0)));
        }
    }

    async fn close(&self, reactor: Rc<Reactor>) {
        let Some(pool) = self.pool.take() else { return };
        let found = sides::find(&reactor, &pool).await;
        let judged = found.and_then(|found| self.sides.borrow().judge(&found));
        self.expect(judged.is_ok(), || format!("in the end: {judged:?}"));
        self.read_shots(&reactor, &pool).await;
        self.compare_shots(&reactor, &pool, &mut self.judge.sim.rng()).await;
        let reaped = pool.reap(&reactor).await;
        self.expect(reaped.is_ok(), || format!("what was deleted does not go: {reaped:?}"));
        self.read_shots(&reactor, &pool).await;
        let settled = pool.settle(&reactor).await;
        self.expect(settled.is_ok(), || format!("settling failed: {settled:?}"));
        self.read_shots(&reactor, &pool).await;
        crashed::audit(&self.judge, &reactor, &pool).await;
        pool.close(&reactor).await;
    }
}
