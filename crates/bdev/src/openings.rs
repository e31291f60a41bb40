//! Through which openings a device has come to its generation. Copies of a device that are used apart count their generations alike;
//! the random number of each opening tells them from each other. Bytes: `docs/formats/slots.md`.
//!
//! What holds: the list is never wrong, but may be short, since a program of before it leaves none, and the oldest are dropped. What is not
//! in it is not known, and never makes two histories differ.

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Openings that are kept.
const OPENINGS_MAX: usize = 32;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RawOpening {
    id: U64,
    first: U64,
}

/// The list as it is on a device; zeroes behind its end.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RawOpenings([RawOpening; OPENINGS_MAX]);

const _: () = assert!(size_of::<RawOpenings>() == 512);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opening {
    /// Chosen at random, never 0.
    id: u64,
    /// The first generation that it wrote.
    first: u64,
}

/// The last openings, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Openings(Vec<Opening>);

impl Openings {
    /// The next opening, which writes generation `first` before all others.
    pub(crate) fn begin(&mut self, first: u64, random: u64) {
        self.0.retain(|opening| opening.first < first);
        self.0.truncate(OPENINGS_MAX - 1);
        self.0.insert(0, Opening { id: random.max(1), first });
    }

    /// The opening that a generation is of; 0 when that is not known.
    pub(crate) fn at(&self, generation: u64) -> u64 {
        self.0.iter().find(|opening| opening.first <= generation).map_or(0, |opening| opening.id)
    }

    /// The last generation before `generation` that was in force for certain; 0 when none is known to have been. An opening writes a second
    /// one only when all that are in use have the first, and nothing is acknowledged before.
    pub(crate) fn settled(&self, generation: u64) -> u64 {
        let mut last = generation;
        for opening in self.0.iter().filter(|opening| opening.first <= generation) {
            if last > opening.first {
                return last - 1;
            }
            last = opening.first - 1;
        }
        0
    }

    /// Whether a generation is known to be of another opening there.
    pub(crate) fn differ_at(&self, other: &Openings, generation: u64) -> bool {
        are_known_to_differ(self.at(generation), other.at(generation))
    }

    pub(crate) fn encode(&self) -> RawOpenings {
        let mut raw = [RawOpening { id: U64::ZERO, first: U64::ZERO }; OPENINGS_MAX];
        for (raw, opening) in raw.iter_mut().zip(&self.0) {
            (raw.id, raw.first) = (opening.id.into(), opening.first.into());
        }
        RawOpenings(raw)
    }

    /// What is out of order ends the list.
    pub(crate) fn decode(raw: &RawOpenings) -> Openings {
        let mut openings: Vec<Opening> = Vec::new();
        for RawOpening { id, first } in raw.0 {
            let opening = Opening { id: id.get(), first: first.get() };
            if opening.id == 0
                || opening.first == 0
                || openings.last().is_some_and(|newer| newer.first <= opening.first)
            {
                break;
            }
            openings.push(opening);
        }
        Openings(openings)
    }
}

/// Whether two openings, by their random numbers, are known not to be the same; 0 is one that is not known.
pub fn are_known_to_differ(one: u64, other: u64) -> bool {
    one != 0 && other != 0 && one != other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openings(list: &[(u64, u64)]) -> Openings {
        let mut openings = Openings::default();
        list.iter().for_each(|(first, id)| openings.begin(*first, *id));
        openings
    }

    #[test]
    fn a_list_survives_the_round_trip_and_keeps_the_newest() {
        for count in [0, 1, 31, 32, 33, 100] {
            let list: Vec<(u64, u64)> = (1..=count).map(|n| (2 * n, n)).collect();
            let openings = openings(&list);
            assert_eq!(Openings::decode(&openings.encode()), openings);
            assert_eq!(openings.at(2 * count + 9), count);
            let oldest = count.saturating_sub(OPENINGS_MAX as u64) + 1;
            assert_eq!(openings.at(2 * oldest - 1), 0, "{count}");
        }
    }

    #[test]
    fn openings_that_wrote_one_generation_alone_count_for_nothing() {
        let openings = openings(&[(1, 5), (3, 6), (5, 7), (6, 8)]);
        let settled = [1, 2, 3, 4, 5, 6, 7, 9].map(|generation| openings.settled(generation));
        assert_eq!(settled, [0, 1, 1, 3, 3, 3, 6, 8]);
        assert_eq!(Openings::default().settled(9), 0);
    }

    #[test]
    fn what_is_out_of_order_ends_the_list() {
        let mut raw = openings(&[(2, 5), (4, 6), (9, 7)]).encode();
        raw.0[1].first = 9.into();
        assert_eq!(Openings::decode(&raw), openings(&[(9, 7)]));
    }

    #[test]
    fn histories_differ_from_where_another_opening_went_on_and_not_where_one_is_not_known() {
        let (one, other) = (openings(&[(1, 5), (3, 6), (5, 7)]), openings(&[(1, 5), (3, 8)]));
        assert!(!one.differ_at(&other, 2) && one.differ_at(&other, 3) && other.differ_at(&one, 9));
        let late = openings(&[(5, 9)]);
        assert!(!one.differ_at(&late, 4) && one.differ_at(&late, 5));
        assert!(!one.differ_at(&Openings::default(), 5));
    }
}
