//! In-band authentication over real sockets: who gets in, who does not, and what becomes of connections when keys change.

use crate::rig::*;
use nvme::auth::{DhGroup, Failure, Hash, HostKeys, HostSide, HostStep, KeyPair, Names, Policy, Refused, Secret};
use nvme::host::command;
use nvme::spec::fabrics::{AuthenticationCommand, CONNECT_AUTHENTICATION_REQUIRED, InvalidParameter};
use nvme::spec::opcode::FabricsType;
use nvme::spec::property::Configuration;
use nvme::spec::reservation::{Keys, PersistenceChange, RegisterAction, ReservationCommand};
use nvme::spec::{Sqe, Status};
use nvme::tcp::TransportOptions;
use nvme::tcp_target::Config;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Room for any message.
const ROOM: u32 = 4096;
const SECOND_NS: u64 = 1_000_000_000;

fn secret(seed: u8) -> Arc<Secret> {
    Arc::new(Secret::generate(Some(Hash::Sha256), &mut |bytes| bytes.fill(seed)))
}

fn pair(seed: u8) -> KeyPair {
    KeyPair { host: secret(seed), controller: Some(secret(seed + 100)) }
}

fn keys(seed: u8) -> HostKeys {
    HostKeys { groups: vec![DhGroup::Ffdhe2048, DhGroup::Null], ..HostKeys::new(secret(seed)) }
}

fn keys_of_both(seed: u8) -> HostKeys {
    HostKeys { controller: Some(secret(seed + 100)), ..keys(seed) }
}

/// A rig on which [`HOST`] needs key 1.
fn rig_with(config: Config) -> Rig {
    let rig = Rig::new(2, config);
    set_keys(&rig, vec![pair(1)], 0);
    rig
}

fn rig() -> Rig {
    rig_with(Config::default())
}

fn set_keys(rig: &Rig, pairs: Vec<KeyPair>, former_for_ns: u64) {
    rig.with(move |home| {
        let policy = Policy { pairs, ..Policy::new(pair(1)) };
        home.set_host_policy(NQN, HOST, Some(policy), former_for_ns).expect("set");
    });
}

/// An admin queue that has just been connected, and its controller.
fn connected(rig: &Rig) -> (Wire, u16) {
    let mut admin = Wire::open(rig.address, TransportOptions::host());
    let cqe = admin.connect(NQN, HOST, 0, None, 32, 0);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    assert_ne!(cqe.dw0() & CONNECT_AUTHENTICATION_REQUIRED, 0, "it says that it has to authenticate");
    (admin, cqe.dw0() as u16)
}

fn send(wire: &mut Wire, message: &[u8]) -> Status {
    wire.status(AuthenticationCommand::send(0, message.len() as u32).to_sqe(), message)
}

fn receive(wire: &mut Wire) -> Vec<u8> {
    wire.ok(AuthenticationCommand::receive(0, ROOM).to_sqe()).1
}

/// Carries a whole dialogue through.
fn authenticate(wire: &mut Wire, keys: HostKeys, transaction: u16) -> Result<(), Refused> {
    let (host, subsystem) = (nqn(HOST), nqn(NQN));
    let names = Names { host: &host, subsystem: &subsystem };
    let mut random = |bytes: &mut [u8]| bytes.fill(0x37);
    let (mut side, first) = HostSide::begin(keys, transaction);
    assert_eq!(send(wire, &first), Status::SUCCESS);
    loop {
        let mut step = side.take(&receive(wire), &names, &mut random);
        while let Ok(HostStep::Compute(power)) = step {
            step = side.computed(&power.run(), &names, &mut random);
        }
        match step {
            Ok(HostStep::Send(message)) => assert_eq!(send(wire, &message), Status::SUCCESS),
            Ok(HostStep::Last(message)) => {
                assert_eq!(send(wire, &message), Status::SUCCESS);
                return Ok(());
            }
            Ok(HostStep::Done) => return Ok(()),
            Ok(HostStep::Compute(_)) => unreachable!("computed above"),
            Err(refused) => {
                if let Some(message) = &refused.message {
                    assert_eq!(send(wire, message), Status::SUCCESS);
                }
                return Err(refused);
            }
        }
    }
}

