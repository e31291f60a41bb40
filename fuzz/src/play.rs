//! A program of what hosts, operators and the clock do to a target. Whatever it is: nothing panics, what the target sends
//! follows the rules, no command is answered twice; and when all hosts are gone nothing of them is left.

use crate::world::World;
use base::crc32c;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, MemDevice, Op, OpSet};
use nvme::fuzz::Program;
use nvme::host::command;
use nvme::spec::opcode::{FABRICS, NvmOpcode};
use nvme::spec::property::Configuration;
use nvme::spec::sgl::SglDescriptor;
use nvme::spec::sqe::{BlockCommand, FLAG_SGL, Fused};
use nvme::spec::{Nqn, Sqe};
use nvme::target::{SubsystemConfig, TargetConfig};
use nvme::tcp::pdu::HEADER_SPACE;
use nvme::tcp::{DataHeader, Decoder, Encoder, Header, Item, R2t, SendParams, Side, TransportOptions, negotiate};
use nvme::tcp_target::{Config, TargetHome, TcpTarget};
use reactor::{IoFuture, PoolConfig, Reactor, ReactorConfig};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

const NQN: &str = "nqn.2026-11.io.remuda:fuzz";
const HOST: &str = "nqn.2026-11.io.remuda:host";
const HOSTS_MAX: usize = 6;
/// Turns of 50 ms in which a target that is closing must have ended its connections.
const CLOSING_TURNS: usize = 120;
/// Turns after which a target that was left alone must have come to rest.
const TURNS_MAX: usize = 10_000;

/// Reads and writes a few blocks at a time, some time later.
struct Slow(MemDevice);

struct SlowChannel(Rc<dyn Channel>, Rc<Reactor>);

impl BlockDevice for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn kind(&self) -> &'static str {
        "slow"
    }

    fn info(&self) -> DeviceInfo {
        let ops = OpSet::of(&[Op::Read, Op::Write, Op::Flush, Op::CompareAndWrite, Op::Unmap]);
        DeviceInfo { ops, max_io_blocks: 16, ..self.0.info() }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(SlowChannel(self.0.open_channel(reactor)?, reactor.clone())))
    }
}

impl Channel for SlowChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let (channel, reactor) = (self.0.clone(), self.1.clone());
        IoFuture::steps(&self.1, async move {
            reactor.sleep_ns(1_000_000).await;
            channel.submit(io).await
        })
    }
}

/// One connection, from the host's side.
struct Wire {
    socket: u64,
    decoder: Decoder,
    encoder: Option<Encoder>,
    options: TransportOptions,
    /// What the target sent and was not decoded yet.
    inbox: Vec<u8>,
    /// Commands without answer, by identifier.
    outstanding: BTreeMap<u16, u32>,
    r2ts: Vec<(R2t, u32)>,
    /// The host has kept the rules so far: no damage, no cut PDU.
    is_clean: bool,
    cntlid: Option<u16>,
    /// The answer to this Connect names the controller.
    connecting: Option<u16>,
}

struct Play<'a> {
    program: Program<'a>,
    world: Rc<World>,
    reactor: Rc<Reactor>,
    home: TargetHome,
    wires: Vec<Wire>,
    cntlids: Vec<u16>,
}

/// Plays a program.
pub fn play(input: &[u8]) {
    let world = Rc::new(World::default());
    let pool = PoolConfig { bytes_max: 8 << 20 };
    let reactor = Reactor::new(0, world.clone(), ReactorConfig { pool, ..ReactorConfig::default() });
    let model = TargetConfig { io_queues_max: 4, controllers_max: 4, ..TargetConfig::default() };
    let config = Config { model, connections_max: HOSTS_MAX - 1, ..Config::default() };
    let home = TcpTarget::new(&[reactor.handle()], config).at_home(&reactor);
    home.add_subsystem(SubsystemConfig::new(Nqn::new(NQN).expect("valid"))).expect("new");
    for nsid in [1, 2] {
        add_namespace(&home, nsid);
    }
    home.listen("127.0.0.1:4420".parse().expect("an address")).expect("listens");
    let mut play = Play { program: Program(input), world, reactor, home, wires: Vec::new(), cntlids: Vec::new() };
    play.begin();
    while !play.program.is_empty() {
        play.step();
    }
    play.end();
}

