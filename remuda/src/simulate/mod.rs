//! `remuda pool simulate`: what a shaped pool would do with a block trace, before there is one: write amplification, what its log
//! absorbs, what a read cache would catch, and what the same drive would program without a pool.
//!
//! Policies alone, without time: the pool is planned as `pool create` plans it, its log, bands and collector follow the engine's
//! rules, the drive is the model of `bdev::model_ssd`. The trace is read as a stream, and played again until the collector has
//! reached a steady state; the last pass is measured.

mod bands;
mod cache;
mod drive;
mod log;
mod report;
mod space;
mod trace;

use crate::cli::exit::{Exit, Failure};
use crate::cli::{Context, output};
use bands::{BandCounts, BandModel, BandShape, NoRoom};
use base::ByteSize;
use cache::Cache;
use clap::Args;
use drive::Drive;
use engine::{CreateOptions, Shape, layout};
use log::{LogModel, LogShape};
use space::{BLOCK, BLOCKS_MAX, Full, GROUP_BLOCKS, Space, Touch};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trace::{Access, Event, Format, Kind, Trace};
use uuid::Uuid;

/// Other sizes of the log for which absorption is told, as parts of the one that was asked for.
const LOG_PARTS: [(u64, u64); 4] = [(1, 4), (1, 2), (2, 1), (4, 1)];
/// Sizes of a read cache, as parts of the capacity.
const CACHE_PARTS: [u64; 4] = [64, 32, 16, 8];
const CACHES_MAX: usize = 16;
/// Longest part of an access that is simulated before somebody who wants an end is looked for.
const PIECE_BYTES: u64 = 64 << 20;

/// How much is simulated at most.
#[derive(Clone, Copy)]
struct Bounds {
    /// Blocks of the pool's volumes.
    blocks: u64,
    /// Work of all passes, see [`Simulation::take_work`].
    work: u64,
}

/// Work that takes about an hour.
const BOUNDS: Bounds = Bounds { blocks: BLOCKS_MAX, work: 1 << 34 };
/// Groups of which none is simulated that are passed over in the time that a simulated block takes.
const GROUPS_PER_WORK: u64 = 16;
/// The least work of an access.
const ACCESS_WORK: u64 = 1;

#[derive(Args)]
pub struct SimulateArgs {
    /// The trace: a fio iolog (write_iolog=FILE), what blkparse prints, or a binary blktrace (merged by blkparse -d)
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// What the trace is written in
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    format: Format,
    /// Capacity device
    #[arg(long, value_name = "SIZE")]
    capacity: ByteSize,
    /// Log device; it also holds the index, 0.4 % of the capacity
    #[arg(long, value_name = "SIZE")]
    log: ByteSize,
    /// Percent of the capacity that volumes do not get
    #[arg(long, value_name = "PERCENT", default_value_t = layout::OVERPROVISION_DEFAULT)]
    overprovision: u8,
    /// Writes to the capacity device are multiples of this [default: 64KiB]
    #[arg(long, value_name = "SIZE")]
    write_unit: Option<ByteSize>,
    /// Bytes that are written and collected as one [default: by size]
    #[arg(long, value_name = "SIZE")]
    band: Option<ByteSize>,
    /// Percent of the volumes' space that holds data before the trace begins
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    filled: u8,
    /// As `reinsertion` of a pool: bytes, of each hundred that are written, that may go to the log once more; a pool of which nothing
    /// else was asked does it only while writers wait for its drive, which a trace does not tell [default: 0]
    #[arg(long, value_name = "PERCENT", default_value_t = 0, hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(0..=i64::from(engine::REINSERTION_PERCENT_MAX)))]
    reinsertion: u32,
    /// Percent of flash that the drive has beyond its capacity
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    drive_spare: u8,
    /// Indirection unit of the drive: 4KiB to 64KiB
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    drive_unit: ByteSize,
    /// Sizes of a read cache to try [default: parts of the capacity]
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    cache: Vec<ByteSize>,
    /// Times that the trace is played at most, of which the last is measured
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    passes: u32,
    /// Which events of a blktrace count
    #[arg(long, value_enum, default_value_t = Event::Queued)]
    event: Event,
    /// Device in a blktrace, such as 8,0, where there are several
    #[arg(long, value_name = "MAJOR,MINOR")]
    device: Option<String>,
}

