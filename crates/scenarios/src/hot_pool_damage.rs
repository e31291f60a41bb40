//! `hot-pool-damage`: map pages of a hot pool are damaged while it is closed, both slots of each, and table pages, one slot of
//! each. What a damaged map page alone knew may answer with errors until it is written again; everything else, and everything
//! written since, is as it was written. The pool goes on: what is in the log can be destaged, with disks that fail to read
//! now and then, too.

use crate::Run;
use crate::blocks::{Crew, Judge, Mix};
use crate::crashes::{SECOND_NS, any_crash, start};
use crate::hot_pool::{CAPACITY, EXTENT_BLOCKS, LOG, OpenedPool, Plan, create, opening, settle_patiently};
use base::Rng;
use bdev::{Channel, Flags, Io, Lba};
use engine::{CheckOptions, Defect, Pool};
use reactor::{Reactor, SgList};
use sim::{Crash, DiskFaults, Failure, Mutation, NodeId, ScheduleFaults, World};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// A map page that cannot be read is given up before that.
const PATIENCE_S: u64 = 45;

/// An extent of a volume: which of the volumes, which of its extents.
type VolumeExtent = (u64, u64);

/// Extents in use, and the two slots of the map page of each.
type Slots = Vec<(VolumeExtent, [u64; 2])>;

/// What happens to a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// Other bytes.
    Scrambled,
    /// Nothing is left.
    Zeroed,
    /// One bit has flipped.
    BitFlipped,
    /// The device cannot read it, until it is written.
    Unreadable,
}

struct Bench {
    plan: Plan,
    judge: Judge,
    node: NodeId,
    /// Extents whose map pages have been damaged.
    damaged: RefCell<BTreeSet<VolumeExtent>>,
    damage: Damage,
    /// What each cell could read as when the map pages had everything.
    settled: RefCell<Vec<Vec<u64>>>,
}

/// A pool in use.
struct Open {
    pool: Arc<Pool>,
    channel: Rc<dyn Channel>,
    reactor: Rc<Reactor>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    run_with(run, Plan::pick)
}

pub(crate) fn run_shaped(run: &mut Run) -> Result<(), Failure> {
    // A device, so that pages on it can be damaged.
    run_with(run, |rng| Plan { mapped: false, ..Plan::pick(rng).shaped(rng) })
}

fn run_with(run: &mut Run, pick: impl FnOnce(&mut Rng) -> Plan) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let defect = (world.handle().mutation() == Some(Mutation::HolesForLost)).then_some(Defect::HolesForLost);
    let kinds = [Damage::Scrambled, Damage::Zeroed, Damage::BitFlipped, Damage::Unreadable];
    let damage = kinds[rng.below(4) as usize];
    let mut plan = Plan { defect, ..pick(rng) };
    if damage == Damage::Unreadable {
        // Pages are given up after a long time, all at the same time when they are tried at the same time.
        plan.depth = 16;
    }
    world.handle().note(format!("{plan:?}"));
    let mix = Mix {
        block_bytes: 1 << plan.block_shift,
        discards: rng.one_in(2),
        blocks_max: rng.between(1, 16),
        always_durable: true,
        abandon: 0,
        ..Mix::pick(rng, 1 << plan.block_shift)
    };
    let node = world.add_node();
    create(world, rng, plan, node)?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    let judge = Judge::new(world.handle(), node, mix, plan.blocks() << plan.block_shift);
    let (damaged, settled) = Default::default();
    let bench = Rc::new(Bench { plan, judge, node, damaged, damage, settled });
    let slots = bench.fill(world, rng)?;
    if rng.one_in(2) {
        bench.write_to_log_alone(world, rng)?;
    }
    bench.damage(world, rng, slots)?;
    for _ in 0..rng.between(1, 3) {
        bench.live_with_it(world, rng)?;
    }
    bench.mend(world)
}

