//! Where the blocks of a parity device are on its members: arithmetic alone.
//!
//! ```text
//! member   | superblocks | head (the same on all) | chunk of row 0 | chunk of row 1 | ...
//! row r    the parity is on member N - 1 - r mod N, data chunk 0 on the member behind it, and so on, round the members
//! ```
//! This is the left-symmetric layout of Linux md: chunks that follow each other lie on members that follow each other, over the
//! ends of rows too.

/// The geometry. Lengths and places are in blocks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) members: usize,
    /// Blocks that a row has on each member.
    pub(super) chunk: u64,
    /// First block of the head on each member.
    pub(super) data_start: u64,
    /// Blocks of the head.
    pub(super) head: u64,
    pub(super) rows: u64,
}

/// Where a block of the body is, and how many follow it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) row: u64,
    pub(super) member: usize,
    pub(super) at: u64,
    pub(super) run: u64,
}

impl Rows {
    /// Blocks of data in a row.
    pub(super) fn row_blocks(&self) -> u64 {
        (self.members as u64 - 1) * self.chunk
    }

    /// Blocks of the device.
    pub(super) fn blocks(&self) -> u64 {
        self.head + self.rows * self.row_blocks()
    }

    /// Blocks that each member needs.
    pub(super) fn member_blocks(&self) -> u64 {
        self.chunk_at(self.rows)
    }

    /// Whether all places can be computed without leaving 64 bits, with room to spare.
    pub(super) fn is_addressable(&self) -> bool {
        let row_blocks = (self.members as u64 - 1).checked_mul(self.chunk);
        let body = row_blocks.and_then(|blocks| self.rows.checked_mul(blocks.max(1)));
        let end = body.and_then(|body| body.checked_add(self.head)?.checked_add(self.data_start));
        end.is_some_and(|end| end < 1 << 56)
    }

    /// The member with the parity of a row.
    pub(super) fn parity(&self, row: u64) -> usize {
        self.members - 1 - (row % self.members as u64) as usize
    }

    /// The member with data chunk `nth` of a row.
    pub(super) fn member(&self, row: u64, nth: usize) -> usize {
        (self.parity(row) + 1 + nth) % self.members
    }

    /// First block of a row's chunk, on every member.
    pub(super) fn chunk_at(&self, row: u64) -> u64 {
        self.data_start + self.head + row * self.chunk
    }

    /// First block of a row.
    pub(super) fn row_start(&self, row: u64) -> u64 {
        self.head + row * self.row_blocks()
    }

    /// A block of the body.
    pub(super) fn place(&self, lba: u64) -> Place {
        let (row, inside) = ((lba - self.head) / self.row_blocks(), (lba - self.head) % self.row_blocks());
        let (nth, offset) = (inside / self.chunk, inside % self.chunk);
        let (member, at) = (self.member(row, nth as usize), self.chunk_at(row) + offset);
        Place { row, member, at, run: self.chunk - offset }
    }

    /// The rows of a range of the body; `None` where it does not consist of whole ones.
    pub(super) fn whole(&self, lba: u64, nblocks: u64) -> Option<std::ops::Range<u64>> {
        let (from, row_blocks) = (lba.checked_sub(self.head)?, self.row_blocks());
        let is_whole = from.is_multiple_of(row_blocks) && nblocks.is_multiple_of(row_blocks) && nblocks > 0;
        is_whole.then(|| from / row_blocks..(from + nblocks) / row_blocks)
    }
}

/// Adds `source` to the sum in `target` (GF(2), byte by byte). Plain enough for the compiler to use the widest registers.
pub(super) fn xor_into(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len());
    target.iter_mut().zip(source).for_each(|(sum, byte)| *sum ^= byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_a_place_of_its_own_and_the_parity_goes_round() {
        for members in 3..=16 {
            let rows = Rows { members, chunk: 4, data_start: 10, head: 7, rows: 40 };
            let mut seen = std::collections::BTreeSet::new();
            let mut lba = rows.head;
            while lba < rows.blocks() {
                let place = rows.place(lba);
                assert_ne!(place.member, rows.parity(place.row));
                assert!(place.at + place.run <= rows.member_blocks() && rows.row_start(place.row) <= lba);
                (0..place.run).for_each(|block| assert!(seen.insert((place.member, place.at + block))));
                lba += place.run;
            }
            assert_eq!(seen.len() as u64, rows.blocks() - rows.head);
            let parities: std::collections::BTreeSet<usize> = (0..40).map(|row| rows.parity(row)).collect();
            assert_eq!(parities.len(), members);
        }
    }

    #[test]
    fn the_layout_is_left_symmetric() {
        let rows = Rows { members: 4, chunk: 1, data_start: 0, head: 0, rows: 8 };
        let members: Vec<usize> = (0..12).map(|lba| rows.place(lba).member).collect();
        assert_eq!(members, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!([0, 1, 2, 3, 4].map(|row| rows.parity(row)), [3, 2, 1, 0, 3]);
    }

    #[test]
    fn only_whole_rows_are_rows() {
        let rows = Rows { members: 4, chunk: 4, data_start: 0, head: 8, rows: 10 };
        assert_eq!(rows.whole(8, 12), Some(0..1));
        assert_eq!(rows.whole(32, 24), Some(2..4));
        for (lba, nblocks) in [(0, 12), (7, 12), (9, 12), (8, 11), (8, 13), (8, 0)] {
            assert_eq!(rows.whole(lba, nblocks), None, "{lba}+{nblocks}");
        }
    }

    #[test]
    fn a_sum_of_all_but_one_is_the_one() {
        let chunks: Vec<Vec<u8>> = (1..5u8).map(|n| (0..100u8).map(|at| at.wrapping_mul(n) ^ n).collect()).collect();
        let mut parity = vec![0; 100];
        chunks.iter().for_each(|chunk| xor_into(&mut parity, chunk));
        for missing in 0..chunks.len() {
            let mut sum = parity.clone();
            chunks.iter().enumerate().filter(|(n, _)| *n != missing).for_each(|(_, chunk)| xor_into(&mut sum, chunk));
            assert_eq!(sum, chunks[missing]);
        }
    }
}
