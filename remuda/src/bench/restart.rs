//! `remuda bench restart`: what hosts wait for when a node with a pool is killed under load and started again.
//!
//! The whole of it: a child node on files of its own, a volume over NVMe/TCP, writes until the log is as full as destaging
//! keeps it, SIGKILL in the middle of more, and the time from the start of the next process to the first answers.

use crate::cli::exit::{Exit, Failure};
use crate::cli::{Context, output};
use crate::demo::child::{ChildNode, free_port};
use crate::demo::host::{Command, Host, check, remote_volume};
use crate::node::reactors::{END_MAX_NS, Reactors};
use crate::node::{Opener, open_device};
use crate::sys;
use base::{ByteSize, Rng};
use bdev::Op;
use clap::{Args, ValueEnum};
use reactor::{PoolConfig, ReactorConfig};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the search for a port begins.
const PORT_FIRST: u16 = 14_620;
const NQN: &str = "nqn.2026-11.io.remuda:restart";
const VOLUME: &str = "restart";
const POOL: &str = "pool";
const BLOCK: u64 = 4096;
const EXTENT: u64 = engine::EXTENT_BLOCKS as u64 * BLOCK;
const SLICE_EXTENTS: u64 = engine::SLICE_EXTENTS as u64;
/// Writes under way at once.
const DEPTH: usize = 64;
/// The log counts as loaded at this many percent: destaging keeps half.
const LOADED_PERCENT: u64 = 47;
/// Writes between two looks at the log.
const LOOK_EVERY: u64 = 4096;
/// Longest time that loading the log may take.
const LOAD_MAX: Duration = Duration::from_secs(900);
/// Writes on top of that before the node is killed in the middle of them.
const WRITES_UNDER_KILL: u64 = 2_000;

/// How the pool keeps blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum Placing {
    /// In place
    Hot,
    /// In bands, as on QLC
    Shaped,
    /// In place, with a read cache on flash
    Warm,
}

impl Placing {
    fn name(self) -> &'static str {
        match self {
            Placing::Hot => "hot",
            Placing::Shaped => "shaped",
            Placing::Warm => "warm",
        }
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum LogForm {
    /// As persistent memory
    Mapped,
    /// As a drive
    Block,
}

#[derive(Args)]
pub struct RestartArgs {
    /// How the pool keeps blocks
    #[arg(long, value_enum, default_value = "hot")]
    shape: Placing,
    /// Bytes of flash of a warm pool
    #[arg(long, default_value = "16GiB")]
    flash: ByteSize,
    /// How the log is written
    #[arg(long, value_enum, default_value = "mapped")]
    log: LogForm,
    /// Bytes of log
    #[arg(long, default_value = "1GiB")]
    log_size: ByteSize,
    /// Bytes of capacity; the file is sparse
    #[arg(long, default_value = "16GiB")]
    capacity: ByteSize,
    /// Percent of its extents that are allocated
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100))]
    allocated: u64,
    /// Shards of the pool [default: as many as a pool gets]
    #[arg(long)]
    shards: Option<u16>,
    /// Reactors of the node, which open the shards side by side
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    reactors: u32,
    /// How often the node is killed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Take the files out of the page cache before each start, as a power loss does; --dir must be on a disk
    #[arg(long, requires = "dir")]
    cold: bool,
    /// Where log and capacity are
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    dir: PathBuf,
}

/// One restart. Times count from the start of the process.
struct Restart {
    ready: Duration,
    read: Duration,
    write: Duration,
    /// What opening the pool took of that.
    opening: Duration,
    /// What the node's threads had of cores until then.
    cpu: Duration,
    records: u64,
    resident_bytes: u64,
}

