//! What goes to flash in the background: survivors are read, stages are written. One task at a time, on the reactor that had
//! the work first.

use super::format::{Header, block_crc};
use super::patience::WRITE_PATIENCE_NS;
use super::ring::{NO_BLOCK, Outgoing, Survivor};
use super::trust::Ticket;
use super::{Inner, Shared, State};
use crate::device::Channel;
use crate::io::{Io, Lba, Status};
use crate::parts::Parts;
use crate::steps;
use base::Errno;
use reactor::{Buf, IoFuture, SgList};
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of one write of a segment, and of one read of survivors.
const PIECE_BYTES: usize = 256 << 10;

/// The task, for as long as it lives.
struct Pumping(Arc<Shared>);

impl Drop for Pumping {
    fn drop(&mut self) {
        self.0.with(|state| state.is_pumping = false);
    }
}

enum Work {
    Survivors(Vec<(Survivor, Ticket)>),
    Stage,
}

impl State {
    /// Whether something is to be read again or written, and may be. A stage of which a power cut may take back something from
    /// the slow device waits for a flush, until its place is needed. The cache does not flush for that: were it told of a
    /// failure, the device would not tell the user any more.
    fn has_ready_work(&self, now_ns: u64) -> bool {
        if !self.uses_flash(now_ns) || self.is_clean || !self.ring.has_work() {
            return false;
        }
        let is_unflushed = |outgoing: Outgoing| {
            let mut blocks = outgoing.entries.iter().filter(|(lba, _)| *lba != NO_BLOCK);
            blocks.any(|(lba, _)| self.trust.is_unflushed(*lba, outgoing.writes))
        };
        self.ring.has_survivors() || self.ring.is_crowded() || !self.ring.outgoing().is_some_and(is_unflushed)
    }
}

impl Inner {
    /// Sees to what there is to do.
    pub(super) fn kick(self: &Rc<Self>) {
        let now_ns = self.reactor.now_ns();
        let begins = self.shared.with(|state| {
            let begins = !state.is_pumping && state.has_ready_work(now_ns);
            state.is_pumping |= begins;
            begins
        });
        if begins {
            let (inner, pumping) = (self.clone(), Pumping(self.shared.clone()));
            self.reactor.spawn(async move {
                while let Some(work) = inner.next_work() {
                    match work {
                        Work::Survivors(survivors) => inner.readmit(survivors).await,
                        Work::Stage => inner.write_stage().await,
                    }
                }
                drop(pumping);
                // What came between the last look and now.
                inner.kick();
            });
        }
    }

    fn next_work(&self) -> Option<Work> {
        let now_ns = self.reactor.clock_ns();
        self.shared.with(|state| {
            if !state.has_ready_work(now_ns) {
                return None;
            }
            let survivors = state.ring.take_survivors();
            if survivors.is_empty() {
                return Some(Work::Stage);
            }
            let with_ticket = |survivor: Survivor| Some((survivor, state.trust.ticket(survivor.lba)?));
            Some(Work::Survivors(survivors.into_iter().filter_map(with_ticket).collect()))
        })
    }

    // --- survivors --------------------------------------------------------------------------------------------------

    async fn readmit(self: &Rc<Self>, survivors: Vec<(Survivor, Ticket)>) {
        let most = PIECE_BYTES / self.shared.info.block_size as usize;
        let mut rest = &survivors[..];
        while let Some((first, _)) = rest.first() {
            let follows = |nth: usize| rest[nth].0.slot as usize == first.slot as usize + nth;
            let is_same_place =
                |nth: usize| self.shape().place_of(rest[nth].0.slot) == self.shape().place_of(first.slot);
            let count = (1..rest.len().min(most)).find(|nth| !follows(*nth) || !is_same_place(*nth));
            let count = count.unwrap_or(rest.len().min(most));
            let (run, after) = rest.split_at(count);
            rest = after;
            if self.readmit_run(run).await.is_err() {
                return;
            }
        }
    }

    /// Neighbours on flash; an error when reading more makes no sense.
    async fn readmit_run(self: &Rc<Self>, run: &[(Survivor, Ticket)]) -> Result<(), Status> {
        let Some(flash) = &self.flash else { return Err(Status::Gone) };
        let block_size = self.shared.info.block_size as usize;
        let buf = steps::alloc(&self.reactor, run.len() * block_size).await?;
        let at = self.shared.ring_start + self.shape().block_of(run[0].0.slot);
        let (flash, read) = (flash.clone(), Io::read(Lba(at), run.len() as u32, SgList::from_iter([buf])));
        let asked = IoFuture::steps(&self.reactor, async move { flash.submit(read).await });
        let answer = self.ask(asked, WRITE_PATIENCE_NS, |done| done.status).await;
        let done = answer.ok_or(Status::Os(Errno::ETIMEDOUT))?;
        if !done.status.is_ok() {
            self.flash_failed(done.status, "read", |counts| counts.read_errors += 1);
            return Err(done.status);
        }
        let mut data = vec![0; run.len() * block_size];
        steps::sg_read_at(&done.io.bufs, 0, &mut data);
        let now_ns = self.reactor.clock_ns();
        self.shared.with(|state| {
            for ((survivor, ticket), data) in run.iter().zip(data.chunks_exact(block_size)) {
                if block_crc(survivor.lba, data) != survivor.crc {
                    state.ring.counts.read_errors += 1;
                } else if state.trust.is_current(survivor.lba, *ticket)
                    && state.ring.admit(survivor.lba, survivor.crc, data, state.trust.writes(), now_ns)
                {
                    state.ring.counts.readmitted += 1;
                }
            }
        });
        Ok(())
    }

