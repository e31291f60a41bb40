//! Exactly what some places of a pool's volumes hold, for work whose operations never meet: an oracle that knows which
//! operation must succeed, where the one for overlapping operations only knows what may be read.

use crate::hot_pool::EXTENT_BLOCKS;
use base::Rng;
use bdev::{BlockDevice, Io, Lba, Op, Status};
use engine::{Pool, ScrubStatus};
use reactor::{Reactor, SgList};
use sim::oracle::{fill_cell, read_cell};
use sim::{Handle, NodeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// Blocks of a volume, in one extent, that are written together and all or none: less than a block of 4 KiB, or whole ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    /// The volume, by the number in its name.
    pub(crate) volume: u64,
    /// First block, as hosts see them.
    pub(crate) first: u64,
    pub(crate) blocks: u64,
}

impl Spot {
    /// The same places (first block, blocks) in each extent (volume, extent of it); `per_block` host blocks are 4 KiB.
    pub(crate) fn in_extents(
        extents: impl Iterator<Item = (u64, u64)>,
        places: &[(u64, u64)],
        per_block: u64,
    ) -> impl Iterator<Item = Spot> {
        extents.flat_map(move |(volume, extent)| {
            let first = extent * EXTENT_BLOCKS * per_block;
            places.iter().map(move |&(at, blocks)| Spot { volume, first: first + at, blocks })
        })
    }
}

#[derive(Clone, Debug)]
struct Known {
    /// Stamps; more than one while a write is under way, and after a crash in the middle of it.
    values: Vec<u64>,
    /// Reading it may be an error.
    may_be_lost: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Ledger {
    spots: BTreeMap<Spot, Known>,
    stamps: u64,
    /// Reading anything may be an error: the media are being damaged.
    pub(crate) rots: bool,
}

impl Ledger {
    /// All zero.
    pub(crate) fn new(spots: impl Iterator<Item = Spot>) -> Ledger {
        let zero = Known { values: vec![0], may_be_lost: false };
        Ledger { spots: spots.map(|spot| (spot, zero.clone())).collect(), stamps: 0, rots: false }
    }

    pub(crate) fn spots(&self) -> Vec<Spot> {
        self.spots.keys().copied().collect()
    }

    /// The volumes, by the numbers in their names.
    pub(crate) fn volumes(&self) -> BTreeSet<u64> {
        self.spots.keys().map(|spot| spot.volume).collect()
    }

    /// A volume begins as another one is.
    pub(crate) fn copy(&mut self, of: u64, volume: u64) {
        let copied: Vec<_> = self.copied(of, volume).collect();
        self.spots.extend(copied);
    }

    /// A volume is as one of another ledger is.
    pub(crate) fn copy_of(&mut self, other: &Ledger, of: u64, volume: u64) {
        self.spots.extend(other.copied(of, volume));
    }

    /// Whether a volume is as one of another ledger is.
    pub(crate) fn is_as(&self, volume: u64, other: &Ledger, of: u64) -> bool {
        other.copied(of, volume).all(|(spot, known)| self.spots[&spot].values == known.values)
    }

    fn copied(&self, of: u64, volume: u64) -> impl Iterator<Item = (Spot, Known)> {
        let copied = self.spots.iter().filter(move |(spot, _)| spot.volume == of);
        copied.map(move |(spot, known)| (Spot { volume, ..*spot }, known.clone()))
    }

    /// A volume goes.
    pub(crate) fn remove(&mut self, volume: u64) {
        self.spots.retain(|spot, _| spot.volume != volume);
    }

    /// Those that a range of a volume has.
    pub(crate) fn within(&self, volume: u64, blocks: std::ops::Range<u64>) -> Vec<Spot> {
        let inside = |spot: &Spot| spot.volume == volume && blocks.contains(&spot.first);
        self.spots.keys().filter(|spot| inside(spot)).copied().collect()
    }

    /// Whether it is known to hold something.
    pub(crate) fn is_written(&self, spot: Spot) -> bool {
        !self.spots[&spot].values.contains(&0)
    }

    /// What was newest may be gone.
    pub(crate) fn lose(&mut self, lost: impl Fn(&Spot) -> bool) {
        let known = self.spots.iter_mut().filter(|(spot, _)| lost(spot));
        known.for_each(|(_, known)| known.may_be_lost = true);
    }

