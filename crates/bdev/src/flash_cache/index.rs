//! Where the cached blocks are: 14 bytes per block of the cache, and no allocation after the start.
//!
//! A *slot* is a place for one block on flash. Per slot there are the block's address, its checksum, and how often it was hit;
//! slots are found by address in an open table of slot numbers, four fifths full at most, with linear probing and deletion by
//! moving back what follows.

use super::sketch::{mix, reduce};

/// Bits of the upper part of an address; the other two count hits.
const HIGH_BITS: u32 = 6;
const HITS_MAX: u8 = 3;
/// Blocks that can be addressed.
pub(super) const BLOCKS_MAX: u64 = 1 << (32 + HIGH_BITS);
/// Slots that can be numbered.
pub(super) const SLOTS_MAX: u64 = u32::MAX as u64 - 1;

/// See the module.
pub(super) struct Index {
    /// Slot numbers plus one; 0 is free.
    table: Vec<u32>,
    low: Vec<u32>,
    high: Vec<u8>,
    crcs: Vec<u32>,
    len: u64,
}

impl Index {
    pub(super) fn new(slots: u64) -> Index {
        assert!(slots <= SLOTS_MAX, "checked when the geometry was planned");
        let slots = slots as usize;
        Index {
            table: vec![0; slots + slots / 4 + 1],
            low: vec![0; slots],
            high: vec![0; slots],
            crcs: vec![0; slots],
            len: 0,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.table.len() as u64 * 4 + self.low.len() as u64 * 9
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn slots(&self) -> u64 {
        self.low.len() as u64
    }

    fn home(&self, lba: u64) -> usize {
        reduce(mix(lba), self.table.len() as u64) as usize
    }

    /// The address that a slot had last.
    fn lba_of(&self, slot: u32) -> u64 {
        let high = self.high[slot as usize] & ((1 << HIGH_BITS) - 1);
        self.low[slot as usize] as u64 | (high as u64) << 32
    }

    /// Where the address is in the table, or the free place at which its search ended.
    fn find(&self, lba: u64) -> Result<usize, usize> {
        let mut at = self.home(lba);
        loop {
            match self.table[at] {
                0 => return Err(at),
                entry if self.lba_of(entry - 1) == lba => return Ok(at),
                _ => at = if at + 1 == self.table.len() { 0 } else { at + 1 },
            }
        }
    }

    pub(super) fn get(&self, lba: u64) -> Option<u32> {
        self.find(lba).ok().map(|at| self.table[at] - 1)
    }

    /// The address that is in a slot now.
    pub(super) fn in_slot(&self, slot: u32) -> Option<u64> {
        let lba = self.lba_of(slot);
        (self.get(lba) == Some(slot)).then_some(lba)
    }

    pub(super) fn crc(&self, slot: u32) -> u32 {
        self.crcs[slot as usize]
    }

    pub(super) fn hits(&self, slot: u32) -> u8 {
        self.high[slot as usize] >> HIGH_BITS
    }

    pub(super) fn hit(&mut self, slot: u32) {
        if self.hits(slot) < HITS_MAX {
            self.high[slot as usize] += 1 << HIGH_BITS;
        }
    }

    /// Puts a block in a slot that holds none; the block is nowhere else then.
    pub(super) fn insert(&mut self, lba: u64, slot: u32, crc: u32) {
        assert!(lba < BLOCKS_MAX, "checked when the geometry was planned");
        assert!(self.in_slot(slot).is_none(), "a slot is emptied before it is used again");
        self.remove(lba);
        let Err(at) = self.find(lba) else { unreachable!("it was removed") };
        self.low[slot as usize] = lba as u32;
        self.high[slot as usize] = (lba >> 32) as u8;
        self.crcs[slot as usize] = crc;
        self.table[at] = slot + 1;
        self.len += 1;
    }

    /// Forgets a block; whether it was there.
    pub(super) fn remove(&mut self, lba: u64) -> bool {
        let Ok(mut free) = self.find(lba) else { return false };
        let len = self.table.len();
        let mut at = free;
        loop {
            at = if at + 1 == len { 0 } else { at + 1 };
            let entry = self.table[at];
            if entry == 0 {
                break;
            }
            // What lies at or before the free place, seen from its home, may move there.
            let home = self.home(self.lba_of(entry - 1));
            if (at + len - home) % len >= (at + len - free) % len {
                self.table[free] = entry;
                free = at;
            }
        }
        self.table[free] = 0;
        self.len -= 1;
        true
    }

    pub(super) fn clear(&mut self) {
        self.table.fill(0);
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn the_index_is_a_map_whatever_comes_and_goes() {
        let mut rng = Rng::new(3);
        let (mut index, mut model) = (Index::new(200), BTreeMap::new());
        for step in 0..60_000 {
            let lba = rng.below(300) * ((BLOCKS_MAX - 1) / 300);
            if rng.one_in(2) {
                assert_eq!(index.remove(lba), model.remove(&lba).is_some());
            } else {
                let slot = rng.below(200) as u32;
                if let Some(old) = index.in_slot(slot) {
                    index.remove(old);
                    model.remove(&old);
                }
                index.insert(lba, slot, step);
                model.insert(lba, (slot, step));
            }
            assert_eq!(index.len(), model.len() as u64);
        }
        for lba in (0..300).map(|n| n * ((BLOCKS_MAX - 1) / 300)) {
            let found = index.get(lba).map(|slot| (slot, index.crc(slot)));
            assert_eq!(found, model.get(&lba).copied());
            assert!(found.is_none_or(|(slot, _)| index.in_slot(slot) == Some(lba)));
        }
    }

    #[test]
    fn a_block_takes_fourteen_bytes() {
        assert_eq!(Index::new(100_000).bytes() / 100_000, 14);
    }
}
