//! `devices-conformance`: bdev's own conformance suite in the simulated world, on a random stack of devices.
//!
//! The hardware here never fails; it takes every liberty that a correct one may: any order, any delay, short transfers,
//! reactors that pause.

use crate::Run;
use crate::blocks::{Crew, check_pool};
use base::Rng;
use bdev::conformance::{self, Options};
use bdev::{
    BlockDevice, Delay, DelayDevice, Delays, DeviceError, ErrorDevice, Extent, FileDevice, FileDeviceOptions,
    LinearDevice, MemDevice, StripeDevice,
};
use reactor::Reactor;
use sim::{DiskFaults, DiskOptions, Failure, NodeId, ScheduleFaults, World};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Stacked filters at most.
const DEPTH_MAX: u64 = 3;

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let node = world.add_node();
    world.set_schedule(ScheduleFaults::swarm(rng));
    world.boot(node, 1, World::reactor_config());
    let block_size = if rng.one_in(3) { 512 } else { 4096 };
    let mut builder = Builder { world, rng, node, block_size, made: 0 };
    let depth = builder.rng.below(DEPTH_MAX + 1);
    let device = builder.stack(depth).map_err(|error| Failure::new(error.to_string()))?;
    let name = describe(&*device);
    builder.world.handle().note(name.clone());
    let options = Options { random_ops: 60, ..Options::new(builder.rng.next_u64()) };
    let outcome: Rc<RefCell<Option<Result<(), conformance::Failure>>>> = Rc::default();
    let crew = Crew::default();
    let slot = outcome.clone();
    world.spawn(node, 0, |reactor| {
        crew.member(async move {
            let result = conformance::run(&reactor, &device, options).await;
            *slot.borrow_mut() = Some(result);
        })
    });
    world.run_until(&format!("the conformance of {name}"), 4_000_000_000_000, |world| {
        let reactor = world.reactor(node, 0);
        crew.is_done() && reactor.live_tasks() == 0 && reactor.driver().in_flight() == 0
    })?;
    match outcome.take() {
        Some(Ok(())) => check_pool(&world.reactor(node, 0), World::reactor_config().pool.bytes_max),
        Some(Err(failure)) => Err(Failure::new(format!("{name}: {failure}"))),
        None => Err(Failure::new("the suite ended without a verdict")),
    }
}

fn describe(device: &dyn BlockDevice) -> String {
    let children: Vec<String> = device.children().iter().map(|child| describe(&**child)).collect();
    if children.is_empty() { device.kind().to_string() } else { format!("{}({})", device.kind(), children.join(", ")) }
}

struct Builder<'a> {
    world: &'a mut World,
    rng: &'a mut Rng,
    node: NodeId,
    block_size: u32,
    made: u32,
}

type Made = Result<Arc<dyn BlockDevice>, DeviceError>;

impl Builder<'_> {
    fn name(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}{}", self.made)
    }

    fn reactor(&self) -> Rc<Reactor> {
        self.world.reactor(self.node, 0)
    }

    fn stack(&mut self, depth: u64) -> Made {
        if depth == 0 {
            return self.leaf();
        }
        match self.rng.below(4) {
            0 => self.stripe(depth),
            1 => self.linear(depth),
            2 => self.delay(depth),
            _ => {
                let (name, child) = (self.name("error"), self.stack(depth - 1)?);
                Ok(Arc::new(ErrorDevice::new(&name, child, &[], self.rng.next_u64())?))
            }
        }
    }

    fn leaf(&mut self) -> Made {
        let blocks = self.rng.between(300, 600);
        if self.rng.one_in(3) {
            let name = self.name("mem");
            return Ok(Arc::new(MemDevice::new(&name, self.block_size, blocks, blocks * 2)?));
        }
        let name = self.name("file");
        let disk = DiskOptions {
            bytes: blocks * self.block_size as u64,
            // A file device promises that a block is atomic, which holds for blocks of the disk's own unit.
            unit: self.block_size,
            block_device: self.rng.one_in(3),
            synchronous: self.rng.one_in(3),
            ..DiskOptions::default()
        };
        let mut faults = DiskFaults::default();
        if self.rng.one_in(2) {
            faults.short_transfer = self.rng.between(2, 30);
        }
        self.world.add_disk(self.node, &name, disk, faults);
        let options = FileDeviceOptions {
            block_size: self.block_size,
            direct: self.rng.one_in(2),
            ..FileDeviceOptions::new(&name)
        };
        Ok(Arc::new(FileDevice::open(&self.reactor(), &name, options)?))
    }

    fn stripe(&mut self, depth: u64) -> Made {
        let name = self.name("stripe");
        let children = (0..self.rng.between(1, 3)).map(|_| self.stack(depth - 1)).collect::<Result<Vec<_>, _>>()?;
        let chunk = self.rng.between(1, 16) as u32;
        Ok(Arc::new(StripeDevice::new(&name, children, chunk)?))
    }

    fn linear(&mut self, depth: u64) -> Made {
        let name = self.name("linear");
        let children = (0..self.rng.between(1, 2)).map(|_| self.stack(depth - 1)).collect::<Result<Vec<_>, _>>()?;
        let mut extents = Vec::new();
        for (child, device) in children.iter().enumerate() {
            let blocks = device.info().blocks;
            let cut = self.rng.between(1, blocks - 1);
            let (first, second) = ((0, cut), (cut, blocks - cut));
            let pieces = if self.rng.one_in(2) { [second, first] } else { [first, second] };
            extents.extend(pieces.map(|(start, blocks)| Extent { child, start, blocks }));
        }
        Ok(Arc::new(LinearDevice::new(&name, children, extents)?))
    }

    fn delay(&mut self, depth: u64) -> Made {
        let (name, child) = (self.name("delay"), self.stack(depth - 1)?);
        let mut delay = || Delay { fixed_ns: self.rng.below(10_000), jitter_ns: self.rng.below(200_000) };
        let delays = Delays { read: delay(), write: delay(), flush: delay() };
        Ok(Arc::new(DelayDevice::new(&name, child, delays, self.rng.next_u64())))
    }
}
