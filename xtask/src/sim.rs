//! `cargo xtask sim`: every scenario of the simulator over many seeds, and the proof that a seed is a run: the same
//! seed twice gives the same trace hash.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::run;

/// Which scenarios, and how much of each.
#[derive(Args)]
pub struct Options {
    /// Only these scenarios
    scenarios: Vec<String>,
    /// Seeds of each scenario
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Go on with further seeds until interrupted, starting from one that the clock chose
    #[arg(long)]
    long: bool,
}

/// What continuous integration affords: the same seeds everywhere, fewer of them on a slow machine, so that it tells what a
/// change has broken; unknown seeds are for `--long`. Batches grow, so that a quick failure is quick and the processes few.
const BOUNDED_SEEDS: u64 = 2_000;
const BOUNDED_TIME: Duration = Duration::from_secs(80);
const BATCH_SEEDS: Range<u64> = 10..100;
/// The scenarios that count crash points, how many there have to be of each, and by when.
const POINTS_SCENARIOS: [(&str, u64); 6] = [
    ("hot-pool-images", 78_000),
    ("shaped-pool-images", 13_000),
    ("parity-pool-images", 3_000),
    ("mirror-pool-images", 1_000),
    ("zoned-pool-images", 3_000),
    ("warm-pool-images", 3_000),
];
const POINTS_TIME: Duration = Duration::from_secs(900);
const POINTS_BATCH_SEEDS: u64 = 25;

/// Every scenario over up to [`BOUNDED_SEEDS`] seeds within [`BOUNDED_TIME`].
pub fn run_bounded() -> Result<()> {
    let names = list()?;
    let others: Vec<String> =
        names.iter().filter(|name| !POINTS_SCENARIOS.iter().any(|(other, _)| other == name)).cloned().collect();
    sweep(&others, 1, BOUNDED_SEEDS, Some(BOUNDED_TIME))?;
    POINTS_SCENARIOS.into_iter().try_for_each(|(name, least)| crash_points(name, least))?;
    names.iter().try_for_each(|name| twice(name, 1))
}

