//! `engine-log`: the engine's log on persistent memory and on a disk, crashed at every kind of boundary, again and again.
//!
//! Safety: after a crash the log holds, from the tail on, everything that was durable and nothing that was not begun, in
//! order, whole; reading it twice gives the same; no segment is overwritten before it is released. Liveness: when the
//! faults end, the log takes records again.

use crate::Run;
use crate::blocks::{Crew, is};
use crate::crashes::{SECOND_NS, any_crash};
use base::{Rng, crc32c};
use bdev::{BlockDevice, FileDevice, FileDeviceOptions};
use engine::LogTail;
use engine::log::{Class, Head, Log, LogError, LogGeometry, Medium, Placed, Record, Sink, scan};
use reactor::{Buf, Reactor, SgList};
use sim::{DiskFaults, DiskOptions, Failure, Handle, Mutation, NodeId, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const PMEM: &str = "/dax0";
const DISK: &str = "/log";
const BLOCK: usize = 4096;
/// Where the shard's segments begin: not at zero, so that the offset counts.
const FIRST_BYTE: u64 = 2 * BLOCK as u64;

/// What the outside world knows; outlives crashes.
struct Ledger {
    /// Records begun; each is known by its number, which its content tells.
    begun: u32,
    /// Number of the log -> the record's, and its segment: what was reported durable.
    durable: BTreeMap<u64, (u32, u64)>,
    tail: LogTail,
    epoch: u32,
}

#[derive(Clone)]
struct Rig {
    sim: Handle,
    node: NodeId,
    seed: u64,
    mapped: bool,
    block_size: u32,
    direct: bool,
    errors_allowed: bool,
    geometry: LogGeometry,
    ledger: Rc<RefCell<Ledger>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let node = world.add_node();
    world.set_schedule(ScheduleFaults::swarm(rng));
    let segments = rng.between(4, 10) as u32;
    let segment_blocks = rng.between(80, 128) as u32;
    let geometry = LogGeometry { shard: 1, pool: *b"scenario", segments, segment_blocks };
    let mapped = rng.one_in(2);
    let errors_allowed = !mapped && rng.one_in(3);
    let unit = if rng.one_in(2) { 512 } else { 4096 };
    if !mapped {
        let bytes = FIRST_BYTE + segments as u64 * segment_blocks as u64 * BLOCK as u64;
        let options = DiskOptions {
            bytes,
            unit,
            volatile_cache: !rng.one_in(4),
            synchronous: rng.one_in(4),
            ..Default::default()
        };
        let mut faults = DiskFaults { slow: if rng.one_in(3) { 50 } else { 0 }, ..DiskFaults::default() };
        if errors_allowed {
            faults.write_error = rng.between(10, 100);
            faults.read_error = if rng.one_in(2) { rng.between(20, 200) } else { 0 };
        }
        world.add_disk(node, DISK, options, faults);
    }
    let tail = LogTail { segment: 1, lsn: 1 };
    let ledger = Ledger { begun: 0, durable: BTreeMap::new(), tail, epoch: 0 };
    let rig = Rig {
        sim: world.handle(),
        node,
        seed: rng.next_u64(),
        mapped,
        block_size: if rng.one_in(2) { unit } else { 4096 },
        direct: rng.one_in(2),
        errors_allowed,
        geometry,
        ledger: Rc::new(RefCell::new(ledger)),
    };
    for round in 0..rng.between(2, 7) {
        world.handle().note(format!("round {round}"));
        world.boot(node, 1, World::reactor_config());
        let crash = any_crash(rng);
        if !rng.one_in(4) {
            world.crash_after_writes(node, rng.between(1, 150), crash);
        }
        let (rig, tasks, count) = (rig.clone(), rng.between(1, 4), rng.between(1, 40));
        let crew = Crew::default();
        let inner = crew.clone();
        world.spawn(node, 0, |reactor| crew.member(rig.live(reactor, inner, tasks, count)));
        world.run_for(rng.between(SECOND_NS / 1000, SECOND_NS / 10))?;
        if world.is_running(node) {
            world.crash(node, crash);
        }
    }
    world.heal();
    world.boot(node, 1, World::reactor_config());
    let crew = Crew::default();
    let (rig, inner) = (Rig { errors_allowed: false, ..rig }, crew.clone());
    world.spawn(node, 0, |reactor| crew.member(rig.live(reactor, inner, 2, 10)));
    world.run_until("the log to take records again", 60 * SECOND_NS, |_| crew.is_done())
}

/// Record number `number`, and its payload.
fn record(seed: u64, number: u32) -> (Record, Vec<u8>) {
    let rng = &mut Rng::new(seed ^ (number as u64) << 20);
    let bytes = |rng: &mut Rng, len: usize| {
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        bytes
    };
    match rng.below(12) {
        0..5 => {
            let blocks = if rng.one_in(8) { rng.between(1, 64) } else { rng.between(1, 3) };
            let payload = bytes(rng, blocks as usize * BLOCK);
            (Record::Write { first: number * 64, crcs: payload.chunks(BLOCK).map(crc32c).collect() }, payload)
        }
        5..8 => {
            let len = rng.between(1, BLOCK as u64 - 1);
            let payload = bytes(rng, len as usize);
            let offset = rng.below(BLOCK as u64 - len + 1) as u16;
            (Record::Delta { block: number, offset, bytes: len as u16, crc: crc32c(&payload) }, payload)
        }
        8 => (Record::Trim { first: number, blocks: rng.between(1, 9999) as u32 }, Vec::new()),
        9 => (
            Record::Allocate { extent: number, volume: 1, vextent: rng.below(1 << 32) as u32, over: number % 2 == 1 },
            Vec::new(),
        ),
        10 if rng.one_in(2) => (Record::Free { extent: number, unusable: rng.one_in(2) }, Vec::new()),
        10 => (Record::Lost { first: number, blocks: 1 }, Vec::new()),
        _ => {
            let crcs = (0..rng.between(1, 64)).map(|_| rng.next_u64() as u32).collect();
            (Record::InPlace { first: number * 64, crcs }, Vec::new())
        }
    }
}

fn number_of(record: &Record) -> u32 {
    match record {
        Record::Write { first, .. } | Record::InPlace { first, .. } => first / 64,
        Record::Delta { block, .. } => *block,
        Record::Trim { first, .. } | Record::Lost { first, .. } => *first,
        Record::Allocate { extent, .. } | Record::Free { extent, .. } => *extent,
        Record::Move { extent, .. } | Record::HandOver { extent, .. } => *extent,
    }
}

/// Hears what the log says.
struct Ear {
    rig: Rig,
    next_lsn: Cell<u64>,
}

impl Sink for Ear {
    fn placed(&self, record: &Record, placed: Placed) {
        let rig = &self.rig;
        let expected = self.next_lsn.replace(placed.lsn + 1);
        rig.sim.expect(placed.lsn == expected, || format!("record {} is visible before {expected}", placed.lsn));
        // A process that has reached its crash point acknowledges nothing any more.
        if rig.sim.alive(rig.node) {
            rig.ledger.borrow_mut().durable.insert(placed.lsn, (number_of(record), placed.segment));
        }
    }

    fn reclaimed(&self, segment: u64) {
        let tail = self.rig.ledger.borrow().tail;
        self.rig
            .sim
            .expect(segment < tail.segment, || format!("segment {segment} is overwritten, the tail is {tail:?}"));
    }
}

type Found = Vec<(Record, Placed)>;

impl Rig {
    fn alive(&self) -> bool {
        self.sim.alive(self.node)
    }

    /// Notes a violation unless this process is dead already and sees nothing of the world.
    fn expect(&self, holds: bool, text: impl FnOnce() -> String) {
        self.sim.expect(holds || !self.alive(), text);
    }

    fn medium(&self, reactor: &Rc<Reactor>) -> Option<Medium> {
        if self.mapped {
            let bytes = FIRST_BYTE + self.geometry.segments as u64 * self.geometry.segment_blocks as u64 * BLOCK as u64;
            let (pmem, _) = reactor.driver().pmem_open(Some(PMEM), bytes).ok()?;
            return Some(Medium::Mapped { reactor: reactor.clone(), pmem, first_byte: FIRST_BYTE });
        }
        let options =
            FileDeviceOptions { block_size: self.block_size, direct: self.direct, ..FileDeviceOptions::new(DISK) };
        let device = Rc::new(FileDevice::open(reactor, "log", options).ok()?);
        let (channel, info) = (device.open_channel(reactor).ok()?, device.info());
        reactor.keep(device);
        Some(Medium::Block { reactor: reactor.clone(), channel, info, first_block: FIRST_BYTE / BLOCK as u64 })
    }

    async fn read(&self, medium: &Medium, tail: LogTail) -> Option<(Head, Found)> {
        let mut found = Vec::new();
        let mut visit = |record: &Record, placed: Placed| found.push((record.clone(), placed));
        match scan(medium, self.geometry, tail, &mut visit).await {
            Ok(head) => Some((head, found)),
            Err(LogError::Io { .. }) if self.errors_allowed => None,
            Err(error) => {
                self.expect(false, || error.to_string());
                None
            }
        }
    }

    /// Judges what was recovered; afterwards it counts as durable.
    fn judge(&self, head: &Head, found: &Found) {
        let mut ledger = self.ledger.borrow_mut();
        self.expect(head.lost.is_empty(), || format!("records are reported as lost: {:?}", head.lost));
        let (mut next, mut seen) = (ledger.tail.lsn, BTreeSet::new());
        for (found, placed) in found {
            let number = number_of(found);
            self.expect(placed.lsn == next, || format!("record {next} is missing before {}", placed.lsn));
            self.expect(number < ledger.begun && seen.insert(number), || format!("{number} is there twice or unbegun"));
            self.expect(*found == record(self.seed, number).0, || {
                format!("record {} is not what was written", placed.lsn)
            });
            let durable = ledger.durable.get(&placed.lsn).map(|(durable, _)| *durable);
            self.expect(durable.is_none_or(|durable| durable == number), || {
                format!("record {} is {number}, {durable:?} was reported durable", placed.lsn)
            });
            next = placed.lsn + 1;
        }
        let newest = ledger.durable.keys().next_back().map_or(0, |lsn| lsn + 1);
        self.expect(newest <= next, || format!("the log ends before {next}, records up to {newest} were durable"));
        self.expect(head.next.lsn == next, || format!("the head is {:?}, the next record {next}", head.next));
        if self.alive() {
            ledger.durable =
                found.iter().map(|(record, placed)| (placed.lsn, (number_of(record), placed.segment))).collect();
        }
    }

    /// One life of the process: recovery, twice, then work.
    async fn live(self, reactor: Rc<Reactor>, crew: Crew, tasks: u64, count: u64) {
        let Some(medium) = self.medium(&reactor) else { return };
        let (tail, old_epoch) = (self.ledger.borrow().tail, self.ledger.borrow().epoch);
        let epoch = if is(&self.sim, Mutation::KeepEpoch) { old_epoch.max(1) } else { old_epoch + 1 };
        self.ledger.borrow_mut().epoch = epoch;
        let Some((head, found)) = self.read(&medium, tail).await else { return };
        self.judge(&head, &found);
        let Some(again) = self.read(&medium, tail).await else { return };
        self.expect(again == (head.clone(), found.clone()), || "a second look at the log shows something else".into());
        let ear = Rc::new(Ear { rig: self.clone(), next_lsn: Cell::new(head.next.lsn) });
        let log = Log::new(medium, self.geometry, head, tail, epoch, ear);
        if is(&self.sim, Mutation::SummaryEarly) {
            log.store_summaries_early();
        }
        for (record, placed) in &found {
            self.compare(&log, record, *placed).await;
        }
        let left = Rc::new(Cell::new(tasks));
        for _ in 0..tasks {
            let (rig, log, left, inner) = (self.clone(), log.clone(), left.clone(), reactor.clone());
            reactor.spawn(crew.member(async move {
                rig.work(inner, log, count).await;
                left.set(left.get() - 1);
            }));
        }
        let mut rng = self.sim.rng();
        while left.get() > 0 {
            reactor.sleep_ns(rng.between(1_000, 2_000_000)).await;
            self.checkpoint(&log, &mut rng);
        }
        log.drain().await;
    }

    async fn compare(&self, log: &Log, found: &Record, placed: Placed) {
        let bytes = found.payload_bytes();
        match log.read(placed.at, 0, bytes).await {
            Ok(list) => {
                let read: Vec<u8> = list.iter().flat_map(|buf| buf.as_slice().iter().copied()).collect();
                let right = read == record(self.seed, number_of(found)).1;
                self.expect(right, || format!("the payload of record {} is not what was written", placed.lsn));
            }
            Err(status) => self.expect(self.errors_allowed, || format!("a payload cannot be read: {status}")),
        }
    }

    /// As if a checkpoint had become durable.
    fn checkpoint(&self, log: &Rc<Log>, rng: &mut Rng) {
        let tail = {
            let ledger = &mut *self.ledger.borrow_mut();
            let nth = rng.below(ledger.durable.len() as u64 + 1) as usize;
            let some =
                ledger.durable.iter().nth(nth).map(|(lsn, (_, segment))| LogTail { segment: *segment, lsn: *lsn });
            let tail = if rng.one_in(2) { log.next() } else { some.unwrap_or(log.next()) };
            if !self.alive() || tail.lsn < ledger.tail.lsn {
                return;
            }
            ledger.tail = LogTail { segment: tail.segment.max(ledger.tail.segment), lsn: tail.lsn };
            ledger.durable = ledger.durable.split_off(&tail.lsn);
            ledger.tail
        };
        log.release(tail);
    }

    async fn payload(&self, reactor: &Reactor, rng: &mut Rng, bytes: &[u8]) -> SgList {
        let mut list = SgList::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = if rng.one_in(2) { rest.len() } else { rng.between(1, rest.len() as u64) as usize };
            let (part, after) = rest.split_at(len);
            // Not always memory that a disk takes as it is.
            if rng.one_in(4) {
                list.push(Buf::from_vec(part.to_vec()));
            } else {
                let mut buf = reactor.pool().alloc(len).await;
                buf.as_mut_slice().copy_from_slice(part);
                list.push(buf);
            }
            rest = after;
        }
        list
    }

    /// Appends records, some without waiting for the one before.
    async fn work(&self, reactor: Rc<Reactor>, log: Rc<Log>, count: u64) {
        let mut rng = self.sim.rng();
        let mut waits = Vec::new();
        for _ in 0..count {
            let number = self.ledger.borrow().begun;
            self.ledger.borrow_mut().begun += 1;
            let (record, bytes) = record(self.seed, number);
            let payload = self.payload(&reactor, &mut rng, &bytes).await;
            let class = if rng.one_in(8) { Class::Internal } else { Class::User };
            let under_way = log.append(record, payload, class);
            match rng.below(16) {
                0 => drop(under_way),
                1..9 => waits.push((number, bytes, under_way)),
                _ => self.check(number, &bytes, under_way.await),
            }
            if rng.one_in(8) {
                reactor.sleep_ns(rng.below(200_000)).await;
            }
        }
        for (number, bytes, under_way) in waits {
            self.check(number, &bytes, under_way.await);
        }
    }

    fn check(&self, number: u32, bytes: &[u8], appended: engine::log::Appended) {
        let back = appended.payload.iter().flat_map(|buf| buf.as_slice().iter());
        self.expect(back.eq(bytes), || format!("the payload of {number} did not come back"));
        match appended.result {
            Ok(placed) => {
                let ledger = self.ledger.borrow();
                let known = placed.lsn < ledger.tail.lsn
                    || ledger.durable.get(&placed.lsn).is_some_and(|(durable, _)| *durable == number);
                self.expect(known, || format!("{number} was acknowledged and never became visible"));
            }
            Err(status) => self.expect(self.errors_allowed, || format!("an append failed without cause: {status}")),
        }
    }
}
