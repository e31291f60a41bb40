//! The dirty journal: which slices may have blocks in the log alone.
//!
//! A slice is in it, durably, before the first acknowledgement into it; so when the log device is lost, everything that may
//! be lost with it is in the journal. Slices leave it lazily.
//!
//! Two copies. Additions go to new blocks at the end of the current copy, never over a block that holds others: a torn write
//! loses nothing that was acknowledged. When the copy is full, when a write to it has failed, or when enough was retired, the
//! whole set is written to the other copy, which holds as soon as all blocks of that set are valid; then the former copy is
//! made invalid, so that damage to the one in use does not bring it back.

use super::flaw::{Flaw, MetadataKind, Review};
use super::media::Media;
use super::{MetaError, Object};
use crate::format::Malformed;
use crate::format::dirty::{
    DIRTY_ENTRIES, DirtyHeader, DirtyOwner, DirtySlice, IndexNote, decode_dirty, encode_dirty, index_noted,
    opening_shown,
};
use crate::format::superblock::{Role, Superblock};
use crate::units::BLOCK_BYTES;
use bdev::{Channel, DeviceInfo, Status};
use reactor::Reactor;
use reactor::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use uuid::Uuid;

/// Mixes the one word that a key is; always the same, so runs can be repeated.
#[derive(Default)]
struct SliceHasher(u64);

impl Hasher for SliceHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are words");
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        // Fibonacci hashing, then the high bits, which are the good ones, down to where the table looks.
        let mixed = word.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }
}

fn key(volume: u32, slice: u32) -> u64 {
    (volume as u64) << 32 | slice as u64
}

fn slice_of(key: u64) -> DirtySlice {
    ((key >> 32) as u32, key as u32)
}

/// In the place of a round: the slice is retired.
const RETIRED: u64 = u64::MAX;
/// In the place of a round: the slice would be retired, if the shadow had it.
const DUE: u64 = u64::MAX - 1;
/// In the place of a round: it would be, and the shadow has no room for it.
const KEPT: u64 = u64::MAX - 2;

/// In the place of a slice: a block without any is wanted.
const NO_SLICE: u64 = 0;

/// Roots of the index after which a block notes them, if none has been added for slices.
const ROOTS_UNNOTED_MAX: u64 = 16;

/// An addition that waits to be durable.
struct Ticket {
    key: u64,
    outcome: Cell<Option<Status>>,
}

/// Where the current copy ends.
#[derive(Clone, Copy, Debug)]
struct Position {
    copy: u8,
    header: DirtyHeader,
}

/// One shard's journal; see the module.
pub struct DirtyJournal {
    media: Media,
    owner: DirtyOwner,
    /// The log device, as notes have it.
    log: [u8; 8],
    /// What the next block says of the index, and what the last one says.
    index: Cell<IndexNote>,
    noted: Cell<IndexNote>,
    copies: [u64; 2],
    copy_blocks: u32,
    /// The durable set, and in which round each was asked for last; [`RETIRED`]: it may leave.
    slices: RefCell<HashMap<u64, Cell<u64>, BuildHasherDefault<SliceHasher>>>,
    /// See [`end_round`](Self::end_round).
    round: Cell<u64>,
    retired: Cell<usize>,
    due: Cell<usize>,
    /// Slices leave by way of a [shadow](Self::due).
    has_shadow: bool,
    waiting: RefCell<Vec<Rc<Ticket>>>,
    compaction: RefCell<Option<Rc<Ticket>>>,
    working: Cell<bool>,
    /// The set is being written to the other copy.
    rewriting: Cell<bool>,
    ended: Notify,
    /// The next block to be written: its copy, generation, and number.
    position: Cell<Position>,
    /// The current copy is known to be durable.
    settled: Cell<bool>,
    /// The current copy must not be added to: a write to it failed, or the other copy may hold by now.
    closed: Cell<bool>,
    generation: Cell<u64>,
    block_writes: Cell<u64>,
}

