//! What differs between a layer and one below it, block by block, without reading the blocks.
//!
//! A block differs when any layer from the upper one down to, and without, the lower one has something of its own there. What
//! is written with the bytes that were there already counts as different. Blocks move between layers while that is found out
//! (a deleted snapshot in between gives what it has to the layer above it): the extents that were looked at are compared at
//! the end, and looked at again if they are others by then.

use super::dirty_blocks::BlockSet;
use super::index::Place;
use super::{Defect, Shard};
use crate::units::EXTENT_BLOCKS;
use bdev::Status;
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

/// Layers that are looked through in a turn.
const LAYERS_PER_TURN: usize = 8;

/// What a block is that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It has bytes.
    Data,
    /// It reads as zeroes, and has no place.
    Hole,
    /// Its bytes are lost: reading it fails.
    Lost,
}

/// Blocks of 4 KiB that differ, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The first of them.
    pub first: u64,
    /// How many.
    pub blocks: u64,
    /// What they are.
    pub kind: ChangeKind,
}

/// Two layers, the lower one below the upper one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Between {
    pub(crate) upper: u32,
    /// Its size in blocks.
    pub(crate) upper_blocks: u64,
    /// `None`: everything that is not a hole differs.
    pub(crate) lower: Option<u32>,
    /// Its size in blocks; what lies behind that was nowhere.
    pub(crate) lower_blocks: u64,
}

/// A layer's extent here, if it has one, and how many of its blocks show.
type Looked = SmallVec<[(Option<u32>, u32); 4]>;

/// Adds a change behind the others, to the last one if it goes on with that.
pub(crate) fn add_change(changes: &mut Vec<Change>, change: Change) {
    match changes.last_mut() {
        Some(last) if last.kind == change.kind && last.first + last.blocks == change.first => {
            last.blocks += change.blocks;
        }
        _ => changes.push(change),
    }
}

impl Shard {
    /// The extents of a range that any of the layers has here, in order.
    pub(crate) fn extents_of_any(&self, layers: &[u32], range: Range<u32>) -> Vec<u32> {
        self.index.extents_of_any(layers, range)
    }

    /// What differs in an extent of the volume, in order.
    pub(crate) async fn changes(self: &Rc<Self>, between: Between, vextent: u32) -> Result<Vec<Change>, Status> {
        // Others have their turn: whoever asks asks for many.
        self.reactor.yield_now().await;
        loop {
            let looked = self.look(&between, vextent);
            let changes = self.changes_in(&between, vextent, &looked).await?;
            if self.look(&between, vextent) == looked {
                return Ok(changes);
            }
        }
    }

    /// The layers from the upper one down to the lower one.
    fn look(&self, between: &Between, vextent: u32) -> Looked {
        let first = vextent as u64 * EXTENT_BLOCKS as u64;
        let shown = |blocks: u64| blocks.saturating_sub(first).min(EXTENT_BLOCKS as u64) as u32;
        let mut looked = Looked::new();
        let (mut layer, mut blocks) = (between.upper, shown(between.upper_blocks));
        loop {
            looked.push((self.index.extent(layer, vextent), blocks));
            let Some(below) = self.lineage.below(layer) else { break };
            blocks = blocks.min(shown(below.blocks));
            if Some(below.layer) == between.lower {
                // What shows of the lower layer does not differ.
                looked.push((None, blocks));
                break;
            }
            layer = below.layer;
        }
        looked
    }

    async fn changes_in(
        self: &Rc<Self>,
        between: &Between,
        vextent: u32,
        looked: &Looked,
    ) -> Result<Vec<Change>, Status> {
        let mut kinds = [None; EXTENT_BLOCKS as usize];
        let mut known = BlockSet::EMPTY;
        let layers = if self.is_broken(Defect::ForgetBetween) { 1 } else { looked.len() };
        for (layer, (extent, shown)) in looked[..layers].iter().enumerate() {
            let Some(extent) = extent.filter(|_| known.count() < EXTENT_BLOCKS) else { continue };
            if layer % LAYERS_PER_TURN == LAYERS_PER_TURN - 1 {
                self.reactor.yield_now().await;
            }
            let mut page = None;
            let mut index = 0;
            while index < *shown {
                if known.contains(index) {
                    index += 1;
                    continue;
                }
                let place = match self.index.place(extent * EXTENT_BLOCKS + index) {
                    Place::Deltas(_, base) if *base == Place::NeedsPage => *base,
                    place => place,
                };
                let kind = match place {
                    Place::NeedsPage => {
                        page = Some(self.meta.load_to_read(extent).await?);
                        continue;
                    }
                    Place::Inherit => None,
                    Place::Hole => Some(ChangeKind::Hole),
                    Place::Lost => Some(ChangeKind::Lost),
                    // Reading it fails, whatever lies over it.
                    Place::Deltas(_, base) if *base == Place::Lost => Some(ChangeKind::Lost),
                    Place::Log(_) | Place::Settled(..) | Place::Deltas(..) => Some(ChangeKind::Data),
                };
                if kind.is_some() {
                    known.insert(index);
                    kinds[index as usize] = kind;
                }
                index += 1;
            }
            drop(page);
        }
        let first = vextent as u64 * EXTENT_BLOCKS as u64;
        let cut = match between.lower {
            // Not even the lower layer shows there: it may have had something.
            Some(_) => {
                let shown = looked.last().map_or(0, |(_, shown)| *shown) as u64;
                first + shown..between.lower_blocks.min(between.upper_blocks)
            }
            None => 0..0,
        };
        let mut changes = Vec::new();
        for (block, kind) in (first..).zip(kinds) {
            let kind = match kind {
                Some(ChangeKind::Hole) if between.lower.is_none() => None,
                None if cut.contains(&block) => Some(ChangeKind::Hole),
                kind => kind,
            };
            if let Some(kind) = kind {
                add_change(&mut changes, Change { first: block, blocks: 1, kind });
            }
        }
        Ok(changes)
    }
}
