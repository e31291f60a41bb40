//! The executor of one reactor: a ready queue of local tasks and a door through which other threads wake them.

use crate::driver::RemoteWake;
use crate::gate::SleepGate;
use crate::task::TaskRef;
use crossbeam_queue::SegQueue;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static THREAD_TOKEN: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// A number unique to the calling thread.
#[inline]
pub(crate) fn thread_token() -> u64 {
    THREAD_TOKEN.with(|token| *token)
}

/// The part of an executor that wakers on any thread may touch.
pub(crate) struct ExecShared {
    owner: u64,
    /// Touched by the owner thread only.
    ready: UnsafeCell<VecDeque<TaskRef>>,
    woken_elsewhere: SegQueue<TaskRef>,
    pub(crate) gate: SleepGate,
    pub(crate) waker: Arc<dyn RemoteWake>,
}

// SAFETY: `ready` is reached only when `thread_token()` equals `owner`; everything else is thread-safe by itself.
unsafe impl Send for ExecShared {}
// SAFETY: as above.
unsafe impl Sync for ExecShared {}

impl ExecShared {
    #[inline]
    pub(crate) fn enqueue(&self, task: TaskRef) {
        if thread_token() == self.owner {
            // SAFETY: this is the owner thread, and the borrow ends before anything else can run.
            unsafe { (*self.ready.get()).push_back(task) };
        } else {
            self.woken_elsewhere.push(task);
            self.wake_if_asleep();
        }
    }

    /// To be called by other threads after they have published something for this reactor.
    pub(crate) fn wake_if_asleep(&self) {
        if self.gate.notify() {
            self.waker.wake();
        }
    }
}

/// The executor itself; lives and dies on one thread.
pub(crate) struct Executor {
    pub(crate) shared: Arc<ExecShared>,
    registry: RefCell<Vec<Option<TaskRef>>>,
    registry_free: RefCell<Vec<u32>>,
    live: Cell<usize>,
    closed: Cell<bool>,
}

impl Executor {
    pub(crate) fn new(waker: Arc<dyn RemoteWake>) -> Self {
        let shared = ExecShared {
            owner: thread_token(),
            ready: UnsafeCell::new(VecDeque::with_capacity(1024)),
            woken_elsewhere: SegQueue::new(),
            gate: SleepGate::new(),
            waker,
        };
        Executor {
            shared: Arc::new(shared),
            registry: RefCell::default(),
            registry_free: RefCell::default(),
            live: Cell::new(0),
            closed: Cell::new(false),
        }
    }

    /// Starts `future` in a later turn step.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        if self.closed.get() {
            return;
        }
        let task = self.register(future);
        task.mark_queued();
        self.shared.enqueue(task);
    }

    /// Polls `future` at once; it becomes a queued task only if it has to wait.
    #[inline]
    pub(crate) fn spawn_eager(&self, future: impl Future<Output = ()> + 'static) {
        if self.closed.get() {
            return;
        }
        let task = TaskRef::new(self.shared.clone(), future);
        if task.poll() {
            return;
        }
        // It may have been closed by the task.
        if self.closed.get() {
            task.drop_future();
        } else {
            self.enrol(task);
        }
    }

    fn register(&self, future: impl Future<Output = ()> + 'static) -> TaskRef {
        let task = TaskRef::new(self.shared.clone(), future);
        self.enrol(task.clone());
        task
    }

    fn enrol(&self, task: TaskRef) {
        let mut registry = self.registry.borrow_mut();
        let index = self.registry_free.borrow_mut().pop().unwrap_or_else(|| {
            registry.push(None);
            (registry.len() - 1) as u32
        });
        task.registry_index().set(index);
        registry[index as usize] = Some(task);
        self.live.set(self.live.get() + 1);
    }

    fn retire(&self, task: &TaskRef) {
        if self.closed.get() {
            return;
        }
        let index = task.registry_index().get();
        let held = self.registry.borrow_mut()[index as usize].take();
        self.registry_free.borrow_mut().push(index);
        self.live.set(self.live.get() - 1);
        drop(held);
    }

    /// Runs up to `budget` ready tasks; `pick(n)` chooses which of the `n` ready ones is next. Returns how many ran.
    pub(crate) fn run(&self, budget: usize, shuffle: Option<&dyn Fn(usize) -> usize>) -> usize {
        let mut ran = 0;
        while ran < budget {
            // Looking costs two loads, popping an empty queue a fence.
            while !self.shared.woken_elsewhere.is_empty() {
                let Some(task) = self.shared.woken_elsewhere.pop() else { break };
                self.push_ready(task);
            }
            let Some(task) = self.pop_ready(shuffle) else { break };
            if task.poll() {
                self.retire(&task);
            }
            ran += 1;
        }
        ran
    }

    fn push_ready(&self, task: TaskRef) {
        // SAFETY: the executor lives on the owner thread.
        unsafe { (*self.shared.ready.get()).push_back(task) };
    }

    fn pop_ready(&self, shuffle: Option<&dyn Fn(usize) -> usize>) -> Option<TaskRef> {
        // SAFETY: the executor lives on the owner thread, and the borrow ends with this function.
        let ready = unsafe { &mut *self.shared.ready.get() };
        if let Some(pick) = shuffle
            && ready.len() > 1
        {
            let chosen = pick(ready.len());
            return ready.swap_remove_front(chosen);
        }
        ready.pop_front()
    }

    /// Whether a task is ready to run.
    pub(crate) fn has_ready(&self) -> bool {
        // SAFETY: the executor lives on the owner thread.
        !unsafe { (*self.shared.ready.get()).is_empty() } || !self.shared.woken_elsewhere.is_empty()
    }

    /// How many tasks have been started and not finished.
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Drops every task; those that are being polled, by which this may be called, when that has ended. Dropping may wake or end others;
    /// spawning is refused from now on.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        loop {
            let next = self.registry.borrow_mut().iter_mut().find_map(Option::take);
            let Some(task) = next else { break };
            task.drop_future();
        }
        while self.pop_ready(None).is_some() {}
        while self.shared.woken_elsewhere.pop().is_some() {}
        self.live.set(0);
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.close();
    }
}
