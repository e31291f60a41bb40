//! `cargo xtask interop`: `tests/interop/run` on builds made here and now, and the short list of it for continuous integration.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::run;

/// About half of what the short list takes. A guest under emulation keeps one core busy, and no more.
const FIRST_LANE: &str = "pool,snapshots,vhost,vhost-boot,host";

/// Lines that are told once more of each step that failed: what it printed, and what the guest's kernel said.
const FAILURE_LINES: usize = 50;
/// How a step that failed ends its line, and a job in the list at the end.
const FAILURE_MARKS: [&str; 2] = [": FAIL", "FAILED"];

/// The short list against the release build that is there, in two lanes side by side; each line is told with its lane, and what failed
/// once more in the end, where it is found.
pub fn run_short() -> Result<()> {
    let lanes = ["--only", "--skip"];
    let outcomes: Vec<Result<Vec<String>>> = thread::scope(|scope| {
        let started = lanes.map(|choice| scope.spawn(move || lane(choice)));
        started.into_iter().map(|lane| lane.join().expect("a lane does not panic")).collect()
    });
    let mut failed = Vec::new();
    for (choice, outcome) in lanes.iter().zip(outcomes) {
        let failures = outcome?;
        if !failures.is_empty() {
            println!("what failed of {choice} {FIRST_LANE}:");
            failures.iter().for_each(|line| println!("{line}"));
            failed.push(*choice);
        }
    }
    if !failed.is_empty() {
        bail!("tests/interop/run --short {FIRST_LANE} failed with {}", failed.join(" and with "));
    }
    Ok(())
}

/// What is worth telling once more of a lane that failed; nothing of one that did not.
fn lane(choice: &str) -> Result<Vec<String>> {
    let mut command = suite();
    command.args(["--short", choice, FIRST_LANE]).current_dir(run::root()).stdout(Stdio::piped());
    let mut suite = command.spawn().context("cannot run tests/interop/run")?;
    let lines = BufReader::new(suite.stdout.take().context("the suite has no output")?).split(b'\n');
    let (mut failures, mut left) = (Vec::new(), 0);
    for line in lines {
        let line = line.context("the suite's output cannot be read")?;
        let line = String::from_utf8_lossy(&line).into_owned();
        println!("{choice:6} | {line}");
        if FAILURE_MARKS.iter().any(|mark| line.contains(mark)) {
            left = FAILURE_LINES;
        }
        if left > 0 {
            left -= 1;
            failures.push(line);
        }
    }
    let status = suite.wait().context("the suite cannot be waited for")?;
    if status.success() {
        return Ok(Vec::new());
    }
    failures.push(format!("tests/interop/run --short {choice} {FIRST_LANE} ended with {status}"));
    Ok(failures)
}

fn suite() -> Command {
    Command::new(run::root().join("tests/interop/run"))
}

/// Runs the interop suite against release builds made here and now. Those with TLS need OpenSSL's headers and are beside the others;
/// a short run has them only when it asks for their job.
pub fn run(args: &[String]) -> Result<()> {
    let mut suite = suite();
    if !args.iter().any(|arg| ["--help", "--target", "--matrix"].contains(&arg.as_str())) {
        let is_short = args.iter().any(|arg| arg == "--short");
        let only = args.iter().position(|arg| arg == "--only").and_then(|at| args.get(at + 1));
        if only.map_or(!is_short, |only| only.split(',').any(|job| job == "tls")) {
            suite.env("REMUDA_TLS", run::build_release_tls()?);
            let example = ["--package", "remuda-nvme", "--features", "tls", "--example", "kernel_tls"];
            run::checked(run::cargo().args(["build", "--release", "--quiet"]).args(example))?;
        }
        run::build_release()?;
        if !is_short {
            for (package, example) in [("remuda-engine", "power_loss"), ("remuda-bdev", "conform")] {
                let example = ["--package", package, "--example", example];
                run::checked(run::cargo().args(["build", "--release", "--quiet"]).args(example))?;
            }
        }
    }
    run::checked(suite.args(args))
}
