//! The label of a zone-bands device: on its head, and in the first zone of its zoned device. See `docs/formats/zone-bands.md`.

use crate::slots::{HEADER_BYTES, Kind, Slots, Stamp, Unit};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const HEAD_LABEL: Kind = Kind { magic: *b"RMDZBHD\x01", version: 1, copies: 2 };
pub(crate) const ZONE_LABEL: Kind = Kind { magic: *b"RMDZBZN\x01", version: 1, copies: 2 };
/// Zones at the start of the zoned device that hold its label.
pub(super) const LABEL_ZONES: u64 = 1;
/// Features that this code knows; a label with others is not used.
pub(super) const FEATURES_KNOWN: u64 = 0;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawLabel {
    features: U64,
    block_size: U32,
    row_blocks: U32,
    head_start: U64,
    head_blocks: U64,
    zone_blocks: U64,
    zone_size_blocks: U64,
    zones: U64,
}

const _: () = assert!(size_of::<RawLabel>() == 56 && HEADER_BYTES == 40);

/// Where everything is; lengths and places are in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) block_size: u32,
    /// Blocks of a row: what a zone is written in multiples of.
    pub(super) row: u32,
    /// First block of the head on the head device.
    pub(super) head_start: u64,
    /// Blocks of the head.
    pub(super) head: u64,
    /// Blocks of a zone that are used: whole rows.
    pub(super) zone: u64,
    /// Blocks from one zone to the next on the zoned device.
    pub(super) zone_size: u64,
    /// Zones that are used, without those of the label.
    pub(super) zones: u64,
}

impl Geometry {
    /// Blocks of the device.
    pub(super) fn blocks(&self) -> u64 {
        self.head + self.zones * self.zone
    }

    /// The zone with a block behind the head, and where in it.
    pub(super) fn split(&self, lba: u64) -> (usize, u64) {
        let behind = lba - self.head;
        ((behind / self.zone) as usize, behind % self.zone)
    }

    /// First block of a zone of the device.
    pub(super) fn start(&self, zone: usize) -> u64 {
        self.head + zone as u64 * self.zone
    }

    /// First block of a zone on the zoned device.
    pub(super) fn start_below(&self, zone: usize) -> u64 {
        (LABEL_ZONES + zone as u64) * self.zone_size
    }

    /// Whether all places can be computed without leaving 64 bits.
    fn is_sane(&self) -> bool {
        let Geometry { block_size, row, head_start, head, zone, zone_size, zones } = *self;
        let unit = Slots::unit_blocks(block_size.max(1));
        let ends = |count: u64, each: u64| count.checked_mul(each).is_some_and(|blocks| blocks < 1 << 56);
        block_size.is_power_of_two()
            && (512..=65_536).contains(&block_size)
            && row > 0
            && zone > 0
            && zone.is_multiple_of(row as u64)
            && zone <= zone_size
            && HEAD_LABEL.copies * unit <= head_start
            && head > 0
            && head_start.checked_add(head).is_some_and(|end| end < 1 << 56)
            && zones > 0
            && zones < 1 << 40
            && ends(zones + LABEL_ZONES, zone_size)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// The same on both devices, and random.
    pub(super) id: [u8; 16],
    pub(super) features: u64,
    pub(super) geometry: Geometry,
}

impl Label {
    pub(super) fn encode(&self, kind: Kind) -> Unit {
        let Geometry { block_size, row, head_start, head, zone, zone_size, zones } = self.geometry;
        let raw = RawLabel {
            features: self.features.into(),
            block_size: block_size.into(),
            row_blocks: row.into(),
            head_start: head_start.into(),
            head_blocks: head.into(),
            zone_blocks: zone.into(),
            zone_size_blocks: zone_size.into(),
            zones: zones.into(),
        };
        kind.seal(Stamp { id: self.id, generation: 1 }, raw.as_bytes())
    }

    /// `None` when the body is not one of a possible label. With features that are not known nothing else is looked at: who
    /// opens it has to.
    pub(super) fn decode(stamp: Stamp, body: &[u8]) -> Option<Label> {
        let raw = RawLabel::read_from_prefix(body).ok()?.0;
        let geometry = Geometry {
            block_size: raw.block_size.get(),
            row: raw.row_blocks.get(),
            head_start: raw.head_start.get(),
            head: raw.head_blocks.get(),
            zone: raw.zone_blocks.get(),
            zone_size: raw.zone_size_blocks.get(),
            zones: raw.zones.get(),
        };
        let features = raw.features.get();
        let is_usable = features & !FEATURES_KNOWN != 0 || geometry.is_sane();
        is_usable.then_some(Label { id: stamp.id, features, geometry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Content;
    use base::Rng;

    fn example() -> Label {
        let geometry =
            Geometry { block_size: 4096, row: 16, head_start: 256, head: 4096, zone: 48, zone_size: 64, zones: 77 };
        Label { id: [9; 16], features: 0, geometry }
    }

    #[test]
    fn a_label_survives_the_round_trip_and_an_impossible_one_is_refused() {
        let bytes = example().encode(ZONE_LABEL);
        let Content::Record(stamp, body) = ZONE_LABEL.open(&bytes) else { panic!("no record") };
        assert_eq!(Label::decode(stamp, body), Some(example()));
        assert_eq!(HEAD_LABEL.open(&bytes), Content::Other);
        assert_eq!(Label::decode(stamp, &body[..50]), None);
        // Block size, row, start and size of the head, blocks of a zone, from one to the next, and zones.
        for (at, byte) in [(48, 1), (52, 17), (57, 0), (65, 0), (72, 49), (80, 40), (88, 0), (95, 255)] {
            let mut wrong = bytes;
            wrong[at] = byte;
            assert_eq!(Label::decode(stamp, &wrong[HEADER_BYTES..]), None, "byte {at}");
        }
    }

    #[test]
    fn hostile_bytes_give_a_geometry_that_can_be_computed_with_or_none() {
        let whole = example().encode(HEAD_LABEL);
        let Content::Record(stamp, _) = HEAD_LABEL.open(&whole) else { panic!("no record") };
        let mut rng = Rng::new(4);
        for _ in 0..50_000 {
            let mut hostile = whole;
            (0..rng.between(1, 6)).for_each(|_| hostile[rng.between(40, 96) as usize] = rng.next_u64() as u8);
            if let Some(found) = Label::decode(stamp, &hostile[HEADER_BYTES..])
                && found.features & !FEATURES_KNOWN == 0
            {
                let geometry = found.geometry;
                let (zone, at) = geometry.split(geometry.blocks() - 1);
                assert!((zone as u64) < geometry.zones && at == geometry.zone - 1);
                assert!(geometry.start(zone) + at < geometry.blocks() && geometry.start_below(zone) > 0);
            }
        }
    }

    /// The bytes of the format. A change here is a change of the format: it needs a version or a feature.
    #[test]
    fn the_bytes_are_those_of_the_format() {
        let bytes = example().encode(HEAD_LABEL);
        let hex = |range: std::ops::Range<usize>| -> String {
            bytes[range].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(hex(0..8), "524d445a42484401");
        assert_eq!(hex(40..64), "000000000000000000100000100000000001000000000000");
        assert_eq!(hex(64..96), "0010000000000000300000000000000040000000000000004d00000000000000");
    }
}
