//! DH-HMAC-CHAP through the built program: keys from the command line and from the configuration, and that nobody sees them.

use crate::common::{Node, remuda};
use nvme::auth::{HostKeys, Secret};
use nvme::initiator::{AuthenticationError, ConnectError, HostIdentity, NvmfDevice, Options};
use nvme::spec::Nqn;
use reactor::linux::{Runtime, RuntimeConfig};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use uuid::Uuid;

const NQN: &str = "nqn.2026-11.io.remuda:guarded";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000a";
const VOLUME: &str = "[[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n\
                      [[volume]]\nname = 'a'\ndevice = 'm'\nsize = '16MiB'\n";

fn generate(dir: &Path, name: &str) -> String {
    let path = dir.join(name).to_string_lossy().into_owned();
    let run = remuda(&["key", "generate", &path]);
    assert_eq!(run.code, 0, "{}", run.err);
    path
}

fn secret(path: &str) -> Arc<Secret> {
    Arc::new(Secret::parse(&std::fs::read_to_string(path).unwrap()).unwrap())
}

/// Tries to use the namespace with these key files: the host's, and the node's.
fn connect(node: &Node, key: Option<&str>, ctrl_key: Option<&str>) -> Result<(), AuthenticationError> {
    let address = node.status()["nvmf_listen"][0].as_str().unwrap().parse().unwrap();
    let identity = HostIdentity::from_uuid(Uuid::from_u128(0xa));
    assert_eq!(identity.nqn.as_str(), HOST);
    let keys = key.map(|key| HostKeys { controller: ctrl_key.map(secret), ..HostKeys::new(secret(key)) });
    let options = Options { keys, ..Options::new(address, Nqn::new(NQN).unwrap(), identity) };
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![None], ..RuntimeConfig::default() }).unwrap();
    let done = runtime.handles()[0].call_async(move |reactor| async move {
        match NvmfDevice::open(&reactor, "remote", &options, Some(1)).await {
            Ok(device) => {
                device.close().await;
                Ok(())
            }
            Err(ConnectError::Authentication { error, .. }) => Err(error),
            Err(other) => panic!("{other}"),
        }
    });
    done.unwrap()
}

fn refused(outcome: &Result<(), AuthenticationError>) -> bool {
    matches!(outcome, Err(AuthenticationError::Refused(_)))
}

#[test]
fn keys_given_by_command_are_needed_change_with_grace_and_last_over_a_kill() {
    let mut node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n{VOLUME}\
         [[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n"
    ));
    let dir = tempfile::tempdir().unwrap();
    let [first, second, ours] = ["first", "second", "ours"].map(|name| generate(dir.path(), name));
    assert_eq!(connect(&node, None, None), Ok(()));
    node.ok(&["host", "allow", NQN, HOST, "--dhchap-key", &first, "--dhchap-ctrl-key", &ours]);
    let shown = node.run(&["subsystem", "show", NQN]).out;
    for part in ["nvme connect ", "--hostnqn ", "--dhchap-secret \"$(cat ", "--dhchap-ctrl-secret \"$(cat "] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(connect(&node, None, None), Err(AuthenticationError::NoKey));
    assert!(refused(&connect(&node, Some(&second), None)));
    assert_eq!(connect(&node, Some(&first), None), Ok(()));
    assert_eq!(connect(&node, Some(&first), Some(&ours)), Ok(()));
    assert!(matches!(connect(&node, Some(&first), Some(&second)), Err(AuthenticationError::Distrusted(_))));

    node.kill();
    node.restart();
    assert_eq!(connect(&node, None, None), Err(AuthenticationError::NoKey));
    assert_eq!(connect(&node, Some(&first), Some(&ours)), Ok(()));

    node.ok(&["host", "allow", NQN, HOST, "--dhchap-key", &second, "--grace", "1h", "--dhchap-hash", "sha384"]);
    assert_eq!(connect(&node, Some(&first), Some(&ours)), Ok(()), "the former pair");
    assert_eq!(connect(&node, Some(&second), None), Ok(()));
    let shown = &node.json(&["host", "list"])[0]["dhchap"];
    assert_eq!((&shown["both_sides"], &shown["hashes"]), (&json!(true), &json!(["sha384"])));
    let until = shown["former_key_until"].as_str().expect("the grace").to_string();
    assert!(node.run(&["host", "list"]).out.contains(&until), "{}", node.run(&["host", "list"]).out);
    node.kill();
    node.restart();
    assert_eq!(connect(&node, Some(&first), None), Ok(()), "the grace is remembered");
    node.ok(&["host", "allow", NQN, HOST, "--dhchap-key", &second]);
    assert!(refused(&connect(&node, Some(&first), None)));
    assert_eq!(connect(&node, Some(&second), None), Ok(()));

    node.ok(&["host", "allow", NQN, HOST]);
    assert_eq!(connect(&node, None, None), Err(AuthenticationError::NoKey), "allowing again takes no key away");
    node.ok(&["host", "allow", NQN, HOST, "--no-dhchap"]);
    assert_eq!(connect(&node, None, None), Ok(()));
    node.ok(&["host", "allow", NQN, HOST, "--dhchap-key", &first]);
    node.ok(&["host", "disallow", NQN, HOST]);
    node.ok(&["host", "allow", NQN, HOST]);
    assert_eq!(connect(&node, None, None), Ok(()), "the key went with the permission");
}

