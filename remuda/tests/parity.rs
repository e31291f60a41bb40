//! A shaped pool over a parity device through the built program: drives are lost under load and at rest, replaced and rebuilt.

use crate::common::pools::{NQN, bench, look, look_is_clean, look_is_degraded, refused};
use crate::common::{Node, remuda};
use serde_json::{Value, json};

const DRIVE_BYTES: u64 = 192 << 20;

fn devices(count: usize) -> String {
    let drive = |n| format!("[[device]]\nname = 'd{n}'\nkind = 'file'\npath = 'd{n}.img'\nsize = '192MiB'\n");
    let names: Vec<String> = (0..count).map(|n| format!("'d{n}'")).collect();
    let drives: String = (0..count).map(drive).collect();
    format!(
        "{drives}[[device]]\nname = 'log'\nkind = 'file'\npath = 'log.img'\nsize = '128MiB'\n\
         [[device]]\nname = 'array'\nkind = 'parity'\ndevices = [{}]\n",
        names.join(", ")
    )
}

fn node(count: usize) -> Node {
    Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n{}\
         [pool.cold]\nlog = 'log'\ncapacity = 'array'\nshape = 'shaped'\n\
         [[volume]]\nname = 'v'\npool = 'cold'\nsize = '128MiB'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['v']\n",
        devices(count)
    ))
}

/// Writes and reads back, under way.
fn works(node: &Node) {
    let load = ["--rw", "randrw", "--verify", "--time", "400ms", "--warmup", "0s", "--qd", "8", "--bs", "16KiB"];
    let run = bench(node, &load);
    assert_eq!(run.code, 0, "{}{}\n{}", run.out, run.err, node.log());
    assert_eq!(run.json()["verify"]["mismatches"], json!(0));
}

/// Every block of the pool has the checksum that its newest mapping says.
fn is_right(node: &Node) {
    node.ok(&["pool", "settle", "cold"]);
    let scrub = node.json(&["pool", "scrub", "cold", "--rate", "10GiB", "--wait"]);
    assert!(scrub.is_object() || scrub.is_array(), "{scrub}");
}

/// What drives have written is told, their parity included; they are all there, and have been written to.
fn counts_parity(node: &Node) {
    let open = node.json(&["pool", "show", "cold"])["open"].clone();
    let written = |view: &Value| view["bytes"].as_u64().unwrap();
    let devices = open["devices"].as_array().unwrap();
    let members: u64 = devices.iter().filter(|device| device["depth"] == json!(1)).map(written).sum();
    let array = devices.iter().find(|device| device["device"] == json!("array")).unwrap();
    assert_eq!(written(array), members, "{open}");
    let told = open["total"]["capacity_write_bytes"].as_u64().unwrap();
    let streams = open["streams"].as_array().unwrap().iter().filter(|view| view["to"] == json!("capacity"));
    let in_head = |view: &&Value| matches!(view["stream"].as_str(), Some("shadow" | "metadata"));
    let (head, rows): (Vec<&Value>, Vec<&Value>) = streams.partition(in_head);
    let sum = |views: Vec<&Value>| views.into_iter().map(written).sum::<u64>();
    let (head, rows) = (sum(head), sum(rows));
    assert_eq!(head + rows, told, "{open}");
    // What is in the head, each of the four has; of rows, three have the data and one the parity.
    assert_eq!(members, 4 * head + rows / 3 * 4, "{open}");
    let ratio = |key: &Value| key.as_f64().unwrap();
    assert!(ratio(&open["drives_amplification"]) > ratio(&open["total"]["capacity_amplification"]), "{open}");
}

fn array(node: &Node) -> Value {
    node.json(&["device", "show", "array"])
}

fn states(node: &Node) -> Vec<String> {
    let members = array(node)["parity"]["members"].as_array().unwrap().clone();
    members.iter().map(|member| member["state"].as_str().unwrap().to_string()).collect()
}

