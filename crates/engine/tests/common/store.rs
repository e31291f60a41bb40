//! The capacity device of a pool, for what lies below whole pools.

use bdev::{BlockDevice, Channel, DeviceInfo, MemDevice};
use engine::layout::{CreateOptions, Identities, plan};
use engine::{DirtyJournal, LogTail, Meta, MetaError, Superblock};
use reactor::Reactor;
use std::rc::Rc;
use uuid::Uuid;

/// A capacity device and what is needed to open it.
#[derive(Clone)]
pub struct Pool {
    pub reactor: Rc<Reactor>,
    pub channel: Rc<dyn Channel>,
    pub info: DeviceInfo,
    pub superblock: Superblock,
}

pub const TAIL: LogTail = LogTail { segment: 3, lsn: 40 };

impl Pool {
    /// A formatted pool of `shards` shards, 64 extents each or a few fewer.
    pub fn new(reactor: &Rc<Reactor>, block_size: u32, shards: u16) -> Pool {
        let capacity_blocks = (256 << 8) * shards as u64;
        let options = CreateOptions { name: "tank".to_string(), shards: Some(shards), ..CreateOptions::default() };
        let ids = Identities { pool: Uuid::from_u128(1), log: Uuid::from_u128(2), capacity: Uuid::from_u128(3) };
        let (_, superblock) = plan((64 << 8) * shards as u64, capacity_blocks, &options, ids, 1).unwrap();
        let blocks = capacity_blocks * 4096 / block_size as u64;
        let device = MemDevice::new("capacity", block_size, blocks, blocks).unwrap();
        let channel = device.open_channel(reactor).unwrap();
        let pool = Pool { reactor: reactor.clone(), channel, info: device.info(), superblock };
        for shard in 0..shards {
            let pool = pool.clone();
            reactor.block_on(async move {
                let Pool { reactor, channel, info, superblock } = pool;
                Meta::format(&reactor, channel.clone(), info, &superblock, shard, TAIL).await.unwrap();
                DirtyJournal::format(&reactor, channel, info, &superblock, shard).await.unwrap();
            });
        }
        pool
    }

    pub async fn open(&self, shard: u16, cache_bytes: usize) -> Result<(Rc<Meta>, LogTail), MetaError> {
        Meta::open(&self.reactor, self.channel.clone(), self.info, &self.superblock, shard, cache_bytes).await
    }

    pub async fn journal(&self, shard: u16) -> Result<Rc<DirtyJournal>, MetaError> {
        DirtyJournal::open(&self.reactor, self.channel.clone(), self.info, &self.superblock, shard).await
    }
}
