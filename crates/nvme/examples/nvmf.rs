//! Works with any NVMe/TCP target: lists what it offers, checks that data survives the way there and back, measures.
//!
//! ```text
//! cargo run --release -p remuda-nvme --example nvmf -- discover 127.0.0.1:4420
//! cargo run --release -p remuda-nvme --example nvmf -- check 127.0.0.1:4420 NQN [digests]
//! cargo run --release -p remuda-nvme --example nvmf -- bench 127.0.0.1:4420 NQN randread 4096 128 5 [digests] [busy] [core=N]
//! ```
//! `check` overwrites the namespace's first 64 MiB.

mod common;

use base::{Histogram, Rng};
use bdev::{BlockDevice, Channel, Io, Lba, Op};
use common::{filled, round_trip};
use nvme::initiator::{Controller, HostIdentity, NvmfDevice, Options, discover};
use nvme::spec::Nqn;
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::sync::Notify;
use reactor::{PollPolicy, Reactor, ReactorConfig};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use uuid::Uuid;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [action, address, rest @ ..] = args.as_slice() else {
        eprintln!("usage: nvmf discover ADDRESS | check ADDRESS NQN | bench ADDRESS NQN RW BYTES QD SECONDS");
        std::process::exit(2);
    };
    let address: SocketAddr = address.parse().expect("an address such as 127.0.0.1:4420");
    let has = |word: &str| rest.iter().any(|arg| arg == word);
    let core = rest.iter().find_map(|arg| arg.strip_prefix("core=")).map(|core| core.parse().expect("a core number"));
    let policy = if has("busy") { PollPolicy::Busy } else { ReactorConfig::default().policy };
    let reactor = ReactorConfig { policy, ..ReactorConfig::default() };
    let config = RuntimeConfig { cores: vec![core], reactor, ..RuntimeConfig::default() };
    let runtime = Runtime::start(&config).expect("a reactor");
    let host = HostIdentity::from_uuid(Uuid::from_u128(0x5265_6d75_6461_4e00_8000_0000_0000_0001));
    let subsystem = rest.first().map_or(Ok(Nqn::discovery()), |nqn| Nqn::new(nqn)).expect("a valid NQN");
    let mut options = Options::new(address, subsystem, host);
    options.header_digest = has("digests");
    options.data_digest = has("digests");
    let action = action.clone();
    let rest = rest.to_vec();
    let outcome = runtime.handles()[0].call_async(move |reactor| async move {
        match action.as_str() {
            "discover" => list(&reactor, &options).await,
            "check" => check(&reactor, &options).await,
            "bench" => bench(&reactor, options, &rest).await,
            other => Err(format!("unknown action {other}").into()),
        }
        .map_err(|error| error.to_string())
    });
    if let Some(Err(error)) = outcome {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

async fn list(reactor: &Rc<Reactor>, options: &Options) -> Outcome {
    for entry in discover(reactor, options).await? {
        println!("{} at {}:{}", entry.nqn, entry.address, entry.service);
    }
    Ok(())
}

async fn check(reactor: &Rc<Reactor>, options: &Options) -> Outcome {
    let controller = Controller::connect(reactor, options).await?;
    println!("{:#?}", controller.info());
    for nsid in controller.active_namespaces(0).await? {
        println!("{:?} {:?}", controller.namespace(nsid).await?, controller.namespace_ids(nsid).await?);
    }
    controller.shutdown().await?;
    drop(controller);

    let device = NvmfDevice::open(reactor, "remote", options, None).await?;
    let info = device.info();
    println!("{info:?}");
    let channel = device.open_channel(reactor)?;
    let mut rng = Rng::new(7);
    for io_bytes in [info.block_size as usize, 8192, 16 << 10, 128 << 10, 256 << 10, 1 << 20] {
        let blocks = (io_bytes as u32 / info.block_size).max(1);
        let count = (16 << 20) / io_bytes as u64;
        for index in 0..count.min(64) {
            let lba = Lba(rng.below((64 << 20) / info.block_size as u64 - blocks as u64));
            round_trip(reactor, &*channel, lba, blocks, io_bytes, index).await?;
        }
        println!("{io_bytes} bytes: written, read back, compared");
    }
    for op in [Op::Flush, Op::WriteZeroes, Op::Unmap, Op::Verify] {
        let io = if op == Op::Flush { Io::flush() } else { Io::new(op, Lba(16), 64) };
        println!("{}: {}", op.name(), channel.submit(io).await.status);
    }
    compare(reactor, &*channel, info.block_size as usize).await?;
    drop(channel);
    device.close().await;
    Ok(())
}

async fn compare(reactor: &Rc<Reactor>, channel: &dyn Channel, block: usize) -> Outcome {
    let io = |op, seeds: &[u64]| {
        let bufs = seeds.iter().flat_map(|seed| filled(reactor, block, *seed)).collect();
        Io { bufs, ..Io::new(op, Lba(5), 1) }
    };
    channel.submit(io(Op::Write, &[1])).await.status.check()?;
    for (what, expected) in [(io(Op::Compare, &[1]), "equal"), (io(Op::Compare, &[2]), "different")] {
        println!("compare {expected}: {}", channel.submit(what).await.status);
    }
    for (seeds, expected) in [([2, 3], "different"), ([1, 4], "equal"), ([4, 1], "equal")] {
        println!("compare and write {expected}: {}", channel.submit(io(Op::CompareAndWrite, &seeds)).await.status);
    }
    Ok(())
}

struct Load {
    histogram: RefCell<Histogram>,
    ended: Cell<u64>,
    running: Cell<usize>,
    done: Notify,
}

async fn bench(reactor: &Rc<Reactor>, options: Options, args: &[String]) -> Outcome {
    let [_, rw, bytes, depth, seconds, ..] = args else { return Err("bench ADDRESS NQN RW BYTES QD SECONDS".into()) };
    let (bytes, depth): (usize, usize) = (bytes.parse()?, depth.parse()?);
    let duration_ns = seconds.parse::<u64>()? * 1_000_000_000;
    let options = Options { queue_entries: (depth + 1).clamp(2, 4096) as u16, ..options };
    let device = NvmfDevice::open(reactor, "remote", &options, None).await?;
    let info = device.info();
    let channel = device.open_channel(reactor)?;
    channel.submit(Io::flush()).await.status.check()?;
    let blocks = bytes as u32 / info.block_size;
    let span = info.blocks / blocks as u64;
    let load = Rc::new(Load {
        histogram: RefCell::new(Histogram::default()),
        ended: Cell::new(0),
        running: Cell::new(depth),
        done: Notify::default(),
    });
    let began_ns = reactor.clock_ns();
    let cpu_before = cpu_ns();
    for worker in 0..depth {
        let (reactor, channel, load) = (reactor.clone(), channel.clone(), load.clone());
        let rw = rw.clone();
        reactor.clone().spawn(async move {
            let mut rng = Rng::new(worker as u64);
            let mut bufs = filled(&reactor, bytes, 2);
            while reactor.now_ns() < began_ns + duration_ns {
                let lba = Lba(rng.below(span) * blocks as u64);
                let is_read = rw == "randread" || (rw == "randrw" && rng.one_in(2));
                let io = if is_read { Io::read(lba, blocks, bufs) } else { Io::write(lba, blocks, bufs) };
                let issued_ns = reactor.now_ns();
                let done = channel.submit(io).await;
                assert!(done.status.is_ok(), "{}", done.status);
                load.histogram.borrow_mut().record(reactor.now_ns() - issued_ns);
                load.ended.set(load.ended.get() + 1);
                bufs = done.io.bufs;
            }
            load.running.set(load.running.get() - 1);
            load.done.notify_all();
        });
    }
    load.done.wait_until(|| load.running.get() == 0).await;
    let (wall_ns, cpu) = (reactor.clock_ns() - began_ns, cpu_ns() - cpu_before);
    let count = load.ended.get();
    let histogram = load.histogram.take();
    println!(
        "{rw} bs={bytes} qd={depth} IOPS={:.0} per_cpu_second={:.0} cpu_us/io={:.2} cpu={:.0}% p50={:.1} p99={:.1} us",
        count as f64 * 1e9 / wall_ns as f64,
        count as f64 * 1e9 / cpu as f64,
        cpu as f64 / 1e3 / count as f64,
        100.0 * cpu as f64 / wall_ns as f64,
        histogram.percentile(50.0) as f64 / 1e3,
        histogram.percentile(99.0) as f64 / 1e3,
    );
    drop(channel);
    device.close().await;
    Ok(())
}

/// User and system time of this process.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let all = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let threads = all.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    let of = |text: &str| text.split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
    threads.map(|text| of(&text)).sum::<u64>().max(of(&stat))
}
