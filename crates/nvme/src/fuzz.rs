//! Fuzz entry points: plain functions of bytes that panic on a bug. The fuzz targets and the unit tests below share them.
//!
//! They are structure-aware: the input is a program, its bytes choose what happens next and fill the fields, so that most
//! inputs get past the first check. `fuzz_target_state` reports which (state, opcode) pairs it reached, and a test holds that
//! all are.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::FromBytes;
use zerocopy::byteorder::little_endian::U32;

use crate::host::command;
use crate::spec::erase::FormatCommand;
use crate::spec::fabrics::{self, PropertyCommand};
use crate::spec::opcode::{FABRICS, FabricsType, NvmOpcode};
use crate::spec::property::Configuration;
use crate::spec::reservation::{Keys, ReservationCommand};
use crate::spec::sgl::SglDescriptor;
use crate::spec::sqe::{BlockCommand, FLAG_SGL, Fused};
use crate::spec::{Cqe, Nqn, Sqe};
use crate::target::io::{self, IoOp};
use crate::target::queue::{FusedSlot, Queue, Sequence};
use crate::target::reservation::Request;
use crate::target::{
    AdminOutcome, ControllerHandle, ControllerState, Namespace, SubsystemConfig, SubsystemId, Target, TargetConfig,
    TargetEvent, Zoned,
};
use crate::tcp::check::Phase;
use crate::tcp::{
    DataHeader, Decoder, Encoder, Fault, Header, IcReq, IcResp, Item, PduType, R2t, R2tTable, ReceiveParams,
    SendParams, Side, pdu,
};

pub use crate::auth::fuzz_authentication;
pub use crate::initiator::fuzz_host;

static PDUS: AtomicU64 = AtomicU64::new(0);

/// Counts a PDU that was fed to the code under test, and tells of every million.
pub fn count_pdu() {
    let count = PDUS.fetch_add(1, Ordering::Relaxed) + 1;
    if count.is_multiple_of(1_000_000) {
        eprintln!("{} million PDUs", count / 1_000_000);
    }
}

/// PDUs that were counted.
pub fn pdus() -> u64 {
    PDUS.load(Ordering::Relaxed)
}

/// The input, read as a program.
pub struct Program<'a>(pub &'a [u8]);

impl<'a> Program<'a> {
    /// Whether the input has ended.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// The next bytes, zero where the input has ended.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    /// A byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// A number that is often small or next to a limit.
    pub fn u32(&mut self) -> u32 {
        match self.u8() {
            kind @ 0..128 => u32::from(kind & 0x1f),
            128..160 => u32::from(self.u16()),
            160..192 => 1 << (self.u8() & 31),
            192..208 => u32::MAX - u32::from(self.u8()),
            _ => u32::from_le_bytes(self.array()),
        }
    }

    /// Any command.
    pub fn sqe(&mut self) -> Sqe {
        Sqe::read_from_bytes(&self.array::<64>()).expect("64 bytes")
    }
}

// ---- Codec

/// What a piecewise decoder saw.
type Seen = Result<Vec<(Header, Vec<u8>, bool)>, Fault>;

fn decode_all(mut decoder: Decoder, stream: &[u8], piece_len: impl FnMut() -> usize) -> Seen {
    let mut seen: Vec<(Header, Vec<u8>, bool)> = Vec::new();
    let mut piece_len = piece_len;
    let mut rest = stream;
    while !rest.is_empty() {
        let (mut piece, after) = rest.split_at(piece_len().clamp(1, rest.len()));
        rest = after;
        while let Some(item) = decoder.next(&mut piece)? {
            match item {
                Item::Whole { header, data, digest_ok } => seen.push((header, data.to_vec(), digest_ok)),
                Item::Begin { header, data_len } => {
                    assert_eq!(decoder.payload_remaining(), data_len);
                    seen.push((header, Vec::new(), false));
                }
                Item::Data { offset, bytes } => {
                    let (_, data, _) = seen.last_mut().expect("begun");
                    assert_eq!(data.len(), offset as usize);
                    data.extend_from_slice(bytes);
                }
                Item::End { digest_ok } => seen.last_mut().expect("begun").2 = digest_ok,
            }
        }
        assert!(piece.is_empty() || decoder.phase() == Phase::Negotiating);
    }
    Ok(seen)
}

