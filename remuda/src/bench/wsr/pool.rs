//! The engine's shaped pool as a stack under test: the real thing, on the modelled drive and with its log on the modelled cache
//! device, in virtual time. What its code costs does not pass there, so it is measured first ([`cost`](super::cost)) and charged to the
//! host's cores: one for each shard.

use super::disk::{Disk, DiskError};
use super::host::{HostCore, HostedDevice};
use super::stack::Target;
use bdev::{BlockDevice, Op};
use engine::{CreateOptions, LogDevice, OpenOptions, Pool, PoolDevices, PoolVolume, Shape, layout};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;

const BLOCK: u64 = 4096;
/// Part of the volume's size that all map pages take.
const MAP_PART: u64 = 400;
/// The pool deals slices of volumes out to its shards.
const SLICE_BYTES: u64 = 64 << 20;
/// Volumes that it has room for; it has one.
const VOLUMES: u32 = 16;

/// What a pool is made of.
pub struct PoolPlan {
    /// For the log, and the index in it.
    pub log: Arc<dyn BlockDevice>,
    pub capacity: Arc<dyn BlockDevice>,
    pub user_bytes: u64,
    /// None where zones are the bands.
    pub band_bytes: Option<u64>,
    /// As `reinsertion` of a pool's configuration.
    pub reinsertion: Option<u32>,
}

/// See the module.
pub struct ShapedPool {
    volume: Disk,
    /// The shard of the volume's first slice, and how many shards there are.
    first_shard: u64,
    host: HostCore,
    pool: Arc<Pool>,
    reactor: Rc<Reactor>,
}

impl ShapedPool {
    /// Makes a pool of as many shards as its host has cores: its map in memory, and what the volume leaves of the drive spare.
    pub async fn make(plan: PoolPlan, host: HostCore, reactor: &Rc<Reactor>) -> Result<ShapedPool, DiskError> {
        let shards = host.cores();
        let capacity = Arc::new(HostedDevice::new(plan.capacity, host.clone()));
        let devices = PoolDevices { log: LogDevice::Block(plan.log), capacity };
        let options = CreateOptions {
            name: "shaped".to_string(),
            shape: Shape::Shaped,
            overprovision: Some(layout::OVERPROVISION_MIN),
            band_blocks: plan.band_bytes.map(|bytes| (bytes / BLOCK) as u32),
            shards: Some(shards),
            volumes_max: Some(VOLUMES),
            // The log of a table that is scaled down far is smaller than those of real pools.
            tiny: true,
            ..CreateOptions::default()
        };
        let failed = |error: engine::PoolError| error.to_string();
        Pool::create(reactor, &devices, &options, 0, true).await.map_err(failed)?;
        let map_cache_bytes = Some((plan.user_bytes / MAP_PART) as usize);
        let options = OpenOptions { map_cache_bytes, reinsertion_percent: plan.reinsertion, ..OpenOptions::default() };
        let pool = Pool::open(reactor, &devices, &options).await.map_err(failed)?;
        let volume = pool.create_volume(reactor, "user", plan.user_bytes / BLOCK, 12, 0).await.map_err(failed)?;
        let first_shard = first_shard(&volume, shards);
        let volume: Arc<dyn BlockDevice> = volume;
        let volume = Disk::open(&volume, reactor)?;
        Ok(ShapedPool { volume, first_shard, host, pool, reactor: reactor.clone() })
    }

    /// Bytes written to its bands so far.
    pub async fn band_bytes(&self, reactor: &Rc<Reactor>) -> u64 {
        self.pool.status(reactor).await.shards.iter().map(|shard| shard.bands.write_bytes).sum()
    }
}

/// Slices go round the shards, beginning with one that depends on the volume.
fn first_shard(volume: &PoolVolume, shards: u16) -> u64 {
    u64::from(volume.layer()) % u64::from(shards)
}

impl Target for ShapedPool {
    fn perform(&self, op: Op, offset: u64, bytes: u64) -> IoFuture<'_, Result<(), DiskError>> {
        IoFuture::new(async move {
            let shard = self.first_shard + offset / SLICE_BYTES;
            self.host.pass_on(&self.reactor, shard, bytes).await;
            self.volume.perform(op, offset, bytes).await
        })
    }
}
