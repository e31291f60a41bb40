//! The zones of a simulated drive: written at their pointers alone, whoever asks for something else gets an error.
//!
//! ```text
//! write -> the pointer moves      flush -> the drive keeps the zone up to where it was written when that began
//! power cut -> each zone ends somewhere between what was kept and what was written; open zones come back closed
//! ```
//! Conventional zones, at the start, are written anywhere, and lose what any disk loses. A reset is durable when it ends, and so is a finish; a finish does not flush.

use crate::disk::{CacheLoss, Disk};
use base::{Errno, Rng};
use reactor::{FileZone, FileZoneCondition, FileZones, ZoneAction};
use std::ops::Range;

/// See the module.
#[derive(Clone)]
pub(crate) struct Zones {
    like: FileZones,
    cells: Vec<Cell>,
    /// Zones opened so far: the one that was opened first is closed first.
    opened: u64,
}

#[derive(Clone)]
struct Cell {
    condition: FileZoneCondition,
    /// Bytes written.
    written: u64,
    /// Bytes that survive whatever happens.
    kept: u64,
    /// After which write of the disk it was written how far, since then.
    marks: Vec<(u64, u64)>,
    /// When it was opened, among all.
    opened: u64,
}

use FileZoneCondition::*;

impl Zones {
    pub(crate) fn new(like: FileZones, bytes: u64) -> Zones {
        let cell = Cell { condition: Empty, written: 0, kept: 0, marks: Vec::new(), opened: 0 };
        let mut cells = vec![cell; (bytes / like.bytes) as usize];
        cells[..like.conventional as usize].iter_mut().for_each(|cell| cell.condition = Conventional);
        Zones { like, cells, opened: 0 }
    }

    fn range(&self, zone: usize) -> Range<u64> {
        let start = zone as u64 * self.like.bytes;
        start..start + self.like.bytes
    }

    /// Where a zone is written to, on the disk.
    fn end(&self, zone: usize) -> u64 {
        self.range(zone).start + self.cells[zone].written
    }

    fn count(&self, which: impl Fn(FileZoneCondition) -> bool) -> u32 {
        self.cells.iter().filter(|cell| which(cell.condition)).count() as u32
    }

    /// Whether a zone can be opened, and which one is closed for it.
    fn opening(&self, zone: usize) -> Result<Option<usize>, Errno> {
        let is_open = |condition| matches!(condition, ImplicitlyOpen | ExplicitlyOpen);
        let condition = self.cells[zone].condition;
        if is_open(condition) {
            return Ok(None);
        }
        let active = self.count(|condition| is_open(condition) || condition == Closed);
        if condition == Empty && self.like.active_max > 0 && active >= self.like.active_max {
            return Err(Errno::EOVERFLOW);
        }
        if self.like.open_max == 0 || self.count(is_open) < self.like.open_max {
            return Ok(None);
        }
        let implicit = (0..self.cells.len()).filter(|other| self.cells[*other].condition == ImplicitlyOpen);
        implicit.min_by_key(|other| self.cells[*other].opened).map(Some).ok_or(Errno::ETOOMANYREFS)
    }

    fn open(&mut self, zone: usize, target: FileZoneCondition) -> Result<(), Errno> {
        if let Some(first) = self.opening(zone)? {
            self.cells[first].condition = Closed;
        }
        let condition = self.cells[zone].condition;
        if !matches!(condition, ImplicitlyOpen | ExplicitlyOpen) {
            self.opened += 1;
            self.cells[zone].opened = self.opened;
        }
        // What was opened on purpose stays so when it is written.
        if condition != ExplicitlyOpen {
            self.cells[zone].condition = target;
        }
        Ok(())
    }

    pub(crate) fn hash_words(&self) -> impl Iterator<Item = u64> {
        self.cells.iter().flat_map(|cell| [cell.written, cell.condition as u64])
    }
}

impl Disk {
    /// Whether a write would be taken.
    pub(crate) fn check_zone(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let Some(zones) = &self.zones else { return Ok(()) };
        let zone = (offset / zones.like.bytes) as usize;
        let Some(cell) = zones.cells.get(zone) else { return Err(Errno::EIO) };
        if cell.condition == Conventional && offset + bytes <= zones.like.conventional * zones.like.bytes {
            return Ok(());
        }
        let end = zones.range(zone).start + zones.like.capacity_bytes;
        let is_writable = matches!(cell.condition, Empty | ImplicitlyOpen | ExplicitlyOpen | Closed);
        if !is_writable || offset != zones.end(zone) || offset + bytes > end {
            return Err(Errno::EIO);
        }
        zones.opening(zone).map(drop)
    }

    /// A write has been taken.
    pub(crate) fn moved_pointer(&mut self, offset: u64, bytes: u64, durable: bool) {
        let sequence = self.sequence();
        let Some(zones) = &mut self.zones else { return };
        let zone = (offset / zones.like.bytes) as usize;
        if zones.cells[zone].condition == Conventional {
            return;
        }
        if !matches!(zones.cells[zone].condition, Full | ReadOnly | Offline) {
            // Refused only where others were opened while it was under way, and then it ends nevertheless.
            let _ = zones.open(zone, ImplicitlyOpen);
        }
        let cell = &mut zones.cells[zone];
        cell.written += bytes;
        cell.marks.push((sequence, cell.written));
        if cell.written == zones.like.capacity_bytes {
            cell.condition = Full;
        }
        if durable {
            self.keep_zone(zone);
        }
    }