fn ready_decoder(side: Side, params: ReceiveParams) -> Decoder {
    let ic = match side {
        Side::Target => IcReq { hpda: 0, header_digest: true, data_digest: true, r2t_max: 1 }.encode(),
        Side::Host => IcResp { cpda: 0, header_digest: true, data_digest: true, maxh2cdata: 4096 }.encode(),
    };
    let mut decoder = Decoder::new(side);
    decoder.next(&mut &ic[..]).expect("valid").expect("whole");
    decoder.establish(params);
    decoder
}

fn append_pdu(program: &mut Program, side: Side, encoder: &Encoder, stream: &mut Vec<u8>) {
    count_pdu();
    let mut head = [0; pdu::HEADER_SPACE];
    let data_len = usize::from(program.u8()) * 4;
    let header = DataHeader {
        cccid: program.u16(),
        ttag: program.u16(),
        offset: program.u32(),
        len: data_len.max(4) as u32,
        last: true,
        success: false,
    };
    let (len, data_len) = match (side, program.u8() % 3) {
        (Side::Target, 0) => (encoder.h2c_data(&mut head, &header), data_len.max(4)),
        (Side::Target, _) => (encoder.capsule_cmd(&mut head, &program.sqe(), data_len as u32), data_len),
        (Side::Host, 0) => (encoder.c2h_data(&mut head, &DataHeader { success: true, ..header }), data_len.max(4)),
        (Side::Host, 1) => {
            let r2t = R2t { cccid: header.cccid, ttag: header.ttag, offset: header.offset, len: header.len };
            (encoder.r2t(&mut head, &r2t), 0)
        }
        (Side::Host, _) => {
            let cqe = Cqe::read_from_bytes(&program.array::<16>()).expect("16 bytes");
            (encoder.capsule_resp(&mut head, &cqe), 0)
        }
    };
    stream.extend_from_slice(&head[..len]);
    let fill = program.u8();
    stream.resize(stream.len() + data_len, fill);
    if data_len > 0 && encoder.data_digest() {
        let digest = base::crc32c(&stream[stream.len() - data_len..]);
        stream.extend_from_slice(&digest.to_le_bytes());
    }
}

/// Decodes a stream of valid, damaged and random PDUs: cutting it differently changes nothing, undamaged PDUs come out as
/// they went in, and every fault has its termination.
pub fn fuzz_codec(input: &[u8]) {
    let mut program = Program(input);
    let flags = program.u8();
    let side = if flags & 1 == 0 { Side::Target } else { Side::Host };
    let (header_digest, data_digest) = (flags & 2 != 0, flags & 4 != 0);
    let alignment = 4 << (flags >> 3 & 3);
    let params = ReceiveParams { header_digest, data_digest, alignment, capsule_data_max: 8192, data_max: 1 << 16 };
    let encoder = Encoder::new(SendParams { header_digest, data_digest, alignment });
    let start = if flags & 0x80 == 0 { ready_decoder(side, params) } else { Decoder::new(side) };

    let mut stream = Vec::new();
    let mut damaged = flags & 0x80 != 0;
    for _ in 0..8 {
        let before = stream.len();
        match program.u8() {
            0..160 => append_pdu(&mut program, side, &encoder, &mut stream),
            160..224 => {
                append_pdu(&mut program, side, &encoder, &mut stream);
                let at = before + usize::from(program.u16()) % (stream.len() - before).min(128);
                let flip = program.u8();
                stream[at] ^= flip;
                damaged |= flip != 0;
            }
            _ => {
                let len = usize::from(program.u8());
                stream.extend_from_slice(program.bytes(len));
                damaged |= stream.len() > before;
            }
        }
    }

    let whole = decode_all(start.clone(), &stream, || usize::MAX);
    let cut = decode_all(start.clone(), &stream, || usize::from(program.u8()) + 1);
    assert_eq!(whole, cut, "cutting changes nothing");
    let bytewise = decode_all(start, &stream, || 1);
    assert_eq!(whole, bytewise);
    match whole {
        Ok(_) => {}
        Err(fault) => {
            assert!(damaged, "valid PDUs are no fault: {fault}");
            let answer = pdu::encode_term(side, fault, &[0; 72]);
            assert_eq!(answer.is_none(), fault == Fault::MalformedTermination);
        }
    }
}

