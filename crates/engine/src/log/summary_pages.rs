//! The summary of a mapped segment: pages that grow from its end downward while records grow upward, each with what the
//! next run of records says. Recovery reads these instead of the record headers between the payloads.
//!
//! A page is stored after the fence of its last record: what a page says is durable, whoever sees the page. It has no fence
//! of its own, that of the next record does; a page that a power loss tears fails its checksum and is no page. So a summary
//! is a shortcut and never a must: it costs a copy of a few bytes per record, and a store of a page per some hundred.

use super::{Log, LogGeometry, Medium};
use crate::format::record::{Record, UNIT};
use crate::format::summary_page::{HEAD_BYTES, SummaryPage, encode_entry, entry_bytes};
use crate::units::BLOCK_BYTES;
use reactor::Errno;

/// At most one block in so many of a segment is a page; what comes after is read record by record.
const SEGMENT_SHARE: u32 = 16;

/// Most pages of a segment.
pub(super) fn pages_max(geometry: &LogGeometry) -> u32 {
    geometry.segment_blocks / SEGMENT_SHARE
}

/// The page that is being filled, and those of its segment that are stored.
pub(super) struct SummaryPages {
    page: Box<[u8; BLOCK_BYTES]>,
    used: usize,
    about: SummaryPage,
    place: u32,
    stored: u32,
    max: u32,
}

impl SummaryPages {
    pub(super) fn new(geometry: &LogGeometry) -> SummaryPages {
        let about = SummaryPage { sequence: 0, first_lsn: 0, epoch: 0, records: 0, start: 0, end: 0 };
        let page = Box::new([0; BLOCK_BYTES]);
        SummaryPages { page, used: HEAD_BYTES, about, place: 0, stored: 0, max: pages_max(geometry) }
    }

    /// Bytes at the end of the segment that pages take when one more record is in them.
    #[inline]
    pub(super) fn bytes_with(&self, record: &Record) -> u64 {
        let current = if self.used + entry_bytes(record) > BLOCK_BYTES { 2 } else { 1 };
        (self.stored + current).min(self.max) as u64 * BLOCK_BYTES as u64
    }

    /// Bytes that they take now.
    pub(super) fn bytes(&self) -> u64 {
        (self.stored + 1).min(self.max) as u64 * BLOCK_BYTES as u64
    }

    fn begin_page(&mut self) {
        self.about.records = 0;
        self.used = HEAD_BYTES;
    }
}

impl Log {
    /// Takes a durable record into the summary, whose bytes of the segment are these.
    #[inline]
    pub(super) fn summarize(&self, record: &Record, lsn: u64, bytes: std::ops::Range<u64>) {
        if self.state.borrow().pages.used + entry_bytes(record) > BLOCK_BYTES {
            self.store_summary_page();
        }
        let pages = &mut self.state.borrow_mut().pages;
        if pages.stored == pages.max {
            return;
        }
        if pages.about.records == 0 {
            (pages.about.first_lsn, pages.about.start) = (lsn, (bytes.start / UNIT as u64) as u32);
        }
        pages.about.records += 1;
        pages.about.end = (bytes.end / UNIT as u64) as u32;
        pages.used += encode_entry(record, &mut pages.page[pages.used..]);
    }

    /// Completes the summary of the segment before, and begins with that of the one just opened.
    pub(super) fn begin_summary(&self) {
        self.store_summary_page();
        let state = &mut *self.state.borrow_mut();
        let open = state.open.as_ref().expect("just opened");
        let pages = &mut state.pages;
        pages.about = SummaryPage { sequence: open.sequence, epoch: self.epoch, ..pages.about };
        (pages.place, pages.stored, pages.max) = (open.place, 0, pages_max(&self.geometry));
        pages.begin_page();
    }

    /// Stores the page that is being filled, and begins another. All of its records are durable.
    pub(super) fn store_summary_page(&self) {
        let state = &mut *self.state.borrow_mut();
        let pages = &mut state.pages;
        if pages.about.records == 0 || pages.stored == pages.max {
            return;
        }
        pages.about.seal(self.salt, pages.used, &mut pages.page);
        match self.store_page(pages) {
            Ok(()) => {
                pages.stored += 1;
                state.stats.medium_bytes += BLOCK_BYTES as u64;
            }
            Err(errno) => {
                // What follows would not be found behind a gap.
                pages.max = pages.stored;
                let segment = pages.about.sequence;
                tracing::warn!(segment, "{}: the summary of a segment was not stored: {errno}", self.name());
            }
        }
        pages.begin_page();
    }

    /// The defect of [`store_summaries_early`](Self::store_summaries_early).
    #[cold]
    pub(super) fn store_summary_early(&self, record: &Record, lsn: u64, bytes: std::ops::Range<u64>) {
        let state = &mut *self.state.borrow_mut();
        let pages = &mut state.pages;
        if pages.stored == pages.max || pages.used + entry_bytes(record) > BLOCK_BYTES {
            return;
        }
        let (records, units) = (pages.about.records + 1, |byte: u64| (byte / UNIT as u64) as u32);
        let (first_lsn, start) =
            if records == 1 { (lsn, units(bytes.start)) } else { (pages.about.first_lsn, pages.about.start) };
        let used = pages.used + encode_entry(record, &mut pages.page[pages.used..]);
        let about = SummaryPage { records, first_lsn, start, end: units(bytes.end), ..pages.about };
        about.seal(self.salt, used, &mut pages.page);
        // Whether that works is told by the page that is stored when it should be.
        let _ = self.store_page(pages);
    }

    fn store_page(&self, pages: &SummaryPages) -> Result<(), Errno> {
        let Medium::Mapped { reactor, pmem, first_byte } = &self.medium else { unreachable!("a mapped log") };
        let end = first_byte + (pages.place as u64 + 1) * self.geometry.segment_bytes();
        let at = end - (pages.stored as u64 + 1) * BLOCK_BYTES as u64;
        reactor.driver().pmem_store(*pmem, at, &pages.page[..])
    }
}
