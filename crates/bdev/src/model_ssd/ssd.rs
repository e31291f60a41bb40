//! The drive as the host sees it: a write buffer, acknowledgements, locks of indirection units, zones.
//!
//! Writes of whole units end when they are in the buffer. A write that covers a part of a unit reads the rest of it, unless
//! that is in the buffer still, and ends when its program has; until then nobody else writes that unit. What is in the buffer
//! is read from there.

use super::ftl::Ftl;
use super::nand::{Nand, Program};
use super::params::SsdModel;
use super::work::{Phase, Request, Work};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What a drive has done since it was made, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SsdCounters {
    /// Written by the host.
    pub host_write_bytes: u64,
    /// Read by the host.
    pub host_read_bytes: u64,
    /// Programmed, for the host and by the collector.
    pub nand_bytes: u64,
    /// Of these, by the collector.
    pub collected_bytes: u64,
    /// Superblocks erased.
    pub erases: u64,
    /// Time that its dies were busy, all of them together, with what has been asked for so far.
    pub busy_ns: u64,
    /// Of each stream, the default one first.
    pub streams: Vec<StreamCounters>,
}

/// What one write stream has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounters {
    /// Written by the host.
    pub host_write_bytes: u64,
    /// Programmed for what this stream wrote, its collection included.
    pub nand_bytes: u64,
}

impl SsdCounters {
    /// Bytes programmed for each byte that the host wrote.
    pub fn write_amplification(&self) -> f64 {
        self.nand_bytes as f64 / self.host_write_bytes.max(1) as f64
    }
}

/// Who has a unit, or a page of a zone, that is not on flash yet.
#[derive(Clone, Copy)]
enum Held {
    /// Somebody reads its old content in order to write it; at least until then.
    Claimed(u64),
    /// Its program; where it `locks`, nobody else may write the unit until that ends.
    Written { program: Program, locks: bool },
}

enum Layout {
    Mapped(Box<Ftl>),
    /// Bytes written to each zone.
    Zones(Vec<u64>),
}

/// A drive without data; see the module.
pub struct Ssd {
    model: SsdModel,
    nand: Nand,
    layout: Layout,
    held: BTreeMap<u64, Held>,
    counters: SsdCounters,
}

impl Ssd {
    /// A drive on which nothing is written.
    ///
    /// # Errors
    /// Why there can be no such drive.
    pub fn new(model: SsdModel) -> Result<Ssd, String> {
        model.check()?;
        let grain = if model.zoned { model.page_bytes } else { model.unit_bytes };
        let nand = Nand::new(&model, (model.buffer_bytes() / grain) as usize);
        let layout = match model.zoned {
            true => Layout::Zones(vec![0; model.superblocks() as usize]),
            false => Layout::Mapped(Box::new(Ftl::new(&model))),
        };
        let streams = vec![StreamCounters::default(); usize::from(model.streams) + 1];
        let counters = SsdCounters { streams, ..SsdCounters::default() };
        Ok(Ssd { model, nand, layout, held: BTreeMap::new(), counters })
    }

    /// What it is made of.
    pub fn model(&self) -> &SsdModel {
        &self.model
    }

    /// What it has done.
    pub fn counters(&self) -> SsdCounters {
        let mut counters = self.counters.clone();
        (counters.nand_bytes, counters.erases) = (self.nand.programmed_bytes(), self.nand.erases());
        counters.busy_ns = self.nand.busy_ns();
        match &self.layout {
            Layout::Mapped(ftl) => {
                counters.collected_bytes = ftl.collected_bytes;
                for (stream, bytes) in counters.streams.iter_mut().zip(&ftl.stream_nand_bytes) {
                    stream.nand_bytes = *bytes;
                }
            }
            Layout::Zones(_) => counters.streams[0].nand_bytes = counters.nand_bytes,
        }
        counters
    }

    /// An operation that nothing has been done for yet. Its range is on the drive.
    pub fn begin(&self, request: Request) -> Work {
        Work { request, phase: Phase::Begin, at: 0, end: 0, claim: None, partials: SmallVec::new() }
    }

