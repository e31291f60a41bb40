//! TCP over the driver's sockets: attempts that never block, and futures for their readiness.

use crate::driver::{ExportedSocket, Slice, SocketId};
use crate::reactor::Reactor;
use base::Errno;
use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;

/// Bytes that are dropped at once when a stream is drained.
const DRAIN_BYTES: usize = 64 << 10;

/// A listening socket.
pub struct TcpListener {
    reactor: Rc<Reactor>,
    socket: SocketId,
    address: SocketAddr,
}

impl TcpListener {
    /// Listens on `address` (port 0 picks one); with `shared_port` other reactors may listen there too.
    pub fn bind(reactor: &Rc<Reactor>, address: SocketAddr, shared_port: bool) -> Result<TcpListener, Errno> {
        let (socket, address) = reactor.driver().net_listen(address, shared_port)?;
        reactor.watch_socket(socket);
        Ok(TcpListener { reactor: reactor.clone(), socket, address })
    }

    /// The address in use.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection and its peer.
    pub async fn accept(&self) -> Result<(TcpStream, SocketAddr), Errno> {
        loop {
            poll_fn(|cx| self.reactor.poll_ready(self.socket, true, cx)).await?;
            match self.reactor.driver().net_accept(self.socket) {
                Ok((socket, peer)) => return Ok((TcpStream::adopt(&self.reactor, socket), peer)),
                Err(Errno::EAGAIN) => self.reactor.clear_ready(self.socket, true),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.reactor.forget_socket(self.socket);
        self.reactor.driver().net_close(self.socket);
    }
}

/// A connected socket; closed when dropped.
pub struct TcpStream {
    reactor: Rc<Reactor>,
    socket: SocketId,
    open: Cell<bool>,
}

impl TcpStream {
    fn adopt(reactor: &Rc<Reactor>, socket: SocketId) -> TcpStream {
        reactor.watch_socket(socket);
        TcpStream { reactor: reactor.clone(), socket, open: Cell::new(true) }
    }

    /// Connects to `address`.
    pub async fn connect(reactor: &Rc<Reactor>, address: SocketAddr) -> Result<TcpStream, Errno> {
        let stream = TcpStream::adopt(reactor, reactor.driver().net_connect(address)?);
        reactor.clear_ready(stream.socket, false);
        stream.writable().await?;
        reactor.driver().net_connect_result(stream.socket)?;
        Ok(stream)
    }

    /// Takes the stream off this reactor, to be adopted by another.
    pub fn export(self) -> Result<ExportedSocket, Errno> {
        self.reactor.forget_socket(self.socket);
        self.open.set(false);
        self.reactor.driver().net_export(self.socket)
    }

    /// Adopts a stream exported by another reactor.
    pub fn import(reactor: &Rc<Reactor>, socket: ExportedSocket) -> Result<TcpStream, Errno> {
        Ok(TcpStream::adopt(reactor, reactor.driver().net_import(socket)?))
    }

    /// Closes the stream now; every later attempt fails with `EBADF`.
    pub fn close(&self) {
        if self.open.replace(false) {
            self.reactor.forget_socket(self.socket);
            self.reactor.driver().net_close(self.socket);
        }
    }

    /// Tells the peer that nothing more will be sent; false where only closing does.
    pub fn end_sending(&self) -> bool {
        self.open.get() && self.reactor.driver().net_end_sending(self.socket)
    }

    /// Waits until a receive is worth trying.
    pub async fn readable(&self) -> Result<(), Errno> {
        poll_fn(|cx| self.reactor.poll_ready(self.socket, true, cx)).await
    }

    /// Whether the peer has ended its stream or the connection is broken, whatever there is before that to receive.
    pub fn has_ended(&self) -> bool {
        self.reactor.has_ended(self.socket)
    }

    /// Waits for that, in place of [`readable`](Self::readable): by the task that receives.
    pub async fn ended(&self) {
        poll_fn(|cx| self.reactor.poll_ended(self.socket, cx)).await;
    }

    /// Waits until a send is worth trying.
    pub async fn writable(&self) -> Result<(), Errno> {
        poll_fn(|cx| self.reactor.poll_ready(self.socket, false, cx)).await
    }

    /// Receives what is there: `Ok(0)` at the end of the stream, `EAGAIN` when nothing is. A short receive means that the
    /// socket is drained for now.
    pub fn try_recv(&self, target: &mut [u8]) -> Result<usize, Errno> {
        let result = self.reactor.driver().net_recv(self.socket, target);
        match result {
            Ok(bytes) if bytes == target.len() || bytes == 0 => {}
            Ok(_) => self.reactor.clear_ready(self.socket, true),
            Err(Errno::EAGAIN) => self.reactor.found_nothing(self.socket),
            Err(_) => {}
        }
        result
    }

    /// As [`try_recv`](Self::try_recv), into several buffers in order.
    pub fn try_recv_vectored(&self, targets: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let room: usize = targets.iter().map(|target| target.len()).sum();
        let result = self.reactor.driver().net_recv_vectored(self.socket, targets);
        match result {
            Ok(bytes) if bytes == room || bytes == 0 => {}
            Ok(_) => self.reactor.clear_ready(self.socket, true),
            Err(Errno::EAGAIN) => self.reactor.found_nothing(self.socket),
            Err(_) => {}
        }
        result
    }

    /// Receives at least one byte; `Ok(0)` at the end of the stream.
    pub async fn recv(&self, target: &mut [u8]) -> Result<usize, Errno> {
        loop {
            self.readable().await?;
            match self.try_recv(target) {
                Err(Errno::EAGAIN) => {}
                result => return result,
            }
        }
    }

    /// Fills `target`; `ECONNRESET` when the stream ends first.
    pub async fn recv_exact(&self, target: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < target.len() {
            match self.recv(&mut target[done..]).await? {
                0 => return Err(Errno::ECONNRESET),
                bytes => done += bytes,
            }
        }
        Ok(())
    }

    /// Takes what the peer still sends and drops it, until the peer closes, for at most `patience_ns` and `bytes_max`: for
    /// a last message before a close. Closing with bytes unread, or before more of them arrive, makes TCP reset the
    /// connection, and the reset overtakes what the peer has not read yet.
    pub async fn drain(&self, patience_ns: u64, bytes_max: usize) {
        let _ = self.reactor.timeout(patience_ns, self.drain_bytes(bytes_max)).await;
    }

    async fn drain_bytes(&self, bytes_max: usize) {
        let mut dropped = vec![0; DRAIN_BYTES];
        let mut drained = 0;
        while drained < bytes_max {
            match self.recv(&mut dropped).await {
                Ok(0) | Err(_) => return,
                Ok(bytes) => drained += bytes,
            }
            self.reactor.yield_now().await;
        }
    }

    /// Sends a prefix of the gathered slices, or `EAGAIN`.
    pub fn try_send(&self, slices: &[Slice]) -> Result<usize, Errno> {
        let result = self.reactor.driver().net_send(self.socket, slices);
        if result == Err(Errno::EAGAIN) {
            self.reactor.clear_ready(self.socket, false);
        }
        result
    }

    /// Sends all of `bytes`.
    pub async fn send_all(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            self.writable().await?;
            match self.try_send(&[Slice::of(bytes)]) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::EAGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.close();
    }
}
