//! What differs between a volume or snapshot and a snapshot below it: for backups that copy what has changed, and for those
//! that copy everything there is.

use super::control::Control;
use super::{Grounds, Pool, PoolError, PoolShared};
use crate::shard::{Between, Change, ChangeKind, Shard, add_change};
use crate::units::{EXTENT_BLOCKS, SLICE_EXTENTS};
use bdev::Status;
use reactor::Reactor;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Extents whose owners are asked for together: 1 GiB first, more while there are none, 256 GiB at most.
const WINDOW_EXTENTS: u32 = 1 << 8;
const WINDOW_EXTENTS_MAX: u32 = 1 << 16;
/// Windows after which a look ends, whether it has found anything or not.
const WINDOWS_MAX: usize = 32;

/// What differs, as far as it has been looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// In order, none next to another of its kind.
    pub changes: Vec<Change>,
    /// The block to go on from; `None` when all have been looked at.
    pub next: Option<u64>,
}

/// What the catalog says of two layers and those between them.
struct Way {
    between: Between,
    /// The upper layer, and those between it and the lower one.
    layers: Arc<[u32]>,
    /// So many of the first blocks show what the lower one has, where nothing lies over it.
    shown: u64,
}

impl Pool {
    /// What differs between `of`, a volume or snapshot, and the snapshot `since` below it, from block `from` (of 4 KiB) on; without
    /// `since`, everything that `of` has. Ends with the slice (64 MiB) with which there are `most` changes or more, or when it has looked at much and found little. What was written with the
    /// bytes that had been there counts. Nothing of either is read but the index, and both must stay until the end.
    pub async fn changes(
        &self,
        reactor: &Rc<Reactor>,
        of: &str,
        since: Option<&str>,
        from: u64,
        most: usize,
    ) -> Result<Changes, PoolError> {
        let upper = self.of_name(of)?;
        let (origin, layer, blocks) = (upper.identity().origin, upper.shown().layer(), upper.shown().blocks());
        let lower = since.map(|name| self.of_name(name)).transpose()?;
        let lower = lower.map(|lower| (lower.shown().layer(), lower.shown().blocks()));
        let find_way = async || {
            let (shared, of, since) = (self.shared.clone(), of.to_string(), since.unwrap_or_default().to_string());
            let way = move |there: Rc<Reactor>| async move {
                Control::of(&there, &shared)?.way((layer, blocks), lower).ok_or_else(|| {
                    shared.refuse(Grounds::Value, format!(
                        "'{since}' is not below '{of}': what has changed can be told since an older snapshot of the same volume, \
                         or of the one that it is a clone of, until that is flattened, and not across a rollback"
                    ))
                })
            };
            reactor.call_on(self.shared.control, way).await
        };
        let walk = Walk { shared: &self.shared, reactor, way: find_way().await?, origin };
        let found = walk.go(from, most).await;
        let found = found.map_err(|status| self.shared.io_error("find out what has changed", status))?;
        // Who was flattened meanwhile has no way any more, and differs by more than was found at its end.
        find_way().await?;
        Ok(found)
    }
}

impl Control {
    /// `None`: the lower layer is not below the upper one, each (number, blocks).
    fn way(&self, upper: (u32, u64), lower: Option<(u32, u64)>) -> Option<Way> {
        let catalog = self.catalog.borrow();
        let (mut layers, mut shown) = (vec![upper.0], upper.1);
        let lower_layer = lower.map(|(layer, _)| layer);
        let mut entry = catalog.get(upper.0)?;
        while entry.parent != 0 && Some(entry.parent) != lower_layer {
            shown = shown.min(entry.overlap);
            entry = catalog.get(entry.parent)?;
            layers.push(entry.id);
        }
        if lower.is_some() && entry.parent == 0 {
            return None;
        }
        let shown = shown.min(entry.overlap);
        let between = Between {
            upper: upper.0,
            upper_blocks: upper.1,
            lower: lower_layer,
            lower_blocks: lower.map_or(0, |(_, blocks)| blocks),
        };
        Some(Way { between, layers: layers.into(), shown })
    }
}

