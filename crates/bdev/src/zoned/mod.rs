//! Zones on a device that has none: a host-managed zoned device in software.
//!
//! Zones are written at their pointers and reset as a whole; the device below is written in place. States and pointers are
//! in memory ([`states`]); a table on the device below ([`format`]) has those that are durable.
//!
//! Crashes: a zone's entry in the table says how many of its blocks were written *and made durable*. A flush first flushes
//! the device below and then writes the entries of what it covers; a forced write does both for its zone. So after a crash a
//! pointer is never before what was flushed and never behind what is on the medium: each write is there as a whole or not
//! at all, and blocks from the pointer on read as zeroes, whatever lies below. A reset is in the table before it is
//! acknowledged, so new writes never meet an old pointer. Zones that were open come back closed, or empty.
//!
//! What is not kept: writes that were acknowledged and never flushed, even when only the process ends. The device has a
//! volatile cache.
//!
//! The states of all zones are behind one mutex, held for some dozen instructions and never across an await: limits of open
//! and active zones concern all of them, whichever reactor writes.

mod extension;
pub(crate) mod format;
mod io;
mod manage;
mod states;
mod store;

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo, ZonedInfo};
use crate::front::check_child;
use crate::io::{Op, OpSet};
use crate::range_lock::RangeLock;
use crate::slots::{Slots, Stamp};
use crate::zone::{Zone, ZoneState};
use crate::zone_changes::ZoneChanges;
use crate::zone_wait;
use format::{EXTENDED_SUPERBLOCK, PAGE_ZONES, SUPERBLOCK, Superblock};
use io::ZonedChannel;
use reactor::Reactor;
use states::States;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most zones of a device; each takes about 100 bytes of memory.
pub const ZONES_MAX: u64 = 1 << 18;
/// Most bytes of a zone's descriptor extension.
pub const ZONE_EXTENSION_BYTES_MAX: u32 = 63 * EXTENSION_UNIT_BYTES;
/// Extensions are whole multiples of this (ZNS 1.1, ZDES).
const EXTENSION_UNIT_BYTES: u32 = 64;
/// What stands on the child, to whoever is told that it cannot.
const WHAT: &str = "a zoned device";
/// Where there is room, data begins at a multiple of so many bytes.
const DATA_ALIGN_BYTES: u64 = 1 << 20;
/// Devices below this size begin their data right behind the table.
const ALIGN_FROM_BYTES: u64 = 64 << 20;

/// How a zoned device is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZonedOptions {
    /// Make a new one where the child's first blocks are zero.
    pub create: bool,
    /// With `create`: make a new one whatever is there.
    pub force: bool,
    /// Bytes from one zone to the next: a power of two.
    pub zone_bytes: u64,
    /// Bytes of a zone that can be written; 0 is all of them.
    pub capacity_bytes: u64,
    /// Most zones open at once; 0 is no limit.
    pub open_zones_max: u32,
    /// Most zones active at once; 0 is no limit.
    pub active_zones_max: u32,
    /// Bytes of a zone's descriptor extension: 0, or a multiple of 64 up to [`ZONE_EXTENSION_BYTES_MAX`].
    pub extension_bytes: u32,
}

impl Default for ZonedOptions {
    fn default() -> Self {
        ZonedOptions {
            create: false,
            force: false,
            zone_bytes: 256 << 20,
            capacity_bytes: 0,
            open_zones_max: 0,
            active_zones_max: 0,
            extension_bytes: 0,
        }
    }
}

/// Sizes and places, all in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Geometry {
    block_size: u32,
    zone_blocks: u64,
    capacity_blocks: u64,
    zones: u64,
    /// Where zone 0 is kept on the device below. The zones follow each other without what is behind their capacity.
    data_start: u64,
    /// Bytes of a descriptor extension; with any, each zone has a unit for it behind the table.
    extension_bytes: u32,
}

