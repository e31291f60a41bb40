//! Doors for virtual machines through the built program.

use crate::common::{Node, http_get, remuda};
use serde_json::json;
use std::os::unix::net::UnixStream;

const VOLUME: &str = "[[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n\
                      [[volume]]\nname = 'v'\ndevice = 'm'\nsize = '16MiB'\n";

#[test]
fn a_door_made_by_command_is_there_after_a_kill_and_gone_after_its_deletion() {
    let mut node = Node::start(VOLUME);
    node.ok(&["vhost", "create", "vm", "--volume", "v", "--queues", "2"]);
    let before = node.json(&["vhost", "show", "vm"]);
    assert_eq!((&before["queues_max"], &before["state"]), (&json!(2), &json!("listening")));
    node.kill();
    node.restart();
    let after = node.json(&["vhost", "show", "vm"]);
    assert_eq!((&after["serial"], &after["socket"]), (&before["serial"], &before["socket"]));
    assert_eq!(after["serial"].as_str().unwrap().len(), 20);
    let socket = node.path("vhost-vm.sock");
    UnixStream::connect(&socket).unwrap();
    assert_eq!(node.json(&["volume", "show", "v"])["exports"], json!(["vhost/vm"]));
    let metrics = http_get(node.status()["metrics"].as_str().unwrap());
    assert!(metrics.contains("remuda_vhost_queues{name=\"vm\",volume=\"v\"} 0"), "{metrics}");
    node.ok(&["vhost", "delete", "vm"]);
    assert!(!socket.exists());
    assert_eq!(node.json(&["vhost", "list"]), json!([]));
    assert_eq!(node.terminate(), Some(0));
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let node = Node::start(&format!("{VOLUME}[[vhost]]\nname = 'fixed'\nvolume = 'v'\nsocket = 'fixed.sock'\n"));
    let file = node.path("file");
    std::fs::write(&file, "mine").unwrap();
    let [file, fixed] = [file, node.path("fixed.sock")].map(|path| path.to_string_lossy().into_owned());
    for (args, code, text) in [
        (&["vhost", "create", "fixed", "--volume", "v"][..], 5, "exists already"),
        (&["vhost", "create", "x", "--volume", "w"], 4, "volume 'w'"),
        (&["vhost", "create", "x", "--volume", "v", "--path", &fixed], 5, "is the socket of vhost 'fixed'"),
        (&["vhost", "create", "x", "--volume", "v", "--path", &file], 5, "is no socket"),
        (&["vhost", "create", "x", "--volume", "v", "--path", "/nowhere/x.sock"], 2, "is not a directory"),
        (&["vhost", "create", "x", "--volume", "v", "--queues", "999"], 2, "queues"),
        (&["vhost", "delete", "fixed"], 5, "defined in"),
        (&["vhost", "show", "fixd"], 4, "did you mean 'fixed'?"),
    ] {
        let run = node.run(args);
        assert!(run.code == code && run.err.contains(text), "{args:?}: {} {}", run.code, run.err);
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "mine");
}

#[test]
fn a_volume_behind_a_door_stays_and_a_wrong_section_is_named() {
    let node = Node::start("[[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n");
    node.ok(&["volume", "create", "v", "--device", "m", "--size", "1MiB"]);
    node.ok(&["vhost", "create", "vm", "--volume", "v", "--read-only"]);
    let run = node.run(&["volume", "delete", "v"]);
    assert!(run.code != 0 && run.err.contains("remuda vhost delete vm"), "{}", run.err);
    let path = node.path("wrong.toml").to_string_lossy().into_owned();
    std::fs::write(&path, format!("{VOLUME}[[vhost]]\nname = 'a'\nvolume = 'w'\nqueue = 3\n")).unwrap();
    let run = remuda(&["config", "check", &path]);
    assert!(run.err.contains("there is no volume 'w'") && run.err.contains("queues"), "{}", run.err);
}