/// One look at a way, from its start or a block on.
struct Walk<'a> {
    shared: &'a Arc<PoolShared>,
    reactor: &'a Rc<Reactor>,
    way: Way,
    origin: u32,
}

impl Walk<'_> {
    async fn go(&self, from: u64, most: usize) -> Result<Changes, Status> {
        let between = &self.way.between;
        let mut changes = Vec::new();
        let end = between.upper_blocks.div_ceil(EXTENT_BLOCKS as u64) as u32;
        let mut at = (from / EXTENT_BLOCKS as u64).min(end as u64) as u32;
        let mut size = WINDOW_EXTENTS;
        for _ in 0..WINDOWS_MAX {
            if at == end {
                break;
            }
            let window = at..at.saturating_add(size).min(end);
            let held = self.held(window.clone()).await?;
            size = if held.is_empty() { (size * 2).min(WINDOW_EXTENTS_MAX) } else { WINDOW_EXTENTS };
            let mut held = held.as_slice();
            while let Some(first) = held.first() {
                // Those of one slice together: one shard has them.
                let slice = first / SLICE_EXTENTS;
                let (these, rest) = held.split_at(held.partition_point(|vextent| vextent / SLICE_EXTENTS == slice));
                for (vextent, found) in these.iter().zip(self.in_slice(slice, these).await?) {
                    self.add_cut(at..*vextent, &mut changes);
                    found.into_iter().for_each(|change| add_change(&mut changes, change));
                    at = vextent + 1;
                }
                held = rest;
                if changes.len() >= most {
                    return Ok(self.ended(changes, from, at, end));
                }
            }
            self.add_cut(at..window.end, &mut changes);
            at = window.end;
            if changes.len() >= most {
                break;
            }
        }
        Ok(self.ended(changes, from, at, end))
    }

    fn ended(&self, mut changes: Vec<Change>, from: u64, at: u32, end: u32) -> Changes {
        // The extent in which it begins was looked at as a whole.
        changes.retain_mut(|change| {
            let behind = change.first + change.blocks;
            (change.first, change.blocks) = (change.first.max(from), behind.saturating_sub(change.first.max(from)));
            change.blocks > 0
        });
        Changes { changes, next: (at < end).then_some(at as u64 * EXTENT_BLOCKS as u64) }
    }

    /// The extents of a range that any layer on the way has, in order.
    async fn held(&self, range: Range<u32>) -> Result<Vec<u32>, Status> {
        let argument = (self.way.layers.clone(), range);
        let ask = |shard: Rc<Shard>, (layers, range): (Arc<[u32]>, Range<u32>)| async move {
            shard.extents_of_any(&layers, range)
        };
        let answers = self.shared.on_all_shards(self.reactor, argument, ask).await;
        let mut held = Vec::new();
        for answer in answers {
            held.extend(answer.ok_or(Status::Gone)?);
        }
        held.sort_unstable();
        Ok(held)
    }

    async fn in_slice(&self, slice: u32, vextents: &[u32]) -> Result<Vec<Vec<Change>>, Status> {
        let (between, vextents) = (self.way.between, vextents.to_vec());
        let look = move |shard: Rc<Shard>| async move {
            let mut found = Vec::new();
            for vextent in vextents {
                found.push(shard.changes(between, vextent).await?);
            }
            Ok(found)
        };
        let number = self.shared.shard_of(self.origin, slice);
        self.shared.on_shard(self.reactor, number, look).await.unwrap_or(Err(Status::Gone))
    }

    /// Extents that no layer has: they differ where not even the lower layer shows.
    fn add_cut(&self, extents: Range<u32>, changes: &mut Vec<Change>) {
        let between = &self.way.between;
        if between.lower.is_none() || extents.is_empty() {
            return;
        }
        let block = |extent: u32| extent as u64 * EXTENT_BLOCKS as u64;
        let first = block(extents.start).max(self.way.shown);
        let end = block(extents.end).min(between.lower_blocks).min(between.upper_blocks);
        if first < end {
            add_change(changes, Change { first, blocks: end - first, kind: ChangeKind::Hole });
        }
    }
}
