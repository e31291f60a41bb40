//! Mirrors and encrypted devices of a running node: legs that come back, keys that change and are destroyed.

use crate::common::{Node, Run, remuda};
use serde_json::{Value, json};

const NQN: &str = "nqn.2026-11.io.remuda:devices";

fn bench(node: &Node, more: &[&str]) -> Run {
    let status = node.status();
    let port = status["nvmf_listen"][0].as_str().unwrap().rsplit_once(':').unwrap().1.to_string();
    let base = ["--json", "bench", "nvmf", "--addr", "127.0.0.1", "--port", &port, "--nqn", NQN];
    let load = ["--rw", "randrw", "--verify", "--time", "200ms", "--warmup", "0s", "--qd", "4"];
    remuda(&[&base[..], &load[..], more].concat())
}

fn works(node: &Node) {
    let run = bench(node, &[]);
    assert_eq!(run.code, 0, "{}{}\n{}", run.out, run.err, node.log());
    assert_eq!(run.json()["verify"]["mismatches"], json!(0));
}

/// Waits until `condition` holds of a device.
fn until(node: &Node, name: &str, condition: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..1500 {
        let device = node.json(&["device", "show", name]);
        if condition(&device) {
            return device;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{}\n{}", node.json(&["device", "show", name]), node.log());
}

fn legs(device: &Value) -> Vec<&str> {
    device["mirror"]["legs"].as_array().unwrap().iter().map(|leg| leg["state"].as_str().unwrap()).collect()
}

fn is_whole(device: &Value) -> bool {
    device["mirror"]["degraded"] == json!(false)
}

fn export(volume_on: &str) -> String {
    format!(
        "[[volume]]\nname = 'v'\ndevice = '{volume_on}'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['v']\n"
    )
}

#[test]
fn a_mirror_waits_for_a_remote_leg_goes_on_without_it_when_told_and_takes_it_in_when_it_is_back() {
    let far_port = crate::common::free_port();
    let mut far = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:{far_port}']\n[[device]]\nname = 'f'\nkind = 'file'\npath = 'f.img'\nsize = '12MiB'\n\
         [[volume]]\nname = 'v'\ndevice = 'f'\n\
         [[subsystem]]\nnqn = '{NQN}:far'\nallow_any_host = true\nnamespaces = ['v']\n"
    ));
    let mut near = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'here'\nkind = 'file'\npath = 'here.img'\nsize = '12MiB'\n\
         [[device]]\nname = 'there'\nkind = 'nvmf'\naddress = '127.0.0.1:{far_port}'\nnqn = '{NQN}:far'\nloss_timeout = '500ms'\n\
         [[device]]\nname = 'pair'\nkind = 'mirror'\ndevices = ['here', 'there']\n{}",
        export("pair")
    ));
    until(&near, "pair", is_whole);
    works(&near);
    // The target dies under way: hosts go on with one leg, and the other one is taken in when it is back.
    far.kill();
    works(&near);
    assert_eq!(legs(&near.json(&["device", "show", "pair"])), ["in sync", "failed"]);
    assert!(near.status()["warnings"].to_string().contains("1 of 2 legs"));
    far.restart();
    until(&near, "pair", is_whole);
    works(&near);
    // The target is down when the node starts: it may have newer data, so the mirror waits.
    near.terminate();
    far.kill();
    near.restart();
    let waiting = near.json(&["device", "show", "pair"]);
    assert!(waiting["state"].as_str().unwrap().contains("may have newer writes"), "{waiting}");
    assert_eq!(near.run(&["device", "open", "pair"]).code, 5);
    near.ok(&["device", "open", "pair", "--degraded"]);
    assert_eq!(legs(&near.json(&["device", "show", "pair"])), ["in sync", "absent"]);
    works(&near);
    far.restart();
    let whole = until(&near, "pair", is_whole);
    assert_eq!(legs(&whole), ["in sync", "in sync"]);
    works(&near);
    let metrics = crate::common::http_get(near.status()["metrics"].as_str().unwrap());
    assert!(metrics.contains("remuda_mirror_leg_in_sync{name=\"pair\",leg=\"there\"} 1"), "{metrics}");
    assert!(metrics.contains("remuda_mirror_resync_left_regions{name=\"pair\"} 0"), "{metrics}");
    assert_eq!((near.terminate(), far.terminate()), (Some(0), Some(0)));
}

