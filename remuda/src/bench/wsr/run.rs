//! One row on one stack, in virtual time: prefill, jobs, warm-up, a measured window. All of it is a function of the row, the stack
//! and its parameters.
//!
//! Jobs are closed loops: as many operations under way as their depths say. At a fixed rate, writes come evenly spaced instead,
//! from the jobs in turn, whatever has become of those before them; their time counts from when they were due. Rows that read are read
//! alone before anything else is written, and once more at the end, each time after a rest.

use super::disk::DiskError;
use super::host::HostCost;
use super::rows::{Access, Jobs, Row};
use super::stack::{Column, Setting, Sizes, Stack, build};
use crate::bench::pattern::{Choice, Pattern, Zipf};
use base::{Histogram, Rng};
use bdev::Op;
use reactor::sync::{JoinHandle, Notify};
use reactor::{PollPolicy, Reactor, ReactorConfig};
use sim::ClockDriver;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Fixes the choices of a row.
const SEED: u64 = 0x5EED;
/// Bytes of one write of the prefill, and how many are under way.
const FILL_BYTES: u64 = 256 << 10;
const FILL_DEPTH: u64 = 4;
/// Operations between two looks at the counters.
const LOOK_EVERY: u64 = 256;
/// Writes of a fixed rate under way at most: more would not tell anything new, and take memory.
const ARRIVALS_MAX: u64 = 16_384;
/// A rest before the drive counts as idle: what a pool does by itself has ended by then.
const REST_NS: u64 = 10_000_000_000;
/// Reads of each job by which the rate of an idle stack is told.
const IDLE_READS: u64 = 1_024;
/// When no write has ended for so long, the stack has come to a standstill.
const STANDSTILL_NS: u64 = 20_000_000_000;

/// What was measured of a row on a stack.
#[derive(Clone, Default)]
pub struct Measured {
    /// Virtual time of the window.
    pub window_ns: u64,
    pub user_write_bytes: u64,
    pub user_read_bytes: u64,
    pub device_write_bytes: u64,
    pub nand_bytes: u64,
    pub fast_bytes: u64,
    pub raw_bytes: u64,
    /// Of the window, on average over all dies.
    pub die_utilisation: f64,
    /// Likewise over the host's cores; only where they have queues.
    pub host_utilisation: f64,
    pub write_ns: Histogram,
    pub read_ns: Histogram,
    /// What the row's readers had alone, after the prefill and at the end; bytes a second of all of them.
    pub idle_reads: Option<[f64; 2]>,
}

impl Measured {
    /// MB/s of each of `jobs` jobs.
    pub fn rate(&self, bytes: u64, jobs: u64) -> f64 {
        bytes as f64 * 1000.0 / self.window_ns.max(1) as f64 / jobs as f64
    }

    /// Per byte that users wrote.
    pub fn per_user_byte(&self, bytes: u64) -> f64 {
        bytes as f64 / self.user_write_bytes.max(1) as f64
    }

    /// Bytes programmed per byte that the drive was given.
    pub fn drive_amplification(&self) -> f64 {
        self.nand_bytes as f64 / self.device_write_bytes.max(1) as f64
    }
}

/// What decides when a run warms up and ends, and what it has counted.
#[derive(Clone, Copy, Default)]
struct Mark {
    now_ns: u64,
    user_write_bytes: u64,
    user_read_bytes: u64,
    device_write_bytes: u64,
    nand_bytes: u64,
    fast_bytes: u64,
    dies_busy_ns: u64,
    host_busy_ns: u64,
}

struct Run {
    reactor: Rc<Reactor>,
    stack: Stack,
    user_bytes: u64,
    interrupt: Arc<AtomicBool>,
    written: Cell<u64>,
    read: Cell<u64>,
    operations: Cell<u64>,
    /// When a write ended last.
    wrote_ns: Cell<u64>,
    begun: Cell<Mark>,
    measured_from: Cell<Option<Mark>>,
    ended: Cell<Option<Mark>>,
    write_ns: RefCell<Histogram>,
    read_ns: RefCell<Histogram>,
    failure: RefCell<Option<DiskError>>,
    /// Writes under way of a fixed rate, and who waits for one of them to end.
    arrivals: Cell<u64>,
    arrival_ended: Notify,
}

