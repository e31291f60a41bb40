//! The catalog: the volumes of a pool. Bytes: `docs/formats/pool.md`.

use crate::format::{Malformed, generation};
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"RMDACAT1";
/// Most bytes of a volume's name.
pub const VOLUME_NAME_BYTES_MAX: usize = 128;

/// Whether a volume may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeState {
    /// It may.
    Live,
    /// What it has is being freed, or goes to the layer above it.
    Deleting,
    /// It may be read: it is what a volume was.
    Snapshot,
}

/// A volume, or a snapshot of one: a *layer*, which shows what lies below it wherever it has nothing of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Its number, from 1, never used again.
    pub id: u32,
    /// Whether it may be used.
    pub state: VolumeState,
    /// Block size that hosts see, as log2: 9 or 12.
    pub block_shift: u16,
    /// Size in blocks of 4 KiB.
    pub blocks: u64,
    /// Its name to hosts.
    pub uuid: Uuid,
    /// Of a snapshot: names what it holds. Copies of it in other pools have the same; made here, it is its own uuid.
    pub content: Uuid,
    /// When it was created, seconds since 1970.
    pub created_s: u64,
    /// Its name to people; that of a snapshot is `volume@snapshot`.
    pub name: String,
    /// The layer below it; 0: none.
    pub parent: u32,
    /// So many of its first blocks (of 4 KiB) show what lies below: no more than it ever had since it was laid over it.
    pub overlap: u64,
    /// The first layer of its family: with a slice it says which shard has it.
    pub origin: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    crc: U32,
    reserved_a: U32,
    pool: [u8; 16],
    generation: U64,
    entries: U32,
    next_id: U32,
    reserved_b: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    id: U32,
    state: u8,
    reserved_a: u8,
    block_shift: U16,
    blocks: U64,
    uuid: [u8; 16],
    created_s: U64,
    name: [u8; VOLUME_NAME_BYTES_MAX],
    overlap: U64,
    parent: U32,
    origin: U32,
    content: [u8; 16],
    reserved_b: [u8; 56],
}

/// Bytes of the header.
pub(crate) const CATALOG_HEADER_BYTES: usize = size_of::<RawHeader>();
/// Bytes of an entry.
pub(crate) const CATALOG_ENTRY_BYTES: usize = size_of::<RawEntry>();
use CATALOG_ENTRY_BYTES as ENTRY_BYTES;
use CATALOG_HEADER_BYTES as HEADER_BYTES;
const _: () = assert!(HEADER_BYTES == 64 && ENTRY_BYTES == 256);

/// What one copy of the catalog holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CatalogImage {
    pub(crate) generation: u64,
    pub(crate) next_id: u32,
    /// In ascending order of their ids.
    pub(crate) volumes: Vec<VolumeEntry>,
}

/// Volumes that fit in `bytes`.
pub(crate) fn catalog_entries_max(bytes: u64) -> u64 {
    bytes.saturating_sub(HEADER_BYTES as u64) / ENTRY_BYTES as u64
}

/// Bytes that so many volumes take.
pub(crate) fn catalog_bytes(volumes: u64) -> u64 {
    HEADER_BYTES as u64 + volumes * ENTRY_BYTES as u64
}

/// Bytes of a catalog's first block that say how long it is: those of the header.
pub(crate) fn catalog_bytes_used(block: &[u8]) -> Option<u64> {
    let (header, _) = RawHeader::read_from_prefix(block).ok()?;
    (header.magic == MAGIC).then(|| catalog_bytes(header.entries.get() as u64))
}

impl CatalogImage {
    /// Its bytes. Panics on a name that is too long: whoever makes volumes checks it.
    pub(crate) fn encode(&self, pool: Uuid) -> Vec<u8> {
        let entries: Vec<u8> = self.volumes.iter().flat_map(encode_entry).collect();
        let header = encode_header(pool, self.generation, self.volumes.len() as u32, self.next_id, |header| {
            base::crc::crc32c_slices([header, &entries])
        });
        [&header[..], &entries].concat()
    }