/// A host with one I/O queue, both authenticated.
fn authenticated_host(rig: &Rig, keys: &HostKeys) -> Host {
    let (mut admin, cntlid) = connected(rig);
    authenticate(&mut admin, keys.clone(), 1).expect("the right key");
    admin.ok(command::set_configuration(Configuration::ENABLE));
    let mut io = Wire::open(rig.address, TransportOptions::host());
    let cqe = io.connect(NQN, HOST, 1, Some(cntlid), 32, 0);
    assert_ne!(cqe.dw0() & CONNECT_AUTHENTICATION_REQUIRED, 0, "each queue authenticates");
    assert_eq!(io.status(block_command_read(), &[]).kind(), Status::AUTHENTICATION_REQUIRED);
    authenticate(&mut io, keys.clone(), 2).expect("the right key");
    Host { cntlid, admin, io: vec![io] }
}

fn block_command_read() -> Sqe {
    let read = nvme::spec::sqe::BlockCommand::plain(0, 8);
    command::with_transport_data(command::blocks(nvme::spec::opcode::NvmOpcode::Read, 1, &read), 4096)
}

fn register(wire: &mut Wire, action: RegisterAction, keys: Keys) -> Status {
    let persistence = PersistenceChange::Keep;
    let command = ReservationCommand::Register { action, ignore_key: false, persistence };
    wire.status(command::with_capsule_data(command.to_sqe(1), 16), keys.as_bytes())
}

fn no_hosts(rig: &Rig) {
    rig.wait_until("the controller ends", |home| home.hosts().is_empty());
}

#[test]
fn nothing_but_authentication_is_done_before_it() {
    let rig = rig();
    let (mut admin, _) = connected(&rig);
    let sqes = [command::get_capabilities(), command::set_configuration(Configuration::ENABLE), command::keep_alive()];
    for sqe in sqes {
        assert_eq!(admin.status(sqe, &[]), Status::AUTHENTICATION_REQUIRED.dnr());
    }
    let mut host = authenticated_host(&rig, &keys(1));
    let data = pattern(1, 4096);
    assert!(host.io[0].write(0, &data).is_success());
    assert_eq!(host.io[0].read(0, 8), data);
}

#[test]
fn both_sides_prove_themselves_where_the_host_wants_it() {
    let rig = rig();
    let mut host = authenticated_host(&rig, &keys_of_both(1));
    host.admin.ok(command::keep_alive());
    let (mut admin, _) = connected(&rig);
    let deceived = HostKeys { controller: Some(secret(9)), ..keys(1) };
    let refused = authenticate(&mut admin, deceived, 3).expect_err("another controller key");
    assert_eq!((refused.failure, refused.by_controller), (Failure::Failed, false));
    admin.expect_end();
}

#[test]
fn a_wrong_key_ends_the_connection_after_the_reason_was_told() {
    let rig = rig();
    let (mut admin, _) = connected(&rig);
    let refused = authenticate(&mut admin, keys(2), 1).expect_err("another key");
    assert_eq!((refused.failure, refused.by_controller), (Failure::Failed, true));
    admin.expect_end();
    no_hosts(&rig);
}

#[test]
fn a_host_that_does_not_authenticate_loses_its_connection() {
    let rig = rig_with(Config { authentication_timeout_ns: SECOND_NS / 5, ..Config::default() });
    let (mut admin, _) = connected(&rig);
    assert_eq!(send(&mut admin, &HostSide::begin(keys(1), 1).1), Status::SUCCESS);
    while admin.recv().is_some() {}
    no_hosts(&rig);
}

