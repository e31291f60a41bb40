//! Reading: the newest bytes of every block, verified.
//!
//! A read plans where each block is, fetches, verifies, and plans again: only when nothing has moved meanwhile is the
//! answer given. Destage and the reuse of log space need not wait for readers.

use super::data::{copy_into, copy_out, one};
use super::index::{Chain, Place};
use super::log_map::LogPlace;
use super::{BLOCK, Defect, EAGER_ATTEMPTS, Outcome, Shard, Target, add};
use crate::meta;
use crate::together::Together;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, LogAt};
use base::crc32c;
use bdev::{Io, Status};
use reactor::buf::{sg_append, sg_len, sg_split_off};
use reactor::{BUF_BYTES_MAX, Buf, IoFuture, SgList};
use smallvec::SmallVec;
use std::rc::Rc;

/// Log units of a block.
const BLOCK_UNITS: u32 = (BLOCK_BYTES as u64 / LogAt::UNIT) as u32;
/// Planned anew so often, a read gives up: its blocks move faster than they can be read.
const ATTEMPTS_MAX: u32 = 10_000;

type Plan = SmallVec<[Place; 4]>;

/// What became of the attempt to read without waiting.
enum Now {
    /// The bytes are there.
    Done,
    /// The first block is not in the log, but somewhere else in this extent.
    Elsewhere(u32),
    /// It takes the long way.
    Later,
}

