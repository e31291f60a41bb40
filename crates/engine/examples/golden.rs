//! Makes the newest generation of the golden images of `tests/golden`: small pools of each kind, each with a checkpoint, a log
//! that has more, and a manifest of what its volumes hold.
//!
//! `cargo run -p remuda-engine --example golden -- DIRECTORY [NAME ...]` writes the files of the images with these names (all
//! of them) there: of hot pools with a mapped log and a block log, which have records of all kinds, of shaped ones on a disk, on
//! parity and on zones, of a hot one behind a flash cache and of one on a mirror; with one of them, streams of snapshots. The files in the repository stay as they are (those of the first
//! generation, without a number, are of the first programs); what is added to the format adds a generation.
//!
//! A pool has three lives here. In the first all is well, and everything comes to its place. In the second life of `mapped` and
//! `block` the place of an extent refuses writes, and a block of it has rotted, so that the extent moves and the block is lost;
//! and no root can be written, so that the log keeps the records that say so. In that of the others much is written again, so that
//! bands have what is dead, and read, so that a cache lets it in. In the third, on devices that are well, volumes get snapshots,
//! one of which goes again, and the last records are written.

#[path = "../tests/common/mod.rs"]
mod common;

use base::Rng;
use bdev::{BlockDevice, ErrorDevice, ErrorRule, Fault, Io, Lba, Op, Status};
use common::below::Below;
use common::disk::Disk;
use common::golden::{Content, LAST, SECTOR, encode_image, encode_manifest, image_of};
use common::reactor;
use common::stream::Collect;
use engine::{CreateOptions, EXTENT_BLOCKS, LogDevice, OpenOptions, Pool, PoolDevices, Shape, ShardTuning};
use reactor::{Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

const LOG_BLOCKS: u64 = 2048;
const NAMES: [&str; 7] = ["mapped-5", "block-5", "shaped-5", "parity-5", "zones-5", "warm-5", "mirror-5"];
/// The image that has streams.
const WITH_STREAMS: &str = "block-5";
/// In extent 0 of volume 0, written in the first life alone: the block that rots, by its first sector.
const ROTTEN: u64 = 1018 * 8;
/// Sectors that the second life writes one by one: more than a page of a summary has entries for.
const SMALL_WRITES: u64 = 220;

/// A file of an image: the end of its name, and what is in it.
type File = (&'static str, Vec<u8>);

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

impl Maker {
    async fn open(reactor: &Rc<Reactor>, devices: &PoolDevices, volumes: Vec<Content>, rng: Rng) -> Maker {
        // Nothing is destaged but what is asked for.
        let tuning = ShardTuning { idle_ns: u64::MAX / 4, ..ShardTuning::default() };
        let options = OpenOptions { tuning: Some(tuning), ..OpenOptions::default() };
        let pool = Pool::open(reactor, devices, &options).await.expect("made a moment ago");
        Maker { reactor: reactor.clone(), pool, volumes, rng }
    }

    async fn close(self) -> (Vec<Content>, Rng) {
        self.pool.close(&self.reactor).await;
        (self.volumes, self.rng)
    }

    /// Where an extent of a volume lies: its shard, and its first block on the capacity device.
    async fn place_of(&self, devices: &PoolDevices, volume: usize, vextent: u32) -> u64 {
        let id = self.pool.volume(&self.volumes[volume].name).expect("made here").layer();
        let audit = self.pool.audit(&self.reactor).await.expect("an open pool");
        let is_it = |owner: &&engine::ExtentOwner| (owner.volume, owner.vextent) == (id, vextent);
        let owner = audit.extents.iter().find(is_it).expect("it has been written");
        let superblock = superblock(&self.reactor, devices).await;
        let region = superblock.shard_regions(owner.shard).next().expect("every shard has a region");
        region.data_start() + owner.extent as u64 * EXTENT_BLOCKS as u64
    }

    /// The second life: see the head of this file.
    async fn move_an_extent(&mut self) {
        self.work().await;
        self.trim(0, 5 * 8192, 8192).await;
        for number in 0..SMALL_WRITES {
            // Fewer over one block than would be merged at once.
            self.write(1, 8 * (1 + number / 15) + number % 8, 1).await;
        }
        let moved = |status: &engine::PoolStatus| status.shards.iter().any(|shard| shard.lost_blocks > 0);
        while !moved(&self.pool.status(&self.reactor).await) {
            self.pool.settle(&self.reactor).await.expect_err("an extent refuses writes");
            self.reactor.sleep_ns(100_000_000).await;
        }
        self.pool.settle(&self.reactor).await.expect_err("no root can be written");
        self.volumes[0].sectors[ROTTEN as usize..][..8].fill(0);
        self.volumes[0].lost.push(ROTTEN as usize);
    }
}

impl Maker {
    /// Reads what there is, more than once: only then a cache lets it in.
    async fn read_often(&mut self) {
        for _ in 0..3 {
            for volume in 0..2 {
                let sectors = self.volumes[volume].sectors.clone();
                for first in (0..sectors.len()).step_by(8).filter(|first| sectors[*first] != 0) {
                    let mut bufs = SgList::new();
                    bufs.push(self.reactor.pool().alloc(8 * SECTOR).await);
                    self.submit(volume, |per| Io::read(Lba(first as u64 / per), 8 / per as u32, bufs)).await;
                }
            }
        }
    }

    /// The third life; its streams, by the ends of their names.
    async fn end(mut self) -> (Vec<Content>, Vec<File>) {
        let streams = self.make_layers().await;
        // The last record of each shard.
        for (volume, first) in LAST {
            self.write(volume, first, 8).await;
        }
        (self.close().await.0, streams)
    }

    async fn add(&mut self, name: &str, blocks: u64) -> usize {
        let made = self.pool.create_volume(&self.reactor, name, blocks, 12, 1_700_000_002).await;
        made.expect("room for volumes");
        self.volumes.push(Content::new(name, 12, blocks));
        self.volumes.len() - 1
    }

    async fn snapshot(&mut self, volume: usize, snapshot: &str) {
        let name = self.volumes[volume].name.clone();
        let made = self.pool.snapshot(&self.reactor, &[(&name, snapshot)], 1_700_000_003).await;
        let name = made.expect("room for snapshots")[0].name().to_string();
        let content = Content { name, ..self.volumes[volume].clone() };
        self.volumes.push(content);
    }

    async fn forget_last_snapshot(&mut self) {
        let gone = self.volumes.pop().expect("made a moment ago").name;
        self.pool.delete_snapshot(&self.reactor, &gone).await.expect("made a moment ago");
        self.pool.reap(&self.reactor).await.expect("healthy devices");
    }

    async fn export(&self, snapshot: &str, since: Option<&str>) -> Vec<u8> {
        let mut sink = Collect(Vec::new());
        self.pool.export_snapshot(&self.reactor, snapshot, since, &mut sink).await.expect("made a moment ago");
        sink.0
    }

    /// A volume with a snapshot that it differs from, as streams both, and one that has taken over what its snapshot had.
    async fn make_layers(&mut self) -> Vec<File> {
        let layered = self.add("layered", 2000).await;
        self.write(layered, 80, 160).await;
        self.write(layered, 9000, 80).await;
        self.snapshot(layered, "then").await;
        self.write(layered, 88, 16).await;
        self.trim(layered, 160, 24).await;
        self.snapshot(layered, "later").await;
        let all = self.export("layered@then", None).await;
        let since = self.export("layered@later", Some("layered@then")).await;
        self.forget_last_snapshot().await;
        let heir = self.add("heir", 1500).await;
        self.write(heir, 40, 64).await;
        self.snapshot(heir, "gone").await;
        self.forget_last_snapshot().await;
        vec![("stream", all), ("stream-since", since)]
    }
}

async fn superblock(reactor: &Rc<Reactor>, devices: &PoolDevices) -> engine::Superblock {
    let channel = devices.capacity.open_channel(reactor).expect("it opens");
    engine::read_superblocks(reactor, channel, devices.capacity.info()).await.expect("the superblock of a pool")
}

async fn create(reactor: &Rc<Reactor>, devices: &PoolDevices, shape: Shape) -> Maker {
    let options = CreateOptions {
        name: "golden".into(),
        shape,
        unit_blocks: (shape == Shape::Shaped).then_some(4),
        shards: Some(2),
        segment_blocks: Some(96),
        volumes_max: Some(8),
        tiny: true,
        ..CreateOptions::default()
    };
    Pool::create(reactor, devices, &options, 1_700_000_000, true).await.expect("blank devices");
    let volumes =
        vec![Content::new("large-blocks", 12, 17 * 1024 + 100), Content::new("small-blocks", 9, 3 * 1024 + 1)];
    let maker = Maker::open(reactor, devices, volumes, Rng::new(1)).await;
    for volume in &maker.volumes {
        let made =
            maker.pool.create_volume(reactor, &volume.name, volume.blocks, volume.block_shift, 1_700_000_000).await;
        made.expect("room for volumes");
    }
    let gone = maker.pool.create_volume(reactor, "gone", 10, 12, 0).await;
    drop(gone.expect("room for volumes"));
    maker.pool.delete_volume(reactor, "gone").await.expect("made a moment ago");
    maker
}

/// The three lives of a hot pool on a disk, with records of all kinds.
async fn fill_with_faults(reactor: Rc<Reactor>, devices: PoolDevices, disk: Arc<Disk>) -> (Vec<Content>, Vec<File>) {
    let mut maker = create(&reactor, &devices, Shape::Hot).await;
    maker.work().await;
    // A slice of the other shard, and an extent that comes and goes.
    maker.write(0, 16 * 8192 + 8, 64).await;
    maker.write(0, 5 * 8192, 64).await;
    maker.write(0, ROTTEN, 8).await;
    maker.pool.settle(&reactor).await.expect("healthy devices");
    let place = maker.place_of(&devices, 0, 0).await;
    let (volumes, rng) = maker.close().await;

    disk.flip(place + ROTTEN / 8, 77);
    let superblock = superblock(&reactor, &devices).await;
    let refuse = |first, blocks| ErrorRule {
        lba: Lba(first),
        blocks,
        ..ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))
    };
    let roots = (0..superblock.shards).flat_map(|shard| [0, 1].map(|copy| superblock.root_copy(shard, copy)));
    let rules: Vec<_> = roots.map(|root| refuse(root, 1)).chain([refuse(place, EXTENT_BLOCKS as u64)]).collect();
    let failing = ErrorDevice::new("capacity", devices.capacity.clone(), &rules, 1).expect("rules inside the device");
    let failing = PoolDevices { capacity: Arc::new(failing), ..devices.clone() };
    let mut maker = Maker::open(&reactor, &failing, volumes, rng).await;
    maker.move_an_extent().await;
    let (volumes, rng) = maker.close().await;

    let maker = Maker::open(&reactor, &devices, volumes, rng).await;
    maker.end().await
}

