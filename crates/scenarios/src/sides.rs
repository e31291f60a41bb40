//! Volumes that come, change their size and go beside the work on a pool, and what may be found of them after a crash.

use crate::blocks::Judge;
use base::Rng;
use bdev::{BlockDevice, Io, Lba, Op};
use engine::{FlattenState, FlattenStatus, Pool, PoolVolume, VolumeInfo};
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

/// Side volumes and their snapshots at the same time, when there are any of these.
pub(crate) const LAYERS_MAX: u64 = 6;

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
        self.judge_left(found, false)
    }

    /// The same, where blocks `may_be_lost`.
    pub(crate) fn judge_left(&self, found: &BTreeMap<String, Found>, may_be_lost: bool) -> Result<(), String> {
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
                let is_right = value.as_ref().map_or(may_be_lost, |value| allowed.contains(value));
                if !is_right {
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

/// The side volumes of an open pool, with their sizes and what of [`RUNS`] they have.
fn there(pool: &Pool) -> Vec<(Arc<PoolVolume>, u64, Vec<std::ops::Range<u64>>)> {
    let sides = pool.volumes().into_iter().filter(|volume| volume.name().starts_with(PREFIX));
    let with_runs = sides.map(|volume| {
        let blocks = volume.info().blocks;
        let runs = RUNS.into_iter().map(|run| run.start..run.end.min(blocks)).filter(|run| !run.is_empty());
        (volume, blocks, runs.collect())
    });
    with_runs.collect()
}

/// What there is of the side volumes of an open pool.
pub(crate) async fn find(reactor: &Rc<Reactor>, pool: &Pool) -> Result<BTreeMap<String, Found>, String> {
    let mut found = BTreeMap::new();
    for (volume, blocks, runs) in there(pool) {
        let mut values = Vec::new();
        for run in runs {
            values.extend(read_cells(reactor, &*volume, run, BLOCK).await?);
        }
        found.insert(volume.name().to_string(), (blocks, values));
    }
    Ok(found)
}

/// The same, where some of it may be lost.
pub(crate) async fn find_left(reactor: &Rc<Reactor>, pool: &Pool) -> BTreeMap<String, Found> {
    let mut found = BTreeMap::new();
    for (volume, blocks, runs) in there(pool) {
        let mut values = Vec::new();
        for run in runs {
            values.extend(read_cells_left(reactor, &*volume, run, BLOCK).await);
        }
        found.insert(volume.name().to_string(), (blocks, values));
    }
    found
}

/// What there is of them in a pool that has been opened is what may be, and from now on is known.
pub(crate) async fn look(
    judge: &Judge,
    sides: &Rc<RefCell<Sides>>,
    reactor: &Rc<Reactor>,
    pool: &Pool,
) -> Result<(), String> {
    let found = find(reactor, pool).await?;
    let judged = sides.borrow().judge(&found);
    judge.expect(judged.is_ok(), || format!("after a crash: {judged:?}"));
    sides.borrow_mut().settle(&found);
    Ok(())
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

/// The same, where some of them may be lost: each of these is an error.
pub(crate) async fn read_cells_left(
    reactor: &Rc<Reactor>,
    device: &dyn BlockDevice,
    cells: std::ops::Range<u64>,
    cell_bytes: usize,
) -> Vec<Result<u64, String>> {
    if let Ok(all) = read_cells(reactor, device, cells.clone(), cell_bytes).await {
        return all;
    }
    let mut values = Vec::new();
    for cell in cells {
        let alone = read_cells(reactor, device, cell..cell + 1, cell_bytes).await;
        values.push(alone.and_then(|mut alone| alone.remove(0)));
    }
    values
}

/// Works with one side volume after the other.
pub(crate) struct Side {
    pub(crate) pool: Arc<Pool>,
    pub(crate) judge: Judge,
    pub(crate) sides: Rc<RefCell<Sides>>,
    pub(crate) rng: Rng,
    /// It makes snapshots and clones as well.
    pub(crate) layered: bool,
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
        let is_left = |volume: &Arc<PoolVolume>| volume.name().starts_with(PREFIX) && !volume.identity().is_snapshot;
        let left = self.pool.volumes().into_iter().find(is_left);
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
            if self.layered && self.rng.one_in(3) {
                volume = self.change_layers(&reactor, name, device).await;
                continue;
            }
            match self.rng.below(8) {
                0 => {
                    self.delete(&reactor, &name).await;
                    continue;
                }
                1 | 2 => self.resize(&reactor, &name, &device).await,
                3 | 4 if self.layered => self.trim(&reactor, &name, &device).await,
                _ => self.write(&reactor, &name, &device).await,
            }
            volume = Some((name, device));
        }
    }

    async fn delete(&mut self, reactor: &Rc<Reactor>, name: &str) {
        let mut going = self.snapshots_of(name);
        going.push(name.to_string());
        going.iter().for_each(|name| self.change(name, |side| side.may_be_absent = true));
        let deleted = match self.layered {
            true => self.pool.delete_volume_and_snapshots(reactor, name).await,
            false => self.pool.delete_volume(reactor, name).await,
        };
        self.succeeded("deleting a volume", deleted);
        if self.is_alive() {
            going.iter().for_each(|name| _ = self.sides.borrow_mut().volumes.remove(name));
        }
    }

    fn snapshots_of(&self, name: &str) -> Vec<String> {
        let prefix = format!("{name}@");
        self.sides.borrow().volumes.keys().filter(|other| other.starts_with(&prefix)).cloned().collect()
    }

    /// Makes, clones, deletes or goes back to a snapshot, or flattens a clone; the volume to go on with.
    async fn change_layers(
        &mut self,
        reactor: &Rc<Reactor>,
        name: String,
        device: Arc<PoolVolume>,
    ) -> Option<(String, Arc<PoolVolume>)> {
        let snapshots = self.snapshots_of(&name);
        let all = self.sides.borrow().volumes.len() as u64;
        let chosen = snapshots.get(self.rng.below(snapshots.len().max(1) as u64) as usize).cloned();
        match (self.rng.below(7), chosen) {
            (6, _) => self.flatten(reactor).await,
            (0 | 1, _) if all < LAYERS_MAX => {
                self.sides.borrow_mut().made += 1;
                let short = self.sides.borrow().made.to_string();
                let (snapshot, now) = (format!("{name}@{short}"), self.sides.borrow().volumes[&name].clone());
                self.change(&snapshot, |side| *side = SideVolume { may_be_absent: true, ..now });
                let made = self.pool.snapshot(reactor, &[(&name, &short)], 0).await;
                self.succeeded("making a snapshot", made.map(drop));
                self.acknowledged(&snapshot, |side| side.may_be_absent = false);
            }
            (2, Some(snapshot)) if all < LAYERS_MAX => {
                self.sides.borrow_mut().made += 1;
                let clone = format!("{PREFIX}{}", self.sides.borrow().made);
                let then = self.sides.borrow().volumes[&snapshot].clone();
                self.change(&clone, |side| *side = SideVolume { may_be_absent: true, ..then });
                let made = self.pool.clone_volume(reactor, &snapshot, &clone, 0).await;
                self.acknowledged(&clone, |side| side.may_be_absent = false);
                match made {
                    Ok(volume) if self.rng.one_in(2) => return Some((clone, volume)),
                    made => self.succeeded("making a clone", made.map(drop)),
                }
            }
            (3, Some(snapshot)) => {
                let then = self.sides.borrow().volumes[&snapshot].clone();
                self.change(&name, |side| {
                    side.sizes.extend(&then.sizes);
                    for block in RUNS.into_iter().flatten() {
                        let values = then.blocks.get(&block).cloned().unwrap_or_else(|| vec![0]);
                        side.blocks.entry(block).or_insert_with(|| vec![0]).extend(values);
                    }
                });
                let back = self.pool.roll_back(reactor, &snapshot).await;
                self.succeeded("rolling a volume back", back);
                self.acknowledged(&name, |side| *side = then);
            }
            (_, Some(snapshot)) => {
                self.change(&snapshot, |side| side.may_be_absent = true);
                let deleted = self.pool.delete_snapshot(reactor, &snapshot).await;
                self.succeeded("deleting a snapshot", deleted);
                if self.is_alive() {
                    self.sides.borrow_mut().volumes.remove(&snapshot);
                }
            }
            (_, None) if all >= LAYERS_MAX => {
                self.delete(reactor, &name).await;
                let is_other =
                    |volume: &Arc<PoolVolume>| volume.name().starts_with(PREFIX) && !volume.identity().is_snapshot;
                let other = self.pool.volumes().into_iter().find(is_other);
                return other.map(|volume| (volume.name().to_string(), volume));
            }
            _ => {}
        }
        Some((name, device))
    }

    /// Begins to flatten a clone, and waits for the end, stops it or leaves it alone. Nothing that is read may change by it.
    async fn flatten(&mut self, reactor: &Rc<Reactor>) {
        let Ok((tree, _)) = self.pool.tree(reactor).await else { return };
        let clones = tree.into_iter().filter(|volume| volume.clone_of.is_some()).map(|volume| volume.name);
        let clones: Vec<String> = clones.filter(|name| name.starts_with(PREFIX)).collect();
        let Some(name) = clones.get(self.rng.below(clones.len().max(1) as u64) as usize) else { return };
        let before = self.pool.flatten_status(reactor, name).await;
        let begun = self.pool.flatten(reactor, name).await;
        // It may have been told to stop, and end so.
        let was_running = matches!(before, Ok(Some(FlattenStatus { state: FlattenState::Running, .. })));
        if !was_running {
            self.succeeded("flattening a clone", begun.map(drop));
        }
        match self.rng.below(4) {
            0 => {
                reactor.sleep_ns(self.rng.below(200_000)).await;
                let stopped = self.pool.stop_flatten(reactor, name).await;
                self.succeeded("stopping to flatten a clone", stopped.map(drop));
            }
            1 | 2 => {
                let ended = self.pool.flattened(reactor, name).await;
                let has_ended = |state| ended.as_ref().is_ok_and(|status| status.state == state);
                let (is_done, has_stopped) = (has_ended(FlattenState::Done), has_ended(FlattenState::Stopped));
                let tree = self.pool.tree(reactor).await;
                let is_clone = |tree: &[VolumeInfo]| tree.iter().any(|one| one.name == *name && one.clone_of.is_some());
                let is_right = is_done && tree.is_ok_and(|(tree, _)| !is_clone(&tree)) || was_running && has_stopped;
                if self.is_alive() && !is_right {
                    self.judge.sim.violation(format!("clone {name} is not flattened: {ended:?}"));
                }
            }
            _ => {}
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

    async fn trim(&mut self, reactor: &Rc<Reactor>, name: &str, device: &Arc<PoolVolume>) {
        let size = device.info().blocks;
        let first = self.rng.below(size);
        let count = if self.rng.one_in(2) { self.rng.between(1, 4) } else { self.rng.between(1, 2048) };
        let end = (first + count).min(size);
        self.change(name, |side| {
            let trimmed = side.blocks.iter_mut().filter(|(block, _)| (first..end).contains(block));
            trimmed.for_each(|(_, values)| values.push(0));
        });
        let channel = device.open_channel(reactor).expect("volumes open on every reactor");
        let done = channel.submit(Io::new(Op::Unmap, Lba(first), (end - first) as u32)).await;
        self.succeeded("trimming a side volume", done.status.check());
        self.acknowledged(name, |side| side.blocks.retain(|block, _| !(first..end).contains(block)));
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
