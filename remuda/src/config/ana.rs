//! Asymmetric access to the namespaces of a subsystem: which ports reach which groups, and the controller ids of a node.

use super::parse_address;
use super::section::{Form, Key, Section, key};
use super::value::{Data, Located};
use nvme::spec::ana::AnaState;
use nvme::spec::fabrics::CNTLID_MAX;
use nvme::target::ANA_GROUPS_MAX;
use std::net::SocketAddr;

/// Names of the states.
pub const STATES: Form = Form::Choice(&["optimized", "non-optimized", "inaccessible", "persistent-loss", "change"]);

/// Keys of one entry of `ana`.
pub const ANA: &[Key] = &[
    key("state", STATES, "required", "The state."),
    key("group", Form::Count(1, ANA_GROUPS_MAX as u64), "1", "The group of namespaces."),
    key("port", Form::Text, "every port", "The address of the port, as in 'listen'."),
];

/// The state of a group at a port.
#[derive(Clone, Debug)]
pub struct AnaEntry {
    /// Group.
    pub group: u32,
    /// Port; `None` is every port that has no entry of its own.
    pub port: Option<Located<SocketAddr>>,
    /// State.
    pub state: AnaState,
}

/// Reads `ana` of a subsystem.
pub(super) fn read_ana(section: &mut Section<'_>) -> Vec<AnaEntry> {
    let Some(value) = section.raw("ana") else { return Vec::new() };
    let expected = "expected a list of {state, group, port}";
    let Data::List(items) = &value.data else {
        section.wrong(value.span.clone(), "ana", expected, None);
        return Vec::new();
    };
    let mut entries: Vec<AnaEntry> = Vec::new();
    for item in items {
        let Data::Table(table) = &item.data else {
            section.wrong(item.span.clone(), "ana", expected, None);
            continue;
        };
        let title = format!("ana of {}", section.title);
        let mut inner = Section::new(title, item.span.clone(), table, &[ANA], false, section.problems);
        inner.check_unknown(|_| None);
        if !inner.has("state") {
            inner.missing("state");
        }
        let state = inner.choice("state").and_then(|state| AnaState::from_name(state.value));
        let group = inner.count("group").map_or(1, |group| group.value as u32);
        let port = inner.text("port").map(|text| match parse_address(&text.value) {
            Ok(value) => Some(Located { value, span: text.span }),
            Err(reason) => {
                inner.wrong(text.span, "port", reason, None);
                None
            }
        });
        let (Some(state), None | Some(Some(_))) = (state, &port) else { continue };
        let port = port.flatten();
        let address = |port: &Option<Located<SocketAddr>>| port.as_ref().map(|port| port.value);
        if entries.iter().any(|other| other.group == group && address(&other.port) == address(&port)) {
            inner.wrong(item.span.clone(), "group", format!("the state of group {group} there is given twice"), None);
        }
        entries.push(AnaEntry { group, port, state });
    }
    entries
}

/// Reads `controller_ids` of a subsystem.
pub(super) fn read_controller_ids(section: &mut Section<'_>) -> Option<(u16, u16)> {
    let text = section.text("controller_ids")?;
    match parse_controller_ids(&text.value) {
        Ok(range) => Some(range),
        Err(reason) => {
            section.wrong(text.span, "controller_ids", reason, None);
            None
        }
    }
}

/// First and last of a range of controller ids.
pub fn parse_controller_ids(text: &str) -> Result<(u16, u16), String> {
    let parse = |text: &str| text.trim().parse::<u16>().ok().filter(|id| (1..=CNTLID_MAX).contains(id));
    let range = text.split_once('-').and_then(|(first, last)| Some((parse(first)?, parse(last)?)));
    let range = range.filter(|(first, last)| first <= last);
    range.ok_or_else(|| format!("'{text}' is not a range within 1-{CNTLID_MAX}, such as \"1-1000\""))
}
