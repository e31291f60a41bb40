mod summary;

use super::block::GROUPS_IN_FLIGHT_MAX;
use super::*;
use base::{Rng, crc32c};
use bdev::{BlockDevice, Delay, DelayDevice, Delays, MemDevice};
use reactor::ReactorConfig;
use reactor::linux::LinuxDriver;
use std::sync::Arc;

const GEOMETRY: LogGeometry = LogGeometry { shard: 3, pool: *b"unittest", segments: 6, segment_blocks: 96 };
const START: LogTail = LogTail { segment: 1, lsn: 1 };
const BYTES: u64 = GEOMETRY.segments as u64 * GEOMETRY.segment_blocks as u64 * BLOCK_BYTES as u64;

fn reactor() -> Rc<Reactor> {
    let driver = LinuxDriver::new().expect("io_uring is available");
    Reactor::new(0, Rc::new(driver), ReactorConfig::default())
}

fn turns(reactor: &Rc<Reactor>, count: usize) {
    for _ in 0..count {
        reactor.turn();
    }
}

fn mapped(reactor: &Rc<Reactor>) -> Medium {
    let (pmem, _) = reactor.driver().pmem_open(None, BYTES + 4096).unwrap();
    Medium::Mapped { reactor: reactor.clone(), pmem, first_byte: 4096 }
}

fn block(reactor: &Rc<Reactor>, block_size: u32) -> Medium {
    let blocks = (BYTES + 4096) / block_size as u64;
    let device = MemDevice::new("log", block_size, blocks, blocks).unwrap();
    let channel = device.open_channel(reactor).unwrap();
    let info = DeviceInfo { max_io_blocks: (64 << 10) / block_size, ..device.info() };
    Medium::Block { reactor: reactor.clone(), channel, info, first_block: 1 }
}

fn media(reactor: &Rc<Reactor>) -> [Medium; 3] {
    [mapped(reactor), block(reactor, 4096), block(reactor, 512)]
}

#[derive(Default)]
struct Notes {
    placed: RefCell<Vec<(Record, Placed)>>,
    reclaimed: RefCell<Vec<u64>>,
}

impl Sink for Notes {
    fn placed(&self, record: &Record, placed: Placed) {
        let mut all = self.placed.borrow_mut();
        assert!(all.last().is_none_or(|(_, last)| last.lsn + 1 == placed.lsn), "out of order at {}", placed.lsn);
        all.push((record.clone(), placed));
    }

    fn reclaimed(&self, segment: u64) {
        self.reclaimed.borrow_mut().push(segment);
    }
}

fn open(medium: &Medium, head: Head, tail: LogTail, epoch: u32) -> (Rc<Log>, Rc<Notes>) {
    let notes = Rc::new(Notes::default());
    (Log::new(medium.clone(), GEOMETRY, head, tail, epoch, notes.clone()), notes)
}

/// The blocks of a write, or the bytes of a delta, made from its first block.
fn payload(reactor: &Reactor, rng: &mut Rng, bytes: usize) -> SgList {
    let mut buf = reactor.pool().try_alloc(bytes).unwrap();
    rng.fill(buf.as_mut_slice());
    [buf].into_iter().collect()
}

fn crcs(payload: &[Buf]) -> Crcs {
    payload.iter().flat_map(|buf| buf.as_slice().chunks(BLOCK_BYTES)).map(crc32c).collect()
}

fn random(reactor: &Reactor, rng: &mut Rng) -> (Record, SgList) {
    let first = rng.below(1 << 20) as u32 / 64 * 64;
    match rng.below(10) {
        0..4 => {
            let blocks = if rng.one_in(8) { rng.between(1, 64) } else { rng.between(1, 3) };
            let payload = payload(reactor, rng, blocks as usize * BLOCK_BYTES);
            (Record::Write { first, crcs: crcs(&payload) }, payload)
        }
        4 => {
            let bytes = rng.between(1, 4095) as u16;
            let payload = payload(reactor, rng, bytes as usize);
            let crc = crc32c(payload[0].as_slice());
            (Record::Delta { block: first, offset: rng.below(4097 - bytes as u64) as u16, bytes, crc }, payload)
        }
        5 => (Record::Trim { first, blocks: rng.between(1, 1000) as u32 }, SgList::new()),
        6 => (
            Record::Allocate { extent: first, volume: 1, vextent: rng.below(100) as u32, over: rng.one_in(2) },
            SgList::new(),
        ),
        7 => (Record::Free { extent: first, unusable: rng.one_in(2) }, SgList::new()),
        8 => (Record::InPlace { first, crcs: (0..rng.between(1, 64) as u32).collect() }, SgList::new()),
        _ => (Record::Lost { first, blocks: 1 }, SgList::new()),
    }
}

