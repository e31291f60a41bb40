//! A virtqueue at work on one reactor.
//!
//! ```text
//! Polled --found nothing: before a sleep, or many times--> Armed --kick, or a request has ended--> Polled
//! ```
//! While it is *polled*, every turn looks at the available index, and the guest is told not to kick. Before the reactor
//! sleeps, the queue asks for kicks and looks once more. Completions gather during a turn; at its end they become visible
//! together, with one call of the guest, if it wants one.
//!
//! No more requests are under way than the queue has entries: a descriptor that is taken twice stops the queue, like
//! anything else in it that makes no sense. A stopped queue stays so until the front end starts it anew.

use crate::chain::ChainError;
use crate::disk::Disk;
use crate::inflight::Inflight;
use crate::memory::Memory;
use crate::request::{Kind, Outcome, Request, Step};
use crate::spec::{feature, status};
use crate::split::{Layout, RingError, SplitRing};
use crate::stats::Counters;
use bdev::Channel;
use reactor::sync::Notify;
use reactor::{IoFuture, Reactor, TurnEnd};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests taken from a queue in one turn, and bytes of their data: more would make others wait.
const BUDGET: u16 = 64;
const BUDGET_BYTES: u64 = 4 << 20;
/// Requests between two looks at the clock.
const CLOCK_EVERY: u16 = 8;
/// Polls in a row that find nothing and make a queue ask for kicks although its reactor does not sleep: others keep it
/// awake, and looking at idle queues costs them.
const EMPTY_POLLS_MAX: u32 = 4096;

/// How a guest is told that requests have ended, or that its queue is broken.
pub trait Bell: Send {
    /// Tells it.
    fn ring(&self);
}

/// Deliberate defects, for tests of what checks this door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDefect {
    /// Writes are used before the device has done them.
    UseEarly,
    /// What an earlier daemon had under way is not carried out.
    ForgetUnderWay,
    /// What was used stays noted as under way.
    KeepNotes,
    /// Before a sleep, the queue is not looked at once more.
    SleepBlind,
}

/// What a queue is made of.
pub struct Parts {
    /// For messages.
    pub name: String,
    /// What the guest sees.
    pub disk: Arc<Disk>,
    /// Its device on this reactor.
    pub channel: Rc<dyn Channel>,
    /// What the guest shares.
    pub memory: Arc<Memory>,
    /// Where in it the queue is.
    pub layout: Layout,
    /// Negotiated virtio features.
    pub features: u64,
    /// Where to go on; with `inflight` what that says counts.
    pub next_available: u16,
    /// Where requests under way are noted.
    pub inflight: Option<Inflight>,
    /// How the guest is told that requests have ended.
    pub call: Option<Box<dyn Bell>>,
    /// How it is told that the queue is broken.
    pub error: Option<Box<dyn Bell>>,
    /// What it counts.
    pub counters: Arc<Counters>,
    /// The door ends: requests in pieces do not go on.
    pub closing: Arc<AtomicBool>,
    /// For tests of checkers.
    pub defect: Option<QueueDefect>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Polled,
    Armed,
    /// It takes no more requests.
    Stopped,
}

/// See the module.
pub struct Queue {
    name: String,
    reactor: Rc<Reactor>,
    disk: Arc<Disk>,
    channel: Rc<dyn Channel>,
    features: u64,
    memory: RefCell<Rc<Memory>>,
    ring: RefCell<SplitRing>,
    inflight: RefCell<Option<Inflight>>,
    state: Cell<State>,
    empty_polls: Cell<u32>,
    /// Chains under way, by their first descriptor.
    taken: RefCell<Vec<bool>>,
    under_way: Cell<usize>,
    /// Requests that have ended in this turn: first descriptor, bytes written.
    ended: RefCell<Vec<(u16, u32)>>,
    spare: RefCell<Vec<Request>>,
    call: RefCell<Option<Box<dyn Bell>>>,
    error: RefCell<Option<Box<dyn Bell>>>,
    counters: Arc<Counters>,
    closing: Arc<AtomicBool>,
    /// Chains that were under way before and are yet to begin again; they come first.
    left: RefCell<VecDeque<u16>>,
    /// Bytes of buffers of requests under way.
    buffered: Cell<u64>,
    /// It has stopped, or the last request has ended.
    changed: Notify,
    defect: Option<QueueDefect>,
}

