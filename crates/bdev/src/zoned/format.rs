//! What a zoned device keeps on the device below: a superblock and the zone table. See `docs/formats/zoned.md`.

use super::Geometry;
use crate::slots::{HEADER_BYTES, Kind, Stamp, UNIT_BYTES, Unit};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

pub(crate) const SUPERBLOCK: Kind = Kind { magic: *b"RMDZONE\x01", version: 1, copies: 2 };
/// Of devices whose zones have descriptor extensions: builds that do not know these refuse it.
pub(super) const EXTENDED_SUPERBLOCK: Kind = Kind { version: 2, ..SUPERBLOCK };
pub(super) const EXTENSION: Kind = Kind { magic: *b"RMDZEXT\x01", version: 1, copies: 1 };
pub(super) const PAGE: Kind = Kind { magic: *b"RMDZTAB\x01", version: 1, copies: 2 };
/// Zones of one page of the table.
pub(super) const PAGE_ZONES: usize = (UNIT_BYTES - HEADER_BYTES - size_of::<RawPageHead>()) / size_of::<U64>();

const CONDITION_SHIFT: u32 = 56;
/// In the high byte of an entry, beside the condition.
const EXTENDED: u64 = 0x10;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSuperblock {
    block_size: U32,
    /// Since version 2.
    extension_bytes: U32,
    zone_blocks: U64,
    capacity_blocks: U64,
    zones: U64,
    data_start: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawPageHead {
    index: U32,
    zones: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawExtensionHead {
    zone: U32,
    bytes: U32,
}

const _: () =
    assert!(HEADER_BYTES + size_of::<RawExtensionHead>() + super::ZONE_EXTENSION_BYTES_MAX as usize <= UNIT_BYTES);
const _: () = assert!(size_of::<RawSuperblock>() == 40 && size_of::<RawPageHead>() == 8 && PAGE_ZONES == 506);

/// What is kept of a zone's state. What is open is not: no zone is open after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Condition {
    /// Empty, closed or full, by what is written.
    Normal = 0,
    /// Full before it was written to its end.
    Finished = 1,
    ReadOnly = 2,
    Offline = 3,
}

/// What is kept of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Blocks from the zone's first on that are written and durable.
    pub(super) written: u64,
    pub(super) condition: Condition,
    /// Its extension counts.
    pub(super) extended: bool,
}

impl Entry {
    pub(super) const EMPTY: Entry = Entry { written: 0, condition: Condition::Normal, extended: false };

    fn encode(self) -> U64 {
        assert!(self.written >> CONDITION_SHIFT == 0, "a zone is shorter than 2^56 blocks");
        let extended = if self.extended { EXTENDED } else { 0 };
        U64::new(self.written | (self.condition as u64 | extended) << CONDITION_SHIFT)
    }

    fn decode(raw: U64, geometry: &Geometry) -> Option<Entry> {
        let written = raw.get() & ((1 << CONDITION_SHIFT) - 1);
        let (high, extended) = (raw.get() >> CONDITION_SHIFT, raw.get() >> CONDITION_SHIFT & EXTENDED != 0);
        let condition = match high & !EXTENDED {
            0 => Condition::Normal,
            1 => Condition::Finished,
            2 => Condition::ReadOnly,
            3 => Condition::Offline,
            _ => return None,
        };
        let is_possible = written <= geometry.capacity_blocks && (!extended || geometry.extension_bytes > 0);
        is_possible.then_some(Entry { written, condition, extended })
    }
}

/// Which device it is, and its geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) stamp: Stamp,
    pub(super) geometry: Geometry,
}

impl Superblock {
    pub(super) fn encode(&self) -> Unit {
        let Geometry { block_size, zone_blocks, capacity_blocks, zones, data_start, extension_bytes } = self.geometry;
        let raw = RawSuperblock {
            block_size: block_size.into(),
            extension_bytes: extension_bytes.into(),
            zone_blocks: zone_blocks.into(),
            capacity_blocks: capacity_blocks.into(),
            zones: zones.into(),
            data_start: data_start.into(),
        };
        let kind = if extension_bytes > 0 { EXTENDED_SUPERBLOCK } else { SUPERBLOCK };
        kind.seal(self.stamp, raw.as_bytes())
    }

    pub(super) fn decode(stamp: Stamp, body: &[u8]) -> Option<Superblock> {
        let (raw, rest) = RawSuperblock::read_from_prefix(body).ok()?;
        let geometry = Geometry {
            block_size: raw.block_size.get(),
            zone_blocks: raw.zone_blocks.get(),
            capacity_blocks: raw.capacity_blocks.get(),
            zones: raw.zones.get(),
            data_start: raw.data_start.get(),
            extension_bytes: raw.extension_bytes.get(),
        };
        let is_reserved_zero = rest.iter().all(|byte| *byte == 0);
        (is_reserved_zero && geometry.is_possible()).then_some(Superblock { stamp, geometry })
    }
}

/// Encodes the extension of a zone's descriptor.
pub(super) fn encode_extension(stamp: Stamp, zone: usize, bytes: &[u8]) -> Unit {
    let head = RawExtensionHead { zone: (zone as u32).into(), bytes: (bytes.len() as u32).into() };
    EXTENSION.seal(stamp, &[head.as_bytes(), bytes].concat())
}

