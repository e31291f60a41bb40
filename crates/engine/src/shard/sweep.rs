//! Destage in place to disks that seek: to each disk by itself, in [sweeps](super::lane), while no host reads it.
//!
//! By how full the log would be after a checkpoint, in the [marks](super::Marks) of its pace:
//!
//! | log | a disk that hosts read | another one |
//! |---|---|---|
//! | below `start`, with writers | nothing | nothing |
//! | halfway to `soft` | nothing | a few writes at a time |
//! | on to `soft` | an extent now and then, the more the fuller the log is | a few writes at a time |
//! | above, or when somebody waits for room or for rest | all that it takes | all that it takes |
//!
//! So readers have a disk to themselves as long as the log has room for what is written meanwhile, and no longer. A disk that
//! is busy, slow or failing holds back its own extents alone, and with them, where they are the oldest, the log's tail.
//!
//! An extent that is spread over disks (a stripe) gives to each what it may have, and keeps the rest for its next turn.

use super::Shard;
use super::destage::{EXTENTS_MAX, WRITES_MAX};
use super::house::RETRY_NS;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use bdev::{Disks, Reads, Status};
use std::cell::Cell;
use std::rc::Rc;

/// A disk counts as read by hosts for so long after a read: two seeks. Who reads one block after the other is back before.
const QUIET_NS: u64 = 20_000_000;
/// How often it is looked whether disks are still read, and wait after a round in which nothing could be moved.
pub(super) const LOOK_NS: u64 = 10_000_000;
/// What a disk that is read gets when it has its turn: as much as comes in such a time, of one extent and then the next. Neighbours
/// take the arm away once; one by one, each would.
const TURN_NS: u64 = 50_000_000;
/// Time from one such turn to the next, halfway between the marks.
const PAUSE_NS: u64 = 250_000_000;
/// Extents destaged together, and writes of each, while there is no hurry: what a host's read finds before it.
const EASY: (usize, usize) = (2, 2);
/// Fewest extents otherwise: a disk sorts what it has been given.
const DEPTH_MIN: usize = 4;

/// See the module.
pub(super) struct Sweeps {
    disks: Rc<Disks>,
    gates: Vec<Gate>,
    /// One for each disk, and one for extents that are spread over several.
    lanes: Vec<Lane>,
    /// Nothing may be moved for the moment: disks are read, lanes rest, or somebody else has what there is.
    is_held: Cell<bool>,
    /// How many wait for the pool to be at rest.
    hurries: Cell<u32>,
}

/// Whether a disk is read.
#[derive(Default)]
struct Gate {
    seen: Cell<Reads>,
    /// Until when it counts as read.
    read_until_ns: Cell<u64>,
    /// When it may be written to all the same: to the end of a turn, and from the next one on.
    turn_ends_ns: Cell<u64>,
    next_turn_ns: Cell<u64>,
}

#[derive(Default)]
struct Lane {
    is_at_work: Cell<bool>,
    rests_until_ns: Cell<u64>,
    /// How its last round failed.
    failed: Cell<Option<Status>>,
}

impl Sweeps {
    pub(super) fn new(disks: Disks) -> Sweeps {
        let (count, disks) = (disks.count(), Rc::new(disks));
        let gates = (0..count).map(|_| Gate::default()).collect();
        let lanes = (0..=count).map(|_| Lane::default()).collect();
        Sweeps { disks, gates, lanes, is_held: Cell::new(false), hurries: Cell::new(0) }
    }

    /// Whether hosts read a disk.
    fn is_read(&self, disk: usize, now_ns: u64) -> bool {
        let (gate, reads) = (&self.gates[disk], self.disks.reads(disk));
        if gate.seen.replace(reads).begun != reads.begun || reads.begun != reads.ended {
            gate.read_until_ns.set(now_ns + QUIET_NS);
        }
        now_ns < gate.read_until_ns.get()
    }

    fn is_at_work(&self) -> bool {
        self.lanes.iter().any(|lane| lane.is_at_work.get())
    }

