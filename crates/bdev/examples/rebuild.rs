//! How fast a mirror and a parity device get a member back, and what that costs who uses them meanwhile: members are files in
//! /dev/shm, the load reads 4 KiB and writes a row (4 KiB on a mirror), at random, at a fixed rate and on the same core.
//!
//! A request's time counts from when it was due, so that one that waits delays those behind it in the numbers as well.
//!
//! `cargo run --release -p remuda-bdev --example rebuild [-- parity|mirror [MEMBER_MIB [REQUESTS_PER_S [RATE_MIB,...]]]]`: rates are
//! those of a parity device, 0 its pause after each step; a mirror has no rate.

use base::{Histogram, Rng};
use bdev::{
    BlockDevice, Channel, FileDevice, FileDeviceOptions, Io, Lba, LegState, MirrorDevice, MirrorOptions, ParityDevice,
    ParityOptions,
};
use reactor::linux::LinuxDriver;
use reactor::{PollPolicy, Reactor, ReactorConfig, SgList};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

const SECOND_NS: u64 = 1_000_000_000;
/// Of the load alone, before the rebuild.
const QUIET_NS: u64 = 3 * SECOND_NS;
/// Of a rebuild; a slow one is then given up.
const REBUILD_MAX_NS: u64 = 6 * SECOND_NS;
/// Requests that may be under way at once; more are late.
const WORKERS: u64 = 16;
const LEGS: usize = 2;
const MEMBERS: usize = 4;

/// A device that has lost a member, and gets another one.
enum Device {
    Mirror(Arc<MirrorDevice>),
    Parity(Arc<ParityDevice>),
}

impl Device {
    fn block(&self) -> &dyn BlockDevice {
        match self {
            Device::Mirror(device) => &**device,
            Device::Parity(device) => &**device,
        }
    }

