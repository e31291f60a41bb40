//! Authentication of a queue: the two commands that carry its messages, and what may come before it is done: nothing else.

use super::connection::{Connection, End, Owner, Role};
use super::execute::CapsuleData;
use super::home::Home;
use crate::auth::Outcome;
use crate::power;
use crate::spec::fabrics::{self, AuthenticationCommand};
use crate::spec::opcode::FabricsType;
use crate::spec::sgl::DataLocation;
use crate::spec::{Cqe, Sqe, Status};
use crate::target::{AuthOutcome, WhyRefused};
use crate::tcp::ADMIN_CAPSULE_DATA_MAX;
use reactor::{Buf, SgList};
use std::fmt::Display;
use std::rc::Rc;

/// What a command of the dialogue came to.
struct Reply {
    cqe: Cqe,
    data: Vec<u8>,
    outcome: Outcome,
}

impl Connection {
    /// A command on a queue whose host has not authenticated itself yet (Base 2.0, section 3.3.1).
    #[cold]
    pub(super) fn unproven_command(self: &Rc<Self>, sqe: &Sqe, data: CapsuleData<'_>, digest_ok: bool) {
        if !self.arrive(sqe) {
            return;
        }
        if !self.authentication_command(sqe, data, digest_ok) {
            self.answer_status(sqe.cid.get(), Status::AUTHENTICATION_REQUIRED.dnr());
        }
    }

    /// Processes a command that has arrived, if it is one of the dialogue's two.
    pub(super) fn authentication_command(self: &Rc<Self>, sqe: &Sqe, data: CapsuleData<'_>, digest_ok: bool) -> bool {
        let processed = match fabrics::fabrics_type(sqe) {
            Some(FabricsType::AuthenticationSend) => self.authentication_send(sqe, data, digest_ok),
            Some(FabricsType::AuthenticationReceive) => self.authentication_receive(sqe, &data),
            _ => return false,
        };
        if let Err(status) = processed {
            self.answer_status(sqe.cid.get(), status);
        }
        true
    }

    fn authentication_send(self: &Rc<Self>, sqe: &Sqe, data: CapsuleData<'_>, digest_ok: bool) -> Result<(), Status> {
        match sqe.sgl.locate(data.len() as u32, ADMIN_CAPSULE_DATA_MAX)? {
            DataLocation::InCapsule { .. } if !digest_ok => Err(Status::TRANSIENT_TRANSPORT_ERROR),
            DataLocation::InCapsule { offset, len } => {
                self.take_message(*sqe, data.copy(offset as usize..(offset + len) as usize));
                Ok(())
            }
            DataLocation::Transport { len } => self.request_data(*sqe, None, len),
        }
    }

    fn authentication_receive(self: &Rc<Self>, sqe: &Sqe, data: &CapsuleData<'_>) -> Result<(), Status> {
        let DataLocation::Transport { len } = sqe.sgl.locate(data.len() as u32, ADMIN_CAPSULE_DATA_MAX)? else {
            return Err(Status::SGL_TYPE_INVALID.dnr());
        };
        if AuthenticationCommand::of(sqe).len.get() > len {
            return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
        }
        let (shared, sqe) = (self.local.shared.clone(), *sqe);
        self.converse(move |reactor, owner| async move { Home::of(&reactor, &shared).give_message(owner, &sqe) });
        Ok(())
    }

    /// A message of the host is here.
    pub(super) fn take_message(self: &Rc<Self>, sqe: Sqe, message: Vec<u8>) {
        let (shared, id) = (self.local.shared.clone(), self.id);
        self.converse(move |reactor, owner| async move {
            Home::of(&reactor, &shared).take_message(owner, id, &sqe, &message).await
        });
    }

