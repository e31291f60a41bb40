//! What is known of each band, and what may become of it. No I/O.

mod audit;
mod checkpoints;
mod room;
mod victims;
mod zones;

pub(crate) use checkpoints::Token;
pub(crate) use room::Room;

use super::{BandAt, BandGeometry, RESERVE_BANDS, STREAMS, Stream};
use crate::format::band::{BandEntry, BandState};
use std::collections::{BTreeSet, VecDeque};

/// What tests of the tests break on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BandDefect {
    /// A band that has been drained is used again before a checkpoint.
    FreeAtOnce,
    /// A band is given up although places in it are about to enter a map.
    ForgetHeld,
    /// User streams take the bands that are kept for those that make room.
    NoReserve,
    /// What was written before a flush that failed is not written again.
    TrustFlushes,
    /// Bands that are added lie over those that there were.
    OverlapAdded,
    /// Over zones: a free band is opened without a reset.
    SkipReset,
    /// Over zones: one that is given up is not finished.
    SkipFinish,
    /// Of some blocks it is not counted that no map leads to them any more.
    Miscount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Closed,
    /// Nothing leads to it any more, since so many checkpoints had begun.
    Pending(u64),
    /// As free, once it has been unmapped: over zones, reset.
    Unmapping,
    Retired,
}

#[derive(Clone, Debug)]
struct Band {
    state: State,
    stream: u8,
    /// It has refused a write that another band took.
    failing: bool,
    /// The count of valid blocks has contradicted itself: it is a hint.
    doubtful: bool,
    /// All of it has been walked, and nothing led to it, even while counts are hints.
    is_empty: bool,
    /// Draining it has not found everything.
    stuck: bool,
    /// Somebody drains it; it stays what it is until then.
    walked: bool,
    /// Something in it was written well.
    has_data: bool,
    written: u32,
    valid: u32,
    /// Blocks that are being read, or whose places are not known to any map yet.
    held: u32,
    /// Stripes under way, and those that it refused and whose fate is open.
    under_way: u32,
    /// Stripes that the device has.
    writing: u32,
    /// A flush that should have covered stripes of it has failed: what is needed of it moves elsewhere.
    suspect: bool,
    /// Resets of its zone that failed.
    resets: u32,
    /// Successes of the ledger when that was tried last.
    reset_at: u64,
    generation: u64,
    /// Of its blocks, on average: the clock when they came from the log.
    stamp: u64,
    /// The clock when it took its last stripe; not in the table, so after an opening it is the stamp.
    closed: u64,
}

/// Where a stripe goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) band: u32,
    pub(super) position: u32,
    pub(super) generation: u64,
    pub(super) sequence: u64,
}

/// See the module.
pub(super) struct Ledger {
    geometry: BandGeometry,
    bands: Vec<Band>,
    free: VecDeque<u32>,
    open: [Option<u32>; STREAMS],
    /// Of the last stripe.
    sequence: u64,
    /// Blocks of user streams so far: what ages are measured with.
    clock: u64,
    /// Checkpoints begun so far.
    begun: u64,
    is_exact: bool,
    valid_blocks: u64,
    /// Bands filled, by stream.
    filled: [u64; STREAMS],
    failed: u64,
    defect: Option<BandDefect>,
    /// Bands are zones.
    zoned: bool,
    /// Bands whose zones take no more and are not full: they are to be finished.
    unfinished: BTreeSet<u32>,
    /// Stripes written and bands unmapped: the device does its work.
    successes: u64,
    /// Streams that have found no band.
    turned_away: u64,
}

impl Band {
    fn of(entry: Option<&BandEntry>, band_blocks: u32) -> Band {
        let entry = entry.copied().unwrap_or_default();
        let state = match entry.state {
            BandState::Free => State::Free,
            BandState::Open => State::Open,
            BandState::Closed | BandState::Failing => State::Closed,
            BandState::Retired => State::Retired,
        };
        let written = if state == State::Free { 0 } else { entry.written.min(band_blocks) };
        Band {
            state,
            stream: entry.stream,
            failing: entry.state == BandState::Failing,
            doubtful: false,
            is_empty: false,
            stuck: false,
            walked: false,
            has_data: written > 0,
            written,
            valid: if state == State::Retired { 0 } else { entry.valid.min(written) },
            held: 0,
            under_way: 0,
            writing: 0,
            suspect: false,
            resets: 0,
            reset_at: 0,
            generation: entry.generation,
            stamp: entry.stamp,
            closed: entry.stamp,
        }
    }

