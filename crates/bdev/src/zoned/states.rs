//! The zones of a device in memory: states, pointers, limits. Pure decisions, under one lock, by whom and when is the
//! caller's. All block numbers here are relative to the zone's first block.
//!
//! Writes of a zone begin at the pointer, run side by side, and end in order: `done` is all that was acknowledged. When one
//! fails, those behind it fail too, and when all have ended the pointer is back where the first one failed. So nothing
//! acknowledged ever lies behind a hole.

use super::Geometry;
use super::format::{Condition, Entry, PAGE_ZONES};
use crate::io::{Op, Status};
use crate::zone::{Zone, ZoneState};
use crate::zone_wait::{Holds, Waiters, Wakes};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::task::{Poll, Waker};

/// Zones that are written and not in the table yet, as they were when a flush began.
pub(super) type Snapshot = SmallVec<[Unstored; 8]>;

/// See [`Snapshot`].
#[derive(Clone, Copy)]
pub(super) struct Unstored {
    zone: usize,
    done: u64,
    resets: u32,
}

/// One zone.
struct Cell {
    state: ZoneState,
    /// Its place in the order of opening, while it is open.
    opened: u64,
    /// Where the next write goes; writes before it may be under way.
    pointer: u64,
    /// Written and acknowledged.
    done: u64,
    /// Written and durable on the device below.
    durable: u64,
    /// Its descriptor has an extension.
    extended: bool,
    /// As the table has it.
    stored: Entry,
    /// As the table is to have it, instead of what follows from the rest.
    pending: Option<Entry>,
    /// Writes under way.
    in_flight: u32,
    /// Where the first write failed, while writes behind it may be under way.
    failed_at: Option<u64>,
    /// Somebody changes its state; writes wait.
    held: bool,
    /// It is among the unstored.
    listed: bool,
    resets: u32,
}

/// Where a page of the table stands.
#[derive(Clone, Copy)]
pub(super) struct PageState {
    pub(super) generation: u64,
    /// The copy to overwrite first.
    pub(super) first: u64,
    /// A write of it failed: what would be found after a crash may not be what was stored last.
    pub(super) in_doubt: bool,
}

/// Whether a write has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// At this block.
    At(u64),
    /// Not yet: wait until the zone moves.
    Wait,
}

/// See the module.
pub(super) struct States {
    geometry: Geometry,
    open_max: u32,
    active_max: u32,
    cells: Box<[Cell]>,
    pub(super) pages: Box<[PageState]>,
    /// The longest open first.
    open: BTreeMap<u64, usize>,
    next_opened: u64,
    active: u32,
    unstored: Vec<usize>,
    waiters: Waiters,
}

impl States {
    pub(super) fn new(
        geometry: Geometry,
        (open_max, active_max): (u32, u32),
        entries: impl Iterator<Item = Entry>,
        pages: Vec<PageState>,
    ) -> States {
        let cell = |stored: Entry| Cell {
            state: recovered(stored, geometry.capacity_blocks),
            opened: 0,
            pointer: stored.written,
            done: stored.written,
            durable: stored.written,
            extended: stored.extended,
            stored,
            pending: None,
            in_flight: 0,
            failed_at: None,
            held: false,
            listed: false,
            resets: 0,
        };
        let cells: Box<[Cell]> = entries.map(cell).collect();
        let active = cells.iter().filter(|cell| cell.state.is_active()).count() as u32;
        States {
            geometry,
            open_max,
            active_max,
            cells,
            pages: pages.into(),
            open: BTreeMap::new(),
            next_opened: 0,
            active,
            unstored: Vec::new(),
            waiters: Waiters::default(),
        }
    }

    pub(super) fn zone(&self, zone: usize) -> Zone {
        let cell = &self.cells[zone];
        let start = zone as u64 * self.geometry.zone_blocks;
        let (capacity, write_pointer) = (self.geometry.capacity_blocks, start + cell.done);
        Zone { start, capacity, write_pointer, state: cell.state, has_extension: cell.extended }
    }

