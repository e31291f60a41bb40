//! The shadow of a shaped pool's index: of every slice that is not in the dirty journal it says what the index says.
//!
//! Where it does not, the pool works all the same; but with its log device more would be lost than has to be, or something old
//! would come back. Repaired, such slices are in the journal again: they are copied when the pool comes to rest.

use super::Checker;
use super::report::{Finding, Severity};
use super::shard::ShardState;
use crate::format::dirty::DirtySlice;
use crate::format::superblock::Superblock;
use crate::meta::{Descriptor, LOST, Meta};
use crate::units::EXTENT_BLOCKS;
use bdev::Status;
use std::collections::BTreeSet;
use std::rc::Rc;

const ADVICE: &str = "repair it";

/// How the shadow of a shard compares with its index.
#[derive(Default)]
struct Comparison {
    /// Slices that are not the same.
    wrong: BTreeSet<DirtySlice>,
    /// Slices with extents that cannot be compared, and their number.
    unsure: BTreeSet<DirtySlice>,
    unsure_extents: u64,
}

impl Checker {
    pub(super) async fn shadow(&mut self, superblock: &Superblock, state: &ShardState) {
        let (Some(of_shadow), Some(dirty), true) = (superblock.shadow(), &state.dirty, state.is_whole) else { return };
        let object = format!("shadow of the index of shard {}", state.number);
        let Ok((index, _)) = self.open_meta(superblock, state.number, &[]).await else { return };
        let store = match self.open_shadow(&of_shadow, state.number).await {
            Ok(store) => store,
            Err(cause) => {
                let meaning = format!("{cause}; with the log device everything would be lost");
                let finding = Finding::new(Severity::Warning, &object, "roots and table pages", meaning, ADVICE);
                let repair = self.make_anew(superblock, &of_shadow, state.number, owned_slices(state));
                let finding = self.repaired(finding, repair).await;
                return self.report.add(finding);
            }
        };
        let Comparison { wrong, unsure_extents, .. } = self.compare(state, dirty, &index, &store).await;
        if unsure_extents > 0 {
            let meaning = format!("{unsure_extents} extents cannot be compared: their map pages cannot be read");
            self.report.warning(&object, "map pages", meaning, "see what is said of the map pages");
        }
        if !wrong.is_empty() {
            let meaning = format!(
                "slices that are not in the dirty journal are not as the index has them ({}): with the log device they would be lost, \
                 or be as they were once",
                self.slices_named(&wrong)
            );
            let finding = Finding::new(Severity::Error, &object, "extents", meaning, ADVICE);
            self.report_unnamed(superblock, state.number, finding, wrong).await;
        }
    }

    /// Slices beside those in `dirty` that are not certainly in the shadow as the index has them.
    pub(super) async fn beside_shadow(
        &self,
        superblock: &Superblock,
        state: &ShardState,
        dirty: &BTreeSet<DirtySlice>,
    ) -> BTreeSet<DirtySlice> {
        let Some(of_shadow) = superblock.shadow() else { return BTreeSet::new() };
        let index = self.open_meta(superblock, state.number, &[]).await;
        let (Ok((index, _)), Ok(store)) = (index, self.open_shadow(&of_shadow, state.number).await) else {
            return owned_slices(state);
        };
        let Comparison { wrong, unsure, .. } = self.compare(state, dirty, &index, &store).await;
        wrong.into_iter().chain(unsure).collect()
    }

    async fn open_shadow(&self, of_shadow: &Superblock, shard: u16) -> Result<Rc<Meta>, String> {
        let channel = self.capacity.open_channel(&self.reactor).map_err(|error| error.to_string())?;
        let opened = Meta::open(&self.reactor, channel, self.capacity.info(), of_shadow, shard, 0).await;
        opened.map(|(store, _)| store).map_err(|error| error.to_string())
    }

    async fn compare(
        &self,
        state: &ShardState,
        dirty: &BTreeSet<DirtySlice>,
        index: &Rc<Meta>,
        store: &Rc<Meta>,
    ) -> Comparison {
        let mut found = Comparison::default();
        let known = |volume: u32| self.volumes.as_ref().is_none_or(|volumes| volumes.contains_key(&volume));
        for (extent, is) in (0..).zip(state.extents.iter().flatten()) {
            let says = if extent < store.extents() { store.descriptor(extent) } else { Descriptor::default() };
            let owners = [*is, says].into_iter().filter(|owner| !owner.is_free() && known(owner.volume));
            let clean: Vec<DirtySlice> =
                owners.map(|owner| owner.slice()).filter(|slice| !dirty.contains(slice)).collect();
            if clean.is_empty() {
                continue;
            }
            let same = (is.volume, is.vextent) == (says.volume, says.vextent);
            match if same { same_blocks(index, store, extent).await } else { Ok(false) } {
                Ok(true) => {}
                Ok(false) => found.wrong.extend(clean),
                Err(_) => {
                    found.unsure.extend(clean);
                    found.unsure_extents += 1;
                }
            }
        }
        found
    }

    /// A shadow that has nothing, of a shard all of whose slices are in the journal.
    async fn make_anew(
        &self,
        superblock: &Superblock,
        of_shadow: &Superblock,
        shard: u16,
        slices: BTreeSet<DirtySlice>,
    ) -> Result<(), Status> {
        self.put_in_journal(superblock, shard, slices).await?;
        let channel = self.capacity.open_channel(&self.reactor).map_err(|_| Status::Gone)?;
        let made =
            Meta::format(&self.reactor, channel, self.capacity.info(), of_shadow, shard, crate::pool::FIRST).await;
        made.map_err(|error| Status::from(&error))
    }
}

/// Slices of which volumes have extents.
fn owned_slices(state: &ShardState) -> BTreeSet<DirtySlice> {
    let owned = state.extents.iter().flatten().filter(|descriptor| !descriptor.is_free());
    owned.map(|descriptor| descriptor.slice()).collect()
}

/// Whether the shadow has the blocks of an extent as the index has them, but for those that are lost there.
async fn same_blocks(index: &Rc<Meta>, store: &Rc<Meta>, extent: u32) -> Result<bool, Status> {
    if !index.has_page(extent) && !store.has_page(extent) {
        let flags = |meta: &Meta| meta.descriptor(extent).flags;
        return Ok(flags(index) == flags(store));
    }
    let (is, says) = (index.load(extent).await?, store.load(extent).await?);
    Ok((0..EXTENT_BLOCKS).all(|block| is.get(block) == says.get(block) || is.get(block) == LOST))
}
