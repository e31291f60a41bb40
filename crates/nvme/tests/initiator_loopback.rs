//! The host against this crate's own target over loopback: the block-device conformance suite, digests, several reactors,
//! a target that goes and comes back, and no allocation per operation.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Flags, Io, Lba, MemDevice, Op, Status, conformance};
use nvme::auth::{Failure, Hash, HostKeys, KeyPair, Policy, Secret};
use nvme::initiator::{
    AuthenticationError, CommandError, ConnectError, HostIdentity, NvmfDevice, Options, Replay, discover,
};
use nvme::spec::Nqn;
use nvme::spec::reservation::{Keys, PersistenceChange, RegisterAction, ReservationCommand, ReservationType};
use nvme::target::SubsystemConfig;
use nvme::tcp_target::{Config, TcpTarget};
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{IoFuture, Reactor, SgList};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use uuid::Uuid;

const NQN: &str = "nqn.2024-01.org.example:loopback";

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Bench {
    runtime: Runtime,
    target: TcpTarget,
    device: Arc<MemDevice>,
    address: SocketAddr,
}

impl Drop for Bench {
    fn drop(&mut self) {
        close(&self.target);
    }
}

fn close(target: &TcpTarget) {
    let ended = target.call(|home| {
        home.close();
        Ok(())
    });
    assert!(ended.is_ok() || std::thread::panicking());
}

/// A target on reactor 0 with one memory namespace; the host uses the others.
fn start(reactors: usize) -> Bench {
    let config = RuntimeConfig { cores: vec![None; reactors], ..RuntimeConfig::default() };
    let runtime = Runtime::start(&config).unwrap();
    let device = Arc::new(MemDevice::new("mem", 4096, 8192, 16_384).unwrap());
    let target = TcpTarget::new(&runtime.handles()[..1], Config::default());
    let address = listen(&target, device.clone(), "127.0.0.1:0".parse().unwrap());
    Bench { runtime, target, device, address }
}

fn listen(target: &TcpTarget, device: Arc<MemDevice>, address: SocketAddr) -> SocketAddr {
    let make = move |home: &nvme::tcp_target::TargetHome| {
        home.add_subsystem(SubsystemConfig::new(Nqn::new(NQN).unwrap()))?;
        home.add_namespace(NQN, None, device, Uuid::from_u128(7))?;
        home.listen(address)
    };
    target.call(make).unwrap()
}

fn options(address: SocketAddr, digests: bool) -> Options {
    Options {
        header_digest: digests,
        data_digest: digests,
        replay: Replay::Exclusive,
        ..Options::new(address, Nqn::new(NQN).unwrap(), HostIdentity::from_uuid(Uuid::from_u128(1)))
    }
}

#[test]
fn the_remote_device_passes_the_conformance_suite() {
    for digests in [false, true] {
        let bench = start(2);
        let options = options(bench.address, digests);
        let outcome = bench.runtime.handles()[1].call_async(move |reactor| async move {
            let device = Arc::new(NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap());
            let as_block_device: Arc<dyn BlockDevice> = device.clone();
            assert!(device.info().ops.contains(Op::Copy) && device.info().ops.contains(Op::WriteUncorrectable));
            let outcome = conformance::run(&reactor, &as_block_device, conformance::Options::new(11)).await;
            drop(as_block_device);
            device.close().await;
            outcome.map_err(|failure| failure.to_string())
        });
        assert_eq!(outcome, Some(Ok(())), "digests {digests}");
    }
}

/// Memory that notes what it is asked to do.
struct Noting(Arc<MemDevice>, Arc<Mutex<Vec<Op>>>);

struct NotingChannel(Rc<dyn Channel>, Arc<Mutex<Vec<Op>>>);

impl BlockDevice for Noting {
    fn name(&self) -> &str {
        "noting"
    }
    fn kind(&self) -> &'static str {
        "noting"
    }
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }
    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(NotingChannel(self.0.open_channel(reactor)?, self.1.clone())))
    }
}

