//! Persistent memory: stores are visible at once and durable after a fence; at power loss any subset of the unfenced
//! 64-byte lines survives, and inside a line any of its 8-byte words.

use base::Rng;
use std::collections::BTreeMap;

const LINE: usize = 64;
const WORD: usize = 8;
/// Versions of a line kept before the oldest is evicted to the media.
const VERSIONS_MAX: usize = 8;

struct Version {
    driver: usize,
    data: [u8; LINE],
}

pub(crate) struct Pmem {
    view: Vec<u8>,
    media: Vec<u8>,
    /// Line -> contents since the durable one, oldest first.
    unfenced: BTreeMap<usize, Vec<Version>>,
    /// Fenced stores survive power loss; otherwise this is plain memory in the page cache, lost entirely.
    pub(crate) durable: bool,
}

impl Pmem {
    pub(crate) fn new(bytes: u64, durable: bool) -> Pmem {
        let bytes = (bytes as usize).next_multiple_of(LINE);
        Pmem { view: vec![0; bytes], media: vec![0; bytes], unfenced: BTreeMap::new(), durable }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.view.len() as u64
    }

    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) -> bool {
        let start = offset as usize;
        let Some(source) = self.view.get(start..start.saturating_add(target.len())) else { return false };
        target.copy_from_slice(source);
        true
    }

    pub(crate) fn store(&mut self, driver: usize, offset: u64, source: &[u8]) -> bool {
        let start = offset as usize;
        let Some(target) = self.view.get_mut(start..start.saturating_add(source.len())) else { return false };
        target.copy_from_slice(source);
        if source.is_empty() {
            return true;
        }
        for line in start / LINE..(start + source.len()).div_ceil(LINE) {
            let data = self.view[line * LINE..][..LINE].try_into().expect("a line is as long as a line");
            let versions = self.unfenced.entry(line).or_default();
            versions.push(Version { driver, data });
            if versions.len() > VERSIONS_MAX {
                let oldest = versions.remove(0);
                self.media[line * LINE..][..LINE].copy_from_slice(&oldest.data);
            }
        }
        true
    }

    /// Persists the stores of one driver: each line up to that driver's last store into it.
    pub(crate) fn fence(&mut self, driver: usize) {
        let media = &mut self.media;
        self.unfenced.retain(|line, versions| {
            let Some(last) = versions.iter().rposition(|version| version.driver == driver) else { return true };
            media[line * LINE..][..LINE].copy_from_slice(&versions[last].data);
            versions.drain(..=last);
            !versions.is_empty()
        });
    }

    pub(crate) fn power_cut(&mut self, rng: &mut Rng) {
        if !self.durable {
            self.view.fill(0);
            self.media.fill(0);
            self.unfenced.clear();
            return;
        }
        let tear = rng.one_in(2);
        for (line, versions) in std::mem::take(&mut self.unfenced) {
            let target = &mut self.media[line * LINE..][..LINE];
            let whole = rng.below(versions.len() as u64 + 1) as usize;
            for word in 0..LINE / WORD {
                let pick = if tear { rng.below(versions.len() as u64 + 1) as usize } else { whole };
                if let Some(version) = versions.get(pick) {
                    target[word * WORD..][..WORD].copy_from_slice(&version.data[word * WORD..][..WORD]);
                }
            }
        }
        self.view.copy_from_slice(&self.media);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_lines_survive_and_unfenced_lines_survive_in_any_subset() {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut pmem = Pmem::new(4096, true);
            assert!(pmem.store(0, 0, &[1; 128]));
            pmem.fence(0);
            assert!(pmem.store(0, 0, &[2; 128]));
            pmem.power_cut(&mut Rng::new(seed));
            let mut line = [0; 128];
            assert!(pmem.read(0, &mut line));
            assert!(line.iter().all(|b| *b == 1 || *b == 2));
            outcomes.insert((line[0], line[64]));
        }
        assert_eq!(outcomes.len(), 4);
    }

    #[test]
    fn a_fence_covers_the_stores_of_its_own_driver() {
        let mut pmem = Pmem::new(4096, true);
        assert!(pmem.store(0, 0, &[1; 64]));
        assert!(pmem.store(1, 64, &[1; 64]));
        pmem.fence(0);
        assert_eq!((pmem.unfenced.len(), pmem.media[0], pmem.media[64]), (1, 1, 0));
        assert!(!pmem.store(0, 4090, &[0; 7]), "stores past the end are refused");
    }
}
