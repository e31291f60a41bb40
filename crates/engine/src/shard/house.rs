//! Housekeeping: when to destage, when to make a checkpoint, and when to sleep.
//!
//! ```text
//! asleep (nothing dirty, everything in a checkpoint: no timer, no cost)
//!   --a write--> watching (looks again after `idle_ns`; destages as the log fills)
//!   --no write for `idle_ns`--> settling (destages everything, then a checkpoint) --> asleep
//! opened with something in the log: waits for hosts, not long, then settling
//! ```

use super::cramped::Stall;
use super::destage::EXTENTS_MAX;
use super::heat::Heat;
use super::index::Keeps;
use super::log_policy::CHECKPOINT_PART;
use super::pace::{Fill, Marks};
use super::seldom::Seldom;
use super::{Defect, Shard, sweep};
use crate::bands::{Bands, Stream};
use crate::meta::{Page, Replacement};
use crate::units::LogTail;
use bdev::Status;
use reactor::Reactor;
use reactor::sync::Notify;
use std::cell::Cell;
use std::rc::Rc;

/// Wait after an error before it is tried again.
pub(super) const RETRY_NS: u64 = 200_000_000;
/// After an opening hosts come back, and what is left in the log can wait: until somebody writes, but so long at most, and no longer than
/// it waits at rest.
const FIRST_WAIT_NS: u64 = 50_000_000;
/// Wait while nothing that is dirty can be destaged, and while writes wait although nothing is dirty.
const HELD_BACK_NS: u64 = 100_000;
/// Extents of a shaped pool that are destaged together: they have few blocks each, and share stripes.
const IN_BANDS: usize = 48;
/// No more extents of a shaped pool are destaged together once they have so many blocks: some stripes.
const ROUND_BLOCKS: u32 = 4 * 255;
/// So many times as much where destage and the collector write in turns.
const TIMES_IN_TURN: u32 = 3;

/// Which writes the housekeeper wants to hear of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listens {
    /// None: it is at work, or waits before it tries again.
    #[default]
    Nothing,
    /// The one that fills the log so far that destage begins.
    Filling,
    /// The next.
    Anything,
}

#[derive(Default)]
pub(super) struct House {
    /// Something may have to be done.
    call: Notify,
    listens: Cell<Listens>,
    /// With `Filling`: the share of the log, in 256ths, from which a write is heard of.
    call_share: Cell<u64>,
    writes: Cell<u64>,
    /// Nobody has written for a while, or the shard is closing.
    settling: Cell<bool>,
    /// How many had written when that began.
    settling_from: Cell<u64>,
    stopping: Cell<bool>,
    stopped: Cell<bool>,
    /// Somebody is [alone](super::alone::Alone).
    pub(super) checkpointing: Cell<bool>,
    /// Why one that was made beside destage has failed, until upkeep has heard of it.
    checkpoint_error: Cell<Option<Status>>,
    /// The tail in the last checkpoint.
    checkpoint: Cell<Option<LogTail>>,
    last_error: Cell<Option<Status>>,
    /// Why a write to a slice at rest has failed, until one has been journaled or upkeep has succeeded.
    pub(super) unjournaled: Cell<Option<Status>>,
    failures: Seldom,
    /// Writes that are refused because of them.
    pub(super) refusals: Seldom,
    /// Since when all that could be destaged is held back.
    pub(super) blocked_since: Cell<Option<u64>>,
    /// Failed flushes after which what they may have lost is written again.
    pub(super) heeded: Cell<u64>,
    pub(super) stall: Stall,
    /// See [`Shard::knock_if_refused`].
    pub(super) knocking: Cell<bool>,
}

impl House {
    /// A write has been appended, or waits for room.
    #[inline]
    pub(super) fn wrote(&self, shard: &Shard) {
        self.writes.set(self.writes.get() + 1);
        let called = match self.listens.get() {
            Listens::Nothing => false,
            Listens::Filling => shard.fill().share() >= self.call_share.get() || shard.pace.waiting() > 0,
            Listens::Anything => true,
        };
        if called {
            self.listens.set(Listens::Nothing);
            self.call.notify_all();
        }
    }

