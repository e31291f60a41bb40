//! How many files a node may have open, and how many of them NVMe/TCP connections may take: whoever opens connections without
//! using them must not keep an operator, or a probe, from the node.

use crate::config::Config;
use crate::node::State;
use crate::sys;

/// Files that a node has open beside connections of hosts and devices: reactors, commands, scrapes and consoles.
const BESIDE: u64 = 160;

/// Files that a node with this configuration may have open.
pub fn needed(config: &Config) -> u64 {
    u64::from(config.nvmf.max_connections) + beside(config, 0)
}

/// `more` is how many devices and volumes there are that are not in the file.
fn beside(config: &Config, more: usize) -> u64 {
    let objects = (config.devices.len() + config.volumes.len() + more) as u64;
    // A reactor has each open by itself, beside the one that keeps it locked.
    BESIDE + objects * (1 + config.node.reactors.len() as u64)
}

/// Most connections where so many files may be open. A quarter of them where there are few.
fn connections(limit: u64, config: &Config, more: usize) -> u32 {
    let room = limit.saturating_sub(beside(config, more)).max(limit / 4).max(1);
    config.nvmf.max_connections.min(room.try_into().unwrap_or(u32::MAX))
}

/// Takes as many files as this process may have without being given more, and says how many connections may be taken with what is
/// left of them.
pub fn fit(config: &Config, state: &State) -> u32 {
    let limit = sys::raise_limit(libc::RLIMIT_NOFILE);
    let granted = connections(limit, config, state.devices.len() + state.volumes.len());
    let wanted = config.nvmf.max_connections;
    if granted < wanted {
        tracing::warn!(
            "this process may have {limit} files open, so that {granted} connections are taken instead of max_connections = {wanted}: \
             start it with 'ulimit -n {}' or more (LimitNOFILE in a systemd unit)",
            needed(config)
        );
    }
    granted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_commands() {
        let config = Config::parse("/x/node.toml", "[nvmf]\nmax_connections = 1000\n".to_string()).unwrap();
        assert_eq!(needed(&config), 1000 + BESIDE);
        let granted = [u64::MAX, 1000 + BESIDE, 500, 64, 0].map(|limit| connections(limit, &config, 0));
        assert_eq!(granted, [1000, 1000, 500 - BESIDE as u32, 16, 1]);
    }
}
