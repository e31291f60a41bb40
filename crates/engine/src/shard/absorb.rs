//! What a layer that goes has, and the layer above it shows, becomes that one's own.
//!
//! Extents where the layer above has nothing change their owner by a record, whole and wherever their blocks are. Where both
//! have an extent, it becomes so where the layer above has little in it (see `take_over`). Otherwise the blocks that show through are
//! written again, to the layer above; then the extent is given back.
//! Writers to the layer above wait for the extent, or the run of blocks, that is under way; readers do not: they look again
//! when an extent has changed its owner or is gone.

use super::index::Place;
use super::patience::Needed;
use super::slack::{Hurry, Slack};
use super::take_over::Both;
use super::{BLOCK, Defect, Shard, Target, add};
use crate::log::{Class, Record};
use crate::units::EXTENT_BLOCKS;
use bdev::Status;
use reactor::SgList;
use std::rc::Rc;

/// Extents between two checkpoints, after which others have their turn.
const EXTENTS_PER_ROUND: usize = 64;
/// Blocks that are written again at a time.
const RUN_BLOCKS: u32 = 32;
/// Log bytes of such a run, at most: each block in a record of its own.
const RUN_BYTES_MAX: u64 = 2 * RUN_BLOCKS as u64 * BLOCK as u64;

/// What is to become of a block in the layer above.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It stays as it is.
    Stays,
    /// It is written again.
    Written,
    /// It is a hole from now on.
    Hole,
    /// It is lost from now on.
    Lost,
}

impl Shard {
    /// Makes the heir's own what `heir`, which lies over `layer`, shows of some extents of that, and gives the rest of them back.
    /// Whether that was all. Nobody but the heir may lie over the layer. It may be repeated when it was interrupted.
    pub(crate) async fn absorb(self: &Rc<Self>, layer: u32, heir: u32, hurry: Hurry) -> Result<bool, Status> {
        let slack = Slack::new(self, hurry);
        let mut extents = self.index.extents_of(layer, 0..u32::MAX);
        if extents.is_empty() {
            return Ok(true);
        }
        let is_last = extents.len() <= EXTENTS_PER_ROUND;
        extents.truncate(EXTENTS_PER_ROUND);
        for (vextent, _) in &extents {
            slack.give_way(self).await;
            while self.shown(layer, heir, *vextent) > 0 {
                let is_done = match self.index.extent(heir, *vextent) {
                    None => self.hand_over(layer, heir, *vextent).await?,
                    Some(_) => self.absorb_extent(layer, heir, *vextent, &slack).await?,
                };
                if is_done {
                    break;
                }
            }
        }
        // Of deltas that destage has laid over what the layer has there may be no record in a shaped pool: a map page that says so must
        // be durable first. And slices leave the dirty journal only with checkpoints.
        self.let_below_go().await?;
        for (vextent, _) in extents {
            slack.give_way(self).await;
            self.free_extent(layer, vextent).await?;
            // Holes that hid what was below hide nothing any more.
            if let Some(extent) = self.index.extent(heir, vextent)
                && let Ok(_page) = self.meta.load(extent).await
            {
                self.free_emptied(extent).await;
            }
        }
        Ok(is_last)
    }

    /// Of these layers, those that have extents here; and what users have moved so far, by which is told whether there are any.
    pub(crate) async fn look_at_going(self: &Rc<Self>, layers: &[u32]) -> (Vec<u32>, u64) {
        // Extents that are being handed over are the layer's then.
        self.log.barrier().await;
        let held = layers.iter().copied().filter(|layer| self.index.held_by(*layer) > 0).collect();
        (held, self.moved_by_users())
    }

    /// The layers that have extents, and how many.
    pub(crate) fn held(&self) -> Vec<(u32, u32)> {
        self.index.held()
    }

    /// How many of an extent's blocks the heir shows.
    pub(super) fn shown(&self, layer: u32, heir: u32, vextent: u32) -> u32 {
        let is_over_it = self.lineage.below(heir).is_some_and(|below| below.layer == layer);
        if is_over_it { self.shown_below(heir, vextent) } else { 0 }
    }

