//! What a connection has still to send: headers in one run of bytes, payload by reference, gathered into few large sends.
//!
//! Both ends queue during a turn and send at its end: one send per PDU costs four to seven times as much. Headers that follow
//! each other become one slice, so 128 reads are one slice of 128 capsules. What a payload is (`P`) its owner knows: a buffer,
//! or a place in the buffers of a command.

use super::pdu::HEADER_SPACE;
use reactor::Slice;
use std::collections::VecDeque;

/// A send takes no further piece when it has so many slices (the driver takes up to 1024, and a piece may be several).
const SLICES_MAX: usize = 512;
/// A send takes no further piece when it has so many bytes: beyond it the peer could have begun its work on what is there.
pub(crate) const SEND_BYTES_MAX: usize = 512 << 10;
/// Header memory that a connection takes when it first sends something: an idle one needs no more.
const HEADS_BYTES_MIN: usize = 512;
/// Header memory that is kept when nothing waits: the capsules of a queue of 1,024 commands. What a burst to a slow peer needed
/// beyond it is not kept for ever.
const HEADS_BYTES_KEPT: usize = 128 << 10;

enum Piece<P> {
    /// The next so many bytes of the header run.
    Heads(usize),
    /// A payload that is so long.
    Payload(P, usize),
}

impl<P> Piece<P> {
    fn len(&self) -> usize {
        match self {
            Piece::Heads(len) | Piece::Payload(_, len) => *len,
        }
    }
}

/// The send queue of one connection.
pub(crate) struct Output<P> {
    /// Header bytes: those from `heads_sent` to `heads_end` wait.
    heads: Vec<u8>,
    heads_sent: usize,
    heads_end: usize,
    pieces: VecDeque<Piece<P>>,
    /// Bytes of the first piece that were sent.
    first_sent: usize,
    bytes: usize,
    slices: Vec<Slice>,
}

impl<P> Default for Output<P> {
    fn default() -> Self {
        Output {
            heads: Vec::new(),
            heads_sent: 0,
            heads_end: 0,
            pieces: VecDeque::new(),
            first_sent: 0,
            bytes: 0,
            slices: Vec::new(),
        }
    }
}

impl<P> Output<P> {
    /// Bytes that wait.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of headers that wait.
    pub(crate) fn header_bytes(&self) -> usize {
        self.heads_end - self.heads_sent
    }

    /// Queues a header that `write` puts into [`HEADER_SPACE`] bytes, returning its length.
    #[inline]
    pub(crate) fn header(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        if self.heads.len() - self.heads_end < HEADER_SPACE {
            self.make_room();
        }
        let len = write(&mut self.heads[self.heads_end..self.heads_end + HEADER_SPACE]);
        self.heads_end += len;
        self.bytes += len;
        match self.pieces.back_mut() {
            Some(Piece::Heads(run)) => *run += len,
            _ => self.pieces.push_back(Piece::Heads(len)),
        }
    }

    /// Queues a copy of a few bytes that have no other home: a digest, a range list, a termination.
    pub(crate) fn copied(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(HEADER_SPACE) {
            self.header(|out| {
                out[..part.len()].copy_from_slice(part);
                part.len()
            });
        }
    }

    /// Queues a payload of `len` bytes.
    #[inline]
    pub(crate) fn payload(&mut self, payload: P, len: usize) {
        self.bytes += len;
        self.pieces.push_back(Piece::Payload(payload, len));
    }

    /// Forgets the headers that were sent, or takes more memory: more than half of it is in use then, so that growing and
    /// moving cost little per header. What bounds it is what the owner lets wait.
    #[cold]
    fn make_room(&mut self) {
        if self.heads_sent >= self.heads.len().div_ceil(2).max(HEADER_SPACE) {
            self.heads.copy_within(self.heads_sent..self.heads_end, 0);
            self.heads_end -= self.heads_sent;
            self.heads_sent = 0;
        } else {
            self.heads.resize((2 * self.heads.len()).max(HEADS_BYTES_MIN), 0);
        }
    }

    /// The slices to send next. `slices_of` adds those of a payload without its first so many bytes.
    pub(crate) fn gather(&mut self, slices_of: impl Fn(&P, usize, &mut Vec<Slice>)) -> &[Slice] {
        self.gather_up_to(usize::MAX, slices_of)
    }

    /// As [`gather`](Self::gather), no more than `bytes_max`.
    pub(crate) fn gather_up_to(
        &mut self,
        bytes_max: usize,
        slices_of: impl Fn(&P, usize, &mut Vec<Slice>),
    ) -> &[Slice] {
        self.slices.clear();
        let (mut at, mut skip, mut bytes) = (self.heads_sent, self.first_sent, 0);
        for piece in &self.pieces {
            if self.slices.len() >= SLICES_MAX || bytes >= SEND_BYTES_MAX.min(bytes_max) {
                break;
            }
            let left = piece.len() - skip;
            match piece {
                Piece::Heads(_) => {
                    // `heads_sent` already counts what was sent of this run.
                    self.slices.push(Slice::of(&self.heads[at..at + left]));
                    at += left;
                }
                Piece::Payload(payload, _) => slices_of(payload, skip, &mut self.slices),
            }
            bytes += left;
            skip = 0;
        }
        let mut over = bytes.saturating_sub(bytes_max);
        while over > 0
            && let Some(last) = self.slices.pop()
        {
            if last.len() > over {
                self.slices.push(last.shortened(last.len() - over));
            }
            over = over.saturating_sub(last.len());
        }
        &self.slices
    }

