//! What the cache makes of streams of reads, without devices and with time as an argument: for predictions from a trace (`remuda pool
//! simulate`), for tests, and for the table of `examples/flash_cache.rs`. The logic is the device's own; only reading and writing take no
//! time here.

use super::budget::DAY_NS;
use super::ring::{FlashCacheCounts, LookUp, Ring};
use super::{SEGMENT_BYTES_DEFAULT, check_budget, plan_ring};
use base::Rng;
use std::collections::{BTreeMap, VecDeque};

const BLOCK: u32 = 4096;

/// Whether there can be a cache on so many bytes of flash, of which at most `per_day` are written in a day; why not.
///
/// # Errors
/// As those of a device that is made.
pub fn check_plan(flash_bytes: u64, per_day: u64) -> Result<(), String> {
    plan_ring("that flash device", BLOCK, flash_bytes / u64::from(BLOCK), SEGMENT_BYTES_DEFAULT)?;
    check_budget(per_day, SEGMENT_BYTES_DEFAULT)
}

/// A cache that is asked for blocks.
pub struct Model {
    ring: Ring,
    data: Vec<u8>,
    /// Of a read that is under way.
    wanted: Vec<u64>,
    /// When how many bytes were written to flash, for as long as a window reaches back.
    written: VecDeque<(u64, u64)>,
    written_day: u64,
    written_day_max: u64,
}

impl Model {
    /// With `blocks` blocks of 4 KiB on flash, in segments of `segment_blocks`, and a budget of `per_day` bytes.
    ///
    /// # Errors
    /// Why there can be no such cache.
    pub fn new(blocks: u64, segment_blocks: u64, per_day: u64, seed: u64) -> Result<Model, String> {
        let segment_bytes = segment_blocks * BLOCK as u64;
        let (shape, _) = plan_ring("that flash device", BLOCK, blocks + 2 * segment_blocks, segment_bytes)?;
        check_budget(per_day, segment_bytes)?;
        let ring = Ring::new(shape, per_day, seed, 0);
        let (written, data) = (VecDeque::new(), vec![0; BLOCK as usize]);
        Ok(Model { ring, data, wanted: Vec::new(), written, written_day: 0, written_day_max: 0 })
    }

    /// Blocks that it can hold.
    pub fn capacity(&self) -> u64 {
        self.ring.index.slots()
    }

    /// Blocks that it holds.
    pub fn cached(&self) -> u64 {
        self.ring.index.len()
    }

    /// What has happened so far.
    pub fn counts(&self) -> FlashCacheCounts {
        self.ring.counts
    }

    /// Reads a block; whether it was cached.
    pub fn read(&mut self, block: u64, now_ns: u64) -> bool {
        self.read_all(&[block], now_ns)
    }

    /// Reads blocks in one operation; whether that was a hit.
    pub fn read_all(&mut self, blocks: &[u64], now_ns: u64) -> bool {
        if !matches!(self.ring.look_up(blocks.iter().copied()), LookUp::Missed) {
            return true;
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.extend(blocks.iter().filter(|block| self.ring.wants(**block, now_ns)));
        for block in wanted.drain(..) {
            let _ = self.ring.admit(block, 0, &self.data, 0, now_ns);
        }
        self.wanted = wanted;
        self.pump(now_ns);
        false
    }

    /// Writes a block, which ends that it is cached.
    pub fn write(&mut self, block: u64) {
        self.ring.invalidate(block, 1);
    }

    /// The process ends and begins again; the cache stays, the bucket does not.
    pub fn restart(&mut self, now_ns: u64) {
        let per_day = self.ring.budget.per_day();
        self.ring.budget = super::budget::Budget::new(per_day, now_ns);
    }

    fn pump(&mut self, now_ns: u64) {
        while self.ring.has_work() {
            for survivor in self.ring.take_survivors() {
                let is_let = self.ring.admit(survivor.lba, survivor.crc, &self.data, 0, now_ns);
                self.ring.counts.readmitted += is_let as u64;
            }
            if let Some(outgoing) = self.ring.outgoing() {
                let shape = self.ring.shape;
                let bytes = (shape.header_blocks + outgoing.entries.len() as u64) * BLOCK as u64;
                self.ring.charge(bytes, now_ns);
                self.ring.finish(true);
                self.note(bytes, now_ns);
            }
        }
    }

    fn note(&mut self, bytes: u64, now_ns: u64) {
        self.written.push_back((now_ns, bytes));
        self.written_day += bytes;
        while let Some((at_ns, old)) = self.written.front().copied()
            && at_ns + DAY_NS <= now_ns
        {
            self.written_day -= old;
            self.written.pop_front();
        }
        self.written_day_max = self.written_day_max.max(self.written_day);
    }

    /// The most bytes written to flash in any 24 hours.
    pub fn written_day_max(&self) -> u64 {
        self.written_day_max
    }

    /// Bytes written to flash so far.
    pub fn written(&self) -> u64 {
        self.ring.written_total
    }
}

/// What it is compared with: the least recently read block goes.
pub struct Lru {
    capacity: u64,
    clock: u64,
    by_block: BTreeMap<u64, u64>,
    by_age: BTreeMap<u64, u64>,
}

impl Lru {
    /// Of `capacity` blocks.
    pub fn new(capacity: u64) -> Lru {
        Lru { capacity, clock: 0, by_block: BTreeMap::new(), by_age: BTreeMap::new() }
    }

