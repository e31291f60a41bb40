//! `remuda top`: what the node does now, per reactor, volume, device and host.

use super::exit::Failure;
use super::watch::{Shown, Watch};
use super::{Context, output, status, understood};
use crate::config::show_duration_ns;
use crate::node::stats::{CountedView, LatencyView, StatsView, TrafficView};
use crate::node::view::{ReactorView, StatusView};
use base::ByteSize;
use serde_json::{Value, json};
use std::time::Duration;

struct Look {
    status: StatusView,
    stats: StatsView,
}

pub fn top(context: &Context, watch: &Watch) -> Result<(), Failure> {
    let look = || {
        let stats = context.call("stats", json!({}))?;
        let status = context.call("node.status", json!({}))?;
        Ok(Look { status: understood(status)?, stats: understood(stats)? })
    };
    watch.run(context, look, show)
}

fn show(before: &Look, after: &Look, elapsed: Duration) -> Shown {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let reactors = pairs(&before.stats.reactors, &after.stats.reactors, |one, other| one.index == other.index);
    let reactors: Vec<ReactorView> = reactors.map(|(then, now)| reactor(then, now)).collect();
    let same = |one: &CountedView, other: &CountedView| one.name == other.name && one.kind == other.kind;
    let objects = pairs(&before.stats.objects, &after.stats.objects, same);
    let mut objects: Vec<Value> = objects.map(|(then, now)| object(then, now, seconds)).collect();
    // The busiest first; what does nothing keeps its order.
    objects.sort_by_key(|object| {
        std::cmp::Reverse(number(object, "reads_per_second") + number(object, "writes_per_second"))
    });
    let same = |one: &TrafficView, other: &TrafficView| one.host == other.host;
    let traffic = pairs(&before.stats.hosts, &after.stats.hosts, same);
    let mut traffic: Vec<Value> = traffic.map(|(then, now)| host(then, now, seconds)).collect();
    traffic.sort_by_key(|host| std::cmp::Reverse(number(host, "reads_per_second") + number(host, "writes_per_second")));
    let text = text(&reactors, &objects, &traffic, after);
    let (hosts, machines) = (json!(after.status.hosts), json!(after.status.machines));
    let json = json!({
        "reactors": reactors, "objects": objects, "traffic": traffic, "hosts": hosts, "machines": machines,
        "connections": after.stats.connections
    });
    Shown { json, text }
}

/// What both looks have seen.
fn pairs<'a, T>(
    before: &'a [T],
    after: &'a [T],
    same: impl Fn(&T, &T) -> bool,
) -> impl Iterator<Item = (&'a T, &'a T)> {
    after.iter().filter_map(move |now| Some((before.iter().find(|then| same(then, now))?, now)))
}

/// A reactor, with the time that it spent between two looks.
fn reactor(then: &ReactorView, now: &ReactorView) -> ReactorView {
    let spent = |of: fn(&ReactorView) -> u64| of(now).saturating_sub(of(then));
    let (busy_ns, spin_ns, sleep_ns) = (spent(|one| one.busy_ns), spent(|one| one.spin_ns), spent(|one| one.sleep_ns));
    ReactorView { busy_ns, spin_ns, sleep_ns, ..now.clone() }
}

fn object(then: &CountedView, now: &CountedView, seconds: f64) -> Value {
    let counted = |view: &CountedView, op: &str| {
        let counts = view.ops.iter().find(|counts| counts.op == op);
        counts.map_or((0, 0), |counts| (counts.ops, counts.bytes))
    };
    let rate = |op: &str| {
        let ((ops, bytes), (ops_then, bytes_then)) = (counted(now, op), counted(then, op));
        let per_second = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds).round() as u64;
        (per_second(ops, ops_then), per_second(bytes, bytes_then))
    };
    let errors = |view: &CountedView| view.ops.iter().map(|counts| counts.errors).sum::<u64>();
    let (reads, writes, flushes) = (rate("read"), rate("write"), rate("flush"));
    json!({
        "name": now.name,
        "kind": now.kind,
        "reads_per_second": reads.0,
        "read_bytes_per_second": reads.1,
        "read_mean_ns": mean_since(&then.read, &now.read),
        "writes_per_second": writes.0,
        "write_bytes_per_second": writes.1,
        "write_mean_ns": mean_since(&then.write, &now.write),
        "flushes_per_second": flushes.0,
        "under_way": now.depth,
        "errors": errors(now).saturating_sub(errors(then)),
    })
}

/// A host's rates between two looks, and its limits.
fn host(then: &TrafficView, now: &TrafficView, seconds: f64) -> Value {
    let rate = |of: fn(&TrafficView) -> u64| (of(now).saturating_sub(of(then)) as f64 / seconds).round() as u64;
    json!({
        "host": now.host,
        "reads_per_second": rate(|host| host.reads),
        "read_bytes_per_second": rate(|host| host.read_bytes),
        "writes_per_second": rate(|host| host.writes),
        "written_bytes_per_second": rate(|host| host.written_bytes),
        "others_per_second": rate(|host| host.others),
        "iops_limit": now.iops_limit,
        "bandwidth_limit": now.bandwidth_limit,
    })
}

/// The mean of what was counted between two looks; `None` without any.
fn mean_since(then: &LatencyView, now: &LatencyView) -> Option<u64> {
    let count = now.count.checked_sub(then.count).filter(|count| *count > 0)?;
    Some(now.sum.saturating_sub(then.sum) / count)
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}

