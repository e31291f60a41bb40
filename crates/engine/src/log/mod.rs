//! The log of a shard: a ring of segments that records are appended to and read back from.
//!
//! Two media behind one interface. *Mapped*: header and payload are stored, one fence, done. *Block*: records gather while
//! groups are under way; a group is one contiguous write of a self-describing run of records.
//!
//! What holds: records become visible (through [`Sink`]) strictly in the order of their numbers, and to nobody else before they
//! are durable. A record is valid whole or not at all. A new epoch begins in a new segment, and a segment is opened only when
//! everything in the one before is durable; so where a later segment begins says how far an earlier one is valid.
//!
//! Checksums of payloads are made here, when a record is appended; who reads verifies them.
//!
//! What is not here: what records mean.

mod block;
mod deliver;
mod mapped;
mod read;
mod refusals;
mod ring;
mod scan;
mod slots;
mod summary;
mod summary_pages;
#[cfg(test)]
mod tests;

pub use crate::format::record::{Crcs, Record};
pub(crate) use scan::{Ahead, newest_epoch, read as read_log, survey};
pub use scan::{Head, HeadSegment, Known, LogError, LostLsns, scan};

use crate::format::record::{NUMBER_MAX, salt};
use crate::format::segment::Segment;
use crate::format::superblock::Superblock;
use crate::meter::{Meter, Metered};
use crate::units::{BLOCK_BYTES, LogAt, LogTail, RECORD_BLOCKS_MAX};
use base::Errno;
use bdev::{Channel, DeviceInfo, Status};
use block::BlockState;
use reactor::buf::sg_len;
use reactor::driver::PmemId;
use reactor::sync::Notify;
use reactor::{Buf, IoFuture, Reactor, SgList, TurnEnd};
use refusals::Refusals;
use ring::Ring;
use slots::Slots;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use summary_pages::SummaryPages;

/// Fewest segments of a log: two in reserve, one being written, one before it.
pub const SEGMENTS_MIN: u32 = 4;
/// Fewest blocks of a segment: its header, the largest record in a group of its own, a summary of one block and its footer,
/// and some room so that the remainder at the end of a segment is not most of it.
pub const SEGMENT_BLOCKS_MIN: u32 = 80;
/// Bytes of a segment that hold no records at worst: its header, the start of a record that does not fit, a summary.
const SEGMENT_WASTE_MAX: u64 = RECORD_BLOCKS_MAX as u64 * BLOCK_BYTES as u64 + SEGMENT_ENDS_MAX;
/// Of those, bytes that do not depend on the record: header and summary.
const SEGMENT_ENDS_MAX: u64 = 8 * BLOCK_BYTES as u64;
/// Most records that wait in the log for space or for a group; each also holds its writer's payload. Beyond, appends are
/// refused with `EAGAIN`: far more than the hosts of one reactor can have under way.
pub const QUEUED_RECORDS_MAX: usize = 1 << 16;

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its number.
    pub lsn: u64,
    /// Sequence of its segment.
    pub segment: u64,
    /// Its payload; the blocks of a write follow one another, 64 units each. The start of the segment without
    /// payload.
    pub at: LogAt,
}

/// What the log tells the index. Calls come in the order of record numbers, before any writer is woken, and must not
/// append.
pub trait Sink {
    /// The record is placed next: what [`placed`](Self::placed) touches is on its way meanwhile.
    fn coming(&self, _record: &Record) {}
    /// The record is durable, or is before anything else runs on this reactor.
    fn placed(&self, record: &Record, placed: Placed);
    /// The segment with this sequence is about to be overwritten.
    fn reclaimed(&self, segment: u64);
}

/// Who appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// What frees space when it is done; may use the reserve.
    Internal,
    /// Waits while free space is at or below the reserve.
    User,
}

/// Where one shard's segments lie.
#[derive(Clone)]
pub enum Medium {
    /// In persistent memory.
    Mapped {
        /// The shard's reactor.
        reactor: Rc<Reactor>,
        /// The mapping.
        pmem: PmemId,
        /// First byte of the shard's first segment, a multiple of 64.
        first_byte: u64,
    },
    /// On a block device.
    Block {
        /// The shard's reactor.
        reactor: Rc<Reactor>,
        /// The device on this reactor.
        channel: Rc<dyn Channel>,
        /// What the device is; its blocks are at most 4 KiB.
        info: DeviceInfo,
        /// First 4 KiB block of the shard's first segment.
        first_block: u64,
    },
}

