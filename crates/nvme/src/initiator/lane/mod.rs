//! A lane: requests in, completions out, over one connection at a time.
//!
//! A request is accepted at once and issued when there is a connection, a free command identifier and no fence against it
//! (see [`crate::initiator::fence`]); until then it waits here. What bounds the waiting is what the callers have under way. When the
//! connection ends, requests of block I/O stay and wait for the next one; raw commands (admin, Fabrics) end with it.
//!
//! Everything issued during a turn of the reactor is sent at its end in one system call.

mod forward;
mod issue;
mod ticket;

use bdev::{Done, Io, Status};
use reactor::sync::Notify;
use reactor::{Reactor, TurnEnd};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::initiator::fence::{Fence, Suspect};
use crate::initiator::link::{Broken, Link, RECEIVE_BYTES};
use crate::initiator::plan::Target;
use crate::initiator::request::{Outcome, Raw, Requests};
use crate::spec::Cqe;
use crate::tcp::{LINGER_BYTES_MAX, LINGER_NS};
use crate::tls::stream::Stream;

pub(in crate::initiator) use forward::RemoteLane;
use ticket::Answer;
pub(in crate::initiator) use ticket::Ticket;

thread_local! {
    /// The receive buffer of all connections of a thread: used during one call, never across a wait.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; RECEIVE_BYTES]);
}

/// How a lane treats its requests.
#[derive(Clone, Copy, Debug)]
pub(in crate::initiator) struct LanePolicy {
    /// Times a command is sent again after a status that allows it.
    pub(in crate::initiator) retries_max: u8,
    /// Times a command is sent again after its connection was lost.
    pub(in crate::initiator) replays_max: u8,
    /// Nobody else writes to the namespace (rule 4 of [`crate::initiator::fence`]).
    pub(in crate::initiator) exclusive: bool,
    /// A command is overdue after so long.
    pub(in crate::initiator) command_timeout_ns: u64,
}

/// See the module.
pub(in crate::initiator) struct Lane {
    me: Weak<Lane>,
    reactor: Rc<Reactor>,
    number: u32,
    policy: LanePolicy,
    inner: RefCell<Inner>,
    /// A flush at the end of this turn is arranged.
    flush_armed: Cell<bool>,
    /// The connection ended, or the lane was retired.
    ended: Notify,
    retired: Cell<bool>,
    /// The queue that the connection serves.
    queue: Cell<u16>,
    /// Without a queue of its own: the lane that serves this one's requests.
    remote: Cell<Option<RemoteLane>>,
}

struct Inner {
    requests: Requests,
    /// Requests that are not wholly issued, in order.
    backlog: VecDeque<u32>,
    /// Requests that wait for the fence.
    fenced: Vec<u32>,
    fence: Option<Arc<Fence>>,
    link: Option<Link>,
    target: Option<Target>,
    /// The association of the connection, or of the last one.
    association: u64,
    /// Counts connections.
    serial: u64,
    /// Why the last connection ended.
    broken: Option<Broken>,
    /// What the last connection left behind.
    suspects: Vec<Suspect>,
    /// New requests end at once with this.
    closed: Option<Status>,
    settled: Vec<u32>,
}

/// What a look at the clock found.
#[derive(Debug, Default)]
pub(in crate::initiator) struct Overdue {
    /// Commands that should be aborted, by their identifiers.
    pub(in crate::initiator) abort: Vec<u16>,
    /// Some command did not end in spite of an abort.
    pub(in crate::initiator) hopeless: bool,
}

impl Lane {
    pub(in crate::initiator) fn new(reactor: &Rc<Reactor>, number: u32, policy: LanePolicy) -> Rc<Lane> {
        Rc::new_cyclic(|me| Lane {
            me: me.clone(),
            reactor: reactor.clone(),
            number,
            policy,
            inner: RefCell::new(Inner {
                requests: Requests::default(),
                backlog: VecDeque::new(),
                fenced: Vec::new(),
                fence: None,
                link: None,
                target: None,
                association: 0,
                serial: 0,
                broken: None,
                suspects: Vec::new(),
                closed: None,
                settled: Vec::new(),
            }),
            flush_armed: Cell::new(false),
            ended: Notify::default(),
            retired: Cell::new(false),
            queue: Cell::new(0),
            remote: Cell::new(None),
        })
    }

    pub(in crate::initiator) fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    /// Its number within the device.
    pub(in crate::initiator) fn number(&self) -> u32 {
        self.number
    }

    // --- requests ---------------------------------------------------------------------------------------------------

    /// Accepts a block operation that has passed the device's checks.
    #[inline]
    pub(in crate::initiator) fn submit(self: &Rc<Self>, io: Io) -> Result<Ticket, Done> {
        self.submit_again(io, 0)
    }

