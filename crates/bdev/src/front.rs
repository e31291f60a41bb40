//! What filters have in common that keep small records at the front of one child and offer the blocks behind them:
//! equal copies of a record, whether to open or to make, and what the rest can do.
//!
//! Their records are older than those of [`slots`](crate::slots): no generation, and a checksum of the record alone. A
//! change writes one copy after the other, and the first whole one counts.

use crate::device::{Channel, DeviceInfo};
use crate::io::{Flags, Io, Lba, Op, OpSet, Status};
use crate::slots::Found;
use crate::steps;
use reactor::{Reactor, SgList};
use std::rc::Rc;

/// Copies of a record on a child.
#[derive(Clone, Copy)]
pub(crate) struct Front<'a> {
    pub(crate) reactor: &'a Rc<Reactor>,
    pub(crate) channel: &'a dyn Channel,
    pub(crate) block_size: u32,
    /// Blocks of each copy; they follow each other from block 0 on.
    pub(crate) copy_blocks: u64,
    pub(crate) copies: u64,
}

impl Front<'_> {
    /// Reads all copies. The first whole one counts; those that differ from it are damaged.
    pub(crate) async fn read<T: PartialEq>(&self, decode: impl Fn(&[u8]) -> Option<T>) -> Found<T> {
        let mut found =
            Found { newest: None, first: 0, damaged: 0, blank: true, newer_version: None, unreadable: None, others: 0 };
        for copy in 0..self.copies {
            let bytes = match self.read_copy(copy).await {
                Ok(bytes) => bytes,
                Err(status) => {
                    (found.unreadable, found.blank) = (Some(status), false);
                    found.damaged += 1;
                    continue;
                }
            };
            found.blank &= bytes.iter().all(|byte| *byte == 0);
            match (decode(&bytes), &found.newest) {
                (Some(record), None) => found.newest = Some(record),
                (Some(record), Some(first)) if record == *first => {}
                (record, _) => {
                    found.damaged += 1;
                    found.others += record.is_some() as u64;
                }
            }
        }
        found
    }

    async fn read_copy(&self, copy: u64) -> Result<Vec<u8>, Status> {
        let buf = steps::alloc(self.reactor, self.copy_blocks as usize * self.block_size as usize).await?;
        let read = Io::read(Lba(copy * self.copy_blocks), self.copy_blocks as u32, SgList::from_iter([buf]));
        let done = self.channel.submit(read).await;
        done.status.check()?;
        let mut bytes = vec![0; reactor::buf::sg_len(&done.io.bufs)];
        steps::sg_read_at(&done.io.bufs, 0, &mut bytes);
        Ok(bytes)
    }

    /// Writes all copies durably, one after the other: a crash leaves at least one whole.
    pub(crate) async fn write(&self, bytes: &[u8]) -> Result<(), Status> {
        for copy in 0..self.copies {
            let mut buf = steps::alloc(self.reactor, self.copy_blocks as usize * self.block_size as usize).await?;
            buf.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
            buf.as_mut_slice()[bytes.len()..].fill(0);
            let at = Lba(copy * self.copy_blocks);
            let write = Io::write(at, self.copy_blocks as u32, SgList::from_iter([buf]));
            self.channel.submit(Io { flags: Flags::FUA, ..write }).await.status.check()?;
            self.channel.submit(Io::flush()).await.status.check()?;
        }
        Ok(())
    }

    /// Makes all copies equal again where some were not. What was found counts even if that fails; false then.
    pub(crate) async fn repair<T>(&self, name: &str, found: &Found<T>, bytes: &[u8]) -> bool {
        if found.damaged == 0 {
            return true;
        }
        let written = self.write(bytes).await;
        match written {
            Ok(()) => tracing::info!(device = name, copies = found.damaged, "rewrote copies of its header"),
            Err(status) => tracing::warn!(device = name, %status, "copies of its header cannot be rewritten"),
        }
        written.is_ok()
    }
}

/// Whether a filter that overwrites blocks in place can stand on a child; `what` it is for.
pub(crate) fn check_child(base: &DeviceInfo, what: &str) -> Result<(), String> {
    if base.zoned.is_some() || base.rows.is_some() || !base.ops.contains(Op::Read) || !base.ops.contains(Op::Write) {
        return Err(format!("{what} needs a child that can be read and overwritten anywhere"));
    }
    Ok(())
}

/// What `blocks` blocks from block `start` of a child can do behind a filter that reads and writes whole blocks.
pub(crate) fn behind(base: &DeviceInfo, start: u64, blocks: u64) -> DeviceInfo {
    let (atomic_write_blocks, atomic_boundary_blocks) = base.atomic_from(start);
    DeviceInfo {
        ops: OpSet::BLOCKS.without(Op::Unmap),
        optimal_io_blocks: base.optimal_io_blocks,
        max_io_blocks: base.max_io_blocks,
        atomic_write_blocks,
        atomic_boundary_blocks,
        compare_and_write_blocks: (base.max_io_blocks / 2).max(1),
        volatile_cache: base.volatile_cache,
        ..DeviceInfo::basic(base.block_size, blocks)
    }
}
