//! Lanes without a queue of their own: a controller may have fewer queues than there are reactors, and then a lane's block
//! operations are served by another one, buffers and all. Nothing is lost when that one goes: it gives back what it has not
//! ended, and so does this one.

use bdev::{Done, Io};
use reactor::Reactor;
use std::rc::Rc;

use super::{Inner, Lane, Returned};
use crate::initiator::request::{History, Outcome, Why};

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
        let history = request.history();
        let (lane, reactor) = (self.me.clone(), self.reactor.clone());
        // Not at once: a lane of this very reactor may give it back at once, and this one is borrowed.
        self.reactor.spawn(async move {
            let serve =
                move |there: Rc<Reactor>| async move { serve_for_another(&there, remote.kept, io, history).await };
            let served = reactor.call_on(remote.reactor, serve).await;
            if let Some(lane) = lane.upgrade() {
                lane.forwarded(id, served);
            }
        });
    }

    fn forwarded(&self, id: u32, served: Result<Done, Returned>) {
        let inner = &mut *self.inner.borrow_mut();
        let request = inner.requests.get_mut(id);
        request.in_flight = 0;
        let outcome = match served {
            Ok(done) => {
                request.io = done.io;
                Outcome::Ended(done.status)
            }
            Err(Returned { io, why, history, .. }) => {
                request.io = io;
                if let Why::Refused { status, .. } = why {
                    self.note_refusal(status);
                }
                if why == Why::Lost {
                    // Until the driver has found another one, or finds this one of use again.
                    self.remote.set(None);
                }
                Outcome::Returned(why, history)
            }
        };
        inner.requests.finish(id, outcome);
    }

    /// Lets another lane serve this one's requests from now on; or not any more.
    pub(in crate::initiator) fn set_remote(&self, remote: Option<RemoteLane>) {
        if self.remote.replace(remote) != remote && remote.is_some() {
            self.common.ready.notify_all();
        }
    }
}

/// Serves a request of another reactor's lane; gives it back when this lane has gone.
async fn serve_for_another(reactor: &Rc<Reactor>, kept: u64, io: Io, history: History) -> Result<Done, Returned> {
    let lane = reactor.kept::<Lane>(kept).filter(|lane| !lane.is_retired() && lane.inner.borrow().is_open());
    let Some(lane) = lane else { return Err(Returned { io, why: Why::Lost, history, from: 0 }) };
    match lane.submit(io, history) {
        Ok(ticket) => ticket.await,
        Err(io) => Err(Returned { io, why: Why::Lost, history, from: 0 }),
    }
}
