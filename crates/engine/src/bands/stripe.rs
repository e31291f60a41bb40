//! One stripe: gathered in memory, then written, elsewhere if it has to be.

use super::ledger::Spot;
use super::{BandGeometry, BandStats, Bands, Stream};
use crate::format::stripe::{Entry, StripeHead, set_entry};
use crate::units::BLOCK_BYTES;
use bdev::Status;
use reactor::{Buf, SgList};
use smallvec::SmallVec;
use std::rc::Rc;

/// Most bands that a stripe is tried in.
const TRIES_MAX: usize = 4;

/// Blocks of one writer that follow one another in a stripe and in what the writer has appended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) writer: u32,
    /// The first of them among the writer's.
    pub(super) first: u32,
    /// The first of them among the stripe's data blocks.
    pub(super) from: u32,
    pub(super) count: u32,
}

/// A stripe that is being gathered.
pub(super) struct OpenStripe {
    buf: Buf,
    parts: Vec<Part>,
    count: u32,
    /// Most blocks that it may have, the header included.
    limit: u32,
    stamps: u128,
}

impl OpenStripe {
    pub(super) fn new(buf: Buf, parts: Vec<Part>, limit: u32) -> OpenStripe {
        assert!(limit >= 2 && parts.is_empty() && buf.len() >= limit as usize * BLOCK_BYTES);
        OpenStripe { buf, parts, count: 0, limit, stamps: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count + 1 == self.limit
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where the next block goes.
    pub(super) fn target(&mut self) -> &mut [u8] {
        &mut self.buf.as_mut_slice()[(self.count as usize + 1) * BLOCK_BYTES..][..BLOCK_BYTES]
    }

    /// Takes the block that is in the target. Whether it begins a part.
    pub(super) fn take(&mut self, entry: Entry, stamp: u64, writer: u32, index: u32) -> bool {
        set_entry(self.buf.as_mut_slice(), self.count as usize, entry);
        self.stamps += stamp as u128;
        let from = self.count;
        self.count += 1;
        match self.parts.last_mut() {
            Some(part) if part.writer == writer && part.first + part.count == index => {
                part.count += 1;
                false
            }
            _ => {
                self.parts.push(Part { writer, first: index, from, count: 1 });
                true
            }
        }
    }

    pub(super) fn into_memory(self) -> (Buf, Vec<Part>) {
        (self.buf, self.parts)
    }

    /// The stripe as it is written: padded, its header still to be sealed.
    fn close(mut self, geometry: &BandGeometry) -> Closed {
        let used = self.count + 1;
        let blocks = used.next_multiple_of(geometry.unit_blocks);
        self.buf.truncate(blocks as usize * BLOCK_BYTES);
        self.buf.as_mut_slice()[used as usize * BLOCK_BYTES..].fill(0);
        let stamp = (self.stamps / self.count as u128) as u64;
        let mut bufs = SgList::new();
        bufs.push(self.buf);
        Closed { bufs, parts: self.parts, count: self.count, blocks, stamp }
    }
}

/// A stripe under way.
struct Closed {
    bufs: SgList,
    parts: Vec<Part>,
    count: u32,
    blocks: u32,
    stamp: u64,
}

impl Bands {
    /// Writes a stripe that has blocks, and tells its writers.
    pub(super) fn send(self: &Rc<Self>, stream: Stream, stripe: OpenStripe) {
        let stripe = stripe.close(&self.geometry);
        self.desks.borrow_mut().under_way += 1;
        let bands = self.clone();
        self.medium.reactor.spawn_eager(async move {
            let mut stripe = stripe;
            let written = bands.write_stripe(stream, &mut stripe).await;
            drop(std::mem::take(&mut stripe.bufs));
            bands.stripe_ended(stripe.parts, written);
        });
    }

    /// Writes a stripe to one band or another: the band and the place of the header.
    async fn write_stripe(self: &Rc<Self>, stream: Stream, stripe: &mut Closed) -> Result<(u32, u32), Status> {
        let mut refused: SmallVec<[u32; TRIES_MAX]> = SmallVec::new();
        let mut last = Status::NoSpace;
        let ended = loop {
            let spot = self.ledger.borrow_mut().place(stream, stripe.blocks, stripe.stamp);
            let Some(spot) = spot else { break Err(last) };
            // A zone that was given up for this one may be what this one waits for.
            self.care_for_zones();
            if let Err(status) = self.seal(stream, stripe, spot).await {
                self.ledger.borrow_mut().refused(&spot, stripe.blocks);
                refused.push(spot.band);
                break Err(status);
            }
            let (at, failures) = (self.geometry.at(spot.band, spot.position), self.flush_failures());
            let block = self.device_block(at);
            let (status, bufs) = self.medium.write(block, stream as usize, std::mem::take(&mut stripe.bufs)).await;
            stripe.bufs = bufs;
            if status.is_ok() {
                self.note_written(at, stripe.blocks, spot.sequence, failures);
                break Ok((spot.band, spot.position));
            }
            self.count(|stats| stats.write_errors += 1);
            last = status;
            self.ledger.borrow_mut().refused(&spot, stripe.blocks);
            refused.push(spot.band);
            // Other errors are about the device, and no other band would do better.
            if status != Status::WriteError || refused.len() == TRIES_MAX {
                break Err(status);
            }
        };
        let ledger = &mut *self.ledger.borrow_mut();
        for band in refused {
            if ended.is_ok() { ledger.failed_band(band) } else { ledger.absolve(band) }
        }
        if ended.is_ok() {
            self.count(|stats| stats.add(stream, stripe.count, stripe.blocks));
        }
        ended
    }

    /// Completes the header for where the stripe goes.
    async fn seal(&self, stream: Stream, stripe: &mut Closed, spot: Spot) -> Result<(), Status> {
        let head = StripeHead {
            sequence: spot.sequence,
            generation: spot.generation,
            stamp: stripe.stamp,
            band: spot.band,
            position: spot.position,
            shard: self.owner.shard,
            count: stripe.count as u16,
            blocks: stripe.blocks as u16,
            stream: stream as u8,
        };
        let first = &mut stripe.bufs[0];
        if !first.try_unshare() {
            // Whoever was given it for an earlier try still looks at it.
            let mut copy = bdev::steps::alloc(&self.medium.reactor, first.len()).await?;
            copy.as_mut_slice().copy_from_slice(first.as_slice());
            *first = copy;
        }
        head.seal(self.owner.salt, stripe.bufs[0].as_mut_slice());
        Ok(())
    }
}

impl BandStats {
    fn add(&mut self, stream: Stream, count: u32, blocks: u32) {
        self.data_blocks[stream as usize] += count as u64;
        self.stripes += 1;
        self.padding_blocks += (blocks - count - 1) as u64;
    }
}
