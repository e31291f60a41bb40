//! A random workload on any block device, judged by a [`CellOracle`]: the part that the device scenarios share.

use base::Rng;
use bdev::{Channel, Flags, Io, Lba, Op, Status};
use reactor::{Reactor, SgList};
use sim::oracle::{CellOracle, WriteTicket, fill_cell, read_cell};
use sim::{Failure, Handle, Mutation, NodeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The mark of all reads and writes of the workload, for who aborts them.
pub(crate) const TAG: u64 = 1;

/// What the workload does.
#[derive(Clone, Debug)]
pub(crate) struct Mix {
    /// Bytes per oracle cell: the media's atomic unit.
    pub(crate) cell_bytes: usize,
    pub(crate) block_bytes: usize,
    /// Largest operation, in blocks.
    pub(crate) blocks_max: u64,
    pub(crate) discards: bool,
    pub(crate) forced_writes: bool,
    /// One in so many operations is abandoned before it ends; 0 is never.
    pub(crate) abandon: u64,
    /// Errors are part of the game.
    pub(crate) errors_allowed: bool,
    /// Reads are among what may fail then.
    pub(crate) reads_may_fail: bool,
    /// Blocks that different tasks share, so that their operations overlap; otherwise each task has its own.
    pub(crate) shared: bool,
    /// Every write is durable when it is acknowledged.
    pub(crate) always_durable: bool,
    /// A write that failed may still take effect later, and one of a dead process too: the device is behind a network.
    pub(crate) lingering: bool,
}

impl Mix {
    pub(crate) fn pick(rng: &mut Rng, cell_bytes: usize) -> Mix {
        Mix {
            cell_bytes,
            block_bytes: if rng.one_in(2) { cell_bytes } else { 4096 },
            blocks_max: rng.between(1, 8),
            discards: rng.one_in(2),
            forced_writes: rng.one_in(2),
            abandon: if rng.one_in(3) { rng.between(10, 50) } else { 0 },
            errors_allowed: false,
            reads_may_fail: true,
            shared: rng.one_in(2),
            always_durable: false,
            lingering: false,
        }
    }

    fn cells_per_block(&self) -> usize {
        self.block_bytes / self.cell_bytes
    }
}

/// The oracle and what all tasks of a workload share; outlives crashes.
#[derive(Clone)]
pub(crate) struct Judge {
    pub(crate) oracle: Rc<RefCell<CellOracle>>,
    pub(crate) sim: Handle,
    pub(crate) node: NodeId,
    pub(crate) mix: Mix,
    pub(crate) done_ops: Rc<Cell<u64>>,
    pub(crate) errors: Rc<Cell<u64>>,
    /// Whether, in the life that ends, a flush has failed that the device made by itself, so that its users were still to hear of it.
    pub(crate) unheard: Rc<dyn Fn() -> bool>,
    /// Blocks that the device has, while it may become larger.
    pub(crate) shown: Rc<Cell<u64>>,
    /// Writes whose end nobody saw.
    unended: Rc<RefCell<Vec<WriteTicket>>>,
}

/// A write under way; dropped with its task, it stays under way.
struct Writing {
    ticket: Option<WriteTicket>,
    unended: Rc<RefCell<Vec<WriteTicket>>>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.unended.borrow_mut().extend(self.ticket.take());
    }
}

impl Judge {
    pub(crate) fn new(sim: Handle, node: NodeId, mix: Mix, bytes: u64) -> Judge {
        let cells = bytes as usize / mix.cell_bytes;
        Judge {
            oracle: Rc::new(RefCell::new(CellOracle::new(cells))),
            sim,
            node,
            mix,
            done_ops: Rc::default(),
            errors: Rc::default(),
            unheard: Rc::new(|| false),
            shown: Rc::new(Cell::new(u64::MAX)),
            unended: Rc::default(),
        }
    }

    /// The same on another machine.
    pub(crate) fn on(&self, node: NodeId) -> Judge {
        Judge { node, ..self.clone() }
    }

    /// The same with another mix.
    pub(crate) fn with(&self, change: impl FnOnce(&mut Mix)) -> Judge {
        let mut other = self.clone();
        change(&mut other.mix);
        other
    }

    /// Whatever was under way without anybody waiting for it has had its effect by now, or never will have one.
    pub(crate) fn all_ended(&self) {
        for ticket in self.unended.take() {
            self.oracle.borrow_mut().end_write(ticket, false, false);
        }
    }

    /// What a process that is going down sees proves nothing.
    pub(crate) fn expect(&self, holds: bool, text: impl FnOnce() -> String) {
        self.sim.expect(holds || !self.sim.alive(self.node), text);
    }

    pub(crate) fn blocks(&self) -> u64 {
        let blocks = (self.oracle.borrow().cells() / self.mix.cells_per_block()) as u64;
        blocks.min(self.shown.get())
    }

