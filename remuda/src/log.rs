//! Logs: `tracing` to standard error, as text or JSON lines, with a level that can change while the node runs. The last
//! warnings and errors are kept for the console.

use serde::Serialize;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

/// Lines kept at most.
const RECENT_MAX: usize = 50;
/// Bytes kept of a line at most.
const LINE_BYTES_MAX: usize = 600;

/// Changes the level of a running log.
pub struct LogControl(reload::Handle<LevelFilter, Registry>, Recent);

impl LogControl {
    /// Logs at `level` (a name that the configuration accepts) from now on.
    pub fn set_level(&self, level: &str) -> Result<(), String> {
        let level: LevelFilter = level.parse().map_err(|_| format!("'{level}' is not a log level"))?;
        self.0.reload(level).map_err(|error| error.to_string())
    }

    /// The name of the level at which it logs.
    pub fn level(&self) -> String {
        self.0.clone_current().unwrap_or(LevelFilter::OFF).to_string()
    }

    /// The last warnings and errors.
    pub fn recent(&self) -> Recent {
        self.1.clone()
    }
}

/// A warning or an error that was logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// `warn` or `error`.
    pub level: &'static str,
    /// What.
    pub text: String,
}

/// The last warnings and errors. The lock is beside the data path: what is logged takes one for standard error anyway.
#[derive(Clone, Default)]
pub struct Recent(Arc<Mutex<VecDeque<Line>>>);

impl Recent {
    /// The lines, the oldest first.
    pub fn lines(&self) -> Vec<Line> {
        self.0.lock().expect("nothing panics while holding it").iter().cloned().collect()
    }
}

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            _ => return,
        };
        let mut text = Text::default();
        event.record(&mut text);
        let mut text = text.message + &text.fields;
        if text.len() > LINE_BYTES_MAX {
            text.truncate(text.floor_char_boundary(LINE_BYTES_MAX));
            text.push('\u{2026}');
        }
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let mut lines = self.0.lock().expect("nothing panics while holding it");
        if lines.len() == RECENT_MAX {
            lines.pop_front();
        }
        lines.push_back(Line { at_ms, level, text });
    }
}

/// An event as one line: the message, then ` name=value` of every field.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Starts logging; once per process.
pub fn start(level: &str, json: bool) -> LogControl {
    let (filter, handle) = reload::Layer::new(level.parse::<LevelFilter>().unwrap_or(LevelFilter::INFO));
    let format = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let format =
        if json { format.json().boxed() } else { format.with_ansi(std::io::stderr().is_terminal()).compact().boxed() };
    // A test process may have a logger already; then this one is silent.
    let recent = Recent::default();
    let _ = tracing_subscriber::registry().with(filter).with(format).with(recent.clone()).try_init();
    LogControl(handle, recent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_warnings_and_errors_are_kept_and_no_more() {
        let recent = Recent::default();
        tracing::subscriber::with_default(Registry::default().with(recent.clone()), || {
            tracing::info!("not this");
            (0..60).for_each(|number| tracing::warn!(number, "low on {}", "hay"));
            tracing::error!("{}", "\u{e9}".repeat(LINE_BYTES_MAX));
        });
        let lines = recent.lines();
        assert_eq!(lines.len(), RECENT_MAX);
        assert_eq!((lines[0].level, lines[0].text.as_str()), ("warn", "low on hay number=11"));
        let last = lines.last().expect("fifty lines");
        assert_eq!((last.level, last.text.chars().count()), ("error", LINE_BYTES_MAX / 2 + 1));
    }
}
