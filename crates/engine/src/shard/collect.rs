//! A batch of garbage collection: what is live in victims is found, read, appended to other bands, and then its map pages lead
//! there.
//!
//! ```text
//! entries of headers, by extent -> (map pages say: live) -> by place -> spans read -> appended -> stripes written -> pages changed
//! ```
//! What has been written again, and is in the log as a whole or a hole, is not moved: its map page does not lead anywhere from then
//! on, as before a block is destaged for the first time.
//! Both looks at map pages go through them in the order of extents, so that each page is needed once: live blocks of a band are
//! of any extent, and few pages are in memory.

use super::data::COPIES_AHEAD;
use super::found::{AllFound, End, Found};
use super::gc::VICTIMS_MAX;
use super::patience::Refused;
use super::{Defect, Shard, add};
use crate::bands::{BandAt, Bands, Cursor, Entry, Lead, Writer};
use crate::meta::{self, Page};
use crate::together::Together;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, extent_of};
use base::crc32c;
use bdev::{Done, Io, Status};
use reactor::buf::sg_len;
use reactor::{Buf, IoFuture, SgList};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

/// Blocks that are read together at most, and no others across a multiple of it: their memory is of one class, and pages of flash are
/// not read twice for it.
const SPAN_BLOCKS_MAX: u32 = 64;
/// Dead blocks that are read with their neighbours, instead of reading these one by one: a read of flash takes as long for one
/// block as for a page of several.
const GAP_BLOCKS_MAX: u32 = 8;
/// Reads under way at the same time: with the largest spans, 8 MiB.
const READS_MAX: usize = 32;
/// The same while users read as well, in one batch and the next: whatever a die reads for one, the others wait for. Three in all
/// leave users less than they should have (0.76 to 0.78 of what they read alone), two take a fifth of the writes.
const READS_BESIDE_MAX: [usize; 2] = [3, 2];
/// Users read as well when they read at least one part in so many of what is moved.
const BESIDE_PART: u64 = 4;
/// Map entries looked at, or changed, between two looks at the time.
const ENTRIES_PER_LOOK: usize = 64;
/// A live block of a victim, or one that may be.
#[derive(Clone, Copy)]
pub(super) struct Live {
    pub(super) entry: Entry,
    pub(super) at: BandAt,
}

/// A victim, as far as a batch empties it.
struct Drain {
    band: u32,
    /// `None`: the next batch has it already.
    cursor: Option<Cursor>,
    end: End,
    /// In the order of their places.
    live: Vec<Live>,
    leads: Vec<Lead>,
    /// In the order in which they were appended.
    appended: Vec<Live>,
    writer: Option<Writer>,
    /// Nothing more is appended.
    has_stopped: bool,
}

/// Live blocks of a victim that are read together: a range of its list.
struct Span {
    drain: usize,
    live: Range<usize>,
    /// The lead that has them: nothing need be read.
    lead: Option<usize>,
}

/// A block that is somewhere else now.
struct Move {
    live: Live,
    to: BandAt,
    drain: usize,
}

impl Drain {
    /// It could not be appended to.
    fn stop(&mut self, status: Status) {
        (self.end, self.has_stopped) = (End::Failed(status), true);
    }

    /// What is live, in parts that are read together.
    fn spans(&self, drain: usize, spans: &mut Vec<Span>) {
        let mut from = 0;
        while from < self.live.len() {
            let first = self.live[from].at;
            let lead = self.leads.partition_point(|lead| lead.at < first).checked_sub(1);
            let lead = lead.filter(|lead| self.leads[*lead].has(first));
            let goes_on = |index: &usize| {
                let at = self.live[*index].at;
                match lead {
                    Some(lead) => self.leads[lead].has(at),
                    None => {
                        let gap = at.0 - self.live[index - 1].at.0 - 1;
                        gap <= GAP_BLOCKS_MAX && at.0 / SPAN_BLOCKS_MAX == first.0 / SPAN_BLOCKS_MAX
                    }
                }
            };
            let end = (from + 1..self.live.len()).find(|index| !goes_on(index)).unwrap_or(self.live.len());
            spans.push(Span { drain, live: from..end, lead });
            from = end;
        }
    }
}