/// What the trace itself has: of one pass, everything, not a sample.
#[derive(Clone, Copy, Default)]
pub struct TraceCounts {
    pub writes: u64,
    pub write_bytes: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub trims: u64,
    pub trim_bytes: u64,
}

/// What has been counted so far of what is simulated.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// Bytes that the trace has written.
    user_bytes: u64,
    /// Blocks of reads in the first pass, and those that the log answered: played again, a trace would find in a cache what only the
    /// repetition makes it read twice.
    read_blocks: u64,
    read_from_log: u64,
    bands: BandCounts,
    /// Blocks that went to the log once more.
    reinserted: u64,
    /// Bytes given to the drive and programmed: of the pool's, and of one without a pool.
    drive: (u64, u64),
    alone: (u64, u64),
}

/// A log of another size.
pub struct LogAside {
    pub bytes: u64,
    model: LogModel,
    before: (u64, u64),
}

/// A read cache.
pub struct CacheAside {
    pub bytes: u64,
    model: Cache,
}

/// The plan of the pool.
pub struct Plan {
    pub volume_bytes: u64,
    pub log_bytes: u64,
    pub bands: u32,
    pub band_bytes: u64,
    shards: u32,
    unit_blocks: u32,
    /// One block in `2^shift` is simulated.
    pub shift: u32,
}

/// Everything that is simulated.
pub struct Simulation {
    pub plan: Plan,
    pub space: Space,
    pub log: LogModel,
    pub bands: BandModel,
    pub alone: Drive,
    pub logs: Vec<LogAside>,
    pub caches: Vec<CacheAside>,
    pub trace: TraceCounts,
    counts: Counts,
    log_before: (u64, u64),
    due: Vec<u32>,
    touched: Vec<Touch>,
    passes: u32,
    work_left: u64,
    interrupt: Arc<AtomicBool>,
}

/// What a run gives.
pub struct Outcome {
    pub simulation: Simulation,
    /// Of the last pass.
    pub measured: Counts,
    pub format: &'static str,
    pub passes: u32,
    /// The bands had been written over before the last pass began.
    pub is_steady: bool,
}

enum Stop {
    Full,
    NoRoom,
    /// It takes more work than is done.
    TooLong,
    /// Somebody wants an end.
    Interrupted,
}

pub fn run(context: &Context, args: &SimulateArgs) -> Result<(), Failure> {
    if ![4, 8, 16, 32, 64].contains(&(args.drive_unit.0 >> 10)) || !args.drive_unit.0.is_power_of_two() {
        return Err(usage(format!("--drive-unit {}: expected 4KiB, 8KiB, 16KiB, 32KiB or 64KiB", args.drive_unit)));
    }
    if args.cache.len() > CACHES_MAX {
        return Err(usage(format!("--cache: at most {CACHES_MAX} sizes")));
    }
    let outcome = simulate(args, BOUNDS)?;
    if context.json {
        output::print_json(&report::to_json(args, &outcome));
    } else {
        output::print_line(&report::to_text(args, &outcome));
    }
    Ok(())
}

fn usage(text: String) -> Failure {
    Failure::new(Exit::Usage, text)
}

fn simulate(args: &SimulateArgs, bounds: Bounds) -> Result<Outcome, Failure> {
    let interrupt = Arc::new(AtomicBool::new(false));
    let _ = signal_hook::flag::register_conditional_default(signal_hook::consts::SIGINT, interrupt.clone());
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, interrupt.clone());
    let failed = |error: trace::TraceError| Failure::new(Exit::Failed, error.to_string());
    let open = || Trace::open(&args.trace, args.format, args.event, args.device.as_deref()).map_err(failed);
    // A pipe cannot be played again.
    let can_repeat = std::fs::metadata(&args.trace).is_ok_and(|found| found.is_file());
    let passes_max = if can_repeat { args.passes } else { 1 };
    let first = open()?;
    let format = first.format_name();
    let mut first = Some(first);
    let mut simulation = Simulation::new(args, bounds, interrupt)?;
    simulation.fill(args.filled);
    for pass in 1.. {
        simulation.begin_pass();
        let before = simulation.counts();
        let is_steady = simulation.is_steady();
        // The first one is gone on with: what has been read of a pipe does not come again.
        let mut trace = first.take().map_or_else(open, Ok)?;
        while let Some(access) = trace.next().map_err(failed)? {
            if let Err(stop) = simulation.perform(&access) {
                return Err(simulation.failure(&trace, &stop));
            }
        }
        let TraceCounts { writes, reads, trims, .. } = simulation.trace;
        if writes + reads + trims == 0 {
            let text = format!("{}: it has no read, write or trim: record while the load runs", args.trace.display());
            return Err(Failure::new(Exit::Failed, text));
        }
        let measured = simulation.counts().since(&before);
        let is_idle = simulation.trace.write_bytes == 0;
        if is_steady || is_idle || pass == passes_max {
            return Ok(Outcome { simulation, measured, format, passes: pass, is_steady });
        }
    }
    unreachable!("the last pass returns")
}

