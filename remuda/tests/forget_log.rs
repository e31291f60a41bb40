//! Giving up a log through the built program while that takes its time: what goes on meanwhile, what is refused, and how it ends
//! before its end.

use crate::common::pools::{DEVICES, NQN, bench, node_on, refused};
use crate::common::{BINARY, Node, Run, http_get};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The capacity device of a pool that can be made slow.
const SLOW: &str = "[[device]]\nname = 'slow'\nkind = 'delay'\ndevice = 'big'\n";
const HOT: &str = "[pool.hot]\nlog = 'log'\ncapacity = 'slow'\n";
const SHAPED: &str = "[pool.hot]\nlog = 'log'\ncapacity = 'slow'\nshape = 'shaped'\n";
/// Longest wait for what happens in a moment.
const SOON: Duration = Duration::from_secs(20);

/// A pool whose log is a blank file, with 16 MiB of a volume on the capacity device and the first of these newer in the lost log.
fn without_log(pool: &str) -> Node {
    let devices = DEVICES.replace("512MiB", "256MiB");
    let volume = "[[volume]]\nname = 'v'\npool = 'hot'\nsize = '64MiB'\n";
    let mut node = node_on(&devices, &format!("{SLOW}{pool}{volume}"));
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let fill = ["--rw", "write", "--fill", "--bs", "64k", "--range", "16MiB", "--time", "10ms", "--warmup", "0s"];
    assert_eq!(bench(&node, &fill).code, 0);
    node.ok(&["pool", "settle", "hot"]);
    node.kill();
    blank_log(&node);
    node.restart();
    node
}

fn blank_log(node: &Node) {
    std::fs::remove_file(node.path("log.img")).unwrap();
    std::fs::File::create(node.path("log.img")).unwrap().set_len(64 << 20).unwrap();
}

/// What giving up the log asks of the capacity device takes long from now on, or no longer.
fn slow(node: &Node, time: &str) {
    node.ok(&["device", "set", "slow", &format!("read={time}"), &format!("write={time}")]);
}