#[test]
fn hosts_without_key_are_as_before_and_cannot_authenticate() {
    let rig = rig();
    rig.with(|home| home.set_host_policy(NQN, HOST, None, 0).expect("set"));
    let mut host = rig.host(1);
    host.io[0].read(0, 8);
    let refused = authenticate(&mut host.admin, keys(1), 1).expect_err("no key");
    assert_eq!((refused.failure, refused.by_controller), (Failure::NotUsable, true));
    host.admin.expect_end();
    no_hosts(&rig);
}

#[test]
fn queues_in_use_authenticate_again_and_a_failure_ends_them() {
    let rig = rig();
    let mut host = authenticated_host(&rig, &keys_of_both(1));
    for transaction in 5..8 {
        authenticate(&mut host.admin, keys_of_both(1), transaction).expect("the right key");
        authenticate(&mut host.io[0], keys(1), transaction).expect("the right key");
        host.io[0].read(0, 8);
    }
    assert!(authenticate(&mut host.admin, keys(2), 9).is_err());
    host.admin.expect_end();
    no_hosts(&rig);
    host.io[0].expect_end();
}

#[test]
fn a_new_key_leaves_associations_alone_and_is_needed_from_then_on() {
    let rig = rig();
    let mut host = authenticated_host(&rig, &keys(1));
    set_keys(&rig, vec![pair(2)], 0);
    host.io[0].read(0, 8);
    host.admin.ok(command::keep_alive());
    let (mut admin, _) = connected(&rig);
    assert_eq!(authenticate(&mut admin, keys(1), 1).expect_err("the old key").failure, Failure::Failed);
    authenticated_host(&rig, &keys_of_both(2));
    assert!(authenticate(&mut host.admin, keys(1), 2).is_err(), "authenticating again is with the new key");
}

#[test]
fn the_former_key_is_good_for_as_long_as_was_said() {
    let rig = rig();
    set_keys(&rig, vec![pair(2), pair(1)], 3600 * SECOND_NS);
    authenticated_host(&rig, &keys_of_both(1));
    authenticated_host(&rig, &keys_of_both(2));
    set_keys(&rig, vec![pair(2), pair(1)], 0);
    let (mut admin, _) = connected(&rig);
    assert!(authenticate(&mut admin, keys(1), 1).is_err());
    authenticated_host(&rig, &keys_of_both(2));
}

#[test]
fn messages_may_come_when_they_are_asked_for() {
    let rig = rig();
    let (mut admin, _) = connected(&rig);
    let (_, first) = HostSide::begin(keys(1), 1);
    let len = first.len() as u32;
    let sqe = command::with_transport_data(AuthenticationCommand::send(0, len).to_sqe(), len);
    assert_eq!(admin.status(sqe, &first), Status::SUCCESS);
    assert_eq!(receive(&mut admin)[..2], [1, 1], "a challenge");
}

#[test]
fn commands_that_carry_messages_are_checked() {
    let rig = rig();
    let (mut admin, _) = connected(&rig);
    let (_, first) = HostSide::begin(keys(1), 1);
    let good = AuthenticationCommand::send(0, first.len() as u32);
    for odd in [
        AuthenticationCommand { secp: 0xea, ..good },
        AuthenticationCommand { spsp0: 0, ..good },
        AuthenticationCommand { spsp1: 2, ..good },
        AuthenticationCommand { len: 0.into(), ..good },
    ] {
        assert_eq!(admin.status(odd.to_sqe(), &first), Status::INVALID_FIELD.dnr(), "{odd:?}");
    }
    let long = AuthenticationCommand { len: (first.len() as u32 + 1).into(), ..good };
    assert_eq!(admin.status(long.to_sqe(), &first), Status::DATA_SGL_LENGTH_INVALID.dnr());
    assert_eq!(send(&mut admin, &first), Status::SUCCESS);
    let receive = AuthenticationCommand::receive(0, 20);
    assert_eq!(admin.status(receive.to_sqe(), &[]), Status::INVALID_FIELD.dnr(), "no room for a challenge");
    let receive = AuthenticationCommand { len: 21.into(), ..receive };
    assert_eq!(admin.status(receive.to_sqe(), &[]), Status::DATA_SGL_LENGTH_INVALID.dnr());
    let in_capsule = AuthenticationCommand { fctype: FabricsType::AuthenticationReceive as u8, ..good };
    assert_eq!(admin.status(in_capsule.to_sqe(), &first), Status::SGL_TYPE_INVALID.dnr());
    let receive = AuthenticationCommand::receive(0, 1 << 20);
    assert_eq!(admin.status(receive.to_sqe(), &[]), Status::INVALID_FIELD.dnr(), "more than any message");
}

