//! What one connection has still to send, gathered: headers in one piece of memory, data where the requests have it.
//!
//! Everything queued during a turn leaves in one system call at its end. Headers that follow each other become one slice,
//! so 128 reads are one slice of 128 capsules.

use reactor::{Buf, Slice};
use std::collections::VecDeque;

use crate::tcp::pdu::HEADER_SPACE;

/// Most slices handed to one send (the driver takes up to 1024).
pub(super) const SLICES_MAX: usize = 512;
/// Most bytes handed to one send: beyond it the peer could have begun its work on what is already there.
pub(super) const SEND_BYTES_MAX: usize = 512 << 10;
/// Header memory that an idle connection starts with: one capsule for each command of a small queue.
const HEADS_BYTES_MIN: usize = 4 << 10;

#[derive(Clone, Copy, Debug)]
enum Segment {
    /// Bytes of `heads`, by their position in everything ever queued.
    Head { at: u64, len: u32 },
    /// Bytes of a command's buffers.
    Data { slot: u16, offset: u32, len: u32 },
}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Segment::Head { len, .. } | Segment::Data { len, .. } => *len as usize,
        }
    }

    /// Drops the first `by` bytes.
    fn shorten(&mut self, by: u32) {
        match self {
            Segment::Head { at, len } => {
                *at += u64::from(by);
                *len -= by;
            }
            Segment::Data { offset, len, .. } => {
                *offset += by;
                *len -= by;
            }
        }
    }
}

/// The send side of a connection.
pub(super) struct Outbox {
    heads: Vec<u8>,
    /// Position of `heads[0]`.
    base: u64,
    /// Bytes of `heads` in use.
    tail: usize,
    segments: VecDeque<Segment>,
    /// Bytes queued and not yet sent.
    queued: usize,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Outbox { heads: vec![0; HEADS_BYTES_MIN], base: 0, tail: 0, segments: VecDeque::with_capacity(64), queued: 0 }
    }

    /// Bytes that wait.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Queues a header that `write` puts into [`HEADER_SPACE`] bytes, returning its length.
    #[inline]
    pub(super) fn head(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        if self.heads.len() - self.tail < HEADER_SPACE {
            self.make_room();
        }
        let len = write(&mut self.heads[self.tail..self.tail + HEADER_SPACE]);
        let at = self.base + self.tail as u64;
        self.tail += len;
        self.queued += len;
        if let Some(Segment::Head { at: last_at, len: last_len }) = self.segments.back_mut()
            && *last_at + u64::from(*last_len) == at
        {
            *last_len += len as u32;
            return;
        }
        self.segments.push_back(Segment::Head { at, len: len as u32 });
    }

    /// Queues a few bytes that have no other home: a digest, a range list.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(HEADER_SPACE) {
            self.head(|out| {
                out[..piece.len()].copy_from_slice(piece);
                piece.len()
            });
        }
    }

    /// Queues `len` bytes at `offset` of the buffers of command `slot`.
    pub(super) fn data(&mut self, slot: u16, offset: u32, len: u32) {
        self.queued += len as usize;
        self.segments.push_back(Segment::Data { slot, offset, len });
    }

    /// Forgets what has been sent, or takes more memory. What bounds it: one capsule per command under way, and the data
    /// headers that [`SEND_BYTES_MAX`] admits.
    fn make_room(&mut self) {
        let first = self.segments.iter().find_map(|segment| match segment {
            Segment::Head { at, .. } => Some((*at - self.base) as usize),
            Segment::Data { .. } => None,
        });
        let first = first.unwrap_or(self.tail);
        self.heads.copy_within(first..self.tail, 0);
        self.base += first as u64;
        self.tail -= first;
        if self.heads.len() - self.tail < HEADER_SPACE.max(self.heads.len() / 4) {
            self.heads.resize(self.heads.len() * 2, 0);
        }
    }

    /// The next slices to send; `data_of` finds a command's buffers.
    pub(super) fn gather<'a>(&'a self, slices: &mut Vec<Slice>, data_of: impl Fn(u16) -> &'a [Buf]) {
        let mut bytes = 0;
        for segment in &self.segments {
            if slices.len() >= SLICES_MAX || bytes >= SEND_BYTES_MAX {
                return;
            }
            bytes += segment.len();
            match *segment {
                Segment::Head { at, len } => {
                    let start = (at - self.base) as usize;
                    slices.push(Slice::of(&self.heads[start..start + len as usize]));
                }
                Segment::Data { slot, offset, len } => {
                    gather_data(slices, data_of(slot), offset as usize, len as usize);
                }
            }
        }
    }

    /// Notes that `bytes` have left; `data_done` hears of each data segment that is complete.
    pub(super) fn advance(&mut self, mut bytes: usize, mut data_done: impl FnMut(u16)) {
        assert!(bytes <= self.queued, "more was sent than was queued");
        self.queued -= bytes;
        while let Some(first) = self.segments.front_mut() {
            if bytes < first.len() {
                first.shorten(bytes as u32);
                return;
            }
            bytes -= first.len();
            if let Segment::Data { slot, .. } = *first {
                data_done(slot);
            }
            self.segments.pop_front();
        }
        assert_eq!(bytes, 0, "what was sent had been queued");
        self.base += self.tail as u64;
        self.tail = 0;
    }
}

