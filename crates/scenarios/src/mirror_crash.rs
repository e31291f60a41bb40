//! `mirror-crash`: a mirror over files whose disks fail, stick and lose their caches, on a node that is killed and loses
//! power. What is acknowledged is on every leg that counts, and no block ever reads as two things: a value that was read
//! stays until the next write, whichever leg fails and however often the power does.

use crate::Run;
use crate::blocks::{Judge, Mix, is};
use crate::crashes::{Opening, Rig, SECOND_NS, Working, nothing_beside, start};
use crate::lossy::Lossy;
use bdev::{
    BlockDevice, ChecksumDevice, ChecksumOptions, DeviceError, FileDevice, FileDeviceOptions, Lba, MirrorDevice,
    MirrorOptions,
};
use reactor::Reactor;
use sim::{DiskFaults, DiskOptions, Failure, Mutation, NodeId, ScheduleFaults, World};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

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
    for leg in 0..legs {
        let disk = DiskOptions {
            bytes,
            unit,
            block_device: rng.one_in(3),
            volatile_cache: !rng.one_in(4),
            ..DiskOptions::default()
        };
        world.add_disk(node, &path(leg), disk, DiskFaults::default());
    }
    let region_bytes = 4096 * rng.between(1, 4);
    let plan =
        Plan { legs, block_size: mix.block_bytes as u32, region_bytes, checksums: false, copies_lost_from: None };
    let blocks = create(world, &plan, node)?;
    let data_start = Lba(bytes / mix.block_bytes as u64 - blocks);
    let plan = Plan { copies_lost_from: skips_copies.then_some(data_start), ..plan };
    let faulty = rng.below(3) as usize;
    for leg in 0..faulty.min(legs) {
        // A leg without any readable superblock might be the one that went on alone: opening refuses, rightly. So the
        // first slot stays.
        let faults = DiskFaults { damage_from: 4096, ..DiskFaults::swarm_loud(rng) };
        world.set_disk_faults(node, &path(leg), faults);
        mix.errors_allowed = true;
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    let judge = Judge::new(world.handle(), node, mix.clone(), blocks * mix.block_bytes as u64);
    // The device as opened last, for the resync beside the work; `Arc<dyn BlockDevice>` does not say that it is a mirror.
    let mirror: Rc<RefCell<Option<Arc<MirrorDevice>>>> = Rc::default();
    let slot = mirror.clone();
    let open = move |reactor: Rc<Reactor>| -> Opening {
        let slot = slot.clone();
        Box::pin(async move {
            let device = Arc::new(plan.open(&reactor, MirrorOptions::default()).await?);
            slot.replace(Some(device.clone()));
            Ok(device as Arc<dyn BlockDevice>)
        })
    };
    let resyncs = rng.one_in(2);
    let beside = move |reactor: Rc<Reactor>, _: Arc<dyn BlockDevice>| -> Working {
        let device = mirror.borrow().clone();
        Box::pin(async move {
            let Some(device) = device.filter(|_| resyncs) else { return };
            // It may fail with the disks; the next one goes on.
            let _ = device.resync(&reactor, 1_000).await;
            let _ = device.settle(&reactor).await;
        })
    };
    let rig = Rig {
        judge,
        node,
        reactors: rng.between(1, 2) as usize,
        open: Box::new(open),
        beside: Box::new(beside),
        close: Box::new(nothing_beside),
    };
    for round in 0..rng.between(1, 4) {
        world.handle().note(format!("round {round}"));
        rig.round(world, rng)?;
    }
    rig.finish(world)
}

pub(crate) fn path(leg: usize) -> String {
    format!("/leg{leg}")
}

/// A mirror of files, with or without checksums under it.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) legs: usize,
    pub(crate) block_size: u32,
    pub(crate) region_bytes: u64,
    pub(crate) checksums: bool,
    /// For the mutation [`SkipCopies`](Mutation::SkipCopies).
    pub(crate) copies_lost_from: Option<Lba>,
}

impl Plan {
    pub(crate) async fn open(self, reactor: &Rc<Reactor>, options: MirrorOptions) -> Result<MirrorDevice, String> {
        let mut legs = Vec::new();
        for leg in 0..self.legs {
            legs.push(Some(self.open_leg(reactor, leg, options.create).await.map_err(|error| error.to_string())?));
        }
        MirrorDevice::open(reactor, "mirror", legs, &options).await.map_err(|error| error.to_string())
    }

    async fn open_leg(
        &self,
        reactor: &Rc<Reactor>,
        leg: usize,
        create: bool,
    ) -> Result<Arc<dyn BlockDevice>, DeviceError> {
        let path = path(leg);
        let options = FileDeviceOptions { block_size: self.block_size, ..FileDeviceOptions::new(&path) };
        let file = Arc::new(FileDevice::open(reactor, &path, options)?);
        if let Some(from) = self.copies_lost_from {
            return Ok(Arc::new(Lossy { child: file, from }));
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
    let plan = *plan;
    let options =
        MirrorOptions { create: true, assume_clean: true, region_bytes: plan.region_bytes, ..MirrorOptions::default() };
    let opening = move |reactor: Rc<Reactor>| -> Opening {
        let options = options.clone();
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
