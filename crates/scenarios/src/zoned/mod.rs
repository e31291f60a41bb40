//! `zoned`: a zoned device over a file, written, appended to, reset, finished and flushed by several tasks, on a disk that
//! fails and a node that is killed and loses power.
//!
//! After each crash: what was flushed or forced is before the pointer; what is before the pointer is whole writes of the
//! zone's present life, in order; what is behind it is zero; what was reset or finished is.
//!
//! `zoned-drive`: the same on a drive that has the zones itself. There a write that failed or was cut may be there in part, in
//! front of what is written next.

mod oracle;

use crate::Run;
use crate::blocks::{Crew, is};
use crate::crashes::{Opening, SECOND_NS, any_crash, start};
use crate::lossy::{Loss, Lossy};
use base::Rng;
use bdev::{
    BlockDevice, Channel, DeviceSpec, FileDevice, FileDeviceOptions, Flags, Io, Lba, Op, Status, ZONE_RECORD_BYTES,
    Zone, ZoneState, ZonedDevice, ZonedOptions,
};
use oracle::{Cell, ZoneOracle};
use reactor::{FileZones, Reactor, SgList};
use sim::oracle::fill_cell;
use sim::{Crash, DiskFaults, DiskOptions, Failure, Handle, Mutation, NodeId, ScheduleFaults, World};
use std::cell::{Cell as Slot, RefCell};
use std::rc::Rc;
use std::sync::Arc;

const PATH: &str = "/zones";
/// Bytes in front of the data: the superblock and one page of the table, twice.
const METADATA_BYTES: u64 = 4 * 4096;

#[derive(Clone, Copy)]
struct Plan {
    block_bytes: u64,
    zone_blocks: u64,
    capacity: u64,
    zones: u64,
    limits: (u32, u32),
    forgets: bool,
    /// The disk has the zones itself.
    is_drive: bool,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    run_on(run, false)
}

pub(crate) fn run_drive(run: &mut Run) -> Result<(), Failure> {
    run_on(run, true)
}

fn run_on(run: &mut Run, is_drive: bool) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let unit = if rng.one_in(2) { 512 } else { 4096 };
    let zone_blocks = 8 << rng.below(3);
    let block_bytes = if rng.one_in(2) { unit as u64 } else { 4096 };
    let capacity = rng.between(zone_blocks / 2, zone_blocks);
    let data_bytes = (rng.between(2, 6) * capacity * block_bytes).next_multiple_of(4096);
    let zones = data_bytes / (capacity * block_bytes);
    let active = if rng.one_in(3) { rng.between(1, zones) as u32 } else { 0 };
    let plan = Plan {
        block_bytes,
        zone_blocks,
        capacity,
        zones,
        limits: (if rng.one_in(2) { rng.between(1, u64::from(active).max(1)) as u32 } else { 0 }, active),
        forgets: is(&world.handle(), Mutation::ForgetPointers),
        is_drive,
    };
    let node = world.add_node();
    let options = DiskOptions {
        bytes: if is_drive { zones * zone_blocks * block_bytes } else { METADATA_BYTES + data_bytes },
        unit: if is_drive { block_bytes as u32 } else { unit },
        block_device: rng.one_in(3) || is_drive,
        zones: is_drive.then(|| plan.zones_of_drive()),
        volatile_cache: !rng.one_in(4),
        ..DiskOptions::default()
    };
    world.add_disk(node, PATH, options, DiskFaults::default());
    let scene = Scene {
        plan,
        sim: world.handle(),
        node,
        zones: Rc::new(RefCell::new(vec![ZoneOracle::new(is_drive); zones as usize])),
        next_stamp: Rc::new(Slot::new(1)),
        lenient: Rc::default(),
    };
    let made = start(world, node, 1, move |reactor| plan.open(reactor, true), 60 * SECOND_NS)?;
    if !matches!(made, Some(Ok(_))) {
        return Err(Failure::new("the zones cannot be made"));
    }
    drop(made);
    world.crash(node, Crash::Kill);
    if rng.one_in(2) {
        // With both copies of a page unreadable for good, its zones are lost, rightly.
        let damage_from = if is_drive { 0 } else { METADATA_BYTES };
        world.set_disk_faults(node, PATH, DiskFaults { damage_from, ..DiskFaults::swarm_loud(rng) });
        scene.lenient.set(true);
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    let reactors = rng.between(1, 2) as usize;
    for round in 0..rng.between(1, 5) {
        world.handle().note(format!("round {round}"));
        scene.round(world, rng, reactors)?;
    }
    scene.finish(world)
}

