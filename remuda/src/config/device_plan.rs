//! What devices will be that are defined so, before they are open: planned by the code that makes them.
//!
//! A device that is there keeps what it was made with, whatever the file says by now; so what has metadata of its own is planned on
//! blank devices alone. Nothing is told of what only who opens it can know: drives, remote namespaces, files that are to be there
//! and are not, and what stands on any of these.

use super::{Config, DeviceEntry, DeviceParams};
use bdev::{
    ChecksumOptions, DeviceInfo, DeviceSpec, EncryptDevice, EncryptOptions, FileDeviceOptions, FlashCacheOptions,
    MirrorOptions, ParityOptions, ZoneBandsOptions, ZonedOptions,
};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};

/// Bytes at the start of a device that tell whether it holds anything.
const START_BYTES: u64 = 128 << 10;
/// From when a flash cache is open until it looks for what it has: the pool on it opens first.
const FLASH_LOADS_AFTER_NS: u64 = 200_000_000;

/// What a definition asks for; with `make`, what is missing is made. `None` of the kinds that take more than a definition.
pub fn spec_of(params: &DeviceParams, make: bool) -> Option<DeviceSpec> {
    Some(match params {
        DeviceParams::Mem { size, size_max, block_size } => {
            DeviceSpec::Mem { block_size: *block_size, bytes: *size, bytes_max: *size_max }
        }
        DeviceParams::Null { size, block_size } => {
            DeviceSpec::Null { block_size: *block_size, bytes: *size, zero_reads: true }
        }
        DeviceParams::File { path, size, block_size, direct } => DeviceSpec::File(FileDeviceOptions {
            create_bytes: size.filter(|_| make),
            block_size: block_size.unwrap_or(4096),
            direct: *direct,
            ..FileDeviceOptions::new(path)
        }),
        DeviceParams::Stripe { chunk, .. } => DeviceSpec::Stripe { chunk_bytes: *chunk },
        DeviceParams::Mirror { start_degraded, resync_rate, .. } => DeviceSpec::Mirror(MirrorOptions {
            create: make,
            start_degraded: *start_degraded,
            resync_rate: resync_rate.unwrap_or(0),
            ..MirrorOptions::default()
        }),
        DeviceParams::Parity { chunk, head, rebuild_rate, .. } => DeviceSpec::Parity(ParityOptions {
            create: make,
            chunk_bytes: chunk.unwrap_or(0),
            head_bytes: head.unwrap_or(0),
            rebuild_rate: rebuild_rate.unwrap_or(0),
            ..ParityOptions::default()
        }),
        DeviceParams::Checksum { .. } => {
            DeviceSpec::Checksum(ChecksumOptions { create: make, ..ChecksumOptions::default() })
        }
        DeviceParams::Zoned { zone_size, capacity, max_open, max_active, extension, .. } => {
            DeviceSpec::Zoned(ZonedOptions {
                create: make,
                force: false,
                zone_bytes: *zone_size,
                capacity_bytes: *capacity,
                open_zones_max: max_open.unwrap_or(0),
                active_zones_max: max_active.unwrap_or(0),
                extension_bytes: *extension,
            })
        }
        DeviceParams::ZoneBands { .. } => {
            DeviceSpec::ZoneBands(ZoneBandsOptions { create: make, ..ZoneBandsOptions::default() })
        }
        DeviceParams::FlashCache { write_budget, endurance, pass_through, .. } => {
            DeviceSpec::FlashCache(FlashCacheOptions {
                create: make,
                write_budget: *write_budget,
                endurance: *endurance,
                without_cache: *pass_through,
                loads_after_ns: Some(FLASH_LOADS_AFTER_NS),
                ..FlashCacheOptions::default()
            })
        }
        DeviceParams::Delay { .. }
        | DeviceParams::Error { .. }
        | DeviceParams::Encrypt { .. }
        | DeviceParams::RateLimit { .. }
        | DeviceParams::Nvmf { .. } => return None,
    })
}

/// Every device of a file, as far as it is known.
pub(super) struct DevicePlans<'a> {
    config: &'a Config,
    known: BTreeMap<&'a str, Option<DeviceInfo>>,
    /// Devices that cannot be made, and why.
    pub(super) refused: Vec<(&'a DeviceEntry, String)>,
}

