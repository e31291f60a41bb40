//! Faults on demand: failed, lost, misdirected and rotten operations, by operation, range, rate or count. Rules can be
//! changed while I/O runs.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::filter::{Filter, Policy};
use crate::io::{Done, Flags, Io, Lba, Op, OpSet, Status};
use crate::steps;
use base::Rng;
use reactor::{IoFuture, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Most rules of one device.
pub const RULES_MAX: usize = 64;

/// What happens to an operation that a rule picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this status, without being done.
    Fail(Status),
    /// It is done, then reported as failed.
    FailAfter(Status),
    /// A write is acknowledged and not done. Other operations are done.
    Lose,
    /// A write goes so many blocks further (around the end). Other operations are done at their place.
    Misdirect(u64),
    /// One bit of what was read, or of what is written, is flipped.
    FlipBit,
}

/// Which of the matching operations a rule picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All.
    Always,
    /// One in `n` on average.
    OneIn(u64),
    /// The `n`-th (from 1) since the rule was set, over all reactors.
    Nth(u64),
    /// All from the `n`-th on, counted so.
    From(u64),
}

/// One rule; the first that picks an operation decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRule {
    /// Operations it looks at.
    pub ops: OpSet,
    /// First block of the range it looks at.
    pub lba: Lba,
    /// Blocks in that range; operations that touch it match, and so do those without a range.
    pub blocks: u64,
    /// Which of those it picks.
    pub when: When,
    /// What happens to them.
    pub fault: Fault,
}

impl ErrorRule {
    /// `fault` for all operations `ops`, anywhere.
    pub fn always(ops: &[Op], fault: Fault) -> ErrorRule {
        ErrorRule { ops: OpSet::of(ops), lba: Lba(0), blocks: u64::MAX, when: When::Always, fault }
    }
}

struct RuleState {
    rule: ErrorRule,
    matched: AtomicU64,
    hits: AtomicU64,
}

impl RuleState {
    fn picks(&self, io: &Io, rng: &mut Rng) -> bool {
        let ErrorRule { ops, lba, blocks, when, .. } = self.rule;
        let inside = matches!(io.op, Op::Flush | Op::CryptoErase)
            || (io.lba.0 < lba.0.saturating_add(blocks) && lba.0 < io.end());
        if !ops.contains(io.op) || !inside {
            return false;
        }
        let matched = self.matched.fetch_add(1, Ordering::Relaxed) + 1;
        let picked = match when {
            When::Always => true,
            When::OneIn(n) => rng.one_in(n),
            When::Nth(n) => matched == n,
            When::From(n) => matched >= n,
        };
        self.hits.fetch_add(picked as u64, Ordering::Relaxed);
        picked
    }
}

/// See the module.
pub type ErrorDevice = Filter<ErrorPolicy>;

/// The rules of an [`ErrorDevice`].
pub struct ErrorPolicy {
    seed: u64,
    /// Counts changes; channels look at it before each operation and take the rules anew when it moved.
    generation: AtomicU64,
    /// Locked only to change the rules or to take them anew.
    rules: Mutex<Arc<[RuleState]>>,
}

impl ErrorDevice {
    /// `child` with faults; `seed` fixes the random ones.
    pub fn new(
        name: &str,
        child: Arc<dyn BlockDevice>,
        rules: &[ErrorRule],
        seed: u64,
    ) -> Result<ErrorDevice, DeviceError> {
        let policy = ErrorPolicy { seed, generation: AtomicU64::new(0), rules: Mutex::new(Arc::new([])) };
        let device = ErrorDevice { name: name.to_string(), child, policy: Arc::new(policy) };
        device.set_rules(rules)?;
        Ok(device)
    }

    /// Replaces all rules, and starts their counts anew.
    pub fn set_rules(&self, rules: &[ErrorRule]) -> Result<(), DeviceError> {
        if rules.len() > RULES_MAX {
            let reason = format!("{} rules, at most {RULES_MAX} are possible", rules.len());
            return Err(DeviceError::Config { device: self.name.clone(), reason });
        }
        let new =
            rules.iter().map(|rule| RuleState { rule: *rule, matched: AtomicU64::new(0), hits: AtomicU64::new(0) });
        *self.policy.rules.lock().expect("nothing panics while holding the rules") = new.collect();
        self.policy.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The rules, and how many operations each has picked.
    pub fn rules(&self) -> Vec<(ErrorRule, u64)> {
        let rules = self.policy.rules.lock().expect("nothing panics while holding the rules");
        rules.iter().map(|state| (state.rule, state.hits.load(Ordering::Relaxed))).collect()
    }
}

impl Policy for ErrorPolicy {
    const KIND: &'static str = "error";

