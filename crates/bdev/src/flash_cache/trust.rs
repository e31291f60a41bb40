//! What on flash may be believed after a crash, and what may be let in now. The words of truth are on the slow device.
//!
//! Segments have numbers that grow and are never used twice. The slow device's metadata say up to which number segments may
//! have been written (`reserved_to`), and per *region* the number up to which segments may hold blocks that were overwritten
//! since (its *mark*). A block found on flash counts if its segment is newer than its region's mark, and is one of the last
//! that the ring can hold. So a write needs to make a mark durable first if, and only if, its region has content in a segment
//! that would count; the mark goes a bit ahead, so that a region which is read and written alike is not marked with every
//! segment. Nothing on flash is needed for that, and nothing that flash loses, tears or brings back can deceive it.
//!
//! In memory: *guards* tell a fill whether its blocks were written to between its read and now. And *unflushed* regions: what a
//! power cut may take back from the slow device must not outlive it in the cache.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

const GUARDS: usize = 4096;
/// Blocks that share a guard.
const GUARD_BLOCKS: u64 = 16;
/// A region that stays unflushed: a flush has failed since it was written, and later ones vouch for nothing.
const TAINTED: u64 = u64::MAX;

#[derive(Clone, Copy, Default)]
struct Guard {
    changes: u32,
    writers: u32,
}

/// See the module.
pub(super) struct Trust {
    pub(super) region_blocks: u64,
    /// Durable.
    marks: Vec<u64>,
    /// Per region: the newest segment with a block of it.
    newest: Vec<u64>,
    /// The newest segment that should be on flash and could not be read: it may hold blocks of any region, and be there again
    /// another time.
    unknown_to: u64,
    /// While flash is searched for what it has: of each region a bit, whether it has been written to since.
    written: Option<Vec<u64>>,
    /// Marks that writes wait for.
    wanted: BTreeMap<u64, u64>,
    /// Durable: segments that may have been written.
    pub(super) reserved_to: u64,
    /// Durable: no segment up to here counts, whatever is marked.
    pub(super) void_to: u64,
    segments: u64,
    guards: Box<[Guard]>,
    unflushed: BTreeMap<u64, u64>,
    writes: u64,
    /// Of these, the newest that a flush has made durable.
    flushed_to: u64,
}

/// What a fill has to bring back, to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u32);

impl Trust {
    pub(super) fn new(marks: Vec<u64>, region_blocks: u64, segments: u64) -> Trust {
        Trust {
            region_blocks,
            newest: vec![0; marks.len()],
            marks,
            unknown_to: 0,
            written: None,
            wanted: BTreeMap::new(),
            reserved_to: 0,
            void_to: 0,
            segments,
            guards: vec![Guard::default(); GUARDS].into_boxed_slice(),
            unflushed: BTreeMap::new(),
            writes: 0,
            flushed_to: 0,
        }
    }

