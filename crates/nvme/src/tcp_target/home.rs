//! The target's home: the one reactor that owns subsystems and controllers, accepts connections and spreads them.

use super::connection::{Connection, End};
use super::guests::Guests;
use super::local::{Arrival, Local};
use super::reserve::Reserving;
use super::zone_watch::ZoneWatch;
use super::{Export, Shared, TargetError};
use crate::spec::{Cqe, Nqn, Sqe};
use crate::target::reservation::{HostId, Table};
use crate::target::{self, AdminOutcome, AnaStates, Connected, ControllerHandle, Mask, Subsystem, SubsystemId};
use crate::target::{Target, TargetEvent, WhyRefused};
use crate::tls::{self, TlsFailure, TlsKey};
use bdev::{Io, Op};
use reactor::sync::Notify;
use reactor::{Errno, Reactor, TcpListener, TcpStream};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

/// Where a connection lives, and whence it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) reactor: usize,
    pub(super) connection: u64,
    /// The host's end.
    pub(super) peer: SocketAddr,
    /// It is encrypted.
    pub(super) tls: bool,
    /// Its host has authenticated itself on it.
    pub(super) authenticated: bool,
}

/// What became of a Connect command.
pub(super) struct Admitted {
    pub(super) connected: Connected,
    /// The host's identifier.
    pub(super) host: HostId,
    /// Its name.
    pub(super) name: Nqn,
    /// Its writes are to be durable when they complete.
    pub(super) write_through: bool,
}

/// What an admin command came to.
pub(super) enum AdminReply {
    Complete(Cqe, Vec<u8>),
    Pending,
}

/// A controller with connections that are I/O queues, or were and still have commands under way; commands of its own count too.
#[derive(Clone, Copy)]
struct Busy {
    subsystem: SubsystemId,
    cntlid: u16,
    connections: usize,
}

/// Longest wait for the commands of a controller that another one was told to reset. Hosts give up on admin commands later.
const QUIESCE_MAX_NS: u64 = 20_000_000_000;
/// Turns of a reactor within which its connections receive what waits in their sockets.
const TURNS_TO_RECEIVE: u32 = 3;
/// Connections accepted in a row before other tasks get their turn.
const ACCEPTS_PER_WAKE: usize = 16;

/// Tells the task that accepts connections to end.
#[derive(Default)]
struct Stop {
    asked: Cell<bool>,
    notify: Notify,
}

impl Stop {
    fn ask(&self) {
        self.asked.set(true);
        self.notify.notify_all();
    }

    async fn asked(&self) {
        self.notify.wait_until(|| self.asked.get()).await;
    }
}

/// See the module.
pub(super) struct Home {
    pub(super) reactor: Rc<Reactor>,
    pub(super) shared: Arc<Shared>,
    target: RefCell<Target>,
    pub(super) reserving: Reserving,
    queues: RefCell<BTreeMap<(ControllerHandle, u16), Place>>,
    /// Controllers whose commands devices may be carrying out, those that have ended included.
    busy: RefCell<BTreeMap<ControllerHandle, Busy>>,
    /// Some connection of an I/O queue that has ended carries out nothing any more.
    quieter: Notify,
    listeners: RefCell<BTreeMap<SocketAddr, (u16, Rc<Stop>)>>,
    next_connection: Cell<u64>,
    next_port: Cell<u16>,
    /// Something may have moved the next keep-alive deadline.
    deadline_moved: Rc<Notify>,
    timer_started: Cell<bool>,
    pub(super) zones: ZoneWatch,
    pub(super) guests: Guests,
}

impl Home {
    /// The home part; only on the home reactor.
    pub(super) fn of(reactor: &Rc<Reactor>, shared: &Arc<Shared>) -> Rc<Home> {
        assert_eq!(reactor.index(), shared.home, "only the home reactor owns the target");
        reactor.kept_or(shared.instance, || Home {
            reactor: reactor.clone(),
            shared: shared.clone(),
            target: RefCell::new(Target::new(shared.config.model.clone(), reactor.driver().random_u64())),
            reserving: Reserving::default(),
            queues: RefCell::default(),
            busy: RefCell::default(),
            quieter: Notify::default(),
            listeners: RefCell::default(),
            next_connection: Cell::new(1),
            next_port: Cell::new(1),
            deadline_moved: Rc::default(),
            timer_started: Cell::new(false),
            zones: ZoneWatch::default(),
            guests: Guests::default(),
        })
    }

