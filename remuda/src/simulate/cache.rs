//! A read cache as a policy: blocks that were read last stay, the one that was not used for the longest goes.

use std::collections::HashMap;

const NONE: u32 = u32::MAX;

struct Entry {
    block: u32,
    newer: u32,
    older: u32,
}

pub struct Cache {
    most: usize,
    entries: Vec<Entry>,
    at: HashMap<u32, u32>,
    newest: u32,
    oldest: u32,
    pub hits: u64,
}

impl Cache {
    pub fn new(blocks: u64) -> Cache {
        Cache { most: blocks as usize, entries: Vec::new(), at: HashMap::new(), newest: NONE, oldest: NONE, hits: 0 }
    }

    /// A block is read, and is here from then on.
    pub fn read(&mut self, block: u32) {
        if let Some(&at) = self.at.get(&block) {
            self.hits += 1;
            self.unlink(at);
            self.put_first(at);
            return;
        }
        if self.most == 0 {
            return;
        }
        let at = if self.entries.len() < self.most {
            self.entries.push(Entry { block, newer: NONE, older: NONE });
            (self.entries.len() - 1) as u32
        } else {
            let at = self.oldest;
            self.unlink(at);
            self.at.remove(&self.entries[at as usize].block);
            self.entries[at as usize].block = block;
            at
        };
        self.at.insert(block, at);
        self.put_first(at);
    }

    fn unlink(&mut self, at: u32) {
        let Entry { newer, older, .. } = self.entries[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }

    fn put_first(&mut self, at: u32) {
        let former = std::mem::replace(&mut self.newest, at);
        let entry = &mut self.entries[at as usize];
        (entry.newer, entry.older) = (NONE, former);
        match former {
            NONE => self.oldest = at,
            former => self.entries[former as usize].newer = at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_stays() {
        let mut cache = Cache::new(3);
        let mut hit = |block| {
            let before = cache.hits;
            cache.read(block);
            cache.hits > before
        };
        let hits: Vec<bool> = [1, 2, 3, 1, 4, 1, 2, 3, 4].into_iter().map(&mut hit).collect();
        assert_eq!(hits, [false, false, false, true, false, true, false, false, false]);
        let mut none = Cache::new(0);
        (0..3).for_each(|_| none.read(1));
        assert_eq!(none.hits, 0);
    }
}
