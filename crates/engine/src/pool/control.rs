//! The control part of a pool: superblocks and catalog, on one reactor, changed by one at a time.

use super::flatten::Flattening;
use super::{PoolShared, ShardTable, volumes_max};
use crate::error::{Grounds, PoolError};
use crate::format::catalog::{VolumeEntry, VolumeState};
use crate::format::superblock::Superblock;
use crate::layout;
use crate::log_device::OpenLog;
use crate::meta::{self, Catalog, CatalogStore, Edit};
use crate::meter::Meter;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, SLICE_EXTENTS, VOLUME_BLOCKS_MAX};
use crate::volume::Shown;
use bdev::{Channel, DeviceInfo, Status};
use reactor::Reactor;
use reactor::sync::Notify;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// How long closing waits for changes that are under way.
const CLOSE_WAIT_NS: u64 = 2_000_000_000;

/// Changes of the catalog in memory between two looks at the clock; more than layers go together.
const CHANGES_PER_STEP: usize = 512;

/// The control part of a pool, on its reactor.
pub(super) struct Control {
    pub(super) reactor: Rc<Reactor>,
    pub(super) shared: Arc<PoolShared>,
    pub(super) capacity: Rc<dyn Channel>,
    pub(super) capacity_info: DeviceInfo,
    pub(super) log: OpenLog,
    pub(super) superblock: RefCell<Superblock>,
    pub(super) catalog: RefCell<Catalog>,
    /// Where it is stored; whoever changes it has it.
    pub(super) store: Cell<Option<CatalogStore>>,
    /// One change at a time.
    pub(super) busy: Cell<bool>,
    /// Layers that go, go one at a time; changes are made meanwhile.
    pub(super) reaping: Cell<bool>,
    /// Volumes that are being flattened, or were since the pool was opened: one for each.
    pub(super) flattenings: RefCell<Vec<Rc<Flattening>>>,
    pub(super) is_flattening_one: Cell<bool>,
    pub(super) idle: Notify,
    /// Nothing is changed any more.
    pub(super) closing: Cell<bool>,
    pub(super) written: ControlWrites,
}

/// Bytes written to superblocks and catalog, on both devices.
#[derive(Default)]
pub(super) struct ControlWrites {
    pub(super) log: Meter,
    pub(super) capacity: Meter,
}

#[derive(Default)]
pub(super) struct ControlSlot(pub(super) RefCell<Option<Rc<Control>>>);

impl Control {
    pub(super) fn of(reactor: &Reactor, shared: &PoolShared) -> Result<Rc<Control>, PoolError> {
        let slot = reactor.kept_or(shared.instance, ControlSlot::default);
        let control = slot.0.borrow().clone();
        control.ok_or_else(|| shared.refuse(Grounds::State, "it is closed".to_string()))
    }