impl Channel for NotingChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        self.1.lock().unwrap().push(io.op);
        self.0.submit(io)
    }
}

#[test]
fn a_copy_is_the_targets_unless_it_overlaps_and_marks_are_flushed_when_they_are_to_last() {
    let bench = start(2);
    let noted = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::new(Noting(bench.device.clone(), noted.clone()));
    bench
        .target
        .call(|home| {
            home.remove_namespace(NQN, 1)?;
            home.add_namespace(NQN, None, noting, Uuid::from_u128(7))
        })
        .unwrap();
    let options = options(bench.address, false);
    let asked = [
        (Io { arg: 100, ..Io::new(Op::Copy, Lba(0), 100) }, vec![Op::Copy]),
        (Io { arg: 0, flags: Flags::FUA, ..Io::new(Op::Copy, Lba(4000), 2000) }, vec![Op::Copy; 8]),
        (Io { arg: 99, ..Io::new(Op::Copy, Lba(0), 100) }, vec![Op::Read, Op::Write]),
        (Io::new(Op::WriteUncorrectable, Lba(8), 8), vec![Op::WriteUncorrectable]),
        (
            Io { flags: Flags::FUA, ..Io::new(Op::WriteUncorrectable, Lba(8), 8) },
            vec![Op::WriteUncorrectable, Op::Flush],
        ),
    ];
    for (io, expected) in asked {
        let (options, noted) = (options.clone(), noted.clone());
        let found = bench.runtime.handles()[1].call_async(move |reactor| async move {
            let device = NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap();
            let channel = device.open_channel(&reactor).unwrap();
            noted.lock().unwrap().clear();
            let what = format!("{:?} {:?}", io.op, io.lba);
            assert_eq!(channel.submit(io).await.status, Status::Ok, "{what}");
            let found = std::mem::take(&mut *noted.lock().unwrap());
            drop(channel);
            device.close().await;
            found
        });
        assert_eq!(found.unwrap(), expected);
    }
}

#[test]
fn discovery_names_the_subsystem() {
    let bench = start(2);
    let options = options(bench.address, false);
    let found = bench.runtime.handles()[1]
        .call_async(move |reactor| async move { discover(&reactor, &options).await.unwrap() })
        .unwrap();
    assert!(found.iter().any(|entry| entry.nqn.as_str() == NQN && entry.is_nvm), "{found:?}");
}

#[test]
fn a_resize_arrives_at_the_host() {
    let bench = start(2);
    let options = options(bench.address, false);
    let device = bench.runtime.handles()[1]
        .call_async(move |reactor| async move { NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap() })
        .unwrap();
    let grown = bench.device.clone();
    let resized = bench.runtime.handles()[0]
        .call_async(move |reactor| async move { grown.resize(&reactor, 10_000).await.is_ok() });
    assert_eq!(resized, Some(true));
    bench
        .target
        .call(|home| {
            home.refresh_sizes();
            Ok(())
        })
        .unwrap();
    let began = std::time::Instant::now();
    while device.info().blocks != 10_000 {
        assert!(began.elapsed().as_secs() < 30, "the host hears of it");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_target_that_was_closed_and_opened_again_is_used_again() {
    let bench = start(2);
    let options = Options { keep_alive_ms: 500, ..options(bench.address, false) };
    let (address, device, handle) = (bench.address, bench.device.clone(), bench.runtime.handles()[1].clone());
    let writer = std::thread::spawn(move || {
        handle.call_async(move |reactor| async move {
            let device = NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap();
            let channel = device.open_channel(&reactor).unwrap();
            let mut round = 0u64;
            while device.stats().reconnects == 0 || !round.is_multiple_of(512) {
                let mut buf = reactor.pool().alloc(4096).await;
                buf.as_mut_slice().fill(round as u8);
                let done = channel.submit(Io::write(Lba(round % 512), 1, SgList::from_iter([buf]))).await;
                assert_eq!(done.status, Status::Ok, "round {round}");
                round += 1;
            }
            for lba in 0..512 {
                let buf = reactor.pool().alloc(4096).await;
                let done = channel.submit(Io::read(Lba(lba), 1, SgList::from_iter([buf]))).await;
                assert_eq!(done.io.bufs[0].as_slice()[7], (round - 512 + lba) as u8, "the last write of block {lba}");
            }
            drop(channel);
            device.close().await;
        })
    });
    std::thread::sleep(std::time::Duration::from_millis(100));
    close(&bench.target);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let again = TcpTarget::new(&bench.runtime.handles()[..1], Config::default());
    listen(&again, device, address);
    assert_eq!(writer.join().unwrap(), Some(()));
    close(&again);
}

/// Memory that does the first operation of a kind late.
struct LateOnce(Arc<MemDevice>, Op, Arc<AtomicBool>);

struct LateOnceChannel(Rc<dyn Channel>, Rc<Reactor>, Op, Arc<AtomicBool>);

impl BlockDevice for LateOnce {
    fn name(&self) -> &str {
        "late"
    }
    fn kind(&self) -> &'static str {
        "late"
    }
    fn info(&self) -> DeviceInfo {
        DeviceInfo { loans: false, ..self.0.info() }
    }
    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(LateOnceChannel(self.0.open_channel(reactor)?, reactor.clone(), self.1, self.2.clone())))
    }
}

