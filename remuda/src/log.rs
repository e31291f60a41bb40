//! Logs: `tracing` to standard error, as text or JSON lines, with a level that can change while the node runs.

use std::io::IsTerminal;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

/// Changes the level of a running log.
pub struct LogControl(reload::Handle<LevelFilter, Registry>);

impl LogControl {
    /// Logs at `level` (a name that the configuration accepts) from now on.
    pub fn set_level(&self, level: &str) -> Result<(), String> {
        let level: LevelFilter = level.parse().map_err(|_| format!("'{level}' is not a log level"))?;
        self.0.reload(level).map_err(|error| error.to_string())
    }
}

/// Starts logging; once per process.
pub fn start(level: &str, json: bool) -> LogControl {
    let (filter, handle) = reload::Layer::new(level.parse::<LevelFilter>().unwrap_or(LevelFilter::INFO));
    let format = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let format =
        if json { format.json().boxed() } else { format.with_ansi(std::io::stderr().is_terminal()).compact().boxed() };
    // A test process may have a logger already; then this one is silent.
    let _ = tracing_subscriber::registry().with(filter).with(format).try_init();
    LogControl(handle)
}
