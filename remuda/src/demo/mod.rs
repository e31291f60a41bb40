//! `remuda demo`: a node, a volume in a hot pool on it over NVMe/TCP, a directory tree written there, the node killed in the middle of
//! further writes and started again, and every acknowledged and flushed byte looked at; then a shaped pool on it ([`shaped`]).
//! `remuda dev` lives in [`dev`].

mod archive;
pub mod child;
pub mod dev;
pub mod host;
mod report;
mod shaped;

use crate::bench::job::{Clock, Plan, run_job};
use crate::bench::pattern::{Choice, Pattern};
use crate::bench::verify::Memory;
use crate::cli::exit::{Exit, Failure};
use crate::cli::{Context, output};
use crate::node::reactors::{END_MAX_NS, Reactors, on_reactor_async};
use crate::node::{Opener, open_device};
use archive::{Packer, Tree, Unpacker};
use base::{ByteSize, Rng};
use bdev::{BlockDevice, Op};
use child::{ChildNode, free_port};
use clap::Args;
use host::{Command, Host, check, remote_volume};
use indicatif::{ProgressBar, ProgressStyle};
use reactor::{PoolConfig, ReactorConfig};
use report::{Phase, Report};
use serde_json::json;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where the search for a port begins.
const PORT_FIRST: u16 = 14_420;
const NQN: &str = "nqn.2026-11.io.remuda:demo";
const VOLUME: &str = "demo";
const POOL: &str = "hot";
/// The pool's log.
const LOG: u64 = 256 << 20;
/// Least capacity, for short demonstrations.
const CAPACITY_MIN: u64 = 512 << 20;
/// Bytes of one archive write.
const SEGMENT: u64 = 256 << 10;
/// Archive writes under way at once.
const SEGMENTS_AT_ONCE: usize = 8;
/// Archive bytes between two flushes.
const FLUSH_EVERY: u64 = 16 << 20;
/// Room for the small writes during which the node is killed.
const SCRATCH: u64 = 64 << 20;
/// Small writes under way at once, and between two flushes.
const SMALL_AT_ONCE: usize = 32;
const SMALL_PER_FLUSH: u64 = 2000;

/// What to demonstrate.
#[derive(Args)]
pub struct DemoArgs {
    /// Directory tree to write
    #[arg(long, value_name = "DIR", default_value = "/usr/share")]
    from: PathBuf,
    /// Most bytes of it
    #[arg(long, default_value = "256MiB")]
    size_limit: ByteSize,
    /// Where to put the files of the node [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the files afterwards
    #[arg(long)]
    keep: bool,
}

/// Runs the demonstration.
pub fn run(context: &Context, args: DemoArgs) -> Result<(), Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, text);
    archive::check_root(&args.from).map_err(|error| usage(format!("--from {}: {error}", args.from.display())))?;
    if args.size_limit.0 < 1 << 20 || args.size_limit.0 > 1 << 40 {
        return Err(usage(format!("--size-limit {}: expected 1 MiB to 1 TiB", args.size_limit)));
    }
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let failed =
        |error| Failure::new(Exit::Failed, format!("cannot make a directory in {}: {error}", parent.display()));
    let dir = tempfile::Builder::new().prefix("remuda-demo-").tempdir_in(&parent).map_err(failed)?;
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one ends the process; the node sees that and ends too.
        let _ = signal_hook::flag::register_conditional_default(signal, interrupt.clone());
        let _ = signal_hook::flag::register(signal, interrupt.clone());
    }
    let show = !context.json && std::io::stderr().is_terminal();
    let demo = Demo {
        dir: dir.path().to_path_buf(),
        interrupt,
        show,
        quiet: context.json,
        from: args.from,
        limit: args.size_limit.0,
    };
    let outcome = demo.run();
    let keep = args.keep || matches!(&outcome, Err(failure) if failure.exit != Exit::Interrupted);
    let kept = dir.path().to_path_buf();
    if keep {
        let _ = dir.keep();
    } else {
        drop(dir);
    }
    match outcome {
        Ok(report) => {
            if context.json {
                output::print_json(&report.to_json());
            } else {
                output::print_line(&report.to_text());
                if keep {
                    output::print_line(&format!("\nfiles kept in {}", kept.display()));
                }
            }
            Ok(())
        }
        Err(failure) if failure.exit == Exit::Interrupted => {
            Err(Failure::new(Exit::Interrupted, "interrupted: the node was stopped and its files were removed"))
        }
        Err(failure) => {
            let message = format!("{}\nthe node's log and files are in {}", failure.message, kept.display());
            Err(Failure { message, ..failure })
        }
    }
}

