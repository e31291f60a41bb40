//! How a pool is now: its shards, and what its control part knows, which is asked once.

use super::control::Control;
use super::flatten::FlattenStatus;
use super::{Pool, PoolError, PoolLayout, volumes_max};
use crate::forget::growth_mib;
use crate::format::superblock::{Shape, Superblock};
use crate::layout;
use crate::shard::Shard;
use crate::status::{PoolStatus, ShardStatus};
use crate::units::BLOCK_BYTES;
use bdev::DeviceInfo;
use reactor::Reactor;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Layers that are looked at between two looks at the clock.
const LAYERS_PER_STEP: usize = 256;

/// What the control part knows.
struct Known {
    /// Deleted layers that have not gone yet.
    going: BTreeSet<u32>,
    /// How many of them nothing lies over.
    unshown: usize,
    /// Layers whose blocks count, and their sizes in blocks.
    sizes: Arc<[(u32, u64)]>,
    /// Flattenings, by volume, that are under way or have failed.
    flattening: Vec<(String, FlattenStatus)>,
    superblock: Superblock,
    /// Bytes of superblocks and catalog written to the log device and to the capacity device.
    written: (u64, u64),
}

impl PoolLayout {
    /// Of a pool on a capacity device.
    pub(super) fn of(superblock: &Superblock, info: &DeviceInfo) -> PoolLayout {
        let bytes = |blocks: u32| u64::from(blocks) * BLOCK_BYTES as u64;
        let is_shaped = superblock.shape == Shape::Shaped;
        let rows = info.rows.filter(|_| is_shaped);
        PoolLayout {
            shape: superblock.shape,
            band_bytes: is_shaped.then(|| bytes(superblock.bands.band_blocks)),
            write_unit_bytes: is_shaped.then(|| bytes(superblock.bands.unit_blocks)),
            row_bytes: rows.map(|rows| u64::from(rows.blocks) * u64::from(info.block_size)),
        }
    }
}

impl Pool {
    /// How it is now.
    pub async fn status(&self, reactor: &Rc<Reactor>) -> PoolStatus {
        // Of a pool that is closed there is nothing.
        let known = self.known(reactor).await.ok();
        let sizes = known.as_ref().map_or_else(|| Arc::new([]) as Arc<[_]>, |known| known.sizes.clone());
        let look = |shard: Rc<Shard>, sizes: Arc<[(u32, u64)]>| async move {
            let lacks = shard.lacks_to_forget(&sizes).await;
            (ShardStatus::of(&shard), lacks)
        };
        let looked = self.shared.on_all_shards(reactor, sizes, look).await;
        let (mut shards, lacks): (Vec<ShardStatus>, Vec<u64>) = looked.into_iter().flatten().unzip();
        shards.sort_by_key(|shard| shard.number);
        if let (Some(first), Some(known)) = (shards.first_mut(), &known) {
            first.streams.log.metadata += known.written.0;
            first.streams.capacity.metadata += known.written.1;
        }
        let lacks = lacks.into_iter().max().unwrap_or(0);
        let (volumes, snapshots) = self.volume_counts();
        let capacity_bytes = self.capacity_blocks.load(Relaxed) * BLOCK_BYTES as u64;
        let unused_bytes = self.capacity.info().bytes().saturating_sub(capacity_bytes);
        let planned = |known: &Known| {
            let capacity_blocks = self.capacity.info().bytes() / BLOCK_BYTES as u64;
            layout::plan_grow(&known.superblock, self.log.blocks(), capacity_blocks).err()
        };
        let unused_why = known.as_ref().filter(|_| unused_bytes > 0).and_then(planned);
        let growth = |known: &Known| match lacks {
            0 => 0,
            lacks => growth_mib(&known.superblock, lacks) << 20,
        };
        let growth = known.as_ref().map_or(0, growth);
        let going_unshown = known.as_ref().map_or(0, |known| known.unshown);
        let volumes_max = known.as_ref().map_or(0, |known| volumes_max(&known.superblock));
        let (going, flattening) = known.map_or_else(Default::default, |known| (known.going, known.flattening));
        let is_going = |(layer, _): &&(u32, u32)| going.contains(layer);
        let going_extents = shards.iter().flat_map(|shard| &shard.held).filter(is_going);
        PoolStatus {
            name: self.shared.name.clone(),
            uuid: self.shared.uuid,
            layout: self.layout,
            capacity_bytes,
            unused_bytes,
            unused_why,
            log_bytes: self.log_blocks.load(Relaxed) * BLOCK_BYTES as u64,
            log_durable: self.shared.log_durable,
            volumes,
            volumes_max,
            snapshots,
            going_extents: going_extents.map(|(_, extents)| u64::from(*extents)).sum(),
            going: going.len(),
            going_unshown,
            flattening,
            recovery: self.recovery,
            // What the device has become larger by is taken into use for that.
            forget_growth_bytes: if growth > unused_bytes { growth } else { 0 },
            shards,
        }
    }

    /// Asks the control part, once.
    async fn known(&self, reactor: &Rc<Reactor>) -> Result<Known, PoolError> {
        let look = |control: Rc<Control>| async move {
            let (mut sizes, mut next) = (Vec::new(), 0);
            while let Some(from) = control.add_sizes(next, &mut sizes) {
                next = from;
                control.give_way().await;
            }
            let catalog = control.catalog.borrow();
            Ok(Known {
                going: catalog.going().clone(),
                unshown: catalog.going_under(0).len(),
                sizes: sizes.into(),
                flattening: control.flattenings_told(),
                superblock: control.superblock.borrow().clone(),
                written: (control.written.log.get(), control.written.capacity.get()),
            })
        };
        self.on_control(reactor, look).await
    }
}

impl Control {
    /// Sizes of some layers whose blocks count, from a number on; the number to go on from.
    fn add_sizes(&self, from: u32, sizes: &mut Vec<(u32, u64)>) -> Option<u32> {
        let catalog = self.catalog.borrow();
        let mut last = None;
        for entry in catalog.volumes().range(from..).take(LAYERS_PER_STEP).map(|(_, entry)| entry) {
            if catalog.counts(entry) {
                sizes.push((entry.id, entry.blocks));
            }
            last = Some(entry.id + 1);
        }
        last
    }
}
