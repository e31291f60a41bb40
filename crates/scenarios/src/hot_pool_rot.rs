//! `hot-pool-rot`: a hot pool in use on disks whose data rots, becomes unreadable or cannot be written, on the log as on the
//! capacity device, which are slow beside. No read returns anything but what its checksum confirms (I10), which is what is
//! newest; what cannot be read is an error. When the disks are well again the pool settles and opens (if its log can be
//! read; if not, after giving it up), the errors stay where they were until the block is written, and then all is well.
//!
//! Only what is read while the pool is open is hit: payloads in the log, data on the capacity device. Damage to headers of
//! the log and to metadata is for other tests, as is damage to the last record before a crash, which nothing can tell from
//! one that the crash has torn, and failing flushes: after one of them a file device fails until it is opened again.
//!
//! In the end the pool is closed with a log that is not empty, and the last record in there rots: that is not taken for torn.
//!
//! `shaped-pool-rot` is the same with a shaped pool, whose stripes rot as a whole, with their headers.

use crate::Run;
use crate::blocks::Crew;
use crate::crashes::{SECOND_NS, any_crash};
use crate::hot_pool::{CAPACITY, EXTENT_BLOCKS, LOG, Plan, settle_patiently};
use crate::ledger::{Hands, Spot};
use crate::lives::{Aim, Lives};
use base::Rng;
use bdev::{Flags, Io, Lba, Status};
use engine::log::{LogGeometry, Medium, Record, scan};
use engine::{LogDevice, Meta, Pool};
use reactor::{Reactor, SgList};
use sim::{Crash, DiskFaults, Failure, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// For so long new damage comes: less than the pool's patience, or nothing could be read by the end of that.
const FAILING_NS: u64 = 20 * SECOND_NS;
const AIM: Aim = Aim("the work on failing disks to end", 600 * SECOND_NS);
/// By then what cannot be read has been given up.
const GIVEN_UP_NS: u64 = 300 * SECOND_NS;
const EXTENTS: u64 = 6;

#[derive(Clone)]
struct Stage {
    lives: Lives,
    hands: Rc<RefCell<Option<Hands>>>,
    settled: Rc<Cell<bool>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    run_with(run, false, |plan, _| plan)
}

pub(crate) fn run_shaped(run: &mut Run) -> Result<(), Failure> {
    run_with(run, false, Plan::shaped)
}

/// With a log of few segments, most of which failing writes put out of use: then writes and settling may fail, and always end.
pub(crate) fn run_small(run: &mut Run) -> Result<(), Failure> {
    run_with(run, true, |plan, _| plan)
}

fn run_with(run: &mut Run, small: bool, shape: fn(Plan, &mut Rng) -> Plan) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    // More than failing writes put out of use: see `faults`.
    let segments = if small { rng.between(8, 14) } else { rng.between(20, 30) };
    let plan = Plan::pick(rng);
    let plan = Plan {
        mapped: false,
        shards: 1,
        // Less than a block over one that is damaged cannot be told from it any more.
        block_shift: 12,
        volumes: 1,
        log_bytes: (16 + segments * plan.segment_blocks as u64) * 4096,
        capacity_bytes: 20 << 22,
        idle_ns: rng.between(50_000, 50_000_000),
        // With four pages, all of which may wait for a root that fails, the work may not end: seed 54 of the small log.
        small_cache: false,
        ..plan
    };
    let plan = shape(plan, rng);
    let places = [(0, 1), (1, 1), (7, 20), (40, 60), (1023, 1)];
    let spots = Spot::in_extents((0..EXTENTS).map(|extent| (0, extent)), &places, 1);
    let lives = Lives::new(world, rng, plan, spots, AIM)?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    let node = lives.node;
    let stage = Stage { lives, hands: Rc::default(), settled: Rc::default() };
    for round in 0..rng.between(1, 3) {
        world.handle().note(format!("round {round}"));
        stage.open(world, rng)?;
        stage.lives.ledger.borrow_mut().rots = true;
        for path in [LOG, CAPACITY] {
            world.set_disk_faults(node, path, faults(rng, path, plan, small));
        }
        let fork = rng.fork();
        let crew = stage.begin(world, |stage, hands| async move { stage.work(hands, fork).await });
        let until_ns = world.now_ns() + FAILING_NS;
        while world.now_ns() < until_ns && !crew.is_done() {
            world.run_for(SECOND_NS / 10)?;
        }
        for path in [LOG, CAPACITY] {
            world.set_disk_faults(node, path, DiskFaults::default());
        }
        stage.wait(world, &crew)?;
        stage.go_on(world, |stage, hands| async move { stage.settle(hands).await })?;
        world.crash(node, any_crash(rng));
        if !stage.settled.get() {
            // The log may have what cannot be read, and nothing else has it.
            return Ok(());
        }
        stage.open(world, rng)?;
        stage.go_on(world, |stage, hands| async move { stage.make_whole(hands).await })?;
        world.crash(node, Crash::Kill);
    }
    stage.rot_the_end(world, rng)
}

