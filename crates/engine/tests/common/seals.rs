//! Checksums of an image put right again after it was changed, as somebody would who forges it: those that structures have of
//! themselves, and those that others have of blocks.

use super::disk::Image;
use super::forge::{crc_of, number, record_at};
use base::crc::Crc32c;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

pub const BLOCK: usize = 4096;
/// Structures begin at multiples of so many bytes.
const STEP: usize = 64;
/// No structure is believed to be longer.
const LEN_BLOCKS_MAX: usize = 64;
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
    seals: Arc<Vec<Vec<Seal>>>,
    /// Devices and bytes where the checksums of blocks, and of two that follow each other, stand.
    told: BTreeMap<u32, Vec<(usize, usize)>>,
}

/// First block and number of what has a checksum elsewhere, with this block in it.
fn spans(block: u64) -> [(u64, usize); 3] {
    [(block, 1), (block, 2), (block.saturating_sub(1), 2)]
}

/// Where the checksum of a structure is, and how long it says that it is. `docs/formats/pool.md`, `bands.md`.
fn measure(head: &[u8; STEP]) -> Option<(usize, usize)> {
    if let Some(record) = record_at(head) {
        return Some(record);
    }
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
        let mut sealed = Sealed { devices, seals: Arc::default(), told: BTreeMap::new() };
        let of_device = |device: usize| {
            let blocks = sealed.devices[device].keys();
            let starts = blocks.flat_map(|block| (0..BLOCK / STEP).map(|step| *block as usize * BLOCK + step * STEP));
            starts.filter_map(|start| sealed.find(device, start)).collect()
        };
        let seals = Arc::new((0..sealed.devices.len()).map(of_device).collect());
        sealed.told = sealed.find_told();
        Sealed { seals, ..sealed }
    }

    fn crc_of_span(&self, device: usize, (first, count): (u64, usize)) -> u32 {
        base::crc32c(&self.bytes(device, first as usize * BLOCK, count * BLOCK))
    }

    fn find_told(&self) -> BTreeMap<u32, Vec<(usize, usize)>> {
        let blocks =
            || self.devices.iter().enumerate().flat_map(|(device, image)| image.iter().map(move |it| (device, it)));
        let spans = blocks().flat_map(|(device, (block, _))| spans(*block).map(|span| (device, span)));
        let crcs: HashSet<u32> = spans.map(|(device, span)| self.crc_of_span(device, span)).collect();
        let mut told: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for (device, (block, bytes)) in blocks().filter(|(_, (_, bytes))| is_structure(bytes)) {
            for (word, bytes) in bytes.chunks_exact(4).enumerate() {
                let value = number(bytes, 0, 4) as u32;
                if crcs.contains(&value) {
                    told.entry(value).or_default().push((device, *block as usize * BLOCK + word * 4));
                }
            }
        }
        told
    }

    pub fn bytes(&self, device: usize, start: usize, len: usize) -> Vec<u8> {
        let (mut bytes, mut done) = (vec![0; len], 0);
        while done < len {
            let (block, within) = ((start + done) / BLOCK, (start + done) % BLOCK);
            let count = (BLOCK - within).min(len - done);
            if let Some(block) = self.devices[device].get(&(block as u64)) {
                bytes[done..done + count].copy_from_slice(&block[within..within + count]);
            }
            done += count;
        }
        bytes
    }

    fn head(&self, device: usize, start: usize) -> Option<[u8; STEP]> {
        let block = self.devices[device].get(&(start as u64 / BLOCK as u64))?;
        Some(head_of(block, start % BLOCK))
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

    fn places(&self) -> impl Iterator<Item = (usize, &Seal)> {
        self.seals.iter().zip(0..).flat_map(|(seals, device)| seals.iter().map(move |seal| (device, seal)))
    }

    fn magic(&self, device: usize, seal: &Seal) -> String {
        let bytes = self.bytes(device, seal.start, 8);
        String::from_utf8_lossy(&bytes[..if seal.at == 4 { 4 } else { 8 }]).into_owned()
    }

    /// The magic numbers of what has a checksum of itself.
    pub fn magics(&self) -> BTreeSet<String> {
        self.places().map(|(device, seal)| self.magic(device, seal)).collect()
    }

    /// Devices and first bytes of all structures, by magic number; of blocks that have no checksum of themselves without one.
    pub fn kinds(&self) -> BTreeMap<String, Vec<(usize, usize)>> {
        let mut kinds: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (device, seal) in self.places() {
            kinds.entry(self.magic(device, seal)).or_default().push((device, seal.start));
        }
        for (device, image) in self.devices.iter().enumerate() {
            let others = image.iter().filter(|(_, bytes)| is_structure(bytes) && measure(&head_of(bytes, 0)).is_none());
            kinds.entry(String::new()).or_default().extend(others.map(|(block, _)| (device, *block as usize * BLOCK)));
        }
        kinds
    }

    /// This record of a device and all of its kind, or of its partner's, that say the same in a field; of other structures this one.
    pub fn alike(&self, device: usize, start: usize, at: usize, size: usize) -> Vec<(usize, usize)> {
        let of = |(device, start): (usize, usize)| (self.bytes(device, start, 5), self.bytes(device, start + at, size));
        let this = (device, start);
        if record_at(&self.bytes(device, start, 8)).is_none() {
            return vec![this];
        }
        let says = of(this);
        self.places().map(|(device, seal)| (device, seal.start)).filter(|place| of(*place) == says).collect()
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
        let mut known = BTreeMap::new();
        for _ in 0..8 {
            let more = self.seal(&pristine, &mut known, &changed);
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
        known: &mut BTreeMap<(usize, u64, usize), u32>,
        changed: &BTreeSet<(usize, u64)>,
    ) -> BTreeSet<(usize, u64)> {
        let mut touched = BTreeSet::new();
        for device in 0..self.devices.len() {
            for seal in &self.seals.clone()[device] {
                let first = (seal.start / BLOCK) as u64;
                if changed.range((device, first)..(device, first + LEN_BLOCKS_MAX as u64 + 1)).next().is_none() {
                    continue;
                }
                // (The length may have been forged, too.)
                let Some((at, says)) = self.measured(device, seal.start).filter(|(at, _)| *at == seal.at) else {
                    continue;
                };
                let len = seal.len.unwrap_or_else(|| bounded(at, says));
                let end = (seal.start + len).div_ceil(BLOCK) as u64;
                if changed.range((device, first)..(device, end)).next().is_none() {
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
            for span in spans(*block) {
                let now = self.crc_of_span(*device, span);
                let former = known.insert((*device, span.0, span.1), now);
                let before = former.unwrap_or_else(|| pristine.crc_of_span(*device, span));
                if before != now {
                    touched.extend(self.rename(before, now));
                }
            }
        }
        touched
    }

    /// Replaces a checksum wherever it stands.
    fn rename(&mut self, before: u32, now: u32) -> BTreeSet<(usize, u64)> {
        let mut places = self.told.get(&before).cloned().unwrap_or_default();
        places.retain(|(device, at)| number(&self.bytes(*device, *at, 4), 0, 4) == before as u64);
        if places.len() > NAMESAKES_MAX {
            return BTreeSet::new();
        }
        places.iter().for_each(|(device, at)| self.put(*device, *at, now));
        let touched = places.iter().map(|(device, at)| (*device, (at / BLOCK) as u64)).collect();
        self.told.entry(now).or_default().extend(places);
        touched
    }

    fn put(&mut self, device: usize, at: usize, word: u32) {
        let block = self.devices[device].entry((at / BLOCK) as u64).or_insert_with(|| Arc::new(vec![0; BLOCK]));
        Arc::make_mut(block)[at % BLOCK..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

/// A length that may have been forged.
fn bounded(at: usize, says: usize) -> usize {
    says.clamp(at + 4, LEN_BLOCKS_MAX * BLOCK)
}

fn head_of(block: &[u8], at: usize) -> [u8; STEP] {
    block[at..][..STEP].try_into().expect("steps divide blocks")
}

/// Whether a block holds more than one word again and again, as data do here.
fn is_structure(bytes: &[u8]) -> bool {
    bytes.chunks_exact(4).any(|word| word != &bytes[..4])
}
