//! A device with two paths, each to a target of its own.

use super::*;
use nvme::initiator::{NoReplacement, PathStatus};
use nvme::spec::ana::AnaState;
use nvme::spec::log::LogPage;
use nvme::spec::sqe::GetLogPageCommand;
use std::net::SocketAddr;

async fn open(reactor: Rc<Reactor>, options: &Options, more: &[SocketAddr]) -> Host {
    let device = NvmfDevice::open_paths(&reactor, "remote", options, more, None, None).await.unwrap();
    let channel = device.open_channel(&reactor).unwrap();
    let host = Host { reactor, device, channel };
    host.until("every path", || host.device.paths().iter().all(is_up)).await;
    host
}

/// As [`open`], until the paths are in these states.
async fn open_in(reactor: Rc<Reactor>, options: &Options, more: &[&Fake], states: &[AnaState]) -> Host {
    let more: Vec<SocketAddr> = more.iter().map(|fake| fake.address).collect();
    let device = NvmfDevice::open_paths(&reactor, "remote", options, &more, None, None).await.unwrap();
    let channel = device.open_channel(&reactor).unwrap();
    let host = Host { reactor, device, channel };
    let is_in = |(path, state): (PathStatus, &AnaState)| path.ana == Some(*state) && path.queues > 0;
    host.until("every path", || host.device.paths().into_iter().zip(states).all(is_in)).await;
    host
}

fn is_up(path: &PathStatus) -> bool {
    path.ana == Some(AnaState::Optimized) && path.queues > 0
}

fn wrote(fake: &Fake) -> bool {
    fake.seen().iter().any(|seen| seen.is_io(NvmOpcode::Write))
}

#[test]
fn operations_go_on_over_the_path_that_is_left() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    let options = options(&first);
    run(move |reactor| async move {
        let host = open(reactor, &options, &[second.address]).await;
        assert_eq!(host.write(1, 1, 3).await, Status::Ok);
        assert!(wrote(&first) && !wrote(&second), "they are not spread");
        first.stop();
        assert_eq!(host.write(2, 1, 3).await, Status::Ok);
        assert!(wrote(&second));
        host.until("the loss to be known", || !is_up(&host.device.paths()[0])).await;
        let paths = host.device.paths();
        assert!(paths[0].trouble.is_some() && paths[0].controller.is_none() && is_up(&paths[1]), "{paths:?}");
        first.restart();
        host.until("the first path", || is_up(&host.device.paths()[0])).await;
        second.stop();
        assert_eq!(host.write(4, 1, 3).await, Status::Ok);
        host.close().await;
    });
}

#[test]
fn a_write_of_a_lost_path_waits_until_that_can_do_nothing_more() {
    for replay in [Replay::AfterFence, Replay::Exclusive] {
        let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
        let options = Options { replay, ..options(&first) };
        let mut ghosts = 1;
        first.set_script(move |seen| match seen.is_io(NvmOpcode::Write) && ghosts > 0 {
            true => {
                ghosts -= 1;
                Action::Ghost
            }
            false => Action::Serve,
        });
        run(move |reactor| async move {
            let host = open(reactor, &options, &[second.address]).await;
            let write = host.start(host.write_io(3, 1, 3));
            host.until("the first write", || !first.writes_of(3).is_empty()).await;
            // Nor may it be seen by way of a connection that is built again.
            first.stop();
            let began = Instant::now();
            assert_eq!(host.read(3, 1).await.0, Status::Ok);
            assert_eq!(host.write(4, 1, 5).await, Status::Ok);
            assert!(began.elapsed() < HOLD / 2, "reads and other blocks do not wait");
            let newer = host.start(host.write_io(3, 1, 7));
            host.until("both writes", || write.borrow().is_some() && newer.borrow().is_some()).await;
            assert_eq!(write.borrow().as_ref().unwrap().status, Status::Ok);
            assert_eq!(newer.borrow().as_ref().unwrap().status, Status::Ok);
            let (lost, again) = (first.writes_of(3)[0].at, second.writes_of(3));
            assert!(again.iter().all(|seen| seen.at - lost >= HOLD), "{replay:?}");
            host.close().await;
        });
    }
}