    /// There are so many regions from now on: nothing of the new ones was ever cached.
    pub(super) fn grow(&mut self, regions: u64) {
        let regions = self.marks.len().max(regions as usize);
        self.marks.resize(regions, 0);
        self.newest.resize(regions, 0);
        if let Some(written) = &mut self.written {
            written.resize(regions.div_ceil(64), 0);
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.marks.len() as u64 * 16 + self.written.as_ref().map_or(0, |written| written.len() as u64 * 8)
    }

    /// No segment up to this one counts.
    fn floor(&self) -> u64 {
        self.void_to.max(self.reserved_to.saturating_sub(self.segments))
    }

    /// How far a reservation, or a mark, goes ahead.
    pub(super) fn ahead(&self) -> u64 {
        (self.segments / 64).max(1)
    }

    fn regions(&self, lba: u64, nblocks: u64) -> RangeInclusive<u64> {
        lba / self.region_blocks..=(lba + nblocks.max(1) - 1) / self.region_blocks
    }

    /// Whether a block in segment `seq` counts after a crash.
    pub(super) fn counts(&self, seq: u64, lba: u64) -> bool {
        seq > self.floor() && seq <= self.reserved_to && seq > self.marks[(lba / self.region_blocks) as usize]
    }

    /// A segment has a block, or will have.
    pub(super) fn has_content(&mut self, seq: u64, lba: u64) {
        let newest = &mut self.newest[(lba / self.region_blocks) as usize];
        *newest = seq.max(*newest);
    }

    /// Flash is searched from now on. Until all of it has been seen, segments up to `last` may hold blocks of any region.
    pub(super) fn begin_search(&mut self, last: u64) {
        self.unknown_to = last;
        self.written = Some(vec![0; self.marks.len().div_ceil(64)]);
    }

    /// Whether what a search finds of the block may be what the slow device has: it has not been written to since.
    pub(super) fn is_unwritten(&self, lba: u64) -> bool {
        let region = (lba / self.region_blocks) as usize;
        self.written.as_ref().is_none_or(|written| written[region / 64] >> (region % 64) & 1 == 0)
    }

    /// All of flash that can be read has been seen; as [`found`](Self::found).
    pub(super) fn end_search(&mut self, seqs: &[u64], last: u64) {
        (self.unknown_to, self.written) = (0, None);
        self.found(seqs, last);
    }

    /// Compares the segments that were found, by place, with those that may have been written up to `last`: what is missing
    /// counts as content of every region.
    fn found(&mut self, seqs: &[u64], last: u64) {
        for (place, found) in seqs.iter().enumerate() {
            let behind = (last % self.segments + self.segments - place as u64) % self.segments;
            let expected = last.saturating_sub(behind);
            if *found != expected && expected > self.floor() {
                self.unknown_to = self.unknown_to.max(expected);
            }
        }
    }

    /// Notes the marks that a write needs; the regions that lack theirs. `next_seq` is the next segment's number.
    pub(super) fn want_marks(&mut self, lba: u64, nblocks: u64, next_seq: u64) -> Vec<u64> {
        let (floor, mark) = (self.floor(), next_seq - 1 + self.ahead());
        let lacks = |region: &u64| {
            let index = *region as usize;
            self.newest[index].max(self.unknown_to) > self.marks[index].max(floor)
        };
        let lacking: Vec<u64> = self.regions(lba, nblocks).filter(lacks).collect();
        for region in &lacking {
            let wanted = self.wanted.entry(*region).or_default();
            *wanted = mark.max(*wanted);
        }
        lacking
    }

    /// The marks of `count` regions from `first` on, as they are to be; and which of them are new. Where nothing is known to
    /// be cached a mark costs nothing, so those go along that would be needed for what is unknown.
    pub(super) fn marks_to_write(&self, first: u64, count: u64) -> (Vec<u64>, Vec<(u64, u64)>) {
        if self.wanted.range(first..first + count).next().is_none() {
            return (Vec::new(), Vec::new());
        }
        let end = (first + count).min(self.marks.len() as u64);
        let (floor, mut new) = (self.floor(), Vec::new());
        let mut marks = self.marks[first as usize..end as usize].to_vec();
        for (region, slot) in (first..end).zip(&mut marks) {
            let is_empty = self.newest[region as usize] <= (*slot).max(floor);
            // During a search nothing is known to be empty.
            let free = if is_empty && self.written.is_none() { self.unknown_to } else { 0 };
            let mark = self.wanted.get(&region).copied().unwrap_or(0).max(free);
            if mark > *slot {
                *slot = mark;
                new.push((region, mark));
            }
        }
        (marks, new)
    }

    /// The new marks are durable.
    pub(super) fn marked(&mut self, new: &[(u64, u64)]) {
        for (region, mark) in new {
            let slot = &mut self.marks[*region as usize];
            *slot = (*slot).max(*mark);
            if self.wanted.get(region).is_some_and(|wanted| wanted <= mark) {
                self.wanted.remove(region);
            }
        }
    }

    // --- fills ------------------------------------------------------------------------------------------------------

    fn guard_of(lba: u64) -> usize {
        (lba / GUARD_BLOCKS) as usize % GUARDS
    }

    fn each_guard(&mut self, lba: u64, nblocks: u64, mut each: impl FnMut(&mut Guard)) {
        let (first, last) = (lba / GUARD_BLOCKS, (lba + nblocks.max(1) - 1) / GUARD_BLOCKS);
        for group in first..=last.min(first + GUARDS as u64 - 1) {
            each(&mut self.guards[group as usize % GUARDS]);
        }
    }

    /// A write begins: what was read before, or is now, will not be let in.
    pub(super) fn begin_write(&mut self, lba: u64, nblocks: u64) {
        self.each_guard(lba, nblocks, |guard| {
            guard.writers += 1;
            guard.changes = guard.changes.wrapping_add(1);
        });
        let regions = self.regions(lba, nblocks);
        if let Some(written) = &mut self.written {
            for region in regions {
                written[region as usize / 64] |= 1 << (region % 64);
            }
        }
    }

    /// It has ended; not `durable` is what a power cut may still take back.
    pub(super) fn end_write(&mut self, lba: u64, nblocks: u64, durable: bool) {
        self.each_guard(lba, nblocks, |guard| guard.writers -= 1);
        if !durable {
            self.writes += 1;
            for region in self.regions(lba, nblocks) {
                let number = self.unflushed.entry(region).or_default();
                *number = self.writes.max(*number);
            }
        }
    }

    /// For a read that begins; `None` where the block is being written.
    pub(super) fn ticket(&self, lba: u64) -> Option<Ticket> {
        let guard = &self.guards[Self::guard_of(lba)];
        (guard.writers == 0).then_some(Ticket(guard.changes))
    }

    /// Whether what was read since may be let in: it is what the slow device has, and no flush failed to keep it.
    pub(super) fn is_current(&self, lba: u64, ticket: Ticket) -> bool {
        self.ticket(lba) == Some(ticket) && !self.is_tainted(lba)
    }

    // --- flushes ----------------------------------------------------------------------------------------------------

    /// Whether a power cut may take back what was read of a block when `writes` had ended.
    pub(super) fn is_unflushed(&self, lba: u64, writes: u64) -> bool {
        let region = lba / self.region_blocks;
        self.is_tainted(lba) || (self.flushed_to < writes && self.unflushed.contains_key(&region))
    }

    /// Whether a flush has failed to keep a write to the block's region.
    pub(super) fn is_tainted(&self, lba: u64) -> bool {
        self.unflushed.get(&(lba / self.region_blocks)) == Some(&TAINTED)
    }

    /// Writes that have ended; for a flush that begins.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// A flush that began after `writes` has succeeded.
    pub(super) fn flushed(&mut self, writes: u64) {
        self.flushed_to = self.flushed_to.max(writes);
        self.unflushed.retain(|_, number| *number > writes);
    }

    /// A flush has failed.
    pub(super) fn flush_failed(&mut self) {
        self.unflushed.values_mut().for_each(|number| *number = TAINTED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_waits_for_a_mark_where_a_segment_that_counts_has_content_and_only_there() {
        let mut trust = Trust::new(vec![0; 10], 100, 128);
        trust.reserved_to = 50;
        assert!(trust.want_marks(0, 1000, 7).is_empty(), "nothing is cached");
        trust.has_content(6, 250);
        assert!(trust.counts(6, 250));
        assert_eq!(trust.want_marks(150, 200, 7), [2]);
        let (marks, new) = trust.marks_to_write(0, 10);
        assert_eq!((marks[2], &new[..]), (8, &[(2, 8)][..]));
        assert!(trust.counts(6, 250), "not yet durable");
        trust.marked(&new);
        assert!(!trust.counts(6, 250) && !trust.counts(8, 250) && trust.counts(9, 250) && trust.counts(6, 350));
        assert!(trust.want_marks(250, 1, 7).is_empty(), "it has its mark");
        trust.has_content(9, 299);
        assert_eq!(trust.want_marks(250, 1, 10), [2], "and needs another one for newer content");
        trust.reserved_to = 128 + 9;
        assert!(trust.want_marks(250, 1, 10).is_empty(), "the ring may have come round");
        assert!(!trust.counts(9, 299) && trust.counts(10, 350) && !trust.counts(138, 350));
        trust.void_to = 20;
        assert!(!trust.counts(20, 350));
    }

    #[test]
    fn a_segment_that_is_missing_may_have_anything_until_a_mark_says_that_it_does_not_count() {
        let mut trust = Trust::new(vec![0; 10], 100, 8);
        trust.reserved_to = 21;
        // Places 0 to 7 should have 16 to 21, 14 and 15.
        trust.found(&[16, 17, 18, 19, 20, 21, 14, 15], 21);
        assert!(trust.want_marks(150, 1, 22).is_empty(), "all are there");
        trust.found(&[16, 17, 10, 19, 20, 21, 14, 15], 21);
        trust.has_content(19, 350);
        assert_eq!(trust.want_marks(150, 1, 22), [1]);
        let (marks, new) = trust.marks_to_write(0, 10);
        assert_eq!(marks, [18, 22, 18, 0, 18, 18, 18, 18, 18, 18], "not where something is cached");
        trust.marked(&new);
        assert!(trust.want_marks(450, 1, 22).is_empty() && trust.counts(19, 350));
        assert!(trust.marks_to_write(0, 10).1.is_empty());
        assert_eq!(trust.want_marks(350, 1, 22), [3]);
    }

    #[test]
    fn a_fill_beside_a_write_is_not_current() {
        let mut trust = Trust::new(vec![0; 10], 100, 128);
        let before = trust.ticket(77).unwrap();
        assert!(trust.is_current(77, before));
        trust.begin_write(70, 10);
        assert!(trust.ticket(77).is_none() && !trust.is_current(77, before));
        assert!(trust.ticket(97).is_some());
        trust.end_write(70, 10, true);
        assert!(!trust.is_current(77, before));
        assert!(trust.is_current(77, trust.ticket(77).unwrap()));
        trust.begin_write(0, 1 << 40);
        assert!((0..1000).all(|group| trust.ticket(group * 16).is_none()));
    }

    #[test]
    fn a_region_is_unflushed_until_a_flush_that_began_later_and_for_ever_after_one_that_failed() {
        let mut trust = Trust::new(vec![0; 10], 100, 128);
        let write = |trust: &mut Trust, lba| {
            trust.begin_write(lba, 1);
            trust.end_write(lba, 1, false);
        };
        write(&mut trust, 150);
        let writes = trust.writes();
        write(&mut trust, 250);
        assert!(trust.is_unflushed(150, writes));
        trust.flushed(writes);
        assert!(!trust.is_unflushed(150, 2) && trust.is_unflushed(250, 2));
        assert!(!trust.is_unflushed(250, writes), "what was read before that write");
        trust.flush_failed();
        trust.flushed(trust.writes());
        assert!(trust.is_unflushed(250, 2) && !trust.is_current(250, trust.ticket(250).unwrap()));
    }
}
