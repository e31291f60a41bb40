//! Single parity over full rows (RAID 5 without read-modify-write): any member can be lost, and no write reads.
//!
//! ```text
//! | head: written at any block, the same on every member | body: rows of N - 1 chunks of data and one of parity |
//! ```
//! The body takes whole rows alone ([`RowInfo`](crate::device::RowInfo)), so that the parity is computed from what is written.
//! Who stands on it keeps what is small in the head, and refers to a row only once it has been written and flushed.
//!
//! What holds, always:
//! - A write is acknowledged when every member that is written has its part. A member that missed one is called failed,
//!   durably on all others, before that write is acknowledged; so one that comes back can never be taken for current.
//! - Two members are never given up: what needs both ends with an error.
//! - A member that lacks data is not read, except the rows that have been rebuilt on it; what it had is computed from the
//!   others. So is what a member cannot read, or what does not pass the checksums of a device below; it is rewritten then.
//! - A row that was being written when the power failed reads as anything. Nothing else of the device does: rows share no
//!   chunk, and no chunk is written for another row's sake.
//! - The heads of all members in sync are equal in what is read of them: after an unclean stop each part is made so before
//!   anything of it is read or written, from the first member that can be read, and the rest in the background. So is a part
//!   in which a write failed without any member being called failed, whichever it is.
//! - It grows by rows, which read as anything until they are written, in a new generation; begun only with all members in
//!   sync, so that none is left behind that is too small.
//! - A member that is being rebuilt gets every write. Rows below its watermark are whole on it; the watermark that is
//!   recorded follows a flush.
//!
//! What is not here: parity over parts of rows, and a check of rows that nobody reads: who stands on the device knows
//! which rows are in use, and has checksums of them.

pub(crate) mod format;
mod grow;
mod head;
mod io;
mod join;
mod links;
mod lost;
mod meta;
mod open;
mod rebuild;
mod recover;
mod rows;
mod upkeep;
mod versions;

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::flush_line::FlushLine;
use crate::io::Status;
use crate::pace::Rate;
use crate::part_name::part_name;
use crate::range_lock::RangeLock;
use format::Superblock;
pub use format::{MemberState, PARITY_MEMBERS_MAX, PARITY_MEMBERS_MIN};
use head::Unequal;
use io::ParityChannel;
use links::Inner;
use lost::LostRows;
pub use open::{ParityDefect, ParityOptions};
use reactor::{IoFuture, Reactor};
use rows::Rows;
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};

/// Largest row, without its parity: it is written in one operation.
const ROW_BYTES_MAX: u64 = 1 << 20;
/// What is copied or computed at a time on each member, holding the range.
const COPY_BYTES: usize = 256 << 10;

/// How a member is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The child's name; `None` when absent.
    pub name: Option<String>,
    /// Its state.
    pub state: MemberState,
    /// Why it lacks data, if it is that it holds what was there at an earlier time.
    pub older: Option<OlderCopy>,
    /// Reads that failed on it, or that a pool above it found wrong.
    pub read_errors: u64,
    /// Times that blocks of it were rewritten from the others.
    pub repairs: u64,
}

/// What a member holds that was found to be behind the others when the device was opened: it missed writes, or was put back from
/// a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OlderCopy {
    /// The generation that it has seen.
    pub generation: u64,
    /// That of the others.
    pub newest: u64,
}

/// A member that is being rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildStatus {
    /// Which.
    pub member: usize,
    /// Bytes that it has got.
    pub done_bytes: u64,
    /// Bytes that it gets.
    pub bytes: u64,
    /// Bytes per second lately; 0 while nothing is being rebuilt.
    pub bytes_per_s: u64,
    /// Why it has come to a halt. A rebuild in the background goes on by itself when that has passed.
    pub halted: Option<Status>,
}

/// How a parity device is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParityStatus {
    /// All members, in order.
    pub members: Vec<MemberStatus>,
    /// A member lacks data: the loss of another one would be a loss of data.
    pub degraded: bool,
    /// What is being rebuilt.
    pub rebuild: Option<RebuildStatus>,
    /// Reads answered by computing what a member has, or had.
    pub reconstructed_reads: u64,
    /// Blocks that could be computed for a replacement from nothing, since another member could not read its part.
    pub lost_blocks: u64,
    /// Bytes of the head.
    pub head_bytes: u64,
    /// Those of them that are still to be compared after a crash.
    pub head_uncompared_bytes: u64,
    /// Bytes of data in a row.
    pub row_bytes: u64,
}

