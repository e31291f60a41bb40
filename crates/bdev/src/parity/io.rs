//! The data path of a parity device: which member is read, and how writes reach all of them.

use super::links::Inner;
use super::rows::xor_into;
use super::{MemberSet, ParityDefect};
use crate::device::Channel;
use crate::io::{Done, Io, Lba, Op, Status};
use crate::parts::Parts;
use crate::split;
use crate::steps;
use reactor::buf::{sg_append, sg_split_off};
use reactor::{Buf, IoFuture, SgList};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

pub(super) struct ParityChannel(pub(super) Rc<Inner>);

impl Channel for ParityChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.0.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        if io.op == Op::Read {
            return self.0.start_read(io);
        }
        let inner = self.0.clone();
        if io.op == Op::Flush {
            // Who gives it up has not heard how it ended.
            return IoFuture::new(async move {
                let flushed = inner.ear.flush(&inner.reactor, inner.clone().flush_members()).await;
                io.done(steps::status_of(flushed))
            });
        }
        IoFuture::steps(&self.0.reactor, async move {
            let mut io = io;
            let status = match io.op {
                Op::Unmap => inner.unmap(&io).await,
                Op::Verify => inner.verify(&io).await,
                _ if io.lba.0 < inner.shared.geometry().head => inner.write_head(&mut io).await,
                _ => inner.write_rows(&mut io).await,
            };
            io.done(steps::status_of(status))
        })
    }

    fn abort(&self, tag: u64) {
        self.0.aborts.set(self.0.aborts.get() + 1);
        self.0.each_channel(|channel| channel.abort(tag));
    }
}

/// A run of blocks on one member.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) lba: u64,
    pub(super) nblocks: u64,
    pub(super) member: usize,
    /// The member's block.
    pub(super) at: u64,
    /// `None` in the head.
    pub(super) row: Option<u64>,
}

impl Inner {
    /// What can be done where: anything in the head, whole rows behind it.
    fn check(&self, io: &Io) -> Result<(), Status> {
        let geometry = self.shared.geometry();
        self.shared.info().check(io)?;
        let is_whole = || geometry.whole(io.lba.0, io.nblocks as u64).is_some();
        match io.op {
            Op::Write if io.end() > geometry.head && !is_whole() => Err(Status::Invalid),
            Op::Unmap if !is_whole() => Err(Status::Invalid),
            _ => Ok(()),
        }
    }

    // --- reading ----------------------------------------------------------------------------------------------------

    /// The longest run from a block on. In the head it is that of the first member in sync.
    pub(super) fn piece(&self, lba: u64, end: u64) -> Piece {
        let geometry = self.shared.geometry();
        if lba < geometry.head {
            let member = self.shared.in_sync().first().copied().unwrap_or(0);
            let nblocks = end.min(geometry.head) - lba;
            return Piece { lba, nblocks, member, at: geometry.data_start + lba, row: None };
        }
        let place = geometry.place(lba);
        Piece { lba, nblocks: place.run.min(end - lba), member: place.member, at: place.at, row: Some(place.row) }
    }

    pub(super) fn can_read(&self, piece: &Piece) -> bool {
        match piece.row {
            Some(row) => self.shared.has(piece.member, row),
            None => !self.shared.unequal.is_in(piece.lba, piece.nblocks),
        }
    }

