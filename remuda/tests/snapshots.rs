//! Snapshots and clones through the built program.

use crate::common::pools::{NQN, POOL, bench, node, refused};
use crate::common::{Node, remuda};
use serde_json::{Value, json};
use std::os::unix::fs::FileTypeExt;
use std::process::Command;

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
    let refused_writes = bench(&node, &to_two);
    assert_ne!(refused_writes.code, 0, "a snapshot takes no writes");
    let errors = refused_writes.json()["errors"].as_u64().unwrap();
    assert!((1..=64).contains(&errors), "it goes on although no write can succeed: {errors}");
    refused(&node, &["volume", "delete", "v@one"], 2, "remuda snapshot delete v@one");
    refused(&node, &["snapshot", "delete", "v@one"], 5, "hosts may use it");
    refused(&node, &["snapshot", "rollback", "v@one"], 5, "has it mounted or open, --in-use");
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
    node.ok(&["subsystem", "remove-namespace", NQN, "2", "--force"]);
    node.ok(&["subsystem", "remove-namespace", NQN, "1", "--force"]);
    let text = node.run(&["snapshot", "rollback", "v@one", "w@one"]).out;
    assert!(
        text.contains("volume 'v' is now as 'v@one' is") && text.contains("volume 'w' is now as 'w@one'"),
        "{text}"
    );
    refused(&node, &["snapshot", "rollback", "w@one", "w@one"], 2, "named twice");
    node.ok(&["snapshot", "create", "w@two", "v@two"]);
    refused(&node, &["snapshot", "delete", "w@two", "w@three"], 4, "no such object");
    node.ok(&["snapshot", "delete", "w@two", "v@two"]);
    assert_eq!(names(&node.json(&["snapshot", "list"])), ["v@one", "w@one"]);
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

