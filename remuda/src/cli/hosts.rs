//! What is said of hosts: who may connect and how, and who is connected.

use super::objects::summarise;
use super::output;
use super::status::standing;
use crate::node::view::{ConnectedHost, HostView};

/// The hosts of subsystems, a line each.
pub fn table(hosts: Vec<HostView>) -> String {
    let rows = hosts.into_iter().map(|host| {
        let key = match &host.dhchap {
            None => "-",
            Some(key) if key.both_sides => "both sides",
            Some(_) => "host",
        };
        let tls = if host.tls.is_some() { "always" } else { "-" };
        let (connected, former) = (summarise_connected(&host.connected), former_keys(&host));
        vec![host.host, host.subsystem, key.to_string(), tls.to_string(), former, connected]
    });
    let headings = ["HOST", "SUBSYSTEM", "AUTHENTICATES", "TLS", "FORMER KEYS UNTIL", "CONNECTED"];
    output::table(&headings, rows.collect())
}

/// Until when keys are good that were replaced.
fn former_keys(host: &HostView) -> String {
    let dhchap = host.dhchap.as_ref().and_then(|key| key.former_key_until.clone());
    let tls = host.tls.as_ref().and_then(|key| key.former_key_until.clone());
    match (dhchap, tls) {
        (None, None) => "-".to_string(),
        (Some(one), None) => one,
        (None, Some(other)) => format!("{other} (TLS)"),
        (Some(one), Some(other)) => format!("{one}, {other} (TLS)"),
    }
}

/// Controllers of a host, or of all hosts that are not named, in words.
fn summarise_connected(connected: &[ConnectedHost]) -> String {
    let Some(first) = connected.first() else { return "-".to_string() };
    let (controllers, queues) = (connected.len(), connected.iter().map(|one| one.io_queues).sum::<usize>());
    let all = |is_so: fn(&ConnectedHost) -> bool| connected.iter().all(is_so);
    let mut peers: Vec<String> = connected.iter().flat_map(|one| one.peers.clone()).collect();
    peers.sort();
    peers.dedup();
    let (tls, authenticated) = (all(|one| one.tls), all(|one| one.authenticated));
    let throttled = connected.iter().any(|one| one.throttled);
    let how = standing(&ConnectedHost { tls, authenticated, throttled, ..first.clone() });
    let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let from = summarise(&peers);
    let how = if how == "-" { String::new() } else { format!(", {how}") };
    format!("{}, {} from {from}{how}", plural(controllers, "controller"), plural(queues, "I/O queue"))
}