    /// Blocks of a zone, from its first on, that are read from the device below; the others are zeroes.
    pub(super) fn readable(&self, zone: usize) -> Result<u64, Status> {
        match self.cells[zone].state {
            ZoneState::Offline => Err(Status::ZoneOffline),
            _ => Ok(self.cells[zone].done),
        }
    }

    // --- writes -----------------------------------------------------------------------------------------------------

    /// Begins a write of `blocks` at block `at`, or at the pointer.
    pub(super) fn begin_write(&mut self, zone: usize, at: Option<u64>, blocks: u64) -> Result<Begin, Status> {
        let cell = &self.cells[zone];
        if cell.held || cell.failed_at.is_some() {
            return Ok(Begin::Wait);
        }
        match cell.state {
            ZoneState::Full => return Err(Status::ZoneFull),
            ZoneState::ReadOnly => return Err(Status::ZoneReadOnly),
            ZoneState::Offline => return Err(Status::ZoneOffline),
            _ if cell.pointer == self.geometry.capacity_blocks => return Err(Status::ZoneFull),
            _ => {}
        }
        if at.is_some_and(|at| at != cell.pointer) {
            return Err(Status::ZoneInvalidWrite);
        }
        if blocks > self.geometry.capacity_blocks - cell.pointer {
            return Err(Status::ZoneBoundary);
        }
        self.open(zone, ZoneState::ImplicitlyOpen)?;
        let cell = &mut self.cells[zone];
        let start = cell.pointer;
        cell.pointer += blocks;
        cell.in_flight += 1;
        Ok(Begin::At(start))
    }

    /// The device below has failed a write; it ends with those behind it.
    pub(super) fn fail_write(&mut self, zone: usize, start: u64) {
        let cell = &mut self.cells[zone];
        cell.failed_at = Some(cell.failed_at.map_or(start, |at| at.min(start)));
        self.waiters.wake(zone);
    }

    /// Ends a write when those before it have ended: whether it counts.
    pub(super) fn poll_end_write(&mut self, zone: usize, start: u64, blocks: u64, waker: &Waker) -> Poll<bool> {
        let cell = &mut self.cells[zone];
        let counts = cell.failed_at.is_none_or(|at| start < at);
        if counts && cell.done != start {
            self.waiters.wait(zone, waker);
            return Poll::Pending;
        }
        if counts {
            cell.done += blocks;
            if !std::mem::replace(&mut cell.listed, true) {
                self.unstored.push(zone);
            }
        }
        self.leave(zone);
        Poll::Ready(counts)
    }

    /// A write whose end nobody will tell.
    pub(super) fn abandon_write(&mut self, zone: usize, start: u64) {
        self.fail_write(zone, start);
        self.leave(zone);
    }

    fn leave(&mut self, zone: usize) {
        let cell = &mut self.cells[zone];
        cell.in_flight -= 1;
        if cell.in_flight == 0 && cell.failed_at.take().is_some() {
            cell.pointer = cell.done;
        }
        if cell.done == self.geometry.capacity_blocks {
            self.set_state(zone, ZoneState::Full);
        }
        self.waiters.wake(zone);
    }

    // --- changes of state -------------------------------------------------------------------------------------------

    /// Waits until a zone can be written again.
    pub(super) fn poll_writable(&mut self, zone: usize, waker: &Waker) -> Poll<()> {
        if !self.cells[zone].held && self.cells[zone].failed_at.is_none() {
            return Poll::Ready(());
        }
        self.waiters.wait(zone, waker);
        Poll::Pending
    }

    /// Zones that an operation on all zones is about.
    pub(super) fn concerned(&self, op: Op) -> Vec<usize> {
        (0..self.cells.len()).filter(|zone| self.cells[*zone].state.is_concerned_by(op)).collect()
    }

    /// Whether so many closed zones can be opened.
    pub(super) fn can_open(&self, closed: usize) -> Result<(), Status> {
        let explicit = self.open.values().filter(|zone| self.cells[**zone].state == ZoneState::ExplicitlyOpen).count();
        match self.open_max as usize {
            max if max > 0 && explicit + closed > max => Err(Status::ZoneTooManyOpen),
            _ => Ok(()),
        }
    }

