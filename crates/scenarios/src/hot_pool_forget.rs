//! `hot-pool-forget`, `shaped-pool-forget`: a pool whose log device is lost, or given up, and `forget-log`, crashed at any of its steps and
//! repeated, or taken back when the log turns up again.
//!
//! What may be lost is known exactly, by slices: those that something was written to, or trimmed in, since the pool began to
//! be settled, whatever else was under way then. There a read is an error or tells what is newest; everywhere else it tells what is newest.
//! So nothing stale comes back, and nothing is lost that could not have been in the log alone. A pool that has too little
//! room to note the losses says by how much its device has to grow, and that suffices.
//!
//! In a third of the shaped pools headers of stripes rot while the pool is closed: after a scrub nothing is in use there any more, so
//! that nothing is lost with the log but what was to be.

use crate::Run;
use crate::branches::Branches;
use crate::crashes::{SECOND_NS, any_crash};
use crate::given_up::GivenUp;
use crate::hot_pool::{EXTENT_BLOCKS, Plan, SLICE_BLOCKS, add_log};
use crate::ledger::{Hands, Spot};
use crate::lives::{Aim, Lives};
use base::Rng;
use bdev::{BlockDevice, Flags, Io, Lba, Status};
use engine::{CheckOptions, ForgottenLog, Pool};
use reactor::{Reactor, SgList};
use sim::{Crash, Failure, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

const EXTENT_BYTES: u64 = 4 << 20;
/// More than every slice of the volumes takes in every shard.
const GROWTH_BYTES: u64 = 4 << 30;
const LIFE_NS: u64 = 120 * SECOND_NS;
const VOLUMES: u64 = 2;
/// Blocks of 4 KiB that are looked at together for headers.
const READ_BLOCKS: usize = 64;
/// Extents of the volumes that are used, in three slices.
const EXTENTS: [u64; 6] = [0, 1, 15, 16, 17, 40];
/// Clones at the same time.
const BRANCHES_MAX: usize = 3;
/// Attempts to give up a log that are crashed.
const CRASHED_MAX: u64 = 12;

/// How an attempt to give up a log ended, as its process saw it.
#[derive(Clone, Debug, PartialEq)]
enum Attempt {
    /// It did not.
    Crashed,
    Ended(GivenUp),
}

/// What outlives the processes.
#[derive(Clone)]
struct Stage {
    lives: Lives,
    /// Slices, (volume, slice of it), that may have something in the log alone.
    touched: Rc<RefCell<BTreeSet<(u64, u64)>>>,
    /// Of those, the ones since the pool was last asked to settle.
    touched_since: Rc<RefCell<BTreeSet<(u64, u64)>>>,
    /// The volume that comes and goes may have touched something, too.
    visitors: Rc<Cell<u64>>,
    /// In half of the runs: clones, and the snapshots that they begin as.
    branches: Option<Branches>,
    /// Layers that may have touched the same slice: one, and more for each snapshot since the pool was last asked to settle.
    layers: Rc<Cell<u64>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let plan = pick(&mut run.rng);
    run_with(run, plan)
}

/// The same with a shaped pool, whose index goes with its log device.
pub(crate) fn run_shaped(run: &mut Run) -> Result<(), Failure> {
    let rng = &mut run.rng;
    // Of a few write units: each is read to see what is in it.
    let (unit_blocks, band_blocks) = (16u32 >> rng.below(3), 64u32 << rng.below(2));
    let plan = pick(rng).with_bands(rng, unit_blocks, band_blocks);
    // Room on the log device for the index of what it may have to grow by.
    let plan = plan.growing(GROWTH_BYTES);
    run_with(run, plan)
}

fn pick(rng: &mut Rng) -> Plan {
    let plan = Plan::pick(rng);
    // Room for every extent of every slice, or too little.
    let extents = if rng.one_in(2) { 120 / plan.shards as u64 + 20 } else { 20 };
    let idle_ns = rng.between(50_000, 50_000_000);
    // Without asking chance, so that seeds that once found something keep their plans.
    let plan = plan.layered_if(idle_ns.is_multiple_of(2), 0);
    Plan { volumes: VOLUMES, capacity_bytes: (plan.shards as u64 * extents + 2) * EXTENT_BYTES, idle_ns, ..plan }
}

fn run_with(run: &mut Run, plan: Plan) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let per = 1u64 << (12 - plan.block_shift);
    let places = [(0, per), (3 * per, 1), (7 * per, 8 * per), ((EXTENT_BLOCKS - 1) * per, per)];
    let extents = (0..VOLUMES).flat_map(|volume| EXTENTS.into_iter().map(move |extent| (volume, extent)));
    let spots = Spot::in_extents(extents, &places, per);
    let lives = Lives::new(world, rng, plan, spots, Aim("the process to end its work", LIFE_NS))?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    let mut stage = Stage {
        lives,
        touched: Rc::default(),
        touched_since: Rc::default(),
        visitors: Rc::default(),
        branches: plan.is_layered().then(|| Branches::beside(VOLUMES)),
        layers: Rc::new(Cell::new(1)),
    };
    for round in 0..rng.between(1, 3) {
        world.handle().note(format!("round {round}"));
        if round > 0 && plan.bands.is_some() && plan.idle_ns.is_multiple_of(3) {
            // Of chance of its own: seeds that once found something stay what they are.
            stage.rot_headers(world, &mut Rng::new(plan.idle_ns + round))?;
        }
        let crash = any_crash(rng);
        if rng.one_in(2) {
            world.crash_after_writes(stage.lives.node, rng.between(1, 200), crash);
        }
        let fork = rng.fork();
        stage.open_and(world, rng, |stage, hands| async move { stage.work(hands, fork).await })?;
        stage.lives.end(world, crash);
        stage.lose_log(world, rng)?;
    }
    stage.open_and(world, rng, |stage, hands| async move { stage.finish(hands).await })?;
    stage.lives.end(world, Crash::Kill);
    stage.live(world, 1, |stage, reactor| async move { stage.check_closed(reactor).await })
}

