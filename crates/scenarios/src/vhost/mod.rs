//! `vhost-queues`: guests whose memory outlives the daemon that serves their queues. The daemon is killed and stopped at any
//! moment and goes on by the notes of requests under way; the machine loses power, and the guests with it. Every request ends
//! once, with the right status; reads are what was written last, and what was flushed survives. Guests are only told by calls,
//! and tell only by kicks that are asked for. Beside them is one that writes anything into its queue.

mod guest;
mod hostile;

use crate::Run;
use crate::blocks::is;
use crate::crashes::{Opening, SECOND_NS, start};
use base::Rng;
use bdev::{BlockDevice, FileDevice, FileDeviceOptions};
use guest::{Calls, Driver, QUEUE_BYTES};
use reactor::Reactor;
use sim::oracle::CellOracle;
use sim::{Crash, DiskFaults, DiskOptions, Failure, Handle, Mutation, NodeId, ScheduleFaults, World};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use vhost_door::disk::Disk;
use vhost_door::inflight::{self, Inflight};
use vhost_door::memory::Memory;
use vhost_door::spec::feature;
use vhost_door::split::Layout;
use vhost_door::{Parts, Queue, QueueDefect};

const DISK: &str = "/disk";
const HOSTILE: &str = "/hostile";
const HOSTILE_BYTES: u64 = 0x1_0000;

/// A queue that is served.
struct Served {
    reactor: usize,
    kept: u64,
    next: Rc<Cell<Option<u16>>>,
}

/// A guest's queue and what its daemon notes of it.
struct Side {
    driver: Driver,
    notes: Arc<Memory>,
    next: u16,
    served: Option<Served>,
}

struct Scene {
    node: NodeId,
    reactors: usize,
    block_bytes: u64,
    features: u64,
    memory: Arc<Memory>,
    sides: Vec<Side>,
    oracle: CellOracle,
    hostile: Arc<Memory>,
    hostile_notes: Arc<Memory>,
    hostile_kept: Option<u64>,
    errors_allowed: bool,
    defect: Option<QueueDefect>,
    sim: Handle,
}

fn anonymous(bytes: u64) -> Arc<Memory> {
    Arc::new(Memory::anonymous(0, bytes as usize).expect("memory for a guest"))
}

