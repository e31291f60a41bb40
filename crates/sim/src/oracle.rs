//! What a storage device may answer: for every cell (the media's atomic unit) the set of values a read may return now, and
//! the set that may be left after a power cut.
//!
//! ```text
//! begin write v      readable += v, surviving += v
//! write ended well   readable  = {v}                    (when no other write overlapped it; otherwise it stays a set)
//! flush ended well   surviving = what was readable when the flush began + everything begun since
//! power cut          readable  = surviving
//! ```
//! A value is a stamp that names one write; 0 is a cell of zeroes. Nothing here knows how the device works.

use base::Rng;
use std::collections::BTreeMap;
use std::ops::Range;

/// Values of one cell.
type Values = Vec<u64>;

#[derive(Clone, Debug)]
struct Cell {
    readable: Values,
    surviving: Values,
    /// What was left after losses below a living user.
    left: Values,
    /// Values that a failed flush may have left on the media for good, until the cell is rewritten.
    tainted: Values,
    /// When the cell was rewritten after that; a flush that begins later removes the taint.
    rewritten_at: Option<u64>,
    /// Copies of it may have parted since a flush failed of which nobody knows: a read tells of one of them alone.
    parts: bool,
    /// Writes under way, and whether any two of them met.
    writers: u32,
    overlapped: bool,
    /// Writes begun, with their times, as far back as an operation under way may care.
    begun: Vec<(u64, u64)>,
}

impl Cell {
    fn new(value: u64) -> Cell {
        let values = vec![value];
        Cell {
            readable: values.clone(),
            surviving: values,
            left: Vec::new(),
            tainted: Vec::new(),
            parts: false,
            rewritten_at: None,
            writers: 0,
            overlapped: false,
            begun: Vec::new(),
        }
    }

    fn untaint(&mut self) {
        self.tainted.clear();
        self.parts = false;
    }

    fn begun_since(&self, time: u64) -> impl Iterator<Item = u64> + '_ {
        self.begun.iter().filter(move |(at, _)| *at >= time).map(|(_, stamp)| *stamp)
    }
}

fn add(values: &mut Values, value: u64) {
    if !values.contains(&value) {
        values.push(value);
    }
}

/// A write under way.
#[derive(Debug)]
#[must_use]
pub struct WriteTicket {
    cells: Range<usize>,
    stamp: u64,
    time: u64,
}

/// A read under way.
#[derive(Debug)]
#[must_use]
pub struct ReadTicket {
    cells: Range<usize>,
    /// What each cell may read as, and whether no write of it was under way when the read began.
    allowed: Vec<(Values, bool)>,
    time: u64,
}

/// A flush under way.
#[derive(Debug)]
#[must_use]
pub struct FlushTicket {
    readable: Vec<Values>,
    time: u64,
}

/// See the module.
#[derive(Clone)]
pub struct CellOracle {
    cells: Vec<Cell>,
    clock: u64,
    last_flush_failure: u64,
    /// When the media below a living user last lost their caches.
    last_loss_below: u64,
    /// Flushes under way by the time they began, with what could survive then: when one fails, whatever others achieved
    /// meanwhile is void, since the failure may have dropped the very writes that they covered.
    flushes: BTreeMap<u64, Vec<Values>>,
    /// Writes under way by the time they began: the cells whose former values were others, and the stamp.
    writes: BTreeMap<u64, (Vec<usize>, u64)>,
    next_stamp: u64,
    /// A read beside a write of the same cell may see parts of both.
    torn_reads: bool,
}

impl CellOracle {
    /// `cells` cells of zeroes, durable.
    pub fn new(cells: usize) -> CellOracle {
        CellOracle {
            cells: vec![Cell::new(0); cells],
            clock: 0,
            last_flush_failure: 0,
            last_loss_below: 0,
            flushes: BTreeMap::new(),
            writes: BTreeMap::new(),
            next_stamp: 1,
            torn_reads: false,
        }
    }

    /// A read beside a write of the same cell may see parts of both (memory that is lent rather than copied).
    pub fn allow_torn_reads(&mut self) {
        self.torn_reads = true;
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.cells.len()
    }

