//! One NVMe/TCP connection on the target's side: bytes in, commands to devices, answers gathered and flushed by the turn.
//!
//! Invariants: bounded memory (commands up to the queue size, buffers up to [`HELD_BYTES_MAX`], one stash of received bytes
//! when memory is short); answers of a turn leave in few sends; a fault of the peer ends this connection and nothing else;
//! commands under way when a connection ends are carried to their end and their answers dropped.

use super::cid_map::CidMap;
use super::cid_set::CidSet;
use super::flights::{Flight, Flights};
use super::fused::FusedPair;
use super::greetings::Greeting;
use super::local::{Local, Namespace};
use super::output::{Flushed, Output};
use super::pace::Pace;
use super::progress::Progress;
use super::room::{Place, Room, Turn};
use super::share::{self, HostShare};
use super::traffic::HostMeter;
use crate::spec::{Cqe, Nqn, Sqe, Status};
use crate::target::ControllerHandle;
use crate::target::io::IoCommand;
use crate::target::queue::{FusedSlot, Queue};
use crate::target::reservation::HostId;
use crate::target::{Connected, SubsystemId};
use crate::tcp::pdu::encode_term;
use crate::tcp::r2t::R2T_MAX;
use crate::tcp::{DataHeader, Encoder, Fault, R2tTable, Side};
use crate::tls::stream::Stream;
use base::Errno;
use reactor::buf::sg_len;
use reactor::sync::Notify;
use reactor::{Buf, Reactor, SgList, TurnEnd};
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

/// Buffer bytes that the commands of one connection may hold at once, at most; [`Local::held_max`] lowers it when there are
/// many. A single command may always hold what it needs.
pub(super) const HELD_BYTES_MAX: usize = 8 << 20;
/// Bytes of headers that wait for a host that does not read, above which nothing more is received from it: more than the
/// answers to every command of a queue, so a host that keeps to its queue's size never gets there.
const UNSENT_HEADER_BYTES_MAX: usize = 128 << 10;
/// Nothing is taken from a connection any more: see [`Connection::drain`].
pub(super) const PAUSED_FOR_GOOD: u64 = u64::MAX;
/// How long devices and the host have to end what is under way when a connection is drained.
const DRAIN_NS: u64 = 3_000_000_000;
/// How long a host has to read its last answers before it learns of the end: Linux drops what it has not read by then, and
/// repeats those commands.
const READ_NS: u64 = 100_000_000;
/// How often the target looks for hosts that do not send what they were asked for.
const TRANSFER_WATCH_NS: u64 = 1_000_000_000;

/// What the connection turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Before a successful Connect.
    None,
    /// A queue whose host has yet to authenticate itself.
    Unproven,
    Admin,
    Io,
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The host closed it, or asked to disconnect.
    Closed,
    /// The network failed.
    Network(Errno),
    /// The host broke the transport's rules.
    Fault(Fault),
    /// The host speaks TLS to a listener without it.
    HelloOfTls,
    /// The host sent more commands than its queue holds.
    Overrun,
    /// The host did not authenticate itself.
    Unproven,
    /// The controller was torn down.
    TornDown,
    /// The target stops, and has answered what it took.
    Drained,
    /// No progress for too long.
    Stalled,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Closed => f.write_str("the host closed the connection"),
            End::Network(errno) => write!(f, "the connection was lost: {errno}"),
            End::Fault(fault) => write!(f, "the host broke the rules of the transport: {fault}"),
            End::HelloOfTls => f.write_str("the host speaks TLS where there is none"),
            End::Overrun => f.write_str("the host sent more commands than its queue holds"),
            End::Unproven => f.write_str("the host did not authenticate itself"),
            End::TornDown => f.write_str("its controller was taken down"),
            End::Drained => f.write_str("this node stops"),
            End::Stalled => f.write_str("the host did not take or send data in time"),
        }
    }
}

/// A command whose data is on its way from the host.
pub(super) struct Pending {
    pub(super) sqe: Sqe,
    /// How an I/O command will be carried out; `None` for an admin or Fabrics command.
    pub(super) io: Option<(IoCommand, Rc<Namespace>)>,
    pub(super) buf: Buf,
    pub(super) digest_ok: bool,
    /// It is not to be carried out any more; it is answered so when its data has come.
    pub(super) aborted: Option<Status>,
    /// When the host was asked.
    pub(super) asked_ns: u64,
}