fn plan(args: &SimulateArgs, blocks_max: u64) -> Result<Plan, Failure> {
    let blocks = |size: ByteSize| u32::try_from(size.0 / BLOCK).unwrap_or(u32::MAX);
    for (name, size) in [("--band", args.band), ("--write-unit", args.write_unit)] {
        if size.is_some_and(|size| size.0 == 0 || !size.0.is_multiple_of(BLOCK)) {
            return Err(usage(format!("{name}: expected a multiple of 4KiB")));
        }
    }
    let options = CreateOptions {
        name: "simulated".to_string(),
        shape: Shape::Shaped,
        overprovision: Some(args.overprovision),
        band_blocks: args.band.map(blocks),
        unit_blocks: args.write_unit.map(blocks),
        ..CreateOptions::default()
    };
    let nil = Uuid::nil();
    let identities = layout::Identities { pool: nil, log: nil, capacity: nil };
    let planned = layout::plan(args.log.0 / BLOCK, args.capacity.0 / BLOCK, &options, identities, 0);
    let (_, planned) = planned.map_err(|error| usage(format!("there can be no such pool: {error}")))?;
    let shards = u32::from(planned.shards);
    let extents: u64 = planned.regions.iter().map(|region| u64::from(region.extents)).sum();
    let volume_blocks = extents * u64::from(engine::EXTENT_BLOCKS);
    let band_blocks = planned.bands.band_blocks;
    let bands = u64::from(planned.bands.bands) * u64::from(shards);
    // Some write units at least stay of a band.
    let shift_max = (band_blocks / (2 * GROUP_BLOCKS)).max(1).ilog2();
    let shift = (0..shift_max).find(|shift| volume_blocks >> shift <= blocks_max).unwrap_or(shift_max);
    if volume_blocks >> shift > 4 * blocks_max || bands > 1 << 20 {
        return Err(usage(format!("{bands} bands are too many to be simulated: use a larger --band")));
    }
    Ok(Plan {
        volume_bytes: volume_blocks * BLOCK,
        log_bytes: u64::from(planned.segments) * u64::from(planned.segment_blocks) * u64::from(shards) * BLOCK,
        bands: bands as u32,
        band_bytes: u64::from(band_blocks) * BLOCK,
        shards,
        unit_blocks: planned.bands.unit_blocks,
        shift,
    })
}

