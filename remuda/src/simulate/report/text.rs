//! The same for people.

use super::super::args::{PoolShape, SimulateArgs};
use super::super::drive::DriveKind;
use super::super::{Counts, Outcome};
use super::{PerByte, absorbed, cached, flash, percent, share};
use crate::cli::output;
use base::ByteSize;

type Fact = (&'static str, String);

/// Beside a table in which a larger log absorbs less.
const FALLS: &str = "\na larger log that absorbs less: an extent of which few blocks are old when its turn comes gives all that it has, also what was \
                     written just now; and with --reinsertion less comes to the end of the log that is worth keeping";

/// A share of what is written that is little: a capacity device is not written over by it in any usual number of passes.
const LITTLE: f64 = 0.1;

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
    let is_warm = plan.shape == PoolShape::Warm;
    let mut facts = vec![
        ("trace", format!("{} ({}): {}; {touched} touched", args.trace_name(), outcome.format, accesses.join(", "))),
        ("pool", format!("{}; {sample}", pool(args, outcome))),
    ];
    facts.push(("drive", drive(args, outcome)));
    facts.extend(flash::described(args, outcome));
    facts.push((
        "passes",
        format!("{}; {}", outcome.passes, if is_warm { flash::steadiness(outcome) } else { steadiness(outcome) }),
    ));
    facts.extend(log_device(outcome));
    facts.extend(written(args, &outcome.measured, outcome.simulation.alone.is_some()));
    if outcome.simulation.rests > 0 {
        let text = format!(
            "{} times nobody wrote for more than a second, and all that the log had was destaged",
            output::count(outcome.simulation.rests)
        );
        facts.push(("pauses", text));
    }
    facts.extend(flash::facts(args, outcome));
    let rows = |all: Vec<(u64, Option<f64>)>| -> Vec<Vec<String>> {
        let size = |bytes| if bytes == 0 { "none".to_string() } else { ByteSize(bytes).to_string() };
        all.into_iter().map(|(bytes, share)| vec![size(bytes), percent(share)]).collect()
    };
    let logs = output::table(&[">LOG", ">WRITES ABSORBED"], rows(absorbed(outcome)));
    let shares: Vec<Option<f64>> = absorbed(outcome).into_iter().map(|(_, share)| share).collect();
    let note = if shares.is_sorted() { "" } else { FALLS };
    let caches = flash::table(outcome).unwrap_or_else(|| {
        output::table(&[">READ CACHE", ">READS FROM LOG OR CACHE, FIRST PASS"], rows(cached(outcome)))
    });
    format!("{}\n\n{logs}{note}\n\n{caches}", output::facts(&facts))
}

/// Whether the last pass is what will be for long.
fn steadiness(outcome: &Outcome) -> String {
    let (trace, plan) = (&outcome.simulation.trace, &outcome.simulation.plan);
    let (what, others) = match (plan.shape, plan.drive) {
        (PoolShape::Shaped, _) => {
            ("the bands had", "THE BANDS WERE NOT WRITTEN OVER BEFORE IT, so the collector had not all of its work yet")
        }
        (_, DriveKind::Disk) => {
            ("the log had", "THE LOG WAS NOT WRITTEN OVER BEFORE IT, so not all that leaves it has")
        }
        _ => ("the drive had", "THE DRIVE WAS NOT WRITTEN OVER BEFORE IT, so it had not all of its own collecting yet"),
    };
    if trace.write_bytes == 0 {
        return "the trace writes nothing".to_string();
    }
    let left = PerByte::of(&outcome.measured).map_or(0.0, |each| each.from_log);
    match (outcome.is_absorbed, outcome.passes) {
        (true, 1) => "nothing left the log in it: the trace writes less than the log keeps. A longer trace says more, and so does one in \
                      a file, which is played again"
            .to_string(),
        (true, _) => "the log absorbs everything: all that the trace writes is written again before its turn to leave the log, in every \
                      further pass too. The capacity device gets it when writers rest, once"
            .to_string(),
        (false, _) if outcome.is_steady => format!("{what} been written over before the last pass, which is measured"),
        (false, _) if left < LITTLE => format!(
            "the last is measured; the log absorbs all but {} of what is written, so the capacity device was not written over before it",
            percent(Some(left))
        ),
        (false, _) => format!("the last is measured; {others}: allow more --passes, or take a longer trace"),
    }
}

