//! The reactor: one per core, it turns events into task wake-ups and runs tasks until there is nothing to do, then
//! spins or sleeps as its policy says.
//!
//! One turn: messages from other reactors, driver events, due timers, pollers, ready tasks up to a budget, end-of-turn
//! hooks (where connections flush everything they gathered). Every step has a budget, so no source starves another.

use crate::call::{Call, Reply};
use crate::driver::{Driver, Event, FileOp, SocketId, Token};
use crate::exec::Executor;
use crate::hot::Hot;
use crate::iofuture::IoFuture;
use crate::kept::Keep;
use crate::mesh::{MeshBuilder, MeshEnds, Message, ReactorHandle};
use crate::ops::{OpTable, RemoteFuture};
use crate::pool::{BufPool, PoolConfig};
use crate::spin::SpinWindow;
use crate::stats::ReactorStats;
use crate::timer::{TimerKey, TimerWheel};
use base::Errno;
use crossbeam_queue::SegQueue;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// What a reactor does when there is no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollPolicy {
    /// Never sleep: lowest latency, a whole core.
    Busy,
    /// Spin for up to `spin_max_ns` as far as that has paid off lately, then sleep.
    Adaptive {
        /// Longest spin before sleeping.
        spin_max_ns: u64,
    },
    /// Sleep at once.
    Sleep,
}

/// 50 us: above the 9-12 us round trip of a busy loopback connection, far below what a person notices on a CPU graph.
pub const SPIN_MAX_NS_DEFAULT: u64 = 50_000;

/// A turn that has lasted so long keeps those waiting who have something to be done at once.
const LONG_TURN_NS: u64 = 150_000;

/// How a reactor is set up.
#[derive(Clone, Debug)]
pub struct ReactorConfig {
    /// What to do when idle.
    pub policy: PollPolicy,
    /// Most tasks polled in one turn.
    pub task_budget: usize,
    /// Most messages from other reactors taken in one turn.
    pub message_budget: usize,
    /// Buffer memory.
    pub pool: PoolConfig,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        ReactorConfig {
            policy: PollPolicy::Adaptive { spin_max_ns: SPIN_MAX_NS_DEFAULT },
            task_budget: 1024,
            message_budget: 256,
            pool: PoolConfig::default(),
        }
    }
}

/// Something polled every turn because nothing wakes the reactor for it (a queue in shared memory).
pub trait Poller {
    /// Does what there is to do; returns how much that was.
    fn poll(&self) -> usize;
    /// Longest time the reactor may sleep between polls; `None` when a wake-up is arranged elsewhere.
    fn sleep_max_ns(&self) -> Option<u64>;
    /// Called right before a sleep: arranges the wake-up, then looks again. True when there is work after all.
    fn arm(&self) -> bool {
        false
    }
}

/// Work gathered during a turn and done once at its end, such as sending what a connection has queued.
pub trait TurnEnd {
    /// Called once per registration.
    fn turn_end(self: Rc<Self>);
}

/// Identifies a registered poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerId(u64);