#[test]
fn no_answer_log_or_bundle_has_a_key() {
    let node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n{VOLUME}\
         [[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n"
    ));
    node.ok(&["log-level", "trace"]);
    let dir = tempfile::tempdir().unwrap();
    let [key, ours] = ["key", "ours"].map(|name| generate(dir.path(), name));
    let texts = [&key, &ours].map(|path| std::fs::read_to_string(path).unwrap().trim().to_string());
    let base64 = texts.clone().map(|text| text.split(':').nth(2).unwrap().to_string());
    let clean = |what: &str, text: &str| {
        for secret in &base64 {
            assert!(!text.contains(secret) && !text.contains("DHHC-1:"), "{what}: {text}");
        }
    };
    let allow = ["host", "allow", NQN, HOST, "--dhchap-key", &key, "--dhchap-ctrl-key", &ours, "--grace", "1h"];
    for args in [&allow[..], &allow[..], &["host", "list"], &["subsystem", "show", NQN], &["status"], &["stats"]] {
        for run in [node.run(args), node.run(&[&["--json"], args].concat())] {
            assert_eq!(run.code, 0, "{}", run.err);
            clean(&format!("{args:?}"), &(run.out + &run.err));
        }
    }
    // Somebody takes the key for the name of its file.
    let run = node.run(&["host", "allow", NQN, HOST, "--dhchap-key", &texts[0]]);
    assert_ne!(run.code, 0);
    clean("a refusal", &(run.out + &run.err));
    assert_eq!(connect(&node, Some(&key), Some(&ours)), Ok(()));
    assert!(refused(&connect(&node, Some(&ours), None)));
    // Our own host says which key is missing, or wrong, and which command puts that right.
    let address = node.json(&["status"])["nvmf_listen"][0].as_str().unwrap().to_string();
    let (ip, port) = address.rsplit_once(':').unwrap();
    let bench = ["bench", "nvmf", "--addr", ip, "--port", port, "--nqn", NQN, "--time", "10ms", "--host-nqn"];
    let other = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000b";
    for (host, more, next) in [
        (HOST, &[][..], format!("remuda host allow {NQN} {HOST} --dhchap-key FILE sets it")),
        (HOST, &["--dhchap-key", &ours], format!("remuda host allow {NQN} {HOST} --dhchap-key FILE, with the file")),
        (
            HOST,
            &["--dhchap-key", &key, "--dhchap-ctrl-key", &key],
            "--dhchap-ctrl-key FILE, with the files".to_string(),
        ),
        (other, &[], format!("remuda host allow {NQN} {other}")),
    ] {
        let run = remuda(&[&bench[..], &[host], more].concat());
        assert!(run.code == 1 && run.err.contains(&next), "{more:?}: {} {}", run.code, run.err);
    }
    let audit = std::fs::read_to_string(node.path("state").join("audit.log")).unwrap();
    assert!(audit.contains("(a key)") && audit.contains("subsystem.allow_host"), "{audit}");
    clean("audit log", &audit);
    assert!(node.log().contains("authentication failed"), "{}", node.log());
    clean("log", &node.log());

    let bundle = dir.path().join("bundle.tar.gz").to_string_lossy().into_owned();
    node.ok(&["debug", "bundle", &bundle]);
    let unpacked = Command::new("tar").args(["-xzOf", &bundle]).output().unwrap();
    assert!(unpacked.status.success());
    clean("bundle", &String::from_utf8_lossy(&unpacked.stdout));

    let state = node.path("state").join("state.json");
    assert_eq!(std::fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(std::fs::read_to_string(&state).unwrap().contains(&base64[0]), "where it is kept");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let again = remuda(&["key", "generate", &key]);
    assert_ne!(again.code, 0, "never over a key that is there");
}

#[test]
fn configured_keys_hold_until_a_command_changes_them_and_again_when_the_file_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second, third, ours] = ["first", "second", "third", "ours"].map(|name| generate(dir.path(), name));
    let config = |key: &str| {
        format!(
            "[nvmf]\nlisten = ['127.0.0.1:0']\n{VOLUME}\
             [[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n\
             host_keys = [{{ host = '{HOST}', dhchap_key = '{key}', dhchap_ctrl_key = '{ours}', \
             dhchap_dhgroup = ['ffdhe2048'] }}]\n"
        )
    };
    let mut node = Node::start(&config(&first));
    assert_eq!(connect(&node, Some(&first), Some(&ours)), Ok(()));
    assert_ne!(node.run(&["host", "allow", NQN, HOST, "--no-dhchap"]).code, 0, "the file says that there is one");
    node.ok(&["host", "allow", NQN, HOST, "--dhchap-key", &second]);
    for _ in 0..2 {
        assert!(refused(&connect(&node, Some(&first), None)));
        assert_eq!(connect(&node, Some(&second), Some(&ours)), Ok(()), "the node's own key stays");
        node.kill();
        node.restart();
    }
    node.kill();
    let text = std::fs::read_to_string(node.config()).unwrap().replace(&first, &third);
    std::fs::write(node.config(), text).unwrap();
    node.restart();
    assert!(refused(&connect(&node, Some(&second), None)));
    assert_eq!(connect(&node, Some(&third), Some(&ours)), Ok(()));
    node.ok(&["host", "allow", NQN, HOST, "--dhchap-key", &third, "--no-dhchap-ctrl"]);
    assert_eq!(connect(&node, Some(&third), None), Ok(()));
    let Err(unproven) = connect(&node, Some(&third), Some(&ours)) else {
        panic!("the node has nothing to prove itself with")
    };
    assert!(unproven.to_string().contains("the controller's where the host wants it proven"), "{unproven}");
}

