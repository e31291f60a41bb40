//! A page of the summary of a mapped segment: what a run of its records says, without their payloads, so that recovery reads
//! one page where it would touch one for each record. See `docs/formats/pool.md`.
//!
//! Records of a mapped segment follow one another without gaps, so a page says where its first one begins and the places of
//! all others are computed.

use crate::format::record::{CRCS_INLINE, Crcs, Fields, Header, Record, UNIT};
use crate::units::BLOCK_BYTES;
use base::crc32c;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 4] = *b"RMSP";

/// What a page is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SummaryPage {
    /// Of the segment.
    pub(crate) sequence: u64,
    pub(crate) first_lsn: u64,
    pub(crate) epoch: u32,
    pub(crate) records: u16,
    /// Where its first record begins, in units from the start of the segment.
    pub(crate) start: u32,
    /// Where its last record ends.
    pub(crate) end: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawPage {
    magic: [u8; 4],
    /// Of the whole page with this field zero, then XORed with the salt of the log.
    checksum: U32,
    sequence: U64,
    first_lsn: U64,
    epoch: U32,
    records: U16,
    entry_bytes: U16,
    start: U32,
    end: U32,
    rest: [u8; 24],
}

/// What one record says; the arguments that its kind has and its checksums follow, 4 bytes each.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    kind: u8,
    count: u8,
    reserved: [u8; 2],
    first: U32,
}

/// Bytes in front of the entries.
pub(crate) const HEAD_BYTES: usize = UNIT;
const ENTRY_HEAD_BYTES: usize = size_of::<RawEntry>();
const CHECKSUM: std::ops::Range<usize> = 4..8;
const _: () = assert!(size_of::<RawPage>() == HEAD_BYTES && ENTRY_HEAD_BYTES == 8);
const _: () = assert!(std::mem::offset_of!(RawPage, checksum) == CHECKSUM.start);
const _: () = assert!(std::mem::offset_of!(RawPage, end) == 36);

/// Bytes of a record's entry.
#[inline]
pub(crate) fn entry_bytes(record: &Record) -> usize {
    let (fields, crcs) = record.fields();
    ENTRY_HEAD_BYTES + (fields.arguments_used() + crcs.len()) * 4
}

/// Writes a record's entry to the start of `out` and returns its length.
#[inline]
pub(crate) fn encode_entry(record: &Record, out: &mut [u8]) -> usize {
    let (fields, crcs) = record.fields();
    let head =
        RawEntry { kind: fields.kind, count: fields.count as u8, reserved: [0; 2], first: U32::new(fields.first) };
    out[..ENTRY_HEAD_BYTES].copy_from_slice(head.as_bytes());
    let words = fields.arguments[..fields.arguments_used()].iter().chain(crcs);
    let mut at = ENTRY_HEAD_BYTES;
    for word in words {
        out[at..at + 4].copy_from_slice(&word.to_le_bytes());
        at += 4;
    }
    at
}

