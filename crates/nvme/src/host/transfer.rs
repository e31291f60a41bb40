//! The data of one outstanding command as its host follows it (TCP Transport 1.0, section 3.3.2).
//!
//! Whatever a controller says is checked here before a byte is moved: a controller never reads or writes outside of the memory
//! of the command that it names.

use crate::spec::Status;
use crate::tcp::fault::field;
use crate::tcp::{DataHeader, Fault, R2t};

/// Data to the controller: R2Ts in, H2CData out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTransfer {
    len: u32,
    requested: u32,
    sent: u32,
    /// The R2T that is being answered: tag, and where it ends.
    current: Option<(u16, u32)>,
}

impl WriteTransfer {
    /// A command with `len` bytes that are not in its capsule.
    pub const fn new(len: u32) -> Self {
        WriteTransfer { len, requested: 0, sent: 0, current: None }
    }

    /// Takes an R2T. They come one at a time per command (this host announces so) and in order.
    ///
    /// # Errors
    /// Range or order violated: the connection ends.
    pub fn request(&mut self, r2t: &R2t) -> Result<(), Fault> {
        if r2t.len == 0 {
            return Err(Fault::HeaderField { offset: field::LENGTH });
        }
        if self.current.is_some() {
            return Err(Fault::LimitExceeded);
        }
        if r2t.offset != self.requested || r2t.len > self.len - self.requested {
            return Err(Fault::DataOutOfRange);
        }
        self.requested += r2t.len;
        self.current = Some((r2t.ttag, self.requested));
        Ok(())
    }

    /// The next H2CData to send, at most `maxh2cdata` bytes; `None` when the R2T is satisfied.
    pub fn next(&mut self, cid: u16, maxh2cdata: u32) -> Option<DataHeader> {
        let (ttag, end) = self.current?;
        let len = (end - self.sent).min(maxh2cdata);
        let header =
            DataHeader { cccid: cid, ttag, offset: self.sent, len, last: self.sent + len == end, success: false };
        self.sent += len;
        if header.last {
            self.current = None;
        }
        Some(header)
    }

    /// Whether everything was sent.
    pub const fn is_complete(&self) -> bool {
        self.sent == self.len
    }
}

/// What a C2HData means for its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Where the data goes in the command's memory.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// The command succeeded with this PDU; no response capsule comes.
    pub success: bool,
}

/// Data from the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTransfer {
    len: u32,
    received: u32,
    last_seen: bool,
    damaged: bool,
}

impl ReadTransfer {
    /// A command that reads `len` bytes.
    pub const fn new(len: u32) -> Self {
        ReadTransfer { len, received: 0, last_seen: false, damaged: false }
    }

    /// Takes the header of a C2HData, before its data is placed.
    ///
    /// # Errors
    /// Range or order violated, or data after the last: the connection ends.
    pub fn arrive(&mut self, data: &DataHeader) -> Result<Arrival, Fault> {
        if self.last_seen {
            return Err(Fault::Sequence);
        }
        if data.offset != self.received || data.len > self.len - self.received {
            return Err(Fault::DataOutOfRange);
        }
        if data.success && !data.last {
            return Err(Fault::HeaderField { offset: field::FLAGS });
        }
        self.received += data.len;
        self.last_seen = data.last;
        Ok(Arrival { offset: data.offset, len: data.len, success: data.success })
    }

    /// A data digest did not match: the command fails whatever its status (TCP Transport 1.0, section 3.3.1.1).
    pub fn damage(&mut self) {
        self.damaged = true;
    }

    /// Bytes that arrived.
    pub const fn received(&self) -> u32 {
        self.received
    }

