//! Hot pools through the built program: made, written, killed, watched, refused.

use crate::common::pools::{DEVICES, NQN, POOL, bench, node, node_on, refused};
use crate::common::{Node, Run, remuda};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

#[test]
fn a_pool_of_the_file_is_made_once_and_keeps_what_is_in_it() {
    let mut node = node(&format!("{POOL}[[volume]]\nname = 'c'\npool = 'hot'\nsize = '1GiB'\n"));
    let made = node.run(&["volume", "create", "v", "--pool", "hot", "--size", "10TiB", "--block-size", "512"]);
    let note = |run: &Run| {
        run.out.lines().any(|line| line.starts_with("note: thin: pool 'hot' has ") && line.contains("promise"))
    };
    assert!(made.code == 0 && note(&made), "{}{}", made.out, made.err);
    let resized = node.run(&["volume", "resize", "c", "2GiB"]);
    assert!(resized.code == 0 && note(&resized), "{}{}", resized.out, resized.err);
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let load = ["--rw", "randwrite", "--range", "16MiB", "--verify", "--time", "500ms", "--warmup", "0s"];
    let run = bench(&node, &load);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let before = (node.json(&["volume", "list"]), node.json(&["pool", "show", "hot"]));
    assert!(before.1["open"]["total"]["user_write_bytes"].as_u64().unwrap() > 0, "{}", before.1);
    let metrics = crate::common::http_get(node.status()["metrics"].as_str().unwrap());
    assert!(metrics.contains("remuda_pool_open{pool=\"hot\"} 1\n"), "{metrics}");
    assert!(metrics.contains("remuda_pool_log_free_bytes{pool=\"hot\",shard=\"0\"}"), "{metrics}");
    node.kill();
    node.restart();
    assert_eq!(before.0, node.json(&["volume", "list"]), "names, sizes and identities");
    let after = node.json(&["pool", "show", "hot"]);
    assert_eq!((&after["state"], &after["open"]["uuid"]), (&json!("open"), &before.1["open"]["uuid"]));
    let state = std::fs::read_to_string(node.path("state/state.json")).unwrap();
    let state: Value = serde_json::from_str(state.split_once('\n').unwrap().1).unwrap();
    assert_eq!((&state["volumes"], state["shown"].as_object().unwrap().len()), (&json!({}), 1), "{state}");
    node.ok(&["pool", "settle", "hot"]);
    assert_eq!(node.json(&["pool", "show", "hot"])["open"]["total"]["dirty_bytes"], json!(0));
    refused(&node, &["volume", "delete", "c"], 5, "it is defined in");
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn pools_made_by_command_live_until_they_are_destroyed() {
    let mut node = node("");
    let made = node.run(&["pool", "create", "hot", "--log", "log", "--capacity", "big", "--shards", "1"]);
    assert!(made.code == 0 && made.out.contains(": 1 shard, "), "{}{}", made.out, made.err);
    assert!(node.run(&["status"]).out.contains("2 devices, 1 pool, 0 volumes, 1 subsystem, 0 vhost doors"));
    refused(&node, &["pool", "create", "hot", "--log", "log", "--capacity", "big"], 5, "exists already");
    refused(&node, &["pool", "create", "q", "--log", "log", "--capacity", "big"], 5, "already used by pool 'hot'");
    refused(&node, &["volume", "create", "w", "--device", "big", "--size", "1MiB"], 5, "--pool hot");
    refused(&node, &["volume", "create", "v", "--pool", "hott", "--size", "1MiB"], 4, "did you mean 'hot'");
    refused(&node, &["volume", "create", "v", "--pool", "hot", "--size", "1000"], 2, "4 KiB");
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "1GiB"]);
    refused(&node, &["volume", "create", "v", "--pool", "hot", "--size", "1GiB"], 5, "in pool 'hot'");
    refused(&node, &["volume", "resize", "v", "max"], 2, "thin");
    refused(&node, &["volume", "resize", "v", "512MiB"], 2, "--shrink");
    node.ok(&["volume", "resize", "v", "512MiB", "--shrink"]);
    node.ok(&["volume", "resize", "v", "+1MiB"]);
    node.kill();
    node.restart();
    assert_eq!(node.json(&["volume", "show", "v"])["size"], json!(513 << 20));
    node.ok(&["pool", "status"]);
    node.ok(&["pool", "top", "--once", "--interval", "0.1"]);
    assert!(node.run(&["top", "--once", "--interval", "0.1"]).out.contains("REACTOR"));
    assert_eq!(node.json(&["top", "--once", "--interval", "0.1"])["objects"][0]["name"], json!("v"));
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    refused(&node, &["volume", "delete", "v"], 5, "remove the namespace first");
    refused(&node, &["pool", "destroy", "hot", "--yes"], 5, "(with --force while hosts are connected)");
    node.ok(&["subsystem", "remove-namespace", NQN, "1", "--force"]);
    node.ok(&["volume", "delete", "v"]);
    refused(&node, &["volume", "show", "v"], 4, "no such object");
    refused(&node, &["pool", "destroy", "hot"], 2, "--yes");
    node.ok(&["pool", "destroy", "hot", "--yes"]);
    assert_eq!(node.json(&["pool", "list"]), json!([]));
    refused(&node, &["pool", "show", "hot"], 4, "no such object");
    node.ok(&["pool", "create", "q", "--log", "log", "--capacity", "big"]);
}