impl Shard {
    /// Moves about so many live blocks out of victims, and reads meanwhile what the next batch begins with. Whether there was a
    /// victim.
    pub(super) async fn collect(self: &Rc<Self>, bands: &Rc<Bands>, most: u64) -> Result<bool, Status> {
        self.meta.settle().await?;
        let mut found = self.gc.take_found();
        if found.is_empty() {
            found = self.clone().find(bands.clone(), None, most).await;
        }
        let mut drains: SmallVec<[Drain; VICTIMS_MAX]> = SmallVec::new();
        for found in found {
            drains.push(self.sift(bands, found).await);
        }
        let goes_on = drains.last_mut().filter(|drain| matches!(drain.end, End::Later));
        let begun = goes_on.and_then(|drain| drain.cursor.take());
        let next = self.reactor.spawn_join(self.clone().find(bands.clone(), begun, most));
        self.append_live(bands, &mut drains).await;
        self.move_entries(&mut drains).await;
        let mut next = next.await;
        let any = !drains.is_empty();
        drains.into_iter().for_each(|drain| self.end_drain(bands, drain, &mut next));
        self.gc.keep_found(next);
        Ok(any)
    }

    fn end_drain(&self, bands: &Bands, drain: Drain, next: &mut AllFound) {
        let Drain { band, cursor, end, .. } = drain;
        if let End::Failed(status) = end {
            // What is left behind cannot be made up for by going on from there.
            next.retain(|found| found.cursor.band() != band);
            // Without a place to go to: bands are free again after the next checkpoint.
            if status != Status::NoSpace || bands.room().pending == 0 {
                self.put_aside(band, status);
            }
            return;
        }
        let Some(cursor) = cursor else { return };
        let unknown = cursor.passed_over();
        if !bands.drained(cursor) {
            tracing::warn!(
                "pool '{}': band {band} of shard {} has {unknown} write units whose headers are damaged, and maybe blocks in \
                 use there: it is not collected until what is in use has been counted; the blocks can be read, and a scrub writes \
                 them anew",
                self.pool_name,
                self.number
            );
        }
    }

    /// Gives way to hosts when the turn has become long; once in a turn collecting goes on, however long they make it.
    async fn collect_in_turn(&self) {
        while self.gc.moved_in.get() == self.reactor.turns() && self.reactor.is_turn_long() {
            self.reactor.yield_now().await;
        }
        self.gc.moved_in.set(self.reactor.turns());
    }

    /// What is live of what has been found, after an error what is known to be.
    async fn sift(self: &Rc<Self>, bands: &Bands, found: Found) -> Drain {
        let Found { cursor, mut end, entries: mut live, leads } = found;
        live.sort_unstable_by_key(|live| (extent_of(live.entry.block), live.at));
        if let Err(status) = self.keep_live(bands, &mut live).await {
            end = End::Failed(status);
        }
        live.sort_unstable_by_key(|live| live.at);
        let (band, cursor) = (cursor.band(), Some(cursor));
        Drain { band, cursor, end, live, leads, appended: Vec::new(), writer: None, has_stopped: false }
    }

    /// Leaves those that map pages lead to, and that are not in the log anew. After an error those that are known to be live.
    async fn keep_live(self: &Rc<Self>, bands: &Bands, entries: &mut Vec<Live>) -> Result<(), Status> {
        let (mut page, mut kept, mut skipped, mut ended): (Option<Page>, usize, u64, _) = (None, 0, 0, Ok(()));
        for step in 0..entries.len() {
            if step % ENTRIES_PER_LOOK == 0 {
                self.collect_in_turn().await;
            }
            let live = entries[step];
            if page.as_ref().is_none_or(|page| page.extent() != extent_of(live.entry.block)) {
                // Before the next one is asked for, which may need its place in memory.
                drop(page.take());
                page = match self.page_of(live.entry.block).await {
                    Ok(page) => page,
                    Err(status) => {
                        ended = Err(status);
                        break;
                    }
                };
            }
            let leading = page.as_ref().filter(|page| leads_to(page, &live));
            if let Some(page) = leading
                && self.index.is_superseded(live.entry.block)
            {
                // Nobody sees the hole: without the log, the pool does not open.
                page.set(live.entry.block % EXTENT_BLOCKS, meta::HOLE);
                skipped += 1;
                continue;
            }
            if leading.is_some() && !(self.is_broken(Defect::ForgetLive) && live.entry.block % 2 == 1) {
                entries[kept] = live;
                kept += 1;
            }
        }
        entries.truncate(kept);
        self.pay(bands, skipped);
        ended
    }

