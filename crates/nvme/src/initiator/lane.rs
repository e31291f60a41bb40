//! A lane: requests in, completions out, over one connection at a time.
//!
//! A request is accepted at once and issued when there is a connection, a free command identifier and no fence against it
//! (see [`super::fence`]); until then it waits here. What bounds the waiting is what the callers have under way. When the
//! connection ends, requests of block I/O stay and wait for the next one; raw commands (admin, Fabrics) end with it.
//!
//! Everything issued during a turn of the reactor is sent at its end in one system call.

use bdev::{Done, Io, Op, Status};
use reactor::sync::Notify;
use reactor::{Reactor, TurnEnd};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::host::command;
use crate::spec::Cqe;
use crate::tcp::{LINGER_BYTES_MAX, LINGER_NS};

use super::command::Direction;
use super::fence::{Fence, Suspect};
use super::link::{Broken, Link, RECEIVE_BYTES};
use super::plan::{Step, Target};
use super::request::{Outcome, Raw, Requests};
use super::status::{block_status, is_retryable, retry_pause_ns};

thread_local! {
    /// The receive buffer of all connections of a thread: used during one call, never across a wait.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; RECEIVE_BYTES]);
}

/// How a lane treats its requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct LanePolicy {
    /// Times a command is sent again after a status that allows it.
    pub(super) retries_max: u8,
    /// Times a command is sent again after its connection was lost.
    pub(super) replays_max: u8,
    /// Nobody else writes to the namespace (rule 4 of [`super::fence`]).
    pub(super) exclusive: bool,
    /// A command is overdue after so long.
    pub(super) command_timeout_ns: u64,
}

