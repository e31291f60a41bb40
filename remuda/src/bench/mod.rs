//! `remuda bench`: loads a block device, local or over NVMe/TCP, and measures what it gives.
//!
//! Closed loop by default: every completion starts the next operation. With `--rate` the loop is open: operations have
//! intended start times, and latency counts from those, so a stall is charged to every operation that it delayed.

mod append;
mod connections;
mod engine_table;
pub mod job;
mod model;
pub mod pattern;
mod pool;
pub mod report;
mod restart;
mod svg;
pub mod verify;
mod wsr;

use crate::cli::exit::{Exit, Failure};
use crate::cli::remote::{HostArgs, TargetAddress};
use crate::cli::{Context, key_values, output};
use crate::config::device::{DeviceDef, DeviceParams, read_device};
use crate::config::diagnostic::Problems;
use crate::config::{Config, nearest, value};
use crate::node::reactors::{END_MAX_NS, Reactors, on_reactor_async};
use crate::node::{Opener, Refusal, close_device, open_device};
use crate::sys;
use base::ByteSize;
use bdev::BlockDevice;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use job::{Clock, Plan, run_job};
use pattern::{Choice, Pattern, Zipf};
use pool::{BenchPool, PoolSpec};
use reactor::{PollPolicy, PoolConfig, ReactorConfig, SPIN_MAX_NS_DEFAULT};
use report::{Report, Tally};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For `remuda bench --help`.
pub const WHAT_IS_DESTROYED: &str = "\
What is written to:
  device, nvmf        the device or the namespace itself, by everything but --rw read and
                      randread (the default) without --verify and --fill. That destroys what is
                      there, and nobody asks first
  device --kind pool  the files and drives that log, log_pmem and capacity name: a pool is made
                      on them. What holds something is refused without force=true. Without
                      names the pool is in memory
  append, restart     files of their own in --dir
  connections         files of its own in a temporary directory
  engine-table        memory alone
  wsr-table           models alone";

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Load a device of this machine; all but plain reads destroy what is on it
    #[command(group(ArgGroup::new("which").required(true).args(["config", "kind"])), after_help = "\
Examples:
  remuda bench device --kind mem size=512MiB --rw randread --qd 32
  remuda bench device --kind file path=/var/tmp/x size=1GiB --rw randrw --verify
  remuda bench device --config node.toml --device pair --rw write --bs 128k
  remuda bench device --kind mem size=1GiB --rw randread --rate 10000 --poll adaptive
  remuda bench device --kind pool log_size=1GiB capacity_size=8GiB --rw randwrite
  remuda bench device --kind pool log=/dev/nvme0n1 capacity=/dev/sdb capacity_size=1TiB --rw randrw --verify

Kinds and their keys: 'remuda device kinds'. Kind 'pool' is a pool of its own, on memory or on given files; keys: size (of
the volume), log or log_pmem, log_size, capacity, capacity_size, shards, map_cache, reinsertion, force.")]
    Device {
        /// Take the device from a configuration file (the node must not be running on it)
        #[arg(long, value_name = "FILE", requires = "device")]
        config: Option<String>,
        /// The device in that file
        #[arg(long, value_name = "NAME", requires = "config")]
        device: Option<String>,
        /// Kind of device; its keys follow as KEY=VALUE
        #[arg(long)]
        kind: Option<String>,
        /// Keys of the kind, such as size=1GiB
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<String>,
        #[command(flatten)]
        load: Load,
    },
    /// Measure what a write into the log of a pool takes, beside the bare store of the same bytes
    #[command(after_help = "\
Examples:
  remuda bench append
  remuda bench append --bs 4k --samples 200000 --core 1 --json")]
    Append(append::AppendArgs),
    /// Compare a hot pool with a bare drive and a bare disk (models), 16 KiB random at depths 1 and 16
    #[command(after_help = "Example:\n  remuda bench engine-table --svg engine.svg")]
    EngineTable(engine_table::TableArgs),
    /// The ten rows of the write-shaping paper, and one more, on a modelled QLC drive: alone, behind a cache, behind a log (virtual time)
    #[command(after_help = "\
Examples:
  remuda bench wsr-table
  remuda bench wsr-table --scale 1 --svg wsr.svg
  remuda bench wsr-table --rows 6 --setting zones --rate 600
  remuda bench wsr-table --stack drive,pool --pool-cores 2
  remuda bench wsr-table --rows 5,6 --unit 4KiB --json")]
    WsrTable(wsr::WsrArgs),
    /// Kill a node under load and measure how soon its successor answers
    #[command(after_help = "\