impl DirtyJournal {
    /// Writes an empty journal: that of a new pool's shard.
    pub async fn format(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
        shard: u16,
    ) -> Result<(), MetaError> {
        let media = Media::new(reactor, channel, &info)?;
        let (bytes, _) = encode_set(owner_of(superblock, shard), 1, &[]);
        for (copy, bytes) in [(1, &[0; BLOCK_BYTES][..]), (0, &bytes)] {
            let (object, block) = (Object::Journal { shard }, superblock.journal_copy(shard, copy));
            let failed = |status| MetaError::Io { action: "write", object, block, status };
            media.write_durably(block, bytes).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Writes a journal of these slices in the place of one of which no copy is valid. Cut off at any point, it is as before, or
    /// this one.
    ///
    /// # Errors
    /// [`Status::NoSpace`]: a copy has no room for so many; or what the device says.
    pub(crate) async fn renew(
        media: &Media,
        superblock: &Superblock,
        shard: u16,
        slices: &BTreeSet<DirtySlice>,
    ) -> Result<(), Status> {
        let [first, second] = [0, 1].map(|copy| superblock.journal_copy(shard, copy));
        // Whatever of either can be read must not be taken for a part of this one.
        let mut newest = (superblock.epoch as u64) << 32;
        for block in [first, second].into_iter().flat_map(|copy| copy..copy + superblock.journal_blocks as u64) {
            let Ok(bytes) = media.read_bytes(block, 1).await else { continue };
            if let Ok((header, _)) = decode_dirty(&bytes, superblock.pool, shard) {
                newest = newest.max(header.generation);
            }
        }
        let slices: Vec<DirtySlice> = slices.iter().copied().collect();
        if !has_room(superblock, slices.len()) {
            return Err(Status::NoSpace);
        }
        let (bytes, _) = encode_set(owner_of(superblock, shard), newest + 1, &slices);
        media.write_durably(first, &bytes).await?;
        media.write_durably(second, &[0; BLOCK_BYTES]).await
    }

    /// Reads the newer valid copy. Reads only. The superblock's epoch must have been raised since the last opening that
    /// wrote: it makes generations unique, so that what is left of an abandoned copy is told from its successor.
    pub async fn open(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
        shard: u16,
    ) -> Result<Rc<DirtyJournal>, MetaError> {
        let media = Media::new(reactor, channel, &info)?;
        let Newer { copy, header, slices, index } = match read_newer(&media, superblock, shard).await {
            Ok(newer) => newer,
            // A copy that cannot be read says more than one that is invalid, as one of them usually is.
            Err([first @ MetaError::Io { .. }, _]) => return Err(first),
            Err([_, second]) => return Err(second),
        };
        let settled = !media.is_cached();
        Ok(Rc::new(DirtyJournal {
            media,
            owner: owner_of(superblock, shard),
            log: IndexNote::of(log_of(superblock), 0).log,
            index: Cell::new(index),
            noted: Cell::new(index),
            copies: [superblock.journal_copy(shard, 0), superblock.journal_copy(shard, 1)],
            copy_blocks: superblock.journal_blocks,
            slices: RefCell::new(slices.iter().map(|(volume, slice)| (key(*volume, *slice), Cell::new(0))).collect()),
            round: Cell::new(1),
            retired: Cell::new(0),
            due: Cell::new(0),
            has_shadow: superblock.shadowed,
            waiting: RefCell::default(),
            compaction: RefCell::default(),
            working: Cell::new(false),
            rewriting: Cell::new(false),
            ended: Notify::default(),
            position: Cell::new(Position { copy, header }),
            settled: Cell::new(settled),
            closed: Cell::new(false),
            generation: Cell::new(header.generation.max((superblock.epoch as u64) << 32)),
            block_writes: Cell::new(0),
        }))
    }

    /// Whether a slice is in it, without asking for it.
    pub(crate) fn names(&self, (volume, slice): DirtySlice) -> bool {
        self.slices.borrow().contains_key(&key(volume, slice))
    }

    /// Whether the slice is in the journal, durably. Asking keeps a retired slice in it: a write is about to rely on it.
    #[inline]
    pub fn contains(&self, volume: u32, slice: u32) -> bool {
        let slices = self.slices.borrow();
        let Some(asked) = slices.get(&key(volume, slice)) else { return false };
        self.put(asked, self.round.get());
        true
    }

    /// A slice was asked for in a round, or is what stands in the place of one.
    #[inline]
    fn put(&self, slice: &Cell<u64>, asked: u64) {
        let former = slice.replace(asked);
        if former.max(asked) >= DUE {
            for (state, count) in [(RETIRED, &self.retired), (DUE, &self.due)] {
                count.set(count.get() + (asked == state) as usize - (former == state) as usize);
            }
        }
    }

    /// Puts a slice into the journal; durable when this returns. Additions at one time share a write.
    pub async fn add(self: &Rc<Self>, volume: u32, slice: u32) -> Result<(), Status> {
        if self.contains(volume, slice) {
            return Ok(());
        }
        let ticket = Rc::new(Ticket { key: key(volume, slice), outcome: Cell::new(None) });
        self.waiting.borrow_mut().push(ticket.clone());
        self.finish(ticket).await
    }

    /// Puts all of these slices into the journal; durable when this returns.
    ///
    /// # Errors
    /// [`Status::NoSpace`]: it has no room for so many, and nothing was added; or what the device says.
    pub(crate) async fn add_all(self: &Rc<Self>, slices: &BTreeSet<DirtySlice>) -> Result<(), Status> {
        let lacking: Vec<u64> = slices
            .iter()
            .filter(|(volume, slice)| !self.contains(*volume, *slice))
            .map(|(volume, slice)| key(*volume, *slice))
            .collect();
        if base_blocks(self.slices.borrow().len() + lacking.len()) >= self.copy_blocks {
            return Err(Status::NoSpace);
        }
        let ticket = |key| Rc::new(Ticket { key, outcome: Cell::new(None) });
        let tickets: Vec<Rc<Ticket>> = lacking.into_iter().map(ticket).collect();
        self.waiting.borrow_mut().extend(tickets.iter().cloned());
        for ticket in tickets {
            self.finish(ticket).await?;
        }
        Ok(())
    }

    /// Notes which opening of the pool this is, durably, unless something written since says so: before anything is appended to the
    /// log, so that the device shows that it is not an older copy even without its superblocks.
    pub(crate) async fn note_opening(self: &Rc<Self>) -> Result<(), Status> {
        if self.block_writes.get() > 0 { Ok(()) } else { self.add_block().await }
    }

    /// Adds a block, durably, with slices or without any.
    async fn add_block(self: &Rc<Self>) -> Result<(), Status> {
        let ticket = Rc::new(Ticket { key: NO_SLICE, outcome: Cell::new(None) });
        self.waiting.borrow_mut().push(ticket.clone());
        self.finish(ticket).await
    }

    /// Blocks say from now on that a root of the index of this generation is durable on the log device: one that has none so new is an
    /// older copy.
    pub(crate) fn index_is_at(&self, root: u64) {
        self.index.set(IndexNote { log: self.log, root });
    }

    /// Writes a block that says so, if it is long since one did.
    pub(crate) async fn note_index(self: &Rc<Self>) -> Result<(), Status> {
        let (index, noted) = (self.index.get(), self.noted.get());
        let is_far = noted.log != index.log || index.root.saturating_sub(noted.root) >= ROOTS_UNNOTED_MAX;
        if is_far { self.add_block().await } else { Ok(()) }
    }

    /// Says that nothing of the slice is in the log alone any more: no write to it that has asked [`contains`](Self::contains)
    /// is under way. It leaves the journal at the next compaction.
    pub fn retire(&self, volume: u32, slice: u32) {
        if let Some(asked) = self.slices.borrow().get(&key(volume, slice)) {
            self.put(asked, RETIRED);
        }
    }

    /// Ends a round and begins the next one: slices are told apart by the round in which they were asked for last. The round
    /// that has ended.
    pub fn end_round(&self) -> u64 {
        let ended = self.round.get();
        self.round.set(ended + 1);
        ended
    }

    /// Retires every slice that nobody has asked for since a round ended; where there is a shadow they are [due](Self::due).
    pub fn retire_unasked(&self, ended: u64) {
        let state = if self.has_shadow { DUE } else { RETIRED };
        self.slices.borrow().values().filter(|asked| asked.get() <= ended).for_each(|asked| self.put(asked, state));
    }

    /// Whether any slice is [due](Self::due).
    pub(crate) fn has_due(&self) -> bool {
        self.due.get() > 0
    }

    /// Some slices that only have to be in the shadow before they are retired.
    pub(crate) fn due(&self, most: usize) -> Vec<DirtySlice> {
        let slices = self.slices.borrow();
        let due = slices.iter().filter(|(_, asked)| asked.get() == DUE).map(|(key, _)| *key);
        let mut due: Vec<u64> = due.collect();
        due.sort_unstable();
        due.into_iter().take(most).map(slice_of).collect()
    }

    /// The shadow has these slices: those that are due still, as they were since it was begun, are retired.
    pub(crate) fn shadowed(&self, slices: &[DirtySlice]) {
        self.end_due(slices, RETIRED);
    }

    /// The shadow has no room for these slices: they stay.
    pub(crate) fn keep(&self, slices: &[DirtySlice]) {
        self.end_due(slices, KEPT);
    }

    /// The shadow could not take these slices now: they are due again when a further round has ended.
    pub(crate) fn postpone(&self, slices: &[DirtySlice]) {
        self.end_due(slices, self.round.get());
    }

    fn end_due(&self, slices: &[DirtySlice], state: u64) {
        let held = self.slices.borrow();
        let due = slices.iter().filter_map(|(volume, slice)| held.get(&key(*volume, *slice)));
        due.filter(|asked| asked.get() == DUE).for_each(|asked| self.put(asked, state));
    }

    /// Writes the set anew when that is worthwhile: slices were retired, or the copy is mostly additions.
    pub async fn compact(self: &Rc<Self>) -> Result<(), Status> {
        let left = self.slices.borrow().len() - self.retired.get();
        let base = base_blocks(left) as usize;
        // Retired slices would be called lost with the log, so they are worth a few blocks.
        let retires = self.retired.get() > 0 && (base <= 64 || self.retired.get() > left / 8);
        if !retires && self.position.get().header.sequence as usize <= base * 2 + 8 {
            // What was retired may be on its way out already.
            self.ended.wait_until(|| !self.rewriting.get()).await;
            return Ok(());
        }
        self.write_anew().await
    }

    /// Reads the copy in use, in every version of the device, block by block. What is wrong is due if it `renews`: then the whole set, which
    /// is in memory, is to be [written anew](Self::write_anew).
    pub(crate) async fn review(&self, renews: bool) -> Review {
        let (mut review, mut first, mut worst) = (Review::default(), None, None);
        let begun = self.position.get();
        for sequence in 0..begun.header.sequence {
            let block = self.copies[begun.copy as usize] + sequence as u64;
            let wanted = DirtyHeader { sequence, ..begun.header };
            let is_right = |bytes: &[u8]| {
                decode_dirty(bytes, self.owner.pool, self.owner.shard).is_ok_and(|(header, _)| header == wanted)
            };
            let judged = self.media.judge(block, 1, is_right).await;
            review.read_bytes += judged.read_bytes;
            let now = self.position.get();
            if now.copy != begun.copy || now.header.generation != begun.header.generation || self.rewriting.get() {
                // It was written anew meanwhile, or is about to be.
                return Review { flaws: Vec::new(), ..review };
            }
            match judged.verdict.rot(false) {
                Some(rot) => {
                    first = first.or(Some(block));
                    worst = worst.max(Some(rot));
                }
                None => review.good += 1,
            }
        }
        if let (Some(block), Some(rot)) = (first, worst) {
            let (kind, number) = (MetadataKind::Journal, begun.copy as u32);
            review.flaws.push(Flaw { kind, number, block, rot, is_due: renews });
        }
        review
    }

    /// Writes the set to the other copy, and makes the one in use so far invalid.
    pub(crate) async fn write_anew(self: &Rc<Self>) -> Result<(), Status> {
        let pending = self.compaction.borrow().clone();
        let ticket = pending.unwrap_or_else(|| Rc::new(Ticket { key: NO_SLICE, outcome: Cell::new(None) }));
        *self.compaction.borrow_mut() = Some(ticket.clone());
        self.finish(ticket).await
    }

    /// The slices in the journal, {volume, slice} in ascending order; retired ones that have not left yet too.
    pub fn entries(&self) -> Vec<(u32, u32)> {
        let mut entries: Vec<_> = self.slices.borrow().keys().map(|key| slice_of(*key)).collect();
        entries.sort_unstable();
        entries
    }

    /// Number of [`entries`](Self::entries).
    pub(crate) fn len(&self) -> usize {
        self.slices.borrow().len()
    }

    /// Bytes written since opening.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.media.written().durable()
    }

    /// Blocks written since opening.
    pub fn block_writes(&self) -> u64 {
        self.block_writes.get()
    }

    async fn finish(self: &Rc<Self>, ticket: Rc<Ticket>) -> Result<(), Status> {
        if !self.working.replace(true) {
            let journal = self.clone();
            // A task of its own, which goes on when its waiters go away.
            self.media.reactor.spawn(async move { journal.work().await });
        }
        self.ended.wait_until(|| ticket.outcome.get().is_some()).await;
        ticket.outcome.get().expect("just looked").check()
    }

    // --- the one task that writes -----------------------------------------------------------------------------------

    async fn work(self: Rc<Self>) {
        loop {
            let batch: Vec<Rc<Ticket>> = {
                let mut waiting = self.waiting.borrow_mut();
                let most = waiting.len().min(DIRTY_ENTRIES);
                waiting.drain(..most).collect()
            };
            let compaction = self.compaction.borrow_mut().take();
            if batch.is_empty() && compaction.is_none() {
                self.working.set(false);
                return;
            }
            let full = self.position.get().header.sequence >= self.copy_blocks;
            let outcome = if compaction.is_some() || self.closed.get() || full {
                self.rewriting.set(true);
                let ended = self.rewrite(&batch).await;
                self.rewriting.set(false);
                ended
            } else {
                self.append(&batch).await
            };
            let status = outcome.err().unwrap_or(Status::Ok);
            batch.iter().chain(&compaction).for_each(|ticket| ticket.outcome.set(Some(status)));
            self.ended.notify_all();
        }
    }

    async fn settle(&self) -> Result<(), Status> {
        if !self.settled.get() {
            let Position { copy, header } = self.position.get();
            let is_right = |bytes: &[u8]| decode_dirty(bytes, self.owner.pool, self.owner.shard).is_ok();
            self.media.settle(self.copies[copy as usize], header.sequence as usize, 1, is_right).await?;
            self.settled.set(true);
        }
        Ok(())
    }

    /// Adds one block to the current copy.
    async fn append(&self, batch: &[Rc<Ticket>]) -> Result<(), Status> {
        self.settle().await?;
        let Position { copy, mut header } = self.position.get();
        let entries: Vec<DirtySlice> = keys_of(batch).map(slice_of).collect();
        let mut bytes = [0; BLOCK_BYTES];
        let index = self.index.get();
        encode_dirty(DirtyOwner { index, ..self.owner }, header, &entries, &mut bytes);
        self.block_writes.set(self.block_writes.get() + 1);
        let block = self.copies[copy as usize] + header.sequence as u64;
        if let Err(status) = self.media.write_durably(block, &bytes).await {
            self.closed.set(true);
            return Err(status);
        }
        header.sequence += 1;
        self.position.set(Position { copy, header });
        self.noted.set(index);
        self.insert(batch);
        Ok(())
    }

    fn insert(&self, batch: &[Rc<Ticket>]) {
        let mut slices = self.slices.borrow_mut();
        for key in keys_of(batch) {
            slices.entry(key).or_insert_with(|| Cell::new(self.round.get()));
        }
    }

    /// Writes what is not retired, and `batch`, to the other copy.
    async fn rewrite(&self, batch: &[Rc<Ticket>]) -> Result<(), Status> {
        self.settle().await?;
        // From here on a retired slice is not relied upon: who asks for it gets it added again.
        self.slices.borrow_mut().retain(|_, asked| asked.get() != RETIRED);
        self.retired.set(0);
        let mut keys: Vec<u64> = self.slices.borrow().keys().copied().collect();
        keys.extend(keys_of(batch));
        keys.sort_unstable();
        keys.dedup();
        let base = base_blocks(keys.len());
        if base > self.copy_blocks {
            return Err(Status::NoSpace);
        }
        // Once this copy may be valid, additions to the current one could go unseen.
        self.closed.set(true);
        self.generation.set(self.generation.get() + 1);
        let copy = 1 - self.position.get().copy;
        let entries: Vec<DirtySlice> = keys.into_iter().map(slice_of).collect();
        let index = self.index.get();
        let (bytes, header) = encode_set(DirtyOwner { index, ..self.owner }, self.generation.get(), &entries);
        self.block_writes.set(self.block_writes.get() + base as u64);
        self.media.write_durably(self.copies[copy as usize], &bytes).await?;
        self.position.set(Position { copy, header });
        self.noted.set(index);
        // Acknowledged when the former copy is invalid: whichever copy can be read later has everything that was acknowledged.
        self.media.write_durably(self.copies[1 - copy as usize], &[0; BLOCK_BYTES]).await?;
        self.closed.set(false);
        self.insert(batch);
        Ok(())
    }
}

/// What is to be added.
fn keys_of(batch: &[Rc<Ticket>]) -> impl Iterator<Item = u64> {
    batch.iter().map(|ticket| ticket.key).filter(|key| *key != NO_SLICE)
}

fn log_of(superblock: &Superblock) -> Uuid {
    match superblock.role {
        Role::Capacity => superblock.other,
        Role::Log => superblock.device,
    }
}

fn owner_of(superblock: &Superblock, shard: u16) -> DirtyOwner {
    DirtyOwner { pool: superblock.pool, shard, epoch: superblock.epoch, index: IndexNote::default() }
}

/// Whether a copy of a shard's journal has room for so many slices.
pub(crate) fn has_room(superblock: &Superblock, slices: usize) -> bool {
    base_blocks(slices) <= superblock.journal_blocks
}

/// Blocks that so many slices take.
fn base_blocks(slices: usize) -> u32 {
    slices.div_ceil(DIRTY_ENTRIES).max(1) as u32
}

/// The blocks with which a copy of these slices begins, and the header of the block that would be added next.
fn encode_set(owner: DirtyOwner, generation: u64, slices: &[DirtySlice]) -> (Vec<u8>, DirtyHeader) {
    let base = base_blocks(slices.len());
    let mut bytes = vec![0; base as usize * BLOCK_BYTES];
    let mut header = DirtyHeader { generation, sequence: 0, base };
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        let first = header.sequence as usize * DIRTY_ENTRIES;
        let part = &slices[first.min(slices.len())..(first + DIRTY_ENTRIES).min(slices.len())];
        encode_dirty(owner, header, part, block);
        header.sequence += 1;
    }
    (bytes, header)
}