    /// Makes durable what is written of a zone: a drive that keeps a block of a zone keeps those before it.
    fn keep_zone(&mut self, zone: usize) {
        let Some(zones) = &mut self.zones else { return };
        let range = zones.range(zone);
        let cell = &mut zones.cells[zone];
        cell.kept = cell.written;
        cell.marks.clear();
        self.flush_range(range);
    }

    /// What was written up to `sequence` is kept.
    pub(crate) fn keep_zones(&mut self, sequence: u64, mut keeps: impl FnMut() -> bool) {
        for cell in self.zones.iter_mut().flat_map(|zones| &mut zones.cells) {
            let covered = cell.marks.partition_point(|(at, _)| *at <= sequence);
            if covered > 0 && keeps() {
                cell.kept = cell.marks[covered - 1].1;
                cell.marks.drain(..covered);
            }
        }
    }

    /// The records of zones from one on, as many as so many bytes hold.
    pub(crate) fn report_zones(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        let zones = self.zones.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        let first = (offset / zones.like.bytes) as usize;
        let last = zones.cells.len().min(first + bytes / reactor::FILE_ZONE_BYTES);
        let record = |zone: usize| {
            let (start, condition) = (zones.range(zone).start, zones.cells[zone].condition);
            let (bytes, capacity) = (zones.like.bytes, zones.like.capacity_bytes);
            // Where it means nothing, a pointer is at the zone's end.
            let write_pointer = if condition == Full { start + bytes } else { zones.end(zone) };
            FileZone { start, bytes, capacity, write_pointer, condition }.record()
        };
        Ok((first..last).flat_map(record).collect())
    }

    /// Changes the state of zones.
    pub(crate) fn manage_zones(&mut self, action: ZoneAction, offset: u64, bytes: u64) -> Result<(), Errno> {
        let zones = self.zones.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        let first = (offset / zones.like.bytes) as usize;
        let last = zones.cells.len().min((offset + bytes).div_ceil(zones.like.bytes) as usize);
        let is_alone = last - first == 1;
        for zone in first..last {
            let result = self.manage_zone(zone, action);
            // Of many, those that can be changed are.
            if is_alone {
                result?;
            }
        }
        Ok(())
    }

    fn manage_zone(&mut self, zone: usize, action: ZoneAction) -> Result<(), Errno> {
        let zones = self.zones.as_mut().expect("asked by the caller");
        let range = zones.range(zone);
        let condition = zones.cells[zone].condition;
        if matches!(condition, ReadOnly | Offline | Conventional) {
            return Err(Errno::EIO);
        }
        match (action, condition) {
            (ZoneAction::Reset, _) => {
                let cell = &mut zones.cells[zone];
                (cell.condition, cell.written, cell.kept) = (Empty, 0, 0);
                cell.marks.clear();
                self.forget_range(range);
            }
            (ZoneAction::Finish, _) => zones.cells[zone].condition = Full,
            (ZoneAction::Open, Full) | (ZoneAction::Close, Full | Empty) => return Err(Errno::EIO),
            (ZoneAction::Open, ImplicitlyOpen) => zones.cells[zone].condition = ExplicitlyOpen,
            (ZoneAction::Open, _) => zones.open(zone, ExplicitlyOpen)?,
            (ZoneAction::Close, _) => zones.cells[zone].condition = Closed,
        }
        Ok(())
    }

    /// Of each zone with a pointer, whether it is empty.
    pub(crate) fn empty_zones(&self) -> Vec<bool> {
        let zones = self.zones.as_ref().expect("a disk with zones");
        zones.cells[zones.like.conventional as usize..].iter().map(|cell| cell.condition == Empty).collect()
    }

    /// The drive cannot write a zone any more, or not even read it; `number` is among those with pointers.
    pub(crate) fn retire_zone(&mut self, number: u64, offline: bool) {
        let zone = (self.zones.as_ref().expect("a disk with zones").like.conventional + number) as usize;
        self.keep_zone(zone);
        let zones = self.zones.as_mut().expect("asked above");
        zones.cells[zone].condition = if offline { Offline } else { ReadOnly };
    }

    /// Whether a range has blocks of a zone that cannot be read.
    pub(crate) fn is_offline(&self, offset: u64, bytes: u64) -> bool {
        let Some(zones) = &self.zones else { return false };
        let range = (offset / zones.like.bytes) as usize..(offset + bytes).div_ceil(zones.like.bytes) as usize;
        zones.cells.get(range).unwrap_or_default().iter().any(|cell| cell.condition == Offline)
    }

    /// Whether a byte is in a zone with a pointer.
    pub(crate) fn has_pointer(&self, at: u64) -> bool {
        self.zones.as_ref().is_some_and(|zones| at >= zones.like.conventional * zones.like.bytes)
    }