impl<'a> DevicePlans<'a> {
    pub(super) fn of(config: &'a Config) -> DevicePlans<'a> {
        let mut plans = DevicePlans { config, known: BTreeMap::new(), refused: Vec::new() };
        for entry in &config.devices {
            plans.plan(entry);
        }
        plans
    }

    /// What a device will be; `None` where that is not known.
    pub(super) fn info(&self, name: &str) -> Option<DeviceInfo> {
        self.known.get(name).copied().flatten()
    }

    /// Each device is looked at once, however many stand on it.
    fn plan(&mut self, entry: &'a DeviceEntry) -> Option<DeviceInfo> {
        let name = entry.def.name.as_str();
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        // Around a cycle there is no end.
        self.known.insert(name, None);
        let planned = self.compute(entry).and_then(|planned| match planned {
            Ok(info) => Some(info),
            Err(reason) => {
                self.refused.push((entry, reason));
                None
            }
        });
        self.known.insert(name, planned);
        planned
    }

    fn compute(&mut self, entry: &'a DeviceEntry) -> Option<Result<DeviceInfo, String>> {
        let (config, params) = (self.config, &entry.def.params);
        let mut children = Vec::new();
        for name in entry.def.children() {
            let child = config.devices.iter().find(|child| child.def.name == *name)?;
            children.push((name.as_str(), self.plan(child)?));
        }
        if passes_on_to(params).is_some() {
            return Some(Ok(children.first()?.1));
        }
        // That rows are misplaced has been noted; what is not blank stays what it is.
        if children.iter().any(|(_, info)| info.rows.is_some())
            || has_metadata(params) && !is_blank(config, &entry.def.name)
        {
            return None;
        }
        match (params, &children[..]) {
            (DeviceParams::File { path, size, .. }, _) => {
                let DeviceSpec::File(options) = spec_of(params, true)? else { return None };
                let bytes = file_bytes(path, *size).filter(|bytes| *bytes >= u64::from(options.block_size))?;
                bdev::plan(&DeviceSpec::File(FileDeviceOptions { create_bytes: Some(bytes), ..options }), &[])
            }
            // No key is needed to tell what is behind its header.
            (DeviceParams::Encrypt { .. }, [(_, child)]) => {
                Some(EncryptDevice::plan(child, &EncryptOptions::default()))
            }
            _ => bdev::plan(&spec_of(params, true)?, &children),
        }
    }
}

/// Bytes that a file has when it is open: one that is there may be larger than the file says.
pub(super) fn file_bytes(path: &str, size: Option<u64>) -> Option<u64> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => Some(found.len().max(size.unwrap_or(0))).filter(|bytes| *bytes > 0),
        // Of a drive only the node knows the size.
        Ok(_) => None,
        Err(error) => size.filter(|_| error.kind() == ErrorKind::NotFound),
    }
}

/// Whether it keeps on the devices below what it was made with.
fn has_metadata(params: &DeviceParams) -> bool {
    matches!(
        params,
        DeviceParams::Mirror { .. }
            | DeviceParams::Parity { .. }
            | DeviceParams::Checksum { .. }
            | DeviceParams::Encrypt { .. }
            | DeviceParams::Zoned { .. }
            | DeviceParams::ZoneBands { .. }
            | DeviceParams::FlashCache { .. }
    )
}

/// The device that a device passes everything on to, as it is.
pub(super) fn passes_on_to(params: &DeviceParams) -> Option<&str> {
    match params {
        DeviceParams::Delay { device, .. }
        | DeviceParams::Error { device, .. }
        | DeviceParams::RateLimit { device, .. } => Some(device),
        _ => None,
    }
}

/// Whether there is certainly nothing on a device, nor on any below it.
pub(super) fn is_blank(config: &Config, name: &str) -> bool {
    let mut below = vec![name];
    // No device stands on itself twice where there is no cycle; around one there is an end as well.
    for _ in 0..=config.devices.len() {
        let Some(name) = below.pop() else { return true };
        let Some(entry) = config.devices.iter().find(|entry| entry.def.name == name) else { return false };
        match &entry.def.params {
            DeviceParams::Mem { .. } => {}
            DeviceParams::File { path, .. } if is_blank_file(path) => {}
            DeviceParams::File { .. } | DeviceParams::Nvmf { .. } | DeviceParams::Null { .. } => return false,
            _ => below.extend(entry.def.children().iter().map(String::as_str)),
        }
    }
    below.is_empty()
}

fn is_blank_file(path: &str) -> bool {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) => return error.kind() == ErrorKind::NotFound,
    };
    let mut start = Vec::new();
    let read = || std::fs::File::open(path)?.take(START_BYTES).read_to_end(&mut start);
    // Of a drive only the node knows the size.
    found.is_file() && { read }().is_ok() && start.iter().all(|byte| *byte == 0)
}