Examples:
  remuda bench restart
  remuda bench restart --log block --log-size 8GiB --capacity 1000GiB --json
  remuda bench restart --shape warm --flash 100GiB --capacity 1000GiB
  remuda bench restart --cold --dir /var/tmp")]
    Restart(restart::RestartArgs),
    /// Open many connections to a node and measure the memory that they take
    #[command(after_help = "\
Examples:
  remuda bench connections
  remuda bench connections --connections 4000 --queue-depth 1024 --busy 0 --json")]
    Connections(connections::ConnectionsArgs),
    /// Load a namespace of an NVMe/TCP target, ours or another's; all but plain reads destroy what is in it
    #[command(after_help = "\
Examples:
  remuda bench nvmf --addr 127.0.0.1:4420 --nqn nqn.2026-11.io.remuda:example --rw randread --qd 128
  remuda bench nvmf --addr 127.0.0.1 --nqn nqn.2026-11.io.remuda:example --rw randrw --verify --data-digest")]
    Nvmf {
        /// The target's address, with its port if need be
        #[arg(long, value_name = "ADDR[:PORT]")]
        addr: TargetAddress,
        /// The target's port, unless the address has it [default: 4420]
        #[arg(long)]
        port: Option<u16>,
        /// The subsystem
        #[arg(long)]
        nqn: String,
        /// The namespace
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        nsid: u32,
        #[command(flatten)]
        host: HostArgs,
        /// Checksums of PDU headers
        #[arg(long)]
        header_digest: bool,
        /// Checksums of PDU data
        #[arg(long)]
        data_digest: bool,
        /// Give up when the target was away for so long
        #[arg(long, default_value = "5s", value_parser = crate::config::section::parse_duration_ns)]
        loss_timeout: u64,
        #[command(flatten)]
        load: Load,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum Workload {
    /// Random reads
    RandRead,
    /// Random writes
    RandWrite,
    /// Random reads and writes, see --mix
    RandRw,
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Poll {
    /// Spin briefly, then sleep
    Adaptive,
    /// Never sleep
    Busy,
    /// Sleep at once
    Sleep,
}

/// The load.
#[derive(Args)]
pub struct Load {
    /// What to do; writes destroy what is there
    #[arg(long, value_enum, default_value = "randread")]
    rw: Workload,
    /// Percentage of reads in randrw
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u32).range(0..=100))]
    mix: u32,
    /// Bytes per operation
    #[arg(long, default_value = "4k")]
    bs: ByteSize,
    /// Operations under way at once, per job
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1023))]
    qd: u32,
    /// Jobs, each with a reactor and a queue of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256), conflicts_with = "queues")]
    jobs: u32,
    /// I/O queues: another name for --jobs, as every job has one
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    queues: Option<u32>,
    /// Measured time
    #[arg(long, default_value = "10s", value_parser = crate::config::section::parse_duration_ns)]
    time: u64,
    /// Time before measuring
    #[arg(long, default_value = "1s", value_parser = crate::config::section::parse_duration_ns)]
    warmup: u64,
    /// Tell latencies by spans of CLOCK_MONOTONIC of this length as well, and of all even and all odd ones (in JSON)
    #[arg(long, value_name = "TIME", value_parser = crate::config::section::parse_duration_ns)]
    spans: Option<u64>,
    /// Operations per second of all jobs together: an open loop
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    rate: Option<u64>,
    /// Write self-describing blocks and check every read, and everything at the end; destroys what is there, with --rw randread too
    #[arg(long)]
    verify: bool,
    /// Skew of random choices: 0 is uniform, 0.99 a usual cache workload, 1.2 strongly skewed
    #[arg(long, value_name = "THETA")]
    zipf: Option<f64>,
    /// Seed of the choices and of the contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use only the first bytes of the device
    #[arg(long)]
    range: Option<ByteSize>,
    /// Write the whole range before measuring; destroys what is there
    #[arg(long)]
    fill: bool,
    /// Let the device lend its memory to reads instead of copying
    #[arg(long, conflicts_with = "verify")]
    loan: bool,
    /// What a job does while it waits
    #[arg(long, value_enum, default_value = "adaptive")]
    poll: Poll,
    /// Cores for the jobs, such as 1 or 0,2
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
}

impl Load {
    fn jobs(&self) -> u32 {
        self.queues.unwrap_or(self.jobs)
    }