    fn is_in_use(&self) -> bool {
        matches!(self.state, State::Open | State::Closed)
    }
}

impl Ledger {
    pub(super) fn new(geometry: BandGeometry, epoch: u32, table: &[BandEntry], zoned: bool) -> Ledger {
        let mut bands: Vec<Band> =
            (0..geometry.bands as usize).map(|index| Band::of(table.get(index), geometry.band_blocks)).collect();
        for band in bands.iter_mut().filter(|band| zoned && band.state == State::Free) {
            // What the table does not know may be written there.
            band.state = State::Unmapping;
        }
        let newest = bands.iter().map(|band| band.generation).max().unwrap_or(0);
        let mut ledger = Ledger {
            geometry,
            free: (0..geometry.bands).filter(|band| bands[*band as usize].state == State::Free).collect(),
            open: [None; STREAMS],
            sequence: ((epoch as u64) << 32).max(newest.saturating_add(1)).min(u64::MAX >> 1),
            clock: bands.iter().map(|band| band.stamp).max().unwrap_or(0).min(u64::MAX >> 1),
            begun: 0,
            is_exact: bands.iter().all(|band| matches!(band.state, State::Free | State::Unmapping)),
            valid_blocks: bands.iter().map(|band| band.valid as u64).sum(),
            filled: [0; STREAMS],
            failed: bands.iter().filter(|band| band.failing || band.state == State::Retired).count() as u64,
            bands,
            defect: None,
            zoned,
            unfinished: BTreeSet::new(),
            successes: 1,
            turned_away: 0,
        };
        (0..geometry.bands).for_each(|band| ledger.adopt(band));
        ledger
    }

    /// More bands, all free. They are the next to be opened, being the least worn.
    pub(super) fn add(&mut self, bands: u32) {
        let first = self.geometry.bands;
        self.geometry.bands += bands;
        self.bands.extend((0..bands).map(|_| Band::of(None, self.geometry.band_blocks)));
        if self.zoned {
            (first..self.geometry.bands).for_each(|band| self.give_back(band));
        } else {
            (first..self.geometry.bands).rev().for_each(|band| self.free.push_front(band));
        }
    }

    /// Gives an open band to its stream, if that has none yet and there is room in it; otherwise it is closed.
    fn adopt(&mut self, number: u32) {
        let unit = self.geometry.unit_blocks;
        let band = &mut self.bands[number as usize];
        if band.state == State::Open {
            match self.open.get_mut(band.stream as usize) {
                Some(open @ None) if band.written.is_multiple_of(unit) => *open = Some(number),
                _ => band.state = State::Closed,
            }
        }
        self.settle(number);
    }

    // --- counts -----------------------------------------------------------------------------------------------------

    pub(super) fn is_place(&self, at: BandAt) -> bool {
        let band = self.bands.get(self.geometry.band_of(at) as usize);
        band.is_some_and(|band| band.is_in_use() && at.0 % self.geometry.band_blocks < band.written)
    }

    /// Whether a root may lead there: that of a checkpoint which had begun when nothing else did any more has pages of before.
    pub(super) fn may_be_led_to(&self, at: BandAt) -> bool {
        let band = self.bands.get(self.geometry.band_of(at) as usize);
        let is_kept = |band: &Band| band.is_in_use() || matches!(band.state, State::Pending(_));
        band.is_some_and(|band| is_kept(band) && at.0 % self.geometry.band_blocks < band.written)
    }

    pub(super) fn live(&mut self, at: BandAt) {
        if self.is_place(at) {
            self.bands[self.geometry.band_of(at) as usize].valid += 1;
            self.valid_blocks += 1;
        }
    }

