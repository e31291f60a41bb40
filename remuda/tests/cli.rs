//! The built program from outside: exit codes, a node's life, and what survives its death.

use crate::common::{Node, remuda};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

#[test]
fn alone_it_prints_a_guide() {
    let run = remuda(&[]);
    assert_eq!(run.code, 0);
    assert!(run.out.contains("remuda demo") && run.out.contains("remuda serve"));
}

#[test]
fn a_misspelt_command_exits_with_2_and_a_suggestion() {
    let run = remuda(&["statsu"]);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("status"), "{}", run.err);
}

#[test]
fn without_a_node_commands_exit_with_3() {
    let run = remuda(&["--socket", "/nonexistent/r.sock", "status"]);
    assert_eq!(run.code, 3);
    assert!(run.err.contains("/nonexistent/r.sock") && run.err.contains("remuda serve"), "{}", run.err);
    let run = remuda(&["--json", "--socket", "/nonexistent/r.sock", "status"]);
    assert_eq!((run.code, run.json()["error"]["exit_code"].as_i64()), (3, Some(3)));
}

#[test]
fn what_a_message_repeats_moves_no_cursor() {
    let run = remuda(&["--socket", "/nonexistent/\u{1b}[2J\u{202e}.sock", "status"]);
    assert!(run.code == 3 && run.err.contains("/nonexistent/\\u{1b}[2J\\u{202e}.sock"), "{}", run.err);
}

#[test]
fn a_wrong_configuration_exits_with_7_and_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    std::fs::write(&file, "[node]\nreactorz = 2\n\n[[device]]\nname = 'd'\nkind = 'mem'\nsize = '4Q'\n").unwrap();
    let file = file.to_str().unwrap();
    for command in [vec!["config", "check", file], vec!["serve", "--config", file]] {
        let run = remuda(&command);
        assert_eq!(run.code, 7, "{}", run.err);
        assert!(run.err.contains("node.toml:2:1") && run.err.contains("did you mean 'reactors'"), "{}", run.err);
        assert!(run.err.contains("node.toml:7:8") && run.err.contains("'4Q' is not a size"), "{}", run.err);
    }
    assert!(remuda(&["config", "check", file]).err.ends_with("2 problems; nothing was started\n"));
    let here = dir.path().to_str().unwrap();
    let run = remuda(&["config", "check", here]);
    assert!(run.code == 7 && run.err.contains("it is a directory"), "{}", run.err);
    let binary = dir.path().join("binary");
    std::fs::write(&binary, [0xFF, 0xFE]).unwrap();
    let run = remuda(&["config", "check", binary.to_str().unwrap()]);
    assert!(run.code == 7 && run.err.contains("no text in UTF-8") && !run.err.contains("permissions"), "{}", run.err);
    let problems = remuda(&["--json", "config", "check", file]).json()["problems"].clone();
    assert_eq!((problems[1]["line"].as_i64(), problems[1]["column"].as_i64()), (Some(7), Some(8)));
}

#[test]
fn completions_and_reference_are_generated() {
    assert!(remuda(&["completions", "bash"]).out.contains("remuda"));
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().join("man1");
    assert_eq!(remuda(&["man", &pages.display().to_string()]).code, 0);
    let page = std::fs::read_to_string(pages.join("remuda-pool-create.1")).expect("a page for each command");
    assert!(page.contains("Device for the log"), "{page}");
    assert!(remuda(&["config", "reference"]).out.contains("`queue_depth`"));
    assert!(remuda(&["device", "kinds", "stripe"]).out.contains("chunk"));
    assert_eq!(remuda(&["device", "kinds", "strpie"]).code, 4);
}

const NQN: &str = "nqn.2026-11.io.remuda:test";

