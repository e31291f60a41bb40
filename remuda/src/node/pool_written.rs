//! What has been written for a pool since it was opened: to its two devices by what it was, as the engine counts it, and to each device
//! below it, as these count for themselves. So parity, the legs of a mirror and what a cache writes to flash are seen as well.

use super::pool_view::{PoolNumbers, PoolView};
use super::pools::PoolSlot;
use super::{DeviceSlot, Node};
use crate::config::{DeviceParams, LogDef};
use bdev::{BlockDevice, Op, StatsDevice};
use engine::{CapacityStreams, LogStreams, ShardStatus, WriteStreams};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Operations that carry data to a device.
const WRITING: [Op; 3] = [Op::Write, Op::ZoneAppend, Op::CompareAndWrite];

/// What was written of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamView {
    /// `log` or `capacity`.
    pub to: String,
    /// To the log: `data`, `reinserted`, `headers`, `index` and `metadata`; to the capacity device: `data`, `bypassed`
    /// (past the log), `collected`, `padding`, `index`, `shadow` and `metadata`.
    pub stream: String,
    /// Bytes.
    pub bytes: u64,
    /// For each byte that hosts or flattening wrote.
    pub ratio: Option<f64>,
}

/// What was written to a device below a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceWrittenView {
    /// Its name; of a log in memory, the path.
    pub device: String,
    /// Its kind.
    pub kind: String,
    /// `log` or `capacity`: which of the pool's devices it is, or is a part of.
    pub of: String,
    /// How far below that it is; 0 is the pool's device itself, and what a device stands on follows it.
    pub depth: usize,
    /// Bytes since the pool was opened; of a device made of others, theirs together. None given: it does not count them.
    pub bytes: Option<u64>,
    /// For each byte that hosts or flattening wrote to the pool.
    pub ratio: Option<f64>,
    /// Something else stands on it as well, and its bytes are those of all.
    pub shared: bool,
}

/// What the devices of a pool had counted when it was opened.
pub(super) type Before = BTreeMap<String, u64>;

/// The devices below a pool that count, to be looked at before it is opened.
pub(super) type Counting = Vec<(String, Arc<StatsDevice>)>;

/// What they have counted so far.
pub(super) fn read_all(counting: &Counting) -> Before {
    counting.iter().map(|(name, device)| (name.clone(), written(device))).collect()
}

fn written(device: &StatsDevice) -> u64 {
    let (counts, block_size) = (device.counts(), u64::from(device.info().block_size));
    WRITING.iter().map(|op| counts.ops[*op as usize].blocks).sum::<u64>() * block_size
}

/// For each byte that was written to a pool.
pub(super) fn ratio(bytes: u64, written: u64) -> Option<f64> {
    (written > 0).then(|| bytes as f64 / written as f64)
}

/// What all shards of a pool have written; `user` bytes are those of hosts and flattening.
pub(super) fn streams(shards: &[ShardStatus], user: u64) -> Vec<StreamView> {
    let sum = |of: fn(&WriteStreams) -> u64| shards.iter().map(|shard| of(&shard.streams)).sum::<u64>();
    let view = |to: &str, stream: &str, bytes: u64| StreamView {
        to: to.to_string(),
        stream: stream.to_string(),
        bytes,
        ratio: ratio(bytes, user),
    };
    // Taken apart here, so that a new one is not forgotten.
    let LogStreams { data: _, reinserted: _, headers: _, index: _, metadata: _ } = LogStreams::default();
    let CapacityStreams { data: _, bypassed: _, collected: _, padding: _, index: _, shadow: _, metadata: _ } =
        CapacityStreams::default();
    vec![
        view("log", "data", sum(|streams| streams.log.data)),
        view("log", "reinserted", sum(|streams| streams.log.reinserted)),
        view("log", "headers", sum(|streams| streams.log.headers)),
        view("log", "index", sum(|streams| streams.log.index)),
        view("log", "metadata", sum(|streams| streams.log.metadata)),
        view("capacity", "data", sum(|streams| streams.capacity.data)),
        view("capacity", "bypassed", sum(|streams| streams.capacity.bypassed)),
        view("capacity", "collected", sum(|streams| streams.capacity.collected)),
        view("capacity", "padding", sum(|streams| streams.capacity.padding)),
        view("capacity", "index", sum(|streams| streams.capacity.index)),
        view("capacity", "shadow", sum(|streams| streams.capacity.shadow)),
        view("capacity", "metadata", sum(|streams| streams.capacity.metadata)),
    ]
}

impl PoolNumbers {
    /// Bytes of a stream.
    pub fn stream_bytes(&self, to: &str, stream: &str) -> u64 {
        let found = self.streams.iter().find(|view| view.to == to && view.stream == stream);
        found.map_or(0, |view| view.bytes)
    }
}

/// Devices that are looked at, and what they had counted before.
struct Looking<'a> {
    devices: &'a BTreeMap<String, DeviceSlot>,
    before: &'a Before,
    shared: &'a dyn Fn(&str) -> bool,
    of: &'static str,
    views: Vec<DeviceWrittenView>,
}