    pub(super) fn dead(&mut self, at: BandAt) {
        if !self.is_place(at) || self.defect == Some(BandDefect::Miscount) && at.0.is_multiple_of(8) {
            return;
        }
        let number = self.geometry.band_of(at);
        let band = &mut self.bands[number as usize];
        match band.valid.checked_sub(1) {
            Some(valid) => {
                band.valid = valid;
                self.valid_blocks -= 1;
            }
            None => band.doubtful |= self.is_exact,
        }
        self.settle(number);
    }

    pub(super) fn valid(&self, band: u32) -> u32 {
        self.bands[band as usize].valid
    }

    /// The band that is held by that; `None` when there can be no such block.
    pub(super) fn hold(&mut self, at: BandAt) -> Option<u32> {
        let band = self.is_place(at).then(|| self.geometry.band_of(at))?;
        self.bands[band as usize].held += 1;
        Some(band)
    }

    pub(super) fn release(&mut self, number: u32) {
        self.bands[number as usize].held -= 1;
        self.settle(number);
    }

    pub(super) fn recount_begun(&mut self) {
        self.is_exact = false;
        self.valid_blocks = 0;
        for band in &mut self.bands {
            (band.valid, band.doubtful, band.stuck) = (0, false, false);
        }
    }

    pub(super) fn recount_ended(&mut self) {
        self.is_exact = true;
        (0..self.geometry.bands).for_each(|band| self.settle(band));
    }

    /// Whether a count of zero means that nothing leads to the band.
    fn is_trusted(&self, number: u32) -> bool {
        let band = &self.bands[number as usize];
        band.is_empty || (self.is_exact && !band.doubtful)
    }

    /// A band that nothing leads to is pending.
    fn settle(&mut self, number: u32) {
        let trusted = self.is_trusted(number);
        let band = &mut self.bands[number as usize];
        let held = if self.defect == Some(BandDefect::ForgetHeld) { 0 } else { band.held };
        let is_wanted = band.walked || band.valid + held + band.under_way > 0;
        if band.state == State::Closed && trusted && !is_wanted {
            (band.state, band.stuck) = (State::Pending(self.begun), false);
            if self.defect == Some(BandDefect::FreeAtOnce) {
                self.give_back(number);
            }
        }
    }

    pub(super) fn is_broken(&self, defect: BandDefect) -> bool {
        self.defect == Some(defect)
    }

    pub(super) fn break_rule(&mut self, defect: BandDefect) {
        self.defect = Some(defect);
    }

    // --- writing ----------------------------------------------------------------------------------------------------

    /// Free bands that a stream may open.
    fn free_for(&self, stream: Stream) -> u32 {
        let keeps = stream.is_user() && self.defect != Some(BandDefect::NoReserve);
        let reserve = if keeps { RESERVE_BANDS } else { 0 };
        (self.free.len() as u32).saturating_sub(reserve)
    }

    fn may_open(&self, stream: Stream) -> bool {
        self.free_for(stream) > 0
    }

    /// Blocks that are left in the open band of a stream.
    pub(super) fn left(&self, stream: Stream) -> u32 {
        let left = |band: u32| self.geometry.band_blocks - self.bands[band as usize].written;
        self.open[stream as usize].map_or(0, left)
    }

    /// Bands that a stream has filled.
    pub(super) fn filled(&self, stream: Stream) -> u64 {
        self.filled[stream as usize]
    }

    /// Bands in all, and those that may be opened.
    pub(super) fn bands_and_free(&self) -> (u32, u32) {
        (self.geometry.bands, self.free.len() as u32)
    }

    pub(super) fn user_room_blocks(&self) -> u32 {
        self.left(Stream::User) + self.free_for(Stream::User) * self.geometry.band_blocks
    }

    /// How often a stream has found no band.
    pub(super) fn turned_away(&self) -> u64 {
        self.turned_away
    }

    pub(super) fn may_append(&self, stream: Stream) -> bool {
        self.left(stream) >= 2 || self.may_open(stream)
    }

    /// Most blocks of the next stripe of a stream, which has a band from now on; `None` when there is none for it.
    pub(super) fn prepare(&mut self, stream: Stream) -> Option<u32> {
        if self.left(stream) < 2 {
            self.open_next(stream)?;
        }
        Some(self.left(stream).min(self.geometry.stripe_blocks()))
    }