pub fn run(context: &Context, args: &RestartArgs) -> Result<(), Failure> {
    if args.log_size.0 < 64 << 20 || args.capacity.0 < 256 << 20 {
        return Err(Failure::new(Exit::Usage, "expected a log of 64MiB and a capacity of 256MiB or more"));
    }
    let failed = |error: std::io::Error| {
        let dir = args.dir.display();
        Failure::new(Exit::Failed, format!("cannot make files in {dir}: {error}; choose another place with --dir"))
    };
    let dir = tempfile::Builder::new().prefix("remuda-restart-").tempdir_in(&args.dir).map_err(failed)?;
    let port = free_port(PORT_FIRST).map_err(failed)?;
    let bench = Bench { args, dir: dir.path(), config: dir.path().join("node.toml"), port };
    std::fs::write(&bench.config, bench.config_text()).map_err(failed)?;
    let restarts = bench.run()?;
    if context.json {
        output::print_json(&to_json(args, &restarts));
    } else {
        output::print_line(&to_text(args, &restarts));
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a RestartArgs,
    dir: &'a Path,
    config: PathBuf,
    port: u16,
}

impl Bench<'_> {
    fn config_text(&self) -> String {
        let RestartArgs { log, log_size, capacity, shards, reactors, .. } = self.args;
        let (device, log) = match log {
            LogForm::Mapped => {
                (String::new(), format!("log = {{ pmem = \"log.img\", size = {}, volatile = true }}", log_size.0))
            }
            LogForm::Block => (device_text("log", log_size.0), "log = \"log\"".to_string()),
        };
        let shards = shards.map_or(String::new(), |shards| format!("shards = {shards}\n"));
        let (cache, pool) = match self.args.shape {
            Placing::Hot => (String::new(), "capacity = \"disk\"\n"),
            Placing::Shaped => (String::new(), "capacity = \"disk\"\nshape = \"shaped\"\n"),
            Placing::Warm => (
                format!(
                    "{}[[device]]\nname = \"cached\"\nkind = \"flash-cache\"\ndevice = \"disk\"\nflash = \"flash\"\nwrite_budget = \
                     \"1000TiB\"\n\n",
                    device_text("flash", self.args.flash.0)
                ),
                "capacity = \"cached\"\n",
            ),
        };
        format!(
            "[node]\nstate_dir = \"state\"\nrpc_socket = \"node.sock\"\nmetrics_listen = \"off\"\nreactors = {reactors}\n\n[nvmf]\nlisten = \
             [\"127.0.0.1:{}\"]\n\n{device}{}{cache}[pool.{POOL}]\n{log}\n{pool}{shards}",
            self.port,
            device_text("disk", capacity.0)
        )
    }

    fn start(&self) -> Result<ChildNode, Failure> {
        ChildNode::start(&self.config, &self.dir.join("node.sock"), &self.dir.join("node.log"))
    }

    fn run(&self) -> Result<Vec<Restart>, Failure> {
        let text = |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, error.to_string());
        let pool = PoolConfig { bytes_max: 64 << 20 };
        let reactors = Reactors::start_with(vec![None], ReactorConfig { pool, ..ReactorConfig::default() }, END_MAX_NS);
        let reactors = reactors.map_err(|error| text(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| text(&error))?;
        let opener = Opener::without_node(reactors.first());
        let attach = || -> Result<Host, Failure> {
            let opened = runtime.block_on(open_device(&remote_volume(VOLUME, self.port, NQN), Vec::new(), &opener))?;
            Ok(runtime.block_on(Host::attach(&opener.reactor, opened.device))?)
        };
        let mut node = self.start()?;
        let extents = volume_extents(&node)?;
        let used = (extents * self.args.allocated / 100).max(1);
        node.call("volume.create", json!({ "name": VOLUME, "pool": POOL, "size": extents * EXTENT }))?;
        node.call("subsystem.create", json!({ "nqn": NQN, "allow_any_host": true }))?;
        node.call("subsystem.add_namespace", json!({ "nqn": NQN, "volume": VOLUME, "nsid": 1 }))?;
        let mut host = attach()?;
        write_each(&mut host, (0..used).map(|extent| extent * EXTENT))?;
        if self.args.shape == Placing::Warm {
            // From the slow device, and so into the cache.
            node.call("pool.settle", json!({ "name": POOL }))?;
            each(&mut host, (0..used).map(|extent| extent * EXTENT), read)?;
        }
        let mut rng = Rng::new(5);
        let mut restarts = Vec::new();
        for _ in 0..self.args.runs {
            let mut anywhere = std::iter::repeat_with(|| rng.below(used * EXTENT / BLOCK) * BLOCK);
            let began = Instant::now();
            loop {
                write_each(&mut host, anywhere.by_ref().take(LOOK_EVERY as usize))?;
                let (free, all) = (pool_number(&node, "log_free_bytes")?, pool_number(&node, "log_bytes")?);
                if (all - free) * 100 >= all * LOADED_PERCENT {
                    break;
                }
                if began.elapsed() > LOAD_MAX {
                    return Err(Failure::new(
                        Exit::Failed,
                        "the log does not fill: destaging keeps up; use a larger --log-size",
                    ));
                }
            }
            for byte in anywhere.take(WRITES_UNDER_KILL as usize) {
                make_room(&mut host)?;
                write(&mut host, byte);
            }
            node.kill();
            drop(host);
            if self.args.cold {
                for name in ["log.img", "disk.img", "flash.img"].iter().filter(|name| self.dir.join(name).exists()) {
                    sys::drop_cached(&self.dir.join(name)).map_err(|error| text(&error))?;
                }
            }
            let began = Instant::now();
            node = self.start()?;
            let ready = began.elapsed();
            host = attach()?;
            read(&mut host, 0);
            check(&host.answer()?)?;
            let first_read = began.elapsed();
            write(&mut host, (used / 2) * EXTENT);
            check(&host.answer()?)?;
            let (first_write, cpu) = (began.elapsed(), Duration::from_nanos(sys::cpu_ns_of(node.pid())));
            let open = node.call("pool.show", json!({ "name": POOL }))?["open"].clone();
            let number = |key: &str| open[key].as_u64().unwrap_or(0);
            restarts.push(Restart {
                ready,
                read: first_read,
                write: first_write,
                opening: Duration::from_nanos(number("recovered_ns")),
                cpu,
                records: number("recovered_records"),
                resident_bytes: sys::resident_bytes(node.pid()),
            });
        }
        node.kill();
        Ok(restarts)
    }
}