    /// It may be zero from now on, or not.
    pub(crate) fn begin_zero(&mut self, spots: &[Spot]) {
        spots.iter().for_each(|spot| self.begin(*spot, 0));
    }

    /// It is zero, and so is what shares its block.
    pub(crate) fn end_zero(&mut self, spots: &[Spot]) {
        spots.iter().for_each(|spot| self.end(*spot, 0, true));
    }

    fn begin(&mut self, spot: Spot, stamp: u64) {
        let values = &mut self.spot(spot).values;
        if !values.contains(&stamp) {
            values.push(stamp);
        }
    }

    fn end(&mut self, spot: Spot, stamp: u64, whole: bool) {
        let known = self.spot(spot);
        known.values = vec![stamp];
        // Less than a block over one that is lost does not make it whole.
        known.may_be_lost &= !whole;
    }

    fn spot(&mut self, spot: Spot) -> &mut Known {
        self.spots.get_mut(&spot).expect("a spot of this ledger")
    }
}

/// One process's hands on an open pool.
#[derive(Clone)]
pub(crate) struct Hands {
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    pub(crate) sim: Handle,
    pub(crate) node: NodeId,
    pub(crate) pool: Arc<Pool>,
    pub(crate) reactor: Rc<Reactor>,
    pub(crate) block_shift: u16,
}

impl Hands {
    /// What a process that is going down believes to have done counts for nothing.
    pub(crate) fn is_alive(&self) -> bool {
        self.sim.alive(self.node)
    }

    /// Has so many tasks work side by side, to their ends; each gets its number and chance of its own.
    pub(crate) async fn share_out<F: Future<Output = ()> + 'static>(
        &self,
        tasks: u64,
        rng: &mut Rng,
        work: impl Fn(u64, Rng) -> F,
    ) {
        let working: Vec<_> = (0..tasks).map(|task| self.reactor.spawn_join(work(task, rng.fork()))).collect();
        for work in working {
            work.await;
        }
    }

    pub(crate) fn expect(&self, holds: bool, text: impl FnOnce() -> String) {
        self.sim.expect(holds || !self.is_alive(), text);
    }

    /// Nothing that the pool knows contradicts itself.
    pub(crate) async fn audit(&self) {
        let audit = self.pool.audit(&self.reactor).await;
        let problem = audit.as_ref().map_or(None, |audit| audit.problems.first());
        self.expect(problem.is_none() && audit.is_ok(), || format!("the audit finds: {audit:?}"));
        self.audit_places().await;
    }

    /// What a scrub of all shards finds.
    pub(crate) async fn scrub(&self) -> ScrubStatus {
        self.pool.scrub(&self.reactor, u64::MAX).await;
        loop {
            let shards = self.pool.status(&self.reactor).await.shards;
            if shards.iter().any(|shard| shard.scrub.running) {
                self.reactor.sleep_ns(1_000_000).await;
                continue;
            }
            return shards.into_iter().fold(ScrubStatus::default(), |mut sum, shard| {
                sum.healed_blocks += shard.scrub.healed_blocks;
                sum.corrupt_blocks += shard.scrub.corrupt_blocks;
                sum.lost_blocks += shard.scrub.lost_blocks;
                sum.damaged_headers += shard.scrub.damaged_headers;
                sum.damaged_metadata += shard.scrub.damaged_metadata;
                sum.repaired_metadata += shard.scrub.repaired_metadata;
                sum.bad_metadata.extend(shard.scrub.bad_metadata);
                sum.bad.extend(shard.scrub.bad);
                sum.bad_headers.extend(shard.scrub.bad_headers);
                sum
            });
        }
    }

    /// In a shaped pool, map pages and bands say the same of where blocks are.
    pub(crate) async fn audit_places(&self) {
        let problems = self.pool.audit_places(&self.reactor).await;
        self.expect(problems.is_empty(), || format!("the audit of places finds: {problems:?}"));
    }

    /// Host blocks in one of 4 KiB.
    pub(crate) fn per_block(&self) -> u64 {
        1 << (12 - self.block_shift)
    }

    fn is_whole(&self, spot: Spot) -> bool {
        (spot.first | spot.blocks).is_multiple_of(self.per_block())
    }

