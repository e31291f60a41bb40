//! Superblocks: two copies on each device, the two devices a pair. Nothing is written to either before the pair has been judged:
//! where the two do not belong together, or one is an older copy, both stay as they are.

use super::report::{Finding, Severity};
use super::{Checker, RESTORE};
use crate::check::blocks_of;
use crate::format::superblock::{Role, SUPERBLOCK_COPIES, Superblock, SuperblockError};
use crate::meta::media::Media;
use crate::meta::superblocks::is_superblock;
use crate::pool::{Older, UNUSED_BYTES, find_older, went_apart};
use crate::remains::remains;
use crate::units::BLOCK_BYTES;
use bdev::Status;

const BOTH_COPIES: &str = "blocks 0 and 1";

/// The copies of one device, as they were found.
pub(super) struct Copies {
    role: Role,
    /// The newest valid one.
    best: Option<Superblock>,
    /// A copy says that later software was at work: nothing may be changed.
    later: bool,
    /// All of them are zeroes.
    blank: bool,
    /// None was ever a superblock, as far as can be seen.
    foreign: bool,
    /// Which device of a pool this was, going by what follows the superblocks, if none of them is there.
    remains: Option<Role>,
    /// Copies that are not valid, and why not.
    causes: Vec<(u64, String)>,
    /// Copies beside the newest valid one that are not the same, and what is to be said of them.
    stale: Vec<(u64, Finding)>,
}

/// What the two devices are together.
struct Judged {
    /// By which everything else is found.
    superblock: Option<Superblock>,
    /// The log device is this pool's, and no older copy.
    log_is_ours: bool,
    /// Something speaks against it that the two belong together as they are: both are left alone.
    is_refused: bool,
}

impl Judged {
    fn refused(superblock: Option<Superblock>) -> Judged {
        Judged { superblock, log_is_ours: false, is_refused: true }
    }

    fn pair(superblock: Superblock) -> Judged {
        Judged { superblock: Some(superblock), log_is_ours: true, is_refused: false }
    }
}

impl Copies {
    fn object(&self) -> String {
        object_of(self.role)
    }

    /// That none is valid, and why.
    fn gone(&self) -> String {
        if self.blank {
            return "both copies are gone, the blocks are zeroes".to_string();
        }
        let causes: Vec<String> = self.causes.iter().map(|(copy, cause)| format!("block {copy}: {cause}")).collect();
        format!("both copies are gone ({})", causes.join("; "))
    }
}

fn object_of(role: Role) -> String {
    format!("superblock of the {} device", role.name())
}

impl Checker {
    /// Reads a device's own copies.
    pub(super) async fn device_superblocks(&mut self, media: &Media, role: Role) -> Copies {
        let mut valid: Vec<(u64, Superblock)> = Vec::new();
        let mut found = Copies {
            role,
            best: None,
            later: false,
            blank: true,
            foreign: true,
            remains: None,
            causes: Vec::new(),
            stale: Vec::new(),
        };
        for copy in 0..SUPERBLOCK_COPIES {
            let decoded = match media.read_bytes(copy, 1).await {
                Err(status) => {
                    (found.blank, found.foreign) = (false, false);
                    Err(format!("it cannot be read: {status}"))
                }
                Ok(bytes) => {
                    let decoded = Superblock::decode(bytes.as_slice().try_into().expect("one block was read"));
                    found.later |=
                        matches!(decoded, Err(SuperblockError::NewerVersion(_) | SuperblockError::UnknownFeature(_)));
                    found.blank &= decoded == Err(SuperblockError::NotAPool { blank: true });
                    found.foreign &= matches!(decoded, Err(SuperblockError::NotAPool { .. }));
                    decoded.map_err(|error| error.to_string())
                }
            };
            match decoded {
                Ok(superblock) => valid.push((copy, superblock)),
                Err(cause) => found.causes.push((copy, cause)),
            }
        }
        self.report.counts.superblocks += valid.len() as u64;
        let object = found.object();
        if found.later {
            for (copy, cause) in &found.causes {
                self.report.error(&object, format!("block {copy}"), cause.clone(), "nothing was changed");
            }
            return found;
        }
        let Some(best) = valid.iter().map(|(_, copy)| copy).max_by_key(|copy| copy.generation).cloned() else {
            if found.foreign {
                let start = media.read_bytes(0, UNUSED_BYTES / BLOCK_BYTES).await;
                found.remains = start.ok().and_then(|start| remains(&start));
            }
            return found;
        };
        let older = valid.iter().filter(|(_, copy)| copy.generation < best.generation).map(|(copy, _)| {
            (*copy, Severity::Note, "it is older than the other copy, as a crash leaves it".to_string())
        });
        let damaged = found.causes.iter().map(|(copy, cause)| {
            let meaning = format!("{cause}; the other copy is valid");
            (*copy, Severity::Warning, meaning)
        });
        found.stale = older
            .chain(damaged)
            .map(|(copy, severity, meaning)| {
                (copy, Finding::new(severity, &object, format!("block {copy}"), meaning, "repair it"))
            })
            .collect();
        let needed = blocks_of(&best, role);
        if media.blocks < needed {
            let meaning = format!("the device has {} blocks of 4 KiB, the pool uses {needed}", media.blocks);
            self.report.error(&object, BOTH_COPIES, meaning, "give the device its former size");
        }
        found.best = Some(best);
        found
    }