fn until_whole(node: &Node) {
    for _ in 0..1500 {
        if array(node)["parity"]["degraded"] == json!(false) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{}\n{}", array(node), node.log());
}

fn new_drive(node: &Node, name: &str) {
    let file = std::fs::File::create(node.path(name)).unwrap();
    file.set_len(DRIVE_BYTES).unwrap();
}

#[test]
fn a_pool_outlives_its_drives_one_after_the_other() {
    let mut node = node(4);
    works(&node);
    is_right(&node);
    counts_parity(&node);
    // Lost while the node is down.
    node.kill();
    std::fs::remove_file(node.path("d1.img")).unwrap();
    node.restart();
    assert_eq!(states(&node), ["in sync", "absent", "in sync", "in sync"]);
    let warnings = node.status()["warnings"].to_string();
    assert!(warnings.contains("3 of 4 members") && warnings.contains("d1.img is gone"), "{warnings}");
    let problems = node.json(&["pool", "show", "cold"])["problems"].to_string();
    assert!(problems.contains("device 'array' is open, degraded"), "{problems}");
    is_right(&node);
    works(&node);
    new_drive(&node, "d1.img");
    node.ok(&["device", "open", "d1"]);
    works(&node);
    until_whole(&node);
    is_right(&node);
    // Another one is pulled out.
    std::fs::rename(node.path("d3.img"), node.path("pulled.img")).unwrap();
    node.kill();
    node.restart();
    assert_eq!(states(&node), ["in sync", "in sync", "in sync", "absent"]);
    works(&node);
    // The old one comes back: it is no member any more until it has been rebuilt, which is what happens.
    std::fs::rename(node.path("pulled.img"), node.path("d3.img")).unwrap();
    node.ok(&["device", "open", "d3"]);
    until_whole(&node);
    works(&node);
    is_right(&node);
    // A third one is lost, and everything is still there. One command takes the new drive in.
    node.kill();
    std::fs::remove_file(node.path("d0.img")).unwrap();
    node.restart();
    is_right(&node);
    works(&node);
    new_drive(&node, "d0.img");
    node.ok(&["device", "rejoin", "array", "d0"]);
    until_whole(&node);
    assert!(node.json(&["device", "show", "d0"])["state"] == json!("open"));
    node.kill();
    std::fs::remove_file(node.path("d0.img")).unwrap();
    node.restart();
    is_right(&node);
    let metrics = crate::common::http_get(node.status()["metrics"].as_str().unwrap());
    assert!(metrics.contains("remuda_parity_degraded{name=\"array\"} 1"), "{metrics}");
    assert!(metrics.contains("remuda_parity_member_in_sync{name=\"array\",member=\"d0\"} 0"), "{metrics}");
    // Two are too many, and the node says which.
    node.kill();
    std::fs::remove_file(node.path("d2.img")).unwrap();
    node.restart();
    let state = array(&node)["state"].as_str().unwrap().to_string();
    assert!(state.contains("member 'd0' (absent) and member 'd2' (absent) lack data"), "{state}");
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn a_new_drive_takes_the_place_of_a_failed_one_in_a_running_node() {
    let spec =
        devices(3).replace("devices = ['d0', 'd1', 'd2']", "devices = ['d0', 'bad', 'd2']\nrebuild_rate = '1GiB'");
    let mut node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n[[device]]\nname = 'bad'\nkind = 'error'\ndevice = 'd1'\n{spec}\
         [pool.cold]\nlog = 'log'\ncapacity = 'array'\nshape = 'shaped'\n\
         [[volume]]\nname = 'v'\npool = 'cold'\nsize = '64MiB'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['v']\n"
    ));
    works(&node);
    node.ok(&["device", "set", "bad", "op=write", "rate=1"]);
    works(&node);
    node.ok(&["pool", "settle", "cold"]);
    assert_eq!(states(&node), ["in sync", "failed", "in sync"]);
    assert!(array(&node)["state"].as_str().unwrap().starts_with("open, degraded"));
    assert_eq!(node.run(&["device", "rejoin", "array", "bad"]).code, 1, "it fails still");
    node.ok(&["device", "set", "bad", "rate=off"]);
    // A restart does not take it in by itself, and says why it lacks data and what helps.
    node.kill();
    node.restart();
    assert_eq!(states(&node), ["in sync", "failed", "in sync"]);
    let why = "member 'bad' holds an older copy of the data (generation ";
    let warnings = node.status()["warnings"].to_string();
    assert!(
        warnings.contains(why) && warnings.contains("'remuda device rejoin array bad' fills it anew"),
        "{warnings}"
    );
    let text = node.run(&["device", "show", "array"]).out;
    assert!(text.contains(why), "{text}");
    refused(&node, &["device", "rejoin", "array", "d1"], 2, "d0, bad, d2");
    // All of it would take days at that rate, until it gets another one.
    node.ok(&["device", "set", "array", "rebuild_rate=1KiB"]);
    node.ok(&["device", "rejoin", "array", "bad"]);
    works(&node);
    assert_eq!(states(&node), ["in sync", "rebuilding", "in sync"]);
    node.ok(&["device", "set", "array", "rebuild_rate=1GiB"]);
    until_whole(&node);
    is_right(&node);
    let text = node.run(&["device", "show", "array"]).out;
    assert!(text.contains("MEMBER") && text.contains("of data each, behind"), "{text}");
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    // A clean stop leaves nothing to compare, and a restart finds all of it.
    node.restart();
    is_right(&node);
    assert_eq!(states(&node), ["in sync"; 3]);
}

