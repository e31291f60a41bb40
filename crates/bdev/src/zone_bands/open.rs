//! Opening a zone-bands device, and making one.

use super::format::{FEATURES_KNOWN, Geometry, HEAD_LABEL, LABEL_ZONES, Label, ZONE_LABEL};
use super::states::States;
use super::zones::report;
use super::{Shared, ZoneBandsDevice};
use crate::blank::{EDGE_BYTES, is_blank};
use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo, RowInfo, RowZones, ZonedInfo};
use crate::front::check_child;
use crate::io::{Flags, Io, Lba, Op, OpSet, Status};
use crate::slots::{self, Kind, Slots, UNIT_BYTES};
use crate::zone::{Zone, ZoneState};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// Largest row: what is written at least.
const ROW_BYTES_MAX: u64 = 1 << 20;
/// Blocks of pools must not cross a row.
const ROW_BYTES_MIN: u64 = 4096;
/// Head devices from this size on have their head begin on a megabyte.
const ALIGN_FROM_BYTES: u64 = 64 << 20;
const OPS: OpSet = OpSet::of(&[Op::Read, Op::Write, Op::Flush, Op::Unmap, Op::ZoneFinish, Op::ZoneReport]);

/// How a zone-bands device is opened.
#[derive(Clone, Debug, Default)]
pub struct ZoneBandsOptions {
    /// Make a new one of a head that is zero at its start and end, and zones that are empty.
    pub create: bool,
    /// With `create`: make one whatever they hold.
    pub force: bool,
    /// Breaks a rule; for tests of what watches over it.
    pub defect: Option<ZoneBandsDefect>,
}

/// A rule of zone-bands devices that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneBandsDefect {
    /// Writes of a zone do not wait for those before them.
    WriteAhead,
}

/// A device by name, as far as it can be known before it is there.
type Named<'a> = (&'a str, DeviceInfo);

/// A device that is to be a part, and its label as far as it has one.
struct Part<'a> {
    /// What it is for.
    role: &'static str,
    device: &'a Arc<dyn BlockDevice>,
    channel: Rc<dyn Channel>,
    kind: Kind,
}

/// What a part says it is.
enum Found {
    Label(Label),
    /// As new.
    Blank,
    Other,
    Unreadable(Status),
}

impl Part<'_> {
    fn slots<'b>(&'b self, reactor: &'b Rc<Reactor>) -> Slots<'b> {
        let block_size = self.device.info().block_size;
        Slots { reactor, channel: &*self.channel, block_size, kind: self.kind }
    }

    /// The label; a copy that cannot be read is done without. `Err`: a later release wrote it.
    async fn look(&self, reactor: &Rc<Reactor>, overwrites: bool) -> Result<Found, String> {
        let found = self.slots(reactor).read(Label::decode).await;
        let (role, name) = (self.role, self.device.name());
        if let Some(version) = found.newer_version.filter(|_| !overwrites) {
            return Err(slots::refuse_newer(&format!("label of the {role} '{name}'"), version));
        }
        Ok(match (found.newest, found.unreadable) {
            (Some(label), _) if label.features & !FEATURES_KNOWN == 0 => Found::Label(label),
            (Some(label), _) if !overwrites => {
                let bits = label.features & !FEATURES_KNOWN;
                return Err(format!(
                    "the {role} '{name}' uses features that this release does not know (bits {bits:#x})"
                ));
            }
            (Some(_), _) => Found::Other,
            (None, Some(status)) => Found::Unreadable(status),
            (None, None) if found.blank => Found::Blank,
            (None, None) => Found::Other,
        })
    }
}

impl ZoneBandsDevice {
    /// What a new device of a head and a zoned device would be, all of whose zones can be written; otherwise why there cannot be
    /// one.
    pub fn plan(head: Named<'_>, zoned: Named<'_>) -> Result<DeviceInfo, String> {
        let zones = check_parts(&head, &zoned)?;
        let (base, below) = (head.1, zoned.1);
        let count = below.blocks / zones.zone_blocks;
        let geometry = plan(&base, &below, &zones, count, zones.zone_capacity_blocks)?;
        Ok(describe(&base, &below, &geometry, open_max(&zones)))
    }