#[test]
fn many_queues_authenticate_at_once() {
    let rig = rig();
    let mut wires: Vec<Wire> = (0..6).map(|_| connected(&rig).0).collect();
    // All of them have the target compute; none waits for another one's host.
    let first = HostSide::begin(keys(1), 1).1;
    for wire in &mut wires {
        wire.submit(&AuthenticationCommand::send(7, first.len() as u32).to_sqe(), &first);
    }
    for wire in &mut wires {
        assert!(wire.response().status().is_success());
        authenticate(wire, keys_of_both(1), 2).expect("the right key");
    }
}

#[test]
fn an_identifier_belongs_to_the_host_that_has_proven_itself_with_it() {
    let other = "nqn.2026-11.io.remuda:other";
    let rig = rig();
    let connect_other = |id| {
        let mut wire = Wire::open(rig.address, TransportOptions::host());
        wire.host_id = id;
        let cqe = wire.connect(NQN, other, 0, None, 32, 0);
        (wire, cqe)
    };
    // On its word alone it may have any identifier that is nobody's.
    let (mut before, cqe) = connect_other(HOST_ID);
    assert!(cqe.status().is_success());
    let owner = authenticated_host(&rig, &keys(1));
    before.expect_end();
    let (_, cqe) = connect_other(HOST_ID);
    assert_eq!(cqe.status().kind(), Status::CONNECT_INVALID_PARAMETERS);
    assert_eq!(InvalidParameter::of(&cqe), InvalidParameter { offset: 0, in_data: true });
    let (_, cqe) = connect_other([8; 16]);
    assert!(cqe.status().is_success(), "its own");
    // What it has registered keeps it when it is gone.
    let mut owner = owner;
    assert_eq!(register(&mut owner.io[0], RegisterAction::Register, Keys::new(0, 0xa)), Status::SUCCESS);
    drop(owner);
    no_hosts(&rig);
    assert!(!connect_other(HOST_ID).1.status().is_success());
    let mut owner = authenticated_host(&rig, &keys(1));
    assert_eq!(register(&mut owner.io[0], RegisterAction::Unregister, Keys::new(0xa, 0)), Status::SUCCESS);
    drop(owner);
    no_hosts(&rig);
    let (mut other, cqe) = connect_other(HOST_ID);
    assert!(cqe.status().is_success());
    // Its owner comes back.
    let _owner = authenticated_host(&rig, &keys(1));
    other.expect_end();
}

#[test]
fn a_queue_that_has_proven_nothing_makes_room_for_the_next() {
    let rig = rig();
    let mut host = authenticated_host(&rig, &keys(1));
    let connect = || {
        let mut io = Wire::open(rig.address, TransportOptions::host());
        let cqe = io.connect(NQN, HOST, 2, Some(host.cntlid), 32, 0);
        (io, cqe.status())
    };
    let (mut first, status) = connect();
    assert_eq!(status, Status::SUCCESS);
    let (mut second, status) = connect();
    assert_eq!(status, Status::SUCCESS);
    first.expect_end();
    authenticate(&mut second, keys(1), 9).expect("the right key");
    assert_eq!(second.status(block_command_read(), &[]), Status::SUCCESS);
    assert_eq!(connect().1, Status::COMMAND_SEQUENCE_ERROR.dnr(), "a queue in use keeps its place");
    assert_eq!(second.status(block_command_read(), &[]), Status::SUCCESS);
    host.admin.ok(command::keep_alive());
}
