//! What a drive without zones does inside: a map of indirection units to places in superblocks, an open superblock for each write
//! stream and one for the collector, and greedy collection.
//!
//! Collection begins when few superblocks are free and takes the one with the least valid units. It is paid by the host's
//! writes: a victim with `v` of `n` units valid moves `v / (n - v)` for each unit that the host writes, so that it is empty when
//! the host has filled what it gives back. With one superblock free or none, a victim is moved as a whole.

use super::nand::{Nand, Program};
use super::params::SsdModel;
use std::collections::VecDeque;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Open {
    superblock: u32,
    next: u32,
}

/// A superblock that is being emptied.
struct Victim {
    superblock: u32,
    /// Units before this one have been looked at.
    at: u32,
    /// Units to move for every `gain` units of the host.
    moves: u32,
    gain: u32,
    credit: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Full,
    Victim,
}

pub(super) struct Ftl {
    /// Place of each unit.
    map: Vec<u32>,
    /// Unit in each place.
    owner: Vec<u32>,
    /// Stream that wrote each unit last.
    writer: Vec<u16>,
    state: Vec<State>,
    valid: Vec<u32>,
    free: VecDeque<u32>,
    /// Of each stream, and of the collector.
    open: Vec<Option<Open>>,
    victim: Option<Victim>,
    units: u32,
    units_per_page: u32,
    free_low: usize,
    unit_bytes: u64,
    program_ns: u64,
    read_ns: u64,
    /// Bytes programmed for each stream, of the host and of the collector.
    pub(super) stream_nand_bytes: Vec<u64>,
    pub(super) collected_bytes: u64,
}

impl Ftl {
    pub(super) fn new(model: &SsdModel) -> Ftl {
        let superblocks = model.superblocks() as usize;
        let units = (model.superblock_bytes / model.unit_bytes) as u32;
        let exported = (model.exported_bytes / model.unit_bytes) as usize;
        let streams = usize::from(model.streams) + 1;
        Ftl {
            map: vec![NONE; exported],
            owner: vec![NONE; superblocks * units as usize],
            writer: if model.streams > 0 { vec![0; exported] } else { Vec::new() },
            state: vec![State::Free; superblocks],
            valid: vec![0; superblocks],
            free: (0..superblocks as u32).collect(),
            open: vec![None; streams + 1],
            victim: None,
            units,
            units_per_page: (model.page_bytes / model.unit_bytes) as u32,
            free_low: model.free_low as usize,
            unit_bytes: model.unit_bytes,
            program_ns: model.program_time(model.unit_bytes),
            read_ns: model.read_time(model.unit_bytes),
            stream_nand_bytes: vec![0; streams],
            collected_bytes: 0,
        }
    }

    pub(super) fn streams(&self) -> usize {
        self.stream_nand_bytes.len()
    }

    /// The page, counted over all superblocks, that has a unit; none where nothing is mapped.
    pub(super) fn page_of(&self, unit: u64) -> Option<u64> {
        let place = self.map[unit as usize];
        (place != NONE).then(|| u64::from(place / self.units_per_page))
    }

    /// Writes a unit for the host, and collects what that owes.
    pub(super) fn write(&mut self, now: u64, unit: u64, stream: usize, nand: &mut Nand) -> Program {
        let place = self.take_place(stream);
        self.forget(unit);
        self.enter(unit as u32, place);
        if let Some(writer) = self.writer.get_mut(unit as usize) {
            *writer = stream as u16;
        }
        self.stream_nand_bytes[stream] += self.unit_bytes;
        let die = self.die_of_place(place, nand);
        let program = nand.program(now, die, self.program_ns, self.unit_bytes);
        self.collect(now, nand);
        program
    }

    /// Drops a unit.
    pub(super) fn forget(&mut self, unit: u64) {
        let place = std::mem::replace(&mut self.map[unit as usize], NONE);
        if place != NONE {
            self.owner[place as usize] = NONE;
            self.valid[(place / self.units) as usize] -= 1;
        }
    }

    fn enter(&mut self, unit: u32, place: u32) {
        self.map[unit as usize] = place;
        self.owner[place as usize] = unit;
        self.valid[(place / self.units) as usize] += 1;
    }

