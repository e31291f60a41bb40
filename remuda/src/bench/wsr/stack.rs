//! What a row is run on. [`build`] is the one place that knows the stacks: whatever gives a [`Target`] can be measured, and any
//! block device does through [`DeviceTarget`].

use super::disk::{CACHE, CacheDevice, Disk, DiskError};
use super::host::{Cores, HostCore, HostCost};
use super::ocf::Ocf;
use super::pool::{PoolPlan, ShapedPool};
use super::shaping::{self, Shaping};
use super::sparse::SparseDevice;
use bdev::{
    BlockDevice, DeviceInfo, Extent, LinearDevice, MemDevice, ModelSsdDevice, NullDevice, Op, SsdModel,
    ZoneBandsDevice, ZoneBandsOptions, ZonedDevice, ZonedOptions,
};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;

/// What takes reads and writes of whole blocks.
pub trait Target {
    fn perform(&self, op: Op, offset: u64, bytes: u64) -> IoFuture<'_, Result<(), DiskError>>;

    /// Bytes written to a cache that keeps no data so far.
    fn fast_bytes(&self) -> u64 {
        0
    }
}

/// A block device as it is, behind a host that takes its time.
pub struct DeviceTarget {
    pub disk: Disk,
    pub host: HostCore,
    pub reactor: Rc<Reactor>,
}

impl Target for DeviceTarget {
    fn perform(&self, op: Op, offset: u64, bytes: u64) -> IoFuture<'_, Result<(), DiskError>> {
        IoFuture::new(async move {
            self.host.pass(&self.reactor, bytes).await;
            self.disk.perform(op, offset, bytes).await
        })
    }
}

/// The columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Column {
    /// The drive alone
    Drive,
    /// A write-back cache in place
    InPlace,
    /// The policy of shaping, as a model
    #[value(name = "policy")]
    Shaping,
    /// The engine's shaped pool
    Pool,
}

impl Column {
    pub const ALL: [Column; 4] = [Column::Drive, Column::InPlace, Column::Shaping, Column::Pool];

    pub fn name(self) -> &'static str {
        match self {
            Column::Drive => "QLC alone",
            Column::InPlace => "in-place cache",
            Column::Shaping => "shaping (policy model)",
            Column::Pool => "shaped pool",
        }
    }

    /// The column of the published table that it stands beside.
    pub fn published(self) -> usize {
        match self {
            Column::Drive => 0,
            Column::InPlace => 1,
            Column::Shaping | Column::Pool => 2,
        }
    }

    /// By default: what fits the published rates of these stacks. That of the pool is measured.
    pub fn host_cost(self) -> HostCost {
        let (request_ns, block_ns, cores) = match self {
            Column::Drive => (1_000, 0, Cores::Unlimited),
            Column::InPlace => (5_000, 100, Cores::Shared(1)),
            Column::Shaping | Column::Pool => (1_200, 100, Cores::Shared(1)),
        };
        HostCost { request_ns, block_ns, band_block_ns: 0, cores }
    }
}

/// How much flash there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Setting {
    /// As published: a drive with 10 % spare flash; shaping gets one that is a quarter larger and leaves that unused
    Published,
    /// The same raw flash for all, 1.375 times the user's bytes: as spare flash of the drive, as zones that the host owns, or as
    /// the pool's on a drive that keeps write streams apart
    #[value(name = "equal")]
    EqualFlash,
    /// 1.10 times the user's bytes for all: as spare flash of the drive, or as zones that the host owns, the pool's too
    Zones,
    /// As zones, with 1.375 times the user's bytes
    EqualZones,
}

impl Setting {
    pub const ALL: [Setting; 4] = [Setting::Published, Setting::EqualFlash, Setting::Zones, Setting::EqualZones];

    pub fn name(self) -> &'static str {
        match self {
            Setting::Published => "as published",
            Setting::EqualFlash => "equal flash",
            Setting::Zones => "zones",
            Setting::EqualZones => "equal zones",
        }
    }

    /// Raw flash of a drive alone for each thousand bytes of the user's.
    fn raw_permille(self) -> u64 {
        match self {
            Setting::Published | Setting::Zones => 1100,
            Setting::EqualFlash | Setting::EqualZones => 1375,
        }
    }

    /// What shapes writes has zones.
    fn is_zoned(self) -> bool {
        matches!(self, Setting::Zones | Setting::EqualZones)
    }
}

