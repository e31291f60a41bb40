//! `remuda debug bundle`: what somebody who is to help needs to know of a node and its machine, in one archive.
//!
//! It holds no data and no keys: key files are not read, and whatever looks like a key is left out of everything else. What
//! cannot be had (there is no node, a file is not readable) is said in the archive; a bundle is made above all when something
//! is broken.

mod remains;

use super::exit::Failure;
use super::out_file::{Existing, OutFile, Readers, cannot_write};
use super::{Context, output};
use crate::clock::since_1970;
use crate::config::Config;
use crate::config::host_key::hide_keys;
use crate::doctor;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tar::{Builder, Header};

/// Most that is taken of a file: of a log, its end.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Questions to the node beside `node.status`, and where the answers go.
const QUESTIONS: &[(&str, &str)] = &[
    ("stats", "node/stats.json"),
    ("device.list", "node/devices.json"),
    ("pool.list", "node/pools.json"),
    ("volume.list", "node/volumes.json"),
    ("subsystem.list", "node/subsystems.json"),
    ("host.list", "node/hosts.json"),
    ("referral.list", "node/referrals.json"),
    ("vhost.list", "node/vhosts.json"),
    ("limit.list", "node/limits.json"),
];
/// What is taken of the machine.
const MACHINE: &[&str] = &[
    "/proc/version",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/mounts",
    "/proc/partitions",
    "/proc/diskstats",
    "/proc/net/dev",
    "/proc/net/snmp",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/etc/os-release",
];
/// What is taken of the node's process.
const PROCESS: &[&str] = &["limits", "status", "io", "stat", "sched"];

const README: &str = "\
What `remuda debug bundle` found, to be given to somebody who is to help.

doctor.json  what is in a node's way on this machine
config.toml  the node's configuration file
audit.log    who changed what, its end
state.json   what the node remembers, its state file
node/        what the node says of itself
pools/       of a node that does not run: the headers of its pools, as their files have them
process/     the node's process, from /proc
machine/     the machine, from /proc

NAME.error says why NAME could not be had. The node's own log is not here: with systemd, journalctl -u remuda.

There is no data of volumes in it and no key. Names, addresses, paths and host NQNs are: look before you send it.
";

/// Makes the archive.
pub fn bundle(context: &Context, file: Option<PathBuf>, config: Option<String>) -> Result<(), Failure> {
    let now = SystemTime::now();
    let stamp = humantime::format_rfc3339_seconds(now).to_string().replace(':', "");
    let path = file.unwrap_or_else(|| PathBuf::from(format!("remuda-debug-{stamp}.tar.gz")));
    // Never over something that is there, and for its owner alone.
    let file = OutFile::open(&path, Existing::Keep, Readers::Owner)?;
    let archive = Builder::new(GzEncoder::new(file, Compression::default()));
    let root = format!("remuda-debug-{stamp}");
    let seconds = since_1970(now);
    let mut bundle = Bundle { archive, root, seconds, files: 0, missing: Vec::new() };
    let filled = bundle.fill(context, config).and_then(|()| bundle.archive.into_inner()?.finish());
    let file = filled.map_err(|error| cannot_write(&path, &error))?;
    if file.is_stdout() {
        return file.finish();
    }
    file.finish()?;
    if context.json {
        let missing = bundle.missing.iter().map(|(name, why)| json!({ "name": name, "why": why }));
        let missing: Vec<Value> = missing.collect();
        output::print_json(&json!({ "file": path, "files": bundle.files, "missing": missing }));
    } else {
        let missing = bundle.missing.iter().map(|(name, why)| format!("\nmissing: {name}: {}", why.trim_end()));
        let missing: String = missing.collect();
        output::print_line(&format!("{}: {} files, no data and no keys{missing}", path.display(), bundle.files));
    }
    Ok(())
}

struct Bundle<W: Write> {
    archive: Builder<W>,
    /// Directory in the archive.
    root: String,
    /// When, in seconds since 1970.
    seconds: u64,
    files: usize,
    /// What could not be had, and why.
    missing: Vec<(String, String)>,
}

