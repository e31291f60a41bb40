//! What a request gives its method, read as the configuration file is.

use super::methods::Method;
use crate::config::diagnostic::Problems;
use crate::config::limit::{self, Limited, Rates};
use crate::config::pool::REINSERTION;
use crate::config::section::{Form, Section};
use crate::config::value::Table;
use crate::node::Refusal;
use std::collections::BTreeSet;

/// Parameters, read; which are present was checked against the declaration.
#[derive(Default)]
pub(super) struct Params {
    pub(super) name: String,
    pub(super) nqn: Option<String>,
    pub(super) host: String,
    /// The same where it may be left out.
    pub(super) one_host: Option<String>,
    pub(super) address: String,
    pub(super) device: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) volume: String,
    pub(super) snapshot: String,
    pub(super) since: Option<String>,
    pub(super) target: String,
    pub(super) leg: Option<String>,
    pub(super) key_file: String,
    pub(super) confirm: String,
    pub(super) rates: Rates,
    /// The one of several words.
    pub(super) word: String,
    pub(super) serial: Option<String>,
    pub(super) model: Option<String>,
    pub(super) hosts: Option<Vec<String>>,
    pub(super) tls_key: Option<String>,
    pub(super) dhchap_key: Option<String>,
    pub(super) dhchap_ctrl_key: Option<String>,
    pub(super) dhchap_hash: Vec<String>,
    pub(super) dhchap_dhgroup: Vec<String>,
    pub(super) names: Vec<String>,
    pub(super) grace_ns: Option<u64>,
    pub(super) size: Option<u64>,
    pub(super) size_text: String,
    pub(super) offset: Option<u64>,
    pub(super) block_size: Option<u64>,
    pub(super) rate: Option<u64>,
    pub(super) log: Option<String>,
    pub(super) log_pmem: Option<String>,
    pub(super) log_size: Option<u64>,
    pub(super) nsid: Option<u32>,
    pub(super) ana_group: Option<u32>,
    pub(super) reinsertion: Option<u16>,
    pub(super) port: Option<String>,
    pub(super) uuid: Option<String>,
    pub(super) controller_ids: Option<String>,
    pub(super) socket: Option<String>,
    pub(super) queues: Option<u16>,
    pub(super) flag: bool,
    /// Names of the flags that are set, of methods that have several.
    pub(super) flags: BTreeSet<&'static str>,
}

impl Params {
    pub(super) fn read(method: &Method, table: &Table, problems: &mut Problems) -> Params {
        // Without a title: the refusal names the method.
        let mut section = Section::new("", None, table, &[method.params], true, problems);
        section.check_unknown(|_| None);
        let mut params = Params::default();
        for declared in method.params {
            if declared.default == "required" && !section.has(declared.name) {
                section.missing(declared.name);
                continue;
            }
            let name = declared.name;
            match declared.form {
                Form::Text => {
                    let text = section.text(name).map(|text| text.value);
                    match name {
                        "nqn" => params.nqn = text,
                        "serial" => params.serial = text,
                        "model" => params.model = text,
                        "name" => params.name = checked_name(&mut section, text),
                        "host" => {
                            // Nobody is not everybody: where a host may be left out, an empty name is wrong.
                            if text.as_deref() == Some("") {
                                section.wrong(None, name, "it is empty", None);
                            }
                            params.host = text.clone().unwrap_or_default();
                            params.one_host = text;
                        }
                        "address" => params.address = text.unwrap_or_default(),
                        "device" => params.device = text,
                        "pool" => params.pool = text,
                        "log" => params.log = text,
                        "log_pmem" => params.log_pmem = text,
                        "leg" | "prefer" => params.leg = text,
                        "tls_key" => params.tls_key = text,
                        "dhchap_key" => params.dhchap_key = text,
                        "dhchap_ctrl_key" => params.dhchap_ctrl_key = text,
                        "key_file" => params.key_file = text.unwrap_or_default(),
                        "confirm" => params.confirm = text.unwrap_or_default(),
                        "volume" => params.volume = text.unwrap_or_default(),
                        "snapshot" => params.snapshot = text.unwrap_or_default(),
                        "since" => params.since = text,
                        "target" => params.target = text.unwrap_or_default(),
                        "port" => params.port = text,
                        "uuid" => params.uuid = text,
                        "controller_ids" => params.controller_ids = text,
                        "socket" => params.socket = text,
                        "size" => params.size_text = text.unwrap_or_default(),
                        other => unreachable!("text parameter '{other}' has no place"),
                    }
                }
                Form::Choice(_) => {
                    params.word = section.choice(name).map(|word| word.value.to_string()).unwrap_or_default()
                }
                Form::Size if name == "size" => params.size = section.size(name).map(|size| size.value),
                Form::Size if name == "bandwidth" => params.rates = limit::read_rates(&mut section),
                Form::Size if name == "rate" => params.rate = section.size(name).map(|rate| rate.value),
                Form::Size if name == "log_size" => params.log_size = section.size(name).map(|size| size.value),
                Form::Size if name == "block_size" => params.block_size = section.size(name).map(|size| size.value),
                Form::Size => params.offset = section.size(name).map(|size| size.value),
                Form::Count(..) if name == "queues" => {
                    params.queues = section.count(name).map(|queues| queues.value as u16)
                }
                Form::Count(..) if name == REINSERTION.name => {
                    params.reinsertion = section.count(name).map(|percent| percent.value as u16)
                }
                // With the bandwidth.
                Form::Count(..) if name == "iops" => {}
                Form::Count(..) if name == "ana_group" => {
                    params.ana_group = section.count(name).map(|group| group.value as u32)
                }
                Form::Count(..) => params.nsid = section.count(name).map(|nsid| nsid.value as u32),
                Form::Flag => {
                    params.flag = section.flag(name).is_some_and(|flag| flag.value);
                    if params.flag {
                        params.flags.insert(name);
                    }
                }
                Form::TextList => {
                    let texts = section.texts(name);
                    let texts = texts.map(|texts| texts.into_iter().map(|text| text.value).collect());
                    match name {
                        "dhchap_hash" => params.dhchap_hash = texts.unwrap_or_default(),
                        "dhchap_dhgroup" => params.dhchap_dhgroup = texts.unwrap_or_default(),
                        "names" => params.names = texts.unwrap_or_default(),
                        _ => params.hosts = texts,
                    }
                }
                Form::Duration => params.grace_ns = section.duration_ns(name).map(|time| time.value),
                other => unreachable!("no parameter has the form {other:?}"),
            }
        }
        params
    }

    pub(super) fn limited(&self) -> Result<Limited, Refusal> {
        match (self.host.as_str(), self.volume.as_str()) {
            (host, "") if !host.is_empty() => Ok(Limited::Host(host.to_string())),
            ("", volume) if !volume.is_empty() => Ok(Limited::Volume(volume.to_string())),
            _ => Err(Refusal::invalid("limit", "it is of a host or of a volume", "give one of 'host' and 'volume'")),
        }
    }

    pub(super) fn nqn(&self) -> &str {
        self.nqn.as_deref().unwrap_or_default()
    }
}

fn checked_name(section: &mut Section<'_>, name: Option<String>) -> String {
    let name = name.unwrap_or_default();
    if let Err(reason) = crate::config::device::check_name(&name) {
        section.wrong(None, "name", reason, None);
    }
    name
}