/// Appends `count` records without waiting for one before the next, then waits for all.
async fn append_all(log: Rc<Log>, reactor: Rc<Reactor>, seed: u64, count: usize) -> Vec<(Record, Vec<u8>)> {
    let mut rng = Rng::new(seed);
    let (mut waits, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (record, payload) = random(&reactor, &mut rng);
        let bytes: Vec<u8> = payload.iter().flat_map(|buf| buf.as_slice().to_vec()).collect();
        expected.push((record.clone(), bytes));
        waits.push(log.append(record, payload, Class::User));
        if rng.one_in(5) {
            reactor.yield_now().await;
        }
    }
    for (wait, (_, bytes)) in waits.into_iter().zip(&expected) {
        let appended = wait.await;
        assert!(appended.result.is_ok(), "{:?}", appended.result);
        let back: Vec<u8> = appended.payload.iter().flat_map(|buf| buf.as_slice().to_vec()).collect();
        assert_eq!(&back, bytes, "the payload comes back as it was given");
    }
    log.drain().await;
    expected
}

fn scanned(
    reactor: &Rc<Reactor>,
    medium: &Medium,
    known: impl Into<Known>,
) -> Result<(Head, Vec<(Record, Placed)>), LogError> {
    let (medium, known) = (medium.clone(), known.into());
    reactor.block_on(async move {
        let mut all = Vec::new();
        let mut visit = |record: &Record, placed: Placed| all.push((record.clone(), placed));
        let head = scan(&medium, GEOMETRY, known, &mut visit).await?;
        Ok((head, all))
    })
}

fn read_back(reactor: &Rc<Reactor>, log: &Rc<Log>, record: &Record, placed: Placed) -> Vec<u8> {
    let (log, bytes) = (log.clone(), record.payload_bytes());
    reactor.block_on(async move {
        let list = log.read(placed.at, 0, bytes).await.unwrap();
        list.iter().flat_map(|buf| buf.as_slice().to_vec()).collect()
    })
}

#[test]
fn every_kind_of_record_comes_back_in_order_with_its_payload_over_many_openings() {
    let reactor = reactor();
    for medium in media(&reactor) {
        let mut head = Head::empty();
        let mut all = Vec::new();
        for epoch in 1..5 {
            let (log, notes) = open(&medium, head, START, epoch);
            let expected = reactor.block_on(append_all(log.clone(), reactor.clone(), epoch as u64, 12));
            let placed = notes.placed.take();
            assert!(placed.iter().map(|(record, _)| record).eq(expected.iter().map(|(record, _)| record)));
            all.extend(placed.iter().cloned());
            for ((record, placed), (_, bytes)) in placed.iter().zip(&expected) {
                assert_eq!(&read_back(&reactor, &log, record, *placed), bytes);
            }
            let (found, records) = scanned(&reactor, &medium, START).unwrap();
            assert_eq!(records, all);
            assert_eq!((found.next.lsn, found.epoch, &found.lost), (log.next().lsn, epoch, &vec![]));
            assert_eq!(scanned(&reactor, &medium, START).unwrap(), (found.clone(), records));
            head = found;
        }
    }
}

#[test]
fn the_ring_wraps_when_tails_are_released_and_tells_what_is_overwritten() {
    let reactor = reactor();
    for medium in media(&reactor) {
        let (log, notes) = open(&medium, Head::empty(), START, 1);
        for round in 0..40 {
            reactor.block_on(append_all(log.clone(), reactor.clone(), round, 20));
            let tail = log.next();
            log.release(tail);
            let (head, records) = scanned(&reactor, &medium, tail).unwrap();
            assert_eq!((head.next.lsn, records.len(), head.lost.len()), (tail.lsn, 0, 0));
        }
        let reclaimed = notes.reclaimed.take();
        assert!(reclaimed.len() > 10, "{} segments were overwritten", reclaimed.len());
        assert!(reclaimed.windows(2).all(|pair| pair[0] < pair[1]));
        let stats = log.stats();
        assert_eq!((stats.appended_records, stats.errors), (800, 0));
    }
}