    /// Opens (or with [`ZoneBandsOptions::create`] makes) the device of a head and a zoned device.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        head: Arc<dyn BlockDevice>,
        zoned: Arc<dyn BlockDevice>,
        options: &ZoneBandsOptions,
    ) -> Result<ZoneBandsDevice, DeviceError> {
        let refused = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        let failed = |action| move |status| DeviceError::Io { device: name.to_string(), action, status };
        let base = head.info();
        let zones = check_parts(&(head.name(), base), &(zoned.name(), zoned.info())).map_err(refused)?;
        let head_part = Part { role: "head", device: &head, channel: head.open_channel(reactor)?, kind: HEAD_LABEL };
        let zone_part =
            Part { role: "zoned device", device: &zoned, channel: zoned.open_channel(reactor)?, kind: ZONE_LABEL };
        let count = zoned.info().blocks / zones.zone_blocks;
        let all = report(reactor, &*zone_part.channel, 0, count, zones.zone_blocks).await;
        let mut all = all.map_err(failed("ask for its zones"))?;
        let overwrites = options.create && options.force;
        let own = head_part.look(reactor, overwrites).await.map_err(refused)?;
        let theirs = zone_part.look(reactor, overwrites).await.map_err(refused)?;
        let kept = if overwrites { None } else { agree(&head, &zoned, &own, &theirs, options).map_err(refused)? };
        let label = match kept {
            Some(label) => {
                if let Found::Unreadable(status) = theirs {
                    tracing::warn!(device = name, %status, "the label in its first zone cannot be read; it goes on by its head's");
                }
                label
            }
            None => {
                if !overwrites {
                    refuse_used(reactor, &head_part, &zone_part, &all).await.map_err(refused)?;
                }
                let geometry = plan(&base, &zoned.info(), &zones, count, least_capacity(&all)).map_err(refused)?;
                let label = Label { id: random_id(reactor), features: 0, geometry };
                make(reactor, &head_part, &zone_part, &label).await.map_err(failed("write its labels"))?;
                let again = report(reactor, &*zone_part.channel, 0, count, zones.zone_blocks).await;
                all = again.map_err(failed("ask for its zones"))?;
                label
            }
        };
        let geometry = label.geometry;
        fits(&geometry, &base, &zoned.info(), &zones).map_err(refused)?;
        let mut used: Vec<Zone> = all[LABEL_ZONES as usize..][..geometry.zones as usize].to_vec();
        for (index, zone) in used.iter_mut().enumerate().filter(|(_, zone)| zone.capacity < geometry.zone) {
            if zone.state != ZoneState::Offline {
                tracing::error!(device = name, zone = index, "a zone has become smaller; it is not used");
                zone.state = ZoneState::Offline;
            }
        }
        let open_max = open_max(&zones);
        let states = Mutex::new(States::new(&used, geometry.zone, open_max));
        let info = describe(&base, &zoned.info(), &geometry, open_max);
        let changes_seen = Mutex::new(zoned.zone_changes().map_or(0, |changes| changes.noted()));
        let (name, zone_capacity, defect) = (name.to_string(), zones.zone_capacity_blocks, options.defect);
        let shared = Shared { name, head, zoned, info, geometry, zone_capacity, states, changes_seen, defect };
        Ok(ZoneBandsDevice { shared: Arc::new(shared) })
    }
}

/// Both limits bound what is written in part: zones that are not open stay active.
fn open_max(zones: &ZonedInfo) -> u32 {
    [zones.open_zones_max, zones.active_zones_max].into_iter().filter(|max| *max > 0).min().unwrap_or(0)
}

