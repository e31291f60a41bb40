//! How many bytes may be written to flash: a token bucket whose size makes the promise hold in every window of 24 hours.
//!
//! Tokens come at the rate of the budget, and the bucket holds just under a twentieth of a day's. So what is taken in any
//! 24 hours is at most that day's tokens and what was in the bucket before: less than 1.05 budgets. Whoever wants more than
//! the budget gets all of it but what the bucket still holds at the end of the window.
//!
//! A bucket starts empty, which is at most what the one of the process before had when that ended, and time while nobody has
//! the device open brings no tokens. So restarts, crashes and clocks that start again cannot add anything: nothing of the
//! bucket has to be durable.

/// Nanoseconds of a day.
pub const DAY_NS: u64 = 86_400_000_000_000;
/// Parts of the window of what was written.
pub(super) const BINS: usize = 96;
const BIN_NS: u64 = DAY_NS / BINS as u64;
/// Thousandths of a day's budget in the bucket: what remains to 0.05 is for clocks that are read a little apart.
const BURST_MILLI: u64 = 48;
/// Segments that the bucket must hold.
const BURST_SEGMENTS: u64 = 2;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    per_day: u64,
    level: i64,
    /// Parts of a byte that have come, in bytes times nanoseconds of a day.
    fraction: u64,
    last_ns: u64,
}

impl Budget {
    /// An empty bucket at `now_ns`.
    pub(super) fn new(per_day: u64, now_ns: u64) -> Budget {
        Budget { per_day, level: 0, fraction: 0, last_ns: now_ns }
    }

    /// The least bytes per day with which segments of `segment_bytes` can be written.
    pub(super) fn per_day_min(segment_bytes: u64) -> u64 {
        (segment_bytes * BURST_SEGMENTS * 1000).div_ceil(BURST_MILLI)
    }

    pub(super) fn per_day(&self) -> u64 {
        self.per_day
    }

    /// From when the bucket was looked at last.
    pub(super) fn set_per_day(&mut self, per_day: u64) {
        self.per_day = per_day;
        self.level = self.level.min(self.burst());
    }

    fn burst(&self) -> i64 {
        (self.per_day as u128 * BURST_MILLI as u128 / 1000).min(i64::MAX as u128) as i64
    }

    fn advance(&mut self, now_ns: u64) {
        let elapsed = now_ns.saturating_sub(self.last_ns);
        self.last_ns = self.last_ns.max(now_ns);
        let parts = elapsed as u128 * self.per_day as u128 + self.fraction as u128;
        let bytes = (parts / DAY_NS as u128).min(i64::MAX as u128) as i64;
        self.fraction = (parts % DAY_NS as u128) as u64;
        self.level = self.level.saturating_add(bytes);
        if self.level >= self.burst() {
            (self.level, self.fraction) = (self.burst(), 0);
        }
    }

    /// Whether `bytes` are there.
    pub(super) fn has(&mut self, bytes: u64, now_ns: u64) -> bool {
        self.advance(now_ns);
        self.level >= 0 && self.level as u64 >= bytes
    }

    /// What is there as a share of `plenty` bytes, or of half of the bucket where that is less; 1 at most.
    pub(super) fn share_of(&mut self, plenty: u64, now_ns: u64) -> f64 {
        self.advance(now_ns);
        let plenty = (plenty as i64).min(self.burst() / 2).max(1);
        (self.level.max(0) as f64 / plenty as f64).min(1.0)
    }

    /// Takes bytes that are about to be written; more than there are becomes a debt.
    pub(super) fn take(&mut self, bytes: u64, now_ns: u64) {
        self.advance(now_ns);
        self.level = self.level.saturating_sub(bytes.min(i64::MAX as u64) as i64);
    }

    #[cfg(test)]
    fn fill(&mut self) {
        self.level = self.burst();
    }
}

/// What was written in the last 24 hours, in parts of a quarter of an hour. Time while the device is closed does not count.
#[derive(Clone, Debug)]
pub(super) struct Window {
    bins: [u64; BINS],
    /// The part that counts now, from when the device was opened.
    bin: u64,
    begun_ns: u64,
}