    // --- connections ------------------------------------------------------------------------------------------------

    /// Listens on `address`; returns the address in use.
    /// With `tls` every connection there is encrypted.
    pub(super) fn listen(self: &Rc<Self>, address: SocketAddr, tls: bool) -> Result<SocketAddr, TargetError> {
        if tls && !tls::IS_BUILT {
            return Err(TargetError::Tls { address, failure: TlsFailure::NotBuilt });
        }
        let listener =
            TcpListener::bind(&self.reactor, address, false).map_err(|errno| TargetError::Listen { address, errno })?;
        let address = listener.address();
        let port = self.next_port.get();
        self.next_port.set(port + 1);
        let stop: Rc<Stop> = Rc::default();
        self.listeners.borrow_mut().insert(address, (port, stop.clone()));
        self.change(|target| target.add_port(port, address, tls));
        let this = self.clone();
        self.reactor.spawn(async move {
            let accepting = this.accept_all(&listener, tls);
            let mut accepting = std::pin::pin!(accepting);
            let mut stopped = std::pin::pin!(stop.asked());
            std::future::poll_fn(|cx| {
                if stopped.as_mut().poll(cx).is_ready() {
                    return std::task::Poll::Ready(());
                }
                accepting.as_mut().poll(cx)
            })
            .await;
        });
        Ok(address)
    }

    /// Stops listening everywhere.
    pub(super) fn stop_listening(self: &Rc<Self>) {
        let listeners = self.listeners.take();
        for (port, stop) in listeners.into_values() {
            stop.ask();
            self.change(|target| target.remove_port(port));
        }
    }

    async fn accept_all(self: &Rc<Self>, listener: &TcpListener, tls: bool) {
        for round in 1usize.. {
            if round.is_multiple_of(ACCEPTS_PER_WAKE) {
                self.reactor.yield_now().await;
            }
            match listener.accept().await {
                Ok((stream, peer)) => self.place_connection(stream, peer, listener.address(), tls),
                // The connection went away, or descriptors ran out for now: neither ends the listener.
                Err(Errno::ECONNABORTED | Errno::EINTR) => {}
                Err(errno) => {
                    tracing::warn!(%errno, "cannot accept a connection; trying again");
                    self.reactor.sleep_ns(100_000_000).await;
                }
            }
        }
    }

    /// Gives a connection to the reactor that has the fewest.
    fn place_connection(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr, via: SocketAddr, tls: bool) {
        let chosen = self.shared.least_loaded();
        if !self.shared.connection_begun(chosen) {
            self.shared.refusals.count(WhyRefused::Limit);
            if let Some(others) = self.others_refused(WhyRefused::Limit) {
                let limit = self.shared.config.connections_max;
                tracing::warn!(%peer, limit, others, "connection refused: too many connections");
            }
            return;
        }
        let id = self.next_connection.get();
        self.next_connection.set(id + 1);
        let shared = self.shared.clone();
        let keyring = tls.then(|| self.with_target(|target| target.keyring().clone()));
        let arrival = Arrival { id, peer, via, keyring };
        if chosen == self.reactor.index() {
            return Local::of(&self.reactor, &shared).serve(stream, arrival);
        }
        match stream.export() {
            Ok(exported) => self.reactor.post(chosen, move |reactor| match TcpStream::import(reactor, exported) {
                Ok(stream) => Local::of(reactor, &shared).serve(stream, arrival),
                Err(errno) => {
                    tracing::warn!(%peer, %errno, "cannot take over a connection");
                    shared.connection_ended(chosen);
                }
            }),
            Err(errno) => {
                tracing::warn!(%peer, %errno, "cannot hand over a connection");
                shared.connection_ended(chosen);
            }
        }
    }

    // --- what hosts ask ---------------------------------------------------------------------------------------------

