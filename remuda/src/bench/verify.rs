//! Blocks that say what they are, and a memory of what was written: finds lost, stale, torn, misplaced and rotten data.
//!
//! Every block of a write carries seed, block number and a sequence number, and is filled with words that follow from
//! them. A block has at most one write under way, so what a read may find is a range: not older than the last write
//! acknowledged before the read began, not newer than the last one issued before it ended.

/// What a block should be and is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The block.
    pub block: u64,
    /// What was found, in words.
    pub found: String,
    /// The oldest acceptable write.
    pub oldest: u32,
    /// The newest acceptable write.
    pub newest: u32,
}

const MAGIC: u64 = 0x5265_6d75_6461_4249; // "RemudaBI"
const HEADER_WORDS: usize = 4;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn body_word(seed: u64, block: u64, sequence: u32, index: usize) -> u64 {
    // One multiplication per word: the start is well mixed, so words differ between any two blocks and writes.
    let start = mix(seed ^ block.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ ((sequence as u64) << 32));
    start.wrapping_add((index as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

/// Fills one block.
pub fn fill(bytes: &mut [u8], seed: u64, block: u64, sequence: u32) {
    let words = bytes.len() / 8;
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = match index {
            0 => MAGIC,
            1 => seed,
            2 => block,
            3 => sequence as u64 | (words as u64) << 32,
            _ => body_word(seed, block, sequence, index),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The sequence number of a whole block, or what is wrong with it.
pub fn read_sequence(bytes: &[u8], seed: u64, block: u64) -> Result<u32, String> {
    let word = |index: usize| u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("eight bytes"));
    if bytes.iter().all(|byte| *byte == 0) {
        return Err("zeroes".into());
    }
    if word(0) != MAGIC {
        return Err(format!("not written by this run (first word {:016x})", word(0)));
    }
    if word(1) != seed {
        return Err(format!("written with seed {}", word(1)));
    }
    if word(2) != block {
        return Err(format!("block {} (misplaced)", word(2)));
    }
    let sequence = word(3) as u32;
    let words = bytes.len() / 8;
    if (word(3) >> 32) as usize != words {
        return Err("a header with the wrong length".into());
    }
    match (HEADER_WORDS..words).find(|index| word(*index) != body_word(seed, block, sequence, *index)) {
        None => Ok(sequence),
        Some(index) => Err(format!("write {sequence}, torn or rotten from byte {}", index * 8)),
    }
}

/// The memory: per block the last write acknowledged and the last issued; 0 is none.
pub struct Memory {
    seed: u64,
    first: u64,
    acknowledged: Vec<u32>,
    issued: Vec<u32>,
}

/// Blocks that one job remembers at most (8 bytes each).
pub const BLOCKS_MAX: u64 = 1 << 28;

impl Memory {
    /// A memory of `blocks` blocks from `first` on.
    pub fn new(seed: u64, first: u64, blocks: u64) -> Memory {
        Memory { seed, first, acknowledged: vec![0; blocks as usize], issued: vec![0; blocks as usize] }
    }

    fn at(&self, block: u64) -> usize {
        (block - self.first) as usize
    }

    /// Whether none of the blocks has a write under way.
    pub fn may_write(&self, block: u64, blocks: u64) -> bool {
        let range = self.at(block)..self.at(block) + blocks as usize;
        self.issued[range.clone()] == self.acknowledged[range]
    }

    /// Numbers a write of one block that is about to be issued, and fills it.
    pub fn issue(&mut self, block: u64, bytes: &mut [u8]) {
        let at = self.at(block);
        self.issued[at] += 1;
        fill(bytes, self.seed, block, self.issued[at]);
    }

    /// Notes that the write of a block was acknowledged. A failed write may or may not have reached the medium: it stays
    /// issued, and the block is not written again.
    pub fn acknowledge(&mut self, block: u64) {
        let at = self.at(block);
        self.acknowledged[at] = self.issued[at];
    }

    /// The oldest write that a read starting now may find.
    pub fn oldest(&self, block: u64) -> u32 {
        self.acknowledged[self.at(block)]
    }

    /// Checks a block that was read; `oldest` is from when the read began. `None` for a block never written.
    pub fn check(&self, block: u64, bytes: &[u8], oldest: u32) -> Option<Result<(), Mismatch>> {
        let newest = self.issued[self.at(block)];
        if oldest == 0 {
            // Before the first acknowledged write the block may hold anything.
            return None;
        }
        let mismatch = |found| Err(Mismatch { block, found, oldest, newest });
        Some(match read_sequence(bytes, self.seed, block) {
            Ok(sequence) if (oldest..=newest).contains(&sequence) => Ok(()),
            Ok(sequence) if sequence < oldest => mismatch(format!("write {sequence} (stale)")),
            Ok(sequence) => mismatch(format!("write {sequence}, which was never issued")),
            Err(found) => mismatch(found),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> (Memory, Vec<u8>) {
        let mut memory = Memory::new(1, 10, 4);
        let mut bytes = vec![0; 4096];
        memory.issue(11, &mut bytes);
        memory.acknowledge(11);
        (memory, bytes)
    }

    #[test]
    fn accepts_what_was_written() {
        let (memory, bytes) = memory();
        assert_eq!(memory.check(11, &bytes, memory.oldest(11)), Some(Ok(())));
        assert_eq!(memory.check(12, &bytes, memory.oldest(12)), None);
    }

    #[test]
    fn finds_every_flipped_bit() {
        let (memory, bytes) = memory();
        for bit in (0..bytes.len() * 8).step_by(7) {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(memory.check(11, &bad, 1).unwrap().is_err(), "bit {bit}");
        }
    }

    #[test]
    fn finds_lost_stale_torn_and_misplaced_blocks() {
        let (mut memory, first) = memory();
        let mut second = vec![0; 4096];
        memory.issue(11, &mut second);
        assert!(!memory.may_write(10, 2), "a write is under way");
        let under_way = memory.oldest(11);
        assert_eq!(memory.check(11, &first, under_way), Some(Ok(())), "old or new while the write is under way");
        assert_eq!(memory.check(11, &second, under_way), Some(Ok(())));
        memory.acknowledge(11);
        let found = |bytes: &[u8], block| memory.check(block, bytes, 2).unwrap().unwrap_err().found;
        assert!(found(&first, 11).contains("stale"));
        assert!(found(&vec![0; 4096], 11).contains("zeroes"));
        let torn = [&second[..512], &first[512..]].concat();
        assert!(found(&torn, 11).contains("torn"));
        let mut elsewhere = vec![0; 4096];
        fill(&mut elsewhere, 1, 12, 2);
        assert!(found(&elsewhere, 11).contains("misplaced"));
    }
}