    /// Goes as far with an operation as possible at the time `now`, which never runs backwards from call to call. None when it
    /// has ended; otherwise when to call again.
    pub fn step(&mut self, work: &mut Work, now: u64) -> Option<u64> {
        loop {
            let wait = match work.phase {
                Phase::Begin => self.start(work, now),
                Phase::Unit if work.at >= work.end => {
                    let transfer = self.model.link_time(work.transferred());
                    work.phase = Phase::End(now + self.model.ack_ns + transfer);
                    None
                }
                Phase::Unit => self.look(work, now),
                Phase::Old(until) if now < until => Some(until),
                Phase::Old(_) => {
                    work.phase = Phase::Place;
                    None
                }
                Phase::Place => self.place(work, now),
                Phase::End(until) if now < until => Some(until),
                Phase::End(_) => return work.partials.iter().find_map(|program| self.nand.end_of(*program, now)),
            };
            if wait.is_some() {
                return wait;
            }
        }
    }

    /// Gives up an operation that nobody will go on with.
    pub fn abandon(&mut self, work: &mut Work) {
        if let Some(unit) = work.claim.take() {
            self.held.remove(&unit);
        }
    }

    fn start(&mut self, work: &mut Work, now: u64) -> Option<u64> {
        work.phase = match work.request {
            Request::Read { offset, bytes } => {
                self.counters.host_read_bytes += bytes;
                Phase::End(self.read(offset, bytes, now))
            }
            Request::Write { offset, bytes, stream } => {
                let stream = self.stream(stream);
                self.counters.host_write_bytes += bytes;
                self.counters.streams[stream].host_write_bytes += bytes;
                (work.at, work.end) = (offset, offset + bytes);
                Phase::Unit
            }
            Request::Append { zone, bytes } => {
                self.counters.host_write_bytes += bytes;
                self.counters.streams[0].host_write_bytes += bytes;
                self.fill_zone(work, zone, |fill| fill + bytes);
                Phase::Unit
            }
            Request::Finish { zone } => {
                let page = self.model.page_bytes;
                self.fill_zone(work, zone, |fill| fill.next_multiple_of(page));
                Phase::Unit
            }
            Request::Trim { offset, bytes } => {
                self.trim(offset, bytes);
                Phase::End(now + self.model.ack_ns)
            }
            Request::Reset { zone } => {
                self.reset(zone, now);
                Phase::End(now + self.model.ack_ns)
            }
        };
        None
    }

    fn stream(&self, stream: u16) -> usize {
        if stream <= self.model.streams { usize::from(stream) } else { 0 }
    }

    /// Moves the pointer of a zone; the pages that are complete then are what is left to do.
    fn fill_zone(&mut self, work: &mut Work, zone: u64, moved: impl FnOnce(u64) -> u64) {
        let Layout::Zones(fill) = &mut self.layout else { return };
        let fill = &mut fill[zone as usize];
        let (page, size) = (self.model.page_bytes, self.model.superblock_bytes);
        let end = moved(*fill).min(size);
        work.at = zone * size + *fill / page * page;
        work.end = zone * size + end / page * page;
        *fill = end;
    }

    fn reset(&mut self, zone: u64, now: u64) {
        let Layout::Zones(fill) = &mut self.layout else { return };
        if std::mem::take(&mut fill[zone as usize]) == 0 {
            return;
        }
        let pages = self.model.superblock_bytes / self.model.page_bytes;
        self.held.retain(|page, _| page / pages != zone);
        self.nand.erase(now);
    }

    fn trim(&mut self, offset: u64, bytes: u64) {
        let Layout::Mapped(ftl) = &mut self.layout else { return };
        let unit = self.model.unit_bytes;
        (offset.div_ceil(unit)..(offset + bytes) / unit).for_each(|unit| ftl.forget(unit));
    }

