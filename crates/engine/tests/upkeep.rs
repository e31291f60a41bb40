//! What an operator does with an open pool: growing it and scrubbing it.

use crate::common::tank::*;
use crate::common::*;
use bdev::{BlockDevice, Status};
use engine::{BadRun, CheckOptions, OpenOptions, Pool, ScrubStatus, ShardTuning};
use std::sync::Arc;

#[test]
fn a_pool_grows_while_it_is_open_and_is_found_grown() {
    let reactor = reactor();
    let tank = Tank::new(&reactor, 6);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        let error = pool.grow(&tank.reactor).await.unwrap_err().to_string();
        assert!(error.contains("growing this pool takes at least"), "{error}");
        let slice = |extent: u64| extent * 1024;
        for extent in 0..3 {
            tank.write(&volume, slice(extent), 1).await;
        }
        let extents = |status: engine::PoolStatus| status.shards.iter().map(|shard| shard.extents).sum::<u32>();
        let before = extents(pool.status(&tank.reactor).await);
        tank.capacity.enlarge(1024 * 40);
        let bytes = pool.grow(&tank.reactor).await.unwrap();
        let status = pool.status(&tank.reactor).await;
        assert_eq!((bytes, status.capacity_bytes), (1024 * 40 * 4096, 1024 * 40 * 4096));
        let after = extents(status);
        assert!(after > before + 20, "{before} extents, then {after}");
        for extent in 0..16 {
            tank.write(&volume, slice(extent) + 1, 2).await;
        }
        pool.settle(&tank.reactor).await.unwrap();
        tank.write(&volume, slice(15) + 2, 3).await;
        pool.close(&tank.reactor).await;
        let report = tank.check(engine::CheckOptions { data: true, ..Default::default() }).await;
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let pool = tank.open().await.unwrap();
        assert_eq!(extents(pool.status(&tank.reactor).await), after);
        let volume = pool.volume("v").unwrap();
        for extent in 0..16 {
            assert_eq!(tank.read(&volume, slice(extent) + 1).await, Ok(2));
            assert_eq!(tank.read(&volume, slice(extent)).await, Ok((extent < 3) as u8));
        }
        assert_eq!(tank.read(&volume, slice(15) + 2).await, Ok(3));
        pool.close(&tank.reactor).await;
    });
}

#[test]
fn a_scrub_names_rotten_blocks_and_goes_on_where_it_was_stopped() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let region = *tank.superblock().await.shard_regions(1).next().unwrap();
        tank.capacity.flip(region.data_start() + 1, 0);
        // Stale: the newest copy is in the log.
        tank.capacity.flip(region.data_start() + 5, 0);
        let pool = tank.open().await.unwrap();
        // So slowly that it ends with the first run of blocks.
        pool.scrub(&tank.reactor, 1).await;
        tank.reactor.yield_now().await;
        pool.cancel_scrub(&tank.reactor).await;
        let status = pool.status(&tank.reactor).await;
        assert!(status.shards.iter().all(|shard| !shard.scrub.running && shard.scrub.completed == 0));
        pool.scrub(&tank.reactor, u64::MAX).await;
        let shards = loop {
            let shards = pool.status(&tank.reactor).await.shards;
            if shards.iter().all(|shard| !shard.scrub.running) {
                break shards;
            }
            tank.reactor.yield_now().await;
        };
        let scrubs: Vec<_> = shards.into_iter().map(|shard| shard.scrub).collect();
        assert!(scrubs.iter().all(|scrub| scrub.completed == 1 && scrub.extents_done == scrub.extents_total));
        assert_eq!(scrubs.iter().map(|scrub| scrub.good_blocks).sum::<u64>(), 7);
        assert_eq!((scrubs[0].bad.len(), scrubs[1].corrupt_blocks), (0, 1));
        assert_eq!(scrubs[1].bad, [BadRun { volume: 1, first: 1, blocks: 1, lost: false, of: None }]);
        pool.scrub(&tank.reactor, 1).await;
        pool.close(&tank.reactor).await;
    });
}