/// See the module.
pub struct ParityDevice {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    /// As it was opened; see [`info`](Self::info).
    opened: DeviceInfo,
    /// As it was opened; see [`geometry`](Self::geometry).
    layout: Rows,
    /// Rows now: it may have grown.
    rows: AtomicU64,
    members: Vec<Member>,
    /// Of writes, and of what computes or copies beside them; in blocks of the device.
    ranges: RangeLock,
    flushes: Arc<FlushLine>,
    /// Held across metadata writes; one range, so a fair asynchronous mutex.
    meta_turn: RangeLock,
    /// The superblock as it is on the members; locked for copies only.
    superblock: Mutex<Superblock>,
    /// A member's state has changed and is not yet on all members in use: until it is, nothing that relies on it is
    /// acknowledged. Set with the metadata turn held, read by all channels.
    unrecorded: AtomicBool,
    /// The superblock calls the heads equal.
    clean: AtomicBool,
    /// Of the head: after a crash all of it, and what was written when no member was called failed for a write that failed.
    unequal: Unequal,
    rebuild_turn: RangeLock,
    join_turn: RangeLock,
    /// Rows that the member being rebuilt has; meaningless without one.
    rebuilt_rows: AtomicU64,
    rebuild_bytes_per_s: AtomicU64,
    /// See [`RebuildStatus::halted`].
    halted: Mutex<Option<Status>>,
    /// The device is closed, or nobody has it any more: nothing is rebuilt.
    closing: AtomicBool,
    lost_rows: LostRows,
    reconstructed_reads: AtomicU64,
    lost_blocks: AtomicU64,
    /// See [`ParityOptions`].
    note_bytes: u64,
    rebuild_rate: Rate,
    member_names: Vec<String>,
    defect: Option<ParityDefect>,
}

struct Member {
    /// Another one when a device takes this place. Locked for copies only, and not on the path of data.
    device: Mutex<Option<Arc<dyn BlockDevice>>>,
    /// Devices that have taken this place since the device was opened: channels are opened again then.
    joins: AtomicU32,
    /// The superblock slot to write first; only its first value may differ from zero. Written with the metadata turn held.
    slot_first: AtomicU64,
    /// The last generation that it is known to have. Written with the metadata turn held.
    generation: AtomicU64,
    /// Locked for copies only.
    older: Mutex<Option<OlderCopy>>,
    state: AtomicU8,
    read_errors: AtomicU64,
    repairs: AtomicU64,
}

impl Member {
    fn device(&self) -> Option<Arc<dyn BlockDevice>> {
        self.device.lock().expect("nothing panics while holding a member's device").clone()
    }

    fn older(&self) -> Option<OlderCopy> {
        *self.older.lock().expect("nothing panics while holding a generation")
    }

    fn set_older(&self, older: Option<OlderCopy>) {
        *self.older.lock().expect("nothing panics while holding a generation") = older;
    }

    /// Gives its place to another device, and returns the former one.
    fn take_in(&self, device: Option<Arc<dyn BlockDevice>>) -> Option<Arc<dyn BlockDevice>> {
        let mut place = self.device.lock().expect("nothing panics while holding a member's device");
        let before = std::mem::replace(&mut *place, device);
        self.joins.fetch_add(1, AcqRel);
        before
    }
}

/// Indices of members.
type MemberSet = SmallVec<[usize; PARITY_MEMBERS_MAX]>;

impl Shared {
    /// Of the members that are here.
    fn devices(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.members.iter().filter_map(Member::device).collect()
    }

    fn geometry(&self) -> Rows {
        Rows { rows: self.rows.load(Acquire), ..self.layout }
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { blocks: self.geometry().blocks(), ..self.opened }
    }

    fn state(&self, member: usize) -> MemberState {
        MemberState::of_code(self.members[member].state.load(Acquire)).expect("only states are stored")
    }

    /// As messages call it.
    fn member_name(&self, member: usize) -> String {
        part_name("member", member, self.members[member].device().as_ref(), &self.member_names)
    }

    fn members_where(&self, wanted: impl Fn(MemberState) -> bool) -> MemberSet {
        (0..self.members.len()).filter(|member| wanted(self.state(*member))).collect()
    }

    /// Members that are written.
    fn active(&self) -> MemberSet {
        self.members_where(|state| state != MemberState::Failed)
    }

    fn in_sync(&self) -> MemberSet {
        self.members_where(|state| state == MemberState::InSync)
    }

