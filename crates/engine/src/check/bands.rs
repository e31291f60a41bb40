//! The places that map pages name: each is one block's, in a band that is in use.

use super::{Checker, RESTORE};
use crate::format::band::BandState;
use crate::format::root::{Root, RootBands};
use crate::format::superblock::Superblock;
use crate::meta::INHERIT;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use std::ops::Range;

/// What the blocks of a shard's bands are used for.
pub(super) struct BandUse {
    /// One bit per block: a map page names it.
    named: Vec<u64>,
    /// Per band: the root calls it free.
    free: Vec<bool>,
    band_blocks: u32,
}

impl BandUse {
    /// Nothing yet; `None` in a pool without bands.
    pub(super) fn new(superblock: &Superblock, root: &Root) -> Option<BandUse> {
        let bands = RootBands::of(superblock);
        let blocks = bands.all as usize * bands.band_blocks as usize;
        let free = root.bands.iter().map(|band| band.state == BandState::Free).collect();
        (bands.all > 0).then(|| BandUse { named: vec![0; blocks.div_ceil(64)], free, band_blocks: bands.band_blocks })
    }

    /// A map page names a place; what is wrong with that.
    fn name(&mut self, place: u32) -> Option<&'static str> {
        let (word, bit) = (place as usize / 64, 1u64 << (place % 64));
        let Some(free) = self.free.get((place / self.band_blocks) as usize) else {
            return Some("are said to be where there is no band");
        };
        if *free {
            return Some("are said to be in a band that is free");
        }
        let named = self.named[word] & bit != 0;
        self.named[word] |= bit;
        named.then_some("are said to be where another block is")
    }

    /// How many of these places map pages name.
    pub(super) fn named_in(&self, places: Range<u32>) -> usize {
        places.filter(|place| self.named[*place as usize / 64] >> (place % 64) & 1 == 1).count()
    }
}

impl Checker {
    /// Judges the places in an extent's map page.
    pub(super) fn places(&mut self, bands: &mut BandUse, shard: u16, extent: u32, page: &[u8]) {
        let (crcs, places) = page.split_at(BLOCK_BYTES);
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let mut wrong: Vec<(&'static str, u32)> = Vec::new();
        for (crc, place) in crcs.chunks_exact(4).map(word).zip(places.chunks_exact(4).map(word)) {
            let Some(cause) = (crc < INHERIT).then(|| bands.name(place)).flatten() else { continue };
            match wrong.iter_mut().find(|(other, _)| *other == cause) {
                Some((_, blocks)) => *blocks += 1,
                None => wrong.push((cause, 1)),
            }
        }
        for (cause, blocks) in wrong {
            let object = format!("map page of extent {extent} of shard {shard}");
            let meaning = format!("{blocks} of its {EXTENT_BLOCKS} blocks {cause}");
            self.report.error(object, "places", meaning, RESTORE);
        }
    }
}
