//! A reactor for the calling thread, and places for test files.
#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

mod run;

pub use run::reactor;

use bdev::conformance::{self, Options};
use bdev::{BlockDevice, FileDevice, FileDeviceOptions, MemDevice};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

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
