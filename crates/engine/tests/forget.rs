//! Giving up a log: what may have been newer in it is an error until it is written again, and nothing stale comes back.

use crate::common::disk::Disk;
use crate::common::tank::*;
use crate::common::*;
use bdev::{BlockDevice, Status};
use engine::{
    BlockRange, CheckOptions, ForgetProgress, ForgetSteps, ForgottenLog, Pool, PoolError, PoolVolume, Severity,
    UnfoundBlocks,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

const SLICE: u64 = 16 * 1024;

/// Settled blocks in three slices, newer ones in the log in slices 0 and 1.
fn without_log(tank: &Tank) -> Tank {
    Tank { log: Disk::new("new-log", log_blocks(10)), ..tank.fork() }
}

async fn forget(tank: &Tank) -> Result<ForgottenLog, PoolError> {
    Pool::forget_log(&tank.reactor, &tank.devices(), false, &Default::default()).await
}

async fn two_slices_are_lost(tank: &Tank, volume: &Arc<PoolVolume>) {
    assert_eq!(tank.read(volume, 2 * SLICE).await, Ok(1), "slice 2 was not in the journal");
    assert_eq!(tank.read(volume, 2 * SLICE + 1).await, Ok(0));
    for block in [0, 2, 5, 6, 9 * 1024, SLICE, 2 * SLICE - 1] {
        assert_eq!(tank.read(volume, block).await, Err(Status::ReadError), "block {block}");
    }
}

#[test]
fn what_may_have_been_in_a_lost_log_is_an_error_until_it_is_written() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let tank = without_log(&tank);
        let error = tank.open().await.err().unwrap().to_string();
        assert!(error.contains("forget-log"), "{error}");
        let done = forget(&tank).await.unwrap();
        // Slices 0 and 1 of the volume have 16 extents each.
        assert_eq!((done.slices, done.lost_extents, done.freed_extents), (2, 32, 0));
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        two_slices_are_lost(&tank, &volume).await;
        tank.write(&volume, 5, 3).await;
        pool.settle(&tank.reactor).await.unwrap();
        tank.write(&volume, 6, 4).await;
        assert_eq!((tank.read(&volume, 5).await, tank.read(&volume, 6).await), (Ok(3), Ok(4)));
        assert_eq!(tank.read(&volume, 0).await, Err(Status::ReadError));
        pool.close(&tank.reactor).await;
        let error = forget(&tank).await.unwrap_err().to_string();
        assert!(error.contains("can be read: open the pool"), "{error}");
        // Once more: block 5 is settled, but its slice has something in the log.
        let tank = without_log(&tank);
        forget(&tank).await.unwrap();
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        for block in [0, 5, 6] {
            assert_eq!(tank.read(&volume, block).await, Err(Status::ReadError), "block {block}");
        }
        assert_eq!(tank.read(&volume, 2 * SLICE).await, Ok(1));
        pool.close(&tank.reactor).await;
    });
}

/// The same pool with a new log device that is large enough.
fn shaped_without_log(tank: &Tank) -> Tank {
    Tank { log: Disk::new("new-log", SHAPED_LOG_BLOCKS), ..tank.fork() }
}

