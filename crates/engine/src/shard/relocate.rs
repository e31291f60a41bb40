//! Relocation: an extent whose place, or that of its map page, refuses writes gets another one. Nothing is lost by it but what could not be read any
//! more in the old place, and that place is never used again.
//!
//! Writers wait; what the extent has, wherever it is, is written to a free extent and made durable there. Records with the
//! checksums of those blocks (and of what is lost) follow while the extent is still free, so that they say nothing to
//! anybody; one last record makes the new extent the volume's, with what they said, and the old one unusable. A crash
//! before that record leaves everything as it was.

use super::data::one;
use super::index::Place;
use super::patience::{Needed, Refused};
use super::{BLOCK, Defect, Shard, Target, add};
use crate::log::{Appended, Class, Record};
use crate::together::Together;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, RECORD_BLOCKS_MAX};
use base::crc32c;
use bdev::{Io, Status};
use reactor::SgList;
use std::rc::Rc;

/// Log bytes of the records of a move at most: one for each block, and room for the headers of groups.
const RECORDS_BYTES_MAX: u64 = EXTENT_BLOCKS as u64 * 2 * 64;
/// Blocks copied at a time.
const RUN_BLOCKS: u32 = 32;

/// What becomes of a block of the old extent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Hole,
    Lost {
        /// It was before.
        before: bool,
    },
    /// It has been written to the new extent, with this checksum.
    Copied(u32),
}

impl Shard {
    /// Moves the extents whose map pages the device goes on refusing: no checkpoint succeeds before they are written, or
    /// forgotten. The page of one that has moved is in another place.
    pub(super) async fn move_unmapped(self: &Rc<Self>) {
        for extent in self.meta.take_refused() {
            if self.meta.bands().is_some() {
                // Its blocks are where they are; a log device that refuses writes has to be replaced.
                continue;
            }
            let is_held = self.held_back.borrow().contains(&extent);
            if is_held || self.meta.descriptor(extent).is_free() || !self.is_given_up(Refused::Map(extent)) {
                continue;
            }
            self.held_back.borrow_mut().push(extent);
            self.settled.wait_until(|| !self.index.is_destaging(extent)).await;
            let shard = self.clone();
            let moving = self.reactor.spawn_join(async move { shard.move_held(extent).await.map(|()| true) });
            if let Err(status) = self.unless_cramped(moving).await {
                let (pool, shard) = (&self.pool_name, self.number);
                tracing::warn!(
                    "pool '{pool}': the map page of extent {extent} of shard {shard} cannot be written, and the extent cannot be \
                     moved: {status}; it is tried again"
                );
            }
            self.let_go(extent);
        }
    }

    /// Moves an extent that is held back: without a record when the log has no room for those.
    async fn move_held(self: &Rc<Self>, extent: u32) -> Result<(), Status> {
        let has_room = self.log.has_room(RECORDS_BYTES_MAX) && !self.tuning.evacuates;
        if !has_room && self.evacuate(extent, true).await == Ok(true) {
            return Ok(());
        }
        self.relocate(extent).await
    }

    /// Gives an extent, whose place or whose map page's place refuses writes, another place. It is being destaged, or held
    /// back. An error leaves everything as it was: then no free extent takes writes, or something could not be read just now.
    pub(super) async fn relocate(self: &Rc<Self>, extent: u32) -> Result<(), Status> {
        let owner = self.meta.descriptor(extent);
        let whole = Target { volume: owner.volume, vextent: owner.vextent, offset: 0, bytes: EXTENT_BLOCKS * BLOCK };
        self.journal.add(whole.volume, whole.slice()).await?;
        let _held = self.locks.lock(whole.range()).await;
        self.log.barrier().await;
        if self.index.extent(whole.volume, whole.vextent) != Some(extent) {
            // It was given back meanwhile.
            return Err(Status::Gone);
        }
        let Some(new) = self.index.reserve() else { return Err(Status::NoSpace) };
        self.held_back.borrow_mut().push(new);
        let moved = self.move_extent(&whole, extent, new).await;
        self.let_go(new);
        match moved {
            Ok(()) => {
                tracing::warn!(
                    "pool '{}': extent {extent} of shard {} refuses writes and is not used any more; extent {} of {} \
                     has moved to extent {new}",
                    self.pool_name,
                    self.number,
                    whole.vextent,
                    self.names.of(whole.volume)
                );
            }
            Err(_) => {
                self.index.unreserve(new);
                self.index.name_refused(extent);
            }
        }
        moved
    }

