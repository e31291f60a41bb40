//! The demo's second pool: a shaped one, full, under small random writes until its collector works; everything is read back, and
//! what the capacity device wrote for each byte is told by where it came from.

use super::child::ChildNode;
use super::host::{Command, Host, check};
use super::report::Phase;
use super::{Demo, Failure, SEGMENT, SEGMENTS_AT_ONCE, SMALL_AT_ONCE, submit_small};
use crate::bench::pattern::{Choice, Pattern, Zipf};
use crate::bench::verify::Memory;
use crate::cli::exit::Exit;
use crate::cli::output;
use crate::node::pool_view::{PoolNumbers, PoolView};
use base::{ByteSize, Rng};
use bdev::Op;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

pub const NQN: &str = "nqn.2026-11.io.remuda:shaped";
const POOL: &str = "shaped";
const VOLUME: &str = "cold";
const LOG: u64 = 64 << 20;
const CAPACITY: u64 = 384 << 20;
const OVERPROVISION: u64 = 25;
/// How much more often some blocks are written than others.
const THETA: f64 = 0.9;
/// The load goes on for so long, and until the collector has moved so much.
const RUN: Duration = Duration::from_secs(3);
const COLLECTED_MIN: u64 = 16 << 20;
/// But not for longer than this: a slow disk shows less, not nothing.
const RUN_MAX: Duration = Duration::from_secs(15);
/// Between two looks at the pool's numbers.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What the shaped pool has shown.
pub struct Shaped {
    volume_bytes: u64,
    written: u64,
    log_bytes: u64,
    from_log: u64,
    collected: u64,
    padding: u64,
    metadata: u64,
    bands: u64,
    free_bands: u64,
    pending_bands: u64,
    blocks_checked: u64,
}

/// Makes the pool, its volume and a subsystem for it. The volume is as large as the pool has room.
pub fn create(demo: &Demo, node: &ChildNode) -> Result<u64, Failure> {
    for (name, size) in [("shaped-log", LOG), ("shaped-disk", CAPACITY)] {
        let path = demo.dir.join(format!("{name}.img"));
        node.call("device.create", json!({ "name": name, "kind": "file", "path": path, "size": size }))?;
    }
    node.call(
        "pool.create",
        json!({
            "name": POOL, "log": "shaped-log", "capacity": "shaped-disk", "shape": "shaped", "shards": 1,
            "overprovision": OVERPROVISION,
        }),
    )?;
    let bytes = numbers(node)?.total.free_bytes / SEGMENT * SEGMENT;
    node.call("volume.create", json!({ "name": VOLUME, "pool": POOL, "size": bytes }))?;
    node.call("subsystem.create", json!({ "nqn": NQN, "allow_any_host": true }))?;
    node.call("subsystem.add_namespace", json!({ "nqn": NQN, "volume": VOLUME, "nsid": 1 }))?;
    Ok(bytes)
}

fn numbers(node: &ChildNode) -> Result<PoolNumbers, Failure> {
    let failed = |cause: String| Failure::new(Exit::Failed, format!("pool '{POOL}': {cause}"));
    let answer = node.call("pool.show", json!({ "name": POOL }))?;
    let view: PoolView = serde_json::from_value(answer).map_err(|error| failed(error.to_string()))?;
    view.open.ok_or_else(|| failed(format!("it is not open: {}", view.problems.join("; "))))
}

/// Fills the volume, writes to it at random while the collector works, and reads everything back.
pub fn show(demo: &Demo, node: &ChildNode, host: &mut Host, phases: &mut Vec<Phase>) -> Result<Shaped, Failure> {
    let blocks = host.blocks;
    let mut memory = Memory::new(4, 0, blocks);
    fill(demo, host, &mut memory)?;
    host.take_latencies();
    let before = numbers(node)?;
    let (written, elapsed) = load(demo, node, host, &mut memory, before.total.collected_bytes)?;
    phases.push(Phase::new("shaped: writes, 4 KiB, QD 32", written, elapsed, host.take_latencies()));
    host.flush()?;
    let after = numbers(node)?;
    let bar = demo.bar(blocks * host.block_size, "verifying");
    let began = Instant::now();
    let blocks_checked = demo.check_blocks(host, &memory, 0, blocks, &bar)?;
    bar.finish_and_clear();
    let bytes = blocks * host.block_size;
    phases.push(Phase::new("shaped: verify, 256 KiB", bytes, began.elapsed(), host.take_latencies()));
    let on_capacity =
        |stream: &str| after.stream_bytes("capacity", stream).saturating_sub(before.stream_bytes("capacity", stream));
    Ok(Shaped {
        volume_bytes: bytes,
        written,
        log_bytes: after.total.log_write_bytes - before.total.log_write_bytes,
        from_log: on_capacity("data"),
        collected: on_capacity("collected"),
        padding: on_capacity("padding"),
        metadata: on_capacity("shadow") + on_capacity("metadata"),
        bands: after.total.bands,
        free_bands: after.total.free_bands,
        pending_bands: after.total.pending_bands,
        blocks_checked,
    })
}