    /// As [`submit`](Self::submit) for an operation that another lane has lost with its connections so many times.
    #[inline]
    fn submit_again(self: &Rc<Self>, io: Io, losses: u8) -> Result<Ticket, Done> {
        let inner = &mut *self.inner.borrow_mut();
        if let Some(status) = inner.closed {
            return Err(io.done(status));
        }
        let id = inner.requests.insert(io, None);
        inner.requests.get_mut(id).losses = losses;
        self.accept(inner, id);
        Ok(Ticket { lane: self.clone(), id: Some(id) })
    }

    /// Sends a command of the caller's making, with all of `bufs` as its data; gives the answer and the buffers.
    pub(in crate::initiator) async fn command(
        &self,
        raw: Raw,
        bufs: reactor::SgList,
    ) -> (Result<Cqe, Broken>, reactor::SgList) {
        let answer = {
            let inner = &mut *self.inner.borrow_mut();
            if inner.link.is_none() {
                return (Err(inner.broken.unwrap_or(Broken::Local)), bufs);
            }
            let id = inner.requests.insert(Io { bufs, ..Io::flush() }, Some(Box::new(raw)));
            self.accept(inner, id);
            Answer { lane: self, id: Some(id) }
        };
        let (io, outcome) = answer.await;
        match outcome {
            Outcome::Answer(cqe) => (Ok(cqe), io.bufs),
            Outcome::Ended(_) => (Err(self.broken().unwrap_or(Broken::Local)), io.bufs),
        }
    }

    #[inline]
    fn accept(&self, inner: &mut Inner, id: u32) {
        if let Some(remote) = self.remote.get()
            && inner.requests.get(id).raw.is_none()
        {
            return self.forward(inner, id, remote);
        }
        // Raw commands set a queue up or keep it alive: they do not wait behind block I/O.
        let may_pass = inner.backlog.is_empty() || inner.requests.get(id).raw.is_some();
        if !(may_pass && inner.issue(id, self)) {
            inner.enqueue(id);
            inner.pump(self);
        }
        self.arm(inner);
    }

    #[inline]
    fn poll_request(&self, id: Option<u32>, cx: &mut Context<'_>) -> Poll<(Io, Outcome)> {
        self.inner.borrow_mut().requests.poll(id.expect("polled after completion"), cx)
    }

    #[inline]
    fn abandon(&self, id: Option<u32>) {
        if let Some(id) = id {
            self.inner.borrow_mut().requests.abandon(id);
        }
    }

    /// Arranges a flush at the end of this turn when there is something to send.
    #[inline]
    fn arm(&self, inner: &Inner) {
        let has_output = inner.link.as_ref().is_some_and(Link::has_output);
        if has_output && !self.flush_armed.replace(true) {
            self.reactor.at_turn_end(self.me.upgrade().expect("a lane that is called is alive"));
        }
    }

    /// Ends early what carries `tag` and was not issued; returns the identifiers of the commands that were.
    pub(in crate::initiator) fn abort(&self, tag: u64) -> Vec<u16> {
        let inner = &mut *self.inner.borrow_mut();
        let tagged: Vec<u32> = inner.requests.active().filter(|id| inner.requests.get(*id).io.tag == tag).collect();
        let mut cids = Vec::new();
        for id in tagged {
            let request = inner.requests.get(id);
            if request.in_flight == 0 && request.losses > 0 && request.io.op.modifies() {
                // A connection that is lost may still carry it out: it has not ended before its replay has.
                continue;
            }
            if request.in_flight == 0 {
                inner.dequeue(id);
                inner.requests.finish(id, Outcome::Ended(Status::Aborted));
            } else if let Some(link) = &inner.link {
                let slots = link.commands.iter().filter(|slot| link.commands.get(*slot).request == id);
                cids.extend(slots.map(|slot| link.commands.cid(slot)));
            }
        }
        cids
    }

    /// Ends all requests that are not on a connection. Blocks of theirs that are suspect stay so.
    pub(in crate::initiator) fn fail_waiting(&self, status: Status) {
        let inner = &mut *self.inner.borrow_mut();
        let waiting: Vec<u32> = inner.requests.active().filter(|id| inner.requests.get(*id).in_flight == 0).collect();
        for id in waiting {
            inner.dequeue(id);
            inner.requests.finish(id, Outcome::Ended(status));
        }
    }

    /// Takes no more requests: they end with `status`. Those under way go on.
    pub(in crate::initiator) fn refuse(&self, status: Status) {
        self.inner.borrow_mut().closed.get_or_insert(status);
    }

    /// Ends everything; requests that come later end with `status` too.
    pub(in crate::initiator) fn close(&self, status: Status) {
        self.disconnect(Broken::Local);
        self.inner.borrow_mut().closed = Some(status);
        self.fail_waiting(status);
    }

