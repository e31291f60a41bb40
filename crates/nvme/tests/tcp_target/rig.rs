//! A target on reactors, and a host that sends exactly what a test says, over a blocking socket.

use base::crc32c;
use bdev::{BlockDevice, MemDevice};
use nvme::host::command;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::property::{Configuration, ControllerStatus};
use nvme::spec::sqe::BlockCommand;
use nvme::spec::{Cqe, Nqn, Sqe, Status};
use nvme::target::SubsystemConfig;
use nvme::tcp::pdu::HEADER_SPACE;
use nvme::tcp::{DataHeader, Decoder, Encoder, Header, Item, Negotiated, R2t, Side, TransportOptions, negotiate};
use nvme::tcp_target::{Config, TargetHome, TcpTarget};
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{PollPolicy, ReactorConfig};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

pub const NQN: &str = "nqn.2026-11.io.remuda:test";
pub const HOST: &str = "nqn.2026-11.io.remuda:host";
/// Its identifier.
pub const HOST_ID: [u8; 16] = [9; 16];
/// Blocks of the namespace of [`Rig::new`], 512 bytes each.
pub const BLOCKS: u64 = 16 << 10;
/// No test waits longer than this for a PDU.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Rig {
    pub target: TcpTarget,
    pub address: SocketAddr,
    _runtime: Runtime,
}

impl Rig {
    /// A target with one memory namespace of [`BLOCKS`] blocks.
    pub fn new(reactors: usize, config: Config) -> Rig {
        let rig = Rig::empty(reactors, config);
        rig.add(NQN, Arc::new(MemDevice::new("mem", 512, BLOCKS, BLOCKS * 2).expect("memory")));
        rig
    }

    pub fn empty(reactors: usize, config: Config) -> Rig {
        let reactor = ReactorConfig { policy: PollPolicy::Sleep, ..ReactorConfig::default() };
        let config_of_runtime = RuntimeConfig { cores: vec![None; reactors], reactor, drain_max_ns: 10_000_000_000 };
        let runtime = Runtime::start(&config_of_runtime).expect("reactors start");
        let target = TcpTarget::new(runtime.handles(), config);
        let address = target.call(|home| {
            home.add_subsystem(SubsystemConfig::new(nqn(NQN)))?;
            home.listen("127.0.0.1:0".parse().expect("an address"))
        });
        Rig { address: address.expect("listens"), target, _runtime: runtime }
    }

    pub fn add(&self, subsystem: &'static str, device: Arc<dyn BlockDevice>) -> u32 {
        let uuid = uuid::Uuid::from_u128(7);
        self.with(move |home| home.add_namespace(subsystem, None, device, uuid).expect("added"))
    }

    pub fn with<T: Send + 'static>(&self, action: impl FnOnce(&TargetHome) -> T + Send + 'static) -> T {
        self.target.call(move |home| Ok(action(home))).expect("the target runs")
    }

    /// A host with an enabled controller, and `queues` I/O queues of 32 entries.
    pub fn host(&self, queues: u16) -> Host {
        self.host_with(queues, TransportOptions::host())
    }

    pub fn host_with(&self, queues: u16, options: TransportOptions) -> Host {
        self.host_known_as(queues, options, HOST_ID)
    }

    /// The same with another host identifier.
    pub fn host_known_as(&self, queues: u16, options: TransportOptions, id: [u8; 16]) -> Host {
        self.host_at(self.address, HOST, id, queues, options)
    }

    /// A host of this name and identifier, by this portal.
    pub fn host_at(
        &self,
        address: SocketAddr,
        name: &str,
        id: [u8; 16],
        queues: u16,
        options: TransportOptions,
    ) -> Host {
        let mut admin = Wire::open(address, options);
        admin.host_id = id;
        let cqe = admin.connect(NQN, name, 0, None, 32, 0);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        let cntlid = cqe.dw0() as u16;
        admin.ok(command::set_configuration(Configuration::ENABLE));
        let io = (1..=queues).map(|qid| {
            let mut queue = Wire::open(address, options);
            queue.host_id = id;
            let cqe = queue.connect(NQN, name, qid, Some(cntlid), 32, 0);
            assert!(cqe.status().is_success(), "{}", cqe.status());
            queue
        });
        let io = io.collect();
        Host { cntlid, admin, io }
    }

    pub fn wait_until(&self, what: &str, mut ready: impl FnMut(&TargetHome) -> bool + Send + Clone + 'static) {
        for _ in 0..2000 {
            let mut look = ready.clone();
            if self.with(move |home| look(home)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = &mut ready;
        panic!("in vain: {what}");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.with(|home| home.close());
        }
    }
}

