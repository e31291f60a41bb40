//! Table pages that neither of their places has any more. Whose their extents are is unknown, so a shard does not open with
//! one; a repair gives such a page up.
//!
//! Its extents become free, and every extent of a volume that may have been among them becomes lost: each of which neither
//! the other table pages nor the log say where it is, up to the volume's end, whether it was ever written or not. So an
//! error may be where zeroes would be right, but nothing stale comes back and nothing has two owners: what is noted as lost
//! is in extents that the log does not speak of, and what the log says of extents without an owner does not count.

use super::Checker;
use super::report::{Finding, Severity};
use super::shard::ShardState;
use crate::format::catalog::VolumeEntry;
use crate::format::root::TableRef;
use crate::format::superblock::{Region, Superblock};
use crate::format::table::{BLOCKS_LOST, Descriptor, UNUSABLE};
use crate::meta::table_copies::{FoundTable, read_table};
use crate::meta::{MetaError, Object};
use crate::shard::{PATIENCE_NS, TRIES_MIN};
use crate::shard_slices::ShardSlices;
use bdev::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A table page that cannot be read is tried so often at once.
const READ_TRIES: u32 = 4;
/// Volumes that a message names; further ones are counted.
const VOLUMES_NAMED: usize = 8;

/// A table page that cannot be had.
pub(super) struct DamagedTable {
    /// Its number in the shard.
    pub(super) table: u32,
    /// The extents that it describes.
    pub(super) extents: Range<u32>,
    /// Where the root says that it is.
    pub(super) block: u64,
    /// What is wrong with it.
    pub(super) cause: String,
    /// It cannot be read, and that may pass: it is not given up.
    pub(super) may_pass: bool,
}

/// Extents of a volume that nothing places.
struct MissingExtents<'a> {
    volume: &'a VolumeEntry,
    extents: u64,
    first: u32,
    last: u32,
}

impl Checker {
    /// A table page from either of its places; and, of one that cannot be read, whether that may pass. It does not when
    /// a repair, which would give the page up, has tried for as long as an open pool tries before it gives anything up, and
    /// the device answers reads of another place. `is_patient`: another page has taken that long already.
    pub(super) async fn read_table(
        &self,
        is_patient: &mut bool,
        object: Object,
        region: &Region,
        index: u32,
        wanted: TableRef,
    ) -> (Result<FoundTable, MetaError>, bool) {
        let begun_ns = self.reactor.now_ns();
        let mut tries = 0;
        loop {
            let found = read_table(&self.index, object, region, index, wanted, None).await;
            if !matches!(found, Err(MetaError::Io { .. })) {
                return (found, false);
            }
            tries += 1;
            if tries < READ_TRIES {
                continue;
            }
            let is_long = tries >= TRIES_MIN && self.reactor.now_ns() - begun_ns >= PATIENCE_NS;
            if !self.options.repair {
                return (found, true);
            }
            if *is_patient || is_long {
                *is_patient = true;
                let answers = self.index.read_block(0).await.is_ok() || self.index.read_block(1).await.is_ok();
                return (found, !answers);
            }
            self.reactor.sleep_ns(PATIENCE_NS / TRIES_MIN as u64).await;
        }
    }

    /// Names the shard's damaged table pages and what giving them up loses, and does that when repairs are asked for.
    /// `touched`: the extents that the log speaks of, when all of it could be read.
    pub(super) async fn give_up_tables(
        &mut self,
        superblock: &Superblock,
        state: &ShardState,
        touched: Option<&BTreeSet<u32>>,
    ) {
        if state.damaged.is_empty() {
            return;
        }
        let what = "restore the device from a backup";
        let (loss, advice) = match (&self.volumes, touched) {
            (Some(volumes), Some(touched)) => {
                let has = room(state, touched).len();
                let missing = self.missing_of_volumes(state, volumes);
                let advice = match missing.iter().map(|of_volume| of_volume.extents).sum::<u64>() <= has as u64 {
                    true => format!("{what}, or repair it: that makes them lost, an error until they are written"),
                    false => format!(
                        "{what}: it cannot be repaired, since noting them as lost takes an extent for each, and {has} are free"
                    ),
                };
                (format!("{} may have been there", named(&missing)), advice)
            }
            _ => {
                let advice =
                    format!("{what}, or put right what is wrong with the catalog and the log, and check again");
                ("what may have been there is unknown without the catalog and the log".to_string(), advice)
            }
        };
        let may_pass = state.damaged.iter().any(|damaged| damaged.may_pass);
        let repaired = match (self.options.repair, touched) {
            (true, Some(touched)) if !may_pass => self.lose_tables(superblock, state, touched).await,
            _ => None,
        };
        for damaged in &state.damaged {
            let DamagedTable { table, extents, block, cause, may_pass } = damaged;
            let advice = match may_pass {
                true => {
                    format!("see to it that the device can be read, and check again; if that does not help: {advice}")
                }
                false => advice.clone(),
            };
            let meaning = format!(
                "{cause}, and its other copy does not help: whose extents {} to {} are is unknown, and the shard does not open; \
                 {loss}",
                extents.start,
                extents.end - 1
            );
            let object = Object::TablePage { shard: state.number, index: *table };
            let finding = Finding::new(Severity::Error, object, format!("block {block}"), meaning, &advice);
            self.report.add(match repaired {
                Some(ended) => finding.after(ended),
                None => finding,
            });
        }
    }

