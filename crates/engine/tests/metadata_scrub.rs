//! Scrubs of metadata: what rots under an open pool is named, and written anew from what is right elsewhere or in memory.

use crate::common::disk::Disk;
use crate::common::reactor;
use crate::common::tank::*;
use engine::{BadMetadata, CheckOptions, MetadataKind, Pool, Rot, ScrubStatus, Superblock};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A bit in the checksum of whatever has a header.
const BIT: usize = 75;
const DATA: CheckOptions = CheckOptions { payloads: true, data: true, repair: false };

pub async fn scrubbed(tank: &Tank, pool: &Pool) -> Vec<ScrubStatus> {
    pool.scrub(&tank.reactor, u64::MAX).await;
    loop {
        let shards = pool.status(&tank.reactor).await.shards;
        if shards.iter().all(|shard| !shard.scrub.running) {
            return shards.into_iter().map(|shard| shard.scrub).collect();
        }
        tank.reactor.yield_now().await;
    }
}

/// Where metadata lie on the device with the log, or with the capacity.
fn is_metadata(superblock: &Superblock, on_log: bool, block: u64) -> bool {
    let in_region = superblock.regions.iter().any(|region| (region.start..region.data_start()).contains(&block));
    match (superblock.bands.bands > 0, on_log) {
        (false, true) => block < 2,
        (false, false) => block < superblock.regions[0].start || in_region,
        (true, true) => block < 2 || block >= superblock.bands.index_start as u64,
        (true, false) => block < superblock.bands.start,
    }
}

/// Metadata that are not zeroes: on the log device, and the block.
fn metadata(tank: &Tank, superblock: &Superblock) -> Vec<(bool, u64)> {
    let of = |disk: &Arc<Disk>, on_log| {
        let used = disk.image().into_iter().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        let blocks = used.map(|(block, _)| block).filter(move |block| is_metadata(superblock, on_log, *block));
        blocks.map(move |block| (on_log, block)).collect::<Vec<_>>()
    };
    [of(&tank.log, true), of(&tank.capacity, false)].concat()
}

fn all_bad(scrubs: &[ScrubStatus]) -> Vec<BadMetadata> {
    scrubs.iter().flat_map(|scrub| scrub.bad_metadata.clone()).collect()
}

fn counts(scrubs: &[ScrubStatus]) -> (u64, u64) {
    let sum = |of: fn(&ScrubStatus) -> u64| scrubs.iter().map(of).sum();
    (sum(|scrub| scrub.damaged_metadata), sum(|scrub| scrub.repaired_metadata))
}

async fn expect_content(tank: &Tank, pool: &Pool, when: &str) {
    let volume = pool.volume("v").unwrap();
    for block in SETTLED.into_iter().chain(LOGGED) {
        assert_eq!(tank.read(&volume, block).await, Ok(Tank::expected(block)), "block {block}, {when}");
    }
}

/// Nothing is left of it, neither for an opening nor, in a shaped pool, for the loss of the log device.
async fn expect_whole(tank: Tank, is_shaped: bool, when: &str) {
    let report = tank.check(DATA).await;
    assert!(report.findings.is_empty(), "{when}: {:?}", report.findings);
    let pool = tank.open().await.unwrap();
    expect_content(&tank, &pool, when).await;
    pool.close(&tank.reactor).await;
    if is_shaped {
        let tank = Tank { log: Disk::new("new-log", SHAPED_LOG_BLOCKS), ..tank };
        let done = Pool::forget_log(&tank.reactor, &tank.devices(), false, &Default::default()).await.unwrap();
        assert_eq!((done.slices, done.unfound), (0, Some(Vec::new())), "{when}");
        let pool = tank.open().await.unwrap();
        expect_content(&tank, &pool, when).await;
        pool.close(&tank.reactor).await;
    }
}