// ---- Target

/// Which pairs of state and command a run has reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Controller state, whether it serves discovery, admin opcode.
    pub admin: BTreeSet<(ControllerState, bool, u8)>,
    /// Controller state, admin queue or not, Fabrics command type.
    pub fabrics: BTreeSet<(ControllerState, bool, u8)>,
    /// Waiting for the second of a fused pair or not, I/O opcode.
    pub io: BTreeSet<(bool, u8)>,
    /// Whether the namespace was reserved, opcode and action of a reservation command, whether it was carried out.
    pub reservations: BTreeSet<(bool, u8, u8, bool)>,
    /// Phase, side, PDU type.
    pub pdus: BTreeSet<(u8, bool, u8)>,
}

struct Run {
    target: Target,
    subsystems: Vec<SubsystemId>,
    controllers: Vec<ControllerHandle>,
    now_ns: u64,
    requests: BTreeSet<(ControllerHandle, u16)>,
    fused: FusedSlot,
    queue: Queue,
    r2ts: R2tTable,
    /// R2Ts that are outstanding, and what has come for each.
    open: Vec<(R2t, u32)>,
}

const CONFIG_QUEUES: u16 = 4;

fn nqn(index: u8) -> Nqn {
    match index % 4 {
        0 => Nqn::discovery(),
        index => Nqn::new(&format!("nqn.2026-01.org.example:{index}")).expect("valid"),
    }
}

/// Runs a program of host and operator actions against a target: every command gets exactly one answer, events stay bounded,
/// nothing panics.
pub fn fuzz_target_state(input: &[u8]) {
    fuzz_target_state_covering(input, &mut Coverage::default());
}

/// As [`fuzz_target_state`], and notes what was reached.
pub fn fuzz_target_state_covering(input: &[u8], coverage: &mut Coverage) {
    let mut program = Program(input);
    let config = TargetConfig { io_queues_max: CONFIG_QUEUES, controllers_max: 8, ..TargetConfig::default() };
    let mut run = Run {
        target: Target::new(config, 1),
        subsystems: Vec::new(),
        controllers: Vec::new(),
        now_ns: 0,
        requests: BTreeSet::new(),
        fused: FusedSlot::default(),
        queue: Queue::new(1, 8, true),
        r2ts: R2tTable::new(3),
        open: Vec::new(),
    };
    for index in 1..4 {
        let id = run.target.add_subsystem(SubsystemConfig::new(nqn(index))).expect("new");
        run.subsystems.push(id);
        let namespace = Namespace::new(9 + index, 1000, uuid::Uuid::from_u128(u128::from(index)));
        run.target.add_namespace(id, None, namespace).expect("new");
    }
    for index in [1, 1, 0] {
        run.connect(&mut program, index, 0, 0xffff);
    }
    while !program.is_empty() {
        run.step(&mut program, coverage);
        run.drain();
    }
}

impl Run {
    fn step(&mut self, program: &mut Program, coverage: &mut Coverage) {
        match program.u8() {
            0..16 => {
                let (index, qid) = (program.u8(), u16::from(program.u8() % 6));
                let cntlid = if qid == 0 { 0xffff } else { u16::from(program.u8() % 16) };
                self.connect(program, index, qid, cntlid);
            }
            16..56 => self.configure(program),
            56..128 => self.admin(program, coverage),
            128..152 => self.fabrics(program, coverage),
            152..192 => self.io(program, coverage),
            // Several: one alone seldom finds anything to do.
            192..200 => (0..program.u8() % 32).for_each(|_| self.reservation(program, coverage)),
            200..216 => self.transfer(program),
            216..240 => self.operate(program),
            _ => {
                self.now_ns += u64::from(program.u8()) * 10_000_000;
                self.target.handle_timeout(self.now_ns);
            }
        }
    }