    fn read_percent(&self) -> u32 {
        match self.rw {
            Workload::RandRead | Workload::Read => 100,
            Workload::RandWrite | Workload::Write => 0,
            Workload::RandRw => self.mix,
        }
    }

    fn is_random(&self) -> bool {
        matches!(self.rw, Workload::RandRead | Workload::RandWrite | Workload::RandRw)
    }

    fn check(&self) -> Result<(), Failure> {
        let usage = |text: String| Err(Failure::new(Exit::Usage, text));
        if self.bs.0 == 0 || self.bs.0 > 64 << 20 {
            return usage(format!("--bs {}: expected 512 bytes to 64 MiB", self.bs));
        }
        if self.time == 0 {
            return usage("--time: it cannot be zero".into());
        }
        if self.spans.is_some_and(|span| span == 0 || self.time / span >= report::SPANS_MAX) {
            return usage(format!("--spans: expected fewer than {} in the measured time", report::SPANS_MAX));
        }
        if self.zipf.is_some_and(|theta| !(theta > 0.0 && theta <= 10.0)) {
            return usage("--zipf: expected a number above 0, up to 10".into());
        }
        if self.zipf.is_some() && !self.is_random() {
            return usage("--zipf: it needs a random workload (randread, randwrite, randrw)".into());
        }
        if self.loan && self.read_percent() < 100 {
            return usage("--loan: it is for reads only".into());
        }
        check_cores(&self.cores)
    }
}

fn check_cores(cores: &[usize]) -> Result<(), Failure> {
    let Some(core) = cores.iter().find(|core| !sys::allowed_cores().contains(core)) else { return Ok(()) };
    let allowed = sys::show_cores();
    let text = format!("--cores: core {core} is not available; this process may use {allowed}");
    Err(Failure::new(Exit::Usage, text))
}

/// What is loaded.
enum What {
    /// The last of these, which stands on the others.
    Devices(Vec<DeviceDef>),
    /// A volume in a pool of its own.
    Pool(PoolSpec),
}

/// Runs a benchmark and shows its report.
pub fn run(context: &Context, command: BenchCommand) -> Result<(), Failure> {
    let (what, load) = match command {
        BenchCommand::Append(args) => return append::run(context, &args),
        BenchCommand::Restart(args) => return restart::run(context, &args),
        BenchCommand::Connections(args) => return connections::run(context, &args),
        BenchCommand::EngineTable(args) => return engine_table::run(context, &args),
        BenchCommand::WsrTable(args) => return wsr::run(context, &args),
        BenchCommand::Device { config: Some(file), device: Some(device), load, .. } => {
            (What::Devices(from_config(&file, &device)?), load)
        }
        BenchCommand::Device { kind: Some(kind), keys, load, .. } if kind == "pool" => {
            (What::Pool(PoolSpec::from_words(&keys)?), load)
        }
        BenchCommand::Device { kind, keys, load, .. } => {
            (What::Devices(vec![from_words(&kind.unwrap_or_default(), &keys)?]), load)
        }
        BenchCommand::Nvmf { addr, port, nqn, nsid, host, header_digest, data_digest, loss_timeout, load } => {
            crate::config::check_nqn(&nqn).map_err(|reason| Failure::new(Exit::Usage, reason))?;
            host.check()?;
            let address = addr.with_port(port, crate::config::NVMF_PORT)?;
            let HostArgs { host_nqn, tls_key, dhchap_key, dhchap_ctrl_key } = host;
            let params = DeviceParams::Nvmf {
                address: address.to_string(),
                paths: Vec::new(),
                nqn,
                nsid,
                host_nqn,
                tls_key,
                dhchap_key,
                dhchap_ctrl_key,
                queues: Some(load.jobs() as u16),
                queue_depth: load.qd.clamp(32, 1023) as u16,
                header_digest,
                data_digest,
                exclusive: true,
                loss_timeout_ns: loss_timeout,
            };
            (What::Devices(vec![DeviceDef { name: "bench".into(), params }]), load)
        }
    };
    load.check()?;
    let report = measure(&what, &load, context.json)?;
    if context.json {
        output::print_json(&report.to_json());
    } else {
        output::print_line(&report.to_text());
    }
    if report.interrupted {
        return Err(Failure::quiet(Exit::Interrupted));
    }
    if report.is_good() { Ok(()) } else { Err(Failure::quiet(Exit::Failed)) }
}

