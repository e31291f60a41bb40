//! A tiny scripted NVMe/TCP target on plain threads: it does what a test's script says, right or wrong.

use nvme::spec::ana::{AnaGroupDescriptor, AnaHeader, AnaState};
use nvme::spec::event::EventResult;
use nvme::spec::fabrics::{ConnectCommand, PropertyCommand, fabrics_type};
use nvme::spec::feature::{Feature, event};
use nvme::spec::identify::{CMIC_ANA, Cns, IdentifyController, IdentifyNamespace};
use nvme::spec::log::LogPage;
use nvme::spec::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use nvme::spec::property::{self, Capabilities};
use nvme::spec::sgl::DataLocation;
use nvme::spec::sqe::{BlockCommand, IdentifyCommand};
use nvme::spec::{Cqe, Sqe, Status};
use nvme::tcp::{
    DataHeader, Decoder, Encoder, Header, IcResp, Item, R2t, ReceiveParams, SendParams, Side, alignment_of, pdu,
};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

pub const BLOCK: usize = 512;
pub const BLOCKS: usize = 4096;
/// Groups of access states: more than one page of their log tells.
pub const GROUPS: u32 = 700;

/// What the target offers.
#[derive(Clone, Debug)]
pub struct Config {
    pub cpda: u8,
    pub maxh2cdata: u32,
    pub capsule_data: u32,
    /// Power of two of 4 KiB pages; 0 is no limit.
    pub mdts: u8,
    pub queue_entries: u32,
    pub queues: u32,
    /// Most bytes per C2HData.
    pub piece: usize,
    /// C2HData carries the success flag instead of a response.
    pub success: bool,
    /// C2HData of one read come in reverse order (at most four).
    pub reverse: bool,
    /// Bytes asked for with each R2T.
    pub r2t_bytes: u32,
    /// R2Ts outstanding per command.
    pub r2ts: usize,
    pub uuid: [u8; 16],
    /// Command quiesce time.
    pub cqt_ms: u16,
    /// CIU and CIRN: the target resets other controllers.
    pub instance: Option<(u8, u64)>,
    /// The access state that it reports, if it does, and ANATT in seconds.
    pub ana: Option<(AnaState, u8)>,
    /// It has a volatile write cache.
    pub volatile_cache: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            cpda: 0,
            maxh2cdata: 8192,
            capsule_data: 4096,
            mdts: 4,
            queue_entries: 128,
            queues: 16,
            piece: 4096,
            success: true,
            reverse: false,
            r2t_bytes: 8192,
            r2ts: 1,
            uuid: [7; 16],
            cqt_ms: 0,
            instance: None,
            ana: None,
            volatile_cache: false,
        }
    }
}

/// A command as the script sees it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub controller: u16,
    pub queue: u16,
    pub sqe: Sqe,
    pub at: Instant,
}

impl Seen {
    pub fn is_io(&self, opcode: NvmOpcode) -> bool {
        self.queue > 0 && self.sqe.opcode == opcode as u8
    }

    pub fn is_admin(&self, opcode: AdminOpcode) -> bool {
        self.queue == 0 && self.sqe.opcode == opcode as u8
    }

    /// The value of a Property Set of `offset`.
    pub fn property_set(&self, offset: u32) -> Option<u32> {
        let command = PropertyCommand::of(&self.sqe);
        let is_set = fabrics_type(&self.sqe) == Some(FabricsType::PropertySet) && command.offset.get() == offset;
        is_set.then_some(command.value.get() as u32)
    }

    pub fn lba(&self) -> u64 {
        BlockCommand::of(&self.sqe).slba
    }
}

/// What to do with a command.
pub enum Action {
    /// What a target does.
    Serve,
    /// Nothing, ever.
    Ignore,
    /// Keep it; [`Fake::answer_parked`] completes it.
    Park,
    /// Answer with this status.
    Fail(Status),
    /// Send these bytes instead of an answer.
    Send(Vec<u8>),
    /// Serve it with a damaged data digest.
    Damage,
    /// Close this connection.
    Close,
    /// Close all connections.
    CloseAll,
    /// Take the write's data aside, close all connections; [`Fake::land_ghosts`] does the write.
    Ghost,
}