    /// Disks hold something behind the end of what they show: each may be what is there when the device has grown. The bytes of each.
    pub(crate) fn leftovers(&self, disks: usize, blocks: std::ops::Range<u64>) -> Vec<Vec<u8>> {
        let cells = self.cells(blocks.start, blocks.end - blocks.start);
        let mut oracle = self.oracle.borrow_mut();
        let leftover = |_| {
            let stamp = oracle.fresh_stamp();
            let ticket = oracle.begin_write(cells.clone(), stamp);
            oracle.end_write(ticket, false, false);
            let mut bytes = vec![0; cells.len() * self.mix.cell_bytes];
            let each = bytes.chunks_mut(self.mix.cell_bytes).zip(cells.clone());
            each.for_each(|(bytes, cell)| fill_cell(bytes, stamp, cell));
            bytes
        };
        (0..disks).map(leftover).collect()
    }

    fn cells(&self, lba: u64, nblocks: u64) -> std::ops::Range<usize> {
        let each = self.mix.cells_per_block();
        lba as usize * each..(lba + nblocks) as usize * each
    }

    async fn buffers(&self, reactor: &Reactor, rng: &mut Rng, bytes: usize) -> SgList {
        // Scattered: devices must not care where one buffer ends and the next begins.
        let unit = self.mix.cell_bytes;
        let mut list = SgList::new();
        let mut left = bytes;
        while left > 0 {
            let part = if rng.one_in(2) { left } else { rng.between(1, (left / unit) as u64) as usize * unit };
            list.push(reactor.pool().alloc(part).await);
            left -= part;
        }
        list
    }

    fn fill(&self, bufs: &mut SgList, stamp: u64, first_cell: usize) {
        let mut cell = first_cell;
        for buf in bufs {
            for bytes in buf.as_mut_slice().chunks_mut(self.mix.cell_bytes) {
                fill_cell(bytes, stamp, cell);
                cell += 1;
            }
        }
    }

    pub(crate) fn values(&self, bufs: &SgList, first_cell: usize) -> Vec<Result<u64, String>> {
        let bytes = bufs.iter().flat_map(|buf| buf.as_slice().chunks(self.mix.cell_bytes));
        bytes.enumerate().map(|(index, bytes)| read_cell(bytes, first_cell + index)).collect()
    }

    /// Notes how an operation ended; true when it ended well and this process still exists.
    fn judge_status(&self, op: Op, status: Status) -> bool {
        self.done_ops.set(self.done_ops.get() + 1);
        if status.is_ok() {
            return true;
        }
        if op == Op::Unmap && status == Status::Unsupported {
            return false;
        }
        self.errors.set(self.errors.get() + 1);
        // Persistent memory fails under a process that is being killed before anything else notices.
        let allowed = self.mix.errors_allowed && (self.mix.reads_may_fail || op != Op::Read);
        let expected = allowed || !self.sim.alive(self.node);
        self.sim.expect(expected, || format!("{} failed with '{status}' without cause", op.name()));
        false
    }

    pub(crate) async fn read(
        &self,
        reactor: &Rc<Reactor>,
        channel: &Rc<dyn Channel>,
        rng: &mut Rng,
        lba: u64,
        nblocks: u64,
    ) {
        let cells = self.cells(lba, nblocks);
        let bufs = self.buffers(reactor, rng, nblocks as usize * self.mix.block_bytes).await;
        let ticket = self.oracle.borrow_mut().begin_read(cells.clone());
        let done = channel.submit(Io { tag: TAG, ..Io::read(Lba(lba), nblocks as u32, bufs) }).await;
        if !self.judge_status(Op::Read, done.status) {
            return;
        }
        let values = self.values(&done.io.bufs, cells.start);
        if values.len() != cells.len() {
            return self.sim.expect(self.sim.mutation().is_some(), || "a read came back without its buffers".into());
        }
        let verdict = self.oracle.borrow_mut().end_read(ticket, &values);
        if let Err(text) = verdict {
            self.sim.violation(format!("read of {nblocks} blocks at {lba}: {text}"));
        }
    }

