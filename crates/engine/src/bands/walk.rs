//! Draining a band: which one, what is in it by its own account, and what becomes of it.

use super::writer::UNDER_WAY_MAX;
use super::{BandAt, Bands, Stream, Writer};
use crate::format::stripe::{Entry, StripeHead};
use crate::units::BLOCK_BYTES;
use crate::versions::first_right;
use bdev::Status;
use reactor::Buf;
use std::ops::Range;
use std::rc::Rc;

/// A band that is being walked, and how far. Nobody else is given a [victim](Bands::victim) to drain while this lives.
pub(crate) struct Cursor {
    bands: Rc<Bands>,
    band: u32,
    is_victim: bool,
    /// Of the band; `None`: that of the first stripe that is found.
    generation: Option<u64>,
    /// Blocks of the band that have been written.
    end: u32,
    /// The band ends where no header speaks for so many blocks.
    gap_max: u32,
    at: u32,
    /// Of the last stripe.
    sequence: u64,
    /// Write units that no header spoke for.
    passed_over: u32,
    /// Blocks since the last header that spoke for some.
    gap: u32,
    /// Blocks that are read with a header.
    lead_blocks: u32,
}

/// Stripes, of the largest size, without a header between two of a band: those that were under way beside the latter when a crash
/// came, and one that is damaged.
const GAP_STRIPES: u32 = UNDER_WAY_MAX + 1;

/// What a stripe says of itself and its band.
pub(crate) struct Surveyed {
    /// The place of its header.
    pub(crate) header: BandAt,
    pub(crate) sequence: u64,
    pub(crate) generation: u64,
    pub(crate) stamp: u64,
    pub(crate) stream: u8,
    /// Its blocks.
    pub(crate) blocks: u32,
    /// The block of the band at which it ends.
    pub(crate) end: u32,
}

/// A stripe, as its header describes it.
pub(crate) struct Stripe {
    /// The place of its first data block; the others follow.
    pub(crate) first: BandAt,
    head: StripeHead,
    header: Buf,
}

/// The first blocks of a stripe, read with its header.
pub(crate) struct Lead {
    /// The place of the header, whose bytes come first.
    pub(crate) at: BandAt,
    pub(crate) bytes: Buf,
}

impl Lead {
    /// Whether it has that block.
    pub(crate) fn has(&self, at: BandAt) -> bool {
        at.0.checked_sub(self.at.0).is_some_and(|step| (step as usize) < self.bytes.len() / BLOCK_BYTES)
    }
}

impl Stripe {
    /// Number of its data blocks.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.head.count as usize
    }

    pub(crate) fn surveyed(&self) -> Surveyed {
        let StripeHead { sequence, generation, stamp, stream, position, blocks, .. } = self.head;
        let (header, end) = (BandAt(self.first.0 - 1), position + blocks as u32);
        Surveyed { header, sequence, generation, stamp, stream, blocks: blocks as u32, end }
    }

    /// What they are, each with its place. Whether a map still leads there, the map knows.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (BandAt, Entry)> {
        (self.first.0..).map(BandAt).zip(self.head.entries(self.header.as_slice()))
    }

    /// What was read of its blocks beside the header; `None`: nothing.
    pub(crate) fn into_lead(self) -> Option<Lead> {
        let lead = Lead { at: BandAt(self.first.0 - 1), bytes: self.header };
        (lead.bytes.len() > BLOCK_BYTES).then_some(lead)
    }
}

impl Bands {
    /// The band that is to be drained next, if any can be. One that has refused a write comes first; then it is the one with
    /// the best relation of what is gained to what it costs, the old before the young. When room is critical, the emptiest.
    pub(crate) fn victim(self: &Rc<Self>) -> Option<Cursor> {
        let band = self.ledger.borrow_mut().victim()?;
        self.count(|stats| stats.victims += 1);
        let mut cursor = self.walk(band);
        (cursor.is_victim, cursor.lead_blocks) = (true, self.medium.lead_blocks);
        Some(cursor)
    }

    /// The stripes of a band, as far as it is written now.
    pub(crate) fn walk(self: &Rc<Self>, band: u32) -> Cursor {
        let (generation, end) = self.ledger.borrow().walk_of(band);
        self.cursor(band, Some(generation), end, u32::MAX)
    }

    /// The stripes of a band of which nothing is known. Where some in succession have no header, it ends: those of an earlier
    /// use of the band may follow.
    pub(crate) fn survey(self: &Rc<Self>, band: u32) -> Cursor {
        self.cursor(band, None, self.geometry.band_blocks, GAP_STRIPES * self.geometry.stripe_blocks())
    }

    /// What is in `blocks` of a band of this generation, which begin where a stripe does.
    pub(super) fn walk_part(self: &Rc<Self>, band: u32, generation: u64, blocks: Range<u32>) -> Cursor {
        let mut cursor = self.cursor(band, Some(generation), blocks.end, u32::MAX);
        cursor.at = blocks.start;
        cursor
    }

