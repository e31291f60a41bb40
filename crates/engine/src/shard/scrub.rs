//! Scrubbing: reading every block that has content, slowly and in the background, to find rot while there are backups.
//!
//! It goes through the extents of the shard in order. One that is freed meanwhile is passed over; one that is allocated
//! behind it was just written. Before that, it reads the [metadata](super::metadata) and the [headers of stripes](super::unspoken). That
//! holds over an end of the pool's use, too: what was [noted](ScrubStatus) of a scrub is taken up when the pool is opened again.

use super::Shard;
use super::mend::Rotten;
use super::metadata::BadMetadata;
use super::unspoken::{BadHeader, Headers};
use super::verify::{BadBlock, Verified};
use crate::meta::Descriptor;
use crate::pool::PoolShared;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use reactor::sync::Notify;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Most runs of bad blocks that are listed.
pub const SCRUB_FINDINGS_MAX: usize = 256;
/// Blocks read at a time.
const RUN_BLOCKS: u32 = 32;

/// Blocks of a volume that a scrub could not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BadRun {
    /// The volume's number.
    pub volume: u32,
    /// First block, of 4 KiB.
    pub first: u64,
    /// How many.
    pub blocks: u32,
    /// They are known to be lost; otherwise they cannot be read or do not match their checksums.
    pub lost: bool,
    /// The one that has these blocks, where the volume only shows them.
    pub of: Option<u32>,
}

impl BadRun {
    /// Whether both are one.
    fn goes_on_with(&self, next: &BadRun) -> bool {
        let are_alike = (self.volume, self.lost, self.of) == (next.volume, next.lost, next.of);
        let blocks = self.blocks.checked_add(next.blocks);
        are_alike && blocks.is_some() && self.first + self.blocks as u64 == next.first
    }
}

/// How far a scrub of a shard is, and what it has found. Who keeps it can have it [taken up](crate::Pool::adopt_scrub) later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubStatus {
    /// It is under way.
    pub running: bool,
    /// Extents passed, and extents of the shard; equal when it has ended.
    pub extents_done: u32,
    /// See `extents_done`.
    pub extents_total: u32,
    /// Blocks that were good.
    pub good_blocks: u64,
    /// Blocks that could not be read.
    pub corrupt_blocks: u64,
    /// Blocks that are known to be lost.
    pub lost_blocks: u64,
    /// Blocks that were damaged in one version and were written anew from another, while it ran.
    pub healed_blocks: u64,
    /// The first [`SCRUB_FINDINGS_MAX`] runs of bad blocks; each followed by those that show them.
    pub bad: Vec<BadRun>,
    /// Stripes, of a shaped pool, whose headers were good.
    pub good_headers: u64,
    /// Damaged headers of stripes that had blocks in use.
    pub damaged_headers: u64,
    /// Blocks that were in use there, and were written anew.
    pub rewritten_blocks: u64,
    /// The first [`BAD_HEADERS_MAX`](super::BAD_HEADERS_MAX) of these headers.
    pub bad_headers: Vec<BadHeader>,
    /// Copies of structures of the metadata that were right, in every version.
    pub good_metadata: u64,
    /// Those that were damaged. What all shards have in common counts with the first one.
    pub damaged_metadata: u64,
    /// Of these, the ones that were written anew.
    pub repaired_metadata: u64,
    /// The first [`BAD_METADATA_MAX`](super::BAD_METADATA_MAX) of the damaged ones.
    pub bad_metadata: Vec<BadMetadata>,
    /// All metadata has been read.
    pub metadata_done: bool,
    /// Scrubs that came to their end.
    pub completed: u64,
    /// Blocks that the last of these found bad: what is known while another one is under way, or was stopped.
    pub bad_before: u64,
}

