//! Counts what goes through a device: per channel, without locks or shared cache lines, merged when read.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::disks::{ReadGauge, Reads};
use crate::io::{Done, Flags, Io, Op, Status};
use crate::zone_changes::ZoneChanges;
use base::{AtomicHistogram, Histogram};
use reactor::{IoFuture, Reactor};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const OPS: usize = Op::ALL.len();
/// Of operations that end in the turn in which they began, one in so many is timed, give or take half of that: two looks at the
/// clock take longer than such an operation may, and loads have periods of their own.
const TIMED_EVERY: u32 = 32;

/// Operations whose latencies are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyClass {
    /// Reads.
    Read,
    /// Writes, and what else carries data to the device.
    Write,
    /// Flushes.
    Flush,
    /// Everything else.
    Other,
}

impl LatencyClass {
    /// All classes, in the order of [`DeviceStats::latency`].
    pub const ALL: [LatencyClass; 4] =
        [LatencyClass::Read, LatencyClass::Write, LatencyClass::Flush, LatencyClass::Other];

    /// The class of an operation.
    pub fn of(op: Op) -> LatencyClass {
        match op {
            Op::Read => LatencyClass::Read,
            Op::Write | Op::ZoneAppend | Op::CompareAndWrite => LatencyClass::Write,
            Op::Flush => LatencyClass::Flush,
            _ => LatencyClass::Other,
        }
    }

    /// The name used in metrics.
    pub fn name(self) -> &'static str {
        match self {
            LatencyClass::Read => "read",
            LatencyClass::Write => "write",
            LatencyClass::Flush => "flush",
            LatencyClass::Other => "other",
        }
    }
}

/// Counters of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Operations that have ended.
    pub ops: u64,
    /// Blocks of those that succeeded.
    pub blocks: u64,
    /// Operations that failed (a miscompare is an answer, not a failure).
    pub errors: u64,
}

impl OpCounts {
    fn add(&mut self, counts: &[AtomicU64; 3]) {
        self.ops += counts[0].load(Relaxed);
        self.blocks += counts[1].load(Relaxed);
        self.errors += counts[2].load(Relaxed);
    }
}

/// Counters of a device, all channels together.
#[derive(Clone, Default)]
pub struct DeviceStats {
    /// By operation, in the order of [`Op::ALL`].
    pub ops: [OpCounts; OPS],
    /// Latencies in ns by class, in the order of [`LatencyClass::ALL`].
    pub latency: [Histogram; 4],
    /// Operations under way.
    pub depth: u64,
    /// Most operations under way at once on one channel.
    pub depth_max: u64,
    /// Operations whose caller went away before they ended.
    pub abandoned: u64,
}

impl DeviceStats {
    /// The counters of one operation.
    pub fn of(&self, op: Op) -> OpCounts {
        self.ops[op as usize]
    }

    /// The latencies of one class.
    pub fn latency_of(&self, class: LatencyClass) -> &Histogram {
        &self.latency[class as usize]
    }

    fn add(&mut self, channel: &Counters) {
        for (sum, counts) in self.ops.iter_mut().zip(&channel.ops) {
            sum.add(counts);
        }
        for (sum, histogram) in self.latency.iter_mut().zip(&channel.latency) {
            sum.merge_shared(histogram);
        }
        self.depth += channel.depth.load(Relaxed);
        self.depth_max = self.depth_max.max(channel.depth_max.load(Relaxed));
        self.abandoned += channel.abandoned.load(Relaxed);
    }
}

/// The counters of a device without its latencies: what can be read often, of many devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// By operation, in the order of [`Op::ALL`].
    pub ops: [OpCounts; OPS],
    /// Operations under way.
    pub depth: u64,
}

/// Written by one reactor, read by anyone.
#[derive(Default)]
struct Counters {
    ops: [[AtomicU64; 3]; OPS],
    latency: [AtomicHistogram; 4],
    depth: AtomicU64,
    depth_max: AtomicU64,
    abandoned: AtomicU64,
    /// Reads that somebody waits for: how many have begun and how many have ended.
    reads: [AtomicU64; 2],
}