/// What the disks do wrong while the pool is open.
fn faults(rng: &mut Rng, path: &str, plan: Plan, small: bool) -> DiskFaults {
    let mut pick = |low, high| if rng.one_in(2) { rng.between(low, high) } else { 0 };
    let damage = data_of(path, plan);
    DiskFaults {
        read_error: pick(5, 50),
        latent_error: pick(5, 50),
        bit_rot: pick(5, 50),
        // Each takes a segment of the log out of use. With hardly any left, room for the record that says that a block is lost
        // would have to come from the very checkpoint that waits for it: settling fails.
        write_error: match path {
            LOG if small => pick(2, 50),
            LOG => pick(50, 200),
            _ => pick(10, 100),
        },
        slow: pick(5, 100),
        damage_from: damage.start * 4096,
        damage_to: damage.end * 4096,
        ..DiskFaults::default()
    }
}

/// Where the data of volumes lies, in blocks: of the log its segments, behind which a shaped pool has its index.
fn data_of(path: &str, plan: Plan) -> Range<u64> {
    let superblock = plan.superblock();
    match path {
        LOG => {
            let segments = superblock.segments as u64 * superblock.segment_blocks as u64;
            superblock.segment_start(0, 0)..superblock.segment_start(0, 0) + segments
        }
        _ if plan.bands.is_some() => superblock.bands.start..plan.capacity_bytes / 4096,
        _ => superblock.regions[0].data_start()..superblock.regions[0].end(),
    }
}

impl Stage {
    /// Opens the pool and reads everything.
    fn open(&self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        let plan = Plan { reactors: rng.between(1, 2) as usize, ..self.lives.plan };
        world.boot(self.lives.node, plan.reactors, World::reactor_config());
        let (stage, crew) = (self.clone(), Crew::default());
        let opening = move |reactor: Rc<Reactor>| async move {
            match stage.open_or_forget(&reactor, plan).await {
                Ok(pool) => {
                    reactor.keep(Rc::new(pool.clone()));
                    let hands = stage.lives.hands(pool, reactor);
                    hands.read_all().await;
                    stage.hands.replace(Some(hands));
                }
                Err(error) => stage.lives.sim.violation(format!("the pool does not open: {error}")),
            }
        };
        world.spawn(self.lives.node, 0, |reactor| crew.member(opening(reactor)));
        self.wait(world, &crew)
    }

    /// A log that is damaged where opening reads it, although nothing of it is needed any more, is given up. That may lose
    /// what the journal names, and nothing stale comes back.
    async fn open_or_forget(&self, reactor: &Rc<Reactor>, plan: Plan) -> Result<Arc<Pool>, String> {
        let devices = plan.devices(reactor)?;
        let opened = plan.open(reactor, devices.clone()).await;
        match opened {
            Err(error) if self.settled.get() => {
                self.lives.sim.note(format!("the log is given up: {error}"));
                let forgotten = Pool::forget_log(reactor, &devices, false, &Default::default())
                    .await
                    .map_err(|other| other.to_string())?;
                // The dirty journal may still name slices that have nothing in the log any more.
                if forgotten.slices > 0 {
                    self.lives.ledger.borrow_mut().lose(|_| true);
                }
                plan.open(reactor, devices).await
            }
            opened => opened,
        }
    }

