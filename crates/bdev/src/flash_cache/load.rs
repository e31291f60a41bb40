//! Opening: who belongs to whom, and what of flash may be believed.

use super::format::{
    ANCHOR, Anchor, Geometry, Header, IMAGE, LABEL, Label, MARKS, PAGE_MARKS, PAGE_SLOTS, decode_page, page_body,
};
use super::patience::{OPEN_PATIENCE_NS, Patience};
use super::ring::{Ring, Shape};
use super::trust::Trust;
use super::{FlashCacheOptions, Inner, Mode, Shared, State};
use crate::device::{Channel, DeviceInfo};
use crate::io::{Io, Lba, Status};
use crate::parts::Parts;
use crate::slots::{Content, Found, Kind, Slots, Stamp, UNIT_BYTES};
use crate::steps;
use base::Errno;
use reactor::{Reactor, SgList};
use std::rc::Rc;
use std::sync::Weak;

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

    /// The headers of all segments that are whole, by place, for as long as `each` wants more. When it `pauses`, others have the core
    /// for half of the time.
    async fn read_headers(
        &self,
        label: &Label,
        pauses: bool,
        mut each: impl FnMut(Header) -> bool,
    ) -> Result<(), Status> {
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
            let since_ns = self.reactor.clock_ns();
            for (done, place) in ended.zip(first..) {
                if !done.status.is_ok() {
                    failed = Some(done.status);
                    continue;
                }
                let mut bytes = vec![0; reactor::buf::sg_len(&done.io.bufs)];
                steps::sg_read_at(&done.io.bufs, 0, &mut bytes);
                let header = Header::decode(label.flash_id, shape.slots_per_segment(), &mut bytes);
                let header = header.filter(|header| header.seq % shape.segments == place && header.seq > 0);
                if header.is_some_and(|header| !each(header)) {
                    return Ok(());
                }
                self.reactor.yield_now().await;
            }
            if pauses {
                self.reactor.sleep_ns(self.reactor.clock_ns() - since_ns).await;
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// The last segment that the slow device let be written before it was opened.
pub(super) fn known_to(former: &Anchor) -> u64 {
    if former.clean { former.next_seq.saturating_sub(1) } else { former.reserved_to }
}

/// Finds what is cached on flash. The device is in use meanwhile, and may go: then this ends.
pub(super) struct Search {
    pub(super) shared: Weak<Shared>,
    pub(super) reactor: Rc<Reactor>,
    pub(super) slow: Rc<dyn Channel>,
    pub(super) flash: Rc<dyn Channel>,
    pub(super) label: Label,
    /// The anchor as the opening found it.
    pub(super) former: Anchor,
    /// See [`FlashCacheOptions::loads_after_ns`].
    pub(super) after_ns: Option<u64>,
}

/// What a search has come to.
struct Progress {
    /// Of each place the segment that is there; 0 where none was found.
    seqs: Vec<u64>,
    newest: u64,
    /// Blocks that flash had and that were not believed.
    dropped: u64,
}

impl Search {
    pub(super) async fn run(self) {
        let Some((name, block_size)) =
            self.shared.upgrade().map(|shared| (shared.name.clone(), shared.info.block_size))
        else {
            return;
        };
        let side = |channel: &Rc<dyn Channel>| Side {
            reactor: &self.reactor,
            channel: channel.clone(),
            block_size,
            blocks: 0,
            io_blocks: 1,
        };
        if let Some(after_ns) = self.after_ns {
            self.reactor.sleep_ns(after_ns).await;
        }
        let (shape, former) = (self.label.shape, &self.former);
        let image = match former.clean {
            true => Some(side(&self.slow).read_image(former, shape.slots()).await),
            false => None,
        };
        let mut progress = Progress { seqs: vec![0; shape.segments as usize], newest: 0, dropped: 0 };
        let flash = side(&self.flash);
        let read = flash.read_headers(&self.label, self.after_ns.is_some(), |header| {
            let Some(shared) = self.shared.upgrade() else { return false };
            let restores_written = shared.restores_written;
            shared.with(|state| self.take(state, &header, image.as_deref(), restores_written, &mut progress));
            true
        });
        if let Err(status) = read.await {
            tracing::warn!(device = name, %status, "some of the flash cache cannot be read");
        }
        let Some(shared) = self.shared.upgrade() else { return };
        let known_to = known_to(former);
        let Progress { seqs, newest, dropped } = progress;
        if newest > known_to {
            tracing::warn!(
                device = name,
                "flash has what the slow device never let be written: that was put back to an earlier state, or has a copy; the cache \
                 begins empty"
            );
            shared.with(|state| {
                state.ring.clear();
                state.ring.next_seq = state.ring.next_seq.max(newest + 1);
            });
            let (flash, slow, reactor) = (Some(self.flash.clone()), self.slow.clone(), self.reactor.clone());
            let inner = Inner { shared: shared.clone(), reactor, slow, flash };
            let noted = inner.write_anchor(|anchor| anchor.void_to = anchor.void_to.max(newest)).await;
            if let Err(status) = noted {
                tracing::error!(device = name, %status, "that cannot be noted: flash is not used until the device is opened again");
                return shared.with(|state| state.mode = Mode::Failed);
            }
        }
        let blocks = shared.with(|state| {
            // What was not found now may be there the next time: what is written from now on has to count for that too.
            state.trust.end_search(&seqs, known_to);
            state.mode = Mode::On;
            state.ring.index.len()
        });
        tracing::info!(device = name, blocks, dropped, clean = former.clean, "flash cache open");
    }

    /// Takes in what a segment has.
    fn take(
        &self,
        state: &mut State,
        header: &Header,
        image: Option<&[Option<Vec<u64>>]>,
        restores_written: bool,
        progress: &mut Progress,
    ) {
        let (seq, former, shape) = (header.seq, &self.former, self.label.shape);
        progress.seqs[(seq % shape.segments) as usize] = seq;
        progress.newest = progress.newest.max(seq);
        state.ring.written_total = state.ring.written_total.max(header.written_total);
        if seq <= former.void_to || seq > former.reserved_to {
            return;
        }
        for (nth, lba, crc) in header.blocks(former.geometry.data_blocks) {
            let slot = seq % shape.segments * shape.slots_per_segment() + nth;
            let page = image.and_then(|image| image.get((slot / PAGE_SLOTS) as usize)).and_then(Option::as_ref);
            let was_cached = match page {
                Some(words) => {
                    // The ring holds one of the last numbers in every place: an older one is what a lost write left there.
                    let bit = slot % PAGE_SLOTS;
                    seq < former.next_seq
                        && seq + former.segments >= former.next_seq
                        && words[(bit / 64) as usize] >> (bit % 64) & 1 == 1
                }
                None => state.trust.counts(seq, lba),
            };
            state.trust.has_content(seq, lba);
            if was_cached && (state.trust.is_unwritten(lba) || restores_written) {
                state.ring.restore(seq, nth, lba, crc);
            } else {
                progress.dropped += 1;
            }
        }
    }
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
