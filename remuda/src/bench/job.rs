//! One job: the workload of one reactor over one channel. `queue depth` tasks submit, wait and submit again; the only
//! clock reading per operation is at its completion, which is also the start of the next one.

use super::pattern::Pattern;
use super::report::{MISMATCH_TEXTS_MAX, Tally};
use super::verify::Memory;
use base::Rng;
use bdev::{BlockDevice, Channel, Done, Flags, Io, Lba, Op, Status};
use reactor::{BUF_BYTES_MAX, Reactor, SgList};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

/// Operations that complete at once before a task lets others run.
const STREAK_MAX: u32 = 32;

/// What a job does; the same for all jobs but for its share of the device.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Percentage of reads.
    pub read_percent: u32,
    /// Blocks per operation.
    pub io_blocks: u32,
    /// Operations under way at once.
    pub depth: usize,
    /// First block of this job's range.
    pub first: u64,
    /// Blocks of this job's range.
    pub blocks: u64,
    /// How units of `io_blocks` are chosen.
    pub pattern: Pattern,
    /// Nanoseconds between intended starts of this job (open loop), or 0.
    pub interval_ns: u64,
    /// Offset of this job's first intended start.
    pub phase_ns: u64,
    /// Write self-describing blocks and check what is read.
    pub verify: bool,
    /// Write the whole range before the measured time.
    pub fill: bool,
    /// Let the device lend its memory to reads.
    pub loan: bool,
    /// Spans of the clock to tell apart, ns, or 0.
    pub span_ns: u64,
    /// Seed of this job's choices.
    pub seed: u64,
    /// Seed of the contents.
    pub content_seed: u64,
}

/// Times set by the main thread, on the reactors' clock; 0 is not yet.
#[derive(Default)]
pub struct Clock {
    /// When the load begins.
    pub start_ns: AtomicU64,
    /// When measuring begins.
    pub measure_ns: AtomicU64,
    /// When the load ends.
    pub end_ns: AtomicU64,
    /// Operations completed so far by all jobs, for progress; written once per streak.
    pub completed: AtomicU64,
    /// Jobs that wait for the start.
    pub ready: AtomicU64,
}

struct Job {
    reactor: Rc<Reactor>,
    channel: Rc<dyn Channel>,
    block_size: u32,
    plan: Plan,
    clock: Arc<Clock>,
    measure_ns: u64,
    end_ns: Cell<u64>,
    pattern: RefCell<Pattern>,
    rng: RefCell<Rng>,
    memory: RefCell<Memory>,
    tally: RefCell<Tally>,
    next_start_ns: Cell<u64>,
    gone: Cell<bool>,
}

/// Runs one job to its end.
pub async fn run_job(
    reactor: Rc<Reactor>,
    device: Arc<dyn BlockDevice>,
    plan: Plan,
    clock: Arc<Clock>,
) -> Result<Tally, String> {
    let channel = device.open_channel(&reactor).map_err(|error| error.to_string())?;
    let block_size = device.info().block_size;
    let remembered = if plan.verify { plan.blocks } else { 0 };
    let mut job = Job {
        block_size,
        pattern: RefCell::new(plan.pattern.clone()),
        rng: RefCell::new(Rng::new(plan.seed)),
        memory: RefCell::new(Memory::new(plan.content_seed, plan.first, remembered)),
        tally: RefCell::default(),
        next_start_ns: Cell::new(0),
        gone: Cell::new(false),
        measure_ns: 0,
        end_ns: Cell::new(u64::MAX),
        reactor,
        channel,
        plan,
        clock,
    };
    if job.plan.fill {
        job.fill_range().await?;
    }
    job.clock.ready.fetch_add(1, Ordering::AcqRel);
    let start_ns = loop {
        match job.clock.start_ns.load(Ordering::Acquire) {
            0 => job.reactor.sleep_ns(200_000).await,
            start_ns => break start_ns,
        }
    };
    job.measure_ns = job.clock.measure_ns.load(Ordering::Acquire);
    job.end_ns.set(job.clock.end_ns.load(Ordering::Acquire));
    job.next_start_ns.set(start_ns + job.plan.phase_ns);
    job.reactor.sleep_until(start_ns).await;
    let job = Rc::new(job);
    let slots: Vec<_> = (0..job.plan.depth).map(|_| job.reactor.spawn_join(slot(job.clone()))).collect();
    for slot in slots {
        slot.await?;
    }
    if job.plan.verify && !job.gone.get() {
        job.check_range().await?;
    }
    Ok(job.tally.take())
}