#[test]
fn a_scrub_that_was_noted_goes_on_when_the_pool_is_opened_again() {
    let reactor = reactor();
    let tank = Tank::new(&reactor, 48);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        // One block in each of eight extents; their bytes are their extents' numbers.
        for extent in 0..8 {
            tank.write(&volume, extent * 1024, 1 + extent as u8).await;
        }
        pool.settle(&tank.reactor).await.unwrap();
        pool.close(&tank.reactor).await;
        let is_full = |bytes: &[u8]| bytes.iter().all(|byte| *byte == bytes[0] && (1..=8).contains(byte));
        let full = tank.capacity.image().into_iter().filter(|(_, bytes)| is_full(bytes));
        full.for_each(|(block, _)| tank.capacity.flip(block, 0));
        let pool = tank.open().await.unwrap();
        let shards = async |pool: &Pool| -> Vec<(u16, ScrubStatus)> {
            let status = pool.status(&tank.reactor).await;
            status.shards.into_iter().map(|shard| (shard.number, shard.scrub)).collect()
        };
        let bad = |shards: &[(u16, ScrubStatus)]| shards.iter().map(|(_, scrub)| scrub.corrupt_blocks).sum::<u64>();
        pool.scrub(&tank.reactor, u64::MAX).await;
        while bad(&shards(&pool).await) < 3 {
            assert!(shards(&pool).await.iter().any(|(_, scrub)| scrub.running), "{:?}", shards(&pool).await);
            tank.reactor.yield_now().await;
        }
        pool.cancel_scrub(&tank.reactor).await;
        let noted = shards(&pool).await;
        let found = bad(&noted);
        // (Sixteen extents in a row are on one shard: the other one has ended.)
        let ended = |shards: &[(u16, ScrubStatus)]| shards.iter().map(|(_, scrub)| scrub.completed).collect::<Vec<_>>();
        assert!((1..8).contains(&found) && ended(&noted) == [1, 0], "{noted:?}");
        pool.close(&tank.reactor).await;

        let pool = tank.open().await.unwrap();
        assert_eq!(bad(&shards(&pool).await), 0);
        pool.adopt_scrub(&tank.reactor, noted.clone()).await;
        assert_eq!(shards(&pool).await, noted);
        let before = (pool.status(&tank.reactor).await).shards.iter().map(|shard| shard.corrupt_blocks).sum::<u64>();
        scrubbed(&tank, &pool).await;
        let all = shards(&pool).await;
        assert_eq!(ended(&all), [1, 1], "who has ended does not begin anew");
        assert_eq!((bad(&all), all.iter().map(|(_, scrub)| scrub.bad.len()).sum::<usize>()), (8, 8));
        let read = (pool.status(&tank.reactor).await).shards.iter().map(|shard| shard.corrupt_blocks).sum::<u64>();
        // (What is bad is read once more before it counts.)
        assert_eq!(read - before, 2 * (8 - found), "what was passed is not read again");
        // What has begun since counts, and nothing that cannot be.
        pool.adopt_scrub(&tank.reactor, noted.clone()).await;
        assert_eq!(shards(&pool).await, all);
        pool.close(&tank.reactor).await;

        let pool = tank.open().await.unwrap();
        let larger =
            |(number, scrub): &(u16, ScrubStatus)| (*number, ScrubStatus { extents_total: 1 << 20, ..scrub.clone() });
        pool.adopt_scrub(&tank.reactor, noted.iter().map(larger).chain([(99, ScrubStatus::default())]).collect()).await;
        assert!(shards(&pool).await.iter().all(|(_, scrub)| *scrub == ScrubStatus::default()));
        pool.adopt_scrub(&tank.reactor, all.clone()).await;
        pool.scrub(&tank.reactor, 1).await;
        let anew = shards(&pool).await;
        assert_eq!(
            anew.iter().map(|(_, scrub)| scrub.bad_before).sum::<u64>(),
            8,
            "of one that has ended it begins anew"
        );
        pool.close(&tank.reactor).await;
    });
}

#[test]
fn what_is_bad_in_a_row_is_one_range() {
    let reactor = reactor();
    let tank = Tank::new(&reactor, 48);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        // Over the ends of what is read at once, and of an extent.
        for block in [31, 32, 1023, 1024] {
            tank.write(&volume, block, 1).await;
        }
        pool.settle(&tank.reactor).await.unwrap();
        pool.close(&tank.reactor).await;
        let full = tank.capacity.image().into_iter().filter(|(_, bytes)| bytes.iter().all(|byte| *byte == 1));
        full.for_each(|(block, _)| tank.capacity.flip(block, 0));
        let pool = tank.open().await.unwrap();
        pool.scrub(&tank.reactor, u64::MAX).await;
        let scrubs: Vec<_> = loop {
            let shards = pool.status(&tank.reactor).await.shards;
            if shards.iter().all(|shard| !shard.scrub.running) {
                break shards.into_iter().flat_map(|shard| shard.scrub.bad).collect();
            }
            tank.reactor.yield_now().await;
        };
        let bad = |first| BadRun { volume: 1, first, blocks: 2, lost: false, of: None };
        assert_eq!(scrubs, [bad(31), bad(1023)]);
        pool.close(&tank.reactor).await;
        let options = engine::CheckOptions { payloads: true, data: true, repair: false };
        let findings = tank.check(options).await.findings;
        assert!(findings.iter().any(|finding| finding.meaning.ends_with(": 31-32, 1023-1023")), "{findings:?}");
    });
}

