//! The metadata store on a device in memory: what was checkpointed is found again, what was not is not.

use crate::common::reactor;
use crate::common::store::*;
use bdev::{Io, Lba, Status};
use engine::{
    BLOCKS_LOST, Descriptor, HOLE, INHERIT, LOST, LogTail, MAP_PAGE, Meta, MetaError, Object, UNUSABLE, stored_crc,
};
use reactor::SgList;
use std::rc::Rc;

fn extent_of_volume(volume: u32, vextent: u32) -> Descriptor {
    Descriptor { volume, vextent, ..Descriptor::default() }
}

/// What a shard holds, in words that can be compared.
async fn contents(meta: &Rc<Meta>) -> Vec<(Descriptor, Vec<u32>)> {
    let mut contents = Vec::new();
    for extent in 0..meta.extents() {
        let page = meta.load(extent).await.unwrap();
        let Descriptor { volume, vextent, flags, .. } = meta.descriptor(extent);
        let values = (0..1024).map(|index| page.get(index)).collect();
        contents.push((
            Descriptor { volume, vextent, flags: flags & (BLOCKS_LOST | UNUSABLE), ..Descriptor::default() },
            values,
        ));
    }
    contents
}

#[test]
fn a_new_shard_is_free_and_hides_nothing() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 2);
    reactor.block_on(async move {
        let (meta, tail) = pool.open(1, 1 << 20).await.unwrap();
        assert_eq!((tail, meta.extents()), (TAIL, pool.superblock.shard_extents(1)));
        assert!(meta.descriptor(5).is_free() && meta.page(5).is_none());
        // Its volume's record may be on its way.
        assert_eq!(meta.load(5).await.unwrap().get(1023), INHERIT);
        assert!(meta.page(5).is_some());
        meta.set_descriptor(5, extent_of_volume(7, 100));
        assert_eq!(meta.load(5).await.unwrap().get(1023), HOLE);
    });
}

#[test]
fn a_checkpoint_is_found_again_whatever_the_block_size_and_the_cache() {
    for (block_size, cache_bytes) in [(4096, 1 << 20), (512, 0)] {
        let reactor = reactor();
        let pool = Pool::new(&reactor, block_size, 2);
        reactor.block_on(async move {
            let (meta, _) = pool.open(0, cache_bytes).await.unwrap();
            let (other, _) = pool.open(1, cache_bytes).await.unwrap();
            for extent in 0..40 {
                meta.set_descriptor(extent, extent_of_volume(7, 100 + extent));
                meta.load(extent).await.unwrap().fill(10..20, extent);
                other.set_descriptor(extent, extent_of_volume(9, extent));
            }
            meta.set_descriptor(3, Descriptor { flags: BLOCKS_LOST, ..extent_of_volume(7, 103) });
            meta.set_descriptor(50, Descriptor { flags: UNUSABLE, ..Descriptor::default() });
            let tail = LogTail { segment: 9, lsn: 1000 };
            meta.checkpoint(tail).await.unwrap();
            other.checkpoint(tail).await.unwrap();
            let expected = contents(&meta).await;
            assert_eq!((expected[3].1[15], expected[4].1[15], expected[4].1[20]), (LOST, 4, HOLE));
            // Not checkpointed, so gone with the process.
            meta.load(4).await.unwrap().set(15, 99);
            meta.set_descriptor(60, extent_of_volume(8, 1));
            let (again, found) = pool.open(0, cache_bytes).await.unwrap();
            assert_eq!(found, tail);
            assert_eq!(contents(&again).await, expected);
            assert_eq!(contents(&pool.open(1, 0).await.unwrap().0).await[5].0, extent_of_volume(9, 5));
        });
    }
}

