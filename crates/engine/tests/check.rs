//! Checking pools that are not open: what is sound is called sound, what is damaged is named, and repairs restore copies.

use crate::common::disk::Disk;
use crate::common::tank::*;
use crate::common::*;
use bdev::BlockDevice;
use engine::{CheckOptions, CheckReport, Pool, Severity};
use std::sync::Arc;

const ALL: CheckOptions = CheckOptions { payloads: true, data: true, repair: false };
const REPAIR: CheckOptions = CheckOptions { payloads: false, data: false, repair: true };

#[test]
fn a_sound_pool_is_called_sound_and_checking_changes_nothing() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let before = (tank.log.image(), tank.capacity.image());
        for options in [ALL, CheckOptions { repair: true, ..ALL }] {
            let report = tank.check(options).await;
            assert!(report.findings.is_empty(), "{:?}", report.findings);
            let counts = report.counts;
            assert_eq!((counts.superblocks, counts.catalogs, counts.roots, counts.volumes), (4, 2, 4, 1));
            assert_eq!((counts.extents, counts.map_pages, counts.dirty_slices), (4, 4, 2));
            assert_eq!((counts.records, counts.payload_blocks, counts.data_blocks), (3, 3, 8));
            assert_eq!((tank.log.image(), tank.capacity.image()), before);
        }
    });
}

#[test]
fn a_damaged_copy_is_a_warning_and_is_repaired_from_the_other() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let superblock = tank.superblock().await;
        let before = (tank.log.image(), tank.capacity.image());
        let mut places = vec![(&tank.log, 0), (&tank.log, 1), (&tank.capacity, 0), (&tank.capacity, 1)];
        places.extend((0..2).map(|copy| (&tank.capacity, superblock.catalog_copy(copy))));
        places.extend((0..4u8).map(|copy| (&tank.capacity, superblock.root_copy(copy as u16 / 2, copy % 2))));
        places.extend(superblock.regions.iter().map(|region| (&tank.capacity, region.table_slot(0, 0))));
        for (device, block) in places {
            device.flip(block, 99);
            let report = tank.check(ALL).await;
            assert_eq!(report.worst(), Some(Severity::Warning), "block {block}: {:?}", report.findings);
            let report = tank.check(REPAIR).await;
            assert!(report.is_sound() && report.findings[0].repaired, "block {block}: {:?}", report.findings);
            assert_eq!((tank.log.image(), tank.capacity.image()), before, "block {block}");
        }
    });
}

#[test]
fn superblocks_that_are_gone_are_restored_from_the_other_device() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        for device in [tank.log.clone(), tank.capacity.clone()] {
            for copy in 0..2 {
                device.poke(copy, &[0xAA; 4096]);
            }
            assert!(tank.open().await.is_err());
            assert_eq!(tank.check(ALL).await.worst(), Some(Severity::Error));
            tank.check(REPAIR).await;
            let report = tank.check(ALL).await;
            assert!(report.is_sound(), "{:?}", report.findings);
            let pool = tank.open().await.unwrap();
            let volume = pool.volume("v").unwrap();
            assert_eq!((tank.read(&volume, 5).await, tank.read(&volume, 1).await), (Ok(2), Ok(1)));
            pool.close(&tank.reactor).await;
        }
    });
}

#[test]
fn a_rotten_block_is_named_with_its_volume_and_number() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let superblock = tank.superblock().await;
        let region = superblock.shard_regions(1).next().unwrap();
        // Shard 1 has slice 0 of volume 1; its extent 0 holds blocks 0, 1 and 5, of which 5 is newer in the log.
        tank.capacity.flip(region.data_start() + 5, 0);
        assert!(tank.check(ALL).await.is_sound(), "what is stale may rot");
        tank.capacity.flip(region.data_start() + 1, 0);
        let report = tank.check(ALL).await;
        assert_eq!((report.counts.corrupt_blocks, report.counts.data_blocks), (1, 7));
        let finding = &report.findings[0];
        assert_eq!((finding.severity, finding.object.as_str()), (Severity::Error, "volume 'v'"));
        assert!(finding.meaning.contains(": 1-1"), "{finding}");
        assert!(tank.check(CheckOptions::default()).await.is_sound(), "data was not asked for");
    });
}

