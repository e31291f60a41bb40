//! Superblocks: two copies on each device, the two devices a pair.

use super::report::{Finding, Severity};
use super::{Checker, RESTORE};
use crate::check::blocks_of;
use crate::format::root::Root;
use crate::format::segment::Segment;
use crate::format::superblock::{Role, SUPERBLOCK_COPIES, Shape, Superblock, SuperblockError};
use crate::log::{self, LogGeometry};
use crate::meta::catalog::load_copy;
use crate::meta::media::Media;
use crate::meta::{log_known, read_root};
use crate::pool::{Older, find_older};
use crate::units::BLOCK_BYTES;
use bdev::Status;

/// The copies of one device.
pub(super) struct Copies {
    /// The newest valid one.
    pub(super) best: Option<Superblock>,
    /// A copy says that later software was at work: nothing may be changed.
    later: bool,
    /// There was one.
    damaged: bool,
}

impl Checker {
    /// Judges a device's own copies.
    pub(super) async fn device_superblocks(&mut self, media: &Media, role: Role) -> Copies {
        let object = format!("superblock of the {} device", role.name());
        let mut copies: Vec<(u64, Result<Superblock, String>)> = Vec::new();
        let mut found = Copies { best: None, later: false, damaged: false };
        let (mut blank, mut foreign) = (true, true);
        for copy in 0..SUPERBLOCK_COPIES {
            let decoded = match media.read_bytes(copy, 1).await {
                Err(status) => {
                    (blank, foreign) = (false, false);
                    Err(format!("it cannot be read: {status}"))
                }
                Ok(bytes) => {
                    let block = bytes.as_slice().try_into().expect("one block was read");
                    let decoded = Superblock::decode(block);
                    found.damaged |= matches!(decoded, Err(SuperblockError::Damaged(_)));
                    found.later |=
                        matches!(decoded, Err(SuperblockError::NewerVersion(_) | SuperblockError::UnknownFeature(_)));
                    blank &= decoded == Err(SuperblockError::NotAPool { blank: true });
                    foreign &= matches!(decoded, Err(SuperblockError::NotAPool { .. }));
                    decoded.map_err(|error| error.to_string())
                }
            };
            copies.push((copy, decoded));
        }
        let valid = copies.iter().filter_map(|(_, copy)| copy.as_ref().ok());
        found.best = valid.max_by_key(|copy| copy.generation).cloned();
        self.report.counts.superblocks += copies.iter().filter(|(_, copy)| copy.is_ok()).count() as u64;
        if found.later {
            for (copy, decoded) in &copies {
                if let Err(cause) = decoded {
                    self.report.error(&object, format!("block {copy}"), cause.clone(), "nothing was changed");
                }
            }
            found.best = None;
            return found;
        }
        let Some(best) = found.best.clone() else {
            if blank {
                self.report.error(
                    &object,
                    "blocks 0 and 1",
                    "the device is blank".to_string(),
                    "name the right device",
                );
                return found;
            }
            for (copy, decoded) in &copies {
                let cause = decoded.as_ref().err().cloned().unwrap_or_default();
                let advice = if foreign { "name the right device" } else { RESTORE };
                self.report.error(&object, format!("block {copy}"), cause, advice);
            }
            return found;
        };
        for (copy, decoded) in copies {
            let finding = match decoded {
                Ok(this) if this.generation == best.generation => continue,
                Ok(_) => (Severity::Note, "it is older than the other copy, as a crash leaves it".to_string()),
                Err(cause) => (Severity::Warning, format!("{cause}; the other copy is valid")),
            };
            let finding = Finding::new(finding.0, &object, format!("block {copy}"), finding.1, "repair it");
            let finding = self.repaired(finding, rewrite(media, copy, &best)).await;
            self.report.add(finding);
        }
        let needed = blocks_of(&best, role);
        if media.blocks < needed {
            let meaning = format!("the device has {} blocks of 4 KiB, the pool uses {needed}", media.blocks);
            self.report.error(&object, "blocks 0 and 1", meaning, "give the device its former size");
        }
        found
    }

