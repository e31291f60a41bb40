//! Reading whole extents to see whether they can be read: for checks and scrubs.

use super::index::Place;
use super::{Shard, Target};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, join};
use bdev::Status;
use std::ops::Range;
use std::rc::Rc;

/// Blocks read at a time.
const RUN_BLOCKS: u32 = 32;

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadBlock {
    /// It cannot be read, or does not match its checksum.
    Corrupt,
    /// It is known to be lost.
    Lost,
}

/// How the blocks of an extent are. Runs are indices in the extent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    /// Blocks that have content, and match their checksums.
    pub(crate) good: u32,
    pub(crate) corrupt: Vec<Range<u32>>,
    pub(crate) lost: Vec<Range<u32>>,
}

impl Verified {
    fn bad(&mut self, kind: BadBlock, index: u32) {
        let runs = match kind {
            BadBlock::Corrupt => &mut self.corrupt,
            BadBlock::Lost => &mut self.lost,
        };
        join(runs, index..index + 1);
    }

    /// Adds what was found of blocks behind those.
    fn append(&mut self, other: Verified) {
        self.good += other.good;
        other.corrupt.into_iter().for_each(|run| join(&mut self.corrupt, run));
        other.lost.into_iter().for_each(|run| join(&mut self.lost, run));
    }
}

impl Shard {
    /// Reads every block of an extent of a volume that has content, wherever it is.
    pub(crate) async fn verify_extent(self: &Rc<Self>, volume: u32, vextent: u32) -> Verified {
        let mut verified = Verified::default();
        for first in (0..EXTENT_BLOCKS).step_by(RUN_BLOCKS as usize) {
            verified.append(self.verify_run(volume, vextent, first..first + RUN_BLOCKS).await);
        }
        verified
    }

    /// As [`verify_extent`](Self::verify_extent) for some blocks, which are read at once.
    pub(crate) async fn verify_run(self: &Rc<Self>, volume: u32, vextent: u32, run: Range<u32>) -> Verified {
        let mut verified = Verified::default();
        let status = self.verify_read(volume, vextent, run.clone()).await;
        for index in run {
            let alone = match status {
                Status::Ok => Status::Ok,
                _ => self.verify_read(volume, vextent, index..index + 1).await,
            };
            let place =
                self.index.extent(volume, vextent).map(|extent| self.index.place(extent * EXTENT_BLOCKS + index));
            match (alone, place) {
                // Freed meanwhile, or never written.
                (Status::Ok, None | Some(Place::Hole)) => {}
                (Status::Ok, _) => verified.good += 1,
                // Looked at where it lies.
                (_, Some(Place::Inherit)) => {}
                (_, Some(Place::Lost)) => verified.bad(BadBlock::Lost, index),
                (status, _) if status.is_gone() => {}
                _ => verified.bad(BadBlock::Corrupt, index),
            }
        }
        verified
    }

    async fn verify_read(self: &Rc<Self>, volume: u32, vextent: u32, run: Range<u32>) -> Status {
        let (offset, bytes) = (run.start * BLOCK_BYTES as u32, run.len() as u32 * BLOCK_BYTES as u32);
        match bdev::steps::alloc(&self.reactor, bytes as usize).await {
            Ok(buf) => {
                let target = Target { volume, vextent, offset, bytes };
                self.read_blocks(target, super::data::one(buf)).await.status
            }
            Err(status) => status,
        }
    }
}