/// A device of a file, after the devices below it.
fn from_config(file: &str, device: &str) -> Result<Vec<DeviceDef>, Failure> {
    let config = Config::load(file)?;
    let mut wanted = vec![device.to_string()];
    let mut defs: Vec<DeviceDef> = Vec::new();
    while let Some(name) = wanted.pop() {
        let Some(entry) = config.devices.iter().find(|entry| entry.def.name == name) else {
            let near = nearest(&name, config.devices.iter().map(|entry| entry.def.name.as_str()));
            let next = near.map_or(String::new(), |near| format!("; did you mean '{near}'?"));
            return Err(Failure::new(Exit::NotFound, format!("there is no device '{name}' in {file}{next}")));
        };
        wanted.extend(entry.def.children().iter().cloned());
        defs.push(entry.def.clone());
    }
    defs.reverse();
    Ok(defs)
}

fn from_words(kind: &str, keys: &[String]) -> Result<DeviceDef, Failure> {
    let mut params = key_values(keys)?;
    params.insert("name".into(), json!("bench"));
    params.insert("kind".into(), json!(kind));
    let mut problems = Problems::default();
    match read_device(&value::from_json(&params), None, true, &mut problems) {
        Some(entry) if entry.def.children().is_empty() => Ok(entry.def),
        Some(_) => {
            let text = format!(
                "a '{kind}' device stands on others: describe them in a file and use --config FILE --device NAME"
            );
            Err(Failure::new(Exit::Usage, text))
        }
        None => Err(Failure::new(Exit::Usage, problems.one_line())),
    }
}

fn measure(what: &What, load: &Load, quiet: bool) -> Result<Report, Failure> {
    let jobs = load.jobs() as usize;
    let core_of = |job: usize| load.cores.get(job % load.cores.len().max(1)).copied();
    let policy = match load.poll {
        Poll::Busy => PollPolicy::Busy,
        Poll::Sleep => PollPolicy::Sleep,
        Poll::Adaptive => PollPolicy::Adaptive { spin_max_ns: SPIN_MAX_NS_DEFAULT },
    };
    let bytes_max = (64 << 20) + 2 * load.qd as usize * (load.bs.0 as usize).next_power_of_two().max(4096);
    let config = ReactorConfig { policy, pool: PoolConfig { bytes_max }, ..ReactorConfig::default() };
    let cores = (0..jobs).map(core_of).collect();
    let reactors = Reactors::start_with(cores, config, END_MAX_NS);
    let reactors = reactors.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(Exit::Failed, format!("cannot start the control thread: {error}")))?;
    let outcome = runtime.block_on(async {
        match what {
            What::Devices(defs) => load_device(defs, load, &reactors, quiet).await,
            What::Pool(spec) => load_pool(spec, load, &reactors, quiet).await,
        }
    });
    drop(reactors);
    outcome
}

async fn load_device(defs: &[DeviceDef], load: &Load, reactors: &Reactors, quiet: bool) -> Result<Report, Failure> {
    let mut open: BTreeMap<&str, Arc<dyn BlockDevice>> = BTreeMap::new();
    let mut opened_all = Vec::new();
    let opener = Opener::without_node(reactors.first());
    for def in defs {
        let children = def.children().iter().map(|child| Some(open[child.as_str()].clone())).collect();
        let opened = open_device(def, children, &opener).await?;
        open.insert(&def.name, opened.device.clone());
        opened_all.push(opened);
    }
    let device = open[defs.last().expect("there is a device").name.as_str()].clone();
    let mut report = load_opened(&device, load, reactors, quiet).await?;
    for opened in opened_all.iter().rev() {
        report.note_end(close_device(reactors.first(), opened).await);
    }
    Ok(report)
}

async fn load_pool(spec: &PoolSpec, load: &Load, reactors: &Reactors, quiet: bool) -> Result<Report, Failure> {
    let pool = BenchPool::open(spec, None, reactors).await?;
    let report = load_opened(&pool.volume, load, reactors, quiet).await;
    let closed = pool.close(reactors).await;
    report.map(|mut report| {
        report.note_end(closed);
        report
    })
}

