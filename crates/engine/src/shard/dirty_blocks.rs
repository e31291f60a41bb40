//! Which blocks of an extent are dirty, in little memory for each of many extents: a few beside the state of the extent, some in a
//! line of the cache of their own, and more as bits.
//!
//! Random writes over a large pool leave some ten blocks in each of its extents, for which bits would take twice the memory. A line
//! has the number of the extent's slot, so that it can be fetched before it is known whether there is one. What nobody has needed
//! yet is never touched.

use crate::units::EXTENT_BLOCKS;
use reactor::Table;
use zerocopy::FromZeros;

const WORDS: usize = EXTENT_BLOCKS as usize / 64;
const _: () = assert!(EXTENT_BLOCKS < u16::MAX as u32);

/// One bit per block of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSet([u64; WORDS]);

impl Default for BlockSet {
    fn default() -> BlockSet {
        BlockSet::EMPTY
    }
}

impl BlockSet {
    pub(crate) const EMPTY: BlockSet = BlockSet([0; WORDS]);
    pub(crate) const FULL: BlockSet = BlockSet([u64::MAX; WORDS]);

    #[inline]
    pub(crate) fn contains(&self, index: u32) -> bool {
        self.0[index as usize / 64] & (1 << (index % 64)) != 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, index: u32) {
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    #[inline]
    pub(crate) fn remove(&mut self, index: u32) {
        self.0[index as usize / 64] &= !(1 << (index % 64));
    }

    pub(crate) fn without(&self, other: &BlockSet) -> BlockSet {
        BlockSet(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    pub(crate) fn with(&self, other: &BlockSet) -> BlockSet {
        BlockSet(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(index as u32 * 64 + bit)
            })
        })
    }
}

/// Blocks that an extent has beside its state, and in a line.
const FEW: usize = 3;
const SOME: usize = 32;

/// Where the blocks of an extent are. Untouched memory is one without any.
#[derive(Clone, Copy, Debug, FromZeros)]
pub(super) struct Place {
    /// Block + 1 of each; 0 is none. Or the number of the bits, in two halves.
    few: [u16; FEW],
    kind: u8,
    /// The owner's: it would take eight bytes more beside this.
    pub(super) mark: bool,
}

const IN_PLACE: u8 = 0;
const IN_LINE: u8 = 1;
const IN_BITS: u8 = 2;

impl Place {
    pub(super) const EMPTY: Place = Place { few: [0; FEW], kind: IN_PLACE, mark: false };

    /// With blocks in bits: which.
    #[inline]
    fn bits(&self) -> usize {
        self.few[0] as usize | (self.few[1] as usize) << 16
    }
}

/// As in [`Place`].
#[derive(Clone, Copy, FromZeros)]
#[repr(align(64))]
struct Line([u16; SOME]);

const NO_BLOCKS: Line = Line([0; SOME]);

/// Lines and bits of all slots.
pub(super) struct DirtyBlocks {
    /// Per slot.
    lines: Table<Line>,
    /// Slots from here on have never had a line.
    lines_used: usize,
    /// As many as there are slots.
    bits: Vec<[u64; WORDS]>,
    /// From here on nobody has ever had them.
    bits_used: usize,
    /// Before that, those that nobody has; zeroes.
    bits_free: Vec<u32>,
}

/// Takes a block out of a list, if it is there.
#[inline]
fn take(list: &mut [u16], entry: u16) -> bool {
    list.iter_mut().find(|other| **other == entry).map(|other| *other = 0).is_some()
}

#[inline]
fn bit(set: &[u64; WORDS], index: u32) -> bool {
    set[index as usize / 64] & (1 << (index % 64)) != 0
}

#[inline]
fn set_bit(set: &mut [u64; WORDS], index: u32) {
    set[index as usize / 64] |= 1 << (index % 64);
}

impl DirtyBlocks {
    pub(super) fn new(slots: usize) -> DirtyBlocks {
        DirtyBlocks {
            lines: Table::zeroed(slots),
            lines_used: 0,
            bits: vec![[0; WORDS]; slots],
            bits_used: 0,
            bits_free: Vec::new(),
        }
    }