#[test]
fn a_remote_device_goes_by_the_access_states_of_its_paths_which_come_and_go() {
    let ports = [crate::common::free_port(), crate::common::free_port()];
    let [first, second] = ports.map(|port| format!("127.0.0.1:{port}"));
    let mut far = Node::start(&format!(
        "[nvmf]\nlisten = ['{first}', '{second}']\n[[device]]\nname = 'm'\nkind = 'mem'\nsize = '12MiB'\n\
         [[volume]]\nname = 'v'\ndevice = 'm'\n\
         [[subsystem]]\nnqn = '{NQN}:far'\nallow_any_host = true\nnamespaces = ['v']\n"
    ));
    let mut near = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'remote'\nkind = 'nvmf'\npaths = ['{first}', '{second}']\nnqn = '{NQN}:far'\n{}",
        export("remote")
    ));
    let states = |device: &Value| -> Vec<String> {
        let paths = device["paths"].as_array().unwrap().iter();
        paths.map(|path| path["state"].as_str().unwrap().to_string()).collect()
    };
    until(&near, "remote", |device| states(device) == ["optimized", "optimized"]);
    works(&near);
    far.ok(&["subsystem", "set-ana", &format!("{NQN}:far"), "inaccessible", "--port", &first]);
    let device = until(&near, "remote", |device| states(device) == ["inaccessible", "optimized"]);
    let before = device["paths"][0]["operations"].clone();
    let warnings = |node: &Node| node.json(&["status"])["warnings"].to_string();
    assert!(!warnings(&near).contains("remote"), "a path on standby is no trouble: {}", warnings(&near));
    works(&near);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let device = near.json(&["device", "show", "remote"]);
    assert_eq!(device["paths"][0]["operations"], before, "{device}");
    assert!(device["paths"][1]["operations"].as_u64().unwrap() > 0, "{device}");
    let shown = near.run(&["device", "show", "remote"]).out;
    assert!(shown.contains("inaccessible") && shown.contains(&second), "{shown}");
    let metrics = crate::common::http_get(near.status()["metrics"].as_str().unwrap());
    let line = |name: &str, path: &str, value: u64| format!("{name}{{name=\"remote\",path=\"{path}\"}} {value}\n");
    assert!(metrics.contains(&line("remuda_path_optimized", &first, 0)), "{metrics}");
    assert!(metrics.contains(&line("remuda_path_optimized", &second, 1)), "{metrics}");
    // The only path of use stays, also where one that does not work would come; another one goes and comes back.
    let nowhere = format!("127.0.0.1:{}", crate::common::free_port());
    for paths in ["paths=off".to_string(), format!("paths={nowhere}")] {
        let refused = near.run(&["device", "set", "remote", &paths]);
        assert!(refused.code != 0 && refused.err.contains(&second), "{}", refused.err);
        assert_eq!(states(&near.json(&["device", "show", "remote"])), ["inaccessible", "optimized"]);
    }
    far.ok(&["subsystem", "set-ana", &format!("{NQN}:far"), "optimized", "--port", &first]);
    until(&near, "remote", |device| states(device) == ["optimized", "optimized"]);
    near.ok(&["device", "set", "remote", "paths=off"]);
    assert_eq!(states(&near.json(&["device", "show", "remote"])), ["optimized"]);
    works(&near);
    // One that cannot be reached is added nonetheless; the device is open, with one path of two.
    near.ok(&["device", "set", "remote", &format!("paths={nowhere}")]);
    let device = near.json(&["device", "show", "remote"]);
    assert_eq!((&device["open"], &device["state"]), (&json!(true), &json!("open, 1 of 2 paths")), "{device}");
    let told = warnings(&near);
    assert!(told.contains(&format!("path {nowhere} is of no use")) && told.contains("cannot connect"), "{told}");
    let metrics = crate::common::http_get(near.status()["metrics"].as_str().unwrap());
    assert!(metrics.contains("remuda_device_open{name=\"remote\""), "{metrics}");
    let opens = metrics.lines().filter(|line| line.starts_with("remuda_device_open{name=\"remote\""));
    assert!(opens.clone().count() == 1 && opens.clone().all(|line| line.ends_with(" 1")), "{metrics}");
    near.ok(&["device", "set", "remote", &format!("paths={second}")]);
    until(&near, "remote", |device| states(device) == ["optimized", "optimized"]);
    works(&near);
    assert_eq!((near.terminate(), far.terminate()), (Some(0), Some(0)));
}

