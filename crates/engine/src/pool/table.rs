//! The volumes and snapshots of an open pool: by layer and by name.

use crate::names::Names;
use crate::volume::PoolVolume;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub(super) struct Volumes {
    /// By their uppermost layers.
    by_layer: BTreeMap<u32, Arc<PoolVolume>>,
    /// Name and uppermost layer; media may have a name twice.
    names: BTreeSet<(String, u32)>,
    snapshots: usize,
    /// The same for the shards.
    told: Arc<Names>,
}

impl Volumes {
    pub(super) fn told_to(names: Arc<Names>) -> Volumes {
        Volumes { told: names, ..Volumes::default() }
    }

    pub(super) fn insert(&mut self, layer: u32, volume: Arc<PoolVolume>) {
        self.remove(layer);
        let identity = volume.identity();
        self.snapshots += identity.is_snapshot as usize;
        self.told.give(layer, &identity.name, identity.is_snapshot);
        self.names.insert((identity.name.clone(), layer));
        self.by_layer.insert(layer, volume);
    }

    pub(super) fn remove(&mut self, layer: u32) -> Option<Arc<PoolVolume>> {
        let volume = self.by_layer.remove(&layer)?;
        self.told.forget(layer);
        self.snapshots -= volume.identity().is_snapshot as usize;
        self.names.remove(&(volume.identity().name.clone(), layer));
        Some(volume)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<PoolVolume>> {
        self.by_layer.values()
    }

    pub(super) fn of_name(&self, name: &str) -> Option<&Arc<PoolVolume>> {
        let (found, layer) = self.names.range((name.to_string(), 0)..).next()?;
        (found == name).then(|| &self.by_layer[layer])
    }

    /// Those whose names begin so, by name.
    pub(super) fn of_prefix(&self, prefix: String) -> impl Iterator<Item = &Arc<PoolVolume>> {
        let from = self.names.range((prefix.clone(), 0)..);
        from.take_while(move |(name, _)| name.starts_with(&prefix)).map(|(_, layer)| &self.by_layer[layer])
    }

    /// How many are volumes, and how many snapshots.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.by_layer.len() - self.snapshots, self.snapshots)
    }
}
