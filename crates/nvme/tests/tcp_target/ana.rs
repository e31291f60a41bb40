//! Asymmetric namespace access on queues: two portals of one subsystem, as two paths of a host.

use crate::rig::*;
use nvme::host::command;
use nvme::spec::ana::AnaState;
use nvme::spec::event::EventResult;
use nvme::spec::feature::{Feature, event};
use nvme::spec::log::LogPage;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::sqe::BlockCommand;
use nvme::spec::{NSID_ALL, Sqe, Status};
use nvme::target::AnaStates;
use nvme::tcp::TransportOptions;
use nvme::tcp_target::Config;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A target with two portals, and one host's controllers at both.
fn paths(reactors: usize) -> (Rig, SocketAddr, [Host; 2]) {
    let rig = Rig::new(reactors, Config::default());
    let second = rig.with(|home| home.listen("127.0.0.1:0".parse().expect("an address")).expect("listens"));
    let path = |address| rig.host_at(address, HOST, HOST_ID, 2, TransportOptions::host());
    let paths = [path(rig.address), path(second)];
    (rig, second, paths)
}

fn set(rig: &Rig, port: SocketAddr, state: AnaState) {
    rig.with(move |home| {
        let states = AnaStates { ports: BTreeMap::from([(port, state)]), ..AnaStates::default() };
        home.set_ana(NQN, 1, states).expect("there");
    });
}

fn read() -> Sqe {
    let sqe = command::blocks(NvmOpcode::Read, 1, &BlockCommand::plain(0, 1));
    command::with_transport_data(sqe, 512)
}

fn write() -> Sqe {
    command::with_capsule_data(command::blocks(NvmOpcode::Write, 1, &BlockCommand::plain(0, 1)), 512)
}

#[test]
fn commands_at_a_port_that_does_not_reach_the_namespace_are_sent_elsewhere() {
    for reactors in [1, 2] {
        let (rig, second, mut paths) = paths(reactors);
        let states = [
            (AnaState::NonOptimized, Status::SUCCESS),
            (AnaState::Inaccessible, Status::ANA_INACCESSIBLE),
            (AnaState::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
            (AnaState::Change, Status::ANA_TRANSITION),
            (AnaState::Optimized, Status::SUCCESS),
        ];
        for (round, (state, status)) in (1u8..).zip(states) {
            set(&rig, second, state);
            for queue in 0..2 {
                for sqe in [read(), command::flush(1), command::flush(NSID_ALL)] {
                    assert_eq!(paths[1].io[queue].status(sqe, &[]), status, "{state:?}");
                    assert_eq!(paths[0].io[queue].status(sqe, &[]), Status::SUCCESS);
                }
            }
            assert_eq!(paths[0].io[0].status(write(), &[round; 512]), Status::SUCCESS);
            assert_eq!(paths[1].io[1].status(write(), &[0xff; 512]), status);
            let expected = if status.is_success() { 0xff } else { round };
            assert_eq!(paths[0].io[1].run(read(), &[]).2, [expected; 512], "what is refused is not done");
        }
    }
}

#[test]
fn a_host_hears_of_a_change_before_its_commands_go_by_the_former_state() {
    let (rig, second, mut paths) = paths(2);
    paths[1].admin.ok(command::set_feature(Feature::AsyncEventConfiguration, event::ANA_CHANGE));
    for (cid, state) in [(700, AnaState::Inaccessible), (701, AnaState::Optimized)] {
        paths[1].admin.submit(&command::with_cid(command::async_event_request(), cid), &[]);
        set(&rig, second, state);
        let told = paths[1].admin.response();
        assert_eq!((told.cid.get(), EventResult::from_dw0(told.dw0())), (cid, EventResult::ANA_CHANGED));
        let status = state.refusal().unwrap_or(Status::SUCCESS);
        assert_eq!(paths[1].io[0].status(read(), &[]), status);
        let (_, log) = paths[1].admin.ok(command::get_log_page(LogPage::Ana, 0, 64, false));
        assert_eq!((log[8], log[16], log[32]), (1, 1, state as u8));
    }
}

#[test]
fn a_write_whose_data_comes_after_its_port_was_closed_is_not_carried_out() {
    let (rig, second, mut paths) = paths(1);
    let sqe = command::blocks(NvmOpcode::Write, 1, &BlockCommand::plain(0, 32));
    let sqe = command::with_cid(command::with_transport_data(sqe, 32 * 512), 40);
    paths[1].io[0].submit(&sqe, &[]);
    let r2t = paths[1].io[0].r2t();
    set(&rig, second, AnaState::Inaccessible);
    let data = paths[1].io[0].h2c(&r2t, 0, &[7; 32 * 512], true);
    paths[1].io[0].send(&data);
    assert_eq!(paths[1].io[0].response().status(), Status::ANA_INACCESSIBLE);
    assert_eq!(paths[0].io[0].run(read(), &[]).2, [0; 512]);
}
