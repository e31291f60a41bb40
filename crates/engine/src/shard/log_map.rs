//! Block -> its newest place in the log, and its checksum: a table of buckets that are lines of the cache.
//!
//! Sized once, for as many blocks as the log can hold, so that it rarely grows. Almost every lookup, of a block that is there
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
        self.buckets.iter().flat_map(|bucket| {
            let used = (0..WAYS).filter(|way| bucket.keys[*way] != 0);
            used.map(|way| (bucket.keys[way] - 1, bucket.place(way)))
        })
    }

    /// Bytes of memory it takes when every entry has been touched.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// The bucket where `key` would like to be. Multiplying spreads neighbours; taking the high half maps onto any size.
    #[inline]
    fn home(&self, key: u32) -> usize {
        let spread = key.wrapping_mul(0x9E37_79B1);
        let spread = spread ^ (spread >> 15);
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

    /// Forgets a block.
    #[inline]
    pub(crate) fn remove(&mut self, block: u32) -> Option<LogPlace> {
        let (found, way) = self.find(block + 1)?;
        let mut at = self.home(block + 1);
        while at != found {
            self.buckets[at].turned_away -= 1;
            at = self.after(at);
        }
        self.len -= 1;
        self.buckets[found].keys[way] = 0;
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
