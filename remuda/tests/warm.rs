//! A warm pool through the built program: reads come from flash after a while, and what hosts have written is what they read,
//! through restarts, SIGKILLs and without the flash.

use crate::common::pools::{DEVICES, NQN, bench, look_is_clean, look_is_degraded, node_on, refused};
use crate::common::{Node, remuda};
use serde_json::{Value, json};
use std::os::unix::fs::FileExt;
use std::time::Duration;

const CREATE: [&str; 13] = [
    "pool",
    "create",
    "w",
    "--shape",
    "warm",
    "--log",
    "log",
    "--capacity",
    "big",
    "--cache",
    "flash",
    "--write-budget",
    "20TiB",
];

/// A node with the devices of a warm pool, and without the pool.
fn bare() -> Node {
    let flash = "[[device]]\nname = 'flash'\nkind = 'file'\npath = 'flash.img'\nsize = '128MiB'\n";
    node_on(&format!("{DEVICES}{flash}"), "")
}

fn node() -> Node {
    let node = bare();
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

/// Waits until what the flash has is known: it is read behind the opening.
fn until_loaded(node: &Node) {
    for _ in 0..600 {
        if cache(node)["mode"] != json!("loading") {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the flash is still not read: {}", cache(node));
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
    assert!(shown.contains("warm: in place, reads cached on 'w-cache'") && shown.contains("flash cache"), "{shown}");
    let pool = node.json(&["pool", "show", "w"]);
    assert_eq!((&pool["open"]["layout"]["shape"], &pool["cache"]), (&json!("warm"), &json!("w-cache")));
    assert_eq!(pool["problems"], json!([]), "that it is defined as a hot one is none");
    let parts = pool["open"]["devices"].as_array().unwrap().iter().map(|device| device["device"].as_str().unwrap());
    assert_eq!(parts.collect::<Vec<_>>(), ["log", "w-cache", "big", "flash"]);
}

#[test]
fn it_grows_with_its_disk() {
    let mut node = node();
    load(&node, "randrw", &["--verify"]);
    let free = |node: &Node| node.json(&["pool", "show", "w"])["open"]["total"]["free_bytes"].as_u64().unwrap();
    let size = |node: &Node| node.json(&["device", "show", "w-cache"])["size"].as_u64().unwrap();
    let (before, free_before) = (size(&node), free(&node));
    refused(&node, &["device", "resize", "w-cache", "64MiB"], 5, "does not shrink");
    refused(&node, &["device", "resize", "w-cache", "64GiB"], 2, "room to grow");
    let larger = (before + (512 << 20)).to_string();
    node.ok(&["device", "resize", "w-cache", &larger]);
    node.ok(&["pool", "grow", "w"]);
    assert_eq!(size(&node), before + (512 << 20));
    assert!(free(&node) >= free_before + (480 << 20), "{} of {free_before} before", free(&node));
    load(&node, "randrw", &["--verify"]);
    node.kill();
    node.restart();
    assert_eq!(size(&node), before + (512 << 20));
    load(&node, "randrw", &["--verify"]);
    until_hits(&mut node);
}

#[test]
fn a_check_that_does_not_repair_changes_nothing_and_costs_no_cache() {
    let mut node = node();
    load(&node, "randwrite", &[]);
    let (flash, away) = (node.path("flash.img"), node.path("flash.away"));
    for kill in [false, true] {
        until_hits(&mut node);
        let cached = cache(&node)["cached_bytes"].as_u64().unwrap();
        assert!(cached > 0);
        if kill {
            node.kill();
        } else {
            assert_eq!(node.terminate(), Some(0), "{}", node.log());
        }
        look_is_clean(&node, "w");
        std::fs::rename(&flash, &away).unwrap();
        let said = look_is_degraded(&node, "w");
        for part in ["flash device 'flash' (flash-cache 'w-cache')", "flash.img", "bring it back"] {
            assert!(said.contains(part), "{said}");
        }
        // Another one in its place is no reason to forget it either.
        std::fs::write(&flash, vec![0x55; 128 << 20]).unwrap();
        let said = look_is_degraded(&node, "w");
        assert!(said.contains("does not hold what belongs there"), "{said}");
        std::fs::rename(&away, &flash).unwrap();
        look_is_clean(&node, "w");
        node.restart();
        until_loaded(&node);
        let found = cache(&node)["cached_bytes"].as_u64().unwrap();
        // What was in memory alone when it was killed is not on flash.
        assert!(kill || found >= cached, "{found} of {cached}");
        load(&node, "randrw", &["--verify"]);
    }
}

/// Whether the starts of the devices are zero.
fn are_blank(node: &Node) -> [bool; 3] {
    ["log.img", "big.img", "flash.img"].map(|file| {
        let bytes = std::fs::read(node.path(file)).unwrap();
        bytes[..128 << 10].iter().all(|byte| *byte == 0)
    })
}

#[test]
fn a_pool_that_cannot_be_made_leaves_nothing_behind() {
    let node = bare();
    // More shards than the log has room for: found out when the cache is there already.
    refused(&node, &[&CREATE[..], &["--shards", "64"]].concat(), 2, "shards");
    assert_eq!(are_blank(&node), [true; 3]);
    assert_eq!(node.run(&["device", "show", "w-cache"]).code, 4);
    node.ok(&CREATE);
    assert_eq!(cache(&node)["mode"], json!("on"));
}

#[test]
fn a_pool_that_is_killed_while_it_is_made_is_there_or_is_not_and_then_the_same_command_makes_it() {
    let mut node = bare();
    let (mut whole, mut gone) = (0, 0);
    for step in 0..24 {
        let socket = node.socket();
        let making = std::thread::spawn(move || remuda(&[&["--socket", &socket], &CREATE[..]].concat()));
        std::thread::sleep(Duration::from_millis(2 + step * 6));
        node.kill();
        let answered = making.join().unwrap().code == 0;
        node.restart();
        let is_there = node.run(&["pool", "show", "w"]).code == 0;
        assert!(is_there || !answered, "a pool that was said to be there is gone\n{}", node.log());
        if is_there {
            whole += 1;
        } else {
            gone += 1;
            assert_eq!(are_blank(&node), [true; 3], "killed in step {step}\n{}", node.log());
            node.ok(&CREATE);
        }
        node.ok(&["volume", "create", "v", "--pool", "w", "--size", "16MiB"]);
        node.ok(&["pool", "destroy", "w", "--yes"]);
        node.ok(&["device", "delete", "w-cache"]);
        for file in ["big.img", "flash.img"] {
            let file = std::fs::File::options().write(true).open(node.path(file)).unwrap();
            file.write_all_at(&[0; 2 << 20], 0).unwrap();
        }
    }
    assert!(gone > 0, "no kill came in time: {whole} pools were whole");
}

#[test]
fn what_has_come_to_be_on_the_devices_of_a_half_made_pool_is_left_alone() {
    let mut node = bare();
    // Ends in the middle, wherever that is, until there is a note of it and something on the slow device.
    for step in 0.. {
        assert!(step < 200, "no kill came between the note and the pool");
        let socket = node.socket();
        let making = std::thread::spawn(move || remuda(&[&["--socket", &socket], &CREATE[..]].concat()));
        std::thread::sleep(Duration::from_millis(2 + step % 50 * 3));
        node.kill();
        making.join().unwrap();
        let state = std::fs::read_to_string(node.path("state/state.json")).unwrap_or_default();
        if state.contains("\"making\"") {
            break;
        }
        for file in ["log.img", "big.img", "flash.img"] {
            let file = std::fs::File::options().write(true).open(node.path(file)).unwrap();
            file.write_all_at(&[0; 2 << 20], 0).unwrap();
        }
        if !state.is_empty() && state.contains("w-cache") {
            let _ = std::fs::remove_dir_all(node.path("state"));
        }
        node.restart();
    }
    let theirs = b"somebody else's";
    let flash = std::fs::File::options().write(true).open(node.path("flash.img")).unwrap();
    flash.write_all_at(&[0; 128 << 10], 0).unwrap();
    flash.write_all_at(theirs, 0).unwrap();
    node.restart();
    assert!(std::fs::read(node.path("flash.img")).unwrap().starts_with(theirs));
    assert_eq!(are_blank(&node), [true, true, false], "{}", node.log());
    refused(&node, &CREATE, 5, "flash");
}