    /// Bytes that the new member has got; `None` when it has all.
    fn rebuilt(&self, member_bytes: u64) -> Option<u64> {
        match self {
            Device::Parity(device) => device.status().rebuild.map(|rebuild| rebuild.done_bytes),
            Device::Mirror(device) => {
                let status = device.status();
                let is_done = status.legs.iter().all(|leg| leg.state == LegState::InSync);
                let done = status.regions - status.resync_left_regions;
                (!is_done).then(|| member_bytes * done / status.regions)
            }
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_mirror = args.first().is_some_and(|arg| arg == "mirror");
    let number = |at: usize, default: u64| args.get(at).map_or(default, |arg| arg.parse().expect("a number"));
    let (mib, rate) = (number(1, 512), number(2, 4_000));
    let rates = args.get(3).map_or("0,64,256,1024,1048576", String::as_str);
    let rates: Vec<u64> =
        if is_mirror { vec![0] } else { rates.split(',').map(|rate| rate.parse().expect("MiB/s")).collect() };
    let reactor = Reactor::new(
        0,
        Rc::new(LinuxDriver::new().expect("io_uring is available")),
        ReactorConfig { policy: PollPolicy::Busy, ..ReactorConfig::default() },
    );
    for rate_mib in rates {
        for requests_per_s in [0, rate] {
            // Of its own: a device may keep its files open for a moment after its end.
            let directory = tempfile::tempdir_in("/dev/shm").expect("room in /dev/shm");
            let bay =
                Bay { reactor: reactor.clone(), directory: directory.path().to_str().expect("UTF-8").into(), mib };
            block_on(&reactor, async move { measure(&bay, is_mirror, rate_mib << 20, requests_per_s).await });
        }
    }
}

/// Where members come from.
struct Bay {
    reactor: Rc<Reactor>,
    directory: String,
    mib: u64,
}

impl Bay {
    fn member(&self, name: &str) -> Arc<dyn BlockDevice> {
        let path = format!("{}/{name}", self.directory);
        // Written before: who gets zeroed pages while it is measured would measure that.
        std::fs::write(&path, vec![0; (self.mib << 20) as usize]).expect("room in /dev/shm");
        Arc::new(FileDevice::open(&self.reactor, name, FileDeviceOptions::new(&path)).expect("a file in /dev/shm"))
    }

    /// A device without one of its members.
    async fn degraded(&self, is_mirror: bool, rebuild_rate: u64) -> Device {
        let reactor = &self.reactor;
        let count = if is_mirror { LEGS } else { MEMBERS };
        let mut members: Vec<_> = (0..count).map(|index| Some(self.member(&format!("member-{index}")))).collect();
        if is_mirror {
            let options = MirrorOptions { create: true, assume_clean: true, ..MirrorOptions::default() };
            drop(MirrorDevice::open(reactor, "mirror", members.clone(), &options).await.expect("new members"));
            members[1] = None;
            let options = MirrorOptions { start_degraded: true, ..MirrorOptions::default() };
            let opened = MirrorDevice::open(reactor, "mirror", members, &options).await;
            return Device::Mirror(Arc::new(opened.expect("a leg is left")));
        }
        let options = ParityOptions { create: true, rebuild_rate, ..ParityOptions::default() };
        let parity = ParityDevice::open(reactor, "parity", members.clone(), &options).await.expect("new members");
        fill(reactor, &parity).await;
        parity.close(reactor).await.expect("members in memory");
        members[1] = None;
        let options = ParityOptions { rebuild_rate, ..ParityOptions::default() };
        let opened = ParityDevice::open(reactor, "parity", members, &options).await;
        Device::Parity(Arc::new(opened.expect("one member of four is missing")))
    }
}

/// Writes all rows once.
async fn fill(reactor: &Rc<Reactor>, device: &ParityDevice) {
    let (channel, info) = (device.open_channel(reactor).expect("a channel"), device.info());
    let rows = info.rows.expect("a parity device has rows");
    let mut bufs = SgList::new();
    bufs.push(reactor.pool().alloc(rows.blocks as usize * info.block_size as usize).await);
    Rng::new(1).fill(bufs[0].as_mut_slice());
    let mut at = rows.start;
    while at + rows.blocks as u64 <= info.blocks {
        let done = channel.submit(Io::write(Lba(at), rows.blocks, bufs)).await;
        assert!(done.status.is_ok(), "{}", done.status);
        (bufs, at) = (done.io.bufs, at + rows.blocks as u64);
    }
}

async fn measure(bay: &Bay, is_mirror: bool, rate: u64, requests_per_s: u64) {
    let reactor = &bay.reactor;
    let (device, fresh) = (bay.degraded(is_mirror, rate).await, bay.member("fresh"));
    let info = device.block().info();
    let rows = info.rows.map(|rows| (rows.start, rows.blocks as u64));
    let load = Rc::new(Load {
        reactor: reactor.clone(),
        channel: device.block().open_channel(reactor).expect("a channel"),
        blocks: info.blocks,
        rows: rows.unwrap_or((0, 1)),
        gap_ns: (SECOND_NS * WORKERS).checked_div(requests_per_s).unwrap_or(0),
        ends: Cell::new(requests_per_s == 0),
        phase: Cell::new(0),
        latency: RefCell::default(),
    });
    let workers: Vec<_> = (0..WORKERS).map(|seed| reactor.spawn_join(worker(load.clone(), seed))).collect();
    if requests_per_s > 0 {
        reactor.sleep_ns(QUIET_NS).await;
    }
    load.phase.set(1);
    let begun = reactor.clock_ns();
    match &device {
        Device::Mirror(mirror) => {
            mirror.join(reactor, 1, Some(fresh), false).await.expect("a blank leg");
            mirror.resync_in_background(reactor);
        }
        Device::Parity(parity) => {
            parity.join(reactor, 1, Some(fresh), false).await.expect("a blank member");
            parity.rebuild_in_background(reactor);
        }
    }
    let (mut done_bytes, mut ended) = (0, begun);
    while ended < begun + REBUILD_MAX_NS {
        reactor.sleep_ns(1_000_000).await;
        ended = reactor.clock_ns();
        match device.rebuilt(bay.mib << 20) {
            Some(done) => done_bytes = done,
            None => {
                done_bytes = bay.mib << 20;
                break;
            }
        }
    }
    load.ends.set(true);
    for worker in workers {
        worker.await;
    }
    let name = if is_mirror { "mirror".to_string() } else { format!("parity, rate {} MiB/s", rate >> 20) };
    let mb_per_s = done_bytes as f64 * 1e3 / (ended - begun) as f64;
    println!("{name}: {requests_per_s} requests/s: rebuilt {mb_per_s:.0} MB/s");
    let all = load.latency.take();
    for (phase, name) in [(0, "before"), (1, "meanwhile")].into_iter().filter(|_| requests_per_s > 0) {
        for (kind, histogram) in ["reads", "writes"].iter().zip(&all[phase]) {
            let us = |share| histogram.percentile(share) as f64 / 1e3;
            let max = histogram.max() as f64 / 1e3;
            println!("  {kind} {name}: us p50 {:.1} p99 {:.1} p99.9 {:.1} max {max:.1}", us(50.0), us(99.0), us(99.9));
        }
    }
    if let Device::Parity(parity) = &device {
        parity.close(reactor).await.expect("members in memory");
    }
}

struct Load {
    reactor: Rc<Reactor>,
    channel: Rc<dyn Channel>,
    blocks: u64,
    /// First block and length of what is written at once.
    rows: (u64, u64),
    /// Between two requests of one worker.
    gap_ns: u64,
    ends: Cell<bool>,
    /// 0 before the rebuild, 1 meanwhile.
    phase: Cell<usize>,
    /// Of reads and writes, by phase.
    latency: RefCell<[[Histogram; 2]; 2]>,
}

async fn worker(load: Rc<Load>, seed: u64) {
    let mut rng = Rng::new(seed);
    let (first, row) = load.rows;
    let alloc = |blocks: u64| load.reactor.pool().alloc(blocks as usize * 4096);
    let (mut one, mut whole) = (SgList::new(), SgList::new());
    one.push(alloc(1).await);
    whole.push(alloc(row).await);
    whole[0].as_mut_slice().fill(0x5A);
    let mut due_ns = load.reactor.clock_ns() + load.gap_ns * seed / WORKERS;
    while !load.ends.get() {
        if load.reactor.clock_ns() < due_ns {
            load.reactor.sleep_until(due_ns).await;
        }
        // One in sixteen is a write.
        let (phase, is_write) = (load.phase.get(), rng.one_in(16));
        let at = first + rng.below((load.blocks - first) / row) * row;
        let io = match is_write {
            true => Io::write(Lba(at), row as u32, std::mem::take(&mut whole)),
            false => Io::read(Lba(at + rng.below(row)), 1, std::mem::take(&mut one)),
        };
        let done = load.channel.submit(io).await;
        assert!(done.status.is_ok(), "{}", done.status);
        *(if is_write { &mut whole } else { &mut one }) = done.io.bufs;
        load.latency.borrow_mut()[phase][is_write as usize].record(load.reactor.clock_ns() - due_ns);
        due_ns += load.gap_ns;
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
