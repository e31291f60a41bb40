//! What of a shard may have been in a log alone: the slices that its dirty journal names. Of a journal that cannot be had nothing
//! tells which these were (a log that could tell would not be given up), so it is every slice of the shard.

use crate::error::{Grounds, PoolError};
use crate::format::dirty::DirtySlice;
use crate::format::superblock::{SHARD_EXTENTS_MAX, Superblock};
use crate::meta::journal::read_newer;
use crate::meta::media::Media;
use crate::meta::{Catalog, MetaError};
use crate::shard_slices::ShardSlices;
use bdev::Status;
use std::collections::BTreeSet;

/// A journal that cannot be read is tried so often.
const READ_TRIES: u32 = 4;

/// What the journal of a shard names; `None`: no copy is valid, and that will not pass.
pub(super) async fn in_journal(
    media: &Media,
    superblock: &Superblock,
    shard: u16,
) -> Result<Option<BTreeSet<DirtySlice>>, MetaError> {
    let mut tries = 0;
    loop {
        let errors = match read_newer(media, superblock, shard).await {
            Ok(newer) => return Ok(Some(newer.slices.into_iter().collect())),
            Err(errors) => errors,
        };
        tries += 1;
        let unread = errors.iter().find_map(|error| match error {
            MetaError::Io { status, .. } => Some((*error, *status)),
            _ => None,
        });
        let Some((error, status)) = unread else { return Ok(None) };
        if tries < READ_TRIES {
            continue;
        }
        // What else a device says may pass, and says nothing of what it holds.
        let is_gone = matches!(status, Status::ReadError | Status::Corrupt);
        let answers = media.read_block(0).await.is_ok() || media.read_block(1).await.is_ok();
        return if is_gone && answers { Ok(None) } else { Err(error) };
    }
}

/// Every slice of a shard that a volume or a snapshot has.
pub(super) fn all_slices(
    catalog: &Catalog,
    superblock: &Superblock,
    shard: u16,
) -> Result<BTreeSet<DirtySlice>, PoolError> {
    let counted = catalog.volumes().values().filter(|entry| catalog.counts(entry));
    let of_volumes = counted.map(|entry| (entry.id, ShardSlices::of(entry, shard, superblock.shards as u32)));
    let of_volumes: Vec<(u32, ShardSlices)> = of_volumes.collect();
    let extents: u64 = of_volumes.iter().map(|(_, slices)| slices.extent_count()).sum();
    // Each of them takes an extent to say that it is lost.
    if extents > SHARD_EXTENTS_MAX as u64 {
        let reason = format!(
            "the dirty journal of shard {shard} is damaged, so all that volumes may have there counts as lost; that is {extents} \
             extents of 4 MiB, and a shard has room to note {SHARD_EXTENTS_MAX}: restore the capacity device from a backup"
        );
        return Err(PoolError::Refused { pool: superblock.name.clone(), grounds: Grounds::Devices, reason });
    }
    Ok(of_volumes.into_iter().flat_map(|(id, slices)| slices.slices().map(move |slice| (id, slice))).collect())
}