#[test]
fn the_cache_stays_within_its_limit_and_evicted_changes_are_read_back() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    reactor.block_on(async move {
        let (meta, _) = pool.open(0, 6 * 4300).await.unwrap();
        for round in 0..5u32 {
            for extent in 0..60 {
                if round == 0 {
                    meta.set_descriptor(extent, extent_of_volume(1, extent));
                }
                let page = meta.load(extent).await.unwrap();
                assert_eq!(page.get(7), if round == 0 { HOLE } else { round * 1000 + extent - 1000 });
                page.set(7, round * 1000 + extent);
                assert!(meta.stats().resident_pages <= 6, "{:?}", meta.stats());
            }
            if round % 2 == 0 {
                meta.checkpoint(TAIL).await.unwrap();
            }
        }
        let stats = meta.stats();
        assert!(stats.evictions > 200 && stats.page_writes >= 290, "{stats:?}");
    });
}

#[test]
fn unchanged_metadata_is_not_written_again() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    reactor.block_on(async move {
        let (meta, _) = pool.open(0, 1 << 20).await.unwrap();
        meta.set_descriptor(1, extent_of_volume(1, 1));
        meta.load(1).await.unwrap().set(0, 5);
        meta.checkpoint(TAIL).await.unwrap();
        let before = meta.stats();
        meta.load(1).await.unwrap().set(0, 5);
        meta.set_descriptor(1, meta.descriptor(1));
        meta.checkpoint(TAIL).await.unwrap();
        let after = meta.stats();
        assert_eq!((before.page_writes, before.table_writes), (after.page_writes, after.table_writes));
        assert_eq!(after.checkpoints, 2);
    });
}

#[test]
fn an_extent_that_becomes_another_one_forgets_its_map() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    reactor.block_on(async move {
        let (meta, _) = pool.open(0, 1 << 20).await.unwrap();
        meta.set_descriptor(1, extent_of_volume(1, 1));
        let old = meta.load(1).await.unwrap();
        old.set(0, 5);
        meta.checkpoint(TAIL).await.unwrap();
        assert!(meta.descriptor(1).flags & MAP_PAGE != 0);
        meta.set_descriptor(1, meta.descriptor(1));
        assert_eq!(meta.load(1).await.unwrap().get(0), 5, "the same extent keeps its map");
        meta.set_descriptor(1, extent_of_volume(2, 1));
        old.set(0, 6);
        assert_eq!(meta.load(1).await.unwrap().get(0), HOLE);
        meta.set_descriptor(1, Descriptor { flags: BLOCKS_LOST, ..extent_of_volume(2, 1) });
        assert_eq!(meta.load(1).await.unwrap().get(0), LOST);
        assert_eq!(meta.stats().dirty_pages, 0);
    });
}

#[test]
fn loads_of_one_page_share_a_read_and_reserved_checksums_are_avoided() {
    assert_eq!([5, LOST, HOLE].map(stored_crc), [5, LOST & 0x7FFF_FFFF, HOLE & 0x7FFF_FFFF]);
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (meta, _) = pool.open(0, 1 << 20).await.unwrap();
        meta.set_descriptor(1, extent_of_volume(1, 1));
        meta.load(1).await.unwrap().set(0, 5);
        meta.checkpoint(TAIL).await.unwrap();
        let (meta, _) = pool.open(0, 1 << 20).await.unwrap();
        let loads: Vec<_> = (0..10)
            .map(|_| {
                let meta = meta.clone();
                inner.spawn_join(async move { meta.load(1).await.unwrap().get(0) })
            })
            .collect();
        for load in loads {
            assert_eq!(load.await, 5);
        }
        assert_eq!(meta.stats().loads, 1);
    });
}

/// Flips a bit of a block of 4 KiB.
async fn rot(pool: &Pool, block: u64, bit: usize) {
    let mut bufs = SgList::new();
    bufs.push(pool.reactor.pool().alloc(4096).await);
    let mut done = pool.channel.submit(Io::read(Lba(block), 1, bufs)).await;
    assert_eq!(done.status, Status::Ok);
    done.io.bufs[0].as_mut_slice()[bit / 8] ^= 1 << (bit % 8);
    assert_eq!(pool.channel.submit(Io::write(Lba(block), 1, done.io.bufs)).await.status, Status::Ok);
}

