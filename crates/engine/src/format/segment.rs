//! What frames records in a segment: its header, the headers of groups, and the footer of a summary.
//! See `docs/formats/pool.md`.

use crate::format::record::{READ_NUMBER_MAX, UNIT};
use base::crc32c;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const SEGMENT_MAGIC: [u8; 8] = *b"RMDASEGM";
const GROUP_MAGIC: [u8; 4] = *b"RMGR";
const SUMMARY_MAGIC: [u8; 4] = *b"RMSM";

/// The header of a segment: who it belongs to and where in the sequence of records it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) sequence: u64,
    pub(crate) first_lsn: u64,
    pub(crate) epoch: u32,
    pub(crate) shard: u16,
    pub(crate) pool: [u8; 8],
}

/// The header of a group of records in a block log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) first_lsn: u64,
    pub(crate) epoch: u32,
    pub(crate) records: u16,
    pub(crate) header_blocks: u16,
    pub(crate) payload_blocks: u32,
    pub(crate) sequence: u64,
    /// Every record before this one was durable when the group was written.
    pub(crate) durable_lsn: u64,
}

/// The last block of a closed segment of a block log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) sequence: u64,
    pub(crate) records: u32,
    /// Blocks of the summary, which lies directly before this block.
    pub(crate) blocks: u32,
    /// Of the summary's blocks.
    pub(crate) summary_checksum: u32,
    pub(crate) epoch: u32,
    pub(crate) first_lsn: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSegment {
    magic: [u8; 8],
    checksum: U32,
    epoch: U32,
    sequence: U64,
    first_lsn: U64,
    shard: U16,
    reserved: [u8; 6],
    pool: [u8; 8],
    rest: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawGroup {
    magic: [u8; 4],
    /// Of the group's header blocks with this field zero, then XORed with the salt of the log.
    checksum: U32,
    first_lsn: U64,
    epoch: U32,
    records: U16,
    header_blocks: U16,
    payload_blocks: U32,
    reserved: U32,
    sequence: U64,
    durable_lsn: U64,
    rest: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawFooter {
    magic: [u8; 4],
    /// Of these 64 bytes with this field zero, then XORed with the salt of the log.
    checksum: U32,
    sequence: U64,
    records: U32,
    blocks: U32,
    summary_checksum: U32,
    epoch: U32,
    first_lsn: U64,
    rest: [u8; 24],
}

const _: () = assert!(size_of::<RawSegment>() == UNIT && size_of::<RawGroup>() == UNIT);
const _: () = assert!(size_of::<RawFooter>() == UNIT && std::mem::offset_of!(RawFooter, first_lsn) == 32);
const _: () =
    assert!(std::mem::offset_of!(RawSegment, pool) == 40 && std::mem::offset_of!(RawGroup, durable_lsn) == 40);

impl Segment {
    /// Whether it belongs to a shard's log of the pool with this [prefix](crate::format::superblock::Superblock::pool_prefix).
    pub(crate) fn is_of(&self, pool: [u8; 8], shard: u16) -> bool {
        self.pool == pool && self.shard == shard
    }

    pub(crate) fn encode(&self) -> [u8; UNIT] {
        let mut raw = RawSegment {
            magic: SEGMENT_MAGIC,
            checksum: U32::ZERO,
            epoch: self.epoch.into(),
            sequence: self.sequence.into(),
            first_lsn: self.first_lsn.into(),
            shard: self.shard.into(),
            reserved: [0; 6],
            pool: self.pool,
            rest: [0; 16],
        };
        raw.checksum = crc32c(raw.as_bytes()).into();
        zerocopy::transmute!(raw)
    }

    /// `None` when these bytes are no segment header, or a damaged one. `Err` for one that no writer writes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Result<Segment, &'static str>> {
        let mut raw = RawSegment::read_from_prefix(bytes).ok()?.0;
        let checksum = std::mem::replace(&mut raw.checksum, U32::ZERO);
        if raw.magic != SEGMENT_MAGIC || crc32c(raw.as_bytes()) != checksum.get() {
            return None;
        }
        let segment = Segment {
            sequence: raw.sequence.get(),
            first_lsn: raw.first_lsn.get(),
            epoch: raw.epoch.get(),
            shard: raw.shard.get(),
            pool: raw.pool,
        };
        let sane = segment.sequence < READ_NUMBER_MAX && (1..READ_NUMBER_MAX).contains(&segment.first_lsn);
        let blank = raw.reserved == [0; 6] && raw.rest == [0; 16];
        Some(match (sane, blank) {
            (true, true) => Ok(segment),
            (false, _) => Err("its sequence or its first record's number is out of range"),
            _ => Err("its reserved bytes are not zero"),
        })
    }
}

impl Group {
    /// Blocks of the whole group.
    pub(crate) fn blocks(&self) -> u64 {
        self.header_blocks as u64 + self.payload_blocks as u64
    }

    /// Completes header blocks whose first 64 bytes are left free.
    pub(crate) fn seal(&self, salt: u32, blocks: &mut [u8]) {
        let mut raw = RawGroup {
            magic: GROUP_MAGIC,
            checksum: U32::ZERO,
            first_lsn: self.first_lsn.into(),
            epoch: self.epoch.into(),
            records: self.records.into(),
            header_blocks: self.header_blocks.into(),
            payload_blocks: self.payload_blocks.into(),
            reserved: U32::ZERO,
            sequence: self.sequence.into(),
            durable_lsn: self.durable_lsn.into(),
            rest: [0; 16],
        };
        blocks[..UNIT].copy_from_slice(raw.as_bytes());
        raw.checksum = U32::new(crc32c(blocks) ^ salt);
        blocks[..UNIT].copy_from_slice(raw.as_bytes());
    }

    /// What seems to be a group's header, not verified: it says how many blocks the verification needs.
    pub(crate) fn peek(bytes: &[u8]) -> Option<Group> {
        let raw = RawGroup::ref_from_prefix(bytes).ok()?.0;
        (raw.magic == GROUP_MAGIC).then(|| Group {
            first_lsn: raw.first_lsn.get(),
            epoch: raw.epoch.get(),
            records: raw.records.get(),
            header_blocks: raw.header_blocks.get(),
            payload_blocks: raw.payload_blocks.get(),
            sequence: raw.sequence.get(),
            durable_lsn: raw.durable_lsn.get(),
        })
    }

    /// Whether the checksum of these header blocks, all of them, is right.
    pub(crate) fn verify(salt: u32, blocks: &[u8]) -> bool {
        let Ok((raw, rest)) = RawGroup::read_from_prefix(blocks) else { return false };
        let first = RawGroup { checksum: U32::ZERO, ..raw };
        base::crc::crc32c_slices([first.as_bytes(), rest]) ^ salt == raw.checksum.get()
    }
}

impl Footer {
    pub(crate) fn encode(&self, salt: u32) -> [u8; UNIT] {
        let mut raw = RawFooter {
            magic: SUMMARY_MAGIC,
            checksum: U32::ZERO,
            sequence: self.sequence.into(),
            records: self.records.into(),
            blocks: self.blocks.into(),
            summary_checksum: self.summary_checksum.into(),
            epoch: self.epoch.into(),
            first_lsn: self.first_lsn.into(),
            rest: [0; 24],
        };
        raw.checksum = U32::new(crc32c(raw.as_bytes()) ^ salt);
        zerocopy::transmute!(raw)
    }

    /// `None` when these bytes are no footer, or a damaged one.
    pub(crate) fn decode(bytes: &[u8], salt: u32) -> Option<Footer> {
        let mut raw = RawFooter::read_from_prefix(bytes).ok()?.0;
        let checksum = std::mem::replace(&mut raw.checksum, U32::ZERO);
        let right = raw.magic == SUMMARY_MAGIC && crc32c(raw.as_bytes()) ^ salt == checksum.get();
        right.then(|| Footer {
            sequence: raw.sequence.get(),
            records: raw.records.get(),
            blocks: raw.blocks.get(),
            summary_checksum: raw.summary_checksum.get(),
            epoch: raw.epoch.get(),
            first_lsn: raw.first_lsn.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: Segment = Segment { sequence: 9, first_lsn: 1000, epoch: 3, shard: 2, pool: *b"poolpool" };
    const GROUP: Group = Group {
        first_lsn: 1000,
        epoch: 3,
        records: 2,
        header_blocks: 1,
        payload_blocks: 7,
        sequence: 9,
        durable_lsn: 990,
    };
    const FOOTER: Footer =
        Footer { sequence: 9, records: 70, blocks: 2, summary_checksum: 5, epoch: 3, first_lsn: 1000 };

    fn flips(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
        (0..bytes.len() * 8).map(|bit| {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            damaged
        })
    }

    #[test]
    fn a_segment_header_survives_the_round_trip_and_no_flipped_bit_does() {
        let bytes = SEGMENT.encode();
        assert_eq!(Segment::decode(&bytes), Some(Ok(SEGMENT)));
        assert!(flips(&bytes).all(|damaged| Segment::decode(&damaged).is_none()));
        (0..bytes.len()).for_each(|len| assert_eq!(Segment::decode(&bytes[..len]), None));
        let impossible = Segment { first_lsn: 0, ..SEGMENT }.encode();
        assert!(matches!(Segment::decode(&impossible), Some(Err(_))));
    }

    #[test]
    fn a_group_header_survives_the_round_trip_and_no_flipped_bit_does() {
        let mut blocks = vec![7; 4096];
        GROUP.seal(1, &mut blocks);
        assert_eq!(Group::peek(&blocks), Some(GROUP));
        assert!(Group::verify(1, &blocks) && !Group::verify(2, &blocks));
        assert!(flips(&blocks).all(|damaged| !Group::verify(1, &damaged) || Group::peek(&damaged).is_none()));
        let whole = |len: &usize| Group::peek(&blocks[..*len]).is_some() && Group::verify(1, &blocks[..*len]);
        assert_eq!((0..blocks.len()).find(whole), None);
    }

    #[test]
    fn a_footer_survives_the_round_trip_and_no_flipped_bit_does() {
        let bytes = FOOTER.encode(1);
        assert_eq!((Footer::decode(&bytes, 1), Footer::decode(&bytes, 2)), (Some(FOOTER), None));
        assert!(flips(&bytes).all(|damaged| Footer::decode(&damaged, 1).is_none()));
        (0..bytes.len()).for_each(|len| assert_eq!(Footer::decode(&bytes[..len], 1), None));
    }
}
