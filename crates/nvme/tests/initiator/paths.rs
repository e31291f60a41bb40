//! A device with two paths, each to a target of its own.

use super::*;
use nvme::initiator::PathStatus;
use nvme::spec::ana::AnaState;
use std::net::SocketAddr;

async fn open(reactor: Rc<Reactor>, options: &Options, more: &[SocketAddr]) -> Host {
    let device = NvmfDevice::open_paths(&reactor, "remote", options, more, None).await.unwrap();
    let channel = device.open_channel(&reactor).unwrap();
    let host = Host { reactor, device, channel };
    host.until("every path", || host.device.paths().iter().all(is_up)).await;
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
        let opened = NvmfDevice::open_paths(&reactor, "remote", &options, &[other.address], None).await;
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