    /// Makes a connection a queue.
    pub(super) async fn connect(
        self: &Rc<Self>,
        sqe: &Sqe,
        record: &[u8],
        via: SocketAddr,
        tls: Option<&TlsKey>,
        place: Place,
    ) -> Result<Admitted, Cqe> {
        self.end_predecessor(sqe, record).await;
        let now_ns = self.reactor.now_ns();
        let connected = self.target.borrow_mut().connect(now_ns, sqe, record, via, tls);
        self.deadline_moved.notify_all();
        self.carry_out();
        let connected = connected.map_err(|refused| {
            self.guest_refused(&refused, place.peer);
            refused.cqe
        })?;
        self.queues.borrow_mut().insert((connected.controller, connected.qid), place);
        if connected.qid == 0 && !connected.needs_authentication {
            self.guest_came(connected.controller, place);
        }
        let (admitted, cntlid) = self.with_target(|target| {
            let controller = target.controller(connected.controller).expect("it was connected just now");
            let (host, name) = (HostId(*controller.host_id()), controller.host_nqn().clone());
            let write_through = !controller.write_cache_enabled();
            (Admitted { connected, host, name, write_through }, controller.cntlid())
        });
        self.begin_to_look();
        if connected.qid > 0 {
            self.make_busy(connected.controller, connected.subsystem, cntlid);
        }
        Ok(admitted)
    }

    /// Frees the number of the queue that a Connect asks for, where the same host had it on a connection that it has closed: the
    /// new connection may be here before the reactor of the old one has looked at that.
    async fn end_predecessor(self: &Rc<Self>, sqe: &Sqe, record: &[u8]) {
        let taken = self.target.borrow().queue_in_place_of(sqe, record);
        let Some((controller, qid)) = taken else { return };
        let Some(place) = self.queues.borrow().get(&(controller, qid)).copied() else { return };
        let has_gone = |connection: &Rc<Connection>| {
            let has_gone = connection.stream.has_ended();
            if has_gone {
                connection.end(End::Closed);
            }
            has_gone
        };
        if self.ask_queue(controller, qid, has_gone).await == Some(true) {
            self.queue_closed(controller, qid, place.connection, End::Closed);
        }
    }

    pub(super) fn fabrics(self: &Rc<Self>, controller: ControllerHandle, qid: u16, sqe: &Sqe) -> (Cqe, bool) {
        let now_ns = self.reactor.now_ns();
        let outcome = self.target.borrow_mut().fabrics(now_ns, controller, qid, sqe);
        self.carry_out();
        outcome
    }

    pub(super) async fn admin(
        self: &Rc<Self>,
        controller: ControllerHandle,
        sqe: &Sqe,
        data_in: Vec<u8>,
        data_out_len: usize,
    ) -> AdminReply {
        let mut data_out = vec![0; data_out_len];
        let now_ns = self.reactor.now_ns();
        let outcome = self.target.borrow_mut().admin(now_ns, controller, sqe, &data_in, &mut data_out);
        self.deadline_moved.notify_all();
        self.carry_out();
        match outcome {
            AdminOutcome::Complete { cqe, data_len } => {
                data_out.truncate(data_len);
                AdminReply::Complete(cqe, data_out)
            }
            AdminOutcome::Pending => AdminReply::Pending,
            AdminOutcome::Abort { sqid, cid } => {
                // A device may or may not still stop a command; the host is told that it was not aborted, which is always
                // true enough: its own completion follows either way (Base 2.0, section 5.1).
                let aborted = self.ask_queue(controller, sqid, move |connection| connection.abort(cid)).await;
                let cqe = self.target.borrow_mut().abort_done(controller, sqe.cid.get(), aborted == Some(true));
                AdminReply::Complete(cqe, Vec::new())
            }
            AdminOutcome::SetPersistence { nsid, on } => {
                let status = self.set_persistence(controller, nsid, on).await;
                AdminReply::Complete(Cqe::new(sqe.cid.get(), status), Vec::new())
            }
            AdminOutcome::Format => AdminReply::Complete(self.format(controller, sqe).await, Vec::new()),
            AdminOutcome::Quiesce { subsystem, cntlid } => {
                let quiet = self.quieter.wait_until(|| self.is_quiet(subsystem, cntlid));
                let quiet = self.reactor.timeout(QUIESCE_MAX_NS, quiet).await.is_some();
                AdminReply::Complete(target::cross_reset_done(sqe.cid.get(), quiet), Vec::new())
            }
        }
    }

    pub(super) fn record_error(&self, controller: ControllerHandle, qid: u16, sqe: &Sqe, cqe: &Cqe) {
        self.target.borrow_mut().record_error(controller, qid, sqe, cqe);
    }

