//! Block -> its newest place in the log, and its checksum: an open-addressing table of 12-byte entries.
//!
//! Sized once, for as many blocks as the log can hold, so that it never grows and never moves. Deletion shifts back
//! instead of leaving marks, so that a table in steady state stays as fast as a new one.

use crate::units::LogAt;

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

#[derive(Clone, Copy)]
struct Entry {
    /// Block + 1; 0 is empty, so that untouched memory is an empty table.
    key: u32,
    at: u32,
    crc: u32,
}

const EMPTY: Entry = Entry { key: 0, at: 0, crc: 0 };

/// See the module.
pub(crate) struct LogMap {
    entries: Box<[Entry]>,
    len: usize,
}

impl LogMap {
    /// For up to `blocks_max` blocks.
    pub(crate) fn new(blocks_max: usize) -> LogMap {
        let slots = blocks_max + blocks_max / 5 + 16;
        LogMap { entries: vec![EMPTY; slots].into_boxed_slice(), len: 0 }
    }

    /// Most blocks it takes.
    pub(crate) fn blocks_max(&self) -> usize {
        self.entries.len() - self.entries.len() / 8
    }

    /// Blocks in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Every block and its place, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, LogPlace)> + '_ {
        let used = self.entries.iter().filter(|entry| entry.key != 0);
        used.map(|entry| (entry.key - 1, LogPlace { at: LogAt(entry.at), crc: entry.crc }))
    }

    /// Bytes of memory it takes when every entry has been touched.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry>()
    }

    /// The slot where `key` would like to be. Multiplying spreads neighbours; taking the high half maps onto any size.
    #[inline]
    fn home(&self, key: u32) -> usize {
        let spread = key.wrapping_mul(0x9E37_79B1);
        let spread = spread ^ (spread >> 15);
        ((spread as u64 * self.entries.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.entries.len() { 0 } else { slot + 1 }
    }

    #[inline]
    fn find(&self, key: u32) -> Result<usize, usize> {
        let mut slot = self.home(key);
        loop {
            let found = self.entries[slot].key;
            if found == key {
                return Ok(slot);
            }
            if found == 0 {
                return Err(slot);
            }
            slot = self.after(slot);
        }
    }

    /// The block is looked up or set soon.
    #[inline]
    pub(crate) fn prefetch(&self, block: u32) {
        reactor::prefetch(&self.entries[self.home(block + 1)]);
    }

    /// The place of a block.
    #[inline]
    pub(crate) fn get(&self, block: u32) -> Option<LogPlace> {
        let slot = self.find(block + 1).ok()?;
        let entry = &self.entries[slot];
        Some(LogPlace { at: LogAt(entry.at), crc: entry.crc })
    }

    /// Sets the place of a block. Blocks in the log are never more than [`blocks_max`](Self::blocks_max); blocks in place can
    /// be, when many writes pass the log at once, and after a crash: replay knows again of all since the last checkpoint.
    #[inline]
    pub(crate) fn set(&mut self, block: u32, place: LogPlace) {
        let entry = Entry { key: block + 1, at: place.at.0, crc: place.crc };
        match self.find(entry.key) {
            Ok(slot) => self.entries[slot] = entry,
            Err(slot) => {
                self.entries[slot] = entry;
                self.len += 1;
                if self.len > self.entries.len() - self.entries.len() / 16 {
                    self.grow();
                }
            }
        }
    }

    /// Takes a half more. Rare: a shard has no more blocks than its extents, and most maps never come here.
    #[cold]
    fn grow(&mut self) {
        let slots = self.entries.len() + self.entries.len() / 2 + 16;
        let old = std::mem::replace(&mut self.entries, vec![EMPTY; slots].into_boxed_slice());
        for entry in old.iter().filter(|entry| entry.key != 0) {
            let slot = self.find(entry.key).expect_err("every block is in the map once");
            self.entries[slot] = *entry;
        }
    }

    /// Forgets a block.
    #[inline]
    pub(crate) fn remove(&mut self, block: u32) -> Option<LogPlace> {
        let mut hole = self.find(block + 1).ok()?;
        let removed = self.entries[hole];
        self.len -= 1;
        let slots = self.entries.len();
        let mut next = self.after(hole);
        while self.entries[next].key != 0 {
            let home = self.home(self.entries[next].key);
            // How far the entry is from home, and how far the hole is: moving is right when the hole is not before home.
            let distance = (next + slots - home) % slots;
            let to_hole = (next + slots - hole) % slots;
            if distance >= to_hole {
                self.entries[hole] = self.entries[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.entries[hole] = EMPTY;
        Some(LogPlace { at: LogAt(removed.at), crc: removed.crc })
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