impl Stage {
    /// One life of the process.
    fn live<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        reactors: usize,
        main: impl FnOnce(Stage, Rc<Reactor>) -> F,
    ) -> Result<(), Failure> {
        let stage = self.clone();
        self.lives.live(world, reactors, |reactor| main(stage, reactor))
    }

    /// One life that opens the pool, reads everything and goes on with `main`.
    fn open_and<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        rng: &mut Rng,
        main: impl FnOnce(Stage, Hands) -> F + 'static,
    ) -> Result<(), Failure> {
        let stage = self.clone();
        self.lives.open(world, rng, |hands| async move {
            stage.branches.iter().for_each(|branches| branches.find(&hands));
            hands.read_all().await;
            hands.audit_places().await;
            main(stage, hands).await;
        })
    }

    // --- work -------------------------------------------------------------------------------------------------------

    fn touch(&self, spot: Spot) {
        let slice = (spot.first >> (12 - self.lives.plan.block_shift)) / SLICE_BLOCKS;
        self.touched.borrow_mut().insert((spot.volume, slice));
        self.touched_since.borrow_mut().insert((spot.volume, slice));
    }

    async fn work(self, hands: Hands, mut rng: Rng) {
        for _ in 0..rng.between(1, 3) {
            let tasks = rng.between(1, 3);
            let work = |task, rng| self.clone().work_on(hands.clone(), task, tasks, rng);
            hands.share_out(tasks, &mut rng, work).await;
            if rng.one_in(3) {
                self.visit(&hands).await;
            }
            if let Some(branches) = self.branches.clone() {
                self.change_layers(&branches, &hands, &mut rng).await;
            }
            if rng.one_in(2) && hands.is_alive() {
                let beside = rng.one_in(2).then(|| rng.fork());
                self.settle(&hands, beside).await;
            }
        }
    }

    /// What was there before is not in the log alone after it, even if others go on writing meanwhile. But where less than a
    /// block is written, settling appends the merged blocks, and beside others' records nothing tells that these are gone again.
    async fn settle(&self, hands: &Hands, beside: Option<Rng>) {
        let merges = beside.is_some() && hands.per_block() > 1;
        if let Some(branches) = &self.branches {
            // What deleted snapshots leave to others is written to the log, whenever that is done.
            branches.reap(hands).await;
        }
        if !merges {
            self.touched_since.borrow_mut().clear();
        }
        let work = beside.map(|rng| hands.reactor.spawn_join(self.clone().work_on(hands.clone(), 0, 1, rng)));
        let settled = hands.pool.settle(&hands.reactor).await;
        hands.expect(settled.is_ok(), || format!("settling failed: {settled:?}"));
        if hands.is_alive() {
            *self.touched.borrow_mut() = self.touched_since.borrow().clone();
            self.visitors.set(0);
            if !merges {
                self.layers.set(1);
            }
        }
        if let Some(work) = work {
            work.await;
        }
    }

    /// A clone is made, flattened or deleted, or a snapshot is deleted. What has to be written for that nobody knows from outside.
    async fn change_layers(&self, branches: &Branches, hands: &Hands, rng: &mut Rng) {
        if !hands.is_alive() {
            return;
        }
        self.layers.set(self.layers.get() + 1);
        match (rng.below(6), branches.any(hands, rng)) {
            (0..3, _) if branches.later(hands).len() < BRANCHES_MAX => {
                let volumes: Vec<u64> = self.lives.ledger.borrow().volumes().into_iter().collect();
                let of = volumes[rng.below(volumes.len() as u64) as usize];
                // What only the log has of the one is what only it has of the other, also if the process does not see the end of it.
                let number = branches.next();
                for touched in [&self.touched, &self.touched_since] {
                    let shared: Vec<_> =
                        touched.borrow().iter().filter(|(volume, _)| *volume == of).map(|(_, slice)| *slice).collect();
                    touched.borrow_mut().extend(shared.into_iter().map(|slice| (number, slice)));
                }
                branches.branch(hands, of).await;
            }
            (0 | 3, Some(number)) => {
                self.touch_all(number);
                branches.flatten_if_space(hands, number).await;
            }
            (1 | 4, Some(number)) => {
                self.touch_family();
                branches.delete(hands, number).await;
            }
            _ => {
                self.touch_family();
                branches.delete_snapshot(hands, rng).await;
            }
        }
    }

    fn touch_family(&self) {
        let volumes = self.lives.ledger.borrow().volumes();
        volumes.into_iter().for_each(|volume| self.touch_all(volume));
    }

    fn touch_all(&self, volume: u64) {
        let spots = self.lives.ledger.borrow().within(volume, 0..u64::MAX);
        spots.into_iter().for_each(|spot| self.touch(spot));
    }

    async fn work_on(self, hands: Hands, task: u64, tasks: u64, mut rng: Rng) {
        let spots = self.lives.ledger.borrow().spots();
        // Tasks have volumes and extents of their own.
        let share = |spot: &Spot| spot.volume + self.lives.extent_of(*spot).1;
        let mine: Vec<Spot> = spots.into_iter().filter(|spot| share(spot) % tasks == task).collect();
        for _ in 0..rng.between(5, 40) {
            if !hands.is_alive() || mine.is_empty() {
                return;
            }
            let spot = mine[rng.below(mine.len() as u64) as usize];
            let per = hands.per_block();
            match rng.below(12) {
                0..6 => {
                    self.touch(spot);
                    let status = hands.write(spot).await;
                    hands.expect(matches!(status, Status::Ok | Status::NoSpace), || {
                        format!("writing {spot:?} failed with '{status}' without cause")
                    });
                }
                6..9 => drop(hands.read(spot).await),
                9 => {
                    self.touch(spot);
                    let extent = spot.first / (EXTENT_BLOCKS * per) * EXTENT_BLOCKS * per;
                    let status = hands.trim(spot.volume, extent, EXTENT_BLOCKS * per).await;
                    hands.expect(self.may_trim_end(status), || format!("trimming an extent failed with '{status}'"));
                }
                10 => {
                    self.touch(spot);
                    let status = hands.trim(spot.volume, spot.first, spot.blocks).await;
                    hands.expect(self.may_trim_end(status), || format!("trimming {spot:?} failed with '{status}'"));
                }
                _ => hands.reactor.sleep_ns(rng.below(3_000_000)).await,
            }
        }
    }

    /// Holes over what a snapshot has need an extent.
    fn may_trim_end(&self, status: Status) -> bool {
        status.is_ok() || self.branches.is_some() && status == Status::NoSpace
    }

    /// A volume comes, is written to and goes: whose extents are when the log is lost in between is for the catalog to say.
    async fn visit(&self, hands: &Hands) {
        let (pool, reactor) = (&hands.pool, &hands.reactor);
        self.visitors.set(self.visitors.get() + 1);
        let left = pool.volumes().into_iter().find(|volume| volume.name().starts_with('x'));
        if let Some(volume) = left {
            let deleted = pool.delete_volume(reactor, volume.name()).await;
            return hands.expect(deleted.is_ok(), || format!("deleting a volume fails: {deleted:?}"));
        }
        let name = format!("x{}", self.lives.sim.rng().next_u64());
        let made = pool.create_volume(reactor, &name, 2 * EXTENT_BLOCKS, 12, 0).await;
        let Ok(volume) = made else {
            return hands.expect(false, || format!("making a volume fails: {:?}", made.err()));
        };
        let channel = volume.open_channel(reactor).expect("volumes open on every reactor");
        let mut bufs = SgList::new();
        bufs.push(reactor.pool().alloc(4096).await);
        // There may be no space.
        let _ = channel.submit(Io::write(Lba(EXTENT_BLOCKS), 1, bufs)).await;
    }

    async fn finish(self, hands: Hands) {
        let spots = self.lives.ledger.borrow().spots();
        for spot in spots {
            let status = hands.write(spot).await;
            hands.expect(matches!(status, Status::Ok | Status::NoSpace), || {
                format!("without faults writing {spot:?} fails with '{status}'")
            });
        }
        hands.read_all().await;
        self.settle(&hands, None).await;
        hands.audit().await;
        hands.pool.close(&hands.reactor).await;
    }

    async fn check_closed(self, reactor: Rc<Reactor>) {
        let devices = self.lives.plan.devices(&reactor).expect("the devices are there");
        let options = CheckOptions { payloads: true, data: false, repair: false };
        let report = Pool::check(&reactor, &devices.capacity, Some(&devices.log), options).await;
        let is_sound = report.as_ref().is_ok_and(|report| report.is_sound_but_for_losses());
        self.lives.expect(is_sound, || format!("a check of a pool that gave up a log finds: {report:?}"));
    }

    // --- headers rot ------------------------------------------------------------------------------------------------

    /// Some headers of stripes rot while the pool is closed; then it is scrubbed, without a crash.
    fn rot_headers(&self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        let mut fork = rng.fork();
        self.open_and(world, rng, |stage, hands| async move {
            stage.settle(&hands, None).await;
            hands.pool.close(&hands.reactor).await;
        })?;
        self.lives.end(world, Crash::Kill);
        self.live(world, 1, |stage, reactor| async move { stage.flip_in_headers(reactor, &mut fork).await })?;
        self.lives.end(world, Crash::Kill);
        self.open_and(world, rng, |stage, hands| async move {
            let found = hands.scrub().await;
            stage.settle(&hands, None).await;
            let again = hands.scrub().await;
            stage
                .lives
                .sim
                .note(format!("{} headers in use have rotted, then {}", found.damaged_headers, again.damaged_headers));
            let bad = found.corrupt_blocks + again.corrupt_blocks;
            hands.expect(bad == 0, || format!("data has rotted with headers: {found:?}, {again:?}"));
            hands.expect(again.damaged_headers == 0, || {
                format!("something is in use behind damaged headers: {again:?}")
            });
            hands.pool.close(&hands.reactor).await;
        })?;
        self.lives.end(world, Crash::Kill);
        Ok(())
    }

    /// Flips a bit in each second header of a stripe, whether it is in use or not.
    async fn flip_in_headers(&self, reactor: Rc<Reactor>, rng: &mut Rng) {
        let capacity = self.lives.plan.devices(&reactor).expect("the devices are there").capacity;
        let (channel, info) = (capacity.open_channel(&reactor).expect("it opens"), capacity.info());
        let scale = 4096 / info.block_size as u64;
        for first in (0..info.blocks / scale).step_by(READ_BLOCKS) {
            let blocks = (info.blocks / scale - first).min(READ_BLOCKS as u64);
            let mut bufs = SgList::new();
            bufs.push(reactor.pool().alloc(blocks as usize * 4096).await);
            let mut done = channel.submit(Io::read(Lba(first * scale), (blocks * scale) as u32, bufs)).await;
            let mut flipped = false;
            for header in
                done.io.bufs[0].as_mut_slice().chunks_exact_mut(4096).filter(|block| block.starts_with(b"RMST"))
            {
                if rng.one_in(2) {
                    header[rng.below(4096) as usize] ^= 1 << rng.below(8);
                    flipped = true;
                }
            }
            if flipped {
                let write = Io::write(Lba(first * scale), (blocks * scale) as u32, done.io.bufs);
                let written = channel.submit(Io { flags: Flags::FUA, ..write }).await.status;
                self.lives.expect(written.is_ok(), || format!("damaging headers fails: {written}"));
            }
        }
    }

    // --- the log is lost --------------------------------------------------------------------------------------------

    /// Every slice that is touched may be lost now.
    fn lose(&self) {
        let touched = self.touched.borrow().clone();
        let slice = |spot: &Spot| (spot.first >> (12 - self.lives.plan.block_shift)) / SLICE_BLOCKS;
        self.lives.ledger.borrow_mut().lose(|spot| touched.contains(&(spot.volume, slice(spot))));
    }

    /// Gives up the log for a new device, or for itself.
    fn lose_log(&mut self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        let old = self.lives.plan;
        let force = rng.one_in(4);
        if !force {
            self.lives.plan.log_number += 1;
            self.lives.plan.mapped ^= rng.one_in(4);
            add_log(world, rng, self.lives.plan, self.lives.node);
        }
        self.lose();
        let (mut writes, mut crashed, mut larger_mib) = (rng.between(1, 8), 0, 0);
        loop {
            let crash = any_crash(rng);
            if crashed < CRASHED_MAX && !rng.one_in(8) {
                world.crash_after_writes(self.lives.node, writes, crash);
                (writes, crashed) = (writes + rng.between(1, 6), crashed + 1);
            }
            let ended = Rc::new(RefCell::new(Attempt::Crashed));
            let (slot, grows) = (ended.clone(), std::mem::take(&mut larger_mib));
            self.live(world, 1, |stage, reactor| async move {
                let attempt = stage.forget(reactor, force, grows).await;
                slot.replace(attempt);
            })?;
            let alive = world.is_running(self.lives.node) && self.lives.sim.alive(self.lives.node);
            self.lives.end(world, crash);
            match ended.replace(Attempt::Crashed) {
                Attempt::Ended(GivenUp::Done) if alive => return Ok(()),
                Attempt::Ended(GivenUp::TooSmall(mib)) if alive => larger_mib = mib,
                _ if !force && rng.one_in(4) => self.return_log(world, rng, old)?,
                _ => {}
            }
        }
    }

    /// The old log is there again: unless the pool has just taken the new one, it opens, and what is lost in it by now is lost.
    fn return_log(&self, world: &mut World, rng: &mut Rng, old: Plan) -> Result<(), Failure> {
        let plan = Plan { reactors: rng.between(1, 2) as usize, ..old };
        let mut fork = rng.fork();
        self.live(world, plan.reactors, move |stage, reactor| async move {
            let pool = match stage.lives.open_and_keep(&plan, &reactor).await {
                Ok(pool) => pool,
                Err(error) => {
                    let is_other = error.contains("not the one that belongs to");
                    return stage
                        .lives
                        .expect(is_other, || format!("the pool does not open with its old log: {error}"));
                }
            };
            let hands = stage.lives.hands(pool, reactor);
            stage.branches.iter().for_each(|branches| branches.find(&hands));
            hands.read_all().await;
            if fork.one_in(2) {
                stage.clone().work_on(hands, 0, 1, fork.fork()).await;
            }
        })?;
        self.lives.end(world, any_crash(rng));
        // What was written just now may be lost with it.
        self.lose();
        Ok(())
    }

    async fn forget(&self, reactor: Rc<Reactor>, force: bool, larger_mib: u64) -> Attempt {
        let devices = self.lives.plan.devices(&reactor).expect("the devices are there");
        if larger_mib > 0 {
            let info = devices.capacity.info();
            let bytes = info.bytes() + (larger_mib << 20);
            let resized = devices.capacity.resize(&reactor, bytes / info.block_size as u64).await;
            self.lives.expect(resized.is_ok(), || format!("the capacity device does not grow: {resized:?}"));
        }
        let foreseen = Pool::foresee_forget_log(&reactor, &devices, force).await;
        match Pool::forget_log(&reactor, &devices, force, &Default::default()).await {
            Ok(forgotten) => {
                self.judge(&forgotten);
                // Nothing is damaged here; in a shaped pool only doing it tells.
                let all_found = forgotten.unfound.as_ref().is_some_and(Vec::is_empty);
                self.lives.expect(all_found, || format!("blocks cannot be found: {forgotten:?}"));
                let told = ForgottenLog { unfound: None, ..forgotten.clone() };
                let same =
                    foreseen.as_ref().is_ok_and(|foreseen| ForgottenLog { unfound: None, ..foreseen.clone() } == told);
                self.lives.expect(same, || format!("foreseen was {foreseen:?}, and it took {forgotten:?}"));
                Attempt::Ended(GivenUp::Done)
            }
            Err(error) => self.refused(error.to_string(), larger_mib),
        }
    }

    fn judge(&self, forgotten: &ForgottenLog) {
        let touched = self.touched.borrow().len() as u64;
        // A volume that came and went has two extents, in one slice.
        let most = touched * self.layers.get() + self.visitors.get();
        self.lives.expect(forgotten.slices <= most, || {
            format!("{} slices are lost, and only {most} were touched: {forgotten:?}", forgotten.slices)
        });
    }

    fn refused(&self, error: String, larger_mib: u64) -> Attempt {
        let refused = GivenUp::refused(error);
        let is_allowed = match refused {
            GivenUp::Done => true,
            GivenUp::TooSmall(_) => larger_mib == 0,
            GivenUp::Failed(_) => false,
        };
        self.lives.expect(is_allowed, || {
            format!("giving up a log is refused after growing by {larger_mib} MiB: {refused:?}")
        });
        Attempt::Ended(refused)
    }
}