    /// The catalog at the start of `bytes`, its blocks.
    pub(crate) fn decode(bytes: &[u8], pool: Uuid) -> Result<CatalogImage, Malformed> {
        let (header, rest) = RawHeader::read_from_prefix(bytes).map_err(|_| Malformed("it is too short"))?;
        if header.magic != MAGIC {
            return Err(Malformed("it has no magic number"));
        }
        let entries_bytes = header.entries.get() as usize * ENTRY_BYTES;
        let entries = rest.get(..entries_bytes).ok_or(Malformed("it has more entries than room"))?;
        let zeroed = RawHeader { crc: U32::ZERO, ..header };
        if base::crc::crc32c_slices([zeroed.as_bytes(), entries]) != header.crc.get() {
            return Err(Malformed("its checksum is wrong"));
        }
        if header.pool != pool.into_bytes() {
            return Err(Malformed("it belongs to another pool"));
        }
        let volumes: Vec<VolumeEntry> =
            entries.chunks_exact(ENTRY_BYTES).map(decode_entry).collect::<Result<_, _>>()?;
        let ascending = volumes.windows(2).all(|pair| pair[0].id < pair[1].id);
        let next_id = header.next_id.get();
        if !ascending || volumes.first().is_some_and(|first| first.id == 0) {
            return Err(Malformed("its volumes are not in order"));
        }
        if next_id == 0 || volumes.last().is_some_and(|last| last.id >= next_id) {
            return Err(Malformed("it would number a volume twice"));
        }
        // A layer is younger than what it lies over: so there are no circles.
        let is_below = |volume: &VolumeEntry| {
            let below = volumes.binary_search_by_key(&volume.parent, |other| other.id);
            let is_right = |below: &VolumeEntry| below.state != VolumeState::Live && below.origin == volume.origin;
            volume.parent < volume.id && below.is_ok_and(|below| is_right(&volumes[below]))
        };
        if volumes.iter().any(|volume| volume.origin > volume.id || volume.parent != 0 && !is_below(volume)) {
            return Err(Malformed("a volume lies over what cannot be below it"));
        }
        Ok(CatalogImage { generation: generation(header.generation.get())?, next_id, volumes })
    }
}

/// The header of a catalog; `sum` gives the checksum of it and the entries, from its bytes without one.
pub(crate) fn encode_header(
    pool: Uuid,
    generation: u64,
    entries: u32,
    next_id: u32,
    sum: impl FnOnce(&[u8]) -> u32,
) -> [u8; HEADER_BYTES] {
    let header = RawHeader {
        magic: MAGIC,
        crc: U32::ZERO,
        reserved_a: U32::ZERO,
        pool: pool.into_bytes(),
        generation: generation.into(),
        entries: entries.into(),
        next_id: next_id.into(),
        reserved_b: [0; 16],
    };
    let crc = sum(header.as_bytes()).into();
    zerocopy::transmute!(RawHeader { crc, ..header })
}

/// The bytes of an entry. Panics on a name that is too long: whoever makes volumes checks it.
pub(crate) fn encode_entry(volume: &VolumeEntry) -> [u8; ENTRY_BYTES] {
    let mut name = [0; VOLUME_NAME_BYTES_MAX];
    name[..volume.name.len()].copy_from_slice(volume.name.as_bytes());
    let raw = RawEntry {
        id: volume.id.into(),
        state: match volume.state {
            VolumeState::Live => 1,
            VolumeState::Deleting => 2,
            VolumeState::Snapshot => 3,
        },
        reserved_a: 0,
        block_shift: volume.block_shift.into(),
        blocks: volume.blocks.into(),
        uuid: volume.uuid.into_bytes(),
        created_s: volume.created_s.into(),
        name,
        overlap: volume.overlap.into(),
        parent: volume.parent.into(),
        // Its own number is left out: so it is in pools that have no layers.
        origin: if volume.origin == volume.id { 0 } else { volume.origin }.into(),
        // As is what it holds, where that is its own.
        content: if volume.content == volume.uuid { Uuid::nil() } else { volume.content }.into_bytes(),
        reserved_b: [0; 56],
    };
    zerocopy::transmute!(raw)
}

fn decode_entry(bytes: &[u8]) -> Result<VolumeEntry, Malformed> {
    let raw = RawEntry::read_from_bytes(bytes).expect("the sizes are equal");
    let used = raw.name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let (block_shift, uuid, content) =
        (raw.block_shift.get(), Uuid::from_bytes(raw.uuid), Uuid::from_bytes(raw.content));
    if !matches!(block_shift, 9 | 12) {
        return Err(Malformed("a volume has an unknown block size"));
    }
    Ok(VolumeEntry {
        id: raw.id.get(),
        state: match raw.state {
            1 => VolumeState::Live,
            2 => VolumeState::Deleting,
            3 => VolumeState::Snapshot,
            _ => return Err(Malformed("a volume has an unknown state")),
        },
        block_shift,
        blocks: raw.blocks.get(),
        uuid,
        content: if content.is_nil() { uuid } else { content },
        created_s: raw.created_s.get(),
        name: std::str::from_utf8(&raw.name[..used])
            .map_err(|_| Malformed("a volume's name is not UTF-8"))?
            .to_string(),
        parent: raw.parent.get(),
        overlap: raw.overlap.get(),
        origin: match raw.origin.get() {
            0 => raw.id.get(),
            origin => origin,
        },
    })
}