/// See the module.
pub(super) struct Lane {
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

/// A lane as other reactors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteLane {
    /// Its reactor.
    pub(super) reactor: usize,
    /// Under which number it is kept there.
    pub(super) kept: u64,
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
pub(super) struct Overdue {
    /// Commands that should be aborted, by their identifiers.
    pub(super) abort: Vec<u16>,
    /// Some command did not end in spite of an abort.
    pub(super) hopeless: bool,
}

impl Lane {
    pub(super) fn new(reactor: &Rc<Reactor>, number: u32, policy: LanePolicy) -> Rc<Lane> {
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

    pub(super) fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    /// Its number within the device.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    // --- requests ---------------------------------------------------------------------------------------------------

    /// Accepts a block operation that has passed the device's checks.
    #[inline]
    pub(super) fn submit(self: &Rc<Self>, io: Io) -> Result<Ticket, Done> {
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
    pub(super) async fn command(&self, raw: Raw, bufs: reactor::SgList) -> (Result<Cqe, Broken>, reactor::SgList) {
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

    /// Has another lane serve a request.
    fn forward(&self, inner: &mut Inner, id: u32, remote: RemoteLane) {
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
    pub(super) fn set_remote(&self, remote: Option<RemoteLane>) {
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

    /// Ends early what carries `tag` and was not issued; returns the identifiers of the commands that were.
    pub(super) fn abort(&self, tag: u64) -> Vec<u16> {
        let inner = &mut *self.inner.borrow_mut();
        let tagged: Vec<u32> = inner.requests.active().filter(|id| inner.requests.get(*id).io.tag == tag).collect();
        let mut cids = Vec::new();
        for id in tagged {
            if inner.requests.get(id).in_flight == 0 {
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
    pub(super) fn fail_waiting(&self, status: Status) {
        let inner = &mut *self.inner.borrow_mut();
        let waiting: Vec<u32> = inner.requests.active().filter(|id| inner.requests.get(*id).in_flight == 0).collect();
        for id in waiting {
            inner.dequeue(id);
            inner.requests.finish(id, Outcome::Ended(status));
        }
    }

    /// Takes no more requests: they end with `status`. Those under way go on.
    pub(super) fn refuse(&self, status: Status) {
        self.inner.borrow_mut().closed.get_or_insert(status);
    }

    /// Ends everything; requests that come later end with `status` too.
    pub(super) fn close(&self, status: Status) {
        self.disconnect(Broken::Local);
        self.inner.borrow_mut().closed = Some(status);
        self.fail_waiting(status);
    }

    /// Nobody will submit any more: once its requests have ended the lane may go.
    pub(super) fn retire(&self) {
        self.retired.set(true);
        self.ended.notify_all();
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.get()
    }

    /// Waits for the next loss of a connection or the retirement, after this call.
    pub(super) fn bell(&self) -> impl Future<Output = ()> + '_ {
        self.ended.notified()
    }

    /// The queue that the connection serves.
    pub(super) fn queue(&self) -> u16 {
        self.queue.get()
    }

    pub(super) fn set_queue(&self, queue: u16) {
        self.queue.set(queue);
    }

    /// Requests that have not ended.
    pub(super) fn requests_active(&self) -> usize {
        self.inner.borrow().requests.active().count()
    }

    // --- the connection ---------------------------------------------------------------------------------------------

    /// Takes a connection into use: for raw commands now, for block I/O once there is a [target](Self::set_target).
    pub(super) fn attach(self: &Rc<Self>, link: Link, association: u64) {
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
    pub(super) fn set_target(&self, target: Target) {
        let inner = &mut *self.inner.borrow_mut();
        inner.target = Some(target);
        inner.pump(self);
        self.arm(inner);
    }

    /// Says which blocks are suspect from now on.
    pub(super) fn set_fence(&self, fence: Option<Arc<Fence>>) {
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
    pub(super) fn is_connected(&self) -> bool {
        self.inner.borrow().link.is_some()
    }

    /// Why the last connection ended.
    pub(super) fn broken(&self) -> Option<Broken> {
        self.inner.borrow().broken
    }

    /// Waits until there is no connection.
    pub(super) async fn disconnected(&self) {
        self.ended.wait_until(|| !self.is_connected()).await;
    }

    /// Ends the connection; its requests of block I/O go back to the backlog.
    pub(super) fn disconnect(&self, reason: Broken) {
        self.break_link(&mut self.inner.borrow_mut(), reason);
    }

    /// What lost connections left behind since the last call.
    pub(super) fn take_suspects(&self) -> Vec<Suspect> {
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

    fn serve(&self, serial: u64, stream: &reactor::TcpStream, cx: &mut Context<'_>) -> Poll<()> {
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
    pub(super) fn overdue(&self) -> Overdue {
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

impl Inner {
    fn enqueue(&mut self, id: u32) {
        let request = self.requests.get_mut(id);
        if !std::mem::replace(&mut request.queued, true) {
            self.backlog.push_back(id);
        }
    }

    fn dequeue(&mut self, id: u32) {
        let request = self.requests.get_mut(id);
        if std::mem::take(&mut request.queued) {
            self.backlog.retain(|other| *other != id);
            self.fenced.retain(|other| *other != id);
        }
    }

    /// Issues as much of the backlog as there is room for.
    fn pump(&mut self, lane: &Lane) {
        let mut delayed = 0;
        while delayed < self.backlog.len() {
            let Some(&id) = self.backlog.get(delayed) else { return };
            if self.link.as_ref().is_none_or(|link| link.commands.room() == 0) {
                return;
            }
            if self.requests.get(id).not_before_ns > lane.reactor.now_ns() {
                delayed += 1;
                continue;
            }
            self.backlog.remove(delayed);
            self.requests.get_mut(id).queued = false;
            if !self.issue(id, lane) && !self.requests.get(id).queued {
                self.requests.get_mut(id).queued = true;
                self.backlog.insert(delayed, id);
                return;
            }
        }
    }

    /// Issues the commands of a request; false when some remain for later. A request that a fence holds is set aside.
    #[inline]
    fn issue(&mut self, id: u32, lane: &Lane) -> bool {
        let Some(link) = &mut self.link else { return false };
        let request = self.requests.get(id);
        if request.raw.is_some() {
            return issue_raw(link, &mut self.requests, id, lane.reactor.now_ns());
        }
        let Some(target) = &self.target else { return false };
        if let Some(fence) = &self.fence
            && request.in_flight == 0
            && is_held(fence, request, lane)
        {
            self.requests.get_mut(id).queued = true;
            self.fenced.push(id);
            return false;
        }
        if request.io.op == Op::CompareAndWrite {
            if request.losses > 0 {
                // Rule 5: what it did, if anything, is final now.
                self.requests.finish(id, Outcome::Ended(Status::Aborted));
                return true;
            }
            return issue_fused(link, &mut self.requests, target, id, lane.reactor.now_ns());
        }
        loop {
            let request = self.requests.get(id);
            if Target::is_issued(&request.io, request.issued) || !request.status.is_success() {
                return true;
            }
            if link.commands.room() == 0 {
                return false;
            }
            let step = target.step(&request.io, request.issued);
            link.issue(&mut self.requests, id, &step, lane.reactor.now_ns());
            let request = self.requests.get_mut(id);
            request.issued = request.issued.saturating_add(step.blocks);
        }
    }

    /// A command of request `id` has ended: so may the request.
    #[inline]
    fn settle(&mut self, id: u32, lane: &Lane) {
        let request = self.requests.get_mut(id);
        if request.in_flight > 0 {
            return;
        }
        if request.raw.is_some() {
            let answer = request.answer;
            return self.requests.finish(id, Outcome::Answer(answer));
        }
        let status = request.status;
        if status.is_success() {
            if Target::is_issued(&request.io, request.issued) && !request.queued {
                self.requests.finish(id, Outcome::Ended(Status::Ok));
            }
            return;
        }
        let op = request.io.op;
        if is_retryable(status, op) && request.retries < lane.policy.retries_max {
            let crdt = self.target.map_or([0; 3], |target| target.crdt);
            let pause_ns = retry_pause_ns(status, request.retries, crdt);
            request.retries += 1;
            request.issued = 0;
            request.status = crate::spec::Status::SUCCESS;
            request.not_before_ns = if pause_ns > 0 { lane.reactor.now_ns() + pause_ns } else { 0 };
            if pause_ns > 0 {
                lane.retry_later(request.not_before_ns);
            }
            return self.enqueue(id);
        }
        self.dequeue(id);
        self.requests.finish(id, Outcome::Ended(block_status(status, op)));
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

fn is_held(fence: &Fence, request: &super::request::Request, lane: &Lane) -> bool {
    if !request.io.op.modifies() {
        return false;
    }
    let owner = (lane.number, request.sequence);
    let is_replay = lane.policy.exclusive && request.losses > 0 && request.io.op != Op::CompareAndWrite;
    fence.holds(request.io.lba.0, request.io.end(), is_replay.then_some(owner))
}

fn issue_raw(link: &mut Link, requests: &mut Requests, id: u32, now_ns: u64) -> bool {
    if link.commands.room() == 0 {
        return false;
    }
    let request = requests.get(id);
    let raw = request.raw.as_ref().expect("the caller has looked");
    let data_len = reactor::buf::sg_len(&request.io.bufs) as u32;
    let sqe = match raw.direction {
        Direction::InCapsule => command::with_capsule_data(raw.sqe, data_len),
        _ => command::with_transport_data(raw.sqe, data_len),
    };
    let unlimited = raw.unlimited;
    let step = Step { sqe, direction: raw.direction, data_offset: 0, data_len, blocks: u32::MAX, range: None };
    let slot = link.issue(requests, id, &step, now_ns);
    link.commands.get_mut(slot).unlimited = unlimited;
    true
}

fn issue_fused(link: &mut Link, requests: &mut Requests, target: &Target, id: u32, now_ns: u64) -> bool {
    // The two halves must follow each other in the queue, so they are issued together or not yet.
    if link.commands.room() < 2 {
        return false;
    }
    for step in target.fused(&requests.get(id).io) {
        link.issue(requests, id, &step, now_ns);
    }
    requests.get_mut(id).issued = u32::MAX;
    true
}

/// Waits for a block operation. Dropping it abandons the wait; the operation goes on.
pub(super) struct Ticket {
    lane: Rc<Lane>,
    id: Option<u32>,
}

impl Future for Ticket {
    type Output = Done;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        let ended = self.lane.poll_request(self.id, cx);
        ended.map(|(io, outcome)| {
            self.id = None;
            match outcome {
                Outcome::Ended(status) => io.done(status),
                Outcome::Answer(_) => unreachable!("block operations have a status"),
            }
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.lane.abandon(self.id);
    }
}

/// Waits for the answer to a raw command. Dropping it abandons the wait; the command goes on.
struct Answer<'a> {
    lane: &'a Lane,
    id: Option<u32>,
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
