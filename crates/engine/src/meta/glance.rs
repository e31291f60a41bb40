//! A glance at a map page that is not in memory: some of its entries, read without the rest.
//!
//! The descriptor of an extent confirms its map page as a whole. When a page has been read, or is written, the checksums of
//! its eighths are noted beside the descriptor, in memory alone; from then on an eighth can be confirmed by itself. So what a
//! glance gives is as sure as a loaded page, and costs 512 bytes instead of 4 KiB and a place in the cache. They are renewed
//! and forgotten together with the place and checksum of the page in the descriptor.
//!
//! Pages that are missed again and again belong into the cache: a glance is refused for those, and while the cache has room.

use super::{Extent, Meta, count};
use crate::meta::media::PartRead;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use base::crc32c;
use bdev::Done;
use std::cell::{Cell, OnceCell};
use std::ops::Range;

/// Bytes that are confirmed by themselves: what the smallest block of a device holds.
const UNIT_BYTES: usize = 512;
const UNITS: usize = BLOCK_BYTES / UNIT_BYTES;
/// Entries in a unit.
const UNIT_ENTRIES: u32 = EXTENT_BLOCKS / UNITS as u32;
/// Extents whose units' checksums are made room for together: 4 KiB.
const CHUNK: usize = 128;
/// A page that is missed so often while as many misses pass as the cache has pages is loaded. With uniform addresses over twice
/// as many pages as the cache holds that happens to one page in 70.
const MISSES_TO_LOAD: u32 = 3;

// Beside the flags in an extent's state: how often its page was missed in the window named above it.
const MISSES_SHIFT: u32 = 9;
const MISSES: u32 = 0b11 << MISSES_SHIFT;
const WINDOW_SHIFT: u32 = 11;
const BELOW_MISSES: u32 = (1 << MISSES_SHIFT) - 1;
const _: () = assert!(MISSES_TO_LOAD <= MISSES >> MISSES_SHIFT);

/// Checksums of a page's units.
pub(super) type UnitCrcs = [u32; UNITS];

/// Those of a page as it is on media.
pub(super) fn unit_crcs(page: &[u8]) -> UnitCrcs {
    std::array::from_fn(|unit| crc32c(&page[unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES]))
}

type Chunk = OnceCell<Box<[Cell<UnitCrcs>]>>;

/// The checksums of all extents of a region; memory is taken as extents come into use.
pub(super) struct UnitTable(Box<[Chunk]>);

impl UnitTable {
    pub(super) fn new(extents: u32) -> UnitTable {
        UnitTable((0..(extents as usize).div_ceil(CHUNK)).map(|_| OnceCell::new()).collect())
    }

    fn get(&self, index: u32) -> Option<&Cell<UnitCrcs>> {
        Some(&self.0[index as usize / CHUNK].get()?[index as usize % CHUNK])
    }

    fn set(&self, index: u32, crcs: UnitCrcs) {
        let chunk = || (0..CHUNK).map(|_| Cell::default()).collect();
        self.0[index as usize / CHUNK].get_or_init(chunk)[index as usize % CHUNK].set(crcs);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let chunks = self.0.iter().filter(|chunk| chunk.get().is_some()).count();
        self.0.len() * size_of::<Chunk>() + chunks * CHUNK * size_of::<UnitCrcs>()
    }
}

/// Counts misses in windows of as many as the cache has pages.
#[derive(Default)]
pub(super) struct Misses {
    window: Cell<u32>,
    left: Cell<usize>,
}

impl Misses {
    /// Notes that an extent's page was missed. How often it was in this window.
    fn note(&self, cell: &Extent, window_len: usize) -> u32 {
        if self.left.get() == 0 {
            self.left.set(window_len);
            self.window.set(self.window.get().wrapping_add(1));
        }
        self.left.set(self.left.get() - 1);
        let (state, window) = (cell.state.get(), self.window.get() << WINDOW_SHIFT);
        let before = if state >> WINDOW_SHIFT == window >> WINDOW_SHIFT { (state & MISSES) >> MISSES_SHIFT } else { 0 };
        let misses = (before + 1).min(MISSES_TO_LOAD);
        cell.state.set(state & BELOW_MISSES | misses << MISSES_SHIFT | window);
        misses
    }
}

