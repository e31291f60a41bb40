//! What the program says when something is in the way: what is there, what would be lost, and what to do.

use crate::common::pools::{DEVICES, NQN, POOL, bench, node, node_on, refused};
use crate::common::{Node, remuda};
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
    // One that does not answer in a day hides the others from nobody.
    let slow = "[[device]]\nname = 'below'\nkind = 'mem'\nsize = '16MiB'\n\
                [[device]]\nname = 'aside'\nkind = 'delay'\ndevice = 'below'\nread = '86400s'\n";
    let mut node = node(&format!("{MORE}{slow}"));
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
    // A volume would be no kinder to it.
    let start = || std::fs::read(node.path("big2.img")).unwrap()[..64 << 10].to_vec();
    let before = start();
    let volume = ["volume", "create", "v", "--device", "big2", "--size", "64MiB"];
    refused(&node, &volume, 5, "'big2' is in use: it holds the volumes of pool 'old'");
    refused(&node, &["volume", "create", "v", "--device", "big"], 5, "it holds an ext2, ext3 or ext4 file system");
    assert!(start() == before, "nothing of it has changed");
    node.ok(&["volume", "create", "v", "--device", "big2", "--size", "64MiB", "--force"]);
    assert!(start() != before);
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
    assert!(check.err.ends_with("1 problem; the node would start, and what is named here would stay closed\n"));
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
fn a_pool_is_opened_although_something_else_in_the_file_is_wrong() {
    let mut node = node(POOL);
    node.kill();
    std::fs::rename(node.path("log.img"), node.path("away.img")).unwrap();
    node.restart();
    let text = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), format!("{text}[[volume]]\nname = 'v'\ndevice = 'nothing'\n")).unwrap();
    refused(&node, &["pool", "open", "hot"], 1, "there is no device 'nothing': remuda config check");
    std::fs::rename(node.path("away.img"), node.path("log.img")).unwrap();
    node.ok(&["pool", "open", "hot"]);
    assert!(node.log().contains("it is opened as it was defined before"), "{}", node.log());
}

#[test]
fn names_of_volumes_in_a_closed_pool_are_taken() {
    let volume =
        "[[volume]]\nname = 'v'\npool = 'hot'\nsize = '64MiB'\n[[volume]]\nname = 's'\npool = 'hot'\nsize = '64MiB'\n";
    let mut node = node(&format!("{POOL}{volume}{MORE}"));
    node.ok(&["volume", "create", "r", "--pool", "hot", "--size", "8MiB"]);
    node.ok(&["subsystem", "add-namespace", NQN, "r"]);
    node.kill();
    std::fs::rename(node.path("log.img"), node.path("away.img")).unwrap();
    node.restart();
    let create = ["volume", "create", "v", "--device", "log2", "--size", "8MiB"];
    refused(&node, &create, 5, "it exists already in pool 'hot', which is not open");
    refused(&node, &["snapshot", "create", "v@s"], 1, "in pool 'hot', which is not open");
    // What commands have made is told of as well.
    let found = node.run(&["config", "diff"]).out;
    assert!(found.contains("volume 'r'") && !found.contains("volume 'v'"), "{found}");
    // A volume that was made on a device while the pool was in no file is the one that is shown.
    node.kill();
    let text = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), text.replace("[[volume]]\nname = 'v'\npool = 'hot'\nsize = '64MiB'\n", "")).unwrap();
    node.restart();
    node.ok(&create);
    node.kill();
    std::fs::write(node.config(), text).unwrap();
    node.restart();
    let shown = node.json(&["volume", "show", "v"]);
    assert_eq!((&shown["device"], &shown["size"]), (&json!("log2"), &json!(8 << 20)), "{shown}");
}