    /// Extents of volumes that may have been described by a damaged page: how many, and between which. Volumes may be much larger
    /// than what they have, so these are counted and not listed.
    fn missing_of_volumes<'a>(
        &self,
        state: &ShardState,
        volumes: &'a BTreeMap<u32, VolumeEntry>,
    ) -> Vec<MissingExtents<'a>> {
        let of_volume = |volume: &'a VolumeEntry| {
            let slices = ShardSlices::of(volume, state.number, self.shards);
            let named = state.named.range((volume.id, 0)..=(volume.id, u32::MAX));
            let named = named.filter(|(_, vextent)| slices.has(*vextent)).count() as u64;
            let is_missing = |vextent: &u32| !state.named.contains(&(volume.id, *vextent));
            // What is passed over here is named.
            let (first, last) = (slices.extents().find(is_missing)?, slices.extents().rfind(is_missing)?);
            Some(MissingExtents { volume, extents: slices.extent_count() - named, first, last })
        };
        // Deleted snapshots, too: somebody may still show them.
        volumes.values().filter_map(of_volume).collect()
    }

    /// The first `most` of these extents, or a few more.
    fn missing(&self, state: &ShardState, volumes: &BTreeMap<u32, VolumeEntry>, most: usize) -> Vec<(u32, u32)> {
        let of_volume = |volume: &VolumeEntry| {
            let id = volume.id;
            ShardSlices::of(volume, state.number, self.shards).extents().map(move |vextent| (id, vextent))
        };
        let all = volumes.values().flat_map(of_volume);
        all.filter(|extent| !state.named.contains(extent)).take(most).collect()
    }

    /// Gives the pages up; `None` when that is not possible.
    async fn lose_tables(
        &self,
        superblock: &Superblock,
        state: &ShardState,
        touched: &BTreeSet<u32>,
    ) -> Option<Result<(), Status>> {
        let room = room(state, touched);
        let missing = self.missing(state, self.volumes.as_ref()?, room.len() + 1);
        if missing.len() > room.len() {
            return None;
        }
        let given_up: Vec<u32> = state.damaged.iter().map(|damaged| damaged.table).collect();
        Some(self.write_loss(superblock, state, &given_up, missing.into_iter().zip(room)).await)
    }

    async fn write_loss(
        &self,
        superblock: &Superblock,
        state: &ShardState,
        given_up: &[u32],
        lost: impl Iterator<Item = ((u32, u32), u32)>,
    ) -> Result<(), Status> {
        let (meta, tail) = self.open_meta(superblock, state.number, given_up).await?;
        // What the log calls unusable stays so: replay does not expect it to have been free.
        let unusable = Descriptor { flags: UNUSABLE, ..Descriptor::default() };
        for extent in state.damaged.iter().flat_map(|damaged| damaged.extents.clone()) {
            if state.extents[extent as usize].is_some_and(|descriptor| descriptor.flags & UNUSABLE != 0) {
                meta.set_descriptor(extent, unusable);
            }
        }
        for ((volume, vextent), extent) in lost {
            meta.set_descriptor(extent, Descriptor { volume, vextent, flags: BLOCKS_LOST, ..Descriptor::default() });
        }
        meta.checkpoint(tail).await
    }
}

/// What is wrong with a copy of something, in words that go on with the other one.
pub(super) fn cause_of(error: &MetaError) -> String {
    match error {
        MetaError::Damaged { reason, .. } => reason.to_string(),
        MetaError::Io { status, .. } => format!("it cannot be read ({status})"),
        error => error.to_string(),
    }
}

/// Extents that nobody has and of which the log does not speak, those of the damaged pages included.
fn room(state: &ShardState, touched: &BTreeSet<u32>) -> Vec<u32> {
    let is_damaged = |extent: &u32| state.damaged.iter().any(|damaged| damaged.extents.contains(extent));
    let is_free = |extent: &u32| match state.extents[*extent as usize] {
        Some(descriptor) => descriptor.is_free() && descriptor.flags & UNUSABLE == 0,
        None => is_damaged(extent),
    };
    let extents = 0..state.extents.len() as u32;
    extents.filter(|extent| !touched.contains(extent) && is_free(extent)).collect()
}

/// What may be lost, in words.
fn named(missing: &[MissingExtents<'_>]) -> String {
    let one = |MissingExtents { volume, extents, first, last }: &MissingExtents<'_>| {
        format!("{extents} extents of 4 MiB of volume '{}', from number {first} to {last},", volume.name)
    };
    let mut text: Vec<String> = missing.iter().take(VOLUMES_NAMED).map(one).collect();
    match missing.len().saturating_sub(VOLUMES_NAMED) {
        0 => {}
        more => text.push(format!("extents of {more} more volumes")),
    }
    if text.is_empty() { "nothing of a volume".to_string() } else { text.join("; ") }
}