/// A glance that has been begun.
pub(crate) struct Glance {
    read: PartRead,
    at: GlanceAt,
}

#[derive(Clone, Copy)]
struct GlanceAt {
    extent: u32,
    first_unit: usize,
    units: usize,
    /// Where the units begin in what is read.
    skip: usize,
}

/// What a glance has read, to be judged by [`Meta::entries`].
pub(crate) struct Glanced {
    done: Done,
    at: GlanceAt,
}

impl Glance {
    /// What was read, when that is known already.
    #[expect(clippy::result_large_err, reason = "what is begun is moved on, not boxed: an allocation costs more")]
    #[inline]
    pub(crate) fn try_ready(self) -> Result<Glanced, Glance> {
        match self.read {
            Ok(done) => Ok(Glanced { done, at: self.at }),
            read => Err(Glance { read, ..self }),
        }
    }

    pub(crate) async fn ended(self) -> Glanced {
        let done = match self.read {
            Ok(done) => done,
            Err(begun) => begun.await,
        };
        Glanced { done, at: self.at }
    }
}

/// Entries that are what the store says they are.
pub(crate) struct Entries<'a> {
    first: u32,
    bytes: &'a [u8],
}

impl Entries<'_> {
    /// The entry of a block of the extent, one of those that were asked for.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> u32 {
        let at = (index - self.first) as usize * 4;
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"))
    }
}

impl Meta {
    /// Begins to read the entries of some blocks of an extent whose page is not in memory. `None` when the page should be loaded.
    pub(crate) fn glance(&self, extent: u32, blocks: Range<u32>) -> Option<Glance> {
        let cell = self.cell(extent);
        let misses = self.cache.misses.note(cell, self.cache.pages_max());
        if !cell.has(super::UNITS_KNOWN) || misses >= MISSES_TO_LOAD || self.cache.has_room() {
            return None;
        }
        let slot = cell.slot()?;
        let first_unit = (blocks.start / UNIT_ENTRIES) as usize;
        let units = blocks.end.div_ceil(UNIT_ENTRIES) as usize - first_unit;
        let block = self.map_block(extent, slot);
        let (read, skip) = self.media.begin_part(block, first_unit * UNIT_BYTES, units * UNIT_BYTES)?;
        count(&self.counters.glances);
        Some(Glance { read, at: GlanceAt { extent, first_unit, units, skip } })
    }

    /// The entries that a glance has read, if they are what the page of the extent on media has to hold now.
    #[inline]
    pub(crate) fn entries<'a>(&self, glanced: &'a Glanced) -> Option<Entries<'a>> {
        let Glanced { done, at } = glanced;
        let [buf] = done.io.bufs.as_slice() else { return None };
        let bytes = buf.as_slice().get(at.skip..at.skip + at.units * UNIT_BYTES)?;
        let cell = self.cell(at.extent);
        if !done.status.is_ok() || !cell.has(super::UNITS_KNOWN) {
            return None;
        }
        let crcs = self.unit_cell(at.extent)?.get();
        let units = bytes.chunks_exact(UNIT_BYTES).zip(&crcs[at.first_unit..]);
        let confirmed = units.fold(true, |all, (unit, crc)| all & (crc32c(unit) == *crc));
        confirmed.then_some(Entries { first: at.first_unit as u32 * UNIT_ENTRIES, bytes })
    }

    /// The page that the extent's descriptor leads to from now on has these units.
    pub(super) fn set_units(&self, extent: u32, crcs: UnitCrcs) {
        let span = self.span(extent);
        span.units.set(extent - span.region.first_extent, crcs);
        self.cell(extent).put(super::UNITS_KNOWN, true);
    }

    fn unit_cell(&self, extent: u32) -> Option<&Cell<UnitCrcs>> {
        let span = self.span(extent);
        span.units.get(extent - span.region.first_extent)
    }
}