    /// Whether there is something to do for an operation on this zone.
    pub(super) fn allows(&self, op: Op, zone: usize) -> Result<bool, Status> {
        let Cell { state, done, stored, .. } = &self.cells[zone];
        // Written to its end, it may not be full on the medium yet.
        let is_unstored = op == Op::ZoneFinish && *state == ZoneState::Full && stored.written != *done;
        if is_unstored { Ok(true) } else { state.changes_by(op) }
    }

    /// Opens a zone, if the limits allow it; the zone that was implicitly opened first is closed when that makes room.
    pub(super) fn open(&mut self, zone: usize, target: ZoneState) -> Result<(), Status> {
        let state = self.cells[zone].state;
        if state.is_open() {
            // An explicitly opened zone stays one when it is written.
            if target == ZoneState::ExplicitlyOpen {
                self.cells[zone].state = target;
            }
            return Ok(());
        }
        if !state.is_active() && self.active_max > 0 && self.active >= self.active_max {
            return Err(Status::ZoneTooManyActive);
        }
        if self.open_max > 0 && self.open.len() >= self.open_max as usize {
            let is_implicit = |zone: &&usize| self.cells[**zone].state == ZoneState::ImplicitlyOpen;
            let first = *self.open.values().find(is_implicit).ok_or(Status::ZoneTooManyOpen)?;
            self.set_state(first, ZoneState::Closed);
        }
        self.set_state(zone, target);
        Ok(())
    }

    /// Closes an empty zone, if the limits allow it.
    pub(super) fn close_empty(&mut self, zone: usize) -> Result<(), Status> {
        match self.cells[zone].state {
            ZoneState::Empty if self.active_max > 0 && self.active >= self.active_max => Err(Status::ZoneTooManyActive),
            ZoneState::Empty => {
                self.set_state(zone, ZoneState::Closed);
                Ok(())
            }
            ZoneState::ReadOnly => Err(Status::ZoneReadOnly),
            ZoneState::Offline => Err(Status::ZoneOffline),
            _ => Err(Status::ZoneInvalidTransition),
        }
    }

    pub(super) fn set_state(&mut self, zone: usize, state: ZoneState) {
        let old = std::mem::replace(&mut self.cells[zone].state, state);
        if old.is_open() && !state.is_open() {
            self.open.remove(&self.cells[zone].opened);
        } else if state.is_open() && !old.is_open() {
            self.cells[zone].opened = self.next_opened;
            self.open.insert(self.next_opened, zone);
            self.next_opened += 1;
        }
        self.active += u32::from(state.is_active());
        self.active -= u32::from(old.is_active());
    }

    // --- what is durable --------------------------------------------------------------------------------------------

    /// What a flush that begins now makes durable, of one zone or of all.
    pub(super) fn snapshot(&mut self, only: Option<usize>) -> Snapshot {
        let cells = &mut self.cells;
        self.unstored.retain(|zone| {
            let cell = &mut cells[*zone];
            cell.listed = cell.stored.written != cell.done;
            cell.listed
        });
        let wanted = self.unstored.iter().filter(|zone| only.is_none_or(|only| only == **zone));
        wanted.map(|zone| Unstored { zone: *zone, done: cells[*zone].done, resets: cells[*zone].resets }).collect()
    }

