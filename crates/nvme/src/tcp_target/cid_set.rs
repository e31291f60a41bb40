//! The command identifiers that are outstanding on a queue.

/// One bit per identifier: 8 KiB, of which hosts that number densely touch little.
pub(super) struct CidSet(Box<[u64; 1024]>);

impl CidSet {
    pub(super) fn new() -> Self {
        CidSet(Box::new([0; 1024]))
    }

    fn place(cid: u16) -> (usize, u64) {
        (usize::from(cid >> 6), 1 << (cid & 63))
    }

    /// Adds `cid`; false when it is there already.
    #[inline]
    pub(super) fn insert(&mut self, cid: u16) -> bool {
        let (word, bit) = CidSet::place(cid);
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    /// Takes `cid` out; false when it was not there.
    #[inline]
    pub(super) fn remove(&mut self, cid: u16) -> bool {
        let (word, bit) = CidSet::place(cid);
        let was_there = self.0[word] & bit != 0;
        self.0[word] &= !bit;
        was_there
    }

    /// The identifiers in the set, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        let bits = |word: u64| (0..64u16).filter(move |bit| word & 1 << bit != 0);
        words.flat_map(move |(index, word)| bits(*word).map(move |bit| (index as u16) << 6 | bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_identifier_has_a_bit_of_its_own() {
        let mut set = CidSet::new();
        assert!((0..=u16::MAX).all(|cid| set.insert(cid)));
        assert!((0..=u16::MAX).all(|cid| !set.insert(cid)));
        assert!((0..=u16::MAX).step_by(3).all(|cid| set.remove(cid) && !set.remove(cid)));
        assert!(set.iter().eq((0..=u16::MAX).filter(|cid| cid % 3 != 0)));
        assert!((0..=u16::MAX).all(|cid| set.insert(cid) == (cid % 3 == 0)));
    }
}
