//! What a mirror keeps on each leg: two superblock slots and the dirty-region bitmap. See `docs/formats/mirror.md`.

use crate::openings::{Openings, RawOpenings};
use crate::slots::{HEADER_BYTES, Kind, Slots, Stamp, UNIT_BYTES, Unit};
use base::crc32c;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const KIND: Kind = Kind { magic: *b"RMDMIRR\x01", version: 1, copies: 2 };
pub(super) const PAGE_MAGIC: [u8; 8] = *b"RMDMIRB\x01";
/// Most legs of a mirror.
pub const LEGS_MAX: usize = 8;
const PAGE_HEADER_BYTES: usize = 32;
/// Regions that one bitmap page covers.
pub(super) const PAGE_REGIONS: usize = (UNIT_BYTES - PAGE_HEADER_BYTES) * 8;
/// Most bitmap pages: a million regions, one word of memory each.
pub(super) const PAGES_MAX: usize = 32;

/// What the mirror knows of a leg.
///
/// ```text
/// InSync --write failed or absent--> Failed --back, short absence--> RecoveringDirty --copied--> InSync
///                                      \----replaced or too old----> RecoveringFull ---copied--> InSync
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegState {
    /// Has every acknowledged write.
    InSync,
    /// Lacks writes made since it failed; not used.
    Failed,
    /// Written, not read; the regions that are marked dirty are being copied to it.
    RecoveringDirty,
    /// Written, not read; everything is being copied to it.
    RecoveringFull,
}