#[test]
fn a_replay_does_not_overtake_what_is_under_way_on_another_path() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    let options = Options { replay: Replay::Exclusive, ..options(&first) };
    first.set_script(|seen| match () {
        () if seen.is_io(NvmOpcode::Write) => Action::Park,
        () if seen.is_io(NvmOpcode::Read) => Action::Fail(Nvme::INTERNAL_PATH_ERROR),
        () => Action::Serve,
    });
    let mut parked = 0;
    second.set_script(move |seen| {
        parked += u64::from(seen.is_io(NvmOpcode::Write));
        if seen.is_io(NvmOpcode::Write) && parked == 1 { Action::Park } else { Action::Serve }
    });
    run(move |reactor| async move {
        let host = open(reactor, &options, &[second.address]).await;
        let older = host.start(host.write_io(3, 1, 3));
        host.until("the older write", || first.writes_of(3).len() == 1).await;
        // Refused, which has later operations take the second path.
        assert_eq!(host.read(9, 1).await.0, Status::Ok);
        let newer = host.start(host.write_io(2, 2, 7));
        host.until("the newer write", || second.writes_of(2).len() == 1).await;
        let lost = Instant::now();
        first.stop();
        while lost.elapsed() < HOLD * 3 / 4 {
            assert!(
                second.writes_of(3).is_empty(),
                "the newer write may be done after it, and the lost one after that"
            );
            host.reactor.sleep_ns(MS).await;
        }
        second.answer_parked();
        host.until("both writes", || older.borrow().is_some() && newer.borrow().is_some()).await;
        assert!(second.writes_of(3)[0].at - lost >= HOLD * 9 / 10);
        host.close().await;
    });
}

#[test]
fn a_path_to_another_namespace_is_refused_with_what_it_shows() {
    let (first, other) = (Fake::start(Config::default()), Fake::start(Config::default()));
    other.configure(|config| config.uuid = [8; 16]);
    let options = options(&first);
    run(move |reactor| async move {
        let opened = NvmfDevice::open_paths(&reactor, "remote", &options, &[other.address], None, None).await;
        let error = opened.err().expect("two namespaces are no device");
        assert!(matches!(error, ConnectError::OtherNamespace { .. }), "{error}");
        let text = error.to_string();
        for part in [other.address.to_string(), Uuid::from_bytes([8; 16]).to_string(), "expected".to_string()] {
            assert!(text.contains(&part), "{text}");
        }
        let host = open(reactor, &options, &[]).await;
        assert!(host.device.add_path(&host.reactor, other.address).await.is_err());
        assert_eq!(host.device.paths().len(), 1);
        assert_eq!(host.write(1, 1, 3).await, Status::Ok);
        assert!(!wrote(&other));
        host.close().await;
    });
}

#[test]
fn paths_come_and_go_under_io() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    let options = options(&first);
    run(move |reactor| async move {
        let host = open(reactor, &options, &[]).await;
        assert!(!host.device.remove_path(first.address), "the last one stays");
        host.device.add_path(&host.reactor, second.address).await.unwrap();
        assert!(host.device.add_path(&host.reactor, second.address).await.is_err(), "it is there");
        assert_eq!(host.write(1, 1, 3).await, Status::Ok);
        assert!(host.device.remove_path(first.address));
        assert_eq!(host.write(2, 1, 3).await, Status::Ok);
        assert!(wrote(&second));
        host.until("the shutdown", || first.shutdowns() == 1).await;
        host.close().await;
    });
}

