//! Opening: who belongs to whom, and what of flash may be believed.

use super::format::{
    ANCHOR, Anchor, Geometry, Header, IMAGE, LABEL, Label, MARKS, PAGE_MARKS, PAGE_SLOTS, decode_page, page_body,
};
use super::patience::{OPEN_PATIENCE_NS, Patience};
use super::ring::{Ring, Shape};
use super::trust::Trust;
use super::{FlashCacheOptions, Mode, State};
use crate::device::{Channel, DeviceInfo};
use crate::io::{Io, Lba, Status};
use crate::parts::Parts;
use crate::slots::{Content, Found, Kind, Slots, Stamp, UNIT_BYTES};
use crate::steps;
use base::Errno;
use reactor::{Reactor, SgList};
use std::rc::Rc;

/// Headers read at a time.
const READS_AT_ONCE: u64 = 16;

/// A device as it is opened.
pub(super) struct Side<'a> {
    pub(super) reactor: &'a Rc<Reactor>,
    pub(super) channel: Rc<dyn Channel>,
    pub(super) block_size: u32,
    pub(super) blocks: u64,
    /// Most blocks of one operation.
    pub(super) io_blocks: u32,
}

impl<'a> Side<'a> {
    pub(super) fn of(reactor: &'a Rc<Reactor>, channel: Rc<dyn Channel>, info: &DeviceInfo) -> Side<'a> {
        Side { reactor, channel, block_size: info.block_size, blocks: info.blocks, io_blocks: info.max_io_blocks }
    }
}

impl Side<'_> {
    fn slots(&self, kind: Kind) -> Slots<'_> {
        Slots { reactor: self.reactor, channel: &*self.channel, block_size: self.block_size, kind }
    }

    pub(super) async fn read_anchor(&self) -> Found<Anchor> {
        self.slots(ANCHOR).read(Anchor::decode).await
    }

    pub(super) async fn read_label(&self) -> Found<Label> {
        self.slots(LABEL).read(Label::decode).await
    }

    /// Makes a flash device this cache's.
    pub(super) async fn write_label(&self, label: &Label) -> Result<(), Status> {
        let stamp = Stamp { id: label.flash_id, generation: 1 };
        self.slots(LABEL).write(0, &LABEL.seal(stamp, &label.body())).await
    }

    /// Makes the slow device a cache's: marks first, the anchor last.
    pub(super) async fn create(&self, anchor: &Anchor) -> Result<(), Status> {
        let slots = self.slots(ANCHOR);
        // Nothing may find what was there before, half overwritten.
        slots.write(0, &[0; UNIT_BYTES]).await?;
        // Those of regions that there may be one day as well.
        let pages = (0..anchor.geometry.mark_pages).flat_map(|page| {
            let unit = MARKS.seal(anchor.stamp, &page_body(page, &[0; PAGE_MARKS as usize]));
            std::iter::repeat_n(unit, MARKS.copies as usize)
        });
        slots.write_run(Geometry::mark_unit(0, 0), pages, self.io_blocks).await?;
        self.channel.submit(Io::flush()).await.status.check()?;
        slots.write(0, &ANCHOR.seal(anchor.stamp, &anchor.body())).await
    }

    pub(super) async fn write_anchor(&self, first: u64, anchor: &Anchor) -> Result<(), Status> {
        self.slots(ANCHOR).write(first, &ANCHOR.seal(anchor.stamp, &anchor.body())).await
    }

    /// The marks; those of a page without any whole copy are as high as can be. Both copies count: a mark only grows.
    pub(super) async fn read_marks(&self, name: &str, anchor: &Anchor) -> Vec<u64> {
        let regions = anchor.geometry.regions();
        let mut marks = Vec::with_capacity(regions as usize);
        for page in 0..anchor.geometry.mark_pages_used() {
            let count = PAGE_MARKS.min(regions - page * PAGE_MARKS) as usize;
            let mut found: Option<Vec<u64>> = None;
            for copy in 0..MARKS.copies {
                let Some(words) = self.read_page(MARKS, anchor, Geometry::mark_unit(page, copy), page, count).await
                else {
                    continue;
                };
                let former = found.unwrap_or_else(|| vec![0; count]);
                found = Some(words.1.iter().zip(former).map(|(one, other)| *one.max(&other)).collect());
            }
            let lost = || {
                tracing::warn!(
                    device = name,
                    page,
                    "marks of the flash cache are lost; what it has of their regions is dropped"
                );
                vec![anchor.reserved_to; count]
            };
            marks.extend(found.unwrap_or_else(lost));
        }
        marks
    }

    async fn read_page(
        &self,
        kind: Kind,
        anchor: &Anchor,
        unit: u64,
        page: u64,
        count: usize,
    ) -> Option<(u64, Vec<u64>)> {
        let unit = self.slots(kind).read_unit(unit).await.ok()?;
        match kind.open(&unit) {
            Content::Record(stamp, body) if stamp.id == anchor.stamp.id => {
                Some((stamp.generation, decode_page(body, page, count)?))
            }
            _ => None,
        }
    }

    /// The words of the image of the last close; a page that is not whole is `None`.
    pub(super) async fn read_image(&self, anchor: &Anchor, slots: u64) -> Vec<Option<Vec<u64>>> {
        let mut pages = Vec::new();
        for page in 0..slots.div_ceil(PAGE_SLOTS).min(anchor.geometry.image_pages) {
            let count = PAGE_SLOTS.min(slots - page * PAGE_SLOTS).div_ceil(64) as usize;
            let unit = anchor.geometry.image_unit(page);
            let found = self.read_page(IMAGE, anchor, unit, page, count).await;
            pages.push(found.filter(|(session, _)| *session == anchor.session).map(|(_, words)| words));
        }
        pages
    }

    /// The headers of all segments that are whole, by place.
    pub(super) async fn read_headers(&self, label: &Label, mut each: impl FnMut(Header)) -> Result<(), Status> {
        let shape = label.shape;
        let mut failed = None;
        for first in (0..shape.segments).step_by(READS_AT_ONCE as usize) {
            let mut parts = Parts::default();
            for place in first..(first + READS_AT_ONCE).min(shape.segments) {
                let bytes = shape.header_blocks as usize * shape.block_size as usize;
                let bufs = SgList::from_iter([steps::alloc(self.reactor, bytes).await?]);
                let at = label.first_block + place * shape.segment_blocks;
                parts.push(self.channel.submit(Io::read(Lba(at), shape.header_blocks as u32, bufs)));
            }
            let Some(ended) = self.reactor.timeout(OPEN_PATIENCE_NS, parts.join()).await else {
                return Err(Status::Os(Errno::ETIMEDOUT));
            };
            for (done, place) in ended.zip(first..) {
                if !done.status.is_ok() {
                    failed = Some(done.status);
                    continue;
                }
                let mut bytes = vec![0; reactor::buf::sg_len(&done.io.bufs)];
                steps::sg_read_at(&done.io.bufs, 0, &mut bytes);
                let header = Header::decode(label.flash_id, shape.slots_per_segment(), &mut bytes);
                header
                    .filter(|header| header.seq % shape.segments == place && header.seq > 0)
                    .into_iter()
                    .for_each(&mut each);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// What an opening found.
pub(super) struct Loaded {
    pub(super) state: State,
    /// Blocks that flash had and that were not believed.
    pub(super) dropped: u64,
    /// Flash has segments up to this one that the slow device knows nothing of: it was put back to an earlier state, or shares
    /// the flash with another. The state is not to be used: up to there everything is void.
    pub(super) future: Option<u64>,
}

/// Brings back what is cached. `image` is of a clean close.
pub(super) async fn load(
    flash: &Side<'_>,
    name: &str,
    label: &Label,
    anchor: &Anchor,
    marks: Vec<u64>,
    image: Option<Vec<Option<Vec<u64>>>>,
    options: &FlashCacheOptions,
) -> Loaded {
    let mut state = new_state(flash.reactor, label.shape, anchor, marks, options);
    let (data_blocks, per) = (anchor.geometry.data_blocks, label.shape.slots_per_segment());
    let mut dropped = 0;
    let mut seqs = vec![0; label.shape.segments as usize];
    // The slow device has gone back in time when flash has segments that it never let be written.
    let known_to = if anchor.clean { anchor.next_seq - 1 } else { anchor.reserved_to };
    let mut newest = 0;
    let read = flash.read_headers(label, |header| {
        let seq = header.seq;
        seqs[(seq % label.shape.segments) as usize] = seq;
        newest = newest.max(seq);
        state.ring.written_total = state.ring.written_total.max(header.written_total);
        if seq <= anchor.void_to || seq > anchor.reserved_to {
            return;
        }
        for (nth, lba, crc) in header.blocks(data_blocks) {
            let slot = seq % label.shape.segments * per + nth;
            let page =
                image.as_ref().and_then(|image| image.get((slot / PAGE_SLOTS) as usize)).and_then(Option::as_ref);
            let is_cached = match page {
                Some(words) => {
                    // The ring holds one of the last numbers in every place: an older one is what a lost write left there.
                    let bit = slot % PAGE_SLOTS;
                    seq < anchor.next_seq
                        && seq + anchor.segments >= anchor.next_seq
                        && words[(bit / 64) as usize] >> (bit % 64) & 1 == 1
                }
                None => state.trust.counts(seq, lba),
            };
            state.trust.has_content(seq, lba);
            if is_cached {
                state.ring.restore(seq, nth, lba, crc);
            } else {
                dropped += 1;
            }
        }
    });
    if let Err(status) = read.await {
        tracing::warn!(device = name, %status, "some of the flash cache cannot be read");
    }
    // What was not found now may be there the next time: what is written from now on has to count for that too.
    state.trust.found(&seqs, known_to);
    Loaded { state, dropped, future: Some(newest).filter(|newest| *newest > known_to) }
}

/// A state with nothing cached.
pub(super) fn new_state(
    reactor: &Rc<Reactor>,
    shape: Shape,
    anchor: &Anchor,
    marks: Vec<u64>,
    options: &FlashCacheOptions,
) -> State {
    let now_ns = reactor.now_ns();
    let mut ring = Ring::new(shape, options.write_budget, reactor.driver().random_u64(), now_ns);
    ring.written_total = anchor.written_total;
    ring.window = super::budget::Window::new(anchor.bins, now_ns);
    ring.next_seq =
        if anchor.clean { anchor.next_seq.max(anchor.void_to + 1) } else { anchor.reserved_to.max(anchor.void_to) + 1 };
    let mut trust = Trust::new(marks, anchor.geometry.region_blocks, anchor.segments);
    (trust.reserved_to, trust.void_to) = (anchor.reserved_to, anchor.void_to);
    State {
        ring,
        trust,
        mode: Mode::On,
        is_clean: false,
        is_pumping: false,
        anchor: *anchor,
        anchor_first: 0,
        anchor_attempts: anchor.stamp.generation,
        patience: Patience::default(),
        errors_in_row: 0,
        endurance: options.endurance,
    }
}
