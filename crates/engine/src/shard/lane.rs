//! Dirty extents that wait for destage to one disk, or to a set of disks that they are spread over: which one is next.
//!
//! ```text
//! queue, by first record --the oldest part--> planned, by place --next ahead of the sweep--> taken
//!        ^                                        |
//!        +----------the log has filled------------+
//! ```
//!
//! An arm that sweeps over the disk once writes what it would otherwise seek for. What a sweep has is bounded by age, in
//! segments of the log from the oldest extent on: nothing that comes meanwhile is added, so it ends, and the log is free up to
//! there. The bound follows what is free of the log, and a sweep that was planned with more room ends early: towards a full log
//! the oldest come first, as without sweeps.

use crate::units::LogTail;
use std::collections::VecDeque;

/// Most extents of a sweep: their list is looked through whenever one is taken.
const SWEEP_MAX: usize = 1024;

/// An extent, and its first record as it was when it was queued: the entry holds while that has not changed.
pub(super) type Entry = (u32, LogTail);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// By first record.
    queue: VecDeque<Entry>,
    /// What the sweep takes, the next one last.
    planned: Vec<Entry>,
    /// Where the sweep is.
    at: u32,
}

impl Lane {
    /// There is room for so many.
    pub(super) fn reserve(&mut self, entries: usize) {
        self.queue.reserve(entries);
    }

    /// One whose first record is younger than those of all others, or as young.
    pub(super) fn push(&mut self, entry: Entry) {
        self.queue.push_back(entry);
    }

    /// One whose first record may be older than that of others.
    pub(super) fn insert(&mut self, entry: Entry) {
        let at = self.queue.partition_point(|(_, first)| *first <= entry.1);
        self.queue.insert(at, entry);
    }

    /// All entries, which are no longer here.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> + '_ {
        self.planned.drain(..).chain(self.queue.drain(..))
    }

    /// Entries that do not hold any more, and would be in the way, go.
    pub(super) fn pass_over(&mut self, holds: impl Fn(&Entry) -> bool) {
        self.planned.retain(&holds);
        while self.queue.front().is_some_and(|entry| !holds(entry)) {
            self.queue.pop_front();
        }
    }

    /// The oldest first record; nothing must have to be passed over.
    pub(super) fn oldest(&self) -> Option<LogTail> {
        let planned = self.planned.iter().map(|(_, first)| *first).min();
        planned.into_iter().chain(self.queue.front().map(|(_, first)| *first)).min()
    }

    /// Takes the oldest.
    pub(super) fn take_oldest(&mut self) -> Option<u32> {
        let planned = (0..self.planned.len()).min_by_key(|index| self.planned[*index].1);
        match (planned, self.queue.front()) {
            (Some(index), front) if front.is_none_or(|(_, first)| self.planned[index].1 < *first) => {
                Some(self.planned.remove(index).0)
            }
            _ => self.queue.pop_front().map(|(extent, _)| extent),
        }
    }

    /// Takes the next one of a sweep over what is at most so many segments of the log younger than the oldest.
    pub(super) fn take_next(&mut self, segments: u64, holds: impl Fn(&Entry) -> bool) -> Option<u32> {
        self.pass_over(&holds);
        let oldest = self.oldest()?.segment;
        if self.planned.iter().any(|(_, first)| first.segment - oldest > segments.saturating_mul(2)) {
            std::mem::take(&mut self.planned).into_iter().for_each(|entry| self.insert(entry));
        }
        if self.planned.is_empty() {
            while let Some(entry) = self.queue.front()
                && entry.1.segment - oldest <= segments
                && self.planned.len() < SWEEP_MAX
            {
                self.planned.extend(self.queue.pop_front().filter(&holds));
            }
            self.planned.sort_unstable_by_key(|(extent, _)| std::cmp::Reverse(extent.wrapping_sub(self.at)));
        }
        let (extent, _) = self.planned.pop()?;
        self.at = extent;
        Some(extent)
    }

    /// Bytes of memory it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        (self.queue.capacity() + self.planned.capacity()) * size_of::<Entry>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(entries: &[(u32, u64)]) -> Lane {
        let mut lane = Lane::default();
        (0u64..)
            .zip(entries)
            .for_each(|(lsn, (extent, segment))| lane.push((*extent, LogTail { segment: *segment, lsn })));
        lane
    }

    fn sweep(lane: &mut Lane, segments: u64) -> Vec<u32> {
        std::iter::from_fn(|| lane.take_next(segments, |_| true)).collect()
    }

    #[test]
    fn a_sweep_goes_up_over_what_is_old_and_then_over_the_rest() {
        let entries = [(7, 1), (3, 1), (9, 2), (5, 3), (1, 3), (4, 9), (2, 9)];
        assert_eq!(sweep(&mut lane(&entries), 2), [1, 3, 5, 7, 9, 2, 4]);
        assert_eq!(
            sweep(&mut lane(&entries), 0),
            [3, 7, 9, 1, 5, 2, 4],
            "each segment by itself, on from where the arm is"
        );
        assert_eq!(sweep(&mut lane(&entries), 9), [1, 2, 3, 4, 5, 7, 9]);
    }

    #[test]
    fn with_less_room_the_oldest_come_first() {
        let mut lane = lane(&[(7, 1), (3, 2), (9, 8), (5, 9)]);
        assert_eq!(lane.take_next(9, |_| true), Some(3));
        assert_eq!(sweep(&mut lane, 1), [7, 9, 5], "the sweep over all ends early");
        assert_eq!(lane.oldest(), None);
    }

    #[test]
    fn what_does_not_hold_any_more_is_in_nobodys_way() {
        let mut lane = lane(&[(7, 1), (3, 1), (9, 2)]);
        assert_eq!(lane.take_next(9, |_| true), Some(3));
        lane.pass_over(|(extent, _)| *extent != 7);
        assert_eq!(lane.oldest(), Some(LogTail { segment: 2, lsn: 2 }));
        assert_eq!((lane.take_oldest(), lane.take_oldest()), (Some(9), None));
    }
}