#[test]
fn what_a_path_refuses_goes_to_another_one() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    let options = options(&first);
    first.set_script(|seen| match seen.is_io(NvmOpcode::Write) {
        true => Action::Fail(Nvme::INTERNAL_PATH_ERROR),
        false => Action::Serve,
    });
    run(move |reactor| async move {
        let host = open(reactor, &options, &[second.address]).await;
        let began = Instant::now();
        assert_eq!(host.write(1, 1, 3).await, Status::Ok);
        assert!(began.elapsed() < HOLD, "what was answered is done with");
        assert_eq!((first.writes_of(1).len(), second.writes_of(1).len()), (1, 1));
        host.close().await;
    });
}

/// With access states, as a target of its own would report them.
fn reporting(state: AnaState) -> Config {
    Config { ana: Some((state, 0)), ..Config::default() }
}

fn asks_for_states(seen: &fake::Seen) -> bool {
    seen.is_admin(AdminOpcode::GetLogPage) && GetLogPageCommand::of(&seen.sqe).lid == LogPage::Ana as u8
}

#[test]
fn what_the_only_optimised_path_refuses_is_taken_to_another_one() {
    let (first, second) = (Fake::start(reporting(AnaState::Optimized)), Fake::start(reporting(AnaState::NonOptimized)));
    let options = options(&first);
    first.set_script(|seen| match seen.is_io(NvmOpcode::Write) {
        true => Action::Fail(Nvme::INTERNAL_PATH_ERROR),
        false => Action::Serve,
    });
    run(move |reactor| async move {
        let host = open_in(reactor, &options, &[&second], &[AnaState::Optimized, AnaState::NonOptimized]).await;
        assert_eq!(host.write(1, 1, 3).await, Status::Ok);
        assert_eq!((first.writes_of(1).len(), second.writes_of(1).len()), (1, 1));
        assert_eq!(host.read(1, 1).await.0, Status::Ok);
        assert!(first.seen().iter().any(|seen| seen.is_io(NvmOpcode::Read)), "others still take the better path");
        host.close().await;
    });
}

#[test]
fn operations_fail_fast_whatever_keeps_the_path_from_being_of_use() {
    for logs_can_be_read in [true, false] {
        let fake = Fake::start(reporting(AnaState::Optimized));
        let options = Options { fail_fast_ns: Some(400 * MS), ..options(&fake) };
        run(move |reactor| async move {
            let host = open_in(reactor, &options, &[], &[AnaState::Optimized]).await;
            if !logs_can_be_read {
                fake.set_script(
                    |seen| if asks_for_states(seen) { Action::Fail(Nvme::INTERNAL_ERROR) } else { Action::Serve },
                );
            }
            let began = Instant::now();
            fake.set_ana(AnaState::Inaccessible);
            host.until("the change", || host.device.paths()[0].ana != Some(AnaState::Optimized)).await;
            let write = host.start(host.write_io(1, 1, 3));
            // From one state that refuses to another, which is no use in between.
            let mut states = [AnaState::Change, AnaState::Inaccessible].iter().cycle();
            while write.borrow().is_none() {
                assert!(began.elapsed() < Duration::from_secs(20), "it waits for ever");
                host.reactor.sleep_ns(100 * MS).await;
                fake.set_ana(*states.next().unwrap());
            }
            let status = write.borrow().as_ref().unwrap().status;
            assert!(status.is_gone() && (!logs_can_be_read || status == Status::Inaccessible), "{status}");
            assert!(began.elapsed() >= Duration::from_millis(350) && began.elapsed() < Duration::from_secs(5));
            fake.set_script(|_| Action::Serve);
            fake.set_ana(AnaState::Optimized);
            host.until("the path", || host.device.paths()[0].ana == Some(AnaState::Optimized)).await;
            assert_eq!(host.write(1, 1, 3).await, Status::Ok);
            host.close().await;
        });
    }
}

