//! Golden images as pools: loaded, and opened on copies.

use super::below::{Below, Stack};
use super::disk::{Disk, Image};
use super::golden::{Content, bytes_of, decode_image, decode_manifest};
use bdev::{BlockDevice, DeviceError};
use engine::{LogDevice, PoolDevices};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// An image with what its volumes hold.
pub struct Golden {
    pub name: &'static str,
    /// What the capacity device is made of.
    pub disks: Vec<Arc<Disk>>,
    pub log: Arc<Disk>,
    pub log_blocks: u64,
    pub is_mapped: bool,
    pub volumes: Vec<Content>,
    pub scratch: tempfile::TempDir,
}

pub fn golden(name: &'static str) -> Golden {
    let file = |suffix: &str| {
        let path = format!("{}/tests/golden/{name}.{suffix}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let disk = |(end, blocks): &(&'static str, u64)| {
        let (decoded_blocks, image) = decode_image(&file(end));
        assert_eq!(decoded_blocks, *blocks, "{name}.{end}");
        Disk::with(end, *blocks, image)
    };
    let (log_blocks, log) = decode_image(&file("log"));
    Golden {
        name,
        disks: Below::of(name).disks().iter().map(disk).collect(),
        log: Disk::with("log", log_blocks, log),
        log_blocks,
        is_mapped: name.starts_with("mapped"),
        volumes: decode_manifest(std::str::from_utf8(&file("manifest")).unwrap()),
        scratch: tempfile::tempdir().unwrap(),
    }
}

impl Golden {
    /// A copy of its devices, to be used up.
    pub fn devices(&self, reactor: &Rc<Reactor>) -> (PoolDevices, Stack) {
        self.devices_of(reactor, self.fork_disks()).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    pub fn fork_disks(&self) -> Vec<Option<Arc<Disk>>> {
        self.disks.iter().map(|disk| Some(disk.fork())).collect()
    }

    /// The same, on these disks.
    pub fn devices_of(
        &self,
        reactor: &Rc<Reactor>,
        disks: Vec<Option<Arc<Disk>>>,
    ) -> Result<(PoolDevices, Stack), DeviceError> {
        let (inner, below) = (reactor.clone(), Below::of(self.name));
        let stack = reactor.block_on(async move { below.build(&inner, &disks, false).await })?;
        let capacity = stack.device.clone();
        let log = match self.is_mapped {
            false => LogDevice::Block(self.log.fork()),
            true => {
                let path = self.log_path();
                std::fs::write(&path, bytes_of(self.log_blocks, &self.log.image())).unwrap();
                LogDevice::Mapped { path, bytes: self.log_blocks * 4096, volatile_allowed: true }
            }
        };
        Ok((PoolDevices { log, capacity }, stack))
    }

    fn log_path(&self) -> String {
        self.scratch.path().join("log").to_str().unwrap().to_string()
    }

    /// One of its own with the same bytes.
    pub fn fork(&self) -> Golden {
        Golden {
            disks: self.disks.iter().map(|disk| disk.fork()).collect(),
            log: self.log.fork(),
            volumes: self.volumes.clone(),
            scratch: tempfile::tempdir().unwrap(),
            ..*self
        }
    }

    /// The bytes of the log device, and of the disks.
    pub fn images(&self) -> Vec<Image> {
        std::iter::once(&self.log).chain(&self.disks).map(|disk| disk.image()).collect()
    }

    /// The same pool on devices with other bytes, in the order of [`Golden::images`].
    pub fn with_images(&self, images: &[Image]) -> Golden {
        let with = |disk: &Disk, image: &Image| Disk::with(disk.name(), disk.info().blocks, image.clone());
        let disks = self.disks.iter().zip(&images[1..]).map(|(disk, image)| with(disk, image)).collect();
        Golden { disks, log: with(&self.log, &images[0]), ..self.fork() }
    }
}
