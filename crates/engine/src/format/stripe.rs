//! The header block of a stripe: what the blocks behind it are. Bytes: `docs/formats/bands.md`.

use crate::format::generation;
use crate::units::BLOCK_BYTES;
use base::crc32c;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most data blocks of a stripe: with its header 1 MiB.
pub(crate) const STRIPE_DATA_MAX: usize = 255;

const MAGIC: [u8; 4] = *b"RMST";
const HEAD_BYTES: usize = size_of::<RawHead>();
const ENTRY_BYTES: usize = size_of::<RawEntry>();
const CHECKSUM: std::ops::Range<usize> = 4..8;

/// What a stripe's header says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The shard's block.
    pub(crate) block: u32,
    /// Its checksum, as map pages have it.
    pub(crate) crc: u32,
}

/// What a stripe's header says of the stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StripeHead {
    /// Orders the stripes of a shard.
    pub(crate) sequence: u64,
    /// Of the band.
    pub(crate) generation: u64,
    /// When its blocks were written, on average: see [`BandEntry::stamp`](crate::format::band::BandEntry::stamp).
    pub(crate) stamp: u64,
    pub(crate) band: u32,
    /// The block of the band that this header is in.
    pub(crate) position: u32,
    pub(crate) shard: u16,
    /// Data blocks.
    pub(crate) count: u16,
    /// Blocks in all: header, data, padding.
    pub(crate) blocks: u16,
    pub(crate) stream: u8,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHead {
    magic: [u8; 4],
    /// Of the whole block with this field zero, then XORed with the salt of the shard.
    checksum: U32,
    sequence: U64,
    generation: U64,
    stamp: U64,
    band: U32,
    position: U32,
    shard: U16,
    count: U16,
    blocks: U16,
    stream: u8,
    reserved: u8,
    rest: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    block: U32,
    crc: U32,
}

const _: () =
    assert!(HEAD_BYTES == 64 && ENTRY_BYTES == 8 && std::mem::offset_of!(RawHead, checksum) == CHECKSUM.start);
const _: () = assert!(HEAD_BYTES + STRIPE_DATA_MAX * ENTRY_BYTES <= BLOCK_BYTES);

/// Notes the entry of the stripe's data block `index` in the block that becomes its header.
pub(crate) fn set_entry(header: &mut [u8], index: usize, entry: Entry) {
    let raw = RawEntry { block: entry.block.into(), crc: entry.crc.into() };
    header[HEAD_BYTES + index * ENTRY_BYTES..][..ENTRY_BYTES].copy_from_slice(raw.as_bytes());
}

/// What the entry at `from` says holds for the data block `to`.
pub(crate) fn move_entry(header: &mut [u8], from: usize, to: usize) {
    let from = HEAD_BYTES + from * ENTRY_BYTES;
    header.copy_within(from..from + ENTRY_BYTES, HEAD_BYTES + to * ENTRY_BYTES);
}

