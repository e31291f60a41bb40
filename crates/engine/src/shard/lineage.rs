//! Which layer lies over which, as far as a shard has to know: a layer shows what lies below it wherever it has nothing
//! of its own.
//!
//! A volume is the uppermost of its layers. A snapshot leaves its layer as it is and lays a new one over it, which takes the
//! writes from then on; see `pool/snapshots.rs` for how all shards do that at once.

use super::places::FixedState;
use crate::units::Below;
use std::cell::RefCell;
use std::collections::HashMap;

/// See the module.
#[derive(Default)]
pub(crate) struct Lineage {
    below: RefCell<HashMap<u32, Below, FixedState>>,
    /// Where writes to a layer go that was a volume's when they were begun.
    successors: RefCell<HashMap<u32, u32, FixedState>>,
}

impl Lineage {
    pub(crate) fn new(layers: &[(u32, Below)]) -> Lineage {
        Lineage { below: RefCell::new(layers.iter().copied().collect()), successors: RefCell::default() }
    }

    /// What lies below a layer.
    #[inline]
    pub(crate) fn below(&self, layer: u32) -> Option<Below> {
        let all = self.below.borrow();
        if all.is_empty() { None } else { all.get(&layer).copied() }
    }

    /// Says what lies below a layer from now on.
    pub(crate) fn lay(&self, layer: u32, below: Option<Below>) {
        match below {
            Some(below) => self.below.borrow_mut().insert(layer, below),
            None => self.below.borrow_mut().remove(&layer),
        };
    }

    /// Writes to `layer` go to `successor` from now on.
    pub(crate) fn succeed(&self, layer: u32, successor: u32) {
        self.successors.borrow_mut().insert(layer, successor);
    }

    /// The layer that takes what is written to this one.
    #[inline]
    pub(crate) fn newest(&self, layer: u32) -> u32 {
        let successors = self.successors.borrow();
        if successors.is_empty() {
            return layer;
        }
        let mut newest = layer;
        while let Some(successor) = successors.get(&newest) {
            newest = *successor;
        }
        newest
    }

    /// The layers that lie over one, in order, and up to which block they show it.
    pub(crate) fn over(&self, layer: u32) -> Vec<(u32, u64)> {
        let all = self.below.borrow();
        let over = all.iter().filter(|(_, below)| below.layer == layer);
        let mut over: Vec<(u32, u64)> = over.map(|(above, below)| (*above, below.blocks)).collect();
        over.sort_unstable();
        over
    }

    /// The layers below one that show through at its block `start`, the nearest first.
    pub(crate) fn through(&self, layer: u32, start: u64) -> impl Iterator<Item = u32> + '_ {
        let mut layer = layer;
        std::iter::from_fn(move || {
            let below = self.below(layer).filter(|below| start < below.blocks)?;
            layer = below.layer;
            Some(layer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shows_through_ends_where_any_layer_on_the_way_was_cut() {
        let lineage = Lineage::new(&[(5, Below { layer: 3, blocks: 100 }), (3, Below { layer: 1, blocks: 50 })]);
        let through = |start| lineage.through(5, start).collect::<Vec<_>>();
        assert_eq!((through(0), through(50), through(100)), (vec![3, 1], vec![3], vec![]));
        lineage.lay(5, Some(Below { layer: 1, blocks: 50 }));
        assert_eq!((lineage.over(1), lineage.over(3)), (vec![(3, 50), (5, 50)], vec![]));
        assert_eq!(through(0), [1]);
        lineage.lay(5, None);
        assert!(through(0).is_empty() && lineage.below(3).is_some());
    }

    #[test]
    fn writes_go_to_the_newest_layer() {
        let lineage = Lineage::default();
        assert_eq!(lineage.newest(1), 1);
        lineage.succeed(1, 4);
        lineage.succeed(4, 9);
        assert_eq!((lineage.newest(1), lineage.newest(4), lineage.newest(9), lineage.newest(2)), (9, 9, 9, 2));
    }
}