impl SummaryPage {
    /// Completes a page whose entries end at byte `used`.
    pub(crate) fn seal(&self, salt: u32, used: usize, page: &mut [u8; BLOCK_BYTES]) {
        let raw = RawPage {
            magic: MAGIC,
            checksum: U32::ZERO,
            sequence: self.sequence.into(),
            first_lsn: self.first_lsn.into(),
            epoch: self.epoch.into(),
            records: self.records.into(),
            entry_bytes: U16::new((used - HEAD_BYTES) as u16),
            start: self.start.into(),
            end: self.end.into(),
            rest: [0; 24],
        };
        page[..HEAD_BYTES].copy_from_slice(raw.as_bytes());
        page[used..].fill(0);
        let checksum = crc32c(page) ^ salt;
        page[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }

    /// What seems to be a page, not verified.
    pub(crate) fn peek(head: &[u8; HEAD_BYTES]) -> Option<SummaryPage> {
        let raw: RawPage = zerocopy::transmute!(*head);
        (raw.magic == MAGIC).then(|| SummaryPage {
            sequence: raw.sequence.get(),
            first_lsn: raw.first_lsn.get(),
            epoch: raw.epoch.get(),
            records: raw.records.get(),
            start: raw.start.get(),
            end: raw.end.get(),
        })
    }

    /// Appends the headers of its records to `headers`, all of them or none; false when these bytes are no page, a damaged
    /// one, or one that no writer writes: then the records themselves are read.
    pub(crate) fn decode(salt: u32, page: &mut [u8; BLOCK_BYTES], headers: &mut Vec<Header>) -> bool {
        let before = headers.len();
        let whole = headers_of(salt, page, headers).is_some();
        if !whole {
            headers.truncate(before);
        }
        whole
    }
}

fn headers_of(salt: u32, page: &mut [u8; BLOCK_BYTES], headers: &mut Vec<Header>) -> Option<()> {
    let raw = RawPage::read_from_prefix(page).ok()?.0;
    page[CHECKSUM].fill(0);
    if raw.magic != MAGIC || crc32c(page) ^ salt != raw.checksum.get() || raw.rest != [0; 24] {
        return None;
    }
    let (mut entries, padding) = page[HEAD_BYTES..].split_at_checked(raw.entry_bytes.get() as usize)?;
    let mut units = raw.start.get();
    for index in 0..raw.records.get() as u64 {
        let (record, used) = decode_entry(entries)?;
        entries = &entries[used..];
        let bytes = record.header_bytes();
        let after_header = units.checked_add((bytes / UNIT) as u32)?;
        let payload_units = record.payload_bytes().div_ceil(UNIT) as u32;
        let payload = if payload_units == 0 { 0 } else { after_header };
        units = after_header.checked_add(payload_units)?;
        let lsn = raw.first_lsn.get().checked_add(index)?;
        headers.push(Header { record, lsn, epoch: raw.epoch.get(), payload, bytes });
    }
    let complete = entries.is_empty() && units == raw.end.get() && padding.iter().all(|byte| *byte == 0);
    complete.then_some(())
}

/// Few are set in place: `collect` asks at each one whether there is room.
#[inline]
fn crcs_of(words: impl ExactSizeIterator<Item = u32>) -> Crcs {
    let (mut few, count) = ([0; CRCS_INLINE], words.len());
    if count > few.len() {
        return words.collect();
    }
    few.iter_mut().zip(words).for_each(|(slot, word)| *slot = word);
    Crcs::from_buf_and_len(few, count)
}

/// The record of the entry at the start of `bytes`, and the entry's length.
#[inline]
fn decode_entry(bytes: &[u8]) -> Option<(Record, usize)> {
    let (raw, words) = RawEntry::ref_from_prefix(bytes).ok()?;
    let fields = Fields::new(raw.kind, raw.count as u16, raw.first.get()).ok()?;
    let used = fields.arguments_used() + fields.crcs();
    let (words, _) = words.split_at_checked(used * 4)?;
    let mut words = words.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    let mut arguments = [0; 2];
    arguments.iter_mut().take(fields.arguments_used()).for_each(|slot| *slot = words.next().unwrap_or(0));
    let record = Fields { arguments, ..fields }.into_record(crcs_of(words)).ok()?;
    (raw.reserved == [0; 2] && record.fault().is_none()).then_some((record, ENTRY_HEAD_BYTES + used * 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    const SALT: u32 = 77;

    fn samples() -> Vec<Record> {
        vec![
            Record::Write { first: 1024, crcs: smallvec![5] },
            Record::Write { first: 64, crcs: (0..64).collect() },
            Record::Delta { block: 9, offset: 512, bytes: 100, crc: 1 },
            Record::Trim { first: 5, blocks: 70_000 },
            Record::Allocate { extent: 3, volume: 1, vextent: u32::MAX, over: false },
            Record::Allocate { extent: 5, volume: 2, vextent: 1, over: true },
            Record::HandOver { extent: 3, volume: 2, vextent: 6 },
            Record::Free { extent: 3, unusable: true },
            Record::InPlace { first: 0, crcs: (0..7).collect() },
            Record::Lost { first: 2, blocks: 1 },
            Record::Move { extent: 4, volume: 2, vextent: 7, former: 3 },
        ]
    }

    /// A page of these records, and what it says.
    fn page(records: &[Record]) -> ([u8; BLOCK_BYTES], Vec<Header>) {
        let (mut page, mut used, mut units) = ([0xAA; BLOCK_BYTES], HEAD_BYTES, 64);
        let mut headers = Vec::new();
        for (lsn, record) in (1000..).zip(records) {
            used += encode_entry(record, &mut page[used..]);
            let bytes = record.header_bytes();
            let payload = if record.payload_bytes() == 0 { 0 } else { units + (bytes / UNIT) as u32 };
            units += ((bytes + record.payload_bytes().next_multiple_of(UNIT)) / UNIT) as u32;
            headers.push(Header { record: record.clone(), lsn, epoch: 3, payload, bytes });
        }
        let records = records.len() as u16;
        SummaryPage { sequence: 9, first_lsn: 1000, epoch: 3, records, start: 64, end: units }
            .seal(SALT, used, &mut page);
        (page, headers)
    }

    fn decoded(page: &[u8; BLOCK_BYTES], salt: u32) -> Option<Vec<Header>> {
        let mut headers = Vec::new();
        SummaryPage::decode(salt, &mut page.clone(), &mut headers).then_some(headers)
    }

    #[test]
    fn every_kind_of_record_survives_the_round_trip_and_no_flipped_bit_does() {
        let (page, headers) = page(&samples());
        assert_eq!(decoded(&page, SALT), Some(headers));
        assert_eq!(decoded(&page, SALT + 1), None, "another log's");
        assert_eq!(SummaryPage::peek(page.first_chunk().unwrap()).map(|page| page.records), Some(11));
        for bit in 0..page.len() * 8 {
            let mut damaged = page;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decoded(&damaged, SALT), None, "bit {bit}");
        }
        samples().iter().for_each(|record| assert_eq!(encode_entry(record, &mut [0; 300]), entry_bytes(record)));
    }

    #[test]
    fn a_page_that_no_writer_writes_is_none() {
        let (good, _) = page(&samples());
        // Kind, count, reserved bytes, payload of a write, the number of records, the end.
        for (at, value) in
            [(64, 0), (64, 11), (65, 65), (65, 0), (66, 1), (28, 12), (28, 10), (36, 0), (30, 0), (31, 0xFF)]
        {
            let mut bad = good;
            bad[at] = value;
            bad[CHECKSUM].fill(0);
            let checksum = crc32c(&bad) ^ SALT;
            bad[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
            assert_eq!(decoded(&bad, SALT), None, "byte {at} is {value}");
        }
    }
}
