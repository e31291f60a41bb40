//! The catalog in memory: the volumes of a pool, and what is asked of them most. One owner changes it; how it comes to be durable
//! is in `catalog_store`.
//!
//! A pool may have thousands of snapshots, so nothing that is done for one of them looks at all of them: who lies over a layer,
//! who has a name, what is to go and can is kept beside the entries, and follows every change in [`Catalog::apply`] alone.

use super::media::Media;
use super::{MetaError, Object};
use crate::format::catalog::{CatalogImage, VolumeEntry, VolumeState, catalog_bytes_used};
use crate::format::superblock::Superblock;
use crate::units::{BLOCK_BYTES, Below};
use bdev::{Channel, DeviceInfo, Status};
use reactor::Reactor;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Between the name of a volume and that of its snapshot.
pub(crate) const SNAPSHOT_MARK: char = '@';

/// The volume in the name of a snapshot.
pub(crate) fn volume_part(name: &str) -> &str {
    name.rsplit_once(SNAPSHOT_MARK).map_or("", |(volume, _)| volume)
}

/// Changes that are made at one moment.
#[derive(Clone, Debug, Default)]
pub struct Edit(pub(super) BTreeMap<u32, Option<VolumeEntry>>);

impl Edit {
    /// There is this volume from then on, in place of the one with its number.
    pub fn put(&mut self, entry: VolumeEntry) {
        self.0.insert(entry.id, Some(entry));
    }

    /// There is no volume with this number any more.
    pub fn remove(&mut self, id: u32) {
        self.0.insert(id, None);
    }

    /// How many volumes change.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The same in parts of so many changes.
    pub(crate) fn parts(mut self, most: usize) -> impl Iterator<Item = Edit> {
        std::iter::from_fn(move || {
            let next = self.0.keys().nth(most).copied();
            let rest = next.map_or_else(BTreeMap::new, |next| self.0.split_off(&next));
            Some(Edit(std::mem::replace(&mut self.0, rest))).filter(|part| !part.0.is_empty())
        })
    }

    /// What changes, by number; `None`: it is there no more.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, Option<&VolumeEntry>)> {
        self.0.iter().map(|(id, entry)| (*id, entry.as_ref()))
    }
}

/// The volumes of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    volumes: BTreeMap<u32, VolumeEntry>,
    next_id: u32,
    /// (layer, one that lies over it).
    over: BTreeSet<(u32, u32)>,
    /// Names of those that are not deleted. Media may have one twice.
    names: BTreeSet<(String, u32)>,
    /// Those that are written to.
    live: BTreeSet<u32>,
    /// Those that go.
    going: BTreeSet<u32>,
    /// Of these: those that nothing lies over, and those that one layer lies over.
    shown_by: [BTreeSet<u32>; 2],
}

impl Default for Catalog {
    /// A catalog without volumes, of a new pool.
    fn default() -> Catalog {
        Catalog {
            volumes: BTreeMap::new(),
            next_id: 1,
            over: BTreeSet::new(),
            names: BTreeSet::new(),
            live: BTreeSet::new(),
            going: BTreeSet::new(),
            shown_by: Default::default(),
        }
    }
}

impl Catalog {
    pub(crate) fn of(image: CatalogImage) -> Catalog {
        let mut catalog = Catalog { next_id: image.next_id, ..Catalog::default() };
        image.volumes.into_iter().for_each(|volume| catalog.insert(volume));
        catalog
    }

    /// By their ids.
    pub fn volumes(&self) -> &BTreeMap<u32, VolumeEntry> {
        &self.volumes
    }

    /// One of them.
    pub fn get(&self, id: u32) -> Option<&VolumeEntry> {
        self.volumes.get(&id)
    }

    /// How many there are, deleted ones that have not gone yet among them.
    pub fn len(&self) -> usize {
        self.volumes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty()
    }

    /// The id of the next volume; ids are not used again.
    pub fn next_id(&self) -> u32 {
        self.next_id
    }

    /// Makes changes.
    pub fn apply(&mut self, edit: Edit) {
        for (id, entry) in edit.0 {
            self.take(id);
            if let Some(entry) = entry {
                self.next_id = self.next_id.max(id + 1);
                self.insert(entry);
            }
        }
    }

    fn insert(&mut self, entry: VolumeEntry) {
        let (id, parent) = (entry.id, entry.parent);
        match entry.state {
            VolumeState::Deleting => _ = self.going.insert(id),
            VolumeState::Live => _ = self.live.insert(id),
            VolumeState::Snapshot => {}
        }
        if entry.state != VolumeState::Deleting {
            self.names.insert((entry.name.clone(), id));
        }
        if parent != 0 {
            self.over.insert((parent, id));
        }
        self.volumes.insert(id, entry);
        self.sort_in(id);
        self.sort_in(parent);
    }