impl ScrubStatus {
    /// Where it stands.
    pub fn course(&self) -> ScrubCourse {
        match () {
            () if self.running => ScrubCourse::Runs,
            () if self.extents_total == 0 => ScrubCourse::None,
            () if self.extents_done == self.extents_total => ScrubCourse::Ended,
            () => ScrubCourse::Stopped,
        }
    }
}

/// Where a scrub stands; of several, the greatest is that of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScrubCourse {
    /// There was none.
    None,
    /// It came to its end.
    Ended,
    /// It was stopped before its end.
    Stopped,
    /// It is under way.
    Runs,
}

/// Where a scrub stands, and how much it has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubStand {
    /// Of all shards, that of the one that has most to do.
    pub course: ScrubCourse,
    /// Blocks that were bad, healed or written anew, and headers and metadata that were damaged or written anew.
    pub found: u64,
}

#[derive(Default)]
pub(super) struct Scrub {
    /// But for what there is of headers.
    pub(super) status: RefCell<ScrubStatus>,
    /// As it was before the extent that is being read.
    before: RefCell<ScrubStatus>,
    headers: Headers,
    cancelled: Cell<bool>,
    bytes_per_second: Cell<u64>,
    /// Cancelled, or ended.
    changed: Notify,
}

impl Shard {
    /// Where its scrub stands.
    pub(crate) fn scrub_stand(&self) -> ScrubStand {
        let status = self.scrub.status.borrow();
        let (_, damaged_headers, rewritten_blocks) = self.scrub.headers.counts();
        let bad = status.corrupt_blocks + status.lost_blocks;
        let metadata = status.damaged_metadata + status.repaired_metadata;
        let found = bad + status.healed_blocks + damaged_headers + rewritten_blocks + metadata;
        ScrubStand { course: status.course(), found }
    }

    /// Begins a scrub, or goes on with one that was cancelled; of one that runs it changes the pace. In a shard that has come to the end
    /// of one that `goes_on` in others there is nothing to do. With `common`, what all shards have in common is this one's part.
    pub(crate) fn begin_scrub(self: &Rc<Self>, bytes_per_second: u64, goes_on: bool, common: Option<Arc<PoolShared>>) {
        let scrub = &self.scrub;
        scrub.bytes_per_second.set(bytes_per_second.max(1));
        scrub.cancelled.set(false);
        let mut status = scrub.status.borrow_mut();
        let has_ended = status.extents_done == status.extents_total;
        if status.running || (goes_on && has_ended && status.extents_total > 0) {
            return;
        }
        if has_ended {
            let bad_before = status.corrupt_blocks + status.lost_blocks;
            *status = ScrubStatus { completed: status.completed, bad_before, ..ScrubStatus::default() };
            scrub.headers.reset();
        }
        status.running = true;
        status.extents_total = self.meta.extents();
        *scrub.before.borrow_mut() = status.clone();
        drop(status);
        self.reactor.spawn(self.clone().run_scrub(common));
    }

    /// Takes up how far a scrub was, and what it had found, when the pool was in use last: the next one goes on from there. Nothing
    /// is taken up where one has begun since.
    pub(crate) fn adopt_scrub(&self, noted: ScrubStatus) {
        let (scrub, extents) = (&self.scrub, self.meta.extents());
        let is_whole = noted.extents_done <= noted.extents_total && noted.extents_total <= extents;
        let mut status = scrub.status.borrow_mut();
        if status.extents_total > 0 || !is_whole {
            return;
        }
        scrub.headers.adopt(&noted);
        *status = ScrubStatus { running: false, ..noted };
    }

    /// Stops a scrub; returns when it has.
    pub(crate) async fn cancel_scrub(&self) {
        self.scrub.cancelled.set(true);
        self.scrub.changed.notify_all();
        self.scrub.changed.wait_until(|| !self.scrub.status.borrow().running).await;
    }