#[test]
fn users_wait_for_space_in_order_while_internal_records_use_the_reserve() {
    let reactor = reactor();
    for medium in media(&reactor) {
        let (log, notes) = open(&medium, Head::empty(), START, 1);
        let mut rng = Rng::new(1);
        let mut waits = Vec::new();
        for first in 0..12 {
            let payload = payload(&reactor, &mut rng, 64 * BLOCK_BYTES);
            waits.push(log.append(Record::Write { first: first * 64, crcs: crcs(&payload) }, payload, Class::User));
        }
        turns(&reactor, 200);
        let before = notes.placed.borrow().len();
        assert_eq!((before, log.room().segments_free), (4, 2), "one record a segment, and the reserve stays");
        let internal = log.append(Record::Free { extent: 1, unusable: false }, SgList::new(), Class::Internal);
        let large = payload(&reactor, &mut rng, 64 * BLOCK_BYTES);
        let large = log.append(Record::Write { first: 0, crcs: crcs(&large) }, large, Class::Internal);
        assert!(reactor.block_on(internal).result.is_ok() && reactor.block_on(large).result.is_ok());
        assert_eq!(log.room().segments_free, 1);
        while notes.placed.borrow().len() < 14 {
            log.release(log.next());
            turns(&reactor, 50);
        }
        let writes = notes.placed.take().into_iter().filter_map(|(record, _)| match record {
            Record::Write { first, .. } => Some(first / 64),
            _ => None,
        });
        assert_eq!(writes.collect::<Vec<_>>(), [0, 1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 10, 11]);
        for wait in waits {
            assert!(reactor.block_on(wait).result.is_ok());
        }
    }
}

#[test]
fn a_full_log_leaves_its_last_segment_so_that_all_can_be_released_or_what_waits_refused() {
    let reactor = reactor();
    for medium in media(&reactor) {
        let (log, notes) = open(&medium, Head::empty(), START, 1);
        let mut rng = Rng::new(1);
        let mut append = || {
            let payload = payload(&reactor, &mut rng, 64 * BLOCK_BYTES);
            log.append(Record::Write { first: 0, crcs: crcs(&payload) }, payload, Class::Internal)
        };
        let waits: Vec<_> = (0..7).map(|_| append()).collect();
        turns(&reactor, 200);
        assert_eq!((notes.placed.borrow().len(), log.is_stalled(), log.is_hopeless()), (6, true, false));
        assert_eq!(log.segment_ahead(), 7, "no segment waits to be filled");
        log.release(LogTail { segment: log.segment_ahead(), lsn: 7 });
        for wait in waits {
            assert!(reactor.block_on(wait).result.is_ok());
        }
        assert!(!log.is_stalled());
        let mut waits: Vec<_> = (0..6).map(|_| append()).collect();
        turns(&reactor, 200);
        log.refuse_waiting();
        assert!(log.is_hopeless());
        assert_eq!(reactor.block_on(waits.pop().unwrap()).result, Err(Status::NoSpace));
        assert!(waits.into_iter().all(|wait| reactor.block_on(wait).result.is_ok()));
    }
}

#[test]
fn small_groups_start_beside_others_until_the_log_is_filling_then_they_gather() {
    let reactor = reactor();
    let blocks = (BYTES + 4096) / 4096;
    let memory = MemDevice::new("log", 4096, blocks, blocks).unwrap();
    let device = DelayDevice::new("slow", Arc::new(memory), Delays::default(), 1);
    let (channel, info) = (device.open_channel(&reactor).unwrap(), device.info());
    let medium = Medium::Block { reactor: reactor.clone(), channel, info, first_block: 1 };
    let (log, _) = open(&medium, Head::empty(), START, 1);
    let mut rng = Rng::new(1);
    let mut append = |blocks: usize, class: Class| {
        let payload = payload(&reactor, &mut rng, blocks * BLOCK_BYTES);
        log.append(Record::Write { first: 0, crcs: crcs(&payload) }, payload, class)
    };
    // Writes of a block, one a turn, while the device has ended none.
    let groups_of_twelve = |append: &mut dyn FnMut() -> IoFuture<'static, Appended>| {
        device.set(Delays { write: Delay { fixed_ns: 200_000_000, jitter_ns: 0 }, ..Delays::default() });
        let appended = (0..12).map(|_| {
            let wait = append();
            turns(&reactor, 1);
            wait
        });
        let waits: Vec<_> = appended.collect();
        let groups = log.state.borrow().block.in_flight.len();
        device.set(Delays::default());
        assert!(waits.into_iter().all(|wait| reactor.block_on(wait).result.is_ok()));
        groups
    };
    assert_eq!(groups_of_twelve(&mut || append(1, Class::User)), GROUPS_IN_FLIGHT_MAX);
    while log.room().segments_free > 1 {
        assert!(reactor.block_on(append(64, Class::Internal)).result.is_ok());
    }
    assert_eq!(groups_of_twelve(&mut || append(1, Class::Internal)), 1);
}