#[test]
fn a_node_uses_the_namespace_of_another_that_wants_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let [key, ours] = ["key", "ours"].map(|name| generate(dir.path(), name));
    let target = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n{VOLUME}\
         [[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n\
         host_keys = [{{ host = '{HOST}', dhchap_key = '{key}', dhchap_ctrl_key = '{ours}' }}]\n"
    ));
    let address = target.status()["nvmf_listen"][0].as_str().unwrap().to_string();
    let user = Node::start("");
    let (address, nqn, host) = (format!("address={address}"), format!("nqn={NQN}"), format!("host_nqn={HOST}"));
    let create = ["device", "create", "r", "--kind", "nvmf", &address, &nqn, &host];
    let run = user.run(&create);
    assert!(run.code != 0 && run.err.contains("dhchap_key"), "{}", run.err);
    let (key, ours) = (format!("dhchap_key={key}"), format!("dhchap_ctrl_key={ours}"));
    user.ok(&[&create[..], &[&key, &ours]].concat());
    assert_eq!(user.json(&["device", "show", "r"])["state"], json!("open"));
}

#[test]
fn what_is_wrong_about_keys_is_found_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let good = generate(dir.path(), "good");
    let bad = dir.path().join("bad").to_string_lossy().into_owned();
    std::fs::write(&bad, std::fs::read_to_string(&good).unwrap()).unwrap();
    std::fs::set_permissions(&bad, std::fs::Permissions::from_mode(0o644)).unwrap();
    let none = dir.path().join("none").to_string_lossy().into_owned();
    let check = |hosts: &str, key: &str| {
        let file = dir.path().join("node.toml");
        let text = format!(
            "[node]\nstate_dir = 'state'\n[[subsystem]]\nnqn = '{NQN}'\nhosts = [{hosts}]\nhost_keys = [{key}]\n"
        );
        std::fs::write(&file, text).unwrap();
        let run = remuda(&["config", "check", &file.to_string_lossy()]);
        (run.code, run.out + &run.err)
    };
    let host = format!("'{HOST}'");
    let entry = |file: &str, rest: &str| format!("{{ host = '{HOST}', dhchap_key = '{file}'{rest} }}");
    assert_eq!(check(&host, &entry(&good, "")).0, 0);
    for (hosts, key, word) in [
        (host.as_str(), entry(&bad, ""), "can be read by others"),
        (&host, entry(&none, ""), "remuda key generate"),
        (&host, entry("DHHC-1:00:AAAA:", ""), "a key itself"),
        (&host, entry(&good, ", dhchap_hash = ['md5']"), "md5"),
        (&host, entry(&good, ", dhchap_dhgroup = ['null', 'null']"), "twice"),
        (&host, format!("{}, {}", entry(&good, ""), entry(&good, "")), "already"),
        (&host, entry(&good, ", dhchap_keys = 'x'"), "did you mean"),
        ("", entry(&good, ""), "may not connect"),
    ] {
        let (code, text) = check(hosts, &key);
        assert!(code != 0 && text.contains(word), "{key}: {text}");
    }
}

