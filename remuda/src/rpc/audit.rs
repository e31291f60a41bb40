//! Who changed what on this node, and how it ended: a line of JSON for each request that is more than a question.
//!
//! The file is `audit.log` in the state directory. Above [`BYTES_MAX`] it becomes `audit.log.1`, in place of the one before.
//! What cannot be written is told in the node's log once, and the request is carried out all the same.

use super::methods::Method;
use crate::config::host_key::looks_like_key;
use crate::node::Refusal;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Size from which a new file is begun.
const BYTES_MAX: u64 = 16 << 20;

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
    /// The last attempt failed, and that was told.
    told: bool,
    /// The last attempt may have left a part of a line.
    torn: bool,
    bytes_max: u64,
}

impl Audit {
    /// An audit log in this directory.
    pub fn new(state_dir: &Path) -> Audit {
        Audit { path: state_dir.join("audit.log"), told: false, torn: false, bytes_max: BYTES_MAX }
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
        match self.write(&format!("{line}\n")) {
            Ok(()) => self.told = false,
            Err(_) if self.told => {}
            Err(error) => {
                self.told = true;
                tracing::warn!("{}: {error}; administrative actions are not recorded", self.path.display());
            }
        }
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        // Opened each time: it may have been moved away meanwhile, and requests are few.
        let mut file = self.open()?;
        let written = file.metadata()?.len();
        if written > 0 && written + line.len() as u64 > self.bytes_max {
            let mut former = self.path.clone().into_os_string();
            former.push(".1");
            std::fs::rename(&self.path, former)?;
            file = self.open()?;
        }
        // Behind a line that could be written in part only.
        let gap = if std::mem::take(&mut self.torn) { "\n" } else { "" };
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
    fn what_cannot_be_written_harms_nothing() {
        let mut audit = Audit::new(Path::new("/nowhere/at/all"));
        record(&mut audit, "volume.delete", &Ok(json!({})));
        assert!(audit.told);
    }
}
