//! Commands of a connection that wait for something, by command identifier. Fixed capacity, no allocation after creation.

/// Open addressing with linear probing and backward-shift deletion, at most half full.
pub(super) struct CidMap<T> {
    slots: Box<[Option<(u16, T)>]>,
    len: usize,
}

impl<T> CidMap<T> {
    /// Room for `capacity` commands.
    pub(super) fn new(capacity: usize) -> Self {
        let slots = (capacity * 2).next_power_of_two().max(8);
        CidMap { slots: (0..slots).map(|_| None).collect(), len: 0 }
    }

    /// Multiplicative hashing: hosts number commands densely, some with a generation in the top bits.
    fn home(&self, cid: u16) -> usize {
        (cid as usize).wrapping_mul(0x9E37) >> 3 & (self.slots.len() - 1)
    }

    fn find(&self, cid: u16) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(cid);
        loop {
            match &self.slots[at] {
                None => return Err(at),
                Some((other, _)) if *other == cid => return Ok(at),
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    pub(super) fn get_mut(&mut self, cid: u16) -> Option<&mut T> {
        let at = self.find(cid).ok()?;
        self.slots[at].as_mut().map(|(_, value)| value)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every command, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten().map(|(_, value)| value)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten().map(|(_, value)| value)
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().flatten().map(|(_, value)| value)
    }

    pub(super) fn contains(&self, cid: u16) -> bool {
        self.find(cid).is_ok()
    }

    /// Adds a command; false when it is there already or the map is full.
    pub(super) fn insert(&mut self, cid: u16, value: T) -> bool {
        if self.len * 2 >= self.slots.len() {
            return false;
        }
        match self.find(cid) {
            Ok(_) => false,
            Err(at) => {
                self.slots[at] = Some((cid, value));
                self.len += 1;
                true
            }
        }
    }

    pub(super) fn remove(&mut self, cid: u16) -> Option<T> {
        let mask = self.slots.len() - 1;
        let mut hole = self.find(cid).ok()?;
        let (_, value) = self.slots[hole].take()?;
        self.len -= 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some((other, _)) = &self.slots[at] else { return Some(value) };
            let home = self.home(*other);
            // Moves back what could not have been placed closer to its home than the hole.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[at].take();
                hole = at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn behaves_like_a_map_at_full_load() {
        let mut rng = Rng::new(3);
        let mut map = CidMap::new(128);
        let mut model = BTreeMap::new();
        for step in 0..100_000u32 {
            let cid = (rng.below(200) as u16) | (rng.below(4) as u16) << 12;
            if rng.one_in(2) {
                assert_eq!(map.remove(cid), model.remove(&cid));
            } else if model.len() < 128 {
                assert_eq!(map.insert(cid, step), !model.contains_key(&cid));
                model.entry(cid).or_insert(step);
            }
            assert_eq!(map.len, model.len());
            assert_eq!(map.get_mut(cid).copied(), model.get(&cid).copied());
        }
    }
}