#[test]
fn a_pool_that_has_got_other_devices_in_the_file_wants_a_restart() {
    let mut node = node_on(&format!("{DEVICES}{MORE}"), POOL);
    node.kill();
    std::fs::rename(node.path("log.img"), node.path("away.img")).unwrap();
    node.restart();
    let text = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), text.replace("log = 'log'", "log = 'log2'").replace("log2.img", "log3.img")).unwrap();
    refused(&node, &["pool", "open", "hot"], 5, "restart the node");
    std::fs::write(node.config(), text.replace("log = 'log'", "log = 'log2'")).unwrap();
    refused(&node, &["pool", "open", "hot"], 1, "'log2' is not its log (it holds nothing");
    // The device has the same name and is another one.
    std::fs::write(node.config(), text.replace("'log.img'", "'log4.img'")).unwrap();
    for command in [&["pool", "open", "hot"][..], &["pool", "forget-log", "hot", "--yes-lose-data"]] {
        refused(&node, command, 5, "its device 'log' is another one in");
    }
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

#[test]
fn a_pool_that_is_not_open_is_no_secret() {
    let volumes = "[[volume]]\nname = 'seen'\npool = 'hot'\nsize = '64MiB'\n[[volume]]\nname = 'own'\npool = 'hot'\nsize = '32MiB'\n";
    let mut node = node(&format!("{POOL}{volumes}"));
    node.ok(&["subsystem", "add-namespace", NQN, "seen"]);
    let health = |node: &Node| {
        crate::common::http_get(&node.status()["metrics"].as_str().unwrap().replace("/metrics", "/healthz"))
    };
    node.ok(&["status"]);
    assert!(health(&node).contains("200 OK") && health(&node).ends_with("ok\n"));
    node.kill();
    let text = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), text.replace("path = 'log.img'\nsize = '64MiB'", "path = 'log.img'")).unwrap();
    std::fs::rename(node.path("log.img"), node.path("away.img")).unwrap();
    node.restart();
    let run = node.run(&["status"]);
    assert!(
        run.code == 1 && run.out.contains("problem: pool 'hot' (closed)") && run.out.contains("log.img"),
        "{}",
        run.out
    );
    assert_eq!(run.out.matches("pool 'hot' (closed)").count(), 1, "{}", run.out);
    let said = health(&node);
    assert!(said.contains(" 503 ") && said.contains("failing\npool 'hot' (closed)"), "{said}");
    let url = node.status()["metrics"].as_str().unwrap().to_string();
    assert!(crate::common::http_get(&url.replace("/metrics", "/livez")).contains("200 OK"));
    assert!(!crate::common::http_get(&url).contains("\nremuda_failing 0\n"));
    let list = node.json(&["volume", "list"]);
    let states: Vec<_> = list.as_array().unwrap().iter().map(|volume| (&volume["name"], &volume["size"])).collect();
    assert_eq!(states, [(&json!("own"), &json!(32 << 20)), (&json!("seen"), &json!(64 << 20))], "{list}");
    assert!(list[0]["state"].as_str().unwrap().contains("pool 'hot' is not open"), "{list}");
    std::fs::rename(node.path("away.img"), node.path("log.img")).unwrap();
    node.ok(&["pool", "open", "hot"]);
    node.ok(&["status"]);
    assert!(health(&node).ends_with("ok\n"));
}

