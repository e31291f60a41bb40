//! A shaped pool over a zoned device through the built program: killed under load, with zones that go away.

use crate::common::Node;
use crate::common::pools::{NQN, bench, look_is_clean, refused};
use serde_json::{Value, json};

const DEVICES: &str = "\
    [[device]]\nname = 'drive'\nkind = 'file'\npath = 'drive.img'\nsize = '600MiB'\n\
    [[device]]\nname = 'zns'\nkind = 'zoned'\ndevice = 'drive'\nzone_size = '8MiB'\ncapacity = '6MiB'\nmax_open = 4\nmax_active = 4\n\
    [[device]]\nname = 'small'\nkind = 'file'\npath = 'small.img'\nsize = '32MiB'\n\
    [[device]]\nname = 'log'\nkind = 'file'\npath = 'log.img'\nsize = '128MiB'\n\
    [[device]]\nname = 'bands'\nkind = 'zone-bands'\nhead = 'small'\nzones = 'zns'\n";

fn node() -> Node {
    Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n{DEVICES}\
         [pool.cold]\nlog = 'log'\ncapacity = 'bands'\nshape = 'shaped'\n\
         [[volume]]\nname = 'v'\npool = 'cold'\nsize = '128MiB'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['v']\n"
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
    node.ok(&["pool", "scrub", "cold", "--rate", "10GiB", "--wait"]);
    assert_eq!(node.json(&["pool", "show", "cold"])["problems"], json!([]));
}

fn zones(node: &Node) -> Value {
    node.json(&["device", "show", "bands"])["zones"].clone()
}

#[test]
fn a_pool_on_zones_outlives_kills_and_the_loss_of_zones() {
    let mut node = node();
    let made = zones(&node);
    assert_eq!((made["zone_bytes"].as_u64(), made["open_max"].as_u64()), (Some(6 << 20), Some(4)), "{made}");
    for _ in 0..3 {
        works(&node);
        node.ok(&["pool", "settle", "cold"]);
        works(&node);
        node.kill();
        look_is_clean(&node, "cold");
        node.restart();
        is_right(&node);
    }
    let used = zones(&node);
    assert!(used["full"].as_u64() > Some(0) && used["open"].as_u64() <= Some(4), "{used}");
    // One that is full can still be read; of those that are empty the last one goes for good.
    node.ok(&["device", "retire-zone", "zns", "2", "read-only"]);
    node.ok(&["device", "retire-zone", "zns", &used["zones"].to_string(), "offline"]);
    works(&node);
    is_right(&node);
    let lost = zones(&node);
    assert_eq!((lost["read_only"].as_u64(), lost["offline"].as_u64()), (Some(1), Some(1)), "{lost}");
    let text = node.run(&["device", "show", "bands"]).out;
    assert!(text.contains("1 read-only, 1 offline") && text.contains("in part of 4 at most"), "{text}");
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    node.restart();
    is_right(&node);
    works(&node);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    look_is_clean(&node, "cold");
}

#[test]
fn what_zones_do_not_allow_is_refused_with_what_to_do() {
    let node = Node::start(&format!("[nvmf]\nlisten = ['127.0.0.1:0']\n{DEVICES}"));
    let create = ["pool", "create", "p", "--log", "log", "--capacity", "bands", "--shape", "shaped"];
    let with = |more: &[&'static str]| [&create[..], more].concat();
    refused(&node, &with(&["--band", "4MiB"]), 2, "a band is a zone");
    refused(&node, &with(&["--shards", "2"]), 2, "--shards 1");
    refused(&node, &["pool", "create", "p", "--log", "log", "--capacity", "bands"], 2, "--shape shaped");
    refused(&node, &["volume", "create", "v", "--device", "bands", "--size", "1MiB"], 2, "put a shaped pool on it");
    refused(&node, &["device", "create", "x", "--kind", "zone-bands", "head=log", "zones=log"], 2, "name another one");
    // A pool that is destroyed leaves zones that the next one resets.
    node.ok(&with(&[]));
    node.ok(&["volume", "create", "v", "--pool", "p", "--size", "64MiB"]);
    node.ok(&["volume", "delete", "v"]);
    node.ok(&["pool", "destroy", "p", "--yes"]);
    node.ok(&with(&["--shards", "1"]));
}
