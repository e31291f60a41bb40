//! What a zone may be: the writes of its present life, how much of them was flushed, and what was asked of it meanwhile.

use bdev::{Zone, ZoneState};
use std::collections::BTreeMap;

/// A write of the zone's present life.
#[derive(Clone, Copy, Debug)]
struct Written {
    blocks: u64,
    /// Where it went, when that is known: relative to the zone's first block.
    place: Option<u64>,
    /// It may be there in part.
    failed: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct ZoneOracle {
    writes: BTreeMap<u64, Written>,
    /// Acknowledged blocks, without a hole before them.
    pub(super) acked: u64,
    flushed: u64,
    full: bool,
    /// A reset, or a finish, was begun and has not succeeded.
    may_be_empty: bool,
    may_be_full: bool,
    /// Changes of state under way.
    changing: u32,
    /// Changes of state that have begun.
    changes: u64,
    /// Writes that fail or are cut may be there in part, and changes that fail may have happened.
    is_drive: bool,
    /// Something has failed since the zone was last looked at.
    in_doubt: bool,
}

/// What a flush that begins now covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Covered {
    acked: u64,
    changes: u64,
    changing: u32,
}

impl ZoneOracle {
    pub(super) fn new(is_drive: bool) -> ZoneOracle {
        ZoneOracle { is_drive, ..ZoneOracle::default() }
    }

