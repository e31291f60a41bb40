//! Pools under the Linux driver: what a volume must do as a device, what survives closing, what is refused.

use crate::common::*;
use bdev::conformance::{self, Options};
use bdev::{BlockDevice, Flags, Io, Lba, Op, Status};
use engine::{LogDevice, PoolDevices};
use std::sync::Arc;

#[test]
fn volumes_conform_on_block_and_mapped_logs() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    for (case, devices) in [devices(512), devices(4096), mapped_devices(&directory)].into_iter().enumerate() {
        for block_shift in [9, 12] {
            let reactor = reactor();
            let (there, devices) = (reactor.clone(), devices.clone());
            reactor.block_on(async move {
                let (pool, volume) = pool_with_volume(&there, devices, 2, 5000, block_shift).await;
                let mut options = Options::new(5 + case as u64);
                options.resize_to = Some(volume.info().blocks + 1024);
                conformance::run(&there, &volume, options).await.unwrap();
                pool.close(&there).await;
            });
        }
    }
}

#[test]
fn a_block_that_has_rotted_in_a_mapped_log_is_lost_and_what_is_destaged_with_it_is_not() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (reactor, devices) = (reactor(), mapped_devices(&directory));
    let there = reactor.clone();
    reactor.block_on(async move {
        let (pool, volume) = pool_with_volume(&there, devices.clone(), 1, 5000, 12).await;
        // More runs than are written at a time, of one block and of three; the rotten one is in the midst of a run.
        let run = |run: u64| (0..1 + run % 2 * 2).map(move |block| run * 7 + block);
        let blocks: Vec<u64> = (0..20).flat_map(run).collect();
        let value = |lba: u64| lba as u8 + 1;
        for lba in &blocks {
            assert_eq!(write(&there, &volume, *lba, value(*lba)).await, Status::Ok);
        }
        let rotten = 15 * 7 + 1;
        let log = std::fs::OpenOptions::new().read(true).write(true).open(directory.path().join("log")).unwrap();
        let mut bytes = vec![0; 8 << 20];
        log.read_exact_at(&mut bytes, 0).unwrap();
        let is_it = |at: &usize| bytes[*at..][..4096].iter().all(|byte| *byte == value(rotten));
        let places: Vec<usize> = (0..bytes.len() - 4096).step_by(64).filter(is_it).collect();
        assert!(!places.is_empty());
        for at in places {
            log.write_all_at(&[!value(rotten)], at as u64 + 1000).unwrap();
        }
        pool.settle(&there).await.unwrap();
        let lost: u64 = pool.status(&there).await.shards.iter().map(|shard| shard.lost_blocks).sum();
        assert_eq!(lost, 1);
        for _ in 0..2 {
            for lba in &blocks {
                let expected = if *lba == rotten { Err(Status::ReadError) } else { Ok(value(*lba)) };
                assert_eq!(read(&there, &volume, *lba).await, expected, "block {lba}");
            }
            pool.settle(&there).await.unwrap();
        }
        pool.close(&there).await;
    });
}

#[test]
fn the_devices_of_a_destroyed_pool_count_as_unused() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let devices = devices(4096);
        create(there.clone(), devices.clone(), 1).await.unwrap();
        let pool = open(there.clone(), devices.clone()).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.create_volume(&there, "v", 40_000, 12, 0).await.unwrap();
        // (the log has records, and a segment begins within what is looked at)
        assert_eq!(write(&there, &volume, 7, 1).await, Status::Ok);
        pool.close(&there).await;
        assert!(create(there.clone(), devices.clone(), 1).await.is_err());
        engine::Pool::destroy(&there, &devices, "pool").await.unwrap();
        create(there.clone(), devices, 1).await.unwrap();
    });
}

#[test]
fn what_was_written_is_there_when_the_pool_is_opened_again() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let devices = devices(4096);
        create(there.clone(), devices.clone(), 2).await.unwrap();
        for round in 0..4u8 {
            let pool = open(there.clone(), devices.clone()).await.unwrap();
            let volume: Arc<dyn BlockDevice> = match round {
                0 => pool.create_volume(&there, "v", 40_000, 12, 0).await.unwrap(),
                _ => pool.volume("v").expect("the volume is still there"),
            };
            for lba in [0, 1023, 1024, 16_383, 16_384, 39_999] {
                let before = read(&there, &volume, lba).await.unwrap();
                assert_eq!(before, round, "block {lba} in round {round}");
                assert_eq!(write(&there, &volume, lba, round + 1).await, Status::Ok);
            }
            // Once from the log, once from where it was destaged.
            if round % 2 == 0 {
                pool.settle(&there).await.unwrap();
            }
            pool.close(&there).await;
        }
    });
}

