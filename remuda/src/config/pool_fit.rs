//! Whether the devices of a pool will do: large enough, and a log in memory that keeps what is stored in it.

use super::device_plan::file_bytes;
use super::diagnostic::Problems;
use super::section::UNITS_HINT;
use super::{Config, DeviceParams, LogDef};
use base::ByteSize;
use engine::BLOCK_BYTES;
use engine::layout::{CAPACITY_BLOCKS_MIN, LOG_BLOCKS_MIN};
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

pub(super) const LOG_MIN: u64 = LOG_BLOCKS_MIN * BLOCK_BYTES as u64;
pub(super) const CAPACITY_MIN: u64 = CAPACITY_BLOCKS_MIN * BLOCK_BYTES as u64;

/// What to do about a log in memory that loses its contents.
pub const VOLATILE_LOG: &str = "for a log that keeps them, name a file on a DAX file system (mount -o dax), or a 'file' device \
                                instead; 'volatile = true' in its log (pool create: --volatile) accepts that acknowledged \
                                writes are lost with the power";

/// Notes devices of pools that are too small by their definitions.
pub(super) fn check_sizes(config: &Config, problems: &mut Problems) {
    for pool in &config.pools {
        let name = &pool.def.name;
        let log = match &pool.def.log {
            LogDef::Device(device) => (format!("device '{device}'"), size_at_most(config, device)),
            LogDef::Pmem { path, size, .. } => (path.clone(), Some(*size)),
        };
        let capacity = &pool.def.capacity;
        let capacity = (format!("device '{capacity}'"), size_at_most(config, capacity));
        for (key, span, (object, size), min) in
            [("log", &pool.log_span, log, LOG_MIN), ("capacity", &pool.capacity_span, capacity, CAPACITY_MIN)]
        {
            let Some(size) = size.filter(|size| *size < min) else { continue };
            let (has, min) = (ByteSize(size), ByteSize(min));
            let message = format!("{object} has {has} at most, and the {key} of pool '{name}' needs {min}");
            let help = if size < 1 << 20 { UNITS_HINT.to_string() } else { format!("give it {min} or more") };
            problems.add(span.clone(), key, message, Some(help));
        }
    }
}

/// Bytes that a device has at most, as far as the file says; what stands on others has no more than these.
pub(super) fn size_at_most(config: &Config, name: &str) -> Option<u64> {
    Sizes { config, known: BTreeMap::new() }.at_most(name)
}

/// Each device is looked at once, however many stand on it.
struct Sizes<'a> {
    config: &'a Config,
    known: BTreeMap<String, Option<u64>>,
}

impl Sizes<'_> {
    fn at_most(&mut self, name: &str) -> Option<u64> {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        // Around a cycle there is no end.
        self.known.insert(name.to_string(), None);
        let size = self.compute(name);
        self.known.insert(name.to_string(), size);
        size
    }

    fn compute(&mut self, name: &str) -> Option<u64> {
        let config = self.config;
        let def = &config.devices.iter().find(|entry| entry.def.name == name)?.def;
        match &def.params {
            DeviceParams::File { path, size, .. } => file_bytes(path, *size),
            DeviceParams::Mirror { devices, .. } => devices.iter().filter_map(|child| self.at_most(child)).min(),
            DeviceParams::FlashCache { devices, .. } => self.at_most(devices.first()?),
            DeviceParams::Stripe { devices, .. }
            | DeviceParams::Parity { devices, .. }
            | DeviceParams::ZoneBands { devices } => {
                devices.iter().try_fold(0, |sum: u64, child| Some(sum.saturating_add(self.at_most(child)?)))
            }
            _ => match def.children() {
                [child] => self.at_most(child),
                _ => def.size(),
            },
        }
    }
}

/// Notes pools that would stay closed on this machine as it is now. The rest of a node goes on without them, so this is no
/// reason not to start it.
pub(super) fn check_logs(config: &Config, problems: &mut Problems) {
    for pool in &config.pools {
        if let LogDef::Pmem { path, size, volatile } = &pool.def.log
            && let Err((message, help)) = check_memory_log(path, *size, *volatile)
        {
            problems.add(pool.log_span.clone(), "log", format!("pool '{}': {message}", pool.def.name), Some(help));
        }
    }
}

/// Whether the log of a pool can be in this memory; otherwise why not and what to do.
pub fn check_memory_log(path: &str, size: u64, volatile: bool) -> Result<(), (String, String)> {
    let found = std::fs::metadata(path).ok();
    if found.as_ref().is_some_and(|found| !found.is_file() && !found.file_type().is_char_device()) {
        let message = format!("its log {path} is neither a file nor a DAX device");
        return Err((message, "name one that is".to_string()));
    }
    let found = found.filter(|found| found.is_file());
    if let Some(length) = found.map(|found| found.len()).filter(|length| (1..size).contains(length)) {
        let message = format!("its log {path} has {}, and {} are wanted", ByteSize(length), ByteSize(size));
        return Err((message, "name its size, or remove the file if nothing in it is needed".to_string()));
    }
    // What cannot be looked at is told by whoever opens it.
    match volatile || reactor::linux::keeps_stores(Path::new(path)).unwrap_or(true) {
        true => Ok(()),
        false => Err((engine::volatile_log(path), VOLATILE_LOG.to_string())),
    }
}
