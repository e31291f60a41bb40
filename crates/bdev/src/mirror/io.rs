//! The data path of a mirror: which leg is read, what becomes of a leg that fails, how writes reach all of them.

use super::format::LegState;
use super::regions::{DIRTY, NEEDS_SYNC};
use super::{COPY_BYTES, LegSet, Shared};
use crate::device::Channel;
use crate::flush_line::FlushEar;
use crate::io::{Done, Flags, Io, Lba, Op, Status};
use crate::parts::Parts;
use crate::split;
use crate::steps::{self, Medium};
use reactor::{Buf, IoFuture, Reactor, SgList};
use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

impl Shared {
    /// See [`BlockDevice::note_wrong`](crate::BlockDevice::note_wrong): nobody, where any leg may have answered.
    pub(super) fn note_wrong(&self, version: u8) -> Option<String> {
        let leg = self.in_sync().get((version as usize).checked_sub(1)?).copied()?;
        self.legs[leg].read_errors.fetch_add(1, Relaxed);
        self.legs[leg].repairs.fetch_add(1, Relaxed);
        Some(self.leg_name(leg))
    }
}

/// How blocks are made equal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Copying {
    /// All are written. Equal ones too: what reads well on a leg may be lost with the power, where it failed a flush of which a
    /// process that died has told nobody.
    All,
    /// And are durable at once.
    Durably,
    /// As far as legs in sync do not have them.
    WhatDiffers,
}

enum CopyError {
    Source(Status),
    Target,
}

pub(super) struct MirrorChannel(pub(super) Rc<Inner>);

pub(super) struct Inner {
    pub(super) shared: Arc<Shared>,
    pub(super) reactor: Rc<Reactor>,
    /// Of the legs that were there when this channel was opened, and of those that arrived since and were used.
    pub(super) channels: Vec<OnceCell<Rc<dyn Channel>>>,
    /// Reads under way on each leg through this channel.
    reading: Vec<Cell<u32>>,
    next_leg: Cell<usize>,
    ear: FlushEar,
}

/// Stands for the channel that could not be opened.
struct NoChannel;

impl Channel for NoChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        IoFuture::ready(io.done(Status::Gone))
    }
}

impl Channel for MirrorChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.0.shared.info().check(&io) {
            return IoFuture::ready(io.done(status));
        }
        if io.op == Op::Read {
            return self.0.start_read(io);
        }
        let inner = self.0.clone();
        match io.op {
            Op::Write | Op::WriteZeroes | Op::Unmap => IoFuture::steps(&self.0.reactor, async move {
                let _alone = inner.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await;
                inner.change(io).await
            }),
            // Who gives it up has not heard how it ended.
            Op::Flush => IoFuture::new(async move {
                let flushed = inner.ear.flush(&inner.reactor, inner.clone().flush_legs()).await;
                let (reactor, inner) = (inner.reactor.clone(), inner.clone());
                let ended = IoFuture::steps(&reactor, async move { inner.flushed(flushed).await }).await;
                io.done(steps::status_of(ended))
            }),
            _ => IoFuture::steps(&self.0.reactor, async move {
                let mut io = io;
                let status = steps::status_of(inner.perform(&mut io).await);
                io.done(status)
            }),
        }
    }

    fn abort(&self, tag: u64) {
        self.0.channels.iter().filter_map(OnceCell::get).for_each(|channel| channel.abort(tag));
    }
}

/// Counts a read under way on a leg.
struct Busy<'a>(&'a Cell<u32>);

