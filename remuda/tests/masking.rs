//! Namespaces that some hosts do not see, through the built program: configuration, commands, restarts.

use crate::common::Node;
use nvme::initiator::{ConnectError, HostIdentity, NvmfDevice, Options};
use nvme::spec::Nqn;
use reactor::linux::{Runtime, RuntimeConfig};
use serde_json::json;
use uuid::Uuid;

const NQN: &str = "nqn.2026-11.io.remuda:masked";

fn name(host: u128) -> String {
    HostIdentity::from_uuid(Uuid::from_u128(host)).nqn.to_string()
}

/// The namespaces that a host finds, those among 1 to 3.
fn found(node: &Node, host: u128) -> Vec<u32> {
    let status = node.status();
    let address = status["nvmf_listen"][0].as_str().unwrap().parse().unwrap();
    let identity = HostIdentity::from_uuid(Uuid::from_u128(host));
    let options = Options::new(address, Nqn::new(NQN).unwrap(), identity);
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![None], ..RuntimeConfig::default() }).unwrap();
    let found = runtime.handles()[0].call_async(move |reactor| async move {
        let mut found = Vec::new();
        for nsid in 1..=3 {
            match NvmfDevice::open(&reactor, "remote", &options, Some(nsid)).await {
                Ok(device) => {
                    found.push(nsid);
                    device.close().await;
                }
                Err(error) => assert!(matches!(error, ConnectError::NoNamespace { .. }), "{error}"),
            }
        }
        found
    });
    found.unwrap()
}

#[test]
fn hosts_find_what_the_configuration_and_commands_show_them_also_after_a_restart() {
    let mut node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n\
         [[volume]]\nname = 'a'\ndevice = 'm'\nsize = '8MiB'\n\
         [[volume]]\nname = 'b'\ndevice = 'm'\nsize = '8MiB'\n\
         [[volume]]\nname = 'c'\ndevice = 'm'\nsize = '8MiB'\n\
         [[subsystem]]\nnqn = '{NQN}'\nhosts = ['{}', '{}']\n\
         namespaces = ['a', {{ volume = 'b', hosts = ['{}'] }}]\n",
        name(1),
        name(2),
        name(1),
    ));
    assert_eq!((found(&node, 1), found(&node, 2)), (vec![1, 2], vec![1]));
    node.ok(&["subsystem", "mask-namespace", NQN, "1", "--host", &name(2)]);
    node.ok(&["subsystem", "unmask-namespace", NQN, "2"]);
    node.ok(&["subsystem", "add-namespace", NQN, "c", "--host", &name(1)]);
    assert_eq!((found(&node, 1), found(&node, 2)), (vec![2, 3], vec![1, 2]));
    let shown = node.json(&["subsystem", "show", NQN]);
    assert_eq!(shown["namespaces"][0]["hosts"], json!([name(2)]));
    assert_eq!((shown["namespaces"][1].get("hosts"), &shown["differs_from_file"]), (None, &json!(true)));
    let text = node.run(&["subsystem", "show", NQN]).out;
    assert!(text.contains("SEEN BY") && text.contains("all"), "{text}");
    node.kill();
    node.restart();
    assert_eq!((found(&node, 1), found(&node, 2)), (vec![2, 3], vec![1, 2]));
    node.ok(&["subsystem", "mask-namespace", NQN, "2", "--nobody"]);
    assert_eq!((found(&node, 1), found(&node, 2)), (vec![3], vec![1]));
    let refused = node.run(&["subsystem", "mask-namespace", NQN, "9", "--nobody"]);
    assert!(refused.err.contains("it has 1, 2, 3"), "{}", refused.err);
    let refused = node.run(&["subsystem", "mask-namespace", NQN, "1", "--host", "me"]);
    assert!(refused.err.contains("'me' is not an NVMe name"), "{}", refused.err);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn asymmetric_access_is_configured_changed_by_command_and_kept() {
    let uuid = "0b9a2d1c-3c5b-4c39-9a43-3a8b2c2f6a11";
    let mut node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0', '127.0.0.1:0']\n\
         [[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n\
         [[volume]]\nname = 'a'\ndevice = 'm'\nsize = '8MiB'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\ncontroller_ids = '100-200'\n\
         namespaces = [{{ volume = 'a', ana_group = 2, uuid = '{uuid}' }}]\n\
         ana = [{{ group = 2, state = 'non-optimized' }}]\n"
    ));
    let shown = |node: &Node| node.json(&["subsystem", "show", NQN]);
    let first = shown(&node);
    assert_eq!(first["ana"], json!([{ "group": 2, "state": "non-optimized" }]));
    assert_eq!((&first["namespaces"][0]["ana_group"], &first["namespaces"][0]["uuid"]), (&json!(2), &json!(uuid)));
    assert_eq!(found(&node, 1), [1]);
    let port = node.status()["nvmf_listen"][0].as_str().unwrap().to_string();
    node.ok(&["subsystem", "set-ana", NQN, "inaccessible", "--group", "2", "--port", &port]);
    let at_port = json!({ "group": 2, "port": port, "state": "inaccessible" });
    assert_eq!(shown(&node)["ana"], json!([{ "group": 2, "state": "non-optimized" }, at_port]));
    let text = node.run(&["subsystem", "show", NQN]).out;
    assert!(text.contains("every other") && text.contains("inaccessible"), "{text}");
    node.ok(&["subsystem", "set-ana", NQN, "change", "--group", "2"]);
    node.kill();
    node.restart();
    assert_eq!(shown(&node)["ana"], json!([{ "group": 2, "state": "change" }]));
    node.ok(&["subsystem", "set-ana", NQN, "inaccessible", "--group", "2"]);
    let address = node.json(&["status"])["nvmf_listen"][0].as_str().unwrap().to_string();
    let load = ["--nqn", NQN, "--time", "100ms", "--warmup", "0s", "--loss-timeout", "200ms"];
    let run = crate::common::remuda(&[&["bench", "nvmf", "--addr", &address], &load[..]].concat());
    let said = run.out + &run.err;
    assert!(run.code != 0 && said.contains("inaccessible (ANA)") && !said.contains("device is gone"), "{said}");
    node.ok(&["subsystem", "set-ana", NQN, "optimized", "--group", "2"]);
    assert_eq!(shown(&node).get("ana"), None);
    let refused = node.run(&["subsystem", "set-ana", NQN, "optimised"]);
    assert!(refused.err.contains("did you mean 'optimized'?"), "{}", refused.err);
    let refused = node.run(&["subsystem", "set-ana", NQN, "inaccessible", "--port", "10.1.2.3:4420"]);
    assert!(refused.err.contains("does not listen there") && refused.err.contains("127.0.0.1"), "{}", refused.err);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}
