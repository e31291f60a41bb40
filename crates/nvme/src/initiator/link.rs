//! One established connection: commands go out as capsules, answers and data come in.
//!
//! Invariants: a command's buffers are touched only between its issue and its end, by C2HData that names it and lies within
//! it; whatever breaks the transport's rules ends the connection and is told to the controller once. Received data is
//! copied once from a receive buffer that all connections of a thread share, and larger payloads not at all: they are
//! received where they belong.

use crate::tls::stream::Stream;
use reactor::{Buf, Errno, Slice};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;
use thiserror::Error;

use crate::spec::{Cqe, Sqe, Status};
use crate::tcp::fault::field;
use crate::tcp::output::{Output, SEND_BYTES_MAX};
use crate::tcp::pdu::encode_term;
use crate::tcp::{DataHeader, Decoder, Encoder, Fault, Header, Item, R2t, Side};
use base::crc::Crc32c;

use super::command::{Commands, Direction};
use super::plan::Step;
use super::request::Requests;

/// Bytes taken from a socket at once.
pub(super) const RECEIVE_BYTES: usize = 256 << 10;
/// Reads of at least this many bytes are received straight into their buffers.
const DIRECT_BYTES_MIN: u32 = 32 << 10;
/// Bytes taken at once while such reads are under way: enough for the headers, little of the data.
const PROBE_BYTES: usize = 4 << 10;
/// The field of a response capsule that names the command.
const RESPONSE_CID_OFFSET: u32 = 8 + 12;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// The operating system reported this.
    #[error("{0}")]
    Os(Errno),
    /// The controller closed the connection.
    #[error("closed by the controller")]
    Closed,
    /// The controller broke the transport's rules.
    #[error("the controller broke the rules of the transport: {0}")]
    Fault(Fault),
    /// The controller says that this host broke the transport's rules.
    #[error("terminated by the controller (fatal error status {fes:#x}, information {fei:#x})")]
    Terminated {
        /// Fatal error status.
        fes: u16,
        /// Fatal error information.
        fei: u32,
    },
    /// The controller did not answer in time.
    #[error("no answer in time")]
    Timeout,
    /// This end closed it.
    #[error("closed by this host")]
    Local,
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Broken::Fault(fault)
    }
}

/// What both ends agreed on, as issuing needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkLimits {
    /// Commands under way at once.
    pub(super) depth: usize,
    /// Most data in one H2CData.
    pub(super) maxh2cdata: u32,
    /// R2Ts per command that this end announced.
    pub(super) r2ts_max: u32,
}

/// An R2T whose data has not been queued yet.
#[derive(Clone, Copy, Debug)]
struct OpenR2t {
    slot: u16,
    ttag: u16,
    offset: u32,
    left: u32,
}

/// The C2HData that is being received.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    slot: u16,
    header: DataHeader,
    /// Bytes that have arrived.
    done: u32,
}

/// Data that waits to be sent: a part of a command's buffers.
struct Region {
    slot: u16,
    offset: usize,
    len: usize,
}

/// See the module.
pub(super) struct Link {
    pub(super) stream: Rc<Stream>,
    pub(super) commands: Commands,
    pub(super) limits: LinkLimits,
    encoder: Encoder,
    decoder: Decoder,
    out: Output<Region>,
    open_r2ts: VecDeque<OpenR2t>,
    incoming: Option<Incoming>,
    large_reads: u32,
    /// Wakes the task that serves the socket.
    pub(super) waker: Option<Waker>,
    /// The socket takes no more; the task waits for it.
    pub(super) is_blocked: bool,
    /// The last receive filled its buffer: there may be more.
    pub(super) read_again: bool,
}

impl Link {
    /// A connection after the exchange of ICReq and ICResp.
    pub(super) fn new(stream: Stream, encoder: Encoder, decoder: Decoder, limits: LinkLimits) -> Link {
        Link {
            stream: Rc::new(stream),
            commands: Commands::new(limits.depth),
            limits,
            encoder,
            decoder,
            out: Output::default(),
            open_r2ts: VecDeque::new(),
            incoming: None,
            large_reads: 0,
            waker: None,
            is_blocked: false,
            read_again: false,
        }
    }

    // --- sending ----------------------------------------------------------------------------------------------------

    /// Whether a flush would send something.
    pub(super) fn has_output(&self) -> bool {
        !self.is_blocked && (self.out.bytes() > 0 || !self.open_r2ts.is_empty())
    }