#[derive(Default)]
struct SocketState {
    readable: bool,
    writable: bool,
    /// The end of the stream was seen; it may still have bytes before it. A short receive does not mean that nothing waits.
    ended: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One reactor. Used through `Rc` on its own thread; other threads hold a [`ReactorHandle`].
pub struct Reactor {
    index: usize,
    config: ReactorConfig,
    driver: Rc<dyn Driver>,
    exec: Executor,
    pool: BufPool,
    timers: RefCell<TimerWheel>,
    pub(crate) ops: RefCell<OpTable>,
    sockets: RefCell<BTreeMap<SocketId, SocketState>>,
    hot: Hot,
    mesh: RefCell<MeshEnds>,
    outbox: RefCell<VecDeque<(usize, Message)>>,
    door: Arc<SegQueue<Message>>,
    pollers: RefCell<Vec<(PollerId, Rc<dyn Poller>)>>,
    turn_ends: RefCell<Vec<Rc<dyn TurnEnd>>>,
    keep: Keep,
    events: RefCell<Vec<Event>>,
    due: RefCell<Vec<Waker>>,
    /// Tasks that have given way, until the next turn.
    yielded: RefCell<Vec<Waker>>,
    now_ns: Cell<u64>,
    /// Whoever was sent something is told when the turn ends.
    in_turn: Cell<bool>,
    next_poller: Cell<u64>,
    stopping: Cell<bool>,
    /// Reactors of the group that have closed; they answer no calls.
    stopped_peers: RefCell<BTreeSet<usize>>,
    stats: Arc<ReactorStats>,
}

impl Reactor {
    /// A reactor on the calling thread.
    pub fn new(index: usize, driver: Rc<dyn Driver>, config: ReactorConfig) -> Rc<Reactor> {
        let exec = Executor::new(driver.waker());
        let pool = BufPool::new(config.pool);
        pool.attach(exec.shared.clone());
        let hook_driver = driver.clone();
        pool.set_arena_hook(move |start, bytes| hook_driver.register_memory(start.as_ptr(), bytes));
        let now_ns = driver.now_ns();
        Rc::new(Reactor {
            index,
            config,
            exec,
            pool,
            timers: RefCell::new(TimerWheel::new(now_ns)),
            driver,
            ops: RefCell::default(),
            sockets: RefCell::default(),
            hot: Hot::default(),
            mesh: RefCell::default(),
            outbox: RefCell::default(),
            door: Arc::default(),
            pollers: RefCell::default(),
            turn_ends: RefCell::default(),
            keep: Keep::default(),
            events: RefCell::default(),
            due: RefCell::default(),
            yielded: RefCell::default(),
            now_ns: Cell::new(now_ns),
            in_turn: Cell::default(),
            next_poller: Cell::new(0),
            stopping: Cell::new(false),
            stopped_peers: RefCell::default(),
            stats: Arc::default(),
        })
    }

    /// The reactor's number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The world.
    pub fn driver(&self) -> &Rc<dyn Driver> {
        &self.driver
    }

    /// This reactor's buffers.
    pub fn pool(&self) -> &BufPool {
        &self.pool
    }

    /// Time at the start of this turn, in nanoseconds; cheap. For timeouts and statistics.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// Time right now.
    pub fn clock_ns(&self) -> u64 {
        self.driver.now_ns()
    }

    /// Counters that any thread may read.
    pub fn stats(&self) -> &Arc<ReactorStats> {
        &self.stats
    }

    /// A handle for other threads.
    pub fn handle(&self) -> ReactorHandle {
        ReactorHandle::new(self.index, self.exec.shared.clone(), self.door.clone())
    }

    /// Starts a task on this reactor.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.exec.spawn(future);
    }

    /// Starts a task by polling it at once; it costs no queueing when it completes without waiting.
    #[inline]
    pub fn spawn_eager(&self, future: impl Future<Output = ()> + 'static) {
        self.exec.spawn_eager(future);
    }

    /// Starts a task whose result can be awaited. Dropping the handle lets the task go on.
    pub fn spawn_join<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> crate::sync::JoinHandle<T> {
        let (handle, complete) = crate::sync::join_pair();
        self.spawn(async move { complete(future.await) });
        handle
    }

    /// How many tasks are alive.
    pub fn live_tasks(&self) -> usize {
        self.exec.live()
    }

    /// Asks for `hook.turn_end()` at the end of this turn. Once per call; callers keep a flag.
    #[inline]
    pub fn at_turn_end(&self, hook: Rc<dyn TurnEnd>) {
        self.turn_ends.borrow_mut().push(hook);
    }

    /// Adds a poller.
    pub fn add_poller(&self, poller: Rc<dyn Poller>) -> PollerId {
        let id = PollerId(self.next_poller.replace(self.next_poller.get() + 1));
        self.pollers.borrow_mut().push((id, poller));
        id
    }

    /// Removes a poller; not from inside its own poll.
    pub fn remove_poller(&self, id: PollerId) {
        self.pollers.borrow_mut().retain(|(other, _)| *other != id);
    }