/// The extension in a body that was found where that of a zone is kept; none if it is another one's, or not so long.
pub(super) fn decode_extension(body: &[u8], zone: usize, len: usize) -> Option<&[u8]> {
    let (head, rest) = RawExtensionHead::read_from_prefix(body).ok()?;
    let (bytes, unused) = rest.split_at_checked(len)?;
    let is_it = head.zone.get() as usize == zone && head.bytes.get() as usize == len;
    (is_it && unused.iter().all(|byte| *byte == 0)).then_some(bytes)
}

/// Encodes page `index` of the table.
pub(super) fn encode_page(stamp: Stamp, index: usize, entries: &[Entry]) -> Unit {
    let mut body = [0; UNIT_BYTES - HEADER_BYTES];
    let head = RawPageHead { index: (index as u32).into(), zones: (entries.len() as u32).into() };
    body[..size_of::<RawPageHead>()].copy_from_slice(head.as_bytes());
    let slots = body[size_of::<RawPageHead>()..].chunks_exact_mut(size_of::<U64>());
    for (slot, entry) in slots.zip(entries) {
        slot.copy_from_slice(entry.encode().as_bytes());
    }
    PAGE.seal(stamp, &body)
}

/// The entries of a body that was found where page `index` of device `id` is kept; none if it is another one or cannot be.
pub(super) fn decode_page(
    stamp: Stamp,
    body: &[u8],
    id: &[u8; 16],
    index: usize,
    geometry: &Geometry,
) -> Option<Vec<Entry>> {
    let (head, rest) = RawPageHead::read_from_prefix(body).ok()?;
    let zones = geometry.zones_of_page(index);
    if stamp.id != *id || head.index.get() as usize != index || head.zones.get() as usize != zones {
        return None;
    }
    let mut raw = [U64::new_zeroed(); PAGE_ZONES];
    raw.as_mut_bytes().copy_from_slice(rest.get(..PAGE_ZONES * size_of::<U64>())?);
    let (used, unused) = raw.split_at(zones);
    let is_reserved_zero = unused.iter().all(|raw| raw.get() == 0);
    is_reserved_zero.then(|| used.iter().map(|raw| Entry::decode(*raw, geometry)).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Content;

    const GEOMETRY: Geometry = Geometry {
        block_size: 4096,
        zone_blocks: 64,
        capacity_blocks: 50,
        zones: 600,
        data_start: 8,
        extension_bytes: 0,
    };
    const STAMP: Stamp = Stamp { id: [7; 16], generation: 3 };

    fn open<T>(kind: Kind, unit: &Unit, decode: impl Fn(Stamp, &[u8]) -> Option<T>) -> Option<T> {
        match kind.open(unit) {
            Content::Record(stamp, body) => decode(stamp, body),
            _ => None,
        }
    }

    #[test]
    fn superblocks_and_pages_survive_the_round_trip_and_no_flipped_bit_does() {
        let superblock = Superblock { stamp: STAMP, geometry: GEOMETRY };
        let unit = superblock.encode();
        assert_eq!(open(SUPERBLOCK, &unit, Superblock::decode), Some(superblock));
        let conditions = [Condition::Normal, Condition::Finished, Condition::ReadOnly, Condition::Offline];
        let entries: Vec<Entry> = (0..94)
            .map(|n| Entry { written: n % 51, condition: conditions[n as usize % 4], extended: false })
            .collect();
        let page = encode_page(STAMP, 1, &entries);
        let decode = |stamp, body: &[u8]| decode_page(stamp, body, &STAMP.id, 1, &GEOMETRY);
        assert_eq!(open(PAGE, &page, decode), Some(entries));
        for bit in 0..UNIT_BYTES * 8 {
            let (mut unit, mut page) = (unit, page);
            unit[bit / 8] ^= 1 << (bit % 8);
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(open(SUPERBLOCK, &unit, Superblock::decode).is_none(), "bit {bit}");
            assert!(open(PAGE, &page, decode).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn the_bytes_on_disk_are_those_of_version_1() {
        let entries = [Entry { written: 50, ..Entry::EMPTY }, Entry::EMPTY];
        let two = Geometry { zones: 2, ..GEOMETRY };
        let units = [Superblock { stamp: STAMP, geometry: two }.encode(), encode_page(STAMP, 0, &entries)];
        let crcs = units.map(|unit| base::crc32c(&unit[..96]));
        assert_eq!(crcs, [0x041484d5, 0x8a734fa4], "{crcs:#x?}: bytes on disk must not change without a new version");
    }

    #[test]
    fn pages_of_others_and_impossible_entries_are_refused() {
        let entries = vec![Entry { written: 51, ..Entry::EMPTY }; 94];
        let page = encode_page(STAMP, 1, &entries);
        let decode = |id: [u8; 16], index| move |stamp, body: &[u8]| decode_page(stamp, body, &id, index, &GEOMETRY);
        assert_eq!(open(PAGE, &page, decode(STAMP.id, 1)), None, "more than the capacity");
        let page = encode_page(STAMP, 1, &[Entry::EMPTY; 94]);
        assert!(open(PAGE, &page, decode(STAMP.id, 1)).is_some());
        assert_eq!(open(PAGE, &page, decode([8; 16], 1)), None);
        assert_eq!(open(PAGE, &page, decode(STAMP.id, 0)), None);
        let impossible = Geometry { capacity_blocks: 65, ..GEOMETRY };
        let unit = Superblock { stamp: STAMP, geometry: impossible }.encode();
        assert!(open(SUPERBLOCK, &unit, Superblock::decode).is_none());
    }
}
