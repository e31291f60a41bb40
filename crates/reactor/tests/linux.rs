//! The Linux driver in the real world: sockets, files, timers, messages between cores, sleep and wake.

use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{
    File, FileOptions, PollPolicy, PoolConfig, Reactor, ReactorConfig, SgList, Signal, TcpListener, TcpStream,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn start(count: usize, policy: PollPolicy) -> Runtime {
    let reactor = ReactorConfig { policy, ..ReactorConfig::default() };
    Runtime::start(&RuntimeConfig { cores: vec![None; count], reactor, ..RuntimeConfig::default() }).unwrap()
}

fn on<T: Send + 'static, F: Future<Output = T> + 'static>(
    runtime: &Runtime,
    index: usize,
    make: impl FnOnce(Rc<Reactor>) -> F + Send + 'static,
) -> T {
    runtime.handles()[index].call_async(make).expect("the reactor answers")
}

#[test]
fn a_stream_carries_bytes_both_ways_between_reactors() {
    for policy in [PollPolicy::Sleep, PollPolicy::Adaptive { spin_max_ns: 50_000 }] {
        let runtime = start(2, policy);
        let address = on(&runtime, 0, |reactor| async move {
            let listener = TcpListener::bind(&reactor, "127.0.0.1:0".parse().unwrap(), false).unwrap();
            let address = listener.address();
            reactor.clone().spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; 1000];
                loop {
                    match stream.recv(&mut bytes).await.unwrap() {
                        0 => break,
                        count => stream.send_all(&bytes[..count]).await.unwrap(),
                    }
                }
            });
            address
        });
        let echoed = on(&runtime, 1, move |reactor| async move {
            let stream = Rc::new(TcpStream::connect(&reactor, address).await.unwrap());
            let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7) as u8).collect();
            let sender = stream.clone();
            let copy = sent.clone();
            let sending = reactor.spawn_join(async move { sender.send_all(&copy).await.unwrap() });
            let mut back = vec![0; sent.len()];
            stream.recv_exact(&mut back).await.unwrap();
            sending.await;
            back == sent
        });
        assert!(echoed);
    }
}

#[test]
fn connecting_to_a_closed_port_is_refused() {
    let runtime = start(1, PollPolicy::Sleep);
    let outcome = on(&runtime, 0, |reactor| async move {
        TcpStream::connect(&reactor, "127.0.0.1:1".parse().unwrap()).await.map(|_| ())
    });
    assert_eq!(outcome, Err(base::Errno::ECONNREFUSED));
}

#[test]
fn files_hold_what_was_written_direct_and_buffered() {
    let directory = tempfile::tempdir().unwrap();
    for (name, direct) in [("direct", true), ("buffered", false)] {
        let path = directory.path().join(name).to_str().unwrap().to_string();
        let runtime = start(1, PollPolicy::Sleep);
        on(&runtime, 0, move |reactor| async move {
            let options = FileOptions { write: true, create_bytes: Some(1 << 20), direct, lock: true };
            let file = File::open(&reactor, &path, &options).unwrap();
            assert_eq!(file.info().bytes, 1 << 20);
            let mut bufs = SgList::new();
            for byte in 1..=3u8 {
                let mut buf = reactor.pool().try_alloc(4096).unwrap();
                buf.as_mut_slice().fill(byte);
                bufs.push(buf);
            }
            let done = file.write(8192, bufs, true).await;
            assert_eq!(done.result, Ok(3 * 4096));
            assert_eq!(file.discard(12_288, 4096).await.result, Ok(0));
            assert_eq!(file.flush().await.result, Ok(0));
            let done = file.read(8192, done.bufs).await;
            assert_eq!(done.result, Ok(3 * 4096));
            let firsts: Vec<u8> = done.bufs.iter().map(|buf| buf.as_slice()[77]).collect();
            assert_eq!(firsts, [1, 0, 3]);
            assert!(matches!(File::open(&reactor, &path, &options).map(|_| ()), Err(base::Errno::EBUSY)));
        });
    }
}

#[test]
fn files_are_read_into_the_memory_that_is_there_however_often_buffers_change_their_size() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file").to_str().unwrap().to_string();
    let pool = PoolConfig { bytes_max: 2 << 20 };
    let reactor = ReactorConfig { pool, policy: PollPolicy::Sleep, ..ReactorConfig::default() };
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![None], reactor, ..RuntimeConfig::default() }).unwrap();
    on(&runtime, 0, |reactor| async move {
        let options = FileOptions { write: true, create_bytes: Some(1 << 20), direct: true, lock: false };
        let file = File::open(&reactor, &path, &options).unwrap();
        let exhaust = |bytes: usize| std::iter::from_fn(|| reactor.pool().try_alloc(bytes)).collect::<Vec<_>>().len();
        // A ring has room for 1,024 registrations.
        for _ in 0..1_100 {
            assert_eq!((exhaust(4096), exhaust(1 << 20)), (512, 2));
        }
        let mut buf = reactor.pool().try_alloc(1 << 20).unwrap();
        buf.as_mut_slice().fill(7);
        let done = file.write(0, SgList::from_iter([buf]), true).await;
        assert_eq!(done.result, Ok(1 << 20));
        let mut bufs = done.bufs;
        bufs[0].as_mut_slice().fill(9);
        let done = file.read(0, bufs).await;
        assert_eq!(done.result, Ok(1 << 20));
        assert!(done.bufs[0].as_slice().iter().all(|byte| *byte == 7));
    });
}

