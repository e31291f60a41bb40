//! Encryption, rate limits, statistics, and devices of other reactors.

use crate::common::*;
use bdev::{
    BlockDevice, Channel, Delay, DelayDevice, Delays, EncryptDevice, EncryptOptions, ErrorDevice, ErrorRule, Fault, Io,
    LatencyClass, Lba, Limits, MirrorDevice, MirrorOptions, Op, RateLimitDevice, RemoteDevice, StatsDevice, Status,
    UserKey,
};
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{PollPolicy, Reactor, ReactorConfig, SgList};
use std::rc::Rc;
use std::sync::Arc;

fn key(byte: u8) -> UserKey {
    UserKey::from_bytes(&[byte; 32]).unwrap()
}

const CREATE: EncryptOptions = EncryptOptions { create: true, force: false, pass_unmap: true };

async fn encrypted(reactor: &Rc<Reactor>, child: Arc<dyn BlockDevice>) -> EncryptDevice {
    EncryptDevice::open(reactor, "secret", child, &key(1), &CREATE).await.unwrap()
}

async fn write(reactor: &Rc<Reactor>, channel: &dyn Channel, lba: u64, fill: u8) -> Status {
    let mut bufs = SgList::new();
    bufs.push(reactor.pool().alloc(4096).await);
    bufs[0].as_mut_slice().fill(fill);
    channel.submit(Io::write(Lba(lba), 1, bufs)).await.status
}

async fn read(channel: &dyn Channel, lba: u64) -> Result<Vec<u8>, Status> {
    let done = channel.submit(Io::read_loan(Lba(lba), 1)).await;
    done.status.check()?;
    Ok(done.io.bufs[0].as_slice().to_vec())
}

#[test]
fn encrypt_conforms() {
    let reactor = reactor();
    for block_size in [512, 4096] {
        let inner = reactor.clone();
        let device = reactor.block_on(async move { encrypted(&inner, mem_of("m", block_size, 1500)).await });
        conforms(&reactor, Arc::new(device), |_| {});
    }
}

#[test]
fn encrypt_over_mirror_over_mem_conforms() {
    let reactor = reactor();
    let inner = reactor.clone();
    let device = reactor.block_on(async move {
        let options = MirrorOptions { create: true, assume_clean: true, ..MirrorOptions::default() };
        let legs = vec![Some(mem("a", 900)), Some(mem("b", 900))];
        let mirror = MirrorDevice::open(&inner, "mirror", legs, &options).await.unwrap();
        encrypted(&inner, Arc::new(mirror)).await
    });
    conforms(&reactor, Arc::new(device), |_| {});
}

#[test]
fn the_child_sees_no_plaintext_a_wrong_key_is_refused_and_keys_can_be_changed() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let child = mem("m", 200);
        let device = encrypted(&inner, child.clone()).await;
        let channel = device.open_channel(&inner).unwrap();
        for lba in [3, 4] {
            assert_eq!(write(&inner, &*channel, lba, 0x41).await, Status::Ok);
        }
        let raw = child.open_channel(&inner).unwrap();
        let (a, b) = (read(&*raw, 5).await.unwrap(), read(&*raw, 6).await.unwrap());
        assert!(a != b && a.iter().filter(|byte| **byte == 0x41).count() < 100);
        let open =
            async |key| EncryptDevice::open(&inner, "again", child.clone(), &key, &EncryptOptions::default()).await;
        assert!(open(key(2)).await.err().unwrap().to_string().contains("key does not open"));
        device.change_key(&inner, &key(1), &key(3)).await.unwrap();
        assert!(open(key(1)).await.is_err());
        let again = open(key(3)).await.unwrap();
        assert_eq!(read(&*again.open_channel(&inner).unwrap(), 4).await.unwrap(), vec![0x41; 4096]);
        assert_eq!(format!("{:?}", key(3)), "UserKey(..)");
    });
}

