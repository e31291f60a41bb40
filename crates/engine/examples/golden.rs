//! Makes the golden images of `tests/golden`: a small pool with a mapped log and one with a block log, each with a
//! checkpoint, a log that has more, and a manifest of what its volumes hold.
//!
//! `cargo run -p remuda-engine --example golden -- DIRECTORY` writes `mapped.*` and `block.*` there. The files in the
//! repository are of the format's first version and stay as they are; a new version of the format adds files of its own.

#[path = "../tests/common/mod.rs"]
mod common;

use base::Rng;
use bdev::{BlockDevice, Io, Lba, Op};
use common::disk::Disk;
use common::golden::{Content, LAST, SECTOR, encode_image, encode_manifest, image_of};
use common::{block_on, reactor};
use engine::{CreateOptions, LogDevice, OpenOptions, Pool, PoolDevices, ShardTuning};
use reactor::{Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

const LOG_BLOCKS: u64 = 2048;
const CAPACITY_BLOCKS: u64 = 24 << 10;

struct Maker {
    reactor: Rc<Reactor>,
    pool: Arc<Pool>,
    volumes: Vec<Content>,
    rng: Rng,
}

impl Maker {
    async fn submit(&mut self, volume: usize, make: impl FnOnce(u64) -> Io) {
        let device = self.pool.volume(&self.volumes[volume].name).expect("made here") as Arc<dyn BlockDevice>;
        let channel = device.open_channel(&self.reactor).expect("volumes open");
        let per = (1 << self.volumes[volume].block_shift) / SECTOR as u64;
        let status = channel.submit(make(per)).await.status;
        assert!(status.is_ok(), "{status}");
    }

    /// Sectors, which are whole blocks of the volume.
    async fn write(&mut self, volume: usize, first: u64, count: u64) {
        let word = self.rng.next_u64() as u32 | 1;
        self.volumes[volume].sectors[first as usize..(first + count) as usize].fill(word);
        let bytes = self.volumes[volume].bytes(first as usize, count as usize);
        let mut buf = self.reactor.pool().alloc(bytes.len()).await;
        buf.as_mut_slice().copy_from_slice(&bytes);
        let mut bufs = SgList::new();
        bufs.push(buf);
        self.submit(volume, |per| Io::write(Lba(first / per), (count / per) as u32, bufs)).await;
    }

    async fn trim(&mut self, volume: usize, first: u64, count: u64) {
        self.volumes[volume].sectors[first as usize..(first + count) as usize].fill(0);
        self.submit(volume, |per| Io::new(Op::Unmap, Lba(first / per), (count / per) as u32)).await;
    }

    /// Writes of one block and of many, over ends of extents and slices, parts of blocks, trims of parts, blocks and
    /// extents.
    async fn work(&mut self) {
        for volume in 0..2 {
            let end = self.volumes[volume].sectors.len() as u64;
            for extent in 0..3 {
                let start = extent * 8192;
                self.write(volume, start, 8).await;
                self.write(volume, start + 64, 128).await;
                if start > 0 {
                    self.write(volume, start - 16, 32).await;
                }
                for _ in 0..4 {
                    let first = start + self.rng.below(1000) * 8;
                    let count = 8 * self.rng.between(1, 16);
                    self.write(volume, first, count.min(end - first)).await;
                }
                self.trim(volume, start + 80, 24).await;
            }
            self.write(volume, end - 8, 8).await;
        }
        for first in [3, 70, 71, 72, 8191, 8195, 16_390] {
            let count = self.rng.between(1, 5);
            self.write(1, first, count).await;
        }
        self.trim(1, 5, 3).await;
        self.trim(1, 66, 20).await;
    }
}

async fn fill(reactor: Rc<Reactor>, devices: PoolDevices) -> Vec<Content> {
    let options = CreateOptions {
        name: "golden".into(),
        shards: Some(2),
        segment_blocks: Some(96),
        volumes_max: Some(8),
        tiny: true,
        ..CreateOptions::default()
    };
    Pool::create(&reactor, &devices, &options, 1_700_000_000, true).await.expect("blank devices");
    // Nothing is destaged but what is asked for.
    let tuning = ShardTuning { idle_ns: u64::MAX / 4, ..ShardTuning::default() };
    let options = OpenOptions { tuning: Some(tuning), ..OpenOptions::default() };
    let pool = Pool::open(&reactor, &devices, &options).await.expect("made a moment ago");
    let volumes =
        vec![Content::new("large-blocks", 12, 17 * 1024 + 100), Content::new("small-blocks", 9, 3 * 1024 + 1)];
    for volume in &volumes {
        let made = pool.create_volume(&reactor, &volume.name, volume.blocks, volume.block_shift, 1_700_000_000).await;
        made.expect("room for volumes");
    }
    let gone = pool.create_volume(&reactor, "gone", 10, 12, 0).await;
    drop(gone.expect("room for volumes"));
    pool.delete_volume(&reactor, "gone").await.expect("made a moment ago");
    let mut maker = Maker { reactor: reactor.clone(), pool: pool.clone(), volumes, rng: Rng::new(1) };
    maker.work().await;
    // A slice of the other shard, and an extent that comes and goes.
    maker.write(0, 16 * 8192 + 8, 64).await;
    maker.write(0, 5 * 8192, 64).await;
    pool.settle(&reactor).await.expect("healthy devices");
    maker.work().await;
    maker.trim(0, 5 * 8192, 8192).await;
    // The last record of each shard: damage to it looks like a write that a crash has torn.
    for (volume, first) in LAST {
        maker.write(volume, first, 8).await;
    }
    pool.close(&reactor).await;
    maker.volumes
}

fn main() {
    let directory = std::env::args().nth(1).expect("usage: golden DIRECTORY");
    let scratch = tempfile::tempdir().expect("a directory for temporary files");
    let reactor = reactor();
    for name in ["mapped", "block"] {
        let (capacity, log) = (Disk::new("capacity", CAPACITY_BLOCKS), Disk::new("log", LOG_BLOCKS));
        let path = scratch.path().join("log").to_str().expect("the path is UTF-8").to_string();
        let on = match name {
            "mapped" => {
                let file = std::fs::File::create(&path).expect("a file");
                file.set_len(LOG_BLOCKS * 4096).expect("room for it");
                LogDevice::Mapped { path: path.clone(), bytes: LOG_BLOCKS * 4096, volatile_allowed: true }
            }
            _ => LogDevice::Block(log.clone()),
        };
        let devices = PoolDevices { log: on, capacity: capacity.clone() };
        let volumes = block_on(&reactor, fill(reactor.clone(), devices));
        let log = match name {
            "mapped" => image_of(&std::fs::read(&path).expect("the log")),
            _ => log.image(),
        };
        let write = |suffix: &str, bytes: &[u8]| {
            std::fs::write(format!("{directory}/{name}.{suffix}"), bytes).expect("the file can be written");
        };
        write("log", &encode_image(LOG_BLOCKS, &log));
        write("capacity", &encode_image(CAPACITY_BLOCKS, &capacity.image()));
        write("manifest", encode_manifest(&volumes).as_bytes());
    }
}
