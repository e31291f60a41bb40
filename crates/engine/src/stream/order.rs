//! The rules that records follow among each other, for whoever reads a stream.

use super::StreamTotals;
use super::format::{Record, RecordKind};
use crate::format::Malformed;
use crate::shard::ChangeKind;

/// What has been read so far.
#[derive(Default)]
pub(super) struct Order {
    records: u64,
    /// Behind the last block of a record.
    end: u64,
    pub(super) totals: StreamTotals,
}

impl Order {
    /// The next record, before its payload. Blocks ascend, so the totals are never more than the volume has.
    pub(super) fn accept(&mut self, record: &Record) -> Result<(), Malformed> {
        if record.sequence != self.records {
            return Err(Malformed("a record is not where it belongs"));
        }
        match record.kind {
            RecordKind::Blocks(kind) => {
                if record.first < self.end {
                    return Err(Malformed("its blocks do not ascend"));
                }
                self.end = record.first + record.blocks;
                self.totals.count(kind, record.blocks);
            }
            RecordKind::End if (record.first, record.blocks) != (self.totals.data_blocks, self.records) => {
                return Err(Malformed("its end counts something else"));
            }
            RecordKind::End | RecordKind::Failed => {}
        }
        self.records += 1;
        Ok(())
    }
}

impl StreamTotals {
    pub(super) fn count(&mut self, kind: ChangeKind, blocks: u64) {
        match kind {
            ChangeKind::Data => self.data_blocks += blocks,
            ChangeKind::Hole => self.hole_blocks += blocks,
            ChangeKind::Lost => self.lost_blocks += blocks,
        }
    }
}
