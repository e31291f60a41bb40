//! [`IoFuture`]: a boxed future without the allocator. The value lives in a recycled block (see `block`), or inline when
//! the result is known at once.

use crate::block;
use crate::reactor::Reactor;
use std::alloc::Layout;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

struct VTable<T> {
    poll: unsafe fn(NonNull<u8>, &mut Context<'_>) -> Poll<T>,
    drop: unsafe fn(NonNull<u8>),
    layout: Layout,
}

struct VTableOf<F>(PhantomData<F>);

impl<F: Future> VTableOf<F> {
    const TABLE: VTable<F::Output> = VTable { poll: poll_raw::<F>, drop: drop_raw::<F>, layout: Layout::new::<F>() };
}

/// # Safety
/// `block` holds a live, pinned `F`.
unsafe fn poll_raw<F: Future>(block: NonNull<u8>, cx: &mut Context<'_>) -> Poll<F::Output> {
    // SAFETY: the caller vouches for the value, which never moves out of its block.
    unsafe { Pin::new_unchecked(block.cast::<F>().as_mut()) }.poll(cx)
}

/// # Safety
/// `block` holds a live `F` that is not used again.
unsafe fn drop_raw<F>(block: NonNull<u8>) {
    // SAFETY: by the caller.
    unsafe { block.cast::<F>().drop_in_place() }
}

enum State<T: 'static> {
    Ready(T),
    /// With a reactor, the future is `'static` and goes on there as a task when its waiter goes away.
    Running(NonNull<u8>, &'static VTable<T>, Option<Rc<Reactor>>),
    Finished,
}

/// An operation under way that keeps alive what it was started on; see [`IoFuture::begin`].
pub struct Begun<O: ?Sized + 'static, T: 'static> {
    /// Dropped before `_owner`, which it may borrow from.
    future: IoFuture<'static, T>,
    _owner: Rc<O>,
}

impl<O: ?Sized, T> Future for Begun<O, T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.future).poll(cx)
    }
}

/// A pinned, type-erased, single-threaded future of an I/O operation.
///
/// Dropping it abandons the *wait*, not the operation: devices keep the buffers of an operation under way until the
/// driver has finished with them.
pub struct IoFuture<'a, T: 'static> {
    state: State<T>,
    _borrow: PhantomData<(&'a (), *mut ())>,
}

impl<T> Unpin for IoFuture<'_, T> {}

impl<'a, T> IoFuture<'a, T> {
    /// An operation whose outcome is already known.
    #[inline]
    pub fn ready(value: T) -> Self {
        IoFuture { state: State::Ready(value), _borrow: PhantomData }
    }

    /// Moves `future` into a recycled block. Dropping it drops `future` where it stands: right for a single step below
    /// which somebody else keeps the operation going.
    #[inline]
    pub fn new<F: Future<Output = T> + 'a>(future: F) -> Self {
        IoFuture::in_block(future, None)
    }

    /// As [`new`](Self::new) for an operation of several steps that must not stop between two of them: when its waiter
    /// drops it, the rest runs as a task of `reactor`.
    #[inline]
    pub fn steps<F: Future<Output = T> + 'static>(reactor: &Rc<Reactor>, future: F) -> Self {
        IoFuture::in_block(future, Some(reactor.clone()))
    }

    #[inline]
    fn in_block<F: Future<Output = T>>(future: F, carrier: Option<Rc<Reactor>>) -> Self {
        let table: &'static VTable<T> = const { &VTableOf::<F>::TABLE };
        let block = block::take(table.layout);
        // SAFETY: the block is large and aligned enough for F by its layout.
        unsafe { block.cast::<F>().write(future) };
        IoFuture { state: State::Running(block, table, carrier), _borrow: PhantomData }
    }

    /// Starts an operation on `owner`. Gives the outcome when it is known already, so that no task is needed to wait for it;
    /// otherwise the future, which may go anywhere on this thread since it keeps `owner` alive.
    #[inline]
    pub fn begin<O: ?Sized>(owner: &Rc<O>, submit: impl FnOnce(&O) -> IoFuture<'_, T>) -> Result<T, Begun<O, T>> {
        submit(owner).try_ready().map_err(|mut future| {
            let state = std::mem::replace(&mut future.state, State::Finished);
            // `submit` takes a borrow of any length, so all that its future can borrow from is `owner`, which does not move
            // and outlives the future.
            Begun { future: IoFuture { state, _borrow: PhantomData }, _owner: owner.clone() }
        })
    }

    /// The outcome when it is known already, so that a layer above needs no block of its own; otherwise the future.
    #[inline]
    pub fn try_ready(mut self) -> Result<T, Self> {
        if !matches!(self.state, State::Ready(_)) {
            return Err(self);
        }
        match std::mem::replace(&mut self.state, State::Finished) {
            State::Ready(value) => Ok(value),
            _ => unreachable!("just looked"),
        }
    }
}

impl<T> Future for IoFuture<'_, T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let (block, table) = match &self.state {
            State::Running(block, table, _) => (*block, *table),
            State::Ready(_) => match std::mem::replace(&mut self.state, State::Finished) {
                State::Ready(value) => return Poll::Ready(value),
                _ => unreachable!("just looked"),
            },
            State::Finished => panic!("an I/O future was polled after it had completed"),
        };
        // SAFETY: `Running` means that the block holds a live future made by `in_block`.
        let outcome = unsafe { (table.poll)(block, cx) };
        if outcome.is_ready() {
            self.state = State::Finished;
            // SAFETY: the future is done and its block is referred to by nothing else.
            unsafe {
                (table.drop)(block);
                block::give(block, table.layout);
            }
        }
        outcome
    }
}

impl<T> Drop for IoFuture<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let State::Running(block, table, carrier) = std::mem::replace(&mut self.state, State::Finished) {
            if let Some(reactor) = carrier {
                // Only `steps` sets a carrier, and only for a `'static` future, so this one may outlive `'a`.
                let rest: IoFuture<'static, T> =
                    IoFuture { state: State::Running(block, table, None), _borrow: PhantomData };
                reactor.spawn(async move { drop(rest.await) });
                return;
            }
            // SAFETY: `Running` means that the block holds a live future made by `in_block`.
            unsafe {
                (table.drop)(block);
                block::give(block, table.layout);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::task::Waker;

    #[test]
    fn an_operation_begun_keeps_its_owner_alive_until_it_is_dropped() {
        let device = Rc::new(Cell::new(7));
        let known = IoFuture::begin(&device, |device| IoFuture::ready(device.get()));
        assert_eq!(known.ok(), Some(7));
        let begun = IoFuture::begin(&device, |device| IoFuture::new(async move { device.get() + 1 }));
        let mut begun = begun.expect_err("a future that was not polled has no outcome");
        let weak = Rc::downgrade(&device);
        drop(device);
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut begun).poll(&mut cx), Poll::Ready(8));
        assert!(weak.upgrade().is_some());
        drop(begun);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn gives_its_value_and_drops_its_captures_once() {
        let drops = Rc::new(Cell::new(0));
        struct Count(Rc<Cell<u32>>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let mut cx = Context::from_waker(Waker::noop());
        let counter = Count(drops.clone());
        let mut future = IoFuture::new(async move {
            let _held = &counter;
            7
        });
        assert_eq!(Pin::new(&mut future).poll(&mut cx), Poll::Ready(7));
        drop(future);
        let counter = Count(drops.clone());
        drop(IoFuture::new(async move {
            let _held = &counter;
            std::future::pending::<u8>().await
        }));
        assert_eq!(drops.get(), 2);
    }
}