#[test]
fn what_volumes_have_of_their_pool_is_told_apart_from_their_sizes_and_after_a_crash_too() {
    let mut node = node(POOL);
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "8MiB"]);
    node.ok(&["volume", "create", "w", "--pool", "hot", "--size", "1GiB"]);
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let fill = ["--rw", "write", "--fill", "--bs", "1MiB", "--time", "100ms", "--warmup", "0s"];
    let run = bench(&node, &fill);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let mib = |mib: u64| json!(mib << 20);
    let list = node.json(&["volume", "list"]);
    assert_eq!((&list[0]["allocated"], &list[1]["allocated"]), (&mib(8), &mib(0)), "{list}");
    node.ok(&["snapshot", "create", "v@s"]);
    node.ok(&["volume", "clone", "v@s", "c"]);
    let look = |node: &Node| {
        let open = node.json(&["pool", "show", "hot"])["open"].clone();
        (node.json(&["volume", "show", "v"]), open["provisioned_bytes"].clone(), open["allocated_bytes"].clone())
    };
    let (v, provisioned, allocated) = look(&node);
    assert_eq!((&v["allocated"], &v["snapshots_allocated"]), (&mib(0), &mib(8)), "{v}");
    assert_eq!((&v["snapshots"], &v["clones"]), (&json!(["v@s"]), &json!(["c"])), "{v}");
    assert_eq!(node.json(&["volume", "show", "c"])["clone_of"], json!("v@s"));
    assert_eq!((provisioned, allocated), (mib(1024 + 16), mib(8)));
    let shown = node.run(&["volume", "show", "v"]).out;
    assert!(shown.contains("8 MiB by its snapshots") && shown.contains("1 clone: c"), "{shown}");
    // Part of the last extent is written anew, above the snapshot.
    let more = ["--rw", "randwrite", "--range", "4MiB", "--time", "100ms", "--warmup", "0s"];
    assert_eq!(bench(&node, &more).code, 0);
    let before = look(&node);
    assert_eq!(before.0["allocated"], mib(4), "{}", before.0);
    node.kill();
    node.restart();
    assert_eq!(look(&node), before);
    let metrics = crate::common::http_get(node.status()["metrics"].as_str().unwrap());
    assert!(metrics.contains("remuda_volume_allocated_bytes{name=\"v\",kind=\"volume\"} 4194304\n"), "{metrics}");
    assert!(metrics.contains("remuda_pool_allocated_bytes{pool=\"hot\"} 12582912\n"), "{metrics}");
    node.ok(&["volume", "delete", "c"]);
    node.ok(&["snapshot", "delete", "v@s"]);
}

#[test]
fn what_connected_hosts_use_is_taken_from_them_only_by_force() {
    let port = crate::common::free_port();
    let far = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:{port}']\n[[device]]\nname = 'm'\nkind = 'mem'\nsize = '16MiB'\n\
         [[volume]]\nname = 'v'\ndevice = 'm'\nsize = '8MiB'\n[[volume]]\nname = 'w'\ndevice = 'm'\nsize = '8MiB'\n"
    ));
    far.ok(&["subsystem", "create", NQN, "--allow-any-host"]);
    far.ok(&["subsystem", "add-namespace", NQN, "v"]);
    far.ok(&["subsystem", "add-namespace", NQN, "w", "--host", "nqn.2026-11.org.example:another"]);
    let near = Node::start(&format!(
        "[[device]]\nname = 'r'\nkind = 'nvmf'\naddress = '127.0.0.1:{port}'\nnqn = '{NQN}'\nnsid = 1\n"
    ));
    assert_eq!(near.json(&["device", "show", "r"])["open"], json!(true));
    refused(&far, &["subsystem", "remove-namespace", NQN, "1"], 5, "(volume 'v')");
    refused(&far, &["subsystem", "remove-namespace", NQN, "1"], 5, "would lose it: nqn.");
    refused(&far, &["subsystem", "delete", NQN], 5, "add --force");
    refused(&far, &["volume", "resize", "v", "4MiB", "--shrink"], 5, "where hosts are connected: nqn.");
    assert_eq!(far.json(&["volume", "show", "v"])["size"], json!(8 << 20));
    far.ok(&["volume", "resize", "w", "4MiB", "--shrink"]);
    far.ok(&["volume", "resize", "v", "4MiB", "--shrink", "--force"]);
    far.ok(&["subsystem", "remove-namespace", NQN, "2"]);
    far.ok(&["subsystem", "remove-namespace", NQN, "1", "--force"]);
    far.ok(&["subsystem", "add-namespace", NQN, "v"]);
    far.ok(&["subsystem", "delete", NQN, "--force"]);
}

