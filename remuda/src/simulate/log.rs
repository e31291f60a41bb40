//! The log of a pool as a policy: writes are appended, and of what is older than a share of the log, the extent whose record is
//! the oldest goes to the capacity device, by the engine's own rules (`engine::log_policy`, `engine::Heat`). In place it gives all that it
//! has; to bands it goes without what is young of it, when it has enough that is old, and without what is written often, when there is
//! a budget for that. When nobody has written for a while, everything goes. A block that is written again before is absorbed.

use super::space::Touch;
use engine::log_policy::Placement;
use engine::{Heat, log_policy};
use std::collections::VecDeque;

/// Blocks for which a group of small writes has a header.
const GROUP_BLOCKS: u64 = 16;

/// What a log is made of.
#[derive(Clone, Copy)]
pub struct LogShape {
    /// Where what leaves it goes.
    pub placement: Placement,
    /// Blocks of the log, and those in front of which it is.
    pub log_blocks: u64,
    pub blocks: u32,
    /// Of the blocks of an extent one in `2^shift` is simulated.
    pub shift: u32,
    /// Blocks for each hundred written that may be reinserted; 0: none.
    pub reinsertion: u32,
}

pub struct LogModel {
    kept: usize,
    /// An extent that is destaged gives all that it has.
    gives_all: bool,
    /// Old blocks for which an extent is destaged without the others, where the bands cost little.
    least: u32,
    heat: Option<Heat>,
    /// Block, its extent and the sequence number of each record, the oldest first.
    records: VecDeque<(u32, u32, u32)>,
    /// Sequence number of each block's newest record; 0 for none.
    newest: Vec<u32>,
    sequence: u32,
    /// What the log has of each extent.
    extents: Vec<Vec<u32>>,
    /// Blocks that users have written, those of them that were in the log, and those that went there once more.
    pub written: u64,
    pub absorbed: u64,
    pub reinserted: u64,
}

impl LogModel {
    pub fn new(LogShape { placement, log_blocks, blocks, shift, reinsertion }: LogShape) -> LogModel {
        let kept = log_policy::kept(placement, log_blocks * GROUP_BLOCKS / (GROUP_BLOCKS + 1));
        let heat = || Heat::new(log_blocks, u64::from(blocks), Some(reinsertion), None);
        LogModel {
            kept: (kept as usize).max(1),
            gives_all: placement != Placement::Bands,
            least: (log_policy::OLD_BLOCKS_MIN >> shift).max(1),
            heat: (reinsertion > 0).then(heat),
            records: VecDeque::new(),
            newest: vec![0; blocks as usize],
            sequence: 0,
            extents: Vec::new(),
            written: 0,
            absorbed: 0,
            reinserted: 0,
        }
    }

    /// Whether a block's newest bytes are here.
    pub fn has(&self, block: u32) -> bool {
        self.newest[block as usize] != 0
    }

    /// Whether it has as much as is kept: what comes now makes something leave it, or is absorbed.
    pub fn is_full(&self) -> bool {
        self.records.len() >= self.kept
    }

    /// A user writes a block; adds to `out` what is destaged for it, each block with its extent. Of the last victim of the collector
    /// `valid` blocks of `whole` were needed.
    pub fn write(&mut self, touch: Touch, (valid, whole): (u32, u32), out: &mut Vec<(u32, u32)>) {
        let Touch { block, extent, .. } = touch;
        self.written += 1;
        if let Some(heat) = &self.heat {
            heat.note(block, 1);
        }
        if self.has(block) {
            self.absorbed += 1;
        } else {
            let extent = extent as usize;
            if self.extents.len() <= extent {
                self.extents.resize_with(extent + 1, Vec::new);
            }
            self.extents[extent].push(block);
        }
        self.append(block, extent);
        let least = log_policy::old_blocks_min(self.least, whole, valid);
        while self.records.len() > self.kept {
            let Some((oldest, extent, sequence)) = self.records.pop_front() else { return };
            if self.newest[oldest as usize] == sequence {
                self.destage(extent, least, out);
            }
        }
    }

    fn append(&mut self, block: u32, extent: u32) {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.newest[block as usize] = self.sequence;
        self.records.push_back((block, extent, self.sequence));
    }

    /// The block is not needed any more.
    pub fn trim(&mut self, block: u32) {
        // It stays in its extent's list, and is passed over there.
        self.newest[block as usize] = 0;
    }

    /// Nobody has written for a while: adds to `out` all that there is.
    pub fn settle(&mut self, out: &mut Vec<(u32, u32)>) {
        while let Some((oldest, extent, sequence)) = self.records.pop_front() {
            if self.newest[oldest as usize] == sequence {
                self.newest[oldest as usize] = 0;
                out.push((oldest, extent));
            }
        }
        self.extents.iter_mut().for_each(Vec::clear);
    }