    fn pick(&mut self, program: &mut Program) -> Option<ControllerHandle> {
        let index = usize::from(program.u8());
        (!self.controllers.is_empty()).then(|| self.controllers[index % self.controllers.len()])
    }

    fn state(&self, handle: ControllerHandle) -> Option<(ControllerState, bool)> {
        self.target.controller(handle).map(|found| (found.state(), found.is_discovery()))
    }

    fn connect(&mut self, program: &mut Program, index: u8, qid: u16, cntlid: u16) {
        count_pdu();
        let data = command::connect_data([1; 16], &nqn(1), &nqn(index), Some(cntlid));
        let mut data: [u8; 1024] = zerocopy::transmute!(data);
        let mut sqe = command::connect(qid, 8, u32::from(program.u8()) * 100);
        let damage = program.u8();
        // Two hosts.
        data[0] ^= damage & 1;
        if damage >= 224 {
            data[usize::from(program.u16()) % 1024] ^= program.u8();
            let mut bytes: [u8; 64] = zerocopy::transmute!(sqe);
            bytes[5 + usize::from(program.u8()) % 59] ^= program.u8();
            sqe = zerocopy::transmute!(bytes);
        }
        let via = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
        match self.target.connect(self.now_ns, &sqe, &data, via, None) {
            Ok(connected) if connected.qid == 0 => self.controllers.push(connected.controller),
            Ok(connected) => assert!(connected.qid <= CONFIG_QUEUES),
            Err(refused) => assert!(!refused.cqe.status().is_success()),
        }
    }

    fn configure(&mut self, program: &mut Program) {
        let Some(handle) = self.pick(program) else { return };
        count_pdu();
        let cc = match program.u8() % 8 {
            0 => 0,
            1..=3 => Configuration::ENABLE.0,
            4 | 5 => Configuration::ENABLE.with_shutdown(1).0,
            6 => return self.target.shutdown_complete(handle),
            _ => program.u32(),
        };
        let sqe = PropertyCommand::set(1, crate::spec::property::CC, cc).to_sqe();
        let (cqe, close) = self.target.fabrics(self.now_ns, handle, 0, &sqe);
        assert!(cqe.cid.get() == 1 && !close);
        if self.state(handle).is_none_or(|(state, _)| state == ControllerState::Disabled) {
            self.requests.retain(|(owner, _)| *owner != handle);
        }
    }

    fn admin(&mut self, program: &mut Program, coverage: &mut Coverage) {
        let Some(handle) = self.pick(program) else { return };
        count_pdu();
        let mut sqe = program.sqe();
        if program.u8() < 240 {
            sqe.flags = FLAG_SGL;
            sqe.nsid = U32::new(program.u32());
            sqe.cdw10 = U32::new(program.u32() | u32::from(program.u16()) << 16);
            sqe.cdw11 = U32::new(program.u32());
        }
        if sqe.opcode == FABRICS {
            return;
        }
        let mut out = [0; 4096];
        let len = usize::from(program.u16()) % 4097;
        if let Some((state, is_discovery)) = self.state(handle) {
            coverage.admin.insert((state, is_discovery, sqe.opcode));
        }
        match self.target.admin(self.now_ns, handle, &sqe, &[0; 512], &mut out[..len]) {
            AdminOutcome::Complete { cqe, data_len } => {
                assert!(cqe.cid == sqe.cid && data_len <= len);
                assert!(cqe.status().is_success() || data_len == 0);
            }
            AdminOutcome::Pending => {
                // A host that uses an identifier twice cannot tell the answers apart; neither can this set.
                self.requests.insert((handle, sqe.cid.get()));
            }
            AdminOutcome::SetPersistence { nsid, on } => {
                self.reserve(handle, nsid, &Request::Persistence(on));
            }
            AdminOutcome::Format => {
                let command = FormatCommand::of(&sqe);
                let checked = self.target.check_format(handle, sqe.nsid.get(), &command);
                let subsystem = checked.expect("nothing has changed since it was let in");
                let namespace = self.target.namespace(subsystem, sqe.nsid.get()).expect("what is formatted exists");
                assert!(namespace.crypto_erase && !namespace.read_only);
            }
            AdminOutcome::Quiesce { subsystem, .. } => {
                let found = self.target.controller(handle).expect("no controller resets itself");
                assert_eq!(found.subsystem(), subsystem);
            }
            AdminOutcome::Abort { sqid, .. } => {
                assert!((1..=CONFIG_QUEUES).contains(&sqid));
                if program.u8() < 128 {
                    let cqe = self.target.abort_done(handle, sqe.cid.get(), true);
                    assert!(cqe.status().is_success());
                }
            }
        }
    }

