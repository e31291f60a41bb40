//! Other versions of what the device has, for whoever can tell wrong bytes from right ones: behind the head version 1 is what
//! the other members of a row say, in the head version `k` is what the `k`-th member in sync has, from 0.

use super::COPY_BYTES;
use super::io::Piece;
use super::links::Inner;
use crate::io::{Done, Io, Status};
use crate::steps;
use reactor::SgList;

impl Inner {
    /// A read of a version other than the usual one. Nothing is repaired by it: which of them is right is not known here.
    pub(super) async fn read_version(&self, mut io: Io) -> Done {
        let lent = io.bufs.is_empty();
        let status = match steps::provide(&self.reactor, &mut io, self.shared.info.block_size).await {
            Ok(()) => self.fill_version(&mut io).await,
            Err(status) => Err(status),
        };
        if status.is_err() && lent {
            io.bufs.clear();
        }
        io.done(steps::status_of(status))
    }

    async fn fill_version(&self, io: &mut Io) -> Result<(), Status> {
        if io.lba.0 < self.shared.geometry.head {
            self.agree().await?;
        }
        let mut lba = io.lba.0;
        while lba < io.end() {
            let piece = self.piece(lba, io.end());
            let at = (lba - io.lba.0) as usize * self.shared.block_size();
            match piece.row {
                Some(row) if io.arg == 1 => self.fill_computed(piece, row, at, &mut io.bufs).await?,
                Some(_) => return Err(Status::Gone),
                None => self.fill_from_head(piece, io.arg as usize, at, &mut io.bufs).await?,
            }
            lba += piece.nblocks;
        }
        Ok(())
    }

    async fn fill_computed(&self, piece: Piece, row: u64, at: usize, bufs: &mut SgList) -> Result<(), Status> {
        let geometry = &self.shared.geometry;
        // Writes to the row wait: of a row of which a part is new, the sum means nothing.
        let _held = self.shared.ranges.lock(geometry.row_start(row), geometry.row_blocks(), false).await;
        let found = self.sum_of_others(row, piece.at, piece.nblocks, piece.member).await?;
        steps::sg_write_at(bufs, at, found.as_slice());
        Ok(())
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