    /// The turn of an extent has come, of which the log has something older than everything else.
    fn destage(&mut self, extent: u32, least: u32, out: &mut Vec<(u32, u32)>) {
        let mut all = std::mem::take(&mut self.extents[extent as usize]);
        all.retain(|block| self.has(*block));
        // One that was trimmed and written again is there twice.
        all.sort_unstable();
        all.dedup();
        if self.gives_all {
            return self.give(&all, extent, out);
        }
        let age = |block: &u32| self.sequence.wrapping_sub(self.newest[*block as usize]) as usize;
        let young = self.records.len() - self.records.len() / log_policy::AGES;
        let (old, mut stays): (Vec<u32>, Vec<u32>) = all.into_iter().partition(|block| age(block) >= young);
        let (again, mut due): (Vec<u32>, Vec<u32>) = match &self.heat {
            Some(heat) => old.into_iter().partition(|block| heat.reinserts(*block)),
            None => (Vec::new(), old),
        };
        if !log_policy::takes_old_alone(due.len() as u32, again.len() as u32, least) {
            // Not worth a turn of their own: the others go with them, but what is written often.
            let is_hot = |block: &u32| self.heat.as_ref().is_some_and(|heat| heat.is_hot(*block));
            let (hot, others): (Vec<u32>, Vec<u32>) = stays.into_iter().partition(is_hot);
            stays = hot;
            due.extend(others);
        }
        self.give(&due, extent, out);
        self.reinserted += again.len() as u64;
        again.iter().for_each(|block| self.append(*block, extent));
        stays.extend(again);
        self.extents[extent as usize] = stays;
    }

    fn give(&mut self, due: &[u32], extent: u32, out: &mut Vec<(u32, u32)>) {
        due.iter().for_each(|block| self.newest[*block as usize] = 0);
        out.extend(due.iter().map(|block| (*block, extent)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(log_blocks: u64, shift: u32, reinsertion: u32) -> LogModel {
        LogModel::new(LogShape { placement: Placement::Bands, log_blocks, blocks: 1 << 14, shift, reinsertion })
    }

    fn write(log: &mut LogModel, block: u32, extent: u32) -> Vec<u32> {
        let mut out = Vec::new();
        log.write(Touch { block, extent, bytes: 4096 }, (0, 1), &mut out);
        out.into_iter().map(|(block, _)| block).collect()
    }

    #[test]
    fn what_is_written_again_soon_is_absorbed() {
        let mut log = log(8, 0, 0);
        (0..4).for_each(|_| assert!(write(&mut log, 7, 0).is_empty()));
        assert_eq!((log.written, log.absorbed), (4, 3));
    }

    #[test]
    fn an_extent_with_little_that_is_old_is_destaged_as_a_whole() {
        let mut log = log(7, 0, 0);
        assert_eq!(log.kept, 3);
        for (block, extent) in [(1, 0), (50, 1), (2, 0)] {
            assert!(write(&mut log, block, extent).is_empty());
        }
        assert_eq!(write(&mut log, 51, 1), [1, 2], "1 is due, and 2 goes with it");
        assert!(!log.has(2) && log.has(50));
        log.trim(50);
        assert!(write(&mut log, 53, 1).is_empty(), "50 was due and is not needed");
        assert!(write(&mut log, 54, 1).is_empty(), "2 was due and is gone");
        assert_eq!(write(&mut log, 55, 1), [51, 53, 54, 55]);
    }

    #[test]
    fn in_place_an_extent_gives_all_that_it_has_and_at_rest_everything_goes() {
        let shape =
            LogShape { placement: Placement::InPlace, log_blocks: 200, blocks: 1 << 14, shift: 0, reinsertion: 0 };
        let mut log = LogModel::new(shape);
        let kept = log.kept as u32;
        assert_eq!(kept, 94, "half, less headers");
        (0..kept).for_each(|block| assert!(write(&mut log, block, 0).is_empty()));
        assert_eq!(write(&mut log, kept, 0).len() as u32, kept + 1);
        write(&mut log, 3000, 1);
        write(&mut log, 3000, 1);
        let mut out = Vec::new();
        log.settle(&mut out);
        assert_eq!(out, [(3000, 1)]);
        assert!(!log.has(3000) && write(&mut log, 3000, 1).is_empty());
    }

    #[test]
    fn what_was_trimmed_and_written_again_is_destaged_once() {
        let mut log = log(7, 0, 0);
        write(&mut log, 1, 0);
        log.trim(1);
        write(&mut log, 1, 0);
        write(&mut log, 50, 1);
        assert!(write(&mut log, 51, 1).is_empty());
        assert_eq!(write(&mut log, 52, 1), [1]);
    }

    #[test]
    fn of_one_with_enough_that_is_old_the_young_stays() {
        let mut log = log(200, 0, 0);
        let kept = log.kept as u32;
        (0..kept).for_each(|block| assert!(write(&mut log, block, 0).is_empty()));
        let out = write(&mut log, kept, 0);
        assert!((kept / 2 - 1..=kept / 2 + 1).contains(&(out.len() as u32)) && out.contains(&0), "{out:?}");
        assert!(out.iter().all(|block| *block <= kept / 2 + 1) && log.has(kept));
    }

    #[test]
    fn what_is_written_often_goes_round_within_the_budget() {
        let run = |reinsertion| {
            let mut log = log(1 << 10, 0, reinsertion);
            // Each of 256 blocks once while the log goes round twice, beside others that are not written again for long.
            let destaged: usize = (0..1 << 18)
                .map(|step: u32| match step % 5 {
                    0 => write(&mut log, step / 5 % 256, 0),
                    _ => write(&mut log, 1024 + step % (15 << 10), 1 + step % (15 << 10) / 1024),
                })
                .map(|out| out.iter().filter(|block| **block < 256).count())
                .sum();
            (destaged, log.reinserted, log.written)
        };
        let (without, with) = (run(0), run(50));
        assert_eq!(without.1, 0);
        assert!(with.0 * 3 < without.0 * 2 && with.1 > 0 && with.1 <= with.2 / 2, "{with:?} against {without:?}");
    }
}
