//! `mirror-crash`: a mirror over files whose disks fail, stick and lose their caches, on a node that is killed and loses
//! power. What is acknowledged is on every leg that counts, and no block ever reads as two things: a value that was read
//! stays until the next write, whichever leg fails and however often the power does. A leg may be absent when the mirror is
//! opened and arrive while it is used, and legs that failed are taken in again; without faults all are in sync in the end. The disks
//! may become larger, and the mirror with them; what they hold behind their former ends differs.

use crate::Run;
use crate::blocks::{Judge, Mix, TAG, is};
use crate::crashes::{Opening, Rig, SECOND_NS, SHORT, Working, start};
use crate::lossy::{Loss, Lossy};
use crate::shown::{Shown, ShownBytes};
use bdev::{
    BlockDevice, ChecksumDevice, ChecksumOptions, DeviceError, FileDevice, FileDeviceOptions, Flags, Io, Lba, LegState,
    LegStatus, MirrorDefect, MirrorDevice, MirrorOptions,
};
use reactor::{Reactor, SgList};
use sim::{DiskFaults, DiskOptions, Failure, Handle, Mutation, NodeId, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let unit = if rng.one_in(2) { 512 } else { 4096 };
    let mut mix = Mix::pick(rng, unit as usize);
    let skips_copies = is(&world.handle(), Mutation::SkipCopies);
    // The copies are the only forced writes then.
    mix.forced_writes &= !skips_copies;
    let node = world.add_node();
    let legs = rng.between(2, 3) as usize;
    let bytes = 4096 * rng.between(8, 40);
    let defect = match world.handle().mutation() {
        Some(Mutation::GrowUnrecorded) => Some(MirrorDefect::GrowUnrecorded),
        Some(Mutation::GrowUnmarked) => Some(MirrorDefect::GrowUnmarked),
        _ => None,
    };
    let grows = defect.is_some() || rng.one_in(3);
    let bytes_max = bytes + if grows { 4096 * rng.between(1, 20) } else { 0 };
    for leg in 0..legs {
        let disk = DiskOptions {
            bytes: bytes_max,
            unit,
            block_device: rng.one_in(3),
            volatile_cache: !rng.one_in(4),
            ..DiskOptions::default()
        };
        world.add_disk(node, &path(leg), disk, DiskFaults::default());
    }
    let region_bytes = 4096 * rng.between(1, 4);
    let regions_max = if rng.one_in(2) { rng.between(2, 20) as usize } else { 0 };
    let shown = ShownBytes::new(bytes.into());
    let block_size = mix.block_bytes as u32;
    let (of_legs, checksums, loss) = (grows.then(|| shown.clone()), false, None);
    let plan = Plan { legs, block_size, region_bytes, checksums, loss, shown: of_legs, regions_max, defect };
    let blocks = create(world, &plan, node)?;
    let from = Lba(bytes / mix.block_bytes as u64 - blocks);
    let blocks_max = bytes_max / mix.block_bytes as u64 - from.0;
    let forced = Loss { from, of: |io| io.flags.has(Flags::FUA) };
    let plan = Plan { loss: skips_copies.then_some(forced), ..plan };
    let mut judge = Judge::new(world.handle(), node, mix.clone(), blocks_max * mix.block_bytes as u64);
    judge.shown.set(blocks);
    if grows {
        let leftovers = judge.leftovers(legs, blocks..blocks_max);
        shown.store(bytes_max, Relaxed);
        leave(world, &plan, node, Lba(from.0 + blocks), leftovers)?;
        shown.store(bytes, Relaxed);
    }
    let faulty = rng.below(3) as usize;
    for leg in 0..faulty.min(legs) {
        // A leg without any readable superblock might be the one that went on alone: opening refuses, rightly. So the
        // first slot stays.
        let faults = DiskFaults { damage_from: 4096, ..DiskFaults::swarm_loud(rng) };
        world.set_disk_faults(node, &path(leg), faults);
        mix.errors_allowed = true;
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    judge.mix = mix;
    // The device as opened last, for the resync beside the work; `Arc<dyn BlockDevice>` does not say that it is a mirror.
    let opened: Rc<RefCell<Option<Opened>>> = Rc::default();
    let (sim, slot) = (world.handle(), opened.clone());
    judge.unheard = Rc::new(move || slot.borrow().as_ref().is_some_and(|opened| opened.lost_unheard(&sim, node)));
    let skips_resync = is(&world.handle(), Mutation::SkipResync);
    let latecomer = (skips_resync || rng.one_in(2)).then(|| rng.below(legs as u64) as usize);
    let untagged = Loss { from, of: |io| io.tag != TAG };
    let (slot, openings, sim) = (opened.clone(), Cell::new(rng.below(2)), world.handle());
    let size = Size { judge: judge.clone(), shown, least: Rc::new(Cell::new(blocks)) };
    let size_found = size.clone();
    let open = move |reactor: Rc<Reactor>| -> Opening {
        let (slot, plan, size) = (slot.clone(), plan.clone(), size_found.clone());
        openings.set(openings.get() + 1);
        let latecomer = latecomer.filter(|_| openings.get() % 2 == 0);
        slot.replace(None);
        let flushes_failed = failed_flushes(&sim, node, plan.legs);
        Box::pin(async move {
            let mut opened = plan.open_without(&reactor, latecomer, flushes_failed).await?;
            if skips_resync {
                let lossy = |leg: &mut Arc<dyn BlockDevice>| {
                    *leg = Arc::new(Lossy { child: leg.clone(), loss: untagged });
                };
                opened.late.iter_mut().flatten().for_each(lossy);
            }
            let mirror = opened.mirror.clone();
            size.found(&mirror);
            slot.replace(Some(opened));
            Ok(mirror as Arc<dyn BlockDevice>)
        })
    };
    let resyncs = rng.one_in(2);
    let late_ns = rng.between(0, 3_000_000);
    let (slot, grow_at) = (opened.clone(), grows.then(|| rng.between(bytes / 4096, bytes_max / 4096) * 4096));
    let size_beside = size.clone();
    let beside = move |reactor: Rc<Reactor>, _: Arc<dyn BlockDevice>| -> Working {
        let (opened, size) = (slot.borrow().clone(), size_beside.clone());
        Box::pin(async move {
            let Some(opened) = opened else { return };
            reactor.sleep_ns(late_ns).await;
            opened.join_all(&reactor).await;
            if resyncs {
                // It may fail with the disks; the next one goes on.
                let _ = opened.mirror.resync(&reactor, 1_000).await;
                opened.join_all(&reactor).await;
                let _ = opened.mirror.resync(&reactor, 1_000).await;
                let _ = opened.mirror.settle(&reactor).await;
            }
            if let Some(bytes) = grow_at {
                size.grow(bytes, &reactor, &opened.mirror).await;
            }
        })
    };
    let last = judge.clone();
    let close = move |reactor: Rc<Reactor>, device: Arc<dyn BlockDevice>| -> Working {
        let (opened, last, size) = (opened.borrow().clone(), last.clone(), size.clone());
        Box::pin(async move {
            let Some(opened) = opened else { return };
            opened.join_all(&reactor).await;
            let resync = opened.mirror.resync(&reactor, 1_000).await;
            let legs = opened.mirror.legs();
            let is_out = |leg: &LegStatus| leg.state == LegState::Failed;
            last.sim.expect(!legs.iter().any(is_out), || format!("without faults a leg stays out: {legs:?}"));
            // What no leg in sync can read any more cannot be copied.
            let lacks = |leg: &LegStatus| leg.state != LegState::InSync;
            let is_caught_up = resync.is_err() || !legs.iter().any(lacks);
            last.sim.expect(is_caught_up, || format!("a leg lacks data after a resync: {legs:?}"));
            if resync.is_ok() {
                size.grow(bytes_max, &reactor, &opened.mirror).await;
                let grown = opened.mirror.info().blocks;
                last.sim.expect(grown == blocks_max, || format!("it has grown to {grown} of {blocks_max} blocks"));
            }
            // Twice: reads go to the legs in turn.
            for _ in 0..2 {
                match device.open_channel(&reactor) {
                    Ok(channel) => last.clone().verify_all(reactor.clone(), channel).await,
                    Err(error) => last.sim.violation(format!("without faults no channel opens: {error}")),
                }
            }
        })
    };
    let rig = Rig {
        judge,
        node,
        reactors: Rc::new(Cell::new(rng.between(1, 2) as usize)),
        life: SHORT,
        open: Box::new(open),
        beside: Box::new(beside),
        close: Box::new(close),
    };
    for round in 0..rng.between(1, 4) {
        world.handle().note(format!("round {round}"));
        rig.round(world, rng)?;
    }
    rig.finish(world)
}

/// How large the mirror is, and has to be.
#[derive(Clone)]
struct Size {
    judge: Judge,
    shown: ShownBytes,
    /// Blocks that it has had, durably.
    least: Rc<Cell<u64>>,
}

impl Size {
    /// As it was opened.
    fn found(&self, mirror: &MirrorDevice) {
        let (blocks, least) = (mirror.info().blocks, self.least.get());
        self.judge.expect(blocks >= least, || format!("it has {blocks} blocks and had {least} once"));
        self.judge.shown.set(blocks);
    }

    /// With its disks, which have so many bytes from now on, if it can.
    async fn grow(&self, bytes: u64, reactor: &Rc<Reactor>, mirror: &MirrorDevice) {
        self.shown.fetch_max(bytes, Relaxed);
        if let Ok(info) = mirror.refresh(reactor).await
            && self.judge.sim.alive(self.judge.node)
        {
            self.judge.sim.note(format!("the mirror has {} blocks", info.blocks));
            self.least.set(self.least.get().max(info.blocks));
            self.judge.shown.set(info.blocks);
        }
    }
}

/// Writes to each disk what it has behind its end as yet.
fn leave(world: &mut World, plan: &Plan, node: NodeId, from: Lba, leftovers: Vec<Vec<u8>>) -> Result<(), Failure> {
    let leftovers = Rc::new(leftovers);
    let opening = |reactor: Rc<Reactor>| -> Opening {
        let (plan, leftovers) = (plan.clone(), leftovers.clone());
        Box::pin(async move {
            let mut disk = None;
            for (leg, bytes) in leftovers.iter().enumerate() {
                let device = plan.open_leg(&reactor, leg, false).await.map_err(|error| error.to_string())?;
                let channel = device.open_channel(&reactor).map_err(|error| error.to_string())?;
                for (index, bytes) in bytes.chunks(plan.block_size as usize).enumerate() {
                    let mut buf = reactor.pool().alloc(bytes.len()).await;
                    buf.as_mut_slice().copy_from_slice(bytes);
                    let write = Io::write(Lba(from.0 + index as u64), 1, SgList::from_iter([buf]));
                    channel.submit(write).await.status.check().map_err(|status| status.to_string())?;
                }
                channel.submit(Io::flush()).await.status.check().map_err(|status| status.to_string())?;
                disk = Some(device);
            }
            disk.ok_or_else(|| "there is no leg".to_string())
        })
    };
    match start(world, node, 1, opening, 60 * SECOND_NS)? {
        Some(Ok(disk)) => drop(disk),
        other => return Err(Failure::new(format!("disks cannot be filled: {:?}", other.map(|made| made.err())))),
    }
    world.crash(node, sim::Crash::Kill);
    Ok(())
}

fn failed_flushes(sim: &Handle, node: NodeId, legs: usize) -> Vec<u64> {
    (0..legs).map(|leg| sim.failed_flushes(node, &path(leg))).collect()
}

pub(crate) fn path(leg: usize) -> String {
    format!("/leg{leg}")
}

/// A mirror of files, with or without checksums under it.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) legs: usize,
    pub(crate) block_size: u32,
    pub(crate) region_bytes: u64,
    pub(crate) checksums: bool,
    /// For the mutation [`SkipCopies`](Mutation::SkipCopies).
    pub(crate) loss: Option<Loss>,
    /// What the disks show of themselves, if not all.
    pub(crate) shown: Option<ShownBytes>,
    /// See [`MirrorOptions`].
    pub(crate) regions_max: usize,
    pub(crate) defect: Option<MirrorDefect>,
}