#[test]
fn a_pool_that_is_killed_while_it_is_destroyed_is_there_or_is_gone_and_its_devices_can_be_used() {
    let mut node = node("");
    let create = ["pool", "create", "hot", "--log", "log", "--capacity", "big"];
    let are_blank = |node: &Node| {
        ["log.img", "big.img"]
            .map(|file| std::fs::read(node.path(file)).unwrap()[..128 << 10].iter().all(|byte| *byte == 0))
    };
    node.ok(&create);
    let (mut whole, mut ended) = (0, 0);
    for step in 0..16 {
        let socket = node.socket();
        let command = ["--socket", &socket, "pool", "destroy", "hot", "--yes"].map(str::to_string);
        let destroying = std::thread::spawn(move || remuda(&command.each_ref().map(String::as_str)));
        std::thread::sleep(Duration::from_millis(1 + step * 3));
        node.kill();
        destroying.join().unwrap();
        let state = std::fs::read_to_string(node.path("state/state.json")).unwrap();
        ended += state.contains("\"destroying\"") as u32;
        node.restart();
        if node.run(&["pool", "show", "hot"]).code == 0 {
            whole += 1;
            assert_eq!(node.json(&["pool", "show", "hot"])["state"], json!("open"), "{}", node.log());
            continue;
        }
        assert_eq!(are_blank(&node), [true; 2], "killed in step {step}\n{}", node.log());
        let state = std::fs::read_to_string(node.path("state/state.json")).unwrap();
        assert!(!state.contains("\"destroying\""), "{state}");
        node.ok(&create);
    }
    println!("{whole} pools were whole, {ended} destroyed at the next start");
    assert!(whole < 16, "no kill came late enough");
}

#[test]
fn a_pool_whose_destruction_was_cut_off_is_wiped_at_the_next_start_and_others_are_left_alone() {
    let mut node = node("");
    node.ok(&["pool", "create", "hot", "--log", "log", "--capacity", "big"]);
    let id = node.json(&["pool", "show", "hot"])["open"]["uuid"].clone();
    let state = node.path("state/state.json");
    let note = json!({ "pool": state_in(&state)["pools"][0], "pool_id": id });
    let made = ["log.img", "big.img"].map(|file| std::fs::read(node.path(file)).unwrap());
    node.ok(&["pool", "destroy", "hot", "--yes"]);
    node.kill();
    for (of_log, of_capacity) in [(true, true), (true, false), (false, true)] {
        for (file, bytes, is_there) in [("log.img", &made[0], of_log), ("big.img", &made[1], of_capacity)] {
            let mut bytes = bytes.clone();
            if !is_there {
                // Its superblocks are wiped, and the rest of its start is not.
                bytes[..8192].fill(0);
            }
            std::fs::write(node.path(file), &bytes).unwrap();
        }
        note_in(&state, &note);
        node.restart();
        assert!(
            node.log().contains("was being destroyed when the node ended: its devices are wiped now"),
            "{}",
            node.log()
        );
        for file in ["log.img", "big.img"] {
            assert!(std::fs::read(node.path(file)).unwrap()[..128 << 10].iter().all(|byte| *byte == 0), "{file}");
        }
        node.kill();
    }
    // What has come to be there since is somebody else's.
    std::fs::write(node.path("big.img"), &made[1]).unwrap();
    let mut other = note.clone();
    other["pool_id"] = json!("6f1d1f0e-6a0c-4a39-8d2f-5a4f0a2a7e11");
    note_in(&state, &other);
    node.restart();
    assert!(node.log().contains("what is on 'big' is not of pool 'hot'"), "{}", node.log());
    assert!(std::fs::read(node.path("big.img")).unwrap()[..128 << 10] == made[1][..128 << 10]);
}