impl Plan {
    fn zones_of_drive(&self) -> FileZones {
        FileZones {
            bytes: self.zone_blocks * self.block_bytes,
            capacity_bytes: self.capacity * self.block_bytes,
            write_bytes: self.block_bytes as u32,
            conventional: 0,
            open_max: self.limits.0,
            active_max: self.limits.1,
        }
    }

    fn open(self, reactor: Rc<Reactor>, create: bool) -> Opening {
        Box::pin(async move {
            let block_size = self.block_bytes as u32;
            let options = FileDeviceOptions { block_size, ..FileDeviceOptions::new(PATH) };
            if self.is_drive {
                let built = bdev::build(&reactor, "drive", &DeviceSpec::File(options), vec![]).await;
                return built.map(|built| built.device()).map_err(|error| error.to_string());
            }
            let file = FileDevice::open(&reactor, "file", options).map_err(|error| error.to_string())?;
            let mut child: Arc<dyn BlockDevice> = Arc::new(file);
            if self.forgets && !create {
                // Data is never forced below: what is, is the table.
                let loss = Loss { from: Lba(0), of: |io| io.flags.has(Flags::FUA) };
                child = Arc::new(Lossy { child, loss });
            }
            let options = ZonedOptions {
                create,
                force: false,
                zone_bytes: self.zone_blocks * self.block_bytes,
                capacity_bytes: self.capacity * self.block_bytes,
                open_zones_max: self.limits.0,
                active_zones_max: self.limits.1,
                extension_bytes: 0,
            };
            let device = ZonedDevice::open(&reactor, "zoned", child, &options).await;
            let device = device.map_err(|error| error.to_string())?;
            let zones = device.zones().len() as u64;
            if zones != self.zones {
                return Err(format!("it has {zones} zones, planned were {}", self.zones));
            }
            Ok(Arc::new(device) as Arc<dyn BlockDevice>)
        })
    }
}

/// What all tasks of all processes share.
#[derive(Clone)]
struct Scene {
    plan: Plan,
    sim: Handle,
    node: NodeId,
    zones: Rc<RefCell<Vec<ZoneOracle>>>,
    next_stamp: Rc<Slot<u64>>,
    /// Errors are part of the game.
    lenient: Rc<Slot<bool>>,
}

impl Scene {
    /// One life of the process: what is there is judged, then worked on until the end.
    fn round(&self, world: &mut World, rng: &mut Rng, reactors: usize) -> Result<(), Failure> {
        let crash = any_crash(rng);
        let plan = self.plan;
        let opened = start(world, self.node, reactors, move |reactor| plan.open(reactor, false), 20 * SECOND_NS)?;
        let device = match opened {
            Some(Ok(device)) => device,
            other if self.lenient.get() => {
                world.handle().note(format!("it does not open: {:?}", other.map(|opened| opened.err())));
                world.crash(self.node, Crash::Kill);
                return Ok(());
            }
            other => return Err(Failure::new(format!("it does not open: {:?}", other.map(|opened| opened.err())))),
        };
        world.reactor(self.node, 0).keep(Rc::new(device.clone()));
        let channel = |world: &World, index| {
            let opened = device.open_channel(&world.reactor(self.node, index));
            opened.map_err(|error| Failure::new(error.to_string()))
        };
        let (crew, judged) = (Crew::default(), Rc::new(Slot::new(false)));
        let (scene, first, slot) = (self.clone(), channel(world, 0)?, judged.clone());
        let judging = crew.member(async move { slot.set(scene.judge_all(first).await) });
        world.spawn(self.node, 0, |_| judging);
        // Stuck operations may keep it from ending.
        let until = world.now_ns() + SECOND_NS / 2;
        while !crew.is_done() && world.now_ns() < until {
            if world.run_for(100_000)? == sim::Step::Idle {
                break;
            }
        }
        if judged.get() {
            if rng.one_in(2) {
                world.crash_after_writes(self.node, rng.between(1, 120), crash);
            }
            let tasks = rng.between(1, 4);
            for task in 0..tasks {
                let index = task as usize % reactors;
                let (scene, channel, count) = (self.clone(), channel(world, index)?, rng.between(10, 60));
                world.spawn(self.node, index, |reactor| scene.work(reactor, channel, task, tasks, count));
            }
            world.run_for(rng.between(100_000, SECOND_NS / 20))?;
        }
        drop(device);
        if world.is_running(self.node) {
            world.crash(self.node, crash);
        }
        world.cancel_crash(self.node);
        Ok(())
    }

