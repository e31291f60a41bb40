//! `file-device-crash`: a file device loses its process or its power, again and again.

use crate::Run;
use crate::blocks::{Judge, Mix};
use crate::crashes::{Opening, Rig, SHORT, nothing_beside};
use crate::raw_file::RawFile;
use bdev::{BlockDevice, FileDevice, FileDeviceOptions};
use reactor::Reactor;
use sim::{DiskFaults, DiskOptions, Failure, ScheduleFaults};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

const PATH: &str = "/disk";

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let unit = if rng.one_in(2) { 512 } else { 4096 };
    let mut mix = Mix::pick(rng, unit as usize);
    let bytes = rng.between(8, 64) * mix.block_bytes as u64;
    // The plainest device instead of the shipped one, to tell whose failure it is.
    let raw = rng.one_in(4);
    let mut faults = if rng.one_in(2) { DiskFaults::swarm_refusing(rng) } else { DiskFaults::default() };
    // A file on a disk that fills up: what is in holes cannot be written, and what is there can.
    let space_bytes = rng.one_in(4).then(|| rng.between(0, bytes));
    mix.errors_allowed = faults != DiskFaults::default() || space_bytes.is_some();
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
        space_bytes,
        ..DiskOptions::default()
    };
    world.add_disk(node, PATH, options, faults);
    world.set_schedule(ScheduleFaults::swarm(rng));
    let judge = Judge::new(world.handle(), node, mix.clone(), bytes);
    let (block_size, blocks, direct) = (mix.block_bytes as u32, judge.blocks(), rng.one_in(2));
    let open = move |reactor: Rc<Reactor>| -> Opening {
        Box::pin(async move {
            if raw {
                return Ok(Arc::new(RawFile::new(PATH, block_size, blocks, direct)) as Arc<dyn BlockDevice>);
            }
            let options = FileDeviceOptions { block_size, direct, ..FileDeviceOptions::new(PATH) };
            let device = FileDevice::open(&reactor, "disk", options).map_err(|error| error.to_string())?;
            if device.info().atomic_write_blocks > 0 && block_size > unit {
                return Err(format!("it promises whole blocks of {block_size} bytes on sectors of {unit}"));
            }
            Ok(Arc::new(device) as Arc<dyn BlockDevice>)
        })
    };
    let reactors = if raw { 1 } else { rng.between(1, 2) as usize };
    let rig = Rig {
        judge,
        node,
        reactors: Rc::new(Cell::new(reactors)),
        life: SHORT,
        open: Box::new(open),
        beside: Box::new(nothing_beside),
        close: Box::new(nothing_beside),
    };
    let turns = mix.errors_allowed && rng.one_in(4);
    for round in 0..rng.between(1, 4) {
        world.handle().note(format!("round {round}"));
        world.set_read_only(node, PATH, turns && rng.one_in(2));
        rig.round(world, rng)?;
    }
    rig.finish(world)
}