/// A target with one namespace of 12 MiB under this UUID.
fn far(port: u16, last_digit: u8, serial: &str) -> Node {
    Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:{port}']\n[[device]]\nname = 'd'\nkind = 'mem'\nsize = '12MiB'\n[[volume]]\nname = 'v'\ndevice = 'd'\n\
         [[subsystem]]\nnqn = '{NQN}:far'\nserial = '{serial}'\nallow_any_host = true\n\
         namespaces = [{{ nsid = 1, volume = 'v', uuid = '5ca1ab1e-0000-4000-8000-00000000000{last_digit}' }}]\n"
    ))
}

fn near(paths: &[u16]) -> String {
    let paths = paths.iter().map(|port| format!("'127.0.0.1:{port}'")).collect::<Vec<_>>().join(", ");
    format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n[[device]]\nname = 'remote'\nkind = 'nvmf'\npaths = [{paths}]\nnqn = '{NQN}:far'\n\
         loss_timeout = '500ms'\n{}",
        export("remote")
    )
}

#[test]
fn a_node_that_starts_uses_the_namespace_that_it_knows_and_another_one_by_command_alone() {
    let (ours, other) = (crate::common::free_port(), crate::common::free_port());
    let (mut first, mut second) = (far(ours, 1, "A"), far(other, 2, "B"));
    let mut node = Node::start(&near(&[ours]));
    until(&node, "remote", |device| device["open"] == json!(true));
    works(&node);
    assert_eq!(node.terminate(), Some(0));
    // The first path to answer leads to another namespace: it is not used, and says so.
    let config = std::fs::read_to_string(node.config()).unwrap();
    let both = format!("paths = ['127.0.0.1:{other}', '127.0.0.1:{ours}']");
    std::fs::write(node.config(), config.replace(&format!("paths = ['127.0.0.1:{ours}']"), &both)).unwrap();
    node.restart();
    let hint = "remuda device accept-namespace remote";
    let text = |device: &Value| device["paths"][0]["state"].as_str().unwrap_or_default().to_string();
    let device = until(&node, "remote", |device| text(device).contains(hint));
    assert_eq!((&device["state"], &device["paths"][1]["state"]), (&json!("open, 1 of 2 paths"), &json!("optimized")));
    for uuid in ["000000000001", "000000000002"] {
        assert!(text(&device).contains(uuid), "expected and found: {device}");
    }
    works(&node);
    let refused = node.run(&["device", "accept-namespace", "remote"]);
    assert!(refused.code != 0 && refused.err.contains(&ours.to_string()), "it is in use: {}", refused.err);
    // Nor does it take over when the other one goes.
    first.kill();
    until(&node, "remote", |device| device["open"] == json!(false));
    let refused = node.run(&["device", "accept-namespace", "remote"]);
    assert!(refused.code != 0 && refused.err.contains("restart the node"), "{}", refused.err);
    node.terminate();
    node.restart();
    let device = until(&node, "remote", |device| text(device).contains(hint));
    assert_eq!((&device["open"], &device["state"]), (&json!(false), &json!("connecting")));
    node.ok(&["device", "accept-namespace", "remote"]);
    until(&node, "remote", |device| text(device) == "optimized");
    works(&node);
    // It is what the node knows from now on.
    assert_eq!(node.terminate(), Some(0));
    first.restart();
    node.restart();
    until(&node, "remote", |device| device["paths"][1]["state"].as_str().is_some_and(|state| state.contains(hint)));
    works(&node);
    assert_eq!((node.terminate(), first.terminate(), second.terminate()), (Some(0), Some(0), Some(0)));
}