#[test]
fn a_path_comes_back_although_operations_hold_all_memory() {
    let fake = Fake::start(reporting(AnaState::Optimized));
    let options = options(&fake);
    run(move |reactor| async move {
        let host = open_in(reactor.clone(), &options, &[], &[AnaState::Optimized]).await;
        let io = host.write_io(1, 1, 3);
        let held: Vec<_> = std::iter::from_fn(|| reactor.pool().try_alloc(4096)).collect();
        fake.close_all();
        host.until("the next association", || host.device.stats().reconnects == 1).await;
        fake.set_ana(AnaState::Inaccessible);
        host.until("the change", || host.device.paths()[0].ana == Some(AnaState::Inaccessible)).await;
        fake.set_ana(AnaState::Optimized);
        assert_eq!(host.channel.submit(io).await.status, Status::Ok);
        drop(held);
        host.close().await;
    });
}

#[test]
fn a_controller_whose_state_changes_for_too_long_is_reset_once_in_a_while() {
    let fake = Fake::start(Config { ana: Some((AnaState::Change, 1)), ..Config::default() });
    let options = options(&fake);
    run(move |reactor| async move {
        let host = open_in(reactor, &options, &[], &[AnaState::Change]).await;
        host.until("the reset", || host.device.stats().reconnects == 1).await;
        host.reactor.sleep_ns(1500 * MS).await;
        assert_eq!(fake.associations(), 2, "each association has twice the time that its controller asks for");
        host.close().await;
    });
}

#[test]
fn the_size_is_what_every_path_with_the_namespace_has() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    let options = options(&first);
    run(move |reactor| async move {
        let host = open(reactor, &options, &[second.address]).await;
        second.resize(3000);
        host.until("the smaller size", || host.device.info().blocks == 3000).await;
        first.resize(2000);
        host.until("the smallest size", || host.device.info().blocks == 2000).await;
        // The first target does not have the namespace any more, the second one has.
        first.resize(0);
        host.until("the size of the other one", || host.device.info().blocks == 3000).await;
        let before = first.seen().len();
        assert_eq!(host.write(2500, 1, 3).await, Status::Ok);
        assert!(!second.writes_of(2500).is_empty() && !first.seen()[before..].iter().any(|seen| seen.queue > 0));
        second.resize(0);
        host.until("nobody has it", || host.device.info().blocks == 0).await;
        assert_eq!(host.write(1, 1, 3).await, Status::OutOfRange);
        first.resize(4096);
        host.until("its return", || host.device.info().blocks == 4096).await;
        assert_eq!(host.write(4000, 1, 3).await, Status::Ok);
        host.close().await;
    });
}

#[test]
fn a_namespace_that_one_target_does_not_have_any_more_is_used_by_way_of_the_other() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    let options = options(&first);
    run(move |reactor| async move {
        let host = open(reactor, &options, &[second.address]).await;
        // It tells nobody but by refusing.
        first.set_blocks(0);
        first.set_script(|seen| match seen.queue > 0 && seen.is_io(NvmOpcode::Write) {
            true => Action::Fail(Nvme::INVALID_NAMESPACE.dnr()),
            false => Action::Serve,
        });
        assert_eq!(host.write(1, 1, 3).await, Status::Ok);
        host.until("the look", || host.device.paths()[0].ana == Some(AnaState::Inaccessible)).await;
        assert_eq!((host.write(2, 1, 3).await, first.writes_of(2).len()), (Status::Ok, 0));
        second.set_script(|seen| match seen.queue > 0 && seen.is_io(NvmOpcode::Write) {
            true => Action::Fail(Nvme::INVALID_NAMESPACE.dnr()),
            false => Action::Serve,
        });
        second.set_blocks(0);
        assert_eq!(host.write(3, 1, 3).await, Status::Gone);
        host.close().await;
    });
}

