//! A whole small pool on devices in memory, with one volume.

use super::disk::Disk;
use bdev::{BlockDevice, Io, Lba, Status};
use engine::{
    CheckOptions, CheckReport, CreateOptions, LogDevice, OpenOptions, Pool, PoolDevices, PoolError, PoolVolume,
};
use engine::{Shape, ShardTuning, Superblock};
use reactor::{Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

pub const SHARDS: u16 = 2;
pub const SEGMENT_BLOCKS: u32 = 80;
/// Blocks of the volume: three slices.
pub const VOLUME_BLOCKS: u64 = 3 * 16 * 1024;

/// Blocks of the log device of a shaped tank.
pub const SHAPED_LOG_BLOCKS: u64 = 3000;

/// Blocks of a filled tank that are destaged, and those that are in the log with newer content.
pub const SETTLED: [u64; 7] = [0, 1, 5, 1024, 16 * 1024, 16 * 1024 + 7, 32 * 1024];
pub const LOGGED: [u64; 3] = [5, 6, 16 * 1024];

/// See the module. What is in it outlives the pools that are opened on it.
#[derive(Clone)]
pub struct Tank {
    pub reactor: Rc<Reactor>,
    pub log: Arc<Disk>,
    pub capacity: Arc<Disk>,
}

pub fn log_blocks(segments: u64) -> u64 {
    16 + SHARDS as u64 * segments * SEGMENT_BLOCKS as u64
}

impl Tank {
    /// A new pool with `extents` extents (or a few fewer) and a volume 'v' of 4 KiB blocks.
    pub fn new(reactor: &Rc<Reactor>, extents: u64) -> Tank {
        Tank::of(reactor, Disk::new("log", log_blocks(10)), 1024 * (extents + 2), CreateOptions::default())
    }

    /// As [`Tank::new`], a shaped pool with some more space.
    pub fn shaped(reactor: &Rc<Reactor>, extents: u64) -> Tank {
        let options = CreateOptions { shape: Shape::Shaped, unit_blocks: Some(4), ..CreateOptions::default() };
        Tank::of(reactor, Disk::new("log", SHAPED_LOG_BLOCKS), 1024 * (extents * 3 / 2 + 32), options)
    }

    fn of(reactor: &Rc<Reactor>, log: Arc<Disk>, capacity_blocks: u64, options: CreateOptions) -> Tank {
        let tank = Tank { reactor: reactor.clone(), log, capacity: Disk::new("capacity", capacity_blocks) };
        let made = tank.clone();
        reactor.block_on(async move {
            let options = CreateOptions {
                name: "tank".into(),
                shards: Some(SHARDS),
                segment_blocks: Some(SEGMENT_BLOCKS),
                volumes_max: Some(8),
                tiny: true,
                ..options
            };
            Pool::create(&made.reactor, &made.devices(), &options, 0, false).await.unwrap();
            let pool = made.open().await.unwrap();
            pool.create_volume(&made.reactor, "v", VOLUME_BLOCKS, 12, 0).await.unwrap();
            pool.close(&made.reactor).await;
        });
        tank
    }

    pub fn devices(&self) -> PoolDevices {
        PoolDevices { log: LogDevice::Block(self.log.clone()), capacity: self.capacity.clone() }
    }

    /// Opens it; nothing is destaged unless it is asked for.
    pub async fn open(&self) -> Result<Arc<Pool>, PoolError> {
        let tuning = ShardTuning { idle_ns: u64::MAX / 4, ..ShardTuning::default() };
        let options = OpenOptions { tuning: Some(tuning), ..OpenOptions::default() };
        Pool::open(&self.reactor, &self.devices(), &options).await
    }

    pub async fn check(&self, options: CheckOptions) -> CheckReport {
        let log = LogDevice::Block(self.log.clone());
        let capacity: Arc<dyn BlockDevice> = self.capacity.clone();
        Pool::check(&self.reactor, &capacity, Some(&log), options).await.unwrap()
    }

    pub async fn superblock(&self) -> Superblock {
        let channel = self.capacity.open_channel(&self.reactor).unwrap();
        engine::read_superblocks(&self.reactor, channel, self.capacity.info()).await.unwrap()
    }

    /// A pool of its own with the same bytes.
    pub fn fork(&self) -> Tank {
        Tank { reactor: self.reactor.clone(), log: self.log.fork(), capacity: self.capacity.fork() }
    }

    /// As [`Tank::new`] with 48 extents: blocks that are destaged, and in slices 0 and 1 newer ones in the log.
    pub fn filled(reactor: &Rc<Reactor>) -> Tank {
        Tank::fill(Tank::new(reactor, 48))
    }

    /// The same with a shaped pool.
    pub fn shaped_filled(reactor: &Rc<Reactor>) -> Tank {
        Tank::fill(Tank::shaped(reactor, 48))
    }

    /// [`Tank::filled`] or [`Tank::shaped_filled`].
    pub fn filled_as(reactor: &Rc<Reactor>, is_shaped: bool) -> Tank {
        if is_shaped { Tank::shaped_filled(reactor) } else { Tank::filled(reactor) }
    }

    /// Of its log device.
    pub fn log_blocks(&self) -> u64 {
        self.log.info().blocks
    }

    /// Pools of their own with the same bytes, but for one device that is as `old` has it: the log of the first, the capacity
    /// device of the second.
    pub fn with_older(&self, old: &Tank) -> [Tank; 2] {
        [Tank { log: old.log.fork(), ..self.fork() }, Tank { capacity: old.capacity.fork(), ..self.fork() }]
    }

    /// See [`Tank::filled`].
    pub fn fill(tank: Tank) -> Tank {
        let reactor = tank.reactor.clone();
        let at = tank.clone();
        reactor.block_on(async move {
            let pool = at.open().await.unwrap();
            let volume = pool.volume("v").unwrap();
            for block in SETTLED {
                at.write(&volume, block, 1).await;
            }
            pool.settle(&at.reactor).await.unwrap();
            for block in LOGGED {
                at.write(&volume, block, 2).await;
            }
            pool.close(&at.reactor).await;
        });
        tank
    }

    /// What a block of [`Tank::filled`] must read as.
    pub fn expected(block: u64) -> u8 {
        if LOGGED.contains(&block) { 2 } else { SETTLED.contains(&block) as u8 }
    }

    pub async fn write(&self, volume: &Arc<PoolVolume>, block: u64, byte: u8) {
        self.try_write(volume, block, byte).await.unwrap();
    }

    /// As [`Tank::write`] and [`Tank::read`], of a pool that may be anything.
    pub async fn try_write(&self, volume: &Arc<PoolVolume>, block: u64, byte: u8) -> Result<(), Status> {
        let device: Arc<dyn BlockDevice> = volume.clone();
        transfer(&self.reactor, &device, block, Some(&[byte; 4096]), 1).await.map(drop)
    }

    pub async fn try_read(&self, volume: &Arc<PoolVolume>, block: u64) -> Result<Vec<u8>, Status> {
        let device: Arc<dyn BlockDevice> = volume.clone();
        transfer(&self.reactor, &device, block, None, 1).await
    }

    /// The byte that a block of the volume is full of.
    pub async fn read(&self, volume: &Arc<PoolVolume>, block: u64) -> Result<u8, Status> {
        let bytes = self.try_read(volume, block).await?;
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {block} is made of two");
        Ok(bytes[0])
    }
}

async fn transfer(
    reactor: &Rc<Reactor>,
    device: &Arc<dyn BlockDevice>,
    block: u64,
    bytes: Option<&[u8]>,
    blocks: u32,
) -> Result<Vec<u8>, Status> {
    let channel = device.open_channel(reactor).unwrap();
    let mut bufs = SgList::new();
    bufs.push(reactor.pool().alloc(4096 * blocks as usize).await);
    let io = match bytes {
        Some(bytes) => {
            bufs[0].as_mut_slice().copy_from_slice(bytes);
            Io::write(Lba(block), blocks, bufs)
        }
        None => Io::read(Lba(block), blocks, bufs),
    };
    let done = channel.submit(io).await;
    done.status.check()?;
    Ok(done.io.bufs.iter().flat_map(|buf| buf.as_slice().to_vec()).collect())
}