    pub(super) fn grow(&mut self, slots: usize) {
        self.lines = std::mem::replace(&mut self.lines, Table::zeroed(0)).extended(slots);
        // Not resized: that would touch all of it.
        let mut bits = vec![[0; WORDS]; slots];
        bits[..self.bits_used].copy_from_slice(&self.bits[..self.bits_used]);
        self.bits = bits;
    }

    /// A block is looked for or added soon.
    #[inline]
    pub(super) fn prefetch(&self, slot: usize) {
        if slot < self.lines_used {
            reactor::prefetch(&self.lines[slot]);
        }
    }

    #[inline]
    pub(super) fn has(&self, slot: usize, place: &Place, index: u32) -> bool {
        let entry = index as u16 + 1;
        match place.kind {
            IN_PLACE => place.few.contains(&entry),
            // All of them, whichever it is: where it is cannot be guessed.
            IN_LINE => self.lines[slot].0.iter().fold(false, |found, other| found | (*other == entry)),
            _ => bit(&self.bits[place.bits()], index),
        }
    }

    /// Whether it was not there.
    #[inline]
    pub(super) fn insert(&mut self, slot: usize, place: &mut Place, index: u32) -> bool {
        if self.has(slot, place, index) {
            return false;
        }
        let entry = index as u16 + 1;
        if place.kind == IN_PLACE {
            if let Some(room) = place.few.iter_mut().find(|other| **other == 0) {
                *room = entry;
                return true;
            }
            self.lines[slot].0[..FEW].copy_from_slice(&place.few);
            (place.few, place.kind) = ([0; FEW], IN_LINE);
            self.lines_used = self.lines_used.max(slot + 1);
        }
        if place.kind == IN_LINE {
            if let Some(room) = self.lines[slot].0.iter_mut().find(|other| **other == 0) {
                *room = entry;
                return true;
            }
            self.turn_to_bits(slot, place);
        }
        set_bit(&mut self.bits[place.bits()], index);
        true
    }

    fn turn_to_bits(&mut self, slot: usize, place: &mut Place) {
        let number = self.bits_free.pop().unwrap_or_else(|| {
            self.bits_used += 1;
            self.bits_used as u32 - 1
        });
        let line = std::mem::replace(&mut self.lines[slot], NO_BLOCKS);
        line.0.iter().for_each(|other| set_bit(&mut self.bits[number as usize], *other as u32 - 1));
        (place.few, place.kind) = ([number as u16, (number >> 16) as u16, 0], IN_BITS);
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, slot: usize, place: &mut Place, index: u32) -> bool {
        let entry = index as u16 + 1;
        match place.kind {
            IN_PLACE => take(&mut place.few, entry),
            IN_LINE => take(&mut self.lines[slot].0, entry),
            _ => {
                let set = &mut self.bits[place.bits()];
                let was = bit(set, index);
                set[index as usize / 64] &= !(1 << (index % 64));
                was
            }
        }
    }

    pub(super) fn clear(&mut self, slot: usize, place: &mut Place) {
        match place.kind {
            IN_PLACE => {}
            IN_LINE => self.lines[slot] = NO_BLOCKS,
            _ => {
                self.bits[place.bits()] = [0; WORDS];
                self.bits_free.push(place.bits() as u32);
            }
        }
        (place.few, place.kind) = ([0; FEW], IN_PLACE);
    }

    /// All of a slot.
    pub(super) fn set(&self, slot: usize, place: &Place) -> BlockSet {
        let list = match place.kind {
            IN_PLACE => &place.few[..],
            IN_LINE => &self.lines[slot].0[..],
            _ => return BlockSet(self.bits[place.bits()]),
        };
        let mut set = BlockSet::EMPTY;
        list.iter().filter(|entry| **entry != 0).for_each(|entry| set.insert(*entry as u32 - 1));
        set
    }

    /// Bytes of memory it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.lines_used * size_of::<Line>() + self.bits_used * size_of::<BlockSet>() + self.bits_free.capacity() * 4
    }
}