    fn cursor(self: &Rc<Self>, band: u32, generation: Option<u64>, end: u32, gap_max: u32) -> Cursor {
        let (at, sequence, passed_over, gap) = (0, 0, 0, 0);
        let (is_victim, lead_blocks) = (false, 1);
        let bands = self.clone();
        Cursor { bands, band, is_victim, generation, end, gap_max, at, sequence, passed_over, gap, lead_blocks }
    }

    /// The stripe with this sequence whose header is there.
    pub(crate) async fn stripe_at(&self, at: BandAt, sequence: u64) -> Result<Option<Stripe>, Status> {
        self.stripe_with(at, 1, |head| head.sequence == sequence).await
    }

    /// The stripe whose header is there and `fits`, with so many blocks at most, the header included, as its
    /// [lead](Stripe::into_lead). A header that the device does not give back is looked for in its other versions.
    async fn stripe_with(
        &self,
        at: BandAt,
        lead_blocks: u32,
        fits: impl Fn(&StripeHead) -> bool,
    ) -> Result<Option<Stripe>, Status> {
        let stripe_of = |header: Buf| {
            let head = StripeHead::decode(self.owner.salt, header.as_slice()).filter(&fits)?;
            Some(Stripe { first: BandAt(at.0 + 1), head, header })
        };
        let block = self.device_block(at);
        let usual = match self.medium.read_lead(block, lead_blocks).await {
            Ok(bytes) => stripe_of(bytes),
            Err(Status::ReadError | Status::Corrupt) => None,
            Err(status) => return Err(status),
        };
        if usual.is_some() || self.medium.versions == 1 {
            return Ok(usual);
        }
        let read = async |version| Ok(stripe_of(self.medium.read_version(block, version).await?));
        // One that cannot be had now says nothing, as one that is damaged.
        let found = first_right(0..self.medium.versions, read).await.unwrap_or(None);
        Ok(found.map(|(stripe, _)| stripe))
    }

    /// Whether all versions of the device that can be had have the header of a stripe.
    pub(super) async fn is_in_all_versions(&self, stripe: &Stripe) -> bool {
        let block = self.device_block(BandAt(stripe.first.0 - 1));
        for version in (0..self.medium.versions).filter(|_| self.medium.versions > 1) {
            let is_right = match self.medium.read_version(block, version).await {
                Ok(header) => StripeHead::decode(self.owner.salt, header.as_slice()) == Some(stripe.head),
                Err(status) => !matches!(status, Status::ReadError | Status::Corrupt),
            };
            if !is_right {
                return false;
            }
        }
        true
    }

    /// Somebody who appends what is still valid in a band that is drained: the blocks keep their age.
    pub(crate) fn mover(self: &Rc<Self>, from: u32) -> Writer {
        let stamp = self.ledger.borrow().stamp(from);
        self.new_writer(Stream::Moved, Some(stamp))
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
    pub(super) fn bands(&self) -> &Rc<Bands> {
        &self.bands
    }

    /// The band.
    pub(crate) fn band(&self) -> u32 {
        self.band
    }

    /// The block of the band that it has come to.
    pub(super) fn at(&self) -> u32 {
        self.at
    }

    /// Write units whose stripe's header was damaged, or was never written.
    pub(crate) fn passed_over(&self) -> u32 {
        self.passed_over
    }

    /// The next stripe. Of one whose header is damaged, cannot be read, or is not of this use of the band, nothing is told.
    pub(crate) async fn next_stripe(&mut self) -> Result<Option<Stripe>, Status> {
        self.next_unless(|| false).await
    }

    /// As [`next_stripe`](Self::next_stripe); `None` too when it is over: a gap takes a thousand reads.
    pub(crate) async fn next_unless(&mut self, is_over: impl Fn() -> bool) -> Result<Option<Stripe>, Status> {
        let bands = self.bands.clone();
        while self.at < self.end && self.gap < self.gap_max && !is_over() {
            let lead_blocks = self.lead_blocks.min(self.end - self.at);
            let at = bands.geometry.at(self.band, self.at);
            if let Some(stripe) = bands.stripe_with(at, lead_blocks, |head| self.is_next(head)).await? {
                (self.at, self.gap) = (self.at + stripe.head.blocks as u32, 0);
                (self.sequence, self.generation) = (stripe.head.sequence, Some(stripe.head.generation));
                return Ok(Some(stripe));
            }
            if self.gap == 0 {
                bands.count(|stats| stats.bad_headers += 1);
            }
            self.at += bands.geometry.unit_blocks;
            self.gap += bands.geometry.unit_blocks;
            self.passed_over += 1;
        }
        Ok(None)
    }

    /// Whether a header is that of the stripe that is to come.
    fn is_next(&self, head: &StripeHead) -> bool {
        let blocks = head.blocks as u32;
        let here = (head.shard, head.band, head.position) == (self.bands.owner.shard, self.band, self.at);
        let is_of_band = self.generation.is_none_or(|generation| head.generation == generation);
        let now = is_of_band && head.sequence >= head.generation && head.sequence > self.sequence;
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
