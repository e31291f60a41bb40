//! Which blocks have been asked for before: a frequency sketch of those that were missed, in 3 bytes per block of the cache.
//!
//! Most blocks of a large device are seen once. These reach only the *doorkeeper*, a Bloom filter of 16 bits per cached block;
//! what passes it is counted in a count-min sketch of 4-bit counters (as TinyLFU does, Einziger et al., ACM ToS 2017). After
//! as many sightings as two caches have blocks, counters are halved and the doorkeeper starts empty, so that the sketch
//! follows what is asked for now. Until then at most one in forty first sightings passes as a second one.

const ROWS: usize = 4;
const DOOR_BITS_PER_BLOCK: u64 = 16;
/// Counters of a row, as a part of the cache's blocks.
const BLOCKS_PER_COUNTER: u64 = 2;
const WINDOW_CACHES: u64 = 2;
const COUNTER_MAX: u64 = 15;

/// See the module.
pub(super) struct Sketch {
    door: Vec<u64>,
    /// Sixteen counters a word; the rows follow each other.
    counters: Vec<u64>,
    row_words: u64,
    sightings: u64,
    window: u64,
}

/// A mixer of 64 bits (SplitMix64's finaliser).
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

/// A number below `bound` made of the hash.
pub(super) fn reduce(hash: u64, bound: u64) -> u64 {
    ((hash as u128 * bound as u128) >> 64) as u64
}

impl Sketch {
    /// For a cache of `blocks` blocks.
    pub(super) fn new(blocks: u64) -> Sketch {
        let blocks = blocks.max(64);
        let row_words = (blocks / BLOCKS_PER_COUNTER).div_ceil(16);
        Sketch {
            door: vec![0; (blocks * DOOR_BITS_PER_BLOCK / 64) as usize],
            counters: vec![0; ROWS * row_words as usize],
            row_words,
            sightings: 0,
            window: blocks * WINDOW_CACHES,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        8 * (self.door.len() + self.counters.len()) as u64
    }

    /// Notes a sighting; how often the block was seen in the window, this one counted: 1 is the first time.
    pub(super) fn see(&mut self, block: u64) -> u64 {
        self.sightings += 1;
        if self.sightings > self.window {
            self.age();
        }
        let was_seen = self.pass_door(block);
        if was_seen { 2 + self.count(block) } else { 1 }
    }

    /// Whether the block was seen before.
    fn pass_door(&mut self, block: u64) -> bool {
        let bits = self.door.len() as u64 * 64;
        let mut all = true;
        for salt in 0..4 {
            let bit = reduce(mix(block ^ mix(salt + 1)), bits);
            let word = &mut self.door[(bit / 64) as usize];
            all &= *word >> (bit % 64) & 1 == 1;
            *word |= 1 << (bit % 64);
        }
        all
    }

    /// How often it passed before; counts this time.
    fn count(&mut self, block: u64) -> u64 {
        let places: [(usize, u32); ROWS] = std::array::from_fn(|row| {
            let counter = reduce(mix(block ^ mix(row as u64 + 100)), self.row_words * 16);
            ((row as u64 * self.row_words + counter / 16) as usize, (counter % 16 * 4) as u32)
        });
        let least = places.iter().map(|(word, shift)| self.counters[*word] >> shift & COUNTER_MAX).min().unwrap_or(0);
        if least < COUNTER_MAX {
            for (word, shift) in places {
                if self.counters[word] >> shift & COUNTER_MAX == least {
                    self.counters[word] += 1 << shift;
                }
            }
        }
        least
    }

    fn age(&mut self) {
        self.sightings = 0;
        self.door.fill(0);
        self.counters.iter_mut().for_each(|word| *word = *word >> 1 & 0x7777_7777_7777_7777);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sightings_are_counted_and_forgotten_and_first_ones_rarely_taken_for_second_ones() {
        let mut sketch = Sketch::new(10_000);
        assert_eq!((1..=5).map(|_| sketch.see(77)).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert!((0..100).all(|_| sketch.see(77) <= 2 + COUNTER_MAX));
        let wrong = (0..19_000).filter(|n| sketch.see(1_000_000 + n) > 1).count();
        assert!(wrong < 19_000 / 40, "{wrong}");
        let before = sketch.see(77);
        for n in 0..40_000 {
            sketch.see(2_000_000 + n);
        }
        assert!(before > 10 && sketch.see(77) < before);
        assert_eq!(sketch.bytes() / 10_000, 3);
    }
}
