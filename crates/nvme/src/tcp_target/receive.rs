//! Receiving: bytes from the socket through the decoder to commands and to the buffers that wait for data.
//!
//! All connections of a reactor receive into one buffer, so an idle connection holds no memory. Payload remainders of some
//! size go straight from the socket into their destination. Where hosts share the reactor, what is more than a host's part
//! of the turn is kept for the next.

use super::connection::{Connection, End, Role};
use super::execute::CapsuleData;
use super::share::{self, HostShare};
use crate::spec::Sqe;
use crate::tcp::{DataHeader, Decoder, Encoder, Fault, Header, IcReq, Item, Side, TransportOptions, negotiate};
use base::Errno;
use reactor::Buf;
use std::net::IpAddr;
use std::rc::Rc;

/// Payload remainders of at least this size are received straight into their buffer.
const DIRECT_MIN: usize = 4096;
/// Receives in a row before other tasks get their turn.
const RECEIVES_PER_WAKE: usize = 4;

/// The PDU whose payload is arriving in pieces.
enum Incoming {
    None,
    /// A command capsule: the payload gathers here.
    Capsule {
        sqe: Sqe,
        buf: Buf,
    },
    /// Data for a pending command, from this offset of its buffer on.
    Data {
        cid: u16,
        offset: usize,
        complete: bool,
    },
    /// The payload of a PDU that needs none (a termination's copy of our header).
    Ignored,
}

/// How a receive has ended.
enum Received {
    /// The socket has nothing more.
    Drained,
    /// The socket may have more.
    More,
    /// The host has had its part of this turn; something may be kept.
    Enough,
}

/// Received bytes whose turn has not come.
struct Kept {
    buf: Buf,
    at: usize,
}

/// What may be done for a connection in this turn.
struct Part {
    share: Rc<HostShare>,
    units: u32,
}

impl Part {
    fn is_over(&self) -> bool {
        self.units == 0 || self.share.is_full()
    }

    /// Takes away what the last bytes were worth.
    fn spend(&mut self, connection: &Connection, bytes: usize) {
        let units = connection.spent.take() + (bytes >> share::UNIT_SHIFT) as u32;
        self.units = self.units.saturating_sub(units);
    }
}

/// The receiving half of a connection.
pub(super) struct Receiver {
    connection: Rc<Connection>,
    peer: IpAddr,
    decoder: Decoder,
    incoming: Incoming,
    kept: Option<Kept>,
    /// The in-capsule limit of the queue was set.
    limit_known: bool,
}

impl Receiver {
    pub(super) fn new(connection: Rc<Connection>, peer: IpAddr) -> Receiver {
        let (decoder, incoming) = (Decoder::new(Side::Target), Incoming::None);
        Receiver { connection, peer, decoder, incoming, kept: None, limit_known: false }
    }

    /// Receives until the connection ends; says why.
    pub(super) async fn run(mut self) -> End {
        loop {
            if self.kept.is_none()
                && let Some(end) = self.connection.readable_or_ended().await
            {
                return end;
            }
            for round in 1.. {
                if self.connection.is_paused() {
                    self.connection.pause_over().await;
                }
                if self.connection.is_congested() {
                    self.connection.uncongested().await;
                }
                let turn = self.connection.greeting(self.peer).await;
                if let Some(end) = self.connection.ended.get() {
                    return end;
                }
                let received = self.receive();
                drop(turn);
                match received {
                    Ok(Received::More) if round < RECEIVES_PER_WAKE => {}
                    Ok(Received::More) => {
                        self.connection.reactor.yield_now().await;
                        break;
                    }
                    Ok(Received::Enough) => {
                        self.connection.its_turn().await;
                        break;
                    }
                    Ok(Received::Drained) => break,
                    Err(End::Fault(fault)) => {
                        self.connection.send_termination(fault, self.decoder.offending_header());
                        return if self.is_hello_of_tls() { End::HelloOfTls } else { End::Fault(fault) };
                    }
                    Err(End::Overrun) => {
                        // The transport has no better word for it.
                        self.connection.send_termination(Fault::Sequence, &[]);
                        return End::Overrun;
                    }
                    Err(end) => return end,
                }
            }
        }
    }