/// Sizes of everything, a part of the full ones so that their numbers stay.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub user_bytes: u64,
    pub superblock_bytes: u64,
    pub chunk_bytes: u64,
    pub cache_bytes: u64,
    /// Lines that the in-place cache keeps clean or free.
    pub low_lines: usize,
    pub unit_bytes: u64,
    /// Zones of the third and fourth setting: small enough that what a pool keeps free is a small part of the tenth that is spare.
    pub zone_bytes: u64,
}

/// A page on each of the drive's dies: zones of less would not use them all.
const ZONE_BYTES_MIN: u64 = 4 << 20;

impl Sizes {
    /// A `scale`-th of 16 GiB.
    pub fn of(scale: u64, unit_bytes: u64) -> Sizes {
        let user_bytes = (16 << 30) / scale;
        let chunk_bytes = (16 << 20) / scale;
        Sizes {
            user_bytes,
            superblock_bytes: (64 << 20) / scale,
            chunk_bytes,
            cache_bytes: user_bytes / 20 / chunk_bytes * chunk_bytes,
            low_lines: (2048 / scale) as usize,
            unit_bytes,
            zone_bytes: ((16 << 20) / scale).max(ZONE_BYTES_MIN),
        }
    }

    /// Less for smaller superblocks, so that erases take the same part of the time.
    fn erase_ns(superblock_bytes: u64) -> u64 {
        100_000 * (superblock_bytes >> 10) / (64 << 10)
    }
}

/// A stack under test.
pub struct Stack {
    pub target: Rc<dyn Target>,
    pub drive: Arc<ModelSsdDevice>,
    pub raw_bytes: u64,
    pub dies: u32,
    pub host: HostCore,
    /// The cache device of a pool.
    fast: Option<Arc<CacheDevice>>,
}

impl Stack {
    /// Bytes written to the cache device so far.
    pub fn fast_bytes(&self) -> u64 {
        self.fast.as_ref().map_or(self.target.fast_bytes(), |fast| fast.written_bytes())
    }
}

const BLOCK: u32 = 4096;
/// Write streams of the pool, beside what it writes of itself.
const POOL_STREAMS: u16 = 2;
/// What such a drive needs: an open superblock for each stream, the default one and its collector, and free ones.
const WORKING_SUPERBLOCKS: u64 = 11;
/// Where zones begin on a device below them that is not tiny.
const TABLE_BYTES: u64 = 1 << 20;
/// What a pool on zones writes in place beside its bands: superblocks, catalog, journals.
const HEAD_BYTES: u64 = 16 << 20;

