//! Map pages in memory: a bounded cache with a clock's hand, and how a page is read and written.
//!
//! ```text
//! clean -> dirty (set) -> being written: copied out, clean again (and dirty again if changed) -> written: may be dropped
//! ```
//! A page is written to a slot that neither the durable root nor the one being written leads to. There may be none for
//! pages that change while a checkpoint ends; they stay in memory until then. A page in use is never dropped.

use super::glance::{Misses, unit_crcs};
use super::page::{Content, HOLE, INHERIT, LOST, Page, PageCell, page_bytes};
use super::{Extent, Meta, REPORTED, SLOT_1_NEXT, UNFLUSHED, UNITS_KNOWN, WRITING, count, slot_of};
use crate::format::table::{BLOCKS_INHERIT, BLOCKS_LOST, Descriptor, MAP_PAGE, MAP_SLOT_1};
use base::crc32c;
use bdev::Status;
use reactor::Buf;
use reactor::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Writes of map or table pages under way at once.
pub(super) const WRITES_MAX: usize = 32;
/// Fewest pages that a cache holds, whatever its limit says: enough for each load under way to have one.
const PAGES_MIN: usize = 4;
/// Frames that the hand passes at a time once whole rounds have found no page that can be dropped.
const LOOK_ON: usize = 256;
/// Most pages kept without content, so that dropping one and loading another costs no allocation.
const SPARE_MAX: usize = 64;

/// Bytes of memory that a resident page takes.
pub(super) fn page_memory(placed: bool) -> usize {
    size_of::<PageCell>() + page_bytes(placed) - page_bytes(false)
}

pub(super) struct Cache {
    frames: RefCell<Vec<Option<Rc<PageCell>>>>,
    free: RefCell<Vec<u32>>,
    pages_max: usize,
    resident: Cell<usize>,
    dirty_pages: Rc<Cell<usize>>,
    hand: Cell<usize>,
    /// Frames that the hand has passed since it last dropped a page.
    fruitless: Cell<usize>,
    /// Loads that wait until a page can be dropped.
    waiting: Cell<usize>,
    spare: RefCell<Vec<Rc<PageCell>>>,
    loading: RefCell<BTreeMap<u32, Rc<Notify>>>,
    writes: Cell<usize>,
    /// How the last write of a page that failed ended.
    last_error: Cell<Option<Status>>,
    /// Extents whose pages were written since the last flush that succeeded.
    unflushed: RefCell<Vec<u32>>,
    pub(super) misses: Misses,
}

impl Cache {
    /// `placed`: of a shaped pool, whose pages are larger.
    pub(super) fn new(bytes: usize, placed: bool) -> Cache {
        Cache {
            frames: RefCell::default(),
            free: RefCell::default(),
            pages_max: (bytes / page_memory(placed)).max(PAGES_MIN),
            resident: Cell::new(0),
            dirty_pages: Rc::default(),
            hand: Cell::new(0),
            fruitless: Cell::new(0),
            waiting: Cell::new(0),
            spare: RefCell::default(),
            loading: RefCell::default(),
            writes: Cell::new(0),
            last_error: Cell::new(None),
            unflushed: RefCell::default(),
            misses: Misses::default(),
        }
    }

    /// Most pages that it holds, unless more are in use.
    pub(super) fn pages_max(&self) -> usize {
        self.pages_max
    }

    /// Whether one more page can be loaded without dropping another.
    pub(super) fn has_room(&self) -> bool {
        self.resident.get() + self.loading.borrow().len() < self.pages_max
    }

    pub(super) fn resident(&self) -> usize {
        self.resident.get()
    }

    pub(super) fn dirty_pages(&self) -> usize {
        self.dirty_pages.get()
    }

    /// Notes that the page of an extent was written and not flushed.
    fn note_unflushed(&self, cell: &Extent, extent: u32) {
        if !cell.has(UNFLUSHED) {
            cell.put(UNFLUSHED, true);
            self.unflushed.borrow_mut().push(extent);
        }
    }
}

/// What the clock's hand found.
enum Sweep {
    /// A page was dropped.
    Dropped,
    /// Pages are being written and may be dropped then.
    Writing,
    /// Pages are dirty and have no free slot before the checkpoint ends.
    Pinned,
    /// Every page is in use.
    InUse,
}

