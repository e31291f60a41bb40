//! The log of a pool as a policy: writes are appended, and when it is half full, the extent whose record is the oldest goes to the
//! capacity device with all that the log has of it. A block that is written again before that is absorbed.

use super::space::Touch;
use std::collections::VecDeque;

/// Share of the log, in 256ths, that is kept; what is older is destaged (the engine's `START`).
const KEPT: usize = 128;

pub struct LogModel {
    kept: usize,
    /// Block, its extent and the sequence number of each record, the oldest first.
    records: VecDeque<(u32, u32, u32)>,
    /// Sequence number of each block's newest record; 0 for none.
    newest: Vec<u32>,
    sequence: u32,
    /// What the log has of each extent.
    extents: Vec<Vec<u32>>,
    pub written: u64,
    pub absorbed: u64,
}

impl LogModel {
    /// A log of so many blocks in front of `blocks`.
    pub fn new(log_blocks: u64, blocks: u32) -> LogModel {
        LogModel {
            kept: (log_blocks as usize * KEPT / 256).max(1),
            records: VecDeque::new(),
            newest: vec![0; blocks as usize],
            sequence: 0,
            extents: Vec::new(),
            written: 0,
            absorbed: 0,
        }
    }

    /// Whether a block's newest bytes are here.
    pub fn has(&self, block: u32) -> bool {
        self.newest[block as usize] != 0
    }

    /// Appends a block; adds to `out` what is destaged for it.
    pub fn write(&mut self, touch: Touch, out: &mut Vec<u32>) {
        let Touch { block, extent, .. } = touch;
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.written += 1;
        if std::mem::replace(&mut self.newest[block as usize], self.sequence) != 0 {
            self.absorbed += 1;
        } else {
            let extent = extent as usize;
            if self.extents.len() <= extent {
                self.extents.resize_with(extent + 1, Vec::new);
            }
            self.extents[extent].push(block);
        }
        self.records.push_back((block, extent, self.sequence));
        while self.records.len() > self.kept {
            let Some((oldest, extent, sequence)) = self.records.pop_front() else { return };
            if self.newest[oldest as usize] == sequence {
                self.destage(extent, out);
            }
        }
    }

    /// The block is not needed any more.
    pub fn trim(&mut self, block: u32) {
        // It stays in its extent's list, and is passed over there.
        self.newest[block as usize] = 0;
    }

    fn destage(&mut self, extent: u32, out: &mut Vec<u32>) {
        for block in std::mem::take(&mut self.extents[extent as usize]) {
            if std::mem::replace(&mut self.newest[block as usize], 0) != 0 {
                out.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(log: &mut LogModel, block: u32, extent: u32) -> Vec<u32> {
        let mut out = Vec::new();
        log.write(Touch { block, extent, bytes: 4096 }, &mut out);
        out
    }

    #[test]
    fn what_is_written_again_soon_is_absorbed() {
        let mut log = LogModel::new(8, 100);
        (0..4).for_each(|_| assert!(write(&mut log, 7, 0).is_empty()));
        assert_eq!((log.written, log.absorbed), (4, 3));
    }

    #[test]
    fn an_extent_is_destaged_as_a_whole_when_its_oldest_record_is_due() {
        let mut log = LogModel::new(8, 100);
        for (block, extent) in [(1, 0), (50, 1), (2, 0), (51, 1)] {
            assert!(write(&mut log, block, extent).is_empty());
        }
        assert_eq!(write(&mut log, 52, 1), [1, 2], "1 is due, and 2 goes with it");
        assert!(!log.has(2) && log.has(50));
        log.trim(50);
        assert!(write(&mut log, 53, 1).is_empty(), "50 was due and is not needed");
        assert!(write(&mut log, 54, 1).is_empty(), "2 was due and is gone");
        assert_eq!(write(&mut log, 55, 1), [51, 52, 53, 54, 55]);
    }
}