#[test]
fn paths_to_different_targets_with_volatile_caches_are_warned_of() {
    let ports = [crate::common::free_port(), crate::common::free_port()];
    // (of one serial number they pass for one target)
    for (serials, is_warned) in [(["A", "B"], true), (["A", "A"], false)] {
        let targets = [far(ports[0], 1, serials[0]), far(ports[1], 1, serials[1])];
        let node = Node::start(&near(&ports));
        until(&node, "remote", |device| device["state"] == json!("open"));
        let warned = node.log().matches("paths lead to different targets").count();
        assert_eq!(warned, usize::from(is_warned), "{}", node.log());
        drop((node, targets));
    }
}

#[test]
fn a_leg_that_failed_comes_back_by_command_and_one_with_writes_of_its_own_only_by_force() {
    let mut node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'a'\nkind = 'file'\npath = 'a.img'\nsize = '12MiB'\n\
         [[device]]\nname = 'b'\nkind = 'file'\npath = 'b.img'\nsize = '12MiB'\n\
         [[device]]\nname = 'good'\nkind = 'error'\ndevice = 'a'\n\
         [[device]]\nname = 'bad'\nkind = 'error'\ndevice = 'b'\n\
         [[device]]\nname = 'pair'\nkind = 'mirror'\ndevices = ['good', 'bad']\n{}",
        export("pair")
    ));
    until(&node, "pair", is_whole);
    node.ok(&["device", "set", "bad", "op=write", "rate=1"]);
    works(&node);
    assert_eq!(legs(&node.json(&["device", "show", "pair"])), ["in sync", "failed"]);
    assert_eq!(node.run(&["device", "rejoin", "pair", "bad"]).code, 1, "it fails still");
    node.ok(&["device", "set", "bad", "rate=off"]);
    let wrong = node.run(&["device", "rejoin", "pair", "b"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("good, bad"), "{}", wrong.err);
    // A region takes an hour at that rate, until there is none.
    node.ok(&["device", "set", "pair", "resync_rate=300"]);
    node.ok(&["device", "rejoin", "pair", "bad"]);
    works(&node);
    assert_eq!(legs(&node.json(&["device", "show", "pair"])), ["in sync", "copying"]);
    assert_eq!(node.run(&["device", "set", "pair", "devices=a"]).code, 2, "it is fixed");
    node.ok(&["device", "set", "pair", "resync_rate=off"]);
    until(&node, "pair", is_whole);
    works(&node);
    assert_eq!(node.run(&["device", "rejoin", "pair", "bad"]).code, 5, "it is in use");
    assert_eq!(node.run(&["device", "open", "pair"]).code, 5, "it is open");

    // Each leg goes on without the other, which cannot be read meanwhile.
    node.terminate();
    let config = std::fs::read_to_string(node.config()).unwrap();
    for (leg, disk) in [("bad", "b"), ("good", "a")] {
        let whole = format!("name = '{leg}'\nkind = 'error'\ndevice = '{disk}'\n");
        std::fs::write(node.config(), config.replace(&whole, &format!("{whole}op = 'read'\nrate = 1\n"))).unwrap();
        node.restart();
        let state = node.json(&["device", "show", "pair"])["state"].clone();
        assert!(state.as_str().unwrap().contains("may have newer writes"), "{state}");
        node.ok(&["device", "open", "pair", "--degraded"]);
        works(&node);
        node.terminate();
    }
    std::fs::write(node.config(), config).unwrap();
    node.restart();
    let split = node.json(&["device", "show", "pair"])["state"].clone();
    assert!(split.as_str().unwrap().contains("without each other"), "{split}");
    assert_eq!(node.run(&["device", "open", "pair", "--prefer", "b"]).code, 2);
    node.ok(&["device", "open", "pair", "--prefer", "bad"]);
    until(&node, "pair", is_whole);
    works(&node);
    assert_eq!(node.terminate(), Some(0));
}

