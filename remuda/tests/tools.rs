//! What the tools say, of a node and of themselves, through the built program.

use crate::common::{Node, pools, remuda};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::Path;

const DEVICE: &str = "[[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n\
                      [[volume]]\nname = 'a'\ndevice = 'm'\nsize = '16MiB'\n";

#[test]
fn latencies_are_those_that_were_measured_or_none() {
    let node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n{DEVICE}\
         [[subsystem]]\nnqn = 'nqn.2026-11.io.remuda:m'\nallow_any_host = true\nnamespaces = ['a']\n"
    ));
    let address = node.json(&["status"])["nvmf_listen"][0].as_str().unwrap().to_string();
    let (ip, port) = address.rsplit_once(':').unwrap();
    let load = ["--rw", "randwrite", "--qd", "4", "--time", "200ms", "--warmup", "0s"];
    let target = ["bench", "nvmf", "--addr", ip, "--port", port, "--nqn", "nqn.2026-11.io.remuda:m"];
    node.ok(&[&target[..], &load].concat());
    let stats = node.json(&["stats"]);
    let volume = stats["objects"].as_array().unwrap().iter().find(|object| object["name"] == "a").unwrap();
    let (written, read) = (&volume["write"], &volume["read"]);
    assert!(written["count"].as_u64() > Some(0) && written["p50"].as_u64() > Some(0), "{volume}");
    assert_eq!(read["count"].as_u64(), Some(0), "{volume}");
    let text = node.run(&["stats"]).out;
    assert!(!text.contains(" 0 ns"), "{text}");
    let text = node.run(&["top", "--once", "--interval", "0.1"]).out;
    assert!(text.contains(" - ") && !text.contains(" 0 ns"), "{text}");
}