    fn take(&mut self, id: u32) {
        let Some(entry) = self.volumes.remove(&id) else { return };
        let parent = entry.parent;
        self.live.remove(&id);
        self.going.remove(&id);
        self.names.remove(&(entry.name, id));
        self.over.remove(&(parent, id));
        self.sort_in(id);
        self.sort_in(parent);
    }

    /// Finds out anew whether a layer goes, and how many show it.
    fn sort_in(&mut self, id: u32) {
        let showing = self.over(id).take(2).count();
        let is_going = self.going.contains(&id);
        for (count, layers) in self.shown_by.iter_mut().enumerate() {
            if is_going && showing == count {
                layers.insert(id);
            } else {
                layers.remove(&id);
            }
        }
    }

    /// The one that has a name, the oldest if there are several: a volume or a snapshot.
    pub fn of_name(&self, name: &str) -> Option<&VolumeEntry> {
        let (found, id) = self.names.range((name.to_string(), 0)..).next()?;
        (found == name).then(|| &self.volumes[id])
    }

    /// Whether a volume or a snapshot has the name.
    pub fn is_taken(&self, name: &str) -> bool {
        self.of_name(name).is_some()
    }

    /// The snapshots of a volume, by name.
    pub fn snapshots(&self, volume: &str) -> impl Iterator<Item = &VolumeEntry> {
        self.snapshots_from(volume, format!("{volume}{SNAPSHOT_MARK}"), 0)
    }

    /// The same from a name and number on.
    pub(crate) fn snapshots_from(&self, volume: &str, name: String, id: u32) -> impl Iterator<Item = &VolumeEntry> {
        let prefix = format!("{volume}{SNAPSHOT_MARK}");
        let from = self.names.range((name, id)..);
        let named = from.take_while(move |(name, _)| name.starts_with(&prefix)).map(|(_, id)| &self.volumes[id]);
        let part_bytes = volume.len();
        named.filter(move |entry| entry.state == VolumeState::Snapshot && volume_part(&entry.name).len() == part_bytes)
    }

    /// The volumes that are written to.
    pub fn live(&self) -> impl Iterator<Item = &VolumeEntry> {
        self.live.iter().map(|id| &self.volumes[id])
    }

    /// The layers that are deleted and have not gone yet.
    pub fn going(&self) -> &BTreeSet<u32> {
        &self.going
    }

    /// Of these: those that so many lie over, 0 or 1.
    pub(crate) fn going_under(&self, showing: usize) -> &BTreeSet<u32> {
        &self.shown_by[showing]
    }

    /// The layers that lie over one.
    pub fn over(&self, layer: u32) -> impl Iterator<Item = u32> {
        self.over.range((layer, 0)..=(layer, u32::MAX)).map(|(_, id)| *id)
    }

    /// The one that lies over a layer, if it is the only one.
    pub(crate) fn only_over(&self, layer: u32) -> Option<u32> {
        let mut over = self.over(layer);
        over.next().filter(|_| over.next().is_none())
    }

    /// Whether a layer's blocks count: it is used, or another one shows them.
    pub(crate) fn counts(&self, entry: &VolumeEntry) -> bool {
        entry.state != VolumeState::Deleting || self.over(entry.id).next().is_some()
    }

    /// What has to change so that these layers, which have nothing of their own, are there no more: what lies over them lies over what
    /// is below them.
    pub(crate) fn without(&self, gone: &BTreeSet<u32>) -> Edit {
        let mut edit = Edit::default();
        for layer in gone {
            for heir in self.over(*layer).filter(|heir| !gone.contains(heir)) {
                let mut entry = self.volumes[&heir].clone();
                while let Some(below) = self.volumes.get(&entry.parent).filter(|below| gone.contains(&below.id)) {
                    (entry.parent, entry.overlap) = (below.parent, entry.overlap.min(below.overlap));
                }
                edit.put(entry);
            }
            edit.remove(*layer);
        }
        edit
    }

    /// The newer valid copy.
    pub async fn load(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
    ) -> Result<Catalog, MetaError> {
        let media = Media::new(reactor, channel, &info)?;
        let (image, ..) = super::catalog_store::newest(&media, superblock).await?;
        Ok(Catalog::of(image))
    }
}

/// Every layer that lies over another one, and what lies below it.
pub(crate) fn layers(volumes: &BTreeMap<u32, VolumeEntry>) -> Vec<(u32, Below)> {
    let over = volumes.values().filter(|entry| entry.parent != 0);
    over.map(|entry| (entry.id, Below { layer: entry.parent, blocks: entry.overlap })).collect()
}