    /// What a cell may read as now.
    pub fn readable(&self, cell: usize) -> &[u64] {
        &self.cells[cell].readable
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A value not used before.
    pub fn fresh_stamp(&mut self) -> u64 {
        self.next_stamp += 1;
        self.next_stamp
    }

    /// A write of `stamp` (0 zeroes the cells) is about to be submitted.
    pub fn begin_write(&mut self, cells: Range<usize>, stamp: u64) -> WriteTicket {
        let time = self.tick();
        let changes = cells.clone().filter(|index| !self.cells[*index].readable.contains(&stamp)).collect();
        self.writes.insert(time, (changes, stamp));
        for cell in &mut self.cells[cells.clone()] {
            cell.overlapped |= cell.writers > 0;
            cell.writers += 1;
            add(&mut cell.readable, stamp);
            add(&mut cell.surviving, stamp);
            cell.begun.push((time, stamp));
        }
        WriteTicket { cells, stamp, time }
    }

    /// The write ended: well, and with `durable` on media, or badly, having changed any part of its cells or none.
    pub fn end_write(&mut self, ticket: WriteTicket, ok: bool, durable: bool) {
        let now = self.tick();
        self.writes.remove(&ticket.time);
        // Acknowledged after a loss, perhaps done before it.
        let certain = durable || ticket.time > self.last_loss_below;
        for cell in &mut self.cells[ticket.cells] {
            cell.writers -= 1;
            let alone = !cell.overlapped;
            if ok && alone && certain {
                cell.readable = vec![ticket.stamp];
                if ticket.time > self.last_flush_failure {
                    cell.rewritten_at = Some(now);
                }
                if durable {
                    cell.surviving = vec![ticket.stamp];
                    cell.untaint();
                }
            }
            if cell.writers == 0 {
                cell.overlapped = false;
            }
            if cell.begun.len() > 64 {
                cell.begun.retain(|(at, _)| *at + 10_000 > now);
            }
        }
    }

    /// A flush is about to be submitted.
    pub fn begin_flush(&mut self) -> FlushTicket {
        let time = self.tick();
        self.flushes.insert(time, self.cells.iter().map(|cell| cell.surviving.clone()).collect());
        FlushTicket { readable: self.cells.iter().map(|cell| cell.readable.clone()).collect(), time }
    }

    /// The flush ended.
    pub fn end_flush(&mut self, ticket: FlushTicket, ok: bool) {
        self.tick();
        let survived = self.flushes.remove(&ticket.time).expect("a flush ends once");
        if !ok {
            return self.flush_failed(survived);
        }
        if ticket.time < self.last_loss_below {
            return;
        }
        for (cell, readable) in self.cells.iter_mut().zip(ticket.readable) {
            let since: Values = cell.begun_since(ticket.time).collect();
            // A flush that began before another one ended may know less than that one did.
            let kept = cell.surviving.clone();
            cell.surviving = readable;
            since.into_iter().for_each(|stamp| add(&mut cell.surviving, stamp));
            cell.surviving.retain(|stamp| kept.contains(stamp));
            if cell.rewritten_at.is_some_and(|at| at < ticket.time) {
                cell.untaint();
            }
            let tainted = cell.tainted.clone();
            tainted.into_iter().for_each(|stamp| add(&mut cell.surviving, stamp));
        }
    }

    fn flush_failed(&mut self, survived: Vec<Values>) {
        self.last_flush_failure = self.clock;
        for (cell, survived) in self.cells.iter_mut().zip(survived) {
            let possible = survived.into_iter().chain(cell.surviving.clone()).collect::<Values>();
            possible.into_iter().for_each(|value| add(&mut cell.tainted, value));
            cell.rewritten_at = None;
            cell.tainted.clone().into_iter().for_each(|value| add(&mut cell.surviving, value));
        }
    }

    /// A flush failed that the user did not ask for, and the process will not live to tell of it.
    pub fn flush_failed_unheard(&mut self) {
        let survived = self.cells.iter().map(|cell| cell.surviving.clone()).collect();
        self.tick();
        self.flush_failed(survived);
        self.cells.iter_mut().for_each(|cell| cell.parts |= cell.tainted.len() > 1);
    }

    /// A read is about to be submitted.
    pub fn begin_read(&mut self, cells: Range<usize>) -> ReadTicket {
        let time = self.tick();
        let allowed = self.cells[cells.clone()].iter().map(|cell| (cell.readable.clone(), cell.writers == 0)).collect();
        ReadTicket { cells, allowed, time }
    }

    /// The read ended well with these values, one for each cell. Says which value was impossible.
    pub fn end_read(&mut self, ticket: ReadTicket, values: &[Result<u64, String>]) -> Result<(), String> {
        assert_eq!(values.len(), ticket.cells.len(), "one value for each cell");
        // Answered after a loss: of before it or of after it.
        let straddles = ticket.time < self.last_loss_below;
        for ((index, value), (mut allowed, calm)) in ticket.cells.zip(values).zip(ticket.allowed) {
            let cell = &mut self.cells[index];
            if straddles {
                cell.left.iter().for_each(|stamp| add(&mut allowed, *stamp));
            }
            cell.begun_since(ticket.time).for_each(|stamp| add(&mut allowed, stamp));
            let value = match value {
                Ok(value) if allowed.contains(value) => *value,
                Ok(value) => return Err(format!("cell {index} reads as write {value}, allowed are {allowed:?}")),
                Err(_) if self.torn_reads && !(calm && cell.begun_since(ticket.time).next().is_none()) => continue,
                Err(damage) => return Err(format!("cell {index} {damage}, allowed are {allowed:?}")),
            };
            // Seen while nothing was under way: that is what it is now, and from then on.
            let settles = calm && !straddles && !cell.parts;
            if settles && cell.writers == 0 && !cell.begun_since(ticket.time).any(|_| true) {
                cell.readable = vec![value];
            }
        }
        Ok(())
    }

    /// The process died: its operations under way happened or did not; the device's cache is intact.
    pub fn killed(&mut self) {
        for survived in std::mem::take(&mut self.flushes).into_values() {
            // It may have failed with nobody left to hear of it.
            self.flush_failed(survived);
        }
        self.writes.clear();
        for cell in &mut self.cells {
            cell.writers = 0;
            cell.overlapped = false;
        }
    }

    /// What may be read after a crash at this moment, where every acknowledged write is durable.
    pub fn snapshot(&self) -> Snapshot {
        let alone = |index: &usize| self.cells[*index].writers == 1 && !self.cells[*index].overlapped;
        let writes = self.writes.values().map(|(cells, stamp)| {
            let cells: Vec<usize> = cells.iter().copied().filter(alone).collect();
            (cells, *stamp)
        });
        Snapshot {
            allowed: self.cells.iter().map(|cell| cell.readable.clone()).collect(),
            writes: writes.filter(|(cells, _)| cells.len() > 1).collect(),
        }
    }

    /// The power was cut.
    pub fn power_cut(&mut self) {
        self.killed();
        for cell in &mut self.cells {
            cell.readable = cell.surviving.clone();
        }
    }

    /// The media lost their caches under a user who lives on and repeats what was under way: a target behind a network.
    /// Operations under way stay so; those that straddle the loss prove nothing unless they were durable by themselves.
    pub fn lost_below(&mut self) {
        self.last_loss_below = self.tick();
        for cell in &mut self.cells {
            cell.readable = cell.surviving.clone();
            cell.surviving.iter().for_each(|stamp| add(&mut cell.left, *stamp));
        }
    }

    /// The values just read after a power cut are on the media: nothing older can come back.
    pub fn settle(&mut self) {
        for cell in &mut self.cells {
            cell.surviving = cell.readable.clone();
            cell.tainted.clear();
            cell.parts &= cell.readable.len() > 1;
            cell.begun.clear();
        }
    }
}

/// What an oracle knew at some moment; see [`CellOracle::snapshot`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    allowed: Vec<Values>,
    /// Writes under way that nothing else met: cells that would show it, and their stamp.
    writes: Vec<(Vec<usize>, u64)>,
}

