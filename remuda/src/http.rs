//! `/metrics` in the Prometheus text format, `/healthz` and `/livez`; the console joins them.

mod connections;

use crate::console::{Console, Names, guard_scrapes};
use crate::node::Node;
use crate::node::pool_view::{PoolNumbers, PoolView, ShardNumbers};
use crate::node::reactors::Meter;
use crate::node::stats::{Counted, TrafficView};
use crate::node::view::{DeviceView, FlashCacheView, LegView, MirrorView, ParityView, PathView, VhostView};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use bdev::{BlockDevice, LatencyClass, Op};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// How long `/healthz` waits for the node to look around; probes give up after a few seconds.
const HEALTH_PATIENCE: Duration = Duration::from_secs(1);
/// How long a scrape waits for what there is now: half of what scrapers wait at most, as they are usually set.
const SCRAPE_PATIENCE: Duration = Duration::from_secs(5);
/// Scrapes waiting at most.
const SCRAPES_MAX: usize = 16;

/// What the HTTP side sees of the node: counters shared with the reactors, refreshed when objects come and go.
#[derive(Clone)]
pub struct Metrics {
    reactors: Vec<Meter>,
    objects: Arc<Mutex<Objects>>,
    refresh: mpsc::Sender<oneshot::Sender<()>>,
    names: Names,
}

#[derive(Default)]
struct Objects {
    stopping: bool,
    /// When the node was last asked.
    updated: Option<Instant>,
    devices: Vec<Gauge>,
    volumes: Vec<Gauge>,
    pools: Vec<PoolView>,
    problems: usize,
    failing: Vec<String>,
    connections: u64,
    refusals: Vec<(&'static str, u64)>,
    traffic: Vec<TrafficView>,
    counted: Vec<Counted>,
    vhosts: Vec<VhostView>,
}

struct Gauge {
    name: String,
    kind: String,
    size: u64,
    /// What a volume has of its pool.
    allocated: Option<u64>,
    open: bool,
    mirror: Option<MirrorView>,
    parity: Option<ParityView>,
    flash_cache: Option<FlashCacheView>,
    paths: Vec<PathView>,
}

impl Metrics {
    /// The metrics of `node`, and the requests to [`update`](Self::update) them and to say when that is done.
    pub fn new(node: &Node) -> (Metrics, mpsc::Receiver<oneshot::Sender<()>>) {
        let (refresh, requests) = mpsc::channel(SCRAPES_MAX);
        let names = Names::new(&node.config().node.console_names);
        (Metrics { reactors: node.reactors().meters(), objects: Arc::default(), refresh, names }, requests)
    }

    /// Notes which objects there are.
    pub async fn update(&self, node: &Node) {
        let devices = node.device_list().into_iter();
        let devices = devices.map(|device| {
            let DeviceView { name, kind, size, mirror, parity, flash_cache, paths, open, .. } = device;
            Gauge { name, kind, size, allocated: None, open, mirror, parity, flash_cache, paths }
        });
        let pools = node.pool_list().await;
        let volumes = node.volume_list(&pools).into_iter();
        let volumes = volumes.map(|volume| {
            let (name, size, open) = (volume.name, volume.size, volume.state == "open");
            let (mirror, parity, flash_cache, paths) = (None, None, None, Vec::new());
            let allocated = volume.allocated;
            Gauge { name, kind: "volume".into(), size, allocated, open, mirror, parity, flash_cache, paths }
        });
        let (problems, failing) = (node.problems(&pools).len(), node.failing(&pools));
        let (seen, traffic) = (node.exporter().counters().await, node.traffic().await);
        let mut objects = self.objects.lock().expect("nothing panics while holding it");
        objects.updated = Some(Instant::now());
        objects.devices = devices.collect();
        objects.volumes = volumes.collect();
        objects.pools = pools;
        objects.problems = problems;
        objects.failing = failing;
        objects.connections = seen.connections;
        objects.refusals = seen.refusals;
        objects.traffic = traffic;
        objects.counted = node.counted();
        objects.vhosts = node.vhost_list();
    }

    /// Has the node note which objects there are; says whether it did. One that is stopping does not any more, and what was
    /// last known will do.
    async fn refreshed(&self) -> bool {
        let (done, refreshed) = oneshot::channel();
        self.refresh.send(done).await.is_ok() && refreshed.await.is_ok()
    }

    /// `/healthz` says so from now on.
    pub fn stopping(&self) {
        self.objects.lock().expect("nothing panics while holding it").stopping = true;
    }

