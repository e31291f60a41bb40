//! A lane: requests in, completions out, over one connection at a time.
//!
//! A request is accepted while there is a connection and issued when there is a free command identifier and no fence against
//! it (see [`crate::initiator::fence`]); until then it waits here. What bounds the waiting is what the callers have under way. When
//! the connection ends, requests of block I/O are given back, for whatever lane is there then
//! ([`crate::initiator::multipath`]); raw commands (admin, Fabrics) end with it.
//!
//! Everything issued during a turn of the reactor is sent at its end in one system call.

mod forward;
mod issue;
mod ticket;

use bdev::{Io, Status};
use reactor::sync::Notify;
use reactor::{Reactor, TurnEnd};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::initiator::fence::{Board, Fence, Suspect};
use crate::initiator::link::{Broken, Link, RECEIVE_BYTES};
use crate::initiator::multipath::Unflushed;
use crate::initiator::plan::Target;
use crate::initiator::request::{History, Outcome, Raw, Requests, Why};
use crate::initiator::status::is_absent;
use crate::spec::Cqe;
use crate::spec::ana::AnaState;
use crate::tcp::{LINGER_BYTES_MAX, LINGER_NS};
use crate::tls::stream::Stream;

pub(in crate::initiator) use forward::RemoteLane;
use ticket::Answer;
pub(in crate::initiator) use ticket::{Returned, Ticket};

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
    /// Access states count.
    pub(in crate::initiator) ana: bool,
    /// A command is overdue after so long.
    pub(in crate::initiator) command_timeout_ns: u64,
}

/// See the module.
pub(in crate::initiator) struct Lane {
    me: Weak<Lane>,
    reactor: Rc<Reactor>,
    number: u32,
    policy: LanePolicy,
    common: Common,
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
    /// How the namespace can be reached on this lane's path.
    ana: Cell<AnaState>,
    counts: Cell<Counts>,
}

/// What a lane has in common with others.
#[derive(Default)]
pub(in crate::initiator) struct Common {
    /// What is suspect on any path.
    pub(in crate::initiator) board: Arc<Board>,
    /// Whether its path has to be flushed.
    pub(in crate::initiator) unflushed: Arc<Unflushed>,
    /// Rung when the lane may have become of use.
    pub(in crate::initiator) ready: Rc<Notify>,
}

/// What a lane has seen since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::initiator) struct Counts {
    /// Block operations taken.
    pub(in crate::initiator) ios: u64,
    /// Block operations given back that were under way on a connection which was lost.
    pub(in crate::initiator) lost: u64,
    /// Block operations that were refused for the sake of the path.
    pub(in crate::initiator) refused: u64,
    /// A refusal says that the access state is another one than the lane was told.
    pub(in crate::initiator) is_ana_stale: bool,
    /// A refusal says that the controller does not have the namespace.
    pub(in crate::initiator) is_absent: bool,
}

struct Inner {
    requests: Requests,
    /// Requests that are not wholly issued, in order.
    backlog: VecDeque<u32>,
    /// Requests that wait for the fence.
    fenced: Vec<u32>,
    fence: Option<Arc<Fence>>,
    /// The version of the board that `fence` is.
    fence_version: u64,
    /// The version at which the fenced requests were last looked at.
    fenced_version: u64,
    link: Option<Link>,
    target: Option<Target>,
    /// The association of the connection, or of the last one.
    association: u64,
    /// Counts connections.
    serial: u64,
    /// Why the last connection ended.
    broken: Option<Broken>,
    /// No new requests are taken.
    closed: bool,
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
    /// A lane of a device.
    pub(in crate::initiator) fn new(
        reactor: &Rc<Reactor>,
        number: u32,
        policy: LanePolicy,
        common: Common,
    ) -> Rc<Lane> {
        Rc::new_cyclic(|me| Lane {
            me: me.clone(),
            reactor: reactor.clone(),
            number,
            policy,
            common,
            inner: RefCell::new(Inner {
                requests: Requests::default(),
                backlog: VecDeque::new(),
                fenced: Vec::new(),
                fence: None,
                fence_version: 0,
                fenced_version: 0,
                link: None,
                target: None,
                association: 0,
                serial: 0,
                broken: None,
                closed: false,
                settled: Vec::new(),
            }),
            flush_armed: Cell::new(false),
            ended: Notify::default(),
            retired: Cell::new(false),
            queue: Cell::new(0),
            remote: Cell::new(None),
            ana: Cell::new(AnaState::Optimized),
            counts: Cell::default(),
        })
    }

    /// A lane for raw commands alone.
    pub(in crate::initiator) fn of_raw_commands(reactor: &Rc<Reactor>, number: u32, limit_ns: u64) -> Rc<Lane> {
        let policy =
            LanePolicy { retries_max: 0, replays_max: 0, exclusive: false, ana: false, command_timeout_ns: limit_ns };
        Lane::new(reactor, number, policy, Common::default())
    }

    /// Its number within the device.
    pub(in crate::initiator) fn number(&self) -> u32 {
        self.number
    }

    // --- requests ---------------------------------------------------------------------------------------------------