impl Geometry {
    /// As many zones as a device of `blocks` blocks holds; none if it holds none.
    fn plan(
        block_size: u32,
        blocks: u64,
        zone_blocks: u64,
        capacity_blocks: u64,
        extension_bytes: u32,
    ) -> Option<Geometry> {
        let align = if blocks * u64::from(block_size) >= ALIGN_FROM_BYTES {
            (DATA_ALIGN_BYTES / u64::from(block_size)).max(1)
        } else {
            1
        };
        let of =
            |zones: u64| Geometry { block_size, zone_blocks, capacity_blocks, zones, data_start: 0, extension_bytes };
        let start = |zones: u64| of(zones).front_end().next_multiple_of(align);
        // The table of all zones that would fit without one leaves room for at least so many.
        let each = if extension_bytes > 0 { Slots::unit_blocks(block_size) } else { 0 };
        let most = (blocks / (capacity_blocks + each)).min(ZONES_MAX + 1);
        let zones = blocks.checked_sub(start(most))? / capacity_blocks;
        (zones > 0).then(|| Geometry { data_start: start(zones), ..of(zones) })
    }

    fn is_possible(&self) -> bool {
        let sizes = self.block_size.is_power_of_two() && (512..=65_536).contains(&self.block_size);
        let zones = (1..=ZONES_MAX).contains(&self.zones) && self.zone_blocks < 1 << 40;
        let end = self.capacity_blocks.checked_mul(self.zones).and_then(|blocks| blocks.checked_add(self.data_start));
        sizes
            && zones
            && end.is_some()
            && (1..=self.zone_blocks).contains(&self.capacity_blocks)
            && self.extension_bytes.is_multiple_of(EXTENSION_UNIT_BYTES)
            && self.extension_bytes <= ZONE_EXTENSION_BYTES_MAX
            && self.data_start >= self.front_end()
    }

    fn zone_of(&self, lba: u64) -> usize {
        (lba / self.zone_blocks) as usize
    }

    fn pages(&self) -> usize {
        (self.zones as usize).div_ceil(PAGE_ZONES)
    }

    fn zones_of_page(&self, page: usize) -> usize {
        (self.zones as usize).saturating_sub(page * PAGE_ZONES).min(PAGE_ZONES)
    }

    /// The block behind the table, and behind the extensions of zones.
    fn front_end(&self) -> u64 {
        let extensions = if self.extension_bytes > 0 { self.zones } else { 0 };
        self.extension_unit(0).saturating_add(extensions).saturating_mul(Slots::unit_blocks(self.block_size))
    }

    /// The unit that holds the extension of a zone.
    fn extension_unit(&self, zone: usize) -> u64 {
        SUPERBLOCK.copies + format::PAGE.copies * self.pages() as u64 + zone as u64
    }

    /// The unit that holds a copy of a page.
    fn page_unit(page: usize, copy: u64) -> u64 {
        SUPERBLOCK.copies + format::PAGE.copies * page as u64 + copy
    }

    /// Where block `at` of a zone is kept.
    fn place(&self, zone: usize, at: u64) -> u64 {
        self.data_start + zone as u64 * self.capacity_blocks + at
    }

    /// Blocks of the device below that are used.
    fn end(&self) -> u64 {
        self.place(self.zones as usize, 0)
    }
}

/// See the module.
pub struct ZonedDevice {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    child: Arc<dyn BlockDevice>,
    base: DeviceInfo,
    info: DeviceInfo,
    id: [u8; 16],
    geometry: Geometry,
    states: Mutex<States>,
    /// One writer of a page of the table at a time.
    page_turns: RangeLock,
    changes: Arc<ZoneChanges>,
}

impl Shared {
    /// Looks at the states of zones, or changes them; then wakes who waited for that.
    fn with<R>(&self, act: impl FnOnce(&mut States) -> R) -> R {
        zone_wait::with(&self.states, act)
    }
}

impl ZonedDevice {
    /// What a new device on such a child would be; otherwise why there cannot be one.
    pub fn plan(child: &DeviceInfo, options: &ZonedOptions) -> Result<DeviceInfo, String> {
        check_child(child, WHAT)?;
        Ok(describe(child, &plan(child, options)?, options))
    }

