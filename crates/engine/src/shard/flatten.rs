//! What a layer shows of those below it becomes its own, so that it can do without them.
//!
//! Blocks are read as they are shown and written to the layer. Zeroes are left out: a layer under which nothing lies shows
//! them where it has nothing. The layers below are never written to, so bytes that were read before writers were kept
//! waiting are right for every block that still has nothing of its own then; writers wait for a map page and the log, and for single
//! reads of what has bytes over it or cannot be read at once. Nothing is
//! different to those who read, whenever it ends: until the catalog says that nothing lies below, it does.
//!
//! Nobody may give the layer extents of others meanwhile (see `absorb`): what has been passed must stay as it is.

use super::data::{copy_out, one};
use super::index::Place;
use super::slack::{Hurry, Slack};
use super::{BLOCK, Defect, Shard, Target, add};
use crate::log::{Class, Record};
use crate::meta::Page;
use crate::together::Together;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use bdev::Status;
use reactor::SgList;
use reactor::buf::sg_split_off;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Blocks for which writers wait at a time.
const RUN_BLOCKS: u32 = 32;
/// Log bytes of such a run, at most: each block in a record of its own, and the allocation of the extent.
const RUN_BYTES_MAX: u64 = (2 * RUN_BLOCKS as u64 + 3) * BLOCK as u64;
/// One extent in so many is left to writers.
const SPARED_SHARE: u32 = 64;

/// How far it is, in all shards together. They live on several reactors and only count here, so it is atomics.
#[derive(Default)]
pub(crate) struct FlattenProgress {
    is_halted: AtomicBool,
    extents_total: AtomicU64,
    extents_done: AtomicU64,
    copied_blocks: AtomicU64,
    lost_blocks: AtomicU64,
}

impl FlattenProgress {
    /// From the first extent on; what was copied stays counted.
    pub(crate) fn begin(&self) {
        self.is_halted.store(false, Relaxed);
        self.extents_total.store(0, Relaxed);
        self.extents_done.store(0, Relaxed);
    }

    /// Ends it after the run of blocks that is under way.
    pub(crate) fn halt(&self) {
        self.is_halted.store(true, Relaxed);
    }

    /// Extents that have been passed, and all that are to be.
    pub(crate) fn extents(&self) -> (u64, u64) {
        (self.extents_done.load(Relaxed), self.extents_total.load(Relaxed))
    }

    /// Blocks that were copied, and blocks that could not be read and are lost.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        (self.copied_blocks.load(Relaxed), self.lost_blocks.load(Relaxed))
    }

    fn copied(&self, blocks: u64) {
        self.copied_blocks.fetch_add(blocks, Relaxed);
    }
}

/// What a layer has of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stake {
    /// All of it, or nothing is to be seen there.
    Own,
    /// Nothing: it shows what lies below.
    Shown,
    /// Bytes over what lies below.
    Covered,
}

impl Shard {
    /// Makes its own what a layer shows of those below it, and durable that it is. False: it was halted before its end. It
    /// may be repeated at any time.
    pub(crate) async fn flatten(self: &Rc<Self>, layer: u32, progress: Arc<FlattenProgress>) -> Result<bool, Status> {
        let slack = Slack::new(self, Hurry::default());
        let vextents = self.shown_extents(layer);
        progress.extents_total.fetch_add(vextents.len() as u64, Relaxed);
        if vextents.is_empty() {
            return Ok(true);
        }
        for vextent in vextents {
            for first in (0..self.shown_below(layer, vextent)).step_by(RUN_BLOCKS as usize) {
                slack.give_way(self).await;
                if progress.is_halted.load(Relaxed) {
                    return Ok(false);
                }
                let run = Target { volume: layer, vextent, offset: first * BLOCK, bytes: RUN_BLOCKS * BLOCK };
                self.flatten_run(run, &progress).await?;
            }
            progress.extents_done.fetch_add(1, Relaxed);
        }
        // As in `absorb`: of deltas that destage has laid over what is below there may be no record in a shaped pool.
        self.let_below_go().await?;
        Ok(true)
    }

    /// How many extents flattening a layer takes at most, and how many it may take.
    pub(crate) fn flatten_takes(&self, layer: u32) -> (u64, u64) {
        let vextents = self.shown_extents(layer).into_iter();
        let missing = vextents.filter(|vextent| self.index.extent(layer, *vextent).is_none()).count();
        (missing as u64, self.unspared_extents() as u64)
    }

