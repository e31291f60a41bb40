//! Addresses and sockets that a node would take twice.

use super::Config;
use super::diagnostic::Problems;
use std::net::SocketAddr;

/// Notes listeners that could not both be opened.
pub(super) fn check(config: &Config, problems: &mut Problems) {
    let named = |key: &'static str| move |address: &SocketAddr| (key, *address);
    let nvmf = config.nvmf.listen.iter().map(named("listen"));
    let nvmf = nvmf.chain(config.nvmf.listen_tls.iter().map(named("listen_tls")));
    let all: Vec<_> = nvmf.chain(config.node.metrics.iter().map(named("metrics_listen"))).collect();
    for (place, (key, address)) in all.iter().enumerate() {
        let Some((other_key, other)) = all[..place].iter().find(|(_, other)| are_one(other, address)) else { continue };
        // The same address twice in one list has been noted where it stands.
        if other == address && *key != "metrics_listen" {
            continue;
        }
        let by_default = *key == "metrics_listen" && !config.node.metrics_explicit;
        let taken = if by_default { ", where metrics are served unless told otherwise" } else { "" };
        let message = format!("{key} {address} and {other_key} {other} are the same port{taken}");
        let help = match *key {
            "metrics_listen" => "give metrics_listen in [node] another port, or \"off\"",
            _ => "give one of them another port",
        };
        problems.add(None, key, message, Some(help.to_string()));
    }
    for vhost in &config.vhosts {
        if let Some(socket) = vhost.socket.as_ref().filter(|socket| socket.value == config.node.rpc_socket) {
            let message = format!("{} is the node's own rpc_socket", socket.value.display());
            problems.add(socket.span.clone(), "socket", message, Some("choose another path".to_string()));
        }
    }
}

/// Whether a listener on one of them keeps one on the other from being opened. Which port 0 becomes shows later.
fn are_one(one: &SocketAddr, other: &SocketAddr) -> bool {
    let (a, b) = (one.ip(), other.ip());
    let of_all = |all: std::net::IpAddr, other: std::net::IpAddr| {
        // That of IPv6 takes the port for IPv4 as well.
        all.is_unspecified() && (all.is_ipv6() || other.is_ipv4())
    };
    one.port() == other.port() && one.port() != 0 && (a == b || of_all(a, b) || of_all(b, a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_for_all_takes_the_port_of_each() {
        let are = |one: &str, other: &str| are_one(&one.parse().unwrap(), &other.parse().unwrap());
        assert!(are("127.0.0.1:1", "127.0.0.1:1") && are("0.0.0.0:1", "127.0.0.1:1") && are("127.0.0.1:1", "[::]:1"));
        assert!(!are("127.0.0.1:1", "127.0.0.2:1") && !are("127.0.0.1:1", "127.0.0.1:2"));
        assert!(!are("0.0.0.0:1", "[::1]:1") && !are("127.0.0.1:0", "127.0.0.1:0"));
    }
}