impl Shard {
    /// Fills `bufs` from the target.
    pub(crate) fn read(self: &Rc<Self>, target: Target, mut bufs: SgList) -> IoFuture<'static, Outcome> {
        debug_assert_eq!(sg_len(&bufs), target.bytes as usize);
        add(&self.counters.user_read_bytes, target.bytes as u64);
        match self.read_now(&target, &mut bufs) {
            Now::Done => return IoFuture::ready(Outcome { status: Status::Ok, bufs }),
            Now::Elsewhere(extent) => match self.read_settled(target, extent, bufs) {
                Ok(reading) => return reading,
                Err(unused) => bufs = unused,
            },
            Now::Later => {}
        }
        let shard = self.clone();
        IoFuture::steps(&self.reactor, async move {
            if target.is_whole() { shard.read_blocks(target, bufs).await } else { shard.read_bytes(target, bufs).await }
        })
    }

    /// A read of whole blocks that are all in a mapped log.
    #[inline]
    fn read_now(&self, target: &Target, bufs: &mut SgList) -> Now {
        if !target.is_whole() {
            return Now::Later;
        }
        let Some(extent) = self.index.extent(target.volume, target.vextent) else {
            if self.lineage.below(target.volume).is_some() {
                return Now::Later;
            }
            reactor::buf::sg_zero(bufs);
            return Now::Done;
        };
        let first = extent * EXTENT_BLOCKS + target.offset / BLOCK;
        let [buf] = bufs.as_mut_slice() else { return Now::Elsewhere(extent) };
        let Some(place) = self.index.log_place(first) else { return Now::Elsewhere(extent) };
        let Some(places) = self.index.log_places(first, place, target.bytes / BLOCK) else { return Now::Later };
        let bytes = buf.as_mut_slice();
        // What was written as one is copied as one, and checked when it is in the cache.
        let mut at = 0;
        while at < places.len() {
            let end = at + logged_together(places[at..].iter().map(|place| place.at));
            if !self.log.try_read(places[at].at, 0, &mut bytes[at * BLOCK_BYTES..end * BLOCK_BYTES]) {
                return Now::Later;
            }
            at = end;
        }
        // On a mismatch the long way finds out, and reports.
        if places.iter().zip(bytes.chunks_exact(BLOCK_BYTES)).any(|(place, bytes)| crc32c(bytes) != place.crc) {
            return Now::Later;
        }
        add(&self.counters.log_hit_bytes, target.bytes as u64);
        Now::Done
    }

    /// A range that is not made of whole blocks.
    pub(super) async fn read_bytes(self: &Rc<Self>, target: Target, mut bufs: SgList) -> Outcome {
        let blocks = target.blocks();
        let mut done = 0usize;
        let (mut block, mut skip) = (blocks.start, (target.offset % BLOCK) as usize);
        while block < blocks.end {
            let count = (blocks.end - block).min((BUF_BYTES_MAX / BLOCK_BYTES) as u32);
            let part = Target { offset: block * BLOCK, bytes: count * BLOCK, ..target };
            let buf = match bdev::steps::alloc(&self.reactor, part.bytes as usize).await {
                Ok(buf) => buf,
                Err(status) => return Outcome { status, bufs },
            };
            let read = self.read_blocks(part, one(buf)).await;
            if read.status != Status::Ok {
                return Outcome { status: read.status, bufs };
            }
            let bytes = (part.bytes as usize - skip).min(target.bytes as usize - done);
            // It may have come from several devices, in as many pieces.
            let end = done + bytes;
            for piece in &read.bufs {
                let from = skip.min(piece.len());
                let to = piece.len().min(from + end - done);
                copy_into(&mut bufs, done, &piece.as_slice()[from..to]);
                (done, skip) = (done + to - from, skip - from);
            }
            (skip, block) = (0, block + count);
        }
        Outcome { status: Status::Ok, bufs }
    }

    /// A range of whole blocks.
    pub(super) async fn read_blocks(self: &Rc<Self>, target: Target, mut bufs: SgList) -> Outcome {
        for attempt in 0..ATTEMPTS_MAX {
            if attempt >= EAGER_ATTEMPTS {
                self.reactor.yield_now().await;
            }
            let uncovered = self.index.uncovered();
            let (extent, plan) = self.plan(&target);
            if plan.contains(&Place::Lost) {
                return Outcome { status: Status::ReadError, bufs };
            }
            let Some(extent) = extent else {
                let below = self.read_below(target, bufs).await;
                if uncovered == self.index.uncovered() {
                    return below;
                }
                bufs = below.bufs;
                continue;
            };
            // Held until the answer is judged, so that the page stays in memory.
            let (plan, _page) = if needs_page(&plan) {
                match self.meta.load_to_read(extent).await {
                    Ok(page) => (self.plan(&target).1, Some(page)),
                    Err(status) => return Outcome { status, bufs },
                }
            } else {
                (plan, None)
            };
            if plan.is_empty() || needs_page(&plan) {
                continue;
            }
            let (status, filled) = self.fetch(extent, &target, &plan, bufs).await;
            bufs = filled;
            // What lay below may have come up meanwhile.
            let unmoved = uncovered == self.index.uncovered() || !plan.iter().any(shows_below);
            if unmoved && let Some(status) = self.judge(&target, extent, &plan, status) {
                return Outcome { status, bufs };
            }
        }
        Outcome { status: Status::ReadError, bufs }
    }

    fn plan(&self, target: &Target) -> (Option<u32>, Plan) {
        let extent = self.index.extent(target.volume, target.vextent);
        let Some(found) = extent else { return (None, Plan::new()) };
        let plan = target.blocks().map(|index| self.index.place(found * EXTENT_BLOCKS + index)).collect();
        (extent, plan)
    }

    /// The answer to give after a fetch that ended with `status`, or `None` when blocks have moved meanwhile.
    fn judge(&self, target: &Target, extent: u32, plan: &Plan, status: Status) -> Option<Status> {
        let (again, now) = self.plan(target);
        let unmoved = again == Some(extent) && now == *plan;
        if !unmoved {
            return None;
        }
        if status == Status::Corrupt {
            add(&self.counters.corrupt_blocks, 1);
            tracing::error!(
                "pool '{}': a read of {} bytes of {}, from byte {} on, found some that fail their checksum (shard {}, extent {extent}, \
                 device '{}'): it is an error for the host; 'remuda pool scrub {0}' finds out which blocks, and writing them mends them",
                self.pool_name,
                target.bytes,
                self.names.of(target.volume),
                target.vextent as u64 * EXTENT_BLOCKS as u64 * BLOCK as u64 + target.offset as u64,
                self.number,
                self.capacity_device.name()
            );
        }
        Some(status)
    }

    /// Fetches every run of the plan at the same time, and verifies each block.
    async fn fetch(self: &Rc<Self>, extent: u32, target: &Target, plan: &Plan, bufs: SgList) -> (Status, SgList) {
        let first = extent * EXTENT_BLOCKS + target.offset / BLOCK;
        let mut runs = Together::new();
        let (mut at, mut rest) = (0usize, bufs);
        while at < plan.len() {
            let count = run_length(&plan[at..]);
            let tail = sg_split_off(&mut rest, count * BLOCK_BYTES);
            let part = std::mem::replace(&mut rest, tail);
            let places = &plan[at..at + count];
            runs.push(self.fetch_run(target, first + at as u32, places, part));
            at += count;
        }
        let (mut status, mut filled) = (Status::Ok, SgList::new());
        while let Some((ended, part)) = runs.first().await {
            sg_append(&mut filled, part);
            if status == Status::Ok {
                status = ended;
            }
        }
        (status, filled)
    }

    fn fetch_run<'a>(
        self: &'a Rc<Self>,
        target: &'a Target,
        first: u32,
        places: &'a [Place],
        mut part: SgList,
    ) -> IoFuture<'a, (Status, SgList)> {
        match &places[0] {
            Place::Hole => {
                reactor::buf::sg_zero(&mut part);
                IoFuture::ready((Status::Ok, part))
            }
            Place::Inherit => {
                let run =
                    Target { offset: first % EXTENT_BLOCKS * BLOCK, bytes: places.len() as u32 * BLOCK, ..*target };
                let read = self.read_below(run, part);
                IoFuture::new(async move {
                    let Outcome { status, bufs } = read.await;
                    (status, bufs)
                })
            }
            Place::Log(place) => {
                let read = self.log.read(place.at, 0, places.len() * BLOCK_BYTES);
                IoFuture::new(async move {
                    let mut status = match read.await {
                        Ok(bytes) => {
                            copy_list(&bytes, &mut part);
                            self.verified(places, &part)
                        }
                        Err(status) => status,
                    };
                    if self.may_rescue_logged(status) {
                        status = Box::pin(self.rescue_logged(places, status, &mut part)).await;
                    }
                    if status.is_ok() {
                        add(&self.counters.log_hit_bytes, sg_len(&part) as u64);
                    }
                    (status, part)
                })
            }
            Place::Settled(_, at) => {
                let (block, held) = match self.meta.bands() {
                    Some(bands) => (bands.device_block(*at), Some(bands.hold(*at))),
                    None => (self.meta.data_block(first), None),
                };
                let io = self.capacity_io(block, places.len() as u32, |lba, blocks| Io::read(lba, blocks, part));
                let read = self.capacity.submit(io);
                IoFuture::new(async move {
                    let mut done = read.await;
                    let mut status = match done.status {
                        Status::Ok => self.verified(places, &done.io.bufs),
                        // A place that was read from media, and that nobody can have written.
                        Status::OutOfRange => Status::Corrupt,
                        status => status,
                    };
                    if self.may_rescue(status) {
                        let bufs = &mut done.io.bufs;
                        // Boxed, as it is rare and would make the future of every read larger.
                        status = Box::pin(self.rescue_run(target, first, block, places, status, bufs)).await;
                    }
                    drop(held);
                    (status, done.io.bufs)
                })
            }
            Place::Deltas(chain, base) => IoFuture::new(async move {
                let below = std::slice::from_ref(&**base);
                let (status, mut part) = match base.as_ref() {
                    Place::Lost => (Status::ReadError, part),
                    _ => self.fetch_run(target, first, below, part).await,
                };
                let status = if status.is_ok() { self.lay_over(chain, &mut part).await } else { status };
                (status, part)
            }),
            Place::Lost | Place::NeedsPage => IoFuture::ready((Status::ReadError, part)),
        }
    }

    /// Fills `bufs` with what lies below the target's layer. Layers that have nothing there, as far as is known without
    /// reading, are passed in one go: there may be thousands.
    fn read_below(self: &Rc<Self>, mut target: Target, mut bufs: SgList) -> IoFuture<'static, Outcome> {
        let range = target.range();
        loop {
            let below = self.lineage.below(target.volume).filter(|below| range.start < below.blocks);
            let Some(below) = below else {
                reactor::buf::sg_zero(&mut bufs);
                return IoFuture::ready(Outcome { status: Status::Ok, bufs });
            };
            if below.blocks < range.end {
                let mut hidden = sg_split_off(&mut bufs, (below.blocks - range.start) as usize * BLOCK_BYTES);
                reactor::buf::sg_zero(&mut hidden);
                let shown = Target { bytes: (below.blocks - range.start) as u32 * BLOCK, ..target };
                let read = self.read_below(shown, bufs);
                return IoFuture::new(async move {
                    let Outcome { status, mut bufs } = read.await;
                    sg_append(&mut bufs, hidden);
                    Outcome { status, bufs }
                });
            }
            target.volume = below.layer;
            let (extent, plan) = self.plan(&target);
            if extent.is_some() && plan.iter().any(|place| *place != Place::Inherit) {
                let shard = self.clone();
                return IoFuture::steps(&self.reactor, async move { shard.descend(target, bufs).await });
            }
        }
    }

    /// As [`read_below`](Self::read_below), of the target's layer or the first below it that has anything there: step by step
    /// where map pages have to be read first, so that the stack does not grow with the layers.
    async fn descend(self: Rc<Self>, mut target: Target, bufs: SgList) -> Outcome {
        let range = target.range();
        loop {
            if let Some(extent) = self.index.extent(target.volume, target.vextent) {
                let page = match self.meta.load_to_read(extent).await {
                    Ok(page) => page,
                    Err(status) => return Outcome { status, bufs },
                };
                let (_, plan) = self.plan(&target);
                drop(page);
                if plan.iter().any(|place| *place != Place::Inherit) {
                    return self.read_blocks(target, bufs).await;
                }
            }
            match self.lineage.below(target.volume) {
                Some(below) if below.blocks >= range.end => target.volume = below.layer,
                _ => return self.read_below(target, bufs).await,
            }
        }
    }

    fn verified(&self, places: &[Place], list: &SgList) -> Status {
        if self.is_broken(Defect::SkipVerify) { Status::Ok } else { verify(places, list) }
    }

    /// Puts deltas over a block.
    async fn lay_over(&self, chain: &Chain, block: &mut SgList) -> Status {
        for delta in chain {
            let LogPlace { at, crc } = delta.place;
            let read = match self.log.read(at, 0, delta.bytes as usize).await {
                Ok(bytes) if crate::checksums::list_crc(&bytes) == crc => Ok(bytes),
                Ok(_) => Err(Status::Corrupt),
                Err(status) => Err(status),
            };
            let bytes = match read {
                Ok(bytes) => bytes,
                Err(status) if !self.may_rescue_logged(status) => return status,
                Err(status) => match Box::pin(self.log.read_right(at, delta.bytes as usize, crc)).await {
                    Ok(Some(bytes)) => bytes,
                    Ok(None) => return status,
                    Err(status) => return status,
                },
            };
            let mut at = delta.offset as usize;
            for buf in &bytes {
                copy_into(block, at, buf.as_slice());
                at += buf.len();
            }
        }
        Status::Ok
    }
}

