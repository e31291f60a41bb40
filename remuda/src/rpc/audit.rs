//! Who changed what on this node, and how it ended: a line of JSON for each request that is more than a question.
//!
//! The file is `audit.log` in the state directory. Above [`BYTES_MAX`] it becomes `audit.log.1`, in place of the one before.
//! The request is carried out all the same where that cannot be written: it is told, in the node's log and in its status, and
//! the lines are kept and tried again, with each further one and from time to time.

use super::methods::Method;
use crate::config::host_key::looks_like_key;
use crate::node::{AUDIT_LOG, Refusal};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Size from which a new file is begun.
const BYTES_MAX: u64 = 16 << 20;
/// Lines that wait to be written at most; of more, the oldest are given up.
const WAITING_MAX: usize = 1024;
/// Bytes of them at most.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// The process at the other end of the socket, as the kernel names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// User id.
    pub uid: u32,
    /// Process id, where it is known.
    pub pid: Option<i32>,
}

/// See the module.
pub struct Audit {
    path: PathBuf,
    /// Why the last attempt failed.
    failure: Option<io::Error>,
    /// What is to be written still.
    waiting: VecDeque<String>,
    /// Lines given up since one was written.
    lost: u64,
    /// The last attempt may have left a part of a line.
    torn: bool,
    bytes_max: u64,
}

impl Audit {
    /// An audit log in this directory.
    pub fn new(state_dir: &Path) -> Audit {
        Audit {
            path: state_dir.join(AUDIT_LOG),
            failure: None,
            waiting: VecDeque::new(),
            lost: 0,
            torn: false,
            bytes_max: BYTES_MAX,
        }
    }

    /// Records a request that has ended; questions are passed over.
    pub fn record(
        &mut self,
        peer: Peer,
        method: &Method,
        params: Option<&Value>,
        outcome: &Result<Value, Refusal>,
        now: SystemTime,
    ) {
        if !method.changes {
            return;
        }
        let mut line = json!({
            "time": humantime::format_rfc3339_millis(now).to_string(),
            "uid": peer.uid,
            "pid": peer.pid,
            "method": method.name,
            "params": params.map(without_keys),
            "ok": outcome.is_ok(),
        });
        if let Err(refusal) = outcome {
            line["error"] = refusal.to_string().into();
        }
        self.waiting.push_back(format!("{line}\n"));
        let bytes = |waiting: &VecDeque<String>| waiting.iter().map(String::len).sum::<usize>();
        while self.waiting.len() > WAITING_MAX || self.waiting.len() > 1 && bytes(&self.waiting) > WAITING_BYTES_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.write_waiting();
    }

    /// Writes what waits, as far as that goes.
    pub fn write_waiting(&mut self) {
        while let Some(line) = self.waiting.pop_front() {
            let Err(error) = self.write(&line) else { continue };
            self.waiting.push_front(line);
            if self.failure.is_none() {
                tracing::warn!("{}: {error}; administrative actions are not recorded", self.path.display());
            }
            self.failure = Some(error);
            return;
        }
        if self.failure.take().is_some() {
            let (path, lost) = (self.path.display(), std::mem::take(&mut self.lost));
            tracing::warn!("{path}: administrative actions are recorded again; {lost} were not");
        }
    }

    /// What is wrong with it, while its last write has failed.
    pub fn problem(&self) -> Option<String> {
        let error = self.failure.as_ref()?;
        let (path, waiting) = (self.path.display(), self.waiting.len() as u64 + self.lost);
        Some(format!(
            "{path}: {error}: {waiting} administrative actions are not recorded; make room for it, or let it be written"
        ))
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        // Opened each time: it may have been moved away meanwhile, and requests are few.
        let mut file = self.open()?;
        let mut written = file.metadata()?.len();
        if written > 0 && written + line.len() as u64 > self.bytes_max {
            let mut former = self.path.clone().into_os_string();
            former.push(".1");
            std::fs::rename(&self.path, former)?;
            file = self.open()?;
            written = 0;
        }
        // Behind a line that could be written in part only.
        let gap = if std::mem::take(&mut self.torn) && written > 0 { "\n" } else { "" };
        let ended = file.write_all(format!("{gap}{line}").as_bytes());
        self.torn = ended.is_err();
        ended
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)
    }
}

/// Parameters without what looks like a key: somebody may give one where the name of a file belongs.
fn without_keys(value: &Value) -> Value {
    match value {
        Value::String(text) if looks_like_key(text) => "(a key)".into(),
        Value::Array(values) => values.iter().map(without_keys).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), without_keys(value))).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::methods::find;
    use super::*;
    use crate::node::RefusalKind;
    use std::time::Duration;

    fn record(audit: &mut Audit, name: &str, outcome: &Result<Value, Refusal>) {
        let (peer, now) = (Peer { uid: 7, pid: Some(42) }, SystemTime::UNIX_EPOCH + Duration::from_millis(1_500));
        let params = json!({ "name": "v0" });
        audit.record(peer, find(name).expect("a method"), Some(&params), outcome, now);
    }

    #[test]
    fn changes_are_recorded_with_who_and_how_they_ended_and_questions_are_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut audit = Audit::new(dir.path());
        let refusal = Refusal::new(RefusalKind::Stopping, "volume 'v0'", "it is in use", "remove the namespace first");
        record(&mut audit, "volume.show", &Ok(json!({})));
        record(&mut audit, "volume.delete", &Err(refusal));
        record(&mut audit, "volume.delete", &Ok(json!({})));
        let text = std::fs::read_to_string(dir.path().join("audit.log")).expect("a log");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(lines[0]["time"], "1970-01-01T00:00:01.500Z");
        assert_eq!((&lines[0]["uid"], &lines[0]["pid"]), (&json!(7), &json!(42)));
        assert_eq!((&lines[0]["ok"], &lines[1]["ok"]), (&json!(false), &json!(true)));
        assert!(lines[0]["error"].as_str().expect("why").contains("in use"), "{text}");
        assert_eq!(lines[1]["params"]["name"], "v0");
    }

    #[test]
    fn the_log_begins_anew_when_it_is_large_and_keeps_the_one_before() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut audit = Audit { bytes_max: 300, ..Audit::new(dir.path()) };
        for _ in 0..5 {
            record(&mut audit, "volume.delete", &Ok(json!({})));
        }
        let lines = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("a log").lines().count();
        assert_eq!((lines("audit.log.1"), lines("audit.log")), (2, 1));
    }

    #[test]
    fn what_cannot_be_written_harms_nothing_and_is_written_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut audit = Audit::new(&dir.path().join("later"));
        for _ in 0..WAITING_MAX + 2 {
            record(&mut audit, "volume.delete", &Ok(json!({})));
        }
        let problem = audit.problem().expect("there is no such directory");
        assert!(problem.contains("later/audit.log: ") && problem.contains(": 1026 administrative"), "{problem}");
        audit.write_waiting();
        assert!(audit.problem().is_some());
        std::fs::create_dir(dir.path().join("later")).expect("made");
        audit.write_waiting();
        assert_eq!(audit.problem(), None);
        let text = std::fs::read_to_string(dir.path().join("later/audit.log")).expect("a log");
        assert_eq!(text.lines().count(), WAITING_MAX);
    }
}
