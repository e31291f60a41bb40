//! Keeping writers from a layer for the moment in which, in all shards of a pool, another one is laid over it.
//!
//! Upkeep goes on meanwhile, so that room in the log can be made for the writes that are waited for.

use super::{Shard, Target};
use crate::units::Below;
use reactor::sync::Notify;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::rc::Rc;

/// A new layer, and the one whose writes it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Succession {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// What lies below the new one.
    pub(crate) below: Below,
}

/// See the module.
#[derive(Default)]
pub(super) struct Freezer {
    layers: RefCell<SmallVec<[u32; 4]>>,
    thawed: Notify,
}

impl Freezer {
    /// Whether writers to the layer wait.
    #[inline]
    pub(super) fn is_frozen(&self, layer: u32) -> bool {
        let layers = self.layers.borrow();
        !layers.is_empty() && layers.contains(&layer)
    }

    /// Waits until they need not wait any more.
    pub(super) async fn thawed(&self, layer: u32) {
        self.thawed.wait_until(|| !self.is_frozen(layer)).await;
    }
}

impl Shard {
    /// Keeps writers from the layers until [`thaw`](Self::thaw); when it returns, what was written before is written. The new
    /// layers can be used already.
    pub(crate) async fn freeze(self: &Rc<Self>, all: &[Succession]) {
        for Succession { from, to, below } in all {
            self.lineage.lay(*to, Some(*below));
            self.freezer.layers.borrow_mut().push(*from);
        }
        for Succession { from, .. } in all {
            self.locks.without_writers(*from).await;
        }
        self.log.barrier().await;
    }

    /// Lets writers in again: they go to the new layers.
    pub(crate) fn thaw(&self, all: &[Succession]) {
        for Succession { from, to, .. } in all {
            self.lineage.succeed(*from, *to);
            self.freezer.layers.borrow_mut().retain(|layer| layer != from);
        }
        self.freezer.thawed.notify_all();
    }

    /// Lets writers in again: nothing has changed.
    pub(crate) fn thaw_unchanged(&self, all: &[Succession]) {
        self.freezer.layers.borrow_mut().retain(|layer| all.iter().all(|other| other.from != *layer));
        self.freezer.thawed.notify_all();
    }

    /// Says what lies below these layers from now on, `None`: nothing. A few of them: it is done in one turn.
    pub(crate) fn lay_all(&self, layers: &[(u32, Option<Below>)]) {
        layers.iter().for_each(|(layer, below)| self.lineage.lay(*layer, *below));
    }

    /// Says what lies below a layer from now on, `None`: nothing.
    pub(crate) fn lay(&self, layer: u32, below: Option<Below>) {
        self.lineage.lay(layer, below);
    }

    /// Whether the target's layer takes writes at this moment.
    #[inline]
    pub(super) fn takes_writes(&self, target: &Target) -> bool {
        !self.freezer.is_frozen(target.volume) && self.newest(*target) == *target
    }
}