    /// The device below has been flushed since the snapshot: the pages of the table that have to say so.
    pub(super) fn made_durable(&mut self, snapshot: &Snapshot) -> SmallVec<[usize; 8]> {
        let mut pages: SmallVec<[usize; 8]> = SmallVec::new();
        for Unstored { zone, done, resets } in snapshot {
            let cell = &mut self.cells[*zone];
            if cell.resets == *resets {
                cell.durable = cell.durable.max(*done);
                pages.push(zone / PAGE_ZONES);
            }
        }
        pages.extend((0..self.pages.len()).filter(|page| self.pages[*page].in_doubt));
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// What page `page` of the table has to say now; none when it does.
    pub(super) fn changed_page(&self, page: usize) -> Option<Vec<Entry>> {
        let cells = self.page(page);
        let is_changed = self.pages[page].in_doubt || cells.iter().any(|cell| cell.entry() != cell.stored);
        is_changed.then(|| cells.iter().map(Cell::entry).collect())
    }

    /// Page `page` of the table says this.
    pub(super) fn stored_page(&mut self, page: usize, entries: &[Entry]) {
        let first = page * PAGE_ZONES;
        for (cell, entry) in self.cells[first..].iter_mut().zip(entries) {
            cell.stored = *entry;
        }
    }

    fn page(&self, page: usize) -> &[Cell] {
        let first = page * PAGE_ZONES;
        &self.cells[first..(first + PAGE_ZONES).min(self.cells.len())]
    }

    /// What the table is to say of a zone that is held and quiet, and flushed: until [`settle`](Self::settle).
    pub(super) fn prepare(&mut self, zone: usize, condition: Condition, keeps_data: bool) {
        let cell = &mut self.cells[zone];
        if keeps_data {
            cell.durable = cell.done;
        }
        let extended = cell.extended && keeps_data && condition != Condition::Offline;
        cell.pending = Some(Entry { written: if keeps_data { cell.done } else { 0 }, condition, extended });
    }

    /// The same for an empty zone that gets an extension.
    pub(super) fn prepare_extended(&mut self, zone: usize) {
        let (cell, condition) = (&mut self.cells[zone], Condition::Normal);
        debug_assert!(cell.done == 0 && !cell.extended, "it is empty");
        cell.pending = Some(Entry { written: 0, condition, extended: true });
    }

    /// Ends what [`prepare`](Self::prepare) began. Gives the number of blocks that the zone does not have any more.
    pub(super) fn settle(&mut self, zone: usize, is_stored: bool) -> u64 {
        let capacity = self.geometry.capacity_blocks;
        let cell = &mut self.cells[zone];
        let entry = cell.pending.take().expect("it has been prepared");
        if !is_stored {
            // Somebody else may have written the page meanwhile, with what was pending.
            self.pages[zone / PAGE_ZONES].in_doubt = true;
            return 0;
        }
        let given_up = cell.done - entry.written;
        cell.resets = cell.resets.wrapping_add(1);
        (cell.pointer, cell.done, cell.durable) = (entry.written, entry.written, entry.written);
        cell.extended = entry.extended;
        let state = recovered(entry, capacity);
        self.set_state(zone, state);
        given_up
    }
}

impl Wakes for States {
    type Woken = SmallVec<[Waker; 4]>;

    fn take_woken(&mut self) -> Self::Woken {
        self.waiters.take_woken()
    }
}

impl Holds for States {
    fn poll_hold(&mut self, zone: usize, waker: &Waker) -> Poll<()> {
        let cell = &mut self.cells[zone];
        if cell.held || cell.failed_at.is_some() {
            self.waiters.wait(zone, waker);
            return Poll::Pending;
        }
        cell.held = true;
        Poll::Ready(())
    }

    fn poll_quiet(&mut self, zone: usize, waker: &Waker) -> Poll<()> {
        if self.cells[zone].in_flight == 0 {
            return Poll::Ready(());
        }
        self.waiters.wait(zone, waker);
        Poll::Pending
    }

    fn release(&mut self, zone: usize) {
        (self.cells[zone].held, self.cells[zone].pending) = (false, None);
        self.waiters.wake(zone);
    }
}

impl Cell {
    fn entry(&self) -> Entry {
        let condition = match self.state {
            ZoneState::ReadOnly => Condition::ReadOnly,
            ZoneState::Offline => Condition::Offline,
            // Finished, or written to its end.
            ZoneState::Full => self.stored.condition,
            _ => Condition::Normal,
        };
        self.pending.unwrap_or(Entry { written: self.durable, condition, extended: self.extended })
    }
}

/// The state of a zone that nobody has opened.
fn recovered(entry: Entry, capacity_blocks: u64) -> ZoneState {
    match entry.condition {
        Condition::Offline => ZoneState::Offline,
        Condition::ReadOnly => ZoneState::ReadOnly,
        Condition::Finished => ZoneState::Full,
        Condition::Normal if entry.written == capacity_blocks => ZoneState::Full,
        Condition::Normal if entry.written > 0 || entry.extended => ZoneState::Closed,
        Condition::Normal => ZoneState::Empty,
    }
}