impl Snapshot {
    /// Says which value was impossible. Of a write under way, the cells with the same number by `unit` must all be written
    /// or none of them.
    pub fn judge(&self, values: &[Result<u64, String>], unit: impl Fn(usize) -> u64) -> Result<(), String> {
        assert_eq!(values.len(), self.allowed.len(), "one value for each cell");
        for (index, (value, allowed)) in values.iter().zip(&self.allowed).enumerate() {
            match value {
                Ok(value) if allowed.contains(value) => {}
                Ok(value) => return Err(format!("cell {index} reads as write {value}, allowed are {allowed:?}")),
                Err(damage) => return Err(format!("cell {index} {damage}, allowed are {allowed:?}")),
            }
        }
        for (cells, stamp) in &self.writes {
            let written = |index: &usize| values[*index] == Ok(*stamp);
            for cells in cells.chunk_by(|one, next| unit(*one) == unit(*next)) {
                if cells.iter().any(written) && !cells.iter().all(written) {
                    return Err(format!("write {stamp} is torn: of {cells:?} only some cells have it"));
                }
            }
        }
        Ok(())
    }
}

/// Fills one cell's bytes for a stamp; every byte depends on the stamp and the cell.
pub fn fill_cell(target: &mut [u8], stamp: u64, cell: usize) {
    if stamp == 0 {
        return target.fill(0);
    }
    Rng::new(stamp ^ (cell as u64) << 40).fill(target);
    target[..8].copy_from_slice(&stamp.to_le_bytes());
}

