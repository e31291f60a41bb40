//! The header of a log record: 64 bytes, and 64 more for every further 16 checksums.
//!
//! A header says what happened and where its payload lies; see `docs/formats/pool.md`. Decoding tells bytes that are no
//! record (stale, torn, of another pool) from a record that a correct writer cannot have written.

use crate::checksums::{block_crcs, list_crc};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, RECORD_BLOCKS_MAX};
use base::crc32c;
use reactor::Buf;
use smallvec::SmallVec;
use std::ops::{Range, RangeInclusive};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Checksums of the blocks of a record, in order.
pub type Crcs = SmallVec<[u32; CRCS_INLINE]>;

/// Those that need no memory of their own.
pub(crate) const CRCS_INLINE: usize = 16;

/// What a record says; its payload travels beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Blocks have new content. Payload: the blocks.
    Write {
        /// First block.
        first: u32,
        /// CRC32C of each block: 1 to [`RECORD_BLOCKS_MAX`], all in one extent.
        crcs: Crcs,
    },
    /// A part of a block has new content. Payload: the bytes.
    Delta {
        /// The block.
        block: u32,
        /// First byte in it.
        offset: u16,
        /// Number of bytes, fewer than a block has.
        bytes: u16,
        /// CRC32C of the bytes.
        crc: u32,
    },
    /// Blocks are holes from now on.
    Trim {
        /// First block.
        first: u32,
        /// How many.
        blocks: u32,
    },
    /// An extent of the shard belongs to a volume from now on; its blocks are holes, or show what lies below the volume.
    Allocate {
        /// The shard's extent.
        extent: u32,
        /// The volume, not 0.
        volume: u32,
        /// The volume's extent.
        vextent: u32,
        /// Its blocks show what lies below.
        over: bool,
    },
    /// An extent belongs to no volume from now on.
    Free {
        /// The shard's extent.
        extent: u32,
        /// It must not be used again.
        unusable: bool,
    },
    /// Blocks were overwritten in place with content of these checksums.
    InPlace {
        /// First block.
        first: u32,
        /// As in a write.
        crcs: Crcs,
    },
    /// An extent, free until now, belongs to a volume from now on, in place of another one, which must not be used again.
    /// Its blocks are what records have said of it since it became free.
    Move {
        /// The shard's extent.
        extent: u32,
        /// The volume, not 0.
        volume: u32,
        /// The volume's extent.
        vextent: u32,
        /// The extent of the shard that had its place.
        former: u32,
    },
    /// An extent belongs to another volume from now on, with everything that it has.
    HandOver {
        /// The shard's extent.
        extent: u32,
        /// The volume, not 0, which had nothing in that place.
        volume: u32,
        /// The volume's extent.
        vextent: u32,
    },
    /// Blocks are unreadable until they are written again.
    Lost {
        /// First block.
        first: u32,
        /// How many.
        blocks: u32,
    },
}

/// The unit of headers, and what payloads in a mapped log are padded to.
pub(crate) const UNIT: usize = 64;
const CRCS_IN_FIRST_UNIT: usize = 6;
const CRCS_IN_UNIT: usize = UNIT / 4;
/// Bytes of the largest header.
pub(crate) const HEADER_BYTES_MAX: usize = header_bytes_of_count(RECORD_BLOCKS_MAX as usize);
/// Record numbers and segment sequences stay below this, so that sums of them never overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;
/// What is read from media is below this: more can follow than anybody will write.
pub(crate) const READ_NUMBER_MAX: u64 = NUMBER_MAX - (1 << 60);