/// The queue that a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) controller: ControllerHandle,
    pub(super) subsystem: SubsystemId,
    pub(super) host: HostId,
    pub(super) qid: u16,
}

/// Commands that may be outstanding before Connect: the Connect itself.
const FIRST_ENTRIES: u16 = 2;

/// See the module.
pub(super) struct Connection {
    pub(super) reactor: Rc<Reactor>,
    pub(super) local: Rc<Local>,
    pub(super) id: u64,
    pub(super) stream: Stream,
    pub(super) encoder: Cell<Option<Encoder>>,
    pub(super) output: RefCell<Output>,
    pub(super) pace: Cell<Pace>,
    pub(super) flush_queued: Cell<bool>,
    /// A task sends what is left of the output: the socket is full, or the host has had its part of the turn.
    pub(super) sends_later: Cell<bool>,
    pub(super) ended: Cell<Option<End>>,
    /// Notified when the connection becomes a queue, when it ends, and after that when a command of it ends.
    pub(super) settled: Notify,
    /// Notified when a host has read some of what waits for it.
    pub(super) read_notify: Notify,
    /// Commands that wait until this connection may hold more buffer bytes.
    pub(super) room: Room,
    pub(super) role: Cell<Role>,
    /// Which queue of which controller this is, after Connect.
    pub(super) owner: Cell<Option<Owner>>,
    /// The name of its host, from then on.
    pub(super) host_name: OnceCell<Nqn>,
    pub(super) connecting: Cell<bool>,
    /// A piece of its handshake has had its turn, or waits for it.
    is_greeted: Cell<bool>,
    pub(super) told_closed: Cell<bool>,
    pub(super) queue: Cell<Queue>,
    /// Commands that were taken and not yet answered.
    outstanding: RefCell<CidSet>,
    /// Commands that devices have.
    pub(super) flights: Flights,
    /// What its host has of this reactor; I/O queues have one.
    pub(super) share: OnceCell<Rc<HostShare>>,
    /// Units of that since they were last taken from here.
    pub(super) spent: Cell<u32>,
    /// What its host has moved and may move; I/O queues have one.
    pub(super) host_meter: OnceCell<Arc<HostMeter>>,
    /// Nothing is taken from this connection until then: its host has used up what it may do.
    pub(super) paused_until_ns: Cell<u64>,
    /// When something was last received.
    pub(super) heard_ns: Cell<u64>,
    /// The controller's write cache is switched off: every write is durable when it completes.
    pub(super) write_through: Cell<bool>,
    /// The host's end.
    pub(super) peer: SocketAddr,
    /// The address that it reached.
    pub(super) via: SocketAddr,
    /// When the target is told again that this queue's host is alive.
    pub(super) next_note_ns: Cell<u64>,
    pub(super) held_bytes: Cell<usize>,
    pub(super) pending: RefCell<CidMap<Pending>>,
    pub(super) r2ts: RefCell<R2tTable>,
    pub(super) fused: RefCell<Vec<FusedPair>>,
    pub(super) fused_slot: RefCell<FusedSlot>,
    pub(super) cached: RefCell<Option<(u32, u64, Rc<Namespace>)>>,
}

impl Connection {
    pub(super) fn new(
        reactor: &Rc<Reactor>,
        local: &Rc<Local>,
        stream: Stream,
        id: u64,
        (peer, via): (SocketAddr, SocketAddr),
    ) -> Rc<Connection> {
        Rc::new(Connection {
            reactor: reactor.clone(),
            local: local.clone(),
            id,
            stream,
            encoder: Cell::new(None),
            output: RefCell::default(),
            pace: Cell::new(Pace::new()),
            flush_queued: Cell::new(false),
            sends_later: Cell::new(false),
            ended: Cell::new(None),
            settled: Notify::default(),
            read_notify: Notify::default(),
            room: Room::default(),
            role: Cell::new(Role::None),
            owner: Cell::new(None),
            host_name: OnceCell::new(),
            connecting: Cell::new(false),
            is_greeted: Cell::new(false),
            told_closed: Cell::new(false),
            queue: Cell::new(Queue::new(0, FIRST_ENTRIES, true)),
            outstanding: RefCell::new(CidSet::new()),
            flights: Flights::default(),
            share: OnceCell::new(),
            spent: Cell::new(0),
            host_meter: OnceCell::new(),
            paused_until_ns: Cell::new(0),
            heard_ns: Cell::new(0),
            write_through: Cell::new(false),
            peer,
            via,
            next_note_ns: Cell::new(0),
            held_bytes: Cell::new(0),
            pending: RefCell::new(CidMap::new(1)),
            r2ts: RefCell::new(R2tTable::new(1)),
            fused: RefCell::default(),
            fused_slot: RefCell::default(),
            cached: RefCell::default(),
        })
    }

