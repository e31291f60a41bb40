//! What a row is run on. [`build`] is the one place that knows the stacks: whatever gives a [`Target`] can be measured, and any
//! block device does through [`DeviceTarget`].

use super::disk::{CACHE, CacheDevice, Disk, DiskError, HostCore, HostCost};
use super::ocf::Ocf;
use super::pool::ShapedPool;
use super::shaping::{self, Shaping};
use super::sparse::SparseDevice;
use bdev::{
    BlockDevice, Extent, LinearDevice, MemDevice, ModelSsdDevice, NullDevice, Op, SsdModel, ZonedDevice, ZonedOptions,
};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;

/// What takes reads and writes of whole blocks.
pub trait Target {
    fn perform(&self, op: Op, offset: u64, bytes: u64) -> IoFuture<'_, Result<(), DiskError>>;

    /// Bytes written to the cache device so far.
    fn fast_bytes(&self) -> u64 {
        0
    }
}

/// A block device as it is, behind a host that takes its time.
pub struct DeviceTarget {
    pub disk: Disk,
    pub host: HostCore,
}

impl Target for DeviceTarget {
    fn perform(&self, op: Op, offset: u64, bytes: u64) -> IoFuture<'_, Result<(), DiskError>> {
        IoFuture::new(async move {
            self.host.pass(bytes).await;
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
        match self {
            Column::Drive => HostCost { request_ns: 1_000, block_ns: 0, shared: false },
            Column::InPlace => HostCost { request_ns: 5_000, block_ns: 100, shared: true },
            Column::Shaping | Column::Pool => HostCost { request_ns: 1_200, block_ns: 100, shared: true },
        }
    }
}

/// How much flash there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// As published: a drive with 10 % spare flash; shaping gets one that is a quarter larger and leaves that unused.
    Published,
    /// The same raw flash for all, 1.375 times the user's bytes: as spare flash of the drive, as zones that the host owns, or as
    /// the pool's on a drive that keeps write streams apart.
    EqualFlash,
}

impl Setting {
    pub const ALL: [Setting; 2] = [Setting::Published, Setting::EqualFlash];

    pub fn name(self) -> &'static str {
        match self {
            Setting::Published => "as published",
            Setting::EqualFlash => "equal flash",
        }
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
    /// Less for smaller superblocks, so that erases take the same part of the time.
    pub erase_ns: u64,
}

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
            erase_ns: 100_000 / scale,
        }
    }
}

/// A stack under test.
pub struct Stack {
    pub target: Rc<dyn Target>,
    pub drive: Arc<ModelSsdDevice>,
    pub raw_bytes: u64,
}

const BLOCK: u32 = 4096;
/// Write streams of the pool, beside what it writes of itself.
const POOL_STREAMS: u16 = 3;
/// What such a drive needs: an open superblock for each stream, the default one and its collector, and free ones.
const WORKING_SUPERBLOCKS: u64 = 12;
/// Where zones begin on a device below them that is not tiny.
const TABLE_BYTES: u64 = 1 << 20;

/// Builds the stack of a column. Drives keep no data, but for the pool, which reads back what it has written.
pub async fn build(
    column: Column,
    setting: Setting,
    sizes: &Sizes,
    host: HostCost,
    reactor: &Rc<Reactor>,
) -> Result<Stack, DiskError> {
    let host = HostCore::new(host, reactor);
    let raw_equal = sizes.user_bytes * 11 / 8;
    let (drive, raw_bytes) = match (column, setting) {
        (Column::Drive | Column::InPlace, Setting::Published) => plain_drive(sizes, sizes.user_bytes, 1100)?,
        (Column::Drive | Column::InPlace, Setting::EqualFlash) => plain_drive(sizes, sizes.user_bytes, 1375)?,
        (Column::Shaping, Setting::Published) => plain_drive(sizes, sizes.user_bytes * 5 / 4, 1100)?,
        (Column::Pool, Setting::Published) => {
            let exported = sizes.user_bytes * 5 / 4;
            drive_on(Arc::new(SparseDevice::new(exported)), sizes, exported / 1000 * 1100, 0)?
        }
        (Column::Shaping, Setting::EqualFlash) => zoned_drive(sizes, raw_equal, reactor).await?,
        (Column::Pool, Setting::EqualFlash) => streams_drive(sizes, raw_equal)?,
    };
    let device: Arc<dyn BlockDevice> = drive.clone();
    let disk = || Disk::open(&device, reactor);
    let target: Rc<dyn Target> = match column {
        Column::Drive => Rc::new(DeviceTarget { disk: disk()?, host }),
        Column::InPlace => {
            let lines = (sizes.cache_bytes / u64::from(BLOCK)) as usize;
            let fast = Rc::new(cache(sizes, reactor)?);
            Rc::new(Ocf::new(lines, sizes.low_lines, Rc::new(disk()?), fast, host, reactor))
        }
        Column::Pool => Rc::new(ShapedPool::make(device.clone(), sizes, host, reactor).await?),
        Column::Shaping => {
            let blocks = |bytes: u64| (bytes / u64::from(BLOCK)) as u32;
            let info = device.info();
            let zone_bytes = info.zoned.map(|zoned| zoned.zone_blocks * u64::from(BLOCK));
            let shape = shaping::Shape {
                blocks: blocks(sizes.user_bytes),
                bands: (info.bytes() / sizes.superblock_bytes) as u32,
                band_blocks: blocks(sizes.superblock_bytes),
                chunks: (sizes.cache_bytes / sizes.chunk_bytes) as u32,
                chunk_blocks: blocks(sizes.chunk_bytes),
                zone_bytes,
                cost_benefit: true,
            };
            Rc::new(Shaping::new(shape, Rc::new(disk()?), Rc::new(cache(sizes, reactor)?), host, reactor))
        }
    };
    Ok(Stack { target, drive, raw_bytes })
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
        erase_ns: sizes.erase_ns,
        streams,
        ..SsdModel::qlc(data.info().bytes(), 0)
    };
    let made = ModelSsdDevice::new("qlc", data, model);
    Ok((Arc::new(made.map_err(|error| error.to_string())?), raw_bytes))
}

/// A drive whose flash is all in zones of a superblock.
async fn zoned_drive(
    sizes: &Sizes,
    raw_bytes: u64,
    reactor: &Rc<Reactor>,
) -> Result<(Arc<ModelSsdDevice>, u64), DiskError> {
    // The table of the zones is kept, what is in them is not.
    let table = MemDevice::new("table", BLOCK, TABLE_BYTES / u64::from(BLOCK), 0).map_err(|error| error.to_string())?;
    let extent = |child, bytes: u64| Extent { child, start: 0, blocks: bytes / u64::from(BLOCK) };
    let extents = vec![extent(0, TABLE_BYTES), extent(1, raw_bytes)];
    let children: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(table), null("data", raw_bytes)?];
    let child = Arc::new(LinearDevice::new("flash", children, extents).map_err(|error| error.to_string())?);
    let options = ZonedOptions { create: true, zone_bytes: sizes.superblock_bytes, ..ZonedOptions::default() };
    let zoned = ZonedDevice::open(reactor, "zones", child, &options).await.map_err(|error| error.to_string())?;
    let zones = zoned.zones().len() as u64;
    let model = SsdModel { erase_ns: sizes.erase_ns, ..SsdModel::qlc_zoned(zones, sizes.superblock_bytes) };
    let made = ModelSsdDevice::new("qlc", Arc::new(zoned), model);
    Ok((Arc::new(made.map_err(|error| error.to_string())?), raw_bytes))
}
