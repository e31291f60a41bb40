//! The upkeep of a parity device: superblocks, members that change state, and blocks of the head that are made equal.

use super::format::{KIND, MemberState, PARITY_MEMBERS_MAX};
use super::links::Inner;
use super::{COPY_BYTES, MemberSet, ParityDefect};
use crate::io::{Io, Lba, Status};
use crate::parts::Parts;
use crate::slots::Slots;
use crate::steps;
use reactor::{Buf, SgList};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::atomic::Ordering::*;

impl Inner {
    pub(super) fn slots(&self, member: usize) -> Slots<'_> {
        let (reactor, channel, block_size) = (&self.reactor, self.channel(member), self.shared.opened.block_size);
        Slots { reactor, channel, block_size, kind: KIND }
    }

    /// Makes the states of the members durable where they are not: what was just done on fewer members counts only then.
    pub(super) async fn record(&self) -> Result<(), Status> {
        // Boxed, like every rare path: superblocks would make the future of each write too large to recycle.
        if self.shared.unrecorded.load(Acquire) { Box::pin(self.record_now()).await } else { Ok(()) }
    }

    async fn record_now(&self) -> Result<(), Status> {
        let _turn = self.shared.meta_turn.lock(0, 1, true).await;
        if self.shared.unrecorded.load(Acquire) { self.write_superblocks().await } else { Ok(()) }
    }

    /// How an operation ends that these members refused, of those that it was for: a single one is called failed, and the
    /// others have it; otherwise it failed as `status` says.
    pub(super) async fn judge(&self, refused: &[usize], status: Status) -> Result<(), Status> {
        match refused {
            [] => self.record().await,
            _ if self.shared.can_lose(refused) => Box::pin(self.fail(refused[0])).await,
            _ => Err(status),
        }
    }

    /// Calls a member failed, durably on all others. Ok only when all of these have recorded it.
    async fn fail(&self, member: usize) -> Result<(), Status> {
        let _turn = self.shared.meta_turn.lock(0, 1, true).await;
        if !self.shared.can_lose(&[member]) {
            return Err(Status::WriteError);
        }
        self.set_state(member, MemberState::Failed);
        if self.shared.defect == Some(ParityDefect::SkipRecord) {
            self.shared.unrecorded.store(false, Release);
        }
        if self.shared.unrecorded.load(Acquire) { self.write_superblocks().await } else { Ok(()) }
    }

    /// The caller has the turn.
    pub(super) fn set_state(&self, member: usize, state: MemberState) {
        let shared = &self.shared;
        let mut superblock = shared.superblock.lock().expect("nothing panics while holding the superblock");
        let record = &mut superblock.members[member];
        if record.state == state {
            return;
        }
        let (name, which) = (&shared.name, shared.member_name(member));
        match state {
            MemberState::Failed => {
                tracing::warn!(parity = name, "{which} is called failed; it was {}", record.state.words())
            }
            _ => tracing::info!(parity = name, "{which} is {}; it was {}", state.words(), record.state.words()),
        }
        (record.state, record.rebuilt_rows) = (state, 0);
        shared.unrecorded.store(true, Release);
        shared.members[member].state.store(state.code(), Release);
        if state == MemberState::InSync {
            shared.members[member].set_older(None);
        }
    }

    /// Writes the superblock of a new generation to all members in use; one that refuses is called failed in the next, if
    /// it can be done without. Those that are behind come first, so that none of them is ever more than one generation behind the
    /// others together, however many crashes come in between. The caller has the turn.
    pub(super) async fn write_superblocks(&self) -> Result<(), Status> {
        let shared = &self.shared;
        // Before anything: that we have none is no member's fault.
        let mut buf = Some(self.slots(0).unit_buf().await?);
        loop {
            let superblock = {
                let mut superblock = shared.superblock.lock().expect("nothing panics while holding the superblock");
                superblock.generation = superblock.generation.saturating_add(1);
                superblock.clone()
            };
            let (mut refused, mut status) = (MemberSet::new(), Status::Ok);
            let mut members = shared.active();
            members.sort_by_key(|member| shared.members[*member].generation.load(Acquire));
            for member in members {
                let first = shared.members[member].slot_first.swap(0, AcqRel);
                if let Err(why) = self.slots(member).write_with(first, &superblock.encode(member), &mut buf).await {
                    refused.push(member);
                    status = why;
                } else {
                    shared.members[member].generation.store(superblock.generation, Release);
                }
            }
            if refused.is_empty() {
                let mut current = shared.superblock.lock().expect("nothing panics while holding the superblock");
                current.base = superblock.as_base();
                shared.unrecorded.store(false, Release);
                return Ok(());
            }
            if !shared.can_lose(&refused) {
                return Err(status);
            }
            self.set_state(refused[0], MemberState::Failed);
        }
    }

    /// For the device itself. Its users hear of a failure with their next flush.
    pub(super) async fn flush(self: &Rc<Self>) -> Result<(), Status> {
        self.shared.flushes.run(&self.reactor, self.clone().flush_members()).await.map(drop)
    }

    /// Makes completed writes durable. A member that cannot may lose what was acknowledged, and is called failed.
    pub(super) async fn flush_members(self: Rc<Self>) -> Result<(), Status> {
        let active = self.shared.active();
        let joins: SmallVec<[u32; PARITY_MEMBERS_MAX]> = active.iter().map(|member| self.joins(*member)).collect();
        let mut parts = Parts::default();
        active.iter().for_each(|member| parts.push(self.channel(*member).submit(Io::flush())));
        let (mut refused, mut status) = (MemberSet::new(), Status::Ok);
        for ((member, joins), done) in active.iter().zip(joins).zip(parts.join().await) {
            // Of a device that has been replaced meanwhile nothing is asked any more.
            if !done.status.is_ok() && self.joins(*member) == joins {
                let (name, which) = (&self.shared.name, self.shared.member_name(*member));
                tracing::warn!(parity = name, status = %done.status, "flush failed on {which}");
                refused.push(*member);
                status = done.status;
            }
        }
        let judged = self.judge(&refused, status).await;
        if let Some(member) = self.shared.rebuilding().filter(|member| judged.is_err() && refused.contains(member)) {
            // It may have lost what nobody will write again: what is recorded was flushed.
            let superblock = self.shared.superblock.lock().expect("nothing panics while holding the superblock");
            self.shared.rebuilt_rows.store(superblock.members[member].rebuilt_rows, Release);
        }
        judged
    }

    // --- the head ---------------------------------------------------------------------------------------------------

    /// Before a write to the head: the superblocks do not call the heads equal any more.
    pub(super) async fn begin_head(&self) -> Result<(), Status> {
        if !self.shared.clean.load(Acquire) {
            return Ok(());
        }
        let _turn = self.shared.meta_turn.lock(0, 1, true).await;
        if self.shared.clean.load(Acquire) {
            self.set_clean(false);
            self.write_superblocks().await?;
            self.shared.clean.store(false, Release);
        }
        Ok(())
    }

    fn set_clean(&self, clean: bool) {
        let mut superblock = self.shared.superblock.lock().expect("nothing panics while holding the superblock");
        superblock.clean = clean;
    }

    /// Makes blocks of the head equal on all members in use, from the first one in sync that can read them; the caller holds
    /// the range. What is equal already is not written.
    pub(super) async fn equalise(&self, lba: u64, nblocks: u64) -> Result<(), Status> {
        let step = (COPY_BYTES / self.shared.block_size()) as u64;
        let mut at = lba;
        while at < lba + nblocks {
            let count = step.min(lba + nblocks - at);
            self.equalise_piece(at, count).await?;
            at += count;
        }
        Ok(())
    }

    async fn equalise_piece(&self, lba: u64, nblocks: u64) -> Result<(), Status> {
        let (active, in_sync) = (self.shared.active(), self.shared.in_sync());
        let mut parts = Parts::default();
        for member in &active {
            let buf = steps::alloc(&self.reactor, nblocks as usize * self.shared.block_size()).await?;
            let at = Lba(self.shared.geometry().data_start + lba);
            parts.push(self.channel(*member).submit(Io::read(at, nblocks as u32, SgList::from_iter([buf]))));
        }
        let (mut found, mut first_failure) = (SmallVec::<[(usize, Option<Buf>); 4]>::new(), None);
        for (member, mut done) in active.iter().zip(parts.join().await) {
            if !done.status.is_ok() && in_sync.contains(member) {
                self.count_read_error(*member, lba, done.status);
                first_failure.get_or_insert(done.status);
            }
            found.push((*member, done.io.bufs.pop().filter(|_| done.status.is_ok())));
        }
        let can_tell = |(member, buf): &(usize, Option<Buf>)| buf.is_some() && in_sync.contains(member);
        let source = found.iter().position(can_tell);
        let source = source.and_then(|at| found.remove(at).1);
        let Some(mut good) = source else { return Err(first_failure.unwrap_or(Status::Gone)) };
        let (mut refused, mut status) = (MemberSet::new(), Status::Ok);
        for (member, there) in found {
            if there.as_ref().is_some_and(|there| there.as_slice() == good.as_slice()) {
                continue;
            }
            let bufs = SgList::from_iter([good]);
            let at = Lba(self.shared.geometry().data_start + lba);
            let mut done = self.channel(member).submit(Io::write(at, nblocks as u32, bufs)).await;
            good = done.io.bufs.pop().ok_or(Status::Invalid)?;
            if !done.status.is_ok() {
                refused.push(member);
                status = done.status;
            } else if there.is_none() && in_sync.contains(&member) {
                self.count_repair(member, lba, nblocks);
            }
        }
        self.judge(&refused, status).await
    }

    pub(super) async fn read_head(&self, member: usize, lba: u64, nblocks: u64) -> Result<Buf, Status> {
        let buf = steps::alloc(&self.reactor, nblocks as usize * self.shared.block_size()).await?;
        let at = Lba(self.shared.geometry().data_start + lba);
        let mut done = self.channel(member).submit(Io::read(at, nblocks as u32, SgList::from_iter([buf]))).await;
        done.status.check()?;
        done.io.bufs.pop().ok_or(Status::Invalid)
    }

    /// As before a shutdown. Where much of the head is not compared yet the superblocks go on to say so.
    pub(super) async fn settle(self: &Rc<Self>) -> Result<(), Status> {
        self.flush().await?;
        let _alone = self.shared.ranges.lock(0, self.shared.geometry().head, true).await;
        if !self.agree_at_close().await? {
            return Ok(());
        }
        // Writes to the head have waited for this, so that all of them are flushed.
        self.flush().await?;
        let _turn = self.shared.meta_turn.lock(0, 1, true).await;
        if self.shared.clean.load(Acquire) {
            return Ok(());
        }
        self.set_clean(true);
        // Before anything says so: when it fails, some superblocks may, and the next write to the head takes that back.
        self.shared.clean.store(true, Release);
        self.write_superblocks().await
    }

    // --- counting ---------------------------------------------------------------------------------------------------

    pub(super) fn count_read_error(&self, member: usize, lba: u64, status: Status) {
        self.shared.members[member].read_errors.fetch_add(1, Relaxed);
        let (name, which) = (&self.shared.name, self.shared.member_name(member));
        tracing::warn!(parity = name, lba, %status, "read failed on {which}");
    }

    pub(super) fn count_repair(&self, member: usize, lba: u64, nblocks: u64) {
        self.shared.members[member].repairs.fetch_add(1, Relaxed);
        let (name, which) = (&self.shared.name, self.shared.member_name(member));
        tracing::info!(parity = name, lba, nblocks, "rewrote blocks of {which} that could not be read");
    }
}