    /// One receive and what follows from it.
    fn receive(&mut self) -> Result<Received, End> {
        if !self.limit_known && self.connection.role.get() == Role::Io {
            self.limit_known = true;
            self.decoder.set_capsule_data_max(self.connection.local.config.model.capsule_data_max);
        }
        let mut part = self.part();
        if part.as_ref().is_some_and(Part::is_over) {
            return Ok(Received::Enough);
        }
        if let Some(Kept { mut buf, at }) = self.kept.take() {
            let end = buf.len();
            let at = self.process(&mut buf, at, end, &mut part)?;
            if at < end {
                self.kept = Some(Kept { buf, at });
            }
            return Ok(Received::Enough);
        }
        let mut received = self.connection.local.take_receive_buf();
        let room = if part.is_some() { share::RECEIVE_BYTES.min(received.len()) } else { received.len() };
        let outcome = self.receive_into(&mut received, room, part.is_some());
        if outcome.is_ok() {
            self.heard();
        }
        let processed = match outcome {
            Ok(end) => self.process_and_keep(&mut received, end, &mut part).map(|is_all| match is_all {
                true if end < room => Received::Drained,
                true if part.is_none() => Received::More,
                _ => Received::Enough,
            }),
            Err(Errno::EAGAIN) => Ok(Received::Drained),
            Err(Errno::ENOTCONN) => Err(End::Closed),
            Err(errno) => Err(End::Network(errno)),
        };
        self.connection.local.give_receive_buf(received);
        processed
    }

    /// Whether the connection has begun with a record of TLS.
    fn is_hello_of_tls(&self) -> bool {
        let is_first = self.connection.encoder.get().is_none() && !self.connection.stream.is_encrypted();
        is_first && self.decoder.offending_header().starts_with(&[0x16, 3])
    }

    /// What may be done in this turn; none where this host is alone, and for what is not I/O.
    #[inline]
    fn part(&self) -> Option<Part> {
        let connection = &self.connection;
        let share = connection.share.get().filter(|_| connection.role.get() == Role::Io)?;
        if !connection.local.shares.are_needed(connection.reactor.now_ns()) {
            return None;
        }
        connection.spent.set(0);
        let units = share.take_part(connection.id, connection.reactor.turns()).unwrap_or(0);
        Some(Part { share: share.clone(), units })
    }

    /// Something has come from the host.
    #[inline]
    fn heard(&self) {
        let connection = &self.connection;
        // Whoever has not proven who it is does not keep the host alive that it may not be.
        if connection.role.get() != Role::Unproven {
            connection.note_activity();
            if let Some(share) = connection.share.get() {
                connection.local.shares.heard(share, connection.reactor.now_ns());
            }
        }
    }

    /// Carries out what has been received, up to the end of this turn's part, and keeps the rest. Whether that is all.
    fn process_and_keep(&mut self, received: &mut Buf, end: usize, part: &mut Option<Part>) -> Result<bool, End> {
        let at = self.process(received, 0, end, part)?;
        if at == end {
            return Ok(true);
        }
        let rest = &received.as_slice()[at..end];
        let buf = match self.connection.reactor.pool().try_alloc(rest.len()) {
            Some(mut buf) => {
                buf.as_mut_slice().copy_from_slice(rest);
                buf
            }
            None => Buf::from_vec(rest.to_vec()),
        };
        self.kept = Some(Kept { buf, at: 0 });
        Ok(false)
    }

