//! Bytes of a snapshot stream: `docs/formats/snapshot-stream.md`.

use super::StreamError;
use crate::format::Malformed;
use crate::format::catalog::VOLUME_NAME_BYTES_MAX;
use crate::shard::ChangeKind;
use crate::units::{BLOCK_BYTES, VOLUME_BLOCKS_MAX};
use base::crc32c;
use std::mem::offset_of;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"RMDASNP1";
const NO_STREAM: Malformed = Malformed("it does not begin as a snapshot stream does");
/// What compressed files begin with, and what to do about them.
const COMPRESSED: [(&[u8], Malformed); 4] = [
    (&[0x28, 0xB5, 0x2F, 0xFD], Malformed("it is compressed; pipe it through 'zstd -d'")),
    (&[0x1F, 0x8B], Malformed("it is compressed; pipe it through 'gzip -d'")),
    (&[0xFD, b'7', b'z', b'X', b'Z', 0], Malformed("it is compressed; pipe it through 'xz -d'")),
    (&[0x04, 0x22, 0x4D, 0x18], Malformed("it is compressed; pipe it through 'lz4 -d'")),
];

/// Why bytes that begin so are no stream.
fn no_stream(bytes: &[u8]) -> Malformed {
    let known = COMPRESSED.iter().find(|(magic, _)| bytes.starts_with(magic));
    known.map_or(NO_STREAM, |(_, why)| *why)
}

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = size_of::<RawHeader>();
/// Bytes of a record without its payload.
pub(super) const RECORD_BYTES: usize = size_of::<RawRecord>();
/// Most blocks of a record with data: 1 MiB.
pub(super) const DATA_BLOCKS_MAX: u64 = 256;
/// Most bytes of the words with which a stream ends that failed.
const WORDS_BYTES_MAX: usize = 1024;

/// What a stream begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Features that a reader has to know.
    pub(super) features: u64,
    /// Block size that hosts see, as log2: 9 or 12.
    pub(super) block_shift: u16,
    /// Size of the snapshot in blocks of 4 KiB.
    pub(super) blocks: u64,
    /// When the snapshot was made, seconds since 1970.
    pub(super) created_s: u64,
    /// What the snapshot holds.
    pub(super) content: Uuid,
    /// What the stream goes on from; nil: from nothing.
    pub(super) since: Uuid,
    /// The snapshot's name: `volume@snapshot`.
    pub(super) name: String,
    /// The name of what it goes on from; empty.
    pub(super) since_name: String,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    /// Of the whole header with this field zero.
    crc: U32,
    bytes: U32,
    features: U64,
    block_shift: U16,
    reserved_a: [u8; 6],
    blocks: U64,
    created_s: U64,
    content: [u8; 16],
    since: [u8; 16],
    name: [u8; VOLUME_NAME_BYTES_MAX],
    since_name: [u8; VOLUME_NAME_BYTES_MAX],
    reserved_b: [u8; 176],
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// These blocks are what follows, or holes, or lost.
    Blocks(ChangeKind),
    /// The stream is whole: `first` blocks with data and `blocks` records came before.
    End,
    /// Whoever wrote it could not go on; what follows says why.
    Failed,
}

/// A record without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: RecordKind,
    /// Records before it.
    pub(super) sequence: u64,
    pub(super) first: u64,
    pub(super) blocks: u64,
    pub(super) payload_bytes: u32,
    pub(super) payload_crc: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRecord {
    kind: u8,
    reserved: [u8; 3],
    /// Of these bytes with this field zero.
    crc: U32,
    sequence: U64,
    first: U64,
    blocks: U64,
    payload_bytes: U32,
    payload_crc: U32,
}

const _: () = assert!(HEADER_BYTES == 512 && RECORD_BYTES == 40);

fn put_name(name: &str) -> [u8; VOLUME_NAME_BYTES_MAX] {
    let mut bytes = [0; VOLUME_NAME_BYTES_MAX];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

fn name(bytes: &[u8]) -> Result<String, Malformed> {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let text = std::str::from_utf8(&bytes[..used]).map_err(|_| Malformed("a name in its header is not UTF-8"))?;
    if text.chars().any(char::is_control) {
        return Err(Malformed("a name in its header has control characters"));
    }
    Ok(text.to_string())
}

impl Header {
    /// Its bytes. Panics on names that are too long: those of volumes are not.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut raw = RawHeader {
            magic: MAGIC,
            crc: U32::ZERO,
            bytes: (HEADER_BYTES as u32).into(),
            features: self.features.into(),
            block_shift: self.block_shift.into(),
            reserved_a: [0; 6],
            blocks: self.blocks.into(),
            created_s: self.created_s.into(),
            content: self.content.into_bytes(),
            since: self.since.into_bytes(),
            name: put_name(&self.name),
            since_name: put_name(&self.since_name),
            reserved_b: [0; 176],
        };
        raw.crc = crc32c(raw.as_bytes()).into();
        raw.as_bytes().to_vec()
    }

    /// What is wrong with a stream that ends with these bytes, which are fewer than a header has.
    pub(super) fn cut(bytes: &[u8]) -> StreamError {
        match bytes.is_empty() || bytes.iter().zip(&MAGIC).all(|(byte, wanted)| byte == wanted) {
            true => StreamError::Cut { bytes: bytes.len() as u64 },
            false => StreamError::Damaged { byte: 0, cause: no_stream(bytes) },
        }
    }

    /// The header in these bytes.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Malformed> {
        let raw = RawHeader::read_from_bytes(bytes).expect("the sizes are equal");
        if raw.magic != MAGIC {
            return Err(no_stream(bytes));
        }
        let zeroed = RawHeader { crc: U32::ZERO, ..raw };
        if crc32c(zeroed.as_bytes()) != raw.crc.get() {
            return Err(Malformed("the checksum of its header is wrong"));
        }
        if raw.bytes.get() as usize != HEADER_BYTES {
            return Err(Malformed("its header has another size"));
        }
        let header = Header {
            features: raw.features.get(),
            block_shift: raw.block_shift.get(),
            blocks: raw.blocks.get(),
            created_s: raw.created_s.get(),
            content: Uuid::from_bytes(raw.content),
            since: Uuid::from_bytes(raw.since),
            name: name(&raw.name)?,
            since_name: name(&raw.since_name)?,
        };
        if !matches!(header.block_shift, 9 | 12)
            || !(1..=VOLUME_BLOCKS_MAX).contains(&header.blocks)
            || header.content.is_nil()
        {
            return Err(Malformed("its header says what cannot be"));
        }
        Ok(header)
    }
}

