//! What the examples that load a pool share: a pool on memory with a volume that has been filled, and what measures.

#![allow(dead_code, reason = "each example uses its part")]

use bdev::{BlockDevice, Channel, Io, Lba, MemDevice, Status};
use engine::layout::{CreateOptions, OVERPROVISION_MIN};
use engine::{LogDevice, LogKind, OpenOptions, Pool, PoolDevices, Shape};
use reactor::linux::LinuxDriver;
use reactor::{PollPolicy, Reactor, ReactorConfig, SgList};
use std::rc::Rc;
use std::sync::Arc;

pub const BLOCK: usize = 4096;
pub const MIB_BLOCKS: u64 = 256;

/// A pool of one shard, on a mapped log in /dev/shm and a capacity device in memory.
pub struct Size {
    /// Of the volume.
    pub blocks: u64,
    pub log_bytes: u64,
    pub shape: Shape,
    /// What the capacity device has beyond the volume.
    pub spare_blocks: u64,
}

/// Runs `work` on a reactor of this thread, with the path of a file for a log that is removed afterwards.
pub fn run<F: Future<Output = ()> + 'static>(work: impl FnOnce(Rc<Reactor>, String) -> F) {
    let driver = LinuxDriver::new().expect("io_uring is available");
    let config = ReactorConfig { policy: PollPolicy::Busy, ..ReactorConfig::default() };
    let reactor = Reactor::new(0, Rc::new(driver), config);
    let path = format!("/dev/shm/remuda-pool-load.{}", std::process::id());
    let future = work(reactor.clone(), path.clone());
    block_on(&reactor, future);
    let _ = std::fs::remove_file(&path);
}

/// A new pool with a volume 'volume', filled and settled.
pub async fn filled_pool(reactor: &Rc<Reactor>, path: &str, size: &Size) -> (Arc<Pool>, Rc<dyn Channel>) {
    let Size { blocks, log_bytes, shape, spare_blocks } = *size;
    let capacity_blocks = blocks + spare_blocks;
    let capacity = MemDevice::new("capacity", BLOCK as u32, capacity_blocks, capacity_blocks).expect("memory");
    touch(reactor, &capacity).await;
    let file = std::fs::File::create(path).expect("a file in /dev/shm");
    file.set_len(log_bytes).expect("room in /dev/shm");
    let log = LogDevice::Mapped { path: path.to_string(), bytes: log_bytes, volatile_allowed: true };
    let devices = PoolDevices { log, capacity: Arc::new(capacity) };
    let options = CreateOptions {
        name: "load".to_string(),
        shards: Some(1),
        shape,
        overprovision: (shape == Shape::Shaped).then_some(OVERPROVISION_MIN),
        log_kind: LogKind::Mapped,
        ..CreateOptions::default()
    };
    Pool::create(reactor, &devices, &options, 0, false).await.expect("created");
    let pool = Pool::open(reactor, &devices, &OpenOptions::default()).await.expect("opened");
    let volume = pool.create_volume(reactor, "volume", blocks, 12, 0).await.expect("a volume");
    let channel = volume.open_channel(reactor).expect("a channel");
    let began = reactor.clock_ns();
    fill(reactor, &channel, blocks).await;
    pool.settle(reactor).await.expect("settled");
    println!("filled {} GiB in {:.1} s", blocks >> 18, (reactor.clock_ns() - began) as f64 / 1e9);
    (pool, channel)
}

/// Writes a device once: who gets zeroed pages from the kernel while it is measured would measure that.
async fn touch(reactor: &Rc<Reactor>, device: &MemDevice) {
    let channel = device.open_channel(reactor).expect("a channel");
    let mut bufs = SgList::new();
    bufs.push(reactor.pool().alloc(1 << 20).await);
    bufs[0].as_mut_slice().fill(0);
    for at in (0..device.info().blocks - MIB_BLOCKS).step_by(MIB_BLOCKS as usize) {
        bufs = channel.submit(Io::write(Lba(at), MIB_BLOCKS as u32, bufs)).await.io.bufs;
    }
}

async fn fill(reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, blocks: u64) {
    let mut bufs = SgList::new();
    bufs.push(reactor.pool().alloc(64 << 10).await);
    let (mut at, step) = (0, 16);
    while at < blocks {
        bufs[0].as_mut_slice().chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&(at * 31 + 7).to_le_bytes()));
        let done = channel.submit(Io::write(Lba(at), step, bufs)).await;
        assert_eq!(done.status, Status::Ok);
        bufs = done.io.bufs;
        at += step as u64;
        if at % 1024 == 0 {
            reactor.yield_now().await;
        }
    }
}

/// Time this thread has run, which a busy machine does not distort.
pub fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|field| field.parse().ok()).expect("the kernel accounts for threads")
}

fn block_on<T: 'static>(reactor: &Rc<Reactor>, future: impl Future<Output = T> + 'static) -> T {
    let mut task = std::pin::pin!(reactor.spawn_join(future));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        reactor.turn();
        if let std::task::Poll::Ready(value) = task.as_mut().poll(&mut cx) {
            return value;
        }
    }
}
