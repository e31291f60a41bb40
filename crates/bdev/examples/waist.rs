//! What the waist costs: 4 KiB reads per second on one core, of a memory device and through layers above it.
//!
//! `cargo run --release -p remuda-bdev --example waist [-- SECONDS]`

use bdev::{
    BlockDevice, Channel, Delay, DelayDevice, Delays, EncryptDevice, EncryptOptions, ErrorDevice, Io, Lba,
    LinearDevice, MemDevice, MirrorDevice, MirrorOptions, NullDevice, RateLimitDevice, StatsDevice, Status,
    StripeDevice, UserKey,
};
use reactor::linux::LinuxDriver;
use reactor::{PollPolicy, Reactor, ReactorConfig, SgList};
use std::rc::Rc;
use std::sync::Arc;

const BLOCK: u32 = 4096;
const WORKING_SET_BLOCKS: u64 = (512 << 20) / BLOCK as u64;
/// Reads per task poll before other tasks run.
const BATCH: u64 = 64;

#[derive(Clone, Copy)]
enum Kind {
    Copy,
    Loan,
    Write,
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let driver = LinuxDriver::new().expect("io_uring is available");
    let config = ReactorConfig { policy: PollPolicy::Busy, ..ReactorConfig::default() };
    let reactor = Reactor::new(0, Rc::new(driver), config);
    let mem: Arc<dyn BlockDevice> =
        Arc::new(MemDevice::new("mem", BLOCK, WORKING_SET_BLOCKS, WORKING_SET_BLOCKS).unwrap());
    let null: Arc<dyn BlockDevice> = Arc::new(NullDevice::new("null", BLOCK, WORKING_SET_BLOCKS, false).unwrap());
    fill(&reactor, &mem);
    println!("{:<34} {:>12} {:>12} {:>9}", "4 KiB, one core, QD 32", "IOPS", "IOPS per CPU", "CPU ns/IO");
    let base = measure(&reactor, &null, Kind::Copy, "null", seconds);
    measure(&reactor, &mem, Kind::Copy, "mem, random reads, 512 MiB", seconds);
    measure(&reactor, &mem, Kind::Loan, "mem, random lent reads", seconds);
    measure(&reactor, &mem, Kind::Write, "mem, random writes", seconds);
    for (name, device) in layers(&reactor, &null) {
        let ns = measure(&reactor, &device, Kind::Copy, &format!("null + {name}"), seconds);
        println!("{:>70} {:+.1} ns", name, ns - base);
    }
    let mut stack = null.clone();
    for depth in 1..=4 {
        stack = Arc::new(LinearDevice::window("w", stack, 0, WORKING_SET_BLOCKS).unwrap());
        measure(&reactor, &stack, Kind::Copy, &format!("null + {depth} x linear"), seconds);
    }
}

fn layers(reactor: &Rc<Reactor>, child: &Arc<dyn BlockDevice>) -> Vec<(&'static str, Arc<dyn BlockDevice>)> {
    let mut layers: Vec<(&'static str, Arc<dyn BlockDevice>)> = vec![
        ("stats", Arc::new(StatsDevice::new(child.clone()))),
        ("error, no rules", Arc::new(ErrorDevice::new("e", child.clone(), &[], 1).unwrap())),
        (
            "delay 0",
            Arc::new(DelayDevice::new("d", child.clone(), Delays { read: Delay::default(), ..Delays::default() }, 1)),
        ),
        ("rate-limit, none", Arc::new(RateLimitDevice::new("r", child.clone(), Default::default()))),
        ("linear", Arc::new(LinearDevice::window("w", child.clone(), 0, WORKING_SET_BLOCKS).unwrap())),
        ("stripe of 1", Arc::new(StripeDevice::new("s", vec![child.clone()], 16).unwrap())),
    ];
    let inner = reactor.clone();
    let filters: Vec<(&'static str, Arc<dyn BlockDevice>)> = reactor.block_on(async move {
        let small = |name: &str| -> Arc<dyn BlockDevice> { Arc::new(MemDevice::new(name, BLOCK, 4096, 4096).unwrap()) };
        let options = MirrorOptions { create: true, assume_clean: true, ..MirrorOptions::default() };
        let legs = vec![Some(small("a")), Some(small("b"))];
        let mirror = MirrorDevice::open(&inner, "m", legs, &options).await.unwrap();
        let create = bdev::ChecksumOptions { create: true, ..Default::default() };
        let checksum = bdev::ChecksumDevice::open(&inner, "c", small("c"), &create).await.unwrap();
        let key = UserKey::from_bytes(&[7; 32]).unwrap();
        let create = EncryptOptions { create: true, ..Default::default() };
        let encrypt = EncryptDevice::open(&inner, "x", small("x"), &key, &create).await.unwrap();
        vec![
            ("(16 MiB mem) mirror", Arc::new(mirror) as Arc<dyn BlockDevice>),
            ("(16 MiB mem) checksum", Arc::new(checksum)),
            ("(16 MiB mem) encrypt", Arc::new(encrypt)),
            ("(16 MiB mem) nothing", small("p")),
        ]
    });
    layers.extend(filters);
    layers
}

fn fill(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>) {
    let (inner, device) = (reactor.clone(), device.clone());
    reactor.block_on(async move {
        let channel = device.open_channel(&inner).unwrap();
        for lba in 0..WORKING_SET_BLOCKS {
            let mut bufs = SgList::new();
            bufs.push(inner.pool().alloc(BLOCK as usize).await);
            bufs[0].as_mut_slice().fill(lba as u8);
            channel.submit(Io::write(Lba(lba), 1, bufs)).await;
        }
    });
}

/// Runs 32 tasks for `seconds` and prints a row; returns ns per operation.
fn measure(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>, kind: Kind, name: &str, seconds: f64) -> f64 {
    let channel = device.open_channel(reactor).unwrap();
    let blocks = device.info().blocks;
    let (began, cpu_began) = (reactor.clock_ns(), cpu_ns());
    let until = began + (seconds * 1e9) as u64;
    let tasks: Vec<_> = (0..32)
        .map(|seed| reactor.spawn_join(job(reactor.clone(), channel.clone(), blocks, seed, until, kind)))
        .collect();
    let total: u64 = reactor.block_on(async move {
        let mut total = 0;
        for task in tasks {
            total += task.await;
        }
        total
    });
    let wall = (reactor.clock_ns() - began) as f64 / total as f64;
    let ns = (cpu_ns() - cpu_began) as f64 / total as f64;
    println!("{name:<34} {:>12.0} {:>12.0} {ns:>9.1}", 1e9 / wall, 1e9 / ns);
    ns
}

/// Time this thread has run, which a busy machine does not distort.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|field| field.parse().ok()).expect("the kernel accounts for threads")
}

async fn job(reactor: Rc<Reactor>, channel: Rc<dyn Channel>, blocks: u64, seed: u64, until: u64, kind: Kind) -> u64 {
    let mut rng = base::Rng::new(seed);
    let mut bufs = SgList::new();
    bufs.push(reactor.pool().alloc(BLOCK as usize).await);
    let mut count = 0;
    while reactor.now_ns() < until {
        for _ in 0..BATCH {
            let lba = Lba(rng.below(blocks));
            let io = match kind {
                Kind::Copy => Io::read(lba, 1, bufs),
                Kind::Write => Io::write(lba, 1, bufs),
                Kind::Loan => Io::read_loan(lba, 1),
            };
            let done = channel.submit(io).await;
            assert_eq!(done.status, Status::Ok);
            bufs = done.io.bufs;
        }
        count += BATCH;
        reactor.yield_now().await;
    }
    count
}
