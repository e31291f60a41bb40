//! `flash-cache`: a cache on flash before a disk, on a node that is killed and loses power. Flash rots, misdirects and loses
//! writes, fails, does not answer, is away for a while, and comes back as a copy of what it was long before. The disk may have
//! become larger since the cache was made. No read is ever stale, and as long as the disk works, nobody meets an error or waits
//! for flash for long.
//!
//! `flash-budget`: the same over days, with a budget that matters; a meter on flash judges every window of 24 hours.

use crate::Run;
use crate::blocks::{Judge, Mix, is};
use crate::crashes::{Life, Opening, Rig, SECOND_NS, SHORT, Working, any_crash, nothing_beside, start};
use base::Rng;
use bdev::flash_cache::{DAY_NS, FlashCacheDefect};
use bdev::{
    BlockDevice, Channel, DeviceError, DeviceInfo, Done, Extent, FileDevice, FileDeviceOptions, FlashCacheDevice,
    FlashCacheOptions, Io, Lba, LinearDevice, Op,
};
use reactor::{IoFuture, Reactor};
use sim::{Crash, DiskFaults, DiskOptions, Failure, Handle, Mutation, NodeId, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const BLOCK: u64 = 4096;
const SLOW: &str = "/slow";
const FLASH: &str = "/flash";
/// The longest that a read may take while the disk works, whatever flash does.
const READ_MAX_NS: u64 = 2 * SECOND_NS;
/// The same of a close: it waits for a segment on its way to flash, and looks for others.
const SETTLE_MAX_NS: u64 = 10 * SECOND_NS;
/// A life in which flash that does not answer is noticed.
const LONG: Life = Life { ns: 6 * SECOND_NS, writes: 2_000 };
/// Blocks of a segment.
const SEGMENT_BLOCKS: u64 = 16;

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let unit = if rng.one_in(2) { 512 } else { 4096 };
    let mix = Mix { block_bytes: BLOCK as usize, ..Mix::pick(rng, unit) };
    let mut plan = Plan::pick(rng);
    let node = world.add_node();
    let blocks = plan.create(world, rng, node, unit as u32)?;
    let slow_fails = rng.one_in(3);
    if slow_fails {
        let metadata = plan.slow_blocks - blocks;
        // No failing flushes: what one leaves behind is read well until the power goes, and a process that is started after it
        // cannot know that. What it caches of that stays.
        world.set_disk_faults(
            node,
            SLOW,
            DiskFaults { damage_from: metadata * BLOCK, flush_error: 0, ..DiskFaults::swarm_loud(rng) },
        );
    }
    let mut life = SHORT;
    if rng.one_in(2) {
        let (loud, silent) = (DiskFaults::swarm_loud(rng), DiskFaults::swarm_silent(rng));
        if loud.stuck > 0 {
            life = LONG;
        }
        let faults = DiskFaults { bit_rot: silent.bit_rot, lost_write: silent.lost_write, ..loud };
        world.set_disk_faults(node, FLASH, DiskFaults { misdirected_write: silent.misdirected_write, ..faults });
    }
    if is(&world.handle(), Mutation::SkipVerify) {
        // What is not checked has to be wrong to be found.
        world.set_disk_faults(node, FLASH, DiskFaults { bit_rot: 5, ..DiskFaults::default() });
    }
    if is(&world.handle(), Mutation::WaitForEver) {
        world.set_disk_faults(node, FLASH, DiskFaults { stuck: 20, ..DiskFaults::default() });
        life = LONG;
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    let mix = Mix { errors_allowed: slow_fails, ..mix };
    let judge = Judge::new(world.handle(), node, mix, blocks * BLOCK);
    // The device as opened last, and an old copy of flash.
    let opened: Rc<RefCell<Option<Arc<FlashCacheDevice>>>> = Rc::default();
    let old: Rc<RefCell<Option<Vec<u8>>>> = Rc::default();
    let grown: Rc<Cell<bool>> = Rc::default();
    let is_away = rng.one_in(3);
    let goes_back = rng.one_in(3);
    plan.defect = defect(&world.handle());
    let sim = world.handle();
    let (slot, opening) = (opened.clone(), judge.clone());
    let open = move |reactor: Rc<Reactor>| -> Opening {
        let (slot, old, sim, judge) = (slot.clone(), old.clone(), sim.clone(), opening.clone());
        let grown = grown.clone();
        Box::pin(async move {
            let mut rng = sim.rng();
            let flash = plan.file(&reactor, FLASH).map_err(|error| error.to_string())?;
            if goes_back {
                if rng.one_in(3) {
                    let copy = reactor.timeout(SECOND_NS, read_all(&reactor, &flash)).await.flatten();
                    if let Some(copy) = copy {
                        old.replace(Some(copy));
                    }
                } else if rng.one_in(3) {
                    let copy = old.take();
                    if let Some(copy) = copy {
                        sim.note("flash is what it was before");
                        reactor.timeout(SECOND_NS, write_all(&reactor, &flash, &copy)).await;
                    }
                }
            }
            let flash = (!is_away || !rng.one_in(3)).then_some(flash);
            // Opening is a flush.
            let ticket = judge.oracle.borrow_mut().begin_flush();
            let opened = plan.open(&reactor, flash, &grown).await;
            if sim.alive(judge.node) {
                judge.oracle.borrow_mut().end_flush(ticket, opened.is_ok());
            }
            let device = opened?;
            slot.replace(Some(device.clone()));
            Ok(device as Arc<dyn BlockDevice>)
        })
    };
    let (slot, judged) = (opened.clone(), judge.clone());
    let settles = rng.one_in(2);
    let hot = rng.between(8, 40).min(blocks / 2);
    let beside = move |reactor: Rc<Reactor>, device: Arc<dyn BlockDevice>| -> Working {
        let (opened, judge) = (slot.borrow().clone(), judged.clone());
        Box::pin(async move {
            let Ok(channel) = device.open_channel(&reactor) else { return };
            let mut rng = judge.sim.rng();
            let first = rng.below(blocks - hot);
            for _ in 0..rng.between(50, 300) {
                let lba = first + rng.below(hot);
                let read = reactor.timeout(READ_MAX_NS, judge.read(&reactor, &channel, &mut rng, lba, 1)).await;
                judge.expect(read.is_some() || slow_fails, || format!("a read of {lba} waits for flash"));
                if rng.one_in(100)
                    && settles
                    && let Some(opened) = &opened
                {
                    // In the midst of everything.
                    let settled = reactor.timeout(SETTLE_MAX_NS, settle(&judge, &reactor, opened)).await;
                    judge.expect(settled.is_some() || slow_fails, || "a close waits for flash".to_string());
                }
            }
            if let Some(opened) = &opened {
                let status = opened.status(reactor.now_ns());
                judge.sim.note(format!(
                    "{} hits, {} blocks cached, {} times late, flash is {}",
                    status.counts.hits,
                    status.cached_blocks,
                    status.counts.late,
                    status.mode.name()
                ));
                if settles {
                    settle(&judge, &reactor, opened).await;
                }
            }
        })
    };
    let reactors = rng.between(1, 2) as usize;
    let rig = Rig {
        judge,
        node,
        reactors: Rc::new(Cell::new(reactors)),
        life,
        open: Box::new(open),
        beside: Box::new(beside),
        close: Box::new(nothing_beside),
    };
    for round in 0..rng.between(1, 5) {
        world.handle().note(format!("round {round}"));
        rig.round(world, rng)?;
    }
    rig.finish(world)
}

/// Closes the cache, which is a flush, and may fail with the disk.
async fn settle(judge: &Judge, reactor: &Rc<Reactor>, cache: &FlashCacheDevice) {
    let ticket = judge.oracle.borrow_mut().begin_flush();
    let ended = cache.settle(reactor).await;
    if judge.sim.alive(judge.node) {
        judge.oracle.borrow_mut().end_flush(ticket, ended.is_ok());
    }
}

pub(crate) fn run_budget(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let mut plan = Plan::pick(rng);
    let segment_bytes = SEGMENT_BLOCKS * BLOCK;
    plan.write_budget = segment_bytes * rng.between(45, 200);
    plan.defect = defect(&world.handle());
    let node = world.add_node();
    let blocks = plan.create(world, rng, node, BLOCK as u32)?;
    let meter = Meter::default();
    let mix = Mix { block_bytes: BLOCK as usize, ..Mix::pick(rng, BLOCK as usize) };
    let judge = Judge::new(world.handle(), node, mix, blocks * BLOCK);
    let (metered, grown) = (meter.clone(), Rc::<Cell<bool>>::default());
    let open = move |reactor: Rc<Reactor>| -> Opening {
        let (meter, grown) = (metered.clone(), grown.clone());
        Box::pin(async move {
            let child = plan.file(&reactor, FLASH).map_err(|error| error.to_string())?;
            let device = plan.open(&reactor, Some(Arc::new(Metered { child, meter })), &grown).await?;
            Ok(device as Arc<dyn BlockDevice>)
        })
    };
    let rig = Rig {
        judge: judge.clone(),
        node,
        reactors: Rc::new(Cell::new(1)),
        life: Life { ns: DAY_NS, writes: 10_000 },
        open: Box::new(open),
        beside: Box::new(nothing_beside),
        close: Box::new(nothing_beside),
    };
    // Either many short lives, or a few that last: with steady demand nearly all of the budget is used in these.
    let lives = if rng.one_in(2) { rng.between(30, 40) } else { rng.between(1, 3) };
    let is_short = lives > 3;
    let has_demand = !is_short && rng.one_in(2);
    let begun_ns = world.now_ns();
    for _ in 0..lives {
        let Some((_, channels)) = rig.start(world)? else { return Err(Failure::new("the cache does not open")) };
        let judge = judge.clone();
        let channel = channels[0].clone();
        world.spawn(node, 0, |reactor| demand(judge, reactor, channel, blocks, is_short, has_demand));
        drop(channels);
        let ns = if is_short { rng.between(SECOND_NS, 6 * SECOND_NS) } else { rng.between(DAY_NS, 2 * DAY_NS) };
        world.run_for(ns)?;
        let crash = any_crash(rng);
        world.crash(node, crash);
        match crash {
            Crash::Kill => rig.judge.oracle.borrow_mut().killed(),
            Crash::PowerCut => rig.judge.oracle.borrow_mut().power_cut(),
        }
        if !is_short && rng.one_in(2) {
            // The machine is off for a while.
            world.run_for(rng.between(1, DAY_NS))?;
        }
    }
    let (most, total) = meter.judge();
    let used = most as f64 / plan.write_budget as f64;
    world.handle().note(format!("{used:.3} of the budget in a day at most"));
    let sim = world.handle();
    sim.expect(used <= 1.05, || format!("{most} bytes written to flash in 24 hours, {used:.3} of the budget"));
    let days = (world.now_ns() - begun_ns) as f64 / DAY_NS as f64;
    let single = lives == 1 && has_demand;
    // Of a life that is longer than a day, the day in which most was written had demand all the time.
    sim.expect(!single || days < 1.1 || used >= 0.9, || {
        format!("{used:.3} of the budget used, {total} bytes in {days:.1} days")
    });
    Ok(())
}

/// Reads that are worth caching, with pauses; with `steady` demand more of them than the budget has bytes for.
async fn demand(
    judge: Judge,
    reactor: Rc<Reactor>,
    channel: Rc<dyn Channel>,
    blocks: u64,
    is_short: bool,
    steady: bool,
) {
    let mut rng = judge.sim.rng();
    loop {
        let hot = rng.between(20, 100).min(blocks);
        let first = rng.below(blocks - hot + 1);
        let writes = !steady && rng.one_in(3);
        for _ in 0..3 {
            for lba in first..first + hot {
                judge.read(&reactor, &channel, &mut rng, lba, 1).await;
            }
        }
        if writes || steady {
            // What is written has to be read and cached again.
            for lba in (first..first + if steady { hot } else { hot.min(8) }).step_by(4) {
                let nblocks = 4.min(blocks - lba);
                judge.write(&reactor, &channel, &mut rng, lba, nblocks).await;
            }
            judge.flush(&channel).await;
        }
        let pause_ns = match (is_short, steady) {
            (true, _) => rng.below(2 * SECOND_NS),
            (_, true) => 600 * SECOND_NS,
            _ => rng.below(DAY_NS / 50),
        };
        reactor.sleep_ns(pause_ns).await;
    }
}

/// What a mutation breaks in a flash cache.
pub(crate) fn defect(sim: &Handle) -> Option<FlashCacheDefect> {
    match sim.mutation() {
        Some(Mutation::SkipMarks) => Some(FlashCacheDefect::SkipMarks),
        Some(Mutation::SkipVerify) => Some(FlashCacheDefect::SkipVerify),
        Some(Mutation::RefillBucket) => Some(FlashCacheDefect::FullBucket),
        Some(Mutation::WaitForEver) => Some(FlashCacheDefect::WaitForEver),
        Some(Mutation::GrowUnrecorded) => Some(FlashCacheDefect::GrowUnrecorded),
        Some(Mutation::RestoreWritten) => Some(FlashCacheDefect::RestoreWritten),
        _ => None,
    }
}

/// Two disks and how the cache on them is opened.
#[derive(Clone, Copy)]
struct Plan {
    slow_blocks: u64,
    /// Blocks of the slow disk when the cache was made.
    first_blocks: u64,
    flash_blocks: u64,
    region_bytes: u64,
    write_budget: u64,
    defect: Option<FlashCacheDefect>,
}

impl Plan {
    fn pick(rng: &mut Rng) -> Plan {
        let slow_blocks = rng.between(60, 250);
        Plan {
            slow_blocks,
            first_blocks: if rng.one_in(2) { slow_blocks } else { rng.between(50, slow_blocks) },
            flash_blocks: SEGMENT_BLOCKS * rng.between(9, 16) + rng.below(SEGMENT_BLOCKS),
            region_bytes: BLOCK * rng.between(1, 20),
            // Tens of gigabytes a second.
            write_budget: 1 << rng.between(50, 60),
            defect: None,
        }
    }

    fn file(&self, reactor: &Rc<Reactor>, path: &str) -> Result<Arc<dyn BlockDevice>, DeviceError> {
        let options = FileDeviceOptions { block_size: BLOCK as u32, ..FileDeviceOptions::new(path) };
        Ok(Arc::new(FileDevice::open(reactor, path, options)?))
    }

    /// Opens it, and lets it grow once.
    async fn open(
        self,
        reactor: &Rc<Reactor>,
        flash: Option<Arc<dyn BlockDevice>>,
        grown: &Cell<bool>,
    ) -> Result<Arc<FlashCacheDevice>, String> {
        let slow = self.file(reactor, SLOW).map_err(|error| error.to_string())?;
        let device = self.open_on(reactor, slow, flash).await.map_err(|error| error.to_string())?;
        if !grown.get() {
            device.refresh(reactor).await.map_err(|error| error.to_string())?;
            grown.set(true);
        }
        Ok(device)
    }

    async fn open_on(
        self,
        reactor: &Rc<Reactor>,
        slow: Arc<dyn BlockDevice>,
        flash: Option<Arc<dyn BlockDevice>>,
    ) -> Result<Arc<FlashCacheDevice>, DeviceError> {
        let options = FlashCacheOptions {
            create: true,
            without_cache: true,
            write_budget: self.write_budget,
            segment_bytes: SEGMENT_BLOCKS * BLOCK,
            region_bytes: self.region_bytes,
            loads_after_ns: self.slow_blocks.is_multiple_of(2).then_some(self.slow_blocks * 1_000),
            defect: self.defect,
            ..FlashCacheOptions::default()
        };
        Ok(Arc::new(FlashCacheDevice::open(reactor, "cache", slow, flash, &options).await?))
    }

    /// Makes the disks and the cache, on hardware that does not fail yet; its size in blocks when it has grown.
    fn create(&self, world: &mut World, rng: &mut Rng, node: NodeId, unit: u32) -> Result<u64, Failure> {
        for (path, blocks) in [(SLOW, self.slow_blocks), (FLASH, self.flash_blocks)] {
            let disk = DiskOptions {
                bytes: blocks * BLOCK,
                unit,
                block_device: rng.one_in(3),
                volatile_cache: !rng.one_in(4),
                ..DiskOptions::default()
            };
            world.add_disk(node, path, disk, DiskFaults::default());
        }
        let plan = *self;
        let opening = move |reactor: Rc<Reactor>| -> Opening {
            Box::pin(async move {
                let flash = plan.file(&reactor, FLASH).map_err(|error| error.to_string())?;
                let slow = plan.file(&reactor, SLOW).map_err(|error| error.to_string())?;
                let first = Extent { child: 0, start: 0, blocks: plan.first_blocks };
                let slow = LinearDevice::new("first", vec![slow], vec![first]).map_err(|error| error.to_string())?;
                let device = plan.open_on(&reactor, Arc::new(slow), Some(flash)).await;
                device.map(|device| device as Arc<dyn BlockDevice>).map_err(|error| error.to_string())
            })
        };
        let device = match start(world, node, 1, opening, 60 * SECOND_NS)? {
            Some(Ok(device)) => device,
            other => return Err(Failure::new(format!("the cache cannot be made: {:?}", other.map(|made| made.err())))),
        };
        let blocks = device.info().blocks + self.slow_blocks - self.first_blocks;
        drop(device);
        world.crash(node, Crash::Kill);
        Ok(blocks)
    }
}

/// All bytes of a device, if they can be read.
pub(crate) async fn read_all(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>) -> Option<Vec<u8>> {
    let channel = device.open_channel(reactor).ok()?;
    let (mut all, block) = (Vec::new(), device.info().block_size as usize);
    for lba in 0..device.info().blocks {
        let mut bufs = reactor::SgList::new();
        bufs.push(reactor.pool().alloc(block).await);
        let done = channel.submit(Io::read(Lba(lba), 1, bufs)).await;
        if !done.status.is_ok() {
            return None;
        }
        all.extend_from_slice(done.io.bufs[0].as_slice());
    }
    Some(all)
}

/// Makes a device what it was, as far as it can be written.
pub(crate) async fn write_all(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>, all: &[u8]) {
    let Ok(channel) = device.open_channel(reactor) else { return };
    let block = device.info().block_size as usize;
    for (lba, bytes) in all.chunks(block).enumerate() {
        let mut buf = reactor.pool().alloc(block).await;
        buf.as_mut_slice().copy_from_slice(bytes);
        let mut bufs = reactor::SgList::new();
        bufs.push(buf);
        channel.submit(Io::write(Lba(lba as u64), 1, bufs)).await;
    }
}

/// When how many bytes were written to flash.
#[derive(Clone, Default)]
pub(crate) struct Meter(Arc<Mutex<Vec<(u64, u64)>>>);

impl Meter {
    fn note(&self, at_ns: u64, bytes: u64) {
        self.0.lock().expect("nothing panics while holding the meter").push((at_ns, bytes));
    }

    /// The most bytes in any 24 hours, and all of them.
    pub(crate) fn judge(&self) -> (u64, u64) {
        let writes = self.0.lock().expect("nothing panics while holding the meter");
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for (at_ns, bytes) in writes.iter() {
            sum += bytes;
            while writes[first].0 + DAY_NS <= *at_ns {
                sum -= writes[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        (most, writes.iter().map(|(_, bytes)| bytes).sum())
    }
}

/// Flash, with a meter on it.
pub(crate) struct Metered {
    pub(crate) child: Arc<dyn BlockDevice>,
    pub(crate) meter: Meter,
}

impl BlockDevice for Metered {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        "metered"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let child = self.child.open_channel(reactor)?;
        let block_bytes = self.child.info().block_size as u64;
        Ok(Rc::new(MeteredChannel { child, reactor: reactor.clone(), meter: self.meter.clone(), block_bytes }))
    }
}

struct MeteredChannel {
    child: Rc<dyn Channel>,
    reactor: Rc<Reactor>,
    meter: Meter,
    block_bytes: u64,
}

impl Channel for MeteredChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if io.op == Op::Write {
            self.meter.note(self.reactor.clock_ns(), io.nblocks as u64 * self.block_bytes);
        }
        self.child.submit(io)
    }
}