#[test]
fn a_leg_that_holds_a_file_system_is_named_and_done_without_when_told() {
    let mut node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'a'\nkind = 'file'\npath = 'a.img'\nsize = '12MiB'\n\
         [[device]]\nname = 'b'\nkind = 'file'\npath = 'b.img'\nsize = '12MiB'\n\
         [[device]]\nname = 'pair'\nkind = 'mirror'\ndevices = ['a', 'b']\n{}",
        export("pair")
    ));
    until(&node, "pair", is_whole);
    works(&node);
    assert_eq!(node.terminate(), Some(0));
    let mut foreign = std::fs::read(node.path("b.img")).unwrap();
    foreign[..8192].fill(0);
    foreign[0x438..0x43A].copy_from_slice(b"\x53\xEF");
    std::fs::write(node.path("b.img"), &foreign).unwrap();
    node.restart();
    let state = node.json(&["device", "show", "pair"])["state"].to_string();
    let words = ["leg 'b' holds an ext2, ext3 or ext4 file system", "--degraded"];
    assert!(words.iter().all(|word| state.contains(word)), "{state}");
    assert_eq!(node.run(&["device", "open", "pair"]).code, 5);
    node.ok(&["device", "open", "pair", "--degraded"]);
    works(&node);
    let refused = node.run(&["device", "rejoin", "pair", "b"]);
    assert!(refused.code == 5 && refused.err.contains("--overwrite"), "{}", refused.err);
    assert!(std::fs::read(node.path("b.img")).unwrap() == foreign, "it is not written to");
    node.ok(&["device", "rejoin", "pair", "b", "--overwrite"]);
    until(&node, "pair", is_whole);
    works(&node);
    assert_eq!(node.terminate(), Some(0));
}

#[test]
fn a_pool_on_a_mirror_grows_with_it_and_stays_so_after_a_kill() {
    let mut node = Node::start(
        "[[device]]\nname = 'log'\nkind = 'file'\npath = 'log.img'\nsize = '64MiB'\n\
         [[device]]\nname = 'a'\nkind = 'file'\npath = 'a.img'\nsize = '300MiB'\n\
         [[device]]\nname = 'b'\nkind = 'file'\npath = 'b.img'\nsize = '300MiB'\n\
         [[device]]\nname = 'pair'\nkind = 'mirror'\ndevices = ['a', 'b']\n\
         [pool.hot]\nlog = 'log'\ncapacity = 'pair'\n",
    );
    let sizes = |node: &Node| {
        let pool = node.json(&["pool", "show", "hot"]);
        let pair = node.json(&["device", "show", "pair"])["size"].as_u64().unwrap();
        (pair, pool["open"]["capacity_bytes"].as_u64().unwrap())
    };
    let refused = |node: &Node, args: &[&str], code: i32, part: &str| {
        let run = node.run(args);
        assert!(run.code == code && run.err.contains(part), "{args:?}: {} {}", run.code, run.err);
    };
    let is_equal = |pair: &Value| pair["mirror"]["resync_left_regions"] == json!(0);
    until(&node, "pair", is_equal);
    let before = sizes(&node);
    let allocated = |node: &Node| {
        let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(node.path("b.img")).unwrap());
        blocks * 512
    };
    let allocated_before = allocated(&node);
    refused(&node, &["pool", "grow", "hot"], 6, "remuda device resize pair SIZE where its legs are files");
    refused(&node, &["device", "resize", "a", "600MiB"], 5, "resize that one: remuda device resize pair SIZE");
    refused(&node, &["device", "resize", "pair", "100MiB"], 5, "a pool does not shrink");
    node.ok(&["device", "resize", "pair", "600MiB"]);
    node.ok(&["pool", "grow", "hot"]);
    let grown = sizes(&node);
    assert!(grown.0 == 600 << 20 && grown.1 > before.1 + (280 << 20), "{before:?}, then {grown:?}");
    // Sparse files that are equal stay sparse.
    until(&node, "pair", is_equal);
    let added = allocated(&node) - allocated_before;
    assert!(added < 100 << 20, "{added} bytes of the second leg");
    node.kill();
    node.restart();
    until(&node, "pair", is_whole);
    assert_eq!(sizes(&node), grown);
    assert_eq!(node.terminate(), Some(0));
    // A leg that is lost has to be as large as the other one is by now.
    std::fs::remove_file(node.path("b.img")).unwrap();
    node.restart();
    node.run(&["device", "open", "pair", "--degraded"]);
    refused(&node, &["device", "resize", "pair", "700MiB"], 5, "it grows only with all its legs in sync");
    assert_eq!(node.terminate(), Some(0));
}

