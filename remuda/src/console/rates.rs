//! What happened between two looks: rates and latency percentiles of each object and of all volumes together.
//!
//! Counters of every object are read at each look. Latencies are distributions of some 18 KB, so that only the busiest
//! objects have theirs compared; the sum over all volumes leaves out what never had an operation.

use crate::node::stats::Counted;
use base::Histogram;
use bdev::{BlockDevice, DeviceCounts, LatencyClass, Op};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Objects whose latencies are told.
const TIMED_MAX: usize = 64;

/// Percentiles over an interval, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: u64,
    /// Median.
    pub p50: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
}

impl Latency {
    /// `None` when nothing was counted.
    fn of(counted: &Histogram) -> Option<Latency> {
        let percentile = |percent| counted.percentile(percent);
        (counted.count() > 0).then(|| Latency {
            mean: counted.mean() as u64,
            p50: percentile(50.0),
            p99: percentile(99.0),
            p999: percentile(99.9),
        })
    }
}

/// Operations of an object, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Reads.
    pub reads: f64,
    /// Writes, and what else carries data to the device.
    pub writes: f64,
    /// Flushes.
    pub flushes: f64,
    /// Deallocations and all else.
    pub others: f64,
    /// Bytes read.
    pub read_bytes: f64,
    /// Bytes written.
    pub write_bytes: f64,
    /// Operations that failed in the interval.
    pub errors: u64,
    /// Operations that have failed since the object was opened.
    pub errors_ever: u64,
    /// Operations under way.
    pub under_way: u64,
    /// Of reads.
    pub read: Option<Latency>,
    /// Of writes.
    pub write: Option<Latency>,
}

impl Rates {
    fn between(then: &DeviceCounts, now: &DeviceCounts, block_size: u64, seconds: f64) -> Rates {
        let mut rates = Rates { under_way: now.depth, ..Rates::default() };
        for op in Op::ALL {
            let (then, now) = (then.ops[op as usize], now.ops[op as usize]);
            let per_second = |then: u64, now: u64| now.saturating_sub(then) as f64 / seconds;
            let ops = per_second(then.ops, now.ops);
            let bytes = per_second(then.blocks, now.blocks) * block_size as f64;
            match LatencyClass::of(op) {
                LatencyClass::Read => (rates.reads, rates.read_bytes) = (rates.reads + ops, rates.read_bytes + bytes),
                LatencyClass::Write => {
                    (rates.writes, rates.write_bytes) = (rates.writes + ops, rates.write_bytes + bytes)
                }
                LatencyClass::Flush => rates.flushes += ops,
                LatencyClass::Other => rates.others += ops,
            }
            rates.errors += now.errors.saturating_sub(then.errors);
            rates.errors_ever += now.errors;
        }
        rates
    }

    fn add(&mut self, other: &Rates) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.others += other.others;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.errors += other.errors;
        self.errors_ever += other.errors_ever;
        self.under_way += other.under_way;
    }

    /// Operations of all kinds.
    pub fn ops(&self) -> f64 {
        self.reads + self.writes + self.flushes + self.others
    }
}

/// Reads and writes.
type Distributions = [Histogram; 2];
const TIMED: [LatencyClass; 2] = [LatencyClass::Read, LatencyClass::Write];

/// Kind and name: a volume may be called like a device.
pub type Key = (&'static str, String);

/// The counters as they were at a look.
#[derive(Default)]
pub struct Counts {
    each: BTreeMap<Key, DeviceCounts>,
    timed: BTreeMap<Key, Distributions>,
    volumes: Distributions,
}

/// What happened between two looks.
#[derive(Default)]
pub struct Between {
    /// Of each object.
    pub each: BTreeMap<Key, Rates>,
    /// Of all volumes together.
    pub volumes: Rates,
}

impl Counts {
    /// Reads the counters of `counted`, and compares them with these, of a look that was `elapsed` ago.
    pub fn read(&self, counted: &[Counted], elapsed: Duration) -> (Counts, Between) {
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let (mut now, mut between) = (Counts::default(), Between::default());
        let mut ranked = Vec::with_capacity(counted.len());
        for one in counted {
            let (key, counts) = ((one.kind, one.name().to_string()), one.device.counts());
            // What was not there a look ago has done all that it counted since.
            let then = self.each.get(&key).copied().unwrap_or_default();
            let rates = Rates::between(&then, &counts, one.device.info().block_size as u64, seconds);
            if one.kind == "volume" {
                between.volumes.add(&rates);
                if counts.ops.iter().any(|op| op.ops > 0) {
                    add_latencies(one, &mut now.volumes);
                }
            }
            ranked.push((Reverse(rates.ops() as u64), one, key.clone()));
            now.each.insert(key.clone(), counts);
            between.each.insert(key, rates);
        }
        ranked.sort_by_key(|(busy, ..)| *busy);
        for (_, one, key) in ranked.into_iter().take(TIMED_MAX) {
            let mut latencies = Distributions::default();
            add_latencies(one, &mut latencies);
            if let (Some(then), Some(rates)) = (self.timed.get(&key), between.each.get_mut(&key)) {
                [rates.read, rates.write] = since(then, &latencies);
            }
            now.timed.insert(key, latencies);
        }
        [between.volumes.read, between.volumes.write] = since(&self.volumes, &now.volumes);
        (now, between)
    }
}

fn add_latencies(one: &Counted, sum: &mut Distributions) {
    for (class, sum) in TIMED.into_iter().zip(sum) {
        one.device.add_latencies(class, sum);
    }
}

fn since(then: &Distributions, now: &Distributions) -> [Option<Latency>; 2] {
    [0, 1].map(|class| Latency::of(&now[class].since(&then[class])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bdev::OpCounts;

    fn counts(reads: u64, errors: u64) -> DeviceCounts {
        let mut counts = DeviceCounts { depth: 2, ..DeviceCounts::default() };
        counts.ops[Op::Read as usize] = OpCounts { ops: reads, blocks: reads * 2, errors };
        counts
    }

    #[test]
    fn rates_are_of_what_happened_between_the_looks() {
        let rates = Rates::between(&counts(100, 1), &counts(300, 4), 4096, 2.0);
        assert_eq!((rates.reads, rates.read_bytes, rates.writes), (100.0, 200.0 * 4096.0, 0.0));
        assert_eq!((rates.errors, rates.errors_ever, rates.under_way), (3, 4, 2));
    }

    #[test]
    fn counters_that_went_back_count_as_nothing() {
        let rates = Rates::between(&counts(300, 4), &counts(10, 0), 4096, 1.0);
        assert_eq!((rates.reads, rates.errors), (0.0, 0));
    }

    #[test]
    fn without_operations_there_is_no_latency() {
        let mut histogram = Histogram::default();
        assert_eq!(Latency::of(&histogram), None);
        (0..1000).for_each(|_| histogram.record(50));
        assert_eq!(Latency::of(&histogram), Some(Latency { mean: 50, p50: 50, p99: 50, p999: 50 }));
    }
}