impl Bench {
    fn open(&self, world: &mut World, plan: Plan) -> Result<Open, Failure> {
        let slot = OpenedPool::default();
        let device = match start(world, self.node, plan.reactors, opening(plan, slot.clone()), 20 * SECOND_NS)? {
            Some(Ok(device)) => device,
            other => return Err(Failure::new(format!("the pool does not open: {:?}", other.and_then(Result::err)))),
        };
        let (pool, reactor) = (slot.take().expect("opened a moment ago"), world.reactor(self.node, 0));
        let channel = device.open_channel(&reactor).map_err(|error| Failure::new(error.to_string()))?;
        Ok(Open { pool, channel, reactor })
    }

    fn end(&self, world: &mut World, open: Open, crash: Crash) {
        drop(open);
        world.crash(self.node, crash);
        match crash {
            Crash::Kill => self.judge.oracle.borrow_mut().killed(),
            Crash::PowerCut => self.judge.oracle.borrow_mut().power_cut(),
        }
    }

    fn complete(&self, world: &mut World, what: &str, task: impl Future<Output = ()> + 'static) -> Result<(), Failure> {
        let crew = Crew::default();
        world.spawn(self.node, 0, |_| crew.member(task));
        world.run_until(what, 60 * SECOND_NS, |_| crew.is_done())
    }

    fn work(&self, world: &mut World, open: &Open, judge: &Judge, tasks: u64, count: u64) -> Result<(), Failure> {
        let crew = Crew::default();
        for task in 0..tasks {
            let work = judge.clone().work(open.reactor.clone(), open.channel.clone(), task, tasks, count);
            world.spawn(self.node, 0, |_| crew.member(work));
        }
        world.run_until("the work to end", 60 * SECOND_NS, |_| crew.is_done())
    }

    /// Works, and brings everything to its place. Where the map pages of the extents in use are.
    fn fill(self: &Rc<Self>, world: &mut World, rng: &mut Rng) -> Result<Slots, Failure> {
        let open = self.open(world, self.plan)?;
        self.work(world, &open, &self.judge, rng.between(1, 3), rng.between(10, 60))?;
        let slots: Rc<RefCell<Slots>> = Rc::default();
        let (bench, pool, reactor, found) = (self.clone(), open.pool.clone(), open.reactor.clone(), slots.clone());
        self.complete(world, "everything to be destaged", async move {
            bench.succeeded("settling", pool.settle(&reactor).await);
            let superblock = bench.plan.superblock();
            let audit = pool.audit(&reactor).await.expect("a healthy pool can be audited");
            for owner in audit.extents {
                let region = superblock.shard_regions(owner.shard).next().expect("every shard has a region");
                let slots = [0, 1].map(|slot| region.map_slot(owner.extent - region.first_extent, slot));
                found.borrow_mut().push(((owner.volume as u64 - 1, owner.vextent as u64), slots));
            }
            pool.close(&reactor).await;
        })?;
        let oracle = self.judge.oracle.borrow();
        *self.settled.borrow_mut() = (0..oracle.cells()).map(|cell| oracle.readable(cell).to_vec()).collect();
        drop(oracle);
        self.end(world, open, Crash::Kill);
        Ok(slots.take())
    }

    /// Writes that no map page hears of.
    fn write_to_log_alone(&self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        let open = self.open(world, Plan { idle_ns: 3600 * SECOND_NS, ..self.plan })?;
        self.work(world, &open, &self.judge, 1, rng.between(1, 12))?;
        self.end(world, open, any_crash(rng));
        Ok(())
    }

