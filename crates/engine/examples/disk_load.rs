//! Hosts' reads beside destage to disks that seek, and what destage gets done: a hot pool over four models of hard disks, in
//! virtual time. Each load once as disks are destaged to, and once as drives without an arm are.
//!
//! `cargo run --release -p remuda-engine --example disk_load`

#[allow(dead_code, reason = "it has more than is used here")]
#[path = "../../sim/src/clock_driver.rs"]
mod clock_driver;

use base::{Histogram, Rng};
use bdev::{BlockDevice, Extent, Io, Lba, LinearDevice, MemDevice, ModelDiskDevice, Op, StatsDevice};
use clock_driver::ClockDriver;
use engine::{CreateOptions, LogDevice, OpenOptions, Pool, PoolDevices};
use reactor::{Reactor, ReactorConfig, SgList};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
const DISKS: u64 = 4;
const DISK_BYTES: u64 = 256 << 20;
const LOG_BYTES: u64 = 128 << 20;
const EXTENT: u64 = 1024;
const VOLUME_EXTENTS: u64 = 216;
const IO_BLOCKS: u64 = 4;
/// How long readers read that rest, and rest.
const STINT_NS: u64 = 10 * SECOND;
/// Before anything is measured: the log gets to where destage begins.
const WARMUP_NS: u64 = 60 * SECOND;
const MEASURED_NS: u64 = 120 * SECOND;

/// What hosts do: random operations of 16 KiB.
struct Load {
    name: &'static str,
    /// Readers of the first disk, each of which waits for its answer.
    readers: usize,
    /// They rest as long as they have read, each time.
    rests: bool,
    /// Writes a second, over all disks; `None`: 64 writers, each of which waits.
    write_rate: Option<u64>,
}

const LOADS: [Load; 5] = [
    Load { name: "1 reader of one disk, half of the time, 60 writes/s", readers: 1, rests: true, write_rate: Some(60) },
    Load { name: "1 reader of one disk, 60 writes/s", readers: 1, rests: false, write_rate: Some(60) },
    Load { name: "1 reader of one disk, 160 writes/s", readers: 1, rests: false, write_rate: Some(160) },
    Load { name: "1 reader of one disk, writes as fast as they go", readers: 1, rests: false, write_rate: None },
    Load { name: "writes as fast as they go", readers: 0, rests: false, write_rate: None },
];

struct Bench {
    reactor: Rc<Reactor>,
    volume: Arc<dyn BlockDevice>,
    rng: RefCell<Rng>,
    end_ns: u64,
    from_ns: u64,
    reads: RefCell<Histogram>,
    writes: RefCell<Histogram>,
    running: Cell<usize>,
}

impl Bench {
    async fn io(&self, op: Op, lba: u64, blocks: u64) {
        let channel = self.volume.open_channel(&self.reactor).expect("a channel");
        let buf = self.reactor.pool().alloc(blocks as usize * 4096).await;
        let (began_ns, bufs) = (self.reactor.clock_ns(), SgList::from_iter([buf]));
        let done = channel.submit(Io { bufs, ..Io::new(op, Lba(lba), blocks as u32) }).await;
        done.status.check().expect("nothing fails");
        if began_ns >= self.from_ns {
            let of = if op == Op::Read { &self.reads } else { &self.writes };
            of.borrow_mut().record(self.reactor.clock_ns() - began_ns);
        }
    }

    fn place(&self, extents: u64) -> u64 {
        self.rng.borrow_mut().below(extents * EXTENT / IO_BLOCKS) * IO_BLOCKS
    }

    fn spawn(self: &Rc<Self>, op: Op, extents: u64, rests: bool) {
        let bench = self.clone();
        self.running.set(self.running.get() + 1);
        self.reactor.spawn(async move {
            while bench.reactor.clock_ns() < bench.end_ns {
                if rests && bench.reactor.clock_ns() / STINT_NS % 2 == 1 {
                    bench.reactor.sleep_ns(STINT_NS).await;
                }
                bench.io(op, bench.place(extents), IO_BLOCKS).await;
            }
            bench.running.set(bench.running.get() - 1);
        });
    }
}

