//! Summaries of mapped segments: what recovery believes of them.

use super::*;
use crate::format::summary_page::SummaryPage;
use crate::log::summary_pages::pages_max;

fn trim(first: u32) -> Record {
    Record::Trim { first, blocks: 1 }
}

/// Appends so many records of a few bytes to a new log, and closes with a block; all records and their places.
fn many(reactor: &Rc<Reactor>, medium: &Medium, count: u32) -> Vec<(Record, Placed)> {
    let (log, notes) = open(medium, Head::empty(), START, 1);
    for first in 0..count {
        assert!(reactor.block_on(log.append(trim(first), SgList::new(), Class::User)).result.is_ok());
    }
    let payload = payload(reactor, &mut Rng::new(2), BLOCK_BYTES);
    let last = Record::Write { first: 7, crcs: crcs(&payload) };
    assert!(reactor.block_on(log.append(last, payload, Class::User)).result.is_ok());
    notes.placed.take()
}

fn store(reactor: &Rc<Reactor>, medium: &Medium, at: u64, bytes: &[u8]) {
    let Medium::Mapped { pmem, first_byte, .. } = medium else { panic!("a mapped log") };
    reactor.driver().pmem_store(*pmem, first_byte + at, bytes).unwrap();
}

fn load(reactor: &Rc<Reactor>, medium: &Medium, at: u64) -> [u8; BLOCK_BYTES] {
    let Medium::Mapped { pmem, first_byte, .. } = medium else { panic!("a mapped log") };
    let mut bytes = [0; BLOCK_BYTES];
    reactor.driver().pmem_read(*pmem, first_byte + at, &mut bytes).unwrap();
    bytes
}

/// Where page `number`, from 1, of a segment lies.
fn page_at(sequence: u64, number: u64) -> u64 {
    let place = GEOMETRY.place_of(sequence) as u64;
    (place + 1) * GEOMETRY.segment_bytes() - number * BLOCK_BYTES as u64
}

fn page_of(reactor: &Rc<Reactor>, medium: &Medium, sequence: u64, number: u64) -> Option<SummaryPage> {
    SummaryPage::peek(load(reactor, medium, page_at(sequence, number)).first_chunk().unwrap())
}

#[test]
fn records_are_read_from_the_summary_and_those_behind_it_one_by_one() {
    let reactor = reactor();
    let medium = mapped(&reactor);
    let records = many(&reactor, &medium, 1000);
    assert!(page_of(&reactor, &medium, 1, 2).is_some() && page_of(&reactor, &medium, 1, 3).is_none());
    // Without their headers, those of the summary are still there, and those behind it too.
    let covered = page_of(&reactor, &medium, 1, 2).map(|page| page.end as u64 * 64).unwrap();
    store(&reactor, &medium, GEOMETRY.segment_bytes() + 4096, &vec![0; covered as usize - 4096]);
    let (head, found) = scanned(&reactor, &medium, START).unwrap();
    assert_eq!((head.next.lsn, head.lost, &found), (1002, vec![], &records));
    assert_eq!(scanned(&reactor, &medium, LogTail { segment: 1, lsn: 500 }).unwrap().1, records[499..]);
}

#[test]
fn a_segment_that_is_left_has_all_of_its_records_in_its_summary() {
    let reactor = reactor();
    let medium = mapped(&reactor);
    let (log, notes) = open(&medium, Head::empty(), START, 1);
    let mut rng = Rng::new(1);
    for first in 0..200 {
        let payload = payload(&reactor, &mut rng, BLOCK_BYTES);
        let append = log.append(Record::Write { first, crcs: crcs(&payload) }, payload, Class::User);
        assert!(reactor.block_on(append).result.is_ok());
    }
    let records = notes.placed.take();
    assert_eq!(records[199].1.segment, 3);
    let first = page_of(&reactor, &medium, 1, 1).unwrap();
    assert_eq!(first.records as usize, records.iter().filter(|(_, placed)| placed.segment == 1).count());
    for sequence in 1..3 {
        let end = page_of(&reactor, &medium, sequence, 1).unwrap().end as usize * 64;
        store(&reactor, &medium, GEOMETRY.segment_bytes() * sequence + 4096, &vec![0; end - 4096]);
    }
    assert_eq!(scanned(&reactor, &medium, START).unwrap().1, records);
}

