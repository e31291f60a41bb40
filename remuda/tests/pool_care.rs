//! What an operator does with hot pools through the built program: checks, scrubs, growth, a lost log.

use crate::common::pools::{DEVICES, NQN, POOL, bench, look, look_is_clean, look_is_degraded, node, node_on, refused};
use crate::common::{Node, Run, remuda};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

/// A pool of one shard with a volume 'v', shown to hosts, that has 16 MiB of content on the capacity device.
fn filled(more: &str) -> Node {
    // Whole images are compared: the smallest will do.
    let devices = DEVICES.replace("512MiB", "256MiB");
    let node = node_on(&devices, &format!("{more}[[volume]]\nname = 'v'\npool = 'hot'\nsize = '64MiB'\n"));
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let fill = ["--rw", "write", "--fill", "--bs", "64k", "--range", "16MiB", "--time", "10ms", "--warmup", "0s"];
    let run = bench(&node, &fill);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    node.ok(&["pool", "settle", "hot"]);
    node
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

fn patch(path: &Path, change: impl FnOnce(&mut [u8])) {
    let mut bytes = read(path);
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// The last block of a capacity device that was ever written is one of a volume: metadata lie in front.
fn last_block(bytes: &[u8]) -> usize {
    bytes.chunks_exact(BLOCK).rposition(|block| block.iter().any(|byte| *byte != 0)).unwrap()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A check of the devices that the node's configuration names, while it does not run.
fn check(node: &Node, more: &[&str]) -> Run {
    remuda(&[&["--json", "pool", "check", "hot", "--config", &node.config()], more].concat())
}

fn ended(run: &Run, code: i32, verdict: &str) -> Value {
    assert_eq!(run.code, code, "{}{}", run.out, run.err);
    let report = run.json();
    assert_eq!(report["verdict"], json!(verdict), "{report}");
    report
}

#[test]
fn a_check_without_a_node_tells_clean_repaired_and_damaged_apart() {
    let mut node = filled(POOL);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    let (big, log) = (node.path("big.img"), node.path("log.img"));
    let report = ended(&check(&node, &["--data", "--payloads"]), 0, "clean");
    assert_eq!((&report["pool"], &report["counts"]["volumes"]), (&json!("hot"), &json!(1)));
    assert!(report["counts"]["data_blocks"].as_u64().unwrap() >= 4096, "{report}");

    patch(&big, |bytes| bytes[100] ^= 1);
    let before = (read(&big), read(&log));
    let run = remuda(&["pool", "check", "--capacity", &text(&big), "--log", &text(&log)]);
    assert_eq!(run.code, 9, "{}{}", run.out, run.err);
    assert!(run.out.contains("the other copy is valid") && run.out.contains("--repair"), "{}", run.out);
    assert!(before == (read(&big), read(&log)), "a check changes nothing");
    let report = ended(&check(&node, &["--repair"]), 8, "repaired");
    assert_eq!(report["findings"][0]["repaired"], json!(true), "{report}");
    ended(&check(&node, &["--repair"]), 0, "clean");

    let at = last_block(&read(&big)) * BLOCK;
    patch(&big, |bytes| bytes[at + 7] ^= 0x10);
    ended(&check(&node, &[]), 0, "clean");
    let report = ended(&check(&node, &["--data", "--repair"]), 9, "damaged");
    assert_eq!(report["counts"]["corrupt_blocks"], json!(1), "{report}");
    let run = remuda(&["pool", "check", "nothing", "--config", &node.config()]);
    assert_eq!(run.code, 4, "{}", run.err);
    let run = remuda(&["pool", "check"]);
    assert_eq!(run.code, 2, "{}", run.err);
}

/// Stops a node in the midst of writes, or after them.
fn stopped(node: &mut Node, kill: bool) {
    let fill =
        ["--rw", "randwrite", "--bs", "16k", "--range", "16MiB", "--time", "300ms", "--warmup", "0s", "--qd", "8"];
    let run = bench(node, &fill);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    if kill {
        node.kill();
    } else {
        assert_eq!(node.terminate(), Some(0), "{}", node.log());
    }
}

#[test]
fn a_check_that_does_not_repair_changes_nothing_after_a_stop_and_after_a_kill() {
    for pool in [POOL, &format!("{POOL}shape = 'shaped'\n")] {
        let mut node = filled(pool);
        for kill in [false, true] {
            stopped(&mut node, kill);
            look_is_clean(&node, "hot");
            let before = (read(&node.path("big.img")), read(&node.path("log.img")));
            let (big, log) = (text(&node.path("big.img")), text(&node.path("log.img")));
            let run = remuda(&["pool", "check", "--capacity", &big, "--log", &log, "--payloads", "--data"]);
            assert_eq!(run.code, 0, "{}{}", run.out, run.err);
            assert!(before == (read(&node.path("big.img")), read(&node.path("log.img"))));
            node.restart();
        }
    }
}

#[test]
fn a_check_on_mirrors_changes_nothing_and_tells_of_an_absent_leg() {
    let leg = |name: &str, size: &str| {
        format!("[[device]]\nname = '{name}'\nkind = 'file'\npath = '{name}.img'\nsize = '{size}'\n")
    };
    let mirror = |name: &str, size: &str| {
        let (one, other) = (format!("{name}-0"), format!("{name}-1"));
        let legs = leg(&one, size) + &leg(&other, size);
        format!("{legs}[[device]]\nname = '{name}'\nkind = 'mirror'\ndevices = ['{one}', '{other}']\n")
    };
    let devices = mirror("log", "72MiB") + &mirror("big", "264MiB");
    let mut node = node_on(&devices, &format!("{POOL}[[volume]]\nname = 'v'\npool = 'hot'\nsize = '64MiB'\n"));
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let legs = |node: &Node, mirror: &str| {
        let legs = node.json(&["device", "show", mirror])["mirror"]["legs"].as_array().unwrap().clone();
        legs.iter().map(|leg| leg["state"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    for (kill, out) in [(false, "big-1"), (true, "big-0"), (true, "log-1"), (false, "log-0")] {
        stopped(&mut node, kill);
        look_is_clean(&node, "hot");
        let (path, away) = (node.path(&format!("{out}.img")), node.path("away"));
        std::fs::rename(&path, &away).unwrap();
        let said = look_is_degraded(&node, "hot");
        let whole = &out[..3];
        assert!(said.contains(&format!("leg '{out}' (mirror '{whole}')")), "{said}");
        assert!(said.contains(&format!("{out}.img")) && said.contains("bring it back"), "{said}");
        let run = look(&node, "hot", &["--repair"]);
        let message = run.json()["error"]["message"].to_string();
        assert!(run.code == 5 && message.contains("--degraded"), "{}{}", run.out, run.err);
        std::fs::rename(&away, &path).unwrap();
        look_is_clean(&node, "hot");
        node.restart();
        assert_eq!([legs(&node, "big"), legs(&node, "log")], [["in sync"; 2]; 2], "{}", node.log());
        node.ok(&["pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
    }
}

#[test]
fn a_pool_that_is_open_is_not_checked() {
    let node = filled(POOL);
    refused(&node, &["pool", "check", "hot"], 5, "it is open");
    let run = check(&node, &[]);
    assert_eq!(run.code, 5, "{}{}", run.out, run.err);
    assert!(run.json()["error"]["message"].as_str().unwrap().contains("in use by the node"), "{}", run.out);
    let (big, log) = (text(&node.path("big.img")), text(&node.path("log.img")));
    let run = remuda(&["pool", "check", "--capacity", &big, "--log", &log, "--repair"]);
    assert_eq!(run.code, 5, "{}{}", run.out, run.err);
    assert!(run.err.contains("big.img") && run.err.contains("open and locked: by another process"), "{}", run.err);
    node.ok(&["pool", "status"]);
    let run = remuda(&["--socket", "/nowhere/r.sock", "pool", "check", "hot"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("--config FILE"), "{}", run.err);
}

#[test]
fn a_node_checks_a_pool_that_it_could_not_open() {
    let mut node = filled(POOL);
    node.kill();
    // Both superblocks of the log are gone; its segments and the other device know what they said.
    patch(&node.path("log.img"), |bytes| bytes[..2 * BLOCK].fill(0));
    node.restart();
    let shown = node.run(&["pool", "status", "hot"]);
    assert_eq!(shown.code, 1);
    for part in ["closed", "pool check --repair", "pool forget-log"] {
        assert!(shown.out.contains(part), "{}", shown.out);
    }
    let run = node.run(&["pool", "check", "hot"]);
    assert_eq!(run.code, 9, "{}{}", run.out, run.err);
    let run = node.run(&["--json", "pool", "check", "hot", "--repair", "--payloads"]);
    ended(&run, 8, "repaired");
    node.ok(&["pool", "open", "hot"]);
    let run = bench(&node, &["--rw", "randread", "--range", "16MiB", "--time", "100ms", "--warmup", "0s"]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
}

/// What is done to a device, the exit code of opening a pool on it, and words of the refusal.
type Unusable = (&'static str, fn(&mut [u8]), &'static str);

#[test]
fn devices_that_cannot_be_used_are_refused_with_the_reason_and_not_touched() {
    let mut node = filled(POOL);
    node.kill();
    let big = node.path("big.img");
    let good = read(&big);
    let foreign = |bytes: &mut [u8]| bytes.fill(0xeb);
    let damaged = |bytes: &mut [u8]| [100, BLOCK + 100].into_iter().for_each(|at| bytes[at] ^= 1);
    let newer = |bytes: &mut [u8]| {
        for block in bytes[..2 * BLOCK].chunks_exact_mut(BLOCK) {
            block[12] = 2;
            block[8..12].fill(0);
            let crc = base::crc32c(block);
            block[8..12].copy_from_slice(&crc.to_le_bytes());
        }
    };
    let cases: [Unusable; 3] = [
        ("holds no pool", foreign, "other data"),
        ("damaged", damaged, "checksum is wrong"),
        ("format 2", newer, "use the program that wrote it, or a newer one"),
    ];
    for (reason, change, finding) in cases {
        std::fs::write(&big, &good).unwrap();
        patch(&big, change);
        let (before, log) = (read(&big), read(&node.path("log.img")));
        node.restart();
        refused(&node, &["pool", "open", "hot"], 1, reason);
        let shown = node.json(&["pool", "show", "hot"]);
        let problem = shown["problems"][0].as_str().unwrap();
        assert!(problem.contains(reason) && problem.contains("'big'"), "{problem}");
        refused(&node, &["pool", "forget-log", "hot", "--yes-lose-data", "--force"], 1, "pool 'hot'");
        refused(&node, &["pool", "scrub", "hot"], 1, "it is not open");
        refused(&node, &["pool", "grow", "hot"], 1, "it is not open");
        let run = node.run(&["pool", "check", "hot"]);
        assert_eq!(run.code, 9, "{}{}", run.out, run.err);
        assert!(run.out.contains(finding), "{}", run.out);
        node.kill();
        let more: &[&str] = if reason == "damaged" { &[] } else { &["--repair"] };
        let report = ended(&check(&node, more), 9, "damaged");
        assert!(report["findings"].to_string().contains(finding), "{report}");
        assert!(read(&big) == before && read(&node.path("log.img")) == log, "{reason}: not a byte was changed");
    }
    std::fs::write(&big, &good).unwrap();
    patch(&big, damaged);
    let report = ended(&check(&node, &["--repair"]), 8, "repaired");
    assert!(report["findings"].to_string().contains("the log device knows what they said"), "{report}");
    node.restart();
    node.ok(&["pool", "status"]);
}

#[test]
fn a_scrub_names_the_volume_and_the_block_that_is_bad() {
    let mut node = filled(POOL);
    node.ok(&["pool", "scrub", "hot", "--rate", "1MiB"]);
    refused(&node, &["pool", "scrub", "hot", "--rate", "0"], 2, "rate");
    node.ok(&["pool", "scrub", "hot", "--stop"]);
    let stopped = node.json(&["pool", "scrub", "hot", "--status"]);
    assert_eq!(stopped["state"], json!("stopped"), "{stopped}");
    let done = node.json(&["pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
    assert_eq!((&done["state"], &done["corrupt_blocks"], &done["bad"]), (&json!("done"), &json!(0), &json!([])));
    assert_eq!(done["good_bytes"], json!(16 << 20), "{done}");

    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    let big = node.path("big.img");
    let at = last_block(&read(&big)) * BLOCK;
    patch(&big, |bytes| bytes[at + 7] ^= 0x10);
    node.restart();
    let never = node.run(&["rpc", "pool.check_report", r#"{"name": "hot"}"#]);
    assert!(never.code == 4 && never.err.contains("it was not checked"), "{}", never.err);
    let before = node.run(&["pool", "show", "hot"]);
    assert!(before.out.contains(" done 20") && before.out.contains("nothing bad"), "{}", before.out);
    let run = node.run(&["--json", "pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
    assert_eq!(run.code, 9, "{}{}", run.out, run.err);
    let bad = run.json()["bad"].as_array().unwrap().clone();
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert_eq!((&bad[0]["volume"], &bad[0]["blocks"], &bad[0]["lost"]), (&json!("v"), &json!(1), &json!(false)));
    assert!(bad[0]["lba"].as_u64().unwrap() < 4096, "{bad:?}");
    let run = node.run(&["pool", "scrub", "hot", "--status"]);
    let lba = format!("volume 'v': LBA {}", bad[0]["lba"]);
    assert!(run.out.contains(&lba) && run.out.contains("corrupt"), "{}", run.out);
    let shown = node.run(&["pool", "status", "hot"]);
    assert!(shown.out.contains("remuda pool scrub hot --status"), "{}", shown.out);
    let metrics = crate::common::http_get(node.status()["metrics"].as_str().unwrap());
    assert!(metrics.contains("remuda_pool_scrub_bad_blocks{pool=\"hot\",shard=\"0\"} 1\n"), "{metrics}");
    // What a snapshot has is bad in the volume as well, which shows it.
    node.ok(&["snapshot", "create", "v@s"]);
    let run = node.run(&["pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
    let (own, shown) = (format!("volume 'v@s': LBA {}", bad[0]["lba"]), format!("volume 'v': LBA {}", bad[0]["lba"]));
    assert!(run.out.contains(&own) && run.out.contains(&shown), "{}", run.out);
    assert!(run.out.contains("shown from 'v@s'") && run.out.contains("1 blocks corrupt"), "{}", run.out);
    node.ok(&["snapshot", "delete", "v@s"]);
    // Writing mends.
    let fill = ["--rw", "write", "--fill", "--bs", "64k", "--range", "16MiB", "--time", "10ms", "--warmup", "0s"];
    assert_eq!(bench(&node, &fill).code, 0);
    node.json(&["pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
}

#[test]
fn a_scrub_goes_on_after_a_restart_of_the_node_and_what_it_has_found_stays_known() {
    let mut node = filled(POOL);
    assert!(node.run(&["pool", "show", "hot"]).out.contains("none yet"));
    // A second for each of its four extents.
    node.ok(&["pool", "scrub", "hot", "--rate", "4MiB"]);
    let status = |node: &Node| node.json(&["pool", "scrub", "hot", "--status"]);
    let passed = |status: &Value| status["good_bytes"].as_u64().unwrap();
    let began = Instant::now();
    while status(&node)["extents_done"] == json!(0) {
        assert!(began.elapsed().as_secs() < 60, "{}", status(&node));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    let big = node.path("big.img");
    let at = last_block(&read(&big)) * BLOCK;
    patch(&big, |bytes| bytes[at + 7] ^= 0x10);
    node.restart();
    let found = status(&node);
    assert!(found["state"] == json!("running") && passed(&found) >= 4 << 20, "{found}");
    assert!(node.log().contains("scrub goes on"), "{}", node.log());
    let ended = node.run(&["--json", "pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
    assert_eq!(ended.code, 9, "{}", ended.err);
    let ended = ended.json();
    assert_eq!((&ended["corrupt_blocks"], passed(&ended)), (&json!(1), (16 << 20) - BLOCK as u64), "{ended}");
    assert!(ended["ended_s"].as_u64().is_some(), "{ended}");
    // Its end is noted by itself.
    node.log_line("scrub ended");
    node.kill();
    node.restart();
    let known = status(&node);
    assert_eq!((&known["state"], &known["bad"]), (&json!("done"), &ended["bad"]), "{known}");
    let metrics = crate::common::http_get(node.status()["metrics"].as_str().unwrap());
    let at = format!("remuda_pool_scrub_ended_timestamp_seconds{{pool=\"hot\"}} {}\n", known["ended_s"]);
    assert!(metrics.contains(&at), "{metrics}");
    // One that was killed, and one that was stopped.
    node.ok(&["pool", "scrub", "hot", "--rate", "1MiB"]);
    node.kill();
    node.restart();
    let found = status(&node);
    assert_eq!((&found["state"], &found["bad_before"]), (&json!("running"), &json!(1)), "{found}");
    node.ok(&["pool", "scrub", "hot", "--stop"]);
    node.kill();
    node.restart();
    assert_eq!(status(&node)["state"], json!("stopped"));
}

#[test]
fn a_pool_grows_with_its_capacity_device_while_it_is_used() {
    let mut node = node("");
    node.ok(&["pool", "create", "hot", "--log", "log", "--capacity", "big"]);
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "1GiB"]);
    let free = |node: &Node| node.json(&["pool", "show", "hot"])["open"]["total"]["free_bytes"].as_u64().unwrap();
    let before = free(&node);
    refused(&node, &["pool", "grow", "hot"], 6, "remuda device resize big SIZE");
    refused(&node, &["device", "resize", "log", "128MiB"], 5, "it is the log of pool 'hot'");
    refused(&node, &["device", "resize", "big", "256MiB"], 5, "does not shrink");
    let resized = node.run(&["device", "resize", "big", "1GiB"]);
    assert!(resized.code == 0 && resized.out.contains("remuda pool grow hot"), "{}{}", resized.out, resized.err);
    assert_eq!(free(&node), before, "the device alone");
    node.ok(&["pool", "grow", "hot"]);
    let after = free(&node);
    assert!(after > before + (480 << 20), "{before}, then {after}");
    node.kill();
    node.restart();
    let shown = node.json(&["pool", "show", "hot"]);
    assert_eq!((&shown["state"], &shown["open"]["capacity_bytes"]), (&json!("open"), &json!(1 << 30)), "{shown}");
    assert_eq!(free(&node), after);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

/// A pool with 16 MiB on the capacity device and something newer in its log, whose node was killed and whose log is gone.
fn without_log(more: &str) -> Node {
    let mut node = filled(more);
    node.json(&["pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
    node.log_line("scrub ended");
    let write = ["--rw", "randwrite", "--range", "1MiB", "--time", "100ms", "--warmup", "0s"];
    assert_eq!(bench(&node, &write).code, 0);
    node.kill();
    std::fs::remove_file(node.path("log.img")).unwrap();
    // A blank one in its place: a file that is missing is not made anew.
    std::fs::File::create(node.path("log.img")).unwrap().set_len(64 << 20).unwrap();
    node
}

#[test]
fn a_lost_log_is_given_up_and_what_was_in_it_is_an_error_until_it_is_written() {
    let mut node = without_log(POOL);
    node.restart();
    let shown = node.run(&["pool", "show", "hot"]);
    assert!(shown.out.contains("closed") && shown.out.contains("forget-log"), "{}", shown.out);
    let listed = node.run(&["pool", "list"]);
    assert!(listed.out.contains("closed") && listed.out.contains("forget-log"), "{}", listed.out);
    let (big, log) = (read(&node.path("big.img")), read(&node.path("log.img")));
    refused(&node, &["pool", "forget-log", "hot"], 2, "--yes-lose-data");
    refused(&node, &["pool", "forget-log", "hot"], 2, "volume 'v': 1 range,");
    assert!(big == read(&node.path("big.img")) && log == read(&node.path("log.img")), "it only says what it would do");
    let loss = node.json(&["pool", "forget-log", "hot", "--yes-lose-data"]);
    assert_eq!((&loss["done"], &loss["ranges"], &loss["pool"]["state"]), (&json!(true), &json!(1), &json!("open")));
    assert_eq!((&loss["bytes"], &loss["volumes"][0]["volume"]), (&json!(64 << 20), &json!("v")));
    let run = bench(&node, &["--rw", "randread", "--range", "1MiB", "--time", "100ms", "--warmup", "0s"]);
    assert_eq!(run.code, 1, "what may be stale is not read: {}", run.out);
    let before = node.json(&["pool", "scrub", "hot", "--status"]);
    assert_eq!(before["state"], json!("none"), "what was read before says nothing any more: {before}");
    let scrub = node.run(&["--json", "pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
    assert_eq!(scrub.code, 9, "{}", scrub.out);
    assert_eq!(scrub.json()["bad"][0]["lost"], json!(true), "{}", scrub.out);
    let fill = ["--rw", "randread", "--fill", "--range", "16MiB", "--time", "100ms", "--warmup", "0s"];
    let run = bench(&node, &fill);
    assert_eq!(run.code, 0, "writing mends: {}{}", run.out, run.err);
    refused(&node, &["pool", "forget-log", "hot", "--yes-lose-data"], 5, "it is open");
    node.kill();
    node.restart();
    node.ok(&["pool", "status"]);
}

#[test]
fn a_shaped_pool_whose_log_device_is_lost_gets_its_index_back() {
    let mut node = filled(&format!("{POOL}shape = 'shaped'\n"));
    node.kill();
    std::fs::remove_file(node.path("log.img")).unwrap();
    std::fs::File::create(node.path("log.img")).unwrap().set_len(64 << 20).unwrap();
    node.restart();
    let big = read(&node.path("big.img"));
    refused(&node, &["pool", "forget-log", "hot"], 2, "nothing is lost with the log");
    assert!(big == read(&node.path("big.img")), "it only says what it would do");
    let loss = node.json(&["pool", "forget-log", "hot", "--yes-lose-data"]);
    assert_eq!(
        (&loss["done"], &loss["ranges"], &loss["unfound_bytes"]),
        (&json!(true), &json!(0), &json!(0)),
        "{loss}"
    );
    let scrub = node.run(&["--json", "pool", "scrub", "hot", "--rate", "10GiB", "--wait"]);
    assert_eq!((scrub.code, &scrub.json()["good_bytes"]), (0, &json!(16 << 20)), "{}", scrub.out);
    let run = bench(&node, &["--rw", "randread", "--range", "16MiB", "--time", "100ms", "--warmup", "0s"]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
}

#[test]
fn the_log_of_a_configured_pool_is_given_up_for_the_one_that_the_file_names_by_then() {
    let more = "[[device]]\nname = 'log2'\nkind = 'file'\npath = 'log2.img'\nsize = '64MiB'\n";
    let mut node = without_log(&format!("{more}{POOL}"));
    node.restart();
    let text = std::fs::read_to_string(node.config()).unwrap();
    let log = read(&node.path("log.img"));
    refused(&node, &["pool", "forget-log", "hot", "--log", "log2", "--yes-lose-data"], 5, "name the new log there");
    std::fs::write(node.config(), format!("{text}[nodes]\n")).unwrap();
    refused(&node, &["pool", "forget-log", "hot", "--yes-lose-data"], 5, "remuda config check");
    std::fs::write(node.config(), text.replace("log = 'log'", "log = 'log2'")).unwrap();
    let loss = node.json(&["pool", "forget-log", "hot", "--yes-lose-data"]);
    assert_eq!((&loss["done"], &loss["pool"]["state"]), (&json!(true), &json!("open")), "{loss}");
    assert_eq!(loss["pool"]["definition"]["log"]["device"], json!("log2"), "{loss}");
    assert!(log == read(&node.path("log.img")), "the log of before was not touched");
    node.kill();
    node.restart();
    node.ok(&["pool", "status"]);
}

#[test]
fn a_log_is_given_up_for_another_device_and_for_none_that_holds_something() {
    let mut node = node("");
    node.ok(&["pool", "create", "hot", "--log", "log", "--capacity", "big"]);
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "64MiB"]);
    let new = text(&node.path("new.img"));
    node.ok(&["device", "create", "new", "--kind", "file", &format!("path={new}"), "size=64MiB"]);
    node.kill();
    patch(&node.path("log.img"), |bytes| bytes[..64 << 10].fill(0xeb));
    let log = read(&node.path("log.img"));
    node.restart();
    refused(&node, &["pool", "forget-log", "hot", "--yes-lose-data"], 5, "'log' is in use");
    refused(&node, &["pool", "forget-log", "hot", "--log", "big"], 5, "already used by");
    refused(&node, &["pool", "forget-log", "hot", "--log", "nothing"], 4, "no such object");
    assert!(log == read(&node.path("log.img")), "not a byte was changed");
    let loss = node.json(&["pool", "forget-log", "hot", "--log", "new", "--yes-lose-data"]);
    assert_eq!((&loss["ranges"], &loss["pool"]["definition"]["log"]["device"]), (&json!(0), &json!("new")), "{loss}");
    node.kill();
    node.restart();
    node.ok(&["pool", "status"]);
    assert_eq!(node.json(&["pool", "list"])[0]["definition"]["log"]["device"], json!("new"));
    refused(&node, &["device", "delete", "new"], 5, "pool 'hot'");
    let devices = node.json(&["device", "list"]);
    let log = devices.as_array().unwrap().iter().find(|device| device["name"] == "log").unwrap();
    assert_eq!(log["used_by"], json!([]), "{log}");
}

#[test]
fn the_log_of_a_configured_pool_is_named_in_the_file() {
    let more = format!("{POOL}[[device]]\nname = 'new'\nkind = 'file'\npath = 'new.img'\nsize = '64MiB'\n");
    let mut node = without_log(&more);
    node.restart();
    refused(&node, &["pool", "forget-log", "hot", "--log", "new", "--yes-lose-data"], 5, "is named in");
    node.kill();
    let config = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), config.replace("log = 'log'", "log = 'new'")).unwrap();
    node.restart();
    node.ok(&["pool", "forget-log", "hot", "--yes-lose-data"]);
    node.ok(&["pool", "status"]);
}