impl Record {
    pub(super) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut raw = RawRecord {
            kind: match self.kind {
                RecordKind::Blocks(ChangeKind::Data) => 1,
                RecordKind::Blocks(ChangeKind::Hole) => 2,
                RecordKind::Blocks(ChangeKind::Lost) => 3,
                RecordKind::End => 4,
                RecordKind::Failed => 5,
            },
            reserved: [0; 3],
            crc: U32::ZERO,
            sequence: self.sequence.into(),
            first: self.first.into(),
            blocks: self.blocks.into(),
            payload_bytes: self.payload_bytes.into(),
            payload_crc: self.payload_crc.into(),
        };
        raw.crc = crc32c(raw.as_bytes()).into();
        raw.as_bytes().try_into().expect("the sizes are equal")
    }

    /// The record in these bytes, in a stream of a volume of so many blocks.
    pub(super) fn decode(bytes: &[u8; RECORD_BYTES], volume_blocks: u64) -> Result<Record, Malformed> {
        let raw = RawRecord::read_from_bytes(bytes).expect("the sizes are equal");
        let mut zeroed = *bytes;
        zeroed[offset_of!(RawRecord, crc)..][..4].fill(0);
        if crc32c(&zeroed) != raw.crc.get() {
            return Err(Malformed("the checksum of a record is wrong"));
        }
        let record = Record {
            kind: match raw.kind {
                1 => RecordKind::Blocks(ChangeKind::Data),
                2 => RecordKind::Blocks(ChangeKind::Hole),
                3 => RecordKind::Blocks(ChangeKind::Lost),
                4 => RecordKind::End,
                5 => RecordKind::Failed,
                _ => return Err(Malformed("a record is of an unknown kind")),
            },
            sequence: raw.sequence.get(),
            first: raw.first.get(),
            blocks: raw.blocks.get(),
            payload_bytes: raw.payload_bytes.get(),
            payload_crc: raw.payload_crc.get(),
        };
        let end = record.first.checked_add(record.blocks);
        let is_inside = record.blocks > 0 && end.is_some_and(|end| end <= volume_blocks);
        let payload = record.payload_bytes as usize;
        let is_right = match record.kind {
            RecordKind::Blocks(ChangeKind::Data) => {
                is_inside && record.blocks <= DATA_BLOCKS_MAX && payload == record.blocks as usize * BLOCK_BYTES
            }
            RecordKind::Blocks(_) => is_inside && payload == 0,
            RecordKind::End => payload == 0,
            RecordKind::Failed => payload <= WORDS_BYTES_MAX,
        };
        if !is_right || payload == 0 && record.payload_crc != crc32c(&[]) {
            return Err(Malformed("a record says what cannot be"));
        }
        Ok(record)
    }
}

/// Words as a stream can have them at its end: not more than fit, whole characters.
pub(super) fn words(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(WORDS_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    fn header() -> Header {
        Header {
            features: 0,
            block_shift: 12,
            blocks: 1000,
            created_s: 5,
            content: Uuid::from_u128(1),
            since: Uuid::from_u128(2),
            name: "v@two".to_string(),
            since_name: "v@one".to_string(),
        }
    }

    #[test]
    fn a_header_with_any_bit_flipped_is_refused() {
        let bytes: [u8; HEADER_BYTES] = header().encode().try_into().unwrap();
        assert_eq!(Header::decode(&bytes), Ok(header()));
        for bit in 0..HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            Header::decode(&flipped).unwrap_err();
        }
    }

    #[test]
    fn a_record_with_any_bit_flipped_or_any_bytes_is_refused() {
        let kind = RecordKind::Blocks(ChangeKind::Data);
        let record = Record { kind, sequence: 3, first: 998, blocks: 2, payload_bytes: 8192, payload_crc: 77 };
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes, 1000), Ok(record));
        assert_eq!(Record::decode(&bytes, 999), Err(Malformed("a record says what cannot be")));
        for bit in 0..RECORD_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            Record::decode(&flipped, 1000).unwrap_err();
        }
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            let hostile = Record { first: rng.next_u64(), blocks: rng.next_u64(), ..record };
            Record::decode(&hostile.encode(), 1000).unwrap_err();
        }
        let end = Record { kind: RecordKind::End, payload_bytes: 0, payload_crc: 0, ..record };
        assert_eq!(Record::decode(&end.encode(), 1000), Ok(end));
        Record::decode(&Record { payload_crc: 1, ..end }.encode(), 1000).unwrap_err();
    }
}