#[test]
fn a_flush_goes_to_every_path_that_was_written_to() {
    let cached = Config { volatile_cache: true, ..Config::default() };
    let (first, second) = (Fake::start(cached.clone()), Fake::start(cached));
    let options = options(&first);
    first.set_script(|seen| match seen.is_io(NvmOpcode::Read) {
        true => Action::Fail(Nvme::INTERNAL_PATH_ERROR),
        false => Action::Serve,
    });
    let flushes = |fake: &Fake| fake.seen().iter().filter(|seen| seen.is_io(NvmOpcode::Flush)).count();
    run(move |reactor| async move {
        let host = open(reactor, &options, &[second.address]).await;
        assert_eq!(host.write(1, 1, 3).await, Status::Ok);
        // Refused, which has later operations take the second path.
        assert_eq!(host.read(1, 1).await.0, Status::Ok);
        assert_eq!(host.write(2, 1, 3).await, Status::Ok);
        assert_eq!((first.writes_of(1).len(), second.writes_of(2).len()), (1, 1));
        assert_eq!(host.channel.submit(Io::flush()).await.status, Status::Ok);
        assert_eq!((flushes(&first), flushes(&second)), (1, 1));
        assert_eq!(host.write(3, 1, 3).await, Status::Ok);
        assert_eq!(host.channel.submit(Io::flush()).await.status, Status::Ok);
        assert_eq!((flushes(&first), flushes(&second)), (1, 2), "nothing new was written to the first");
        // What fails on one path has failed, and is due again.
        second.set_script(|seen| match seen.is_io(NvmOpcode::Flush) {
            true => Action::Fail(Nvme::WRITE_FAULT.dnr()),
            false => Action::Serve,
        });
        assert_eq!(host.write(4, 1, 3).await, Status::Ok);
        for _ in 0..2 {
            assert_ne!(host.channel.submit(Io::flush()).await.status, Status::Ok);
        }
        assert_eq!(flushes(&second), 4);
        host.close().await;
    });
}

#[test]
fn an_abort_finds_an_operation_that_waits_for_its_next_attempt() {
    let fake = Fake::start(Config::default());
    let options = Options { retries_max: 200, ..options(&fake) };
    fake.set_script(|seen| match seen.is_io(NvmOpcode::Write) {
        true => Action::Fail(Nvme::INTERNAL_PATH_ERROR),
        false => Action::Serve,
    });
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        let write = host.start(Io { tag: 9, ..host.write_io(1, 1, 3) });
        // The pauses are as long as a second by now.
        host.until("the eighth attempt", || fake.writes_of(1).len() == 8).await;
        host.reactor.sleep_ns(20 * MS).await;
        let began = Instant::now();
        host.channel.abort(9);
        host.until("its end", || write.borrow().is_some()).await;
        assert_eq!(write.borrow().as_ref().unwrap().status, Status::Aborted);
        assert!(began.elapsed() < Duration::from_millis(500) && fake.writes_of(1).len() == 8);
        host.close().await;
    });
}

#[test]
fn a_device_without_identifiers_comes_back_after_another_path_was_refused() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    for fake in [&first, &second] {
        fake.set_script(|seen| {
            let asks = seen.is_admin(AdminOpcode::Identify)
                && IdentifyCommand::of(&seen.sqe).cns == Cns::NamespaceDescriptors as u8;
            if asks { Action::Fail(Nvme::INVALID_FIELD.dnr()) } else { Action::Serve }
        });
    }
    // The path that was refused goes on trying to end for a while.
    let options = Options { reconnect_first_ns: 2000 * MS, reconnect_max_ns: 4000 * MS, ..options(&first) };
    run(move |reactor| async move {
        let host = open(reactor.clone(), &options, &[]).await;
        assert!(host.device.add_path(&reactor, second.address).await.is_err(), "one namespace is like another");
        let began = Instant::now();
        first.close_all();
        host.until("the next association", || host.device.stats().reconnects == 1).await;
        assert!(began.elapsed() < Duration::from_millis(1000), "at once");
        host.close().await;
    });
}

