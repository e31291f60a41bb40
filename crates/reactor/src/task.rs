//! Tasks: the unit the executor schedules. One block holds header and future; wakers are counted references to it.
//!
//! Invariants: a future is polled and dropped only on the thread that owns its executor; a waker may go anywhere. While it is
//! polled it is neither polled nor dropped by what it calls, a turn of the reactor or its end: that waits until the poll has ended.
//! A task is in the ready queue at most once (`queued`). The block is freed when the last reference goes, on whatever thread.

use crate::block;
use crate::exec::ExecShared;
use std::alloc::Layout;
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, RawWaker, RawWakerVTable, Waker};

struct Header {
    refs: AtomicU32,
    queued: AtomicBool,
    /// Only the owner thread reads or writes these three.
    finished: Cell<bool>,
    polled: Cell<Polled>,
    registry_index: Cell<u32>,
    exec: Arc<ExecShared>,
    table: &'static TaskTable,
}

/// Whether a future is being polled, and what is to be done with it afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Polled {
    Not,
    Now,
    /// It was taken out of the ready queue by a turn that it takes itself, and belongs there again.
    NowThenAgain,
    NowThenDropped,
}

struct TaskTable {
    /// Polls the future; true when it has completed.
    poll: unsafe fn(NonNull<Header>, &mut Context<'_>) -> bool,
    drop_future: unsafe fn(NonNull<Header>),
    layout: Layout,
}

#[repr(C)]
struct Block<F> {
    header: Header,
    future: UnsafeCell<ManuallyDrop<F>>,
}

struct TableOf<F>(std::marker::PhantomData<F>);

impl<F: Future<Output = ()>> TableOf<F> {
    const TABLE: TaskTable =
        TaskTable { poll: poll_raw::<F>, drop_future: drop_raw::<F>, layout: Layout::new::<Block<F>>() };
}

/// # Safety
/// `header` starts a live `Block<F>` whose future was not dropped, on the owner thread.
unsafe fn poll_raw<F: Future<Output = ()>>(header: NonNull<Header>, cx: &mut Context<'_>) -> bool {
    // SAFETY: by the caller; the future never moves, and only the owner thread reaches it.
    let slot: &mut ManuallyDrop<F> = unsafe { &mut *header.cast::<Block<F>>().as_ref().future.get() };
    // SAFETY: the block does not move until it is freed, after the future was dropped in place.
    unsafe { Pin::new_unchecked(&mut **slot) }.poll(cx).is_ready()
}

/// # Safety
/// As [`poll_raw`]; the future is not used again.
unsafe fn drop_raw<F>(header: NonNull<Header>) {
    // SAFETY: by the caller.
    unsafe { ManuallyDrop::drop(&mut *header.cast::<Block<F>>().as_ref().future.get()) }
}

/// A counted reference to a task.
pub(crate) struct TaskRef(NonNull<Header>);

// SAFETY: other threads only touch the atomics of the header, the `Arc` inside it and, when theirs is the last
// reference, the block itself, whose future was dropped by the owner thread before (`finish` or `cancel`).
unsafe impl Send for TaskRef {}

impl Clone for TaskRef {
    fn clone(&self) -> Self {
        self.header().refs.fetch_add(1, Ordering::Relaxed);
        TaskRef(self.0)
    }
}

impl Drop for TaskRef {
    fn drop(&mut self) {
        if self.header().refs.fetch_sub(1, Ordering::Release) == 1 {
            std::sync::atomic::fence(Ordering::Acquire);
            let layout = self.header().table.layout;
            // SAFETY: this was the last reference. The executor holds one until the future is dropped, so only the
            // header's own fields remain to be dropped.
            unsafe {
                self.0.drop_in_place();
                block::give(self.0.cast(), layout);
            }
        }
    }
}

impl TaskRef {
    /// A new task for `future`, referenced once, not queued.
    pub(crate) fn new<F: Future<Output = ()> + 'static>(exec: Arc<ExecShared>, future: F) -> TaskRef {
        let table: &'static TaskTable = const { &TableOf::<F>::TABLE };
        let header = Header {
            refs: AtomicU32::new(1),
            queued: AtomicBool::new(false),
            finished: Cell::new(false),
            polled: Cell::new(Polled::Not),
            registry_index: Cell::new(u32::MAX),
            exec,
            table,
        };
        let block = block::take(table.layout).cast::<Block<F>>();
        // SAFETY: the block was taken with this layout.
        unsafe { block.write(Block { header, future: UnsafeCell::new(ManuallyDrop::new(future)) }) };
        TaskRef(block.cast())
    }

