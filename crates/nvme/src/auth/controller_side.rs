//! The controller's side of DH-HMAC-CHAP on one queue.
//!
//! ```text
//!            Negotiate               public value             Auth Receive
//! Resting ---------------> Public -----------------> Offered ---------------> Challenged
//!    ^                                                                            |
//!    |  Auth Receive: Success1            verified                                | Reply
//!    +---------------------------- Proven <-------- Shared <----------------------+
//!    |                               |
//!    |  Success2                     | Auth Receive: Success1, to a host that asked for proof
//!    +---------------- Answered <----+
//! ```
//! `Public` and `Shared` last as long as a power is computed and are passed through at once without a Diffie-Hellman exchange.
//! Whatever goes wrong leads to `Failing`, in which the next Auth Receive brings AUTH_Failure1; after that, and after the host's
//! AUTH_Failure2, nothing is left but to end the connection. A new Negotiate begins anew wherever no power is being computed.

use std::sync::Arc;
use zeroize::Zeroizing;

use super::Random;
use super::group::{DhGroup, Exponentiation};
use super::hash::{Digest, Hash};
use super::message::{self, ChallengeMessage, Failure, Header, Negotiate, Reply, Success1};
use super::response::{Challenge, Names};
use super::secret::Secret;

/// A host's key and, if the controller is to prove itself too, the controller's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// The host's.
    pub host: Arc<Secret>,
    /// The controller's towards this host.
    pub controller: Option<Arc<Secret>>,
}

/// How a host is to authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The pair that holds, and after a change for a while the one before. A host is answered with the controller's key of
    /// the pair whose host key it used.
    pub pairs: Vec<KeyPair>,
    /// Hashes, the preferred one first.
    pub hashes: Vec<Hash>,
    /// Groups, the preferred one first.
    pub groups: Vec<DhGroup>,
}

impl Policy {
    /// One pair of keys, and everything that there is to use them with.
    pub fn new(pair: KeyPair) -> Policy {
        Policy { pairs: vec![pair], hashes: Hash::ALL.to_vec(), groups: DhGroup::ALL.to_vec() }
    }
}

/// Where a queue stands after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is more to come.
    Open,
    /// The host has proved itself.
    Authenticated,
    /// It has not: the connection is to be ended once the answer is sent.
    Failed(Failure),
}

/// What became of a message from the host.
#[derive(Debug)]
pub enum Taken {
    /// It was processed.
    Done(Outcome),
    /// A power is needed; [`ControllerSide::computed`] takes it.
    Compute(Exponentiation),
}

/// A message for the host.
#[derive(Debug)]
pub struct Given {
    /// Its bytes.
    pub message: Vec<u8>,
    /// Where the queue stands when it was sent.
    pub outcome: Outcome,
}

/// What was agreed on and what the host was asked.
struct Exchange {
    transaction: u16,
    hash: Hash,
    group: DhGroup,
    sequence: u32,
    challenge: Zeroizing<Vec<u8>>,
    private: Zeroizing<Vec<u8>>,
    public: Vec<u8>,
}

/// What the host answered.
struct Answer {
    sequence: u32,
    response: Vec<u8>,
    challenge: Option<Vec<u8>>,
}

enum State {
    Resting,
    Public(Exchange),
    Offered(Exchange),
    Challenged(Exchange),
    Shared(Exchange, Answer),
    Proven { transaction: u16, hash: Hash, response: Option<Digest> },
    Answered { transaction: u16 },
    Failing { transaction: u16, failure: Failure },
}

/// See the module.
pub struct ControllerSide {
    state: State,
    /// When the transaction's last message came or went.
    moved_ns: u64,
    sequence: u32,
}

/// How long a host may take for its next message. A transaction that rested longer is over.
const PATIENCE_NS: u64 = 60_000_000_000;

impl Default for ControllerSide {
    fn default() -> Self {
        ControllerSide { state: State::Resting, moved_ns: 0, sequence: 0 }
    }
}

impl ControllerSide {
    /// Whether a transaction is under way.
    pub fn is_busy(&self) -> bool {
        !matches!(self.state, State::Resting)
    }

    /// Whether a power is being computed for it.
    pub fn is_computing(&self) -> bool {
        matches!(self.state, State::Public(_) | State::Shared(..))
    }