#[test]
fn a_member_put_back_from_a_copy_is_filled_anew_by_itself_and_the_node_says_why() {
    let mut node = node(3);
    works(&node);
    node.kill();
    std::fs::copy(node.path("d1.img"), node.path("copy.img")).unwrap();
    node.restart();
    works(&node);
    is_right(&node);
    node.kill();
    std::fs::rename(node.path("copy.img"), node.path("d1.img")).unwrap();
    node.restart();
    assert!(node.log().contains("member 'd1' holds an older copy of the data (generation "), "{}", node.log());
    works(&node);
    until_whole(&node);
    is_right(&node);
    node.kill();
    std::fs::remove_file(node.path("d0.img")).unwrap();
    node.restart();
    is_right(&node);
    works(&node);
}

#[test]
fn an_array_and_the_pool_on_it_grow_while_they_are_used() {
    let mut node = node(3);
    works(&node);
    let sizes = |node: &Node| {
        let pool = node.json(&["pool", "show", "cold"]);
        (array(node)["size"].as_u64().unwrap(), pool["open"]["capacity_bytes"].as_u64().unwrap())
    };
    let before = sizes(&node);
    let layout = node.json(&["pool", "show", "cold"])["open"]["layout"].clone();
    let (unit, row) = (layout["write_unit_bytes"].as_u64().unwrap(), layout["row_bytes"].as_u64().unwrap());
    assert!(layout["shape"] == json!("shaped") && layout["parity_members"] == json!(3), "{layout}");
    assert!(unit.is_multiple_of(row) && layout["band_bytes"].as_u64().unwrap().is_multiple_of(unit), "{layout}");
    let shown = node.run(&["pool", "status", "cold"]).out;
    assert!(shown.contains("shaped: bands of ") && shown.contains(" on 2 of 3 members"), "{shown}");
    refused(&node, &["pool", "grow", "cold"], 6, "make the device larger first: remuda device resize array");
    refused(&node, &["device", "resize", "array", "64MiB"], 5, "stands on it, and a pool does not shrink");
    node.ok(&["device", "resize", "array", "600MiB"]);
    node.ok(&["pool", "grow", "cold"]);
    let grown = sizes(&node);
    assert!(grown.0 > before.0 + (200 << 20) && grown.1 > before.1 + (150 << 20), "{before:?}, then {grown:?}");
    works(&node);
    node.kill();
    // Members whose configured size is the old one.
    std::fs::remove_file(node.path("d2.img")).unwrap();
    node.restart();
    assert_eq!(sizes(&node), grown);
    works(&node);
    is_right(&node);
    refused(&node, &["device", "resize", "array", "700MiB"], 5, "member 'd2' has failed: replace it");
    // A new drive has to be as large as the others are by now.
    new_drive(&node, "d2.img");
    node.run(&["device", "open", "d2"]);
    assert_ne!(node.run(&["device", "rejoin", "array", "d2"]).code, 0);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn a_member_that_is_too_small_and_one_that_has_failed_end_commands_each_with_its_code() {
    let mut node = node(3);
    works(&node);
    assert_eq!(node.terminate(), Some(0));
    let d1 = std::fs::OpenOptions::new().write(true).open(node.path("d1.img")).unwrap();
    d1.set_len(DRIVE_BYTES / 2).unwrap();
    let check = remuda(&["pool", "check", "cold", "--config", &node.config()]);
    assert_eq!(check.code, 6, "{}{}", check.out, check.err);
    assert!(check.err.contains("member 'd1'") && check.err.contains("are needed"), "{}", check.err);
    std::fs::remove_file(node.path("d1.img")).unwrap();
    node.restart();
    let resize = node.run(&["device", "resize", "array", "1GiB"]);
    assert_eq!(resize.code, 5, "{}", resize.err);
    assert!(resize.err.contains("has failed"), "{}", resize.err);
    assert_eq!(node.terminate(), Some(0));
}

#[test]
fn what_would_write_parts_of_rows_is_refused_with_what_to_do() {
    let node = Node::start(&format!("[nvmf]\nlisten = ['127.0.0.1:0']\n{}", devices(3)));
    refused(&node, &["volume", "create", "v", "--device", "array", "--size", "1MiB"], 2, "put a shaped pool on it");
    refused(&node, &["pool", "create", "p", "--log", "log", "--capacity", "array"], 2, "--shape shaped");
    refused(&node, &["pool", "create", "p", "--log", "array", "--capacity", "log"], 2, "name another log device");
    refused(&node, &["device", "create", "c", "--kind", "checksum", "device=array"], 2, "put a shaped pool on it");
    refused(&node, &["device", "create", "q", "--kind", "parity", "devices=d0,d1"], 2, "3 to 16");
    let configured = |more: &str| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.toml");
        let text = format!("[node]\nstate_dir = '{0}/s'\n{1}{more}", directory.path().display(), devices(3));
        std::fs::write(&path, text).unwrap();
        let run = remuda(&["config", "check", path.to_str().unwrap()]);
        format!("{}{}", run.out, run.err)
    };
    let hot = configured("[pool.p]\nlog = 'log'\ncapacity = 'array'\n");
    assert!(hot.contains("whole rows alone") && hot.contains("shape = \"shaped\""), "{hot}");
    let volume = configured("[[volume]]\nname = 'v'\ndevice = 'array'\n");
    assert!(volume.contains("put a shaped pool on it"), "{volume}");
    let log =
        configured("[[device]]\nname = 'x'\nkind = 'mem'\nsize = '1GiB'\n[pool.p]\nlog = 'array'\ncapacity = 'x'\n");
    assert!(log.contains("name another device for the log"), "{log}");
}