/// The copy of a journal that holds.
pub(crate) struct Newer {
    copy: u8,
    /// Of the block that would be added next.
    header: DirtyHeader,
    pub(crate) slices: Vec<DirtySlice>,
    /// What its last block notes.
    pub(crate) index: IndexNote,
}

/// The newer valid copy; usually one is valid: the other one was made invalid when this one was begun. When none is, what is wrong
/// with each.
pub(crate) async fn read_newer(media: &Media, superblock: &Superblock, shard: u16) -> Result<Newer, [MetaError; 2]> {
    let of_copy = async |copy| {
        let read = read_copy(media, superblock, shard, copy).await;
        read.map(|Copied { header, slices, index }| Newer { copy, header, slices, index })
    };
    match (of_copy(0).await, of_copy(1).await) {
        (Ok(first), Ok(second)) if second.header.generation > first.header.generation => Ok(second),
        (Ok(first), _) => Ok(first),
        (Err(_), Ok(second)) => Ok(second),
        (Err(first), Err(second)) => Err([first, second]),
    }
}

/// The latest opening of the pool that any block of a shard's journal shows, however damaged the journal is.
pub(crate) async fn latest_opening(media: &Media, superblock: &Superblock, shard: u16) -> Option<u32> {
    let copies = [0, 1].map(|copy| superblock.journal_copy(shard, copy));
    let mut latest = None;
    for block in copies.into_iter().flat_map(|copy| copy..copy + superblock.journal_blocks as u64) {
        if let Ok(bytes) = media.read_bytes(block, 1).await {
            latest = latest.max(opening_shown(&bytes, superblock.pool, shard));
        }
    }
    latest
}

