//! `remuda pool top`: what open pools do between one look and the next.

use super::exit::Failure;
use super::pools::{estimate, fetch, percent, ratio, with_problems};
use super::watch::{Shown, Watch};
use super::{Context, cache, output};
use crate::node::pool_view::{PoolNumbers, PoolView, ShardNumbers};
use crate::node::pool_written::DeviceWrittenView;
use crate::node::view::FlashCacheView;
use base::ByteSize;
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

/// Bytes of one kind; those that were none are left out.
#[derive(Debug, PartialEq, Serialize)]
struct StreamRate {
    to: String,
    stream: String,
    bytes_per_second: u64,
    /// For each byte that hosts or flattening wrote meanwhile.
    ratio: Option<f64>,
}

/// Bytes to one device, each below the one that stands on it.
#[derive(Debug, PartialEq, Serialize)]
struct DeviceRate {
    device: String,
    kind: String,
    of: String,
    depth: usize,
    /// None given: it does not count them.
    bytes_per_second: Option<u64>,
    ratio: Option<f64>,
    shared: bool,
}

/// One pool: how it is, and what it did since the last look.
#[derive(Serialize)]
struct PoolRates<'a> {
    name: &'a str,
    state: &'a str,
    log_fill: f64,
    dirty_bytes: u64,
    free_bytes: u64,
    waiting_writes: u64,
    /// Log records that a crash now would have replayed, and about how long that would take.
    replay_records: u64,
    recovery_estimate_ns: Option<u64>,
    disks: u64,
    read_disks: u64,
    read_bytes_per_second: u64,
    log_hit_bytes_per_second: u64,
    write_bytes_per_second: u64,
    log_bytes_per_second: u64,
    capacity_bytes_per_second: u64,
    log_amplification: Option<f64>,
    capacity_amplification: Option<f64>,
    bands: u64,
    free_bands: u64,
    pending_bands: u64,
    band_valid_share: Option<f64>,
    collected_bytes_per_second: u64,
    reinserted_bytes_per_second: u64,
    gc_debt_bytes: u64,
    gc_debt_max_bytes: u64,
    gc_debt_share: Option<f64>,
    streams: Vec<StreamRate>,
    devices: Vec<DeviceRate>,
    flash_cache: &'a Option<FlashCacheView>,
}

/// Two looks at one pool.
struct Looks<'a> {
    then: &'a PoolNumbers,
    now: &'a PoolNumbers,
    seconds: f64,
}

impl Looks<'_> {
    fn since(&self, of: impl Fn(&ShardNumbers) -> u64) -> u64 {
        of(&self.now.total).saturating_sub(of(&self.then.total))
    }

    fn per_second(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.seconds).round() as u64
    }

    /// For each byte written; what flattening copies takes the same way as what hosts write.
    fn for_each(&self, bytes: u64) -> Option<f64> {
        let written = self.since(|numbers| numbers.user_write_bytes + numbers.flattened_bytes);
        (written > 0).then(|| bytes as f64 / written as f64)
    }

    fn streams(&self) -> Vec<StreamRate> {
        let each = self.now.streams.iter().map(|view| {
            let bytes = view.bytes.saturating_sub(self.then.stream_bytes(&view.to, &view.stream));
            StreamRate {
                to: view.to.clone(),
                stream: view.stream.clone(),
                bytes_per_second: self.per_second(bytes),
                ratio: self.for_each(bytes),
            }
        });
        each.filter(|rate| rate.bytes_per_second > 0).collect()
    }

    fn devices(&self) -> Vec<DeviceRate> {
        let each = self.now.devices.iter().map(|view| {
            let place = |view: &DeviceWrittenView| (view.device.clone(), view.of.clone(), view.depth);
            let then = self.then.devices.iter().find(|other| place(other) == place(view)).and_then(|other| other.bytes);
            let bytes = view.bytes.map(|bytes| bytes.saturating_sub(then.unwrap_or(bytes)));
            DeviceRate {
                device: view.device.clone(),
                kind: view.kind.clone(),
                of: view.of.clone(),
                depth: view.depth,
                bytes_per_second: bytes.map(|bytes| self.per_second(bytes)),
                ratio: bytes.and_then(|bytes| self.for_each(bytes)),
                shared: view.shared,
            }
        });
        each.collect()
    }
}