#[test]
fn blocks_declared_unreadable_stay_so_until_they_are_written() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let devices = devices(4096);
        create(there.clone(), devices.clone(), 2).await.unwrap();
        for round in 0..4u8 {
            let pool = open(there.clone(), devices.clone()).await.unwrap();
            let volume: Arc<dyn BlockDevice> = match round {
                0 => pool.create_volume(&there, "v", 60_000, 12, 0).await.unwrap(),
                _ => pool.volume("v").expect("the volume is still there"),
            };
            let channel = volume.open_channel(&there).unwrap();
            if round == 0 {
                for lba in 16_370..16_400 {
                    assert_eq!(write(&there, &volume, lba, 5).await, Status::Ok);
                }
                // Over the border of two extents, and where nothing was ever written.
                for (lba, nblocks) in [(16_375, 20), (50_000, 3)] {
                    let spoilt = channel.submit(Io::new(Op::WriteUncorrectable, Lba(lba), nblocks)).await;
                    assert_eq!(spoilt.status, Status::Ok);
                }
            }
            for lba in (16_370..16_400).chain(49_999..50_004) {
                let unreadable = (16_375..16_395).contains(&lba) || (50_000..50_003).contains(&lba);
                let written = if lba < 20_000 { 5 } else { 0 };
                let expected = match (unreadable, lba) {
                    (_, 16_380) if round == 3 => Ok(9),
                    (true, _) => Err(Status::ReadError),
                    (false, _) => Ok(written),
                };
                assert_eq!(read(&there, &volume, lba).await, expected, "block {lba} in round {round}");
            }
            if round == 2 {
                assert_eq!(write(&there, &volume, 16_380, 9).await, Status::Ok);
            }
            // Once from the log, once from the map pages.
            if round % 2 == 0 {
                pool.settle(&there).await.unwrap();
            }
            drop(channel);
            pool.close(&there).await;
        }
    });
}

#[test]
fn thin_volumes_take_what_they_use_and_give_it_back() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        // A terabyte in a pool of less than 100 MiB.
        let (pool, volume) = pool_with_volume(&there, devices(4096), 1, 1 << 28, 12).await;
        let free = |status: engine::PoolStatus| status.shards.iter().map(|shard| shard.free_extents).sum::<u32>();
        let status = pool.status(&there).await;
        let all = status.shards[0].extents;
        assert_eq!(free(status), all);
        for extent in 0..all as u64 {
            assert_eq!(write(&there, &volume, extent << 14, 7).await, Status::Ok);
        }
        assert_eq!(free(pool.status(&there).await), 0);
        assert_eq!(write(&there, &volume, (all as u64) << 14, 7).await, Status::NoSpace);
        assert_eq!(read(&there, &volume, 0).await, Ok(7), "what is there stays");
        let channel = volume.open_channel(&there).unwrap();
        let trimmed = channel.submit(Io::new(Op::Unmap, Lba(0), 3 << 14)).await;
        assert_eq!(trimmed.status, Status::Ok);
        assert_eq!(free(pool.status(&there).await), 3);
        assert_eq!(read(&there, &volume, 0).await, Ok(0));
        assert_eq!(write(&there, &volume, 5, 9).await, Status::Ok);
        drop((channel, volume));
        pool.delete_volume(&there, "v").await.unwrap();
        assert_eq!(free(pool.status(&there).await), all);
        pool.close(&there).await;
    });
}

#[test]
fn foreign_devices_and_wrong_pairs_are_refused_and_untouched() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let (one, other) = (devices(4096), devices(4096));
        let LogDevice::Block(log) = &other.log else { unreachable!() };
        assert_eq!(write(&there, log, 3, 0xEE).await, Status::Ok);
        let refused = create(there.clone(), other.clone(), 1).await.unwrap_err().to_string();
        assert!(refused.contains("'log' is in use"), "{refused}");
        assert_eq!(read(&there, log, 3).await, Ok(0xEE));
        let none = open(there.clone(), other.clone()).await.err().expect("there is no pool").to_string();
        assert!(none.contains("pool"), "{none}");
        create(there.clone(), one.clone(), 1).await.unwrap();
        assert_eq!(write(&there, log, 3, 0).await, Status::Ok);
        create(there.clone(), other.clone(), 1).await.unwrap();
        let mixed = PoolDevices { log: one.log.clone(), capacity: other.capacity.clone() };
        let refused = open(there.clone(), mixed).await.err().expect("not a pair").to_string();
        assert!(refused.contains("'log' is the log of pool 'pool'"), "{refused}");
        let swapped = PoolDevices { log: LogDevice::Block(other.capacity.clone()), capacity: log.clone() };
        let refused = open(there.clone(), swapped).await.err().expect("not in that order").to_string();
        assert!(refused.contains("is its log device, not its capacity device"), "{refused}");
        open(there.clone(), one).await.unwrap().close(&there).await;
        open(there.clone(), other).await.unwrap().close(&there).await;
    });
}

#[test]
fn volumes_report_how_much_is_atomic() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let (pool, large) = pool_with_volume(&there, devices(4096), 1, 4096, 12).await;
        let info = large.info();
        assert_eq!((info.atomic_write_blocks, info.atomic_boundary_blocks), (16, 1024));
        let small = pool.create_volume(&there, "small", 4096, 9, 0).await.unwrap().info();
        assert_eq!((small.block_size, small.atomic_write_blocks, small.atomic_boundary_blocks), (512, 8, 8));
        let channel = large.open_channel(&there).unwrap();
        let buf = there.pool().alloc(64 << 10).await;
        let over_the_boundary = Io { flags: Flags::ATOMIC, ..Io::write(Lba(1020), 16, one(buf)) };
        assert_eq!(channel.submit(over_the_boundary).await.status, Status::Invalid);
        let taken = pool.create_volume(&there, "v", 1, 12, 0).await.err().expect("the name is taken").to_string();
        assert!(taken.contains("already has a volume 'v'"), "{taken}");
        pool.close(&there).await;
    });
}