    pub(super) fn heard(&self, controller: ControllerHandle) {
        self.target.borrow_mut().note_activity(self.reactor.now_ns(), controller);
    }

    /// A queue's connection has ended, and why.
    pub(super) fn queue_closed(self: &Rc<Self>, controller: ControllerHandle, qid: u16, connection: u64, why: End) {
        let place = self.queues.borrow().get(&(controller, qid)).copied();
        if place.is_some_and(|place| place.connection == connection) {
            self.queues.borrow_mut().remove(&(controller, qid));
            if qid == 0 {
                self.guest_left(controller, &why);
            }
            self.target.borrow_mut().queue_closed(controller, qid);
            self.deadline_moved.notify_all();
            self.carry_out();
        }
    }

    /// A controller has an I/O queue more, or a command that is carried out by nobody's queue.
    pub(super) fn make_busy(&self, controller: ControllerHandle, subsystem: SubsystemId, cntlid: u16) {
        let none = Busy { subsystem, cntlid, connections: 0 };
        self.busy.borrow_mut().entry(controller).or_insert(none).connections += 1;
    }

    /// An I/O queue's connection has ended, and with it all of its commands; or such a command.
    pub(super) fn queue_quiet(&self, controller: ControllerHandle) {
        let mut busy = self.busy.borrow_mut();
        let found = busy.get_mut(&controller).expect("a connection that became an I/O queue was counted");
        found.connections -= 1;
        if found.connections == 0 {
            busy.remove(&controller);
        }
        drop(busy);
        self.quieter.notify_all();
    }

    /// Whether any queue is connected.
    pub(super) fn has_hosts(&self) -> bool {
        !self.queues.borrow().is_empty()
    }

    /// Waits until a queue comes or goes.
    pub(super) async fn hosts_moved(&self) {
        self.deadline_moved.notified().await;
    }

    /// Whether no command of a controller is carried out that had this identifier and has ended, or is being reset.
    fn is_quiet(&self, subsystem: SubsystemId, cntlid: u16) -> bool {
        let target = self.target.borrow();
        let has_ended =
            |handle| target.controller(handle).is_none_or(|found| found.state() == target::ControllerState::Resetting);
        let busy = self.busy.borrow();
        let mut named = busy.iter().filter(|(_, busy)| (busy.subsystem, busy.cntlid) == (subsystem, cntlid));
        !named.any(|(handle, _)| has_ended(*handle))
    }

    // --- what the node asks -----------------------------------------------------------------------------------------

    /// Changes the target and carries out what follows.
    pub(super) fn change<T>(self: &Rc<Self>, change: impl FnOnce(&mut Target) -> T) -> T {
        let result = change(&mut self.target.borrow_mut());
        self.carry_out();
        result
    }

    /// Exports a device as a namespace.
    pub(super) fn add_namespace(
        self: &Rc<Self>,
        id: SubsystemId,
        nsid: Option<u32>,
        export: Export,
        reservations: Option<Table>,
    ) -> Result<u32, target::ModelError> {
        let (model, mask) = (export.model, export.mask.clone());
        let nsid = self.target.borrow_mut().add_masked_namespace(id, nsid, model, mask)?;
        if let Some(table) = reservations {
            self.target.borrow_mut().restore_reservations(id, nsid, table);
        }
        let (access, (mask, ana)) = self.with_target(|target| {
            let subsystem = target.subsystem(id).expect("it has a new namespace");
            (target.access(id, nsid).map(Arc::new), view(subsystem, nsid))
        });
        self.watch_zones(id, nsid, &*export.device);
        self.shared.export(id, nsid, Export { access, mask, ana, ..export });
        self.carry_out();
        Ok(nsid)
    }

    /// Looks at the sizes of devices again.
    pub(super) fn refresh_sizes(self: &Rc<Self>) {
        for ((id, nsid), export) in self.shared.exports() {
            let info = export.device.info();
            let (blocks, crypto_erase) = (info.blocks, info.ops.contains(Op::CryptoErase));
            let is_changed = blocks != export.model.block_count;
            if is_changed && self.target.borrow_mut().resize_namespace(id, nsid, blocks, crypto_erase).is_ok() {
                let model = target::Namespace { block_count: blocks, crypto_erase, ..export.model };
                self.shared.export(id, nsid, Export { model, ..export });
            }
        }
        self.carry_out();
    }