/// A page being loaded; others who want it wait until this is dropped.
struct Loading<'a> {
    cache: &'a Cache,
    extent: u32,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let waiters = self.cache.loading.borrow_mut().remove(&self.extent);
        waiters.expect("only this removes it").notify_all();
    }
}

/// One who waits until a page can be dropped.
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn new(cache: &'a Cache) -> Waiting<'a> {
        cache.waiting.set(cache.waiting.get() + 1);
        Waiting(&cache.waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Meta {
    /// What every block of an extent is that has no map page.
    fn value_without_page(&self, descriptor: Descriptor) -> u32 {
        match descriptor.flags {
            flags if flags & BLOCKS_LOST != 0 => LOST,
            flags if flags & BLOCKS_INHERIT != 0 => INHERIT,
            // The record that gives it to its volume is on its way. Until then nothing there hides what lies below.
            _ if descriptor.is_free() && !self.hides_early.get() => INHERIT,
            _ => HOLE,
        }
    }

    /// A free extent hides what lies below it, from now on: for tests of what watches over that.
    pub(crate) fn hide_early(&self) {
        self.hides_early.set(true);
    }

    /// The extent's map page if it is in memory, else load it.
    #[inline]
    pub fn page(&self, extent: u32) -> Option<Page> {
        let page = self.peek(extent)?;
        page.referenced.set(true);
        Some(Page(page))
    }

    /// As [`page`](Self::page), without counting as a use.
    #[inline]
    fn peek(&self, extent: u32) -> Option<Rc<PageCell>> {
        let frame = self.cell(extent).frame.get().checked_sub(1)?;
        let frames = self.cache.frames.borrow();
        Some(frames[frame as usize].as_ref().expect("extents name occupied frames").clone())
    }

    /// The extent's map page, read when it is not in memory; loads of one page at one time share the read.
    /// [`Status::Corrupt`]: it is not what its descriptor says.
    pub async fn load(self: &Rc<Self>, extent: u32) -> Result<Page, Status> {
        self.load_page(extent, true).await
    }

    /// As [`load`](Self::load), for a reader: when the pages in memory cannot be written, so that there is no room for another
    /// one, it gets its page all the same. Unchanged, that one is the first to go.
    pub(crate) async fn load_to_read(self: &Rc<Self>, extent: u32) -> Result<Page, Status> {
        match self.load_page(extent, true).await {
            Err(Status::WriteError) => self.load_page(extent, false).await,
            loaded => loaded,
        }
    }

    /// `bounded`: waits for room in the cache.
    pub(super) async fn load_page(self: &Rc<Self>, extent: u32, bounded: bool) -> Result<Page, Status> {
        loop {
            if let Some(page) = self.page(extent) {
                return Ok(page);
            }
            let other = self.cache.loading.borrow().get(&extent).cloned();
            if let Some(other) = other {
                other.notified().await;
                continue;
            }
            self.cache.loading.borrow_mut().insert(extent, Rc::default());
            let _loading = Loading { cache: &self.cache, extent };
            if bounded {
                self.make_room().await?;
                if self.page(extent).is_some() {
                    // A new one in the place of one that is damaged.
                    continue;
                }
            }
            let descriptor = self.descriptor(extent);
            let Some(slot) = slot_of(descriptor) else {
                return Ok(self.install(extent, Content::All(self.value_without_page(descriptor))));
            };
            count(&self.counters.loads);
            let block = self.map_block(extent, slot);
            let read = self.read_confirmed(block, descriptor.map_crc).await;
            if self.descriptor(extent) != descriptor {
                continue;
            }
            return match read {
                Ok(bytes) => {
                    self.set_units(extent, unit_crcs(bytes.as_slice()));
                    let lost = self.count_lost(extent, bytes.as_slice());
                    lost.into_iter().for_each(|lost| self.note_lost(extent, lost));
                    Ok(self.install(extent, Content::Read(bytes.as_slice())))
                }
                Err(status) => {
                    if status == Status::Corrupt {
                        self.report_corrupt(extent, block);
                    }
                    Err(status)
                }
            };
        }
    }

    /// A page with this checksum. Read twice before it is called damaged, in case it was the way and not the medium.
    /// Then the other versions that the device has of it are tried.
    async fn read_confirmed(&self, block: u64, crc: u32) -> Result<Buf, Status> {
        let is_right = |bytes: &[u8]| crc32c(bytes) == crc;
        let mut status = Status::Corrupt;
        for _ in 0..2 {
            let read = match self.page_blocks() {
                1 => self.media.read_block(block).await,
                blocks => self.media.read(block, self.media.buffer(blocks).await).await,
            };
            match read {
                Ok(bytes) if is_right(bytes.as_slice()) => return Ok(bytes),
                Ok(_) => {}
                Err(failed) => {
                    status = failed;
                    break;
                }
            }
        }
        if !matches!(status, Status::Corrupt | Status::ReadError) {
            return Err(status);
        }
        self.media.read_other(block, self.page_blocks(), is_right).await?.ok_or(status)
    }

    /// A new page for an extent whose page cannot be had from the media: all blocks are lost, as far as the store knows. It
    /// goes to the slot that the durable root does not lead to, like every other.
    pub fn renew_page(&self, extent: u32) -> Page {
        self.forget_page(extent);
        let cell = self.cell(extent);
        let mut descriptor = cell.descriptor.get();
        descriptor.map_crc = 0;
        descriptor.flags = descriptor.flags & !(MAP_PAGE | MAP_SLOT_1) | BLOCKS_LOST;
        self.describe(extent, descriptor);
        cell.put(REPORTED, false);
        cell.put(UNITS_KNOWN, false);
        self.table_changed(extent);
        self.install(extent, Content::All(LOST))
    }

    /// Whether the device answers reads at all: what it refuses then is the fault of its place.
    pub async fn is_readable(&self) -> bool {
        self.media.answers(0).await || self.media.answers(1).await
    }

    fn report_corrupt(&self, extent: u32, block: u64) {
        count(&self.counters.corrupt_pages);
        let cell = self.cell(extent);
        if !cell.has(REPORTED) {
            cell.put(REPORTED, true);
            let shard = self.shard;
            tracing::error!(shard, extent, block, "a map page is damaged: the blocks of its extent cannot be read");
        }
    }

    fn install(&self, extent: u32, content: Content<'_>) -> Page {
        let spare = self.cache.spare.borrow_mut().pop();
        let mut page = spare.unwrap_or_else(|| Rc::new(PageCell::new(&self.cache.dirty_pages, self.tally.as_ref())));
        Rc::get_mut(&mut page).expect("a spare page has no other handles").renew(extent, content);
        let mut frames = self.cache.frames.borrow_mut();
        let frame = self.cache.free.borrow_mut().pop().unwrap_or(frames.len() as u32);
        if frame as usize == frames.len() {
            frames.push(None);
        }
        frames[frame as usize] = Some(page.clone());
        self.cell(page.extent).frame.set(frame + 1);
        self.cache.resident.set(self.cache.resident.get() + 1);
        Page(page)
    }

    /// Keeps the memory of a clean page that nobody uses any more for the next one.
    fn recycle(&self, page: Rc<PageCell>) {
        let mut spare = self.cache.spare.borrow_mut();
        if Rc::strong_count(&page) == 1 && spare.len() < SPARE_MAX {
            spare.push(page);
        }
    }

    fn remove(&self, extent: u32) -> Option<Rc<PageCell>> {
        let frame = self.cell(extent).frame.replace(0).checked_sub(1)?;
        self.cache.free.borrow_mut().push(frame);
        self.cache.resident.set(self.cache.resident.get() - 1);
        self.cache.frames.borrow_mut()[frame as usize].take()
    }

    /// Drops the extent's page; a write of it under way changes nothing any more.
    pub(super) fn forget_page(&self, extent: u32) {
        if let Some(page) = self.remove(extent) {
            page.leave_all();
            page.detach();
        }
    }

    // --- room -------------------------------------------------------------------------------------------------------

    /// Waits until the loads under way fit. When all pages are in use they may exceed the limit, by as many as are in use.
    async fn make_room(self: &Rc<Self>) -> Result<(), Status> {
        let errors = self.counters.write_errors.get();
        while self.cache.resident.get() + self.cache.loading.borrow().len() > self.cache.pages_max {
            match self.sweep() {
                Sweep::Dropped => {}
                _ if self.counters.write_errors.get() != errors => {
                    return Err(self.cache.last_error.get().unwrap_or(Status::WriteError));
                }
                Sweep::InUse => return Ok(()),
                Sweep::Pinned if !self.progress.is_running() => {
                    // Its root could not be written; until it can, no slot becomes free.
                    return Err(self.progress.failed_root().unwrap_or(Status::WriteError));
                }
                Sweep::Writing | Sweep::Pinned => {
                    let _waiting = Waiting::new(&self.cache);
                    self.progress.changed.notified().await;
                }
            }
        }
        Ok(())
    }

    /// Moves the hand until it has found a clean page that is not in use, starting writes of dirty ones that it passes.
    ///
    /// Where whole rounds were in vain the next ones are short as long as pages are being written: each one that is written wakes
    /// all who wait, and they would all look at every frame again.
    fn sweep(self: &Rc<Self>) -> Sweep {
        let frames = self.cache.frames.borrow().len();
        let mut pinned = false;
        // The second round finds what the first one has taken the mark from.
        let rounds = frames * 2;
        let is_short = self.cache.writes.get() > 0 && self.cache.fruitless.get() >= rounds;
        for _ in 0..if is_short { LOOK_ON.min(rounds) } else { rounds } {
            let at = self.cache.hand.get() % frames;
            self.cache.hand.set(at + 1);
            self.cache.fruitless.set(self.cache.fruitless.get() + 1);
            let candidate = self.cache.frames.borrow()[at].clone();
            // In use: by others than the cache and this look.
            let Some(page) = candidate.filter(|page| Rc::strong_count(page) == 2) else { continue };
            if page.referenced.replace(false) || self.cell(page.extent).has(WRITING) {
                continue;
            }
            if !page.is_dirty() {
                self.evict(page);
                self.cache.fruitless.set(0);
                return Sweep::Dropped;
            }
            if self.target(page.extent, false).is_none() {
                pinned = true;
            } else if self.cache.writes.get() < WRITES_MAX {
                self.claim(page.extent);
                let meta = self.clone();
                self.media.reactor.spawn(async move {
                    // Who waits for room looks at the count of errors.
                    let _ = meta.write_page(page, false).await;
                });
            }
        }
        match self.cache.writes.get() {
            0 if pinned => Sweep::Pinned,
            0 => Sweep::InUse,
            _ => Sweep::Writing,
        }
    }

    /// Drops a clean page that only the cache and the caller hold.
    fn evict(&self, page: Rc<PageCell>) {
        drop(self.remove(page.extent));
        self.recycle(page);
        count(&self.counters.evictions);
    }

    // --- writing ----------------------------------------------------------------------------------------------------

    /// The slot that a page may be written to now. Of two free slots, the one that does not hold its last version; when that
    /// one must be overwritten, only the checkpoint itself may do it while one is being made: otherwise a table page could be
    /// written in between that leads to what is half overwritten.
    fn target(&self, extent: u32, by_checkpoint: bool) -> Option<u8> {
        let cell = self.cell(extent);
        let (durable, pending, last) = (cell.durable(), cell.pending(), cell.slot());
        let is_free = |slot: &u8| durable != Some(*slot) && pending != *slot as u32 + 1;
        let next = cell.has(SLOT_1_NEXT) as u8;
        let best = (0..2).filter(is_free).min_by_key(|slot| (last == Some(*slot), *slot != next))?;
        (last != Some(best) || by_checkpoint || !self.progress.is_running()).then_some(best)
    }

    /// Takes the sole right to write the extent's page.
    pub(super) fn claim(&self, extent: u32) {
        let cell = self.cell(extent);
        assert!(!cell.has(WRITING), "one write of a map page at a time");
        cell.put(WRITING, true);
        self.cache.writes.set(self.cache.writes.get() + 1);
    }

    /// Writes a claimed page, in a task that nobody drops. It may turn out that there is nothing to write, or no slot now.
    pub(super) async fn write_page(self: &Rc<Self>, page: Rc<PageCell>, by_checkpoint: bool) -> Result<(), Status> {
        let outcome = self.write_claimed(&page, by_checkpoint).await;
        if let Err(status) = outcome {
            page.mark_dirty();
            count(&self.counters.write_errors);
            self.cache.last_error.set(Some(status));
        }
        self.cell(page.extent).put(WRITING, false);
        self.cache.writes.set(self.cache.writes.get() - 1);
        // Who waits for room would have to search for it, far behind the hand.
        let is_wanted = Rc::strong_count(&page) > 2 || page.referenced.get() || page.is_dirty() || page.is_detached();
        if self.cache.waiting.get() > 0 && !is_wanted {
            self.evict(page);
        }
        self.progress.changed.notify_all();
        outcome
    }

    async fn write_claimed(self: &Rc<Self>, page: &Rc<PageCell>, by_checkpoint: bool) -> Result<(), Status> {
        self.settle().await?;
        let mut buf = self.media.buffer(self.page_blocks()).await;
        // From here to the submission nothing else runs.
        if page.is_detached() || !page.is_dirty() {
            return Ok(());
        }
        let Some(slot) = self.target(page.extent, by_checkpoint) else {
            assert!(!by_checkpoint, "a checkpoint writes map pages before it keeps slots from being written");
            return Ok(());
        };
        let cell = self.cell(page.extent);
        assert!(cell.durable() != Some(slot), "the durable root leads to this slot");
        page.copy_out(buf.as_mut_slice());
        let (crc, units) = (crc32c(buf.as_slice()), unit_crcs(buf.as_slice()));
        let lost = self.count_lost(page.extent, buf.as_slice());
        count(&self.counters.page_writes);
        let written = self.media.write(self.map_block(page.extent, slot), buf).await;
        match written {
            Ok(()) => _ = self.refused.borrow_mut().remove(&page.extent),
            Err(status) => {
                if status == Status::WriteError && !page.is_detached() {
                    cell.put(SLOT_1_NEXT, slot == 0);
                    self.refused.borrow_mut().insert(page.extent);
                }
                return Err(status);
            }
        }
        if !page.is_detached() {
            let mut descriptor = cell.descriptor.get();
            descriptor.map_crc = crc;
            descriptor.flags = descriptor.flags & !MAP_SLOT_1 | MAP_PAGE | if slot == 1 { MAP_SLOT_1 } else { 0 };
            self.describe(page.extent, descriptor);
            lost.into_iter().for_each(|lost| self.note_lost(page.extent, lost));
            self.set_units(page.extent, units);
            self.table_changed(page.extent);
            self.cache.note_unflushed(cell, page.extent);
        }
        Ok(())
    }

    /// Hands over which pages were written since the last flush.
    pub(super) fn take_unflushed(&self) -> Vec<u32> {
        let unflushed = self.cache.unflushed.take();
        unflushed.iter().for_each(|extent| self.cell(*extent).put(UNFLUSHED, false));
        unflushed
    }

    /// Extents whose pages differ from the media, or will until a write under way has ended, and matter to a checkpoint.
    pub(super) fn unwritten(&self) -> Vec<u32> {
        let frames = self.cache.frames.borrow();
        let unwritten = |page: &&Rc<PageCell>| {
            (page.is_dirty() || self.cell(page.extent).has(WRITING)) && !self.is_being_replaced(page.extent)
        };
        frames.iter().flatten().filter(unwritten).map(|page| page.extent).collect()
    }

    /// Whether the extent's page is in memory and differs from the media, or will until a write under way has ended.
    pub(super) fn is_unwritten(&self, extent: u32) -> bool {
        self.cell(extent).has(WRITING) || self.peek(extent).is_some_and(|page| page.is_dirty())
    }

    /// Extents whose pages are being written.
    pub(super) fn being_written(&self) -> Vec<u32> {
        let frames = self.cache.frames.borrow();
        let written = frames.iter().flatten().map(|page| page.extent);
        written.filter(|extent| self.cell(*extent).has(WRITING)).collect()
    }

    /// Waits until the extent's page is not being written.
    pub(super) async fn written(&self, extent: u32) {
        while self.cell(extent).has(WRITING) {
            self.progress.changed.notified().await;
        }
    }

    /// Sees to it that the extent's page, as it is now or later, is written.
    pub(super) async fn secure(self: &Rc<Self>, extent: u32) -> Result<(), Status> {
        self.written(extent).await;
        match self.peek(extent) {
            Some(page) if page.is_dirty() => {
                self.claim(extent);
                self.write_page(page, true).await
            }
            _ => Ok(()),
        }
    }
}
