//! The host's side of DH-HMAC-CHAP on one queue.
//!
//! ```text
//! begin ---> Negotiate sent ---> Challenge ---> (public value) ---> (shared secret) ---> Reply sent
//!            ---> Success1 ---> done, or after the controller's proof: Success2 sent, done
//! ```
//! Every message of the controller that is wrong, or says AUTH_Failure1, ends it ([`Refused`]); where the controller is to be
//! told, with the AUTH_Failure2 to send.

use std::sync::Arc;
use zeroize::Zeroizing;

use super::Random;
use super::group::{DhGroup, Exponentiation};
use super::hash::{Digest, Hash};
use super::message::{self, ChallengeMessage, Failure, Header, Negotiate, Offer, Reply, Success1};
use super::response::{Challenge, Names};
use super::secret::Secret;

/// What a host authenticates with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKeys {
    /// Its own key.
    pub host: Arc<Secret>,
    /// The key with which the controller has to prove itself, if it has to.
    pub controller: Option<Arc<Secret>>,
    /// Hashes that it agrees to.
    pub hashes: Vec<Hash>,
    /// Groups that it agrees to.
    pub groups: Vec<DhGroup>,
}

impl HostKeys {
    /// A key, and everything that there is to use it with.
    pub fn new(host: Arc<Secret>) -> HostKeys {
        HostKeys { host, controller: None, hashes: Hash::ALL.to_vec(), groups: DhGroup::ALL.to_vec() }
    }
}

/// What a host does next.
#[derive(Debug)]
pub enum HostStep {
    /// Carry this out and bring it to [`HostSide::computed`].
    Compute(Exponentiation),
    /// Send this and receive the answer.
    Send(Vec<u8>),
    /// Nothing: both have proved what they had to.
    Done,
    /// Send this last message; then both have proved what they had to.
    Last(Vec<u8>),
}

/// An authentication that failed.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub failure: Failure,
    /// Whether the controller said so, rather than this host.
    pub by_controller: bool,
    /// What to tell the controller, if it waits for something.
    pub message: Option<Vec<u8>>,
}

struct Exchange {
    hash: Hash,
    group: DhGroup,
    sequence: u32,
    challenge: Vec<u8>,
    theirs: Vec<u8>,
    private: Zeroizing<Vec<u8>>,
    public: Vec<u8>,
}

enum State {
    Negotiated,
    Public(Exchange),
    Shared(Exchange),
    Replied { hash: Hash, expected: Option<Digest> },
    Over,
}

/// See the module.
pub struct HostSide {
    keys: HostKeys,
    transaction: u16,
    state: State,
}

impl HostSide {
    /// Begins; returns the first message to send.
    pub fn begin(keys: HostKeys, transaction: u16) -> (HostSide, Vec<u8>) {
        let offer = Offer { hashes: keys.hashes.clone(), groups: keys.groups.clone() };
        let message = Negotiate { transaction, secure_channel: 0, offer: Some(offer) }.encode();
        (HostSide { keys, transaction, state: State::Negotiated }, message)
    }

    /// Takes a message of the controller.
    ///
    /// # Panics
    /// If a power is to be computed first, or all is over.
    pub fn take(&mut self, message: &[u8], names: &Names<'_>, random: Random<'_>) -> Result<HostStep, Refused> {
        let header = Header::of(message);
        if header.is_some_and(|header| header.is(message::TYPE_COMMON, message::ID_FAILURE1)) {
            self.state = State::Over;
            return Err(Refused { failure: message::explanation(message), by_controller: true, message: None });
        }
        let is_ours = header.is_some_and(|header| header.transaction.get() == self.transaction);
        let is = |id| header.is_some_and(|header| header.is(message::TYPE_DHCHAP, id));
        let step = match core::mem::replace(&mut self.state, State::Over) {
            State::Negotiated if is(message::ID_CHALLENGE) && is_ours => self.challenged(message, names, random),
            State::Replied { hash, expected } if is(message::ID_SUCCESS1) && is_ours => {
                self.conclude(message, hash, expected)
            }
            State::Public(_) | State::Shared(_) | State::Over => panic!("no message is expected"),
            _ if is_ours => Err(Failure::IncorrectMessage),
            _ => Err(Failure::IncorrectPayload),
        };
        step.map_err(|failure| self.refuse(failure))
    }

