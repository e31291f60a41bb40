//! `[[subsystem]]`: what hosts connect to.

use super::ana::{self, AnaEntry};
use super::diagnostic::Problems;
use super::host_key::{self, HostKeyEntry};
use super::namespace::{NamespaceEntry, read_namespaces};
use super::section::{Form, Key, Section, key};
use super::value::{Located, Span, Table};
use nvme::spec::Nqn;
use nvme::spec::nqn::NQN_LEN_MAX;

/// Keys of `[[subsystem]]`.
pub const SUBSYSTEM: &[Key] = &[
    key("nqn", Form::Text, "required", "Its NVMe name, such as \"nqn.2026-11.org.example:disks\"."),
    key("allow_any_host", Form::Flag, "false", "Whether every host may connect."),
    key("hosts", Form::TextList, "[]", "NQNs of the hosts that may connect."),
    key(
        "host_keys",
        Form::Special("list of {host, dhchap_key, tls_key, ...}"),
        "[]",
        "Hosts that have to authenticate themselves, or to connect by TLS.",
    ),
    key("serial", Form::Text, "generated once", "Serial number, up to 20 printable characters."),
    key("model", Form::Text, "Remuda", "Model number, up to 40 printable characters."),
    key(
        "namespaces",
        Form::Special("list of {nsid, volume, hosts}, or of volume names"),
        "[]",
        "Its volumes, and which hosts see them.",
    ),
    key(
        "ana",
        Form::Special("list of {state, group, port}"),
        "[] (all optimized)",
        "How ports reach groups of its namespaces: asymmetric access for hosts with several paths.",
    ),
    key(
        "controller_ids",
        Form::Text,
        "1-65519",
        "First and last id of its controllers. Nodes that show the same subsystem need ranges apart.",
    ),
];

/// `[[subsystem]]`.
#[derive(Clone, Debug)]
pub struct SubsystemEntry {
    /// NVMe qualified name.
    pub nqn: Located<String>,
    /// Every host may connect.
    pub allow_any_host: bool,
    /// Hosts that may connect.
    pub hosts: Vec<Located<String>>,
    /// How those authenticate themselves that have to.
    pub host_keys: Vec<HostKeyEntry>,
    /// Serial number, if fixed.
    pub serial: Option<String>,
    /// Model number, if not the default.
    pub model: Option<String>,
    /// Namespaces.
    pub namespaces: Vec<NamespaceEntry>,
    /// Asymmetric access.
    pub ana: Vec<AnaEntry>,
    /// First and last controller id.
    pub controller_ids: Option<(u16, u16)>,
}

/// Reads a section.
pub(super) fn read_subsystem(table: &Table, span: Option<Span>, problems: &mut Problems) -> Option<SubsystemEntry> {
    let mut section = Section::new("[[subsystem]]", span, table, &[SUBSYSTEM], false, problems);
    section.check_unknown(|_| None);
    let nqn = section.need_text("nqn");
    if let Some(nqn) = &nqn {
        section.title = format!("subsystem '{}'", nqn.value);
        if let Err(reason) = check_nqn(&nqn.value) {
            section.wrong(nqn.span.clone(), "nqn", reason, None);
        }
    }
    let any = section.flag("allow_any_host");
    let hosts = section.texts("hosts").unwrap_or_default();
    for host in &hosts {
        if let Err(reason) = check_nqn(&host.value) {
            section.wrong(host.span.clone(), "hosts", reason, None);
        }
    }
    if let Some(any) = &any
        && any.value
        && !hosts.is_empty()
    {
        let help = Some("remove one of 'allow_any_host' and 'hosts'".to_string());
        section.wrong(
            any.span.clone(),
            "allow_any_host",
            "every host is allowed, so the list 'hosts' has no effect",
            help,
        );
    }
    let host_keys = host_key::read_host_keys(&mut section, &hosts, any.as_ref().is_some_and(|any| any.value));
    let (serial, model) = (section.text("serial"), section.text("model"));
    for (key, text, max) in [("serial", &serial, 20), ("model", &model, 40)] {
        if let Some(text) = text
            && let Err(reason) = check_ascii(&text.value, max)
        {
            section.wrong(text.span.clone(), key, reason, None);
        }
    }
    let allowed = (!any.as_ref().is_some_and(|any| any.value)).then_some(&hosts[..]);
    let namespaces = read_namespaces(&mut section, allowed);
    let (ana, controller_ids) = (ana::read_ana(&mut section), ana::read_controller_ids(&mut section));
    Some(SubsystemEntry {
        nqn: nqn?,
        allow_any_host: any.is_some_and(|any| any.value),
        hosts,
        host_keys,
        serial: serial.map(|serial| serial.value),
        model: model.map(|model| model.value),
        namespaces,
        ana,
        controller_ids,
    })
}

/// NVMe qualified names, `nqn.yyyy-mm.reverse.domain:anything` (NVMe base specification, 4.7): those that [`Nqn`] takes, and of
/// these only what nobody mistypes.
pub fn check_nqn(nqn: &str) -> Result<(), String> {
    let dated = nqn.strip_prefix("nqn.").is_some_and(|rest| {
        let (date, rest) = rest.split_at_checked(7).unwrap_or(("", ""));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let date_good = date.split_once('-').is_some_and(|(year, month)| {
            year.len() == 4 && digits(year) && digits(month) && (1..=12).contains(&month.parse().unwrap_or(0))
        });
        date_good && rest.strip_prefix('.').is_some_and(|domain| !domain.is_empty() && !domain.starts_with(':'))
    });
    let plain = nqn.bytes().all(|byte| byte.is_ascii_graphic());
    let shown: String = nqn.chars().take(80).collect();
    if !dated || !plain || nqn.len() > NQN_LEN_MAX {
        return Err(format!(
            "'{shown}' is not an NVMe name: expected something like nqn.2026-11.org.example:disks, at most {NQN_LEN_MAX} bytes"
        ));
    }
    Nqn::new(nqn).map(|_| ()).map_err(|error| format!("'{shown}' is not an NVMe name: {error}"))
}

/// Printable ASCII of bounded length, for serial and model numbers.
pub fn check_ascii(text: &str, max: usize) -> Result<(), String> {
    let good = !text.is_empty() && text.len() <= max && text.bytes().all(|byte| (0x20..0x7F).contains(&byte));
    if good { Ok(()) } else { Err(format!("'{text}' is not 1 to {max} printable ASCII characters")) }
}
