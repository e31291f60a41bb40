//! Log-linear histograms of non-negative integers (nanoseconds, mostly): 64 buckets per power of two, so every
//! percentile is within 1.6 % of the truth. [`Histogram`] is owned; [`AtomicHistogram`] has one writer and many readers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SUB_BITS: u32 = 6;
const SUB: usize = 1 << SUB_BITS;
/// Values at or above 2^MAX_BITS (18 minutes in ns) land in the last bucket.
const MAX_BITS: u32 = 40;
/// Number of buckets of either histogram.
pub const BUCKETS: usize = SUB * (MAX_BITS - SUB_BITS + 1) as usize;

#[inline]
fn bucket_of(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let top = 63 - value.leading_zeros();
    if top >= MAX_BITS {
        return BUCKETS - 1;
    }
    let shift = top - SUB_BITS;
    (shift as usize + 1) * SUB + ((value >> shift) as usize - SUB)
}

/// The largest value that falls into `bucket`.
pub fn bucket_upper(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = bucket / SUB - 1;
    (((SUB + bucket % SUB) as u64 + 1) << shift) - 1
}

/// A histogram with one owner.
#[derive(Clone)]
pub struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
    sum: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: vec![0; BUCKETS].into_boxed_slice().try_into().expect("the length is BUCKETS"),
            count: 0,
            sum: 0,
            max: 0,
        }
    }
}

impl Histogram {
    /// Counts one `value`.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.buckets[bucket_of(value)] += 1;
        self.count += 1;
        self.sum = self.sum.wrapping_add(value);
        self.max = self.max.max(value);
    }

    /// Adds everything `other` counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Adds what `shared` has counted so far, without making a copy of it.
    pub fn merge_shared(&mut self, shared: &AtomicHistogram) {
        let mut added = 0;
        for (mine, theirs) in self.buckets.iter_mut().zip(shared.buckets.iter()) {
            let count = theirs.load(Relaxed);
            *mine += count;
            added += count;
        }
        // As in a snapshot, the total is that of the buckets.
        self.count += added;
        self.sum = self.sum.wrapping_add(shared.sum.load(Relaxed));
        self.max = self.max.max(shared.max.load(Relaxed));
    }

    /// What was counted after `earlier`, an older state of the same counts. Of the largest value, its bucket is known.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut later = Histogram::default();
        for (bucket, (now, then)) in self.buckets.iter().zip(earlier.buckets.iter()).enumerate() {
            let count = now.saturating_sub(*then);
            if count > 0 {
                later.buckets[bucket] = count;
                later.count += count;
                later.max = bucket_upper(bucket).min(self.max);
            }
        }
        later.sum = self.sum.saturating_sub(earlier.sum);
        later
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest value counted, exactly.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Arithmetic mean; 0 when empty.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The value below or at which `percent` (0 to 100) of the values lie; 0 when empty.
    pub fn percentile(&self, percent: f64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let rank = ((percent / 100.0 * self.count as f64).ceil() as u64).clamp(1, self.count);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return bucket_upper(bucket).min(self.max);
            }
        }
        self.max
    }

    /// How many values are at most `bound` (rounded to a bucket), for cumulative exports.
    pub fn count_at_most(&self, bound: u64) -> u64 {
        self.buckets[..=bucket_of(bound)].iter().sum()
    }
}

/// A histogram written by one reactor and read by any thread: plain loads and stores, no locked instruction.
pub struct AtomicHistogram {
    buckets: Box<[AtomicU64]>,
    count: AtomicU64,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for AtomicHistogram {
    fn default() -> Self {
        AtomicHistogram {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }
}

impl AtomicHistogram {
    /// Counts one `value`. Only one thread may record: concurrent writers would lose counts (never memory safety).
    #[inline]
    pub fn record(&self, value: u64) {
        let bump = |cell: &AtomicU64, by: u64| cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
        bump(&self.buckets[bucket_of(value)], 1);
        bump(&self.count, 1);
        bump(&self.sum, value);
        if value > self.max.load(Relaxed) {
            self.max.store(value, Relaxed);
        }
    }

    /// A copy of what was counted so far.
    pub fn snapshot(&self) -> Histogram {
        let mut copy = Histogram::default();
        for (mine, theirs) in copy.buckets.iter_mut().zip(self.buckets.iter()) {
            *mine = theirs.load(Relaxed);
        }
        // The total is taken from the buckets so that percentiles stay consistent while the writer goes on.
        copy.count = copy.buckets.iter().sum();
        copy.sum = self.sum.load(Relaxed);
        copy.max = self.max.load(Relaxed);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_cover_their_values() {
        for value in (0..5000).chain([u64::MAX, 1 << 39, (1 << 40) - 1, 123_456_789]) {
            let bucket = bucket_of(value);
            if value < 1 << MAX_BITS {
                assert!(bucket_upper(bucket) >= value && (bucket == 0 || bucket_upper(bucket - 1) < value), "{value}");
            }
        }
    }

    #[test]
    fn percentiles_are_within_two_percent() {
        let mut histogram = Histogram::default();
        (1..=100_000u64).for_each(|v| histogram.record(v));
        for percent in [1.0, 50.0, 99.0, 99.9] {
            let exact = percent * 1000.0;
            assert!((histogram.percentile(percent) as f64 / exact - 1.0).abs() < 0.02, "p{percent}");
        }
        assert_eq!(histogram.max(), 100_000);
    }

    #[test]
    fn merging_equals_recording_both() {
        let (mut a, mut b, mut both) = (Histogram::default(), Histogram::default(), Histogram::default());
        for v in 0..1000 {
            if v % 3 == 0 {
                a.record(v)
            } else {
                b.record(v)
            }
            both.record(v);
        }
        a.merge(&b);
        assert_eq!((a.count(), a.sum(), a.percentile(90.0)), (both.count(), both.sum(), both.percentile(90.0)));
    }

    #[test]
    fn a_snapshot_of_the_shared_kind_counts_the_same() {
        let shared = AtomicHistogram::default();
        (0..500).for_each(|v| shared.record(v * 1000));
        let copy = shared.snapshot();
        assert_eq!((copy.count(), copy.max()), (500, 499_000));
        let mut merged = Histogram::default();
        merged.merge_shared(&shared);
        merged.merge_shared(&shared);
        assert_eq!((merged.count(), merged.sum(), merged.max()), (1000, 2 * copy.sum(), 499_000));
        assert_eq!(merged.percentile(30.0), copy.percentile(30.0));
    }

    #[test]
    fn what_came_since_an_earlier_state_is_all_that_is_counted() {
        let mut histogram = Histogram::default();
        (0..100).for_each(|_| histogram.record(5_000_000));
        let earlier = histogram.clone();
        (0..1000u64).for_each(|v| histogram.record(v * 100));
        let later = histogram.since(&earlier);
        assert_eq!((later.count(), later.sum()), (1000, (0..1000).map(|v| v * 100).sum()));
        assert!((99_900..=101_500).contains(&later.max()), "{}", later.max());
        assert!(later.percentile(50.0).abs_diff(50_000) < 1_000);
        // Counters that went back (another object of the same name) give nothing, not a wrapped number.
        assert_eq!((earlier.since(&histogram).count(), earlier.since(&histogram).percentile(99.0)), (0, 0));
    }
}
