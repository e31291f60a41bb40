//! Blocks that are changed by compare-and-write alone, by all hosts at once. Each value names the one it replaced, so that
//! all values of a block form a chain; a pair that is not atomic forks it, and one that lands late goes back on it.

use bdev::{Channel, Flags, Io, Lba, Op, Status};
use reactor::{Buf, Reactor, SgList};
use sim::oracle::{fill_cell, read_cell};
use sim::{Handle, NodeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What became of an attempt to write a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Nobody knows (yet).
    Open,
    /// It ended without an answer and will not be done any more; it may have been done.
    Over,
    /// It was done.
    Done,
    /// It was not and will not be.
    Never,
}

#[derive(Clone, Copy)]
struct Value {
    before: u64,
    depth: u64,
    fate: Fate,
}

#[derive(Default)]
struct Chains {
    last_stamp: u64,
    /// Values written or attempted, by register and stamp.
    values: BTreeMap<(u64, u64), Value>,
    /// Which value was replaced by which, for certain.
    after: BTreeMap<(u64, u64), u64>,
    /// How long each chain is known to be.
    known: BTreeMap<u64, u64>,
}

impl Chains {
    /// `stamp` is or was in register `register` for certain, and so was all before it.
    fn confirm(&mut self, register: u64, stamp: u64) -> Result<u64, String> {
        if stamp == 0 {
            return Ok(0);
        }
        let Some(value) = self.values.get_mut(&(register, stamp)) else {
            return Err(format!("register {register} holds {stamp}, which nobody wrote"));
        };
        if value.fate == Fate::Never {
            return Err(format!("register {register} holds {stamp}, whose compare-and-write was not to be done"));
        }
        value.fate = Fate::Done;
        let value = *value;
        let successor = *self.after.entry((register, value.before)).or_insert(stamp);
        if successor != stamp {
            let before = value.before;
            return Err(format!("register {register}: both {successor} and {stamp} replaced {before}"));
        }
        let known = self.known.entry(register).or_default();
        *known = value.depth.max(*known);
        Ok(value.depth)
    }

    /// The register was seen at `depth` by a read that began after the attempts of `over` had ended: what would have gone
    /// beyond was not done.
    fn rule_out(&mut self, register: u64, depth: u64, over: &[u64]) {
        for stamp in over {
            if let Some(value) = self.values.get_mut(&(register, *stamp))
                && value.fate == Fate::Over
                && value.depth > depth
            {
                value.fate = Fate::Never;
            }
        }
    }

    fn over(&self, register: u64) -> Vec<u64> {
        let range = self.values.range((register, 0)..=(register, u64::MAX));
        range.filter(|(_, value)| value.fate == Fate::Over).map(|((_, stamp), _)| *stamp).collect()
    }
}

/// See the module.
#[derive(Clone)]
pub(super) struct Registers {
    pub(super) sim: Handle,
    /// The first block, and how many there are.
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) block_bytes: usize,
    /// A read beside a write may see parts of both.
    pub(super) torn_reads: bool,
    chains: Rc<RefCell<Chains>>,
}

impl Registers {
    pub(super) fn new(sim: Handle, first: u64, count: u64, block_bytes: usize) -> Registers {
        Registers { sim, first, count, block_bytes, torn_reads: false, chains: Rc::default() }
    }

    async fn filled(&self, reactor: &Rc<Reactor>, register: u64, stamp: u64) -> Buf {
        let mut buf = reactor.pool().alloc(self.block_bytes).await;
        fill_cell(buf.as_mut_slice(), stamp, register as usize);
        buf
    }

    /// Reads a register and checks what it finds.
    pub(super) async fn look(&self, reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, register: u64) -> Option<u64> {
        let (over, known) = {
            let chains = self.chains.borrow();
            (chains.over(register), chains.known.get(&register).copied().unwrap_or(0))
        };
        let buf = reactor.pool().alloc(self.block_bytes).await;
        let done = channel.submit(Io::read(Lba(self.first + register), 1, SgList::from_iter([buf]))).await;
        if !done.status.is_ok() {
            return None;
        }
        let bytes: Vec<u8> = done.io.bufs.iter().flat_map(|buf| buf.as_slice().to_vec()).collect();
        let read = read_cell(&bytes, register as usize);
        if read.is_err() && self.torn_reads {
            return None;
        }
        let found = read.map_err(|damage| format!("register {register} {damage}"));
        let mut chains = self.chains.borrow_mut();
        let depth = found.and_then(|stamp| Ok((stamp, chains.confirm(register, stamp)?)));
        match depth {
            Ok((stamp, depth)) if depth >= known => {
                chains.rule_out(register, depth, &over);
                Some(stamp)
            }
            Ok((stamp, depth)) => {
                let text = format!("register {register} holds {stamp} again ({depth} of at least {known})");
                self.sim.violation(text);
                None
            }
            Err(text) => {
                self.sim.violation(text);
                None
            }
        }
    }

    async fn advance(&self, reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, register: u64, before: u64) {
        let stamp = {
            let chains = &mut *self.chains.borrow_mut();
            chains.last_stamp += 1;
            let depth = chains.values.get(&(register, before)).map_or(0, |value| value.depth) + 1;
            chains.values.insert((register, chains.last_stamp), Value { before, depth, fate: Fate::Open });
            chains.last_stamp
        };
        let old = self.filled(reactor, register, before).await;
        let new = self.filled(reactor, register, stamp).await;
        let io = Io::new(Op::CompareAndWrite, Lba(self.first + register), 1);
        let done = channel.submit(Io { bufs: SgList::from_iter([old, new]), flags: Flags::NONE, ..io }).await;
        let chains = &mut *self.chains.borrow_mut();
        let fate = match done.status {
            Status::Ok => return self.sim_expect(chains.confirm(register, stamp)),
            Status::Miscompare => Fate::Never,
            // After the fence: it has been done or will not be.
            Status::Aborted => Fate::Over,
            _ => return,
        };
        let value = chains.values.get_mut(&(register, stamp)).expect("inserted above");
        let holds = fate == Fate::Over || value.fate != Fate::Done;
        self.sim.expect(holds, || format!("register {register} held {stamp}, whose compare is said to have failed"));
        if value.fate == Fate::Open {
            value.fate = fate;
        }
    }

    fn sim_expect(&self, result: Result<u64, String>) {
        if let Err(text) = result {
            self.sim.violation(text);
        }
    }

    /// One task's work.
    pub(super) async fn work(self, reactor: Rc<Reactor>, channel: Rc<dyn Channel>, node: NodeId, count: u64) {
        let mut rng = self.sim.rng();
        for _ in 0..count {
            let register = rng.below(self.count);
            let Some(before) = self.look(&reactor, &channel, register).await else { continue };
            // Some time for another one to come between.
            reactor.sleep_ns(rng.below(200_000)).await;
            if !self.sim.alive(node) {
                return;
            }
            self.advance(&reactor, &channel, register, before).await;
        }
    }
}