    /// The superblock by which everything else is found: the capacity device's, or what the log device knows of it. Then, if the two
    /// belong together, each device's copies are made equal.
    pub(super) async fn pair(&mut self, mut capacity: Copies, mut log: Option<Copies>) -> Option<Superblock> {
        let stale_of_log = log.as_mut().map(|log| std::mem::take(&mut log.stale)).unwrap_or_default();
        let stale = [(Role::Capacity, std::mem::take(&mut capacity.stale)), (Role::Log, stale_of_log)];
        let best_of = |role: Role| match role {
            Role::Capacity => capacity.best.clone(),
            Role::Log => log.as_ref().and_then(|log| log.best.clone()),
        };
        let bests = [Role::Capacity, Role::Log].map(best_of);
        if let Some(best) = bests.iter().flatten().find(|best| !best.is_writable()) {
            self.refuse_to_write(best);
        }
        let Judged { superblock, log_is_ours, is_refused } = self.judge(capacity, log).await;
        self.log_is_ours = log_is_ours;
        self.options.repair &= !is_refused;
        for ((role, stale), best) in stale.into_iter().zip(bests) {
            let media = if role == Role::Log { self.log_media.clone() } else { Some(self.media.clone()) };
            let (Some(media), Some(best)) = (media, best) else { continue };
            for (copy, mut finding) in stale {
                if is_refused {
                    finding.advice = "nothing until it is known that the two devices belong together".into();
                }
                let finding = self.repaired(finding, rewrite(&media, copy, &best)).await;
                self.report.add(finding);
            }
        }
        superblock
    }

    /// Opening it writes, and so do repairs: this program does neither.
    fn refuse_to_write(&mut self, superblock: &Superblock) {
        let but = if std::mem::take(&mut self.options.repair) { ": nothing is repaired" } else { "" };
        let meaning =
            format!("it uses features that this program may read and not write, and cannot be opened by it{but}");
        self.report.warning("pool", &superblock.name, meaning, "use a newer program");
    }

    async fn judge(&mut self, capacity: Copies, log: Option<Copies>) -> Judged {
        let is_later = capacity.later || log.as_ref().is_some_and(|log| log.later);
        let of_log = log.as_ref().and_then(|log| log.best.clone());
        let swapped = [(Role::Capacity, &capacity.best), (Role::Log, &of_log)].map(|(role, best)| {
            let other = best.as_ref().filter(|best| best.role != role)?;
            let meaning = format!("this is the {} device of pool '{}'", other.role.name(), other.name);
            Some((role, meaning))
        });
        if let [Some((role, meaning)), _] | [None, Some((role, meaning))] = swapped {
            let advice = match capacity.best {
                Some(_) if role == Role::Log => "name the right log device, or use 'pool forget-log'",
                _ => "name the devices the other way round",
            };
            self.report.error(format!("{} device", role.name()), BOTH_COPIES, meaning, advice);
            let superblock = capacity.best.clone().filter(|_| role == Role::Log);
            if capacity.best.is_none() && !capacity.later {
                self.alone(&capacity);
            }
            return Judged::refused(superblock);
        }
        match (&capacity.best, log, of_log) {
            (Some(best), None, _) => {
                Judged { superblock: Some(best.clone()), log_is_ours: false, is_refused: is_later }
            }
            (Some(best), Some(_), _) if is_later => Judged::refused(Some(best.clone())),
            (Some(best), Some(_), Some(log)) => match self.is_pair(best, &log) && self.is_as_new(best, &log).await {
                true => Judged::pair(best.clone()),
                false => Judged::refused(Some(best.clone())),
            },
            (Some(best), Some(copies), None) => match self.restore_log(&copies, best).await {
                true => Judged::pair(best.clone()),
                false => Judged::refused(Some(best.clone())),
            },
            (None, _, _) if is_later => Judged::refused(None),
            (None, _, Some(log)) => match self.restore_capacity(&capacity, &log).await {
                Some(superblock) => Judged::pair(superblock),
                None => Judged::refused(None),
            },
            (None, log, None) => {
                self.alone(&capacity);
                log.iter().for_each(|log| self.alone(log));
                Judged::refused(None)
            }
        }
    }

