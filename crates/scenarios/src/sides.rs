//! Volumes that come, change their size and go beside the work, and what may be found of them.

use crate::blocks::Judge;
use base::Rng;
use bdev::{BlockDevice, Io, Lba};
use engine::{Pool, PoolVolume};
use reactor::{Reactor, SgList};
use sim::oracle::fill_cell;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Side volumes are called this and a number; no name is used twice.
pub(super) const PREFIX: &str = "side";
const BLOCK: usize = 4096;
/// The blocks that are used: at the beginning, and over the ends of extents.
pub(super) const RUNS: [std::ops::Range<u64>; 3] = [0..3, 1022..1026, 2046..2050];
const SIZES: [u64; 6] = [2, 1023, 1024, 1025, 2048, 3000];

/// What is found of a side volume: its size, and the blocks of [`RUNS`] that it has.
pub(super) type Found = (u64, Vec<Result<u64, String>>);

/// What may be found of a side volume.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct SideVolume {
    may_be_absent: bool,
    /// Sizes in blocks.
    sizes: Vec<u64>,
    /// Values by block; one that is not here is zero.
    blocks: BTreeMap<u64, Vec<u64>>,
}

/// By their names.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Sides(BTreeMap<String, SideVolume>);

/// The blocks of [`RUNS`] inside a size.
pub(super) fn sampled(blocks: u64) -> impl Iterator<Item = u64> {
    RUNS.into_iter().flatten().filter(move |block| *block < blocks)
}

impl Sides {
    /// Says what is impossible.
    pub(super) fn judge(&self, found: &BTreeMap<String, Found>) -> Result<(), String> {
        if let Some(name) = found.keys().find(|name| !self.0.contains_key(*name)) {
            return Err(format!("volume {name} was deleted, or never made"));
        }
        for (name, allowed) in &self.0 {
            let Some((size, values)) = found.get(name) else {
                if allowed.may_be_absent {
                    continue;
                }
                return Err(format!("volume {name} is missing"));
            };
            if !allowed.sizes.contains(size) {
                return Err(format!("volume {name} has {size} blocks, allowed are {:?}", allowed.sizes));
            }
            for (block, value) in sampled(*size).zip(values) {
                let zero = vec![0];
                let allowed = allowed.blocks.get(&block).unwrap_or(&zero);
                if !value.as_ref().is_ok_and(|value| allowed.contains(value)) {
                    return Err(format!("block {block} of volume {name} is {value:?}, allowed are {allowed:?}"));
                }
            }
        }
        Ok(())
    }
}

/// Works with one side volume after the other.
pub(super) struct Side {
    pub(super) pool: Arc<Pool>,
    pub(super) judge: Judge,
    pub(super) sides: Rc<RefCell<Sides>>,
    pub(super) rng: Rng,
}

impl Side {
    fn change(&self, name: &str, change: impl FnOnce(&mut SideVolume)) {
        change(self.sides.borrow_mut().0.entry(name.to_string()).or_default());
    }

    fn succeeded<E: std::fmt::Display>(&self, what: &str, result: Result<(), E>) {
        if let Err(error) = result {
            self.judge.sim.violation(format!("{what} failed without cause: {error}"));
        }
    }

    pub(super) async fn work(mut self, reactor: Rc<Reactor>, count: u64) {
        let (mut number, mut volume) = (0, None);
        for _ in 0..count {
            reactor.sleep_ns(self.rng.below(200_000)).await;
            let Some((name, device)) = volume.take() else {
                number += 1;
                volume = self.create(&reactor, format!("{PREFIX}{number}")).await;
                continue;
            };
            match self.rng.below(8) {
                0 => {
                    self.change(&name, |side| side.may_be_absent = true);
                    let deleted = self.pool.delete_volume(&reactor, &name).await;
                    self.succeeded("deleting a volume", deleted);
                    self.sides.borrow_mut().0.remove(&name);
                    continue;
                }
                1 | 2 => self.resize(&reactor, &name, &device).await,
                _ => self.write(&reactor, &name, &device).await,
            }
            volume = Some((name, device));
        }
    }

    async fn create(&mut self, reactor: &Rc<Reactor>, name: String) -> Option<(String, Arc<PoolVolume>)> {
        let blocks = SIZES[self.rng.below(SIZES.len() as u64) as usize];
        self.change(&name, |side| {
            *side = SideVolume { may_be_absent: true, sizes: vec![blocks], ..Default::default() }
        });
        let made = self.pool.create_volume(reactor, &name, blocks, 12, 0).await;
        self.change(&name, |side| side.may_be_absent = false);
        match made {
            Ok(volume) => Some((name, volume)),
            Err(error) => {
                self.judge.sim.violation(format!("creating a volume failed without cause: {error}"));
                None
            }
        }
    }

    async fn resize(&mut self, reactor: &Rc<Reactor>, name: &str, device: &Arc<PoolVolume>) {
        let blocks = SIZES[self.rng.below(SIZES.len() as u64) as usize];
        self.change(name, |side| side.sizes.push(blocks));
        let resized = device.resize(reactor, blocks).await;
        self.succeeded("resizing a volume", resized);
        self.change(name, |side| {
            side.sizes = vec![blocks];
            side.blocks.retain(|block, _| *block < blocks);
        });
    }

    async fn write(&mut self, reactor: &Rc<Reactor>, name: &str, device: &Arc<PoolVolume>) {
        let places: Vec<u64> = sampled(device.info().blocks).collect();
        let first = places[self.rng.below(places.len() as u64) as usize];
        let last = first + self.rng.below(3);
        let blocks: Vec<u64> = places.into_iter().filter(|block| (first..=last).contains(block)).collect();
        let stamp = self.judge.oracle.borrow_mut().fresh_stamp();
        let mut bufs = SgList::new();
        for block in &blocks {
            let mut buf = reactor.pool().alloc(BLOCK).await;
            fill_cell(buf.as_mut_slice(), stamp, *block as usize);
            bufs.push(buf);
        }
        self.change(name, |side| {
            for block in &blocks {
                side.blocks.entry(*block).or_insert_with(|| vec![0]).push(stamp);
            }
        });
        let channel = device.open_channel(reactor).expect("volumes open on every reactor");
        let done = channel.submit(Io::write(Lba(first), blocks.len() as u32, bufs)).await;
        self.succeeded("writing to a side volume", done.status.check());
        self.change(name, |side| {
            for block in &blocks {
                side.blocks.insert(*block, vec![stamp]);
            }
        });
    }
}