    fn fabrics(&mut self, program: &mut Program, coverage: &mut Coverage) {
        let Some(handle) = self.pick(program) else { return };
        count_pdu();
        let mut sqe = program.sqe();
        sqe.opcode = FABRICS;
        if program.u8() < 200 {
            let kind = FabricsType::ALL[usize::from(program.u8()) % FabricsType::ALL.len()];
            sqe.nsid = U32::new(kind as u32);
        }
        let qid = u16::from(program.u8() % 3);
        if let Some((state, _)) = self.state(handle) {
            coverage.fabrics.insert((state, qid == 0, sqe.nsid.get() as u8));
        }
        let (cqe, close) = self.target.fabrics(self.now_ns, handle, qid, &sqe);
        assert_eq!(cqe.cid, sqe.cid);
        assert!(!close || (qid != 0 && fabrics::fabrics_type(&sqe) == Some(FabricsType::Disconnect)));
        if self.state(handle).is_none_or(|(state, _)| state == ControllerState::Disabled) {
            self.requests.retain(|(owner, _)| *owner != handle);
        }
    }

    fn io(&mut self, program: &mut Program, coverage: &mut Coverage) {
        count_pdu();
        let mut sqe = program.sqe();
        if program.u8() < 230 {
            sqe.flags = FLAG_SGL | (program.u8() % 3);
            sqe.nsid = U32::new(1);
            sqe.set_cdw10_11(u64::from(program.u32()));
            sqe.cdw12 = U32::new(program.u32());
            sqe.sgl = SglDescriptor::transport(program.u32());
        }
        if program.u8() < 64 {
            let blocks = BlockCommand::plain(u64::from(program.u8() & 1), 1);
            let (opcode, fused) = if program.u8() & 1 == 0 || !self.fused.is_waiting() {
                (NvmOpcode::Compare, Fused::First)
            } else {
                (NvmOpcode::Write, Fused::Second)
            };
            sqe = command::with_transport_data(command::blocks(opcode, 1, &blocks), 1 << 16).with_fused(fused);
        }
        coverage.io.insert((self.fused.is_waiting(), sqe.opcode));
        if self.queue.submit().is_err() {
            assert_eq!(self.queue.outstanding(), 8);
            while self.queue.outstanding() > 0 {
                self.queue.complete(&mut Cqe::success(0, 0));
            }
            return;
        }
        let Some(namespace) = self.target.namespace(self.subsystems[0], 1).copied() else { return };
        let Ok(io) = io::decode(&sqe, |nsid| (nsid == 1).then_some(&namespace), 1 << 20) else {
            self.fused.interrupt();
            return;
        };
        assert!(io.slba + u64::from(io.block_count) <= namespace.block_count);
        assert!(io.data_len <= 1 << 20 && io.data_len <= sqe.sgl.length.get());
        if let IoOp::Copy { range_count } = io.op {
            let data = program.bytes(4096);
            if let Ok(ranges) = io::copy_ranges(data, range_count, io.slba, &namespace) {
                let blocks = ranges.iter().map(|(_, block_count)| u64::from(*block_count)).sum::<u64>();
                assert!(io.slba + blocks <= namespace.block_count);
                assert!(ranges.iter().all(|(slba, count)| slba + u64::from(*count) <= namespace.block_count));
            }
        }
        // The same command, where there are zones.
        let zones =
            Zoned { zone_blocks: namespace.block_count, open_zones_max: 0, active_zones_max: 0, extension_bytes: 64 };
        let zoned = Namespace { zoned: Some(zones), ..namespace };
        if let Ok(io) = io::decode(&sqe, |nsid| (nsid == 1).then_some(&zoned), 1 << 20) {
            assert!(io.slba + u64::from(io.block_count) <= zoned.block_count && io.data_len <= 1 << 20);
        }
        if let IoOp::Deallocate { range_count } = io.op {
            let data = program.bytes(4096);
            if let Ok(ranges) = io::dsm_ranges(data, range_count, &namespace) {
                for (slba, block_count) in ranges {
                    assert!(slba + u64::from(block_count) <= namespace.block_count);
                }
            }
        }
        if let (IoOp::Reserve(command), Some(handle)) = (io.op, self.pick(program)) {
            let keys = Keys::new(u64::from(program.u8() & 3), u64::from(program.u8() & 3));
            self.reserve(handle, 1, &Request::Command(command, keys));
        }
        if let (IoOp::ReservationReport { extended }, Some(handle)) = (io.op, self.pick(program)) {
            let mut out = vec![0xee; io.data_len as usize];
            let _ = self.target.report_reservations(handle, 1, extended, &mut out);
        }
        let (sequence, _) = self.fused.next(io);
        if let Sequence::CompareAndWrite { compare, write } = sequence {
            assert_eq!((compare.slba, compare.block_count), (write.slba, write.block_count));
        }
        assert_eq!(sequence == Sequence::Wait, self.fused.is_waiting());
    }