fn pool(args: &SimulateArgs, outcome: &Outcome) -> String {
    let plan = &outcome.simulation.plan;
    let (volumes, log) = (ByteSize(plan.volume_bytes), ByteSize(plan.log_bytes));
    match &plan.bands {
        Some(bands) => format!(
            "{} with {} % over-provisioning, {volumes} for volumes ({} % in use before), {} bands of {}, a log of {log}",
            args.capacity,
            args.overprovision(),
            args.filled,
            bands.bands,
            ByteSize(bands.band_bytes),
        ),
        None => format!("{}, {}, {volumes} for volumes, a log of {log}", plan.shape.name(), args.capacity),
    }
}

fn drive(args: &SimulateArgs, outcome: &Outcome) -> String {
    let flash = || format!("indirection unit {}, {} % more flash than capacity", args.drive_unit(), args.drive_spare());
    match args.drive() {
        DriveKind::Conventional => format!("a model: {}", flash()),
        DriveKind::Streams => format!("a model, which keeps apart what the pool gives it as streams: {}", flash()),
        DriveKind::Zoned => {
            let zone = outcome.simulation.plan.bands.map_or(0, |bands| bands.band_bytes);
            format!("a model: zones of {}, each of them a band; it has no map and no spare flash", ByteSize(zone))
        }
        DriveKind::Disk => "disks: only what they are given counts".to_string(),
    }
}

/// What the log device is given.
fn log_device(outcome: &Outcome) -> Option<Fact> {
    let trace = &outcome.simulation.trace;
    let of = |bytes: u64| share(bytes, trace.write_bytes);
    let again = PerByte::of(&outcome.measured).map_or(0.0, |each| each.reinserted);
    let (least, most) = (of(trace.log.least)? + again, of(trace.log.most)? + again);
    let day = |each: f64| outcome.per_day((each * trace.write_bytes as f64) as u64);
    let a_day = day(least).zip(day(most)).map_or(String::new(), |(least, most)| {
        format!("; {} to {} a day at the pace of the trace", ByteSize(least), ByteSize(most))
    });
    let text =
        format!("{least:.2} bytes for each of yours where many writes come at a time, {most:.2} one by one{a_day}");
    Some(("log device writes", text))
}

/// What is written to the capacity device, and programmed.
fn written(args: &SimulateArgs, counts: &Counts, has_drive: bool) -> Vec<Fact> {
    let Some(each) = PerByte::of(counts) else { return Vec::new() };
    let parts = match args.shape {
        PoolShape::Shaped => format!("{:.2} collected, {:.2} headers", each.collected, each.headers),
        PoolShape::Hot | PoolShape::Warm => format!("{:.2} map pages", each.map_pages),
    };
    let mut facts = vec![(
        "capacity device writes",
        format!("{:.2} bytes for each of yours: {:.2} from the log, {parts}", each.capacity(), each.from_log),
    )];
    if args.reinsertion() > 0 {
        facts.push(("reinserted", format!("{:.2} bytes to the log once more for each of yours", each.reinserted)));
    }
    if has_drive {
        let drive = share(counts.drive.1, counts.drive.0).unwrap_or(1.0);
        facts.push((
            "flash programs",
            format!("{:.2} bytes for each of yours (drive: {drive:.2} for each it is given)", each.pool_nand),
        ));
        // Of next to nothing anything is many times as much.
        let times = match each.pool_nand {
            nand if nand < 0.01 => String::new(),
            nand => format!(", {:.1} times as much", each.alone_nand / nand),
        };
        let which = match args.drive() {
            DriveKind::Zoned => "a conventional drive with 10 % more flash, as full",
            _ => "the same drive, as full",
        };
        let text = format!("{which}: {:.2} bytes for each of yours{times}", each.alone_nand);
        facts.push(("without a pool", text));
    }
    facts
}