impl Queue {
    /// Serves a queue from now on, until it is [ended](Self::end).
    pub fn serve(reactor: &Rc<Reactor>, parts: Parts) -> Result<Rc<Queue>, RingError> {
        let queue = Queue::start(reactor, parts)?;
        crate::local::add(reactor, &queue);
        // Calls that an earlier daemon owed the guest.
        queue.call_now();
        Ok(queue)
    }

    /// Serves it no more: waits for the requests that were taken; then the number of the next available entry.
    pub async fn end(self: Rc<Self>) -> u16 {
        let next = self.stop().await;
        crate::local::remove(&self.reactor, &self);
        next
    }

    /// Starts a queue: what was under way before goes on, and the first poll looks for more.
    fn start(reactor: &Rc<Reactor>, parts: Parts) -> Result<Rc<Queue>, RingError> {
        let Parts {
            name,
            disk,
            channel,
            memory,
            layout,
            features,
            next_available,
            mut inflight,
            call,
            error,
            counters,
            closing,
            defect,
        } = parts;
        let mut ring = SplitRing::new(&memory, layout, features & feature::EVENT_IDX != 0, next_available)?;
        let left = match &mut inflight {
            Some(inflight) => inflight.recover(ring.next_used(), layout.entries)?,
            None => Vec::new(),
        };
        let next_taken = ring.next_used().wrapping_add(left.len() as u16);
        let left = if defect == Some(QueueDefect::ForgetUnderWay) { Vec::new() } else { left };
        if inflight.is_some() {
            // What was taken is known better here than by a front end that lost its daemon.
            ring.set_next_available(next_taken);
        }
        ring.disarm(&memory)?;
        let queue = Rc::new(Queue {
            name,
            reactor: reactor.clone(),
            disk,
            channel,
            features,
            memory: RefCell::new(Rc::new(Memory::clone(&memory))),
            ring: RefCell::new(ring),
            inflight: RefCell::new(inflight),
            state: Cell::new(State::Polled),
            empty_polls: Cell::new(0),
            taken: RefCell::new(vec![false; layout.entries.into()]),
            under_way: Cell::new(0),
            ended: RefCell::new(Vec::with_capacity(layout.entries.into())),
            spare: RefCell::default(),
            call: RefCell::new(call),
            error: RefCell::new(error),
            counters,
            closing,
            changed: Notify::default(),
            left: RefCell::new(left.into()),
            buffered: Cell::new(0),
            defect,
        });
        queue.counters.resubmitted.add(queue.left.borrow().len() as u64);
        Ok(queue)
    }

    /// Looks for requests and begins them while fewer than `share` bytes are under way; returns how many.
    #[inline]
    pub(crate) fn poll(self: &Rc<Self>, share: u64) -> usize {
        if self.state.get() != State::Polled {
            return 0;
        }
        match self.take_some(share) {
            Ok(0) => {
                let empty = self.empty_polls.get() + 1;
                self.empty_polls.set(empty);
                if empty >= EMPTY_POLLS_MAX {
                    self.arm(share);
                }
                0
            }
            Ok(count) => {
                self.empty_polls.set(0);
                count
            }
            Err(error) => {
                self.fail(error);
                1
            }
        }
    }

    fn take_some(self: &Rc<Self>, share: u64) -> Result<usize, RingError> {
        let left = self.left.borrow().len() as u16;
        // (chains that are left keep entries of the ring: there are not more of both than it has)
        let waiting = self.ring.borrow().waiting(&self.memory.borrow())?.saturating_add(left);
        let (mut taken, mut bytes) = (0, 0);
        while taken < waiting.min(BUDGET) && bytes < BUDGET_BYTES && self.buffered.get() < share {
            if taken % CLOCK_EVERY == CLOCK_EVERY - 1 && self.reactor.is_turn_long() {
                break;
            }
            let first = self.left.borrow_mut().pop_front();
            let head = match first {
                Some(head) => head,
                None => self.ring.borrow_mut().take(&self.memory.borrow())?,
            };
            bytes += self.begin(head)?;
            taken += 1;
        }
        Ok(taken.into())
    }

    /// Asks for kicks; true when requests are there after all that may begin.
    pub(crate) fn arm(&self, share: u64) -> bool {
        // While its share is out, no kick would help: the end of a request makes it look again.
        if self.state.get() != State::Polled || self.buffered.get() >= share {
            return false;
        }
        if !self.left.borrow().is_empty() {
            return true;
        }
        let mut ring = self.ring.borrow_mut();
        let memory = self.memory.borrow();
        let waiting = ring.arm(&memory).map(|waiting| waiting && self.defect != Some(QueueDefect::SleepBlind));
        match waiting {
            Ok(false) => {
                self.state.set(State::Armed);
                false
            }
            // (an error is met again by the next poll)
            Ok(true) | Err(_) => {
                self.empty_polls.set(0);
                true
            }
        }
    }