impl Channel for LateOnceChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let (channel, reactor) = (self.0.clone(), self.1.clone());
        let is_late = io.op == self.2 && !self.3.swap(true, Ordering::SeqCst);
        IoFuture::steps(&self.1, async move {
            if is_late {
                reactor.sleep_ns(300_000_000).await;
            }
            channel.submit(io).await
        })
    }
}

/// Has the first `op` of a host done late, takes all its connections from it meanwhile, and tells what block 4 begins with
/// some time after its `work` has ended.
fn with_a_late_one(
    op: Op,
    replay: Replay,
    work: impl AsyncFnOnce(&Rc<Reactor>, &Rc<dyn Channel>) + Send + 'static,
) -> u8 {
    let bench = start(2);
    let began_op = Arc::new(AtomicBool::new(false));
    let late = Arc::new(LateOnce(bench.device.clone(), op, began_op.clone()));
    bench
        .target
        .call(|home| {
            home.remove_namespace(NQN, 1)?;
            home.add_namespace(NQN, None, late, Uuid::from_u128(7))
        })
        .unwrap();
    let options = Options { keep_alive_ms: 60_000, replay, ..options(bench.address, false) };
    let handle = bench.runtime.handles()[1].clone();
    let began = std::time::Instant::now();
    let writer = std::thread::spawn(move || {
        handle.call_async(move |reactor| async move {
            let device = NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap();
            let channel = device.open_channel(&reactor).unwrap();
            work(&reactor, &channel).await;
            assert_eq!(device.stats().reconnects, 1, "the first one was lost");
            // Longer than the late one takes.
            reactor.sleep_ns(500_000_000).await;
            let buf = reactor.pool().alloc(4096).await;
            let done = channel.submit(Io::read(Lba(4), 1, SgList::from_iter([buf]))).await;
            drop(channel);
            device.close().await;
            done.io.bufs[0].as_slice()[7]
        })
    });
    while !began_op.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    // All connections go at once, so that the host cannot reset the controller itself.
    let address = bench.address;
    close(&bench.target);
    // The address is free when the listener has been dropped.
    while bench.target.call(move |home| home.listen(address)).is_err() {
        std::thread::yield_now();
    }
    let found = writer.join().unwrap().unwrap();
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    found
}

async fn write_one(reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, lba: u64, fill: u8) {
    let mut buf = reactor.pool().alloc(4096).await;
    buf.as_mut_slice().fill(fill);
    let done = channel.submit(Io::write(Lba(lba), 1, SgList::from_iter([buf]))).await;
    assert_eq!(done.status, Status::Ok);
}

