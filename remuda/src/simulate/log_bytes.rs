//! What writes make of a log device: blocks as they are, parts of blocks and headers beside them. How many writes share a block of
//! headers depends on how many come at a time, which a trace does not say; so there are a least and a most.

use super::space::BLOCK;

/// Of one record's header, and of that of a group.
const HEADER_BYTES: u64 = 64;
/// Blocks of one record, and of checksums in one header.
const RECORD_BLOCKS: u64 = 64;
const CHECKSUMS: u64 = 16;
/// Blocks of a full group beside those of headers.
const GROUP_BLOCKS: u64 = 252;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogBytes {
    /// Every write shares headers with others.
    pub least: u64,
    /// Every write comes alone.
    pub most: u64,
}

impl LogBytes {
    /// Of one write.
    pub fn of(offset: u64, bytes: u64) -> LogBytes {
        let end = offset + bytes;
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        let (blocks, parts) = match last.checked_sub(first) {
            Some(blocks) => (blocks, u64::from(!offset.is_multiple_of(BLOCK)) + u64::from(!end.is_multiple_of(BLOCK))),
            // Inside one block.
            None => (0, 1),
        };
        let part_bytes = bytes - blocks * BLOCK;
        let headers = blocks.div_ceil(RECORD_BLOCKS).max(blocks.div_ceil(CHECKSUMS)) + parts;
        let beside = headers * HEADER_BYTES + part_bytes.next_multiple_of(HEADER_BYTES);
        // The header of a group lies in front of them.
        let alone = (beside + HEADER_BYTES).div_ceil(BLOCK).max(blocks.div_ceil(GROUP_BLOCKS));
        LogBytes { least: blocks * BLOCK + beside, most: (blocks + alone) * BLOCK }
    }

    pub fn add(&mut self, other: LogBytes) {
        self.least += other.least;
        self.most += other.most;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_costs_its_blocks_and_a_part_of_a_header_or_a_whole_one() {
        let of = |offset, bytes| {
            let LogBytes { least, most } = LogBytes::of(offset, bytes);
            (least, most)
        };
        assert_eq!(of(0, 4096), (4096 + 64, 8192));
        assert_eq!(of(4096, 65_536), (65_536 + 64, 65_536 + 4096));
        assert_eq!(of(0, 512), (512 + 64, 4096));
        assert_eq!(of(512, 4096), (4096 + 2 * 64, 8192), "two parts of blocks lie beside their headers");
        assert_eq!(of(0, 1 << 20), ((1 << 20) + 16 * 64, (256 + 2) << 12));
    }
}
