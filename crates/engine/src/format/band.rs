//! The entry of a band in the table at the end of a shaped shard's root: 32 bytes. Bytes: `docs/formats/bands.md`.

use crate::format::{Malformed, generation};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of an entry.
pub(crate) const BAND_ENTRY_BYTES: usize = size_of::<RawEntry>();

/// What a band is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BandState {
    /// Nothing; it may be written from its start.
    #[default]
    Free,
    /// Its stream goes on behind what is written.
    Open,
    /// It is read, and not written any more.
    Closed,
    /// As closed; it has refused a write, and is not used again once nothing in it is needed.
    Failing,
    /// Out of use for good.
    Retired,
}

const STATES: [BandState; 5] =
    [BandState::Free, BandState::Open, BandState::Closed, BandState::Failing, BandState::Retired];

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BandEntry {
    pub(crate) state: BandState,
    /// The number of the stream whose blocks it has.
    pub(crate) stream: u8,
    /// Blocks from its start on that have been written.
    pub(crate) written: u32,
    /// Blocks that map pages lead to: a hint, since the table and the pages are not of the same moment.
    pub(crate) valid: u32,
    /// Its stripes' sequences are at or above this number, and say so; no other use of a band has it.
    pub(crate) generation: u64,
    /// When its blocks were written, on average: by the clock that counts the blocks of user streams.
    pub(crate) stamp: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    state: u8,
    stream: u8,
    reserved: [u8; 2],
    written: U32,
    valid: U32,
    rest: [u8; 4],
    generation: U64,
    stamp: U64,
}

const _: () = assert!(BAND_ENTRY_BYTES == 32 && std::mem::offset_of!(RawEntry, generation) == 16);

impl BandEntry {
    /// Its bytes.
    pub(crate) fn encode(&self) -> [u8; BAND_ENTRY_BYTES] {
        let state = STATES.iter().position(|state| *state == self.state).expect("every state is listed");
        let raw = RawEntry {
            state: state as u8,
            stream: self.stream,
            reserved: [0; 2],
            written: self.written.into(),
            valid: self.valid.into(),
            rest: [0; 4],
            generation: self.generation.into(),
            stamp: self.stamp.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// The entry at the start of `bytes`, of a band of so many blocks.
    pub(crate) fn decode(bytes: &[u8], band_blocks: u32) -> Result<BandEntry, Malformed> {
        let (raw, _) = RawEntry::read_from_prefix(bytes).map_err(|_| Malformed("a band's entry is too short"))?;
        let state = *STATES.get(raw.state as usize).ok_or(Malformed("a band is in a state that there is not"))?;
        if raw.reserved != [0; 2] || raw.rest != [0; 4] {
            return Err(Malformed("reserved bytes of a band's entry are not zero"));
        }
        let (written, valid) = (raw.written.get(), raw.valid.get());
        if written > band_blocks || valid > written {
            return Err(Malformed("more of a band is in use than it has"));
        }
        if written > 0 && state == BandState::Free {
            return Err(Malformed("a free band has blocks"));
        }
        let (generation, stamp) = (generation(raw.generation.get())?, generation(raw.stamp.get())?);
        Ok(BandEntry { state, stream: raw.stream, written, valid, generation, stamp })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    fn entry(state: BandState) -> BandEntry {
        let (written, valid) = if state == BandState::Free { (0, 0) } else { (0x0201, 0x0101) };
        BandEntry { state, stream: 2, written, valid, generation: 0x0807_0605_0403_0201, stamp: 0x1817_1615_1413_1211 }
    }

    #[test]
    fn an_entry_survives_the_round_trip() {
        for state in STATES {
            let bytes = entry(state).encode();
            assert_eq!(BandEntry::decode(&bytes, 1024), Ok(entry(state)));
            (0..BAND_ENTRY_BYTES).for_each(|len| assert!(BandEntry::decode(&bytes[..len], 1024).is_err()));
        }
    }

    #[test]
    fn an_entry_that_cannot_be_is_refused() {
        let bytes = entry(BandState::Closed).encode();
        assert!(BandEntry::decode(&bytes, 0x0201).is_ok() && BandEntry::decode(&bytes, 0x0200).is_err());
        // State, what is reserved, written below valid, and a free band with blocks.
        for (at, byte) in [(0, 5), (0, 255), (2, 1), (3, 1), (12, 1), (15, 1), (5, 0), (0, 0)] {
            let mut forged = bytes;
            forged[at] = byte;
            assert!(BandEntry::decode(&forged, 1024).is_err(), "byte {at}");
        }
        let mut rng = Rng::new(3);
        let mut bytes = [0; BAND_ENTRY_BYTES];
        for _ in 0..20_000 {
            rng.fill(&mut bytes);
            bytes[0] &= 7;
            bytes[2..4].fill(0);
            bytes[12..16].fill(0);
            if let Ok(entry) = BandEntry::decode(&bytes, u32::MAX) {
                assert_eq!(entry.encode(), bytes);
            }
        }
    }

    /// The bytes of the format. A change here is a change of the format: it needs a version or a feature.
    #[test]
    fn the_bytes_are_those_of_the_format() {
        let hex: String = entry(BandState::Failing).encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0302000001020000010100000000000001020304050607081112131415161718");
    }
}