    /// Reserves what a read takes; when it ends.
    fn read(&mut self, offset: u64, bytes: u64, now: u64) -> u64 {
        self.forget_ended(now);
        let grain = self.grain();
        let (mut at, end) = (offset, offset + bytes);
        let mut last = now;
        // Neighbours in one page are read together.
        let mut run: Option<(u64, u64)> = None;
        while at < end {
            let next = ((at / grain + 1) * grain).min(end);
            if let Some(page) = self.flash_page(at / grain, now) {
                match &mut run {
                    Some((of, bytes)) if *of == page => *bytes += next - at,
                    _ => {
                        last = last.max(self.read_run(run.replace((page, next - at)), now));
                    }
                }
            }
            at = next;
        }
        last = last.max(self.read_run(run, now));
        let start = if last == now { now + self.model.ack_ns } else { last };
        start + self.model.link_time(bytes)
    }

    fn read_run(&mut self, run: Option<(u64, u64)>, now: u64) -> u64 {
        let Some((page, bytes)) = run else { return now };
        let die = self.die_of(page);
        self.nand.read(now, die, self.model.read_time(bytes))
    }

    /// What is locked, placed and programmed at once: a unit, or a page of a zone.
    fn grain(&self) -> u64 {
        if self.model.zoned { self.model.page_bytes } else { self.model.unit_bytes }
    }

    /// The page, over all superblocks, that has a grain; none when that is in the buffer, or was never written.
    fn flash_page(&self, grain: u64, now: u64) -> Option<u64> {
        if let Some(Held::Written { program, .. }) = self.held.get(&grain)
            && self.nand.end_of(*program, now).is_some()
        {
            return None;
        }
        match &self.layout {
            Layout::Mapped(ftl) => ftl.page_of(grain),
            Layout::Zones(fill) => {
                let pages = self.model.superblock_bytes / self.model.page_bytes;
                let written = fill[(grain / pages) as usize] / self.model.page_bytes;
                (grain % pages < written).then_some(grain)
            }
        }
    }

    fn die_of(&self, page: u64) -> u32 {
        self.nand.die_of(page % (self.model.superblock_bytes / self.model.page_bytes))
    }

    /// Whether a write has to wait until it may touch a grain, and until when.
    fn locked_until(&self, grain: u64, now: u64) -> Option<u64> {
        match self.held.get(&grain)? {
            Held::Claimed(until) if now < *until => Some(*until),
            // Whoever has it waits for room in the buffer; there is no telling for how long.
            Held::Claimed(_) => Some(now + self.model.program_ns / 16),
            Held::Written { program, locks: true } => self.nand.end_of(*program, now),
            Held::Written { locks: false, .. } => None,
        }
    }

    /// Begins with the next unit of a write.
    fn look(&mut self, work: &mut Work, now: u64) -> Option<u64> {
        let grain = work.at / self.grain();
        if let Some(until) = self.locked_until(grain, now) {
            return Some(until);
        }
        work.phase = Phase::Place;
        if self.covers(work, grain) {
            return None;
        }
        work.claim = Some(grain);
        let Some(page) = self.flash_page(grain, now) else {
            self.held.insert(grain, Held::Claimed(now + self.model.program_ns));
            return None;
        };
        let die = self.die_of(page);
        let until = self.nand.read(now, die, self.model.read_time(self.model.unit_bytes));
        self.held.insert(grain, Held::Claimed(until + self.model.program_ns));
        work.phase = Phase::Old(until);
        None
    }

    fn covers(&self, work: &Work, grain: u64) -> bool {
        let size = self.grain();
        work.at <= grain * size && (grain + 1) * size <= work.end
    }