impl Medium {
    fn reactor(&self) -> &Rc<Reactor> {
        match self {
            Medium::Mapped { reactor, .. } | Medium::Block { reactor, .. } => reactor,
        }
    }

    /// The same, whose writes are counted; those to memory are not.
    pub(crate) fn metered(&self, written: &Meter) -> Medium {
        match self.clone() {
            Medium::Block { reactor, channel, info, first_block } => {
                let channel = Metered::over(channel, info.block_size, written);
                Medium::Block { reactor, channel, info, first_block }
            }
            mapped => mapped,
        }
    }

    fn is_mapped(&self) -> bool {
        matches!(self, Medium::Mapped { .. })
    }

    /// A range of a mapped log is going to be read.
    fn fetch(&self, offset: u64, bytes: u64) {
        if let Medium::Mapped { reactor, pmem, first_byte } = self {
            reactor.driver().pmem_fetch(*pmem, first_byte + offset, bytes);
        }
    }
}

/// The shape of one shard's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGeometry {
    /// The shard.
    pub shard: u16,
    /// First 8 bytes of the pool's UUID.
    pub pool: [u8; 8],
    /// Number of segments, at least [`SEGMENTS_MIN`].
    pub segments: u32,
    /// Blocks of 4 KiB of each, at least [`SEGMENT_BLOCKS_MIN`].
    pub segment_blocks: u32,
}

impl LogGeometry {
    /// That of a shard of a pool.
    pub(crate) fn of(pool: &Superblock, shard: u16) -> LogGeometry {
        LogGeometry { shard, pool: pool.pool_prefix(), segments: pool.segments, segment_blocks: pool.segment_blocks }
    }

    /// Why no log can have this shape.
    pub fn fault(&self) -> Option<&'static str> {
        let units = self.segments as u64 * self.segment_blocks as u64 * (BLOCK_BYTES as u64 / LogAt::UNIT);
        if self.segments < SEGMENTS_MIN {
            Some("too few segments")
        } else if self.segment_blocks < SEGMENT_BLOCKS_MIN {
            Some("segments are too small")
        } else {
            (units > 1 << 32).then_some("larger than its places can address")
        }
    }

    fn segment_bytes(&self) -> u64 {
        self.segment_blocks as u64 * BLOCK_BYTES as u64
    }

    fn place_of(&self, sequence: u64) -> u32 {
        (sequence % self.segments as u64) as u32
    }

    /// The place of something in the segment at `place`.
    fn at(&self, place: u32, byte: u64) -> LogAt {
        LogAt(((place as u64 * self.segment_bytes() + byte) / LogAt::UNIT) as u32)
    }

    fn salt(&self) -> u32 {
        salt(self.pool, self.shard)
    }
}

/// How an append ended, and its payload back.
#[derive(Debug)]
pub struct Appended {
    /// Where the record is durable, or why it is not.
    pub result: Result<Placed, Status>,
    /// The payload, as it was given.
    pub payload: SgList,
}

/// Space of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Segments that may be written, the one being written not among them.
    pub segments_free: u32,
    /// Segments that may be written, or will be after a release.
    pub segments_total: u32,
    /// Bytes that the free segments and the rest of the current one hold at least, headers included, beyond what waits.
    pub bytes_free: u64,
    /// Bytes that all segments hold.
    pub bytes_total: u64,
}

/// Counters since the log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Records made durable.
    pub appended_records: u64,
    /// Bytes of their payloads.
    pub user_bytes: u64,
    /// Bytes written to the medium, headers, padding and summaries included.
    pub medium_bytes: u64,
    /// Groups written.
    pub groups: u64,
    /// Fences.
    pub fences: u64,
    /// Failed writes.
    pub errors: u64,
    /// Segments opened.
    pub segments: u64,
    /// Segments that are left alone for a while, after a failed write.
    pub resting: u32,
    /// Appends that had to wait for space.
    pub waits: u64,
}

struct Entry {
    record: Record,
    payload: SgList,
    class: Class,
    slot: u32,
    /// Its turn among the appends that had to wait.
    ticket: u64,
    /// Where its payload lies, in bytes from the start of the segment, once it is in a group; 0 without payload.
    at_byte: u64,
}