    /// Receives into the rest of the arriving payload, if that is large, and into the first `room` bytes of `received`; returns
    /// the bytes there. `in_part` bounds the first as well.
    fn receive_into(&mut self, received: &mut Buf, room: usize, in_part: bool) -> Result<usize, Errno> {
        let arriving = self.decoder.payload_arriving() as usize;
        let direct = if in_part { arriving.min(share::DIRECT_BYTES) } else { arriving };
        let received = &mut received.as_mut_slice()[..room];
        let connection = self.connection.clone();
        if direct < DIRECT_MIN {
            return connection.stream.try_recv(received).and_then(not_closed);
        }
        let mut pending = connection.pending.borrow_mut();
        let target: &mut [u8] = match &mut self.incoming {
            Incoming::Capsule { buf, .. } => {
                let start = buf.len() - arriving;
                &mut buf.as_mut_slice()[start..start + direct]
            }
            Incoming::Data { cid, offset, .. } => match pending.get_mut(*cid) {
                Some(command) => &mut command.buf.as_mut_slice()[*offset..*offset + direct],
                None => return Err(Errno::ECONNRESET),
            },
            _ => {
                return connection.stream.try_recv(received).and_then(not_closed);
            }
        };
        let bytes = connection.stream.try_recv_vectored(&mut [&mut *target, received])?;
        not_closed(bytes)?;
        let placed = bytes.min(target.len());
        let mut piece: &[u8] = &target[..placed];
        let item = self.decoder.next(&mut piece).map_err(|_| Errno::ECONNRESET)?;
        debug_assert!(matches!(item, Some(Item::Data { .. })) && piece.is_empty());
        if let Incoming::Data { offset, .. } = &mut self.incoming {
            *offset += placed;
        }
        connection.spent.set(connection.spent.get() + (placed >> share::UNIT_SHIFT) as u32);
        Ok(bytes - placed)
    }

    /// Carries out the received bytes in `at..end`; where it has stopped, which is before the end when the turn's part is over.
    fn process(
        &mut self,
        received: &mut Buf,
        mut at: usize,
        end: usize,
        part: &mut Option<Part>,
    ) -> Result<usize, End> {
        loop {
            if at < end && (self.connection.is_paused() || part.as_ref().is_some_and(Part::is_over)) {
                return Ok(at);
            }
            let bytes = &received.as_slice()[at..end];
            let mut input = bytes;
            let item = self.decoder.next(&mut input).map_err(End::Fault)?;
            // Payload lies within `bytes`; as a range it outlives that borrow.
            let (start, base) = (at, bytes.as_ptr() as usize);
            let range_of = |data: &[u8]| {
                let from = if data.is_empty() { start } else { start + (data.as_ptr() as usize - base) };
                from..from + data.len()
            };
            at += bytes.len() - input.len();
            #[cfg(feature = "fuzzing")]
            if matches!(item, Some(Item::Whole { .. } | Item::End { .. })) {
                crate::fuzz::count_pdu();
            }
            match &item {
                None => return Ok(end),
                Some(Item::Whole { header, data, digest_ok }) => {
                    let range = range_of(data);
                    self.whole(header, received, range, *digest_ok)?;
                }
                Some(Item::Begin { header, data_len }) => self.begin(header, *data_len)?,
                Some(Item::Data { offset, bytes }) => self.data(*offset, bytes)?,
                Some(Item::End { digest_ok }) => self.end_of_pdu(*digest_ok)?,
            }
            if let Some(end) = self.connection.ended.get() {
                return Err(end);
            }
            if let Some(part) = part {
                part.spend(&self.connection, at - start);
            }
        }
    }

    #[inline]
    fn whole(
        &mut self,
        header: &Header,
        received: &mut Buf,
        range: std::ops::Range<usize>,
        digest_ok: bool,
    ) -> Result<(), End> {
        match header {
            Header::CapsuleCmd(sqe) => {
                self.command(sqe, CapsuleData::Received(received, range), digest_ok);
                Ok(())
            }
            Header::H2cData(header) => {
                let (cid, offset, complete) = self.accept(header)?;
                {
                    let mut pending = self.connection.pending.borrow_mut();
                    let command = pending.get_mut(cid).ok_or(End::Fault(Fault::DataOutOfRange))?;
                    command.digest_ok &= digest_ok;
                    command.buf.as_mut_slice()[offset..offset + range.len()]
                        .copy_from_slice(&received.as_slice()[range]);
                }
                if complete {
                    self.connection.data_complete(cid);
                }
                Ok(())
            }
            Header::IcReq(request) => self.negotiate(request),
            // The host ends the connection; no answer is allowed.
            Header::TermReq(_) => Err(End::Closed),
            _ => Err(End::Fault(Fault::Sequence)),
        }
    }