#[test]
fn a_pool_that_does_not_open_is_checked_and_a_missing_log_is_named() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let capacity: Arc<dyn BlockDevice> = tank.capacity.clone();
        let report = Pool::check(&tank.reactor, &capacity, None, ALL).await.unwrap();
        assert!(report.findings.iter().any(|finding| finding.advice.contains("forget-log")), "{:?}", report.findings);
        assert_eq!(report.counts.map_pages, 4);
        let superblock = tank.superblock().await;
        for copy in 0..2 {
            tank.capacity.flip(superblock.root_copy(0, copy), 200);
        }
        assert!(tank.open().await.is_err());
        let report = tank.check(CheckOptions { repair: true, ..ALL }).await;
        assert_eq!(report.worst(), Some(Severity::Error));
        assert!(report.findings[0].object.contains("root of shard 0"), "{}", report.findings[0]);
        assert_eq!((report.counts.roots, report.counts.map_pages), (2, 3), "the other shard was checked");
    });
}

#[test]
fn a_device_without_a_pool_is_named_as_such() {
    let there = reactor();
    let reactor = there.clone();
    there.block_on(async move {
        let tank = Tank { reactor, log: Disk::new("log", 64), capacity: Disk::new("capacity", 64) };
        let report = tank.check(CheckOptions { repair: true, ..ALL }).await;
        assert_eq!((report.findings.len(), report.pool.as_ref()), (2, None));
        assert!(report.findings[0].meaning.contains("blank"), "{}", report.findings[0]);
    });
}

#[test]
fn a_table_page_that_is_damaged_twice_is_given_up_by_a_repair_and_nothing_stale_comes_back() {
    let reactor = reactor();
    let tank = Tank::new(&reactor, 80);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        // Slices 0 and 2 are of shard 1.
        for block in [0, 1, 1024, 16 * 1024, 32 * 1024] {
            tank.write(&volume, block, 1).await;
        }
        pool.settle(&tank.reactor).await.unwrap();
        // Over extents of the page, and in one of which the log alone knows.
        for block in [1, 2, 16 * 1024, 2048] {
            tank.write(&volume, block, 2).await;
        }
        pool.close(&tank.reactor).await;
        drop((pool, volume));
        let region = *tank.superblock().await.shard_regions(1).next().unwrap();
        (0..2).for_each(|slot| tank.capacity.flip(region.table_slot(0, slot), 99));
        let error = tank.open().await.err().unwrap().to_string();
        assert!(error.contains("table page 0 of shard 1") && error.contains("pool check"), "{error}");

        let before = tank.capacity.image();
        let report = tank.check(CheckOptions::default()).await;
        let finding = report.findings.iter().find(|finding| finding.object.contains("table page")).unwrap();
        assert!(finding.meaning.contains("31 extents of 4 MiB of volume 'v'"), "{finding}");
        assert!(finding.severity == Severity::Error && finding.advice.contains("repair"), "{finding}");
        assert_eq!(tank.capacity.image(), before, "nothing is given up unless it is asked for");
        let report = tank.check(REPAIR).await;
        assert!(report.is_sound(), "{:?}", report.findings);
        let report = tank.check(CheckOptions::default()).await;
        assert!(report.is_sound_but_for_losses(), "{:?}", report.findings);

        for life in 0..2 {
            let pool = tank.open().await.unwrap();
            let volume = pool.volume("v").unwrap();
            // What may have been in the page is lost, written or not; what the log or other pages know is not.
            for block in [0, 1, 2, 1024, 1025, 5 * 1024, 32 * 1024, 33 * 1024] {
                assert_eq!(tank.read(&volume, block).await, Err(bdev::Status::ReadError), "block {block}, life {life}");
            }
            assert_eq!((tank.read(&volume, 2048).await, tank.read(&volume, 2049).await), (Ok(2), Ok(0)));
            assert_eq!((tank.read(&volume, 16 * 1024).await, tank.read(&volume, 20 * 1024).await), (Ok(2), Ok(0)));
            let audit = pool.audit(&tank.reactor).await.unwrap();
            assert!(audit.problems.is_empty(), "{:?}", audit.problems);
            if life == 1 {
                for block in [0, 1, 1024, 33 * 1024] {
                    tank.write(&volume, block, 3).await;
                }
                pool.settle(&tank.reactor).await.unwrap();
                for block in [0, 1, 1024, 33 * 1024] {
                    assert_eq!(tank.read(&volume, block).await, Ok(3), "written again, block {block} is well");
                }
                assert_eq!(tank.read(&volume, 2).await, Err(bdev::Status::ReadError));
            }
            pool.close(&tank.reactor).await;
        }
        assert!(tank.check(CheckOptions::default()).await.is_sound_but_for_losses());
    });
}

