//! The summary of a segment: the headers of all its records once more, in one run at its end, so that recovery reads them
//! without reading the payloads between them.
//!
//! A summary is a shortcut and never a must: it is left out when it would be too large or when memory is short, and
//! nobody waits for it but the closing of the next segment.

use super::{Log, Open};
use crate::format::segment::Footer;
use crate::units::BLOCK_BYTES;
use base::crc32c;
use reactor::SgList;
use std::rc::Rc;

/// A segment with more bytes of record headers than this gets none.
const BYTES_MAX: usize = 4 << 20;
/// Most blocks of a summary.
pub(super) const BLOCKS_MAX: u32 = (BYTES_MAX / BLOCK_BYTES) as u32 + 1;
/// It is written in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Summary {
    headers: Vec<u8>,
    records: u32,
}

impl Summary {
    pub(super) fn add(&mut self, header: &[u8]) {
        self.records += 1;
        if self.headers.len() <= BYTES_MAX {
            self.headers.extend_from_slice(header);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.headers.len()
    }

    fn clear(&mut self) {
        self.headers.clear();
        self.records = 0;
    }
}

impl Log {
    /// Closes the current segment, if there is one. All its groups are delivered.
    pub(super) fn close(self: &Rc<Self>) {
        let (open, summary) = {
            let state = &mut *self.state.borrow_mut();
            assert!(state.block.is_idle());
            let Some(open) = state.open.take() else {
                // What a segment that failed left.
                state.block.summary.clear();
                return;
            };
            if state.block.summary.bytes() > BYTES_MAX {
                state.block.summary.clear();
                return;
            }
            state.block.sealing = true;
            (open, std::mem::take(&mut state.block.summary))
        };
        let log = self.clone();
        self.medium.reactor().spawn_eager(async move {
            let mut summary = summary;
            log.write_summary(&open, &mut summary).await;
            {
                let state = &mut *log.state.borrow_mut();
                state.block.sealing = false;
                if state.block.summary.bytes() == 0 {
                    // Its memory is used again.
                    summary.clear();
                    state.block.summary = summary;
                }
            }
            log.arm();
            log.changed.notify_all();
        });
    }

    async fn write_summary(&self, open: &Open, summary: &mut Summary) {
        let blocks = summary.bytes().div_ceil(BLOCK_BYTES);
        summary.headers.resize(blocks * BLOCK_BYTES, 0);
        let footer = Footer {
            sequence: open.sequence,
            records: summary.records,
            blocks: blocks as u32,
            summary_checksum: crc32c(&summary.headers),
            epoch: self.epoch,
            first_lsn: open.first_lsn,
        };
        let mut last = [0; BLOCK_BYTES];
        let footer = footer.encode(self.salt);
        last[..footer.len()].copy_from_slice(&footer);
        let end = (open.place as u64 + 1) * self.geometry.segment_bytes();
        let mut at = end - (blocks as u64 + 1) * BLOCK_BYTES as u64;
        for piece in summary.headers.chunks(PIECE_BYTES).chain([&last[..]]) {
            let Some(mut buf) = self.medium.reactor().pool().try_alloc(piece.len()) else { return };
            buf.as_mut_slice().copy_from_slice(piece);
            let list: SgList = [buf].into_iter().collect();
            let (status, _) = self.write_blocks(at, list, false).await;
            if !status.is_ok() {
                tracing::warn!(
                    segment = open.sequence,
                    "{}: the summary of a segment was not written: {status}",
                    self.name()
                );
                return;
            }
            at += piece.len() as u64;
            self.state.borrow_mut().stats.medium_bytes += piece.len() as u64;
        }
    }
}