#[inline]
fn bump(cell: &AtomicU64, by: u64) {
    // One writer: no locked instruction needed.
    cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
}

impl Counters {
    #[inline]
    fn begin(&self) {
        bump(&self.depth, 1);
        let depth = self.depth.load(Relaxed);
        if depth > self.depth_max.load(Relaxed) {
            self.depth_max.store(depth, Relaxed);
        }
    }

    #[inline]
    fn end(&self, done: &Done, elapsed_ns: u64) {
        let counts = &self.ops[done.io.op as usize];
        bump(&counts[0], 1);
        match done.status {
            Status::Ok => bump(&counts[1], done.io.nblocks as u64),
            Status::Miscompare => {}
            _ => bump(&counts[2], 1),
        }
        self.latency[LatencyClass::of(done.io.op) as usize].record(elapsed_ns);
    }
}

/// See the module.
pub struct StatsDevice {
    child: Arc<dyn BlockDevice>,
    shared: Arc<Registry>,
}

#[derive(Default)]
struct Registry {
    /// Locked when channels come and go, and to read.
    state: Mutex<RegistryState>,
}

#[derive(Default)]
struct RegistryState {
    open: Vec<Arc<Counters>>,
    closed: DeviceStats,
    /// Of channels that have closed: as many have begun as have ended.
    closed_reads: u64,
}

impl ReadGauge for Registry {
    fn reads(&self) -> Reads {
        let state = self.state.lock().expect("nothing panics while holding the registry");
        let sum = |which: usize| state.open.iter().map(|channel| channel.reads[which].load(Relaxed)).sum::<u64>();
        // Ended first: one that ends in between is under way still.
        let ended = state.closed_reads + sum(1);
        Reads { begun: state.closed_reads + sum(0), ended }
    }
}

impl StatsDevice {
    /// Counts the operations of `child`; name and kind are the child's.
    pub fn new(child: Arc<dyn BlockDevice>) -> StatsDevice {
        StatsDevice { child, shared: Arc::default() }
    }

    /// All counters, merged.
    pub fn stats(&self) -> DeviceStats {
        let state = self.shared.state.lock().expect("nothing panics while holding the registry");
        let mut sum = state.closed.clone();
        state.open.iter().for_each(|counters| sum.add(counters));
        sum
    }

    /// The counters alone: a few loads for each channel.
    pub fn counts(&self) -> DeviceCounts {
        let state = self.shared.state.lock().expect("nothing panics while holding the registry");
        let mut sum = DeviceCounts { ops: state.closed.ops, depth: state.closed.depth };
        for channel in &state.open {
            for (sum, counts) in sum.ops.iter_mut().zip(&channel.ops) {
                sum.add(counts);
            }
            sum.depth += channel.depth.load(Relaxed);
        }
        sum
    }

    /// Adds the latencies of one class to `sum`.
    pub fn add_latencies(&self, class: LatencyClass, sum: &mut Histogram) {
        let state = self.shared.state.lock().expect("nothing panics while holding the registry");
        sum.merge(&state.closed.latency[class as usize]);
        state.open.iter().for_each(|channel| sum.merge_shared(&channel.latency[class as usize]));
    }
}

impl BlockDevice for StatsDevice {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        self.child.kind()
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let child = self.child.open_channel(reactor)?;
        let counters = Arc::<Counters>::default();
        let registry = self.shared.clone();
        registry.state.lock().expect("nothing panics while holding the registry").open.push(counters.clone());
        Ok(Rc::new(StatsChannel {
            child,
            counters,
            registry,
            reactor: reactor.clone(),
            stopwatches: Default::default(),
        }))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.child.children()
    }

    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        self.child.place(lba)
    }

    fn placed_on(&self) -> usize {
        self.child.placed_on()
    }

    fn seeks(&self) -> bool {
        self.child.seeks()
    }

    fn read_gauge(&self) -> Option<Arc<dyn ReadGauge>> {
        Some(self.shared.clone())
    }

    fn conventional(&self) -> Option<Arc<dyn BlockDevice>> {
        self.child.conventional()
    }

    fn zone_changes(&self) -> Option<Arc<ZoneChanges>> {
        self.child.zone_changes()
    }

    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        self.child.resize(reactor, blocks)
    }

    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        self.child.refresh(reactor)
    }
}