    fn render(&self) -> String {
        let mut out = String::new();
        let objects = self.objects.lock().expect("nothing panics while holding it");
        let mut family = |name: &str, kind: &str, help: &str, lines: Vec<(String, f64)>| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in lines {
                let _ = writeln!(out, "{name}{labels} {value}");
            }
        };
        family(
            "remuda_info",
            "gauge",
            "The program.",
            vec![(format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0)],
        );
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mut time = Vec::new();
        let mut sleeps = Vec::new();
        for (index, meter) in self.reactors.iter().enumerate() {
            let counters = meter.read();
            for (state, ns) in [("busy", counters.busy_ns), ("spin", counters.spin_ns), ("sleep", counters.sleep_ns)] {
                time.push((format!("{{reactor=\"{index}\",state=\"{state}\"}}"), seconds(ns)));
            }
            sleeps.push((format!("{{reactor=\"{index}\"}}"), counters.sleeps as f64));
        }
        family("remuda_reactor_seconds_total", "counter", "Where a reactor's time went.", time);
        family("remuda_reactor_sleeps_total", "counter", "Times a reactor went to sleep.", sleeps);
        let sizes = |gauges: &[Gauge]| {
            let each = gauges.iter();
            each.map(|one| (format!("{{name=\"{}\",kind=\"{}\"}}", one.name, one.kind), one.size as f64)).collect()
        };
        let open = |gauges: &[Gauge]| {
            let each = gauges.iter();
            each.map(|one| (format!("{{name=\"{}\",kind=\"{}\"}}", one.name, one.kind), one.open as u8 as f64))
                .collect()
        };
        let problems = vec![(String::new(), objects.problems as f64)];
        family("remuda_problems", "gauge", "Things that want attention; 'remuda status' lists them.", problems);
        let failing = vec![(String::new(), objects.failing.len() as f64)];
        family("remuda_failing", "gauge", "Those because of which hosts do not get what they should.", failing);
        family("remuda_device_size_bytes", "gauge", "Size of a device.", sizes(&objects.devices));
        family("remuda_device_open", "gauge", "1 if a device is open.", open(&objects.devices));
        family("remuda_volume_size_bytes", "gauge", "Size of a volume.", sizes(&objects.volumes));
        let allocated = objects.volumes.iter().filter_map(|volume| {
            let labels = format!("{{name=\"{}\",kind=\"{}\"}}", volume.name, volume.kind);
            Some((labels, volume.allocated? as f64))
        });
        let help = "Bytes of its pool that a volume has for itself.";
        family("remuda_volume_allocated_bytes", "gauge", help, allocated.collect());
        family("remuda_volume_open", "gauge", "1 if a volume is open.", open(&objects.volumes));
        family(
            "remuda_nvmf_connections",
            "gauge",
            "TCP connections of hosts.",
            vec![(String::new(), objects.connections as f64)],
        );
        let refusals = objects.refusals.iter();
        let refusals = refusals.map(|(reason, count)| (format!("{{reason=\"{reason}\"}}"), *count as f64)).collect();
        family("remuda_host_refusals_total", "counter", "Hosts that were turned away.", refusals);
        render_traffic(&mut out, &objects.traffic);
        render_paths(&mut out, &objects.devices);
        render_mirrors(&mut out, &objects.devices);
        render_parities(&mut out, &objects.devices);
        render_flash_caches(&mut out, &objects.devices);
        render_pools(&mut out, &objects.pools);
        render_written(&mut out, &objects.pools);
        render_flattening(&mut out, &objects.pools);
        render_vhosts(&mut out, &objects.vhosts);
        render_counted(&mut out, &objects.counted);
        out
    }
}

/// Upper bounds of the exported latency buckets, nanoseconds.
const BOUNDS_NS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

