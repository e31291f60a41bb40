//! The header block of a stripe: what the blocks behind it are. Bytes: `docs/formats/bands.md`.

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
            sequence: raw.sequence.get(),
            generation: raw.generation.get(),
            stamp: raw.stamp.get(),
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
