//! Nodes with a pool on files.

use super::{Node, Run, remuda};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;

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

/// What the files of devices hold: a checksum of each piece of 1 MiB.
fn images(node: &Node) -> BTreeMap<String, Vec<u32>> {
    let files = std::fs::read_dir(node.path("")).unwrap().map(|entry| entry.unwrap().path());
    let images = files.filter(|path| path.extension().is_some_and(|extension| extension == "img"));
    let sums = images.map(|path| {
        let mut file = std::fs::File::open(&path).unwrap();
        let (mut sums, mut piece) = (Vec::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut piece).unwrap() {
                0 => break,
                len => sums.push(base::crc32c(&piece[..len])),
            }
        }
        (path.file_name().unwrap().to_string_lossy().into_owned(), sums)
    });
    sums.collect()
}

/// A check without --repair of a pool whose node does not run. Whatever it finds, no file has changed.
pub fn look(node: &Node, pool: &str, more: &[&str]) -> Run {
    let before = images(node);
    let run = remuda(&[&["--json", "pool", "check", pool, "--config", &node.config()], more].concat());
    let after = images(node);
    for (file, sums) in &before {
        let there = after.get(file).unwrap_or_else(|| panic!("{file} is gone"));
        let differ: Vec<usize> = (0..sums.len()).filter(|mib| sums.get(*mib) != there.get(*mib)).collect();
        assert!(differ.is_empty() && sums.len() == there.len(), "{file} was written: MiB {differ:?}");
    }
    assert_eq!(before.len(), after.len(), "a file was made");
    run
}

/// As [`look`], of a pool with nothing wrong.
pub fn look_is_clean(node: &Node, pool: &str) {
    for more in [&[][..], &["--payloads", "--data"]] {
        let run = look(node, pool, more);
        assert_eq!(run.code, 0, "{}{}", run.out, run.err);
        assert_eq!(run.json()["verdict"], "clean", "{}", run.out);
    }
}

/// As [`look`], of a pool with nothing wrong on a device that is degraded: what is said of that.
pub fn look_is_degraded(node: &Node, pool: &str) -> String {
    let run = look(node, pool, &["--payloads", "--data"]);
    assert_eq!(run.code, 9, "{}{}", run.out, run.err);
    let report = run.json();
    assert_eq!(report["verdict"], "degraded", "{report}");
    let findings = report["findings"].as_array().unwrap();
    let warnings: Vec<&Value> = findings.iter().filter(|finding| finding["severity"] == "warning").collect();
    assert_eq!(warnings.len(), 1, "{report}");
    warnings[0]["text"].as_str().unwrap().to_string()
}