#[test]
fn the_index_of_a_shaped_pool_is_built_anew_and_what_may_have_been_in_the_log_is_lost() {
    let reactor = reactor();
    let tank = Tank::shaped_filled(&reactor);
    reactor.block_on(async move {
        let small = Tank { log: Disk::new("small", SHAPED_LOG_BLOCKS - 1), ..tank.fork() };
        let error = forget(&small).await.unwrap_err().to_string();
        assert!(error.contains("its log needs at least"), "{error}");
        let tank = shaped_without_log(&tank);
        let before = tank.capacity.image();
        let foreseen = Pool::foresee_forget_log(&tank.reactor, &tank.devices(), false).await.unwrap();
        assert_eq!(tank.capacity.image(), before);
        let done = forget(&tank).await.unwrap();
        assert_eq!((&done.unfound, &foreseen.unfound), (&Some(Vec::new()), &None));
        assert_eq!(done, ForgottenLog { unfound: Some(Vec::new()), ..foreseen });
        assert_eq!((done.slices, done.lost_extents), (2, 32));
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        two_slices_are_lost(&tank, &volume).await;
        tank.write(&volume, 5, 3).await;
        pool.settle(&tank.reactor).await.unwrap();
        assert_eq!(pool.audit(&tank.reactor).await.unwrap().problems, Vec::<String>::new());
        tank.write(&volume, SLICE + 6, 4).await;
        assert_eq!((tank.read(&volume, 5).await, tank.read(&volume, SLICE + 6).await), (Ok(3), Ok(4)));
        pool.close(&tank.reactor).await;
        let error = forget(&tank).await.unwrap_err().to_string();
        assert!(error.contains("can be read: open the pool"), "{error}");
        // Once more: block 5 is settled by now, and nothing since has been written to its slice.
        let tank = shaped_without_log(&tank);
        let done = forget(&tank).await.unwrap();
        assert_eq!((done.slices, done.unfound), (1, Some(Vec::new())));
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        assert_eq!((tank.read(&volume, 5).await, tank.read(&volume, 6).await), (Ok(3), Err(Status::ReadError)));
        assert_eq!(tank.read(&volume, SLICE + 6).await, Err(Status::ReadError));
        assert_eq!(tank.read(&volume, 2 * SLICE).await, Ok(1));
        pool.settle(&tank.reactor).await.unwrap();
        pool.close(&tank.reactor).await;
        let report = tank.check(CheckOptions { data: true, payloads: true, repair: false }).await;
        assert!(report.findings.iter().all(|finding| finding.meaning.contains("lost")), "{report:?}");
    });
}

#[test]
fn blocks_of_a_shaped_pool_that_no_stripe_has_are_lost_and_told_with_their_volume() {
    let reactor = reactor();
    let tank = Tank::shaped_filled(&reactor);
    reactor.block_on(async move {
        let tank = shaped_without_log(&tank);
        let bands = tank.superblock().await.bands.start;
        for block in tank.capacity.image().range(bands..).map(|(block, _)| *block) {
            tank.capacity.flip(block, 300);
        }
        let foreseen = Pool::foresee_forget_log(&tank.reactor, &tank.devices(), false).await.unwrap();
        assert_eq!(foreseen.unfound, None, "no stripe has been read");
        let done = forget(&tank).await.unwrap();
        let range = BlockRange { first: 2 * SLICE, blocks: 1 };
        let unfound = UnfoundBlocks { volume: "v".to_string(), blocks: 1, ranges: vec![range], shown_by: Vec::new() };
        assert_eq!(done, ForgottenLog { unfound: Some(vec![unfound]), ..foreseen });
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        assert_eq!(tank.read(&volume, 2 * SLICE).await, Err(Status::ReadError));
        assert_eq!(tank.read(&volume, 2 * SLICE + 1).await, Ok(0));
        tank.write(&volume, 2 * SLICE, 3).await;
        pool.settle(&tank.reactor).await.unwrap();
        assert_eq!(tank.read(&volume, 2 * SLICE).await, Ok(3));
        pool.close(&tank.reactor).await;
    });
}

/// A volume, its snapshot, a clone that has written next to what is looked at, and one that has written over it.
async fn family(tank: &Tank, pool: &Pool) {
    for (name, block) in [("next", 6), ("over", 5)] {
        let clone = pool.clone_volume(&tank.reactor, "v@s", name, 8).await.unwrap();
        tank.write(&clone, block, 2).await;
    }
}

#[test]
fn what_a_snapshot_loses_with_a_log_is_told_of_all_that_show_it() {
    let reactor = reactor();
    let tank = Tank::new(&reactor, 120);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        tank.write(&volume, 5, 1).await;
        pool.snapshot(&tank.reactor, &[("v", "s")], 7).await.unwrap();
        family(&tank, &pool).await;
        pool.close(&tank.reactor).await;
        let tank = without_log(&tank);
        let done = forget(&tank).await.unwrap();
        let told: Vec<_> = done.volumes.iter().map(|lost| (lost.volume.as_str(), lost.shown_by.clone())).collect();
        // Those that have written there are lost by themselves.
        assert_eq!(told, [("v@s", vec!["v".to_string()]), ("next", vec![]), ("over", vec![])]);
    });
}

