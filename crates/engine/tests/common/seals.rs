//! Checksums of an image put right again after it was changed, as somebody would who forges it: those that structures have of
//! themselves, and those that others have of blocks.

use super::disk::Image;
use base::Rng;
use base::crc::{Crc32c, crc32c_slices};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const BLOCK: usize = 4096;
/// Structures begin at multiples of so many bytes.
const STEP: usize = 64;
/// No root of these pools is longer.
const ROOT_BYTES_MAX: usize = 16 * BLOCK;
/// More places that have the same number as a checksum, and it is none.
const NAMESAKES_MAX: usize = 8;

/// A checksum of the bytes that it stands among.
#[derive(Clone, Copy, Debug)]
struct Seal {
    /// Its first byte, on its device.
    start: usize,
    /// The checksum's place behind that.
    at: usize,
    salt: u32,
    /// How long the structure is, of those that do not say it.
    len: Option<usize>,
}

/// Devices of one pool, with what is known of their checksums.
#[derive(Clone)]
pub struct Sealed {
    pub devices: Vec<Image>,
    seals: Vec<Vec<Seal>>,
}

fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |value, byte| value << 8 | *byte as u64)
}

/// Where the checksum of a structure is, and how long it says that it is. `docs/formats/pool.md`, `bands.md`.
fn measure(head: &[u8; STEP]) -> Option<(usize, usize)> {
    let get = |at, size| number(head, at, size) as usize;
    Some(match &head[..4] {
        b"RMRC" => (4, STEP * (1 + get(22, 2).saturating_sub(6).div_ceil(16))),
        b"RMGR" => (4, BLOCK * get(22, 2)),
        b"RMSP" | b"RMST" => (4, BLOCK),
        b"RMSM" => (4, STEP),
        b"RMDA" => match &head[4..8] {
            b"POOL" | b"DIRT" => (8, BLOCK),
            b"CAT1" => (8, STEP + 256 * get(40, 4)),
            b"ROOT" => (8, STEP + 8 * get(36, 4)),
            b"SEGM" => (8, STEP),
            _ => return None,
        },
        _ => return None,
    })
}

impl Sealed {
    /// Of devices whose checksums are right.
    pub fn new(devices: Vec<Image>) -> Sealed {
        let mut sealed = Sealed { devices, seals: Vec::new() };
        for device in 0..sealed.devices.len() {
            let blocks: Vec<u64> = sealed.devices[device].keys().copied().collect();
            let starts =
                blocks.iter().flat_map(|block| (0..BLOCK / STEP).map(|step| *block as usize * BLOCK + step * STEP));
            let found = starts.filter_map(|start| sealed.find(device, start)).collect();
            sealed.seals.push(found);
        }
        sealed
    }

    pub fn bytes(&self, device: usize, start: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (offset, byte) in bytes.iter_mut().enumerate() {
            let block = self.devices[device].get(&((start + offset) as u64 / BLOCK as u64));
            *byte = block.map_or(0, |block| block[(start + offset) % BLOCK]);
        }
        bytes
    }

    fn head(&self, device: usize, start: usize) -> Option<[u8; STEP]> {
        let block = self.devices[device].get(&(start as u64 / BLOCK as u64))?;
        Some(block[start % BLOCK..][..STEP].try_into().expect("steps divide blocks"))
    }

    /// Where the checksum of the structure at a place is, and how long it says that it is.
    fn measured(&self, device: usize, start: usize) -> Option<(usize, usize)> {
        measure(&self.head(device, start)?)
    }

    /// How long a root is: the bands of a shaped pool follow, and it ends where its checksum is right.
    fn root_len(&self, device: usize, start: usize, at: usize, len: usize) -> usize {
        let len = len.min(ROOT_BYTES_MAX);
        let bytes = self.bytes(device, start, ROOT_BYTES_MAX);
        let wanted = number(&bytes, at, 4) as u32;
        let mut crc = Crc32c::new();
        [&bytes[..at], &[0; 4], &bytes[at + 4..len]].into_iter().for_each(|part| crc.update(part));
        let mut end = len;
        while crc.value() != wanted && end < ROOT_BYTES_MAX {
            crc.update(&bytes[end..end + 8]);
            end += 8;
        }
        if crc.value() == wanted { end } else { len }
    }

    fn find(&self, device: usize, start: usize) -> Option<Seal> {
        let (at, says) = self.measured(device, start)?;
        let is_root = self.bytes(device, start, 8) == *b"RMDAROOT";
        let len = is_root.then(|| self.root_len(device, start, at, says));
        let bytes = self.bytes(device, start, len.unwrap_or_else(|| bounded(at, says)));
        let salt = crc_of(&bytes, at) ^ number(&bytes, at, 4) as u32;
        // Only what has a magic number of four bytes is salted.
        (salt == 0 || at == 4).then_some(Seal { start, at, salt, len })
    }

