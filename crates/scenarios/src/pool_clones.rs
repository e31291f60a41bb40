//! `pool-clones`: clones that are written to in part and in parallel while they are flattened, and while what they were cloned
//! from goes, over devices some of whose operations take long, crashed at any step.
//!
//! Volumes are cloned while nobody writes, so that it is known exactly what a clone begins with. From then on each place of each
//! volume has one task that writes to it, and whatever is done to the layers below changes nothing of what it reads as.

use crate::Run;
use crate::branches::Branches;
use crate::layers::{self, Layers, Part, Work};
use crate::ledger::{Hands, Ledger, Spot};
use base::Rng;
use bdev::{BlockDevice, Status};
use engine::FlattenState;
use sim::Failure;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const LAYERS: Layers = Layers { most: 40, hot_one_in: 3 };
/// Several in the same blocks.
const PARTS: [Part; 5] = [(3, 1, 1), (3, 5, 2), (4, 0, 4), (5, 7, 1), (701, 2, 3)];
/// Volumes at the same time.
const VOLUMES_MAX: usize = 4;
/// Snapshots at the same time of volumes that are being written to.
const SHOTS_MAX: usize = 3;

/// What outlives the processes.
#[derive(Clone)]
struct Stage {
    ledger: Rc<RefCell<Ledger>>,
    branches: Branches,
    /// Snapshots that were made while others wrote.
    shots: Rc<Cell<u64>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let lives = layers::set_up(world, rng, LAYERS, &PARTS)?;
    let stage = Stage { ledger: lives.ledger.clone(), branches: Branches::beside(0), shots: Rc::default() };
    layers::play(world, rng, &lives, stage)
}

impl Work for Stage {
    async fn find(&self, hands: &Hands) {
        self.branches.find(hands);
    }

    async fn work(self, hands: Hands, mut rng: Rng) {
        for _ in 0..rng.between(1, 4) {
            if !rng.one_in(4) {
                self.branch(&hands, &mut rng).await;
            }
            if !hands.is_alive() {
                return;
            }
            let volumes: Vec<u64> = self.ledger.borrow().volumes().into_iter().collect();
            let goes = (volumes.len() > 1 && rng.one_in(2)).then(|| volumes[rng.below(volumes.len() as u64) as usize]);
            let tasks = rng.between(1, 5);
            let care = hands.reactor.spawn_join(self.clone().care(hands.clone(), goes, rng.fork()));
            let work = |task, rng| self.clone().work_on(hands.clone(), task, tasks, goes, rng);
            hands.share_out(tasks, &mut rng, work).await;
            care.await;
        }
    }

    /// All clones become independent, all volumes but the last go, and that has what it had.
    async fn finish(self, hands: Hands) {
        for name in self.branches.clones(&hands).await {
            self.branches.begin_to_flatten(&hands, &name).await;
            let ended = hands.pool.flattened(&hands.reactor, &name).await;
            let is_done = ended.as_ref().is_ok_and(|status| status.state == FlattenState::Done);
            hands.expect(is_done, || format!("in the end {name} is not flattened: {ended:?}"));
        }
        hands.read_all().await;
        let mut volumes = self.ledger.borrow().volumes();
        volumes.pop_last();
        for number in volumes {
            self.branches.delete(&hands, number).await;
        }
        self.branches.reap(&hands).await;
        hands.read_all().await;
        self.settle(&hands).await;
        hands.read_all().await;
        hands.audit().await;
        hands.pool.close(&hands.reactor).await;
    }
}

impl Stage {
    /// Makes a clone of a volume as it is.
    async fn branch(&self, hands: &Hands, rng: &mut Rng) {
        let volumes: Vec<u64> = self.ledger.borrow().volumes().into_iter().collect();
        if volumes.len() >= VOLUMES_MAX || !hands.is_alive() {
            return;
        }
        self.branches.branch(hands, volumes[rng.below(volumes.len() as u64) as usize]).await;
    }

