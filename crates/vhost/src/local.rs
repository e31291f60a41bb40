//! The queues of one reactor: one poller looks at all of them.
//!
//! Half of the reactor's buffers may hold data of their requests, in equal shares, so that neither a guest with large
//! requests nor all guests together keep buffers from other guests and from hosts. A queue whose share is out leaves its
//! chains where they are until a request of its own has ended; a share holds one request at least.

use crate::queue::Queue;
use reactor::{Poller, Reactor};
use std::cell::RefCell;
use std::rc::Rc;

/// Under which number a reactor keeps its part.
const KEPT: u64 = u64::from_be_bytes(*b"vhostblk");

/// A reactor's queues.
struct Queues {
    list: RefCell<Vec<Rc<Queue>>>,
    /// Bytes that they share.
    bytes: u64,
}

/// What the reactor keeps: the queues, once they are polled.
struct Local(Rc<Queues>);

/// The queues of a reactor.
fn of(reactor: &Rc<Reactor>) -> Rc<Queues> {
    let make = || {
        let bytes = reactor.pool().bytes_max() as u64 / 2;
        let queues = Rc::new(Queues { list: RefCell::default(), bytes });
        reactor.add_poller(queues.clone());
        Local(queues)
    };
    reactor.kept_or::<Local>(KEPT, make).0.clone()
}

/// Polls `queue` from now on.
pub(crate) fn add(reactor: &Rc<Reactor>, queue: &Rc<Queue>) {
    of(reactor).list.borrow_mut().push(queue.clone());
}

/// Polls `queue` no more.
pub(crate) fn remove(reactor: &Rc<Reactor>, queue: &Rc<Queue>) {
    of(reactor).list.borrow_mut().retain(|other| !Rc::ptr_eq(other, queue));
}

impl Queues {
    /// Bytes that each queue may have under way.
    fn share(&self) -> u64 {
        self.bytes / self.list.borrow().len().max(1) as u64
    }
}

impl Poller for Queues {
    #[inline]
    fn poll(&self) -> usize {
        let share = self.share();
        // Nothing that a poll calls adds or removes queues: those are messages of their own.
        self.list.borrow().iter().map(|queue| queue.poll(share)).sum()
    }

    fn sleep_max_ns(&self) -> Option<u64> {
        None
    }

    fn arm(&self) -> bool {
        let share = self.share();
        // (who has found work keeps the reactor awake: the others are asked again before its next sleep)
        self.list.borrow().iter().any(|queue| queue.arm(share))
    }
}