    async fn submit(&self, volume: u64, io: Io) -> (Status, SgList) {
        let name = format!("v{volume}");
        let Some(device) = self.pool.volume(&name) else {
            self.expect(false, || format!("volume {name} is missing"));
            return (Status::Gone, SgList::new());
        };
        let channel = device.open_channel(&self.reactor).expect("volumes open on every reactor");
        let done = channel.submit(io).await;
        (done.status, done.io.bufs)
    }

    async fn buffers(&self, spot: Spot) -> SgList {
        let mut bufs = SgList::new();
        bufs.push(self.reactor.pool().alloc((spot.blocks as usize) << self.block_shift).await);
        bufs
    }

    /// Of whatever volume, since clones have the cells of others: no two volumes are written with the same stamp.
    fn cell(&self, spot: Spot, index: usize) -> usize {
        spot.first as usize + index
    }

    /// Writes something new. A write that finds no space has written nothing; others that fail may have.
    pub(crate) async fn write(&self, spot: Spot) -> Status {
        let mut bufs = self.buffers(spot).await;
        let stamp = {
            let mut ledger = self.ledger.borrow_mut();
            ledger.stamps += 1;
            ledger.stamps
        };
        for (index, bytes) in bufs[0].as_mut_slice().chunks_mut(1 << self.block_shift).enumerate() {
            fill_cell(bytes, stamp, self.cell(spot, index));
        }
        self.ledger.borrow_mut().begin(spot, stamp);
        let (status, _) = self.submit(spot.volume, Io::write(Lba(spot.first), spot.blocks as u32, bufs)).await;
        if self.is_alive() {
            let mut ledger = self.ledger.borrow_mut();
            match status {
                Status::Ok => ledger.end(spot, stamp, self.is_whole(spot)),
                Status::NoSpace => ledger.spot(spot).values.retain(|value| *value != stamp),
                _ => {}
            }
        }
        status
    }

    /// Reads and judges.
    pub(crate) async fn read(&self, spot: Spot) -> Status {
        let bufs = self.buffers(spot).await;
        let (status, bufs) = self.submit(spot.volume, Io::read(Lba(spot.first), spot.blocks as u32, bufs)).await;
        let known = self.ledger.borrow().spots[&spot].clone();
        if !status.is_ok() {
            self.expect(known.may_be_lost || self.ledger.borrow().rots, || {
                format!("reading {spot:?} failed with '{status}' without cause")
            });
            return status;
        }
        let bytes = bufs.iter().flat_map(|buf| buf.as_slice().chunks(1 << self.block_shift));
        let values = bytes.enumerate().map(|(index, bytes)| read_cell(bytes, self.cell(spot, index)));
        let values: Vec<Result<u64, String>> = values.collect();
        let value = values[0].clone();
        self.expect(values.iter().all(|other| *other == value), || format!("{spot:?} is torn: {values:?}"));
        let allowed = value.as_ref().is_ok_and(|value| known.values.contains(value));
        self.expect(allowed, || format!("{spot:?} reads as {value:?}, allowed are {:?}", known.values));
        if let (Ok(value), true) = (value, self.is_alive()) {
            self.ledger.borrow_mut().spot(spot).values = vec![value];
        }
        status
    }

    /// Trims a range of a volume, and all spots in it.
    pub(crate) async fn trim(&self, volume: u64, first: u64, blocks: u64) -> Status {
        let spots = self.ledger.borrow().within(volume, first..first + blocks);
        self.ledger.borrow_mut().begin_zero(&spots);
        let (status, _) = self.submit(volume, Io::new(Op::Unmap, Lba(first), blocks as u32)).await;
        if status.is_ok() && self.is_alive() {
            let per = self.per_block();
            let blocks = first.next_multiple_of(per)..(first + blocks) / per * per;
            for spot in spots {
                let whole = blocks.contains(&spot.first) && spot.first + spot.blocks <= blocks.end;
                self.ledger.borrow_mut().end(spot, 0, whole);
            }
        }
        status
    }

    /// Reads every spot that was ever written, and of the others some.
    pub(crate) async fn read_all(&self) {
        let spots = self.ledger.borrow().spots();
        for (spot, index) in spots.into_iter().zip(0u64..) {
            let fresh = self.ledger.borrow().spots[&spot].values == [0];
            if !fresh || index.is_multiple_of(8) {
                self.read(spot).await;
            }
        }
    }
}
