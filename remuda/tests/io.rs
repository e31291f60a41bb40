//! Data through the built program: a node, its NVMe/TCP target, and the host of `remuda bench` and `remuda demo`.

use crate::common::{Node, remuda};
use serde_json::{Value, json};

const NQN: &str = "nqn.2026-11.io.remuda:io";

fn node() -> Node {
    Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n\
         [[device]]\nname = 'f0'\nkind = 'file'\npath = 'f0.img'\nsize = '24MiB'\n\
         [[device]]\nname = 'f1'\nkind = 'file'\npath = 'f1.img'\nsize = '24MiB'\n\
         [[device]]\nname = 'pair'\nkind = 'mirror'\ndevices = ['f0', 'f1']\n\
         [[device]]\nname = 'sum'\nkind = 'checksum'\ndevice = 'pair'\n\
         [[volume]]\nname = 'a'\ndevice = 'm'\nsize = '16MiB'\n\
         [[volume]]\nname = 'b'\ndevice = 'sum'\nsize = '8MiB'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['a', 'b']\n"
    ))
}

fn port(node: &Node) -> String {
    let status = node.status();
    status["nvmf_listen"][0].as_str().unwrap().rsplit_once(':').unwrap().1.to_string()
}

fn bench(node: &Node, more: &[&str]) -> crate::common::Run {
    let port = port(node);
    let base = ["--json", "bench", "nvmf", "--addr", "127.0.0.1", "--port", &port, "--nqn", NQN];
    remuda(&[&base[..], more].concat())
}

fn good(run: &crate::common::Run) -> Value {
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    run.json()
}