/// A mirror in use, and the legs that it was opened without, at their places.
#[derive(Clone)]
struct Opened {
    mirror: Arc<MirrorDevice>,
    late: Vec<Option<Arc<dyn BlockDevice>>>,
    /// Of each leg, before it was opened.
    flushes_failed: Vec<u64>,
}

impl Opened {
    /// Whether a leg that counts, or will after a crash, has failed a flush in this life, which nobody may know of: a flush of a resync,
    /// or of a mirror that settles, that was under way when the process died. What reads well there afterwards goes with the power. (What a flush of a user
    /// has confirmed does not.)
    fn lost_unheard(&self, sim: &Handle, node: NodeId) -> bool {
        let before = self.flushes_failed.iter();
        let has_failed =
            before.zip(failed_flushes(sim, node, self.flushes_failed.len())).map(|(before, now)| now > *before);
        let mut legs = self.mirror.legs().into_iter().zip(has_failed);
        legs.any(|(leg, has_failed)| has_failed && (leg.state == LegState::InSync || !self.mirror.is_recorded()))
    }

    /// Takes in what is out; that may fail with the disks.
    async fn join_all(&self, reactor: &Rc<Reactor>) {
        for (leg, status) in self.mirror.status().legs.iter().enumerate() {
            if status.state == LegState::Failed {
                let device = self.late.get(leg).cloned().flatten();
                let _ = self.mirror.join(reactor, leg, device, false).await;
            }
        }
    }
}

