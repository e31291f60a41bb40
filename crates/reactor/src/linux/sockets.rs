//! TCP sockets: non-blocking system calls for data, multishot polls on the ring for readiness.

use super::check;
use super::ring::{Ring, UserData};
use crate::driver::{Event, ExportedSocket, Slice, SocketId};
use base::Errno;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Pieces gathered into one send (IOV_MAX).
const SLICES_MAX: usize = 1024;

struct Socket {
    fd: OwnedFd,
    write_watched: bool,
}

#[derive(Default)]
pub(super) struct Sockets {
    open: BTreeMap<u64, Socket>,
    next: u64,
}

impl Sockets {
    fn add(&mut self, ring: &mut Ring, fd: OwnedFd) -> SocketId {
        self.next += 1;
        let id = self.next;
        ring.poll_multishot(fd.as_raw_fd(), UserData::new(UserData::KIND_READ, id));
        self.open.insert(id, Socket { fd, write_watched: false });
        SocketId(id)
    }

    fn fd(&self, socket: SocketId) -> Result<RawFd, Errno> {
        self.open.get(&socket.0).map(|socket| socket.fd.as_raw_fd()).ok_or(Errno::EBADF)
    }

    pub(super) fn listen(
        &mut self,
        ring: &mut Ring,
        address: SocketAddr,
        shared_port: bool,
    ) -> Result<(SocketId, SocketAddr), Errno> {
        let listen = || -> std::io::Result<(socket2::Socket, SocketAddr)> {
            let socket = new_socket(address)?;
            socket.set_reuse_address(true)?;
            if shared_port {
                socket.set_reuse_port(true)?;
            }
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            let local = socket.local_addr()?.as_socket().unwrap_or(address);
            Ok((socket, local))
        };
        let (socket, local) = listen().map_err(|error| Errno::from_io(&error))?;
        Ok((self.add(ring, socket.into()), local))
    }

    pub(super) fn accept(&mut self, ring: &mut Ring, listener: SocketId) -> Result<(SocketId, SocketAddr), Errno> {
        let listener = self.fd(listener)?;
        // SAFETY: an all-zero sockaddr_storage is valid.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: fills locals of the given length.
        let fd = check(unsafe { libc::accept4(listener, (&raw mut storage).cast(), &mut len, flags) }.into())?;
        // SAFETY: a fresh descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let socket = socket2::SockRef::from(&fd);
        let peer = socket.peer_addr().ok().and_then(|address| address.as_socket()).ok_or(Errno::ECONNABORTED)?;
        let _ = socket.set_tcp_nodelay(true);
        let _ = socket.set_keepalive(true);
        Ok((self.add(ring, fd), peer))
    }

