//! What is done with whole zones: told by the drive, and changed by it.

use super::Inner;
use super::states::States;
use crate::device::DeviceError;
use crate::file::{FileDeviceOptions, open_file};
use crate::io::{Flags, Io, Op, Status};
use crate::steps;
use crate::zone::{Zone, ZoneState};
use crate::zone_wait::Held;
use reactor::{FILE_ZONE_BYTES, File, FileZone, FileZoneCondition, Reactor, SgList, ZoneAction};
use std::rc::Rc;

/// Zones asked for at a time.
const REPORT_ZONES: u64 = 512;

/// The drive, as far as its zones go, in blocks.
pub(super) struct Drive {
    reactor: Rc<Reactor>,
    file: File,
    block_size: u64,
    zone_blocks: u64,
    /// Blocks in front of the first of the zones that are meant here.
    first: u64,
}

impl Drive {
    pub(super) fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        options: &FileDeviceOptions,
        zone_blocks: u64,
        first: u64,
    ) -> Result<Drive, DeviceError> {
        let file = open_file(reactor, name, options, false, None)?;
        Ok(Drive { reactor: reactor.clone(), file, block_size: options.block_size.into(), zone_blocks, first })
    }

    /// `count` zones from one on.
    pub(super) async fn report(&self, first: u64, count: u64) -> Result<Vec<Zone>, Status> {
        let mut found = Vec::with_capacity(count as usize);
        while (found.len() as u64) < count {
            let (next, wanted) = (first + found.len() as u64, (count - found.len() as u64).min(REPORT_ZONES));
            let buf = steps::alloc(&self.reactor, wanted as usize * FILE_ZONE_BYTES).await?;
            let offset = self.offset(next);
            let told = self.file.report_zones(offset, SgList::from_iter([buf])).await;
            let told_bytes = told.result.map_err(|errno| Status::of_errno(errno, Op::ZoneReport))?;
            let records = told.bufs.iter().flat_map(|buf| buf.as_slice().chunks_exact(FILE_ZONE_BYTES));
            let records = records.take(told_bytes / FILE_ZONE_BYTES);
            for (record, number) in records.zip(next..) {
                let zone = FileZone::from_record(record.try_into().expect("chunks of that size"));
                found.push(zone.and_then(|zone| self.zone(number, &zone)).ok_or(Status::Corrupt)?);
            }
            if told_bytes < FILE_ZONE_BYTES {
                // Fewer zones than the drive's size says.
                return Err(Status::OutOfRange);
            }
        }
        Ok(found)
    }

    /// A zone in blocks; none where it is not the zone of that number.
    fn zone(&self, number: u64, zone: &FileZone) -> Option<Zone> {
        let start = number * self.zone_blocks;
        let is_here = zone.start == self.offset(number) && zone.condition != FileZoneCondition::Conventional;
        let state = ZoneState::from_u8(zone.condition as u8)?;
        let capacity = (zone.capacity / self.block_size).min(self.zone_blocks);
        let write_pointer = (zone.write_pointer / self.block_size).saturating_sub(self.first);
        is_here.then_some(Zone { start, capacity, write_pointer, state, has_extension: false })
    }

    /// The drive's byte that a zone begins at.
    fn offset(&self, zone: u64) -> u64 {
        (self.first + zone * self.zone_blocks) * self.block_size
    }

    async fn manage(&self, op: Op, first: u64, count: u64) -> Result<(), Status> {
        let action = match op {
            Op::ZoneReset => ZoneAction::Reset,
            Op::ZoneOpen => ZoneAction::Open,
            Op::ZoneClose => ZoneAction::Close,
            Op::ZoneFinish => ZoneAction::Finish,
            _ => return Err(Status::Unsupported),
        };
        let zone_bytes = self.zone_blocks * self.block_size;
        let done = self.file.manage_zones(action, self.offset(first), count * zone_bytes).await;
        done.result.map(drop).map_err(|errno| Status::of_errno(errno, op))
    }
}

impl Inner {
    /// Asks the drive for a zone, and takes its word.
    pub(super) async fn ask(&self, zone: usize) -> Result<(), Status> {
        let held = Held::take(&self.shared.states, [zone]).await;
        self.ask_held(&held, zone).await.map(drop)
    }

    async fn ask_held(&self, held: &Held<'_, States>, zone: usize) -> Result<Zone, Status> {
        debug_assert!(held.zones.contains(&zone));
        let found = self.drive.report(zone as u64, 1).await?[0];
        self.with(|states| states.learn(zone, &found));
        Ok(found)
    }

    pub(super) async fn report(&self, io: &mut Io) -> Result<(), Status> {
        let (first, _) = self.split(io.lba);
        for zone in first..first + io.nblocks as usize {
            if self.with(|states| states.is_in_doubt(zone)) {
                self.ask(zone).await?;
            }
        }
        let zones = self.drive.report(first as u64, io.nblocks.into()).await?;
        Zone::store_report(zones, &mut io.bufs);
        Ok(())
    }

    pub(super) async fn manage(&self, io: &Io) -> Result<(), Status> {
        let count = self.shared.zones();
        if !io.flags.has(Flags::ALL_ZONES) {
            return self.change(io.op, self.split(io.lba).0).await;
        }
        if io.op == Op::ZoneReset {
            return self.reset_all().await;
        }
        let all = self.drive.report(0, count).await?;
        let concerned: Vec<usize> =
            (0..count as usize).filter(|zone| all[*zone].state.is_concerned_by(io.op)).collect();
        let open_max = self.shared.geometry.open_zones_max as usize;
        if io.op == Op::ZoneOpen && open_max > 0 {
            let explicit = all.iter().filter(|zone| zone.state == ZoneState::ExplicitlyOpen).count();
            if explicit + concerned.len() > open_max {
                return Err(Status::ZoneTooManyOpen);
            }
        }
        for zone in concerned {
            match self.change(io.op, zone).await {
                // Of all zones, those count that are still what they were.
                Ok(()) | Err(Status::ZoneInvalidTransition) => {}
                Err(status) => return Err(status),
            }
        }
        Ok(())
    }

    /// Changes the state of one zone.
    async fn change(&self, op: Op, zone: usize) -> Result<(), Status> {
        let held = Held::take(&self.shared.states, [zone]).await;
        let found = self.ask_held(&held, zone).await?;
        let has_to_change = found.state.changes_by(op)?;
        if op == Op::ZoneFinish {
            // What a finished zone has is as durable as the fact that it is full.
            self.blocks.submit(Io::flush()).await.status.check()?;
        }
        if !has_to_change {
            return Ok(());
        }
        let result = self.drive.manage(op, zone as u64, 1).await;
        self.with(|states| match (result, op) {
            (Ok(()), Op::ZoneReset) => states.set_empty(zone),
            (Ok(()), Op::ZoneFinish) => states.set_full(zone),
            (Ok(()), _) => {}
            (Err(_), _) => states.doubt(zone),
        });
        result
    }

    /// Makes all zones empty that can be, with one request: there may be many thousands.
    async fn reset_all(&self) -> Result<(), Status> {
        let count = self.shared.zones() as usize;
        let held = Held::take(&self.shared.states, 0..count).await;
        let result = self.drive.manage(Op::ZoneReset, 0, count as u64).await;
        self.with(|states| held.zones.iter().for_each(|zone| states.doubt(*zone)));
        for (zone, found) in self.drive.report(0, count as u64).await?.iter().enumerate() {
            self.with(|states| states.learn(zone, found));
        }
        result
    }
}