    /// Keeps a value that cannot leave this thread (an open file, a channel) until [`release`](Self::release) or the
    /// reactor's end, for owners that live elsewhere; they name it by the number returned.
    pub fn keep<T: 'static>(&self, value: Rc<T>) -> u64 {
        self.keep.add(value)
    }

    /// The `T` that is kept under `number`. This is how a message finds its component's state on the reactor that it arrives
    /// at.
    pub fn kept<T: 'static>(&self, number: u64) -> Option<Rc<T>> {
        self.keep.get(number)
    }

    /// As [`kept`](Self::kept), made when first asked for: the part that a component which spans reactors has on this one,
    /// under a number that the component has chosen. No type is kept both so and by [`keep`](Self::keep).
    pub fn kept_or<T: 'static>(&self, number: u64, make: impl FnOnce() -> T) -> Rc<T> {
        self.keep.get_or(number, make)
    }

    /// Lets go of the `T` that is kept under `number`.
    pub fn release<T: 'static>(&self, number: u64) {
        self.keep.remove::<T>(number);
    }

    /// Waits until `deadline_ns`.
    pub fn sleep_until(self: &Rc<Self>, deadline_ns: u64) -> Sleep {
        Sleep { reactor: self.clone(), deadline_ns, key: None }
    }

    /// Waits for `duration_ns`.
    pub fn sleep_ns(self: &Rc<Self>, duration_ns: u64) -> Sleep {
        self.sleep_until(self.clock_ns().saturating_add(duration_ns))
    }

    /// `future`'s result, or `None` when `duration_ns` passed first (the future is dropped).
    pub async fn timeout<T>(self: &Rc<Self>, duration_ns: u64, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut sleep = std::pin::pin!(self.sleep_ns(duration_ns));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// Gives way until the next turn: to other tasks, and to sockets, messages and completions that have come meanwhile.
    pub async fn yield_now(&self) {
        let mut since = None;
        std::future::poll_fn(|cx| {
            // Something else may wake the task before the turn is over.
            let turn = self.turns();
            if *since.get_or_insert(turn) != turn {
                return Poll::Ready(());
            }
            self.yielded.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Turns taken so far.
    pub fn turns(&self) -> u64 {
        self.stats.read_turns()
    }

    /// Whether this turn has taken longer than background work should make hosts wait. Such work asks between its parts and
    /// [gives way](Self::yield_now); in a simulated world turns take no time.
    pub fn is_turn_long(&self) -> bool {
        self.clock_ns().saturating_sub(self.now_ns.get()) > LONG_TURN_NS
    }

    // --- other reactors ---------------------------------------------------------------------------------------------

    /// Joins the mesh; `peers` lists all reactors of the group by index.
    pub fn join_mesh(&self, builder: &MeshBuilder, peers: Vec<ReactorHandle>) {
        *self.mesh.borrow_mut() = builder.take(self.index, peers);
    }

    /// How many reactors the group has (1 before a mesh is joined).
    pub fn group_size(&self) -> usize {
        self.mesh.borrow().peers().len().max(1)
    }

    /// Runs `action` on reactor `to` (which may be this one), in the order of the calls for each target. When the ring is
    /// full the message waits here; what bounds that queue is the number of operations under way.
    pub fn post(&self, to: usize, action: impl FnOnce(&Rc<Reactor>) + Send + 'static) {
        self.send(to, Message::new(action));
    }

    pub(crate) fn send(&self, to: usize, message: Message) {
        if to == self.index {
            self.door.push(message);
            return;
        }
        let (mut outbox, mesh) = (self.outbox.borrow_mut(), self.mesh.borrow());
        if outbox.is_empty() {
            if let Err(message) = mesh.send(to, message) {
                outbox.push_back((to, message));
            }
        } else {
            outbox.push_back((to, message));
        }
        if !self.in_turn.get() {
            mesh.tell();
        }
    }

    /// Runs a future on reactor `to` and gives its result here. Never ends when that reactor stops before; see
    /// [`try_call_on`](Self::try_call_on).
    pub async fn call_on<T, F, M>(self: &Rc<Self>, to: usize, make: M) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
        M: FnOnce(Rc<Reactor>) -> F + Send + 'static,
    {
        match self.try_call_on(to, make).await {
            Some(value) => value,
            None => std::future::pending().await,
        }
    }

    /// Runs a future on reactor `to` and gives its result here; `None` when that reactor stops, or has stopped, before it
    /// answers.
    pub async fn try_call_on<T, F, M>(self: &Rc<Self>, to: usize, make: M) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
        M: FnOnce(Rc<Reactor>) -> F + Send + 'static,
    {
        if to == self.index {
            return Some(make(self.clone()).await);
        }
        let call =
            self.begin_call(to, |there: &Rc<Reactor>, reply: Reply<T>| reply.send_from(make(there.clone()), there));
        call?.await
    }

    /// As [`try_call_on`](Self::try_call_on) with an operation of another reactor that may be over as soon as it is begun: then it
    /// costs no task there. It is under way when this returns. `None` when that reactor has stopped.
    pub fn begin_io_on<T, M>(self: &Rc<Self>, to: usize, begin: M) -> Option<RemoteFuture<T>>
    where
        T: Send + 'static,
        M: FnOnce(&Rc<Reactor>) -> IoFuture<'static, T> + Send + 'static,
    {
        self.begin_call(to, move |there: &Rc<Reactor>, reply: Reply<T>| match begin(there).try_ready() {
            Ok(value) => reply.send(value, there),
            Err(future) => reply.send_from(future, there),
        })
    }

    fn begin_call<T, M>(self: &Rc<Self>, to: usize, run: M) -> Option<RemoteFuture<T>>
    where
        T: Send + 'static,
        M: FnOnce(&Rc<Reactor>, Reply<T>) + Send + 'static,
    {
        if self.stopped_peers.borrow().contains(&to) {
            return None;
        }
        let token = self.ops.borrow_mut().begin_remote(to);
        let call = Call::new(self.index, token, run);
        self.send(to, call.into_message());
        Some(RemoteFuture::new(self.clone(), token))
    }

    /// Reactor `peer` has closed: what it answered before has arrived, nothing else will.
    fn peer_stopped(self: &Rc<Self>, peer: usize) {
        loop {
            let mut batch: smallvec::SmallVec<[Message; 4]> = smallvec::SmallVec::new();
            self.mesh.borrow().receive(4, |message| batch.push(message));
            if batch.is_empty() {
                break;
            }
            batch.into_iter().for_each(|message| message.run(self));
        }
        self.stopped_peers.borrow_mut().insert(peer);
        let waiters = self.ops.borrow_mut().lose_remote(peer);
        waiters.into_iter().for_each(std::task::Waker::wake);
    }

    fn pump_messages(self: &Rc<Self>) -> usize {
        let mut taken = 0;
        while taken < self.config.message_budget && !self.door.is_empty() {
            let Some(message) = self.door.pop() else { break };
            message.run(self);
            taken += 1;
        }
        if self.group_size() > 1 {
            let mut batch: smallvec::SmallVec<[Message; BATCH]> = smallvec::SmallVec::new();
            loop {
                let keep = |message: Message| {
                    message.prefetch();
                    batch.push(message);
                };
                self.mesh.borrow().receive(BATCH, keep);
                if batch.is_empty() {
                    break;
                }
                for message in batch.drain(..) {
                    taken += 1;
                    message.run(self);
                }
                if taken >= self.config.message_budget {
                    break;
                }
            }
            taken += self.flush_outbox();
        }
        taken
    }

    fn flush_outbox(&self) -> usize {
        let mut outbox = self.outbox.borrow_mut();
        let mut sent = 0;
        while let Some((to, message)) = outbox.pop_front() {
            if let Err(message) = self.mesh.borrow().send(to, message) {
                outbox.push_front((to, message));
                break;
            }
            sent += 1;
        }
        sent
    }

    // --- driver operations ------------------------------------------------------------------------------------------

    pub(crate) fn submit_file(&self, file: crate::driver::FileId, op: FileOp) -> Token {
        let token = self.ops.borrow_mut().begin();
        self.driver.file_submit(file, op, token);
        token
    }

    pub(crate) fn watch_socket(&self, socket: SocketId) {
        // New sockets count as ready: the first attempt finds out.
        let state = SocketState { readable: true, writable: true, ..SocketState::default() };
        self.sockets.borrow_mut().insert(socket, state);
    }

    pub(crate) fn forget_socket(&self, socket: SocketId) {
        self.sockets.borrow_mut().remove(&socket);
    }

    /// A receive found nothing.
    pub(crate) fn found_nothing(&self, socket: SocketId) {
        self.hot.found_nothing(socket);
        self.clear_ready(socket, true);
    }

    /// Whether no later event tells of a socket's end.
    pub(crate) fn has_ended(&self, socket: SocketId) -> bool {
        self.sockets.borrow().get(&socket).is_none_or(|state| state.ended)
    }

    pub(crate) fn clear_ready(&self, socket: SocketId, readable: bool) {
        if let Some(state) = self.sockets.borrow_mut().get_mut(&socket) {
            if readable {
                state.readable = state.ended;
            } else {
                state.writable = false;
            }
        }
    }

    pub(crate) fn poll_ready(&self, socket: SocketId, readable: bool, cx: &mut Context<'_>) -> Poll<Result<(), Errno>> {
        let mut sockets = self.sockets.borrow_mut();
        let Some(state) = sockets.get_mut(&socket) else { return Poll::Ready(Err(Errno::EBADF)) };
        let (ready, waker) =
            if readable { (state.readable, &mut state.reader) } else { (state.writable, &mut state.writer) };
        if ready {
            return Poll::Ready(Ok(()));
        }
        register(waker, cx);
        Poll::Pending
    }

    /// Ready when [`has_ended`](Self::has_ended). Whoever waits for that waits as the reader.
    pub(crate) fn poll_ended(&self, socket: SocketId, cx: &mut Context<'_>) -> Poll<()> {
        let mut sockets = self.sockets.borrow_mut();
        let Some(state) = sockets.get_mut(&socket).filter(|state| !state.ended) else { return Poll::Ready(()) };
        register(&mut state.reader, cx);
        Poll::Pending
    }

    fn dispatch(&self, event: Event) {
        match event {
            Event::File { token, result, bufs } => {
                let waker = self.ops.borrow_mut().complete(token, result, bufs);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Event::Socket { socket, readable, writable, ended } => {
                let mut sockets = self.sockets.borrow_mut();
                let Some(state) = sockets.get_mut(&socket) else { return };
                state.readable |= readable;
                state.writable |= writable;
                state.ended |= ended;
                let reader = if readable { state.reader.take() } else { None };
                let writer = if writable { state.writer.take() } else { None };
                drop(sockets);
                reader.into_iter().chain(writer).for_each(Waker::wake);
            }
        }
    }

    // --- turning ----------------------------------------------------------------------------------------------------

    /// One turn without waiting; returns how much was done.
    pub fn turn(self: &Rc<Self>) -> usize {
        self.now_ns.set(self.driver.now_ns());
        let mut events = self.events.take();
        if !self.try_hot_socket() {
            self.driver.poll(&mut events);
            self.hot.polled(&events);
        }
        self.turn_with(events)
    }

    /// Wakes the reader of the hot socket in place of a poll, when the driver has news for a reactor that spins.
    fn try_hot_socket(&self) -> bool {
        if self.stats.last_turn_worked() {
            return false;
        }
        let Some(socket) = self.hot.candidate().filter(|_| self.driver.has_news()) else { return false };
        let reader = self.sockets.borrow_mut().get_mut(&socket).and_then(|state| {
            let reader = state.reader.take()?;
            state.readable = true;
            Some(reader)
        });
        let Some(reader) = reader else { return false };
        reader.wake();
        self.hot.tried();
        true
    }

    fn turn_with(self: &Rc<Self>, mut events: Vec<Event>) -> usize {
        self.in_turn.set(true);
        let mut work = self.pump_messages() + events.len();
        for event in events.drain(..) {
            self.dispatch(event);
        }
        self.events.replace(events);
        work += self.fire_timers();
        self.wake_yielded();
        work += self.run_pollers();
        let choose = |ready| self.driver.choose(ready);
        let shuffle: Option<&dyn Fn(usize) -> usize> = if self.driver.shuffles() { Some(&choose) } else { None };
        work += self.exec.run(self.config.task_budget, shuffle);
        work += self.run_turn_ends();
        self.in_turn.set(false);
        self.mesh.borrow().tell();
        self.stats.turn(work);
        work
    }

    fn fire_timers(&self) -> usize {
        let mut due = self.due.take();
        self.timers.borrow_mut().advance(self.now_ns.get(), &mut due);
        let fired = due.len();
        due.drain(..).for_each(Waker::wake);
        self.due.replace(due);
        fired
    }

    fn wake_yielded(&self) {
        let mut yielded = self.yielded.take();
        yielded.drain(..).for_each(Waker::wake);
        // Keeps the capacity; waking runs nobody, so none has been added.
        self.yielded.replace(yielded);
    }

    fn run_pollers(&self) -> usize {
        if self.pollers.borrow().is_empty() {
            return 0;
        }
        let pollers: smallvec::SmallVec<[Rc<dyn Poller>; 8]> =
            self.pollers.borrow().iter().map(|(_, poller)| poller.clone()).collect();
        pollers.iter().map(|poller| poller.poll()).sum()
    }

    /// Whether there is anything that is only polled.
    pub fn has_pollers(&self) -> bool {
        !self.pollers.borrow().is_empty()
    }

    /// Lets pollers prepare for a sleep; true as soon as one has found work, since there is no sleep then.
    fn arm_pollers(&self) -> bool {
        self.pollers.borrow().iter().any(|(_, poller)| poller.arm())
    }

    fn run_turn_ends(&self) -> usize {
        let mut done = 0;
        loop {
            let mut hooks = self.turn_ends.take();
            if hooks.is_empty() {
                self.turn_ends.replace(hooks);
                return done;
            }
            done += hooks.len();
            hooks.drain(..).for_each(TurnEnd::turn_end);
            let added = self.turn_ends.take();
            if added.is_empty() {
                // Keeps the capacity for the next turn.
                self.turn_ends.replace(hooks);
                return done;
            }
            self.turn_ends.replace(added);
        }
    }

    /// Whether a turn would find something to do without asking the driver.
    pub fn has_work(&self) -> bool {
        self.exec.has_ready()
            || !self.yielded.borrow().is_empty()
            || !self.door.is_empty()
            || !self.outbox.borrow().is_empty()
            || !self.turn_ends.borrow().is_empty()
            || self.mesh.borrow().has_incoming()
    }

    /// When the next timer or poller wants a turn.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let timer = self.timers.borrow().next_deadline_ns();
        let poller = self.pollers.borrow().iter().filter_map(|(_, poller)| poller.sleep_max_ns()).min();
        let poller = poller.map(|pause| self.now_ns.get().saturating_add(pause));
        timer.into_iter().chain(poller).min()
    }

    /// Sleeps until an event, a wake-up or the next deadline, and takes the turn that follows. Returns the work done.
    pub fn sleep_turn(self: &Rc<Self>) -> usize {
        let gate = &self.exec.shared.gate;
        gate.prepare_sleep();
        self.pool.collect_foreign();
        let mut events = self.events.take();
        if self.arm_pollers() || self.has_work() {
            gate.awake();
            self.driver.poll(&mut events);
        } else {
            self.driver.wait(self.next_deadline_ns(), &mut events);
            gate.awake();
        }
        self.now_ns.set(self.driver.now_ns());
        self.hot.polled(&events);
        self.turn_with(events)
    }

    /// Runs the reactor on this thread until `future` has ended, asleep while there is nothing to do. For programs and tests
    /// that have no other loop. Panics when the reactor is closed before: the future is dropped then.
    pub fn block_on<T: 'static>(self: &Rc<Self>, future: impl Future<Output = T> + 'static) -> T {
        let mut task = std::pin::pin!(self.spawn_join(future));
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let work = self.turn();
            if let Poll::Ready(value) = task.as_mut().poll(&mut cx) {
                return value;
            }
            assert!(!self.exec.is_closed(), "the reactor was closed before the future that is waited for had ended");
            if work == 0 {
                self.sleep_turn();
            }
        }
    }

    /// Turns until [`stop`](Self::stop) is called and all tasks have ended, or `drain_max_ns` after the stop.
    pub fn run(self: &Rc<Self>, drain_max_ns: u64) {
        // What a device of this reactor takes says nothing of when the next request comes.
        let mut spins = [SpinWindow::new(self.config.policy), SpinWindow::new(self.config.policy)];
        let mut idle = Idle { since_ns: self.clock_ns(), seen_ns: 0, put_off: false, waits_for_file: false };
        let (mut stop_deadline, mut is_idle, mut preemptions) = (None, false, self.driver.preemptions());
        let mut work_after_sleep = None;
        loop {
            let began = self.now_ns.get();
            let work = work_after_sleep.take().unwrap_or_else(|| self.turn());
            let mut now = self.now_ns.get();
            self.stats.spent(now.saturating_sub(began), self.stats.last_turn_worked());
            if self.stopping.get() {
                let deadline = *stop_deadline.get_or_insert(now.saturating_add(drain_max_ns));
                if (self.exec.live() == 0 && self.driver.in_flight() == 0) || now >= deadline {
                    break;
                }
                if work == 0 {
                    // Draining is short: a brief sleep instead of spin accounting.
                    std::thread::yield_now();
                }
                continue;
            }
            if is_idle && now.saturating_sub(idle.seen_ns) >= PUT_OFF_NS {
                let before = std::mem::replace(&mut preemptions, self.driver.preemptions());
                idle.put_off |= preemptions != before;
            }
            idle.seen_ns = now;
            if work > 0 {
                if is_idle {
                    let spin = &mut spins[usize::from(idle.waits_for_file)];
                    let idle_ns = now.saturating_sub(idle.since_ns);
                    // Whoever took the core may have done what was waited for: sleeping would have been as good.
                    if idle.put_off {
                        spin.slept(idle_ns)
                    } else {
                        spin.caught(idle_ns)
                    }
                    is_idle = false;
                }
                let spin = &spins[usize::from(self.waits_for_file())];
                if spin.current_ns() > 0 || self.has_work() {
                    continue;
                }
                // With no spin there is no turn to be taken in between: one system call hands over what was begun and sleeps.
                let turned_from = std::mem::replace(&mut now, self.clock_ns());
                self.stats.spent(now.saturating_sub(turned_from), true);
            }
            if !is_idle {
                is_idle = true;
                idle = Idle { since_ns: now, seen_ns: now, put_off: false, waits_for_file: self.waits_for_file() };
            }
            let spin = &mut spins[usize::from(idle.waits_for_file)];
            if now.saturating_sub(idle.since_ns) >= spin.current_ns() {
                let slept_from = now;
                let done = self.sleep_turn();
                let slept = self.now_ns.get().saturating_sub(slept_from);
                self.stats.slept(slept);
                if done > 0 {
                    spin.slept(slept_from.saturating_sub(idle.since_ns) + slept);
                    is_idle = false;
                    work_after_sleep = Some(done);
                }
                idle.seen_ns = self.now_ns.get();
            }
        }
        self.close();
    }

    /// Whether a device has something of ours to do.
    fn waits_for_file(&self) -> bool {
        self.driver.in_flight() > 0
    }

    /// Asks [`run`](Self::run) to end when the tasks have.
    pub fn stop(&self) {
        self.stopping.set(true);
    }

    /// Whether a stop was asked for; long-lived tasks end themselves when it was.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Drops all tasks, pollers and hooks; operations under way finish in the driver and their buffers are released. A task that calls this
    /// is dropped when its poll ends.
    pub fn close(&self) {
        self.exec.close();
        self.pollers.borrow_mut().clear();
        self.turn_ends.borrow_mut().clear();
        self.yielded.borrow_mut().clear();
        self.keep.clear();
        while self.door.pop().is_some() {}
        let index = self.index;
        for peer in self.mesh.borrow().peers().iter().filter(|peer| peer.index() != index) {
            peer.run(move |there| there.peer_stopped(index));
        }
    }
}

/// Messages that are taken together: what each needs is on its way while the others run.
const BATCH: usize = 16;

/// A time without work.
struct Idle {
    since_ns: u64,
    /// The last look at the clock.
    seen_ns: u64,
    /// Another thread has had the core meanwhile.
    put_off: bool,
    /// A device has something of ours to do: it began so.
    waits_for_file: bool,
}

/// Between two turns without work, so long means that something else has had the core: such a turn takes some 100 ns. Less than
/// two switches of threads.
const PUT_OFF_NS: u64 = 2_000;

/// Waits until a deadline; see [`Reactor::sleep_until`].
pub struct Sleep {
    reactor: Rc<Reactor>,
    deadline_ns: u64,
    key: Option<TimerKey>,
}

/// Has the task that is polled be woken.
fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(old) => old.clone_from(cx.waker()),
        none => *none = Some(cx.waker().clone()),
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.reactor.now_ns() >= self.deadline_ns {
            return Poll::Ready(());
        }
        let reactor = self.reactor.clone();
        let mut timers = reactor.timers.borrow_mut();
        match self.key {
            Some(key) if timers.update_waker(key, cx.waker()) => {}
            _ => self.key = Some(timers.insert(self.deadline_ns, cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.reactor.timers.borrow_mut().cancel(key);
        }
    }
}
