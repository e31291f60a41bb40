//! What the tools say, of a node and of themselves, through the built program.

mod common;

use common::Node;

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