    /// Most reads lie in one chunk of a member that has it, and pass through.
    fn start_read(self: &Rc<Self>, io: Io) -> IoFuture<'_, Done> {
        if io.arg > 0 {
            let inner = self.clone();
            return IoFuture::steps(&self.reactor, async move { inner.read_version(io).await });
        }
        let piece = self.piece(io.lba.0, io.end());
        if piece.nblocks < io.nblocks as u64 || !self.can_read(&piece) {
            let inner = self.clone();
            return IoFuture::steps(&self.reactor, async move { inner.read_pieces(io).await });
        }
        let lent = io.bufs.is_empty();
        // A member that gives up by itself, since its path is being reset, leaves the others.
        let aborts = self.aborts.get();
        let is_final = move |status: Status| status.is_ok() || status == Status::Aborted && self.aborts.get() != aborts;
        let elsewhere = move |mut done: Done| {
            let inner = self.clone();
            IoFuture::steps(&self.reactor, async move {
                if lent {
                    done.io.bufs.clear();
                }
                inner.read_elsewhere(piece, done).await
            })
        };
        match split::pass(self.channel(piece.member), piece.at, io).try_ready() {
            Ok(done) if is_final(done.status) => IoFuture::ready(done),
            Ok(done) => elsewhere(done),
            Err(future) => IoFuture::new(async move {
                let done = future.await;
                if is_final(done.status) { done } else { elsewhere(done).await }
            }),
        }
    }

    async fn read_elsewhere(&self, piece: Piece, failed: Done) -> Done {
        let (mut io, status) = (failed.io, failed.status);
        if let Err(status) = steps::provide(&self.reactor, &mut io, self.shared.opened.block_size).await {
            return io.done(status);
        }
        self.count_read_error(piece.member, piece.lba, status);
        let outcome = self.recover(piece, Some(status), &mut io.bufs).await;
        io.done(steps::status_of(outcome))
    }

    /// A read in pieces, some of which may have to be computed.
    async fn read_pieces(self: &Rc<Self>, mut io: Io) -> Done {
        let block_size = self.shared.block_size();
        if let Err(status) = steps::provide(&self.reactor, &mut io, self.shared.opened.block_size).await {
            return io.done(status);
        }
        if let Err(status) = self.agree(io.lba.0, io.nblocks as u64).await {
            return io.done(status);
        }
        let (mut lba, mut rest) = (io.lba.0, std::mem::take(&mut io.bufs));
        let (mut pieces, mut parts) = (SmallVec::<[Piece; 8]>::new(), Parts::default());
        while lba < io.end() {
            let piece = self.piece(lba, io.end());
            let tail = sg_split_off(&mut rest, piece.nblocks as usize * block_size);
            let part = Io::read(Lba(piece.at), piece.nblocks as u32, std::mem::replace(&mut rest, tail));
            parts.push(match self.can_read(&piece) {
                true => self.channel(piece.member).submit(part),
                false => IoFuture::ready(part.done(Status::Gone)),
            });
            pieces.push(piece);
            lba += piece.nblocks;
        }
        let mut status = Status::Ok;
        for (piece, done) in pieces.into_iter().zip(parts.join().await) {
            let mut bufs = done.io.bufs;
            if !done.status.is_ok() {
                let tried = self.can_read(&piece);
                if tried {
                    self.count_read_error(piece.member, piece.lba, done.status);
                }
                let recovered = self.recover(piece, tried.then_some(done.status), &mut bufs).await;
                status = if status.is_ok() { steps::status_of(recovered) } else { status };
            }
            sg_append(&mut io.bufs, bufs);
        }
        io.done(status)
    }

    // --- writing ----------------------------------------------------------------------------------------------------

    /// The same on all members that are written.
    async fn write_head(self: &Rc<Self>, io: &mut Io) -> Result<(), Status> {
        self.agree(io.lba.0, io.nblocks as u64).await?;
        let _alone = self.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await;
        Box::pin(self.begin_head()).await?;
        let active = self.shared.active();
        let mut parts = Parts::default();
        for member in &active {
            // Without the tag: a member that cut the write short, at an abort, would count as failed.
            let bufs = io.bufs.iter_mut().map(Buf::duplicate).collect();
            let lba = Lba(self.shared.geometry().data_start + io.lba.0);
            parts.push(self.channel(*member).submit(Io { flags: io.flags, ..Io::write(lba, io.nblocks, bufs) }));
        }
        let outcome = self.end_write(io, &active, parts).await;
        if outcome.is_err() {
            self.shared.unequal.mark(io.lba.0, io.nblocks as u64);
        }
        outcome
    }

    /// Whole rows: each member gets its chunks, which follow each other there, and the parity is computed from the data alone.
    async fn write_rows(&self, io: &mut Io) -> Result<(), Status> {
        let geometry = self.shared.geometry();
        let rows = geometry.whole(io.lba.0, io.nblocks as u64).ok_or(Status::Invalid)?;
        let _alone = self.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await;
        let mut parity = self.parity_of(&rows, &io.bufs).await?;
        if self.shared.defect == Some(ParityDefect::SkipParity) {
            parity.as_mut_slice().fill(0);
        }
        let chunks = self.chunks(&rows, &mut io.bufs, &mut parity);
        drop(parity);
        let (active, mut parts) = (self.shared.active(), Parts::default());
        for (member, bufs) in chunks.into_iter().enumerate().filter(|(member, _)| active.contains(member)) {
            let nblocks = (rows.end - rows.start) * geometry.chunk;
            let write = Io::write(Lba(geometry.chunk_at(rows.start)), nblocks as u32, bufs);
            parts.push(self.channel(member).submit(Io { flags: io.flags, stream: io.stream, ..write }));
        }
        let outcome = self.end_write(io, &active, parts).await;
        if outcome.is_ok() {
            self.shared.lost_rows.written(&rows);
        }
        outcome
    }

    /// The parities of rows, one after the other.
    async fn parity_of(&self, rows: &Range<u64>, data: &[Buf]) -> Result<Buf, Status> {
        let (chunk_bytes, each) = (self.chunk_bytes(), self.shared.members.len() - 1);
        let count = (rows.end - rows.start) as usize;
        let mut parity = steps::alloc(&self.reactor, count * chunk_bytes).await?;
        for (row, target) in parity.as_mut_slice().chunks_exact_mut(chunk_bytes).enumerate() {
            let at = row * each * chunk_bytes;
            steps::sg_read_at(data, at, target);
            (1..each).for_each(|nth| sg_xor_at(data, at + nth * chunk_bytes, target));
        }
        Ok(parity)
    }

    /// What each member gets, as views of the data and of the parities.
    fn chunks(&self, rows: &Range<u64>, data: &mut SgList, parity: &mut Buf) -> SmallVec<[SgList; 16]> {
        let (geometry, chunk_bytes) = (self.shared.geometry(), self.chunk_bytes());
        let mut rest: SgList = data.iter_mut().map(Buf::duplicate).collect();
        let mut members: SmallVec<[SgList; 16]> = (0..geometry.members).map(|_| SgList::new()).collect();
        for (nth_row, row) in rows.clone().enumerate() {
            for nth in 0..geometry.members - 1 {
                let tail = sg_split_off(&mut rest, chunk_bytes);
                sg_append(&mut members[geometry.member(row, nth)], std::mem::replace(&mut rest, tail));
            }
            let own = parity.slice(nth_row * chunk_bytes..(nth_row + 1) * chunk_bytes);
            members[geometry.parity(row)].push(own);
        }
        members
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.shared.geometry().chunk as usize * self.shared.block_size()
    }

    /// Waits for the parts of a write on `members`, and gives its buffers back to it alone.
    async fn end_write(&self, io: &mut Io, members: &[usize], parts: Parts<'_>) -> Result<(), Status> {
        let (mut refused, mut status) = (MemberSet::new(), Status::Ok);
        for (member, done) in members.iter().zip(parts.join().await) {
            if !done.status.is_ok() {
                let (lba, why) = (io.lba.0, done.status);
                let (name, which) = (&self.shared.name, self.shared.member_name(*member));
                tracing::warn!(parity = name, lba, status = %why, "write failed on {which}");
                refused.push(*member);
                status = why;
            }
        }
        io.bufs.iter_mut().for_each(|buf| {
            buf.try_unshare();
        });
        self.judge(&refused, status).await
    }

    /// What rows read as afterwards is open, so that it does not matter where it succeeds.
    async fn unmap(&self, io: &Io) -> Result<(), Status> {
        let geometry = self.shared.geometry();
        let rows = geometry.whole(io.lba.0, io.nblocks as u64).ok_or(Status::Invalid)?;
        let _alone = self.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await;
        let (at, nblocks) = (Lba(geometry.chunk_at(rows.start)), (rows.end - rows.start) * geometry.chunk);
        let mut parts = Parts::default();
        for member in self.shared.active() {
            parts.push(self.channel(member).submit(Io::new(Op::Unmap, at, nblocks as u32)));
        }
        parts.join().await.map(|done| done.status).find(|status| !status.is_ok()).map_or(Ok(()), Err)
    }
}

/// Adds the bytes from `at` of a list to the sum in `target`.
fn sg_xor_at(list: &[Buf], mut at: usize, mut target: &mut [u8]) {
    for buf in list {
        if target.is_empty() {
            return;
        }
        if at < buf.len() {
            let count = (buf.len() - at).min(target.len());
            let (now, rest) = target.split_at_mut(count);
            xor_into(now, &buf.as_slice()[at..at + count]);
            (target, at) = (rest, 0);
        } else {
            at -= buf.len();
        }
    }
    assert!(target.is_empty(), "a range past the end of a buffer list");
}