impl StripeHead {
    /// Completes a header block that has `count` entries.
    pub(crate) fn seal(&self, salt: u32, header: &mut [u8]) {
        let raw = RawHead {
            magic: MAGIC,
            checksum: U32::ZERO,
            sequence: self.sequence.into(),
            generation: self.generation.into(),
            stamp: self.stamp.into(),
            band: self.band.into(),
            position: self.position.into(),
            shard: self.shard.into(),
            count: self.count.into(),
            blocks: self.blocks.into(),
            stream: self.stream,
            reserved: 0,
            rest: [0; 16],
        };
        header[..HEAD_BYTES].copy_from_slice(raw.as_bytes());
        header[HEAD_BYTES + self.count as usize * ENTRY_BYTES..BLOCK_BYTES].fill(0);
        let checksum = crc32c(&header[..BLOCK_BYTES]) ^ salt;
        header[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }

    /// `None` when this block is no stripe's header, or a damaged one.
    pub(crate) fn decode(salt: u32, block: &[u8]) -> Option<StripeHead> {
        let block = block.get(..BLOCK_BYTES)?;
        let raw = RawHead::read_from_prefix(block).ok()?.0;
        let zeroed = RawHead { checksum: U32::ZERO, ..raw };
        let checksum = base::crc::crc32c_slices([zeroed.as_bytes(), &block[HEAD_BYTES..]]) ^ salt;
        if raw.magic != MAGIC || checksum != raw.checksum.get() {
            return None;
        }
        let head = StripeHead {
            sequence: generation(raw.sequence.get()).ok()?,
            generation: generation(raw.generation.get()).ok()?,
            stamp: generation(raw.stamp.get()).ok()?,
            band: raw.band.get(),
            position: raw.position.get(),
            shard: raw.shard.get(),
            count: raw.count.get(),
            blocks: raw.blocks.get(),
            stream: raw.stream,
        };
        let sane = (1..=STRIPE_DATA_MAX).contains(&(head.count as usize)) && head.blocks > head.count;
        let used = HEAD_BYTES + head.count as usize * ENTRY_BYTES;
        let blank =
            raw.reserved == 0 && raw.rest == [0; 16] && block[used.min(BLOCK_BYTES)..].iter().all(|byte| *byte == 0);
        (sane && blank).then_some(head)
    }

    /// The entries of a header block that has been decoded.
    pub(crate) fn entries(&self, block: &[u8]) -> impl Iterator<Item = Entry> {
        let entry = |bytes: &[u8]| {
            let (raw, _) = RawEntry::read_from_prefix(bytes).expect("a chunk is as long as an entry");
            Entry { block: raw.block.get(), crc: raw.crc.get() }
        };
        block[HEAD_BYTES..].chunks_exact(ENTRY_BYTES).take(self.count as usize).map(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    const HEAD: StripeHead = StripeHead {
        sequence: 0x0807_0605_0403_0201,
        generation: 0x1817_1615_1413_1211,
        stamp: 0x2827_2625_2423_2221,
        band: 0x3433_3231,
        position: 0x3837_3635,
        shard: 0x3A39,
        count: 3,
        blocks: 16,
        stream: 2,
    };
    const ENTRIES: [Entry; 3] =
        [Entry { block: 0x0403_0201, crc: 0x1413_1211 }, Entry { block: 7, crc: 8 }, Entry { block: 9, crc: u32::MAX }];

    fn sealed(head: StripeHead, salt: u32) -> Vec<u8> {
        let mut block = vec![0x77; BLOCK_BYTES];
        (0..).zip(ENTRIES).for_each(|(index, entry)| set_entry(&mut block, index, entry));
        head.seal(salt, &mut block);
        block
    }

    #[test]
    fn a_header_survives_the_round_trip_and_no_flipped_bit_other_salt_or_cut_does() {
        let mut block = sealed(HEAD, 5);
        assert_eq!(StripeHead::decode(5, &block), Some(HEAD));
        assert!(HEAD.entries(&block).eq(ENTRIES));
        assert_eq!(StripeHead::decode(6, &block), None);
        for bit in 0..BLOCK_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(StripeHead::decode(5, &block), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        (0..BLOCK_BYTES).for_each(|len| assert_eq!(StripeHead::decode(5, &block[..len]), None));
    }

    #[test]
    fn headers_that_no_one_writes_are_refused_though_their_checksum_is_right() {
        let reseal = |block: &mut Vec<u8>| {
            block[CHECKSUM].fill(0);
            let checksum = crc32c(block) ^ 5;
            block[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        };
        let mut whole = sealed(HEAD, 5);
        reseal(&mut whole);
        assert_eq!(StripeHead::decode(5, &whole), Some(HEAD));
        // Count (two bytes), blocks, what is reserved, and the block behind the entries.
        for (at, byte) in
            [(42, 0), (42, 16), (43, 1), (43, 255), (44, 3), (47, 1), (48, 1), (63, 1), (88, 1), (4095, 1)]
        {
            let mut forged = whole.clone();
            forged[at] = byte;
            reseal(&mut forged);
            assert_eq!(StripeHead::decode(5, &forged), None, "byte {at}");
        }
        let mut rng = Rng::new(9);
        for _ in 0..20_000 {
            let mut hostile = whole.clone();
            (0..rng.between(1, 5)).for_each(|_| hostile[rng.between(8, 100) as usize] = rng.next_u64() as u8);
            reseal(&mut hostile);
            if let Some(head) = StripeHead::decode(5, &hostile) {
                assert_eq!(head.entries(&hostile).count(), head.count as usize);
            }
        }
    }

    /// The bytes of the format. A change here is a change of the format: it needs a version or a feature.
    #[test]
    fn the_bytes_are_those_of_the_format() {
        let block = sealed(HEAD, 0);
        let hex: String = block[..80].iter().map(|byte| format!("{byte:02x}")).collect();
        let checksum = u32::from_le_bytes(block[CHECKSUM].try_into().unwrap());
        assert_eq!(checksum, 0x5b8e_be4f);
        assert_eq!(hex[..8], *"524d5354");
        assert_eq!(hex[16..64], *"010203040506070811121314151617182122232425262728");
        assert_eq!(hex[64..128], *"3132333435363738393a030010000200 00000000000000000000000000000000".replace(' ', ""));
        assert_eq!(hex[128..160], *"01020304111213140700000008000000");
    }
}
