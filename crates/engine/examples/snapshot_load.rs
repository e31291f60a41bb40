//! What taking a snapshot costs the writes beside it: random 4 KiB writes at a fixed rate on a volume that has been filled, with
//! seconds in which snapshots are taken and seconds in which none is, in turn within one run.
//!
//! A write's time counts from when it was due, so that one that waits delays those behind it in the numbers as well. With
//! `delete` the snapshot before is deleted when a new one is there, and what that costs is in the numbers too. The snapshots of a
//! span go at its end, before the next one is measured: what the writes meet while they go, and in the second after, is told apart.
//!
//! `cargo run --release -p remuda-engine --example snapshot_load -- hot|shaped [GIB [LOG_MIB [WRITES_PER_S [ROUNDS]]]] [delete|none]`:
//! with `none` no snapshots are taken in any second, which shows how far two halves of one run come apart by themselves.

mod common;

use base::{Histogram, Rng};
use bdev::{Channel, Io, Lba, Status};
use common::{BLOCK, Size, filled_pool};
use engine::{Pool, Shape};
use reactor::{Reactor, SgList};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

const SECOND_NS: u64 = 1_000_000_000;
/// Of seconds with or without snapshots.
const SPAN_NS: u64 = 3 * SECOND_NS;
/// From one snapshot to the next.
const SNAPSHOT_EVERY_NS: u64 = 600_000_000;
/// Writes that may be under way at once; more are late.
const WRITERS: u64 = 64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let (deletes, none) = (has("delete"), has("none"));
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<u64>().ok());
    let mut next = |default| numbers.next().unwrap_or(default);
    let (gib, log_mib, rate, rounds) = (next(1), next(512), next(20_000), next(4));
    let shape = if has("shaped") { Shape::Shaped } else { Shape::Hot };
    // Every snapshot of a span may keep a whole volume in a hot pool.
    let (blocks, snapshots) = (gib << 18, SPAN_NS / SNAPSHOT_EVERY_NS + 2);
    let size = Size { blocks, log_bytes: log_mib << 20, shape, spare_blocks: blocks * snapshots };
    common::run(|reactor, path| async move {
        let (pool, channel) = filled_pool(&reactor, &path, &size).await;
        let load = Rc::new(Load {
            reactor: reactor.clone(),
            channel,
            blocks: size.blocks,
            gap_ns: SECOND_NS * WRITERS / rate,
            ends: Cell::new(false),
            kind: Cell::new(0),
            latency: RefCell::default(),
        });
        let writers: Vec<_> = (0..WRITERS).map(|seed| reactor.spawn_join(writer(load.clone(), seed))).collect();
        // The first span is for getting used to it.
        reactor.sleep_ns(SPAN_NS).await;
        let (mut taken, mut gone) = (Histogram::default(), Histogram::default());
        for _ in 0..rounds {
            for with in [false, true] {
                load.kind.set(1 + with as usize);
                let until = reactor.clock_ns() + SPAN_NS;
                while reactor.clock_ns() < until {
                    let begun = reactor.clock_ns();
                    if with && !none {
                        take(&reactor, &pool, deletes, &mut taken).await;
                    }
                    reactor.sleep_ns((begun + SNAPSHOT_EVERY_NS).saturating_sub(reactor.clock_ns())).await;
                }
                load.kind.set(if with { 3 } else { 0 });
                let begun = reactor.clock_ns();
                forget(&reactor, &pool, |_| true).await;
                // Nobody waits for them: that would speed it up.
                while pool.tree(&reactor).await.expect("it is open").1 > 0 {
                    reactor.sleep_ns(SECOND_NS / 1000).await;
                }
                if with {
                    gone.record(reactor.clock_ns() - begun);
                    load.kind.set(4);
                }
                reactor.sleep_ns(SECOND_NS).await;
                load.kind.set(0);
            }
        }
        load.ends.set(true);
        for writer in writers {
            writer.await;
        }
        let all = load.latency.borrow();
        let kinds = [(1, "without"), (2, "with"), (3, "while snapshots go"), (4, "the second after"), (0, "otherwise")];
        for (kind, name) in kinds {
            let us = |share| all[kind].percentile(share) as f64 / 1e3;
            println!(
                "{name}: {} writes; us p50 {:.1} p99 {:.1} p99.9 {:.1} p99.99 {:.1} max {:.1}",
                all[kind].count(),
                us(50.0),
                us(99.0),
                us(99.9),
                us(99.99),
                all[kind].max() as f64 / 1e3
            );
        }
        if taken.count() > 0 {
            let (p50, max) = (taken.percentile(50.0) as f64 / 1e3, taken.max() as f64 / 1e3);
            println!("{} snapshots: us p50 {p50:.1} max {max:.1}", taken.count());
            let (p50, max) = (gone.percentile(50.0) as f64 / 1e6, gone.max() as f64 / 1e6);
            println!("those of a span went in: ms p50 {p50:.0} max {max:.0}");
        }
        let ratio = |share| all[2].percentile(share) as f64 / all[1].percentile(share) as f64;
        println!(
            "with / without: p50 {:.2} p99 {:.2} p99.9 {:.2}; slowest with / p99 without {:.1}",
            ratio(50.0),
            ratio(99.0),
            ratio(99.9),
            all[2].max() as f64 / all[1].percentile(99.0) as f64
        );
    });
}

