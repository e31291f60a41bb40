//! What a node that does not run has left: its state and the headers of its pools. Everything is only read, no device is opened as
//! one (that of a mirror, say, would be written to), and nothing is locked.

use crate::config::{Config, DeviceDef, DeviceParams, LogDef, PoolDef};
use crate::node::State;
use crate::node::state;
use engine::{BLOCK_BYTES, SUPERBLOCK_COPIES, Superblock};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

/// The state file, if it is whole.
pub fn state(dir: &Path) -> Result<State, String> {
    let path = dir.join("state.json");
    let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    state::decode(&path, &bytes).map_err(|error| error.to_string())
}

/// The process that has locked a state directory, if it is there and is this program.
pub fn pid(dir: &Path) -> Option<u64> {
    let pid = std::fs::read_to_string(dir.join("lock")).ok()?.trim().parse().ok()?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (name.trim() == "remuda").then_some(pid)
}

/// The headers of all pools that a configuration and a state name.
pub fn pools(config: Option<&Config>, state: Option<&State>) -> Vec<(String, Value)> {
    let configured = config.into_iter().flat_map(|config| config.devices.iter().map(|entry| &entry.def));
    let made = state.into_iter().flat_map(|state| &state.devices);
    let devices: BTreeMap<&str, &DeviceDef> = made.chain(configured).map(|def| (def.name.as_str(), def)).collect();
    let configured = config.into_iter().flat_map(|config| config.pools.iter().map(|entry| &entry.def));
    let pools = configured.chain(state.into_iter().flat_map(|state| &state.pools));
    pools.map(|def| (def.name.clone(), headers(def, &devices))).collect()
}

fn headers(def: &PoolDef, devices: &BTreeMap<&str, &DeviceDef>) -> Value {
    let log = match &def.log {
        LogDef::Device(name) => of_device(name, devices),
        LogDef::Pmem { path, .. } => of_file(path),
    };
    json!({ "definition": def, "capacity": of_device(&def.capacity, devices), "log": log })
}

fn of_device(name: &str, devices: &BTreeMap<&str, &DeviceDef>) -> Value {
    match devices.get(name).map(|def| (&def.params, def.kind())) {
        Some((DeviceParams::File { path, .. }, _)) => of_file(path),
        Some((_, kind)) => {
            let next = "remuda pool check NAME --config FILE opens it and tells more";
            json!({ "error": format!("'{name}' is a '{kind}' device, which is not opened here; {next}") })
        }
        None => json!({ "error": format!("there is no device '{name}' in the configuration or the state") }),
    }
}

fn of_file(path: &str) -> Value {
    let copies: Vec<Value> = match open(path) {
        Ok(file) => (0..SUPERBLOCK_COPIES).map(|copy| superblock(&file, copy)).collect(),
        Err(error) => return json!({ "path": path, "error": error.to_string() }),
    };
    json!({ "path": path, "superblocks": copies })
}

/// Opens a file or a drive; opening a pipe would wait.
fn open(path: &str) -> io::Result<File> {
    let kind = std::fs::metadata(path)?.file_type();
    match kind.is_file() || kind.is_block_device() {
        true => File::open(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a file nor a drive")),
    }
}

fn superblock(file: &File, copy: u64) -> Value {
    let mut block = [0; BLOCK_BYTES];
    if let Err(error) = file.read_exact_at(&mut block, copy * BLOCK_BYTES as u64) {
        return json!({ "error": error.to_string() });
    }
    match Superblock::decode(&block) {
        Ok(found) => json!({
            "name": found.name,
            "pool": found.pool.to_string(),
            "device": found.device.to_string(),
            "other": found.other.to_string(),
            "generation": found.generation,
            "epoch": found.epoch,
            "role": format!("{:?}", found.role).to_lowercase(),
            "shape": found.shape.name(),
            "log_kind": format!("{:?}", found.log_kind).to_lowercase(),
            "shards": found.shards,
            "log_blocks": found.log_blocks,
            "capacity_blocks": found.capacity_blocks,
            "segments": found.segments,
            "segment_blocks": found.segment_blocks,
            "layered": found.layered,
            "created_s": found.created_s,
        }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}
