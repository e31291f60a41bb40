//! Block -> its newest place in the log, and its checksum: a table of buckets that are lines of the cache.
//!
//! Sized once, for as many blocks as the log can hold and a third, so that it rarely grows. Almost every lookup, of a block that is there
//! or not, touches one line: a bucket counts the blocks that would have been put into it, had it not been full, and where
//! none were turned away nobody looks further. Removal takes a block out and counts back, so that a table in steady state
//! stays as fast as a new one. Nothing in it moves.

use crate::units::LogAt;
use reactor::Table;
use zerocopy::FromZeros;

/// Where a block's newest bytes are, as far as the log knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPlace {
    /// In the log, or [`IN_PLACE`].
    pub(crate) at: LogAt,
    /// CRC32C of the block.
    pub(crate) crc: u32,
}

/// The block is where placement puts it; the log knows its checksum only.
pub(crate) const IN_PLACE: LogAt = LogAt(u32::MAX);

/// Entries of a bucket: as many as a line takes beside the count.
const WAYS: usize = 5;

/// Untouched memory is an empty bucket.
#[derive(Clone, Copy, FromZeros)]
#[repr(C, align(64))]
struct Bucket {
    /// Block + 1 of each entry; 0 is empty.
    keys: [u32; WAYS],
    at: [u32; WAYS],
    crc: [u32; WAYS],
    /// Blocks that are further on because this bucket was full.
    turned_away: u32,
}

impl Bucket {
    #[inline]
    fn position(&self, key: u32) -> Option<usize> {
        // All of them, whichever it is: where it is cannot be guessed.
        let found = (0..WAYS).fold(0u32, |found, way| found | u32::from(self.keys[way] == key) << way);
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    #[inline]
    fn place(&self, way: usize) -> LogPlace {
        LogPlace { at: LogAt(self.at[way]), crc: self.crc[way] }
    }

    #[inline]
    fn put(&mut self, way: usize, key: u32, place: LogPlace) {
        (self.keys[way], self.at[way], self.crc[way]) = (key, place.at.0, place.crc);
    }
}

fn entries_of(bucket: &Bucket) -> impl Iterator<Item = (u32, LogPlace)> + '_ {
    let used = (0..WAYS).filter(|way| bucket.keys[*way] != 0);
    used.map(|way| (bucket.keys[way] - 1, bucket.place(way)))
}

/// Multiplying spreads neighbours.
#[inline]
fn spread(key: u32) -> u32 {
    let spread = key.wrapping_mul(0x9E37_79B1);
    spread ^ (spread >> 15)
}

/// Where in a map of any size a block is, to a bucket or few: enough to find it again together with what else is there, in
/// three bytes instead of four, for there are as many of these as the log has blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Near([u8; 3]);

impl Near {
    /// What it does not know of a spread key.
    const REST: u32 = 0xFF;

    #[inline]
    pub(crate) fn of(block: u32) -> Near {
        let [_, high @ ..] = spread(block + 1).to_le_bytes();
        Near(high)
    }

    /// The first spread key there is.
    #[inline]
    fn first(self) -> u32 {
        let [low, middle, high] = self.0;
        u32::from_le_bytes([0, low, middle, high])
    }
}

/// Units of the log that follow one another. (No range: the last of the largest log is `u32::MAX`.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Units {
    #[inline]
    pub(crate) fn contain(self, at: LogAt) -> bool {
        at.0.wrapping_sub(self.first) < self.count
    }
}

/// See the module.
pub(crate) struct LogMap {
    buckets: Table<Bucket>,
    len: usize,
}

impl LogMap {
    /// For up to `blocks_max` blocks.
    pub(crate) fn new(blocks_max: usize) -> LogMap {
        let slots = blocks_max + blocks_max / 3 + 16;
        LogMap { buckets: Table::zeroed(slots.div_ceil(WAYS)), len: 0 }
    }

    fn slots(&self) -> usize {
        self.buckets.len() * WAYS
    }

    /// Most blocks it takes.
    pub(crate) fn blocks_max(&self) -> usize {
        self.slots() - self.slots() / 5
    }

