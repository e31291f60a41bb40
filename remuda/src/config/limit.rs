//! `[[limit]]`: how much a host may do, or how much may be done to a volume.

use super::check_nqn;
use super::diagnostic::Problems;
use super::section::{Form, Key, Section, key};
use super::value::{Located, Span, Table};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Keys of `[[limit]]`.
pub const LIMIT: &[Key] = &[
    key("host", Form::Text, "this or volume", "NQN of the host: over all of its connections and subsystems."),
    key("volume", Form::Text, "this or host", "The volume: over all hosts and virtual machines that use it."),
    IOPS,
    BANDWIDTH,
];
/// Operations each second.
pub const IOPS: Key = key("iops", Form::Count(1, 1_000_000_000), "no limit", "Operations each second, at most.");
/// Bytes each second.
pub const BANDWIDTH: Key = key("bandwidth", Form::Size, "no limit", "Bytes each second, at most, 1 MiB or more.");

/// With less, one large command would hold a connection up for longer than hosts wait.
const BANDWIDTH_MIN: u64 = 1 << 20;

/// Commands that a Linux host keeps under way on one connection for block operations, unless told otherwise, the most bytes that it
/// moves with one of them here, and the seconds after which it takes the connection for dead (`nvme_core.io_timeout`).
const LINUX_QUEUE: u64 = 128;
const LINUX_BYTES_MAX: u64 = 1 << 20;
const LINUX_TIMEOUT_S: u64 = 30;

/// What a limit is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limited {
    /// A host, by its NQN.
    Host(String),
    /// A volume, by its name.
    Volume(String),
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limited::Host(name) => write!(f, "host '{name}'"),
            Limited::Volume(name) => write!(f, "volume '{name}'"),
        }
    }
}

/// Limits; `None` is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Operations each second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Bytes each second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
}

impl Rates {
    /// What to know about a limit that is lower than hosts bear.
    pub fn warning(&self) -> Option<String> {
        let by_operations = self.iops.map_or(0, |iops| LINUX_QUEUE / iops.max(1));
        let by_bytes = self.bandwidth.map_or(0, |bandwidth| LINUX_QUEUE * LINUX_BYTES_MAX / bandwidth.max(1));
        let seconds = by_operations.max(by_bytes);
        (seconds > LINUX_TIMEOUT_S).then(|| {
            format!(
                "a full queue of a Linux host ({LINUX_QUEUE} operations of up to 1 MiB) takes {seconds} s at this rate, and after \
                 {LINUX_TIMEOUT_S} s it resets the connection and sends everything again; raise nvme_core.io_timeout there, or lower \
                 max_sectors_kb and nr_requests of its block device"
            )
        })
    }
}

/// `[[limit]]`.
#[derive(Clone, Debug)]
pub struct LimitEntry {
    /// Of what, and where that is said.
    pub of: Located<Limited>,
    /// How much.
    pub rates: Rates,
}

pub(super) fn read_limit(table: &Table, span: Option<Span>, problems: &mut Problems) -> Option<LimitEntry> {
    let mut section = Section::new("[[limit]]", span, table, &[LIMIT], false, problems);
    section.check_unknown(|_| None);
    let (host, volume) = (section.text("host"), section.text("volume"));
    let rates = read_rates(&mut section);
    if rates == Rates::default() && !section.has("iops") && !section.has("bandwidth") {
        section.wrong(None, "iops", "nothing is limited", Some("give 'iops', 'bandwidth' or both".into()));
    }
    let of = match (host, volume) {
        (Some(host), None) => {
            if let Err(reason) = check_nqn(&host.value) {
                section.wrong(host.span.clone(), "host", reason, None);
            }
            Located { value: Limited::Host(host.value), span: host.span }
        }
        (None, Some(volume)) => Located { value: Limited::Volume(volume.value), span: volume.span },
        _ => {
            let help = "give one of 'host' and 'volume'".to_string();
            section.wrong(None, "host", "a limit is of a host or of a volume", Some(help));
            return None;
        }
    };
    Some(LimitEntry { of, rates })
}

/// Reads `iops` and `bandwidth`.
pub fn read_rates(section: &mut Section<'_>) -> Rates {
    let bandwidth = section.size("bandwidth");
    if let Some(bandwidth) = &bandwidth
        && bandwidth.value < BANDWIDTH_MIN
    {
        section.wrong(bandwidth.span.clone(), "bandwidth", "it must be at least 1 MiB", None);
    }
    let iops = section.count("iops").map(|iops| iops.value);
    Rates { iops, bandwidth: bandwidth.map(|bandwidth| bandwidth.value) }
}
