//! Which connections hosts with keys for TLS may use.

use super::*;
use crate::auth::Hash;
use crate::tls::{Form, HostPsks, Psk, TlsKey};
use std::sync::Arc;

fn psk(seed: u8) -> Arc<Psk> {
    Arc::new(Psk::generate(Hash::Sha256, &mut |bytes| bytes.fill(seed)))
}

fn psks() -> HostPsks {
    HostPsks { keys: vec![psk(1)], former_until_ns: None }
}

/// The key of version 0 that [`psks`] gives a host.
fn key(host: &str, subsystem: &Nqn) -> TlsKey {
    TlsKey::version_0(&psk(1), Form::Standard, &nqn(host), subsystem).expect("short names")
}

/// Tries to connect `host` to `subsystem` over a connection with this key.
fn is_let_in(bench: &mut Bench, host: &str, subsystem: &Nqn, tls: Option<&TlsKey>) -> bool {
    let id = host.bytes().fold(1, u8::wrapping_add);
    let data = command::connect_data([id; 16], &nqn(host), subsystem, None);
    match bench.target.connect(bench.now_ns, &command::connect(0, 32, 0), data.as_bytes(), VIA, tls) {
        Ok(_) => true,
        Err(refused) => {
            assert_eq!(refused.cqe.status().kind(), Status::CONNECT_INVALID_HOST.kind());
            false
        }
    }
}

#[test]
fn an_encrypted_connection_is_its_hosts_and_a_host_with_a_key_has_no_other() {
    let (mut bench, disk, discovery) = (Bench::new(), nqn("disk"), Nqn::discovery());
    let id = bench.subsystem;
    bench.target.set_host_psks(id, &nqn("keyed"), Some(psks())).expect("a subsystem");
    assert!(!is_let_in(&mut bench, "keyed", &disk, None));
    assert!(is_let_in(&mut bench, "keyed", &disk, Some(&key("keyed", &disk))));
    assert!(!is_let_in(&mut bench, "other", &disk, Some(&key("keyed", &disk))));
    assert!(!is_let_in(&mut bench, "keyed", &disk, Some(&key("keyed", &discovery))));
    assert!(is_let_in(&mut bench, "keyed", &discovery, Some(&key("keyed", &discovery))));
    assert!(is_let_in(&mut bench, "keyed", &discovery, None), "an open port's discovery asks for nothing");
    assert!(is_let_in(&mut bench, "other", &disk, None), "a host without a key");

    bench.target.set_host_psks(id, &nqn("keyed"), None).expect("a subsystem");
    assert!(is_let_in(&mut bench, "keyed", &disk, None));
}

#[test]
fn a_key_that_was_taken_away_since_the_handshake_lets_nobody_in() {
    let (mut bench, disk) = (Bench::new(), nqn("disk"));
    let id = bench.subsystem;
    let olds = [key("keyed", &disk), TlsKey::new(&psk(1), Form::ALL[0], &nqn("keyed"), &disk)];
    for old in &olds {
        let mut all = psks();
        bench.target.set_host_psks(id, &nqn("keyed"), Some(all.clone())).expect("a subsystem");
        assert!(is_let_in(&mut bench, "keyed", &disk, Some(old)));
        all.keys.insert(0, psk(2));
        bench.target.set_host_psks(id, &nqn("keyed"), Some(all)).expect("a subsystem");
        assert!(is_let_in(&mut bench, "keyed", &disk, Some(old)), "both are good");
        let only = HostPsks { keys: vec![psk(2)], former_until_ns: None };
        bench.target.set_host_psks(id, &nqn("keyed"), Some(only)).expect("a subsystem");
        assert!(!is_let_in(&mut bench, "keyed", &disk, Some(old)), "{:?}", old.identity.digest);
    }
}

#[test]
fn the_host_of_a_key_owns_its_identifier() {
    let (mut bench, disk) = (Bench::new(), nqn("disk"));
    let id = bench.subsystem;
    for host in ["keyed", "other"] {
        bench.target.set_host_psks(id, &nqn(host), Some(psks())).expect("a subsystem");
    }
    let mut come = |host: &str, tls: Option<&TlsKey>| {
        let data = command::connect_data([9; 16], &nqn(host), &disk, None);
        bench.target.connect(bench.now_ns, &command::connect(0, 32, 0), data.as_bytes(), VIA, tls).is_ok()
    };
    assert!(come("keyed", Some(&key("keyed", &disk))));
    assert!(!come("other", Some(&key("other", &disk))), "it is another's");
    assert!(!come("unkeyed", None), "it is another's");
    assert!(come("keyed", Some(&key("keyed", &disk))));
}

#[test]
fn keys_go_with_their_subsystem() {
    let (mut bench, disk) = (Bench::new(), nqn("disk"));
    bench.target.set_host_psks(bench.subsystem, &nqn("keyed"), Some(psks())).expect("a subsystem");
    assert!(bench.target.keyring().has(&disk, &nqn("keyed")));
    bench.target.remove_subsystem(bench.subsystem).expect("a subsystem");
    assert!(!bench.target.keyring().has(&disk, &nqn("keyed")));
}