impl Plan {
    pub(crate) async fn open(&self, reactor: &Rc<Reactor>, options: MirrorOptions) -> Result<MirrorDevice, String> {
        let legs = self.open_legs(reactor, options.create).await?;
        MirrorDevice::open(reactor, "mirror", legs, &options).await.map_err(|error| error.to_string())
    }

    /// Opens the mirror without one of its legs, where the others are known to have every acknowledged write.
    async fn open_without(
        &self,
        reactor: &Rc<Reactor>,
        absent: Option<usize>,
        flushes_failed: Vec<u64>,
    ) -> Result<Opened, String> {
        let mut legs = self.open_legs(reactor, false).await?;
        let open = async |legs: &Vec<Option<Arc<dyn BlockDevice>>>, options: MirrorOptions| {
            let options = MirrorOptions { regions_max: self.regions_max, defect: self.defect, ..options };
            let mirror = MirrorDevice::open(reactor, "mirror", legs.clone(), &options).await;
            mirror.map(Arc::new).map_err(|error| error.to_string())
        };
        let whole = open(&legs, MirrorOptions::default()).await?;
        let states: Vec<LegState> = whole.legs().iter().map(|leg| leg.state).collect();
        let stays = |leg: usize| states[leg] == LegState::InSync && Some(leg) != absent;
        if absent.is_none() || !(0..legs.len()).any(stays) {
            return Ok(Opened { mirror: whole, late: Vec::new(), flushes_failed });
        }
        drop(whole);
        // Only legs in sync may be there: told to go on, the mirror would take an older one if it could read no other.
        let out = |leg: usize, device: &mut Option<_>| if stays(leg) { None } else { device.take() };
        let late = legs.iter_mut().enumerate().map(|(leg, device)| out(leg, device)).collect();
        let mirror = open(&legs, MirrorOptions { start_degraded: true, ..MirrorOptions::default() }).await?;
        Ok(Opened { mirror, late, flushes_failed })
    }