#[test]
fn objects_are_made_changed_and_removed() {
    let node = Node::start("[[device]]\nname = 'm'\nkind = 'mem'\nsize = '64MiB'\n");
    assert_eq!(node.run(&["volume", "create", "v", "--device", "m", "--size", "16MiB"]).code, 0);
    assert_eq!(node.run(&["volume", "create", "v", "--device", "m", "--size", "16MiB"]).code, 5);
    assert_eq!(node.run(&["volume", "create", "w", "--device", "n"]).code, 4);
    assert_eq!(node.run(&["volume", "create", "w", "--device", "m", "--size", "1GiB"]).code, 6);
    assert_eq!(node.run(&["volume", "create", "w", "--device", "m", "--size", "1Q"]).code, 2);
    assert_eq!(node.run(&["volume", "resize", "v", "+1MiB"]).code, 0);
    assert_eq!(node.run(&["volume", "resize", "v", "1MiB"]).code, 2, "shrinking wants --shrink");
    assert_eq!(node.run(&["volume", "resize", "v", "8MiB", "--shrink"]).code, 0);
    assert_eq!(node.run(&["volume", "resize", "v", "max"]).code, 0);
    assert_eq!(node.json(&["volume", "show", "v"])["size"], json!(64 << 20));

    assert_eq!(node.run(&["device", "delete", "m"]).code, 5, "it belongs to the configuration");
    assert_eq!(node.run(&["device", "create", "q", "--kind", "mem", "size=4MiB", "blok_size=512"]).code, 2);
    assert_eq!(node.run(&["device", "create", "q", "--kind", "mem", "size=4MiB", "block_size=512"]).code, 0);
    assert_eq!(node.run(&["device", "show", "qq"]).code, 4);

    assert_eq!(node.run(&["subsystem", "create", "wrong"]).code, 2);
    assert_eq!(node.run(&["subsystem", "create", NQN]).code, 0);
    assert_eq!(node.run(&["subsystem", "add-namespace", NQN, "v"]).code, 0);
    assert_eq!(node.run(&["subsystem", "add-namespace", NQN, "v"]).code, 5);
    assert_eq!(node.run(&["volume", "delete", "v"]).code, 5, "a namespace shows it");
    assert_eq!(node.run(&["host", "allow", NQN, "nqn.2026-11.org.example:host"]).code, 0);
    assert_eq!(node.json(&["host", "list"])[0]["host"], json!("nqn.2026-11.org.example:host"));
    assert_eq!(node.run(&["host", "disallow", NQN, "nqn.2026-11.org.example:other"]).code, 4);
    assert_eq!(node.run(&["subsystem", "remove-namespace", NQN, "1"]).code, 0);
    assert_eq!(node.run(&["subsystem", "remove-namespace", NQN, "1"]).code, 4);
    assert_eq!(node.run(&["volume", "delete", "v"]).code, 0);
    assert_eq!(node.run(&["subsystem", "delete", NQN]).code, 0);
    assert_eq!(node.run(&["device", "delete", "q"]).code, 0);
    assert_eq!(node.run(&["rpc", "node.statsu"]).code, 1);
}

#[test]
fn everything_remembered_survives_sigkill() {
    let mut node = Node::start(
        "[[device]]\nname = 'm'\nkind = 'mem'\nsize = '64MiB'\n[[volume]]\nname = 'c'\ndevice = 'm'\nsize = '8MiB'\n\
         [[subsystem]]\nnqn = 'nqn.2026-11.io.remuda:file'\nnamespaces = ['c']\n",
    );
    node.ok(&["device", "create", "d", "--kind", "mem", "size=32MiB"]);
    node.ok(&["volume", "create", "v", "--device", "d", "--size", "4MiB"]);
    node.ok(&["volume", "resize", "c", "16MiB"]);
    node.ok(&["subsystem", "create", NQN, "--allow-any-host"]);
    node.ok(&["subsystem", "add-namespace", NQN, "v", "--nsid", "7"]);
    node.ok(&["subsystem", "add-namespace", "nqn.2026-11.io.remuda:file", "v"]);
    let listings = [["device", "list"], ["volume", "list"], ["subsystem", "list"]];
    let before: Vec<_> = listings.iter().map(|list| node.json(list)).collect();
    node.kill();
    node.restart();
    let after: Vec<_> = listings.iter().map(|list| node.json(list)).collect();
    assert_eq!(before, after);
    assert_eq!(after[1][0]["size"], json!(16 << 20), "a resize of a configured volume holds");
}

#[test]
fn sigterm_ends_a_node_in_order() {
    let mut node = Node::start("");
    let socket = node.socket();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(node.terminate(), Some(0));
    assert!(!std::path::Path::new(&socket).exists());
    assert_eq!(node.run(&["status"]).code, 3);
}

#[test]
fn a_second_node_is_refused_and_told_who_is_there() {
    let node = Node::start("");
    let config = node.config();
    let run = remuda(&["serve", "--config", &config]);
    assert_eq!(run.code, 5);
    assert!(run.err.contains(&node.pid().to_string()), "{}", run.err);
    assert_eq!(node.run(&["status"]).code, 0, "the first one goes on");
}

