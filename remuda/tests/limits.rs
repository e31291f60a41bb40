//! Limits of hosts and volumes through the built program, and what hosts are seen to do.

use crate::common::Node;
use nvme::initiator::{HostIdentity, NvmfDevice, Options};
use nvme::spec::Nqn;
use reactor::SgList;
use reactor::linux::{Runtime, RuntimeConfig};
use serde_json::json;
use std::rc::Rc;
use uuid::Uuid;

const NQN: &str = "nqn.2026-11.io.remuda:limited";

fn name(host: u128) -> String {
    HostIdentity::from_uuid(Uuid::from_u128(host)).nqn.to_string()
}

#[test]
fn limits_come_from_the_file_and_from_commands_and_hosts_are_counted() {
    let host = name(1);
    let mut node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n\
         [[volume]]\nname = 'a'\ndevice = 'm'\nsize = '8MiB'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['a']\n\
         [[limit]]\nhost = '{host}'\niops = 100000\n\
         [[limit]]\nvolume = 'a'\nbandwidth = '1GiB'\n"
    ));
    let list = |node: &Node| node.json(&["limit", "list"]);
    let of_host =
        json!({ "host": host, "iops": 100_000, "bandwidth": null, "origin": "config", "differs_from_file": false });
    assert_eq!(list(&node)[0], of_host);
    assert_eq!((&list(&node)[1]["volume"], &list(&node)[1]["bandwidth"]), (&json!("a"), &json!(1 << 30)));
    let status = node.status();
    let address = status["nvmf_listen"][0].as_str().unwrap().parse().unwrap();
    let options = Options::new(address, Nqn::new(NQN).unwrap(), HostIdentity::from_uuid(Uuid::from_u128(1)));
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![None], ..RuntimeConfig::default() }).unwrap();
    let metrics = status["metrics"].as_str().unwrap().to_string();
    let (told, done) = std::sync::mpsc::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let handle = runtime.handles()[0].clone();
    let host_thread = std::thread::spawn(move || {
        handle.call_async(move |reactor| async move {
            let device = Rc::new(NvmfDevice::open(&reactor, "remote", &options, Some(1)).await.unwrap());
            let channel = bdev::BlockDevice::open_channel(&*device, &reactor).unwrap();
            for lba in 0..8 {
                let buf = reactor.pool().alloc(4096).await;
                let done = channel.submit(bdev::Io::read(bdev::Lba(lba), 1, SgList::from_iter([buf]))).await;
                assert!(done.status.is_ok());
            }
            told.send(()).unwrap();
            while wait.try_recv().is_err() {
                reactor.sleep_ns(1_000_000).await;
            }
            drop(channel);
            device.close().await;
        })
    });
    done.recv().unwrap();
    let stats = node.json(&["rpc", "stats"]);
    let seen = &stats["hosts"][0];
    assert_eq!((&seen["host"], &seen["iops_limit"]), (&json!(host), &json!(100_000)));
    assert!(seen["reads"].as_u64() >= Some(8) && seen["read_bytes"].as_u64() >= Some(8 * 4096), "{seen}");
    let connected = &node.json(&["host", "list", NQN])[0]["connected"][0];
    assert_eq!((&connected["host"], &connected["peers"]), (&json!(host), &json!(["127.0.0.1"])), "{connected}");
    assert_eq!((&connected["tls"], &connected["authenticated"]), (&json!(false), &json!(false)), "{connected}");
    assert_eq!(connected["host_id"], json!(Uuid::from_u128(1).to_string()));
    let shown = node.run(&["host", "list"]).out;
    assert!(shown.contains("1 controller") && shown.contains("from 127.0.0.1"), "{shown}");
    let shown = node.run(&["status"]).out;
    assert!(shown.contains("FROM") && shown.contains("127.0.0.1"), "{shown}");
    let text = crate::common::http_get(&metrics);
    assert!(text.contains(&format!("remuda_host_reads_total{{host=\"{host}\"}}")), "{text}");
    go_on.send(()).unwrap();
    assert_eq!(host_thread.join().unwrap(), Some(()));

    node.ok(&["limit", "set", "--host", &host, "--bandwidth", "64MiB"]);
    let removed = node.run(&["limit", "remove", "--volume", "a"]);
    assert_eq!((removed.code, removed.out.trim()), (0, "limit removed: volume 'a'"), "{}", removed.err);
    for (of, absent) in
        [(["--volume", "a"], "limit of volume 'a'"), (["--host", NQN], NQN), (["--volume", "b"], "volume 'b'")]
    {
        let refused = node.run(&[&["limit", "remove"], &of[..]].concat());
        assert!(refused.code == 4 && refused.err.contains(absent), "{}: {}", refused.code, refused.err);
    }
    let changed =
        json!({ "host": host, "iops": null, "bandwidth": 64 << 20, "origin": "config", "differs_from_file": true });
    assert_eq!(list(&node), json!([changed]));
    let text = node.run(&["limit", "list"]).out;
    assert!(text.contains("64 MiB/s") && text.contains("config, changed"), "{text}");
    node.kill();
    node.restart();
    assert_eq!(list(&node), json!([changed]));
    let refused = node.run(&["limit", "set", "--volume", "b", "--iops", "7"]);
    assert!(refused.err.contains("volume 'b'"), "{}", refused.err);
    let refused = node.run(&["limit", "set", "--volume", "a", "--bandwidth", "4KiB"]);
    assert!(refused.err.contains("at least 1 MiB"), "{}", refused.err);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn who_opens_connections_without_using_them_keeps_nobody_from_the_node() {
    let mut node = Node::start("[nvmf]\nlisten = ['127.0.0.1:0']\n");
    node.kill();
    node.restart_after("ulimit -n 64");
    let status = node.status();
    let address: std::net::SocketAddr = status["nvmf_listen"][0].as_str().unwrap().parse().unwrap();
    let idle: Vec<_> = (0..80).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    assert_eq!(node.run(&["status"]).code, 0);
    let alive = crate::common::http_get(&status["metrics"].as_str().unwrap().replace("/metrics", "/livez"));
    assert!(alive.contains("200 OK"), "{alive}");
    drop(idle);
    assert!(node.log().contains("ulimit -n"), "{}", node.log());
    node.kill();
    // What it may have without asking is less than what it may raise that to.
    node.restart_after("ulimit -Sn 64");
    assert_eq!(node.log().matches("connections are taken instead of max_connections").count(), 1, "{}", node.log());
}