    /// Ends the faults; everything must be there, and work.
    fn finish(&self, world: &mut World) -> Result<(), Failure> {
        world.heal();
        let plan = self.plan;
        let opened = start(world, self.node, 1, move |reactor| plan.open(reactor, false), 60 * SECOND_NS)?;
        let Some(Ok(device)) = opened else {
            return Err(Failure::new(format!("without faults: {:?}", opened.map(|opened| opened.err()))));
        };
        let crew = Crew::default();
        let scene = self.clone();
        let proof = move |reactor: Rc<Reactor>| async move {
            reactor.keep(Rc::new(device.clone()));
            let channel = device.open_channel(&reactor).expect("a file opens on every reactor");
            // What became unreadable stays so until it is written again.
            let all = scene.judge_all(channel.clone()).await;
            scene.sim.expect(all || scene.lenient.get(), || "without faults not all zones can be judged".into());
            scene.lenient.set(false);
            for zone in 0..scene.plan.zones {
                scene.change(&channel, zone, Op::ZoneReset).await;
                scene.write(&reactor, &channel, zone, 1, Flags::FUA).await;
                scene.judge_live(&channel, zone).await;
                scene.change(&channel, zone, Op::ZoneReset).await;
            }
        };
        world.spawn(self.node, 0, |reactor| crew.member(proof(reactor)));
        world.run_until("the zones to work again", 60 * SECOND_NS, |_| crew.is_done())
    }

    fn with<R>(&self, zone: u64, act: impl FnOnce(&mut ZoneOracle) -> R) -> R {
        act(&mut self.zones.borrow_mut()[zone as usize])
    }

    fn start_of(&self, zone: u64) -> u64 {
        zone * self.plan.zone_blocks
    }

    /// Notes how an operation ended; true when it ended well and this process still exists.
    fn is_ok(&self, op: Op, status: Status) -> bool {
        if !self.sim.alive(self.node) {
            return false;
        }
        let limited =
            self.plan.limits != (0, 0) && matches!(status, Status::ZoneTooManyOpen | Status::ZoneTooManyActive);
        let allowed = status.is_ok() || limited || self.lenient.get();
        self.sim.expect(allowed, || format!("{} failed with '{status}' without cause", op.name()));
        status.is_ok()
    }

    // --- judging ----------------------------------------------------------------------------------------------------

    async fn report(&self, channel: &Rc<dyn Channel>, zone: u64) -> Option<Zone> {
        let bufs = SgList::from_iter([reactor::Buf::from_vec(vec![0; ZONE_RECORD_BYTES])]);
        let done = channel.submit(Io { bufs, ..Io::new(Op::ZoneReport, Lba(self.start_of(zone)), 1) }).await;
        self.is_ok(Op::ZoneReport, done.status).then(|| Zone::load_report(&done.io.bufs).expect("it is one")[0])
    }

    /// What the blocks of a zone hold.
    async fn cells(&self, channel: &Rc<dyn Channel>, zone: u64) -> Option<Result<Vec<Cell>, String>> {
        let block_bytes = self.plan.block_bytes as usize;
        let bytes = self.plan.zone_blocks as usize * block_bytes;
        let bufs = SgList::from_iter([reactor::Buf::from_vec(vec![0xEE; bytes])]);
        let done = channel.submit(Io::read(Lba(self.start_of(zone)), self.plan.zone_blocks as u32, bufs)).await;
        if !self.is_ok(Op::Read, done.status) {
            return None;
        }
        let bytes = done.io.bufs.iter().flat_map(|buf| buf.as_slice().chunks(block_bytes));
        Some(
            bytes
                .enumerate()
                .map(|(at, bytes)| read_block(bytes).map_err(|text| format!("block {at} {text}")))
                .collect(),
        )
    }

