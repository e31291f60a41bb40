//! The flash cache of a warm pool, in words and for programs.

use super::super::args::SimulateArgs;
use super::super::clock::Timing;
use super::super::flash::{CachePass, FlashCaches};
use super::super::space::BLOCK;
use super::super::{Counts, Outcome};
use super::{percent, share};
use crate::cli::output;
use crate::config::show_duration_ns;
use base::ByteSize;
use serde_json::{Value, json};

/// A smaller share of what was wanted says nothing of a limit.
const REFUSED_MIN: f64 = 0.01;

type Fact = (&'static str, String);

/// What one pass comes to, of the cache that was asked for.
struct Pass<'a> {
    cache: &'a CachePass,
    counts: &'a Counts,
}

impl Pass<'_> {
    fn hit(&self) -> Option<f64> {
        share(self.cache.hits, self.cache.reads)
    }

    /// From the log, from flash, from disks.
    fn shares(&self) -> [Option<f64>; 3] {
        let all = self.counts.read_blocks;
        let disks = self.cache.reads - self.cache.hits;
        [self.counts.read_from_log, self.cache.hits, disks].map(|part| share(part, all))
    }

    fn text(&self) -> String {
        let [log, flash, disks] = self.shares().map(percent);
        format!("{log} from the log, {flash} from flash, {disks} from disks")
    }
}

fn passes(outcome: &Outcome) -> Option<(&FlashCaches, Pass<'_>, Pass<'_>)> {
    let flash = outcome.simulation.flash.as_ref()?;
    let first = Pass { cache: outcome.first_caches.first()?, counts: &outcome.first };
    let last = Pass { cache: outcome.caches.first()?, counts: &outcome.measured };
    Some((flash, first, last))
}

/// Bytes of everything for bytes of what is simulated.
fn whole(outcome: &Outcome, bytes: u64) -> u64 {
    bytes << outcome.simulation.plan.shift
}

/// Bytes a day for bytes of what is simulated.
fn per_day(outcome: &Outcome, bytes: u64) -> Option<u64> {
    outcome.per_day(whole(outcome, bytes))
}

/// What is simulated.
pub fn described(args: &SimulateArgs, outcome: &Outcome) -> Vec<Fact> {
    let Some(flash) = &outcome.simulation.flash else { return Vec::new() };
    let (bytes, budget) = (flash.sizes[0].bytes, args.write_budget());
    let text = format!(
        "{}, at most {} written to it a day ({:.2} drive writes a day)",
        ByteSize(bytes),
        ByteSize(budget),
        budget as f64 / bytes.max(1) as f64
    );
    vec![("flash cache", text), ("time", time(outcome))]
}

fn time(outcome: &Outcome) -> String {
    let clock = &outcome.simulation.clock;
    let duration = show_duration_ns(clock.duration_ns());
    match clock.timing() {
        Timing::Recorded => format!("the trace covers {duration}; what is told of days is what this load would do all day"),
        Timing::Spread { .. } => format!("{duration} (--duration), over which the accesses are spread evenly"),
        Timing::Unknown => "THE TRACE DOES NOT SAY WHEN ITS ACCESSES WERE, and a budget is of bytes in a day: the cache is told without one, \
                            at its best, and of days there is nothing. Give --duration TIME (how long the load took), or a trace with \
                            times: fio 3.31 and later writes them, and so does blktrace"
            .to_string(),
    }
}

/// Whether the last pass is what will be for long.
pub fn steadiness(outcome: &Outcome) -> String {
    let Some((flash, ..)) = passes(outcome) else { return String::new() };
    let filled = percent(Some(flash.sizes[0].filled()));
    match (outcome.is_steady, outcome.passes) {
        (true, _) => format!("in the last the cache did what it had done in the one before; {filled} of it is in use"),
        (false, 1) => format!(
            "the cache began empty, and {filled} of it is in use now: one that has run for long hits more often"
        ),
        (false, _) => format!(
            "THE CACHE WAS STILL CHANGING IN THE LAST; {filled} of it is in use: allow more --passes, or take a longer trace"
        ),
    }
}

/// What the cache does.
pub fn facts(args: &SimulateArgs, outcome: &Outcome) -> Vec<Fact> {
    let Some((flash, first, last)) = passes(outcome) else { return Vec::new() };
    let mut facts = vec![("reads, first pass", format!("{}; the cache began empty", first.text()))];
    if outcome.passes > 1 {
        facts.push(("reads, last pass", format!("{}; as when the same load comes again and again", last.text())));
    }
    let compared = match flash.is_timeless() {
        true => format!("LRU of this size: {}", percent(share(last.cache.hits_lru, last.cache.reads))),
        false => format!(
            "without a budget {}, LRU of this size {}",
            percent(share(last.cache.hits_ample, last.cache.reads)),
            percent(share(last.cache.hits_lru, last.cache.reads))
        ),
    };
    let hit = percent(last.hit());
    facts.push(("hit ratio", format!("{hit} of the blocks that the log had not; {compared}")));
    let counts = &last.cache.counts;
    let size = |blocks: u64| ByteSize(whole(outcome, blocks * BLOCK));
    facts.push((
        "admission",
        format!(
            "{} let in, {} of them written again; refused: {} seen once, {} by the budget",
            size(counts.admitted),
            size(counts.readmitted),
            size(counts.refused_once),
            size(counts.refused_budget)
        ),
    ));
    let written = whole(outcome, counts.written_bytes);
    let Some(day) = per_day(outcome, counts.written_bytes) else {
        facts.push(("written to flash", format!("{} in the last pass, if nothing limited it", ByteSize(written))));
        facts.push(("forecast", forecast_in_passes(args, written)));
        return facts;
    };
    let budget = args.write_budget();
    let used = day as f64 / budget.max(1) as f64 * 100.0;
    facts.push(("written to flash", format!("{} a day, {used:.1} % of the budget", ByteSize(day))));
    facts.push(("budget", limit(outcome, last.cache)));
    facts.push(("forecast", forecast(args, day)));
    facts
}