/// Every block once, in order.
fn fill(demo: &Demo, host: &mut Host, memory: &mut Memory) -> Result<(), Failure> {
    let (mut next, segment_blocks) = (0, SEGMENT / host.block_size);
    let bar = demo.bar(host.blocks * host.block_size, "filling the volume");
    while next < host.blocks || host.in_flight() > 0 {
        demo.check_interrupt()?;
        while next < host.blocks && host.in_flight() < SEGMENTS_AT_ONCE {
            let mut data = vec![0; SEGMENT as usize];
            for (at, bytes) in data.chunks_mut(host.block_size as usize).enumerate() {
                memory.issue(next + at as u64, bytes);
            }
            host.submit(Command { id: next, op: Op::Write, lba: next, data });
            next += segment_blocks;
        }
        let answer = host.answer()?;
        check(&answer)?;
        (answer.id..answer.id + segment_blocks).for_each(|block| memory.acknowledge(block));
        bar.inc(SEGMENT);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Small writes, some blocks more often than others. Bytes, and the time they took.
fn load(
    demo: &Demo,
    node: &ChildNode,
    host: &mut Host,
    memory: &mut Memory,
    collected_before: u64,
) -> Result<(u64, Duration), Failure> {
    let mut rng = Rng::new(5);
    let mut pattern = Pattern::new(Choice::Zipf(Zipf::new(host.blocks, THETA)), host.blocks);
    let (began, mut looked, mut written, mut enough) = (Instant::now(), Instant::now(), 0, false);
    while !enough || host.in_flight() > 0 {
        demo.check_interrupt()?;
        while !enough && host.in_flight() < SMALL_AT_ONCE {
            submit_small(host, memory, || pattern.next(&mut rng));
        }
        let answer = host.answer()?;
        check(&answer)?;
        memory.acknowledge(answer.id);
        written += host.block_size;
        if looked.elapsed() > LOOK_EVERY {
            looked = Instant::now();
            let collected = numbers(node)?.total.collected_bytes - collected_before;
            enough = began.elapsed() > RUN_MAX || began.elapsed() > RUN && collected >= COLLECTED_MIN;
        }
    }
    Ok((written, began.elapsed()))
}

impl Shaped {
    fn per_byte(&self, bytes: u64) -> f64 {
        bytes as f64 / self.written.max(1) as f64
    }

    fn capacity_bytes(&self) -> u64 {
        self.from_log + self.collected + self.padding + self.metadata
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        json!({
            "volume_bytes": self.volume_bytes, "overprovision_percent": OVERPROVISION, "zipf": THETA,
            "user_write_bytes": self.written,
            "write_amplification": {
                "capacity": self.per_byte(self.capacity_bytes()), "from_log": self.per_byte(self.from_log),
                "collected": self.per_byte(self.collected), "headers_and_padding": self.per_byte(self.padding),
                "metadata": self.per_byte(self.metadata),
                "log_device": self.per_byte(self.log_bytes),
            },
            "bands": self.bands, "free_bands": self.free_bands, "pending_bands": self.pending_bands,
            "blocks_verified": self.blocks_checked,
        })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let each = |bytes: u64| format!("{:.2}", self.per_byte(bytes));
        output::facts(&[
            (
                "shaped pool",
                format!(
                    "a full volume of {} in {} bands, {OVERPROVISION} % over-provisioning, a log of {}",
                    ByteSize(self.volume_bytes),
                    self.bands,
                    ByteSize(LOG)
                ),
            ),
            (
                "written",
                format!(
                    "{} in 4 KiB at random (Zipf {THETA}), {} of the log",
                    ByteSize(self.written),
                    times(self.written, LOG)
                ),
            ),
            (
                "capacity device wrote",
                format!(
                    "{} bytes for each of these: {} from the log, {} collected, {} headers and padding, {} metadata",
                    each(self.capacity_bytes()),
                    each(self.from_log),
                    each(self.collected),
                    each(self.padding),
                    each(self.metadata)
                ),
            ),
            ("log device wrote", format!("{} bytes for each, the index included", each(self.log_bytes))),
            ("bands", format!("{} free, {} free with the next checkpoint", self.free_bands, self.pending_bands)),
            ("verified", format!("{} blocks, lost or wrong: nothing", output::count(self.blocks_checked))),
        ])
    }
}

fn times(bytes: u64, unit: u64) -> String {
    format!("{:.1} times the size", bytes as f64 / unit as f64)
}