#[test]
fn an_abandoned_read_gives_its_buffer_back_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file").to_str().unwrap().to_string();
    let runtime = start(1, PollPolicy::Sleep);
    on(&runtime, 0, move |reactor| async move {
        let options = FileOptions { write: true, create_bytes: Some(1 << 20), ..FileOptions::default() };
        let file = File::open(&reactor, &path, &options).unwrap();
        for _ in 0..10_000 {
            let buf = reactor.pool().try_alloc(65_536).expect("abandoned buffers come back");
            drop(file.read(0, SgList::from_iter([buf])));
            reactor.yield_now().await;
            if reactor.driver().in_flight() > 64 {
                file.flush().await;
            }
        }
    });
}

#[test]
fn a_file_that_cannot_be_made_so_large_is_not_left_behind() {
    let directory = tempfile::tempdir().unwrap();
    let (path, empty) = (directory.path().join("file"), directory.path().join("empty"));
    std::fs::write(&empty, "").unwrap();
    let runtime = start(1, PollPolicy::Sleep);
    let names = [&path, &empty].map(|path| path.to_str().unwrap().to_string());
    on(&runtime, 0, move |reactor| async move {
        let options = FileOptions { write: true, create_bytes: Some(1 << 63), ..FileOptions::default() };
        for name in &names {
            assert!(File::open(&reactor, name, &options).is_err());
        }
    });
    assert!(!path.exists() && empty.exists(), "what was there before stays");
}

#[test]
fn timers_fire_in_order_and_not_early() {
    let runtime = start(1, PollPolicy::Adaptive { spin_max_ns: 20_000 });
    let began = Instant::now();
    let order = on(&runtime, 0, |reactor| async move {
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let mut joins = Vec::new();
        for ms in [30u64, 10, 20] {
            let (reactor2, order) = (reactor.clone(), order.clone());
            joins.push(reactor.spawn_join(async move {
                reactor2.sleep_ns(ms * 1_000_000).await;
                order.borrow_mut().push(ms);
            }));
        }
        for join in joins {
            join.await;
        }
        order.take()
    });
    assert_eq!(order, [10, 20, 30]);
    assert!(began.elapsed() >= Duration::from_millis(30));
}

/// Every message between sleeping reactors arrives: a lost wake-up would hang this test.
#[test]
fn no_wake_up_is_lost_between_reactors() {
    let runtime = start(3, PollPolicy::Sleep);
    let count = Arc::new(AtomicU64::new(0));
    for from in 0..3 {
        let count = count.clone();
        on(&runtime, from, move |reactor| async move {
            for round in 0..3_000usize {
                let to = (from + 1 + round % 2) % 3;
                let count = count.clone();
                let there = reactor
                    .call_on(to, move |there| async move {
                        count.fetch_add(1, Ordering::Relaxed);
                        there.index()
                    })
                    .await;
                assert_eq!(there, to);
            }
        });
    }
    assert_eq!(count.load(Ordering::Relaxed), 9_000);
}

#[test]
fn an_idle_reactor_sleeps() {
    let runtime = start(1, PollPolicy::Adaptive { spin_max_ns: 50_000 });
    std::thread::sleep(Duration::from_millis(20));
    let read = |runtime: &Runtime| runtime.handles()[0].call(|reactor| reactor.stats().read()).unwrap();
    let before = read(&runtime);
    std::thread::sleep(Duration::from_millis(300));
    let after = read(&runtime);
    let awake_ns = (after.busy_ns + after.spin_ns) - (before.busy_ns + before.spin_ns);
    assert!(after.turns - before.turns < 100, "{} turns while idle, {awake_ns} ns awake", after.turns - before.turns);
}

#[test]
fn a_reactor_that_does_not_spin_takes_one_turn_for_each_wake_up() {
    const CALLS: u64 = 200;
    let runtime = start(1, PollPolicy::Sleep);
    let turns = || runtime.handles()[0].call(|reactor| reactor.turns()).expect("the reactor answers");
    let before = turns();
    for _ in 0..CALLS {
        // It has gone to sleep meanwhile.
        std::thread::sleep(Duration::from_millis(1));
        turns();
    }
    let taken = turns() - before;
    assert!((CALLS..CALLS * 3 / 2).contains(&taken), "{taken} turns for {CALLS} calls");
}

#[test]
fn a_signal_whose_other_end_is_gone_is_an_error() {
    use std::os::fd::IntoRawFd;
    let runtime = start(1, PollPolicy::Sleep);
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    let outcomes = on(&runtime, 0, move |reactor| async move {
        let raw = here.into_raw_fd() as u64;
        let signal = Signal::import(&reactor, reactor::driver::ExportedSocket { raw }).unwrap();
        let first = signal.given().await.is_ok();
        drop(there);
        (first, signal.given().await.is_err(), signal.given().await.is_err())
    });
    assert_eq!(outcomes, (true, true, true));
}