    fn open_next(&mut self, stream: Stream) -> Option<()> {
        if !self.may_open(stream) {
            self.turned_away += 1;
            return None;
        }
        if let Some(former) = self.open[stream as usize].take() {
            self.close(former);
        }
        let next = self.free.pop_front()?;
        self.open[stream as usize] = Some(next);
        let band = &mut self.bands[next as usize];
        assert!(band.state == State::Free && band.valid + band.held + band.under_way == 0, "a free band is free");
        (band.state, band.stream) = (State::Open, stream as u8);
        (band.written, band.has_data, band.stamp) = (0, false, self.clock);
        (band.suspect, band.resets) = (false, 0);
        (band.doubtful, band.is_empty, band.stuck) = (false, false, false);
        band.generation = self.sequence + 1;
        self.unfinished.remove(&next);
        Some(())
    }

    fn close(&mut self, number: u32) {
        let band = &mut self.bands[number as usize];
        if let Some(filled) = self.filled.get_mut(band.stream as usize) {
            *filled += 1;
        }
        (band.state, band.closed) = (State::Closed, self.clock);
        // The device may have failed to finish one that is full; to ask for that again costs nothing.
        self.note_unfinished(number, self.zoned);
        self.settle(number);
    }

    /// A place for a stripe of so many blocks.
    pub(super) fn place(&mut self, stream: Stream, blocks: u32, stamp: u64) -> Option<Spot> {
        if self.left(stream) < blocks {
            self.open_next(stream)?;
        }
        let number = self.open[stream as usize]?;
        self.sequence += 1;
        let band = &mut self.bands[number as usize];
        let position = band.written;
        band.written += blocks;
        band.under_way += 1;
        band.writing += 1;
        let weighed = band.stamp as u128 * position as u128 + stamp as u128 * blocks as u128;
        band.stamp = (weighed / band.written as u128) as u64;
        let spot = Spot { band: number, position, generation: band.generation, sequence: self.sequence };
        if self.left(stream) < 2 {
            self.open[stream as usize] = None;
            self.close(number);
        }
        Some(spot)
    }

    /// A stripe has been written: `held` of its blocks have a place now that somebody will be told.
    pub(super) fn written(&mut self, number: u32, held: u32) {
        let band = &mut self.bands[number as usize];
        band.under_way -= 1;
        band.writing -= 1;
        band.held += held;
        band.has_data = true;
        self.successes += 1;
        self.settle(number);
    }

    /// The band has refused a stripe, which is tried elsewhere: it takes no more for now.
    pub(super) fn refused(&mut self, spot: &Spot, blocks: u32) {
        for open in self.open.iter_mut().filter(|open| **open == Some(spot.band)) {
            *open = None;
        }
        let band = &mut self.bands[spot.band as usize];
        // Not settled: the stripe that it refused still counts as under way.
        (band.state, band.closed) = (State::Closed, self.clock);
        band.writing -= 1;
        if band.written == spot.position + blocks {
            // Who walks the band need not look for its header.
            band.written = spot.position;
        }
        self.note_unfinished(spot.band, self.zoned);
    }

    /// Another band has taken what this one refused.
    pub(super) fn failed_band(&mut self, number: u32) {
        let band = &mut self.bands[number as usize];
        self.failed += !std::mem::replace(&mut band.failing, true) as u64;
        band.under_way -= 1;
        self.settle(number);
    }

    /// No band has taken what this one refused: it is as good as the others.
    pub(super) fn absolve(&mut self, number: u32) {
        let band = &mut self.bands[number as usize];
        band.under_way -= 1;
        let is_unused = !band.has_data && !band.failing && band.valid + band.held + band.under_way == 0;
        if band.state == State::Closed && is_unused {
            self.give_back(number);
        }
        self.settle(number);
    }

    /// So many blocks of a user stream have been taken over: time passes.
    pub(super) fn tick(&mut self, blocks: u32) {
        self.clock += blocks as u64;
    }

    pub(super) fn clock(&self) -> u64 {
        self.clock
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed
    }
}