struct StatsChannel {
    child: Rc<dyn Channel>,
    counters: Arc<Counters>,
    registry: Arc<Registry>,
    reactor: Rc<Reactor>,
    /// By class, in the order of [`LatencyClass::ALL`].
    stopwatches: [Stopwatch; 4],
}

/// Times operations. A turn's time is enough for those that take longer than a turn. Of those that do not, one in [`TIMED_EVERY`]
/// is timed by the clock, and those up to the next one count as long as it took.
#[derive(Default)]
struct Stopwatch {
    /// Operations until the next one that is timed.
    left: Cell<u32>,
    /// Of a sequence without a pattern (an LCG).
    random: Cell<u32>,
    /// What the last one took that was timed and ended in its turn, ns.
    last_ns: Cell<u64>,
}

/// When an operation began.
struct Began {
    /// At the start of its turn.
    turn_ns: u64,
    /// By the clock, if it is timed.
    clock_ns: Option<u64>,
}

impl Stopwatch {
    #[inline]
    fn begin(&self, reactor: &Reactor) -> Began {
        let left = self.left.get();
        self.left.set(left.checked_sub(1).unwrap_or_else(|| self.distance()));
        Began { turn_ns: reactor.now_ns(), clock_ns: (left == 0).then(|| reactor.clock_ns()) }
    }

    /// Operations between one that is timed and the next.
    fn distance(&self) -> u32 {
        self.random.set(self.random.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        TIMED_EVERY / 2 + (self.random.get() >> 16) % TIMED_EVERY
    }

    /// How long the operation took, ns.
    #[inline]
    fn end(&self, began: &Began, reactor: &Reactor) -> u64 {
        let turns_ns = reactor.now_ns().saturating_sub(began.turn_ns);
        if turns_ns > 0 {
            return turns_ns;
        }
        if let Some(began_ns) = began.clock_ns {
            self.last_ns.set(reactor.clock_ns().saturating_sub(began_ns));
        }
        match self.last_ns.get() {
            // None was timed so far that ended in its turn: from the turn's beginning, which is longer than it took.
            0 => reactor.clock_ns().saturating_sub(began.turn_ns),
            last_ns => last_ns,
        }
    }
}

/// An operation under way; dropped when its waiter goes away.
struct Under<'a> {
    counters: &'a Counters,
    is_read: bool,
}

impl Under<'_> {
    fn end(self, done: &Done, elapsed_ns: u64) {
        self.leave();
        self.counters.end(done, elapsed_ns);
        std::mem::forget(self);
    }

    fn leave(&self) {
        bump(&self.counters.depth, u64::MAX);
        bump(&self.counters.reads[1], self.is_read as u64);
    }
}

impl Drop for Under<'_> {
    fn drop(&mut self) {
        self.leave();
        bump(&self.counters.abandoned, 1);
    }
}

impl Channel for StatsChannel {
    #[inline]
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let stopwatch = &self.stopwatches[LatencyClass::of(io.op) as usize];
        let began = stopwatch.begin(&self.reactor);
        let is_read = io.op == Op::Read && !io.flags.has(Flags::LAZY);
        bump(&self.counters.reads[0], is_read as u64);
        match self.child.submit(io).try_ready() {
            Ok(done) => {
                bump(&self.counters.reads[1], is_read as u64);
                self.counters.end(&done, stopwatch.end(&began, &self.reactor));
                IoFuture::ready(done)
            }
            Err(future) => {
                self.counters.begin();
                let under = Under { counters: &self.counters, is_read };
                IoFuture::new(async move {
                    let done = future.await;
                    under.end(&done, stopwatch.end(&began, &self.reactor));
                    done
                })
            }
        }
    }

    fn abort(&self, tag: u64) {
        self.child.abort(tag);
    }
}

impl Drop for StatsChannel {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock().expect("nothing panics while holding the registry");
        state.open.retain(|counters| !Arc::ptr_eq(counters, &self.counters));
        state.closed.add(&self.counters);
        state.closed_reads += self.counters.reads[0].load(Relaxed);
    }
}
