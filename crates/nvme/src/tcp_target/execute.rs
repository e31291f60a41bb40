//! Carrying out I/O commands: from a decoded command to the device and back to an answer.

use super::connection::{Connection, Pending};
use super::local::Namespace;
use super::pieces;
use super::zones::Wanted;
use crate::spec::opcode::FABRICS;
use crate::spec::sgl::{DataLocation, KIND_TRANSPORT};
use crate::spec::sqe::Fused;
use crate::spec::zns::SendAction;
use crate::spec::{Cqe, Sqe, Status};
use crate::target::io::{self, IoCommand, IoOp};
use crate::target::reservation::{Access, AccessKind, HostId};
use bdev::{Done, Flags, Io, Lba, Op};
use reactor::{Buf, IoFuture, SgList};
use std::rc::Rc;
use zerocopy::byteorder::little_endian::U64;

/// Data that came inside a command capsule: a range of the received bytes, or a buffer it was gathered in.
pub(super) enum CapsuleData<'a> {
    /// In the receive buffer, which can lend a view of it.
    Received(&'a mut Buf, std::ops::Range<usize>),
    /// Gathered from pieces.
    Gathered(Buf),
}

impl CapsuleData<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            CapsuleData::Received(_, range) => range.len(),
            CapsuleData::Gathered(buf) => buf.len(),
        }
    }

    /// A copy of a part, for control commands.
    pub(super) fn copy(&self, part: std::ops::Range<usize>) -> Vec<u8> {
        match self {
            CapsuleData::Received(received, range) => received.as_slice()[range.clone()][part].to_vec(),
            CapsuleData::Gathered(buf) => buf.as_slice()[part].to_vec(),
        }
    }
}

impl Connection {
    /// A command on an I/O queue. `digest_ok` speaks of the capsule's data.
    #[inline]
    pub(super) fn io_command(self: &Rc<Self>, sqe: &Sqe, data: CapsuleData<'_>, digest_ok: bool) {
        if !self.arrive(sqe) {
            return;
        }
        if let Err(status) = self.try_io_command(sqe, data, digest_ok) {
            self.refuse(sqe, status);
        }
    }

    /// Answers a command that failed on arrival or before the device saw it, and what it takes with it.
    #[cold]
    pub(super) fn refuse(self: &Rc<Self>, sqe: &Sqe, status: Status) {
        if self.fused_failed(sqe.cid.get(), status) {
            return self.note_error(sqe, status);
        }
        self.answer_error(sqe, status);
    }

