//! Stripes that are not durable yet. After a flush that failed, what it covered may be lost although it can be read, and
//! later flushes succeed: those stripes are written again, in their places, as they read. Nothing durable leads to them, and the next root
//! may, even if the last of their blocks has moved since: its pages are written before this. One that is not what was written is lost; of
//! that, the log has what it still has.
//!
//! Over zones they cannot be written again. Their bands take no more and are drained first, what the log still has is destaged
//! anew, and until nothing is needed in those bands, as of the beginning of a checkpoint, no flush succeeds.
//!
//! The blocks of a stripe cannot be had from elsewhere: what deltas were over is gone from the index, and what was collected
//! from its old place.

use super::{BandAt, BandDefect, Bands};
use crate::format::stripe::StripeHead;
use crate::meta::stored_crc;
use crate::units::BLOCK_BYTES;
use base::crc32c;
use bdev::Status;
use reactor::Buf;

/// A stripe that cannot be read is passed over after so many attempts, the writes of its device being tried again for some
/// 30 s: who reads it finds out by its checksums.
const TRIES_MAX: u32 = 150;

/// Where a stripe is.
#[derive(Clone, Copy)]
struct Written {
    at: BandAt,
    blocks: u32,
    /// That of its header.
    sequence: u64,
    /// Attempts to read it again.
    tries: u32,
}

#[derive(Default)]
pub(super) struct Unflushed {
    /// Since the last flush that succeeded.
    written: Vec<Written>,
    /// Before or during one that failed.
    distrusted: Vec<Written>,
    failures: u64,
    /// Flushes that have waited for bands to be drained while nothing was.
    waits: u32,
    /// Blocks that were needed there then.
    waits_for: u64,
    /// A stripe was found that is not what was written.
    is_lost: bool,
}

impl Bands {
    /// For [`note_written`](Self::note_written).
    pub(super) fn flush_failures(&self) -> u64 {
        self.unflushed.borrow().failures
    }

    /// A stripe has been written; when that began, so many flushes had failed.
    pub(super) fn note_written(&self, at: BandAt, blocks: u32, sequence: u64, failures: u64) {
        let unflushed = &mut *self.unflushed.borrow_mut();
        if failures != unflushed.failures && self.medium.has_zones() {
            unflushed.is_lost = true;
            return self.distrust(at);
        }
        let list = if failures == unflushed.failures { &mut unflushed.written } else { &mut unflushed.distrusted };
        list.push(Written { at, blocks, sequence, tries: 0 });
    }

    /// Makes everything that has been written durable. One at a time: a band that is written to again here must not be freed by
    /// a checkpoint beside this.
    pub(crate) async fn flush(&self) -> Result<(), Status> {
        if !self.medium.is_cached {
            self.unflushed.borrow_mut().written.clear();
            return Ok(());
        }
        self.wait_for_suspects()?;
        self.write_again().await?;
        let (covered, failures) = {
            let unflushed = &mut *self.unflushed.borrow_mut();
            (std::mem::take(&mut unflushed.written), unflushed.failures)
        };
        let ended = self.medium.flush().await;
        let unflushed = &mut *self.unflushed.borrow_mut();
        unflushed.failures += ended.is_err() as u64;
        if unflushed.failures == failures {
            return Ok(());
        }
        let since = std::mem::take(&mut unflushed.written);
        let doubtful = covered.into_iter().chain(since);
        if self.medium.has_zones() {
            for stripe in doubtful {
                unflushed.is_lost = true;
                self.distrust(stripe.at);
            }
        } else {
            unflushed.distrusted.extend(doubtful);
        }
        ended.and(Err(Status::WriteError))
    }

    /// Over zones nothing is written twice: what a failed flush may have lost is collected from its bands before a flush counts.
    fn distrust(&self, at: BandAt) {
        if !self.ledger.borrow().is_broken(BandDefect::TrustFlushes) {
            self.ledger.borrow_mut().distrust(self.geometry.band_of(at));
        }
    }

    fn wait_for_suspects(&self) -> Result<(), Status> {
        let unflushed = &mut *self.unflushed.borrow_mut();
        if !self.ledger.borrow().is_led_to_suspects() {
            unflushed.waits = 0;
            return Ok(());
        }
        let needed = self.ledger.borrow().suspect_blocks();
        let former = std::mem::replace(&mut unflushed.waits_for, needed);
        unflushed.waits = if needed < former { 1 } else { unflushed.waits + 1 };
        if unflushed.waits < TRIES_MAX {
            return Err(Status::WriteError);
        }
        self.ledger.borrow_mut().trust_again();
        (unflushed.waits, unflushed.is_lost) = (0, true);
        Err(Status::WriteError)
    }

    /// Whether something must be collected before a flush counts.
    pub(crate) fn has_suspects(&self) -> bool {
        self.medium.has_zones() && self.ledger.borrow().has_suspects()
    }

    /// Writes again what a failed flush may have lost, as far as anything leads there, or the next root may.
    async fn write_again(&self) -> Result<(), Status> {
        loop {
            let Some(stripe) = self.unflushed.borrow_mut().distrusted.pop() else { return Ok(()) };
            let failures = self.flush_failures();
            if !self.is_written_again(stripe.at) {
                continue;
            }
            let written = self.copy_over(stripe).await;
            let unflushed = &mut *self.unflushed.borrow_mut();
            match written {
                Ok(()) if unflushed.failures == failures => unflushed.written.push(stripe),
                Ok(()) => unflushed.distrusted.push(stripe),
                Err(Status::Corrupt) => {
                    unflushed.is_lost = true;
                    return Err(Status::WriteError);
                }
                Err(Status::ReadError) if stripe.tries + 1 == TRIES_MAX => {
                    unflushed.is_lost = true;
                    return Err(Status::WriteError);
                }
                Err(status) => {
                    unflushed.distrusted.push(Written { tries: stripe.tries + 1, ..stripe });
                    return Err(status);
                }
            }
        }
    }

    fn is_written_again(&self, at: BandAt) -> bool {
        let ledger = self.ledger.borrow();
        ledger.may_be_led_to(at) && !ledger.is_broken(BandDefect::TrustFlushes)
    }

    /// Whether a stripe was found lost since this was asked last: what the log still has of it must be destaged again before
    /// a checkpoint does without the log.
    pub(crate) fn take_lost(&self) -> bool {
        std::mem::take(&mut self.unflushed.borrow_mut().is_lost)
    }

    async fn copy_over(&self, stripe: Written) -> Result<(), Status> {
        let first = self.device_block(stripe.at);
        let bufs = self.medium.read(first, stripe.blocks).await?;
        if !self.is_whole(&bufs, stripe.sequence) {
            return Err(Status::Corrupt);
        }
        self.medium.write(first, 0, bufs).await.0.check()?;
        self.count(|stats| stats.rewritten_blocks += u64::from(stripe.blocks));
        Ok(())
    }

    /// Whether it is the stripe that was written: a drive may have dropped that, and read as before.
    fn is_whole(&self, stripe: &[Buf], sequence: u64) -> bool {
        let mut blocks = stripe.iter().flat_map(|buf| buf.as_slice().chunks_exact(BLOCK_BYTES));
        let Some(header) = blocks.next() else { return false };
        let Some(head) = StripeHead::decode(self.owner.salt, header).filter(|head| head.sequence == sequence) else {
            return false;
        };
        let mut entries = head.entries(header);
        entries.all(|entry| blocks.next().is_some_and(|block| stored_crc(crc32c(block)) == entry.crc))
    }
}