struct Demo {
    dir: PathBuf,
    interrupt: Arc<AtomicBool>,
    show: bool,
    quiet: bool,
    from: PathBuf,
    limit: u64,
}

/// A written part of the archive.
struct Extent {
    bytes: u64,
    crc: u32,
    flushed: bool,
}

/// What the second half remembers of the first.
struct Written {
    extents: Vec<Extent>,
    files: u64,
    file_bytes: u64,
    memory: Memory,
    scratch_first: u64,
    scratch_blocks: u64,
    small_acknowledged: u64,
    small_flushed: u64,
    in_flight_at_kill: usize,
}

impl Demo {
    fn check_interrupt(&self) -> Result<(), Failure> {
        if self.interrupt.load(Ordering::Relaxed) { Err(Failure::quiet(Exit::Interrupted)) } else { Ok(()) }
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    fn bar(&self, total: u64, what: &str) -> ProgressBar {
        if !self.show {
            return ProgressBar::hidden();
        }
        let style = "  {msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec}";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(total).with_style(style).with_message(what.to_string())
    }

    fn run(&self) -> Result<Report, Failure> {
        let failed = |error: std::io::Error| Failure::new(Exit::Failed, error.to_string());
        let port = free_port(PORT_FIRST).map_err(failed)?;
        let config = self.write_config(port).map_err(failed)?;
        let (socket, log) = (self.dir.join("node.sock"), self.dir.join("node.log"));
        self.say(&format!("starting a node with a hot pool on two files in {}", self.dir.display()));
        let node = ChildNode::start(&config, &socket, &log)?;
        self.create_objects(&node)?;
        self.say(&format!(
            "node {} exports volume '{VOLUME}' of pool '{POOL}' as {NQN} on 127.0.0.1:{port}",
            node.pid()
        ));

        let pool = PoolConfig { bytes_max: 64 << 20 };
        let reactors = Reactors::start_with(vec![None], ReactorConfig { pool, ..ReactorConfig::default() }, END_MAX_NS);
        let reactors = reactors.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let opener = Opener::without_node(reactors.first());
        let attach = |nqn: &str| -> Result<(Arc<dyn BlockDevice>, Host), Failure> {
            let opened = runtime.block_on(open_device(&remote_volume(VOLUME, port, nqn), Vec::new(), &opener))?;
            let host = runtime.block_on(Host::attach(&opener.reactor, opened.device.clone()))?;
            Ok((opened.device, host))
        };

        let mut phases = Vec::new();
        let (device, mut host) = attach(NQN)?;
        self.say(&format!("attached over NVMe/TCP: {}", ByteSize(device.info().bytes())));
        let (extents, packer) = self.write_tree(&mut host, &mut phases)?;
        phases.push(self.measure_reads(&runtime, reactors.first(), device.clone(), extents.len() as u64 * SEGMENT)?);

        let written = self.write_until_killed(&mut host, &*device, node, &mut phases)?;
        let written = Written { extents, files: packer.0, file_bytes: packer.1, ..written };
        // The old association is of no use any more: the node that knew it is gone.
        drop((host, device));

        self.say("starting the node again");
        let began = Instant::now();
        let node = ChildNode::start(&config, &socket, &log)?;
        let answered = began.elapsed();
        let (device, mut host) = attach(NQN)?;
        host.submit(Command { id: 0, op: Op::Read, lba: 0, data: vec![0; host.block_size as usize] });
        check(&host.answer()?)?;
        let first_io = began.elapsed();
        self.say(&format!("back after {} ms, first I/O after {} ms", answered.as_millis(), first_io.as_millis()));
        let (replayed, replay) = self.recovery(&node)?;

        let mut report = self.verify(&mut host, &written, &mut phases)?;
        drop((host, device));

        let bytes = shaped::create(self, &node)?;
        self.say(&format!("a shaped pool beside it: filling a volume of {}, then writing at random", ByteSize(bytes)));
        let (device, mut host) = attach(shaped::NQN)?;
        report.shaped = Some(shaped::show(self, &node, &mut host, &mut phases)?);
        report.node_ready = answered;
        report.first_io = first_io;
        (report.replayed, report.replay) = (replayed, replay);
        report.phases = phases;
        drop((host, device));
        node.stop()?;
        Ok(report)
    }

    fn write_config(&self, port: u16) -> std::io::Result<PathBuf> {
        let capacity = CAPACITY_MIN.max(self.volume_bytes() + self.volume_bytes() / 16).next_multiple_of(1 << 20);
        let text = format!(
            "[node]\nstate_dir = \"state\"\nrpc_socket = \"node.sock\"\nmetrics_listen = \"off\"\n\n[nvmf]\nlisten = \
             [\"127.0.0.1:{port}\"]\n\n[[device]]\nname = \"log\"\nkind = \"file\"\npath = \"log.img\"\nsize = {LOG}\n\n\
             [[device]]\nname = \"disk\"\nkind = \"file\"\npath = \"disk.img\"\nsize = {capacity}\n\n[pool.{POOL}]\n\
             log = \"log\"\ncapacity = \"disk\"\n"
        );
        let path = self.dir.join("node.toml");
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Room for the archive, rounded up to whole segments, and for the small writes behind it.
    fn volume_bytes(&self) -> u64 {
        (self.limit + (1 << 20)).next_multiple_of(SEGMENT) + SCRATCH
    }

    fn create_objects(&self, node: &ChildNode) -> Result<(), Failure> {
        node.call("volume.create", json!({ "name": VOLUME, "pool": POOL, "size": self.volume_bytes() }))?;
        node.call("subsystem.create", json!({ "nqn": NQN, "allow_any_host": true }))?;
        node.call("subsystem.add_namespace", json!({ "nqn": NQN, "volume": VOLUME, "nsid": 1 }))?;
        Ok(())
    }

    /// Log records that the pool replayed when it was opened, and the time that opening it took.
    fn recovery(&self, node: &ChildNode) -> Result<(u64, Duration), Failure> {
        let pool = node.call("pool.show", json!({ "name": POOL }))?;
        let number = |key: &str| pool["open"][key].as_u64();
        match (number("recovered_records"), number("recovered_ns")) {
            (Some(records), Some(ns)) => Ok((records, Duration::from_nanos(ns))),
            _ => Err(Failure::new(Exit::Failed, format!("pool '{POOL}' is not open: {}", pool["problems"]))),
        }
    }

    /// Packs the tree onto the volume; a flush makes each part of it certain.
    fn write_tree(&self, host: &mut Host, phases: &mut Vec<Phase>) -> Result<(Vec<Extent>, (u64, u64)), Failure> {
        let mut packer = Packer::new(Tree::new(&self.from, self.limit));
        let mut extents: Vec<Extent> = Vec::new();
        let bar = self.bar(self.limit, "writing the tree");
        let began = Instant::now();
        let (mut ended, mut flushed) = (false, 0);
        while !ended || host.in_flight() > 0 {
            self.check_interrupt()?;
            while !ended && host.in_flight() < SEGMENTS_AT_ONCE {
                let mut data = vec![0; SEGMENT as usize];
                if !packer.fill(&mut data) {
                    ended = true;
                    break;
                }
                let id = extents.len() as u64;
                extents.push(Extent { bytes: SEGMENT, crc: base::crc32c(&data), flushed: false });
                host.submit(Command { id, op: Op::Write, lba: id * SEGMENT / host.block_size, data });
            }
            if host.in_flight() > 0 {
                check(&host.answer()?)?;
                bar.inc(SEGMENT);
            }
            let unflushed = (extents.len() - flushed) as u64 * SEGMENT;
            if unflushed >= FLUSH_EVERY || (ended && unflushed > 0) {
                while host.in_flight() > 0 {
                    check(&host.answer()?)?;
                    bar.inc(SEGMENT);
                }
                host.flush()?;
                extents[flushed..].iter_mut().for_each(|extent| extent.flushed = true);
                flushed = extents.len();
            }
        }
        bar.finish_and_clear();
        let bytes = extents.len() as u64 * SEGMENT;
        if packer.files == 0 {
            let text = format!("there are no files in {} that fit {}", self.from.display(), ByteSize(self.limit));
            return Err(Failure::new(Exit::Usage, text));
        }
        phases.push(Phase::new("write the tree, 256 KiB", bytes, began.elapsed(), host.take_latencies()));
        self.say(&format!("wrote {} files, {}", output::count(packer.files), ByteSize(packer.bytes)));
        Ok((extents, (packer.files, packer.bytes)))
    }

    /// Two seconds of random 4 KiB reads of what was written, as `remuda bench` makes them.
    fn measure_reads(
        &self,
        runtime: &tokio::runtime::Runtime,
        reactor: &reactor::ReactorHandle,
        device: Arc<dyn BlockDevice>,
        bytes: u64,
    ) -> Result<Phase, Failure> {
        const TIME_NS: u64 = 2_000_000_000;
        self.check_interrupt()?;
        self.say("reading 4 KiB at random for two seconds");
        let info = device.info();
        let io_blocks = (4096 / info.block_size).max(1);
        let blocks = bytes / info.block_size as u64;
        let plan = Plan {
            read_percent: 100,
            io_blocks,
            depth: 32,
            first: 0,
            blocks,
            pattern: Pattern::new(Choice::Uniform, blocks / io_blocks as u64),
            interval_ns: 0,
            phase_ns: 0,
            verify: false,
            fill: false,
            loan: false,
            span_ns: 0,
            seed: 1,
            content_seed: 1,
        };
        let clock = Arc::new(Clock::default());
        let start = crate::sys::monotonic_ns() + 1_000_000;
        clock.measure_ns.store(start, Ordering::Release);
        clock.end_ns.store(start + TIME_NS, Ordering::Release);
        clock.start_ns.store(start, Ordering::Release);
        let done = on_reactor_async(reactor, move |reactor| run_job(reactor, device, plan, clock));
        let tally = runtime.block_on(done)?.map_err(|text| Failure::new(Exit::Failed, text))?;
        if let Some(error) = tally.first_error {
            return Err(Failure::new(Exit::Failed, error));
        }
        let bytes = tally.reads.count() * io_blocks as u64 * info.block_size as u64;
        Ok(Phase::new("random reads, 4 KiB, QD 32", bytes, Duration::from_nanos(TIME_NS), tally.reads))
    }

    /// Small random writes with flushes, and a SIGKILL while many are under way.
    fn write_until_killed(
        &self,
        host: &mut Host,
        device: &dyn BlockDevice,
        node: ChildNode,
        phases: &mut Vec<Phase>,
    ) -> Result<Written, Failure> {
        const RUN: Duration = Duration::from_millis(1500);
        let block_size = host.block_size;
        let scratch_first = device.info().blocks - SCRATCH / block_size;
        let scratch_blocks = SCRATCH / block_size;
        let mut memory = Memory::new(2, scratch_first, scratch_blocks);
        let mut rng = Rng::new(3);
        self.say("writing 4 KiB at random; the node gets SIGKILL in the middle");
        let pid = node.pid();
        let killed = Arc::new(AtomicBool::new(false));
        let killer = {
            let killed = killed.clone();
            std::thread::spawn(move || {
                std::thread::sleep(RUN);
                node.kill();
                killed.store(true, Ordering::Release);
            })
        };
        let began = Instant::now();
        let (mut acknowledged, mut flushed, mut elapsed) = (0, 0, RUN);
        // A pause in which the kill cannot be told from a slow answer; it is over when the node is known to be dead.
        const LOOK: Duration = Duration::from_millis(20);
        let mut since_flush = 0;
        loop {
            self.check_interrupt()?;
            let dead = killed.load(Ordering::Acquire);
            while !dead && since_flush < SMALL_PER_FLUSH && host.in_flight() < SMALL_AT_ONCE {
                submit_small(host, &mut memory, || scratch_first + rng.below(scratch_blocks));
                since_flush += 1;
            }
            if host.in_flight() == 0 && !dead {
                host.submit(Command { id: u64::MAX, op: Op::Flush, lba: 0, data: Vec::new() });
            }
            match host.answer_within(LOOK) {
                Some(answer) if answer.op == Op::Flush => {
                    check(&answer)?;
                    flushed = acknowledged;
                    since_flush = 0;
                }
                Some(answer) => {
                    check(&answer)?;
                    memory.acknowledge(answer.id);
                    acknowledged += 1;
                    elapsed = began.elapsed();
                }
                None if dead => break,
                None => {}
            }
        }
        let in_flight_at_kill = host.in_flight();
        let _ = killer.join();
        self.say(&format!("killed node {pid} with {in_flight_at_kill} writes under way"));
        phases.push(Phase::new(
            "random writes, 4 KiB, QD 32",
            acknowledged * block_size,
            elapsed,
            host.take_latencies(),
        ));
        Ok(Written {
            extents: Vec::new(),
            files: 0,
            file_bytes: 0,
            memory,
            scratch_first,
            scratch_blocks,
            small_acknowledged: acknowledged,
            small_flushed: flushed,
            in_flight_at_kill,
        })
    }

    /// Reads everything back and compares.
    fn verify(&self, host: &mut Host, written: &Written, phases: &mut Vec<Phase>) -> Result<Report, Failure> {
        let total = written.extents.iter().map(|extent| extent.bytes).sum::<u64>() + SCRATCH;
        let bar = self.bar(total, "verifying");
        let began = Instant::now();
        let mut unpacker = Unpacker::default();
        let mut extents_checked = 0;
        self.read_in_order(host, 0, written.extents.len() as u64, |index, data| {
            let extent = &written.extents[index as usize];
            assert!(extent.flushed, "the archive ends with a flush");
            if base::crc32c(data) != extent.crc {
                return Err(wrong(format!(
                    "extent {index} ({} at {}) differs",
                    ByteSize(SEGMENT),
                    ByteSize(index * SEGMENT)
                )));
            }
            extents_checked += 1;
            bar.inc(SEGMENT);
            unpacker.take(data).map_err(wrong)
        })?;
        if !unpacker.ended || (unpacker.files, unpacker.bytes) != (written.files, written.file_bytes) {
            return Err(wrong(format!("{} of {} files came back", unpacker.files, written.files)));
        }
        let (first, blocks) = (written.scratch_first, written.scratch_blocks);
        let blocks_checked = self.check_blocks(host, &written.memory, first, blocks, &bar)?;
        bar.finish_and_clear();
        phases.push(Phase::new("verify, 256 KiB reads", total, began.elapsed(), host.take_latencies()));
        Ok(Report {
            phases: Vec::new(),
            node_ready: Duration::ZERO,
            first_io: Duration::ZERO,
            replayed: 0,
            replay: Duration::ZERO,
            files: written.files,
            file_bytes: written.file_bytes,
            extents_checked,
            blocks_checked,
            small_acknowledged: written.small_acknowledged,
            small_flushed: written.small_flushed,
            in_flight_at_kill: written.in_flight_at_kill as u64,
            from: self.from.display().to_string(),
            shaped: None,
        })
    }

    /// Reads blocks and compares them with what is remembered of them. How many there was something to compare with.
    fn check_blocks(
        &self,
        host: &mut Host,
        memory: &Memory,
        first: u64,
        blocks: u64,
        bar: &ProgressBar,
    ) -> Result<u64, Failure> {
        let block_size = host.block_size;
        let (from, bytes) = (first * block_size, blocks * block_size);
        assert!(from.is_multiple_of(SEGMENT) && bytes.is_multiple_of(SEGMENT));
        let mut checked = 0;
        self.read_in_order(host, from / SEGMENT, bytes / SEGMENT, |index, data| {
            bar.inc(SEGMENT);
            for (at, bytes) in data.chunks(block_size as usize).enumerate() {
                let block = index * SEGMENT / block_size + at as u64;
                if let Some(outcome) = memory.check(block, bytes, memory.oldest(block)) {
                    outcome.map_err(|found| {
                        wrong(format!(
                            "block {block}: found {}, expected write {} to {}",
                            found.found, found.oldest, found.newest
                        ))
                    })?;
                    checked += 1;
                }
            }
            Ok(())
        })?;
        Ok(checked)
    }

    /// Reads `count` segments from number `first` on, several at once, and gives them in order.
    fn read_in_order(
        &self,
        host: &mut Host,
        first: u64,
        count: u64,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut waiting = std::collections::BTreeMap::new();
        let (mut next_submit, mut next_give, end) = (first, first, first + count);
        while next_give < end {
            self.check_interrupt()?;
            while next_submit < end && next_submit < next_give + SEGMENTS_AT_ONCE as u64 {
                let lba = next_submit * SEGMENT / host.block_size;
                host.submit(Command { id: next_submit, op: Op::Read, lba, data: vec![0; SEGMENT as usize] });
                next_submit += 1;
            }
            let answer = host.answer()?;
            check(&answer)?;
            waiting.insert(answer.id, answer.data);
            while let Some(data) = waiting.remove(&next_give) {
                each(next_give, &data)?;
                next_give += 1;
            }
        }
        Ok(())
    }
}

fn wrong(text: String) -> Failure {
    Failure::new(Exit::Failed, format!("VERIFICATION FAILED: {text}"))
}

/// One self-describing block, at a place where no write is under way.
fn submit_small(host: &mut Host, memory: &mut Memory, mut choose: impl FnMut() -> u64) {
    let block = loop {
        let block = choose();
        if memory.may_write(block, 1) {
            break block;
        }
    };
    let mut data = vec![0; host.block_size as usize];
    memory.issue(block, &mut data);
    host.submit(Command { id: block, op: Op::Write, lba: block, data });
}