impl Looking<'_> {
    /// Tells of a device and of what it stands on; its bytes.
    fn look(&mut self, name: &str, depth: usize, over_shared: bool) -> Option<u64> {
        let slot = self.devices.get(name)?;
        let shared = over_shared || (self.shared)(name);
        if self.views.iter().any(|view| view.of == self.of && view.device == name) {
            // Two parts of one device: told, and counted, once.
            return Some(0);
        }
        let at = self.views.len();
        self.views.push(DeviceWrittenView {
            device: name.to_string(),
            kind: slot.def.kind().to_string(),
            of: self.of.to_string(),
            depth,
            bytes: None,
            ratio: None,
            shared,
        });
        let children = slot.def.children().iter();
        let parts: Vec<Option<u64>> = children.map(|child| self.look(child, depth + 1, shared)).collect();
        let bytes = match &slot.live {
            Ok(opened) => match &opened.stats {
                Some(stats) => {
                    let (now, before) = (written(stats), self.before.get(name).copied().unwrap_or(0));
                    // Less than before: it was opened again since, and counts anew.
                    Some(now.checked_sub(before).unwrap_or(now))
                }
                None if parts.is_empty() => None,
                None => parts.into_iter().sum(),
            },
            // What is absent gets nothing.
            Err(_) => Some(0),
        };
        self.views[at].bytes = bytes;
        bytes
    }
}

impl Node {
    /// The devices below a pool's devices that count what is written to them.
    pub(super) fn counting_below(&self, devices: &[&str]) -> Counting {
        let mut counting = Counting::new();
        let mut left: Vec<&str> = devices.to_vec();
        while let Some(name) = left.pop() {
            let Some(slot) = self.devices.get(name) else { continue };
            left.extend(slot.def.children().iter().map(String::as_str));
            let stats = slot.live.as_ref().ok().and_then(|opened| opened.stats.clone());
            counting.extend(stats.map(|stats| (name.to_string(), stats)));
        }
        counting
    }

    /// The flash cache that reads of a device go through, if there is one: the device itself, or what filters over it stand on.
    pub(super) fn flash_cache_below(&self, device: &str) -> Option<&str> {
        let (mut name, mut steps) = (device, 0);
        loop {
            let (known, slot) = self.devices.get_key_value(name)?;
            match (&slot.def.params, slot.def.children()) {
                (DeviceParams::FlashCache { .. }, _) => return Some(known),
                // Definitions make no circles; this one ends all the same.
                (_, [child]) if steps < self.devices.len() => (name, steps) = (child, steps + 1),
                _ => return None,
            }
        }
    }

    /// Adds to an open pool's view what was written to the devices below it.
    pub(super) fn tell_written(&self, slot: &PoolSlot, before: &Before, view: &mut PoolView) {
        let Some(open) = &mut view.open else { return };
        let user = open.total.user_write_bytes + open.total.flattened_bytes;
        let shared = |name: &str| self.users_of_device(name).len() > 1;
        let mut looking = Looking { devices: &self.devices, before, shared: &shared, of: "log", views: Vec::new() };
        match &slot.def.log {
            LogDef::Device(name) => _ = looking.look(name, 0, false),
            LogDef::Pmem { path, .. } => looking.views.push(DeviceWrittenView {
                device: path.clone(),
                kind: "pmem".to_string(),
                of: "log".to_string(),
                depth: 0,
                bytes: None,
                ratio: None,
                shared: false,
            }),
        }
        looking.of = "capacity";
        looking.look(&slot.def.capacity, 0, false);
        let mut views = looking.views;
        for view in &mut views {
            // What counts nothing, and has no parts that do, has got what the pool has written.
            if view.depth == 0 && view.bytes.is_none() {
                let told = if view.of == "log" { open.total.log_write_bytes } else { open.total.capacity_write_bytes };
                view.bytes = Some(told);
            }
            view.ratio = view.bytes.and_then(|bytes| ratio(bytes, user));
        }
        let has_parts = |of: &str| views.iter().any(|view| view.of == of && view.depth > 0);
        let capacity = views.iter().find(|view| view.of == "capacity" && view.depth == 0);
        open.drives_amplification = capacity.filter(|_| has_parts("capacity")).and_then(|view| view.ratio);
        open.devices = views;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_told_for_each_byte_of_users_and_add_up() {
        let of = |data, collected| {
            let capacity = CapacityStreams { data, collected, ..CapacityStreams::default() };
            let log = LogStreams { data: 2 * data, ..LogStreams::default() };
            ShardStatus { streams: WriteStreams { log, capacity }, ..ShardStatus::default() }
        };
        let shards = [of(100, 10), of(200, 50)];
        let views = streams(&shards, 600);
        let find = |to: &str, stream: &str| views.iter().find(|view| view.to == to && view.stream == stream).unwrap();
        assert_eq!((find("capacity", "data").bytes, find("capacity", "data").ratio), (300, Some(0.5)));
        assert_eq!((find("capacity", "collected").bytes, find("log", "data").ratio), (60, Some(1.0)));
        let total: u64 = shards.iter().map(|shard| shard.streams.log.total() + shard.streams.capacity.total()).sum();
        assert_eq!(views.iter().map(|view| view.bytes).sum::<u64>(), total);
        assert_eq!(streams(&shards, 0)[0].ratio, None);
    }
}
