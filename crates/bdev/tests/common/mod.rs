//! A reactor for the calling thread, and places for test files.
#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

pub mod array;
pub mod below;
/// Virtual time; devices depend on nothing of the simulator but this file, in their tests.
#[path = "../../../sim/src/clock_driver.rs"]
mod clock_driver;
pub mod disk;
pub mod forge;
mod run;

pub use clock_driver::ClockDriver;
pub use run::reactor;

use bdev::conformance::{self, Options};
use bdev::{BlockDevice, FileDevice, FileDeviceOptions, Io, Lba, MemDevice, Status};
use reactor::{Reactor, ReactorConfig};
use std::rc::Rc;
use std::sync::Arc;

/// A reactor whose time passes only while it waits, and then at once.
pub fn clock_reactor() -> Rc<Reactor> {
    Reactor::new(0, ClockDriver::new(1), ReactorConfig::default())
}

pub fn mem(name: &str, blocks: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new(name, 4096, blocks, blocks * 2).unwrap())
}

pub fn mem_of(name: &str, block_size: u32, blocks: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new(name, block_size, blocks, blocks * 2).unwrap())
}

/// A directory on the workspace's file system (direct I/O, io_uring) and not in memory.
pub fn disk_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub fn file_options(dir: &tempfile::TempDir, name: &str, bytes: u64) -> FileDeviceOptions {
    let path = dir.path().join(name);
    FileDeviceOptions { create_bytes: Some(bytes), ..FileDeviceOptions::new(path.to_str().unwrap()) }
}

pub fn file(reactor: &Rc<Reactor>, dir: &tempfile::TempDir, name: &str, bytes: u64) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(reactor, name, file_options(dir, name, bytes)).unwrap())
}

/// All blocks of a device.
pub async fn copy_of(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>) -> Vec<Vec<u8>> {
    let (channel, info) = (device.open_channel(reactor).unwrap(), device.info());
    let mut blocks = Vec::new();
    for lba in 0..info.blocks {
        let bufs = [reactor.pool().alloc(info.block_size as usize).await].into_iter().collect();
        let done = channel.submit(Io::read(Lba(lba), 1, bufs)).await;
        assert_eq!(done.status, Status::Ok);
        blocks.push(done.io.bufs[0].as_slice().to_vec());
    }
    blocks
}

/// Writes them again.
pub async fn put_back(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>, blocks: &[Vec<u8>]) {
    let channel = device.open_channel(reactor).unwrap();
    for (lba, bytes) in (0..).zip(blocks) {
        let mut buf = reactor.pool().alloc(bytes.len()).await;
        buf.as_mut_slice().copy_from_slice(bytes);
        let done = channel.submit(Io::write(Lba(lba), 1, [buf].into_iter().collect())).await;
        assert_eq!(done.status, Status::Ok);
    }
}

/// Runs the whole suite.
pub fn conforms(reactor: &Rc<Reactor>, device: Arc<dyn BlockDevice>, adjust: impl FnOnce(&mut Options)) {
    let mut options = Options::new(11);
    adjust(&mut options);
    let inner = reactor.clone();
    let outcome = reactor.block_on(async move { conformance::run(&inner, &device, options).await });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
