//! A damaged dirty journal beside a log that is damaged or gone: the way out loses all of the shard, and returns nothing stale.

use crate::common::disk::Disk;
use crate::common::tank::*;
use crate::common::*;
use bdev::Status;
use engine::{CheckOptions, ForgottenLog, Pool, PoolError};

const REPAIR: CheckOptions = CheckOptions { payloads: false, data: false, repair: true };
/// Of these slices the first and the last are of shard 1.
const SLICE: u64 = 16 * 1024;

/// With room to note that all of it is lost.
fn roomy(reactor: &std::rc::Rc<reactor::Reactor>, is_shaped: bool) -> Tank {
    Tank::fill(if is_shaped { Tank::shaped(reactor, 96) } else { Tank::new(reactor, 96) })
}

async fn forget(tank: &Tank) -> Result<ForgottenLog, PoolError> {
    Pool::forget_log(&tank.reactor, &tank.devices(), false, &Default::default()).await
}

async fn damage_journal(tank: &Tank) {
    let superblock = tank.superblock().await;
    (0..2).for_each(|copy| tank.capacity.flip(superblock.journal_copy(1, copy), 99));
}

/// The group before the last one in the log of shard 1.
async fn damage_log(tank: &Tank) {
    let superblock = tank.superblock().await;
    let first = superblock.segment_start(1, 0);
    let of_shard = first..first + superblock.segments as u64 * superblock.segment_blocks as u64;
    let image = tank.log.image();
    let groups: Vec<u64> =
        image.range(of_shard).filter(|(_, bytes)| bytes.starts_with(b"RMGR")).map(|(block, _)| *block).collect();
    tank.log.flip(groups[groups.len() - 2], 300);
}

/// Every block reads as what was written last, or not at all.
async fn judge(tank: &Tank, pool: &Pool) {
    let volume = pool.volume("v").unwrap();
    for block in SETTLED.iter().chain(&LOGGED).chain(&[7, SLICE + 1, 2 * SLICE + 1]) {
        let read = tank.read(&volume, *block).await;
        assert!(read.is_err() || read == Ok(Tank::expected(*block)), "block {block}: {read:?}");
    }
}

#[test]
fn a_damaged_journal_and_a_damaged_log_cost_all_of_the_shard_and_the_pool_opens() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let tank = roomy(&reactor, is_shaped);
        reactor.block_on(async move {
            damage_journal(&tank).await;
            // The log has all of it: it is the better way.
            let refused = forget(&tank).await.unwrap_err().to_string();
            assert!(
                refused.contains("the dirty journal of shard 1 is damaged, and 'pool check --repair'"),
                "{refused}"
            );
            damage_log(&tank).await;
            let before = (tank.log.image(), tank.capacity.image());
            let report = tank.check(REPAIR).await;
            let finding = report.findings.iter().find(|finding| finding.object.contains("journal")).unwrap();
            assert!(finding.advice.contains("'pool forget-log' gives up the log, and all"), "{finding}");
            assert!((tank.log.image(), tank.capacity.image()) == before);
            let error = tank.open().await.err().unwrap().to_string();
            assert!(error.contains("'pool forget-log' gives up all of the shard"), "{error}");

            let foreseen = Pool::foresee_forget_log(&tank.reactor, &tank.devices(), false).await.unwrap();
            let done = forget(&tank).await.unwrap();
            // Slice 1 is in the journal of shard 0.
            assert_eq!((done.slices, done.shards_without_journal, done.lost_extents), (3, 1, 48));
            assert_eq!((foreseen.slices, foreseen.lost_extents), (done.slices, done.lost_extents));
            let pool = tank.open().await.unwrap();
            let volume = pool.volume("v").unwrap();
            for block in [0, 2, 5, 6, 9 * 1024, SLICE, 2 * SLICE, 3 * SLICE - 1] {
                assert_eq!(tank.read(&volume, block).await, Err(Status::ReadError), "block {block}");
            }
            tank.write(&volume, 5, 3).await;
            pool.settle(&tank.reactor).await.unwrap();
            tank.write(&volume, 2 * SLICE, 4).await;
            pool.close(&tank.reactor).await;
            let report = tank.check(CheckOptions::default()).await;
            assert!(report.is_sound_but_for_losses(), "{report:?}");
            // With that log as well, what it alone had is an error, and what was lost does not come back.
            let again = Tank { log: Disk::new("new-log", tank.fork().log_blocks()), ..tank.fork() };
            forget(&again).await.unwrap();
            let pool = again.open().await.unwrap();
            let volume = pool.volume("v").unwrap();
            for block in [0, 6, SLICE, 2 * SLICE, 2 * SLICE + 1] {
                assert_eq!(again.read(&volume, block).await, Err(Status::ReadError), "block {block}");
            }
            let read = again.read(&volume, 5).await;
            assert!(read.is_err() || read == Ok(3), "{read:?}");
            pool.close(&again.reactor).await;
        });
    }
}

#[test]
fn interrupted_anywhere_it_can_be_repeated_and_no_log_returns_anything_stale() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let filled = roomy(&reactor, is_shaped);
        reactor.block_on(async move {
            let whole = filled.log.fork();
            damage_journal(&filled).await;
            let (mut interrupted, mut in_row) = (0, 0);
            for step in 0.. {
                let tank = Tank { log: Disk::new("new-log", filled.log_blocks()), ..filled.fork() };
                let device = if step % 2 == 0 { &tank.log } else { &tank.capacity };
                device.fail_after(step / 2);
                let ended = forget(&tank).await;
                interrupted += ended.is_err() as u32;
                in_row = if ended.is_ok() { in_row + 1 } else { 0 };
                if in_row == 2 {
                    break;
                }
                // The log was only away: with what a check makes of it.
                let old = Tank { log: whole.fork(), ..tank.fork() };
                old.check(REPAIR).await;
                if let Ok(pool) = old.open().await {
                    judge(&old, &pool).await;
                    pool.close(&old.reactor).await;
                }
                let tank = tank.fork();
                if ended.is_err() {
                    let again = forget(&tank).await;
                    assert!(again.is_ok() || again.unwrap_err().to_string().contains("open the pool"), "step {step}");
                }
                let pool = tank.open().await.unwrap();
                judge(&tank, &pool).await;
                let read = tank.read(&pool.volume("v").unwrap(), 5).await;
                assert_eq!(read, Err(Status::ReadError), "step {step}");
                pool.close(&tank.reactor).await;
            }
            assert!(interrupted > 8, "interrupted {interrupted} times");
        });
    }
}

#[test]
fn a_journal_that_cannot_be_read_for_a_moment_costs_nothing_more() {
    let reactor = reactor();
    let tank = roomy(&reactor, false);
    reactor.block_on(async move {
        let superblock = tank.superblock().await;
        let refuse = |tank: &Tank, reads| {
            (0..2).for_each(|copy| tank.capacity.refuse_reads(superblock.journal_copy(1, copy), reads));
        };
        for (reads, shards) in [(3, 0), (u64::MAX, 1)] {
            let tank = Tank { log: Disk::new("new-log", tank.log_blocks()), ..tank.fork() };
            refuse(&tank, reads);
            assert_eq!(forget(&tank).await.unwrap().shards_without_journal, shards, "{reads} reads fail");
        }
    });
}
