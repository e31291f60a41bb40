//! The metadata store: what a shard's checkpoint holds, and the pool's superblocks and catalog.
//!
//! ```text
//! root (2 copies) -> table pages (2 slots each) -> map pages (2 slots each) -> blocks         -> : place and checksum
//! ```
//! Between checkpoints both slots of a table page have it (`table_copies`).
//!
//! Invariants: nothing that a durable root may refer to is ever overwritten; nothing is believed that its parent's checksum
//! does not confirm. Descriptors are all in memory; map pages are cached up to a limit.
//!
//! Not here: what a change means, the order of changes, the log. A checkpoint is fuzzy: it holds every change made before it
//! was asked for, and some made meanwhile; its owner replays the log from the tail that it passed.

pub(crate) mod cache;
pub(crate) mod catalog;
pub(crate) mod catalog_store;
mod checkpoint;
mod damage;
pub(crate) mod flaw;
pub(crate) mod glance;
pub(crate) mod journal;
mod log_note;
mod lost;
pub(crate) mod media;
pub(crate) mod page;
mod reowned;
mod replace;
mod review;
pub(crate) mod superblocks;
pub(crate) mod table_copies;

pub use crate::format::table::{BLOCKS_INHERIT, BLOCKS_LOST, Descriptor, MAP_PAGE, UNUSABLE};
pub use catalog::{Catalog, Edit};
pub use catalog_store::CatalogStore;
pub(crate) use damage::Damage;
pub use journal::DirtyJournal;
pub use lost::LostBlocks;
pub(crate) use lost::lost_entries;
pub use page::{HOLE, INHERIT, LOST, Page, stored_crc};
pub(crate) use page::{NOWHERE, Tally};
pub(crate) use replace::Replacement;
pub use superblocks::{read_superblocks, wipe_superblocks, write_superblock};
pub(crate) use superblocks::{review_superblocks, survey_superblocks, wipe_start};

use crate::bands::{BandGeometry, BandOwner, Bands};
use crate::format::Malformed;
use crate::format::band::BandEntry;
use crate::format::root::{LogNote, Root, RootBands, TableRef, root_bytes};
use crate::format::superblock::{BandRun, REGIONS_MAX, Region, Shape, Superblock, SuperblockError, TABLE_DESCRIPTORS};
use crate::format::table::{MAP_SLOT_1, decode_table};
use crate::together::Together;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, LogTail};
use bdev::{Channel, DeviceInfo, Status};
use cache::Cache;
use checkpoint::Progress;
use glance::UnitTable;
use log_note::LogNotes;
pub(crate) use log_note::log_known;
use media::Media;
use reactor::{Buf, IoFuture, Reactor};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use table_copies::read_table;
use thiserror::Error;
use uuid::Uuid;
use zerocopy::FromZeros;

/// A structure on media, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A superblock.
    Superblock,
    /// The catalog.
    Catalog,
    /// A shard's root.
    Root {
        /// The shard.
        shard: u16,
    },
    /// A table page.
    TablePage {
        /// The shard.
        shard: u16,
        /// Its number.
        index: u32,
    },
    /// A shard's dirty journal.
    Journal {
        /// The shard.
        shard: u16,
    },
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Superblock => write!(f, "the superblock"),
            Object::Catalog => write!(f, "the catalog"),
            Object::Root { shard } => write!(f, "the root of shard {shard}"),
            Object::TablePage { shard, index } => write!(f, "table page {index} of shard {shard}"),
            Object::Journal { shard } => write!(f, "the dirty journal of shard {shard}"),
        }
    }
}