type ShardSeries = (&'static str, &'static str, &'static str, fn(&ShardNumbers) -> u64);

/// What is told of every shard: name, type, help and value.
const SHARD_SERIES: [ShardSeries; 44] = [
    ("remuda_pool_log_bytes", "gauge", "Log of a shard.", |shard| shard.log_bytes),
    ("remuda_pool_log_free_bytes", "gauge", "Log that can be written.", |shard| shard.log_free_bytes),
    ("remuda_pool_dirty_bytes", "gauge", "Bytes whose newest copy is in the log alone.", |shard| shard.dirty_bytes),
    ("remuda_pool_extents", "gauge", "Extents of 4 MiB.", |shard| shard.extents),
    ("remuda_pool_free_extents", "gauge", "Extents that no volume has.", |shard| shard.free_extents),
    ("remuda_pool_unusable_extents", "gauge", "Extents that refuse writes.", |shard| shard.unusable_extents),
    ("remuda_pool_user_write_bytes_total", "counter", "Bytes written by hosts.", |shard| shard.user_write_bytes),
    ("remuda_pool_user_read_bytes_total", "counter", "Bytes read by hosts.", |shard| shard.user_read_bytes),
    ("remuda_pool_log_hit_bytes_total", "counter", "Bytes read from the log.", |shard| shard.log_hit_bytes),
    ("remuda_pool_flattened_bytes_total", "counter", "Bytes written by flattening volumes.", |shard| {
        shard.flattened_bytes
    }),
    ("remuda_pool_log_write_bytes_total", "counter", "Bytes written to the log device.", |shard| shard.log_write_bytes),
    (
        "remuda_pool_capacity_write_bytes_total",
        "counter",
        "Bytes written to the capacity device, metadata included.",
        |shard| shard.capacity_write_bytes,
    ),
    ("remuda_pool_bands", "gauge", "Bands of a shaped pool.", |shard| shard.bands),
    ("remuda_pool_free_bands", "gauge", "Bands that can be written.", |shard| shard.free_bands),
    ("remuda_pool_pending_bands", "gauge", "Bands that are free with the next checkpoint.", |shard| {
        shard.pending_bands
    }),
    ("remuda_pool_retired_bands", "gauge", "Bands that have refused writes.", |shard| shard.retired_bands),
    ("remuda_pool_band_valid_bytes", "gauge", "Bytes in bands that volumes have.", |shard| shard.band_valid_bytes),
    ("remuda_pool_band_total_bytes", "gauge", "Bytes that bands hold at most.", |shard| shard.band_total_bytes),
    ("remuda_pool_collected_bytes_total", "counter", "Bytes that were moved between bands.", |shard| {
        shard.collected_bytes
    }),
    (
        "remuda_pool_reinserted_bytes_total",
        "counter",
        "Bytes written often, which went to the log once more.",
        |shard| shard.reinserted_bytes,
    ),
    ("remuda_pool_padding_bytes_total", "counter", "Headers and padding written to bands.", |shard| {
        shard.padding_bytes
    }),
    ("remuda_pool_gc_debt_bytes", "gauge", "Bytes that garbage collection is behind.", |shard| shard.gc_debt_bytes),
    ("remuda_pool_gc_debt_limit_bytes", "gauge", "The debt at which writers are slowed down.", |shard| {
        shard.gc_debt_max_bytes
    }),
    ("remuda_pool_checkpoints_total", "counter", "Checkpoints made.", |shard| shard.checkpoints),
    ("remuda_pool_replay_records", "gauge", "Records that a crash now would have replayed.", |shard| {
        shard.replay_records
    }),
    ("remuda_pool_dirty_slices", "gauge", "Slices of 64 MiB that may have something in the log alone.", |shard| {
        // All of them where nothing survives without the log device.
        shard.dirty_slices.unwrap_or_else(|| shard.extents.saturating_sub(shard.free_extents).div_ceil(16))
    }),
    ("remuda_pool_corrupt_blocks_total", "counter", "Blocks that failed their checksum.", |shard| shard.corrupt_blocks),
    ("remuda_pool_lost_blocks_total", "counter", "Blocks that were lost.", |shard| shard.lost_blocks),
    ("remuda_pool_lost_bytes", "gauge", "Bytes that are known to be lost, until they are written.", |shard| {
        shard.lost_bytes
    }),
    ("remuda_pool_healed_blocks_total", "counter", "Damaged blocks written anew from another version.", |shard| {
        shard.healed_blocks
    }),
    ("remuda_pool_damaged_headers_total", "counter", "Damaged headers of stripes that scrubs found in use.", |shard| {
        shard.damaged_headers
    }),
    ("remuda_pool_damaged_metadata_total", "counter", "Damaged copies of metadata that scrubs found.", |shard| {
        shard.damaged_metadata
    }),
    ("remuda_pool_repaired_metadata_total", "counter", "Of these, those that were written anew.", |shard| {
        shard.repaired_metadata
    }),
    ("remuda_pool_disks", "gauge", "Disks that seek and are destaged to each by itself.", |shard| shard.disks),
    ("remuda_pool_read_disks", "gauge", "Of those, disks left alone while hosts read them.", |shard| shard.read_disks),
    ("remuda_pool_waiting_writes", "gauge", "Writes waiting for room in the log.", |shard| shard.waiting_writes),
    ("remuda_pool_waits_total", "counter", "Writes that had to wait for room in the log.", |shard| shard.waits),
    ("remuda_pool_memory_bytes", "gauge", "Memory of a shard's structures.", |shard| shard.memory_bytes),
    ("remuda_pool_scrub_running", "gauge", "1 while a scrub runs.", |shard| shard.scrubs_running),
    ("remuda_pool_scrubbed_extents", "gauge", "Extents that the scrub has passed.", |shard| shard.scrubbed_extents),
    ("remuda_pool_scrub_bad_blocks", "gauge", "Blocks that the scrub could not read.", |shard| shard.scrub_bad_blocks),
    ("remuda_pool_scrubs_total", "counter", "Scrubs that came to their end.", |shard| shard.scrubs),
    ("remuda_pool_trouble", "gauge", "1 while upkeep of a shard fails, or its log refuses writes.", |shard| {
        (shard.trouble.is_some() || shard.log_trouble.is_some()) as u64
    }),
    ("remuda_pool_resting_segments", "gauge", "Segments of the log that are left alone after an error.", |shard| {
        shard.resting_segments
    }),
];

type TrafficSeries = (&'static str, &'static str, fn(&TrafficView) -> u64);

/// What is told of every host: name, help and value.
const TRAFFIC_SERIES: [TrafficSeries; 5] = [
    ("remuda_host_reads_total", "Reads of a host since it connected.", |host| host.reads),
    ("remuda_host_read_bytes_total", "Bytes that a host has read since it connected.", |host| host.read_bytes),
    ("remuda_host_writes_total", "Writes of a host since it connected.", |host| host.writes),
    ("remuda_host_written_bytes_total", "Bytes that a host has written since it connected.", |host| host.written_bytes),
    ("remuda_host_other_commands_total", "Other I/O commands of a host since it connected.", |host| host.others),
];

/// Hosts that are connected or limited.
fn render_traffic(out: &mut String, hosts: &[TrafficView]) {
    for (name, help, value) in TRAFFIC_SERIES {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
        for host in hosts {
            // A name is what a host says it is.
            let label = host.host.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(out, "{name}{{host=\"{label}\"}} {}", value(host));
        }
    }
}

/// Remote namespaces in use and their paths.
fn render_paths(out: &mut String, devices: &[Gauge]) {
    type Series = (&'static str, &'static str, &'static str, fn(&PathView) -> u64);
    const PATHS: [Series; 6] = [
        ("remuda_path_connected", "gauge", "1 if a path has an association.", |path| path.connected as u64),
        ("remuda_path_optimized", "gauge", "1 if a path is connected and optimised.", |path| {
            (path.connected && path.state == "optimized") as u64
        }),
        ("remuda_path_operations_total", "counter", "Operations sent over a path.", |path| path.operations),
        ("remuda_path_lost_total", "counter", "Operations sent again since their connection was lost.", |path| {
            path.lost
        }),
        ("remuda_path_refused_total", "counter", "Operations refused for the sake of the path.", |path| path.refused),
        ("remuda_path_reconnects_total", "counter", "Associations built again.", |path| path.reconnects),
    ];
    for (name, kind, help, value) in PATHS {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (device, path) in
            devices.iter().flat_map(|device| device.paths.iter().map(move |path| (&device.name, path)))
        {
            let _ = writeln!(out, "{name}{{name=\"{device}\",path=\"{}\"}} {}", path.address, value(path));
        }
    }
}

/// Mirrors in use and their legs.
fn render_mirrors(out: &mut String, devices: &[Gauge]) {
    type Series<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);
    const MIRRORS: [Series<MirrorView>; 5] = [
        ("remuda_mirror_degraded", "gauge", "1 if a leg lacks data.", |mirror| mirror.degraded as u64),
        ("remuda_mirror_regions", "gauge", "Regions of a mirror.", |mirror| mirror.regions),
        ("remuda_mirror_dirty_regions", "gauge", "Regions whose legs may differ.", |mirror| mirror.dirty_regions),
        ("remuda_mirror_resync_left_regions", "gauge", "Regions still to be copied.", |mirror| {
            mirror.resync_left_regions
        }),
        ("remuda_mirror_resync_bytes_per_second", "gauge", "Speed of copying.", |mirror| mirror.resync_bytes_per_s),
    ];
    const LEGS: [Series<LegView>; 3] = [
        ("remuda_mirror_leg_in_sync", "gauge", "1 if a leg has all data.", |leg| (leg.state == "in sync") as u64),
        (
            "remuda_mirror_leg_read_errors_total",
            "counter",
            "Reads that failed on a leg, or that a pool found wrong.",
            |leg| leg.read_errors,
        ),
        ("remuda_mirror_leg_repairs_total", "counter", "Times a leg was repaired from another.", |leg| leg.repairs),
    ];
    let mirrors = || devices.iter().filter_map(|device| Some((&device.name, device.mirror.as_ref()?)));
    for (name, kind, help, value) in MIRRORS {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        mirrors().for_each(|(mirror, view)| {
            let _ = writeln!(out, "{name}{{name=\"{mirror}\"}} {}", value(view));
        });
    }
    for (name, kind, help, value) in LEGS {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (mirror, leg) in mirrors().flat_map(|(mirror, view)| view.legs.iter().map(move |leg| (mirror, leg))) {
            let _ = writeln!(out, "{name}{{name=\"{mirror}\",leg=\"{}\"}} {}", leg.device, value(leg));
        }
    }
}

/// Parity devices in use and their members.
fn render_parities(out: &mut String, devices: &[Gauge]) {
    type Series<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);
    const PARITIES: [Series<ParityView>; 5] = [
        ("remuda_parity_degraded", "gauge", "1 if a member lacks data.", |parity| parity.degraded as u64),
        ("remuda_parity_rebuild_left_bytes", "gauge", "Bytes that a member being rebuilt lacks.", |parity| {
            parity.rebuild.as_ref().map_or(0, |rebuild| rebuild.left_bytes)
        }),
        ("remuda_parity_rebuild_bytes_per_second", "gauge", "Speed of a rebuild.", |parity| {
            parity.rebuild.as_ref().map_or(0, |rebuild| rebuild.bytes_per_s)
        }),
        ("remuda_parity_reconstructed_reads_total", "counter", "Reads answered from the other members.", |parity| {
            parity.reconstructed_reads
        }),
        ("remuda_parity_lost_blocks_total", "counter", "Blocks that could not be rebuilt.", |parity| {
            parity.lost_blocks
        }),
    ];
    const MEMBERS: [Series<LegView>; 3] = [
        ("remuda_parity_member_in_sync", "gauge", "1 if a member has all its data.", |member| {
            (member.state == "in sync") as u64
        }),
        (
            "remuda_parity_member_read_errors_total",
            "counter",
            "Reads that failed on a member, or that a pool found wrong.",
            |member| member.read_errors,
        ),
        ("remuda_parity_member_repairs_total", "counter", "Times a member was repaired from the others.", |member| {
            member.repairs
        }),
    ];
    let parities = || devices.iter().filter_map(|device| Some((&device.name, device.parity.as_ref()?)));
    for (name, kind, help, value) in PARITIES {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        parities().for_each(|(parity, view)| {
            let _ = writeln!(out, "{name}{{name=\"{parity}\"}} {}", value(view));
        });
    }
    for (name, kind, help, value) in MEMBERS {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (parity, member) in parities().flat_map(|(parity, view)| view.members.iter().map(move |one| (parity, one)))
        {
            let _ = writeln!(out, "{name}{{name=\"{parity}\",member=\"{}\"}} {}", member.device, value(member));
        }
    }
}