#[test]
fn hosts_that_come_go_and_are_turned_away_are_logged_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let [key, other] = ["key", "other"].map(|name| generate(dir.path(), name));
    let node = Node::start(&format!(
        "[nvmf]\nlisten = ['127.0.0.1:0']\n{VOLUME}\
         [[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n\
         host_keys = [{{ host = '{HOST}', dhchap_key = '{key}' }}]\n"
    ));
    assert_eq!(connect(&node, Some(&key), None), Ok(()));
    // The node notices a moment after the host has gone.
    let line = |what: &str| node.log_line(what);
    let came = line("host connected");
    for part in [HOST, NQN, "peer=127.0.0.1:", "cntlid=", "authenticated=true", "tls=false"] {
        assert!(came.contains(part), "{part}: {came}");
    }
    assert!(line("host left").contains(HOST), "{}", line("host left"));
    assert!(refused(&connect(&node, Some(&other), None)));
    assert!(line("authentication failed").contains("the key does not match"), "{}", node.log());
    let address = node.json(&["status"])["nvmf_listen"][0].as_str().unwrap().to_string();
    let stranger = "nqn.2026-11.org.example:stranger";
    for (nqn, host) in [(NQN, stranger), ("nqn.2026-11.org.example:nothing", HOST)] {
        let load = ["--nqn", nqn, "--host-nqn", host, "--time", "1s", "--loss-timeout", "1s"];
        assert_ne!(remuda(&[&["bench", "nvmf", "--addr", &address], &load[..]].concat()).code, 0);
    }
    let turned_away = line("may not connect to it");
    assert!(turned_away.contains(stranger) && turned_away.contains("peer=127.0.0.1:"), "{turned_away}");
    assert!(line("there is no such subsystem here").contains("org.example:nothing"), "{}", node.log());
    let metrics = crate::common::http_get(node.json(&["status"])["metrics"].as_str().unwrap());
    for reason in ["authentication", "not_allowed", "unknown_subsystem"] {
        let name = format!("remuda_host_refusals_total{{reason=\"{reason}\"}} ");
        let count = metrics.lines().find_map(|line| line.strip_prefix(&name));
        assert!(count.is_some_and(|count| count != "0"), "{reason}: {metrics}");
    }
    assert!(metrics.contains("remuda_host_refusals_total{reason=\"limit\"} 0\n"), "{metrics}");
}
