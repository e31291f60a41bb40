//! What a connection has still to send: headers in one growing byte run, payload buffers by reference, one gathered send.
//!
//! Adjacent headers become one piece, so a turn's worth of write completions is a single slice. Batching the responses of a
//! turn is the largest single effect on throughput: one send per response costs four to seven times as much.

use reactor::{Buf, Errno, SgList, Slice, TcpStream};
use std::collections::VecDeque;

/// Pieces gathered into one send (IOV_MAX).
const SLICES_MAX: usize = 1024;
/// A stalled queue is compacted when this much of its header run has been sent.
const COMPACT_BYTES: usize = 64 << 10;

enum Piece {
    /// The next so many bytes of the header run.
    Headers(usize),
    Data(Buf),
}

/// The send queue of one connection.
#[derive(Default)]
pub(super) struct Output {
    headers: Vec<u8>,
    /// Bytes of `headers` that were sent.
    headers_sent: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that were sent.
    first_sent: usize,
    bytes: usize,
    slices: Vec<Slice>,
}

impl Output {
    /// Bytes waiting.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of headers waiting.
    pub(super) fn header_bytes(&self) -> usize {
        self.headers.len() - self.headers_sent
    }

    /// Appends a header of at most `N` bytes written by `encode`, which returns its length.
    #[inline]
    pub(super) fn header<const N: usize>(&mut self, encode: impl FnOnce(&mut [u8]) -> usize) {
        let start = self.headers.len();
        self.headers.resize(start + N, 0);
        let len = encode(&mut self.headers[start..]);
        self.headers.truncate(start + len);
        self.bytes += len;
        match self.pieces.back_mut() {
            Some(Piece::Headers(run)) => *run += len,
            _ => self.pieces.push_back(Piece::Headers(len)),
        }
    }

    /// Appends payload.
    #[inline]
    pub(super) fn data(&mut self, bufs: SgList) {
        for buf in bufs {
            self.bytes += buf.len();
            self.pieces.push_back(Piece::Data(buf));
        }
    }

    /// Appends bytes that are copied (a digest, a termination).
    pub(super) fn bytes_copied(&mut self, bytes: &[u8]) {
        self.header::<256>(|out| {
            out[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        });
    }

    /// Sends what the socket takes. `Ok(true)`: everything; `Ok(false)`: the socket is full.
    pub(super) fn flush(&mut self, stream: &TcpStream) -> Result<bool, Errno> {
        while !self.pieces.is_empty() {
            self.gather();
            match stream.try_send(&self.slices) {
                Ok(sent) => self.consume(sent),
                Err(Errno::EAGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn gather(&mut self) {
        self.slices.clear();
        let mut header_at = self.headers_sent;
        let mut skip = self.first_sent;
        for piece in self.pieces.iter().take(SLICES_MAX) {
            let slice = match piece {
                Piece::Headers(len) => {
                    // `headers_sent` already counts what was sent of this run.
                    let slice = Slice::of(&self.headers[header_at..header_at + len - skip]);
                    header_at += len - skip;
                    slice
                }
                Piece::Data(buf) => Slice::of_buf(buf).advanced(skip),
            };
            skip = 0;
            self.slices.push(slice);
        }
    }

    fn consume(&mut self, mut sent: usize) {
        self.bytes -= sent;
        while sent > 0 {
            let piece = self.pieces.front().expect("no more is sent than was gathered");
            let (left, is_header) = match piece {
                Piece::Headers(len) => (len - self.first_sent, true),
                Piece::Data(buf) => (buf.len() - self.first_sent, false),
            };
            let step = sent.min(left);
            sent -= step;
            if is_header {
                self.headers_sent += step;
            }
            if step == left {
                self.pieces.pop_front();
                self.first_sent = 0;
            } else {
                self.first_sent += step;
            }
        }
        if self.pieces.is_empty() {
            self.headers.clear();
            // What a burst to a slow host needed is not kept for ever.
            self.headers.shrink_to(COMPACT_BYTES);
            self.headers_sent = 0;
        } else if self.headers_sent >= COMPACT_BYTES {
            self.headers.drain(..self.headers_sent);
            self.headers_sent = 0;
        }
    }

    /// Drops everything that waits.
    pub(super) fn discard(&mut self) {
        self.pieces.clear();
        self.headers.clear();
        (self.headers_sent, self.first_sent, self.bytes) = (0, 0, 0);
    }
}
