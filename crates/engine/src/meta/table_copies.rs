//! Table pages are in both of their slots between checkpoints, so that damage to one is no loss.
//!
//! A checkpoint writes a page to the slot that the durable root does not lead to. When the new root is durable, in both of
//! its copies, nothing leads to the former slot any more, and the page is written there too. Its checksum, in the root,
//! confirms either. A copy is not flushed for its own sake: one that a crash has kept from the medium is missing, and is
//! made after the next checkpoint, as for pages of programs that made none.

use super::media::Media;
use super::{Meta, MetaError, Object, TableRef, count};
use crate::format::Malformed;
use crate::format::superblock::Region;
use crate::units::BLOCK_BYTES;
use base::crc32c;
use bdev::Status;
use std::rc::Rc;

/// A table page that its root confirms.
pub(crate) struct FoundTable {
    pub(crate) bytes: Vec<u8>,
    /// The slot it was read from; the root may name the other one.
    pub(crate) slot: u8,
    /// The other slot does not have it.
    pub(crate) is_alone: bool,
}

/// Reads table page `index` of a region from the slot that the root names, or from the other one. `both` has both slots when
/// they have been read already.
pub(crate) async fn read_table(
    media: &Media,
    object: Object,
    region: &Region,
    index: u32,
    wanted: TableRef,
    both: Option<&[u8]>,
) -> Result<FoundTable, MetaError> {
    let (mut found, mut error): (Option<FoundTable>, Option<MetaError>) = (None, None);
    for slot in [wanted.slot, 1 - wanted.slot] {
        let block = region.table_slot(index, slot);
        let read = match both {
            Some(bytes) => Ok(bytes[slot as usize * BLOCK_BYTES..][..BLOCK_BYTES].to_vec()),
            None => media.read_right_object(object, block, 1, |bytes| crc32c(bytes) == wanted.crc).await,
        };
        let reason = Malformed("it is not the one that the root confirms");
        match read {
            Ok(bytes) if crc32c(&bytes) == wanted.crc => match &mut found {
                None => found = Some(FoundTable { bytes, slot, is_alone: true }),
                Some(found) => found.is_alone = false,
            },
            // What the root names is what the message is about, but what cannot be read may be there yet.
            Ok(_) => error = error.or(Some(MetaError::Damaged { object, block, reason })),
            Err(failed) if !matches!(error, Some(MetaError::Io { .. })) => error = Some(failed),
            Err(_) => {}
        }
    }
    if found.is_none() && both.is_some() {
        // What was read of many at once has not been looked for in other versions.
        for slot in [wanted.slot, 1 - wanted.slot] {
            let block = region.table_slot(index, slot);
            if let Ok(Some(page)) = media.read_other(block, 1, |bytes| crc32c(bytes) == wanted.crc).await {
                return Ok(FoundTable { bytes: page.as_slice().to_vec(), slot, is_alone: true });
            }
        }
    }
    found.ok_or_else(|| error.expect("a slot is confirmed or has an error"))
}

impl Meta {
    /// Writes the table pages that are in one slot alone to the other one too. Nothing but a checkpoint under way may be
    /// writing table pages.
    pub(super) async fn copy_tables(self: &Rc<Self>) {
        let tables = self.tables.borrow().clone().into_iter().zip(0..);
        let alone = tables.filter(|(table, _)| table.is_alone && table.durable.is_some()).map(|(_, index)| index);
        let copy = |meta: Rc<Meta>, index: u32| async move {
            let place = meta.tables.borrow()[index as usize].durable;
            if let Some(place) = place
                && let Err(status) = meta.copy_table(index, place).await
            {
                let shard = meta.shard;
                tracing::warn!(shard, table = index, %status, "a table page has no copy; the next checkpoint tries again");
            }
            Ok(())
        };
        // None of them fails.
        let _ = self.for_each(alone.collect(), copy).await;
    }

    /// Copies a table page from its place to its other slot.
    pub(super) async fn copy_table(&self, index: u32, place: TableRef) -> Result<(), Status> {
        let source = self.table_place(index, place.slot).0;
        let page = self.media.read(source, self.media.buffer(1).await).await?;
        if crc32c(page.as_slice()) != place.crc {
            self.tables.borrow_mut()[index as usize].dirty = true;
            return Err(Status::Corrupt);
        }
        count(&self.counters.table_writes);
        self.media.write(self.table_place(index, 1 - place.slot).0, page).await?;
        self.tables.borrow_mut()[index as usize].is_alone = false;
        Ok(())
    }

    /// Copies table pages before the root that leads to them is durable: a defect, for tests.
    pub fn copy_tables_early(&self) {
        self.copies_early.set(true);
    }
}
