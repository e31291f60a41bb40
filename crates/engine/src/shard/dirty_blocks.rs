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
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromZeros)]
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
pub(super) struct Kept {
    /// Block + 1 of each; 0 is none. Or the number of the bits, in two halves.
    few: [u16; FEW],
    kind: u8,
    /// Whether the extent is being destaged: beside this it would take eight bytes more.
    pub(super) is_destaging: bool,
}

const AS_FEW: u8 = 0;
const IN_LINE: u8 = 1;
const IN_BITS: u8 = 2;

impl Kept {
    pub(super) const EMPTY: Kept = Kept { few: [0; FEW], kind: AS_FEW, is_destaging: false };

    /// With blocks in bits: which.
    #[inline]
    fn bits(&self) -> usize {
        self.few[0] as usize | (self.few[1] as usize) << 16
    }
}

/// As in [`Kept`].
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
    /// As many as there are slots. (No table: few are used, and a huge page of them for each shard would be wasted.)
    bits: Box<[BlockSet]>,
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

fn untouched(slots: usize) -> Box<[BlockSet]> {
    <[BlockSet]>::new_box_zeroed_with_elems(slots).expect("memory for the blocks of a pool's extents")
}

impl DirtyBlocks {
    pub(super) fn new(slots: usize) -> DirtyBlocks {
        DirtyBlocks {
            lines: Table::zeroed(slots),
            lines_used: 0,
            bits: untouched(slots),
            bits_used: 0,
            bits_free: Vec::new(),
        }
    }

    pub(super) fn grow(&mut self, slots: usize) {
        // What has never been used stays untouched.
        let (mut lines, mut bits) = (Table::zeroed(slots), untouched(slots));
        lines[..self.lines_used].copy_from_slice(&self.lines[..self.lines_used]);
        bits[..self.bits_used].copy_from_slice(&self.bits[..self.bits_used]);
        (self.lines, self.bits) = (lines, bits);
    }

    /// A block is looked for or added soon.
    #[inline]
    pub(super) fn prefetch(&self, slot: usize) {
        if slot < self.lines_used {
            reactor::prefetch(&self.lines[slot]);
        }
    }

    #[inline]
    pub(super) fn has(&self, slot: usize, kept: &Kept, index: u32) -> bool {
        let entry = index as u16 + 1;
        match kept.kind {
            AS_FEW => kept.few.contains(&entry),
            // All of them, whichever it is: where it is cannot be guessed.
            IN_LINE => self.lines[slot].0.iter().fold(false, |found, other| found | (*other == entry)),
            _ => self.bits[kept.bits()].contains(index),
        }
    }

    /// Whether it was not there.
    #[inline]
    pub(super) fn insert(&mut self, slot: usize, kept: &mut Kept, index: u32) -> bool {
        if self.has(slot, kept, index) {
            return false;
        }
        let entry = index as u16 + 1;
        if kept.kind == AS_FEW {
            if let Some(room) = kept.few.iter_mut().find(|other| **other == 0) {
                *room = entry;
                return true;
            }
            self.lines[slot].0[..FEW].copy_from_slice(&kept.few);
            (kept.few, kept.kind) = ([0; FEW], IN_LINE);
            self.lines_used = self.lines_used.max(slot + 1);
        }
        if kept.kind == IN_LINE {
            if let Some(room) = self.lines[slot].0.iter_mut().find(|other| **other == 0) {
                *room = entry;
                return true;
            }
            self.turn_to_bits(slot, kept);
        }
        self.bits[kept.bits()].insert(index);
        true
    }

    fn turn_to_bits(&mut self, slot: usize, kept: &mut Kept) {
        let number = self.bits_free.pop().unwrap_or_else(|| {
            self.bits_used += 1;
            self.bits_used as u32 - 1
        });
        let line = std::mem::replace(&mut self.lines[slot], NO_BLOCKS);
        line.0.iter().for_each(|other| self.bits[number as usize].insert(*other as u32 - 1));
        (kept.few, kept.kind) = ([number as u16, (number >> 16) as u16, 0], IN_BITS);
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, slot: usize, kept: &mut Kept, index: u32) -> bool {
        let entry = index as u16 + 1;
        match kept.kind {
            AS_FEW => take(&mut kept.few, entry),
            IN_LINE => take(&mut self.lines[slot].0, entry),
            _ => {
                let set = &mut self.bits[kept.bits()];
                let was = set.contains(index);
                set.remove(index);
                was
            }
        }
    }

    pub(super) fn clear(&mut self, slot: usize, kept: &mut Kept) {
        match kept.kind {
            AS_FEW => {}
            IN_LINE => self.lines[slot] = NO_BLOCKS,
            _ => {
                self.bits[kept.bits()] = BlockSet::EMPTY;
                self.bits_free.push(kept.bits() as u32);
            }
        }
        (kept.few, kept.kind) = ([0; FEW], AS_FEW);
    }

    /// All of a slot.
    pub(super) fn set(&self, slot: usize, kept: &Kept) -> BlockSet {
        let list = match kept.kind {
            AS_FEW => &kept.few[..],
            IN_LINE => &self.lines[slot].0[..],
            _ => return self.bits[kept.bits()],
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
