//! How many files a node may have open, and how many of them NVMe/TCP connections may take: whoever opens connections without
//! using them must not keep an operator, or a probe, from the node.

use crate::config::Config;
use crate::sys;

/// Files that a node has open beside connections of hosts and devices: reactors, commands, scrapes and consoles.
const BESIDE: u64 = 160;

/// Files that a node with this configuration may have open.
pub fn needed(config: &Config) -> u64 {
    u64::from(config.nvmf.max_connections) + beside(config)
}

fn beside(config: &Config) -> u64 {
    config.devices.len() as u64 + BESIDE
}

/// Most connections where so many files may be open. Three in four are kept where there are few.
fn connections(limit: u64, config: &Config) -> u32 {
    let room = limit.saturating_sub(beside(config)).max(limit / 4).max(1);
    config.nvmf.max_connections.min(room.try_into().unwrap_or(u32::MAX))
}

/// Takes as many files as this process may have without being given more, and grants connections what is left of them.
pub fn fit(config: &mut Config) {
    let limit = sys::raise_limit(libc::RLIMIT_NOFILE);
    let (wanted, granted) = (config.nvmf.max_connections, connections(limit, config));
    if granted < wanted {
        tracing::warn!(
            "this process may have {limit} files open, so that {granted} connections are taken instead of max_connections = {wanted}: \
             start it with 'ulimit -n {}' or more (LimitNOFILE in a systemd unit)",
            needed(config)
        );
        config.nvmf.max_connections = granted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_commands() {
        let config = Config::parse("/x/node.toml", "[nvmf]\nmax_connections = 1000\n".to_string()).unwrap();
        assert_eq!(needed(&config), 1000 + BESIDE);
        let granted = [u64::MAX, 1000 + BESIDE, 500, 64, 0].map(|limit| connections(limit, &config));
        assert_eq!(granted, [1000, 1000, 500 - BESIDE as u32, 16, 1]);
    }
}
