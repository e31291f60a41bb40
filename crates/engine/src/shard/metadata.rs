//! A scrub of metadata: whatever the next opening relies on, or the loss of the log device, is read from the media, in every copy and
//! version, and verified; what is wrong is named, and written anew where something has it right.
//!
//! ```text
//! what all shards have in common (with the first one) -> the index -> its shadow -> the dirty journal
//! wrong -> due -> a checkpoint (the journal: the set once more) -> looked at again -> repaired, or told
//! ```
//! Nothing is written but what the pool would write anyway, in its order: so at each point a crash leaves what it always may. What counts as
//! repaired has been looked at again.

use super::shadow::Shadow;
use super::{Defect, Shard, add};
use crate::format::dirty::DirtySlice;
use crate::meta::Meta;
use crate::meta::flaw::{Flaw, MetadataKind, Review, Rot};
use crate::pool::PoolShared;
use bdev::Status;
use reactor::Reactor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// Most damaged structures that are listed.
pub const BAD_METADATA_MAX: usize = 256;
/// Damaged structures after which a checkpoint writes them anew, before further ones are looked for.
const DUE_MAX: usize = 256;

/// A structure of a pool's metadata that a scrub has found damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BadMetadata {
    /// What it is.
    pub kind: MetadataKind,
    /// It belongs to the shadow of the index.
    pub of_shadow: bool,
    /// It is on the log device; otherwise on the capacity device.
    pub on_log: bool,
    /// Of superblocks, catalogs, roots and journals the copy, of table pages the page, of map pages the extent of the shard.
    pub number: u32,
    /// Where it was, in blocks of 4 KiB.
    pub block: u64,
    /// How far it was damaged.
    pub rot: Rot,
    /// It has been written anew, and was right then.
    pub repaired: bool,
}

impl BadMetadata {
    /// What it is, in words; the shard is the one that it was found with.
    pub fn what(&self, shard: u16) -> String {
        let (number, of) = (self.number, if self.of_shadow { "the shadow of shard" } else { "shard" });
        match self.kind {
            MetadataKind::Superblock => format!("copy {number} of the superblock"),
            MetadataKind::Catalog => format!("copy {number} of the catalog"),
            MetadataKind::Root => format!("copy {number} of the root of {of} {shard}"),
            MetadataKind::TablePage => format!("table page {number} of {of} {shard}"),
            MetadataKind::MapPage => format!("the map page of extent {number} of {of} {shard}"),
            MetadataKind::Journal => format!("copy {number} of the dirty journal of shard {shard}"),
        }
    }

    /// How far it is damaged, in words.
    pub fn how(&self) -> &'static str {
        match self.rot {
            Rot::OneVersion => "damaged in one version of the device, and right in another",
            Rot::OneCopy => "damaged, and its other copy is right",
            Rot::All => "damaged wherever it is",
        }
    }

    /// What follows, and what to do.
    pub fn meaning(&self) -> &'static str {
        match (self.repaired, self.rot, self.kind) {
            (true, ..) => "it was written anew, and nothing is lost",
            (_, Rot::OneVersion | Rot::OneCopy, _) => {
                "nothing is lost by that; it could not be written anew: see why the pool's upkeep fails, and scrub again"
            }
            (_, _, MetadataKind::MapPage) if self.of_shadow => {
                "with the log device the blocks of that extent would be lost: scrub again, or close the pool and repair it with 'pool \
                 check --repair'"
            }
            (_, _, MetadataKind::MapPage) => {
                "the blocks of that extent cannot be read: restore those that are named from a copy; writing them mends them"
            }
            _ if self.of_shadow => {
                "with the log device all that the shard has would be lost: scrub again, or close the pool and repair it with 'pool check \
                 --repair'"
            }
            _ => {
                "the open pool has it in memory alone, and could not be opened again: do not close it, see why its upkeep fails, and \
                 scrub again"
            }
        }
    }

    fn is_of(&self, place: Place, flaw: &Flaw) -> bool {
        (self.kind, self.number, self.block) == (flaw.kind, flaw.number, flaw.block)
            && (self.of_shadow, self.on_log) == (place.of_shadow, place.on_log)
    }
}

/// What is reviewed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) of_shadow: bool,
    pub(crate) on_log: bool,
}

/// What a review of what all shards have in common has found, and whether each flaw has been repaired.
#[derive(Default)]
pub(crate) struct CommonReview {
    pub(crate) good: u64,
    pub(crate) read_bytes: u64,
    pub(crate) flaws: Vec<(Place, Flaw, bool)>,
}

/// A flaw, and the table page with which it is looked at again; `None`: the root.
type Due = (Option<u32>, Flaw);