    /// Fixes what depends on the queue, after a successful Connect. The Connect command itself is still to be answered.
    pub(super) fn become_queue(&self, owner: Owner, connected: &Connected) {
        assert_eq!(self.role.get(), Role::None, "a connection becomes a queue once");
        let Connected { entries, flow_control, .. } = *connected;
        self.role.set(match owner.qid {
            _ if connected.needs_authentication => Role::Unproven,
            0 => Role::Admin,
            _ => Role::Io,
        });
        self.owner.set(Some(owner));
        if owner.qid != 0 {
            self.share.get_or_init(|| self.local.shares.of(owner.host));
            let shared = &self.local.shared;
            let host = self.host_name.get().expect("a queue has a host");
            self.host_meter.get_or_init(|| shared.meters.of(host, shared.loads.len()));
        }
        let mut queue = Queue::new(owner.qid, entries, flow_control);
        queue.submit().expect("a fresh queue has room for Connect");
        self.queue.set(queue);
        *self.pending.borrow_mut() = CidMap::new(entries as usize);
        *self.r2ts.borrow_mut() = R2tTable::new((entries as usize).min(R2T_MAX));
    }

    /// Ends the connection: nothing more is received or sent after what `why` calls for.
    pub(super) fn end(&self, why: End) {
        if self.ended.get().is_none() {
            self.ended.set(Some(why));
            self.settled.notify_all();
            self.read_notify.notify_all();
            self.room.wake_all();
        }
    }

    /// The controller of this queue is gone. A queue that is being drained ends by itself, when its answers are sent.
    pub(super) fn tear_down(&self) {
        if self.paused_until_ns.get() != PAUSED_FOR_GOOD {
            self.end(End::TornDown);
        }
    }

    /// Takes nothing more from the host, lets devices end what they have, and ends the connection when the answers are sent: a
    /// host repeats what was not answered, and a zone takes a write once. Devices that take longer than [`DRAIN_NS`] go
    /// on, and their answers are dropped.
    pub(super) fn drain(self: &Rc<Self>) {
        self.paused_until_ns.set(PAUSED_FOR_GOOD);
        let this = self.clone();
        self.reactor.spawn(async move {
            let quiet = async {
                while !this.flights.is_empty() {
                    this.flights.all_landed().await;
                }
                this.read_notify.wait_until(|| this.is_ended() || this.output.borrow().bytes() == 0).await;
            };
            let _ = this.reactor.timeout(DRAIN_NS, quiet).await;
            this.reactor.sleep_ns(READ_NS).await;
            this.end(End::Drained);
            this.local.let_go(&this);
        });
    }