    /// Asks the home, answers the host, and draws the conclusion for this connection.
    fn converse<F: Future<Output = Reply> + 'static>(
        self: &Rc<Self>,
        ask: impl FnOnce(Rc<reactor::Reactor>, Owner) -> F + Send + 'static,
    ) {
        let (this, owner) = (self.clone(), self.owner.get().expect("a queue has an owner"));
        self.reactor.spawn(async move {
            let asking = this.reactor.call_on(this.local.shared.home, move |reactor| ask(reactor, owner));
            let Reply { cqe, data, outcome } = asking.await;
            if outcome == Outcome::Authenticated {
                this.become_proven();
            }
            match data.is_empty() {
                true => this.answer(cqe),
                false => this.answer_data(cqe, SgList::from_iter([Buf::from_vec(data)])),
            }
            if let Outcome::Failed(_) = outcome {
                this.flush_now();
                this.end(End::Unproven);
            }
        });
    }

    /// Its host has had its time to authenticate itself.
    pub(super) fn report_unproven(&self) {
        let (shared, owner) = (self.local.shared.clone(), self.owner.get().expect("a queue has an owner"));
        self.reactor.post(self.local.shared.home, move |reactor| {
            Home::of(reactor, &shared).authentication_failed(owner, &"the host did nothing for it in time");
        });
    }

    /// Its host may use the queue from now on.
    fn become_proven(&self) {
        if self.role.get() == Role::Unproven {
            let owner = self.owner.get().expect("a queue has an owner");
            self.role.set(if owner.qid == 0 { Role::Admin } else { Role::Io });
            self.settled.notify_all();
        }
    }
}

impl Home {
    async fn take_message(self: &Rc<Self>, owner: Owner, connection: u64, sqe: &Sqe, message: &[u8]) -> Reply {
        let Owner { controller, qid, .. } = owner;
        // The queue may be another connection's by the time that a power is there, with a dialogue of its own.
        let is_here = || self.is_queue(controller, qid, connection);
        let failed = |status| Reply { cqe: Cqe::new(sqe.cid.get(), status), data: Vec::new(), outcome: Outcome::Open };
        if !is_here() {
            return failed(Status::ABORTED_SQ_DELETION.dnr());
        }
        let mut random = |bytes: &mut [u8]| self.reactor.driver().fill_secret(bytes);
        let mut taken = self.change(|target| {
            target.authentication_send(self.reactor.now_ns(), controller, qid, sqe, message, &mut random)
        });
        loop {
            match taken {
                AuthOutcome::Answer { cqe, data, outcome } => return self.conclude(owner, cqe, data, outcome),
                AuthOutcome::Compute(power) => {
                    if power::is_busy(&self.reactor) {
                        return failed(Status::INTERNAL_ERROR);
                    }
                    let Some(power) = power::compute(&self.reactor, power, is_here).await else {
                        return failed(Status::ABORTED_SQ_DELETION.dnr());
                    };
                    let (now_ns, cid) = (self.reactor.now_ns(), sqe.cid.get());
                    taken = self.change(|target| target.authentication_computed(now_ns, controller, qid, cid, &power));
                }
            }
        }
    }

    fn give_message(self: &Rc<Self>, owner: Owner, sqe: &Sqe) -> Reply {
        let now_ns = self.reactor.now_ns();
        match self.change(|target| target.authentication_receive(now_ns, owner.controller, owner.qid, sqe)) {
            AuthOutcome::Answer { cqe, data, outcome } => self.conclude(owner, cqe, data, outcome),
            AuthOutcome::Compute(_) => unreachable!("a message that is ready needs no power"),
        }
    }

    /// Tells the log how an authentication ended.
    fn conclude(&self, owner: Owner, cqe: Cqe, data: Vec<u8>, outcome: Outcome) -> Reply {
        match outcome {
            Outcome::Open => {}
            Outcome::Authenticated => {
                let (controller, queue) = (owner.controller, owner.qid);
                tracing::debug!(?controller, queue, "authenticated");
                self.queue_proven(controller, queue);
            }
            Outcome::Failed(reason) => self.authentication_failed(owner, &reason),
        }
        Reply { cqe, data, outcome }
    }

    /// A host has not proven who it is, and is let go. Whoever tries keys does not fill the log with it.
    fn authentication_failed(&self, owner: Owner, reason: &dyn Display) {
        self.shared.refusals.count(WhyRefused::Authentication);
        let peer = self.places(owner.controller).first().map(|place| place.peer.to_string());
        let others = self.others_refused(WhyRefused::Authentication);
        self.with_target(|target| {
            let Some(controller) = target.controller(owner.controller) else { return };
            let subsystem = target.subsystem(controller.subsystem()).map(|subsystem| subsystem.nqn().as_str());
            let (host, queue) = (controller.host_nqn().as_str(), owner.qid);
            match others {
                None => {
                    tracing::debug!(host, peer, subsystem, queue, %reason, "authentication failed; the connection is closed");
                }
                Some(others) => {
                    tracing::warn!(
                        host, peer, subsystem, queue, %reason, others, "authentication failed; the connection is closed"
                    );
                }
            }
        });
    }
}
