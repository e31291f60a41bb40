//! The catalog in memory, and its two copies on the capacity device. One owner changes it.

use super::damage::Damage;
use super::media::Media;
use super::{MetaError, Object};
use crate::format::catalog::{CatalogImage, VolumeEntry, VolumeState, catalog_bytes_used, catalog_entries_max};
use crate::format::superblock::Superblock;
use crate::units::{BLOCK_BYTES, Below};
use bdev::{Channel, DeviceInfo, Status};
use reactor::Reactor;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The volumes of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    /// By their ids.
    pub volumes: BTreeMap<u32, VolumeEntry>,
    /// The id of the next volume; ids are not used again.
    pub next_id: u32,
    generation: u64,
    /// The copy that holds.
    copy: u8,
    /// That copy is known to be durable.
    settled: bool,
}

impl Default for Catalog {
    /// A catalog without volumes, of a new pool.
    fn default() -> Catalog {
        Catalog { volumes: BTreeMap::new(), next_id: 1, generation: 0, copy: 1, settled: true }
    }
}

impl Catalog {
    /// Whether a volume or a snapshot has the name.
    pub fn is_taken(&self, name: &str) -> bool {
        self.volumes.values().any(|entry| entry.state != VolumeState::Deleting && entry.name == name)
    }

    /// The layers that lie over one.
    pub fn over(&self, layer: u32) -> impl Iterator<Item = &VolumeEntry> {
        self.volumes.values().filter(move |entry| entry.parent == layer)
    }

    /// Whether a layer's blocks count: it is used, or another one shows them.
    pub(crate) fn counts(&self, entry: &VolumeEntry) -> bool {
        entry.state != VolumeState::Deleting || self.over(entry.id).next().is_some()
    }

    /// The newer valid copy.
    pub async fn load(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
    ) -> Result<Catalog, MetaError> {
        Catalog::survey(reactor, channel, info, superblock).await.map(|(catalog, _)| catalog)
    }

    /// The same, and what is wrong with the other copy.
    pub(crate) async fn survey(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
    ) -> Result<(Catalog, Option<Damage>), MetaError> {
        let media = Media::new(reactor, channel, &info)?;
        let mut best: Option<(CatalogImage, u8)> = None;
        let mut error = None;
        for copy in 0..2 {
            match load_copy(&media, superblock, copy).await {
                Ok(found) if best.as_ref().is_none_or(|(best, _)| found.generation > best.generation) => {
                    best = Some((found, copy));
                }
                Ok(_) => {}
                Err(found) => error = Some(found),
            }
        }
        let Some((image, copy)) = best else { return Err(error.expect("a copy is valid or has an error")) };
        let catalog = Catalog {
            volumes: image.volumes.into_iter().map(|volume| (volume.id, volume)).collect(),
            next_id: image.next_id,
            generation: image.generation,
            copy,
            settled: false,
        };
        let damage = error.map(|error| Damage::of(Object::Catalog, superblock.catalog_copy(1 - copy), &error));
        Ok((catalog, damage))
    }

    /// Makes the catalog durable, as a new generation: first in the copy that does not hold, then in the other one too, so that
    /// damage to one copy loses nothing. After an error either the former or this one will be found.
    pub async fn store(
        &mut self,
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
    ) -> Result<(), MetaError> {
        let room = catalog_entries_max(superblock.catalog_blocks as u64 * BLOCK_BYTES as u64);
        if self.volumes.len() as u64 > room {
            return Err(MetaError::CatalogFull { volumes: self.volumes.len() as u64, room });
        }
        let media = Media::new(reactor, channel, &info)?;
        let failed = |block| move |status| MetaError::Io { action: "write", object: Object::Catalog, block, status };
        let holding = superblock.catalog_copy(self.copy);
        if !self.settled {
            media.settle(holding, superblock.catalog_blocks as usize).await.map_err(failed(holding))?;
            self.settled = true;
        }
        self.generation += 1;
        let volumes = self.volumes.values().cloned().collect();
        let image = CatalogImage { generation: self.generation, next_id: self.next_id, volumes };
        let bytes = image.encode(superblock.pool);
        let target = superblock.catalog_copy(1 - self.copy);
        media.write_durably(target, &bytes).await.map_err(failed(target))?;
        self.copy = 1 - self.copy;
        if let Err(status) = media.write_durably(holding, &bytes).await {
            // This one holds all the same: the other copy has a former one, or none.
            tracing::warn!("the second copy of the catalog, at block {holding}, cannot be written: {status}");
        }
        Ok(())
    }

    /// Nobody knows whether `other`, which could not be stored, will be found: this one is to be stored over it.
    pub(crate) fn supersede(&mut self, other: &Catalog) {
        self.generation = self.generation.max(other.generation);
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
