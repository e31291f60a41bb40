//! How long a pool takes to its first I/O after its process was killed, and how much memory it takes, by the sizes of its
//! capacity (a sparse file) and of its log.
//!
//! `cargo run --release -p remuda-engine --example recovery -- mapped|block CAPACITY_GIB LOG_MIB [ALLOCATED_PERCENT]`

use bdev::{BlockDevice, FileDevice, FileDeviceOptions, Io, Lba};
use engine::layout::CreateOptions;
use engine::{LogDevice, LogKind, OpenOptions, Pool, PoolDevices, ShardTuning};
use reactor::linux::LinuxDriver;
use reactor::{PollPolicy, Reactor, ReactorConfig, SgList};
use std::rc::Rc;
use std::sync::Arc;

const EXTENT_BLOCKS: u64 = 1024;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: recovery mapped|block CAPACITY_GIB LOG_MIB [ALLOCATED_PERCENT [DIRECTORY]]";
    let [kind, capacity_gib, log_mib, rest @ ..] = &args[..] else { panic!("{usage}") };
    let number = |text: &String| text.parse::<u64>().expect(usage);
    let (capacity_bytes, log_bytes) = (number(capacity_gib) << 30, number(log_mib) << 20);
    let allocated = rest.first().map_or(100, number);
    let directory = rest.get(1).map_or("/dev/shm", String::as_str);
    if let Some("fill") = rest.get(2).map(String::as_str) {
        fill(kind, directory, capacity_bytes, log_bytes, allocated);
    }
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
    let child = child.args([kind, capacity_gib, log_mib, &allocated.to_string(), directory, "fill"]).status();
    assert!(!child.expect("it ran").success(), "the filling process is killed");
    measure(kind, directory, capacity_bytes, log_bytes);
    for name in ["log", "capacity"] {
        let _ = std::fs::remove_file(format!("{directory}/remuda-recovery-{name}"));
    }
}

fn reactor() -> Rc<Reactor> {
    let driver = LinuxDriver::new().expect("io_uring is available");
    Reactor::new(0, Rc::new(driver), ReactorConfig { policy: PollPolicy::Busy, ..ReactorConfig::default() })
}

fn file(reactor: &Rc<Reactor>, directory: &str, name: &str, bytes: u64) -> Arc<dyn BlockDevice> {
    let path = format!("{directory}/remuda-recovery-{name}");
    let options = FileDeviceOptions { create_bytes: Some(bytes), direct: false, ..FileDeviceOptions::new(&path) };
    Arc::new(FileDevice::open(reactor, name, options).expect("a sparse file"))
}

fn devices(reactor: &Rc<Reactor>, kind: &str, directory: &str, capacity: u64, log: u64) -> PoolDevices {
    let block = file(reactor, directory, "log", log);
    let path = format!("{directory}/remuda-recovery-log");
    let log = match kind {
        "mapped" => LogDevice::Mapped { path, bytes: log, volatile_allowed: true },
        _ => LogDevice::Block(block),
    };
    PoolDevices { log, capacity: file(reactor, directory, "capacity", capacity) }
}

/// Leaves a pool whose log is as full as it may get without anything being destaged.
fn fill(kind: &str, directory: &str, capacity_bytes: u64, log_bytes: u64, allocated: u64) -> ! {
    let reactor = reactor();
    let devices = devices(&reactor, kind, directory, capacity_bytes, log_bytes);
    let log_kind = devices.log.kind();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let options = CreateOptions { name: "recovery".to_string(), shards: Some(1), log_kind, ..Default::default() };
        Pool::create(&inner, &devices, &options, 0, true).await.expect("created");
        let tuning = ShardTuning { idle_ns: u64::MAX / 4, ..ShardTuning::default() };
        let options = OpenOptions { tuning: Some(tuning), ..OpenOptions::default() };
        let pool = Pool::open(&inner, &devices, &options).await.expect("opened");
        let extents = pool.status(&inner).await.shards[0].extents as u64;
        let volume = pool.create_volume(&inner, "volume", extents * EXTENT_BLOCKS, 12, 0).await.expect("created");
        let channel = volume.open_channel(&inner).expect("a channel");
        let used = (extents * allocated / 100).max(1);
        for extent in 0..used {
            write(&inner, &*channel, extent * EXTENT_BLOCKS).await;
        }
        pool.settle(&inner).await.expect("settled");
        let mut rng = base::Rng::new(3);
        loop {
            for _ in 0..64 {
                write(&inner, &*channel, rng.below(used * EXTENT_BLOCKS)).await;
            }
            let shard = &pool.status(&inner).await.shards[0];
            if shard.log_free_bytes * 100 < shard.log_bytes * 52 {
                break;
            }
            inner.yield_now().await;
        }
    });
    std::process::abort();
}

async fn write(reactor: &Rc<Reactor>, channel: &dyn bdev::Channel, block: u64) {
    let mut bufs = SgList::new();
    bufs.push(reactor.pool().alloc(4096).await);
    bufs[0].as_mut_slice().fill(block as u8);
    channel.submit(Io::write(Lba(block), 1, bufs)).await.status.check().expect("written");
}

fn measure(kind: &str, directory: &str, capacity_bytes: u64, log_bytes: u64) {
    let reactor = reactor();
    let devices = devices(&reactor, kind, directory, capacity_bytes, log_bytes);
    assert_eq!(devices.log.kind() == LogKind::Mapped, kind == "mapped");
    let (inner, kind) = (reactor.clone(), kind.to_string());
    let before = resident_bytes();
    reactor.block_on(async move {
        let (began, cpu_before) = (inner.clock_ns(), cpu_ns());
        let pool = Pool::open(&inner, &devices, &OpenOptions::default()).await.expect("opened");
        let opened = inner.clock_ns() - began;
        let channel = pool.volume("volume").expect("it was made").open_channel(&inner).expect("a channel");
        write(&inner, &*channel, 5).await;
        let mut bufs = SgList::new();
        bufs.push(inner.pool().alloc(4096).await);
        channel.submit(Io::read(Lba(0), 1, bufs)).await.status.check().expect("read");
        let (first, cpu) = (inner.clock_ns() - began, cpu_ns() - cpu_before);
        let recovery = pool.recovery();
        println!(
            "{kind} log {} MiB, capacity {} GiB: {:.1} ms to open, {:.1} ms to the first write and read, {:.1} ms of that on a \
             core; {} records, {} blocks in the log; {:.1} MB counted, {:.1} MB more resident",
            log_bytes >> 20,
            capacity_bytes >> 30,
            opened as f64 / 1e6,
            first as f64 / 1e6,
            cpu as f64 / 1e6,
            recovery.records,
            recovery.log_blocks,
            pool.status(&inner).await.shards[0].memory_bytes as f64 / 1e6,
            (resident_bytes() - before) as f64 / 1e6,
        );
    });
}

/// Time that this thread was on a core: on a busy machine it says more than the time that passed.
fn cpu_ns() -> u64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("proc");
    times.split_whitespace().next().and_then(|ns| ns.parse().ok()).expect("a number")
}

/// Memory of this process that no file is behind.
fn resident_bytes() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<i64>().ok()).expect("a number") * 1024
}