#[test]
fn writes_wait_for_the_reset_of_the_lost_controller_and_not_for_its_keep_alive() {
    let found = with_a_late_one(Op::Write, Replay::AfterFence, async |reactor, channel| {
        write_one(reactor, channel, 4, 1).await;
        write_one(reactor, channel, 4, 2).await;
    });
    assert_eq!(found, 2, "the first write did not land on the second");
}

#[test]
fn a_lost_copy_is_not_sent_again_while_its_first_attempt_may_read_what_is_written_later() {
    let found = with_a_late_one(Op::Copy, Replay::Exclusive, async |reactor, channel| {
        write_one(reactor, channel, 3, 1).await;
        assert_eq!(channel.submit(Io { arg: 3, ..Io::new(Op::Copy, Lba(4), 1) }).await.status, Status::Ok);
        write_one(reactor, channel, 3, 2).await;
    });
    assert_eq!(found, 1, "it copied what was written after it had ended");
}

#[test]
fn two_hosts_reserve_and_the_one_shut_out_is_told_so() {
    let bench = start(3);
    let host = |id: u128| {
        let identity = HostIdentity::from_uuid(Uuid::from_u128(id));
        Options { host: identity, ..options(bench.address, false) }
    };
    let (a, b) = (host(0xa), host(0xb));
    let outcome = bench.runtime.handles()[1].call_async(move |reactor| async move {
        let a = NvmfDevice::open(&reactor, "a", &a, None).await.unwrap();
        let b = NvmfDevice::open(&reactor, "b", &b, None).await.unwrap();
        let write = async |device: &NvmfDevice| {
            let channel = device.open_channel(&reactor).unwrap();
            let buf = reactor.pool().alloc(4096).await;
            channel.submit(Io::write(Lba(0), 1, SgList::from_iter([buf]))).await.status
        };
        let register = ReservationCommand::Register {
            action: RegisterAction::Register,
            ignore_key: false,
            persistence: PersistenceChange::Keep,
        };
        let kind = ReservationType::WriteExclusive;
        let refused = Err(CommandError::Status(nvme::spec::Status::RESERVATION_CONFLICT.dnr()));
        assert_eq!(a.acquire(&reactor, kind, 0xa).await, refused, "it has not registered");
        assert_eq!(a.reserve(&reactor, register, Keys::new(0, 0xa)).await, Ok(()));
        assert_eq!(b.reserve(&reactor, register, Keys::new(0, 0xb)).await, Ok(()));
        assert_eq!(a.acquire(&reactor, kind, 0xa).await, Ok(()));
        assert_eq!((write(&a).await, write(&b).await), (Status::Ok, Status::ReservationConflict));
        let report = b.reservations(&reactor).await.unwrap();
        assert_eq!((report.kind, report.generation, report.persistent), (Some(kind), 2, false));
        let hosts: Vec<_> = report.hosts.iter().map(|host| (host.host_id[15], host.key, host.holder)).collect();
        assert_eq!(hosts, [(0xa, 0xa, true), (0xb, 0xb, false)]);
        assert_eq!(b.preempt(&reactor, kind, 0xb, 0xa).await, Ok(()));
        assert_eq!((write(&a).await, write(&b).await), (Status::ReservationConflict, Status::Ok));
        assert_eq!(b.release(&reactor, kind, 0xb).await, Ok(()));
        assert_eq!((write(&a).await, write(&b).await), (Status::Ok, Status::Ok));
        a.close().await;
        b.close().await;
    });
    assert_eq!(outcome, Some(()));
}

