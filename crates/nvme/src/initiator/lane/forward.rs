//! Lanes without a queue of their own: a controller may have fewer queues than there are reactors, and then a lane's block
//! operations are served by another one, buffers and all. Nothing is lost when that one goes: it gives back what it has not
//! ended.

use bdev::{Done, Io};
use reactor::Reactor;
use std::rc::Rc;

use super::{Inner, Lane};
use crate::initiator::request::Outcome;

/// A lane as other reactors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::initiator) struct RemoteLane {
    /// Its reactor.
    pub(in crate::initiator) reactor: usize,
    /// Under which number it is kept there.
    pub(in crate::initiator) kept: u64,
}

impl Lane {
    /// Has another lane serve a request.
    pub(super) fn forward(&self, inner: &mut Inner, id: u32, remote: RemoteLane) {
        let request = inner.requests.get_mut(id);
        let io = std::mem::replace(&mut request.io, Io::flush());
        // Until the other lane has ended it, nobody here may.
        request.in_flight = 1;
        let losses = request.losses;
        let (lane, reactor) = (self.me.clone(), self.reactor.clone());
        // Not at once: a lane of this very reactor may give it back at once, and this one is borrowed.
        self.reactor.spawn(async move {
            let serve =
                move |there: Rc<Reactor>| async move { serve_for_another(&there, remote.kept, io, losses).await };
            let served = reactor.call_on(remote.reactor, serve).await;
            if let Some(lane) = lane.upgrade() {
                lane.forwarded(id, served);
            }
        });
    }

    fn forwarded(&self, id: u32, served: Result<Done, Io>) {
        let inner = &mut *self.inner.borrow_mut();
        let request = inner.requests.get_mut(id);
        request.in_flight = 0;
        match served {
            Ok(done) => {
                request.io = done.io;
                inner.requests.finish(id, Outcome::Ended(done.status));
            }
            // That lane is no more; this one's driver will find another way.
            Err(io) => {
                request.io = io;
                match inner.closed {
                    Some(status) => inner.requests.finish(id, Outcome::Ended(status)),
                    None => inner.enqueue(id),
                }
            }
        }
    }

    /// Lets another lane serve this one's requests from now on, those that wait included; or not any more.
    pub(in crate::initiator) fn set_remote(&self, remote: Option<RemoteLane>) {
        self.remote.set(remote);
        let Some(remote) = remote else { return };
        let inner = &mut *self.inner.borrow_mut();
        let fenced = std::mem::take(&mut inner.fenced);
        // Those that a fence holds too: nobody would tell this lane when it is lifted.
        for id in std::mem::take(&mut inner.backlog).into_iter().chain(fenced) {
            inner.requests.get_mut(id).queued = false;
            self.forward(inner, id, remote);
        }
    }
}

/// Serves a request of another reactor's lane; gives it back when this lane has gone.
async fn serve_for_another(reactor: &Rc<Reactor>, kept: u64, io: Io, losses: u8) -> Result<Done, Io> {
    let Some(lane) = reactor.kept::<Lane>(kept).filter(|lane| !lane.is_retired()) else { return Err(io) };
    match lane.submit_again(io, losses) {
        Ok(ticket) => Ok(ticket.await),
        Err(done) => Ok(done),
    }
}