fn state_in(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(text.split_once('\n').unwrap().1).unwrap()
}

/// Notes in a node's state that a pool is being destroyed.
fn note_in(path: &Path, note: &Value) {
    let mut state = state_in(path);
    state["destroying"] = json!([note]);
    let body = serde_json::to_vec(&state).unwrap();
    let header = json!({ "remuda_state": 1, "bytes": body.len(), "crc32c": base::crc32c(&body) });
    std::fs::write(path, [header.to_string().as_bytes(), b"\n", &body].concat()).unwrap();
}

#[test]
fn devices_that_hold_something_are_refused_and_left_alone() {
    let mut node = node("");
    node.kill();
    let path = node.path("big.img");
    // Where Btrfs begins.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[65_600] = 1;
    std::fs::write(&path, &bytes).unwrap();
    node.restart();
    refused(&node, &["pool", "create", "p", "--log", "log", "--capacity", "big"], 5, "'big' is in use");
    assert_eq!(node.json(&["pool", "list"]), json!([]));
    node.kill();
    assert!(std::fs::read(&path).unwrap() == bytes, "not a byte was changed");
    assert!(std::fs::read(node.path("log.img")).unwrap().iter().all(|byte| *byte == 0));
    node.restart();
    node.ok(&["pool", "create", "p", "--log", "log", "--capacity", "big", "--force"]);
}

#[test]
fn a_pool_without_its_log_waits_for_it_and_its_hosts_with_it() {
    let devices = DEVICES.replace("size = '64MiB'\n", "");
    let mut node = Node::start(&format!("[nvmf]\nlisten = ['127.0.0.1:0']\n{DEVICES}{POOL}"));
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "64MiB"]);
    node.ok(&["subsystem", "create", NQN, "--allow-any-host"]);
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let load = ["--rw", "randwrite", "--time", "200ms", "--warmup", "0s"];
    assert_eq!(bench(&node, &load).code, 0);
    let uuid = node.json(&["volume", "show", "v"])["uuid"].clone();
    node.kill();
    let config = std::fs::read_to_string(node.config()).unwrap().replace(DEVICES, &devices);
    std::fs::write(node.config(), config).unwrap();
    std::fs::rename(node.path("log.img"), node.path("away.img")).unwrap();
    node.restart();
    let status = node.run(&["pool", "status", "hot"]);
    assert_eq!(status.code, 1);
    assert!(status.out.contains("remuda pool open hot") && status.out.contains("log.img"), "{}", status.out);
    let shown = node.json(&["volume", "show", "v"]);
    assert_eq!(shown["uuid"], uuid);
    assert!(shown["state"].as_str().unwrap().contains("not ready"), "{shown}");
    refused(&node, &["volume", "delete", "v"], 5, "remove the namespace first");
    refused(&node, &["volume", "create", "w", "--pool", "hot", "--size", "1MiB"], 1, "not open");
    let run = bench(&node, &["--rw", "randread", "--time", "200ms", "--warmup", "0s", "--loss-timeout", "1s"]);
    assert_ne!(run.code, 0, "{}", run.out);
    refused(&node, &["pool", "open", "hot"], 1, "log.img");
    std::fs::rename(node.path("away.img"), node.path("log.img")).unwrap();
    node.ok(&["pool", "open", "hot"]);
    assert_eq!(node.json(&["volume", "show", "v"])["state"], json!("open"));
    let run = bench(&node, &load);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
}

#[test]
fn the_log_of_another_pool_is_refused() {
    let more = "[[device]]\nname = 'log2'\nkind = 'file'\npath = 'log2.img'\nsize = '64MiB'\n\
                [[device]]\nname = 'big2'\nkind = 'file'\npath = 'big2.img'\nsize = '256MiB'\n";
    let two = format!("{more}{POOL}[pool.other]\nlog = 'log2'\ncapacity = 'big2'\n");
    let mut node = node(&two);
    assert_eq!(node.json(&["pool", "list"]).as_array().map(Vec::len), Some(2));
    node.kill();
    let config = std::fs::read_to_string(node.config()).unwrap();
    let crossed = config.replace("log = 'log'\n", "log = 'x'\n").replace("log = 'log2'\n", "log = 'log'\n");
    std::fs::write(node.config(), crossed.replace("log = 'x'\n", "log = 'log2'\n")).unwrap();
    node.restart();
    for pool in node.json(&["pool", "list"]).as_array().unwrap() {
        assert_eq!(pool["state"], json!("closed"), "{pool}");
        assert!(pool["problems"][0].as_str().unwrap().contains("not the one that belongs to"), "{pool}");
    }
    node.kill();
    std::fs::write(node.config(), config).unwrap();
    node.restart();
    node.ok(&["pool", "status"]);
}

