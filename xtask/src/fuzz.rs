//! `cargo xtask fuzz`: the targets under `fuzz/`, built with the nightly compiler and run for a bounded time.
//!
//! cargo-fuzz is not needed: it would pass the same flags. Inputs that reached something new are kept under
//! `fuzz/corpus/`, an input that crashed a target under `fuzz/artifacts/`, and inputs worth keeping for ever are
//! committed under `fuzz/seeds/`.

use std::{path::Path, process::Command, sync::Mutex, thread};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::run;

/// What to fuzz, and how long.
#[derive(Args)]
pub struct Options {
    /// Only these targets
    targets: Vec<String>,
    /// For each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Stop a target after so many inputs, whatever the time (0: no such limit)
    #[arg(long, default_value_t = 0)]
    runs: u64,
}

/// What continuous integration affords.
pub fn run_bounded() -> Result<()> {
    run(&Options { targets: Vec::new(), seconds: 15, runs: 0 })
}

/// What cargo-fuzz passes: coverage for libFuzzer, the address sanitizer, assertions and overflow checks.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Cdebug-assertions -Coverflow-checks \
    -Ccodegen-units=1";

/// Sanitizers need the target named, so that build scripts and procedural macros go without them.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Builds the targets and runs them, one on each core; after a crash no further one is begun.
pub fn run(options: &Options) -> Result<()> {
    let manifest = run::root().join("fuzz/Cargo.toml");
    if !manifest.exists() {
        bail!("there is no fuzz/Cargo.toml");
    }
    let all = targets()?;
    for name in &options.targets {
        if !all.contains(name) {
            bail!("there is no fuzz target `{name}`; there are: {}", all.join(", "));
        }
    }
    let target_dir = run::target_dir().join("fuzz");
    run::checked(
        Command::new("cargo")
            .args(["+nightly", "build", "--release", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--bins"])
            .args(["--target", TRIPLE])
            .env("CARGO_TARGET_DIR", &target_dir)
            .env("RUSTFLAGS", RUSTFLAGS)
            // set by the `cargo` that called us, and not meant for the other toolchain
            .env_remove("CARGO")
            .env_remove("RUSTUP_TOOLCHAIN"),
    )
    .context("the fuzz targets need the nightly compiler: rustup toolchain install nightly --profile minimal")?;

    let chosen: Vec<&String> =
        all.iter().filter(|name| options.targets.is_empty() || options.targets.contains(name)).collect();
    side_by_side(&chosen, |name| fuzz(&target_dir.join(TRIPLE).join("release").join(name), name, options))
}

/// One target, a single thread, for its time.
fn fuzz(binary: &Path, name: &str, options: &Options) -> Result<()> {
    println!("fuzz {name}: {} s", options.seconds);
    let (corpus, seeds) = (format!("fuzz/corpus/{name}"), format!("fuzz/seeds/{name}"));
    let artifacts = format!("fuzz/artifacts/{name}/");
    for dir in [&corpus, &artifacts] {
        std::fs::create_dir_all(run::root().join(dir)).with_context(|| format!("cannot create {dir}"))?;
    }
    let mut command = Command::new(binary);
    command.arg(format!("-max_total_time={}", options.seconds)).arg(format!("-artifact_prefix={artifacts}"));
    command.args(["-print_final_stats=1", "-verbosity=0", "-rss_limit_mb=2048", "-timeout=10"]);
    // Most of an input's time goes into setting its world up: long programs do more in it.
    command.args(["-len_control=0", "-max_len=4096"]);
    if options.runs > 0 {
        command.arg(format!("-runs={}", options.runs));
    }
    command.arg(&corpus);
    if run::root().join(&seeds).exists() {
        command.arg(&seeds);
    }
    run::checked(&mut command).with_context(|| format!("fuzz target {name}; the input is in {artifacts}"))
}

/// Runs `work` on every name, as many at a time as there are cores; after a failure none is begun any more.
fn side_by_side(names: &[&String], work: impl Fn(&str) -> Result<()> + Sync) -> Result<()> {
    let names = Mutex::new(names.iter());
    let worker = || {
        loop {
            let name = names.lock().expect("no worker panics with the names").next();
            let Some(name) = name else { return Ok(()) };
            if let Err(error) = work(name) {
                names.lock().expect("no worker panics with the names").by_ref().for_each(drop);
                return Err(error);
            }
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).fold(Ok(()), Result::and)
    })
}

/// The binaries of the fuzz package.
fn targets() -> Result<Vec<String>> {
    let text = run::output(run::cargo().args([
        "metadata",
        "--no-deps",
        "--format-version=1",
        "--manifest-path",
        "fuzz/Cargo.toml",
    ]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata")?;
    let targets = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|package| package["targets"].as_array().cloned().unwrap_or_default());
    let is_bin = |target: &Value| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "bin"));
    let mut names: Vec<String> =
        targets.filter(is_bin).filter_map(|target| target["name"].as_str().map(str::to_owned)).collect();
    names.sort();
    if names.is_empty() {
        bail!("fuzz/Cargo.toml has no targets");
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_target_runs_once_and_a_failure_is_told() {
        let names: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        let names: Vec<&String> = names.iter().collect();
        let ran = AtomicUsize::new(0);
        let count = |_: &str| {
            ran.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        side_by_side(&names, count).unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 40);

        let outcome = side_by_side(&names, |name| if name == "7" { bail!("crashed") } else { Ok(()) });
        assert_eq!(outcome.unwrap_err().to_string(), "crashed");
    }
}