    /// Accepts a block operation that has passed the device's checks, with what became of it so far. A lane that is closed
    /// gives it back.
    #[inline]
    pub(in crate::initiator) fn submit(self: &Rc<Self>, io: Io, history: History) -> Result<Ticket, Io> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.closed {
            return Err(io);
        }
        let id = inner.requests.insert(io, None);
        let request = inner.requests.get_mut(id);
        (request.losses, request.retries) = (history.losses, history.retries);
        request.owner = history.owner.unwrap_or((self.number, request.sequence));
        // What another lane serves is counted there.
        if self.remote.get().is_none() {
            self.count(|counts| counts.ios += 1);
        }
        self.accept(inner, id);
        Ok(Ticket { lane: self.clone(), id: Some(id) })
    }

    /// How the namespace can be reached through this lane now; `None` while it cannot, for want of a connection.
    #[inline]
    pub(in crate::initiator) fn state(&self) -> Option<AnaState> {
        let inner = self.inner.borrow();
        let is_served = inner.is_open() || self.remote.get().is_some();
        (is_served && !inner.closed && !self.retired.get()).then(|| self.ana.get())
    }

    #[inline]
    fn count(&self, add: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    /// What was seen since the last call.
    pub(in crate::initiator) fn take_counts(&self) -> Counts {
        self.counts.take()
    }

    /// A command was refused for the sake of the path. For that of its access state, or where the namespace is not there, nothing
    /// more is sent until the lane is told how it is.
    fn note_refusal(&self, status: crate::spec::Status) {
        let (is_ana_stale, is_absent) = (status.is_ana_refusal() && self.policy.ana, is_absent(status));
        self.count(|counts| {
            counts.is_ana_stale |= is_ana_stale;
            counts.is_absent |= is_absent;
        });
        if is_ana_stale || is_absent {
            self.ana.set(AnaState::Change);
            self.ended.notify_all();
        }
    }

    /// Says how the namespace can be reached on this lane's path.
    pub(in crate::initiator) fn set_ana(&self, state: AnaState) {
        if self.ana.replace(state) != state {
            self.common.ready.notify_all();
        }
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
            Outcome::Ended(_) | Outcome::Returned(..) => (Err(self.broken().unwrap_or(Broken::Local)), io.bufs),
        }
    }

    #[inline]
    fn accept(&self, inner: &mut Inner, id: u32) {
        if let Some(remote) = self.remote.get()
            && inner.requests.get(id).raw.is_none()
        {
            return self.forward(inner, id, remote);
        }
        if inner.link.is_none() {
            return inner.give_back(id, Why::Lost);
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
        inner.requests.end_returned(tag, |request| !request.is_unsettled());
        for id in tagged {
            let request = inner.requests.get(id);
            if request.in_flight == 0 && request.is_unsettled() {
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

    /// Takes no more requests. Those under way go on.
    pub(in crate::initiator) fn refuse(&self) {
        if !std::mem::replace(&mut self.inner.borrow_mut().closed, true) {
            self.common.ready.notify_all();
        }
    }

    /// Gives everything back, and later requests too.
    pub(in crate::initiator) fn close(&self) {
        self.disconnect(Broken::Local);
        self.refuse();
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
        self.common.ready.notify_all();
    }

    /// Looks again at the requests that a fence holds, if what is suspect has changed.
    pub(in crate::initiator) fn look_at_fence(&self) {
        let inner = &mut *self.inner.borrow_mut();
        let version = self.common.board.version();
        if std::mem::replace(&mut inner.fenced_version, version) == version {
            return;
        }
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

    /// Ends the connection; its requests of block I/O are given back.
    pub(in crate::initiator) fn disconnect(&self, reason: Broken) {
        self.break_link(&mut self.inner.borrow_mut(), reason);
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
        // Before anybody hears of it: what is sent again, or fails, may be followed by anything on any path.
        self.common.board.add(lost.iter().filter_map(|id| self.suspect(inner, *id)).collect());
        for id in lost {
            self.lose(inner, id);
        }
        let waiting: Vec<u32> = inner.backlog.iter().chain(&inner.fenced).copied().collect();
        for id in waiting.into_iter().filter(|id| inner.requests.get(*id).raw.is_none()).collect::<Vec<_>>() {
            inner.give_back(id, Why::Lost);
        }
        let raw: Vec<u32> = inner.requests.active().filter(|id| inner.requests.get(*id).raw.is_some()).collect();
        for id in raw {
            inner.dequeue(id);
            inner.requests.finish(id, Outcome::Ended(Status::Gone));
        }
        self.ended.notify_all();
    }

    /// The blocks that a request with commands on a connection that is gone may still change.
    fn suspect(&self, inner: &Inner, id: u32) -> Option<Suspect> {
        let request = inner.requests.get(id);
        let may_change = request.raw.is_none() && request.io.op.modifies();
        may_change.then(|| Suspect {
            start: request.io.lba.0,
            end: request.io.end(),
            owner: request.owner,
            association: inner.association,
            newest: 0,
        })
    }

    /// Decides about a request that had commands on a connection that is gone.
    fn lose(&self, inner: &mut Inner, id: u32) {
        let request = inner.requests.get_mut(id);
        request.in_flight = 0;
        if request.raw.is_some() {
            return;
        }
        request.losses = request.losses.saturating_add(1);
        if request.losses > self.policy.replays_max {
            inner.dequeue(id);
            inner.requests.finish(id, Outcome::Ended(Status::Gone));
        } else {
            self.count(|counts| counts.lost += 1);
            inner.give_back(id, Why::Lost);
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
                // What was issued when the flush made room for it.
                self.arm(inner);
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