    fn damage(self: &Rc<Self>, world: &mut World, rng: &mut Rng, slots: Slots) -> Result<(), Failure> {
        let every = rng.between(1, 3);
        let chosen: Vec<_> = slots.into_iter().filter(|_| rng.one_in(every)).collect();
        world.handle().note(format!("the map pages of {chosen:?} are damaged"));
        let path = if self.plan.bands.is_some() { LOG } else { CAPACITY };
        let regions = self.plan.superblock().regions;
        // Of a table page there is a copy.
        let tables = regions.iter().flat_map(|region| (0..region.table_pages()).map(move |index| (region, index)));
        let tables: Vec<u64> = match rng.one_in(2) {
            true => tables.map(|(region, index)| region.table_slot(index, rng.below(2) as u8)).collect(),
            false => Vec::new(),
        };
        self.damaged.borrow_mut().extend(chosen.iter().map(|(extent, _)| *extent));
        if self.damage == Damage::Unreadable {
            // Whatever is read now goes bad.
            world.set_disk_faults(self.node, path, DiskFaults { latent_error: 1, ..DiskFaults::default() });
        }
        world.boot(self.node, 1, World::reactor_config());
        let (bench, mut rng, reactor) = (self.clone(), rng.fork(), world.reactor(self.node, 0));
        self.complete(world, "the damage to be done", async move {
            let device = bench.plan.file(&reactor, path).expect("the device opens");
            let channel = device.open_channel(&reactor).expect("devices open on every reactor");
            let scale = 4096 / device.info().block_size;
            for block in chosen.into_iter().flat_map(|(_, slots)| slots).chain(tables) {
                let mut bufs = SgList::new();
                bufs.push(reactor.pool().alloc(4096).await);
                let lba = Lba(block * scale as u64);
                let mut bufs = channel.submit(Io::read(lba, scale, bufs)).await.io.bufs;
                if bench.damage == Damage::Unreadable {
                    continue;
                }
                let bytes = bufs[0].as_mut_slice();
                match bench.damage {
                    Damage::Scrambled => rng.fill(bytes),
                    Damage::Zeroed => bytes.fill(0),
                    _ => bytes[rng.below(4096) as usize] ^= 1 << rng.below(8),
                }
                let write = Io { flags: Flags::FUA, ..Io::write(lba, scale, bufs) };
                bench.succeeded("damaging a page", channel.submit(write).await.status.check());
            }
        })?;
        world.crash(self.node, Crash::Kill);
        world.set_disk_faults(self.node, path, DiskFaults::default());
        Ok(())
    }

    /// A life of the pool with its damage.
    fn live_with_it(self: &Rc<Self>, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        let open = self.open(world, self.plan)?;
        self.verify(world, &open)?;
        let flaky = rng.one_in(2);
        let paths: &[&str] = if self.plan.mapped { &[CAPACITY] } else { &[CAPACITY, LOG] };
        if flaky {
            let faults = DiskFaults { read_error: rng.between(3, 40), ..DiskFaults::default() };
            paths.iter().for_each(|path| world.set_disk_faults(self.node, path, faults.clone()));
        }
        let lenient = self.judge.with(|mix| mix.errors_allowed = true);
        self.work(world, &open, &lenient, rng.between(1, 3), rng.between(10, 60))?;
        let (pool, reactor) = (open.pool.clone(), open.reactor.clone());
        self.complete(world, "a destage that may fail", async move { drop(pool.settle(&reactor).await) })?;
        paths.iter().for_each(|path| world.set_disk_faults(self.node, path, DiskFaults::default()));
        if rng.one_in(2) {
            self.settle(world, &open)?;
        }
        self.verify(world, &open)?;
        self.end(world, open, any_crash(rng));
        Ok(())
    }

    fn settle(self: &Rc<Self>, world: &mut World, open: &Open) -> Result<(), Failure> {
        let (bench, pool, reactor) = (self.clone(), open.pool.clone(), open.reactor.clone());
        self.complete(world, "everything to be destaged", async move {
            // What cannot be read is not given up at once.
            let mut pauses = 0..if bench.damage == Damage::Unreadable { PATIENCE_S } else { 0 };
            let ended = settle_patiently(&pool, &reactor, SECOND_NS, || pauses.next().is_some()).await;
            bench.succeeded("settling with damaged map pages", ended);
        })
    }

