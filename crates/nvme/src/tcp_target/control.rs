//! Connect, Fabrics and admin commands: rare, and all brought to the target's home reactor.

use super::cid_map::CidMap;
use super::connection::{Connection, End, Owner, Pending, Role};
use super::execute::CapsuleData;
use super::home::{AdminReply, Admitted, Home, Place};
use super::local::Namespace;
use crate::spec::opcode::{AdminOpcode, Direction, FABRICS, FabricsType};
use crate::spec::sgl::DataLocation;
use crate::spec::sqe::Fused;
use crate::spec::{Cqe, Sqe, Status, fabrics};
use crate::target::{self, Connected};
use crate::tcp::{ADMIN_CAPSULE_DATA_MAX, LINGER_BYTES_MAX, LINGER_NS};
use reactor::{Buf, SgList};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often a busy queue tells the target that its host is alive.
const NOTE_INTERVAL_NS: u64 = 500_000_000;
/// Failed commands on their way to the error log at once. The log holds sixteen; a flood of failures does not fill the rings
/// between reactors.
const RECORDS_MAX: usize = 64;

impl Connection {
    /// Ends the connection unless it becomes a queue in time, and its host authenticates itself if it has to: half-open connections cost nothing for long.
    pub(super) fn watch_handshake(self: &Rc<Self>) {
        let this = self.clone();
        self.reactor.spawn(async move {
            let patience_ns = this.local.config.handshake_timeout_ns;
            let settled = this.settled.wait_until(|| this.role.get() != Role::None || this.is_ended());
            if this.reactor.timeout(patience_ns, settled).await.is_none() {
                return this.end(End::Stalled);
            }
            let patience_ns = this.local.config.authentication_timeout_ns;
            let proven = this.settled.wait_until(|| this.role.get() != Role::Unproven || this.is_ended());
            if this.reactor.timeout(patience_ns, proven).await.is_none() {
                this.report_unproven();
                this.end(End::Unproven);
            }
        });
    }