/// What a row is run on, and how.
#[derive(Clone, Copy)]
pub struct Conditions {
    pub column: Column,
    pub setting: Setting,
    pub sizes: Sizes,
    pub host: HostCost,
    /// Bytes a second that are written, instead of as many as there can be.
    pub rate: Option<u64>,
    /// Of the pool: bytes that it may write to its log once more for each hundred of users'.
    pub reinsertion: Option<u32>,
}

/// Why a run gave nothing.
#[derive(Debug)]
pub enum RunError {
    Interrupted,
    Failed(DiskError),
}

/// Runs a row; `interrupt` ends it early.
pub fn run(row: &'static Row, conditions: Conditions, interrupt: Arc<AtomicBool>) -> Result<Measured, RunError> {
    in_world(SEED + row.number, move |reactor| async move { measure(&reactor, row, &conditions, interrupt).await })
}

/// Runs something on a reactor of its own with a clock of its own, until it ends.
pub fn in_world<T, F>(seed: u64, run: impl FnOnce(Rc<Reactor>) -> F) -> Result<T, RunError>
where
    T: 'static,
    F: Future<Output = Result<T, RunError>> + 'static,
{
    let driver = ClockDriver::new(seed);
    let config = ReactorConfig { policy: PollPolicy::Sleep, ..ReactorConfig::default() };
    let reactor = Reactor::new(0, driver.clone(), config);
    let result = Rc::new(RefCell::new(None));
    let (slot, running) = (result.clone(), run(reactor.clone()));
    reactor.spawn(async move {
        let outcome = running.await;
        slot.replace(Some(outcome));
    });
    let outcome = loop {
        if reactor.turn() == 0 {
            reactor.sleep_turn();
        }
        if let Some(outcome) = result.take() {
            break outcome;
        }
        if driver.is_idle() {
            break Err(RunError::Failed("nothing can happen any more: the stack has lost an operation".into()));
        }
    };
    reactor.close();
    outcome
}

async fn measure(
    reactor: &Rc<Reactor>,
    row: &'static Row,
    conditions: &Conditions,
    interrupt: Arc<AtomicBool>,
) -> Result<Measured, RunError> {
    let Conditions { column, setting, sizes, host, reinsertion, rate } = *conditions;
    let stack = build(column, setting, &sizes, host, reinsertion, reactor).await.map_err(RunError::Failed)?;
    let run = Rc::new(Run {
        reactor: reactor.clone(),
        stack,
        user_bytes: sizes.user_bytes,
        interrupt,
        written: Cell::new(0),
        read: Cell::new(0),
        operations: Cell::new(0),
        wrote_ns: Cell::new(0),
        begun: Cell::default(),
        measured_from: Cell::new(None),
        ended: Cell::new(None),
        write_ns: RefCell::default(),
        read_ns: RefCell::default(),
        failure: RefCell::new(None),
        arrivals: Cell::new(0),
        arrival_ended: Notify::default(),
    });
    run.fill().await;
    let mut rng = Rng::new(SEED + row.number);
    let mut sources = |jobs: &Jobs| -> Vec<_> {
        let source = |index| Rc::new(RefCell::new(Source::new(jobs, index, sizes.user_bytes, rng.fork())));
        (0..jobs.count).map(source).collect()
    };
    let writers = sources(&row.writers);
    let readers = row.readers.as_ref().map(|jobs| (jobs, sources(jobs)));
    let idle_before = run.idle_reads(&readers).await;
    run.wrote_ns.set(reactor.now_ns());
    run.begun.set(run.mark());
    let mut lanes = Vec::new();
    match rate {
        Some(rate) => {
            let (run, bytes) = (run.clone(), row.writers.bytes);
            lanes.push(reactor.spawn_join(async move { run.arrive(rate, bytes, writers).await }));
        }
        None => run.start_lanes(Op::Write, &row.writers, &writers, &mut lanes),
    }
    if let Some((jobs, sources)) = &readers {
        run.start_lanes(Op::Read, jobs, sources, &mut lanes);
    }
    for lane in lanes {
        lane.await;
    }
    let idle_after = run.idle_reads(&readers).await;
    if run.interrupt.load(Ordering::Relaxed) {
        return Err(RunError::Interrupted);
    }
    if let Some(error) = run.failure.take() {
        return Err(RunError::Failed(error));
    }
    Ok(Measured { idle_reads: idle_before.zip(idle_after).map(<[f64; 2]>::from), ..run.measured() })
}

