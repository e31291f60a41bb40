//! A driver without a world: time that the program moves, sockets whose other ends the program holds. No files.

use base::Errno;
use reactor::Slice;
use reactor::driver::{
    Driver, Event, ExportedSocket, FileId, FileInfo, FileOp, FileOptions, PmemId, PmemInfo, RemoteWake, SocketId, Token,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// One connection as the target's driver has it.
#[derive(Default)]
pub struct Socket {
    /// From the host, not yet received.
    inbound: VecDeque<u8>,
    inbound_ended: bool,
    /// To the host, not yet read.
    outbound: Vec<u8>,
    /// Bytes that may be sent before the socket is full.
    room: usize,
    was_full: bool,
}

#[derive(Default)]
pub struct World {
    now_ns: Cell<u64>,
    sockets: RefCell<BTreeMap<u64, Socket>>,
    backlog: RefCell<VecDeque<u64>>,
    listener: Cell<u64>,
    next: Cell<u64>,
    events: RefCell<Vec<Event>>,
}

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 50_000);

impl World {
    pub fn advance(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }

    /// A host connects.
    pub fn connect(&self) -> u64 {
        let id = self.fresh();
        self.sockets.borrow_mut().insert(id, Socket { room: 1 << 16, ..Socket::default() });
        self.backlog.borrow_mut().push_back(id);
        self.tell(self.listener.get(), true, false);
        id
    }

    /// The host sends; false when the target has closed the connection.
    pub fn send(&self, id: u64, bytes: &[u8]) -> bool {
        let mut sockets = self.sockets.borrow_mut();
        let Some(socket) = sockets.get_mut(&id) else { return false };
        socket.inbound.extend(bytes);
        drop(sockets);
        self.tell(id, true, false);
        true
    }

    /// The host closes its side.
    pub fn end(&self, id: u64) {
        if let Some(socket) = self.sockets.borrow_mut().get_mut(&id) {
            socket.inbound_ended = true;
            socket.room = usize::MAX;
        }
        self.tell(id, true, true);
    }

    /// What the host has to read; it makes room for `room` bytes more. `None` when the connection is closed.
    pub fn receive(&self, id: u64, room: usize) -> Option<Vec<u8>> {
        let mut sockets = self.sockets.borrow_mut();
        let socket = sockets.get_mut(&id)?;
        let bytes = std::mem::take(&mut socket.outbound);
        socket.room = socket.room.saturating_add(room);
        let was_full = std::mem::take(&mut socket.was_full) && socket.room > 0;
        drop(sockets);
        if was_full {
            self.tell(id, false, true);
        }
        Some(bytes)
    }

    /// Bytes from the host that the target has not taken yet.
    pub fn unread(&self, id: u64) -> usize {
        self.sockets.borrow().get(&id).map_or(0, |socket| socket.inbound.len())
    }

    fn fresh(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    fn tell(&self, id: u64, readable: bool, writable: bool) {
        let ended = self.sockets.borrow().get(&id).is_some_and(|socket| socket.inbound_ended);
        self.events.borrow_mut().push(Event::Socket { socket: SocketId(id), readable, writable, ended });
    }
}

struct NoWake;

impl RemoteWake for NoWake {
    fn wake(&self) {}
}

impl Driver for World {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn random_u64(&self) -> u64 {
        4
    }

    fn poll(&self, events: &mut Vec<Event>) {
        events.append(&mut self.events.borrow_mut());
    }

    fn wait(&self, _deadline_ns: Option<u64>, events: &mut Vec<Event>) {
        self.poll(events);
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn waker(&self) -> Arc<dyn RemoteWake> {
        Arc::new(NoWake)
    }

    fn file_open(&self, _path: &str, _options: &FileOptions) -> Result<(FileId, FileInfo), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn file_info(&self, _file: FileId) -> Result<FileInfo, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn file_resize(&self, _file: FileId, _bytes: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn file_submit(&self, _file: FileId, _op: FileOp, _token: Token) {
        unreachable!("no file is ever open");
    }

    fn file_close(&self, _file: FileId) {}

    fn net_listen(&self, address: SocketAddr, _shared_port: bool) -> Result<(SocketId, SocketAddr), Errno> {
        self.listener.set(self.fresh());
        Ok((SocketId(self.listener.get()), address))
    }

    fn net_accept(&self, _listener: SocketId) -> Result<(SocketId, SocketAddr), Errno> {
        self.backlog.borrow_mut().pop_front().map(|id| (SocketId(id), PEER)).ok_or(Errno::EAGAIN)
    }

    fn net_connect(&self, _address: SocketAddr) -> Result<SocketId, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn net_connect_result(&self, _socket: SocketId) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn net_recv(&self, socket: SocketId, target: &mut [u8]) -> Result<usize, Errno> {
        self.net_recv_vectored(socket, &mut [target])
    }

    fn net_recv_vectored(&self, socket: SocketId, targets: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let mut sockets = self.sockets.borrow_mut();
        let socket = sockets.get_mut(&socket.0).ok_or(Errno::EBADF)?;
        let mut received = 0;
        for target in targets {
            let len = target.len().min(socket.inbound.len());
            let (first, second) = socket.inbound.as_slices();
            let split = len.min(first.len());
            target[..split].copy_from_slice(&first[..split]);
            target[split..len].copy_from_slice(&second[..len - split]);
            socket.inbound.drain(..len);
            received += len;
        }
        match received {
            0 if !socket.inbound_ended => Err(Errno::EAGAIN),
            received => Ok(received),
        }
    }

    fn net_send(&self, socket: SocketId, slices: &[Slice]) -> Result<usize, Errno> {
        let mut sockets = self.sockets.borrow_mut();
        let socket = sockets.get_mut(&socket.0).ok_or(Errno::EBADF)?;
        let total: usize = slices.iter().map(Slice::len).sum();
        if socket.room == 0 && total > 0 {
            socket.was_full = true;
            return Err(Errno::EAGAIN);
        }
        let sent = total.min(socket.room);
        let start = socket.outbound.len();
        for slice in slices {
            // SAFETY: the caller keeps the slices' memory valid during the call.
            unsafe { slice.copy_to(&mut socket.outbound) };
        }
        socket.outbound.truncate(start + sent);
        socket.room -= sent;
        Ok(sent)
    }

    fn net_export(&self, _socket: SocketId) -> Result<ExportedSocket, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn net_import(&self, _socket: ExportedSocket) -> Result<SocketId, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn net_close(&self, socket: SocketId) {
        self.sockets.borrow_mut().remove(&socket.0);
    }

    fn pmem_open(&self, _path: Option<&str>, _bytes: u64) -> Result<(PmemId, PmemInfo), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn pmem_read(&self, _pmem: PmemId, _offset: u64, _target: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn pmem_store(&self, _pmem: PmemId, _offset: u64, _source: &[u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn pmem_fence(&self, _pmem: PmemId) {}

    fn pmem_close(&self, _pmem: PmemId) {}
}