    /// There is nothing to destage.
    pub(super) fn rest(&self) {
        self.is_held.set(false);
    }

    /// Whether there is something to destage, and nothing may be moved for the moment.
    pub(super) fn is_held(&self) -> bool {
        self.is_held.get()
    }

    /// Somebody waits for rest, until this is dropped.
    pub(super) fn hurry(&self) -> Hurried<'_> {
        self.hurries.set(self.hurries.get() + 1);
        Hurried(&self.hurries)
    }
}

/// See [`Sweeps::hurry`].
pub(super) struct Hurried<'a>(&'a Cell<u32>);

impl Drop for Hurried<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The lane of what begins at a block of the capacity device: that of its disk, or the last one.
fn lane_of(disks: &Disks, lba: u64, blocks: u64) -> usize {
    match disks.place(lba) {
        (disk, run) if run >= blocks => disk,
        _ => disks.count(),
    }
}

impl Shard {
    /// Puts what is dirty into the lanes of its disks.
    pub(super) fn divide_by_disks(&self) {
        let Some(sweeps) = &self.sweeps else { return };
        let (disks, meta) = (sweeps.disks.clone(), self.meta.clone());
        let scale = BLOCK_BYTES as u64 / self.capacity_info.block_size as u64;
        let of_extent = move |extent: u32| {
            let first = meta.data_block(extent * EXTENT_BLOCKS) * scale;
            lane_of(&disks, first, EXTENT_BLOCKS as u64 * scale)
        };
        self.index.divide(sweeps.lanes.len(), Box::new(of_extent));
    }

    /// The log, or somebody, cannot wait for disks to be idle.
    fn is_hurried(&self, sweeps: &Sweeps) -> bool {
        sweeps.hurries.get() > 0
            || self.pace.waiting() > 0
            || self.log.is_stalled()
            || self.fill_after_checkpoint().share() >= self.pace.marks.soft
    }

    /// Whether a disk may be written to now. With `takes` its turn is taken, if that is why.
    fn is_open(&self, sweeps: &Sweeps, disk: usize, takes: bool) -> bool {
        let now_ns = self.reactor.now_ns();
        if !sweeps.is_read(disk, now_ns) || self.is_hurried(sweeps) {
            return true;
        }
        let (marks, share) = (self.pace.marks, self.fill_after_checkpoint().share());
        let half = (marks.start + marks.soft) / 2;
        let Some(above) = share.checked_sub(half) else { return false };
        let gate = &sweeps.gates[disk];
        let has_turn = now_ns >= gate.next_turn_ns.get();
        if has_turn && takes {
            gate.turn_ends_ns.set(now_ns + TURN_NS);
            gate.next_turn_ns.set(now_ns + TURN_NS + PAUSE_NS * marks.soft.saturating_sub(share) / (above + 1));
        }
        has_turn || now_ns < gate.turn_ends_ns.get()
    }

    /// Of so many blocks from this one on, how many lie on one disk, and how many writes of their extent that may have under way now.
    pub(super) fn may_write(&self, block: u32, blocks: usize) -> (usize, usize) {
        let Some(sweeps) = &self.sweeps else { return (blocks, WRITES_MAX) };
        let scale = BLOCK_BYTES as u64 / self.capacity_info.block_size as u64;
        let (disk, run) = sweeps.disks.place(self.meta.data_block(block) * scale);
        // One that lies on two disks goes with the first.
        let blocks = blocks.min((run / scale).max(1) as usize);
        let is_easy = !self.is_hurried(sweeps) && !sweeps.is_read(disk, self.reactor.now_ns());
        match self.is_open(sweeps, disk, true) {
            true if is_easy => (blocks, EASY.1),
            true => (blocks, WRITES_MAX),
            false => (blocks, 0),
        }
    }

    /// Disks below, and of these those that hosts read while there is something to destage.
    pub(crate) fn disks(&self) -> (usize, usize) {
        let Some(sweeps) = &self.sweeps else { return (0, 0) };
        let is_read = |disk: &usize| sweeps.is_read(*disk, self.reactor.now_ns());
        let read = if self.index.dirty_extents() > 0 { (0..sweeps.gates.len()).filter(is_read).count() } else { 0 };
        (sweeps.gates.len(), read)
    }

