//! Asymmetric access to namespaces: what the node remembers of it, and how a command changes it.

use super::refusal::Refusal;
use super::state::AnaRecord;
use super::view::{AnaView, SubsystemView};
use super::{Node, RefusalKind};
use crate::config::{AnaEntry, parse_address};
use nvme::spec::ana::AnaState;
use std::net::SocketAddr;

/// The configured states, in order.
pub(super) fn records(entries: &[AnaEntry]) -> Vec<AnaRecord> {
    let record = |entry: &AnaEntry| {
        let port = entry.port.as_ref().map(|port| port.value);
        AnaRecord { group: entry.group, port, state: entry.state.name().to_string() }
    };
    let mut records: Vec<_> = entries.iter().map(record).collect();
    records.sort();
    records
}

/// As they are shown.
pub(super) fn views(records: &[AnaRecord]) -> Vec<AnaView> {
    let view = |record: &AnaRecord| {
        let port = record.port.map(|port| port.to_string());
        AnaView { group: record.group, port, state: record.state.clone() }
    };
    records.iter().map(view).collect()
}

/// Gives a group a state at a port, or at all ports, whatever these had. What goes without saying is not recorded.
fn set(records: &mut Vec<AnaRecord>, group: u32, port: Option<SocketAddr>, state: AnaState) {
    records.retain(|record| record.group != group || (port.is_some() && record.port != port));
    let elsewhere = records.iter().find(|record| record.group == group && record.port.is_none());
    if elsewhere.map_or(AnaState::Optimized.name(), |record| &record.state) != state.name() {
        records.push(AnaRecord { group, port, state: state.name().to_string() });
        records.sort();
    }
}

impl Node {
    /// Sets the state of a group of namespaces at a port, or at all.
    pub async fn ana_set(
        &mut self,
        nqn: &str,
        group: u32,
        port: Option<&str>,
        state: AnaState,
    ) -> Result<SubsystemView, Refusal> {
        self.check_running()?;
        let mut subsystem = self.copy_of(nqn)?;
        let port = match port {
            None => None,
            Some(text) => {
                let invalid = |reason| Refusal::invalid(format!("port '{text}'"), reason, "");
                Some(self.listening_port(parse_address(text).map_err(invalid)?)?)
            }
        };
        set(&mut subsystem.record.ana, group, port, state);
        let view = self.change(nqn, subsystem).await?;
        let port = port.map_or("all".to_string(), |port| port.to_string());
        tracing::info!(nqn, group, port, state = state.name(), "asymmetric access state set");
        Ok(view)
    }

    fn listening_port(&self, port: SocketAddr) -> Result<SocketAddr, Refusal> {
        let known = [self.exporter.addresses(), self.exporter.tls_addresses()].concat();
        if known.contains(&port) {
            return Ok(port);
        }
        let listens: Vec<_> = known.iter().map(ToString::to_string).collect();
        let next = if listens.is_empty() {
            "it listens nowhere".into()
        } else {
            format!("it listens on {}", listens.join(", "))
        };
        Err(Refusal::new(RefusalKind::NotFound, format!("port {port}"), "the node does not listen there", next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_at_a_port_beats_that_of_all_ports_until_all_are_set() {
        use AnaState::*;
        let [one, two] = ["10.0.0.1:4420", "10.0.0.2:4420"].map(|text| Some(text.parse().unwrap()));
        let mut records = Vec::new();
        let mut after = |port, state| {
            set(&mut records, 1, port, state);
            records.iter().map(|record| (record.port, record.state.clone())).collect::<Vec<_>>()
        };
        assert_eq!(after(one, Optimized), []);
        assert_eq!(after(one, Inaccessible), [(one, "inaccessible".into())]);
        assert_eq!(after(two, NonOptimized).len(), 2);
        assert_eq!(after(one, Optimized), [(two, "non-optimized".into())]);
        assert_eq!(after(None, Inaccessible), [(None, "inaccessible".into())]);
        assert_eq!(after(one, Optimized), [(None, "inaccessible".into()), (one, "optimized".into())]);
        assert_eq!(after(one, Inaccessible), [(None, "inaccessible".into())]);
        assert_eq!(after(None, Optimized), []);
    }
}
