//! Other versions of what the device has, for whoever can tell wrong bytes from right ones: behind the head version 1 is what
//! the other members of a row say, in the head version `k` is what the `k`-th member in sync has, from 0.

use super::io::Piece;
use super::links::Inner;
use super::{COPY_BYTES, Shared};
use crate::io::{Done, Io, Lba, Status};
use crate::range_lock::RangeGuard;
use crate::steps;
use reactor::SgList;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

impl Shared {
    /// See [`BlockDevice::note_wrong`](crate::BlockDevice::note_wrong): nobody, where it was computed.
    pub(super) fn note_wrong(&self, lba: u64, version: u8) -> Option<String> {
        let geometry = self.geometry();
        let member = match lba.checked_sub(geometry.head) {
            None => self.in_sync().get(version as usize).copied()?,
            Some(_) => {
                let place = geometry.place(lba);
                (version == 0 && self.has(place.member, place.row)).then_some(place.member)?
            }
        };
        self.members[member].read_errors.fetch_add(1, Relaxed);
        self.members[member].repairs.fetch_add(1, Relaxed);
        Some(self.member_name(member))
    }
}

impl Inner {
    /// A read of a version other than the usual one. Nothing is repaired by it: which of them is right is not known here.
    pub(super) async fn read_version(self: &Rc<Self>, mut io: Io) -> Done {
        let lent = io.bufs.is_empty();
        let status = match steps::provide(&self.reactor, &mut io, self.shared.opened.block_size).await {
            Ok(()) => self.fill_version(&mut io).await,
            Err(status) => Err(status),
        };
        if status.is_err() && lent {
            io.bufs.clear();
        }
        io.done(steps::status_of(status))
    }

    async fn fill_version(self: &Rc<Self>, io: &mut Io) -> Result<(), Status> {
        self.agree(io.lba.0, io.nblocks as u64).await?;
        let mut lba = io.lba.0;
        while lba < io.end() {
            let piece = self.piece(lba, io.end());
            let at = (lba - io.lba.0) as usize * self.shared.block_size();
            match piece.row {
                Some(row) if io.arg == 1 => self.fill_computed(piece, row, at, &mut io.bufs).await?,
                Some(_) => return Err(Status::Unsupported),
                None => self.fill_from_head(piece, io.arg as usize, at, &mut io.bufs).await?,
            }
            lba += piece.nblocks;
        }
        Ok(())
    }

    async fn fill_computed(&self, piece: Piece, row: u64, at: usize, bufs: &mut SgList) -> Result<(), Status> {
        // Of a row of which a part is new, the sum means nothing.
        let _held = self.hold(piece).await;
        let found = self.sum_of_others(row, piece.at, piece.nblocks, piece.member).await?;
        steps::sg_write_at(bufs, at, found.as_slice());
        Ok(())
    }

    /// Compares what members have with what the others say, as far as all of them are there; what one cannot read is computed
    /// and rewritten. Which of those that disagree is right is not known here: that is [`Status::Corrupt`]. So is a row that
    /// was never written, or was being written when the power failed.
    pub(super) async fn verify(self: &Rc<Self>, io: &Io) -> Result<(), Status> {
        self.agree(io.lba.0, io.nblocks as u64).await?;
        let mut lba = io.lba.0;
        while lba < io.end() {
            let piece = self.piece(lba, io.end());
            let most = (COPY_BYTES / self.shared.block_size()) as u64;
            let piece = Piece { nblocks: piece.nblocks.min(most), ..piece };
            if !self.is_equal(piece).await? {
                tracing::warn!(
                    parity = self.shared.name,
                    lba,
                    nblocks = piece.nblocks,
                    "members disagree about blocks"
                );
                return Err(Status::Corrupt);
            }
            lba += piece.nblocks;
        }
        Ok(())
    }

    async fn is_equal(&self, piece: Piece) -> Result<bool, Status> {
        let bytes = piece.nblocks as usize * self.shared.block_size();
        let bufs = SgList::from_iter([steps::alloc(&self.reactor, bytes).await?]);
        let held = self.hold(piece).await;
        let read = Io::read(Lba(piece.at), piece.nblocks as u32, bufs);
        let (can_read, usual) = (self.can_read(&piece), self.channel(piece.member).submit(read).await);
        let mut own = usual.io.bufs;
        if !can_read || !usual.status.is_ok() {
            drop(held);
            return self.recover(piece, can_read.then_some(usual.status), &mut own).await.map(|()| true);
        }
        let found = match (piece.row, self.shared.in_sync().get(1)) {
            (Some(row), _) => self.sum_of_others(row, piece.at, piece.nblocks, piece.member).await,
            (None, Some(member)) => self.read_head(*member, piece.lba, piece.nblocks).await,
            (None, None) => Err(Status::Gone),
        };
        match found {
            Ok(found) => Ok(own.iter().all(|own| own.as_slice() == found.as_slice())),
            // There is nothing to compare with.
            Err(status) if status.is_gone() => Ok(true),
            Err(status) => Err(status),
        }
    }

    /// Keeps writes from the piece, and from the row that it is in.
    async fn hold(&self, piece: Piece) -> RangeGuard<'_> {
        let geometry = self.shared.geometry();
        let (first, nblocks) = match piece.row {
            Some(row) => (geometry.row_start(row), geometry.row_blocks()),
            None => (piece.lba, piece.nblocks),
        };
        self.shared.ranges.lock(first, nblocks, false).await
    }

    async fn fill_from_head(&self, piece: Piece, nth: usize, at: usize, bufs: &mut SgList) -> Result<(), Status> {
        let member = self.shared.in_sync().get(nth).copied().ok_or(Status::Gone)?;
        let (block_size, mut done) = (self.shared.block_size(), 0);
        while done < piece.nblocks {
            let count = ((COPY_BYTES / block_size) as u64).min(piece.nblocks - done);
            let found = self.read_head(member, piece.lba + done, count).await?;
            steps::sg_write_at(bufs, at + done as usize * block_size, found.as_slice());
            done += count;
        }
        Ok(())
    }
}
