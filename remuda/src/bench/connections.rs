//! `remuda bench connections`: what many connections cost a node in memory, and what the one behind the limit meets.
//!
//! A child node on a device that keeps nothing and takes a while, so that commands hold their buffers; hosts of ours, each with an admin and an I/O queue, so two connections. Its resident
//! memory is read with none, with all of them idle, under I/O on some, and afterwards.

use crate::cli::exit::{Exit, Failure};
use crate::cli::{Context, output};
use crate::config::{DeviceDef, DeviceParams};
use crate::demo::child::{ChildNode, free_port};
use crate::demo::host::{Command, Host, check, remote_volume};
use crate::node::reactors::{END_MAX_NS, Reactors};
use crate::node::{Opened, Opener, close_device, open_device};
use crate::sys;
use base::ByteSize;
use bdev::Op;
use clap::Args;
use reactor::{PoolConfig, ReactorConfig};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Where the search for a port begins.
const PORT_FIRST: u16 = 14_720;
const NQN: &str = "nqn.2026-11.io.remuda:connections";
const VOLUME: &str = "connections";
const VOLUME_BYTES: u64 = 64 << 20;
/// Connections of one host: its admin queue and one I/O queue.
const EACH: u32 = 2;
/// Bytes of an operation of the busy hosts.
const IO_BYTES: u64 = 64 << 10;
/// How long the host beyond the limit tries.
const REFUSED_NS: u64 = 2_000_000_000;

#[derive(Args)]
pub struct ConnectionsArgs {
    /// Connections, two for each host, and the node's limit
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=60_000))]
    connections: u32,
    /// Entries of each I/O queue
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=1024))]
    queue_depth: u32,
    /// Hosts that write and read
    #[arg(long, default_value_t = 64)]
    busy: u32,
    /// Operations of 64 KiB that each of them has under way
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=128))]
    qd: u32,
    /// Time for which they do so
    #[arg(long, default_value = "5s", value_parser = crate::config::section::parse_duration_ns)]
    time: u64,
}

/// The node at one moment.
struct Moment {
    when: &'static str,
    connections: u64,
    resident_bytes: u64,
}

/// What was found.
struct Findings {
    moments: Vec<Moment>,
    connect: Duration,
    operations: u64,
    /// What the host beyond the limit was told, and how the others fared meanwhile.
    refusal: String,
}

pub fn run(context: &Context, args: &ConnectionsArgs) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(Exit::Failed, format!("cannot make files: {error}"));
    let files = (sys::soft_limit(libc::RLIMIT_NOFILE), u64::from(args.connections) + 64);
    if files.0 < files.1 {
        let text = format!("--connections {} needs 'ulimit -n {}'; it is {}", args.connections, files.1, files.0);
        return Err(Failure::new(Exit::Usage, text));
    }
    let dir = tempfile::Builder::new().prefix("remuda-connections-").tempdir().map_err(failed)?;
    let port = free_port(PORT_FIRST).map_err(failed)?;
    let config = dir.path().join("node.toml");
    std::fs::write(&config, config_text(args, port)).map_err(failed)?;
    let findings = measure(args, dir.path(), &config, port)?;
    if context.json {
        output::print_json(&to_json(args, &findings));
    } else {
        output::print_line(&to_text(args, &findings));
    }
    Ok(())
}

fn config_text(args: &ConnectionsArgs, port: u16) -> String {
    format!(
        "[node]\nstate_dir = \"state\"\nrpc_socket = \"node.sock\"\nmetrics_listen = \"off\"\n\n[nvmf]\nlisten = \
         [\"127.0.0.1:{port}\"]\nmax_connections = {}\n\n[[device]]\nname = \"none\"\nkind = \"null\"\nsize = \
         {VOLUME_BYTES}\n\n[[device]]\nname = \"slow\"\nkind = \"delay\"\ndevice = \"none\"\nread = \"5ms\"\nwrite = \
         \"5ms\"\n\n[[volume]]\nname = \"{VOLUME}\"\ndevice = \"slow\"\n\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\nnamespaces = [\"{VOLUME}\"]\n",
        args.connections
    )
}

/// The volume as host `number` reaches it.
fn remote(args: &ConnectionsArgs, port: u16, number: u32) -> DeviceDef {
    let mut def = remote_volume(&format!("host{number}"), port, NQN);
    if let DeviceParams::Nvmf { host_nqn, queues, queue_depth, .. } = &mut def.params {
        *host_nqn = Some(format!("nqn.2026-11.io.remuda:bench-host{number}"));
        *queues = Some(1);
        *queue_depth = args.queue_depth as u16;
    }
    def
}