    /// Opens (or creates) the zones of `child`.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        child: Arc<dyn BlockDevice>,
        options: &ZonedOptions,
    ) -> Result<ZonedDevice, DeviceError> {
        let refused = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        let base = child.info();
        check_child(&base, WHAT).map_err(refused)?;
        let plan = plan(&base, options).map_err(refused)?;
        let channel = child.open_channel(reactor)?;
        let slots = Slots { reactor, channel: &*channel, block_size: base.block_size, kind: EXTENDED_SUPERBLOCK };
        let mut found = slots.read(Superblock::decode).await;
        let kept = found.take(options.create, options.force, "zones").map_err(refused)?;
        let failed = |action| move |status| DeviceError::Io { device: name.to_string(), action, status };
        let superblock = match kept {
            Some(kept) => {
                kept.geometry.agrees(&plan).map_err(refused)?;
                store::repair_superblock(&slots, name, &found, &kept).await;
                kept
            }
            None => {
                let mut id = [0; 16];
                id[..8].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
                id[8..].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
                let made = Superblock { stamp: Stamp { id, generation: 1 }, geometry: plan };
                store::create(&slots, &made).await.map_err(failed("make its zones"))?;
                made
            }
        };
        let (geometry, id) = (superblock.geometry, superblock.stamp.id);
        if geometry.end() > base.blocks {
            let has = format!("its zones need {} blocks of the child, which has {}", geometry.end(), base.blocks);
            return Err(refused(format!("{has}; give it back the size that it had")));
        }
        let (entries, pages) =
            store::load(&slots, name, &id, &geometry).await.map_err(failed("repair its zone table"))?;
        let limits = (options.open_zones_max, options.active_zones_max);
        let states = Mutex::new(States::new(geometry, limits, entries.into_iter(), pages));
        let info = describe(&base, &geometry, options);
        let name = name.to_string();
        let shared = Shared {
            name,
            child,
            base,
            info,
            id,
            geometry,
            states,
            page_turns: RangeLock::new(1),
            changes: Arc::default(),
        };
        Ok(ZonedDevice { shared: Arc::new(shared) })
    }

    /// Every zone as it is now.
    pub fn zones(&self) -> Vec<Zone> {
        self.shared.with(|states| (0..self.shared.geometry.zones as usize).map(|zone| states.zone(zone)).collect())
    }

    /// Makes all pointers durable, as before a shutdown.
    pub async fn settle(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        let outcome = self.inner(reactor)?.flush(None).await;
        outcome.map_err(|status| DeviceError::Io { device: self.shared.name.clone(), action: "settle", status })
    }

    /// Makes a zone read-only or offline, as a drive does with zones that it cannot write or read any more. Refused when what is
    /// being written to it does not end within `wait`.
    pub async fn retire(
        &self,
        reactor: &Rc<Reactor>,
        zone: u64,
        state: ZoneState,
        wait: Duration,
    ) -> Result<(), DeviceError> {
        let refused = |reason: String| DeviceError::Config { device: self.shared.name.clone(), reason };
        if zone >= self.shared.geometry.zones {
            return Err(refused(format!("it has {} zones, from 0 on", self.shared.geometry.zones)));
        }
        if !matches!(state, ZoneState::ReadOnly | ZoneState::Offline) {
            return Err(refused("a zone can be made read-only or offline".to_string()));
        }
        match self.inner(reactor)?.retire(zone as usize, state, wait.as_nanos() as u64).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(refused(format!(
                "zone {zone} has been written to for {wait:?} without an end; see to the device below, or try again"
            ))),
            Err(status) => Err(DeviceError::Io { device: self.shared.name.clone(), action: "retire a zone", status }),
        }
    }

    fn inner(&self, reactor: &Rc<Reactor>) -> Result<Rc<Inner>, DeviceError> {
        let child = [self.shared.child.open_channel(reactor)?];
        Ok(Rc::new(Inner { shared: self.shared.clone(), reactor: reactor.clone(), child }))
    }
}