    /// Queues a command of request `id`. The caller has looked for room.
    #[inline]
    pub(super) fn issue(&mut self, requests: &mut Requests, id: u32, step: &Step, now_ns: u64) -> u16 {
        let (slot, cid) = self.commands.begin(id, step.direction, (step.data_offset, step.data_len), now_ns);
        let mut sqe: Sqe = step.sqe;
        sqe.cid = cid.into();
        let in_capsule = match (step.direction, &step.range) {
            (Direction::InCapsule, Some(range)) => range.as_bytes().len() as u32,
            (Direction::InCapsule, None) => step.data_len,
            _ => 0,
        };
        let encoder = &self.encoder;
        self.out.header(|out| encoder.capsule_cmd(out, &sqe, in_capsule));
        let request = requests.get_mut(id);
        request.in_flight += 1;
        if let Some(range) = &step.range {
            self.out.copied(range.as_bytes());
            if self.encoder.data_digest() {
                self.out.copied(&base::crc32c(range.as_bytes()).to_le_bytes());
            }
        } else if in_capsule > 0 {
            self.queue_data(slot, step.data_offset, step.data_len, &request.io.bufs);
        }
        if step.direction == Direction::ToHost && step.data_len >= DIRECT_BYTES_MIN {
            self.large_reads += 1;
        }
        slot
    }

    fn queue_data(&mut self, slot: u16, offset: u32, len: u32, bufs: &[Buf]) {
        self.commands.get_mut(slot).sending += 1;
        let region = Region { slot, offset: offset as usize, len: len as usize };
        self.out.payload(region, len as usize);
        if self.encoder.data_digest() {
            let mut crc = Crc32c::new();
            for_each_piece(bufs, offset as usize, len as usize, |piece| crc.update(piece));
            self.out.copied(&crc.value().to_le_bytes());
        }
    }

    /// Queues data that the controller has asked for, as far as one send goes.
    fn queue_asked_data(&mut self, requests: &Requests) {
        while self.out.bytes() < SEND_BYTES_MAX {
            let Some(r2t) = self.open_r2ts.front_mut() else { return };
            let len = r2t.left.min(self.limits.maxh2cdata);
            let last = len == r2t.left;
            let header = DataHeader {
                cccid: self.commands.cid(r2t.slot),
                ttag: r2t.ttag,
                offset: r2t.offset,
                len,
                last,
                success: false,
            };
            let (slot, offset) = (r2t.slot, r2t.offset);
            r2t.offset += len;
            r2t.left -= len;
            if last {
                self.open_r2ts.pop_front();
                self.commands.get_mut(slot).r2ts_open -= 1;
            }
            let encoder = &self.encoder;
            self.out.header(|out| encoder.h2c_data(out, &header));
            let command = self.commands.get(slot);
            let data_offset = command.data_offset + offset;
            self.queue_data(slot, data_offset, len, &requests.get(command.request).io.bufs);
        }
    }

    /// Sends what is queued, as far as the socket takes it. `settled` receives the requests of commands that ended.
    pub(super) fn flush(&mut self, requests: &mut Requests, settled: &mut Vec<u32>) -> Result<(), Broken> {
        loop {
            self.queue_asked_data(requests);
            if self.out.bytes() == 0 {
                return Ok(());
            }
            let (commands, shared) = (&self.commands, &*requests);
            let slices = self.out.gather(|region, sent, slices| {
                let bufs = &shared.get(commands.get(region.slot).request).io.bufs;
                for_each_piece(bufs, region.offset + sent, region.len - sent, |piece| slices.push(Slice::of(piece)));
            });
            match self.stream.try_send(slices) {
                Ok(sent) => {
                    let mut finished: SmallVec<[u16; 8]> = SmallVec::new();
                    let commands = &mut self.commands;
                    self.out.advance(sent, |Region { slot, .. }| {
                        let command = commands.get_mut(slot);
                        command.sending -= 1;
                        if command.sending == 0 && command.answer.is_some() {
                            finished.push(slot);
                        }
                    });
                    for slot in finished {
                        self.end_command(slot, requests, settled);
                    }
                }
                Err(Errno::EAGAIN) => {
                    self.is_blocked = true;
                    if let Some(waker) = &self.waker {
                        waker.wake_by_ref();
                    }
                    return Ok(());
                }
                Err(errno) => return Err(Broken::Os(errno)),
            }
        }
    }

    /// Tells the controller why the connection ends, if that can be said between two PDUs. True when it was told: then the
    /// stream is to be drained before it is closed.
    pub(super) fn terminate(&mut self, fault: Fault) -> bool {
        if self.out.bytes() > 0 {
            return false;
        }
        let Some((pdu, len)) = encode_term(Side::Host, fault, self.decoder.offending_header()) else { return false };
        // A controller that does not take these few bytes will see the connection close.
        self.stream.try_send(&[Slice::of(&pdu[..len])]) == Ok(len)
    }

    // --- receiving --------------------------------------------------------------------------------------------------

