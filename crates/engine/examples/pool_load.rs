//! The whole block path of a pool on one core: a mapped log and a capacity device, both in memory, and random 4 KiB
//! writes and reads over a volume ten times as large as what the default cache of map pages covers.
//!
//! With `SPARE_PERCENT` the pool is shaped, and its capacity device larger than the volume by so much; the volume is overwritten
//! at random three times before anything is measured, so that the collector is in its steady state.
//!
//! `cargo run --release -p remuda-engine --example pool_load [-- GIB [LOG_MIB [SECONDS [DEPTH [SPARE_PERCENT]]]]]`

mod common;

use base::Histogram;
use bdev::{Channel, Io, Lba, Status};
use common::{BLOCK, MIB_BLOCKS, Size, cpu_ns, filled_pool};
use engine::{Shape, ShardStatus};
use reactor::{Reactor, SgList};
use std::cell::RefCell;
use std::rc::Rc;

/// Operations per task poll before other tasks run.
const BATCH: u32 = 32;
/// Times that the volume of a shaped pool is overwritten before it is measured.
const OVERWRITES: u64 = 3;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Read,
    Write,
}

struct Plan {
    blocks: u64,
    log_bytes: u64,
    seconds: u64,
    depth: u64,
    /// Of a shaped pool: what the capacity device has beyond the volume, in percent of the volume.
    spare_percent: Option<u64>,
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let mut next = |default| args.next().unwrap_or(default);
    let (gib, log_mib, seconds, depth) = (next(10), next(1024), next(5), next(32));
    let spare_percent = args.next();
    let plan = Plan { blocks: gib << 10 << 8, log_bytes: log_mib << 20, seconds, depth, spare_percent };
    common::run(|reactor, path| async move { run(&reactor, &path, &plan).await });
}

async fn run(reactor: &Rc<Reactor>, path: &str, plan: &Plan) {
    let Plan { blocks, log_bytes, seconds, depth, spare_percent } = *plan;
    let (shape, spare_blocks) = match spare_percent {
        Some(percent) => (Shape::Shaped, blocks * percent / 100),
        // Room for the pool's own pages.
        None => (Shape::Hot, blocks / 128 + 512 * MIB_BLOCKS),
    };
    let size = Size { blocks, log_bytes, shape, spare_blocks };
    let (pool, channel) = filled_pool(reactor, path, &size).await;
    let load = Load { reactor: reactor.clone(), channel, blocks, depth };
    if spare_percent.is_some() {
        let began = reactor.clock_ns();
        load.run(Kind::Write, Until::Operations(OVERWRITES * blocks)).await;
        println!("overwrote it {OVERWRITES} times in {:.1} s", (reactor.clock_ns() - began) as f64 / 1e9);
    }
    for round in 0..2 {
        for (kind, name) in [(Kind::Write, "write"), (Kind::Read, "read")] {
            let before = pool.status(reactor).await.shards.remove(0);
            let measured = load.run(kind, Until::Passed(seconds * 1_000_000_000)).await;
            let after = pool.status(reactor).await.shards.remove(0);
            print(&format!("random {name}, round {round}"), &measured, &before, &after);
        }
    }
}

/// When a load ends.
#[derive(Clone, Copy)]
enum Until {
    /// So many ns have passed.
    Passed(u64),
    /// There were so many operations.
    Operations(u64),
}

struct Measured {
    operations: u64,
    wall_ns: u64,
    cpu_ns: u64,
    latency: Histogram,
}

fn print(name: &str, measured: &Measured, before: &ShardStatus, after: &ShardStatus) {
    let Measured { operations, wall_ns, cpu_ns, latency } = measured;
    let per_second = |count: u64, ns: u64| count as f64 * 1e6 / ns as f64;
    let us = |share| latency.percentile(share) as f64 / 1e3;
    let (bands, bands_before) = (&after.bands, &before.bands);
    if *operations > 0 && bands.bands > 0 && bands.write_bytes > bands_before.write_bytes {
        let per_user = |bytes: u64| bytes as f64 / (*operations * BLOCK as u64) as f64;
        println!(
            "{name}: bytes per user byte: {:.2} to the bands, {:.2} of them moved, {:.2} padding and headers; {} of {} bands free; valid {:.1} %",
            per_user(bands.write_bytes - bands_before.write_bytes),
            per_user(bands.collected_bytes - bands_before.collected_bytes),
            per_user(bands.padding_bytes - bands_before.padding_bytes),
            bands.free,
            bands.bands,
            bands.valid_bytes as f64 * 100.0 / bands.total_bytes as f64,
        );
    }
    println!(
        "{name}: {:.0} K/s, {:.0} K per CPU second; us p50 {:.2} p99 {:.2} p99.9 {:.1} max {:.1}; log {:.0} % free; {:.2} GB \
         destaged, {} checkpoints, {} waits; memory {:.1} MB",
        per_second(*operations, *wall_ns),
        per_second(*operations, *cpu_ns),
        us(50.0),
        us(99.0),
        us(99.9),
        latency.max() as f64 / 1e3,
        after.log_free_bytes as f64 * 100.0 / after.log_bytes as f64,
        (after.streams.capacity.total() - before.streams.capacity.total()) as f64 / 1e9,
        after.checkpoints - before.checkpoints,
        after.waits - before.waits,
        after.memory_bytes as f64 / 1e6,
    );
}

struct Load {
    reactor: Rc<Reactor>,
    channel: Rc<dyn Channel>,
    blocks: u64,
    depth: u64,
}

impl Load {
    async fn run(&self, kind: Kind, until: Until) -> Measured {
        let latency = Rc::new(RefCell::new(Histogram::default()));
        let (began, cpu_began) = (self.reactor.clock_ns(), cpu_ns());
        let until = match until {
            Until::Passed(ns) => (began + ns, u64::MAX),
            Until::Operations(count) => (u64::MAX, count / self.depth),
        };
        let slot = |seed| {
            let (reactor, channel, latency) = (self.reactor.clone(), self.channel.clone(), latency.clone());
            self.reactor.spawn_join(job(reactor, channel, latency, self.blocks, seed, until, kind))
        };
        let slots: Vec<_> = (0..self.depth).map(slot).collect();
        let mut operations = 0;
        for slot in slots {
            operations += slot.await;
        }
        let latency = latency.borrow().clone();
        Measured { operations, wall_ns: self.reactor.clock_ns() - began, cpu_ns: cpu_ns() - cpu_began, latency }
    }
}

async fn job(
    reactor: Rc<Reactor>,
    channel: Rc<dyn Channel>,
    latency: Rc<RefCell<Histogram>>,
    blocks: u64,
    seed: u64,
    (until_ns, most): (u64, u64),
    kind: Kind,
) -> u64 {
    let mut rng = base::Rng::new(seed);
    let mut bufs = SgList::new();
    bufs.push(reactor.pool().alloc(BLOCK).await);
    bufs[0].as_mut_slice().fill(0x5A);
    let mut count = 0;
    loop {
        let mut begun = reactor.clock_ns();
        for _ in 0..BATCH {
            let lba = Lba(rng.below(blocks));
            let io = if kind == Kind::Read { Io::read(lba, 1, bufs) } else { Io::write(lba, 1, bufs) };
            let done = channel.submit(io).await;
            assert_eq!(done.status, Status::Ok);
            bufs = done.io.bufs;
            let ended = reactor.clock_ns();
            latency.borrow_mut().record(ended - begun);
            begun = ended;
        }
        count += BATCH as u64;
        if begun >= until_ns || count >= most {
            return count;
        }
        reactor.yield_now().await;
    }
}
