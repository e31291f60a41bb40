//! The network model: TCP connections as two directed streams of segments with latency, stalls, resets and partitions.
//!
//! TCP hides loss and reordering inside a connection; what users see is delay, arbitrary segment borders, full buffers,
//! resets, half-open connections and silence. A vanished machine (power cut) sends nothing at all; a killed process's
//! sockets are closed by its kernel.

use crate::faults::Mutation;
use crate::state::{Action, Crash, NodeId, State};
use base::Errno;
use reactor::Event;
use reactor::driver::SocketId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Connections waiting in a listener's queue.
const ACCEPT_QUEUE_MAX: usize = 16;
const SEND_BUFFER_BYTES: usize = 256 << 10;
const LATENCY_NS: u64 = 20_000;
/// First retransmission after this long, doubling up to [`RETRY_MAX_NS`].
const RETRY_NS: u64 = 200_000_000;
const RETRY_MAX_NS: u64 = 3_000_000_000;
/// Retransmissions before a connection times out (about half a minute here; Linux waits some 15 minutes).
const RETRIES_MAX: u32 = 15;
/// Connection attempts before giving up.
const SYN_RETRIES_MAX: u32 = 6;

#[derive(Debug)]
enum Segment {
    Established,
    Data(Vec<u8>),
    Fin,
    Reset,
    /// The receiver has consumed so many bytes.
    Ack(usize),
}

pub(crate) struct Endpoint {
    node: NodeId,
    boot: u32,
    /// The driver that holds the socket and its number there; `None` when closed, exported or waiting to be accepted.
    holder: Option<(usize, SocketId)>,
    peer: Option<usize>,
    local: SocketAddr,
    remote: SocketAddr,
    role: Role,
    closed: bool,
    received: VecDeque<u8>,
    fin: bool,
    error: Option<Errno>,
    /// The connection has failed and the error was reported.
    dead: bool,
    /// Bytes sent that the peer has not consumed yet.
    unacked: usize,
    want_write: bool,
    outgoing: VecDeque<(u64, Segment)>,
    scheduled: bool,
    retries: u32,
    stalled_until_ns: u64,
}

enum Role {
    Listener { queue: VecDeque<usize>, shared: bool },
    Connecting { retries: u32 },
    Connected,
}

#[derive(Default)]
pub(crate) struct Net {
    endpoints: Vec<Endpoint>,
    next_port: u16,
    /// Pairs of nodes that cannot reach each other, until when.
    pub(crate) partitions: BTreeMap<(usize, usize), u64>,
}

impl Net {
    /// Connections of which at least one end is open.
    pub(crate) fn open_connections(&self) -> usize {
        let open = self.endpoints.iter().filter(|e| !e.closed && !matches!(e.role, Role::Listener { .. }));
        open.count()
    }
}

/// The address of a node in the simulated network.
pub(crate) fn address_of(node: NodeId) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, (node.0 >> 8) as u8, node.0 as u8 + 1))
}

fn endpoint(node: NodeId, boot: u32, local: SocketAddr, remote: SocketAddr, role: Role) -> Endpoint {
    Endpoint {
        node,
        boot,
        holder: None,
        peer: None,
        local,
        remote,
        role,
        closed: false,
        received: VecDeque::new(),
        fin: false,
        error: None,
        dead: false,
        unacked: 0,
        want_write: false,
        outgoing: VecDeque::new(),
        scheduled: false,
        retries: 0,
        stalled_until_ns: 0,
    }
}

impl State {
    fn endpoint_of(&self, driver: usize, socket: SocketId) -> Result<usize, Errno> {
        if !self.alive(driver) {
            return Err(Errno::EIO);
        }
        self.drivers[driver].sockets.get(&socket).copied().ok_or(Errno::EBADF)
    }

    fn hold(&mut self, driver: usize, endpoint: usize) -> SocketId {
        let socket = SocketId(self.fresh_id());
        self.drivers[driver].sockets.insert(socket, endpoint);
        self.net.endpoints[endpoint].holder = Some((driver, socket));
        socket
    }

