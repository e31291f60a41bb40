//! What the writers write, by seed alone: who knows how far each of them is knows every byte.

use base::Rng;
use std::ops::Range;

pub const BLOCK: usize = 4096;
pub const WRITERS: usize = 8;
/// Blocks that a writer goes over again and again.
const OWN_BLOCKS: u64 = 768;
/// From one writer's first block to the next one's: neither extents (1,024 blocks) nor slices begin there.
const STRIDE: u64 = 12_000;
const EXTENT_BLOCKS: u64 = 1024;
/// What the pool promises to write whole or not at all, inside an extent.
const ATOMIC_BLOCKS: u64 = 16;
/// Steps that a writer may be ahead of its note; a block that claims more is damaged.
const STEPS_AHEAD: u32 = 1 << 20;
const MAGIC: u64 = u64::from_le_bytes(*b"power-nt");

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("eight bytes"))
}

/// The blocks of a writer.
pub fn blocks_of(writer: usize) -> Range<u64> {
    let first = writer as u64 * STRIDE;
    first..first + OWN_BLOCKS
}

/// The blocks that a writer writes in its step `step`, counted from 1.
pub fn step(seed: u64, writer: usize, step: u32) -> Range<u64> {
    let mut rng = Rng::new(seed ^ (writer as u64) << 56 ^ (step as u64) << 20);
    let length = match rng.below(10) {
        0..=5 => 1,
        6..=8 => rng.between(2, ATOMIC_BLOCKS),
        _ => rng.between(ATOMIC_BLOCKS + 1, 64),
    };
    let first = blocks_of(writer).start + rng.below(OWN_BLOCKS - length + 1);
    first..first + length
}

/// Fills a block as a step does.
pub fn fill(bytes: &mut [u8], seed: u64, block: u64, step: u32) {
    Rng::new(seed ^ block << 32 ^ step as u64).fill(bytes);
    bytes[..8].copy_from_slice(&(step as u64).to_le_bytes());
    bytes[8..16].copy_from_slice(&block.to_le_bytes());
}

fn describe(bytes: &[u8]) -> String {
    match bytes.iter().all(|byte| *byte == 0) {
        true => "zeroes".to_string(),
        false => format!("what begins as step {} of block {}", word(bytes, 0), word(bytes, 1)),
    }
}

/// A note of all writers in a recording; a mark is one word.
pub fn show_mark(steps: &[u32]) -> String {
    let steps: Vec<String> = steps.iter().map(u32::to_string).collect();
    format!("steps:{}", steps.join(","))
}

/// Such a note; other marks are `None`.
pub fn read_mark(mark: &str) -> Option<Vec<u32>> {
    let steps: Option<Vec<u32>> = mark.strip_prefix("steps:")?.split(',').map(|step| step.parse().ok()).collect();
    steps.filter(|steps| steps.len() == WRITERS)
}

/// A writer's note on a device: it is `step` steps far.
pub fn fill_note(bytes: &mut [u8], seed: u64, writer: usize, step: u32) {
    bytes.fill(0);
    for (index, value) in [MAGIC, seed, writer as u64, step as u64].into_iter().enumerate() {
        bytes[index * 8..index * 8 + 8].copy_from_slice(&value.to_le_bytes());
    }
}

/// How far a writer is by its note; nothing noted yet is 0.
pub fn read_note(bytes: &[u8], seed: u64, writer: usize) -> Result<u32, String> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    match [0, 1, 2].map(|index| word(bytes, index)) == [MAGIC, seed, writer as u64] {
        true => Ok(word(bytes, 3) as u32),
        false => Err(format!("writer {writer} has no note with seed {seed}")),
    }
}

/// The newest step of every block of one writer, as far as it is noted.
#[derive(Clone)]
pub struct History {
    seed: u64,
    writer: usize,
    noted: u32,
    newest: Vec<u32>,
}

impl History {
    pub fn new(seed: u64, writer: usize) -> History {
        History { seed, writer, noted: 0, newest: vec![0; OWN_BLOCKS as usize] }
    }

    /// Takes note of a later note.
    pub fn advance(&mut self, noted: u32) {
        let first = blocks_of(self.writer).start;
        for number in self.noted + 1..=noted {
            for block in step(self.seed, self.writer, number) {
                self.newest[(block - first) as usize] = number;
            }
        }
        self.noted = noted;
    }

    pub fn noted(&self) -> u32 {
        self.noted
    }

    /// Judges all blocks of the writer, which lie in `bytes`. A writer waits for each step before the next, so what is there
    /// is what some number of steps left, not fewer than are noted, and perhaps a part of one more, which is atomic when it
    /// is short.
    pub fn check(&self, bytes: &[u8]) -> Result<(), String> {
        let first = blocks_of(self.writer).start;
        let blocks = || bytes.chunks_exact(BLOCK).zip(first..);
        let last_seen =
            blocks().filter(|(found, block)| word(found, 1) == *block).map(|(found, _)| word(found, 0)).max();
        let last_seen = last_seen.map_or(0, |step| step.min((self.noted + STEPS_AHEAD) as u64)) as u32;
        let mut whole = self.clone();
        whole.advance(last_seen.saturating_sub(1));
        let last = step(self.seed, self.writer, whole.noted + 1);
        let (mut expected, mut arrived) = (vec![0; BLOCK], 0);
        for ((found, block), newest) in blocks().zip(&whole.newest) {
            expected.fill(0);
            if *newest > 0 {
                fill(&mut expected, self.seed, block, *newest);
            }
            if found == expected {
                continue;
            }
            fill(&mut expected, self.seed, block, whole.noted + 1);
            if !last.contains(&block) || found != expected {
                let (found, noted, seen) = (describe(found), self.noted, whole.noted);
                return Err(format!("block {block} has {found}, not step {newest} (noted {noted}, seen {seen})"));
            }
            arrived += 1;
        }
        let length = last.end - last.start;
        let atomic = length <= ATOMIC_BLOCKS && last.start / EXTENT_BLOCKS == (last.end - 1) / EXTENT_BLOCKS;
        if atomic && arrived != 0 && arrived != length {
            return Err(format!("{arrived} of the {length} blocks of an atomic write at block {}", last.start));
        }
        Ok(())
    }
}
