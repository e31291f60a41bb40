//! `pmem-log`: the smallest user of persistent memory, a log of checksummed records, crashed at every kind of boundary.
//!
//! Safety: after a crash the log is a prefix of what was appended, at least as long as what was acknowledged, and no
//! record is torn. An append is acknowledged after its fence.

use crate::Run;
use base::{Rng, crc32c};
use reactor::Reactor;
use reactor::driver::PmemId;
use sim::{Crash, Failure, Handle, NodeId, ScheduleFaults, World};
use std::cell::Cell;
use std::rc::Rc;

const PATH: &str = "/dax0";
const BYTES: u64 = 64 << 10;
/// Record: length u32, CRC of number and payload u32, number u64, payload; starts at multiples of 8.
const HEADER: usize = 16;

#[derive(Clone, Default)]
struct Ledger {
    /// Records whose append began.
    begun: Rc<Cell<u64>>,
    /// Records acknowledged as durable.
    durable: Rc<Cell<u64>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let node = world.add_node();
    world.set_schedule(ScheduleFaults::swarm(rng));
    let ledger = Ledger::default();
    let seed = rng.next_u64();
    for round in 0..rng.between(1, 5) {
        world.handle().note(format!("round {round}"));
        world.boot(node, 1, World::reactor_config());
        let crash = if rng.one_in(3) { Crash::Kill } else { Crash::PowerCut };
        world.crash_after_writes(node, rng.between(1, 100), crash);
        let (sim, ledger, count) = (world.handle(), ledger.clone(), rng.between(1, 40));
        world.spawn(node, 0, |reactor| live(reactor, sim, node, ledger, seed, count));
        world.run_for(1_000_000_000)?;
        if world.is_running(node) {
            world.crash(node, crash);
        }
    }
    world.boot(node, 1, World::reactor_config());
    let (sim, ledger) = (world.handle(), ledger.clone());
    world.spawn(node, 0, |reactor| live(reactor, sim, node, ledger, seed, 1));
    world.run_for(1_000_000_000).map(|_| ())
}

fn payload(seed: u64, number: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ number);
    let mut bytes = vec![0; rng.between(1, 300) as usize];
    rng.fill(&mut bytes);
    bytes
}

fn record(seed: u64, number: u64) -> Vec<u8> {
    let payload = payload(seed, number);
    let mut body = number.to_le_bytes().to_vec();
    body.extend(&payload);
    let mut record = (payload.len() as u32).to_le_bytes().to_vec();
    record.extend(crc32c(&body).to_le_bytes());
    record.extend(body);
    record.resize(record.len().next_multiple_of(8), 0);
    record
}

/// Recovers, checks what was recovered, and appends `count` more records.
async fn live(reactor: Rc<Reactor>, sim: Handle, node: NodeId, ledger: Ledger, seed: u64, count: u64) {
    let driver = reactor.driver();
    let (pmem, info) = driver.pmem_open(Some(PATH), BYTES).expect("the memory is there");
    sim.expect(info.bytes == BYTES && info.durable, || format!("persistent memory changed: {info:?}"));
    let (recovered, mut at) = recover(&reactor, pmem, &sim, seed);
    sim.expect((ledger.durable.get()..=ledger.begun.get()).contains(&recovered), || {
        let (durable, begun) = (ledger.durable.get(), ledger.begun.get());
        format!("recovered {recovered} records, {durable} were acknowledged and {begun} begun")
    });
    // A record that was not acknowledged and is not there may be appended anew.
    ledger.begun.set(recovered);
    restore(&reactor, pmem, seed, recovered);
    if sim.alive(node) {
        ledger.durable.set(recovered);
    }
    for number in recovered..recovered + count {
        let record = record(seed, number);
        if at + record.len() + HEADER > BYTES as usize {
            return;
        }
        if !sim.alive(node) {
            return;
        }
        ledger.begun.set(number + 1);
        if driver.pmem_store(pmem, at as u64, &record).is_err() {
            return;
        }
        driver.pmem_fence(pmem);
        if sim.alive(node) {
            ledger.durable.set(number + 1);
        }
        at += record.len();
        if sim.rng().one_in(3) {
            reactor.yield_now().await;
        }
    }
}

/// Stores the recovered records again and fences: after a kill they may be visible without being durable, and the fence
/// of a new process covers its own stores only.
fn restore(reactor: &Reactor, pmem: PmemId, seed: u64, count: u64) {
    let mut at = 0;
    for number in 0..count {
        let record = record(seed, number);
        if reactor.driver().pmem_store(pmem, at, &record).is_err() {
            return;
        }
        at += record.len() as u64;
    }
    reactor.driver().pmem_fence(pmem);
}

/// Number of whole records from the start, and where the next one goes.
fn recover(reactor: &Reactor, pmem: PmemId, sim: &Handle, seed: u64) -> (u64, usize) {
    let mut image = vec![0; BYTES as usize];
    reactor.driver().pmem_read(pmem, 0, &mut image).expect("inside the memory");
    let (mut number, mut at) = (0u64, 0);
    loop {
        let Some(header) = image.get(at..at + HEADER) else { return (number, at) };
        let word = |range: std::ops::Range<usize>| u32::from_le_bytes(header[range].try_into().expect("four bytes"));
        let (len, sum) = (word(0..4) as usize, word(4..8));
        let Some(body) = image.get(at + 8..at + HEADER + len).filter(|_| len > 0) else { return (number, at) };
        if crc32c(body) != sum || body[..8] != number.to_le_bytes() {
            return (number, at);
        }
        let expected = payload(seed, number);
        sim.expect(body[8..] == expected, || format!("record {number} passes its checksum and is wrong"));
        at += (HEADER + len).next_multiple_of(8);
        number += 1;
    }
}