/// Ten writes of a block each, one after the other; each is a group of its own on a block log.
fn ten_writes(reactor: &Rc<Reactor>, medium: &Medium) -> Vec<(Record, Placed)> {
    let (log, notes) = open(medium, Head::empty(), START, 1);
    let mut rng = Rng::new(5);
    for first in 0..10 {
        let payload = payload(reactor, &mut rng, BLOCK_BYTES);
        let appended = log.append(Record::Write { first, crcs: crcs(&payload) }, payload, Class::User);
        assert!(reactor.block_on(appended).result.is_ok());
    }
    notes.placed.take()
}

/// Flips a bit of the shard's log.
fn damage(reactor: &Rc<Reactor>, medium: &Medium, at: u64, bit: u8) {
    match medium {
        Medium::Mapped { pmem, first_byte, .. } => {
            let mut byte = [0];
            reactor.driver().pmem_read(*pmem, first_byte + at, &mut byte).unwrap();
            reactor.driver().pmem_store(*pmem, first_byte + at, &[byte[0] ^ 1 << bit]).unwrap();
        }
        Medium::Block { channel, info, first_block, .. } => {
            let (channel, block_size) = (channel.clone(), info.block_size as u64);
            let at = first_block * BLOCK_BYTES as u64 + at;
            let lba = bdev::Lba(at / block_size);
            let buf = reactor.pool().try_alloc(block_size as usize).unwrap();
            reactor.block_on(async move {
                let mut done = channel.submit(bdev::Io::read(lba, 1, [buf].into_iter().collect())).await;
                done.io.bufs[0].as_mut_slice()[(at % block_size) as usize] ^= 1 << bit;
                assert!(channel.submit(bdev::Io::write(lba, 1, done.io.bufs)).await.status.is_ok());
            });
        }
    }
}

#[test]
fn rot_is_told_from_a_torn_end() {
    let reactor = reactor();
    for (index, medium) in media(&reactor).iter().enumerate() {
        let header_before = if index == 0 { 64 } else { BLOCK_BYTES as u64 };
        let records = ten_writes(&reactor, medium);
        let without = |lsns: &[u64]| {
            let left = records.iter().filter(|(_, placed)| !lsns.contains(&placed.lsn));
            left.cloned().collect::<Vec<_>>()
        };
        let byte = |nth: usize| records[nth].1.at.bytes();
        let lost = |first, end| vec![LostLsns { first, end }];
        // A payload in the middle: its reader will find it, replay goes on.
        damage(&reactor, medium, byte(4) + 9, 0);
        let (head, found) = scanned(&reactor, medium, START).unwrap();
        assert_eq!((head.next.lsn, head.lost, found), (11, vec![], without(&[])));
        // A header in the middle.
        damage(&reactor, medium, byte(4) - header_before + 9, 3);
        let (head, found) = scanned(&reactor, medium, START).unwrap();
        assert_eq!((head.next.lsn, head.lost, found), (11, lost(5, 6), without(&[5])));
        // The payload of the last record: an append that was never acknowledged looks like that.
        damage(&reactor, medium, byte(9) + 9, 0);
        let (head, found) = scanned(&reactor, medium, START).unwrap();
        assert_eq!((head.next.lsn, head.lost.len(), found), (10, 1, without(&[5, 10])));
        // The log goes on at another place; what was cut off stays so even when the rot heals.
        let (log, _) = open(medium, head, START, 2);
        let free = log.append(Record::Free { extent: 77, unusable: false }, SgList::new(), Class::Internal);
        assert_eq!(reactor.block_on(free).result.map(|placed| (placed.lsn, placed.segment)), Ok((10, 2)));
        damage(&reactor, medium, byte(9) + 9, 0);
        let (head, found) = scanned(&reactor, medium, START).unwrap();
        assert_eq!((head.next.lsn, head.lost, found.len()), (11, lost(5, 6), 9));
        assert_eq!(found[8].0, Record::Free { extent: 77, unusable: false });
        // Now a later segment vouches for the end of the first one.
        damage(&reactor, medium, byte(8) - header_before + 9, 0);
        let (head, found) = scanned(&reactor, medium, START).unwrap();
        assert_eq!((head.next.lsn, found.len()), (11, 8));
        assert_eq!(head.lost, [lost(5, 6), lost(9, 10)].concat());
    }
}

