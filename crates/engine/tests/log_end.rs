//! The end of a log: what rots there or cannot be read is told from what a crash has torn as far as anything says so, and a
//! pool that needs nothing of it opens.

use crate::common::disk::Disk;
use crate::common::tank::{LOGGED, SEGMENT_BLOCKS, SETTLED, SHARDS, Tank, log_blocks};
use crate::common::*;
use bdev::{ErrorDevice, ErrorRule, Fault, Lba, Op, Status};
use engine::{LogDevice, OpenOptions, Pool, PoolDevices, PoolError, ShardTuning};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// Blocks of the log device in the first two segments of each shard: more than these pools have used.
fn segment_blocks() -> impl Iterator<Item = u64> {
    let per_shard = (log_blocks(10) - 16) / SHARDS as u64;
    (0..SHARDS as u64).flat_map(move |shard| {
        let start = 16 + shard * per_shard;
        start..start + 2 * SEGMENT_BLOCKS as u64
    })
}

/// Opens a pool whose log device cannot read one block.
async fn open_without(tank: &Tank, block: u64) -> Result<Arc<Pool>, PoolError> {
    let rule =
        ErrorRule { lba: Lba(block), blocks: 1, ..ErrorRule::always(&[Op::Read], Fault::Fail(Status::ReadError)) };
    let log = ErrorDevice::new("log", tank.log.clone(), &[rule], 1).unwrap();
    let devices = PoolDevices { log: LogDevice::Block(Arc::new(log)), capacity: tank.capacity.clone() };
    let tuning = ShardTuning { idle_ns: u64::MAX / 4, ..ShardTuning::default() };
    Pool::open(&tank.reactor, &devices, &OpenOptions { tuning: Some(tuning), ..OpenOptions::default() }).await
}

/// A pool whose blocks have all come to their places, and its image while it was still open.
fn settled(reactor: &Rc<Reactor>) -> (Tank, Tank) {
    let tank = Tank::new(reactor, 48);
    let at = tank.clone();
    let crashed = reactor.block_on(async move {
        let pool = at.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        for block in SETTLED {
            at.write(&volume, block, 1).await;
        }
        pool.settle(&at.reactor).await.unwrap();
        let crashed = at.fork();
        pool.close(&at.reactor).await;
        crashed
    });
    (tank, crashed)
}

/// Reads what [`Tank::filled`] writes; which blocks are as they should be, or why not.
async fn judge(tank: &Tank, pool: &Arc<Pool>, expected: impl Fn(u64) -> u8, what: &str) -> usize {
    let volume = pool.volume("v").unwrap();
    let mut failed = 0;
    for block in SETTLED.into_iter().chain(LOGGED) {
        match tank.read(&volume, block).await {
            Ok(byte) => assert_eq!(byte, expected(block), "{what}: block {block}"),
            Err(_) => failed += 1,
        }
    }
    failed
}

#[test]
fn a_settled_pool_that_was_closed_opens_whatever_block_of_its_log_cannot_be_read() {
    let reactor = reactor();
    let (tank, _) = settled(&reactor);
    reactor.block_on(async move {
        for block in segment_blocks() {
            let copy = tank.fork();
            let pool = open_without(&copy, block).await.unwrap_or_else(|error| panic!("block {block}: {error}"));
            assert_eq!(judge(&copy, &pool, |block| SETTLED.contains(&block) as u8, "settled").await, 0);
            let volume = pool.volume("v").unwrap();
            copy.write(&volume, 7, 9).await;
            pool.close(&copy.reactor).await;
            let pool = copy.open().await.unwrap();
            assert_eq!(copy.read(&pool.volume("v").unwrap(), 7).await, Ok(9));
            pool.close(&copy.reactor).await;
        }
    });
}

#[test]
fn after_a_crash_a_settled_pool_opens_unless_the_block_is_where_its_log_would_go_on() {
    let reactor = reactor();
    let (_, crashed) = settled(&reactor);
    reactor.block_on(async move {
        let mut refused = Vec::new();
        for block in segment_blocks() {
            let copy = crashed.fork();
            match open_without(&copy, block).await {
                Ok(pool) => {
                    assert_eq!(judge(&copy, &pool, |block| SETTLED.contains(&block) as u8, "settled").await, 0);
                    pool.close(&copy.reactor).await;
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("log of shard") && text.contains("pool forget-log"), "{text}");
                    refused.push(block);
                }
            }
        }
        // The place of the next group, the header of the segment in use, that of the next one; in each shard.
        assert!(refused.len() <= 3 * SHARDS as usize, "{refused:?}");
    });
}