    pub(super) fn connect(&mut self, ring: &mut Ring, address: SocketAddr) -> Result<SocketId, Errno> {
        let socket = new_socket(address).map_err(|error| Errno::from_io(&error))?;
        let _ = socket.set_tcp_nodelay(true);
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(Errno::from_io(&error)),
        }
        let id = self.add(ring, socket.into());
        self.watch_writable(ring, id);
        Ok(id)
    }

    pub(super) fn connect_result(&self, socket: SocketId) -> Result<(), Errno> {
        let entry = self.open.get(&socket.0).ok_or(Errno::EBADF)?;
        match socket2::SockRef::from(&entry.fd).take_error() {
            Ok(None) => Ok(()),
            Ok(Some(error)) | Err(error) => Err(Errno::from_io(&error)),
        }
    }

    pub(super) fn recv(&self, socket: SocketId, target: &mut [u8]) -> Result<usize, Errno> {
        let fd = self.fd(socket)?;
        // SAFETY: `target` is exclusive and live.
        let result = unsafe { libc::recv(fd, target.as_mut_ptr().cast(), target.len(), libc::MSG_DONTWAIT) };
        check(result as i64).map(|bytes| bytes as usize)
    }

    pub(super) fn recv_vectored(&self, socket: SocketId, targets: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let fd = self.fd(socket)?;
        let to_iovec =
            |target: &mut &mut [u8]| libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
        let iovecs: smallvec::SmallVec<[libc::iovec; 16]> = targets.iter_mut().take(SLICES_MAX).map(to_iovec).collect();
        // SAFETY: the targets are exclusive and live; the iovecs are local.
        let result = unsafe { libc::readv(fd, iovecs.as_ptr(), iovecs.len() as i32) };
        check(result as i64).map(|bytes| bytes as usize)
    }

    pub(super) fn send(&self, socket: SocketId, slices: &[Slice]) -> Result<usize, Errno> {
        let fd = self.fd(socket)?;
        const _: () = assert!(size_of::<Slice>() == size_of::<libc::iovec>());
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        // A Slice is an address and a length in this order (repr(C)), exactly an iovec; the kernel only reads it.
        message.msg_iov = slices.as_ptr() as *mut libc::iovec;
        message.msg_iovlen = slices.len().min(SLICES_MAX) as _;
        // SAFETY: the caller keeps the slices' memory valid during the call.
        let result = unsafe { libc::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        check(result as i64).map(|bytes| bytes as usize)
    }

    pub(super) fn watch_writable(&mut self, ring: &mut Ring, socket: SocketId) {
        if let Some(entry) = self.open.get_mut(&socket.0)
            && !entry.write_watched
        {
            entry.write_watched = true;
            ring.poll_writable(entry.fd.as_raw_fd(), UserData::new(UserData::KIND_WRITE, socket.0));
        }
    }

    /// Turns a poll's completion into an event, unless the socket is gone.
    pub(super) fn polled(&mut self, data: UserData, result: i32, _more: bool) -> Option<Event> {
        let socket = self.open.get_mut(&data.index())?;
        if data.kind() == UserData::KIND_WRITE {
            socket.write_watched = false;
        }
        if result < 0 {
            return None;
        }
        let broken = result & (libc::POLLERR | libc::POLLHUP) as i32 != 0;
        let readable = broken || result & (libc::POLLIN | libc::POLLRDHUP) as i32 != 0;
        let writable = broken || result & libc::POLLOUT as i32 != 0;
        let ended = broken || result & libc::POLLRDHUP as i32 != 0;
        Some(Event::Socket { socket: SocketId(data.index()), readable, writable, ended })
    }

    /// The watch to start again when the kernel ended a multishot poll on its own.
    pub(super) fn rearm_after(&self, data: UserData, more: bool) -> Option<(RawFd, UserData)> {
        if more || data.kind() != UserData::KIND_READ {
            return None;
        }
        self.open.get(&data.index()).map(|socket| (socket.fd.as_raw_fd(), data))
    }

    fn unwatch(&mut self, ring: &mut Ring, socket: SocketId) -> Result<OwnedFd, Errno> {
        let entry = self.open.remove(&socket.0).ok_or(Errno::EBADF)?;
        ring.cancel_poll(UserData::new(UserData::KIND_READ, socket.0));
        if entry.write_watched {
            ring.cancel_poll(UserData::new(UserData::KIND_WRITE, socket.0));
        }
        Ok(entry.fd)
    }

    pub(super) fn export(&mut self, ring: &mut Ring, socket: SocketId) -> Result<ExportedSocket, Errno> {
        self.unwatch(ring, socket).map(|fd| ExportedSocket { raw: fd.into_raw_fd() as u64 })
    }

    pub(super) fn import(&mut self, ring: &mut Ring, socket: ExportedSocket) -> Result<SocketId, Errno> {
        // SAFETY: an exported socket is a descriptor that its exporter gave up, imported once since it is not Clone.
        let fd = unsafe { OwnedFd::from_raw_fd(socket.raw as i32) };
        Ok(self.add(ring, fd))
    }

    pub(super) fn end_sending(&self, socket: SocketId) -> bool {
        let shut = |entry: &Socket| socket2::SockRef::from(&entry.fd).shutdown(std::net::Shutdown::Write);
        self.open.get(&socket.0).is_some_and(|entry| shut(entry).is_ok())
    }

    pub(super) fn close(&mut self, ring: &mut Ring, socket: SocketId) {
        if let Ok(fd) = self.unwatch(ring, socket) {
            // The poll under way holds the socket open a little longer; shutting down tells the peer now.
            let _ = socket2::SockRef::from(&fd).shutdown(std::net::Shutdown::Both);
        }
    }
}

fn new_socket(address: SocketAddr) -> std::io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
