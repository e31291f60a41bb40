//! `stack-faults`: a mirror over checksums over files whose disks rot, misdirect and lose writes without a word. At any
//! place at most one leg is damaged, so nothing may be lost; whatever happens, no read returns wrong data.
//!
//! Bits rot across kills and power cuts too. Lost and misdirected writes are met within one life of the process only:
//! across a restart the checksum filter accepts the version before the last one (see there).

use crate::Run;
use crate::blocks::{Crew, Judge, Mix};
use crate::crashes::{Opening, Rig, SECOND_NS, SHORT, nothing_beside};
use crate::mirror_crash::{Plan, create, path};
use bdev::{BlockDevice, MirrorOptions};
use reactor::Reactor;
use sim::{DiskFaults, DiskOptions, Failure, FaultAtlas, Mutation, ScheduleFaults};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    // Checksums stand on blocks that are written whole.
    let unit = if rng.one_in(3) { 512 } else { 4096 };
    let mix = Mix { block_bytes: unit as usize, errors_allowed: true, ..Mix::pick(rng, unit as usize) };
    let node = world.add_node();
    let legs = rng.between(2, 3) as usize;
    let bytes = 4096 * rng.between(24, 64);
    for leg in 0..legs {
        world.add_disk(node, &path(leg), DiskOptions { bytes, unit, ..DiskOptions::default() }, DiskFaults::default());
    }
    let checksums = world.handle().mutation() != Some(Mutation::SkipVerify);
    let region_bytes = 4096 * rng.between(1, 4);
    let plan =
        Plan { legs, block_size: unit, region_bytes, checksums, loss: None, shown: None, regions_max: 0, defect: None };
    let blocks = create(world, &plan, node)?;
    let crashes = rng.one_in(2);
    for leg in 0..legs {
        let silent = DiskFaults::swarm_silent(rng);
        let silent = if crashes { DiskFaults { bit_rot: silent.bit_rot, ..DiskFaults::default() } } else { silent };
        let atlas = FaultAtlas { region_bytes: 4096, of: legs as u64, index: leg as u64 };
        let damage_from = bytes - blocks * unit as u64;
        // A leg that refuses writes is as good as one that is out of order: the others go on.
        let read_only = if rng.one_in(6) { rng.between(20, 400) } else { 0 };
        let faults = DiskFaults { damage_from, atlas: Some(atlas), read_only, ..silent };
        world.set_disk_faults(node, &path(leg), faults);
        if rng.one_in(6) {
            world.set_space(node, &path(leg), rng.between(damage_from, bytes));
        }
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    let judge = Judge::new(world.handle(), node, mix, blocks * unit as u64);
    let open = move |reactor: Rc<Reactor>| -> Opening {
        let plan = plan.clone();
        Box::pin(async move {
            let device = plan.open(&reactor, MirrorOptions::default()).await?;
            Ok(Arc::new(device) as Arc<dyn BlockDevice>)
        })
    };
    let reactors = rng.between(1, 2) as usize;
    let rig = Rig {
        judge,
        node,
        reactors: Rc::new(Cell::new(reactors)),
        life: SHORT,
        open: Box::new(open),
        beside: Box::new(nothing_beside),
        close: Box::new(nothing_beside),
    };
    if crashes {
        for round in 0..rng.between(1, 3) {
            world.handle().note(format!("round {round}"));
            rig.round(world, rng)?;
        }
        return rig.finish(world);
    }
    let Some((_, channels)) = rig.start(world)? else { return Err(Failure::new("the stack does not open")) };
    let crew = Crew::default();
    let tasks = rng.between(1, 4);
    for task in 0..tasks {
        let (judge, count) = (rig.judge.clone(), rng.between(20, 120));
        let index = task as usize % reactors;
        let channel = channels[index].clone();
        world.spawn(node, index, |reactor| crew.member(judge.work(reactor, channel, task, tasks, count)));
    }
    world.run_until("the work to end", 60 * SECOND_NS, |_| crew.is_done())?;
    let judge = rig.judge.clone();
    world.spawn(node, 0, |reactor| crew.member(judge.verify_all(reactor, channels[0].clone())));
    world.run_until("the verification to end", 60 * SECOND_NS, |_| crew.is_done())
}
