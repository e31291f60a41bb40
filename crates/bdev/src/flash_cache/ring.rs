//! What is cached and what is let in: index, sketch and budget together, and the segments that flash is written in.
//!
//! Flash is a ring of *segments*, written whole, one after the other: no place is ever written in part or in place. The one
//! that is being filled and those that are being written are *stages* in memory, from which their blocks are read meanwhile. A
//! place is emptied when a stage is begun for it; blocks that were hit there are *survivors*, which are written again at the
//! front of the ring, up to half a segment of them. That is second chance: within a few hundredths of LRU, for one write.
//!
//! Logic only: no I/O, and time is an argument.

use super::budget::{BINS, Budget, Window};
use super::index::Index;
use super::sketch::Sketch;
use base::Rng;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Stages in memory: one that is filled, and others on their way to flash.
const STAGES_MAX: usize = 3;
/// Sightings after which a block may be let in.
const SIGHTINGS_MIN: u64 = 2;
/// The share of those that may be let in when the bucket is nearly empty.
const SHARE_MIN: f64 = 1.0 / 32.0;
/// Segments for which the bucket has bytes when all are let in that may be.
const PLENTY_SEGMENTS: u64 = 8;
/// An address that is no block's.
pub(super) const NO_BLOCK: u64 = u64::MAX;

/// Sizes of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) block_size: u32,
    /// Blocks of a segment, and how many of them at its start are its header.
    pub(super) segment_blocks: u64,
    pub(super) header_blocks: u64,
    pub(super) segments: u64,
}

impl Shape {
    pub(super) fn slots_per_segment(&self) -> u64 {
        self.segment_blocks - self.header_blocks
    }

    pub(super) fn slots(&self) -> u64 {
        self.slots_per_segment() * self.segments
    }

    pub(super) fn segment_bytes(&self) -> u64 {
        self.segment_blocks * self.block_size as u64
    }

    pub(super) fn place_of(&self, slot: u32) -> u64 {
        slot as u64 / self.slots_per_segment()
    }

    /// The block of a slot, from the ring's first on.
    pub(super) fn block_of(&self, slot: u32) -> u64 {
        self.place_of(slot) * self.segment_blocks + self.header_blocks + slot as u64 % self.slots_per_segment()
    }
}

/// A block that was hit in a place that is about to be written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Survivor {
    pub(super) slot: u32,
    pub(super) lba: u64,
    pub(super) crc: u32,
}

struct Stage {
    seq: u64,
    used: u64,
    data: Vec<u8>,
    is_sealed: bool,
    /// Writes of the slow device that had ended when its last block was let in.
    writes: u64,
}

/// A stage as it is to be written.
pub(super) struct Outgoing {
    pub(super) seq: u64,
    pub(super) writes: u64,
    /// Address and checksum per slot; [`NO_BLOCK`] where the block has been written to since.
    pub(super) entries: Vec<(u64, u32)>,
}

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nowhere,
    /// In memory, on its way to flash.
    Staged(u32),
    Flash(u32),
}

/// What a read of some blocks finds, in their order.
pub(super) enum LookUp {
    /// All of them are on flash: slots and checksums.
    Flash(SmallVec<[(u32, u32); 8]>),
    /// All of them are in memory.
    Staged(SmallVec<[u32; 8]>),
    /// The slow device has to be read, for all of them.
    Missed,
}

/// What has happened since the cache was opened, in blocks unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashCacheCounts {
    /// Blocks read from the cache.
    pub hits: u64,
    /// Blocks read from the slow device.
    pub misses: u64,
    /// Blocks let in.
    pub admitted: u64,
    /// Blocks written again because they had been hit where the ring came round.
    pub readmitted: u64,
    /// Blocks not let in: first sightings.
    pub refused_once: u64,
    /// Blocks not let in: the budget has no bytes for them, or only for some.
    pub refused_budget: u64,
    /// Blocks dropped because they were written to.
    pub invalidated: u64,
    /// Bytes written to flash.
    pub written_bytes: u64,
    /// Reads of flash that failed, or whose blocks did not match their checksums.
    pub read_errors: u64,
    /// Writes of flash that failed.
    pub write_errors: u64,
    /// Operations of flash that were not waited for any longer.
    pub late: u64,
}

