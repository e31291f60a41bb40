//! What a connection of the target has still to send: answers, with the buffers whose bytes they carry.

use crate::tcp;
use crate::tls::stream::Stream;
use reactor::{Buf, Errno, SgList, Slice};

/// The send queue of one connection.
pub(super) type Output = tcp::output::Output<Buf>;

/// How a flush has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Nothing is left.
    All,
    /// As much as was allowed has left.
    Part,
    /// The socket is full.
    Full,
}

impl Output {
    /// Queues payload.
    #[inline]
    pub(super) fn data(&mut self, bufs: SgList) {
        for buf in bufs {
            let len = buf.len();
            self.payload(buf, len);
        }
    }

    /// Sends what the socket takes, up to `bytes_max`.
    pub(super) fn flush(&mut self, stream: &Stream, mut bytes_max: usize) -> Result<Flushed, Errno> {
        while self.bytes() > 0 {
            if bytes_max == 0 {
                return Ok(Flushed::Part);
            }
            let slices =
                self.gather_up_to(bytes_max, |buf, sent, slices| slices.push(Slice::of_buf(buf).advanced(sent)));
            match stream.try_send(slices) {
                Ok(sent) => {
                    self.advance(sent, drop);
                    bytes_max -= sent;
                }
                Err(Errno::EAGAIN) => return Ok(Flushed::Full),
                Err(error) => return Err(error),
            }
        }
        Ok(Flushed::All)
    }
}