    /// Reads a block; whether it was cached.
    pub fn read(&mut self, block: u64) -> bool {
        self.clock += 1;
        let before = self.by_block.insert(block, self.clock);
        if let Some(before) = before {
            self.by_age.remove(&before);
        }
        self.by_age.insert(self.clock, block);
        if self.by_block.len() as u64 > self.capacity
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_block.remove(&oldest);
        }
        before.is_some()
    }
}

/// Blocks by Zipf's law: the nth most popular of `blocks` is read with a frequency of n to the power of `-theta`.
pub struct Zipf {
    cumulated: Vec<f64>,
}

impl Zipf {
    /// For up to some millions of blocks.
    pub fn new(blocks: u64, theta: f64) -> Zipf {
        let mut sum = 0.0;
        let add = |rank: u64| {
            sum += (rank as f64).powf(-theta);
            sum
        };
        Zipf { cumulated: (1..=blocks).map(add).collect() }
    }

    /// The next block; popular ones lie anywhere.
    pub fn next(&self, rng: &mut Rng) -> u64 {
        let total = self.cumulated.last().copied().unwrap_or(0.0);
        let at = rng.unit() * total;
        let rank = self.cumulated.partition_point(|sum| *sum <= at) as u64;
        rank.wrapping_mul(0x9E37_79B1) % (1 << 36)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 20_000;

    fn model(per_day: u64) -> Model {
        Model::new(CAPACITY, 256, per_day, 5).unwrap()
    }

    /// Reads at `rate` per second for `days`; the hit ratio of the second half.
    fn run(model: &mut Model, days: f64, rate: u64, mut next: impl FnMut(u64) -> u64) -> f64 {
        let reads = (days * 86_400.0) as u64 * rate;
        let mut hits = 0;
        for nth in 0..reads {
            let hit = model.read(next(nth), nth * (1_000_000_000 / rate));
            hits += (hit && nth >= reads / 2) as u64;
        }
        hits as f64 / (reads - reads / 2) as f64
    }

    #[test]
    fn a_read_of_which_a_part_is_not_cached_is_no_hit() {
        let mut cache = model(1 << 50);
        let reads: Vec<bool> = (0..4).map(|nth| cache.read_all(&[1, 2], nth * DAY_NS / 100)).collect();
        assert_eq!(reads, [false, false, true, true], "the second sighting lets them in");
        assert!(!cache.read_all(&[2, 3], DAY_NS));
        let counts = cache.counts();
        assert_eq!((counts.hits, counts.misses, counts.admitted, cache.cached()), (4, 6, 2, 2));
    }

    #[test]
    fn what_no_device_would_be_made_of_is_refused() {
        assert!(check_plan(1 << 40, 300 << 30).is_ok());
        assert!(check_plan(1 << 20, 300 << 30).unwrap_err().contains("at least nine segments"));
        assert!(check_plan(1 << 40, 1 << 20).unwrap_err().contains("a write budget of 1048576 bytes per day"));
    }

    #[test]
    fn with_an_ample_budget_the_hit_ratio_is_about_that_of_lru() {
        for theta in [0.6, 0.8, 0.9, 1.0, 1.2] {
            let zipf = Zipf::new(200_000, theta);
            let (mut cache, mut rng) = (model(1 << 50), Rng::new(7));
            let mut lru = Lru::new(cache.capacity());
            let (mut lru_hits, reads) = (0, 20 * 86_400);
            let ratio = run(&mut cache, 20.0, 1, |nth| {
                let block = zipf.next(&mut rng);
                let hit = lru.read(block);
                lru_hits += (hit && nth >= reads / 2) as u64;
                block
            });
            let lru_ratio = lru_hits as f64 / (reads / 2) as f64;
            println!("theta {theta}: {ratio:.3}, LRU {lru_ratio:.3}, written {}", cache.written() >> 20);
            assert!(ratio >= 0.9 * lru_ratio, "theta {theta}: {ratio:.3} of LRU's {lru_ratio:.3}");
        }
    }

    #[test]
    fn the_budget_is_kept_and_nearly_used_where_there_is_demand() {
        let zipf = Zipf::new(1_000_000, 0.8);
        let per_day = 64 << 20;
        type Next<'a> = Box<dyn FnMut(u64) -> u64 + 'a>;
        let mut rngs = [Rng::new(1), Rng::new(2), Rng::new(3)];
        let [one, two, three] = &mut rngs;
        // The least and the most of the budget that should be used: blocks that come once are no demand.
        let cases: Vec<(&str, f64, f64, Next)> = vec![
            ("zipf", 0.9, 1.05, Box::new(|_| zipf.next(one))),
            ("scan", 0.0, 0.2, Box::new(|nth| nth)),
            ("random", 0.9, 1.05, Box::new(|_| two.below(60_000))),
            ("each block twice", 0.9, 1.05, Box::new(|nth| nth / 2)),
            (
                "demand half of the time",
                0.4,
                0.6,
                Box::new(|nth| if nth / 200_000 % 2 == 0 { nth % 30_000 } else { three.below(1 << 36) }),
            ),
        ];
        for (name, least, highest, next) in cases {
            let mut cache = model(per_day);
            run(&mut cache, 4.0, 5, next);
            let (most, total) =
                (cache.written_day_max() as f64 / per_day as f64, cache.written() as f64 / (4 * per_day) as f64);
            println!("{name}: most in a day {most:.3}, in all {total:.3} of the budget");
            assert!(most <= 1.05, "{name}: {most}");
            assert!((least..highest).contains(&total), "{name}: {total}");
        }
    }

    #[test]
    fn the_budget_is_kept_by_those_who_work_against_it() {
        let per_day = 400 << 20;
        for seed in 0..10 {
            let (mut cache, mut rng, mut now_ns) = (model(per_day), Rng::new(seed), 0);
            let mut base = 0;
            while now_ns < 3 * DAY_NS {
                // Silence fills the bucket, a burst empties it; restarts try to fill it again.
                now_ns += rng.below(DAY_NS / 50);
                for _ in 0..rng.between(1, 20) {
                    for block in base..base + 1000 {
                        for _ in 0..3 {
                            cache.read(block, now_ns);
                        }
                        if rng.one_in(3) {
                            cache.write(block);
                        }
                    }
                    base += rng.below(2000);
                    now_ns += rng.below(1_000_000_000);
                    if rng.one_in(4) {
                        cache.restart(now_ns);
                    }
                }
            }
            let most = cache.written_day_max() as f64 / per_day as f64;
            assert!(most <= 1.05, "seed {seed}: {most}");
        }
    }

    #[test]
    fn a_scan_neither_takes_the_place_of_what_is_used_nor_much_of_the_budget() {
        let zipf = Zipf::new(15_000, 0.6);
        let (mut cache, mut rng) = (model(1 << 50), Rng::new(7));
        let before = run(&mut cache, 5.0, 5, |_| zipf.next(&mut rng));
        let written = cache.written();
        let first = 1 << 37;
        let now_ns = 5 * DAY_NS;
        for block in 0..20 * CAPACITY {
            cache.read(first + block, now_ns);
        }
        let scan_bytes = cache.written() - written;
        let scanned = 20 * CAPACITY * BLOCK as u64;
        let hits = (0..20_000).filter(|_| cache.read(zipf.next(&mut rng), now_ns)).count();
        let after = hits as f64 / 20_000.0;
        println!("{before:.3} before, {after:.3} after, {:.4} of the scan written", scan_bytes as f64 / scanned as f64);
        assert!(after >= 0.95 * before, "{after} after {before}");
        assert!(scan_bytes * 20 < scanned, "{scan_bytes} of {scanned}");
    }
}
