//! Persistent memory: stores are visible at once and durable after a fence; at power loss any subset of the unfenced
//! 64-byte lines survives, and inside a line any of its 8-byte words.

use crate::disk::CacheLoss;
use crate::pages::{Pages, hash_bytes, mix};
use base::Rng;
use smallvec::SmallVec;
use std::collections::BTreeMap;

const LINE: usize = 64;
const WORD: usize = 8;
/// Lines that are looked up together.
const GROUP: usize = 64;
/// Versions of a line kept before the oldest is evicted to the media.
const VERSIONS_MAX: usize = 8;

#[derive(Clone)]
struct Version {
    driver: usize,
    data: [u8; LINE],
}

/// A line's contents since the durable one, oldest first; rarely more than one.
type Versions = SmallVec<[Version; 1]>;

/// Lines with stores that are not fenced.
#[derive(Clone, Default)]
struct Unfenced(BTreeMap<usize, Box<[Versions; GROUP]>>);

impl Unfenced {
    fn of(&mut self, line: usize) -> &mut Versions {
        let group = self.0.entry(line / GROUP).or_insert_with(|| Box::new(std::array::from_fn(|_| Versions::new())));
        &mut group[line % GROUP]
    }

    /// In ascending order.
    fn iter(&self) -> impl Iterator<Item = (usize, &Versions)> {
        let all = self
            .0
            .iter()
            .flat_map(|(group, lines)| lines.iter().enumerate().map(move |(at, line)| (*group * GROUP + at, line)));
        all.filter(|(_, versions)| !versions.is_empty())
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Versions)> {
        let all = self
            .0
            .iter_mut()
            .flat_map(|(group, lines)| lines.iter_mut().enumerate().map(move |(at, line)| (*group * GROUP + at, line)));
        all.filter(|(_, versions)| !versions.is_empty())
    }
}

/// Copies share what is the same.
#[derive(Clone)]
pub(crate) struct Pmem {
    view: Pages,
    media: Pages,
    unfenced: Unfenced,
    /// Fenced stores survive power loss; otherwise this is plain memory in the page cache, lost entirely.
    pub(crate) durable: bool,
}

impl Pmem {
    pub(crate) fn new(bytes: u64, durable: bool) -> Pmem {
        let bytes = (bytes as usize).next_multiple_of(LINE);
        Pmem { view: Pages::new(bytes), media: Pages::new(bytes), unfenced: Unfenced::default(), durable }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.view.len() as u64
    }

    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) -> bool {
        let start = offset as usize;
        if start.saturating_add(target.len()) > self.view.len() {
            return false;
        }
        self.view.read(start, target);
        true
    }

    pub(crate) fn store(&mut self, driver: usize, offset: u64, source: &[u8]) -> bool {
        let start = offset as usize;
        if start.saturating_add(source.len()) > self.view.len() {
            return false;
        }
        self.view.write(start, source);
        if source.is_empty() {
            return true;
        }
        for line in start / LINE..(start + source.len()).div_ceil(LINE) {
            let mut data = [0; LINE];
            self.view.read(line * LINE, &mut data);
            let versions = self.unfenced.of(line);
            versions.push(Version { driver, data });
            if versions.len() > VERSIONS_MAX {
                let oldest = versions.remove(0);
                self.media.write(line * LINE, &oldest.data);
            }
        }
        true
    }

    /// Persists the stores of one driver: each line up to that driver's last store into it.
    pub(crate) fn fence(&mut self, driver: usize) {
        for (line, versions) in self.unfenced.iter_mut() {
            if let Some(last) = versions.iter().rposition(|version| version.driver == driver) {
                self.media.write(line * LINE, &versions[last].data);
                versions.drain(..=last);
            }
        }
        self.unfenced.0.retain(|_, lines| lines.iter().any(|versions| !versions.is_empty()));
    }

    /// Equal for equal contents, unfenced ones included.
    pub(crate) fn hash(&self) -> u64 {
        let mut hash = mix(mix(1, self.view.hash()), self.media.hash());
        for (line, versions) in self.unfenced.iter() {
            hash = versions.iter().fold(mix(hash, line as u64), |hash, version| hash_bytes(hash, &version.data));
        }
        hash
    }

    /// What was not fenced belongs to drivers that are no more: no later fence covers it.
    pub(crate) fn orphan(&mut self) {
        self.unfenced.iter_mut().flat_map(|(_, versions)| versions).for_each(|version| version.driver = usize::MAX);
    }

    /// The power goes and comes back. Lines know no common time, so a suffix is any.
    pub(crate) fn power_cut(&mut self, loss: CacheLoss, rng: &mut Rng) {
        if !self.durable {
            *self = Pmem::new(self.bytes(), false);
            return;
        }
        let tear = rng.one_in(2);
        for (line, versions) in std::mem::take(&mut self.unfenced).iter() {
            let mut target = [0; LINE];
            self.media.read(line * LINE, &mut target);
            let survivor = |rng: &mut Rng| match loss {
                CacheLoss::All => versions.len(),
                CacheLoss::Nothing => versions.len() - 1,
                CacheLoss::Any | CacheLoss::Suffix => rng.below(versions.len() as u64 + 1) as usize,
            };
            let whole = survivor(rng);
            for word in 0..LINE / WORD {
                let pick = if tear { survivor(rng) } else { whole };
                if let Some(version) = versions.get(pick) {
                    target[word * WORD..][..WORD].copy_from_slice(&version.data[word * WORD..][..WORD]);
                }
            }
            self.media.write(line * LINE, &target);
        }
        self.view = self.media.clone();
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
            pmem.power_cut(CacheLoss::Any, &mut Rng::new(seed));
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
        let mut media = [0; 65];
        pmem.media.read(0, &mut media);
        assert_eq!((pmem.unfenced.iter().count(), media[0], media[64]), (1, 1, 0));
        assert!(!pmem.store(0, 4090, &[0; 7]), "stores past the end are refused");
    }
}