impl<W: Write> Bundle<W> {
    fn fill(&mut self, context: &Context, config: Option<String>) -> io::Result<()> {
        self.add("README", README.as_bytes())?;
        let version = json!({ "version": env!("CARGO_PKG_VERSION"), "socket": context.socket() });
        self.add_json("version.json", &version)?;
        let status = self.ask(context)?;
        let said = |key: &str| status.as_ref().and_then(|status| status[key].as_str()).map(str::to_string);
        let path = config.or_else(|| said("config"));
        let config = self.add_config(path.as_deref())?;
        self.add_json("doctor.json", &json!(doctor::findings(context, path.as_deref())))?;
        let configured = || config.as_ref().map(|config| config.node.state_dir.clone());
        match said("state_dir").map(PathBuf::from).or_else(configured) {
            Some(dir) => self.add_state(&dir, config.as_ref(), status.as_ref())?,
            None => {
                let reason = "where it is, is not known without a configuration file that can be read";
                self.add_missing("audit.log", reason)?;
                self.add_missing("state.json", reason)?;
            }
        }
        for path in MACHINE {
            let name = format!("machine/{}", path.trim_start_matches('/').replace('/', "-"));
            self.add_file(&name, Path::new(path))?;
        }
        Ok(())
    }

    /// What the node says of itself; gives its status.
    fn ask(&mut self, context: &Context) -> io::Result<Option<Value>> {
        let status = match context.call("node.status", json!({})) {
            Ok(status) => status,
            // It may hang: each further question would wait as long as this one.
            Err(failure) => {
                self.add_missing("node", &failure.message)?;
                return Ok(None);
            }
        };
        self.add_json("node/status.json", &status)?;
        for (method, name) in QUESTIONS {
            match context.call(method, json!({})) {
                Ok(answer) => self.add_json(name, &answer)?,
                Err(failure) => self.add_missing(name, &failure.message)?,
            }
        }
        Ok(Some(status))
    }

    /// The configuration file; gives what it says, as far as that can be made out.
    fn add_config(&mut self, path: Option<&str>) -> io::Result<Option<Config>> {
        const NAME: &str = "config.toml";
        let Some(path) = path else {
            self.add_missing(NAME, "no node answers that could say which it is; name it with --config FILE")?;
            return Ok(None);
        };
        self.add_file(NAME, Path::new(path))?;
        let text = std::fs::read_to_string(path).ok();
        Ok(text.and_then(|text| Config::parse(path, text).map_or_else(|bad| bad.salvage(), Some)))
    }

    /// What the node has in its state directory; and of one that does not answer, its process and the headers of its pools.
    fn add_state(&mut self, dir: &Path, config: Option<&Config>, status: Option<&Value>) -> io::Result<()> {
        self.add_file("audit.log", &dir.join("audit.log"))?;
        let state = remains::state(dir);
        match &state {
            Ok(state) => self.add_json("state.json", &json!(state))?,
            Err(reason) => self.add_missing("state.json", reason)?,
        }
        let pid = status.map_or_else(|| remains::pid(dir), |status| status["pid"].as_u64());
        if let Some(pid) = pid {
            for name in PROCESS {
                self.add_file(&format!("process/{name}"), &PathBuf::from(format!("/proc/{pid}/{name}")))?;
            }
        }
        if status.is_none() {
            let mut taken = BTreeSet::new();
            for (pool, headers) in remains::pools(config, state.as_ref().ok()) {
                // A configuration that is wrong may have any name, and any twice.
                let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
                let mut file: String = pool.chars().map(plain).collect();
                if file.starts_with('.') || !taken.insert(file.clone()) {
                    file = format!("{}-{file}", taken.len());
                    taken.insert(file.clone());
                }
                self.add_json(&format!("pools/{file}.json"), &headers)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let text = hide_keys(&String::from_utf8_lossy(bytes));
        let bytes = text.as_bytes();
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(self.seconds);
        self.files += 1;
        self.archive.append_data(&mut header, format!("{}/{name}", self.root), bytes)
    }

    fn add_json(&mut self, name: &str, value: &Value) -> io::Result<()> {
        self.add(name, format!("{value:#}\n").as_bytes())
    }

    fn add_missing(&mut self, name: &str, reason: &str) -> io::Result<()> {
        self.missing.push((name.to_string(), hide_keys(reason)));
        self.add(&format!("{name}.error"), format!("{reason}\n").as_bytes())
    }

    fn add_file(&mut self, name: &str, path: &Path) -> io::Result<()> {
        match end_of(path) {
            Ok(bytes) => self.add(name, &bytes),
            Err(error) => self.add_missing(name, &format!("{}: {error}", path.display())),
        }
    }
}

/// A file, or of a long one the whole lines in its last [`FILE_BYTES_MAX`] bytes: a part of a line could end with a part of a key.
fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let is_cut = len > FILE_BYTES_MAX;
    if is_cut {
        file.seek(SeekFrom::Start(len - FILE_BYTES_MAX))?;
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    if is_cut {
        let line = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        bytes.drain(..line);
    }
    Ok(bytes)
}
