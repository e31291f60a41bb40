//! Checkpoints: one at a time, beside everything else.
//!
//! ```text
//! 1 map pages to free slots   2 table pages to their other slots   3 flush   4 root to its other copy, durable at once
//! 5 the same root over the former one, so that damage to one copy does not bring back an older state
//! 6 table pages to the slots that no root leads to any more, for the same reason
//! ```
//! A table page is a picture of its descriptors at the moment it is copied; from then until the root is durable both the
//! slots in the picture and those of the durable root are left alone. When step 4 fails, the media may hold either root:
//! the next checkpoint first repeats it with the same bytes, and nothing of either is overwritten until that succeeds.

use super::cache::WRITES_MAX;
use super::{Extent, Meta, PENDING_NONE, TableRef, count, slot_of};
use crate::bands::Token;
use crate::format::root::{LogNote, Root, RootBands, root_bytes};
use crate::format::superblock::Superblock;
use crate::format::table::encode_table;
use crate::units::{BLOCK_BYTES, LogTail};
use base::crc32c;
use bdev::Status;
use reactor::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Whether the root that was found at opening is known to be durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settled {
    No,
    Running,
    Yes,
}

/// A table page of the root being written.
type Picture = (u32, TableRef);

/// A root whose write to one of its copies did not end well.
struct Attempt {
    root: Root,
    pictures: Vec<Picture>,
    token: Token,
    status: Status,
}

/// How far checkpoints have got.
pub(super) struct Progress {
    /// The first blocks of the root's copies.
    pub(super) copies: [u64; 2],
    /// The copy that holds.
    pub(super) copy: Cell<u8>,
    generation: Cell<u64>,
    /// Both copies have it, and are durable: this opening has written them.
    pub(super) is_twin: Cell<bool>,
    /// Of the root that was found at opening.
    pub(super) root_blocks: usize,
    /// What is said of bands in roots.
    pub(super) root_bands: Cell<RootBands>,
    /// Bands with which the pool was created.
    created_bands: u32,
    settled: Cell<Settled>,
    /// Of the checkpoint that the durable root leads to.
    pub(super) token: Cell<Token>,
    running: Cell<bool>,
    attempt: RefCell<Option<Attempt>>,
    /// The table pages that the checkpoint under way has copied.
    pictures: RefCell<Vec<Picture>>,
    /// Pages written before a flush that failed; they count as not written.
    distrusted: RefCell<Vec<u32>>,
    /// Flushes that have failed.
    flush_failures: Cell<u64>,
    /// Notified when a page was written, when a checkpoint ended, and when the root is settled.
    pub(super) changed: Notify,
}

impl Progress {
    pub(super) fn new(superblock: &Superblock, shard: u16, root: &Root, copy: u8, settled: bool) -> Progress {
        Progress {
            copies: [superblock.root_copy(shard, 0), superblock.root_copy(shard, 1)],
            copy: Cell::new(copy),
            generation: Cell::new(root.generation),
            is_twin: Cell::new(false),
            root_bands: Cell::new(RootBands::of(superblock)),
            root_blocks: root_bytes(root.tables.len() as u32, root.bands.len() as u32, superblock.bands.bands)
                .div_ceil(BLOCK_BYTES as u64) as usize,
            created_bands: superblock.bands.bands,
            settled: Cell::new(if settled { Settled::Yes } else { Settled::No }),
            token: Cell::default(),
            running: Cell::new(false),
            attempt: RefCell::new(None),
            pictures: RefCell::default(),
            distrusted: RefCell::default(),
            flush_failures: Cell::new(0),
            changed: Notify::default(),
        }
    }

    /// Whether a checkpoint is being made.
    pub(super) fn is_running(&self) -> bool {
        self.running.get()
    }

    /// Of the durable root.
    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Why the write of a root failed that has not been repeated in both copies yet.
    pub(super) fn failed_root(&self) -> Option<Status> {
        self.attempt.borrow().as_ref().map(|attempt| attempt.status)
    }
}