    pub(crate) fn scrub_status(&self) -> ScrubStatus {
        let (good_headers, damaged_headers, rewritten_blocks) = self.scrub.headers.counts();
        let bad_headers = self.scrub.headers.bad();
        let status = self.scrub.status.borrow().clone();
        ScrubStatus { good_headers, damaged_headers, rewritten_blocks, bad_headers, ..status }
    }

    /// What is to be kept to be [taken up](Self::adopt_scrub): nothing of the extent that is being read, which is read again then.
    pub(crate) fn scrub_note(&self) -> ScrubStatus {
        let status = self.scrub_status();
        if !status.running {
            return status;
        }
        let ScrubStatus { extents_done, extents_total, good_blocks, corrupt_blocks, lost_blocks, bad, .. } =
            self.scrub.before.borrow().clone();
        ScrubStatus { extents_done, extents_total, good_blocks, corrupt_blocks, lost_blocks, bad, ..status }
    }

    async fn run_scrub(self: Rc<Self>, common: Option<Arc<PoolShared>>) {
        let scrub = &self.scrub;
        self.review_metadata(common).await;
        self.review_headers(&scrub.headers, || scrub.cancelled.get(), |bytes| self.scrub_pause(bytes)).await;
        while !scrub.cancelled.get() {
            let extent = scrub.status.borrow().extents_done;
            if extent >= self.meta.extents() {
                scrub.status.borrow_mut().completed += 1;
                break;
            }
            if self.scrub_extent(extent).await {
                let mut status = scrub.status.borrow_mut();
                status.extents_done = extent + 1;
                status.extents_total = self.meta.extents();
            }
        }
        scrub.status.borrow_mut().running = false;
        scrub.changed.notify_all();
    }

    /// False when it was cancelled in the middle: the extent is read again then, so what it had found is dropped.
    async fn scrub_extent(self: &Rc<Self>, extent: u32) -> bool {
        let scrub = &self.scrub;
        *scrub.before.borrow_mut() = scrub.status.borrow().clone();
        for first in (0..EXTENT_BLOCKS).step_by(RUN_BLOCKS as usize) {
            let owner = self.meta.descriptor(extent);
            if owner.is_free() {
                return true;
            }
            let healed_before = self.counters.healed_blocks.get();
            let run = first..first + RUN_BLOCKS;
            let verified = self.verify_run(owner.volume, owner.vextent, run.clone()).await;
            let bytes_of_versions = self.mend_run(owner, run.clone()).await;
            self.rewrite_unspoken(&scrub.headers, owner, run).await;
            scrub.status.borrow_mut().healed_blocks += self.counters.healed_blocks.get() - healed_before;
            if self.meta.descriptor(extent).volume != owner.volume
                || self.meta.descriptor(extent).vextent != owner.vextent
            {
                return true;
            }
            let bytes = self.note_scrubbed(owner, verified).await;
            self.scrub_pause(bytes + bytes_of_versions).await;
            if scrub.cancelled.get() {
                // What was healed is not found again.
                let healed_blocks = scrub.status.borrow().healed_blocks;
                *scrub.status.borrow_mut() = ScrubStatus { healed_blocks, ..scrub.before.borrow().clone() };
                return false;
            }
        }
        true
    }

    /// Reads a run in every version that the capacity device has of it, and writes anew what one of them does not have as it
    /// should; the bytes that were read.
    async fn mend_run(self: &Rc<Self>, owner: Descriptor, run: Range<u32>) -> u64 {
        let Rotten { blocks, read_bytes } = self.rotten(owner.volume, owner.vextent, run).await;
        for index in blocks {
            if let Err(status) = self.mend(owner.volume, owner.vextent, index).await {
                let block = owner.vextent as u64 * EXTENT_BLOCKS as u64 + index as u64;
                let (pool, whose) = (&self.pool_name, self.names.of(owner.volume));
                tracing::warn!("pool '{pool}': block {block} of {whose} cannot be written anew: {status}");
            }
        }
        read_bytes
    }

