//! Writing: into the log, and done.
//!
//! Everything that may have to wait (the dirty journal, room in the log, upkeep that holds the range) comes first; then
//! the extent is looked up and the records are appended in one step without an await, so that records of a block are in
//! the log in the order in which its writes were let in.

use super::index::CHAIN_MAX;
use super::patience::Needed;
use super::{BLOCK, Defect, Outcome, Shard, Target, add};
use crate::log::{Appended, Class, Record};
use crate::together::Together;
use crate::units::{EXTENT_BLOCKS, RECORD_BLOCKS_MAX};
use bdev::Status;
use reactor::buf::{sg_append, sg_len, sg_split_off};
use reactor::{IoFuture, SgList};
use std::rc::Rc;

/// Log bytes that a record may take beyond its payload: headers, padding, an allocation before it.
const RECORD_OVERHEAD_MAX: u64 = 1024 + 2 * BLOCK as u64;
/// Deltas over one block before its writers wait for a merge.
const CHAIN_LIMIT: usize = 4 * CHAIN_MAX;

impl Shard {
    /// Writes `payload` over the target. Durable when it completes.
    pub(crate) fn write(self: &Rc<Self>, target: Target, payload: SgList) -> IoFuture<'static, Outcome> {
        let target = self.newest(target);
        debug_assert_eq!(sg_len(&payload), target.bytes as usize);
        if self.wants_bypass(&target) {
            let shard = self.clone();
            return IoFuture::steps(&self.reactor, async move {
                let outcome = match shard.write_past_log(target, payload).await {
                    Ok(outcome) => outcome,
                    Err(payload) => shard.clone().write_steps(target, payload).await,
                };
                shard.count_write(&target, outcome)
            });
        }
        if let Some(status) = self.write_now(&target, &payload) {
            return IoFuture::ready(self.count_write(&target, Outcome { status, bufs: payload }));
        }
        let shard = self.clone();
        IoFuture::steps(&self.reactor, async move {
            let outcome = shard.clone().write_steps(target, payload).await;
            shard.count_write(&target, outcome)
        })
    }

    /// What has been written counts, what was refused does not.
    #[inline]
    fn count_write(&self, target: &Target, outcome: Outcome) -> Outcome {
        if outcome.status.is_ok() {
            add(&self.counters.user_write_bytes, target.bytes as u64);
        }
        outcome
    }

    /// A write of one record into a mapped log with nothing in its way: no task, no wait.
    #[inline]
    fn write_now(&self, target: &Target, payload: &SgList) -> Option<Status> {
        if !target.is_whole() || target.bytes > RECORD_BLOCKS_MAX * BLOCK || !self.may_append(target) {
            return None;
        }
        if !self.pace.admits(log_bytes(target), self.fill()) {
            return None;
        }
        let status = match self.append_admitted(target, payload)? {
            Ok(()) => Status::Ok,
            Err(status) => status,
        };
        self.house.wrote(self);
        Some(status)
    }

    /// Appends a write of one record that nothing keeps waiting; `None` when its extent or room is missing.
    #[inline]
    pub(crate) fn append_admitted(&self, target: &Target, payload: &SgList) -> Option<Result<(), Status>> {
        self.index.expect(target.volume, target.vextent);
        let (blocks, mut named) = (target.bytes / BLOCK, 0);
        let first = || {
            let extent = self.index.extent(target.volume, target.vextent)?;
            named = extent * EXTENT_BLOCKS + target.offset / BLOCK;
            self.index.prefetch(named, blocks);
            self.heat.iter().for_each(|heat| heat.prefetch(named));
            Some(named)
        };
        let appended = self.log.try_append(blocks, payload, first)?;
        self.heat.iter().for_each(|heat| heat.note(named, blocks));
        Some(appended.map(drop))
    }

    /// Whether nothing but room in the log keeps records of the target from being appended in this very step.
    #[inline]
    pub(super) fn may_append(&self, target: &Target) -> bool {
        (self.journal.contains(target.volume, target.slice()) || self.is_broken(Defect::SkipJournal))
            && !self.locks.blocks(&target.range())
            && !self.freezer.is_frozen(target.volume)
    }

    /// The target in the layer that takes what is written to it.
    #[inline]
    pub(super) fn newest(&self, target: Target) -> Target {
        if self.is_broken(Defect::WriteFrozen) {
            return target;
        }
        Target { volume: self.lineage.newest(target.volume), ..target }
    }

    /// Waits for what a record of the target has to wait for; afterwards it may be appended in this very step, to the target
    /// that is returned.
    pub(super) async fn let_in(self: &Rc<Self>, target: &Target, bytes: u64) -> Result<Target, Status> {
        loop {
            let target = &self.newest(*target);
            self.freezer.thawed(target.volume).await;
            if !self.is_broken(Defect::SkipJournal) {
                let added = self.journal.add(target.volume, target.slice()).await;
                self.house.unjournaled.set(added.err());
                added.inspect_err(|status| self.tell_unjournaled(*status))?;
            }
            self.locks.passable(&target.range()).await;
            self.wait_for_room(bytes).await?;
            if self.may_append(target) && self.newest(*target) == *target {
                return Ok(*target);
            }
        }
    }

    /// Waits until the log takes so many bytes more. Fails as upkeep does when that makes no room for a long time.
    pub(super) async fn wait_for_room(self: &Rc<Self>, bytes: u64) -> Result<(), Status> {
        if self.pace.admits(bytes, self.fill()) {
            return Ok(());
        }
        // Waiting before the housekeeper hears of it: that is what it looks for.
        let turn = self.pace.admit(bytes);
        self.house.wrote(self);
        turn.await
    }

    async fn write_steps(self: Rc<Self>, target: Target, payload: SgList) -> Outcome {
        if let Err(status) = self.shorten_chains(&target).await {
            return Outcome { status, bufs: payload };
        }
        match self.let_in(&target, log_bytes(&target)).await {
            Ok(target) => self.append(target, payload).await,
            Err(status) => Outcome { status, bufs: payload },
        }
    }

    /// Compares the target with `expected` and, when equal, writes `new`, with no other write in between.
    pub(crate) async fn compare_and_write(self: &Rc<Self>, target: Target, expected: &SgList, new: SgList) -> Outcome {
        let (target, _held) = loop {
            let target = match self.let_in(&target, log_bytes(&target)).await {
                Ok(target) => target,
                Err(status) => return Outcome { status, bufs: new },
            };
            let held = self.locks.lock_to_write(target.range()).await;
            if self.takes_writes(&target) {
                break (target, held);
            }
        };
        self.log.barrier().await;
        let buf = match bdev::steps::alloc(&self.reactor, target.bytes as usize).await {
            Ok(buf) => buf,
            Err(status) => return Outcome { status, bufs: new },
        };
        let found = if target.is_whole() {
            self.read_blocks(target, super::data::one(buf)).await
        } else {
            self.read_bytes(target, super::data::one(buf)).await
        };
        if !found.status.is_ok() {
            return Outcome { status: found.status, bufs: new };
        }
        if !super::data::equal(&found.bufs, expected) {
            return Outcome { status: Status::Miscompare, bufs: new };
        }
        if let Err(status) = self.note_slice(&target).await {
            return Outcome { status, bufs: new };
        }
        let outcome = self.clone().append(target, new).await;
        self.count_write(&target, outcome)
    }

    /// Appends a write that has been let in. Nothing waits before its last record is appended.
    async fn append(self: Rc<Self>, target: Target, payload: SgList) -> Outcome {
        let Some((extent, allocation)) = self.extent_to_write(&target) else {
            return Outcome { status: Status::NoSpace, bufs: payload };
        };
        let mut parts = self.append_parts(extent, &target, payload);
        self.house.wrote(&self);
        if let Some(allocation) = allocation {
            // The other records fail as well.
            let _ = self.allocated(extent, &target, allocation).await;
        }
        let mut outcome = Outcome { status: Status::Ok, bufs: SgList::new() };
        while let Some(appended) = parts.first().await {
            sg_append(&mut outcome.bufs, appended.payload);
            if let (Err(status), Status::Ok) = (appended.result, outcome.status) {
                outcome.status = status;
            }
        }
        if !outcome.status.is_ok() {
            self.knock_if_refused();
        }
        self.merge_long_chains(extent, &target);
        outcome
    }

    /// The extent of the target; a new one, with the append of its record, if it has none. `None`: no extent is free.
    pub(super) fn extent_to_write(&self, target: &Target) -> Option<(u32, Option<IoFuture<'static, Appended>>)> {
        let Target { volume, vextent, .. } = *target;
        if let Some(extent) = self.index.extent(volume, vextent) {
            return Some((extent, None));
        }
        let Some(extent) = self.index.allocate(volume, vextent) else {
            self.note_full();
            return None;
        };
        let record = Record::Allocate { extent, volume, vextent, over: self.lineage.below(volume).is_some() };
        Some((extent, Some(self.log.append(record, SgList::new(), Class::Internal))))
    }

    /// Waits for the record of an allocation.
    pub(super) async fn allocated(
        &self,
        extent: u32,
        target: &Target,
        allocation: IoFuture<'static, Appended>,
    ) -> Result<(), Status> {
        let result = allocation.await.result;
        if let Err(status) = result {
            tracing::error!("pool '{}': the log takes no more records: {status}", self.pool_name);
            self.index.unallocate(extent, target.volume, target.vextent);
        }
        result.map(|_| ())
    }

    /// Appends the records of a write: whole blocks in runs, what is less than a block as deltas.
    fn append_parts(&self, extent: u32, target: &Target, payload: SgList) -> Together<'static, Appended> {
        let mut parts = Together::new();
        let (mut at, end, mut rest) = (target.offset, target.offset + target.bytes, payload);
        while at < end {
            let (block, within) = (extent * EXTENT_BLOCKS + at / BLOCK, at % BLOCK);
            let whole = if within == 0 { ((end - at) / BLOCK).min(RECORD_BLOCKS_MAX) } else { 0 };
            let bytes = if whole > 0 { whole * BLOCK } else { (BLOCK - within).min(end - at) };
            let tail = sg_split_off(&mut rest, bytes as usize);
            let part = std::mem::replace(&mut rest, tail);
            self.heat.iter().for_each(|heat| heat.note(block, whole.max(1)));
            let record =
                if whole > 0 { Record::write(block, whole) } else { Record::delta(block, within as u16, bytes as u16) };
            parts.push(self.log.append(record, part, Class::Internal));
            at += bytes;
        }
        parts
    }

    /// Waits until no block at the target's ends has more deltas than memory and reads should bear.
    async fn shorten_chains(self: &Rc<Self>, target: &Target) -> Result<(), Status> {
        if target.is_whole() {
            return Ok(());
        }
        let Some(extent) = self.index.extent(target.volume, target.vextent) else { return Ok(()) };
        let blocks = target.blocks();
        for index in [blocks.start, blocks.end - 1] {
            if self.index.chain_len(extent * EXTENT_BLOCKS + index) >= CHAIN_LIMIT {
                self.merge(target.volume, target.vextent, index).await?;
            }
        }
        Ok(())
    }

    /// Begins to merge, in the background, the chains that this write has made long.
    fn merge_long_chains(self: &Rc<Self>, extent: u32, target: &Target) {
        if target.is_whole() {
            return;
        }
        let blocks = target.blocks();
        for index in [blocks.start, blocks.end - 1] {
            let block = extent * EXTENT_BLOCKS + index;
            if self.index.chain_len(block) >= CHAIN_MAX && !self.merging.borrow().contains(&block) {
                self.merging.borrow_mut().push(block);
                let (shard, volume, vextent) = (self.clone(), target.volume, target.vextent);
                self.reactor.spawn(async move {
                    // Readers meet the same error and report it; the chain stays as it is.
                    let _ = shard.merge(volume, vextent, index).await;
                    shard.merging.borrow_mut().retain(|other| *other != block);
                });
            }
        }
    }

    /// Replaces the deltas over a block by the whole block, in the log.
    pub(super) async fn merge(self: &Rc<Self>, volume: u32, vextent: u32, index: u32) -> Result<(), Status> {
        let target = Target { volume, vextent, offset: index * BLOCK, bytes: BLOCK };
        let _held = self.locks.lock(target.range()).await;
        self.log.barrier().await;
        let Some(extent) = self.index.extent(volume, vextent) else { return Ok(()) };
        let block = extent * EXTENT_BLOCKS + index;
        if !self.index.has_chain(block) {
            return Ok(());
        }
        let read = self.read_needed(target, block).await;
        self.note_slice(&target).await?;
        let before = match read? {
            Needed::Bytes(bufs) => {
                let record = Record::write(block, 1);
                return self.log.append(record, bufs, Class::Internal).await.result.map(|_| ());
            }
            Needed::Lost { before } => before,
        };
        tracing::error!(
            "pool '{}': block {block} of shard {} is lost: bytes were written over it, but what is below them {}",
            self.pool_name,
            self.number,
            if before { "was lost before" } else { "cannot be read" }
        );
        add(&self.counters.lost_blocks, 1);
        let lost = self.log.append(Record::Lost { first: block, blocks: 1 }, SgList::new(), Class::Internal);
        lost.await.result.map(|_| ())
    }
}

/// Log bytes that a write of the target needs at most.
fn log_bytes(target: &Target) -> u64 {
    let records = target.bytes / (RECORD_BLOCKS_MAX * BLOCK) + 3;
    if target.is_whole() && records == 3 {
        return target.bytes as u64 + RECORD_OVERHEAD_MAX;
    }
    target.bytes as u64 + records as u64 * RECORD_OVERHEAD_MAX
}
