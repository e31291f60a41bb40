//! Blocks of a shard's dirty journal. Bytes: `docs/formats/pool.md`.

use crate::format::root::pool_mark;
use crate::format::{Malformed, generation};
use crate::units::BLOCK_BYTES;
use base::crc32c;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"RMDADIRT";

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    crc: U32,
    shard: U16,
    reserved_a: U16,
    generation: U64,
    sequence: U32,
    count: U32,
    base: U32,
    epoch: U32,
    pool: [u8; 8],
    log: [u8; 8],
    index_root: U64,
}

const HEADER_BYTES: usize = size_of::<RawHeader>();
const ENTRY_BYTES: usize = 8;
const _: () = assert!(HEADER_BYTES == 64);
/// Most entries of a block.
pub(crate) const DIRTY_ENTRIES: usize = (BLOCK_BYTES - HEADER_BYTES) / ENTRY_BYTES;
const _: () = assert!(DIRTY_ENTRIES == 504);

/// A slice of a volume.
pub(crate) type DirtySlice = (u32, u32);

/// What a block says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirtyHeader {
    pub(crate) generation: u64,
    /// From 0, in the order of the blocks of a copy.
    pub(crate) sequence: u32,
    /// Blocks that hold the set with which the copy began; in every block.
    pub(crate) base: u32,
}

/// Whose a block is, and which opening of the pool writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirtyOwner {
    pub(crate) pool: Uuid,
    pub(crate) shard: u16,
    pub(crate) epoch: u32,
    pub(crate) index: IndexNote,
}

/// How far the index of a shaped pool's shard was at least, on its log device, when a block was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexNote {
    /// The first bytes of the log device's UUID.
    pub(crate) log: [u8; 8],
    /// The generation of a root that was durable; 0: not known.
    pub(crate) root: u64,
}

impl IndexNote {
    /// Of the log device of a pool, by what its capacity device says.
    pub(crate) fn of(log: Uuid, root: u64) -> IndexNote {
        IndexNote { log: pool_mark(log), root }
    }
}

/// Fills a block. Panics on more than [`DIRTY_ENTRIES`].
pub(crate) fn encode_dirty(owner: DirtyOwner, header: DirtyHeader, entries: &[DirtySlice], block: &mut [u8]) {
    assert!(entries.len() <= DIRTY_ENTRIES, "{} entries are too many for a block of the journal", entries.len());
    let mut raw = RawHeader {
        magic: MAGIC,
        crc: U32::ZERO,
        shard: owner.shard.into(),
        reserved_a: U16::ZERO,
        generation: header.generation.into(),
        sequence: header.sequence.into(),
        count: (entries.len() as u32).into(),
        base: header.base.into(),
        epoch: owner.epoch.into(),
        pool: pool_mark(owner.pool),
        log: owner.index.log,
        index_root: owner.index.root.into(),
    };
    block[HEADER_BYTES..].fill(0);
    for (bytes, (volume, slice)) in block[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES).zip(entries) {
        bytes[..4].copy_from_slice(&volume.to_le_bytes());
        bytes[4..].copy_from_slice(&slice.to_le_bytes());
    }
    block[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    raw.crc = crc32c(block).into();
    block[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
}

/// The header and the entries of a block.
pub(crate) fn decode_dirty(
    block: &[u8],
    pool: Uuid,
    shard: u16,
) -> Result<(DirtyHeader, impl Iterator<Item = DirtySlice> + '_), Malformed> {
    let (raw, entries) = RawHeader::read_from_prefix(block).map_err(|_| Malformed("it is too short"))?;
    if raw.magic != MAGIC {
        return Err(Malformed("it has no magic number"));
    }
    let zeroed = RawHeader { crc: U32::ZERO, ..raw };
    if base::crc::crc32c_slices([zeroed.as_bytes(), entries]) != raw.crc.get() {
        return Err(Malformed("its checksum is wrong"));
    }
    if raw.shard != shard || raw.pool != pool_mark(pool) {
        return Err(Malformed("it belongs to another shard or pool"));
    }
    if raw.count.get() as usize > DIRTY_ENTRIES {
        return Err(Malformed("it has more entries than room"));
    }
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let entries = entries.chunks_exact(ENTRY_BYTES).take(raw.count.get() as usize);
    let generation = generation(raw.generation.get())?;
    let header = DirtyHeader { generation, sequence: raw.sequence.get(), base: raw.base.get() };
    Ok((header, entries.map(move |bytes| (word(&bytes[..4]), word(&bytes[4..])))))
}

/// The latest opening of the pool that a block shows; `None`: it is no block of this journal. Programs that did not note it show the
/// one that began the copy at least.
pub(crate) fn opening_shown(block: &[u8], pool: Uuid, shard: u16) -> Option<u32> {
    let (header, _) = decode_dirty(block, pool, shard).ok()?;
    let (raw, _) = RawHeader::read_from_prefix(block).ok()?;
    Some(raw.epoch.get().max((header.generation >> 32) as u32))
}

/// What a block of a journal, which has been decoded, notes of the index.
pub(crate) fn index_noted(block: &[u8]) -> IndexNote {
    let raw = RawHeader::read_from_prefix(block).map(|(raw, _)| raw);
    raw.map_or(IndexNote::default(), |raw| IndexNote { log: raw.log, root: raw.index_root.get() })
}
