//! The append of a mapped log beside its bare stores: 4 KiB and 16 KiB, sources in the cache and not, the index spread over
//! a terabyte of addresses. On a file in /dev/shm it measures memory, not persistent memory.
//!
//! `cargo run --release -p remuda-engine --example append [-- SAMPLES [GIB]]`

use base::Histogram;
use bdev::{FileDevice, FileDeviceOptions};
use engine::LogDevice;
use engine::measure::{AppendOptions, measure_append};
use reactor::linux::LinuxDriver;
use reactor::{PollPolicy, Reactor, ReactorConfig};
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

const LOG_BYTES: u64 = 1 << 30;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let (samples, gib) = (args.next().unwrap_or(50_000), args.next().unwrap_or(1024));
    let driver = LinuxDriver::new().expect("io_uring is available");
    let config = ReactorConfig { policy: PollPolicy::Busy, ..ReactorConfig::default() };
    let reactor = Reactor::new(0, Rc::new(driver), config);
    println!("mapped log of memory (no persistent memory); ns");
    println!(
        "{:<10} {:<6} {:>8} {:>8} {:>8} {:>9}   bare store: {:>5} {:>8} {:>8} {:>9}",
        "append", "source", "average", "p50", "p99", "max", "average", "p50", "p99", "max"
    );
    for bytes in [4096, 16384] {
        let path = |name: &str| format!("/dev/shm/remuda-append-{name}.{}", std::process::id());
        let (log, capacity) = (path("log"), path("capacity"));
        let mut file = std::fs::File::create(&log).expect("a file in /dev/shm");
        // Its pages exist before anything is measured.
        (0..LOG_BYTES >> 20).for_each(|_| file.write_all(&vec![0; 1 << 20]).expect("room in /dev/shm"));
        let inner = reactor.clone();
        let paths = (log.clone(), capacity.clone());
        block_on(&reactor, async move {
            let (log, capacity) = paths;
            let options =
                FileDeviceOptions { create_bytes: Some(gib << 30), direct: false, ..FileDeviceOptions::new(&capacity) };
            let capacity = Arc::new(FileDevice::open(&inner, "capacity", options).expect("a sparse file"));
            let log = LogDevice::Mapped { path: log, bytes: LOG_BYTES, volatile_allowed: true };
            let report =
                measure_append(&inner, &AppendOptions { log, capacity, bytes, samples }).await.expect("measured");
            for row in &report.rows {
                let of = |samples: &Histogram| {
                    let at = |percent| samples.percentile(percent);
                    format!("{:>8.0} {:>8} {:>8} {:>9}", samples.mean(), at(50.0), at(99.0), samples.max())
                };
                let source = if row.cold { "cold" } else { "warm" };
                println!(
                    "{:<10} {source:<6} {}   {:>12}{}",
                    format!("{} KiB", bytes >> 10),
                    of(&row.append),
                    "",
                    of(&row.store)
                );
            }
            println!(
                "  index over {} GiB of addresses; the clock costs {} ns of each",
                report.address_bytes >> 30,
                report.clock_ns
            );
        });
        for path in [log, capacity] {
            let _ = std::fs::remove_file(path);
        }
    }
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
