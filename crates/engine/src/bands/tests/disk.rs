//! A disk that fails where it is told to, and answers when it is told to.

use super::*;
use base::Rng;
use bdev::{Done, Io, Op, OpSet};
use reactor::IoFuture;
use std::collections::BTreeMap;
use std::ops::Range;

pub(super) type Hook = Box<dyn Fn(Op, Range<u64>)>;

/// See the module. Places are in blocks of 4 KiB.
pub(super) struct Disk {
    pub(super) reactor: Rc<Reactor>,
    pub(super) info: Cell<DeviceInfo>,
    content: RefCell<BTreeMap<u64, Vec<u8>>>,
    failing: RefCell<Vec<(Op, Range<u64>, Status)>>,
    /// What has been asked for: operation, blocks, stream.
    pub(super) log: RefCell<Vec<(Op, Range<u64>, u16)>>,
    /// Nothing is answered.
    pub(super) is_stalled: Cell<bool>,
    /// Answers take a few turns.
    pub(super) delays: RefCell<Option<Rng>>,
    /// Told of each operation before it is done.
    pub(super) hook: RefCell<Option<Hook>>,
}

impl Disk {
    pub(super) fn new(reactor: Rc<Reactor>) -> Rc<Disk> {
        Disk::with(reactor, BTreeMap::new())
    }

    fn with(reactor: Rc<Reactor>, content: BTreeMap<u64, Vec<u8>>) -> Rc<Disk> {
        Rc::new(Disk {
            reactor,
            info: Cell::new(DeviceInfo::basic(4096, 1 << 20)),
            content: RefCell::new(content),
            failing: RefCell::default(),
            log: RefCell::default(),
            is_stalled: Cell::new(false),
            delays: RefCell::default(),
            hook: RefCell::default(),
        })
    }

    /// A disk with the same bytes that does not fail.
    pub(super) fn fork(&self) -> Rc<Disk> {
        let copy = Disk::with(self.reactor.clone(), self.content.borrow().clone());
        copy.info.set(self.info.get());
        copy
    }

    pub(super) fn change_info(&self, change: impl FnOnce(&mut DeviceInfo)) {
        let mut info = self.info.get();
        change(&mut info);
        self.info.set(info);
    }

    pub(super) fn can_unmap(&self) {
        self.change_info(|info| info.ops = info.ops.union(OpSet::of(&[Op::Unmap])));
    }

    pub(super) fn block(&self, block: u64) -> Vec<u8> {
        self.content.borrow().get(&block).cloned().unwrap_or_else(|| vec![0; BLOCK_BYTES])
    }

    pub(super) fn poke(&self, block: u64, bytes: Vec<u8>) {
        self.content.borrow_mut().insert(block, bytes);
    }

    pub(super) fn flip(&self, block: u64, bit: usize) {
        let mut bytes = self.block(block);
        bytes[bit / 8] ^= 1 << (bit % 8);
        self.poke(block, bytes);
    }

    /// Operations that touch these blocks end like this from now on.
    pub(super) fn fail(&self, op: Op, blocks: Range<u64>, status: Status) {
        self.failing.borrow_mut().push((op, blocks, status));
    }

    pub(super) fn heal(&self) {
        self.failing.borrow_mut().clear();
    }

    /// The writes so far: their first blocks and ends.
    pub(super) fn writes(&self) -> Vec<(u64, u64)> {
        let log = self.log.borrow();
        log.iter().filter(|(op, ..)| *op == Op::Write).map(|(_, blocks, _)| (blocks.start, blocks.end)).collect()
    }

    fn range(&self, io: &Io) -> Range<u64> {
        let shift = (4096 / self.info.get().block_size).ilog2();
        io.lba.0 >> shift..io.end() >> shift
    }

    fn serve(&self, io: &mut Io) -> Status {
        let blocks = self.range(io);
        if let Some(hook) = &*self.hook.borrow() {
            hook(io.op, blocks.clone());
        }
        let overlaps = |other: &Range<u64>| other.start < blocks.end && blocks.start < other.end;
        let failing = self.failing.borrow();
        let hits = |op: &Op, range: &Range<u64>| *op == io.op && (io.op == Op::Flush || overlaps(range));
        if let Some((.., status)) = failing.iter().find(|(op, range, _)| hits(op, range)) {
            return *status;
        }
        let mut at = blocks.start;
        for buf in &mut io.bufs {
            for offset in (0..buf.len()).step_by(BLOCK_BYTES) {
                match io.op {
                    Op::Read => buf.as_mut_slice()[offset..][..BLOCK_BYTES].copy_from_slice(&self.block(at)),
                    _ => self.poke(at, buf.as_slice()[offset..][..BLOCK_BYTES].to_vec()),
                }
                at += 1;
            }
        }
        if io.op == Op::Unmap {
            blocks.for_each(|block| drop(self.content.borrow_mut().remove(&block)));
        }
        Status::Ok
    }
}

impl Channel for Disk {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        self.log.borrow_mut().push((io.op, self.range(&io), io.stream));
        if let Err(status) = self.info.get().check(&io) {
            return IoFuture::ready(io.done(status));
        }
        assert!(io.nblocks <= self.info.get().max_io_blocks, "an operation is larger than the device allows");
        let turns = self.delays.borrow_mut().as_mut().map_or(0, |rng| rng.below(4));
        if turns == 0 && !self.is_stalled.get() {
            let status = self.serve(&mut io);
            return IoFuture::ready(io.done(status));
        }
        IoFuture::new(async move {
            for _ in 0..turns {
                self.reactor.yield_now().await;
            }
            while self.is_stalled.get() {
                self.reactor.yield_now().await;
            }
            let status = self.serve(&mut io);
            io.done(status)
        })
    }
}