    /// Reads what is live and appends it.
    async fn append_live(self: &Rc<Self>, bands: &Rc<Bands>, drains: &mut [Drain]) {
        let mut spans = Vec::new();
        for (number, drain) in drains.iter_mut().enumerate() {
            drain.writer = Some(bands.mover(drain.band));
            drain.spans(number, &mut spans);
        }
        let batch = self.gc.batches.replace(self.gc.batches.get() + 1);
        let reads_max = if self.users_read() { READS_BESIDE_MAX[batch % 2] } else { READS_MAX };
        let mut under_way: Together<'_, Done> = Together::new();
        let (mut read, mut asked) = (0, 0);
        while read < spans.len() {
            while asked < spans.len() && under_way.len() < reads_max {
                let Some(done) = self.read_span(bands, drains, &spans[asked], asked == read).await else { break };
                under_way.push(done);
                asked += 1;
            }
            let Some(done) = under_way.first().await else {
                // There is no memory, and nothing under way that would give some back.
                drains[spans[read].drain].stop(Status::Os(base::Errno::ENOMEM));
                (read, asked) = (read + 1, asked + 1);
                continue;
            };
            let span = &spans[read];
            read += 1;
            let drain = &mut drains[span.drain];
            if drain.has_stopped {
                continue;
            }
            self.collect_in_turn().await;
            if let Err(status) = self.append_span(bands, drain, span.live.clone(), done).await {
                drain.stop(status);
            }
            self.pay(bands, span.live.len() as u64);
        }
        // All of them before the first is waited for: they share stripes.
        drains.iter_mut().filter_map(|drain| drain.writer.as_mut()).for_each(Writer::end);
    }

    /// Whether users have read from bands since this was asked last, and not little of what was moved.
    fn users_read(&self) -> bool {
        let (counters, gc) = (&self.counters, &self.gc);
        let read = counters.user_read_bytes.get().saturating_sub(counters.log_hit_bytes.get());
        let moved = gc.moved_blocks.get() * BLOCK_BYTES as u64;
        let (read_before, moved_before) = gc.seen.replace((read, moved));
        let (read, moved) = (read.saturating_sub(read_before), moved - moved_before);
        read > 0 && read >= moved / BESIDE_PART
    }

