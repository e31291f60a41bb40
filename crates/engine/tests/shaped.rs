//! Shaped pools under the Linux driver: a volume is a device like any other while its blocks move from band to band.

use crate::common::disk::Disk;
use crate::common::*;
use base::Rng;
use bdev::conformance::{self, Options};
use bdev::{BlockDevice, Status};
use engine::layout::CreateOptions;
use engine::{CheckOptions, Defect, LogDevice, OpenOptions, Pool, PoolDevices, ShardTuning};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// Of a device that is small and whole.
const CAPACITY_BLOCKS: u64 = (96 << 20) / 4096;

async fn make(
    reactor: &Rc<Reactor>,
    devices: &PoolDevices,
    shards: u16,
    blocks: u64,
) -> (Arc<Pool>, Arc<dyn BlockDevice>) {
    Pool::create(reactor, devices, &shaped(shards), 0, true).await.unwrap();
    let pool = open(reactor.clone(), devices.clone()).await.unwrap();
    let volume = pool.create_volume(reactor, "v", blocks, 12, 0).await.unwrap();
    (pool, volume)
}

async fn assert_sound(reactor: &Rc<Reactor>, devices: &PoolDevices) {
    let options = CheckOptions { payloads: true, data: true, repair: false };
    let report = Pool::check(reactor, &devices.capacity, Some(&devices.log), options).await.unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn volumes_conform_on_block_and_mapped_logs() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    for (case, devices) in [devices(512), devices(4096), mapped_devices(&directory)].into_iter().enumerate() {
        let reactor = reactor();
        let (there, devices) = (reactor.clone(), devices.clone());
        reactor.block_on(async move {
            let (pool, volume) = make(&there, &devices, 2, 5000).await;
            let mut options = Options::new(5 + case as u64);
            options.resize_to = Some(volume.info().blocks + 1024);
            conformance::run(&there, &volume, options).await.unwrap();
            pool.close(&there).await;
            assert_sound(&there, &devices).await;
        });
    }
}

#[test]
fn what_is_overwritten_many_times_over_is_collected_and_stays_right() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let devices = devices(4096);
        // Three quarters of what volumes get, so that bands have to be collected.
        let blocks = 12 * 1024;
        let (mut pool, mut volume) = make(&there, &devices, 1, blocks).await;
        let (mut rng, mut expected) = (Rng::new(7), vec![0u8; blocks as usize]);
        for round in 1..=5u8 {
            for step in 0..10_000u64 {
                let lba = if round == 1 { step } else { rng.below(blocks) };
                let value = round.wrapping_mul(50).wrapping_add(step as u8) | 1;
                assert_eq!(write(&there, &volume, lba, value).await, Status::Ok, "round {round}, block {lba}");
                expected[lba as usize] = value;
            }
            for _ in 0..500 {
                let lba = rng.below(blocks);
                assert_eq!(read(&there, &volume, lba).await, Ok(expected[lba as usize]), "round {round}, block {lba}");
            }
            if round % 2 == 0 {
                pool.settle(&there).await.unwrap();
            }
            assert_eq!(pool.audit(&there).await.unwrap().problems, Vec::<String>::new());
            assert_eq!(pool.audit_places(&there).await, Vec::<String>::new());
            pool.close(&there).await;
            assert_sound(&there, &devices).await;
            pool = open(there.clone(), devices.clone()).await.unwrap();
            volume = pool.volume("v").unwrap();
        }
        for lba in 0..blocks {
            assert_eq!(read(&there, &volume, lba).await, Ok(expected[lba as usize]), "block {lba}");
        }
        let status = pool.status(&there).await;
        pool.delete_volume(&there, "v").await.unwrap();
        pool.close(&there).await;
        assert_sound(&there, &devices).await;
        drop(status);
    });
}

/// What the audit says of a pool with a defect, after blocks have been written twice.
async fn audited(reactor: &Rc<Reactor>, defect: Option<Defect>) -> Vec<String> {
    let devices = devices(4096);
    Pool::create(reactor, &devices, &shaped(1), 0, true).await.unwrap();
    let tuning = Some(ShardTuning { defect, ..ShardTuning::default() });
    let pool = Pool::open(reactor, &devices, &OpenOptions { tuning, ..OpenOptions::default() }).await.unwrap();
    let volume: Arc<dyn BlockDevice> = pool.create_volume(reactor, "v", 1000, 12, 0).await.unwrap();
    for value in [1, 2] {
        for lba in 0..64 {
            // All alike, so that nobody else notices which of them is read.
            assert_eq!(write(reactor, &volume, lba, value).await, Status::Ok);
        }
        pool.settle(reactor).await.unwrap();
    }
    assert_eq!(read(reactor, &volume, 1).await, Ok(2));
    let problems = pool.audit_places(reactor).await;
    pool.close(reactor).await;
    problems
}