    fn die_of_place(&self, place: u32, nand: &Nand) -> u32 {
        nand.die_of(u64::from(place % self.units / self.units_per_page))
    }

    /// The next place of a stream, or of the collector, which is the last one.
    fn take_place(&mut self, front: usize) -> u32 {
        let open = match self.open[front] {
            Some(open) => open,
            None => {
                let superblock = self.free.pop_front().expect("collection keeps superblocks free");
                self.state[superblock as usize] = State::Open;
                Open { superblock, next: 0 }
            }
        };
        let place = open.superblock * self.units + open.next;
        self.open[front] = if open.next + 1 == self.units {
            self.state[open.superblock as usize] = State::Full;
            None
        } else {
            Some(Open { next: open.next + 1, ..open })
        };
        place
    }

    fn collect(&mut self, now: u64, nand: &mut Nand) {
        if self.free.len() > self.free_low {
            return;
        }
        self.choose_victim();
        if let Some(victim) = &mut self.victim {
            victim.credit += victim.moves;
            if victim.moves == 0 {
                victim.credit = victim.gain;
            }
        }
        while let Some(victim) = &mut self.victim
            && victim.credit >= victim.gain
        {
            victim.credit -= victim.gain;
            self.move_one(now, nand);
        }
        while self.free.len() <= 1 {
            self.choose_victim();
            while self.victim.is_some() {
                self.move_one(now, nand);
            }
        }
    }

    /// The full superblock with the least valid units, unless there is a victim already.
    fn choose_victim(&mut self) {
        if self.victim.is_some() {
            return;
        }
        let full = (0..self.state.len()).filter(|index| self.state[*index] == State::Full);
        let Some(chosen) = full.min_by_key(|index| self.valid[*index]) else { return };
        let moves = self.valid[chosen];
        assert!(moves < self.units, "spare flash leaves garbage in a full superblock");
        self.state[chosen] = State::Victim;
        self.victim = Some(Victim { superblock: chosen as u32, at: 0, moves, gain: self.units - moves, credit: 0 });
    }

    /// Moves the victim's next valid unit; erases the victim when there is none left.
    fn move_one(&mut self, now: u64, nand: &mut Nand) {
        let Some(victim) = &mut self.victim else { return };
        let first = victim.superblock * self.units;
        while victim.at < self.units && self.owner[(first + victim.at) as usize] == NONE {
            victim.at += 1;
        }
        if victim.at < self.units {
            let from = first + victim.at;
            victim.at += 1;
            self.move_unit(now, from, nand);
        }
        if let Some(victim) = &self.victim
            && self.valid[victim.superblock as usize] == 0
        {
            let superblock = victim.superblock;
            self.victim = None;
            self.state[superblock as usize] = State::Free;
            self.free.push_back(superblock);
            nand.erase(now);
        }
    }

    fn move_unit(&mut self, now: u64, from: u32, nand: &mut Nand) {
        let unit = self.owner[from as usize];
        let to = self.take_place(self.streams());
        self.forget(u64::from(unit));
        self.enter(unit, to);
        let stream = self.writer.get(unit as usize).copied().unwrap_or(0);
        self.stream_nand_bytes[usize::from(stream)] += self.unit_bytes;
        self.collected_bytes += self.unit_bytes;
        let (source, target) = (self.die_of_place(from, nand), self.die_of_place(to, nand));
        nand.collect(now, source, self.read_ns, target, self.program_ns, self.unit_bytes);
    }

