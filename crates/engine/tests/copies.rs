//! Superblocks, the catalog and the dirty journal: two copies each, of which any valid one has what was acknowledged.

use crate::common::reactor;
use crate::common::store::*;
use crate::common::tank::Tank;
use bdev::{Channel, DeviceInfo, Io, Lba, Status};
use engine::{
    Catalog, CatalogStore, CheckOptions, DirtyJournal, Edit, MetaError, Superblock, SuperblockError, VolumeEntry,
    VolumeState, read_superblocks, wipe_superblocks, write_superblock,
};
use reactor::{Reactor, SgList};
use std::rc::Rc;
use uuid::Uuid;

async fn overwrite(pool: &Pool, block: u64, byte: u8) {
    let mut bufs = SgList::new();
    bufs.push(pool.reactor.pool().alloc(4096).await);
    bufs[0].as_mut_slice().fill(byte);
    assert_eq!(pool.channel.submit(Io::write(Lba(block), 1, bufs)).await.status, Status::Ok);
}

type Place = (Rc<Reactor>, Rc<dyn Channel>, DeviceInfo);

fn place(pool: &Pool) -> Place {
    (pool.reactor.clone(), pool.channel.clone(), pool.info)
}

async fn read(pool: &Pool) -> Result<Superblock, MetaError> {
    let (reactor, channel, info) = place(pool);
    read_superblocks(&reactor, channel, info).await
}

#[test]
fn superblocks_are_written_twice_and_the_newer_valid_one_holds() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    reactor.block_on(async move {
        let blank = MetaError::Superblock(SuperblockError::NotAPool { blank: true });
        assert_eq!(read(&pool).await.err(), Some(blank));
        let mut superblock = pool.superblock.clone();
        for epoch in 1..5 {
            superblock.epoch = epoch;
            let (reactor, channel, info) = place(&pool);
            write_superblock(&reactor, channel, info, &mut superblock).await.unwrap();
            assert_eq!((read(&pool).await.as_ref(), superblock.generation), (Ok(&superblock), epoch as u64));
        }
        for copy in 0..2 {
            overwrite(&pool, copy, 0xAA).await;
            assert_eq!(read(&pool).await.as_ref(), Ok(&superblock));
            let (reactor, channel, info) = place(&pool);
            write_superblock(&reactor, channel, info, &mut superblock).await.unwrap();
        }
        let (reactor, channel, info) = place(&pool);
        let small = DeviceInfo { blocks: info.blocks - 1, ..info };
        let error = read_superblocks(&reactor, channel.clone(), small).await.unwrap_err();
        assert!(matches!(error, MetaError::DeviceTooSmall { .. }), "{error}");
        wipe_superblocks(&reactor, channel, info).await.unwrap();
        assert_eq!(read(&pool).await.err(), Some(blank));
        overwrite(&pool, 0, 0xAA).await;
        let foreign = MetaError::Superblock(SuperblockError::NotAPool { blank: false });
        assert_eq!(read(&pool).await.err(), Some(foreign));
    });
}

#[test]
fn a_catalog_is_found_again_and_damage_to_one_copy_loses_nothing() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    reactor.block_on(async move {
        let (reactor, channel, info) = place(&pool);
        let superblock = pool.superblock.clone();
        let error = Catalog::load(&reactor, channel.clone(), info, &superblock).await.unwrap_err();
        assert!(matches!(error, MetaError::Damaged { .. }), "{error}");
        let mut catalog = Catalog::default();
        let mut store = CatalogStore::new(&reactor, channel.clone(), info, &superblock).unwrap();
        for round in 0..40 {
            let id = catalog.next_id();
            let volume = VolumeEntry {
                id,
                state: VolumeState::Live,
                block_shift: 12,
                blocks: round,
                uuid: Uuid::from_u128(round as u128),
                content: Uuid::from_u128(round as u128),
                created_s: 1,
                name: format!("v{round}"),
                parent: 0,
                overlap: 0,
                origin: id,
            };
            let mut edit = Edit::default();
            edit.put(volume);
            store.store(&edit).await.unwrap();
            catalog.apply(edit);
            let loaded = Catalog::load(&reactor, channel.clone(), info, &superblock).await.unwrap();
            assert_eq!(loaded, catalog);
            store.renew(&loaded);
            overwrite(&pool, superblock.catalog_copy((round % 2) as u8) + round % 2, 0xAA).await;
            let loaded = Catalog::load(&reactor, channel.clone(), info, &superblock).await.unwrap();
            assert_eq!(loaded, catalog, "copy {} is damaged", round % 2);
        }
        let mut full = Edit::default();
        (1..100_000).for_each(|id| full.put(VolumeEntry { id, ..catalog.volumes()[&1].clone() }));
        let error = store.store(&full).await.unwrap_err();
        assert!(matches!(error, MetaError::CatalogFull { volumes: 99_999, .. }), "{error}");
    });
}