    /// Nobody will submit any more: once its requests have ended the lane may go.
    pub(in crate::initiator) fn retire(&self) {
        self.retired.set(true);
        self.ended.notify_all();
    }

    pub(in crate::initiator) fn is_retired(&self) -> bool {
        self.retired.get()
    }

    /// Waits for the next loss of a connection or the retirement, after this call.
    pub(in crate::initiator) fn bell(&self) -> impl Future<Output = ()> + '_ {
        self.ended.notified()
    }

    /// The queue that the connection serves.
    pub(in crate::initiator) fn queue(&self) -> u16 {
        self.queue.get()
    }

    pub(in crate::initiator) fn set_queue(&self, queue: u16) {
        self.queue.set(queue);
    }

    /// Requests that have not ended.
    pub(in crate::initiator) fn requests_active(&self) -> usize {
        self.inner.borrow().requests.active().count()
    }

    // --- the connection ---------------------------------------------------------------------------------------------

    /// Takes a connection into use: for raw commands now, for block I/O once there is a [target](Self::set_target).
    pub(in crate::initiator) fn attach(self: &Rc<Self>, link: Link, association: u64) {
        let (serial, stream) = {
            let inner = &mut *self.inner.borrow_mut();
            assert!(inner.link.is_none(), "one connection at a time");
            inner.serial += 1;
            inner.association = association;
            inner.broken = None;
            let stream = link.stream.clone();
            inner.link = Some(link);
            inner.target = None;
            (inner.serial, stream)
        };
        let lane = self.clone();
        self.reactor.spawn(std::future::poll_fn(move |cx| lane.serve(serial, &stream, cx)));
    }

    /// Opens the connection to block I/O.
    pub(in crate::initiator) fn set_target(&self, target: Target) {
        let inner = &mut *self.inner.borrow_mut();
        inner.target = Some(target);
        inner.pump(self);
        self.arm(inner);
    }

    /// Says which blocks are suspect from now on.
    pub(in crate::initiator) fn set_fence(&self, fence: Option<Arc<Fence>>) {
        let inner = &mut *self.inner.borrow_mut();
        inner.fence = fence;
        for id in std::mem::take(&mut inner.fenced) {
            inner.requests.get_mut(id).queued = false;
            inner.enqueue(id);
        }
        inner.pump(self);
        self.arm(inner);
    }

    /// Whether a connection is in use.
    pub(in crate::initiator) fn is_connected(&self) -> bool {
        self.inner.borrow().link.is_some()
    }

    /// Why the last connection ended.
    pub(in crate::initiator) fn broken(&self) -> Option<Broken> {
        self.inner.borrow().broken
    }

    /// Waits until there is no connection.
    pub(in crate::initiator) async fn disconnected(&self) {
        self.ended.wait_until(|| !self.is_connected()).await;
    }

    /// Ends the connection; its requests of block I/O go back to the backlog.
    pub(in crate::initiator) fn disconnect(&self, reason: Broken) {
        self.break_link(&mut self.inner.borrow_mut(), reason);
    }

    /// What lost connections left behind since the last call.
    pub(in crate::initiator) fn take_suspects(&self) -> Vec<Suspect> {
        std::mem::take(&mut self.inner.borrow_mut().suspects)
    }

    fn break_link(&self, inner: &mut Inner, reason: Broken) {
        let Some(mut link) = inner.link.take() else { return };
        if let Broken::Fault(fault) = reason
            && link.terminate(fault)
        {
            let stream = link.stream.clone();
            self.reactor.spawn(async move { stream.drain(LINGER_NS, LINGER_BYTES_MAX).await });
        }
        inner.broken = Some(reason);
        let mut lost: Vec<u32> = link.commands.iter().map(|slot| link.commands.get(slot).request).collect();
        lost.sort_by_key(|id| inner.requests.get(*id).sequence);
        lost.dedup();
        if let Some(waker) = link.waker.take() {
            waker.wake();
        }
        drop(link);
        for id in lost.into_iter().rev() {
            self.lose(inner, id);
        }
        let raw: Vec<u32> = inner.requests.active().filter(|id| inner.requests.get(*id).raw.is_some()).collect();
        for id in raw {
            inner.dequeue(id);
            inner.requests.finish(id, Outcome::Ended(Status::Gone));
        }
        self.ended.notify_all();
    }

    /// Decides about a request that had commands on a connection that is gone.
    fn lose(&self, inner: &mut Inner, id: u32) {
        let request = inner.requests.get_mut(id);
        request.in_flight = 0;
        if request.raw.is_some() {
            return;
        }
        if request.io.op.modifies() {
            inner.suspects.push(Suspect {
                start: request.io.lba.0,
                end: request.io.end(),
                owner: (self.number, request.sequence),
                association: inner.association,
            });
        }
        request.issued = 0;
        request.status = crate::spec::Status::SUCCESS;
        request.losses = request.losses.saturating_add(1);
        if request.losses > self.policy.replays_max {
            inner.dequeue(id);
            inner.requests.finish(id, Outcome::Ended(Status::Gone));
        } else if !request.queued {
            request.queued = true;
            inner.backlog.push_front(id);
        }
    }

    // --- serving the socket -----------------------------------------------------------------------------------------

    fn serve(&self, serial: u64, stream: &Stream, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let is_blocked = {
                let inner = &mut *self.inner.borrow_mut();
                let Some(link) = inner.link.as_mut().filter(|_| inner.serial == serial) else { return Poll::Ready(()) };
                if link.waker.is_none() {
                    link.waker = Some(cx.waker().clone());
                }
                link.is_blocked
            };
            if is_blocked && let Poll::Ready(result) = pin!(stream.writable()).poll(cx) {
                self.unblock(result.err());
                continue;
            }
            match pin!(stream.readable()).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(errno)) => self.disconnect(Broken::Os(errno)),
                Poll::Ready(Ok(())) => {
                    if self.receive() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    fn unblock(&self, error: Option<reactor::Errno>) {
        let inner = &mut *self.inner.borrow_mut();
        match error {
            Some(errno) => self.break_link(inner, Broken::Os(errno)),
            None => {
                if let Some(link) = &mut inner.link {
                    link.is_blocked = false;
                }
                self.flush(inner);
            }
        }
    }

    /// Receives once and acts on it. True when there may be more, which is for the next turn.
    fn receive(&self) -> bool {
        let inner = &mut *self.inner.borrow_mut();
        let Some(link) = &mut inner.link else { return false };
        let result = SCRATCH.with_borrow_mut(|scratch| link.receive(scratch, &mut inner.requests, &mut inner.settled));
        let more = match result {
            Ok(more) => {
                link.read_again = more;
                more
            }
            Err(_) => false,
        };
        self.settle(inner);
        if let Err(reason) = result {
            self.break_link(inner, reason);
            return false;
        }
        inner.pump(self);
        if more && !self.flush_armed.replace(true) {
            self.reactor.at_turn_end(self.me.upgrade().expect("a lane that is called is alive"));
        }
        self.arm(inner);
        more
    }

    fn flush(&self, inner: &mut Inner) {
        let Some(link) = &mut inner.link else { return };
        if link.is_blocked {
            return;
        }
        let result = link.flush(&mut inner.requests, &mut inner.settled);
        self.settle(inner);
        match result {
            Ok(()) => inner.pump(self),
            Err(reason) => self.break_link(inner, reason),
        }
    }

    /// Ends or retries the requests whose commands have ended.
    fn settle(&self, inner: &mut Inner) {
        let mut settled = std::mem::take(&mut inner.settled);
        for id in settled.drain(..) {
            inner.settle(id, self);
        }
        inner.settled = settled;
    }

    fn retry_later(&self, at_ns: u64) {
        let lane = self.me.clone();
        let reactor = self.reactor.clone();
        self.reactor.spawn(async move {
            reactor.sleep_until(at_ns).await;
            if let Some(lane) = lane.upgrade() {
                let inner = &mut *lane.inner.borrow_mut();
                inner.pump(&lane);
                lane.arm(inner);
            }
        });
    }

    // --- time -------------------------------------------------------------------------------------------------------

    /// Looks for commands that take too long: once over the limit they should be aborted, twice over it is hopeless.
    pub(in crate::initiator) fn overdue(&self) -> Overdue {
        let now_ns = self.reactor.now_ns();
        let inner = &mut *self.inner.borrow_mut();
        let mut overdue = Overdue::default();
        let Some(link) = &mut inner.link else { return overdue };
        let slots: Vec<u16> = link.commands.iter().collect();
        for slot in slots {
            let cid = link.commands.cid(slot);
            let command = link.commands.get_mut(slot);
            let age_ns = now_ns.saturating_sub(command.issued_ns);
            if command.unlimited || age_ns < self.policy.command_timeout_ns {
                continue;
            }
            overdue.hopeless |= age_ns >= 2 * self.policy.command_timeout_ns;
            if !std::mem::replace(&mut command.abort_asked, true) {
                overdue.abort.push(cid);
            }
        }
        overdue
    }
}

impl TurnEnd for Lane {
    fn turn_end(self: Rc<Self>) {
        self.flush_armed.set(false);
        let inner = &mut *self.inner.borrow_mut();
        if let Some(link) = &mut inner.link
            && std::mem::take(&mut link.read_again)
            && let Some(waker) = &link.waker
        {
            waker.wake_by_ref();
        }
        self.flush(inner);
        self.arm(inner);
    }
}
