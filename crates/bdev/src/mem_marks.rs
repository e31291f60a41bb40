//! Blocks of a memory device that were declared unreadable: a bit each, in memory that is taken with the first of them.
//!
//! Bits change under the stripe locks of their blocks; reads look without a lock. Where there is none, that is one load.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// See the module.
pub(crate) struct Marks {
    words: OnceLock<Box<[AtomicU64]>>,
    blocks_max: u64,
    count: AtomicU64,
}

impl Marks {
    pub(crate) fn new(blocks_max: u64) -> Marks {
        Marks { words: OnceLock::new(), blocks_max, count: AtomicU64::new(0) }
    }

    /// Whether any of these blocks is marked.
    #[inline]
    pub(crate) fn any(&self, blocks: Range<u64>) -> bool {
        self.count.load(SeqCst) > 0 && self.each(blocks, |word, mask| word.load(SeqCst) & mask) > 0
    }

    /// Marks these blocks.
    pub(crate) fn set(&self, blocks: Range<u64>) {
        // Counted before they can be seen, so that nobody who looks passes them by.
        let new = blocks.end - blocks.start;
        self.count.fetch_add(new, SeqCst);
        let were = self.each(blocks, |word, mask| word.fetch_or(mask, SeqCst) & mask);
        self.count.fetch_sub(were, SeqCst);
    }

    /// Takes the marks of these blocks away.
    #[inline]
    pub(crate) fn clear(&self, blocks: Range<u64>) {
        if self.count.load(SeqCst) > 0 {
            let were = self.each(blocks, |word, mask| word.fetch_and(!mask, SeqCst) & mask);
            self.count.fetch_sub(were, SeqCst);
        }
    }

    /// Visits the words of these blocks, each with the mask of those in it; counts the bits that `visit` returns.
    fn each(&self, blocks: Range<u64>, visit: impl Fn(&AtomicU64, u64) -> u64) -> u64 {
        let all = || (0..self.blocks_max.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let words = self.words.get_or_init(all);
        let (mut at, mut bits) = (blocks.start, 0);
        while at < blocks.end {
            let count = (64 - at % 64).min(blocks.end - at);
            let mask = (u64::MAX >> (64 - count)) << (at % 64);
            bits += u64::from(visit(&words[(at / 64) as usize], mask).count_ones());
            at += count;
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_those_of_a_plain_set() {
        let (marks, mut rng, mut set) = (Marks::new(1000), base::Rng::new(4), std::collections::BTreeSet::new());
        for _ in 0..2000 {
            let start = rng.below(1000);
            let range = start..start + rng.between(1, 200.min(1000 - start));
            match rng.below(3) {
                0 => {
                    marks.set(range.clone());
                    set.extend(range);
                }
                1 => {
                    marks.clear(range.clone());
                    set.retain(|block| !range.contains(block));
                }
                _ => assert_eq!(marks.any(range.clone()), set.range(range).next().is_some()),
            }
            assert_eq!(marks.count.load(SeqCst), set.len() as u64);
        }
    }
}