impl Shard {
    /// Reads the metadata, all of it anew unless that was done when the scrub was stopped; `common` of the shard that reviews what all have
    /// in common.
    pub(super) async fn review_metadata(self: &Rc<Self>, common: Option<Arc<PoolShared>>) {
        if self.scrub.status.borrow().metadata_done {
            return;
        }
        self.scrub.status.borrow_mut().good_metadata = 0;
        if let Some(common) = common
            && let Some(review) = common.review_common(&self.reactor).await
        {
            self.note_good(review.good);
            for (place, flaw, is_repaired) in review.flaws {
                self.note_flaw(place, &flaw);
                self.note_outcome(place, &flaw, is_repaired);
            }
            self.scrub_pause(review.read_bytes).await;
        }
        let on_log = self.meta.bands().is_some();
        self.review_store(&self.meta.clone(), Place { of_shadow: false, on_log }).await;
        self.review_shadow().await;
        self.review_journal().await;
        if !self.is_scrub_over() {
            self.scrub.status.borrow_mut().metadata_done = true;
        }
    }

    /// Reviews the roots, table pages and map pages of the index, or of its shadow.
    async fn review_store(self: &Rc<Self>, store: &Rc<Meta>, place: Place) {
        let mut due: Vec<Due> = Vec::new();
        let roots = store.review_roots(true).await;
        self.note_review(place, &roots);
        due.extend(roots.flaws.into_iter().map(|flaw| (None, flaw)));
        self.scrub_pause(roots.read_bytes).await;
        for table in 0..store.table_count() {
            if self.is_scrub_over() {
                break;
            }
            let found = store.review_table(table, true).await;
            self.note_review(place, &found);
            due.extend(found.flaws.into_iter().map(|flaw| (Some(table), flaw)));
            self.scrub_pause(found.read_bytes).await;
            if due.len() >= DUE_MAX {
                self.renew(store, place, std::mem::take(&mut due)).await;
            }
        }
        self.renew(store, place, due).await;
    }

    /// Has what is due written anew, and looks at it again.
    async fn renew(self: &Rc<Self>, store: &Rc<Meta>, place: Place, due: Vec<Due>) {
        if due.is_empty() || self.is_stopping() {
            return;
        }
        if self.is_broken(Defect::RepairUnwritten) {
            return due.iter().for_each(|(_, flaw)| self.note_outcome(place, flaw, true));
        }
        let written = match &self.shadow {
            Some(shadow) if place.of_shadow => self.renew_shadow(shadow, store, &due).await,
            _ if due.iter().any(|(_, flaw)| flaw.is_due) => self.checkpoint().await,
            _ => Ok(()),
        };
        if let Err(status) = written {
            tracing::warn!(
                "pool '{}': what is damaged of the metadata of shard {} cannot be written anew: {status}",
                self.pool_name,
                self.number
            );
        }
        let mut again = Vec::new();
        for table in due.iter().map(|(table, _)| *table).collect::<BTreeSet<_>>() {
            let found = match table {
                Some(table) => store.review_table(table, false).await,
                None => store.review_roots(false).await,
            };
            self.scrub_pause(found.read_bytes).await;
            again.extend(found.flaws);
        }
        for (_, flaw) in due {
            let is_it = |other: &Flaw| match flaw.kind {
                // It may be in its other slot by now.
                MetadataKind::MapPage => (other.kind, other.number) == (flaw.kind, flaw.number),
                _ => (other.kind, other.number, other.block) == (flaw.kind, flaw.number, flaw.block),
            };
            let lacks_copy = flaw.kind == MetadataKind::TablePage && store.is_table_alone(flaw.number);
            let is_left = written.is_err() || lacks_copy || again.iter().any(is_it);
            self.note_outcome(place, &flaw, !is_left);
        }
    }

    // --- the shadow -------------------------------------------------------------------------------------------------

    async fn review_shadow(self: &Rc<Self>) {
        let Some(shadow) = self.shadow.as_ref().filter(|_| !self.is_broken(Defect::SkipShadowScrub)) else { return };
        if self.is_scrub_over() {
            return;
        }
        let place = Place { of_shadow: true, on_log: false };
        let mut opened = self.open_shadow(shadow).await;
        if let Err(status) = opened {
            opened = self.renew_unopened(shadow, place, status).await;
        }
        if let Ok(store) = opened {
            self.review_store(&store, place).await;
        }
    }

    /// What is wrong with a shadow that cannot be opened is told; it is made anew where its device has answered.
    async fn renew_unopened(
        self: &Rc<Self>,
        shadow: &Shadow,
        place: Place,
        status: Status,
    ) -> Result<Rc<Meta>, Status> {
        let (pool, shard) = (&self.pool_name, self.number);
        tracing::warn!("pool '{pool}': the shadow of the index of shard {shard} cannot be opened: {status}");
        if !matches!(status, Status::Corrupt | Status::ReadError) {
            return Err(status);
        }
        let block = shadow.root_block(self.number);
        let flaw =
            Flaw { kind: MetadataKind::Root, number: 0, block, rot: Rot::All, is_due: status == Status::Corrupt };
        self.note_flaw(place, &flaw);
        let mut opened = Err(status);
        if flaw.is_due && !self.is_stopping() && !self.is_broken(Defect::RepairUnwritten) {
            opened = match self.make_shadow_anew(shadow).await {
                Ok(()) => self.open_shadow(shadow).await,
                Err(status) => Err(status),
            };
        }
        if let Err(status) = opened {
            tracing::warn!("pool '{pool}': the shadow of the index of shard {shard} cannot be made anew: {status}");
        }
        self.note_outcome(place, &flaw, opened.is_ok());
        opened
    }

