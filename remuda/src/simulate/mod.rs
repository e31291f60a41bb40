//! `remuda pool simulate`: what a pool would do with a block trace, before there is one: write amplification, what its log
//! absorbs, what a read cache or a warm pool's flash cache would catch, and what the same drive would program without a pool.
//!
//! Policies alone: the pool is planned as `pool create` plans it, its log, bands, collector and flash cache follow the engine's
//! rules, the drive is the model of `bdev::model_ssd`. Of time there is what the trace says, for what waits for it: a write budget, and
//! pauses of writers. The trace is read as a stream, and played again until what is asked about has
//! reached a steady state; the last pass is measured.

mod args;
mod bands;
mod cache;
mod capacity;
mod clock;
mod drive;
mod flash;
mod in_place;
mod log;
mod log_bytes;
mod plan;
mod report;
mod space;
mod trace;

use crate::cli::exit::{Exit, Failure};
use crate::cli::{Context, output};
pub use args::SimulateArgs;
use args::{PoolShape, usage};
use bands::{BandModel, BandShape, NoRoom};
use base::ByteSize;
use cache::Cache;
use capacity::{Capacity, CapacityCounts};
use clock::{Clock, Survey, Timing};
use drive::{Drive, DriveKind, DriveShape};
use engine::ShardTuning;
use flash::{CachePass, FlashCaches};
use in_place::InPlace;
use log::{LogModel, LogShape};
use log_bytes::LogBytes;
use plan::{Plan, plan};
use space::{BLOCK, BLOCKS_MAX, Full, GROUP_BLOCKS, Space, Touch};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trace::{Access, Kind, Trace};

/// Other sizes of the log for which absorption is told, as parts of the one that was asked for.
const LOG_PARTS: [(u64, u64); 4] = [(1, 4), (1, 2), (2, 1), (4, 1)];
/// Sizes of a read cache, as parts of the capacity.
const CACHE_PARTS: [u64; 4] = [64, 32, 16, 8];
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

/// What the trace itself has: of one pass, everything, not a sample.
#[derive(Clone, Copy, Default)]
pub struct TraceCounts {
    pub writes: u64,
    pub write_bytes: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub trims: u64,
    pub trim_bytes: u64,
    /// What the writes make of the log device.
    log: LogBytes,
}

/// What has been counted so far of what is simulated.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// Bytes that the trace has written.
    user_bytes: u64,
    /// Blocks of reads, and those that the log answered.
    read_blocks: u64,
    read_from_log: u64,
    capacity: CapacityCounts,
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

/// Everything that is simulated.
pub struct Simulation {
    pub plan: Plan,
    pub space: Space,
    pub log: LogModel,
    pub capacity: Capacity,
    /// The drive without a pool; none where the capacity device is disks.
    pub alone: Option<Drive>,
    pub logs: Vec<LogAside>,
    /// Read caches in front of the pool.
    pub caches: Vec<CacheAside>,
    /// That of a warm pool, and others beside it.
    pub flash: Option<FlashCaches>,
    pub clock: Clock,
    pub trace: TraceCounts,
    counts: Counts,
    log_before: (u64, u64),
    /// When somebody wrote last, where the trace says that.
    written_ns: Option<u64>,
    /// Times in this pass that nobody had written for so long that everything was destaged.
    rests: u64,
    /// Bytes that filling has programmed.
    filled_bytes: u64,
    due: Vec<(u32, u32)>,
    /// What the other logs destage, of which only how much they absorb is asked.
    due_aside: Vec<(u32, u32)>,
    touched: Vec<Touch>,
    passes: u32,
    work_left: u64,
    interrupt: Arc<AtomicBool>,
}

