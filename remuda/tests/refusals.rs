//! Refusals through the built program: each kind ends with its exit code, and says what to do.

use crate::common::pools::{NQN, POOL, bench, node, refused};
use crate::common::remuda;

#[test]
fn what_is_not_there_ends_with_4() {
    let node = node(POOL);
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "64MiB"]);
    node.ok(&["snapshot", "create", "v@one"]);
    for command in [
        &["pool", "show", "cold"][..],
        &["pool", "scrub", "cold"],
        &["pool", "grow", "cold"],
        &["pool", "forget-log", "hot", "--status"],
        &["rpc", "pool.check_report", r#"{"name": "hot"}"#],
        &["volume", "flatten", "w"],
        &["volume", "flatten", "v", "--stop"],
        &["snapshot", "delete", "v@two"],
        &["snapshot", "rollback", "v@two"],
        &["snapshot", "diff", "v@one", "--since", "v@two"],
        &["volume", "clone", "v@two", "w"],
        &["device", "show", "nothing"],
        &["volume", "create", "w", "--pool", "cold", "--size", "1MiB"],
        &["volume", "create", "w", "--device", "nothing"],
    ] {
        refused(&node, command, 4, "");
    }
}

#[test]
fn how_things_are_ends_with_5() {
    let node = node(POOL);
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "64MiB"]);
    node.ok(&["snapshot", "create", "v@one"]);
    node.ok(&["volume", "clone", "v@one", "c"]);
    for command in [
        &["volume", "create", "v", "--pool", "hot", "--size", "1MiB"][..],
        &["volume", "clone", "v@one", "c"],
        &["volume", "flatten", "v"],
        &["volume", "delete", "v"],
        &["snapshot", "create", "v@one"],
        &["pool", "check", "hot"],
        &["pool", "forget-log", "hot", "--yes-lose-data"],
        &["pool", "destroy", "hot", "--yes"],
        &["device", "delete", "log"],
        &["device", "open", "log"],
    ] {
        refused(&node, command, 5, "");
    }
}

#[test]
fn too_little_room_ends_with_6() {
    let node = node(POOL);
    refused(&node, &["pool", "grow", "hot"], 6, "remuda device resize big SIZE");
    node.ok(&["device", "create", "small", "--kind", "mem", "size=32MiB"]);
    node.ok(&["device", "create", "large", "--kind", "mem", "size=256MiB"]);
    refused(&node, &["pool", "create", "p", "--log", "small", "--capacity", "large"], 6, "a log device needs at least");
    refused(&node, &["volume", "create", "w", "--device", "small", "--size", "1GiB"], 6, "");
    // A stream that does not fit leaves nothing.
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "320MiB"]);
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let fill = ["--rw", "write", "--fill", "--bs", "1m", "--range", "320MiB", "--time", "10ms", "--warmup", "0s"];
    assert_eq!(bench(&node, &fill).code, 0);
    node.ok(&["snapshot", "create", "v@full"]);
    let file = node.path("full.snap").to_string_lossy().into_owned();
    node.ok(&["snapshot", "export", "v@full", "-o", &file]);
    refused(&node, &["snapshot", "import", "w", "--pool", "hot", "-i", &file], 6, "remuda pool grow hot");
    refused(&node, &["volume", "show", "w"], 4, "no such object");
}

#[test]
fn the_help_and_the_pages_have_every_code() {
    let help = remuda(&["help"]).out;
    let page = remuda(&["docs", "running"]).out;
    for code in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 130] {
        assert!(help.contains(&format!("  {code}  ")), "{code}: {help}");
        assert!(page.contains(&format!("| {code} | ")), "{code}: {page}");
    }
}
