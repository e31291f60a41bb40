//! Whether a pool can be made as it is defined, where its devices hold none yet: planned by the engine, as the node does it.
//!
//! A pool that is there keeps what it was made with, whatever the file says by now; so only devices that are blank, or that are
//! not there yet, are looked at. Of devices of which not everything is [known](super::device_plan), only what fails on a smaller
//! one as well is told; of those that are written in whole rows, nothing.

use super::device_plan::{DevicePlans, is_blank, passes_on_to};
use super::diagnostic::Problems;
use super::pool_fit::{CAPACITY_MIN, LOG_MIN, size_at_most};
use super::value::Span;
use super::{Config, DeviceParams, LogDef, PoolDef, PoolEntry};
use bdev::DeviceInfo;
use engine::layout::{Identities, PlanError};
use engine::{BLOCK_BYTES, Pool, PoolError};
use uuid::Uuid;

/// Notes devices and pools that the node would not make.
pub(super) fn check_plans(config: &Config, problems: &mut Problems) {
    let devices = DevicePlans::of(config);
    for (entry, reason) in &devices.refused {
        let message = format!("device '{}' cannot be made: {reason}", entry.def.name);
        problems.add(entry.name_span.clone(), "name", message, None);
    }
    for pool in &config.pools {
        if let Some(device) = zoned_device(config, &pool.def) {
            let message = format!("device '{device}' is zoned, and pool '{}' writes in place", pool.def.name);
            let help = "put a 'zone-bands' device on it, and a shaped pool on that; or name another device";
            let (key, span) = place_of(pool, device);
            problems.add(span, key, message, Some(help.to_string()));
        } else if let Err(error) = plan(config, &devices, &pool.def) {
            let (key, span) = place(pool, &error);
            let cause = match &error {
                PoolError::Plan { error, .. } => error.to_string(),
                PoolError::Refused { reason, .. } => reason.clone(),
                other => other.to_string(),
            };
            problems.add(span, key, format!("pool '{}' cannot be made: {cause}", pool.def.name), None);
        }
    }
}

/// The key that names a device of a pool, and where it stands.
fn place_of(pool: &PoolEntry, device: &str) -> (&'static str, Option<Span>) {
    match pool.def.capacity == device {
        true => ("capacity", pool.capacity_span.clone()),
        false => ("log", pool.log_span.clone()),
    }
}

/// Where what is wrong stands, and its key.
fn place(pool: &PoolEntry, error: &PoolError) -> (&'static str, Option<Span>) {
    let PoolError::Plan { error, .. } = error else { return ("capacity", pool.capacity_span.clone()) };
    let key = match error {
        PlanError::LogTooSmall { .. } | PlanError::IndexTooLarge { .. } | PlanError::IndexFull { .. } => {
            return ("log", pool.log_span.clone());
        }
        PlanError::Shards { .. } | PlanError::OpenZones { .. } => "shards",
        PlanError::Volumes { .. } => "volumes_max",
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
fn plan(config: &Config, devices: &DevicePlans<'_>, def: &PoolDef) -> Result<(), PoolError> {
    let basic = |bytes: u64| DeviceInfo::basic(BLOCK_BYTES as u32, bytes / BLOCK_BYTES as u64);
    // With its bytes at most, and whether it will be exactly that.
    let known = |name: &str| {
        let at_most = size_at_most(config, name)?;
        let info = devices.info(name);
        Some((at_most, info.unwrap_or_else(|| basic(at_most)), info.is_some()))
    };
    let log = match &def.log {
        LogDef::Device(device) => known(device).map(|log| (device.as_str(), log)),
        LogDef::Pmem { path, size, .. } => Some((path.as_str(), (*size, basic(*size), true))),
    };
    let (Some((log_name, log)), Some(capacity)) = (log, known(&def.capacity)) else { return Ok(()) };
    let ((log_at_most, log, log_is_exact), (capacity_at_most, capacity, capacity_is_exact)) = (log, capacity);
    // That they are too small has been noted.
    if log_at_most < LOG_MIN || capacity_at_most < CAPACITY_MIN || !is_blank(config, &def.capacity) {
        return Ok(());
    }
    // And what is written in whole rows and is no place for a log, or for a hot pool.
    let log_has_rows = def.log_device().is_some_and(|log| has_rows(config, log));
    if log_has_rows || has_rows(config, &def.capacity) && (def.placement.is_hot() || !capacity_is_exact) {
        return Ok(());
    }
    let nil = Uuid::nil();
    let identities = Identities { pool: nil, log: nil, capacity: nil };
    let options = def.create_options(None);
    match Pool::plan((log_name, log), (&def.capacity, capacity), &options, identities, 0) {
        Err(error) if log_is_exact && capacity_is_exact || fails_on_smaller(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether there is no such pool on smaller devices either.
fn fails_on_smaller(error: &PoolError) -> bool {
    let PoolError::Plan { error, .. } = error else { return false };
    matches!(
        error,
        PlanError::Shards { .. } | PlanError::Bands { .. } | PlanError::BandSize { .. } | PlanError::Overprovision(_)
    )
}

fn params<'a>(config: &'a Config, name: &str) -> Option<&'a DeviceParams> {
    config.devices.iter().find(|entry| entry.def.name == name).map(|entry| &entry.def.params)
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