#[test]
fn a_scrub_names_who_shows_what_a_snapshot_has_and_is_bad() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let region = *tank.superblock().await.shard_regions(1).next().unwrap();
        tank.capacity.flip(region.data_start(), 0);
        tank.capacity.flip(region.data_start() + 1, 0);
        let pool = tank.open().await.unwrap();
        pool.snapshot(&tank.reactor, &[("v", "s")], 0).await.unwrap();
        pool.clone_volume(&tank.reactor, "v@s", "c", 0).await.unwrap();
        let volume = pool.volume("v").unwrap();
        tank.write(&volume, 1, 3).await;
        pool.scrub(&tank.reactor, u64::MAX).await;
        let scrub = loop {
            let scrub = pool.status(&tank.reactor).await.shards.swap_remove(1).scrub;
            if !scrub.running {
                break scrub;
            }
            tank.reactor.yield_now().await;
        };
        let layer = |name| pool.volume(name).unwrap().layer();
        let snapshot = layer("v@s");
        let bad = |volume, blocks, of| BadRun { volume, first: 0, blocks, lost: false, of };
        let (own, clone) = (bad(layer("v"), 1, Some(snapshot)), bad(layer("c"), 2, Some(snapshot)));
        assert_eq!(scrub.bad, [bad(snapshot, 2, None), own, clone]);
        assert_eq!((scrub.corrupt_blocks, scrub.bad_before), (2, 0), "what is shown counts once");
        // Another one, at a pace at which it gets nowhere, does not take away what the first one has found.
        pool.scrub(&tank.reactor, 1).await;
        pool.cancel_scrub(&tank.reactor).await;
        let scrub = pool.status(&tank.reactor).await.shards.swap_remove(1).scrub;
        assert_eq!((scrub.corrupt_blocks, scrub.bad_before), (0, 2));
        pool.close(&tank.reactor).await;
    });
}

async fn scrubbed(tank: &Tank, pool: &Pool) -> Vec<ScrubStatus> {
    pool.scrub(&tank.reactor, u64::MAX).await;
    loop {
        let shards = pool.status(&tank.reactor).await.shards;
        if shards.iter().all(|shard| !shard.scrub.running) {
            return shards.into_iter().map(|shard| shard.scrub).collect();
        }
        tank.reactor.yield_now().await;
    }
}