    pub(super) async fn alone(&self) -> Alone<'_> {
        self.turn(&self.busy).await
    }

    /// Ends changes. What is under way may take long, when devices do not answer: its end is not waited for then, and it
    /// changes nothing any more.
    pub(super) async fn close(&self) {
        self.closing.set(true);
        self.idle.notify_all();
        self.shared.hurry.wait_for_good();
        self.halt_flattening();
        let ended = async {
            let is_idle = || !self.reaping.get() && !self.busy.get() && !self.is_flattening();
            self.idle.wait_until(is_idle).await;
        };
        let _ = self.reactor.timeout(CLOSE_WAIT_NS, ended).await;
    }

    pub(super) async fn turn<'a>(&'a self, busy: &'a Cell<bool>) -> Alone<'a> {
        self.turn_unless(busy, || false).await.expect("it is never over")
    }

    /// As [`turn`](Self::turn); `None` when it is over before it begins.
    pub(super) async fn turn_unless<'a>(
        &'a self,
        busy: &'a Cell<bool>,
        is_over: impl Fn() -> bool,
    ) -> Option<Alone<'a>> {
        self.idle.wait_until(|| is_over() || !busy.get()).await;
        if is_over() {
            return None;
        }
        busy.set(true);
        Some(Alone { busy, idle: &self.idle })
    }

    /// Makes changes of the catalog durable, or leaves it as it is. Whoever asks for them has their turn.
    pub(super) async fn change(&self, edit: Edit) -> Result<(), PoolError> {
        debug_assert!(self.busy.get(), "one changes it at a time");
        let store = self.store.take().filter(|_| !self.closing.get());
        let Some(mut store) = store else {
            return Err(self.shared.refuse(Grounds::State, "it is being closed".to_string()));
        };
        let changed = self.change_in(&mut store, edit).await;
        self.store.set(Some(store));
        changed
    }

    async fn change_in(&self, store: &mut CatalogStore, edit: Edit) -> Result<(), PoolError> {
        let Err(error) = store.store(&edit).await else {
            // Whoever looks meanwhile sees some of it; whoever changes anything waits.
            for part in edit.parts(CHANGES_PER_STEP) {
                self.catalog.borrow_mut().apply(part);
                self.give_way().await;
            }
            return Ok(());
        };
        // It may be found all the same: what is used on must not be deleted by that.
        store.renew(&self.catalog.borrow());
        if let Err(again) = store.store(&Edit::default()).await {
            let pool = &self.shared.name;
            tracing::error!("pool '{pool}': {error}, nor can it be taken back: {again}; after a crash it may hold");
        }
        Err(error.into())
    }

    /// Refuses when the catalog has no room for so many more.
    pub(super) fn check_room(&self, more: usize) -> Result<(), PoolError> {
        let most = volumes_max(&self.superblock.borrow());
        if (self.catalog.borrow().len() + more) as u64 > most {
            let going = self.catalog.borrow().going().len();
            let going = if going == 0 { String::new() } else { format!(" ({going} deleted ones have not gone yet)") };
            let reason = format!(
                "has room for {most} volumes and snapshots together, and not for {more} more{going}: delete some; a pool gets its \
                 limit when it is created"
            );
            return Err(self.shared.refuse(Grounds::Room, reason));
        }
        Ok(())
    }

    pub(super) fn entry(&self, id: u32) -> Result<VolumeEntry, PoolError> {
        let found = self.catalog.borrow().get(id).cloned();
        found.ok_or_else(|| self.shared.refuse(Grounds::Missing, format!("has no volume number {id}")))
    }

    pub(super) async fn create(
        &self,
        name: &str,
        blocks: u64,
        block_shift: u16,
        uuid: Uuid,
        created_s: u64,
    ) -> Result<VolumeEntry, PoolError> {
        let _alone = self.alone().await;
        if self.catalog.borrow().is_taken(name) {
            return Err(self.shared.refuse(Grounds::State, format!("already has a volume '{name}'")));
        }
        self.check_room(1)?;
        let id = self.catalog.borrow().next_id();
        self.check_size(blocks)?;
        let entry = VolumeEntry {
            id,
            state: VolumeState::Live,
            block_shift,
            blocks,
            uuid,
            content: uuid,
            created_s,
            name: name.to_string(),
            parent: 0,
            overlap: 0,
            origin: id,
        };
        let mut edit = Edit::default();
        edit.put(entry.clone());
        self.change(edit).await?;
        Ok(entry)
    }

    fn check_size(&self, blocks: u64) -> Result<(), PoolError> {
        if (1..=VOLUME_BLOCKS_MAX).contains(&blocks) {
            return Ok(());
        }
        Err(self
            .shared
            .refuse(Grounds::Value, format!("a volume of {blocks} blocks of 4 KiB: expected 1 to {VOLUME_BLOCKS_MAX}")))
    }

    pub(super) async fn resize(&self, shown: Shown, blocks: u64) -> Result<(), PoolError> {
        self.check_size(blocks)?;
        let _alone = self.alone().await;
        let id = shown.layer();
        let former = self.entry(id)?;
        let old = former.blocks;
        if blocks > old {
            // What was cut off earlier may still be in the last extent.
            let tail = old % EXTENT_BLOCKS as u64;
            if tail > 0 {
                self.trim_end(&former, (old / EXTENT_BLOCKS as u64) as u32, tail as u32).await?;
            }
        }
        let overlap = former.overlap.min(blocks);
        let mut edit = Edit::default();
        edit.put(VolumeEntry { blocks, overlap, ..former.clone() });
        self.change(edit).await?;
        if blocks < old {
            self.lay(&VolumeEntry { overlap, ..former }).await;
            let first = blocks.div_ceil(EXTENT_BLOCKS as u64) as u32;
            let _waiting = self.shared.hurry.wait();
            let status = self.shared.free_from(&self.reactor, id, first).await;
            status.check().map_err(|status| self.shared.io_error("free what was cut off", status))?;
        }
        Ok(())
    }

    /// Makes the blocks of an extent from `from` on holes.
    pub(super) async fn trim_end(&self, volume: &VolumeEntry, vextent: u32, from: u32) -> Result<(), PoolError> {
        let block = BLOCK_BYTES as u32;
        let offset = from * block;
        let target = crate::shard::Target { volume: volume.id, vextent, offset, bytes: EXTENT_BLOCKS * block - offset };
        let number = self.shared.shard_of(volume.origin, vextent / SLICE_EXTENTS);
        let trimmed = self.shared.on_shard(&self.reactor, number, move |shard| shard.trim(target)).await;
        let status = trimmed.unwrap_or(Status::Gone);
        status.check().map_err(|status| self.shared.io_error("clear the end of the volume", status))
    }

    /// Takes into use by what the devices have grown, to so many blocks each; how many it uses now.
    pub(super) async fn grow(&self, log_blocks: u64, capacity_blocks: u64) -> Result<(u64, u64), PoolError> {
        let _alone = self.alone().await;
        let planned = layout::plan_grow(&self.superblock.borrow(), log_blocks, capacity_blocks);
        let mut grown = planned.map_err(|error| PoolError::Plan { pool: self.shared.name.clone(), error })?;
        let sized = |info: DeviceInfo, blocks: u64| {
            let blocks = info.blocks.max(blocks * BLOCK_BYTES as u64 / info.block_size as u64);
            DeviceInfo { blocks, ..info }
        };
        let info = sized(self.capacity_info, capacity_blocks);
        // The capacity device's superblock decides: opening tells the log device what a crash has kept from it.
        meta::write_superblock(&self.reactor, self.capacity.clone(), info, &mut grown).await?;
        let mut on_log = grown.counterpart();
        let told = meta::write_superblock(
            &self.reactor,
            self.log.channel.clone(),
            sized(self.log.info, log_blocks),
            &mut on_log,
        )
        .await;
        if let Err(error) = told {
            tracing::warn!(
                "pool '{}' has grown, and its log device was not told: {error}; opening it will",
                self.shared.name
            );
        }
        self.superblock.replace(grown.clone());
        for number in 0..grown.shards {
            let (instance, grown) = (self.shared.instance, grown.clone());
            let grow = move |there: Rc<Reactor>| async move {
                if let Some(shard) = ShardTable::on(&there, instance).get(number) {
                    shard.grow(&grown);
                }
            };
            self.reactor.call_on(self.shared.home_of(number), grow).await;
        }
        if grown.capacity_blocks < capacity_blocks {
            tracing::warn!(
                "pool '{}' uses {} MiB of {}: the log device has no room for the index of more, or the format none",
                self.shared.name,
                grown.capacity_blocks >> 8,
                capacity_blocks >> 8
            );
        }
        Ok((grown.log_blocks, grown.capacity_blocks))
    }

    /// What a crash in the middle of a change has left to do.
    pub(super) async fn tidy_up(&self) -> Result<(), PoolError> {
        let _waiting = self.shared.hurry.wait();
        let volumes: Vec<u32> = self.catalog.borrow().live().map(|entry| entry.id).collect();
        for id in volumes {
            let _alone = self.alone().await;
            // It may have another layer by now, or another size.
            let Ok(now) = self.entry(id) else { continue };
            if now.state == VolumeState::Live {
                let first = now.blocks.div_ceil(EXTENT_BLOCKS as u64) as u32;
                let status = self.shared.free_from(&self.reactor, now.id, first).await;
                status.check().map_err(|status| self.shared.io_error("free what was cut off", status))?;
            }
        }
        self.reap().await
    }
}

/// Somebody's turn, until it is dropped.
pub(super) struct Alone<'a> {
    busy: &'a Cell<bool>,
    idle: &'a Notify,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.busy.set(false);
        self.idle.notify_all();
    }
}