    async fn open_legs(
        &self,
        reactor: &Rc<Reactor>,
        create: bool,
    ) -> Result<Vec<Option<Arc<dyn BlockDevice>>>, String> {
        let mut legs = Vec::new();
        for leg in 0..self.legs {
            legs.push(Some(self.open_leg(reactor, leg, create).await.map_err(|error| error.to_string())?));
        }
        Ok(legs)
    }

    async fn open_leg(
        &self,
        reactor: &Rc<Reactor>,
        leg: usize,
        create: bool,
    ) -> Result<Arc<dyn BlockDevice>, DeviceError> {
        let path = path(leg);
        let options = FileDeviceOptions { block_size: self.block_size, ..FileDeviceOptions::new(&path) };
        let mut file: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(reactor, &path, options)?);
        if let Some(bytes) = &self.shown {
            file = Arc::new(Shown { child: file, bytes: bytes.clone() });
        }
        if let Some(loss) = self.loss {
            return Ok(Arc::new(Lossy { child: file, loss }));
        }
        if !self.checksums {
            return Ok(file);
        }
        let options = ChecksumOptions { create, assume_zero: create, ..ChecksumOptions::default() };
        Ok(Arc::new(ChecksumDevice::open(reactor, &path, file, &options).await?))
    }
}

/// Makes the mirror, on hardware that does not fail yet; its size in blocks.
pub(crate) fn create(world: &mut World, plan: &Plan, node: NodeId) -> Result<u64, Failure> {
    let options =
        MirrorOptions { create: true, assume_clean: true, region_bytes: plan.region_bytes, ..MirrorOptions::default() };
    let opening = |reactor: Rc<Reactor>| -> Opening {
        let (plan, options) = (plan.clone(), options.clone());
        Box::pin(async move {
            let device = plan.open(&reactor, options).await?;
            device.settle(&reactor).await.map_err(|error| error.to_string())?;
            Ok(Arc::new(device) as Arc<dyn BlockDevice>)
        })
    };
    let made = start(world, node, 1, opening, 60 * SECOND_NS)?;
    let device = match made {
        Some(Ok(device)) => device,
        other => return Err(Failure::new(format!("the mirror cannot be made: {:?}", other.map(|made| made.err())))),
    };
    let blocks = device.info().blocks;
    drop(device);
    world.crash(node, sim::Crash::Kill);
    Ok(blocks)
}