    /// Notes that `sent` bytes have left; `payload_sent` is given each payload that has left whole.
    pub(crate) fn advance(&mut self, mut sent: usize, mut payload_sent: impl FnMut(P)) {
        assert!(sent <= self.bytes, "more was sent than was queued");
        self.bytes -= sent;
        while let Some(first) = self.pieces.front() {
            let left = first.len() - self.first_sent;
            let step = sent.min(left);
            if matches!(first, Piece::Heads(_)) {
                self.heads_sent += step;
            }
            sent -= step;
            if step < left {
                self.first_sent += step;
                return;
            }
            self.first_sent = 0;
            if let Some(Piece::Payload(payload, _)) = self.pieces.pop_front() {
                payload_sent(payload);
            }
        }
        assert_eq!(sent, 0, "what was sent had been queued");
        self.rest();
    }

    /// Drops everything that waits.
    pub(crate) fn discard(&mut self) {
        self.pieces.clear();
        (self.first_sent, self.bytes) = (0, 0);
        self.rest();
    }

    /// Nothing waits: the header run begins anew.
    fn rest(&mut self) {
        (self.heads_sent, self.heads_end) = (0, 0);
        if self.heads.len() > HEADS_BYTES_KEPT {
            self.heads.truncate(HEADS_BYTES_KEPT);
            self.heads.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Region = (u16, Vec<u8>);

    fn slices_of((_, bytes): &Region, skip: usize, slices: &mut Vec<Slice>) {
        // In two slices, as data that lies in two buffers.
        let (front, back) = bytes[skip..].split_at((bytes.len() - skip) / 2);
        slices.extend([Slice::of(front), Slice::of(back)]);
    }

    /// All that waits.
    fn waiting(output: &Output<Region>) -> Vec<u8> {
        let (mut all, mut at, mut skip) = (Vec::new(), output.heads_sent, output.first_sent);
        for piece in &output.pieces {
            let left = piece.len() - skip;
            match piece {
                Piece::Heads(_) => {
                    all.extend_from_slice(&output.heads[at..at + left]);
                    at += left;
                }
                Piece::Payload((_, bytes), _) => all.extend_from_slice(&bytes[skip..]),
            }
            skip = 0;
        }
        all
    }

    /// Sends everything to a socket that takes up to `step` bytes at a time; what left, and which payloads were done.
    fn drain(output: &mut Output<Region>, step: usize) -> (Vec<u8>, Vec<u16>) {
        let (mut bytes, mut done) = (Vec::new(), Vec::new());
        while output.bytes() > 0 {
            let gathered: usize = output.gather(slices_of).iter().map(Slice::len).sum();
            let all = waiting(output);
            assert!(gathered > 0 && gathered <= all.len());
            let sent = step.min(gathered);
            bytes.extend_from_slice(&all[..sent]);
            output.advance(sent, |(slot, _)| done.push(slot));
        }
        (bytes, done)
    }

    fn capsule(output: &mut Output<Region>, fill: u8) {
        output.header(|out| {
            out[..72].fill(fill);
            72
        });
    }

    #[test]
    fn what_was_queued_leaves_in_order_whatever_the_socket_takes() {
        for step in [1, 7, 100, 5000, 1 << 20] {
            let mut output = Output::default();
            let mut expected = Vec::new();
            for round in 0..100u8 {
                capsule(&mut output, round);
                expected.extend_from_slice(&[round; 72]);
                if round % 10 == 3 {
                    let data: Vec<u8> = (0..200).map(|index| index ^ round).collect();
                    expected.extend_from_slice(&data);
                    output.payload((u16::from(round), data), 200);
                    output.copied(&[round; 4]);
                    expected.extend_from_slice(&[round; 4]);
                }
            }
            let (bytes, done) = drain(&mut output, step);
            assert_eq!(bytes, expected);
            assert_eq!(done, [3, 13, 23, 33, 43, 53, 63, 73, 83, 93]);
        }
    }

    #[test]
    fn headers_that_follow_each_other_are_one_slice() {
        let mut output = Output::default();
        for _ in 0..100 {
            capsule(&mut output, 1);
        }
        let lens: Vec<usize> = output.gather(slices_of).iter().map(Slice::len).collect();
        assert_eq!(lens, [7200]);
    }

    #[test]
    fn a_send_is_bounded_in_bytes_and_slices() {
        let mut output = Output::default();
        for _ in 0..8 {
            output.payload((0, vec![0; SEND_BYTES_MAX / 4]), SEND_BYTES_MAX / 4);
        }
        let gathered: usize = output.gather(slices_of).iter().map(Slice::len).sum();
        assert_eq!(gathered, SEND_BYTES_MAX);
        let mut output = Output::default();
        for _ in 0..2000 {
            output.payload((0, vec![0; 8]), 8);
        }
        assert_eq!(output.gather(slices_of).len(), SLICES_MAX);
    }

    #[test]
    fn header_memory_does_not_grow_while_the_peer_keeps_up() {
        let mut output = Output::default();
        for _ in 0..10_000 {
            for _ in 0..20 {
                capsule(&mut output, 1);
            }
            output.advance(output.bytes() - 72, |_| {});
        }
        assert!(output.heads.len() <= 4 * 21 * 72, "{} bytes", output.heads.len());
    }

    #[test]
    fn what_a_burst_needed_is_given_back() {
        let mut output = Output::default();
        for _ in 0..10_000 {
            capsule(&mut output, 1);
        }
        assert!(output.heads.len() > HEADS_BYTES_KEPT);
        drain(&mut output, 1 << 20);
        assert!(output.heads.capacity() <= HEADS_BYTES_KEPT);
        capsule(&mut output, 2);
        output.discard();
        assert_eq!((output.bytes(), output.header_bytes()), (0, 0));
    }
}