    /// Waits so long, or until the shard closes.
    pub(super) async fn pause(&self, reactor: &Rc<Reactor>, ns: u64) {
        let _ = reactor.timeout(ns, self.call.wait_until(|| self.stopping.get())).await;
    }

    /// How the last upkeep that failed ended, until one has succeeded; or why writes to what is at rest fail.
    pub(super) fn last_error(&self) -> Option<Status> {
        self.last_error.get().or(self.unjournaled.get())
    }

    /// A part of upkeep has failed, while others go on.
    pub(super) fn note_error(&self, failed: Option<Status>) {
        failed.into_iter().for_each(|status| self.last_error.set(Some(status)));
    }
}

impl Shard {
    /// Keeps house until the shard is closed.
    pub(super) async fn keep_house(self: Rc<Self>) {
        let house = &self.house;
        if !house.stopping.get() && self.index.dirty_extents() > 0 {
            self.doze(FIRST_WAIT_NS.min(self.tuning.idle_ns), Listens::Anything).await;
        }
        while !house.stopping.get() {
            let writes = house.writes.get();
            let ended = self.upkeep().await;
            self.knock_if_refused();
            house.last_error.set(ended.err());
            if let Err(status) = ended {
                if house.failures.is_due(status, self.reactor.now_ns()) {
                    tracing::warn!(
                        "pool '{}': upkeep of shard {} failed: {status}; it is tried again, and this is said once a minute: see to its \
                         devices, which are '{}' and, for the log, '{}'",
                        self.pool_name,
                        self.number,
                        self.capacity_device.name(),
                        self.log_name
                    );
                }
                self.move_unmapped().await;
                self.relieve().await;
                self.refuse_if_stalled(status);
                self.doze(RETRY_NS, Listens::Nothing).await;
                continue;
            }
            self.ends_stall();
            house.unjournaled.set(None);
            if house.failures.ends() {
                tracing::info!("pool '{}': upkeep of shard {} goes on", self.pool_name, self.number);
            }
            self.note_room();
            if house.writes.get() != writes {
                continue;
            } else if self.pace.waiting() > 0 || self.log.is_stalled() {
                // Who was let in may have ended without a record (no extent was free, nothing was left to trim): what was
                // granted to it is there again, and nobody has told. With everything in a checkpoint, more room than now
                // there will not be: segments are out of use. Then the first goes on, and fails if it must.
                match self.is_settled() {
                    true if self.log.is_idle() => self.pace.let_in_alone(),
                    true => {}
                    false => house.settling.set(true),
                }
                self.doze(HELD_BACK_NS, Listens::Anything).await;
            } else if self.is_settled() && self.log.is_idle() {
                // Not with records under way: a failed write may leave them waiting for room that only a checkpoint makes.
                house.settling.set(false);
                self.recount_once();
                house.listens.set(Listens::Anything);
                house.call.wait_until(|| house.listens.get() == Listens::Nothing || house.stopping.get()).await;
            } else if self.sweeps.as_ref().is_some_and(|sweeps| sweeps.is_held()) {
                if house.writes.get() != house.settling_from.get() && self.pace.waiting() == 0 {
                    // Somebody writes again, and what has come need not leave the log at once.
                    house.settling.set(false);
                }
                self.doze(sweep::LOOK_NS, Listens::Filling).await;
            } else if house.settling.get() {
                // What is left could not be destaged just now.
                self.doze(RETRY_NS / 100, Listens::Nothing).await;
            } else {
                self.doze(self.tuning.idle_ns, Listens::Filling).await;
                house.settling.set(house.writes.get() == writes);
                house.settling_from.set(writes);
            }
        }
        let at_work = || {
            self.index.destages_under_way() > 0
                || self.gc.is_recounting.get()
                || self.gc.is_collecting.get()
                || self.is_checkpointing()
        };
        self.settled.wait_until(|| !at_work()).await;
        if let Some(bands) = self.meta.bands() {
            bands.rest().await;
        }
        house.stopped.set(true);
        house.call.notify_all();
    }