fn devices(sweeps: bool) -> (PoolDevices, Vec<Arc<StatsDevice>>) {
    let disk = |number: u64| {
        let disk = ModelDiskDevice::new(&format!("disk{number}"), DISK_BYTES, sweeps).expect("a model");
        Arc::new(StatsDevice::new(Arc::new(disk)))
    };
    let disks: Vec<_> = (0..DISKS).map(disk).collect();
    let children = disks.iter().map(|disk| disk.clone() as Arc<dyn BlockDevice>).collect();
    let extents = (0..DISKS as usize).map(|child| Extent { child, start: 0, blocks: DISK_BYTES / 4096 }).collect();
    let capacity = Arc::new(LinearDevice::new("row", children, extents).expect("a row"));
    let log = LogDevice::Block(Arc::new(MemDevice::new("log", 4096, LOG_BYTES / 4096, 0).expect("memory")));
    (PoolDevices { log, capacity }, disks)
}

async fn measure(reactor: Rc<Reactor>, load: &'static Load, sweeps: bool) {
    let (devices, disks) = devices(sweeps);
    let options = CreateOptions { name: "disks".into(), shards: Some(1), ..CreateOptions::default() };
    Pool::create(&reactor, &devices, &options, 0, true).await.expect("a pool");
    let open = OpenOptions { map_cache_bytes: Some(8 << 20), ..OpenOptions::default() };
    let pool = Pool::open(&reactor, &devices, &open).await.expect("it opens");
    let volume = pool.create_volume(&reactor, "v", VOLUME_EXTENTS * EXTENT, 12, 0).await.expect("a volume");
    let bench = |begin_ns: u64| {
        Rc::new(Bench {
            reactor: reactor.clone(),
            volume: volume.clone(),
            rng: RefCell::new(Rng::new(1)),
            from_ns: begin_ns + WARMUP_NS,
            end_ns: begin_ns + WARMUP_NS + MEASURED_NS,
            reads: RefCell::default(),
            writes: RefCell::default(),
            running: Cell::new(0),
        })
    };
    let fill = bench(0);
    for lba in (0..VOLUME_EXTENTS * EXTENT).step_by(64) {
        fill.io(Op::Write, lba, 64).await;
    }
    pool.settle(&reactor).await.expect("it comes to rest");
    let run = bench(reactor.clock_ns());
    // The first disk's, but for what metadata takes of it.
    (0..load.readers).for_each(|_| run.spawn(Op::Read, VOLUME_EXTENTS / DISKS - 8, load.rests));
    if load.write_rate.is_none() {
        (0..64).for_each(|_| run.spawn(Op::Write, VOLUME_EXTENTS, false));
    }
    let (there, from_ns, end_ns) = (reactor.clone(), run.from_ns, run.end_ns);
    let sampled = reactor.spawn_join(async move {
        let written = || disks.iter().map(|disk| disk.stats().of(Op::Write).blocks).sum::<u64>();
        there.sleep_until(from_ns).await;
        let before = written();
        there.sleep_until(end_ns).await;
        written() - before
    });
    let mut next_ns = reactor.clock_ns();
    while let Some(rate) = load.write_rate
        && next_ns < run.end_ns
    {
        reactor.sleep_until(next_ns).await;
        let (writer, lba) = (run.clone(), run.place(VOLUME_EXTENTS));
        run.running.set(run.running.get() + 1);
        reactor.spawn(async move {
            writer.io(Op::Write, lba, IO_BLOCKS).await;
            writer.running.set(writer.running.get() - 1);
        });
        next_ns += SECOND / rate;
    }
    while run.running.get() > 0 {
        reactor.sleep_ns(SECOND / 10).await;
    }
    let destaged = sampled.await;
    let ms = |histogram: &Histogram, percent: f64| histogram.percentile(percent) as f64 / 1e6;
    let (reads, writes) = (run.reads.take(), run.writes.take());
    println!(
        "{:51} {:6} | reads {:5.1}/s {:5.1} {:6.1} {:6.1} | writes {:6.1}/s {:5.1} {:6.1} {:6.1} | destaged {:5.2} MiB/s",
        load.name,
        if sweeps { "sweeps" } else { "plain" },
        reads.count() as f64 / (MEASURED_NS / SECOND) as f64,
        ms(&reads, 50.0),
        ms(&reads, 99.0),
        ms(&reads, 99.9),
        writes.count() as f64 / (MEASURED_NS / SECOND) as f64,
        ms(&writes, 50.0),
        ms(&writes, 99.0),
        ms(&writes, 99.9),
        destaged as f64 / (MEASURED_NS / SECOND) as f64 / 256.0,
    );
    pool.close(&reactor).await;
}

fn main() {
    println!("operations of 16 KiB; latencies are p50, p99 and p99.9, ms");
    for load in &LOADS {
        for sweeps in [false, true] {
            let reactor = Reactor::new(0, ClockDriver::new(1), ReactorConfig::default());
            let there = reactor.clone();
            reactor.block_on(measure(there, load, sweeps));
        }
    }
}
