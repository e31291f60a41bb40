//! The audit: who has which extent, and whether what the shard knows contradicts itself. Reads memory alone, but for the places of
//! blocks in bands, which map pages know.

use super::Shard;
use crate::bands::{BandAt, Bands};
use crate::meta::{self, Page};
use crate::units::EXTENT_BLOCKS;
use std::rc::Rc;

/// An extent that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentOwner {
    /// The shard.
    pub shard: u16,
    /// The extent of the shard.
    pub extent: u32,
    /// The volume that has it.
    pub volume: u32,
    /// Which of the volume's extents it is.
    pub vextent: u32,
}

impl Shard {
    /// The extents in use, and every contradiction found: log space that is free although no durable checkpoint covers it
    /// (I1), two owners of an extent or of a place in the log (I2), wrong counts and extents that nobody has (I3), blocks of
    /// free extents that still count (I4).
    pub(crate) fn audit(&self) -> (Vec<ExtentOwner>, Vec<String>) {
        let mut owners = Vec::new();
        for extent in 0..self.meta.extents() {
            let owner = self.meta.descriptor(extent);
            if owner.volume != 0 {
                owners.push(ExtentOwner { shard: self.number, extent, volume: owner.volume, vextent: owner.vextent });
            }
        }
        let is_idle = self.log.is_idle() && self.held_back.borrow().is_empty();
        let mut problems = self.index.audit(is_idle);
        let needed = self.durable_tail();
        if let Some(segment) = self.log.freed_from(needed.segment) {
            problems
                .push(format!("I1: log segment {segment} is free, and the durable checkpoint begins at {needed:?}"));
        }
        if let Some(tail) = self.index.tail().filter(|tail| *tail < needed) {
            problems.push(format!("I1: {tail:?} is in no map page, and the durable checkpoint begins at {needed:?}"));
        }
        let problems = problems.into_iter().map(|problem| format!("shard {}: {problem}", self.number));
        (owners, problems.collect())
    }

    /// Of a shaped pool: what is wrong with where map pages say that blocks are. Two blocks at one place (I2), counts of bands that are
    /// not what leads to them (I3), and places in bands that are free or not written so far (I4).
    ///
    /// All map pages are in memory when they are looked at, in one step, so that nothing moves meanwhile: for pools of tests.
    /// Nothing is said where one of them cannot be read.
    pub(crate) async fn audit_places(self: &Rc<Self>) -> Vec<String> {
        let Some(bands) = self.meta.bands() else { return Vec::new() };
        let mut held: Vec<Page>;
        loop {
            let (there, missing): (Vec<u32>, Vec<u32>) =
                self.mapped_extents().partition(|extent| self.meta.page(*extent).is_some());
            // Those that were loaded before are among these, and stay until they are held again.
            held = there.into_iter().filter_map(|extent| self.meta.page(extent)).collect();
            if missing.is_empty() {
                break;
            }
            for extent in missing {
                let Ok(page) = self.meta.load_to_read(extent).await else { return Vec::new() };
                held.push(page);
            }
        }
        let problems = self.judge_places(bands, &held).into_iter();
        problems.map(|problem| format!("shard {}: {problem}", self.number)).collect()
    }

    /// Extents that have a map page, in memory or on the media.
    fn mapped_extents(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.meta.extents()).filter(|extent| {
            let owner = self.meta.descriptor(*extent);
            !owner.is_free() && (owner.flags & meta::MAP_PAGE != 0 || self.meta.page(*extent).is_some())
        })
    }

    fn judge_places(&self, bands: &Bands, pages: &[Page]) -> Vec<String> {
        let settled = |page: &Page, index: u32| page.get(index) < meta::INHERIT;
        let mut named: Vec<(BandAt, u32)> = Vec::new();
        for page in pages {
            let first = page.extent() * EXTENT_BLOCKS;
            let settled = (0..EXTENT_BLOCKS).filter(|index| settled(page, *index));
            named.extend(settled.map(|index| (page.band_at(index), first + index)));
        }
        named.sort_unstable();
        let shared = named.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        let shared = shared.map(|pair| {
            let [(at, one), (_, other)] = [pair[0], pair[1]];
            format!("I2: blocks {one} and {other} are at place {} of the bands", at.0)
        });
        shared.chain(bands.audit(&named)).collect()
    }
}
