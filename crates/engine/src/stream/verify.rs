//! Whether a stream is whole and undamaged, told from its bytes alone as they pass by.

use super::format::{HEADER_BYTES, Header, RECORD_BYTES, Record, RecordKind};
use super::order::Order;
use super::{StreamError, StreamTotals, failure_words};
use crate::format::Malformed;
use base::crc32c;

/// What a stream says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamAbout {
    /// The snapshot: `volume@snapshot`.
    pub name: String,
    /// The snapshot that it goes on from; empty: it has everything.
    pub since: String,
    /// Size of the snapshot in bytes.
    pub bytes: u64,
    /// When it was made, seconds since 1970.
    pub created_s: u64,
}

enum Expected {
    Header,
    Record,
    Payload(Record),
    Nothing,
}

/// See the module.
pub struct StreamVerifier {
    expected: Expected,
    /// What has come of the part that is expected.
    held: Vec<u8>,
    about: Option<(StreamAbout, u64)>,
    order: Order,
}

impl Default for StreamVerifier {
    fn default() -> StreamVerifier {
        StreamVerifier { expected: Expected::Header, held: Vec::new(), about: None, order: Order::default() }
    }
}

impl StreamVerifier {
    /// The next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), StreamError> {
        loop {
            let needed = match &self.expected {
                Expected::Header => HEADER_BYTES,
                Expected::Record => RECORD_BYTES,
                Expected::Payload(record) => record.payload_bytes as usize,
                Expected::Nothing if bytes.is_empty() => return Ok(()),
                Expected::Nothing => return Err(self.damaged(0, Malformed("it goes on behind its end"))),
            };
            let part = (needed - self.held.len()).min(bytes.len());
            self.held.extend_from_slice(&bytes[..part]);
            self.order.totals.stream_bytes += part as u64;
            bytes = &bytes[part..];
            if self.held.len() < needed {
                return Ok(());
            }
            let held = std::mem::take(&mut self.held);
            self.part(&held).map_err(|error| match error {
                Problem::Malformed(cause) => self.damaged(needed, cause),
                Problem::Other(error) => error,
            })?;
            // Its memory is used again.
            self.held = held;
            self.held.clear();
        }
    }

    /// What the stream carried, if what has come was all of it.
    pub fn finish(&self) -> Result<StreamTotals, StreamError> {
        match self.expected {
            Expected::Nothing => Ok(self.order.totals),
            Expected::Header => Err(Header::cut(&self.held)),
            _ => Err(StreamError::Cut { bytes: self.order.totals.stream_bytes }),
        }
    }

    /// What the stream says of itself, once that has come.
    pub fn about(&self) -> Option<&StreamAbout> {
        self.about.as_ref().map(|(about, _)| about)
    }

    fn damaged(&self, back: usize, cause: Malformed) -> StreamError {
        StreamError::Damaged { byte: self.order.totals.stream_bytes - back as u64, cause }
    }

    fn part(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        match std::mem::replace(&mut self.expected, Expected::Record) {
            Expected::Header => {
                let header = Header::decode(bytes.try_into().expect("as many as were asked for"))?;
                if header.features != 0 {
                    return Err(Problem::Other(StreamError::Newer(header.features)));
                }
                let about = StreamAbout {
                    bytes: header.blocks * crate::units::BLOCK_BYTES as u64,
                    created_s: header.created_s,
                    name: header.name,
                    since: header.since_name,
                };
                self.about = Some((about, header.blocks));
            }
            Expected::Record => {
                let blocks = self.about.as_ref().map_or(0, |(_, blocks)| *blocks);
                let record = Record::decode(bytes.try_into().expect("as many as were asked for"), blocks)?;
                self.order.accept(&record)?;
                if record.kind == RecordKind::End {
                    self.expected = Expected::Nothing;
                }
                if record.payload_bytes > 0 {
                    self.expected = Expected::Payload(record);
                }
            }
            Expected::Payload(record) => {
                if crc32c(bytes) != record.payload_crc {
                    return Err(Malformed("the checksum of its data is wrong").into());
                }
                if record.kind == RecordKind::Failed {
                    return Err(Problem::Other(failure_words(bytes)));
                }
            }
            Expected::Nothing => {}
        }
        Ok(())
    }
}

enum Problem {
    Malformed(Malformed),
    Other(StreamError),
}

impl From<Malformed> for Problem {
    fn from(cause: Malformed) -> Problem {
        Problem::Malformed(cause)
    }
}