    /// The guest says that there is something.
    pub fn kicked(self: &Rc<Self>) {
        self.counters.kicks.add(1);
        if self.state.get() == State::Armed {
            let disarmed = self.ring.borrow_mut().disarm(&self.memory.borrow());
            self.state.set(State::Polled);
            self.empty_polls.set(0);
            if let Err(error) = disarmed {
                self.fail(error);
            }
        }
    }

    /// Begins a request; returns its bytes.
    fn begin(self: &Rc<Self>, head: u16) -> Result<u64, RingError> {
        match self.taken.borrow_mut().get_mut(usize::from(head)) {
            Some(taken) if !*taken => *taken = true,
            Some(_) => return Err(RingError::Twice(head)),
            None => {
                let error = ChainError::NoSuchDescriptor { index: head, entries: self.ring.borrow().layout().entries };
                return Err(RingError::Chain { head, error });
            }
        }
        if let Some(inflight) = &mut *self.inflight.borrow_mut() {
            inflight.taken(head)?;
        }
        let mut request = self.spare.borrow_mut().pop().unwrap_or_default();
        request.head = head;
        let layout = self.ring.borrow().layout();
        let memory = self.memory.borrow().clone();
        let may_indirect = self.features & feature::INDIRECT != 0;
        let walked = request.chain.walk(&memory, layout.table, layout.entries, head, may_indirect);
        walked.map_err(|error| RingError::Chain { head, error })?;
        request.open(&memory)?;
        let bytes = request.buffered();
        self.under_way.set(self.under_way.get() + 1);
        self.buffered.set(self.buffered.get() + bytes);
        match request.step(&self.disk, &self.reactor, self.features) {
            Step::Ended(outcome) => self.finish(request, outcome),
            Step::Submit(io) if self.defect == Some(QueueDefect::UseEarly) && io.op == bdev::Op::Write => {
                let channel = self.channel.clone();
                self.reactor.spawn(async move { drop(channel.submit(io).await) });
                self.finish(request, Outcome::new(status::OK));
            }
            Step::Submit(io) => match IoFuture::begin(&self.channel, |channel| channel.submit(io)) {
                Ok(done) => {
                    let outcome = request.conclude(&done);
                    self.finish(request, outcome);
                }
                Err(begun) => {
                    let this = self.clone();
                    self.reactor.spawn_eager(async move {
                        let done = begun.await;
                        let outcome = request.conclude(&done);
                        drop(done);
                        this.finish(request, outcome);
                    });
                }
            },
            Step::Pieces => {
                let this = self.clone();
                self.reactor.spawn_eager(async move {
                    let pieces =
                        request.pieces(&this.disk, &this.reactor, &*this.channel, this.features, &this.closing);
                    match pieces.await {
                        Some(outcome) => this.finish(request, outcome),
                        // It is noted: whoever serves the queue next carries it out.
                        None if this.inflight.borrow().is_some() => this.leave(&request),
                        None => this.finish(request, Outcome::new(status::IOERR)),
                    }
                });
            }
        }
        Ok(bytes)
    }

    /// A request is under way no more.
    fn leave(&self, request: &Request) {
        self.under_way.set(self.under_way.get() - 1);
        self.buffered.set(self.buffered.get() - request.buffered());
        if self.under_way.get() == 0 {
            self.changed.notify_all();
        }
    }

    fn finish(self: &Rc<Self>, mut request: Request, outcome: Outcome) {
        self.count(&request, outcome);
        self.leave(&request);
        if !request.answer(outcome) {
            // Nobody could tell what became of it: it is not used.
            let address = request.chain.writable.last().map_or(0, |segment| segment.address);
            return self.fail(RingError::Outside(crate::memory::Outside { address, bytes: 1 }));
        }
        let written = outcome.bytes.saturating_add(1).min(u64::from(u32::MAX)) as u32;
        let mut ended = self.ended.borrow_mut();
        if ended.is_empty() {
            self.reactor.at_turn_end(self.clone());
        }
        ended.push((request.head, written));
        drop(ended);
        request.memory = None;
        self.spare.borrow_mut().push(request);
    }

