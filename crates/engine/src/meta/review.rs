//! A review of what a checkpoint has left on media: roots, table pages and map pages, each in every copy and version, while the pool is
//! in use.
//!
//! Roots and table pages are read where no checkpoint is being made. Map pages are not: the slots that a durable root leads to are never
//! written over, so one that is wrong there is damaged if, when it has been read, the root still leads there. What a map page has to be is
//! said by the table page on media; the newest version of one may be elsewhere, and is read as well.
//!
//! Nothing is written here. What is wrong is *due*: the next checkpoint writes it anew, as it writes everything, to where no durable root
//! leads, and in an order by which what is right stays there until it is not needed any more:
//!
//! - a root goes to its worse copy first,
//! - a table page stays in its better slot, and goes to the other one,
//! - a map page, from memory or from the version that is right, goes to its other slot.

use super::flaw::{Flaw, Judged, MetadataKind, Review, Rot, Verdict};
use super::{Meta, TableRef, slot_of};
use crate::format::root::{Root, root_bytes};
use crate::format::superblock::TABLE_DESCRIPTORS;
use crate::format::table::{Descriptor, decode_table};
use crate::units::BLOCK_BYTES;
use base::crc32c;
use std::cell::RefCell;
use std::rc::Rc;

/// Map pages that are read at once, both slots of each.
const MAP_BATCH: u32 = 32;
/// Times that the map pages of a table page are begun again because a checkpoint has come between: what cannot be judged by then is left
/// to the next review.
const ATTEMPTS_MAX: u32 = 8;

/// A table page as it was found.
struct FoundPage {
    place: TableRef,
    /// Of its extents, as the durable root has them.
    descriptors: Vec<Descriptor>,
}

impl Meta {
    /// How many table pages there may be.
    pub(crate) fn table_count(&self) -> u32 {
        self.tables.borrow().len() as u32
    }

    /// Whether a table page has no copy, as far as is known.
    pub(crate) fn is_table_alone(&self, table: u32) -> bool {
        self.tables.borrow().get(table as usize).is_some_and(|table| table.durable.is_some() && table.is_alone)
    }

    /// Reads both copies of the root. What is wrong is [due](Flaw::is_due) if it `renews`.
    pub(crate) async fn review_roots(self: &Rc<Self>, renews: bool) -> Review {
        self.review_alone(move |meta| async move { meta.roots_alone(renews).await }).await
    }

    /// Reads a table page, and the map pages of its extents. What is wrong is [due](Flaw::is_due) if it `renews`.
    pub(crate) async fn review_table(self: &Rc<Self>, table: u32, renews: bool) -> Review {
        let (mut review, mut next) = (Review::default(), 0);
        for attempt in 0..ATTEMPTS_MAX {
            let found = Rc::new(RefCell::new(None));
            let kept = found.clone();
            let of_page = self.review_alone(move |meta| async move {
                let (review, page) = meta.table_alone(table, renews).await;
                kept.replace(page);
                review
            });
            let of_page = of_page.await;
            match attempt {
                0 => review.add(of_page),
                // It counts once.
                _ => review.read_bytes += of_page.read_bytes,
            }
            let Some(page) = found.take() else { break };
            next = self.review_maps(table, &page, next, renews, &mut review).await;
            if next as usize >= page.descriptors.len() {
                break;
            }
        }
        review
    }