    /// Everything is written again: everything can be read, and nothing is wrong with the pool but what is lost.
    fn mend(self: &Rc<Self>, world: &mut World) -> Result<(), Failure> {
        let open = self.open(world, self.plan)?;
        let (bench, channel, reactor) = (self.clone(), open.channel.clone(), open.reactor.clone());
        self.complete(world, "everything to be written again", async move {
            let window = bench.plan.window_blocks << (12 - bench.plan.block_shift);
            let mut rng = Rng::new(1);
            let judge = bench.judge.with(|mix| mix.discards = false);
            for window in (0..bench.judge.blocks()).step_by(window as usize).map(|first| (first, window)) {
                judge.write(&reactor, &channel, &mut rng, window.0, window.1).await;
            }
        })?;
        self.settle(world, &open)?;
        // Nothing is excused any more.
        self.damaged.borrow_mut().clear();
        self.verify(world, &open)?;
        let (bench, pool, reactor) = (self.clone(), open.pool.clone(), open.reactor.clone());
        self.complete(world, "a scrub and a check", async move {
            pool.scrub(&reactor, u64::MAX).await;
            while pool.status(&reactor).await.shards.iter().any(|shard| shard.scrub.running) {
                reactor.sleep_ns(1_000_000).await;
            }
            for shard in pool.status(&reactor).await.shards {
                let corrupt = shard.scrub.corrupt_blocks;
                bench
                    .judge
                    .sim
                    .expect(corrupt == 0, || format!("a scrub finds {corrupt} corrupt blocks, not lost ones"));
            }
            pool.close(&reactor).await;
            drop(pool);
        })?;
        self.end(world, open, Crash::Kill);
        world.boot(self.node, 1, World::reactor_config());
        let (bench, reactor) = (self.clone(), world.reactor(self.node, 0));
        self.complete(world, "a check", async move {
            let devices = bench.plan.devices(&reactor).expect("the devices open");
            let options = CheckOptions::default();
            let report = Pool::check(&reactor, &devices.capacity, Some(&devices.log), options).await;
            let report = report.expect("the devices can be used");
            bench.judge.sim.expect(report.is_sound_but_for_losses(), || format!("a check finds {:?}", report.findings));
        })
    }

    fn succeeded<E: std::fmt::Display>(&self, what: &str, result: Result<(), E>) {
        if let Err(error) = result {
            self.judge.sim.violation(format!("{what} failed: {error}"));
        }
    }

    /// The extent of a volume that a cell lies in.
    fn extent_of(&self, cell: u64) -> VolumeExtent {
        let (per, mut first) = (1u64 << (12 - self.plan.block_shift), 0);
        for window in self.plan.windows() {
            if cell < first + window.blocks {
                return (window.child as u64, (window.start + cell - first) / (EXTENT_BLOCKS * per));
            }
            first += window.blocks;
        }
        panic!("cell {cell} is in no window");
    }

    /// Whether a cell may be unreadable: a damaged page alone knew what it may still be. Parts of blocks over a lost one
    /// leave it lost.
    fn is_excused(&self, cell: u64) -> bool {
        let oracle = self.judge.oracle.borrow();
        let as_before =
            self.settled.borrow()[cell as usize].iter().any(|value| oracle.readable(cell as usize).contains(value));
        self.damaged.borrow().contains(&self.extent_of(cell)) && (as_before || self.plan.block_shift == 9)
    }

    /// Reads every cell by itself.
    fn verify(self: &Rc<Self>, world: &mut World, open: &Open) -> Result<(), Failure> {
        let (bench, channel, reactor) = (self.clone(), open.channel.clone(), open.reactor.clone());
        self.complete(world, "everything to be read", async move {
            for lba in 0..bench.judge.blocks() {
                let mut bufs = SgList::new();
                bufs.push(reactor.pool().alloc(bench.judge.mix.block_bytes).await);
                let ticket = bench.judge.oracle.borrow_mut().begin_read(lba as usize..lba as usize + 1);
                let done = channel.submit(Io::read(Lba(lba), 1, bufs)).await;
                if !done.status.is_ok() {
                    let text =
                        || format!("cell {lba} cannot be read ({}), and no damaged page is to blame", done.status);
                    bench.judge.sim.expect(bench.is_excused(lba), text);
                    continue;
                }
                let values = bench.judge.values(&done.io.bufs, lba as usize);
                let verdict = bench.judge.oracle.borrow_mut().end_read(ticket, &values);
                if let Err(text) = verdict {
                    bench.judge.sim.violation(format!("read of {lba}: {text}"));
                }
            }
        })
    }
}