impl Busy<'_> {
    fn new(count: &Cell<u32>) -> Busy<'_> {
        count.set(count.get() + 1);
        Busy(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Medium for Inner {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    fn block_size(&self) -> u32 {
        self.shared.opened.block_size
    }

    /// A read, or a write whose range is held. Reads do not repair: that would wait for a range that may be held here.
    async fn transfer(&self, io: Io) -> Done {
        if io.op == Op::Read { self.read(io, false).await } else { self.change(io).await }
    }
}

impl Inner {
    pub(super) fn new(shared: Arc<Shared>, reactor: Rc<Reactor>, channels: Vec<Option<Rc<dyn Channel>>>) -> Rc<Inner> {
        let reading = channels.iter().map(|_| Cell::new(0)).collect();
        let channels = channels.into_iter().map(|channel| channel.map_or_else(OnceCell::new, OnceCell::from)).collect();
        let ear = FlushEar::new(&shared.flushes);
        Rc::new(Inner { shared, reactor, channels, reading, next_leg: Cell::new(0), ear })
    }

    pub(super) fn channel(&self, leg: usize) -> &dyn Channel {
        match self.channels[leg].get() {
            Some(channel) => &**channel,
            None => self.open_late(leg),
        }
    }

    /// A channel to a leg that arrived after this channel was opened. Where none can be had the leg is as good as broken,
    /// and the first write says so.
    #[cold]
    fn open_late(&self, leg: usize) -> &dyn Channel {
        let device = self.shared.legs[leg].device.get().expect("an absent leg is called failed and not used");
        match device.open_channel(&self.reactor) {
            Ok(channel) => &**self.channels[leg].get_or_init(|| channel),
            Err(error) => {
                tracing::warn!(mirror = self.shared.name, %error, "{} cannot be used", self.shared.leg_name(leg));
                &NoChannel
            }
        }
    }

    async fn perform(&self, io: &mut Io) -> Result<(), Status> {
        let _alone = match io.op {
            Op::Compare | Op::Verify => {
                self.agree(io.lba.0, io.nblocks as u64).await?;
                None
            }
            Op::CompareAndWrite => {
                let alone = self.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await;
                self.agree_held(io.lba.0, io.nblocks as u64).await?;
                Some(alone)
            }
            Op::Copy => {
                self.agree(io.arg, io.nblocks as u64).await?;
                Some(self.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await)
            }
            _ => None,
        };
        match io.op {
            Op::Compare => steps::compare(self, io).await,
            Op::CompareAndWrite => steps::compare_and_write(self, io).await,
            Op::Copy => steps::copy(self, io).await,
            Op::Verify => self.verify(io).await,
            _ => Err(Status::Unsupported),
        }
    }

    // --- reading ----------------------------------------------------------------------------------------------------

    /// Most reads end at the first leg and leave nothing half done, so they may be dropped anywhere; those that also write
    /// (to make legs agree, to repair) may not.
    fn start_read(self: &Rc<Self>, io: Io) -> IoFuture<'_, Done> {
        if io.arg > 0 {
            let inner = self.clone();
            return IoFuture::steps(&self.reactor, async move { inner.read_version(io).await });
        }
        let (lba, lent) = (io.lba.0, io.bufs.is_empty());
        if self.shared.may_differ(lba, io.nblocks as u64) {
            let inner = self.clone();
            return IoFuture::steps(&self.reactor, async move {
                match inner.agree(lba, io.nblocks as u64).await {
                    Ok(()) => inner.read(io, true).await,
                    Err(status) => io.done(status),
                }
            });
        }
        let Some(leg) = self.choose(&LegSet::new()) else {
            return IoFuture::ready(io.done(Status::Gone));
        };
        let elsewhere = move |done| {
            let inner = self.clone();
            IoFuture::steps(&self.reactor, async move { inner.read_elsewhere(done, leg, lent).await })
        };
        match split::pass(self.channel(leg), lba + self.shared.data_start, io).try_ready() {
            Ok(done) if done.status.is_ok() => IoFuture::ready(done),
            Ok(done) => elsewhere(done),
            Err(future) => {
                let busy = Busy::new(&self.reading[leg]);
                IoFuture::new(async move {
                    let done = future.await;
                    drop(busy);
                    if done.status.is_ok() { done } else { elsewhere(done).await }
                })
            }
        }
    }

    /// What one of the legs in sync has: version 1 is that of the first of them. No other leg answers for it.
    async fn read_version(&self, mut io: Io) -> Done {
        let (lba, version, lent) = (io.lba.0, io.arg, io.bufs.is_empty());
        if let Err(status) = self.agree(lba, io.nblocks as u64).await {
            return io.done(status);
        }
        let Some(leg) = self.shared.in_sync().get(version as usize - 1).copied() else {
            return io.done(Status::Gone);
        };
        io.arg = 0;
        let mut done = split::pass(self.channel(leg), lba + self.shared.data_start, io).await;
        done.io.arg = version;
        if done.status.is_ok() { done } else { self.note_read_error(done.io, done.status, leg, lent).done(done.status) }
    }

    async fn read_elsewhere(&self, failed: Done, leg: usize, lent: bool) -> Done {
        let mut tried = LegSet::new();
        tried.push(leg);
        let io = self.note_read_error(failed.io, failed.status, leg, lent);
        self.read_on(io, true, tried, Some(failed.status)).await
    }

    fn note_read_error(&self, mut io: Io, status: Status, leg: usize, lent: bool) -> Io {
        if lent {
            io.bufs.clear();
        }
        self.count_read_error(io.lba.0, status, leg);
        io
    }

    fn count_read_error(&self, lba: u64, status: Status, leg: usize) {
        self.shared.legs[leg].read_errors.fetch_add(1, Relaxed);
        let (name, leg) = (&self.shared.name, self.shared.leg_name(leg));
        tracing::warn!(mirror = name, lba, %status, "read failed on {leg}");
    }

    fn count_repair(&self, lba: u64, nblocks: u64, leg: usize) {
        self.shared.legs[leg].repairs.fetch_add(1, Relaxed);
        let (name, leg) = (&self.shared.name, self.shared.leg_name(leg));
        tracing::info!(mirror = name, lba, nblocks, "rewrote blocks of {leg} that could not be read");
    }

    async fn read(&self, io: Io, repair: bool) -> Done {
        self.read_on(io, repair, LegSet::new(), None).await
    }

    async fn read_on(&self, mut io: Io, repair: bool, mut tried: LegSet, mut first_failure: Option<Status>) -> Done {
        let (lba, lent) = (io.lba, io.bufs.is_empty());
        while let Some(leg) = self.choose(&tried) {
            tried.push(leg);
            let busy = Busy::new(&self.reading[leg]);
            let done = split::pass(self.channel(leg), lba.0 + self.shared.data_start, io).await;
            drop(busy);
            io = done.io;
            if done.status.is_ok() {
                if repair && tried.len() > 1 {
                    self.repair_after_read(&io, &tried).await;
                }
                return io.done(Status::Ok);
            }
            io = self.note_read_error(io, done.status, leg, lent);
            first_failure.get_or_insert(done.status);
        }
        io.done(first_failure.unwrap_or(Status::Gone))
    }

    /// The leg in sync with the fewest reads under way.
    fn choose(&self, tried: &LegSet) -> Option<usize> {
        let shared = &self.shared;
        let in_sync = |leg: usize| shared.leg_state(leg) == LegState::InSync;
        let count = shared.legs.len();
        let start = self.next_leg.replace((self.next_leg.get() + 1) % count);
        let legs = (0..count).map(|step| (start + step) % count).filter(|leg| in_sync(*leg) && !tried.contains(leg));
        legs.min_by_key(|leg| self.reading[*leg].get())
    }

    /// Writes what one leg has to the legs that could not read it.
    async fn repair_after_read(&self, io: &Io, tried: &LegSet) {
        if let Some((good, bad)) = tried.split_last() {
            for leg in bad {
                let _ = self.repair(io.lba.0, io.nblocks as u64, *good, *leg).await;
            }
        }
    }

    /// A leg that can neither be read nor written is called failed.
    async fn repair(&self, lba: u64, nblocks: u64, good: usize, bad: usize) -> Result<(), Status> {
        let copied = {
            let _alone = self.shared.ranges.lock(lba, nblocks, true).await;
            // While this waited, a write may have gone past the good leg, which is stale then.
            if self.shared.leg_state(good) != LegState::InSync {
                return Err(Status::ReadError);
            }
            self.copy_unreadable(lba, nblocks, good, bad).await
        };
        match copied {
            Ok(()) => {
                self.count_repair(lba, nblocks, bad);
                Ok(())
            }
            Err(CopyError::Source(status)) => Err(status),
            Err(CopyError::Target) => Box::pin(self.fail_legs(&[bad])).await,
        }
    }

    /// Blocks that are copied or looked at together.
    fn copy_blocks(&self) -> u64 {
        let info = &self.shared.opened;
        (COPY_BYTES as u32 / info.block_size).clamp(1, info.max_io_blocks) as u64
    }

    /// Copies blocks from one leg to another; the caller holds the range.
    async fn copy_range(&self, lba: u64, nblocks: u64, source: usize, target: usize) -> Result<(), CopyError> {
        let (block_size, mut at) = (self.shared.block_bytes(), lba);
        while at < lba + nblocks {
            let count = (lba + nblocks - at).min(self.copy_blocks()) as u32;
            let mut bufs = SgList::new();
            bufs.push(steps::alloc(&self.reactor, count as usize * block_size).await.map_err(CopyError::Source)?);
            let place = Lba(at + self.shared.data_start);
            let done = self.channel(source).submit(Io::read(place, count, bufs)).await;
            done.status.check().map_err(CopyError::Source)?;
            let done = self.channel(target).submit(Io::write(place, count, done.io.bufs)).await;
            done.status.check().map_err(|_| CopyError::Target)?;
            at += count as u64;
        }
        Ok(())
    }

    /// As [`copy_range`](Self::copy_range), of the blocks alone that the target still cannot read: the source may have rot in
    /// the others, which nothing here can tell.
    async fn copy_unreadable(&self, lba: u64, nblocks: u64, source: usize, target: usize) -> Result<(), CopyError> {
        for at in lba..lba + nblocks {
            let mut bufs = SgList::new();
            let block_size = self.shared.block_bytes();
            bufs.push(steps::alloc(&self.reactor, block_size).await.map_err(CopyError::Source)?);
            let read = Io::read(Lba(at + self.shared.data_start), 1, bufs);
            if !self.channel(target).submit(read).await.status.is_ok() {
                self.copy_range(at, 1, source, target).await?;
            }
        }
        Ok(())
    }

    // --- agreeing ---------------------------------------------------------------------------------------------------

    /// Makes blocks equal on all legs in sync, if they may differ. Whoever reads them afterwards tells a value that
    /// stays, whichever leg fails next and whether or not the power does.
    async fn agree(&self, lba: u64, nblocks: u64) -> Result<(), Status> {
        if !self.shared.may_differ(lba, nblocks) {
            return Ok(());
        }
        let _alone = self.shared.ranges.lock(lba, nblocks, true).await;
        self.agree_held(lba, nblocks).await
    }

    async fn agree_held(&self, lba: u64, nblocks: u64) -> Result<(), Status> {
        if !self.shared.may_differ(lba, nblocks) {
            return Ok(());
        }
        // A leg that is called failed in memory only would be asked again after a crash.
        Box::pin(self.record()).await?;
        Box::pin(self.equalise(lba, nblocks, Shared::in_sync, Copying::Durably)).await
    }

    /// Reads blocks from a leg in sync and writes them to the other `targets`; the caller holds the range.
    pub(super) async fn equalise(
        &self,
        lba: u64,
        nblocks: u64,
        targets: fn(&Shared) -> LegSet,
        how: Copying,
    ) -> Result<(), Status> {
        let flags = if how == Copying::Durably { Flags::FUA } else { Flags::NONE };
        let step = self.copy_blocks();
        let mut at = lba;
        while at < lba + nblocks {
            let count = step.min(lba + nblocks - at);
            let (source, unreadable, mut bufs) = self.read_any(at, count).await?;
            let mut failed = LegSet::new();
            for target in targets(&self.shared).into_iter().filter(|leg| *leg != source) {
                if how == Copying::WhatDiffers && self.holds(target, at, &bufs).await {
                    continue;
                }
                let write = Io { flags, ..Io::write(Lba(at + self.shared.data_start), count as u32, bufs) };
                let done = self.channel(target).submit(write).await;
                bufs = done.io.bufs;
                if !done.status.is_ok() {
                    failed.push(target);
                } else if unreadable.contains(&target) {
                    self.count_repair(at, count, target);
                }
            }
            if !failed.is_empty() {
                self.fail_legs(&failed).await?;
            }
            at += count;
        }
        Ok(())
    }

    /// Whether a leg in sync has these blocks. One that is being caught up mostly lacks them.
    async fn holds(&self, leg: usize, lba: u64, bufs: &SgList) -> bool {
        if self.shared.leg_state(leg) != LegState::InSync {
            return false;
        }
        let bytes: usize = bufs.iter().map(|buf| buf.as_slice().len()).sum();
        let Ok(buf) = steps::alloc(&self.reactor, bytes).await else { return false };
        let nblocks = (bytes / self.shared.block_bytes()) as u32;
        let read = Io::read(Lba(lba + self.shared.data_start), nblocks, SgList::from_iter([buf]));
        let done = self.channel(leg).submit(read).await;
        let same = || done.io.bufs.iter().zip(bufs).all(|(one, other)| one.as_slice() == other.as_slice());
        done.status.is_ok() && done.io.bufs.len() == bufs.len() && same()
    }

    /// Blocks of the first leg in sync that can read them, and the legs before it that could not. Every one of them has
    /// all that was acknowledged.
    async fn read_any(&self, lba: u64, nblocks: u64) -> Result<(usize, LegSet, SgList), Status> {
        let (mut unreadable, mut first_failure) = (LegSet::new(), None);
        for leg in self.shared.in_sync() {
            let mut bufs = SgList::new();
            bufs.push(steps::alloc(&self.reactor, nblocks as usize * self.shared.block_bytes()).await?);
            let read = Io::read(Lba(lba + self.shared.data_start), nblocks as u32, bufs);
            let done = self.channel(leg).submit(read).await;
            if done.status.is_ok() {
                return Ok((leg, unreadable, done.io.bufs));
            }
            self.count_read_error(lba, done.status, leg);
            first_failure.get_or_insert(done.status);
            unreadable.push(leg);
        }
        Err(first_failure.unwrap_or(Status::Gone))
    }

    /// Reads the blocks on every leg, repairing those that cannot. Which of legs that differ is right is not known here:
    /// that is [`Status::Corrupt`].
    async fn verify(&self, io: &Io) -> Result<(), Status> {
        let step = self.copy_blocks();
        let mut at = io.lba.0;
        while at < io.end() {
            let count = step.min(io.end() - at);
            self.verify_piece(at, count).await?;
            at += count;
        }
        Ok(())
    }

    async fn verify_piece(&self, lba: u64, nblocks: u64) -> Result<(), Status> {
        let (mut good, mut bad, mut status) = (None::<(usize, Buf)>, LegSet::new(), Status::Gone);
        let mut other = None;
        // Writes wait: while one is under way the legs differ.
        let held = self.shared.ranges.lock(lba, nblocks, false).await;
        for leg in self.shared.in_sync() {
            let bytes = nblocks as usize * self.shared.block_bytes();
            let bufs = SgList::from_iter([steps::alloc(&self.reactor, bytes).await?]);
            let read = Io::read(Lba(lba + self.shared.data_start), nblocks as u32, bufs);
            let mut done = self.channel(leg).submit(read).await;
            match (done.status, done.io.bufs.pop()) {
                (Status::Ok, Some(found)) => match &good {
                    None => good = Some((leg, found)),
                    Some((_, first)) if first.as_slice() != found.as_slice() => other = Some(leg),
                    Some(_) => {}
                },
                (failed, _) => {
                    self.shared.legs[leg].read_errors.fetch_add(1, Relaxed);
                    status = failed;
                    bad.push(leg);
                }
            }
        }
        // A write that has failed meanwhile is made good before anything is read.
        let differs = other.filter(|_| !self.shared.may_differ(lba, nblocks));
        drop(held);
        let Some((good, _)) = good else { return Err(status) };
        if let Some(leg) = differs {
            let (name, legs) = (&self.shared.name, [good, leg].map(|leg| self.shared.leg_name(leg)));
            tracing::warn!(mirror = name, lba, nblocks, "{} and {} have different data", legs[0], legs[1]);
            return Err(Status::Corrupt);
        }
        for leg in bad {
            self.repair(lba, nblocks, good, leg).await?;
        }
        Ok(())
    }

    // --- writing ----------------------------------------------------------------------------------------------------

    /// A write, write-zeroes or unmap on all active legs; the caller holds the range.
    async fn change(&self, mut io: Io) -> Done {
        let regions = self.shared.regions.of(io.lba.0, io.nblocks as u64);
        let mut clean = false;
        for region in regions.clone() {
            clean |= self.shared.regions[region].fetch_add(1, AcqRel) & DIRTY == 0;
        }
        // Boxed, like every rare path below: metadata buffers would make the future of each write too large to recycle.
        let marked = if clean { Box::pin(self.mark_dirty(regions.clone())).await } else { Ok(()) };
        let status = match marked {
            Ok(()) => self.write_legs(&mut io).await,
            Err(status) => status,
        };
        for region in regions {
            self.shared.regions[region].fetch_sub(1, AcqRel);
        }
        self.clean_if_due();
        io.done(status)
    }

    async fn write_legs(&self, io: &mut Io) -> Status {
        let legs = self.shared.active();
        let mut parts = Parts::default();
        let mut original = std::mem::take(&mut io.bufs);
        for (nth, leg) in legs.iter().enumerate() {
            let last = nth + 1 == legs.len();
            let bufs = if last {
                std::mem::take(&mut original)
            } else {
                original.iter_mut().map(|buf| buf.duplicate()).collect()
            };
            // Without the tag: a leg that cut the write short, at an abort, would count as failed.
            let (op, flags, stream, nblocks, tag) = (io.op, io.flags, io.stream, io.nblocks, 0);
            let lba = Lba(io.lba.0 + self.shared.data_start);
            parts.push(self.channel(*leg).submit(Io { op, flags, stream, nblocks, lba, arg: 0, tag, bufs }));
        }
        let (mut failed, mut status) = (LegSet::new(), Status::Ok);
        for (leg, done) in legs.iter().zip(parts.join().await) {
            io.bufs = done.io.bufs;
            if !done.status.is_ok() {
                let (name, which) = (&self.shared.name, self.shared.leg_name(*leg));
                tracing::warn!(mirror = name, lba = io.lba.0, status = %done.status, "write failed on {which}");
                failed.push(*leg);
                status = done.status;
            }
        }
        io.bufs.iter_mut().for_each(|buf| {
            buf.try_unshare();
        });
        let survives = |leg: &usize| !failed.contains(leg) && self.shared.leg_state(*leg) == LegState::InSync;
        let outcome = if failed.is_empty() {
            self.record().await
        } else if legs.iter().any(survives) {
            Box::pin(self.fail_legs(&failed)).await
        } else {
            Err(status)
        };
        if outcome.is_err() {
            // The write failed; where it went, the legs that count now, or after a crash, may differ.
            self.distrust(io.lba.0, io.nblocks as u64);
        }
        steps::status_of(outcome)
    }

    fn distrust(&self, lba: u64, nblocks: u64) {
        for region in self.shared.regions.of(lba, nblocks) {
            self.shared.regions[region].fetch_or(NEEDS_SYNC, AcqRel);
        }
    }

    /// For the mirror itself. Its users hear of a failure with their next flush.
    pub(super) async fn flush(self: &Rc<Self>) -> Result<(), Status> {
        let flushed = self.shared.flushes.run(&self.reactor, self.clone().flush_legs()).await;
        self.flushed(flushed.map(drop)).await
    }

    /// Flushes the legs, and notes which of them may lose what was acknowledged. An error when all in sync may. Does not wait for
    /// anything but the legs: others who flush wait for this one, and may have the turn.
    pub(super) async fn flush_legs(self: Rc<Self>) -> Result<(), Status> {
        let legs = self.shared.active();
        let mut parts = Parts::default();
        legs.iter().for_each(|leg| parts.push(self.channel(*leg).submit(Io::flush())));
        let (mut failed, mut status) = (LegSet::new(), Status::Ok);
        for (leg, done) in legs.iter().zip(parts.join().await) {
            if !done.status.is_ok() {
                self.shared.legs[*leg].is_unflushed.store(true, Release);
                failed.push(*leg);
                status = done.status;
            }
        }
        let lost = !failed.is_empty() && self.shared.in_sync().iter().all(|leg| failed.contains(leg));
        if lost { Err(status) } else { Ok(()) }
    }

    /// A flush has ended so. Before anybody is told, legs that could not are called failed where there are others.
    async fn flushed(&self, ended: Result<(), Status>) -> Result<(), Status> {
        let recorded = match self.shared.unflushed().is_empty() {
            true => self.record().await,
            false => Box::pin(self.fail_unflushed()).await,
        };
        ended.and(recorded)
    }
}
