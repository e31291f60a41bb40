//! Map pages in memory: handles on shared values, no lock, no allocation per access.
//!
//! In a shaped pool a page says of each block where it is, beside its checksum, and the counts of what is live in the bands
//! follow every change.

use crate::bands::{BandAt, Bands};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// The block was never written, or trimmed: it reads as zeroes.
pub const HOLE: u32 = 0xFFFF_FFFF;
/// The block's content is lost: reading it is an error until it is written again.
pub const LOST: u32 = 0xFFFF_FFFE;
/// The block is what lies below the layer shows there; a hole where nothing does.
pub const INHERIT: u32 = 0xFFFF_FFFD;

/// The map entry of a block with this checksum: one that equals a reserved value is stored without its top bit.
#[inline]
pub fn stored_crc(crc: u32) -> u32 {
    if crc >= INHERIT { crc & 0x7FFF_FFFF } else { crc }
}

/// The place of what has none, and of blocks that are where their extent is.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Bytes of a map page.
pub(crate) fn page_bytes(placed: bool) -> usize {
    BLOCK_BYTES * (1 + placed as usize)
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
    placed: Option<Placed>,
}

/// Where the blocks of an extent are, of those that have a checksum.
struct Placed {
    tally: Tally,
    places: Box<[Cell<u32>]>,
}

/// Tells the bands what of them is live.
#[derive(Clone)]
pub(crate) struct Tally {
    pub(crate) bands: Rc<Bands>,
    /// The extents before this one have been counted; all of them unless a recount is under way.
    counted: Rc<Cell<u32>>,
}

impl Tally {
    pub(crate) fn new(bands: Rc<Bands>) -> Tally {
        Tally { bands, counted: Rc::new(Cell::new(u32::MAX)) }
    }

    /// What is live in extents before this one is told from now on, and of others it is not.
    pub(crate) fn count_to(&self, extent: u32) {
        self.counted.set(extent);
    }

    fn counts(&self, page: &PageCell) -> bool {
        !page.is_detached() && page.extent < self.counted.get()
    }
}

/// What a page begins with.
pub(crate) enum Content<'a> {
    /// The same for every block.
    All(u32),
    /// A page from the media.
    Read(&'a [u8]),
}

impl PageCell {
    pub(crate) fn new(dirty_pages: &Rc<Cell<usize>>, tally: Option<&Tally>) -> PageCell {
        let places = || (0..EXTENT_BLOCKS).map(|_| Cell::new(NOWHERE)).collect();
        let placed = tally.map(|tally| Placed { tally: tally.clone(), places: places() });
        PageCell {
            extent: 0,
            dirty: Cell::new(false),
            referenced: Cell::new(true),
            detached: Cell::new(false),
            dirty_pages: dirty_pages.clone(),
            values: std::array::from_fn(|_| Cell::new(HOLE)),
            placed,
        }
    }

    /// Makes it the page of an extent, before anybody else has it.
    pub(crate) fn renew(&mut self, extent: u32, content: Content<'_>) {
        debug_assert!(!self.dirty.get());
        self.extent = extent;
        self.referenced.set(true);
        self.detached.set(false);
        match content {
            Content::All(value) => {
                self.values.iter().for_each(|cell| cell.set(value));
                self.places().iter().for_each(|place| place.set(NOWHERE));
            }
            Content::Read(bytes) => {
                debug_assert_eq!(bytes.len(), page_bytes(self.placed.is_some()));
                let (values, places) = bytes.split_at(BLOCK_BYTES);
                for (cells, bytes) in [(&self.values[..], values), (self.places(), places)] {
                    for (cell, bytes) in cells.iter().zip(bytes.as_chunks().0) {
                        cell.set(u32::from_le_bytes(*bytes));
                    }
                }
            }
        }
    }

    /// Copies the page out; from here on it is clean.
    pub(crate) fn copy_out(&self, bytes: &mut [u8]) {
        debug_assert_eq!(bytes.len(), page_bytes(self.placed.is_some()));
        let (values, places) = bytes.split_at_mut(BLOCK_BYTES);
        for (cells, bytes) in [(&self.values[..], values), (self.places(), places)] {
            for (cell, bytes) in cells.iter().zip(bytes.as_chunks_mut().0) {
                *bytes = cell.get().to_le_bytes();
            }
        }
        self.set_clean();
    }

    fn places(&self) -> &[Cell<u32>] {
        self.placed.as_ref().map_or(&[], |placed| &placed.places)
    }

    /// The block is no longer where the page says.
    #[inline]
    fn leave(&self, index: u32) {
        let Some(placed) = &self.placed else { return };
        let old = placed.places[index as usize].replace(NOWHERE);
        if self.values[index as usize].get() < INHERIT && old != NOWHERE && placed.tally.counts(self) {
            placed.tally.bands.dead(BandAt(old));
        }
    }

    /// The extent is given back: nothing that it has is live any more.
    pub(crate) fn leave_all(&self) {
        if self.placed.is_some() {
            (0..EXTENT_BLOCKS).for_each(|index| self.leave(index));
        }
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

    /// Where a block with a checksum is, in a shaped pool.
    #[inline]
    pub(crate) fn band_at(&self, index: u32) -> BandAt {
        BandAt(self.0.places().get(index as usize).map_or(NOWHERE, Cell::get))
    }

    /// Whether the extent still has this page.
    pub(crate) fn is_current(&self) -> bool {
        !self.0.is_detached()
    }

    /// Tells what of the bands is live by this page, which was not counted before.
    pub(crate) fn count_live(&self) {
        let Some(placed) = &self.0.placed else { return };
        let live = self.0.values.iter().zip(&placed.places).filter(|(value, _)| value.get() < INHERIT);
        live.for_each(|(_, place)| placed.tally.bands.live(BandAt(place.get())));
    }

    /// A block of a shaped pool is somewhere else from now on.
    pub(crate) fn place(&self, index: u32, value: u32, at: BandAt) {
        debug_assert!(value < INHERIT);
        self.0.leave(index);
        self.0.values[index as usize].set(value);
        self.0.places()[index as usize].set(at.0);
        if let Some(placed) = self.0.placed.as_ref().filter(|placed| placed.tally.counts(&self.0)) {
            placed.tally.bands.live(at);
        }
        self.0.mark_dirty();
    }

    /// Changes the entry of a block, in a shaped pool to one without a place.
    #[inline]
    pub fn set(&self, index: u32, value: u32) {
        self.0.leave(index);
        if self.0.values[index as usize].replace(value) != value {
            self.0.mark_dirty();
        }
    }

    /// Changes the entries of a run of blocks.
    pub fn fill(&self, range: Range<u32>, value: u32) {
        range.for_each(|index| self.set(index, value));
    }
}
