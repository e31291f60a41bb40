//! A warm pool through the built program: reads come from flash after a while, and what hosts have written is what they read,
//! through restarts, SIGKILLs and without the flash.

mod common;

use common::Node;
use common::pools::{DEVICES, NQN, bench, node_on, refused};
use serde_json::{Value, json};

fn node() -> Node {
    let flash = "[[device]]\nname = 'flash'\nkind = 'file'\npath = 'flash.img'\nsize = '128MiB'\n";
    let node = node_on(&format!("{DEVICES}{flash}"), "");
    let create = ["pool", "create", "w", "--shape", "warm", "--log", "log", "--capacity", "big"];
    let with = |more: &[&'static str]| [&create[..], more].concat();
    refused(&node, &with(&[]), 2, "--cache");
    refused(&node, &with(&["--cache", "flash", "--write-budget", "soon"]), 2, "write_budget");
    refused(&node, &with(&["--cache", "nowhere", "--write-budget", "1TiB"]), 4, "nowhere");
    node.ok(&with(&["--cache", "flash", "--write-budget", "20TiB", "--endurance", "600TiB"]));
    node.ok(&["volume", "create", "v", "--pool", "w", "--size", "128MiB"]);
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    node
}

fn cache(node: &Node) -> Value {
    node.json(&["device", "show", "w-cache"])["flash_cache"].clone()
}

fn load(node: &Node, rw: &str, more: &[&str]) {
    let base = ["--rw", rw, "--range", "16MiB", "--bs", "16KiB", "--qd", "8", "--time", "300ms", "--warmup", "0s"];
    let run = bench(node, &[&base[..], more].concat());
    assert_eq!(run.code, 0, "{}{}\n{}", run.out, run.err, node.log());
}

/// Reads until the flash answers. What is in the log is not read from either device: so nothing is left in that first.
fn until_hits(node: &mut Node) {
    node.ok(&["pool", "settle", "w"]);
    assert_eq!(node.terminate(), Some(0));
    node.restart();
    for _ in 0..100 {
        load(node, "randread", &[]);
        if cache(node)["hit_bytes"].as_u64().unwrap() > 1 << 20 {
            return;
        }
    }
    panic!("nothing is read from flash: {}", cache(node));
}

#[test]
fn reads_come_from_flash_and_are_what_was_written_through_kills_and_restarts() {
    let mut node = node();
    load(&node, "randwrite", &[]);
    until_hits(&mut node);
    assert_eq!(cache(&node)["mode"], json!("on"));
    let day = cache(&node)["written_day_bytes"].as_u64().unwrap();
    assert!(day > 0 && day < 20 << 40, "{day}");
    for kill in [true, false, true] {
        load(&node, "randrw", &["--verify"]);
        if kill {
            node.kill();
        } else {
            node.terminate();
        }
        node.restart();
        load(&node, "randrw", &["--verify"]);
        until_hits(&mut node);
        load(&node, "randrw", &["--verify"]);
    }
    let shown = node.run(&["pool", "status", "w"]).out;
    assert!(shown.contains("flash cache"), "{shown}");
}