async fn rounds(reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, bytes: usize, count: u64) -> u64 {
    let blocks = (bytes / 4096) as u32;
    let before = ALLOCATIONS.with(Cell::get);
    for round in 0..count {
        let (here, there) = (Lba(round % 1024), Lba(2048 + round % 1024));
        let alloc = || SgList::from_iter([reactor.pool().try_alloc(bytes).expect("buffers")]);
        let first = channel.submit(Io::write(here, blocks, alloc()));
        let second = channel.submit(Io::read(there, blocks, alloc()));
        assert!(first.await.status.is_ok() && second.await.status.is_ok());
    }
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn operations_do_not_allocate_once_warm() {
    for digests in [false, true] {
        let bench = start(2);
        let options = options(bench.address, digests);
        let allocations = bench.runtime.handles()[1].call_async(move |reactor| async move {
            let device = NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap();
            let channel = device.open_channel(&reactor).unwrap();
            let mut allocations = Vec::new();
            for (bytes, count) in [(4096, 1000), (64 << 10, 500), (1 << 20, 100)] {
                rounds(&reactor, &channel, bytes, count / 2).await;
                allocations.push(rounds(&reactor, &channel, bytes, count).await);
            }
            drop(channel);
            device.close().await;
            allocations
        });
        // Timers of the control path may tick meanwhile; a single allocation per operation would show as 200 at least.
        let allocations = allocations.unwrap();
        assert!(allocations.iter().all(|count| *count < 40), "digests {digests}: {allocations:?}");
    }
}

#[test]
fn a_host_with_the_right_keys_is_let_in_on_every_queue_and_others_are_told_why() {
    let bench = start(3);
    let secret = |seed: u8| Arc::new(Secret::generate(Some(Hash::Sha384), &mut |bytes| bytes.fill(seed)));
    let pair = KeyPair { host: secret(1), controller: Some(secret(2)) };
    let host_nqn = options(bench.address, false).host.nqn.to_string();
    let set =
        move |home: &nvme::tcp_target::TargetHome| home.set_host_policy(NQN, &host_nqn, Some(Policy::new(pair)), 0);
    bench.target.call(set).unwrap();
    let both = HostKeys { controller: Some(secret(2)), ..HostKeys::new(secret(1)) };
    for (keys, expected) in [
        (Some(HostKeys::new(secret(1))), Ok(())),
        (Some(both), Ok(())),
        (None, Err(AuthenticationError::NoKey)),
        (Some(HostKeys::new(secret(3))), Err(AuthenticationError::Refused(Failure::Failed))),
        (
            Some(HostKeys { controller: Some(secret(3)), ..HostKeys::new(secret(1)) }),
            Err(AuthenticationError::Distrusted(Failure::Failed)),
        ),
    ] {
        let options = Options { keys, ..options(bench.address, true) };
        let outcome = bench.runtime.handles()[1].call_async(move |reactor| async move {
            let device = match NvmfDevice::open(&reactor, "remote", &options, None).await {
                Ok(device) => device,
                Err(ConnectError::Authentication { queue: 0, error, .. }) => return Err(error),
                Err(other) => panic!("{other}"),
            };
            let channel = device.open_channel(&reactor).unwrap();
            let done = channel.submit(Io::new(Op::WriteZeroes, Lba(0), 8)).await;
            assert!(done.status.is_ok(), "{}", done.status);
            device.close().await;
            Ok(())
        });
        assert_eq!(outcome, Some(expected));
    }
}

#[test]
fn a_host_that_wants_proof_does_not_do_without_where_the_target_asks_for_nothing() {
    let bench = start(2);
    let secret = Arc::new(Secret::generate(None, &mut |bytes| bytes.fill(1)));
    let keys = HostKeys { controller: Some(secret.clone()), ..HostKeys::new(secret) };
    let options = Options { keys: Some(keys), ..options(bench.address, false) };
    let outcome = bench.runtime.handles()[1]
        .call_async(move |reactor| async move { NvmfDevice::open(&reactor, "remote", &options, None).await.err() });
    let Some(Some(ConnectError::Authentication { error, .. })) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error, AuthenticationError::Refused(Failure::NotUsable));
}