impl LegState {
    /// As messages call it.
    pub fn words(self) -> &'static str {
        match self {
            LegState::InSync => "in sync",
            LegState::Failed => "failed",
            LegState::RecoveringDirty | LegState::RecoveringFull => "copying",
        }
    }

    pub(super) const fn code(self) -> u8 {
        match self {
            LegState::InSync => 1,
            LegState::Failed => 2,
            LegState::RecoveringDirty => 3,
            LegState::RecoveringFull => 4,
        }
    }

    pub(super) fn of_code(code: u8) -> Option<LegState> {
        Some(match code {
            1 => LegState::InSync,
            2 => LegState::Failed,
            3 => LegState::RecoveringDirty,
            4 => LegState::RecoveringFull,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSuperblock {
    block_size: U32,
    leg_index: u8,
    leg_count: u8,
    reserved: [u8; 2],
    data_start: U64,
    data_blocks: U64,
    region_blocks: U64,
    pages: U32,
    reserved_2: U32,
    legs: [RawLeg; LEGS_MAX],
    openings: RawOpenings,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawLeg {
    id: [u8; 16],
    failed_generation: U64,
    state: u8,
    reserved: [u8; 7],
}

const _: () = assert!(size_of::<RawSuperblock>() == 808 && size_of::<RawLeg>() == 32);
const _: () = assert!(HEADER_BYTES + std::mem::offset_of!(RawSuperblock, legs) == 80);
const _: () = assert!(HEADER_BYTES + std::mem::offset_of!(RawSuperblock, openings) == 336);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LegRecord {
    pub(super) id: [u8; 16],
    pub(super) state: LegState,
    /// The generation that first called the leg failed; 0 when none has.
    pub(super) failed_generation: u64,
}

impl LegRecord {
    /// The identity of a leg that is new in a mirror whose next generation is one after `generation`.
    pub(super) fn new_id(generation: u64, index: usize) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(generation + 1).to_le_bytes());
        id[8..].copy_from_slice(&(index as u64).to_le_bytes());
        id
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) mirror_id: [u8; 16],
    pub(super) generation: u64,
    pub(super) block_size: u32,
    pub(super) leg_index: usize,
    pub(super) data_start: u64,
    pub(super) data_blocks: u64,
    pub(super) region_blocks: u64,
    pub(super) pages: u32,
    pub(super) legs: Vec<LegRecord>,
    /// Those that have led to this generation.
    pub(super) openings: Openings,
}

impl Superblock {
    pub(super) fn encode(&self, leg_index: usize) -> Unit {
        let empty = RawLeg { id: [0; 16], failed_generation: U64::ZERO, state: 0, reserved: [0; 7] };
        let mut legs = [empty; LEGS_MAX];
        for (raw, leg) in legs.iter_mut().zip(&self.legs) {
            (raw.id, raw.state, raw.failed_generation) = (leg.id, leg.state.code(), leg.failed_generation.into());
        }
        let raw = RawSuperblock {
            block_size: self.block_size.into(),
            leg_index: leg_index as u8,
            leg_count: self.legs.len() as u8,
            reserved: [0; 2],
            data_start: self.data_start.into(),
            data_blocks: self.data_blocks.into(),
            region_blocks: self.region_blocks.into(),
            pages: self.pages.into(),
            reserved_2: U32::ZERO,
            legs,
            openings: self.openings.encode(),
        };
        KIND.seal(Stamp { id: self.mirror_id, generation: self.generation }, raw.as_bytes())
    }

    /// Whether the same blocks are in the same places, as far as both have them.
    pub(super) fn is_laid_out_like(&self, other: &Superblock) -> bool {
        let places = |it: &Superblock| (it.block_size, it.data_start, it.legs.len());
        places(self) == places(other)
    }

    /// `None` when the body is not one of a possible superblock.
    pub(super) fn decode(stamp: Stamp, body: &[u8]) -> Option<Superblock> {
        let raw = RawSuperblock::read_from_prefix(body).ok()?.0;
        let (leg_count, leg_index, pages) = (raw.leg_count as usize, raw.leg_index as usize, raw.pages.get());
        let sane = (1..=LEGS_MAX).contains(&leg_count)
            && leg_index < leg_count
            && (1..=PAGES_MAX as u32).contains(&pages)
            && raw.data_blocks > 0
            && raw.region_blocks > 0
            && raw.data_blocks.get().div_ceil(raw.region_blocks.get()) <= pages as u64 * PAGE_REGIONS as u64
            && raw.data_start.get() >= front_blocks(raw.block_size.get(), pages)
            && raw.data_start.get().checked_add(raw.data_blocks.get()).is_some();
        if !sane {
            return None;
        }
        let leg = |raw: &RawLeg| {
            let state = LegState::of_code(raw.state)?;
            Some(LegRecord { id: raw.id, state, failed_generation: raw.failed_generation.get() })
        };
        Some(Superblock {
            mirror_id: stamp.id,
            generation: stamp.generation,
            block_size: raw.block_size.get(),
            leg_index,
            data_start: raw.data_start.get(),
            data_blocks: raw.data_blocks.get(),
            region_blocks: raw.region_blocks.get(),
            pages,
            legs: raw.legs[..leg_count].iter().map(leg).collect::<Option<Vec<_>>>()?,
            openings: Openings::decode(&raw.openings),
        })
    }
}

/// Blocks at the start of a leg that superblocks and bitmap pages take.
pub(super) fn front_blocks(block_size: u32, pages: u32) -> u64 {
    (KIND.copies + pages as u64) * Slots::unit_blocks(block_size.max(1))
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawPage {
    magic: [u8; 8],
    /// CRC32C of all 4,096 bytes with this field zero.
    crc: U32,
    index: U32,
    mirror_id: [u8; 16],
    bits: [u8; UNIT_BYTES - PAGE_HEADER_BYTES],
}

const _: () = assert!(size_of::<RawPage>() == UNIT_BYTES && std::mem::offset_of!(RawPage, bits) == PAGE_HEADER_BYTES);

/// The dirty bits of up to [`PAGE_REGIONS`] regions.
#[derive(Clone)]
pub(super) struct BitmapPage {
    pub(super) bits: [u8; UNIT_BYTES - PAGE_HEADER_BYTES],
}

impl BitmapPage {
    pub(super) fn filled(dirty: bool) -> BitmapPage {
        BitmapPage { bits: [if dirty { 0xFF } else { 0 }; UNIT_BYTES - PAGE_HEADER_BYTES] }
    }

    pub(super) fn get(&self, region: usize) -> bool {
        self.bits[region / 8] & 1 << (region % 8) != 0
    }

    pub(super) fn set(&mut self, region: usize, dirty: bool) {
        let mask = 1 << (region % 8);
        if dirty { self.bits[region / 8] |= mask } else { self.bits[region / 8] &= !mask }
    }

    /// Dirty is what either calls so.
    pub(super) fn unite(&mut self, other: &BitmapPage) {
        self.bits.iter_mut().zip(other.bits).for_each(|(mine, theirs)| *mine |= theirs);
    }

    pub(super) fn encode(&self, mirror_id: [u8; 16], index: usize) -> [u8; UNIT_BYTES] {
        let index = U32::from(index as u32);
        let mut raw = RawPage { magic: PAGE_MAGIC, crc: U32::ZERO, index, mirror_id, bits: self.bits };
        raw.crc = crc32c(raw.as_bytes()).into();
        raw.as_bytes().try_into().expect("the layout is one unit long")
    }

    /// `None` when it is damaged, torn or another one.
    pub(super) fn decode(bytes: &[u8], mirror_id: [u8; 16], index: usize) -> Option<BitmapPage> {
        let (mut raw, _) = RawPage::read_from_prefix(bytes).ok()?;
        let crc = std::mem::replace(&mut raw.crc, U32::ZERO);
        let ours = raw.magic == PAGE_MAGIC && raw.index.get() as usize == index && raw.mirror_id == mirror_id;
        (ours && crc32c(raw.as_bytes()) == crc.get()).then_some(BitmapPage { bits: raw.bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Content;

    fn example() -> Superblock {
        let mut openings = Openings::default();
        openings.begin(70, 5);
        openings.begin(76, 6);
        let leg = |n| LegRecord { id: [n; 16], state: LegState::InSync, failed_generation: n as u64 };
        Superblock {
            mirror_id: [9; 16],
            generation: 77,
            block_size: 4096,
            leg_index: 1,
            data_start: 256,
            data_blocks: 1000,
            region_blocks: 16,
            pages: 1,
            legs: vec![leg(1), leg(2), leg(3)],
            openings,
        }
    }

    #[test]
    fn a_superblock_survives_the_round_trip_and_an_impossible_one_is_refused() {
        let bytes = example().encode(1);
        let Content::Record(stamp, body) = KIND.open(&bytes) else { panic!("no record") };
        assert_eq!(Superblock::decode(stamp, body), Some(example()));
        assert_eq!(Superblock::decode(stamp, &body[..200]), None);
        // As a program of before openings writes it.
        let older = Superblock { openings: Openings::default(), ..example() }.encode(1);
        assert!(
            older[336..].iter().all(|byte| *byte == 0) && bytes[..8] == older[..8] && bytes[16..336] == older[16..336]
        );
        // The number of legs, their index, the pages.
        for at in [44, 45, 72] {
            let mut wrong = bytes;
            wrong[at] = 200;
            assert_eq!(Superblock::decode(stamp, &wrong[HEADER_BYTES..]), None, "byte {at}");
        }
        // Data over the bitmap.
        for (data_start, is_possible) in [(3, true), (2, false), (0, false)] {
            let bytes = Superblock { data_start, ..example() }.encode(1);
            assert_eq!(Superblock::decode(stamp, &bytes[HEADER_BYTES..]).is_some(), is_possible, "{data_start}");
        }
    }

    #[test]
    fn a_bitmap_page_survives_the_round_trip_and_a_damaged_one_is_none() {
        let mut page = BitmapPage::filled(false);
        page.set(100, true);
        let bytes = page.encode([9; 16], 2);
        let back = BitmapPage::decode(&bytes, [9; 16], 2).expect("it is whole");
        assert!(back.get(100) && !back.get(99));
        assert!(BitmapPage::decode(&bytes, [9; 16], 1).is_none() && BitmapPage::decode(&bytes, [8; 16], 2).is_none());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(BitmapPage::decode(&damaged, [9; 16], 2).is_none(), "bit {bit}");
        }
    }
}
