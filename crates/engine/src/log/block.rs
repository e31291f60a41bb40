//! Appending to a block log: group commit.
//!
//! ```text
//! append -> queue -> (end of turn) group: one contiguous write -> done? -> delivered in order, writers woken
//! ```
//! While groups are under way, records gather. In a log that is filling, small groups do not start beside others: each has a
//! header block of its own, which takes room and wears the drive. A group that is done waits for those before it. When a write
//! fails, the segment takes no more; once nothing of it is under way, it is left alone and all records that were not delivered go
//! back to the front of their queues and into the next segment.
//!
//! A segment is closed when the next record does not fit. Only when all its groups are delivered, the next is opened (so its
//! header vouches for everything before it), and the summary of the closed one is written beside.

use super::summary::Summary;
use super::{Appended, Class, Entry, Log, Medium, Opening, State};
use crate::format::record::{self, Record, UNIT};
use crate::format::segment::Group;
use crate::units::BLOCK_BYTES;
use bdev::{Flags, Io, Lba, Status};
use reactor::buf::{sg_append, sg_copy_to, sg_len, sg_split_off};
use reactor::{Buf, Reactor, SgList};
use std::collections::VecDeque;
use std::rc::Rc;

/// Most groups under way: enough to keep a device busy with full groups, few enough that records gather.
pub(super) const GROUPS_IN_FLIGHT_MAX: usize = 4;
/// So many blocks of payload make a group worth its header block in a log that is filling.
const WORTHWHILE_BLOCKS: u64 = 16;
/// Most blocks of a group, its header blocks included: 1 MiB in one write.
pub(super) const GROUP_BLOCKS_MAX: u64 = 256;
/// Most header blocks of a group: the headers of a group full of single blocks.
pub(super) const GROUP_HEADER_BLOCKS_MAX: u64 = 4;
/// One header buffer is kept back, so that a log can go on when its writers' payloads have used up the pool.
const SPARE_BYTES: usize = (GROUP_HEADER_BLOCKS_MAX as usize + 1) * BLOCK_BYTES;

/// A group under way.
pub(super) struct InFlight {
    pub(super) first_lsn: u64,
    pub(super) sequence: u64,
    pub(super) place: u32,
    pub(super) entries: Vec<Entry>,
    /// Bytes in front of the payloads.
    pub(super) header_bytes: usize,
    pub(super) medium_bytes: u64,
    pub(super) outcome: Option<Status>,
    used_spare: bool,
}

pub(super) struct BlockState {
    pub(super) in_flight: VecDeque<InFlight>,
    /// Number of the group at the front.
    pub(super) first_group: u64,
    /// Of the segment being written.
    pub(super) summary: Summary,
    /// The summary of the segment before is being written.
    pub(super) sealing: bool,
    spare: Option<Buf>,
    /// No group begins until a [pause](Log::pause) is over.
    pauses: bool,
    /// Somebody waits for pool memory on behalf of the log.
    starved: bool,
    pub(super) spare_entries: Vec<Vec<Entry>>,
    spare_lists: Vec<SgList>,
}

