//! The storage model: what is on the media, what is only in the volatile cache, and what a power cut leaves of it.
//!
//! ```text
//! write  -> a new version of each unit, visible to reads, durable or not      flush -> the newest version is durable
//! power cut -> each unit independently holds its durable version or any later one (torn between units, reordered)
//! ```
//! A *unit* is what the media writes atomically (512 or 4,096 bytes). The model is data only: time and faults that depend
//! on chance come from the caller.

use crate::pages::{Pages, hash_bytes, mix};
use crate::zones::Zones;
use base::Rng;
use reactor::FileZones;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Versions of a unit kept before the oldest is written back.
const VERSIONS_MAX: usize = 12;

/// What a simulated file or block device is like.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Size in bytes; 0 for a file that is created by its first user.
    pub bytes: u64,
    /// The atomic unit, 512 or 4,096 bytes.
    pub unit: u32,
    /// A block device rather than a regular file.
    pub block_device: bool,
    /// Completed writes may be lost on power failure until a flush.
    pub volatile_cache: bool,
    /// Ranges can be deallocated.
    pub can_discard: bool,
    /// Operations complete at once, inside the submitting turn.
    pub synchronous: bool,
    /// It says that it turns; its times are as those of others.
    pub rotates: bool,
    /// Bytes that may be allocated; writes to holes beyond that fail with ENOSPC.
    pub space_bytes: Option<u64>,
    /// A block device that is written zone by zone, and is as long as whole zones.
    pub zones: Option<FileZones>,
    /// Write streams that it has; it forgets which of them a block was written with.
    pub write_streams: u8,
}

impl Default for DiskOptions {
    fn default() -> Self {
        DiskOptions {
            bytes: 1 << 20,
            unit: 512,
            block_device: false,
            volatile_cache: true,
            can_discard: true,
            synchronous: false,
            rotates: false,
            space_bytes: None,
            zones: None,
            write_streams: 0,
        }
    }
}

/// What a power cut does to unflushed writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLoss {
    /// Each unit holds any version since the last flush.
    Any,
    /// Nothing unflushed survives.
    All,
    /// Everything survives.
    Nothing,
    /// Writes up to some point in time survive.
    Suffix,
}

impl CacheLoss {
    /// One of them.
    pub fn pick(rng: &mut Rng) -> CacheLoss {
        match rng.below(6) {
            0 => CacheLoss::All,
            1 => CacheLoss::Nothing,
            2 => CacheLoss::Suffix,
            _ => CacheLoss::Any,
        }
    }
}

#[derive(Clone)]
struct Version {
    sequence: u64,
    data: Rc<[u8]>,
}

/// One simulated disk or file. Copies share what is the same.
#[derive(Clone)]
pub struct Disk {
    pub(crate) options: DiskOptions,
    /// What reads see.
    view: Pages,
    /// What is durable.
    media: Pages,
    /// Unit -> versions newer than the durable one, oldest first.
    pending: BTreeMap<u64, Vec<Version>>,
    /// Units that cannot be read until they are written again.
    unreadable: BTreeSet<u64>,
    allocated: BTreeSet<u64>,
    sequence: u64,
    pub(crate) zones: Option<Zones>,
    pub(crate) read_only: bool,
    pub(crate) locked_by: Option<u64>,
    pub(crate) failed_flushes: u64,
    /// Writes applied so far, the count that crash points refer to.
    pub(crate) writes_applied: u64,
    /// Driver -> bytes of its writes that have reached the disk.
    pub(crate) written: BTreeMap<usize, u64>,
}