    /// The superblock by which everything else is found: the capacity device's, or what the log device knows of it.
    pub(super) async fn pair(&mut self, capacity: Copies, log: Option<Copies>) -> Option<Superblock> {
        let log_best = log.as_ref().and_then(|log| log.best.clone()).filter(|log| log.role == Role::Log);
        if let Some(best) = capacity.best.clone() {
            if best.role != Role::Capacity {
                let meaning = format!("this is the {} device of pool '{}'", best.role.name(), best.name);
                self.report.error("capacity device", "blocks 0 and 1", meaning, "name the devices the other way round");
                return None;
            }
            self.log_is_ours = match (&log, log_best) {
                (None, _) => false,
                (Some(_), Some(log)) => self.is_pair(&best, &log) && self.is_as_new(&best, &log).await,
                (Some(copies), None) => self.restore_log(copies, &best).await,
            };
            return Some(best);
        }
        let log = log_best.filter(|_| !capacity.later)?;
        let rebuilt = Superblock { role: Role::Capacity, device: log.other, other: log.device, ..log };
        let media = self.media.clone();
        let mut known = false;
        for copy in 0..2 {
            known |= load_copy(&media, &rebuilt, copy).await.is_ok();
        }
        if !known {
            self.report.error(
                "capacity device",
                "catalog",
                "it is not the device that the log belongs to".to_string(),
                RESTORE,
            );
            return None;
        }
        let meaning = "both copies are gone; the log device knows what they said".to_string();
        let finding =
            Finding::new(Severity::Error, "superblock of the capacity device", "blocks 0 and 1", meaning, "repair it");
        let finding = self.repaired(finding, rewrite_all(&media, &rebuilt)).await;
        self.report.add_for_all(finding);
        self.log_is_ours = true;
        Some(rebuilt)
    }

    fn is_pair(&mut self, capacity: &Superblock, log: &Superblock) -> bool {
        if capacity.pool != log.pool || capacity.other != log.device || log.other != capacity.device {
            let meaning = format!(
                "it is the log {} of pool '{}' ({}); the capacity device belongs to log {} of pool '{}' ({})",
                log.device, log.name, log.pool, capacity.other, capacity.name, capacity.pool
            );
            self.report.error(
                "log device",
                "blocks 0 and 1",
                meaning,
                "name the right log device, or use 'pool forget-log'",
            );
            return false;
        }
        let of_log = |superblock: &Superblock| {
            (superblock.segment_blocks, superblock.segments, superblock.segments_start, superblock.log_kind)
        };
        if of_log(capacity) != of_log(log) || capacity.shards != log.shards {
            let meaning = "the two devices have different ideas of the log".to_string();
            self.report.error("superblocks", "both devices", meaning, RESTORE);
            return false;
        }
        let size = |superblock: &Superblock| (superblock.log_blocks, superblock.capacity_blocks);
        if capacity.regions != log.regions || size(capacity) != size(log) {
            let meaning = "the log device does not know that the pool has grown, as a crash leaves it".to_string();
            let advice = "opening the pool puts it right";
            self.report.add(Finding::new(Severity::Note, "superblocks", "both devices", meaning, advice));
        }
        true
    }

    /// Neither device is an older copy of what it was. If one is, nothing may be repaired by what the two say together.
    async fn is_as_new(&mut self, capacity: &Superblock, log: &Superblock) -> bool {
        let Some((_, open_log)) = &self.log else { return true };
        let Some(older) = find_older(&self.reactor, capacity, log, open_log).await else { return true };
        self.older_device(older);
        false
    }

    fn older_device(&mut self, Older { role, seen, newest }: Older) {
        let meaning = format!(
            "it is an older copy of what it was: it has seen {seen} openings of the pool, the other device {newest}; the pool does not \
             open, and the log is not looked at"
        );
        let advice = match role {
            Role::Log => "bring the newer one back, or, if that is lost, give it up with 'pool forget-log --force'",
            Role::Capacity => "bring the newer one back",
        };
        self.report.error(format!("{} device", role.name()), "blocks 0 and 1", meaning, advice);
        self.options.repair = false;
    }

