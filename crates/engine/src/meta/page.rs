//! Map pages in memory: handles on shared values, no lock, no allocation per access.

use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// The block was never written, or trimmed: it reads as zeroes.
pub const HOLE: u32 = 0xFFFF_FFFF;
/// The block's content is lost: reading it is an error until it is written again.
pub const LOST: u32 = 0xFFFF_FFFE;
/// The block is the parent extent's (clones).
pub const INHERIT: u32 = 0xFFFF_FFFD;

/// The map entry of a block with this checksum: one that equals a reserved value is stored without its top bit.
#[inline]
pub fn stored_crc(crc: u32) -> u32 {
    if crc >= INHERIT { crc & 0x7FFF_FFFF } else { crc }
}

pub(crate) struct PageCell {
    pub(crate) extent: u32,
    /// Changed since it was last copied out.
    dirty: Cell<bool>,
    /// Used since the clock's hand last passed.
    pub(crate) referenced: Cell<bool>,
    /// The extent has forgotten this page; changes to it go nowhere.
    detached: Cell<bool>,
    /// Dirty pages of the cache.
    dirty_pages: Rc<Cell<usize>>,
    values: [Cell<u32>; EXTENT_BLOCKS as usize],
}

/// What a page begins with.
pub(crate) enum Content<'a> {
    /// The same for every block.
    All(u32),
    /// A page from the media.
    Read(&'a [u8]),
}

impl PageCell {
    pub(crate) fn new(dirty_pages: &Rc<Cell<usize>>) -> PageCell {
        PageCell {
            extent: 0,
            dirty: Cell::new(false),
            referenced: Cell::new(true),
            detached: Cell::new(false),
            dirty_pages: dirty_pages.clone(),
            values: std::array::from_fn(|_| Cell::new(HOLE)),
        }
    }

    /// Makes it the page of an extent, before anybody else has it.
    pub(crate) fn renew(&mut self, extent: u32, content: Content<'_>) {
        debug_assert!(!self.dirty.get());
        self.extent = extent;
        self.referenced.set(true);
        self.detached.set(false);
        match content {
            Content::All(value) => self.values.iter().for_each(|cell| cell.set(value)),
            Content::Read(bytes) => {
                debug_assert_eq!(bytes.len(), BLOCK_BYTES);
                for (value, bytes) in self.values.iter().zip(bytes.chunks_exact(4)) {
                    value.set(u32::from_le_bytes(bytes.try_into().expect("four bytes")));
                }
            }
        }
    }

    /// Copies the page out; from here on it is clean.
    pub(crate) fn copy_out(&self, bytes: &mut [u8]) {
        debug_assert_eq!(bytes.len(), BLOCK_BYTES);
        for (value, bytes) in self.values.iter().zip(bytes.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&value.get().to_le_bytes());
        }
        self.set_clean();
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.detached.get()
    }

    pub(crate) fn mark_dirty(&self) {
        if !self.dirty.get() && !self.detached.get() {
            self.dirty.set(true);
            self.dirty_pages.set(self.dirty_pages.get() + 1);
        }
    }

    fn set_clean(&self) {
        if self.dirty.replace(false) {
            self.dirty_pages.set(self.dirty_pages.get() - 1);
        }
    }

    pub(crate) fn detach(&self) {
        self.set_clean();
        self.detached.set(true);
    }
}

/// A handle on a resident map page. While there are handles the page stays in memory: hold one for an operation, not for
/// ever. After [`set_descriptor`](super::Meta::set_descriptor) has made the extent another one, old handles lead nowhere.
#[derive(Clone)]
pub struct Page(pub(crate) Rc<PageCell>);

impl Page {
    /// The extent of the shard.
    pub fn extent(&self) -> u32 {
        self.0.extent
    }

    /// The entry of a block of the extent.
    #[inline]
    pub fn get(&self, index: u32) -> u32 {
        self.0.values[index as usize].get()
    }

    /// Changes the entry of a block.
    #[inline]
    pub fn set(&self, index: u32, value: u32) {
        if self.0.values[index as usize].replace(value) != value {
            self.0.mark_dirty();
        }
    }

    /// Changes the entries of a run of blocks.
    pub fn fill(&self, range: Range<u32>, value: u32) {
        for entry in &self.0.values[range.start as usize..range.end as usize] {
            if entry.replace(value) != value {
                self.0.mark_dirty();
            }
        }
    }
}