impl Disk {
    pub(crate) fn new(options: DiskOptions) -> Disk {
        assert!(options.unit == 512 || options.unit == 4096, "the atomic unit is 512 or 4096 bytes");
        let bytes = options.bytes as usize;
        Disk {
            zones: options.zones.map(|like| Zones::new(like, options.bytes)),
            options,
            view: Pages::new(bytes),
            media: Pages::new(bytes),
            pending: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            allocated: BTreeSet::new(),
            sequence: 0,
            read_only: false,
            locked_by: None,
            failed_flushes: 0,
            writes_applied: 0,
            written: BTreeMap::new(),
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.view.len() as u64
    }

    /// Equal for equal contents, those of the volatile cache included.
    pub(crate) fn hash(&self) -> u64 {
        let mut hash = mix(mix(1, self.view.hash()), self.media.hash());
        for (unit, versions) in &self.pending {
            let data = versions.iter().map(|version| &version.data);
            hash = data.fold(mix(hash, *unit), |hash, data| hash_bytes(hash, data));
        }
        self.zones.iter().flat_map(Zones::hash_words).fold(hash, mix)
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn resize(&mut self, bytes: u64) {
        let unit = self.options.unit as u64;
        // A version covers a whole unit; those of a shortened unit are cut when they are used.
        self.pending.retain(|index, _| index * unit < bytes);
        self.view.resize(bytes as usize);
        self.media.resize(bytes as usize);
    }

    fn unit_range(&self, index: u64) -> Range<usize> {
        let unit = self.options.unit as usize;
        let start = index as usize * unit;
        start..(start + unit).min(self.view.len())
    }

    fn units(&self, offset: u64, bytes: u64) -> Range<u64> {
        let unit = self.options.unit as u64;
        if bytes == 0 { 0..0 } else { offset / unit..(offset + bytes).div_ceil(unit) }
    }

    /// Whether a write of this range would run out of space.
    pub(crate) fn lacks_space(&self, offset: u64, bytes: u64) -> bool {
        let Some(space) = self.options.space_bytes else { return false };
        let new = self.units(offset, bytes).filter(|unit| !self.allocated.contains(unit)).count();
        (self.allocated.len() + new) as u64 * self.options.unit as u64 > space
    }

    /// Bytes readable from `offset`, at most `bytes`.
    pub(crate) fn readable(&self, offset: u64, bytes: u64) -> u64 {
        bytes.min(self.bytes().saturating_sub(offset))
    }

    /// Whether a unit of the range is unreadable.
    pub(crate) fn is_damaged(&self, offset: u64, bytes: u64) -> bool {
        self.unreadable.range(self.units(offset, bytes)).next().is_some()
    }

    /// Copies out what is there.
    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) {
        self.view.read(offset as usize, target);
    }

    /// Makes one unit of the range unreadable.
    pub(crate) fn damage(&mut self, offset: u64, bytes: u64, rng: &mut Rng) {
        let units = self.units(offset, bytes);
        self.unreadable.insert(units.start + rng.below(units.end - units.start));
    }

    /// Flips one bit in the range, on the media and in every version.
    pub(crate) fn rot(&mut self, offset: u64, bytes: u64, rng: &mut Rng) {
        let at = (offset + rng.below(bytes)) as usize;
        let bit = 1 << rng.below(8);
        self.view.flip(at, bit);
        self.media.flip(at, bit);
        let unit = self.options.unit as usize;
        for version in self.pending.get_mut(&((at / unit) as u64)).into_iter().flatten() {
            Rc::make_mut(&mut version.data)[at % unit] ^= bit;
        }
    }

    /// Writes; with `durable` the touched units are on media afterwards.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], durable: bool) {
        let end = offset + data.len() as u64;
        if end > self.bytes() {
            assert!(!self.options.block_device, "writes past the end of a block device are refused before");
            self.resize(end);
        }
        self.view.write(offset as usize, data);
        self.touch(offset, data.len() as u64, durable, true);
        self.moved_pointer(offset, data.len() as u64, durable || !self.options.volatile_cache);
    }

    /// A write that the disk takes and forgets.
    pub(crate) fn lose(&mut self, offset: u64, bytes: u64) {
        if self.zones.is_some() {
            self.sequence += 1;
            self.moved_pointer(offset, bytes, false);
        }
    }