#[test]
fn what_a_note_knows_to_be_durable_is_not_taken_for_torn() {
    let reactor = reactor();
    for (index, medium) in media(&reactor).iter().enumerate() {
        let header_before = if index == 0 { 64 } else { BLOCK_BYTES as u64 };
        let records = ten_writes(&reactor, medium);
        let last = records[9].1.at.bytes();
        let noted = |durable_lsn| Known { durable_lsn, ..START.into() };
        damage(&reactor, medium, last + 9, 0);
        for (durable_lsn, found) in [(0, 9), (10, 9), (11, 10)] {
            let (head, records) = scanned(&reactor, medium, noted(durable_lsn)).unwrap();
            assert_eq!((head.next.lsn, head.lost, records.len()), (found as u64 + 1, vec![], found), "{durable_lsn}");
        }
        damage(&reactor, medium, last - header_before + 9, 0);
        let (head, found) = scanned(&reactor, medium, noted(11)).unwrap();
        assert_eq!((head.next.lsn, head.lost, found.len()), (11, vec![LostLsns { first: 10, end: 11 }], 9));
    }
}

#[test]
fn a_log_that_was_closed_ends_there_and_what_a_later_opening_has_appended_is_behind() {
    let reactor = reactor();
    for medium in media(&reactor) {
        let records = ten_writes(&reactor, &medium);
        let closed = |durable_lsn, tail| Known { tail, durable_lsn, closed_epoch: Some(1), is_final: true };
        let (head, found) = scanned(&reactor, &medium, closed(11, START)).unwrap();
        assert_eq!((head.next.lsn, &head.lost, found), (11, &vec![], records.clone()));
        // What it says counts, whatever else its segment holds.
        assert_eq!(scanned(&reactor, &medium, closed(8, START)).unwrap().1, records[..7]);
        let settled = LogTail { segment: 1, lsn: 11 };
        assert_eq!(scanned(&reactor, &medium, closed(11, settled)).unwrap().1, []);
        let (log, _) = open(&medium, head, START, 2);
        let free = log.append(Record::Free { extent: 77, unusable: false }, SgList::new(), Class::Internal);
        assert!(reactor.block_on(free).result.is_ok());
        let since = Known { is_final: false, ..closed(11, START) };
        let (head, found) = scanned(&reactor, &medium, since).unwrap();
        assert_eq!((head.next.lsn, head.lost, found.len()), (12, vec![], 11));
        log.close_for_good();
        let refused = log.append(Record::Free { extent: 78, unusable: false }, SgList::new(), Class::Internal);
        assert_eq!(reactor.block_on(refused).result, Err(Status::Gone));
    }
}

#[test]
fn a_segment_whose_header_rots_is_found_and_mended() {
    let reactor = reactor();
    for medium in media(&reactor) {
        let records = ten_writes(&reactor, &medium);
        let sound = scanned(&reactor, &medium, START).unwrap();
        damage(&reactor, &medium, GEOMETRY.segment_bytes() + 17, 1);
        let mended = scanned(&reactor, &medium, START).unwrap();
        assert_eq!((&mended, &mended.1), (&sound, &records));
        // Once more, with a tail in the middle of it.
        damage(&reactor, &medium, GEOMETRY.segment_bytes() + 17, 1);
        assert_eq!(scanned(&reactor, &medium, LogTail { segment: 1, lsn: 5 }).unwrap().1, records[4..]);
    }
}