/// What happened between two looks at the open pools that both have seen.
fn rates<'a>(before: &[PoolView], after: &'a [PoolView], elapsed: Duration) -> Vec<PoolRates<'a>> {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let each = after.iter().filter_map(|pool| {
        let then = before.iter().find(|other| other.name == pool.name)?.open.as_ref()?;
        let looks = Looks { then, now: pool.open.as_ref()?, seconds };
        let total = &looks.now.total;
        let per_second = |of: fn(&ShardNumbers) -> u64| looks.per_second(looks.since(of));
        Some(PoolRates {
            name: &pool.name,
            state: &pool.state,
            log_fill: total.log_fill,
            dirty_bytes: total.dirty_bytes,
            free_bytes: total.free_bytes,
            waiting_writes: total.waiting_writes,
            replay_records: total.replay_records,
            recovery_estimate_ns: total.recovery_estimate_ns,
            disks: total.disks,
            read_disks: total.read_disks,
            read_bytes_per_second: per_second(|numbers| numbers.user_read_bytes),
            log_hit_bytes_per_second: per_second(|numbers| numbers.log_hit_bytes),
            write_bytes_per_second: per_second(|numbers| numbers.user_write_bytes),
            log_bytes_per_second: per_second(|numbers| numbers.log_write_bytes),
            capacity_bytes_per_second: per_second(|numbers| numbers.capacity_write_bytes),
            log_amplification: looks.for_each(looks.since(|numbers| numbers.log_write_bytes)),
            capacity_amplification: looks.for_each(looks.since(|numbers| numbers.capacity_write_bytes)),
            bands: total.bands,
            free_bands: total.free_bands,
            pending_bands: total.pending_bands,
            band_valid_share: total.band_valid_share,
            collected_bytes_per_second: per_second(|numbers| numbers.collected_bytes),
            reinserted_bytes_per_second: per_second(|numbers| numbers.reinserted_bytes),
            gc_debt_bytes: total.gc_debt_bytes,
            gc_debt_max_bytes: total.gc_debt_max_bytes,
            gc_debt_share: total.gc_debt_share,
            streams: looks.streams(),
            devices: looks.devices(),
            flash_cache: &pool.flash_cache,
        })
    });
    each.collect()
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