    /// Takes a message of the host (Authentication Send). `policy` is `None` for a host without key. `None` is returned while
    /// a power is computed: no message may come then.
    pub fn take(
        &mut self,
        now_ns: u64,
        message: &[u8],
        policy: Option<&Policy>,
        names: &Names<'_>,
        random: Random<'_>,
    ) -> Option<Taken> {
        if self.is_computing() {
            return None;
        }
        if now_ns.saturating_sub(self.moved_ns) > PATIENCE_NS {
            self.state = State::Resting;
        }
        self.moved_ns = now_ns;
        let Some(header) = Header::of(message) else {
            return Some(self.fail(0, Failure::IncorrectPayload));
        };
        let transaction = header.transaction.get();
        let taken = match (core::mem::replace(&mut self.state, State::Resting), header) {
            (_, header) if header.is(message::TYPE_COMMON, message::ID_NEGOTIATE) => {
                self.negotiate(message, policy, random)
            }
            (State::Challenged(exchange), header) if header.is(message::TYPE_DHCHAP, message::ID_REPLY) => {
                self.reply(exchange, message, policy, names)
            }
            (State::Answered { transaction: expected }, header)
                if header.is(message::TYPE_DHCHAP, message::ID_SUCCESS2) =>
            {
                match transaction == expected {
                    true => Ok(Taken::Done(Outcome::Authenticated)),
                    false => Err(Failure::IncorrectPayload),
                }
            }
            // The host takes our proof, or a message of ours, for wrong.
            (State::Challenged(_) | State::Answered { .. }, header)
                if header.is(message::TYPE_COMMON, message::ID_FAILURE2) =>
            {
                Ok(Taken::Done(Outcome::Failed(message::explanation(message))))
            }
            _ => Err(Failure::IncorrectMessage),
        };
        Some(taken.unwrap_or_else(|failure| self.fail(transaction, failure)))
    }

    fn fail(&mut self, transaction: u16, failure: Failure) -> Taken {
        self.state = State::Failing { transaction, failure };
        Taken::Done(Outcome::Open)
    }

    fn negotiate(&mut self, message: &[u8], policy: Option<&Policy>, random: Random<'_>) -> Result<Taken, Failure> {
        let Negotiate { transaction, secure_channel, offer } = Negotiate::parse(message)?;
        let policy = policy.ok_or(Failure::NotUsable)?;
        let offer = offer.ok_or(Failure::NotUsable)?;
        if secure_channel != 0 {
            return Err(Failure::SecureChannelMismatch);
        }
        let hash = policy.hashes.iter().copied().find(|hash| offer.hashes.contains(hash));
        let hash = hash.ok_or(Failure::HashNotUsable)?;
        let group = policy.groups.iter().copied().find(|group| offer.groups.contains(group));
        let group = group.ok_or(Failure::GroupNotUsable)?;
        let mut challenge = Zeroizing::new(vec![0; hash.digest_len()]);
        random(&mut challenge);
        let exchange = Exchange {
            transaction,
            hash,
            group,
            sequence: self.next_sequence(random),
            challenge,
            private: group.private(random),
            public: Vec::new(),
        };
        if group.is_null() {
            self.state = State::Offered(exchange);
            return Ok(Taken::Done(Outcome::Open));
        }
        let power = group.public(&exchange.private);
        self.state = State::Public(exchange);
        Ok(Taken::Compute(power))
    }