impl Simulation {
    fn new(args: &SimulateArgs, bounds: Bounds, interrupt: Arc<AtomicBool>) -> Result<Simulation, Failure> {
        let plan = plan(args, bounds.blocks)?;
        let space = Space::new(plan.volume_bytes / BLOCK, plan.shift);
        let scaled = |bytes: u64| bytes >> plan.shift;
        let shape = BandShape {
            bands: plan.bands,
            band_blocks: (scaled(plan.band_bytes) / BLOCK) as u32,
            unit_blocks: (plan.unit_blocks >> plan.shift).max(1),
            shards: plan.shards,
            blocks: space.blocks(),
        };
        let bytes = u64::from(shape.bands) * u64::from(shape.band_blocks) * BLOCK;
        let drive = || {
            let made = Drive::new(bytes, u64::from(args.drive_spare), args.drive_unit.0);
            made.map_err(|reason| usage(format!("there can be no such drive: {reason}")))
        };
        let log = |bytes: u64| {
            let (log_blocks, blocks) = (scaled(bytes) / BLOCK, space.blocks());
            LogModel::new(LogShape { log_blocks, blocks, shift: plan.shift, reinsertion: args.reinsertion })
        };
        let logs = LOG_PARTS.map(|(part, whole)| plan.log_bytes * part / whole);
        let caches: Vec<u64> = match args.cache.is_empty() {
            true => CACHE_PARTS.map(|part| args.capacity.0 / part).to_vec(),
            false => args.cache.iter().map(|size| size.0).collect(),
        };
        Ok(Simulation {
            log: log(plan.log_bytes),
            bands: BandModel::new(shape, drive()?),
            alone: drive()?,
            logs: logs.map(|bytes| LogAside { bytes, model: log(bytes), before: (0, 0) }).into(),
            caches: caches
                .into_iter()
                .map(|bytes| CacheAside { bytes, model: Cache::new(scaled(bytes) / BLOCK) })
                .collect(),
            trace: TraceCounts::default(),
            counts: Counts::default(),
            log_before: (0, 0),
            due: Vec::new(),
            touched: Vec::new(),
            passes: 0,
            work_left: bounds.work,
            interrupt,
            space,
            plan,
        })
    }

    /// What is there before the trace, written in order.
    fn fill(&mut self, percent: u8) {
        let groups = u64::from(self.space.blocks() / GROUP_BLOCKS) * u64::from(percent) / 100;
        for group in 0..groups as u32 {
            let first = group * GROUP_BLOCKS;
            for block in first..first + GROUP_BLOCKS {
                self.bands
                    .destage(block, &|_| false)
                    .expect("what volumes have fits, and in order nothing is collected");
            }
            self.alone.write(u64::from(first) * BLOCK, u64::from(GROUP_BLOCKS) * BLOCK);
        }
    }

    fn begin_pass(&mut self) {
        self.passes += 1;
        self.trace = TraceCounts::default();
        self.log_before = (self.log.written, self.log.absorbed);
        self.logs.iter_mut().for_each(|log| log.before = (log.model.written, log.model.absorbed));
    }

    fn counts(&self) -> Counts {
        let bands = self.bands.counts;
        Counts {
            bands,
            reinserted: self.log.reinserted,
            drive: self.bands.drive.bytes(),
            alone: self.alone.bytes(),
            ..self.counts
        }
    }

    /// Whether all bands have been written once more than filling them took.
    fn is_steady(&self) -> bool {
        let counts = self.bands.counts;
        let bands = u64::from(self.plan.bands) * (self.plan.band_bytes >> self.plan.shift) / BLOCK;
        counts.user + counts.collected >= 2 * bands
    }

    fn perform(&mut self, access: &Access) -> Result<(), Stop> {
        let (count, bytes) = match access.kind {
            Kind::Write => (&mut self.trace.writes, &mut self.trace.write_bytes),
            Kind::Read => (&mut self.trace.reads, &mut self.trace.read_bytes),
            Kind::Trim => (&mut self.trace.trims, &mut self.trace.trim_bytes),
        };
        *count += 1;
        *bytes += access.bytes;
        if access.bytes > self.plan.volume_bytes {
            return Err(Stop::Full);
        }
        // Of repeated reads nothing is counted.
        if access.kind == Kind::Read && self.passes > 1 {
            return self.take_work(ACCESS_WORK);
        }
        let mut at = 0;
        loop {
            let offset = access.offset + at;
            let bytes = (PIECE_BYTES - offset % PIECE_BYTES).min(access.bytes - at);
            let piece = Access { offset, bytes, ..*access };
            self.perform_piece(&piece)?;
            at += piece.bytes;
            if at == access.bytes {
                return Ok(());
            }
        }
    }

