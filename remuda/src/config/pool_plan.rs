//! Whether a pool can be made as it is defined, where its devices hold none yet: planned by the engine, as the node does it.
//!
//! A pool that is there keeps what it was made with, whatever the file says by now; so only devices that are blank, or that are
//! not there yet, are looked at. Of devices whose size the file does not tell exactly, only what fails on a smaller one as well is
//! told; of those that are written in whole rows, nothing.

use super::diagnostic::Problems;
use super::pool_fit::{CAPACITY_MIN, LOG_MIN, size_at_most};
use super::{Config, DeviceParams, LogDef, PoolDef, PoolEntry};
use engine::layout::{self, Identities, PlanError};
use engine::{BLOCK_BYTES, CreateOptions};
use std::io::Read;
use uuid::Uuid;

/// Bytes at the start of a device that tell whether it holds anything.
const START_BYTES: u64 = 128 << 10;

/// Notes pools that the node would not make.
pub(super) fn check_plans(config: &Config, problems: &mut Problems) {
    for pool in &config.pools {
        if let Some(device) = zoned_device(config, &pool.def) {
            let span = if pool.def.capacity == device { &pool.capacity_span } else { &pool.log_span };
            let message = format!("device '{device}' is zoned, and pool '{}' writes in place", pool.def.name);
            let help = "put a 'zone-bands' device on it, and a shaped pool on that; or name another device";
            problems.add(span.clone(), "capacity", message, Some(help.to_string()));
        } else if let Err(error) = plan(config, &pool.def) {
            let (key, span) = place(pool, &error);
            problems.add(span, key, format!("pool '{}' cannot be made: {error}", pool.def.name), None);
        }
    }
}

/// Where what is wrong stands, and its key.
fn place(pool: &PoolEntry, error: &PlanError) -> (&'static str, Option<super::value::Span>) {
    let key = match error {
        PlanError::LogTooSmall { .. } | PlanError::IndexTooLarge { .. } | PlanError::IndexFull { .. } => {
            return ("log", pool.log_span.clone());
        }
        PlanError::Shards { .. } | PlanError::OpenZones { .. } => "shards",
        PlanError::Overprovision(_) => "overprovision",
        PlanError::GrowTo { .. } => "grow_to",
        PlanError::Bands { .. } | PlanError::ZoneSize { .. } => "band",
        PlanError::BandSize { what, .. } | PlanError::RowSize { what, .. } if what.contains("band") => "band",
        PlanError::BandSize { .. } | PlanError::RowSize { .. } | PlanError::ZoneUnit { .. } => "write_unit",
        _ => return ("capacity", pool.capacity_span.clone()),
    };
    let written = pool.spans.iter().find(|(name, _)| *name == key).and_then(|(_, span)| span.clone());
    (key, written.or_else(|| pool.name_span.clone()))
}

/// Plans a pool that would be made, as far as its devices are known.
fn plan(config: &Config, def: &PoolDef) -> Result<(), PlanError> {
    let log = match &def.log {
        LogDef::Device(device) => size_at_most(config, device).map(|size| (size, is_exact(config, device))),
        LogDef::Pmem { size, .. } => Some((*size, true)),
    };
    let capacity = size_at_most(config, &def.capacity).map(|size| (size, is_exact(config, &def.capacity)));
    let (Some((log, log_is_exact)), Some((capacity, capacity_is_exact))) = (log, capacity) else { return Ok(()) };
    // That they are too small has been noted.
    if log < LOG_MIN || capacity < CAPACITY_MIN || has_rows(config, &def.capacity) || !is_blank(config, &def.capacity) {
        return Ok(());
    }
    let block = BLOCK_BYTES as u64;
    let nil = Uuid::nil();
    let identities = Identities { pool: nil, log: nil, capacity: nil };
    let options: CreateOptions = def.create_options(None);
    match layout::plan(log / block, capacity / block, &options, identities, 0) {
        Err(error) if log_is_exact && capacity_is_exact || fails_on_smaller(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether there is no such pool on smaller devices either.
fn fails_on_smaller(error: &PlanError) -> bool {
    matches!(
        error,
        PlanError::Shards { .. } | PlanError::Bands { .. } | PlanError::BandSize { .. } | PlanError::Overprovision(_)
    )
}

fn params<'a>(config: &'a Config, name: &str) -> Option<&'a DeviceParams> {
    config.devices.iter().find(|entry| entry.def.name == name).map(|entry| &entry.def.params)
}

/// The device that a device passes everything on to, as it is.
fn passes_on_to(params: &DeviceParams) -> Option<&str> {
    match params {
        DeviceParams::Delay { device, .. }
        | DeviceParams::Error { device, .. }
        | DeviceParams::RateLimit { device, .. } => Some(device),
        _ => None,
    }
}

/// What is below the devices that pass everything on.
fn lowest<'a>(config: &'a Config, name: &'a str) -> Option<&'a DeviceParams> {
    let mut found = params(config, name)?;
    // As many steps as there are devices are enough, also around a cycle.
    for _ in 0..config.devices.len() {
        match passes_on_to(found) {
            Some(below) => found = params(config, below)?,
            None => return Some(found),
        }
    }
    None
}

fn has_rows(config: &Config, name: &str) -> bool {
    matches!(lowest(config, name), Some(DeviceParams::Parity { .. } | DeviceParams::ZoneBands { .. }))
}

fn zoned_device<'a>(config: &Config, def: &'a PoolDef) -> Option<&'a str> {
    def.devices().into_iter().find(|name| matches!(lowest(config, name), Some(DeviceParams::Zoned { .. })))
}

/// Whether a device has the size that the file tells.
fn is_exact(config: &Config, name: &str) -> bool {
    matches!(lowest(config, name), Some(DeviceParams::Mem { .. } | DeviceParams::File { .. }))
}

/// Whether there is certainly nothing on a device, nor on any below it.
fn is_blank(config: &Config, name: &str) -> bool {
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
        Err(error) => return error.kind() == std::io::ErrorKind::NotFound,
    };
    let mut start = Vec::new();
    let read = || std::fs::File::open(path)?.take(START_BYTES).read_to_end(&mut start);
    // Of a drive only the node knows the size.
    found.is_file() && { read }().is_ok() && start.iter().all(|byte| *byte == 0)
}
