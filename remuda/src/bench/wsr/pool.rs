//! The engine's shaped pool as a stack under test: the real thing, on the modelled drive and with its log on the modelled cache
//! device, in virtual time. What its code costs does not pass there, so it is measured first and charged to the host's core.

use super::disk::{CACHE, CacheDevice, CacheModel, Disk, DiskError, HostCore, HostCost};
use super::run::{RunError, in_world};
use super::sparse::SparseDevice;
use super::stack::{Sizes, Target};
use base::Rng;
use bdev::{BlockDevice, Op};
use engine::{CreateOptions, LogDevice, OpenOptions, Pool, PoolDevices, Shape, layout};
use reactor::{IoFuture, Reactor};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

const BLOCK: u64 = 4096;
/// Part of the volume's size that all map pages take.
const MAP_PART: u64 = 400;

/// See the module.
pub struct ShapedPool {
    volume: Disk,
    host: HostCore,
    fast: Arc<CacheDevice>,
    _pool: Arc<Pool>,
}

impl ShapedPool {
    /// Makes a pool of one shard on the drive: bands as large as superblocks, a log (with the index) as large as the caches of
    /// the other stacks, the map in memory. What the volume leaves of the drive is spare.
    pub async fn make(
        capacity: Arc<dyn BlockDevice>,
        sizes: &Sizes,
        host: HostCore,
        reactor: &Rc<Reactor>,
    ) -> Result<ShapedPool, DiskError> {
        ShapedPool::on_cache(capacity, CACHE, sizes, host, reactor).await
    }

    async fn on_cache(
        capacity: Arc<dyn BlockDevice>,
        model: CacheModel,
        sizes: &Sizes,
        host: HostCore,
        reactor: &Rc<Reactor>,
    ) -> Result<ShapedPool, DiskError> {
        let fast = Arc::new(CacheDevice::new(Arc::new(SparseDevice::new(sizes.cache_bytes)), model));
        let devices = PoolDevices { log: LogDevice::Block(fast.clone()), capacity };
        let options = CreateOptions {
            name: "shaped".to_string(),
            shape: Shape::Shaped,
            overprovision: Some(layout::OVERPROVISION_MIN),
            band_blocks: Some((sizes.superblock_bytes / BLOCK) as u32),
            shards: Some(1),
            // The log of a table that is scaled down far is smaller than those of real pools.
            tiny: true,
            ..CreateOptions::default()
        };
        let failed = |error: engine::PoolError| error.to_string();
        Pool::create(reactor, &devices, &options, 0, true).await.map_err(failed)?;
        let map_cache_bytes = Some((sizes.user_bytes / MAP_PART) as usize);
        let options = OpenOptions { map_cache_bytes, ..OpenOptions::default() };
        let pool = Pool::open(reactor, &devices, &options).await.map_err(failed)?;
        let volume = pool.create_volume(reactor, "user", sizes.user_bytes / BLOCK, 12, 0).await.map_err(failed)?;
        let volume: Arc<dyn BlockDevice> = volume;
        Ok(ShapedPool { volume: Disk::open(&volume, reactor)?, host, fast, _pool: pool })
    }
}

impl Target for ShapedPool {
    fn perform(&self, op: Op, offset: u64, bytes: u64) -> IoFuture<'_, Result<(), DiskError>> {
        IoFuture::new(async move {
            self.host.pass(bytes).await;
            self.volume.perform(op, offset, bytes).await
        })
    }

    fn fast_bytes(&self) -> u64 {
        self.fast.written_bytes()
    }
}

/// Writes under way, before and while it is measured: as many as the table's jobs have.
const DEPTH: u64 = 32;
/// Devices that take no time.
const AT_ONCE: CacheModel =
    CacheModel { occupancy_ns_min: 0, write_bytes_per_us: u64::MAX, read_bytes_per_us: u64::MAX, latency_ns: 0 };

/// CPU time of this build for a request and for each block of it: random writes of 4 KiB and of 64 KiB to a full pool whose
/// collector works, all that the pool does for them included, on devices that take no time.
pub fn measure_host_cost() -> Result<HostCost, RunError> {
    let sizes = Sizes::of(16, 64 << 10);
    let [small, large] = in_world(1, move |reactor| async move { measure(&reactor, &sizes).await })?;
    let block_ns = large.saturating_sub(small) / 15;
    Ok(HostCost { request_ns: small.saturating_sub(block_ns), block_ns, shared: true })
}

/// CPU time of writes of 4 KiB and of 64 KiB.
async fn measure(reactor: &Rc<Reactor>, sizes: &Sizes) -> Result<[u64; 2], RunError> {
    let capacity: Arc<dyn BlockDevice> = Arc::new(SparseDevice::new(sizes.user_bytes * 5 / 4));
    let free = HostCost { request_ns: 0, block_ns: 0, shared: false };
    let made = ShapedPool::on_cache(capacity, AT_ONCE, sizes, HostCore::new(free, reactor), reactor).await;
    let pool = Rc::new(made.map_err(RunError::Failed)?);
    let next = Rc::new(Cell::new(0));
    let fill = move |_: &mut Rng, units: u64| next.replace(next.get() + 1) % units;
    let random = |rng: &mut Rng, units: u64| rng.below(units);
    write(reactor, &pool, sizes, 256 << 10, sizes.user_bytes, Rc::new(fill)).await?;
    let mut costs = [0; 2];
    for (cost, bytes) in costs.iter_mut().zip([4 << 10, 64 << 10]) {
        write(reactor, &pool, sizes, bytes, sizes.user_bytes / 2, Rc::new(random)).await?;
        let total = sizes.user_bytes / 2;
        let before_ns = crate::sys::process_cpu_ns();
        write(reactor, &pool, sizes, bytes, total, Rc::new(random)).await?;
        *cost = (crate::sys::process_cpu_ns() - before_ns) / (total / bytes);
    }
    Ok(costs)
}

/// Writes `total` bytes in units of `bytes`.
async fn write(
    reactor: &Rc<Reactor>,
    pool: &Rc<ShapedPool>,
    sizes: &Sizes,
    bytes: u64,
    total: u64,
    choose: Rc<impl Fn(&mut Rng, u64) -> u64 + 'static>,
) -> Result<(), RunError> {
    let units = sizes.user_bytes / bytes;
    let lanes: Vec<_> = (0..DEPTH)
        .map(|lane| {
            let (pool, choose, mut rng) = (pool.clone(), choose.clone(), Rng::new(lane));
            reactor.spawn_join(async move {
                for _ in 0..total / bytes / DEPTH {
                    pool.perform(Op::Write, choose(&mut rng, units) * bytes, bytes).await?;
                }
                Ok(())
            })
        })
        .collect();
    for lane in lanes {
        lane.await.map_err(RunError::Failed)?;
    }
    Ok(())
}