/// What a copy says.
struct Copied {
    /// Of the block that would be added next.
    header: DirtyHeader,
    slices: Vec<DirtySlice>,
    /// Of its last block.
    index: IndexNote,
}

/// A copy, of the version of the device that has most of it, since a block that has rotted looks like the end.
async fn read_copy(media: &Media, superblock: &Superblock, shard: u16, copy: u8) -> Result<Copied, MetaError> {
    let mut best = read_copy_of(media, 0, superblock, shard, copy).await;
    for version in 1..media.versions {
        let other = read_copy_of(media, version, superblock, shard, copy).await;
        let order = |found: &DirtyHeader| (found.generation, found.sequence);
        match (&best, &other) {
            (Err(_), Ok(_)) => best = other,
            (Ok(one), Ok(next)) if order(&next.header) > order(&one.header) => best = other,
            _ => {}
        }
    }
    best
}

async fn read_copy_of(
    media: &Media,
    version: u8,
    superblock: &Superblock,
    shard: u16,
    copy: u8,
) -> Result<Copied, MetaError> {
    /// Blocks read at once.
    const BATCH: u32 = 64;
    let (object, block) = (Object::Journal { shard }, superblock.journal_copy(shard, copy));
    let damaged = |reason| MetaError::Damaged { object, block, reason };
    let (mut slices, mut index) = (Vec::new(), IndexNote::default());
    let mut next: Option<DirtyHeader> = None;
    // The copy ends at the first block that does not belong to it. One that does after that is a sign of damage: blocks are
    // written one after the other.
    let mut ended = false;
    for first in (0..superblock.journal_blocks).step_by(BATCH as usize) {
        let count = BATCH.min(superblock.journal_blocks - first);
        let failed = |status| MetaError::Io { action: "read", object, block, status };
        let read = media.read_bytes_of(version, block + first as u64, count as usize).await;
        let bytes = read.map_err(failed)?;
        for (bytes, at) in bytes.chunks_exact(BLOCK_BYTES).zip(first..) {
            match (decode_dirty(bytes, superblock.pool, shard), next) {
                (Ok((header, entries)), None) => {
                    if at > 0 || header.sequence > 0 || header.base == 0 || header.base > superblock.journal_blocks {
                        return Err(damaged(Malformed("it does not begin at its beginning")));
                    }
                    slices.extend(entries);
                    index = index_noted(bytes);
                    next = Some(DirtyHeader { sequence: 1, ..header });
                }
                (Err(reason), None) => return Err(damaged(reason)),
                (Ok((header, entries)), Some(expected)) if header == expected && !ended => {
                    slices.extend(entries);
                    index = index_noted(bytes);
                    next = Some(DirtyHeader { sequence: header.sequence + 1, ..header });
                }
                (Ok((header, _)), Some(expected)) if header.generation == expected.generation => {
                    return Err(damaged(Malformed("a block is missing from its middle")));
                }
                _ => ended = true,
            }
        }
        if ended {
            break;
        }
    }
    match next {
        Some(header) if header.sequence >= header.base => Ok(Copied { header, slices, index }),
        _ => Err(damaged(Malformed("a part of the set with which it begins is not valid"))),
    }
}
