//! Holding operations up before they are passed on: what delay and rate limit have in common. An abort ends the wait.

use crate::device::Channel;
use crate::io::{Done, Io, Status};
use reactor::{IoFuture, Reactor};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A channel, and the operations that wait before it.
pub(crate) struct Hold {
    child: Rc<dyn Channel>,
    reactor: Rc<Reactor>,
    waiting: Rc<RefCell<Waiting>>,
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
    async fn wait(self, mut end: impl Future<Output = ()> + Unpin) -> bool {
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

impl Hold {
    pub(crate) fn new(child: Rc<dyn Channel>, reactor: &Rc<Reactor>) -> Hold {
        Hold { child, reactor: reactor.clone(), waiting: Rc::default() }
    }

    /// Passes an operation on after `pause_ns`.
    pub(crate) fn submit(&self, io: Io, pause_ns: u64) -> IoFuture<'_, Done> {
        if pause_ns == 0 {
            return self.child.submit(io);
        }
        let (child, sleep) = (self.child.clone(), self.reactor.sleep_ns(pause_ns));
        let place = Place::take(self.waiting.clone(), io.tag);
        IoFuture::steps(&self.reactor, async move {
            if place.wait(sleep).await { child.submit(io).await } else { io.done(Status::Aborted) }
        })
    }

    /// Ends the wait of operations with this tag, and tries to end those that were passed on.
    pub(crate) fn abort(&self, tag: u64) {
        for waiter in self.waiting.borrow_mut().places.iter_mut().flatten().filter(|waiter| waiter.tag == tag) {
            waiter.aborted = true;
            if let Some(waker) = waiter.waker.take() {
                waker.wake();
            }
        }
        self.child.abort(tag);
    }
}
