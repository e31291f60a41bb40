//! What a member does not have or cannot read is computed from the others, or read from them in the head.

use super::MemberSet;
use super::io::Piece;
use super::links::Inner;
use super::rows::xor_into;
use crate::io::{Io, Lba, Status};
use crate::parts::Parts;
use crate::steps;
use reactor::{Buf, SgList};
use std::sync::atomic::Ordering::*;

impl Inner {
    /// Fills the buffers of a piece. `tried` is how its member failed to read it; `None` when it was not asked. What it
    /// could not read is rewritten.
    pub(super) async fn recover(&self, piece: Piece, tried: Option<Status>, bufs: &mut SgList) -> Result<(), Status> {
        let failure = tried.unwrap_or(Status::Gone);
        let Some(row) = piece.row else { return self.recover_head(piece, failure, bufs).await };
        let geometry = self.shared.geometry();
        let is_damaged = tried.is_some_and(is_lost);
        // Writes to the row wait: of a row of which a part is new, the sum means nothing.
        let row_start = geometry.row_start(row);
        let _alone = self.shared.ranges.lock(row_start, geometry.row_blocks(), is_damaged).await;
        let at = geometry.place(piece.lba).at;
        if !is_damaged && let Ok(found) = self.sum_of_others(row, at, piece.nblocks, piece.member).await {
            self.shared.reconstructed_reads.fetch_add(1, Relaxed);
            steps::sg_write_at(bufs, 0, found.as_slice());
            return Ok(());
        }
        if tried.is_none() {
            return Err(failure);
        }
        // Another member may have lost other blocks of the row: each block has to be found once only.
        let mut is_computed = false;
        for nth in 0..piece.nblocks {
            let found = match self.read_own(piece.member, row, at + nth).await {
                Ok(own) => own,
                Err(status) => {
                    is_computed = true;
                    self.recover_block(piece, row, nth, status).await.map_err(|_| failure)?
                }
            };
            steps::sg_write_at(bufs, nth as usize * self.shared.block_size(), found.as_slice());
        }
        self.shared.reconstructed_reads.fetch_add(is_computed as u64, Relaxed);
        Ok(())
    }

    /// A block of a row as the member itself has it, once more.
    async fn read_own(&self, member: usize, row: u64, at: u64) -> Result<Buf, Status> {
        if !self.shared.has(member, row) {
            return Err(Status::Gone);
        }
        let buf = steps::alloc(&self.reactor, self.shared.block_size()).await?;
        let mut done = self.channel(member).submit(Io::read(Lba(at), 1, SgList::from_iter([buf]))).await;
        done.status.check()?;
        done.io.bufs.pop().ok_or(Status::Invalid)
    }

    /// Computes a block of a piece that its member has failed to read again, as `status` says, and rewrites it there. The
    /// caller holds the row.
    async fn recover_block(&self, piece: Piece, row: u64, nth: u64, status: Status) -> Result<Buf, Status> {
        let at = self.shared.geometry().place(piece.lba).at + nth;
        let mut found = self.sum_of_others(row, at, 1, piece.member).await?;
        // What is computed from a block that was lost is noise.
        if is_lost(status) && self.shared.has(piece.member, row) && !self.shared.lost_rows.contains(row) {
            let write = Io::write(Lba(at), 1, SgList::from_iter([found]));
            let mut done = self.channel(piece.member).submit(write).await;
            found = done.io.bufs.pop().ok_or(Status::Invalid)?;
            if done.status.is_ok() {
                self.count_repair(piece.member, piece.lba + nth, 1);
            } else {
                // What can neither be read nor written has no use; where it cannot be done without, it stays as it is.
                let _ = self.judge(&[piece.member], done.status).await;
            }
        }
        Ok(found)
    }

    /// The blocks of a member from those of all others: data or parity, the sum of a row is zero. The caller holds the row.
    pub(super) async fn sum_of_others(&self, row: u64, at: u64, nblocks: u64, without: usize) -> Result<Buf, Status> {
        let members = self.shared.members.len();
        let others = || (0..members).filter(|member| *member != without);
        if others().any(|member| !self.shared.has(member, row)) {
            return Err(Status::Gone);
        }
        let mut parts = Parts::default();
        for member in others() {
            let buf = steps::alloc(&self.reactor, nblocks as usize * self.shared.block_size()).await?;
            let read = Io::read(Lba(at), nblocks as u32, SgList::from_iter([buf]));
            parts.push(self.channel(member).submit(read));
        }
        let (mut sum, mut failure) = (None::<Buf>, None::<Status>);
        for (member, done) in others().zip(parts.join().await) {
            if !done.status.is_ok() {
                self.count_read_error(member, self.shared.geometry().row_start(row), done.status);
                // Only where nothing else stood in the way a block is known to be lost.
                failure = failure.filter(|status| !is_lost(*status)).or(Some(done.status));
                continue;
            }
            let mut bufs = done.io.bufs;
            match (&mut sum, bufs.pop()) {
                (None, first) => sum = first,
                (Some(sum), Some(next)) => xor_into(sum.as_mut_slice(), next.as_slice()),
                (Some(_), None) => failure = Some(Status::Invalid),
            }
        }
        failure.map_or(sum.ok_or(Status::Gone), Err)
    }

    /// From another member that has the head; then what members have lost is written to them. Block by block, and nothing else: any
    /// member may have rot in another block, which nothing here can tell.
    async fn recover_head(&self, piece: Piece, failure: Status, bufs: &mut SgList) -> Result<(), Status> {
        let _alone = self.shared.ranges.lock(piece.lba, piece.nblocks, true).await;
        // Somebody who waits for the range of a failed write comes later: no two members differ here unless it was noted.
        if self.shared.unequal.is_in(piece.lba, piece.nblocks) {
            return Err(failure);
        }
        let (mut refused, mut status) = (MemberSet::new(), Status::Ok);
        for at in 0..piece.nblocks {
            let (mut good, mut lost) = (None, MemberSet::new());
            for member in self.shared.in_sync() {
                match self.read_head(member, piece.lba + at, 1).await {
                    Ok(found) => good = good.or(Some(found)),
                    Err(status) if is_lost(status) => lost.push(member),
                    Err(_) => {}
                }
            }
            let good = good.ok_or(failure)?;
            steps::sg_write_at(bufs, at as usize * self.shared.block_size(), good.as_slice());
            for member in lost {
                let mut copy = steps::alloc(&self.reactor, self.shared.block_size()).await?;
                copy.as_mut_slice().copy_from_slice(good.as_slice());
                let place = Lba(self.shared.geometry().data_start + piece.lba + at);
                let written = self.channel(member).submit(Io::write(place, 1, SgList::from_iter([copy]))).await.status;
                if written.is_ok() {
                    self.count_repair(member, piece.lba + at, 1);
                } else if !refused.contains(&member) {
                    refused.push(member);
                    status = written;
                }
            }
        }
        // What was read holds whether or not the others take it.
        let _ = self.judge(&refused, status).await;
        self.shared.reconstructed_reads.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Whether a member that answers so has lost blocks. Anything else says nothing of what it holds.
pub(super) fn is_lost(status: Status) -> bool {
    matches!(status, Status::ReadError | Status::Corrupt)
}
