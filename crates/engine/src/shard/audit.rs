//! The audit: who has which extent, and whether what the shard knows contradicts itself. Reads memory alone.

use super::Shard;

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
}
