//! From an address to a connected queue: TCP, ICReq and ICResp, Fabrics Connect.

use crate::tls::stream::Stream;
use crate::tls::{Form, TlsKey};
use reactor::{Buf, Errno, Reactor, SgList, TcpStream};
use std::rc::Rc;
use zerocopy::IntoBytes;

use crate::host::command;
use crate::spec::Status;
use crate::spec::fabrics::InvalidParameter;
use crate::tcp::negotiate::{TransportOptions, conclude};
use crate::tcp::{Decoder, Encoder, Fault, Header, IcResp, Item, Side};

use super::authenticate::{AuthenticationError, authenticate};
use super::command::Direction;
use super::error::{CommandError, ConnectError};
use super::lane::Lane;
use super::link::{Broken, Link, LinkLimits};
use super::options::Options;
use super::request::Raw;

/// Opens a connection for a queue of `entries` entries and agrees on its parameters.
pub(super) async fn open_link(reactor: &Rc<Reactor>, options: &Options, entries: u16) -> Result<Link, ConnectError> {
    let opening = async {
        let stream = TcpStream::connect(reactor, options.address).await;
        let stream =
            stream.map_err(|errno| ConnectError::Tcp { address: options.address, reason: Broken::Os(errno) })?;
        let stream = match &options.tls {
            None => Stream::Plain(stream),
            Some(psk) => {
                let key = TlsKey::new(psk, Form::Standard, &options.host.nqn, &options.subsystem);
                let secured = Stream::connect(stream, key).await;
                secured.map_err(|failure| ConnectError::Tls { address: options.address, failure })?
            }
        };
        negotiate(stream, options, entries).await
    };
    let timeout =
        ConnectError::Timeout { address: options.address, timeout_ms: options.connect_timeout_ns / 1_000_000 };
    reactor.timeout(options.connect_timeout_ns, opening).await.unwrap_or(Err(timeout))
}

async fn negotiate(stream: Stream, options: &Options, entries: u16) -> Result<Link, ConnectError> {
    let failed = |reason| ConnectError::Negotiation { address: options.address, reason };
    let ours = TransportOptions {
        header_digest: options.header_digest,
        data_digest: options.data_digest,
        r2t_max: u64::from(options.r2ts_max),
        ..TransportOptions::host()
    };
    stream.send_all(&ours.request().encode()).await.map_err(|errno| failed(Broken::Os(errno)))?;
    let mut decoder = Decoder::new(Side::Host);
    let response = receive_response(&stream, &mut decoder).await.map_err(failed)?;
    let agreed = conclude(&ours, &response).map_err(|fault| failed(Broken::Fault(fault)))?;
    if (response.header_digest, response.data_digest) != (options.header_digest, options.data_digest) {
        return Err(ConnectError::Digests { address: options.address });
    }
    decoder.establish(agreed.receive);
    let encoder = Encoder::new(agreed.send);
    let limits = LinkLimits {
        depth: usize::from(entries - 1),
        maxh2cdata: agreed.maxh2cdata,
        r2ts_max: u32::from(options.r2ts_max),
    };
    Ok(Link::new(stream, encoder, decoder, limits))
}

async fn receive_response(stream: &Stream, decoder: &mut Decoder) -> Result<IcResp, Broken> {
    let mut bytes = [0; 256];
    loop {
        let received = match stream.recv(&mut bytes).await {
            Ok(0) => return Err(Broken::Closed),
            Ok(received) => received,
            Err(errno) => return Err(Broken::Os(errno)),
        };
        let mut input = &bytes[..received];
        let item = decoder.next(&mut input).map_err(Broken::Fault)?;
        match item {
            None if input.is_empty() => {}
            Some(Item::Whole { header: Header::IcResp(response), .. }) if input.is_empty() => return Ok(response),
            Some(
                Item::Whole { header: Header::TermReq(term), .. } | Item::Begin { header: Header::TermReq(term), .. },
            ) => {
                return Err(Broken::Terminated { fes: term.fes, fei: term.fei });
            }
            // A controller says nothing more before the first command.
            _ => return Err(Broken::Fault(Fault::Sequence)),
        }
    }
}

/// Sends Fabrics Connect for queue `qid` on a lane that has a connection, and authenticates it if need be. Returns the controller's identifier.
pub(super) async fn connect_queue(
    reactor: &Rc<Reactor>,
    lane: &Lane,
    options: &Options,
    qid: u16,
    entries: u16,
    controller: u16,
) -> Result<u16, ConnectError> {
    let failed = |error, invalid| ConnectError::Connect {
        address: options.address,
        subsystem: options.subsystem.clone(),
        queue: qid,
        error,
        invalid,
    };
    let controller = (qid > 0).then_some(controller);
    let data = command::connect_data(*options.host.id.as_bytes(), &options.host.nqn, &options.subsystem, controller);
    // Not of the pool: operations that wait for this queue may have all of it.
    let buf = Buf::from_vec(data.as_bytes().to_vec());
    let raw = Raw {
        sqe: command::connect(qid, entries, options.keep_alive_ms),
        direction: Direction::InCapsule,
        unlimited: false,
    };
    let connecting = lane.command(raw, SgList::from_iter([buf]));
    let answer = match reactor.timeout(options.connect_timeout_ns, connecting).await {
        Some((answer, _)) => answer,
        None => {
            lane.disconnect(Broken::Timeout);
            Err(Broken::Timeout)
        }
    };
    let cqe = answer.map_err(|broken| failed(CommandError::Lost(broken), None))?;
    match cqe.status() {
        status if status.is_success() => {
            let limit_ns = options.connect_timeout_ns.max(options.admin_timeout_ns);
            let authenticating = authenticate(reactor, lane, options, &cqe);
            let outcome = reactor.timeout(limit_ns, authenticating).await;
            let lost = Err(AuthenticationError::Command(CommandError::Lost(Broken::Timeout)));
            if let Err(error) = outcome.unwrap_or(lost) {
                lane.disconnect(Broken::Local);
                let (address, subsystem) = (options.address, options.subsystem.clone());
                return Err(ConnectError::Authentication { address, subsystem, queue: qid, error });
            }
            Ok(cqe.dw0() as u16)
        }
        status => {
            lane.disconnect(Broken::Local);
            let invalid = status.kind() == Status::CONNECT_INVALID_PARAMETERS;
            Err(failed(CommandError::Status(status), invalid.then(|| InvalidParameter::of(&cqe))))
        }
    }
}

impl From<Errno> for Broken {
    fn from(errno: Errno) -> Self {
        Broken::Os(errno)
    }
}
