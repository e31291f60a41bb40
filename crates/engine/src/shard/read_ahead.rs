//! Reading what is destaged out of a block log: what a run needs is asked for at once, and what was written together is one
//! read. One block after the other, an extent would take as long as all of its blocks' latencies.

use super::Shard;
use super::data::copy_out;
use super::destage::Moving;
use super::dirty_blocks::BlockSet;
use super::patience::Refused;
use super::read::logged_together;
use crate::together::Together;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use base::crc32c;
use reactor::Buf;

/// Reads of one run under way at the same time.
const READS_MAX: usize = 32;

impl Shard {
    /// Reads what it can of a run, which is no longer than an extent, to the start of `buf` and in its order. Which of its blocks
    /// are right; the others are for whoever looks closer, all of them on a mapped log, which needs no waiting.
    pub(super) async fn read_ahead(&self, run: &[Moving], buf: &mut Buf) -> BlockSet {
        assert!(run.len() <= EXTENT_BLOCKS as usize);
        let mut right = BlockSet::EMPTY;
        if self.log.is_mapped() {
            return right;
        }
        let of = |first: usize| run[first..].iter().map(|moving| moving.place.at);
        let (mut under_way, mut asked, mut at) = (Together::new(), 0, 0);
        while at < run.len() {
            while asked < run.len() && under_way.len() < READS_MAX {
                let blocks = logged_together(of(asked));
                under_way.push(self.log.read(run[asked].place.at, 0, blocks * BLOCK_BYTES));
                asked += blocks;
            }
            let read = under_way.first().await.expect("what is asked for is under way");
            let piece = at..at + logged_together(of(at));
            at = piece.end;
            let Ok(bytes) = read else { continue };
            for (step, index) in piece.enumerate() {
                let target = &mut buf.as_mut_slice()[index * BLOCK_BYTES..][..BLOCK_BYTES];
                copy_out(&bytes, step * BLOCK_BYTES, target);
                self.patience.answered(Refused::Log(run[index].place.at));
                if crc32c(target) == run[index].place.crc {
                    right.insert(index as u32);
                }
            }
        }
        right
    }
}