#[test]
fn whatever_of_the_metadata_rots_under_an_open_pool_is_named_and_written_anew() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let tank = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            let superblock = tank.superblock().await;
            let probe = tank.fork();
            let pool = probe.open().await.unwrap();
            pool.settle(&probe.reactor).await.unwrap();
            let places = metadata(&probe, &superblock);
            let clean = scrubbed(&probe, &pool).await;
            assert_eq!((counts(&clean), all_bad(&clean)), ((0, 0), Vec::new()));
            assert!(clean.iter().all(|scrub| scrub.good_metadata >= 8 && scrub.metadata_done), "{clean:?}");
            pool.close(&probe.reactor).await;
            let mut kinds = BTreeSet::new();
            for (on_log, block) in places {
                let tank = tank.fork();
                let pool = tank.open().await.unwrap();
                pool.settle(&tank.reactor).await.unwrap();
                // Now the map pages are in memory.
                expect_content(&tank, &pool, "at first").await;
                let disk = if on_log { &tank.log } else { &tank.capacity };
                disk.flip(block, BIT);
                let scrubs = scrubbed(&tank, &pool).await;
                let (found, when) = (all_bad(&scrubs), format!("after block {block} (on the log: {on_log})"));
                assert!(found.len() <= 1, "{when}: {found:?}");
                assert_eq!(counts(&scrubs), (found.len() as u64, found.len() as u64), "{when}: {found:?}");
                for bad in found {
                    assert_eq!((bad.on_log, bad.repaired), (on_log, true), "{when}: {bad:?}");
                    assert!(
                        bad.block == block || bad.kind == MetadataKind::MapPage && bad.block + 1 == block,
                        "{bad:?}"
                    );
                    assert!(bad.meaning().contains("nothing is lost"));
                    kinds.insert((bad.kind, bad.of_shadow, bad.on_log, bad.rot));
                }
                let again = scrubbed(&tank, &pool).await;
                assert_eq!((counts(&again), all_bad(&again)), ((0, 0), Vec::new()), "{when}");
                pool.close(&tank.reactor).await;
                expect_whole(tank, is_shaped, &when).await;
            }
            use MetadataKind::*;
            let mut expected = BTreeSet::from([
                (Superblock, false, true, Rot::OneCopy),
                (Superblock, false, false, Rot::OneCopy),
                (Catalog, false, false, Rot::OneCopy),
                (Root, false, is_shaped, Rot::OneCopy),
                (TablePage, false, is_shaped, Rot::OneCopy),
                (MapPage, false, is_shaped, Rot::All),
                (Journal, false, false, Rot::All),
            ]);
            if is_shaped {
                expected.extend([(Root, true, false, Rot::OneCopy), (TablePage, true, false, Rot::OneCopy)]);
                expected.insert((MapPage, true, false, Rot::All));
            }
            assert_eq!(kinds, expected);
        });
    }
}

#[test]
fn all_copies_of_what_the_pool_has_in_memory_may_rot() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let tank = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            let superblock = tank.superblock().await;
            let pool = tank.open().await.unwrap();
            pool.settle(&tank.reactor).await.unwrap();
            expect_content(&tank, &pool, "at first").await;
            for (on_log, block) in metadata(&tank, &superblock) {
                let disk = if on_log { &tank.log } else { &tank.capacity };
                disk.flip(block, BIT);
            }
            let scrubs = scrubbed(&tank, &pool).await;
            let (damaged, repaired) = counts(&scrubs);
            assert!(damaged >= 20 && damaged == repaired, "{scrubs:?}");
            assert!(all_bad(&scrubs).iter().all(|bad| bad.repaired && bad.rot == Rot::All), "{scrubs:?}");
            let counted = pool.status(&tank.reactor).await.shards;
            let counted = counted.iter().map(|shard| shard.damaged_metadata - shard.repaired_metadata).sum::<u64>();
            assert_eq!(counted, 0);
            let again = scrubbed(&tank, &pool).await;
            assert_eq!((counts(&again), all_bad(&again)), ((0, 0), Vec::new()));
            pool.close(&tank.reactor).await;
            expect_whole(tank, is_shaped, "after all of it").await;
        });
    }
}

