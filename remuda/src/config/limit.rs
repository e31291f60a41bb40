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
