//! What a run found: numbers for programs, and a table for people.

use crate::cli::output;
use crate::config::show_duration_ns;
use base::{ByteSize, Histogram};
use serde_json::{Value, json};

/// One job's, or all jobs', counts within the measured window.
#[derive(Clone, Default)]
pub struct Tally {
    /// Latencies of reads, ns.
    pub reads: Histogram,
    /// Latencies of writes, ns.
    pub writes: Histogram,
    /// Latencies by spans of the clock: the number of the first span, and each one's. Empty when nobody asked.
    pub spans: (u64, Vec<Histogram>),
    /// Operations that failed, and the first failure.
    pub errors: u64,
    /// What the first failure was.
    pub first_error: Option<String>,
    /// Blocks compared with the memory.
    pub blocks_checked: u64,
    /// Blocks that were wrong.
    pub mismatches: u64,
    /// The first few of them, in words.
    pub mismatch_texts: Vec<String>,
    /// Largest distance between an operation's intended and actual start, ns (open loop).
    pub late_max_ns: u64,
}

/// Wrong blocks that are described.
pub const MISMATCH_TEXTS_MAX: usize = 8;

/// Spans of the clock that are told apart.
pub const SPANS_MAX: u64 = 1024;

impl Tally {
    /// Adds another's counts.
    pub fn merge(&mut self, other: Tally) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.merge_spans(&other.spans);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.blocks_checked += other.blocks_checked;
        self.mismatches += other.mismatches;
        self.mismatch_texts.extend(other.mismatch_texts);
        self.mismatch_texts.truncate(MISMATCH_TEXTS_MAX);
        self.late_max_ns = self.late_max_ns.max(other.late_max_ns);
    }
}

impl Tally {
    /// Counts an operation that began in span `number` as well there; spans before the first are none of the window.
    pub fn record_span(&mut self, number: u64, latency_ns: u64) {
        let (first, spans) = &mut self.spans;
        if spans.is_empty() {
            *first = number;
        }
        let Some(index) = number.checked_sub(*first) else { return };
        if index as usize >= spans.len() && index < SPANS_MAX {
            spans.resize(index as usize + 1, Histogram::default());
        }
        if let Some(span) = spans.get_mut(index as usize) {
            span.record(latency_ns);
        }
    }

    fn merge_spans(&mut self, other: &(u64, Vec<Histogram>)) {
        if self.spans.1.is_empty() {
            self.spans = other.clone();
            return;
        }
        let (first, spans) = &mut self.spans;
        for (index, theirs) in other.1.iter().enumerate() {
            let Some(at) = (other.0 + index as u64).checked_sub(*first) else { continue };
            if at as usize == spans.len() {
                spans.push(Histogram::default());
            }
            if let Some(ours) = spans.get_mut(at as usize) {
                ours.merge(theirs);
            }
        }
    }
}

/// A finished run.
pub struct Report {
    /// What was asked for.
    pub parameters: Value,
    /// Counts.
    pub tally: Tally,
    /// Bytes per operation.
    pub io_bytes: u64,
    /// Length of the measured window, ns.
    pub window_ns: u64,
    /// CPU time of this process in the window, ns.
    pub cpu_ns: u64,
    /// Machine time taken by the hypervisor in the window, percent.
    pub steal_pct: f64,
    /// The contents were checked.
    pub verified: bool,
    /// Ended early by the user.
    pub interrupted: bool,
}

pub(super) fn latencies(histogram: &Histogram) -> Value {
    json!({
        "min": if histogram.count() == 0 { 0 } else { histogram.percentile(0.0) },
        "mean": histogram.mean().round() as u64,
        "p50": histogram.percentile(50.0),
        "p90": histogram.percentile(90.0),
        "p95": histogram.percentile(95.0),
        "p99": histogram.percentile(99.0),
        "p999": histogram.percentile(99.9),
        "p9999": histogram.percentile(99.99),
        "max": histogram.max(),
    })
}

impl Report {
    fn all(&self) -> Histogram {
        let mut all = self.tally.reads.clone();
        all.merge(&self.tally.writes);
        all
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.window_ns.max(1) as f64
    }

    fn cpu_ns_per_io(&self) -> f64 {
        self.cpu_ns as f64 / self.all().count().max(1) as f64
    }

    /// Notes how closing what was loaded ended: the report is worth more than the last flush of a device that has failed.
    pub fn note_end(&mut self, ended: Result<(), crate::node::Refusal>) {
        if let Err(refusal) = ended {
            self.tally.errors += 1;
            self.tally.first_error.get_or_insert_with(|| refusal.to_string());
        }
    }

