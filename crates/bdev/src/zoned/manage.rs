//! Zone management: changes of state, of one zone or of all. What must last is in the table before it counts.

use super::Inner;
use super::format::{Condition, PAGE_ZONES};
use super::states::States;
use crate::io::{Flags, Io, Lba, Op, Status};
use crate::zone::ZoneState;
use crate::zone_wait::Held;
use smallvec::SmallVec;

/// Blocks given back at once after a reset.
const UNMAP_BLOCKS: u64 = 1 << 18;

impl Inner {
    pub(super) async fn manage(&self, io: &Io) -> Result<(), Status> {
        let all = io.flags.has(Flags::ALL_ZONES);
        let zones = match all {
            true => self.with(|states| states.concerned(io.op)),
            false => vec![(io.lba.0 / self.shared.geometry.zone_blocks) as usize],
        };
        if all && io.op == Op::ZoneOpen {
            self.with(|states| states.can_open(zones.len()))?;
        }
        for zones in zones.chunk_by(|a, b| a / PAGE_ZONES == b / PAGE_ZONES) {
            self.manage_zones(io.op, zones, all).await?;
        }
        Ok(())
    }

    /// The same for zones of one page of the table.
    async fn manage_zones(&self, op: Op, zones: &[usize], all: bool) -> Result<(), Status> {
        let mut held = Held::take(&self.shared.states, zones.iter().copied()).await;
        let mut todo = SmallVec::<[usize; 4]>::new();
        for zone in zones {
            match self.with(|states| states.allows(op, *zone)) {
                Ok(true) => todo.push(*zone),
                Ok(false) => {}
                // Of all zones, those count that are still what they were.
                Err(_) if all => {}
                Err(status) => return Err(status),
            }
        }
        match op {
            Op::ZoneOpen => {
                for zone in &todo {
                    self.with(|states| states.open(*zone, ZoneState::ExplicitlyOpen))?;
                }
                Ok(())
            }
            Op::ZoneClose => {
                self.with(|states| todo.iter().for_each(|zone| states.set_state(*zone, ZoneState::Closed)));
                Ok(())
            }
            Op::ZoneReset => self.store(&mut held, &todo, Condition::Normal, false).await,
            Op::ZoneFinish => self.store(&mut held, &todo, Condition::Finished, true).await,
            _ => self.store(&mut held, &todo, Condition::Offline, true).await,
        }
    }

    /// Makes a zone read-only or offline. False: what is written to it has not ended within that time, and nothing has changed.
    pub(super) async fn retire(&self, zone: usize, state: ZoneState, wait_ns: u64) -> Result<bool, Status> {
        let quiet = async {
            let held = Held::take(&self.shared.states, [zone]).await;
            self.child().submit(Io::flush()).await.status.check().map(|()| held)
        };
        let Some(held) = self.reactor.timeout(wait_ns, quiet).await else { return Ok(false) };
        let mut held = held?;
        let condition = if state == ZoneState::ReadOnly { Condition::ReadOnly } else { Condition::Offline };
        if self.with(|states| states.zone(zone)).state == ZoneState::Offline {
            return if state == ZoneState::Offline { Ok(true) } else { Err(Status::ZoneInvalidTransition) };
        }
        self.store_flushed(&mut held, &[zone], condition, true).await?;
        self.shared.changes.note(zone as u64 * self.shared.geometry.zone_blocks);
        Ok(true)
    }

    /// Gives zones of one page another state that lasts; with what was written to them, or without.
    async fn store(
        &self,
        held: &mut Held<'_, States>,
        zones: &[usize],
        condition: Condition,
        keeps_data: bool,
    ) -> Result<(), Status> {
        if zones.is_empty() {
            return Ok(());
        }
        if keeps_data {
            self.child().submit(Io::flush()).await.status.check()?;
        }
        self.store_flushed(held, zones, condition, keeps_data).await
    }

    /// The same when the data they keep is durable.
    async fn store_flushed(
        &self,
        held: &mut Held<'_, States>,
        zones: &[usize],
        condition: Condition,
        keeps_data: bool,
    ) -> Result<(), Status> {
        self.with(|states| zones.iter().for_each(|zone| states.prepare(*zone, condition, keeps_data)));
        self.store_prepared(held, zones).await
    }

    /// Makes durable what has been prepared of zones of one page.
    pub(super) async fn store_prepared(&self, held: &mut Held<'_, States>, zones: &[usize]) -> Result<(), Status> {
        let stored = self.store_page(zones[0] / PAGE_ZONES).await;
        for zone in zones {
            debug_assert!(held.zones.contains(zone));
            let given_up = self.with(|states| states.settle(*zone, stored.is_ok()));
            self.unmap(*zone, given_up).await;
        }
        stored
    }

    /// Gives back what the device below holds for the first blocks of a zone, as far as it can.
    async fn unmap(&self, zone: usize, blocks: u64) {
        if !self.shared.base.ops.contains(Op::Unmap) {
            return;
        }
        let mut at = 0;
        while at < blocks {
            let count = (blocks - at).min(UNMAP_BLOCKS);
            let place = self.shared.geometry.place(zone, at);
            let done = self.child().submit(Io::new(Op::Unmap, Lba(place), count as u32)).await;
            if !done.status.is_ok() {
                // Advice: the blocks are overwritten before they are read again.
                return;
            }
            at += count;
        }
    }
}