#[test]
fn what_no_stripe_has_of_a_snapshot_is_told_of_all_that_show_it() {
    let reactor = reactor();
    let tank = Tank::shaped(&reactor, 48);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        tank.write(&volume, 5, 1).await;
        pool.snapshot(&tank.reactor, &[("v", "s")], 7).await.unwrap();
        family(&tank, &pool).await;
        pool.settle(&tank.reactor).await.unwrap();
        pool.close(&tank.reactor).await;
        let tank = shaped_without_log(&tank);
        let bands = tank.superblock().await.bands.start;
        for block in tank.capacity.image().range(bands..).map(|(block, _)| *block) {
            tank.capacity.flip(block, 300);
        }
        let done = forget(&tank).await.unwrap();
        assert_eq!(done.volumes, []);
        let told = done.unfound.iter().flatten();
        let told: Vec<_> =
            told.map(|lost| (lost.volume.as_str(), lost.ranges[0].first, lost.shown_by.clone())).collect();
        let shown_by = vec!["next".to_string(), "v".to_string()];
        assert_eq!(told, [("v@s", 5, shown_by), ("next", 6, vec![]), ("over", 5, vec![])]);
        let pool = tank.open().await.unwrap();
        for name in ["v@s", "v", "next", "over"] {
            assert_eq!(tank.read(&pool.volume(name).unwrap(), 5).await, Err(Status::ReadError), "{name}");
        }
        pool.close(&tank.reactor).await;
    });
}

#[test]
fn its_progress_ends_with_everything_that_was_to_be_done() {
    let reactor = reactor();
    let (hot, shaped) = (Tank::filled(&reactor), Tank::shaped_filled(&reactor));
    reactor.block_on(async move {
        for (tank, is_shaped) in [(without_log(&hot), false), (shaped_without_log(&shaped), true)] {
            let progress = Arc::new(ForgetProgress::default());
            assert_eq!(progress.steps(), ForgetSteps::default());
            Pool::forget_log(&tank.reactor, &tank.devices(), false, &progress).await.unwrap();
            let ForgetSteps { shards_done, shards, bands_read, bands } = progress.steps();
            assert_eq!((shards_done, shards, bands_read), (SHARDS as u64, SHARDS as u64, bands));
            // Once for what they are, and once for what is in them.
            let twice = 2 * SHARDS as u64 * tank.superblock().await.shard_bands() as u64;
            assert_eq!(bands, if is_shaped { twice } else { 0 });
        }
    });
}

#[test]
fn stopped_anywhere_a_shaped_pool_has_its_old_log_and_it_can_be_repeated() {
    let reactor = reactor();
    let filled = Tank::shaped_filled(&reactor);
    reactor.block_on(async move {
        let mut stopped = 0;
        for after in (0..).step_by(13) {
            let (tank, progress) = (shaped_without_log(&filled), Arc::new(ForgetProgress::default()));
            let (there, watched, is_over) = (tank.reactor.clone(), progress.clone(), Rc::new(Cell::new(false)));
            let over = is_over.clone();
            tank.reactor.spawn(async move {
                while !over.get() && watched.steps().bands_read < after {
                    there.yield_now().await;
                }
                watched.stop();
            });
            // The first time it is stopped before it has begun.
            tank.reactor.yield_now().await;
            let ended = Pool::forget_log(&tank.reactor, &tank.devices(), false, &progress).await;
            is_over.set(true);
            if ended.is_ok() {
                break;
            }
            assert!(matches!(ended, Err(PoolError::Stopped { .. })), "after {after} bands: {ended:?}");
            stopped += 1;
            let old = Tank { log: filled.log.fork(), ..tank.fork() };
            let pool = old.open().await.unwrap();
            assert_eq!(old.read(&pool.volume("v").unwrap(), 5).await, Ok(2), "nothing is lost with the old log");
            pool.close(&old.reactor).await;
            forget(&tank).await.unwrap();
            let pool = tank.open().await.unwrap();
            judge(&tank, &pool).await;
            pool.close(&tank.reactor).await;
        }
        assert!(stopped > 4, "stopped {stopped} times");
    });
}

#[test]
fn interrupted_anywhere_a_shaped_pool_has_its_old_log_or_the_new_one() {
    let reactor = reactor();
    let filled = Tank::shaped_filled(&reactor);
    reactor.block_on(async move { interrupt(&filled, shaped_without_log).await });
}

