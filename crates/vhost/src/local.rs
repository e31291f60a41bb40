//! The queues of one reactor: one poller looks at all of them.

use crate::queue::Queue;
use reactor::{Poller, Reactor};
use std::cell::RefCell;
use std::rc::Rc;

/// Under which number a reactor keeps its part.
const KEPT: u64 = u64::from_be_bytes(*b"vhostblk");

/// A reactor's queues.
#[derive(Default)]
struct Queues(RefCell<Vec<Rc<Queue>>>);

/// What the reactor keeps: the queues, once they are polled.
struct Local(Rc<Queues>);

/// The queues of a reactor.
fn of(reactor: &Rc<Reactor>) -> Rc<Queues> {
    let make = || {
        let queues = Rc::new(Queues::default());
        reactor.add_poller(queues.clone());
        Local(queues)
    };
    reactor.kept_or::<Local>(KEPT, make).0.clone()
}

/// Polls `queue` from now on.
pub(crate) fn add(reactor: &Rc<Reactor>, queue: &Rc<Queue>) {
    of(reactor).0.borrow_mut().push(queue.clone());
}

/// Polls `queue` no more.
pub(crate) fn remove(reactor: &Rc<Reactor>, queue: &Rc<Queue>) {
    of(reactor).0.borrow_mut().retain(|other| !Rc::ptr_eq(other, queue));
}

impl Poller for Queues {
    #[inline]
    fn poll(&self) -> usize {
        // Nothing that a poll calls adds or removes queues: those are messages of their own.
        self.0.borrow().iter().map(Queue::poll).sum()
    }

    fn sleep_max_ns(&self) -> Option<u64> {
        None
    }

    fn arm(&self) -> bool {
        // (who has found work keeps the reactor awake: the others are asked again before its next sleep)
        self.0.borrow().iter().any(|queue| queue.arm())
    }
}
