//! TLS through the built program: keys from the command line and from the configuration, what is refused and what the log says of it,
//! and that nobody sees a key. Without the feature: that whoever asks for TLS is told.

use crate::common::{Node, remuda};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const NQN: &str = "nqn.2026-11.io.remuda:vault";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000a";

fn generate(dir: &Path, name: &str, hash: &str) -> String {
    let path = dir.join(name).to_string_lossy().into_owned();
    let run = remuda(&["key", "generate", "--tls", "--hash", hash, &path]);
    assert_eq!(run.code, 0, "{}", run.err);
    path
}

#[test]
fn generated_keys_are_in_the_form_of_nvme_cli_and_their_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (hash, prefix, len) in [("sha256", "NVMeTLSkey-1:01:", 65), ("sha384", "NVMeTLSkey-1:02:", 89)] {
        let path = generate(dir.path(), hash, hash);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(prefix) && text.trim().len() == len, "{text}");
        assert!(nvme::tls::Psk::parse(&text).is_ok());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(remuda(&["key", "generate", "--tls", &path]).code, 0, "never over a key that is there");
    }
    let run = remuda(&["key", "generate", "--tls", "--hash", "none"]);
    assert!(run.code != 0 && run.err.contains("sha384"), "{}", run.err);
}

/// What `config check` says of a file.
fn check(dir: &Path, text: &str) -> (i32, String) {
    let file = dir.join("node.toml");
    std::fs::write(&file, format!("[node]\nstate_dir = 'state'\n{text}")).unwrap();
    let run = remuda(&["config", "check", &file.to_string_lossy()]);
    (run.code, run.out + &run.err)
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_build_without_tls_says_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let key = generate(dir.path(), "key", "sha256");
    let subsystem = format!(
        "[[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nhost_keys = [{{ host = '{HOST}', tls_key = '{key}' }}]\n"
    );
    let device = format!("[[device]]\nname='r'\nkind='nvmf'\naddress='127.0.0.1:4420'\nnqn='{NQN}'\ntls_key='{key}'\n");
    for text in ["[nvmf]\nlisten_tls = ['127.0.0.1:0']\n", &subsystem, &device] {
        let (code, said) = check(dir.path(), text);
        assert!(code != 0 && said.contains("--features tls"), "{said}");
    }
    let node = Node::start(&format!("[[subsystem]]\nnqn = '{NQN}'\n"));
    let run = node.run(&["host", "allow", NQN, HOST, "--tls-key", &key]);
    assert!(run.code != 0 && run.err.contains("--features tls"), "{}", run.err);
}

#[cfg(feature = "tls")]
mod built {
    use super::*;
    use nvme::initiator::{ConnectError, HostIdentity, NvmfDevice, Options};
    use nvme::spec::Nqn;
    use nvme::tls::Psk;
    use reactor::linux::{Runtime, RuntimeConfig};
    use serde_json::json;
    use std::net::SocketAddr;
    use std::process::Command;
    use std::sync::Arc;
    use uuid::Uuid;

    const LISTEN: &str = "[nvmf]\nlisten = ['127.0.0.1:0']\nlisten_tls = ['127.0.0.1:0']\n";
    const VOLUME: &str = "[[device]]\nname = 'm'\nkind = 'mem'\nsize = '32MiB'\n\
                          [[volume]]\nname = 'a'\ndevice = 'm'\nsize = '16MiB'\n";

    fn address(node: &Node, which: &str) -> SocketAddr {
        node.status()[which][0].as_str().unwrap().parse().unwrap()
    }