fn measure(args: &ConnectionsArgs, dir: &Path, config: &Path, port: u16) -> Result<Findings, Failure> {
    let text = |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, error.to_string());
    let pool =
        PoolConfig { bytes_max: (64 << 20) + (u64::from(args.busy) * u64::from(args.qd) * IO_BYTES * 2) as usize };
    let reactors = Reactors::start_with(vec![None], ReactorConfig { pool, ..ReactorConfig::default() }, END_MAX_NS);
    let reactors = reactors.map_err(|error| text(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| text(&error))?;
    let node = ChildNode::start(config, &dir.join("node.sock"), &dir.join("node.log"))?;
    let look = |when| -> Result<Moment, Failure> {
        let connections = node.call("node.status", json!({}))?["connections"].as_u64().unwrap_or(0);
        Ok(Moment { when, connections, resident_bytes: sys::resident_bytes(node.pid()) })
    };
    let mut moments = vec![look("no host")?];
    let began = Instant::now();
    let mut hosts: Vec<(Host, Opened)> = Vec::new();
    for number in 0..args.connections / EACH {
        let opener = Opener::without_node(reactors.first());
        let opened = runtime.block_on(open_device(&remote(args, port, number), Vec::new(), &opener))?;
        let mut host = runtime.block_on(Host::attach(&opener.reactor, opened.device.clone()))?;
        read_block(&mut host)?;
        hosts.push((host, opened));
    }
    let connect = began.elapsed();
    moments.push(look("all idle")?);
    let busy = (args.busy as usize).min(hosts.len());
    let mut during = None;
    let operations = load(args, &mut hosts[..busy], || {
        during = Some(look("some under I/O"));
    })?;
    moments.push(during.expect("it looked in the middle")?);
    moments.push(look("idle again")?);
    let beyond = remote(args, port, args.connections / EACH);
    let opener = Opener::without_node(reactors.first());
    let attempt = runtime.block_on(async {
        let limit = Duration::from_nanos(REFUSED_NS);
        tokio::time::timeout(limit, open_device(&beyond, Vec::new(), &opener)).await
    });
    let refusal = match attempt {
        Ok(Ok(_)) => return Err(Failure::new(Exit::Failed, "a host beyond the limit was let in")),
        Ok(Err(refusal)) => refusal.to_string(),
        Err(_) => "the connection is closed at once, and every further attempt as well".to_string(),
    };
    for (host, _) in &mut hosts {
        read_block(host)?;
    }
    moments.push(look("after the refusal")?);
    for (host, opened) in hosts {
        drop(host);
        runtime.block_on(close_device(reactors.first(), &opened))?;
    }
    moments.push(look("no host again")?);
    node.stop()?;
    Ok(Findings { moments, connect, operations, refusal })
}

fn read_block(host: &mut Host) -> Result<(), Failure> {
    host.submit(Command { id: 0, op: Op::Read, lba: 0, data: vec![0; host.block_size as usize] });
    check(&host.answer()?)
}

/// Writes and reads with these hosts for the time, `in_the_middle` once; how many operations there were.
fn load(args: &ConnectionsArgs, hosts: &mut [(Host, Opened)], in_the_middle: impl FnOnce()) -> Result<u64, Failure> {
    let began = Instant::now();
    let whole = Duration::from_nanos(args.time);
    let (mut operations, mut in_the_middle) = (0, Some(in_the_middle));
    while began.elapsed() < whole {
        for (host, _) in hosts.iter_mut() {
            while host.in_flight() < args.qd as usize {
                operations += 1;
                let op = if operations % 2 == 0 { Op::Write } else { Op::Read };
                let lba = operations * IO_BYTES % VOLUME_BYTES / host.block_size;
                host.submit(Command { id: operations, op, lba, data: vec![operations as u8; IO_BYTES as usize] });
            }
        }
        if began.elapsed() > whole / 2
            && let Some(look) = in_the_middle.take()
        {
            look();
        }
        for (host, _) in hosts.iter_mut() {
            while let Some(answer) = host.answer_within(Duration::ZERO) {
                check(&answer)?;
            }
        }
    }
    for (host, _) in hosts.iter_mut() {
        while host.in_flight() > 0 {
            check(&host.answer()?)?;
        }
    }
    if let Some(look) = in_the_middle {
        look();
    }
    Ok(operations)
}

fn to_json(args: &ConnectionsArgs, findings: &Findings) -> Value {
    let moments = findings.moments.iter().map(|moment| {
        json!({
            "when": moment.when,
            "connections": moment.connections,
            "resident_bytes": moment.resident_bytes,
        })
    });
    json!({
        "connections": args.connections,
        "queue_depth": args.queue_depth,
        "busy_hosts": args.busy,
        "qd": args.qd,
        "moments": moments.collect::<Vec<_>>(),
        "connect_ns": findings.connect.as_nanos() as u64,
        "operations": findings.operations,
        "refusal": findings.refusal,
    })
}

fn to_text(args: &ConnectionsArgs, findings: &Findings) -> String {
    let base = findings.moments[0].resident_bytes;
    let rows = findings.moments.iter().map(|moment| {
        let more = moment.resident_bytes.saturating_sub(base);
        let each = more.checked_div(moment.connections).map_or("-".to_string(), |each| ByteSize(each).to_string());
        vec![
            moment.when.to_string(),
            output::count(moment.connections),
            ByteSize(moment.resident_bytes).to_string(),
            ByteSize(more).to_string(),
            each,
        ]
    });
    let table = output::table(&["WHEN", ">CONNECTIONS", ">MEMORY", ">MORE", ">EACH"], rows.collect());
    format!(
        "{table}\n\nqueues of {} entries; all connected in {:.1} s; {} operations of 64 KiB by {} hosts at depth {}\nbeyond the \
         limit: {}",
        args.queue_depth,
        findings.connect.as_secs_f64(),
        output::count(findings.operations),
        args.busy.min(args.connections / EACH),
        args.qd,
        findings.refusal
    )
}