impl Meta {
    /// Makes every change so far durable, and `tail` with it. After an error the durable state is the former one (or, when
    /// the write of the root itself failed, perhaps this one), and it may be tried again. One at a time; others wait.
    pub async fn checkpoint(self: &Rc<Self>, tail: LogTail) -> Result<(), Status> {
        // What was written before the tail was found must not have been lost since.
        let failures = self.flush_failures();
        self.exclusively(move |meta| async move { meta.make_checkpoint(tail, failures).await }).await
    }

    /// The generation of the durable root.
    pub(crate) fn root_generation(&self) -> u64 {
        self.progress.generation()
    }

    /// Flushes that have failed. What was written when it was smaller, and not flushed before, may be lost although it can be
    /// read, whatever later flushes say.
    pub(crate) fn flush_failures(&self) -> u64 {
        self.progress.flush_failures.get()
    }

    /// Makes durable what has been written while [`flush_failures`](Self::flush_failures) was what it is.
    pub(crate) async fn flush(&self) -> Result<(), Status> {
        // First what the pages lead to.
        let blocks = match self.bands() {
            Some(bands) => bands.flush().await,
            None => Ok(()),
        };
        let ended = blocks.and(self.media.flush().await);
        if ended.is_err() {
            self.progress.flush_failures.set(self.flush_failures() + 1);
        }
        ended
    }

