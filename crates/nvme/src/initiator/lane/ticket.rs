//! Waiting for what a lane was asked to do.

use bdev::{Done, Flags, Io};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::Lane;
use crate::initiator::request::{History, Outcome, Why};

/// A block operation that its lane has not ended: it is for another one.
pub(in crate::initiator) struct Returned {
    pub(in crate::initiator) io: Io,
    pub(in crate::initiator) why: Why,
    pub(in crate::initiator) history: History,
    /// Number of the lane; 0 where it was on none.
    pub(in crate::initiator) from: u32,
}

impl Returned {
    /// An operation that was on no lane yet.
    pub(in crate::initiator) fn unsent(io: Io) -> Returned {
        Returned { io, why: Why::Lost, history: History::default(), from: 0 }
    }
}

/// Waits for a block operation. Dropping it abandons the wait; the operation goes on.
pub(in crate::initiator) struct Ticket {
    pub(super) lane: Rc<Lane>,
    pub(super) id: Option<u32>,
}

impl Future for Ticket {
    type Output = Result<Done, Returned>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Done, Returned>> {
        let Poll::Ready((io, outcome)) = self.lane.poll_request(self.id, cx) else { return Poll::Pending };
        self.id = None;
        Poll::Ready(match outcome {
            Outcome::Ended(status) => {
                if status.is_ok() && io.op.modifies() && !io.flags.has(Flags::FUA) {
                    self.lane.common.unflushed.note_written();
                }
                Ok(io.done(status))
            }
            Outcome::Returned(why, history) => Err(Returned { io, why, history, from: self.lane.number }),
            Outcome::Answer(_) => unreachable!("block operations have a status"),
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.lane.abandon(self.id);
    }
}

/// Waits for the answer to a raw command. Dropping it abandons the wait; the command goes on.
pub(super) struct Answer<'a> {
    pub(super) lane: &'a Lane,
    pub(super) id: Option<u32>,
}

impl Future for Answer<'_> {
    type Output = (Io, Outcome);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Io, Outcome)> {
        let ended = self.lane.poll_request(self.id, cx);
        if ended.is_ready() {
            self.id = None;
        }
        ended
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        self.lane.abandon(self.id);
    }
}
