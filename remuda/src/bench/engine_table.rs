//! `remuda bench engine-table`: 16 KiB random reads and writes of a hot pool beside a bare drive and a bare disk, as the
//! seed's figure compares them. The drives are models (see [`model`](super::model)), the pool is the real thing, its log in
//! memory, in front of such a drive.
//!
//! Latency is the median of what operations took, or, where the one core is what limits, depth times the CPU time of an
//! operation: then it contains the wait for the core, which an operation that completes in its submission does not see.
//! On a core that is shared with other processes both stay what they are on a quiet one. With several cores the pool has a shard
//! on each, and the operations under way are dealt out to them.

use super::job::Plan;
use super::model::{DriveModel, HDD, ModelDevice, NVME};
use super::pattern::{Choice, Pattern};
use super::pool::{BenchPool, PoolSpec};
use super::{Window, check_cores, run_jobs, svg};
use crate::cli::exit::{Exit, Failure};
use crate::cli::out_file::{Existing, Readers, write_whole};
use crate::cli::{Context, output};
use crate::config::show_duration_ns;
use crate::node::reactors::{END_MAX_NS, Reactors, on_reactor_async};
use base::ByteSize;
use bdev::BlockDevice;
use clap::Args;
use reactor::{PollPolicy, ReactorConfig};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

const IO_BYTES: u64 = 16 << 10;
const BLOCK: u64 = 4096;
const DRIVE_BYTES: u64 = 2 << 30;

#[derive(Args)]
pub struct TableArgs {
    /// Runs, of which the medians are shown
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Measured time of each load
    #[arg(long, default_value = "1s", value_parser = crate::config::section::parse_duration_ns)]
    time: u64,
    /// Addresses that are read and written
    #[arg(long, default_value = "64MiB")]
    range: ByteSize,
    /// Bytes of the pool's log
    #[arg(long, default_value = "1GiB")]
    log_size: ByteSize,
    /// Cores to measure on, such as 1 or 0,1; the pool uses all of them, a drive the first
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Write the figure to a file, which is replaced if it exists
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What one load gave in one run.
#[derive(Clone, Copy)]
struct Sample {
    latency_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
}

/// One bar of the figure.
pub struct Row {
    /// The device.
    pub device: String,
    /// Reads; otherwise writes.
    pub read: bool,
    /// Queue depth.
    pub depth: u64,
    /// Median of all runs.
    pub latency_ns: u64,
    /// The lowest and the highest of all runs.
    pub spread_ns: (u64, u64),
    p50_ns: u64,
    p99_ns: u64,
    /// As printed in the seed's figure.
    pub seed: &'static str,
    /// Share of the bytes read that came from the log, of the pool.
    from_log: Option<f64>,
    /// Times the pool's latency.
    pub times: f64,
}

const LOADS: [(bool, u64); 4] = [(false, 1), (false, 16), (true, 1), (true, 16)];

/// Name, and what the seed's figure says of each load.
const POOL: (&str, [&str; 4]) = ("hot pool", ["10 us", "30 us", "6 us", "10 us"]);
const NVME_SEED: [&str; 4] = ["100+ us", "300+ us", "125 us", "200+ us"];
const HDD_SEED: [&str; 4] = ["4 ms", "20+ ms", "10+ ms", "50+ ms"];

pub fn run(context: &Context, args: &TableArgs) -> Result<(), Failure> {
    if args.range.0 < 1 << 20 || args.range.0 > 512 << 20 || args.range.0 * 4 > args.log_size.0 {
        let text = format!("--range {}: expected 1MiB to 512MiB, and at most a quarter of the log", args.range);
        return Err(Failure::new(Exit::Usage, text));
    }
    check_cores(&args.cores)?;
    // Waits for the drive are spun through, those for the disk slept: a process that never sleeps is not woken in time on a
    // machine with other work.
    let policy = PollPolicy::Adaptive { spin_max_ns: 1_000_000 };
    let config = ReactorConfig { policy, ..ReactorConfig::default() };
    let cores = if args.cores.is_empty() { vec![None] } else { args.cores.iter().copied().map(Some).collect() };
    let reactors = Reactors::start_with(cores, config, END_MAX_NS);
    let reactors = reactors.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(Exit::Failed, format!("cannot start the control thread: {error}")))?;
    let rows = runtime.block_on(measure(args, &reactors))?;
    if let Some(path) = &args.svg {
        write_whole(path, svg::engine_table(&rows).as_bytes(), Existing::Replace, Readers::Umask)?;
    }
    if context.json {
        output::print_json(&to_json(args, &rows));
    } else {
        output::print_line(&to_text(args, &rows));
    }
    Ok(())
}