    /// Counts and lists what was found in an extent; the bytes that were read.
    async fn note_scrubbed(self: &Rc<Self>, owner: Descriptor, verified: Verified) -> u64 {
        self.scrub.status.borrow_mut().good_blocks += verified.good as u64;
        let mut blocks_read = verified.good as u64;
        for (kind, runs) in [(BadBlock::Corrupt, verified.corrupt), (BadBlock::Lost, verified.lost)] {
            let lost = kind == BadBlock::Lost;
            for run in runs {
                let blocks = run.len() as u64;
                blocks_read += blocks;
                let has_room = {
                    let mut status = self.scrub.status.borrow_mut();
                    let total = if lost { &mut status.lost_blocks } else { &mut status.corrupt_blocks };
                    *total += blocks;
                    status.bad.len() < SCRUB_FINDINGS_MAX
                };
                if has_room {
                    self.list_bad(owner, run, lost).await;
                }
            }
        }
        blocks_read * BLOCK_BYTES as u64
    }

    /// Lists a run of an extent, and who shows it.
    async fn list_bad(self: &Rc<Self>, Descriptor { volume, vextent, .. }: Descriptor, run: Range<u32>, lost: bool) {
        let base = vextent as u64 * EXTENT_BLOCKS as u64;
        let bad = |volume, run: &Range<u32>, of| BadRun {
            volume,
            first: base + run.start as u64,
            blocks: run.len() as u32,
            lost,
            of,
        };
        let shown = self.shown_by(volume, vextent, run.clone()).await;
        let shown = shown.iter().map(|(above, part)| bad(*above, part, Some(volume)));
        let found: SmallVec<[BadRun; 4]> = std::iter::once(bad(volume, &run, None)).chain(shown).collect();
        list_found(&mut self.scrub.status.borrow_mut().bad, &found);
    }

    /// Whether it has been stopped.
    pub(super) fn is_scrub_over(&self) -> bool {
        self.scrub.cancelled.get()
    }

    /// Waits for as long as these bytes take at the scrub's pace.
    pub(super) async fn scrub_pause(&self, bytes: u64) {
        let scrub = &self.scrub;
        let ns = (bytes as u128 * 1_000_000_000 / scrub.bytes_per_second.get() as u128) as u64;
        if ns == 0 {
            return self.reactor.yield_now().await;
        }
        let _ = self.reactor.timeout(ns, scrub.changed.wait_until(|| scrub.cancelled.get())).await;
    }
}

/// Lists a run, and those that show it; where they go on what was listed last, that becomes longer.
fn list_found(list: &mut Vec<BadRun>, found: &[BadRun]) {
    if let Some(at) = list.len().checked_sub(found.len())
        && list[at..].iter().zip(found).all(|(last, next)| last.goes_on_with(next))
    {
        list[at..].iter_mut().zip(found).for_each(|(last, next)| last.blocks += next.blocks);
        return;
    }
    let room = SCRUB_FINDINGS_MAX.saturating_sub(list.len());
    list.extend(found.iter().take(room));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_follow_one_another_are_one_with_those_that_show_them() {
        let run = |volume, first, of| BadRun { volume, first, blocks: 32, lost: false, of };
        let shown = |first| [run(7, first, None), run(9, first, Some(7))];
        let mut list = Vec::new();
        [0, 32, 64].into_iter().for_each(|first| list_found(&mut list, &shown(first)));
        assert_eq!(list, shown(0).map(|run| BadRun { blocks: 96, ..run }));
        // Not where a gap is, nor where somebody else shows it.
        list_found(&mut list, &shown(128));
        list_found(&mut list, &[run(7, 160, None), run(8, 160, Some(7))]);
        list_found(&mut list, &[run(7, 192, None)]);
        assert_eq!(list.len(), 7);
        list_found(&mut list, &[run(7, 224, None)]);
        assert_eq!((list.len(), list[6].blocks), (7, 64));
    }
}
