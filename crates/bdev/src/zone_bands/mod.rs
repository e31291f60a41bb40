//! Rows for a shaped pool out of a zoned device without conventional zones (ZNS), and a small device that is written in place.
//!
//! ```text
//! head device    | label x2 | (aligned) head: written at any block, in place
//! zoned device   | zone 0: label x2, finished | zone 1 | zone 2 | ...
//! device         | head | rows of zone 1 | rows of zone 2 | ...        without gaps, whatever zones leave between them
//! ```
//! What holds, always:
//! - A zone is written at its pointer alone, one write at a time. A write ahead of the pointer waits for those before it.
//! - When a write has failed, or the zone was given up, it takes no more until it is reset: what comes then was meant to follow.
//! - No more zones are written in part than the drive allows: the write that would begin one more waits for another zone to be
//!   full, finished or reset.
//! - What a write failed on is asked anew: pointers and states are those of the drive.
//! - A zone that the drive has made read-only or taken offline ends writes as [`Status::WriteError`], and reads of an offline
//!   one as [`Status::ReadError`]: it is a part of the medium that is gone, and nothing else of the device is.
//!
//! What is not here: where to write, when to reset, and which zones to finish. Who stands on the device knows that, and is
//! told by [`RowZones`](crate::device::RowZones) what there is.

pub(crate) mod format;
mod io;
mod open;
mod states;
mod zones;

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::Status;
use crate::zone_wait;
use format::Geometry;
use io::ZoneBandsChannel;
pub use open::{ZoneBandsDefect, ZoneBandsOptions};
use reactor::Reactor;
use states::States;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// How the zones of a device are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneBandsStatus {
    /// Zones in all, without the one that has the label.
    pub zones: u64,
    /// Nothing is written to them.
    pub empty: u64,
    /// Written in part.
    pub open: u64,
    /// Written to their ends, or finished.
    pub full: u64,
    /// They can only be read.
    pub read_only: u64,
    /// Out of use.
    pub offline: u64,
    /// Most zones that may be open; 0 is no limit.
    pub open_max: u32,
    /// Bytes of each.
    pub zone_bytes: u64,
    /// Bytes of the head.
    pub head_bytes: u64,
    /// Writes that were not where their zone goes on, or one zone too many: who stands on the device is at fault.
    pub misplaced_writes: u64,
}

/// See the module.
pub struct ZoneBandsDevice {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    head: Arc<dyn BlockDevice>,
    zoned: Arc<dyn BlockDevice>,
    info: DeviceInfo,
    geometry: Geometry,
    /// Blocks of a zone that the drive can write; those behind the last whole row are given up.
    zone_capacity: u64,
    /// Some dozen instructions, never across an await: limits concern all zones, whichever reactor writes.
    states: Mutex<States>,
    /// How far [`zone_changes`](BlockDevice::zone_changes) of the zoned device have been heeded.
    changes_seen: Mutex<u64>,
    defect: Option<ZoneBandsDefect>,
}

impl Shared {
    /// Looks at the states of zones, or changes them; then wakes who waited for that.
    fn with<R>(&self, act: impl FnOnce(&mut States) -> R) -> R {
        zone_wait::with(&self.states, act)
    }
}

impl ZoneBandsDevice {
    /// How its zones are.
    pub fn status(&self) -> ZoneBandsStatus {
        let bytes = |blocks: u64| blocks * self.shared.info.block_size as u64;
        let Geometry { head, zone, .. } = self.shared.geometry;
        ZoneBandsStatus {
            zone_bytes: bytes(zone),
            head_bytes: bytes(head),
            ..self.shared.with(|states| states.status())
        }
    }

    fn inner(&self, reactor: &Rc<Reactor>) -> Result<Rc<Inner>, DeviceError> {
        let head = self.shared.head.open_channel(reactor)?;
        let zoned = self.shared.zoned.open_channel(reactor)?;
        Ok(Rc::new(Inner { shared: self.shared.clone(), reactor: reactor.clone(), head, zoned }))
    }
}

impl BlockDevice for ZoneBandsDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn kind(&self) -> &'static str {
        "zone-bands"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(ZoneBandsChannel(self.inner(reactor)?)))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.shared.head.clone(), self.shared.zoned.clone()]
    }
}

/// One reactor's part.
struct Inner {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    head: Rc<dyn Channel>,
    zoned: Rc<dyn Channel>,
}

impl Inner {
    fn with<R>(&self, act: impl FnOnce(&mut States) -> R) -> R {
        self.shared.with(act)
    }
}

/// What a zone's own refusal of a write means to who knows of no zones: this place cannot be written, others can.
fn of_write(status: Status) -> Status {
    match status {
        Status::ZoneInvalidWrite
        | Status::ZoneFull
        | Status::ZoneReadOnly
        | Status::ZoneOffline
        | Status::ZoneBoundary
        | Status::ZoneInvalidTransition => Status::WriteError,
        other => other,
    }
}