async fn measure(args: &TableArgs, reactors: &Reactors) -> Result<Vec<Row>, Failure> {
    let drive = |model: DriveModel| {
        let made = ModelDevice::new(model, DRIVE_BYTES);
        made.map(|device| Arc::new(device) as Arc<dyn BlockDevice>)
            .map_err(|error| Failure::new(Exit::Failed, error.to_string()))
    };
    let cores = reactors.handles().len();
    let spec = PoolSpec::of_sizes(args.log_size.0, DRIVE_BYTES, cores as u16);
    let pool = BenchPool::open(&spec, Some(drive(NVME)?), reactors).await?;
    let (nvme, hdd) = (drive(NVME)?, drive(HDD)?);
    // A volume's extents are allocated, and its log is written once, before anything is measured.
    load(args, &pool.volume, reactors, cores, false, 16, Some(args.log_size.0 * 3 / 2 / IO_BYTES)).await?;
    let mut samples: [[Vec<Sample>; 4]; 3] = Default::default();
    let mut hits = [(0, 0); 4];
    for _ in 0..args.runs {
        let devices = [(&pool.volume, cores), (&nvme, 1), (&hdd, 1)];
        for ((device, cores), of_device) in devices.into_iter().zip(&mut samples) {
            for (index, (read, depth)) in LOADS.into_iter().enumerate() {
                let before = read_bytes(&pool, reactors).await?;
                of_device[index].push(load(args, device, reactors, cores, read, depth, None).await?);
                let after = read_bytes(&pool, reactors).await?;
                hits[index].0 += after.0 - before.0;
                hits[index].1 += after.1 - before.1;
            }
        }
    }
    pool.close(reactors).await?;
    let names = [(POOL.0, POOL.1), (NVME.name, NVME_SEED), (HDD.name, HDD_SEED)];
    let mut rows: Vec<Row> = Vec::new();
    for ((name, seed), of_device) in names.into_iter().zip(&mut samples) {
        for (index, (read, depth)) in LOADS.into_iter().enumerate() {
            let of_load = &mut of_device[index];
            of_load.sort_by_key(|sample| sample.latency_ns);
            let median = of_load[of_load.len() / 2];
            let pool_ns = rows.get(index).map_or(median.latency_ns, |row| row.latency_ns);
            rows.push(Row {
                device: name.to_string(),
                read,
                depth,
                latency_ns: median.latency_ns,
                spread_ns: (of_load[0].latency_ns, of_load[of_load.len() - 1].latency_ns),
                p50_ns: median.p50_ns,
                p99_ns: median.p99_ns,
                seed: seed[index],
                from_log: (name == POOL.0 && read).then(|| hits[index].1 as f64 / hits[index].0.max(1) as f64),
                times: median.latency_ns as f64 / pool_ns.max(1) as f64,
            });
        }
    }
    Ok(rows)
}

/// Bytes read from the pool's volume so far, and of those from the log.
async fn read_bytes(pool: &BenchPool, reactors: &Reactors) -> Result<(u64, u64), Failure> {
    let pool = pool.pool.clone();
    let status = on_reactor_async(reactors.first(), move |reactor| async move { pool.status(&reactor).await }).await?;
    let sum = |of: fn(&engine::ShardStatus) -> u64| status.shards.iter().map(of).sum();
    Ok((sum(|shard| shard.user_read_bytes), sum(|shard| shard.log_hit_bytes)))
}