#[test]
fn a_table_page_is_not_given_up_when_there_is_no_room_to_note_what_is_lost() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let region = *tank.superblock().await.shard_regions(1).next().unwrap();
        (0..2).for_each(|slot| tank.capacity.flip(region.table_slot(0, slot), 99));
        let before = tank.capacity.image();
        let report = tank.check(REPAIR).await;
        assert_eq!((report.worst(), tank.capacity.image()), (Some(Severity::Error), before));
        let finding = report.findings.iter().find(|finding| finding.object.contains("table page")).unwrap();
        assert!(finding.advice.contains("cannot be repaired"), "{finding}");
    });
}

#[test]
fn of_a_volume_larger_than_its_pool_the_whole_range_is_named_that_a_damaged_table_page_may_cost() {
    const SLICES: u64 = 1001;
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        pool.create_volume(&tank.reactor, "big", SLICES * 16 * 1024 - 5 * 1024, 12, 0).await.unwrap();
        pool.close(&tank.reactor).await;
        let region = *tank.superblock().await.shard_regions(0).next().unwrap();
        (0..2).for_each(|slot| tank.capacity.flip(region.table_slot(0, slot), 99));
        let report = tank.check(REPAIR).await;
        let finding = report.findings.iter().find(|finding| finding.object.contains("table page")).unwrap();
        // Its slices 0, 2, 4 ... are of shard 0, and the last one has 11 extents.
        let (extents, last) = (501 * 16 - 5, SLICES * 16 - 6);
        let expected = format!("{extents} extents of 4 MiB of volume 'big', from number 0 to {last},");
        assert!(finding.meaning.contains(&expected), "{finding}");
        assert!(finding.advice.contains("cannot be repaired"), "{finding}");
    });
}

#[test]
fn a_table_page_that_cannot_be_read_is_given_up_by_a_repair_after_a_long_time_alone() {
    // Time passes as it is waited for.
    let reactor = clock_reactor();
    let tank = Tank::new(&reactor, 80);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        tank.write(&pool.volume("v").unwrap(), 0, 1).await;
        pool.settle(&tank.reactor).await.unwrap();
        pool.close(&tank.reactor).await;
        drop(pool);
        let region = *tank.superblock().await.shard_regions(1).next().unwrap();
        let refuse = |tank: &Tank, reads| {
            (0..2).for_each(|slot| tank.capacity.refuse_reads(region.table_slot(0, slot), reads));
        };
        let of_table = |report: &CheckReport| {
            let found = report.findings.iter().find(|finding| finding.object.contains("table page"));
            found.map(|finding| (finding.repaired, finding.advice.contains("can be read")))
        };
        let before = tank.capacity.image();
        refuse(&tank, 15);
        assert_eq!(of_table(&tank.check(REPAIR).await), None, "it comes back");
        assert_eq!(tank.capacity.image(), before);
        refuse(&tank, u64::MAX);
        assert_eq!(of_table(&tank.check(CheckOptions::default()).await), Some((false, true)));
        let begun_ns = tank.reactor.now_ns();
        assert_eq!(of_table(&tank.check(REPAIR).await), Some((true, false)));
        assert!(tank.reactor.now_ns() - begun_ns >= 30_000_000_000, "of virtual time");
        refuse(&tank, 0);
        let pool = tank.open().await.unwrap();
        let read = tank.read(&pool.volume("v").unwrap(), 0).await;
        assert_eq!(read, Err(bdev::Status::ReadError), "its extent was in the page");
        pool.close(&tank.reactor).await;
    });
}

/// Makes both copies of a shard's journal invalid.
async fn damage_journal(tank: &Tank, shard: u16) {
    let superblock = tank.superblock().await;
    (0..2).for_each(|copy| tank.capacity.flip(superblock.journal_copy(shard, copy), 99));
}