    fn header(&self) -> &Header {
        // SAFETY: a reference keeps the block alive.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn registry_index(&self) -> &Cell<u32> {
        &self.header().registry_index
    }

    /// Marks the task queued; false when it already was.
    pub(crate) fn mark_queued(&self) -> bool {
        !self.header().queued.swap(true, Ordering::AcqRel)
    }

    /// Polls the future once, on the owner thread; true when the task has just ended.
    pub(crate) fn poll(&self) -> bool {
        let header = self.header();
        if header.finished.get() {
            return false;
        }
        if header.polled.get() != Polled::Not {
            if header.polled.get() == Polled::Now {
                // It stays marked as queued.
                header.polled.set(Polled::NowThenAgain);
            }
            return false;
        }
        header.queued.store(false, Ordering::Release);
        // SAFETY: the vtable is this module's; `ManuallyDrop` keeps this borrowed waker from giving up a reference that
        // it does not own, and `self` outlives it.
        let waker = ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(self.0.as_ptr().cast(), &WAKER)) });
        let mut cx = Context::from_waker(&waker);
        header.polled.set(Polled::Now);
        let poll = PollUnderWay(&header.polled);
        // SAFETY: not finished, so the future is live, and nobody else polls it; the executor polls on the owner thread only.
        let done = unsafe { (header.table.poll)(self.0, &mut cx) };
        let then = header.polled.get();
        drop(poll);
        let has_ended = done || then == Polled::NowThenDropped;
        if has_ended {
            self.drop_future();
        } else if then == Polled::NowThenAgain {
            header.exec.enqueue(self.clone());
        }
        has_ended
    }

    /// Drops the future of a task that will not run again, on the owner thread: at once, or when the poll that is under way has ended.
    pub(crate) fn drop_future(&self) {
        let header = self.header();
        if header.polled.get() != Polled::Not {
            header.polled.set(Polled::NowThenDropped);
        } else if !header.finished.replace(true) {
            // SAFETY: the flag makes this the only drop, on the owner thread, and nobody is in the future.
            unsafe { (header.table.drop_future)(self.0) };
        }
    }

    fn wake(&self) {
        if self.mark_queued() {
            self.header().exec.enqueue(self.clone());
        }
    }
}

/// Ends with the poll, also with one that panics.
struct PollUnderWay<'a>(&'a Cell<Polled>);

impl Drop for PollUnderWay<'_> {
    fn drop(&mut self) {
        self.0.set(Polled::Not);
    }
}

static WAKER: RawWakerVTable = RawWakerVTable::new(waker_clone, waker_wake, waker_wake_by_ref, waker_drop);

/// # Safety
/// `data` is a task header kept alive by the waker at hand; the result borrows that waker's reference.
unsafe fn borrow(data: *const ()) -> ManuallyDrop<TaskRef> {
    // SAFETY: wakers are made from non-null headers only.
    ManuallyDrop::new(TaskRef(unsafe { NonNull::new_unchecked(data as *mut Header) }))
}

unsafe fn waker_clone(data: *const ()) -> RawWaker {
    // SAFETY: by the contract of RawWakerVTable the waker is alive.
    std::mem::forget(TaskRef::clone(&*unsafe { borrow(data) }));
    RawWaker::new(data, &WAKER)
}

unsafe fn waker_wake(data: *const ()) {
    // SAFETY: as above; the waker's own reference is then given up.
    let task = ManuallyDrop::into_inner(unsafe { borrow(data) });
    task.wake();
}

unsafe fn waker_wake_by_ref(data: *const ()) {
    // SAFETY: as above.
    unsafe { borrow(data) }.wake();
}

unsafe fn waker_drop(data: *const ()) {
    // SAFETY: as above.
    drop(ManuallyDrop::into_inner(unsafe { borrow(data) }));
}