/// What a run gives.
pub struct Outcome {
    pub simulation: Simulation,
    /// Reads are told of the first pass: played again, a trace finds in a cache what only the repetition makes it read twice.
    pub first: Counts,
    pub first_caches: Vec<CachePass>,
    /// Of the last pass.
    pub measured: Counts,
    pub caches: Vec<CachePass>,
    pub format: &'static str,
    pub passes: u32,
    /// What has to be written over had been before the last pass began, and a flash cache does the same again and again.
    pub is_steady: bool,
    /// In the last pass nothing that was written left the log.
    pub is_absorbed: bool,
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
    let outcome = simulate(args, BOUNDS)?;
    if context.json {
        output::print_json(&report::to_json(args, &outcome));
    } else {
        output::print_line(&report::to_text(args, &outcome));
    }
    Ok(())
}

fn failed(error: trace::TraceError) -> Failure {
    Failure::new(Exit::Failed, error.to_string())
}

fn open(args: &SimulateArgs) -> Result<Trace, Failure> {
    Trace::open(&args.trace, args.format, args.event, args.device.as_deref()).map_err(failed)
}

/// When accesses were. Of a warm pool that has to be known before the first of them, which is taken out of `trace` for that where it
/// can be read only once.
fn timing(args: &SimulateArgs, trace: &mut Trace, can_repeat: bool) -> Result<(Timing, Option<Access>), Failure> {
    if args.shape != PoolShape::Warm {
        return Ok((Timing::Recorded, None));
    }
    let is_twice = |found: bool| match args.duration {
        Some(_) if found => {
            Err(usage(format!("--duration: {} says itself when its accesses were; leave it out", args.trace_name())))
        }
        _ => Ok(()),
    };
    if can_repeat {
        let Survey { accesses, duration_ns } = Survey::of(&mut open(args)?).map_err(failed)?;
        is_twice(duration_ns > 0)?;
        return Ok(match args.duration {
            _ if duration_ns > 0 => (Timing::Recorded, None),
            Some(duration_ns) => (Timing::Spread { accesses, duration_ns }, None),
            None => (Timing::Unknown, None),
        });
    }
    let first = trace.next().map_err(failed)?;
    is_twice(trace.has_times())?;
    if args.duration.is_some() {
        return Err(usage(
            "--duration spreads accesses evenly, and how many a pipe has is not known: save the trace in a file",
        ));
    }
    Ok((if trace.has_times() { Timing::Recorded } else { Timing::Unknown }, first))
}

fn simulate(args: &SimulateArgs, bounds: Bounds) -> Result<Outcome, Failure> {
    args.check()?;
    let interrupt = Arc::new(AtomicBool::new(false));
    let _ = signal_hook::flag::register_conditional_default(signal_hook::consts::SIGINT, interrupt.clone());
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, interrupt.clone());
    // A pipe cannot be played again.
    let can_repeat = trace::can_repeat(&args.trace);
    let passes_max = if can_repeat { args.passes } else { 1 };
    let mut first = open(args)?;
    let format = first.format_name();
    let (timing, mut pending) = timing(args, &mut first, can_repeat)?;
    let mut first = Some(first);
    let mut simulation = Simulation::new(args, bounds, timing, interrupt)?;
    simulation.fill(args.filled);
    let mut firsts = None;
    let mut caches_before: Vec<CachePass> = Vec::new();
    for pass in 1.. {
        simulation.begin_pass();
        let before = simulation.counts();
        let mut is_steady = simulation.is_steady();
        // The first one is gone on with: what has been read of a pipe does not come again.
        let mut trace = first.take().map_or_else(|| open(args), Ok)?;
        while let Some(access) =
            pending.take().map_or_else(|| trace.next(), |access| Ok(Some(access))).map_err(failed)?
        {
            if let Err(stop) = simulation.perform(&access, trace.time_ns()) {
                return Err(simulation.failure(&trace, &stop));
            }
        }
        let TraceCounts { writes, reads, trims, write_bytes, .. } = simulation.trace;
        if writes + reads + trims == 0 {
            let text = format!("{}: it has no read, write or trim: record while the load runs", args.trace_name());
            return Err(Failure::new(Exit::Failed, text));
        }
        let measured = simulation.counts().since(&before);
        let caches = simulation.flash.as_ref().map(FlashCaches::pass).unwrap_or_default();
        if let (Some(flash), Some(before), Some(now)) = (&simulation.flash, caches_before.first(), caches.first()) {
            is_steady = flash.is_steady(before, now);
        }
        let (first, first_caches) = firsts.get_or_insert_with(|| (measured, caches.clone())).clone();
        let is_absorbed = measured.user_bytes > 0 && measured.capacity.from_log == 0;
        // What the second pass finds in the log, others find there too.
        let is_over = simulation.flash.is_none() && (write_bytes == 0 || is_absorbed && pass > 1);
        is_steady |= is_over;
        if is_steady || pass == passes_max {
            let passes = pass;
            return Ok(Outcome {
                simulation,
                first,
                first_caches,
                measured,
                caches,
                format,
                passes,
                is_steady,
                is_absorbed,
            });
        }
        caches_before = caches;
    }
    unreachable!("the last pass returns")
}

