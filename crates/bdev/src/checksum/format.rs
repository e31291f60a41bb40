//! What the checksum filter keeps on its child. See `docs/formats/checksum.md`.

use base::crc32c;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const MAGIC: [u8; 8] = *b"RMDCSUM\x01";
const PAGE_MAGIC: [u8; 4] = *b"RCP\x01";
const VERSION: u32 = 1;
pub(super) const PAGE_HEADER_BYTES: usize = size_of::<RawPageHeader>();
pub(super) const ENTRY_BYTES: usize = 8;
/// Copies of the superblock, in blocks 0 and 1.
pub(super) const SUPERBLOCKS: u64 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSuperblock {
    magic: [u8; 8],
    version: U32,
    /// CRC32C of these 64 bytes with this field zero.
    crc: U32,
    volume_id: [u8; 16],
    block_size: U32,
    reserved: U32,
    data_start: U64,
    data_blocks: U64,
    pages: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawPageHeader {
    magic: [u8; 4],
    /// CRC32C of the whole page with this field zero.
    crc: U32,
    index: U64,
    volume_id: [u8; 16],
}

const SUPERBLOCK_BYTES: usize = size_of::<RawSuperblock>();
const _: () = assert!(SUPERBLOCK_BYTES == 64 && size_of::<RawPageHeader>() == 32);

/// Identity and geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) volume_id: [u8; 16],
    pub(super) block_size: u32,
    pub(super) data_start: u64,
    pub(super) data_blocks: u64,
    pub(super) pages: u64,
}

/// Blocks whose checksums one page holds.
pub(super) fn entries_per_page(block_size: u32) -> u64 {
    ((block_size as usize - PAGE_HEADER_BYTES) / ENTRY_BYTES) as u64
}

impl Superblock {
    /// The geometry on a child of `blocks` blocks; `None` when it is too small.
    pub(super) fn plan(volume_id: [u8; 16], block_size: u32, blocks: u64) -> Option<Superblock> {
        let usable = blocks.checked_sub(SUPERBLOCKS)?;
        let mut pages = usable.div_ceil(entries_per_page(block_size) + 1);
        let data_blocks = usable - pages;
        // Where the last page would hold nothing, its block is left unused.
        pages = pages.min(data_blocks.div_ceil(entries_per_page(block_size)));
        let data_start = SUPERBLOCKS + pages;
        (data_blocks > 0).then_some(Superblock { volume_id, block_size, data_start, data_blocks, pages })
    }

    /// What stands at the start of its block; the rest is zero.
    pub(super) fn bytes(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut raw = RawSuperblock {
            magic: MAGIC,
            version: VERSION.into(),
            crc: U32::ZERO,
            volume_id: self.volume_id,
            block_size: self.block_size.into(),
            reserved: U32::ZERO,
            data_start: self.data_start.into(),
            data_blocks: self.data_blocks.into(),
            pages: self.pages.into(),
        };
        raw.crc = crc32c(raw.as_bytes()).into();
        raw.as_bytes().try_into().expect("the length is that of the layout")
    }

    /// `None` when these bytes are no superblock, or a damaged one.
    pub(super) fn decode(block: &[u8]) -> Option<Superblock> {
        let mut raw = RawSuperblock::read_from_prefix(block).ok()?.0;
        let crc = std::mem::replace(&mut raw.crc, U32::ZERO);
        let right = raw.magic == MAGIC && raw.version == VERSION && crc32c(raw.as_bytes()) == crc.get();
        let found = Superblock {
            volume_id: raw.volume_id,
            block_size: raw.block_size.get(),
            data_start: raw.data_start.get(),
            data_blocks: raw.data_blocks.get(),
            pages: raw.pages.get(),
        };
        let sane = right
            && found.block_size.is_power_of_two()
            && (512..=65_536).contains(&found.block_size)
            && found.data_blocks > 0
            && found.data_start.checked_add(found.data_blocks).is_some()
            && found.pages == found.data_blocks.div_ceil(entries_per_page(found.block_size))
            && found.data_start == SUPERBLOCKS + found.pages;
        sane.then_some(found)
    }
}

/// Fills a block with page `index`: header, entries, checksum.
pub(super) fn encode_page(volume_id: [u8; 16], index: u64, entries: impl Iterator<Item = u64>, block: &mut [u8]) {
    let mut header = RawPageHeader { magic: PAGE_MAGIC, crc: U32::ZERO, index: index.into(), volume_id };
    block[..PAGE_HEADER_BYTES].copy_from_slice(header.as_bytes());
    let mut slots = block[PAGE_HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES);
    for (slot, entry) in slots.by_ref().zip(entries) {
        slot.copy_from_slice(&entry.to_le_bytes());
    }
    header.crc = crc32c(block).into();
    block[..PAGE_HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// The entries of page `index`; `None` when the block is not that page, whole.
pub(super) fn decode_page(volume_id: [u8; 16], index: u64, block: &mut [u8]) -> Option<impl Iterator<Item = u64> + '_> {
    let mut header = RawPageHeader::read_from_prefix(block).ok()?.0;
    let crc = std::mem::replace(&mut header.crc, U32::ZERO);
    if header.magic != PAGE_MAGIC || header.index != index || header.volume_id != volume_id {
        return None;
    }
    block[..PAGE_HEADER_BYTES].copy_from_slice(header.as_bytes());
    if crc32c(block) != crc.get() {
        return None;
    }
    let slots = block[PAGE_HEADER_BYTES..].chunks_exact(ENTRY_BYTES);
    Some(slots.map(|slot| u64::from_le_bytes(slot.try_into().expect("chunks of eight bytes"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_survives_the_round_trip_and_no_flipped_bit_does() {
        let superblock = Superblock::plan([3; 16], 4096, 1000).unwrap();
        assert_eq!((superblock.pages, superblock.data_blocks), (2, 996));
        let block = superblock.bytes().to_vec();
        assert_eq!(Superblock::decode(&block), Some(superblock));
        for bit in 0..64 * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(Superblock::decode(&block[..40]), None);
    }

    #[test]
    fn a_page_survives_the_round_trip_and_no_flipped_bit_or_wrong_place_does() {
        let mut block = vec![0; 512];
        encode_page([3; 16], 9, (0..60).map(|n| n * 1_000_003), &mut block);
        let entries: Vec<u64> = decode_page([3; 16], 9, &mut block.clone()).unwrap().collect();
        assert_eq!(entries, (0..60).map(|n| n * 1_000_003).collect::<Vec<_>>());
        assert!(decode_page([3; 16], 8, &mut block.clone()).is_none());
        assert!(decode_page([4; 16], 9, &mut block.clone()).is_none());
        for bit in 0..block.len() * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_page([3; 16], 9, &mut damaged).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn every_size_of_child_is_used_without_overlap() {
        for block_size in [512, 4096] {
            for blocks in 4..3000 {
                let plan = Superblock::plan([0; 16], block_size, blocks).unwrap();
                assert!((blocks - 1..=blocks).contains(&(plan.data_start + plan.data_blocks)));
                assert_eq!(Superblock::decode(&plan.bytes()), Some(plan));
            }
        }
    }
}
