//! What a parity device keeps on each member: two superblock slots. See `docs/formats/parity.md`.

use super::rows::Rows;
use crate::openings::{Openings, RawOpenings, are_known_to_differ};
use crate::slots::{CHECKSUM_AT, HEADER_BYTES, Kind, Slots, Stamp, Unit};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const KIND: Kind = Kind { magic: *b"RMDPRTY\x01", version: 1, copies: 2 };
/// Fewest members: with two, a mirror does the same with less.
pub const PARITY_MEMBERS_MIN: usize = 3;
/// Most members.
pub const PARITY_MEMBERS_MAX: usize = 16;
/// Features that this code knows; a superblock with others is not used.
pub(super) const FEATURES_KNOWN: u64 = 0;
/// Flag: the heads of all members in sync are equal.
const CLEAN: u8 = 1;

/// What the device knows of a member.
///
/// ```text
/// InSync --write failed or absent--> Failed --taken in--> Rebuilding --all rows written--> InSync
///                                      ^--write failed or absent--/
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Has its part of every acknowledged write.
    InSync,
    /// Lacks writes made since it failed; not used.
    Failed,
    /// Written; read only where it has been rebuilt.
    Rebuilding,
}

impl MemberState {
    /// As messages call it.
    pub fn words(self) -> &'static str {
        match self {
            MemberState::InSync => "in sync",
            MemberState::Failed => "failed",
            MemberState::Rebuilding => "rebuilding",
        }
    }

    pub(super) const fn code(self) -> u8 {
        match self {
            MemberState::InSync => 1,
            MemberState::Failed => 2,
            MemberState::Rebuilding => 3,
        }
    }

    pub(super) fn of_code(code: u8) -> Option<MemberState> {
        Some(match code {
            1 => MemberState::InSync,
            2 => MemberState::Failed,
            3 => MemberState::Rebuilding,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSuperblock {
    features: U64,
    block_size: U32,
    member_index: u8,
    member_count: u8,
    flags: u8,
    reserved: u8,
    chunk_blocks: U32,
    reserved_2: U32,
    data_start: U64,
    head_blocks: U64,
    rows: U64,
    members: [RawMember; PARITY_MEMBERS_MAX],
    base_generation: U64,
    base_print: U32,
    reserved_3: U32,
    openings: RawOpenings,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawMember {
    id: [u8; 16],
    rebuilt_rows: U64,
    state: u8,
    reserved: [u8; 7],
}

const _: () = assert!(size_of::<RawSuperblock>() == 1088 && size_of::<RawMember>() == 32);
const _: () = assert!(HEADER_BYTES + std::mem::offset_of!(RawSuperblock, members) == 88);
const _: () = assert!(HEADER_BYTES + std::mem::offset_of!(RawSuperblock, openings) == 616);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberRecord {
    /// Another one for each device that takes this place.
    pub(super) id: [u8; 16],
    pub(super) state: MemberState,
    /// Of a member that is being rebuilt: rows from the first on that it has, durably.
    pub(super) rebuilt_rows: u64,
}

/// A superblock of one device, told from others of the same generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) generation: u64,
    /// Checksum of the first member's copy without its openings: so programs of before these find the same.
    pub(super) print: u32,
    /// Which opening it is of; 0 when that is not known.
    pub(super) opening: u64,
}

impl Base {
    /// Whether both are one superblock, for all that is known.
    pub(super) fn is(&self, other: &Base) -> bool {
        self.generation == other.generation
            && self.print == other.print
            && !are_known_to_differ(self.opening, other.opening)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) array_id: [u8; 16],
    pub(super) generation: u64,
    /// What ruled when this one was made; what came between was attempted in vain.
    pub(super) base: Base,
    pub(super) features: u64,
    pub(super) block_size: u32,
    pub(super) member_index: usize,
    /// Nothing was written to the head since all members in sync had the same there.
    pub(super) clean: bool,
    pub(super) geometry: Rows,
    pub(super) members: Vec<MemberRecord>,
    /// Those that have led to this generation.
    pub(super) openings: Openings,
}

impl Superblock {
    /// What the superblocks that are made while this one rules stand on.
    pub(super) fn as_base(&self) -> Base {
        let unit = self.encode_with(0, &Openings::default());
        let print = u32::from_le_bytes(unit[CHECKSUM_AT..CHECKSUM_AT + 4].try_into().expect("four bytes"));
        Base { generation: self.generation, print, opening: self.openings.at(self.generation) }
    }

    pub(super) fn encode(&self, member_index: usize) -> Unit {
        self.encode_with(member_index, &self.openings)
    }

    fn encode_with(&self, member_index: usize, openings: &Openings) -> Unit {
        let empty = RawMember { id: [0; 16], rebuilt_rows: U64::ZERO, state: 0, reserved: [0; 7] };
        let mut members = [empty; PARITY_MEMBERS_MAX];
        for (raw, member) in members.iter_mut().zip(&self.members) {
            (raw.id, raw.state, raw.rebuilt_rows) = (member.id, member.state.code(), member.rebuilt_rows.into());
        }
        let raw = RawSuperblock {
            features: self.features.into(),
            block_size: self.block_size.into(),
            member_index: member_index as u8,
            member_count: self.members.len() as u8,
            flags: if self.clean { CLEAN } else { 0 },
            reserved: 0,
            chunk_blocks: (self.geometry.chunk as u32).into(),
            reserved_2: U32::ZERO,
            data_start: self.geometry.data_start.into(),
            head_blocks: self.geometry.head.into(),
            rows: self.geometry.rows.into(),
            members,
            base_generation: self.base.generation.into(),
            base_print: self.base.print.into(),
            reserved_3: U32::ZERO,
            openings: openings.encode(),
        };
        KIND.seal(Stamp { id: self.array_id, generation: self.generation }, raw.as_bytes())
    }

    /// `None` when the body is not one of a possible superblock. With features that are not known nothing else is looked at:
    /// who opens it has to.
    pub(super) fn decode(stamp: Stamp, body: &[u8]) -> Option<Superblock> {
        let raw = RawSuperblock::read_from_prefix(body).ok()?.0;
        let (count, member_index) = (raw.member_count as usize, raw.member_index as usize);
        let geometry = Rows {
            members: count,
            chunk: raw.chunk_blocks.get() as u64,
            data_start: raw.data_start.get(),
            head: raw.head_blocks.get(),
            rows: raw.rows.get(),
        };
        if !(PARITY_MEMBERS_MIN..=PARITY_MEMBERS_MAX).contains(&count) || member_index >= count {
            return None;
        }
        let is_known = raw.features.get() & !FEATURES_KNOWN == 0;
        if is_known && !is_sane(&geometry, raw.block_size.get(), raw.flags) {
            return None;
        }
        let member = |raw: &RawMember| {
            let state = MemberState::of_code(raw.state)?;
            Some(MemberRecord { id: raw.id, state, rebuilt_rows: raw.rebuilt_rows.get() })
        };
        let members = raw.members[..count].iter().map(member).collect::<Option<Vec<_>>>()?;
        let lacking = members.iter().filter(|member| member.state != MemberState::InSync).count();
        let is_later = stamp.generation > raw.base_generation.get();
        if !is_later || lacking > 1 || members.iter().any(|member| member.rebuilt_rows > geometry.rows) {
            return None;
        }
        let (openings, base_generation) = (Openings::decode(&raw.openings), raw.base_generation.get());
        let opening = openings.at(base_generation);
        Some(Superblock {
            array_id: stamp.id,
            generation: stamp.generation,
            base: Base { generation: base_generation, print: raw.base_print.get(), opening },
            features: raw.features.get(),
            block_size: raw.block_size.get(),
            member_index,
            clean: raw.flags & CLEAN != 0,
            geometry,
            members,
            openings,
        })
    }
}

/// Whether all places can be computed without leaving 64 bits, and one row can be written at once.
fn is_sane(geometry: &Rows, block_size: u32, flags: u8) -> bool {
    let Rows { members, chunk, data_start, head, rows } = *geometry;
    let row_blocks = (members as u64 - 1).saturating_mul(chunk);
    let unit = Slots::unit_blocks(block_size.max(1));
    block_size.is_power_of_two()
        && (512..=65_536).contains(&block_size)
        && chunk > 0
        && row_blocks.saturating_mul(block_size as u64) <= super::ROW_BYTES_MAX
        && data_start >= KIND.copies * unit
        && data_start.is_multiple_of(unit)
        && head > 0
        && head.is_multiple_of(unit)
        && rows > 0
        && flags & !CLEAN == 0
        && geometry.is_addressable()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Content;
    use base::Rng;

    fn example() -> Superblock {
        let member = |n| MemberRecord { id: [n; 16], state: MemberState::InSync, rebuilt_rows: 0 };
        let mut members: Vec<_> = (1..5).map(member).collect();
        (members[2].state, members[2].rebuilt_rows) = (MemberState::Rebuilding, 77);
        let mut openings = Openings::default();
        openings.begin(70, 6);
        openings.begin(77, 7);
        Superblock {
            array_id: [9; 16],
            generation: 77,
            base: Base { generation: 76, print: 5, opening: 6 },
            features: 0,
            block_size: 4096,
            member_index: 1,
            clean: true,
            geometry: Rows { members: 4, chunk: 16, data_start: 256, head: 4096, rows: 1000 },
            members,
            openings,
        }
    }

    #[test]
    fn a_superblock_survives_the_round_trip_and_an_impossible_one_is_refused() {
        let bytes = example().encode(1);
        let Content::Record(stamp, body) = KIND.open(&bytes) else { panic!("no record") };
        assert_eq!(Superblock::decode(stamp, body), Some(example()));
        assert_eq!(Superblock::decode(stamp, &body[..500]), None);
        // Block size, index, members, flags, chunk, start, the rows, a state, and a second member that is not in sync.
        for (at, byte) in
            [(48, 1), (52, 4), (53, 2), (53, 17), (54, 8), (56, 0), (59, 1), (65, 0), (87, 255), (112, 9), (112, 2)]
        {
            let mut wrong = bytes;
            wrong[at] = byte;
            assert_eq!(Superblock::decode(stamp, &wrong[HEADER_BYTES..]), None, "byte {at}");
        }
    }

    #[test]
    fn hostile_bytes_give_a_geometry_that_can_be_computed_with_or_none() {
        let whole = example().encode(1);
        let Content::Record(stamp, _) = KIND.open(&whole) else { panic!("no record") };
        let mut rng = Rng::new(4);
        for _ in 0..50_000 {
            let mut hostile = whole;
            (0..rng.between(1, 6)).for_each(|_| hostile[rng.between(40, 250) as usize] = rng.next_u64() as u8);
            if let Some(found) = Superblock::decode(stamp, &hostile[HEADER_BYTES..])
                && found.features & !FEATURES_KNOWN == 0
            {
                let last = found.geometry.place(found.geometry.blocks() - 1);
                assert!(last.row < found.geometry.rows && last.at < found.geometry.member_blocks());
                assert_eq!(Superblock::decode(stamp, &found.encode(found.member_index)[HEADER_BYTES..]), Some(found));
            }
        }
    }

    /// The bytes of the format. A change here is a change of the format: it needs a version or a feature.
    #[test]
    fn the_bytes_are_those_of_the_format() {
        let bytes = example().encode(1);
        let hex = |range: std::ops::Range<usize>| -> String {
            bytes[range].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(hex(0..8), "524d445052545901");
        assert_eq!(hex(40..64), "000000000000000000100000010401001000000000000000");
        assert_eq!(hex(64..88), "00010000000000000010000000000000e803000000000000");
        assert_eq!(hex(600..608), "4c00000000000000");
        assert_eq!(hex(608..616), "0500000000000000");
        assert_eq!(hex(616..648), "07000000000000004d0000000000000006000000000000004600000000000000");
        assert!(bytes[648..].iter().all(|byte| *byte == 0));
        // What programs of before openings know a superblock by.
        let older = Superblock { openings: Openings::default(), ..example() };
        assert_eq!(Base { opening: 7, ..older.as_base() }, example().as_base());
        assert_eq!(hex(152..184), "030303030303030303030303030303034d000000000000000300000000000000");
    }
}
