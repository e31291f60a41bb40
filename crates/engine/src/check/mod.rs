//! Checking a pool that is not open: every structure that opening reads, the log, and on request every block.
//!
//! Each structure is judged by itself, so a pool that does not open can be checked as well. Reads only, unless repairs are
//! asked for; those restore copies from copies that are valid, make dirty journals anew from the log, drop what belongs to no
//! volume, and give up table pages that neither copy has, without which the pool does not open, and nothing else.
//! Memory: as much as the open pool's descriptors and log map.

mod bands;
mod data;
mod journal;
mod log;
mod lost;
mod proof;
mod report;
mod shadow;
mod shard;
mod stripes;
mod superblocks;
mod tables;

pub use report::{CheckCounts, CheckReport, FINDINGS_MAX, Finding, Severity};

use crate::error::PoolError;
use crate::format::catalog::{CatalogImage, VolumeEntry, VolumeState};
use crate::format::superblock::{Role, Shape, Superblock};
use crate::log_device::{LogDevice, OpenLog};
use crate::meta::Object;
use crate::meta::catalog::load_copy;
use crate::meta::media::Media;
use crate::units::EXTENT_BLOCKS;
use bdev::{BlockDevice, Status};
use reactor::Reactor;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tables::cause_of;

const RESTORE: &str = "restore the device from a backup";

/// What a check does beyond reading the metadata and the headers of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Verify the payload of every log record that recovery would replay.
    pub payloads: bool,
    /// Read every mapped block of every volume, and verify it; in a shaped pool, the headers of all stripes as well.
    pub data: bool,
    /// Restore copies from copies that are valid, make a dirty journal that cannot be read anew from the log, give back the space
    /// of volumes that there are not, and give up table pages that neither of their places has: whatever of a volume such a
    /// page may have described is lost.
    pub repair: bool,
}

struct Checker {
    reactor: Rc<Reactor>,
    options: CheckOptions,
    capacity: Arc<dyn BlockDevice>,
    media: Media,
    /// The device with roots, table pages and map pages.
    index: Media,
    log: Option<(LogDevice, OpenLog)>,
    log_media: Option<Media>,
    /// The log device is this pool's, and its superblocks say so (or did before they were damaged).
    log_is_ours: bool,
    /// Shards of the pool.
    shards: u32,
    /// Volumes may lie over others.
    layered: bool,
    /// Of the catalog, if it can be read.
    volumes: Option<BTreeMap<u32, VolumeEntry>>,
    report: CheckReport,
}

/// Checks a pool that is not open. `log` is `None` when its device is missing. An error means that the devices cannot be
/// used at all; everything else is in the report.
pub(crate) async fn check(
    reactor: &Rc<Reactor>,
    capacity: &Arc<dyn BlockDevice>,
    log: Option<&LogDevice>,
    options: CheckOptions,
) -> Result<CheckReport, PoolError> {
    let media = Media::new(reactor, capacity.open_channel(reactor)?, &capacity.info())?;
    let log = match log {
        Some(device) => Some((device.clone(), device.open(reactor, capacity.name())?)),
        None => None,
    };
    let log_media = match &log {
        Some((_, log)) => Some(Media::new(reactor, log.channel.clone(), &log.info)?),
        None => None,
    };
    let mut checker = Checker {
        reactor: reactor.clone(),
        options,
        capacity: capacity.clone(),
        media: media.clone(),
        index: media.clone(),
        log,
        log_media: log_media.clone(),
        log_is_ours: false,
        shards: 1,
        layered: false,
        volumes: None,
        report: CheckReport::default(),
    };
    let on_capacity = checker.device_superblocks(&media, Role::Capacity).await;
    let on_log = match &log_media {
        Some(media) => Some(checker.device_superblocks(media, Role::Log).await),
        None => None,
    };
    if let Some(superblock) = checker.pair(on_capacity, on_log).await {
        checker.report.pool = Some(superblock.name.clone());
        checker.pool(&superblock).await;
    }
    Ok(checker.report)
}

impl Checker {
    async fn pool(&mut self, superblock: &Superblock) {
        self.layered = superblock.layered;
        if self.log.is_none() {
            let meaning =
                "without its log the pool cannot be opened, and what is newest in the log is unknown".to_string();
            self.report.error("log device", "missing", meaning, "find it, or give it up with 'pool forget-log'");
        }
        self.shards = superblock.shards as u32;
        self.catalog(superblock).await;
        if superblock.shape == Shape::Shaped {
            // Without the log device, which has the index, nothing more can be said.
            let Some(index) = self.log_media.clone().filter(|_| self.log_is_ours) else { return };
            self.index = index;
        }
        for number in 0..superblock.shards {
            self.shard(superblock, number).await;
        }
    }