/// The three lives of a pool of another kind.
async fn fill(reactor: Rc<Reactor>, devices: PoolDevices, shape: Shape) -> (Vec<Content>, Vec<File>) {
    let mut maker = create(&reactor, &devices, shape).await;
    maker.work().await;
    maker.write(0, 16 * 8192 + 8, 64).await;
    maker.write(0, 5 * 8192, 64).await;
    maker.pool.settle(&reactor).await.expect("healthy devices");
    let (volumes, rng) = maker.close().await;

    let mut maker = Maker::open(&reactor, &devices, volumes, rng).await;
    maker.work().await;
    maker.trim(0, 5 * 8192, 8192).await;
    maker.pool.settle(&reactor).await.expect("healthy devices");
    maker.read_often().await;
    let (volumes, rng) = maker.close().await;

    let mut maker = Maker::open(&reactor, &devices, volumes, rng).await;
    maker.work().await;
    maker.end().await
}

/// Makes an image: its files, by the ends of their names.
fn make(name: &str, log_path: &str) -> Vec<File> {
    let (reactor, below) = (reactor(), Below::of(name));
    let log_disk = Disk::new("log", LOG_BLOCKS);
    let is_mapped = name.starts_with("mapped");
    let log = match is_mapped {
        true => {
            let file = std::fs::File::create(log_path).expect("a file");
            file.set_len(LOG_BLOCKS * 4096).expect("room for it");
            LogDevice::Mapped { path: log_path.into(), bytes: LOG_BLOCKS * 4096, volatile_allowed: true }
        }
        false => LogDevice::Block(log_disk.clone()),
    };
    let disks: Vec<_> = below.disks().iter().map(|(disk, blocks)| Disk::new(disk, *blocks)).collect();
    let children: Vec<_> = disks.iter().cloned().map(Some).collect();
    let (inner, disk) = (reactor.clone(), disks[0].clone());
    let shape = if below.is_shaped() { Shape::Shaped } else { Shape::Hot };
    let (volumes, streams) = reactor.block_on(async move {
        let stack = below.build(&inner, &children, true).await.expect("blank disks");
        let devices = PoolDevices { log, capacity: stack.device.clone() };
        let made = match below == Below::Disk {
            true => fill_with_faults(inner.clone(), devices, disk).await,
            false => fill(inner.clone(), devices, shape).await,
        };
        stack.settle(&inner).await;
        made
    });
    let log = match is_mapped {
        true => image_of(&std::fs::read(log_path).expect("the log")),
        false => log_disk.image(),
    };
    let of_disk =
        |((end, blocks), disk): (&(&'static str, u64), &Arc<Disk>)| (*end, encode_image(*blocks, &disk.image()));
    let mut files: Vec<_> = below.disks().iter().zip(&disks).map(of_disk).collect();
    files.push(("log", encode_image(LOG_BLOCKS, &log)));
    if name == WITH_STREAMS {
        files.extend(streams);
    }
    files.push(("manifest", encode_manifest(&volumes).into_bytes()));
    files
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, wanted) = arguments.split_first().expect("usage: golden DIRECTORY [NAME ...]");
    let scratch = tempfile::tempdir().expect("a directory for temporary files");
    let path = scratch.path().join("log").to_str().expect("the path is UTF-8").to_string();
    for name in NAMES.iter().filter(|name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == *name)) {
        for (end, bytes) in make(name, &path) {
            std::fs::write(format!("{directory}/{name}.{end}"), bytes).expect("the file can be written");
        }
    }
}
