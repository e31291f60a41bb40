//! Images of pools as files: each block that is not zero, as runs of equal words, and a manifest of what the volumes hold.
//!
//! ```text
//! image     device blocks u64, blocks in the file u64, then each: number u64, words left 1024 at first:
//!           { count u16, word u32 } until 1,024 words are there                                    (little-endian)
//! manifest  "volume NAME SHIFT BLOCKS", then "FIRST COUNT WORD": so many sectors of 512 bytes from FIRST on repeat the
//!           word (hexadecimal, little-endian); "lost FIRST COUNT": these cannot be read; sectors without a line are zero
//! ```

use super::disk::Image;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a sector of a manifest.
pub const SECTOR: usize = 512;

/// The blocks that were written last, one for each shard: volume and first sector. They were zero before.
pub const LAST: [(usize, u64); 2] = [(0, 7 * 8192), (1, 2 * 8192 + 8176)];

/// What a volume holds: a word for each sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub name: String,
    pub block_shift: u16,
    /// Of 4 KiB.
    pub blocks: u64,
    pub sectors: Vec<u32>,
    /// First sectors of the blocks of 4 KiB that are lost, in order.
    pub lost: Vec<usize>,
}

impl Content {
    pub fn new(name: &str, block_shift: u16, blocks: u64) -> Content {
        let sectors = vec![0; blocks as usize * 4096 / SECTOR];
        Content { name: name.into(), block_shift, blocks, sectors, lost: Vec::new() }
    }

    /// The bytes of some sectors.
    pub fn bytes(&self, first: usize, count: usize) -> Vec<u8> {
        self.sectors[first..first + count].iter().flat_map(|word| word.to_le_bytes().repeat(SECTOR / 4)).collect()
    }
}

pub fn encode_image(blocks: u64, image: &Image) -> Vec<u8> {
    let used: Vec<_> = image.iter().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)).collect();
    let mut out = Vec::new();
    out.extend(blocks.to_le_bytes());
    out.extend((used.len() as u64).to_le_bytes());
    for (number, bytes) in used {
        out.extend(number.to_le_bytes());
        let words: Vec<&[u8]> = bytes.chunks(4).collect();
        for run in words.chunk_by(|one, next| one == next) {
            out.extend((run.len() as u16).to_le_bytes());
            out.extend(run[0]);
        }
    }
    out
}

/// The device's blocks, and its content.
pub fn decode_image(mut bytes: &[u8]) -> (u64, Image) {
    let mut take = |count: usize| {
        let (taken, rest) = bytes.split_at(count);
        bytes = rest;
        taken
    };
    let mut number = |count: usize| take(count).iter().rev().fold(0u64, |value, byte| value << 8 | *byte as u64);
    let (blocks, used) = (number(8), number(8));
    let mut image = Image::new();
    for _ in 0..used {
        let (block, mut content) = (number(8), Vec::with_capacity(4096));
        while content.len() < 4096 {
            let (count, word) = (number(2) as usize, number(4) as u32);
            content.extend(word.to_le_bytes().repeat(count));
        }
        image.insert(block, Arc::new(content));
    }
    (blocks, image)
}

pub fn encode_manifest(volumes: &[Content]) -> String {
    let mut text = String::new();
    for volume in volumes {
        text += &format!("volume {} {} {}\n", volume.name, volume.block_shift, volume.blocks);
        let mut first = 0;
        for run in volume.sectors.chunk_by(|one, next| one == next) {
            if run[0] != 0 {
                text += &format!("{first} {} {:08x}\n", run.len(), run[0]);
            }
            first += run.len();
        }
        for first in &volume.lost {
            text += &format!("lost {first} {}\n", 4096 / SECTOR);
        }
    }
    text
}

pub fn decode_manifest(text: &str) -> Vec<Content> {
    let mut volumes: Vec<Content> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields[..] {
            ["volume", name, shift, blocks] => {
                volumes.push(Content::new(name, shift.parse().unwrap(), blocks.parse().unwrap()));
            }
            ["lost", first, _] => volumes.last_mut().unwrap().lost.push(first.parse().unwrap()),
            [first, count, word] => {
                let (first, count): (usize, usize) = (first.parse().unwrap(), count.parse().unwrap());
                let word = u32::from_str_radix(word, 16).unwrap();
                volumes.last_mut().unwrap().sectors[first..first + count].fill(word);
            }
            _ => panic!("a line of a manifest: {line}"),
        }
    }
    volumes
}

/// The blocks of a file that are not zero.
pub fn image_of(bytes: &[u8]) -> Image {
    let blocks = bytes.chunks(4096).zip(0..).filter(|(block, _)| block.iter().any(|byte| *byte != 0));
    blocks.map(|(block, number)| (number, Arc::new(block.to_vec()))).collect::<BTreeMap<_, _>>()
}

/// The bytes of a device of so many blocks.
pub fn bytes_of(blocks: u64, image: &Image) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * 4096];
    for (block, content) in image {
        bytes[*block as usize * 4096..][..4096].copy_from_slice(content);
    }
    bytes
}
