//! One extent in the place of another, by a checkpoint alone. Until the root that says so is durable, the volume's extent is the
//! old one for everybody in memory; only what the checkpoint writes has the change, so that one that fails leaves nothing to
//! undo.

use super::{Descriptor, Extent, Meta, Page};

/// An extent that takes another one's place. One at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replacement {
    /// Whose place it is.
    pub(crate) old: u32,
    /// A free one, which nobody else takes.
    pub(crate) new: u32,
    /// What the old one is then: free, or unusable.
    pub(crate) left: Descriptor,
}

/// One that the next root has.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    replacement: Replacement,
    /// Of the durable root before.
    generation: u64,
}

impl Meta {
    /// Checkpoints from now on have the replacement; returns the new extent's map page, whose blocks are all lost. No
    /// checkpoint is being made, and no root is [owed](Self::owes_root).
    pub(crate) fn replace(&self, replacement: Replacement) -> Page {
        assert!(self.replacing.get().is_none() && !self.owes_root(), "one replacement at a time, in the next root");
        assert!(self.descriptor(replacement.new).is_free(), "extent {} is somebody's", replacement.new);
        let page = self.renew_page(replacement.new);
        self.table_changed(replacement.old);
        self.replacing.set(Some(Pending { replacement, generation: self.progress.generation() }));
        page
    }

    /// What checkpoints replace.
    pub(crate) fn replacement(&self) -> Option<Replacement> {
        self.replacing.get().map(|pending| pending.replacement)
    }

    /// The replacement, when a durable root has it (or `early`): it holds in memory, too, from now on.
    pub(crate) fn replaced(&self, early: bool) -> Option<Replacement> {
        let pending = self.replacing.get()?;
        if self.progress.generation() == pending.generation && !early {
            return None;
        }
        let Replacement { old, new, left } = pending.replacement;
        let taken = self.described(self.cell(new));
        self.replacing.set(None);
        self.describe(new, taken);
        self.set_descriptor(old, left);
        [old, new].iter().for_each(|extent| self.table_changed(*extent));
        Some(pending.replacement)
    }

    /// Gives up a replacement that no root has, nor may have; whether there was one.
    pub(crate) fn keep_replaced(&self) -> bool {
        let Some(pending) = self.replacing.take() else { return false };
        assert!(!self.owes_root(), "the media may have the replacement");
        let Replacement { old, new, .. } = pending.replacement;
        self.set_descriptor(new, Descriptor::default());
        [old, new].iter().for_each(|extent| self.table_changed(*extent));
        true
    }

    /// The extent whose place is being taken: its map page does not matter to a checkpoint.
    pub(super) fn is_being_replaced(&self, extent: u32) -> bool {
        self.replacing.get().is_some_and(|pending| pending.replacement.old == extent)
    }

    /// What the next root says of an extent.
    pub(super) fn described(&self, extent: &Extent) -> Descriptor {
        let descriptor = extent.descriptor.get();
        let Some(Pending { replacement, .. }) = self.replacing.get() else { return descriptor };
        let owner = self.cell(replacement.old);
        if std::ptr::eq(extent, owner) {
            replacement.left
        } else if std::ptr::eq(extent, self.cell(replacement.new)) {
            let Descriptor { volume, vextent, .. } = owner.descriptor.get();
            Descriptor { volume, vextent, ..descriptor }
        } else {
            descriptor
        }
    }
}
