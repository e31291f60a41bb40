//! A TCP connection with TLS, with the behaviour of one without.
//!
//! Bytes count as sent when the socket has taken the records that carry them, so that whoever sends notices when a peer does not
//! read, and comes again: what was made into records and has not left is owed, and the same bytes offered again are not sent
//! twice. A short receive means that the socket is drained, as it does without TLS.

use reactor::{Errno, Slice, TcpStream};
use std::cell::RefCell;

use super::openssl::copy_slices;
use super::session::{Session, Taken};
use super::{Keyring, TlsFailure, TlsKey};

/// Plaintext that becomes records at once: two of the largest ones.
const BATCH_BYTES: usize = 32 << 10;
/// Records that are received at once.
const RECEIVE_BYTES: usize = 32 << 10;

/// See the module.
pub(crate) struct TlsStream {
    tcp: TcpStream,
    inner: RefCell<Inner>,
}

struct Inner {
    session: Session,
    /// Bytes that are records in the outbox.
    owed: usize,
    /// Where bytes are gathered before they become records.
    batch: Vec<u8>,
}

impl TlsStream {
    /// The target's side; the handshake is carried out by receives.
    pub(super) fn accept(tcp: TcpStream, ring: Keyring, now_ns: u64) -> Result<TlsStream, TlsFailure> {
        Ok(TlsStream::new(tcp, Session::server(ring, now_ns)?))
    }

    /// The host's side, with the handshake.
    pub(super) async fn connect(tcp: TcpStream, key: TlsKey) -> Result<TlsStream, TlsFailure> {
        let this = TlsStream::new(tcp, Session::client(key)?);
        loop {
            let is_over = this.inner.borrow_mut().session.shake_hands();
            let flushed = this.inner.borrow_mut().flush(&this.tcp);
            if is_over? {
                return Ok(this);
            }
            if flushed.map_err(network)? {
                this.tcp.readable().await.map_err(network)?;
            } else {
                this.tcp.writable().await.map_err(network)?;
            }
            let mut inner = this.inner.borrow_mut();
            match inner.receive(&this.tcp) {
                Ok(_) | Err(Errno::EAGAIN) => {}
                Err(errno) => return Err(network(errno)),
            }
            if let Some(failure) = inner.session.failure() {
                return Err(failure.clone());
            }
        }
    }

    fn new(tcp: TcpStream, session: Session) -> TlsStream {
        TlsStream { tcp, inner: RefCell::new(Inner { session, owed: 0, batch: Vec::new() }) }
    }

    /// Whether the handshake is not over.
    #[inline]
    pub(super) fn is_shaking_hands(&self) -> bool {
        !self.inner.borrow().session.is_established()
    }

    /// The key that both sides agreed on, once the handshake is over.
    pub(super) fn key(&self) -> Option<TlsKey> {
        self.inner.borrow().session.key().cloned()
    }

    /// Why there is no TLS with this peer.
    pub(super) fn failure(&self) -> Option<TlsFailure> {
        self.inner.borrow().session.failure().cloned()
    }

    pub(super) async fn readable(&self) -> Result<(), Errno> {
        if self.inner.borrow().session.has_more() {
            return Ok(());
        }
        self.tcp.readable().await
    }

    pub(super) fn has_ended(&self) -> bool {
        self.tcp.has_ended()
    }

    pub(super) async fn ended(&self) {
        self.tcp.ended().await;
    }

    pub(super) async fn writable(&self) -> Result<(), Errno> {
        self.tcp.writable().await
    }

    pub(super) fn try_recv_vectored(&self, targets: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let mut received = 0;
        for target in targets {
            match self.try_recv(target) {
                Ok(bytes) => {
                    received += bytes;
                    if bytes < target.len() {
                        break;
                    }
                }
                Err(_) if received > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(received)
    }

    pub(super) fn try_recv(&self, target: &mut [u8]) -> Result<usize, Errno> {
        let inner = &mut *self.inner.borrow_mut();
        let mut received = 0;
        let stopped = loop {
            if received == target.len() {
                return Ok(received);
            }
            match inner.session.take(&mut target[received..]) {
                Ok(Taken::Bytes(bytes)) => received += bytes,
                Ok(Taken::End) => return Ok(received),
                Ok(Taken::Nothing) => {
                    // What the protocol says by itself; where the socket is full, it goes with the next bytes.
                    if let Err(errno) = inner.flush(&self.tcp).and_then(|_| inner.receive(&self.tcp)) {
                        break errno;
                    }
                }
                Err(_) => {
                    // The peer is told why, as far as the socket takes it.
                    let _ = inner.flush(&self.tcp);
                    break Errno::ECONNABORTED;
                }
            }
        };
        if received > 0 { Ok(received) } else { Err(stopped) }
    }

    pub(super) fn try_send(&self, slices: &[Slice]) -> Result<usize, Errno> {
        let inner = &mut *self.inner.borrow_mut();
        if !inner.session.is_established() || !inner.flush(&self.tcp)? {
            return Err(Errno::EAGAIN);
        }
        let total: usize = slices.iter().map(Slice::len).sum();
        let mut sent = inner.owed.min(total);
        inner.owed -= sent;
        while sent < total {
            inner.batch.clear();
            copy_slices(slices, sent, BATCH_BYTES, &mut inner.batch);
            inner.session.put(&inner.batch).map_err(|_| Errno::ECONNABORTED)?;
            if !inner.flush(&self.tcp)? {
                inner.owed = inner.batch.len();
                break;
            }
            sent += inner.batch.len();
        }
        if sent > 0 || total == 0 { Ok(sent) } else { Err(Errno::EAGAIN) }
    }

    pub(super) fn end_sending(&self) -> bool {
        self.say_goodbye();
        self.tcp.end_sending()
    }

    pub(super) async fn drain(&self, patience_ns: u64, bytes_max: usize) {
        self.tcp.drain(patience_ns, bytes_max).await;
    }

    pub(super) fn close(&self) {
        self.say_goodbye();
        self.tcp.close();
    }

    fn say_goodbye(&self) {
        let inner = &mut *self.inner.borrow_mut();
        inner.session.say_goodbye();
        let _ = inner.flush(&self.tcp);
    }
}

impl Inner {
    /// Sends the records that wait, as far as the socket takes them. True when none is left.
    fn flush(&mut self, tcp: &TcpStream) -> Result<bool, Errno> {
        while !self.session.outbox().is_empty() {
            match tcp.try_send(&[Slice::of(self.session.outbox())]) {
                Ok(sent) => self.session.sent(sent),
                Err(Errno::EAGAIN) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    /// Receives records.
    fn receive(&mut self, tcp: &TcpStream) -> Result<usize, Errno> {
        let received = self.session.fill(RECEIVE_BYTES, |room| tcp.try_recv(room));
        if received == Ok(0) {
            self.session.end();
        }
        received
    }
}

fn network(errno: Errno) -> TlsFailure {
    TlsFailure::Protocol(errno.to_string())
}
