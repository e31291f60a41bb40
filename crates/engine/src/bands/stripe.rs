//! One stripe: gathered in memory, then written, elsewhere if it has to be.

use super::ledger::Spot;
use super::{BandGeometry, BandStats, Bands, Stream};
use crate::format::stripe::{Entry, StripeHead, move_entry, set_entry};
use crate::units::BLOCK_BYTES;
use bdev::Status;
use reactor::{Buf, SgList};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

/// Most bands that a stripe is tried in.
const TRIES_MAX: usize = 4;

/// Blocks that are kept together in a stripe when a writer has them together: 64 KiB, which a drive with large pages reads from
/// one of them. The header takes the first block of the first page, so whatever else there is fills that one.
pub(super) const PAGE_BLOCKS: u32 = 16;

/// Blocks of one writer that follow one another in a stripe and in what the writer has appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) writer: u32,
    /// The first of them among the writer's.
    pub(super) first: u32,
    /// Where the first of them is in the stripe, whose header is block 0.
    pub(super) at: u32,
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
    /// Where the next blocks go.
    next: Range<u32>,
    /// What pages that were left for whole ones have free, in order.
    left: SmallVec<[Range<u32>; 4]>,
    /// The first page of which nothing is taken.
    fresh: u32,
}

impl OpenStripe {
    pub(super) fn new(buf: Buf, parts: Vec<Part>, limit: u32) -> OpenStripe {
        assert!(limit >= 2 && parts.is_empty() && buf.len() >= limit as usize * BLOCK_BYTES);
        let fresh = PAGE_BLOCKS.min(limit);
        OpenStripe { buf, parts, count: 0, limit, stamps: 0, next: 1..fresh, left: SmallVec::new(), fresh }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count + 1 == self.limit
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where the next block goes, while the stripe is not full; one that begins what fills a page goes to a page that is free.
    pub(super) fn target(&mut self, begins_page: bool) -> &mut [u8] {
        let has_page = self.fresh + PAGE_BLOCKS <= self.limit;
        if begins_page && has_page && self.next.len() < PAGE_BLOCKS as usize {
            if !self.next.is_empty() {
                let behind = self.left.partition_point(|left| left.start < self.next.start);
                self.left.insert(behind, self.next.clone());
            }
            self.next = self.take_page();
        } else if self.next.is_empty() {
            self.next = if self.left.is_empty() { self.take_page() } else { self.left.remove(0) };
        }
        block_of(&mut self.buf, self.next.start)
    }

    fn take_page(&mut self) -> Range<u32> {
        let first = self.fresh;
        self.fresh = (first + PAGE_BLOCKS).min(self.limit);
        first..self.fresh
    }

    /// Takes the block that is in the target. Whether it begins a part.
    pub(super) fn take(&mut self, entry: Entry, stamp: u64, writer: u32, index: u32) -> bool {
        let at = self.next.start;
        self.next.start += 1;
        set_entry(self.buf.as_mut_slice(), at as usize - 1, entry);
        self.stamps += stamp as u128;
        self.count += 1;
        match self.parts.last_mut() {
            Some(part) if part.writer == writer && part.first + part.count == index && part.at + part.count == at => {
                part.count += 1;
                false
            }
            _ => {
                self.parts.push(Part { writer, first: index, at, count: 1 });
                true
            }
        }
    }

    /// Moves the last blocks to where some are free before them, so that the blocks of the stripe follow one another. `split` is
    /// told of each part that has become two: the writer.
    pub(super) fn close_up(&mut self, mut split: impl FnMut(u32)) {
        let mut free = std::mem::take(&mut self.left);
        free.push(std::mem::take(&mut self.next));
        let end = self.count + 1;
        for mut free in free {
            free.end = free.end.min(end);
            while free.start < free.end {
                let last = self.parts.iter_mut().max_by_key(|part| part.at).expect("blocks are behind what is free");
                let moved = last.count.min(free.end - free.start).min(last.at + last.count - end);
                last.count -= moved;
                let (from, first, writer) = (last.at + last.count, last.first + last.count, last.writer);
                if last.count == 0 {
                    last.at = free.start;
                    last.count = moved;
                } else {
                    self.parts.push(Part { writer, first, at: free.start, count: moved });
                    split(writer);
                }
                for step in 0..moved {
                    let bytes = self.buf.as_mut_slice();
                    move_entry(bytes, (from + step) as usize - 1, (free.start + step) as usize - 1);
                    let from = (from + step) as usize * BLOCK_BYTES;
                    bytes.copy_within(from..from + BLOCK_BYTES, (free.start + step) as usize * BLOCK_BYTES);
                }
                free.start += moved;
            }
        }
    }

    pub(super) fn into_memory(self) -> (Buf, Vec<Part>) {
        (self.buf, self.parts)
    }

    /// The stripe as it is written, closed up: padded, its header still to be sealed.
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

fn block_of(buf: &mut Buf, at: u32) -> &mut [u8] {
    &mut buf.as_mut_slice()[at as usize * BLOCK_BYTES..][..BLOCK_BYTES]
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
    pub(super) fn send(self: &Rc<Self>, stream: Stream, mut stripe: OpenStripe) {
        {
            let desks = &mut *self.desks.borrow_mut();
            stripe.close_up(|writer| desks.split(writer));
            desks.under_way += 1;
        }
        let stripe = stripe.close(&self.geometry);
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