/// Additions in `tasks` tasks at once.
async fn add_all(journal: &Rc<DirtyJournal>, reactor: &Rc<Reactor>, slices: Vec<(u32, u32)>) {
    let adds: Vec<_> = slices
        .into_iter()
        .map(|(volume, slice)| {
            let journal = journal.clone();
            reactor.spawn_join(async move { journal.add(volume, slice).await })
        })
        .collect();
    for add in adds {
        assert_eq!(add.await, Ok(()));
    }
}

#[test]
fn additions_to_the_journal_share_writes_and_are_found_again() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 512, 2);
    reactor.block_on(async move {
        let journal = pool.journal(1).await.unwrap();
        assert!(journal.entries().is_empty() && !journal.contains(1, 1));
        let slices: Vec<_> = (0..1200).map(|slice| (1 + slice % 3, slice)).collect();
        add_all(&journal, &pool.reactor, slices.clone()).await;
        assert!(journal.block_writes() <= 5, "{} blocks", journal.block_writes());
        let mut sorted = slices;
        sorted.sort_unstable();
        assert_eq!(journal.entries(), sorted);
        assert_eq!(pool.journal(1).await.unwrap().entries(), sorted);
        assert!(pool.journal(0).await.unwrap().entries().is_empty());
        journal.add(1, 0).await.unwrap();
        assert!(journal.contains(1, 0) && !journal.contains(1, 1));
    });
}

#[test]
fn retired_slices_leave_at_a_compaction_unless_they_are_asked_for_again() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    reactor.block_on(async move {
        let journal = pool.journal(0).await.unwrap();
        add_all(&journal, &pool.reactor, (0..10).map(|slice| (1, slice)).collect()).await;
        (0..8).for_each(|slice| journal.retire(1, slice));
        journal.retire(9, 9);
        assert_eq!(pool.journal(0).await.unwrap().entries().len(), 10);
        assert!(journal.contains(1, 3));
        journal.compact().await.unwrap();
        let left = vec![(1, 3), (1, 8), (1, 9)];
        assert_eq!((journal.entries(), journal.contains(1, 4)), (left.clone(), false));
        assert_eq!(pool.journal(0).await.unwrap().entries(), left);
        let writes = journal.block_writes();
        journal.compact().await.unwrap();
        assert_eq!(journal.block_writes(), writes, "nothing to do");
    });
}

#[test]
fn a_full_copy_is_written_anew_and_the_former_one_is_no_longer_valid() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    reactor.block_on(async move {
        let journal = pool.journal(0).await.unwrap();
        let most = pool.superblock.journal_blocks + 5;
        for slice in 0..most {
            journal.add(1, slice).await.unwrap();
        }
        let again = pool.journal(0).await.unwrap();
        assert_eq!(again.entries().len(), most as usize);
        // Damage to the copy in use is found; the former one does not come back.
        overwrite(&pool, pool.superblock.journal_copy(0, 1), 0xAA).await;
        let error = pool.journal(0).await.err().unwrap();
        assert!(error.to_string().contains("the dirty journal of shard 0"), "{error}");
    });
}