    fn refuse(&mut self, failure: Failure) -> Refused {
        self.state = State::Over;
        let message = Some(message::failure2(self.transaction, failure));
        Refused { failure, by_controller: false, message }
    }

    fn challenged(&mut self, message: &[u8], names: &Names<'_>, random: Random<'_>) -> Result<HostStep, Failure> {
        let asked = ChallengeMessage::parse(message)?;
        if !self.keys.hashes.contains(&asked.hash) {
            return Err(Failure::HashNotUsable);
        }
        if !self.keys.groups.contains(&asked.group) {
            return Err(Failure::GroupNotUsable);
        }
        let exchange = Exchange {
            hash: asked.hash,
            group: asked.group,
            sequence: asked.sequence,
            challenge: asked.challenge.to_vec(),
            theirs: asked.public.to_vec(),
            private: asked.group.private(random),
            public: Vec::new(),
        };
        if exchange.group.is_null() {
            return Ok(self.reply(&exchange, None, names, random));
        }
        let power = exchange.group.public(&exchange.private);
        self.state = State::Public(exchange);
        Ok(HostStep::Compute(power))
    }

    /// Goes on with the power that was asked for.
    ///
    /// # Panics
    /// If none was.
    pub fn computed(&mut self, power: &[u8], names: &Names<'_>, random: Random<'_>) -> Result<HostStep, Refused> {
        match core::mem::replace(&mut self.state, State::Over) {
            State::Public(mut exchange) => {
                exchange.public = power.to_vec();
                let Some(shared) = exchange.group.shared(&exchange.private, &exchange.theirs) else {
                    return Err(self.refuse(Failure::IncorrectPayload));
                };
                self.state = State::Shared(exchange);
                Ok(HostStep::Compute(shared))
            }
            State::Shared(exchange) => Ok(self.reply(&exchange, Some(power), names, random)),
            _ => panic!("a power is brought to who asked for one"),
        }
    }

    fn reply(&mut self, exchange: &Exchange, shared: Option<&[u8]>, names: &Names<'_>, random: Random<'_>) -> HostStep {
        let Exchange { hash, sequence, .. } = *exchange;
        let transaction = self.transaction;
        let asked = Challenge { hash, value: &exchange.challenge, sequence, transaction, shared };
        let response = asked.host_answer(&self.keys.host, names);
        let mut ours = vec![0; hash.digest_len()];
        let mut number = [0; 4];
        let mut sequence = 0;
        let expected = self.keys.controller.as_ref().map(|key| {
            random(&mut ours);
            random(&mut number);
            // Zero says that nothing is asked (Base 2.0, section 8.13.5.4).
            sequence = u32::from_le_bytes(number).max(1);
            Challenge { value: &ours, sequence, ..asked }.controller_answer(key, names)
        });
        let reply = Reply {
            transaction,
            sequence,
            response: response.as_slice(),
            challenge: expected.is_some().then_some(ours.as_slice()),
            public: &exchange.public,
        };
        let message = reply.encode();
        self.state = State::Replied { hash, expected };
        HostStep::Send(message)
    }

    fn conclude(&mut self, message: &[u8], hash: Hash, expected: Option<Digest>) -> Result<HostStep, Failure> {
        let success = Success1::parse(message, hash)?;
        match (expected, success.response) {
            (None, _) => Ok(HostStep::Done),
            (Some(expected), Some(response)) if expected.matches(response) => {
                Ok(HostStep::Last(message::success2(self.transaction)))
            }
            (Some(_), _) => Err(Failure::Failed),
        }
    }
}

impl core::fmt::Debug for HostSide {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HostSide").field("transaction", &self.transaction).finish_non_exhaustive()
    }
}
