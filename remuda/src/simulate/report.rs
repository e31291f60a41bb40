//! What `remuda pool simulate` says.

use super::space::BLOCK;
use super::{Counts, Outcome, SimulateArgs};
use crate::cli::output;
use base::ByteSize;
use serde_json::{Value, json};

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Per byte that the trace has written.
struct PerByte {
    from_log: f64,
    collected: f64,
    headers: f64,
    reinserted: f64,
    pool_nand: f64,
    alone_nand: f64,
}

impl PerByte {
    fn of(counts: &Counts) -> Option<PerByte> {
        let of_bytes = |bytes: u64| share(bytes, counts.user_bytes);
        let of_blocks = |blocks: u64| of_bytes(blocks * BLOCK);
        Some(PerByte {
            from_log: of_blocks(counts.bands.user)?,
            collected: of_blocks(counts.bands.collected)?,
            headers: of_blocks(counts.bands.headers)?,
            reinserted: of_blocks(counts.reinserted)?,
            pool_nand: of_bytes(counts.drive.1)?,
            alone_nand: of_bytes(counts.alone.1)?,
        })
    }

    fn capacity(&self) -> f64 {
        self.from_log + self.collected + self.headers
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
    let counts = &outcome.measured;
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

pub fn to_json(args: &SimulateArgs, outcome: &Outcome) -> Value {
    let (trace, plan) = (&outcome.simulation.trace, &outcome.simulation.plan);
    let counts = &outcome.measured;
    let sized = |all: Vec<(u64, Option<f64>)>, what: &str| -> Vec<Value> {
        all.into_iter().map(|(bytes, share)| json!({ "bytes": bytes, what: share })).collect()
    };
    let per_byte = PerByte::of(counts);
    let write = per_byte.map(|each| {
        json!({
            "capacity": each.capacity(), "from_log": each.from_log, "collected": each.collected,
            "headers": each.headers, "reinserted": each.reinserted, "nand": each.pool_nand, "drive": share(counts.drive.1, counts.drive.0),
            "nand_without_pool": each.alone_nand,
        })
    });
    json!({
        "model": true,
        "trace": {
            "file": args.trace.display().to_string(), "format": outcome.format, "writes": trace.writes,
            "write_bytes": trace.write_bytes, "reads": trace.reads, "read_bytes": trace.read_bytes,
            "trims": trace.trims, "trim_bytes": trace.trim_bytes,
            "touched_bytes": outcome.simulation.space.touched_bytes(),
        },
        "pool": {
            "capacity_bytes": args.capacity.0, "overprovision_percent": args.overprovision,
            "volume_bytes": plan.volume_bytes, "log_bytes": plan.log_bytes, "bands": plan.bands,
            "band_bytes": plan.band_bytes, "filled_percent": args.filled,
        },
        "drive": { "spare_percent": args.drive_spare, "unit_bytes": args.drive_unit.0 },
        "sampled_one_in": 1u64 << plan.shift, "passes": outcome.passes, "steady": outcome.is_steady,
        "write_amplification": write,
        "log": sized(absorbed(outcome), "absorbed"),
        "read_cache": sized(cached(outcome), "hit"),
    })
}

pub fn to_text(args: &SimulateArgs, outcome: &Outcome) -> String {
    let (trace, plan) = (&outcome.simulation.trace, &outcome.simulation.plan);
    let of = |count: u64, bytes: u64, what: &str| format!("{} {what} of {}", output::count(count), ByteSize(bytes));
    let accesses = [
        of(trace.writes, trace.write_bytes, "writes"),
        of(trace.reads, trace.read_bytes, "reads"),
        of(trace.trims, trace.trim_bytes, "trims"),
    ];
    let touched = ByteSize(outcome.simulation.space.touched_bytes());
    let sample = match plan.shift {
        0 => "every block simulated".to_string(),
        shift => format!("one block in {} simulated", 1u64 << shift),
    };
    let sample = match (outcome.simulation.space.touched_bytes(), trace.writes + trace.reads + trace.trims) {
        (0, 1..) => {
            format!("{sample}, OF WHICH THE TRACE TOUCHES NONE: take a longer trace, or a smaller --capacity and --log")
        }
        _ => sample,
    };
    let steady = match (outcome.is_steady, trace.write_bytes) {
        (true, _) => "the bands had been written over before the last pass, which is measured".to_string(),
        (false, 0) => "it writes nothing".to_string(),
        (false, _) => {
            "the last is measured; THE BANDS WERE NOT WRITTEN OVER BEFORE IT, so the collector had not all of its \
                       work yet: allow more --passes, or take a longer trace"
                .to_string()
        }
    };
    let mut facts = vec![
        ("trace", format!("{} ({}): {}; {touched} touched", args.trace.display(), outcome.format, accesses.join(", "))),
        (
            "pool",
            format!(
                "{} with {} % over-provisioning, {} for volumes ({} % in use before), {} bands of {}, a log of {}; {sample}",
                args.capacity,
                args.overprovision,
                ByteSize(plan.volume_bytes),
                args.filled,
                plan.bands,
                ByteSize(plan.band_bytes),
                ByteSize(plan.log_bytes),
            ),
        ),
        (
            "drive",
            format!("a model: indirection unit {}, {} % more flash than capacity", args.drive_unit, args.drive_spare),
        ),
        ("passes", format!("{}; {steady}", outcome.passes)),
    ];
    if let Some(each) = PerByte::of(&outcome.measured) {
        let drive = share(outcome.measured.drive.1, outcome.measured.drive.0).unwrap_or(1.0);
        facts.push((
            "capacity device writes",
            format!(
                "{:.2} bytes for each of yours: {:.2} from the log, {:.2} collected, {:.2} headers",
                each.capacity(),
                each.from_log,
                each.collected,
                each.headers
            ),
        ));
        if args.reinsertion > 0 {
            facts.push(("reinserted", format!("{:.2} bytes to the log once more for each of yours", each.reinserted)));
        }
        facts.push((
            "flash programs",
            format!("{:.2} bytes for each of yours (drive: {drive:.2} for each it is given)", each.pool_nand),
        ));
        // Of next to nothing anything is many times as much.
        let times = match each.pool_nand {
            nand if nand < 0.01 => String::new(),
            nand => format!(", {:.1} times as much", each.alone_nand / nand),
        };
        let text = format!("the same drive, as full: {:.2} bytes for each of yours{times}", each.alone_nand);
        facts.push(("without a pool", text));
    }
    let percent = |share: Option<f64>| share.map_or("-".to_string(), |share| format!("{:.1} %", share * 100.0));
    let rows = |all: Vec<(u64, Option<f64>)>| -> Vec<Vec<String>> {
        let size = |bytes| if bytes == 0 { "none".to_string() } else { ByteSize(bytes).to_string() };
        all.into_iter().map(|(bytes, share)| vec![size(bytes), percent(share)]).collect()
    };
    let logs = output::table(&[">LOG", ">WRITES ABSORBED"], rows(absorbed(outcome)));
    let caches = output::table(&[">READ CACHE", ">READS FROM LOG OR CACHE, FIRST PASS"], rows(cached(outcome)));
    format!("{}\n\n{logs}\n\n{caches}", output::facts(&facts))
}
