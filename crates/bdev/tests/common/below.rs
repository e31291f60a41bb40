//! What the capacity device of a golden image is made of, by the image's name: a disk, or a device over several.

use super::disk::Disk;
use bdev::{
    BlockDevice, Built, DeviceError, DeviceSpec, FlashCacheOptions, MirrorOptions, ParityOptions, ZoneBandsOptions,
    ZonedOptions, build,
};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// Blocks of the disk of a hot pool.
const CAPACITY_BLOCKS: u64 = 24 << 10;
/// Blocks of that of a shaped pool, which keeps bands for itself.
const BANDS_BLOCKS: u64 = 48 << 10;
/// Blocks of a zone: a band.
const ZONE_BLOCKS: u64 = 128;
/// Bytes of a row on each member of a parity device: two of them are a unit of writes.
const CHUNK_BYTES: u64 = 8 << 10;
/// Bytes of a segment of a flash cache.
const SEGMENT_BYTES: u64 = 64 << 10;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// A disk.
    Disk,
    /// A disk, for bands.
    Bands,
    /// Rows over three members.
    Parity,
    /// A head and the zones of a zoned device.
    Zones,
    /// A slow disk behind a flash cache.
    Cache,
    /// Two legs of a mirror.
    Mirror,
}

/// A capacity device, and what has to be settled once the pool is closed, from the bottom up.
pub struct Stack {
    pub device: Arc<dyn BlockDevice>,
    pub built: Vec<Built>,
}

impl Below {
    /// Of an image: `mapped`, `block-3` and `shaped-3` have a disk, `parity-3`, `zones-3`, `warm-3` and `mirror-5` more.
    pub fn of(image: &str) -> Below {
        match image.split('-').next() {
            Some("shaped") => Below::Bands,
            Some("parity") => Below::Parity,
            Some("zones") => Below::Zones,
            Some("warm") => Below::Cache,
            Some("mirror") => Below::Mirror,
            _ => Below::Disk,
        }
    }

    /// Whether the pool on it is shaped.
    pub fn is_shaped(self) -> bool {
        matches!(self, Below::Bands | Below::Parity | Below::Zones)
    }

    /// Its disks: their names, which are the ends of their files' names, and blocks.
    pub fn disks(self) -> &'static [(&'static str, u64)] {
        match self {
            Below::Disk => &[("capacity", CAPACITY_BLOCKS)],
            Below::Bands => &[("capacity", BANDS_BLOCKS)],
            Below::Parity => &[("member-0", 25 << 10), ("member-1", 25 << 10), ("member-2", 25 << 10)],
            Below::Zones => &[("head", 1024), ("zoned", BANDS_BLOCKS)],
            Below::Mirror => &[("leg-0", 25 << 10), ("leg-1", 25 << 10)],
            Below::Cache => &[("slow", 26 << 10), ("flash", 40 * SEGMENT_BYTES / 4096)],
        }
    }

    /// The device over these disks; `None` is an absent one, which a parity device, a mirror or a cache can do without.
    pub async fn build(
        self,
        reactor: &Rc<Reactor>,
        disks: &[Option<Arc<Disk>>],
        create: bool,
    ) -> Result<Stack, DeviceError> {
        let children: Vec<_> = disks.iter().map(|disk| disk.clone().map(|disk| disk as Arc<dyn BlockDevice>)).collect();
        let spec = match self {
            Below::Disk | Below::Bands => return Ok(Stack { device: children[0].clone().unwrap(), built: Vec::new() }),
            Below::Parity => {
                DeviceSpec::Parity(ParityOptions { create, chunk_bytes: CHUNK_BYTES, ..ParityOptions::default() })
            }
            Below::Mirror => {
                let start_degraded = !create;
                DeviceSpec::Mirror(MirrorOptions {
                    create,
                    assume_clean: true,
                    start_degraded,
                    ..MirrorOptions::default()
                })
            }
            Below::Zones => DeviceSpec::ZoneBands(ZoneBandsOptions { create, ..ZoneBandsOptions::default() }),
            Below::Cache => DeviceSpec::FlashCache(FlashCacheOptions {
                create,
                without_cache: true,
                segment_bytes: SEGMENT_BYTES,
                ..FlashCacheOptions::default()
            }),
        };
        let mut built = Vec::new();
        let children = match self {
            Below::Zones => {
                let zones = ZonedOptions {
                    create,
                    zone_bytes: ZONE_BLOCKS * 4096,
                    active_zones_max: 14,
                    ..ZonedOptions::default()
                };
                let zoned = build(reactor, "zones", &DeviceSpec::Zoned(zones), children[1..].to_vec()).await?;
                built.push(zoned);
                vec![children[0].clone(), Some(built[0].device())]
            }
            _ => children,
        };
        built.push(build(reactor, "capacity", &spec, children).await?);
        Ok(Stack { device: built.last().unwrap().device(), built })
    }
}

impl Stack {
    /// As before a shutdown: nothing is left to repair.
    pub async fn settle(&self, reactor: &Rc<Reactor>) {
        for built in self.built.iter().rev() {
            built.settle(reactor).await.unwrap();
        }
    }

    /// Blocks that the flash cache of it has; `None` without one.
    pub fn cached_blocks(&self) -> Option<u64> {
        self.built.iter().find_map(|built| match built {
            Built::FlashCache(cache) => Some(cache.status(0).cached_blocks),
            _ => None,
        })
    }
}
