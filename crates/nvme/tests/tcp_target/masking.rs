//! Namespaces that some hosts do not see, on queues and while commands are under way.

use crate::rig::*;
use bdev::MemDevice;
use nvme::host::command;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::sqe::BlockCommand;
use nvme::spec::{NSID_ALL, Sqe, Status};
use nvme::tcp::TransportOptions;
use nvme::tcp_target::{Config, NewNamespace};
use std::sync::Arc;

const OTHER: &str = "nqn.2026-11.io.remuda:other";

/// A target whose namespace 2 is for [`HOST`] alone.
fn rig(reactors: usize) -> Rig {
    let rig = Rig::new(reactors, Config::default());
    rig.with(|home| {
        let device = Arc::new(MemDevice::new("mem", 512, BLOCKS, BLOCKS).expect("memory"));
        let new =
            NewNamespace { hosts: Some(vec![HOST.into()]), ..NewNamespace::new(device, uuid::Uuid::from_u128(8)) };
        assert_eq!(home.show_namespace(NQN, new).expect("added"), 2);
    });
    rig
}

fn mask(rig: &Rig, hosts: Option<&[&str]>) {
    let hosts: Option<Vec<String>> = hosts.map(|hosts| hosts.iter().map(ToString::to_string).collect());
    rig.with(move |home| home.set_namespace_hosts(NQN, 2, hosts.as_deref()).expect("there"));
}

fn read(nsid: u32) -> Sqe {
    let sqe = command::blocks(NvmOpcode::Read, nsid, &BlockCommand::plain(0, 1));
    command::with_transport_data(sqe, 512)
}

#[test]
fn every_command_on_a_masked_namespace_is_refused_on_every_queue() {
    for reactors in [1, 2] {
        let rig = rig(reactors);
        let mut seeing = rig.host(2);
        let mut other = rig.host_at(rig.address, OTHER, [5; 16], 2, TransportOptions::host());
        let write = command::with_capsule_data(command::blocks(NvmOpcode::Write, 2, &BlockCommand::plain(0, 1)), 512);
        for queue in 0..2 {
            assert_eq!(seeing.io[queue].status(read(2), &[]), Status::SUCCESS);
            for refused in [read(2), command::flush(2), write] {
                assert_eq!(other.io[queue].status(refused, &[7; 512]), Status::INVALID_NAMESPACE.dnr());
            }
            assert_eq!(other.io[queue].status(read(1), &[]), Status::SUCCESS);
            assert_eq!(other.io[queue].status(command::flush(NSID_ALL), &[]), Status::SUCCESS);
        }
        assert_eq!(seeing.io[0].run(read(2), &[]).2, [0; 512], "no write came through");
    }
}

#[test]
fn queues_go_by_the_mask_as_it_is_now() {
    for reactors in [1, 2] {
        let rig = rig(reactors);
        let mut seeing = rig.host(2);
        let mut other = rig.host_at(rig.address, OTHER, [5; 16], 2, TransportOptions::host());
        let mut expect = |host_sees: bool, other_sees: bool| {
            let status = |sees| if sees { Status::SUCCESS } else { Status::INVALID_NAMESPACE.dnr() };
            for queue in 0..2 {
                assert_eq!(seeing.io[queue].status(read(2), &[]), status(host_sees));
                assert_eq!(other.io[queue].status(read(2), &[]), status(other_sees));
            }
        };
        expect(true, false);
        mask(&rig, Some(&[OTHER]));
        expect(false, true);
        mask(&rig, None);
        expect(true, true);
        mask(&rig, Some(&[]));
        expect(false, false);
    }
}

#[test]
fn a_write_whose_data_comes_after_its_namespace_was_hidden_is_not_carried_out() {
    let rig = rig(1);
    let mut host = rig.host(1);
    let sqe = command::blocks(NvmOpcode::Write, 2, &BlockCommand::plain(0, 32));
    let sqe = command::with_cid(command::with_transport_data(sqe, 32 * 512), 40);
    host.io[0].submit(&sqe, &[]);
    let r2t = host.io[0].r2t();
    mask(&rig, Some(&[]));
    let data = host.io[0].h2c(&r2t, 0, &[7; 32 * 512], true);
    host.io[0].send(&data);
    assert_eq!(host.io[0].response().status().kind(), Status::INVALID_NAMESPACE);
    mask(&rig, None);
    assert_eq!(host.io[0].run(read(2), &[]).2, [0; 512]);
}