/// Why metadata could not be opened or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MetaError {
    /// The device failed.
    #[error("cannot {action} {object} at block {block}: {status}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        object: Object,
        /// Where, in blocks of 4 KiB.
        block: u64,
        /// How it ended.
        status: Status,
    },
    /// It is not what its parent says, and no other copy is valid.
    #[error("{object} at block {block} is damaged ({reason}); {}", remedy(.object))]
    Damaged {
        /// What.
        object: Object,
        /// Where, in blocks of 4 KiB.
        block: u64,
        /// In which way.
        reason: Malformed,
    },
    /// No superblock that can be used.
    #[error(transparent)]
    Superblock(SuperblockError),
    /// The device has become smaller.
    #[error("the device has {blocks} blocks of 4 KiB and the pool on it uses {needed}; give it its former size")]
    DeviceTooSmall {
        /// As it is.
        blocks: u64,
        /// As it was.
        needed: u64,
    },
    /// The device's blocks do not suit.
    #[error("a device with blocks of {0} bytes cannot be part of a pool; 512 and 4096 can")]
    BlockSize(u32),
    /// Too many volumes.
    #[error(
        "{volumes} volumes: the catalog has room for {room}; delete some, or create the pool with a larger catalog"
    )]
    CatalogFull {
        /// As asked.
        volumes: u64,
        /// Possible.
        room: u64,
    },
}

/// What to do about a damaged object.
fn remedy(object: &Object) -> &'static str {
    match object {
        Object::TablePage { .. } => {
            "its other copy does not help either; 'pool check' names what may be lost, and with --repair gives it up"
        }
        Object::Journal { .. } => {
            "'pool check --repair' makes it anew from the log, as long as that is whole, and nothing is lost by that; if the log is \
             damaged or gone as well, 'pool forget-log' gives up all of the shard"
        }
        _ => "restore the device from a copy",
    }
}

// State of an extent's map page, apart from its descriptor. Slots: 0 none, 1 slot 0, 2 slot 1.
/// The slot that the durable root leads to.
const DURABLE: u32 = 0b11;
/// The slot that the root being written leads to; 0 as the durable one, 3 to none.
const PENDING: u32 = 0b11 << 2;
const PENDING_SHIFT: u32 = 2;
const PENDING_NONE: u32 = 3;
/// A write of the map page is under way.
const WRITING: u32 = 1 << 4;
/// Written since the last flush that succeeded.
const UNFLUSHED: u32 = 1 << 5;
/// Its damage is in the log of messages already.
const REPORTED: u32 = 1 << 6;
/// The checksums of the units of the page that the descriptor leads to are known; see `glance`.
const UNITS_KNOWN: u32 = 1 << 7;
/// A write to slot 0 has failed last: of two that would do, slot 1 is tried next. (`glance` has the bits above.)
const SLOT_1_NEXT: u32 = 1 << 8;

/// Two of them share a line of the processor's cache. Zeroes are a free one.
#[derive(FromZeros)]
#[repr(align(32))]
struct Extent {
    descriptor: Cell<Descriptor>,
    /// Where in the cache its map page is, + 1.
    frame: Cell<u32>,
    state: Cell<u32>,
}

const _: () = assert!(size_of::<Extent>() == 32);

impl Extent {
    fn has(&self, flag: u32) -> bool {
        self.state.get() & flag != 0
    }

    fn put(&self, flag: u32, on: bool) {
        self.state.set(if on { self.state.get() | flag } else { self.state.get() & !flag });
    }

    /// The slot with the newest map page that was written.
    fn slot(&self) -> Option<u8> {
        slot_of(self.descriptor.get())
    }

    fn durable(&self) -> Option<u8> {
        (self.state.get() & DURABLE).checked_sub(1).map(|slot| slot as u8)
    }

    fn set_durable(&self, slot: Option<u8>) {
        self.state.set(self.state.get() & !DURABLE | slot.map_or(0, |slot| slot as u32 + 1));
    }

    fn pending(&self) -> u32 {
        (self.state.get() & PENDING) >> PENDING_SHIFT
    }

    fn set_pending(&self, pending: u32) {
        self.state.set(self.state.get() & !PENDING | pending << PENDING_SHIFT);
    }
}

fn slot_of(descriptor: Descriptor) -> Option<u8> {
    (descriptor.flags & MAP_PAGE != 0).then_some((descriptor.flags & MAP_SLOT_1 != 0) as u8)
}

