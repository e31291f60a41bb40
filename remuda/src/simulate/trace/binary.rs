//! blktrace's own records, as one file: 48 bytes each (`struct blk_io_trace` of Linux' `blktrace_api.h`, version 7, little-endian), and
//! what drivers add behind them.

use super::{Access, Cause, Event, Kind, SECTOR, Seen, Times, check};
use std::io::{BufRead, ErrorKind, Read};

const RECORD_BYTES: usize = 48;
const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;
/// Bits of the categories, above the action.
const WRITE: u32 = 1 << 1;
const READ: u32 = 1 << 0;
const NOTIFY: u32 = 1 << 10;
const DISCARD: u32 = 1 << 13;

pub(super) struct Binary {
    event: Event,
    device: Option<String>,
    seen: Seen,
    pub(super) times: Times,
    /// Where the record begins that was read last.
    pub(super) at: u64,
    next: u64,
}

pub(super) fn is_binary(bytes: &[u8]) -> bool {
    bytes.len() >= 4 && u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & !0xFF == MAGIC
}

impl Binary {
    pub(super) fn new(event: Event, device: Option<&str>) -> Binary {
        Binary {
            event,
            device: device.map(str::to_string),
            seen: Seen::default(),
            times: Times::default(),
            at: 0,
            next: 0,
        }
    }

    pub(super) fn next(&mut self, input: &mut impl BufRead) -> Result<Option<Access>, Cause> {
        loop {
            self.at = self.next;
            let failed = |error: std::io::Error| match error.kind() {
                ErrorKind::UnexpectedEof => "it ends in the middle of a record".to_string(),
                _ => format!("cannot read it: {error}"),
            };
            if input.fill_buf().map_err(failed)?.is_empty() {
                return self.seen.end(self.event, self.device.as_deref()).map(|()| None);
            }
            let mut record = [0; RECORD_BYTES];
            input.read_exact(&mut record).map_err(failed)?;
            let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
            if word(0) != MAGIC | VERSION {
                return Err(format!("a record begins with {:08x} instead of {:08x}", word(0), MAGIC | VERSION));
            }
            let extra = u64::from(u16::from_le_bytes([record[46], record[47]]));
            let skipped = std::io::copy(&mut input.by_ref().take(extra), &mut std::io::sink()).map_err(failed)?;
            if skipped < extra {
                return Err("it ends in the middle of a record".to_string());
            }
            self.next += RECORD_BYTES as u64 + extra;
            let sector = u64::from(word(16)) | u64::from(word(20)) << 32;
            if let Some(access) = self.access(sector, word(24), word(28), word(36))? {
                self.times.at(u64::from(word(8)) | u64::from(word(12)) << 32);
                return check(access).map(Some);
            }
        }
    }

    fn access(&mut self, sector: u64, bytes: u32, action: u32, device: u32) -> Result<Option<Access>, Cause> {
        let categories = action >> 16;
        let kind = match () {
            () if categories & NOTIFY != 0 || bytes == 0 => return Ok(None),
            () if categories & DISCARD != 0 => Kind::Trim,
            () if categories & WRITE != 0 => Kind::Write,
            () if categories & READ != 0 => Kind::Read,
            () => return Ok(None),
        };
        let letter = match action & 0xFFFF {
            1 => "Q",
            7 => "D",
            8 => "C",
            _ => return Ok(None),
        };
        if letter != self.event.letter() {
            self.seen.other(letter);
            return Ok(None);
        }
        if !self.seen.admits(&format!("{},{}", device >> 20, device & 0xF_FFFF), self.device.as_deref())? {
            return Ok(None);
        }
        self.seen.wanted += 1;
        let offset = sector.checked_mul(SECTOR).ok_or_else(|| format!("sector {sector} is on no device"))?;
        Ok(Some(Access { kind, space: 0, offset, bytes: u64::from(bytes) }))
    }
}
