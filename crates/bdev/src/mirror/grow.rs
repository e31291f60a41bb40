//! Growing with the legs, while the mirror is used.
//!
//! The regions that are added are called dirty on all legs before a superblock says that they are there: what legs have behind
//! their former end may differ, so it is copied, as after a crash. Where the bitmap has no room for so many regions they become
//! larger, and all bits are set first, which is right for regions of either size.

use super::format::{BitmapPage, KIND, LegState, PAGE_REGIONS, PAGES_MAX};
use super::io::Inner;
use super::regions::{ADDED, DIRTY, NEEDS_SYNC};
use super::{MirrorDefect, MirrorDevice, Shared};
use crate::device::{DeviceError, DeviceInfo};
use crate::io::Status;
use crate::part_size;
use crate::slots::Slots;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::atomic::Ordering::*;

/// How large regions are in a mirror of some size, and how many pages their bits take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bitmap {
    region_blocks: u64,
    pages: usize,
}

impl Bitmap {
    /// What so many blocks need: more pages, or where there is no room for so many regions larger ones.
    fn for_blocks(self, blocks: u64, regions_max: u64) -> Bitmap {
        let mut region_blocks = self.region_blocks;
        while blocks.div_ceil(region_blocks) > regions_max {
            region_blocks *= 2;
        }
        let needed = blocks.div_ceil(region_blocks).div_ceil(PAGE_REGIONS as u64) as usize;
        Bitmap { region_blocks, pages: needed.max(self.pages) }
    }
}

impl MirrorDevice {
    /// Grows it to so many blocks, and its legs where they are too small for that.
    pub(super) async fn grow(&self, reactor: &Rc<Reactor>, blocks: u64) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let _turn = shared.grow_turn.lock(0, 1, true).await;
        let now = shared.blocks();
        if blocks < now {
            return Err(shared.refused(format!("it does not shrink: expected {now} blocks or more, not {blocks}")));
        }
        if blocks == now {
            return Ok(());
        }
        let inner = self.inner(reactor)?;
        inner.check_whole()?;
        let Some(needed) = shared.data_start.checked_add(blocks).filter(|end| *end < 1 << 60) else {
            return Err(shared.refused(format!("{blocks} blocks are more than a mirror can have")));
        };
        part_size::enlarge(reactor, &shared.devices(), needed).await?;
        inner.adopt(blocks).await
    }

    /// Takes into use by what all legs have become larger; what it is now. While a leg is not in sync it stays as it is.
    pub(super) async fn grow_with_legs(&self, reactor: &Rc<Reactor>) -> Result<DeviceInfo, DeviceError> {
        let shared = &self.shared;
        let _turn = shared.grow_turn.lock(0, 1, true).await;
        let inner = self.inner(reactor)?;
        if let Err(error) = inner.check_whole() {
            tracing::info!(mirror = shared.name, %error, "not looked whether its legs have become larger");
            return Ok(shared.info());
        }
        let least = match part_size::least(reactor, &shared.devices()).await {
            Ok(least) => least,
            Err(error) => {
                tracing::warn!(mirror = shared.name, %error, "cannot see whether a leg has become larger");
                return Ok(shared.info());
            }
        };
        let blocks = least.saturating_sub(shared.data_start);
        if blocks > shared.blocks() {
            inner.adopt(blocks).await?;
        }
        Ok(shared.info())
    }
}

impl Shared {
    fn refused(&self, reason: String) -> DeviceError {
        DeviceError::Config { device: self.name.clone(), reason }
    }

    fn bitmap(&self) -> Bitmap {
        let meta = self.meta.lock().expect("nothing panics while holding the metadata");
        Bitmap { region_blocks: meta.superblock.region_blocks, pages: meta.pages.len() }
    }

    /// Regions whose bits there is room for in front of the data.
    fn regions_max(&self) -> u64 {
        let units = self.data_start / Slots::unit_blocks(self.opened.block_size);
        let pages = ((units - KIND.copies) as usize).min(PAGES_MAX);
        (pages * PAGE_REGIONS).min(self.regions_max) as u64
    }

    /// What the superblock says of the size.
    fn set_size(&self, blocks: u64, bitmap: Bitmap) {
        let mut meta = self.meta.lock().expect("nothing panics while holding the metadata");
        meta.superblock.data_blocks = blocks;
        meta.superblock.region_blocks = bitmap.region_blocks;
        meta.superblock.pages = bitmap.pages as u32;
    }

    fn pages(&self) -> Vec<BitmapPage> {
        self.meta.lock().expect("nothing panics while holding the metadata").pages.clone()
    }

    fn set_pages(&self, pages: Vec<BitmapPage>) {
        self.meta.lock().expect("nothing panics while holding the metadata").pages = pages;
    }
}

