//! The repository's chores: `cargo xtask ci|tidy|interop|fuzz|sim|bench`.
//!
//! Everything here drives cargo, the `remuda` binary and the scripts of this repository from the outside; it links
//! none of Remuda's own crates, so that it builds in seconds and still runs when they do not.

#![forbid(unsafe_code)]

mod bench;
mod ci;
mod fuzz;
mod interop;
mod run;
mod sim;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The repository's chores.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// All that must pass before a change lands, each step timed (.ci/run installs the packages and calls this)
    Ci(ci::Options),
    /// The rules of the source tree: dependency arrows, who may name the operating system, SAFETY comments ...
    Tidy,
    /// Real peers: the Linux kernel's NVMe/TCP host and target in QEMU guests (arguments go to tests/interop/run)
    #[command(disable_help_flag = true)]
    Interop {
        /// Passed on to tests/interop/run; try --help
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// The fuzz targets, each for a bounded time
    Fuzz(fuzz::Options),
    /// Every scenario of the simulator over many seeds, and one run twice with the same trace hash
    Sim(sim::Options),
    /// A node on a memory device measured over loopback, as a table
    Bench(bench::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().chore {
        Chore::Ci(options) => ci::run(&options),
        Chore::Tidy => tidy::run(),
        Chore::Interop { args } => interop::run(&args),
        Chore::Fuzz(options) => fuzz::run(&options),
        Chore::Sim(options) => sim::run(&options),
        Chore::Bench(options) => bench::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
