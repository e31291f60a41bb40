//! How often blocks have been written lately, and which of them are worth a second life in the log.
//!
//! When the turn of an extent comes to be destaged, blocks of it that are written often go to the head of the log once more
//! (*reinsertion*), instead of to the capacity device, where each would leave a dead copy behind. That costs log bytes, for
//! which there is a *budget*: a share of what users write.
//!
//! A counter of four bits for each block, sixteen of them in a word for 64 KiB; when there are more of those than words, they share
//! them. Each word is halved once while users write what goes 16 times into the log, so that the counts follow what is written now.
//! The fuller the budget, the lower the count that is enough; never less than three times what a quarter of those that left the log
//! lately did not have: where all blocks are written about equally often, to keep some does not help.

use crate::units::EXTENT_BLOCKS;
use std::cell::{Cell, RefCell};

/// Blocks of a word.
const GROUP_BLOCKS: u32 = 16;
/// The lowest bit of each counter.
const ONES: u64 = 0x1111_1111_1111_1111;
const COUNT_MAX: u32 = 15;
/// Times that the log goes round until a word is halved.
const ROUNDS: u64 = 16;
/// The budget, unless told otherwise.
const PERCENT: u32 = 50;
/// The largest budget: much more would be written again than anew.
pub const PERCENT_MAX: u32 = 400;
/// Most of the budget that is saved up, as a part of the log.
const SAVED_PART: u64 = 8;
/// A count that may come about by chance.
const COUNT_MIN: u32 = 4;
/// Parts of a count, by which the quartile moves with each block that leaves the log.
const PARTS: u32 = 512;

/// Counts how often blocks are written, and says which of them are worth a second life in the log.
pub struct Heat {
    words: RefCell<Box<[u64]>>,
    log_blocks: u64,
    /// The word that is halved next, and blocks written since the last one was.
    aged: Cell<usize>,
    written: Cell<u64>,
    /// Blocks for each hundred that users write; `None`: [`PERCENT`], and only while writers wait for the capacity device.
    percent: Cell<Option<u32>>,
    /// In hundredths of a block.
    budget: Cell<u64>,
    /// A quarter of the blocks that left the log lately had a lower count; in [`PARTS`].
    quartile: Cell<u32>,
    /// Stands in for what counts are enough: for tests.
    enough: Option<u32>,
}

impl Heat {
    /// Of a shard with so many blocks of log and of capacity. `percent` as in [`ShardTuning::reinsertion_percent`]; `enough`, for
    /// tests, is the count that is enough whatever the budget is.
    ///
    /// [`ShardTuning::reinsertion_percent`]: super::ShardTuning::reinsertion_percent
    pub fn new(log_blocks: u64, blocks: u64, percent: Option<u32>, enough: Option<u32>) -> Heat {
        let groups = blocks.div_ceil(GROUP_BLOCKS as u64);
        let words = log_blocks.min(groups).max(64).next_power_of_two();
        Heat {
            words: RefCell::new(vec![0; words as usize].into_boxed_slice()),
            log_blocks,
            aged: Cell::new(0),
            written: Cell::new(0),
            percent: Cell::new(percent),
            budget: Cell::new(0),
            quartile: Cell::new(0),
            enough,
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.borrow().len() * 8
    }

    pub(crate) fn set_percent(&self, percent: Option<u32>) {
        self.percent.set(percent);
        self.budget.set(0);
    }

    /// Whether anything is to be reinserted now. `is_pressed`: writers wait for the capacity device, or are about to.
    pub(crate) fn is_wanted(&self, is_pressed: bool) -> bool {
        self.percent.get().map_or(is_pressed, |percent| percent > 0)
    }

    /// Blocks are written soon.
    #[inline]
    pub(crate) fn prefetch(&self, first: u32) {
        let words = self.words.borrow();
        reactor::prefetch(&words[word_of(first, words.len())]);
    }

    /// A user has written blocks, of an extent.
    #[inline]
    pub fn note(&self, first: u32, blocks: u32) {
        let words = &mut **self.words.borrow_mut();
        let mask = words.len() - 1;
        let (mut at, end) = (first, first + blocks);
        while at < end {
            let until = end.min((at / GROUP_BLOCKS + 1) * GROUP_BLOCKS);
            let word = &mut words[word_of(at, mask + 1)];
            *word = counted(*word, at % GROUP_BLOCKS, until - at);
            at = until;
        }
        let earned = self.percent.get().unwrap_or(PERCENT) as u64 * blocks as u64;
        self.budget.set((self.budget.get() + earned).min(self.budget_max()));
        let step = (ROUNDS * self.log_blocks / words.len() as u64).max(1);
        let mut written = self.written.get() + blocks as u64;
        while written >= step {
            written -= step;
            let aged = self.aged.get();
            words[aged] = words[aged] >> 1 & !(ONES << 3);
            self.aged.set((aged + 1) & mask);
        }
        self.written.set(written);
    }

    /// How often a block has been written lately.
    fn count(&self, block: u32) -> u32 {
        let words = self.words.borrow();
        let word = words[word_of(block, words.len())];
        (word >> (block % GROUP_BLOCKS * 4)) as u32 & COUNT_MAX
    }

    /// What is saved up at most.
    fn budget_max(&self) -> u64 {
        self.log_blocks / SAVED_PART * 100
    }

    /// The count that is enough at present.
    fn enough(&self) -> u32 {
        let by_budget = COUNT_MAX + 1 - (self.budget.get() * (COUNT_MAX as u64 + 1) / self.budget_max().max(1)) as u32;
        let by_others = (3 * ((self.quartile.get() + PARTS / 2) / PARTS)).min(COUNT_MAX);
        self.enough.unwrap_or(by_budget.max(by_others).max(COUNT_MIN))
    }

    /// Whether a block whose turn has not come yet is one of those that stay.
    pub fn is_hot(&self, block: u32) -> bool {
        self.count(block) >= self.enough()
    }

    /// Whether a block goes to the head of the log instead of to the capacity device: it takes that of the budget.
    pub fn reinserts(&self, block: u32) -> bool {
        let is_hot = self.is_hot(block) && self.budget.get() >= 100;
        if is_hot {
            self.budget.set(self.budget.get() - 100);
        } else {
            let quartile = self.quartile.get();
            // One step up for each that is not below it, three down for each that is: at rest, a quarter is.
            let is_below = self.count(block) * PARTS < quartile;
            self.quartile.set(if is_below { quartile.saturating_sub(3) } else { quartile + 1 });
        }
        is_hot
    }
}

/// Where the counter of a block is, among so many words: a power of two.
#[inline]
fn word_of(block: u32, words: usize) -> usize {
    (block / GROUP_BLOCKS) as usize & (words - 1)
}

/// The word with `blocks` of its counters, from `first` on, one higher.
#[inline]
fn counted(word: u64, first: u32, blocks: u32) -> u64 {
    let full = word & word >> 1 & word >> 2 & word >> 3;
    let these = u64::MAX >> (64 - 4 * blocks) << (4 * first);
    word + (ONES & these & !full)
}

const _: () = assert!(EXTENT_BLOCKS.is_multiple_of(GROUP_BLOCKS));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_up_to_fifteen_and_alone() {
        let heat = Heat::new(1 << 10, 1 << 20, Some(100), None);
        (0..20).for_each(|_| heat.note(1000, 40));
        heat.note(1003, 1);
        assert_eq!([999, 1000, 1003, 1039, 1040].map(|block| heat.count(block)), [0, 15, 15, 15, 0]);
        assert_eq!(counted(0, 0, 16), ONES);
        assert_eq!(counted(0xf0, 0, 2), 0xf1);
        assert_eq!(counted(0, 15, 1), 1 << 60);
    }

