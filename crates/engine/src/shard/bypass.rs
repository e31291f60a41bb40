//! Large sequential writes into holes go straight to the capacity device while the log is filling: two writes of the same
//! bytes would only make the log the bottleneck.
//!
//! The blocks stay holes until a record with their checksums, and no data, is in the log: a crash before that leaves holes.
//! Only holes can be written this way; whatever else lies in place is needed until its successor is durable.

use super::index::Place;
use super::{BLOCK, Outcome, Shard, Target, add};
use crate::log::{Class, Record};
use crate::units::{EXTENT_BLOCKS, RECORD_BLOCKS_MAX};
use bdev::Io;
use reactor::SgList;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::rc::Rc;

const STREAMS: usize = 8;

#[derive(Clone, Copy, Default)]
struct Stream {
    volume: u32,
    /// Where the next write would begin, in bytes of the volume.
    next: u64,
    /// Bytes written in sequence so far.
    run: u64,
}

/// The last few streams of large writes.
#[derive(Default)]
pub(super) struct Streams(RefCell<SmallVec<[Stream; STREAMS]>>);

impl Streams {
    /// Notes a write; how many bytes its stream has written in sequence, this write included.
    pub(super) fn follow(&self, target: &Target) -> u64 {
        let start = target.vextent as u64 * EXTENT_BLOCKS as u64 * BLOCK as u64 + target.offset as u64;
        let mut streams = self.0.borrow_mut();
        let found = streams.iter().position(|stream| stream.volume == target.volume && stream.next == start);
        let mut stream = found.map_or(Stream { volume: target.volume, ..Stream::default() }, |at| streams.remove(at));
        (stream.next, stream.run) = (start + target.bytes as u64, stream.run + target.bytes as u64);
        if streams.len() == STREAMS {
            streams.remove(0);
        }
        // The most recent last.
        streams.push(stream);
        stream.run
    }
}

impl Shard {
    /// Whether a write should go past the log.
    pub(super) fn wants_bypass(&self, target: &Target) -> bool {
        target.bytes >= self.tuning.bypass_bytes_min
            && target.is_whole()
            && self.meta.bands().is_none()
            && self.streams.follow(target) >= self.tuning.bypass_run_bytes
            && self.fill().share() >= self.pace.marks.start
            && self.index.takes_in_place((target.bytes / BLOCK) as usize)
    }

    /// Writes in place what is a hole now. The payload comes back when that is not possible.
    pub(super) async fn write_past_log(self: &Rc<Self>, target: Target, payload: SgList) -> Result<Outcome, SgList> {
        let Some(extent) = self.index.extent(target.volume, target.vextent) else { return Err(payload) };
        self.held_back.borrow_mut().push(extent);
        let written = self.write_undisturbed(extent, target, payload).await;
        self.let_go(extent);
        written
    }

    /// As [`write_past_log`](Self::write_past_log), on an extent whose destage is held back.
    async fn write_undisturbed(
        self: &Rc<Self>,
        extent: u32,
        target: Target,
        payload: SgList,
    ) -> Result<Outcome, SgList> {
        // A destage that is under way may still be writing what these blocks were before they became holes.
        self.settled.wait_until(|| !self.index.is_destaging(extent)).await;
        let slice = target.slice();
        if self.journal.add(target.volume, slice).await.is_err() {
            return Err(payload);
        }
        let _held = self.locks.lock_to_write(target.range()).await;
        if !self.takes_writes(&target) {
            return Err(payload);
        }
        self.log.barrier().await;
        // Held until the holes have been looked at: nothing waits from here to there.
        let Ok(page) = self.meta.load(extent).await else { return Err(payload) };
        let first = extent * EXTENT_BLOCKS + target.offset / BLOCK;
        let blocks = target.bytes / BLOCK;
        let same = self.index.extent(target.volume, target.vextent) == Some(extent);
        let is_unused = |block| matches!(self.index.place(block), Place::Hole | Place::Inherit);
        let holes = (first..first + blocks).all(is_unused);
        drop(page);
        if !same || !holes || !self.journal.contains(target.volume, slice) {
            return Err(payload);
        }
        let failures = self.meta.flush_failures();
        let crcs = crate::checksums::block_crcs(&payload);
        let io = self.capacity_io(self.meta.data_block(first), blocks, |lba, blocks| Io::write(lba, blocks, payload));
        let done = self.capacity.submit(io).await;
        let mut outcome = Outcome { status: done.status, bufs: done.io.bufs };
        let is_durable =
            outcome.status.is_ok() && self.meta.flush().await.is_ok() && self.meta.flush_failures() == failures;
        if !is_durable {
            // The log takes it all the same, and tells what is wrong when it cannot be destaged.
            return Err(outcome.bufs);
        }
        if self.note_slice(&target).await.is_err() {
            return Err(outcome.bufs);
        }
        add(&self.counters.bypassed_bytes, target.bytes as u64);
        for (index, part) in crcs.chunks(RECORD_BLOCKS_MAX as usize).enumerate() {
            let first = first + index as u32 * RECORD_BLOCKS_MAX;
            let record = Record::InPlace { first, crcs: part.into() };
            if let Err(status) = self.log.append(record, SgList::new(), Class::Internal).await.result {
                outcome.status = status;
            }
        }
        self.house.wrote(self);
        Ok(outcome)
    }
}
