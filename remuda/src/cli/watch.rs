//! Looking at a running node again and again: what happened between one look and the next.

use super::exit::{Exit, Failure};
use super::{Context, output};
use clap::Args;
use serde_json::Value;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often to look.
#[derive(Args)]
pub struct Watch {
    /// Time between two looks, in seconds
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    interval: f64,
    /// Look once, over one interval, and end
    #[arg(long)]
    once: bool,
}

/// What to show of the time between two looks.
pub struct Shown {
    /// For programs, one line per look.
    pub json: Value,
    /// For people.
    pub text: String,
}

impl Watch {
    /// Looks until interrupted (or once), and shows each time what happened since the last look.
    pub fn run<T>(
        &self,
        context: &Context,
        look: impl Fn() -> Result<T, Failure>,
        show: impl Fn(&T, &T, Duration) -> Shown,
    ) -> Result<(), Failure> {
        let interval = self.interval;
        if !(0.05..=3600.0).contains(&interval) {
            return Err(Failure::new(Exit::Usage, format!("--interval {interval}: expected 0.05 to 3600 seconds")));
        }
        // Cursor home, then erase what the last look left.
        let clear = std::io::stdout().is_terminal() && !self.once && !context.json;
        let prefix = if clear { "\x1b[H\x1b[2J" } else { "" };
        let (mut before, mut began) = (look()?, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs_f64(interval));
            let (after, ended) = (look()?, Instant::now());
            let shown = show(&before, &after, ended - began);
            (before, began) = (after, ended);
            if context.json {
                output::print_raw(&shown.json.to_string());
            } else {
                output::print_raw(&format!("{prefix}{}", base::shown(&shown.text)));
            }
            if self.once {
                return Ok(());
            }
        }
    }
}