fn overview(rates: &[PoolRates<'_>]) -> String {
    let rows = rates.iter().map(|pool| {
        vec![
            pool.name.to_string(),
            pool.state.to_string(),
            percent(pool.log_fill),
            size(pool.dirty_bytes),
            size(pool.free_bytes),
            size(pool.read_bytes_per_second),
            size(pool.log_hit_bytes_per_second),
            size(pool.write_bytes_per_second),
            size(pool.log_bytes_per_second),
            size(pool.capacity_bytes_per_second),
            ratio(pool.log_amplification),
            ratio(pool.capacity_amplification),
            pool.waiting_writes.to_string(),
            estimate(pool.recovery_estimate_ns),
        ]
    });
    let headings = [
        "POOL",
        "STATE",
        ">LOG FILL",
        ">DIRTY",
        ">FREE",
        ">READ/S",
        ">FROM LOG/S",
        ">WRITTEN/S",
        ">LOG/S",
        ">CAPACITY/S",
        ">WA LOG",
        ">WA CAPACITY",
        ">WAITING",
        ">REPLAY AFTER A CRASH",
    ];
    output::table(&headings, rows.collect())
}

/// The bands of shaped pools; no rows without any.
fn bands(rates: &[PoolRates<'_>]) -> String {
    let rows = rates.iter().filter(|pool| pool.bands > 0).map(|pool| {
        vec![
            pool.name.to_string(),
            format!("{} of {}", pool.free_bands, pool.bands),
            pool.pending_bands.to_string(),
            pool.band_valid_share.map_or("-".to_string(), percent),
            size(pool.collected_bytes_per_second),
            size(pool.reinserted_bytes_per_second),
            size(pool.gc_debt_bytes),
            pool.gc_debt_share.map_or("-".to_string(), percent),
        ]
    });
    let headings = [
        "BANDS OF",
        ">FREE",
        ">FREE SOON",
        ">VALID",
        ">COLLECTED/S",
        ">REINSERTED/S",
        ">GC DEBT",
        ">OF WHAT SLOWS WRITERS",
    ];
    table_unless_empty(&headings, rows.collect())
}

/// What was written, by what it was.
fn streams(rates: &[PoolRates<'_>]) -> String {
    let rows = rates.iter().flat_map(|pool| {
        pool.streams.iter().map(|rate| {
            let (to, stream) = (rate.to.clone(), rate.stream.clone());
            vec![pool.name.to_string(), to, stream, size(rate.bytes_per_second), ratio(rate.ratio)]
        })
    });
    table_unless_empty(&["WRITTEN FOR", "TO", "STREAM", ">BYTES/S", ">PER USER BYTE"], rows.collect())
}

/// What was written to the devices below, of pools that write at all.
fn devices(rates: &[PoolRates<'_>]) -> String {
    let busy = rates.iter().filter(|pool| !pool.streams.is_empty());
    let rows = busy.flat_map(|pool| {
        pool.devices.iter().map(|rate| {
            vec![
                pool.name.to_string(),
                format!("{}{}", "  ".repeat(rate.depth), rate.device),
                rate.kind.clone(),
                rate.of.clone(),
                rate.bytes_per_second.map_or("-".to_string(), size),
                ratio(rate.ratio),
                if rate.shared { "with others".to_string() } else { String::new() },
            ]
        })
    });
    let headings = ["BELOW", "DEVICE", "KIND", "PART OF", ">WRITTEN/S", ">PER USER BYTE", "SHARED"];
    table_unless_empty(&headings, rows.collect())
}

fn table_unless_empty(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() { String::new() } else { format!("\n\n{}", output::table(headings, rows)) }
}

fn text(rates: &[PoolRates<'_>], pools: &[PoolView]) -> String {
    let mut text = [overview(rates), bands(rates), streams(rates), devices(rates)].concat();
    let caches = pools.iter().filter_map(|pool| Some((&pool.name, pool.flash_cache.as_ref()?)));
    let lines: Vec<String> = caches.map(|(name, cache)| format!("\npool '{name}': {}", cache::line(cache))).collect();
    if !lines.is_empty() {
        text += &format!("\n{}", lines.concat());
    }
    with_problems(text, pools)
}

/// Looks at one pool, or at all.
pub(super) fn top(context: &Context, name: Option<String>, watch: &Watch) -> Result<(), Failure> {
    let look = || Ok(fetch(context, &name)?.1);
    watch.run(context, look, |before: &Vec<PoolView>, after, elapsed| {
        let rates = rates(before, after, elapsed);
        Shown { json: json!({ "pools": rates }), text: text(&rates, after) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::pool_written::StreamView;

    fn numbers(user: u64, moved: u64, on_drive: u64) -> PoolNumbers {
        let stream =
            |stream: &str, bytes| StreamView { to: "capacity".into(), stream: stream.into(), bytes, ratio: None };
        let device = |device: &str, depth, bytes| DeviceWrittenView {
            device: device.into(),
            kind: "file".into(),
            of: "capacity".into(),
            depth,
            bytes,
            ratio: None,
            shared: false,
        };
        PoolNumbers {
            total: ShardNumbers { user_write_bytes: user, ..ShardNumbers::default() },
            streams: vec![stream("data", user), stream("collected", moved), stream("shadow", 7)],
            devices: vec![device("qlc", 0, None), device("bay0", 1, Some(on_drive))],
            ..PoolNumbers::default()
        }
    }

    #[test]
    fn streams_and_devices_are_told_by_what_they_took_since_the_last_look() {
        let (then, now) = (numbers(1000, 400, 3000), numbers(3000, 900, 6000));
        let looks = Looks { then: &then, now: &now, seconds: 2.0 };
        let streams: Vec<_> =
            looks.streams().into_iter().map(|rate| (rate.stream, rate.bytes_per_second, rate.ratio)).collect();
        let expected = [("data".to_string(), 1000, Some(1.0)), ("collected".to_string(), 250, Some(0.25))];
        assert_eq!(streams, expected, "the shadow took nothing");
        let devices: Vec<_> = looks.devices().into_iter().map(|rate| (rate.bytes_per_second, rate.ratio)).collect();
        assert_eq!(devices, [(None, None), (Some(1500), Some(1.5))]);
        let idle = Looks { then: &now, now: &now, seconds: 2.0 };
        assert!(idle.streams().is_empty() && idle.for_each(1).is_none());
    }
}