/// The geometry that was asked for, on a child of this size.
fn plan(base: &DeviceInfo, options: &ZonedOptions) -> Result<Geometry, String> {
    let block_size = u64::from(base.block_size);
    let ZonedOptions { zone_bytes, open_zones_max, active_zones_max, .. } = *options;
    let capacity_bytes = if options.capacity_bytes == 0 { zone_bytes } else { options.capacity_bytes };
    if !zone_bytes.is_power_of_two() || zone_bytes < block_size {
        return Err(format!(
            "zones of {zone_bytes} bytes; the size must be a power of two and hold blocks of {block_size}"
        ));
    }
    if !capacity_bytes.is_multiple_of(block_size) || capacity_bytes > zone_bytes {
        let rule = format!("it must be whole blocks of {block_size} and at most a zone's {zone_bytes} bytes");
        return Err(format!("a zone capacity of {capacity_bytes} bytes; {rule}"));
    }
    if active_zones_max > 0 && open_zones_max > active_zones_max {
        return Err(format!("{open_zones_max} zones may be open and {active_zones_max} active; open zones are active"));
    }
    let extension_bytes = options.extension_bytes;
    if !extension_bytes.is_multiple_of(EXTENSION_UNIT_BYTES) || extension_bytes > ZONE_EXTENSION_BYTES_MAX {
        let rule = format!("it must be a multiple of {EXTENSION_UNIT_BYTES}, up to {ZONE_EXTENSION_BYTES_MAX}");
        return Err(format!("a descriptor extension of {extension_bytes} bytes; {rule}"));
    }
    let (zone_blocks, capacity_blocks) = (zone_bytes / block_size, capacity_bytes / block_size);
    let geometry = Geometry::plan(base.block_size, base.blocks, zone_blocks, capacity_blocks, extension_bytes);
    let geometry = geometry.ok_or_else(|| format!("the child is too small for a zone of {capacity_bytes} bytes"))?;
    match geometry.zones {
        zones if zones > ZONES_MAX => Err(format!("more than {ZONES_MAX} zones; make them larger")),
        _ if geometry.is_possible() => Ok(geometry),
        _ => Err(format!("zones of {zone_bytes} bytes cannot be; make them smaller")),
    }
}

impl Geometry {
    /// Whether a device of this geometry is what was planned; its number of zones is its own.
    fn agrees(&self, plan: &Geometry) -> Result<(), String> {
        let bytes = |blocks: u64| blocks * u64::from(self.block_size);
        if self.block_size != plan.block_size {
            return Err(format!("its zones are of blocks of {}, the child has {}", self.block_size, plan.block_size));
        }
        if self.extension_bytes != plan.extension_bytes {
            let (was, now) = (self.extension_bytes, plan.extension_bytes);
            return Err(format!(
                "it was made with descriptor extensions of {was} bytes, not {now}; say so, or wipe it"
            ));
        }
        if (self.zone_blocks, self.capacity_blocks) == (plan.zone_blocks, plan.capacity_blocks) {
            return Ok(());
        }
        let (size, capacity) = (bytes(self.zone_blocks), bytes(self.capacity_blocks));
        let was = format!("it was made with zones of {size} bytes and a capacity of {capacity}");
        Err(format!("{was}, not {} and {}; say so, or wipe it", bytes(plan.zone_blocks), bytes(plan.capacity_blocks)))
    }
}

fn describe(base: &DeviceInfo, geometry: &Geometry, options: &ZonedOptions) -> DeviceInfo {
    let ops = OpSet::of(&[
        Op::Read,
        Op::Write,
        Op::WriteZeroes,
        Op::Flush,
        Op::Compare,
        Op::Verify,
        Op::ZoneAppend,
        Op::ZoneReport,
    ]);
    let extensions: &[Op] =
        if geometry.extension_bytes > 0 { &[Op::ZoneSetExtension, Op::ZoneReadExtension] } else { &[] };
    DeviceInfo {
        ops: ops.union(OpSet::ZONE_MANAGEMENT).union(OpSet::of(extensions)),
        optimal_io_blocks: base.optimal_io_blocks,
        max_io_blocks: base.max_io_blocks.max((1 << 20) / base.block_size),
        compare_and_write_blocks: 0,
        volatile_cache: true,
        loans: base.loans,
        zoned: Some(ZonedInfo {
            zone_blocks: geometry.zone_blocks,
            zone_capacity_blocks: geometry.capacity_blocks,
            open_zones_max: options.open_zones_max,
            active_zones_max: options.active_zones_max,
            extension_bytes: geometry.extension_bytes,
        }),
        ..DeviceInfo::basic(base.block_size, geometry.zones * geometry.zone_blocks)
    }
}

impl BlockDevice for ZonedDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn kind(&self) -> &'static str {
        "zoned"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(ZonedChannel(self.inner(reactor)?)))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.shared.child.clone()]
    }

    fn zone_changes(&self) -> Option<Arc<ZoneChanges>> {
        Some(self.shared.changes.clone())
    }
}

/// One reactor's part.
struct Inner {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    child: [Rc<dyn Channel>; 1],
}

impl Inner {
    fn with<R>(&self, act: impl FnOnce(&mut States) -> R) -> R {
        self.shared.with(act)
    }

    fn child(&self) -> &dyn Channel {
        &*self.child[0]
    }
}