    async fn work_on(self, hands: Hands, task: u64, tasks: u64, goes: Option<u64>, mut rng: Rng) {
        let spots = self.ledger.borrow().spots();
        // Tasks have blocks of their own, so that several are at work in an extent, and extents that are trimmed as a whole.
        let per = hands.per_block();
        let mine = |spot: &Spot| goes != Some(spot.volume) && (spot.volume + spot.first / per) % tasks == task;
        let mine: Vec<Spot> = spots.into_iter().filter(mine).collect();
        for _ in 0..rng.between(5, 40) {
            if !hands.is_alive() || mine.is_empty() {
                return;
            }
            let spot = mine[rng.below(mine.len() as u64) as usize];
            match rng.below(8) {
                0..4 => {
                    let status = hands.write(spot).await;
                    hands.expect(status == Status::Ok, || format!("writing {spot:?} failed with '{status}'"));
                }
                4 | 5 => drop(hands.read(spot).await),
                6 => {
                    let status = hands.trim(spot.volume, spot.first, spot.blocks).await;
                    hands.expect(status.is_ok(), || format!("trimming {spot:?} failed with '{status}'"));
                }
                _ => hands.reactor.sleep_ns(rng.below(3_000_000)).await,
            }
        }
    }

    /// What is done to layers beside the work; a volume that goes is not worked on.
    async fn care(self, hands: Hands, goes: Option<u64>, mut rng: Rng) {
        for _ in 0..rng.between(1, 10) {
            hands.reactor.sleep_ns(rng.below(2_000_000)).await;
            match rng.below(12) {
                0 => self.settle(&hands).await,
                1..4 => self.flatten_one(&hands, &mut rng).await,
                _ => self.shoot(&hands, &mut rng).await,
            }
        }
        let Some(number) = goes.filter(|_| hands.is_alive()) else { return };
        self.branches.delete(&hands, number).await;
    }

    /// Makes a snapshot of a volume that is being written to, or deletes one of those: extents come, go and are given upwards.
    async fn shoot(&self, hands: &Hands, rng: &mut Rng) {
        let there = hands.pool.volumes();
        let shots = there.iter().map(|volume| volume.name()).filter(|name| name.contains("@shot"));
        let shots: Vec<&str> = shots.collect();
        if shots.len() >= SHOTS_MAX || !shots.is_empty() && rng.one_in(2) {
            let shot = shots[rng.below(shots.len() as u64) as usize];
            let deleted = hands.pool.delete_snapshot(&hands.reactor, shot).await;
            return hands.expect(deleted.is_ok(), || format!("{shot} cannot be deleted: {deleted:?}"));
        }
        let volumes: Vec<u64> = self.ledger.borrow().volumes().into_iter().collect();
        let volume = format!("v{}", volumes[rng.below(volumes.len() as u64) as usize]);
        let name = format!("shot{}", self.shots.replace(self.shots.get() + 1));
        let made = hands.pool.snapshot(&hands.reactor, &[(&volume, &name)], 0).await;
        hands.expect(made.is_ok(), || format!("a snapshot of {volume} cannot be made: {:?}", made.err()));
    }

    async fn settle(&self, hands: &Hands) {
        let settled = hands.pool.settle(&hands.reactor).await;
        hands.expect(settled.is_ok(), || format!("settling failed: {settled:?}"));
    }

    /// Flattens a clone, to the end, for a moment, or without waiting for it.
    async fn flatten_one(&self, hands: &Hands, rng: &mut Rng) {
        let clones = self.branches.clones(hands).await;
        let Some(name) = clones.get(rng.below(clones.len().max(1) as u64) as usize) else { return };
        self.branches.begin_to_flatten(hands, name).await;
        match rng.below(4) {
            0 => {
                hands.reactor.sleep_ns(rng.below(1_000_000)).await;
                let stopped = hands.pool.stop_flatten(&hands.reactor, name).await;
                hands.expect(stopped.is_ok(), || format!("{name} is not stopped: {stopped:?}"));
                // It comes to its end soon, not at once.
                let ended = hands.pool.flattened(&hands.reactor, name).await;
                hands.expect(ended.is_ok(), || format!("{name} does not stop: {ended:?}"));
            }
            1 | 2 => {
                let ended = hands.pool.flattened(&hands.reactor, name).await;
                let is_done = ended.as_ref().is_ok_and(|status| status.state == FlattenState::Done);
                hands.expect(is_done, || format!("{name} is not flattened: {ended:?}"));
            }
            _ => {}
        }
    }
}