    fn add_endpoint(&mut self, endpoint: Endpoint) -> usize {
        self.net.endpoints.push(endpoint);
        self.net.endpoints.len() - 1
    }

    fn free_port(&mut self) -> u16 {
        self.net.next_port += 1;
        40_000 + self.net.next_port % 20_000
    }

    /// Which node an address names, seen from `from`.
    fn node_at(&self, from: NodeId, address: IpAddr) -> Option<NodeId> {
        if address.is_loopback() || address.is_unspecified() {
            return Some(from);
        }
        (0..self.nodes.len()).map(NodeId).find(|node| address_of(*node) == address)
    }

    fn listeners(&self, node: NodeId, port: u16) -> Vec<usize> {
        let is_there = |e: &Endpoint| {
            matches!(e.role, Role::Listener { .. }) && !e.closed && e.node == node && e.local.port() == port
        };
        (0..self.net.endpoints.len()).filter(|index| is_there(&self.net.endpoints[*index])).collect()
    }

    // --- the driver's calls -----------------------------------------------------------------------------------------

    pub(crate) fn net_listen(
        &mut self,
        driver: usize,
        mut address: SocketAddr,
        shared: bool,
    ) -> Result<(SocketId, SocketAddr), Errno> {
        if !self.alive(driver) {
            return Err(Errno::EIO);
        }
        let node = self.drivers[driver].node;
        if self.node_at(node, address.ip()) != Some(node) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if address.port() == 0 {
            address.set_port(self.free_port());
        }
        let shares = |index: &usize| matches!(self.net.endpoints[*index].role, Role::Listener { shared: true, .. });
        if !self.listeners(node, address.port()).iter().all(|other| shared && shares(other)) {
            return Err(Errno::EADDRINUSE);
        }
        let role = Role::Listener { queue: VecDeque::new(), shared };
        let boot = self.nodes[node.0].boot;
        let endpoint = self.add_endpoint(endpoint(node, boot, address, address, role));
        self.event("driver {} listens on port {}", [driver as u64, address.port() as u64, 0, 0]);
        Ok((self.hold(driver, endpoint), address))
    }

    pub(crate) fn net_accept(&mut self, driver: usize, listener: SocketId) -> Result<(SocketId, SocketAddr), Errno> {
        let index = self.endpoint_of(driver, listener)?;
        let Role::Listener { queue, .. } = &mut self.net.endpoints[index].role else { return Err(Errno::EINVAL) };
        let endpoint = queue.pop_front().ok_or(Errno::EAGAIN)?;
        let socket = self.hold(driver, endpoint);
        self.event("driver {} accepts connection {}", [driver as u64, endpoint as u64, 0, 0]);
        Ok((socket, self.net.endpoints[endpoint].remote))
    }

    pub(crate) fn net_connect(&mut self, driver: usize, address: SocketAddr) -> Result<SocketId, Errno> {
        if !self.alive(driver) {
            return Err(Errno::EIO);
        }
        let node = self.drivers[driver].node;
        if self.node_at(node, address.ip()).is_none() {
            return Err(Errno::ENETUNREACH);
        }
        let port = self.free_port();
        let ip = if address.ip().is_loopback() { address.ip() } else { address_of(node) };
        let boot = self.nodes[node.0].boot;
        let role = Role::Connecting { retries: 0 };
        let index = self.add_endpoint(endpoint(node, boot, SocketAddr::new(ip, port), address, role));
        self.event("driver {} connects to port {} as {}", [driver as u64, address.port() as u64, index as u64, 0]);
        let delay = self.net_latency();
        self.after(delay, Action::NetSyn(index));
        Ok(self.hold(driver, index))
    }

    pub(crate) fn net_connect_result(&mut self, driver: usize, socket: SocketId) -> Result<(), Errno> {
        let index = self.endpoint_of(driver, socket)?;
        let endpoint = &mut self.net.endpoints[index];
        if let Some(error) = endpoint.error.take() {
            endpoint.dead = true;
            return Err(error);
        }
        if matches!(endpoint.role, Role::Connected) { Ok(()) } else { Err(Errno::EINPROGRESS) }
    }