#[test]
fn a_clone_is_flattened_and_nothing_is_left_of_what_it_came_from() {
    let mut node = node(POOL);
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "64MiB"]);
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let write = ["--rw", "randwrite", "--range", "16MiB", "--time", "200ms", "--warmup", "0s"];
    assert_eq!(bench(&node, &write).code, 0);
    node.ok(&["subsystem", "remove-namespace", NQN, "1", "--force"]);
    node.ok(&["snapshot", "create", "v@one"]);
    node.ok(&["volume", "clone", "v@one", "c"]);
    refused(&node, &["volume", "flatten", "v"], 5, "volume 'v' is not a clone: nothing lies below it");
    refused(&node, &["volume", "flatten", "v@one"], 2, "'v@one' is not a valid name");
    refused(&node, &["volume", "flatten", "x"], 4, "no such object");
    refused(&node, &["volume", "flatten", "c", "--stop"], 4, "was not flattened since the pool was opened");
    assert_eq!(node.json(&["volume", "flatten", "c", "--status"])["state"], json!("none"));
    assert_eq!(node.json(&["volume", "show", "c"])["clone_of"], json!("v@one"));
    let path = |name: &str| node.path(name).to_str().unwrap().to_string();
    let (before, after) = (path("before.snap"), path("after.snap"));
    node.ok(&["snapshot", "export", "v@one", "--output", &before]);
    // Killed on the way: what has been copied stays, and the next one goes on.
    node.ok(&["volume", "flatten", "c"]);
    node.kill();
    node.restart();
    if node.json(&["volume", "show", "c"])["clone_of"] == json!("v@one") {
        let flat = node.json(&["volume", "flatten", "c", "--wait"]);
        assert_eq!((&flat["state"], &flat["lost_blocks"]), (&json!("done"), &json!(0)));
        assert_eq!(flat["extents_done"], flat["extents_total"]);
    }
    assert_eq!(node.json(&["volume", "show", "c"])["clone_of"], json!(null));
    // What hosts have written is nothing by now, and what was copied since counts in its place.
    let total = node.json(&["pool", "show", "hot"])["open"]["total"].clone();
    let (copied, amplification) = (total["flattened_bytes"].as_u64().unwrap(), total["log_amplification"].as_f64());
    assert!(copied == 0 || amplification.is_some_and(|factor| factor < 2.0), "{total}");
    node.ok(&["volume", "delete", "v", "--snapshots"]);
    assert_eq!(node.json(&["pool", "show", "hot"])["open"]["going"], json!(0));
    node.ok(&["snapshot", "create", "c@flat"]);
    node.ok(&["snapshot", "export", "c@flat", "--output", &after]);
    let records = |path: &str| std::fs::read(path).unwrap()[512..].to_vec();
    assert!(records(&before) == records(&after), "the clone has changed");
    let said = node.run(&["volume", "flatten", "c", "--status"]);
    assert!(said.code == 0 && said.out.starts_with("flattening of volume 'c': "), "{}{}", said.out, said.err);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn snapshots_go_through_files_into_other_pools() {
    let mut node = node(POOL);
    let made = node.run(&["volume", "create", "v", "--pool", "hot", "--size", "64MiB"]);
    assert!(made.code == 0 && !made.out.contains("note:"), "there is room for it: {}{}", made.out, made.err);
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let write = ["--rw", "randwrite", "--range", "16MiB", "--time", "200ms", "--warmup", "0s"];
    assert_eq!(bench(&node, &write).code, 0);
    node.ok(&["snapshot", "create", "v@one"]);
    assert_eq!(bench(&node, &write).code, 0);
    node.ok(&["snapshot", "create", "v@two"]);
    let changes = node.json(&["snapshot", "diff", "v@two", "--since", "v@one"]);
    let changed: u64 = changes.as_array().unwrap().iter().map(|change| change["length"].as_u64().unwrap()).sum();
    assert!(changed > 0 && changed <= 16 << 20, "{changed}");
    let path = |name: &str| node.path(name).to_str().unwrap().to_string();
    let (one, two) = (path("one.snap"), path("two.snap"));
    node.ok(&["snapshot", "export", "v@one", "--output", &one]);
    node.ok(&["snapshot", "export", "v@two", "--since", "v@one", "-o", &two]);
    // What is there is not replaced by mistake, and what is no file stays what it is.
    refused(&node, &["snapshot", "export", "v@one", "--output", &two], 5, "--force");
    node.ok(&["snapshot", "export", "v@two", "--since", "v@one", "-o", &two, "--force"]);
    let pipe = path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    node.ok(&["snapshot", "export", "v@one", "--output", &pipe]);
    assert!(reader.join().unwrap() == std::fs::read(&one).unwrap(), "the pipe carries something else");
    assert!(std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    let left = std::fs::read_dir(node.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().ends_with(".partial")));
    let wrong = node.run(&["snapshot", "diff", "v@two", "--since", "v@x"]);
    assert_eq!((wrong.code, wrong.out.as_str()), (4, ""), "no heading without a table");
    assert_eq!(node.json(&["snapshot", "verify", &two])["since"], json!("v@one"));
    refused(&node, &["snapshot", "import", "w", "--input", &one], 2, "name the pool");
    refused(&node, &["snapshot", "import", "w", "--pool", "hot", "-i", &two], 4, "import 'v@one' first");
    refused(&node, &["snapshot", "import", "w", "--pool", "hot", "-i", &path("none")], 1, "check the path");
    refused(&node, &["snapshot", "import", "v", "--roll-back", "-i", &one], 5, "hosts may use it");
    refused(&node, &["snapshot", "export", "v@x", "-o", &path("none.snap")], 4, "no such object");
    let backwards = ["snapshot", "export", "v@one", "--since", "v@two", "-o", &path("none.snap")];
    refused(&node, &backwards, 2, "is not below");
    node.ok(&["snapshot", "import", "w", "--pool", "hot", "--input", &one]);
    node.ok(&["snapshot", "import", "w", "--input", &two]);
    assert_eq!(names(&node.json(&["snapshot", "list", "w"])), ["w@one", "w@two"]);
    // Each says what to do.
    refused(&node, &["snapshot", "import", "w", "-i", &two], 5, "remuda snapshot delete w@two");
    refused(&node, &["snapshot", "import", "w@three", "-i", &one], 5, "remuda snapshot import NAME --pool hot");
    refused(&node, &["snapshot", "import", "w@three", "-i", &two], 5, "--roll-back");
    node.kill();
    node.restart();
    // The copies give the same streams but for their names, wherever they lie.
    let copy = node.path("copy.snap").to_str().unwrap().to_string();
    node.ok(&["snapshot", "export", "w@two", "--since", "w@one", "-o", &copy]);
    let records = |path: &str| std::fs::read(path).unwrap()[512..].to_vec();
    assert!(records(&copy) == records(&two), "the copy differs");
    // What is cut off or damaged is noticed, and leaves nothing.
    let mut bytes = std::fs::read(&one).unwrap();
    bytes.truncate(bytes.len() - 40);
    std::fs::write(&copy, &bytes).unwrap();
    refused(&node, &["snapshot", "verify", &copy], 9, "ends too early");
    refused(&node, &["snapshot", "verify", &copy], 9, "export the snapshot again");
    refused(&node, &["snapshot", "import", "x", "--pool", "hot", "-i", &copy], 1, "ends too early");
    refused(&node, &["snapshot", "import", "x", "--pool", "hot", "-i", &copy], 1, "remuda snapshot verify");
    refused(&node, &["volume", "show", "x"], 4, "no such object");
    bytes[5000] ^= 1;
    std::fs::write(&copy, &bytes).unwrap();
    refused(&node, &["snapshot", "import", "x", "--pool", "hot", "-i", &copy], 1, "is damaged at byte");
    std::fs::write(&copy, "a short text").unwrap();
    refused(&node, &["snapshot", "import", "x", "--pool", "hot", "-i", &copy], 1, "does not begin as a snapshot");
    refused(&node, &["snapshot", "verify", &copy], 9, "does not begin as a snapshot stream");
    for (magic, way) in [(&b"\x28\xb5\x2f\xfd"[..], "'zstd -d'"), (&b"\x1f\x8b"[..], "'gzip -d'")] {
        std::fs::write(&copy, [magic, &bytes[..4096]].concat()).unwrap();
        refused(&node, &["snapshot", "import", "x", "--pool", "hot", "-i", &copy], 1, way);
        refused(&node, &["snapshot", "verify", &copy], 9, way);
    }
}