fn device_text(name: &str, bytes: u64) -> String {
    format!("[[device]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{name}.img\"\nsize = {bytes}\ndirect = false\n\n")
}

/// A number of the pool, all shards together.
fn pool_number(node: &ChildNode, key: &str) -> Result<u64, Failure> {
    let pool = node.call("pool.show", json!({ "name": POOL }))?;
    let closed = || Failure::new(Exit::Failed, format!("pool '{POOL}' is not open: {}", pool["problems"]));
    pool["open"]["total"][key].as_u64().ok_or_else(closed)
}

/// Extents of the largest volume of which every shard can hold its slices.
fn volume_extents(node: &ChildNode) -> Result<u64, Failure> {
    let pool = node.call("pool.show", json!({ "name": POOL }))?;
    let shards = pool["open"]["shards"].as_array().map_or(&[][..], Vec::as_slice);
    let slices = shards.iter().filter_map(|shard| shard["free_extents"].as_u64()).min().unwrap_or(0) / SLICE_EXTENTS;
    match slices * SLICE_EXTENTS * shards.len() as u64 {
        0 => Err(Failure::new(Exit::Failed, format!("pool '{POOL}' has no room: {}", pool["problems"]))),
        extents => Ok(extents),
    }
}

fn write(host: &mut Host, byte: u64) {
    let data = vec![(byte >> 12) as u8; BLOCK as usize];
    host.submit(Command { id: byte, op: Op::Write, lba: byte / host.block_size, data });
}

fn make_room(host: &mut Host) -> Result<(), Failure> {
    if host.in_flight() >= DEPTH { check(&host.answer()?) } else { Ok(()) }
}

fn read(host: &mut Host, byte: u64) {
    host.submit(Command { id: byte, op: Op::Read, lba: byte / host.block_size, data: vec![0; BLOCK as usize] });
}

/// Writes a block at each of these bytes, and waits for all.
fn write_each(host: &mut Host, bytes: impl Iterator<Item = u64>) -> Result<(), Failure> {
    each(host, bytes, write)
}

fn each(host: &mut Host, bytes: impl Iterator<Item = u64>, submit: fn(&mut Host, u64)) -> Result<(), Failure> {
    for byte in bytes {
        make_room(host)?;
        submit(host, byte);
    }
    while host.in_flight() > 0 {
        check(&host.answer()?)?;
    }
    Ok(())
}

fn to_json(args: &RestartArgs, restarts: &[Restart]) -> Value {
    let runs = restarts.iter().map(|restart| {
        json!({
            "ready_ns": restart.ready.as_nanos() as u64,
            "first_read_ns": restart.read.as_nanos() as u64,
            "first_write_ns": restart.write.as_nanos() as u64,
            "pool_open_ns": restart.opening.as_nanos() as u64,
            "cpu_ns": restart.cpu.as_nanos() as u64,
            "records": restart.records,
            "resident_bytes": restart.resident_bytes,
        })
    });
    json!({
        "shape": args.shape.name(),
        "log": if args.log == LogForm::Mapped { "mapped" } else { "block" },
        "log_size": args.log_size.0,
        "capacity": args.capacity.0,
        "reactors": args.reactors,
        "allocated_percent": args.allocated,
        "cold": args.cold,
        "dir": args.dir,
        "restarts": runs.collect::<Vec<_>>(),
    })
}

fn to_text(args: &RestartArgs, restarts: &[Restart]) -> String {
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let rows = restarts.iter().map(|restart| {
        vec![
            ms(restart.ready),
            ms(restart.read),
            ms(restart.write),
            ms(restart.opening),
            ms(restart.cpu),
            output::count(restart.records),
            ByteSize(restart.resident_bytes).to_string(),
        ]
    });
    let headings = [">READY", ">FIRST READ", ">FIRST WRITE", ">OF THAT POOL", ">CPU", ">RECORDS", ">MEMORY"];
    let table = output::table(&headings, rows.collect());
    let how = if args.cold { "with its files out of the page cache" } else { "killed under load" };
    let kind = if args.log == LogForm::Mapped { "mapped" } else { "block" };
    format!(
        "{table}\n\nfrom process start, {how}; {} pool, {kind} log {}, capacity {}{}, {} % of it allocated, \
         reactors {}",
        args.shape.name(),
        args.log_size,
        args.capacity,
        if args.shape == Placing::Warm { format!(", flash {}", args.flash) } else { String::new() },
        args.allocated,
        args.reactors
    )
}