#[test]
fn a_map_page_that_nothing_has_is_told_and_one_of_the_shadow_is_copied_from_the_index() {
    let reactor = reactor();
    let tank = Tank::shaped_filled(&reactor);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        pool.settle(&tank.reactor).await.unwrap();
        pool.close(&tank.reactor).await;
        let superblock = tank.superblock().await;
        let shadow = superblock.shadow().unwrap();
        let maps = |of: &Superblock, disk: &Arc<Disk>| {
            let image = disk.image();
            let slots = of.regions.iter().flat_map(|region| (0..region.extents).map(move |extent| (region, extent)));
            let slots = slots.flat_map(|(region, extent)| [0, 1].map(|slot| region.map_slot(extent, slot)));
            slots.filter(|block| image.contains_key(block)).collect::<Vec<u64>>()
        };
        // Pages are in memory no more.
        let pool = tank.open().await.unwrap();
        let of_shadow = maps(&shadow, &tank.capacity);
        of_shadow.iter().for_each(|block| tank.capacity.flip(*block, BIT));
        let scrubs = scrubbed(&tank, &pool).await;
        let found = all_bad(&scrubs);
        assert!(!found.is_empty() && counts(&scrubs) == (found.len() as u64, found.len() as u64), "{scrubs:?}");
        assert!(
            found.iter().all(|bad| bad.kind == MetadataKind::MapPage && bad.of_shadow && bad.repaired),
            "{found:?}"
        );
        pool.close(&tank.reactor).await;
        expect_whole(tank.fork(), true, "after map pages of the shadow").await;

        let pool = tank.open().await.unwrap();
        maps(&superblock, &tank.log).iter().for_each(|block| tank.log.flip(*block, BIT));
        let scrubs = scrubbed(&tank, &pool).await;
        let found = all_bad(&scrubs);
        let (damaged, repaired) = counts(&scrubs);
        assert!(damaged > 0 && repaired == 0 && damaged == found.len() as u64, "{scrubs:?}");
        assert!(found.iter().all(|bad| bad.on_log && bad.rot == Rot::All && !bad.repaired), "{found:?}");
        assert!(found.iter().all(|bad| bad.meaning().contains("restore")), "{found:?}");
        // All blocks of their extents.
        assert_eq!(scrubs.iter().map(|scrub| scrub.corrupt_blocks).sum::<u64>(), damaged * 1024);
        pool.close(&tank.reactor).await;
    });
}

#[test]
fn a_shadow_that_cannot_be_opened_is_made_anew() {
    let reactor = reactor();
    let tank = Tank::shaped_filled(&reactor);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        pool.settle(&tank.reactor).await.unwrap();
        pool.close(&tank.reactor).await;
        let shadow = tank.superblock().await.shadow().unwrap();
        let pool = tank.open().await.unwrap();
        [0, 1].iter().for_each(|copy| tank.capacity.flip(shadow.root_copy(0, *copy), BIT));
        let tables = [0, 1].map(|slot| shadow.shard_regions(1).next().unwrap().table_slot(0, slot));
        tables.iter().for_each(|block| tank.capacity.flip(*block, BIT));
        let scrubs = scrubbed(&tank, &pool).await;
        assert_eq!(counts(&scrubs), (2, 2), "{scrubs:?}");
        assert!(
            all_bad(&scrubs).iter().all(|bad| bad.of_shadow && bad.kind == MetadataKind::Root && bad.rot == Rot::All)
        );
        // Until it has been copied, all of it would be lost with the log device, and that is told.
        assert!(pool.status(&tank.reactor).await.shards.iter().all(|shard| shard.dirty_slices > Some(0)));
        pool.settle(&tank.reactor).await.unwrap();
        assert!(pool.status(&tank.reactor).await.shards.iter().all(|shard| shard.dirty_slices == Some(0)));
        assert_eq!(counts(&scrubbed(&tank, &pool).await), (0, 0));
        pool.close(&tank.reactor).await;
        expect_whole(tank, true, "after the shadow").await;
    });
}

#[test]
fn a_scrub_that_goes_on_reads_the_metadata_anew_unless_it_had_ended() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        pool.settle(&tank.reactor).await.unwrap();
        tank.capacity.flip(0, BIT);
        // It gets no further than what is read first.
        pool.scrub(&tank.reactor, 1).await;
        let status = loop {
            let status = pool.status(&tank.reactor).await.shards.swap_remove(0).scrub;
            if status.damaged_metadata > 0 {
                break status;
            }
            tank.reactor.yield_now().await;
        };
        assert_eq!((status.repaired_metadata, status.metadata_done, status.extents_done), (1, false, 0));
        pool.cancel_scrub(&tank.reactor).await;
        let noted = pool.scrub_notes(&tank.reactor).await.unwrap();
        pool.close(&tank.reactor).await;
        let pool = tank.open().await.unwrap();
        pool.adopt_scrub(&tank.reactor, noted).await;
        let scrubs = scrubbed(&tank, &pool).await;
        assert_eq!((counts(&scrubs), all_bad(&scrubs).len()), ((1, 1), 1), "{scrubs:?}");
        assert!(scrubs.iter().all(|scrub| scrub.metadata_done && scrub.completed == 1 && scrub.good_metadata >= 8));
        let stand = pool.scrub_stand(&tank.reactor).await.unwrap();
        assert_eq!(stand.found, 2);
        pool.close(&tank.reactor).await;
    });
}
