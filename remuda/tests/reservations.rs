//! Reservations through the built program: a node that is killed, and hosts that find theirs again.

use crate::common::Node;
use nvme::initiator::{HostIdentity, NvmfDevice, Options};
use nvme::spec::Nqn;
use nvme::spec::reservation::{Keys, PersistenceChange, RegisterAction, ReservationCommand, ReservationType};
use reactor::Reactor;
use reactor::linux::{Runtime, RuntimeConfig};
use serde_json::json;
use std::rc::Rc;
use uuid::Uuid;

const NQN: &str = "nqn.2026-11.io.remuda:reserved";

fn node() -> Node {
    Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n\
         [[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n\
         [[volume]]\nname = 'a'\ndevice = 'm'\nsize = '16MiB'\n\
         [[volume]]\nname = 'b'\ndevice = 'm'\nsize = '8MiB'\n\
         [[subsystem]]\nnqn = '{NQN}'\nallow_any_host = true\nnamespaces = ['a', 'b']\n"
    ))
}

/// Lets a host work with a namespace.
fn as_host<F: Future<Output = ()> + 'static>(
    node: &Node,
    host: u128,
    nsid: u32,
    work: impl FnOnce(Rc<Reactor>, Rc<NvmfDevice>) -> F + Send + 'static,
) {
    let status = node.status();
    let address = status["nvmf_listen"][0].as_str().unwrap().parse().unwrap();
    let identity = HostIdentity::from_uuid(Uuid::from_u128(host));
    let options = Options::new(address, Nqn::new(NQN).unwrap(), identity);
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![None], ..RuntimeConfig::default() }).unwrap();
    let done = runtime.handles()[0].call_async(move |reactor| async move {
        let device = Rc::new(NvmfDevice::open(&reactor, "remote", &options, Some(nsid)).await.unwrap());
        work(reactor, device.clone()).await;
        device.close().await;
    });
    assert_eq!(done, Some(()));
}

fn name(host: u128) -> String {
    HostIdentity::from_uuid(Uuid::from_u128(host)).nqn.to_string()
}

fn register(persistence: PersistenceChange) -> ReservationCommand {
    ReservationCommand::Register { action: RegisterAction::Register, ignore_key: false, persistence }
}