type Script = Box<dyn FnMut(&Seen) -> Action + Send>;

struct State {
    config: Mutex<Config>,
    store: Mutex<Vec<u8>>,
    blocks: AtomicU64,
    script: Mutex<Script>,
    seen: Mutex<Vec<Seen>>,
    terminations: Mutex<Vec<(u16, u32)>>,
    ghosts: Mutex<Vec<(u64, Vec<u8>)>>,
    connections: Mutex<BTreeMap<u64, TcpStream>>,
    /// Event requests and parked commands: connection, encoder, command identifier.
    events: Mutex<Vec<(u64, Encoder, u16)>>,
    /// An access state has changed while a host was connected that had no event request there.
    untold: AtomicBool,
    parked: Mutex<Vec<(u64, Encoder, u16)>>,
    shutdowns: AtomicU64,
    controllers: AtomicU16,
    next_connection: AtomicU64,
    stopping: AtomicBool,
}

/// The target.
#[derive(Clone)]
pub struct Fake {
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Fake {
    pub fn start(config: Config) -> Fake {
        Fake::start_with(config, |_| Action::Serve)
    }

    pub fn start_with(config: Config, script: impl FnMut(&Seen) -> Action + Send + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Fake {
            address: listener.local_addr().unwrap(),
            state: Arc::new(State {
                config: Mutex::new(config),
                store: Mutex::new(vec![0; BLOCK * BLOCKS]),
                blocks: AtomicU64::new(BLOCKS as u64),
                script: Mutex::new(Box::new(script)),
                seen: Mutex::default(),
                terminations: Mutex::default(),
                ghosts: Mutex::default(),
                connections: Mutex::default(),
                events: Mutex::default(),
                untold: AtomicBool::new(false),
                parked: Mutex::default(),
                shutdowns: AtomicU64::new(0),
                controllers: AtomicU16::new(1),
                next_connection: AtomicU64::new(1),
                stopping: AtomicBool::new(false),
            }),
        };
        fake.listen(listener);
        fake
    }

    fn listen(&self, listener: TcpListener) {
        let state = self.state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if state.stopping.load(Ordering::SeqCst) {
                    return;
                }
                stream.set_nodelay(true).unwrap();
                let id = state.next_connection.fetch_add(1, Ordering::SeqCst);
                state.connections.lock().unwrap().insert(id, stream.try_clone().unwrap());
                let state = state.clone();
                std::thread::spawn(move || {
                    Connection::new(id, stream, state.clone()).run();
                    state.drop_connection(id);
                });
            }
        });
    }

    /// Stops listening and closes every connection.
    pub fn stop(&self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        self.close_all();
    }

    /// Listens again on the same port, with the same data.
    pub fn restart(&self) {
        self.state.stopping.store(false, Ordering::SeqCst);
        let listener = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            TcpListener::bind(self.address).ok()
        });
        self.listen(listener.expect("the port is free again"));
    }

    pub fn close_all(&self) {
        self.state.close_all();
    }

    pub fn set_script(&self, script: impl FnMut(&Seen) -> Action + Send + 'static) {
        *self.state.script.lock().unwrap() = Box::new(script);
    }

    pub fn configure(&self, change: impl FnOnce(&mut Config)) {
        change(&mut self.state.config.lock().unwrap());
    }

    /// Everything that was asked of the target.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// I/O queues that hosts have connected.
    pub fn queues_connected(&self) -> usize {
        let is_connect = |sqe: &Sqe| nvme::spec::fabrics::fabrics_type(sqe) == Some(FabricsType::Connect);
        let connects = self.seen().into_iter().filter(|seen| is_connect(&seen.sqe));
        connects.filter(|seen| nvme::spec::fabrics::ConnectCommand::of(&seen.sqe).qid.get() > 0).count()
    }

    /// Writes of block `lba`, in the order of their arrival.
    pub fn writes_of(&self, lba: u64) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.is_io(NvmOpcode::Write) && seen.lba() == lba).collect()
    }

    /// Terminations that hosts sent: FES and FEI.
    pub fn terminations(&self) -> Vec<(u16, u32)> {
        self.state.terminations.lock().unwrap().clone()
    }

    pub fn shutdowns(&self) -> u64 {
        self.state.shutdowns.load(Ordering::SeqCst)
    }

    pub fn block(&self, lba: u64) -> Vec<u8> {
        let at = lba as usize * BLOCK;
        self.state.store.lock().unwrap()[at..at + BLOCK].to_vec()
    }

    /// Does the writes that were taken aside.
    pub fn land_ghosts(&self) -> usize {
        let ghosts = std::mem::take(&mut *self.state.ghosts.lock().unwrap());
        for (lba, data) in &ghosts {
            let at = *lba as usize * BLOCK;
            self.state.store.lock().unwrap()[at..at + data.len()].copy_from_slice(data);
        }
        ghosts.len()
    }

    /// Answers parked commands with success.
    pub fn answer_parked(&self) {
        for (connection, encoder, cid) in std::mem::take(&mut *self.state.parked.lock().unwrap()) {
            self.state.send_response(connection, &encoder, Cqe::success(cid, 0));
        }
    }

    /// Changes the namespace's size and tells the hosts.
    pub fn resize(&self, blocks: u64) {
        self.set_blocks(blocks);
        let request = self.state.events.lock().unwrap().pop();
        let (connection, encoder, cid) = request.expect("a host waits for events");
        self.state.send_response(connection, &encoder, Cqe::success(cid, 0x0004_0002));
    }

    /// Changes the access state and tells the hosts.
    pub fn set_ana(&self, state: AnaState) {
        self.configure(|config| config.ana = Some((state, config.ana.map_or(0, |(_, seconds)| seconds))));
        let mut events = self.state.events.lock().unwrap();
        match events.pop() {
            Some((connection, encoder, cid)) => {
                self.state.send_response(connection, &encoder, Cqe::success(cid, EventResult::ANA_CHANGED.to_dw0()));
            }
            None => self.state.untold.store(!self.state.connections.lock().unwrap().is_empty(), Ordering::SeqCst),
        }
    }

    /// Associations that hosts have begun.
    pub fn associations(&self) -> u16 {
        self.state.controllers.load(Ordering::SeqCst) - 1
    }

    /// Changes the namespace's size and tells nobody.
    pub fn set_blocks(&self, blocks: u64) {
        self.state.blocks.store(blocks, Ordering::SeqCst);
    }

    /// Waits until `condition` holds.
    pub fn wait(&self, what: &str, condition: impl Fn(&Fake) -> bool) {
        let began = Instant::now();
        while !condition(self) {
            assert!(began.elapsed() < Duration::from_secs(60), "{what} did not happen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl State {
    fn drop_connection(&self, id: u64) {
        if let Some(stream) = self.connections.lock().unwrap().remove(&id) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        self.events.lock().unwrap().retain(|event| event.0 != id);
        self.parked.lock().unwrap().retain(|parked| parked.0 != id);
    }

    fn close_all(&self) {
        let ids: Vec<u64> = self.connections.lock().unwrap().keys().copied().collect();
        ids.into_iter().for_each(|id| self.drop_connection(id));
    }

    fn send_response(&self, connection: u64, encoder: &Encoder, cqe: Cqe) {
        let mut out = [0; 128];
        let len = encoder.capsule_resp(&mut out, &cqe);
        if let Some(mut stream) = self.connections.lock().unwrap().get(&connection) {
            let _ = stream.write_all(&out[..len]);
        }
    }
}

/// A write whose data has not all come.
struct OpenWrite {
    sqe: Sqe,
    action: Action,
    data: Vec<u8>,
    asked: u32,
    received: u32,
    tag: u16,
}

struct Connection {
    id: u64,
    stream: TcpStream,
    state: Arc<State>,
    decoder: Decoder,
    encoder: Encoder,
    controller: u16,
    queue: u16,
    enabled: bool,
    shutdown: bool,
    writes: BTreeMap<u16, OpenWrite>,
    incoming: Option<(DataHeader, Vec<u8>)>,
    capsule: Option<(Sqe, Vec<u8>)>,
}

impl Connection {
    fn new(id: u64, stream: TcpStream, state: Arc<State>) -> Self {
        let plain = SendParams { header_digest: false, data_digest: false, alignment: 4 };
        Connection {
            id,
            stream,
            state,
            decoder: Decoder::new(Side::Target),
            encoder: Encoder::new(plain),
            controller: 0,
            queue: 0,
            enabled: false,
            shutdown: false,
            writes: BTreeMap::new(),
            incoming: None,
            capsule: None,
        }
    }

    fn config(&self) -> Config {
        self.state.config.lock().unwrap().clone()
    }

    fn run(mut self) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let received = match self.stream.read(&mut bytes) {
                Ok(received) if received > 0 => received,
                _ => return,
            };
            if !self.feed(&bytes[..received]) {
                return;
            }
        }
    }

    /// False when the connection is to end.
    fn feed(&mut self, mut input: &[u8]) -> bool {
        loop {
            let item = match self.decoder.next(&mut input) {
                Ok(Some(item)) => item,
                Ok(None) => return true,
                Err(fault) => panic!("the host broke the transport's rules: {fault}"),
            };
            let goes_on = match item {
                Item::Whole { header: Header::IcReq(request), .. } => self.establish(&request),
                Item::Whole { header: Header::CapsuleCmd(sqe), data, digest_ok } => {
                    assert!(digest_ok);
                    let data = data.to_vec();
                    self.command(sqe, data)
                }
                Item::Whole { header: Header::H2cData(header), data, digest_ok } => {
                    assert!(digest_ok);
                    let data = data.to_vec();
                    self.data(&header, &data)
                }
                Item::Begin { header: Header::CapsuleCmd(sqe), .. } => {
                    self.capsule = Some((sqe, Vec::new()));
                    true
                }
                Item::Begin { header: Header::H2cData(header), .. } => {
                    self.incoming = Some((header, Vec::new()));
                    true
                }
                Item::Data { bytes, .. } => {
                    if let Some((_, data)) = &mut self.capsule {
                        data.extend_from_slice(bytes);
                    } else if let Some((_, data)) = &mut self.incoming {
                        data.extend_from_slice(bytes);
                    }
                    true
                }
                Item::End { digest_ok } => {
                    assert!(digest_ok);
                    match (self.capsule.take(), self.incoming.take()) {
                        (Some((sqe, data)), _) => self.command(sqe, data),
                        (_, Some((header, data))) => self.data(&header, &data),
                        _ => true,
                    }
                }
                Item::Whole { header: Header::TermReq(term), .. }
                | Item::Begin { header: Header::TermReq(term), .. } => {
                    self.state.terminations.lock().unwrap().push((term.fes, term.fei));
                    false
                }
                other => panic!("a host does not send this: {other:?}"),
            };
            if !goes_on {
                return false;
            }
        }
    }

    fn establish(&mut self, request: &pdu::IcReq) -> bool {
        let config = self.config();
        let response = IcResp {
            cpda: config.cpda,
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            maxh2cdata: config.maxh2cdata,
        };
        self.decoder.establish(ReceiveParams {
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            alignment: alignment_of(config.cpda),
            capsule_data_max: 8192,
            data_max: config.maxh2cdata,
        });
        self.encoder = Encoder::new(SendParams {
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            alignment: alignment_of(request.hpda),
        });
        self.stream.write_all(&response.encode()).is_ok()
    }

    fn respond(&mut self, cqe: Cqe) -> bool {
        let mut out = [0; 128];
        let len = self.encoder.capsule_resp(&mut out, &cqe);
        self.stream.write_all(&out[..len]).is_ok()
    }

    /// Sends `data` for a command, in the pieces and the order that the configuration says.
    fn send_data(&mut self, cid: u16, data: &[u8], damage: bool, with_success: bool) -> bool {
        let config = self.config();
        let success = config.success && with_success;
        let mut pieces: Vec<(usize, &[u8])> =
            data.chunks(config.piece).enumerate().map(|(index, piece)| (index * config.piece, piece)).collect();
        if config.reverse {
            pieces.reverse();
        }
        let count = pieces.len();
        for (index, (offset, piece)) in pieces.into_iter().enumerate() {
            let last = index + 1 == count;
            let header = DataHeader {
                cccid: cid,
                ttag: 0,
                offset: offset as u32,
                len: piece.len() as u32,
                last,
                success: last && success,
            };
            let mut out = vec![0; 128];
            let len = self.encoder.c2h_data(&mut out, &header);
            out.truncate(len);
            out.extend_from_slice(piece);
            if self.encoder.data_digest() {
                let digest = base::crc32c(piece) ^ u32::from(damage);
                out.extend_from_slice(&digest.to_le_bytes());
            }
            if self.stream.write_all(&out).is_err() {
                return false;
            }
        }
        success || self.respond(Cqe::success(cid, 0))
    }

    fn command(&mut self, sqe: Sqe, capsule: Vec<u8>) -> bool {
        if fabrics_type(&sqe) == Some(FabricsType::Connect) {
            self.queue = ConnectCommand::of(&sqe).qid.get();
            self.controller = match self.queue {
                0 => self.state.controllers.fetch_add(1, Ordering::SeqCst),
                _ => u16::from_le_bytes([capsule[16], capsule[17]]),
            };
        }
        let seen = Seen { controller: self.controller, queue: self.queue, sqe, at: Instant::now() };
        self.state.seen.lock().unwrap().push(seen);
        let action = (self.state.script.lock().unwrap())(&seen);
        let cid = sqe.cid.get();
        match action {
            Action::Ignore => true,
            Action::Park => {
                self.state.parked.lock().unwrap().push((self.id, self.encoder, cid));
                true
            }
            Action::Fail(status) => self.respond(Cqe::new(cid, status)),
            Action::Send(bytes) => {
                // A host that hangs up in the middle may have said why.
                let _ = self.stream.write_all(&bytes);
                true
            }
            Action::Close => false,
            Action::CloseAll => {
                self.state.close_all();
                false
            }
            action if self.queue == 0 || sqe.opcode == 0x7f => self.admin(sqe, matches!(action, Action::Damage)),
            action => self.io(sqe, capsule, action),
        }
    }

    fn admin(&mut self, sqe: Sqe, damage: bool) -> bool {
        let cid = sqe.cid.get();
        match fabrics_type(&sqe) {
            Some(FabricsType::Connect) => return self.respond(Cqe::success(cid, u32::from(self.controller))),
            Some(FabricsType::PropertyGet) => return self.property_get(&sqe),
            Some(FabricsType::PropertySet) => {
                let value = PropertyCommand::of(&sqe).value.get() as u32;
                self.enabled = value & 1 != 0;
                if value >> 14 & 3 != 0 {
                    self.shutdown = true;
                    self.state.shutdowns.fetch_add(1, Ordering::SeqCst);
                }
                return self.respond(Cqe::success(cid, 0));
            }
            _ => {}
        }
        match AdminOpcode::from_u8(sqe.opcode) {
            Some(AdminOpcode::Identify) => {
                let page = self.identify(&sqe);
                self.send_data(cid, &page, damage, true)
            }
            Some(AdminOpcode::SetFeatures) => {
                let queues = self.config().queues - 1;
                let is_queues = sqe.cdw10.get() as u8 == Feature::NumberOfQueues as u8;
                self.respond(Cqe::success(cid, if is_queues { queues | queues << 16 } else { 0 }))
            }
            Some(AdminOpcode::AsyncEventRequest) => {
                let state = self.state.clone();
                let mut events = state.events.lock().unwrap();
                if state.untold.swap(false, Ordering::SeqCst) {
                    return self.respond(Cqe::success(cid, EventResult::ANA_CHANGED.to_dw0()));
                }
                events.push((self.id, self.encoder, cid));
                true
            }
            Some(AdminOpcode::GetLogPage) => {
                let command = nvme::spec::sqe::GetLogPageCommand::of(&sqe);
                let mut page = vec![0; command.len as usize];
                page[0] = 1; // Changed namespaces: 1.
                if command.lid == LogPage::Ana as u8 {
                    page = self.access_states();
                    page.resize((command.offset + command.len) as usize, 0);
                    page.drain(..command.offset as usize);
                }
                self.send_data(cid, &page, damage, true)
            }
            Some(AdminOpcode::KeepAlive) => self.respond(Cqe::success(cid, 0)),
            Some(AdminOpcode::Abort) => self.respond(Cqe::success(cid, 1)),
            // Cross-controller reset: done.
            Some(AdminOpcode::CrossControllerReset) => self.respond(Cqe::success(cid, 1)),
            _ => self.respond(Cqe::new(cid, Status::INVALID_OPCODE.dnr())),
        }
    }

    fn property_get(&mut self, sqe: &Sqe) -> bool {
        let value = match PropertyCommand::of(sqe).offset.get() {
            property::CAP => Capabilities::new(self.config().queue_entries, 1000).0,
            property::VS => 0x0001_0400,
            property::CSTS => u64::from(self.enabled) | if self.shutdown { 2 << 2 } else { 0 },
            _ => 0,
        };
        let mut cqe = Cqe::success(sqe.cid.get(), 0);
        cqe.result = value.into();
        self.respond(cqe)
    }

    fn identify(&self, sqe: &Sqe) -> Vec<u8> {
        let config = self.config();
        match Cns::from_u8(IdentifyCommand::of(sqe).cns) {
            Some(Cns::Controller) => {
                let mut page = IdentifyController::new_zeroed();
                page.mdts = config.mdts;
                page.cntrltype = 1;
                page.sgls = (1 << 20 | 1).into();
                page.sqes = 0x66;
                page.cqes = 0x44;
                page.ioccsz = (4 + config.capsule_data / 16).into();
                page.kas = 1.into();
                page.oncs = 0b1000_1101.into();
                page.fuses = 1.into();
                page.oaes = 0x100.into();
                page.vwc = u8::from(config.volatile_cache);
                if let Some((_, seconds)) = config.ana {
                    page.cmic = CMIC_ANA;
                    page.oaes = (0x100 | event::ANA_CHANGE).into();
                    page.anatt = seconds;
                    page.nanagrpid = GROUPS.into();
                }
                page.aerl = 3;
                page.cqt = config.cqt_ms.into();
                if let Some((uniquifier, instance)) = config.instance {
                    page.ciu = uniquifier;
                    page.cirn = instance.into();
                }
                page.as_bytes().to_vec()
            }
            Some(Cns::Namespace) => {
                let mut page = IdentifyNamespace::new_zeroed();
                page.nsze = self.state.blocks.load(Ordering::SeqCst).into();
                page.lbaf[0].lbads = 9;
                page.anagrpid = GROUPS.into();
                page.as_bytes().to_vec()
            }
            Some(Cns::ActiveNamespaces) => {
                let mut page = vec![0; 4096];
                page[0] = 1;
                page
            }
            Some(Cns::NamespaceDescriptors) => {
                let mut page = [0; 4096];
                nvme::spec::identify::store_descriptor(&mut page, 0, 3, &config.uuid);
                page.to_vec()
            }
            _ => vec![0; 4096],
        }
    }

    /// The log of access states: ours is that of the last group.
    fn access_states(&self) -> Vec<u8> {
        let mut log = AnaHeader::new_zeroed();
        log.group_count = (GROUPS as u16).into();
        let mut page = log.as_bytes().to_vec();
        for group in 1..=GROUPS {
            let mut descriptor = AnaGroupDescriptor::new_zeroed();
            let state = self.config().ana.map_or(AnaState::Optimized, |(state, _)| state);
            (descriptor.group, descriptor.state) = (group.into(), state as u8);
            if group < GROUPS {
                descriptor.state = AnaState::Inaccessible as u8;
            }
            page.extend_from_slice(descriptor.as_bytes());
        }
        page
    }

    fn io(&mut self, sqe: Sqe, capsule: Vec<u8>, action: Action) -> bool {
        let blocks = BlockCommand::of(&sqe);
        let (at, bytes) = (blocks.slba as usize * BLOCK, blocks.block_count as usize * BLOCK);
        let cid = sqe.cid.get();
        match NvmOpcode::from_u8(sqe.opcode) {
            Some(NvmOpcode::Read) => {
                let data = self.state.store.lock().unwrap()[at..at + bytes].to_vec();
                self.send_data(cid, &data, matches!(action, Action::Damage), true)
            }
            Some(NvmOpcode::Write | NvmOpcode::Compare) => {
                let location = sqe.sgl.locate(capsule.len() as u32, u32::MAX).expect("a valid SGL");
                assert_eq!(location.len() as usize, bytes, "the SGL covers the blocks");
                match location {
                    DataLocation::InCapsule { .. } => self.finish_write(sqe, &capsule, action),
                    DataLocation::Transport { .. } => {
                        let tag = cid ^ 0x5555;
                        let write = OpenWrite { sqe, action, data: vec![0; bytes], asked: 0, received: 0, tag };
                        self.writes.insert(cid, write);
                        (0..self.config().r2ts).all(|_| self.ask(cid))
                    }
                }
            }
            Some(NvmOpcode::WriteZeroes) => {
                self.state.store.lock().unwrap()[at..at + bytes].fill(0);
                self.respond(Cqe::success(cid, 0))
            }
            _ => self.respond(Cqe::success(cid, 0)),
        }
    }

    fn ask(&mut self, cid: u16) -> bool {
        let config = self.config();
        let write = self.writes.get_mut(&cid).expect("a write that is open");
        let left = write.data.len() as u32 - write.asked;
        if left == 0 {
            return true;
        }
        let r2t = R2t { cccid: cid, ttag: write.tag, offset: write.asked, len: left.min(config.r2t_bytes) };
        write.asked += r2t.len;
        let mut out = [0; 128];
        let len = self.encoder.r2t(&mut out, &r2t);
        self.stream.write_all(&out[..len]).is_ok()
    }

    fn data(&mut self, header: &DataHeader, data: &[u8]) -> bool {
        let Some(write) = self.writes.get_mut(&header.cccid) else { return true };
        assert_eq!(header.ttag, write.tag);
        let at = header.offset as usize;
        write.data[at..at + data.len()].copy_from_slice(data);
        write.received += data.len() as u32;
        if write.received as usize == write.data.len() {
            let write = self.writes.remove(&header.cccid).expect("just looked");
            return self.finish_write(write.sqe, &write.data, write.action);
        }
        !header.last || self.ask(header.cccid)
    }

    fn finish_write(&mut self, sqe: Sqe, data: &[u8], action: Action) -> bool {
        let at = BlockCommand::of(&sqe).slba as usize * BLOCK;
        if matches!(action, Action::Ghost) {
            self.state.ghosts.lock().unwrap().push((BlockCommand::of(&sqe).slba, data.to_vec()));
            self.state.close_all();
            return false;
        }
        let mut store = self.state.store.lock().unwrap();
        let status = if sqe.opcode == NvmOpcode::Compare as u8 {
            if store[at..at + data.len()] == *data { Status::SUCCESS } else { Status::COMPARE_FAILURE }
        } else {
            store[at..at + data.len()].copy_from_slice(data);
            Status::SUCCESS
        };
        drop(store);
        self.respond(Cqe::new(sqe.cid.get(), status))
    }
}

/// The bytes of a PDU for scripts that send what no target should.
pub fn raw(write: impl FnOnce(&Encoder, &mut [u8]) -> usize, data: &[u8]) -> Vec<u8> {
    let encoder = Encoder::new(SendParams { header_digest: false, data_digest: false, alignment: 4 });
    let mut out = vec![0; 256];
    let len = write(&encoder, &mut out);
    out.truncate(len);
    out.extend_from_slice(data);
    out
}