#[test]
fn reconnects_are_counted_for_ever() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    let options = options(&first);
    run(move |reactor| async move {
        let host = open(reactor, &options, &[second.address]).await;
        first.close_all();
        host.until("the next association", || host.device.stats().reconnects == 1).await;
        assert!(host.device.remove_path(first.address));
        assert_eq!(host.device.stats().reconnects, 1);
        host.close().await;
    });
}

#[test]
fn what_a_namespace_is_known_to_be_decides_which_paths_are_used() {
    let (other, ours) = (Fake::start(Config::default()), Fake::start(Config::default()));
    other.configure(|config| config.uuid = [8; 16]);
    let options = options(&other);
    run(move |reactor| async move {
        let only = Options { address: ours.address, ..options.clone() };
        let known = NvmfDevice::open(&reactor, "remote", &only, None).await.unwrap().known();
        let more = [ours.address];
        let device = NvmfDevice::open_paths(&reactor, "remote", &options, &more, None, Some(known)).await.unwrap();
        let channel = device.open_channel(&reactor).unwrap();
        let host = Host { reactor, device, channel };
        host.until("both paths' fate", || {
            let paths = host.device.paths();
            is_up(&paths[1]) && paths[0].trouble.as_ref().is_some_and(|trouble| trouble.contains("is another one"))
        })
        .await;
        assert_eq!(host.device.paths()[0].address, other.address, "in the order in which they were named");
        assert_eq!(host.write(1, 1, 3).await, Status::Ok);
        assert!(wrote(&ours) && !wrote(&other));
        // It becomes one of them when it shows the namespace.
        other.configure(|config| config.uuid = [7; 16]);
        host.until("the other path", || is_up(&host.device.paths()[0])).await;
        host.close().await;
    });
}

#[test]
fn operations_that_another_lane_serves_are_counted_once() {
    let fake = Fake::start(Config { queues: 1, ..Config::default() });
    let options = Options { queues_per_channel: 3, ..options(&fake) };
    run(move |reactor| async move {
        let host = open(reactor, &options, &[]).await;
        // Until those without a queue have found the one that has it.
        host.reactor.sleep_ns(700 * MS).await;
        for lba in 0..30 {
            assert_eq!(host.write(lba, 1, 3).await, Status::Ok);
        }
        host.until("the count", || host.device.paths()[0].ios >= 30).await;
        // Each lane tells its own, half a second behind.
        host.reactor.sleep_ns(1200 * MS).await;
        assert_eq!(host.device.paths()[0].ios, 30);
        host.close().await;
    });
}

#[test]
fn what_is_under_way_on_a_path_that_goes_moves_when_it_cannot_be_done_there_any_more() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    let options = options(&first);
    first.set_script(|seen| if seen.is_io(NvmOpcode::Write) { Action::Park } else { Action::Serve });
    run(move |reactor| async move {
        let host = open(reactor, &options, &[second.address]).await;
        let write = host.start(host.write_io(1, 1, 3));
        host.until("the write", || first.writes_of(1).len() == 1).await;
        assert!(host.device.remove_path(first.address));
        assert_eq!(host.write(2, 1, 3).await, Status::Ok);
        assert!(second.writes_of(1).is_empty() && write.borrow().is_none(), "it has a while to end");
        host.until("the write", || write.borrow().is_some()).await;
        assert_eq!(write.borrow().as_ref().unwrap().status, Status::Ok);
        let mut resets =
            first.seen().into_iter().filter(|seen| seen.property_set(property::CC).is_some_and(|cc| cc & 1 == 0));
        let reset = resets.next_back().expect("the former controller was reset");
        assert!(second.writes_of(1)[0].at >= reset.at);
        host.close().await;
    });
}