#[test]
fn volumes_are_read_and_written_over_nvme_tcp() {
    let mut node = node();
    for (nsid, digests) in [("1", &[][..]), ("2", &["--header-digest", "--data-digest"])] {
        let load = ["--nsid", nsid, "--rw", "randrw", "--verify", "--time", "300ms", "--warmup", "50ms", "--qd", "8"];
        let report = good(&bench(&node, &[&load[..], digests].concat()));
        assert!(report["ios"].as_u64().unwrap() > 0 && report["verify"]["blocks_checked"].as_u64().unwrap() > 0);
        assert_eq!(report["verify"]["mismatches"], json!(0));
        for key in ["p50", "p99", "p999", "p9999", "max", "mean"] {
            assert!(report["lat_ns"][key].is_u64(), "{key}");
        }
        for key in ["iops", "bw_bytes", "cpu_ns_per_io", "steal_pct"] {
            assert!(report[key].is_number(), "{key}");
        }
    }
    let stats = node.json(&["stats"]);
    let volume = stats["objects"].as_array().unwrap().iter().find(|object| object["name"] == "b").unwrap();
    assert!(volume["write"]["count"].as_u64().unwrap() > 0, "{volume}");
    let metrics = crate::common::http_get(node.status()["metrics"].as_str().unwrap());
    let bucket = "remuda_io_latency_seconds_bucket{name=\"b\",kind=\"volume\",op=\"write\",le=\"+Inf\"}";
    assert!(metrics.contains(bucket), "{metrics}");
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn a_host_rides_through_a_killed_node_and_gives_up_on_a_lost_one() {
    let mut node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:{}']\n[[device]]\nname = 'f'\nkind = 'file'\npath = 'f.img'\nsize = '8MiB'\n\
         [[volume]]\nname = 'v'\ndevice = 'f'\n[[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['v']\n",
        crate::common::free_port()
    ));
    let (load, port) =
        (["--rw", "randrw", "--verify", "--time", "3s", "--warmup", "0s", "--loss-timeout"], port(&node));
    let run = |loss_timeout: &'static str| {
        let base = ["--json", "bench", "nvmf", "--addr", "127.0.0.1", "--port", &port, "--nqn", NQN];
        let args: Vec<String> = base.iter().chain(&load).chain(&[loss_timeout]).map(ToString::to_string).collect();
        std::thread::spawn(move || remuda(&args.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    let riding = run("20s");
    std::thread::sleep(std::time::Duration::from_millis(1000));
    node.kill();
    node.restart();
    let report = good(&riding.join().unwrap());
    assert_eq!((&report["errors"], &report["verify"]["mismatches"]), (&json!(0), &json!(0)), "{report}");
    let losing = run("1s");
    std::thread::sleep(std::time::Duration::from_millis(500));
    node.kill();
    let lost = losing.join().unwrap();
    assert_eq!(lost.code, 1);
    assert!(lost.json()["first_error"].as_str().is_some_and(|text| text.contains("gone")), "{}", lost.out);
}

#[test]
fn a_node_starts_while_the_target_of_a_remote_device_is_down_and_connects_later() {
    let far_port = crate::common::free_port();
    let mut far = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:{far_port}']\n[[device]]\nname = 'f'\nkind = 'file'\npath = 'f.img'\nsize = '8MiB'\n\
         [[volume]]\nname = 'v'\ndevice = 'f'\n[[subsystem]]\nnqn = '{NQN}:far'\nallow_any_host = true\nnamespaces = ['v']\n"
    ));
    let mut near = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'm'\nkind = 'mem'\nsize = '8MiB'\n\
         [[device]]\nname = 'r'\nkind = 'nvmf'\naddress = '127.0.0.1:{far_port}'\nnqn = '{NQN}:far'\n\
         [[device]]\nname = 'never'\nkind = 'nvmf'\naddress = '127.0.0.1:1'\nnqn = '{NQN}:never'\n\
         [[volume]]\nname = 'a'\ndevice = 'm'\n[[volume]]\nname = 'b'\ndevice = 'r'\nsize = '4MiB'\n\
         [[volume]]\nname = 'c'\ndevice = 'never'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['a', 'b', 'c']\n"
    ));
    let state = |node: &Node, name: &str| node.json(&["device", "show", name])["state"].as_str().unwrap().to_string();
    let load = |node: &Node, nsid: &str| {
        let load = ["--nsid", nsid, "--rw", "randrw", "--verify", "--time", "200ms", "--warmup", "0s", "--qd", "4"];
        good(&bench(node, &load))
    };
    assert_eq!(state(&near, "r"), "open");
    assert!(state(&near, "never").contains("refused"), "{}", state(&near, "never"));
    load(&near, "2");
    far.kill();
    near.kill();
    near.restart();
    assert_eq!(state(&near, "r"), "connecting");
    assert_eq!(near.json(&["device", "show", "r"])["size"], json!(8 << 20));
    load(&near, "1");
    let failed = bench(&near, &["--nsid", "2", "--rw", "randread", "--time", "200ms", "--warmup", "0s", "--qd", "1"]);
    assert_ne!(failed.code, 0, "{}", failed.out);
    far.restart();
    for _ in 0..600 {
        if state(&near, "r") == "open" {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(state(&near, "r"), "open", "{}", near.log());
    load(&near, "2");
    assert_eq!((near.terminate(), far.terminate()), (Some(0), Some(0)));
}

#[test]
fn a_remote_device_never_seen_before_appears_with_all_that_stands_on_it_when_its_target_comes_up() {
    let far_port = crate::common::free_port();
    let key = "[[device]]\nname = 'safe'\nkind = 'encrypt'\ndevice = 'sum'\nkey_file = 'key'\n";
    let mut near = Node::start_with(
        &[("key", &"5a".repeat(32))],
        &format!(
            "[nvmf]\nlisten = ['127.0.0.1:0']\n\
             [[device]]\nname = 'r'\nkind = 'nvmf'\naddress = '127.0.0.1:{far_port}'\nnqn = '{NQN}:far'\n\
             [[device]]\nname = 'sum'\nkind = 'checksum'\ndevice = 'r'\n{key}\
             [[volume]]\nname = 'v'\ndevice = 'safe'\nsize = '2MiB'\n\
             [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['v']\n"
        ),
    );
    let warnings = |node: &Node| node.status()["warnings"].as_array().unwrap().len();
    let load = ["--rw", "randrw", "--verify", "--time", "200ms", "--warmup", "0s", "--qd", "4"];
    assert_eq!(warnings(&near), 5, "three devices, a volume and a namespace: {}", near.log());
    assert_ne!(bench(&near, &load).code, 0);
    let mut far = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:{far_port}']\n[[device]]\nname = 'f'\nkind = 'file'\npath = 'f.img'\nsize = '8MiB'\n\
         [[volume]]\nname = 'v'\ndevice = 'f'\n[[subsystem]]\nnqn = '{NQN}:far'\nallow_any_host = true\nnamespaces = ['v']\n"
    ));
    let serves = |near: &Node| {
        for _ in 0..600 {
            if warnings(near) == 0 {
                return good(&bench(near, &load));
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("{}", near.log());
    };
    serves(&near);
    let uuid = near.json(&["volume", "show", "v"])["uuid"].clone();
    // Now it has been seen: the filters above wait for it too.
    far.kill();
    near.kill();
    near.restart();
    assert_eq!(near.json(&["device", "show", "r"])["state"], json!("connecting"));
    far.restart();
    serves(&near);
    assert_eq!(near.json(&["volume", "show", "v"])["uuid"], uuid);
    assert_eq!((near.terminate(), far.terminate()), (Some(0), Some(0)));
}

/// Waits until `condition` holds of what the node counts for a volume.
fn until(node: &Node, volume: &str, condition: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..1500 {
        let stats = node.json(&["stats"]);
        let all = stats["objects"].as_array().unwrap();
        let object = all.iter().find(|object| object["name"] == volume && object["kind"] == "volume").unwrap();
        if condition(object) {
            return object.clone();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{}", node.log());
}

fn count(volume: &Value, what: &str) -> u64 {
    volume["ops"].as_array().unwrap().iter().map(|op| op[what].as_u64().unwrap()).sum()
}

#[test]
fn parameters_of_devices_change_while_hosts_use_them() {
    let mut node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'm'\nkind = 'mem'\nsize = '8MiB'\n\
         [[device]]\nname = 'slow'\nkind = 'delay'\ndevice = 'm'\n\
         [[device]]\nname = 'bad'\nkind = 'error'\ndevice = 'slow'\n\
         [[volume]]\nname = 'v'\ndevice = 'bad'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['v']\n"
    ));
    let port = port(&node);
    let load = std::thread::spawn(move || {
        let base = ["--json", "bench", "nvmf", "--addr", "127.0.0.1", "--port", &port, "--nqn", NQN];
        remuda(&[&base[..], &["--rw", "randread", "--qd", "4", "--time", "4s", "--warmup", "0s"]].concat())
    });
    let busy = until(&node, "v", |volume| count(volume, "ops") > 1000);
    assert_eq!(count(&busy, "errors"), 0);
    node.ok(&["device", "set", "bad", "op=read", "rate=0.5"]);
    until(&node, "v", |volume| count(volume, "errors") > 10);
    node.ok(&["device", "set", "bad", "rate=off"]);
    let healed = until(&node, "v", |_| true);
    // What was under way when the rule went may still fail.
    let after = until(&node, "v", |volume| count(volume, "ops") > count(&healed, "ops") + 1000);
    assert!(count(&after, "errors") <= count(&healed, "errors") + 4);
    // Held up for an hour, and let go: the load ends as it should.
    node.ok(&["device", "set", "slow", "read=1h"]);
    let held = until(&node, "v", |volume| volume["depth"] == json!(4));
    assert_eq!(node.json(&["device", "show", "slow"])["definition"]["read_ns"], json!(3_600_000_000_000u64));
    node.ok(&["device", "set", "slow", "read=off"]);
    until(&node, "v", |volume| count(volume, "ops") >= count(&held, "ops") + 4);
    assert!(load.join().unwrap().json()["errors"].as_u64().unwrap() > 10);

    let wrong = node.run(&["device", "set", "slow", "raed=1ms"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("'slow'") && wrong.err.contains("did you mean 'read'?"), "{}", wrong.err);
    assert_eq!(node.run(&["device", "set", "m", "size=1GiB"]).code, 2);
    assert_eq!(node.run(&["device", "set", "slwo", "read=1ms"]).code, 4);

    // A device of the file starts with the file again, one made by command as it was left.
    node.ok(&["device", "create", "n", "--kind", "mem", "size=8MiB"]);
    node.ok(&["device", "create", "limit", "--kind", "rate-limit", "device=n", "iops=10"]);
    node.ok(&["device", "set", "limit", "iops=off", "bandwidth=3MiB"]);
    node.ok(&["device", "set", "slow", "write=7ms"]);
    assert_eq!(node.json(&["device", "show", "slow"])["differs_from_file"], json!(true));
    node.kill();
    node.restart();
    let slow = node.json(&["device", "show", "slow"]);
    assert_eq!((&slow["definition"]["write_ns"], &slow["differs_from_file"]), (&json!(0), &json!(false)));
    let limit = node.json(&["device", "show", "limit"])["definition"].clone();
    assert_eq!((&limit["iops"], &limit["bandwidth"]), (&Value::Null, &json!(3 << 20)));
}

#[test]
fn a_host_that_is_not_allowed_is_refused() {
    let node = node();
    node.ok(&["host", "disallow", NQN, "--any"]);
    let run = bench(&node, &["--time", "100ms"]);
    assert_eq!(run.code, 1, "{}", run.out);
    let host = "nqn.2026-11.org.example:host";
    node.ok(&["host", "allow", NQN, host]);
    good(&bench(&node, &["--time", "100ms", "--warmup", "0s", "--host-nqn", host]));
}

#[test]
fn namespaces_come_and_go_while_the_node_runs() {
    let node = node();
    node.ok(&["volume", "create", "c", "--device", "m", "--size", "4MiB"]);
    let load = ["--nsid", "3", "--time", "100ms", "--warmup", "0s"];
    assert_eq!(bench(&node, &load).code, 1);
    node.ok(&["subsystem", "add-namespace", NQN, "c"]);
    assert_eq!(good(&bench(&node, &load))["parameters"]["size"], json!(4 << 20));
    node.ok(&["volume", "resize", "c", "+4MiB"]);
    assert_eq!(good(&bench(&node, &load))["parameters"]["size"], json!(8 << 20));
    node.ok(&["subsystem", "remove-namespace", NQN, "3", "--force"]);
    assert_eq!(bench(&node, &load).code, 1);
}

#[test]
fn a_benchmark_reports_what_was_asked() {
    let device = ["--json", "bench", "device", "--kind", "mem", "size=8MiB"];
    let run = |more: &[&str]| good(&remuda(&[&device[..], &["--time", "200ms", "--warmup", "0s"], more].concat()));
    let report = run(&["--rw", "randwrite", "--zipf", "1.2", "--bs", "16k", "--qd", "4", "--jobs", "2"]);
    assert_eq!((&report["read"]["ios"], &report["parameters"]["bs"]), (&json!(0), &json!(16384)));
    let report = run(&["--rw", "randread", "--rate", "1000"]);
    let iops = report["iops"].as_f64().unwrap();
    assert!((700.0..=1100.0).contains(&iops), "an open loop keeps its rate: {iops}");
    let report = run(&["--rw", "randread", "--verify"]);
    assert!(report["verify"]["blocks_checked"].as_u64().unwrap() >= 2048);
    assert_eq!(remuda(&[&device[..], &["--bs", "1000"]].concat()).code, 2);
    assert_eq!(remuda(&["bench", "device", "--kind", "meme", "size=1M"]).code, 2);
}

#[test]
fn verification_finds_a_device_that_loses_writes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    let device =
        "[[device]]\nname = 'm'\nkind = 'mem'\nsize = '1MiB'\n[[device]]\nname = 'e'\nkind = 'error'\ndevice = 'm'\n";
    for fault in ["lose", "flip-bit"] {
        std::fs::write(&file, format!("{device}op = 'write'\nrate = 0.01\nfault = '{fault}'\n")).unwrap();
        let config = file.to_str().unwrap();
        let load = ["--rw", "randrw", "--verify", "--time", "200ms", "--warmup", "0s"];
        let run = remuda(&[&["--json", "bench", "device", "--config", config, "--device", "e"], &load[..]].concat());
        assert_eq!(run.code, 1);
        assert!(run.json()["verify"]["mismatches"].as_u64().unwrap() > 0, "{}", run.out);
    }
}

#[test]
fn the_demo_loses_nothing_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("sub")).unwrap();
    for index in 0..40u8 {
        std::fs::write(tree.join(format!("sub/{index}")), vec![index; 20_000]).unwrap();
    }
    let place = dir.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let paths = [tree.to_str().unwrap(), place.to_str().unwrap()];
    let run = remuda(&["--json", "demo", "--from", paths[0], "--dir", paths[1], "--size-limit", "1MiB"]);
    let report = good(&run);
    assert_eq!((&report["verified"]["files"], &report["verified"]["file_bytes"]), (&json!(40), &json!(800_000)));
    assert!(report["verified"]["small_writes_flushed"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
}

/// Runs a command in the background until `ready` says so, then sends it SIGINT; gives its exit code.
fn interrupted(args: &[&str], ready: impl Fn() -> bool) -> Option<i32> {
    use std::process::{Command, Stdio};
    let mut command = Command::new(env!("CARGO_BIN_EXE_remuda"));
    let mut child = command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let began = std::time::Instant::now();
    while !ready() {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{args:?} did not get that far");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    child.wait().unwrap().code()
}

#[test]
fn an_interrupted_demo_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let begun = || std::fs::read_dir(path).unwrap().flatten().any(|entry| entry.path().join("node.sock").exists());
    let code = interrupted(&["demo", "--from", "/usr/share", "--size-limit", "8MiB", "--dir", path], begun);
    assert_eq!((code, std::fs::read_dir(path).unwrap().count()), (Some(130), 0));
}

#[test]
fn dev_runs_a_node_and_brings_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("play");
    let (place, socket) = (path.to_str().unwrap(), path.join("remuda.sock"));
    let socket = socket.to_str().unwrap();
    let answers = || remuda(&["--socket", socket, "status"]).code == 0;
    let make = || {
        answers()
            && remuda(&["--socket", socket, "volume", "create", "mine", "--pool", "hot", "--size", "1GiB"]).code == 0
    };
    assert_eq!(interrupted(&["dev", "--dir", place], make), Some(0));
    let there = || answers() && remuda(&["--socket", socket, "volume", "show", "mine"]).code == 0;
    assert_eq!(interrupted(&["dev", "--dir", place], there), Some(0));
}

#[test]
fn simulated_scenarios_run_by_name_and_seed() {
    let list = remuda(&["--json", "sim", "list"]).json();
    let name = list[0]["name"].as_str().unwrap();
    let run = || remuda(&["--json", "sim", "run", "--scenario", name, "--seed", "3"]);
    let (first, second) = (good(&run()), good(&run()));
    assert_eq!(first["hash"], second["hash"]);
    assert_eq!(good(&remuda(&["--json", "sim", "run", "--scenario", name, "--seeds", "0..3"]))["runs"], json!(3));
    assert_eq!(remuda(&["sim", "run", "--scenario", "nothing", "--seed", "3"]).code, 4);
}
