//! The same for programs.

use super::super::Outcome;
use super::super::args::SimulateArgs;
use super::super::drive::DriveKind;
use super::{PerByte, absorbed, cached, flash, share};
use serde_json::{Value, json};

pub fn to_json(args: &SimulateArgs, outcome: &Outcome) -> Value {
    let (trace, plan) = (&outcome.simulation.trace, &outcome.simulation.plan);
    let counts = &outcome.measured;
    let sized = |all: Vec<(u64, Option<f64>)>, what: &str| -> Vec<Value> {
        all.into_iter().map(|(bytes, share)| json!({ "bytes": bytes, what: share })).collect()
    };
    let has_drive = outcome.simulation.alone.is_some();
    let write = PerByte::of(counts).map(|each| {
        let of_drive = |value: f64| has_drive.then_some(value);
        json!({
            "capacity": each.capacity(), "from_log": each.from_log, "collected": each.collected,
            "headers": each.headers, "map_pages": each.map_pages, "reinserted": each.reinserted,
            "nand": of_drive(each.pool_nand), "drive": share(counts.drive.1, counts.drive.0),
            "nand_without_pool": of_drive(each.alone_nand),
        })
    });
    let has_map = has_drive && args.drive() != DriveKind::Zoned;
    let drive = json!({
        "kind": args.drive().name(), "spare_percent": has_map.then(|| args.drive_spare()),
        "unit_bytes": has_map.then(|| args.drive_unit().0),
    });
    let log_device = json!({
        "least": share(trace.log.least, trace.write_bytes), "most": share(trace.log.most, trace.write_bytes),
        "least_day_bytes": outcome.per_day(trace.log.least), "most_day_bytes": outcome.per_day(trace.log.most),
    });
    let bands = plan.bands.as_ref();
    let mut all = json!({
        "model": true,
        "trace": {
            "file": args.trace_name(), "format": outcome.format, "writes": trace.writes,
            "write_bytes": trace.write_bytes, "reads": trace.reads, "read_bytes": trace.read_bytes,
            "trims": trace.trims, "trim_bytes": trace.trim_bytes,
            "touched_bytes": outcome.simulation.space.touched_bytes(),
        },
        "pool": {
            "shape": plan.shape.name(), "capacity_bytes": args.capacity.0,
            "overprovision_percent": bands.map(|_| args.overprovision()),
            "volume_bytes": plan.volume_bytes, "log_bytes": plan.log_bytes, "bands": bands.map(|bands| bands.bands),
            "band_bytes": bands.map(|bands| bands.band_bytes), "filled_percent": args.filled,
        },
        "drive": drive,
        "sampled_one_in": 1u64 << plan.shift, "passes": outcome.passes, "steady": outcome.is_steady,
        "absorbs_all": outcome.is_absorbed,
        "rests": outcome.simulation.rests,
        "write_amplification": write,
        "log_device": log_device,
        "log": sized(absorbed(outcome), "absorbed"),
    });
    match flash::to_json(args, outcome) {
        Some(cache) => all["flash_cache"] = cache,
        None => all["read_cache"] = sized(cached(outcome), "hit").into(),
    }
    all
}
