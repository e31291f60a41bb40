//! One device on several reactors: queues of their own, queues shared, and the end of it.

use super::*;

/// Opens the device on the first of three reactors, writes from each, and says which queues the writes came over.
fn queues_used_by_three_reactors(fake: &Fake, options: Options) -> Vec<u16> {
    let config = RuntimeConfig { cores: vec![None; 3], ..RuntimeConfig::default() };
    let runtime = Runtime::start(&config).unwrap();
    let device = runtime.handles()[0]
        .call_async(move |reactor| async move { NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap() })
        .unwrap();
    let device = Arc::new(device);
    let mut channels = Vec::new();
    for index in 0..3 {
        let device = device.clone();
        let (status, kept) = runtime.handles()[index]
            .call_async(move |reactor| async move {
                let channel = device.open_channel(&reactor).unwrap();
                let io = |lba| {
                    let mut buf = reactor.pool().try_alloc(BLOCK).unwrap();
                    buf.as_mut_slice().fill(lba as u8);
                    Io::write(Lba(lba), 1, SgList::from_iter([buf]))
                };
                let mut status = Status::Ok;
                for round in 0..20 {
                    let done = channel.submit(io(index as u64 + round * 3)).await;
                    assert_eq!(done.io.bufs[0].as_slice()[0] as u64, index as u64 + round * 3);
                    status = if status.is_ok() { done.status } else { status };
                }
                // Kept, so that its queue is not free for the next reactor.
                (status, reactor.keep(Rc::new(channel)))
            })
            .unwrap();
        assert_eq!(status, Status::Ok);
        channels.push(kept);
    }
    for lba in 0..60 {
        assert_eq!(fake.block(lba), [lba as u8; BLOCK]);
    }
    for (index, kept) in channels.into_iter().enumerate() {
        runtime.handles()[index].call(move |reactor| reactor.release::<Rc<dyn Channel>>(kept));
    }
    runtime.handles()[0].call_async(move |_| async move { device.close().await }).unwrap();
    let writes = fake.seen().into_iter().filter(|seen| seen.is_io(NvmOpcode::Write));
    writes.map(|seen| seen.queue).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

#[test]
fn each_reactor_has_a_queue_of_its_own() {
    let fake = Fake::start(Config::default());
    assert_eq!(queues_used_by_three_reactors(&fake, options(&fake)), [1, 2, 3]);
}

#[test]
fn reactors_share_queues_when_the_controller_grants_fewer() {
    for granted in [1, 2] {
        let fake = Fake::start(Config { queues: granted, ..Config::default() });
        let used = queues_used_by_three_reactors(&fake, options(&fake));
        assert_eq!(used, (1..=granted as u16).collect::<Vec<_>>());
    }
}

#[test]
fn shared_queues_survive_the_loss_of_the_connection() {
    let fake = Fake::start(Config { queues: 1, ..Config::default() });
    let mut count = 0;
    fake.set_script(move |seen| {
        count += u64::from(seen.is_io(NvmOpcode::Write));
        match seen.is_io(NvmOpcode::Write) && count % 25 == 0 {
            true => Action::Close,
            false => Action::Serve,
        }
    });
    queues_used_by_three_reactors(&fake, options(&fake));
}

#[test]
fn a_refresh_looks_at_the_size_without_an_event() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        fake.set_blocks(2000);
        let info = host.device.refresh(&host.reactor).await.unwrap();
        assert_eq!((info.blocks, host.device.info().blocks), (2000, 2000));
        host.close().await;
    });
}

#[test]
fn a_channel_that_was_dropped_does_not_connect_again() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    run(move |reactor| async move {
        let host = Host::open(reactor.clone(), &options).await;
        assert_eq!(host.write(1, 1, 1).await, Status::Ok);
        let channel = host.device.open_channel(&reactor).unwrap();
        assert_eq!(channel.submit(Io::read(Lba(1), 1, host.bufs(BLOCK, |_| 0))).await.status, Status::Ok);
        drop(channel);
        for round in 0..50 {
            assert_eq!(host.write(1, 1, round).await, Status::Ok);
        }
        assert_eq!(fake.queues_connected(), 2);
        host.close().await;
    });
}

#[test]
fn operations_under_way_end_before_the_device_closes() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    fake.set_script(|seen| {
        if seen.is_io(NvmOpcode::Write) {
            std::thread::sleep(Duration::from_millis(20));
        }
        Action::Serve
    });
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        let ios: Vec<_> = (0..10).map(|index| host.start(host.write_io(index, 1, 1))).collect();
        host.until("the first", || ios[0].borrow().is_some()).await;
        host.close().await;
        assert!(ios.iter().all(|io| io.borrow().as_ref().is_some_and(|done| done.status.is_ok())));
    });
}
