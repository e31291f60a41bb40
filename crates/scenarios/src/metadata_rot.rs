//! `pool-metadata-rot`: a pool of either shape whose metadata rots under it. A scrub names all that is wrong and has it written anew, so
//! that afterwards a check of the closed pool finds nothing, it opens, and a shaped one has everything without its log device; while
//! nothing rots a scrub finds nothing, whatever is written meanwhile.
//!
//! Some rounds have crashes at any point of a scrub: then one copy rots at most of what there is twice, and map pages of the shadow, so
//! that at no point less is there than the pool opens with. In the others whatever an open pool has in memory rots, or what its other
//! device has: not map pages of the index, which nothing else has.

use crate::Run;
use crate::crashed;
use crate::crashes::{SECOND_NS, any_crash};
use crate::hot_pool::{EXTENT_BLOCKS, Plan, add_log};
use crate::ledger::{Hands, Spot};
use crate::lives::{Aim, Lives};
use crate::rotting::{Rot, RottingDevice};
use base::Rng;
use bdev::{Io, Status};
use engine::{CheckOptions, LogDevice, Pool, PoolDevices, Severity, Superblock};
use reactor::Reactor;
use sim::{Crash, Failure, ScheduleFaults, World};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

const AIM: Aim = Aim("the work over rotting metadata to end", 600 * SECOND_NS);
const EXTENTS: u64 = 5;

/// What may rot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// This copy of what there is twice, and map pages of the shadow.
    OneCopy(u8),
    /// Whatever an open pool can write anew.
    All,
}

#[derive(Clone)]
struct Stage {
    lives: Lives,
    /// Of the log device, and of the capacity device.
    rots: [Arc<Rot>; 2],
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let plan = Plan { mapped: false, ..Plan::pick(rng) };
    let plan = if rng.one_in(3) { plan } else { plan.shaped(rng) };
    let per = 1u64 << (12 - plan.block_shift);
    let places = [(0, per), (3 * per, per), (7 * per, 8 * per), ((EXTENT_BLOCKS - 1) * per, per)];
    let extents = (0..plan.volumes).flat_map(|volume| (0..EXTENTS).map(move |extent| (volume, extent * 7)));
    let spots = Spot::in_extents(extents, &places, per);
    let lives = Lives::new(world, rng, plan, spots, AIM)?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    let scale = 4096 / plan.block_size as u64;
    let mut stage = Stage { lives, rots: [(); 2].map(|()| Arc::new(Rot::new(scale))) };
    for round in 0..rng.between(1, 4) {
        let reach = if rng.one_in(2) { Reach::All } else { Reach::OneCopy(rng.below(2) as u8) };
        world.handle().note(format!("round {round}: {reach:?}"));
        let crash = any_crash(rng);
        if reach != Reach::All {
            world.crash_after_writes(stage.lives.node, rng.between(1, 400), crash);
        }
        let fork = rng.fork();
        stage.open_and(world, rng, move |stage, hands, devices| async move {
            stage.rot_and_scrub(hands, devices, fork, reach).await
        })?;
        stage.lives.end(world, crash);
        // What a crash has left rotten is found by the next one.
        stage.open_and(world, rng, |stage, hands, _| async move {
            stage.scrub_to_the_end(&hands).await;
            stage.close(&hands).await;
        })?;
        stage.lives.end(world, Crash::Kill);
        stage.live(world, |stage, reactor| async move { stage.check_closed(reactor).await })?;
        stage.lives.end(world, Crash::Kill);
    }
    if plan.bands.is_some() {
        stage.lose_log(world, rng)?;
    }
    stage.open_and(world, rng, |stage, hands, _| async move { stage.close(&hands).await })
}

