//! Making blocks holes: by a record for parts of an extent, by giving the extent back when all of it goes.

use super::{BLOCK, Defect, Shard, Target};
use crate::log::{Class, Record};
use crate::units::EXTENT_BLOCKS;
use bdev::Status;
use reactor::{IoFuture, SgList};
use std::rc::Rc;

/// Log bytes of a record without payload, at most.
const RECORD_BYTES_MAX: u64 = 3 * BLOCK as u64;

impl Shard {
    /// Makes the target read as zeroes. Durable when it completes.
    pub(crate) fn trim(self: &Rc<Self>, target: Target) -> IoFuture<'static, Status> {
        if self.index.extent(target.volume, target.vextent).is_none() {
            return IoFuture::ready(Status::Ok);
        }
        let shard = self.clone();
        IoFuture::steps(&self.reactor, async move { shard.trim_steps(target).await.err().unwrap_or(Status::Ok) })
    }

    async fn trim_steps(self: Rc<Self>, target: Target) -> Result<(), Status> {
        if target.bytes == EXTENT_BLOCKS * BLOCK {
            return self.free_extent(target.volume, target.vextent).await;
        }
        let end = target.offset + target.bytes;
        let (first, last) = (target.offset.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        if first >= last {
            return self.zero_bytes(target).await;
        }
        self.zero_bytes(Target { bytes: first - target.offset, ..target }).await?;
        self.zero_bytes(Target { offset: last, bytes: end - last, ..target }).await?;
        let whole = Target { offset: first, bytes: last - first, ..target };
        self.let_in(&whole, RECORD_BYTES_MAX).await?;
        let Some(extent) = self.index.extent(target.volume, target.vextent) else { return Ok(()) };
        let record = Record::Trim { first: extent * EXTENT_BLOCKS + first / BLOCK, blocks: (last - first) / BLOCK };
        let appended = self.log.append(record, SgList::new(), Class::Internal);
        self.house.wrote(&self);
        appended.await.result.map(|_| ())
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

    /// Gives an extent of a volume back.
    pub(crate) async fn free_extent(self: &Rc<Self>, volume: u32, vextent: u32) -> Result<(), Status> {
        let whole = Target { volume, vextent, offset: 0, bytes: EXTENT_BLOCKS * BLOCK };
        // Without it, the extent would come back to life if the log were lost.
        self.journal.add(volume, whole.slice()).await?;
        while let Some(extent) = self.index.extent(volume, vextent) {
            self.held_back.borrow_mut().push(extent);
            let freed = self.free_undisturbed(whole, extent).await;
            self.let_go(extent);
            self.house.wrote(self);
            freed?;
        }
        Ok(())
    }

    /// The extent may be destaged again, as far as this caller is concerned.
    pub(super) fn let_go(&self, extent: u32) {
        let mut held = self.held_back.borrow_mut();
        let at = held.iter().position(|other| *other == extent).expect("held back by the caller");
        held.remove(at);
    }

    /// As [`free_extent`](Self::free_extent) for an extent that is no longer destaged.
    async fn free_undisturbed(self: &Rc<Self>, whole: Target, extent: u32) -> Result<(), Status> {
        // Once it is free it may get a new owner, whose blocks no write of ours must meet.
        self.settled.wait_until(|| !self.index.is_destaging(extent)).await;
        let _held = self.locks.lock(whole.range()).await;
        self.log.barrier().await;
        if self.index.extent(whole.volume, whole.vextent) != Some(extent) {
            return Ok(());
        }
        // In a shaped pool, what the extent has in the bands dies with it: the counts follow pages in memory. Without the
        // page they are wrong until GC looks.
        let _page = match self.meta.bands() {
            Some(_) => self.meta.load(extent).await.ok(),
            None => None,
        };
        self.note_slice(&whole).await?;
        if self.index.extent(whole.volume, whole.vextent) != Some(extent) {
            return Ok(());
        }
        let record = Record::Free { extent, unusable: false };
        let freed = self.log.append(record, SgList::new(), Class::Internal).await.result;
        if freed.is_err() {
            self.index.name_refused(extent);
        }
        freed.map(|_| ())
    }

    /// The journal has the slice when this returns, and until something waits. A checkpoint may have taken it out while the
    /// caller waited.
    pub(super) async fn note_slice(&self, target: &Target) -> Result<(), Status> {
        while !self.journal.contains(target.volume, target.slice()) && !self.is_broken(Defect::SkipJournal) {
            self.journal.add(target.volume, target.slice()).await?;
        }
        Ok(())
    }

    /// Gives back the extents `first .. end` of a volume.
    pub(crate) async fn free_range(self: &Rc<Self>, volume: u32, first: u32, end: u32) -> Result<(), Status> {
        for (vextent, _) in self.index.extents_of(volume, first..end) {
            self.free_extent(volume, vextent).await?;
        }
        Ok(())
    }
}