#[test]
fn interrupted_anywhere_it_can_be_repeated_and_the_old_log_returns_nothing_stale() {
    let reactor = reactor();
    let filled = Tank::filled(&reactor);
    reactor.block_on(async move { interrupt(&filled, without_log).await });
}

async fn interrupt(filled: &Tank, without_log: fn(&Tank) -> Tank) {
    let (mut interrupted, mut in_row) = (0, 0);
    for step in 0.. {
        let (on_log, writes) = (step % 2 == 0, step / 2);
        let tank = without_log(filled);
        if on_log {
            tank.log.fail_after(writes)
        } else {
            tank.capacity.fail_after(writes)
        }
        let ended = forget(&tank).await;
        interrupted += ended.is_err() as u32;
        in_row = if ended.is_ok() { in_row + 1 } else { 0 };
        if in_row == 2 {
            break;
        }
        // With the old log: what is read is the newest, or an error.
        let old = Tank { log: filled.log.fork(), ..tank.fork() };
        if let Ok(pool) = old.open().await {
            judge(&old, &pool).await;
            pool.close(&old.reactor).await;
        }
        let tank = tank.fork();
        if ended.is_err() {
            let again = forget(&tank).await;
            // It may have been the very last write, of a second copy.
            assert!(again.is_ok() || again.unwrap_err().to_string().contains("open the pool"), "step {step}");
        }
        let pool = tank.open().await.unwrap();
        judge(&tank, &pool).await;
        assert_eq!(tank.read(&pool.volume("v").unwrap(), 5).await, Err(Status::ReadError), "step {step}");
        pool.close(&tank.reactor).await;
    }
    assert!(interrupted > 8, "interrupted {interrupted} times");
}

/// Every block reads as what was written last, or not at all.
async fn judge(tank: &Tank, pool: &Pool) {
    let volume = pool.volume("v").unwrap();
    for block in SETTLED.iter().chain(&LOGGED).chain(&[7, SLICE + 1]) {
        let read = tank.read(&volume, *block).await;
        assert!(read.is_err() || read == Ok(Tank::expected(*block)), "block {block}: {read:?}");
    }
}

#[test]
fn bytes_over_a_block_that_a_snapshot_has_lost_are_given_up_at_once() {
    let reactor = reactor();
    let tank = Tank::new(&reactor, 48);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        pool.create_volume(&tank.reactor, "sectors", 1024, 9, 0).await.unwrap();
        let sectors: Arc<dyn BlockDevice> = pool.volume("sectors").unwrap();
        for sector in 0..16 {
            assert_eq!(write(&tank.reactor, &sectors, sector, 1).await, Status::Ok);
        }
        pool.close(&tank.reactor).await;
        let tank = without_log(&tank);
        forget(&tank).await.unwrap();
        let pool = tank.open().await.unwrap();
        pool.snapshot(&tank.reactor, &[("sectors", "s")], 7).await.unwrap();
        let sectors: Arc<dyn BlockDevice> = pool.volume("sectors").unwrap();
        assert_eq!(write(&tank.reactor, &sectors, 3, 2).await, Status::Ok);
        // Patience of half a minute with what is known to be lost would make this fail.
        pool.settle(&tank.reactor).await.unwrap();
        assert_eq!(read(&tank.reactor, &sectors, 3).await, Err(Status::ReadError));
        let lost: u64 = pool.status(&tank.reactor).await.shards.iter().map(|shard| shard.lost_blocks).sum();
        assert_eq!(lost, 1);
        pool.close(&tank.reactor).await;
    });
}

#[test]
fn too_little_space_to_note_losses_is_refused_and_a_larger_device_helps() {
    let reactor = reactor();
    let tank = Tank::new(&reactor, 6);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        assert_eq!(pool.status(&tank.reactor).await.forget_growth_bytes, 0, "nothing is in the log alone");
        tank.write(&pool.volume("v").unwrap(), 3, 1).await;
        let foreseen = pool.status(&tank.reactor).await.forget_growth_bytes;
        pool.close(&tank.reactor).await;
        let tank = without_log(&tank);
        let before = tank.capacity.image();
        let error = forget(&tank).await.unwrap_err().to_string();
        assert!(error.contains("MiB larger and try again"), "{error}");
        assert_eq!(tank.capacity.image(), before);
        let mib: u64 = error.split(" MiB larger").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!(foreseen, mib << 20, "the open pool has said so");
        tank.capacity.enlarge(1024 * 8 + mib * 256);
        let done = forget(&tank).await.unwrap();
        assert_eq!((done.slices, done.lost_extents), (1, 16));
        let pool = tank.open().await.unwrap();
        assert_eq!(tank.read(&pool.volume("v").unwrap(), 3).await, Err(Status::ReadError));
        pool.close(&tank.reactor).await;
        let report = tank.check(CheckOptions { data: true, ..CheckOptions::default() }).await;
        assert_eq!((report.counts.lost_blocks, report.worst()), (16 * 1024, Some(Severity::Error)));
    });
}