#[test]
fn the_audit_of_places_finds_blocks_at_one_place_and_wrong_counts() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        assert_eq!(audited(&there, None).await, Vec::<String>::new());
        let twice = audited(&there, Some(Defect::PlaceTwice)).await;
        assert!(twice.iter().any(|problem| problem.contains("I2: blocks 0 and 1 are at place")), "{twice:?}");
        let miscounted = audited(&there, Some(Defect::MiscountBand)).await;
        assert!(miscounted.iter().any(|problem| problem.contains("are counted, and there are")), "{miscounted:?}");
    });
}

/// What a pool did with a load of which three fifths go to a tenth of the volume, and what it kept off its bands.
async fn load_skewed(reactor: &Rc<Reactor>, devices: PoolDevices, percent: u32) -> engine::BandStatus {
    Pool::create(reactor, &devices, &shaped(1), 0, true).await.unwrap();
    let options = OpenOptions { reinsertion_percent: Some(percent), ..OpenOptions::default() };
    let pool = Pool::open(reactor, &devices, &options).await.unwrap();
    let blocks = 12 * 1024;
    let volume: Arc<dyn BlockDevice> = pool.create_volume(reactor, "v", blocks, 12, 0).await.unwrap();
    let (mut rng, mut expected) = (Rng::new(11), vec![0u8; blocks as usize]);
    for step in 0..100_000u64 {
        let hot = rng.below(blocks / 10) * 10;
        let lba = if rng.below(5) < 3 { hot } else { rng.below(blocks) };
        let value = step as u8 | 1;
        assert_eq!(write(reactor, &volume, lba, value).await, Status::Ok, "block {lba}");
        expected[lba as usize] = value;
        // As hosts do, who do not come back in the same turn.
        reactor.yield_now().await;
    }
    let status = pool.status(reactor).await.shards[0].bands;
    pool.close(reactor).await;
    let pool = open(reactor.clone(), devices.clone()).await.unwrap();
    let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
    for lba in 0..blocks {
        assert_eq!(read(reactor, &volume, lba).await, Ok(expected[lba as usize]), "block {lba}");
    }
    pool.close(reactor).await;
    assert_sound(reactor, &devices).await;
    status
}

#[test]
fn what_is_written_often_goes_round_in_the_log_within_its_budget() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let cases: [fn(&tempfile::TempDir) -> PoolDevices; 2] = [|_| devices(4096), mapped_devices];
    for of_case in cases {
        let reactor = reactor();
        let (there, all) = (reactor.clone(), [0, 25, 100].map(|_| of_case(&directory)));
        reactor.block_on(async move {
            let [never, some, much] = all;
            let never = load_skewed(&there, never, 0).await;
            let some = load_skewed(&there, some, 25).await;
            let much = load_skewed(&there, much, 100).await;
            assert_eq!(never.reinserted_bytes, 0);
            let share = |of: engine::BandStatus| of.reinserted_bytes / 4096 * 100 / 100_000;
            assert!((1..=25).contains(&share(some)), "{some:?}");
            assert!(share(much) > share(some) && share(much) <= 100, "{much:?}");
            assert!(much.write_bytes < never.write_bytes / 20 * 19, "{} of {}", much.write_bytes, never.write_bytes);
        });
    }
}

#[test]
fn what_the_log_still_has_of_a_damaged_map_page_is_not_lost() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let log = Disk::new("log", 2048);
        let devices = PoolDevices { log: LogDevice::Block(log.clone()), capacity: mem("capacity", 4096, 96 << 20) };
        Pool::create(&there, &devices, &shaped(1), 0, true).await.unwrap();
        // Map pages of four extents in memory, and nothing is destaged that is not asked for.
        let tuning = ShardTuning { map_cache_bytes_min: 0, idle_ns: u64::MAX / 4, ..ShardTuning::default() };
        let options = OpenOptions { map_cache_bytes: Some(0), tuning: Some(tuning), ..OpenOptions::default() };
        let pool = Pool::open(&there, &devices, &options).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.create_volume(&there, "v", 12 * 1024, 12, 0).await.unwrap();
        for lba in [0, 1] {
            assert_eq!(write(&there, &volume, lba, 7 + lba as u8).await, Status::Ok);
        }
        pool.settle(&there).await.unwrap();
        for extent in 1..10 {
            assert_eq!(write(&there, &volume, extent * 1024, 1).await, Status::Ok);
            pool.settle(&there).await.unwrap();
        }
        let channel = devices.capacity.open_channel(&there).unwrap();
        let superblock = engine::read_superblocks(&there, channel, devices.capacity.info()).await.unwrap();
        (0..2).for_each(|slot| log.flip(superblock.regions[0].map_slot(0, slot), 5));
        // The page has to be changed for this one.
        assert_eq!(write(&there, &volume, 2, 9).await, Status::Ok);
        pool.settle(&there).await.unwrap();
        // Of the others only the page knew that they were holes.
        assert_eq!(pool.status(&there).await.shards[0].lost_blocks, 1024 - 3);
        pool.close(&there).await;
        let pool = Pool::open(&there, &devices, &options).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
        for lba in 0..3 {
            assert_eq!(read(&there, &volume, lba).await, Ok(7 + lba as u8), "block {lba}");
        }
        pool.close(&there).await;
    });
}