    /// Programs the unit at hand, as soon as the buffer has room for it.
    fn place(&mut self, work: &mut Work, now: u64) -> Option<u64> {
        if let Some(until) = self.nand.buffer_full_until(now) {
            if let Some(unit) = work.claim {
                self.held.insert(unit, Held::Claimed(until + self.model.program_ns));
            }
            return Some(until);
        }
        let grain = work.at / self.grain();
        let covers = self.covers(work, grain);
        if covers && let Some(until) = self.locked_until(grain, now) {
            return Some(until);
        }
        self.forget_ended(now);
        let program = match (&mut self.layout, work.request) {
            (Layout::Mapped(ftl), Request::Write { stream, .. }) => {
                let stream = if usize::from(stream) < ftl.streams() { stream } else { 0 };
                ftl.write(now, grain, usize::from(stream), &mut self.nand)
            }
            _ => {
                let (die, bytes) = (self.die_of(grain), self.model.page_bytes);
                self.nand.program(now, die, self.model.program_ns, bytes)
            }
        };
        self.held.insert(grain, Held::Written { program, locks: !covers });
        work.claim = None;
        if !covers {
            work.partials.push(program);
        }
        work.at = (grain + 1) * self.grain();
        work.phase = Phase::Unit;
        None
    }

    /// Forgets what has reached the flash, once there is much of it.
    fn forget_ended(&mut self, now: u64) {
        if self.held.len() > 2 * (self.model.buffer_bytes() / self.grain()) as usize + 64 {
            let nand = &self.nand;
            self.held.retain(|_, held| match held {
                Held::Claimed(_) => true,
                Held::Written { program, .. } => nand.end_of(*program, now).is_some(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    /// A 64 KiB unit of the default drive: program, read.
    const PROGRAM: u64 = 1_310_000;
    const READ: u64 = 90_000 + 16 * 3_400;

    fn small() -> SsdModel {
        SsdModel { raw_bytes: 64 << 20, superblock_bytes: 4 << 20, ..SsdModel::qlc(32 << 20, 0) }
    }

    /// Runs an operation that begins at `now`; when it ends.
    fn run(ssd: &mut Ssd, request: Request, mut now: u64) -> u64 {
        let mut work = ssd.begin(request);
        while let Some(until) = ssd.step(&mut work, now) {
            assert!(until > now, "it waits for what is to come");
            now = until;
        }
        now
    }

    fn write(offset: u64, bytes: u64) -> Request {
        Request::Write { offset, bytes, stream: 0 }
    }

    #[test]
    fn a_write_of_whole_units_ends_in_the_buffer() {
        let mut ssd = Ssd::new(small()).unwrap();
        let end = run(&mut ssd, write(0, 128 * KIB), 1000);
        assert_eq!(end, 1000 + 8_000 + 128 * KIB * 1000 / 6_000);
        assert_eq!(ssd.counters().nand_bytes, 128 * KIB);
    }

    #[test]
    fn a_full_buffer_makes_writes_wait_for_the_earliest_program() {
        let mut ssd = Ssd::new(SsdModel { buffer_pages: 2, dies: 1, ..small() }).unwrap();
        run(&mut ssd, write(0, 64 * KIB), 0);
        let mut second = ssd.begin(write(64 * KIB, 64 * KIB));
        assert!(ssd.step(&mut second, 0).unwrap() < PROGRAM);
        let mut third = ssd.begin(write(128 * KIB, 64 * KIB));
        assert_eq!(ssd.step(&mut third, 0), Some(PROGRAM));
        assert!(ssd.step(&mut third, PROGRAM).unwrap() < PROGRAM + 20_000);
    }

    #[test]
    fn a_partial_write_reads_the_rest_of_its_unit_and_ends_with_its_program() {
        let mut ssd = Ssd::new(small()).unwrap();
        run(&mut ssd, write(0, 64 * KIB), 0);
        let start = 10 * PROGRAM;
        let end = run(&mut ssd, write(4 * KIB, 4 * KIB), start);
        assert_eq!(end, start + READ + PROGRAM);
        let counters = ssd.counters();
        assert_eq!((counters.host_write_bytes, counters.nand_bytes), (68 * KIB, 128 * KIB));
    }

    #[test]
    fn partial_writes_of_a_unit_follow_each_other_and_read_only_once() {
        let mut ssd = Ssd::new(small()).unwrap();
        run(&mut ssd, write(0, 64 * KIB), 0);
        let start = 10 * PROGRAM;
        let mut first = ssd.begin(write(0, 4 * KIB));
        let mut second = ssd.begin(write(4 * KIB, 4 * KIB));
        let read = ssd.step(&mut first, start).unwrap();
        assert_eq!(read, start + READ);
        let locked = ssd.step(&mut second, start).unwrap();
        let placed = ssd.step(&mut first, read).unwrap();
        assert_eq!(ssd.step(&mut first, placed).unwrap(), read + PROGRAM);
        assert!(locked <= read + PROGRAM);
        assert_eq!(ssd.step(&mut first, read + PROGRAM), None);
        // Its program has ended when the second one may begin, so that one reads again.
        assert_eq!(ssd.step(&mut second, read + PROGRAM), Some(read + PROGRAM + READ));
    }

    #[test]
    fn who_waits_for_a_unit_whose_writer_waits_for_the_buffer_waits_as_long() {
        let mut ssd = Ssd::new(SsdModel { buffer_pages: 1, dies: 1, ..small() }).unwrap();
        run(&mut ssd, write(0, 64 * KIB), 0);
        let start = 10 * PROGRAM;
        let (mut first, mut second) = (ssd.begin(write(0, 4 * KIB)), ssd.begin(write(4 * KIB, 4 * KIB)));
        let read = ssd.step(&mut first, start).unwrap();
        let mut other = ssd.begin(write(64 * KIB, 64 * KIB));
        assert!(ssd.step(&mut other, start).is_some());
        let room = ssd.step(&mut first, read).unwrap();
        assert_eq!(room, read + PROGRAM, "the other one has the buffer");
        assert_eq!(ssd.step(&mut second, read), Some(room + PROGRAM));
    }

    #[test]
    fn the_rest_of_a_unit_that_is_in_the_buffer_is_not_read() {
        let mut ssd = Ssd::new(small()).unwrap();
        run(&mut ssd, write(0, 64 * KIB), 0);
        assert_eq!(run(&mut ssd, write(4 * KIB, 4 * KIB), 100_000), 100_000 + PROGRAM);
    }

    #[test]
    fn a_partial_write_that_is_given_up_leaves_its_unit() {
        let mut ssd = Ssd::new(small()).unwrap();
        run(&mut ssd, write(0, 64 * KIB), 0);
        let mut first = ssd.begin(write(0, 4 * KIB));
        assert!(ssd.step(&mut first, 10 * PROGRAM).is_some());
        ssd.abandon(&mut first);
        assert_eq!(run(&mut ssd, write(0, 64 * KIB), 11 * PROGRAM), 11 * PROGRAM + 8_000 + 64 * KIB * 1000 / 6_000);
    }

    #[test]
    fn reads_come_from_the_buffer_from_flash_or_from_nowhere() {
        let mut ssd = Ssd::new(small()).unwrap();
        let read = Request::Read { offset: 0, bytes: 64 * KIB };
        let link = 64 * KIB * 1000 / 6_000;
        assert_eq!(run(&mut ssd, read, 0), 8_000 + link, "nothing is written there");
        run(&mut ssd, write(0, 64 * KIB), 100_000);
        assert_eq!(run(&mut ssd, read, 200_000), 208_000 + link, "it is in the buffer");
        let late = 10 * PROGRAM;
        assert_eq!(run(&mut ssd, read, late), late + READ + link);
        let part = Request::Read { offset: 8 * KIB, bytes: 4 * KIB };
        assert_eq!(run(&mut ssd, part, 2 * late), 2 * late + 93_400 + 4 * KIB * 1000 / 6_000);
    }

    #[test]
    fn small_units_share_a_page_and_take_their_part_of_its_time() {
        let mut ssd = Ssd::new(SsdModel { unit_bytes: 4 * KIB, ..small() }).unwrap();
        run(&mut ssd, write(0, 64 * KIB), 0);
        assert_eq!(ssd.counters().nand_bytes, 64 * KIB);
        let read = Request::Read { offset: 0, bytes: 64 * KIB };
        assert_eq!(run(&mut ssd, read, 10 * PROGRAM), 10 * PROGRAM + READ + 64 * KIB * 1000 / 6_000);
        // Whole units have nothing to read first.
        run(&mut ssd, write(4 * KIB, 4 * KIB), 20 * PROGRAM);
        assert_eq!(ssd.counters().nand_bytes, 68 * KIB);
    }

    #[test]
    fn trimmed_units_are_not_on_flash_and_parts_of_units_stay() {
        let mut ssd = Ssd::new(small()).unwrap();
        run(&mut ssd, write(0, 256 * KIB), 0);
        let late = 10 * PROGRAM;
        assert_eq!(run(&mut ssd, Request::Trim { offset: 4 * KIB, bytes: 128 * KIB }, late), late + 8_000);
        let read = |unit: u64| Request::Read { offset: unit * 64 * KIB, bytes: 4 * KIB };
        let from_flash: Vec<bool> =
            (0..4).map(|unit| run(&mut ssd, read(unit), 2 * late) > 2 * late + 90_000).collect();
        assert_eq!(from_flash, [true, false, true, true]);
    }

    #[test]
    fn zones_are_programmed_page_by_page_and_have_no_cost_of_their_own() {
        let mut ssd = Ssd::new(SsdModel::qlc_zoned(4, 4 << 20)).unwrap();
        let append = |bytes| Request::Append { zone: 1, bytes };
        run(&mut ssd, append(60 * KIB), 0);
        assert_eq!(ssd.counters().nand_bytes, 0, "a page is programmed when it is full");
        let read = Request::Read { offset: (4 << 20) + 8 * KIB, bytes: 4 * KIB };
        assert!(run(&mut ssd, read, PROGRAM) < PROGRAM + 10_000, "its first part is in the buffer");
        run(&mut ssd, append(8 * KIB), 2 * PROGRAM);
        assert_eq!(ssd.counters().nand_bytes, 64 * KIB);
        assert!(run(&mut ssd, read, 9 * PROGRAM) > 9 * PROGRAM + 90_000);
        run(&mut ssd, Request::Finish { zone: 1 }, 10 * PROGRAM);
        assert_eq!(ssd.counters().nand_bytes, 128 * KIB, "what its last page has");
        run(&mut ssd, Request::Reset { zone: 1 }, 20 * PROGRAM);
        run(&mut ssd, Request::Reset { zone: 2 }, 20 * PROGRAM);
        assert_eq!(ssd.counters().erases, 1, "an empty zone is not erased");
        assert_eq!(run(&mut ssd, read, 30 * PROGRAM), 30 * PROGRAM + 8_000 + 4 * KIB * 1000 / 6_000);
    }

    #[test]
    fn a_stream_that_the_drive_does_not_have_is_the_default_one() {
        let mut ssd = Ssd::new(SsdModel { streams: 1, ..small() }).unwrap();
        for stream in [0, 1, 9] {
            run(&mut ssd, Request::Write { offset: 0, bytes: 64 * KIB, stream }, 0);
        }
        let bytes: Vec<u64> = ssd.counters().streams.iter().map(|stream| stream.nand_bytes).collect();
        assert_eq!(bytes, [128 * KIB, 64 * KIB]);
    }

    #[test]
    fn a_drive_that_cannot_be_says_why() {
        let model = small();
        for (wrong, word) in [
            (SsdModel { unit_bytes: 5000, ..model.clone() }, "power of two"),
            (SsdModel { unit_bytes: 128 * KIB, ..model.clone() }, "larger than a page"),
            (SsdModel { superblock_bytes: 100_000, ..model.clone() }, "whole pages"),
            (SsdModel { raw_bytes: 33 << 20, ..model.clone() }, "spare flash"),
            (SsdModel { exported_bytes: 100, ..model.clone() }, "whole number"),
            (SsdModel { buffer_pages: 0, ..model }, "write buffer"),
        ] {
            let error = Ssd::new(wrong).err().unwrap();
            assert!(error.contains(word), "{error}");
        }
    }
}