fn add_namespace(home: &TargetHome, nsid: u32) {
    let memory = MemDevice::new("mem", 512, 4096, 4096).expect("memory");
    let device: Arc<dyn BlockDevice> = if nsid == 2 { Arc::new(Slow(memory)) } else { Arc::new(memory) };
    let _ = home.add_namespace(NQN, Some(nsid), device, uuid::Uuid::from_u128(u128::from(nsid)));
}

impl Play<'_> {
    /// An admin queue and an I/O queue, so that every program gets past the first steps.
    fn begin(&mut self) {
        let flags = self.program.u8();
        self.open(flags);
        self.connect(0, 0, 0xffff);
        self.settle();
        self.command(0, command::set_configuration(Configuration::ENABLE), &[]);
        self.settle();
        self.open(flags >> 2);
        let cntlid = self.cntlids.first().copied().unwrap_or(0);
        self.connect(1, 1, cntlid);
        self.settle();
    }

    fn turn(&mut self) {
        self.reactor.turn();
        for index in 0..self.wires.len() {
            self.receive(index, 0);
        }
    }

    fn settle(&mut self) {
        for _ in 0..6 {
            self.turn();
        }
    }

    fn step(&mut self) {
        match self.program.u8() {
            0..8 => {
                let flags = self.program.u8();
                self.open(flags);
            }
            8..24 => {
                let Some(index) = self.pick() else { return };
                let qid = u16::from(self.program.u8() % 6);
                let known = usize::from(self.program.u8());
                let cntlid = match qid {
                    0 => 0xffff,
                    _ if self.cntlids.is_empty() => 1,
                    _ => self.cntlids[known % self.cntlids.len()],
                };
                self.connect(index, qid, cntlid);
            }
            24..120 => self.io_command(),
            120..150 => self.admin_command(),
            150..196 => self.answer_r2t(),
            196..204 => self.damaged(),
            204..210 => {
                let Some(index) = self.pick() else { return };
                let len = usize::from(self.program.u8());
                let bytes = self.program.bytes(len).to_vec();
                self.wires[index].is_clean &= bytes.is_empty();
                self.world.send(self.wires[index].socket, &bytes);
            }
            210..218 => {
                let Some(index) = self.pick() else { return };
                let room = 1usize << (self.program.u8() % 24);
                self.receive(index, room);
            }
            218..222 => {
                let Some(index) = self.pick() else { return };
                self.world.end(self.wires[index].socket);
                self.wires[index].is_clean = false;
            }
            222..228 => self.operate(),
            228..236 => self.world.advance(u64::from(self.program.u16()) << (self.program.u8() % 20)),
            _ => self.turn(),
        }
    }

    fn pick(&mut self) -> Option<usize> {
        let index = usize::from(self.program.u8());
        (!self.wires.is_empty()).then(|| index % self.wires.len())
    }

    fn open(&mut self, flags: u8) {
        if self.wires.len() == HOSTS_MAX {
            let gone = self.wires.remove(0);
            self.world.end(gone.socket);
        }
        let options = TransportOptions {
            header_digest: flags & 1 != 0,
            data_digest: flags & 2 != 0,
            pda: [0, 1, 15, 31][usize::from(flags >> 2 & 3)],
            ..TransportOptions::host()
        };
        let socket = self.world.connect();
        self.world.send(socket, &options.request().encode());
        self.wires.push(Wire {
            socket,
            decoder: Decoder::new(Side::Host),
            encoder: None,
            options,
            inbox: Vec::new(),
            outstanding: BTreeMap::new(),
            r2ts: Vec::new(),
            is_clean: true,
            cntlid: None,
            connecting: None,
        });
        self.settle();
    }

    fn connect(&mut self, index: usize, qid: u16, cntlid: u16) {
        let (host, subsystem) = (Nqn::new(HOST).expect("valid"), Nqn::new(NQN).expect("valid"));
        let subsystem = if self.program.u8() < 240 { subsystem } else { Nqn::discovery() };
        let data = command::connect_data([1; 16], &host, &subsystem, Some(cntlid));
        let data: [u8; 1024] = zerocopy::transmute!(data);
        let kato_ms = u32::from(self.program.u8()) * 50;
        let cid = u16::from(self.program.u8());
        self.wires[index].connecting = (qid == 0).then_some(cid);
        self.command(index, command::with_cid(command::connect(qid, 16, kato_ms), cid), &data);
    }

    /// A capsule as the connection's parameters want it.
    fn command(&mut self, index: usize, sqe: Sqe, data: &[u8]) {
        let Some(bytes) = self.wires[index].capsule(&sqe, data) else { return };
        *self.wires[index].outstanding.entry(sqe.cid.get()).or_default() += 1;
        self.send(index, &bytes);
    }

    fn send(&mut self, index: usize, bytes: &[u8]) {
        let socket = self.wires[index].socket;
        if self.program.u8() < 230 {
            self.world.send(socket, bytes);
            return;
        }
        // In two pieces, with turns between them.
        let cut = usize::from(self.program.u16()) % (bytes.len() + 1);
        self.world.send(socket, &bytes[..cut]);
        self.reactor.turn();
        self.world.send(socket, &bytes[cut..]);
    }

    fn io_command(&mut self) {
        let Some(index) = self.pick() else { return };
        let kind = self.program.u8();
        let nsid = u32::from(kind & 1) + 1;
        let blocks = match (kind >> 1 & 7, kind & 1) {
            (0, 0) => 600,
            (1, _) => 40,
            (small, _) => u32::from(small) + 1,
        };
        let slba = u64::from(self.program.u8() & 0x3f);
        let mut block = BlockCommand::plain(slba, blocks);
        let flags = self.program.u8();
        (block.fua, block.deallocate) = (flags & 1 != 0, flags & 2 != 0);
        let opcode = match kind >> 4 {
            0..4 => NvmOpcode::Write,
            4..7 => NvmOpcode::Read,
            7 | 8 => NvmOpcode::Compare,
            9 => NvmOpcode::WriteZeroes,
            10 => NvmOpcode::Verify,
            11 => NvmOpcode::Flush,
            12 => NvmOpcode::DatasetManagement,
            _ => NvmOpcode::Compare,
        };
        let mut sqe = command::blocks(opcode, nsid, &block);
        if kind >> 4 >= 13 {
            let is_first = kind >> 4 == 13;
            let opcode = if is_first { NvmOpcode::Compare } else { NvmOpcode::Write };
            sqe = command::blocks(opcode, nsid, &BlockCommand::plain(slba & 1, 2));
            sqe = sqe.with_fused(if is_first { Fused::First } else { Fused::Second });
        }
        if opcode == NvmOpcode::DatasetManagement {
            sqe = command::deallocate(nsid, u32::from(flags & 15) + 1);
        }
        let len = match opcode {
            NvmOpcode::DatasetManagement => (u32::from(flags & 15) + 1) * 16,
            _ if kind >> 4 >= 13 => 1024,
            _ => blocks * 512,
        };
        let takes_data = matches!(sqe.opcode, 1 | 5 | 9);
        let in_capsule = takes_data && len <= 8192 && flags & 4 != 0;
        sqe = match in_capsule {
            true => command::with_capsule_data(sqe, len),
            false => command::with_transport_data(sqe, len),
        };
        sqe = command::with_cid(sqe, u16::from(self.program.u8() & 0x3f));
        if flags >= 250 {
            sqe = self.spoil(sqe);
        }
        let fill = flags & 0x10;
        let data = if in_capsule { vec![fill; len as usize] } else { Vec::new() };
        self.command(index, sqe, &data);
    }

    /// Any value in any field.
    fn spoil(&mut self, sqe: Sqe) -> Sqe {
        let mut bytes: [u8; 64] = zerocopy::transmute!(sqe);
        bytes[usize::from(self.program.u8()) % 64] = self.program.u8();
        zerocopy::transmute!(bytes)
    }

    fn admin_command(&mut self) {
        let Some(index) = self.pick() else { return };
        let mut sqe = self.program.sqe();
        sqe.flags = FLAG_SGL;
        sqe.cid = (sqe.cid.get() & 0x3f).into();
        sqe.nsid = self.program.u32().into();
        sqe.cdw10 = (self.program.u32() | u32::from(self.program.u16()) << 16).into();
        sqe.cdw11 = self.program.u32().into();
        let mut data = Vec::new();
        sqe.sgl = match self.program.u8() {
            0..128 => SglDescriptor::transport(4096),
            128..160 => SglDescriptor::transport(self.program.u32()),
            160..200 => {
                data = vec![0; usize::from(self.program.u16()) % 8193];
                SglDescriptor::in_capsule(0, data.len() as u32)
            }
            200..240 => {
                sqe = match self.program.u8() % 4 {
                    0 => command::set_configuration(Configuration::ENABLE),
                    1 => command::set_configuration(Configuration(0)),
                    2 => command::set_configuration(Configuration::ENABLE.with_shutdown(1)),
                    _ => command::disconnect(),
                };
                sqe.sgl
            }
            _ => sqe.sgl,
        };
        if sqe.opcode != FABRICS && self.program.u8() < 64 {
            sqe = command::with_cid(command::async_event_request(), sqe.cid.get());
            data.clear();
        }
        self.command(index, sqe, &data);
    }

    /// Data for an R2T, as asked for, in parts, or not at all what was asked for.
    fn answer_r2t(&mut self) {
        let Some(index) = self.pick() else { return };
        let choice = self.program.u8();
        let flags = self.program.u8();
        let wire = &mut self.wires[index];
        if wire.r2ts.is_empty() {
            return;
        }
        let at = usize::from(choice) % wire.r2ts.len();
        let (r2t, sent) = wire.r2ts[at];
        let left = r2t.len - sent;
        let len = if flags < 160 { left } else { left.min(u32::from(flags - 159) * 64) };
        let mut header = DataHeader {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            offset: r2t.offset + sent,
            len,
            last: len == left,
            success: false,
        };
        if len == left {
            wire.r2ts.remove(at);
        } else {
            wire.r2ts[at].1 += len;
        }
        if flags == 255 {
            wire.is_clean = false;
            match choice % 5 {
                0 => header.ttag ^= 1,
                1 => header.cccid ^= 1,
                2 => header.offset = header.offset.wrapping_add(4),
                3 => header.last = !header.last,
                _ => header.len += 4,
            }
        }
        let data = vec![flags & 0x10; header.len as usize];
        if let Some(bytes) = wire.pdu(|encoder, out| encoder.h2c_data(out, &header), &data) {
            self.send(index, &bytes);
        }
    }

    fn damaged(&mut self) {
        let Some(index) = self.pick() else { return };
        let sqe = command::with_cid(command::flush(1), 60);
        let Some(mut bytes) = self.wires[index].capsule(&sqe, &[0; 64]) else { return };
        let (at, flip) = (usize::from(self.program.u8()) % bytes.len(), self.program.u8());
        bytes[at] ^= flip;
        // An identifier may have been hit: such a connection's answers are not counted.
        self.wires[index].is_clean = false;
        self.send(index, &bytes);
    }

    fn operate(&mut self) {
        let nsid = u32::from(self.program.u8() & 1) + 1;
        match self.program.u8() % 8 {
            0 | 1 => add_namespace(&self.home, nsid),
            2 => drop(self.home.remove_namespace(NQN, nsid)),
            3 => self.home.refresh_sizes(),
            4 => drop(self.home.set_allow_any_host(NQN, self.program.u8() & 1 == 0)),
            5 => drop(self.home.allow_host(NQN, HOST)),
            6 => drop(self.home.disallow_host(NQN, HOST)),
            _ => {
                self.home.close();
                self.home.listen("127.0.0.1:4420".parse().expect("an address")).expect("listens");
            }
        }
    }

    /// Reads what the target sent, and holds it to the rules.
    fn receive(&mut self, index: usize, room: usize) {
        let wire = &mut self.wires[index];
        if let Some(bytes) = self.world.receive(wire.socket, room) {
            wire.inbox.extend_from_slice(&bytes);
        }
        while let Some(len) = wire.inbox.get(4..8).map(|len| u32::from_le_bytes(len.try_into().expect("four"))) {
            if wire.inbox.len() < len as usize {
                return;
            }
            let pdu: Vec<u8> = wire.inbox.drain(..len as usize).collect();
            let item = wire.decoder.next(&mut &pdu[..]).expect("the target keeps the rules of the transport");
            let Some(Item::Whole { header, data, digest_ok }) = item else { panic!("a whole PDU is an item") };
            assert!(digest_ok, "what the target sends has the right digest");
            let data_len = data.len() as u32;
            if let Some(cntlid) = wire.take(header, data_len) {
                self.cntlids.push(cntlid);
            }
        }
    }

    /// Everybody leaves; nothing remains.
    fn end(&mut self) {
        // Those who kept the rules wait for their answers first: reading everything, sending what they are asked for.
        let mut quiet = 0;
        while quiet < 8 {
            quiet += 1;
            self.turn();
            self.world.advance(2_000_000);
            for index in 0..self.wires.len() {
                self.receive(index, 1 << 24);
                while let Some((r2t, sent)) = self.wires[index].r2ts.pop() {
                    quiet = 0;
                    let len = r2t.len - sent;
                    let header = DataHeader {
                        cccid: r2t.cccid,
                        ttag: r2t.ttag,
                        offset: r2t.offset + sent,
                        len,
                        last: true,
                        success: false,
                    };
                    let data = vec![0; len as usize];
                    let Some(bytes) = self.wires[index].pdu(|encoder, out| encoder.h2c_data(out, &header), &data)
                    else {
                        continue;
                    };
                    self.world.send(self.wires[index].socket, &bytes);
                }
            }
        }
        // A target that is closing takes nothing more, and gives devices and hosts a few seconds.
        for _ in 0..CLOSING_TURNS {
            if self.wires.iter().all(|wire| self.world.unread(wire.socket) == 0) {
                break;
            }
            self.world.advance(50_000_000);
            self.reactor.turn();
            (0..self.wires.len()).for_each(|index| self.receive(index, 1 << 24));
        }
        for wire in &self.wires {
            assert_eq!(self.world.unread(wire.socket), 0, "everything is received");
            self.world.end(wire.socket);
        }
        let mut turns = 0;
        while self.home.connections() > 0 || !self.home.hosts().is_empty() || self.reactor.live_tasks() > 1 {
            // The last task accepts connections.
            self.world.advance(50_000_000);
            self.reactor.turn();
            turns += 1;
            assert!(
                turns < TURNS_MAX,
                "{} connections, {} hosts, {} tasks are left",
                self.home.connections(),
                self.home.hosts().len(),
                self.reactor.live_tasks()
            );
        }
        self.home.close();
        for _ in 0..10 {
            self.reactor.turn();
        }
        assert_eq!(self.reactor.live_tasks(), 0, "a closed target leaves no task");
        self.reactor.close();
    }
}

