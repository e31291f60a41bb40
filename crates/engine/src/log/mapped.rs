//! Appending to a mapped log: header and payload stored, one fence.
//!
//! The index learns of a record between its stores and its fence, because both take their time waiting for memory and
//! nobody can look in between: a record counts when [`Log::place`] returns, and until then nothing else runs here.
//!
//! A segment's header is stored with its first record and shares that record's fence: without it the record would not be
//! found, and nobody was told of it yet.

use super::{Appended, Class, Log, Medium, Opening, Placed};
use crate::format::record::{self, HEADER_BYTES_MAX, Record, UNIT};
use crate::units::BLOCK_BYTES;
use bdev::{Op, Status};
use reactor::{Buf, Errno};
use std::rc::Rc;

impl Log {
    /// Appends now; `None` when there is no space, or `name` does not complete the record.
    #[inline]
    pub(super) fn place(
        &self,
        record: &mut Record,
        payload: &[Buf],
        class: Class,
        mut name: impl FnMut(&mut Record) -> bool,
    ) -> Option<Result<Placed, Status>> {
        let payload_bytes = record.payload_bytes();
        let bytes = (record.header_bytes() + payload_bytes.next_multiple_of(UNIT)) as u64;
        loop {
            if !self.fits(record, bytes, class) {
                match self.open_next(class) {
                    Opening::Opened(overwritten) => {
                        self.begin_summary();
                        if let Some(segment) = overwritten {
                            self.sink.reclaimed(segment);
                        }
                        if let Err(errno) = self.store_segment_header() {
                            self.leave_failed(Status::of_errno(errno, Op::Write));
                        }
                    }
                    Opening::Full => {
                        if self.state.borrow().ring.is_full(class) {
                            self.store_summary_page();
                            self.state.borrow_mut().open = None;
                        }
                        return None;
                    }
                    Opening::Never(status) => return Some(Err(status)),
                }
                continue;
            }
            match self.store(record, payload, &mut name) {
                Ok(None) => return None,
                Ok(Some(placed)) => {
                    let start = self.advance(bytes, payload_bytes as u64);
                    self.sink.placed(record, placed);
                    if self.summaries_early.get() {
                        self.store_summary_early(record, placed.lsn, start..start + bytes);
                    }
                    self.fence();
                    self.summarize(record, placed.lsn, start..start + bytes);
                    return Some(Ok(placed));
                }
                Err(errno) => drop(self.leave_failed(Status::of_errno(errno, Op::Write))),
            }
        }
    }

    #[inline]
    fn fits(&self, record: &Record, bytes: u64, class: Class) -> bool {
        let state = self.state.borrow();
        let Some(open) = &state.open else { return false };
        let needed = open.used + bytes + state.pages.bytes_with(record);
        needed <= self.geometry.segment_bytes() && state.ring.admits(class)
    }

    fn store_segment_header(&self) -> Result<(), Errno> {
        let Medium::Mapped { reactor, pmem, first_byte } = &self.medium else { unreachable!("a mapped log") };
        let (header, place) = {
            let state = self.state.borrow();
            let open = state.open.as_ref().expect("just opened");
            (self.segment_header(open.sequence, open.first_lsn).encode(), open.place)
        };
        reactor.driver().pmem_store(*pmem, first_byte + place as u64 * self.geometry.segment_bytes(), &header)
    }

    #[inline]
    fn fence(&self) {
        let Medium::Mapped { reactor, pmem, .. } = &self.medium else { unreachable!("a mapped log") };
        reactor.driver().pmem_fence(*pmem);
    }

    /// Stores a record; it is durable after the next fence. `None` when `name` does not complete it.
    #[inline]
    fn store(
        &self,
        record: &mut Record,
        payload: &[Buf],
        name: &mut impl FnMut(&mut Record) -> bool,
    ) -> Result<Option<Placed>, Errno> {
        let Medium::Mapped { reactor, pmem, first_byte } = &self.medium else { unreachable!("a mapped log") };
        let (place, used, segment, lsn) = {
            let state = self.state.borrow();
            let open = state.open.as_ref().expect("there is room in a segment");
            (open.place, open.used, open.sequence, state.next_lsn)
        };
        let after_header = used + record.header_bytes() as u64;
        let payload_at = if record.payload_bytes() == 0 { 0 } else { after_header };
        let units = (payload_at / UNIT as u64) as u32;
        let driver = reactor.driver();
        let start = first_byte + place as u64 * self.geometry.segment_bytes();
        if !name(record) {
            return Ok(None);
        }
        self.store_payload(record, payload, start + after_header)?;
        self.sink.coming(record);
        let encode = |header: &mut [u8]| record::encode(record, lsn, self.epoch, units, self.salt, header);
        if record.header_bytes() == UNIT {
            // Most are: nothing larger is cleared behind the stores of the payload.
            let mut header = [0; UNIT];
            encode(&mut header);
            driver.pmem_store(*pmem, start + used, &header)?;
        } else {
            let mut header = [0; HEADER_BYTES_MAX];
            let header_bytes = encode(&mut header);
            driver.pmem_store(*pmem, start + used, &header[..header_bytes])?;
        }
        Ok(Some(Placed { lsn, segment, at: self.geometry.at(place, payload_at) }))
    }

    /// Stores the payload from byte `at` on, and makes its checksums.
    #[inline]
    fn store_payload(&self, record: &mut Record, payload: &[Buf], mut at: u64) -> Result<(), Errno> {
        let Medium::Mapped { reactor, pmem, .. } = &self.medium else { unreachable!("a mapped log") };
        let driver = reactor.driver();
        let is_whole = payload.iter().all(|buf| buf.len().is_multiple_of(BLOCK_BYTES));
        if let Record::Write { crcs, .. } = record
            && is_whole
        {
            // On the way, so that nothing of it is loaded twice.
            let mut rest = &mut crcs[..];
            for buf in payload {
                let (these, others) = rest.split_at_mut(buf.len() / BLOCK_BYTES);
                driver.pmem_store_checked(*pmem, at, buf.as_slice(), these)?;
                (at, rest) = (at + buf.len() as u64, others);
            }
            return Ok(());
        }
        for buf in payload {
            driver.pmem_store(*pmem, at, buf.as_slice())?;
            at += buf.len() as u64;
        }
        record.seal(payload);
        Ok(())
    }

    /// Counts a record that was stored; where in the segment it begins.
    #[inline]
    fn advance(&self, bytes: u64, payload_bytes: u64) -> u64 {
        let state = &mut *self.state.borrow_mut();
        let open = state.open.as_mut().expect("just written");
        let start = open.used;
        open.used += bytes;
        state.next_lsn += 1;
        self.count_success(state);
        state.stats.appended_records += 1;
        state.stats.user_bytes += payload_bytes;
        state.stats.medium_bytes += bytes;
        state.stats.fences += 1;
        start
    }

    /// Appends what waits for space, as far as there is some.
    pub(super) fn place_queued(self: &Rc<Self>) {
        for class in [Class::Internal, Class::User] {
            loop {
                let entry = self.state.borrow_mut().queues[class as usize].pop_front();
                let Some(mut entry) = entry else { break };
                let Some(result) = self.place(&mut entry.record, &entry.payload, class, |_| true) else {
                    self.state.borrow_mut().queues[class as usize].push_front(entry);
                    break;
                };
                self.state.borrow_mut().queued_bytes -= entry.bytes_max();
                self.finish(entry.slot, Appended { result, payload: entry.payload });
            }
        }
    }
}
