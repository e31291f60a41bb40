//! How a command ends: exit codes, and the one way in which failures are shown.

use crate::config::BadConfig;
use crate::node::{Refusal, RefusalKind};
use crate::rpc::client::CallError;
use serde_json::{Value, json};

/// Exit codes, listed in `remuda help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Exit {
    /// The world said no; of a question about how things are: not as they should be.
    Failed = 1,
    /// A wrong command line or value.
    Usage = 2,
    /// No node answers.
    Unreachable = 3,
    /// There is no such object.
    NotFound = 4,
    /// How things are does not allow it: it exists already, is in use, or belongs to the configuration file.
    Conflict = 5,
    /// Not enough room.
    NoSpace = 6,
    /// The configuration file is wrong.
    BadConfig = 7,
    /// `pool check` has put right what was wrong.
    Repaired = 8,
    /// `pool check`, `pool scrub` or `snapshot verify` found what is wrong.
    Damaged = 9,
    /// Ended by Ctrl-C.
    Interrupted = 130,
}

/// For `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done                       4  no such object
  1  failed, or not well        5  conflict: exists, in use, or defined in the configuration file
  2  wrong command line         6  not enough room
  3  no node answers            7  wrong configuration file
  8  pool check: repaired       9  pool check, pool scrub or snapshot verify: damaged
  130  interrupted
'remuda docs running' says more of them.";

/// A command that did not succeed.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub exit: Exit,
    /// For people.
    pub message: String,
    /// For programs.
    pub json: Value,
}

impl Failure {
    /// A failure with a message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        let message = message.into();
        let json = json!({ "error": { "exit_code": exit as i32, "message": message } });
        Failure { exit, message, json }
    }

    /// A failure of which everything has been said.
    pub fn quiet(exit: Exit) -> Failure {
        Failure { exit, message: String::new(), json: Value::Null }
    }

    /// Shows it and gives the exit code.
    pub fn report(&self, as_json: bool) -> i32 {
        if self.message.is_empty() {
            return self.exit as i32;
        }
        if as_json {
            super::output::print_json(&self.json);
        } else {
            let prefix = if self.exit == Exit::BadConfig { "" } else { "error: " };
            eprintln!("{prefix}{}", base::shown(&self.message));
        }
        self.exit as i32
    }
}

impl From<BadConfig> for Failure {
    fn from(bad: BadConfig) -> Failure {
        let mut json = bad.to_json();
        json["error"] = json!({ "exit_code": Exit::BadConfig as i32, "message": "the configuration is wrong" });
        Failure { exit: Exit::BadConfig, message: bad.render(), json }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let exit = match refusal.kind {
            RefusalKind::Failed | RefusalKind::Stopping => Exit::Failed,
            RefusalKind::Invalid => Exit::Usage,
            RefusalKind::NotFound => Exit::NotFound,
            RefusalKind::Conflict => Exit::Conflict,
            RefusalKind::NoSpace => Exit::NoSpace,
        };
        let message = refusal.to_string();
        let mut error = serde_json::to_value(&refusal).expect("four strings serialise");
        error["exit_code"] = json!(exit as i32);
        error["message"] = json!(message);
        Failure { exit, message, json: json!({ "error": error }) }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        match error {
            CallError::Refused(refusal) => refusal.into(),
            CallError::Stream(error) => {
                let next = "check the file, or the program at the other end of the pipe, and try again";
                Failure::new(Exit::Failed, format!("the stream cannot be read or written here: {error}; {next}"))
            }
            CallError::Garbled(what) => Failure::new(Exit::Failed, format!("the node gave a garbled answer: {what}")),
            CallError::Unreachable { socket, error } => {
                let message = format!(
                    "no node answers at {}: {error}; start one with 'remuda serve --config FILE' or 'remuda dev', or name its \
                     socket with --socket or REMUDA_SOCKET",
                    socket.display()
                );
                Failure::new(Exit::Unreachable, message)
            }
        }
    }
}