    #[inline]
    fn try_io_command(self: &Rc<Self>, sqe: &Sqe, data: CapsuleData<'_>, digest_ok: bool) -> Result<(), Status> {
        if sqe.opcode == FABRICS {
            self.fused_interrupted(sqe);
            self.fabrics_command(sqe, data, digest_ok);
            return Ok(());
        }
        let namespace = self.namespace(sqe.nsid.get());
        let mdts_bytes = self.local.config.model.transfer_len_max;
        let decoded = match &namespace {
            Some(namespace) => io::decode(sqe, |_| Some(&namespace.model), mdts_bytes),
            None => io::decode(sqe, |_| None, mdts_bytes),
        };
        let command = match decoded {
            Ok(command) => command,
            Err(status) => {
                self.fused_interrupted(sqe);
                return Err(status);
            }
        };
        if command.fused != Fused::Normal || self.fused_waiting() {
            self.fused_arrival(&command)?;
        }
        let Some(namespace) = namespace else {
            self.flush_all(command.cid);
            return Ok(());
        };
        if command.fused != Fused::Normal && !namespace.ops.contains(Op::CompareAndWrite) {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        self.admit(&command, &namespace)?;
        let moved_bytes = match command.op {
            IoOp::Read => u64::from(command.data_len),
            IoOp::Verify | IoOp::WriteZeroes { .. } | IoOp::WriteUncorrectable => {
                u64::from(command.block_count) << namespace.model.block_shift
            }
            _ => 0,
        };
        self.spend(moved_bytes);
        // Zeroes cost a device little; where they do not, fair shares see to it.
        let metered_bytes = if command.op == IoOp::Verify { moved_bytes } else { u64::from(command.data_len) };
        self.meter(command.op, metered_bytes);
        if !command.op.takes_data() {
            return self.without_data(sqe, &command, namespace);
        }
        match sqe.sgl.locate(data.len() as u32, mdts_bytes)? {
            DataLocation::InCapsule { .. } if !digest_ok => return Err(Status::TRANSIENT_TRANSPORT_ERROR),
            DataLocation::InCapsule { offset, .. } => {
                let (offset, len) = (offset as usize, command.data_len as usize);
                match data {
                    CapsuleData::Received(received, range) => {
                        let from = range.start + offset;
                        self.received_in_capsule(&command, namespace, received, from..from + len);
                    }
                    CapsuleData::Gathered(mut buf) => {
                        if (offset, len) != (0, buf.len()) {
                            buf = buf.slice(offset..offset + len);
                        }
                        self.with_data(&command, namespace, buf, 0);
                    }
                }
            }
            DataLocation::Transport { .. } => self.request_data(*sqe, Some((command, namespace)), command.data_len)?,
        }
        Ok(())
    }

    /// Whether the namespace is reached at this port.
    #[inline]
    fn reach(&self, namespace: &Namespace) -> Result<(), Status> {
        match namespace.ana.as_ref().and_then(|states| states.at(self.via).refusal()) {
            None => Ok(()),
            Some(status) => Err(status),
        }
    }

    /// Whether the namespace is reached at this port, and its reservation lets a command through.
    #[inline]
    fn admit(&self, command: &IoCommand, namespace: &Namespace) -> Result<(), Status> {
        self.reach(namespace)?;
        match &namespace.access {
            None => Ok(()),
            Some(access) => self.admit_by(access, command.op.access()),
        }
    }

    fn admit_by(&self, access: &Access, kind: Option<AccessKind>) -> Result<(), Status> {
        let host = self.owner.get().map_or(HostId::NONE, |owner| owner.host);
        match kind.is_none_or(|kind| access.allows(host, kind)) {
            true => Ok(()),
            false => Err(Status::RESERVATION_CONFLICT.dnr()),
        }
    }

    /// The same for a command that has waited since it arrived: what is in force now counts. A namespace that has gone
    /// meanwhile lets the command end on its device.
    pub(super) fn admit_again(&self, command: &IoCommand) -> Result<(), Status> {
        let namespace = self.namespace(command.nsid).ok_or(Status::INVALID_NAMESPACE)?;
        self.admit(command, &namespace)
    }

    /// Whether an operation of several pieces goes on with the next: its host is there, and may still do it. Nobody can cut short
    /// what no device has at that moment, and whoever fences a host off waits for the end.
    pub(super) fn may_go_on(&self, namespace: &Namespace, op: Op) -> Result<(), bdev::Status> {
        if self.is_ended() {
            return Err(bdev::Status::Aborted);
        }
        let now = self.namespace(namespace.nsid).ok_or(bdev::Status::Gone)?;
        let kind = if op.modifies() { AccessKind::Write } else { AccessKind::Read };
        match &now.access {
            Some(access) => self.admit_by(access, Some(kind)).map_err(|_| bdev::Status::ReservationConflict),
            None => Ok(()),
        }
    }

    #[inline]
    fn without_data(self: &Rc<Self>, sqe: &Sqe, command: &IoCommand, namespace: Rc<Namespace>) -> Result<(), Status> {
        let (lba, nblocks) = (Lba(command.slba), command.block_count);
        let io = match command.op {
            IoOp::Read => {
                if sqe.sgl.kind != KIND_TRANSPORT {
                    return Err(Status::SGL_TYPE_INVALID.dnr());
                }
                self.read(command, namespace);
                return Ok(());
            }
            IoOp::ReservationReport { .. } => {
                if sqe.sgl.kind != KIND_TRANSPORT {
                    return Err(Status::SGL_TYPE_INVALID.dnr());
                }
                self.report_reservations(command);
                return Ok(());
            }
            IoOp::ZoneReport { filter, partial, extended } => {
                if sqe.sgl.kind != KIND_TRANSPORT {
                    return Err(Status::SGL_TYPE_INVALID.dnr());
                }
                self.report_zones(command, namespace, Wanted { filter, partial, extended });
                return Ok(());
            }
            IoOp::ZoneSend { action, all } => {
                let op = match action {
                    SendAction::Close => Op::ZoneClose,
                    SendAction::Finish => Op::ZoneFinish,
                    SendAction::Open => Op::ZoneOpen,
                    SendAction::Reset => Op::ZoneReset,
                    SendAction::Offline => Op::ZoneOffline,
                    SendAction::SetExtension => return Err(Status::INVALID_FIELD.dnr()),
                };
                let flags = if all { Flags::ALL_ZONES } else { Flags::NONE };
                Io { flags, ..Io::new(op, lba, 0) }
            }
            IoOp::Flush => Io::flush(),
            IoOp::Verify => Io::new(Op::Verify, lba, nblocks),
            IoOp::WriteUncorrectable => Io::new(Op::WriteUncorrectable, lba, nblocks),
            // Deallocating has no forced unit access.
            IoOp::WriteZeroes { deallocate: true }
                if namespace.unmap_zeroes && self.write_flags(command) == Flags::NONE =>
            {
                Io::new(Op::Unmap, lba, nblocks)
            }
            _ => Io { flags: self.write_flags(command), ..Io::new(Op::WriteZeroes, lba, nblocks) },
        };
        self.start(command.cid, namespace, io, 0);
        Ok(())
    }

    #[inline]
    pub(super) fn write_flags(&self, command: &IoCommand) -> Flags {
        if command.fua || self.write_through.get() { Flags::FUA } else { Flags::NONE }
    }

    fn flush_all(self: &Rc<Self>, cid: u16) {
        let namespaces = self.all_namespaces();
        for namespace in &namespaces {
            let access = namespace.access.as_ref();
            let admitted = access.map_or(Ok(()), |access| self.admit_by(access, Some(AccessKind::Write)));
            if let Err(status) = self.reach(namespace).and(admitted) {
                return self.answer_status(cid, status);
            }
        }
        let this = self.clone();
        self.reactor.spawn_eager(async move {
            let mut status = Status::SUCCESS;
            for namespace in namespaces {
                let done = namespace.channel.submit(Io::flush()).await;
                if !done.status.is_ok() {
                    status = status_for_host(done.status, Op::Flush);
                }
            }
            this.answer_status(cid, status);
        });
    }

    // --- reads ------------------------------------------------------------------------------------------------------

    #[inline]
    fn read(self: &Rc<Self>, command: &IoCommand, namespace: Rc<Namespace>) {
        let (cid, lba, nblocks) = (command.cid, Lba(command.slba), command.block_count);
        // A lent buffer may change between the digest and the send, so digests want a copy.
        if namespace.at_once.get() && nblocks <= namespace.max_io_blocks && !self.encoder().data_digest() {
            return self.start(cid, namespace, Io::read_loan(lba, nblocks), 0);
        }
        let len = command.data_len as usize;
        if let Some(buf) = self.try_take_buf(len) {
            return self.start(cid, namespace, Io::read(lba, nblocks, SgList::from_iter([buf])), len);
        }
        let (this, command) = (self.clone(), *command);
        self.reactor.spawn(async move {
            match this.take_buf(cid, len).await {
                Some(_) if let Err(status) = this.admit_again(&command) => {
                    this.release_share(len);
                    this.answer_status(cid, status);
                }
                Some(buf) => this.start(cid, namespace, Io::read(lba, nblocks, SgList::from_iter([buf])), len),
                None => this.answer_status(cid, Status::ABORT_REQUESTED),
            }
        });
    }

    /// Gives an operation to the device and answers when it is done; `share` bytes of the connection's buffers go back then.
    #[inline]
    fn start(self: &Rc<Self>, cid: u16, namespace: Rc<Namespace>, mut io: Io, share: usize) {
        io.tag = self.tag(cid);
        if !namespace.does(io.op, io.nblocks) {
            return self.start_in_pieces(cid, namespace, io, share);
        }
        match IoFuture::begin(&namespace, |namespace| namespace.channel.submit(io)) {
            // A device that completes at once costs no task.
            Ok(done) => self.conclude(cid, done, share),
            Err(begun) => {
                namespace.at_once.set(false);
                let (this, flight) = (self.clone(), self.take_off());
                self.reactor.spawn_eager(async move {
                    let done = begun.await;
                    this.land(flight);
                    this.conclude(cid, done, share);
                });
            }
        }
    }

    #[cold]
    fn start_in_pieces(self: &Rc<Self>, cid: u16, namespace: Rc<Namespace>, io: Io, share: usize) {
        let (this, flight) = (self.clone(), self.take_off());
        self.reactor.spawn_eager(async move {
            let op = io.op;
            let may_go_on = || this.may_go_on(&namespace, op);
            let done = pieces::carry_out(&this.reactor, &namespace, io, may_go_on).await;
            this.land(flight);
            this.conclude(cid, done, share);
        });
    }

    #[inline]
    fn conclude(self: &Rc<Self>, cid: u16, done: Done, share: usize) {
        if share > 0 {
            self.release_share(share);
        }
        if done.status.is_ok() && done.io.op == Op::Read {
            self.answer_data(Cqe::new(cid, Status::SUCCESS), done.io.bufs);
        } else if done.status.is_ok() && done.io.op == Op::ZoneAppend {
            self.answer(Cqe { result: U64::new(done.io.lba.0), ..Cqe::new(cid, Status::SUCCESS) });
        } else {
            self.answer_status(cid, status_for_host(done.status, done.io.op));
        }
    }

    // --- commands with data from the host ---------------------------------------------------------------------------

    /// In-capsule data that lies in the receive buffer. Devices that take the data at once get a view of it; for others
    /// it is copied into an aligned buffer, so that one slow write does not hold the whole receive buffer.
    #[inline]
    fn received_in_capsule(
        self: &Rc<Self>,
        command: &IoCommand,
        namespace: Rc<Namespace>,
        received: &mut Buf,
        range: std::ops::Range<usize>,
    ) {
        if namespace.at_once.get() && command.fused == Fused::Normal {
            let view = received.slice(range);
            return self.with_data(command, namespace, view, 0);
        }
        let len = range.len();
        match self.try_take_buf(len) {
            Some(mut buf) => {
                buf.as_mut_slice().copy_from_slice(&received.as_slice()[range]);
                self.with_data(command, namespace, buf, len);
            }
            None => {
                // Memory is short: heap bytes, bounded by the queue size times the in-capsule limit.
                let buf = Buf::from_vec(received.as_slice()[range].to_vec());
                self.with_data(command, namespace, buf, 0);
            }
        }
    }

    /// All data of a command from the host is here; `share` bytes of it count against the connection.
    #[inline]
    fn with_data(self: &Rc<Self>, command: &IoCommand, namespace: Rc<Namespace>, buf: Buf, share: usize) {
        let (lba, nblocks) = (Lba(command.slba), command.block_count);
        match command.op {
            _ if command.fused != Fused::Normal => self.fused_data(command.cid, namespace, buf, share),
            IoOp::Write | IoOp::ZoneAppend => {
                let flags = self.write_flags(command);
                let op = if command.op == IoOp::Write { Op::Write } else { Op::ZoneAppend };
                let bufs = SgList::from_iter([buf]);
                self.start(command.cid, namespace, Io { flags, bufs, ..Io::new(op, lba, nblocks) }, share);
            }
            IoOp::ZoneExtend => {
                let io = Io { bufs: SgList::from_iter([buf]), ..Io::new(Op::ZoneSetExtension, lba, 0) };
                self.start(command.cid, namespace, io, share);
            }
            IoOp::Compare => {
                let io = Io { bufs: SgList::from_iter([buf]), ..Io::new(Op::Compare, lba, nblocks) };
                self.start(command.cid, namespace, io, share);
            }
            IoOp::Reserve(reserve) => {
                self.release_share(share);
                self.reserve(command, reserve, &buf);
            }
            IoOp::Copy { range_count } => {
                self.release_share(share);
                self.copy(command, namespace, &buf, range_count);
            }
            IoOp::Deallocate { range_count } => {
                self.release_share(share);
                self.deallocate(command.cid, namespace, &buf, range_count);
            }
            _ => {
                self.release_share(share);
                self.answer_status(command.cid, Status::SUCCESS);
            }
        }
    }

    fn deallocate(self: &Rc<Self>, cid: u16, namespace: Rc<Namespace>, buf: &Buf, range_count: u16) {
        let ranges: Vec<(u64, u32)> = match io::dsm_ranges(buf.as_slice(), range_count, &namespace.model) {
            Ok(ranges) => ranges.collect(),
            Err(status) => return self.answer_status(cid, status),
        };
        if !namespace.ops.contains(Op::Unmap) {
            // A device that frees nothing may ignore the advice (NVM Command Set 1.0, section 3.2.3).
            return self.answer_status(cid, Status::SUCCESS);
        }
        let (this, flight) = (self.clone(), self.take_off());
        self.reactor.spawn_eager(async move {
            let mut status = Status::SUCCESS;
            for (start, count) in ranges {
                let io = Io { tag: this.tag(cid), ..Io::new(Op::Unmap, Lba(start), count) };
                let may_go_on = || this.may_go_on(&namespace, Op::Unmap);
                let done = pieces::carry_out(&this.reactor, &namespace, io, may_go_on).await;
                if !done.status.is_ok() {
                    status = status_for_host(done.status, Op::Unmap);
                    break;
                }
            }
            this.land(flight);
            this.answer_status(cid, status);
        });
    }

    /// Asks the host for `len` bytes, when a buffer for them is there.
    pub(super) fn request_data(
        self: &Rc<Self>,
        sqe: Sqe,
        io: Option<(IoCommand, Rc<Namespace>)>,
        len: u32,
    ) -> Result<(), Status> {
        if len == 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if let Some(buf) = self.try_take_buf(len as usize) {
            return self.grant(sqe, io, buf);
        }
        let this = self.clone();
        self.reactor.spawn(async move {
            let is_half = io.as_ref().is_some_and(|(command, _)| command.fused != Fused::Normal);
            let granted = match this.take_buf(sqe.cid.get(), len as usize).await {
                Some(buf) => this.grant(sqe, io, buf),
                None => Err(Status::ABORT_REQUESTED),
            };
            if let Err(status) = granted
                && (!is_half || this.is_in_pair(sqe.cid.get()))
            {
                this.refuse(&sqe, status);
            }
        });
        Ok(())
    }

    fn grant(self: &Rc<Self>, sqe: Sqe, io: Option<(IoCommand, Rc<Namespace>)>, buf: Buf) -> Result<(), Status> {
        let (cid, len) = (sqe.cid.get(), buf.len());
        let asked_ns = self.reactor.now_ns();
        let mut pending = self.pending.borrow_mut();
        // There are as many R2Ts as commands; but a host that lets halves of fused pairs fail may have some of commands that
        // were answered long ago, and then it has none left.
        let is_new = !pending.contains(cid);
        let r2t = if is_new { self.r2ts.borrow_mut().open(cid, 0, len as u32) } else { None };
        let Some(r2t) = r2t else {
            self.release_share(len);
            return Err(Status::COMMAND_ID_CONFLICT.dnr());
        };
        let inserted = pending.insert(cid, Pending { sqe, io, buf, digest_ok: true, aborted: None, asked_ns });
        assert!(inserted, "the map holds as many commands as there are R2Ts");
        drop(pending);
        self.watch_transfers();
        let encoder = self.encoder();
        self.send_header(|out| encoder.r2t(out, &r2t));
        Ok(())
    }

    /// All data of a command that waited for it has arrived.
    pub(super) fn data_complete(self: &Rc<Self>, cid: u16) {
        let Some(pending) = self.pending.borrow_mut().remove(cid) else { return };
        let Pending { sqe, io, buf, digest_ok, aborted, .. } = pending;
        let share = buf.len();
        match io {
            _ if !digest_ok || aborted.is_some() => {
                self.release_share(share);
                if !self.is_half_answered(&io) {
                    self.refuse(&sqe, aborted.unwrap_or(Status::TRANSIENT_TRANSPORT_ERROR));
                }
            }
            Some((command, _)) if let Err(status) = self.admit_again(&command) => {
                self.release_share(share);
                if !self.is_half_answered(&io) {
                    self.refuse(&sqe, status);
                }
            }
            Some((command, namespace)) => self.with_data(&command, namespace, buf, share),
            None => {
                self.release_share(share);
                if sqe.opcode == FABRICS {
                    return self.take_message(sqe, buf.as_slice().to_vec());
                }
                self.admin_with_data(sqe, buf.as_slice().to_vec());
            }
        }
    }
}

impl Connection {
    /// Whether this is half of a fused pair that was broken, and answered, while its data was on its way.
    fn is_half_answered(&self, io: &Option<(IoCommand, Rc<Namespace>)>) -> bool {
        let Some((command, _)) = io else { return false };
        command.fused != Fused::Normal && !self.is_in_pair(command.cid)
    }
}

/// The status for the host of a device's status.
#[inline]
pub(super) fn status_for_host(status: bdev::Status, op: Op) -> Status {
    match status {
        bdev::Status::Ok => Status::SUCCESS,
        bdev::Status::Unsupported => Status::INVALID_OPCODE.dnr(),
        bdev::Status::Invalid => Status::INVALID_FIELD.dnr(),
        bdev::Status::OutOfRange => Status::LBA_OUT_OF_RANGE.dnr(),
        bdev::Status::Miscompare => Status::COMPARE_FAILURE.dnr(),
        bdev::Status::ReadError => Status::UNRECOVERED_READ_ERROR.dnr(),
        bdev::Status::Corrupt => Status::GUARD_CHECK_ERROR.dnr(),
        bdev::Status::WriteError => Status::WRITE_FAULT.dnr(),
        bdev::Status::NoSpace => Status::CAPACITY_EXCEEDED.dnr(),
        bdev::Status::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.dnr(),
        bdev::Status::Aborted => Status::ABORT_REQUESTED,
        bdev::Status::Gone | bdev::Status::Inaccessible => Status::NAMESPACE_NOT_READY,
        bdev::Status::ReservationConflict => Status::RESERVATION_CONFLICT.dnr(),
        bdev::Status::Os(_) if op.modifies() => Status::WRITE_FAULT.dnr(),
        bdev::Status::Os(_) => Status::UNRECOVERED_READ_ERROR.dnr(),
        bdev::Status::ZoneBoundary => Status::ZONE_BOUNDARY.dnr(),
        bdev::Status::ZoneFull => Status::ZONE_FULL.dnr(),
        bdev::Status::ZoneReadOnly => Status::ZONE_READ_ONLY.dnr(),
        bdev::Status::ZoneOffline => Status::ZONE_OFFLINE.dnr(),
        bdev::Status::ZoneInvalidWrite => Status::ZONE_INVALID_WRITE.dnr(),
        bdev::Status::ZoneTooManyActive => Status::ZONE_TOO_MANY_ACTIVE.dnr(),
        bdev::Status::ZoneTooManyOpen => Status::ZONE_TOO_MANY_OPEN.dnr(),
        bdev::Status::ZoneInvalidTransition => Status::ZONE_INVALID_TRANSITION.dnr(),
    }
}