#[test]
fn damage_is_named_and_never_believed() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    reactor.block_on(async move {
        let (meta, _) = pool.open(0, 1 << 20).await.unwrap();
        meta.set_descriptor(1, extent_of_volume(1, 1));
        meta.load(1).await.unwrap().set(0, 5);
        meta.checkpoint(TAIL).await.unwrap();
        let region = pool.superblock.regions[0];
        for bit in (0..4096 * 8).step_by(977) {
            rot(&pool, region.map_slot(1, 0), bit).await;
            let (meta, _) = pool.open(0, 1 << 20).await.unwrap();
            assert_eq!(meta.load(1).await.err(), Some(Status::Corrupt));
            assert_eq!(meta.stats().corrupt_pages, 1);
            rot(&pool, region.map_slot(1, 0), bit).await;
            rot(&pool, region.table_slot(0, 0), bit).await;
            rot(&pool, region.table_slot(0, 1), bit).await;
            let error = pool.open(0, 1 << 20).await.err().unwrap();
            assert!(
                matches!(error, MetaError::Damaged { object: Object::TablePage { shard: 0, index: 0 }, .. }),
                "{error}"
            );
            rot(&pool, region.table_slot(0, 0), bit).await;
            rot(&pool, region.table_slot(0, 1), bit).await;
        }
        // One root suffices; without any there is nothing to open.
        rot(&pool, pool.superblock.root_copy(0, 0), 200).await;
        pool.open(0, 1 << 20).await.unwrap();
        rot(&pool, pool.superblock.root_copy(0, 1), 200).await;
        let error = pool.open(0, 1 << 20).await.err().unwrap();
        assert!(matches!(error, MetaError::Damaged { object: Object::Root { shard: 0 }, .. }), "{error}");
    });
}

#[test]
fn a_table_page_is_in_both_slots_after_a_checkpoint_and_damage_to_one_is_mended_by_the_next() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    reactor.block_on(async move {
        let region = pool.superblock.regions[0];
        let (meta, _) = pool.open(0, 1 << 20).await.unwrap();
        for round in 0..8u32 {
            meta.set_descriptor(round, extent_of_volume(1, round));
            meta.load(round).await.unwrap().set(0, 5);
            meta.checkpoint(TAIL).await.unwrap();
        }
        let expected = contents(&meta).await;
        for round in 0..20 {
            // The slot that the root leads to and the other one in turn; after each the other one alone would not do.
            rot(&pool, region.table_slot(0, round / 2 % 2), 99 + round as usize).await;
            let (again, _) = pool.open(0, 1 << 20).await.unwrap();
            assert_eq!(contents(&again).await, expected, "round {round}");
            assert_eq!(again.stats().table_writes, 0, "opening only reads");
            again.checkpoint(TAIL).await.unwrap();
            let writes = again.stats().table_writes;
            assert!(writes > 0, "the damaged slot is written again");
            again.checkpoint(TAIL).await.unwrap();
            assert_eq!(again.stats().table_writes, writes, "once");
        }
    });
}

#[test]
fn blocks_of_extents_lie_in_their_regions_after_growing() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 2);
    reactor.block_on(async move {
        let (meta, _) = pool.open(1, 0).await.unwrap();
        meta.set_descriptor(3, extent_of_volume(4, 4));
        meta.checkpoint(TAIL).await.unwrap();
        let superblock = engine::layout::plan_grow(
            &pool.superblock,
            pool.superblock.log_blocks,
            pool.superblock.capacity_blocks * 3,
        )
        .unwrap();
        let grown = Pool { superblock: superblock.clone(), ..pool };
        let (meta, _) = grown.open(1, 0).await.unwrap();
        assert_eq!((meta.extents(), meta.descriptor(3)), (superblock.shard_extents(1), extent_of_volume(4, 4)));
        for region in superblock.shard_regions(1) {
            let first = region.first_extent * 1024;
            assert_eq!(meta.data_block(first), region.data_start());
            assert_eq!(meta.data_block(first + region.extents * 1024 - 1), region.end() - 1);
        }
        assert_eq!(superblock.shard_regions(1).count(), 2);
    });
}