fn encrypted(origin: &str) -> Node {
    let safe = "[[device]]\nname = 'safe'\nkind = 'encrypt'\ndevice = 'f'\nkey_file = 'one.key'\n";
    let keys = [("one.key", &*"5a".repeat(32)), ("two.key", &*"6b".repeat(32)), ("three.key", &*"7c".repeat(32))];
    let config = |safe: &str, export: &str| {
        let file = "[[device]]\nname = 'f'\nkind = 'file'\npath = 'f.img'\nsize = '8MiB'\n";
        format!("[nvmf]\nlisten = ['127.0.0.1:0']\n{file}{safe}{export}")
    };
    match origin {
        "config" => Node::start_with(&keys, &config(safe, &export("safe"))),
        _ => {
            let node = Node::start_with(&keys, &config("", ""));
            let key = format!("key_file={}", node.path("one.key").display());
            node.ok(&["device", "create", "safe", "--kind", "encrypt", "device=f", &key]);
            node.ok(&["volume", "create", "v", "--device", "safe"]);
            node.ok(&["subsystem", "create", NQN, "--allow-any-host"]);
            node.ok(&["subsystem", "add-namespace", NQN, "v"]);
            node
        }
    }
}

#[test]
fn the_key_of_an_encrypted_device_changes_under_hosts_and_the_node_remembers_it() {
    for origin in ["config", "runtime"] {
        let mut node = encrypted(origin);
        works(&node);
        let two = node.path("two.key");
        assert_eq!(node.run(&["device", "change-key", "f", two.to_str().unwrap()]).code, 2, "it has no key");
        assert_eq!(node.run(&["device", "change-key", "safe", "/nonexistent.key"]).code, 1);
        node.ok(&["device", "change-key", "safe", two.to_str().unwrap()]);
        works(&node);
        // The first key is not needed any more, and opens nothing.
        std::fs::remove_file(node.path("one.key")).unwrap();
        node.kill();
        if origin == "config" {
            // The file is still named in the configuration, which is checked.
            std::fs::copy(node.path("three.key"), node.path("one.key")).unwrap();
        }
        node.restart();
        let safe = node.json(&["device", "show", "safe"]);
        assert_eq!(safe["definition"]["key_file"], json!(two.to_str().unwrap()), "{origin}");
        works(&node);
        if origin == "config" {
            node.terminate();
            let config = std::fs::read_to_string(node.config()).unwrap();
            std::fs::write(node.config(), config.replace("one.key", "three.key")).unwrap();
            let run = remuda(&["serve", "--config", &node.config()]);
            assert_eq!(run.code, 2, "another file in the configuration counts: {}", run.err);
            assert!(run.err.contains("key does not open"), "{}", run.err);
        }
    }
}

#[test]
fn erasing_with_a_new_key_keeps_the_device_in_use_and_the_key_file_good() {
    let mut node = encrypted("config");
    works(&node);
    assert_eq!(node.run(&["device", "erase", "safe", "--renew"]).code, 2);
    assert_eq!(node.run(&["device", "erase", "safe", "--renew", "--confirm", "safe"]).code, 5, "a volume is on it");
    node.ok(&["device", "erase", "safe", "--renew", "--confirm", "safe", "--in-use"]);
    assert_eq!(node.json(&["device", "show", "safe"])["state"], json!("open"));
    works(&node);
    node.terminate();
    node.restart();
    works(&node);
}

#[test]
fn erasing_wants_confirmation_and_leaves_nothing_that_can_be_read() {
    let mut node = encrypted("config");
    works(&node);
    assert_eq!(node.run(&["device", "erase", "safe"]).code, 2);
    assert_eq!(node.run(&["device", "erase", "safe", "--confirm", "safe"]).code, 5, "a volume is on it");
    assert_eq!(node.run(&["device", "erase", "safe", "--confirm", "save", "--in-use"]).code, 2);
    works(&node);
    node.ok(&["device", "erase", "safe", "--confirm", "safe", "--in-use"]);
    assert_eq!(node.json(&["device", "show", "safe"])["state"], json!("erased"));
    assert_ne!(bench(&node, &[]).code, 0);
    // The key file is still there and opens nothing; the node starts all the same.
    node.terminate();
    node.restart();
    let state = node.json(&["device", "show", "safe"])["state"].clone();
    assert!(state.as_str().unwrap().contains("erased"), "{state}");
    assert_ne!(bench(&node, &[]).code, 0);
    assert_eq!(node.run(&["device", "open", "safe"]).code, 5);
    assert_eq!(node.terminate(), Some(0));
}

