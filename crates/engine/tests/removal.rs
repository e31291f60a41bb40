//! What removing a deleted snapshot costs: as little is written as possible, and users go first.

use crate::common::beside::time_beside;
use crate::common::*;
use bdev::{BlockDevice, Status};
use engine::Pool;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

const BLOCK: u64 = 4096;

async fn logged(pool: &Pool, reactor: &Rc<Reactor>) -> u64 {
    pool.status(reactor).await.shards.iter().map(|shard| shard.streams.log.total()).sum()
}

#[test]
fn the_lesser_part_of_an_extent_is_written_anew() {
    // Blocks of the snapshot and of the volume over it; blocks of which there are fewer.
    for (below, above, lesser) in [(1000, 6, 6), (20, 900, 20)] {
        let reactor = reactor();
        let there = reactor.clone();
        reactor.block_on(async move {
            let devices = devices(4096);
            Pool::create(&there, &devices, &options(1), 0, true).await.unwrap();
            let pool = open(there.clone(), devices.clone()).await.unwrap();
            pool.create_volume(&there, "v", 1024, 12, 0).await.unwrap();
            let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
            for lba in 0..below {
                assert_eq!(write(&there, &volume, lba, 1).await, Status::Ok);
            }
            pool.snapshot(&there, &[("v", "s")], 0).await.unwrap();
            let first = if below > above { 500 } else { 100 };
            for lba in first..first + above {
                assert_eq!(write(&there, &volume, lba, 2).await, Status::Ok);
            }
            let free: u32 = pool.status(&there).await.shards.iter().map(|shard| shard.free_extents).sum();
            let before = logged(&pool, &there).await;
            pool.delete_snapshot(&there, "v@s").await.unwrap();
            pool.reap(&there).await.unwrap();
            let written = logged(&pool, &there).await - before;
            assert!(written < (2 * lesser + 32) * BLOCK, "{written} bytes of log for {lesser} blocks");
            let status = pool.status(&there).await;
            assert_eq!(status.shards.iter().map(|shard| shard.free_extents).sum::<u32>(), free + 1);
            for lba in 0..1024 {
                let value = if (first..first + above).contains(&lba) { 2 } else { (lba < below) as u8 };
                assert_eq!(read(&there, &volume, lba).await, Ok(value), "block {lba}");
            }
            pool.close(&there).await;
        });
    }
}

/// How long it takes until a deleted snapshot is gone, in virtual time, beside a user who writes or none.
fn time_to_go(has_user: bool, is_awaited: bool) -> u64 {
    let prepare = |there: Rc<Reactor>, pool: Arc<Pool>| async move {
        let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
        for lba in 0..100 {
            assert_eq!(write(&there, &volume, lba * 40 + 1, 2).await, Status::Ok);
        }
    };
    time_beside(has_user, prepare, move |there, pool| async move {
        pool.delete_snapshot(&there, "v@s").await.unwrap();
        if is_awaited {
            pool.reap(&there).await.unwrap();
        }
        while pool.status(&there).await.going > 0 {
            there.sleep_ns(100_000).await;
        }
    })
}

#[test]
fn it_pauses_for_users_unless_somebody_waits_for_it() {
    let (beside, awaited, alone) = (time_to_go(true, false), time_to_go(true, true), time_to_go(false, false));
    assert!(beside > 3 * awaited, "{beside} ns beside a user, {awaited} ns when somebody waits");
    assert!(alone < 2 * awaited, "{alone} ns when nobody else is there, {awaited} ns when somebody waits");
}