impl Window {
    /// Goes on from `bins`, oldest first, at `now_ns`.
    pub(super) fn new(bins: [u64; BINS], now_ns: u64) -> Window {
        Window { bins, bin: BINS as u64 - 1, begun_ns: now_ns }
    }

    fn advance(&mut self, now_ns: u64) {
        let bin = BINS as u64 - 1 + now_ns.saturating_sub(self.begun_ns) / BIN_NS;
        let passed = bin.saturating_sub(self.bin);
        for step in 1..=passed.min(BINS as u64) {
            self.bins[((self.bin + step) % BINS as u64) as usize] = 0;
        }
        self.bin = self.bin.max(bin);
    }

    pub(super) fn add(&mut self, bytes: u64, now_ns: u64) {
        self.advance(now_ns);
        let bin = &mut self.bins[(self.bin % BINS as u64) as usize];
        *bin = bin.saturating_add(bytes);
    }

    pub(super) fn sum(&mut self, now_ns: u64) -> u64 {
        self.advance(now_ns);
        self.bins.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The parts, oldest first.
    pub(super) fn bins(&self) -> [u64; BINS] {
        std::array::from_fn(|index| self.bins[((self.bin + 1 + index as u64) % BINS as u64) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    /// The most that was taken in any window of 24 hours.
    fn most_in_a_day(taken: &[(u64, u64)]) -> u64 {
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for (at_ns, bytes) in taken {
            sum += bytes;
            while taken[first].0 + DAY_NS < *at_ns {
                sum -= taken[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }

    #[test]
    fn no_window_of_a_day_has_more_than_the_promise_and_steady_demand_uses_nearly_all() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let per_day = rng.between(50_000_000, 1 << 40);
            let segment = rng.between(4096, per_day / 50);
            let (mut budget, mut now_ns, mut taken) = (Budget::new(per_day, 5), 5, Vec::new());
            budget.fill();
            let is_steady = seed % 2 == 0;
            while now_ns < 5 * DAY_NS {
                now_ns += if is_steady { DAY_NS / 5000 } else { rng.below(DAY_NS / 100) * rng.below(30) };
                for _ in 0..rng.between(1, 40) {
                    if budget.has(segment, now_ns) {
                        budget.take(segment, now_ns);
                        taken.push((now_ns, segment));
                    }
                }
                if !is_steady && rng.one_in(500) {
                    // A restart, with whatever clock.
                    budget = Budget::new(per_day, now_ns);
                }
            }
            let most = most_in_a_day(&taken);
            assert!(most as f64 <= 1.05 * per_day as f64, "seed {seed}: {most} of {per_day}");
            let total: u64 = taken.iter().map(|(_, bytes)| bytes).sum();
            assert!(!is_steady || total as f64 >= 0.95 * 5.0 * per_day as f64, "seed {seed}: {total} of 5 x {per_day}");
        }
    }

    #[test]
    fn the_window_forgets_after_a_day_and_goes_on_after_a_restart() {
        let mut window = Window::new([0; BINS], 1000);
        window.add(7, 1000);
        window.add(5, 1000 + DAY_NS / 2);
        assert_eq!(window.sum(1000 + DAY_NS / 2), 12);
        let mut again = Window::new(window.bins(), 77);
        assert_eq!(again.sum(77), 12);
        assert_eq!(again.sum(77 + DAY_NS / 2), 5, "the first part is a day old");
        assert_eq!(again.sum(77 + 3 * DAY_NS), 0);
        assert_eq!(window.sum(1000 + DAY_NS), 5);
    }

    #[test]
    fn clocks_that_go_back_bring_nothing() {
        let mut budget = Budget::new(u64::MAX, DAY_NS);
        assert!(!budget.has(1, DAY_NS));
        assert!(!budget.has(1, 0));
        assert!(budget.has(1 << 30, 2 * DAY_NS));
    }
}