/// Builds the stack of a column. Drives keep no data, but for the pool, which reads back what it has written.
pub async fn build(
    column: Column,
    setting: Setting,
    sizes: &Sizes,
    host: HostCost,
    reinsertion: Option<u32>,
    reactor: &Rc<Reactor>,
) -> Result<Stack, DiskError> {
    let host = HostCore::new(host);
    let raw_equal = sizes.user_bytes * 11 / 8;
    let (drive, raw_bytes) = match (column, setting) {
        (Column::Drive | Column::InPlace, _) => plain_drive(sizes, sizes.user_bytes, setting.raw_permille())?,
        (Column::Shaping, Setting::Published) => plain_drive(sizes, sizes.user_bytes * 5 / 4, 1100)?,
        (Column::Pool, Setting::Published) => {
            let exported = sizes.user_bytes * 5 / 4;
            drive_on(Arc::new(SparseDevice::new(exported)), sizes, exported / 1000 * 1100, 0)?
        }
        (Column::Shaping, Setting::EqualFlash) => {
            zoned_drive(null("data", raw_equal)?, sizes.superblock_bytes, raw_equal, reactor).await?
        }
        (Column::Pool, Setting::EqualFlash) => streams_drive(sizes, raw_equal)?,
        (Column::Shaping | Column::Pool, Setting::Zones | Setting::EqualZones) => {
            // One more for the label of what puts the zones behind a head.
            let zones = (sizes.user_bytes * setting.raw_permille() / 1000).div_ceil(sizes.zone_bytes) + 1;
            let raw = zones * sizes.zone_bytes;
            let data = if column == Column::Pool { Arc::new(SparseDevice::new(raw)) } else { null("data", raw)? };
            zoned_drive(data, sizes.zone_bytes, raw, reactor).await?
        }
    };
    let device: Arc<dyn BlockDevice> = drive.clone();
    let disk = || Disk::open(&device, reactor);
    let mut pool_cache = None;
    let target: Rc<dyn Target> = match column {
        Column::Drive => Rc::new(DeviceTarget { disk: disk()?, host: host.clone(), reactor: reactor.clone() }),
        Column::InPlace => {
            let lines = (sizes.cache_bytes / u64::from(BLOCK)) as usize;
            let fast = Rc::new(cache(sizes, reactor)?);
            Rc::new(Ocf::new(lines, sizes.low_lines, Rc::new(disk()?), fast, host.clone(), reactor))
        }
        Column::Pool => {
            let head_bytes = if setting.is_zoned() { HEAD_BYTES } else { 0 };
            let data = Arc::new(SparseDevice::new(sizes.cache_bytes + head_bytes));
            let fast = Arc::new(CacheDevice::new(data, CACHE));
            pool_cache = Some(fast.clone());
            let plan = match setting.is_zoned() {
                true => pool_on_zones(fast, device.clone(), sizes, reinsertion, reactor).await?,
                false => PoolPlan {
                    log: fast,
                    capacity: device.clone(),
                    user_bytes: sizes.user_bytes,
                    reinsertion,
                    band_bytes: Some(superblocks_of_band(&device.info()) * sizes.superblock_bytes),
                },
            };
            Rc::new(ShapedPool::make(plan, host.clone(), reactor).await?)
        }
        Column::Shaping => {
            let blocks = |bytes: u64| (bytes / u64::from(BLOCK)) as u32;
            let info = device.info();
            let zone_bytes = info.zoned.map(|zoned| zoned.zone_blocks * u64::from(BLOCK));
            let band_bytes = zone_bytes.unwrap_or(sizes.superblock_bytes);
            let shape = shaping::Shape {
                blocks: blocks(sizes.user_bytes),
                bands: (info.bytes() / band_bytes) as u32,
                band_blocks: blocks(band_bytes),
                chunks: (sizes.cache_bytes / sizes.chunk_bytes) as u32,
                chunk_blocks: blocks(sizes.chunk_bytes),
                zone_bytes,
                cost_benefit: true,
            };
            Rc::new(Shaping::new(shape, Rc::new(disk()?), Rc::new(cache(sizes, reactor)?), host.clone(), reactor))
        }
    };
    let dies = SsdModel::qlc(sizes.user_bytes, 0).dies;
    Ok(Stack { target, drive, raw_bytes, dies, host, fast: pool_cache })
}

/// Superblocks in a band of the pool. A drive that keeps streams apart has each band in a superblock of its own; where others begin,
/// the host does not know, and of two superblocks a band has one for itself.
fn superblocks_of_band(drive: &DeviceInfo) -> u64 {
    if drive.streams > 0 { 1 } else { 2 }
}

/// A pool whose bands are the zones of a drive. Its head lies behind the log, on the same cache device.
async fn pool_on_zones(
    fast: Arc<CacheDevice>,
    zoned: Arc<dyn BlockDevice>,
    sizes: &Sizes,
    reinsertion: Option<u32>,
    reactor: &Rc<Reactor>,
) -> Result<PoolPlan, DiskError> {
    let part = |name: &str, start: u64, bytes: u64| {
        let extent = Extent { child: 0, start: start / u64::from(BLOCK), blocks: bytes / u64::from(BLOCK) };
        let made = LinearDevice::new(name, vec![fast.clone()], vec![extent]);
        made.map(|device| Arc::new(device) as Arc<dyn BlockDevice>).map_err(|error| error.to_string())
    };
    let log_bytes = sizes.cache_bytes / u64::from(BLOCK) * u64::from(BLOCK);
    let (log, head) = (part("log", 0, log_bytes)?, part("head", log_bytes, HEAD_BYTES)?);
    let options = ZoneBandsOptions { create: true, ..ZoneBandsOptions::default() };
    let bands = ZoneBandsDevice::open(reactor, "bands", head, zoned, &options).await;
    let capacity = Arc::new(bands.map_err(|error| error.to_string())?);
    Ok(PoolPlan { log, capacity, user_bytes: sizes.user_bytes, band_bytes: None, reinsertion })
}