/// Flash caches in use.
fn render_flash_caches(out: &mut String, devices: &[Gauge]) {
    type Series = (&'static str, &'static str, &'static str, fn(&FlashCacheView) -> u64);
    const CACHES: [Series; 11] = [
        ("remuda_flash_cache_on", "gauge", "1 if flash is used.", |cache| (cache.mode == "on") as u64),
        ("remuda_flash_cache_hit_bytes_total", "counter", "Bytes read from flash.", |cache| cache.hit_bytes),
        ("remuda_flash_cache_miss_bytes_total", "counter", "Bytes read from the slow device.", |cache| {
            cache.miss_bytes
        }),
        ("remuda_flash_cache_cached_bytes", "gauge", "Bytes of blocks in the cache.", |cache| cache.cached_bytes),
        ("remuda_flash_cache_capacity_bytes", "gauge", "Bytes of blocks that it can hold.", |cache| {
            cache.capacity_bytes
        }),
        ("remuda_flash_cache_written_bytes_total", "counter", "Bytes written to flash in its life.", |cache| {
            cache.written_total_bytes
        }),
        ("remuda_flash_cache_written_day_bytes", "gauge", "Bytes written to flash in 24 hours.", |cache| {
            cache.written_day_bytes
        }),
        ("remuda_flash_cache_write_budget_bytes", "gauge", "Most bytes written to flash in a day.", |cache| {
            cache.write_budget_bytes
        }),
        ("remuda_flash_cache_read_errors_total", "counter", "Reads of flash that failed or were wrong.", |cache| {
            cache.read_errors
        }),
        ("remuda_flash_cache_write_errors_total", "counter", "Writes of flash that failed.", |cache| {
            cache.write_errors
        }),
        ("remuda_flash_cache_late_total", "counter", "Operations of flash that were not answered in time.", |cache| {
            cache.late
        }),
    ];
    for (name, kind, help, value) in CACHES {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (device, cache) in devices.iter().filter_map(|device| Some((&device.name, device.flash_cache.as_ref()?))) {
            let _ = writeln!(out, "{name}{{name=\"{device}\"}} {}", value(cache));
        }
    }
}

/// Volumes that are being flattened, or of which that has failed.
fn render_flattening(out: &mut String, pools: &[PoolView]) {
    let (name, help) = (
        "remuda_volume_flatten_ratio",
        "How much of flattening a volume is done, while it is under way or has failed.",
    );
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
    for (pool, open) in pools.iter().filter_map(|pool| Some((&pool.name, pool.open.as_ref()?))) {
        for view in &open.flattening {
            let _ = writeln!(out, "{name}{{pool=\"{pool}\",volume=\"{}\"}} {}", view.volume, view.share());
        }
    }
}

/// Pools, and their shards while they are open.
fn render_pools(out: &mut String, pools: &[PoolView]) {
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&PoolView) -> Option<f64>| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for pool in pools {
            if let Some(value) = value(pool) {
                let _ = writeln!(out, "{name}{{pool=\"{}\"}} {value}", pool.name);
            }
        }
    };
    family("remuda_pool_open", "gauge", "1 if the pool is open.", &|pool| Some(pool.open.is_some() as u8 as f64));
    let forgotten = |pool: &PoolView| pool.forgetting.map(|steps| steps.done_share);
    family("remuda_pool_forget_log_ratio", "gauge", "How much of giving up a log is done, while it is.", &forgotten);
    let open = |of: fn(&PoolNumbers) -> f64| move |pool: &PoolView| pool.open.as_ref().map(of);
    family("remuda_pool_volumes", "gauge", "Volumes of a pool.", &open(|open| open.volumes as f64));
    family("remuda_pool_snapshots", "gauge", "Snapshots of a pool's volumes.", &open(|open| open.snapshots as f64));
    let provisioned = open(|open| open.provisioned_bytes as f64);
    family("remuda_pool_provisioned_bytes", "gauge", "Sizes of a pool's volumes.", &provisioned);
    let allocated = open(|open| open.allocated_bytes as f64);
    family("remuda_pool_allocated_bytes", "gauge", "Bytes that volumes and snapshots have in a pool.", &allocated);
    let going = open(|open| open.going as f64);
    family("remuda_pool_deleting", "gauge", "Deleted volumes and snapshots of a pool that have not gone yet.", &going);
    family("remuda_pool_capacity_bytes", "gauge", "Capacity of a pool.", &open(|open| open.capacity_bytes as f64));
    family(
        "remuda_pool_recovered_records",
        "gauge",
        "Records replayed when it was opened.",
        &open(|open| open.recovered_records as f64),
    );
    family(
        "remuda_pool_recovery_seconds",
        "gauge",
        "Time that opening it took.",
        &open(|open| open.recovered_ns as f64 / 1e9),
    );
    let scrubbed = |pool: &PoolView| pool.open.as_ref()?.scrub.ended_s.map(|seconds| seconds as f64);
    let help = "When a scrub came to its end last, in seconds since 1970.";
    family("remuda_pool_scrub_ended_timestamp_seconds", "gauge", help, &scrubbed);
    for (name, kind, help, value) in SHARD_SERIES {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for pool in pools {
            for (number, shard) in pool.open.iter().flat_map(|open| &open.shards).enumerate() {
                let _ = writeln!(out, "{name}{{pool=\"{}\",shard=\"{number}\"}} {}", pool.name, value(shard));
            }
        }
    }
}