#[test]
fn a_segment_behind_a_gap_in_the_sequence_is_found_although_its_header_has_rotted() {
    let reactor = reactor();
    for medium in media(&reactor) {
        // A place that is out of use makes the gap.
        let head = Head { unreadable: vec![2], ..Head::empty() };
        let (log, notes) = open(&medium, head, START, 1);
        for number in 0..7 {
            let payload = payload(&reactor, &mut Rng::new(number), 20 * BLOCK_BYTES);
            let record = Record::Write { first: number as u32 * 64, crcs: crcs(&payload) };
            assert!(reactor.block_on(log.append(record, payload, Class::User)).result.is_ok());
        }
        let records = notes.placed.take();
        let segments: Vec<u64> = records.iter().map(|(_, placed)| placed.segment).collect();
        assert_eq!(segments, [1, 1, 1, 1, 3, 3, 3]);
        let sound = scanned(&reactor, &medium, START).unwrap();
        assert_eq!(sound.1, records);
        let rot = || damage(&reactor, &medium, 3 * GEOMETRY.segment_bytes() + 17, 1);
        rot();
        assert_eq!(scanned(&reactor, &medium, START).unwrap(), sound, "mended");
        rot();
        assert_eq!(scanned(&reactor, &medium, LogTail { segment: 1, lsn: 4 }).unwrap().1, records[3..]);
        // What is in front of it was durable: rot there, and in the summary that says so, is not the torn end of a log.
        rot();
        damage(&reactor, &medium, 2 * GEOMETRY.segment_bytes() - BLOCK_BYTES as u64 + 9, 0);
        damage(&reactor, &medium, records[3].1.at.bytes() + 9, 0);
        let (head, found) = scanned(&reactor, &medium, START).unwrap();
        assert_eq!(head.lost, [LostLsns { first: 4, end: 5 }]);
        assert_eq!(
            (head.lost[0].to_string(), LostLsns { first: 4, end: 9 }.to_string()),
            ("record 4".into(), "records 4 to 8".into())
        );
        assert_eq!(found.len(), 6);
    }
}

#[test]
fn nothing_is_appended_at_once_while_a_record_waits_for_room() {
    let reactor = reactor();
    let (log, _) = open(&mapped(&reactor), Head::empty(), START, 1);
    let write = |number: u64, blocks: usize| {
        let payload = payload(&reactor, &mut Rng::new(number), blocks * BLOCK_BYTES);
        (Record::Write { first: number as u32 * 64, crcs: crcs(&payload) }, payload)
    };
    // Each takes a segment.
    for number in 0..GEOMETRY.segments as u64 {
        let (record, payload) = write(number, 60);
        assert!(reactor.block_on(log.append(record, payload, Class::Internal)).result.is_ok());
    }
    let (record, waits) = write(8, 60);
    let waiting = log.append(record, waits, Class::Internal);
    turns(&reactor, 2);
    assert!(log.is_stalled());
    // There is room again, and the one that waits has not been served yet: it may allocate the extent of the next.
    log.release(LogTail { segment: GEOMETRY.segments as u64, lsn: GEOMETRY.segments as u64 });
    let (record, small) = write(9, 1);
    let number = || match &record {
        Record::Write { first, .. } => Some(*first),
        _ => None,
    };
    assert!(log.try_append(1, &small, number).is_none());
    let first = reactor.block_on(waiting).result.unwrap();
    let second = log.try_append(1, &small, number).expect("nothing waits any more").unwrap();
    assert!(first.lsn < second.lsn);
}

#[test]
fn a_write_that_finds_no_name_has_not_been_appended() {
    let reactor = reactor();
    let (log, notes) = open(&mapped(&reactor), Head::empty(), START, 1);
    let (unnamed, named) =
        (payload(&reactor, &mut Rng::new(1), BLOCK_BYTES), payload(&reactor, &mut Rng::new(2), BLOCK_BYTES));
    assert!(log.try_append(1, &unnamed, || None).is_none());
    let placed = log.try_append(1, &named, || Some(7)).expect("there is room").unwrap();
    assert_eq!(placed.lsn, START.lsn);
    assert_eq!(notes.placed.borrow().len(), 1);
}

