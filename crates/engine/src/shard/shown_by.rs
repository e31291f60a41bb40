//! Which layers over one show blocks that it has: who reads one of those gets, or does not get, the same bytes.

use super::Shard;
use super::index::Place;
use crate::units::{EXTENT_BLOCKS, joined};
use std::ops::Range;
use std::rc::Rc;

impl Shard {
    /// The layers, however far above, that show blocks of a layer's extent, and which of them. Where a map page cannot be read,
    /// nothing is shown: reading there fails by itself.
    pub(super) async fn shown_by(self: &Rc<Self>, layer: u32, vextent: u32, run: Range<u32>) -> Vec<(u32, Range<u32>)> {
        let first = vextent as u64 * EXTENT_BLOCKS as u64;
        let (mut all, mut under) = (Vec::new(), vec![(layer, run)]);
        while let Some((layer, run)) = under.pop() {
            for (above, end) in self.lineage.over(layer) {
                let shown = end.saturating_sub(first).min(run.end as u64) as u32;
                for part in self.shows(above, vextent, run.start..shown).await {
                    all.push((above, part.clone()));
                    under.push((above, part));
                }
            }
        }
        all
    }

    /// Where a layer has nothing of its own.
    async fn shows(self: &Rc<Self>, layer: u32, vextent: u32, run: Range<u32>) -> Vec<Range<u32>> {
        if run.is_empty() {
            return Vec::new();
        }
        let Some(extent) = self.index.extent(layer, vextent) else { return vec![run] };
        // Held, so that no place needs it again.
        let Ok(_page) = self.meta.load_to_read(extent).await else { return Vec::new() };
        joined(run.filter(|index| match self.index.place(extent * EXTENT_BLOCKS + index) {
            Place::Inherit => true,
            Place::Deltas(_, base) => *base == Place::Inherit,
            _ => false,
        }))
    }
}
