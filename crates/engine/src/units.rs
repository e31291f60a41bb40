//! Sizes and places that every part of the engine shares.

use std::ops::Range;
use zerocopy::FromZeros;

/// Bytes of a block, the unit of mapping and checksums.
pub const BLOCK_BYTES: usize = 4096;
/// Blocks of an extent: as many as one map page has entries.
pub const EXTENT_BLOCKS: u32 = 1024;
/// Extents of a slice, the unit of sharding and of loss.
pub const SLICE_EXTENTS: u32 = 16;
/// Most blocks of one log record.
pub const RECORD_BLOCKS_MAX: u32 = 64;
/// Most blocks of a volume: its extents are numbered with 32 bits.
pub const VOLUME_BLOCKS_MAX: u64 = u32::MAX as u64 * EXTENT_BLOCKS as u64;
/// Blocks that a volume writes atomically, when they lie in one extent.
pub const ATOMIC_BLOCKS: u32 = 16;

/// Where a payload lies in a shard's log: units of 64 bytes from the shard's first segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogAt(pub u32);

impl LogAt {
    /// Bytes of the unit.
    pub const UNIT: u64 = 64;

    /// Bytes from the shard's first segment.
    pub fn bytes(self) -> u64 {
        self.0 as u64 * LogAt::UNIT
    }
}

/// Where replay begins: the first record that a checkpoint does not cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromZeros)]
pub struct LogTail {
    /// Sequence of the segment that holds it.
    pub segment: u64,
    /// Its number.
    pub lsn: u64,
}

/// The extent of a shard's block.
pub fn extent_of(block: u32) -> u32 {
    block / EXTENT_BLOCKS
}

/// Adds a run of blocks to others that lie before it.
pub(crate) fn join(runs: &mut Vec<Range<u32>>, run: Range<u32>) {
    match runs.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => runs.push(run),
    }
}

/// The runs that ascending blocks make.
pub(crate) fn joined(blocks: impl Iterator<Item = u32>) -> Vec<Range<u32>> {
    let mut runs = Vec::new();
    blocks.for_each(|block| join(&mut runs, block..block + 1));
    runs
}

/// What lies below a layer: a volume shows it wherever it has nothing of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Below {
    /// The layer.
    pub(crate) layer: u32,
    /// So many of the first blocks show it; the others have nothing below them.
    pub(crate) blocks: u64,
}
