//! The checksum pages in memory: entries, how far each block has got, a bounded cache, and group commit.
//!
//! Per block an entry and a stage, both atomic because all reactors share the pages:
//!
//! ```text
//! SETTLED (what the entry's current value says is on media)
//!    -> IN_FLIGHT (entry = new value, old value kept; the page is written; then the block)
//!         -> epoch e (written; on media once flush e has succeeded)  -> counts as SETTLED from then on
//!         -> SETTLED (written through, or the child has no volatile cache)
//!         -> UNCERTAIN (the write failed: the block may be either)
//! ```
//! The stage goes to IN_FLIGHT before the entry changes, and is read after the entry: whoever reads an entry and then
//! a settled stage knows that the entry's current value is on media.

use super::format;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

pub(super) const SETTLED: u64 = 0;
pub(super) const IN_FLIGHT: u64 = u64::MAX - 1;
pub(super) const UNCERTAIN: u64 = u64::MAX;

/// A block that was declared unreadable has the value on media with these bits the other way round. (A block whose page was
/// lost has all of them so, which is something else: rot.)
pub(super) const MARK: u32 = 0xa5a5_5a5a;

/// The current and the previous checksum of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) current: u32,
    pub(super) previous: u32,
}

impl Entry {
    pub(super) fn unpack(bits: u64) -> Entry {
        Entry { current: bits as u32, previous: (bits >> 32) as u32 }
    }

    pub(super) fn pack(self) -> u64 {
        self.current as u64 | (self.previous as u64) << 32
    }

    /// Which of the two holds for a block that has this value on media. The current one first: when a block that was declared
    /// unreadable is written with what it has, it is whole.
    pub(super) fn decided_by(self, value: u32) -> u32 {
        let is_previous = value == self.previous || value == self.previous ^ MARK;
        if is_previous && value != self.current { self.previous } else { self.current }
    }

    pub(super) fn settled(current: u32) -> Entry {
        Entry { current, previous: current }
    }
}

/// One page.
pub(super) struct Page {
    pub(super) index: u64,
    entries: Box<[AtomicU64]>,
    stages: Box<[AtomicU64]>,
    /// Counts changes of entries.
    version: AtomicU64,
    /// The version on media.
    durable: AtomicU64,
}

impl Page {
    pub(super) fn new(index: u64, entries: Vec<u64>, changed: bool) -> Page {
        Page {
            index,
            stages: entries.iter().map(|_| AtomicU64::new(SETTLED)).collect(),
            entries: entries.into_iter().map(AtomicU64::new).collect(),
            version: AtomicU64::new(changed as u64),
            durable: AtomicU64::new(0),
        }
    }

    pub(super) fn entry(&self, slot: usize) -> Entry {
        Entry::unpack(self.entries[slot].load(SeqCst))
    }

    pub(super) fn stage(&self, slot: usize) -> u64 {
        self.stages[slot].load(SeqCst)
    }

    pub(super) fn set_stage(&self, slot: usize, stage: u64) {
        self.stages[slot].store(stage, SeqCst);
    }

    /// Announces a new value; false when the block has it already (and nothing needs to be announced).
    pub(super) fn announce(&self, slot: usize, value: u32) -> bool {
        let old = self.entry(slot);
        self.set_stage(slot, IN_FLIGHT);
        if old == Entry::settled(value) {
            return false;
        }
        self.entries[slot].store(Entry { current: value, previous: old.current }.pack(), SeqCst);
        true
    }

    /// Sets what an uncertain block turned out to be.
    pub(super) fn resolve(&self, slot: usize, value: u32) {
        self.entries[slot].store(Entry::settled(value).pack(), SeqCst);
    }

    pub(super) fn changed(&self) -> u64 {
        self.version.fetch_add(1, SeqCst) + 1
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(SeqCst)
    }

    pub(super) fn is_durable(&self, version: u64) -> bool {
        self.durable.load(SeqCst) >= version
    }

    pub(super) fn set_durable(&self, version: u64) {
        self.durable.fetch_max(version, SeqCst);
    }

    /// Fills a block with the page. Blocks known to be on media forget their previous value.
    pub(super) fn snapshot(&self, volume_id: [u8; 16], flushed: u64, block: &mut [u8]) {
        block.fill(0);
        let entries = self.entries.iter().zip(&self.stages).map(|(cell, stage)| {
            let bits = cell.load(SeqCst);
            let entry = Entry::unpack(bits);
            if entry.current == entry.previous || !is_settled(stage.load(SeqCst), flushed) {
                return bits;
            }
            let settled = Entry::settled(entry.current).pack();
            // A writer that is faster has announced a newer value, which its own snapshot will carry.
            let _ = cell.compare_exchange(bits, settled, SeqCst, SeqCst);
            settled
        });
        format::encode_page(volume_id, self.index, entries, block);
    }

    /// Whether media still hold both values of some block that has settled.
    pub(super) fn is_pending(&self) -> bool {
        self.entries.iter().any(|cell| {
            let entry = Entry::unpack(cell.load(SeqCst));
            entry.current != entry.previous
        })
    }

    /// Whether nothing would be lost by forgetting the page.
    fn is_idle(&self, flushed: u64) -> bool {
        self.is_durable(self.version()) && self.stages.iter().all(|stage| is_settled(stage.load(SeqCst), flushed))
    }
}

/// Whether the current value of a block in this stage is on media.
pub(super) fn is_settled(stage: u64, flushed: u64) -> bool {
    stage == SETTLED || (stage < IN_FLIGHT && stage <= flushed)
}

const SHARDS: usize = 16;

/// Pages in memory, up to a limit (more only while they cannot be forgotten).
pub(super) struct Cache {
    shards: [Mutex<BTreeMap<u64, Arc<Page>>>; SHARDS],
    shard_pages_max: usize,
}

impl Cache {
    pub(super) fn new(pages_max: usize) -> Cache {
        Cache { shards: Default::default(), shard_pages_max: (pages_max / SHARDS).max(1) }
    }

    fn shard(&self, index: u64) -> MutexGuard<'_, BTreeMap<u64, Arc<Page>>> {
        self.shards[index as usize % SHARDS].lock().expect("nothing panics while holding a shard")
    }

    pub(super) fn get(&self, index: u64) -> Option<Arc<Page>> {
        self.shard(index).get(&index).cloned()
    }

    /// Adds a page, forgetting idle ones when there are too many; true when there still are.
    pub(super) fn insert(&self, page: Arc<Page>, flushed: u64) -> bool {
        let mut shard = self.shard(page.index);
        if shard.len() >= self.shard_pages_max {
            let idle = |page: &Arc<Page>| Arc::strong_count(page) == 1 && page.is_idle(flushed);
            // Half at once, so that the search is paid for by many insertions.
            let gone: Vec<u64> = shard
                .values()
                .filter(|page| idle(page))
                .map(|page| page.index)
                .take(self.shard_pages_max.div_ceil(2))
                .collect();
            gone.iter().for_each(|index| {
                shard.remove(index);
            });
        }
        shard.insert(page.index, page);
        shard.len() > self.shard_pages_max
    }

    pub(super) fn all(&self) -> Vec<Arc<Page>> {
        self.shards
            .iter()
            .flat_map(|shard| {
                shard.lock().expect("nothing panics while holding a shard").values().cloned().collect::<Vec<_>>()
            })
            .collect()
    }
}