async fn take(reactor: &Rc<Reactor>, pool: &Arc<Pool>, deletes: bool, taken: &mut Histogram) {
    let begun = reactor.clock_ns();
    let name = format!("s{}", taken.count());
    let made = pool.snapshot(reactor, &[("volume", &name)], 0).await.expect("room for snapshots");
    taken.record(reactor.clock_ns() - begun);
    if deletes {
        forget(reactor, pool, |name| name != made[0].identity().name).await;
    }
}

/// Deletes snapshots.
async fn forget(reactor: &Rc<Reactor>, pool: &Arc<Pool>, which: impl Fn(&str) -> bool) {
    let snapshots = pool.volumes().into_iter().filter(|volume| volume.identity().is_snapshot);
    for former in snapshots.filter(|volume| which(&volume.identity().name)) {
        pool.delete_snapshot(reactor, &former.identity().name).await.expect("it is there");
    }
}

struct Load {
    reactor: Rc<Reactor>,
    channel: Rc<dyn Channel>,
    blocks: u64,
    /// Between two writes of one writer.
    gap_ns: u64,
    ends: Cell<bool>,
    /// Which histogram a write counts in that is due now: 0 when nothing is measured, 1 without snapshots, 2 with, 3 while they
    /// go, 4 after that.
    kind: Cell<usize>,
    latency: RefCell<[Histogram; 5]>,
}

async fn writer(load: Rc<Load>, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut bufs = SgList::new();
    bufs.push(load.reactor.pool().alloc(BLOCK).await);
    bufs[0].as_mut_slice().fill(0x5A);
    let (mut kind, mut due_ns) = (0, load.reactor.clock_ns() + load.gap_ns * seed / WRITERS);
    while !load.ends.get() {
        if load.reactor.clock_ns() < due_ns {
            load.reactor.sleep_until(due_ns).await;
        }
        let before = std::mem::replace(&mut kind, load.kind.get());
        if kind != before {
            // What the span before has left behind is not this one's.
            due_ns = due_ns.max(load.reactor.clock_ns());
        }
        let done = load.channel.submit(Io::write(Lba(rng.below(load.blocks)), 1, bufs)).await;
        assert_eq!(done.status, Status::Ok);
        bufs = done.io.bufs;
        load.latency.borrow_mut()[kind].record(load.reactor.clock_ns() - due_ns);
        due_ns += load.gap_ns;
    }
}