    async fn move_extent(self: &Rc<Self>, whole: &Target, old: u32, new: u32) -> Result<(), Status> {
        let mut records = Together::new();
        let last = Record::Move { extent: new, volume: whole.volume, vextent: whole.vextent, former: old };
        let early = self.is_broken(Defect::MoveEarly);
        if early {
            records.push(self.log.append(last.clone(), SgList::new(), Class::Internal));
        }
        let failures = self.meta.flush_failures();
        let fates = self.copy_extent(whole, old, new).await?;
        self.meta.flush().await?;
        if self.meta.flush_failures() != failures {
            return Err(Status::WriteError);
        }
        self.note_slice(whole).await?;
        // In one step, so that nothing comes between them.
        for record in records_of(new, &fates) {
            records.push(self.log.append(record, SgList::new(), Class::Internal));
        }
        if !early {
            records.push(self.log.append(last, SgList::new(), Class::Internal));
        }
        let mut ended = Ok(());
        while let Some(Appended { result, .. }) = records.first().await {
            ended = ended.and(result.map(|_| ()));
        }
        ended?;
        self.report_lost(old, &fates);
        Ok(())
    }

    /// Blocks that have become lost by a move.
    pub(super) fn report_lost(&self, old: u32, fates: &[Fate]) {
        let lost = fates.iter().filter(|fate| **fate == Fate::Lost { before: false }).count();
        add(&self.counters.lost_blocks, lost as u64);
        if lost > 0 {
            tracing::error!("pool '{}': {lost} blocks of extent {old} cannot be read and are lost", self.pool_name);
        }
    }

    /// Writes what an extent has, wherever it is, to another one.
    pub(super) async fn copy_extent(self: &Rc<Self>, whole: &Target, old: u32, new: u32) -> Result<Vec<Fate>, Status> {
        // In memory until everything has been read: what is a hole is known from it.
        let _page = self.page_to_change(old).await?;
        let mut fates = Vec::with_capacity(EXTENT_BLOCKS as usize);
        for first in (0..EXTENT_BLOCKS).step_by(RUN_BLOCKS as usize) {
            self.copy_run(whole, old, new, first, &mut fates).await?;
        }
        Ok(fates)
    }

    /// Writes a run of blocks to the new extent, and notes what becomes of each.
    async fn copy_run(
        self: &Rc<Self>,
        whole: &Target,
        old: u32,
        new: u32,
        first: u32,
        fates: &mut Vec<Fate>,
    ) -> Result<(), Status> {
        let mut run = bdev::steps::alloc(&self.reactor, (RUN_BLOCKS * BLOCK) as usize).await?;
        let mut copied = false;
        for (index, bytes) in (first..).zip(run.as_mut_slice().chunks_exact_mut(BLOCK_BYTES)) {
            let block = old * EXTENT_BLOCKS + index;
            let fate = self.copy_block(whole, block, bytes).await?;
            copied |= matches!(fate, Fate::Copied(_));
            fates.push(fate);
        }
        if !copied {
            return Ok(());
        }
        let place = self.meta.data_block(new * EXTENT_BLOCKS + first);
        let io = self.capacity_io(place, RUN_BLOCKS, |lba, blocks| Io::write(lba, blocks, one(run)));
        let done = self.capacity.submit(io).await;
        self.count_destaged(&done)
    }

    async fn copy_block(self: &Rc<Self>, whole: &Target, block: u32, bytes: &mut [u8]) -> Result<Fate, Status> {
        bytes.fill(0);
        match self.index.place(block) {
            Place::Hole => return Ok(Fate::Hole),
            Place::Lost => return Ok(Fate::Lost { before: true }),
            _ => {}
        }
        let target = Target { offset: block % EXTENT_BLOCKS * BLOCK, bytes: BLOCK, ..*whole };
        match self.read_needed(target, block).await? {
            Needed::Bytes(bufs) => {
                super::data::copy_out(&bufs, 0, bytes);
                Ok(Fate::Copied(crc32c(bytes)))
            }
            Needed::Lost { before } => Ok(Fate::Lost { before }),
        }
    }
}

/// Records that say what became of the blocks, in the new extent.
fn records_of(new: u32, fates: &[Fate]) -> Vec<Record> {
    let alike = |one: &Fate, next: &Fate| std::mem::discriminant(one) == std::mem::discriminant(next);
    // First of all, what a move to this extent that did not come to its end has left in the log does not count.
    let mut first = new * EXTENT_BLOCKS;
    let mut records = vec![Record::Trim { first, blocks: EXTENT_BLOCKS }];
    for run in fates.chunk_by(alike) {
        for part in run.chunks(RECORD_BLOCKS_MAX as usize) {
            match part[0] {
                Fate::Hole => {}
                Fate::Lost { .. } => records.push(Record::Lost { first, blocks: part.len() as u32 }),
                Fate::Copied(_) => {
                    let crcs = part.iter().filter_map(|fate| match fate {
                        Fate::Copied(crc) => Some(*crc),
                        _ => None,
                    });
                    records.push(Record::InPlace { first, crcs: crcs.collect() });
                }
            }
            first += part.len() as u32;
        }
    }
    records
}