    pub(crate) async fn write(
        &self,
        reactor: &Rc<Reactor>,
        channel: &Rc<dyn Channel>,
        rng: &mut Rng,
        lba: u64,
        nblocks: u64,
    ) {
        let cells = self.cells(lba, nblocks);
        let zero = self.mix.discards && rng.one_in(4);
        let mut io = if zero {
            Io::new(if rng.one_in(2) { Op::Unmap } else { Op::WriteZeroes }, Lba(lba), nblocks as u32)
        } else {
            let bufs = self.buffers(reactor, rng, nblocks as usize * self.mix.block_bytes).await;
            Io::write(Lba(lba), nblocks as u32, bufs)
        };
        let stamp = if zero { 0 } else { self.oracle.borrow_mut().fresh_stamp() };
        let durable = !zero && self.mix.forced_writes && rng.one_in(3);
        if durable {
            io.flags = Flags::FUA;
        }
        io.tag = TAG;
        self.fill(&mut io.bufs, stamp, cells.start);
        let ticket = self.oracle.borrow_mut().begin_write(cells, stamp);
        let mut writing = Writing { ticket: Some(ticket), unended: self.unended.clone() };
        let op = io.op;
        let under_way = channel.submit(io);
        if rng.one_in(self.mix.abandon) {
            // The wait is given up; the operation goes on, nobody knows for how long.
            let _ = reactor.timeout(rng.below(50_000), under_way).await;
            return;
        }
        let done = under_way.await;
        let ok = self.judge_status(op, done.status);
        let is_over = ok || done.status == Status::Unsupported || !self.mix.lingering;
        if self.sim.alive(self.node)
            && is_over
            && let Some(ticket) = writing.ticket.take()
        {
            self.oracle.borrow_mut().end_write(ticket, ok, durable || self.mix.always_durable);
        }
    }

    pub(crate) async fn flush(&self, channel: &Rc<dyn Channel>) {
        let ticket = self.oracle.borrow_mut().begin_flush();
        let done = channel.submit(Io::flush()).await;
        let ok = self.judge_status(Op::Flush, done.status);
        if self.sim.alive(self.node) {
            self.oracle.borrow_mut().end_flush(ticket, ok);
        }
    }

    /// One task's workload: `count` operations.
    pub(crate) async fn work(self, reactor: Rc<Reactor>, channel: Rc<dyn Channel>, task: u64, tasks: u64, count: u64) {
        let mut rng = self.sim.rng();
        for _ in 0..count {
            let blocks = self.blocks();
            let (first, span) = if self.mix.shared { (0, blocks) } else { (task * (blocks / tasks), blocks / tasks) };
            let nblocks = rng.between(1, self.mix.blocks_max.min(span));
            let lba = first + rng.below(span - nblocks + 1);
            match rng.below(16) {
                0..7 => self.write(&reactor, &channel, &mut rng, lba, nblocks).await,
                7..14 => self.read(&reactor, &channel, &mut rng, lba, nblocks).await,
                14 => self.flush(&channel).await,
                _ => reactor.sleep_ns(rng.below(1_000_000)).await,
            }
        }
    }

    /// Reads every block once; cells that cannot be read are skipped when errors are allowed.
    pub(crate) async fn verify_all(self, reactor: Rc<Reactor>, channel: Rc<dyn Channel>) {
        let mut rng = self.sim.rng();
        let mut lba = 0;
        while lba < self.blocks() {
            let nblocks = self.mix.blocks_max.min(self.blocks() - lba);
            self.read(&reactor, &channel, &mut rng, lba, nblocks).await;
            lba += nblocks;
        }
    }

    /// Writes, flushes and reads one block: whatever happened, the device works now.
    pub(crate) async fn prove_alive(&self, reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>) {
        let mut rng = self.sim.rng();
        // Bytes: a discard may be one that the device does not offer, and leave what it cannot read.
        let bytes = Judge { mix: Mix { discards: false, ..self.mix.clone() }, ..self.clone() };
        bytes.write(reactor, channel, &mut rng, 0, 1).await;
        self.flush(channel).await;
        self.read(reactor, channel, &mut rng, 0, 1).await;
    }
}

/// Starts `tasks` futures and reports when all have ended.
#[derive(Clone, Default)]
pub(crate) struct Crew(Rc<Cell<u64>>);

impl Crew {
    /// Wraps a future so that its end is counted, however it ends.
    pub(crate) fn member<F: Future<Output = ()>>(&self, future: F) -> impl Future<Output = ()> + use<F> {
        struct Leave(Rc<Cell<u64>>);
        impl Drop for Leave {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }
        self.0.set(self.0.get() + 1);
        let leave = Leave(self.0.clone());
        async move {
            let _leave = leave;
            future.await;
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.0.get() == 0
    }
}

/// All memory of a reactor's pool can be had again: nothing was lost, and nothing is out any more.
pub(crate) fn check_pool(reactor: &Reactor, limit_bytes: usize) -> Result<(), Failure> {
    let all: Vec<_> = std::iter::from_fn(|| reactor.pool().try_alloc(4096)).collect();
    let expected = limit_bytes / 4096;
    if all.len() == expected {
        return Ok(());
    }
    Err(Failure::new(format!("only {} of {expected} buffers came back to reactor {}", all.len(), reactor.index())))
}

/// Whether a mutation belongs to a scenario's own code.
pub(crate) fn is(handle: &Handle, mutation: Mutation) -> bool {
    handle.mutation() == Some(mutation)
}