#[test]
fn a_block_missing_from_the_middle_of_the_journal_is_damage() {
    let reactor = reactor();
    let pool = Pool::new(&reactor, 4096, 1);
    reactor.block_on(async move {
        let journal = pool.journal(0).await.unwrap();
        for slice in 0..5 {
            journal.add(1, slice).await.unwrap();
        }
        overwrite(&pool, pool.superblock.journal_copy(0, 0) + 3, 0xAA).await;
        assert!(pool.journal(0).await.is_err());
        overwrite(&pool, pool.superblock.journal_copy(0, 0) + 4, 0xAA).await;
        overwrite(&pool, pool.superblock.journal_copy(0, 0) + 5, 0xAA).await;
        assert_eq!(pool.journal(0).await.unwrap().entries(), [(1, 0), (1, 1)], "as after a crash");
    });
}

#[test]
fn opening_a_pool_repairs_damaged_copies_and_counts_them() {
    /// A bit that superblocks and catalogs use.
    const IN_USE: usize = 8 * 45;
    let reactor = reactor();
    let tank = Tank::new(&reactor, 8);
    reactor.block_on(async move {
        let superblock = tank.superblock().await;
        let open = async || {
            let pool = tank.open().await.unwrap();
            let repaired = pool.recovery().repaired_copies;
            assert!(pool.volume("v").is_some());
            pool.close(&tank.reactor).await;
            repaired
        };
        assert_eq!(open().await, 0);
        for copy in 0..2 {
            let catalog = superblock.catalog_copy(copy as u8);
            for (disk, block) in [(&tank.log, copy), (&tank.capacity, copy), (&tank.capacity, catalog)] {
                disk.flip(block, IN_USE);
                assert_eq!((open().await, open().await), (1, 0), "copy {copy}, at block {block}");
            }
            for (disk, block) in [(&tank.log, copy), (&tank.capacity, copy), (&tank.capacity, catalog)] {
                disk.flip(block, IN_USE);
            }
            assert_eq!((open().await, open().await), (3, 0));
        }
        assert!(tank.check(CheckOptions::default()).await.findings.is_empty());
    });
}

#[test]
fn an_older_copy_of_a_device_is_refused_and_the_newer_one_opens_as_if_nothing_had_been() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let old = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            let new = old.fork();
            let pool = new.open().await.unwrap();
            let volume = pool.volume("v").unwrap();
            new.write(&volume, 7, 9).await;
            new.write(&volume, 0, 9).await;
            pool.close(&new.reactor).await;
            for stale in new.with_older(&old) {
                let refused = stale.open().await.map(drop).unwrap_err().to_string();
                let of_log = refused
                    .contains("'log' is an older copy of its log: it has seen 2 openings of the pool, 'capacity' 3");
                let of_capacity = refused.contains("'capacity' is an older copy of its capacity device");
                assert!(of_log || of_capacity, "{refused}");
                let before = (stale.log.image(), stale.capacity.image());
                let report = stale.check(CheckOptions { payloads: true, data: true, repair: true }).await;
                let finding = report.findings.iter().find(|finding| finding.meaning.contains("an older copy")).unwrap();
                assert_eq!(finding.object, if of_log { "log device" } else { "capacity device" }, "{report:?}");
                assert_eq!((stale.log.image(), stale.capacity.image()), before, "nothing is repaired");
                // Put right, it goes on with the devices that the attempt has seen.
                let right = match of_log {
                    true => Tank { log: new.log.fork(), ..stale.clone() },
                    false => Tank { capacity: new.capacity.fork(), ..stale.clone() },
                };
                let pool = right.open().await.unwrap();
                let volume = pool.volume("v").unwrap();
                for (block, byte) in [(7, 9), (0, 9), (1, 1), (5, 2), (6, 2)] {
                    assert_eq!(right.read(&volume, block).await, Ok(byte), "block {block}");
                }
                pool.close(&right.reactor).await;
            }
        });
    }
}