const MAGIC: [u8; 4] = *b"RMRC";
const WRITE: u8 = 1;
const DELTA: u8 = 2;
const TRIM: u8 = 3;
const ALLOCATE: u8 = 4;
const FREE: u8 = 5;
const IN_PLACE: u8 = 6;
const LOST: u8 = 7;
const MOVE: u8 = 8;
const HAND_OVER: u8 = 9;
const ALLOCATE_OVER: u8 = 10;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 4],
    /// Of the whole header with this field zero, then XORed with the salt of the log.
    checksum: U32,
    lsn: U64,
    epoch: U32,
    kind: u8,
    flags: u8,
    count: U16,
    first: U32,
    arguments: [U32; 2],
    payload: U32,
    crcs: [U32; CRCS_IN_FIRST_UNIT],
}

const _: () = assert!(size_of::<RawHeader>() == UNIT && HEADER_BYTES_MAX == 5 * UNIT);
const CHECKSUM: Range<usize> = 4..8;
const _: () = assert!(std::mem::offset_of!(RawHeader, checksum) == CHECKSUM.start);

const fn header_bytes_of_count(count: usize) -> usize {
    UNIT + count.saturating_sub(CRCS_IN_FIRST_UNIT).div_ceil(CRCS_IN_UNIT) * UNIT
}

/// What makes the checksums of one shard's log differ from those of every other log, so that bytes of a pool that was on
/// the device before are never taken for records.
pub(crate) fn salt(pool: [u8; 8], shard: u16) -> u32 {
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&pool);
    bytes[8..].copy_from_slice(&shard.to_le_bytes());
    crc32c(&bytes)
}

/// A decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) record: Record,
    pub(crate) lsn: u64,
    pub(crate) epoch: u32,
    /// Where the payload begins, in units from the start of the segment; 0 without payload.
    pub(crate) payload: u32,
    /// Length of the header.
    pub(crate) bytes: usize,
}

/// Why bytes did not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRecord {
    /// There is no (whole) record of this log.
    Absent,
    /// The checksum is right and the content cannot be.
    Impossible(&'static str),
}

impl Record {
    /// The kinds that the format has.
    pub const KINDS: RangeInclusive<u8> = WRITE..=ALLOCATE_OVER;

    /// Its kind, as the format numbers them.
    pub fn kind(&self) -> u8 {
        self.fields().0.kind
    }

    /// New content of so many blocks; the log makes their checksums when it takes the payload.
    pub fn write(first: u32, blocks: u32) -> Record {
        Record::Write { first, crcs: SmallVec::from_elem(0, blocks as usize) }
    }

    /// New content of a part of a block; the log makes its checksum when it takes the payload.
    pub fn delta(block: u32, offset: u16, bytes: u16) -> Record {
        Record::Delta { block, offset, bytes, crc: 0 }
    }

    /// Puts in the checksums of its payload.
    #[inline]
    pub(crate) fn seal(&mut self, payload: &[Buf]) {
        match self {
            Record::Write { crcs, .. } => *crcs = block_crcs(payload),
            Record::Delta { crc, .. } => *crc = list_crc(payload),
            _ => {}
        }
    }

    /// The blocks that it speaks of; `None` when it speaks of extents.
    pub(crate) fn blocks(&self) -> Option<Range<u32>> {
        let (first, blocks) = match self {
            Record::Write { first, crcs } | Record::InPlace { first, crcs } => (*first, crcs.len() as u32),
            Record::Delta { block, .. } => (*block, 1),
            Record::Trim { first, blocks } | Record::Lost { first, blocks } => (*first, *blocks),
            Record::Allocate { .. } | Record::Free { .. } | Record::Move { .. } | Record::HandOver { .. } => {
                return None;
            }
        };
        Some(first..first + blocks)
    }