    /// Judges all zones after a crash; false when some could not be read.
    async fn judge_all(&self, channel: Rc<dyn Channel>) -> bool {
        for zone in 0..self.plan.zones {
            let Some(found) = self.report(&channel, zone).await else { return false };
            if found.state == ZoneState::Offline && self.lenient.get() {
                // No copy of the table could be read this time.
                return false;
            }
            let Some(cells) = self.cells(&channel, zone).await else { return false };
            let capacity = self.plan.capacity;
            let verdict = cells.and_then(|cells| self.with(zone, |oracle| oracle.recover(&found, &cells, capacity)));
            if let Err(text) = verdict {
                self.sim.violation(format!("zone {zone}: {text}"));
                return false;
            }
        }
        true
    }

    /// Judges a zone that nobody writes now.
    async fn judge_live(&self, channel: &Rc<dyn Channel>, zone: u64) {
        let Some(found) = self.report(channel, zone).await else { return };
        let Some(cells) = self.cells(channel, zone).await else { return };
        let capacity = self.plan.capacity;
        if let Err(text) = cells.and_then(|cells| self.with(zone, |oracle| oracle.check_live(&found, &cells, capacity)))
        {
            self.sim.violation(format!("zone {zone} in use: {text}"));
        }
    }

    // --- working ----------------------------------------------------------------------------------------------------

    /// One task's workload, in zones that no other task touches.
    async fn work(self, reactor: Rc<Reactor>, channel: Rc<dyn Channel>, task: u64, tasks: u64, count: u64) {
        let mut rng = self.sim.rng();
        let mine: Vec<u64> = (0..self.plan.zones).filter(|zone| zone % tasks == task).collect();
        if mine.is_empty() {
            return;
        }
        for _ in 0..count {
            let zone = mine[rng.below(mine.len() as u64) as usize];
            let room = self.with(zone, |oracle| if oracle.is_full() { 0 } else { self.plan.capacity - oracle.acked });
            match rng.below(20) {
                0..7 if room > 0 => {
                    let flags = if rng.one_in(4) { Flags::FUA } else { Flags::NONE };
                    self.write(&reactor, &channel, zone, rng.between(1, room.min(8)), flags).await;
                }
                7..11 if room > 0 => self.append_some(&reactor, &channel, &mut rng, zone, room).await,
                11..13 => self.flush(&channel).await,
                13 => self.change(&channel, zone, Op::ZoneReset).await,
                14 if rng.one_in(2) => self.change(&channel, zone, Op::ZoneFinish).await,
                15 if room > 0 => {
                    let op = if rng.one_in(2) { Op::ZoneOpen } else { Op::ZoneClose };
                    let status = channel.submit(Io::new(op, Lba(self.start_of(zone)), 0)).await.status;
                    // A zone that no write has opened is not one that can be closed.
                    if status != Status::ZoneInvalidTransition {
                        self.is_ok(op, status);
                    }
                }
                16..19 => self.judge_live(&channel, zone).await,
                _ => reactor.sleep_ns(rng.below(1_000_000)).await,
            }
            if !self.sim.alive(self.node) {
                return;
            }
            if self.with(zone, |oracle| oracle.is_in_doubt()) {
                self.judge_live(&channel, zone).await;
            }
        }
    }

    async fn data(&self, reactor: &Rc<Reactor>, stamp: u64, blocks: u64) -> SgList {
        let block_bytes = self.plan.block_bytes as usize;
        let mut buf = reactor.pool().alloc(blocks as usize * block_bytes).await;
        for (block, bytes) in buf.as_mut_slice().chunks_mut(block_bytes).enumerate() {
            fill_cell(bytes, stamp, block);
            bytes[8..16].copy_from_slice(&(block as u64).to_le_bytes());
        }
        SgList::from_iter([buf])
    }

    fn begin(&self, zone: u64, blocks: u64) -> u64 {
        let stamp = self.next_stamp.replace(self.next_stamp.get() + 1);
        self.with(zone, |oracle| oracle.begin_write(stamp, blocks));
        stamp
    }