impl Entry {
    /// Log bytes that it takes at most: in a group of its own.
    fn bytes_max(&self) -> u64 {
        (BLOCK_BYTES + self.record.payload_bytes().next_multiple_of(BLOCK_BYTES)) as u64
    }
}

/// The segment being written.
struct Open {
    sequence: u64,
    place: u32,
    first_lsn: u64,
    /// Bytes in use, from the start of the segment.
    used: u64,
    /// A write into it failed: it takes no more records.
    failed: bool,
}

impl Open {
    /// Not even its header was written.
    fn is_unwritten(&self) -> bool {
        self.used == BLOCK_BYTES as u64
    }
}

struct State {
    ring: Ring,
    next_lsn: u64,
    open: Option<Open>,
    /// Records that wait, by class, and the log bytes that they will take at most.
    queues: [VecDeque<Entry>; 2],
    queued_bytes: u64,
    refusals: Refusals,
    stats: LogStats,
    block: BlockState,
    /// Of a mapped log.
    pages: SummaryPages,
}

/// A shard's log. See the module.
pub struct Log {
    medium: Medium,
    geometry: LogGeometry,
    salt: u32,
    epoch: u32,
    sink: Rc<dyn Sink>,
    state: RefCell<State>,
    slots: RefCell<Slots>,
    changed: Notify,
    /// The end of this turn is asked for.
    armed: Cell<bool>,
    /// Appends that had to wait so far.
    tickets: Cell<u64>,
    /// See [`store_summaries_early`](Self::store_summaries_early).
    summaries_early: Cell<bool>,
    /// See [`close_for_good`](Self::close_for_good).
    closed: Cell<bool>,
    /// See [`is_hopeless`](Self::is_hopeless).
    refused: Cell<bool>,
    /// What messages call it.
    name: OnceCell<String>,
}

impl Log {
    /// A log that goes on after `head` (from [`scan`], or [`Head::empty`]) with an epoch that no segment has yet. Opens its
    /// first segment with the first record. Panics when the geometry is impossible: it was checked when it was read.
    pub fn new(
        medium: Medium,
        geometry: LogGeometry,
        head: Head,
        tail: LogTail,
        epoch: u32,
        sink: Rc<dyn Sink>,
    ) -> Rc<Log> {
        assert_eq!(geometry.fault(), None);
        if let Medium::Block { info, .. } = &medium {
            assert!(BLOCK_BYTES.is_multiple_of(info.block_size as usize), "log blocks are made of device blocks");
        }
        assert!(head.epoch < epoch || head.segments.is_empty(), "a new epoch for every opening");
        let ring = Ring::new(&geometry, &head, tail);
        let block = BlockState::new(medium.reactor());
        let state = State {
            ring,
            next_lsn: head.next.lsn,
            open: None,
            queues: Default::default(),
            queued_bytes: 0,
            refusals: Refusals::new(),
            stats: LogStats::default(),
            block,
            pages: SummaryPages::new(&geometry),
        };
        Rc::new(Log {
            salt: geometry.salt(),
            medium,
            geometry,
            epoch,
            sink,
            state: RefCell::new(state),
            slots: RefCell::default(),
            changed: Notify::default(),
            armed: Cell::new(false),
            tickets: Cell::new(0),
            summaries_early: Cell::new(false),
            closed: Cell::new(false),
            refused: Cell::new(false),
            name: OnceCell::new(),
        })
    }

    /// What messages call it from now on: whose log it is, and on which device.
    pub(crate) fn call_it(&self, name: String) {
        let _ = self.name.set(name);
    }

    /// As messages call it.
    fn name(&self) -> String {
        self.name.get().cloned().unwrap_or_else(|| format!("the log of shard {}", self.geometry.shard))
    }

    /// For tests of the crash tests: from now on a mapped log breaks the rule that a page of a summary is stored when its
    /// records are durable.
    pub fn store_summaries_early(&self) {
        self.summaries_early.set(true);
    }

    /// For tests of the tests: from now on a segment to which a write has failed is not used again.
    pub fn rest_for_good(&self) {
        self.state.borrow_mut().ring.rest_for_good();
    }

    /// Refuses all appends from now on, with `Gone`. What waits or is under way goes on.
    pub fn close_for_good(&self) {
        self.closed.set(true);
    }