fn traffic_table(traffic: &[Value]) -> String {
    let rows = traffic.iter().map(|host| {
        let bytes = |key: &str| ByteSize(number(host, key)).to_string();
        let limit = |key: &str, show: fn(u64) -> String| host[key].as_u64().map_or("-".to_string(), show);
        vec![
            host["host"].as_str().unwrap_or_default().to_string(),
            output::count(number(host, "reads_per_second")),
            bytes("read_bytes_per_second"),
            output::count(number(host, "writes_per_second")),
            bytes("written_bytes_per_second"),
            output::count(number(host, "others_per_second")),
            limit("iops_limit", output::count),
            limit("bandwidth_limit", |bytes| format!("{}/s", ByteSize(bytes))),
        ]
    });
    let headings =
        ["HOST", ">READS/S", ">READ/S", ">WRITES/S", ">WRITTEN/S", ">OTHERS/S", ">IOPS LIMIT", ">BANDWIDTH LIMIT"];
    output::table(&headings, rows.collect())
}

fn text(reactors: &[ReactorView], objects: &[Value], traffic: &[Value], look: &Look) -> String {
    let mut text = status::reactors(reactors);
    let rows = objects.iter().map(|object| {
        let word = |key: &str| object[key].as_str().unwrap_or_default().to_string();
        let bytes = |key: &str| ByteSize(number(object, key)).to_string();
        let mean = |key: &str| object[key].as_u64().map_or("-".to_string(), show_duration_ns);
        vec![
            word("name"),
            word("kind"),
            output::count(number(object, "reads_per_second")),
            bytes("read_bytes_per_second"),
            mean("read_mean_ns"),
            output::count(number(object, "writes_per_second")),
            bytes("write_bytes_per_second"),
            mean("write_mean_ns"),
            output::count(number(object, "flushes_per_second")),
            number(object, "under_way").to_string(),
            number(object, "errors").to_string(),
        ]
    });
    let headings = [
        "NAME",
        "KIND",
        ">READS/S",
        ">READ/S",
        ">MEAN",
        ">WRITES/S",
        ">WRITTEN/S",
        ">MEAN",
        ">FLUSHES/S",
        ">UNDER WAY",
        ">ERRORS",
    ];
    text += "\n\n";
    text += &if objects.is_empty() { "no volumes".to_string() } else { output::table(&headings, rows.collect()) };
    text += "\n\n";
    text += &if look.status.hosts.is_empty() { "no hosts".to_string() } else { status::hosts(&look.status.hosts) };
    if !traffic.is_empty() {
        text += "\n\n";
        text += &traffic_table(traffic);
    }
    if !look.status.machines.is_empty() {
        text += "\n\n";
        text += &status::vhosts(&look.status.machines);
    }
    look.status.warnings.iter().for_each(|warning| text += &format!("\nwarning: {warning}"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::stats::OpView;

    fn counted(reads: u64, mean: u64) -> CountedView {
        let op = OpView { op: "read".into(), ops: reads, bytes: reads * 4096, errors: 1 };
        let read = LatencyView { count: reads, sum: reads * mean, mean, ..LatencyView::default() };
        let none = LatencyView::default;
        CountedView {
            name: "v0".into(),
            kind: "volume".into(),
            depth: 3,
            ops: vec![op],
            read,
            write: none(),
            flush: none(),
        }
    }

    #[test]
    fn rates_and_means_are_of_what_happened_between_the_looks() {
        let shown = object(&counted(1_000, 100), &counted(3_000, 200), 2.0);
        assert_eq!(number(&shown, "reads_per_second"), 1_000);
        assert_eq!(number(&shown, "read_bytes_per_second"), 4_096_000);
        assert_eq!(number(&shown, "read_mean_ns"), 250);
        assert_eq!((number(&shown, "errors"), number(&shown, "writes_per_second")), (0, 0));
        assert_eq!(shown["write_mean_ns"], Value::Null);
    }

    #[test]
    fn rates_of_hosts_are_of_what_happened_between_the_looks_beside_their_limits() {
        let seen = |reads, written_bytes| TrafficView {
            host: "nqn.2026-11.org.example:h".into(),
            reads,
            written_bytes,
            iops_limit: Some(500),
            ..TrafficView::default()
        };
        let shown = host(&seen(1_000, 7 << 20), &seen(2_000, 9 << 20), 2.0);
        assert_eq!((number(&shown, "reads_per_second"), number(&shown, "written_bytes_per_second")), (500, 1 << 20));
        let text = traffic_table(&[shown]);
        assert!(text.contains("nqn.2026-11.org.example:h") && text.contains("1 MiB") && text.contains("500"), "{text}");
    }

    #[test]
    fn a_mean_after_very_many_operations_is_that_of_the_interval() {
        let view = |count, sum: u64| LatencyView { count, sum, mean: sum / count, ..LatencyView::default() };
        // The mean since the start goes from 101 ns to 100 as whole numbers; the ten operations took 95 ns each.
        let (then, now) = (view(1_000, 101_000), view(1_010, 101_950));
        assert_eq!((then.mean, now.mean, mean_since(&then, &now)), (101, 100, Some(95)));
    }

    #[test]
    fn counters_that_went_back_count_as_nothing() {
        let shown = object(&counted(3_000, 200), &counted(10, 100), 1.0);
        assert_eq!((number(&shown, "reads_per_second"), &shown["read_mean_ns"]), (0, &Value::Null));
    }
}