/// Blocks of which a pool's simulation takes a part: one on disks has no bands and no drive, which take the most memory.
fn blocks_max(args: &SimulateArgs, bounds: &Bounds) -> u64 {
    if args.shape == PoolShape::Warm { 2 * bounds.blocks } else { bounds.blocks }
}

fn make_drive(args: &SimulateArgs, kind: DriveKind, blocks: u64, band_blocks: u32) -> Result<Drive, Failure> {
    let (bytes, band_bytes) = (blocks * BLOCK, u64::from(band_blocks) * BLOCK);
    let (spare_percent, unit_bytes) = (u64::from(args.drive_spare()), args.drive_unit().0);
    let made = Drive::new(DriveShape { kind, bytes, band_bytes, spare_percent, unit_bytes });
    made.map_err(|reason| usage(format!("there can be no such drive: {reason}")))
}

fn make_capacity(args: &SimulateArgs, plan: &Plan, space: &Space) -> Result<Capacity, Failure> {
    let Some(bands) = &plan.bands else {
        let extents = (plan.scaled(plan.volume_bytes) / BLOCK).div_ceil(u64::from(engine::EXTENT_BLOCKS)) as u32;
        let drive_blocks = u64::from(space.blocks()) + in_place::map_blocks(extents);
        let has_drive = plan.drive != DriveKind::Disk;
        let drive = has_drive.then(|| make_drive(args, plan.drive, drive_blocks, 0)).transpose()?;
        let log_blocks = plan.scaled(plan.log_bytes) / BLOCK;
        return Ok(Capacity::InPlace(InPlace::new(space.blocks(), log_blocks, plan.shift, drive)));
    };
    // Of zones, which are written in pages, a part of a page is left.
    let grain = if plan.drive == DriveKind::Zoned { GROUP_BLOCKS } else { 1 };
    let band_blocks = (plan.scaled(bands.band_bytes) / BLOCK) as u32 / grain * grain;
    let shape = BandShape {
        bands: bands.bands,
        band_blocks,
        unit_blocks: (bands.unit_blocks >> plan.shift).max(1),
        shards: bands.shards,
        blocks: space.blocks(),
    };
    let drive = make_drive(args, plan.drive, u64::from(shape.bands) * u64::from(band_blocks), band_blocks)?;
    Ok(Capacity::Bands(BandModel::new(shape, drive)))
}

