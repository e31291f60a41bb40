//! What hosts are told by the discovery service of the built program, and what it sees itself as a host that asks.

use crate::common::{Node, free_port, remuda};
use nvme::initiator::{HostIdentity, Options, discover};
use nvme::spec::Nqn;
use reactor::linux::{Runtime, RuntimeConfig};
use serde_json::{Value, json};
use uuid::Uuid;

/// Discovery services that a host hears of, the one that it asks left out.
fn referrals(node: &Node) -> Vec<String> {
    let own = node.status()["nvmf_listen"][0].as_str().unwrap().to_string();
    let options = Options::new(own.parse().unwrap(), Nqn::discovery(), HostIdentity::from_uuid(Uuid::from_u128(0xa)));
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![None], ..RuntimeConfig::default() }).unwrap();
    let found = runtime.handles()[0].call_async(move |reactor| async move { discover(&reactor, &options).await });
    let entries = found.unwrap().unwrap();
    let services = entries.iter().filter(|entry| entry.nqn.is_discovery() && !entry.is_nvm);
    services.map(|entry| format!("{}:{}", entry.address, entry.service)).filter(|address| *address != own).collect()
}

#[test]
fn hosts_are_told_of_other_discovery_services() {
    let mut node = Node::start("[nvmf]\nlisten = ['127.0.0.1:0']\nreferrals = ['192.0.2.7:8009']\n");
    assert_eq!(referrals(&node), ["192.0.2.7:8009"]);
    node.ok(&["referral", "add", "192.0.2.8:8009"]);
    assert_eq!(referrals(&node), ["192.0.2.7:8009", "192.0.2.8:8009"]);
    assert_ne!(node.run(&["referral", "add", "192.0.2.7:8009"]).code, 0, "it is there");
    assert_ne!(node.run(&["referral", "add", "example"]).code, 0, "no address");
    assert_ne!(node.run(&["referral", "remove", "192.0.2.7:8009"]).code, 0, "the file has it");
    node.kill();
    node.restart();
    assert_eq!(referrals(&node).len(), 2);
    node.ok(&["referral", "remove", "192.0.2.8:8009"]);
    assert_eq!(node.json(&["referral", "list"]), json!([{ "address": "192.0.2.7:8009", "origin": "config" }]));
    assert_eq!(referrals(&node), ["192.0.2.7:8009"]);
}

const DISKS: &str = "nqn.2026-11.io.remuda:disks";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000a";

/// A node with one volume, which `HOST` alone may use.
fn disks(rest: &str) -> Node {
    Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\nreferrals = ['192.0.2.7:8009']\n\
         [[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\nblock_size = 4096\n\
         [[volume]]\nname = 'a'\ndevice = 'm'\nsize = '16MiB'\n\
         [[subsystem]]\nnqn = '{DISKS}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n{rest}"
    ))
}

fn address(node: &Node) -> String {
    node.json(&["status"])["nvmf_listen"][0].as_str().unwrap().to_string()
}

#[test]
fn discover_lists_subsystems_referrals_and_namespaces() {
    let node = disks("");
    let at = address(&node);
    let ask = |words: &[&str]| {
        let run = remuda(&[&["--json", "discover", &at], words].concat());
        assert_eq!(run.code, 0, "{}{}", run.out, run.err);
        run.json()
    };
    let named = |answer: &Value| -> Vec<(String, String)> {
        let text = |entry: &Value, key: &str| entry[key].as_str().unwrap().to_string();
        answer["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| (text(entry, "kind"), text(entry, "address")))
            .collect()
    };
    let everybody = [("discovery".to_string(), at.clone()), ("referral".to_string(), "192.0.2.7:8009".to_string())];
    assert_eq!(named(&ask(&[])), everybody, "a host that may use nothing");
    let answer = ask(&["--host-nqn", HOST, "--namespaces"]);
    assert_eq!(answer["host_nqn"], json!(HOST));
    let entries = answer["entries"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["kind"] == "nvm").expect("the subsystem");
    assert_eq!((&entry["nqn"], &entry["address"], &entry["tls"]), (&json!(DISKS), &json!(at), &json!("not required")));
    let namespace = &entry["namespaces"][0];
    let uuid = node.json(&["volume", "show", "a"])["uuid"].clone();
    assert_eq!((&namespace["nsid"], &namespace["uuid"], &namespace["ana"]), (&json!(1), &uuid, &json!("optimized")));
    assert_eq!((&namespace["size"], &namespace["block_size"]), (&json!(16 << 20), &json!(4096)));
    node.ok(&["subsystem", "set-ana", DISKS, "inaccessible"]);
    let text = remuda(&["discover", &at, "--host-nqn", HOST, "--namespaces"]).out;
    assert!(text.contains("inaccessible") && text.contains("192.0.2.7:8009") && text.contains("16 MiB"), "{text}");
}

#[test]
fn discover_says_what_keeps_it_from_a_subsystem_and_from_a_service() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key").to_string_lossy().into_owned();
    assert_eq!(remuda(&["key", "generate", &key]).code, 0);
    let node = disks(&format!("host_keys = [{{ host = '{HOST}', dhchap_key = '{key}' }}]\n"));
    let at = address(&node);
    let ask = |words: &[&str]| {
        let run = remuda(&[&["--json", "discover", &at, "--namespaces", "--host-nqn", HOST], words].concat());
        let found = run.json()["entries"].as_array().unwrap().iter().find(|entry| entry["kind"] == "nvm").cloned();
        (run.code, found.unwrap())
    };
    let (code, without) = ask(&[]);
    assert_eq!(code, 1, "what was asked for could not be had");
    let error = without["error"].as_str().unwrap();
    assert!(error.contains(&at) && error.contains("--dhchap-key"), "{error}");
    let (code, with) = ask(&["--dhchap-key", &key]);
    assert_eq!((code, &with["namespaces"][0]["nsid"]), (0, &json!(1)));
    let nobody = free_port();
    let run = remuda(&["discover", &format!("127.0.0.1:{nobody}")]);
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(
        run.err.contains(&format!("127.0.0.1:{nobody}")) && run.err.contains("is a target listening"),
        "{}",
        run.err
    );
    // No name has a part of that length, so that nobody has to be asked.
    let run = remuda(&["discover", &format!("{}.invalid", "x".repeat(70))]);
    assert!(run.code == 1 && run.err.contains("has no address") && !run.err.contains("--help"), "{}", run.err);
    assert_eq!(remuda(&["discover", "127.0.0.1:x"]).code, 2);
    assert_eq!(remuda(&["discover", &at, "--host-nqn", "me"]).code, 2);
}