    /// What is to be said of a device without a valid copy when the other one does not help.
    fn alone(&mut self, copies: &Copies) {
        let object = copies.object();
        if let Some(role) = copies.remains {
            let meaning = format!("{}; what follows them was the {} device of a pool", copies.gone(), role.name());
            let advice = match role == copies.role {
                true => {
                    "bring back the first two blocks of this device or of the other one from a backup: nothing else says where all is"
                }
                false => "name the right device",
            };
            self.report.error(&object, BOTH_COPIES, meaning, advice);
            return;
        }
        if copies.blank {
            let meaning = "the device is blank where a pool has its superblocks".to_string();
            let advice = "name the right device; or, if it is this one, bring these blocks back from a backup";
            self.report.error(&object, BOTH_COPIES, meaning, advice);
            return;
        }
        let advice = if copies.foreign { "name the right device" } else { RESTORE };
        for (copy, cause) in &copies.causes {
            self.report.error(&object, format!("block {copy}"), cause.clone(), advice);
        }
    }

    fn is_pair(&mut self, capacity: &Superblock, log: &Superblock) -> bool {
        if capacity.pool != log.pool || capacity.other != log.device || log.other != capacity.device {
            let meaning = format!(
                "it is the log {} of pool '{}' ({}); the capacity device belongs to log {} of pool '{}' ({})",
                log.device, log.name, log.pool, capacity.other, capacity.name, capacity.pool
            );
            let advice = "name the right log device, or use 'pool forget-log'";
            self.report.error("log device", BOTH_COPIES, meaning, advice);
            return false;
        }
        if went_apart(capacity, log) {
            let meaning = format!(
                "they went on apart: both have seen {} openings of the pool, and not the same ones; one of them is of another copy of \
                 the pool, and the log is not looked at",
                capacity.epoch
            );
            let advice = "bring the one back that was in use with the other";
            self.report.error("superblocks", "both devices", meaning, advice);
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
        let Some(older) = find_older(&self.reactor, capacity, log, &self.media, open_log).await else { return true };
        self.older_device(older);
        false
    }

    fn older_device(&mut self, older: Older) {
        let how = older.how("the other device");
        let meaning =
            format!("it is an older copy of what it was: {how}; the pool does not open, and the log is not looked at");
        let role = older.role;
        let advice = match role {
            Role::Log => "bring the newer one back, or, if that is lost, give it up with 'pool forget-log --force'",
            Role::Capacity => "bring the newer one back",
        };
        self.report.error(format!("{} device", role.name()), BOTH_COPIES, meaning, advice);
    }

    /// Both copies on the log device are unusable: it can be told what they said, if it is certain that it is this log, and the newest
    /// copy of it.
    async fn restore_log(&mut self, copies: &Copies, capacity: &Superblock) -> bool {
        let Some(media) = self.log_media.clone() else { return false };
        let (object, gone, name) = (copies.object(), copies.gone(), &capacity.name);
        // A damaged superblock may be another pool's: only segments prove that the log is this one.
        let (newest, _) = self.newest_segment(&media, capacity).await;
        let refused = match newest {
            0 => Some((
                format!(
                    "{gone}, and nothing else shows that this is the log of pool '{name}': it has no segment of it"
                ),
                "name the device that has the log; if that is lost, 'pool forget-log' gives it up, for this device or another one",
            )),
            newest if newest > capacity.epoch => Some((
                format!(
                    "{gone}; the log has records of opening {newest} of the pool, and the capacity device, which knew what they said, \
                     has seen {} alone: that one is an older copy",
                    capacity.epoch
                ),
                "bring the newer capacity device back, and check again",
            )),
            // What the log lacks of the last opening would be taken for there, and old data shown.
            newest if newest < capacity.epoch && !self.was_closed_whole(capacity).await => Some((
                format!(
                    "{gone}, and nothing shows that this is the newest copy of the log: the capacity device has seen opening {} of the \
                     pool, the log has records of opening {newest} at the latest, and was not closed since",
                    capacity.epoch
                ),
                "bring the newest copy back, or give it up with 'pool forget-log --force'",
            )),
            _ => None,
        };
        if let Some((meaning, advice)) = refused {
            self.report.error(object, BOTH_COPIES, meaning, advice);
            return false;
        }
        let rebuilt = capacity.counterpart();
        self.restore(&media, &rebuilt, format!("{gone}; the capacity device knows what they said")).await;
        true
    }

    /// The same of the capacity device.
    async fn restore_capacity(&mut self, copies: &Copies, log: &Superblock) -> Option<Superblock> {
        let (object, gone, name) = (copies.object(), copies.gone(), &log.name);
        let media = self.media.clone();
        let rebuilt = log.counterpart();
        if media.blocks < rebuilt.capacity_blocks {
            let (has, needed) = (media.blocks, rebuilt.capacity_blocks);
            let meaning =
                format!("{gone}; the device has {has} blocks of 4 KiB, and pool '{name}' uses {needed} of its own");
            self.report.error(object, BOTH_COPIES, meaning, "name the right device, or give it its former size");
            return None;
        }
        let Some(seen) = self.openings_seen(&rebuilt).await else {
            let meaning = format!(
                "{gone}, and it is not the device that the log belongs to: it has no root, journal or catalog of pool '{name}'"
            );
            self.report.error(object, BOTH_COPIES, meaning, "name the right device, or restore it from a backup");
            return None;
        };
        let (newest, is_certain) = self.newest_segment(&self.log_media.clone()?, &rebuilt).await;
        let known = format!("its roots and journals have seen {seen} openings of pool '{name}'");
        let refused = if seen > log.epoch {
            let meaning = format!(
                "{gone}; {known}, and the log device, which knew what they said, {} alone: that one is an older copy",
                log.epoch
            );
            Some((meaning, "bring the newer log device back, and check again"))
        } else if seen == log.epoch || is_certain && (1..=seen).contains(&newest) {
            // As with superblocks: nothing has been appended since the last opening that it has seen.
            None
        } else {
            let records =
                if newest == 0 { "none of its records".into() } else { format!("records of opening {newest}") };
            let meaning = format!(
                "{gone}, and nothing shows that this is the newest copy of the device: {known} and no later one, the log device {}, with \
                 {records}; taken for the newest, an older copy would show old data",
                log.epoch
            );
            let advice = "bring the newest copy back, or restore both devices from copies that were made at one time";
            Some((meaning, advice))
        };
        if let Some((meaning, advice)) = refused {
            self.report.error(object, BOTH_COPIES, meaning, advice);
            return None;
        }
        self.restore(&media, &rebuilt, format!("{gone}; the log device knows what they said")).await;
        Some(rebuilt)
    }

    async fn restore(&mut self, media: &Media, rebuilt: &Superblock, meaning: String) {
        let object = object_of(rebuilt.role);
        let finding = Finding::new(Severity::Error, object, BOTH_COPIES, meaning, "repair it");
        let finding = self.repaired(finding, rewrite_all(media, rebuilt)).await;
        self.report.add(finding);
    }
}

async fn rewrite(media: &Media, copy: u64, superblock: &Superblock) -> Result<(), Status> {
    let mut block = [0; BLOCK_BYTES];
    superblock.encode(&mut block);
    // What reads well may not be durable: nothing is overwritten before it is.
    media.settle(1 - copy, 1, 1, is_superblock).await?;
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