#[test]
fn what_was_acknowledged_is_found_or_asked_for_whatever_block_cannot_be_read() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    let crashed = {
        let at = tank.fork();
        reactor.block_on(async move {
            let pool = at.open().await.unwrap();
            at.write(&pool.volume("v").unwrap(), 6, 3).await;
            let crashed = at.fork();
            pool.close(&at.reactor).await;
            crashed
        })
    };
    let newest = |block| if block == 6 { 3 } else { Tank::expected(block) };
    reactor.block_on(async move {
        for (name, tank, expected) in
            [("closed", &tank, &Tank::expected as &dyn Fn(u64) -> u8), ("crashed", &crashed, &newest)]
        {
            let (mut refused, mut failed) = (0, 0);
            for block in segment_blocks() {
                let copy = tank.fork();
                match open_without(&copy, block).await {
                    Ok(pool) => {
                        failed += judge(&copy, &pool, expected, &format!("{name}, without {block}")).await;
                        pool.close(&copy.reactor).await;
                    }
                    Err(error) => {
                        refused += 1;
                        assert!(error.to_string().contains("pool forget-log"), "{error}");
                    }
                }
            }
            assert!(refused > 0 && failed > 0, "{name}: {refused} refused, {failed} reads failed");
        }
    });
}

/// The image of a pool with one bit flipped; how many blocks of what it has could not be read, `None` if it does not open.
async fn flipped(tank: &Tank, block: u64, bit: usize, expected: &dyn Fn(u64) -> u8) -> Option<usize> {
    let copy = tank.fork();
    copy.log.flip(block, bit);
    let opened = copy.open().await;
    let pool = opened.map_err(|error| assert!(error.to_string().contains("forget-log"), "{error}")).ok()?;
    let failed = judge(&copy, &pool, expected, &format!("bit {bit} of block {block} flipped")).await;
    pool.close(&copy.reactor).await;
    Some(failed)
}

fn used_blocks(log: &Disk) -> Vec<u64> {
    log.image()
        .into_iter()
        .filter(|(block, bytes)| *block >= 16 && bytes.iter().any(|b| *b != 0))
        .map(|(n, _)| n)
        .collect()
}

#[test]
fn rot_anywhere_in_a_log_that_was_closed_is_an_error_and_never_older_content() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let (mut refused, mut failed) = (0, 0);
        for block in used_blocks(&tank.log) {
            for bit in [3, 70, 130, 200, 600, 2000] {
                match flipped(&tank, block, bit, &Tank::expected).await {
                    Some(count) => failed += count,
                    None => refused += 1,
                }
            }
        }
        assert!(refused > 0 && failed > 0, "{refused} refused, {failed} reads failed");
    });
}

/// Makes a pool's roots what a program writes that notes nothing of the log: those fields were reserved, and zero.
async fn forget_notes(tank: &Tank) {
    let superblock = tank.superblock().await;
    for (shard, copy) in (0..SHARDS).flat_map(|shard| [(shard, 0), (shard, 1)]) {
        let block = superblock.root_copy(shard, copy);
        let mut bytes = tank.capacity.image()[&block].to_vec();
        bytes[14..16].fill(0);
        bytes[56..64].fill(0);
        bytes[8..12].fill(0);
        let tables = u32::from_le_bytes(bytes[36..40].try_into().unwrap()) as usize;
        let crc = base::crc32c(&bytes[..64 + tables * 8]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        tank.capacity.poke(block, &bytes);
    }
}

#[test]
fn a_pool_that_an_older_program_had_in_between_opens_with_everything_however_either_has_ended() {
    let reactor = reactor();
    let fresh = Tank::new(&reactor, 48);
    reactor.clone().block_on(async move {
        // What each life does: whether an older program has it, whether it settles, whether it is closed or killed.
        for plan in (0..512u32).step_by(7) {
            let mut tank = fresh.fork();
            let mut newest = std::collections::BTreeMap::new();
            for life in 0..3u64 {
                let is = |bit: u32| plan >> (3 * life as u32 + bit) & 1 == 1;
                let what = format!("plan {plan:o}, life {life}");
                let pool = tank.open().await.unwrap_or_else(|error| panic!("{what}: {error}"));
                let volume = pool.volume("v").unwrap();
                for (block, byte) in &newest {
                    assert_eq!(tank.read(&volume, *block).await, Ok(*byte), "{what}, block {block}");
                }
                for (step, block) in [life, 16 * 1024 + life, 16 * 1024, 7].into_iter().enumerate() {
                    if step == 2 && is(1) {
                        pool.settle(&reactor).await.unwrap();
                    }
                    tank.write(&volume, block, 1 + life as u8).await;
                    newest.insert(block, 1 + life as u8);
                }
                let killed = tank.fork();
                drop(volume);
                pool.close(&reactor).await;
                if is(2) {
                    tank = killed;
                }
                if is(0) {
                    forget_notes(&tank).await;
                }
            }
            let pool = tank.open().await.unwrap_or_else(|error| panic!("plan {plan:o}: {error}"));
            let volume = pool.volume("v").unwrap();
            for (block, byte) in &newest {
                assert_eq!(tank.read(&volume, *block).await, Ok(*byte), "plan {plan:o}, block {block}");
            }
            pool.close(&reactor).await;
        }
    });
}