async fn load_opened(
    device: &Arc<dyn BlockDevice>,
    load: &Load,
    reactors: &Reactors,
    quiet: bool,
) -> Result<Report, Failure> {
    let plans = plan(&**device, load)?;
    let window = Window { warmup_ns: load.warmup, time_ns: load.time };
    let (tally, times) = run_jobs(device.clone(), plans, reactors, window, quiet).await?;
    let io_bytes = load.bs.0;
    let parameters = json!({
        "device": device.name(), "kind": device.kind(), "size": device.info().bytes(), "rw": format!("{:?}", load.rw).to_lowercase(),
        "mix": load.read_percent(), "bs": io_bytes, "qd": load.qd, "jobs": load.jobs(), "rate": load.rate, "zipf": load.zipf,
        "seed": load.seed, "poll": format!("{:?}", load.poll).to_lowercase(), "loan": load.loan,
    });
    Ok(Report {
        parameters,
        tally,
        io_bytes,
        window_ns: times.window_ns,
        cpu_ns: times.cpu_ns,
        steal_pct: times.steal_pct,
        verified: load.verify,
        interrupted: times.interrupted,
    })
}

/// Each job's share of the device.
fn plan(device: &dyn BlockDevice, load: &Load) -> Result<Vec<Plan>, Failure> {
    let info = device.info();
    let usage = |text: String| Failure::new(Exit::Usage, text);
    let block = info.block_size as u64;
    if !load.bs.0.is_multiple_of(block) {
        return Err(usage(format!("--bs {}: it is not a multiple of the block size {block}", load.bs)));
    }
    let io_blocks = load.bs.0 / block;
    if io_blocks > info.max_io_blocks as u64 {
        let most = ByteSize(info.max_io_blocks as u64 * block);
        return Err(usage(format!("--bs {}: the device takes {most} at once", load.bs)));
    }
    let jobs = load.jobs() as u64;
    let blocks = load.range.map_or(info.blocks, |range| (range.0 / block).min(info.blocks));
    // Jobs share the range when they only choose at random; whoever remembers or goes in order has a part of its own.
    let apart = load.verify || !load.is_random();
    let share = if apart { blocks / jobs } else { blocks } / io_blocks * io_blocks;
    if share == 0 {
        return Err(usage(format!("{} is too small for {jobs} jobs of {}", ByteSize(blocks * block), load.bs)));
    }
    if load.verify && share > verify::BLOCKS_MAX {
        let most = ByteSize(verify::BLOCKS_MAX * block * jobs);
        return Err(usage(format!("--verify remembers at most {most}: use --range {most}")));
    }
    let choice = match load.zipf {
        Some(theta) => Choice::Zipf(Zipf::new(share / io_blocks, theta)),
        None if load.is_random() => Choice::Uniform,
        None => Choice::Sequential,
    };
    let interval_ns = load.rate.map_or(0, |rate| (1_000_000_000 * jobs / rate).max(1));
    let plans = (0..jobs).map(|index| Plan {
        read_percent: load.read_percent(),
        io_blocks: io_blocks as u32,
        depth: load.qd as usize,
        first: if apart { index * share } else { 0 },
        blocks: share,
        pattern: Pattern::new(choice.clone(), share / io_blocks),
        interval_ns,
        phase_ns: interval_ns * index / jobs,
        verify: load.verify,
        // Reads alone have nothing to verify unless it is written first.
        fill: (load.fill && (apart || index == 0)) || (load.verify && load.read_percent() == 100),
        loan: load.loan,
        span_ns: load.spans.unwrap_or(0),
        seed: load.seed.wrapping_mul(0x9E37_79B9).wrapping_add(index),
        content_seed: load.seed,
    });
    Ok(plans.collect())
}

struct Window {
    warmup_ns: u64,
    time_ns: u64,
}

struct Times {
    window_ns: u64,
    cpu_ns: u64,
    steal_pct: f64,
    interrupted: bool,
}

async fn run_jobs(
    device: Arc<dyn BlockDevice>,
    plans: Vec<Plan>,
    reactors: &Reactors,
    window: Window,
    quiet: bool,
) -> Result<(Tally, Times), Failure> {
    let clock = Arc::new(Clock::default());
    let jobs = plans.len() as u64;
    let filling = plans.iter().any(|plan| plan.fill);
    let results: Vec<_> = plans
        .into_iter()
        .zip(reactors.handles())
        .map(|(plan, handle)| {
            let (device, clock) = (device.clone(), clock.clone());
            let run = on_reactor_async(handle, move |reactor| run_job(reactor, device, plan, clock));
            // Polled at once, so that the job starts now.
            Box::pin(run)
        })
        .collect();
    let interrupt = Arc::new(AtomicBool::new(false));
    let _ = signal_hook::flag::register_conditional_default(signal_hook::consts::SIGINT, interrupt.clone());
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, interrupt.clone());
    let watch = watch_jobs(reactors, clock.clone(), jobs, window, interrupt, filling, quiet);
    let (outcomes, times) = tokio::join!(join_all(results, clock.clone()), watch);
    let mut tally = Tally::default();
    for outcome in outcomes {
        let failed = |text| Failure::new(Exit::Failed, text);
        tally.merge(outcome.map_err(|refusal: Refusal| failed(refusal.to_string()))?.map_err(failed)?);
    }
    Ok((tally, times))
}

