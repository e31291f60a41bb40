//! `pool-versions`: a pool over a mirror or over parity, whose disks rot in single blocks all the time, and never in two that
//! stand in for each other. No read fails, and none is wrong; a scrub leaves nothing rotten of what is in use: any one of the
//! disks can then give back noise, and everything is still there.
//!
//! What rots is where the data of volumes lies. Processes end in order: after a crash a mirror makes equal what was being written,
//! from whichever leg it reads, and can not know which of them is right.

use crate::Run;
use crate::blocks::Crew;
use crate::crashes::SECOND_NS;
use crate::hot_pool::{EXTENT_BLOCKS, FRONT_BLOCKS, Plan, add_log, defect_of};
use crate::ledger::{Hands, Ledger, Spot};
use crate::redundant::Redundant;
use crate::rotting::{Rot, RottingDevice};
use base::Rng;
use bdev::{BlockDevice, FileDevice, FileDeviceOptions, MirrorDevice, MirrorOptions, ParityDevice, ParityOptions};
use engine::{PoolDevices, read_superblocks};
use reactor::Reactor;
use sim::{Crash, DiskFaults, DiskOptions, Failure, Handle, NodeId, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

const LIFE_NS: u64 = 600 * SECOND_NS;
const EXTENTS: u64 = 5;

/// What the pool stands on.
#[derive(Clone, Copy, Debug)]
enum Below {
    Mirror { legs: usize },
    Parity { members: usize, chunk_blocks: u64, rows: u64 },
}

impl Below {
    fn disks(&self) -> usize {
        match self {
            Below::Mirror { legs } => *legs,
            Below::Parity { members, .. } => *members,
        }
    }

    /// Bytes of each disk.
    fn disk_bytes(&self, plan: &Plan) -> u64 {
        match self {
            // Superblocks and bitmap take less than a mebibyte, to which data are aligned.
            Below::Mirror { .. } => plan.capacity_bytes + (1 << 20),
            Below::Parity { chunk_blocks, rows, .. } => 8192 + FRONT_BLOCKS * 4096 / 4 + rows * chunk_blocks * 4096,
        }
    }
}

fn pick(rng: &mut Rng) -> (Plan, Below) {
    let plan = Plan::pick(rng);
    if rng.one_in(3) {
        let members = rng.between(3, 5) as usize;
        let chunk_blocks = 1 << rng.below(2);
        let row_blocks = (members as u64 - 1) * chunk_blocks;
        let unit_blocks = row_blocks as u32 * rng.between(1, 2) as u32;
        let band_blocks = (unit_blocks * rng.between(2, 4) as u32).max(6);
        let plan = plan.with_bands(rng, unit_blocks, band_blocks);
        let rows = (plan.capacity_bytes / 4096 - FRONT_BLOCKS).div_ceil(row_blocks);
        return (plan, Below::Parity { members, chunk_blocks, rows });
    }
    let legs = rng.between(2, 3) as usize;
    (if rng.one_in(2) { plan.shaped(rng) } else { plan }, Below::Mirror { legs })
}

#[derive(Clone)]
struct Stage {
    plan: Plan,
    below: Below,
    rot: Arc<Rot>,
    sim: Handle,
    node: NodeId,
    ledger: Rc<RefCell<Ledger>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let (plan, below) = pick(rng);
    world.handle().note(format!("{below:?} {plan:?}"));
    let node = world.add_node();
    add_log(world, rng, plan, node);
    for disk in 0..below.disks() {
        let (bytes, unit) = (below.disk_bytes(&plan), plan.block_size);
        let options = DiskOptions { bytes, unit, volatile_cache: rng.one_in(2), ..DiskOptions::default() };
        world.add_disk(node, &path(disk), options, DiskFaults::default());
    }
    let per = 1u64 << (12 - plan.block_shift);
    let mut places = vec![(0, per), (per, per), (7 * per, 20 * per), (40 * per, 60 * per), (1023 * per, per)];
    if per > 1 {
        places.extend([(2 * per + 1, 3), (3 * per + 5, 1), (4 * per, 2)]);
    }
    let extents = (0..plan.volumes).flat_map(|volume| (0..EXTENTS).map(move |extent| (volume, extent)));
    let stage = Stage {
        plan: Plan { defect: defect_of(world.handle().mutation()), ..plan },
        below,
        rot: Arc::new(Rot::new(4096 / plan.block_size as u64)),
        sim: world.handle(),
        node,
        ledger: Rc::new(RefCell::new(Ledger::new(Spot::in_extents(extents, &places, per)))),
    };
    stage.live(world, |stage, reactor| async move { stage.create(reactor).await })?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    for round in 0..rng.between(1, 3) {
        world.handle().note(format!("round {round}"));
        let (work, rots) = (rng.fork(), rng.fork());
        stage.live(world, |stage, reactor| async move { stage.open_and_work(reactor, work, rots).await })?;
    }
    Ok(())
}

fn path(disk: usize) -> String {
    format!("/disk{disk}")
}

impl Stage {
    /// A process, from its start to its end.
    fn live<F: Future<Output = Result<(), String>> + 'static>(
        &self,
        world: &mut World,
        main: impl FnOnce(Stage, Rc<Reactor>) -> F + 'static,
    ) -> Result<(), Failure> {
        world.boot(self.node, self.plan.reactors, World::reactor_config());
        let (crew, stage) = (Crew::default(), self.clone());
        let whole = |reactor: Rc<Reactor>| async move {
            let sim = stage.sim.clone();
            if let Err(error) = main(stage, reactor).await {
                sim.violation(error);
            }
        };
        world.spawn(self.node, 0, |reactor| crew.member(whole(reactor)));
        world.run_until("the work on rotting disks to end", LIFE_NS, |_| crew.is_done())?;
        world.crash(self.node, Crash::Kill);
        Ok(())
    }

    async fn devices(&self, reactor: &Rc<Reactor>, create: bool) -> Result<(PoolDevices, Redundant), String> {
        let mut disks: Vec<Option<Arc<dyn BlockDevice>>> = Vec::new();
        for disk in 0..self.below.disks() {
            let options = FileDeviceOptions { block_size: self.plan.block_size, ..FileDeviceOptions::new(&path(disk)) };
            let file = FileDevice::open(reactor, &path(disk), options).map_err(|error| error.to_string())?;
            disks.push(Some(Arc::new(RottingDevice::new(Arc::new(file), disk, self.rot.clone()))));
        }
        let opened = match self.below {
            Below::Mirror { .. } => {
                let options = MirrorOptions { create, assume_clean: true, ..MirrorOptions::default() };
                let mirror = MirrorDevice::open(reactor, "mirror", disks, &options).await;
                Redundant::Mirror(Arc::new(mirror.map_err(|error| error.to_string())?))
            }
            Below::Parity { chunk_blocks, .. } => {
                let (chunk_bytes, head_bytes) = (chunk_blocks * 4096, FRONT_BLOCKS * 4096 / 4);
                let options = ParityOptions { create, chunk_bytes, head_bytes, ..ParityOptions::default() };
                let parity = ParityDevice::open(reactor, "parity", disks, &options).await;
                Redundant::Parity(Arc::new(parity.map_err(|error| error.to_string())?))
            }
        };
        let log = self.plan.log_device(reactor)?;
        Ok((PoolDevices { log, capacity: opened.device() }, opened))
    }

    async fn create(self, reactor: Rc<Reactor>) -> Result<(), String> {
        let (devices, opened) = self.devices(&reactor, true).await?;
        let capacity = devices.capacity.clone();
        self.plan.create_on(reactor.clone(), devices).await?;
        let areas = self.areas(&reactor, capacity).await?;
        self.sim.note(format!("what may rot: {areas:?}"));
        self.rot.set_areas(areas);
        self.rest(&reactor, opened).await
    }

    /// Where on the disks the data of volumes lies, in blocks of theirs.
    async fn areas(&self, reactor: &Rc<Reactor>, capacity: Arc<dyn BlockDevice>) -> Result<Vec<Range<u64>>, String> {
        let (info, scale) = (capacity.info(), 4096 / self.plan.block_size as u64);
        let disk_blocks = self.below.disk_bytes(&self.plan) / self.plan.block_size as u64;
        if let Below::Parity { chunk_blocks, rows, .. } = self.below {
            return Ok(std::iter::once(disk_blocks - rows * chunk_blocks * scale..disk_blocks).collect());
        }
        let channel = capacity.open_channel(reactor).map_err(|error| error.to_string())?;
        let superblock = read_superblocks(reactor, channel, info).await.map_err(|error| error.to_string())?;
        let before = disk_blocks - info.blocks;
        if self.plan.bands.is_some() {
            return Ok(std::iter::once(before + superblock.bands.start * scale..disk_blocks).collect());
        }
        let data = superblock.regions.iter().map(|region| {
            let start = before + region.data_start() * scale;
            start..start + region.extents as u64 * EXTENT_BLOCKS * scale
        });
        Ok(data.collect())
    }

    /// Before the process ends nothing is left that a crash would make equal.
    async fn rest(&self, reactor: &Rc<Reactor>, opened: Redundant) -> Result<(), String> {
        opened.settle(reactor).await.map_err(|error| error.to_string())
    }

    async fn open_and_work(self, reactor: Rc<Reactor>, mut rng: Rng, rots: Rng) -> Result<(), String> {
        let (devices, opened) = self.devices(&reactor, false).await?;
        let pool = self.plan.open(&reactor, devices).await?;
        let (ledger, sim, node, block_shift) =
            (self.ledger.clone(), self.sim.clone(), self.node, self.plan.block_shift);
        let hands = Hands { ledger, sim, node, pool, reactor: reactor.clone(), block_shift };
        hands.read_all().await;
        let ended = Rc::new(Cell::new(false));
        let rotting = reactor.spawn_join(self.clone().rot_until(reactor.clone(), rots, ended.clone()));
        let tasks = rng.between(1, 3);
        hands.share_out(tasks, &mut rng, |task, rng| self.clone().work_on(hands.clone(), task, tasks, rng)).await;
        ended.set(true);
        rotting.await;
        hands.pool.settle(&reactor).await.map_err(|error| format!("settling fails: {error}"))?;
        hands.read_all().await;
        let found = hands.scrub().await;
        hands.pool.settle(&reactor).await.map_err(|error| format!("settling fails: {error}"))?;
        let again = hands.scrub().await;
        self.sim.note(format!("healed {}, then {}", found.healed_blocks, again.healed_blocks));
        let bad = found.corrupt_blocks + found.lost_blocks + again.corrupt_blocks + again.lost_blocks;
        hands.expect(bad == 0, || format!("a scrub finds bad blocks: {found:?}, {again:?}"));
        let left = again.healed_blocks + again.damaged_headers;
        hands.expect(left == 0, || format!("a scrub has left something rotten: {again:?}"));
        for disk in 0..self.below.disks() {
            self.rot.spoil(Some(disk));
            hands.read_all().await;
            // What is read in the background must not meet the noise of two.
            self.rot.spoil(None);
            reactor.sleep_ns(SECOND_NS).await;
        }
        hands.pool.close(&reactor).await;
        self.rest(&reactor, opened).await
    }

    async fn work_on(self, hands: Hands, task: u64, tasks: u64, mut rng: Rng) {
        let spots = self.ledger.borrow().spots();
        let per_extent = EXTENT_BLOCKS * hands.per_block();
        let mine: Vec<Spot> = spots.into_iter().filter(|spot| spot.first / per_extent % tasks == task).collect();
        for _ in 0..rng.between(20, 150) {
            let spot = mine[rng.below(mine.len() as u64) as usize];
            match rng.below(16) {
                0..5 => drop(hands.write(spot).await),
                5..12 => drop(hands.read(spot).await),
                12 => drop(hands.trim(spot.volume, spot.first, spot.blocks).await),
                13 => {
                    let settled = hands.pool.settle(&hands.reactor).await;
                    hands.expect(settled.is_ok(), || format!("settling fails: {settled:?}"));
                }
                _ => hands.reactor.sleep_ns(rng.below(3_000_000)).await,
            }
        }
    }

    async fn rot_until(self, reactor: Rc<Reactor>, mut rng: Rng, ended: Rc<Cell<bool>>) {
        while !ended.get() {
            reactor.sleep_ns(rng.below(2_000_000)).await;
            for _ in 0..rng.between(1, 30) {
                self.rot.begin(rng.below(self.below.disks() as u64) as usize, &mut rng);
            }
        }
    }
}
