//! Which blocks of an extent records have spoken of since somebody began to look.

use super::super::dirty_blocks::BlockSet;
use super::Index;
use crate::log::Record;
use crate::units::{EXTENT_BLOCKS, extent_of};

/// At most one extent at a time is watched.
#[derive(Default)]
pub(super) struct Watch(Option<(u32, BlockSet)>);

impl Watch {
    #[inline]
    pub(super) fn note(&mut self, record: &Record) {
        let Some((extent, seen)) = &mut self.0 else { return };
        if let Some(blocks) = record.blocks()
            && extent_of(blocks.start) == *extent
        {
            blocks.for_each(|block| seen.insert(block % EXTENT_BLOCKS));
        }
    }
}

impl Index {
    /// Begins to watch an extent.
    pub(crate) fn watch(&self, extent: u32) {
        let before = self.state.borrow_mut().watch.0.replace((extent, BlockSet::EMPTY));
        debug_assert!(before.is_none(), "one extent at a time is watched");
    }

    /// What records have spoken of since this was asked last; empty when nothing is watched.
    pub(crate) fn watched(&self) -> BlockSet {
        let mut state = self.state.borrow_mut();
        state.watch.0.as_mut().map_or(BlockSet::EMPTY, |(_, seen)| std::mem::replace(seen, BlockSet::EMPTY))
    }

    /// Nothing is watched any more.
    pub(crate) fn unwatch(&self) {
        self.state.borrow_mut().watch.0 = None;
    }
}
