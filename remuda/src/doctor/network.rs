//! Addresses that a node listens on, and who has them.

use super::Finding;
use super::view::View;
use crate::config::Config;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

/// Connections that may wait to be accepted; below this many, hosts that come all at once are turned away by the kernel.
const BACKLOG_MIN: u64 = 128;
/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

pub(super) fn check(view: &View, config: Option<&Config>, is_running: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(config) = config {
        let addresses = config.nvmf.listen.iter().chain(&config.nvmf.listen_tls).map(|address| ("NVMe/TCP", *address));
        for (what, address) in addresses.chain(config.node.metrics.map(|address| ("metrics", address))) {
            let check = format!("{what} {address}");
            match TcpListener::bind(address) {
                Ok(_) => findings.push(Finding::ok(check, "free")),
                Err(error) if error.kind() == ErrorKind::AddrInUse && is_running => {
                    findings.push(Finding::ok(check, "in use, as it should be while the node runs"));
                }
                Err(error) => findings.push(refused(view, check, address, &error)),
            }
        }
    }
    if let Some(backlog) = view.number("/proc/sys/net/core/somaxconn").filter(|backlog| *backlog < BACKLOG_MIN) {
        let found = format!("{backlog} connections may wait to be accepted");
        findings.push(Finding::note("connections", found, "sysctl net.core.somaxconn=4096"));
    }
    findings
}

fn refused(view: &View, check: String, address: SocketAddr, error: &std::io::Error) -> Finding {
    match error.kind() {
        ErrorKind::AddrInUse => {
            let owner = owner(view, address).unwrap_or_else(|| "another program".into());
            Finding::problem(check, format!("{owner} listens there"), "end it, or choose another port")
        }
        ErrorKind::AddrNotAvailable => {
            let next = "name an address that 'ip address' shows, or 0.0.0.0";
            Finding::problem(check, "no interface of this machine has this address", next)
        }
        ErrorKind::PermissionDenied => {
            Finding::problem(check, "ports below 1024 are for root", "choose another port, such as 4420")
        }
        _ => Finding::problem(check, format!("cannot listen: {error}"), ""),
    }
}

/// The process that listens on a port, as far as this user may see.
fn owner(view: &View, address: SocketAddr) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let inode = tables.iter().find_map(|table| listener(&view.read(table)?, address.port()))?;
    let socket = format!("socket:[{inode}]");
    view.process_with(|target| target.as_os_str() == socket.as_str()).map(|process| process.to_string())
}

/// Inode of the socket that listens on a port, from a table of the kernel's.
fn listener(table: &str, port: u16) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(local, 16).ok()? == port && *fields.get(3)? == LISTENING;
        is_it.then(|| fields.get(9)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn who_listens_on_a_port_is_found() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = TcpListener::bind(address).unwrap_err();
        let found = refused(&View::of_this_machine(), "x".into(), address, &error);
        assert_eq!(found.level, Level::Problem);
        assert!(found.found.contains(&format!("(pid {})", std::process::id())), "{found:?}");
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1144 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 11 1\n\
            1: 0100007F:1145 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1\n\
            2: 0100007F:1144 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 13 1\n";
        assert_eq!(listener(table, 4420), Some(13));
        assert_eq!(listener(table, 4422), None);
        assert_eq!(listener("", 1), None);
        assert_eq!(listener("h\nx\n", 1), None);
    }
}
