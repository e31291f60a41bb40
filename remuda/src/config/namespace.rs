//! The namespaces of a subsystem: which volumes, who sees them, and what they are called towards hosts.

use super::check_nqn;
use super::section::{Form, Key, Section, key};
use super::value::{Data, Located};
use uuid::Uuid;

/// Keys of one entry of `namespaces`.
pub const NAMESPACE: &[Key] = &[
    key("nsid", Form::Count(1, 1024), "the next free one", "Namespace id."),
    key("volume", Form::Text, "required", "The volume."),
    key(
        "hosts",
        Form::TextList,
        "every host that may connect",
        "NQNs of the hosts that see it; for the others it does not exist.",
    ),
    key("ana_group", Form::Count(1, nvme::target::ANA_GROUPS_MAX as u64), "1", "Its group for asymmetric access."),
    key("uuid", Form::Text, "the volume's", "Its identity towards hosts, where other nodes show the same data."),
];

/// One of a subsystem's namespaces.
#[derive(Clone, Debug)]
pub struct NamespaceEntry {
    /// Namespace id.
    pub nsid: Located<u32>,
    /// Volume name.
    pub volume: Located<String>,
    /// The hosts that see it; `None` is every host.
    pub hosts: Option<Vec<Located<String>>>,
    /// Group for asymmetric access.
    pub ana_group: u32,
    /// Identity, if not the volume's.
    pub uuid: Option<Located<Uuid>>,
}

/// The hosts that see a namespace, of those that may connect.
fn read_mask(section: &mut Section<'_>, allowed: Option<&[Located<String>]>) -> Option<Vec<Located<String>>> {
    let hosts = section.texts("hosts")?;
    for host in &hosts {
        if let Err(reason) = check_nqn(&host.value) {
            section.wrong(host.span.clone(), "hosts", reason, None);
        } else if allowed.is_some_and(|allowed| !allowed.iter().any(|known| known.value == host.value)) {
            let help = format!("add \"{}\" to 'hosts' of the subsystem", host.value);
            let message = format!("'{}' may not connect, so it sees nothing", host.value);
            section.wrong(host.span.clone(), "hosts", message, Some(help));
        }
    }
    Some(hosts)
}

/// `allowed` are the hosts that may connect; `None` is every host.
pub(super) fn read_namespaces(section: &mut Section<'_>, allowed: Option<&[Located<String>]>) -> Vec<NamespaceEntry> {
    let Some(value) = section.raw("namespaces") else { return Vec::new() };
    let Data::List(items) = &value.data else {
        section.wrong(value.span.clone(), "namespaces", "expected a list of {nsid, volume}, or of volume names", None);
        return Vec::new();
    };
    let title = section.title.clone();
    let mut entries: Vec<NamespaceEntry> = Vec::new();
    for item in items {
        let next = entries.iter().map(|entry| entry.nsid.value).max().unwrap_or(0) + 1;
        let entry = match &item.data {
            Data::Text(volume) => NamespaceEntry {
                nsid: Located { value: next, span: item.span.clone() },
                volume: Located { value: volume.clone(), span: item.span.clone() },
                hosts: None,
                ana_group: 1,
                uuid: None,
            },
            Data::Table(table) => {
                let title = format!("namespaces of {title}");
                let mut inner = Section::new(title, item.span.clone(), table, &[NAMESPACE], false, section.problems);
                inner.check_unknown(|_| None);
                let nsid = inner.count("nsid").map(|nsid| Located { value: nsid.value as u32, span: nsid.span });
                let hosts = read_mask(&mut inner, allowed);
                let ana_group = inner.count("ana_group").map_or(1, |group| group.value as u32);
                let uuid = read_uuid(&mut inner);
                let Some(volume) = inner.need_text("volume") else { continue };
                let nsid = nsid.unwrap_or(Located { value: next, span: item.span.clone() });
                NamespaceEntry { nsid, volume, hosts, ana_group, uuid }
            }
            other => {
                let message = format!("expected {{nsid, volume}} or a volume name, found {}", other.type_name());
                section.wrong(item.span.clone(), "namespaces", message, None);
                continue;
            }
        };
        if entries.iter().any(|other| other.nsid.value == entry.nsid.value) {
            section.wrong(entry.nsid.span.clone(), "nsid", format!("{} is used twice", entry.nsid.value), None);
        }
        let is_same = |other: &NamespaceEntry| match (&other.uuid, &entry.uuid) {
            (Some(other), Some(uuid)) => other.value == uuid.value,
            _ => false,
        };
        if entries.iter().any(is_same) {
            let span = entry.uuid.as_ref().and_then(|uuid| uuid.span.clone());
            section.wrong(span, "uuid", "another namespace has the same", None);
        }
        entries.push(entry);
    }
    entries
}

fn read_uuid(section: &mut Section<'_>) -> Option<Located<Uuid>> {
    let text = section.text("uuid")?;
    match check_uuid(&text.value) {
        Ok(value) => Some(Located { value, span: text.span }),
        Err(reason) => {
            section.wrong(text.span, "uuid", reason, None);
            None
        }
    }
}

/// The identity of a namespace.
pub fn check_uuid(text: &str) -> Result<Uuid, String> {
    let parsed = Uuid::try_parse(text).ok().filter(|uuid| !uuid.is_nil());
    parsed.ok_or_else(|| {
        format!("'{text}' is not a UUID, such as {}", Uuid::from_u128(0x6ba7b810_9dad_41d1_80b4_00c04fd430c8))
    })
}
