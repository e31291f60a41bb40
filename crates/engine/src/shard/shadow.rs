//! The shadow of a shaped pool's index: what slices have that are not in the dirty journal, once more, on the capacity device,
//! with checksums and without places. The log device has the index; with the shadow, and with what stripes say of themselves,
//! it can be [built anew](crate::rebuild) when that is lost.
//!
//! A slice leaves the journal when a checkpoint has all of it, and then a checkpoint of the shadow. It is copied when there is
//! nothing else to do. The shadow's owners of extents are those of the index as of one moment, whosever they are: a slice that
//! has left has no extent there that it has not in the index.

use super::{Defect, Shard};
use crate::format::dirty::DirtySlice;
use crate::format::superblock::Superblock;
use crate::meta::{BLOCKS_INHERIT, BLOCKS_LOST, Descriptor, Meta, MetaStats};
use crate::pool::FIRST;
use crate::units::{EXTENT_BLOCKS, SLICE_EXTENTS};
use bdev::{Channel, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Slices that are copied before one checkpoint of the shadow.
const SLICES_MAX: usize = 16;
/// Map pages of the shadow that are kept in memory: those of two slices.
const CACHE_BYTES: usize = 2 * SLICE_EXTENTS as usize * (4096 + 128);

/// See the module.
pub(super) struct Shadow {
    /// As [`Superblock::shadow`] has it.
    superblock: Superblock,
    channel: Rc<dyn Channel>,
    /// Opened when the first slice is to be copied.
    store: RefCell<Option<Rc<Meta>>>,
    /// Slices are being copied: none becomes due meanwhile.
    copying: Cell<bool>,
    /// How the last attempt failed, until one succeeds.
    failed: Cell<Option<Status>>,
}

impl Shadow {
    pub(super) fn new(superblock: Superblock, channel: Rc<dyn Channel>) -> Shadow {
        Shadow { superblock, channel, store: RefCell::default(), copying: Cell::new(false), failed: Cell::new(None) }
    }

    pub(super) fn is_copying(&self) -> bool {
        self.copying.get()
    }

    /// Where a shard's root is, in blocks of 4 KiB of the capacity device.
    pub(super) fn root_block(&self, shard: u16) -> u64 {
        self.superblock.root_copy(shard, 0)
    }
}

/// What the shadow says of whose an extent is.
fn owner(descriptor: Descriptor) -> Descriptor {
    if descriptor.is_free() {
        return Descriptor::default();
    }
    Descriptor { map_crc: 0, flags: descriptor.flags & (BLOCKS_LOST | BLOCKS_INHERIT), ..descriptor }
}

impl Shard {
    /// Counters of the shadow's store; all zero where there is none, or none was needed yet.
    pub(crate) fn shadow_stats(&self) -> MetaStats {
        let store = self.shadow.as_ref().and_then(|shadow| shadow.store.borrow().clone());
        store.map(|store| store.stats()).unwrap_or_default()
    }

    /// Slices in the dirty journal; `None` where everything goes with the log device.
    pub(crate) fn dirty_slices(&self) -> Option<u64> {
        let survives = self.meta.bands().is_none() || self.shadow.is_some();
        survives.then(|| self.journal.len() as u64)
    }

    /// Retires the slices of which the durable checkpoint has everything.
    pub(super) async fn retire_settled(self: &Rc<Self>) {
        if let Some(shadow) = &self.shadow {
            self.settled.wait_until(|| !shadow.copying.get()).await;
        }
        self.retire_slices(self.durable_tail());
        while self.journal.has_due() && !self.is_stopping() {
            self.copy_due().await;
        }
    }

    /// Copies some slices that are due, if there are any, and retires them. What fails is told, and tried again later.
    pub(super) async fn copy_due(self: &Rc<Self>) {
        let Some(shadow) = &self.shadow else { return };
        self.settled.wait_until(|| !shadow.copying.get()).await;
        let due = self.journal.due(SLICES_MAX);
        if due.is_empty() {
            return;
        }
        shadow.copying.set(true);
        let ended = match self.is_broken(Defect::SkipShadow) {
            true => Ok(Vec::new()),
            false => self.copy_slices(shadow, &due).await,
        };
        shadow.copying.set(false);
        self.settled.notify_all();
        match ended {
            Ok(kept) => {
                self.journal.keep(&kept);
                self.journal.shadowed(&due);
                shadow.failed.set(None);
            }
            Err(status) => {
                self.journal.postpone(&due);
                if shadow.failed.replace(Some(status)) != Some(status) {
                    tracing::warn!(
                        "pool '{}': the shadow of the index of shard {} cannot be written: {status}; until it can, the loss of \
                         the log device would take more than it has to",
                        self.pool_name,
                        self.number
                    );
                }
            }
        }
    }

    /// Copies slices once more, whether they are due or not, and makes what else has changed of the shadow durable. Of one that is in the
    /// journal it says nothing, now as before.
    pub(super) async fn copy_again(self: &Rc<Self>, shadow: &Shadow, slices: &[DirtySlice]) -> Result<(), Status> {
        self.alone_with(shadow, self.copy_slices(shadow, slices)).await.map(drop)
    }

    /// Does this while no slices are being copied.
    async fn alone_with<T>(&self, shadow: &Shadow, work: impl Future<Output = T>) -> T {
        self.settled.wait_until(|| !shadow.copying.get()).await;
        shadow.copying.set(true);
        let ended = work.await;
        shadow.copying.set(false);
        self.settled.notify_all();
        ended
    }

    /// Makes a shadow anew that cannot be opened, as nothing that its root leads to is there any more: one that has nothing, once all slices
    /// are in the journal. They leave it as they always do. Cut off at any point, it is as before, or this one.
    pub(super) async fn make_shadow_anew(self: &Rc<Self>, shadow: &Shadow) -> Result<(), Status> {
        self.alone_with(shadow, self.make_shadow_anew_alone(shadow)).await
    }

    async fn make_shadow_anew_alone(self: &Rc<Self>, shadow: &Shadow) -> Result<(), Status> {
        // One that is owned later gets into the journal with its first record.
        let owners = (0..self.meta.extents()).map(|extent| self.meta.descriptor(extent));
        let slices = owners.filter(|owner| !owner.is_free()).map(|owner| owner.slice()).collect();
        self.journal.add_all(&slices).await?;
        let (channel, info) = (shadow.channel.clone(), self.capacity_info);
        let made = Meta::format(&self.reactor, channel, info, &shadow.superblock, self.number, FIRST).await;
        made.map_err(|error| Status::from(&error))
    }

    /// The shadow's store, which is opened if nobody has needed it yet.
    pub(super) async fn open_shadow(self: &Rc<Self>, shadow: &Shadow) -> Result<Rc<Meta>, Status> {
        self.alone_with(shadow, self.shadow_store(shadow)).await
    }

    /// The slices for which there is no room; the shadow has the others durably.
    async fn copy_slices(self: &Rc<Self>, shadow: &Shadow, slices: &[DirtySlice]) -> Result<Vec<DirtySlice>, Status> {
        let store = self.shadow_store(shadow).await?;
        // From here on until something is read nothing else runs: the owners are those of one moment.
        let covered = store.extents();
        for extent in self.meta.take_reowned().into_iter().filter(|extent| *extent < covered) {
            let (is, was) = (owner(self.meta.descriptor(extent)), store.descriptor(extent));
            if (is.volume, is.vextent) != (was.volume, was.vextent) {
                store.set_descriptor(extent, is);
            }
        }
        let (mut kept, mut copied) = (Vec::new(), Vec::new());
        for (volume, slice) in slices {
            let first = slice * SLICE_EXTENTS;
            let extents = self.index.extents_of(*volume, first..first.saturating_add(SLICE_EXTENTS));
            match extents.iter().all(|(_, extent)| *extent < covered) {
                true => copied.push(extents),
                false => kept.push((*volume, *slice)),
            }
        }
        for extents in copied {
            let copy = |(_, extent)| {
                let (shard, store) = (self.clone(), store.clone());
                self.reactor.spawn_join(async move { shard.shadow_extent(&store, extent).await })
            };
            let copies: Vec<_> = extents.into_iter().map(copy).collect();
            let mut ended = Ok(());
            for copy in copies {
                ended = ended.and(copy.await);
            }
            ended?;
        }
        store.checkpoint(self.durable_tail()).await?;
        Ok(kept)
    }

    /// Whoever changes the extent meanwhile has asked for its slice in the journal: then that does not leave.
    async fn shadow_extent(&self, store: &Rc<Meta>, extent: u32) -> Result<(), Status> {
        store.set_descriptor(extent, owner(self.meta.descriptor(extent)));
        if !self.meta.has_page(extent) && !store.has_page(extent) {
            return Ok(());
        }
        let page = self.meta.load(extent).await?;
        let copy = match store.load(extent).await {
            Err(Status::Corrupt | Status::ReadError) => store.renew_page(extent),
            loaded => loaded?,
        };
        (0..EXTENT_BLOCKS).for_each(|index| copy.set(index, page.get(index)));
        Ok(())
    }

    async fn shadow_store(&self, shadow: &Shadow) -> Result<Rc<Meta>, Status> {
        if let Some(store) = shadow.store.borrow().clone() {
            return Ok(store);
        }
        let (channel, info) = (shadow.channel.clone(), self.capacity_info);
        let opened = Meta::open(&self.reactor, channel, info, &shadow.superblock, self.number, CACHE_BYTES).await;
        let (store, _) = opened.map_err(|error| Status::from(&error))?;
        self.meta.note_reowned();
        *shadow.store.borrow_mut() = Some(store.clone());
        Ok(store)
    }
}
