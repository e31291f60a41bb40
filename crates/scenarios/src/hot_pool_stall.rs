//! `hot-pool-stall`: a pool whose capacity device takes no flush any more from some moment on, as files do after one that
//! failed, and many drives before they go. Nothing leaves the log then, and it fills.
//!
//! Writes fail in the end, most of them soon, and none waits for ever. What can be read tells the truth, and on a
//! device that works again everything is there that was acknowledged.

use crate::Run;
use crate::crashes::{SECOND_NS, any_crash};
use crate::hot_pool::Plan;
use crate::ledger::{Hands, Spot};
use crate::lives::{Aim, Lives};
use base::Rng;
use bdev::Status;
use sim::{Failure, ScheduleFaults, World};
use std::cell::Cell;
use std::rc::Rc;

/// Virtual time in which a life comes to its end, with [`FAILURES`] of each task: were every write to fail after the time
/// for which the first is kept waiting, it would not be enough.
const LIFE_NS: u64 = 250 * SECOND_NS;
/// A task ends when so many of its writes have failed.
const FAILURES: u64 = 10;
/// Most that a task asks for: far more than a log has room for.
const OPERATIONS_MAX: u64 = 20_000;
const EXTENTS: u64 = 5;

#[derive(Clone)]
struct Stage {
    lives: Lives,
    failed: Rc<Cell<bool>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let plan = Plan::pick(rng);
    // Less than a block over one whose write has failed does not say what it is over.
    let plan = Plan { block_shift: 12, volumes: 1, ..plan };
    let plan = if rng.one_in(3) { plan.shaped(rng) } else { plan };
    let places = [(0, 1), (5, 3), (100, 60), (1023, 1)];
    let spots = Spot::in_extents((0..EXTENTS).map(|extent| (0, extent)), &places, 1);
    let lives = Lives::new(world, rng, plan, spots, Aim("everybody to have an answer (I6)", LIFE_NS))?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    let stage = Stage { lives, failed: Rc::default() };
    let (flushes, fork) = (rng.between(1, 20), rng.fork());
    stage.life(world, rng, flushes, |stage, hands| async move { stage.work(hands, fork).await })?;
    stage.lives.end(world, any_crash(rng));
    stage.life(world, rng, 0, |stage, hands| async move { stage.finish(hands).await })
}

impl Stage {
    /// One life of the process: opens the pool, reads everything, and goes on with `main`. The device takes so many flushes.
    fn life<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        rng: &mut Rng,
        flushes: u64,
        main: impl FnOnce(Stage, Hands) -> F + 'static,
    ) -> Result<(), Failure> {
        let plan = Plan { reactors: rng.between(1, 3) as usize, flushes, ..self.lives.plan };
        let stage = self.clone();
        self.lives.live(world, plan.reactors, |reactor| async move {
            match stage.lives.open_and_keep(&plan, &reactor).await {
                Ok(pool) => {
                    let hands = stage.lives.hands(pool, reactor);
                    hands.read_all().await;
                    main(stage, hands).await;
                }
                Err(error) => stage.lives.expect(flushes > 0, || format!("the pool does not open: {error}")),
            }
        })
    }

    async fn work(self, hands: Hands, mut rng: Rng) {
        let tasks = rng.between(1, 4);
        let work = |task, rng| self.clone().work_on(hands.clone(), task, tasks, rng);
        hands.share_out(tasks, &mut rng, work).await;
        hands.expect(self.failed.get(), || "a log that nothing leaves takes everything".to_string());
        hands.read_all().await;
        if rng.one_in(2) {
            hands.pool.close(&hands.reactor).await;
        }
    }

    async fn work_on(self, hands: Hands, task: u64, tasks: u64, mut rng: Rng) {
        let spots = self.lives.ledger.borrow().spots();
        let mine: Vec<Spot> = spots.into_iter().filter(|spot| spot.first / 1024 % tasks == task).collect();
        let mut failures = 0;
        for _ in 0..OPERATIONS_MAX {
            let spot = mine[rng.below(mine.len() as u64) as usize];
            if rng.one_in(4) {
                hands.read(spot).await;
                continue;
            }
            match hands.write(spot).await {
                Status::Ok => {}
                Status::WriteError => {
                    self.failed.set(true);
                    failures += 1;
                }
                other => hands.expect(false, || format!("writing {spot:?} failed with '{other}'")),
            }
            if failures == FAILURES {
                return;
            }
        }
    }

    async fn finish(self, hands: Hands) {
        let spots = self.lives.ledger.borrow().spots();
        for spot in spots {
            let status = hands.write(spot).await;
            hands.expect(status.is_ok(), || format!("on a device that works writing {spot:?} fails with '{status}'"));
        }
        hands.read_all().await;
        let settled = hands.pool.settle(&hands.reactor).await;
        hands.expect(settled.is_ok(), || format!("settling failed: {settled:?}"));
        hands.audit().await;
        hands.pool.close(&hands.reactor).await;
    }
}