/// What open pools have written: by what it was, and by device.
fn render_written(out: &mut String, pools: &[PoolView]) {
    let open = || pools.iter().filter_map(|pool| Some((&pool.name, pool.open.as_ref()?)));
    let name = "remuda_pool_stream_write_bytes_total";
    let _ = writeln!(out, "# HELP {name} Bytes written to a pool's devices, by what they were.\n# TYPE {name} counter");
    for (pool, view) in open().flat_map(|(pool, open)| open.streams.iter().map(move |view| (pool, view))) {
        let (to, stream) = (&view.to, &view.stream);
        let _ = writeln!(out, "{name}{{pool=\"{pool}\",to=\"{to}\",stream=\"{stream}\"}} {}", view.bytes);
    }
    let name = "remuda_pool_device_write_bytes_total";
    let _ = writeln!(out, "# HELP {name} Bytes written to a device below a pool.\n# TYPE {name} counter");
    for (pool, view) in open().flat_map(|(pool, open)| open.devices.iter().map(move |view| (pool, view))) {
        let Some(bytes) = view.bytes else { continue };
        let (device, of) = (view.device.replace('\\', "\\\\").replace('"', "\\\""), &view.of);
        let (kind, depth) = (&view.kind, view.depth);
        let _ = writeln!(
            out,
            "{name}{{pool=\"{pool}\",of=\"{of}\",name=\"{device}\",kind=\"{kind}\",depth=\"{depth}\"}} {bytes}"
        );
    }
}