    /// A checkpoint of the shadow. Map pages of it that nothing on its device has are copied from the index once more, with their slices.
    async fn renew_shadow(self: &Rc<Self>, shadow: &Shadow, store: &Rc<Meta>, due: &[Due]) -> Result<(), Status> {
        let is_gone = |flaw: &&Flaw| flaw.kind == MetadataKind::MapPage && !flaw.is_due;
        let gone = due.iter().map(|(_, flaw)| flaw).filter(is_gone).map(|flaw| store.descriptor(flaw.number));
        let slices: BTreeSet<DirtySlice> = gone.filter(|of| !of.is_free()).map(|of| of.slice()).collect();
        self.copy_again(shadow, &slices.into_iter().collect::<Vec<_>>()).await
    }

    // --- the journal ------------------------------------------------------------------------------------------------

    async fn review_journal(self: &Rc<Self>) {
        if self.is_scrub_over() {
            return;
        }
        let place = Place::default();
        let found = self.journal.review(true).await;
        self.note_review(place, &found);
        self.scrub_pause(found.read_bytes).await;
        if found.flaws.is_empty() || self.is_stopping() {
            return;
        }
        let is_repaired = self.is_broken(Defect::RepairUnwritten)
            || self.journal.write_anew().await.is_ok() && self.journal.review(false).await.flaws.is_empty();
        found.flaws.iter().for_each(|flaw| self.note_outcome(place, flaw, is_repaired));
    }

    // --- what was found ---------------------------------------------------------------------------------------------

    fn note_good(&self, copies: u64) {
        self.scrub.status.borrow_mut().good_metadata += copies;
    }

    fn note_review(&self, place: Place, review: &Review) {
        self.note_good(review.good);
        review.flaws.iter().for_each(|flaw| self.note_flaw(place, flaw));
    }

    /// Counts, lists and tells what is damaged; what was known before the scrub was stopped counts once.
    fn note_flaw(&self, place: Place, flaw: &Flaw) {
        let Flaw { kind, number, block, rot, .. } = *flaw;
        let bad =
            BadMetadata { kind, of_shadow: place.of_shadow, on_log: place.on_log, number, block, rot, repaired: false };
        let status = &mut *self.scrub.status.borrow_mut();
        if status.bad_metadata.iter().any(|known| known.is_of(place, flaw) && !known.repaired) {
            return;
        }
        status.damaged_metadata += 1;
        add(&self.counters.damaged_metadata, 1);
        if status.bad_metadata.len() < BAD_METADATA_MAX {
            status.bad_metadata.push(bad);
        }
        let device = if place.on_log { &*self.log_name } else { self.capacity_device.name() };
        tracing::warn!(
            "pool '{}': {} is {}: block {block} of device '{device}' (of 4 KiB)",
            self.pool_name,
            bad.what(self.number),
            bad.how()
        );
    }

    /// How trying to have it written anew has ended.
    fn note_outcome(&self, place: Place, flaw: &Flaw, is_repaired: bool) {
        let Flaw { kind, number, block, rot, .. } = *flaw;
        let Place { of_shadow, on_log } = place;
        let bad = BadMetadata { kind, of_shadow, on_log, number, block, rot, repaired: is_repaired };
        let (pool, what) = (&self.pool_name, bad.what(self.number));
        if !is_repaired {
            return tracing::error!("pool '{pool}': {what} stays damaged: {}", bad.meaning());
        }
        let status = &mut *self.scrub.status.borrow_mut();
        let listed = status.bad_metadata.iter_mut().find(|known| known.is_of(place, flaw) && !known.repaired);
        listed.into_iter().for_each(|known| known.repaired = true);
        status.repaired_metadata += 1;
        add(&self.counters.repaired_metadata, 1);
        tracing::warn!("pool '{pool}': {what} was damaged; {}", bad.meaning());
    }
}

/// Where what all shards have in common is reviewed.
impl PoolShared {
    /// Reviews superblocks and catalog, and has written anew what is wrong; `None` when the pool is being closed.
    async fn review_common(self: &Arc<Self>, reactor: &Rc<Reactor>) -> Option<CommonReview> {
        let shared = self.clone();
        reactor
            .call_on(self.control_home(), move |there: Rc<Reactor>| async move { shared.review_here(&there).await })
            .await
    }
}
