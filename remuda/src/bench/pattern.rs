//! Where the next operation goes: random, sequential, or Zipf-distributed units of a range.

use base::Rng;

/// How units are chosen.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Each unit equally likely.
    Uniform,
    /// One after the other, around again at the end.
    Sequential,
    /// Some units far more likely than others.
    Zipf(Zipf),
}

/// Chooses among `units` units.
#[derive(Clone, Debug)]
pub struct Pattern {
    choice: Choice,
    units: u64,
    next: u64,
}

impl Pattern {
    /// A pattern over `units` units, at least one.
    pub fn new(choice: Choice, units: u64) -> Pattern {
        assert!(units > 0, "a pattern needs something to choose from");
        Pattern { choice, units, next: 0 }
    }

    /// The next unit.
    #[inline]
    pub fn next(&mut self, rng: &mut Rng) -> u64 {
        match &self.choice {
            Choice::Uniform => rng.below(self.units),
            Choice::Sequential => {
                let unit = self.next;
                self.next = if unit + 1 == self.units { 0 } else { unit + 1 };
                unit
            }
            Choice::Zipf(zipf) => scatter(zipf.sample(rng) - 1, self.units),
        }
    }
}

/// Spreads popular units over the range: a bijection of `0..units`, since the multiplier is a prime above any device's
/// number of units divided by... any prime that does not divide `units` will do.
pub fn scatter(unit: u64, units: u64) -> u64 {
    const PRIMES: [u64; 2] = [11_400_714_819_323_198_549, 2_654_435_761];
    let prime = if units.is_multiple_of(PRIMES[1]) { PRIMES[0] } else { PRIMES[1] };
    ((unit as u128 * prime as u128) % units as u128) as u64
}

/// Zipf-distributed ranks 1 to `n`: rank k has probability proportional to `1 / k^theta`. Rejection-inversion sampling
/// (Hörmann and Derflinger, 1996): constant time and no tables for any `theta > 0`.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: f64,
    theta: f64,
    h_first: f64,
    h_last: f64,
    shift: f64,
}

impl Zipf {
    /// A distribution over `1..=n`.
    pub fn new(n: u64, theta: f64) -> Zipf {
        assert!(n > 0 && theta > 0.0 && theta.is_finite());
        let mut zipf = Zipf { n: n as f64, theta, h_first: 0.0, h_last: 0.0, shift: 0.0 };
        zipf.h_first = zipf.h(1.5) - 1.0;
        zipf.h_last = zipf.h(n as f64 + 0.5);
        zipf.shift = 2.0 - zipf.h_inverse(zipf.h(2.5) - 2f64.powf(-theta));
        zipf
    }

    /// Integral of `x^-theta`.
    fn h(&self, x: f64) -> f64 {
        let log = x.ln();
        expm1_ratio((1.0 - self.theta) * log) * log
    }

    fn h_inverse(&self, x: f64) -> f64 {
        let t = (x * (1.0 - self.theta)).max(-1.0);
        (log1p_ratio(t) * x).exp()
    }

    /// A rank.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.h_last + rng.unit() * (self.h_first - self.h_last);
            let x = self.h_inverse(u);
            let k = x.round().clamp(1.0, self.n);
            if k - x <= self.shift || u >= self.h(k + 0.5) - (-k.ln() * self.theta).exp() {
                return k as u64;
            }
        }
    }
}

/// `(e^x - 1) / x`, right at 0 too.
fn expm1_ratio(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 * (1.0 + x / 3.0) }
}

/// `ln(1 + x) / x`, right at 0 too.
fn log1p_ratio(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x * (0.5 - x * (1.0 / 3.0 - 0.25 * x)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_ranks_have_their_probabilities() {
        for theta in [0.5, 0.99, 1.0, 1.2] {
            let (n, draws) = (1000u64, 400_000u64);
            let zipf = Zipf::new(n, theta);
            let mut rng = Rng::new(9);
            let mut counts = vec![0u64; n as usize + 1];
            (0..draws).for_each(|_| counts[zipf.sample(&mut rng) as usize] += 1);
            let sum: f64 = (1..=n).map(|k| (k as f64).powf(-theta)).sum();
            for k in [1usize, 2, 3, 10, 50] {
                let expected = draws as f64 * (k as f64).powf(-theta) / sum;
                let off = (counts[k] as f64 - expected).abs() / expected.sqrt();
                assert!(off < 5.0, "theta {theta} rank {k}: {} against {expected}", counts[k]);
            }
        }
    }

    #[test]
    fn scattering_hits_every_unit_once() {
        for units in [1u64, 2, 1000, 4096, 2_654_435_761 / 1_000_003 * 2] {
            let mut seen = vec![false; units as usize];
            (0..units).for_each(|unit| seen[scatter(unit, units) as usize] = true);
            assert!(seen.iter().all(|seen| *seen), "{units}");
        }
    }

    #[test]
    fn sequential_goes_round() {
        let mut pattern = Pattern::new(Choice::Sequential, 3);
        let mut rng = Rng::new(0);
        let units: Vec<u64> = (0..7).map(|_| pattern.next(&mut rng)).collect();
        assert_eq!(units, [0, 1, 2, 0, 1, 2, 0]);
    }
}