    /// Extents that any layer below one has, and that one shows. There will not be more: nobody writes to those.
    fn shown_extents(&self, layer: u32) -> Vec<u32> {
        let below: Vec<u32> = self.lineage.through(layer, 0).collect();
        let end = self.lineage.below(layer).map_or(0, |below| below.blocks.div_ceil(EXTENT_BLOCKS as u64));
        self.index.extents_of_any(&below, 0..end.min(u32::MAX as u64) as u32)
    }

    /// How many of an extent's blocks show what lies below the layer.
    pub(super) fn shown_below(&self, layer: u32, vextent: u32) -> u32 {
        let first = vextent as u64 * EXTENT_BLOCKS as u64;
        let below = self.lineage.below(layer);
        below.map_or(0, |below| below.blocks.saturating_sub(first).min(EXTENT_BLOCKS as u64) as u32)
    }

    fn unspared_extents(&self) -> u32 {
        self.index.stats().free_extents.saturating_sub((self.meta.extents() / SPARED_SHARE).max(1))
    }

    async fn flatten_run(self: &Rc<Self>, run: Target, progress: &FlattenProgress) -> Result<(), Status> {
        let (extent, page) = self.extent_with_page(run).await?;
        let stakes = self.stakes(run, extent);
        drop(page);
        if stakes.iter().all(|stake| *stake == Stake::Own) {
            return Ok(());
        }
        let buf = bdev::steps::alloc(&self.reactor, run.bytes as usize).await?;
        let read = self.read_blocks(run, one(buf)).await;
        let shown = match read.status {
            Status::Ok => Some(read.bufs),
            // Block by block, with patience.
            Status::ReadError | Status::Corrupt => None,
            status => return Err(status),
        };
        if let Some(bufs) = &shown {
            let is_left_out = |(index, stake)| stake == Stake::Own || stake == Stake::Shown && is_zero(bufs, index);
            if stakes.into_iter().enumerate().all(is_left_out) {
                return Ok(());
            }
        }
        self.wait_for_room(RUN_BYTES_MAX).await?;
        let _held = self.locks.lock(run.range()).await;
        self.log.barrier().await;
        let copied = match shown {
            Some(bufs) => self.copy_shown(run, bufs, progress).await,
            None => self.copy_singly(run, progress).await,
        };
        self.house.wrote(self);
        copied
    }

    /// The layer's extent there, and its map page in memory.
    async fn extent_with_page(self: &Rc<Self>, run: Target) -> Result<(Option<u32>, Option<Page>), Status> {
        loop {
            let extent = self.index.extent(run.volume, run.vextent);
            let page = match extent {
                Some(extent) => Some(self.page_to_change(extent).await?),
                None => None,
            };
            if self.index.extent(run.volume, run.vextent) == extent {
                return Ok((extent, page));
            }
        }
    }

    /// What the layer has of a run's blocks, the map page of whose extent is in memory.
    fn stakes(&self, run: Target, extent: Option<u32>) -> Vec<Stake> {
        let shown = self.shown_below(run.volume, run.vextent);
        run.blocks().map(|index| self.stake(index, shown, extent)).collect()
    }

    fn stake(&self, index: u32, shown: u32, extent: Option<u32>) -> Stake {
        if index >= shown || self.is_broken(Defect::FlattenHalf) && index % 2 == 1 {
            return Stake::Own;
        }
        let place = extent.map(|extent| self.index.place(extent * EXTENT_BLOCKS + index));
        debug_assert!(place != Some(Place::NeedsPage), "the map page is in memory");
        match place {
            None | Some(Place::Inherit) => Stake::Shown,
            Some(Place::Deltas(_, base)) if *base == Place::Inherit => Stake::Covered,
            Some(_) => Stake::Own,
        }
    }

    /// As [`stakes`](Self::stakes), while writers wait, and so that it may be written in this very step.
    async fn stakes_to_write(self: &Rc<Self>, run: Target) -> Result<Vec<Stake>, Status> {
        loop {
            let (extent, _page) = self.extent_with_page(run).await?;
            self.note_slice(&run).await?;
            // Somebody may have written to another run of it.
            if self.index.extent(run.volume, run.vextent) == extent {
                return Ok(self.stakes(run, extent));
            }
        }
    }

