//! Draining a band: which one, what is in it by its own account, and what becomes of it.

use super::{BandAt, Bands, Writer};
use crate::format::stripe::{Entry, StripeHead};
use bdev::Status;
use reactor::Buf;
use std::rc::Rc;

/// A band that is being walked, and how far. Nobody else is given a [victim](Bands::victim) to drain while this lives.
pub(crate) struct Cursor {
    bands: Rc<Bands>,
    band: u32,
    is_victim: bool,
    generation: u64,
    /// Blocks of the band that have been written.
    end: u32,
    at: u32,
    /// Of the last stripe.
    sequence: u64,
    /// Write units that no header spoke for.
    passed_over: u32,
    /// The last one was among them.
    is_lost: bool,
}

/// A stripe, as its header describes it.
pub(crate) struct Stripe {
    /// The place of its first data block; the others follow.
    pub(crate) first: BandAt,
    head: StripeHead,
    header: Buf,
}

impl Stripe {
    /// Number of its data blocks.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.head.count as usize
    }

    /// What they are, each with its place. Whether a map still leads there, the map knows.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (BandAt, Entry)> {
        (self.first.0..).map(BandAt).zip(self.head.entries(self.header.as_slice()))
    }
}

impl Bands {
    /// The band that is to be drained next, if any can be. One that has refused a write comes first; then it is the one with
    /// the best relation of what is gained to what it costs, the old before the young. When room is critical, the emptiest.
    pub(crate) fn victim(self: &Rc<Self>) -> Option<Cursor> {
        let band = self.ledger.borrow_mut().victim()?;
        self.count(|stats| stats.victims += 1);
        let mut cursor = self.walk(band);
        cursor.is_victim = true;
        Some(cursor)
    }

    /// The stripes of a band, as far as it is written now.
    pub(crate) fn walk(self: &Rc<Self>, band: u32) -> Cursor {
        let (generation, end) = self.ledger.borrow().walk_of(band);
        let (at, sequence, passed_over) = (0, 0, 0);
        let (is_victim, is_lost) = (false, false);
        Cursor { bands: self.clone(), band, is_victim, generation, end, at, sequence, passed_over, is_lost }
    }

    /// Somebody who appends what is still valid in a band that is drained: to a stream by its age, which the blocks keep.
    pub(crate) fn mover(self: &Rc<Self>, from: &Cursor) -> Writer {
        let (stream, stamp) = self.ledger.borrow().heir(from.band);
        self.new_writer(stream, Some(stamp))
    }

    /// Nothing leads to the band any more, as far as its stripes say. False when something must still be in it that no stripe
    /// speaks of, since headers are damaged: then it stays as it is, and only the maps know the rest.
    pub(crate) fn drained(&self, cursor: Cursor) -> bool {
        assert!(cursor.is_victim, "only a victim is drained");
        let whole = cursor.at >= cursor.end && cursor.passed_over == 0;
        self.ledger.borrow_mut().drained(cursor.band, whole)
    }
}

impl Cursor {
    /// The band.
    pub(crate) fn band(&self) -> u32 {
        self.band
    }

    /// Write units whose stripe's header was damaged, or was never written.
    pub(crate) fn passed_over(&self) -> u32 {
        self.passed_over
    }

    /// The next stripe. Of one whose header is damaged, cannot be read, or is not of this use of the band, nothing is told.
    pub(crate) async fn next_stripe(&mut self) -> Result<Option<Stripe>, Status> {
        let bands = self.bands.clone();
        while self.at < self.end {
            let header = bands.geometry.at(self.band, self.at);
            let read = match bands.medium.read_block(bands.device_block(header)).await {
                Ok(block) => Some(block),
                Err(Status::ReadError | Status::Corrupt) => None,
                Err(status) => return Err(status),
            };
            let head = read.as_ref().and_then(|block| StripeHead::decode(bands.owner.salt, block.as_slice()));
            if let (Some(head), Some(header_block)) = (head.filter(|head| self.is_next(head)), read) {
                (self.at, self.sequence, self.is_lost) = (self.at + head.blocks as u32, head.sequence, false);
                return Ok(Some(Stripe { first: BandAt(header.0 + 1), head, header: header_block }));
            }
            self.at += bands.geometry.unit_blocks;
            self.passed_over += 1;
            if !std::mem::replace(&mut self.is_lost, true) {
                bands.count(|stats| stats.bad_headers += 1);
            }
        }
        Ok(None)
    }

    /// Whether a header is that of the stripe that is to come.
    fn is_next(&self, head: &StripeHead) -> bool {
        let blocks = head.blocks as u32;
        let here = (head.shard, head.band, head.position) == (self.bands.owner.shard, self.band, self.at);
        let now =
            head.generation == self.generation && head.sequence >= self.generation && head.sequence > self.sequence;
        here && now && blocks.is_multiple_of(self.bands.geometry.unit_blocks) && blocks <= self.end - self.at
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if self.is_victim {
            self.bands.ledger.borrow_mut().left_alone(self.band);
        }
    }
}
