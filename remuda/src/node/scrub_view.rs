//! A scrub of a pool as commands show it: how far it is, and what it has found.

use engine::{BadHeader, BadMetadata, BadRun, MetadataKind, Pool, PoolStatus, Rot, ScrubCourse};
use serde::{Deserialize, Serialize};

/// How far the scrub of a pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubState {
    /// There was none.
    #[default]
    None,
    /// It is under way.
    Running,
    /// It was stopped before its end, and goes on from there.
    Stopped,
    /// It came to its end.
    Done,
}

/// A scrub of a pool: how far it is, and what it has found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ScrubView {
    /// How far, in a word.
    pub state: ScrubState,
    /// Extents passed.
    pub extents_done: u64,
    /// Extents to pass.
    pub extents_total: u64,
    /// Bytes that were good.
    pub good_bytes: u64,
    /// Blocks of 4 KiB that did not match their checksums or could not be read.
    pub corrupt_blocks: u64,
    /// Blocks of 4 KiB that are known to be lost.
    pub lost_blocks: u64,
    /// Blocks of 4 KiB that were damaged in one version of the device and were written anew from another.
    #[serde(default)]
    pub healed_blocks: u64,
    /// Headers of stripes, of a shaped pool, that were damaged while blocks were in use there.
    #[serde(default)]
    pub damaged_headers: u64,
    /// Blocks of 4 KiB that were in use there, and were written anew elsewhere.
    #[serde(default)]
    pub rewritten_blocks: u64,
    /// The first of these headers.
    #[serde(default)]
    pub bad_headers: Vec<BadHeaderView>,
    /// Copies of structures of the metadata that were right in every version of their device.
    #[serde(default)]
    pub good_metadata: u64,
    /// Those that were damaged.
    #[serde(default)]
    pub damaged_metadata: u64,
    /// Of these, the ones that have been written anew.
    #[serde(default)]
    pub repaired_metadata: u64,
    /// The first of the damaged ones.
    #[serde(default)]
    pub bad_metadata: Vec<BadMetadataView>,
    /// The first runs of bad blocks.
    pub bad: Vec<BadRunView>,
    /// Bad blocks of 4 KiB that are not in that list.
    pub bad_left_off: u64,
    /// Bad blocks of 4 KiB that the scrub before this one had found at its end.
    #[serde(default)]
    pub bad_before: u64,
    /// When one came to its end the last time, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_s: Option<u64>,
}

/// Blocks of a volume that cannot be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BadRunView {
    /// The volume.
    pub volume: String,
    /// The first of them, as hosts count.
    pub lba: u64,
    /// How many.
    pub blocks: u64,
    /// Bytes of one.
    pub block_size: u32,
    /// They are known to be lost; otherwise they do not match their checksums or cannot be read.
    pub lost: bool,
    /// The volume or snapshot that has them, where this one only shows what that has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

/// A stripe, or stripes that follow one another, whose header is damaged. Blocks are of 4 KiB.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BadHeaderView {
    /// The shard.
    pub shard: u16,
    /// The band of the shard.
    pub band: u32,
    /// The block of the band that the header is in.
    pub first: u32,
    /// Blocks of the stripe, as far as is known.
    pub blocks: u32,
    /// Blocks that were in use there.
    pub in_use: u32,
    /// Of those, the ones that have been written anew elsewhere.
    pub rewritten: u32,
    /// Another version of the device has the header.
    pub in_one_version: bool,
}

/// A structure of the metadata that was damaged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BadMetadataView {
    /// The shard that found it: with what all shards have in common, the first one.
    pub shard: u16,
    /// What it is.
    pub kind: MetadataKind,
    /// Of superblocks, catalogs, roots and journals the copy, of table pages the page, of map pages the extent of the shard.
    pub number: u32,
    /// It belongs to the shadow of a shaped pool's index.
    pub of_shadow: bool,
    /// The device that it is on.
    pub device: String,
    /// Where it was, in blocks of 4 KiB.
    pub block: u64,
    /// How far it was damaged.
    pub rot: Rot,
    /// It has been written anew.
    pub repaired: bool,
    /// All of that in words.
    pub what: String,
    /// What follows, and what to do.
    pub meaning: String,
}

