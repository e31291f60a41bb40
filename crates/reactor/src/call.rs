//! A call to another reactor: one recycled block, which goes there with what is to be run and comes back with what that gave. So
//! nothing is allocated, a message is no more than a pointer, and of what travels from core to core nothing is copied on the way.

use crate::block;
use crate::driver::Token;
use crate::mesh::Message;
use crate::prefetch::Lines;
use crate::reactor::Reactor;
use std::alloc::Layout;
use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::rc::Rc;

#[repr(C)]
struct Head {
    /// Who called, and what it knows the call by.
    home: usize,
    token: Token,
    layout: Layout,
    /// Of the value that comes back.
    type_id: TypeId,
    drop_value: unsafe fn(NonNull<u8>),
}

/// Where the body begins, which holds what goes and then what comes back; all of it is aligned to this at most.
const BODY_AT: usize = 64;
const BODY_ALIGN: usize = 16;
const _: () = assert!(size_of::<Head>() <= BODY_AT);

/// # Safety
/// `body` holds a live `T` that is not used again.
unsafe fn drop_raw<T>(body: NonNull<u8>) {
    // SAFETY: by the caller.
    unsafe { body.cast::<T>().drop_in_place() }
}

/// The block, with nothing in its body.
struct Block(NonNull<Head>);

// SAFETY: a block is plain memory with one owner, and may be given back on any thread. Its body's owners say for themselves.
unsafe impl Send for Block {}

impl Block {
    fn head(&self) -> &Head {
        // SAFETY: a block holds its head from `Call::new` until it is dropped.
        unsafe { self.0.as_ref() }
    }

    fn lines(&self) -> Lines {
        Lines::of(self.0.as_ptr().cast(), self.head().layout.size())
    }

    fn body(&self) -> NonNull<u8> {
        // SAFETY: every block is longer than that.
        unsafe { self.0.cast::<u8>().add(BODY_AT) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let layout = self.head().layout;
        // SAFETY: it was taken with this layout, and the head needs no drop.
        unsafe { block::give(self.0.cast(), layout) };
    }
}

/// What is to be run on another reactor, on its way there. It gets a [`Reply`] to answer with.
pub(crate) struct Call<M, T> {
    /// Its body holds an `M`.
    block: Block,
    _holds: PhantomData<(M, fn() -> T)>,
}

// SAFETY: an `M` goes to another thread, and a `T` comes back from there.
unsafe impl<M: Send, T: Send> Send for Call<M, T> {}

impl<M: FnOnce(&Rc<Reactor>, Reply<T>), T: Send + 'static> Call<M, T> {
    pub(crate) fn new(home: usize, token: Token, run: M) -> Call<M, T> {
        const { assert!(align_of::<M>() <= BODY_ALIGN && align_of::<T>() <= BODY_ALIGN) };
        let bytes = const { BODY_AT + if size_of::<M>() > size_of::<T>() { size_of::<M>() } else { size_of::<T>() } };
        let layout = Layout::from_size_align(bytes, BODY_AT).expect("no value is that large");
        let block = Block(block::take(layout).cast());
        let head = Head { home, token, layout, type_id: TypeId::of::<T>(), drop_value: drop_raw::<T> };
        // SAFETY: the block was just taken, with room for a head and, behind `BODY_AT`, for an `M` with its alignment.
        unsafe {
            block.0.write(head);
            block.body().cast::<M>().write(run);
        }
        Call { block, _holds: PhantomData }
    }

    /// As it is sent.
    pub(crate) fn into_message(self) -> Message
    where
        M: Send + 'static,
    {
        Message::with_hint(self.block.lines(), move |there| self.run(there))
    }

    /// Runs it, on the reactor that was called.
    fn run(self, there: &Rc<Reactor>) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again: both are moved out of it once.
        let (block, run) = unsafe { (std::ptr::read(&this.block), this.block.body().cast::<M>().read()) };
        run(there, Reply { block, _holds: PhantomData });
    }
}

impl<M, T> Drop for Call<M, T> {
    fn drop(&mut self) {
        // SAFETY: a call that is dropped was not run, so its body holds an `M`.
        unsafe { self.block.body().cast::<M>().drop_in_place() }
    }
}

/// With what a call is answered. When it is dropped there is no answer.
pub(crate) struct Reply<T> {
    block: Block,
    _holds: PhantomData<fn(T)>,
}

impl<T: Send + 'static> Reply<T> {
    /// Sends the value to the caller.
    pub(crate) fn send(self, value: T, there: &Reactor) {
        // SAFETY: `Call::new` has left room for a `T`, with its alignment, and nothing is in there.
        unsafe { self.block.body().cast::<T>().write(value) };
        let (home, lines) = (self.block.head().home, self.block.lines());
        let answer = Answer { block: self.block };
        let arrive = move |here: &Rc<Reactor>| {
            let token = answer.block.head().token;
            here.ops.borrow_mut().complete_remote(token, answer);
        };
        there.send(home, Message::with_hint(lines, arrive));
    }

    /// Sends what a future gives, from a task there.
    pub(crate) fn send_from(self, future: impl Future<Output = T> + 'static, there: &Rc<Reactor>) {
        let poster = there.clone();
        there.spawn_eager(async move { self.send(future.await, &poster) });
    }
}

/// A value that has come back.
pub(crate) struct Answer {
    /// Its body holds a value of the type that the head names.
    block: Block,
}

// SAFETY: only `Reply::send` makes one, of a value that may go to another thread.
unsafe impl Send for Answer {}

impl Answer {
    /// The value. Panics when it is not a `T`.
    pub(crate) fn open<T: 'static>(self) -> T {
        assert!(self.block.head().type_id == TypeId::of::<T>(), "the answer has the type of the call");
        let this = ManuallyDrop::new(self);
        // SAFETY: the body holds a live `T`, and `this` is not used again: value and block are moved out of it once.
        unsafe {
            let _block = std::ptr::read(&this.block);
            this.block.body().cast::<T>().read()
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: an answer that was not opened holds its value.
        unsafe { (self.block.head().drop_value)(self.block.body()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    type Run = Box<dyn FnOnce(&Rc<Reactor>, Reply<Arc<i32>>) + Send>;

    fn call(run: Run) -> Call<Run, Arc<i32>> {
        Call::new(0, Token(1), run)
    }

    fn answer(value: Arc<i32>) -> Answer {
        let block = fresh();
        // SAFETY: the block has room for it, and nothing in its body.
        unsafe { block.body().cast::<Arc<i32>>().write(value) };
        Answer { block }
    }

    /// A block without a body.
    fn fresh() -> Block {
        let this = ManuallyDrop::new(call(Box::new(|_, _| ())));
        // SAFETY: both are moved out of a call that is not dropped.
        unsafe {
            drop(this.block.body().cast::<Run>().read());
            std::ptr::read(&this.block)
        }
    }

    #[test]
    fn what_goes_and_what_comes_back_is_dropped_once() {
        let value = Arc::new(7);
        let held = value.clone();
        drop(call(Box::new(move |_, _| drop(held))));
        assert_eq!(Arc::strong_count(&value), 1);
        drop(answer(value.clone()));
        assert_eq!(*answer(value.clone()).open::<Arc<i32>>(), 7);
        assert_eq!(Arc::strong_count(&value), 1);
        drop(fresh());
    }
}
