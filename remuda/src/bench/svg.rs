//! The figure of `remuda bench engine-table`: bars on a logarithmic scale, one panel for writes and one for reads.

use super::engine_table::Row;
use crate::config::show_duration_ns;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 400.0;
const BASE: f64 = 320.0;
const TOP: f64 = 70.0;
const BAR: f64 = 44.0;
/// Latencies from 1 us to 100 ms.
const DECADES: f64 = 5.0;
const COLORS: [&str; 3] = ["#1b7f5c", "#3f6fb5", "#8a8a8a"];

fn height(ns: u64) -> f64 {
    ((ns.max(1) as f64 / 1000.0).log10() / DECADES).clamp(0.01, 1.0) * (BASE - TOP)
}

/// Rows come device by device, each with the same loads.
pub fn engine_table(rows: &[Row]) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut text = |x: f64, y: f64, anchor: &str, size: u32, words: &str| {
        let _ = writeln!(
            out,
            "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{words}</text>"
        );
    };
    text(WIDTH / 2.0, 24.0, "middle", 15, "16 KiB random, latency (logarithmic; lower is better)");
    for decade in 0..=DECADES as u32 {
        let ns = 1000 * 10u64.pow(decade);
        text(52.0, BASE - height(ns) + 4.0, "end", 11, &show_duration_ns(ns));
    }
    let mut bars = String::new();
    for (panel, read) in [false, true].into_iter().enumerate() {
        let left = 70.0 + panel as f64 * 400.0;
        text(left + 180.0, 50.0, "middle", 13, if read { "reads (newest version in the log)" } else { "writes" });
        for (group, depth) in [1, 16].into_iter().enumerate() {
            let start = left + 20.0 + group as f64 * 180.0;
            text(start + BAR * 1.5, BASE + 18.0, "middle", 12, &format!("QD {depth}"));
            for (index, row) in rows.iter().filter(|row| row.read == read && row.depth == depth).enumerate() {
                let (x, tall) = (start + index as f64 * BAR, height(row.latency_ns));
                let color = COLORS[index % COLORS.len()];
                let (y, width) = (BASE - tall, BAR - 6.0);
                let _ = writeln!(
                    bars,
                    "<rect x=\"{x:.0}\" y=\"{y:.1}\" width=\"{width:.0}\" height=\"{tall:.1}\" fill=\"{color}\"/>"
                );
                text(x + width / 2.0, y - 4.0, "middle", 10, &show_duration_ns(row.latency_ns));
            }
        }
    }
    let mut devices: Vec<&str> = rows.iter().map(|row| row.device.as_str()).collect();
    devices.dedup();
    for (index, device) in devices.into_iter().enumerate() {
        // The first is the longest.
        let x = if index == 0 { 90.0 } else { 270.0 + index as f64 * 170.0 };
        let color = COLORS[index % COLORS.len()];
        let _ = writeln!(bars, "<rect x=\"{x:.0}\" y=\"358\" width=\"12\" height=\"12\" fill=\"{color}\"/>");
        let words = if index == 0 {
            format!("{device}, log in memory, before the NVMe model")
        } else {
            format!("{device}, a model")
        };
        text(x + 18.0, 368.0, "start", 12, &words);
    }
    let _ =
        writeln!(out, "<line x1=\"60\" y1=\"{BASE}\" x2=\"{WIDTH}\" y2=\"{BASE}\" stroke=\"black\"/>\n{bars}</svg>");
    out
}