type VhostSeries = (&'static str, &'static str, &'static str, fn(&VhostView) -> u64);

/// What is told of every door for a virtual machine: name, type, help and value.
const VHOST_SERIES: [VhostSeries; 9] = [
    ("remuda_vhost_connected", "gauge", "1 while a virtual machine is connected.", |door| door.peer.is_some() as u64),
    ("remuda_vhost_queues", "gauge", "Queues at work.", |door| door.queues as u64),
    ("remuda_vhost_read_bytes_total", "counter", "Bytes read by guests.", |door| door.counters.read_bytes),
    ("remuda_vhost_write_bytes_total", "counter", "Bytes written by guests.", |door| door.counters.write_bytes),
    ("remuda_vhost_errors_total", "counter", "Requests that failed.", |door| door.counters.errors),
    ("remuda_vhost_kicks_total", "counter", "Kicks by guests.", |door| door.counters.kicks),
    ("remuda_vhost_calls_total", "counter", "Calls of guests.", |door| door.counters.calls),
    ("remuda_vhost_stopped_queues_total", "counter", "Queues stopped for what was in them.", |door| {
        door.counters.queues_stopped
    }),
    ("remuda_vhost_resubmitted_total", "counter", "Requests carried on from lost connections.", |door| {
        door.counters.resubmitted
    }),
];

/// Doors for virtual machines.
fn render_vhosts(out: &mut String, doors: &[VhostView]) {
    for (name, kind, help, value) in VHOST_SERIES {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for door in doors {
            let _ = writeln!(out, "{name}{{name=\"{}\",volume=\"{}\"}} {}", door.name, door.volume, value(door));
        }
    }
    let name = "remuda_vhost_requests_total";
    let _ = writeln!(out, "# HELP {name} Requests of guests that have ended.\n# TYPE {name} counter");
    for door in doors {
        let VhostView { name: door_name, volume, counters, .. } = door;
        for (kind, count) in [
            ("read", counters.reads),
            ("write", counters.writes),
            ("flush", counters.flushes),
            ("discard", counters.discards),
            ("other", counters.other),
        ] {
            let _ = writeln!(out, "{name}{{name=\"{door_name}\",volume=\"{volume}\",kind=\"{kind}\"}} {count}");
        }
    }
}

/// Operations, bytes, failures and latency histograms of volumes and devices.
fn render_counted(out: &mut String, counted: &[Counted]) {
    let all: Vec<_> = counted.iter().map(|one| (one, one.read(), one.device.info().block_size as u64)).collect();
    let heads = [
        ("remuda_io_operations_total", "Operations that have ended."),
        ("remuda_io_bytes_total", "Bytes of operations that succeeded."),
        ("remuda_io_errors_total", "Operations that failed."),
    ];
    for (index, (name, help)) in heads.into_iter().enumerate() {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
        for (one, stats, block_size) in &all {
            for op in Op::ALL {
                let counts = stats.of(op);
                let value = [counts.ops, counts.blocks * block_size, counts.errors][index];
                if counts.ops > 0 {
                    let labels = format!("name=\"{}\",kind=\"{}\",op=\"{}\"", one.name(), one.kind, op.name());
                    let _ = writeln!(out, "{name}{{{labels}}} {value}");
                }
            }
        }
    }
    let name = "remuda_io_queue_depth";
    let _ = writeln!(out, "# HELP {name} Operations under way.\n# TYPE {name} gauge");
    for (one, stats, _) in &all {
        let _ = writeln!(out, "{name}{{name=\"{}\",kind=\"{}\"}} {}", one.name(), one.kind, stats.depth);
    }
    let name = "remuda_io_latency_seconds";
    let _ = writeln!(out, "# HELP {name} Time from submission to completion.\n# TYPE {name} histogram");
    for (one, stats, _) in &all {
        for class in LatencyClass::ALL {
            let histogram = stats.latency_of(class);
            if histogram.count() == 0 {
                continue;
            }
            let labels = format!("name=\"{}\",kind=\"{}\",op=\"{}\"", one.name(), one.kind, class.name());
            for bound in BOUNDS_NS {
                let (le, count) = (bound as f64 / 1e9, histogram.count_at_most(bound));
                let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{le}\"}} {count}");
            }
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", histogram.count());
            let _ = writeln!(out, "{name}_sum{{{labels}}} {}", histogram.sum() as f64 / 1e9);
            let _ = writeln!(out, "{name}_count{{{labels}}} {}", histogram.count());
        }
    }
}