/// One of the operations under way, again and again.
async fn slot(job: Rc<Job>) -> Result<(), String> {
    let mut bufs = job.allocate().await;
    let mut oldest: Vec<u32> = vec![0; if job.plan.verify { job.plan.io_blocks as usize } else { 0 }];
    let mut begun_ns = job.reactor.clock_ns();
    let mut streak = 0;
    loop {
        if job.plan.interval_ns > 0 {
            let intended = job.take_start();
            if intended >= job.end_ns.get() {
                return Ok(());
            }
            if begun_ns < intended {
                job.reactor.sleep_until(intended).await;
            } else if intended >= job.measure_ns {
                let mut tally = job.tally.borrow_mut();
                tally.late_max_ns = tally.late_max_ns.max(begun_ns - intended);
            }
            begun_ns = intended;
        }
        let io = job.next_io(bufs, &mut oldest);
        let mut future = job.channel.submit(io);
        let mut waited = false;
        let done = std::future::poll_fn(|cx| match Pin::new(&mut future).poll(cx) {
            Poll::Ready(done) => Poll::Ready(done),
            Poll::Pending => {
                waited = true;
                Poll::Pending
            }
        })
        .await;
        let now = job.reactor.clock_ns();
        bufs = job.finish(done, begun_ns, now, &oldest);
        if now >= job.end_ns.get() {
            return Ok(());
        }
        begun_ns = now;
        streak += 1;
        if waited || streak >= STREAK_MAX {
            // Progress is counted in streaks, so that jobs do not fight over one cache line.
            if streak >= STREAK_MAX {
                job.clock.completed.fetch_add(streak as u64, Ordering::Relaxed);
                streak = 0;
                if !job.gone.get() {
                    job.end_ns.set(job.clock.end_ns.load(Ordering::Relaxed));
                }
            }
            if !waited {
                // Others run meanwhile; that is not this operation's time.
                job.reactor.yield_now().await;
                begun_ns = job.reactor.clock_ns();
            }
        }
    }
}

impl Job {
    fn io_bytes(&self) -> usize {
        self.plan.io_blocks as usize * self.block_size as usize
    }

    async fn allocate(&self) -> SgList {
        let mut bufs = SgList::new();
        let mut left = self.io_bytes();
        while left > 0 {
            let mut buf = self.reactor.pool().alloc(left.min(BUF_BYTES_MAX)).await;
            buf.as_mut_slice().fill(0x5A);
            left -= buf.len();
            bufs.push(buf);
        }
        bufs
    }

    /// The next intended start (open loop).
    fn take_start(&self) -> u64 {
        let start = self.next_start_ns.get();
        self.next_start_ns.set(start + self.plan.interval_ns);
        start
    }

    #[inline]
    fn next_io(&self, mut bufs: SgList, oldest: &mut [u32]) -> Io {
        let mut rng = self.rng.borrow_mut();
        let mut pattern = self.pattern.borrow_mut();
        let nblocks = self.plan.io_blocks;
        let mut lba = self.plan.first + pattern.next(&mut rng) * nblocks as u64;
        let mut read = match self.plan.read_percent {
            100 => true,
            0 => false,
            percent => rng.below(100) < percent as u64,
        };
        if self.plan.verify {
            let mut memory = self.memory.borrow_mut();
            let mut tries = 0;
            while !read && !memory.may_write(lba, nblocks as u64) {
                // Another write to these blocks is under way (or failed): go elsewhere, or read if the range is tiny.
                lba = self.plan.first + pattern.next(&mut rng) * nblocks as u64;
                tries += 1;
                read = tries > 64;
            }
            if read {
                for (index, oldest) in oldest.iter_mut().enumerate() {
                    *oldest = memory.oldest(lba + index as u64);
                }
            } else {
                let mut block = lba;
                for_each_block(&mut bufs, self.block_size, |bytes| {
                    memory.issue(block, bytes);
                    block += 1;
                });
            }
        }
        if !read {
            return Io::write(Lba(lba), nblocks, bufs);
        }
        if self.plan.loan {
            return Io { flags: Flags::LOAN, ..Io::new(Op::Read, Lba(lba), nblocks) };
        }
        Io::read(Lba(lba), nblocks, bufs)
    }

    /// Counts an ended operation, and gives its buffers back.
    #[inline]
    fn finish(&self, done: Done, begun_ns: u64, now_ns: u64, oldest: &[u32]) -> SgList {
        let Done { mut io, status } = done;
        if status != Status::Ok {
            self.failed(&io, status);
        } else {
            if self.plan.verify {
                self.check_or_acknowledge(&io, oldest);
            }
            // What began in the window counts, however late it ends: leaving out the slowest would flatter.
            if begun_ns >= self.measure_ns && begun_ns < self.end_ns.get() {
                let mut tally = self.tally.borrow_mut();
                let latency = now_ns.saturating_sub(begun_ns);
                if io.op == Op::Read {
                    tally.reads.record(latency)
                } else {
                    tally.writes.record(latency)
                }
                if let Some(number) = begun_ns.checked_div(self.plan.span_ns) {
                    tally.record_span(number, latency);
                }
            }
        }
        std::mem::take(&mut io.bufs)
    }