    /// Waits so long, or until a write of the kind comes.
    async fn doze(self: &Rc<Self>, ns: u64, listens: Listens) {
        let house = &self.house;
        house.listens.set(listens);
        // What there is has been looked at: there may be something to do when the log is fuller than now.
        house.call_share.set((self.fill().share() + 1).clamp(self.pace.marks.start, 256));
        let called = house.call.wait_until(|| house.listens.get() != listens || house.stopping.get());
        let _ = self.reactor.timeout(ns, called).await;
        house.listens.set(Listens::Nothing);
    }

    /// Where replay would have to begin if a checkpoint were made now. With nothing dirty, no segment is needed but the open
    /// one: what is closed, by an opening or a failed write, need not wait for a record behind it to be free.
    pub(super) fn tail(&self) -> LogTail {
        self.index.tail().unwrap_or_else(|| {
            let next = self.index.next();
            LogTail { segment: next.segment.max(self.log.segment_ahead()), lsn: next.lsn }
        })
    }

    /// Whether the checkpoint has everything.
    fn is_settled(&self) -> bool {
        self.index.dirty_extents() == 0 && self.house.checkpoint.get() == Some(self.tail())
    }

    /// Destages and makes checkpoints until neither is called for.
    async fn upkeep(self: &Rc<Self>) -> Result<(), Status> {
        self.heed_failed_flush_alone().await?;
        if let Some(bands) = self.meta.bands()
            && bands.waits_for_root()
        {
            self.meta.settle().await?;
            bands.root_settled();
        }
        loop {
            let collects = self.collect_some().await?;
            let mut wanted = self.destage_wanted();
            match &self.sweeps {
                Some(sweeps) if wanted => wanted = self.sweep_some(sweeps).await?,
                Some(sweeps) => sweeps.rest(),
                None if wanted => self.destage_some(self.keeps()).await?,
                None => {}
            }
            self.house.checkpoint_error.take().map_or(Ok(()), Err)?;
            let checkpoints = self.checkpoint_wanted();
            if checkpoints && (self.meta.bands().is_none() || self.house.settling.get()) {
                self.checkpoint().await?;
            } else if checkpoints && !self.is_checkpointing() {
                self.begin_checkpoint();
            } else if !wanted && self.is_checkpointing() {
                self.settled.notified().await;
            } else if !wanted && self.gc.is_collecting.get() {
                // There is nothing to do but what it makes possible.
                self.pace.earned(0, self.fill());
                self.settled.notified().await;
            } else if !wanted && !collects && self.journal.has_due() {
                self.copy_due().await;
                if !self.journal.has_due() {
                    self.journal.compact().await?;
                }
            } else if !wanted && !collects {
                // Room that has come about in another way, such as by trimming.
                self.pace.earned(0, self.fill());
                return Ok(());
            }
            if self.house.stopping.get() {
                return Ok(());
            }
        }
    }