    /// A write at the pointer.
    async fn write(&self, reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, zone: u64, blocks: u64, flags: Flags) {
        let at = self.with(zone, |oracle| oracle.acked);
        let stamp = self.begin(zone, blocks);
        let bufs = self.data(reactor, stamp, blocks).await;
        let io = Io { flags, ..Io::write(Lba(self.start_of(zone) + at), blocks as u32, bufs) };
        let status = channel.submit(io).await.status;
        self.end(channel, zone, stamp, at, blocks, flags == Flags::FUA, status).await;
    }

    /// Ends a write. One that failed is nowhere, unless it was only its flush that failed: the pointer tells.
    #[allow(clippy::too_many_arguments, reason = "a write is all of that")]
    async fn end(
        &self,
        channel: &Rc<dyn Channel>,
        zone: u64,
        stamp: u64,
        at: u64,
        blocks: u64,
        durable: bool,
        status: Status,
    ) {
        let capacity = self.plan.capacity;
        if self.is_ok(Op::Write, status) {
            return self.with(zone, |oracle| oracle.end_write(stamp, at, durable, capacity));
        }
        if self.plan.is_drive {
            // How much of it is there is seen when nothing of the zone is under way.
            return self.with(zone, |oracle| oracle.doubt(Some(stamp)));
        }
        let Some(found) = self.report(channel, zone).await else { return };
        let is_there = found.state == ZoneState::Full || found.write_pointer == found.start + at + blocks;
        self.with(zone, |oracle| match is_there && durable {
            true => oracle.end_write(stamp, at, false, capacity),
            false => oracle.fail_write(stamp),
        });
    }

    /// Appends under way at the same time.
    async fn append_some(
        &self,
        reactor: &Rc<Reactor>,
        channel: &Rc<dyn Channel>,
        rng: &mut Rng,
        zone: u64,
        mut room: u64,
    ) {
        let mut appends = Vec::new();
        for _ in 0..rng.between(1, 4) {
            let blocks = rng.between(1, 4).min(room);
            if blocks == 0 {
                break;
            }
            room -= blocks;
            let (scene, reactor, channel) = (self.clone(), reactor.clone(), channel.clone());
            let spawner = reactor.clone();
            appends.push(spawner.spawn_join(async move {
                let stamp = scene.begin(zone, blocks);
                let bufs = scene.data(&reactor, stamp, blocks).await;
                let io = Io { bufs, ..Io::new(Op::ZoneAppend, Lba(scene.start_of(zone)), blocks as u32) };
                let done = channel.submit(io).await;
                let at = done.io.lba.0 - scene.start_of(zone);
                scene.end(&channel, zone, stamp, at, blocks, false, done.status).await;
            }));
        }
        for append in appends {
            append.await;
        }
    }

    async fn flush(&self, channel: &Rc<dyn Channel>) {
        let covered: Vec<_> = self.zones.borrow().iter().map(ZoneOracle::begin_flush).collect();
        let status = channel.submit(Io::flush()).await.status;
        if self.is_ok(Op::Flush, status) {
            let mut zones = self.zones.borrow_mut();
            zones.iter_mut().zip(covered).for_each(|(oracle, covered)| oracle.end_flush(covered));
        }
    }

    /// Resets or finishes a zone.
    async fn change(&self, channel: &Rc<dyn Channel>, zone: u64, op: Op) {
        let reset = op == Op::ZoneReset;
        self.with(zone, |oracle| oracle.begin_change(reset));
        let status = channel.submit(Io::new(op, Lba(self.start_of(zone)), 0)).await.status;
        let ok = self.is_ok(op, status);
        if self.sim.alive(self.node) {
            self.with(zone, |oracle| oracle.end_change(reset, ok));
        }
    }
}

/// The stamp of a block and which one of its write it is, or what is wrong with it.
fn read_block(bytes: &[u8]) -> Result<Cell, String> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("blocks are longer than that"));
    let (stamp, block) = (word(0), word(8));
    let mut wanted = vec![0; bytes.len()];
    fill_cell(&mut wanted, stamp, block as usize);
    if stamp > 0 {
        wanted[8..16].copy_from_slice(&block.to_le_bytes());
    }
    match wanted.iter().zip(bytes).position(|(a, b)| a != b) {
        None => Ok(Cell { stamp, block }),
        Some(at) => Err(format!("is damaged from byte {at} on (it begins as write {stamp:#x})")),
    }
}
