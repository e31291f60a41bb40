//! A guest's driver of virtqueues: it makes valid chains in memory that it shares, and judges how each request ends. It lives
//! on while the daemon is killed.

use base::Rng;
use sim::Handle;
use sim::oracle::{CellOracle, FlushTicket, ReadTicket, WriteTicket, fill_cell, read_cell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vhost_door::Bell;
use vhost_door::chain::{Descriptor, INDIRECT, NEXT, WRITE};
use vhost_door::memory::Memory;
use vhost_door::spec::{RangeEntry, RequestHeader, request, status};
use vhost_door::split::Layout;
use zerocopy::IntoBytes;

pub(super) const ENTRIES: u16 = 32;
/// Descriptors set aside for one chain.
const CHAIN: u16 = 8;
/// Bytes of one queue's part of the memory.
pub(super) const QUEUE_BYTES: u64 = 0x2_0000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const TABLES: u64 = 0x3000;
const HEADERS: u64 = 0x4000;
const DATA: u64 = 0x8000;
const DATA_BYTES: u64 = 0x4000;
/// What no request ends with.
const NO_STATUS: u8 = 0xee;
/// Blocks of one request.
const BLOCKS_MAX: u64 = 3;

/// What a request is in the oracle's eyes.
enum Asked {
    Write(WriteTicket),
    Read(ReadTicket, Range<usize>),
    Flush(FlushTicket),
    /// It has no effect; it must end with this status.
    Nothing(u8),
}

/// Counts calls.
pub(super) struct Calls(pub(super) Arc<AtomicU64>);

impl Bell for Calls {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// One queue as its driver has it.
pub(super) struct Driver {
    pub(super) base: u64,
    memory: Memory,
    block_bytes: u64,
    event_idx: bool,
    indirect: bool,
    available: u16,
    used_seen: u16,
    under_way: BTreeMap<u16, Asked>,
    pub(super) calls: Arc<AtomicU64>,
    calls_seen: u64,
    /// Which error statuses are no surprise.
    pub(super) errors_allowed: bool,
    pub(super) ended: u64,
}

impl Driver {
    pub(super) fn new(memory: &Memory, base: u64, block_bytes: u64, event_idx: bool, indirect: bool) -> Driver {
        Driver {
            base,
            memory: memory.clone(),
            block_bytes,
            event_idx,
            indirect,
            available: 0,
            used_seen: 0,
            under_way: BTreeMap::new(),
            calls: Arc::default(),
            calls_seen: 0,
            errors_allowed: false,
            ended: 0,
        }
    }

    pub(super) fn layout(&self) -> Layout {
        let base = self.base;
        Layout { entries: ENTRIES, table: base, available: base + AVAILABLE, used: base + USED }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes).expect("the driver's own memory");
    }

    fn u16_at(&self, at: u64) -> u16 {
        self.memory.load_u16(at).expect("the driver's own memory")
    }

    fn set_u16(&self, at: u64, value: u16) {
        self.memory.store_u16(at, value).expect("the driver's own memory");
    }

    fn data_at(&self, head: u16) -> u64 {
        self.base + DATA + u64::from(head / CHAIN) * DATA_BYTES
    }

    fn status_at(&self, head: u16) -> u64 {
        self.base + HEADERS + u64::from(head) * 32 + 16
    }

    /// Makes one request available, if there is room; true when the device wants a kick for it.
    pub(super) fn ask(&mut self, rng: &mut Rng, oracle: &mut CellOracle) -> bool {
        let free: Vec<u16> =
            (0..ENTRIES).step_by(CHAIN.into()).filter(|head| !self.under_way.contains_key(head)).collect();
        let Some(head) = free.get(rng.below(free.len() as u64) as usize).copied() else { return false };
        let nblocks = rng.between(1, BLOCKS_MAX);
        let lba = rng.below(oracle.cells() as u64 - nblocks + 1);
        let cells = lba as usize..(lba + nblocks) as usize;
        let (bytes, sectors) = ((nblocks * self.block_bytes) as u32, self.block_bytes / 512);
        let mut sector = lba * sectors;
        let data = self.data_at(head);
        let (mut readable, mut writable) = (Vec::new(), Vec::new());
        let (kind, asked) = match rng.below(16) {
            0..6 => {
                let stamp = oracle.fresh_stamp();
                for (at, cell) in cells.clone().enumerate() {
                    let mut block = vec![0; self.block_bytes as usize];
                    fill_cell(&mut block, stamp, cell);
                    self.put(data + at as u64 * self.block_bytes, &block);
                }
                pieces(rng, data, bytes, &mut readable);
                (request::OUT, Asked::Write(oracle.begin_write(cells, stamp)))
            }
            6..11 => {
                pieces(rng, data, bytes, &mut writable);
                (request::IN, Asked::Read(oracle.begin_read(cells.clone()), cells))
            }
            11 => (request::FLUSH, Asked::Flush(oracle.begin_flush())),
            12 | 13 => {
                let kind = if rng.one_in(2) { request::DISCARD } else { request::WRITE_ZEROES };
                let flags = (kind == request::WRITE_ZEROES && rng.one_in(2)) as u32;
                self.put(data, RangeEntry { sector, sectors: (nblocks * sectors) as u32, flags }.as_bytes());
                readable.push((data, 16));
                (kind, Asked::Write(oracle.begin_write(cells, 0)))
            }
            14 => {
                writable.push((data, 20));
                (request::GET_ID, Asked::Nothing(status::OK))
            }
            // What cannot be: past the end, outside the memory, of an unknown kind.
            _ => match rng.below(3) {
                0 => {
                    sector = oracle.cells() as u64 * sectors + rng.below(2);
                    pieces(rng, data, bytes, &mut writable);
                    (request::IN, Asked::Nothing(status::IOERR))
                }
                1 => {
                    readable.push((u64::MAX - rng.below(1 << 20), bytes));
                    (request::OUT, Asked::Nothing(status::IOERR))
                }
                _ => (77, Asked::Nothing(status::UNSUPP)),
            },
        };
        let header = RequestHeader { kind, reserved: 0, sector };
        let header_at = self.base + HEADERS + u64::from(head) * 32;
        self.put(header_at, header.as_bytes());
        self.put(self.status_at(head), &[NO_STATUS]);
        readable.insert(0, (header_at, 16));
        writable.push((self.status_at(head), 1));
        self.write_chain(rng, head, &readable, &writable);
        self.under_way.insert(head, asked);
        self.offer(head)
    }

    fn write_chain(&self, rng: &mut Rng, head: u16, readable: &[(u64, u32)], writable: &[(u64, u32)]) {
        let indirect = self.indirect && rng.one_in(2);
        let (table, first) = match indirect {
            true => (self.base + TABLES + u64::from(head) * 16, 0),
            false => (self.base, head),
        };
        let count = readable.len() + writable.len();
        assert!(count <= usize::from(CHAIN), "{count} descriptors");
        let flags = readable.iter().map(|_| 0).chain(writable.iter().map(|_| WRITE));
        for (at, ((address, len), flags)) in readable.iter().chain(writable).zip(flags).enumerate() {
            let index = first + at as u16;
            let more = if at + 1 < count { NEXT } else { 0 };
            let one = Descriptor { address: *address, len: *len, flags: flags | more, next: index + 1 };
            self.put(table + u64::from(index) * 16, one.as_bytes());
        }
        if indirect {
            let one = Descriptor { address: table, len: count as u32 * 16, flags: INDIRECT, next: 0 };
            self.put(self.base + u64::from(head) * 16, one.as_bytes());
        }
    }

    fn offer(&mut self, head: u16) -> bool {
        let slot = u64::from(self.available % ENTRIES);
        self.set_u16(self.base + AVAILABLE + 4 + slot * 2, head);
        let before = self.available;
        self.available = before.wrapping_add(1);
        self.set_u16(self.base + AVAILABLE + 2, self.available);
        if self.event_idx {
            let event = self.u16_at(self.base + USED + 4 + u64::from(ENTRIES) * 8);
            return event == before;
        }
        self.u16_at(self.base + USED) & 1 == 0
    }

    /// Looks at what has ended, as an interrupt handler does: only when it was called.
    pub(super) fn reap(&mut self, sim: &Handle, oracle: &mut CellOracle) {
        let calls = self.calls.load(Ordering::Relaxed);
        if calls == self.calls_seen {
            return;
        }
        self.calls_seen = calls;
        loop {
            while self.u16_at(self.base + USED + 2) != self.used_seen {
                let at = self.base + USED + 4 + u64::from(self.used_seen % ENTRIES) * 8;
                let mut entry = [0; 8];
                self.memory.read(at, &mut entry).expect("the driver's own memory");
                self.used_seen = self.used_seen.wrapping_add(1);
                let [head, written] =
                    [0, 4].map(|at| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes")));
                self.judge(sim, oracle, head as u16, written);
            }
            // Calls are wanted for what comes next, unless it is there already.
            self.set_u16(self.base + AVAILABLE + 4 + u64::from(ENTRIES) * 2, self.used_seen);
            if self.u16_at(self.base + USED + 2) == self.used_seen {
                return;
            }
        }
    }

    fn judge(&mut self, sim: &Handle, oracle: &mut CellOracle, head: u16, written: u32) {
        let Some(asked) = self.under_way.remove(&head) else {
            return sim
                .violation(format!("chain {head} of the queue at {:#x} was used and is not under way", self.base));
        };
        self.ended += 1;
        let mut found = [0];
        self.memory.read(self.status_at(head), &mut found).expect("the driver's own memory");
        let [found] = found;
        let ok = found == status::OK;
        sim.expect(found <= status::UNSUPP, || format!("chain {head} was used and has no status"));
        sim.expect(ok || self.errors_allowed || matches!(asked, Asked::Nothing(_)), || {
            format!("a request failed with {found} without cause")
        });
        match asked {
            Asked::Nothing(expected) => {
                sim.expect(found == expected, || format!("status {found} where {expected} is right"));
            }
            Asked::Write(ticket) => oracle.end_write(ticket, ok, false),
            Asked::Flush(ticket) => oracle.end_flush(ticket, ok),
            Asked::Read(ticket, cells) if ok => {
                let bytes = cells.len() * self.block_bytes as usize;
                sim.expect(written == bytes as u32 + 1, || format!("{written} bytes written by a read of {bytes}"));
                let mut data = vec![0; bytes];
                self.memory.read(self.data_at(head), &mut data).expect("the driver's own memory");
                let blocks = data.chunks(self.block_bytes as usize).zip(cells);
                let values: Vec<_> = blocks.map(|(block, cell)| read_cell(block, cell)).collect();
                if let Err(text) = oracle.end_read(ticket, &values) {
                    sim.violation(format!("read through a queue: {text}"));
                }
            }
            Asked::Read(..) => {}
        }
    }
}

/// A range in one to three segments.
fn pieces(rng: &mut Rng, address: u64, bytes: u32, segments: &mut Vec<(u64, u32)>) {
    let (mut at, mut left) = (address, bytes);
    for last in [false, false, true] {
        let len = if last || rng.one_in(2) { left } else { rng.below(u64::from(left)) as u32 };
        if len > 0 {
            segments.push((at, len));
        }
        (at, left) = (at + u64::from(len), left - len);
    }
}
