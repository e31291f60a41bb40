//! What a pool says that it has written to its devices, stream by stream, is what these got.

use crate::common::*;
use base::Rng;
use bdev::{BlockDevice, Io, Lba, Op, StatsDevice, Status};
use engine::{CreateOptions, LogDevice, Marks, OpenOptions, Pool, PoolDevices, ShardTuning, WriteStreams};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// Blocks of the volume.
const BLOCKS: u64 = 8 * 1024;

fn bytes(device: &StatsDevice) -> u64 {
    device.counts().ops[Op::Write as usize].blocks * device.info().block_size as u64
}

async fn told(pool: &Pool, reactor: &Rc<Reactor>) -> (WriteStreams, u64) {
    let status = pool.status(reactor).await;
    let mut sum = WriteStreams::default();
    for WriteStreams { log, capacity } in status.shards.iter().map(|shard| shard.streams) {
        sum.log.data += log.data;
        sum.log.reinserted += log.reinserted;
        sum.log.headers += log.headers;
        sum.log.index += log.index;
        sum.log.metadata += log.metadata;
        sum.capacity.data += capacity.data;
        sum.capacity.bypassed += capacity.bypassed;
        sum.capacity.collected += capacity.collected;
        sum.capacity.padding += capacity.padding;
        sum.capacity.index += capacity.index;
        sum.capacity.shadow += capacity.shadow;
        sum.capacity.metadata += capacity.metadata;
    }
    (sum, status.shards.iter().map(|shard| shard.user_write_bytes).sum())
}

/// Writes, snapshots and a second life; what was told, and what hosts wrote.
fn written(block_size: u32, create: &CreateOptions) -> (WriteStreams, u64) {
    let (reactor, create) = (reactor(), create.clone());
    let there = reactor.clone();
    reactor.block_on(async move {
        let log = Arc::new(StatsDevice::new(mem("log", block_size, 8 << 20)));
        let capacity = Arc::new(StatsDevice::new(mem("capacity", block_size, 96 << 20)));
        let devices = PoolDevices { log: LogDevice::Block(log.clone()), capacity: capacity.clone() };
        Pool::create(&there, &devices, &create, 0, true).await.unwrap();
        let pool = open(there.clone(), devices.clone()).await.unwrap();
        pool.create_volume(&there, "v", BLOCKS, 12, 0).await.unwrap();
        pool.close(&there).await;
        let before = (bytes(&log), bytes(&capacity));
        let pool = open(there.clone(), devices.clone()).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
        let mut rng = Rng::new(3);
        for step in 0..20_000 {
            assert_eq!(write(&there, &volume, rng.below(BLOCKS), step as u8).await, Status::Ok);
            if step == 10_000 {
                pool.snapshot(&there, &[("v", "s")], 0).await.unwrap();
            }
        }
        pool.settle(&there).await.unwrap();
        pool.delete_snapshot(&there, "v@s").await.unwrap();
        pool.reap(&there).await.unwrap();
        pool.settle(&there).await.unwrap();
        let (streams, user) = told(&pool, &there).await;
        let found = (bytes(&log) - before.0, bytes(&capacity) - before.1);
        assert_eq!((streams.log.total(), streams.capacity.total()), found, "{streams:?}");
        pool.close(&there).await;
        (streams, user)
    })
}

#[test]
fn the_streams_of_a_hot_pool_add_up_to_what_its_devices_got() {
    for block_size in [512, 4096] {
        let (WriteStreams { log, capacity }, user) = written(block_size, &options(1));
        assert_eq!(user, 20_000 * 4096);
        // What is still needed of a deleted snapshot goes through the log as well.
        assert!(log.data >= user && log.headers > 0 && log.metadata > 0, "{log:?}");
        assert_eq!((log.index, log.reinserted, capacity.collected, capacity.padding, capacity.shadow), (0, 0, 0, 0, 0));
        assert!(capacity.data > 0 && capacity.index > 0 && capacity.metadata > 0, "{capacity:?}");
    }
}

#[test]
fn large_writes_in_order_to_new_places_go_past_a_log_that_fills_up() {
    const RUN: u32 = 16;
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let log = Arc::new(StatsDevice::new(mem("log", 4096, 8 << 20)));
        let capacity = Arc::new(StatsDevice::new(mem("capacity", 4096, 96 << 20)));
        let devices = PoolDevices { log: LogDevice::Block(log.clone()), capacity: capacity.clone() };
        Pool::create(&there, &devices, &options(1), 0, true).await.unwrap();
        // As if the log had no room to spare, ever.
        let tuning = ShardTuning { marks: Some(Marks { start: 0, soft: 176 }), ..ShardTuning::default() };
        let options = OpenOptions { tuning: Some(tuning), ..OpenOptions::default() };
        let pool = Pool::open(&there, &devices, &options).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.create_volume(&there, "v", BLOCKS, 12, 0).await.unwrap();
        let channel = volume.open_channel(&there).unwrap();
        // A run of new places, and the same once more, which are new no longer.
        for (round, value) in [2u8, 3].into_iter().enumerate() {
            let before = told(&pool, &there).await.0;
            for first in (BLOCKS / 2..BLOCKS).step_by(RUN as usize) {
                let mut buf = there.pool().alloc(RUN as usize * 4096).await;
                buf.as_mut_slice().fill(value);
                assert_eq!(channel.submit(Io::write(Lba(first), RUN, one(buf))).await.status, Status::Ok);
            }
            let after = told(&pool, &there).await.0;
            let bypassed = after.capacity.bypassed - before.capacity.bypassed;
            let logged = after.log.data - before.log.data;
            let all = BLOCKS / 2 * 4096;
            assert_eq!(bypassed + logged, all, "{before:?} {after:?}");
            assert!(if round == 0 { bypassed > all / 2 } else { bypassed == 0 }, "{before:?} {after:?}");
        }
        pool.close(&there).await;
        let pool = open(there.clone(), devices).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
        for lba in BLOCKS / 2..BLOCKS {
            assert_eq!(read(&there, &volume, lba).await, Ok(3), "block {lba}");
        }
        pool.close(&there).await;
    });
}

#[test]
fn the_streams_of_a_shaped_pool_add_up_to_what_its_devices_got() {
    for block_size in [512, 4096] {
        let (WriteStreams { log, capacity }, user) = written(block_size, &shaped(1));
        assert_eq!(user, 20_000 * 4096);
        assert!(log.data > 0 && log.headers > 0 && log.index > 0 && log.metadata > 0, "{log:?}");
        assert!(capacity.data > 0 && capacity.padding > 0 && capacity.shadow > 0, "{capacity:?}");
        assert!(capacity.metadata > 0 && capacity.index == 0, "{capacity:?}");
    }
}
