//! When garbage collection of a shaped pool's bands works, how much, and on which bands. What is live in a victim moves to another
//! band ([`collect`](super::collect)), and a checkpoint makes the victim free.
//!
//! ```text
//! upkeep -> (bands are short, and blocks are owed) collector: batch, batch, ... -> nothing is owed, or no band is worth it
//! ```
//! The collector works beside destage, which owes it blocks for what it fills, and waits when it owes too much: so in the long run
//! as many are collected as the victims make necessary, spread over what is written.
//!
//! A stripe says which blocks were written to it; whether one is live, its map page alone knows. So the counts by which
//! victims are chosen may be wrong, after a crash or a page that could not be read: they cost time, nothing else.

use super::Shard;
use super::found::AllFound;
use super::log_policy;
use super::turns::{Turn, Turns};
use crate::bands::{Bands, Cursor, Stream, policy};
use crate::units::BLOCK_BYTES;
use bdev::Status;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Least blocks of a batch: some whole stripes.
const BATCH_BLOCKS_MIN: u64 = 4 * 255;
/// Most blocks of a batch: the time to sort them is not given away.
const BATCH_BLOCKS_MAX: u64 = 4096;
/// Blocks that a batch gives back, as far as those two let it: of fuller victims more is moved at a time. With more at a time
/// drives have nothing to do meanwhile, and writes wait; with fewer, stripes are padded more often.
const GAIN_BLOCKS: u64 = 680;
/// Victims that a batch takes blocks from.
pub(super) const VICTIMS_MAX: usize = 4;
/// Blocks that destage may owe to the collector before it waits.
const AHEAD_BLOCKS: i64 = 2 * BATCH_BLOCKS_MIN as i64;
/// Blocks that it can owe, or have ahead.
const OWED_BLOCKS_MAX: i64 = 4 * AHEAD_BLOCKS;
/// The share of destage is computed for so many blocks.
const PACE_BLOCKS: u64 = 1024;
/// Bands for which a checkpoint is made when few are free: each writes the map pages that have changed.
const PENDING_MANY: u32 = 2;

/// Wait for bands that are being unmapped, or counted.
const WAIT_NS: u64 = 100_000;
/// A victim of which something cannot be read is left alone for so long: half as long as it takes to try 32 times before patience ends.
const ASIDE_NS: u64 = 1_000_000_000;

/// How far GC has got.
#[derive(Default)]
pub(super) struct Gc {
    /// What the next batch begins with.
    found: RefCell<AllFound>,
    /// Blocks to move for what has been destaged; below zero those that were moved ahead.
    owed: Cell<i64>,
    /// Blocks that were valid in the victim when it was chosen.
    victim_valid: Cell<u32>,
    /// No band is worth collecting.
    is_exhausted: Cell<bool>,
    /// Whose turn it is, on drives that keep no streams apart.
    pub(super) turns: Turns,
    /// The collector is at work.
    pub(super) is_collecting: Cell<bool>,
    /// It has ended a batch, or its work, since somebody asked.
    has_looked: Cell<bool>,
    /// Why it has stopped, until upkeep has heard of it.
    error: Cell<Option<Status>>,
    /// The turn in which it last did something.
    pub(super) moved_in: Cell<u64>,
    /// Bands of which something could not be read, and until when they are left alone.
    aside: RefCell<SmallVec<[(u32, u64); 4]>>,
    /// What is live is being counted, or has been since the opening.
    pub(super) is_recounting: Cell<bool>,
    pub(super) is_recounted: Cell<bool>,
    pub(super) moved_blocks: Cell<u64>,
    /// How many batches have read what they move.
    pub(super) batches: Cell<usize>,
    /// Bytes that users had read from bands, and that were moved, when the last batch began.
    pub(super) seen: Cell<(u64, u64)>,
}

impl Gc {
    /// What the last batch has read for this one.
    pub(super) fn take_found(&self) -> AllFound {
        self.found.take()
    }

    /// The next batch begins with it.
    pub(super) fn keep_found(&self, found: AllFound) {
        *self.found.borrow_mut() = found;
    }
}

impl Shard {
    /// How many bands are missing that should be free; 0: GC has nothing to do.
    fn missing_bands(&self, bands: &Bands) -> u32 {
        self.low(bands).saturating_sub(bands.bands_and_free().1)
    }

    /// Free bands below which GC works.
    fn low(&self, bands: &Bands) -> u32 {
        let all = bands.bands_and_free().0;
        match self.tuning.used_bands {
            Some(used) => all.saturating_sub(used),
            None => policy::free_bands_low(all, bands.band_blocks()),
        }
    }

