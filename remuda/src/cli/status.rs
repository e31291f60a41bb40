//! `remuda status`, `stats` and `stop`.

use super::exit::{Exit, Failure};
use super::{Context, output};
use crate::config::diagnostic::counted;
use crate::config::show_duration_ns;
use crate::node::stats::StatsView;
use crate::node::view::{ConnectedHost, ConnectedVhost, ReactorView, StatusView};
use base::ByteSize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

pub fn status(context: &Context) -> Result<(), Failure> {
    let show = |status: &StatusView| {
        let none = |list: &[String]| if list.is_empty() { "nowhere".to_string() } else { list.join(" ") };
        let tls = status.nvmf_listen_tls.iter().map(|address| format!("{address} (TLS)"));
        let listening: Vec<String> = status.nvmf_listen.iter().cloned().chain(tls).collect();
        let mut text = output::facts(&[
            ("node", format!("{} (pid {}, remuda {})", status.node_id, status.pid, status.version)),
            ("up", show_duration_ns(status.uptime_ns)),
            ("config", status.config.clone()),
            ("state", status.state_dir.clone()),
            ("NVMe/TCP", format!("{} ({})", none(&listening), counted(status.connections as usize, "connection"))),
            ("metrics", status.metrics.clone().unwrap_or("off".into())),
            ("console", status.console.clone().unwrap_or("off".into())),
            (
                "objects",
                format!(
                    "{}, {}, {}, {}, {}",
                    counted(status.devices, "device"),
                    counted(status.pools, "pool"),
                    counted(status.volumes, "volume"),
                    counted(status.subsystems, "subsystem"),
                    counted(status.vhosts, "vhost door")
                ),
            ),
        ]);
        text += "\n\n";
        text += &reactors(&status.reactors);
        if !status.hosts.is_empty() {
            text += "\n\n";
            text += &hosts(&status.hosts);
        }
        if !status.machines.is_empty() {
            text += "\n\n";
            text += &vhosts(&status.machines);
        }
        for failing in &status.failing {
            text += &format!("\nproblem: {failing}");
        }
        for warning in status.warnings.iter().filter(|warning| !status.failing.contains(warning)) {
            text += &format!("\nwarning: {warning}");
        }
        text
    };
    context.call_and_judge("node.status", json!({}), show, |status| status.failing.is_empty())
}

/// Hosts that are connected.
pub fn hosts(hosts: &[ConnectedHost]) -> String {
    let rows = hosts.iter().map(|host| {
        let (controller, queues) = (host.controller.to_string(), host.io_queues.to_string());
        vec![host.host.clone(), host.subsystem.clone(), controller, queues, host.peers.join(", "), standing(host)]
    });
    output::table(&["HOST", "SUBSYSTEM", ">CONTROLLER", ">I/O QUEUES", "FROM", "HOW"], rows.collect())
}

/// How a host is connected, in words.
pub fn standing(host: &ConnectedHost) -> String {
    let said = [(host.tls, "TLS"), (host.authenticated, "authenticated"), (host.throttled, "held back by a limit")];
    let words: Vec<&str> = said.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word).collect();
    if words.is_empty() { "-".to_string() } else { words.join(", ") }
}

/// Doors that virtual machines are connected to.
pub fn vhosts(doors: &[ConnectedVhost]) -> String {
    let rows = doors
        .iter()
        .map(|door| vec![door.name.clone(), door.volume.clone(), door.peer.to_string(), door.queues.to_string()]);
    output::table(&["VHOST", "VOLUME", ">PROCESS", ">QUEUES"], rows.collect())
}

/// Reactors and where their time went.
pub fn reactors(reactors: &[ReactorView]) -> String {
    let rows = reactors.iter().map(|reactor| {
        let all = (reactor.busy_ns + reactor.spin_ns + reactor.sleep_ns).max(1) as f64;
        let share = |ns: u64| format!("{:.1} %", ns as f64 * 100.0 / all);
        vec![
            reactor.index.to_string(),
            reactor.core.map_or("any".to_string(), |core| core.to_string()),
            share(reactor.busy_ns),
            share(reactor.spin_ns),
            share(reactor.sleep_ns),
            reactor.tasks.to_string(),
            ByteSize(reactor.buffer_bytes as u64).to_string(),
        ]
    });
    output::table(&[">REACTOR", ">CORE", ">BUSY", ">SPIN", ">SLEEP", ">TASKS", ">BUFFERS"], rows.collect())
}

pub fn stats(context: &Context) -> Result<(), Failure> {
    context.call_and_show("stats", json!({}), |stats: StatsView| {
        let mut rows = Vec::new();
        for object in &stats.objects {
            for (name, latency) in [("read", &object.read), ("write", &object.write), ("flush", &object.flush)] {
                let counts = object.ops.iter().find(|counts| counts.op == name);
                let Some(counts) = counts else { continue };
                let took = |ns: u64| if latency.count == 0 { "-".to_string() } else { show_duration_ns(ns) };
                rows.push(vec![
                    object.name.clone(),
                    object.kind.clone(),
                    name.to_string(),
                    output::count(counts.ops),
                    ByteSize(counts.bytes).to_string(),
                    counts.errors.to_string(),
                    took(latency.p50),
                    took(latency.p99),
                    took(latency.p999),
                    took(latency.max),
                ]);
            }
        }
        let headings = ["NAME", "KIND", "OP", ">COUNT", ">BYTES", ">ERRORS", ">P50", ">P99", ">P99.9", ">MAX"];
        let mut text = if rows.is_empty() { "no I/O yet".to_string() } else { output::table(&headings, rows) };
        text += &format!("\n\n{} connections\n\n{}", stats.connections, reactors(&stats.reactors));
        text
    })
}

/// Asks the node to stop and waits until its process is gone.
pub fn stop(context: &Context) -> Result<(), Failure> {
    const WAIT_MAX: Duration = Duration::from_secs(60);
    let status: Value = context.call("node.status", json!({}))?;
    let pid = status["pid"].as_u64().unwrap_or(0);
    context.call("node.stop", json!({}))?;
    let process = std::path::PathBuf::from(format!("/proc/{pid}"));
    let began = Instant::now();
    while process.exists() && !is_zombie(pid) {
        if began.elapsed() > WAIT_MAX {
            let message = format!("the node (pid {pid}) is still draining after {WAIT_MAX:?}; see its log");
            return Err(Failure::new(Exit::Failed, message));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    if context.json {
        output::print_json(&json!({ "stopped": true, "pid": pid }));
    } else {
        output::print_line(&format!("stopped (pid {pid})"));
    }
    Ok(())
}

fn is_zombie(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}