    /// Does what ends in a root: one at a time.
    pub(super) async fn exclusively<F: Future<Output = Result<(), Status>> + 'static>(
        self: &Rc<Self>,
        make: impl FnOnce(Rc<Meta>) -> F + 'static,
    ) -> Result<(), Status> {
        let meta = self.clone();
        // A task of its own: a checkpoint does not stop half-way because its caller goes away.
        let made = self.media.reactor.spawn_join(async move {
            while meta.progress.running.get() {
                meta.progress.changed.notified().await;
            }
            meta.progress.running.set(true);
            let outcome = make(meta.clone()).await;
            meta.progress.running.set(false);
            meta.progress.changed.notify_all();
            outcome
        });
        made.await
    }

    /// Whether the write of a root has failed that was not repeated since: until it is, many pages have no free slot, and may
    /// fill the cache.
    pub(crate) fn owes_root(&self) -> bool {
        self.progress.failed_root().is_some()
    }

    async fn make_checkpoint(self: &Rc<Self>, tail: LogTail, failures: u64) -> Result<(), Status> {
        self.settle().await?;
        self.repeat_root().await?;
        let token = self.bands().map(|bands| bands.checkpoint_begun()).unwrap_or_default();
        self.write_distrusted().await?;
        self.for_each(self.unwritten(), |meta, extent| async move { meta.secure(extent).await }).await?;
        let written = match self.write_tables().await {
            Ok(()) => self.flush_pages(failures).await,
            failed => failed,
        };
        let pictures = self.progress.pictures.take();
        if written.is_err() {
            self.discard(&pictures);
            return written;
        }
        let mut tables: Vec<_> = self.tables.borrow().iter().map(|table| table.durable).collect();
        pictures.iter().for_each(|(table, place)| tables[*table as usize] = Some(*place));
        if self.copies_early.get() {
            for (table, place) in &pictures {
                self.copy_table(*table, *place).await?;
            }
        }
        self.write_root(self.next_root(tail, self.log_notes.open(), tables, token), pictures, token).await?;
        self.copy_tables().await;
        Ok(())
    }

    /// The next root, which leads to pages as of the checkpoint with this token.
    pub(super) fn next_root(&self, tail: LogTail, log: LogNote, tables: Vec<Option<TableRef>>, token: Token) -> Root {
        let generation = self.progress.generation.get() + 1;
        let bands = self.bands().map(|bands| bands.table(token)).unwrap_or_default();
        Root { shard: self.shard, generation, epoch: self.epoch, tail, log, tables, bands }
    }

    /// Runs `action` for each number, a bounded number of them at once; after an error no further ones are begun.
    pub(super) async fn for_each<F: Future<Output = Result<(), Status>> + 'static>(
        self: &Rc<Self>,
        numbers: Vec<u32>,
        action: impl Fn(Rc<Meta>, u32) -> F + Copy + 'static,
    ) -> Result<(), Status> {
        let workers = numbers.len().min(WRITES_MAX);
        let queue = Rc::new(RefCell::new(VecDeque::from(numbers)));
        let worker = |_| {
            let (meta, queue) = (self.clone(), queue.clone());
            self.media.reactor.spawn_join(async move {
                loop {
                    let next = queue.borrow_mut().pop_front();
                    let Some(next) = next else { return Ok(()) };
                    if let Err(status) = action(meta.clone(), next).await {
                        queue.borrow_mut().clear();
                        return Err(status);
                    }
                }
            })
        };
        let workers: Vec<_> = (0..workers).map(worker).collect();
        let mut outcome = Ok(());
        for worker in workers {
            outcome = outcome.and(worker.await);
        }
        outcome
    }

    // --- before the first write -------------------------------------------------------------------------------------

    /// Makes the root durable that was found at opening, before anything is overwritten that the other one leads to.
    pub(crate) async fn settle(&self) -> Result<(), Status> {
        let progress = &self.progress;
        loop {
            match progress.settled.get() {
                Settled::Yes => return Ok(()),
                Settled::Running => progress.changed.notified().await,
                Settled::No => break,
            }
        }
        progress.settled.set(Settled::Running);
        let (block, blocks) = (progress.copies[progress.copy.get() as usize], progress.root_blocks);
        let newest = progress.generation();
        let is_right = |bytes: &[u8]| self.is_root(bytes, |found| found == newest);
        let outcome = self.media.settle(block, blocks, blocks, is_right).await;
        progress.settled.set(if outcome.is_ok() { Settled::Yes } else { Settled::No });
        progress.changed.notify_all();
        outcome
    }

    // --- pages ------------------------------------------------------------------------------------------------------

    /// Makes what was written so far durable, if no flush has failed since there were so many; if not, its pages count as not
    /// written.
    async fn flush_pages(&self, failures: u64) -> Result<(), Status> {
        let covered = self.take_unflushed();
        let outcome = match self.flush().await {
            Ok(()) if self.flush_failures() != failures => Err(Status::WriteError),
            outcome => outcome,
        };
        if outcome.is_err() {
            self.distrust(covered);
        }
        outcome
    }

    /// Pages written since the last flush that succeeded, `covered` among them, count as not written.
    fn distrust(&self, covered: Vec<u32>) {
        let mut distrusted = self.progress.distrusted.borrow_mut();
        distrusted.extend(covered);
        distrusted.extend(self.take_unflushed());
        // What was written while the flush was under way may have been covered by it as well.
        distrusted.extend(self.being_written());
        distrusted.sort_unstable();
        distrusted.dedup();
    }

    /// A flush has failed that was not a checkpoint's: its pages count as not written.
    pub(crate) fn distrust_unflushed(&self) {
        self.distrust(Vec::new());
    }

    /// Writes once more what was written before a flush that failed: the device may call it clean and never write it.
    async fn write_distrusted(self: &Rc<Self>) -> Result<(), Status> {
        let mut distrusted = self.progress.distrusted.borrow().clone();
        distrusted.retain(|extent| !self.is_being_replaced(*extent));
        let rewrite = |meta: Rc<Meta>, extent| async move {
            meta.written(extent).await;
            if slot_of(meta.descriptor(extent)).is_some() {
                match meta.load_page(extent, false).await {
                    Ok(page) => page.0.mark_dirty(),
                    Err(status) => {
                        meta.damaged.borrow_mut().push((extent, status));
                        return Err(status);
                    }
                }
            }
            meta.secure(extent).await
        };
        self.for_each(distrusted, rewrite).await?;
        self.progress.distrusted.borrow_mut().retain(|extent| self.is_being_replaced(*extent));
        Ok(())
    }

    async fn write_tables(self: &Rc<Self>) -> Result<(), Status> {
        let tables = self.tables.borrow().clone().into_iter().zip(0..);
        let dirty = tables.filter(|(table, _)| table.dirty).map(|(_, index)| index).collect();
        self.for_each(dirty, |meta, table| async move { meta.write_table(table).await }).await
    }

    async fn write_table(&self, index: u32) -> Result<(), Status> {
        let mut buf = self.media.buffer(1).await;
        // From here to the submission nothing else runs.
        let slot = self.tables.borrow()[index as usize].durable.map_or(0, |durable| 1 - durable.slot);
        let (block, extents) = self.table_place(index, slot);
        let generation = self.progress.generation.get() + 1;
        let descriptors = extents.iter().map(|extent| self.described(extent));
        encode_table(self.shard, index, generation, descriptors, buf.as_mut_slice());
        for extent in extents {
            extent.set_pending(slot_of(self.described(extent)).map_or(PENDING_NONE, |slot| slot as u32 + 1));
        }
        self.tables.borrow_mut()[index as usize].dirty = false;
        let crc = crc32c(buf.as_slice());
        self.progress.pictures.borrow_mut().push((index, TableRef { crc, slot }));
        count(&self.counters.table_writes);
        self.media.write(block, buf).await
    }

    pub(super) fn extents_of(&self, table: u32) -> &[Extent] {
        self.table_place(table, 0).1
    }

    /// Gives up pictures that no root leads to.
    fn discard(&self, pictures: &[Picture]) {
        for (table, _) in pictures {
            self.tables.borrow_mut()[*table as usize].dirty = true;
            self.extents_of(*table).iter().for_each(|extent| extent.set_pending(0));
        }
    }

    // --- root -------------------------------------------------------------------------------------------------------

    pub(super) async fn write_root(&self, root: Root, pictures: Vec<Picture>, token: Token) -> Result<(), Status> {
        let bytes = root.encode(self.pool, self.progress.created_bands);
        let copy = 1 - self.progress.copy.get();
        let block = self.progress.copies[copy as usize];
        self.progress.is_twin.set(false);
        if let Err(status) = self.media.write_durably(block, &bytes).await {
            *self.progress.attempt.borrow_mut() = Some(Attempt { root, pictures, token, status });
            return Err(status);
        }
        self.progress.copy.set(copy);
        self.progress.generation.set(root.generation);
        self.log_notes.written(root.tail);
        for (table, place) in pictures {
            let held = &mut self.tables.borrow_mut()[table as usize];
            (held.durable, held.is_alone) = (Some(place), true);
            for extent in self.extents_of(table) {
                extent.set_durable(extent.pending().checked_sub(1).filter(|slot| *slot < 2).map(|slot| slot as u8));
                extent.set_pending(0);
            }
        }
        count(&self.counters.checkpoints);
        self.progress.token.set(token);
        if let Some(bands) = self.bands() {
            bands.checkpointed(token);
        }
        // Acknowledged when both are: whichever copy can be read later has everything that was acknowledged.
        let other = self.media.write_durably(self.progress.copies[1 - copy as usize], &bytes).await;
        match other {
            Ok(()) => self.progress.is_twin.set(true),
            Err(status) => {
                *self.progress.attempt.borrow_mut() = Some(Attempt { root, pictures: Vec::new(), token, status });
            }
        }
        other
    }

    /// Completes a checkpoint whose root may or may not be on the media.
    pub(super) async fn repeat_root(&self) -> Result<(), Status> {
        let attempt = self.progress.attempt.take();
        match attempt {
            Some(attempt) => self.write_root(attempt.root, attempt.pictures, attempt.token).await,
            None => Ok(()),
        }
    }
}
