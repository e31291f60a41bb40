//! A block device of the operating system that is written zone by zone: an NVMe drive with zones (ZNS), or a shingled disk (SMR).
//!
//! The drive keeps states and pointers, durable as it sees fit, and enforces limits; what is kept here is where each zone goes on,
//! so that
//! - writes of a zone that are submitted together arrive in order, one at a time: kernels and drives may exchange them;
//! - appends, which the system's interface does not have, are writes at the pointer;
//! - a write at a wrong place is refused for what it is, before the drive fails it;
//! - blocks behind a pointer read as zeroes, which not every drive promises.
//!
//! Zones at the drive's start without a pointer (conventional ones, which shingled disks have) are a device of their own, and the
//! first block of this one is that of the first zone with a pointer.
//!
//! What holds, always: a write that was acknowledged has all acknowledged ones of its zone before it. After a failure the
//! drive is asked for the zone, and nothing is assumed.
//!
//! The drive's volatile cache is as that of any other: what was not flushed may be missing after a power loss, and then pointers
//! are back where the drive's data ends.

mod io;
mod manage;
mod states;

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo, ZonedInfo};
use crate::file::{FileDevice, FileDeviceOptions};
use crate::io::{Lba, Op, OpSet};
use crate::linear::{Extent, LinearDevice};
use crate::overlay::OverlayDevice;
use crate::zone_wait;
use crate::zoned::ZONES_MAX;
use io::ZonedDriveChannel;
use manage::Drive;
use reactor::{FileZones, Reactor};
use states::States;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const OPS: OpSet = OpSet::of(&[
    Op::Read,
    Op::Write,
    Op::Flush,
    Op::Compare,
    Op::Verify,
    Op::ZoneAppend,
    Op::ZoneReport,
    Op::ZoneReset,
    Op::ZoneOpen,
    Op::ZoneClose,
    Op::ZoneFinish,
]);

/// See the module.
pub struct ZonedDriveDevice {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    /// Its blocks, without a care for zones.
    file: Arc<FileDevice>,
    options: FileDeviceOptions,
    info: DeviceInfo,
    geometry: ZonedInfo,
    /// Blocks of the drive in front of the zones.
    first: u64,
    states: Mutex<States>,
}

impl Shared {
    /// Looks at the states of zones, or changes them; then wakes who waited for that.
    fn with<R>(&self, act: impl FnOnce(&mut States) -> R) -> R {
        zone_wait::with(&self.states, act)
    }

    fn zones(&self) -> u64 {
        self.info.blocks / self.geometry.zone_blocks
    }
}

impl ZonedDriveDevice {
    /// The zones of `file`, an open block device that has some. Asks the drive for all of them.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        file: Arc<FileDevice>,
        options: &FileDeviceOptions,
    ) -> Result<ZonedDriveDevice, DeviceError> {
        let refused = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        let zones = file.zones().ok_or_else(|| refused(format!("'{}' has no zones", options.path)))?;
        let (info, geometry) = describe(&file, &zones, options).map_err(refused)?;
        let first = zones.conventional * geometry.zone_blocks;
        let drive = Drive::open(reactor, name, options, geometry.zone_blocks, first)?;
        let found = drive.report(0, info.blocks / geometry.zone_blocks).await;
        let found =
            found.map_err(|status| DeviceError::Io { device: name.to_string(), action: "report its zones", status })?;
        let states = Mutex::new(States::new(&found));
        let (name, options) = (name.to_string(), options.clone());
        Ok(ZonedDriveDevice { shared: Arc::new(Shared { name, file, options, info, geometry, first, states }) })
    }
}

/// What a device with these zones is.
fn describe(
    file: &FileDevice,
    zones: &FileZones,
    options: &FileDeviceOptions,
) -> Result<(DeviceInfo, ZonedInfo), String> {
    let base = file.info();
    let path = &options.path;
    let block_size = u64::from(base.block_size);
    if !file.is_direct() {
        return Err(format!(
            "'{path}' has zones, which cannot be written by way of the page cache; leave out 'direct = false', and give it \
             'block_size = {}'",
            zones.write_bytes
        ));
    }
    if block_size != u64::from(zones.write_bytes) {
        // Of larger blocks a power loss could leave a part, behind which nothing can be written.
        let unit = zones.write_bytes;
        return Err(format!(
            "the zones of '{path}' are written in units of {unit} bytes; give it 'block_size = {unit}'"
        ));
    }
    if !zones.bytes.is_multiple_of(block_size) || !zones.capacity_bytes.is_multiple_of(block_size) {
        let (size, capacity) = (zones.bytes, zones.capacity_bytes);
        return Err(format!("zones of {size} bytes, {capacity} of them usable, are not whole blocks of {block_size}"));
    }
    let (zone_blocks, capacity) = (zones.bytes / block_size, zones.capacity_bytes / block_size);
    // A last zone that is shorter is not used.
    let blocks = (base.blocks / zone_blocks).saturating_sub(zones.conventional) * zone_blocks;
    match blocks / zone_blocks {
        0 => return Err(format!("'{path}' has no zone that is written from its start on")),
        count if count > ZONES_MAX => {
            return Err(format!("'{path}' has {count} zones, and at most {ZONES_MAX} can be used"));
        }
        _ => {}
    }
    let geometry = ZonedInfo {
        zone_blocks,
        zone_capacity_blocks: capacity,
        open_zones_max: zones.open_max,
        active_zones_max: zones.active_max,
        extension_bytes: 0,
    };
    let info = DeviceInfo {
        ops: OPS,
        zoned: Some(geometry),
        blocks,
        compare_and_write_blocks: 0,
        unmap_reads_zero: false,
        ..base
    };
    Ok((info, geometry))
}

impl BlockDevice for ZonedDriveDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn kind(&self) -> &'static str {
        "zoned-drive"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info
    }

    fn conventional(&self) -> Option<Arc<dyn BlockDevice>> {
        let Shared { name, file, options, first, .. } = &*self.shared;
        let front = Extent { child: 0, start: 0, blocks: *first };
        let device = LinearDevice::new(&format!("{name}-conventional"), vec![file.clone()], vec![front]);
        // (of no blocks there is none)
        let device: Arc<dyn BlockDevice> = Arc::new(device.ok()?);
        // Of a drive that is only looked at, what is written here goes nowhere, as with any device at the bottom of others.
        Some(if options.read_only { Arc::new(OverlayDevice::new(device)) } else { device })
    }

    fn seeks(&self) -> bool {
        self.shared.file.seeks()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let Shared { name, file, options, geometry, first, .. } = &*self.shared;
        let drive = Drive::open(reactor, name, options, geometry.zone_blocks, *first)?;
        let blocks = file.open_channel(reactor)?;
        let inner = Inner { shared: self.shared.clone(), reactor: reactor.clone(), blocks, drive };
        Ok(Rc::new(ZonedDriveChannel(Rc::new(inner))))
    }
}

/// One reactor's part.
struct Inner {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    blocks: Rc<dyn Channel>,
    drive: Drive,
}

impl Inner {
    fn with<R>(&self, act: impl FnOnce(&mut States) -> R) -> R {
        self.shared.with(act)
    }

    fn split(&self, lba: Lba) -> (usize, u64) {
        let zone_blocks = self.shared.geometry.zone_blocks;
        ((lba.0 / zone_blocks) as usize, lba.0 % zone_blocks)
    }
}
