//! `file-device-crash`: a file device loses its process or its power, again and again.
//!
//! Safety: a read returns an allowed value at all times, and flushed or forced data survives. Liveness: when the faults
//! end, a write, a flush and a read succeed.

use crate::Run;
use crate::blocks::{Crew, Judge, Mix, check_pool};
use crate::raw_file::RawFile;
use base::Rng;
use bdev::{BlockDevice, Channel, FileDevice, FileDeviceOptions};
use reactor::Reactor;
use sim::{Crash, DiskFaults, DiskOptions, Failure, NodeId, ScheduleFaults, World};
use std::rc::Rc;
use std::sync::Arc;

const PATH: &str = "/disk";
const SECOND_NS: u64 = 1_000_000_000;

struct Setup {
    judge: Judge,
    node: NodeId,
    reactors: usize,
    direct: bool,
    /// The plainest device instead of the shipped one, to tell whose failure it is.
    raw: bool,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let unit = if rng.one_in(2) { 512 } else { 4096 };
    let mut mix = Mix::pick(rng, unit as usize);
    let bytes = rng.between(8, 64) * mix.block_bytes as u64;
    let raw = rng.one_in(4);
    let mut faults = if rng.one_in(2) { DiskFaults::swarm_loud(rng) } else { DiskFaults::default() };
    mix.errors_allowed = faults != DiskFaults::default();
    if !raw && rng.one_in(2) {
        faults.short_transfer = rng.between(2, 20);
    }
    let node = world.add_node();
    let options = DiskOptions {
        bytes,
        unit,
        block_device: rng.one_in(3),
        volatile_cache: !rng.one_in(4),
        synchronous: rng.one_in(4),
        ..DiskOptions::default()
    };
    world.add_disk(node, PATH, options, faults);
    world.set_schedule(ScheduleFaults::swarm(rng));
    let judge = Judge::new(world.handle(), node, mix.clone(), bytes);
    let reactors = if raw { 1 } else { rng.between(1, 2) as usize };
    let setup = Setup { judge, node, reactors, direct: rng.one_in(2), raw };
    for round in 0..rng.between(1, 4) {
        world.handle().note(format!("round {round}"));
        setup.round(world, rng)?;
    }
    setup.finish(world)
}

impl Setup {
    /// Boots the node and opens the device on each of its reactors.
    fn start(&self, world: &mut World) -> Result<Vec<Rc<dyn Channel>>, Failure> {
        world.boot(self.node, self.reactors, World::reactor_config());
        let block_size = self.judge.mix.block_bytes as u32;
        let first = world.reactor(self.node, 0);
        let device: Result<Arc<dyn BlockDevice>, _> = if self.raw {
            Ok(Arc::new(RawFile::new(PATH, block_size, self.judge.blocks(), self.direct)))
        } else {
            let options = FileDeviceOptions { block_size, direct: self.direct, ..FileDeviceOptions::new(PATH) };
            FileDevice::open(&first, "disk", options).map(|device| Arc::new(device) as Arc<dyn BlockDevice>)
        };
        let channels = device.and_then(|device| {
            // The first reactor keeps the device, as a node would.
            first.keep(Rc::new(device.clone()));
            let reactors = (0..self.reactors).map(|index| world.reactor(self.node, index));
            reactors.map(|reactor| device.open_channel(&reactor)).collect::<Result<Vec<_>, _>>()
        });
        channels.map_err(|error| Failure::new(format!("the device does not open: {error}")))
    }

    fn round(&self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        let channels = self.start(world)?;
        let crew = Crew::default();
        let tasks = rng.between(1, 4);
        for task in 0..tasks {
            let (judge, count) = (self.judge.clone(), rng.between(10, 60));
            let index = task as usize % self.reactors;
            let channel = channels[index].clone();
            world.spawn(self.node, index, |reactor| crew.member(judge.work(reactor, channel, task, tasks, count)));
        }
        drop(channels);
        let crash = if rng.one_in(2) { Crash::Kill } else { Crash::PowerCut };
        if rng.one_in(2) {
            world.crash_after_writes(self.node, rng.between(1, 60), crash);
        }
        world.run_for(rng.between(100_000, SECOND_NS / 20))?;
        if world.is_running(self.node) {
            world.crash(self.node, crash);
        }
        match crash {
            Crash::Kill => self.judge.oracle.borrow_mut().killed(),
            Crash::PowerCut => self.judge.oracle.borrow_mut().power_cut(),
        }
        let channels = self.start(world)?;
        let crew = Crew::default();
        let judge = self.judge.clone();
        world.spawn(self.node, 0, |reactor| crew.member(judge.verify_all(reactor, channels[0].clone())));
        drop(channels);
        // Stuck operations may keep the verification from ending; then the node is killed once more.
        let verified = world.run_for(SECOND_NS * 20).map(|_| crew.is_done())?;
        if verified && crash == Crash::PowerCut && self.judge.errors.get() == 0 {
            self.judge.oracle.borrow_mut().settle();
        }
        world.crash(self.node, Crash::Kill);
        self.judge.oracle.borrow_mut().killed();
        Ok(())
    }

    fn finish(&self, world: &mut World) -> Result<(), Failure> {
        world.heal();
        let channels = self.start(world)?;
        let crew = Crew::default();
        let (judge, channel) = (self.judge.clone(), channels[0].clone());
        let proof = move |reactor: Rc<Reactor>| async move {
            let errors_before = judge.errors.get();
            judge.prove_alive(&reactor, &channel).await;
            let holds = judge.errors.get() == errors_before;
            judge.sim.expect(holds, || "the device still fails although all faults ended".into());
            judge.clone().verify_all(reactor, channel).await;
        };
        world.spawn(self.node, 0, |reactor| crew.member(proof(reactor)));
        drop(channels);
        world.run_until("the device to work again", 60 * SECOND_NS, |world| {
            let reactor = world.reactor(self.node, 0);
            crew.is_done() && reactor.live_tasks() == 0 && reactor.driver().in_flight() == 0
        })?;
        check_pool(&world.reactor(self.node, 0), World::reactor_config().pool.bytes_max)
    }
}