#[test]
fn a_journal_that_is_damaged_twice_is_made_anew_from_the_log_and_names_what_is_lost_with_that() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let tank = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            for shard in 0..SHARDS {
                damage_journal(&tank, shard).await;
            }
            let error = tank.open().await.err().unwrap().to_string();
            assert!(error.contains("the dirty journal of shard") && error.contains("'pool check --repair'"), "{error}");
            let before = tank.capacity.image();
            let report = tank.check(CheckOptions { data: false, ..ALL }).await;
            assert_eq!((report.worst(), report.findings.len()), (Some(Severity::Error), SHARDS as usize), "{report:?}");
            assert!(
                report.findings.iter().all(|finding| finding.advice.contains("slices are found again")),
                "{report:?}"
            );
            assert_eq!(tank.capacity.image(), before);
            // Without the log nobody knows.
            let capacity: Arc<dyn BlockDevice> = tank.capacity.clone();
            Pool::check(&tank.reactor, &capacity, None, REPAIR).await.unwrap();
            assert_eq!(tank.capacity.image(), before);
            // Cut off anywhere, the repair can be made again.
            for writes in 0..5 {
                tank.capacity.fail_after(writes);
                tank.check(REPAIR).await;
            }
            tank.capacity.fail_after(u64::MAX);
            tank.check(REPAIR).await;
            assert!(tank.check(ALL).await.findings.is_empty(), "{:?}", tank.check(ALL).await);

            let lost = tank.fork();
            let lost = Tank { log: Disk::new("new-log", lost.log.info().blocks), ..lost };
            Pool::forget_log(&lost.reactor, &lost.devices(), false, &Default::default()).await.unwrap();
            let pool = lost.open().await.unwrap();
            let volume = pool.volume("v").unwrap();
            for block in LOGGED {
                assert_eq!(lost.read(&volume, block).await, Err(bdev::Status::ReadError), "block {block}");
            }
            // Slice 2 had nothing in the log.
            assert_eq!(lost.read(&volume, 32 * 1024).await, Ok(1));
            pool.close(&lost.reactor).await;

            let pool = tank.open().await.unwrap();
            let volume = pool.volume("v").unwrap();
            for block in SETTLED.into_iter().chain(LOGGED) {
                assert_eq!(tank.read(&volume, block).await, Ok(Tank::expected(block)), "block {block}");
            }
            pool.settle(&tank.reactor).await.unwrap();
            pool.close(&tank.reactor).await;
            assert!(tank.check(ALL).await.findings.is_empty());
        });
    }
}

#[test]
fn slices_that_a_rotten_end_of_the_journal_has_taken_with_it_are_put_back_by_a_repair() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let superblock = tank.superblock().await;
        let image = tank.capacity.image();
        let mut rotten = 0;
        for copy in (0..SHARDS).flat_map(|shard| (0..2).map(move |copy| (shard, copy))) {
            // Its last block that is in use, but the first one: without that the copy is not valid.
            let first = superblock.journal_copy(copy.0, copy.1);
            let used = |block: &u64| image.get(block).is_some_and(|bytes| bytes.starts_with(b"RMDADIRT"));
            if let Some(last) = (first + 1..first + superblock.journal_blocks as u64).rev().find(used) {
                tank.capacity.flip(last, 99);
                rotten += 1;
            }
        }
        assert!(rotten > 0, "additions are in blocks of their own");
        let report = tank.check(ALL).await;
        assert_eq!(report.worst(), Some(Severity::Warning), "{report:?}");
        let names = |slice| format!("of slices that it does not name (slice {slice} of volume 'v')");
        let meaning = &report.findings[0].meaning;
        assert!(meaning.contains(&names(0)) || meaning.contains(&names(1)), "{report:?}");
        // An opening puts them back as well.
        let opened = tank.fork();
        opened.open().await.unwrap().close(&opened.reactor).await;
        assert!(opened.check(ALL).await.findings.is_empty());
        let report = tank.check(REPAIR).await;
        assert!(report.is_sound(), "{report:?}");
        assert!(tank.check(ALL).await.findings.is_empty());
    });
}