/// Whether the map page has to be read before the plan can be carried out.
fn needs_page(plan: &Plan) -> bool {
    let needs = |place: &Place| *place == Place::NeedsPage;
    plan.iter().any(|place| needs(place) || matches!(place, Place::Deltas(_, base) if needs(base)))
}

/// Whether what is read is, in part, what lies below the layer.
fn shows_below(place: &Place) -> bool {
    match place {
        Place::Deltas(_, base) => shows_below(base),
        place => *place == Place::Inherit,
    }
}

/// How many blocks from the first can be fetched as one.
pub(super) fn run_length(places: &[Place]) -> usize {
    let most = BUF_BYTES_MAX / BLOCK_BYTES;
    let follows = |index: usize| match (&places[index - 1], &places[index]) {
        (Place::Hole, Place::Hole) | (Place::Inherit, Place::Inherit) => true,
        (Place::Settled(_, one), Place::Settled(_, next)) => {
            one.0 == meta::NOWHERE || one.0.checked_add(1) == Some(next.0)
        }
        (Place::Log(one), Place::Log(next)) => one.at.0 + BLOCK_UNITS == next.at.0,
        _ => false,
    };
    (1..places.len().min(most)).find(|index| !follows(*index)).unwrap_or(places.len().min(most))
}

/// How many blocks from the first lie in the log one behind the other.
pub(super) fn logged_together(places: impl Iterator<Item = LogAt>) -> usize {
    let mut next = None;
    let follows = |at: &LogAt| next.replace(at.0.checked_add(BLOCK_UNITS)).is_none_or(|next| next == Some(at.0));
    places.take_while(follows).count()
}

fn copy_list(source: &[Buf], target: &mut SgList) {
    let mut at = 0;
    for buf in source {
        copy_into(target, at, buf.as_slice());
        at += buf.len();
    }
}

/// Whether each block is what its place says.
fn verify(places: &[Place], list: &SgList) -> Status {
    let mut whole = [0u8; BLOCK_BYTES];
    for (step, place) in places.iter().enumerate() {
        let at = step * BLOCK_BYTES;
        let crc = match list.as_slice() {
            [buf] => crc32c(&buf.as_slice()[at..at + BLOCK_BYTES]),
            list => {
                copy_out(list, at, &mut whole);
                crc32c(&whole)
            }
        };
        let right = match place {
            Place::Log(place) => place.crc == crc,
            Place::Settled(stored, _) => meta::stored_crc(crc) == *stored,
            _ => true,
        };
        if !right {
            return Status::Corrupt;
        }
    }
    Status::Ok
}
