//! What watchers are sent: chosen facts, no definitions, no keys. Bounded: of long lists the most telling part, and how
//! many were left off.

use super::rates::{Between, Counts, Latency, Rates};
use crate::log::Line;
use crate::node::flatten::FlattenWord;
use crate::node::look::Look;
use crate::node::pool_view::{LayoutView, PoolNumbers, PoolView, ShardNumbers};
use crate::node::scrub_view::ScrubState;
use crate::node::view::{ConnectedHost, DeviceView, MirrorView, ReactorView, SubsystemView, VolumeView};
use serde::Serialize;
use std::time::Duration;
use uuid::Uuid;

/// Rows of each list.
const ROWS_MAX: usize = 200;
/// Problems told.
const PROBLEMS_MAX: usize = 50;

/// Rows of a list, and how many more there are.
#[derive(Serialize)]
pub struct Rows<T> {
    rows: Vec<T>,
    left_off: usize,
}

impl<T> Rows<T> {
    /// The first rows by `rank` (the smallest first), in the order in which they came.
    fn of<R: Ord>(rows: impl Iterator<Item = T>, max: usize, rank: impl Fn(&T) -> R) -> Rows<T> {
        let mut rows: Vec<(usize, T)> = rows.enumerate().collect();
        let left_off = rows.len().saturating_sub(max);
        if left_off > 0 {
            rows.sort_by_key(|(_, row)| rank(row));
            rows.truncate(max);
            rows.sort_by_key(|(place, _)| *place);
        }
        Rows { rows: rows.into_iter().map(|(_, row)| row).collect(), left_off }
    }
}

/// A sample: how things are, and what happened since the look before.
#[derive(Serialize)]
pub struct Sample {
    /// Counts samples of this process.
    pub seq: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What `rates` are measured over.
    pub interval_ms: u64,
    node: NodeFacts,
    problems: Rows<String>,
    log: Vec<Line>,
    /// All volumes together.
    pub volumes_rates: Rates,
    reactors: Vec<Reactor>,
    pools: Rows<Pool>,
    volumes: Rows<Volume>,
    devices: Rows<Device>,
    subsystems: Rows<Subsystem>,
    hosts: Rows<ConnectedHost>,
}

#[derive(Serialize)]
struct NodeFacts {
    version: String,
    id: Uuid,
    pid: u32,
    uptime_ns: u64,
    addresses: Vec<String>,
    connections: u64,
}

/// Shares of the interval, 0 to 1.
#[derive(Serialize)]
struct Reactor {
    index: usize,
    core: Option<usize>,
    busy: f64,
    spin: f64,
    sleep: f64,
    tasks: usize,
    buffer_bytes: usize,
}

#[derive(Serialize)]
struct Pool {
    name: String,
    state: String,
    problems: Vec<String>,
    numbers: Option<PoolFacts>,
}

#[derive(Serialize)]
struct PoolFacts {
    layout: LayoutView,
    /// The flash cache that reads go through.
    cache: Option<String>,
    drives_amplification: Option<f64>,
    volumes: usize,
    capacity_bytes: u64,
    settling: bool,
    scrub: ScrubState,
    scrub_share: Option<f64>,
    recovered_ns: u64,
    flattening: Vec<Flattening>,
    total: ShardNumbers,
    shards: Vec<ShardNumbers>,
}

#[derive(Serialize)]
struct Flattening {
    volume: String,
    share: f64,
    state: FlattenWord,
}

#[derive(Serialize)]
struct Volume {
    name: String,
    place: String,
    size: u64,
    block_size: u32,
    exports: Vec<String>,
    state: String,
    rates: Option<Rates>,
}

#[derive(Serialize)]
struct Device {
    name: String,
    kind: String,
    size: u64,
    free: u64,
    used_by: Vec<String>,
    open: bool,
    state: String,
    mirror: Option<MirrorView>,
    rates: Option<Rates>,
}

#[derive(Serialize)]
struct Subsystem {
    nqn: String,
    allow_any_host: bool,
    hosts_allowed: usize,
    connected: usize,
    namespaces: Rows<Namespace>,
}

