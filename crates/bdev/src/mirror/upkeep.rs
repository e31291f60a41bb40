//! The upkeep of a mirror: dirty bits, superblocks, legs that change state, and copying what a leg lacks.

use super::format::{KIND, LegState, PAGE_REGIONS};
use super::io::{Copying, Inner};
use super::regions::{ADDED, DIRTY, NEEDS_SYNC};
use super::{CLEAN_INTERVAL_NS, LEGS_MAX, LegSet, MirrorDefect, Shared};
use crate::io::Status;
use crate::pace::{PAUSE_NS, Pace};
use crate::slots::Slots;
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::atomic::Ordering::*;

impl Inner {
    /// Makes the dirty bits of `regions` durable on all active legs.
    pub(super) async fn mark_dirty(&self, regions: std::ops::RangeInclusive<usize>) -> Result<(), Status> {
        let shared = &self.shared;
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        self.record_with_turn().await?;
        let is_clean = |region: &usize| shared.regions[*region].load(Acquire) & DIRTY == 0;
        let (first, last) = (regions.start() / PAGE_REGIONS, regions.end() / PAGE_REGIONS);
        for page in first..=last {
            let inside = |region: &usize| region / PAGE_REGIONS == page;
            if !regions.clone().any(|region| inside(&region) && is_clean(&region)) {
                continue;
            }
            {
                let mut meta = shared.meta.lock().expect("nothing panics while holding the metadata");
                regions.clone().filter(inside).for_each(|region| meta.pages[page].set(region % PAGE_REGIONS, true));
            }
            self.write_page(page).await?;
        }
        for region in regions {
            shared.regions[region].fetch_or(DIRTY, AcqRel);
        }
        Ok(())
    }

