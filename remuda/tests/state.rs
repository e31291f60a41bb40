//! The state directory of a node: what is told when its files cannot be written, are missing, or can be read by others.

use crate::common::Node;
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

const REST: &str = "[[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n";

fn warnings(node: &Node) -> Vec<String> {
    let status = node.status();
    status["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap().to_string()).collect()
}

fn health(node: &Node) -> String {
    let metrics = node.status()["metrics"].as_str().unwrap().to_string();
    crate::common::http_get(&metrics.replace("/metrics", "/healthz"))
}

fn wait_until_well(node: &Node) {
    let began = Instant::now();
    while !warnings(node).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", warnings(node));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(node.run(&["status"]).code, 0);
}

fn methods(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| line["method"].as_str().unwrap().to_string()).collect()
}

#[test]
fn an_audit_log_that_cannot_be_written_is_a_problem_until_it_can() {
    let mut node = Node::start(REST);
    let log = node.path("state/audit.log");
    node.ok(&["volume", "create", "a", "--device", "m", "--size", "4MiB"]);
    assert_eq!(methods(&log), ["volume.create"]);
    std::fs::rename(&log, node.path("kept")).unwrap();
    std::fs::create_dir(&log).unwrap();
    node.ok(&["volume", "create", "b", "--device", "m", "--size", "4MiB"]);
    let told = warnings(&node);
    assert!(told.len() == 1 && told[0].contains("state/audit.log: ") && told[0].contains("directory"), "{told:?}");
    let shown = node.run(&["status"]);
    assert!(shown.out.contains("audit.log"), "{}", shown.out);
    let answer = health(&node);
    assert!(answer.contains(" 200 ") || !answer.contains("HTTP/"), "{answer}");
    assert!(answer.contains("degraded: 1 warning"), "{answer}");
    std::fs::remove_dir(&log).unwrap();
    wait_until_well(&node);
    assert_eq!(methods(&log), ["volume.create"], "what happened meanwhile is recorded late");
    // A full disk: the file opens, and takes nothing.
    std::fs::remove_file(&log).unwrap();
    symlink("/dev/full", &log).unwrap();
    node.ok(&["volume", "delete", "b"]);
    assert!(warnings(&node)[0].contains("No space left"), "{:?}", warnings(&node));
    std::fs::remove_file(&log).unwrap();
    node.ok(&["volume", "delete", "a"]);
    wait_until_well(&node);
    assert_eq!(methods(&log), ["volume.delete", "volume.delete"]);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn a_state_that_cannot_be_saved_is_a_problem_until_it_can() {
    let mut node = Node::start(REST);
    let new = node.path("state/state.json.new");
    symlink("/dev/full", &new).unwrap();
    let refused = node.run(&["volume", "create", "a", "--device", "m", "--size", "4MiB"]);
    assert!(refused.code != 0 && refused.err.contains("state.json.new"), "{}", refused.err);
    let told = warnings(&node);
    assert!(told.len() == 1 && told[0].contains("state.json.new") && told[0].contains("No space left"), "{told:?}");
    assert!(health(&node).contains("degraded: 1 warning"), "{}", health(&node));
    std::fs::remove_file(&new).unwrap();
    wait_until_well(&node);
    node.ok(&["volume", "create", "a", "--device", "m", "--size", "4MiB"]);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn a_device_that_cannot_be_remembered_writes_nothing_to_those_below_it() {
    let file = "[[device]]\nname = 'f'\nkind = 'file'\npath = 'f.img'\nsize = '8MiB'\n";
    let node = Node::start_with(&[("one.key", &*"5a".repeat(32))], file);
    let new = node.path("state/state.json.new");
    symlink("/dev/full", &new).unwrap();
    let key = format!("key_file={}", node.path("one.key").display());
    let create = ["device", "create", "safe", "--kind", "encrypt", "device=f", &key];
    let refused = node.run(&create);
    assert!(refused.code != 0 && refused.err.contains("nothing was changed"), "{}", refused.err);
    let is_blank = || std::fs::read(node.path("f.img")).unwrap().iter().all(|byte| *byte == 0);
    assert!(is_blank());
    std::fs::remove_file(&new).unwrap();
    node.ok(&create);
    assert!(!is_blank());
}

#[test]
fn a_missing_state_and_one_that_others_may_read_are_told_at_the_start() {
    let mut node = Node::start(REST);
    node.ok(&["volume", "create", "a", "--device", "m", "--size", "4MiB"]);
    assert!(!node.log().contains("WARN"), "{}", node.log());
    assert_eq!(node.terminate(), Some(0));
    let state = node.path("state");
    let mode = |mode| std::fs::set_permissions(&state, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o755);
    let doctor = crate::common::remuda(&["--socket", &node.socket(), "doctor", "--config", &node.config()]);
    let advice = format!("chmod 700 {}", state.display());
    assert!(doctor.out.contains(&advice), "{}", doctor.out);
    node.restart();
    assert!(node.log().contains(&advice), "{}", node.log());
    assert!(!node.log().contains("is missing"), "{}", node.log());
    assert_eq!(node.terminate(), Some(0));
    mode(0o700);
    std::fs::remove_file(state.join("state.json")).unwrap();
    node.restart();
    assert!(node.log().contains("state/state.json is missing"), "{}", node.log());
    assert_eq!(node.terminate(), Some(0));
}