    #[cfg(test)]
    fn check(&self) {
        for (unit, place) in self.map.iter().enumerate().filter(|(_, place)| **place != NONE) {
            assert_eq!(self.owner[*place as usize], unit as u32, "the place of a unit names it");
        }
        for superblock in 0..self.state.len() {
            let places = superblock * self.units as usize..(superblock + 1) * self.units as usize;
            let valid = self.owner[places].iter().filter(|owner| **owner != NONE).count();
            assert_eq!(valid, self.valid[superblock] as usize, "superblock {superblock} counts its units");
            assert!(self.state[superblock] != State::Free || valid == 0, "free superblocks are empty");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    /// 64 superblocks of 16 units, of which 48 are exported.
    fn model(streams: u16) -> SsdModel {
        SsdModel { raw_bytes: 64 << 20, dies: 4, superblock_bytes: 1 << 20, streams, ..SsdModel::qlc(48 << 20, 0) }
    }

    fn made(streams: u16) -> (Ftl, Nand) {
        let model = model(streams);
        model.check().unwrap();
        (Ftl::new(&model), Nand::new(&model, 128))
    }

    const UNITS: u64 = 768;

    #[test]
    fn sequential_overwrites_cost_nothing_beyond_themselves() {
        let (mut ftl, mut nand) = made(0);
        for round in 0..10 * UNITS {
            ftl.write(0, round % UNITS, 0, &mut nand);
        }
        ftl.check();
        assert_eq!(ftl.collected_bytes, 0);
        assert_eq!(nand.programmed_bytes(), 10 * UNITS * (64 << 10));
    }

    #[test]
    fn random_overwrites_are_collected_for_and_superblocks_stay_free() {
        let (mut ftl, mut nand) = made(0);
        let mut rng = Rng::new(1);
        (0..UNITS).for_each(|unit| {
            ftl.write(0, unit, 0, &mut nand);
        });
        for _ in 0..20 * UNITS {
            ftl.write(0, rng.below(UNITS), 0, &mut nand);
            assert!(ftl.free.len() >= 2);
        }
        ftl.check();
        let waf = nand.programmed_bytes() as f64 / (21 * UNITS * (64 << 10)) as f64;
        assert!((1.3..2.5).contains(&waf), "a third more flash gives a write amplification of about 1.9, not {waf}");
    }

    #[test]
    fn a_drive_that_is_full_of_scattered_writes_still_takes_them() {
        let model = SsdModel { raw_bytes: 55 << 20, ..model(0) };
        model.check().unwrap();
        let (mut ftl, mut nand) = (Ftl::new(&model), Nand::new(&model, 128));
        let mut rng = Rng::new(2);
        (0..30 * UNITS).for_each(|_| {
            ftl.write(0, rng.below(UNITS), 0, &mut nand);
        });
        ftl.check();
        let too_little = SsdModel { raw_bytes: 54 << 20, ..model };
        assert!(too_little.check().unwrap_err().contains("55"));
    }

    #[test]
    fn trimmed_units_are_not_moved() {
        let (mut ftl, mut nand) = made(0);
        let mut rng = Rng::new(3);
        (0..UNITS).for_each(|unit| {
            ftl.write(0, unit, 0, &mut nand);
        });
        (0..UNITS).filter(|unit| unit % 8 != 0).for_each(|unit| ftl.forget(unit));
        assert_eq!((ftl.page_of(1), ftl.page_of(8).is_some()), (None, true));
        let before = ftl.collected_bytes;
        (0..4 * UNITS).for_each(|_| {
            ftl.write(0, rng.below(UNITS / 8) * 8, 0, &mut nand);
        });
        ftl.check();
        assert!(ftl.collected_bytes - before < UNITS * (64 << 10) / 8, "what is gone is not collected");
    }

    #[test]
    fn streams_keep_what_is_overwritten_often_apart() {
        let run = |streams: u16| {
            let (mut ftl, mut nand) = made(streams);
            let mut rng = Rng::new(4);
            for _ in 0..40 * UNITS {
                // A twentieth of the units gets half of the writes.
                let hot = rng.one_in(2);
                let unit = if hot { rng.below(UNITS / 20) } else { rng.below(UNITS) };
                ftl.write(0, unit, usize::from(hot && streams > 0), &mut nand);
            }
            ftl.check();
            (ftl.collected_bytes, ftl.stream_nand_bytes.clone(), nand.programmed_bytes())
        };
        let (mixed, apart) = (run(0), run(1));
        assert!(apart.0 < mixed.0, "{} against {}", apart.0, mixed.0);
        assert_eq!(apart.1.iter().sum::<u64>(), apart.2, "every program is some stream's");
    }
}
