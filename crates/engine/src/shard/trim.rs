//! Making blocks holes: by a record for parts of an extent, by giving the extent back when all of it goes. And making them
//! unreadable, because somebody asked for that.

use super::slack::{Hurry, Slack};
use super::{BLOCK, Defect, Shard, Target};
use crate::log::{Class, Record};
use crate::meta::{self, Page};
use crate::units::EXTENT_BLOCKS;
use bdev::Status;
use reactor::{IoFuture, SgList};
use std::rc::Rc;

/// Log bytes of a record without payload, at most.
const RECORD_BYTES_MAX: u64 = 3 * BLOCK as u64;

/// On whose behalf an extent is given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Somebody writes zeroes: of a layer that takes no more writes, nothing is touched.
    Writers,
    /// The layer goes, or its end.
    Upkeep,
}

impl Shard {
    /// Makes the target read as zeroes. Durable when it completes.
    pub(crate) fn trim(self: &Rc<Self>, target: Target) -> IoFuture<'static, Status> {
        let target = self.newest(target);
        if self.index.extent(target.volume, target.vextent).is_none() && !self.shows_through(&target) {
            return IoFuture::ready(Status::Ok);
        }
        let shard = self.clone();
        IoFuture::steps(&self.reactor, async move { shard.trim_steps(target).await.err().unwrap_or(Status::Ok) })
    }

    async fn trim_steps(self: Rc<Self>, target: Target) -> Result<(), Status> {
        if target.bytes == EXTENT_BLOCKS * BLOCK {
            return self.trim_extent(target).await;
        }
        let end = target.offset + target.bytes;
        let (first, last) = (target.offset.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        if first >= last {
            return self.zero_bytes(target).await;
        }
        self.zero_bytes(Target { bytes: first - target.offset, ..target }).await?;
        self.zero_bytes(Target { offset: last, bytes: end - last, ..target }).await?;
        self.make_holes(Target { offset: first, bytes: last - first, ..target }).await
    }

    /// Makes the whole blocks of the target unreadable until they are written again. Durable when it completes.
    pub(crate) fn spoil(self: &Rc<Self>, target: Target) -> IoFuture<'static, Status> {
        debug_assert!(target.is_whole());
        let (shard, target) = (self.clone(), self.newest(target));
        IoFuture::steps(&self.reactor, async move { shard.make_lost(target).await.err().unwrap_or(Status::Ok) })
    }

    async fn make_lost(self: &Rc<Self>, target: Target) -> Result<(), Status> {
        let target = self.let_in(&target, RECORD_BYTES_MAX).await?;
        self.append_unwritten(&target, |first, blocks| Record::Lost { first, blocks }).await
    }

    /// Whole blocks, by a record.
    async fn make_holes(self: &Rc<Self>, target: Target) -> Result<(), Status> {
        let target = self.let_in(&target, RECORD_BYTES_MAX).await?;
        // Holes over something are in an extent of the layer's own.
        if self.index.extent(target.volume, target.vextent).is_none() && !self.shows_through(&target) {
            return Ok(());
        }
        self.append_unwritten(&target, |first, blocks| Record::Trim { first, blocks }).await
    }

    /// Appends a record of the target's blocks that has no payload; the target has been let in.
    async fn append_unwritten(
        self: &Rc<Self>,
        target: &Target,
        record: impl FnOnce(u32, u32) -> Record,
    ) -> Result<(), Status> {
        let (extent, allocation) = self.extent_to_write(target).ok_or(Status::NoSpace)?;
        let record = record(extent * EXTENT_BLOCKS + target.offset / BLOCK, target.bytes / BLOCK);
        let appended = self.log.append(record, SgList::new(), Class::Internal);
        self.house.wrote(self);
        if let Some(allocation) = allocation {
            self.allocated(extent, target, allocation).await?;
        }
        appended.await.result.map(|_| ())
    }

    /// Whether the layers below the target's may have something there that it shows.
    fn shows_through(&self, target: &Target) -> bool {
        let mut below = self.lineage.through(target.volume, target.range().start);
        below.any(|layer| self.index.extent(layer, target.vextent).is_some())
    }

    /// A whole extent: given back, unless something would show through then.
    async fn trim_extent(self: &Rc<Self>, target: Target) -> Result<(), Status> {
        loop {
            self.freezer.thawed(self.newest(target).volume).await;
            let target = self.newest(target);
            if self.shows_through(&target) {
                return self.make_holes(target).await;
            }
            self.free_extent_of(target.volume, target.vextent, Whose::Writers).await?;
            if self.takes_writes(&target) {
                return Ok(());
            }
        }
    }

    /// Makes the extents `first .. end` of a volume read as zeroes.
    pub(crate) async fn trim_range(self: &Rc<Self>, volume: u32, first: u32, end: u32) -> Result<(), Status> {
        let volume = self.lineage.newest(volume);
        let start = first as u64 * EXTENT_BLOCKS as u64;
        let layers: Vec<u32> = std::iter::once(volume).chain(self.lineage.through(volume, start)).collect();
        for vextent in self.index.extents_of_any(&layers, first..end) {
            let whole = Target { volume, vextent, offset: 0, bytes: EXTENT_BLOCKS * BLOCK };
            self.trim(whole).await.check()?;
        }
        Ok(())
    }

    /// Less than a block, as zeroes over it.
    async fn zero_bytes(self: &Rc<Self>, target: Target) -> Result<(), Status> {
        let (mut at, end) = (target.offset, target.offset + target.bytes);
        while at < end {
            let bytes = (BLOCK - at % BLOCK).min(end - at);
            let mut buf = bdev::steps::alloc(&self.reactor, bytes as usize).await?;
            buf.as_mut_slice().fill(0);
            let part = Target { offset: at, bytes, ..target };
            self.write(part, super::data::one(buf)).await.status.check()?;
            at += bytes;
        }
        Ok(())
    }

    /// Gives an extent of a layer back.
    pub(crate) async fn free_extent(self: &Rc<Self>, layer: u32, vextent: u32) -> Result<(), Status> {
        self.free_extent_of(layer, vextent, Whose::Upkeep).await
    }

    /// As [`free_extent`](Self::free_extent). Somebody's who writes is left alone when the layer takes no more writes.
    async fn free_extent_of(self: &Rc<Self>, layer: u32, vextent: u32, whose: Whose) -> Result<(), Status> {
        let whole = Target { volume: layer, vextent, offset: 0, bytes: EXTENT_BLOCKS * BLOCK };
        // Without it, the extent would come back to life if the log were lost.
        self.journal.add(layer, whole.slice()).await?;
        while let Some(extent) = self.index.extent(layer, vextent) {
            self.held_back.borrow_mut().push(extent);
            let freed = self.free_undisturbed(whole, extent, whose).await;
            self.let_go(extent);
            self.house.wrote(self);
            self.note_room();
            if !freed? {
                break;
            }
        }
        Ok(())
    }

    /// The extent may be destaged again, as far as this caller is concerned.
    pub(super) fn let_go(&self, extent: u32) {
        let mut held = self.held_back.borrow_mut();
        let at = held.iter().position(|other| *other == extent).expect("held back by the caller");
        held.remove(at);
    }

    /// As [`free_extent_of`](Self::free_extent_of) for an extent that is no longer destaged. False: it
    /// is left alone.
    async fn free_undisturbed(self: &Rc<Self>, whole: Target, extent: u32, whose: Whose) -> Result<bool, Status> {
        // Once it is free it may get a new owner, whose blocks no write of ours must meet.
        self.settled.wait_until(|| !self.index.is_destaging(extent)).await;
        let _held = match whose {
            Whose::Writers => self.locks.lock_to_write(whole.range()).await,
            Whose::Upkeep => self.locks.lock(whole.range()).await,
        };
        if whose == Whose::Writers && !self.takes_writes(&whole) {
            return Ok(false);
        }
        self.log.barrier().await;
        self.free_held(whole, extent).await
    }

    /// Gives an extent back that has nothing but holes since it was destaged: several trims have emptied it, none of which was for
    /// all of it. Who comes meanwhile leaves it as it is, and so does an error: it may be emptied again.
    pub(super) async fn free_emptied(self: &Rc<Self>, extent: u32) {
        let owner = self.meta.descriptor(extent);
        let (volume, vextent) = (owner.volume, owner.vextent);
        let whole = Target { volume, vextent, offset: 0, bytes: EXTENT_BLOCKS * BLOCK };
        if self.locks.blocks(&whole.range()) || !self.is_emptied(&whole, extent) {
            return;
        }
        self.held_back.borrow_mut().push(extent);
        let held = self.locks.lock_to_write(whole.range()).await;
        self.log.barrier().await;
        if self.is_emptied(&whole, extent) && self.free_held(whole, extent).await.is_ok() {
            self.note_room();
        }
        drop(held);
        self.let_go(extent);
        self.house.wrote(self);
    }

    /// Whether an extent of a layer that takes writes reads as zeroes, all of it, as its map page says, and would without it.
    fn is_emptied(&self, whole: &Target, extent: u32) -> bool {
        let is_its = self.index.extent(whole.volume, whole.vextent) == Some(extent);
        let in_page = || self.meta.page(extent).filter(|_| self.index.is_clean(extent));
        let is_hole = |page: &Page, index| matches!(page.get(index), meta::HOLE | meta::INHERIT);
        is_its
            && self.takes_writes(whole)
            && in_page().is_some_and(|page| (0..EXTENT_BLOCKS).all(|index| is_hole(&page, index)))
            && !self.shows_through(whole)
            && self.log.has_room(RECORD_BYTES_MAX)
    }

    /// Gives an extent back, of which nobody writes, moves or destages anything. True, even when it is not there any more.
    pub(super) async fn free_held(self: &Rc<Self>, whole: Target, extent: u32) -> Result<bool, Status> {
        if self.index.extent(whole.volume, whole.vextent) != Some(extent) {
            return Ok(true);
        }
        // In a shaped pool, what the extent has in the bands dies with it: the counts follow pages in memory. Without the
        // page they are wrong until GC looks.
        let _page = match self.meta.bands() {
            Some(_) => self.meta.load(extent).await.ok(),
            None => None,
        };
        self.note_slice(&whole).await?;
        if self.index.extent(whole.volume, whole.vextent) != Some(extent) {
            return Ok(true);
        }
        let record = Record::Free { extent, unusable: false };
        let freed = self.log.append(record, SgList::new(), Class::Internal).await.result;
        if freed.is_err() {
            self.index.name_refused(extent);
        }
        freed.map(|_| true)
    }

    /// The journal has the slice when this returns, and until something waits. A checkpoint may have taken it out while the
    /// caller waited.
    pub(super) async fn note_slice(&self, target: &Target) -> Result<(), Status> {
        while !self.journal.contains(target.volume, target.slice()) && !self.is_broken(Defect::SkipJournal) {
            self.journal.add(target.volume, target.slice()).await?;
        }
        Ok(())
    }

    /// Gives back the extents `first .. end` of a layer.
    pub(crate) async fn free_range(
        self: &Rc<Self>,
        layer: u32,
        first: u32,
        end: u32,
        hurry: Hurry,
    ) -> Result<(), Status> {
        let slack = Slack::new(self, hurry);
        // Extents that are being handed over are the layer's then.
        self.log.barrier().await;
        for (vextent, _) in self.index.extents_of(layer, first..end) {
            slack.give_way(self).await;
            self.free_extent(layer, vextent).await?;
        }
        Ok(())
    }
}
