//! The segments of a mapped log: by the pages of their summary, then record by record. Every record has its own fence,
//! so at most the last one is torn; whatever lies behind a record that does not decode was stored after that one was
//! durable.

use super::{LogError, Scan};
use crate::format::record::{self, HEADER_BYTES_MAX, Header, NoRecord, READ_NUMBER_MAX, Record, UNIT};
use crate::format::segment::Segment;
use crate::format::summary_page::SummaryPage;
use crate::log::Medium;
use crate::log::summary_pages::pages_max;
use crate::units::BLOCK_BYTES;
use base::crc32c;
use bdev::{Op, Status};
use reactor::Errno;

/// Bytes looked at in one go when a record is searched.
const SEARCH_BYTES: usize = 64 << 10;
/// Bytes of a summary that are fetched ahead: twice what records of 4 KiB need in a segment of 16 MiB.
const FETCH_BYTES_MAX: u64 = 128 << 10;

impl Scan<'_> {
    /// Reads inside the segment.
    fn load(&self, segment: &Segment, offset: u64, target: &mut [u8]) -> Result<(), LogError> {
        self.driver(segment, |driver, pmem, start| driver.pmem_read_once(pmem, start + offset, target))
            .map_err(|errno| self.io(segment, offset, Status::of_errno(errno, Op::Read)))
    }

    fn driver<T>(
        &self,
        segment: &Segment,
        call: impl FnOnce(&dyn reactor::Driver, reactor::driver::PmemId, u64) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Medium::Mapped { reactor, pmem, first_byte } = self.medium else { unreachable!("a mapped log") };
        let place = self.geometry.place_of(segment.sequence) as u64;
        call(&**reactor.driver(), *pmem, first_byte + place * self.geometry.segment_bytes())
    }

    pub(super) fn mapped_segment(&mut self, segment: &Segment, end: Option<u64>) -> Result<(), LogError> {
        let (mut offset, mut lsn) = self.summary_pages(segment, end)?;
        // A record is told of when the next one vouches for its payload.
        let mut held: Option<(u64, Header)> = None;
        while end != Some(lsn) {
            match self.record_at(segment, offset)? {
                Some(header) if header.lsn == lsn => {
                    let next = offset + span(&header);
                    if let Some((_, before)) = held.replace((offset, header)) {
                        self.found(segment, &before);
                    }
                    (offset, lsn) = (next, lsn + 1);
                }
                _ => match self.search(segment, offset, lsn..end.unwrap_or(u64::MAX))? {
                    Some(found) => (offset, lsn) = found,
                    None => break,
                },
            }
        }
        let Some((offset, last)) = held else { return Ok(()) };
        if end.is_some() || last.lsn < self.known.durable_lsn() {
            self.found(segment, &last);
        } else if self.is_whole(segment, offset, &last)? {
            self.store_again(segment, offset, span(&last))?;
            self.found(segment, &last);
        }
        Ok(())
    }

    /// Has the system begin to read the summary of a segment where it is not in memory: what most have, and as much as is read
    /// ahead at once.
    pub(super) fn fetch_summary(&self, segment: &Segment) {
        let bytes = (pages_max(&self.geometry) as u64 * BLOCK_BYTES as u64).min(FETCH_BYTES_MAX);
        let place = self.geometry.place_of(segment.sequence) as u64;
        self.medium.fetch((place + 1) * self.geometry.segment_bytes() - bytes, bytes);
    }

    /// Goes through the pages of the segment's summary as far as they follow one another; where the records begin that they
    /// do not have. What a page says was durable before the page was stored.
    fn summary_pages(&mut self, segment: &Segment, end: Option<u64>) -> Result<(u64, u64), LogError> {
        let (mut offset, mut lsn) = (BLOCK_BYTES as u64, segment.first_lsn);
        for number in 1..=pages_max(&self.geometry) as u64 {
            let at = self.geometry.segment_bytes() - number * BLOCK_BYTES as u64;
            let Some(page) = self.summary_page(segment, at, offset, lsn) else { break };
            let headers = std::mem::take(&mut self.headers);
            let wanted = &headers[..headers.partition_point(|header| end.is_none_or(|end| header.lsn < end))];
            if !self.writes {
                self.compare(segment, offset, wanted)?;
            }
            self.found_all(segment, wanted);
            self.headers = headers;
            (offset, lsn) = (page.end as u64 * UNIT as u64, lsn + page.records as u64);
            if end.is_some_and(|end| end <= lsn) {
                return Ok((offset, end.unwrap_or(lsn)));
            }
        }
        Ok((offset, lsn))
    }

    /// The page at `at`, when it is one of this segment and goes on from there; its records are in `headers`. One that
    /// cannot be read is none: the records themselves are read.
    fn summary_page(&mut self, segment: &Segment, at: u64, offset: u64, lsn: u64) -> Option<SummaryPage> {
        let mut bytes = [0; BLOCK_BYTES];
        self.load(segment, at, &mut bytes).ok()?;
        let head = bytes.first_chunk()?;
        let page = SummaryPage::peek(head)?;
        let ours = (page.sequence, page.epoch) == (segment.sequence, segment.epoch);
        let next = (page.first_lsn, page.start as u64 * UNIT as u64) == (lsn, offset);
        if !ours || !next || page.records == 0 || page.end as u64 * UNIT as u64 > at || lsn >= READ_NUMBER_MAX {
            return None;
        }
        self.headers.clear();
        SummaryPage::decode(self.salt, &mut bytes, &mut self.headers).then_some(page)
    }

    /// For a check: what a summary says of the records from `offset` on is what those say that can be read.
    fn compare(&self, segment: &Segment, mut offset: u64, headers: &[Header]) -> Result<(), LogError> {
        for header in headers {
            if self.record_at(segment, offset)?.is_some_and(|found| found != *header) {
                return Err(self.impossible(segment, offset, "the segment's summary says something else"));
            }
            offset += span(header);
        }
        Ok(())
    }

    /// As `headerless`: the second record was stored after the fence of the first, which the header shares.
    pub(super) fn mapped_headerless(&self, mut segment: Segment, first_min: u64) -> Result<Option<Segment>, LogError> {
        let mut bytes = [0; HEADER_BYTES_MAX];
        self.load(&segment, BLOCK_BYTES as u64, &mut bytes)?;
        let first = match record::decode(&bytes, self.salt) {
            Ok(first) if first.lsn >= first_min && first.epoch >= segment.epoch => first,
            _ => return Ok(None),
        };
        (segment.first_lsn, segment.epoch) = (first.lsn, first.epoch);
        let second = self.record_at(&segment, BLOCK_BYTES as u64 + span(&first)).unwrap_or(None);
        if second.is_none_or(|second| second.lsn != first.lsn + 1) {
            return Ok(None);
        }
        self.store_again(&segment, 0, 0)?;
        Ok(Some(segment))
    }

    /// The record of this segment's epoch that begins at `offset`, whatever its number.
    fn record_at(&self, segment: &Segment, offset: u64) -> Result<Option<Header>, LogError> {
        let room = self.geometry.segment_bytes().saturating_sub(offset);
        if room < UNIT as u64 {
            return Ok(None);
        }
        let mut bytes = [0; HEADER_BYTES_MAX];
        self.load(segment, offset, &mut bytes[..UNIT])?;
        let Some(len) = record::peek_bytes(&bytes).filter(|len| *len as u64 <= room) else { return Ok(None) };
        if len > UNIT {
            self.load(segment, offset + UNIT as u64, &mut bytes[UNIT..len])?;
        }
        let header = match record::decode(&bytes[..len], self.salt) {
            Ok(header) if header.epoch == segment.epoch => header,
            Ok(_) | Err(NoRecord::Absent) => return Ok(None),
            Err(NoRecord::Impossible(cause)) => return Err(self.impossible(segment, offset, cause)),
        };
        let payload = if header.record.payload_bytes() == 0 { 0 } else { offset + header.bytes as u64 };
        if header.payload as u64 * UNIT as u64 != payload || span(&header) > room {
            return Err(self.impossible(segment, offset, "its payload does not follow it inside the segment"));
        }
        Ok(Some(header))
    }

    /// The next record at or after `offset` with a number in `wanted`, the first of which is missing.
    fn search(
        &self,
        segment: &Segment,
        offset: u64,
        wanted: std::ops::Range<u64>,
    ) -> Result<Option<(u64, u64)>, LogError> {
        let mut piece = vec![0; SEARCH_BYTES];
        let mut at = offset;
        while at < self.geometry.segment_bytes() {
            let len = (self.geometry.segment_bytes() - at).min(SEARCH_BYTES as u64) as usize;
            self.load(segment, at, &mut piece[..len])?;
            for (index, unit) in piece[..len].chunks_exact(UNIT).enumerate() {
                if record::peek_bytes(unit).is_none() {
                    continue;
                }
                let here = at + (index * UNIT) as u64;
                // What merely looks like a record, in the middle of a payload, is none.
                if let Ok(Some(header)) = self.record_at(segment, here)
                    && wanted.contains(&header.lsn)
                    && header.lsn > wanted.start
                {
                    return Ok(Some((here, header.lsn)));
                }
            }
            at += len as u64;
        }
        Ok(None)
    }

    /// Whether the payload matches its checksums.
    fn is_whole(&self, segment: &Segment, offset: u64, header: &Header) -> Result<bool, LogError> {
        let mut bytes = [0; BLOCK_BYTES];
        let at = offset + header.bytes as u64;
        match &header.record {
            Record::Write { crcs, .. } => {
                for (index, crc) in crcs.iter().enumerate() {
                    self.load(segment, at + (index * BLOCK_BYTES) as u64, &mut bytes)?;
                    if crc32c(&bytes) != *crc {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Record::Delta { bytes: len, crc, .. } => {
                let bytes = &mut bytes[..*len as usize];
                self.load(segment, at, bytes)?;
                Ok(crc32c(bytes) == *crc)
            }
            _ => Ok(true),
        }
    }

    /// Stores a range and the segment's header once more and fences: a killed process may have left them visible and not
    /// durable, and a fence covers the stores of its own process only.
    fn store_again(&self, segment: &Segment, offset: u64, bytes: u64) -> Result<(), LogError> {
        if !self.writes {
            return Ok(());
        }
        let mut piece = [0; BLOCK_BYTES];
        let end = offset + bytes;
        let mut at = offset;
        let failed = |errno| self.io(segment, offset, Status::of_errno(errno, Op::Write));
        self.driver(segment, |driver, pmem, start| driver.pmem_store(pmem, start, &segment.encode()))
            .map_err(failed)?;
        while at < end {
            let len = (end - at).min(piece.len() as u64) as usize;
            self.load(segment, at, &mut piece[..len])?;
            self.driver(segment, |driver, pmem, start| driver.pmem_store(pmem, start + at, &piece[..len]))
                .map_err(failed)?;
            at += len as u64;
        }
        self.driver(segment, |driver, pmem, _| {
            driver.pmem_fence(pmem);
            Ok(())
        })
        .map_err(failed)
    }
}

/// Bytes from the start of a record to the start of the next.
fn span(header: &Header) -> u64 {
    (header.bytes + header.record.payload_bytes().next_multiple_of(UNIT)) as u64
}