    #[test]
    fn what_is_not_written_any_more_is_forgotten() {
        let heat = Heat::new(1 << 10, 1 << 14, Some(100), None);
        (0..15).for_each(|_| heat.note(7, 1));
        let counts: Vec<u32> = (0..6)
            .map(|_| {
                (0..16 << 10).for_each(|_| heat.note(4000, 1));
                heat.count(7)
            })
            .collect();
        assert_eq!((counts[0], counts[5]), (7, 0), "{counts:?}");
    }

    #[test]
    fn no_more_is_reinserted_than_the_budget_allows_and_the_hottest_first() {
        let heat = Heat::new(1 << 12, 1 << 16, Some(25), None);
        let mut taken = [0; 2];
        for round in 0..2000u32 {
            // Of 64 blocks, four are written as often as all the others.
            (0..60).for_each(|index| heat.note(64 + (round * 60 + index) % 8000 * 2, 1));
            (0..60).for_each(|index| heat.note(index % 4, 1));
            taken[0] += (0..4).filter(|block| heat.reinserts(*block)).count();
            taken[1] += (0..60).filter(|index| heat.reinserts(64 + (round * 60 + index) % 8000 * 2)).count();
        }
        assert!(taken[0] > 7900, "{taken:?}");
        assert!((taken[0] + taken[1]) as u64 <= 2000 * 120 / 4, "{taken:?}");
    }

    #[test]
    fn where_all_are_written_equally_often_few_are_reinserted() {
        let heat = Heat::new(1 << 10, 1 << 12, Some(100), None);
        let (mut taken, mut seed) = (0, 1u64);
        for step in 0..400_000u64 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            heat.note((seed >> 33) as u32 % 4096, 1);
            taken += (step > 100_000 && heat.reinserts((seed >> 45) as u32 % 4096)) as u64;
        }
        assert!(taken < 300_000 / 20, "{taken}");
    }

    #[test]
    fn unless_told_otherwise_it_is_done_under_pressure_alone() {
        let heat = Heat::new(1 << 10, 1 << 12, None, None);
        assert!(heat.is_wanted(true) && !heat.is_wanted(false));
        heat.set_percent(Some(20));
        assert!(heat.is_wanted(true) && heat.is_wanted(false));
        heat.set_percent(Some(0));
        assert!(!heat.is_wanted(true));
    }
}