#[test]
fn an_erased_volume_is_gone_for_good() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let child = mem("m", 200);
        let device = encrypted(&inner, child.clone()).await;
        let channel = device.open_channel(&inner).unwrap();
        assert_eq!(write(&inner, &*channel, 3, 1).await, Status::Ok);
        device.erase(&inner).await.unwrap();
        assert_eq!(read(&*channel, 3).await, Err(Status::Gone));
        drop((channel, device));
        let opened = EncryptDevice::open(&inner, "again", child, &key(1), &EncryptOptions::default()).await;
        assert!(opened.err().unwrap().to_string().contains("erased"));
    });
}

#[test]
fn one_damaged_header_copy_does_not_lose_the_volume_and_is_rewritten() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let child = mem("m", 200);
        drop(encrypted(&inner, child.clone()).await);
        let raw = child.open_channel(&inner).unwrap();
        for copy in [0, 1] {
            assert_eq!(write(&inner, &*raw, copy, 0x55).await, Status::Ok);
            EncryptDevice::open(&inner, "again", child.clone(), &key(1), &EncryptOptions::default()).await.unwrap();
        }
        for copy in [0, 1] {
            assert_eq!(write(&inner, &*raw, copy, 0x55).await, Status::Ok);
        }
        let opened = EncryptDevice::open(&inner, "again", child, &key(1), &CREATE).await;
        assert!(opened.err().unwrap().to_string().contains("other data"));
    });
}

#[test]
fn a_change_of_key_that_was_cut_short_leaves_one_key_after_the_next_opening() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let child = mem("m", 200);
        let device = encrypted(&inner, child.clone()).await;
        let raw = child.open_channel(&inner).unwrap();
        let old = read(&*raw, 1).await.unwrap();
        device.change_key(&inner, &key(1), &key(2)).await.unwrap();
        let mut bufs = SgList::new();
        bufs.push(inner.pool().alloc(4096).await);
        bufs[0].as_mut_slice().copy_from_slice(&old);
        assert_eq!(raw.submit(Io::write(Lba(1), 1, bufs)).await.status, Status::Ok);
        let open =
            async |key| EncryptDevice::open(&inner, "again", child.clone(), &key, &EncryptOptions::default()).await;
        assert!(open(key(1)).await.is_err());
        open(key(2)).await.unwrap();
        assert_eq!(read(&*raw, 0).await, read(&*raw, 1).await, "the old wrapping is gone");
    });
}

#[test]
fn rate_limit_conforms_and_limits() {
    let reactor = reactor();
    conforms(&reactor, Arc::new(RateLimitDevice::new("open", mem("m", 500), Limits::default())), |_| {});
    let limits = Limits { iops: 20_000, bytes_per_second: 400 << 20, burst_ns: 1_000_000 };
    let device = Arc::new(RateLimitDevice::new("limited", mem("m", 500), limits));
    conforms(&reactor, device.clone(), |options| options.random_ops = 100);
    device.set(Limits { iops: 1000, bytes_per_second: 0, burst_ns: 0 });
    let inner = reactor.clone();
    let elapsed = reactor.block_on(async move {
        let channel = device.open_channel(&inner).unwrap();
        let began = inner.clock_ns();
        for _ in 0..50 {
            read(&*channel, 1).await.unwrap();
        }
        inner.clock_ns() - began
    });
    assert!(elapsed >= 48_000_000, "50 operations at 1,000 per second took {elapsed} ns");
}

#[test]
fn a_change_reaches_operations_that_are_being_held_up() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let reactor = reactor();
    let slow = Delay { fixed_ns: HOUR_NS, jitter_ns: 0 };
    let delays = Delays { read: slow, write: slow, flush: slow };
    let delay = Arc::new(DelayDevice::new("d", mem("m", 10), delays, 1));
    let limits = Limits { iops: 1, bytes_per_second: 0, burst_ns: 0 };
    let limit = Arc::new(RateLimitDevice::new("l", mem("n", 10), limits));
    for (device, let_go) in [
        (delay.clone() as Arc<dyn BlockDevice>, Box::new(move || delay.set(Delays::default())) as Box<dyn Fn()>),
        (limit.clone(), Box::new(move || limit.set(Limits::default()))),
    ] {
        let inner = reactor.clone();
        reactor.block_on(async move {
            let channel = device.open_channel(&inner).unwrap();
            let held: Vec<_> = (0..1000).map(|_| channel.submit(Io::read_loan(Lba(1), 1))).collect();
            let (watch, limit_ns) = (inner.clone(), HOUR_NS / 60);
            let_go();
            for read in held {
                assert_eq!(watch.timeout(limit_ns, read).await.map(|done| done.status), Some(Status::Ok));
            }
        });
    }
}

