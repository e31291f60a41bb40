//! Disks that rot block by block, and never where another disk that stands in for them does: the legs of a mirror and the
//! members of a row have what belongs together in the same places.

use base::Rng;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Op};
use reactor::{IoFuture, Reactor};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

/// What is rotten on disks that belong together. It outlives processes.
pub(crate) struct Rot {
    /// Disk blocks in what is checked as one: no two disks have rot so close to each other.
    scale: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Blocks that may rot, of every disk.
    areas: Vec<Range<u64>>,
    written: BTreeSet<u64>,
    /// Which disk has a rotten block there.
    rotten: BTreeMap<u64, usize>,
    /// The disk that rots there, if any does: what is read slowly must not meet rot on one disk after the other.
    rots: BTreeMap<u64, usize>,
    /// The disk that gives back nothing but noise.
    spoilt: Option<usize>,
}

impl State {
    fn is_inside(&self, lba: u64) -> bool {
        self.areas.iter().any(|area| area.contains(&lba))
    }

    fn is_rotten(&self, disk: usize, lba: u64) -> bool {
        self.rotten.get(&lba) == Some(&disk) || self.spoilt == Some(disk) && self.is_inside(lba)
    }
}

impl Rot {
    pub(crate) fn new(scale: u64) -> Rot {
        Rot { scale, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while holding what is rotten")
    }

    pub(crate) fn set_areas(&self, areas: Vec<Range<u64>>) {
        self.state().areas = areas;
    }

    /// From now on one disk, or none, has nothing right.
    pub(crate) fn spoil(&self, disk: Option<usize>) {
        self.state().spoilt = disk;
    }

    /// Each block of a disk that has been written, and may rot, does so with a chance of one in so many, until it is written again; how
    /// many there are.
    pub(crate) fn begin_all(&self, disk: usize, one_in: u64, rng: &mut Rng) -> usize {
        let state = &mut *self.state();
        let inside: Vec<u64> = state.written.iter().copied().filter(|lba| state.is_inside(*lba)).collect();
        let begun: Vec<u64> = inside.into_iter().filter(|_| rng.one_in(one_in)).collect();
        state.rotten.extend(begun.iter().map(|lba| (*lba, disk)));
        begun.len()
    }

    /// A block of a disk that has been written rots, until it is written again; unless another disk has rot there.
    pub(crate) fn begin(&self, disk: usize, rng: &mut Rng) {
        let state = &mut *self.state();
        let count = state.written.len() as u64;
        if count == 0 {
            return;
        }
        let Some(lba) = state.written.iter().nth(rng.below(count) as usize).copied() else { return };
        let near = lba.saturating_sub(self.scale)..lba + self.scale;
        let elsewhere = state.rots.range(near).any(|(_, other)| *other != disk);
        if state.is_inside(lba) && !elsewhere {
            state.rots.insert(lba, disk);
            state.rotten.insert(lba, disk);
        }
    }
}

/// See the module.
pub(crate) struct RottingDevice {
    below: Arc<dyn BlockDevice>,
    disk: usize,
    rot: Arc<Rot>,
}

impl RottingDevice {
    pub(crate) fn new(below: Arc<dyn BlockDevice>, disk: usize, rot: Arc<Rot>) -> RottingDevice {
        RottingDevice { below, disk, rot }
    }
}

impl BlockDevice for RottingDevice {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn kind(&self) -> &'static str {
        "rotting"
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { loans: false, ..self.below.info() }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let block_size = self.below.info().block_size as usize;
        let below = self.below.open_channel(reactor)?;
        Ok(Rc::new(Open { below, disk: self.disk, rot: self.rot.clone(), block_size }))
    }
}

struct Open {
    below: Rc<dyn Channel>,
    disk: usize,
    rot: Arc<Rot>,
    block_size: usize,
}

impl Channel for Open {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let answer = self.below.submit(io);
        IoFuture::new(async move {
            let mut done = answer.await;
            if done.status.is_ok() {
                let state = &mut *self.rot.state();
                match done.io.op {
                    Op::Read => self.damage(state, &mut done.io),
                    op if op.modifies() => {
                        for lba in done.io.lba.0..done.io.end() {
                            state.written.insert(lba);
                            if state.rotten.get(&lba) == Some(&self.disk) {
                                state.rotten.remove(&lba);
                            }
                        }
                    }
                    _ => {}
                }
            }
            done
        })
    }

    fn abort(&self, tag: u64) {
        self.below.abort(tag);
    }
}

impl Open {
    /// Flips a bit of each rotten block: always the same one.
    fn damage(&self, state: &State, io: &mut Io) {
        for (index, lba) in (io.lba.0..io.end()).enumerate().filter(|(_, lba)| state.is_rotten(self.disk, *lba)) {
            let at = index * self.block_size + (lba.wrapping_mul(2_654_435_761) % self.block_size as u64) as usize;
            let mut byte = [0];
            bdev::steps::sg_read_at(&io.bufs, at, &mut byte);
            byte[0] ^= 1 << (lba % 8);
            bdev::steps::sg_write_at(&mut io.bufs, at, &byte);
        }
    }
}