impl Stage {
    fn live<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        main: impl FnOnce(Stage, Rc<Reactor>) -> F,
    ) -> Result<(), Failure> {
        let stage = self.clone();
        self.lives.live(world, 1, |reactor| main(stage, reactor))
    }

    /// One life that opens the pool, reads everything and goes on with `main`.
    fn open_and<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        rng: &mut Rng,
        main: impl FnOnce(Stage, Hands, PoolDevices) -> F + 'static,
    ) -> Result<(), Failure> {
        let plan = Plan { reactors: rng.between(1, 3) as usize, ..self.lives.plan };
        let stage = self.clone();
        self.lives.live(world, plan.reactors, move |reactor| async move {
            let opened = match stage.devices(&reactor) {
                Ok(devices) => plan.open(&reactor, devices.clone()).await.map(|pool| (pool, devices)),
                Err(error) => Err(error),
            };
            match opened {
                Ok((pool, devices)) => {
                    reactor.keep(Rc::new(pool.clone()));
                    let hands = stage.lives.hands(pool, reactor);
                    hands.read_all().await;
                    main(stage, hands, devices).await;
                }
                Err(error) => stage.lives.expect(false, || format!("the pool does not open: {error}")),
            }
        })
    }

    fn devices(&self, reactor: &Rc<Reactor>) -> Result<PoolDevices, String> {
        let PoolDevices { log, capacity } = self.lives.plan.devices(reactor)?;
        let LogDevice::Block(log) = log else { return Err("a log on a disk was planned".to_string()) };
        let [log_rot, capacity_rot] = self.rots.clone();
        Ok(PoolDevices {
            log: LogDevice::Block(Arc::new(RottingDevice::new(log, 0, log_rot))),
            capacity: Arc::new(RottingDevice::new(capacity, 0, capacity_rot)),
        })
    }

    /// Where what may rot is, in blocks of 4 KiB: on the log device, and on the capacity device.
    fn areas(&self, reach: Reach) -> [Vec<Range<u64>>; 2] {
        let superblock = self.lives.plan.superblock();
        let copies: Vec<u8> = match reach {
            Reach::OneCopy(copy) => vec![copy],
            Reach::All => vec![0, 1],
        };
        let run = |start: u64, blocks: u64| start..start + blocks;
        let (mut on_log, mut on_capacity, mut index) = (Vec::new(), Vec::new(), Vec::new());
        for copy in copies.iter().copied() {
            on_log.push(run(copy as u64, 1));
            on_capacity.push(run(copy as u64, 1));
            on_capacity.push(run(superblock.catalog_copy(copy), superblock.catalog_blocks as u64));
            index.extend(Self::roots_and_tables(&superblock, copy));
            if reach == Reach::All {
                let journals = (0..superblock.shards).map(|shard| superblock.journal_copy(shard, copy));
                on_capacity.extend(journals.map(|start| run(start, superblock.journal_blocks as u64)));
            }
        }
        if let Some(shadow) = superblock.shadow() {
            copies.iter().for_each(|copy| on_capacity.extend(Self::roots_and_tables(&shadow, *copy)));
            let maps =
                shadow.regions.iter().map(|region| region.map_slot(0, 0)..region.map_slot(region.extents - 1, 1) + 1);
            on_capacity.extend(maps);
            on_log.extend(index);
        } else {
            on_capacity.extend(index);
        }
        [on_log, on_capacity]
    }

    fn roots_and_tables(superblock: &Superblock, copy: u8) -> Vec<Range<u64>> {
        let roots = (0..superblock.shards).map(|shard| superblock.root_copy(shard, copy));
        let roots = roots.map(|start| start..start + superblock.root_blocks as u64);
        let tables = superblock.regions.iter().flat_map(|region| {
            (0..region.table_pages()).map(move |page| region.table_slot(page, copy)).map(|block| block..block + 1)
        });
        roots.chain(tables).collect()
    }

    async fn rot_and_scrub(self, hands: Hands, devices: PoolDevices, mut rng: Rng, reach: Reach) {
        // Nothing is rotten: whatever changes meanwhile, a scrub finds nothing.
        let work = hands.reactor.spawn_join(self.clone().work(hands.clone(), rng.fork()));
        if rng.one_in(2) {
            self.scrub_whole(&hands).await;
        }
        work.await;
        if rng.one_in(3) {
            // Some of it is in the log.
            let spots = self.lives.ledger.borrow().spots();
            let _ = hands.write(spots[rng.below(spots.len() as u64) as usize]).await;
        } else {
            self.settle(&hands).await;
        }
        if !hands.is_alive() || !flush(&hands.reactor, devices).await {
            return;
        }
        let scale = 4096 / self.lives.plan.block_size as u64;
        for (rot, areas) in self.rots.iter().zip(self.areas(reach)) {
            rot.set_areas(areas.into_iter().map(|area| area.start * scale..area.end * scale).collect());
            let most = rng.between(1, 8);
            let begun = rot.begin_all(0, most, &mut rng);
            self.lives.sim.note(format!("{begun} blocks rot"));
        }
        let beside = (reach == Reach::All && rng.one_in(2)).then(|| rng.fork());
        let work = beside.map(|rng| hands.reactor.spawn_join(self.clone().work(hands.clone(), rng)));
        self.scrub_to_the_end(&hands).await;
        if let Some(work) = work {
            work.await;
        }
        if reach == Reach::All && hands.is_alive() {
            self.close(&hands).await;
        }
    }

    /// Whatever is found is written anew, and not found again.
    async fn scrub_to_the_end(&self, hands: &Hands) {
        let found = hands.scrub().await;
        let (damaged, repaired) = (found.damaged_metadata, found.repaired_metadata);
        self.lives.sim.note(format!("{damaged} structures are damaged, {repaired} of them were written anew"));
        hands.expect(damaged == repaired, || format!("not all is written anew: {:?}", found.bad_metadata));
        self.scrub_whole(hands).await;
    }

    async fn scrub_whole(&self, hands: &Hands) {
        let found = hands.scrub().await;
        let bad = found.corrupt_blocks + found.lost_blocks + found.damaged_headers;
        hands.expect(found.damaged_metadata + bad == 0, || {
            format!("a scrub finds something where nothing is damaged: {found:?}")
        });
    }

    async fn settle(&self, hands: &Hands) {
        let settled = hands.pool.settle(&hands.reactor).await;
        hands.expect(settled.is_ok(), || format!("settling failed: {settled:?}"));
    }

    async fn close(&self, hands: &Hands) {
        self.settle(hands).await;
        hands.read_all().await;
        hands.audit().await;
        hands.pool.close(&hands.reactor).await;
    }

    async fn work(self, hands: Hands, mut rng: Rng) {
        let tasks = rng.between(1, 3);
        let work = |task, rng| self.clone().work_on(hands.clone(), task, tasks, rng);
        hands.share_out(tasks, &mut rng, work).await;
    }

    async fn work_on(self, hands: Hands, task: u64, tasks: u64, mut rng: Rng) {
        let spots = self.lives.ledger.borrow().spots();
        let mine: Vec<Spot> = spots.into_iter().filter(|spot| self.lives.extent_of(*spot).1 % tasks == task).collect();
        for _ in 0..rng.between(5, 60) {
            if !hands.is_alive() || mine.is_empty() {
                return;
            }
            let spot = mine[rng.below(mine.len() as u64) as usize];
            match rng.below(12) {
                0..6 => drop(hands.write(spot).await),
                6..9 => drop(hands.read(spot).await),
                9 => drop(hands.trim(spot.volume, spot.first, spot.blocks).await),
                10 => self.settle(&hands).await,
                _ => hands.reactor.sleep_ns(rng.below(3_000_000)).await,
            }
        }
    }

    /// A check of the closed pool finds nothing.
    async fn check_closed(self, reactor: Rc<Reactor>) {
        let devices = self.devices(&reactor).expect("the devices are there");
        let options = CheckOptions { payloads: true, data: true, repair: false };
        let report = crashed::check(&reactor, &devices, options).await;
        let wrong =
            report.as_ref().map_or(None, |report| report.findings.iter().find(|one| one.severity > Severity::Note));
        self.lives.sim.expect(wrong.is_none() && report.is_ok(), || {
            format!("a check after a scrub finds: {wrong:?} {:?}", report.as_ref().err())
        });
    }

    /// The shadow rots for the last time, is scrubbed, and has to have everything.
    fn lose_log(&mut self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        let mut fork = rng.fork();
        self.open_and(world, rng, |stage, hands, _| async move {
            stage.clone().work(hands.clone(), fork.fork()).await;
            stage.settle(&hands).await;
            let scale = 4096 / stage.lives.plan.block_size as u64;
            let [_, areas] = stage.areas(Reach::OneCopy(fork.below(2) as u8));
            let rot = &stage.rots[1];
            rot.set_areas(areas.into_iter().map(|area| area.start * scale..area.end * scale).collect());
            rot.begin_all(0, 2, &mut fork);
            stage.scrub_to_the_end(&hands).await;
            stage.close(&hands).await;
        })?;
        self.lives.end(world, Crash::Kill);
        self.lives.plan.log_number += 1;
        self.rots[0] = Arc::new(Rot::new(4096 / self.lives.plan.block_size as u64));
        add_log(world, rng, self.lives.plan, self.lives.node);
        self.live(world, |stage, reactor| async move {
            let devices = stage.devices(&reactor).expect("the devices are there");
            let forgotten = Pool::forget_log(&reactor, &devices, false, &Default::default()).await;
            let is_whole = forgotten.as_ref().is_ok_and(|log| log.slices == 0 && log.unfound == Some(Vec::new()));
            stage.lives.sim.expect(is_whole, || format!("a settled pool loses something with its log: {forgotten:?}"));
        })?;
        self.lives.end(world, Crash::Kill);
        Ok(())
    }
}

/// What is cached by the disks is durable: a copy of a table page that a power cut takes may be the only one that is right.
async fn flush(reactor: &Rc<Reactor>, devices: PoolDevices) -> bool {
    let PoolDevices { log: LogDevice::Block(log), capacity } = devices else { return false };
    for device in [log, capacity] {
        let Ok(channel) = device.open_channel(reactor) else { return false };
        if channel.submit(Io::flush()).await.status != Status::Ok {
            return false;
        }
    }
    true
}