impl Wire {
    fn pdu(&self, write: impl Fn(&Encoder, &mut [u8]) -> usize, data: &[u8]) -> Option<Vec<u8>> {
        let encoder = self.encoder?;
        let mut bytes = vec![0; HEADER_SPACE];
        let len = write(&encoder, &mut bytes);
        bytes.truncate(len);
        bytes.extend_from_slice(data);
        if !data.is_empty() && encoder.data_digest() {
            bytes.extend_from_slice(&crc32c(data).to_le_bytes());
        }
        Some(bytes)
    }

    fn capsule(&self, sqe: &Sqe, data: &[u8]) -> Option<Vec<u8>> {
        self.pdu(|encoder, out| encoder.capsule_cmd(out, sqe, data.len() as u32), data)
    }

    /// Takes a PDU; returns the controller that a Connect made.
    fn take(&mut self, header: Header, data_len: u32) -> Option<u16> {
        match header {
            Header::IcResp(response) => {
                let agreed = negotiate::conclude(&self.options, &response).expect("only what was asked for");
                self.decoder.establish(agreed.receive);
                let SendParams { .. } = agreed.send;
                self.encoder = Some(Encoder::new(agreed.send));
            }
            Header::CapsuleResp(cqe) => {
                self.answered(cqe.cid.get());
                if self.connecting == Some(cqe.cid.get()) && cqe.status().is_success() {
                    self.connecting = None;
                    self.cntlid = Some(cqe.dw0() as u16);
                    return self.cntlid;
                }
            }
            Header::C2hData(header) => {
                assert_eq!(header.len, data_len);
                assert!(!self.is_clean || self.outstanding.contains_key(&header.cccid), "data for a command");
                if header.success {
                    self.answered(header.cccid);
                }
            }
            Header::R2t(r2t) => {
                assert!(r2t.len > 0 && r2t.len <= 1 << 20);
                self.r2ts.push((r2t, 0));
            }
            Header::TermReq(_) => {}
            other => panic!("a target does not send {other:?}"),
        }
        None
    }

    fn answered(&mut self, cid: u16) {
        if !self.is_clean {
            return;
        }
        let count = self.outstanding.get_mut(&cid).expect("an answer to a command that waits for one");
        *count -= 1;
        if *count == 0 {
            self.outstanding.remove(&cid);
        }
    }
}