#[test]
fn a_file_that_has_vanished_is_not_replaced_by_an_empty_one() {
    let mut node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'a'\nkind = 'file'\npath = 'a.img'\nsize = '12MiB'\n\
         [[device]]\nname = 'b'\nkind = 'file'\npath = 'b.img'\nsize = '12MiB'\n\
         [[device]]\nname = 'm'\nkind = 'mirror'\ndevices = ['a', 'b']\nstart_degraded = true\n{}",
        export("m")
    ));
    let other = node.path("other.img");
    node.ok(&["device", "create", "other", "--kind", "file", &format!("path={}", other.display()), "size=8MiB"]);
    works(&node);
    assert_eq!(node.terminate(), Some(0));
    // As if what is mounted there were not.
    let moved = node.path("moved");
    std::fs::rename(node.path("b.img"), &moved).unwrap();
    std::fs::remove_file(&other).unwrap();
    node.restart();
    assert_eq!(legs(&node.json(&["device", "show", "m"])), ["in sync", "absent"]);
    for name in ["b", "other"] {
        let state = node.json(&["device", "show", name])["state"].to_string();
        assert!(state.contains("is gone") && state.contains("truncate -s SIZE"), "{state}");
    }
    assert!(!node.path("b.img").exists() && !other.exists());
    works(&node);
    // What is short comes from somewhere, and is not made longer.
    assert_eq!(node.terminate(), Some(0));
    for (path, bytes) in [(node.path("b.img"), 8u64 << 20), (other.clone(), 4 << 20)] {
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    }
    node.restart();
    for (name, path, words) in
        [("b", node.path("b.img"), "has 8 MiB and had 12 MiB"), ("other", other.clone(), "had 8 MiB")]
    {
        let state = node.json(&["device", "show", name])["state"].to_string();
        assert!(state.contains(words) && state.contains("truncate -s"), "{state}");
        assert!(std::fs::metadata(path).unwrap().len() < 9 << 20);
    }
    works(&node);
    std::fs::rename(&moved, node.path("b.img")).unwrap();
    assert_eq!(node.terminate(), Some(0));
    node.restart();
    until(&node, "m", is_whole);
    works(&node);
}

#[test]
fn a_file_that_is_something_else_is_left_alone() {
    let node = Node::start("");
    for (name, bytes, words) in
        [("small", 100u64, "it may be something else"), ("text", 9000, "it may be something else")]
    {
        let path = node.path(name);
        std::fs::write(&path, vec![b'x'; bytes as usize]).unwrap();
        let path = format!("path={}", path.display());
        let run = node.run(&["device", "create", name, "--kind", "file", &path, "size=1MiB"]);
        assert!(run.code == 1 && run.err.contains(words), "{}{}", run.out, run.err);
        assert_eq!(std::fs::metadata(node.path(name)).unwrap().len(), bytes);
    }
    let path = format!("path={}", node.path("small").display());
    let run = node.run(&["device", "create", "small", "--kind", "file", &path]);
    assert!(run.code != 0 && run.err.contains("has 100 bytes, which is less than a block"), "{}", run.err);
}

#[test]
fn a_file_that_is_cut_or_removed_while_it_is_used_is_a_problem() {
    let device =
        |name: &str| format!("[[device]]\nname = '{name}'\nkind = 'file'\npath = '{name}.img'\nsize = '8MiB'\n");
    let node = Node::start(&format!("{}{}", device("cut"), device("away")));
    assert_eq!(node.status()["warnings"], json!([]));
    std::fs::OpenOptions::new().write(true).open(node.path("cut.img")).unwrap().set_len(4 << 20).unwrap();
    std::fs::remove_file(node.path("away.img")).unwrap();
    let told = |words: &str| {
        let warnings = node.status()["warnings"].as_array().unwrap().clone();
        warnings.iter().any(|warning| warning.as_str().unwrap().contains(words))
    };
    let began = std::time::Instant::now();
    while !(told("'cut': its file") && told("'away': its file") && told("has 4 MiB by now and had 8 MiB")) {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{}", node.status());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