    /// Writes a bitmap page to all active legs, failing those that refuse. The caller has the turn.
    pub(super) async fn write_page(&self, page: usize) -> Result<(), Status> {
        let shared = &self.shared;
        let bytes = {
            let meta = shared.meta.lock().expect("nothing panics while holding the metadata");
            meta.pages[page].encode(meta.superblock.mirror_id, page)
        };
        let (mut failed, mut status) = (LegSet::new(), Status::Ok);
        for leg in shared.active() {
            if let Err(why) = self.slots(leg).write_unit(2 + page as u64, &bytes).await {
                failed.push(leg);
                status = why;
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        if shared.in_sync().iter().all(|leg| failed.contains(leg)) {
            return Err(status);
        }
        self.fail_with_turn(&failed).await
    }

    pub(super) fn slots(&self, leg: usize) -> Slots<'_> {
        let (reactor, channel, block_size) = (&self.reactor, self.channel(leg), self.shared.opened.block_size);
        Slots { reactor, channel, block_size, kind: KIND }
    }

    /// Makes the states of the legs durable where they are not: what was just done on fewer legs counts only then.
    pub(super) async fn record(&self) -> Result<(), Status> {
        if !self.shared.unrecorded.load(Acquire) {
            return Ok(());
        }
        let _turn = self.shared.meta_turn.lock(0, 1, true).await;
        self.record_with_turn().await
    }

    /// The bitmap, too, counts by the newest superblock.
    pub(super) async fn record_with_turn(&self) -> Result<(), Status> {
        if self.shared.unrecorded.load(Acquire) { self.write_superblocks().await } else { Ok(()) }
    }

    /// Calls legs failed, durably on all others. Ok only when a leg in sync has recorded it.
    pub(super) async fn fail_legs(&self, legs: &[usize]) -> Result<(), Status> {
        let _turn = self.shared.meta_turn.lock(0, 1, true).await;
        self.fail_with_turn(legs).await
    }

    /// Calls the legs failed that may lose what they have, durably on all others; of those in sync none as long as there is no other.
    pub(super) async fn fail_unflushed(&self) -> Result<(), Status> {
        let _turn = self.shared.meta_turn.lock(0, 1, true).await;
        self.fail_unflushed_with_turn().await
    }

    async fn fail_unflushed_with_turn(&self) -> Result<(), Status> {
        let (in_sync, mut unflushed) = (self.shared.in_sync(), self.shared.unflushed());
        if in_sync.iter().all(|leg| unflushed.contains(leg)) {
            unflushed.retain(|leg| !in_sync.contains(leg));
        }
        unflushed.iter().for_each(|leg| self.set_state(*leg, LegState::Failed));
        self.record_with_turn().await
    }

    async fn fail_with_turn(&self, legs: &[usize]) -> Result<(), Status> {
        let shared = &self.shared;
        if shared.in_sync().iter().all(|leg| legs.contains(leg)) {
            // The last one in sync is never called failed: there would be nothing left to come back to.
            return Err(Status::WriteError);
        }
        for leg in legs {
            self.set_state(*leg, LegState::Failed);
        }
        self.write_superblocks().await
    }

    pub(super) fn set_state(&self, leg: usize, state: LegState) {
        let shared = &self.shared;
        let mut meta = shared.meta.lock().expect("nothing panics while holding the metadata");
        let generation = meta.superblock.generation;
        let record = &mut meta.superblock.legs[leg];
        if record.state == state {
            return;
        }
        if state == LegState::Failed {
            record.failed_generation = if record.state == LegState::RecoveringFull { 0 } else { generation + 1 };
        }
        let (name, leg_name) = (&shared.name, shared.leg_name(leg));
        match state {
            LegState::Failed => {
                tracing::warn!(mirror = name, "{leg_name} is called failed; it was {}", record.state.words())
            }
            _ => tracing::info!(mirror = name, "{leg_name} is {}; it was {}", state.words(), record.state.words()),
        }
        record.state = state;
        shared.unrecorded.store(true, Release);
        shared.legs[leg].state.store(state.code(), Release);
    }

    /// Writes the superblock of a new generation to all active legs; those that refuse are called failed in the next.
    /// Those that are behind come first, so that of two none is ever more than one generation behind, however many crashes come in
    /// between. The caller has the turn.
    pub(super) async fn write_superblocks(&self) -> Result<(), Status> {
        let shared = &self.shared;
        loop {
            let superblock = {
                let mut meta = shared.meta.lock().expect("nothing panics while holding the metadata");
                meta.superblock.generation += 1;
                meta.superblock.clone()
            };
            let (mut failed, mut status) = (LegSet::new(), Status::Ok);
            let mut legs = shared.active();
            legs.sort_by_key(|leg| shared.legs[*leg].generation.load(Acquire));
            for leg in legs {
                let first = shared.legs[leg].slot_first.swap(0, AcqRel);
                if let Err(why) = self.slots(leg).write(first, &superblock.encode(leg)).await {
                    failed.push(leg);
                    status = why;
                } else {
                    shared.legs[leg].generation.store(superblock.generation, Release);
                }
            }
            if failed.is_empty() {
                shared.unrecorded.store(false, Release);
                return Ok(());
            }
            if shared.in_sync().iter().all(|leg| failed.contains(leg)) {
                return Err(status);
            }
            failed.iter().for_each(|leg| self.set_state(*leg, LegState::Failed));
        }
    }

    pub(super) fn clean_if_due(&self) {
        let (now, last) = (self.reactor.now_ns(), self.shared.last_clean_ns.load(Relaxed));
        if last == 0 {
            self.shared.last_clean_ns.store(now, Relaxed);
        } else if now.saturating_sub(last) >= CLEAN_INTERVAL_NS && !self.shared.cleaning.swap(true, AcqRel) {
            let channels = self.channels.iter().map(|channel| channel.get().cloned()).collect();
            let again = Inner::new(self.shared.clone(), self.reactor.clone(), channels);
            self.reactor.spawn(async move {
                let _ = again.clean().await;
                again.shared.last_clean_ns.store(again.reactor.clock_ns(), Relaxed);
                again.shared.cleaning.store(false, Release);
            });
        }
    }

    /// Clears the bits of regions at rest, once their data are durable everywhere.
    pub(super) async fn clean(self: &Rc<Self>) -> Result<(), Status> {
        let shared = &self.shared;
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        self.fail_unflushed_with_turn().await?;
        if !shared.all_in_sync() || !shared.unflushed().is_empty() {
            return Ok(());
        }
        // Taken out of memory first: a write that starts now waits for the turn, then sets the bit again.
        let at_rest = |region: &usize| shared.regions[*region].compare_exchange(DIRTY, 0, AcqRel, Relaxed).is_ok();
        let cleaned: Vec<usize> = (0..shared.regions.len()).filter(at_rest).collect();
        if cleaned.is_empty() {
            return Ok(());
        }
        let outcome = self.clear_bits(&cleaned).await;
        if outcome.is_err() || !shared.all_in_sync() || !shared.unflushed().is_empty() {
            self.restore_bits(&cleaned).await?;
        }
        outcome
    }

    /// Sets bits again, on the legs first: some may have been cleared there, and a region that counts as dirty in memory
    /// is not marked by the next write.
    async fn restore_bits(&self, regions: &[usize]) -> Result<(), Status> {
        let pages = self.set_bits(regions, true);
        for page in pages {
            self.write_page(page).await?;
        }
        regions.iter().for_each(|region| {
            self.shared.regions[*region].fetch_or(DIRTY, AcqRel);
        });
        Ok(())
    }

    /// Changes bits of the metadata in memory; the pages concerned.
    fn set_bits(&self, regions: &[usize], value: bool) -> Vec<usize> {
        let mut meta = self.shared.meta.lock().expect("nothing panics while holding the metadata");
        regions.iter().for_each(|region| meta.pages[region / PAGE_REGIONS].set(region % PAGE_REGIONS, value));
        let mut pages: Vec<usize> = regions.iter().map(|region| region / PAGE_REGIONS).collect();
        pages.dedup();
        pages
    }

    /// The caller has the turn, which no flush waits for.
    async fn clear_bits(self: &Rc<Self>, cleaned: &[usize]) -> Result<(), Status> {
        self.shared.flushes.run(&self.reactor, self.clone().flush_legs()).await?;
        if !self.shared.unflushed().is_empty() {
            return self.fail_unflushed_with_turn().await;
        }
        for page in self.set_bits(cleaned, false) {
            self.write_page(page).await?;
        }
        Ok(())
    }

    /// Starts [`resync`](Self::resync) as a task of the reactor.
    pub(super) fn resync_in_background(self: &Rc<Self>) {
        let (name, regions) = (&self.shared.name, self.shared.regions_left());
        tracing::info!(mirror = name, regions, "copying regions that differ");
        let copier = self.clone();
        self.reactor.spawn(async move {
            let name = &copier.shared.name;
            match copier.resync(PAUSE_NS).await {
                Ok(()) if copier.shared.regions_left() > 0 => {
                    tracing::info!(mirror = name, "copying has stopped, and goes on when the mirror is opened again");
                }
                Ok(()) => tracing::info!(mirror = name, "the legs in use are equal"),
                Err(status) => tracing::error!(mirror = name, %status, "a mirror could not be resynchronised"),
            }
        });
    }

    pub(super) async fn resync(self: &Rc<Self>, pause_ns: u64) -> Result<(), Status> {
        let shared = &self.shared;
        let _turn = shared.resync_turn.lock(0, 1, true).await;
        let outcome = self.resync_with_turn(pause_ns).await;
        shared.resync_bytes_per_s.store(0, Relaxed);
        outcome
    }

    async fn resync_with_turn(self: &Rc<Self>, pause_ns: u64) -> Result<(), Status> {
        loop {
            // A leg that joins from here on may lack regions that this pass has left behind it.
            let covered = self.recovering();
            self.resync_pass(pause_ns).await?;
            if self.is_ending() {
                return Ok(());
            }
            self.promote(&covered).await?;
            if self.recovering().is_empty() {
                return self.clean().await;
            }
        }
    }

    fn is_ending(&self) -> bool {
        self.reactor.is_stopping() || self.shared.is_gone.load(Acquire)
    }

    /// Legs that are being caught up, each with the number of times that it has joined.
    fn recovering(&self) -> SmallVec<[(usize, u32); LEGS_MAX]> {
        let shared = &self.shared;
        let legs = shared.legs_where(|state| matches!(state, LegState::RecoveringDirty | LegState::RecoveringFull));
        legs.into_iter().map(|leg| (leg, shared.legs[leg].joins.load(Acquire))).collect()
    }

    async fn resync_pass(self: &Rc<Self>, pause_ns: u64) -> Result<(), Status> {
        let (shared, mut outcome) = (&self.shared, Ok(()));
        let mut pace = Pace::new(self.reactor.clock_ns(), pause_ns);
        let bytes = shared.regions.blocks() * u64::from(shared.opened.block_size);
        for region in 0..shared.regions.len() {
            if shared.regions[region].load(Acquire) & NEEDS_SYNC != 0 {
                outcome = outcome.and(self.resync_region(region).await);
                if self.is_ending() {
                    return Ok(());
                }
                pace.keep(&self.reactor, bytes, &shared.resync_rate, || self.is_ending()).await;
                shared.resync_bytes_per_s.store(pace.bytes_per_s(self.reactor.clock_ns()), Relaxed);
            }
        }
        // A region that no leg can read keeps its mark; the others are in order all the same.
        outcome
    }

    async fn resync_region(self: &Rc<Self>, region: usize) -> Result<(), Status> {
        let shared = &self.shared;
        // Both stay what they are: a mirror grows with the turn of resyncs held.
        let start = region as u64 * shared.regions.blocks();
        let end = (start + shared.regions.blocks()).min(shared.blocks());
        // The whole region at once: clearing the mark must not cross a write that failed and set it again.
        let _alone = shared.ranges.lock(start, end - start, true).await;
        let is_added = shared.regions[region].load(Acquire) & ADDED != 0;
        let how = if is_added { Copying::WhatDiffers } else { Copying::All };
        if shared.defect != Some(MirrorDefect::SkipCopies) {
            self.equalise(start, end - start, Shared::active, how).await?;
        }
        if shared.in_sync().len() > 1 {
            // A power cut must not part them again, now that reads may be answered by any of them.
            self.flush().await?;
        }
        shared.regions[region].fetch_and(!(NEEDS_SYNC | ADDED), AcqRel);
        Ok(())
    }

    /// Legs that have been given everything become legs in sync; not those that have joined again meanwhile, and none while a write that
    /// failed on the legs in sync may have reached only these: what is read of it until then must stay, whichever leg is lost.
    async fn promote(self: &Rc<Self>, covered: &[(usize, u32)]) -> Result<(), Status> {
        let shared = &self.shared;
        if covered.is_empty() {
            return Ok(());
        }
        // Those in sync so far may fail it: what counts is that these do not.
        let flushed = self.flush().await;
        if covered.iter().any(|(leg, _)| shared.legs[*leg].is_unflushed.load(Acquire)) {
            return flushed;
        }
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        if shared.regions_left() > 0 {
            return Ok(());
        }
        for (leg, joins) in covered {
            if shared.leg_state(*leg) != LegState::Failed && shared.legs[*leg].joins.load(Acquire) == *joins {
                self.set_state(*leg, LegState::InSync);
            }
        }
        // On all of them first: the legs that are called failed next must know that there are others.
        self.write_superblocks().await?;
        self.fail_unflushed_with_turn().await
    }
}
