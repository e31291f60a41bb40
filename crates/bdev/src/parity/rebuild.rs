//! Writing a replacement: the head, then row by row what the others say its chunk must be.

use super::format::MemberState;
use super::links::Inner;
use super::recover::is_lost;
use super::{COPY_BYTES, ParityDevice};
use crate::device::DeviceError;
use crate::io::{Io, Lba, Status};
use crate::pace::{PAUSE_NS, Pace};
use crate::steps;
use base::Rng;
use reactor::{Buf, Reactor, SgList};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering::*;

const SECOND_NS: u64 = 1_000_000_000;
/// A reactor that stops is noticed within it.
const PAUSE_MAX_NS: u64 = SECOND_NS / 10;
/// Between two attempts at blocks that another member cannot read.
const LOST_PAUSES_NS: [u64; 3] = [SECOND_NS / 20, SECOND_NS / 5, SECOND_NS];
/// Longest time until a rebuild that has come to a halt is tried again; the first is a second.
const BACKOFF_MAX_NS: u64 = 30 * SECOND_NS;
/// Longest time between two records of how far a rebuild has got.
const NOTE_INTERVAL_NS: u64 = 30 * SECOND_NS;

impl ParityDevice {
    /// Writes what the member that is being rebuilt lacks, while the device is in use, and ends with it in sync; at once when
    /// none is. Watch [`status`](Self::status) for progress; a reactor that stops ends it early, and a later call goes on.
    pub async fn rebuild(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        let outcome = self.inner(reactor).rebuild().await;
        outcome.map_err(|status| DeviceError::Io { device: self.shared.name.clone(), action: "rebuild", status })
    }

    /// Starts [`rebuild`](Self::rebuild) if there is anything to do, as a task of this reactor. What stands in its way is
    /// waited for. It ends with the device.
    pub fn rebuild_in_background(&self, reactor: &Rc<Reactor>) {
        let Some(member) = self.shared.rebuilding() else { return };
        tracing::info!(parity = self.shared.name, "rebuilding {}", self.shared.member_name(member));
        let inner = self.inner(reactor);
        reactor.spawn(async move { inner.rebuild_until_done(member).await });
    }
}

impl Inner {
    /// Rebuilds a member, again and again while that fails for what may pass.
    async fn rebuild_until_done(self: &Rc<Self>, member: usize) {
        let (shared, joins) = (&self.shared, self.joins(member));
        let (mut pause_ns, name) = (SECOND_NS, shared.member_name(member));
        loop {
            let before = shared.rebuilt_rows.load(Acquire);
            let outcome = self.rebuild().await;
            if self.is_ending() {
                return;
            }
            let Err(status) = outcome else {
                tracing::info!(parity = shared.name, "{name} has been rebuilt");
                return;
            };
            if !self.is_rebuilding(member, joins) {
                tracing::error!(parity = shared.name, %status, "{name} could not be rebuilt: it failed");
                return;
            }
            if shared.rebuilt_rows.load(Acquire) > before {
                pause_ns = SECOND_NS;
            }
            tracing::warn!(parity = shared.name, %status, pause_ns, "the rebuild of {name} has come to a halt");
            self.rest(pause_ns).await;
            pause_ns = (pause_ns * 2).min(BACKOFF_MAX_NS);
        }
    }

    /// Whether nothing is to be rebuilt any more.
    pub(super) fn is_ending(&self) -> bool {
        self.reactor.is_stopping() || self.shared.closing.load(Acquire)
    }

    /// Waits, unless all ends.
    pub(super) async fn rest(&self, pause_ns: u64) {
        let until = self.reactor.clock_ns().saturating_add(pause_ns);
        while self.reactor.clock_ns() < until && !self.is_ending() {
            self.reactor.sleep_ns((until - self.reactor.clock_ns().min(until)).min(PAUSE_MAX_NS)).await;
        }
    }

    async fn rebuild(self: &Rc<Self>) -> Result<(), Status> {
        let shared = &self.shared;
        let _turn = shared.rebuild_turn.lock(0, 1, true).await;
        if self.is_ending() {
            return Ok(());
        }
        let Some(member) = shared.rebuilding() else { return Ok(()) };
        let outcome = self.rebuild_member(member).await;
        shared.rebuild_bytes_per_s.store(0, Relaxed);
        *shared.halted.lock().expect("nothing panics while holding a reason") = outcome.err();
        outcome
    }

    async fn rebuild_member(self: &Rc<Self>, member: usize) -> Result<(), Status> {
        let shared = &self.shared;
        let joins = self.joins(member);
        self.rebuild_head().await?;
        let (mut noted_row, mut noted_ns) = (shared.rebuilt_rows.load(Acquire), self.reactor.clock_ns());
        let mut pace = Pace::new(noted_ns, PAUSE_NS);
        let step = (COPY_BYTES / self.chunk_bytes()).max(1) as u64;
        while shared.rebuilt_rows.load(Acquire) < shared.geometry().rows {
            if self.reactor.is_stopping() {
                return self.note_rebuilt(member, joins).await;
            }
            if self.is_ending() {
                return Ok(());
            }
            let first = shared.rebuilt_rows.load(Acquire);
            let rows = first..(first + step).min(shared.geometry().rows);
            self.rebuild_step(member, joins, rows.clone()).await?;
            *shared.halted.lock().expect("nothing panics while holding a reason") = None;
            let bytes = (rows.end - rows.start) * self.chunk_bytes() as u64;
            pace.keep(&self.reactor, bytes, &shared.rebuild_rate, || self.is_ending()).await;
            shared.rebuild_bytes_per_s.store(pace.bytes_per_s(self.reactor.clock_ns()), Relaxed);
            let behind = (rows.end - noted_row) * self.chunk_bytes() as u64;
            if behind >= shared.note_bytes || self.reactor.clock_ns() - noted_ns >= NOTE_INTERVAL_NS {
                self.note_rebuilt(member, joins).await?;
                (noted_row, noted_ns) = (rows.end, self.reactor.clock_ns());
            }
        }
        self.flush().await?;
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        self.check_rebuilding(member, joins)?;
        self.set_state(member, MemberState::InSync);
        self.write_superblocks().await
    }