    /// A well-formed command that changes reservations, of either host.
    fn reservation(&mut self, program: &mut Program, coverage: &mut Coverage) {
        let Some(handle) = self.pick(program) else { return };
        let Some(subsystem) = self.target.controller(handle).map(|found| found.subsystem()) else { return };
        let mut sqe = Sqe::nvm(NvmOpcode::ReservationRegister, 1, 1);
        let (choice, action) = (program.u8(), program.u8() % 3);
        sqe.opcode = match choice % 3 {
            0 => NvmOpcode::ReservationRegister,
            1 => NvmOpcode::ReservationAcquire,
            _ => NvmOpcode::ReservationRelease,
        } as u8;
        // One type of each sort, and rather few, so that hosts name the one that is held.
        let rtype = [1, 4, 5][usize::from(program.u8() % 3)];
        let ignore = u32::from(choice % 3 == 0 && choice & 64 != 0);
        sqe.cdw10 = U32::new(u32::from(action) | ignore << 3 | rtype << 8);
        let Some(command) = ReservationCommand::of(&sqe) else { return };
        let keys = Keys::new(u64::from(program.u8() % 2 + 1), u64::from(program.u8() % 3));
        let was_held = self.target.reservations(subsystem, 1).reservation().is_some();
        let done = self.reserve(handle, 1, &Request::Command(command, keys));
        coverage.reservations.insert((was_held, sqe.opcode, action, done));
    }

    /// Changes reservations; the table checks itself with each change. True if it was carried out.
    fn reserve(&mut self, handle: ControllerHandle, nsid: u32, request: &Request) -> bool {
        let planned = self.target.plan_reservation(handle, nsid, request);
        if let Ok(planned) = planned {
            let (subsystem, nsid) = planned.namespace();
            self.target.commit_reservation(planned).expect("the namespace is there");
            let held = self.target.reservations(subsystem, nsid).reservation();
            assert_eq!(self.target.access(subsystem, nsid).is_some(), held.is_some());
            return true;
        }
        false
    }