    fn begin(&mut self, header: &Header, data_len: u32) -> Result<(), End> {
        self.incoming = match header {
            // At most the in-capsule limit, one per connection: heap memory is bounded and cheap enough when the pool is dry.
            Header::CapsuleCmd(sqe) => {
                let len = data_len as usize;
                let buf = self.connection.reactor.pool().try_alloc(len);
                Incoming::Capsule { sqe: *sqe, buf: buf.unwrap_or_else(|| Buf::from_vec(vec![0; len])) }
            }
            Header::H2cData(header) => {
                let (cid, offset, complete) = self.accept(header)?;
                Incoming::Data { cid, offset, complete }
            }
            Header::TermReq(_) => Incoming::Ignored,
            _ => return Err(End::Fault(Fault::Sequence)),
        };
        Ok(())
    }

    fn data(&mut self, at: u32, bytes: &[u8]) -> Result<(), End> {
        match &mut self.incoming {
            Incoming::Capsule { buf, .. } => {
                buf.as_mut_slice()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            }
            Incoming::Data { cid, offset, .. } => {
                let mut pending = self.connection.pending.borrow_mut();
                let command = pending.get_mut(*cid).ok_or(End::Fault(Fault::DataOutOfRange))?;
                command.buf.as_mut_slice()[*offset..*offset + bytes.len()].copy_from_slice(bytes);
                *offset += bytes.len();
            }
            _ => {}
        }
        Ok(())
    }

    fn end_of_pdu(&mut self, digest_ok: bool) -> Result<(), End> {
        match std::mem::replace(&mut self.incoming, Incoming::None) {
            Incoming::Capsule { sqe, buf } => self.command(&sqe, CapsuleData::Gathered(buf), digest_ok),
            Incoming::Data { cid, complete, .. } => {
                if let Some(command) = self.connection.pending.borrow_mut().get_mut(cid) {
                    command.digest_ok &= digest_ok;
                }
                if complete {
                    self.connection.data_complete(cid);
                }
            }
            Incoming::Ignored => return Err(End::Closed),
            Incoming::None => {}
        }
        Ok(())
    }

    fn accept(&mut self, header: &DataHeader) -> Result<(u16, usize, bool), End> {
        let accepted = self.connection.r2ts.borrow_mut().accept(header).map_err(End::Fault)?;
        Ok((accepted.cid, accepted.offset as usize, accepted.complete))
    }

    #[inline]
    fn command(&mut self, sqe: &Sqe, data: CapsuleData<'_>, digest_ok: bool) {
        match self.connection.role.get() {
            Role::Io => self.connection.io_command(sqe, data, digest_ok),
            Role::Admin => self.connection.admin_command(sqe, data, digest_ok),
            Role::Unproven => self.connection.unproven_command(sqe, data, digest_ok),
            Role::None => self.connection.first_command(sqe, data, digest_ok),
        }
    }

    /// Answers the connection request (TCP Transport 1.0, section 3.1).
    fn negotiate(&mut self, request: &IcReq) -> Result<(), End> {
        let config = &self.connection.local.config;
        let options = TransportOptions {
            header_digest: config.allow_digests,
            data_digest: config.allow_digests,
            data_max: config.model.transfer_len_max,
            ..TransportOptions::target()
        };
        let (response, agreed) = negotiate::accept(&options, request);
        self.connection.send_header(|out| {
            out[..128].copy_from_slice(&response.encode());
            128
        });
        self.connection.encoder.set(Some(Encoder::new(agreed.send)));
        self.decoder.establish(agreed.receive);
        Ok(())
    }
}

/// A receive of nothing is the end of the stream.
fn not_closed(bytes: usize) -> Result<usize, Errno> {
    if bytes == 0 { Err(Errno::ENOTCONN) } else { Ok(bytes) }
}