type JobResult = Result<Result<Tally, String>, Refusal>;

/// Waits for all jobs; when one fails before the start, the others are let go.
async fn join_all(
    futures: Vec<std::pin::Pin<Box<impl Future<Output = JobResult>>>>,
    clock: Arc<Clock>,
) -> Vec<JobResult> {
    let mut futures: Vec<_> = futures.into_iter().map(Some).collect();
    let mut results = Vec::new();
    std::future::poll_fn(|cx| {
        for slot in &mut futures {
            if let Some(future) = slot
                && let std::task::Poll::Ready(result) = future.as_mut().poll(cx)
            {
                if matches!(result, Ok(Err(_)) | Err(_)) {
                    clock.end_ns.store(1, Ordering::Release);
                    clock.measure_ns.store(1, Ordering::Release);
                    clock.start_ns.store(1, Ordering::Release);
                }
                results.push(result);
                *slot = None;
            }
        }
        if futures.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    results
}

/// Sets the times, shows progress, measures this process, and ends early when the user says so.
async fn watch_jobs(
    reactors: &Reactors,
    clock: Arc<Clock>,
    jobs: u64,
    window: Window,
    interrupt: Arc<AtomicBool>,
    filling: bool,
    quiet: bool,
) -> Times {
    const STEP: Duration = Duration::from_millis(20);
    let show = !quiet && std::io::stderr().is_terminal();
    let bar = if show { indicatif::ProgressBar::new_spinner() } else { indicatif::ProgressBar::hidden() };
    bar.set_message(if filling { "writing the range" } else { "opening" });
    while clock.ready.load(Ordering::Acquire) < jobs && clock.start_ns.load(Ordering::Acquire) == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        bar.tick();
        if interrupt.load(Ordering::Relaxed) {
            // Filling does not look at the clock; there is nothing to report.
            bar.finish_and_clear();
            std::process::exit(Exit::Interrupted as i32);
        }
    }
    let now = now_ns();
    let start = now + 2_000_000;
    let (measure, end) = (start + window.warmup_ns, start + window.warmup_ns + window.time_ns);
    if clock.start_ns.load(Ordering::Acquire) == 0 {
        clock.measure_ns.store(measure, Ordering::Release);
        clock.end_ns.store(end, Ordering::Release);
        clock.start_ns.store(start, Ordering::Release);
    }
    let began = Instant::now();
    let until = |target: u64| Duration::from_nanos(target.saturating_sub(now)).saturating_sub(began.elapsed());
    tokio::time::sleep(until(measure)).await;
    let (cpu_before, steal_before) = (sys::process_cpu_ns(), sys::steal_and_total());
    let mut last = (Instant::now(), clock.completed.load(Ordering::Relaxed));
    let mut interrupted = false;
    while !until(end).is_zero() && clock.end_ns.load(Ordering::Relaxed) != 1 {
        tokio::time::sleep(until(end).min(if show { STEP * 10 } else { STEP })).await;
        if interrupt.load(Ordering::Relaxed) {
            interrupted = true;
            clock.end_ns.store(now_ns(), Ordering::Release);
            break;
        }
        if show && last.0.elapsed() > Duration::from_millis(900) {
            let completed = clock.completed.load(Ordering::Relaxed);
            let rate = (completed - last.1) as f64 / last.0.elapsed().as_secs_f64();
            bar.set_message(format!("{} IOPS, {:.0} s left", output::count(rate as u64), until(end).as_secs_f64()));
            last = (Instant::now(), completed);
        }
    }
    let (cpu_after, steal_after) = (sys::process_cpu_ns(), sys::steal_and_total());
    bar.finish_and_clear();
    let _ = reactors;
    let total = steal_after.1.saturating_sub(steal_before.1).max(1);
    Times {
        window_ns: if interrupted { now_ns().saturating_sub(measure) } else { window.time_ns },
        cpu_ns: cpu_after - cpu_before,
        steal_pct: steal_after.0.saturating_sub(steal_before.0) as f64 * 100.0 / total as f64,
        interrupted,
    }
}

/// The reactors' clock (CLOCK_MONOTONIC).
fn now_ns() -> u64 {
    sys::monotonic_ns()
}