fn gather_data(slices: &mut Vec<Slice>, bufs: &[Buf], mut skip: usize, mut len: usize) {
    for buf in bufs {
        if len == 0 {
            return;
        }
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        let take = (buf.len() - skip).min(len);
        slices.push(Slice::of(&buf.as_slice()[skip..skip + take]));
        len -= take;
        skip = 0;
    }
    assert_eq!(len, 0, "a command's data lies within its buffers");
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::{BufPool, PoolConfig};

    /// What [`Outbox::gather`] would hand out, as bytes.
    fn waiting(outbox: &Outbox, bufs: &[Buf]) -> Vec<u8> {
        let data: Vec<u8> = bufs.iter().flat_map(|buf| buf.as_slice()).copied().collect();
        let mut all = Vec::new();
        for segment in &outbox.segments {
            match *segment {
                Segment::Head { at, len } => {
                    let start = (at - outbox.base) as usize;
                    all.extend_from_slice(&outbox.heads[start..start + len as usize]);
                }
                Segment::Data { offset, len, .. } => {
                    all.extend_from_slice(&data[offset as usize..(offset + len) as usize]);
                }
            }
        }
        all
    }

    fn drain(outbox: &mut Outbox, bufs: &[Buf], step: usize) -> (Vec<u8>, Vec<u16>) {
        let (mut bytes, mut done) = (Vec::new(), Vec::new());
        while outbox.queued() > 0 {
            let mut slices = Vec::new();
            outbox.gather(&mut slices, |_| bufs);
            let gathered: usize = slices.iter().map(Slice::len).sum();
            let all = waiting(outbox, bufs);
            assert!(gathered > 0 && gathered <= all.len());
            let sent = step.min(gathered);
            bytes.extend_from_slice(&all[..sent]);
            outbox.advance(sent, |slot| done.push(slot));
        }
        (bytes, done)
    }

    #[test]
    fn what_was_queued_leaves_in_order_whatever_the_socket_takes() {
        let pool = BufPool::new(PoolConfig::default());
        let mut bufs = vec![pool.try_alloc(4096).unwrap(), pool.try_alloc(4096).unwrap()];
        bufs[0].as_mut_slice().iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
        bufs[1].as_mut_slice().fill(0xee);
        for step in [1, 7, 100, 5000, 1 << 20] {
            let mut outbox = Outbox::new();
            let mut expected = Vec::new();
            for round in 0..100u8 {
                outbox.head(|out| {
                    out[..72].fill(round);
                    72
                });
                expected.extend_from_slice(&[round; 72]);
                if round % 10 == 3 {
                    outbox.data(u16::from(round), 4000, 200);
                    expected.extend_from_slice(&bufs[0].as_slice()[4000..]);
                    expected.extend_from_slice(&bufs[1].as_slice()[..104]);
                    outbox.bytes(&[round; 4]);
                    expected.extend_from_slice(&[round; 4]);
                }
            }
            let (bytes, done) = drain(&mut outbox, &bufs, step);
            assert_eq!(bytes, expected);
            assert_eq!(done, [3, 13, 23, 33, 43, 53, 63, 73, 83, 93]);
        }
    }

    #[test]
    fn headers_that_follow_each_other_are_one_slice() {
        let mut outbox = Outbox::new();
        for _ in 0..100 {
            outbox.head(|out| {
                out[..72].fill(1);
                72
            });
        }
        let mut slices = Vec::new();
        outbox.gather(&mut slices, |_| &[]);
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0].len(), 7200);
    }

    #[test]
    fn header_memory_does_not_grow_while_the_peer_keeps_up() {
        let mut outbox = Outbox::new();
        for _ in 0..10_000 {
            for _ in 0..20 {
                outbox.head(|_| 72);
            }
            let queued = outbox.queued();
            outbox.advance(queued - 72, |_| {});
        }
        assert!(outbox.heads.len() <= 4 * HEADS_BYTES_MIN, "{} bytes", outbox.heads.len());
    }
}