    /// The power goes: cuts the zones, each at a place of its own, and gives what is written of each then.
    pub(crate) fn cut_zones(&mut self, loss: CacheLoss, cut: u64, rng: &mut Rng) -> Vec<Range<u64>> {
        let unit = u64::from(self.options.unit);
        let mut survives = Vec::new();
        let Some(zones) = &mut self.zones else { return survives };
        for zone in zones.like.conventional as usize..zones.cells.len() {
            let start = zones.range(zone).start;
            let cell = &mut zones.cells[zone];
            let written = match loss {
                CacheLoss::All => cell.kept,
                CacheLoss::Nothing => cell.written,
                CacheLoss::Suffix => {
                    let before = cell.marks.iter().rev().find(|(sequence, _)| *sequence < cut);
                    before.map_or(cell.kept, |(_, written)| *written)
                }
                CacheLoss::Any => cell.kept + rng.below((cell.written - cell.kept) / unit + 1) * unit,
            };
            // A zone that was filled by writes is full when all of them are there.
            let was_filled = cell.written == zones.like.capacity_bytes;
            (cell.written, cell.kept) = (written, written);
            cell.marks.clear();
            cell.condition = match cell.condition {
                Full if !was_filled || written == zones.like.capacity_bytes => Full,
                Full | ImplicitlyOpen | ExplicitlyOpen | Closed if written > 0 => Closed,
                Full | ImplicitlyOpen | ExplicitlyOpen | Closed => Empty,
                other => other,
            };
            survives.push(start..start + written);
        }
        survives
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskOptions;

    fn disk(open_max: u32, active_max: u32) -> Disk {
        let zones =
            FileZones { bytes: 8192, capacity_bytes: 6144, write_bytes: 512, conventional: 0, open_max, active_max };
        Disk::new(DiskOptions { bytes: 4 * 8192, block_device: true, zones: Some(zones), ..DiskOptions::default() })
    }

    fn write(disk: &mut Disk, offset: u64, fill: u8) -> Result<(), Errno> {
        disk.check_zone(offset, 512)?;
        disk.write(offset, &[fill; 512], false);
        Ok(())
    }

    fn zone(disk: &Disk, number: u64) -> FileZone {
        FileZone::from_record(disk.report_zones(number * 8192, 64).unwrap()[..].try_into().unwrap()).unwrap()
    }

    #[test]
    fn zones_are_written_at_their_pointers_within_limits() {
        let mut disk = disk(1, 2);
        assert_eq!(write(&mut disk, 512, 1), Err(Errno::EIO));
        for at in 0..12 {
            write(&mut disk, at * 512, 1).unwrap();
        }
        assert_eq!((zone(&disk, 0).condition, write(&mut disk, 12 * 512, 1)), (Full, Err(Errno::EIO)));
        write(&mut disk, 8192, 2).unwrap();
        write(&mut disk, 2 * 8192, 2).unwrap();
        assert_eq!((zone(&disk, 1).condition, zone(&disk, 2).condition), (Closed, ImplicitlyOpen));
        assert_eq!(write(&mut disk, 3 * 8192, 3), Err(Errno::EOVERFLOW));
        disk.manage_zones(ZoneAction::Open, 8192, 8192).unwrap();
        assert_eq!(write(&mut disk, 2 * 8192 + 512, 2), Err(Errno::ETOOMANYREFS));
        disk.manage_zones(ZoneAction::Reset, 8192, 8192).unwrap();
        write(&mut disk, 2 * 8192 + 512, 2).unwrap();
    }

    #[test]
    fn a_power_cut_leaves_each_zone_up_to_some_point_behind_what_was_flushed() {
        let mut ends = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let mut disk = disk(0, 0);
            (0..4).for_each(|at| write(&mut disk, at * 512, 1).unwrap());
            disk.flush(disk.sequence());
            (4..12).for_each(|at| write(&mut disk, at * 512, 1).unwrap());
            disk.power_cut(CacheLoss::Any, &mut Rng::new(seed), false);
            let (found, mut data) = (zone(&disk, 0), [9; 6144]);
            disk.read(0, &mut data);
            let end = if found.condition == Full { 6144 } else { found.write_pointer };
            assert!((2048..=6144).contains(&end) && data[..end as usize].iter().all(|byte| *byte == 1));
            assert!(data[end as usize..].iter().all(|byte| *byte == 0) && (found.condition == Full) == (end == 6144));
            ends.insert(end);
        }
        assert!(ends.len() > 5, "{ends:?}");
    }

    #[test]
    fn what_was_forced_keeps_all_that_is_before_it_and_a_reset_lasts() {
        let mut disk = disk(0, 0);
        write(&mut disk, 0, 1).unwrap();
        disk.write(512, &[2; 512], true);
        write(&mut disk, 8192, 3).unwrap();
        disk.manage_zones(ZoneAction::Reset, 8192, 8192).unwrap();
        disk.power_cut(CacheLoss::All, &mut Rng::new(1), false);
        assert_eq!((zone(&disk, 0).write_pointer, zone(&disk, 1).condition), (1024, Empty));
    }
}
