//! Reinsertion: blocks of an extent that is being destaged, which are [written often](super::heat), go to the head of the log once more.
//!
//! ```text
//! read from the log -> (still the newest, and nothing keeps a writer from it?) the same bytes in a new record -> dirty from there on
//! ```
//! Nobody waits for it: what decides is looked at in the very step in which the record is appended, as writers do. A block
//! that a record speaks of which is not visible yet, or that somebody holds, is destaged like any other.

use super::data::one;
use super::destage::{Moving, RUN_BLOCKS_MAX};
use super::dirty_blocks::BlockSet;
use super::{BLOCK, Defect, Shard, Target, add};
use crate::log::{Appended, Class, Record};
use crate::meta::Descriptor;
use crate::together::Together;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, RECORD_BLOCKS_MAX, extent_of};
use bdev::Status;
use reactor::SgList;
use reactor::buf::sg_split_off;
use std::rc::Rc;

impl Shard {
    /// Appends blocks of one extent, which are whole in the log, once more. Those that it cannot be done with.
    pub(super) async fn reinsert(self: &Rc<Self>, owner: Descriptor, blocks: &[Moving]) -> Result<BlockSet, Status> {
        let mut others = BlockSet::EMPTY;
        let mut leave = |run: &[Moving]| run.iter().for_each(|moving| others.insert(moving.block % EXTENT_BLOCKS));
        for run in blocks.chunks(RUN_BLOCKS_MAX) {
            while !self.may_move_now() {
                self.reactor.yield_now().await;
            }
            self.moved_in.set(self.reactor.turns());
            let mut buf = bdev::steps::alloc(&self.reactor, run.len() * BLOCK_BYTES).await?;
            // What the log does not give back, the destage finds out about.
            let (good, _) = self.read_run(run, &mut buf).await?;
            leave(&run[good..]);
            buf.truncate(good * BLOCK_BYTES);
            let (pieces, mut appended) = self.append_again(owner, &run[..good], one(buf), &mut leave);
            for piece in pieces {
                match appended.first().await {
                    Some(Appended { result: Ok(_), .. }) => {
                        add(&self.counters.reinserted_bytes, (piece.len() * BLOCK_BYTES) as u64);
                    }
                    _ => leave(piece),
                }
            }
        }
        Ok(others)
    }

    /// Whether there is room for some blocks in the log, each with a header of its own, beyond what destage may need: nobody waits for a
    /// release that waits for him.
    pub(super) fn has_room_to_reinsert(&self, blocks: usize) -> bool {
        self.pace.has_room(2 * (blocks * BLOCK_BYTES) as u64, self.fill())
    }

    /// Appends in pieces what may be, in this very step; the rest is left.
    fn append_again<'a>(
        &self,
        owner: Descriptor,
        run: &'a [Moving],
        mut bytes: SgList,
        leave: &mut impl FnMut(&[Moving]),
    ) -> (Vec<&'a [Moving]>, Together<'static, Appended>) {
        let (mut pieces, mut appended) = (Vec::new(), Together::new());
        let spoken_of = run.first().map_or(BlockSet::EMPTY, |first| self.spoken_of(extent_of(first.block)));
        let has_room = self.has_room_to_reinsert(run.len());
        let mut chosen = BlockSet::EMPTY;
        run.iter()
            .filter(|moving| has_room && self.is_to_reinsert(owner, **moving, &spoken_of))
            .for_each(|moving| chosen.insert(moving.block % EXTENT_BLOCKS));
        let is_next = |moving: &Moving| chosen.contains(moving.block % EXTENT_BLOCKS);
        let follows = |one: &Moving, next: &Moving| next.block == one.block + 1 && is_next(one) == is_next(next);
        for part in run.chunk_by(follows) {
            for piece in part.chunks(RECORD_BLOCKS_MAX as usize) {
                let rest = sg_split_off(&mut bytes, piece.len() * BLOCK_BYTES);
                let payload = std::mem::replace(&mut bytes, rest);
                if is_next(&piece[0]) {
                    let record = Record::write(piece[0].block, piece.len() as u32);
                    appended.push(self.log.append(record, payload, Class::Internal));
                    pieces.push(piece);
                } else {
                    leave(piece);
                }
            }
        }
        (pieces, appended)
    }

    /// Blocks of an extent of which records speak that are not visible yet; all of them when one speaks of extents.
    fn spoken_of(&self, extent: u32) -> BlockSet {
        let mut blocks = BlockSet::EMPTY;
        self.log.for_each_invisible(|record| match record.blocks() {
            Some(run) if extent_of(run.start) == extent => run.for_each(|block| blocks.insert(block % EXTENT_BLOCKS)),
            Some(_) => {}
            None => blocks = BlockSet::FULL,
        });
        blocks
    }

    /// Whether the block is the newest there is, and a user could write it now.
    fn is_to_reinsert(&self, owner: Descriptor, Moving { block, place }: Moving, spoken_of: &BlockSet) -> bool {
        if self.is_broken(Defect::ReinsertOld) {
            return true;
        }
        let (extent, index) = (extent_of(block), block % EXTENT_BLOCKS);
        let target = Target { volume: owner.volume, vextent: owner.vextent, offset: index * BLOCK, bytes: BLOCK };
        self.index.log_place(block) == Some(place)
            && !spoken_of.contains(index)
            && self.index.extent(owner.volume, owner.vextent) == Some(extent)
            && !self.held_back.borrow().contains(&extent)
            && self.may_append(&target)
    }
}
