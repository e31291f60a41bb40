//! `devices-conformance`: bdev's own conformance suite in the simulated world, on a random stack of devices.
//!
//! The hardware here never fails; it takes every liberty that a correct one may: any order, any delay, short transfers,
//! reactors that pause.
//!
//! `zoned-drive-conformance`: the suite for zoned devices, on a drive that has zones.

use crate::Run;
use crate::blocks::{Crew, check_pool};
use crate::crashes::SECOND_NS;
use base::Rng;
use bdev::conformance::{self, Options};
use bdev::{
    BlockDevice, ChecksumDevice, ChecksumOptions, Delay, DelayDevice, Delays, DeviceError, DeviceSpec, EncryptDevice,
    EncryptOptions, ErrorDevice, Extent, FileDevice, FileDeviceOptions, Limits, LinearDevice, MemDevice, MirrorDevice,
    MirrorOptions, RateLimitDevice, RemoteDevice, StripeDevice, UserKey,
};
use reactor::{FileZones, Reactor};
use sim::{DiskFaults, DiskOptions, Failure, NodeId, ScheduleFaults, World};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Stacked filters at most.
const DEPTH_MAX: u64 = 3;

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    run_on(run, |builder| {
        let depth = builder.rng.below(DEPTH_MAX + 1);
        builder.stack(depth)
    })
}

pub(crate) fn run_zones(run: &mut Run) -> Result<(), Failure> {
    run_on(run, |builder| builder.drive())
}

fn run_on(run: &mut Run, make: impl FnOnce(&mut Builder<'_>) -> Made) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let node = world.add_node();
    world.set_schedule(ScheduleFaults::swarm(rng));
    // The second one serves devices of the kind remote-core.
    world.boot(node, 2, World::reactor_config());
    let block_size = if rng.one_in(3) { 512 } else { 4096 };
    let mut builder = Builder { world, rng, node, block_size, made: 0 };
    let device = make(&mut builder).map_err(|error| Failure::new(error.to_string()))?;
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
        match self.rng.below(9) {
            0 => self.stripe(depth),
            1 => self.linear(depth),
            2 => self.delay(depth),
            3 => self.mirror(depth),
            4 => self.checksum(depth),
            5 => self.encrypt(depth),
            6 => {
                let (name, child) = (self.name("rate-limit"), self.stack(depth - 1)?);
                let iops = self.rng.between(1_000, 100_000);
                let limits = Limits { iops, burst_ns: self.rng.below(1_000_000), ..Limits::default() };
                Ok(Arc::new(RateLimitDevice::new(&name, child, limits)))
            }
            7 => {
                let child = self.stack(depth - 1)?;
                Ok(Arc::new(RemoteDevice::new(&self.world.reactor(self.node, 1), child)?))
            }
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
            // Smaller units than blocks too: overlapping writes leave whole blocks all the same.
            unit: if self.rng.one_in(3) { 512 } else { self.block_size },
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

    /// A drive with zones.
    fn drive(&mut self) -> Made {
        let (name, block) = (self.name("drive"), u64::from(self.block_size));
        let zone_blocks = 8 << self.rng.below(4);
        let (active_max, conventional) = (self.rng.below(5) as u32, self.rng.below(3));
        let zones = FileZones {
            bytes: zone_blocks * block,
            capacity_bytes: self.rng.between(zone_blocks / 2, zone_blocks) * block,
            write_bytes: self.block_size,
            conventional,
            open_max: self.rng.below(u64::from(active_max) + 1) as u32,
            active_max,
        };
        let bytes = (conventional + self.rng.between(2, 8)) * zones.bytes;
        let (unit, block_device, zones) = (self.block_size, true, Some(zones));
        let disk = DiskOptions { bytes, unit, block_device, zones, ..DiskOptions::default() };
        let short_transfer = if self.rng.one_in(2) { self.rng.between(2, 30) } else { 0 };
        self.world.add_disk(self.node, &name, disk, DiskFaults { short_transfer, ..DiskFaults::default() });
        let options = FileDeviceOptions { block_size: self.block_size, ..FileDeviceOptions::new(&name) };
        let (reactor, opened) = (self.reactor(), name.clone());
        // A filter that passes everything on is over it: zones are seen through one.
        self.open(&name, async move {
            let built = bdev::build(&reactor, &opened, &DeviceSpec::File(options), vec![]).await?;
            ErrorDevice::new("passes", built.device(), &[], 1)
        })
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

    /// Lets the world run until a device is open.
    fn open<D: BlockDevice + 'static>(
        &mut self,
        name: &str,
        opening: impl Future<Output = Result<D, DeviceError>> + 'static,
    ) -> Made {
        let opened: Rc<RefCell<Option<Result<D, DeviceError>>>> = Rc::default();
        let slot = opened.clone();
        self.world.spawn(self.node, 0, |_| async move {
            let result = opening.await;
            *slot.borrow_mut() = Some(result);
        });
        let done = self.world.run_until("a device to open", 60 * SECOND_NS, |_| opened.borrow().is_some());
        let late = |failure: Failure| DeviceError::Config { device: name.to_string(), reason: failure.reason };
        done.map_err(late)?;
        Ok(Arc::new(opened.take().expect("just seen")?))
    }

    // New devices are made whatever is below: what was never written through an encrypted device reads as noise.

    fn mirror(&mut self, depth: u64) -> Made {
        let name = self.name("mirror");
        let legs =
            (0..self.rng.between(1, 3)).map(|_| self.stack(depth - 1).map(Some)).collect::<Result<Vec<_>, _>>()?;
        let region_bytes = 4096 * self.rng.between(1, 16);
        let options = MirrorOptions { create: true, force: true, region_bytes, ..MirrorOptions::default() };
        let (reactor, opened) = (self.reactor(), name.clone());
        self.open(&name, async move { MirrorDevice::open(&reactor, &opened, legs, &options).await })
    }

    fn checksum(&mut self, depth: u64) -> Made {
        let (name, child) = (self.name("checksum"), self.stack(depth - 1)?);
        let cache_pages_max = self.rng.between(1, 8) as usize;
        let options = ChecksumOptions { create: true, force: true, assume_zero: false, cache_pages_max };
        let (reactor, opened) = (self.reactor(), name.clone());
        self.open(&name, async move { ChecksumDevice::open(&reactor, &opened, child, &options).await })
    }

    fn encrypt(&mut self, depth: u64) -> Made {
        let (name, child) = (self.name("encrypt"), self.stack(depth - 1)?);
        let key = UserKey::from_bytes(&[7; 32]).expect("32 bytes are enough");
        let options = EncryptOptions { create: true, force: true, pass_unmap: self.rng.one_in(2) };
        let (reactor, opened) = (self.reactor(), name.clone());
        self.open(&name, async move { EncryptDevice::open(&reactor, &opened, child, &key, &options).await })
    }

    fn delay(&mut self, depth: u64) -> Made {
        let (name, child) = (self.name("delay"), self.stack(depth - 1)?);
        let mut delay = || Delay { fixed_ns: self.rng.below(10_000), jitter_ns: self.rng.below(200_000) };
        let delays = Delays { read: delay(), write: delay(), flush: delay() };
        Ok(Arc::new(DelayDevice::new(&name, child, delays, self.rng.next_u64())))
    }
}