    fn is_rebuilding(&self, member: usize, joins: u32) -> bool {
        self.shared.state(member) == MemberState::Rebuilding && self.joins(member) == joins
    }

    /// With what is about to be written held: the members may belong to others once the device is closed.
    fn check_rebuilding(&self, member: usize, joins: u32) -> Result<(), Status> {
        match self.shared.closing.load(Acquire) {
            true => Err(Status::Aborted),
            false if !self.is_rebuilding(member, joins) => Err(Status::WriteError),
            false => Ok(()),
        }
    }

    /// A member that is written has the head when it has been compared once: writes reach it since it was taken in.
    async fn rebuild_head(&self) -> Result<(), Status> {
        let (head, step) = (self.shared.geometry().head, (COPY_BYTES / self.shared.block_size()) as u64);
        let mut at = 0;
        while at < head {
            let count = step.min(head - at);
            let _alone = self.shared.ranges.lock(at, count, true).await;
            if self.is_ending() {
                return Err(Status::Aborted);
            }
            self.equalise(at, count).await?;
            at += count;
            self.reactor.yield_now().await;
        }
        Ok(())
    }

    /// Writes rows of a member. What another one cannot read is tried again a few times, without holding anything, before it
    /// counts as lost.
    async fn rebuild_step(&self, member: usize, joins: u32, rows: Range<u64>) -> Result<(), Status> {
        for pause_ns in LOST_PAUSES_NS {
            match self.rebuild_rows(member, joins, rows.clone(), false).await {
                Err(status) if is_lost(status) => self.rest(pause_ns).await,
                other => return other,
            }
            // The pause may have been cut short.
            if self.is_ending() {
                return Err(Status::Aborted);
            }
        }
        self.rebuild_rows(member, joins, rows, true).await
    }

    async fn rebuild_rows(&self, member: usize, joins: u32, rows: Range<u64>, last: bool) -> Result<(), Status> {
        let shared = &self.shared;
        let geometry = shared.geometry();
        let count = rows.end - rows.start;
        let (start, blocks) = (geometry.row_start(rows.start), count * geometry.row_blocks());
        let _alone = shared.ranges.lock(start, blocks, true).await;
        self.check_rebuilding(member, joins)?;
        let (at, nblocks) = (geometry.chunk_at(rows.start), count * geometry.chunk);
        let sum = match self.sum_of_others(rows.start, at, nblocks, member).await {
            Ok(sum) => sum,
            Err(status) if !last || !is_lost(status) => return Err(status),
            Err(_) => self.sum_by_blocks(rows.start, at, nblocks, member).await?,
        };
        let write = Io::write(Lba(at), nblocks as u32, SgList::from_iter([sum]));
        let status = self.channel(member).submit(write).await.status;
        if !status.is_ok() {
            self.judge(&[member], status).await?;
            return Err(status);
        }
        // Only now, and with the rows held: reads may be answered by the member from here on. Unless a failed flush has made
        // them begin again.
        let _ = shared.rebuilt_rows.compare_exchange(rows.start, rows.end, AcqRel, Relaxed);
        Ok(())
    }

    /// The same block by block, where some cannot be read on another member: what these were is lost. In their places comes
    /// what no checksum confirms.
    async fn sum_by_blocks(&self, row: u64, at: u64, nblocks: u64, member: usize) -> Result<Buf, Status> {
        let block_size = self.shared.block_size();
        let mut sums = steps::alloc(&self.reactor, nblocks as usize * block_size).await?;
        for (block, target) in (at..).zip(sums.as_mut_slice().chunks_exact_mut(block_size)) {
            match self.sum_of_others(row, block, 1, member).await {
                Ok(sum) => target.copy_from_slice(sum.as_slice()),
                Err(status) if !is_lost(status) => return Err(status),
                Err(status) => {
                    self.shared.lost_rows.insert(row + (block - at) / self.shared.geometry().chunk);
                    Rng::new(block).fill(target);
                    self.shared.lost_blocks.fetch_add(1, Relaxed);
                    let (name, which) = (&self.shared.name, self.shared.member_name(member));
                    tracing::error!(parity = name, block, %status, "a block of {which} cannot be rebuilt");
                }
            }
        }
        Ok(sums)
    }

    /// Records how far it has got, so that a restart goes on from there.
    async fn note_rebuilt(self: &Rc<Self>, member: usize, joins: u32) -> Result<(), Status> {
        let rows = self.shared.rebuilt_rows.load(Acquire);
        self.flush().await?;
        let _turn = self.shared.meta_turn.lock(0, 1, true).await;
        self.check_rebuilding(member, joins)?;
        {
            let mut superblock = self.shared.superblock.lock().expect("nothing panics while holding the superblock");
            superblock.members[member].rebuilt_rows = rows;
        }
        self.write_superblocks().await
    }
}