impl BadMetadataView {
    fn of(shard: u16, bad: &BadMetadata, [log, capacity]: [&str; 2]) -> BadMetadataView {
        let BadMetadata { kind, of_shadow, on_log, number, block, rot, repaired } = *bad;
        let device = if on_log { log } else { capacity }.to_string();
        let what = format!("{} {}: block {block} of device '{device}'", bad.what(shard), bad.how());
        let meaning = bad.meaning().to_string();
        BadMetadataView { shard, kind, number, of_shadow, device, block, rot, repaired, what, meaning }
    }
}

impl BadHeaderView {
    fn of(shard: u16, header: &BadHeader) -> BadHeaderView {
        let BadHeader { band, first, blocks, in_use, rewritten, in_one_version } = *header;
        BadHeaderView { shard, band, first, blocks, in_use, rewritten, in_one_version }
    }
}

impl ScrubView {
    pub(super) fn of(status: &PoolStatus, pool: &Pool) -> ScrubView {
        let volumes = pool.volumes();
        let named = |layer: u32| volumes.iter().find(|volume| volume.layer() == layer);
        let name_of = |layer: u32| {
            named(layer).map_or_else(|| format!("number {layer}"), |volume| volume.identity().name.clone())
        };
        let run = |bad: &BadRun| {
            let shift = named(bad.volume).map_or(12, |volume| volume.identity().block_shift);
            let (lba, blocks) = (bad.first << (12 - shift), (bad.blocks as u64) << (12 - shift));
            let (volume, of) = (name_of(bad.volume), bad.of.map(name_of));
            BadRunView { volume, lba, blocks, block_size: 1 << shift, lost: bad.lost, of }
        };
        // Who has been deleted shows nothing to anybody.
        let is_told = |bad: &&BadRun| bad.of.is_none() || named(bad.volume).is_some();
        let devices = pool.device_names();
        let mut view = ScrubView::default();
        let mut listed = 0;
        for (number, scrub) in status.shards.iter().map(|shard| (shard.number, &shard.scrub)) {
            view.extents_done += scrub.extents_done as u64;
            view.extents_total += scrub.extents_total as u64;
            view.good_bytes += scrub.good_blocks * engine::BLOCK_BYTES as u64;
            view.corrupt_blocks += scrub.corrupt_blocks;
            view.lost_blocks += scrub.lost_blocks;
            view.bad_before += scrub.bad_before;
            view.healed_blocks += scrub.healed_blocks;
            view.damaged_headers += scrub.damaged_headers;
            view.rewritten_blocks += scrub.rewritten_blocks;
            view.bad_headers.extend(scrub.bad_headers.iter().map(|header| BadHeaderView::of(number, header)));
            view.good_metadata += scrub.good_metadata;
            view.damaged_metadata += scrub.damaged_metadata;
            view.repaired_metadata += scrub.repaired_metadata;
            view.bad_metadata.extend(scrub.bad_metadata.iter().map(|bad| BadMetadataView::of(number, bad, devices)));
            view.bad.extend(scrub.bad.iter().filter(is_told).map(run));
            let own = scrub.bad.iter().filter(|bad| bad.of.is_none());
            listed += own.map(|bad| bad.blocks as u64).sum::<u64>();
        }
        view.bad.sort_by(|one, other| (&one.volume, one.lba).cmp(&(&other.volume, other.lba)));
        view.bad_left_off = (view.corrupt_blocks + view.lost_blocks).saturating_sub(listed);
        view.state = match status.shards.iter().map(|shard| shard.scrub.course()).max() {
            Some(ScrubCourse::Runs) => ScrubState::Running,
            Some(ScrubCourse::Stopped) => ScrubState::Stopped,
            Some(ScrubCourse::Ended) => ScrubState::Done,
            Some(ScrubCourse::None) | None => ScrubState::None,
        };
        view
    }
}