#[test]
fn superblocks_are_not_restored_to_an_older_log_nor_from_an_older_capacity_device() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let old = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            let new = old.fork();
            let pool = new.open().await.unwrap();
            new.write(&pool.volume("v").unwrap(), 0, 9).await;
            pool.close(&new.reactor).await;
            let wipe = |tank: &Tank| (0..2).for_each(|copy| tank.log.poke(copy, &[0; 4096]));
            for stale in new.with_older(&old) {
                wipe(&stale);
                let before = (stale.log.image(), stale.capacity.image());
                let report = stale.check(CheckOptions { repair: true, ..ALL }).await;
                assert_eq!(report.worst(), Some(Severity::Error), "{report:?}");
                assert_eq!((stale.log.image(), stale.capacity.image()), before, "{report:?}");
                assert!(stale.open().await.is_err());
            }
            // The right one is known by what it has of the last opening, or by how that ended.
            for _ in 0..2 {
                let right = new.fork();
                wipe(&right);
                assert!(right.check(REPAIR).await.is_sound(), "{:?}", right.check(ALL).await);
                let pool = right.open().await.unwrap();
                assert_eq!(right.read(&pool.volume("v").unwrap(), 0).await, Ok(9));
                pool.close(&right.reactor).await;
                new.open().await.unwrap().close(&new.reactor).await;
            }
        });
    }
}

/// What a pool has as the shadow of its index, of the image of a capacity device that `of` is.
fn shadow_blocks(superblock: &engine::Superblock) -> Vec<u64> {
    let shadow = superblock.shadow().expect("new shaped pools have one");
    let roots = (0..SHARDS).flat_map(|shard| {
        let first = shadow.root_copy(shard, 0);
        first..first + 2 * shadow.root_blocks as u64
    });
    let pages = shadow.regions.iter().flat_map(|region| region.start..region.map_slot(region.extents - 1, 1) + 1);
    roots.chain(pages).collect()
}

/// Gives the log up for a new one: how many slices are lost with it.
async fn lost_with_log(tank: &Tank) -> u64 {
    let tank = Tank { log: Disk::new("new-log", SHAPED_LOG_BLOCKS), ..tank.fork() };
    Pool::forget_log(&tank.reactor, &tank.devices(), false, &Default::default()).await.unwrap().slices
}

#[test]
fn a_shadow_that_is_damaged_or_not_what_the_index_is_is_found_and_its_slices_are_in_the_journal_again() {
    let reactor = reactor();
    let tank = Tank::shaped(&reactor, 48);
    reactor.block_on(async move {
        let superblock = tank.superblock().await;
        let before = tank.capacity.image();
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        for block in SETTLED {
            tank.write(&volume, block, 1).await;
        }
        pool.settle(&tank.reactor).await.unwrap();
        pool.close(&tank.reactor).await;
        assert!(tank.check(ALL).await.findings.is_empty());
        assert_eq!(lost_with_log(&tank).await, 0);
        let zeroes = [0; 4096];
        let stale = |block: u64| before.get(&block).map_or(zeroes, |bytes| bytes[..].try_into().unwrap());
        let roots = 2 * SHARDS as usize * superblock.root_blocks as usize;
        for (is_stale, severity) in [(true, Severity::Error), (false, Severity::Warning)] {
            let tank = tank.fork();
            for block in shadow_blocks(&superblock).into_iter().take(if is_stale { usize::MAX } else { roots }) {
                tank.capacity.poke(block, &if is_stale { stale(block) } else { zeroes });
            }
            let report = tank.check(ALL).await;
            assert_eq!(report.worst(), Some(severity), "{report:?}");
            assert!(report.findings.iter().all(|finding| finding.object.contains("shadow")), "{report:?}");
            // It is in the way of nothing else.
            let used = tank.fork();
            let pool = used.open().await.unwrap();
            assert_eq!(used.read(&pool.volume("v").unwrap(), SETTLED[0]).await, Ok(1));
            pool.settle(&used.reactor).await.unwrap();
            pool.close(&used.reactor).await;
            let report = tank.check(REPAIR).await;
            assert!(report.is_sound() && report.findings.iter().all(|finding| finding.repaired), "{report:?}");
            assert!(tank.check(ALL).await.findings.is_empty());
            assert_eq!(lost_with_log(&tank).await, 3, "all of its slices are in the journal");
            let pool = tank.open().await.unwrap();
            pool.settle(&tank.reactor).await.unwrap();
            pool.close(&tank.reactor).await;
            assert!(tank.check(ALL).await.findings.is_empty());
            assert_eq!(lost_with_log(&tank).await, 0);
        }
    });
}