/// A region, with what is computed from it once.
struct Span {
    region: Region,
    first_table: u32,
    /// Added to a block of the shard, wrapping, it gives the block of the device.
    offset: u64,
    extents: reactor::Table<Extent>,
    units: UnitTable,
}

#[derive(Clone, Copy, Default)]
struct Table {
    durable: Option<TableRef>,
    dirty: bool,
    /// As far as is known, the other slot does not have what the durable root leads to.
    is_alone: bool,
}

/// Counters, since opening unless they are sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaStats {
    /// Map pages in memory.
    pub resident_pages: usize,
    /// Of these, changed and not yet written.
    pub dirty_pages: usize,
    /// Map pages read.
    pub loads: u64,
    /// Parts of map pages read instead of them.
    pub glances: u64,
    /// Bytes of map and table pages written.
    pub page_bytes: u64,
    /// Bytes of roots written, and of what was made durable once more.
    pub root_bytes: u64,
    /// Map pages written.
    pub page_writes: u64,
    /// Table pages written.
    pub table_writes: u64,
    /// Checkpoints that succeeded.
    pub checkpoints: u64,
    /// Map pages dropped from memory.
    pub evictions: u64,
    /// Writes of map pages that failed.
    pub write_errors: u64,
    /// Map pages that were not what their descriptors say.
    pub corrupt_pages: u64,
    /// Bytes of descriptors, checksums of units, tables and resident pages.
    pub memory_bytes: usize,
}

#[derive(Default)]
struct Counters {
    loads: Cell<u64>,
    glances: Cell<u64>,
    page_writes: Cell<u64>,
    table_writes: Cell<u64>,
    checkpoints: Cell<u64>,
    evictions: Cell<u64>,
    write_errors: Cell<u64>,
    corrupt_pages: Cell<u64>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// One shard's metadata; see the module. On one reactor, used through `Rc`.
pub struct Meta {
    media: Media,
    pool: Uuid,
    shard: u16,
    epoch: u32,
    /// Those that there are, then places for those that growing adds.
    spans: Box<[OnceCell<Span>]>,
    tables: RefCell<Vec<Table>>,
    cache: Cache,
    /// Where the blocks of a shaped pool are.
    tally: Option<Tally>,
    progress: Progress,
    /// Extents whose pages cannot be read, which is in the way of a checkpoint.
    damaged: RefCell<Vec<(u32, Status)>>,
    /// Extents whose pages could not be written since this was asked for.
    refused: RefCell<BTreeSet<u32>>,
    log_notes: LogNotes,
    replacing: Cell<Option<replace::Pending>>,
    reowned: reowned::Reowned,
    lost: lost::LostTally,
    counters: Counters,
    /// See [`copy_tables_early`](Self::copy_tables_early).
    copies_early: Cell<bool>,
    /// See [`hide_early`](Self::hide_early).
    hides_early: Cell<bool>,
}

impl Meta {
    /// Writes the root of a new pool's shard: all extents are free.
    pub async fn format(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
        shard: u16,
        tail: LogTail,
    ) -> Result<(), MetaError> {
        let bands = vec![BandEntry::default(); superblock.bands.bands as usize];
        Meta::format_with(reactor, channel, info, superblock, shard, tail, bands).await
    }