    /// Whether the namespace can be used, by TLS with this key file or without.
    fn connect(node: &Node, key: Option<&str>) -> Result<(), ConnectError> {
        let which = if key.is_some() { "nvmf_listen_tls" } else { "nvmf_listen" };
        let identity = HostIdentity::from_uuid(Uuid::from_u128(0xa));
        assert_eq!(identity.nqn.as_str(), HOST);
        let tls = key.map(|key| Arc::new(Psk::parse(&std::fs::read_to_string(key).unwrap()).unwrap()));
        let options = Options { tls, ..Options::new(address(node, which), Nqn::new(NQN).unwrap(), identity) };
        let runtime = Runtime::start(&RuntimeConfig { cores: vec![None], ..RuntimeConfig::default() }).unwrap();
        let done = runtime.handles()[0].call_async(move |reactor| async move {
            NvmfDevice::open(&reactor, "remote", &options, Some(1)).await?.close().await;
            Ok(())
        });
        done.unwrap()
    }

    fn no_tls(outcome: Result<(), ConnectError>) -> bool {
        matches!(outcome, Err(ConnectError::Tls { .. }))
    }

    fn refused(outcome: Result<(), ConnectError>) -> bool {
        matches!(outcome, Err(ConnectError::Connect { .. }))
    }

    #[test]
    fn keys_given_by_command_are_needed_change_with_grace_and_last_over_a_kill() {
        let mut node = Node::start(&format!(
            "{LISTEN}{VOLUME}[[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n"
        ));
        let dir = tempfile::tempdir().unwrap();
        let [first, second] =
            [("first", "sha256"), ("second", "sha384")].map(|(n, hash)| generate(dir.path(), n, hash));
        assert_eq!(connect(&node, None), Ok(()));
        assert!(no_tls(connect(&node, Some(&first))));
        node.ok(&["host", "allow", NQN, HOST, "--tls-key", &first]);
        assert_eq!(connect(&node, Some(&first)), Ok(()));
        assert!(no_tls(connect(&node, Some(&second))));
        assert!(refused(connect(&node, None)), "a host with a key connects by TLS alone");
        assert_eq!(node.json(&["host", "list"])[0]["tls"], json!({ "hash": "sha256" }));

        node.kill();
        node.restart();
        assert_eq!(connect(&node, Some(&first)), Ok(()));
        node.ok(&["host", "allow", NQN, HOST, "--tls-key", &second, "--grace", "1h"]);
        assert_eq!((connect(&node, Some(&first)), connect(&node, Some(&second))), (Ok(()), Ok(())));
        assert!(node.json(&["host", "list"])[0]["tls"]["former_key_until"].is_string());
        node.ok(&["host", "allow", NQN, HOST, "--tls-key", &second]);
        assert!(no_tls(connect(&node, Some(&first))));
        node.ok(&["host", "allow", NQN, HOST, "--no-tls"]);
        assert!(no_tls(connect(&node, Some(&second))));
        assert_eq!(connect(&node, None), Ok(()));
        node.ok(&["host", "allow", NQN, HOST, "--tls-key", &second]);
        node.ok(&["host", "disallow", NQN, HOST]);
        node.ok(&["host", "allow", NQN, HOST]);
        assert_eq!(connect(&node, None), Ok(()), "the key went with the permission");
    }