    async fn catalog(&mut self, superblock: &Superblock) {
        let copies = [load_copy(&self.media, superblock, 0).await, load_copy(&self.media, superblock, 1).await];
        let valid = copies.iter().filter_map(|copy| copy.as_ref().ok());
        let best: Option<CatalogImage> = valid.max_by_key(|copy| copy.generation).cloned();
        self.report.counts.catalogs += copies.iter().filter(|copy| copy.is_ok()).count() as u64;
        let Some(best) = best else {
            for copy in copies {
                let cause = copy.err().map(|error| cause_of(&error)).unwrap_or_default();
                self.report.error(Object::Catalog, "both copies", cause, RESTORE);
            }
            return;
        };
        for (copy, image) in (0..2).zip(&copies) {
            let block = superblock.catalog_copy(copy);
            let (severity, meaning) = match image {
                Ok(image) if image.generation == best.generation => continue,
                Ok(_) => (Severity::Note, "it is older than the other copy, as a crash leaves it".to_string()),
                Err(error) => (Severity::Warning, format!("{}; the other copy is valid", cause_of(error))),
            };
            let finding = Finding::new(severity, Object::Catalog, format!("block {block}"), meaning, "repair it");
            let bytes = best.encode(superblock.pool);
            let (media, other) = (self.media.clone(), superblock.catalog_copy(1 - copy));
            let repair = async move {
                media.write_durably(other, &bytes).await?;
                media.write_durably(block, &bytes).await
            };
            let finding = self.repaired(finding, repair).await;
            self.report.add(finding);
        }
        self.volumes_of(best);
    }

    fn volumes_of(&mut self, image: CatalogImage) {
        let mut names = BTreeMap::new();
        for volume in &image.volumes {
            self.report.counts.volumes += 1;
            let object = format!("volume {} '{}'", volume.id, volume.name);
            let is_used = volume.state != VolumeState::Deleting;
            if let Some(other) = is_used.then(|| names.insert(volume.name.clone(), volume.id)).flatten() {
                let meaning = format!("volume {other} has the same name");
                self.report.warning(&object, "catalog", meaning, "delete or rename one of them");
            }
            if volume.blocks == 0 || volume.blocks.div_ceil(EXTENT_BLOCKS as u64) > u32::MAX as u64 {
                let meaning = format!("its size of {} blocks of 4 KiB cannot be", volume.blocks);
                self.report.error(&object, "catalog", meaning, RESTORE);
            }
            if volume.state == VolumeState::Deleting {
                let users = image.volumes.iter().filter(|other| other.parent == volume.id).count();
                let (meaning, advice) = match users {
                    0 | 1 => ("its deletion has not ended".to_string(), "opening the pool ends it"),
                    users => (
                        format!("it is deleted, and {users} volumes and snapshots show what it has"),
                        "nothing: it goes when one of them is left",
                    ),
                };
                self.report.add(Finding::new(Severity::Note, &object, "catalog", meaning, advice));
            }
        }
        self.volumes = Some(image.volumes.into_iter().map(|volume| (volume.id, volume)).collect());
    }

    /// A volume or snapshot, in words.
    fn volume_named(&self, id: u32) -> String {
        let volume = self.volumes.as_ref().and_then(|volumes| volumes.get(&id));
        match volume {
            Some(VolumeEntry { name, state: VolumeState::Live, .. }) => format!("volume '{name}'"),
            Some(VolumeEntry { name, .. }) => format!("snapshot '{name}'"),
            None => format!("volume {id}, which is not in the catalog"),
        }
    }

    /// Runs a repair, if they are wanted.
    async fn repaired(&self, finding: Finding, repair: impl Future<Output = Result<(), Status>>) -> Finding {
        match self.options.repair {
            true => finding.after(repair.await),
            false => finding,
        }
    }
}

/// Blocks of a device that the pool uses.
fn blocks_of(superblock: &Superblock, role: Role) -> u64 {
    match role {
        Role::Log => superblock.log_blocks,
        Role::Capacity => superblock.capacity_blocks,
    }
}
