//! Authentication of a queue that was just connected, from the host's side.

use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;
use thiserror::Error;

use crate::auth::message::MESSAGE_LEN_MAX;
use crate::auth::{Failure, HostKeys, HostSide, HostStep, Names, Refused};
use crate::power;
use crate::spec::Cqe;
use crate::spec::fabrics::{AuthenticationCommand, CONNECT_AUTHENTICATION_REQUIRED, CONNECT_SECURE_CHANNEL_REQUIRED};

use super::command::Direction;
use super::error::CommandError;
use super::lane::Lane;
use super::options::Options;
use super::request::Raw;

/// Why host and controller do not trust each other.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AuthenticationError {
    /// The controller asks for a key, and there is none.
    #[error("the target wants this host to authenticate itself, and it has no key; give it one (dhchap_key)")]
    NoKey,
    /// The controller asks for an encrypted connection.
    #[error("the target wants an encrypted connection made from the authentication, which this host does not support")]
    SecureChannel,
    /// The controller does not accept this host.
    #[error("the target refuses: {0}; check that dhchap_key is the key that the target has for this host's NQN")]
    Refused(Failure),
    /// This host does not accept the controller.
    #[error("this host refuses: {0}; check that dhchap_ctrl_key is the target's, and who answers at that address")]
    Distrusted(Failure),
    /// A message could not be exchanged.
    #[error("{0}")]
    Command(CommandError),
}

impl AuthenticationError {
    /// Whether the same attempt may succeed later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            AuthenticationError::NoKey | AuthenticationError::SecureChannel => false,
            AuthenticationError::Command(CommandError::Status(status)) => !status.do_not_retry(),
            // A key that is being changed on both sides is right again in a while.
            _ => true,
        }
    }
}

/// Does what the answer to Connect asks for. A host that wants the controller to prove itself does not leave it to the
/// controller whether there is a proof.
pub(super) async fn authenticate(
    reactor: &Rc<Reactor>,
    lane: &Lane,
    options: &Options,
    connected: &Cqe,
) -> Result<(), AuthenticationError> {
    let asks = |bit: u32| connected.dw0() & bit != 0;
    if asks(CONNECT_SECURE_CHANNEL_REQUIRED) {
        return Err(AuthenticationError::SecureChannel);
    }
    match &options.keys {
        Some(keys) if asks(CONNECT_AUTHENTICATION_REQUIRED) || keys.controller.is_some() => {
            converse(reactor, lane, options, keys).await
        }
        None if asks(CONNECT_AUTHENTICATION_REQUIRED) => Err(AuthenticationError::NoKey),
        _ => Ok(()),
    }
}

async fn converse(
    reactor: &Rc<Reactor>,
    lane: &Lane,
    options: &Options,
    keys: &HostKeys,
) -> Result<(), AuthenticationError> {
    let names = Names { host: &options.host.nqn, subsystem: &options.subsystem };
    let mut random = |bytes: &mut [u8]| reactor.driver().fill_secret(bytes);
    let (mut side, first) = HostSide::begin(keys.clone(), reactor.driver().random_u64() as u16);
    send(lane, &first).await?;
    loop {
        let mut step = side.take(&receive(lane).await?, &names, &mut random);
        while let Ok(HostStep::Compute(exponentiation)) = step {
            let power = power::compute(reactor, exponentiation, || true).await.expect("it is wanted");
            step = side.computed(&power, &names, &mut random);
        }
        match step {
            Ok(HostStep::Send(message)) => send(lane, &message).await?,
            Ok(HostStep::Last(message)) => return send(lane, &message).await,
            Ok(HostStep::Done) => return Ok(()),
            Ok(HostStep::Compute(_)) => unreachable!("computed above"),
            Err(Refused { failure, by_controller: true, .. }) => return Err(AuthenticationError::Refused(failure)),
            Err(Refused { failure, message, .. }) => {
                // The connection ends whether the controller takes this or not.
                if let Some(message) = message {
                    let _ = send(lane, &message).await;
                }
                return Err(AuthenticationError::Distrusted(failure));
            }
        }
    }
}

async fn send(lane: &Lane, message: &[u8]) -> Result<(), AuthenticationError> {
    // Not of the pool, as all that a connection is set up with.
    let buf = Buf::from_vec(message.to_vec());
    let sqe = AuthenticationCommand::send(0, message.len() as u32).to_sqe();
    let raw = Raw { sqe, direction: Direction::InCapsule, unlimited: false };
    submit(lane, raw, SgList::from_iter([buf])).await.map(|_| ())
}

async fn receive(lane: &Lane) -> Result<Vec<u8>, AuthenticationError> {
    let buf = Buf::from_vec(vec![0; MESSAGE_LEN_MAX]);
    let sqe = AuthenticationCommand::receive(0, MESSAGE_LEN_MAX as u32).to_sqe();
    let raw = Raw { sqe, direction: Direction::ToHost, unlimited: false };
    let bufs = submit(lane, raw, SgList::from_iter([buf])).await?;
    Ok(bufs[0].as_slice().to_vec())
}

async fn submit(lane: &Lane, raw: Raw, bufs: SgList) -> Result<SgList, AuthenticationError> {
    let (answer, bufs) = lane.command(raw, bufs).await;
    match answer.map_err(CommandError::Lost).map(|cqe| cqe.status()) {
        Ok(status) if status.is_success() => Ok(bufs),
        Ok(status) => Err(AuthenticationError::Command(CommandError::Status(status))),
        Err(error) => Err(AuthenticationError::Command(error)),
    }
}