/// Opens the listening socket.
pub async fn bind(address: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Serves for as long as it is polled.
pub async fn serve(listener: TcpListener, metrics: Metrics, console: Option<Console>) {
    let scrapes = get(show_metrics).route_layer(from_fn_with_state(metrics.names.clone(), guard_scrapes));
    // Health names objects and reasons, as metrics do.
    let health = get(show_health).route_layer(from_fn_with_state(metrics.names.clone(), guard_scrapes));
    let router = Router::new()
        .route("/metrics", scrapes)
        .route("/healthz", health)
        .route("/livez", get(|| async { "ok\n" }))
        .with_state(metrics);
    let router = match console {
        Some(console) => console.add_to(router),
        None => router,
    };
    connections::serve(listener, router, connections::LIMITS).await;
}

async fn show_metrics(State(metrics): State<Metrics>) -> impl IntoResponse {
    // A scrape of a node that stops, or waits for a device, has what was last known.
    let _ = tokio::time::timeout(SCRAPE_PATIENCE, metrics.refreshed()).await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render())
}

async fn show_health(State(metrics): State<Metrics>) -> (StatusCode, String) {
    let is_stopping = || metrics.objects.lock().expect("nothing panics while holding it").stopping;
    // A node that has much to do tells what it knew last, and within the patience of whoever asks.
    let is_fresh = !is_stopping() && tokio::time::timeout(HEALTH_PATIENCE, metrics.refreshed()).await == Ok(true);
    let objects = metrics.objects.lock().expect("nothing panics while holding it");
    if objects.stopping {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_string());
    }
    let (status, mut text) = objects.health();
    if !is_fresh {
        let age = objects.updated.map_or(0, |updated| updated.elapsed().as_secs());
        text += &format!("as it was {age} s ago: the node has much to do, and did not answer in time\n");
    }
    (status, text)
}

