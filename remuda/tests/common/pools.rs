//! Nodes with a pool on files.

use super::{Node, Run, remuda};

pub const NQN: &str = "nqn.2026-11.io.remuda:pools";

/// A log and a capacity device on files.
pub const DEVICES: &str = "[[device]]\nname = 'log'\nkind = 'file'\npath = 'log.img'\nsize = '64MiB'\n\
                           [[device]]\nname = 'big'\nkind = 'file'\npath = 'big.img'\nsize = '512MiB'\n";
pub const POOL: &str = "[pool.hot]\nlog = 'log'\ncapacity = 'big'\n";

/// A node with a target, [`DEVICES`], `more`, and a subsystem without namespaces.
pub fn node(more: &str) -> Node {
    node_on(DEVICES, more)
}

/// The same with other devices.
pub fn node_on(devices: &str, more: &str) -> Node {
    Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n{devices}{more}[[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\n"
    ))
}

pub fn bench(node: &Node, more: &[&str]) -> Run {
    let status = node.status();
    let port = status["nvmf_listen"][0].as_str().unwrap().rsplit_once(':').unwrap().1.to_string();
    let base = ["--json", "bench", "nvmf", "--addr", "127.0.0.1", "--port", &port, "--nqn", NQN];
    remuda(&[&base[..], more].concat())
}

pub fn refused(node: &Node, args: &[&str], code: i32, part: &str) {
    let run = node.run(args);
    assert_eq!(run.code, code, "{args:?}: {}{}", run.out, run.err);
    assert!(run.err.contains(part), "{args:?}: {}", run.err);
}
