//! libblkio on the door of a running node, over a volume of a pool.

use crate::blkio_client::{Client, use_everything};
use crate::common::Node;
use crate::common::pools::{POOL, node, refused};
use serde_json::json;
use std::time::{Duration, Instant};

const BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;
const QUEUES: usize = 4;

fn start() -> Node {
    node(&format!(
        "{POOL}[[volume]]\nname = 'v'\npool = 'hot'\nsize = '64MiB'\n\
         [[vhost]]\nname = 'vm'\nvolume = 'v'\nsocket = 'vm.sock'\nqueues = {QUEUES}\n"
    ))
}

/// A door has one front end at a time, and learns of the end of the last one a moment later.
fn until_free(node: &Node) {
    let began = Instant::now();
    while node.json(&["vhost", "show", "vm"])["state"] != json!("listening") {
        assert!(began.elapsed() < Duration::from_secs(20), "{}", node.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn block(number: usize, round: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (at as u8).wrapping_mul(31) ^ number as u8 ^ round.wrapping_mul(77)).collect()
}

#[test]
fn libblkio_uses_a_volume_of_a_pool_for_all_that_it_can_do() {
    let mut node = start();
    use_everything(&node.path("vm.sock"), BYTES);
    until_free(&node);
    let counters = &node.json(&["vhost", "show", "vm"])["counters"];
    let counted = ["queues_stopped", "flushes", "discards"].map(|name| counters[name].as_u64());
    assert_eq!(counted, [Some(0), Some(1), Some(3)], "{counters}");
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn what_libblkio_was_told_is_done_is_there_after_a_kill() {
    let mut node = start();
    let mut client = Client::start(&node.path("vm.sock"), QUEUES as i32);
    for round in 1..=3u8 {
        // Every block is written on one queue, flushed on another, and some are written once more.
        for number in 0..64 {
            assert_eq!(client.write(number % QUEUES, (number * BLOCK) as u64, &block(number, round)), 0);
        }
        assert_eq!(client.discard(1, 0, (8 * BLOCK) as u64), 0);
        assert_eq!(client.write_zeroes(2, (8 * BLOCK) as u64, (8 * BLOCK) as u64, blkio::ReqFlags::empty()), 0);
        assert_eq!(client.flush(usize::from(round) % QUEUES), 0);
        for number in 16..24 {
            assert_eq!(client.write(0, (number * BLOCK) as u64, &block(number, round + 100)), 0);
        }
        // These are under way when the node is killed: nobody hears of their end.
        for number in 24..32 {
            client.fill(number * BLOCK, &block(number, round + 200));
            client.begin(number % QUEUES, true, (number * BLOCK) as u64, number * BLOCK, BLOCK);
            client.submit(number % QUEUES);
        }
        node.kill();
        // (libblkio does not connect again)
        drop(client);
        node.restart();
        client = Client::start(&node.path("vm.sock"), QUEUES as i32);
        for number in 0..64 {
            let (ret, bytes) = client.read((number + 1) % QUEUES, (number * BLOCK) as u64, BLOCK);
            assert_eq!(ret, 0, "block {number}, round {round}");
            let may_be = match number {
                0..16 => vec![vec![0; BLOCK]],
                16..24 => vec![block(number, round + 100)],
                24..32 => vec![block(number, round), block(number, round + 200)],
                _ => vec![block(number, round)],
            };
            assert!(may_be.contains(&bytes), "block {number}, round {round}");
        }
    }
    drop(client);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn a_door_that_is_used_is_deleted_and_its_volume_cut_by_force_alone() {
    let node = start();
    node.ok(&["volume", "create", "w", "--pool", "hot", "--size", "64MiB"]);
    node.ok(&["vhost", "create", "door", "--volume", "w"]);
    let mut client = Client::start(&node.path("vhost-door.sock"), 1);
    assert_eq!(client.write(0, 0, &block(0, 1)), 0);
    refused(&node, &["vhost", "delete", "door"], 5, "uses volume 'w' through it");
    refused(
        &node,
        &["volume", "resize", "w", "32MiB", "--shrink"],
        5,
        "a virtual machine, uses it through vhost 'door'",
    );
    node.ok(&["volume", "resize", "w", "32MiB", "--shrink", "--force"]);
    node.ok(&["vhost", "delete", "door", "--force"]);
    drop(client);
    node.ok(&["volume", "delete", "w"]);
}