    /// The magic numbers of what has a checksum of itself.
    pub fn magics(&self) -> BTreeSet<String> {
        let heads = self.seals.iter().zip(0..).flat_map(|(seals, device)| seals.iter().map(move |seal| (device, seal)));
        let magic = |(device, seal): (usize, &Seal)| {
            let bytes = self.bytes(device, seal.start, 8);
            String::from_utf8_lossy(&bytes[..if seal.at == 4 { 4 } else { 8 }]).into_owned()
        };
        heads.map(magic).collect()
    }

    /// Writes into a block, and into all others that are the same, and puts every checksum right.
    pub fn forge(&mut self, device: usize, block: u64, change: impl Fn(&mut [u8])) {
        let pristine = self.clone();
        let before = self.devices[device][&block].clone();
        let mut changed = BTreeSet::new();
        for (device, image) in self.devices.iter_mut().enumerate() {
            for (number, bytes) in image.iter_mut().filter(|(_, bytes)| **bytes == before) {
                change(Arc::make_mut(bytes).as_mut_slice());
                changed.insert((device, *number));
            }
        }
        let mut told = BTreeMap::new();
        for _ in 0..8 {
            let more = self.seal(&pristine, &mut told, &changed);
            if more.is_subset(&changed) {
                return;
            }
            changed.extend(more);
        }
    }

    /// One pass: the blocks that it changed.
    fn seal(
        &mut self,
        pristine: &Sealed,
        told: &mut BTreeMap<(usize, u64, usize), u32>,
        changed: &BTreeSet<(usize, u64)>,
    ) -> BTreeSet<(usize, u64)> {
        let mut touched = BTreeSet::new();
        for device in 0..self.devices.len() {
            for seal in self.seals[device].clone() {
                // (The length may have been forged, too.)
                let Some((at, says)) = self.measured(device, seal.start).filter(|(at, _)| *at == seal.at) else {
                    continue;
                };
                let len = seal.len.unwrap_or_else(|| bounded(at, says));
                let blocks = (seal.start / BLOCK) as u64..((seal.start + len).div_ceil(BLOCK)) as u64;
                if !changed.iter().any(|(other, block)| *other == device && blocks.contains(block)) {
                    continue;
                }
                let bytes = self.bytes(device, seal.start, len);
                let right = crc_of(&bytes, at) ^ seal.salt;
                if right != number(&bytes, at, 4) as u32 {
                    self.put(device, seal.start + at, right);
                    touched.insert((device, ((seal.start + at) / BLOCK) as u64));
                }
            }
        }
        // Of one block, or of two: what others say of them.
        for (device, block) in changed {
            for (first, count) in [(*block, 1), (*block, 2), (block.saturating_sub(1), 2)] {
                let of = |sealed: &Sealed| base::crc32c(&sealed.bytes(*device, first as usize * BLOCK, count * BLOCK));
                let now = of(self);
                let before = told.insert((*device, first, count), now).unwrap_or_else(|| of(pristine));
                if before != now {
                    touched.extend(self.rename(before, now));
                }
            }
        }
        touched
    }

    /// Replaces a checksum wherever it stands.
    fn rename(&mut self, before: u32, now: u32) -> BTreeSet<(usize, u64)> {
        let mut places = Vec::new();
        for (device, image) in self.devices.iter().enumerate() {
            for (block, bytes) in image {
                let words = bytes.chunks_exact(4).enumerate().filter(|(_, word)| **word == before.to_le_bytes());
                places.extend(words.map(|(word, _)| (device, *block as usize * BLOCK + word * 4)));
            }
        }
        if places.len() > NAMESAKES_MAX {
            return BTreeSet::new();
        }
        places.iter().for_each(|(device, at)| self.put(*device, *at, now));
        places.into_iter().map(|(device, at)| (device, (at / BLOCK) as u64)).collect()
    }

    fn put(&mut self, device: usize, at: usize, word: u32) {
        let block = self.devices[device].entry((at / BLOCK) as u64).or_insert_with(|| Arc::new(vec![0; BLOCK]));
        Arc::make_mut(block)[at % BLOCK..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

/// A length that may have been forged.
fn bounded(at: usize, says: usize) -> usize {
    says.clamp(at + 4, 64 * BLOCK)
}

/// Another number in the place of a field of so many bytes.
pub fn forge_field(field: &mut [u8], rng: &mut Rng) {
    let old = number(field, 0, field.len());
    let most = u64::MAX >> (64 - 8 * field.len());
    let new = match rng.below(10) {
        0 => 0,
        1 => 1,
        2 => most,
        3 => most / 2,
        4 => old.wrapping_add(1),
        5 => old.wrapping_sub(1),
        6 => old.wrapping_mul(2),
        7 => old ^ 1 << rng.below(8 * field.len() as u64),
        8 => rng.below(100),
        _ => rng.next_u64(),
    };
    field.copy_from_slice(&new.to_le_bytes()[..field.len()]);
}

/// With the checksum itself as zero.
fn crc_of(bytes: &[u8], at: usize) -> u32 {
    crc32c_slices([&bytes[..at], &[0; 4], &bytes[at + 4..]])
}