    /// Zeroes a range.
    pub(crate) fn zero(&mut self, offset: u64, bytes: u64, deallocate: bool) {
        let end = (offset + bytes).min(self.bytes());
        if offset >= end {
            return;
        }
        self.view.zero(offset as usize..end as usize);
        self.touch(offset, end - offset, false, !deallocate);
        if deallocate {
            let unit = self.options.unit as u64;
            for index in offset.div_ceil(unit)..end / unit {
                self.allocated.remove(&index);
            }
        }
    }

    /// Gives the units of a range, whose view has changed, a new version.
    fn touch(&mut self, offset: u64, bytes: u64, durable: bool, allocate: bool) {
        self.sequence += 1;
        for index in self.units(offset, bytes) {
            self.unreadable.remove(&index);
            if allocate && self.options.space_bytes.is_some() {
                self.allocated.insert(index);
            }
            let range = self.unit_range(index);
            if durable || !self.options.volatile_cache {
                self.pending.remove(&index);
                self.media.copy_from(&self.view, range);
                continue;
            }
            let mut data = vec![0; range.len()];
            self.view.read(range.start, &mut data);
            let versions = self.pending.entry(index).or_default();
            versions.push(Version { sequence: self.sequence, data: data.into() });
            if versions.len() > VERSIONS_MAX {
                let oldest = versions.remove(0);
                self.media.write(range.start, &oldest.data);
            }
        }
    }

    /// Makes the newest version of every unit of a range durable.
    pub(crate) fn flush_range(&mut self, range: Range<u64>) {
        let units = self.units(range.start, range.end - range.start);
        while let Some((index, versions)) = self.pending.range(units.clone()).next() {
            let (index, newest) = (*index, versions.last().expect("units without versions are removed"));
            self.media.write(index as usize * self.options.unit as usize, &newest.data);
            self.pending.remove(&index);
        }
    }

    /// Makes a range zero, durably, as if it had never been written.
    pub(crate) fn forget_range(&mut self, range: Range<u64>) {
        let units = self.units(range.start, range.end - range.start);
        self.pending.retain(|unit, _| !units.contains(unit));
        self.unreadable.retain(|unit| !units.contains(unit));
        self.view.zero(range.start as usize..range.end as usize);
        self.media.zero(range.start as usize..range.end as usize);
    }

    /// Makes every version up to `sequence` durable.
    pub(crate) fn flush(&mut self, sequence: u64) {
        self.keep_zones(sequence, || true);
        let (media, unit) = (&mut self.media, self.options.unit as usize);
        self.pending.retain(|index, versions| {
            let covered = versions.partition_point(|version| version.sequence <= sequence);
            if let Some(newest) = versions.drain(..covered).next_back() {
                let start = *index as usize * unit;
                let len = newest.data.len().min(media.len() - start);
                media.write(start, &newest.data[..len]);
            }
            !versions.is_empty()
        });
    }

    /// A flush that a mutation broke: the newest write becomes durable, older ones do not.
    pub(crate) fn flush_newest_only(&mut self) {
        let newest = self.sequence;
        let (media, unit) = (&mut self.media, self.options.unit as usize);
        self.pending.retain(|index, versions| {
            let last = versions.last().expect("units without versions are removed");
            if last.sequence != newest {
                return true;
            }
            let start = *index as usize * unit;
            media.write(start, &last.data);
            false
        });
    }

    /// A failed flush: each unit covered by `sequence` may have become durable, or may never be although it reads well.
    pub(crate) fn flush_failed(&mut self, sequence: u64, rng: &mut Rng) {
        self.failed_flushes += 1;
        if self.zones.is_some() {
            // A zone is kept, or still to be kept: what lies behind a hole would not be in a zone.
            return self.keep_zones(sequence, || rng.one_in(2));
        }
        let (media, unit) = (&mut self.media, self.options.unit as usize);
        self.pending.retain(|index, versions| {
            let start = *index as usize * unit;
            if versions.last().is_some_and(|version| version.sequence > sequence) {
                return true;
            }
            match rng.below(3) {
                0 => return true,
                1 => {
                    let last = versions.last().expect("units without versions are removed");
                    media.write(start, &last.data);
                }
                _ => {}
            }
            false
        });
    }