fn null(name: &str, bytes: u64) -> Result<Arc<dyn BlockDevice>, DiskError> {
    let made = NullDevice::new(name, BLOCK, bytes / u64::from(BLOCK), false);
    made.map(|device| Arc::new(device) as Arc<dyn BlockDevice>).map_err(|error| error.to_string())
}

fn cache(sizes: &Sizes, reactor: &Rc<Reactor>) -> Result<Disk, DiskError> {
    let device: Arc<dyn BlockDevice> = Arc::new(CacheDevice::new(null("cache", sizes.cache_bytes)?, CACHE));
    Disk::open(&device, reactor)
}

/// A drive without zones, without data and with `raw_permille` of what it exports as flash.
fn plain_drive(sizes: &Sizes, exported_bytes: u64, raw_permille: u64) -> Result<(Arc<ModelSsdDevice>, u64), DiskError> {
    drive_on(null("data", exported_bytes)?, sizes, exported_bytes / 1000 * raw_permille, 0)
}

/// A drive that gives all of its flash to the host but for what it works with, and keeps as many write streams apart as the pool has.
fn streams_drive(sizes: &Sizes, raw_bytes: u64) -> Result<(Arc<ModelSsdDevice>, u64), DiskError> {
    let exported = raw_bytes - WORKING_SUPERBLOCKS * sizes.superblock_bytes;
    drive_on(Arc::new(SparseDevice::new(exported)), sizes, raw_bytes, POOL_STREAMS)
}

fn drive_on(
    data: Arc<dyn BlockDevice>,
    sizes: &Sizes,
    raw_bytes: u64,
    streams: u16,
) -> Result<(Arc<ModelSsdDevice>, u64), DiskError> {
    let model = SsdModel {
        raw_bytes,
        superblock_bytes: sizes.superblock_bytes,
        unit_bytes: sizes.unit_bytes,
        erase_ns: Sizes::erase_ns(sizes.superblock_bytes),
        streams,
        ..SsdModel::qlc(data.info().bytes(), 0)
    };
    let made = ModelSsdDevice::new("qlc", data, model);
    Ok((Arc::new(made.map_err(|error| error.to_string())?), raw_bytes))
}

/// A drive whose flash is all in zones of a superblock; `data` keeps what is in them, or does not.
async fn zoned_drive(
    data: Arc<dyn BlockDevice>,
    zone_bytes: u64,
    raw_bytes: u64,
    reactor: &Rc<Reactor>,
) -> Result<(Arc<ModelSsdDevice>, u64), DiskError> {
    // The table of the zones is kept in any case.
    let table = MemDevice::new("table", BLOCK, TABLE_BYTES / u64::from(BLOCK), 0).map_err(|error| error.to_string())?;
    let extent = |child, bytes: u64| Extent { child, start: 0, blocks: bytes / u64::from(BLOCK) };
    let extents = vec![extent(0, TABLE_BYTES), extent(1, raw_bytes)];
    let children: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(table), data];
    let child = Arc::new(LinearDevice::new("flash", children, extents).map_err(|error| error.to_string())?);
    let options = ZonedOptions { create: true, zone_bytes, ..ZonedOptions::default() };
    let zoned = ZonedDevice::open(reactor, "zones", child, &options).await.map_err(|error| error.to_string())?;
    let zones = zoned.zones().len() as u64;
    let model = SsdModel { erase_ns: Sizes::erase_ns(zone_bytes), ..SsdModel::qlc_zoned(zones, zone_bytes) };
    let made = ModelSsdDevice::new("qlc", Arc::new(zoned), model);
    Ok((Arc::new(made.map_err(|error| error.to_string())?), raw_bytes))
}