impl FlashCacheCounts {
    /// What was taken for hits was not there.
    pub(super) fn missed(&mut self, blocks: u64) {
        self.hits -= blocks;
        self.misses += blocks;
    }
}

/// See the module.
pub(super) struct Ring {
    pub(super) shape: Shape,
    pub(super) index: Index,
    pub(super) budget: Budget,
    pub(super) window: Window,
    pub(super) counts: FlashCacheCounts,
    sketch: Sketch,
    rng: Rng,
    stages: VecDeque<Stage>,
    survivors: VecDeque<Survivor>,
    /// Per place, the number of the segment that is or will be there; 0 is none.
    seqs: Vec<u64>,
    /// The next segment's number.
    pub(super) next_seq: u64,
    /// Bytes written in the life of the cache.
    pub(super) written_total: u64,
}

impl Ring {
    pub(super) fn new(shape: Shape, per_day: u64, seed: u64, now_ns: u64) -> Ring {
        Ring {
            index: Index::new(shape.slots()),
            budget: Budget::new(per_day, now_ns),
            window: Window::new([0; BINS], now_ns),
            counts: FlashCacheCounts::default(),
            sketch: Sketch::new(shape.slots()),
            rng: Rng::new(seed),
            stages: VecDeque::with_capacity(STAGES_MAX),
            survivors: VecDeque::new(),
            seqs: vec![0; shape.segments as usize],
            next_seq: 1,
            written_total: 0,
            shape,
        }
    }