    /// Bytes of its payload.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        match self {
            Record::Write { crcs, .. } => crcs.len() * BLOCK_BYTES,
            Record::Delta { bytes, .. } => *bytes as usize,
            _ => 0,
        }
    }

    /// Bytes of its header.
    #[inline]
    pub(crate) fn header_bytes(&self) -> usize {
        match self {
            Record::Write { crcs, .. } | Record::InPlace { crcs, .. } => header_bytes_of_count(crcs.len()),
            _ => UNIT,
        }
    }

    /// Its fields and its checksums.
    #[inline]
    pub(crate) fn fields(&self) -> (Fields, &[u32]) {
        let (kind, count, first, arguments, crcs): (u8, usize, u32, [u32; 2], &[u32]) = match self {
            Record::Write { first, crcs } => (WRITE, crcs.len(), *first, [0, 0], crcs),
            Record::InPlace { first, crcs } => (IN_PLACE, crcs.len(), *first, [0, 0], crcs),
            Record::Delta { block, offset, bytes, crc } => {
                (DELTA, 0, *block, [*offset as u32, *bytes as u32], std::slice::from_ref(crc))
            }
            Record::Trim { first, blocks } => (TRIM, 0, *first, [*blocks, 0], &[]),
            Record::Allocate { extent, volume, vextent, over } => {
                (if *over { ALLOCATE_OVER } else { ALLOCATE }, 0, *extent, [*volume, *vextent], &[])
            }
            Record::Free { extent, unusable } => (FREE, 0, *extent, [*unusable as u32, 0], &[]),
            Record::Lost { first, blocks } => (LOST, 0, *first, [*blocks, 0], &[]),
            Record::HandOver { extent, volume, vextent } => (HAND_OVER, 0, *extent, [*volume, *vextent], &[]),
            Record::Move { extent, volume, vextent, former } => {
                (MOVE, 0, *extent, [*volume, *vextent], std::slice::from_ref(former))
            }
        };
        (Fields { kind, count: count as u16, first, arguments }, crcs)
    }

    /// Why no log may contain it.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let run = |first: u32, blocks: u32, what| (blocks == 0 || first.checked_add(blocks).is_none()).then_some(what);
        match self {
            Record::Write { first, crcs } | Record::InPlace { first, crcs } => {
                let blocks = crcs.len() as u32;
                if blocks == 0 || blocks > RECORD_BLOCKS_MAX {
                    return Some("its number of blocks is not 1 to 64");
                }
                (first % EXTENT_BLOCKS + blocks > EXTENT_BLOCKS).then_some("its blocks lie in two extents")
            }
            Record::Delta { offset, bytes, .. } => {
                let (offset, bytes) = (*offset as usize, *bytes as usize);
                (bytes == 0 || bytes >= BLOCK_BYTES || offset + bytes > BLOCK_BYTES)
                    .then_some("its bytes are not inside a block")
            }
            Record::Trim { first, blocks } => run(*first, *blocks, "it trims no blocks, or blocks past the last"),
            Record::Lost { first, blocks } => run(*first, *blocks, "it loses no blocks, or blocks past the last"),
            Record::Allocate { volume, .. } => (*volume == 0).then_some("it allocates for no volume"),
            Record::Free { .. } => None,
            Record::HandOver { volume, .. } => (*volume == 0).then_some("it hands an extent over to no volume"),
            Record::Move { volume, extent, former, .. } => {
                (*volume == 0 || extent == former).then_some("it moves an extent of no volume, or to where it is")
            }
        }
    }
}