    /// Receives once. True when there may be more.
    pub(super) fn receive(
        &mut self,
        scratch: &mut [u8],
        requests: &mut Requests,
        settled: &mut Vec<u32>,
    ) -> Result<bool, Broken> {
        let direct = self.incoming.filter(|incoming| {
            // The first bytes of a payload may be padding; once some have arrived, the rest is all data.
            incoming.done > 0 && incoming.header.len - incoming.done >= DIRECT_BYTES_MIN / 2
        });
        let window = if self.large_reads > 0 { PROBE_BYTES } else { RECEIVE_BYTES };
        let scratch = &mut scratch[..window];
        let (direct_bytes, received) = match direct {
            Some(incoming) => {
                let command = self.commands.get(incoming.slot);
                let left = (incoming.header.len - incoming.done) as usize;
                let offset = (command.data_offset + incoming.header.offset + incoming.done) as usize;
                let bufs = &mut requests.get_mut(command.request).io.bufs;
                let mut targets = pieces_mut(bufs, offset, left);
                targets.push(&mut *scratch);
                (left, self.stream.try_recv_vectored(&mut targets))
            }
            None => (0, self.stream.try_recv(scratch)),
        };
        let received = match received {
            Ok(0) => return Err(Broken::Closed),
            Ok(received) => received,
            Err(Errno::EAGAIN) => return Ok(false),
            Err(errno) => return Err(Broken::Os(errno)),
        };
        let direct_received = received.min(direct_bytes);
        if direct_received > 0 {
            self.take_direct(direct_received, requests)?;
        }
        self.feed(&scratch[..received - direct_received], requests, settled)?;
        Ok(received == direct_bytes + window)
    }

    /// Decodes payload that was received where it belongs.
    fn take_direct(&mut self, received: usize, requests: &Requests) -> Result<(), Broken> {
        let incoming = self.incoming.as_mut().expect("direct receives belong to a payload");
        let command = self.commands.get(incoming.slot);
        let offset = (command.data_offset + incoming.header.offset + incoming.done) as usize;
        incoming.done += received as u32;
        let decoder = &mut self.decoder;
        let mut result = Ok(());
        for_each_piece(&requests.get(command.request).io.bufs, offset, received, |mut piece| {
            while !piece.is_empty() && result.is_ok() {
                match decoder.next(&mut piece) {
                    Ok(Some(Item::Data { .. })) => {}
                    Ok(_) => unreachable!("no more was received directly than the payload has left"),
                    Err(fault) => result = Err(fault),
                }
            }
        });
        result.map_err(Broken::Fault)
    }