#[test]
fn an_abort_finds_an_operation_on_a_path_that_goes() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    let options = options(&first);
    first.set_script(|seen| if seen.is_io(NvmOpcode::Write) { Action::Park } else { Action::Serve });
    run(move |reactor| async move {
        let host = open(reactor, &options, &[second.address]).await;
        let write = host.start(Io { tag: 9, ..host.write_io(1, 1, 3) });
        host.until("the write", || first.writes_of(1).len() == 1).await;
        assert!(host.device.remove_path(first.address));
        // Operations do not take it any more.
        assert_eq!(host.write(2, 1, 3).await, Status::Ok);
        host.channel.abort(9);
        let is_abort = |seen: &fake::Seen| seen.is_admin(AdminOpcode::Abort);
        host.until("the abort", || first.seen().iter().any(is_abort)).await;
        let (sent, abort) = (first.writes_of(1)[0], first.seen().into_iter().find(is_abort).unwrap());
        assert_eq!(abort.sqe.cdw10.get(), u32::from(sent.queue) | u32::from(sent.sqe.cid.get()) << 16);
        first.answer_parked();
        host.until("its end", || write.borrow().is_some()).await;
        host.close().await;
    });
}

#[test]
fn a_path_that_is_the_first_to_show_a_new_size_has_the_others_look() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    // A second attempt would come late.
    let options = Options { reconnect_first_ns: 4000 * MS, reconnect_max_ns: 4000 * MS, ..options(&first) };
    run(move |reactor| async move {
        let host = open(reactor, &options, &[second.address]).await;
        first.set_blocks(3000);
        second.set_blocks(3000);
        let began = Instant::now();
        first.close_all();
        host.until("the next association", || host.device.stats().reconnects == 1).await;
        assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
        assert_eq!(host.device.info().blocks, 3000);
        // One that differs from what is still there is not this namespace.
        first.set_blocks(2000);
        first.close_all();
        host.until("the refusal", || host.device.paths()[0].other.is_some()).await;
        assert_eq!((host.device.info().blocks, host.write(1, 1, 3).await), (3000, Status::Ok));
        host.close().await;
    });
}

#[test]
fn another_namespace_takes_the_place_of_a_devices_by_command_alone() {
    let (first, second) = (Fake::start(Config::default()), Fake::start(Config::default()));
    // What was accepted is connected without the rest of a pause.
    let options = Options { reconnect_first_ns: 6000 * MS, reconnect_max_ns: 6000 * MS, ..options(&first) };
    run(move |reactor| async move {
        let host = open(reactor.clone(), &options, &[second.address]).await;
        let known = host.device.known();
        assert_eq!(host.device.replacement(), Err(NoReplacement::InUse(first.address)));
        host.close().await;
        first.configure(|config| config.uuid = [8; 16]);
        second.configure(|config| config.uuid = [9; 16]);
        let device = NvmfDevice::open_later(&reactor, "remote", &options, &[second.address], 1, known).unwrap();
        let channel = device.open_channel(&reactor).unwrap();
        let host = Host { reactor, device, channel };
        assert_eq!(host.device.replacement(), Err(NoReplacement::NotSeen));
        host.until("both refusals", || host.device.paths().iter().all(|path| path.other.is_some())).await;
        let differ = host.device.replacement().unwrap_err().to_string();
        for part in [first.address.to_string(), second.address.to_string(), Uuid::from_bytes([9; 16]).to_string()] {
            assert!(differ.contains(&part), "{differ}");
        }
        assert!(host.device.remove_path(second.address));
        let found = host.device.replacement().unwrap();
        let began = Instant::now();
        host.device.replace(&found);
        host.until("the path", || is_up(&host.device.paths()[0])).await;
        assert!(began.elapsed() < Duration::from_millis(2000), "{:?}", began.elapsed());
        assert_eq!(host.device.known().ids.uuid, Some([8; 16]));
        assert_eq!(host.write(1, 1, 3).await, Status::Ok);
        host.close().await;
    });
}