fn check_parts((head, base): &Named<'_>, (zoned, below): &Named<'_>) -> Result<ZonedInfo, String> {
    check_child(base, &format!("it writes to its head '{head}' in place, and so"))?;
    let Some(zones) = below.zoned else {
        return Err(format!(
            "'{zoned}' has no zones; give the small device that is written in place as 'head', and the zoned one as 'zones'"
        ));
    };
    let needed = [Op::Read, Op::Write, Op::Flush, Op::ZoneReset, Op::ZoneFinish, Op::ZoneReport];
    if let Some(op) = needed.into_iter().find(|op| !below.ops.contains(*op)) {
        return Err(format!("the zoned device '{zoned}' does not do '{}'", op.name()));
    }
    if base.block_size != below.block_size {
        let (own, theirs) = (base.block_size, below.block_size);
        return Err(format!("the head '{head}' has blocks of {own} bytes, the zoned device '{zoned}' of {theirs}"));
    }
    Ok(zones)
}

/// The label to go on with; `None` when a device is to be made.
fn agree(
    head: &Arc<dyn BlockDevice>,
    zoned: &Arc<dyn BlockDevice>,
    own: &Found,
    theirs: &Found,
    options: &ZoneBandsOptions,
) -> Result<Option<Label>, String> {
    let (head, zoned) = (head.name(), zoned.name());
    let short = |label: &Label| uuid(&label.id);
    match (own, theirs) {
        (Found::Label(own), Found::Label(theirs)) if own == theirs => Ok(Some(*own)),
        (Found::Label(own), Found::Unreadable(_)) => Ok(Some(*own)),
        (Found::Label(own), Found::Label(theirs)) => Err(format!(
            "the head '{head}' belongs to device {}, and the zoned device '{zoned}' to {}; name the two that belong together",
            short(own),
            short(theirs)
        )),
        (Found::Label(own), _) => Err(format!(
            "the head '{head}' belongs to device {}, and the zoned device '{zoned}' has no label of it; name the zoned device \
             that it was made with",
            short(own)
        )),
        (_, Found::Label(theirs)) if !matches!(own, Found::Unreadable(_)) => Err(format!(
            "the zoned device '{zoned}' belongs to device {}, and the head '{head}' has no label of it; name the head that it \
             was made with, or create with force",
            short(theirs)
        )),
        (Found::Unreadable(status), _) => Err(format!("no label of the head '{head}' can be read ({status})")),
        _ if !options.create => Err(format!(
            "neither the head '{head}' nor the zoned device '{zoned}' has a label; name the right ones, or open it in a node, which makes one of \
             blank ones"
        )),
        _ => Ok(None),
    }
}

/// Refuses to make a device where something else is.
async fn refuse_used(reactor: &Rc<Reactor>, head: &Part<'_>, zoned: &Part<'_>, all: &[Zone]) -> Result<(), String> {
    let name = head.device.name();
    match is_blank(reactor, &*head.channel, &head.device.info()).await {
        Ok(true) => {}
        Ok(false) => {
            let kib = EDGE_BYTES / 1024;
            let way = format!("wipe {kib} KiB at its start and at its end, or create with force");
            return Err(format!("the head '{name}' holds other data; {way}"));
        }
        Err(status) => return Err(format!("the head '{name}' cannot be read ({status}); replace it")),
    }
    let is_used = |zone: &&Zone| !matches!(zone.state, ZoneState::Empty | ZoneState::ReadOnly | ZoneState::Offline);
    match all.iter().filter(is_used).count() {
        0 => Ok(()),
        used => {
            let (name, zones) = (zoned.device.name(), all.len());
            Err(format!("{used} of the {zones} zones of '{name}' are written; reset them, or create with force"))
        }
    }
}

/// What every zone that is there can hold.
fn least_capacity(all: &[Zone]) -> u64 {
    let usable = all.iter().filter(|zone| zone.state != ZoneState::Offline);
    usable.map(|zone| zone.capacity).min().unwrap_or(0)
}