#[test]
fn persistent_reservations_outlive_a_killed_node_and_others_do_not() {
    let mut node = node();
    let kind = ReservationType::ExclusiveAccess;
    for (nsid, persistence) in [(1, PersistenceChange::On), (2, PersistenceChange::Keep)] {
        as_host(&node, 0xa, nsid, move |reactor, device| async move {
            device.reserve(&reactor, register(persistence), Keys::new(0, 0xabc)).await.unwrap();
            device.acquire(&reactor, kind, 0xabc).await.unwrap();
        });
    }
    let shown = node.json(&["subsystem", "show", NQN]);
    let registrants = json!([
        { "host_id": Uuid::from_u128(0xa).to_string(), "host_nqn": name(0xa), "key": "0xabc", "holder": true }
    ]);
    let first = json!({
        "nsid": 1, "type": "exclusive access", "persistent": true, "generation": 1, "registrants": registrants,
    });
    assert_eq!(shown["reservations"][0], first);
    assert_eq!(shown["reservations"][1]["persistent"], json!(false));
    let text = node.run(&["subsystem", "show", NQN]).out;
    assert!(text.contains("namespace 1 is reserved: exclusive access, kept over restarts"), "{text}");
    node.kill();
    node.restart();
    assert_eq!(node.json(&["subsystem", "show", NQN])["reservations"], json!([first]));
    as_host(&node, 0xb, 1, move |reactor, device| async move {
        let report = device.reservations(&reactor).await.unwrap();
        assert_eq!((report.kind, report.persistent, report.hosts.len()), (Some(kind), true, 1));
        device.reserve(&reactor, register(PersistenceChange::Keep), Keys::new(0, 0xdef)).await.unwrap();
        assert!(device.acquire(&reactor, kind, 0xdef).await.is_err(), "another host holds it");
        device.preempt(&reactor, kind, 0xdef, 0xabc).await.unwrap();
    });
    node.kill();
    node.restart();
    let shown = node.json(&["subsystem", "show", NQN]);
    assert_eq!(shown["reservations"][0]["registrants"][0]["key"], json!("0xdef"));
    // A namespace that is taken away takes them with it.
    node.ok(&["subsystem", "remove-namespace", NQN, "1", "--force"]);
    node.ok(&["subsystem", "add-namespace", NQN, "a"]);
    assert_eq!(node.json(&["subsystem", "show", NQN]).get("reservations"), None);
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

#[test]
fn an_administrator_clears_what_a_dead_host_has_left() {
    let mut node = node();
    let kind = ReservationType::WriteExclusiveRegistrantsOnly;
    for (host, key) in [(0xa, 0xabc), (0xb, 0xdef)] {
        as_host(&node, host, 1, move |reactor, device| async move {
            device.reserve(&reactor, register(PersistenceChange::On), Keys::new(0, key)).await.unwrap();
            if host == 0xa {
                device.acquire(&reactor, kind, key).await.unwrap();
            }
        });
    }
    let listed = node.json(&["reservation", "list"]);
    assert_eq!((&listed[0]["nqn"], &listed[0]["volume"], &listed[0]["nsid"]), (&json!(NQN), &json!("a"), &json!(1)));
    assert_eq!(listed[0]["registrants"][1]["host_nqn"], json!(name(0xb)));
    let text = node.run(&["reservation", "list", NQN]).out;
    assert!(text.contains(&name(0xa)) && text.contains("holder"), "{text}");
    for (args, code, part) in [
        (&["b"][..], 5, "no host has registered"),
        (&["nothing"], 4, "there is no such namespace"),
        (&["a", "--host", &name(0xc)], 4, "has not registered"),
    ] {
        let run = node.run(&[&["reservation", "clear"], args].concat());
        assert!(run.code == code && run.err.contains(part), "{args:?}: {} {}", run.code, run.err);
    }
    // The holder is dead; the other one lives, is told, and may hold it then.
    let nobody = node.run(&["reservation", "clear", "a", "--host", ""]);
    assert!(
        nobody.code == 2 && nobody.err.contains("host: it is empty"),
        "nobody is not everybody: {}{}",
        nobody.out,
        nobody.err
    );
    let left = node.json(&["reservation", "clear", &format!("{NQN}/1"), "--host", &name(0xa)]);
    assert_eq!((&left["type"], left["registrants"].as_array().unwrap().len()), (&json!(null), 1), "{left}");
    as_host(&node, 0xb, 1, move |reactor, device| async move {
        device.acquire(&reactor, kind, 0xdef).await.unwrap();
    });
    node.kill();
    node.restart();
    let kept = node.json(&["reservation", "list"]);
    assert_eq!(kept[0]["registrants"].as_array().unwrap().len(), 1, "{kept}");
    assert_eq!(kept[0]["registrants"][0]["host_nqn"], json!(name(0xb)));
    assert_eq!(node.json(&["reservation", "clear", "a"])["registrants"], json!([]));
    node.kill();
    node.restart();
    assert_eq!(node.json(&["reservation", "list"]), json!([]), "what was cleared stays so");
    as_host(&node, 0xc, 1, move |reactor, device| async move {
        device.reserve(&reactor, register(PersistenceChange::Keep), Keys::new(0, 1)).await.unwrap();
        device.acquire(&reactor, ReservationType::ExclusiveAccess, 1).await.unwrap();
    });
    let audit = std::fs::read_to_string(node.path("state/audit.log")).unwrap();
    assert!(audit.contains("reservation.clear") && audit.contains(&name(0xa)), "{audit}");
    assert!(node.log().contains("registration was ended by command"), "{}", node.log());
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}
