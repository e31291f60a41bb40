//! `log-refusals`: a pool whose log device refuses writes for a while, some of them or all, as a full disk does below a sparse file,
//! or a path that comes back.
//!
//! Writes fail meanwhile or wait, and none for ever. What is acknowledged is there, at once and after a crash; and when the
//! device takes writes again the pool soon does, in the same process and with all of its log.

use crate::Run;
use crate::blocks::Crew;
use crate::crashes::{SECOND_NS, any_crash};
use crate::hot_pool::Plan;
use crate::ledger::{Hands, Spot};
use crate::lives::{Aim, Lives};
use base::Rng;
use bdev::Status;
use sim::{DiskFaults, Failure, ScheduleFaults, World};
use std::cell::Cell;
use std::rc::Rc;

const AIM: Aim = Aim("everybody to have an answer (I6)", 200 * SECOND_NS);
/// Virtual time in which the pool takes writes again.
const AGAIN_NS: u64 = 5 * SECOND_NS;
/// And in which its log is whole again.
const WHOLE_NS: u64 = 30 * SECOND_NS;
const EXTENTS: u64 = 5;

#[derive(Clone)]
struct Stage {
    lives: Lives,
    /// The device takes writes, for good.
    is_healed: Rc<Cell<bool>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let plan = Plan::pick(rng);
    // Less than a block over one whose write has failed does not say what it is over.
    let plan = Plan { mapped: false, block_shift: 12, volumes: 1, ..plan };
    let plan = if rng.one_in(2) { plan.shaped(rng) } else { plan };
    let places = [(0, 1), (5, 3), (100, 60), (1023, 1)];
    let spots = Spot::in_extents((0..EXTENTS).map(|extent| (0, extent)), &places, 1);
    let lives = Lives::new(world, rng, plan, spots, AIM)?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    let stage = Stage { lives, is_healed: Rc::default() };
    for _ in 0..rng.between(1, 2) {
        stage.life(world, rng)?;
        stage.lives.end(world, any_crash(rng));
    }
    Ok(())
}

impl Stage {
    /// One life of the process: everything is read, then there is work, during which the device refuses writes now and then.
    fn life(&self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        self.is_healed.set(false);
        let plan = Plan { reactors: rng.between(1, 3) as usize, ..self.lives.plan };
        world.boot(self.lives.node, plan.reactors, World::reactor_config());
        let (crew, stage, fork) = (Crew::default(), self.clone(), rng.fork());
        world.spawn(self.lives.node, 0, |reactor| {
            crew.member(async move {
                let Some(hands) = stage.lives.open_in(&plan, reactor).await else { return };
                hands.read_all().await;
                stage.work(hands, fork).await;
            })
        });
        // Opening is not part of it.
        world.run_for(SECOND_NS / 2)?;
        for _ in 0..rng.between(1, 3) {
            let write_error = if rng.one_in(2) { 1 } else { rng.between(2, 10) };
            let refuses_ns = if rng.one_in(2) { rng.between(100_000, 50_000_000) } else { rng.below(3 * SECOND_NS) };
            world.set_disk_faults(
                self.lives.node,
                &plan.log_path(),
                DiskFaults { write_error, ..DiskFaults::default() },
            );
            world.run_for(refuses_ns)?;
            world.set_disk_faults(self.lives.node, &plan.log_path(), DiskFaults::default());
            world.run_for(rng.below(2 * SECOND_NS))?;
        }
        self.is_healed.set(true);
        world.run_until(AIM.0, AIM.1, |_| crew.is_done())
    }

    async fn work(self, hands: Hands, mut rng: Rng) {
        let whole = self.log_bytes(&hands).await;
        let tasks = rng.between(1, 4);
        let work = |task, rng| self.clone().work_on(hands.clone(), task, tasks, rng);
        hands.share_out(tasks, &mut rng, work).await;
        if self.lives.plan.idle_ns.is_multiple_of(2) {
            self.find_out(&hands).await;
        }
        self.recover(&hands, whole).await;
        hands.read_all().await;
        if rng.one_in(2) {
            let settled = hands.pool.settle(&hands.reactor).await;
            hands.expect(settled.is_ok(), || format!("settling failed: {settled:?}"));
            hands.read_all().await;
        }
        hands.audit().await;
        if rng.one_in(2) {
            hands.pool.close(&hands.reactor).await;
        }
    }

    async fn work_on(self, hands: Hands, task: u64, tasks: u64, mut rng: Rng) {
        let spots = self.lives.ledger.borrow().spots();
        let mine: Vec<Spot> = spots.into_iter().filter(|spot| spot.first / 1024 % tasks == task).collect();
        while !self.is_healed.get() {
            let spot = mine[rng.below(mine.len() as u64) as usize];
            match rng.below(4) {
                0 => drop(hands.read(spot).await),
                1 => hands.reactor.sleep_ns(rng.below(20_000_000)).await,
                _ => {
                    let status = hands.write(spot).await;
                    hands.expect(matches!(status, Status::Ok | Status::WriteError), || {
                        format!("writing {spot:?} failed with '{status}'")
                    });
                }
            }
        }
    }

    async fn log_bytes(&self, hands: &Hands) -> u64 {
        let status = hands.pool.status(&hands.reactor).await;
        status.shards.iter().map(|shard| shard.log_bytes).sum()
    }

    /// The device takes writes: without one of a host, the pool soon knows.
    async fn find_out(&self, hands: &Hands) {
        let begun_ns = hands.reactor.now_ns();
        while hands.is_alive() {
            let shards = hands.pool.status(&hands.reactor).await.shards;
            // With no extent left there is no record that changes nothing.
            let Some(shard) = shards.iter().find(|shard| shard.log_trouble.is_some() && shard.free_extents > 0) else {
                return;
            };
            let waited_ns = hands.reactor.now_ns() - begun_ns;
            hands.expect(waited_ns < AGAIN_NS, || format!("{waited_ns} ns later it has not found out: {shard:?}"));
            hands.reactor.sleep_ns(SECOND_NS / 10).await;
        }
    }

    /// The device takes writes: so does the pool soon, and soon it has no less of its log than before.
    async fn recover(&self, hands: &Hands, whole: u64) {
        let begun_ns = hands.reactor.now_ns();
        let spots = self.lives.ledger.borrow().spots();
        for spot in spots {
            loop {
                let status = hands.write(spot).await;
                let waited_ns = hands.reactor.now_ns() - begun_ns;
                if status.is_ok() || !hands.is_alive() {
                    break;
                }
                hands.expect(waited_ns < AGAIN_NS, || format!("{waited_ns} ns later writing {spot:?}: '{status}'"));
                hands.reactor.sleep_ns(SECOND_NS / 10).await;
            }
        }
        while self.log_bytes(hands).await < whole && hands.is_alive() {
            let waited_ns = hands.reactor.now_ns() - begun_ns;
            hands.expect(waited_ns < WHOLE_NS, || format!("{waited_ns} ns later the log is not whole again"));
            hands.reactor.sleep_ns(SECOND_NS).await;
            // A segment is looked for when there is something to write.
            let spots = self.lives.ledger.borrow().spots();
            for spot in spots {
                let status = hands.write(spot).await;
                hands.expect(status.is_ok(), || format!("after all worked writing {spot:?} fails: '{status}'"));
            }
        }
    }
}