    /// Blocks that are moved for so many gained, as in the last victim.
    fn moved_for(&self, bands: &Bands, gained: u64) -> u64 {
        let (valid, total) = (self.gc.victim_valid.get() as u64, bands.band_data_blocks() as u64);
        gained * valid / total.saturating_sub(valid).max(1)
    }

    /// Least old blocks for which an extent is destaged without the others, as full as victims are now.
    pub(super) fn old_blocks_min(&self, bands: &Bands) -> u32 {
        log_policy::old_blocks_min(self.tuning.old_blocks_min, bands.band_data_blocks(), self.gc.victim_valid.get())
    }

    /// Blocks have been destaged: in the long run as many have to be collected as the victims make them.
    pub(super) fn owe_for(&self, bands: &Bands, blocks: u64) {
        let missing = self.missing_bands(bands);
        if missing == 0 {
            self.pace.earned(blocks * BLOCK_BYTES as u64, self.fill());
            return self.gc.owed.set(self.gc.owed.get().min(0));
        }
        self.earn(bands, blocks);
        // More when fewer bands are free than there should be.
        let owed = self.moved_for(bands, blocks);
        let pressed = owed + owed * missing as u64 / self.low(bands) as u64;
        let most = OWED_BLOCKS_MAX.max(2 * bands.band_data_blocks() as i64);
        self.gc.owed.set((self.gc.owed.get() + pressed.max(1) as i64).min(most));
        self.change_turns(bands, self.gc.owed.get());
    }

    /// Writers get credit for what destage and the collector write to bands, for each their share of it: so they go at the same pace
    /// whoever of the two is at work.
    fn earn(&self, bands: &Bands, blocks: u64) {
        let share = blocks * BLOCK_BYTES as u64 * PACE_BLOCKS / (PACE_BLOCKS + self.moved_for(bands, PACE_BLOCKS));
        self.pace.earned(share, self.fill());
    }

    fn collector_is_called(&self, bands: &Bands) -> bool {
        if self.gc.is_recounting.get() {
            // By counts that are being made, a full band may look empty.
            return false;
        }
        let is_out = !bands.may_append(Stream::User);
        if is_out && bands.room().pending > 0 {
            // What has been emptied is free after a checkpoint: more would only fill what is kept for moving.
            return false;
        }
        let is_owed = match self.gc.turns.turn() {
            Turn::Both => self.gc.owed.get() > 0,
            turn => turn == Turn::Collector,
        };
        is_owed && self.missing_bands(bands) > 0 || bands.has_suspects() || is_out
    }

    /// Sees to it that the collector works when that is called for, and waits for a batch of it when nothing can be destaged before
    /// that. Whether it is at work, or room will come about in another way.
    pub(super) async fn collect_some(self: &Rc<Self>) -> Result<bool, Status> {
        let Some(bands) = self.meta.bands() else { return Ok(false) };
        self.gc.error.take().map_or(Ok(()), Err)?;
        if self.gc.is_recounting.get() {
            let is_out = !bands.may_append(Stream::User);
            if is_out {
                self.reactor.sleep_ns(WAIT_NS).await;
            }
            return Ok(is_out);
        }
        if !self.begin_collecting(bands) {
            return Ok(false);
        }
        let is_blocked = || !bands.may_append(Stream::User) || self.owes_blocks(bands) || self.gc.is_exhausted.get();
        let is_over = || self.gc.has_looked.get() || !self.gc.is_collecting.get();
        self.settled.wait_until(|| is_over() || !is_blocked()).await;
        self.gc.error.take().map_or(Ok(()), Err)?;
        if !self.gc.is_exhausted.get() || bands.may_append(Stream::User) {
            return Ok(self.gc.is_collecting.get());
        }
        if bands.room().unmapping > 0 {
            bands.reset_error().map_or(Ok(()), Err)?;
            self.reactor.sleep_ns(WAIT_NS).await;
            return Ok(true);
        }
        // No band seems worth it, by counts that may be too high.
        self.recount_once();
        Ok(self.gc.is_recounting.get())
    }

    /// Begins to collect if that is called for. Whether the collector is at work now.
    fn begin_collecting(self: &Rc<Self>, bands: &Rc<Bands>) -> bool {
        if !self.gc.is_collecting.get() && !self.collector_is_called(bands) {
            return false;
        }
        self.gc.has_looked.set(false);
        if self.gc.is_collecting.get() {
            return true;
        }
        self.gc.is_collecting.set(true);
        let (shard, bands) = (self.clone(), bands.clone());
        self.reactor.spawn(async move {
            if let Err(status) = shard.collect_while_called(&bands).await {
                shard.gc.error.set(Some(status));
            }
            shard.gc.is_collecting.set(false);
            shard.gc.has_looked.set(true);
            shard.settled.notify_all();
        });
        true
    }