/// Where a job goes next.
struct Source {
    pattern: Pattern,
    first: u64,
    bytes: u64,
    rng: Rng,
}

impl Source {
    fn new(jobs: &Jobs, index: u64, user_bytes: u64, rng: Rng) -> Source {
        let units = user_bytes / jobs.bytes;
        let (first, units, choice) = match jobs.access {
            Access::Sequential => (index * (units / jobs.count), units / jobs.count, Choice::Sequential),
            Access::Uniform => (0, units, Choice::Uniform),
            Access::Zipf(theta) => (0, units, Choice::Zipf(Zipf::new(units, theta))),
        };
        Source { pattern: Pattern::new(choice, units), first, bytes: jobs.bytes, rng }
    }

    fn next_offset(&mut self) -> u64 {
        (self.first + self.pattern.next(&mut self.rng)) * self.bytes
    }
}

impl Run {
    /// Writes everything once, in order.
    async fn fill(self: &Rc<Self>) {
        let next = Rc::new(Cell::new(0));
        let lanes: Vec<_> = (0..FILL_DEPTH)
            .map(|_| {
                let (run, next) = (self.clone(), next.clone());
                self.reactor.spawn_join(async move {
                    while next.get() < run.user_bytes && !run.is_over() {
                        let offset = next.replace(next.get() + FILL_BYTES);
                        run.once(Op::Write, offset, FILL_BYTES).await;
                    }
                })
            })
            .collect();
        for lane in lanes {
            lane.await;
        }
    }

    fn is_over(&self) -> bool {
        self.ended.get().is_some() || self.failure.borrow().is_some() || self.interrupt.load(Ordering::Relaxed)
    }

    async fn once(&self, op: Op, offset: u64, bytes: u64) {
        if let Err(error) = self.stack.target.perform(op, offset, bytes).await {
            self.failure.borrow_mut().get_or_insert(error);
        }
    }

    /// Starts as many loops for each job as it has operations under way.
    fn start_lanes(
        self: &Rc<Self>,
        op: Op,
        jobs: &Jobs,
        sources: &[Rc<RefCell<Source>>],
        lanes: &mut Vec<JoinHandle<()>>,
    ) {
        for source in sources {
            for _ in 0..jobs.depth() {
                let (run, source, bytes) = (self.clone(), source.clone(), jobs.bytes);
                lanes.push(self.reactor.spawn_join(async move { run.lane(op, bytes, &source).await }));
            }
        }
    }

    /// Bytes a second that the readers get when nothing else happens.
    async fn idle_reads(self: &Rc<Self>, readers: &Option<(&Jobs, Vec<Rc<RefCell<Source>>>)>) -> Option<f64> {
        let (jobs, sources) = readers.as_ref()?;
        self.reactor.sleep_until(self.reactor.now_ns() + REST_NS).await;
        let began_ns = self.reactor.now_ns();
        let mut lanes = Vec::new();
        for source in sources {
            for _ in 0..jobs.depth() {
                let (run, source, bytes, reads) = (self.clone(), source.clone(), jobs.bytes, IDLE_READS / jobs.depth());
                lanes.push(self.reactor.spawn_join(async move {
                    for _ in 0..reads {
                        let offset = source.borrow_mut().next_offset();
                        run.once(Op::Read, offset, bytes).await;
                    }
                }));
            }
        }
        for lane in lanes {
            lane.await;
        }
        let read = jobs.count * IDLE_READS * jobs.bytes;
        Some(read as f64 * 1e9 / (self.reactor.now_ns() - began_ns).max(1) as f64)
    }