    /// The power goes and comes back: what the cache held is lost as `loss` says.
    pub(crate) fn power_cut(&mut self, loss: CacheLoss, rng: &mut Rng, tear_inside_unit: bool) {
        let unit = self.options.unit as usize;
        let oldest = self.pending.values().flatten().map(|version| version.sequence).min().unwrap_or(0);
        let cut = oldest + rng.below(self.sequence.saturating_sub(oldest) + 2);
        let zones = self.cut_zones(loss, cut, rng);
        for (index, versions) in std::mem::take(&mut self.pending) {
            let at = index * unit as u64;
            let survivor = match loss {
                _ if self.has_pointer(at) => versions.last().filter(|_| zones.iter().any(|zone| zone.contains(&at))),
                CacheLoss::All => None,
                CacheLoss::Nothing => versions.last(),
                CacheLoss::Suffix => versions.iter().rev().find(|version| version.sequence < cut),
                CacheLoss::Any => versions.get(rng.below(versions.len() as u64 + 1) as usize),
            };
            let Some(survivor) = survivor else { continue };
            let start = index as usize * unit;
            let mut len = survivor.data.len().min(self.media.len() - start);
            if tear_inside_unit {
                len /= 2;
            }
            self.media.write(start, &survivor.data[..len]);
        }
        self.view = self.media.clone();
        self.locked_by = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize>(disk: &Disk) -> [u8; N] {
        let mut bytes = [0; N];
        disk.read(0, &mut bytes);
        bytes
    }

    fn disk() -> Disk {
        Disk::new(DiskOptions { bytes: 8192, ..DiskOptions::default() })
    }

    #[test]
    fn flushed_data_survives_and_unflushed_data_may_not() {
        let mut lost = 0;
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut disk = disk();
            disk.write(0, &[1; 1024], false);
            disk.flush(disk.sequence());
            disk.write(0, &[2; 1024], false);
            disk.power_cut(CacheLoss::Any, &mut rng, false);
            for unit in bytes::<1024>(&disk).chunks(512) {
                assert!(unit.iter().all(|b| *b == unit[0]) && unit[0] > 0, "units are atomic, flushed ones stay");
                lost += (unit[0] == 1) as u32;
            }
        }
        assert!((20..80).contains(&lost), "{lost} of 100 units lost");
    }

    #[test]
    fn a_flush_covers_what_came_before_it_only() {
        let mut disk = disk();
        disk.write(0, &[1; 512], false);
        let before = disk.sequence();
        disk.write(0, &[2; 512], false);
        disk.write(512, &[3; 512], true);
        disk.flush(before);
        disk.power_cut(CacheLoss::All, &mut Rng::new(1), false);
        let found = bytes::<1024>(&disk);
        assert_eq!((found[0], found[512]), (1, 3));
    }

    #[test]
    fn writes_inside_a_unit_keep_its_neighbours() {
        let mut disk = disk();
        disk.write(0, &[1; 512], true);
        disk.write(100, &[2; 10], true);
        disk.power_cut(CacheLoss::All, &mut Rng::new(1), false);
        let found = bytes::<512>(&disk);
        assert_eq!((found[99], found[100], found[110]), (1, 2, 1));
    }

    #[test]
    fn files_grow_and_full_disks_say_so() {
        let mut disk = Disk::new(DiskOptions { space_bytes: Some(1024), ..DiskOptions::default() });
        disk.write(disk.bytes(), &[7; 512], false);
        assert_eq!(disk.bytes(), (1 << 20) + 512);
        assert!(!disk.lacks_space(0, 512) && disk.lacks_space(0, 1024) && !disk.lacks_space(1 << 20, 1));
        disk.zero(1 << 20, 512, true);
        assert!(!disk.lacks_space(0, 1024));
    }
}