#[test]
fn statistics_count_what_happened() {
    let reactor = reactor();
    let error = Arc::new(ErrorDevice::new("e", mem("m", 500), &[], 1).unwrap());
    let device = Arc::new(StatsDevice::new(error.clone()));
    conforms(&reactor, device.clone(), |options| options.random_ops = 100);
    let (before, inner, counted) = (device.stats(), reactor.clone(), device.clone());
    reactor.block_on(async move {
        let channel = counted.open_channel(&inner).unwrap();
        for _ in 0..10 {
            assert_eq!(write(&inner, &*channel, 1, 1).await, Status::Ok);
        }
        error.set_rules(&[ErrorRule::always(&[Op::Read], Fault::Fail(Status::ReadError))]).unwrap();
        assert!(read(&*channel, 1).await.is_err());
    });
    let after = device.stats();
    assert_eq!(after.of(Op::Write).blocks - before.of(Op::Write).blocks, 10);
    assert_eq!(after.of(Op::Read).errors - before.of(Op::Read).errors, 1);
    let writes = LatencyClass::Write;
    assert_eq!(after.latency_of(writes).count() - before.latency_of(writes).count(), 10);
    assert_eq!(after.depth, 0);
    // What is read often says the same.
    let counts = device.counts();
    assert_eq!((counts.ops, counts.depth), (after.ops, 0));
    let mut latencies = before.latency_of(LatencyClass::Flush).clone();
    device.add_latencies(writes, &mut latencies);
    let flushes = before.latency_of(LatencyClass::Flush).count();
    assert_eq!(latencies.count(), flushes + after.latency_of(writes).count());
}

#[test]
fn what_ends_at_once_has_a_latency_too() {
    let reactor = reactor();
    let device = Arc::new(StatsDevice::new(mem("m", 500)));
    let (inner, counted) = (reactor.clone(), device.clone());
    reactor.block_on(async move {
        let channel = counted.open_channel(&inner).unwrap();
        for lba in 0..100 {
            assert_eq!(write(&inner, &*channel, lba, 1).await, Status::Ok);
        }
    });
    let stats = device.stats();
    let writes = stats.latency_of(LatencyClass::Write);
    assert_eq!((writes.count(), writes.count_at_most(0)), (100, 0));
}

fn two_reactors() -> Runtime {
    let reactor = ReactorConfig { policy: PollPolicy::Sleep, ..ReactorConfig::default() };
    Runtime::start(&RuntimeConfig { cores: vec![None, None], reactor, ..RuntimeConfig::default() }).unwrap()
}

#[test]
fn a_device_of_another_reactor_conforms() {
    let runtime = two_reactors();
    let [home, other] = runtime.handles() else { panic!("two reactors") };
    let child = mem("m", 500);
    let remote = home.call(move |reactor| Arc::new(RemoteDevice::new(reactor, child).unwrap())).unwrap();
    let device: Arc<dyn BlockDevice> = remote;
    let outcome = other.call_async(move |reactor| async move {
        let mut options = bdev::conformance::Options::new(5);
        options.random_ops = 200;
        bdev::conformance::run(&reactor, &device, options).await
    });
    outcome.unwrap().unwrap();
}

