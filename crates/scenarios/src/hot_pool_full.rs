//! `hot-pool-full`: thin volumes that promise far more than there is, on a capacity device that is full, behind a log that is
//! held full by a slow one, under kills and power cuts.
//!
//! A write to a new place fails with the status for that, and only when its shard has no extent left; whatever was
//! acknowledged stays readable and can be overwritten; trimming and deleting bring back exactly what they free; and
//! everything ends (I6): neither a full log nor a full device may keep upkeep from what makes room.
//!
//! `shaped-pool-full`: the same with a shaped pool, all of whose extents are written whole again and again, so that the
//! collector has nothing but what no extent can take. `parity-pool-full` is this over parity, where bands are of few units, and
//! `zoned-pool-full` on zones; `warm-pool-full` is the first one over a flash cache.

use crate::Run;
use crate::branches::Branches;
use crate::crashes::{SECOND_NS, any_crash};
use crate::ground::Ground;
use crate::hot_pool::{EXTENT_BLOCKS, Plan, SLICE_BLOCKS};
use crate::ledger::{Hands, Spot};
use crate::lives::{Aim, Lives};
use crate::redundant::Array;
use crate::{warm_pool, zoned_pool};
use base::Rng;
use bdev::Status;
use engine::Pool;
use reactor::Reactor;
use sim::{DiskFaults, Failure, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

const EXTENT_BYTES: u64 = 4 << 20;
/// Virtual time in which a life comes to its end.
const LIFE_NS: u64 = 600 * SECOND_NS;
const VOLUME_EXTENTS: u64 = 3 * SLICE_BLOCKS / EXTENT_BLOCKS;
const SLICE_EXTENTS: u64 = SLICE_BLOCKS / EXTENT_BLOCKS;

/// Extents of a volume that are used: of every slice some, more in all than any shard has.
fn extents_used() -> impl Iterator<Item = u64> {
    (0..VOLUME_EXTENTS).filter(|extent| extent % SLICE_EXTENTS < 8)
}

/// Blocks that a burst writes parts of, and where they are in the first extent of each volume.
const PARTS: u64 = 300;
const PARTS_FROM: u64 = 200;

fn part_spot(volume: u64, part: u64, per_block: u64) -> Spot {
    Spot { volume, first: (PARTS_FROM + part) * per_block + 1, blocks: 1 }
}

/// Places that are an extent together, one of them the block that is written everywhere.
fn whole_extent(per: u64) -> Vec<(u64, u64)> {
    let large = (1..EXTENT_BLOCKS / 64).map(|piece| (piece * 64, 64));
    let small = [(0, 5), (6, 58)];
    let places = small.into_iter().chain(large).map(|(first, blocks)| (first * per, blocks * per));
    places.chain([(5 * per, 1)]).collect()
}

/// Clones at the same time.
const BRANCHES_MAX: usize = 3;

/// What outlives the processes.
#[derive(Clone)]
struct Stage {
    lives: Lives,
    /// Extents that are taken for certain, (volume, extent of it): nothing else was asked of them since.
    taken: Rc<RefCell<BTreeSet<(u64, u64)>>>,
    /// The first layer of each volume, which says what shard a slice is of.
    origins: Rc<RefCell<BTreeMap<u64, u32>>>,
    /// Writes that found no space.
    refused: Rc<Cell<u64>>,
    /// In half of the runs: clones, and the snapshots that they begin as, until the pool is filled.
    branches: Option<Branches>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let plan = in_place(&mut run.rng);
    run_with(run, plan, Ground::Disk)
}

pub(crate) fn run_shaped(run: &mut Run) -> Result<(), Failure> {
    let plan = in_place(&mut run.rng).shaped(&mut run.rng);
    run_with(run, plan, Ground::Disk)
}

pub(crate) fn run_zoned(run: &mut Run) -> Result<(), Failure> {
    let (plan, drive) = zoned_pool::pick_for(&mut run.rng, run.world.handle().mutation(), in_little_place);
    run_with(run, plan.with_lazy_gc(), Ground::Zones(drive))
}

pub(crate) fn run_parity(run: &mut Run) -> Result<(), Failure> {
    let (plan, array) = Array::parity(&mut run.rng, run.world.handle().mutation(), in_little_place);
    run_with(run, plan.with_lazy_gc(), Ground::Array(array))
}

pub(crate) fn run_warm(run: &mut Run) -> Result<(), Failure> {
    let plan = in_place(&mut run.rng);
    let shelf = warm_pool::pick_for(&mut run.rng, &plan);
    run_with(run, plan, Ground::Warm(shelf))
}

/// The same for devices below which there are many operations for one: there, a collector that never has enough would be at work
/// for most of the time.
fn in_little_place(rng: &mut Rng) -> Plan {
    let plan = in_place(rng);
    let (shards, volumes) = (plan.shards.min(2), plan.volumes.min(2));
    let log_bytes = 16 * 4096 + (plan.log_bytes - 16 * 4096) / plan.shards as u64 * shards as u64;
    let capacity_bytes = shards as u64 * rng.between(3, 5) * EXTENT_BYTES + (2 << 20);
    Plan { shards, volumes, log_bytes, capacity_bytes, ..plan }
}

/// A pool that is soon full, and so is its log.
fn in_place(rng: &mut Rng) -> Plan {
    let plan = Plan::pick(rng);
    let extents = rng.between(4, 10);
    // Few segments, so that little fills them. After an opening two may be held that have nothing, and with five in all the
    // rest is less than the reserve and a large write: no pool but a tiny one has so few.
    let segments = rng.between(6, 9) * plan.shards as u64;
    let (volumes, idle_ns) = (rng.between(2, 4), rng.between(50_000, 5_000_000));
    Plan {
        log_bytes: (16 + segments * plan.segment_blocks as u64) * 4096,
        capacity_bytes: plan.shards as u64 * (extents + 1) * EXTENT_BYTES + (2 << 20),
        volumes,
        idle_ns,
        // Without asking chance, so that seeds that once found something keep their plans.
        ..plan.layered_if(idle_ns.is_multiple_of(2), 0)
    }
}

fn run_with(run: &mut Run, plan: Plan, ground: Ground) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let per = 1u64 << (12 - plan.block_shift);
    // The ends of an extent, two in one block of 4 KiB when that is more than one of the volume's, and some that fill the log.
    let hot = [(0, 1), (per - 1, 1), (5 * per, 1), (100 * per, 48 * per), (EXTENT_BLOCKS * per - 1, 1)];
    let places = if plan.bands.is_some() { whole_extent(per) } else { hot.to_vec() };
    let extents = (0..plan.volumes).flat_map(|volume| extents_used().map(move |extent| (volume, extent)));
    let spots = Spot::in_extents(extents, &places, per);
    // Parts of many blocks: merging them takes room in the log before any comes back.
    let parts = if per > 1 && plan.bands.is_none() { 0..plan.volumes } else { 0..0 };
    let parts = parts.flat_map(|volume| (0..PARTS).map(move |part| part_spot(volume, part, per)));
    let spots = spots.chain(parts);
    let lives = Lives::on(ground, world, rng, plan, spots, Aim("the work on a full pool to end (I6)", LIFE_NS))?;
    if rng.one_in(2) {
        let faults = DiskFaults { slow: rng.between(2, 20), ..DiskFaults::default() };
        let disks = ground.disks(&plan);
        disks.iter().for_each(|(path, _)| world.set_disk_faults(lives.node, path, faults.clone()));
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    let stage = Stage {
        lives,
        taken: Rc::default(),
        origins: Rc::default(),
        refused: Rc::default(),
        branches: plan.is_layered().then(|| Branches::beside(plan.volumes)),
    };
    for round in 0..rng.between(1, 4) {
        world.handle().note(format!("round {round}"));
        let crash = any_crash(rng);
        if rng.one_in(2) {
            world.crash_after_writes(stage.lives.node, rng.between(1, 600), crash);
        }
        let fork = rng.fork();
        stage.life(world, rng, |stage, hands| async move { stage.work(hands, fork).await })?;
        stage.lives.end(world, crash);
    }
    world.heal();
    let fork = rng.fork();
    stage.life(world, rng, |stage, hands| async move { stage.fill(hands, fork).await })
}

impl Stage {
    /// One life of the process: opens the pool, reads everything, and goes on with `main`.
    fn life<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        rng: &mut Rng,
        main: impl FnOnce(Stage, Hands) -> F + 'static,
    ) -> Result<(), Failure> {
        let stage = self.clone();
        self.lives.open(world, rng, |hands| async move {
            if let Some(branches) = &stage.branches {
                branches.find(&hands);
                // Extents change hands while a deleted layer goes.
                branches.reap(&hands).await;
            }
            stage.make_up(&hands).await;
            hands.read_all().await;
            main(stage, hands).await;
        })
    }

    /// After a crash: volumes whose deletion had begun are made again, and what is taken for certain is.
    async fn make_up(&self, hands: &Hands) {
        for volume in 0..self.lives.plan.volumes {
            if hands.pool.volume(&format!("v{volume}")).is_none() {
                let spots = self.lives.ledger.borrow().within(volume, 0..u64::MAX);
                let certain = spots.iter().find(|spot| self.lives.ledger.borrow().is_written(**spot));
                hands.expect(certain.is_none(), || format!("volume v{volume} is missing"));
                self.make(hands, volume).await;
                self.lives.ledger.borrow_mut().end_zero(&spots);
            }
        }
        for volume in (0..self.lives.plan.volumes).filter(|_| hands.is_alive()) {
            let found = hands.pool.volume(&format!("v{volume}")).expect("it has just been made, if it was missing");
            self.origins.borrow_mut().entry(volume).or_insert(found.layer());
        }
        let owners = self.owners(hands).await;
        let gone = self.taken.borrow().iter().find(|extent| !owners.contains_key(*extent)).copied();
        hands.expect(gone.is_none(), || format!("extent {gone:?} was taken, and nobody has it"));
    }

    async fn make(&self, hands: &Hands, volume: u64) {
        let (name, blocks) = (format!("v{volume}"), VOLUME_EXTENTS * EXTENT_BLOCKS);
        self.origins.borrow_mut().remove(&volume);
        let made = hands.pool.create_volume(&hands.reactor, &name, blocks, self.lives.plan.block_shift, 0).await;
        match made {
            Ok(made) => drop(self.origins.borrow_mut().insert(volume, made.layer())),
            Err(error) => hands.expect(false, || format!("making {name} again fails: {error}")),
        }
    }

    /// The shard of each extent that a volume has.
    async fn owners(&self, hands: &Hands) -> BTreeMap<(u64, u64), u16> {
        let audit = hands.pool.audit(&hands.reactor).await;
        let audit = match audit {
            Ok(audit) => audit,
            Err(error) => {
                hands.expect(false, || format!("the audit fails: {error}"));
                return BTreeMap::new();
            }
        };
        let problem = audit.problems.iter().find(|problem| problem.starts_with("shard"));
        hands.expect(problem.is_none(), || format!("the audit finds: {problem:?}"));
        hands.audit_places().await;
        let numbers = self.lives.ledger.borrow().volumes().into_iter().filter_map(|volume| {
            let found = hands.pool.volume(&format!("v{volume}"))?;
            Some((found.layer(), volume))
        });
        let numbers: BTreeMap<u32, u64> = numbers.collect();
        let named = audit
            .extents
            .iter()
            .filter_map(|owner| Some(((*numbers.get(&owner.volume)?, owner.vextent as u64), owner.shard)));
        named.collect()
    }

    /// A write whose ending is judged; whether it had space.
    async fn write(&self, hands: &Hands, spot: Spot) -> bool {
        let extent = self.lives.extent_of(spot);
        let taken = self.taken.borrow().contains(&extent);
        let status = hands.write(spot).await;
        if !hands.is_alive() {
            return false;
        }
        match status {
            Status::Ok => drop(self.taken.borrow_mut().insert(extent)),
            Status::NoSpace => {
                if taken {
                    let status = hands.pool.status(&hands.reactor).await;
                    hands.expect(false, || format!("there is no space for {spot:?}, whose extent exists: {status:?}"));
                }
                self.refused.set(self.refused.get() + 1);
            }
            other => hands.expect(false, || format!("writing {spot:?} failed with '{other}' without cause")),
        }
        status.is_ok()
    }

    async fn free_extent(&self, hands: &Hands, (volume, extent): (u64, u64)) {
        self.taken.borrow_mut().remove(&(volume, extent));
        let blocks = EXTENT_BLOCKS * hands.per_block();
        let status = hands.trim(volume, extent * blocks, blocks).await;
        // Holes over what a snapshot has need an extent.
        let is_full = self.branches.is_some() && status == Status::NoSpace;
        hands.expect(status.is_ok() || is_full, || format!("trimming an extent failed with '{status}'"));
    }

    /// Work on more extents than there are; each task has its own.
    async fn work(self, hands: Hands, mut rng: Rng) {
        let tasks = rng.between(1, 4);
        let work = |task, rng| self.clone().work_on(hands.clone(), task, tasks, rng);
        hands.share_out(tasks, &mut rng, work).await;
        if let Some(branches) = &self.branches {
            for _ in 0..rng.between(1, 3) {
                self.change_layers(branches, &hands, &mut rng).await;
                hands.share_out(tasks, &mut rng, work).await;
            }
        }
        if rng.one_in(3) && hands.is_alive() {
            self.replace_volume(&hands, rng.below(self.lives.plan.volumes)).await;
        }
    }

    /// A clone is made or deleted, or a snapshot is deleted. Who writes to what a snapshot has needs an extent again.
    async fn change_layers(&self, branches: &Branches, hands: &Hands, rng: &mut Rng) {
        if !hands.is_alive() {
            return;
        }
        self.taken.borrow_mut().clear();
        match (rng.below(4), branches.any(hands, rng)) {
            (0 | 1, _) if branches.later(hands).len() < BRANCHES_MAX => {
                let volumes: Vec<u64> = self.lives.ledger.borrow().volumes().into_iter().collect();
                branches.branch(hands, volumes[rng.below(volumes.len() as u64) as usize]).await;
            }
            (1 | 2, Some(number)) => branches.delete(hands, number).await,
            _ => branches.delete_snapshot(hands, rng).await,
        }
        if hands.is_alive() {
            branches.reap(hands).await;
        }
    }

    async fn work_on(self, hands: Hands, task: u64, tasks: u64, mut rng: Rng) {
        let spots = self.lives.ledger.borrow().spots();
        let mine: Vec<Spot> = spots.into_iter().filter(|spot| self.lives.extent_of(*spot).1 % tasks == task).collect();
        for _ in 0..rng.between(20, 120) {
            if !hands.is_alive() {
                return;
            }
            let mut spot = mine[rng.below(mine.len() as u64) as usize];
            if rng.one_in(2) {
                // One that may well exist.
                let written = |spot: &&Spot| self.taken.borrow().contains(&self.lives.extent_of(**spot));
                let known: Vec<Spot> = mine.iter().filter(written).copied().collect();
                spot = known.get(rng.below(known.len().max(1) as u64) as usize).copied().unwrap_or(spot);
            }
            match rng.below(16) {
                0..9 => drop(self.write(&hands, spot).await),
                9..13 => drop(hands.read(spot).await),
                13 => self.free_extent(&hands, self.lives.extent_of(spot)).await,
                14 => {
                    // With nothing but holes left in it, the extent is given back when it has been destaged.
                    self.taken.borrow_mut().remove(&self.lives.extent_of(spot));
                    let status = hands.trim(spot.volume, spot.first, spot.blocks).await;
                    hands.expect(matches!(status, Status::Ok | Status::NoSpace), || {
                        format!("trimming {spot:?} failed with '{status}'")
                    });
                }
                _ if task == 0 && hands.per_block() > 1 && self.lives.plan.bands.is_none() => {
                    self.burst(&hands, &mut rng).await
                }
                _ => hands.reactor.sleep_ns(rng.below(3_000_000)).await,
            }
        }
    }

    /// Writes parts of many blocks at once.
    async fn burst(&self, hands: &Hands, rng: &mut Rng) {
        let volume = rng.below(self.lives.plan.volumes);
        let writes = (0..rng.between(1, PARTS)).map(|part| {
            let (stage, hands, spot) = (self.clone(), hands.clone(), part_spot(volume, part, hands.per_block()));
            let reactor = hands.reactor.clone();
            reactor.spawn_join(async move { stage.write(&hands, spot).await })
        });
        let writes: Vec<_> = writes.collect();
        for write in writes {
            write.await;
        }
    }

    /// Deletes a volume and makes it again.
    async fn replace_volume(&self, hands: &Hands, volume: u64) {
        let spots = self.lives.ledger.borrow().within(volume, 0..u64::MAX);
        self.lives.ledger.borrow_mut().begin_zero(&spots);
        self.taken.borrow_mut().retain(|extent| extent.0 != volume);
        let (pool, reactor, name) = (&hands.pool, &hands.reactor, format!("v{volume}"));
        let deleted = match &self.branches {
            None => pool.delete_volume(reactor, &name).await,
            Some(_) => pool.delete_volume_and_snapshots(reactor, &name).await,
        };
        hands.expect(deleted.is_ok(), || format!("deleting a volume of a full pool fails: {deleted:?}"));
        if !hands.is_alive() {
            return;
        }
        if let Some(branches) = &self.branches {
            self.taken.borrow_mut().clear();
            branches.reap(hands).await;
        }
        self.make(hands, volume).await;
        self.lives.ledger.borrow_mut().end_zero(&spots);
    }

    async fn free_extents(&self, pool: &Pool, reactor: &Rc<Reactor>) -> Vec<u32> {
        pool.status(reactor).await.shards.iter().map(|shard| shard.free_extents).collect()
    }

    /// One block into every extent of every volume; how many were new to each shard.
    async fn write_everywhere(&self, hands: &Hands) -> Vec<u32> {
        let mut new = vec![0; self.lives.plan.shards as usize];
        let owners = self.owners(hands).await;
        for volume in 0..self.lives.plan.volumes {
            let origin = self.origins.borrow()[&volume] as u64;
            for extent in extents_used() {
                let first = (extent * EXTENT_BLOCKS + 5) * hands.per_block();
                // As the engine deals out slices: see the words in `docs/decisions/engine.md`.
                let shard = ((origin + extent / SLICE_EXTENTS) % self.lives.plan.shards as u64) as usize;
                let written = self.write(hands, Spot { volume, first, blocks: 1 }).await;
                new[shard] += (written && !owners.contains_key(&(volume, extent))) as u32;
                if !written {
                    let free = self.free_extents(&hands.pool, &hands.reactor).await[shard];
                    hands.expect(free == 0, || format!("no space in a shard with {free} free extents"));
                }
            }
        }
        new
    }

    /// Without faults and without anything beside: fills the pool to the last extent, and what follows from that.
    async fn fill(self, hands: Hands, mut rng: Rng) {
        let (pool, reactor): (Arc<Pool>, _) = (hands.pool.clone(), hands.reactor.clone());
        if let Some(branches) = &self.branches {
            self.taken.borrow_mut().clear();
            branches.clear(&hands).await;
        }
        // What trims have emptied comes back before it is counted.
        let settled = pool.settle(&reactor).await;
        hands.expect(settled.is_ok(), || format!("a pool that may be full does not settle: {settled:?}"));
        let free = self.free_extents(&pool, &reactor).await;
        let new = self.write_everywhere(&hands).await;
        hands.expect(new == free, || format!("{new:?} new extents were written, {free:?} were free"));
        let mut spots = self.lives.ledger.borrow().spots();
        spots.retain(|spot| self.taken.borrow().contains(&self.lives.extent_of(*spot)));
        // A shaped pool that has been filled makes room by what has been overwritten of each band.
        for _ in 0..if self.lives.plan.bands.is_some() { rng.between(2, 3) } else { 1 } {
            for spot in &spots {
                self.write(&hands, *spot).await;
            }
            spots.sort_by_cached_key(|_| rng.next_u64());
        }
        hands.read_all().await;
        let settled = pool.settle(&reactor).await;
        hands.expect(settled.is_ok(), || format!("a full pool does not settle: {settled:?}"));

        let volume = rng.below(self.lives.plan.volumes);
        let mut freed = vec![0; self.lives.plan.shards as usize];
        for ((owner, extent), shard) in self.owners(&hands).await {
            if owner == volume || rng.one_in(8) {
                freed[shard as usize] += 1;
                if owner != volume {
                    self.free_extent(&hands, (owner, extent)).await;
                }
            }
        }
        self.replace_volume(&hands, volume).await;
        let free = self.free_extents(&pool, &reactor).await;
        hands.expect(free == freed, || format!("{free:?} extents are free after giving back {freed:?}"));
        let new = self.write_everywhere(&hands).await;
        hands.expect(new == freed, || format!("{new:?} new extents were written after giving back {freed:?}"));
        hands.read_all().await;
        pool.close(&reactor).await;
    }
}