    /// Live blocks have been appended elsewhere: destage may go on when it waits for that, and writers get credit.
    pub(super) fn pay(&self, bands: &Bands, blocks: u64) {
        if self.missing_bands(bands) > 0 {
            self.earn(bands, blocks);
        }
        let owed_before = self.owes_blocks(bands);
        self.gc.owed.set((self.gc.owed.get() - blocks as i64).max(-OWED_BLOCKS_MAX));
        if owed_before && !self.owes_blocks(bands) {
            self.settled.notify_all();
        }
    }

    async fn collect_while_called(self: &Rc<Self>, bands: &Rc<Bands>) -> Result<(), Status> {
        loop {
            let batch = self.moved_for(bands, GAIN_BLOCKS).clamp(BATCH_BLOCKS_MIN, BATCH_BLOCKS_MAX);
            let found = self.collect(bands, self.most_in_turn(bands, Stream::Moved, batch)).await?;
            self.gc.is_exhausted.set(!found);
            self.change_turns(bands, self.gc.owed.get());
            if !found || !self.collector_is_called(bands) || self.is_stopping() {
                // Memory that nobody knows when it is needed.
                self.gc.found.borrow_mut().iter_mut().for_each(|found| found.leads.clear());
                self.end_turn_of_collector(bands);
                return Ok(());
            }
            self.gc.has_looked.set(true);
            self.settled.notify_all();
            self.reactor.yield_now().await;
        }
    }

    /// Whether GC or a checkpoint gives back bands.
    pub(super) fn bands_will_be_free(&self, bands: &Bands) -> bool {
        let room = bands.room();
        room.pending + room.unmapping > 0 || !self.gc.is_exhausted.get()
    }

    /// Whether somebody has found no band since so many had, and there is one now or will be.
    pub(super) fn bands_come(&self, bands: &Bands, turned_away: Option<u64>) -> bool {
        Some(bands.turned_away()) != turned_away && (bands.may_append(Stream::User) || self.bands_will_be_free(bands))
    }

    /// Whether there is a band to destage to, or no hope for one.
    pub(super) fn may_destage(&self, bands: &Bands) -> bool {
        bands.may_append(Stream::User) || !self.bands_will_be_free(bands)
    }

    /// Whether so many blocks are owed that some have to be collected before more is destaged.
    pub(super) fn owes_blocks(&self, bands: &Bands) -> bool {
        let is_much = match self.gc.turns.turn() {
            Turn::Both => self.gc.owed.get() > AHEAD_BLOCKS,
            turn => turn == Turn::Collector && self.gc.is_collecting.get(),
        };
        if !is_much || self.gc.is_exhausted.get() || self.gc.is_recounting.get() {
            return false;
        }
        self.missing_bands(bands) > 0
    }

    /// Blocks that are owed, as far as bands are missing, and at how many destage waits for the collector.
    pub(crate) fn gc_debt(&self, bands: &Bands) -> (u64, u64) {
        let owed = if self.missing_bands(bands) > 0 { self.gc.owed.get().max(0) as u64 } else { 0 };
        let most = match self.takes_turns() {
            true => u64::from(bands.band_data_blocks()),
            false => AHEAD_BLOCKS as u64,
        };
        (owed, most)
    }

    /// Whether bands wait for a checkpoint and are missed.
    pub(super) fn bands_are_missed(&self, bands: &Bands) -> bool {
        let room = bands.room();
        let are_many = room.pending >= PENDING_MANY && self.missing_bands(bands) > 0;
        room.pending > 0 && (are_many || !bands.may_append(Stream::User))
    }

    /// A victim that could not be emptied now is left alone for a while; what has moved of it has moved.
    pub(super) fn put_aside(&self, band: u32, status: Status) {
        let (pool, shard) = (&self.pool_name, self.number);
        tracing::warn!("pool '{pool}': band {band} of shard {shard} cannot be collected: {status}; it is tried again");
        self.gc.aside.borrow_mut().push((band, self.reactor.now_ns() + ASIDE_NS));
    }

    pub(super) fn next_victim(&self, bands: &Rc<Bands>) -> Option<Cursor> {
        let now_ns = self.reactor.now_ns();
        let mut aside = self.gc.aside.borrow_mut();
        aside.retain(|(_, until_ns)| *until_ns > now_ns);
        // Held until there is another one, so that none of them is found again.
        let mut passed: SmallVec<[Cursor; 4]> = SmallVec::new();
        let cursor = loop {
            let cursor = bands.victim()?;
            if !aside.iter().any(|(band, _)| *band == cursor.band()) {
                break cursor;
            }
            passed.push(cursor);
        };
        self.gc.victim_valid.set(bands.valid(cursor.band()));
        Some(cursor)
    }
}