#[test]
fn where_a_node_differs_from_its_file_is_listed() {
    let mut node = node(POOL);
    let run = node.run(&["config", "diff"]);
    assert!(run.code == 0 && run.out.contains("no differences"), "{}{}", run.out, run.err);
    node.ok(&["device", "create", "d", "--kind", "mem", "size=8MiB"]);
    node.ok(&["volume", "create", "v", "--pool", "hot", "--size", "8MiB"]);
    node.ok(&["subsystem", "add-namespace", NQN, "v"]);
    let text = std::fs::read_to_string(node.config()).unwrap();
    let changed = format!("# moved down\n{}", text.replace("'512MiB'", "'1GiB'"));
    std::fs::write(node.config(), format!("{changed}[[device]]\nname = 'e'\nkind = 'mem'\nsize = '1MiB'\n")).unwrap();
    let diff = |node: &Node| {
        let run = node.run(&["--json", "config", "diff"]);
        assert_eq!(run.code, 1, "{}{}", run.out, run.err);
        run.json()
    };
    let found = diff(&node);
    assert_eq!(found["file"], json!("changed"));
    let found: Vec<(&str, &str)> = found["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["object"].as_str().unwrap(), one["differs"].as_str().unwrap()))
        .collect();
    let subsystem = format!("subsystem '{NQN}'");
    let expected = [
        ("device 'd'", "added-at-run-time"),
        ("volume 'v'", "added-at-run-time"),
        (subsystem.as_str(), "changed-at-run-time"),
        ("device 'big'", "changed-in-the-file"),
        ("device 'e'", "added-to-the-file"),
    ];
    assert_eq!(found, expected);
    let run = node.run(&["config", "diff"]);
    assert!(
        run.out.contains("size: \"512MiB\" -> \"1GiB\"") && run.out.contains("namespaces added: 1 (v)"),
        "{}",
        run.out
    );
    node.kill();
    node.restart();
    let after = diff(&node);
    assert_eq!((&after["file"], after["differences"].as_array().unwrap().len()), (&json!("same"), 3), "{after}");
    std::fs::write(node.config(), "[node]\nreactrs = 1\n").unwrap();
    assert_eq!(diff(&node)["file"], json!("wrong"));
}

/// What of the definition of a pool there cannot be, and words of why.
const IMPOSSIBLE: [(&str, &str); 6] = [
    ("shards = 64", "64 shards: these devices have room for 1 to 1"),
    (
        "shape = 'shaped'\nwrite_unit = '12KiB'",
        "a unit of writes of 12 KiB: expected a power of two from 4 to 1024 KiB",
    ),
    ("shape = 'shaped'\nband = '12MiB'", "a band of 12288 KiB: expected a power of two from 4096 to"),
    ("shape = 'shaped'\nband = '256MiB'", "bands of 262144 KiB: the capacity device gives each of 1 shards"),
    ("shape = 'shaped'\ngrow_to = '256MiB'", "room to grow to 256 MiB: the capacity device has 512 already"),
    ("shape = 'shaped'\ngrow_to = '64TiB'", "beside a log of at least 64 MiB it has to hold the index"),
];

#[test]
fn a_check_of_the_file_refuses_what_the_node_does_not_make() {
    for (lines, words) in IMPOSSIBLE {
        let node = node(&format!("{POOL}{lines}\n"));
        let closed = node.json(&["pool", "show", "hot"]);
        let problem = closed["problems"][0].as_str().unwrap();
        assert!(closed["state"] == json!("closed") && problem.contains(words), "{lines}: {problem}");
        let check = remuda(&["config", "check", &node.config()]);
        assert!(check.code == 7 && check.err.contains(words), "{lines}: {}{}", check.out, check.err);
        assert!(check.err.contains("the node would start, and what is named here would stay closed"), "{}", check.err);
    }
    // Once it is there, it is as it was made.
    let mut node = node(POOL);
    node.kill();
    let text = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), text.replace("[pool.hot]\n", "[pool.hot]\nshards = 64\nshape = 'shaped'\n")).unwrap();
    assert_eq!(remuda(&["config", "check", &node.config()]).code, 0);
    node.restart();
    let shown = node.json(&["pool", "show", "hot"]);
    assert_eq!((&shown["state"], &shown["open"]["layout"]), (&json!("open"), &json!({ "shape": "hot" })));
    assert!(shown["problems"].to_string().contains("defined as a shaped pool, and was made a hot one"), "{shown}");
    refused(&node, &["pool", "set", "hot", "--reinsertion", "80"], 2, "it has no bands");
    refused(&node, &["device", "resize", "log", "128MiB"], 5, "which keeps its size");
}