    fn transfer(&mut self, program: &mut Program) {
        if program.u8() < 100 {
            let (offset, len) = (program.u32() >> 1, (program.u32() >> 1).max(1));
            match self.r2ts.open(program.u16(), offset, len) {
                Some(r2t) => self.open.push((r2t, 0)),
                None => assert_eq!(self.open.len(), 3),
            }
            return;
        }
        let index = usize::from(program.u8()) % 3;
        let known = self.open.get(index).copied();
        let flags = program.u8();
        let mut data = DataHeader {
            cccid: program.u16(),
            ttag: program.u16(),
            offset: program.u32(),
            len: program.u32().max(1),
            last: flags & 1 != 0,
            success: false,
        };
        if let Some((r2t, received)) = known.filter(|_| flags & 2 != 0) {
            let len = if flags & 4 != 0 { r2t.len - received } else { data.len };
            data = DataHeader { cccid: r2t.cccid, ttag: r2t.ttag, offset: r2t.offset + received, len, ..data };
        }
        if let Ok(accepted) = self.r2ts.accept(&data) {
            let at = self.open.iter().position(|(r2t, _)| r2t.ttag == data.ttag).expect("an open one");
            let (r2t, received) = &mut self.open[at];
            *received += accepted.len;
            assert_eq!(accepted.complete, *received == r2t.len);
            let end = u64::from(accepted.offset) + u64::from(accepted.len);
            assert!(accepted.offset >= r2t.offset && end <= u64::from(r2t.offset) + u64::from(r2t.len));
            if accepted.complete {
                self.open.remove(at);
            }
        }
        assert_eq!(self.r2ts.outstanding(), self.open.len());
    }

    fn operate(&mut self, program: &mut Program) {
        let id = self.subsystems[usize::from(program.u8()) % self.subsystems.len()];
        let nsid = u32::from(program.u8() % 8);
        match program.u8() % 9 {
            0 => {
                let namespace = Namespace { crypto_erase: nsid & 1 == 1, ..Namespace::new(9, 100, uuid::Uuid::nil()) };
                drop(self.target.add_namespace(id, Some(nsid), namespace));
            }
            1 => drop(self.target.remove_namespace(id, nsid)),
            2 => drop(self.target.resize_namespace(id, nsid, u64::from(program.u32()), nsid & 1 == 1)),
            3 => drop(self.target.set_allow_any_host(id, program.u8() & 1 == 0)),
            4 => drop(self.target.allow_host(id, nqn(1))),
            5 => drop(self.target.disallow_host(id, &nqn(1))),
            6 => self.target.add_port(
                u16::from(program.u8() % 4),
                SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4420)),
                false,
            ),
            7 => self.target.remove_port(u16::from(program.u8() % 4)),
            _ => {
                if let Some(handle) = self.pick(program) {
                    self.target.queue_closed(handle, u16::from(program.u8() % 5));
                }
            }
        }
    }

    fn drain(&mut self) {
        let mut count = 0;
        while let Some(event) = self.target.poll_event() {
            count += 1;
            assert!(count < 1000, "events are bounded by what exists");
            match event {
                TargetEvent::Complete { controller, cqe } => {
                    // The same identifier may have been used twice, see above.
                    self.requests.remove(&(controller, cqe.cid.get()));
                }
                TargetEvent::CloseController { controller, .. } => {
                    assert!(self.target.controller(controller).is_none());
                    self.requests.retain(|(owner, _)| *owner != controller);
                }
                TargetEvent::CloseQueue { qid, .. } => assert!((1..=CONFIG_QUEUES).contains(&qid)),
                TargetEvent::Reset { controller } => self.target.reset_complete(controller),
                TargetEvent::Shutdown { .. }
                | TargetEvent::WriteCache { .. }
                | TargetEvent::ReservationChanged { .. }
                | TargetEvent::NamespaceChanged { .. } => {}
            }
        }
        self.controllers.retain(|handle| self.target.controller(*handle).is_some());
        for handle in &self.controllers {
            let outstanding = self.requests.iter().filter(|(owner, _)| owner == handle).count();
            assert!(outstanding <= crate::target::AER_MAX, "requests are bounded");
        }
        assert!(self.controllers.len() <= 8);
    }
}