#[test]
fn compare_and_write_is_atomic_across_reactors() {
    let dir = disk_dir();
    let runtime = two_reactors();
    let options = file_options(&dir, "f", 1 << 20);
    let make_file = move |reactor: &Rc<Reactor>| Arc::new(bdev::FileDevice::open(reactor, "f", options).unwrap());
    let file: Arc<dyn BlockDevice> = runtime.handles()[0].call(make_file).unwrap();
    for (device, rounds) in [(mem("m", 100), 3000u64), (file, 40)] {
        let count = |handle: &reactor::ReactorHandle| {
            let (device, done) = (device.clone(), std::sync::mpsc::channel());
            let reply = done.0;
            handle.run(move |reactor| {
                let (reactor, inner) = (reactor.clone(), reactor.clone());
                reactor.spawn(async move {
                    let channel = device.open_channel(&inner).unwrap();
                    for _ in 0..rounds {
                        bdev::conformance::count_up(&*channel, &inner, 7, 4096).await.unwrap();
                    }
                    reply.send(()).unwrap();
                });
            });
            done.1
        };
        let waiting: Vec<_> = runtime.handles().iter().map(count).collect();
        waiting.iter().for_each(|done| done.recv().unwrap());
        let bytes = runtime.handles()[0]
            .call_async(move |reactor| async move {
                let channel = device.open_channel(&reactor).unwrap();
                read(&*channel, 7).await.unwrap()
            })
            .unwrap();
        assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()), 2 * rounds);
    }
}

#[test]
fn an_abort_ends_the_wait_in_a_delay_or_a_rate_limit() {
    const NEVER_NS: u64 = 1 << 60;
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let wait = Delay { fixed_ns: NEVER_NS, jitter_ns: 0 };
        let delays = Delays { read: wait, write: Delay::default(), flush: Delay::default() };
        let limits = Limits { bytes_per_second: 1, ..Limits::default() };
        let devices: [Arc<dyn BlockDevice>; 2] = [
            Arc::new(DelayDevice::new("delay", mem("a", 500), delays, 1)),
            Arc::new(RateLimitDevice::new("limit", mem("b", 500), limits)),
        ];
        for device in devices {
            let channel = device.open_channel(&inner).unwrap();
            // The first operation at the limit is free and makes the next ones wait.
            if device.kind() == "rate-limit" {
                assert_eq!(channel.submit(Io::read_loan(Lba(0), 1)).await.status, Status::Ok);
            }
            let read = |tag| channel.submit(Io { tag, ..Io::read_loan(Lba(0), 1) });
            let (first, second, third) = (read(1), read(2), read(1));
            channel.abort(1);
            assert_eq!((first.await.status, third.await.status), (Status::Aborted, Status::Aborted));
            // Also when somebody waits for it already.
            let other = channel.clone();
            inner.spawn(async move { other.abort(2) });
            assert_eq!(second.await.status, Status::Aborted);
        }
    });
}

#[test]
fn operations_end_when_the_reactor_that_serves_the_device_stops() {
    let runtime = two_reactors();
    let [home, other] = runtime.handles() else { panic!("two reactors") };
    let never = Delay { fixed_ns: 1 << 60, jitter_ns: 0 };
    let delays = Delays { read: never, ..Delays::default() };
    let child = Arc::new(DelayDevice::new("delay", mem("m", 500), delays, 1));
    let remote = home.call(move |reactor| Arc::new(RemoteDevice::new(reactor, child).unwrap())).unwrap();
    let home = home.clone();
    let statuses = other.call_async(move |reactor| async move {
        let channel = remote.open_channel(&reactor).unwrap();
        let waiting = channel.submit(Io::read_loan(Lba(0), 1));
        let inner = reactor.clone();
        let stopper = reactor.spawn_join(async move {
            // After the read has been sent there.
            inner.call_on(0, |_| async {}).await;
            home.run(|reactor| reactor.close());
        });
        let under_way = waiting.await.status;
        stopper.await;
        [under_way, channel.submit(Io::read_loan(Lba(0), 1)).await.status]
    });
    assert_eq!(statuses, Some([Status::Gone, Status::Gone]));
}
