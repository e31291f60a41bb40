//! What is done with whole zones: told, finished, reset, and asked of the drive.

use super::format::LABEL_ZONES;
use super::states::Phase;
use super::{Inner, of_write};
use crate::device::Channel;
use crate::io::{Io, Lba, Op, Status};
use crate::steps;
use crate::zone::{ZONE_RECORD_BYTES, Zone, ZoneState};
use crate::zone_changes::ChangedZones;
use reactor::{Reactor, SgList};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::PoisonError;

/// Zones asked for at a time.
const REPORT_ZONES: u64 = 512;

/// The zone that nobody else writes or changes; let go on drop.
pub(super) struct Turn<'a> {
    inner: &'a Inner,
    zone: usize,
    /// Until it is reset the zone takes no more, for this reason.
    pub(super) breaks: Option<Status>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.inner.with(|states| states.release(self.zone, self.breaks));
    }
}

impl<'a> Turn<'a> {
    /// Of who has made the zone busy.
    pub(super) fn taken(inner: &'a Inner, zone: usize) -> Turn<'a> {
        Turn { inner, zone, breaks: None }
    }

    pub(super) async fn take(inner: &'a Inner, zone: usize) -> Turn<'a> {
        poll_fn(|cx| inner.with(|states| states.poll_take(zone, cx.waker()))).await;
        Turn::taken(inner, zone)
    }
}

/// Zones of a zoned device as it reports them, from the one with block `lba` on.
pub(super) async fn report(
    reactor: &Rc<Reactor>,
    channel: &dyn Channel,
    lba: u64,
    zones: u64,
    zone_size: u64,
) -> Result<Vec<Zone>, Status> {
    let mut found = Vec::with_capacity(zones as usize);
    while (found.len() as u64) < zones {
        let count = (zones - found.len() as u64).min(REPORT_ZONES);
        let at = Lba(lba + found.len() as u64 * zone_size);
        let buf = steps::alloc(reactor, count as usize * ZONE_RECORD_BYTES).await?;
        let io = Io { bufs: SgList::from_iter([buf]), ..Io::new(Op::ZoneReport, at, count as u32) };
        let done = channel.submit(io).await;
        done.status.check()?;
        found.extend(Zone::load_report(&done.io.bufs)?);
    }
    Ok(found)
}

impl Inner {
    fn manages(&self, op: Op, zone: usize) -> Io {
        Io::new(op, Lba(self.shared.geometry.start_below(zone)), 0)
    }

    /// Learns what a zone is. When even that fails, what is known stays: the next write finds out.
    pub(super) async fn ask(&self, zone: usize) {
        let (start, size) = (self.shared.geometry.start_below(zone), self.shared.geometry.zone_size);
        match report(&self.reactor, &*self.zoned, start, 1, size).await {
            Ok(found) => self.with(|states| states.learn(zone, &found[0])),
            Err(status) => {
                tracing::warn!(device = self.shared.name, zone, %status, "the state of a zone cannot be asked for");
            }
        }
    }

    /// Makes a zone empty.
    pub(super) async fn reset(&self, zone: usize) -> Result<(), Status> {
        let mut turn = Turn::take(self, zone).await;
        match self.with(|states| states.phase(zone)) {
            Phase::Empty => {
                self.with(|states| states.set_empty(zone));
                return Ok(());
            }
            Phase::ReadOnly | Phase::Offline => return Err(Status::WriteError),
            Phase::Active | Phase::Full => {}
        }
        match self.zoned.submit(self.manages(Op::ZoneReset, zone)).await.status {
            Status::Ok => {
                self.with(|states| states.set_empty(zone));
                Ok(())
            }
            status => {
                turn.breaks = Some(Status::WriteError);
                self.ask(zone).await;
                Err(of_write(status))
            }
        }
    }

    /// Gives up what is not written of a zone, and those who wait to write there.
    pub(super) async fn finish(&self, zone: usize) -> Result<(), Status> {
        let mut turn = Turn::take(self, zone).await;
        turn.breaks = Some(Status::WriteError);
        self.finish_taken(zone).await
    }

    /// The same of a zone that is taken.
    pub(super) async fn finish_taken(&self, zone: usize) -> Result<(), Status> {
        match self.with(|states| states.phase(zone)) {
            Phase::Full | Phase::ReadOnly | Phase::Offline => return Ok(()),
            Phase::Empty | Phase::Active => {}
        }
        match self.zoned.submit(self.manages(Op::ZoneFinish, zone)).await.status {
            Status::Ok => {
                self.with(|states| states.set_full(zone));
                Ok(())
            }
            status => {
                self.ask(zone).await;
                Err(of_write(status))
            }
        }
    }

    /// Tells a zone in the blocks of this device.
    pub(super) fn tell(&self, io: &mut Io) {
        let geometry = &self.shared.geometry;
        let (zone, _) = geometry.split(io.lba.0);
        let (phase, pointer) = self.with(|states| (states.phase(zone), states.pointer(zone)));
        let state = match phase {
            Phase::Empty => ZoneState::Empty,
            Phase::Active => ZoneState::Closed,
            Phase::Full => ZoneState::Full,
            Phase::ReadOnly => ZoneState::ReadOnly,
            Phase::Offline => ZoneState::Offline,
        };
        let (start, capacity) = (geometry.start(zone), geometry.zone);
        let told = Zone { start, capacity, write_pointer: start + pointer, state, has_extension: false };
        Zone::store_report([told], &mut io.bufs);
    }

    /// Asks for the zones that have changed by themselves, where the drive says which.
    pub(super) async fn heed_changes(&self) {
        let Some(changes) = self.shared.zoned.zone_changes() else { return };
        let news = {
            let mut seen = self.shared.changes_seen.lock().unwrap_or_else(PoisonError::into_inner);
            if *seen == changes.noted() {
                return;
            }
            changes.since(&mut seen)
        };
        let geometry = &self.shared.geometry;
        let zones: Vec<u64> = match news {
            ChangedZones::These(starts) => starts.iter().map(|start| start / geometry.zone_size).collect(),
            ChangedZones::Many => (LABEL_ZONES..LABEL_ZONES + geometry.zones).collect(),
        };
        let is_used = |zone: &u64| (LABEL_ZONES..LABEL_ZONES + geometry.zones).contains(zone);
        for zone in zones.into_iter().filter(is_used) {
            let zone = (zone - LABEL_ZONES) as usize;
            let _turn = Turn::take(self, zone).await;
            self.ask(zone).await;
        }
    }
}