#[test]
fn what_an_import_has_made_goes_if_the_node_is_killed_before_its_end() {
    let mut node = node(POOL);
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "64MiB"]);
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    assert_eq!(bench(&node, &["--rw", "randwrite", "--range", "16MiB", "--time", "200ms", "--warmup", "0s"]).code, 0);
    node.ok(&["snapshot", "create", "v@one"]);
    let stream = node.path("one.snap").to_str().unwrap().to_string();
    node.ok(&["snapshot", "export", "v@one", "--output", &stream]);
    node.ok(&["snapshot", "import", "whole", "--pool", "hot", "--input", &stream]);
    let volumes = |node: &Node| node.json(&["pool", "show", "hot"])["open"]["volumes"].as_u64().unwrap();
    assert_eq!(volumes(&node), 2);
    // A pipe that gives half of it, and does not end.
    let pipe = node.path("pipe").to_str().unwrap().to_string();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let import = std::thread::spawn({
        let (socket, pipe) = (node.socket(), pipe.clone());
        move || remuda(&["--socket", &socket, "snapshot", "import", "half", "--pool", "hot", "-i", &pipe])
    });
    let mut writer = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    let bytes = std::fs::read(&stream).unwrap();
    std::io::Write::write_all(&mut writer, &bytes[..bytes.len() / 2]).unwrap();
    while volumes(&node) == 2 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    refused(&node, &["volume", "show", "half"], 5, "it is being imported into pool 'hot'");
    refused(&node, &["volume", "delete", "half"], 5, "it is being imported into pool 'hot'");
    node.kill();
    drop(writer);
    assert_ne!(import.join().unwrap().code, 0);
    node.restart();
    node.log_line("volume 'half' was being imported when the node ended");
    assert_eq!(volumes(&node), 2);
    refused(&node, &["volume", "show", "half"], 4, "no such object");
    node.ok(&["volume", "show", "whole"]);
    // It is over: another one of that name is nobody's business.
    node.ok(&["volume", "create", "half", "--pool", "hot", "--size", "1MiB"]);
    node.kill();
    node.restart();
    node.ok(&["volume", "show", "half"]);
}