    /// Appends and fences a write of so many blocks now, on a mapped log that has room and nobody waiting for it. `None`: use
    /// [`append`](Self::append).
    ///
    /// `name` tells the first block, when there is room for the record and before anything is stored: what it asks for in memory is on its
    /// way while the payload is stored. When it does not know, nothing has been appended.
    #[inline]
    pub fn try_append(
        &self,
        blocks: u32,
        payload: &[Buf],
        mut name: impl FnMut() -> Option<u32>,
    ) -> Option<Result<Placed, Status>> {
        let mut record = Record::write(0, blocks);
        check(&record, payload);
        if self.closed.get() {
            return Some(Err(Status::Gone));
        }
        // Not even before records of the other class: the one that allocates the extent may be among them.
        if !self.medium.is_mapped() || self.state.borrow().queues.iter().any(|queue| !queue.is_empty()) {
            return None;
        }
        self.place(&mut record, payload, Class::User, |record| {
            let Record::Write { first, .. } = record else { return false };
            name().map(|block| *first = block).is_some()
        })
    }

    /// Appends; the record is durable when this completes. Records of one class get their numbers in the order of the
    /// calls. Dropping the future gives up the wait, not the append.
    pub fn append(self: &Rc<Self>, mut record: Record, payload: SgList, class: Class) -> IoFuture<'static, Appended> {
        check(&record, &payload);
        if self.closed.get() {
            return IoFuture::ready(Appended { result: Err(Status::Gone), payload });
        }
        if !self.medium.is_mapped() {
            record.seal(&payload);
        } else if self.state.borrow().queues[class as usize].is_empty() {
            if let Some(result) = self.place(&mut record, &payload, class, |_| true) {
                return IoFuture::ready(Appended { result, payload });
            }
            self.state.borrow_mut().stats.waits += 1;
        }
        let state = &mut *self.state.borrow_mut();
        if state.queues.iter().map(VecDeque::len).sum::<usize>() >= QUEUED_RECORDS_MAX {
            return IoFuture::ready(Appended { result: Err(Status::Os(Errno::EAGAIN)), payload });
        }
        let slot = self.slots.borrow_mut().take();
        let ticket = self.tickets.replace(self.tickets.get() + 1);
        let entry = Entry { record, payload, class, slot, ticket, at_byte: 0 };
        state.queued_bytes += entry.bytes_max();
        state.queues[class as usize].push_back(entry);
        self.arm();
        IoFuture::new(slots::Wait::new(self.clone(), slot))
    }

    /// Space.
    pub fn room(&self) -> Room {
        let state = self.state.borrow();
        let (free, total) = (state.ring.free(), state.ring.usable());
        // The end of a segment may be too short for the next record.
        let capacity = self.geometry.segment_bytes() - SEGMENT_WASTE_MAX - self.summary_share();
        let pages = if self.medium.is_mapped() { state.pages.bytes() } else { 0 };
        let rest = state.open.as_ref().map_or(0, |open| self.geometry.segment_bytes() - open.used - pages);
        let bytes_free = free as u64 * capacity + rest.saturating_sub(SEGMENT_WASTE_MAX);
        Room {
            segments_free: free,
            segments_total: total,
            bytes_free: bytes_free.saturating_sub(state.queued_bytes),
            bytes_total: total as u64 * capacity,
        }
    }

    /// Whether a small record of [`Class::Internal`] that takes so many bytes at most, its header included, need not wait for a
    /// release.
    pub fn has_room(&self, bytes: u64) -> bool {
        let state = self.state.borrow();
        let pages = if self.medium.is_mapped() { state.pages.bytes() } else { 0 };
        let rest = state.open.as_ref().map_or(0, |open| self.geometry.segment_bytes() - open.used - pages);
        let summary = state.block.summary.bytes() as u64;
        state.ring.free() > 0 || rest >= state.queued_bytes + bytes + summary + SEGMENT_ENDS_MAX
    }

    /// Bytes of a mapped segment of whole blocks that its summary takes, beyond what [`SEGMENT_WASTE_MAX`] has for that: some
    /// 300 entries of 12 bytes make a page. What is smaller than a block takes more; the reserve is there for such.
    fn summary_share(&self) -> u64 {
        if self.medium.is_mapped() { self.geometry.segment_bytes() / 256 } else { 0 }
    }

    /// Every visible record is before it, and every later one has this number, or a greater one, in this segment, or a later one.
    pub fn next(&self) -> LogTail {
        let lsn = self.state.borrow().block.first_in_flight();
        LogTail { segment: self.segment_ahead(), lsn: lsn.unwrap_or(self.state.borrow().next_lsn) }
    }

    /// No record that is not visible yet lies, or will lie, in a segment before this one.
    pub fn segment_ahead(&self) -> u64 {
        let state = self.state.borrow();
        state.open.as_ref().map_or(state.ring.next_least(), |open| open.sequence)
    }

    /// Records before `tail` are in a durable checkpoint: the segments before `tail.segment` are free. Their data stays
    /// readable until [`Sink::reclaimed`].
    pub fn release(self: &Rc<Self>, tail: LogTail) {
        let state = &mut *self.state.borrow_mut();
        let open = state.open.as_ref().map_or(u64::MAX, |open| open.sequence);
        state.ring.release(tail.segment.min(open));
        self.refused.set(self.refused.get() && state.ring.is_full(Class::Internal));
        if state.queues.iter().any(|queue| !queue.is_empty()) {
            self.arm();
        }
    }

    /// Whether no segment is free, the reserve included: only a release helps records on.
    pub fn is_cramped(&self) -> bool {
        self.state.borrow().ring.is_full(Class::Internal)
    }

    /// Whether records wait for a release.
    pub fn is_stalled(&self) -> bool {
        let state = self.state.borrow();
        state.ring.is_full(Class::Internal) && !state.queues[Class::Internal as usize].is_empty()
    }

    /// Whether it is cramped and likely to stay so: segments are left alone after failed writes, or records had to be refused since
    /// the last release.
    pub fn is_hopeless(&self) -> bool {
        let state = self.state.borrow();
        state.ring.is_full(Class::Internal) && (state.ring.resting() > 0 || self.refused.get())
    }

    /// Whether records had to be refused since the last release.
    pub fn has_refused(&self) -> bool {
        self.refused.get()
    }

    /// Refuses what waits for a segment of a log that [is cramped](Self::is_cramped). For who knows that no release will come
    /// before these records have ended.
    pub fn refuse_waiting(&self) {
        let state = self.state.borrow();
        let waits = state.open.is_none() && state.block.is_idle() && !state.queues[Class::Internal as usize].is_empty();
        if waits && state.ring.is_full(Class::Internal) {
            drop(state);
            self.refused.set(true);
            self.refuse(Class::Internal);
            self.changed.notify_all();
        }
    }

    /// A segment from this one on that is free although it holds records: none, unless it was released too early.
    pub fn freed_from(&self, segment: u64) -> Option<u64> {
        self.state.borrow().ring.freed_from(segment)
    }

    /// Whether it lies in mapped memory, where reads need no waiting.
    pub fn is_mapped(&self) -> bool {
        self.medium.is_mapped()
    }

    /// Counters.
    pub fn stats(&self) -> LogStats {
        let state = self.state.borrow();
        LogStats { resting: state.ring.resting(), ..state.stats }
    }

    /// Whether appends of users fail at present, and how, since the medium refuses writes. An attempt now and then finds out whether it
    /// takes some again.
    pub fn refusal(&self) -> Option<Status> {
        let state = self.state.borrow();
        let is_refused = state.refusals.is_refused() || state.ring.is_exhausted(Class::User);
        is_refused.then(|| state.refusals.status())
    }

    /// Whether it is time to find out whether a medium that refuses writes takes them again, and a small record can be tried without a
    /// release.
    pub fn may_knock(&self) -> bool {
        let now_ns = self.medium.reactor().now_ns();
        let is_held = {
            let state = &mut *self.state.borrow_mut();
            state.ring.wake(Class::User, now_ns);
            state.refusals.holds(now_ns)
        };
        !is_held && self.has_room(BLOCK_BYTES as u64)
    }

    /// Waits until every append made before this call has ended.
    pub async fn barrier(&self) {
        let before = self.tickets.get();
        self.changed.wait_until(|| self.has_ended(before)).await
    }

    /// Appends so far that could not be carried out at once; see [`has_ended`](Self::has_ended).
    pub fn appends(&self) -> u64 {
        self.tickets.get()
    }

    /// Whether all but what was appended after so many [`appends`](Self::appends) has ended.
    pub fn has_ended(&self, appends: u64) -> bool {
        self.oldest_ticket().is_none_or(|ticket| ticket >= appends)
    }

    fn oldest_ticket(&self) -> Option<u64> {
        let state = self.state.borrow();
        let waiting = state.queues.iter().filter_map(|queue| queue.front());
        let under_way = state.block.in_flight.iter().flat_map(|group| group.entries.first());
        waiting.chain(under_way).map(|entry| entry.ticket).min()
    }

    /// Calls `f` with the records that have been appended and that nobody sees yet.
    pub fn for_each_invisible(&self, mut f: impl FnMut(&Record)) {
        let state = self.state.borrow();
        let under_way = state.block.in_flight.iter().flat_map(|group| &group.entries);
        state.queues.iter().flatten().chain(under_way).for_each(|entry| f(&entry.record));
    }

    /// Whether everything appended is durable and nothing is under way.
    pub fn is_idle(&self) -> bool {
        let state = self.state.borrow();
        state.queues.iter().all(VecDeque::is_empty) && state.block.is_idle()
    }

    /// Waits until it is idle.
    pub async fn drain(&self) {
        self.changed.wait_until(|| self.is_idle()).await
    }

    /// Works off the queues at the end of this turn: what is appended in one turn goes into one group.
    fn arm(self: &Rc<Self>) {
        if !self.armed.replace(true) {
            self.medium.reactor().at_turn_end(self.clone());
        }
    }

    fn pump(self: &Rc<Self>) {
        if self.medium.is_mapped() {
            self.place_queued();
        } else {
            while self.start_group() {}
        }
        self.changed.notify_all();
    }

    fn finish(&self, slot: u32, appended: Appended) {
        let waker = self.slots.borrow_mut().finish(slot, appended);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn segment_header(&self, sequence: u64, first_lsn: u64) -> Segment {
        assert!(sequence < NUMBER_MAX && first_lsn < NUMBER_MAX);
        Segment { sequence, first_lsn, epoch: self.epoch, shard: self.geometry.shard, pool: self.geometry.pool }
    }

    /// Takes the next segment of the ring for `class`, and tells the index what is overwritten by that.
    fn open_next(&self, class: Class) -> Opening {
        if self.is_exhausted(class) {
            return Opening::Never(self.state.borrow().refusals.status());
        }
        let state = &mut *self.state.borrow_mut();
        let Some(next) = state.ring.open(class) else { return Opening::Full };
        let first_lsn = state.next_lsn;
        let used = BLOCK_BYTES as u64;
        state.open = Some(Open { sequence: next.sequence, place: next.place, first_lsn, used, failed: false });
        state.stats.segments += 1;
        Opening::Opened(next.overwritten)
    }

    /// A write to the current segment succeeded.
    #[inline]
    fn count_success(&self, state: &mut State) {
        if state.refusals.worked() {
            state.ring.wake_all();
            tracing::warn!("{} takes writes again", self.name());
        }
    }

    /// Whether no release helps records of `class` on: they are refused.
    fn is_exhausted(&self, class: Class) -> bool {
        let (state, now_ns) = (&mut *self.state.borrow_mut(), self.medium.reactor().now_ns());
        state.ring.wake(class, now_ns);
        state.refusals.holds(now_ns) || state.ring.is_exhausted(class)
    }

    /// A write to the current segment failed: it is left alone for a while, and the next record goes to another. How long that has to
    /// wait, ns.
    fn leave_failed(&self, status: Status) -> u64 {
        let (state, now_ns) = (&mut *self.state.borrow_mut(), self.medium.reactor().now_ns());
        let open = state.open.take().expect("only the current segment fails");
        state.ring.rest(open.sequence, now_ns);
        state.stats.errors += 1;
        let pause_ns = state.refusals.failed(status, now_ns);
        let (name, segment, left) = (self.name(), open.sequence, state.ring.usable());
        if state.refusals.has_just_begun() {
            tracing::warn!("{name} refuses writes: {status}; one is tried every second: see to the device");
        } else if !state.refusals.is_refused() {
            tracing::warn!(segment, left, "{name}: a write failed: {status}; its segment is left alone for a while");
        }
        pause_ns
    }
}

enum Opening {
    /// The next segment is open; it overwrites this one.
    Opened(Option<u64>),
    /// There is no space until a release.
    Full,
    /// There will be none.
    Never(Status),
}

impl TurnEnd for Log {
    fn turn_end(self: Rc<Self>) {
        self.armed.set(false);
        self.pump();
    }
}

fn check(record: &Record, payload: &[Buf]) {
    assert_eq!(record.fault(), None, "{record:?}");
    assert_eq!(record.payload_bytes(), sg_len(payload), "the payload is as long as its record says");
}