    #[cold]
    fn failed(&self, io: &Io, status: Status) {
        let mut tally = self.tally.borrow_mut();
        tally.errors += 1;
        let text = || format!("{} of {} blocks at {}: {status}", io.op.name(), io.nblocks, io.lba.0);
        tally.first_error.get_or_insert_with(text);
        if status.is_gone() || status == Status::ReadOnly {
            // It stays so; trying on would only count failures.
            self.gone.set(true);
            self.end_ns.set(0);
        }
    }

    fn check_or_acknowledge(&self, io: &Io, oldest: &[u32]) {
        let mut memory = self.memory.borrow_mut();
        if io.op != Op::Read {
            (0..io.nblocks as u64).for_each(|index| memory.acknowledge(io.lba.0 + index));
            return;
        }
        let mut tally = self.tally.borrow_mut();
        let mut index = 0;
        for buf in &io.bufs {
            for bytes in buf.as_slice().chunks(self.block_size as usize) {
                let outcome = memory.check(io.lba.0 + index as u64, bytes, oldest[index]);
                tally.blocks_checked += u64::from(outcome.is_some());
                if let Some(Err(wrong)) = outcome {
                    tally.mismatches += 1;
                    if tally.mismatch_texts.len() < MISMATCH_TEXTS_MAX {
                        tally.mismatch_texts.push(format!(
                            "block {}: found {}, expected write {} to {}",
                            wrong.block, wrong.found, wrong.oldest, wrong.newest
                        ));
                    }
                }
                index += 1;
            }
        }
    }

    /// Writes every block of the range once.
    async fn fill_range(&self) -> Result<(), String> {
        self.sweep(|lba, nblocks, mut bufs| {
            let mut memory = self.memory.borrow_mut();
            let mut block = lba;
            for_each_block(&mut bufs, self.block_size, |bytes| {
                if self.plan.verify {
                    memory.issue(block, bytes);
                } else {
                    super::verify::fill(bytes, self.plan.content_seed, block, 1);
                }
                block += 1;
            });
            Some(Io::write(Lba(lba), nblocks, bufs))
        })
        .await
    }

    /// Reads back every block that was written.
    async fn check_range(&self) -> Result<(), String> {
        let flushed = self.channel.submit(Io::flush()).await;
        if !matches!(flushed.status, Status::Ok | Status::Unsupported) {
            self.failed(&flushed.io, flushed.status);
        }
        self.sweep(|lba, nblocks, bufs| {
            let memory = self.memory.borrow();
            let written = (0..nblocks as u64).any(|index| memory.oldest(lba + index) > 0);
            written.then(|| Io::read(Lba(lba), nblocks, bufs))
        })
        .await
    }

    /// Runs one operation per unit of the range, a few at a time.
    async fn sweep(&self, make: impl Fn(u64, u32, SgList) -> Option<Io>) -> Result<(), String> {
        const DEPTH: usize = 8;
        let mut lba = self.plan.first;
        let end = self.plan.first + self.plan.blocks;
        let unit = self.plan.io_blocks as u64;
        let mut spare: Vec<SgList> = Vec::new();
        while lba < end && !self.gone.get() {
            let mut under_way = Vec::with_capacity(DEPTH);
            while under_way.len() < DEPTH && lba + unit <= end {
                let bufs = match spare.pop() {
                    Some(bufs) => bufs,
                    None => self.allocate().await,
                };
                if let Some(io) = make(lba, unit as u32, bufs) {
                    under_way.push(self.channel.submit(io));
                }
                lba += unit;
            }
            if lba + unit > end {
                lba = end;
            }
            for future in under_way {
                let done = future.await;
                if done.status != Status::Ok {
                    self.failed(&done.io, done.status);
                } else if self.plan.verify {
                    let memory = self.memory.borrow();
                    let oldest: Vec<u32> = (0..unit).map(|index| memory.oldest(done.io.lba.0 + index)).collect();
                    drop(memory);
                    self.check_or_acknowledge(&done.io, &oldest);
                }
                spare.push(done.io.bufs);
            }
            self.reactor.yield_now().await;
        }
        Ok(())
    }
}

fn for_each_block(bufs: &mut SgList, block_size: u32, mut action: impl FnMut(&mut [u8])) {
    for buf in bufs {
        buf.as_mut_slice().chunks_mut(block_size as usize).for_each(&mut action);
    }
}