impl Objects {
    /// How the node is, by what was last noted.
    fn health(&self) -> (StatusCode, String) {
        if !self.failing.is_empty() {
            let lines = self.failing.iter().map(|line| format!("{line}\n"));
            (StatusCode::SERVICE_UNAVAILABLE, std::iter::once("failing\n".to_string()).chain(lines).collect())
        } else if self.problems > 0 {
            {
                let plural = if self.problems == 1 { "" } else { "s" };
                (StatusCode::OK, format!("degraded: {} warning{plural}, see 'remuda status'\n", self.problems))
            }
        } else {
            (StatusCode::OK, "ok\n".to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_that_is_old_says_so_and_stays_what_it_was() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (refresh, mut asked) = mpsc::channel::<oneshot::Sender<()>>(1);
            let metrics = Metrics { reactors: Vec::new(), objects: Arc::default(), refresh, names: Names::new(&[]) };
            metrics.objects.lock().unwrap().updated = Some(Instant::now());
            let answers = tokio::spawn(async move {
                asked.recv().await.expect("the first").send(()).expect("somebody waits");
                // The others get none.
                while asked.recv().await.is_some() {}
            });
            let told = async || show_health(State(metrics.clone())).await;
            assert_eq!(told().await, (StatusCode::OK, "ok\n".to_string()));
            let (status, text) = told().await;
            assert!(
                status == StatusCode::OK && text.starts_with("ok\nas it was ") && text.contains(" s ago"),
                "{text}"
            );
            metrics.objects.lock().unwrap().failing = vec!["pool 'p' (closed): gone".to_string()];
            let (status, text) = told().await;
            assert!(status == StatusCode::SERVICE_UNAVAILABLE && text.starts_with("failing\npool 'p'"), "{text}");
            assert!(text.contains(" s ago"), "{text}");
            metrics.stopping();
            assert_eq!(told().await, (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_string()));
            answers.abort();
        });
    }
}