/// Writes the header to the start of `out` and returns its length. `payload` is in units from the start of the segment.
#[inline]
pub(crate) fn encode(record: &Record, lsn: u64, epoch: u32, payload: u32, salt: u32, out: &mut [u8]) -> usize {
    let (Fields { kind, count, first, arguments }, crcs) = record.fields();
    let mut raw = RawHeader {
        magic: MAGIC,
        checksum: U32::ZERO,
        lsn: lsn.into(),
        epoch: epoch.into(),
        kind,
        flags: 0,
        count: U16::new(count),
        first: first.into(),
        arguments: arguments.map(U32::new),
        payload: payload.into(),
        crcs: [U32::ZERO; CRCS_IN_FIRST_UNIT],
    };
    let (here, further) = crcs.split_at(crcs.len().min(CRCS_IN_FIRST_UNIT));
    raw.crcs.iter_mut().zip(here).for_each(|(slot, crc)| *slot = U32::new(*crc));
    let bytes = header_bytes_of_count(count as usize);
    out[..UNIT].copy_from_slice(raw.as_bytes());
    let (used, rest) = out[UNIT..bytes].split_at_mut(further.len() * 4);
    used.chunks_exact_mut(4).zip(further).for_each(|(slot, crc)| slot.copy_from_slice(&crc.to_le_bytes()));
    rest.fill(0);
    let checksum = crc32c(&out[..bytes]) ^ salt;
    out[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Length of the header that seems to start here, from its first 64 bytes; not verified, but bounded.
#[inline]
pub(crate) fn peek_bytes(unit: &[u8]) -> Option<usize> {
    let raw = RawHeader::ref_from_prefix(unit).ok()?.0;
    let count = raw.count.get() as usize;
    (raw.magic == MAGIC && count <= RECORD_BLOCKS_MAX as usize).then(|| header_bytes_of_count(count))
}

/// Decodes the header at the start of `bytes`.
pub(crate) fn decode(bytes: &[u8], salt: u32) -> Result<Header, NoRecord> {
    let len = peek_bytes(bytes).filter(|len| *len <= bytes.len()).ok_or(NoRecord::Absent)?;
    let raw = RawHeader::ref_from_prefix(bytes).map_err(|_| NoRecord::Absent)?.0;
    let mut copy = [0; HEADER_BYTES_MAX];
    copy[..len].copy_from_slice(&bytes[..len]);
    copy[CHECKSUM].fill(0);
    if crc32c(&copy[..len]) ^ salt != raw.checksum.get() {
        return Err(NoRecord::Absent);
    }
    let impossible = |cause| Err(NoRecord::Impossible(cause));
    let (lsn, payload) = (raw.lsn.get(), raw.payload.get());
    let record = match record_of(raw, &bytes[UNIT..len]) {
        Ok(record) => record,
        Err(cause) => return impossible(cause),
    };
    if let Some(cause) = record.fault() {
        return impossible(cause);
    }
    if lsn == 0 || lsn >= READ_NUMBER_MAX {
        return impossible("its number is out of range");
    }
    if (record.payload_bytes() == 0) != (payload == 0) {
        return impossible("the place of its payload does not fit its kind");
    }
    if raw.flags != 0 {
        return impossible("it has unknown flags");
    }
    Ok(Header { record, lsn, epoch: raw.epoch.get(), payload, bytes: len })
}

fn record_of(raw: &RawHeader, further: &[u8]) -> Result<Record, &'static str> {
    let arguments = raw.arguments.map(|argument| argument.get());
    let fields = Fields { arguments, ..Fields::new(raw.kind, raw.count.get(), raw.first.get())? };
    let words = further.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    let mut words = raw.crcs.iter().map(|crc| crc.get()).chain(words);
    let crcs: Crcs = words.by_ref().take(fields.crcs()).collect();
    if words.any(|word| word != 0) || arguments[fields.arguments_used()..].iter().any(|argument| *argument != 0) {
        return Err("bytes that its kind does not use are not zero");
    }
    fields.into_record(crcs)
}

/// A record but for its checksums, as both of its forms on media have it: the header and the entry of a summary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    pub(crate) kind: u8,
    /// Blocks that have a checksum each, in the kinds that are about such; else 0.
    pub(crate) count: u16,
    /// A block or an extent.
    pub(crate) first: u32,
    /// Those that the kind does not use are 0.
    pub(crate) arguments: [u32; 2],
}

