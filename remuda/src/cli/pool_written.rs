//! What pools have written, in tables: by what it was, and by device.

use super::output;
use super::pools::{percent, ratio};
use crate::node::pool_view::{PoolNumbers, ShardNumbers};
use base::ByteSize;

/// How much garbage collection is behind.
pub fn debt(numbers: &ShardNumbers) -> String {
    let most = ByteSize(numbers.gc_debt_max_bytes);
    match numbers.gc_debt_share {
        Some(share) if numbers.gc_debt_bytes > 0 => {
            let debt = ByteSize(numbers.gc_debt_bytes);
            format!("{debt} to move; {} of what slows writers down ({most} in all shards)", percent(share))
        }
        _ => format!("none; {most} would slow writers down"),
    }
}

/// Bytes written for each of the users'.
pub fn amplification(open: &PoolNumbers) -> String {
    let total = &open.total;
    let drives = open.drives_amplification.map(|on_drives| format!(" ({on_drives:.2} on all of its drives)"));
    format!(
        "log {}, capacity {}{}",
        ratio(total.log_amplification),
        ratio(total.capacity_amplification),
        drives.unwrap_or_default()
    )
}

/// What was written by what it was, and to which devices; nothing of a pool that has written nothing.
pub fn tables(open: &PoolNumbers) -> String {
    let each = |bytes: Option<u64>| bytes.map_or("-".to_string(), |bytes| ByteSize(bytes).to_string());
    let streams = open.streams.iter().filter(|view| view.bytes > 0);
    let streams =
        streams.map(|view| vec![view.to.clone(), view.stream.clone(), each(Some(view.bytes)), ratio(view.ratio)]);
    let devices = open.devices.iter().map(|view| {
        let shared = if view.shared { "with others" } else { "" };
        vec![
            format!("{}{}", "  ".repeat(view.depth), view.device),
            view.kind.clone(),
            view.of.clone(),
            each(view.bytes),
            ratio(view.ratio),
            shared.to_string(),
        ]
    });
    let streams = output::table(&["TO", "WRITTEN", ">BYTES", ">PER USER BYTE"], streams.collect());
    let devices =
        output::table(&["DEVICE", "KIND", "PART OF", ">WRITTEN", ">PER USER BYTE", "SHARED"], devices.collect());
    format!("{streams}\n\n{devices}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::pool_written::{DeviceWrittenView, StreamView};

    #[test]
    fn debt_is_told_beside_what_slows_writers_down() {
        let numbers = ShardNumbers { gc_debt_max_bytes: 8 << 20, gc_debt_share: Some(0.0), ..ShardNumbers::default() };
        assert_eq!(debt(&numbers), "none; 8 MiB would slow writers down");
        let numbers = ShardNumbers { gc_debt_bytes: 4 << 20, gc_debt_share: Some(0.5), ..numbers };
        assert_eq!(debt(&numbers), "4 MiB to move; 50.0 % of what slows writers down (8 MiB in all shards)");
    }

    #[test]
    fn parts_of_devices_stand_below_them_and_streams_without_bytes_are_left_out() {
        let stream = |stream: &str, bytes| StreamView {
            to: "capacity".into(),
            stream: stream.into(),
            bytes,
            ratio: Some(bytes as f64 / 4096.0),
        };
        let device = |device: &str, depth, bytes| DeviceWrittenView {
            device: device.into(),
            kind: "file".into(),
            of: "capacity".into(),
            depth,
            bytes,
            ratio: None,
            shared: depth > 0,
        };
        let open = PoolNumbers {
            streams: vec![stream("data", 4096), stream("collected", 0)],
            devices: vec![device("qlc", 0, None), device("bay0", 1, Some(8192))],
            drives_amplification: Some(1.5),
            ..PoolNumbers::default()
        };
        let text = tables(&open);
        assert!(text.contains("capacity  data") && !text.contains("collected"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("  bay0") && line.contains("8 KiB")), "{text}");
        assert_eq!(amplification(&open), "log -, capacity - (1.50 on all of its drives)");
    }
}