    fn count(&self, request: &Request, outcome: Outcome) {
        let counters = &self.counters;
        if outcome.status != status::OK {
            counters.errors.add(1);
        }
        match request.kind() {
            Kind::Read => {
                counters.reads.add(1);
                counters.read_bytes.add(outcome.bytes);
            }
            Kind::Write => {
                counters.writes.add(1);
                counters.write_bytes.add(if outcome.status == status::OK { request.written() } else { 0 });
            }
            Kind::Flush => counters.flushes.add(1),
            Kind::Ranges => counters.discards.add(1),
            Kind::Other => counters.other.add(1),
        }
    }

    /// Makes what has ended visible, and calls the guest.
    fn publish(&self) -> Result<(), RingError> {
        let mut ended = self.ended.borrow_mut();
        let memory = self.memory.borrow();
        let (mut ring, mut inflight) = (self.ring.borrow_mut(), self.inflight.borrow_mut());
        let mut taken = self.taken.borrow_mut();
        for (head, written) in ended.iter().copied() {
            ring.put(&memory, head, written)?;
            taken[usize::from(head)] = false;
            if let Some(inflight) = &mut *inflight {
                inflight.put(head)?;
            }
        }
        let call = ring.publish(&memory)?;
        if let Some(inflight) = &mut *inflight
            && self.defect != Some(QueueDefect::KeepNotes)
        {
            inflight.published(ended.iter().map(|(head, _)| *head), ring.next_used())?;
        }
        ended.clear();
        if self.state.get() == State::Armed {
            // Who has got an answer is likely to ask again soon.
            ring.disarm(&memory)?;
            self.state.set(State::Polled);
            self.empty_polls.set(0);
        }
        if call && let Some(bell) = &*self.call.borrow() {
            self.counters.calls.add(1);
            bell.ring();
        }
        Ok(())
    }

    /// The guest has written what makes no sense: nothing more is taken, and it is told so.
    #[cold]
    pub(crate) fn fail(&self, error: RingError) {
        self.changed.notify_all();
        if self.state.replace(State::Stopped) == State::Stopped {
            return;
        }
        tracing::warn!(queue = %self.name, "virtqueue stopped: {error}");
        self.counters.stopped.add(1);
        if let Some(bell) = &*self.error.borrow() {
            bell.ring();
        }
    }

    /// Takes no more requests, and waits for those under way; then the number of the next available entry.
    pub(crate) async fn stop(self: &Rc<Self>) -> u16 {
        if self.state.replace(State::Stopped) != State::Stopped && !self.closing.load(Ordering::Relaxed) {
            // The front end counts chains that are left among those that were taken: they end before as well.
            let left = self.left.take();
            if let Err(error) = left.into_iter().try_for_each(|head| self.begin(head).map(drop)) {
                self.fail(error);
            }
        }
        self.changed.notify_all();
        self.changed.wait_until(|| self.under_way.get() == 0 && self.ended.borrow().is_empty()).await;
        self.ring.borrow().next_available()
    }

    /// Whether it takes no more requests.
    pub fn is_stopped(&self) -> bool {
        self.state.get() == State::Stopped
    }

    /// Notified when it stops.
    pub(crate) fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Guest memory was shared anew. Requests under way keep the memory that they began with.
    pub(crate) fn set_memory(&self, memory: Arc<Memory>, layout: Layout) {
        let moved = self.ring.borrow_mut().moved(&memory, layout);
        match moved {
            Ok(()) => {
                self.memory.replace(Rc::new(Memory::clone(&memory)));
            }
            Err(error) => self.fail(error),
        }
    }

    /// Another way to call the guest; it is called at once, in case a call was lost.
    pub(crate) fn set_call(&self, call: Option<Box<dyn Bell>>) {
        self.call.replace(call);
        self.call_now();
    }

    /// Calls the guest although nothing has ended.
    pub(crate) fn call_now(&self) {
        if let Some(bell) = &*self.call.borrow() {
            bell.ring();
        }
    }

    /// Another way to tell that the queue is broken.
    pub(crate) fn set_error(&self, error: Option<Box<dyn Bell>>) {
        self.error.replace(error);
    }
}

impl TurnEnd for Queue {
    fn turn_end(self: Rc<Self>) {
        if let Err(error) = self.publish() {
            self.ended.borrow_mut().clear();
            self.fail(error);
        }
        if self.under_way.get() == 0 {
            self.changed.notify_all();
        }
    }
}
