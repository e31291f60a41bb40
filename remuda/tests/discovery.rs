//! What hosts are told by the discovery service of the built program.

mod common;

use common::Node;
use nvme::initiator::{HostIdentity, Options, discover};
use nvme::spec::Nqn;
use reactor::linux::{Runtime, RuntimeConfig};
use serde_json::json;
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