/// Feeds one PDU of every type to a decoder in every phase; for [`Coverage::pdus`].
pub fn cover_pdus(coverage: &mut Coverage) {
    let params =
        ReceiveParams { header_digest: false, data_digest: false, alignment: 4, capsule_data_max: 0, data_max: 4096 };
    for side in [Side::Target, Side::Host] {
        for value in 0..=255u8 {
            let hlen = PduType::from_u8(value).map_or(24, PduType::hlen);
            let mut bytes = [0u8; 132];
            (bytes[0], bytes[2], bytes[4]) = (value, hlen, hlen);
            for (index, decoder) in [Decoder::new(side), ready_decoder(side, params)].into_iter().enumerate() {
                let mut decoder = decoder;
                let _ = decoder.next(&mut &bytes[..usize::from(hlen)]);
                coverage.pdus.insert((index as u8, side == Side::Target, value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// xorshift64*: the same inputs on every run.
    fn inputs(seed: u64, count: usize, len: usize) -> impl Iterator<Item = Vec<u8>> {
        let mut state = seed;
        let mut next = move || {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            state.wrapping_mul(0x2545_f491_4f6c_dd1d)
        };
        (0..count).map(move |_| (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect())
    }

    #[test]
    fn every_pair_of_state_and_opcode_is_reached() {
        let mut coverage = Coverage::default();
        for input in inputs(1, 4000, 8192) {
            fuzz_target_state_covering(&input, &mut coverage);
        }
        use ControllerState::*;
        for state in [Disabled, Ready, ShuttingDown, ShutDown] {
            for opcode in (0..=255u8).filter(|opcode| *opcode != FABRICS) {
                for is_discovery in [false, true] {
                    assert!(
                        coverage.admin.contains(&(state, is_discovery, opcode)),
                        "{state:?} {is_discovery} {opcode}"
                    );
                }
            }
            for kind in FabricsType::ALL {
                for is_admin in [false, true] {
                    assert!(
                        coverage.fabrics.contains(&(state, is_admin, *kind as u8)),
                        "{state:?} {is_admin} {kind:?}"
                    );
                }
            }
        }
        for was_held in [false, true] {
            for (opcode, actions) in [
                (NvmOpcode::ReservationRegister, 3),
                (NvmOpcode::ReservationAcquire, 3),
                (NvmOpcode::ReservationRelease, 2),
            ] {
                for action in 0..actions {
                    for done in [false, true] {
                        let reached = coverage.reservations.contains(&(was_held, opcode as u8, action, done));
                        assert!(reached, "{was_held} {opcode:?} {action} {done}");
                    }
                }
            }
        }
        for opcode in 0..=255u8 {
            for waiting in [false, true] {
                assert!(coverage.io.contains(&(waiting, opcode)), "{waiting} {opcode:02x}");
            }
        }
    }

    #[test]
    fn every_pdu_type_is_tried_in_every_phase() {
        let mut coverage = Coverage::default();
        cover_pdus(&mut coverage);
        assert_eq!(coverage.pdus.len(), 2 * 2 * 256);
    }

    #[test]
    fn the_codec_survives_a_fixed_set_of_programs() {
        for input in inputs(2, 20_000, 256) {
            fuzz_codec(&input);
        }
    }

    #[test]
    fn the_host_survives_a_fixed_set_of_programs() {
        for input in inputs(3, 20_000, 128) {
            fuzz_host(&input);
        }
    }

    #[test]
    fn authentication_survives_a_fixed_set_of_programs() {
        for input in inputs(4, 10_000, 128) {
            fuzz_authentication(&input);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_programs_find_nothing(input in proptest::collection::vec(any::<u8>(), 0..600)) {
            fuzz_codec(&input);
            fuzz_host(&input);
            fuzz_authentication(&input);
            fuzz_target_state(&input);
        }
    }
}