    fn channel(self: &Arc<Self>, child: Rc<dyn Channel>, info: DeviceInfo, reactor: &Rc<Reactor>) -> Rc<dyn Channel> {
        Rc::new(ErrorChannel {
            child,
            policy: self.clone(),
            generation: Cell::new(u64::MAX),
            rules: RefCell::new(Arc::new([])),
            rng: RefCell::new(Rng::new(self.seed ^ (reactor.index() as u64) << 32)),
            reactor: reactor.clone(),
            info,
        })
    }
}

struct ErrorChannel {
    child: Rc<dyn Channel>,
    policy: Arc<ErrorPolicy>,
    generation: Cell<u64>,
    rules: RefCell<Arc<[RuleState]>>,
    rng: RefCell<Rng>,
    reactor: Rc<Reactor>,
    info: DeviceInfo,
}

impl ErrorChannel {
    fn decide(&self, io: &Io) -> Option<Fault> {
        let generation = self.policy.generation.load(Ordering::Acquire);
        if self.generation.replace(generation) != generation {
            *self.rules.borrow_mut() =
                self.policy.rules.lock().expect("nothing panics while holding the rules").clone();
        }
        let rng = &mut *self.rng.borrow_mut();
        self.rules.borrow().iter().find(|state| state.picks(io, rng)).map(|state| state.rule.fault)
    }
}

impl Channel for ErrorChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let Some(fault) = self.decide(&io) else { return self.child.submit(io) };
        match fault {
            Fault::Fail(status) => IoFuture::ready(io.done(status)),
            Fault::FailAfter(status) => IoFuture::new(async move {
                let done = self.child.submit(io).await;
                done.io.done(status)
            }),
            Fault::Lose if io.op == Op::Write => IoFuture::ready(io.done(Status::Ok)),
            Fault::Misdirect(by) if io.op == Op::Write => {
                let at = (io.lba.0 + by) % (self.info.blocks - io.nblocks as u64 + 1);
                crate::split::pass(&*self.child, at, io)
            }
            Fault::Lose | Fault::Misdirect(_) => self.child.submit(io),
            Fault::FlipBit => {
                let bit = self.rng.borrow_mut().next_u64();
                let (child, reactor, block_size) = (self.child.clone(), self.reactor.clone(), self.info.block_size);
                IoFuture::steps(&self.reactor, async move { flip(&reactor, &*child, io, bit, block_size).await })
            }
        }
    }

    fn abort(&self, tag: u64) {
        self.child.abort(tag);
    }
}

/// Reads and flips, or writes a copy with a flipped bit.
async fn flip(reactor: &Rc<Reactor>, child: &dyn Channel, mut io: Io, bit: u64, block_size: u32) -> Done {
    if io.op == Op::Read {
        if let Err(status) = steps::provide(reactor, &mut io, block_size).await {
            return io.done(status);
        }
        let mut done = child.submit(io).await;
        if done.status.is_ok() {
            flip_in(&mut done.io.bufs, bit);
        }
        return done;
    }
    if io.op != Op::Write {
        return child.submit(io).await;
    }
    let mut copy = match steps::duplicate_data(reactor, &io.bufs).await {
        Ok(copy) => copy,
        Err(status) => return io.done(status),
    };
    flip_in(&mut copy, bit);
    let flags = Flags(io.flags.0 & !Flags::LOAN.0);
    let done = child.submit(Io { flags, ..Io::write(io.lba, io.nblocks, copy) }).await;
    io.done(done.status)
}

fn flip_in(bufs: &mut reactor::SgList, bit: u64) {
    let bits = reactor::buf::sg_len(bufs) as u64 * 8;
    if bits == 0 {
        return;
    }
    let mut at = (bit % bits / 8) as usize;
    for buf in bufs {
        if at < buf.len() {
            buf.as_mut_slice()[at] ^= 1 << (bit % 8);
            return;
        }
        at -= buf.len();
    }
}