#[test]
fn a_check_of_the_file_says_of_a_pool_that_cannot_be_made_what_the_node_says() {
    let unit = "a unit of writes of 64 KiB: expected a multiple of 128 KiB";
    for (keys, cause) in
        [("write_unit = '64KiB'", unit), ("band = '4100KiB'", "a band of 4100 KiB: expected a multiple")]
    {
        let pool = format!("[pool.cold]\nlog = 'log'\ncapacity = 'array'\nshape = 'shaped'\n{keys}\n");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.toml");
        std::fs::write(&path, format!("{}{pool}", devices(3))).unwrap();
        let check = remuda(&["config", "check", path.to_str().unwrap()]);
        assert!(check.code != 0 && check.err.contains(cause), "{}{}", check.out, check.err);
        let node = Node::start(&format!("{}{pool}", devices(3)));
        assert!(node.log_line("pool 'cold'").contains(cause), "{}", node.log());
    }
}

#[test]
fn a_check_that_does_not_repair_changes_nothing_and_tells_of_an_absent_member() {
    let mut node = node(3);
    works(&node);
    let (d1, away) = (node.path("d1.img"), node.path("d1.away"));
    for kill in [false, true] {
        works(&node);
        if kill {
            node.kill();
        } else {
            assert_eq!(node.terminate(), Some(0), "{}", node.log());
        }
        look_is_clean(&node, "cold");
        std::fs::rename(&d1, &away).unwrap();
        let said = look_is_degraded(&node, "cold");
        for part in ["member 'd1' (parity 'array')", "d1.img", "bring it back", "remuda device rejoin array d1"] {
            assert!(said.contains(part), "{said}");
        }
        let text = remuda(&["pool", "check", "cold", "--config", &node.config()]);
        assert!(text.code == 9 && text.out.contains("a device below it is degraded"), "{}{}", text.out, text.err);
        // To repair would be to give it up.
        let refused = look(&node, "cold", &["--repair"]);
        assert_eq!(refused.code, 5, "{}{}", refused.out, refused.err);
        let message = refused.json()["error"]["message"].to_string();
        assert!(
            message.contains("member 'd1' of parity 'array': it is absent") && message.contains("--degraded"),
            "{message}"
        );
        std::fs::rename(&away, &d1).unwrap();
        look_is_clean(&node, "cold");
        node.restart();
        assert_eq!(states(&node), ["in sync"; 3], "{}", node.log());
        is_right(&node);
    }
    // Done without as was asked for, it is behind the others from then on, and a check says so.
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    std::fs::rename(&d1, &away).unwrap();
    let repair = ["--json", "pool", "check", "cold", "--config", &node.config(), "--repair", "--degraded"];
    let run = remuda(&repair);
    assert_eq!((run.code, &run.json()["verdict"]), (9, &json!("degraded")), "{}{}", run.out, run.err);
    std::fs::rename(&away, &d1).unwrap();
    let said = look_is_degraded(&node, "cold");
    assert!(said.contains("holds an older copy of the data") && said.contains("device rejoin array d1"), "{said}");
    node.restart();
    assert_eq!(states(&node), ["in sync", "failed", "in sync"]);
    node.ok(&["device", "rejoin", "array", "d1"]);
    until_whole(&node);
    is_right(&node);
}
