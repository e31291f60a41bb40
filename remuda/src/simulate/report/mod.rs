//! What `remuda pool simulate` says.

mod flash;
mod json;
mod text;

pub use json::to_json;
pub use text::to_text;

use super::space::BLOCK;
use super::{Counts, Outcome};
use bdev::flash_cache::DAY_NS;

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_string(), |share| format!("{:.1} %", share * 100.0))
}

impl Outcome {
    /// Bytes a day for bytes in a pass; `None` where nobody knows how long that took.
    fn per_day(&self, bytes: u64) -> Option<u64> {
        let clock = &self.simulation.clock;
        let duration_ns = clock.duration_ns();
        let day = u128::from(bytes) * u128::from(DAY_NS);
        (clock.is_known() && duration_ns > 0).then(|| (day / u128::from(duration_ns)).min(u128::from(u64::MAX)) as u64)
    }
}

/// Per byte that the trace has written.
struct PerByte {
    from_log: f64,
    collected: f64,
    headers: f64,
    map_pages: f64,
    reinserted: f64,
    pool_nand: f64,
    alone_nand: f64,
}

impl PerByte {
    fn of(counts: &Counts) -> Option<PerByte> {
        let of_bytes = |bytes: u64| share(bytes, counts.user_bytes);
        let of_blocks = |blocks: u64| of_bytes(blocks * BLOCK);
        Some(PerByte {
            from_log: of_blocks(counts.capacity.from_log)?,
            collected: of_blocks(counts.capacity.collected)?,
            headers: of_blocks(counts.capacity.headers)?,
            map_pages: of_blocks(counts.capacity.map_pages)?,
            reinserted: of_blocks(counts.reinserted)?,
            pool_nand: of_bytes(counts.drive.1)?,
            alone_nand: of_bytes(counts.alone.1)?,
        })
    }

    fn capacity(&self) -> f64 {
        self.from_log + self.collected + self.headers + self.map_pages
    }
}

/// Sizes of the log and the share of blocks that each absorbs.
fn absorbed(outcome: &Outcome) -> Vec<(u64, Option<f64>)> {
    let simulation = &outcome.simulation;
    let of = |now: (u64, u64), before: (u64, u64)| share(now.1 - before.1, now.0 - before.0);
    let own = (simulation.log.written, simulation.log.absorbed);
    let mut all = vec![(simulation.plan.log_bytes, of(own, simulation.log_before))];
    all.extend(simulation.logs.iter().map(|log| (log.bytes, of((log.model.written, log.model.absorbed), log.before))));
    all.sort_by_key(|(bytes, _)| *bytes);
    all
}

/// Sizes of a read cache and the share of blocks read that log and cache answer together.
fn cached(outcome: &Outcome) -> Vec<(u64, Option<f64>)> {
    let counts = &outcome.first;
    let mut all = vec![(0, share(counts.read_from_log, counts.read_blocks))];
    all.extend(
        outcome
            .simulation
            .caches
            .iter()
            .map(|cache| (cache.bytes, share(counts.read_from_log + cache.model.hits, counts.read_blocks))),
    );
    all
}
