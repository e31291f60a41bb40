//! Authentication of queues: which hosts need a key, and the commands that carry the messages (Base 2.0, sections 6.2 and 6.3).
//!
//! What the messages mean is told by [`crate::auth`]. Here each queue has its side of the dialogue, for as long as it is connected.
//! That commands of a queue which has not authenticated are refused is the matter of who receives them.

use super::{ControllerHandle, ModelError, SubsystemId, Target};
use crate::auth::{ControllerSide, Exponentiation, Failure, Names, Outcome, Policy, Random, Taken};
use crate::spec::fabrics::AuthenticationCommand;
use crate::spec::{Cqe, Nqn, Sqe, Status};

/// How a host of a subsystem authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPolicy {
    /// Its keys and what they are used with.
    pub policy: Policy,
    /// Until when all pairs of keys are good; then the first is. `None` is for ever.
    pub former_until_ns: Option<u64>,
}

impl HostPolicy {
    fn at(&self, now_ns: u64) -> Policy {
        let mut policy = self.policy.clone();
        if self.former_until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
            policy.pairs.truncate(1);
        }
        policy
    }
}

/// What became of a command that carries a message.
#[derive(Debug)]
pub enum AuthOutcome {
    /// It is answered.
    Answer {
        /// The answer.
        cqe: Cqe,
        /// The message for the host, for Authentication Receive.
        data: Vec<u8>,
        /// Where the queue stands now.
        outcome: Outcome,
    },
    /// A power is needed first: compute it and bring it to [`Target::authentication_computed`].
    Compute(Exponentiation),
}

impl AuthOutcome {
    fn status(cid: u16, status: Status) -> AuthOutcome {
        AuthOutcome::Answer { cqe: Cqe::new(cid, status), data: Vec::new(), outcome: Outcome::Open }
    }
}

impl Target {
    /// States how a host authenticates to a subsystem; `None` is not at all. Queues that are connected stay.
    pub fn set_host_policy(
        &mut self,
        id: SubsystemId,
        host: &Nqn,
        policy: Option<HostPolicy>,
    ) -> Result<(), ModelError> {
        self.nvm_subsystem_mut(id)?.set_policy(host, policy)
    }

    /// Takes a message of a host (Authentication Send) that came on queue `qid`.
    pub fn authentication_send(
        &mut self,
        now_ns: u64,
        handle: ControllerHandle,
        qid: u16,
        sqe: &Sqe,
        data: &[u8],
        random: Random<'_>,
    ) -> AuthOutcome {
        let cid = sqe.cid.get();
        let command = AuthenticationCommand::of(sqe);
        let len = command.len.get() as usize;
        let message = match data.get(..len) {
            Some(message) if command.is_dhchap() && len > 0 => message,
            Some(_) => return AuthOutcome::status(cid, Status::INVALID_FIELD.dnr()),
            None => return AuthOutcome::status(cid, Status::DATA_SGL_LENGTH_INVALID.dnr()),
        };
        self.with_side(now_ns, handle, qid, cid, |side, policy, names| {
            match side.take(now_ns, message, policy, names, random) {
                Some(Taken::Compute(power)) => AuthOutcome::Compute(power),
                Some(Taken::Done(outcome)) => {
                    AuthOutcome::Answer { cqe: Cqe::success(cid, 0), data: Vec::new(), outcome }
                }
                None => AuthOutcome::status(cid, Status::COMMAND_SEQUENCE_ERROR.dnr()),
            }
        })
    }

    /// Goes on with command `cid` when the power is there for which it waited.
    pub fn authentication_computed(
        &mut self,
        now_ns: u64,
        handle: ControllerHandle,
        qid: u16,
        cid: u16,
        power: &[u8],
    ) -> AuthOutcome {
        self.with_side(now_ns, handle, qid, cid, |side, policy, names| {
            match side.computed(now_ns, power, policy, names) {
                Some(outcome) => AuthOutcome::Answer { cqe: Cqe::success(cid, 0), data: Vec::new(), outcome },
                None => AuthOutcome::status(cid, Status::ABORTED_SQ_DELETION.dnr()),
            }
        })
    }

    /// Gives the host its next message (Authentication Receive).
    pub fn authentication_receive(
        &mut self,
        now_ns: u64,
        handle: ControllerHandle,
        qid: u16,
        sqe: &Sqe,
    ) -> AuthOutcome {
        let cid = sqe.cid.get();
        let command = AuthenticationCommand::of(sqe);
        let len = command.len.get() as usize;
        if !command.is_dhchap() || len == 0 {
            return AuthOutcome::status(cid, Status::INVALID_FIELD.dnr());
        }
        self.with_side(now_ns, handle, qid, cid, |side, _, _| {
            if side.is_computing() {
                return AuthOutcome::status(cid, Status::COMMAND_SEQUENCE_ERROR.dnr());
            }
            match side.give(now_ns, len) {
                Some(given) => {
                    let mut data = given.message;
                    // Hosts expect as much as they have room for.
                    data.resize(len, 0);
                    AuthOutcome::Answer { cqe: Cqe::success(cid, 0), data, outcome: given.outcome }
                }
                None => AuthOutcome::status(cid, Status::INVALID_FIELD.dnr()),
            }
        })
    }

    fn with_side(
        &mut self,
        now_ns: u64,
        handle: ControllerHandle,
        qid: u16,
        cid: u16,
        act: impl FnOnce(&mut ControllerSide, Option<&Policy>, &Names<'_>) -> AuthOutcome,
    ) -> AuthOutcome {
        let Some(controller) = self.controllers.get_mut(&handle) else {
            return AuthOutcome::status(cid, Status::ABORTED_SQ_DELETION.dnr());
        };
        if qid == 0 {
            controller.note_activity(now_ns);
        }
        let subsystem = &self.subsystems[&controller.subsystem()];
        let policy = subsystem.policy(controller.host_nqn()).map(|policy| policy.at(now_ns));
        let names = Names { host: controller.host_nqn(), subsystem: subsystem.nqn() };
        let mut answer = act(self.dialogues.entry((handle, qid)).or_default(), policy.as_ref(), &names);
        if let AuthOutcome::Answer { outcome: outcome @ Outcome::Authenticated, .. } = &mut answer {
            match self.own_identifier(handle) {
                true => self.controllers.get_mut(&handle).into_iter().for_each(|found| found.queue_proven(qid)),
                false => *outcome = Outcome::Failed(Failure::Failed),
            }
        }
        answer
    }
}
