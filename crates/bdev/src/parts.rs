//! Several child operations at once, gathered in order.

use crate::io::Done;
use reactor::IoFuture;
use smallvec::SmallVec;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Parts that need no allocation: four children and a remainder.
const PARTS_INLINE: usize = 5;

enum Part<'a> {
    Running(IoFuture<'a, Done>),
    Ended(Option<Done>),
}

/// Child operations under way. Await it for their results, in the order in which they were added.
#[derive(Default)]
pub(crate) struct Parts<'a> {
    parts: SmallVec<[Part<'a>; PARTS_INLINE]>,
}

impl<'a> Parts<'a> {
    /// Adds an operation.
    pub(crate) fn push(&mut self, future: IoFuture<'a, Done>) {
        self.parts.push(match future.try_ready() {
            Ok(done) => Part::Ended(Some(done)),
            Err(future) => Part::Running(future),
        });
    }

    /// Waits for all of them.
    pub(crate) async fn join(mut self) -> impl Iterator<Item = Done> + use<'a> {
        std::future::poll_fn(|cx| self.poll(cx)).await;
        self.parts.into_iter().map(|part| match part {
            Part::Ended(done) => done.expect("taken once"),
            Part::Running(_) => unreachable!("the join has waited for all parts"),
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut pending = false;
        for part in &mut self.parts {
            if let Part::Running(future) = part {
                match Pin::new(future).poll(cx) {
                    Poll::Ready(done) => *part = Part::Ended(Some(done)),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    }
}
