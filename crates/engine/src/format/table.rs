//! Table pages: the descriptors of a shard's extents. Bytes: `docs/formats/pool.md`.
//!
//! A page's checksum is in the root, so that a stale page is told from the right one.

use crate::format::Malformed;
use crate::format::dirty::DirtySlice;
use crate::format::superblock::TABLE_DESCRIPTORS;
use crate::units::{BLOCK_BYTES, SLICE_EXTENTS};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"RMDATABL";

/// The map page is in slot 1, not 0. The metadata store's own.
pub const MAP_SLOT_1: u32 = 1;
/// There is a map page; without one, all blocks are as [`BLOCKS_LOST`] and [`BLOCKS_INHERIT`] say. The metadata store's own.
pub const MAP_PAGE: u32 = 2;
/// Blocks without a map page are lost.
pub const BLOCKS_LOST: u32 = 4;
/// The extent is not to be used.
pub const UNUSABLE: u32 = 8;
/// Blocks without a map page show what lies below; else they are holes.
pub const BLOCKS_INHERIT: u32 = 16;
const FLAGS_KNOWN: u32 = MAP_SLOT_1 | MAP_PAGE | BLOCKS_LOST | UNUSABLE | BLOCKS_INHERIT;

/// What is known of an extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
pub struct Descriptor {
    /// Whose it is; 0 is free.
    pub volume: u32,
    /// Which extent of the volume.
    pub vextent: u32,
    /// Checksum of the map page. The metadata store's own.
    pub map_crc: u32,
    /// [`MAP_SLOT_1`], [`MAP_PAGE`], [`BLOCKS_LOST`], [`UNUSABLE`], [`BLOCKS_INHERIT`].
    pub flags: u32,
}

impl Descriptor {
    /// Whether the extent belongs to no volume.
    pub fn is_free(&self) -> bool {
        self.volume == 0
    }

    /// The slice that the extent is in.
    pub(crate) fn slice(&self) -> DirtySlice {
        (self.volume, self.vextent / SLICE_EXTENTS)
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    shard: U16,
    reserved_a: U16,
    index: U32,
    generation: U64,
    reserved_b: [u8; 40],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawDescriptor {
    volume: U32,
    vextent: U32,
    map_crc: U32,
    flags: U32,
    reserved: [u8; 16],
}

const HEADER_BYTES: usize = size_of::<RawHeader>();
const DESCRIPTOR_BYTES: usize = size_of::<RawDescriptor>();
const _: () = assert!(HEADER_BYTES == 64 && DESCRIPTOR_BYTES == 32);
const _: () = assert!(HEADER_BYTES + DESCRIPTOR_BYTES * TABLE_DESCRIPTORS as usize == BLOCK_BYTES);

/// Fills a block with table page `index` of a shard; what `descriptors` leaves over is free.
pub(crate) fn encode_table(
    shard: u16,
    index: u32,
    generation: u64,
    descriptors: impl Iterator<Item = Descriptor>,
    block: &mut [u8],
) {
    let header = RawHeader {
        magic: MAGIC,
        shard: shard.into(),
        reserved_a: U16::ZERO,
        index: index.into(),
        generation: generation.into(),
        reserved_b: [0; 40],
    };
    block[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    block[HEADER_BYTES..].fill(0);
    for (bytes, descriptor) in block[HEADER_BYTES..].chunks_exact_mut(DESCRIPTOR_BYTES).zip(descriptors) {
        let raw = RawDescriptor {
            volume: descriptor.volume.into(),
            vextent: descriptor.vextent.into(),
            map_crc: descriptor.map_crc.into(),
            flags: descriptor.flags.into(),
            reserved: [0; 16],
        };
        bytes.copy_from_slice(raw.as_bytes());
    }
}

/// The descriptors of table page `index`, whose checksum its root has confirmed.
pub(crate) fn decode_table(
    block: &[u8],
    shard: u16,
    index: u32,
) -> Result<impl Iterator<Item = Result<Descriptor, Malformed>> + '_, Malformed> {
    let (header, rest) = RawHeader::read_from_prefix(block).map_err(|_| Malformed("it is too short"))?;
    if header.magic != MAGIC || header.shard != shard || header.index != index {
        return Err(Malformed("it is not the table page that should be there"));
    }
    Ok(rest.chunks_exact(DESCRIPTOR_BYTES).map(|bytes| {
        let raw = RawDescriptor::read_from_bytes(bytes).expect("the sizes are equal");
        if raw.flags.get() & !FLAGS_KNOWN != 0 {
            return Err(Malformed("an extent has unknown flags"));
        }
        Ok(Descriptor {
            volume: raw.volume.get(),
            vextent: raw.vextent.get(),
            map_crc: raw.map_crc.get(),
            flags: raw.flags.get(),
        })
    }))
}
