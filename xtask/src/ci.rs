//! `cargo xtask ci`: the steps that decide whether a change may land, in order of how soon they tell something.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{fuzz, interop, run, sim, tidy};

/// Which steps to run.
#[derive(Args)]
pub struct Options {
    /// Only these steps
    #[arg(long, value_delimiter = ',', value_name = "STEP,..", conflicts_with = "skip")]
    only: Vec<String>,
    /// All but these steps
    #[arg(long, value_delimiter = ',', value_name = "STEP,..")]
    skip: Vec<String>,
    /// Name the steps and stop
    #[arg(long)]
    list: bool,
}

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn() -> Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "fmt", about: "the formatter has nothing to say", run: fmt },
    Step { name: "tidy", about: "the rules of the source tree", run: tidy::run },
    Step { name: "clippy", about: "no warning in any target", run: clippy },
    Step { name: "test", about: "every test of the workspace", run: test },
    Step { name: "tls", about: "clippy and tests of what the feature `tls` adds", run: tls },
    Step { name: "release", about: "the binary that the next steps use", run: run::build_release },
    Step { name: "sim", about: "every scenario over many seeds; one run twice, same trace", run: sim::run_bounded },
    Step { name: "fuzz", about: "every fuzz target for a bounded time", run: fuzz::run_bounded },
    Step { name: "demo", about: "the demo, as a newcomer runs it", run: demo },
    Step { name: "console", about: "the console in a headless Chromium", run: console },
    Step { name: "interop", about: "the Linux kernel's host and target, the short list", run: interop::run_short },
];

/// Runs the chosen steps; the first failure ends it.
pub fn run(options: &Options) -> Result<()> {
    if options.list {
        for step in STEPS {
            println!("{:8} {}", step.name, step.about);
        }
        return Ok(());
    }
    for name in options.only.iter().chain(&options.skip) {
        if !STEPS.iter().any(|step| step.name == name) {
            bail!("there is no step `{name}`; `cargo xtask ci --list` names them");
        }
    }
    let chosen = |step: &&Step| {
        let named = |names: &[String]| names.iter().any(|name| name == step.name);
        if options.only.is_empty() { !named(&options.skip) } else { named(&options.only) }
    };

    let mut took: Vec<(&str, Duration)> = Vec::new();
    for step in STEPS.iter().filter(chosen) {
        println!("==> {}: {}", step.name, step.about);
        let start = Instant::now();
        let outcome = (step.run)();
        took.push((step.name, start.elapsed()));
        println!("<== {}: {}, {:.1} s", step.name, if outcome.is_ok() { "ok" } else { "FAILED" }, seconds(&took));
        if outcome.is_err() {
            summary(&took);
            return outcome.with_context(|| format!("step {} failed", step.name));
        }
    }
    summary(&took);
    Ok(())
}

fn seconds(took: &[(&str, Duration)]) -> f64 {
    took.last().map_or(0.0, |(_, time)| time.as_secs_f64())
}

fn summary(took: &[(&str, Duration)]) {
    println!();
    for (name, time) in took {
        println!("{name:10} {:8.1} s", time.as_secs_f64());
    }
    let total: Duration = took.iter().map(|(_, time)| *time).sum();
    println!("{:10} {:8.1} s", "total", total.as_secs_f64());
}

fn fmt() -> Result<()> {
    run::checked(run::cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    run::checked(run::cargo().args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
}

fn test() -> Result<()> {
    run::checked(run::cargo().args(["test", "--workspace", "--quiet"]))
}

/// The feature needs system packages, so it is no part of the steps above. The binary is not built a second time for it: its tests
/// with TLS are `cargo test -p remuda --features tls --test all tls::`.
fn tls() -> Result<()> {
    let features = ["-p", "remuda-nvme", "-p", "remuda", "--features", "remuda-nvme/tls,remuda/tls"];
    run::checked(run::cargo().arg("clippy").args(features).args(["--all-targets", "--quiet", "--", "-D", "warnings"]))?;
    run::checked(run::cargo().args([
        "test",
        "-p",
        "remuda-nvme",
        "--features",
        "tls",
        "--quiet",
        "--lib",
        "--test",
        "tls",
    ]))
}

fn demo() -> Result<()> {
    run::checked(run::remuda().arg("demo"))
}

fn console() -> Result<()> {
    run::checked(
        std::process::Command::new(run::root().join("tests/console/run")).arg("--remuda").arg(run::release_binary()),
    )
}