    /// As [`absorb`](Self::absorb), of an extent that both have. False when the heir has it no more.
    async fn absorb_extent(
        self: &Rc<Self>,
        layer: u32,
        heir: u32,
        vextent: u32,
        slack: &Slack,
    ) -> Result<bool, Status> {
        let Some(old) = self.index.extent(layer, vextent) else { return Ok(true) };
        let Some(new) = self.index.extent(heir, vextent) else { return Ok(false) };
        let below = Target { volume: layer, vextent, offset: 0, bytes: EXTENT_BLOCKS * BLOCK };
        if self.take_over(Both { below, old, above: Target { volume: heir, ..below }, new }, slack).await? {
            return Ok(false);
        }
        for first in (0..EXTENT_BLOCKS).step_by(RUN_BLOCKS as usize) {
            slack.give_way(self).await;
            let from = Target { volume: layer, vextent, offset: first * BLOCK, bytes: RUN_BLOCKS * BLOCK };
            if !self.absorb_run(from, Target { volume: heir, ..from }).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives the whole extent to the heir. False when that has got one meanwhile.
    async fn hand_over(self: &Rc<Self>, layer: u32, heir: u32, vextent: u32) -> Result<bool, Status> {
        let Some(extent) = self.index.extent(layer, vextent) else { return Ok(true) };
        // Before it is held back: room may be what its destage makes.
        self.wait_for_room(RUN_BYTES_MAX).await?;
        // Upkeep of the extent is done in its owner's name.
        self.held_back.borrow_mut().push(extent);
        let handed = self.hand_over_undisturbed(extent, layer, heir, vextent).await;
        self.let_go(extent);
        self.house.wrote(self);
        handed
    }

    async fn hand_over_undisturbed(
        self: &Rc<Self>,
        extent: u32,
        layer: u32,
        heir: u32,
        vextent: u32,
    ) -> Result<bool, Status> {
        self.settled.wait_until(|| !self.index.is_destaging(extent)).await;
        let whole = Target { volume: heir, vextent, offset: 0, bytes: EXTENT_BLOCKS * BLOCK };
        let _held = self.locks.lock(whole.range()).await;
        let below = Target { volume: layer, ..whole };
        let _held_below = self.locks.lock(below.range()).await;
        self.log.barrier().await;
        // Both, when nothing waits any more.
        loop {
            self.note_slice(&below).await?;
            self.note_slice(&whole).await?;
            if self.journal.contains(layer, whole.slice()) || self.is_broken(Defect::SkipJournal) {
                break;
            }
        }
        if self.index.extent(heir, vextent).is_some() || self.index.extent(layer, vextent) != Some(extent) {
            return Ok(false);
        }
        let shown = self.shown(layer, heir, vextent);
        if shown == 0 {
            return Ok(false);
        }
        let mut records = Vec::new();
        if shown < EXTENT_BLOCKS {
            // Cut off from the heir once: it must not come back when that grows.
            let record = Record::Trim { first: extent * EXTENT_BLOCKS + shown, blocks: EXTENT_BLOCKS - shown };
            records.push(self.log.append(record, SgList::new(), Class::Internal));
        }
        let record = Record::HandOver { extent, volume: heir, vextent };
        records.push(self.log.append(record, SgList::new(), Class::Internal));
        let mut ended = Ok(true);
        for record in records {
            ended = record.await.result.and(ended);
        }
        if ended.is_err() {
            self.index.name_refused(extent);
        }
        ended
    }

    /// Writes again what the heir shows of a run. False when the heir has the extent no more.
    async fn absorb_run(self: &Rc<Self>, from: Target, to: Target) -> Result<bool, Status> {
        self.wait_for_room(RUN_BYTES_MAX).await?;
        let _held = self.locks.lock(to.range()).await;
        // It must not move to another place meanwhile.
        let _held_below = self.locks.lock(from.range()).await;
        self.log.barrier().await;
        let Some(extent) = self.index.extent(to.volume, to.vextent) else { return Ok(false) };
        let Some(old) = self.index.extent(from.volume, from.vextent) else { return Ok(true) };
        // In memory until all have been looked at.
        let pages = (self.page_to_change(old).await?, self.page_to_change(extent).await?);
        let is_here = |target: &Target, extent| self.index.extent(target.volume, target.vextent) == Some(extent);
        if !is_here(&to, extent) || !is_here(&from, old) {
            return Ok(false);
        }
        let shown = self.shown(from.volume, to.volume, to.vextent);
        // Where nothing lies below the layer, what is a hole there stays one without a word.
        let needs_holes = self.lineage.through(from.volume, from.range().start).next().is_some();
        let mut fates: Vec<Fate> = to.blocks().map(|index| self.fate(index, shown, old, extent)).collect();
        fates.iter_mut().filter(|fate| **fate == Fate::Hole && !needs_holes).for_each(|fate| *fate = Fate::Stays);
        drop(pages);
        let mut first = extent * EXTENT_BLOCKS + to.blocks().start;
        for alike in fates.chunk_by(|one, other| one == other) {
            let blocks = alike.len() as u32;
            match alike[0] {
                Fate::Stays => {}
                Fate::Written => {
                    for block in first..first + blocks {
                        let target = Target { offset: block % EXTENT_BLOCKS * BLOCK, bytes: BLOCK, ..to };
                        self.write_again(target, block).await?;
                    }
                }
                Fate::Hole => self.tell(&to, Record::Trim { first, blocks }).await?,
                Fate::Lost => self.tell(&to, Record::Lost { first, blocks }).await?,
            }
            first += blocks;
        }
        self.house.wrote(self);
        Ok(true)
    }

    async fn tell(self: &Rc<Self>, to: &Target, record: Record) -> Result<(), Status> {
        self.note_slice(to).await?;
        self.log.append(record, SgList::new(), Class::Internal).await.result.map(|_| ())
    }

    /// Writes a block as it is shown to where it is shown. False: it could not be read, and is lost.
    pub(super) async fn write_again(self: &Rc<Self>, target: Target, block: u32) -> Result<bool, Status> {
        match self.read_needed(target, block).await? {
            Needed::Bytes(bufs) => {
                self.note_slice(&target).await?;
                self.log.append(Record::write(block, 1), bufs, Class::Internal).await.result.map(|_| true)
            }
            Needed::Lost { .. } => {
                add(&self.counters.lost_blocks, 1);
                tracing::error!(
                    "pool '{}': block {block} of shard {} is lost: what a snapshot below it has there cannot be read",
                    self.pool_name,
                    self.number
                );
                self.tell(&target, Record::Lost { first: block, blocks: 1 }).await.map(|()| false)
            }
        }
    }

    /// What is to become of a block of the heir's extent `new` over the extent `old`. Their map pages are in memory.
    fn fate(&self, index: u32, shown: u32, old: u32, new: u32) -> Fate {
        let here = self.index.place(new * EXTENT_BLOCKS + index);
        let base = if let Place::Deltas(_, base) = &here { base } else { &here };
        if *base != Place::Inherit || index >= shown || self.is_broken(Defect::AbsorbExtents) {
            return Fate::Stays;
        }
        match self.index.place(old * EXTENT_BLOCKS + index) {
            Place::Inherit => Fate::Stays,
            Place::Lost => Fate::Lost,
            Place::Hole if here == Place::Inherit => Fate::Hole,
            _ => Fate::Written,
        }
    }
}
