//! `file-device-crash`: a file device loses its process or its power, again and again.
//!
//! Safety: a read returns an allowed value at all times, and flushed or forced data survives. Liveness: when the faults
//! end, a write, a flush and a read succeed.

use crate::Run;
use crate::blocks::{Crew, Judge, Mix, check_pool};
use crate::raw_file::RawFile;
use base::Rng;
use bdev::{BlockDevice, Channel};
use sim::{Crash, DiskFaults, DiskOptions, Failure, NodeId, ScheduleFaults, World};
use std::rc::Rc;

const PATH: &str = "/disk";
const SECOND_NS: u64 = 1_000_000_000;

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let unit = if rng.one_in(2) { 512 } else { 4096 };
    let mut mix = Mix::pick(rng, unit as usize);
    let bytes = rng.between(8, 64) * mix.block_bytes as u64;
    let faults = if rng.one_in(2) { DiskFaults::swarm_loud(rng) } else { DiskFaults::default() };
    mix.errors_allowed = faults != DiskFaults::default();
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
    let direct = rng.one_in(2);
    let device = Rc::new(RawFile::new(PATH, mix.block_bytes as u32, judge.blocks(), direct));
    for round in 0..rng.between(1, 4) {
        world.handle().note(format!("round {round}"));
        round_of_work(world, rng, &judge, &*device, node)?;
    }
    finish(world, &judge, &*device, node)
}

fn open(world: &World, device: &dyn BlockDevice, node: NodeId) -> Result<Rc<dyn Channel>, Failure> {
    let opened = device.open_channel(&world.reactor(node, 0));
    opened.map_err(|error| Failure::new(format!("the device does not open after a restart: {error}")))
}

fn round_of_work(
    world: &mut World,
    rng: &mut Rng,
    judge: &Judge,
    device: &dyn BlockDevice,
    node: NodeId,
) -> Result<(), Failure> {
    world.boot(node, 1, World::reactor_config());
    let channel = open(world, device, node)?;
    let crew = Crew::default();
    let tasks = rng.between(1, 4);
    for task in 0..tasks {
        let (judge, channel, crew) = (judge.clone(), channel.clone(), crew.clone());
        let count = rng.between(10, 60);
        world.spawn(node, 0, |reactor| crew.member(judge.work(reactor, channel, task, tasks, count)));
    }
    drop(channel);
    let crash = if rng.one_in(2) { Crash::Kill } else { Crash::PowerCut };
    if rng.one_in(2) {
        world.crash_after_writes(node, rng.between(1, 60), crash);
    }
    let duration = rng.between(100_000, SECOND_NS / 20);
    world.run_for(duration)?;
    if world.is_running(node) {
        world.crash(node, crash);
    }
    match crash {
        Crash::Kill => judge.oracle.borrow_mut().killed(),
        Crash::PowerCut => judge.oracle.borrow_mut().power_cut(),
    }
    world.boot(node, 1, World::reactor_config());
    let channel = open(world, device, node)?;
    let crew = Crew::default();
    world.spawn(node, 0, |reactor| crew.member(judge.clone().verify_all(reactor, channel.clone())));
    drop(channel);
    // Stuck operations may keep the verification from ending; then the node is killed once more.
    let verified = world.run_for(SECOND_NS * 20).map(|_| crew.is_done())?;
    if verified && crash == Crash::PowerCut && judge.errors.get() == 0 {
        judge.oracle.borrow_mut().settle();
    }
    world.crash(node, Crash::Kill);
    judge.oracle.borrow_mut().killed();
    Ok(())
}

fn finish(world: &mut World, judge: &Judge, device: &dyn BlockDevice, node: NodeId) -> Result<(), Failure> {
    world.heal();
    let config = World::reactor_config();
    let limit_bytes = config.pool.bytes_max;
    world.boot(node, 1, config);
    let channel = open(world, device, node)?;
    let crew = Crew::default();
    let errors_before = judge.errors.get();
    let proof = {
        let (judge, channel) = (judge.clone(), channel.clone());
        let reactor = world.reactor(node, 0);
        async move {
            judge.clone().prove_alive(reactor.clone(), channel.clone()).await;
            let proven = judge.errors.get();
            judge.sim.expect(proven == errors_before, || "the device still fails although all faults ended".into());
            judge.clone().verify_all(reactor, channel).await;
        }
    };
    world.spawn(node, 0, |_| crew.member(proof));
    drop(channel);
    world.run_until("the device to work again", 60 * SECOND_NS, |world| {
        let reactor = world.reactor(node, 0);
        crew.is_done() && reactor.live_tasks() == 0 && reactor.driver().in_flight() == 0
    })?;
    check_pool(&world.reactor(node, 0), limit_bytes)
}