#[derive(Serialize)]
struct Namespace {
    nsid: u32,
    volume: String,
    size: u64,
    reservation: Option<Reservation>,
}

/// Without the keys: whoever knows one can act for its host.
#[derive(Serialize)]
struct Reservation {
    #[serde(rename = "type")]
    kind: Option<String>,
    persistent: bool,
    registrants: Vec<Registrant>,
}

#[derive(Serialize)]
struct Registrant {
    host_id: Uuid,
    holder: bool,
}

/// The look before, as far as a sample needs it.
#[derive(Default)]
pub struct Before {
    counts: Counts,
    reactors: Vec<ReactorView>,
}

impl Sample {
    /// What `look` shows, compared with the look before it, `elapsed` ago; and what the next one compares with.
    pub fn of(
        look: Look,
        before: &Before,
        elapsed: Duration,
        (seq, at_ms): (u64, u64),
        log: Vec<Line>,
    ) -> (Sample, Before) {
        let Look { status, devices, pools, volumes, subsystems, counted, at: _, took: _ } = look;
        let (counts, between) = before.counts.read(&counted, elapsed);
        let reactors = status.reactors.iter();
        let reactors = reactors.map(|now| reactor(before.reactors.iter().find(|then| then.index == now.index), now));
        let idle = |rates: &Option<Rates>| std::cmp::Reverse(rates.map_or(0, |rates| rates.ops() as u64));
        let hosts = status.hosts.clone();
        let sample = Sample {
            seq,
            at_ms,
            interval_ms: elapsed.as_millis() as u64,
            node: NodeFacts {
                version: status.version,
                id: status.node_id,
                pid: status.pid,
                uptime_ns: status.uptime_ns,
                addresses: [status.nvmf_listen, status.nvmf_listen_tls].concat(),
                connections: status.connections,
            },
            problems: Rows::of(status.warnings.into_iter(), PROBLEMS_MAX, |_| 0),
            log,
            volumes_rates: between.volumes,
            reactors: reactors.collect(),
            pools: Rows::of(pools.into_iter().map(pool), ROWS_MAX, |pool| pool.state == "open"),
            volumes: Rows::of(volumes.into_iter().map(|view| volume(view, &between)), ROWS_MAX, |volume| {
                (volume.state == "open", idle(&volume.rates))
            }),
            devices: Rows::of(devices.into_iter().map(|view| device(view, &between)), ROWS_MAX, |device| {
                (device.open, idle(&device.rates))
            }),
            subsystems: Rows::of(subsystems.into_iter().map(|view| subsystem(view, &hosts)), ROWS_MAX, |subsystem| {
                std::cmp::Reverse(subsystem.connected)
            }),
            hosts: Rows::of(status.hosts.into_iter(), ROWS_MAX, |_| 0),
        };
        (sample, Before { counts, reactors: status.reactors })
    }

    /// The point of it that charts draw.
    pub fn point(&self) -> Point {
        let Rates { reads, writes, read_bytes, write_bytes, read, write, .. } = self.volumes_rates;
        Point { at_ms: self.at_ms, interval_ms: self.interval_ms, reads, writes, read_bytes, write_bytes, read, write }
    }
}

/// What charts draw of one sample.
#[derive(Clone, Copy, Serialize)]
pub struct Point {
    at_ms: u64,
    interval_ms: u64,
    reads: f64,
    writes: f64,
    read_bytes: f64,
    write_bytes: f64,
    read: Option<Latency>,
    write: Option<Latency>,
}

fn reactor(then: Option<&ReactorView>, now: &ReactorView) -> Reactor {
    let spent = |of: fn(&ReactorView) -> u64| of(now).saturating_sub(then.map_or(0, of)) as f64;
    let (busy, spin, sleep) = (spent(|one| one.busy_ns), spent(|one| one.spin_ns), spent(|one| one.sleep_ns));
    let all = (busy + spin + sleep).max(1.0);
    Reactor {
        index: now.index,
        core: now.core,
        busy: busy / all,
        spin: spin / all,
        sleep: sleep / all,
        tasks: now.tasks,
        buffer_bytes: now.buffer_bytes,
    }
}

