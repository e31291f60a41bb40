//! Operations under way: who waits for them, and what becomes of them when nobody does any more.
//!
//! A waiter that goes away leaves an *orphan*: the operation still completes, and only then are its buffers released.

use crate::buf::SgList;
use crate::call::Answer;
use crate::driver::Token;
use crate::reactor::Reactor;
use base::Errno;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The end of a file operation: bytes transferred, and the buffers back.
#[derive(Debug)]
pub struct Completion {
    /// Bytes transferred (0 for operations without data), or why not.
    pub result: Result<usize, Errno>,
    /// The operation's buffers.
    pub bufs: SgList,
}

enum State {
    Free,
    Waiting(Option<Waker>),
    Done(Completion),
    DoneRemote(Answer),
    /// The reactor that was asked has stopped.
    Lost,
    Orphan,
}

struct Slot {
    generation: u32,
    state: State,
    /// The reactor that was asked, of a remote call.
    remote: Option<usize>,
}

#[derive(Default)]
pub(crate) struct OpTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

fn token_of(index: u32, generation: u32) -> Token {
    Token((generation as u64) << 32 | index as u64)
}

impl OpTable {
    pub(crate) fn begin(&mut self) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, state: State::Free, remote: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.state = State::Waiting(None);
        token_of(index, slot.generation)
    }

    fn slot(&mut self, token: Token) -> &mut Slot {
        let slot = &mut self.slots[token.0 as u32 as usize];
        assert_eq!(slot.generation, (token.0 >> 32) as u32, "an operation completed twice");
        slot
    }

    fn release(&mut self, token: Token) {
        let slot = self.slot(token);
        slot.generation = slot.generation.wrapping_add(1);
        (slot.state, slot.remote) = (State::Free, None);
        self.free.push(token.0 as u32);
    }

    fn finish(&mut self, token: Token, outcome: State) -> Option<Waker> {
        let slot = self.slot(token);
        match std::mem::replace(&mut slot.state, outcome) {
            State::Waiting(waker) => waker,
            State::Orphan => {
                self.release(token);
                None
            }
            _ => panic!("an operation completed that was not under way"),
        }
    }

    pub(crate) fn complete(&mut self, token: Token, result: Result<usize, Errno>, bufs: SgList) -> Option<Waker> {
        self.finish(token, State::Done(Completion { result, bufs }))
    }

    pub(crate) fn abandon(&mut self, token: Token) {
        let slot = self.slot(token);
        match slot.state {
            State::Waiting(_) => slot.state = State::Orphan,
            _ => self.release(token),
        }
    }

    fn poll(&mut self, token: Token, cx: &mut Context<'_>) -> Option<State> {
        let slot = self.slot(token);
        if let State::Waiting(waker) = &mut slot.state {
            match waker {
                Some(old) => old.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return None;
        }
        let state = std::mem::replace(&mut slot.state, State::Free);
        self.release(token);
        Some(state)
    }

    pub(crate) fn begin_remote(&mut self, to: usize) -> Token {
        let token = self.begin();
        self.slot(token).remote = Some(to);
        token
    }

    /// Ends the calls to a reactor that has stopped, and gives their waiters.
    pub(crate) fn lose_remote(&mut self, to: usize) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.remote == Some(to) && matches!(slot.state, State::Waiting(_) | State::Orphan) {
                let token = token_of(index as u32, slot.generation);
                wakers.extend(self.finish(token, State::Lost));
            }
        }
        wakers
    }

    pub(crate) fn complete_remote(&mut self, token: Token, value: Answer) {
        if let Some(waker) = self.finish(token, State::DoneRemote(value)) {
            waker.wake();
        }
    }
}

/// Waits for a file operation.
pub struct OpFuture {
    reactor: Rc<Reactor>,
    token: Option<Token>,
}

impl OpFuture {
    pub(crate) fn new(reactor: Rc<Reactor>, token: Token) -> Self {
        OpFuture { reactor, token: Some(token) }
    }
}

impl Future for OpFuture {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completion> {
        let token = self.token.expect("polled after completion");
        let outcome = self.reactor.ops.borrow_mut().poll(token, cx);
        match outcome {
            None => Poll::Pending,
            Some(State::Done(completion)) => {
                self.token = None;
                Poll::Ready(completion)
            }
            Some(_) => unreachable!("file operations end as Done"),
        }
    }
}

impl Drop for OpFuture {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.reactor.ops.borrow_mut().abandon(token);
        }
    }
}

/// Waits for what runs on another reactor. When it is dropped, that goes on.
pub struct RemoteFuture<T> {
    reactor: Rc<Reactor>,
    token: Option<Token>,
    _value: std::marker::PhantomData<fn() -> T>,
}

impl<T> RemoteFuture<T> {
    pub(crate) fn new(reactor: Rc<Reactor>, token: Token) -> Self {
        RemoteFuture { reactor, token: Some(token), _value: std::marker::PhantomData }
    }
}

impl<T: 'static> Future for RemoteFuture<T> {
    /// `None` when the other reactor has stopped.
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let token = self.token.expect("polled after completion");
        let outcome = self.reactor.ops.borrow_mut().poll(token, cx);
        match outcome {
            None => Poll::Pending,
            Some(State::DoneRemote(value)) => {
                self.token = None;
                Poll::Ready(Some(value.open()))
            }
            Some(State::Lost) => {
                self.token = None;
                Poll::Ready(None)
            }
            Some(_) => unreachable!("remote calls end as DoneRemote or Lost"),
        }
    }
}

impl<T> Drop for RemoteFuture<T> {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.reactor.ops.borrow_mut().abandon(token);
        }
    }
}