#[test]
fn a_capacity_device_that_is_away_for_long_costs_no_block() {
    // Time passes as it is waited for.
    let reactor = clock_reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let capacity = Disk::new("capacity", CAPACITY_BLOCKS);
        let devices = PoolDevices { log: LogDevice::Block(Disk::new("log", 2048)), capacity: capacity.clone() };
        Pool::create(&there, &devices, &shaped(1), 0, true).await.unwrap();
        let pool = open(there.clone(), devices.clone()).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.create_volume(&there, "v", 1024, 9, 0).await.unwrap();
        for lba in 0..8 {
            assert_eq!(write(&there, &volume, lba, 5).await, Status::Ok);
        }
        pool.settle(&there).await.unwrap();
        pool.close(&there).await;
        // What is settled is in the bands alone now; part of it is written again.
        let pool = open(there.clone(), devices.clone()).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
        (0..CAPACITY_BLOCKS).for_each(|block| capacity.refuse_reads(block, u64::MAX));
        assert_eq!(write(&there, &volume, 3, 9).await, Status::Ok);
        for _ in 0..300 {
            assert!(pool.settle(&there).await.is_err(), "what the part lies over cannot be read");
            there.sleep_ns(300_000_000).await;
        }
        (0..CAPACITY_BLOCKS).for_each(|block| capacity.refuse_reads(block, 0));
        pool.settle(&there).await.unwrap();
        assert_eq!(pool.status(&there).await.shards[0].lost_blocks, 0);
        for lba in 0..8 {
            assert_eq!(read(&there, &volume, lba).await, Ok(if lba == 3 { 9 } else { 5 }), "block {lba}");
        }
        pool.close(&there).await;
    });
}

#[test]
fn a_pool_grows_by_bands_and_is_found_grown_and_says_what_its_log_has_no_room_for() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let (log, capacity) = (Disk::new("log", 2048), Disk::new("capacity", CAPACITY_BLOCKS));
        let devices = PoolDevices { log: LogDevice::Block(log.clone()), capacity: capacity.clone() };
        let options = CreateOptions { grow_to_blocks: Some(2 * CAPACITY_BLOCKS), ..shaped(2) };
        Pool::create(&there, &devices, &options, 0, true).await.unwrap();
        let pool = open(there.clone(), devices.clone()).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.create_volume(&there, "v", 64 * 1024, 12, 0).await.unwrap();
        let error = pool.grow(&there).await.unwrap_err().to_string();
        assert!(error.contains("growing this pool takes at least"), "{error}");
        let numbers = |status: engine::PoolStatus| {
            let of = |number: fn(&engine::ShardStatus) -> u64| status.shards.iter().map(number).sum::<u64>();
            (of(|shard| shard.extents as u64), of(|shard| shard.bands.bands as u64))
        };
        let (extents, bands) = numbers(pool.status(&there).await);
        let lba = |block: u64| block * 37 % (4 * 1024);
        for block in 0..3_000 {
            assert_eq!(write(&there, &volume, lba(block), 3).await, Status::Ok);
        }
        capacity.enlarge(2 * CAPACITY_BLOCKS);
        assert_eq!(pool.grow(&there).await.unwrap(), 2 * CAPACITY_BLOCKS * 4096);
        let (more_extents, more_bands) = numbers(pool.status(&there).await);
        assert!(
            more_bands >= 2 * bands && more_extents * 10 > extents * 19,
            "{extents}, {bands} and {more_extents}, {more_bands}"
        );
        // A slice of each shard: more than there was room for before, so that bands of the new space are in use.
        let blocks = 32 * 1024;
        assert!(extents < 32 && more_extents > 32, "{extents}, {more_extents}");
        for block in 0..blocks {
            assert_eq!(write(&there, &volume, block, 1 + block as u8 % 200).await, Status::Ok, "block {block}");
        }
        pool.settle(&there).await.unwrap();
        assert_eq!(pool.audit(&there).await.unwrap().problems, Vec::<String>::new());
        // Of six times as much more there is no room for the index, until the log device becomes larger as well.
        capacity.enlarge(8 * CAPACITY_BLOCKS);
        let in_part = pool.grow(&there).await;
        assert!(in_part.is_err() || pool.status(&there).await.unused_bytes > CAPACITY_BLOCKS * 4096, "{in_part:?}");
        log.enlarge(2048 + 1024);
        pool.grow(&there).await.unwrap();
        assert_eq!(pool.status(&there).await.unused_bytes, 0);
        let grown = numbers(pool.status(&there).await);
        pool.close(&there).await;
        assert_sound(&there, &devices).await;
        let pool = open(there.clone(), devices.clone()).await.unwrap();
        assert_eq!(numbers(pool.status(&there).await), grown);
        let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
        for block in 0..blocks {
            assert_eq!(read(&there, &volume, block).await, Ok(1 + block as u8 % 200), "block {block}");
        }
        pool.close(&there).await;
    });
}