impl Simulation {
    fn new(
        args: &SimulateArgs,
        bounds: Bounds,
        timing: Timing,
        interrupt: Arc<AtomicBool>,
    ) -> Result<Simulation, Failure> {
        let plan = plan(args, blocks_max(args, &bounds))?;
        let space = Space::new(plan.volume_bytes / BLOCK, plan.shift);
        let capacity = make_capacity(args, &plan, &space)?;
        // Nobody writes to zones as a trace does: what is without a pool is a conventional drive.
        let alone_blocks = match &capacity {
            Capacity::Bands(bands) => bands.blocks(),
            Capacity::InPlace(_) => u64::from(space.blocks()),
        };
        let has_alone = plan.drive != DriveKind::Disk;
        let alone = has_alone.then(|| make_drive(args, DriveKind::Conventional, alone_blocks, 0)).transpose()?;
        let log = |bytes: u64| {
            let (log_blocks, blocks) = (plan.scaled(bytes) / BLOCK, space.blocks());
            let (placement, reinsertion) = (plan.placement(), args.reinsertion());
            LogModel::new(LogShape { placement, log_blocks, blocks, shift: plan.shift, reinsertion })
        };
        let logs = LOG_PARTS.map(|(part, whole)| plan.log_bytes * part / whole);
        let flash = match plan.shape {
            PoolShape::Warm => Some(FlashCaches::new(args, &plan, timing == Timing::Unknown)?),
            _ => None,
        };
        let caches: Vec<u64> = match args.cache.is_empty() {
            _ if flash.is_some() => Vec::new(),
            true => CACHE_PARTS.map(|part| args.capacity.0 / part).to_vec(),
            false => args.cache.iter().map(|size| size.0).collect(),
        };
        Ok(Simulation {
            log: log(plan.log_bytes),
            capacity,
            alone,
            logs: logs.map(|bytes| LogAside { bytes, model: log(bytes), before: (0, 0) }).into(),
            caches: caches
                .into_iter()
                .map(|bytes| CacheAside { bytes, model: Cache::new(plan.scaled(bytes) / BLOCK) })
                .collect(),
            flash,
            clock: Clock::new(timing),
            trace: TraceCounts::default(),
            counts: Counts::default(),
            log_before: (0, 0),
            written_ns: None,
            rests: 0,
            filled_bytes: 0,
            due: Vec::new(),
            due_aside: Vec::new(),
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
            self.capacity.fill(first..first + GROUP_BLOCKS);
            if let Some(alone) = &mut self.alone {
                alone.write(u64::from(first) * BLOCK, u64::from(GROUP_BLOCKS) * BLOCK);
            }
        }
        self.filled_bytes = self.capacity.drive_bytes().1;
    }

    fn begin_pass(&mut self) {
        self.passes += 1;
        self.trace = TraceCounts::default();
        self.clock.begin_pass();
        self.rests = 0;
        self.log_before = (self.log.written, self.log.absorbed);
        self.logs.iter_mut().for_each(|log| log.before = (log.model.written, log.model.absorbed));
        self.flash.iter_mut().for_each(FlashCaches::begin_pass);
    }

    fn counts(&self) -> Counts {
        Counts {
            capacity: self.capacity.counts(),
            reinserted: self.log.reinserted,
            drive: self.capacity.drive_bytes(),
            alone: self.alone.as_ref().map_or((0, 0), Drive::bytes),
            ..self.counts
        }
    }

    /// Whether what the capacity device has was written over once.
    fn is_steady(&self) -> bool {
        match &self.capacity {
            Capacity::Bands(bands) => bands.is_steady(),
            Capacity::InPlace(place) => self.log.is_full() && place.is_steady(self.filled_bytes),
        }
    }

    /// Plays an access; `recorded_ns` is when it was, if the trace says that.
    fn perform(&mut self, access: &Access, recorded_ns: Option<u64>) -> Result<(), Stop> {
        self.clock.tick(recorded_ns);
        if access.kind == Kind::Write {
            self.rest(recorded_ns)?;
        }
        let (count, bytes) = match access.kind {
            Kind::Write => (&mut self.trace.writes, &mut self.trace.write_bytes),
            Kind::Read => (&mut self.trace.reads, &mut self.trace.read_bytes),
            Kind::Trim => (&mut self.trace.trims, &mut self.trace.trim_bytes),
        };
        *count += 1;
        *bytes += access.bytes;
        if access.kind == Kind::Write {
            self.trace.log.add(LogBytes::of(access.offset, access.bytes));
        }
        if access.bytes > self.plan.volume_bytes {
            return Err(Stop::Full);
        }
        // Of repeated reads nothing is counted, unless a flash cache learns from them.
        if access.kind == Kind::Read && self.passes > 1 && self.flash.is_none() {
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

    /// Destages everything where nobody has written for so long that the engine would have.
    fn rest(&mut self, recorded_ns: Option<u64>) -> Result<(), Stop> {
        let Some(_) = recorded_ns else { return Ok(()) };
        let now_ns = self.clock.now_ns();
        let before = self.written_ns.replace(now_ns);
        if before.is_none_or(|before| now_ns - before <= ShardTuning::default().idle_ns) {
            return Ok(());
        }
        self.rests += 1;
        self.log.settle(&mut self.due);
        self.logs.iter_mut().for_each(|aside| aside.model.settle(&mut self.due_aside));
        self.due_aside.clear();
        self.take_work(self.due.len() as u64)?;
        self.destage()
    }

    fn destage(&mut self) -> Result<(), Stop> {
        let ended = self.capacity.destage(&mut self.due, &self.log).map_err(|NoRoom| Stop::NoRoom);
        if let Some(flash) = &mut self.flash {
            flash.write(self.due.iter().map(|(block, _)| *block));
        }
        self.due.clear();
        ended
    }

    fn write(&mut self, touched: &[Touch]) -> Result<(), Stop> {
        for touch in touched {
            self.counts.user_bytes += u64::from(touch.bytes);
            let victim = self.capacity.last_victim();
            self.log.write(*touch, victim, &mut self.due);
            for aside in &mut self.logs {
                aside.model.write(*touch, victim, &mut self.due_aside);
                self.due_aside.clear();
            }
            self.capacity.appended();
            if !self.due.is_empty() {
                self.destage()?;
            }
        }
        // To a drive alone, what is in a unit goes as one write; whether it covers the unit is all that counts.
        let Some(alone) = &mut self.alone else { return Ok(()) };
        let unit_blocks = (alone.unit_bytes() / BLOCK) as u32;
        for part in touched.chunk_by(|one, next| one.block / unit_blocks == next.block / unit_blocks) {
            let bytes = part.iter().map(|touch| u64::from(touch.bytes)).sum();
            alone.write(u64::from(part[0].block) * BLOCK, bytes);
        }
        Ok(())
    }

    fn read(&mut self, touched: &[Touch]) {
        let is_logged = |touch: &Touch| self.log.has(touch.block);
        // What the log has and what it has not are read apart, and so are extents.
        for run in touched.chunk_by(|one, next| one.extent == next.extent && is_logged(one) == is_logged(next)) {
            self.counts.read_blocks += run.len() as u64;
            if is_logged(&run[0]) {
                self.counts.read_from_log += run.len() as u64;
                continue;
            }
            for cache in &mut self.caches {
                run.iter().for_each(|touch| cache.model.read(touch.block));
            }
            if let Some(flash) = &mut self.flash {
                flash.read(run.iter().map(|touch| touch.block), self.clock.now_ns());
            }
        }
    }

    fn trim(&mut self, touched: &[Touch]) {
        for touch in touched.iter().filter(|touch| u64::from(touch.bytes) == BLOCK) {
            self.log.trim(touch.block);
            self.logs.iter_mut().for_each(|aside| aside.model.trim(touch.block));
            self.capacity.trim(touch.block);
        }
        let Some(alone) = &mut self.alone else { return };
        let units = touched.chunk_by(|one, next| one.block / GROUP_BLOCKS == next.block / GROUP_BLOCKS);
        for unit in units.filter(|unit| unit.iter().all(|touch| u64::from(touch.bytes) == BLOCK)) {
            alone.trim(u64::from(unit[0].block) * BLOCK, unit.len() as u64 * BLOCK);
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
            read_blocks: self.read_blocks - before.read_blocks,
            read_from_log: self.read_from_log - before.read_from_log,
            capacity: self.capacity.since(&before.capacity),
            reinserted: self.reinserted - before.reinserted,
            drive: pair(self.drive, before.drive),
            alone: pair(self.alone, before.alone),
        }
    }
}

#[cfg(test)]
mod tests;
