//! Which places of the log are in use. A segment of sequence `s` lies at place `s mod segments`; places that hold live
//! records or rest are passed over, so sequences may have gaps. A place rests for a while after a write to it has failed.

use super::{Class, Head, LogGeometry};
use crate::units::LogTail;

/// Segments kept for [`Class::Internal`]: at least two, so that destaging can always write what a release waits for.
const RESERVE_MIN: u32 = 2;
const RESERVE_FRACTION: u32 = 16;
/// How long a place rests, and how long at least.
const REST_NS: u64 = 10_000_000_000;
const REST_LEAST_NS: u64 = 1_000_000_000;
/// As long as the pool is open.
const FOR_GOOD: u64 = u64::MAX;

#[derive(Clone, Copy, Default)]
struct Place {
    /// The segment that was written there last and may be referred to.
    holds: Option<u64>,
    /// It is not released yet.
    live: bool,
    /// Until when it rests, ns; 0: it does not.
    rests_until: u64,
}

impl Place {
    fn rests(&self) -> bool {
        self.rests_until > 0
    }

    fn is_free(&self) -> bool {
        !self.live && !self.rests()
    }
}

pub(super) struct Ring {
    places: Vec<Place>,
    /// The next segment has this sequence at least.
    next: u64,
    free: u32,
    usable: u32,
    reserve: u32,
    /// How long a place rests.
    rest_ns: u64,
}

pub(super) struct Next {
    pub(super) sequence: u64,
    pub(super) place: u32,
    pub(super) overwritten: Option<u64>,
}

impl Ring {
    pub(super) fn new(geometry: &LogGeometry, head: &Head, tail: LogTail) -> Ring {
        let segments = geometry.segments;
        let mut ring = Ring {
            places: vec![Place::default(); segments as usize],
            next: head.next.segment,
            free: segments,
            usable: segments,
            reserve: (segments / RESERVE_FRACTION).max(RESERVE_MIN),
            rest_ns: REST_NS,
        };
        for segment in &head.segments {
            let place = ring.place(segment.sequence);
            ring.places[place] = Place { holds: Some(segment.sequence), live: true, ..Place::default() };
        }
        for place in &head.unreadable {
            ring.places[*place as usize].rests_until = FOR_GOOD;
        }
        ring.release(tail.segment);
        ring
    }

    fn place(&self, sequence: u64) -> usize {
        (sequence % self.places.len() as u64) as usize
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    pub(super) fn usable(&self) -> u32 {
        self.usable
    }

    pub(super) fn resting(&self) -> u32 {
        self.places.len() as u32 - self.usable
    }

    /// Whether less than three eighths of it are free: so many writes came one after the other that destage is under way.
    pub(super) fn is_filling(&self) -> bool {
        self.free * 8 < self.usable * 3
    }

    fn count(&mut self) {
        self.free = self.places.iter().filter(|place| place.is_free()).count() as u32;
        self.usable = self.places.iter().filter(|place| !place.rests()).count() as u32;
    }

    /// Whether records of `class` may go on in a segment that is open.
    pub(super) fn admits(&self, class: Class) -> bool {
        class == Class::Internal || self.free >= self.reserve
    }

    /// Whether no release can make space for `class`, as long as so many places rest.
    pub(super) fn is_exhausted(&self, class: Class) -> bool {
        match class {
            Class::Internal => self.usable == 0,
            // Beside the reserve one segment is being written and one waits to be released.
            Class::User => self.usable < self.reserve + 2,
        }
    }

    pub(super) fn may_open(&self, class: Class) -> bool {
        self.free > if class == Class::User { self.reserve } else { 0 }
    }

    /// Whether records of `class` wait for a release. The segment being written, which has no room for them, is left then:
    /// nothing in it may be needed any more, and it may be all that there is to release.
    pub(super) fn is_full(&self, class: Class) -> bool {
        class == Class::Internal && self.free == 0
    }

    /// The next segment has this sequence at least, whatever is released until then.
    pub(super) fn next_least(&self) -> u64 {
        self.next
    }

    fn next_sequence(&self) -> u64 {
        let mut candidates = self.next..self.next + self.places.len() as u64;
        candidates.find(|sequence| self.places[self.place(*sequence)].is_free()).unwrap_or(self.next)
    }

    pub(super) fn open(&mut self, class: Class) -> Option<Next> {
        if !self.may_open(class) {
            return None;
        }
        let sequence = self.next_sequence();
        let index = self.place(sequence);
        let place = &mut self.places[index];
        assert!(place.is_free(), "a free segment was counted");
        let overwritten = place.holds.replace(sequence);
        place.live = true;
        self.next = sequence + 1;
        self.free -= 1;
        Some(Next { sequence, place: index as u32, overwritten })
    }

    /// A write to this segment has failed: what it holds stays where it is, and nothing is written there for a while.
    pub(super) fn rest(&mut self, sequence: u64, now_ns: u64) {
        let index = self.place(sequence);
        self.places[index].rests_until = now_ns.saturating_add(self.rest_ns);
        self.count();
    }

    /// See [`Log::rest_for_good`](super::Log::rest_for_good).
    pub(super) fn rest_for_good(&mut self) {
        self.rest_ns = FOR_GOOD;
    }

    /// Places that have rested long enough may be written again. Where nothing is left for records of `class`, that is sooner.
    pub(super) fn wake(&mut self, class: Class, now_ns: u64) {
        if self.resting() > 0 {
            self.wake_if(|place| place.rests_until <= now_ns);
            if self.is_exhausted(class) {
                self.wake_if(|place| place.rests_until <= now_ns + (REST_NS - REST_LEAST_NS));
            }
        }
    }

    /// It was not the places: all of them may be written again.
    pub(super) fn wake_all(&mut self) {
        self.wake_if(|place| place.rests_until != FOR_GOOD);
    }

    fn wake_if(&mut self, wakes: impl Fn(&Place) -> bool) {
        self.places.iter_mut().filter(|place| wakes(place)).for_each(|place| place.rests_until = 0);
        self.count();
    }

    /// A segment from `sequence` on that is free although it holds records.
    pub(super) fn freed_from(&self, sequence: u64) -> Option<u64> {
        let freed = self.places.iter().filter(|place| place.is_free());
        freed.filter_map(|place| place.holds).filter(|holds| *holds >= sequence).min()
    }

    /// Segments before `sequence` are free.
    pub(super) fn release(&mut self, sequence: u64) {
        for place in &mut self.places {
            place.live &= place.holds.is_some_and(|holds| holds >= sequence);
        }
        self.count();
    }
}