#[test]
fn a_refusal_names_its_method_once_and_alternatives_are_all_named() {
    let node = Node::start(DEVICE);
    let refused = node.run(&["rpc", "volume.resize", r#"{"name": "a", "sise": "8MiB"}"#]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert_eq!(refused.err.matches("volume.resize").count(), 1, "{}", refused.err);
    assert!(refused.err.contains("unknown key 'sise'; did you mean 'size'?"), "{}", refused.err);
    assert!(refused.err.contains("'size' is missing"), "{}", refused.err);
    for (command, alternatives) in [
        (&["volume", "create", "v"][..], "<--device <DEVICE>|--pool <POOL>>"),
        (&["pool", "create", "p", "--capacity", "m"], "<--log <DEVICE>|--log-pmem <PATH>>"),
        (&["limit", "set", "--volume", "a"], "<--iops <IOPS>|--bandwidth <BANDWIDTH>>"),
        (&["host", "allow", "nqn.2026-11.io.remuda:m"], "<HOST|--any>"),
        (&["rpc"], "<METHOD|--reference>"),
    ] {
        let run = remuda(command);
        assert!(run.code == 2 && run.err.contains(alternatives), "{command:?}: {}", run.err);
    }
}

#[test]
fn the_log_level_is_shown_and_set() {
    let node = Node::start("");
    assert_eq!(node.run(&["log-level"]).out.trim(), "log level is info");
    node.ok(&["log-level", "debug"]);
    assert_eq!(node.json(&["log-level"]), json!({ "level": "debug", "configured": "info" }));
    assert_eq!(node.run(&["log-level"]).out.trim(), "log level is debug; the configuration file says info");
}

#[test]
fn help_groups_the_commands_and_pages_are_in_the_program() {
    let help = remuda(&["--help"]).out;
    for text in ["Getting started:", "Devices and pools:", "Exports and hosts:", "Watching:", "Exit codes:", "--socket"]
    {
        assert!(help.contains(text), "{text}: {help}");
    }
    for text in ["dev    is to try", "nvme connect -t tcp", "device create NAME --kind nvmf", "bench nvmf --addr"] {
        assert!(help.contains(text), "{text}: {help}");
    }
    assert_eq!(help, remuda(&["help"]).out);
    for file in ["remuda.service", "prometheus/remuda.rules.yml", "grafana/remuda.json", "Containerfile"] {
        let path = format!("{}/../dist/{file}", env!("CARGO_MANIFEST_DIR"));
        let printed = remuda(&["docs", file.rsplit('/').next().unwrap()]).out;
        assert_eq!(printed, std::fs::read_to_string(path).unwrap(), "{file} comes out as it is in the repository");
    }
    // It is broken into lines of the terminal's width.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let serve = words(&remuda(&["serve", "--help"]).out);
    assert!(serve.contains("audit.log in the state directory") && serve.contains("Usage: remuda serve"), "{serve}");
    let bench = words(&remuda(&["bench", "--help"]).out);
    assert!(bench.contains("That destroys what is there, and nobody asks first"), "{bench}");
    let topics = remuda(&["docs"]).out;
    assert!(topics.contains("pools") && topics.contains("security"), "{topics}");
    let page = remuda(&["docs", "pools"]);
    assert!(page.code == 0 && page.out.starts_with("# Pools") && !page.out.contains("](config.md"), "{}", page.out);
    assert!(remuda(&["docs", "config"]).out.contains("`state_dir`"));
    assert!(remuda(&["docs", "polls"]).err.contains("pools"));
    assert!(remuda(&["device", "kinds", "parity"]).out.contains("`remuda docs devices`"));
}

#[test]
fn a_bundle_of_a_dead_node_has_what_it_left_and_no_key() {
    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000a";
    let mut node = pools::node_on(
        pools::DEVICES,
        &format!("{}[[device]]\nname = 'm'\nkind = 'mem'\nsize = '8MiB'\n", pools::POOL),
    );
    let keys = ["host.key", "ctrl.key"].map(|name| node.path(name).to_string_lossy().into_owned());
    for key in &keys {
        assert_eq!(remuda(&["key", "generate", key]).code, 0);
    }
    let secrets = keys.clone().map(|key| std::fs::read_to_string(key).unwrap().split(':').nth(2).unwrap().to_string());
    node.ok(&["host", "allow", pools::NQN, HOST, "--dhchap-key", &keys[0], "--dhchap-ctrl-key", &keys[1]]);
    node.kill();
    // The configuration is wrong, and somebody has taken a key for the name of its file.
    let key = std::fs::read_to_string(&keys[0]).unwrap();
    let config = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), format!("{config}dhchap_kye = '{}'\n", key.trim())).unwrap();
    let archive = node.path("bundle.tar.gz");
    let made = node.json(&["debug", "bundle", &archive.to_string_lossy(), "--config", &node.config()]);
    let mut missing = made["missing"].as_array().unwrap().clone();
    // What this kernel has no file for is none of our business here.
    missing.retain(|one| !one["name"].as_str().unwrap().starts_with("machine/"));
    assert_eq!((missing.len(), &missing[0]["name"]), (1, &json!("node")), "{missing:?}");
    assert!(missing[0]["why"].as_str().unwrap().contains("no node answers"), "{missing:?}");
    let texts = texts_in(&archive);
    let text = |name: &str| &texts.iter().find(|(found, _)| found.ends_with(name)).expect(name).1;
    assert!(text("config.toml").contains("dhchap_kye = '(a key)'"));
    assert!(text("audit.log").contains("subsystem.allow_host"));
    assert!(text("doctor.json").contains("dhchap_kye"), "{}", text("doctor.json"));
    let state: Value = serde_json::from_str(text("state.json")).unwrap();
    assert_eq!(state["host_keys"][pools::NQN][HOST]["pair"]["key"], "(a key)");
    let pool: Value = serde_json::from_str(text("pools/hot.json")).unwrap();
    for (role, copy) in [("capacity", 0), ("capacity", 1), ("log", 0), ("log", 1)] {
        let superblock = &pool[role]["superblocks"][copy];
        assert_eq!((&superblock["name"], &superblock["role"]), (&json!("hot"), &json!(role)), "{pool:#}");
    }
    assert_eq!(pool["capacity"]["superblocks"][0]["pool"], pool["log"]["superblocks"][0]["pool"]);
    for (name, text) in &texts {
        assert!(secrets.iter().all(|secret| !text.contains(secret)) && !text.contains("DHHC-1:"), "{name}: {text}");
    }
    // Without a configuration it says what it lacks, and where to name it.
    let alone = node.path("alone.tar.gz");
    let made = node.run(&["debug", "bundle", &alone.to_string_lossy()]);
    assert!(
        made.code == 0 && made.out.contains("missing: config.toml: ") && made.out.contains("--config FILE"),
        "{}",
        made.out
    );
}

fn texts_in(archive: &Path) -> Vec<(String, String)> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(archive).unwrap()));
    let texts = archive.entries().unwrap().map(|entry| {
        let (mut entry, mut bytes) = (entry.unwrap(), Vec::new());
        entry.read_to_end(&mut bytes).unwrap();
        (entry.path().unwrap().display().to_string(), String::from_utf8_lossy(&bytes).into_owned())
    });
    texts.collect()
}