    /// Blocks in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Every block and its place, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, LogPlace)> + '_ {
        self.buckets.iter().flat_map(entries_of)
    }

    /// Bytes of memory it takes when every entry has been touched.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// The bucket where `key` would like to be.
    #[inline]
    fn home(&self, key: u32) -> usize {
        self.bucket_of(spread(key))
    }

    /// Taking the high half maps onto any size.
    #[inline]
    fn bucket_of(&self, spread: u32) -> usize {
        ((spread as u64 * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    /// The bucket and the way of `key`.
    #[inline]
    fn find(&self, key: u32) -> Option<(usize, usize)> {
        let mut at = self.home(key);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            if let Some(way) = bucket.position(key) {
                return Some((at, way));
            }
            if bucket.turned_away == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// The block is looked up or set soon.
    #[inline]
    pub(crate) fn prefetch(&self, block: u32) {
        reactor::prefetch(&self.buckets[self.home(block + 1)]);
    }

    /// [`remove_near`](Self::remove_near) follows.
    #[inline]
    pub(crate) fn prefetch_near(&self, near: Near) {
        reactor::prefetch(&self.buckets[self.bucket_of(near.first())]);
    }

    /// The buckets that the blocks there can be in.
    #[inline]
    fn buckets_near(&self, near: Near) -> impl Iterator<Item = usize> + '_ {
        let (first, last) = (self.bucket_of(near.first()), self.bucket_of(near.first() | Near::REST));
        let (mut next, mut left) = (Some(first), self.buckets.len());
        std::iter::from_fn(move || {
            let at = next?;
            left -= 1;
            // Those that were turned away are further on.
            let is_last = (at < first || at >= last) && self.buckets[at].turned_away == 0 || left == 0;
            next = (!is_last).then(|| self.after(at));
            Some(at)
        })
    }

    /// The blocks that are there, and their places.
    pub(crate) fn near(&self, near: Near) -> impl Iterator<Item = (u32, LogPlace)> + '_ {
        let entries = self.buckets_near(near).flat_map(|at| entries_of(&self.buckets[at]));
        entries.filter(move |(block, _)| Near::of(*block) == near)
    }

    /// The place of a block.
    #[inline]
    pub(crate) fn get(&self, block: u32) -> Option<LogPlace> {
        let (at, way) = self.find(block + 1)?;
        Some(self.buckets[at].place(way))
    }

    /// Sets the place of a block. Blocks in the log are never more than [`blocks_max`](Self::blocks_max); blocks in place can
    /// be, when many writes pass the log at once, and after a crash: replay knows again of all since the last checkpoint.
    #[inline]
    pub(crate) fn set(&mut self, block: u32, place: LogPlace) {
        match self.find(block + 1) {
            Some((at, way)) => self.buckets[at].put(way, block + 1, place),
            None => self.insert(block + 1, place),
        }
    }

    /// Takes in a key that is not there.
    #[inline]
    fn insert(&mut self, key: u32, place: LogPlace) {
        if self.len >= self.slots() - self.slots() / 8 {
            self.grow();
        }
        self.len += 1;
        let mut at = self.home(key);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(way) = bucket.position(0) {
                return bucket.put(way, key, place);
            }
            bucket.turned_away += 1;
            at = self.after(at);
        }
    }

    /// Takes a half more. Rare: a shard has no more blocks than its extents, and most maps never come here.
    #[cold]
    fn grow(&mut self) {
        let buckets = self.buckets.len() + self.buckets.len() / 2 + 1;
        let old = LogMap { buckets: std::mem::replace(&mut self.buckets, Table::zeroed(buckets)), len: self.len };
        self.len = 0;
        old.iter().for_each(|(block, place)| self.insert(block + 1, place));
    }

    /// Forgets one of the blocks there whose place is among these units of the log; which one is open.
    #[inline]
    pub(crate) fn remove_near(&mut self, near: Near, units: Units) -> Option<(u32, LogPlace)> {
        let (at, way) = self.buckets_near(near).find_map(|at| {
            let bucket = &self.buckets[at];
            // All of them, whichever it is: where it is cannot be guessed.
            let in_units = |found, way: usize| found | u32::from(units.contain(LogAt(bucket.at[way]))) << way;
            let mut found = (0..WAYS).fold(0u32, in_units);
            while found != 0 {
                let way = found.trailing_zeros() as usize;
                found &= found - 1;
                if bucket.keys[way] != 0 && Near::of(bucket.keys[way] - 1) == near {
                    return Some((at, way));
                }
            }
            None
        })?;
        let removed = (self.buckets[at].keys[way] - 1, self.buckets[at].place(way));
        self.clear(at, way);
        Some(removed)
    }

    /// Empties a way of a bucket, which has an entry.
    #[inline]
    fn clear(&mut self, found: usize, way: usize) {
        let mut at = self.home(self.buckets[found].keys[way]);
        while at != found {
            self.buckets[at].turned_away -= 1;
            at = self.after(at);
        }
        self.len -= 1;
        self.buckets[found].keys[way] = 0;
    }

    /// Forgets a block.
    #[inline]
    pub(crate) fn remove(&mut self, block: u32) -> Option<LogPlace> {
        let (found, way) = self.find(block + 1)?;
        self.clear(found, way);
        Some(self.buckets[found].place(way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn more_blocks_than_it_was_made_for_are_found_all_the_same() {
        let mut map = LogMap::new(100);
        for block in 0..5_000 {
            map.set(block * 7, LogPlace { at: IN_PLACE, crc: block });
        }
        assert_eq!(map.len(), 5_000);
        assert!((0..5_000).all(|block| map.get(block * 7).is_some_and(|place| place.crc == block)));
    }

    #[test]
    fn a_map_that_was_emptied_turns_nobody_away() {
        let (mut map, mut rng) = (LogMap::new(1000), Rng::new(3));
        for _ in 0..20 {
            let mut blocks: Vec<u32> = (0..map.blocks_max()).map(|_| rng.below(1 << 30) as u32).collect();
            blocks.iter().for_each(|block| map.set(*block, LogPlace { at: LogAt(1), crc: *block }));
            assert!(map.buckets.iter().any(|bucket| bucket.turned_away > 0), "otherwise this tests nothing");
            blocks.reverse();
            for block in blocks {
                map.remove(block);
            }
            assert!(map.len() == 0 && map.buckets.iter().all(|bucket| bucket.turned_away == 0));
        }
    }

    #[test]
    fn every_block_is_found_by_where_it_is_roughly() {
        for (blocks_max, blocks) in [(1, 1), (10, 60), (500, 500), (5_000, 9_000), (300_000, 300_000)] {
            let (mut map, mut rng) = (LogMap::new(blocks_max), Rng::new(blocks_max as u64));
            // Some are twice, and many are close enough to have others where they are.
            let range = [100, 1 << 20, u32::MAX as u64][rng.below(3) as usize];
            let blocks: Vec<u32> = (0..blocks).map(|_| rng.below(range) as u32).collect();
            for (step, block) in (0u32..).zip(&blocks) {
                map.set(*block, LogPlace { at: LogAt(step % 2), crc: *block });
            }
            let mut left = map.len();
            for block in &blocks {
                let near: Vec<(u32, LogPlace)> = map.near(Near::of(*block)).collect();
                assert!(near.iter().any(|(other, _)| other == block), "block {block}");
                assert!(near.iter().all(|(other, place)| *other == place.crc));
            }
            for block in blocks.iter().rev() {
                let wanted = map.near(Near::of(*block)).filter(|(_, place)| place.at == LogAt(1)).count();
                let gone = map.remove_near(Near::of(*block), Units { first: 1, count: 1 });
                assert_eq!(gone.is_some(), wanted > 0);
                if let Some((gone, place)) = gone {
                    assert!(place.at == LogAt(1) && place.crc == gone && map.get(gone).is_none());
                    left -= 1;
                }
            }
            assert_eq!(map.len(), left);
            assert!(map.iter().all(|(_, place)| place.at == LogAt(0)), "one for each time that it was asked");
        }
    }

    #[test]
    fn behaves_like_a_map_when_nearly_full() {
        let (mut map, mut model, mut rng) = (LogMap::new(500), BTreeMap::new(), Rng::new(1));
        for step in 0..200_000u32 {
            let block = rng.below(700) as u32 * 1021;
            if model.len() < 500 && rng.one_in(2) {
                let place = LogPlace { at: LogAt(step), crc: step ^ 77 };
                map.set(block, place);
                model.insert(block, place);
            } else {
                assert_eq!(map.remove(block), model.remove(&block));
            }
            let other = rng.below(700) as u32 * 1021;
            assert_eq!(map.get(other), model.get(&other).copied());
            assert_eq!(map.len(), model.len());
        }
    }
}
