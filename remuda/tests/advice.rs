//! What the program says when something is in the way: what is there, what would be lost, and what to do.

mod common;

use common::pools::{DEVICES, POOL, node, node_on, refused};
use common::{Node, remuda};
use serde_json::json;
use std::os::unix::fs::FileExt;

/// Two more devices, of which one is the other's log.
const MORE: &str = "[[device]]\nname = 'log2'\nkind = 'file'\npath = 'log2.img'\nsize = '64MiB'\n\
                    [[device]]\nname = 'big2'\nkind = 'file'\npath = 'big2.img'\nsize = '256MiB'\n";

fn write_at(node: &Node, file: &str, offset: u64, bytes: &[u8]) {
    std::fs::File::options().write(true).open(node.path(file)).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn what_a_device_holds_is_named_before_it_becomes_part_of_a_pool() {
    let mut node = node(MORE);
    node.ok(&["pool", "create", "old", "--log", "log2", "--capacity", "big2"]);
    node.kill();
    // The node forgets the pool; its devices do not.
    std::fs::remove_dir_all(node.path("state")).unwrap();
    write_at(&node, "big.img", 0x438, b"\x53\xEF");
    node.restart();
    let create = |log, capacity| {
        let run = node.run(&["pool", "create", "new", "--log", log, "--capacity", capacity]);
        assert_eq!(run.code, 5, "{}", run.err);
        run.err
    };
    let said = create("log2", "big");
    assert!(said.contains("it holds the log of pool 'old'") && said.contains("until its log is given up"), "{said}");
    assert!(said.contains("the capacity of pool 'old' is device 'big2'"), "{said}");
    let said = create("log", "big2");
    assert!(said.contains("the volumes of pool 'old'") && said.contains("with all of its volumes"), "{said}");
    assert!(said.contains("the log of pool 'old' is device 'log2'"), "{said}");
    let said = create("log", "big");
    assert!(said.contains("it holds an ext2, ext3 or ext4 file system") && said.contains("that destroys"), "{said}");
    node.ok(&["pool", "create", "new", "--log", "log2", "--capacity", "big", "--force"]);
    assert!(node.log().contains("is made over what 'log2' held: the log of pool 'old'"), "{}", node.log());
}

#[test]
fn a_pool_whose_capacity_device_has_something_else_says_what() {
    let mut node = node(POOL);
    node.kill();
    write_at(&node, "big.img", 0, &[0; 16384]);
    write_at(&node, "big.img", 0x1000, &[0; 4096]);
    write_at(&node, "big.img", 0, b"LUKS\xBA\xBE");
    node.restart();
    refused(&node, &["pool", "open", "hot"], 1, "'big' holds no pool, but a LUKS encrypted volume");
}

#[test]
fn a_log_in_plain_memory_is_found_before_and_can_be_accepted_while_the_node_runs() {
    let pool = "[pool.hot]\nlog = { pmem = 'plain.log', size = '64MiB' }\ncapacity = 'big'\n";
    let node = node_on(DEVICES, pool);
    let plain = node.path("plain.log");
    let path = node.config();
    let check = remuda(&["config", "check", &path]);
    assert_eq!(check.code, 7, "{}{}", check.out, check.err);
    assert!(check.err.contains("volatile = true") && check.err.contains("MAP_SYNC"), "{}", check.err);
    assert!(remuda(&["doctor", "--config", &path]).out.contains("volatile = true"));
    let closed = node.json(&["pool", "show", "hot"]);
    assert!(closed["problems"][0].as_str().unwrap().contains("'volatile = true' in its log"), "{closed}");
    refused(&node, &["pool", "open", "hot"], 5, "remuda pool open hot");
    assert!(!plain.exists(), "what was made for a pool that is refused goes again");

    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("'64MiB' }", "'64MiB', volatil = true }")).unwrap();
    refused(&node, &["pool", "open", "hot"], 5, "remuda config check");
    std::fs::write(&path, text.replace("'64MiB' }", "'64MiB', volatile = true }")).unwrap();
    assert_eq!(remuda(&["config", "check", &path]).code, 0);
    node.ok(&["pool", "open", "hot"]);
    assert!(plain.exists());
    assert_eq!(node.json(&["pool", "show", "hot"])["definition"]["log"]["pmem"]["volatile"], json!(true));
}

#[test]
fn a_pool_that_has_got_other_devices_in_the_file_wants_a_restart() {
    let mut node = node_on(&format!("{DEVICES}{MORE}"), POOL);
    node.kill();
    std::fs::rename(node.path("log.img"), node.path("away.img")).unwrap();
    let text = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), text.replace("path = 'log.img'\nsize = '64MiB'", "path = 'log.img'")).unwrap();
    node.restart();
    let text = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), text.replace("log = 'log'", "log = 'log2'").replace("log2.img", "log3.img")).unwrap();
    refused(&node, &["pool", "open", "hot"], 5, "restart the node");
    std::fs::write(node.config(), text.replace("log = 'log'", "log = 'log2'")).unwrap();
    refused(&node, &["pool", "open", "hot"], 1, "'log2' is not its log: it holds nothing".split(':').next().unwrap());
    std::fs::write(node.config(), text).unwrap();
    std::fs::rename(node.path("away.img"), node.path("log.img")).unwrap();
    node.ok(&["pool", "open", "hot"]);
}

#[test]
fn the_doctor_says_which_node_has_a_file() {
    let node = Node::start(DEVICES);
    let other = tempfile::tempdir().unwrap();
    let text = DEVICES.replace("path = '", &format!("path = '{}/", node.path("").display()));
    let file = other.path().join("other.toml");
    std::fs::write(&file, format!("[node]\nstate_dir = 's'\nrpc_socket = 'r.sock'\n{text}")).unwrap();
    let run = remuda(&["doctor", "--config", &file.to_string_lossy()]);
    let said = format!("log.img is locked by 'remuda' (pid {})", node.pid());
    assert!(run.code == 1 && run.out.contains(&said) && run.out.contains("node.toml"), "{}", run.out);
    let own = remuda(&["doctor", "--config", &node.config()]);
    assert!(!own.out.contains("is locked"), "{}", own.out);
}
