//! An operation on a modelled drive, and how far it has come.

use super::nand::Program;
use smallvec::SmallVec;

/// What to do; offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read a range.
    Read {
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
    },
    /// Write a range; not with zones.
    Write {
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
        /// Write stream; those that the drive does not have are the default one, 0.
        stream: u16,
    },
    /// Give up the indirection units that are wholly in a range; not with zones.
    Trim {
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
    },
    /// Write at a zone's pointer. Offsets are those of zones without gaps, whatever their distance in addresses is.
    Append {
        /// The zone's number.
        zone: u64,
        /// Length; it fits into the zone.
        bytes: u64,
    },
    /// Make a zone empty.
    Reset {
        /// The zone's number.
        zone: u64,
    },
    /// End the writing of a zone: what its last page has is programmed.
    Finish {
        /// The zone's number.
        zone: u64,
    },
}

/// See the module. Made by [`Ssd::begin`](super::Ssd::begin).
#[derive(Debug)]
pub struct Work {
    pub(super) request: Request,
    pub(super) phase: Phase,
    /// Bytes before this one have been placed.
    pub(super) at: u64,
    pub(super) end: u64,
    /// The unit that nobody else may write.
    pub(super) claim: Option<u64>,
    /// Programs that must have ended before the operation does.
    pub(super) partials: SmallVec<[Program; 2]>,
}

impl Work {
    /// Bytes that cross the link before a write is acknowledged.
    pub(super) fn transferred(&self) -> u64 {
        match self.request {
            Request::Write { bytes, .. } | Request::Append { bytes, .. } => bytes,
            _ => 0,
        }
    }
}

/// ```text
/// Begin -> Unit -> (Old ->) Place -> Unit ... -> End
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Begin,
    /// Look at the unit, or the page of a zone, that is next.
    Unit,
    /// The old content of a unit arrives then.
    Old(u64),
    /// A unit waits for room in the buffer.
    Place,
    /// Nothing is left but to wait until then, and for the programs of partial units.
    End(u64),
}