    /// Something of the zone has failed, of which the drive may have done a part; a write, if it is one.
    pub(super) fn doubt(&mut self, stamp: Option<u64>) {
        self.in_doubt = true;
        if let Some(written) = stamp.and_then(|stamp| self.writes.get_mut(&stamp)) {
            written.failed = true;
        }
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn begin_write(&mut self, stamp: u64, blocks: u64) {
        self.writes.insert(stamp, Written { blocks, place: None, failed: false });
    }

    /// A write was acknowledged.
    pub(super) fn end_write(&mut self, stamp: u64, place: u64, durable: bool, capacity: u64) {
        let written = self.writes.get_mut(&stamp).expect("a write ends in the life that it began in");
        written.place = Some(place);
        let end = place + written.blocks;
        let known = |at: u64| self.writes.values().find(|other| other.place == Some(at)).map(|other| other.blocks);
        while let Some(blocks) = known(self.acked) {
            self.acked += blocks;
        }
        if durable {
            self.flushed = self.flushed.max(end);
        }
        self.full |= self.acked == capacity;
    }

    /// A write failed; it is nowhere.
    pub(super) fn fail_write(&mut self, stamp: u64) {
        self.writes.remove(&stamp);
    }

    pub(super) fn begin_flush(&self) -> Covered {
        Covered { acked: self.acked, changes: self.changes, changing: self.changing }
    }

    pub(super) fn end_flush(&mut self, covered: Covered) {
        if covered.changes == self.changes {
            self.flushed = self.flushed.max(covered.acked);
            if covered.changing == 0 && !self.in_doubt {
                (self.may_be_empty, self.may_be_full) = (false, false);
            }
        }
    }

    pub(super) fn begin_change(&mut self, reset: bool) {
        self.changes += 1;
        self.changing += 1;
        self.may_be_empty |= reset;
        self.may_be_full |= !reset;
    }

    pub(super) fn end_change(&mut self, reset: bool, ok: bool) {
        self.changing -= 1;
        self.changes += 1;
        if ok && reset {
            *self = ZoneOracle { changes: self.changes, ..ZoneOracle::new(self.is_drive) };
        } else if ok {
            (self.full, self.flushed, self.may_be_full) = (true, self.acked, false);
            // The table has been written whole.
            self.may_be_empty = false;
        } else if self.is_drive {
            self.in_doubt = true;
        }
    }

    /// Judges a zone of a device in use in which no write is under way: its pointer, and the stamps of all of its blocks (a
    /// stamp and which block of its write it is).
    pub(super) fn check_live(&mut self, zone: &Zone, cells: &[Cell], capacity: u64) -> Result<(), String> {
        if self.in_doubt {
            return self.go_on(zone, cells, capacity);
        }
        let is_right = match zone.state {
            ZoneState::Full => self.full,
            ZoneState::Empty => self.acked == 0 && !self.full,
            _ => !self.full && zone.write_pointer - zone.start == self.acked,
        };
        if !is_right {
            return Err(format!("{zone:?} with {} blocks acknowledged, full: {}", self.acked, self.full));
        }
        let written = self.walk(cells, false)?.iter().map(|(_, blocks)| blocks).sum::<u64>();
        if written == self.acked {
            Ok(())
        } else {
            Err(format!("{written} blocks are there, {} should be", self.acked))
        }
    }

    /// Judges a zone after a crash, and goes on from what was found.
    pub(super) fn recover(&mut self, zone: &Zone, cells: &[Cell], capacity: u64) -> Result<(), String> {
        let found = self.walk(cells, self.is_drive)?;
        let written = found.iter().map(|(_, blocks)| blocks).sum::<u64>();
        if written < self.flushed && !(self.may_be_empty && written == 0) {
            return Err(format!("{zone:?} after a crash, although {} blocks were flushed", self.flushed));
        }
        // What a killed process leaves in a drive may be in its cache alone.
        let flushed = if self.is_drive { self.flushed.min(written) } else { written };
        self.adopt(zone, found, capacity)?;
        self.flushed = flushed;
        Ok(())
    }

    /// Judges a zone of a drive after something of it has failed, and goes on from what was found.
    fn go_on(&mut self, zone: &Zone, cells: &[Cell], capacity: u64) -> Result<(), String> {
        let found = self.walk(cells, false)?;
        let written = found.iter().map(|(_, blocks)| blocks).sum::<u64>();
        if written < self.acked && !(self.may_be_empty && written == 0) {
            return Err(format!("{zone:?} after a failure, with {written} blocks of {} acknowledged", self.acked));
        }
        let flushed = self.flushed.min(written);
        self.adopt(zone, found, capacity)?;
        self.flushed = flushed;
        Ok(())
    }

    /// Takes what was found for what there is.
    fn adopt(&mut self, zone: &Zone, found: Vec<(u64, u64)>, capacity: u64) -> Result<(), String> {
        let written = found.iter().map(|(_, blocks)| blocks).sum::<u64>();
        let is_at_pointer = zone.write_pointer.wrapping_sub(zone.start) == written;
        let pointer_is_right = match zone.state {
            ZoneState::Full => self.full || self.may_be_full || written == capacity,
            ZoneState::Empty => written == 0,
            // A zone that was opened on purpose and closed has nothing in it.
            ZoneState::Closed => (written > 0 || self.is_drive) && is_at_pointer,
            ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen => self.is_drive && is_at_pointer,
            _ => false,
        };
        if !pointer_is_right {
            return Err(format!("{zone:?} after a crash or a failure, with {written} blocks in it"));
        }
        let mut place = 0;
        let mut writes = BTreeMap::new();
        for (stamp, blocks) in found {
            writes.insert(stamp, Written { blocks, place: Some(place), failed: false });
            place += blocks;
        }
        *self = ZoneOracle {
            writes,
            acked: written,
            full: zone.state == ZoneState::Full,
            changes: self.changes + 1,
            ..ZoneOracle::new(self.is_drive)
        };
        Ok(())
    }

    /// The writes in a zone's blocks, in order: whole, of this life, each once and where it was said to be; then zeroes. Of a drive, writes
    /// that failed may be there in part, and with `is_cut` so may the last one.
    fn walk(&self, cells: &[Cell], is_cut: bool) -> Result<Vec<(u64, u64)>, String> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < cells.len() && cells[at] != Cell::ZERO {
            let stamp = cells[at].stamp;
            let Some(written) = self.writes.get(&stamp) else {
                return Err(format!("block {at} is of write {stamp:#x}, which is not of this life"));
            };
            let is_placed = written.place.is_none_or(|place| place == at as u64);
            if !is_placed || found.iter().any(|(other, _)| *other == stamp) {
                return Err(format!("write {stamp:#x} is at block {at}, but was acknowledged at {:?}", written.place));
            }
            let cell = |block: u64| cells.get(at + block as usize).copied().unwrap_or(Cell::ZERO);
            let wrong = (0..written.blocks).find(|block| cell(*block) != (Cell { stamp, block: *block }));
            let blocks = wrong.unwrap_or(written.blocks);
            let may_be_part = written.failed || is_cut && cell(blocks) == Cell::ZERO;
            if blocks < written.blocks && !(blocks > 0 && may_be_part) {
                let cell = cell(blocks);
                return Err(format!("write {stamp:#x} at block {at} is not whole: {cell:?} at {blocks}"));
            }
            found.push((stamp, blocks));
            at += blocks as usize;
        }
        match cells[at..].iter().position(|cell| *cell != Cell::ZERO) {
            None => Ok(found),
            Some(behind) => Err(format!("block {} is not zero, behind the pointer at {at}", at + behind)),
        }
    }
}

/// What a block was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) stamp: u64,
    pub(super) block: u64,
}

impl Cell {
    pub(super) const ZERO: Cell = Cell { stamp: 0, block: 0 };
}