impl Fields {
    /// Fields with arguments of 0.
    #[inline]
    pub(crate) fn new(kind: u8, count: u16, first: u32) -> Result<Fields, &'static str> {
        if !Record::KINDS.contains(&kind) {
            return Err("its kind is unknown");
        }
        if count != 0 && !matches!(kind, WRITE | IN_PLACE) {
            return Err("bytes that its kind does not use are not zero");
        }
        Ok(Fields { kind, count, first, arguments: [0; 2] })
    }

    /// Number of its arguments.
    #[inline]
    pub(crate) fn arguments_used(&self) -> usize {
        match self.kind {
            WRITE | IN_PLACE => 0,
            DELTA | ALLOCATE | MOVE | HAND_OVER | ALLOCATE_OVER => 2,
            _ => 1,
        }
    }

    /// Number of its checksums.
    #[inline]
    pub(crate) fn crcs(&self) -> usize {
        match self.kind {
            WRITE | IN_PLACE => self.count as usize,
            kind => matches!(kind, DELTA | MOVE) as usize,
        }
    }

    /// The record with these checksums.
    #[inline]
    pub(crate) fn into_record(self, crcs: Crcs) -> Result<Record, &'static str> {
        let Fields { kind, first, arguments: [a, b], .. } = self;
        let narrow = |value: u32| u16::try_from(value).map_err(|_| "its bytes are not inside a block");
        match kind {
            WRITE => Ok(Record::Write { first, crcs }),
            IN_PLACE => Ok(Record::InPlace { first, crcs }),
            DELTA => Ok(Record::Delta { block: first, offset: narrow(a)?, bytes: narrow(b)?, crc: crcs[0] }),
            TRIM => Ok(Record::Trim { first, blocks: a }),
            LOST => Ok(Record::Lost { first, blocks: a }),
            ALLOCATE | ALLOCATE_OVER => {
                Ok(Record::Allocate { extent: first, volume: a, vextent: b, over: kind == ALLOCATE_OVER })
            }
            HAND_OVER => Ok(Record::HandOver { extent: first, volume: a, vextent: b }),
            MOVE => Ok(Record::Move { extent: first, volume: a, vextent: b, former: crcs[0] }),
            _ if a > 1 => Err("it has unknown flags"),
            _ => Ok(Record::Free { extent: first, unusable: a == 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    const SALT: u32 = 0x5A17_0001;

    fn samples() -> Vec<Record> {
        let crcs = |count: u32| (0..count).map(|n| n.wrapping_mul(0x9E37_79B9) | 1).collect::<Crcs>();
        vec![
            Record::Write { first: 7, crcs: crcs(1) },
            Record::Write { first: 1024, crcs: crcs(6) },
            Record::Write { first: 1024, crcs: crcs(7) },
            Record::Write { first: 1024, crcs: crcs(22) },
            Record::Write { first: 960, crcs: crcs(64) },
            Record::Delta { block: 9, offset: 4095, bytes: 1, crc: 0 },
            Record::Trim { first: 5, blocks: 100_000 },
            Record::Allocate { extent: 3, volume: 1, vextent: u32::MAX, over: false },
            Record::Allocate { extent: 4, volume: 2, vextent: 7, over: true },
            Record::HandOver { extent: 3, volume: 9, vextent: 4 },
            Record::Free { extent: 3, unusable: true },
            Record::Free { extent: 3, unusable: false },
            Record::InPlace { first: 0, crcs: crcs(23) },
            Record::Lost { first: u32::MAX - 1, blocks: 1 },
            Record::Move { extent: 3, volume: 1, vextent: u32::MAX, former: 0 },
        ]
    }

    fn encoded(record: &Record) -> Vec<u8> {
        let mut out = vec![0xEE; HEADER_BYTES_MAX];
        let payload = if record.payload_bytes() > 0 { 0x0102_0304 } else { 0 };
        let len = encode(record, 0x1122_3344_5566, 77, payload, SALT, &mut out);
        out.truncate(len);
        out
    }

    #[test]
    fn every_kind_survives_the_round_trip() {
        for record in samples() {
            let bytes = encoded(&record);
            let header = decode(&bytes, SALT).unwrap();
            assert_eq!((header.bytes, bytes.len()), (bytes.len(), record.header_bytes()));
            assert_eq!((header.lsn, header.epoch), (0x1122_3344_5566, 77));
            assert_eq!(header.payload != 0, record.payload_bytes() > 0);
            assert_eq!(header.record, record);
        }
    }

    #[test]
    fn no_header_with_a_flipped_bit_a_cut_or_of_another_log_is_a_record() {
        for record in samples() {
            let bytes = encoded(&record);
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&damaged, SALT), Err(NoRecord::Absent), "{record:?}, bit {bit}");
            }
            (0..bytes.len()).for_each(|len| assert_eq!(decode(&bytes[..len], SALT), Err(NoRecord::Absent)));
            assert_eq!(decode(&bytes, SALT + 1), Err(NoRecord::Absent));
        }
    }

    #[test]
    fn the_bytes_of_a_write_are_these() {
        let bytes = encoded(&Record::Write { first: 0x0A0B_0C0D, crcs: smallvec![0xC0C1_C2C3, 0xD0D1_D2D3] });
        let mut expected = Vec::new();
        expected.extend(b"RMRC");
        expected.extend([0; 4]);
        expected.extend([0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0]);
        expected.extend([77, 0, 0, 0, 1, 0, 2, 0]);
        expected.extend([0x0D, 0x0C, 0x0B, 0x0A, 0, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([4, 3, 2, 1]);
        expected.extend([0xC3, 0xC2, 0xC1, 0xC0, 0xD3, 0xD2, 0xD1, 0xD0]);
        expected.extend([0; 16]);
        let checksum = crc32c(&expected) ^ SALT;
        expected[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(bytes, expected);
    }

    /// Changes a sound header and makes its checksum right again.
    fn forged(record: &Record, change: impl FnOnce(&mut [u8])) -> Result<Header, NoRecord> {
        let mut bytes = encoded(record);
        change(&mut bytes);
        bytes[CHECKSUM].fill(0);
        let checksum = crc32c(&bytes) ^ SALT;
        bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        decode(&bytes, SALT)
    }

    #[test]
    fn what_no_writer_writes_is_named() {
        let write = Record::Write { first: 0, crcs: smallvec![1, 2] };
        let trim = Record::Trim { first: 5, blocks: 1 };
        type Change = fn(&mut [u8]);
        let cases: [(&Record, Change, &str); 10] = [
            (&write, |b| b[20] = 99, "its kind is unknown"),
            (&write, |b| b[21] = 1, "it has unknown flags"),
            (&write, |b| b[22] = 0, "bytes that its kind does not use are not zero"),
            (&write, |b| b[24..26].copy_from_slice(&1023u16.to_le_bytes()), "its blocks lie in two extents"),
            (&write, |b| b[28] = 1, "bytes that its kind does not use are not zero"),
            (&write, |b| b[36..40].fill(0), "the place of its payload does not fit its kind"),
            (&write, |b| b[8..16].fill(0), "its number is out of range"),
            (&write, |b| b[15] = 0xFF, "its number is out of range"),
            (&trim, |b| b[28..32].fill(0), "it trims no blocks, or blocks past the last"),
            (&trim, |b| b[63] = 1, "bytes that its kind does not use are not zero"),
        ];
        for (record, change, cause) in cases {
            assert_eq!(forged(record, change), Err(NoRecord::Impossible(cause)));
        }
    }

    #[test]
    fn noise_with_a_right_checksum_never_panics() {
        let mut rng = base::Rng::new(1);
        for _ in 0..20_000 {
            let record = Record::Write { first: 0, crcs: smallvec![1; 1 + rng.below(64) as usize] };
            let (at, seed) = (8 + rng.below(56) as usize, rng.next_u64());
            let _ = forged(&record, |bytes| base::Rng::new(seed).fill(&mut bytes[at..64]));
        }
    }
}