impl Inner {
    /// It grows with all of its legs alone, and not while they may differ.
    fn check_whole(self: &Rc<Self>) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let refused = |reason: String| Err(DeviceError::State { device: shared.name.clone(), reason });
        if let Some(leg) = (0..shared.legs.len()).find(|leg| shared.leg_state(*leg) != LegState::InSync) {
            let state = match shared.leg_state(leg) {
                LegState::Failed => "has failed: replace it, and grow the mirror when it has been caught up",
                _ => "is being caught up: wait for that, and grow the mirror then",
            };
            return refused(format!("it grows only with all its legs in sync, and {} {state}", shared.leg_name(leg)));
        }
        if shared.regions_left() > 0 {
            // Of a write that has failed nobody else makes it good.
            self.resync_in_background();
            return refused("its legs are being made equal: wait for that, and grow the mirror then".to_string());
        }
        Ok(())
    }

    /// Makes more blocks durable in a new generation, shows them, and begins to make the legs equal there.
    async fn adopt(self: &Rc<Self>, blocks: u64) -> Result<(), DeviceError> {
        // A task of its own: it does not stop half-way because its caller goes away.
        let inner = self.clone();
        let failed = |status| DeviceError::Io { device: self.shared.name.clone(), action: "grow", status };
        // The legs' own new sizes first.
        self.flush().await.map_err(failed)?;
        self.reactor.spawn_join(async move { inner.adopt_in_turn(blocks).await }).await
    }

    async fn adopt_in_turn(self: Rc<Self>, blocks: u64) -> Result<(), DeviceError> {
        let shared = &self.shared;
        // No region is copied and no leg is taken in meanwhile, and with the whole device held no write is under way.
        let _resync = shared.resync_turn.lock(0, 1, true).await;
        let _join = shared.join_turn.lock(0, 1, true).await;
        let _alone = shared.ranges.lock(0, shared.blocks(), true).await;
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        self.check_whole()?;
        part_size::refuse_small(&shared.name, "leg", &shared.devices(), shared.data_start + blocks)?;
        let (before, name) = (shared.blocks(), &shared.name);
        let failed = |status| DeviceError::Io { device: name.clone(), action: "grow", status };
        self.grow_to(blocks).await.map_err(failed)?;
        tracing::info!(mirror = name, blocks, before, "the mirror has grown");
        if shared.regions_left() > 0 {
            self.resync_in_background();
        }
        Ok(())
    }

    /// Grows the mirror; all blocks and the turns are held, and all legs are in sync. After an error it has its former size; a crash may
    /// show the new one until the next generation, which comes before anything else is written.
    async fn grow_to(&self, blocks: u64) -> Result<(), Status> {
        let shared = &self.shared;
        let (before, old, pages) = (shared.blocks(), shared.bitmap(), shared.pages());
        self.record_with_turn().await?;
        let new = old.for_blocks(blocks, shared.regions_max());
        let added = (before / new.region_blocks) as usize..blocks.div_ceil(new.region_blocks) as usize;
        let marked = match shared.defect {
            Some(MirrorDefect::GrowUnmarked) => Ok(()),
            _ => self.mark_added(new, added.clone(), old).await,
        };
        if let Err(status) = marked {
            // More bits than these may be set on the legs.
            shared.set_pages(pages);
            return Err(status);
        }
        if shared.defect != Some(MirrorDefect::GrowUnrecorded) {
            shared.set_size(blocks, new);
            if let Err(status) = self.write_superblocks().await {
                shared.set_size(before, old);
                shared.set_pages(pages);
                shared.unrecorded.store(true, Release);
                return Err(status);
            }
        }
        let is_larger = new.region_blocks != old.region_blocks;
        match is_larger {
            true => shared.regions.enlarge(new.region_blocks, blocks),
            false => shared.regions.extend(blocks),
        }
        if shared.defect != Some(MirrorDefect::GrowUnmarked) {
            let several = if shared.legs.len() > 1 { NEEDS_SYNC | ADDED } else { 0 };
            // What is only partly added may have been written as well.
            let is_partly = |region: usize| region as u64 * new.region_blocks < before;
            let mark = |region: usize| DIRTY | if is_partly(region) { several & !ADDED } else { several };
            added.for_each(|region| _ = shared.regions[region].fetch_or(mark(region), AcqRel));
        }
        shared.blocks.store(blocks, Release);
        Ok(())
    }

    /// Makes the bits of the regions that are added durable on all legs: of all regions, if they become larger.
    async fn mark_added(&self, new: Bitmap, added: std::ops::Range<usize>, old: Bitmap) -> Result<(), Status> {
        let shared = &self.shared;
        let is_larger = new.region_blocks != old.region_blocks;
        let first_page = if is_larger { 0 } else { added.start / PAGE_REGIONS };
        {
            let mut meta = shared.meta.lock().expect("nothing panics while holding the metadata");
            meta.pages.resize(new.pages, BitmapPage::filled(false));
            match is_larger {
                true => meta.pages.iter_mut().for_each(|page| *page = BitmapPage::filled(true)),
                false => added.for_each(|region| meta.pages[region / PAGE_REGIONS].set(region % PAGE_REGIONS, true)),
            }
        }
        for page in first_page..new.pages {
            self.write_page(page).await?;
        }
        // A leg that has just failed would not know of the regions.
        if shared.all_in_sync() { Ok(()) } else { Err(Status::WriteError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_become_larger_only_where_the_bitmap_is_full() {
        let one = Bitmap { region_blocks: 256, pages: 1 };
        let (full, pages) = (256 * PAGE_REGIONS as u64, |pages: u64| pages * PAGE_REGIONS as u64);
        assert_eq!(one.for_blocks(full, pages(3)), one);
        assert_eq!(one.for_blocks(full + 1, pages(3)), Bitmap { pages: 2, ..one });
        assert_eq!(one.for_blocks(3 * full, pages(3)), Bitmap { pages: 3, ..one });
        assert_eq!(one.for_blocks(3 * full + 1, pages(3)), Bitmap { region_blocks: 512, pages: 2 });
        assert_eq!(one.for_blocks(full + 1, pages(1)), Bitmap { region_blocks: 512, pages: 1 });
        let three = Bitmap { pages: 3, ..one };
        assert_eq!(three.for_blocks(3 * full + 1, pages(3)), Bitmap { region_blocks: 512, pages: 3 });
    }
}
