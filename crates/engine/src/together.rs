//! Operations under way at the same time, all of them polled while any is waited for.

use reactor::IoFuture;
use smallvec::SmallVec;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

enum Part<'a, T: 'static> {
    Running(IoFuture<'a, T>),
    Ended(T),
}

/// See the module. Results come in the order in which the operations were added.
pub(crate) struct Together<'a, T: 'static>(SmallVec<[Part<'a, T>; 4]>);

impl<'a, T: 'static> Together<'a, T> {
    pub(crate) fn new() -> Self {
        Together(SmallVec::new())
    }

    /// Adds an operation.
    pub(crate) fn push(&mut self, future: IoFuture<'a, T>) {
        self.0.push(match future.try_ready() {
            Ok(value) => Part::Ended(value),
            Err(future) => Part::Running(future),
        });
    }

    /// Number of operations that have been added.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Waits for the first one added, and takes its result.
    pub(crate) async fn first(&mut self) -> Option<T> {
        poll_fn(|cx| {
            self.poll(cx);
            match self.0.first() {
                Some(Part::Running(_)) => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
        .await;
        if self.0.is_empty() {
            return None;
        }
        match self.0.remove(0) {
            Part::Ended(value) => Some(value),
            Part::Running(_) => unreachable!("waited for"),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        for part in &mut self.0 {
            if let Part::Running(future) = part
                && let Poll::Ready(value) = Pin::new(future).poll(cx)
            {
                *part = Part::Ended(value);
            }
        }
    }
}