    pub(crate) fn net_recv(
        &mut self,
        driver: usize,
        socket: SocketId,
        targets: &mut [&mut [u8]],
    ) -> Result<usize, Errno> {
        let index = self.endpoint_of(driver, socket)?;
        let cut = self.schedule.short_recv;
        let cut = self.chance(cut);
        let available = self.net.endpoints[index].received.len();
        if available == 0 {
            let endpoint = &mut self.net.endpoints[index];
            if let Some(error) = endpoint.error.take() {
                endpoint.dead = true;
                return Err(error);
            }
            return if endpoint.fin || endpoint.dead { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        let room: usize = targets.iter().map(|target| target.len()).sum();
        let mut bytes = available.min(room);
        if cut && bytes > 1 {
            bytes = self.rng.between(1, bytes as u64 - 1) as usize;
        }
        let mut left = bytes;
        for target in targets {
            let part = left.min(target.len());
            for (slot, byte) in target.iter_mut().zip(self.net.endpoints[index].received.drain(..part)) {
                *slot = byte;
            }
            left -= part;
        }
        if bytes < room && bytes < available {
            // The rest counts as having arrived a moment later: a short receive promises a new edge.
            self.after(1, Action::NetReady { endpoint: index, readable: true, writable: false });
        }
        self.event("connection {} receives {} bytes", [index as u64, bytes as u64, 0, 0]);
        self.transmit(index, Segment::Ack(bytes));
        Ok(bytes)
    }

    /// Send space of a connection, or why not.
    pub(crate) fn net_send_space(&mut self, driver: usize, socket: SocketId) -> Result<(usize, usize), Errno> {
        let index = self.endpoint_of(driver, socket)?;
        let configured = self.net_faults.send_buffer_bytes;
        let limit = if configured == 0 { SEND_BUFFER_BYTES } else { configured };
        let endpoint = &mut self.net.endpoints[index];
        if let Some(error) = endpoint.error.take() {
            endpoint.dead = true;
            return Err(error);
        }
        if endpoint.dead {
            return Err(Errno::EPIPE);
        }
        let space = limit.saturating_sub(endpoint.unacked);
        if space == 0 || !matches!(endpoint.role, Role::Connected) {
            endpoint.want_write = true;
            return Err(Errno::EAGAIN);
        }
        Ok((index, space))
    }

    /// Sends all of `data`, which fits the space.
    pub(crate) fn net_send(&mut self, index: usize, data: &[u8]) {
        self.event("connection {} sends {} bytes", [index as u64, data.len() as u64, 0, 0]);
        self.net.endpoints[index].unacked += data.len();
        let flipped = self.flip_bit(index, data);
        let mut rest = flipped.as_deref().unwrap_or(data);
        while !rest.is_empty() {
            let most = if self.net_faults.tiny_segments && self.faults_on { 97 } else { 65_536 };
            let part = (self.rng.between(1, most) as usize).max(rest.len() / 8).min(rest.len());
            self.transmit(index, Segment::Data(rest[..part].to_vec()));
            rest = &rest[part..];
        }
        let (reset, half, stall) = (self.net_faults.reset, self.net_faults.half_reset, self.net_faults.stall);
        if self.chance(stall) {
            let until = self.now_ns + self.rng.between(1_000_000, 2_000_000_000);
            self.event("connection {} stalls", [index as u64, 0, 0, 0]);
            self.net.endpoints[index].stalled_until_ns = until;
        }
        if self.chance(reset) {
            self.transmit(index, Segment::Reset);
            self.fail(index, Errno::ECONNRESET);
        } else if self.chance(half) {
            self.fail(index, Errno::ECONNRESET);
        }
    }

    /// The bytes of a send in which a bit flips.
    fn flip_bit(&mut self, index: usize, data: &[u8]) -> Option<Vec<u8>> {
        let n = self.net_faults.bit_flip;
        if data.is_empty() || !self.chance(n) {
            return None;
        }
        let at = self.rng.below(data.len() as u64 * 8);
        self.event("connection {} sends bit {} wrong", [index as u64, at, 0, 0]);
        let mut data = data.to_vec();
        data[at as usize / 8] ^= 1 << (at % 8);
        Some(data)
    }

    pub(crate) fn net_export(&mut self, driver: usize, socket: SocketId) -> Result<u64, Errno> {
        let index = self.endpoint_of(driver, socket)?;
        self.drivers[driver].sockets.remove(&socket);
        self.net.endpoints[index].holder = None;
        Ok(index as u64)
    }

    pub(crate) fn net_import(&mut self, driver: usize, raw: u64) -> Result<SocketId, Errno> {
        if !self.alive(driver) {
            return Err(Errno::EIO);
        }
        let endpoint = self.net.endpoints.get(raw as usize).ok_or(Errno::EBADF)?;
        if endpoint.closed || endpoint.holder.is_some() || endpoint.node != self.drivers[driver].node {
            return Err(Errno::EBADF);
        }
        Ok(self.hold(driver, raw as usize))
    }

    pub(crate) fn net_close(&mut self, driver: usize, socket: SocketId) {
        if let Ok(index) = self.endpoint_of(driver, socket) {
            self.drivers[driver].sockets.remove(&socket);
            self.close_endpoint(index);
        }
    }

    fn close_endpoint(&mut self, index: usize) {
        self.event("connection {} closes", [index as u64, 0, 0, 0]);
        let endpoint = &mut self.net.endpoints[index];
        endpoint.holder = None;
        endpoint.closed = true;
        if let Role::Listener { queue, .. } = &mut endpoint.role {
            for waiting in std::mem::take(queue) {
                self.close_endpoint(waiting);
            }
            return;
        }
        // Unread data at a close resets the connection, as in Linux.
        let segment = if endpoint.received.is_empty() { Segment::Fin } else { Segment::Reset };
        endpoint.received.clear();
        if !endpoint.dead && endpoint.peer.is_some() {
            self.transmit(index, segment);
        }
    }

    // --- segments on their way --------------------------------------------------------------------------------------

    fn net_latency(&mut self) -> u64 {
        let configured = self.net_faults.latency_ns;
        let base = if configured == 0 { LATENCY_NS } else { configured };
        base + self.rng.below(self.net_faults.jitter_ns + base / 2 + 1)
    }

    fn transmit(&mut self, index: usize, segment: Segment) {
        let bytes = if let Segment::Data(data) = &segment { data.len() as u64 } else { 0 };
        let arrival = self.now_ns + self.net_latency() + bytes;
        let last = self.net.endpoints[index].outgoing.back().map_or(0, |(at, _)| *at);
        let arrival = arrival.max(last);
        self.net.endpoints[index].outgoing.push_back((arrival, segment));
        if !std::mem::replace(&mut self.net.endpoints[index].scheduled, true) {
            self.at(arrival, Action::NetArrive(index));
        }
    }

    /// Whether packets from this endpoint reach its peer's machine now.
    fn is_cut_off(&self, index: usize) -> bool {
        let endpoint = &self.net.endpoints[index];
        let there = match endpoint.peer {
            Some(peer) => Some(self.net.endpoints[peer].node),
            None => self.node_at(endpoint.node, endpoint.remote.ip()),
        };
        let Some(there) = there else { return true };
        let pair = (endpoint.node.0.min(there.0), endpoint.node.0.max(there.0));
        let partitioned = self.net.partitions.get(&pair).is_some_and(|until| *until > self.now_ns);
        partitioned || !self.nodes[there.0].powered || endpoint.stalled_until_ns > self.now_ns && self.faults_on
    }

    pub(crate) fn net_arrive(&mut self, index: usize) {
        let endpoint = &mut self.net.endpoints[index];
        if endpoint.outgoing.is_empty() || endpoint.boot != self.nodes[endpoint.node.0].boot {
            endpoint.scheduled = false;
            endpoint.outgoing.clear();
            return;
        }
        if self.is_cut_off(index) {
            return self.retransmit_later(index);
        }
        let endpoint = &mut self.net.endpoints[index];
        endpoint.retries = 0;
        let (_, segment) = endpoint.outgoing.pop_front().expect("checked above");
        let peer = endpoint.peer.expect("segments are sent on connections only");
        self.deliver(index, peer, segment);
        let endpoint = &mut self.net.endpoints[index];
        match endpoint.outgoing.front() {
            Some((at, _)) => {
                let at = *at;
                self.at(at, Action::NetArrive(index));
            }
            None => endpoint.scheduled = false,
        }
    }

    fn retransmit_later(&mut self, index: usize) {
        let endpoint = &mut self.net.endpoints[index];
        endpoint.retries += 1;
        if endpoint.retries > RETRIES_MAX {
            endpoint.outgoing.clear();
            endpoint.scheduled = false;
            self.event("connection {} times out", [index as u64, 0, 0, 0]);
            return self.fail(index, Errno::ETIMEDOUT);
        }
        let pause = (RETRY_NS << endpoint.retries.min(8)).min(RETRY_MAX_NS);
        let pause = pause / 2 + self.rng.below(pause);
        self.after(pause, Action::NetArrive(index));
    }

    fn deliver(&mut self, from: usize, to: usize, segment: Segment) {
        let there = &self.net.endpoints[to];
        let forgotten = there.boot != self.nodes[there.node.0].boot || there.dead;
        if forgotten || (there.closed && matches!(segment, Segment::Data(_))) {
            // Nobody there knows the connection: a reset comes back.
            if !matches!(segment, Segment::Reset) {
                self.event("connection {} is unknown to its peer", [from as u64, 0, 0, 0]);
                self.fail(from, Errno::ECONNRESET);
            }
            return;
        }
        let duplicate = self.mutated(Mutation::DuplicateSegment) && self.rng.one_in(32);
        let there = &mut self.net.endpoints[to];
        match segment {
            Segment::Data(data) => {
                there.received.extend(&data);
                if duplicate {
                    there.received.extend(&data);
                }
                self.event("connection {} has {} bytes arriving", [to as u64, data.len() as u64, 0, 0]);
                self.net_ready(to, true, false);
            }
            Segment::Fin => {
                there.fin = true;
                self.net_ready(to, true, false);
            }
            Segment::Reset => self.fail(to, Errno::ECONNRESET),
            Segment::Ack(bytes) => {
                there.unacked = there.unacked.saturating_sub(bytes);
                if std::mem::take(&mut there.want_write) {
                    self.net_ready(to, false, true);
                }
            }
            Segment::Established => {
                there.role = Role::Connected;
                self.net_ready(to, false, true);
            }
        }
    }

    fn fail(&mut self, index: usize, error: Errno) {
        let endpoint = &mut self.net.endpoints[index];
        if endpoint.closed || endpoint.dead {
            return;
        }
        endpoint.error = Some(error);
        self.event("connection {} fails with {}", [index as u64, error.0 as u64, 0, 0]);
        self.net_ready(index, true, true);
    }

    pub(crate) fn net_syn(&mut self, index: usize) {
        let endpoint = &self.net.endpoints[index];
        if endpoint.closed || endpoint.boot != self.nodes[endpoint.node.0].boot {
            return;
        }
        let (node, local, remote) = (endpoint.node, endpoint.local, endpoint.remote);
        let target = self.node_at(node, remote.ip()).expect("checked by connect");
        let lost = self.net_faults.lost_syn;
        if self.is_cut_off(index) || self.chance(lost) {
            return self.retry_syn(index);
        }
        let listeners = self.listeners(target, remote.port());
        if listeners.is_empty() {
            return self.fail(index, Errno::ECONNREFUSED);
        }
        let listener = listeners[self.rng.below(listeners.len() as u64) as usize];
        let Role::Listener { queue, .. } = &self.net.endpoints[listener].role else { unreachable!("a listener") };
        if queue.len() >= ACCEPT_QUEUE_MAX {
            return self.retry_syn(index);
        }
        let boot = self.nodes[target.0].boot;
        let mut there = endpoint_connected(target, boot, remote, local);
        there.peer = Some(index);
        let there = self.add_endpoint(there);
        self.net.endpoints[index].peer = Some(there);
        let Role::Listener { queue, .. } = &mut self.net.endpoints[listener].role else { unreachable!("a listener") };
        queue.push_back(there);
        self.event("connection {} reaches its listener as {}", [index as u64, there as u64, 0, 0]);
        self.transmit(there, Segment::Established);
        self.net_ready(listener, true, false);
    }

    fn retry_syn(&mut self, index: usize) {
        let Role::Connecting { retries } = &mut self.net.endpoints[index].role else { return };
        *retries += 1;
        let retries = *retries;
        if retries > SYN_RETRIES_MAX {
            return self.fail(index, Errno::ETIMEDOUT);
        }
        let pause = (1_000_000_000u64 << (retries - 1)).min(4_000_000_000);
        self.after(pause, Action::NetSyn(index));
    }

    /// Tells the holder of an endpoint that it may be ready.
    pub(crate) fn net_ready(&mut self, index: usize, readable: bool, writable: bool) {
        if self.mutated(Mutation::LoseReadiness) && self.rng.one_in(32) {
            return;
        }
        let Some((driver, socket)) = self.net.endpoints[index].holder else { return };
        if self.alive(driver) {
            let endpoint = &self.net.endpoints[index];
            let ended = endpoint.fin || endpoint.dead || endpoint.error.is_some();
            self.drivers[driver].events.push(Event::Socket { socket, readable, writable, ended });
        }
    }

    /// A readiness event without cause, on some socket of `driver`.
    pub(crate) fn net_spurious(&mut self, driver: usize) {
        let count = self.drivers[driver].sockets.len() as u64;
        if count == 0 {
            return;
        }
        let nth = self.rng.below(count) as usize;
        let endpoint = *self.drivers[driver].sockets.values().nth(nth).expect("below the count");
        // A socket that is still connecting must not look writable: its connect would seem to have ended.
        let connecting = matches!(self.net.endpoints[endpoint].role, Role::Connecting { .. });
        self.net_ready(endpoint, true, !connecting);
    }

    // --- crashes ----------------------------------------------------------------------------------------------------

    /// The sockets of dead drivers: closed by the kernel after a kill, silent after a power cut.
    pub(crate) fn net_crash(&mut self, drivers: &BTreeSet<usize>, node: NodeId, crash: Crash) {
        if crash == Crash::PowerCut {
            self.nodes[node.0].boot += 1;
            for endpoint in self.net.endpoints.iter_mut().filter(|e| e.node == node) {
                endpoint.closed = true;
                endpoint.holder = None;
                endpoint.received.clear();
            }
            return;
        }
        let open: Vec<usize> = (0..self.net.endpoints.len())
            .filter(|index| {
                let endpoint = &self.net.endpoints[*index];
                let orphan = endpoint.holder.is_none() && endpoint.node == node;
                !endpoint.closed && (orphan || endpoint.holder.is_some_and(|(driver, _)| drivers.contains(&driver)))
            })
            .collect();
        for index in open {
            if !self.net.endpoints[index].closed {
                self.close_endpoint(index);
            }
        }
    }

    /// Cuts two nodes off from each other until `until_ns`.
    pub(crate) fn partition(&mut self, a: NodeId, b: NodeId, until_ns: u64) {
        self.event("nodes {} and {} are cut off until {}", [a.0 as u64, b.0 as u64, until_ns, 0]);
        self.net.partitions.insert((a.0.min(b.0), a.0.max(b.0)), until_ns);
    }
}

fn endpoint_connected(node: NodeId, boot: u32, local: SocketAddr, remote: SocketAddr) -> Endpoint {
    endpoint(node, boot, local, remote, Role::Connected)
}