/// One copy as it is on media.
pub(crate) async fn load_copy(media: &Media, superblock: &Superblock, copy: u8) -> Result<CatalogImage, MetaError> {
    let block = superblock.catalog_copy(copy);
    let mut bytes = media.read_object(Object::Catalog, block, 1).await?;
    let most = superblock.catalog_blocks as u64;
    // A length that cannot be is refused below.
    let used = catalog_bytes_used(&bytes).map_or(1, |bytes| bytes.div_ceil(BLOCK_BYTES as u64)).min(most);
    if used > 1 {
        bytes.extend(media.read_object(Object::Catalog, block + 1, used as usize - 1).await?);
    }
    let damaged = |reason| MetaError::Damaged { object: Object::Catalog, block, reason };
    let usual = CatalogImage::decode(&bytes, superblock.pool).map_err(damaged);
    if usual.is_ok() {
        return usual;
    }
    let read = async |version| {
        // Whatever length is wrong, or right, there.
        let bytes = media.read_bytes_of(version, block, most as usize).await?;
        let used = usize::try_from(catalog_bytes_used(&bytes).unwrap_or(0).max(1)).ok();
        let image = used.and_then(|used| bytes.get(..used.next_multiple_of(BLOCK_BYTES)));
        Ok(image.and_then(|image| CatalogImage::decode(image, superblock.pool).ok()))
    };
    match media.other_version(block, read).await {
        Ok(Some(image)) => Ok(image),
        _ => usual,
    }
}

/// Why the catalog could not be stored, as a status for whoever asked for the change.
impl From<&MetaError> for Status {
    fn from(error: &MetaError) -> Status {
        match error {
            MetaError::Io { status, .. } => *status,
            MetaError::CatalogFull { .. } => Status::NoSpace,
            _ => Status::Corrupt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;
    use uuid::Uuid;

    fn entry(id: u32, parent: u32, state: VolumeState, name: &str) -> VolumeEntry {
        let (uuid, name) = (Uuid::from_u128(id as u128), name.to_string());
        let overlap = 1000 - u64::from(id);
        VolumeEntry {
            id,
            state,
            block_shift: 12,
            blocks: 1000,
            uuid,
            content: uuid,
            created_s: 0,
            name,
            parent,
            overlap,
            origin: 1,
        }
    }

    /// The same, found by looking at all entries.
    fn assert_is_indexed(catalog: &Catalog) {
        let anew = Catalog::of(CatalogImage {
            generation: 0,
            next_id: catalog.next_id,
            volumes: catalog.volumes.values().cloned().collect(),
        });
        assert_eq!(*catalog, anew);
        for layer in catalog.volumes.keys() {
            let all = catalog.volumes.values().filter(|entry| entry.parent == *layer).map(|entry| entry.id);
            assert!(catalog.over(*layer).eq(all));
            let (is_going, showing) = (catalog.going.contains(layer), catalog.over(*layer).count());
            for count in 0..2 {
                assert_eq!(catalog.going_under(count).contains(layer), is_going && showing == count);
            }
        }
    }

    #[test]
    fn what_is_kept_beside_the_entries_follows_every_change() {
        let mut rng = Rng::new(7);
        let mut catalog = Catalog::default();
        let states = [VolumeState::Live, VolumeState::Deleting, VolumeState::Snapshot];
        for _ in 0..2_000 {
            let mut edit = Edit::default();
            for _ in 0..=rng.below(3) {
                let id = 1 + rng.below(40) as u32;
                match rng.below(4) {
                    0 => edit.remove(id),
                    _ => {
                        let name = ["v", "v@a", "v@b", "v-1", "w@a", "vv@a"][rng.below(6) as usize];
                        let parent = rng.below(id as u64) as u32;
                        edit.put(entry(id, parent, states[rng.below(3) as usize], name));
                    }
                }
            }
            catalog.apply(edit);
            assert_is_indexed(&catalog);
            let of_v = catalog
                .volumes
                .values()
                .filter(|entry| entry.state == VolumeState::Snapshot && volume_part(&entry.name) == "v");
            let mut found: Vec<u32> = catalog.snapshots("v").map(|entry| entry.id).collect();
            found.sort_unstable();
            assert!(of_v.map(|entry| entry.id).eq(found));
        }
    }

    #[test]
    fn layers_that_go_together_leave_what_they_showed_to_those_above() {
        let mut edit = Edit::default();
        let (live, going, snapshot) = (VolumeState::Live, VolumeState::Deleting, VolumeState::Snapshot);
        for (id, parent, state) in
            [(1, 0, snapshot), (2, 1, going), (3, 2, going), (4, 3, live), (5, 2, snapshot), (6, 5, going)]
        {
            edit.put(entry(id, parent, state, &format!("v{id}")));
        }
        let mut catalog = Catalog::default();
        catalog.apply(edit);
        catalog.apply(catalog.without(&[2, 3, 6].into()));
        assert_is_indexed(&catalog);
        let left: Vec<(u32, u32, u64)> =
            catalog.volumes.values().map(|entry| (entry.id, entry.parent, entry.overlap)).collect();
        assert_eq!(left, [(1, 0, 999), (4, 1, 996), (5, 1, 995)]);
        assert_eq!((catalog.next_id, catalog.going.len()), (7, 0));
    }
}
