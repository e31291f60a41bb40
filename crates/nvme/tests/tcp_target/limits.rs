//! Hosts that are held to limits: what is not taken from them waits, and nobody else does.

use crate::rig::*;
use bdev::Limits;
use nvme::host::command;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::sqe::BlockCommand;
use nvme::spec::{Sqe, Status};
use nvme::tcp::TransportOptions;
use nvme::tcp_target::{Config, Traffic};

const OTHER: &str = "nqn.2026-11.io.remuda:other";

fn read() -> Sqe {
    let sqe = command::blocks(NvmOpcode::Read, 1, &BlockCommand::plain(0, 1));
    command::with_transport_data(sqe, 512)
}

fn limit(rig: &Rig, bytes_per_second: u64) {
    let limits = Limits { iops: 0, bytes_per_second, burst_ns: 0 };
    rig.with(move |home| home.set_host_limits(HOST, limits).expect("a name"));
}

fn traffic(rig: &Rig, host: &'static str) -> Traffic {
    rig.with(move |home| home.traffic().into_iter().find(|one| one.host == host).expect("connected").traffic)
}

#[test]
fn a_host_in_debt_waits_alone_until_its_limits_change() {
    for reactors in [1, 2] {
        let rig = Rig::new(reactors, Config::default());
        // A block is more than eight minutes' worth.
        limit(&rig, 1);
        let mut host = rig.host(1);
        let mut other = rig.host_at(rig.address, OTHER, [5; 16], 1, TransportOptions::host());
        // The first is for nothing, the second is a debt.
        for _ in 0..2 {
            assert_eq!(host.io[0].status(read(), &[]), Status::SUCCESS);
        }
        let write = command::with_capsule_data(command::blocks(NvmOpcode::Write, 1, &BlockCommand::plain(8, 1)), 512);
        for (cid, sqe) in [(70, read()), (71, write), (72, command::flush(1))] {
            let data: &[u8] = if cid == 71 { &[7; 512] } else { &[] };
            host.io[0].submit(&command::with_cid(sqe, cid), data);
        }
        for _ in 0..20 {
            assert_eq!(other.io[0].status(read(), &[]), Status::SUCCESS, "nobody else waits");
            host.admin.ok(command::keep_alive());
        }
        let held = Traffic { reads: 2, read_bytes: 1024, ..Traffic::default() };
        assert_eq!(traffic(&rig, HOST), held, "nothing more was taken");
        limit(&rig, 0);
        let data = host.io[0].recv().expect("the read's data");
        assert_eq!(data.data, [0; 512]);
        let ended = [host.io[0].response(), host.io[0].response()].map(|cqe| (cqe.cid.get(), cqe.status()));
        assert_eq!(ended, [(71, Status::SUCCESS), (72, Status::SUCCESS)]);
        let all = Traffic { reads: 3, read_bytes: 1536, writes: 1, written_bytes: 512, others: 1 };
        assert_eq!(traffic(&rig, HOST), all);
        assert_eq!(traffic(&rig, OTHER).reads, 20);
    }
}

#[test]
fn a_host_in_debt_can_be_disconnected() {
    let rig = Rig::new(1, Config::default());
    limit(&rig, 1);
    let mut host = rig.host(1);
    for _ in 0..2 {
        assert_eq!(host.io[0].status(read(), &[]), Status::SUCCESS);
    }
    host.io[0].submit(&command::with_cid(read(), 70), &[]);
    rig.with(|home| home.set_allow_any_host(NQN, false).expect("there"));
    host.io[0].expect_end();
    rig.wait_until("the connections end", |home| home.connections() == 0);
}

#[test]
fn a_host_in_debt_that_goes_is_noticed_and_may_come_back_at_once() {
    for reactors in [1, 2] {
        let rig = Rig::new(reactors, Config::default());
        limit(&rig, 1);
        let mut host = rig.host(1);
        for _ in 0..2 {
            assert_eq!(host.io[0].status(read(), &[]), Status::SUCCESS);
        }
        // What it does not wait for stands between the target and the end of the stream.
        host.io[0].submit(&command::with_cid(read(), 70), &[]);
        for _ in 0..20 {
            host.io.clear();
            let mut queue = Wire::open(rig.address, TransportOptions::host());
            let cqe = queue.connect(NQN, HOST, 1, Some(host.cntlid), 32, 0);
            assert!(cqe.status().is_success(), "{}", cqe.status());
            // A debt holds each of them back.
            assert_eq!(queue.status(read(), &[]), Status::SUCCESS);
            host.io.push(queue);
        }
        let mut twin = Wire::open(rig.address, TransportOptions::host());
        let refused = twin.connect(NQN, HOST, 1, Some(host.cntlid), 32, 0).status();
        assert_eq!(refused.kind(), Status::COMMAND_SEQUENCE_ERROR, "a queue that is there is not taken over");
        drop((host, twin));
        rig.wait_until("the connections end", |home| home.connections() == 0);
    }
}
