//! Snapshots and clones through the built program.

mod common;

use common::pools::{NQN, POOL, bench, node, refused};
use serde_json::{Value, json};

fn names(all: &Value) -> Vec<&str> {
    all.as_array().unwrap().iter().map(|view| view["name"].as_str().unwrap()).collect()
}

#[test]
fn snapshots_are_made_exported_cloned_gone_back_to_and_deleted() {
    let mut node = node(POOL);
    for volume in ["v", "w"] {
        node.ok(&["volume", "create", volume, "--pool", "hot", "--size", "64MiB"]);
    }
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let write = ["--rw", "randwrite", "--range", "16MiB", "--time", "200ms", "--warmup", "0s"];
    let run = bench(&node, &write);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    node.ok(&["snapshot", "create", "v@one", "w@one"]);
    assert_eq!(names(&node.json(&["snapshot", "list"])), ["v@one", "w@one"]);
    // As a namespace it can be read, and not written.
    node.ok(&["subsystem", "add-namespace", NQN, "v@one", "--nsid", "2"]);
    let listed = node.json(&["volume", "list"]);
    assert_eq!(names(&listed), ["v", "v@one", "w"], "snapshots are listed when hosts may use them");
    let read =
        bench(&node, &["--nsid", "2", "--rw", "randread", "--range", "16MiB", "--time", "200ms", "--warmup", "0s"]);
    assert_eq!(read.code, 0, "{}{}", read.out, read.err);
    let mut to_two = vec!["--nsid", "2"];
    to_two.extend(write);
    assert_ne!(bench(&node, &to_two).code, 0, "a snapshot takes no writes");
    refused(&node, &["snapshot", "delete", "v@one"], 5, "hosts may use it");
    refused(&node, &["snapshot", "rollback", "v@one"], 5, "hosts may use it");
    refused(&node, &["volume", "delete", "w"], 5, "it has snapshots: w@one");
    refused(&node, &["snapshot", "create", "v@one"], 5, "it exists already");
    refused(&node, &["snapshot", "create", "v"], 2, "no '@'");
    refused(&node, &["snapshot", "create", "x@s"], 4, "no such object");
    refused(&node, &["snapshot", "delete", "v@two"], 4, "no such object");
    refused(&node, &["volume", "create", "v@x", "--pool", "hot", "--size", "1MiB"], 2, "not a valid name");
    node.ok(&["volume", "clone", "v@one", "c"]);
    node.kill();
    node.restart();
    assert_eq!(node.json(&["volume", "show", "c"])["size"], json!(64 << 20));
    let made = node.json(&["snapshot", "list", "v"]);
    assert_eq!((made[0]["users"].as_u64(), &made[0]["exports"]), (Some(2), &json!([format!("{NQN}/2")])));
    node.ok(&["subsystem", "remove-namespace", NQN, "2"]);
    node.ok(&["subsystem", "remove-namespace", NQN, "1"]);
    node.ok(&["snapshot", "rollback", "v@one"]);
    node.ok(&["volume", "delete", "w", "--snapshots"]);
    node.ok(&["volume", "delete", "v", "--snapshots"]);
    node.ok(&["volume", "delete", "c"]);
    let mut open = node.json(&["pool", "show", "hot"])["open"].clone();
    // What a clone has shown goes in the background.
    while open["going"] != json!(0) {
        open = node.json(&["pool", "show", "hot"])["open"].clone();
    }
    assert_eq!((&open["volumes"], &open["snapshots"]), (&json!(0), &json!(0)));
    assert_eq!(open["total"]["free_extents"], open["total"]["extents"]);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}