    /// Begins to read a span. Where the device lends no memory, `None` when there is none: who holds some does not wait for more.
    async fn read_span(
        &self,
        bands: &Bands,
        drains: &mut [Drain],
        span: &Span,
        may_wait: bool,
    ) -> Option<IoFuture<'_, Done>> {
        let Drain { live, leads, .. } = &mut drains[span.drain];
        let (first, last) = (live[span.live.start].at, live[span.live.end - 1].at);
        let (place, blocks) = (bands.device_block(first), last.0 - first.0 + 1);
        let bytes = blocks as usize * BLOCK_BYTES;
        if let Some(lead) = span.lead.and_then(|lead| leads.get_mut(lead)) {
            let from = (first.0 - lead.at.0) as usize * BLOCK_BYTES;
            let bufs = super::data::one(lead.bytes.slice(from..from + bytes));
            let read = self.capacity_io(place, blocks, |lba, blocks| Io::read(lba, blocks, bufs));
            return Some(IoFuture::ready(read.done(Status::Ok)));
        }
        if self.capacity_info.loans {
            return Some(self.capacity.submit(self.capacity_io(place, blocks, Io::read_loan)));
        }
        let buf = match self.reactor.pool().try_alloc(bytes) {
            None if may_wait => {
                drains.iter_mut().for_each(|drain| drain.leads.clear());
                bdev::steps::alloc(&self.reactor, bytes).await.ok()?
            }
            none_or_some => none_or_some?,
        };
        let read = |lba, blocks| Io::read(lba, blocks, super::data::one(buf));
        Some(self.capacity.submit(self.capacity_io(place, blocks, read)))
    }

    /// Appends the live blocks of a span that has been read.
    async fn append_span(
        self: &Rc<Self>,
        bands: &Bands,
        drain: &mut Drain,
        range: Range<usize>,
        done: Done,
    ) -> Result<(), Status> {
        let Drain { live, appended, writer, .. } = drain;
        let (live, first) = (&live[range.clone()], live[range.start].at);
        let mut doubtful: SmallVec<[Live; 4]> = SmallVec::new();
        if done.status.is_ok() {
            let bufs = done.io.bufs;
            let entries: SmallVec<[Entry; SPAN_BLOCKS_MAX as usize]> = live.iter().map(|live| live.entry).collect();
            let place = |live: &Live| (live.at.0 - first.0) as usize * BLOCK_BYTES;
            let fill = |index: usize, bytes: &mut [u8]| {
                if let Some(ahead) = live.get(index + COPIES_AHEAD) {
                    super::data::expect(&bufs, place(ahead), BLOCK_BYTES);
                }
                super::data::copy_out(&bufs, place(&live[index]), bytes);
                let is_right = is_of(&live[index], bytes);
                if !is_right {
                    doubtful.push(live[index]);
                }
                is_right
            };
            add(&self.gc.moved_blocks, live.len() as u64);
            // Before, so that what is appended of it before an error is known.
            appended.extend_from_slice(live);
            writer.as_mut().expect("it appends").append(&entries, fill).await?;
        } else {
            drop(done);
            doubtful.extend_from_slice(live);
        }
        for live in doubtful {
            self.append_singly(bands, drain, live).await?;
        }
        Ok(())
    }

    /// Reads a block once more, in case it was the way and not the medium, and appends it. What does not match its checksum, or cannot
    /// be read for long, becomes lost.
    async fn append_singly(self: &Rc<Self>, bands: &Bands, drain: &mut Drain, live: Live) -> Result<(), Status> {
        let buf = bdev::steps::alloc(&self.reactor, BLOCK_BYTES).await?;
        let read = |lba, blocks| Io::read(lba, blocks, super::data::one(buf));
        let done = self.capacity.submit(self.capacity_io(bands.device_block(live.at), 1, read)).await;
        let what = Refused::Block(live.entry.block);
        let is_right = done.status.is_ok() && is_whole(&done.io.bufs, &live);
        let rescued = if is_right { Ok(None) } else { self.rescue_of_band(bands, &live, done.status).await };
        let bufs = match (rescued, done.status) {
            (Ok(Some(found)), _) => super::data::one(found),
            (Ok(None), Status::Ok) => {
                self.patience.answered(what);
                if !is_right {
                    return self.lose_block(&live).await;
                }
                done.io.bufs
            }
            (Err(Status::ReadError), _) | (Ok(None), Status::ReadError) if self.is_lost(what).await => {
                return self.lose_block(&live).await;
            }
            (Err(status), _) | (Ok(None), status) => return Err(status),
        };
        drain.appended.push(live);
        let fill = |_: usize, bytes: &mut [u8]| {
            super::data::copy_out(&bufs, 0, bytes);
            true
        };
        drain.writer.as_mut().expect("it appends").append(&[live.entry], fill).await
    }

    /// A block whose band does not give it back, in another version; see [`rescue`](Self::rescue). It is written anew with the
    /// others that move.
    async fn rescue_of_band(&self, bands: &Bands, live: &Live, status: Status) -> Result<Option<Buf>, Status> {
        let status = if status.is_ok() { Status::Corrupt } else { status };
        if !self.may_rescue(status) {
            return Ok(None);
        }
        let place = bands.device_block(live.at);
        let Some(found) = self.rescue(place, live.entry.crc).await? else { return Ok(None) };
        let owner = self.meta.descriptor(extent_of(live.entry.block));
        let block = owner.vextent as u64 * EXTENT_BLOCKS as u64 + (live.entry.block % EXTENT_BLOCKS) as u64;
        self.note_healed(owner.volume, block, place, &[0]);
        Ok(Some(found))
    }

    /// Waits until everything is written, and makes the map pages lead there.
    async fn move_entries(self: &Rc<Self>, drains: &mut [Drain]) {
        let (mut moves, mut held) = (Vec::new(), SmallVec::<[_; VICTIMS_MAX]>::new());
        for (number, drain) in drains.iter_mut().enumerate() {
            let Some(writer) = drain.writer.take() else { continue };
            let places = match writer.finish().await {
                Ok(places) => places,
                Err(status) => {
                    drain.end = End::Failed(status);
                    continue;
                }
            };
            let live = drain.appended.iter().enumerate().take(places.len());
            moves.extend(
                live.filter_map(|(index, live)| places.get(index).map(|to| Move { live: *live, to, drain: number })),
            );
            held.push(places);
        }
        moves.sort_unstable_by_key(|moved| moved.live.entry.block);
        let mut page: Option<Page> = None;
        for (step, Move { live, to, drain }) in moves.into_iter().enumerate() {
            if step % ENTRIES_PER_LOOK == 0 {
                self.collect_in_turn().await;
            }
            if page.as_ref().is_none_or(|page| page.extent() != extent_of(live.entry.block) || !page.is_current()) {
                drop(page.take());
                page = match self.page_of(live.entry.block).await {
                    Ok(page) => page,
                    Err(status) => {
                        drains[drain].end = End::Failed(status);
                        continue;
                    }
                };
            }
            // From now on it is at its new place, if it is still at the old one.
            if let Some(page) = page.as_ref().filter(|page| leads_to(page, &live)) {
                page.place(live.entry.block % EXTENT_BLOCKS, live.entry.crc, to);
            }
        }
        drop(held);
    }

    /// The map page of a block, if it can be anywhere.
    async fn page_of(self: &Rc<Self>, block: u32) -> Result<Option<Page>, Status> {
        let extent = extent_of(block);
        if extent >= self.meta.extents() {
            return Ok(None);
        }
        let owner = self.meta.descriptor(extent);
        if owner.is_free() || owner.flags & meta::MAP_PAGE == 0 && self.meta.page(extent).is_none() {
            return Ok(None);
        }
        self.page_to_change(extent).await.map(Some)
    }

    /// The only copy of a block is damaged: it cannot go anywhere.
    async fn lose_block(self: &Rc<Self>, live: &Live) -> Result<(), Status> {
        let Some(page) = self.page_of(live.entry.block).await?.filter(|page| leads_to(page, live)) else {
            return Ok(());
        };
        let index = live.entry.block % EXTENT_BLOCKS;
        page.set(index, meta::LOST);
        let owner = self.meta.descriptor(page.extent());
        tracing::error!(
            "pool '{}': block {} of {} (of 4 KiB) is lost: its band gives it back no more",
            self.pool_name,
            owner.vextent as u64 * EXTENT_BLOCKS as u64 + index as u64,
            self.names.of(owner.volume)
        );
        add(&self.counters.lost_blocks, 1);
        Ok(())
    }
}

/// Whether the block is live: its map page leads to this copy of it.
fn leads_to(page: &Page, live: &Live) -> bool {
    let index = live.entry.block % EXTENT_BLOCKS;
    page.extent() == extent_of(live.entry.block) && page.get(index) == live.entry.crc && page.band_at(index) == live.at
}

fn is_of(live: &Live, bytes: &[u8]) -> bool {
    meta::stored_crc(crc32c(bytes)) == live.entry.crc
}

fn is_whole(bufs: &SgList, live: &Live) -> bool {
    let mut whole = [0; BLOCK_BYTES];
    sg_len(bufs) == BLOCK_BYTES && {
        super::data::copy_out(bufs, 0, &mut whole);
        is_of(live, &whole)
    }
}