    // --- stages -----------------------------------------------------------------------------------------------------

    async fn write_stage(self: &Rc<Self>) {
        let written = self.try_write_stage().await;
        if let Err(status) = written {
            tracing::warn!(device = self.shared.name, %status, "a segment of the cache was not written; its blocks are dropped");
        }
        self.shared.with(|state| state.ring.finish(written.is_ok()));
    }

    async fn try_write_stage(self: &Rc<Self>) -> Result<(), Status> {
        let Some(flash) = &self.flash else { return Err(Status::Gone) };
        let (seq, reserved_to) = self.shared.with(|state| {
            let seq = state.ring.outgoing().map_or(0, |outgoing| outgoing.seq);
            (seq, state.trust.reserved_to)
        });
        if seq > reserved_to {
            let ahead = self.shared.with(|state| state.trust.ahead());
            self.write_anchor(|anchor| anchor.reserved_to = anchor.reserved_to.max(seq + ahead)).await?;
        }
        let Some(pieces) = self.pieces().await? else { return Ok(()) };
        let at = self.shared.ring_start + seq % self.shape().segments * self.shape().segment_blocks;
        let (flash, block_size) = (flash.clone(), self.shared.info.block_size);
        let asked = IoFuture::steps(&self.reactor, write_pieces(flash, block_size, at, pieces));
        match self.ask(asked, WRITE_PATIENCE_NS, |status| *status).await {
            Some(Status::Ok) => {
                self.flash_works();
                Ok(())
            }
            None => Err(Status::Os(Errno::ETIMEDOUT)),
            Some(status) => {
                self.flash_failed(status, "write", |counts| counts.write_errors += 1);
                Err(status)
            }
        }
    }

    /// The bytes of the oldest stage, as it is now, paid for; `None` where nothing of it is left.
    async fn pieces(&self) -> Result<Option<Vec<Buf>>, Status> {
        let (shape, flash_max) =
            (self.shape(), self.shared.flash.as_ref().map_or(1, |flash| flash.info().max_io_blocks));
        let piece_bytes = (PIECE_BYTES / shape.block_size as usize).min(flash_max as usize) * shape.block_size as usize;
        let header_bytes = shape.header_blocks as usize * shape.block_size as usize;
        let len = header_bytes + self.shared.with(|state| state.ring.outgoing_data().len());
        let mut pieces = Vec::with_capacity(len.div_ceil(piece_bytes));
        let mut left = len;
        while left > 0 {
            pieces.push(steps::alloc(&self.reactor, left.min(piece_bytes)).await?);
            left -= left.min(piece_bytes);
        }
        let mut header = vec![0; header_bytes];
        let now_ns = self.reactor.clock_ns();
        self.shared.with(|state| {
            // What a power cut may take back from the slow device must not stay here.
            let Some(Outgoing { writes, entries, .. }) = state.ring.outgoing() else { return Ok(None) };
            for (lba, _) in entries {
                if lba != NO_BLOCK && state.trust.is_unflushed(lba, writes) {
                    state.ring.index.remove(lba);
                }
            }
            let Some(outgoing) = state.ring.outgoing() else { return Ok(None) };
            let blocks: Vec<u64> =
                outgoing.entries.iter().map(|(lba, _)| *lba).filter(|lba| *lba != NO_BLOCK).collect();
            if blocks.is_empty() {
                return Ok(None);
            }
            // From here on a write to these regions has to leave a mark.
            blocks.iter().for_each(|lba| state.trust.has_content(outgoing.seq, *lba));
            state.ring.charge(len as u64, now_ns);
            let Outgoing { seq, entries, .. } = outgoing;
            Header { seq, written_total: state.ring.written_total, entries }.encode(self.shared.flash_id, &mut header);
            let data = state.ring.outgoing_data();
            steps::sg_write_at(&mut pieces, 0, &header);
            steps::sg_write_at(&mut pieces, header_bytes, data);
            Ok(Some(pieces))
        })
    }
}

/// Writes a segment from `at` on; how that ended.
async fn write_pieces(flash: Rc<dyn Channel>, block_size: u32, mut at: u64, pieces: Vec<Buf>) -> Status {
    let mut parts = Parts::default();
    for piece in pieces {
        let blocks = piece.len() as u32 / block_size;
        parts.push(flash.submit(Io::write(Lba(at), blocks, SgList::from_iter([piece]))));
        at += blocks as u64;
    }
    parts.join().await.map(|done| done.status).find(|status| !status.is_ok()).unwrap_or(Status::Ok)
}