    pub(super) fn with_target<T>(&self, look: impl FnOnce(&Target) -> T) -> T {
        look(&self.target.borrow())
    }

    // --- carrying out -----------------------------------------------------------------------------------------------

    fn carry_out(self: &Rc<Self>) {
        if !self.timer_started.get() && self.target.borrow().poll_timeout().is_some() {
            self.timer_started.set(true);
            self.reactor.spawn(keep_time(self.clone()));
        }
        loop {
            let event = self.target.borrow_mut().poll_event();
            let Some(event) = event else { break };
            match event {
                TargetEvent::Complete { controller, cqe } => {
                    self.at_queue(controller, 0, move |connection| connection.answer(cqe));
                }
                TargetEvent::CloseQueue { controller, qid } => self.close_queue(controller, qid),
                TargetEvent::CloseController { controller, why } => {
                    self.guest_left(controller, &why);
                    self.queue_ids(controller, 0).into_iter().for_each(|qid| self.close_queue(controller, qid));
                }
                TargetEvent::Reset { controller } => self.reset(controller),
                TargetEvent::Shutdown { controller } => self.shut_down(controller),
                TargetEvent::WriteCache { controller, enabled } => {
                    for qid in self.queue_ids(controller, 1) {
                        self.at_queue(controller, qid, move |connection| connection.write_through.set(!enabled));
                    }
                }
                TargetEvent::ReservationChanged { subsystem, nsid } => {
                    let access = self.target.borrow().access(subsystem, nsid);
                    self.shared.set_access(subsystem, nsid, access);
                }
                TargetEvent::NamespaceChanged { subsystem, nsid } => {
                    let target = self.target.borrow();
                    match target.subsystem(subsystem).filter(|found| found.namespace(nsid).is_some()) {
                        Some(found) => {
                            let (mask, ana) = view(found, nsid);
                            self.shared.set_view(subsystem, nsid, mask, ana);
                        }
                        None => self.unexport(subsystem, nsid),
                    }
                }
            }
        }
    }

    /// A namespace is gone: no reactor finds it from now on, and each lets go of its device.
    pub(super) fn unexport(&self, subsystem: SubsystemId, nsid: u32) {
        self.shared.unexport(subsystem, nsid);
        for index in 0..self.shared.loads.len() {
            let shared = self.shared.clone();
            self.reactor.post(index, move |reactor| Local::of(reactor, &shared).forget(subsystem, nsid));
        }
    }

    /// The queues of a controller that are connected, from number `first` on.
    fn queue_ids(&self, controller: ControllerHandle, first: u16) -> Vec<u16> {
        let queues = self.queues.borrow();
        queues.range((controller, first)..=(controller, u16::MAX)).map(|((_, qid), _)| *qid).collect()
    }

    fn at_queue(&self, controller: ControllerHandle, qid: u16, action: impl FnOnce(&Rc<Connection>) + Send + 'static) {
        let place = self.queues.borrow().get(&(controller, qid)).copied();
        let Some(place) = place else { return };
        let shared = self.shared.clone();
        self.reactor.post(place.reactor, move |reactor| {
            let connection = Local::of(reactor, &shared).connection(place.connection);
            if let Some(connection) = connection {
                action(&connection);
            }
        });
    }