    /// As [`format`](Self::format), with bands of which these are known.
    pub(crate) async fn format_with(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
        shard: u16,
        tail: LogTail,
        bands: Vec<BandEntry>,
    ) -> Result<(), MetaError> {
        let media = Media::new(reactor, channel, &info)?;
        let root = Root {
            shard,
            generation: 1,
            epoch: superblock.epoch,
            tail,
            log: LogNote::default(),
            tables: Vec::new(),
            bands,
        };
        for copy in 0..2 {
            let block = superblock.root_copy(shard, copy);
            let failed = |status| MetaError::Io { action: "write", object: Object::Root { shard }, block, status };
            media.write_durably(block, &root.encode(superblock.pool, superblock.bands.bands)).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Reads the newest root and its table pages, verifying each. `cache_bytes` bounds the map pages in memory. Reads only.
    pub async fn open(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
        shard: u16,
        cache_bytes: usize,
    ) -> Result<(Rc<Meta>, LogTail), MetaError> {
        Meta::open_over(reactor, channel, info, superblock, shard, cache_bytes, &[], None).await
    }

    /// As [`open`](Self::open), but nothing is known of the extents of the table pages `given_up`: they are free. `channel` is
    /// that of the device which has the regions; in a shaped pool, `bands` is that of the other one.
    #[allow(clippy::too_many_arguments)]
    pub(crate) async fn open_over(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
        shard: u16,
        cache_bytes: usize,
        given_up: &[u32],
        bands: Option<(Rc<dyn Channel>, DeviceInfo)>,
    ) -> Result<(Rc<Meta>, LogTail), MetaError> {
        let media = Media::new(reactor, channel, &info)?;
        let (mut root, copy) = newest_root(&media, superblock, shard).await?;
        given_up.iter().for_each(|table| root.tables[*table as usize] = None);
        let spans = spans_of(superblock, shard);
        let mut tables = vec![Table::default(); superblock.shard_table_pages(shard) as usize];
        let lost = lost::LostTally::default();
        for span in &spans {
            read_tables(&media, shard, span, &root, &mut tables, &lost).await?;
        }
        let places = spans.into_iter().map(OnceCell::from).chain(std::iter::repeat_with(OnceCell::new));
        let bands = bands.filter(|_| superblock.shape == Shape::Shaped);
        let bands = bands.map(|on| open_bands(reactor, on, superblock, shard, &root.bands));
        let meta = Meta {
            progress: Progress::new(superblock, shard, &root, copy, !media.is_cached()),
            media,
            pool: superblock.pool,
            shard,
            epoch: superblock.epoch,
            spans: places.take(REGIONS_MAX).collect(),
            tables: RefCell::new(tables),
            cache: Cache::new(cache_bytes, bands.is_some()),
            tally: bands.map(Tally::new),
            damaged: RefCell::default(),
            refused: RefCell::default(),
            log_notes: LogNotes::new(&root),
            replacing: Cell::new(None),
            reowned: reowned::Reowned::default(),
            lost,
            counters: Counters::default(),
            copies_early: Cell::new(false),
            hides_early: Cell::new(false),
        };
        Ok((Rc::new(meta), root.tail))
    }

    /// Takes the regions of a grown pool's superblock into use, whose extents are free, and the bands that came with them. The
    /// superblock is durable.
    pub fn grow(&self, superblock: &Superblock) {
        let known = self.spans().count();
        self.progress.root_bands.set(RootBands::of(superblock));
        if let Some(bands) = self.bands() {
            superblock.band_runs(self.shard).skip(known).for_each(|run| bands.add(run));
        }
        for (place, span) in self.spans.iter().zip(spans_of(superblock, self.shard)).skip(known) {
            let tables = (span.first_table + span.region.table_pages()) as usize;
            self.tables.borrow_mut().resize(tables, Table::default());
            assert!(place.set(span).is_ok(), "places after the known spans are empty");
        }
    }

    /// Number of extents of the shard.
    pub fn extents(&self) -> u32 {
        self.spans().map(|span| span.region.extents).sum()
    }

    /// What is known of an extent. Panics on one that there is not.
    #[inline]
    pub fn descriptor(&self, extent: u32) -> Descriptor {
        self.cell(extent).descriptor.get()
    }

    /// Changes what is known of an extent. Place and checksum of the map page are the store's own and kept, while volume,
    /// extent of the volume, [`BLOCKS_LOST`] and [`BLOCKS_INHERIT`] stay the same; when one of them changes, and on a free
    /// extent always, the map page is forgotten: all blocks are holes, or what the flags say.
    pub fn set_descriptor(&self, extent: u32, descriptor: Descriptor) {
        let cell = self.cell(extent);
        let old = cell.descriptor.get();
        let own = MAP_PAGE | MAP_SLOT_1;
        let blocks = BLOCKS_LOST | BLOCKS_INHERIT;
        let same = (old.volume, old.vextent, old.flags & blocks)
            == (descriptor.volume, descriptor.vextent, descriptor.flags & blocks);
        let mut new = Descriptor { map_crc: 0, flags: descriptor.flags & !own, ..descriptor };
        if same && !descriptor.is_free() {
            (new.map_crc, new.flags) = (old.map_crc, new.flags | old.flags & own);
        } else {
            self.forget_page(extent);
            cell.put(UNITS_KNOWN, false);
        }
        if new != old {
            self.describe(extent, new);
            self.table_changed(extent);
        }
        if (new.volume, new.vextent) != (old.volume, old.vextent) {
            self.reowned.note(extent);
        }
    }

    /// Gives an extent another owner, with its map page.
    pub(crate) fn hand_over(&self, extent: u32, volume: u32, vextent: u32) {
        let cell = self.cell(extent);
        let old = cell.descriptor.get();
        debug_assert!(!old.is_free());
        self.describe(extent, Descriptor { volume, vextent, ..old });
        self.table_changed(extent);
        self.reowned.note(extent);
    }

    /// The block on the capacity device, in blocks of 4 KiB, of a block of the shard.
    #[inline]
    pub fn data_block(&self, block: u32) -> u64 {
        self.span(block / EXTENT_BLOCKS).offset.wrapping_add(block as u64)
    }

    /// Where the blocks of a shaped pool are.
    pub(crate) fn bands(&self) -> Option<&Rc<Bands>> {
        self.tally.as_ref().map(|tally| &tally.bands)
    }

    /// How the bands hear of what is live.
    pub(crate) fn tally(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }

    /// Blocks of a map page.
    fn page_blocks(&self) -> usize {
        1 + self.tally.is_some() as usize
    }

    /// Extents for whose pages, which could not be read, the last checkpoint failed, and how: it can succeed when they have
    /// new ones.
    pub fn take_damaged(&self) -> Vec<(u32, Status)> {
        self.damaged.take()
    }

    /// Extents whose map pages the device has refused to write since this was asked for, and has not taken since.
    pub fn take_refused(&self) -> BTreeSet<u32> {
        self.refused.take()
    }

    /// Counters.
    pub fn stats(&self) -> MetaStats {
        let resident_pages = self.cache.resident();
        let counters = &self.counters;
        MetaStats {
            resident_pages,
            dirty_pages: self.cache.dirty_pages(),
            loads: counters.loads.get(),
            glances: counters.glances.get(),
            page_bytes: self.media.written().pages(),
            root_bytes: self.media.written().durable(),
            page_writes: counters.page_writes.get(),
            table_writes: counters.table_writes.get(),
            checkpoints: counters.checkpoints.get(),
            evictions: counters.evictions.get(),
            write_errors: counters.write_errors.get(),
            corrupt_pages: counters.corrupt_pages.get(),
            memory_bytes: self.extents() as usize * size_of::<Extent>()
                + self.spans().map(|span| span.units.memory_bytes()).sum::<usize>()
                + self.tables.borrow().len() * size_of::<Table>()
                + resident_pages * cache::page_memory(self.tally.is_some()),
        }
    }

    fn spans(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter().map_while(OnceCell::get)
    }

    #[inline]
    fn span(&self, extent: u32) -> &Span {
        match self.spans[0].get() {
            Some(first) if extent < first.region.extents => first,
            _ => self.later_span(extent),
        }
    }

    /// As [`span`](Self::span) for what was added by growing.
    fn later_span(&self, extent: u32) -> &Span {
        let has = |span: &&Span| extent - span.region.first_extent < span.region.extents;
        self.spans().find(has).unwrap_or_else(|| panic!("shard {} has no extent {extent}", self.shard))
    }

    #[inline]
    fn cell(&self, extent: u32) -> &Extent {
        let span = self.span(extent);
        &span.extents[(extent - span.region.first_extent) as usize]
    }

    fn map_block(&self, extent: u32, slot: u8) -> u64 {
        let region = &self.span(extent).region;
        region.map_slot(extent - region.first_extent, slot)
    }

    fn table_changed(&self, extent: u32) {
        let span = self.span(extent);
        let table = span.first_table + (extent - span.region.first_extent) / TABLE_DESCRIPTORS;
        self.tables.borrow_mut()[table as usize].dirty = true;
    }

    /// Block of a slot of a table page, and the extents that it describes.
    fn table_place(&self, table: u32, slot: u8) -> (u64, &[Extent]) {
        let has = |span: &&Span| table - span.first_table < span.region.table_pages();
        let span = self.spans().find(has).expect("tables are those of the spans");
        let index = table - span.first_table;
        let first = index * TABLE_DESCRIPTORS;
        let end = (first + TABLE_DESCRIPTORS).min(span.region.extents);
        (span.region.table_slot(index, slot), &span.extents[first as usize..end as usize])
    }
}

/// The bands of a shaped pool's shard, of which a root says that much; those that it does not have are free.
pub(crate) fn open_bands(
    reactor: &Rc<Reactor>,
    (channel, info): (Rc<dyn Channel>, DeviceInfo),
    superblock: &Superblock,
    shard: u16,
    table: &[BandEntry],
) -> Rc<Bands> {
    let layout = superblock.bands;
    let runs: Vec<BandRun> = superblock.band_runs(shard).collect();
    let geometry = BandGeometry {
        first_block: runs[0].start,
        bands: runs.iter().map(|run| run.bands).sum(),
        band_blocks: layout.band_blocks,
        unit_blocks: layout.unit_blocks,
    };
    let salt = crate::format::record::salt(superblock.pool_prefix(), shard);
    let owner = BandOwner { shard, salt, epoch: superblock.epoch };
    Bands::new(reactor, channel, &info, geometry, &runs[1..], owner, table)
}

fn spans_of(superblock: &Superblock, shard: u16) -> Vec<Span> {
    let mut first_table = 0;
    let span = |region: &Region| {
        let offset = region.data_start().wrapping_sub(region.first_extent as u64 * EXTENT_BLOCKS as u64);
        let (extents, units) = (reactor::Table::zeroed(region.extents as usize), UnitTable::new(region.extents));
        let span = Span { region: *region, first_table, offset, extents, units };
        first_table += region.table_pages();
        span
    };
    superblock.shard_regions(shard).map(span).collect()
}

/// The newer valid root and its copy. One copy may be torn, or unreadable because it was being written.
async fn newest_root(media: &Media, superblock: &Superblock, shard: u16) -> Result<(Root, u8), MetaError> {
    let mut best: Option<(Root, u8)> = None;
    let mut error = None;
    for copy in 0..2 {
        match read_root(media, superblock, shard, copy).await {
            Ok(root) if best.as_ref().is_none_or(|(best, _)| root.generation > best.generation) => {
                best = Some((root, copy));
            }
            Ok(_) => {}
            Err(found) => error = Some(found),
        }
    }
    best.ok_or_else(|| error.expect("a copy is valid or has an error"))
}

/// Both copies of a root, as far as they are valid.
pub(crate) async fn read_roots(media: &Media, superblock: &Superblock, shard: u16) -> [Option<Root>; 2] {
    let of_copy = async |copy| read_root(media, superblock, shard, copy).await.ok();
    [of_copy(0).await, of_copy(1).await]
}

/// One copy of a root.
pub(crate) async fn read_root(media: &Media, superblock: &Superblock, shard: u16, copy: u8) -> Result<Root, MetaError> {
    let (object, block) = (Object::Root { shard }, superblock.root_copy(shard, copy));
    let tables = superblock.shard_table_pages(shard);
    let bands = RootBands::of(superblock);
    let blocks = (root_bytes(tables, bands.all, bands.created) as usize).div_ceil(BLOCK_BYTES);
    let damaged = |reason| MetaError::Damaged { object, block, reason };
    let is_right = |bytes: &[u8]| Root::decode(bytes, superblock.pool, shard, bands).is_ok();
    let bytes = media.read_right_object(object, block, blocks, is_right).await?;
    let root = Root::decode(&bytes, superblock.pool, shard, bands).map_err(damaged)?;
    if root.tables.len() > tables as usize {
        return Err(damaged(Malformed("it has more table pages than the shard")));
    }
    Ok(root)
}

/// Reads the table pages of a region into descriptors.
async fn read_tables(
    media: &Media,
    shard: u16,
    span: &Span,
    root: &Root,
    tables: &mut [Table],
    lost: &lost::LostTally,
) -> Result<(), MetaError> {
    /// Table pages of one read at most, both slots of each.
    const BATCH: u32 = 32;
    /// Reads under way at once.
    const READS_MAX: usize = 4;
    let batch_pages = (media.blocks_per_read() as u32 / 2).clamp(1, BATCH);
    let all = span.region.table_pages();
    let is_written = |table: u32| matches!(root.tables.get((span.first_table + table) as usize), Some(Some(_)));
    let batches = (0..all).step_by(batch_pages as usize).map(|index| index..all.min(index + batch_pages));
    let mut asked = batches.filter(|batch| batch.clone().any(is_written));
    let mut reads = Together::new();
    for batch in asked.clone() {
        while reads.len() < READS_MAX
            && let Some(next) = asked.next()
        {
            let (block, pages) = (span.region.table_slot(next.start, 0), next.end - next.start);
            reads.push(IoFuture::new(read_slots(media, block, pages)));
        }
        let bytes = reads.first().await.expect("the reads of the batches are begun in their order");
        let (index, pages) = (batch.start, batch.end - batch.start);
        for page in 0..pages {
            let table = span.first_table + index + page;
            let Some(Some(wanted)) = root.tables.get(table as usize) else { continue };
            let object = Object::TablePage { shard, index: table };
            let slots = |bytes| &Buf::as_slice(bytes)[page as usize * 2 * BLOCK_BYTES..][..2 * BLOCK_BYTES];
            let both = bytes.as_ref().map(slots);
            let found = read_table(media, object, &span.region, index + page, *wanted, both).await?;
            let block = span.region.table_slot(index + page, found.slot);
            let damaged = |reason| MetaError::Damaged { object, block, reason };
            let is_moved = found.slot != wanted.slot;
            if is_moved {
                tracing::warn!("{object} is damaged; its other copy, at block {block}, is valid and is used");
            }
            // What is left of a damaged page is never the place of the only valid one: the next checkpoint writes it there.
            let durable = Some(TableRef { slot: found.slot, ..*wanted });
            tables[table as usize] = Table { durable, dirty: is_moved, is_alone: found.is_alone };
            let first = (index + page) * TABLE_DESCRIPTORS;
            let end = (first + TABLE_DESCRIPTORS).min(span.region.extents);
            let descriptors = decode_table(&found.bytes, shard, table).map_err(damaged)?;
            for (extent, descriptor) in span.extents[first as usize..end as usize].iter().zip(descriptors) {
                let descriptor = descriptor.map_err(damaged)?;
                extent.descriptor.set(descriptor);
                lost.add(descriptor);
                extent.set_durable(slot_of(descriptor));
            }
        }
    }
    Ok(())
}

/// Both slots of some table pages, in memory that is there anyway; `None` when they cannot be read together, as when an unused slot
/// cannot be read.
async fn read_slots(media: &Media, block: u64, pages: u32) -> Option<Buf> {
    let blocks = pages as usize * 2;
    match blocks <= media.blocks_per_read() {
        true => media.read(block, media.buffer(blocks).await).await.ok(),
        false => None,
    }
}
