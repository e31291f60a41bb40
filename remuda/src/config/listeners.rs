//! Addresses and sockets that a node would take twice.

use super::Config;
use super::diagnostic::Problems;
use std::net::SocketAddr;

/// Notes listeners that could not both be opened, so that the node would not start.
pub(super) fn check(config: &Config, problems: &mut Problems) {
    note(config, problems, Clash::Certain);
    for vhost in &config.vhosts {
        if let Some(socket) = vhost.socket.as_ref().filter(|socket| socket.value == config.node.rpc_socket) {
            let message = format!("{} is the node's own rpc_socket", socket.value.display());
            problems.add(socket.span.clone(), "socket", message, Some("choose another path".to_string()));
        }
    }
}

/// Notes listeners of which one may be missing in a node that starts all the same.
pub(super) fn look(config: &Config, problems: &mut Problems) {
    note(config, problems, Clash::Possible);
}

/// How sure it is that two listeners are in each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clash {
    /// They are, and the node does not start without both.
    Certain,
    /// The machine decides whether IPv6's address for all takes the port of IPv4 as well; or it is the default address
    /// of metrics, without which a node goes on.
    Possible,
}

fn note(config: &Config, problems: &mut Problems, wanted: Clash) {
    let named = |key: &'static str| move |address: &SocketAddr| (key, *address);
    let nvmf = config.nvmf.listen.iter().map(named("listen"));
    let nvmf = nvmf.chain(config.nvmf.listen_tls.iter().map(named("listen_tls")));
    let all: Vec<_> = nvmf.chain(config.node.metrics.iter().map(named("metrics_listen"))).collect();
    for (place, (key, address)) in all.iter().enumerate() {
        let by_default = *key == "metrics_listen" && !config.node.metrics_explicit;
        let clashes = all[..place].iter().filter_map(|(key, other)| Some((key, other, clash(other, address)?)));
        // One is enough to be told of: the one that is sure.
        let worst = clashes.min_by_key(|(_, _, clash)| *clash != Clash::Certain);
        let Some((other_key, other, clash)) = worst else { continue };
        let clash = if by_default { Clash::Possible } else { clash };
        // The same address twice in one list has been noted where it stands.
        if clash != wanted || other == address && *key != "metrics_listen" {
            continue;
        }
        let taken = if by_default { ", where metrics are served unless told otherwise" } else { "" };
        let message = format!("{key} {address} and {other_key} {other} are the same port{taken}");
        let help = match *key {
            "metrics_listen" => "give metrics_listen in [node] another port, or \"off\"",
            _ => "give one of them another port",
        };
        problems.add(None, key, message, Some(help.to_string()));
    }
}

/// Whether a listener on one of them keeps one on the other from being opened. Which port 0 becomes shows later.
fn clash(one: &SocketAddr, other: &SocketAddr) -> Option<Clash> {
    if one.port() != other.port() || one.port() == 0 {
        return None;
    }
    let (a, b) = (one.ip(), other.ip());
    if a.is_ipv6() == b.is_ipv6() {
        return (a == b || a.is_unspecified() || b.is_unspecified()).then_some(Clash::Certain);
    }
    let ipv6 = if a.is_ipv6() { a } else { b };
    ipv6.is_unspecified().then_some(Clash::Possible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_for_all_takes_the_port_of_each() {
        let clash = |one: &str, other: &str| clash(&one.parse().unwrap(), &other.parse().unwrap());
        for (one, other) in [("127.0.0.1:1", "127.0.0.1:1"), ("0.0.0.0:1", "127.0.0.1:1"), ("[::1]:1", "[::]:1")] {
            assert_eq!(clash(one, other), Some(Clash::Certain), "{one} {other}");
        }
        for (one, other) in [("127.0.0.1:1", "[::]:1"), ("[::]:1", "0.0.0.0:1")] {
            assert_eq!(clash(one, other), Some(Clash::Possible), "{one} {other}");
        }
        for (one, other) in [
            ("127.0.0.1:1", "127.0.0.2:1"),
            ("127.0.0.1:1", "127.0.0.1:2"),
            ("0.0.0.0:1", "[::1]:1"),
            ("127.0.0.1:0", "127.0.0.1:0"),
        ] {
            assert_eq!(clash(one, other), None, "{one} {other}");
        }
    }
}