    /// Asks the connection of a queue, after it has received what waited for it; `None` when it is gone.
    async fn ask_queue<T: Send + 'static>(
        &self,
        controller: ControllerHandle,
        qid: u16,
        question: impl FnOnce(&Rc<Connection>) -> T + Send + 'static,
    ) -> Option<T> {
        let place = self.queues.borrow().get(&(controller, qid)).copied()?;
        let shared = self.shared.clone();
        let asking = self.reactor.call_on(place.reactor, move |reactor| async move {
            for _ in 0..TURNS_TO_RECEIVE {
                reactor.yield_now().await;
            }
            let connection = Local::of(&reactor, &shared).connection(place.connection);
            connection.map(|connection| question(&connection))
        });
        asking.await
    }

    /// Hears of hosts that seem silent what their connections have received: after a pause of this whole process their keep
    /// alives wait in sockets, and on other reactors the last half second has not been told yet.
    async fn listen_to_silent(&self, now_ns: u64) {
        let silent: Vec<ControllerHandle> = self.target.borrow().silent(now_ns).collect();
        for controller in silent {
            for qid in self.queue_ids(controller, 0) {
                if let Some(heard_ns) = self.ask_queue(controller, qid, |connection| connection.heard_ns.get()).await {
                    self.target.borrow_mut().note_activity(heard_ns, controller);
                }
            }
        }
    }

    /// The host has authenticated itself on a queue.
    pub(super) fn queue_proven(&self, controller: ControllerHandle, qid: u16) {
        let mut queues = self.queues.borrow_mut();
        let Some(place) = queues.get_mut(&(controller, qid)) else { return };
        place.authenticated = true;
        let place = *place;
        drop(queues);
        if qid == 0 {
            self.guest_came(controller, place);
        }
    }

    /// Where the queues of a controller are and whence they came, the admin queue first.
    pub(super) fn places(&self, controller: ControllerHandle) -> Vec<Place> {
        let queues = self.queues.borrow();
        queues.range((controller, 0)..=(controller, u16::MAX)).map(|(_, place)| *place).collect()
    }

    /// Whether a queue is this connection.
    pub(super) fn is_queue(&self, controller: ControllerHandle, qid: u16, connection: u64) -> bool {
        self.queues.borrow().get(&(controller, qid)).is_some_and(|place| place.connection == connection)
    }

    fn close_queue(&self, controller: ControllerHandle, qid: u16) {
        self.at_queue(controller, qid, |connection| connection.tear_down());
        self.queues.borrow_mut().remove(&(controller, qid));
    }

    /// Lets the controller say that its reset is complete when no command of it is carried out any more.
    fn reset(self: &Rc<Self>, controller: ControllerHandle) {
        let this = self.clone();
        self.reactor.spawn(async move {
            this.quieter.wait_until(|| !this.busy.borrow().contains_key(&controller)).await;
            this.target.borrow_mut().reset_complete(controller);
            this.carry_out();
        });
    }

    /// Makes everything durable that a host wrote, then says that the shutdown is complete.
    fn shut_down(self: &Rc<Self>, controller: ControllerHandle) {
        let subsystem = self.target.borrow().controller(controller).map(|controller| controller.subsystem());
        let this = self.clone();
        self.reactor.spawn(async move {
            if let Some(subsystem) = subsystem {
                let local = Local::of(&this.reactor, &this.shared);
                for nsid in this.shared.namespace_ids(subsystem) {
                    if let Some(namespace) = local.namespace(subsystem, nsid) {
                        let done = namespace.channel.submit(Io::flush()).await;
                        if !done.status.is_ok() {
                            tracing::error!(nsid, status = %done.status, "flush at controller shutdown failed");
                        }
                    }
                }
            }
            this.target.borrow_mut().shutdown_complete(controller);
            this.carry_out();
        });
    }
}

/// Who sees a namespace, and where it is reached if not at all ports.
fn view(subsystem: &Subsystem, nsid: u32) -> (Option<Mask>, Option<Arc<AnaStates>>) {
    let group = subsystem.namespace(nsid).map(|namespace| namespace.ana_group);
    let states = group.and_then(|group| subsystem.ana(group)).filter(|states| states.is_refused_anywhere());
    (subsystem.mask(nsid).cloned(), states.cloned())
}

/// Ends controllers whose hosts have gone silent, for as long as there are any with a limit.
async fn keep_time(home: Rc<Home>) {
    let reactor = home.reactor.clone();
    let moved = home.deadline_moved.clone();
    // Holds no strong reference while it sleeps, so that the reactor can let go of it.
    let weak = Rc::downgrade(&home);
    drop(home);
    loop {
        let Some(home) = weak.upgrade() else { return };
        let deadline_ns = home.target.borrow().poll_timeout();
        let Some(deadline_ns) = deadline_ns else {
            home.timer_started.set(false);
            return;
        };
        drop(home);
        let now_ns = reactor.clock_ns();
        if deadline_ns > now_ns {
            let _ = reactor.timeout(deadline_ns - now_ns, moved.notified()).await;
        }
        let Some(home) = weak.upgrade() else { return };
        // As late as the look above: by the time of a turn that began long ago the deadline would be to come for ever.
        let now_ns = reactor.clock_ns();
        home.listen_to_silent(now_ns).await;
        home.target.borrow_mut().handle_timeout(now_ns);
        home.carry_out();
    }
}
