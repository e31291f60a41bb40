//! The shadow of a shaped pool's index: of every slice that is not in the dirty journal it says what the index says.
//!
//! Where it does not, the pool works all the same; but with its log device more would be lost than has to be, or something old
//! would come back. Repaired, such slices are in the journal again: they are copied when the pool comes to rest.

use super::Checker;
use super::report::{Finding, Severity};
use super::shard::ShardState;
use crate::format::dirty::DirtySlice;
use crate::format::superblock::Superblock;
use crate::meta::{Descriptor, DirtyJournal, LOST, Meta};
use crate::units::{EXTENT_BLOCKS, SLICE_EXTENTS};
use bdev::{Channel, Status};
use std::collections::BTreeSet;
use std::rc::Rc;

const ADVICE: &str = "repair it";

fn slice_of(owner: Descriptor) -> DirtySlice {
    (owner.volume, owner.vextent / SLICE_EXTENTS)
}

impl Checker {
    pub(super) async fn shadow(&mut self, superblock: &Superblock, state: &ShardState) {
        let (Some(of_shadow), Some(dirty), true) = (superblock.shadow(), &state.dirty, state.is_whole) else { return };
        let object = format!("shadow of the index of shard {}", state.number);
        let Ok(channel) = self.capacity.open_channel(&self.reactor) else { return };
        let Ok((index, _)) = self.open_meta(superblock, state.number, &[]).await else { return };
        let info = self.capacity.info();
        let opened = Meta::open(&self.reactor, channel.clone(), info, &of_shadow, state.number, 0).await;
        let store = match opened {
            Ok((store, _)) => store,
            Err(error) => {
                let meaning = format!("{error}; with the log device everything would be lost");
                let finding = Finding::new(Severity::Warning, &object, "roots and table pages", meaning, ADVICE);
                let owned = state.extents.iter().flatten().filter(|descriptor| !descriptor.is_free());
                let slices = owned.map(|descriptor| slice_of(*descriptor)).collect();
                let repair = self.make_anew(superblock, &of_shadow, state.number, channel, slices);
                let finding = self.repaired(finding, repair).await;
                return self.report.add(finding);
            }
        };
        let (mut wrong, mut unsure) = (BTreeSet::new(), 0);
        let known = |volume: u32| self.volumes.as_ref().is_none_or(|volumes| volumes.contains_key(&volume));
        for (extent, is) in (0..).zip(state.extents.iter().flatten()) {
            let says = if extent < store.extents() { store.descriptor(extent) } else { Descriptor::default() };
            let owners = [*is, says].into_iter().filter(|owner| !owner.is_free() && known(owner.volume));
            let clean: Vec<DirtySlice> = owners.map(slice_of).filter(|slice| !dirty.contains(slice)).collect();
            if clean.is_empty() {
                continue;
            }
            let same = (is.volume, is.vextent) == (says.volume, says.vextent);
            match if same { same_blocks(&index, &store, extent).await } else { Ok(false) } {
                Ok(true) => {}
                Ok(false) => wrong.extend(clean),
                Err(_) => unsure += 1,
            }
        }
        if unsure > 0 {
            let meaning = format!("{unsure} extents cannot be compared: their map pages cannot be read");
            self.report.warning(&object, "map pages", meaning, "see what is said of the map pages");
        }
        if !wrong.is_empty() {
            let listed: Vec<String> =
                wrong.iter().take(8).map(|(volume, slice)| format!("{slice} of volume {volume}")).collect();
            let more = if wrong.len() > listed.len() { " and further ones" } else { "" };
            let meaning = format!(
                "slices that are not in the dirty journal are not as the index has them ({}{more}): with the log device they \
                 would be lost, or be as they were once",
                listed.join(", ")
            );
            let finding = Finding::new(Severity::Error, &object, "extents", meaning, ADVICE);
            let repair = self.put_in_journal(superblock, state.number, channel, wrong);
            let finding = self.repaired(finding, repair).await;
            self.report.add(finding);
        }
    }

    /// A shadow that has nothing, of a shard all of whose slices are in the journal.
    async fn make_anew(
        &self,
        superblock: &Superblock,
        of_shadow: &Superblock,
        shard: u16,
        channel: Rc<dyn Channel>,
        slices: BTreeSet<DirtySlice>,
    ) -> Result<(), Status> {
        self.put_in_journal(superblock, shard, channel.clone(), slices).await?;
        let made =
            Meta::format(&self.reactor, channel, self.capacity.info(), of_shadow, shard, crate::pool::FIRST).await;
        made.map_err(|error| Status::from(&error))
    }

    async fn put_in_journal(
        &self,
        superblock: &Superblock,
        shard: u16,
        channel: Rc<dyn Channel>,
        slices: BTreeSet<DirtySlice>,
    ) -> Result<(), Status> {
        let opened = DirtyJournal::open(&self.reactor, channel, self.capacity.info(), superblock, shard).await;
        let journal = opened.map_err(|error| Status::from(&error))?;
        for (volume, slice) in slices {
            journal.add(volume, slice).await?;
        }
        Ok(())
    }
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
