//! `remuda debug bundle`: what somebody who is to help needs to know of a node and its machine, in one archive.
//!
//! It holds no data and no keys: keys are in files that it does not read. What cannot be had (there is no node, a file is not
//! readable) is said in the archive; a bundle is made above all when something is broken.

use super::exit::{Exit, Failure};
use super::{Context, output};
use crate::doctor;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tar::{Builder, Header};

/// Most that is taken of a file: of a log, its end.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Questions to the node, and where the answers go.
const QUESTIONS: &[(&str, &str)] = &[
    ("node.status", "node/status.json"),
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
node/        what the node says of itself; *.error where it does not answer
process/     the node's process, from /proc
machine/     the machine, from /proc

There is no data of volumes in it and no key. Names, addresses, paths and host NQNs are: look before you send it.
";

/// Makes the archive.
pub fn bundle(context: &Context, file: Option<PathBuf>) -> Result<(), Failure> {
    let now = SystemTime::now();
    let stamp = humantime::format_rfc3339_seconds(now).to_string().replace(':', "");
    let path = file.unwrap_or_else(|| PathBuf::from(format!("remuda-debug-{stamp}.tar.gz")));
    let failed = |error: io::Error| {
        Failure::new(Exit::Failed, format!("cannot write '{}': {error}; name another file", path.display()))
    };
    // Never over something that is there, and for its owner alone.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    let archive = Builder::new(GzEncoder::new(file, Compression::default()));
    let root = format!("remuda-debug-{stamp}");
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut bundle = Bundle { archive, root, seconds, files: 0, missing: Vec::new() };
    let filled = bundle.fill(context).and_then(|()| bundle.archive.into_inner()?.finish());
    if let Err(error) = filled {
        let _ = std::fs::remove_file(&path);
        return Err(failed(error));
    }
    if context.json {
        output::print_json(&json!({ "file": path, "files": bundle.files, "missing": bundle.missing }));
    } else {
        let missing = match bundle.missing.as_slice() {
            [] => String::new(),
            missing => format!("\ncould not be had: {}", missing.join(", ")),
        };
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
    /// What could not be had.
    missing: Vec<String>,
}

impl<W: Write> Bundle<W> {
    fn fill(&mut self, context: &Context) -> io::Result<()> {
        self.add("README", README.as_bytes())?;
        let version = json!({ "version": env!("CARGO_PKG_VERSION"), "socket": context.socket() });
        self.add_json("version.json", &version)?;
        let mut status = Value::Null;
        for (method, name) in QUESTIONS {
            match context.call(method, json!({})) {
                Ok(answer) => {
                    self.add_json(name, &answer)?;
                    if *method == "node.status" {
                        status = answer;
                    }
                }
                Err(failure) => self.add_missing(name, &failure.message)?,
            }
        }
        let config = status["config"].as_str().map(str::to_string);
        self.add_json("doctor.json", &json!(doctor::findings(context, config.as_deref())))?;
        if let Some(config) = config {
            self.add_file("config.toml", Path::new(&config))?;
        }
        if let Some(state_dir) = status["state_dir"].as_str() {
            self.add_file("audit.log", &Path::new(state_dir).join("audit.log"))?;
        }
        if let Some(pid) = status["pid"].as_u64() {
            for name in PROCESS {
                self.add_file(&format!("process/{name}"), &PathBuf::from(format!("/proc/{pid}/{name}")))?;
            }
        }
        for path in MACHINE {
            let name = format!("machine/{}", path.trim_start_matches('/').replace('/', "-"));
            self.add_file(&name, Path::new(path))?;
        }
        Ok(())
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
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
        self.missing.push(name.to_string());
        self.add(&format!("{name}.error"), format!("{reason}\n").as_bytes())
    }

    fn add_file(&mut self, name: &str, path: &Path) -> io::Result<()> {
        match end_of(path) {
            Ok(bytes) => self.add(name, &bytes),
            Err(error) => self.add_missing(name, &format!("{}: {error}", path.display())),
        }
    }
}

/// The last [`FILE_BYTES_MAX`] bytes of a file.
fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    if len > FILE_BYTES_MAX {
        file.seek(SeekFrom::Start(len - FILE_BYTES_MAX))?;
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