/// One load on so many cores for `args.time`, or until about so many operations were done.
async fn load(
    args: &TableArgs,
    device: &Arc<dyn BlockDevice>,
    reactors: &Reactors,
    cores: usize,
    read: bool,
    depth: u64,
    operations: Option<u64>,
) -> Result<Sample, Failure> {
    let units = args.range.0 / IO_BYTES;
    let jobs = cores.min(depth as usize);
    let mut done = 0;
    loop {
        let plan = |job: usize| Plan {
            read_percent: if read { 100 } else { 0 },
            io_blocks: (IO_BYTES / BLOCK) as u32,
            depth: depth as usize / jobs + usize::from(job < depth as usize % jobs),
            first: 0,
            blocks: units * (IO_BYTES / BLOCK),
            pattern: Pattern::new(Choice::Uniform, units),
            interval_ns: 0,
            phase_ns: 0,
            verify: false,
            fill: operations.is_some() && done == 0,
            loan: false,
            span_ns: 0,
            seed: 1 + job as u64,
            content_seed: 1,
        };
        let plans = (0..jobs).map(plan).collect();
        let window = Window { warmup_ns: args.time / 5, time_ns: args.time };
        let (tally, times) = run_jobs(device.clone(), plans, reactors, window, true).await?;
        if times.interrupted {
            return Err(Failure::quiet(Exit::Interrupted));
        }
        if let Some(error) = tally.first_error {
            return Err(Failure::new(Exit::Failed, format!("'{}': {error}", device.name())));
        }
        let ended = if read { tally.reads } else { tally.writes };
        let count = ended.count().max(1);
        done += count;
        if operations.is_none_or(|wanted| done >= wanted) {
            let (p50_ns, p99_ns) = (ended.percentile(50.0), ended.percentile(99.0));
            return Ok(Sample { latency_ns: p50_ns.max(depth * times.cpu_ns / count / cores as u64), p50_ns, p99_ns });
        }
    }
}

fn to_json(args: &TableArgs, rows: &[Row]) -> Value {
    let each = rows.iter().map(|row| {
        json!({
            "device": row.device, "model": row.device != POOL.0, "op": if row.read { "read" } else { "write" },
            "bs": IO_BYTES, "qd": row.depth, "latency_ns": row.latency_ns, "latency_ns_lowest": row.spread_ns.0,
            "latency_ns_highest": row.spread_ns.1, "p50_ns": row.p50_ns, "p99_ns": row.p99_ns,
            "times_the_pool": (row.times * 10.0).round() / 10.0,
            "read_from_log": row.from_log, "seed": row.seed,
        })
    });
    json!({
        "rows": each.collect::<Vec<_>>(), "models": [NVME.to_json(), HDD.to_json()],
        "runs": args.runs, "time_ns": args.time, "range": args.range.0, "log_size": args.log_size.0,
        "cores": args.cores.len().max(1),
    })
}

fn to_text(args: &TableArgs, rows: &[Row]) -> String {
    let cells = rows.iter().map(|row| {
        let device = if row.device == POOL.0 { row.device.clone() } else { format!("{} (model)", row.device) };
        vec![
            device,
            format!("16 KiB {}", if row.read { "read" } else { "write" }),
            row.depth.to_string(),
            show_duration_ns(row.latency_ns),
            format!("{} to {}", show_duration_ns(row.spread_ns.0), show_duration_ns(row.spread_ns.1)),
            show_duration_ns(row.p50_ns),
            show_duration_ns(row.p99_ns),
            format!("{:.1}", row.times),
            row.seed.to_string(),
        ]
    });
    let headings = ["DEVICE", "LOAD", ">QD", ">LATENCY", ">OF ALL RUNS", ">P50", ">P99", ">TIMES THE POOL", ">SEED"];
    let place = match args.cores.len() {
        0 | 1 => "everything on one core".to_string(),
        cores => format!("the pool on {cores} cores, drives on one"),
    };
    let from_log: Vec<f64> = rows.iter().filter_map(|row| row.from_log).collect();
    format!(
        "{}\n\nMedian of {} runs of {}, {place}. Latency: p50, or depth times the CPU time of an operation over the cores where the \
         core is what limits; p50 and p99 do not contain the wait for it.\n\
         The pool's log is memory, its capacity the NVMe model; {:.1} % of its reads came from the log. Drives are models.",
        output::table(&headings, cells.collect()),
        args.runs,
        show_duration_ns(args.time),
        from_log.iter().copied().fold(1.0, f64::min) * 100.0
    )
}