#[test]
fn what_is_no_page_of_the_summary_costs_no_record() {
    let reactor = reactor();
    let medium = mapped(&reactor);
    // More than the pages of a segment can have.
    let records = many(&reactor, &medium, 4000);
    let max = pages_max(&GEOMETRY) as u64;
    assert!(page_of(&reactor, &medium, 1, max).is_some() && page_of(&reactor, &medium, 1, max + 1).is_none());
    assert_eq!(scanned(&reactor, &medium, START).unwrap().1, records);
    for number in 1..=max {
        let sound = load(&reactor, &medium, page_at(1, number));
        for byte in [0, 5, 9, 17, 25, 29, 31, 33, 37, 41, 64, 70, 4095] {
            damage(&reactor, &medium, page_at(1, number) + byte, 2);
            let (head, found) = scanned(&reactor, &medium, START).unwrap();
            assert_eq!((head.lost.len(), found.len()), (0, records.len()), "byte {byte} of page {number}");
            assert_eq!(found, records);
            store(&reactor, &medium, page_at(1, number), &sound);
        }
    }
    // As an older version has left it.
    for number in 1..=max {
        store(&reactor, &medium, page_at(1, number), &[0; BLOCK_BYTES]);
    }
    assert_eq!(scanned(&reactor, &medium, START).unwrap().1, records);
}

#[test]
fn a_page_of_a_former_life_of_the_segment_is_not_believed() {
    let reactor = reactor();
    let medium = mapped(&reactor);
    let (log, notes) = open(&medium, Head::empty(), START, 1);
    let fill = |count: u32| {
        for first in 0..count {
            assert!(reactor.block_on(log.append(trim(first), SgList::new(), Class::User)).result.is_ok());
        }
    };
    fill(400);
    let former = load(&reactor, &medium, page_at(1, 1));
    while log.next().segment < 1 + GEOMETRY.segments as u64 {
        fill(100);
        log.release(log.next());
    }
    fill(400);
    let tail = log.next();
    let tail = LogTail { lsn: tail.lsn - 400, ..tail };
    let records = notes.placed.take();
    assert_eq!(page_of(&reactor, &medium, tail.segment, 1).map(|page| page.sequence), Some(tail.segment));
    store(&reactor, &medium, page_at(tail.segment, 1), &former);
    let (head, found) = scanned(&reactor, &medium, tail).unwrap();
    assert_eq!((head.lost, &found[..]), (vec![], &records[records.len() - 400..]));
}

#[test]
fn a_page_that_goes_past_the_first_record_of_the_next_segment_counts_up_to_there() {
    let reactor = reactor();
    let medium = mapped(&reactor);
    let records = many(&reactor, &medium, 400);
    let page = page_of(&reactor, &medium, 1, 1).unwrap();
    let end = page.first_lsn + page.records as u64 - 3;
    // A later opening that knew of no record from `end` on.
    let (log, notes) = open(&medium, Head { next: LogTail { segment: 2, lsn: end }, ..Head::empty() }, START, 2);
    assert!(reactor.block_on(log.append(trim(9), SgList::new(), Class::User)).result.is_ok());
    let (head, found) = scanned(&reactor, &medium, START).unwrap();
    assert_eq!((head.next.lsn, head.lost), (end + 1, vec![]));
    assert_eq!(found, [&records[..end as usize - 1], &notes.placed.take()].concat());
}

#[test]
fn a_check_notices_a_summary_that_says_something_else() {
    let reactor = reactor();
    let medium = mapped(&reactor);
    many(&reactor, &medium, 400);
    let survey = || {
        let inner = medium.clone();
        reactor.block_on(async move { crate::log::survey(&inner, GEOMETRY, START.into(), &mut |_, _| {}).await })
    };
    assert!(survey().is_ok());
    let mut page = load(&reactor, &medium, page_at(1, 1));
    let about = SummaryPage::peek(page.first_chunk().unwrap()).unwrap();
    // The first block of the first trim.
    page[68] ^= 1;
    let used = 64 + about.records as usize * 12;
    about.seal(GEOMETRY.salt(), used, &mut page);
    store(&reactor, &medium, page_at(1, 1), &page);
    assert!(matches!(survey(), Err(LogError::Impossible { segment: 1, offset: 4096, .. })));
}