/// The stamp of a cell's bytes, or what is wrong with them.
pub fn read_cell(bytes: &[u8], cell: usize) -> Result<u64, String> {
    let stamp = u64::from_le_bytes(bytes[..8].try_into().expect("cells are longer than a stamp"));
    let mut wanted = [0u8; 4096];
    let wanted = &mut wanted[..bytes.len()];
    fill_cell(wanted, stamp, cell);
    if *wanted == *bytes {
        return Ok(stamp);
    }
    let at = wanted.iter().zip(bytes).take_while(|(a, b)| a == b).count();
    Err(format!("is damaged from byte {at} on (it begins as write {stamp:#x})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(oracle: &mut CellOracle, cell: usize, durable: bool) -> u64 {
        let stamp = oracle.fresh_stamp();
        let ticket = oracle.begin_write(cell..cell + 1, stamp);
        oracle.end_write(ticket, true, durable);
        stamp
    }

    fn reads(oracle: &mut CellOracle, cell: usize, value: u64) -> bool {
        let ticket = oracle.begin_read(cell..cell + 1);
        oracle.end_read(ticket, &[Ok(value)]).is_ok()
    }

    #[test]
    fn acknowledged_writes_are_read_back_and_flushed_ones_survive() {
        let mut oracle = CellOracle::new(2);
        let a = write(&mut oracle, 0, false);
        assert!(!reads(&mut oracle, 0, 0) && reads(&mut oracle, 0, a));
        let ticket = oracle.begin_flush();
        oracle.end_flush(ticket, true);
        let b = write(&mut oracle, 0, false);
        oracle.power_cut();
        assert!(!reads(&mut oracle, 0, 0), "flushed away");
        assert!(reads(&mut oracle.clone_for_test(), 0, a) && reads(&mut oracle, 0, b));
    }

    #[test]
    fn forced_writes_survive_and_a_kill_loses_nothing() {
        let mut oracle = CellOracle::new(1);
        let a = write(&mut oracle, 0, true);
        let b = write(&mut oracle, 0, false);
        oracle.killed();
        assert!(!reads(&mut oracle, 0, a));
        oracle.power_cut();
        assert!(reads(&mut oracle.clone_for_test(), 0, a) && reads(&mut oracle, 0, b));
    }

    #[test]
    fn a_failed_flush_leaves_old_values_possible_until_the_cell_is_rewritten() {
        let mut oracle = CellOracle::new(1);
        write(&mut oracle, 0, false);
        for ok in [false, true] {
            let ticket = oracle.begin_flush();
            oracle.end_flush(ticket, ok);
        }
        oracle.power_cut();
        assert!(reads(&mut oracle.clone_for_test(), 0, 0));
        let mut oracle = CellOracle::new(1);
        write(&mut oracle, 0, false);
        let ticket = oracle.begin_flush();
        oracle.end_flush(ticket, false);
        write(&mut oracle, 0, false);
        let ticket = oracle.begin_flush();
        oracle.end_flush(ticket, true);
        oracle.power_cut();
        assert!(!reads(&mut oracle, 0, 0));
    }

    #[test]
    fn a_failed_flush_that_nobody_heard_of_leaves_old_values_possible_although_later_ones_succeed() {
        let mut oracle = CellOracle::new(1);
        let a = write(&mut oracle, 0, false);
        oracle.flush_failed_unheard();
        oracle.killed();
        let ticket = oracle.begin_flush();
        oracle.end_flush(ticket, true);
        oracle.power_cut();
        assert!(reads(&mut oracle.clone_for_test(), 0, 0) && reads(&mut oracle, 0, a));
        // Of two copies each has one of them, until it is written anew.
        assert!(reads(&mut oracle, 0, 0) && reads(&mut oracle, 0, a));
        oracle.settle();
        assert!(reads(&mut oracle, 0, 0) && reads(&mut oracle, 0, a));
        let b = write(&mut oracle, 0, true);
        assert!(!reads(&mut oracle, 0, a) && reads(&mut oracle, 0, b));
    }

    #[test]
    fn a_loss_below_a_living_user_takes_what_was_not_flushed() {
        let mut oracle = CellOracle::new(2);
        let a = write(&mut oracle, 0, false);
        let (straddling, flush) = (oracle.begin_write(1..2, 90), oracle.begin_flush());
        oracle.lost_below();
        oracle.end_write(straddling, true, false);
        oracle.end_flush(flush, true);
        assert!(reads(&mut oracle.clone_for_test(), 0, 0) && reads(&mut oracle, 0, a));
        assert!(reads(&mut oracle.clone_for_test(), 1, 0) && reads(&mut oracle, 1, 90));
    }

    #[test]
    fn a_read_across_a_loss_below_may_see_what_was_before_or_after_and_settles_nothing() {
        let mut oracle = CellOracle::new(1);
        let a = write(&mut oracle, 0, false);
        for value in [0, a] {
            let read = oracle.begin_read(0..1);
            oracle.lost_below();
            assert!(oracle.end_read(read, &[Ok(value)]).is_ok());
        }
        assert!(reads(&mut oracle.clone_for_test(), 0, 0) && reads(&mut oracle, 0, a));
    }

    #[test]
    fn overlapping_writes_and_reads_may_see_either() {
        let mut oracle = CellOracle::new(1);
        let (a, b) = (oracle.begin_write(0..1, 10), oracle.begin_write(0..1, 11));
        let read = oracle.begin_read(0..1);
        oracle.end_write(a, true, false);
        oracle.end_write(b, true, false);
        assert!(oracle.end_read(read, &[Ok(0)]).is_ok());
        assert!(reads(&mut oracle.clone_for_test(), 0, 10) && reads(&mut oracle, 0, 11));
        assert!(!reads(&mut oracle, 0, 10), "once seen, it stays");
    }

    #[test]
    fn torn_reads_are_allowed_beside_writes_only() {
        let mut oracle = CellOracle::new(1);
        oracle.allow_torn_reads();
        let torn = || [Err("is damaged".to_string())];
        let (before, write) = (oracle.begin_read(0..1), oracle.begin_write(0..1, 10));
        let beside = oracle.begin_read(0..1);
        assert!(oracle.end_read(before, &torn()).is_ok() && oracle.end_read(beside, &torn()).is_ok());
        oracle.end_write(write, true, false);
        let after = oracle.begin_read(0..1);
        assert!(oracle.end_read(after, &torn()).is_err());
    }

    #[test]
    fn cells_know_their_place() {
        let mut bytes = [0; 512];
        fill_cell(&mut bytes, 7, 3);
        assert_eq!(read_cell(&bytes, 3), Ok(7));
        assert!(read_cell(&bytes, 4).is_err());
        bytes[400] ^= 1;
        assert!(read_cell(&bytes, 3).is_err());
        assert_eq!(read_cell(&[0; 512], 9), Ok(0));
    }

    #[test]
    fn a_snapshot_allows_old_or_new_and_nothing_torn() {
        let mut oracle = CellOracle::new(4);
        let a = write(&mut oracle, 0, true);
        let _under_way = oracle.begin_write(0..4, 50);
        let snapshot = oracle.snapshot();
        let judge = |values: [u64; 4]| snapshot.judge(&values.map(Ok), |cell| cell as u64 / 2).is_ok();
        assert!(judge([a, 0, 0, 0]) && judge([50; 4]) && judge([a, 0, 50, 50]));
        assert!(!judge([0; 4]), "acknowledged");
        assert!(!judge([50, 0, 0, 0]), "torn");
    }

    impl CellOracle {
        fn clone_for_test(&self) -> CellOracle {
            CellOracle { cells: self.cells.clone(), ..CellOracle::new(0) }
        }
    }
}