    /// Sequence numbers begin anywhere, go up, and are never zero, which says that nothing is asked (Base 2.0, section
    /// 8.13.5.3).
    fn next_sequence(&mut self, random: Random<'_>) -> u32 {
        if self.sequence == 0 {
            let mut bytes = [0; 4];
            random(&mut bytes);
            self.sequence = u32::from_le_bytes(bytes);
        }
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    fn reply(
        &mut self,
        exchange: Exchange,
        message: &[u8],
        policy: Option<&Policy>,
        names: &Names<'_>,
    ) -> Result<Taken, Failure> {
        let reply = Reply::parse(message, exchange.hash, exchange.group)?;
        if reply.transaction != exchange.transaction {
            return Err(Failure::IncorrectPayload);
        }
        // A challenge of ours that is sent back would have us answer for the host.
        if reply.challenge.is_some_and(|theirs| theirs == exchange.challenge.as_slice() || reply.sequence == 0) {
            return Err(Failure::IncorrectPayload);
        }
        let answer = Answer {
            sequence: reply.sequence,
            response: reply.response.to_vec(),
            challenge: reply.challenge.map(<[u8]>::to_vec),
        };
        if exchange.group.is_null() {
            return self.verify(&exchange, &answer, None, policy, names).map(Taken::Done);
        }
        let power = exchange.group.shared(&exchange.private, reply.public).ok_or(Failure::IncorrectPayload)?;
        self.state = State::Shared(exchange, answer);
        Ok(Taken::Compute(power))
    }

    /// Goes on with the power that was asked for. `None` if none was: the queue has become another one meanwhile.
    pub fn computed(
        &mut self,
        now_ns: u64,
        power: &[u8],
        policy: Option<&Policy>,
        names: &Names<'_>,
    ) -> Option<Outcome> {
        if !self.is_computing() {
            return None;
        }
        self.moved_ns = now_ns;
        Some(match core::mem::replace(&mut self.state, State::Resting) {
            State::Public(mut exchange) => {
                exchange.public = power.to_vec();
                self.state = State::Offered(exchange);
                Outcome::Open
            }
            State::Shared(exchange, answer) => {
                let transaction = exchange.transaction;
                self.verify(&exchange, &answer, Some(power), policy, names).unwrap_or_else(|failure| {
                    self.state = State::Failing { transaction, failure };
                    Outcome::Open
                })
            }
            _ => unreachable!("it waits for a power"),
        })
    }

    fn verify(
        &mut self,
        exchange: &Exchange,
        answer: &Answer,
        shared: Option<&[u8]>,
        policy: Option<&Policy>,
        names: &Names<'_>,
    ) -> Result<Outcome, Failure> {
        let Exchange { transaction, hash, sequence, .. } = *exchange;
        let asked = Challenge { hash, value: &exchange.challenge, sequence, transaction, shared };
        let policy = policy.ok_or(Failure::Failed)?;
        let is_right = |pair: &&KeyPair| asked.host_answer(&pair.host, names).matches(&answer.response);
        let pair = policy.pairs.iter().find(is_right).ok_or(Failure::Failed)?;
        let response = match (&answer.challenge, &pair.controller) {
            (None, _) => None,
            // The host wants a proof for which there is no key.
            (Some(_), None) => return Err(Failure::NotUsable),
            (Some(challenge), Some(key)) => {
                let asked = Challenge { value: challenge, sequence: answer.sequence, ..asked };
                Some(asked.controller_answer(key, names))
            }
        };
        self.state = State::Proven { transaction, hash, response };
        Ok(Outcome::Open)
    }

    /// The next message for the host (Authentication Receive), of at most `len_max` bytes. `None` while a power is computed,
    /// and when the host has no room for the message, which stays.
    pub fn give(&mut self, now_ns: u64, len_max: usize) -> Option<Given> {
        let message = match &self.state {
            State::Public(_) | State::Shared(..) => return None,
            State::Offered(exchange) => ChallengeMessage {
                transaction: exchange.transaction,
                hash: exchange.hash,
                group: exchange.group,
                sequence: exchange.sequence,
                challenge: &exchange.challenge,
                public: &exchange.public,
            }
            .encode(),
            State::Proven { transaction, hash, response } => {
                let response = response.as_ref().map(Digest::as_slice);
                Success1 { transaction: *transaction, response }.encode(*hash)
            }
            State::Failing { transaction, failure } => message::failure1(*transaction, *failure),
            State::Resting => message::failure1(0, Failure::IncorrectMessage),
            State::Challenged(Exchange { transaction, .. }) | State::Answered { transaction } => {
                message::failure1(*transaction, Failure::IncorrectMessage)
            }
        };
        if message.len() > len_max {
            return None;
        }
        self.moved_ns = now_ns;
        let (state, outcome) = match core::mem::replace(&mut self.state, State::Resting) {
            State::Offered(exchange) => (State::Challenged(exchange), Outcome::Open),
            State::Proven { transaction, response: Some(_), .. } => (State::Answered { transaction }, Outcome::Open),
            State::Proven { response: None, .. } => (State::Resting, Outcome::Authenticated),
            State::Failing { failure, .. } => (State::Resting, Outcome::Failed(failure)),
            _ => (State::Resting, Outcome::Failed(Failure::IncorrectMessage)),
        };
        self.state = state;
        Some(Given { message, outcome })
    }
}

impl core::fmt::Debug for ControllerSide {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ControllerSide").field("is_busy", &self.is_busy()).finish_non_exhaustive()
    }
}
