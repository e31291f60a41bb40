//! Lost blocks, counted as descriptors change and as map pages are read and written: what is lost is known without a scrub.

use super::Meta;
use super::page::LOST;
use crate::format::table::{BLOCKS_LOST, Descriptor, MAP_PAGE};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// What is lost of the extents of which all blocks were lost once. Of one whose map page has been changed and not yet written, it
/// is what the page said before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostBlocks {
    /// Blocks that are lost.
    pub blocks: u64,
    /// Extents that they are in.
    pub extents: u32,
    /// Extents besides that may have some: their map pages have not been seen since the pool was opened.
    pub uncounted: u32,
}

/// See [`LostBlocks`].
#[derive(Default)]
pub(super) struct LostTally {
    /// Extents without a map page, of which all is lost.
    whole: Cell<u32>,
    /// Extents with a map page that lost all of their blocks once, or were given another place.
    partly: Cell<u32>,
    /// Lost blocks of these, by what their pages say.
    counted: RefCell<BTreeMap<u32, u16>>,
}

impl LostTally {
    fn class(&self, descriptor: Descriptor) -> Option<&Cell<u32>> {
        let flags = descriptor.flags;
        match () {
            () if descriptor.is_free() || flags & BLOCKS_LOST == 0 => None,
            () if flags & MAP_PAGE == 0 => Some(&self.whole),
            () => Some(&self.partly),
        }
    }

    fn uncounted(&self) -> u32 {
        self.partly.get().saturating_sub(self.counted.borrow().len() as u32)
    }

    /// An extent that was free has this descriptor.
    pub(super) fn add(&self, descriptor: Descriptor) {
        if let Some(class) = self.class(descriptor) {
            class.set(class.get() + 1);
        }
    }

    fn remove(&self, descriptor: Descriptor) {
        if let Some(class) = self.class(descriptor) {
            class.set(class.get() - 1);
        }
    }
}

/// Blocks that a map page calls lost.
pub(crate) fn lost_entries(page: &[u8]) -> u16 {
    page[..BLOCK_BYTES].chunks_exact(4).filter(|entry| *entry == LOST.to_le_bytes()).count() as u16
}

impl Meta {
    /// What is lost.
    pub fn lost_blocks(&self) -> LostBlocks {
        let (whole, counted) = (self.lost.whole.get(), self.lost.counted.borrow());
        let some = counted.values().filter(|blocks| **blocks > 0);
        let blocks: u64 = some.clone().map(|blocks| u64::from(*blocks)).sum();
        LostBlocks {
            blocks: u64::from(whole) * u64::from(EXTENT_BLOCKS) + blocks,
            extents: whole + some.count() as u32,
            uncounted: self.lost.uncounted(),
        }
    }

    /// Whether an extent may have lost blocks, and how many is not known until its map page is read.
    pub(crate) fn is_lost_uncounted(&self, extent: u32) -> bool {
        let flags = self.descriptor(extent).flags;
        flags & (BLOCKS_LOST | MAP_PAGE) == BLOCKS_LOST | MAP_PAGE && !self.lost.counted.borrow().contains_key(&extent)
    }

    /// Whether there is such an extent.
    pub(crate) fn has_lost_uncounted(&self) -> bool {
        self.lost.uncounted() > 0
    }

    /// Gives an extent another descriptor.
    pub(super) fn describe(&self, extent: u32, descriptor: Descriptor) {
        let old = self.cell(extent).descriptor.replace(descriptor);
        if (old.flags | descriptor.flags) & BLOCKS_LOST != 0 {
            self.lost.remove(old);
            self.lost.add(descriptor);
            if descriptor.flags & (BLOCKS_LOST | MAP_PAGE) != BLOCKS_LOST | MAP_PAGE {
                self.lost.counted.borrow_mut().remove(&extent);
            }
        }
    }

    /// Lost blocks by the map page of an extent, where there may be any.
    pub(super) fn count_lost(&self, extent: u32, page: &[u8]) -> Option<u16> {
        (self.descriptor(extent).flags & BLOCKS_LOST != 0).then(|| lost_entries(page))
    }

    /// The map page that the descriptor of an extent leads to has so many.
    pub(super) fn note_lost(&self, extent: u32, lost: u16) {
        self.lost.counted.borrow_mut().insert(extent, lost);
    }
}
