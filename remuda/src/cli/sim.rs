//! `remuda sim`: scenarios in the simulated world, reproduced by their seeds.

use super::exit::{Exit, Failure};
use super::{Context, output};
use crate::config::nearest;
use clap::{ArgGroup, Subcommand};
use scenarios::{Options, Outcome, Verdict};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Subcommand)]
pub enum SimCommand {
    /// List the scenarios
    List,
    /// Run a scenario with one seed or many
    #[command(group(ArgGroup::new("which").required(true).args(["seed", "seeds"])), after_help = "\
Examples:
  remuda sim run --scenario file-device-crash --seed 7
  remuda sim run --scenario file-device-crash --seeds 0..1000
  remuda sim run --scenario all --seeds 0..100 --json")]
    Run {
        /// Scenario; 'all' is every one
        #[arg(long)]
        scenario: String,
        /// One seed
        #[arg(long)]
        seed: Option<u64>,
        /// Seeds from A up to, not including, B
        #[arg(long, value_name = "A..B", value_parser = parse_range)]
        seeds: Option<Range<u64>>,
        /// Lines of the trace shown for a failure
        #[arg(long, default_value_t = scenarios::TAIL_LINES_DEFAULT)]
        trace_lines: usize,
        /// Threads for many seeds [default: all cores]
        #[arg(long)]
        threads: Option<usize>,
    },
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let bad = || format!("'{text}' is not a range of seeds: expected A..B with A less than B, such as 0..1000");
    let (first, last) = text.split_once("..").ok_or_else(bad)?;
    let range = first.trim().parse().map_err(|_| bad())?..last.trim().parse().map_err(|_| bad())?;
    if range.is_empty() { Err(bad()) } else { Ok(range) }
}

pub fn run(context: &Context, command: SimCommand) -> Result<(), Failure> {
    match command {
        SimCommand::List => {
            list(context);
            Ok(())
        }
        SimCommand::Run { scenario, seed, seeds, trace_lines, threads } => {
            let names = names(&scenario)?;
            let seeds = seeds.unwrap_or_else(|| {
                let seed = seed.expect("clap asks for one of the two");
                seed..seed.saturating_add(1)
            });
            let options = Options { tail_lines: trace_lines, ..Options::default() };
            let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
            run_all(context, &names, seeds, &options, threads)
        }
    }
}

fn list(context: &Context) {
    if context.json {
        let all = scenarios::list().iter().map(|one| json!({ "name": one.name, "about": one.about }));
        output::print_json(&Value::Array(all.collect()));
        return;
    }
    let rows = scenarios::list().iter().map(|one| vec![one.name.to_string(), one.about.to_string()]);
    output::print_line(&output::table(&["SCENARIO", "WHAT IT DOES AND CHECKS"], rows.collect()));
}

fn names(wanted: &str) -> Result<Vec<&'static str>, Failure> {
    let known = || scenarios::list().iter().map(|one| one.name);
    if wanted == "all" {
        return Ok(known().collect());
    }
    known().find(|name| *name == wanted).map(|name| vec![name]).ok_or_else(|| {
        let next = nearest(wanted, known())
            .map_or("'remuda sim list' names them".into(), |near| format!("did you mean '{near}'?"));
        Failure::new(Exit::NotFound, format!("there is no scenario '{wanted}'; {next}"))
    })
}

/// Runs every pair of name and seed. Each run has a thread to itself while it lasts, so threads do not change results.
fn run_all(
    context: &Context,
    names: &[&'static str],
    seeds: Range<u64>,
    options: &Options,
    threads: usize,
) -> Result<(), Failure> {
    let per_name = seeds.end - seeds.start;
    let total = per_name.saturating_mul(names.len() as u64);
    let interrupt = Arc::new(AtomicBool::new(false));
    let _ = signal_hook::flag::register_conditional_default(signal_hook::consts::SIGINT, interrupt.clone());
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, interrupt.clone());
    let show = !context.json && total > 1 && std::io::stderr().is_terminal();
    let bar = if show { indicatif::ProgressBar::new(total) } else { indicatif::ProgressBar::hidden() };
    let next = AtomicU64::new(0);
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, 256).min(total as usize) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= total || interrupt.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = names[(index / per_name) as usize];
                    let outcome = scenarios::run(name, seeds.start + index % per_name, options);
                    let outcome = outcome.expect("the name was looked up");
                    bar.inc(1);
                    summary.lock().expect("nothing panics while holding it").take(outcome);
                }
            });
        }
    });
    bar.finish_and_clear();
    let summary = summary.into_inner().expect("nothing panicked");
    summary.show(context, total);
    if interrupt.load(Ordering::Relaxed) {
        return Err(Failure::quiet(Exit::Interrupted));
    }
    if summary.failures.is_empty() { Ok(()) } else { Err(Failure::quiet(Exit::Failed)) }
}

/// Failures that are kept whole.
const FAILURES_MAX: usize = 20;

#[derive(Default)]
struct Summary {
    runs: u64,
    failed: u64,
    steps: u64,
    virtual_ns: u64,
    points: u64,
    last: Option<Outcome>,
    failures: Vec<Outcome>,
}

impl Summary {
    fn take(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.steps += outcome.steps;
        self.virtual_ns += outcome.virtual_ns;
        self.points += outcome.points;
        if outcome.is_ok() {
            self.last = Some(outcome);
        } else {
            self.failed += 1;
            self.failures.push(outcome);
            self.failures.sort_by_key(|outcome| (outcome.scenario, outcome.seed));
            self.failures.truncate(FAILURES_MAX);
        }
    }

    fn show(&self, context: &Context, total: u64) {
        let single = self.failures.first().or(self.last.as_ref()).filter(|_| total == 1);
        if context.json {
            let value = match single {
                Some(outcome) => outcome_json(outcome),
                None => json!({
                    "ok": self.failed == 0,
                    "runs": self.runs,
                    "failed": self.failed,
                    "steps": self.steps,
                    "virtual_ns": self.virtual_ns,
                    "points": self.points,
                    "failures": self.failures.iter().map(outcome_json).collect::<Vec<_>>(),
                }),
            };
            output::print_json(&value);
            return;
        }
        if let Some(outcome) = single {
            output::print_line(&outcome.to_string());
        } else {
            self.failures.iter().for_each(|outcome| output::print_line(&outcome.to_string()));
            output::print_line(&format!(
                "{} runs, {} failed; {} crash points, {} steps, {} of virtual time",
                output::count(self.runs),
                output::count(self.failed),
                output::count(self.points),
                output::count(self.steps),
                crate::config::show_duration_ns(self.virtual_ns)
            ));
        }
        for outcome in &self.failures {
            output::print_line(&format!(
                "repeat: remuda sim run --scenario {} --seed {}",
                outcome.scenario, outcome.seed
            ));
        }
    }
}

fn outcome_json(outcome: &Outcome) -> Value {
    let mut value = json!({
        "scenario": outcome.scenario,
        "seed": outcome.seed,
        "ok": outcome.is_ok(),
        "hash": format!("{:016x}", outcome.hash),
        "steps": outcome.steps,
        "virtual_ns": outcome.virtual_ns,
        "points": outcome.points,
    });
    if let Verdict::Failed { reason, trace_tail } = &outcome.verdict {
        value["reason"] = json!(reason);
        value["trace"] = json!(trace_tail);
    }
    value
}