    /// The first command must be Connect (Base 2.0, section 6.3).
    pub(super) fn first_command(self: &Rc<Self>, sqe: &Sqe, data: CapsuleData<'_>, digest_ok: bool) {
        if !self.arrive(sqe) {
            return;
        }
        let cid = sqe.cid.get();
        let is_connect = fabrics::fabrics_type(sqe) == Some(FabricsType::Connect);
        if !is_connect || self.connecting.get() {
            return self.answer_status(cid, Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        if !digest_ok {
            return self.answer_status(cid, Status::TRANSIENT_TRANSPORT_ERROR);
        }
        let record = match sqe.sgl.locate(data.len() as u32, u32::MAX) {
            Ok(DataLocation::InCapsule { offset, len }) => data.copy(offset as usize..(offset + len) as usize),
            Ok(DataLocation::Transport { .. }) => return self.answer_status(cid, Status::SGL_TYPE_INVALID.dnr()),
            Err(status) => return self.answer_status(cid, status),
        };
        self.connecting.set(true);
        let (this, sqe, place) = (self.clone(), *sqe, self.place());
        let (shared, via, tls) = (self.local.shared.clone(), self.via, self.stream.key().map(Arc::new));
        self.reactor.spawn(async move {
            let connected = this
                .reactor
                .call_on(this.local.shared.home, move |reactor| async move {
                    Home::of(&reactor, &shared).connect(&sqe, &record, via, tls.as_deref(), place).await
                })
                .await;
            this.connecting.set(false);
            match connected {
                Ok(Admitted { connected, host, name, write_through }) => {
                    this.write_through.set(write_through);
                    this.host_name.set(name).expect("a connection becomes a queue once");
                    let Connected { controller, subsystem, qid, .. } = connected;
                    let owner = Owner { controller, subsystem, host, qid };
                    this.become_queue(owner, &connected);
                    this.settled.notify_all();
                    if this.is_ended() {
                        this.tell_closed();
                    }
                    this.answer(connected.cqe);
                }
                Err(cqe) => this.answer(cqe),
            }
        });
    }

    /// A command on the admin queue.
    pub(super) fn admin_command(self: &Rc<Self>, sqe: &Sqe, data: CapsuleData<'_>, digest_ok: bool) {
        if !self.arrive(sqe) {
            return;
        }
        if sqe.opcode == FABRICS {
            return self.fabrics_command(sqe, data, digest_ok);
        }
        if let Err(status) = self.try_admin_command(sqe, data, digest_ok) {
            self.answer_status(sqe.cid.get(), status);
        }
    }

    fn try_admin_command(self: &Rc<Self>, sqe: &Sqe, data: CapsuleData<'_>, digest_ok: bool) -> Result<(), Status> {
        let location = sqe.sgl.locate(data.len() as u32, self.local.config.model.transfer_len_max)?;
        // Of the commands that are carried out only this one comes with data; others are refused without asking for it.
        let takes_data = AdminOpcode::from_u8(sqe.opcode) == Some(AdminOpcode::SetFeatures);
        match location {
            DataLocation::InCapsule { .. } if takes_data && !digest_ok => Err(Status::TRANSIENT_TRANSPORT_ERROR),
            DataLocation::InCapsule { offset, len } if takes_data => {
                self.admin_with_data(*sqe, data.copy(offset as usize..(offset + len) as usize));
                Ok(())
            }
            DataLocation::InCapsule { .. } if Direction::of(sqe.opcode) == Direction::ControllerToHost => {
                Err(Status::SGL_TYPE_INVALID.dnr())
            }
            DataLocation::Transport { len } if takes_data && len > ADMIN_CAPSULE_DATA_MAX => {
                Err(Status::DATA_SGL_LENGTH_INVALID.dnr())
            }
            DataLocation::Transport { len } if takes_data && len > 0 => self.request_data(*sqe, None, len),
            _ => {
                self.admin_with_data(*sqe, Vec::new());
                Ok(())
            }
        }
    }

    /// An admin command whose data, if any, is here.
    pub(super) fn admin_with_data(self: &Rc<Self>, sqe: Sqe, data_in: Vec<u8>) {
        let owner = self.owner.get().expect("an admin queue has an owner");
        let gives = Direction::of(sqe.opcode) == Direction::ControllerToHost;
        let data_out_len = if gives { sqe.sgl.length.get() as usize } else { 0 };
        let (this, shared) = (self.clone(), self.local.shared.clone());
        self.reactor.spawn(async move {
            // A host that asks for much and reads nothing waits for itself.
            if data_out_len > 0 && this.take_share(sqe.cid.get(), data_out_len).await.is_none() {
                return this.answer_status(sqe.cid.get(), Status::ABORTED_SQ_DELETION);
            }
            let reply = this
                .reactor
                .call_on(this.local.shared.home, move |reactor| async move {
                    Home::of(&reactor, &shared).admin(owner.controller, &sqe, data_in, data_out_len).await
                })
                .await;
            this.release_share(data_out_len);
            match reply {
                AdminReply::Complete(cqe, data) if data.is_empty() => this.answer(cqe),
                AdminReply::Complete(cqe, data) => this.answer_data(cqe, SgList::from_iter([Buf::from_vec(data)])),
                // Its answer comes when there is an event to tell.
                AdminReply::Pending => {}
            }
        });
    }

    /// A Fabrics command after Connect, on either kind of queue.
    pub(super) fn fabrics_command(self: &Rc<Self>, sqe: &Sqe, data: CapsuleData<'_>, digest_ok: bool) {
        if self.authentication_command(sqe, data, digest_ok) {
            return;
        }
        let owner = self.owner.get().expect("a queue has an owner");
        let (this, shared, sqe) = (self.clone(), self.local.shared.clone(), *sqe);
        self.reactor.spawn(async move {
            let (cqe, close) = this
                .reactor
                .call_on(this.local.shared.home, move |reactor| async move {
                    Home::of(&reactor, &shared).fabrics(owner.controller, owner.qid, &sqe)
                })
                .await;
            this.answer(cqe);
            if close {
                this.flush_now();
                this.end(End::Closed);
            }
        });
    }

    /// Answers a failed I/O command and notes it in the controller's error log.
    pub(super) fn answer_error(self: &Rc<Self>, sqe: &Sqe, status: Status) {
        self.note_error(sqe, status);
        self.answer_status(sqe.cid.get(), status);
    }

    /// Notes a failed I/O command in the controller's error log.
    pub(super) fn note_error(self: &Rc<Self>, sqe: &Sqe, status: Status) {
        let Some(owner) = self.owner.get() else { return };
        let shared = self.local.shared.clone();
        if shared.records.fetch_add(1, Ordering::Relaxed) >= RECORDS_MAX {
            shared.records.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let (sqe, cqe) = (*sqe, Cqe::new(sqe.cid.get(), status));
        self.reactor.post(self.local.shared.home, move |reactor| {
            shared.records.fetch_sub(1, Ordering::Relaxed);
            Home::of(reactor, &shared).record_error(owner.controller, owner.qid, &sqe, &cqe);
        });
    }

    /// Tells the target now and then that this queue's host is alive (traffic based keep alive).
    #[inline]
    pub(super) fn note_activity(&self) {
        let now_ns = self.reactor.now_ns();
        self.heard_ns.set(now_ns);
        if now_ns >= self.next_note_ns.get()
            && let Some(owner) = self.owner.get()
        {
            self.next_note_ns.set(now_ns + NOTE_INTERVAL_NS);
            let shared = self.local.shared.clone();
            self.reactor
                .post(self.local.shared.home, move |reactor| Home::of(reactor, &shared).heard(owner.controller));
        }
    }

    /// The connection is over: the target learns of it, the peer is told nothing more but why.
    pub(super) async fn finish(self: &Rc<Self>, end: End) {
        self.end(end);
        self.flush_last();
        self.drop_waiting();
        self.tell_closed();
        if matches!(end, End::Fault(_) | End::HelloOfTls | End::Overrun | End::Unproven) {
            self.stream.drain(LINGER_NS, LINGER_BYTES_MAX).await;
        }
        // The host learns of the end from the end of the stream, and not from a send that fails: Linux repeats such sends
        // a few times at once and then, without another path, fails the command.
        if end == End::Drained && self.stream.end_sending() {
            self.stream.drain(LINGER_NS, LINGER_BYTES_MAX).await;
        }
        self.stream.close();
        self.local.shared.connection_ended(self.reactor.index());
    }

    /// Tells the target that this queue is closed, and later that none of its commands is carried out any more.
    fn tell_closed(self: &Rc<Self>) {
        let Some(owner) = self.owner.get().filter(|_| !self.told_closed.replace(true)) else { return };
        let (shared, id, why) = (self.local.shared.clone(), self.id, self.ended.get().unwrap_or(End::Closed));
        self.reactor.post(self.local.shared.home, move |reactor| {
            Home::of(reactor, &shared).queue_closed(owner.controller, owner.qid, id, why);
        });
        if owner.qid == 0 {
            return;
        }
        let this = self.clone();
        self.reactor.spawn(async move {
            this.settled.wait_until(|| this.queue.get().outstanding() == 0).await;
            let shared = this.local.shared.clone();
            this.reactor.post(this.local.shared.home, move |reactor| {
                Home::of(reactor, &shared).queue_quiet(owner.controller);
            });
        });
    }

    /// Ends a command early, if that is still possible: at once when it waits for room or for the other half of a pair, when
    /// its data has come if the host was asked for that, and as its device likes when that has it. True when the command
    /// has been answered as aborted.
    pub(super) fn abort(self: &Rc<Self>, cid: u16) -> bool {
        if self.room.give_up(cid) {
            return true;
        }
        if let Some(pending) = self.pending.borrow_mut().get_mut(cid) {
            pending.aborted = Some(Status::ABORT_REQUESTED);
            return false;
        }
        if self.fused_failed(cid, Status::ABORT_REQUESTED) {
            return true;
        }
        self.local.abort(self.tag(cid));
        false
    }

    /// Ends the commands that wait for something which an ended connection does not bring: their data, or the other half of
    /// a fused pair. What is left then is under way in devices, or about to find out by itself.
    fn drop_waiting(self: &Rc<Self>) {
        self.drop_pairs();
        let pending = std::mem::replace(&mut *self.pending.borrow_mut(), CidMap::new(1));
        for Pending { sqe, io, buf, .. } in pending.into_values() {
            self.release_share(buf.len());
            // Halves of pairs have been answered with their pairs.
            if io.is_none_or(|(command, _)| command.fused == Fused::Normal) {
                self.answer_status(sqe.cid.get(), Status::ABORTED_SQ_DELETION);
            }
        }
    }

    /// Namespaces are looked up once and kept until the target's set of them changes.
    #[inline]
    pub(super) fn namespace(&self, nsid: u32) -> Option<Rc<Namespace>> {
        let generation = self.local.generation();
        if let Some((cached_nsid, cached_generation, namespace)) = &*self.cached.borrow()
            && (*cached_nsid, *cached_generation) == (nsid, generation)
        {
            return Some(namespace.clone());
        }
        let namespace = self.local.namespace(self.owner.get()?.subsystem, nsid).filter(|found| self.sees(found))?;
        *self.cached.borrow_mut() = Some((nsid, generation, namespace.clone()));
        Some(namespace)
    }

    /// Whether a namespace exists for this queue's host.
    fn sees(&self, namespace: &Namespace) -> bool {
        self.host_name.get().is_some_and(|host| target::shows(namespace.mask.as_ref(), host))
    }

    pub(super) fn all_namespaces(&self) -> Vec<Rc<Namespace>> {
        let Some(owner) = self.owner.get() else { return Vec::new() };
        let ids = self.local.shared.namespace_ids(owner.subsystem);
        let found = ids.into_iter().filter_map(|nsid| self.local.namespace(owner.subsystem, nsid));
        found.filter(|namespace| self.sees(namespace)).collect()
    }

    /// Where messages find this connection.
    fn place(&self) -> Place {
        let (tls, authenticated) = (self.stream.key().is_some(), false);
        Place { reactor: self.reactor.index(), connection: self.id, peer: self.peer, tls, authenticated }
    }
}