fn begin(node: &Node) {
    let begun = node.json(&["rpc", "pool.forget_log", r#"{"name": "hot", "lose_data": true}"#]);
    assert_eq!((&begun["running"], &begun["report"]), (&json!(true), &Value::Null), "{begun}");
}

fn progress(node: &Node) -> Value {
    node.json(&["pool", "forget-log", "hot", "--status"])
}

/// Waits until some of it has been done, and not all.
fn is_in_the_middle(node: &Node, counter: &str) {
    let began = Instant::now();
    loop {
        let progress = progress(node);
        assert_eq!(progress["running"], json!(true), "{progress}");
        if progress["steps"][counter].as_u64().unwrap() > 0 {
            return;
        }
        assert!(began.elapsed() < SOON, "{progress}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ended(node: &Node) -> Value {
    let began = Instant::now();
    loop {
        let progress = progress(node);
        if progress["running"] == json!(false) {
            return progress["report"].clone();
        }
        assert!(began.elapsed() < SOON, "{progress}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn everything_is_there(node: &Node) {
    let scrub = node.run(&["--json", "pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
    assert_eq!((scrub.code, &scrub.json()["good_bytes"]), (0, &json!(16 << 20)), "{}", scrub.out);
}

#[test]
fn the_node_goes_on_meanwhile_and_refuses_what_would_be_in_the_way() {
    let node = without_log(SHAPED);
    refused(&node, &["pool", "forget-log", "hot", "--status"], 4, "no log of it was given up");
    let foreseen = node.run(&["pool", "forget-log", "hot"]);
    assert!(foreseen.code == 2 && foreseen.err.contains("only doing it tells"), "{}", foreseen.err);
    slow(&node, "20ms");
    begin(&node);
    is_in_the_middle(&node, "bands_read");
    for command in [
        &["pool", "forget-log", "hot", "--yes-lose-data"][..],
        &["pool", "forget-log", "hot"],
        &["pool", "open", "hot"],
        &["pool", "check", "hot"],
        &["pool", "scrub", "hot"],
        &["pool", "grow", "hot"],
        &["volume", "create", "w", "--pool", "hot", "--size", "1MiB"],
        &["device", "resize", "log", "128MiB"],
    ] {
        refused(&node, command, 5, "its log is being given up");
    }
    // Another pool comes to be and is used.
    for name in ["log2", "big2"] {
        let path = format!("path={}", node.path(name).to_string_lossy());
        node.ok(&["device", "create", name, "--kind", "file", &path, "size=256MiB"]);
    }
    node.ok(&["pool", "create", "other", "--log", "log2", "--capacity", "big2"]);
    node.ok(&["volume", "create", "o", "--pool", "other", "--size", "64MiB"]);
    let shown = node.json(&["pool", "show", "hot"]);
    assert_eq!(shown["state"], json!("forgetting"), "{shown}");
    assert!(shown["forgetting"]["done_share"].as_f64().unwrap() < 1.0, "{shown}");
    let text = node.run(&["pool", "show", "hot"]).out;
    assert!(text.contains("giving up its log") && text.contains("bands read"), "{text}");
    let metrics = http_get(node.status()["metrics"].as_str().unwrap());
    assert!(metrics.contains("remuda_pool_forget_log_ratio{pool=\"hot\"} 0."), "{metrics}");
    slow(&node, "off");
    let report = ended(&node);
    assert_eq!((&report["done"], &report["unfound_bytes"]), (&json!(true), &json!(0)), "{report}");
    assert_eq!(report["pool"]["state"], json!("open"), "{report}");
    everything_is_there(&node);
    let metrics = http_get(node.status()["metrics"].as_str().unwrap());
    assert!(!metrics.contains("remuda_pool_forget_log_ratio{"), "{metrics}");
}

/// Ends the node in the middle, starts it again and repeats what it was doing.
fn interrupted(pool: &str, counter: &str, end: fn(&mut Node)) {
    let mut node = without_log(pool);
    slow(&node, "20ms");
    begin(&node);
    is_in_the_middle(&node, counter);
    end(&mut node);
    node.restart();
    assert_eq!(node.json(&["pool", "show", "hot"])["state"], json!("closed"));
    slow(&node, "off");
    let loss = node.json(&["pool", "forget-log", "hot", "--yes-lose-data"]);
    assert_eq!(
        (&loss["done"], &loss["ranges"], &loss["unfound_bytes"]),
        (&json!(true), &json!(0), &json!(0)),
        "{loss}"
    );
    everything_is_there(&node);
}

fn stop(node: &mut Node) {
    let began = Instant::now();
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    assert!(began.elapsed() < SOON, "it does not wait for the end");
    assert!(node.log().contains("it was stopped before its end"), "{}", node.log());
}

#[test]
fn a_node_that_is_stopped_ends_it_and_it_can_be_repeated() {
    interrupted(SHAPED, "bands_read", stop);
}

#[test]
fn a_node_that_is_killed_in_the_middle_of_it_can_repeat_it() {
    interrupted(SHAPED, "bands_read", Node::kill);
}

#[test]
fn of_a_hot_pool_it_is_done_in_the_background_as_well() {
    let mut node = without_log(HOT);
    // Superblocks, roots and table pages are all that it writes.
    slow(&node, "500ms");
    begin(&node);
    refused(&node, &["pool", "open", "hot"], 5, "its log is being given up");
    let began = Instant::now();
    node.ok(&["device", "list"]);
    assert!(began.elapsed() < Duration::from_millis(400), "it waits for the pool");
    stop(&mut node);
    node.restart();
    let loss = node.json(&["pool", "forget-log", "hot", "--yes-lose-data"]);
    assert_eq!((&loss["done"], &loss["unfound_bytes"]), (&json!(true), &json!(0)), "{loss}");
    everything_is_there(&node);
}

#[test]
fn a_client_that_goes_away_ends_nothing_and_the_new_log_is_nobody_elses_meanwhile() {
    let mut node = node_on(&DEVICES.replace("512MiB", "256MiB"), SLOW);
    node.ok(&["pool", "create", "hot", "--log", "log", "--capacity", "slow", "--shape", "shaped"]);
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "64MiB"]);
    let path = format!("path={}", node.path("new.img").to_string_lossy());
    node.ok(&["device", "create", "new", "--kind", "file", &path, "size=64MiB"]);
    node.kill();
    blank_log(&node);
    node.restart();
    slow(&node, "20ms");
    let args = ["--socket", &node.socket(), "pool", "forget-log", "hot", "--log", "new", "--yes-lose-data"];
    let mut client = Command::new(BINARY).args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while node.run(&["pool", "forget-log", "hot", "--status"]).code != 0 {
        assert!(began.elapsed() < SOON, "{}", node.log());
    }
    client.kill().unwrap();
    client.wait().unwrap();
    is_in_the_middle(&node, "bands_read");
    refused(&node, &["device", "delete", "new"], 5, "pool 'hot'");
    refused(&node, &["volume", "create", "w", "--device", "new"], 5, "pool 'hot'");
    slow(&node, "off");
    assert_eq!(ended(&node)["pool"]["definition"]["log"]["device"], json!("new"));
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    node.restart();
    node.ok(&["pool", "status"]);
}

#[test]
fn blocks_that_are_damaged_on_the_capacity_device_are_named_at_the_end() {
    let mut node = without_log(SHAPED);
    node.kill();
    let mut bytes = std::fs::read(node.path("big.img")).unwrap();
    // In the bands, where the volume is.
    bytes[4 << 20..12 << 20].fill(0xeb);
    std::fs::write(node.path("big.img"), bytes).unwrap();
    node.restart();
    let run = node.run(&["pool", "forget-log", "hot", "--yes-lose-data"]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    assert!(run.out.contains("damaged on the capacity device") && run.out.contains("volume 'v': "), "{}", run.out);
    let report = progress(&node)["report"].clone();
    let unfound = report["unfound_bytes"].as_u64().unwrap();
    assert!(unfound > 0 && unfound < 16 << 20, "{report}");
    let ranges = report["unfound"][0]["ranges"].as_array().unwrap();
    assert_eq!(ranges.iter().map(|range| range["bytes"].as_u64().unwrap()).sum::<u64>(), unfound, "{report}");
    let scrub = node.run(&["--json", "pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
    assert_eq!((scrub.code, scrub.json()["lost_blocks"].as_u64().unwrap() * 4096), (9, unfound), "{}", scrub.out);
}

#[test]
fn who_waits_hears_that_the_node_has_ended() {
    let mut node = without_log(SHAPED);
    slow(&node, "20ms");
    let socket = node.socket();
    let waits = std::thread::spawn(move || -> Run {
        crate::common::remuda(&["--socket", &socket, "pool", "forget-log", "hot", "--yes-lose-data"])
    });
    let began = Instant::now();
    while node.run(&["pool", "forget-log", "hot", "--status"]).code != 0 {
        assert!(began.elapsed() < SOON, "{}", node.log());
    }
    node.kill();
    let run = waits.join().unwrap();
    assert!(run.code == 3 && run.err.contains("may be repeated"), "{}{}", run.out, run.err);
}