    /// Bytes of memory for what is cached and was seen.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.index.bytes() + self.sketch.bytes() + self.seqs.len() as u64 * 8
    }

    // --- reading ----------------------------------------------------------------------------------------------------

    pub(super) fn find(&self, lba: u64) -> Found {
        match self.index.get(lba) {
            None => Found::Nowhere,
            Some(slot) if self.stage_of(slot).is_some() => Found::Staged(slot),
            Some(slot) => Found::Flash(slot),
        }
    }

    /// Looks for the blocks of one read, and counts it: a part of one, or one here and one there, is no hit.
    pub(super) fn look_up(&mut self, blocks: impl Iterator<Item = u64>) -> LookUp {
        let (mut cached, mut staged, mut count) = (SmallVec::<[(u32, u32); 8]>::new(), 0, 0);
        for lba in blocks {
            count += 1;
            match self.find(lba) {
                Found::Nowhere => {}
                Found::Flash(slot) => cached.push((slot, self.index.crc(slot))),
                Found::Staged(slot) => {
                    cached.push((slot, 0));
                    staged += 1;
                }
            }
        }
        if cached.len() != count || staged != 0 && staged != count {
            self.counts.misses += count as u64;
            return LookUp::Missed;
        }
        self.counts.hits += count as u64;
        cached.iter().for_each(|(slot, _)| self.index.hit(*slot));
        match staged {
            0 => LookUp::Flash(cached),
            _ => LookUp::Staged(cached.iter().map(|(slot, _)| *slot).collect()),
        }
    }

    fn stage_of(&self, slot: u32) -> Option<&Stage> {
        let place = self.shape.place_of(slot);
        self.stages.iter().find(|stage| stage.seq % self.shape.segments == place)
    }

    /// The bytes of a block in memory.
    pub(super) fn staged(&self, slot: u32) -> Option<&[u8]> {
        let stage = self.stage_of(slot)?;
        let (at, len) = (slot as u64 % self.shape.slots_per_segment(), self.shape.block_size as usize);
        Some(&stage.data[at as usize * len..][..len])
    }

    /// Whether a block of a read that [missed](LookUp::Missed) should be let in, were it at hand.
    pub(super) fn wants(&mut self, lba: u64, now_ns: u64) -> bool {
        if self.find(lba) != Found::Nowhere {
            return false;
        }
        if self.sketch.see(lba) < SIGHTINGS_MIN {
            self.counts.refused_once += 1;
            return false;
        }
        // Where more is wanted than there are bytes for, the bucket settles where the share lets in just what it gets; blocks
        // that are asked for often have the most chances.
        let share = self.budget.share_of(PLENTY_SEGMENTS * self.shape.segment_bytes(), now_ns).max(SHARE_MIN);
        let is_let = self.has_room(now_ns) && (share >= 1.0 || self.rng.unit() < share);
        self.counts.refused_budget += !is_let as u64;
        is_let
    }

    // --- filling ----------------------------------------------------------------------------------------------------

    fn is_open(&self) -> bool {
        self.stages.back().is_some_and(|stage| !stage.is_sealed)
    }

    /// Whether a block can be put somewhere: in the open stage, or in a new one whose bytes the budget has beside those of
    /// the stages that are not yet written.
    fn has_room(&mut self, now_ns: u64) -> bool {
        let stages = self.stages.len() as u64 + 1;
        let bytes = stages * self.shape.segment_bytes();
        self.is_open() || (stages <= STAGES_MAX as u64 && self.budget.has(bytes, now_ns))
    }

    /// Puts a block in; false when there is no room, or it is there. `writes` of the slow device have ended so far.
    pub(super) fn admit(&mut self, lba: u64, crc: u32, data: &[u8], writes: u64, now_ns: u64) -> bool {
        if self.index.get(lba).is_some() || !self.has_room(now_ns) {
            return false;
        }
        if !self.is_open() {
            self.begin_stage();
        }
        let (segments, per) = (self.shape.segments, self.shape.slots_per_segment());
        let Some(stage) = self.stages.back_mut() else { unreachable!("one was begun") };
        let slot = (stage.seq % segments * per + stage.used) as u32;
        stage.data.extend_from_slice(data);
        stage.used += 1;
        stage.writes = writes;
        stage.is_sealed = stage.used == per;
        self.index.insert(lba, slot, crc);
        self.counts.admitted += 1;
        true
    }

    /// Empties the next place, and begins to fill a segment for it.
    fn begin_stage(&mut self) {
        let (seq, per) = (self.next_seq, self.shape.slots_per_segment());
        self.next_seq += 1;
        let place = seq % self.shape.segments;
        let mut hit: Vec<(u8, Survivor)> = Vec::new();
        for slot in place * per..(place + 1) * per {
            let slot = slot as u32;
            let Some(lba) = self.index.in_slot(slot) else { continue };
            if self.index.hits(slot) > 0 {
                hit.push((self.index.hits(slot), Survivor { slot, lba, crc: self.index.crc(slot) }));
            }
            self.index.remove(lba);
        }
        hit.sort_by_key(|(hits, survivor)| (u8::MAX - hits, survivor.slot));
        hit.truncate(per as usize / 2);
        hit.sort_by_key(|(_, survivor)| survivor.slot);
        self.survivors.extend(hit.into_iter().map(|(_, survivor)| survivor));
        self.seqs[place as usize] = seq;
        let data = Vec::with_capacity(per as usize * self.shape.block_size as usize);
        self.stages.push_back(Stage { seq, used: 0, data, is_sealed: false, writes: 0 });
    }

    /// Closes the open stage although it is not full.
    pub(super) fn seal(&mut self) {
        if let Some(stage) = self.stages.back_mut() {
            stage.is_sealed = true;
        }
    }

    /// Whether something is to be read again or written.
    pub(super) fn has_work(&self) -> bool {
        !self.survivors.is_empty() || self.stages.front().is_some_and(|stage| stage.is_sealed)
    }

    pub(super) fn has_survivors(&self) -> bool {
        !self.survivors.is_empty()
    }

    /// Whether no further stage can be begun before the oldest has gone.
    pub(super) fn is_crowded(&self) -> bool {
        self.stages.len() == STAGES_MAX && !self.is_open()
    }

    /// The survivors of the places that were emptied. They can be read until [`outgoing`](Self::outgoing) is written.
    pub(super) fn take_survivors(&mut self) -> Vec<Survivor> {
        self.survivors.drain(..).collect()
    }

    /// The oldest stage, if it can be written.
    pub(super) fn outgoing(&self) -> Option<Outgoing> {
        let stage = self.stages.front().filter(|stage| stage.is_sealed)?;
        let first = stage.seq % self.shape.segments * self.shape.slots_per_segment();
        let entries = (first..first + stage.used).map(|slot| match self.index.in_slot(slot as u32) {
            Some(lba) => (lba, self.index.crc(slot as u32)),
            None => (NO_BLOCK, 0),
        });
        Some(Outgoing { seq: stage.seq, writes: stage.writes, entries: entries.collect() })
    }

    /// The bytes of the oldest stage.
    pub(super) fn outgoing_data(&self) -> &[u8] {
        self.stages.front().map_or(&[], |stage| &stage.data)
    }

    /// Takes bytes that are about to be written from the budget.
    pub(super) fn charge(&mut self, bytes: u64, now_ns: u64) {
        self.budget.take(bytes, now_ns);
        self.window.add(bytes, now_ns);
        self.counts.written_bytes += bytes;
        self.written_total = self.written_total.saturating_add(bytes);
    }

    /// The oldest stage is on flash, or (not `written`) will never be.
    pub(super) fn finish(&mut self, written: bool) {
        let Some(stage) = self.stages.pop_front() else { return };
        if !written {
            let place = stage.seq % self.shape.segments;
            self.seqs[place as usize] = 0;
            let first = place * self.shape.slots_per_segment();
            for slot in first..first + stage.used {
                if let Some(lba) = self.index.in_slot(slot as u32) {
                    self.index.remove(lba);
                }
            }
        }
    }

    /// Forgets everything that is cached.
    pub(super) fn clear(&mut self) {
        self.index.clear();
        self.stages.clear();
        self.survivors.clear();
        self.seqs.fill(0);
    }

    // --- what changes -----------------------------------------------------------------------------------------------

    /// Forgets all that the segment of a slot has on flash.
    pub(super) fn drop_segment(&mut self, slot: u32) {
        let per = self.shape.slots_per_segment() as u32;
        let first = slot / per * per;
        for slot in first..first + per {
            if let Some(lba) = self.index.in_slot(slot).filter(|lba| self.find(*lba) == Found::Flash(slot)) {
                self.index.remove(lba);
            }
        }
    }

    /// Forgets blocks that are about to be written.
    pub(super) fn invalidate(&mut self, lba: u64, nblocks: u64) {
        let before = self.index.len();
        if before == 0 && self.survivors.is_empty() {
            return;
        }
        let is_in = |block: u64| (lba..lba + nblocks).contains(&block);
        if nblocks <= self.index.slots() {
            for block in lba..lba + nblocks {
                self.index.remove(block);
            }
        } else {
            for slot in 0..self.index.slots() as u32 {
                if let Some(block) = self.index.in_slot(slot).filter(|block| is_in(*block)) {
                    self.index.remove(block);
                }
            }
        }
        self.survivors.retain(|survivor| !is_in(survivor.lba));
        self.counts.invalidated += before - self.index.len();
    }

    // --- opening ----------------------------------------------------------------------------------------------------

    /// Takes in a block that was found on flash, in segment `seq`, unless a newer one is there.
    pub(super) fn restore(&mut self, seq: u64, nth: u64, lba: u64, crc: u32) {
        let place = seq % self.shape.segments;
        self.seqs[place as usize] = seq;
        let is_older = |slot: u32| self.seqs[self.shape.place_of(slot) as usize] > seq;
        if !self.index.get(lba).is_some_and(is_older) {
            self.index.insert(lba, (place * self.shape.slots_per_segment() + nth) as u32, crc);
        }
    }
}