    /// What the command's result is, given the status in its response (or success, if a C2HData said so). `exact` says that
    /// less data than asked for is an error, as for block reads.
    pub fn conclude(&self, status: Status, exact: bool) -> Status {
        if !status.is_success() {
            return status;
        }
        let is_short = exact && self.received != self.len;
        if self.damaged || is_short { Status::TRANSIENT_TRANSPORT_ERROR } else { status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn r2t(offset: u32, len: u32) -> R2t {
        R2t { cccid: 1, ttag: 7, offset, len }
    }

    fn data(offset: u32, len: u32, last: bool, success: bool) -> DataHeader {
        DataHeader { cccid: 1, ttag: 0, offset, len, last, success }
    }

    #[test]
    fn requests_out_of_range_or_order_end_the_connection() {
        let fresh = || WriteTransfer::new(100);
        assert_eq!(fresh().request(&r2t(0, 101)), Err(Fault::DataOutOfRange));
        assert_eq!(fresh().request(&r2t(1, 50)), Err(Fault::DataOutOfRange));
        assert_eq!(fresh().request(&r2t(0, 0)), Err(Fault::HeaderField { offset: field::LENGTH }));
        assert_eq!(fresh().request(&r2t(u32::MAX, u32::MAX)), Err(Fault::DataOutOfRange));
        let mut transfer = fresh();
        transfer.request(&r2t(0, 50)).expect("in order");
        assert_eq!(transfer.request(&r2t(50, 50)), Err(Fault::LimitExceeded), "one at a time");
    }

    #[test]
    fn a_command_that_is_complete_takes_no_more_requests() {
        let mut transfer = WriteTransfer::new(10);
        transfer.request(&r2t(0, 10)).expect("in order");
        assert!(transfer.next(1, 4096).is_some_and(|header| header.last));
        assert!(transfer.is_complete());
        assert_eq!(transfer.request(&r2t(10, 1)), Err(Fault::DataOutOfRange));
    }

    proptest! {
        #[test]
        fn requested_data_is_sent_once_in_order_and_within_the_limit(
            lens in proptest::collection::vec(1u32..20_000, 1..6), max in 1u32..8192,
        ) {
            let total = lens.iter().sum();
            let mut transfer = WriteTransfer::new(total);
            let mut sent = 0;
            for len in lens {
                transfer.request(&r2t(sent, len)).expect("in order");
                let end = sent + len;
                while let Some(header) = transfer.next(9, max) {
                    prop_assert_eq!((header.cccid, header.ttag, header.offset), (9, 7, sent));
                    prop_assert!(header.len > 0 && header.len <= max);
                    sent += header.len;
                    prop_assert_eq!(header.last, sent == end);
                }
                prop_assert_eq!(sent, end);
            }
            prop_assert!(transfer.is_complete());
        }
    }

    #[test]
    fn data_outside_of_the_command_or_after_the_last_ends_the_connection() {
        let fresh = || ReadTransfer::new(100);
        for (offset, len) in [(0, 101), (1, 1), (u32::MAX, 1), (0, u32::MAX)] {
            assert_eq!(fresh().arrive(&data(offset, len, false, false)), Err(Fault::DataOutOfRange));
        }
        let mut transfer = fresh();
        transfer.arrive(&data(0, 50, true, false)).expect("short, but in range");
        assert_eq!(transfer.arrive(&data(50, 50, true, false)), Err(Fault::Sequence));
        let mut transfer = fresh();
        transfer.arrive(&data(0, 60, false, false)).expect("in range");
        for (offset, len) in [(60, 41), (60, 100), (0, 60)] {
            assert_eq!(transfer.arrive(&data(offset, len, false, false)), Err(Fault::DataOutOfRange));
        }
        let early = fresh().arrive(&data(0, 50, false, true));
        assert_eq!(early, Err(Fault::HeaderField { offset: field::FLAGS }));
    }

    #[test]
    fn success_with_missing_or_damaged_data_is_no_success() {
        let mut transfer = ReadTransfer::new(100);
        transfer.arrive(&data(0, 50, true, true)).expect("in range");
        assert_eq!(transfer.conclude(Status::SUCCESS, true), Status::TRANSIENT_TRANSPORT_ERROR);
        assert_eq!(transfer.conclude(Status::SUCCESS, false), Status::SUCCESS);
        assert_eq!(transfer.conclude(Status::LBA_OUT_OF_RANGE, true), Status::LBA_OUT_OF_RANGE);
        transfer.damage();
        assert_eq!(transfer.conclude(Status::SUCCESS, false), Status::TRANSIENT_TRANSPORT_ERROR);
    }
}