    /// Looks where no checkpoint is being made; at nothing while the media may have either of two roots.
    async fn review_alone<F: Future<Output = Review> + 'static>(
        self: &Rc<Self>,
        look: impl FnOnce(Rc<Meta>) -> F + 'static,
    ) -> Review {
        let found = Rc::new(RefCell::new(Review::default()));
        let kept = found.clone();
        let looked = self.exclusively(move |meta| async move {
            if !meta.owes_root() {
                let review = look(meta).await;
                kept.replace(review);
            }
            Ok(())
        });
        // It does not fail.
        let _ = looked.await;
        found.take()
    }

    /// Whether these are the bytes of a root of a generation that will do.
    pub(super) fn is_root(&self, bytes: &[u8], will_do: impl Fn(u64) -> bool) -> bool {
        let root = Root::decode(bytes, self.pool, self.shard, self.progress.root_bands.get());
        root.is_ok_and(|root| will_do(root.generation))
    }

    // --- roots ------------------------------------------------------------------------------------------------------

    async fn roots_alone(&self, renews: bool) -> Review {
        let progress = &self.progress;
        let (holding, newest) = (progress.copy.get(), progress.generation());
        let is_twin = progress.is_twin.get();
        let bands = progress.root_bands.get();
        let blocks = root_bytes(self.table_count(), bands.all, bands.created).div_ceil(BLOCK_BYTES as u64) as usize;
        let mut judged = Vec::new();
        for copy in [holding, 1 - holding] {
            // A crash may have left an older one before this opening has written any.
            let is_right = |bytes: &[u8]| self.is_root(bytes, |found| found == newest || !is_twin && copy != holding);
            judged.push(self.media.judge(progress.copies[copy as usize], blocks, is_right).await);
        }
        let verdicts = [judged[0].verdict, judged[1].verdict];
        let is_newest = judged[1].bytes.as_ref().is_some_and(|bytes| self.is_root(bytes, |found| found == newest));
        let mut review =
            Review { read_bytes: judged.iter().map(|judged| judged.read_bytes).sum(), ..Review::default() };
        for (copy, verdict, elsewhere) in
            [(holding, verdicts[0], is_newest), (1 - holding, verdicts[1], verdicts[0].is_there())]
        {
            review.good += (verdict == Verdict::Right) as u64;
            if let Some(rot) = verdict.rot(elsewhere) {
                let block = progress.copies[copy as usize];
                let flaw = Flaw { kind: MetadataKind::Root, number: copy as u32, block, rot, is_due: renews };
                review.flaws.push(flaw);
            }
        }
        // The next root goes to the copy that does not hold first: that is to be the worse one, and not the only one that is new.
        let is_better = verdicts[1] < verdicts[0] && (is_newest || verdicts[0] == Verdict::Wrong);
        if renews && is_better && (!is_newest || self.settle_root(1 - holding).await) {
            progress.copy.set(1 - holding);
        }
        review
    }

    /// Sees to it that a copy which has the newest root is durable, before the other one is written over.
    async fn settle_root(&self, copy: u8) -> bool {
        if self.progress.is_twin.get() {
            return true;
        }
        let newest = self.progress.generation();
        let (block, blocks) = (self.progress.copies[copy as usize], self.progress.root_blocks);
        let is_right = |bytes: &[u8]| self.is_root(bytes, |found| found == newest);
        self.media.settle(block, blocks, blocks, is_right).await.is_ok()
    }

    // --- table pages ------------------------------------------------------------------------------------------------

    async fn table_alone(&self, table: u32, renews: bool) -> (Review, Option<FoundPage>) {
        let held = self.tables.borrow().get(table as usize).copied().unwrap_or_default();
        let mut review = Review::default();
        let Some(place) = held.durable else { return (review, None) };
        let other = TableRef { slot: 1 - place.slot, ..place };
        let mut judged = vec![self.judge_table(table, place, &mut review).await];
        if !held.is_alone {
            judged.push(self.judge_table(table, other, &mut review).await);
        }
        let verdict = |nth: usize| judged.get(nth).map(|judged: &Judged| judged.verdict);
        let (here, there) = (judged[0].verdict, verdict(1));
        for (nth, slot) in [(0, place.slot), (1, other.slot)] {
            let Some(of_slot) = verdict(nth) else { continue };
            review.good += (of_slot == Verdict::Right) as u64;
            let elsewhere = verdict(1 - nth).is_some_and(Verdict::is_there);
            if let Some(rot) = of_slot.rot(elsewhere) {
                let block = self.table_place(table, slot).0;
                let flaw = Flaw { kind: MetadataKind::TablePage, number: table, block, rot, is_due: renews };
                review.flaws.push(flaw);
            }
        }
        let mut found = place;
        if renews {
            let held = &mut self.tables.borrow_mut()[table as usize];
            if here.rot(true).is_some() {
                // The next page goes to the slot that the root does not name, as far as is known here.
                if there.is_some_and(|there| there < here) {
                    (held.durable, found) = (Some(other), other);
                }
                (held.dirty, held.is_alone) = (true, true);
            } else if there.is_some_and(|there| there.rot(true).is_some()) {
                // Copied after the next checkpoint.
                held.is_alone = true;
            }
        }
        let bytes = judged.into_iter().find_map(|judged| judged.bytes);
        let descriptors = match &bytes {
            Some(bytes) => {
                decode_table(bytes, self.shard, table).ok().and_then(|all| all.collect::<Result<_, _>>().ok())
            }
            // It is in memory as it was, if nothing has changed since.
            None if !held.dirty => Some(self.extents_of(table).iter().map(|extent| extent.descriptor.get()).collect()),
            None => None,
        };
        let extents = self.extents_of(table).len();
        let whole = |mut descriptors: Vec<Descriptor>| {
            descriptors.truncate(extents);
            FoundPage { place: found, descriptors }
        };
        (review, descriptors.map(whole))
    }

    async fn judge_table(&self, table: u32, place: TableRef, review: &mut Review) -> Judged {
        let block = self.table_place(table, place.slot).0;
        let judged = self.media.judge(block, 1, |bytes| crc32c(bytes) == place.crc).await;
        review.read_bytes += judged.read_bytes;
        judged
    }

    // --- map pages --------------------------------------------------------------------------------------------------

    /// Reads the map pages of a table page's extents from the one numbered `next` on, up to where a checkpoint has written the table page
    /// anew: where to go on.
    async fn review_maps(
        self: &Rc<Self>,
        table: u32,
        page: &FoundPage,
        mut next: u32,
        renews: bool,
        review: &mut Review,
    ) -> u32 {
        let all = page.descriptors.len() as u32;
        let first_of_table = self.first_extent(table);
        while next < all {
            let end = all.min(next + MAP_BATCH);
            let batch = &page.descriptors[next as usize..end as usize];
            let suspects = self.wrong_of(first_of_table + next, batch, review).await;
            for (nth, durable) in (0..).zip(batch) {
                let extent = first_of_table + next + nth;
                if suspects.contains(&nth)
                    && let Some(flaw) = self.judge_map(extent, *durable, review).await
                {
                    // One that nothing leads to any more may have been written over.
                    if self.tables.borrow()[table as usize].durable.map(|durable| durable.crc) != Some(page.place.crc) {
                        return next + nth;
                    }
                    let is_due = renews && self.renew_map(extent, *durable).await;
                    review.flaws.push(Flaw { is_due, ..flaw });
                }
                self.review_newest(extent, *durable, renews, review).await;
            }
            next = end;
        }
        next
    }

    fn first_extent(&self, table: u32) -> u32 {
        let has = |span: &&super::Span| table.wrapping_sub(span.first_table) < span.region.table_pages();
        let span = self.spans().find(has).expect("tables are those of the spans");
        span.region.first_extent + (table - span.first_table) * TABLE_DESCRIPTORS
    }

    /// Which of some extents that follow one another have a map page that some version does not have as its descriptor says.
    async fn wrong_of(&self, first: u32, descriptors: &[Descriptor], review: &mut Review) -> Vec<u32> {
        let mapped = || (0..).zip(descriptors).filter_map(|(nth, of)| slot_of(*of).map(|slot| (nth, slot, of.map_crc)));
        let (Some((low, ..)), Some((high, ..))) = (mapped().next(), mapped().last()) else { return Vec::new() };
        let page_blocks = self.page_blocks();
        let (block, blocks) = (self.map_block(first + low, 0), (high - low + 1) as usize * 2 * page_blocks);
        let mut wrong = Vec::new();
        for version in 0..self.media.versions {
            let read = self.media.read_medium(version, block, blocks).await;
            review.read_bytes += (blocks * BLOCK_BYTES) as u64;
            let is_right = |(nth, slot, crc): &(u32, u8, u32)| {
                let at = ((nth - low) as usize * 2 + *slot as usize) * page_blocks * BLOCK_BYTES;
                read.as_ref().is_ok_and(|bytes| crc32c(&bytes[at..at + page_blocks * BLOCK_BYTES]) == *crc)
            };
            wrong.extend(mapped().filter(|page| !is_right(page)).map(|(nth, ..)| nth));
        }
        wrong.sort_unstable();
        wrong.dedup();
        review.good += (mapped().count() - wrong.len()) as u64;
        wrong
    }

    /// Looks once more at one of which some version seemed to be wrong.
    async fn judge_map(&self, extent: u32, of: Descriptor, review: &mut Review) -> Option<Flaw> {
        let block = self.map_block(extent, slot_of(of)?);
        let judged = self.media.judge(block, self.page_blocks(), |bytes| crc32c(bytes) == of.map_crc).await;
        review.read_bytes += judged.read_bytes;
        review.good += (judged.verdict == Verdict::Right) as u64;
        // A map page has no other copy.
        let rot: Rot = judged.verdict.rot(false)?;
        Some(Flaw { kind: MetadataKind::MapPage, number: extent, block, rot, is_due: false })
    }

    /// The newest map page of an extent, where no durable root leads to it yet. Of one that is in memory and not written, nobody relies
    /// on what is on media.
    async fn review_newest(self: &Rc<Self>, extent: u32, durable: Descriptor, renews: bool, review: &mut Review) {
        let newest = self.descriptor(extent);
        let place = |of: Descriptor| (slot_of(of), of.map_crc);
        let is_relied_on = || self.descriptor(extent) == newest && !self.is_unwritten(extent);
        if slot_of(newest).is_none() || place(newest) == place(durable) || !is_relied_on() {
            return;
        }
        if let Some(flaw) = self.judge_map(extent, newest, review).await
            && is_relied_on()
        {
            let is_due = renews && self.renew_map(extent, newest).await;
            review.flaws.push(Flaw { is_due, ..flaw });
        }
    }

    /// Sees to it that the next checkpoint leads to another page than this damaged one; false: nothing has it.
    async fn renew_map(self: &Rc<Self>, extent: u32, damaged: Descriptor) -> bool {
        let leads_there = |now: Descriptor| (slot_of(now), now.map_crc) == (slot_of(damaged), damaged.map_crc);
        let now = self.descriptor(extent);
        if !leads_there(now) {
            // It leads elsewhere already.
            return true;
        }
        match self.load_page(extent, true).await {
            Ok(page) => {
                page.0.mark_dirty();
                true
            }
            Err(_) => !leads_there(self.descriptor(extent)),
        }
    }
}