#[test]
fn what_is_in_use_behind_damaged_headers_is_named_and_a_scrub_writes_it_anew() {
    let reactor = reactor();
    let tank = Tank::shaped(&reactor, 48);
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        for block in SETTLED {
            tank.write(&volume, block, 1).await;
        }
        pool.settle(&tank.reactor).await.unwrap();
        pool.close(&tank.reactor).await;
        let is_header = |(_, bytes): &(u64, Arc<Vec<u8>>)| bytes.starts_with(b"RMST");
        let headers: Vec<u64> = tank.capacity.image().into_iter().filter(is_header).map(|(block, _)| block).collect();
        headers.iter().for_each(|block| tank.capacity.flip(*block, 99));
        let (data, repair) = (CheckOptions { data: true, ..Default::default() }, true);
        for options in [data, CheckOptions { repair, ..data }] {
            let report = tank.check(options).await;
            let found: Vec<String> = report.findings.iter().map(|finding| finding.to_string()).collect();
            // One in each shard: another one has nothing in use any more.
            assert_eq!((found.len(), report.counts.damaged_headers), (2, 2), "{found:?}");
            assert_eq!((report.counts.stripes, report.counts.data_blocks), (0, SETTLED.len() as u64));
            let is_named = |text: &String| headers.iter().any(|block| text.contains(&format!("(block {block})")));
            assert!(found.iter().all(is_named), "{found:?}");
            assert!(found.iter().all(|text| text.contains("blocks in use") && text.contains("scrub")), "{found:?}");
        }
        let pool = tank.open().await.unwrap();
        let scrubs = scrubbed(&tank, &pool).await;
        let sum = |of: fn(&ScrubStatus) -> u64| scrubs.iter().map(of).sum::<u64>();
        assert_eq!(sum(|scrub| scrub.damaged_headers), 2);
        assert_eq!(sum(|scrub| scrub.rewritten_blocks), SETTLED.len() as u64);
        assert_eq!((sum(|scrub| scrub.good_headers), sum(|scrub| scrub.corrupt_blocks)), (0, 0));
        let listed = scrubs.iter().flat_map(|scrub| &scrub.bad_headers);
        assert!(listed.clone().all(|header| header.in_use == header.rewritten && !header.in_one_version));
        assert_eq!(listed.map(|header| header.in_use as usize).sum::<usize>(), SETTLED.len());
        let counted: u64 = pool.status(&tank.reactor).await.shards.iter().map(|shard| shard.damaged_headers).sum();
        assert_eq!(counted, 2);
        pool.settle(&tank.reactor).await.unwrap();
        for scrub in scrubbed(&tank, &pool).await {
            assert_eq!((scrub.damaged_headers, scrub.rewritten_blocks, scrub.bad_headers.len()), (0, 0, 0));
        }
        pool.close(&tank.reactor).await;
        let report = tank.check(data).await;
        assert!(report.findings.is_empty() && report.counts.stripes > 0, "{report:?}");
        // All of it is found without the log device.
        let tank = Tank { log: crate::common::disk::Disk::new("new-log", SHAPED_LOG_BLOCKS), ..tank };
        let done = Pool::forget_log(&tank.reactor, &tank.devices(), false, &Default::default()).await.unwrap();
        assert_eq!((done.slices, done.unfound), (0, Some(Vec::new())));
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        for block in SETTLED {
            assert_eq!(tank.read(&volume, block).await, Ok(1), "block {block}");
        }
        pool.close(&tank.reactor).await;
    });
}

#[test]
fn a_pool_whose_root_could_not_be_written_goes_on_with_a_cache_full_of_pages_that_wait_for_it() {
    let reactor = reactor();
    let tank = Tank::new(&reactor, 48);
    reactor.block_on(async move {
        let small = ShardTuning { idle_ns: u64::MAX / 4, map_cache_bytes_min: 0, ..ShardTuning::default() };
        let options = OpenOptions { map_cache_bytes: Some(0), tuning: Some(small), ..OpenOptions::default() };
        let extents = 14;
        // Every write of the settling is the first to fail once: the root's among them.
        for writes in 0..60 {
            let tank = tank.fork();
            let pool = Pool::open(&tank.reactor, &tank.devices(), &options).await.unwrap();
            let volume = pool.volume("v").unwrap();
            for round in 1..=2 {
                for extent in 0..extents {
                    tank.write(&volume, extent * 1024, round).await;
                }
                pool.settle(&tank.reactor).await.unwrap();
            }
            for extent in 0..extents {
                tank.write(&volume, extent * 1024 + 1, 3).await;
            }
            tank.capacity.fail_after(writes);
            let failed = pool.settle(&tank.reactor).await.is_err();
            // What has changed since has no slot but those of the root that failed. (A write fails whose slice cannot be noted.)
            let device: Arc<dyn BlockDevice> = volume.clone();
            let mut written = Vec::new();
            for extent in 0..extents {
                written.push(write(&tank.reactor, &device, extent * 1024 + 2, 4).await == Status::Ok);
            }
            let again = pool.settle(&tank.reactor).await.is_err();
            assert!(again || !failed, "it goes on failing");
            tank.capacity.fail_after(u64::MAX);
            pool.settle(&tank.reactor).await.unwrap_or_else(|error| panic!("after {writes} writes: {error}"));
            for extent in 0..extents {
                assert_eq!(tank.read(&volume, extent * 1024).await, Ok(2), "extent {extent} after {writes} writes");
                assert_eq!(tank.read(&volume, extent * 1024 + 1).await, Ok(3), "extent {extent} after {writes} writes");
                let newest = tank.read(&volume, extent * 1024 + 2).await;
                assert!(
                    newest == Ok(4) || !written[extent as usize],
                    "extent {extent} after {writes} writes: {newest:?}"
                );
            }
            pool.close(&tank.reactor).await;
        }
    });
}