    /// The process goes on with `main`.
    fn go_on<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        main: impl FnOnce(Stage, Hands) -> F,
    ) -> Result<(), Failure> {
        let crew = self.begin(world, main);
        self.wait(world, &crew)
    }

    fn begin<F: Future<Output = ()> + 'static>(&self, world: &mut World, main: impl FnOnce(Stage, Hands) -> F) -> Crew {
        let hands = self.hands.borrow().clone().expect("it has just been opened");
        let crew = Crew::default();
        world.spawn(self.lives.node, 0, |_| crew.member(main(self.clone(), hands)));
        crew
    }

    fn wait(&self, world: &mut World, crew: &Crew) -> Result<(), Failure> {
        world.run_until(AIM.0, AIM.1, |_| crew.is_done())
    }

    async fn work(self, hands: Hands, mut rng: Rng) {
        let tasks = rng.between(1, 3);
        let work = |task, rng| self.clone().work_on(hands.clone(), task, tasks, rng);
        hands.share_out(tasks, &mut rng, work).await;
    }

    async fn work_on(self, hands: Hands, task: u64, tasks: u64, mut rng: Rng) {
        let spots = self.lives.ledger.borrow().spots();
        let mine: Vec<Spot> = spots.into_iter().filter(|spot| spot.first / EXTENT_BLOCKS % tasks == task).collect();
        for _ in 0..rng.between(10, 80) {
            let spot = mine[rng.below(mine.len() as u64) as usize];
            match rng.below(16) {
                0..7 => drop(hands.write(spot).await),
                7..13 => drop(hands.read(spot).await),
                13 => drop(hands.trim(spot.volume, spot.first, spot.blocks).await),
                14 => drop(hands.pool.settle(&hands.reactor).await),
                _ => hands.reactor.sleep_ns(rng.below(3_000_000)).await,
            }
        }
    }

    /// With disks that are well: whatever cannot be read is given up, and nothing is left in the log alone.
    async fn settle(self, hands: Hands) {
        let until_ns = hands.reactor.now_ns() + GIVEN_UP_NS;
        let go_on = || hands.reactor.now_ns() < until_ns;
        let settled = settle_patiently(&hands.pool, &hands.reactor, 3 * SECOND_NS, go_on).await;
        let status = hands.pool.status(&hands.reactor).await;
        self.lives.sim.note(format!("settled: {settled:?}, {:?}", status.shards));
        // Segments that could not be written are out of use until the pool is opened again.
        let has_room = status.shards.iter().all(|shard| shard.log_free_bytes > shard.log_bytes / 2);
        self.lives
            .sim
            .expect(settled.is_ok() || !has_room, || format!("on disks that are well settling fails: {settled:?}"));
        self.settled.set(settled.is_ok());
        hands.pool.close(&hands.reactor).await;
        self.hands.take();
    }

    /// The pool is closed with a log that is not empty, and the last record in there rots.
    fn rot_the_end(&self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        let mut idle = self.clone();
        idle.lives.plan.idle_ns = 3600 * SECOND_NS;
        idle.open(world, rng)?;
        let (mut fork, last) = (rng.fork(), Rc::new(Cell::new(None)));
        let written = last.clone();
        idle.go_on(world, |stage, hands| async move {
            let spots = stage.lives.ledger.borrow().spots();
            for _ in 0..fork.between(1, 6) {
                let spot = spots[fork.below(spots.len() as u64) as usize];
                let status = hands.write(spot).await;
                stage
                    .lives
                    .sim
                    .expect(status == Status::Ok, || format!("on disks that are well writing fails: {status}"));
                written.set(Some(spot));
            }
            hands.pool.close(&hands.reactor).await;
            stage.hands.take();
        })?;
        world.crash(self.lives.node, any_crash(rng));
        let in_header = rng.one_in(2);
        let at = rng.below(4096 * 8) as usize;
        let stage = idle.clone();
        idle.lives.live(world, 1, |reactor| stage.damage_the_end(reactor, in_header, at))?;
        world.crash(self.lives.node, Crash::Kill);
        // Without the header nobody knows what was written, and the log has to be given up; else the pool opens.
        idle.settled.set(in_header);
        idle.lives.ledger.borrow_mut().lose(|spot| Some(*spot) == last.get());
        idle.open(world, rng)?;
        idle.go_on(world, |stage, hands| async move { stage.make_whole(hands).await })
    }

    /// Flips a bit of the last record of the log: in the first block of what was written, or in the one before it.
    async fn damage_the_end(self, reactor: Rc<Reactor>, in_header: bool, bit: usize) {
        let devices = self.lives.plan.devices(&reactor).expect("the devices open");
        let capacity = (devices.capacity.open_channel(&reactor).expect("it opens"), devices.capacity.info());
        let superblock = engine::read_superblocks(&reactor, capacity.0.clone(), capacity.1).await.expect("a pool");
        let LogDevice::Block(device) = &devices.log else { panic!("a block log") };
        let (channel, info) = (device.open_channel(&reactor).expect("it opens"), device.info());
        let index = if self.lives.plan.bands.is_some() { (channel.clone(), info) } else { capacity };
        let (_, tail) = Meta::open(&reactor, index.0, index.1, &superblock, 0, 0).await.expect("a shard");
        let first_block = superblock.segment_start(0, 0);
        let medium = Medium::Block { reactor: reactor.clone(), channel: channel.clone(), info, first_block };
        let geometry = LogGeometry {
            shard: 0,
            pool: superblock.pool_prefix(),
            segments: superblock.segments,
            segment_blocks: superblock.segment_blocks,
        };
        let mut last = None;
        let scanned = scan(&medium, geometry, tail, &mut |record, placed| last = Some((record.clone(), placed))).await;
        if let Err(error) = scanned {
            // A block that went bad before, and that nobody but this search needs.
            return self.lives.sim.note(format!("the end of the log is not found: {error}"));
        }
        let (record, placed) = last.expect("something was written");
        assert!(matches!(record, Record::Write { .. }), "{record:?}");
        let block = first_block + placed.at.bytes() / 4096 - in_header as u64;
        // Headers fill a part of their block.
        let bit = if in_header { bit % (128 * 8) } else { bit };
        self.lives.sim.note(format!("bit {bit} of block {block} of the log rots, of {record:?}"));
        let scale = 4096 / info.block_size;
        let mut bufs = SgList::new();
        bufs.push(reactor.pool().alloc(4096).await);
        let mut done = channel.submit(Io::read(Lba(block * scale as u64), scale, bufs)).await;
        done.io.bufs[0].as_mut_slice()[bit / 8] ^= 1 << (bit % 8);
        let write = Io { flags: Flags::FUA, ..Io::write(Lba(block * scale as u64), scale, done.io.bufs) };
        assert_eq!(channel.submit(write).await.status, Status::Ok);
    }

    /// Everything is written once more: no error is left.
    async fn make_whole(self, hands: Hands) {
        self.lives.ledger.borrow_mut().rots = false;
        let spots = self.lives.ledger.borrow().spots();
        for spot in &spots {
            let status = hands.write(*spot).await;
            self.lives
                .sim
                .expect(status == Status::Ok, || format!("on disks that are well writing fails with '{status}'"));
        }
        hands.read_all().await;
        let settled = hands.pool.settle(&hands.reactor).await;
        self.lives.sim.expect(settled.is_ok(), || format!("on disks that are well settling fails: {settled:?}"));
        hands.read_all().await;
        hands.pool.close(&hands.reactor).await;
        self.hands.take();
    }
}