    #[test]
    fn configured_keys_hold_and_the_log_tells_who_was_refused_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let [key, other] = ["key", "other"].map(|name| generate(dir.path(), name, "sha256"));
        let node = Node::start(&format!(
            "{LISTEN}{VOLUME}[[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n\
             host_keys = [{{ host = '{HOST}', tls_key = '{key}' }}]\n"
        ));
        assert_eq!(connect(&node, Some(&key)), Ok(()));
        assert_ne!(node.run(&["host", "allow", NQN, HOST, "--no-tls"]).code, 0, "the file says that there is one");
        let pause = || std::thread::sleep(std::time::Duration::from_millis(1100));
        assert!(no_tls(connect(&node, Some(&other))));
        let line = node.log_line("no TLS with a host");
        assert!(line.contains("offers another TLS key") && line.contains(HOST), "{line}");
        pause();
        // Without TLS to the port that wants it.
        let plain = Options::new(
            address(&node, "nvmf_listen_tls"),
            Nqn::new(NQN).unwrap(),
            HostIdentity::from_uuid(Uuid::from_u128(0xa)),
        );
        let runtime = Runtime::start(&RuntimeConfig { cores: vec![None], ..RuntimeConfig::default() }).unwrap();
        let outcome = runtime.handles()[0].call_async(move |reactor| async move {
            NvmfDevice::open(&reactor, "remote", &plain, Some(1)).await.err()
        });
        assert!(matches!(outcome, Some(Some(ConnectError::Negotiation { .. }))), "{outcome:?}");
        node.log_line("does not speak TLS");
        let shown = node.run(&["subsystem", "show", NQN]).out;
        assert!(shown.contains("--tls"), "{shown}");
    }

    #[test]
    fn no_answer_log_or_bundle_has_a_key() {
        let node = Node::start(&format!(
            "{LISTEN}{VOLUME}[[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n"
        ));
        node.ok(&["log-level", "trace"]);
        let dir = tempfile::tempdir().unwrap();
        let [key, other] = ["key", "other"].map(|name| generate(dir.path(), name, "sha384"));
        let texts = [&key, &other].map(|path| std::fs::read_to_string(path).unwrap().trim().to_string());
        let base64 = texts.clone().map(|text| text.split(':').nth(2).unwrap().to_string());
        let clean = |what: &str, text: &str| {
            for secret in &base64 {
                assert!(!text.contains(secret) && !text.contains("NVMeTLSkey-1:"), "{what}: {text}");
            }
        };
        let allow = ["host", "allow", NQN, HOST, "--tls-key", &key, "--grace", "1h"];
        for args in [&allow[..], &allow[..], &["host", "list"], &["subsystem", "show", NQN], &["status"], &["stats"]] {
            for run in [node.run(args), node.run(&[&["--json"], args].concat())] {
                assert_eq!(run.code, 0, "{}", run.err);
                clean(&format!("{args:?}"), &(run.out + &run.err));
            }
        }
        // Somebody takes the key for the name of its file.
        let run = node.run(&["host", "allow", NQN, HOST, "--tls-key", &texts[0]]);
        assert_ne!(run.code, 0);
        clean("a refusal", &(run.out + &run.err));
        assert_eq!(connect(&node, Some(&key)), Ok(()));
        assert!(no_tls(connect(&node, Some(&other))));
        let audit = std::fs::read_to_string(node.path("state").join("audit.log")).unwrap();
        assert!(audit.contains("(a key)"), "{audit}");
        clean("audit log", &audit);
        clean("log", &node.log());
        let bundle = dir.path().join("bundle.tar.gz").to_string_lossy().into_owned();
        node.ok(&["debug", "bundle", &bundle]);
        let unpacked = Command::new("tar").args(["-xzOf", &bundle]).output().unwrap();
        assert!(unpacked.status.success());
        clean("bundle", &String::from_utf8_lossy(&unpacked.stdout));
        let state = node.path("state").join("state.json");
        assert_eq!(std::fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(std::fs::read_to_string(&state).unwrap().contains(&base64[0]), "where it is kept");
    }

    #[test]
    fn a_node_uses_the_namespace_of_another_by_tls() {
        let dir = tempfile::tempdir().unwrap();
        let key = generate(dir.path(), "key", "sha256");
        let target = Node::start(&format!(
            "{LISTEN}{VOLUME}[[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n\
             host_keys = [{{ host = '{HOST}', tls_key = '{key}' }}]\n"
        ));
        let user = Node::start("");
        let address = format!("address={}", address(&target, "nvmf_listen_tls"));
        let (nqn, host) = (format!("nqn={NQN}"), format!("host_nqn={HOST}"));
        let create = ["device", "create", "r", "--kind", "nvmf", &address, &nqn, &host];
        assert_ne!(user.run(&create).code, 0);
        user.ok(&[&create[..], &[&format!("tls_key={key}")]].concat());
        assert_eq!(user.json(&["device", "show", "r"])["state"], json!("open"));
    }

    #[test]
    fn discover_asks_by_tls_and_looks_behind_ports_that_take_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let [key, other] = ["key", "other"].map(|name| generate(dir.path(), name, "sha256"));
        let node = Node::start(&format!(
            "{LISTEN}{VOLUME}[[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nnamespaces = ['a']\n\
             host_keys = [{{ host = '{HOST}', tls_key = '{key}' }}]\n"
        ));
        let [plain, tls] = ["nvmf_listen", "nvmf_listen_tls"].map(|which| address(&node, which).to_string());
        let behind = |words: &[&str]| {
            let run = remuda(&[&["--json", "discover", "--host-nqn", HOST, "--namespaces"], words].concat());
            assert_eq!(run.code, 0, "{}{}", run.out, run.err);
            let entries = run.json()["entries"].as_array().unwrap().clone();
            entries
                .into_iter()
                .find(|entry| entry["address"] == json!(tls) && entry["kind"] == "nvm")
                .expect("its port")
        };
        for words in [&[&plain, "--tls-key", &key][..], &[&tls, "--tls", "--tls-key", &key]] {
            let entry = behind(words);
            assert_eq!((&entry["tls"], &entry["namespaces"][0]["nsid"]), (&json!("required"), &json!(1)), "{entry}");
        }
        let without = behind(&[&plain]);
        assert!(without["error"].as_str().unwrap().contains("--tls-key"), "{without}");
        for words in [&[tls.as_str()][..], &[&tls, "--tls", "--tls-key", &other]] {
            let run = remuda(&[&["discover", "--host-nqn", HOST], words].concat());
            assert!(run.code == 1 && run.err.contains(&tls) && run.err.contains("--tls"), "{}{}", run.out, run.err);
        }
        assert_eq!(remuda(&["discover", &tls, "--tls"]).code, 2);
    }

    #[test]
    fn what_is_wrong_about_keys_and_ports_is_found_before_anything_starts() {
        let dir = tempfile::tempdir().unwrap();
        let good = generate(dir.path(), "good", "sha256");
        let bad = dir.path().join("bad").to_string_lossy().into_owned();
        std::fs::write(&bad, std::fs::read_to_string(&good).unwrap()).unwrap();
        std::fs::set_permissions(&bad, std::fs::Permissions::from_mode(0o644)).unwrap();
        let chap = dir.path().join("chap").to_string_lossy().into_owned();
        assert_eq!(remuda(&["key", "generate", &chap]).code, 0);
        let entry = |rest: &str| {
            format!("[[subsystem]]\nnqn = '{NQN}'\nhosts = ['{HOST}']\nhost_keys = [{{ host = '{HOST}'{rest} }}]\n")
        };
        // Without 'insecure': what is encrypted may be anywhere.
        let open = "[nvmf]\nlisten_tls = ['10.0.0.1:4421']\n";
        assert_eq!(check(dir.path(), &format!("{open}{}", entry(&format!(", tls_key = '{good}'")))).0, 0);
        for (text, word) in [
            (entry(&format!(", tls_key = '{bad}'")), "can be read by others"),
            (entry(&format!(", tls_key = '{chap}'")), "DH-HMAC-CHAP"),
            (entry(&format!(", tls_key = '{chap}.none'")), "remuda key generate --tls"),
            (entry(", tls_key = 'NVMeTLSkey-1:01:AAAA:'"), "a key itself"),
            (entry(""), "dhchap_key"),
            (entry(&format!(", tls_key = '{good}', dhchap_ctrl_key = '{chap}'")), "add 'dhchap_key'"),
            ("[nvmf]\nlisten = ['127.0.0.1:4420']\nlisten_tls = ['127.0.0.1:4420']\n".to_string(), "twice"),
        ] {
            let (code, said) = check(dir.path(), &text);
            assert!(code != 0 && said.contains(word), "{text}: {said}");
        }
    }
}