fn pool(view: PoolView) -> Pool {
    let numbers = view.open.map(|open| {
        let PoolNumbers { layout, volumes, capacity_bytes, settling, scrub, recovered_ns, total, shards, .. } = open;
        let flattening = open.flattening.into_iter();
        let flattening = flattening.map(|of| Flattening { share: of.share(), volume: of.volume, state: of.state });
        let scrub_share = (scrub.extents_total > 0).then(|| scrub.extents_done as f64 / scrub.extents_total as f64);
        PoolFacts {
            layout,
            cache: view.cache,
            drives_amplification: open.drives_amplification,
            volumes,
            capacity_bytes,
            settling,
            scrub: scrub.state,
            scrub_share,
            recovered_ns,
            flattening: flattening.collect(),
            total,
            shards,
        }
    });
    Pool { name: view.name, state: view.state, problems: view.problems, numbers }
}

fn volume(view: VolumeView, between: &Between) -> Volume {
    let place = match (&view.pool, &view.device) {
        (Some(pool), _) => format!("pool {pool}"),
        (None, Some(device)) => format!("device {device}"),
        (None, None) => String::new(),
    };
    Volume {
        rates: between.each.get(&("volume", view.name.clone())).copied(),
        place,
        name: view.name,
        size: view.size,
        block_size: view.block_size,
        exports: view.exports,
        state: view.state,
    }
}

fn device(view: DeviceView, between: &Between) -> Device {
    let mut rates = between.each.iter().filter(|((kind, name), _)| *kind == view.kind && *name == view.name);
    Device {
        rates: rates.next().map(|(_, rates)| *rates),
        name: view.name,
        kind: view.kind,
        size: view.size,
        free: view.free,
        used_by: view.used_by,
        open: view.open,
        state: view.state,
        mirror: view.mirror,
    }
}

fn subsystem(view: SubsystemView, hosts: &[ConnectedHost]) -> Subsystem {
    let reservations = &view.reservations;
    let reservation_of = |nsid: u32| {
        let found = reservations.iter().find(|reservation| reservation.nsid == nsid)?;
        let registrants = found.registrants.iter();
        let registrants = registrants.map(|one| Registrant { host_id: one.host_id, holder: one.holder });
        let (kind, persistent) = (found.kind.clone(), found.persistent);
        Some(Reservation { kind, persistent, registrants: registrants.collect() })
    };
    let namespaces = view.namespaces.into_iter().map(|namespace| Namespace {
        nsid: namespace.nsid,
        volume: namespace.volume,
        size: namespace.size,
        reservation: reservation_of(namespace.nsid),
    });
    Subsystem {
        allow_any_host: view.allow_any_host,
        hosts_allowed: view.hosts.len(),
        connected: hosts.iter().filter(|host| host.subsystem == view.nqn).count(),
        namespaces: Rows::of(namespaces, ROWS_MAX, |namespace| namespace.reservation.is_none()),
        nqn: view.nqn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_keeps_what_ranks_first_in_its_place_and_counts_the_rest() {
        let rows = Rows::of([5, 1, 4, 2, 3].into_iter(), 3, |number| std::cmp::Reverse(*number));
        assert_eq!((rows.rows, rows.left_off), (vec![5, 4, 3], 2));
        let rows = Rows::of([2, 1].into_iter(), 3, |number| *number);
        assert_eq!((rows.rows, rows.left_off), (vec![2, 1], 0));
    }

    #[test]
    fn a_reactor_is_told_by_its_shares_of_the_interval() {
        let view = |busy_ns, spin_ns, sleep_ns| ReactorView {
            index: 0,
            core: Some(1),
            busy_ns,
            spin_ns,
            sleep_ns,
            tasks: 3,
            buffer_bytes: 0,
        };
        let shares = reactor(Some(&view(100, 0, 0)), &view(200, 100, 200));
        assert_eq!((shares.busy, shares.spin, shares.sleep), (0.25, 0.25, 0.5));
    }
}