#[test]
fn a_host_over_its_limit_stays_connected_and_is_never_refused() {
    let host = name(7);
    let mut node = Node::start(&format!(
        "reactors = 2\n[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n\
         [[volume]]\nname = 'a'\ndevice = 'm'\nsize = '8MiB'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['a']\n"
    ));
    node.ok(&["limit", "set", "--host", &host, "--iops", "100"]);
    let status = node.status();
    let address = status["nvmf_listen"][0].as_str().unwrap().to_string();
    for depth in ["1", "32"] {
        let load = ["bench", "nvmf", "--addr", &address, "--nqn", NQN, "--host-nqn", &host, "--qd", depth];
        let run = crate::common::remuda(&[&load[..], &["--warmup", "0s", "--time", "500ms"]].concat());
        assert_eq!(run.code, 0, "{}", run.err);
        for text in [&run.err, &node.log()] {
            assert!(!text.contains("association lost") && !text.contains("refused"), "depth {depth}: {text}");
        }
    }
    let text = crate::common::http_get(status["metrics"].as_str().unwrap());
    let mut refusals = text.lines().filter(|line| line.starts_with("remuda_host_refusals_total{")).peekable();
    assert!(refusals.peek().is_some() && refusals.all(|line| line.ends_with(" 0")), "{text}");
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}