/// Crash points of a shape of pools, so many at least.
fn crash_points(name: &str, least: u64) -> Result<()> {
    let start = Instant::now();
    let (mut points, mut from) = (0, 1);
    while points < least {
        points += batch(name, from..from + POINTS_BATCH_SEEDS)?;
        from += POINTS_BATCH_SEEDS;
        if points < least && start.elapsed() > POINTS_TIME {
            bail!("{points} crash points in {POINTS_TIME:?}: expected {least}");
        }
    }
    println!("sim: {points} crash points of {name}, {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Runs some seeds of a scenario; the crash points that they count.
fn batch(name: &str, seeds: Range<u64>) -> Result<u64> {
    let range = format!("{}..{}", seeds.start, seeds.end);
    let text = run::output(run::remuda().args(["sim", "run", "--scenario", name, "--seeds", &range, "--json"]))
        .with_context(|| format!("scenario {name}, seeds {range}"))?;
    find_points(&serde_json::from_str(&text).context("remuda sim run --json")?)
}

/// The crash points of an outcome.
fn find_points(outcome: &Value) -> Result<u64> {
    outcome["points"].as_u64().context("`remuda sim run --json` counts no points")
}

/// As the command line asks.
pub fn run(options: &Options) -> Result<()> {
    run::build_release()?;
    let all = list()?;
    if let Some(unknown) = options.scenarios.iter().find(|name| !all.contains(name)) {
        bail!("there is no scenario `{unknown}`; there are: {}", all.join(", "));
    }
    let names = if options.scenarios.is_empty() { all } else { options.scenarios.clone() };
    if options.long {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let (mut from, mut points) = (clock.as_secs() << 16, 0);
        loop {
            points += sweep(&names, from, options.seeds, None)?;
            println!("sim: {points} crash points so far");
            from += options.seeds;
        }
    }
    sweep(&names, options.from, options.seeds, None)?;
    names.iter().try_for_each(|name| twice(name, options.from))
}

/// Batches of seeds, one scenario after the other, until all seeds or the time are used up; the crash points that were counted.
fn sweep(names: &[String], from: u64, count: u64, limit: Option<Duration>) -> Result<u64> {
    let start = Instant::now();
    let (mut done, mut seeds, mut points) = (0, BATCH_SEEDS.start, 0);
    while done < count {
        seeds = seeds.min(count - done);
        for name in names {
            points += batch(name, from + done..from + done + seeds)?;
        }
        done += seeds;
        seeds = (2 * seeds).min(BATCH_SEEDS.end);
        if let Some(limit) = limit {
            // No more than there is time for.
            let left = limit.saturating_sub(start.elapsed()).as_secs_f64();
            seeds = seeds.min((left * done as f64 / start.elapsed().as_secs_f64()) as u64);
            if seeds == 0 {
                break;
            }
        }
    }
    let took = start.elapsed().as_secs_f64();
    println!("sim: {} scenarios x {done} seeds from {from}, {points} crash points, {took:.0} s", names.len());
    Ok(points)
}

/// One seed run twice in two processes: equal hashes, or the simulator is not deterministic.
fn twice(name: &str, seed: u64) -> Result<()> {
    let (first, second) = (hash(name, seed)?, hash(name, seed)?);
    if first != second {
        bail!("scenario {name}, seed {seed}: two runs, two traces ({first} and {second})");
    }
    println!("sim: {name} seed {seed} twice: {first}");
    Ok(())
}

fn hash(name: &str, seed: u64) -> Result<String> {
    let text =
        run::output(run::remuda().args(["sim", "run", "--scenario", name, "--seed", &seed.to_string(), "--json"]))?;
    find_hash(&text).with_context(|| format!("scenario {name}, seed {seed}: no `hash` in {text}"))
}

/// The `hash` of the first JSON object in the output: a string or a number.
fn find_hash(text: &str) -> Option<String> {
    let value: Value = serde_json::Deserializer::from_str(text).into_iter().next()?.ok()?;
    let run = if value.is_array() { &value[0] } else { &value };
    match &run["hash"] {
        Value::String(hash) => Some(hash.clone()),
        Value::Number(hash) => Some(hash.to_string()),
        _ => None,
    }
}

fn list() -> Result<Vec<String>> {
    let text = run::output(run::remuda().args(["sim", "list", "--json"]))?;
    let names = find_names(&serde_json::from_str(&text).context("remuda sim list --json")?);
    if names.is_empty() {
        bail!("`remuda sim list --json` names no scenario");
    }
    Ok(names)
}

/// Scenario names: an array of strings or of objects with a `name`, bare or under `scenarios`.
fn find_names(value: &Value) -> Vec<String> {
    let rows = value.as_array().or_else(|| value["scenarios"].as_array());
    let name = |row: &Value| row.as_str().or_else(|| row["name"].as_str()).map(str::to_owned);
    rows.into_iter().flatten().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_hash_is_found_in_an_object_an_array_or_lines() {
        for text in [r#"{"seed":1,"hash":"ab"}"#, r#"[{"hash":"ab"}]"#, "{\"hash\":\"ab\"}\n{\"hash\":\"cd\"}\n"] {
            assert_eq!(find_hash(text).as_deref(), Some("ab"));
        }
        assert_eq!(find_hash("{}"), None);
        assert_eq!(find_hash("no JSON"), None);
    }

    #[test]
    fn crash_points_are_found() {
        assert_eq!(find_points(&json!({"points": 7})).unwrap(), 7);
        assert!(find_points(&json!({"runs": 7})).is_err());
    }

    #[test]
    fn scenario_names_are_found() {
        for value in
            [json!(["a", "b"]), json!([{"name": "a"}, {"name": "b"}]), json!({"scenarios": [{"name": "a"}, "b"]})]
        {
            assert_eq!(find_names(&value), ["a", "b"]);
        }
    }
}