    fn rebuilding(&self) -> Option<usize> {
        self.members_where(|state| state == MemberState::Rebuilding).first().copied()
    }

    /// Whether a member has its chunk of a row.
    fn has(&self, member: usize, row: u64) -> bool {
        match self.state(member) {
            MemberState::InSync => true,
            MemberState::Failed => false,
            MemberState::Rebuilding if self.defect == Some(ParityDefect::ReadUnbuilt) => true,
            MemberState::Rebuilding => row < self.rebuilt_rows.load(Acquire),
        }
    }

    /// Whether these can be called failed: one, and all others have everything.
    fn can_lose(&self, members: &[usize]) -> bool {
        let others_in_sync = |lost: usize| {
            (0..self.members.len()).all(|other| other == lost || self.state(other) == MemberState::InSync)
        };
        matches!(members, [member] if others_in_sync(*member))
    }

    fn block_size(&self) -> usize {
        self.opened.block_size as usize
    }
}

impl ParityDevice {
    /// How its members are doing, in order.
    pub fn members(&self) -> Vec<MemberStatus> {
        let members = self.shared.members.iter().enumerate().map(|(index, member)| MemberStatus {
            name: member.device().map(|device| device.name().to_string()),
            state: self.shared.state(index),
            older: member.older(),
            read_errors: member.read_errors.load(Relaxed),
            repairs: member.repairs.load(Relaxed),
        });
        members.collect()
    }

    /// How it is doing.
    pub fn status(&self) -> ParityStatus {
        let shared = &self.shared;
        let bytes = |blocks: u64| blocks * shared.block_size() as u64;
        let rebuild = shared.rebuilding().map(|member| RebuildStatus {
            member,
            done_bytes: bytes(shared.rebuilt_rows.load(Acquire) * shared.geometry().chunk),
            bytes: bytes(shared.geometry().rows * shared.geometry().chunk),
            bytes_per_s: shared.rebuild_bytes_per_s.load(Relaxed),
            halted: *shared.halted.lock().expect("nothing panics while holding a reason"),
        });
        ParityStatus {
            members: self.members(),
            degraded: shared.in_sync().len() < shared.members.len(),
            rebuild,
            reconstructed_reads: shared.reconstructed_reads.load(Relaxed),
            lost_blocks: shared.lost_blocks.load(Relaxed),
            head_bytes: bytes(shared.geometry().head),
            head_uncompared_bytes: bytes(shared.unequal.blocks()),
            row_bytes: bytes(shared.geometry().row_blocks()),
        }
    }

    /// Bytes per second that a rebuild writes at most, also one that goes on; 0: a short pause after each step instead.
    pub fn set_rebuild_rate(&self, bytes_per_s: u64) {
        self.shared.rebuild_rate.set(bytes_per_s);
    }

    /// Makes what was written durable and the heads equal, and says so in the superblocks, as before a shutdown: the next
    /// opening need not compare them.
    pub async fn settle(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        let outcome = self.inner(reactor).settle().await;
        outcome.map_err(|status| DeviceError::Io { device: self.shared.name.clone(), action: "settle", status })
    }

    /// Ends a rebuild, which goes on when the device is opened again, and settles.
    pub async fn close(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        self.shared.closing.store(true, Release);
        drop(self.shared.rebuild_turn.lock(0, 1, true).await);
        self.settle(reactor).await
    }

    fn inner(&self, reactor: &Rc<Reactor>) -> Rc<Inner> {
        Inner::new(self.shared.clone(), reactor.clone())
    }
}

impl Drop for ParityDevice {
    fn drop(&mut self) {
        self.shared.closing.store(true, Release);
    }
}

impl BlockDevice for ParityDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn kind(&self) -> &'static str {
        "parity"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let inner = self.inner(reactor);
        // Now and not in the middle of a write.
        (0..self.shared.members.len()).for_each(|member| {
            inner.channel(member);
        });
        Ok(Rc::new(ParityChannel(inner)))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.shared.devices()
    }

    fn note_wrong(&self, lba: u64, version: u8) -> Option<String> {
        self.shared.note_wrong(lba, version)
    }

    /// Grows it, to whole rows of at most this size, and its members where they are too small for that.
    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        IoFuture::new(self.grow(reactor, blocks))
    }

    /// Takes into use by what all members have become larger, when all are in sync.
    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        IoFuture::new(self.grow_with_members(reactor))
    }
}
