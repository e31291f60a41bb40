//! A reactor on the Linux driver for the calling thread, and places for test files.
#![allow(dead_code, reason = "each test file uses its part")]

use bdev::conformance::{self, Options};
use bdev::{BlockDevice, FileDevice, FileDeviceOptions, MemDevice};
use reactor::linux::LinuxDriver;
use reactor::{Reactor, ReactorConfig};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

pub fn reactor() -> Rc<Reactor> {
    let driver = LinuxDriver::new().expect("io_uring is available");
    Reactor::new(0, Rc::new(driver), ReactorConfig::default())
}

/// Runs `future` on `reactor` to its end.
pub fn block_on<T: 'static>(reactor: &Rc<Reactor>, future: impl Future<Output = T> + 'static) -> T {
    let result = Rc::new(std::cell::RefCell::new(None));
    let slot = result.clone();
    reactor.spawn(async move {
        let value = future.await;
        *slot.borrow_mut() = Some(value);
    });
    loop {
        if reactor.turn() == 0 {
            reactor.sleep_turn();
        }
        if let Some(value) = result.borrow_mut().take() {
            return value;
        }
    }
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

/// Runs the whole suite.
pub fn conforms(reactor: &Rc<Reactor>, device: Arc<dyn BlockDevice>, adjust: impl FnOnce(&mut Options)) {
    let mut options = Options::new(11);
    adjust(&mut options);
    let inner = reactor.clone();
    let outcome = block_on(reactor, async move { conformance::run(&inner, &device, options).await });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