    /// Whether every shard's root says that the log was closed in the pool's last opening, and the log has all of it.
    async fn was_closed_whole(&self, capacity: &Superblock) -> bool {
        let Some((_, open_log)) = &self.log else { return false };
        let roots = if capacity.shape == Shape::Shaped { self.log_media.as_ref() } else { Some(&self.media) };
        let Some(roots) = roots else { return false };
        for shard in 0..capacity.shards {
            let mut best: Option<Root> = None;
            for copy in 0..2 {
                let root = read_root(roots, capacity, shard, copy).await.ok();
                best = best.into_iter().chain(root).max_by_key(|root| root.generation);
            }
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

    /// Both copies on the log device are unusable: it can be told what they said, if it is certain that it is this log.
    async fn restore_log(&mut self, copies: &Copies, capacity: &Superblock) -> bool {
        let Some(media) = self.log_media.clone().filter(|_| !copies.later) else { return false };
        let newest = newest_segment(&media, capacity).await;
        if !copies.damaged && newest == 0 {
            let meaning = format!("nothing shows that this is the log of pool '{}'", capacity.name);
            self.report.error(
                "log device",
                "blocks 0 and 1",
                meaning,
                "name the right log device, or use 'pool forget-log'",
            );
            return false;
        }
        let rebuilt =
            Superblock { role: Role::Log, device: capacity.other, other: capacity.device, ..capacity.clone() };
        let meaning = "both copies are gone; the capacity device knows what they said".to_string();
        let finding =
            Finding::new(Severity::Error, "superblock of the log device", "blocks 0 and 1", meaning, "repair it");
        // A damaged superblock may be another pool's: only segments prove that the log is this one.
        if newest == 0 {
            self.report.add(finding);
            return false;
        }
        if newest > capacity.epoch {
            self.older_device(Older { role: Role::Capacity, seen: capacity.epoch, newest });
            self.report
                .add(Finding { advice: "bring the newer capacity device back, and check again".into(), ..finding });
            return false;
        }
        // What the log lacks of the last opening would be taken for there, and old data shown.
        if newest < capacity.epoch && !self.was_closed_whole(capacity).await {
            let advice = "nothing shows that this is the newest copy of the log: it has nothing of the pool's last opening; bring \
                          the newest back, or give it up with 'pool forget-log --force'";
            self.report.add(Finding { advice: advice.into(), ..finding });
            self.options.repair = false;
            return false;
        }
        let finding = self.repaired(finding, rewrite_all(&media, &rebuilt)).await;
        self.report.add_for_all(finding);
        true
    }
}

async fn rewrite(media: &Media, copy: u64, superblock: &Superblock) -> Result<(), Status> {
    let mut block = [0; BLOCK_BYTES];
    superblock.encode(&mut block);
    // What reads well may not be durable: nothing is overwritten before it is.
    media.settle(1 - copy, 1).await?;
    media.write_durably(copy, &block).await
}

async fn rewrite_all(media: &Media, superblock: &Superblock) -> Result<(), Status> {
    let mut block = [0; BLOCK_BYTES];
    superblock.encode(&mut block);
    for copy in 0..SUPERBLOCK_COPIES {
        media.write_durably(copy, &block).await?;
    }
    Ok(())
}

/// The latest epoch of which a device has a segment of the pool where the superblock says they are; 0 when it has none.
async fn newest_segment(media: &Media, superblock: &Superblock) -> u32 {
    let mut newest = 0;
    for shard in 0..superblock.shards {
        for place in 0..superblock.segments {
            let Ok(bytes) = media.read_bytes(superblock.segment_start(shard, place), 1).await else { continue };
            let found = Segment::decode(&bytes).and_then(Result::ok);
            let is_its = |found: &Segment| found.pool == superblock.pool_prefix() && found.shard == shard;
            newest = found.filter(is_its).map_or(newest, |found| newest.max(found.epoch));
        }
    }
    newest
}