/// Whether the budget was the limit.
fn limit(outcome: &Outcome, cache: &CachePass) -> String {
    match cache.refused() {
        None => "nothing was read often enough to be let in".to_string(),
        Some(refused) if refused < REFUSED_MIN => "not the limit: what was read often enough was let in".to_string(),
        Some(refused) => {
            let ample = per_day(outcome, cache.written_ample_bytes).map_or(String::new(), |bytes| {
                let hits = percent(share(cache.hits_ample, cache.reads));
                format!("; without a budget {hits} would hit, for {} a day", ByteSize(bytes))
            });
            format!("THE LIMIT: it refused {} of what was read often enough{ample}", percent(Some(refused)))
        }
    }
}

fn forecast(args: &SimulateArgs, day: u64) -> String {
    let Some(ByteSize(endurance)) = args.endurance else { return "unknown: no --endurance is given".to_string() };
    let least = endurance / args.write_budget().max(1);
    match endurance.checked_div(day) {
        Some(days) => format!("{} days at this rate, at least {least} days within the budget", output::count(days)),
        None => format!("at least {least} days within the budget; nothing is written at this rate"),
    }
}

fn forecast_in_passes(args: &SimulateArgs, written: u64) -> String {
    let Some(ByteSize(endurance)) = args.endurance else { return "unknown: no --endurance is given".to_string() };
    let least = endurance / args.write_budget().max(1);
    match endurance.checked_div(written) {
        Some(times) => {
            format!(
                "{} times as much as the last pass, if nothing limited it; at least {least} days within the budget",
                output::count(times)
            )
        }
        None => format!("at least {least} days within the budget; nothing is written"),
    }
}

/// The cache in several sizes.
pub fn table(outcome: &Outcome) -> Option<String> {
    let flash = outcome.simulation.flash.as_ref()?;
    let mut all: Vec<(u64, &CachePass)> = flash.sizes.iter().map(|aside| aside.bytes).zip(&outcome.caches).collect();
    all.sort_by_key(|(bytes, _)| *bytes);
    let of = |part: u64, cache: &CachePass| percent(share(part, cache.reads));
    let row = |(bytes, cache): (u64, &CachePass)| {
        let written = cache.counts.written_bytes;
        let told = match per_day(outcome, written) {
            Some(day) => ByteSize(day),
            None => ByteSize(whole(outcome, written)),
        };
        let mut row = vec![ByteSize(bytes).to_string(), of(cache.hits, cache)];
        if !flash.is_timeless() {
            row.push(of(cache.hits_ample, cache));
        }
        row.extend([of(cache.hits_lru, cache), told.to_string()]);
        row
    };
    let headings: &[&str] = match flash.is_timeless() {
        true => &[">FLASH", ">HIT RATIO WITHOUT A BUDGET", ">LRU", ">WRITTEN IN THE LAST PASS"],
        false => &[">FLASH", ">HIT RATIO", ">WITHOUT A BUDGET", ">LRU", ">WRITTEN A DAY"],
    };
    Some(output::table(headings, all.into_iter().map(row).collect()))
}

/// For programs; `None` where there is no such cache.
pub fn to_json(args: &SimulateArgs, outcome: &Outcome) -> Option<Value> {
    let (flash, first, last) = passes(outcome)?;
    let clock = &outcome.simulation.clock;
    let time = match clock.timing() {
        Timing::Recorded => "recorded",
        Timing::Spread { .. } => "spread",
        Timing::Unknown => "unknown",
    };
    let pass = |pass: &Pass<'_>| {
        let [log, flash, disks] = pass.shares();
        json!({ "from_log": log, "from_flash": flash, "from_disks": disks, "hit": pass.hit() })
    };
    let counts = &last.cache.counts;
    let bytes = |blocks: u64| whole(outcome, blocks * BLOCK);
    let day = per_day(outcome, counts.written_bytes);
    let days = |per_day: u64| args.endurance.and_then(|endurance| endurance.0.checked_div(per_day));
    let sizes = flash.sizes.iter().zip(&outcome.caches).map(|(aside, cache)| {
        json!({
            "bytes": aside.bytes, "hit": share(cache.hits, cache.reads), "hit_lru": share(cache.hits_lru, cache.reads),
            "hit_without_budget": (!flash.is_timeless()).then(|| share(cache.hits_ample, cache.reads)).flatten(),
            "written_bytes": whole(outcome, cache.counts.written_bytes),
            "written_day_bytes": per_day(outcome, cache.counts.written_bytes),
        })
    });
    Some(json!({
        "bytes": flash.sizes[0].bytes, "write_budget_bytes": args.write_budget(),
        "endurance_bytes": args.endurance.map(|endurance| endurance.0),
        "time": time, "pass_seconds": clock.is_known().then(|| clock.duration_ns() as f64 / 1e9),
        "first_pass": pass(&first), "last_pass": pass(&last),
        "admitted_bytes": bytes(counts.admitted), "readmitted_bytes": bytes(counts.readmitted),
        "refused_once_bytes": bytes(counts.refused_once), "refused_budget_bytes": bytes(counts.refused_budget),
        "budget_is_limit": (!flash.is_timeless()).then(|| last.cache.refused().is_some_and(|share| share >= REFUSED_MIN)),
        "written_bytes": whole(outcome, counts.written_bytes), "written_day_bytes": day,
        "days": day.and_then(days), "days_least": days(args.write_budget()),
        "filled": flash.sizes[0].filled(), "sizes": sizes.collect::<Vec<_>>(),
    }))
}
