//! Zones of a device: what a zone is now ([`Zone`]), and the record of it that a report carries.
//!
//! ```text
//!            write, append                     write, append, open           finish, last block written
//! Empty --------------------> ImplicitlyOpen <---------------------> Closed ----------.
//!   |  \                        |   ^  \____________ close __________^  ^             v
//!   |   `---- open ---.    open |   |                                   |            Full
//!   |                 v         v   | (never back)                      |             ^
//!   |                 ExplicitlyOpen ------------- close ---------------'             |
//!   `---------------------------------- finish ---------------------------------------'
//! ```
//! A reset makes any of these empty. Read-only zones can be read and become offline; offline zones are gone. The states are
//! those of the NVMe Zoned Namespace Command Set 1.1, section 2.1.1.3. Open and closed zones are *active*. An empty zone whose
//! descriptor gets an extension is closed, with nothing written; a reset takes the extension away.

use crate::io::{Op, Status};
use crate::steps;
use reactor::Buf;

/// Bytes of the record of one zone in a report.
pub const ZONE_RECORD_BYTES: usize = 32;

/// What may be done with a zone. The values are those of NVMe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ZoneState {
    /// Nothing is written.
    Empty = 1,
    /// A write opened it; it may be closed to make room for another one.
    ImplicitlyOpen = 2,
    /// It was opened on request, and stays open.
    ExplicitlyOpen = 3,
    /// Active, and not open.
    Closed = 4,
    /// It can only be read.
    ReadOnly = 13,
    /// It takes no more.
    Full = 14,
    /// It is out of use.
    Offline = 15,
}

impl ZoneState {
    /// Every state.
    pub const ALL: [ZoneState; 7] = [
        ZoneState::Empty,
        ZoneState::ImplicitlyOpen,
        ZoneState::ExplicitlyOpen,
        ZoneState::Closed,
        ZoneState::ReadOnly,
        ZoneState::Full,
        ZoneState::Offline,
    ];

    /// The state with this value.
    pub fn from_u8(value: u8) -> Option<ZoneState> {
        ZoneState::ALL.into_iter().find(|state| *state as u8 == value)
    }

    /// Takes one of the places for open zones.
    pub const fn is_open(self) -> bool {
        matches!(self, ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen)
    }

    /// Takes one of the places for active zones.
    pub const fn is_active(self) -> bool {
        self.is_open() || matches!(self, ZoneState::Closed)
    }

    /// Whether a management operation has something to do for a zone in this state; refused where there is no such change.
    pub(crate) fn changes_by(self, op: Op) -> Result<bool, Status> {
        let (target, is_first) = match op {
            Op::ZoneReset => (ZoneState::Empty, false),
            Op::ZoneClose => (ZoneState::Closed, false),
            Op::ZoneFinish => (ZoneState::Full, self == ZoneState::Empty),
            Op::ZoneOffline => (ZoneState::Offline, false),
            _ => (ZoneState::ExplicitlyOpen, matches!(self, ZoneState::Empty | ZoneState::ImplicitlyOpen)),
        };
        match self == target {
            true => Ok(false),
            false if is_first || self.is_concerned_by(op) => Ok(true),
            false => Err(Status::ZoneInvalidTransition),
        }
    }

    /// Whether a management operation on all zones is about zones in this state.
    pub(crate) fn is_concerned_by(self, op: Op) -> bool {
        match op {
            Op::ZoneOpen => self == ZoneState::Closed,
            Op::ZoneClose => self.is_open(),
            Op::ZoneFinish => self.is_active(),
            Op::ZoneReset => self.is_active() || self == ZoneState::Full,
            _ => self == ZoneState::ReadOnly,
        }
    }

    /// The name used in views and configuration.
    pub const fn name(self) -> &'static str {
        match self {
            ZoneState::Empty => "empty",
            ZoneState::ImplicitlyOpen => "implicitly-open",
            ZoneState::ExplicitlyOpen => "explicitly-open",
            ZoneState::Closed => "closed",
            ZoneState::ReadOnly => "read-only",
            ZoneState::Full => "full",
            ZoneState::Offline => "offline",
        }
    }
}

/// One zone as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its first block.
    pub start: u64,
    /// Blocks that can be written, from the first one on.
    pub capacity: u64,
    /// The block that is written next. Means nothing in zones that are full, read-only or offline.
    pub write_pointer: u64,
    /// What may be done with it.
    pub state: ZoneState,
    /// Its descriptor has an extension.
    pub has_extension: bool,
}

impl Zone {
    /// Its record in a report.
    pub fn record(&self) -> [u8; ZONE_RECORD_BYTES] {
        let mut record = [0; ZONE_RECORD_BYTES];
        record[..8].copy_from_slice(&self.start.to_le_bytes());
        record[8..16].copy_from_slice(&self.capacity.to_le_bytes());
        record[16..24].copy_from_slice(&self.write_pointer.to_le_bytes());
        record[24] = self.state as u8;
        record[25] = self.has_extension as u8;
        record
    }

    /// The zone of a record; none where it is not one.
    pub fn from_record(record: &[u8; ZONE_RECORD_BYTES]) -> Option<Zone> {
        let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"));
        let state = ZoneState::from_u8(record[24])?;
        let has_extension = record[25] != 0;
        Some(Zone { start: word(0), capacity: word(8), write_pointer: word(16), state, has_extension })
    }

    /// Stores zones as the answer to a report.
    pub fn store_report(zones: impl IntoIterator<Item = Zone>, bufs: &mut [Buf]) {
        for (index, zone) in zones.into_iter().enumerate() {
            steps::sg_write_at(bufs, index * ZONE_RECORD_BYTES, &zone.record());
        }
    }

    /// The zones of an answer.
    ///
    /// # Errors
    /// [`Status::Corrupt`] where a record is none.
    pub fn load_report(bufs: &[Buf]) -> Result<Vec<Zone>, Status> {
        let count = reactor::buf::sg_len(bufs) / ZONE_RECORD_BYTES;
        let mut record = [0; ZONE_RECORD_BYTES];
        let zones = (0..count).map(|index| {
            steps::sg_read_at(bufs, index * ZONE_RECORD_BYTES, &mut record);
            Zone::from_record(&record).ok_or(Status::Corrupt)
        });
        zones.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_gives_the_zone_back_and_an_unknown_state_is_none() {
        for state in ZoneState::ALL {
            let zone = Zone {
                start: 1 << 40,
                capacity: 77,
                write_pointer: u64::MAX,
                state,
                has_extension: state == ZoneState::Full,
            };
            assert_eq!(Zone::from_record(&zone.record()), Some(zone));
        }
        assert_eq!(Zone::from_record(&[0; ZONE_RECORD_BYTES]), None);
    }

    #[test]
    fn a_report_crosses_buffers() {
        let zone = |start| Zone {
            start,
            capacity: 3,
            write_pointer: start + 1,
            state: ZoneState::Closed,
            has_extension: false,
        };
        let zones: Vec<Zone> = (0..5).map(|index| zone(index * 8)).collect();
        let mut bufs = [Buf::from_vec(vec![0; 50]), Buf::from_vec(vec![0; 110])];
        Zone::store_report(zones.iter().copied(), &mut bufs);
        assert_eq!(Zone::load_report(&bufs), Ok(zones));
    }
}
