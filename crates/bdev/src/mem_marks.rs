//! Marks on the blocks or pages of a memory device: a bit each, in memory that is taken where the first of them is set.
//!
//! Bits change under the stripe locks of what they speak of; reads look without a lock. Where there is none, that is one
//! load.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Words that are taken together.
const LEAF_WORDS: usize = 512;

type Leaf = OnceLock<Box<[AtomicU64]>>;

/// See the module.
pub(crate) struct Marks {
    leaves: Box<[Leaf]>,
    count: AtomicU64,
}

impl Marks {
    pub(crate) fn new(blocks_max: u64) -> Marks {
        let leaves = blocks_max.div_ceil(64 * LEAF_WORDS as u64);
        Marks { leaves: (0..leaves).map(|_| Leaf::new()).collect(), count: AtomicU64::new(0) }
    }

    /// Whether any of these blocks is marked.
    #[inline]
    pub(crate) fn any(&self, blocks: Range<u64>) -> bool {
        self.count.load(SeqCst) > 0 && self.each(blocks, Leaf::get, |word, mask| word.load(SeqCst) & mask) > 0
    }

    /// Marks these blocks.
    pub(crate) fn set(&self, blocks: Range<u64>) {
        // Counted before they can be seen, so that nobody who looks passes them by.
        let new = blocks.end - blocks.start;
        self.count.fetch_add(new, SeqCst);
        let were =
            self.each(blocks, |leaf| Some(leaf.get_or_init(new_leaf)), |word, mask| word.fetch_or(mask, SeqCst) & mask);
        self.count.fetch_sub(were, SeqCst);
    }

    /// Takes the marks of these blocks away.
    #[inline]
    pub(crate) fn clear(&self, blocks: Range<u64>) {
        if self.count.load(SeqCst) > 0 {
            let were = self.each(blocks, Leaf::get, |word, mask| word.fetch_and(!mask, SeqCst) & mask);
            self.count.fetch_sub(were, SeqCst);
        }
    }

    /// Visits the words of these blocks, each with the mask of those in it, but for leaves that `leaf` does not give; counts the
    /// bits that `visit` returns.
    fn each<'a>(
        &'a self,
        blocks: Range<u64>,
        leaf: impl Fn(&'a Leaf) -> Option<&'a Box<[AtomicU64]>>,
        visit: impl Fn(&AtomicU64, u64) -> u64,
    ) -> u64 {
        let (mut at, mut bits) = (blocks.start, 0);
        while at < blocks.end {
            let count = (64 - at % 64).min(blocks.end - at);
            let mask = (u64::MAX >> (64 - count)) << (at % 64);
            let word = (at / 64) as usize;
            if let Some(words) = leaf(&self.leaves[word / LEAF_WORDS]) {
                bits += u64::from(visit(&words[word % LEAF_WORDS], mask).count_ones());
            }
            at += count;
        }
        bits
    }
}

fn new_leaf() -> Box<[AtomicU64]> {
    (0..LEAF_WORDS).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_those_of_a_plain_set() {
        // Around the end of the first leaf, of two.
        let first = 64 * LEAF_WORDS as u64 - 500;
        let (marks, mut rng, mut set) =
            (Marks::new(first + 1000), base::Rng::new(4), std::collections::BTreeSet::new());
        for _ in 0..2000 {
            let start = rng.below(1000);
            let range = first + start..first + start + rng.between(1, 200.min(1000 - start));
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
