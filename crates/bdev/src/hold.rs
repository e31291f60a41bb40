//! Holding operations up before they are passed on: what delay and rate limit have in common. An abort ends the wait, and
//! a change of the rule reaches those that wait.

use crate::device::Channel;
use crate::io::{Done, Io, Status};
use reactor::{IoFuture, Reactor};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// How soon operations that are held up notice that the rule has changed. Nothing can reach them across reactors without a
/// registry of channels, and a look every fifty milliseconds costs nothing beside a wait of that length.
pub const HOLD_LOOK_NS: u64 = 50_000_000;

/// When operations may go on.
pub(crate) trait Pace: 'static {
    /// Moves with every change of the rule.
    fn changes(&self) -> u64;
    /// When an operation that came at `came_ns` may go on, by the rule as it is at `now_ns`. Asked once, and again after
    /// a change.
    fn due_ns(&self, io: &Io, came_ns: u64, now_ns: u64) -> u64;
}

/// A channel, and the operations that wait before it.
pub(crate) struct Hold<P> {
    child: Rc<dyn Channel>,
    reactor: Rc<Reactor>,
    waiting: Rc<RefCell<Waiting>>,
    pace: Rc<P>,
}

/// Places are used again, so a steady load allocates nothing; what bounds them is the number of operations under way.
#[derive(Default)]
struct Waiting {
    places: Vec<Option<Waiter>>,
    free: Vec<usize>,
}

struct Waiter {
    tag: u64,
    aborted: bool,
    waker: Option<Waker>,
}

/// A place in [`Waiting`], given back on drop.
struct Place {
    waiting: Rc<RefCell<Waiting>>,
    index: usize,
}

impl Place {
    fn take(waiting: Rc<RefCell<Waiting>>, tag: u64) -> Place {
        let waiter = Some(Waiter { tag, aborted: false, waker: None });
        let mut inside = waiting.borrow_mut();
        let index = match inside.free.pop() {
            Some(index) => {
                inside.places[index] = waiter;
                index
            }
            None => {
                inside.places.push(waiter);
                inside.places.len() - 1
            }
        };
        drop(inside);
        Place { waiting, index }
    }

    /// Waits for `end`; false when an abort came first.
    async fn wait(&self, mut end: impl Future<Output = ()> + Unpin) -> bool {
        std::future::poll_fn(|cx| {
            let mut waiting = self.waiting.borrow_mut();
            let waiter = waiting.places[self.index].as_mut().expect("a place is held until it is dropped");
            if waiter.aborted {
                return Poll::Ready(false);
            }
            waiter.waker = Some(cx.waker().clone());
            drop(waiting);
            Pin::new(&mut end).poll(cx).map(|()| true)
        })
        .await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.places[self.index] = None;
        waiting.free.push(self.index);
    }
}

impl<P: Pace> Hold<P> {
    pub(crate) fn new(child: Rc<dyn Channel>, reactor: &Rc<Reactor>, pace: P) -> Hold<P> {
        Hold { child, reactor: reactor.clone(), waiting: Rc::default(), pace: Rc::new(pace) }
    }
}

impl<P: Pace> Channel for Hold<P> {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let (came_ns, mut changes) = (self.reactor.now_ns(), self.pace.changes());
        let mut due_ns = self.pace.due_ns(&io, came_ns, came_ns);
        if due_ns <= came_ns {
            return self.child.submit(io);
        }
        let (child, reactor, pace) = (self.child.clone(), self.reactor.clone(), self.pace.clone());
        let place = Place::take(self.waiting.clone(), io.tag);
        let mut sleep = reactor.sleep_ns((due_ns - came_ns).min(HOLD_LOOK_NS));
        IoFuture::steps(&self.reactor, async move {
            loop {
                if !place.wait(sleep).await {
                    return io.done(Status::Aborted);
                }
                let (now_ns, changes_now) = (reactor.now_ns(), pace.changes());
                if changes_now != changes {
                    (changes, due_ns) = (changes_now, pace.due_ns(&io, came_ns, now_ns));
                }
                if due_ns <= now_ns {
                    drop(place);
                    return child.submit(io).await;
                }
                sleep = reactor.sleep_ns((due_ns - now_ns).min(HOLD_LOOK_NS));
            }
        })
    }

    /// Ends the wait of operations with this tag, and tries to end those that were passed on.
    fn abort(&self, tag: u64) {
        for waiter in self.waiting.borrow_mut().places.iter_mut().flatten().filter(|waiter| waiter.tag == tag) {
            waiter.aborted = true;
            if let Some(waker) = waiter.waker.take() {
                waker.wake();
            }
        }
        self.child.abort(tag);
    }
}
