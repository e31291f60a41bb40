//! What a connection of the target has still to send: answers, with the buffers whose bytes they carry.

use crate::tcp;
use reactor::{Buf, Errno, SgList, Slice, TcpStream};

/// The send queue of one connection.
pub(super) type Output = tcp::output::Output<Buf>;

impl Output {
    /// Queues payload.
    #[inline]
    pub(super) fn data(&mut self, bufs: SgList) {
        for buf in bufs {
            let len = buf.len();
            self.payload(buf, len);
        }
    }

    /// Sends what the socket takes. `Ok(true)`: everything; `Ok(false)`: the socket is full.
    pub(super) fn flush(&mut self, stream: &TcpStream) -> Result<bool, Errno> {
        while self.bytes() > 0 {
            let slices = self.gather(|buf, sent, slices| slices.push(Slice::of_buf(buf).advanced(sent)));
            match stream.try_send(slices) {
                Ok(sent) => self.advance(sent, drop),
                Err(Errno::EAGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