#[test]
fn a_node_listens_for_commands_where_it_is_told_to() {
    let mut node = Node::start("");
    let configured = node.socket();
    node.kill();
    node.restart_on("other.sock");
    assert_ne!(node.socket(), configured);
    assert!(node.socket().ends_with("other.sock") && node.run(&["status"]).code == 0);
    assert_eq!(node.json(&["config", "diff"])["differences"], json!([]), "the file has not been changed");
    assert_eq!(remuda(&["--socket", &configured, "status"]).code, 3);
    node.kill();
    let file = node.path("file");
    std::fs::write(&file, "mine").unwrap();
    let run = remuda(&["serve", "--config", &node.config(), "--socket", file.to_str().unwrap()]);
    assert!(run.code == 5 && run.err.contains("something that is no socket is there"), "{}", run.err);
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_node_to_play_with_listens_where_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let mut command = std::process::Command::new(crate::common::BINARY);
    command.args(["dev", "--dir", &path("play"), "--socket", &path("r.sock")]);
    let log = std::fs::File::create(path("log")).unwrap();
    let mut child = command.stderr(log).spawn().unwrap();
    let log = || std::fs::read_to_string(path("log")).unwrap();
    crate::common::wait_for_node(&mut child, &path("r.sock"), log);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(log().contains(&format!("export REMUDA_SOCKET={}", path("r.sock"))), "{}", log());
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = std::process::Command::new(crate::common::BINARY).arg("version").stdout(full).output().unwrap();
    let err = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.code() == Some(1) && err.contains("standard output cannot be written"), "{err}");
}