impl BlockState {
    pub(super) fn new(reactor: &Reactor) -> BlockState {
        BlockState {
            in_flight: VecDeque::with_capacity(GROUPS_IN_FLIGHT_MAX),
            first_group: 0,
            summary: Summary::default(),
            sealing: false,
            spare: reactor.pool().try_alloc(SPARE_BYTES),
            pauses: false,
            starved: false,
            spare_entries: Vec::new(),
            spare_lists: Vec::new(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && !self.sealing
    }

    pub(super) fn first_in_flight(&self) -> Option<u64> {
        self.in_flight.front().map(|group| group.first_lsn)
    }

    /// Takes back the list and the spare buffer of a group that has ended.
    pub(super) fn recycle(&mut self, index: usize, list: SgList, reactor: &Reactor) {
        self.spare_lists.push(list);
        if std::mem::take(&mut self.in_flight[index].used_spare) {
            self.spare = reactor.pool().try_alloc(SPARE_BYTES);
        }
    }
}

/// What a group will consist of.
#[derive(Clone, Copy, Default)]
struct Plan {
    records: [usize; 2],
    header_bytes: usize,
    payload_blocks: u64,
    summary_bytes: usize,
}

impl Plan {
    fn count(&self) -> usize {
        self.records[0] + self.records[1]
    }

    fn header_blocks(&self) -> u64 {
        self.header_bytes.div_ceil(BLOCK_BYTES) as u64
    }

    fn blocks(&self) -> u64 {
        self.header_blocks() + self.payload_blocks
    }

    fn with(mut self, record: &Record, class: Class) -> Plan {
        self.header_bytes += record.header_bytes();
        match record {
            Record::Write { crcs, .. } => self.payload_blocks += crcs.len() as u64,
            _ => self.header_bytes += record.payload_bytes().next_multiple_of(UNIT),
        }
        self.summary_bytes += record.header_bytes();
        self.records[class as usize] += 1;
        self
    }
}

impl State {
    /// Whether a group fits behind what the segment holds, with the summary and its footer behind it.
    fn holds(&self, plan: &Plan, open: &super::Open, segment_bytes: u64) -> bool {
        let summary = (self.block.summary.bytes() + plan.summary_bytes).div_ceil(BLOCK_BYTES) as u64;
        let front = open.is_unwritten() as u64;
        let small = plan.blocks() + front <= GROUP_BLOCKS_MAX && plan.header_blocks() <= GROUP_HEADER_BLOCKS_MAX;
        small && open.used + (plan.blocks() + summary + 1) * BLOCK_BYTES as u64 <= segment_bytes
    }

    /// The largest group that can be written into the current segment now: internal records first.
    fn plan(&self, segment_bytes: u64) -> Plan {
        let mut plan = Plan { header_bytes: UNIT, ..Plan::default() };
        let Some(open) = &self.open else { return plan };
        for class in [Class::Internal, Class::User] {
            if !self.ring.admits(class) {
                continue;
            }
            for entry in &self.queues[class as usize] {
                let next = plan.with(&entry.record, class);
                if !self.holds(&next, open, segment_bytes) {
                    break;
                }
                plan = next;
            }
        }
        plan
    }
}

impl Log {
    /// Begins to write one group of what waits; false when there is nothing to write or it has to wait.
    pub(super) fn start_group(self: &Rc<Self>) -> bool {
        let plan = {
            let state = self.state.borrow();
            let failing = state.block.pauses || state.open.as_ref().is_some_and(|open| open.failed);
            let waiting = state.queues.iter().any(|queue| !queue.is_empty());
            if failing || !waiting || state.block.in_flight.len() >= GROUPS_IN_FLIGHT_MAX || state.block.starved {
                return false;
            }
            state.plan(self.geometry.segment_bytes())
        };
        if plan.count() == 0 {
            return self.next_segment();
        }
        if self.waits_for_more(&plan) {
            return false;
        }
        let Some((header, used_spare)) = self.header_buffer(&plan) else { return false };
        self.write_group(plan, header, used_spare);
        true
    }

    /// Whether a group is so small that, while the log is filling, it had better wait until those under way have ended.
    fn waits_for_more(&self, plan: &Plan) -> bool {
        let state = self.state.borrow();
        plan.payload_blocks < WORTHWHILE_BLOCKS && !state.block.in_flight.is_empty() && state.ring.is_filling()
    }

    /// Closes the current segment and opens another for the record that waits first.
    fn next_segment(self: &Rc<Self>) -> bool {
        let class = {
            let internal = !self.state.borrow().queues[Class::Internal as usize].is_empty();
            let class = if internal { Class::Internal } else { Class::User };
            if self.is_exhausted(class) {
                self.refuse(class);
                return true;
            }
            let state = self.state.borrow();
            if !state.block.is_idle() {
                return false;
            }
            if !state.ring.may_open(class) {
                let leaves = state.open.is_some() && state.ring.is_full(class);
                drop(state);
                if leaves {
                    self.close();
                }
                return false;
            }
            class
        };
        self.close();
        match self.open_next(class) {
            Opening::Opened(overwritten) => {
                if let Some(segment) = overwritten {
                    self.sink.reclaimed(segment);
                }
                true
            }
            Opening::Full | Opening::Never(_) => false,
        }
    }

    /// No segment is left for `class`: tells the writers that wait.
    pub(super) fn refuse(&self, class: Class) {
        let (refused, status) = {
            let state = &mut *self.state.borrow_mut();
            let queue = std::mem::take(&mut state.queues[class as usize]);
            state.queued_bytes -= queue.iter().map(Entry::bytes_max).sum::<u64>();
            (queue, state.refusals.status())
        };
        for entry in refused {
            self.finish(entry.slot, Appended { result: Err(status), payload: entry.payload });
        }
    }

    /// Begins no group for so long.
    pub(super) fn pause(self: &Rc<Self>, pause_ns: u64) {
        self.state.borrow_mut().block.pauses = true;
        let log = self.clone();
        self.medium.reactor().spawn(async move {
            log.medium.reactor().sleep_ns(pause_ns).await;
            log.state.borrow_mut().block.pauses = false;
            log.arm();
        });
    }

    /// Memory for the headers of a group, with a block for the segment's header in front when it is the first.
    fn header_buffer(self: &Rc<Self>, plan: &Plan) -> Option<(Buf, bool)> {
        let state = &mut *self.state.borrow_mut();
        let open = state.open.as_ref().expect("a plan needs an open segment");
        let bytes = (plan.header_blocks() as usize + open.is_unwritten() as usize) * BLOCK_BYTES;
        let pool = self.medium.reactor().pool();
        if let Some(buf) = pool.try_alloc(bytes) {
            return Some((buf, false));
        }
        if let Some(mut buf) = state.block.spare.take() {
            buf.truncate(bytes);
            return Some((buf, true));
        }
        if state.block.in_flight.is_empty() {
            state.block.starved = true;
            let log = self.clone();
            self.medium.reactor().spawn(async move {
                let spare = log.medium.reactor().pool().alloc(SPARE_BYTES).await;
                let block = &mut log.state.borrow_mut().block;
                block.spare = Some(spare);
                block.starved = false;
                log.arm();
            });
        }
        None
    }

    /// Makes a group of what `plan` names and begins to write it.
    fn write_group(self: &Rc<Self>, plan: Plan, header: Buf, used_spare: bool) {
        let (number, start, bufs) = self.build_group(plan, header, used_spare);
        let log = self.clone();
        self.medium.reactor().spawn_eager(async move {
            let (status, bufs) = log.write_blocks(start, bufs, true).await;
            log.group_done(number, status, bufs);
        });
    }

    fn build_group(&self, plan: Plan, mut header: Buf, used_spare: bool) -> (u64, u64, SgList) {
        let state = &mut *self.state.borrow_mut();
        let first_lsn = state.next_lsn;
        let durable_lsn = state.block.first_in_flight().unwrap_or(first_lsn);
        let open = state.open.as_mut().expect("a plan needs an open segment");
        let is_first = open.is_unwritten();
        let mut bytes = header.as_mut_slice();
        bytes.fill(0);
        if is_first {
            bytes[..UNIT].copy_from_slice(&self.segment_header(open.sequence, open.first_lsn).encode());
            bytes = &mut bytes[BLOCK_BYTES..];
        }
        let mut entries = state.block.spare_entries.pop().unwrap_or_default();
        let mut bufs = state.block.spare_lists.pop().unwrap_or_default();
        let (mut at, mut payload_at) = (UNIT, open.used + plan.header_blocks() * BLOCK_BYTES as u64);
        for class in [Class::Internal, Class::User] {
            for mut entry in state.queues[class as usize].drain(..plan.records[class as usize]) {
                state.queued_bytes -= entry.bytes_max();
                let is_write = matches!(entry.record, Record::Write { .. });
                let payload_bytes = entry.record.payload_bytes();
                let after_header = at + entry.record.header_bytes();
                entry.at_byte = match payload_bytes {
                    0 => 0,
                    _ if is_write => payload_at,
                    _ => open.used + after_header as u64,
                };
                let units = (entry.at_byte / UNIT as u64) as u32;
                let lsn = first_lsn + entries.len() as u64;
                record::encode(&entry.record, lsn, self.epoch, units, self.salt, &mut bytes[at..]);
                state.block.summary.add(&bytes[at..after_header]);
                at = after_header;
                if is_write {
                    payload_at += payload_bytes as u64;
                } else {
                    sg_copy_to(&entry.payload, &mut bytes[at..at + payload_bytes]);
                    at += payload_bytes.next_multiple_of(UNIT);
                }
                entries.push(entry);
            }
        }
        assert_eq!(at, plan.header_bytes, "a group is what its plan says");
        let group = Group {
            first_lsn,
            epoch: self.epoch,
            records: entries.len() as u16,
            header_blocks: plan.header_blocks() as u16,
            payload_blocks: plan.payload_blocks as u32,
            sequence: open.sequence,
            durable_lsn,
        };
        group.seal(self.salt, bytes);
        let header_bytes = header.len();
        bufs.push(header);
        for entry in entries.iter_mut().filter(|entry| matches!(entry.record, Record::Write { .. })) {
            bufs.append(&mut entry.payload);
        }
        let start = open.place as u64 * self.geometry.segment_bytes() + if is_first { 0 } else { open.used };
        open.used += plan.blocks() * BLOCK_BYTES as u64;
        state.next_lsn += entries.len() as u64;
        let number = state.block.first_group + state.block.in_flight.len() as u64;
        state.block.in_flight.push_back(InFlight {
            first_lsn,
            sequence: open.sequence,
            place: open.place,
            entries,
            header_bytes,
            medium_bytes: sg_len(&bufs) as u64,
            outcome: None,
            used_spare,
        });
        (number, start, bufs)
    }

    /// Writes whole blocks at a byte of the shard's log, in as few operations as the device allows.
    pub(super) async fn write_blocks(&self, start: u64, bufs: SgList, durable: bool) -> (Status, SgList) {
        let Medium::Block { channel, info, first_block, .. } = &self.medium else { unreachable!("a block log") };
        let block_size = info.block_size as u64;
        let flags = if durable && info.volatile_cache { Flags::FUA } else { Flags::NONE };
        let mut lba = (first_block * BLOCK_BYTES as u64 + start) / block_size;
        let piece_bytes = info.max_io_blocks as u64 * block_size;
        let (mut rest, mut written) = (bufs, SgList::new());
        loop {
            let len = sg_len(&rest) as u64;
            let tail = if len > piece_bytes { sg_split_off(&mut rest, piece_bytes as usize) } else { SgList::new() };
            let blocks = len.min(piece_bytes) / block_size;
            let done = channel.submit(Io { flags, ..Io::write(Lba(lba), blocks as u32, rest) }).await;
            if tail.is_empty() && written.is_empty() {
                return (done.status, done.io.bufs);
            }
            sg_append(&mut written, done.io.bufs);
            if tail.is_empty() || !done.status.is_ok() {
                sg_append(&mut written, tail);
                return (done.status, written);
            }
            (rest, lba) = (tail, lba + blocks);
        }
    }
}
