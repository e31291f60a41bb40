//! A TCP connection, with TLS or without. Whoever sends and receives over it does not know which.

use reactor::{Errno, Slice, TcpStream};

#[cfg(feature = "tls")]
use super::encrypted::TlsStream;
use super::{Keyring, TlsFailure, TlsKey};

/// See the module; the methods are those of [`TcpStream`].
pub(crate) enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

/// Calls a method of whichever stream it is.
macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Plain($inner) => $call,
            #[cfg(feature = "tls")]
            Stream::Tls($inner) => $call,
        }
    };
}

impl Stream {
    /// The target's side of a connection with TLS, whose keys are these at this time. The handshake is carried out by receives,
    /// which find nothing until it is over.
    #[cfg(feature = "tls")]
    pub(crate) fn accept(tcp: TcpStream, ring: Keyring, now_ns: u64) -> Result<Stream, TlsFailure> {
        Ok(Stream::Tls(Box::new(TlsStream::accept(tcp, ring, now_ns)?)))
    }

    /// Refused: this build has no TLS.
    #[cfg(not(feature = "tls"))]
    pub(crate) fn accept(_: TcpStream, _: Keyring, _: u64) -> Result<Stream, TlsFailure> {
        Err(TlsFailure::NotBuilt)
    }

    /// The host's side of a connection with TLS, with the handshake.
    #[cfg(feature = "tls")]
    pub(crate) async fn connect(tcp: TcpStream, key: TlsKey) -> Result<Stream, TlsFailure> {
        Ok(Stream::Tls(Box::new(TlsStream::connect(tcp, key).await?)))
    }

    /// Refused: this build has no TLS.
    #[cfg(not(feature = "tls"))]
    pub(crate) async fn connect(_: TcpStream, _: TlsKey) -> Result<Stream, TlsFailure> {
        Err(TlsFailure::NotBuilt)
    }

    /// Whether there is TLS, or to be.
    pub(crate) fn is_encrypted(&self) -> bool {
        !matches!(self, Stream::Plain(_))
    }

    /// Whether there is to be TLS, and the handshake is not over.
    #[inline]
    pub(crate) fn is_shaking_hands(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.is_shaking_hands(),
        }
    }

    /// The key that both sides agreed on, once the handshake is over.
    pub(crate) fn key(&self) -> Option<TlsKey> {
        match self {
            Stream::Plain(_) => None,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.key(),
        }
    }

    /// Why there is no TLS with this peer.
    pub(crate) fn tls_failure(&self) -> Option<TlsFailure> {
        match self {
            Stream::Plain(_) => None,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.failure(),
        }
    }

    #[inline]
    pub(crate) async fn readable(&self) -> Result<(), Errno> {
        either!(self, stream => stream.readable().await)
    }

    /// Whether the peer has ended its stream, whatever there is before that to receive.
    pub(crate) fn has_ended(&self) -> bool {
        either!(self, stream => stream.has_ended())
    }

    /// Waits for that, by the task that receives.
    pub(crate) async fn ended(&self) {
        either!(self, stream => stream.ended().await);
    }

    #[inline]
    pub(crate) async fn writable(&self) -> Result<(), Errno> {
        either!(self, stream => stream.writable().await)
    }

    #[inline]
    pub(crate) fn try_recv(&self, target: &mut [u8]) -> Result<usize, Errno> {
        either!(self, stream => stream.try_recv(target))
    }

    #[inline]
    pub(crate) fn try_recv_vectored(&self, targets: &mut [&mut [u8]]) -> Result<usize, Errno> {
        either!(self, stream => stream.try_recv_vectored(targets))
    }

    #[inline]
    pub(crate) fn try_send(&self, slices: &[Slice]) -> Result<usize, Errno> {
        either!(self, stream => stream.try_send(slices))
    }

    /// Receives at least one byte; `Ok(0)` at the end of the stream.
    pub(crate) async fn recv(&self, target: &mut [u8]) -> Result<usize, Errno> {
        loop {
            self.readable().await?;
            match self.try_recv(target) {
                Err(Errno::EAGAIN) => {}
                result => return result,
            }
        }
    }

    /// Sends all of `bytes`.
    pub(crate) async fn send_all(&self, mut bytes: &[u8]) -> Result<(), Errno> {
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

    pub(crate) fn end_sending(&self) -> bool {
        either!(self, stream => stream.end_sending())
    }

    pub(crate) async fn drain(&self, patience_ns: u64, bytes_max: usize) {
        either!(self, stream => stream.drain(patience_ns, bytes_max).await)
    }

    pub(crate) fn close(&self) {
        either!(self, stream => stream.close());
    }
}
