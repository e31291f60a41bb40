//! What the scenarios set up alike: the disk and the defects under a target, its hosts, and the work they do. What differs
//! is handed in.

use super::fabric::{Backing, Host, Media, Server, host_options};
use super::tamper::Tampering;
use super::*;
use crate::blocks::Mix;
use nvme::initiator::Replay;
use sim::{DiskFaults, DiskOptions};
use std::ops::RangeInclusive;

/// How often a disk has what it may have: one in so many.
pub(super) struct DiskOdds {
    pub(super) synchronous: u64,
    pub(super) slow: u64,
    pub(super) short_transfer: u64,
}

/// Adds the disk of namespace 1.
pub(super) fn add_disk(
    world: &mut World,
    rng: &mut Rng,
    node: NodeId,
    (blocks, block_bytes): (u64, u32),
    odds: DiskOdds,
) {
    let options = DiskOptions {
        bytes: blocks * block_bytes as u64,
        unit: block_bytes,
        synchronous: rng.one_in(odds.synchronous),
        ..DiskOptions::default()
    };
    let faults = DiskFaults {
        slow: if rng.one_in(odds.slow) { rng.between(10, 100) } else { 0 },
        short_transfer: if rng.one_in(odds.short_transfer) { rng.between(2, 30) } else { 0 },
        ..DiskFaults::default()
    };
    world.add_disk(node, &Backing::path(1), options, faults);
}

/// What happens to the operations of the target's devices; they are held up for so many seconds at most.
pub(super) fn tampering(world: &World, rng: &mut Rng, hold_max_s: u64) -> Tampering {
    Tampering {
        seed: rng.next_u64(),
        hold: if rng.one_in(2) { rng.between(4, 60) } else { 0 },
        hold_max_ns: rng.between(1, hold_max_s) * SECOND_NS,
        mutation: world.handle().mutation(),
    }
}

/// Hosts of that target, up to so many.
pub(super) fn hosts(world: &mut World, rng: &mut Rng, server: &Server, most: u64) -> Vec<Host> {
    // The time that the target's devices may take is what its hosts must know; one that believes in less replays too early.
    let hold_max_ns = server.backings[0].tampering.hold_max_ns;
    let unfenced = is(&world.handle(), Mutation::ReplayUnfenced);
    let quiesce_ns = if unfenced { 1 } else { hold_max_ns + 5 * SECOND_NS };
    let count = rng.between(1, most) as usize;
    let host = |index| Host {
        node: world.add_node(),
        reactors: rng.between(1, 2) as usize,
        options: host_options(rng, server.node, index, quiesce_ns),
        mounts: Rc::default(),
    };
    (0..count).map(host).collect()
}

/// Has some hosts replay what was lost at once: those that `may`, since nobody else writes what they write.
pub(super) fn choose_replay(world: &World, rng: &mut Rng, hosts: &mut [Host], may: bool) {
    let unfenced = is(&world.handle(), Mutation::ReplayUnfenced);
    for host in hosts {
        if unfenced || may && rng.one_in(2) {
            host.options.replay = Replay::Exclusive;
        }
    }
}

/// What the work on namespace 1 may have beside random reads and writes.
pub(super) struct Parts {
    /// Chains of compare-and-writes: no block may be rolled back.
    pub(super) chains: bool,
    /// Blocks of each host alone: no host may die, and no block be rolled back.
    pub(super) copies: bool,
}

/// The work on namespace 1: so many operations for each task.
pub(super) fn work(
    world: &World,
    rng: &mut Rng,
    server: &Server,
    hosts: u64,
    parts: Parts,
    operations: RangeInclusive<u64>,
) -> Work {
    let backing = &server.backings[0];
    let block_bytes = backing.block_bytes as usize;
    let registers = if parts.chains && rng.one_in(2) { rng.between(1, 3) } else { 0 };
    let tasks = rng.between(1, 3);
    let each = if parts.copies && rng.one_in(2) { rng.between(2, 4).min(backing.blocks / 2 / hosts) } else { 0 };
    let blocks = backing.blocks - registers - each * hosts;
    // Memory that is lent may be written while it is sent.
    let lends = matches!(backing.media, Media::Memory { .. });
    let picked = Mix::pick(rng, if lends { 512 } else { block_bytes });
    let shared = picked.shared || blocks < hosts * tasks;
    let mix = Mix { block_bytes, lingering: true, shared, ..picked };
    let judge = Judge::new(world.handle(), server.node, mix, blocks * block_bytes as u64);
    if lends {
        judge.oracle.borrow_mut().allow_torn_reads();
    }
    let mut registers = Registers::new(world.handle(), blocks, registers, block_bytes);
    registers.torn_reads = lends;
    let copies = Copies::new(world.handle(), blocks + registers.count, (each, hosts), block_bytes);
    Work { judge, registers, copies, tasks, count: rng.between(*operations.start(), *operations.end()) }
}

/// Starts a host, one of so many, that is to use the first `namespaces`, and its work on namespace 1.
pub(super) fn start_host(
    world: &mut World,
    host: &Host,
    (index, hosts): (u64, u64),
    namespaces: usize,
    work: &Work,
    crew: &Crew,
) -> Vec<Rc<Reactor>> {
    let reactors = host.boot(world, namespaces);
    let (options, mounts, places) = (host.options.clone(), host.mounts.clone(), reactors.clone());
    let (work, inner, node) = (work.clone(), crew.clone(), host.node);
    let life = async move {
        let mounted = Host::mount(options, places.clone(), mounts, 1).await;
        work.start(&inner, (node, index, hosts), &places, &mounted);
    };
    world.spawn(host.node, 0, |_| crew.member(life));
    reactors
}