#[test]
fn as_json_everything_is_an_object() {
    for (command, part) in [(&["--json", "statsu"][..], "unrecognized"), (&["volume", "create", "--json"], "required")]
    {
        let run = remuda(command);
        let error = run.json()["error"].clone();
        assert_eq!((run.code, &error["exit_code"]), (2, &json!(2)));
        assert!(error["message"].as_str().unwrap().contains(part) && run.err.contains("Usage:"), "{error} {}", run.err);
    }
    assert!(remuda(&["statsu"]).out.is_empty());
    let text = |command: &[&str]| remuda(&[&["--json"], command].concat()).json()["text"].as_str().unwrap().to_string();
    assert!(text(&["config", "example"]).contains("[node]"));
    assert!(text(&["config", "reference"]).contains("`queue_depth`"));
    assert!(text(&["rpc", "--reference"]).contains("`volume.create`"));
    assert_eq!(text(&["completions", "bash"]).trim_end(), remuda(&["completions", "bash"]).out.trim_end());
    let key = remuda(&["--json", "key", "generate"]).json();
    assert_eq!((&key["kind"], &key["hash"]), (&json!("dhchap"), &json!("sha256")));
    assert!(key["key"].as_str().unwrap().starts_with("DHHC-1:01:"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key").to_string_lossy().into_owned();
    let made = remuda(&["--json", "key", "generate", "--tls", &file]).json();
    assert_eq!(made, json!({ "kind": "tls", "hash": "sha256", "file": file }));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = remuda(&["key", "generate", &file]);
    assert!(again.code == 5 && again.err.contains("exists already"), "{}", again.err);
}

#[test]
fn metrics_and_health_are_served() {
    let node = Node::start("[[device]]\nname = 'm'\nkind = 'mem'\nsize = '1MiB'\n");
    let url = node.status()["metrics"].as_str().unwrap().to_string();
    let metrics = crate::common::http_get(&url);
    assert!(metrics.contains("remuda_reactor_seconds_total{reactor=\"0\",state=\"busy\"}"), "{metrics}");
    assert!(metrics.contains("remuda_device_size_bytes{name=\"m\",kind=\"mem\"} 1048576"), "{metrics}");
    assert!(crate::common::http_get(&url.replace("/metrics", "/healthz")).ends_with("ok\n"));
}

#[test]
fn the_references_in_the_repository_are_the_programs_own() {
    for (file, command) in [("config.md", ["config", "reference"]), ("rpc.md", ["rpc", "--reference"])] {
        let path = format!("{}/../docs/operating/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let hint = format!("run: remuda {} > docs/operating/{file}", command.join(" "));
        assert_eq!(text.trim(), remuda(&command).out.trim(), "{hint}");
    }
}

#[test]
fn a_damaged_state_file_is_refused_and_left_alone() {
    let mut node = Node::start("");
    node.kill();
    let path = node.path("state/state.json");
    let damaged = std::fs::read_to_string(&path).unwrap().replace("node_id", "nodeXid");
    std::fs::write(&path, &damaged).unwrap();
    let run = remuda(&["serve", "--config", &node.config()]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("damaged") && run.err.contains("checksum"), "{}", run.err);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged);
}

#[test]
fn the_doctor_names_what_is_in_the_way_of_a_configuration_and_finds_nothing_when_its_node_runs() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, free) = (taken.local_addr().unwrap().port(), crate::common::free_port());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("n.toml");
    let text = format!(
        "[node]\nstate_dir = 's'\nrpc_socket = 'r.sock'\nmetrics_listen = '127.0.0.1:{port}'\n\
         [nvmf]\nlisten = ['127.0.0.1:{free}']\n\
         [[device]]\nname = 'd'\nkind = 'file'\npath = 'd.img'\nsize = '4000TiB'\n"
    );
    std::fs::write(&path, text).unwrap();
    let path = path.to_string_lossy().into_owned();
    let run = remuda(&["doctor", "--config", &path]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let owner = format!("(pid {}) listens there", std::process::id());
    assert!(run.out.contains("PROBLEM") && run.out.contains(&owner), "{}", run.out);
    assert!(run.out.contains("d.img may take"), "{}", run.out);
    let found = remuda(&["--json", "doctor", "--config", &path]).json();
    let level = |check: &str| {
        let found = found["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == *check);
        found.unwrap_or_else(|| panic!("{check}: {found:?}"))["level"].clone()
    };
    assert_eq!(level(&format!("metrics 127.0.0.1:{port}")), "problem");
    assert_eq!(level(&format!("NVMe/TCP 127.0.0.1:{free}")), "ok");
    assert_eq!((level("device d"), level("configuration")), ("note".into(), "ok".into()));

    let node = Node::start(&format!("[nvmf]\nlisten = ['127.0.0.1:{free}']\n"));
    let found = remuda(&["--json", "doctor", "--config", &node.config()]).json();
    let problems: Vec<_> =
        found["findings"].as_array().unwrap().iter().filter(|finding| finding["level"] == "problem").collect();
    // What this machine lacks is not the node's fault.
    assert!(problems.iter().all(|finding| !finding["check"].as_str().unwrap().contains("NVMe/TCP")), "{problems:?}");
    std::fs::write(dir.path().join("bad.toml"), "[node]\nreactrs = 2\n").unwrap();
    let run = remuda(&["doctor", "--config", &dir.path().join("bad.toml").to_string_lossy()]);
    assert!(run.code == 1 && run.out.contains("remuda config check"), "{}", run.out);
}

#[test]
fn a_bundle_has_what_node_and_machine_say_and_works_without_a_node() {
    let node = Node::start("[[device]]\nname = 'm'\nkind = 'mem'\nsize = '64MiB'\n");
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("bundle.tar.gz");
    let file = archive.display().to_string();
    let made = node.json(&["debug", "bundle", &file]);
    let names = names_in(&archive);
    for name in ["README", "doctor.json", "config.toml", "node/devices.json", "process/status", "machine/proc-meminfo"]
    {
        assert!(names.iter().any(|found| found.ends_with(name)), "{name} is not in {names:?}");
    }
    assert_eq!(made["files"].as_u64(), Some(names.len() as u64));
    // What is there is not overwritten.
    let again = node.run(&["debug", "bundle", &file]);
    assert_eq!(again.code, 5, "{}", again.err);
    assert!(again.err.contains("name another file"), "{}", again.err);

    let alone = dir.path().join("alone.tar.gz");
    let run = remuda(&["--socket", "/nowhere/remuda.sock", "debug", "bundle", &alone.display().to_string()]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(names_in(&alone).iter().any(|found| found.ends_with("node.error")));
}

fn names_in(archive: &std::path::Path) -> Vec<String> {
    let file = std::fs::File::open(archive).expect("the archive is there");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let entries = archive.entries().expect("an archive");
    entries.map(|entry| entry.expect("an entry").path().expect("a path").display().to_string()).collect()
}