#[test]
fn bytes_of_another_pool_are_no_records() {
    let reactor = reactor();
    for medium in media(&reactor) {
        ten_writes(&reactor, &medium);
        let other = LogGeometry { pool: *b"another!", ..GEOMETRY };
        let log = Log::new(medium.clone(), other, Head::empty(), START, 1, Rc::new(Notes::default()));
        let payload = payload(&reactor, &mut Rng::new(1), BLOCK_BYTES);
        let append = log.append(Record::Write { first: 0, crcs: crcs(&payload) }, payload, Class::User);
        assert!(reactor.block_on(append).result.is_ok());
        let inner = medium.clone();
        let count = reactor.block_on(async move {
            let mut count = 0;
            let head = scan(&inner, other, START, &mut |_, _| count += 1).await.unwrap();
            (head.next.lsn, head.lost.len(), count)
        });
        assert_eq!(count, (2, 0, 1));
        assert!(matches!(scanned(&reactor, &medium, START), Ok((head, found)) if found.is_empty() && head.epoch == 0));
    }
}

#[test]
fn no_damage_makes_recovery_panic_or_invent_records() {
    let reactor = reactor();
    for medium in media(&reactor) {
        let (log, notes) = open(&medium, Head::empty(), START, 1);
        reactor.block_on(append_all(log.clone(), reactor.clone(), 7, 60));
        let records = notes.placed.take();
        let used = log.next().segment * GEOMETRY.segment_bytes();
        let mut rng = Rng::new(3);
        for _ in 0..150 {
            // Mostly where headers are.
            let at = rng.below(used) / 64 * 64 + rng.below(64);
            let at =
                if rng.one_in(3) { at / GEOMETRY.segment_bytes() * GEOMETRY.segment_bytes() + at % 64 } else { at };
            damage(&reactor, &medium, at, rng.below(8) as u8);
            let (head, found) = scanned(&reactor, &medium, START).unwrap();
            assert!(found.iter().all(|record| records.contains(record)));
            assert!(found.windows(2).all(|pair| pair[0].1.lsn < pair[1].1.lsn));
            let lost: u64 = head.lost.iter().map(|gap| gap.end - gap.first).sum();
            assert_eq!(found.len() as u64 + lost, head.next.lsn - 1, "every record is found or reported as lost");
        }
    }
}

#[test]
fn a_failed_write_moves_its_records_to_the_next_segment_in_order() {
    let reactor = reactor();
    let blocks = BYTES / 4096 + 1;
    let mem = std::sync::Arc::new(MemDevice::new("log", 4096, blocks, blocks).unwrap());
    let rule = |when, fault| bdev::ErrorRule { when, ..bdev::ErrorRule::always(&[bdev::Op::Write], fault) };
    let once = rule(bdev::When::Nth(3), bdev::Fault::FailAfter(Status::WriteError));
    let device = bdev::ErrorDevice::new("faulty", mem, &[once], 1).unwrap();
    let (channel, info) = (device.open_channel(&reactor).unwrap(), device.info());
    let medium = Medium::Block { reactor: reactor.clone(), channel, info, first_block: 1 };
    let (log, notes) = open(&medium, Head::empty(), START, 1);
    for round in 0..4 {
        reactor.block_on(append_all(log.clone(), reactor.clone(), round, 6));
    }
    assert_eq!((log.stats().errors, log.stats().resting, log.room().segments_total), (1, 1, 5));
    let records = notes.placed.take();
    assert_eq!((records.len(), records[0].1.segment), (24, 1));
    assert!(records[23].1.segment > 1);
    let (head, found) = scanned(&reactor, &medium, START).unwrap();
    assert_eq!((head.next.lsn, found), (25, records));
    // Then nothing works any more.
    log.release(log.next());
    device.set_rules(&[rule(bdev::When::Always, bdev::Fault::Fail(Status::WriteError))]).unwrap();
    let mut rng = Rng::new(1);
    for class in [Class::User, Class::Internal, Class::User] {
        let payload = payload(&reactor, &mut rng, BLOCK_BYTES);
        let append = log.append(Record::Write { first: 0, crcs: crcs(&payload) }, payload, class);
        let appended = reactor.block_on(append);
        assert_eq!((appended.result, sg_len(&appended.payload)), (Err(Status::WriteError), BLOCK_BYTES));
    }
    // What was durable still is.
    device.set_rules(&[]).unwrap();
    assert_eq!(scanned(&reactor, &medium, START).unwrap().1.len(), 24);
}