    /// Waits for something to receive; the reason when the connection ended instead.
    pub(super) async fn readable_or_ended(&self) -> Option<End> {
        let mut readable = std::pin::pin!(self.stream.readable());
        let mut ended = std::pin::pin!(self.settled.notified());
        std::future::poll_fn(|cx| {
            if let Some(end) = self.ended.get() {
                return Poll::Ready(Some(end));
            }
            // Registers for the next notification; which one it is shows above.
            let _ = ended.as_mut().poll(cx);
            match readable.as_mut().poll(cx) {
                Poll::Ready(Ok(())) => Poll::Ready(None),
                Poll::Ready(Err(errno)) => Poll::Ready(Some(End::Network(errno))),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Waits for `future`; `None` when the connection ended first.
    pub(super) async fn or_ended<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut ended = std::pin::pin!(self.settled.wait_until(|| self.is_ended()));
        std::future::poll_fn(|cx| {
            if ended.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// Whether a host that does not read has so much waiting for it that nothing more is received from it.
    #[inline]
    pub(super) fn is_congested(&self) -> bool {
        self.sends_later.get() && {
            let output = self.output.borrow();
            output.bytes() >= HELD_BYTES_MAX || output.header_bytes() >= UNSENT_HEADER_BYTES_MAX
        }
    }

    /// While TLS is not agreed on: waits until a piece of its handshake may be carried out, or the connection ended.
    #[inline]
    pub(super) async fn greeting(&self, peer: IpAddr) -> Option<Greeting> {
        if !self.stream.is_shaking_hands() {
            return None;
        }
        let has_begun = self.is_greeted.replace(true);
        self.or_ended(self.local.greetings.clone().turn(self.reactor.clone(), peer, has_begun)).await
    }

    /// Waits until a host has read some of what waits for it, or the connection ended.
    pub(super) async fn uncongested(&self) {
        self.read_notify.wait_until(|| self.is_ended() || !self.is_congested()).await;
    }

    /// A last attempt to send what is queued; the rest is dropped.
    pub(super) fn flush_last(&self) {
        let mut output = self.output.borrow_mut();
        let _ = output.flush(&self.stream, usize::MAX);
        output.discard();
    }

    /// Sees to it that a host which does not send the data it was asked for loses its connection: what waits for that data
    /// holds memory of the pool.
    pub(super) fn watch_transfers(&self) {
        if self.local.watching_transfers.replace(true) {
            return;
        }
        let local = self.local.clone();
        self.reactor.spawn(async move {
            while local.connections().iter().any(|connection| connection.has_transfers()) {
                local.reactor.sleep_ns(TRANSFER_WATCH_NS).await;
                let since_ns = local.reactor.now_ns().saturating_sub(local.config.stall_timeout_ns);
                for connection in local.connections() {
                    // What is not taken from a host cannot be missed.
                    let paused_ns = connection.paused_until_ns.get();
                    let is_late = |pending: &Pending| pending.asked_ns.max(paused_ns) < since_ns;
                    if connection.pending.borrow().values().any(is_late) {
                        connection.end(End::Stalled);
                    }
                }
            }
            local.watching_transfers.set(false);
        });
    }

    fn has_transfers(&self) -> bool {
        !self.is_ended() && !self.pending.borrow().is_empty()
    }

    /// Sends what is queued now.
    pub(super) fn flush_now(self: &Rc<Self>) {
        self.flush();
    }

    /// The mark of a command on its device operation.
    #[inline]
    pub(super) fn tag(&self, cid: u16) -> u64 {
        self.id << 16 | cid as u64
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// A device has taken a command and not ended it.
    #[inline]
    pub(super) fn take_off(&self) -> Flight {
        if let Some(share) = self.share.get() {
            share.take_off();
        }
        self.flights.take_off()
    }

    /// It has ended.
    #[inline]
    pub(super) fn land(&self, flight: Flight) {
        if let Some(share) = self.share.get() {
            share.land();
        }
        self.flights.land(flight);
    }

    /// A command takes its host's part of the turn, a unit and what it moves.
    #[inline]
    pub(super) fn spend(&self, bytes: u64) {
        let units = u32::try_from(bytes >> share::UNIT_SHIFT).unwrap_or(u32::MAX);
        self.spent.set(self.spent.get().saturating_add(1).saturating_add(units));
    }

    /// Waits for the next turn, or for as long as devices have enough of this host's commands.
    pub(super) async fn its_turn(&self) {
        match self.share.get() {
            Some(share) if share.is_full() => drop(self.or_ended(share.has_room(&self.reactor)).await),
            _ => self.reactor.yield_now().await,
        }
    }

    // --- counting commands ------------------------------------------------------------------------------------------

    /// Counts an arriving command. False when it is none to carry out: the host has sent more than its queue holds and the
    /// connection ends, or the identifier is that of a command under way, which goes on, and this one has been refused.
    #[inline]
    pub(super) fn arrive(self: &Rc<Self>, sqe: &Sqe) -> bool {
        let mut queue = self.queue.get();
        if queue.submit().is_err() {
            self.end(End::Overrun);
            return false;
        }
        self.queue.set(queue);
        let is_new = self.outstanding.borrow_mut().insert(sqe.cid.get());
        if !is_new {
            self.refuse_twin(sqe);
        }
        is_new
    }

    /// The commands that were taken and not yet answered.
    pub(super) fn outstanding_cids(&self) -> Vec<u16> {
        self.outstanding.borrow().iter().collect()
    }

    /// Refuses a command whose identifier is in use.
    #[cold]
    fn refuse_twin(self: &Rc<Self>, sqe: &Sqe) {
        let status = Status::COMMAND_ID_CONFLICT.dnr();
        self.fused_interrupted(sqe);
        self.note_error(sqe, status);
        let mut cqe = Cqe::new(sqe.cid.get(), status);
        self.count_answer(&mut cqe);
        self.send_answer(&cqe);
    }

    /// Stamps an answer; the command's place in the queue is free again.
    #[inline]
    fn depart(&self, cqe: &mut Cqe) {
        let was_outstanding = self.outstanding.borrow_mut().remove(cqe.cid.get());
        assert!(was_outstanding, "a command is answered once");
        self.count_answer(cqe);
    }

    #[inline]
    fn count_answer(&self, cqe: &mut Cqe) {
        let mut queue = self.queue.get();
        queue.complete(cqe);
        self.queue.set(queue);
        self.change_pace(Pace::answered);
    }

    // --- answering --------------------------------------------------------------------------------------------------

    /// Answers a command.
    #[inline]
    pub(super) fn answer(self: &Rc<Self>, mut cqe: Cqe) {
        self.depart(&mut cqe);
        self.send_answer(&cqe);
    }

    fn send_answer(self: &Rc<Self>, cqe: &Cqe) {
        if !self.is_ended() {
            let encoder = self.encoder();
            self.output.borrow_mut().header(|out| encoder.capsule_resp(out, cqe));
            self.queue_flush();
        } else {
            self.settled.notify_all();
        }
    }

    #[inline]
    pub(super) fn answer_status(self: &Rc<Self>, cid: u16, status: Status) {
        self.answer(Cqe::new(cid, status));
    }

    /// Answers a command with data and success, in one PDU where the target's configuration says so.
    #[inline]
    pub(super) fn answer_data(self: &Rc<Self>, mut cqe: Cqe, bufs: SgList) {
        self.depart(&mut cqe);
        if self.is_ended() {
            return self.settled.notify_all();
        }
        let success = self.local.config.c2h_success && cqe.result.get() == 0 && cqe.status().is_success();
        let encoder = self.encoder();
        let header =
            DataHeader { cccid: cqe.cid.get(), ttag: 0, offset: 0, len: sg_len(&bufs) as u32, last: true, success };
        let mut output = self.output.borrow_mut();
        output.header(|out| encoder.c2h_data(out, &header));
        let digest =
            encoder.data_digest().then(|| base::crc::crc32c_slices(bufs.iter().map(Buf::as_slice)).to_le_bytes());
        output.data(bufs);
        if let Some(digest) = digest {
            output.copied(&digest);
        }
        drop(output);
        if success {
            self.queue_flush();
        } else {
            self.send_answer(&cqe);
        }
    }

    pub(super) fn encoder(&self) -> Encoder {
        self.encoder.get().expect("commands are decoded only after the parameters were agreed on")
    }

    /// Arranges for the queued answers to leave at the end of this turn, or now when there are many.
    #[inline]
    pub(super) fn queue_flush(self: &Rc<Self>) {
        if !self.flush_queued.replace(true) {
            let others = self.local.answering.get();
            self.local.answering.set(others + 1);
            self.change_pace(|pace| pace.begin_turn(others));
            self.reactor.at_turn_end(self.clone());
        }
        if self.pace.get().is_due(self.output.borrow().bytes()) {
            self.flush();
        }
    }

    #[inline]
    fn change_pace(&self, change: impl FnOnce(&mut Pace)) {
        let mut pace = self.pace.get();
        change(&mut pace);
        self.pace.set(pace);
    }

    fn flush(self: &Rc<Self>) {
        self.change_pace(Pace::flushed);
        if self.sends_later.get() {
            return;
        }
        match self.flush_part() {
            Ok(Flushed::All) => self.note_read(),
            Ok(left) => self.send_later(left),
            Err(errno) => self.end(End::Network(errno)),
        }
    }

    /// Sends what the socket takes; with several hosts on this reactor no more than this host's part of the turn.
    #[inline]
    fn flush_part(&self) -> Result<Flushed, Errno> {
        let mut output = self.output.borrow_mut();
        match self.share.get() {
            Some(share) if self.local.shares.are_needed(self.reactor.now_ns()) => {
                let (turn, before) = (self.reactor.turns(), output.bytes());
                let flushed = output.flush(&self.stream, share.send_max(turn));
                share.sent(turn, before - output.bytes());
                flushed
            }
            _ => output.flush(&self.stream, usize::MAX),
        }
    }

    /// The host has read some of what waited for it.
    #[inline]
    fn note_read(&self) {
        self.read_notify.notify_all();
        self.room.wake_first();
    }

    /// Something is left: one task sends it, in the turns that follow or when the socket takes more, with a limit on how
    /// slowly the host may read.
    fn send_later(self: &Rc<Self>, mut left: Flushed) {
        self.sends_later.set(true);
        let this = self.clone();
        self.reactor.spawn(async move {
            let config = &this.local.config;
            let mut progress = Progress::new(this.reactor.clock_ns(), config.stall_timeout_ns, config.stall_bytes_min);
            loop {
                if left == Flushed::Part {
                    this.reactor.yield_now().await;
                }
                let patience_ns = progress.left_ns(this.reactor.clock_ns());
                let writable = this.or_ended(this.stream.writable());
                match this.reactor.timeout(patience_ns, writable).await {
                    None if progress.is_stalled(this.reactor.clock_ns()) => return this.end(End::Stalled),
                    None => continue,
                    Some(None) => return,
                    Some(Some(Err(errno))) => return this.end(End::Network(errno)),
                    Some(Some(Ok(()))) => {}
                }
                let waiting = this.output.borrow().bytes();
                match this.flush_part() {
                    Ok(flushed) => {
                        progress.took(waiting - this.output.borrow().bytes());
                        this.sends_later.set(flushed != Flushed::All);
                        this.note_read();
                        if flushed == Flushed::All {
                            return;
                        }
                        left = flushed;
                    }
                    Err(errno) => return this.end(End::Network(errno)),
                }
            }
        });
    }

    /// Sends the termination for a fault, as far as the socket takes it at once.
    pub(super) fn send_termination(&self, fault: Fault, offending: &[u8]) {
        if let Some((pdu, len)) = encode_term(Side::Target, fault, offending) {
            let mut output = self.output.borrow_mut();
            output.copied(&pdu[..len]);
            let _ = output.flush(&self.stream, usize::MAX);
        }
    }

    /// Sends bytes that are no answer (ICResp, R2T), with the next flush.
    pub(super) fn send_header(self: &Rc<Self>, encode: impl FnOnce(&mut [u8]) -> usize) {
        self.output.borrow_mut().header(encode);
        self.queue_flush();
    }

    // --- buffers ----------------------------------------------------------------------------------------------------

    /// A buffer for a command of this connection at once, if both the pool and the connection's share allow it.
    #[inline]
    pub(super) fn try_take_buf(&self, len: usize) -> Option<Buf> {
        let held = self.held_bytes.get() + self.output.borrow().bytes();
        if held > 0 && (held + len > self.local.held_max() || self.room.has_line()) {
            return None;
        }
        let buf = self.reactor.pool().try_alloc(len)?;
        self.held_bytes.set(self.held_bytes.get() + len);
        Some(buf)
    }

    /// As [`try_take_buf`](Self::try_take_buf) for command `cid`, waiting. `None` when the connection ended meanwhile, or the
    /// host aborted the command.
    pub(super) async fn take_buf(&self, cid: u16, len: usize) -> Option<Buf> {
        let place = self.take_share(cid, len).await?;
        let mut allocated = std::pin::pin!(self.reactor.pool().alloc(len));
        let buf = std::future::poll_fn(|cx| {
            if self.is_ended() || place.turn(cx) == Turn::GivenUp {
                return Poll::Ready(None);
            }
            allocated.as_mut().poll(cx).map(Some)
        })
        .await;
        if buf.is_none() {
            self.release_share(len);
        }
        buf
    }

    /// Waits until the connection may hold `len` bytes more for command `cid`, and counts them. `None` when the connection
    /// ended meanwhile, or the host aborted the command.
    pub(super) async fn take_share(&self, cid: u16, len: usize) -> Option<Place<'_>> {
        let has_room = || {
            let held = self.held_bytes.get() + self.output.borrow().bytes();
            held == 0 || held + len <= self.local.held_max()
        };
        let place = self.room.enter(cid);
        std::future::poll_fn(|cx| match place.turn(cx) {
            _ if self.is_ended() => Poll::Ready(None),
            Turn::GivenUp => Poll::Ready(None),
            Turn::Now if has_room() => Poll::Ready(Some(())),
            _ => Poll::Pending,
        })
        .await?;
        self.held_bytes.set(self.held_bytes.get() + len);
        place.pass();
        Some(place)
    }

    /// Gives back a command's share; its buffer is freed or queued for sending.
    #[inline]
    pub(super) fn release_share(&self, len: usize) {
        let held = self.held_bytes.get();
        self.held_bytes.set(held - len);
        self.room.wake_first();
    }
}

impl TurnEnd for Connection {
    fn turn_end(self: Rc<Self>) {
        self.flush_queued.set(false);
        self.local.answering.set(self.local.answering.get() - 1);
        self.flush();
    }
}