    /// What stays in the log when destage takes something. In place, neighbours are written together: there an extent gives all
    /// it has.
    fn keeps(&self) -> Option<Keeps<'_>> {
        let bands = self.meta.bands().filter(|_| !self.house.settling.get())?;
        let Marks { start, soft } = self.pace.marks;
        // Where destage follows writers without effort, the capacity device is not what they wait for.
        let is_pressed = self.fill().share() >= (start + soft) / 2;
        let reinserts = |heat: &&Heat| heat.is_wanted(is_pressed) && self.has_room_to_reinsert(1);
        Some(Keeps { least: self.old_blocks_min(bands), heat: self.heat.as_ref().filter(reinserts) })
    }

    fn destage_wanted(&self) -> bool {
        // What only a checkpoint or GC can make room for is not tried.
        let has_room = |bands: &Rc<Bands>| !self.owes_blocks(bands) && self.may_destage(bands);
        self.index.dirty_extents() > 0
            && self.meta.bands().is_none_or(has_room)
            && (self.house.settling.get()
                || self.fill_after_checkpoint().share() >= self.pace.marks.start
                || self.pace.waiting() > 0 && !self.checkpoint_wanted())
    }

    /// How full the log would be if a checkpoint were made now. Destaging is judged by this: what only a checkpoint is
    /// missing for must not drive it to take extents that have hardly become dirty, page by page.
    pub(super) fn fill_after_checkpoint(&self) -> Fill {
        let (fill, room) = (self.fill(), self.log.room());
        let last = self.house.checkpoint.get().map_or(self.first.segment, |tail| tail.segment);
        let moved = self.tail().segment.saturating_sub(last);
        let bytes_moved = fill.bytes_total / room.segments_total.max(1) as u64 * moved;
        Fill { bytes_free: (fill.bytes_free + bytes_moved).min(fill.bytes_total), ..fill }
    }

    fn checkpoint_wanted(&self) -> bool {
        if self.meta.bands().is_some_and(|bands| self.bands_are_missed(bands)) {
            return true;
        }
        let tail = self.tail();
        let Some(last) = self.house.checkpoint.get() else {
            return self.house.settling.get() || self.pace.waiting() > 0;
        };
        let segments = self.log.room().segments_total as u64;
        let moved = tail.segment.saturating_sub(last.segment);
        let (fill, clean) = (self.fill(), self.index.dirty_extents() == 0);
        // A checkpoint is the only help when there is nothing to destage or no room beyond the reserve.
        let only_help = self.pace.waiting() > 0 && (clean || fill.bytes_free < 2 * fill.bytes_reserved);
        match fill.share() {
            _ if self.house.settling.get() && clean => tail != last,
            _ if only_help => moved > 0,
            share if share >= self.pace.marks.soft => moved > segments / CHECKPOINT_PART / 2,
            _ => moved > segments / CHECKPOINT_PART,
        }
    }

    /// Destages a round of extents at the same time; see [`take_dirty`](super::index::Index::take_dirty) for `keeps`.
    async fn destage_some(self: &Rc<Self>, keeps: Option<Keeps<'_>>) -> Result<(), Status> {
        if self.meta.owes_root() {
            // Destage may need map pages for which there is no place in memory before that.
            self.checkpoint().await?;
        }
        let turned_away = self.meta.bands().map(|bands| bands.turned_away());
        match self.destage_round(keeps).await {
            Ok(true) => self.house.blocked_since.set(None),
            Ok(false) => {
                // What could be destaged is held back, by somebody who is waiting for a device.
                self.unblock();
                self.reactor.sleep_ns(HELD_BACK_NS).await;
            }
            // The collector has taken what there was: it gives back more, or has by now. When it is the log that has no room,
            // only a checkpoint helps.
            Err(Status::NoSpace) if self.meta.bands().is_some_and(|bands| self.bands_come(bands, turned_away)) => {
                self.reactor.sleep_ns(HELD_BACK_NS).await;
            }
            Err(status) => return Err(status),
        }
        Ok(())
    }

    /// Whether any extent is clean after it.
    async fn destage_round(self: &Rc<Self>, keeps: Option<Keeps<'_>>) -> Result<bool, Status> {
        let mut round: smallvec::SmallVec<[_; 16]> = smallvec::SmallVec::new();
        let mut blocks = 0;
        let placed = if self.meta.bands().is_some() { IN_BANDS } else { EXTENTS_MAX };
        let (mut depth, mut blocks_max) = (self.tuning.destage_depth.unwrap_or(placed), u32::MAX);
        if let Some(bands) = self.meta.bands() {
            // In its turn, nobody else keeps the device busy where a round ends.
            let times = if self.takes_turns() { TIMES_IN_TURN } else { 1 };
            depth *= times as usize;
            // One in any case: without hope for room, it says so.
            let most = bands.user_room_blocks().clamp(1, times * ROUND_BLOCKS);
            blocks_max = self.most_in_turn(bands, Stream::User, most as u64) as u32;
        }
        while round.len() < depth && blocks < blocks_max {
            let Some(taken) = self.index.take_dirty(keeps) else { break };
            blocks += taken.dirty.blocks.count();
            let shard = self.clone();
            round.push(self.reactor.spawn_join(async move { shard.destage(taken).await }));
        }
        if round.is_empty() && self.index.destages_under_way() > 0 {
            // Somebody else has them all: without waiting, the caller would ask again for ever and nobody else would run.
            self.settled.notified().await;
            return Ok(true);
        }
        let mut ended = Ok(false);
        for destage in round {
            let clean = self.unless_cramped(destage).await;
            ended = ended.and_then(|any| Ok(any | clean?));
        }
        ended
    }

    /// Begins a checkpoint beside destage: what is destaged meanwhile is in the next one. Into bands alone: what is written in
    /// place would be another load for the device that the checkpoint is written to.
    fn begin_checkpoint(self: &Rc<Self>) {
        let (shard, alone) = (self.clone(), self.alone_now());
        self.reactor.spawn(async move {
            let ended = shard.checkpoint_alone().await;
            shard.house.checkpoint_error.set(ended.err());
            drop(alone);
        });
    }

    /// Makes what the map pages and descriptors know durable, and frees the log up to there.
    pub(crate) async fn checkpoint(self: &Rc<Self>) -> Result<(), Status> {
        let _alone = self.alone().await;
        self.checkpoint_alone().await
    }

    /// Makes a checkpoint in which one extent has another one's place, with a map page that `fill` completes. After an error
    /// everything is as it was; so it is when a flush has failed since there were so many failures: what the new extent has may
    /// be lost. False: the shard is being closed, and nobody knows which root the media have.
    pub(super) async fn checkpoint_replacing(
        self: &Rc<Self>,
        replacement: Replacement,
        failures: u64,
        fill: impl FnOnce(&Page),
    ) -> Result<bool, Status> {
        // None that is under way may have a part of the change.
        let _alone = self.alone().await;
        self.replace_alone(replacement, failures, fill).await
    }

    async fn replace_alone(
        self: &Rc<Self>,
        replacement: Replacement,
        failures: u64,
        fill: impl FnOnce(&Page),
    ) -> Result<bool, Status> {
        if self.meta.owes_root() {
            // The root that may be on the media does not have the change: the next one must.
            self.make_checkpoint().await?;
        }
        self.heed_failed_flush().await?;
        if self.meta.flush_failures() != failures {
            return Err(Status::WriteError);
        }
        fill(&self.meta.replace(replacement));
        if self.is_broken(Defect::EvacuateEarly) {
            self.take_replacement(true);
            return Ok(true);
        }
        let mut ended = self.make_checkpoint().await;
        // A root that may be on the media is written until it is there. What else fails, such as the write of a map page, may
        // go on failing, and changes nothing.
        while let Err(status) = ended
            && self.meta.owes_root()
        {
            if self.house.stopping.get() {
                return Ok(false);
            }
            self.house.last_error.set(Some(status));
            tracing::warn!(
                "pool '{}': the root of shard {} that gives an extent another place cannot be written: {status}; it is tried \
                 again",
                self.pool_name,
                self.number
            );
            self.reactor.sleep_ns(RETRY_NS).await;
            ended = self.make_checkpoint().await;
        }
        if self.meta.keep_replaced() { ended.map(|()| true) } else { Ok(true) }
    }

    /// An extent that has another one's place as of a durable checkpoint (or `early`) has it for everybody.
    fn take_replacement(&self, early: bool) {
        if let Some(replacement) = self.meta.replaced(early) {
            self.index.evacuated(replacement);
        }
    }

    /// Whether the shard is being closed.
    pub(super) fn is_stopping(&self) -> bool {
        self.house.stopping.get()
    }

    async fn checkpoint_alone(self: &Rc<Self>) -> Result<(), Status> {
        self.make_checkpoint().await?;
        if self.meta.bands().is_none() {
            return self.journal.compact().await;
        }
        // The index is on the other device.
        self.journal.index_is_at(self.meta.root_generation());
        self.journal.compact().await?;
        self.journal.note_index().await
    }

    async fn make_checkpoint(self: &Rc<Self>) -> Result<(), Status> {
        self.heed_failed_flush().await?;
        self.end_round();
        let tail = match self.meta.replacement() {
            // It has everything of that extent.
            Some(replacement) => self.index.tail_without(replacement.old),
            None if self.is_broken(Defect::TailPastDirty) => self.index.next(),
            None => self.tail(),
        };
        if self.is_broken(Defect::ReleaseEarly) {
            self.log.release(tail);
        }
        self.meta.log_reached(self.log.next().lsn);
        let ended = self.meta.checkpoint(tail).await;
        self.take_replacement(false);
        if let Err(status) = ended {
            for (extent, cause) in self.meta.take_damaged() {
                self.give_up_page(extent, cause).await;
            }
            return Err(status);
        }
        self.house.checkpoint.set(Some(tail));
        self.index.checkpointed(tail);
        self.patience.maps_written();
        self.log.release(tail);
        self.pace.earned(0, self.fill());
        // Under load they would only have to be put there again, each with a write that somebody waits for.
        if self.house.settling.get() || self.fill().share() < self.pace.marks.start {
            self.retire_slices(tail);
        }
        Ok(())
    }

    /// Where the durable checkpoint begins its replay.
    pub(super) fn durable_tail(&self) -> LogTail {
        self.house.checkpoint.get().unwrap_or(self.first)
    }

    /// Records that a recovery would replay.
    pub(crate) fn replay_records(&self) -> u64 {
        (self.index.last_lsn() + 1).saturating_sub(self.durable_tail().lsn)
    }

    /// How the last upkeep that failed ended, until one has succeeded.
    pub(crate) fn last_error(&self) -> Option<Status> {
        self.house.last_error()
    }

    /// Destages everything and makes a checkpoint, now.
    pub(crate) async fn settle(self: &Rc<Self>) -> Result<(), Status> {
        let _hurried = self.sweeps.as_ref().map(sweep::Sweeps::hurry);
        self.heed_failed_flush_alone().await?;
        self.end_round();
        self.log.barrier().await;
        self.bind_rounds();
        while self.index.dirty_extents() > 0 {
            if self.is_stopping() {
                return Err(Status::Gone);
            }
            if self.meta.bands().is_some_and(|bands| self.bands_are_missed(bands)) {
                self.checkpoint().await?;
            }
            self.collect_some().await?;
            if self.meta.bands().is_some_and(|bands| !self.may_destage(bands)) {
                continue;
            }
            self.destage_some(None).await?;
            self.settled.wait_until(|| self.index.destages_under_way() == 0).await;
        }
        if let Err(status) = self.checkpoint().await {
            self.move_unmapped().await;
            return Err(status);
        }
        self.retire_settled().await;
        self.journal.compact().await
    }

    /// Ends housekeeping and waits for what is under way. What is in the log stays there.
    pub(crate) async fn close(self: &Rc<Self>) {
        self.cancel_scrub().await;
        self.house.stopping.set(true);
        self.house.call.notify_all();
        self.house.call.wait_until(|| self.house.stopped.get()).await;
        // Nobody makes room any more.
        self.pace.refuse(Status::Gone);
        self.close_log().await;
        self.settled.wait_until(|| !self.house.knocking.get()).await;
    }
}
