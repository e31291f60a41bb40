//! Counters for `stats` and `/metrics`.

use super::Node;
use super::snapshots::is_snapshot;
use base::Histogram;
use bdev::{BlockDevice, DeviceStats, LatencyClass, Op, StatsDevice};
use nvme::tcp_target::{HostTraffic, Traffic};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Something that counts what goes through it.
#[derive(Clone)]
pub struct Counted {
    /// `volume`, or the device's kind.
    pub kind: &'static str,
    /// Where the counters are.
    pub device: Arc<StatsDevice>,
}

impl Counted {
    /// The object's name.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// The counters now.
    pub fn read(&self) -> DeviceStats {
        self.device.stats()
    }
}

/// Percentiles of a latency, nanoseconds; of no operations, all of them are 0.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LatencyView {
    /// How many operations.
    pub count: u64,
    /// All of them together.
    pub sum: u64,
    /// Mean.
    pub mean: u64,
    /// Median.
    pub p50: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// Largest.
    pub max: u64,
}

impl LatencyView {
    fn of(histogram: &Histogram) -> LatencyView {
        LatencyView {
            count: histogram.count(),
            sum: histogram.sum(),
            mean: histogram.mean() as u64,
            p50: histogram.percentile(50.0),
            p99: histogram.percentile(99.0),
            p999: histogram.percentile(99.9),
            max: histogram.max(),
        }
    }
}

/// Counters of one kind of operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpView {
    /// Which.
    pub op: String,
    /// How many ended.
    pub ops: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// How many failed.
    pub errors: u64,
}

/// Counters of a volume or device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CountedView {
    /// Its name.
    pub name: String,
    /// `volume`, or the device's kind.
    pub kind: String,
    /// Operations under way.
    pub depth: u64,
    /// Kinds of operations that were seen.
    pub ops: Vec<OpView>,
    /// Read latencies, ns.
    pub read: LatencyView,
    /// Write latencies, ns.
    pub write: LatencyView,
    /// Flush latencies, ns.
    pub flush: LatencyView,
}

/// What a host has done since it connected, over all of its connections.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TrafficView {
    /// Its NQN.
    pub host: String,
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Other I/O commands.
    pub others: u64,
    /// The operations a second that it is limited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_limit: Option<u64>,
    /// The bytes a second that it is limited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_limit: Option<u64>,
}

impl TrafficView {
    fn of(seen: HostTraffic) -> TrafficView {
        let limit = |value: u64| (value > 0).then_some(value);
        let Traffic { reads, read_bytes, writes, written_bytes, others } = seen.traffic;
        let (iops_limit, bandwidth_limit) = (limit(seen.limits.iops), limit(seen.limits.bytes_per_second));
        TrafficView { host: seen.host, reads, read_bytes, writes, written_bytes, others, iops_limit, bandwidth_limit }
    }
}

/// What `stats` answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatsView {
    /// Volumes, then devices that talk to the outside.
    pub objects: Vec<CountedView>,
    /// Reactors.
    pub reactors: Vec<super::view::ReactorView>,
    /// Hosts that are connected or limited.
    #[serde(default)]
    pub hosts: Vec<TrafficView>,
    /// TCP connections of hosts.
    pub connections: u64,
}

impl Node {
    /// Everything that counts: all volumes, those snapshots that hosts may use, and the devices that talk to the outside. There may be
    /// thousands of snapshots, and hardly any that is used.
    pub fn counted(&self) -> Vec<Counted> {
        let exported = self.exported();
        let is_told = |name: &String| {
            exported.contains(name.as_str())
                || self.pool_volumes.get(name).is_none_or(|slot| !is_snapshot(&slot.volume))
        };
        let volumes = self.volumes.iter().filter(|(name, _)| is_told(name));
        let volumes = volumes.map(|(_, device)| Counted { kind: "volume", device: device.clone() });
        let devices = self.devices.values().filter_map(|slot| {
            let device = slot.live.as_ref().ok()?.stats.clone()?;
            Some(Counted { kind: slot.def.kind(), device })
        });
        volumes.chain(devices).collect()
    }

    /// What hosts have done.
    pub async fn traffic(&self) -> Vec<TrafficView> {
        self.exporter.traffic().await.into_iter().map(TrafficView::of).collect()
    }

    /// All counters.
    pub async fn stats(&self) -> StatsView {
        let objects = self.counted().into_iter().map(|counted| {
            let stats = counted.read();
            let block_size = counted.device.info().block_size as u64;
            let ops = Op::ALL.iter().filter(|op| stats.of(**op).ops > 0).map(|op| OpView {
                op: op.name().to_string(),
                ops: stats.of(*op).ops,
                bytes: stats.of(*op).blocks * block_size,
                errors: stats.of(*op).errors,
            });
            CountedView {
                name: counted.name().to_string(),
                kind: counted.kind.to_string(),
                depth: stats.depth,
                ops: ops.collect(),
                read: LatencyView::of(stats.latency_of(LatencyClass::Read)),
                write: LatencyView::of(stats.latency_of(LatencyClass::Write)),
                flush: LatencyView::of(stats.latency_of(LatencyClass::Flush)),
            }
        });
        StatsView {
            objects: objects.collect(),
            reactors: self.reactors.views().await,
            hosts: self.traffic().await,
            connections: self.exporter.counters().await.connections,
        }
    }
}
