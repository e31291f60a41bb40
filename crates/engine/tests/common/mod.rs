//! Pools on memory and on files.
#![allow(dead_code, unused_imports, reason = "examples use it too, each its part")]

#[path = "../../../bdev/tests/common/below.rs"]
pub mod below;
pub mod beside;
/// Virtual time; the engine depends on nothing of the simulator but this file, in its tests.
#[path = "../../../sim/src/clock_driver.rs"]
mod clock_driver;
mod closed;
#[path = "../../../bdev/tests/common/disk.rs"]
pub mod disk;
#[path = "../../../bdev/tests/common/forge.rs"]
pub mod forge;
pub mod golden;
pub mod images;
pub mod layered;
#[path = "../../../bdev/tests/common/run.rs"]
mod run;
pub mod seals;
pub mod store;
pub mod stream;
pub mod tank;
pub mod used_up;

pub use clock_driver::ClockDriver;
pub use closed::ClosedAtEnd;

use bdev::{BlockDevice, Io, Lba, MemDevice};
use engine::{CreateOptions, LogDevice, OpenOptions, Pool, PoolDevices, PoolError, Shape};
use reactor::{Reactor, ReactorConfig, SgList};
use std::rc::Rc;
use std::sync::Arc;

pub fn mem(name: &str, block_size: u32, bytes: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new(name, block_size, bytes / block_size as u64, 0).unwrap())
}

pub fn reactor() -> ClosedAtEnd {
    ClosedAtEnd(run::reactor())
}

/// A reactor whose time passes only while it waits, and then at once.
pub fn clock_reactor() -> ClosedAtEnd {
    ClosedAtEnd(Reactor::new(0, ClockDriver::new(1), ReactorConfig::default()))
}

/// A log in memory and a capacity device in memory.
pub fn devices(block_size: u32) -> PoolDevices {
    let log = LogDevice::Block(mem("log", block_size, 8 << 20));
    PoolDevices { log, capacity: mem("capacity", block_size, 96 << 20) }
}

/// The same with a log that is stored into.
pub fn mapped_devices(directory: &tempfile::TempDir) -> PoolDevices {
    let path = directory.path().join("log").to_str().unwrap().to_string();
    std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    let log = LogDevice::Mapped { path, bytes: 8 << 20, volatile_allowed: true };
    PoolDevices { log, capacity: mem("capacity", 4096, 96 << 20) }
}

pub fn options(shards: u16) -> CreateOptions {
    CreateOptions {
        name: "pool".into(),
        shards: Some(shards),
        segment_blocks: Some(96),
        volumes_max: Some(8),
        tiny: true,
        ..CreateOptions::default()
    }
}

pub async fn create(reactor: Rc<Reactor>, devices: PoolDevices, shards: u16) -> Result<(), PoolError> {
    Pool::create(&reactor, &devices, &options(shards), 0, false).await
}

pub async fn open(reactor: Rc<Reactor>, devices: PoolDevices) -> Result<Arc<Pool>, PoolError> {
    Pool::open(&reactor, &devices, &OpenOptions::default()).await
}

/// As [`options`], of a shaped pool.
pub fn shaped(shards: u16) -> CreateOptions {
    CreateOptions { shape: Shape::Shaped, unit_blocks: Some(4), ..options(shards) }
}

/// A new pool, open, on devices that may hold anything, and a volume 'v' of `blocks` blocks of 4 KiB in it.
pub async fn pool_with_volume(
    reactor: &Rc<Reactor>,
    devices: PoolDevices,
    shards: u16,
    blocks: u64,
    block_shift: u16,
) -> (Arc<Pool>, Arc<dyn BlockDevice>) {
    Pool::create(reactor, &devices, &options(shards), 0, true).await.unwrap();
    let pool = open(reactor.clone(), devices).await.unwrap();
    let volume = pool.create_volume(reactor, "v", blocks, block_shift, 0).await.unwrap();
    (pool, volume)
}

/// One block of `value` to or from a device.
pub async fn write(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>, lba: u64, value: u8) -> bdev::Status {
    let channel = device.open_channel(reactor).unwrap();
    let mut buf = reactor.pool().alloc(device.info().block_size as usize).await;
    buf.as_mut_slice().fill(value);
    channel.submit(Io::write(Lba(lba), 1, one(buf))).await.status
}

pub async fn read(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>, lba: u64) -> Result<u8, bdev::Status> {
    let channel = device.open_channel(reactor).unwrap();
    let buf = reactor.pool().alloc(device.info().block_size as usize).await;
    let done = channel.submit(Io::read(Lba(lba), 1, one(buf))).await;
    done.status.check()?;
    let bytes = done.io.bufs[0].as_slice();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {lba} is mixed");
    Ok(bytes[0])
}

pub fn one(buf: reactor::Buf) -> SgList {
    let mut list = SgList::new();
    list.push(buf);
    list
}
