//! What a power loss leaves of a pool, tried on what a kernel's block layer really made durable.
//!
//! In a guest, writers work on a namespace of a node whose devices lie on one `dm-log-writes` device, and note in marks of
//! its recording what was acknowledged. Outside, the recording is played up to one flush, FUA write or mark after the
//! other; each time the pool must check, open and hold what is noted. A write counts as lost until a flush or its own FUA
//! has completed: the worst that a volatile cache may do.
//!
//! * `power_loss write DEVICE NOTES SEED STEPS`: so many writes by each writer; 0 is until killed. Notes go into marks
//!   (`recorder:NAME`) or on a device, where work goes on where they end
//! * `power_loss verify DEVICE NOTES SEED`: reads everything back
//! * `power_loss replay RECORDING SEED LOG_MIB CAPACITY_MIB POINTS`: ends with 3 when something acknowledged is lost

mod history;
mod record;
mod replay;
mod workload;

#[path = "../../tests/common/mod.rs"]
mod common;

use std::process::ExitCode;

const USAGE: &str = "usage: power_loss write DEVICE NOTES SEED STEPS | verify DEVICE NOTES SEED | \
                     replay RECORDING SEED LOG_MIB CAPACITY_MIB POINTS";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &str| text.parse::<u64>().expect(USAGE);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["write", device, notes, seed, steps] => workload::write(device, notes, number(seed), number(steps)),
        ["verify", device, notes, seed] => workload::verify(device, notes, number(seed)),
        ["replay", recording, seed, log, capacity, points] => {
            replay::replay(recording, number(seed), [number(log), number(capacity)], number(points))
        }
        _ => Err(Failure::Other(USAGE.to_string())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Lost(what)) => {
            println!("LOST: {what}");
            ExitCode::from(3)
        }
        Err(Failure::Other(what)) => {
            eprintln!("power_loss: {what}");
            ExitCode::FAILURE
        }
    }
}

/// Why a command ended.
pub enum Failure {
    /// Something that was acknowledged is not there.
    Lost(String),
    /// The test itself could not be done.
    Other(String),
}

impl Failure {
    /// An I/O error of the machine below.
    fn io(what: &str, error: std::io::Error) -> Failure {
        Failure::Other(format!("{what}: {error}"))
    }
}