    /// Pays for what is about to be done: an access of a few bytes and one of many are not the same.
    fn take_work(&mut self, work: u64) -> Result<(), Stop> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(Stop::Interrupted);
        }
        self.work_left = self.work_left.checked_sub(work).ok_or(Stop::TooLong)?;
        Ok(())
    }

    fn perform_piece(&mut self, access: &Access) -> Result<(), Stop> {
        self.take_work(ACCESS_WORK + access.bytes / (BLOCK * u64::from(GROUP_BLOCKS)) / GROUPS_PER_WORK)?;
        let mut touched = std::mem::take(&mut self.touched);
        touched.clear();
        self.space.touches(access, |touch| touched.push(touch)).map_err(|Full| Stop::Full)?;
        self.take_work(touched.len() as u64)?;
        let mut ended = Ok(());
        match access.kind {
            Kind::Write => ended = self.write(&touched),
            Kind::Read => self.read(&touched),
            Kind::Trim => self.trim(&touched),
        }
        self.touched = touched;
        ended
    }

    fn write(&mut self, touched: &[Touch]) -> Result<(), Stop> {
        for touch in touched {
            self.counts.user_bytes += u64::from(touch.bytes);
            let victim = self.bands.last_victim();
            self.log.write(*touch, victim, &mut self.due);
            for aside in &mut self.logs {
                let before = self.due.len();
                aside.model.write(*touch, victim, &mut self.due);
                // Only how much they absorb is asked.
                self.due.truncate(before);
            }
            for block in self.due.drain(..) {
                self.bands.destage(block, &|block| self.log.has(block)).map_err(|NoRoom| Stop::NoRoom)?;
            }
        }
        // To a drive alone, what is in a unit goes as one write; whether it covers the unit is all that counts.
        let unit_blocks = (self.alone.unit_bytes() / BLOCK) as u32;
        for part in touched.chunk_by(|one, next| one.block / unit_blocks == next.block / unit_blocks) {
            let bytes = part.iter().map(|touch| u64::from(touch.bytes)).sum();
            self.alone.write(u64::from(part[0].block) * BLOCK, bytes);
        }
        Ok(())
    }

    fn read(&mut self, touched: &[Touch]) {
        for touch in touched {
            self.counts.read_blocks += 1;
            if self.log.has(touch.block) {
                self.counts.read_from_log += 1;
            } else {
                self.caches.iter_mut().for_each(|cache| cache.model.read(touch.block));
            }
        }
    }

    fn trim(&mut self, touched: &[Touch]) {
        for touch in touched.iter().filter(|touch| u64::from(touch.bytes) == BLOCK) {
            self.log.trim(touch.block);
            self.logs.iter_mut().for_each(|aside| aside.model.trim(touch.block));
            self.bands.trim(touch.block);
        }
        let units = touched.chunk_by(|one, next| one.block / GROUP_BLOCKS == next.block / GROUP_BLOCKS);
        for unit in units.filter(|unit| unit.iter().all(|touch| u64::from(touch.bytes) == BLOCK)) {
            self.alone.trim(u64::from(unit[0].block) * BLOCK, unit.len() as u64 * BLOCK);
        }
    }

    fn failure(&self, trace: &Trace, stop: &Stop) -> Failure {
        if matches!(stop, Stop::Interrupted) {
            return Failure::quiet(Exit::Interrupted);
        }
        let volume = ByteSize(self.plan.volume_bytes);
        let cause = match stop {
            Stop::Full => format!(
                "up to here it touches {} or more, and volumes of this pool have {volume}: give it a larger --capacity",
                ByteSize(self.space.touched_bytes().max(volume.0))
            ),
            Stop::TooLong => {
                let done = self.trace.write_bytes + self.trace.read_bytes + self.trace.trim_bytes;
                format!(
                    "up to here pass {} has come to {}, and to simulate more would take hours: take a shorter part of the trace, or \
                     fewer --passes",
                    self.passes,
                    ByteSize(done)
                )
            }
            Stop::Interrupted => String::new(),
            Stop::NoRoom => "no band is worth collecting: give it a larger --overprovision or --capacity".to_string(),
        };
        Failure::new(Exit::Failed, trace.error_here(cause).to_string())
    }
}

impl Counts {
    fn since(&self, before: &Counts) -> Counts {
        let pair = |now: (u64, u64), then: (u64, u64)| (now.0 - then.0, now.1 - then.1);
        Counts {
            user_bytes: self.user_bytes - before.user_bytes,
            bands: BandCounts {
                user: self.bands.user - before.bands.user,
                collected: self.bands.collected - before.bands.collected,
                headers: self.bands.headers - before.bands.headers,
            },
            reinserted: self.reinserted - before.reinserted,
            drive: pair(self.drive, before.drive),
            alone: pair(self.alone, before.alone),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests;