fn fresh_side(memory: &Memory, index: usize, block_bytes: u64, features: u64) -> Side {
    let (event_idx, indirect) = (features & feature::EVENT_IDX != 0, features & feature::INDIRECT != 0);
    Side {
        driver: Driver::new(memory, index as u64 * QUEUE_BYTES, block_bytes, event_idx, indirect),
        notes: anonymous(inflight::queue_bytes(guest::ENTRIES)),
        next: 0,
        served: None,
    }
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let sim = world.handle();
    let node = world.add_node();
    let block_bytes = if rng.one_in(2) { 512 } else { 4096 };
    let blocks = rng.between(8, 40);
    for path in [DISK, HOSTILE] {
        let disk = DiskOptions {
            bytes: blocks * block_bytes,
            unit: block_bytes as u32,
            block_device: rng.one_in(3),
            volatile_cache: !rng.one_in(4),
            ..DiskOptions::default()
        };
        world.add_disk(node, path, disk, DiskFaults::default());
    }
    let errors_allowed = rng.one_in(3);
    if errors_allowed {
        // (an operation that sticks keeps its request: that is the disk's doing)
        let faults = DiskFaults { stuck: 0, ..DiskFaults::swarm_loud(rng) };
        world.set_disk_faults(node, DISK, faults);
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    let mut features = feature::VERSION_1 | feature::FLUSH | feature::DISCARD | feature::WRITE_ZEROES;
    for one in [feature::EVENT_IDX, feature::INDIRECT] {
        features |= if rng.one_in(4) { 0 } else { one };
    }
    let queues = rng.between(1, 3) as usize;
    let memory = anonymous(queues as u64 * QUEUE_BYTES);
    let defect = match sim.mutation() {
        Some(Mutation::UseEarly) => Some(QueueDefect::UseEarly),
        Some(Mutation::ForgetUnderWay) => Some(QueueDefect::ForgetUnderWay),
        Some(Mutation::KeepNotes) => Some(QueueDefect::KeepNotes),
        Some(Mutation::SleepBlind) => Some(QueueDefect::SleepBlind),
        _ => None,
    };
    if is(&sim, Mutation::UseEarly) {
        // A device that is slower than a guest asks again.
        world.set_disk_faults(node, DISK, DiskFaults { slow: 2, ..DiskFaults::default() });
    }
    let mut scene = Scene {
        node,
        reactors: rng.between(1, 2) as usize,
        block_bytes,
        features,
        sides: (0..queues).map(|index| fresh_side(&memory, index, block_bytes, features)).collect(),
        memory,
        oracle: CellOracle::new(blocks as usize),
        hostile: anonymous(HOSTILE_BYTES),
        hostile_notes: anonymous(inflight::queue_bytes(guest::ENTRIES)),
        hostile_kept: None,
        errors_allowed,
        defect,
        sim,
    };
    if errors_allowed {
        scene.oracle.allow_torn_reads();
    }
    for _ in 0..rng.between(2, 6) {
        scene.life(world, rng)?;
    }
    scene.finish(world, rng)
}

impl Scene {
    /// Starts a daemon and serves all queues; false when it went down meanwhile.
    fn serve(&mut self, world: &mut World, rng: &mut Rng) -> Result<bool, Failure> {
        let block_bytes = self.block_bytes;
        let open = |path: &'static str| {
            move |reactor: Rc<Reactor>| -> Opening {
                Box::pin(async move {
                    let options = FileDeviceOptions { block_size: block_bytes as u32, ..FileDeviceOptions::new(path) };
                    let opened = FileDevice::open(&reactor, path, options).map_err(|error| error.to_string())?;
                    Ok(Arc::new(opened) as Arc<dyn BlockDevice>)
                })
            }
        };
        let device = match start(world, self.node, self.reactors, open(DISK), 20 * SECOND_NS)? {
            Some(Ok(device)) => device,
            other => {
                return Err(Failure::new(format!("the disk does not open: {:?}", other.map(|opened| opened.err()))));
            }
        };
        let reactor = world.reactor(self.node, 0);
        let options = FileDeviceOptions { block_size: block_bytes as u32, ..FileDeviceOptions::new(HOSTILE) };
        let hostile = FileDevice::open(&reactor, HOSTILE, options).map_err(|error| Failure::new(error.to_string()))?;
        drop(reactor);
        let disk = Arc::new(Disk::new(device, 8, false, "serial".into()));
        for index in 0..self.sides.len() {
            let at = rng.below(self.reactors as u64) as usize;
            let side = &self.sides[index];
            let calls = Box::new(Calls(side.driver.calls.clone()));
            let parts = (self.memory.clone(), side.driver.layout(), side.notes.clone(), side.next);
            let queue = self.start(world, at, &disk, parts, Some(calls));
            let queue = queue.map_err(|error| Failure::new(format!("queue {index} does not start: {error}")))?;
            let kept = world.reactor(self.node, at).keep(queue);
            self.sides[index].served = Some(Served { reactor: at, kept, next: Rc::default() });
        }
        let layout = Layout { entries: guest::ENTRIES, table: 0, available: 0x1000, used: 0x2000 };
        let parts = (self.hostile.clone(), layout, self.hostile_notes.clone(), 0);
        let disk = Arc::new(Disk::new(Arc::new(hostile), 8, false, "hostile".into()));
        // (what it made of its notes may be refused)
        let queue = self.start(world, 0, &disk, parts, None).ok();
        self.hostile_kept = queue.map(|queue| world.reactor(self.node, 0).keep(queue));
        // (whoever serves a queue does so in a turn, and this was none)
        (0..self.reactors).for_each(|index| world.spawn(self.node, index, |_| async {}));
        Ok(world.is_running(self.node))
    }

    fn start(
        &self,
        world: &World,
        index: usize,
        disk: &Arc<Disk>,
        (memory, layout, notes, next_available): (Arc<Memory>, Layout, Arc<Memory>, u16),
        call: Option<Box<Calls>>,
    ) -> Result<Rc<Queue>, String> {
        let reactor = world.reactor(self.node, index);
        let channel = disk.device().open_channel(&reactor).map_err(|error| error.to_string())?;
        let inflight =
            Inflight::new(notes, 0, guest::ENTRIES).filter(Inflight::check).ok_or("notes of another kind")?;
        let parts = Parts {
            name: "queue".into(),
            disk: disk.clone(),
            channel,
            memory,
            layout,
            features: self.features,
            next_available,
            inflight: Some(inflight),
            call: call.map(|call| call as _),
            error: None,
            counters: Arc::default(),
            closing: Arc::default(),
            defect: self.defect,
        };
        Queue::serve(&reactor, parts).map_err(|error| error.to_string())
    }

    fn kick(&self, world: &World, reactor: usize, kept: u64) {
        world.spawn(self.node, reactor, |reactor| async move {
            if let Some(queue) = reactor.kept::<Queue>(kept) {
                queue.kicked();
            }
        });
    }

    /// What guests do in a moment.
    fn guests(&mut self, world: &World, rng: &mut Rng, asks: bool) {
        for index in 0..self.sides.len() {
            let side = &mut self.sides[index];
            side.driver.errors_allowed = self.errors_allowed;
            side.driver.reap(&self.sim, &mut self.oracle);
            let mut wants_kick = false;
            while asks && rng.one_in(2) {
                wants_kick |= side.driver.ask(rng, &mut self.oracle);
            }
            if let Some(served) = side.served.as_ref().filter(|_| wants_kick) {
                let (reactor, kept) = (served.reactor, served.kept);
                self.kick(world, reactor, kept);
            }
        }
        if asks && rng.one_in(4) {
            hostile::scribble(rng, &self.hostile, HOSTILE_BYTES);
            if let Some(kept) = self.hostile_kept {
                self.kick(world, 0, kept);
            }
        }
    }

    /// A daemon's life and its end.
    fn life(&mut self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        if !self.serve(world, rng)? {
            return Err(Failure::new("the daemon went down by itself"));
        }
        if rng.one_in(2) {
            world.crash_after_writes(self.node, rng.between(1, 60), Crash::Kill);
        }
        for _ in 0..rng.between(5, 120) {
            if !world.is_running(self.node) {
                break;
            }
            self.guests(world, rng, true);
            let ns = if rng.one_in(8) { 2_000_000 } else { 60_000 };
            world.run_for(rng.between(1_000, ns))?;
        }
        world.cancel_crash(self.node);
        match rng.below(4) {
            0 if world.is_running(self.node) => self.stop(world)?,
            1 => self.power_cut(world, rng),
            _ => {
                if world.is_running(self.node) {
                    world.crash(self.node, Crash::Kill);
                }
                self.forget_daemon();
                // Guests go on asking while nobody is there.
                self.guests_alone(rng);
            }
        }
        Ok(())
    }

    fn forget_daemon(&mut self) {
        self.hostile_kept = None;
        self.sides.iter_mut().for_each(|side| side.served = None);
        if self.defect == Some(QueueDefect::UseEarly) {
            // (what it left to the disk is lost with it)
            self.sim.note("the daemon is gone");
        }
    }

    fn guests_alone(&mut self, rng: &mut Rng) {
        for side in &mut self.sides {
            if rng.one_in(2) {
                side.driver.ask(rng, &mut self.oracle);
            }
        }
    }

    /// The front end asks for the base of each queue: when it is told, all that was taken has ended.
    fn stop(&mut self, world: &mut World) -> Result<(), Failure> {
        for side in &self.sides {
            let Some(Served { reactor, kept, next }) = &side.served else { continue };
            let (kept, next) = (*kept, next.clone());
            world.spawn(self.node, *reactor, |reactor| async move {
                if let Some(queue) = reactor.kept::<Queue>(kept) {
                    reactor.release::<Queue>(kept);
                    next.set(Some(queue.end().await));
                }
            });
        }
        let sides = &self.sides;
        let told = |_: &World| sides.iter().flat_map(|side| &side.served).all(|served| served.next.get().is_some());
        world.run_until("queues to stop", 60 * SECOND_NS, told)?;
        for side in &mut self.sides {
            side.next = side.served.as_ref().and_then(|served| served.next.get()).expect("just told");
        }
        world.crash(self.node, Crash::Kill);
        self.forget_daemon();
        Ok(())
    }

    /// Guests lose their memory with the machine.
    fn power_cut(&mut self, world: &mut World, rng: &mut Rng) {
        if world.is_running(self.node) {
            world.crash(self.node, Crash::PowerCut);
        } else {
            world.boot(self.node, 1, World::reactor_config());
            world.crash(self.node, Crash::PowerCut);
        }
        self.forget_daemon();
        self.oracle.power_cut();
        self.memory = anonymous(self.sides.len() as u64 * QUEUE_BYTES);
        for index in 0..self.sides.len() {
            self.sides[index] = fresh_side(&self.memory, index, self.block_bytes, self.features);
        }
        if rng.one_in(2) {
            self.hostile = anonymous(HOSTILE_BYTES);
            self.hostile_notes = anonymous(inflight::queue_bytes(guest::ENTRIES));
        }
    }

    /// Without faults: all that is under way ends, and more.
    fn finish(&mut self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        world.heal();
        self.serve(world, rng)?;
        for _ in 0..20 {
            self.guests(world, rng, true);
            world.run_for(100_000)?;
        }
        let until = world.now_ns() + 10 * SECOND_NS;
        while world.now_ns() < until && self.sides.iter().any(|side| !side.driver.is_idle()) {
            self.guests(world, rng, false);
            if world.run_for(1_000_000)? == sim::Step::Idle {
                break;
            }
        }
        self.guests(world, rng, false);
        for (index, side) in self.sides.iter().enumerate() {
            let left = side.driver.under_way();
            self.sim.expect(left == 0, || format!("{left} requests of queue {index} never end"));
        }
        self.sim.note(format!("{} requests ended", self.sides.iter().map(|side| side.driver.ended).sum::<u64>()));
        self.forget_daemon();
        world.crash(self.node, Crash::Kill);
        Ok(())
    }
}
