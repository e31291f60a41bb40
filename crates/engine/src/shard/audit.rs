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
    /// The extents in use, and every contradiction found: two owners of an extent or of a place in the log, blocks of
    /// free extents that still count.
    pub(crate) fn audit(&self) -> (Vec<ExtentOwner>, Vec<String>) {
        let mut owners = Vec::new();
        for extent in 0..self.meta.extents() {
            let owner = self.meta.descriptor(extent);
            if owner.volume != 0 {
                owners.push(ExtentOwner { shard: self.number, extent, volume: owner.volume, vextent: owner.vextent });
            }
        }
        let problems = self.index.audit().into_iter().map(|problem| format!("shard {}: {problem}", self.number));
        (owners, problems.collect())
    }
}
