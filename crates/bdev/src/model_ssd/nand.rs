//! All dies, and the host programs that are unfinished: the drive's write buffer holds their data until they end.

use super::die::{Die, Kind};
use super::params::SsdModel;
use std::collections::BTreeSet;

/// A program of what the host wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    die: u32,
    id: u64,
}

pub(super) struct Nand {
    dies: Vec<Die>,
    suspend_ns: u64,
    erase_ns: u64,
    /// Ends of the host programs that are unfinished, and which these are.
    unfinished: BTreeSet<(u64, u64)>,
    buffer_programs: usize,
    next_id: u64,
    programmed_bytes: u64,
    erases: u64,
}

impl Nand {
    /// With a buffer for so many unfinished programs of the host.
    pub(super) fn new(model: &SsdModel, buffer_programs: usize) -> Nand {
        Nand {
            dies: (0..model.dies).map(|_| Die::default()).collect(),
            suspend_ns: model.suspend_ns,
            erase_ns: model.erase_ns,
            unfinished: BTreeSet::new(),
            buffer_programs,
            next_id: 1,
            programmed_bytes: 0,
            erases: 0,
        }
    }

    /// The die of a page of a superblock.
    pub(super) fn die_of(&self, page: u64) -> u32 {
        (page % self.dies.len() as u64) as u32
    }

    fn forget_ended(&mut self, now: u64) {
        while self.unfinished.first().is_some_and(|(end, _)| *end <= now) {
            self.unfinished.pop_first();
        }
    }

    /// None when the buffer takes another program now, otherwise when it may.
    pub(super) fn buffer_full_until(&mut self, now: u64) -> Option<u64> {
        self.forget_ended(now);
        if self.unfinished.len() < self.buffer_programs {
            return None;
        }
        self.unfinished.first().map(|(end, _)| *end)
    }

    /// Queues a program of the host, for which the buffer has room.
    pub(super) fn program(&mut self, now: u64, die: u32, duration: u64, bytes: u64) -> Program {
        let id = self.next_id;
        self.next_id += 1;
        let end = self.dies[die as usize].append(now, now, duration, Kind::Host, id);
        self.unfinished.insert((end, id));
        self.programmed_bytes += bytes;
        Program { die, id }
    }

    /// Queues a read and a program of the collector.
    pub(super) fn collect(&mut self, now: u64, from: u32, read: u64, to: u32, program: u64, bytes: u64) {
        self.dies[from as usize].append(now, now, read, Kind::Collect, 0);
        self.dies[to as usize].append(now, now, program, Kind::Collect, 0);
        self.programmed_bytes += bytes;
    }

    /// Queues an erase on every die.
    pub(super) fn erase(&mut self, now: u64) {
        for die in &mut self.dies {
            die.append(now, now, self.erase_ns, Kind::Erase, 0);
        }
        self.erases += 1;
    }

    /// Reserves a read of the host; when it ends.
    pub(super) fn read(&mut self, now: u64, die: u32, duration: u64) -> u64 {
        let unfinished = &mut self.unfinished;
        self.dies[die as usize].read(now, duration, self.suspend_ns, |id, old, new| {
            unfinished.remove(&(old, id));
            unfinished.insert((new, id));
        })
    }

    /// When a program ends, as things stand; none when it is over.
    pub(super) fn end_of(&self, program: Program, now: u64) -> Option<u64> {
        self.dies[program.die as usize].end_of(program.id).filter(|end| *end > now)
    }

    pub(super) fn programmed_bytes(&self) -> u64 {
        self.programmed_bytes
    }

    /// Time that dies were busy for, or will be with what is reserved, all of them together.
    pub(super) fn busy_ns(&self) -> u64 {
        self.dies.iter().map(Die::busy_ns).sum()
    }

    pub(super) fn erases(&self) -> u64 {
        self.erases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nand(buffer: usize) -> Nand {
        let model = SsdModel { dies: 2, ..SsdModel::qlc(1 << 30, 50) };
        Nand::new(&model, buffer)
    }

    #[test]
    fn the_buffer_takes_programs_until_it_is_full_and_again_when_the_earliest_ends() {
        let mut nand = nand(2);
        assert_eq!(nand.buffer_full_until(0), None);
        nand.program(0, 0, 100, 1);
        nand.program(0, 1, 300, 1);
        assert_eq!(nand.buffer_full_until(50), Some(100));
        assert_eq!(nand.buffer_full_until(100), None);
    }

    #[test]
    fn a_program_that_a_read_delays_stays_in_the_buffer_for_longer() {
        let mut nand = nand(1);
        let program = nand.program(0, 0, 1000, 1);
        assert_eq!(nand.read(500, 0, 60_000), 500 + 40_000 + 60_000);
        assert_eq!(nand.buffer_full_until(1000), Some(141_000));
        assert_eq!(nand.end_of(program, 1000), Some(141_000));
        assert_eq!(nand.end_of(program, 141_000), None);
    }

    #[test]
    fn the_collector_and_erases_take_no_room_in_the_buffer() {
        let mut nand = nand(1);
        nand.collect(0, 0, 100, 1, 1000, 64);
        nand.erase(0);
        assert_eq!(nand.buffer_full_until(0), None);
        assert_eq!((nand.programmed_bytes(), nand.erases()), (64, 1));
        assert_eq!(nand.busy_ns(), 1100 + 2 * 100_000);
        assert_eq!(nand.read(10, 1, 5), 1005, "behind the program that runs, before the erase that has not begun");
    }
}