    /// Begins a round of each lane that may have one, and waits for some of what is under way. False: nothing is.
    pub(super) async fn sweep_some(self: &Rc<Self>, sweeps: &Sweeps) -> Result<bool, Status> {
        if self.meta.owes_root() {
            self.checkpoint().await?;
        }
        let (now_ns, mut is_held) = (self.reactor.now_ns(), false);
        for (index, lane) in sweeps.lanes.iter().enumerate() {
            if lane.is_at_work.get() {
                continue;
            }
            if now_ns < lane.rests_until_ns.get() {
                is_held = true;
                continue;
            }
            let mut of_lane = if index < sweeps.gates.len() { index..index + 1 } else { 0..sweeps.gates.len() };
            match of_lane.any(|disk| self.is_open(sweeps, disk, false)) {
                true => self.begin_round(sweeps, index),
                false => is_held = true,
            }
        }
        let is_at_work = sweeps.is_at_work();
        sweeps.is_held.set(!is_at_work && (is_held || self.index.destages_under_way() > 0));
        if is_at_work {
            // Disks that have become idle need not wait for the others.
            self.reactor.timeout(LOOK_NS, self.settled.notified()).await;
            self.house.note_error(sweeps.lanes.iter().find_map(|lane| lane.failed.get()));
            return Ok(true);
        }
        let failed = sweeps.lanes.iter().filter_map(|lane| lane.failed.take()).last();
        failed.map_or(Ok(false), Err)
    }

    /// Begins to destage some extents of a lane, if it has any.
    fn begin_round(self: &Rc<Self>, sweeps: &Sweeps, index: usize) {
        let room = self.log.room();
        // Half of what is free: the log does not fill while so much is swept, if it is emptied as fast as it is written.
        let segments = room.segments_total as u64 * (256 - self.fill_after_checkpoint().share().min(256)) / 512;
        let depth = self.tuning.destage_depth.unwrap_or((EXTENTS_MAX / sweeps.gates.len().max(1)).max(DEPTH_MIN));
        let is_read = |disk: usize| disk < sweeps.gates.len() && sweeps.is_read(disk, self.reactor.now_ns());
        let depth = match self.is_hurried(sweeps) {
            true if is_read(index) => depth.div_ceil(2),
            true => depth,
            false if is_read(index) => 1,
            false => depth.min(EASY.0),
        };
        let mut round: smallvec::SmallVec<[_; EXTENTS_MAX]> = smallvec::SmallVec::new();
        while round.len() < depth
            && let Some(taken) = self.index.take_next(index, segments)
        {
            let shard = self.clone();
            round.push(self.reactor.spawn_join(async move { shard.destage(taken).await }));
        }
        if round.is_empty() {
            return;
        }
        sweeps.lanes[index].is_at_work.set(true);
        let shard = self.clone();
        self.reactor.spawn(async move {
            let mut ended = Ok(false);
            for destage in round {
                let clean = shard.unless_cramped(destage).await;
                ended = ended.and_then(|any| Ok(any | clean?));
            }
            shard.end_round_of(index, ended);
        });
    }

    fn end_round_of(&self, index: usize, ended: Result<bool, Status>) {
        let sweeps = self.sweeps.as_ref().expect("rounds of lanes are begun where there are lanes");
        let (lane, now_ns) = (&sweeps.lanes[index], self.reactor.now_ns());
        lane.failed.set(ended.err());
        match ended {
            Ok(true) => self.house.blocked_since.set(None),
            // It is held back by somebody who waits for a device, or its disk is read again.
            Ok(false) => {
                if self.is_hurried(sweeps) {
                    self.unblock();
                }
                lane.rests_until_ns.set(now_ns + LOOK_NS);
            }
            Err(_) => lane.rests_until_ns.set(now_ns + RETRY_NS),
        }
        lane.is_at_work.set(false);
        self.settled.notify_all();
    }
}