#[test]
fn a_full_pool_refuses_new_blocks_and_goes_on() {
    let mut node = node(&POOL.replace("capacity", "shards = 1\ncapacity"));
    node.ok(&["volume", "create", "large", "--pool", "hot", "--size", "640MiB"]);
    node.ok(&["volume", "create", "small", "--pool", "hot", "--size", "16MiB"]);
    node.ok(&["subsystem", "add-namespace", NQN, "large"]);
    node.ok(&["subsystem", "add-namespace", NQN, "small"]);
    let small = ["--nsid", "2", "--rw", "randwrite", "--verify", "--time", "200ms", "--warmup", "0s"];
    let fill = ["--bs", "1MiB", "--time", "100ms", "--warmup", "0s"];
    assert_eq!(bench(&node, &[&["--nsid", "2", "--rw", "write", "--fill"][..], &fill].concat()).code, 0);
    let run = bench(&node, &[&["--nsid", "1", "--rw", "write", "--fill"][..], &fill].concat());
    assert_eq!(run.code, 1, "{}", run.out);
    let first = run.json()["first_error"].to_string() + &run.json()["error"]["message"].to_string();
    assert!(first.contains("space") || first.contains("capacity"), "{}", run.out);
    let run = bench(&node, &small);
    assert_eq!(run.code, 0, "blocks that have a place go on: {}{}", run.out, run.err);
    let run = node.run(&["pool", "show", "hot"]);
    assert!(run.out.contains("no free extent"), "{}", run.out);
    let told = |part: &str| node.log().matches(part).count();
    assert_eq!((told("pool 'hot' is full"), told("has room again")), (1, 0), "{}", node.log());
    let status = node.run(&["pool", "status", "hot"]);
    assert!(status.code == 1 && status.out.contains("full"), "{}", status.out);
    node.ok(&["subsystem", "remove-namespace", NQN, "1", "--force"]);
    node.ok(&["volume", "delete", "large"]);
    let free = node.json(&["pool", "show", "hot"])["open"]["total"]["free_extents"].as_u64().unwrap();
    assert!(free > 50, "{free}");
    let told = |part: &str| node.log().matches(part).count();
    assert_eq!((told("pool 'hot' is full"), told("pool 'hot' has room again")), (1, 1), "{}", node.log());
    node.ok(&["pool", "status", "hot"]);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn a_pool_whose_volumes_have_all_that_they_may_need_is_not_full() {
    let node = node(&POOL.replace("capacity", "shards = 1\ncapacity"));
    let number = |key: &str| node.json(&["pool", "show", "hot"])["open"]["total"][key].as_u64().unwrap();
    let size = format!("{}MiB", number("free_extents") * 4);
    node.ok(&["volume", "create", "thick", "--pool", "hot", "--size", &size]);
    node.ok(&["subsystem", "add-namespace", NQN, "thick"]);
    let fill = ["--rw", "write", "--fill", "--bs", "1MiB", "--time", "100ms", "--warmup", "0s"];
    let run = bench(&node, &fill);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    assert_eq!(number("free_extents"), 0);
    node.ok(&["pool", "status", "hot"]);
    node.ok(&["status"]);
    node.ok(&["volume", "create", "thin", "--pool", "hot", "--size", "4MiB"]);
    let run = node.run(&["status"]);
    assert!(run.code == 1 && run.out.contains("no free extent in 1 of 1 shards"), "{}", run.out);
    node.ok(&["volume", "delete", "thin"]);
    node.ok(&["snapshot", "create", "thick@before"]);
    assert_eq!(node.run(&["pool", "status", "hot"]).code, 1, "a write now takes an extent");
}

#[test]
fn a_pool_is_full_with_its_first_shard() {
    let node = node_on(&DEVICES.replace("64MiB", "256MiB"), &POOL.replace("capacity", "shards = 2\ncapacity"));
    // Slices of 64 MiB go round the shards: those of volumes that are made one after the other to different ones.
    let names: Vec<String> = (0..16).map(|number| format!("v{number}")).collect();
    for name in &names {
        node.ok(&["volume", "create", name, "--pool", "hot", "--size", "64MiB"]);
        node.ok(&["subsystem", "add-namespace", NQN, name]);
    }
    let fill = |number: usize| {
        let nsid = (number + 1).to_string();
        let fill = ["--rw", "write", "--fill", "--bs", "1MiB", "--time", "100ms", "--warmup", "0s"];
        bench(&node, &[&["--nsid", &nsid][..], &fill].concat()).code
    };
    assert!((0..names.len()).step_by(2).any(|number| fill(number) != 0), "a shard takes no more");
    let pool = node.json(&["pool", "show", "hot"]);
    assert!(pool["open"]["total"]["free_extents"].as_u64().unwrap() > 0, "{pool}");
    assert_eq!((&pool["state"], pool["open"]["full_shards"].as_array().map(Vec::len)), (&json!("full"), Some(1)));
    let run = node.run(&["status"]);
    assert!(run.code == 1 && run.out.contains("no free extent in 1 of 2 shards"), "{}", run.out);
}

#[test]
fn a_log_in_memory_is_refused_unless_that_is_said() {
    let mut node = node("");
    let path = node.path("pmem").to_string_lossy().into_owned();
    let create = ["pool", "create", "p", "--log-pmem", &path, "--log-size", "64MiB", "--capacity", "big"];
    refused(&node, &create, 5, "would not survive a power loss");
    assert!(!std::path::Path::new(&path).exists(), "what was made for it is gone");
    // Of one that is there before nothing is left that would be in the way of the next.
    let kept = node.path("kept").to_string_lossy().into_owned();
    std::fs::File::create(&kept).unwrap().set_len(64 << 20).unwrap();
    let on_kept = create.map(|word| if word == path { &kept } else { word });
    refused(&node, &on_kept, 5, "would not survive a power loss");
    refused(&node, &create, 5, &path);
    assert!(std::path::Path::new(&kept).exists());
    node.ok(&[&create[..], &["--volatile"]].concat());
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "what hosts write is nobody else's to read");
    node.ok(&["volume", "create", "v", "--pool", "p", "--size", "64MiB"]);
    let problems = node.json(&["pool", "show", "p"])["problems"].to_string();
    assert!(problems.contains("does not survive"), "{problems}");
    node.kill();
    let big = node.path("big.img").to_string_lossy().into_owned();
    for devices in [&["p", "--config", &node.config()][..], &["--capacity", &big, "--log", &path]] {
        let run = remuda(&[&["pool", "check"], devices].concat());
        assert_eq!(run.code, 0, "{devices:?}: {}{}", run.out, run.err);
    }
    let log = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    log.set_len(1 << 20).unwrap();
    let run = remuda(&["pool", "check", "p", "--config", &node.config()]);
    assert_eq!(run.code, 9, "{}{}", run.out, run.err);
    assert!(run.err.contains("are wanted") && run.out.contains("without its log"), "{}{}", run.out, run.err);
    node.restart();
    let problems = node.json(&["pool", "show", "p"])["problems"].to_string();
    assert!(problems.contains("are wanted"), "{problems}");
}

#[test]
fn a_pool_on_what_keeps_nothing_is_refused_and_one_in_memory_is_warned_of() {
    let device = |name: &str, kind: &str| format!("[[device]]\nname = '{name}'\nkind = '{kind}'\nsize = '512MiB'\n");
    let devices = ["null", "mem"].map(|kind| device(kind, kind)).concat();
    let node = Node::start(&format!("{devices}{}[pool.p]\nlog = 'mem'\ncapacity = 'other'\n", device("other", "mem")));
    node.log_line("pool 'p': its log is in memory (device 'mem')");
    node.ok(&["device", "create", "log", "--kind", "mem", "size=64MiB"]);
    let why = "device 'null' keeps nothing of what is written to it";
    refused(&node, &["pool", "create", "q", "--log", "log", "--capacity", "null"], 2, why);
    node.ok(&["device", "create", "spare", "--kind", "mem", "size=512MiB"]);
    refused(&node, &["pool", "create", "q", "--log", "null", "--capacity", "spare"], 2, why);
    // What was refused is not in the way of what is right.
    node.ok(&["pool", "create", "q", "--log", "log", "--capacity", "spare"]);
}