#[test]
fn what_is_lost_is_known_without_a_scrub_and_to_checks_that_read_no_data() {
    let reactor = reactor();
    let tank = Tank::new(&reactor, 48);
    reactor.block_on(async move {
        let lost = async |pool: &Pool| loop {
            let shards = pool.status(&tank.reactor).await.shards;
            if shards.iter().all(|shard| shard.lost.uncounted == 0) {
                let of_shard = shards.iter().map(|shard| (shard.lost.blocks, shard.lost.extents));
                break of_shard.fold((0, 0), |sum, of_shard| (sum.0 + of_shard.0, sum.1 + of_shard.1));
            }
            tank.reactor.yield_now().await;
        };
        let pool = tank.open().await.unwrap();
        tank.write(&pool.volume("v").unwrap(), 3, 1).await;
        assert_eq!(lost(&pool).await, (0, 0));
        pool.close(&tank.reactor).await;
        let empty = without_log(&tank);
        forget(&empty).await.unwrap();
        let pool = empty.open().await.unwrap();
        assert_eq!(lost(&pool).await, (16 * 1024, 16));
        empty.write(&pool.volume("v").unwrap(), 3, 1).await;
        pool.settle(&empty.reactor).await.unwrap();
        pool.close(&empty.reactor).await;
        let pool = empty.open().await.unwrap();
        assert_eq!(lost(&pool).await, (16 * 1024 - 1, 16), "of one a block has been written since");
        for block in 0..1024 {
            empty.write(&pool.volume("v").unwrap(), block, 2).await;
        }
        pool.settle(&empty.reactor).await.unwrap();
        assert_eq!(lost(&pool).await, (15 * 1024, 15));
        pool.close(&empty.reactor).await;
        let pool = empty.open().await.unwrap();
        assert_eq!(lost(&pool).await, (15 * 1024, 15), "also when it is opened again");
        pool.close(&empty.reactor).await;
        let report = empty.check(CheckOptions::default()).await;
        assert_eq!(report.worst(), Some(Severity::Error));
        let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
        assert_eq!(finding.object, "volume 'v'");
        assert!(finding.meaning.starts_with(&format!("{} blocks of 4 KiB in 15 extents", 15 * 1024)), "{finding:?}");
    });
}

#[test]
fn a_log_that_is_damaged_in_its_middle_is_refused_and_can_be_given_up() {
    let reactor = reactor();
    let tank = Tank::new(&reactor, 40);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        for block in 0..8 {
            tank.write(&volume, block, 1).await;
        }
        pool.close(&tank.reactor).await;
        // Slice 0 of volume 1 is shard 1's. Its first group begins behind the segment's header.
        let superblock = tank.superblock().await;
        let first = (0..superblock.segments).map(|place| superblock.segment_start(1, place));
        let used = first.clone().find(|block| tank.log.image().contains_key(block)).unwrap();
        tank.log.flip(used + 1, 300);
        let error = tank.open().await.err().unwrap().to_string();
        assert!(error.contains("forget-log"), "{error}");
        let report = tank.check(CheckOptions::default()).await;
        assert!(report.findings.iter().any(|finding| finding.meaning.contains("are lost")), "{:?}", report.findings);
        forget(&tank).await.unwrap();
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        for block in 0..8 {
            assert_eq!(tank.read(&volume, block).await, Err(Status::ReadError));
        }
        tank.write(&volume, 3, 2).await;
        assert_eq!(tank.read(&volume, 3).await, Ok(2));
        pool.close(&tank.reactor).await;
        let pool = tank.open().await.unwrap();
        assert_eq!(tank.read(&pool.volume("v").unwrap(), 3).await, Ok(2), "the old records do not come back");
        pool.close(&tank.reactor).await;
    });
}