pub struct Host {
    pub cntlid: u16,
    pub admin: Wire,
    pub io: Vec<Wire>,
}

impl Host {
    /// Waits for the end of a reset.
    pub fn wait_disabled(&mut self) {
        while ControllerStatus(self.admin.ok(command::get_status()).0).ready() {}
    }
}

pub fn nqn(text: &str) -> Nqn {
    Nqn::new(text).expect("valid")
}

#[derive(Debug)]
pub struct Pdu {
    pub header: Header,
    pub data: Vec<u8>,
    pub digest_ok: bool,
}

/// One connection of a host.
pub struct Wire {
    pub stream: TcpStream,
    pub agreed: Negotiated,
    decoder: Decoder,
    inbox: Vec<u8>,
    next_cid: u16,
    /// With which it connects.
    pub host_id: [u8; 16],
}

impl Wire {
    /// A socket and nothing more.
    pub fn socket(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        stream.set_nodelay(true).expect("settable");
        stream
    }

    /// A connection after the exchange of ICReq and ICResp.
    pub fn open(address: SocketAddr, options: TransportOptions) -> Wire {
        let mut stream = Wire::socket(address);
        stream.write_all(&options.request().encode()).expect("sent");
        let mut response = [0; 128];
        stream.read_exact(&mut response).expect("answered");
        let mut decoder = Decoder::new(Side::Host);
        let Ok(Some(Item::Whole { header: Header::IcResp(response), .. })) = decoder.next(&mut &response[..]) else {
            panic!("an ICResp")
        };
        let agreed = negotiate::conclude(&options, &response).expect("what was asked for");
        decoder.establish(agreed.receive);
        Wire { stream, agreed, decoder, inbox: Vec::new(), next_cid: 1, host_id: HOST_ID }
    }

    pub fn encoder(&self) -> Encoder {
        Encoder::new(self.agreed.send)
    }

