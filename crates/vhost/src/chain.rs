//! A chain of descriptors, walked and checked (Virtual I/O Device 1.2, section 2.7).
//!
//! The guest is not trusted: what it wrote is copied once and judged on the copy. A chain that makes no sense is an error
//! and not a shorter chain; the queue that it came from is stopped, since where the rest of it points is anyone's guess.
//! Whether the data lies in shared memory is found when it is copied.

use crate::memory::{Memory, Outside};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most entries of a table of descriptors: the most that QEMU takes.
pub const TABLE_ENTRIES_MAX: u16 = 1024;
/// Most descriptors of one chain: as many data segments as guests are told, a header and a status.
pub const DESCRIPTORS_MAX: u16 = crate::disk::SEGMENTS_MAX as u16 + 2;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 16;

/// Descriptor flag: the chain goes on at `next`.
pub const NEXT: u16 = 1;
/// Descriptor flag: the device writes there.
pub const WRITE: u16 = 2;
/// Descriptor flag: it refers to a table of descriptors.
pub const INDIRECT: u16 = 4;

/// A descriptor as it lies in memory.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Descriptor {
    /// Guest address.
    pub address: u64,
    /// Length.
    pub len: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// The next one.
    pub next: u16,
}
const _: () = assert!(size_of::<Descriptor>() as u64 == DESCRIPTOR_BYTES);

/// A piece of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest address.
    pub address: u64,
    /// Length, not zero.
    pub len: u32,
}

/// What is wrong with a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChainError {
    /// An index past the table.
    #[error("it names descriptor {index} of a table of {entries}")]
    NoSuchDescriptor {
        /// The index.
        index: u16,
        /// The table's length.
        entries: u16,
    },
    /// More descriptors than the table has.
    #[error("it has more descriptors than its table: it loops")]
    Loop,
    /// More descriptors than a request may have.
    #[error("it has more than {DESCRIPTORS_MAX} descriptors")]
    TooMany,
    /// A table outside the shared memory.
    #[error("its table at {:#x}+{} is outside the shared memory", .0.address, .0.bytes)]
    TableOutside(Outside),
    /// A table of a wrong length.
    #[error("it refers to a table of {0} bytes")]
    TableLength(u32),
    /// A table in a table, one beside a next descriptor, or one although that was not negotiated.
    #[error("it refers to a table where none may be")]
    TableMisplaced,
    /// What the device reads follows what it writes.
    #[error("a readable descriptor follows a writable one")]
    Order,
    /// More bytes than 32 bits count.
    #[error("it is longer than 4 GiB")]
    TooLong,
}

/// A chain's segments: first what the device reads, then what it writes. Reused from request to request.
#[derive(Debug, Default)]
pub struct Chain {
    /// What the device reads.
    pub readable: Vec<Segment>,
    /// What the device writes.
    pub writable: Vec<Segment>,
}

/// Bytes of some segments.
pub fn bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

impl Chain {
    /// Walks the chain that begins at `head` of the table at `table`.
    pub fn walk(
        &mut self,
        memory: &Memory,
        table: u64,
        entries: u16,
        head: u16,
        may_indirect: bool,
    ) -> Result<(), ChainError> {
        self.readable.clear();
        self.writable.clear();
        let (mut table, mut entries, mut inside) = (table, entries, false);
        let (mut index, mut left, mut total) = (head, DESCRIPTORS_MAX.min(entries), 0u64);
        loop {
            if index >= entries {
                return Err(ChainError::NoSuchDescriptor { index, entries });
            }
            let too_many = if entries > DESCRIPTORS_MAX { ChainError::TooMany } else { ChainError::Loop };
            left = left.checked_sub(1).ok_or(too_many)?;
            let address = table.wrapping_add(u64::from(index) * DESCRIPTOR_BYTES);
            let mut raw = [0; DESCRIPTOR_BYTES as usize];
            memory.read(address, &mut raw).map_err(ChainError::TableOutside)?;
            let one: Descriptor = zerocopy::transmute!(raw);
            let (len, flags) = (u32::from_le(one.len), u16::from_le(one.flags));
            if flags & INDIRECT != 0 {
                if inside || !may_indirect || flags & NEXT != 0 {
                    return Err(ChainError::TableMisplaced);
                }
                let good = len > 0 && u64::from(len).is_multiple_of(DESCRIPTOR_BYTES);
                let count = u64::from(len) / DESCRIPTOR_BYTES;
                if !good || count > u64::from(TABLE_ENTRIES_MAX) {
                    return Err(ChainError::TableLength(len));
                }
                table = u64::from_le(one.address);
                memory.check(table, u64::from(len)).map_err(ChainError::TableOutside)?;
                (entries, inside, index, left) = (count as u16, true, 0, DESCRIPTORS_MAX.min(count as u16));
                continue;
            }
            total += u64::from(len);
            if total > u64::from(u32::MAX) {
                return Err(ChainError::TooLong);
            }
            let segment = Segment { address: u64::from_le(one.address), len };
            match flags & WRITE != 0 {
                // (an empty one says nothing)
                _ if len == 0 => {}
                true => self.writable.push(segment),
                false if !self.writable.is_empty() => return Err(ChainError::Order),
                false => self.readable.push(segment),
            }
            if flags & NEXT == 0 {
                return Ok(());
            }
            index = u16::from_le(one.next);
        }
    }
}

/// Copies `target.len()` bytes from byte `at` of the segments.
pub fn gather(memory: &Memory, segments: &[Segment], at: u64, target: &mut [u8]) -> Result<(), Outside> {
    let mut filled = 0;
    each(segments, at, target.len(), |address, len| {
        filled += len;
        memory.read(address, &mut target[filled - len..filled])
    })
}

/// Copies `source` to byte `at` of the segments.
pub fn scatter(memory: &Memory, segments: &[Segment], at: u64, source: &[u8]) -> Result<(), Outside> {
    let mut taken = 0;
    each(segments, at, source.len(), |address, len| {
        taken += len;
        memory.write(address, &source[taken - len..taken])
    })
}

/// Calls `act` with address and length of each run of `len` bytes from byte `at` on. Segments that end before are an
/// error: the caller has counted their bytes.
fn each(
    segments: &[Segment],
    mut at: u64,
    mut len: usize,
    mut act: impl FnMut(u64, usize) -> Result<(), Outside>,
) -> Result<(), Outside> {
    for segment in segments {
        let all = u64::from(segment.len);
        if at >= all {
            at -= all;
            continue;
        }
        if len == 0 {
            break;
        }
        let run = (all - at).min(len as u64) as usize;
        let address = segment.address.checked_add(at).ok_or(Outside { address: segment.address, bytes: all })?;
        act(address, run)?;
        (at, len) = (0, len - run);
    }
    if len == 0 { Ok(()) } else { Err(Outside { address: u64::MAX, bytes: len as u64 }) }
}