    /// Everything was as it should be.
    pub fn is_good(&self) -> bool {
        self.tally.errors == 0 && self.tally.mismatches == 0
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let all = self.all();
        let side = |histogram: &Histogram| {
            let iops = self.per_second(histogram.count());
            json!({
                "ios": histogram.count(),
                "iops": round1(iops),
                "bw_bytes": (iops * self.io_bytes as f64).round() as u64,
                "lat_ns": latencies(histogram),
            })
        };
        let spans = |parity: Option<u64>| {
            let (first, spans) = &self.tally.spans;
            let numbered = spans.iter().enumerate().map(move |(index, span)| (first + index as u64, span));
            numbered.filter(move |(number, _)| parity.is_none_or(|parity| number % 2 == parity))
        };
        let parities = [0, 1].map(|parity| {
            let mut sum = Histogram::default();
            spans(Some(parity)).for_each(|(_, span)| sum.merge(span));
            json!({ "ios": sum.count(), "lat_ns": latencies(&sum) })
        });
        let each =
            spans(None).map(|(number, span)| json!({ "span": number, "ios": span.count(), "lat_ns": latencies(span) }));
        let iops = self.per_second(all.count());
        json!({
            "spans": each.collect::<Vec<_>>(),
            "even_and_odd_spans": parities,
            "iops": round1(iops),
            "bw_bytes": (iops * self.io_bytes as f64).round() as u64,
            "lat_ns": latencies(&all),
            "cpu_ns_per_io": round1(self.cpu_ns_per_io()),
            "steal_pct": round1(self.steal_pct),
            "ios": all.count(),
            "window_ns": self.window_ns,
            "read": side(&self.tally.reads),
            "write": side(&self.tally.writes),
            "errors": self.tally.errors,
            "first_error": self.tally.first_error,
            "late_max_ns": self.tally.late_max_ns,
            "verify": {
                "enabled": self.verified,
                "blocks_checked": self.tally.blocks_checked,
                "mismatches": self.tally.mismatches,
                "examples": self.tally.mismatch_texts,
            },
            "interrupted": self.interrupted,
            "parameters": self.parameters,
        })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let row = |name: &str, histogram: &Histogram| {
            let iops = self.per_second(histogram.count());
            let at = |percent: f64| show_duration_ns(histogram.percentile(percent));
            vec![
                name.to_string(),
                output::count(iops.round() as u64),
                format!("{}/s", ByteSize((iops * self.io_bytes as f64) as u64)),
                show_duration_ns(histogram.mean() as u64),
                at(50.0),
                at(99.0),
                at(99.9),
                at(99.99),
                show_duration_ns(histogram.max()),
            ]
        };
        let mut rows = Vec::new();
        if self.tally.reads.count() > 0 {
            rows.push(row("read", &self.tally.reads));
        }
        if self.tally.writes.count() > 0 {
            rows.push(row("write", &self.tally.writes));
        }
        if rows.len() != 1 {
            rows.push(row("all", &self.all()));
        }
        let headings = ["", ">IOPS", ">BANDWIDTH", ">MEAN", ">P50", ">P99", ">P99.9", ">P99.99", ">MAX"];
        let mut text = output::table(&headings, rows);
        text += &format!(
            "\n\nCPU of this process {} per I/O, steal {:.1} %, window {}",
            show_duration_ns(self.cpu_ns_per_io().round() as u64),
            self.steal_pct,
            show_duration_ns(self.window_ns)
        );
        if self.tally.late_max_ns > 0 {
            text += &format!(", latest start {} late", show_duration_ns(self.tally.late_max_ns));
        }
        if self.verified {
            let (checked, wrong) = (output::count(self.tally.blocks_checked), output::count(self.tally.mismatches));
            text += &format!("\nverified {checked} blocks, {wrong} wrong");
        }
        for example in &self.tally.mismatch_texts {
            text += &format!("\n  {example}");
        }
        if self.tally.errors > 0 {
            let first = self.tally.first_error.as_deref().unwrap_or("unknown");
            text += &format!("\n{} operations failed, the first: {first}", output::count(self.tally.errors));
        }
        text
    }
}

fn round1(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(operations: &[(u64, u64)]) -> Tally {
        let mut tally = Tally::default();
        operations.iter().for_each(|(span, latency)| tally.record_span(*span, *latency));
        tally
    }

    #[test]
    fn spans_of_jobs_are_summed_and_what_is_before_the_first_is_left_out() {
        let mut all = Tally::default();
        for part in [tally(&[(7, 10), (9, 30), (6, 99)]), tally(&[(8, 20), (9, 50), (10, 60)]), Tally::default()] {
            all.merge(part);
        }
        let (first, spans) = &all.spans;
        let counts: Vec<_> = spans.iter().map(|span| (span.count(), span.max())).collect();
        assert_eq!((*first, counts), (7, vec![(1, 10), (1, 20), (2, 50), (1, 60)]));
    }

    #[test]
    fn no_more_spans_are_kept_than_there_may_be() {
        let tally = tally(&[(1, 10), (SPANS_MAX, 20), (SPANS_MAX + 1, 30), (u64::MAX, 40)]);
        assert_eq!(tally.spans.1.len() as u64, SPANS_MAX);
    }
}