    /// Decodes received bytes and acts on them.
    fn feed(&mut self, mut input: &[u8], requests: &mut Requests, settled: &mut Vec<u32>) -> Result<(), Broken> {
        while let Some(item) = self.decoder.next(&mut input)? {
            match item {
                Item::Whole { header, data, digest_ok } => self.whole(&header, data, digest_ok, requests, settled)?,
                Item::Begin { header: Header::C2hData(header), .. } => {
                    let slot = self.commands.accept_data(&header)?;
                    self.incoming = Some(Incoming { slot, header, done: 0 });
                }
                Item::Begin { header: Header::TermReq(term), .. } => {
                    return Err(Broken::Terminated { fes: term.fes, fei: term.fei });
                }
                Item::Begin { .. } => return Err(Broken::Fault(Fault::Sequence)),
                Item::Data { bytes, .. } => {
                    let incoming = self.incoming.as_mut().expect("data follows its beginning");
                    let at = incoming.header.offset + incoming.done;
                    incoming.done += bytes.len() as u32;
                    let slot = incoming.slot;
                    self.store(slot, at, bytes, requests);
                }
                Item::End { digest_ok } => {
                    let incoming = self.incoming.take().expect("an end follows its beginning");
                    self.data_received(incoming.slot, &incoming.header, digest_ok, requests, settled);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn whole(
        &mut self,
        header: &Header,
        data: &[u8],
        digest_ok: bool,
        requests: &mut Requests,
        settled: &mut Vec<u32>,
    ) -> Result<(), Broken> {
        match header {
            Header::C2hData(header) => {
                let slot = self.commands.accept_data(header)?;
                self.store(slot, header.offset, data, requests);
                self.data_received(slot, header, digest_ok, requests, settled);
            }
            Header::CapsuleResp(cqe) => self.answered(cqe, requests, settled)?,
            Header::R2t(r2t) => self.asked(r2t)?,
            Header::TermReq(term) => return Err(Broken::Terminated { fes: term.fes, fei: term.fei }),
            _ => return Err(Broken::Fault(Fault::Sequence)),
        }
        Ok(())
    }

    #[inline]
    fn store(&self, slot: u16, at: u32, bytes: &[u8], requests: &mut Requests) {
        let command = self.commands.get(slot);
        let bufs = &mut requests.get_mut(command.request).io.bufs;
        let offset = (command.data_offset + at) as usize;
        if let [buf] = bufs.as_mut_slice() {
            return buf.as_mut_slice()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        let mut rest = bytes;
        for piece in pieces_mut(bufs, offset, bytes.len()) {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
        }
    }

    #[inline]
    fn data_received(
        &mut self,
        slot: u16,
        header: &DataHeader,
        digest_ok: bool,
        requests: &mut Requests,
        settled: &mut Vec<u32>,
    ) {
        let command = self.commands.get_mut(slot);
        command.digest_failed |= !digest_ok;
        if header.success {
            command.answer = Some(Cqe::success(header.cccid, 0));
            self.end_command(slot, requests, settled);
        }
    }

    #[inline]
    fn answered(&mut self, cqe: &Cqe, requests: &mut Requests, settled: &mut Vec<u32>) -> Result<(), Broken> {
        let unknown = Fault::HeaderField { offset: RESPONSE_CID_OFFSET };
        let slot = self.commands.find(cqe.cid.get()).ok_or(unknown)?;
        let command = self.commands.get_mut(slot);
        if command.answer.is_some() {
            return Err(Broken::Fault(unknown));
        }
        command.answer = Some(*cqe);
        if command.r2ts_open > 0 {
            // What was asked for and is not on its way yet is not wanted any more.
            self.open_r2ts.retain(|r2t| r2t.slot != slot);
        }
        if command.sending == 0 {
            self.end_command(slot, requests, settled);
        }
        Ok(())
    }

    fn asked(&mut self, r2t: &R2t) -> Result<(), Broken> {
        if r2t.len == 0 {
            return Err(Broken::Fault(Fault::HeaderField { offset: field::LENGTH }));
        }
        let slot = self.commands.accept_r2t(r2t, self.limits.r2ts_max)?;
        self.open_r2ts.push_back(OpenR2t { slot, ttag: r2t.ttag, offset: r2t.offset, left: r2t.len });
        Ok(())
    }

    /// Ends an answered command: its status goes to its request.
    #[inline]
    fn end_command(&mut self, slot: u16, requests: &mut Requests, settled: &mut Vec<u32>) {
        let command = self.commands.get(slot);
        let cqe = command.answer.expect("only answered commands end");
        let mut status = cqe.status();
        let request = requests.get_mut(command.request);
        if status.is_success() && (command.digest_failed || (request.raw.is_none() && !self.commands.is_complete(slot)))
        {
            // Data that was damaged on its way, or that the controller never moved: nothing may be made of it.
            status = Status::TRANSIENT_TRANSPORT_ERROR;
        }
        // Of a fused pair, the half that failed says more than the half that was therefore not done.
        if request.status.is_success() || request.status.kind() == Status::ABORTED_FAILED_FUSED {
            let keep = status.is_success() && !request.status.is_success();
            request.status = if keep { request.status } else { status };
        }
        request.answer = cqe;
        request.in_flight -= 1;
        if command.direction == Direction::ToHost && command.data_len >= DIRECT_BYTES_MIN {
            self.large_reads -= 1;
        }
        if request.in_flight == 0 {
            settled.push(command.request);
        }
        self.commands.end(slot);
    }
}

/// Calls `action` on each piece of `len` bytes at `offset` of a buffer list.
fn for_each_piece<'a>(bufs: &'a [Buf], mut offset: usize, mut len: usize, mut action: impl FnMut(&'a [u8])) {
    for buf in bufs {
        if len == 0 {
            return;
        }
        if offset >= buf.len() {
            offset -= buf.len();
            continue;
        }
        let take = (buf.len() - offset).min(len);
        action(&buf.as_slice()[offset..offset + take]);
        len -= take;
        offset = 0;
    }
    assert_eq!(len, 0, "a command's data lies within its buffers");
}

/// The pieces of `len` bytes at `offset` of a list of exclusive buffers.
fn pieces_mut(bufs: &mut [Buf], mut offset: usize, mut len: usize) -> SmallVec<[&mut [u8]; 8]> {
    let mut pieces = SmallVec::new();
    for buf in bufs {
        if len == 0 {
            break;
        }
        if offset >= buf.len() {
            offset -= buf.len();
            continue;
        }
        let take = (buf.len() - offset).min(len);
        pieces.push(&mut buf.as_mut_slice()[offset..offset + take]);
        len -= take;
        offset = 0;
    }
    assert_eq!(len, 0, "a command's data lies within its buffers");
    pieces
}
