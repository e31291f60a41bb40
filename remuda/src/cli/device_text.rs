//! What `remuda device show` prints.

use super::output;
use crate::config::show_duration_ns;
use crate::node::view::{DeviceView, LegView, PathView};
use base::ByteSize;
use serde_json::Value;

/// Everything about a device.
pub fn show_device(device: DeviceView) -> String {
    let definition = definition(&device);
    let changed = if device.differs_from_file { ", changed since" } else { "" };
    let mut text = output::facts(&[
        ("name", device.name),
        ("kind", device.kind),
        ("size", ByteSize(device.size).to_string()),
        ("block size", device.block_size.to_string()),
        ("free", ByteSize(device.free).to_string()),
        ("used by", device.used_by.join(", ")),
        ("origin", format!("{:?}{changed}", device.origin).to_lowercase()),
        ("state", device.state),
        ("definition", definition),
    ]);
    if let Some(cache) = &device.flash_cache {
        text += &format!("\n{}", output::facts(&super::cache::facts(cache)));
    }
    if !device.paths.is_empty() {
        text += &format!("\n{}", paths_table(device.paths));
    }
    if let Some(mirror) = device.mirror {
        let (left, dirty, all) = (mirror.resync_left_regions, mirror.dirty_regions, mirror.regions);
        text += &format!("\nregions     {all}, {dirty} dirty, {left} to be copied\n");
        let (left, rate) = (left * mirror.region_bytes, mirror.resync_bytes_per_s);
        if let Some(left_s) = left.checked_div(rate).filter(|_| left > 0) {
            text += &format!("copying     {} left, {}/s, {left_s} s left\n", ByteSize(left), ByteSize(rate));
        }
        text += "\n";
        text += &parts_table("LEG", mirror.legs);
    }
    if let Some(zoned) = device.zoned {
        let (each, capacity) = (ByteSize(zoned.zone_bytes), ByteSize(zoned.capacity_bytes));
        let most = |max: u32, what: &str| if max == 0 { String::new() } else { format!(", {max} {what} at most") };
        let (open, active) = (most(zoned.open_max, "open"), most(zoned.active_max, "active"));
        text += &format!("\nzones       {} of {each}, {capacity} of each to be written{open}{active}\n", zoned.zones);
    }
    if let Some(zones) = device.zones {
        let (each, head) = (ByteSize(zones.zone_bytes), ByteSize(zones.head_bytes));
        let open_max = if zones.open_max == 0 { String::new() } else { format!(" of {} at most", zones.open_max) };
        text += &format!("\nzones       {} of {each}, behind {head}\n", zones.zones);
        let (empty, open, full) = (zones.empty, zones.open, zones.full);
        text += &format!("written     {full} full, {open} in part{open_max}, {empty} empty\n");
        text += &format!("out of use  {} read-only, {} offline\n", zones.read_only, zones.offline);
    }
    if let Some(parity) = device.parity {
        let (row, head) = (ByteSize(parity.row_bytes), ByteSize(parity.head_bytes));
        text += &format!("\nrows        {row} of data each, behind {head}\n");
        if parity.head_uncompared_bytes > 0 {
            let left = ByteSize(parity.head_uncompared_bytes);
            text += &format!("head        {left} of it are still to be compared after a crash, in the background\n");
        }
        if let Some(rebuild) = &parity.rebuild {
            let (done, all) = (ByteSize(rebuild.done_bytes), ByteSize(rebuild.done_bytes + rebuild.left_bytes));
            let left = rebuild.left_s.map_or(String::new(), |left| format!(", {left} s left"));
            let rate = ByteSize(rebuild.bytes_per_s);
            text += &format!("rebuild     '{}': {done} of {all}, {rate}/s{left}\n", rebuild.device);
        }
        let (computed, lost) = (output::count(parity.reconstructed_reads), output::count(parity.lost_blocks));
        text += &format!("computed    {computed} reads; {lost} blocks lost in rebuilds\n\n");
        text += &parts_table("MEMBER", parity.members);
    }
    text
}

fn paths_table(paths: Vec<PathView>) -> String {
    let row = |path: PathView| {
        let counts = [path.operations, path.lost, path.refused, path.reconnects].map(output::count);
        [path.address, path.state].into_iter().chain(counts).collect()
    };
    let columns = ["PATH", "STATE", ">OPERATIONS", ">LOST", ">REFUSED", ">RECONNECTS"];
    output::table(&columns, paths.into_iter().map(row).collect())
}

fn parts_table(part: &str, parts: Vec<LegView>) -> String {
    let whys: String = parts.iter().filter_map(|part| part.why.as_ref()).map(|why| format!("\n{why}\n")).collect();
    let row =
        |part: LegView| vec![part.device, part.state, output::count(part.read_errors), output::count(part.repairs)];
    output::table(&[part, "STATE", ">READ ERRORS", ">REPAIRS"], parts.into_iter().map(row).collect()) + &whys
}

/// The keys of a device and their values, durations as people write them.
pub fn definition(device: &DeviceView) -> String {
    let keys = device.definition.as_object().cloned().unwrap_or_default();
    let keys = keys.iter().filter(|(key, _)| !matches!(key.as_str(), "name" | "kind"));
    let words = keys.map(|(key, value)| match (key.strip_suffix("_ns"), value) {
        (Some(key), Value::Number(ns)) => {
            format!("{key}={}", show_duration_ns(ns.as_u64().unwrap_or(0)).replace(' ', ""))
        }
        (_, Value::Null) => format!("{key}=off"),
        (_, Value::String(text)) => format!("{key}={text}"),
        (_, value) => format!("{key}={value}"),
    });
    words.collect::<Vec<_>>().join(" ")
}