    /// Writes what was read of a run where the layer still has nothing of its own.
    async fn copy_shown(self: &Rc<Self>, run: Target, bufs: SgList, progress: &FlattenProgress) -> Result<(), Status> {
        let stakes = self.stakes_to_write(run).await?;
        // From here to the last append nothing waits.
        let is_copied = |index: usize| stakes[index] == Stake::Shown && !is_zero(&bufs, index);
        let copied: Vec<bool> = (0..stakes.len()).map(is_copied).collect();
        if !stakes.contains(&Stake::Covered) && !copied.contains(&true) {
            return Ok(());
        }
        self.check_unspared(&run)?;
        let (extent, allocation) = self.extent_to_write(&run).ok_or(Status::NoSpace)?;
        let mut parts = Together::new();
        let (mut first, mut rest) = (extent * EXTENT_BLOCKS + run.blocks().start, bufs);
        for alike in copied.chunk_by(|one, other| one == other) {
            let tail = sg_split_off(&mut rest, alike.len() * BLOCK_BYTES);
            let part = std::mem::replace(&mut rest, tail);
            if alike[0] {
                parts.push(self.log.append(Record::write(first, alike.len() as u32), part, Class::Internal));
            }
            first += alike.len() as u32;
        }
        if let Some(allocation) = allocation {
            self.allocated(extent, &run, allocation).await?;
        }
        let mut ended = Ok(());
        while let Some(appended) = parts.first().await {
            ended = ended.and(appended.result.map(|_| ()));
        }
        ended?;
        self.note_copied(copied.iter().filter(|copied| **copied).count() as u64, progress);
        let covered = run.blocks().zip(stakes).filter(|(_, stake)| *stake == Stake::Covered);
        for (index, _) in covered {
            self.copy_needed(run, index, extent, progress).await?;
        }
        Ok(())
    }

    /// As [`copy_shown`](Self::copy_shown) where something of the run cannot be read.
    async fn copy_singly(self: &Rc<Self>, run: Target, progress: &FlattenProgress) -> Result<(), Status> {
        let stakes = self.stakes_to_write(run).await?;
        if stakes.iter().all(|stake| *stake == Stake::Own) {
            return Ok(());
        }
        self.check_unspared(&run)?;
        let (extent, allocation) = self.extent_to_write(&run).ok_or(Status::NoSpace)?;
        if let Some(allocation) = allocation {
            self.allocated(extent, &run, allocation).await?;
        }
        let shown = run.blocks().zip(stakes).filter(|(_, stake)| *stake != Stake::Own);
        for (index, _) in shown {
            self.copy_needed(run, index, extent, progress).await?;
        }
        Ok(())
    }

    async fn copy_needed(
        self: &Rc<Self>,
        run: Target,
        index: u32,
        extent: u32,
        progress: &FlattenProgress,
    ) -> Result<(), Status> {
        let target = Target { offset: index * BLOCK, bytes: BLOCK, ..run };
        match self.write_again(target, extent * EXTENT_BLOCKS + index).await? {
            true => self.note_copied(1, progress),
            false => _ = progress.lost_blocks.fetch_add(1, Relaxed),
        }
        Ok(())
    }

    /// Counts blocks that are the layer's own by now.
    fn note_copied(&self, blocks: u64, progress: &FlattenProgress) {
        progress.copied(blocks);
        add(&self.counters.flattened_bytes, blocks * BLOCK_BYTES as u64);
    }

    /// Refuses to take an extent that is left to writers.
    fn check_unspared(&self, target: &Target) -> Result<(), Status> {
        let has_extent = self.index.extent(target.volume, target.vextent).is_some();
        if has_extent || self.unspared_extents() > 0 { Ok(()) } else { Err(Status::NoSpace) }
    }
}

/// Whether a block of a list is all zeroes.
fn is_zero(list: &SgList, index: usize) -> bool {
    let at = index * BLOCK_BYTES;
    match list.as_slice() {
        [buf] => buf.as_slice()[at..at + BLOCK_BYTES].iter().all(|byte| *byte == 0),
        list => {
            let mut block = [0; BLOCK_BYTES];
            copy_out(list, at, &mut block);
            block.iter().all(|byte| *byte == 0)
        }
    }
}