    /// Begins a write whenever one is due, from the jobs in turn, until the window is over.
    async fn arrive(self: &Rc<Self>, rate: u64, bytes: u64, sources: Vec<Rc<RefCell<Source>>>) {
        let began_ns = self.reactor.now_ns();
        for count in 0u64.. {
            let due_ns = began_ns + (u128::from(count) * u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64;
            if due_ns > self.reactor.now_ns() {
                self.reactor.sleep_until(due_ns).await;
            }
            while self.arrivals.get() >= ARRIVALS_MAX && !self.is_over() {
                self.arrival_ended.notified().await;
            }
            if self.is_over() {
                break;
            }
            let offset = sources[(count % sources.len() as u64) as usize].borrow_mut().next_offset();
            self.arrivals.set(self.arrivals.get() + 1);
            let run = self.clone();
            self.reactor.spawn(async move {
                run.once(Op::Write, offset, bytes).await;
                run.count(Op::Write, bytes, run.reactor.now_ns().saturating_sub(due_ns));
                run.arrivals.set(run.arrivals.get() - 1);
                run.arrival_ended.notify_all();
            });
        }
        while self.arrivals.get() > 0 {
            self.arrival_ended.notified().await;
        }
    }

    /// One operation after the other until the window is over.
    async fn lane(&self, op: Op, bytes: u64, source: &RefCell<Source>) {
        while !self.is_over() {
            let offset = source.borrow_mut().next_offset();
            let came_ns = self.reactor.now_ns();
            self.once(op, offset, bytes).await;
            self.count(op, bytes, self.reactor.now_ns() - came_ns);
        }
    }

    fn count(&self, op: Op, bytes: u64, took_ns: u64) {
        let (sum, histogram) = match op {
            Op::Read => (&self.read, &self.read_ns),
            _ => (&self.written, &self.write_ns),
        };
        sum.set(sum.get() + bytes);
        let now = self.reactor.now_ns();
        if op == Op::Write {
            self.wrote_ns.set(now);
        } else if now - self.wrote_ns.get() > STANDSTILL_NS {
            let seconds = STANDSTILL_NS / 1_000_000_000;
            self.failure.borrow_mut().get_or_insert(format!("no write has ended for {seconds} s of virtual time"));
        }
        if self.measured_from.get().is_some() && self.ended.get().is_none() {
            histogram.borrow_mut().record(took_ns);
        }
        self.operations.set(self.operations.get() + 1);
        if self.operations.get().is_multiple_of(LOOK_EVERY) {
            self.look();
        }
    }

    fn mark(&self) -> Mark {
        let counters = self.stack.drive.counters();
        Mark {
            now_ns: self.reactor.now_ns(),
            user_write_bytes: self.written.get(),
            user_read_bytes: self.read.get(),
            device_write_bytes: counters.host_write_bytes,
            nand_bytes: counters.nand_bytes,
            fast_bytes: self.stack.fast_bytes(),
            dies_busy_ns: counters.busy_ns,
            host_busy_ns: self.stack.host.busy_ns(),
        }
    }

    /// Begins and ends the window. Warm until 1.5 times the flash was programmed or 3 times the volume written; measured
    /// until once the flash or 1.5 times the volume.
    fn look(&self) {
        let now = self.mark();
        let passed = |since: Mark, flash: f64, volume: f64| {
            let programmed = (now.nand_bytes - since.nand_bytes) as f64;
            let written = (now.user_write_bytes - since.user_write_bytes) as f64;
            programmed >= flash * self.stack.raw_bytes as f64 || written >= volume * self.user_bytes as f64
        };
        match (self.measured_from.get(), self.ended.get()) {
            (None, _) if passed(self.begun.get(), 1.5, 3.0) => self.measured_from.set(Some(now)),
            (Some(from), None) if passed(from, 1.0, 1.5) => self.ended.set(Some(now)),
            _ => {}
        }
    }

    fn measured(&self) -> Measured {
        let (from, to) = (self.measured_from.get().unwrap_or_default(), self.ended.get().unwrap_or_default());
        let window_ns = to.now_ns - from.now_ns;
        let part = |busy_ns: u64, of: u64| busy_ns as f64 / (window_ns.max(1) * of) as f64;
        Measured {
            window_ns,
            user_write_bytes: to.user_write_bytes - from.user_write_bytes,
            user_read_bytes: to.user_read_bytes - from.user_read_bytes,
            device_write_bytes: to.device_write_bytes - from.device_write_bytes,
            nand_bytes: to.nand_bytes - from.nand_bytes,
            fast_bytes: to.fast_bytes - from.fast_bytes,
            raw_bytes: self.stack.raw_bytes,
            die_utilisation: part(to.dies_busy_ns - from.dies_busy_ns, u64::from(self.stack.dies)),
            host_utilisation: part(to.host_busy_ns - from.host_busy_ns, u64::from(self.stack.host.cores())),
            idle_reads: None,
            write_ns: self.write_ns.borrow().clone(),
            read_ns: self.read_ns.borrow().clone(),
        }
    }
}
