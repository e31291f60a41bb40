//! What stands between the target and its device: operations that are held up for long, and the defects that the checkers
//! must notice.

use base::Rng;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Flags, Io, Op, Status};
use reactor::buf::{sg_len, sg_split_off};
use reactor::{IoFuture, Reactor, SgList};
use sim::Mutation;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// How long the halves of a split operation stand apart, and how long an answer waits for another to be exchanged with.
const APART_NS: u64 = 300_000;

/// What to do to the operations of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tampering {
    pub(super) seed: u64,
    /// One in so many modifying operations is held up; 0 is none.
    pub(super) hold: u64,
    /// For how long at most, ns.
    pub(super) hold_max_ns: u64,
    pub(super) mutation: Option<Mutation>,
}

/// See the module.
pub(super) struct Tamper {
    child: Arc<dyn BlockDevice>,
    how: Tampering,
}

impl Tamper {
    pub(super) fn new(child: Arc<dyn BlockDevice>, how: Tampering) -> Tamper {
        Tamper { child, how }
    }
}

impl BlockDevice for Tamper {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        "tamper"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(TamperChannel {
            child: self.child.open_channel(reactor)?,
            how: self.how,
            rng: RefCell::new(Rng::new(self.how.seed ^ (reactor.index() as u64) << 32)),
            reactor: reactor.clone(),
            waiting: Rc::default(),
        }))
    }

    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        self.child.resize(reactor, blocks)
    }
}

struct TamperChannel {
    child: Rc<dyn Channel>,
    how: Tampering,
    rng: RefCell<Rng>,
    reactor: Rc<Reactor>,
    /// The data of a read that waits for another one.
    waiting: Rc<RefCell<Option<SgList>>>,
}

impl TamperChannel {
    fn is(&self, mutation: Mutation) -> bool {
        self.how.mutation == Some(mutation)
    }

    fn one_in(&self, n: u64) -> bool {
        self.rng.borrow_mut().one_in(n)
    }
}

impl Channel for TamperChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let (child, reactor) = (self.child.clone(), self.reactor.clone());
        if io.op.modifies() && self.one_in(self.how.hold) {
            let pause_ns = self.rng.borrow_mut().below(self.how.hold_max_ns);
            return IoFuture::steps(&self.reactor, async move {
                reactor.sleep_ns(pause_ns).await;
                child.submit(io).await
            });
        }
        if io.op == Op::Copy && self.is(Mutation::DropCopies) && self.one_in(2) {
            return IoFuture::ready(Done { status: Status::Ok, io });
        }
        if io.op == Op::CompareAndWrite && self.is(Mutation::SplitCompareAndWrite) {
            return IoFuture::steps(&self.reactor, split(reactor, child, io));
        }
        if io.op == Op::Read && self.is(Mutation::CrossReplies) && self.one_in(2) {
            return IoFuture::steps(&self.reactor, exchange(reactor, child, io, self.waiting.clone()));
        }
        self.child.submit(io)
    }

    fn abort(&self, tag: u64) {
        self.child.abort(tag);
    }
}

async fn split(reactor: Rc<Reactor>, child: Rc<dyn Channel>, mut io: Io) -> Done {
    let half = sg_len(&io.bufs) / 2;
    let new = sg_split_off(&mut io.bufs, half);
    let write = Io { flags: io.flags, ..Io::write(io.lba, io.nblocks, new) };
    let compared = child.submit(Io { op: Op::Compare, flags: Flags::NONE, ..io }).await;
    if compared.status != Status::Ok {
        return compared;
    }
    reactor.sleep_ns(APART_NS).await;
    child.submit(write).await
}

/// A read that gives its data to the next one of the same length, and gets that one's.
async fn exchange(reactor: Rc<Reactor>, child: Rc<dyn Channel>, io: Io, waiting: Rc<RefCell<Option<SgList>>>) -> Done {
    let mut done = child.submit(io).await;
    let other = waiting.borrow_mut().take();
    match other {
        Some(other) if sg_len(&other) == sg_len(&done.io.bufs) => {
            waiting.replace(Some(std::mem::replace(&mut done.io.bufs, other)));
        }
        Some(other) => {
            waiting.replace(Some(other));
        }
        None => {
            let bufs = std::mem::take(&mut done.io.bufs);
            waiting.replace(Some(bufs));
            reactor.sleep_ns(APART_NS).await;
            done.io.bufs = waiting.borrow_mut().take().expect("whoever takes it leaves another");
        }
    }
    done
}