/// The geometry of a new device, of `count` zones with a capacity of so many blocks at least.
fn plan(
    base: &DeviceInfo,
    below: &DeviceInfo,
    zones: &ZonedInfo,
    count: u64,
    capacity: u64,
) -> Result<Geometry, String> {
    let block_size = base.block_size as u64;
    let unit = ROW_BYTES_MIN.max(block_size);
    let optimal = (below.optimal_io_blocks as u64 * block_size).next_multiple_of(unit);
    let row_bytes = if optimal > ROW_BYTES_MAX { unit } else { optimal };
    let row = row_bytes / block_size;
    let zone = capacity.min(zones.zone_capacity_blocks) / row * row;
    let used = count.saturating_sub(LABEL_ZONES);
    let label_bytes = ZONE_LABEL.copies * unit;
    if zone * block_size < label_bytes || used == 0 {
        let least = row_bytes.max(label_bytes) / 1024;
        return Err(format!(
            "{count} zones of {capacity} blocks: it takes two zones at least, each of {least} KiB or more"
        ));
    }
    let align = if base.bytes() >= ALIGN_FROM_BYTES { (1 << 20) / block_size } else { unit / block_size };
    let front = HEAD_LABEL.copies * Slots::unit_blocks(base.block_size);
    let head_start = front.next_multiple_of(align.max(1));
    let row_unit = unit / block_size;
    let head = base.blocks.saturating_sub(head_start) / row_unit * row_unit;
    if head == 0 {
        return Err(format!("its head has {} KiB, and needs more for a label", base.bytes() / 1024));
    }
    let (block_size, row) = (base.block_size, row as u32);
    Ok(Geometry { block_size, row, head_start, head, zone, zone_size: zones.zone_blocks, zones: used })
}

/// Resets what is used, then writes the labels: that of the head last, which makes the device.
async fn make(reactor: &Rc<Reactor>, head: &Part<'_>, zoned: &Part<'_>, label: &Label) -> Result<(), Status> {
    let to_head = head.slots(reactor);
    // Nothing may find what was there before.
    for copy in 0..HEAD_LABEL.copies {
        to_head.write_unit(copy, &[0; UNIT_BYTES]).await?;
    }
    let reset = Io { flags: Flags::ALL_ZONES, ..Io::new(Op::ZoneReset, Lba(0), 0) };
    zoned.channel.submit(reset).await.status.check()?;
    zoned.slots(reactor).write(0, &label.encode(ZONE_LABEL)).await?;
    zoned.channel.submit(Io::new(Op::ZoneFinish, Lba(0), 0)).await.status.check()?;
    zoned.channel.submit(Io::flush()).await.status.check()?;
    to_head.write(0, &label.encode(HEAD_LABEL)).await
}

/// Whether the devices are still what the label was made for.
fn fits(geometry: &Geometry, base: &DeviceInfo, below: &DeviceInfo, zones: &ZonedInfo) -> Result<(), String> {
    let (needed, has) = (geometry.head_start + geometry.head, base.blocks);
    if geometry.block_size != base.block_size || needed > has {
        let size = geometry.block_size;
        return Err(format!("its head needs {needed} blocks of {size} bytes, and has {has} of {}", base.block_size));
    }
    let count = below.blocks / zones.zone_blocks;
    if geometry.zone_size != zones.zone_blocks || geometry.zones + LABEL_ZONES > count {
        let (was, wanted) = (geometry.zone_size, geometry.zones + LABEL_ZONES);
        let now = zones.zone_blocks;
        return Err(format!("it was made of {wanted} zones of {was} blocks, and its device has {count} of {now}"));
    }
    Ok(())
}

fn describe(base: &DeviceInfo, below: &DeviceInfo, geometry: &Geometry, open_max: u32) -> DeviceInfo {
    let row = geometry.row;
    let most = base.max_io_blocks.min(below.max_io_blocks);
    DeviceInfo {
        ops: OPS,
        optimal_io_blocks: row,
        max_io_blocks: (most / row).max(1) * row,
        atomic_write_blocks: base.atomic_write_blocks.min(below.atomic_write_blocks).min(1),
        compare_and_write_blocks: 0,
        volatile_cache: base.volatile_cache || below.volatile_cache,
        loans: base.loans && below.loans,
        versions: base.versions.min(below.versions),
        rows: Some(RowInfo {
            start: geometry.head,
            blocks: row,
            zones: Some(RowZones { blocks: geometry.zone, open_max }),
        }),
        ..DeviceInfo::basic(geometry.block_size, geometry.blocks())
    }
}

fn random_id(reactor: &Rc<Reactor>) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
    id[8..].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
    id
}

/// An id as people write it.
fn uuid(id: &[u8; 16]) -> String {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
