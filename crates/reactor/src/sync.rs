//! Waiting between tasks of one reactor: a notification and a join handle. Nothing here crosses threads.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Wakes every task that waits for it. The waiter re-checks its own condition.
#[derive(Default)]
pub struct Notify {
    waiters: RefCell<Vec<Waker>>,
    epoch: Cell<u64>,
}

impl Notify {
    /// Wakes all current waiters.
    pub fn notify_all(&self) {
        self.epoch.set(self.epoch.get() + 1);
        let waiters = self.waiters.take();
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Waits for the next notification after this call.
    pub fn notified(&self) -> impl Future<Output = ()> + '_ {
        let since = self.epoch.get();
        std::future::poll_fn(move |cx| {
            if self.epoch.get() != since {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Waits until `ready` says so, looking again after each notification.
    pub async fn wait_until(&self, mut ready: impl FnMut() -> bool) {
        while !ready() {
            self.notified().await;
        }
    }
}

struct JoinState<T> {
    value: Option<T>,
    finished: bool,
    waker: Option<Waker>,
}

/// The result of a task started with `spawn_join`.
pub struct JoinHandle<T>(Rc<RefCell<JoinState<T>>>);

impl<T> JoinHandle<T> {
    /// Whether the task has completed.
    pub fn is_finished(&self) -> bool {
        self.0.borrow().finished
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.borrow_mut();
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

pub(crate) fn join_pair<T>() -> (JoinHandle<T>, impl FnOnce(T)) {
    let state = Rc::new(RefCell::new(JoinState { value: None, finished: false, waker: None }));
    let handle = JoinHandle(state.clone());
    let complete = move |value| {
        let mut state = state.borrow_mut();
        state.value = Some(value);
        state.finished = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    (handle, complete)
}