    pub fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid % 0xfff0 + 1;
        self.next_cid
    }

    /// A header and its data as they go over the wire.
    pub fn encode(&self, write: impl Fn(&Encoder, &mut [u8]) -> usize, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_SPACE];
        let encoder = self.encoder();
        let len = write(&encoder, &mut bytes);
        bytes.truncate(len);
        bytes.extend_from_slice(data);
        if !data.is_empty() && encoder.data_digest() {
            bytes.extend_from_slice(&crc32c(data).to_le_bytes());
        }
        bytes
    }

    pub fn capsule(&self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        self.encode(|encoder, out| encoder.capsule_cmd(out, sqe, data.len() as u32), data)
    }

    pub fn h2c(&self, r2t: &R2t, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        let len = data.len() as u32;
        let header = DataHeader { cccid: r2t.cccid, ttag: r2t.ttag, offset, len, last, success: false };
        self.encode(|encoder, out| encoder.h2c_data(out, &header), data)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    /// Sends, whether the other end still takes it or not.
    pub fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn submit(&mut self, sqe: &Sqe, data: &[u8]) {
        let bytes = self.capsule(sqe, data);
        self.send(&bytes);
    }

    /// The next PDU; `None` at the end of the connection.
    pub fn recv(&mut self) -> Option<Pdu> {
        loop {
            if let Some(len) = self.inbox.get(4..8).map(|len| u32::from_le_bytes(len.try_into().expect("four")))
                && self.inbox.len() >= len as usize
            {
                let bytes: Vec<u8> = self.inbox.drain(..len as usize).collect();
                match self.decoder.next(&mut &bytes[..]).expect("the target keeps the rules") {
                    Some(Item::Whole { header, data, digest_ok }) => {
                        return Some(Pdu { header, data: data.to_vec(), digest_ok });
                    }
                    other => panic!("{other:?}"),
                }
            }
            let mut piece = [0; 64 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(len) => self.inbox.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no PDU in time"),
                // A ring that this thread had a moment ago interrupts it.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// The next PDU must be a response.
    pub fn response(&mut self) -> Cqe {
        match self.recv().expect("the connection lives").header {
            Header::CapsuleResp(cqe) => cqe,
            other => panic!("a response, not {other:?}"),
        }
    }

    pub fn r2t(&mut self) -> R2t {
        match self.recv().expect("the connection lives").header {
            Header::R2t(r2t) => r2t,
            other => panic!("an R2T, not {other:?}"),
        }
    }

    /// The connection ends with this fatal error status and information, and then closes.
    pub fn expect_termination(&mut self, fes: u16, fei: u32) -> Vec<u8> {
        loop {
            let pdu = self.recv().expect("a termination before the end");
            if let Header::TermReq(term) = pdu.header {
                assert_eq!((term.fes, term.fei), (fes, fei));
                self.expect_end();
                return pdu.data;
            }
        }
    }

    pub fn expect_end(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        while self.recv().is_some() {}
    }

    pub fn connect(
        &mut self,
        subsystem: &str,
        host: &str,
        qid: u16,
        cntlid: Option<u16>,
        entries: u16,
        kato: u32,
    ) -> Cqe {
        let data = command::connect_data(self.host_id, &nqn(host), &nqn(subsystem), cntlid);
        let cid = self.cid();
        let sqe = command::with_cid(command::connect(qid, entries, kato), cid);
        self.submit(&sqe, zerocopy::IntoBytes::as_bytes(&data));
        let cqe = self.response();
        assert_eq!(cqe.cid.get(), cid);
        cqe
    }

    /// Carries a command through: sends in the capsule what `sqe` says is there, answers R2Ts from `data`.
    pub fn run(&mut self, sqe: Sqe, data: &[u8]) -> (Status, u32, Vec<u8>) {
        let cid = self.cid();
        let sqe = command::with_cid(sqe, cid);
        let in_capsule = sqe.sgl.kind == nvme::spec::sgl::KIND_IN_CAPSULE;
        self.submit(&sqe, if in_capsule { data } else { &[] });
        let mut received = Vec::new();
        loop {
            let pdu = self.recv().expect("the connection lives");
            assert!(pdu.digest_ok);
            match pdu.header {
                Header::R2t(r2t) => {
                    assert_eq!(r2t.cccid, cid);
                    let (from, to) = (r2t.offset as usize, (r2t.offset + r2t.len) as usize);
                    let bytes = self.h2c(&r2t, r2t.offset, &data[from..to], true);
                    self.send(&bytes);
                }
                Header::C2hData(header) => {
                    assert_eq!((header.cccid, header.offset as usize), (cid, received.len()));
                    received.extend_from_slice(&pdu.data);
                    if header.success {
                        return (Status::SUCCESS, 0, received);
                    }
                }
                Header::CapsuleResp(cqe) => {
                    assert_eq!(cqe.cid.get(), cid);
                    return (cqe.status(), cqe.dw0(), received);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn ok(&mut self, sqe: Sqe) -> (u32, Vec<u8>) {
        let (status, dw0, data) = self.run(sqe, &[]);
        assert!(status.is_success(), "{status}");
        (dw0, data)
    }

    pub fn status(&mut self, sqe: Sqe, data: &[u8]) -> Status {
        self.run(sqe, data).0
    }

    pub fn read(&mut self, slba: u64, blocks: u32) -> Vec<u8> {
        let sqe = command::blocks(NvmOpcode::Read, 1, &BlockCommand::plain(slba, blocks));
        self.ok(command::with_transport_data(sqe, blocks * 512)).1
    }

    pub fn write(&mut self, slba: u64, data: &[u8]) -> Status {
        self.status(block_command(NvmOpcode::Write, slba, data, data.len() <= 8192), data)
    }
}

/// A command over as many blocks of 512 bytes as `data` fills.
pub fn block_command(opcode: NvmOpcode, slba: u64, data: &[u8], in_capsule: bool) -> Sqe {
    let sqe = command::blocks(opcode, 1, &BlockCommand::plain(slba, (data.len() / 512) as u32));
    let len = data.len() as u32;
    if in_capsule { command::with_capsule_data(sqe, len) } else { command::with_transport_data(sqe, len) }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31).wrapping_add(at >> 9) ^ seed.wrapping_mul(0x9e37)) as u8).collect()
}

/// Short limits, for tests that run into them.
pub fn impatient() -> Config {
    Config { handshake_timeout_ns: 300_000_000, stall_timeout_ns: 1_000_000_000, ..Config::default() }
}
