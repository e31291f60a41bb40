//! Volumes that come, change their size and go beside the work on a pool, and what may be found of them after a crash.

use crate::blocks::Judge;
use base::Rng;
use bdev::{BlockDevice, Io, Lba};
use engine::{Pool, PoolVolume};
use reactor::{Reactor, SgList};
use sim::oracle::{fill_cell, read_cell};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Side volumes are called this and a number; no name is used twice.
pub(crate) const PREFIX: &str = "side";
const BLOCK: usize = 4096;
/// The blocks that are used: at the beginning, and over the ends of extents.
pub(crate) const RUNS: [std::ops::Range<u64>; 3] = [0..3, 1022..1026, 2046..2050];
const SIZES: [u64; 6] = [2, 1023, 1024, 1025, 2048, 3000];

/// What is found of a side volume: its size, and the blocks of [`RUNS`] that it has.
pub(crate) type Found = (u64, Vec<Result<u64, String>>);

/// What may be found of a side volume.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct SideVolume {
    may_be_absent: bool,
    /// Sizes in blocks.
    sizes: Vec<u64>,
    /// Values by block; one that is not here is zero.
    blocks: BTreeMap<u64, Vec<u64>>,
}

/// By their names.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Sides {
    volumes: BTreeMap<String, SideVolume>,
    made: u64,
}

/// The blocks of [`RUNS`] inside a size.
pub(crate) fn sampled(blocks: u64) -> impl Iterator<Item = u64> {
    RUNS.into_iter().flatten().filter(move |block| *block < blocks)
}

impl Sides {
    /// Says what is impossible.
    pub(crate) fn judge(&self, found: &BTreeMap<String, Found>) -> Result<(), String> {
        if let Some(name) = found.keys().find(|name| !self.volumes.contains_key(*name)) {
            return Err(format!("volume {name} was deleted, or never made"));
        }
        for (name, allowed) in &self.volumes {
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

    /// What was found is what there is, from now on.
    pub(crate) fn settle(&mut self, found: &BTreeMap<String, Found>) {
        let known = found.iter().map(|(name, (size, values))| {
            let values =
                sampled(*size).zip(values).filter_map(|(block, value)| Some((block, vec![*value.as_ref().ok()?])));
            (name.clone(), SideVolume { may_be_absent: false, sizes: vec![*size], blocks: values.collect() })
        });
        self.volumes = known.collect();
    }
}

/// What there is of the side volumes of an open pool.
pub(crate) async fn find(reactor: &Rc<Reactor>, pool: &Pool) -> Result<BTreeMap<String, Found>, String> {
    let mut found = BTreeMap::new();
    for volume in pool.volumes().into_iter().filter(|volume| volume.name().starts_with(PREFIX)) {
        let blocks = volume.info().blocks;
        let mut values = Vec::new();
        for run in RUNS.into_iter().map(|run| run.start..run.end.min(blocks)).filter(|run| !run.is_empty()) {
            values.extend(read_cells(reactor, &*volume, run, BLOCK).await?);
        }
        found.insert(volume.name().to_string(), (blocks, values));
    }
    Ok(found)
}

/// The values of a range of blocks, which are cells.
pub(crate) async fn read_cells(
    reactor: &Rc<Reactor>,
    device: &dyn BlockDevice,
    cells: std::ops::Range<u64>,
    cell_bytes: usize,
) -> Result<Vec<Result<u64, String>>, String> {
    let channel = device.open_channel(reactor).map_err(|error| error.to_string())?;
    let count = cells.end - cells.start;
    let mut bufs = SgList::new();
    bufs.push(reactor.pool().alloc(count as usize * cell_bytes).await);
    let done = channel.submit(Io::read(Lba(cells.start), count as u32, bufs)).await;
    done.status.check().map_err(|status| format!("reading {cells:?} of {} failed: {status}", device.name()))?;
    let bytes = done.io.bufs.iter().flat_map(|buf| buf.as_slice().chunks(cell_bytes));
    Ok(cells.zip(bytes).map(|(cell, bytes)| read_cell(bytes, cell as usize)).collect())
}

/// Works with one side volume after the other.
pub(crate) struct Side {
    pub(crate) pool: Arc<Pool>,
    pub(crate) judge: Judge,
    pub(crate) sides: Rc<RefCell<Sides>>,
    pub(crate) rng: Rng,
}

impl Side {
    fn change(&self, name: &str, change: impl FnOnce(&mut SideVolume)) {
        change(self.sides.borrow_mut().volumes.entry(name.to_string()).or_default());
    }

    /// What a process that is going down believes to have done counts for nothing.
    fn is_alive(&self) -> bool {
        self.judge.sim.alive(self.judge.node)
    }

    fn acknowledged(&self, name: &str, change: impl FnOnce(&mut SideVolume)) {
        if self.is_alive() {
            self.change(name, change);
        }
    }

    fn succeeded<E: std::fmt::Display>(&self, what: &str, result: Result<(), E>) {
        if let Err(error) = result
            && self.is_alive()
        {
            self.judge.sim.violation(format!("{what} failed without cause: {error}"));
        }
    }

    pub(crate) async fn work(mut self, reactor: Rc<Reactor>, count: u64) {
        let left = self.pool.volumes().into_iter().find(|volume| volume.name().starts_with(PREFIX));
        let mut volume = left.map(|volume| (volume.name().to_string(), volume));
        for _ in 0..count {
            reactor.sleep_ns(self.rng.below(200_000)).await;
            if !self.is_alive() {
                return;
            }
            let Some((name, device)) = volume.take() else {
                self.sides.borrow_mut().made += 1;
                let number = self.sides.borrow().made;
                volume = self.create(&reactor, format!("{PREFIX}{number}")).await;
                continue;
            };
            match self.rng.below(8) {
                0 => {
                    self.change(&name, |side| side.may_be_absent = true);
                    let deleted = self.pool.delete_volume(&reactor, &name).await;
                    self.succeeded("deleting a volume", deleted);
                    if self.is_alive() {
                        self.sides.borrow_mut().volumes.remove(&name);
                    }
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
        self.acknowledged(&name, |side| side.may_be_absent = false);
        match made {
            Ok(volume) => Some((name, volume)),
            Err(error) => {
                self.succeeded("creating a volume", Err(error));
                None
            }
        }
    }

    async fn resize(&mut self, reactor: &Rc<Reactor>, name: &str, device: &Arc<PoolVolume>) {
        let blocks = SIZES[self.rng.below(SIZES.len() as u64) as usize];
        self.change(name, |side| side.sizes.push(blocks));
        let resized = device.resize(reactor, blocks).await;
        self.succeeded("resizing a volume", resized);
        self.acknowledged(name, |side| {
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
        self.acknowledged(name, |side| {
            for block in &blocks {
                side.blocks.insert(*block, vec![stamp]);
            }
        });
    }
}
