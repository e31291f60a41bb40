//! Which volumes and snapshots show the blocks of a layer: what is lost there, they have lost as well.

use crate::format::catalog::VolumeState;
use crate::meta::{Catalog, INHERIT, Meta};
use crate::units::{EXTENT_BLOCKS, joined};
use bdev::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Others that show something of a layer are named up to so many.
pub const SHOWN_BY_MAX: usize = 64;

/// Of layers that have lost something: the others that show it, by number.
#[derive(Default)]
pub(crate) struct ShownBy(BTreeMap<u32, BTreeSet<u32>>);

impl ShownBy {
    /// The names of those that show what a layer has lost, the first [`SHOWN_BY_MAX`] that were found.
    pub(crate) fn names(&self, layer: u32, catalog: &Catalog) -> Vec<String> {
        let all = self.0.get(&layer).into_iter().flatten();
        let mut names: Vec<String> = all.filter_map(|above| Some(catalog.get(*above)?.name.clone())).collect();
        names.sort_unstable();
        names
    }
}

/// What a shard knows of it.
pub(crate) struct Showing<'a> {
    catalog: &'a Catalog,
    /// The index, or of a shaped pool its shadow.
    meta: Rc<Meta>,
    /// By layer and extent of it. Only where layers lie over each other.
    extents: BTreeMap<(u32, u32), u32>,
    /// Extents of layers that are lost by themselves, whatever they show.
    lost: BTreeSet<(u32, u32)>,
}

impl Showing<'_> {
    /// `lost`: extents of layers that are lost by themselves.
    pub(crate) fn new(catalog: &Catalog, meta: Rc<Meta>, lost: BTreeSet<(u32, u32)>) -> Showing<'_> {
        let mut extents = BTreeMap::new();
        if catalog.volumes().values().any(|entry| entry.parent != 0) {
            let descriptors = (0..meta.extents()).map(|extent| (extent, meta.descriptor(extent)));
            let taken = descriptors.filter(|(_, descriptor)| !descriptor.is_free());
            extents.extend(taken.map(|(extent, descriptor)| ((descriptor.volume, descriptor.vextent), extent)));
        }
        Showing { catalog, meta, extents, lost }
    }

    /// Notes who shows these blocks of a layer's extent, however far above.
    ///
    /// # Errors
    /// A map page could not be read now.
    pub(crate) async fn note(
        &self,
        layer: u32,
        vextent: u32,
        run: Range<u32>,
        shown: &mut ShownBy,
    ) -> Result<(), Status> {
        let first = vextent as u64 * EXTENT_BLOCKS as u64;
        let mut under = vec![(layer, run)];
        while let Some((below, run)) = under.pop() {
            for above in self.catalog.over(below) {
                let Some(entry) = self.catalog.get(above) else { continue };
                let end = entry.overlap.saturating_sub(first).min(run.end as u64) as u32;
                for part in self.shows(above, vextent, run.start..end).await? {
                    let names = shown.0.entry(layer).or_default();
                    if names.len() == SHOWN_BY_MAX {
                        return Ok(());
                    }
                    if entry.state != VolumeState::Deleting {
                        names.insert(above);
                    }
                    under.push((above, part));
                }
            }
        }
        Ok(())
    }

    /// Where a layer has nothing of its own.
    async fn shows(&self, layer: u32, vextent: u32, run: Range<u32>) -> Result<Vec<Range<u32>>, Status> {
        if run.is_empty() || self.lost.contains(&(layer, vextent)) {
            return Ok(Vec::new());
        }
        let Some(extent) = self.extents.get(&(layer, vextent)) else { return Ok(vec![run]) };
        let page = match self.meta.load(*extent).await {
            Ok(page) => page,
            // All of it is lost by itself.
            Err(Status::Corrupt | Status::ReadError) => return Ok(Vec::new()),
            Err(status) => return Err(status),
        };
        Ok(joined(run.filter(|index| page.get(*index) == INHERIT)))
    }
}
