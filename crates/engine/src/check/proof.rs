//! What a device shows of the openings of its pool that it has seen, when its superblocks do not say it any more.
//!
//! An opening raises the epoch in the superblocks of both devices before anything else of it is written anywhere. So whatever carries
//! an epoch proves that its device had a superblock of that epoch: segments on the log device, roots and blocks of journals on the
//! capacity device. Each opening notes itself in the journals before it appends, so a device that lacks the note of the log's last
//! opening has not seen what that appended.

use super::Checker;
use crate::format::segment::Segment;
use crate::format::superblock::{Shape, Superblock};
use crate::log::{self, LogGeometry};
use crate::meta::catalog::load_copy;
use crate::meta::journal::latest_opening;
use crate::meta::media::Media;
use crate::meta::{log_known, read_roots};

impl Checker {
    /// The latest opening of which the capacity device has anything; `None`: it has nothing of this pool.
    pub(super) async fn openings_seen(&self, superblock: &Superblock) -> Option<u32> {
        let shadow = superblock.shadow();
        // The roots of a shaped pool's index are on the other device.
        let with_roots = match superblock.shape {
            Shape::Hot => Some(superblock),
            Shape::Shaped => shadow.as_ref(),
        };
        let mut seen = None;
        for shard in 0..superblock.shards {
            if let Some(with_roots) = with_roots {
                let roots = read_roots(&self.media, with_roots, shard).await;
                seen = seen.max(roots.into_iter().flatten().map(|root| root.epoch).max());
            }
            seen = seen.max(latest_opening(&self.media, superblock, shard).await);
        }
        for copy in 0..2 {
            seen = seen.max(load_copy(&self.media, superblock, copy).await.ok().map(|_| 0));
        }
        seen
    }

    /// The latest opening of which the log device has a segment of the pool where the superblock says they are; 0 when it has none. And
    /// whether all places could be read.
    pub(super) async fn newest_segment(&self, media: &Media, superblock: &Superblock) -> (u32, bool) {
        let (mut newest, mut is_certain) = (0, true);
        for shard in 0..superblock.shards {
            for place in 0..superblock.segments {
                let Ok(bytes) = media.read_bytes(superblock.segment_start(shard, place), 1).await else {
                    is_certain = false;
                    continue;
                };
                let found = Segment::decode(&bytes).and_then(Result::ok);
                let is_its = |found: &Segment| found.is_of(superblock.pool_prefix(), shard);
                newest = found.filter(is_its).map_or(newest, |found| newest.max(found.epoch));
            }
        }
        (newest, is_certain)
    }

    /// Whether every shard's root says that the log was closed in the pool's last opening, and the log has all of it.
    pub(super) async fn was_closed_whole(&self, capacity: &Superblock) -> bool {
        let Some((_, open_log)) = &self.log else { return false };
        let roots = if capacity.shape == Shape::Shaped { self.log_media.as_ref() } else { Some(&self.media) };
        let Some(roots) = roots else { return false };
        for shard in 0..capacity.shards {
            let found = read_roots(roots, capacity, shard).await;
            let best = found.into_iter().flatten().max_by_key(|root| root.generation);
            let Some(root) = best.filter(|root| root.epoch == capacity.epoch && root.log.is_closed) else {
                return false;
            };
            let medium = open_log.medium(&self.reactor, capacity.segment_start(shard, 0));
            let (geometry, known) = (LogGeometry::of(capacity, shard), log_known(&root, capacity.epoch));
            let read = log::survey(&medium, geometry, known, &mut |_, _| {}).await;
            if !read.is_ok_and(|head| head.lost.is_empty()) {
                return false;
            }
        }
        true
    }
}
