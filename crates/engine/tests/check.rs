//! Checking pools that are not open: what is sound is called sound, what is damaged is named, and repairs restore copies.

mod common;

use bdev::BlockDevice;
use common::disk::Disk;
use common::tank::*;
use common::*;
use engine::{CheckOptions, Pool, Severity};
use std::sync::Arc;

const ALL: CheckOptions = CheckOptions { payloads: true, data: true, repair: false };
const REPAIR: CheckOptions = CheckOptions { payloads: false, data: false, repair: true };

#[test]
fn a_sound_pool_is_called_sound_and_checking_changes_nothing() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    block_on(&reactor, async move {
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
    block_on(&reactor, async move {
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
    block_on(&reactor, async move {
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
    block_on(&reactor, async move {
        let superblock = tank.superblock().await;
        let region = superblock.shard_regions(1).next().unwrap();
        // Shard 1 has slice 0 of volume 1; its extent 0 holds blocks 0, 1 and 5, of which 5 is newer in the log.
        tank.capacity.flip(region.data_start() + 5, 0);
        assert!(tank.check(ALL).await.is_sound(), "what is stale may rot");
        tank.capacity.flip(region.data_start() + 1, 0);
        let report = tank.check(ALL).await;
        assert_eq!((report.counts.corrupt_blocks, report.counts.data_blocks), (1, 7));
        let finding = &report.findings[0];
        assert_eq!((finding.severity, finding.object.as_str()), (Severity::Error, "volume 1"));
        assert!(finding.meaning.contains(": 1-1"), "{finding}");
        assert!(tank.check(CheckOptions::default()).await.is_sound(), "data was not asked for");
    });
}

#[test]
fn a_pool_that_does_not_open_is_checked_and_a_missing_log_is_named() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    block_on(&reactor, async move {
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
    let reactor = reactor();
    block_on(&reactor.clone(), async move {
        let tank = Tank { reactor, log: Disk::new("log", 64), capacity: Disk::new("capacity", 64) };
        let report = tank.check(CheckOptions { repair: true, ..ALL }).await;
        assert_eq!((report.findings.len(), report.pool.as_ref()), (2, None));
        assert!(report.findings[0].meaning.contains("blank"), "{}", report.findings[0]);
    });
}
