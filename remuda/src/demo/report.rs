//! The demo's table.

use super::shaped::Shaped;
use crate::cli::output;
use crate::config::show_duration_ns;
use base::{ByteSize, Histogram};
use serde_json::{Value, json};
use std::time::Duration;

/// One part of the demo.
pub struct Phase {
    name: &'static str,
    bytes: u64,
    elapsed: Duration,
    latencies: Histogram,
}

impl Phase {
    /// What a part moved, and how long its operations took.
    pub fn new(name: &'static str, bytes: u64, elapsed: Duration, latencies: Histogram) -> Phase {
        Phase { name, bytes, elapsed, latencies }
    }

    fn iops(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Everything the demo found.
pub struct Report {
    pub phases: Vec<Phase>,
    pub node_ready: Duration,
    pub first_io: Duration,
    pub replayed: u64,
    pub replay: Duration,
    pub files: u64,
    pub file_bytes: u64,
    pub extents_checked: u64,
    pub blocks_checked: u64,
    pub small_acknowledged: u64,
    pub small_flushed: u64,
    pub in_flight_at_kill: u64,
    pub from: String,
    pub shaped: Option<Shaped>,
}

impl Report {
    /// For programs.
    pub fn to_json(&self) -> Value {
        let phases = self.phases.iter().map(|phase| {
            json!({
                "name": phase.name,
                "bytes": phase.bytes,
                "seconds": phase.elapsed.as_secs_f64(),
                "iops": phase.iops().round(),
                "bw_bytes": phase.bandwidth().round() as u64,
                "lat_ns": {
                    "p50": phase.latencies.percentile(50.0),
                    "p99": phase.latencies.percentile(99.0),
                    "p999": phase.latencies.percentile(99.9),
                    "max": phase.latencies.max(),
                },
            })
        });
        json!({
            "ok": true,
            "from": self.from,
            "phases": phases.collect::<Vec<_>>(),
            "recovery": {
                "node_ready_ms": self.node_ready.as_secs_f64() * 1e3,
                "first_io_ms": self.first_io.as_secs_f64() * 1e3,
                "records_replayed": self.replayed,
                "pool_open_ms": self.replay.as_secs_f64() * 1e3,
            },
            "verified": {
                "files": self.files,
                "file_bytes": self.file_bytes,
                "extents": self.extents_checked,
                "small_blocks": self.blocks_checked,
                "small_writes_acknowledged": self.small_acknowledged,
                "small_writes_flushed": self.small_flushed,
                "in_flight_at_kill": self.in_flight_at_kill,
            },
            "shaped": self.shaped.as_ref().map(Shaped::to_json),
        })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let rows = self.phases.iter().map(|phase| {
            let at = |percent: f64| show_duration_ns(phase.latencies.percentile(percent));
            vec![
                phase.name.to_string(),
                ByteSize(phase.bytes).to_string(),
                format!("{}/s", ByteSize(phase.bandwidth() as u64)),
                output::count(phase.iops().round() as u64),
                at(50.0),
                at(99.0),
                at(99.9),
                show_duration_ns(phase.latencies.max()),
            ]
        });
        let headings = ["OVER NVMe/TCP", ">BYTES", ">BANDWIDTH", ">IOPS", ">P50", ">P99", ">P99.9", ">MAX"];
        let table = output::table(&headings, rows.collect());
        let ms = |duration: Duration| format!("{:.0} ms", duration.as_secs_f64() * 1e3);
        let facts = output::facts(&[
            ("killed with", format!("{} writes under way", self.in_flight_at_kill)),
            ("pool recovered", format!("{} log records replayed in {}", output::count(self.replayed), ms(self.replay))),
            ("node answered again after", ms(self.node_ready)),
            ("first I/O after", ms(self.first_io)),
            (
                "verified",
                format!("{} files of {} ({})", output::count(self.files), self.from, ByteSize(self.file_bytes)),
            ),
            ("", format!("{} extents by checksum, all flushed before the kill", output::count(self.extents_checked))),
            (
                "",
                format!(
                    "{} blocks of {} acknowledged small writes ({} of them flushed)",
                    output::count(self.blocks_checked),
                    output::count(self.small_acknowledged),
                    output::count(self.small_flushed)
                ),
            ),
            ("lost or wrong", "nothing".to_string()),
        ]);
        let shaped = self.shaped.as_ref().map(|shaped| format!("\n\n{}", shaped.to_text())).unwrap_or_default();
        format!("\n{table}\n\n{facts}{shaped}")
    }
}
