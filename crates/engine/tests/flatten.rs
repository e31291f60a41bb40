//! Flattening: clones become independent of what they were cloned from, and nothing that is read changes by it.

use crate::common::beside::time_beside;
use crate::common::layered::{Tank, everywhere};
use crate::common::*;
use bdev::{BlockDevice, Delay, DelayDevice, Delays, Status};
use engine::{FlattenState, FlattenStatus, Grounds, LogDevice, Pool, PoolDevices, PoolError};
use reactor::Reactor;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// What volumes and snapshots hold, block by block.
type Shown = BTreeMap<String, Vec<(u64, u8)>>;

async fn shown(tank: &Tank, names: &[&str], blocks: &[u64]) -> Shown {
    let mut shown = Shown::new();
    for name in names {
        for lba in blocks {
            shown.entry(name.to_string()).or_default().push((*lba, tank.read(name, *lba).await));
        }
    }
    shown
}

async fn expect(tank: &Tank, shown: &Shown) {
    for (name, blocks) in shown {
        tank.expect(name, blocks).await;
    }
}

async fn flatten(tank: &Tank, name: &str) -> FlattenStatus {
    let begun = tank.pool.flatten(&tank.reactor, name).await.unwrap();
    assert_eq!(begun.state, FlattenState::Running);
    assert_eq!(told(tank).await, [(name.to_string(), FlattenState::Running)]);
    tank.pool.flattened(&tank.reactor, name).await.unwrap()
}

/// What the pool tells of flattenings that are under way or have failed.
async fn told(tank: &Tank) -> Vec<(String, FlattenState)> {
    let flattening = tank.pool.status(&tank.reactor).await.flattening;
    flattening.into_iter().map(|(volume, status)| (volume, status.state)).collect()
}

async fn clone_of(tank: &Tank, name: &str) -> Option<String> {
    let tree = tank.pool.tree(&tank.reactor).await.unwrap().0;
    tree.into_iter().find(|volume| volume.name == name).unwrap().clone_of
}

const BLOCKS: [u64; 14] = [0, 1, 2, 3, 40, 41, 900, 1023, 1024, 1500, 2100, 3000, 3001, 4999];

/// A volume `v` with a snapshot, and a clone `c` of that which has a snapshot of its own; all of them have been written to.
async fn family(tank: &Tank) {
    let reactor = &tank.reactor;
    tank.pool.create_volume(reactor, "v", 5000, 12, 0).await.unwrap();
    for lba in [0, 1, 2, 40, 900, 1023, 1024, 3000] {
        tank.write("v", lba, 1).await;
    }
    tank.trim("v", 40, 1).await;
    tank.snapshot("v", "base").await;
    tank.pool.clone_volume(reactor, "v@base", "c", 3).await.unwrap();
    tank.write("c", 1, 2).await;
    tank.write("c", 1500, 2).await;
    tank.trim("c", 1023, 2).await;
    tank.snapshot("c", "own").await;
    tank.write("c", 2, 3).await;
    tank.write("c", 2100, 3).await;
    tank.write("v", 0, 9).await;
}

#[test]
fn a_flattened_clone_and_its_snapshots_need_nothing_of_what_they_came_from() {
    everywhere(|mut tank, settles| async move {
        let free = tank.free_extents().await;
        family(&tank).await;
        if settles {
            tank.pool.settle(&tank.reactor).await.unwrap();
        }
        let all = shown(&tank, &["v", "v@base", "c", "c@own"], &BLOCKS).await;
        let status = flatten(&tank, "c").await;
        assert_eq!((status.state, status.trouble), (FlattenState::Done, None));
        assert_eq!(told(&tank).await, []);
        assert_eq!((status.extents_done, status.extents_total, status.lost_blocks), (3, 3, 0));
        // 1 and what was trimmed are the clone's own, and 40 is a hole: 0, 2, 900 and 3000 are copied.
        assert_eq!(status.copied_bytes, 4 * 4096);
        let shards = tank.pool.status(&tank.reactor).await.shards;
        assert_eq!(shards.iter().map(|shard| shard.flattened_bytes).sum::<u64>(), 4 * 4096);
        expect(&tank, &all).await;
        assert_eq!(clone_of(&tank, "c").await, None);
        tank.reopen(settles).await;
        expect(&tank, &all).await;
        let refused = tank.pool.flatten(&tank.reactor, "c").await.unwrap_err().to_string();
        assert!(refused.contains("volume 'c' is not a clone: nothing lies below it"), "{refused}");
        tank.pool.delete_volume_and_snapshots(&tank.reactor, "v").await.unwrap();
        assert_eq!(tank.pool.tree(&tank.reactor).await.unwrap().1, 0, "all of the other volume is gone");
        let own: Shown = all.into_iter().filter(|(name, _)| name.starts_with('c')).collect();
        expect(&tank, &own).await;
        tank.reopen(settles).await;
        expect(&tank, &own).await;
        // What comes later finds everything as it should be.
        tank.write("c", 41, 5).await;
        tank.pool.delete_snapshot(&tank.reactor, "c@own").await.unwrap();
        tank.pool.reap(&tank.reactor).await.unwrap();
        tank.reopen(settles).await;
        tank.expect("c", &[(0, 1), (1, 2), (2, 3), (40, 0), (41, 5), (900, 1), (1023, 0), (1024, 0), (3000, 1)]).await;
        tank.pool.delete_volume(&tank.reactor, "c").await.unwrap();
        assert_eq!(tank.free_extents().await, free);
        tank.pool.close(&tank.reactor).await;
    });
}

#[test]
fn an_extent_whose_record_is_on_its_way_hides_nothing_of_what_lies_below() {
    everywhere(|mut tank, settles| async move {
        let reactor = tank.reactor.clone();
        tank.pool.create_volume(&reactor, "v", 2048, 12, 0).await.unwrap();
        for lba in 0..8 {
            tank.write("v", lba, 1).await;
        }
        tank.snapshot("v", "s").await;
        tank.pool.clone_volume(&reactor, "v@s", "c", 0).await.unwrap();
        if settles {
            tank.pool.settle(&reactor).await.unwrap();
        }
        tank.pool.close(&reactor).await;
        // A log that takes its time.
        let LogDevice::Block(log) = tank.devices.log.clone() else { panic!("a block log") };
        let slow = Arc::new(DelayDevice::new("slow", log, Delays::default(), 1));
        let devices = PoolDevices { log: LogDevice::Block(slow.clone()), capacity: tank.devices.capacity.clone() };
        tank.pool = open(reactor.clone(), devices).await.unwrap();
        slow.set(Delays { write: Delay { fixed_ns: 30_000_000, jitter_ns: 0 }, ..Delays::default() });
        let (there, volume) = (reactor.clone(), tank.volume("c"));
        let first = reactor.spawn_join(async move { write(&there, &volume, 700, 2).await });
        reactor.yield_now().await;
        assert_eq!(flatten(&tank, "c").await.state, FlattenState::Done);
        assert_eq!(first.await, Status::Ok);
        slow.set(Delays::default());
        for _ in 0..2 {
            let copied: Vec<(u64, u8)> = (0..8).map(|lba| (lba, 1)).chain([(8, 0), (700, 2)]).collect();
            tank.expect("c", &copied).await;
            tank.reopen(settles).await;
        }
        tank.pool.close(&reactor).await;
    });
}

#[test]
fn what_was_written_in_part_outlives_what_it_was_written_over() {
    everywhere(|mut tank, settles| async move {
        tank.pool.create_volume(&tank.reactor, "v", 3000, 9, 0).await.unwrap();
        for sector in 0..16 {
            tank.write("v", sector, 1).await;
        }
        tank.snapshot("v", "s").await;
        tank.pool.clone_volume(&tank.reactor, "v@s", "c", 0).await.unwrap();
        tank.write("c", 3, 2).await;
        tank.write("c", 12, 3).await;
        if settles {
            tank.pool.settle(&tank.reactor).await.unwrap();
        }
        assert_eq!(flatten(&tank, "c").await.state, FlattenState::Done);
        tank.pool.delete_volume_and_snapshots(&tank.reactor, "v").await.unwrap();
        for _ in 0..2 {
            tank.reopen(false).await;
            tank.expect("c", &[(2, 1), (3, 2), (4, 1), (11, 1), (12, 3), (15, 1), (16, 0)]).await;
        }
        tank.pool.close(&tank.reactor).await;
    });
}

#[test]
fn clones_of_clones_are_flattened_one_by_one_and_all_at_once() {
    everywhere(|mut tank, settles| async move {
        family(&tank).await;
        let reactor = tank.reactor.clone();
        for (source, name) in [("c@own", "d"), ("c@own", "e"), ("v@base", "f")] {
            tank.pool.clone_volume(&reactor, source, name, 0).await.unwrap();
            tank.write(name, 41, 7).await;
        }
        let all = shown(&tank, &["c", "c@own", "d", "e", "f"], &BLOCKS).await;
        // Of the same layers, from all sides, while what they lie over is deleted.
        for name in ["c", "d", "f"] {
            tank.pool.flatten(&reactor, name).await.unwrap();
        }
        tank.pool.delete_snapshot(&reactor, "v@base").await.unwrap();
        for name in ["c", "d", "f"] {
            assert_eq!(tank.pool.flattened(&reactor, name).await.unwrap().state, FlattenState::Done);
            assert_eq!(clone_of(&tank, name).await, None);
        }
        expect(&tank, &all).await;
        tank.pool.reap(&reactor).await.unwrap();
        assert_eq!(tank.pool.tree(&reactor).await.unwrap().1, 0);
        expect(&tank, &all).await;
        assert_eq!(clone_of(&tank, "e").await.as_deref(), Some("c@own"));
        tank.reopen(settles).await;
        expect(&tank, &all).await;
        tank.pool.close(&reactor).await;
    });
}

#[test]
fn what_has_changed_since_the_origin_is_whole_or_refused_while_a_clone_is_flattened() {
    everywhere(|tank, _| async move {
        let (pool, reactor) = (tank.pool.clone(), tank.reactor.clone());
        family(&tank).await;
        pool.clone_volume(&reactor, "c@own", "d", 0).await.unwrap();
        tank.write("d", 3, 4).await;
        tank.snapshot("d", "a").await;
        pool.flatten(&reactor, "d").await.unwrap();
        let mut told = 0;
        let refused = loop {
            match pool.changes(&reactor, "d@a", Some("v@base"), 0, usize::MAX).await {
                Ok(found) => {
                    let has =
                        |block| found.changes.iter().any(|one| (one.first..one.first + one.blocks).contains(&block));
                    assert!([1, 3, 1023, 1024, 1500].into_iter().all(has), "{found:?}");
                    told += 1;
                }
                Err(error) => break error.to_string(),
            }
        };
        assert!(told > 0 && refused.contains("'v@base' is not below 'd@a'"), "{told}, {refused}");
        assert_eq!(pool.flattened(&reactor, "d").await.unwrap().state, FlattenState::Done);
        tank.audit().await;
        pool.close(&reactor).await;
    });
}

#[test]
fn what_is_done_to_a_volume_while_it_is_flattened_holds() {
    everywhere(|mut tank, settles| async move {
        let reactor = tank.reactor.clone();
        family(&tank).await;
        let base = shown(&tank, &["v@base"], &BLOCKS).await.remove("v@base").unwrap();
        let own = shown(&tank, &["c@own"], &BLOCKS).await;
        let flattened = async |name: &str| tank.pool.flattened(&reactor, name).await.unwrap().state;
        // A snapshot of it, and its lowest layer going to the next one.
        tank.pool.clone_volume(&reactor, "v@base", "d", 0).await.unwrap();
        tank.write("d", 2, 4).await;
        tank.pool.flatten(&reactor, "d").await.unwrap();
        let again = tank.pool.flatten(&reactor, "d").await.unwrap_err().to_string();
        assert!(again.contains("volume 'd' is being flattened already"), "{again}");
        tank.snapshot("d", "then").await;
        tank.write("d", 900, 4).await;
        tank.pool.delete_snapshot(&reactor, "d@then").await.unwrap();
        assert_eq!(flattened("d").await, FlattenState::Done);
        // Going back to a snapshot of its own.
        tank.pool.flatten(&reactor, "c").await.unwrap();
        tank.pool.roll_back(&reactor, "c@own").await.unwrap();
        assert_eq!(flattened("c").await, FlattenState::Done);
        // Cut, and longer again.
        tank.pool.clone_volume(&reactor, "v@base", "e", 0).await.unwrap();
        tank.pool.flatten(&reactor, "e").await.unwrap();
        tank.volume("e").resize(&reactor, 950).await.unwrap();
        assert_eq!(flattened("e").await, FlattenState::Done);
        tank.volume("e").resize(&reactor, 5000).await.unwrap();
        // Deleted.
        tank.pool.clone_volume(&reactor, "v@base", "f", 0).await.unwrap();
        tank.pool.flatten(&reactor, "f").await.unwrap();
        tank.pool.delete_volume(&reactor, "f").await.unwrap();
        assert!(tank.pool.flatten_status(&reactor, "f").await.is_err());
        tank.pool.delete_volume_and_snapshots(&reactor, "v").await.unwrap();
        assert_eq!(tank.pool.tree(&reactor).await.unwrap().1, 0);
        let mut all = own.clone();
        all.insert("c".into(), own["c@own"].clone());
        let other = |changed: &dyn Fn(u64) -> Option<u8>| {
            base.iter().map(|(lba, value)| (*lba, changed(*lba).unwrap_or(*value))).collect::<Vec<_>>()
        };
        all.insert("d".into(), other(&|lba| matches!(lba, 2 | 900).then_some(4)));
        all.insert("e".into(), other(&|lba| (lba >= 950).then_some(0)));
        for _ in 0..2 {
            expect(&tank, &all).await;
            tank.reopen(settles).await;
        }
        tank.pool.close(&reactor).await;
    });
}

#[test]
fn what_was_interrupted_goes_on_with_what_is_there() {
    everywhere(|mut tank, settles| async move {
        let reactor = tank.reactor.clone();
        tank.pool.create_volume(&reactor, "v", 12_000, 12, 0).await.unwrap();
        for lba in (0..12_000).step_by(100) {
            tank.write("v", lba, 1).await;
        }
        tank.snapshot("v", "base").await;
        tank.pool.clone_volume(&reactor, "v@base", "c", 0).await.unwrap();
        let none = tank.pool.stop_flatten(&reactor, "c").await.unwrap_err().to_string();
        assert!(none.contains("volume 'c' was not flattened since the pool was opened"), "{none}");
        assert_eq!(tank.pool.flatten_status(&reactor, "c").await.unwrap(), None);
        let mut copied = 0;
        for turn in 0..4 {
            tank.pool.flatten(&reactor, "c").await.unwrap();
            // A few turns of the reactor on.
            for _ in 0..20 * turn {
                reactor.yield_now().await;
            }
            let status = match turn {
                3 => tank.pool.flatten_status(&reactor, "c").await.unwrap().unwrap(),
                _ => {
                    tank.pool.stop_flatten(&reactor, "c").await.unwrap();
                    tank.pool.flattened(&reactor, "c").await.unwrap()
                }
            };
            copied += status.copied_bytes;
            if turn == 3 {
                // Closed while it runs.
                tank.reopen(false).await;
            } else {
                assert!(matches!(status.state, FlattenState::Stopped | FlattenState::Done), "{status:?}");
            }
            if settles {
                tank.pool.settle(&reactor).await.unwrap();
            }
        }
        if clone_of(&tank, "c").await.is_some() {
            let status = flatten(&tank, "c").await;
            assert_eq!(status.state, FlattenState::Done);
            assert!(copied + status.copied_bytes <= 120 * 4096, "blocks were copied twice");
        }
        tank.pool.delete_volume_and_snapshots(&reactor, "v").await.unwrap();
        tank.reopen(settles).await;
        for lba in (0..12_000).step_by(50) {
            assert_eq!(tank.read("c", lba).await, lba.is_multiple_of(100) as u8, "block {lba}");
        }
        tank.pool.close(&reactor).await;
    });
}

#[test]
fn without_room_it_is_refused_with_what_it_takes() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let tank = Tank::new(&there, false).await;
        let extents = tank.free_extents().await as u64;
        tank.pool.create_volume(&there, "v", extents * 1024, 12, 0).await.unwrap();
        let mut first = 0;
        while tank.free_extents().await > extents as u32 / 2 - 3 {
            tank.write("v", first * 1024, 1).await;
            first += 1;
        }
        tank.snapshot("v", "base").await;
        tank.pool.clone_volume(&there, "v@base", "c", 0).await.unwrap();
        let refused = tank.pool.flatten(&there, "c").await.unwrap_err();
        assert!(matches!(refused, PoolError::NoRoom { needed_bytes, free_bytes, .. } if needed_bytes > free_bytes));
        let text = refused.to_string();
        assert!(text.starts_with("pool 'pool': what volume 'c' shows of others takes up to "), "{text}");
        assert_eq!(tank.pool.flatten_status(&there, "c").await.unwrap(), None);
        // There is room at first, and writers take it.
        tank.pool.create_volume(&there, "w", extents * 1024, 12, 0).await.unwrap();
        tank.pool.delete_volume(&there, "c").await.unwrap();
        tank.pool.delete_volume_and_snapshots(&there, "v").await.unwrap();
        tank.pool.create_volume(&there, "v", first * 1024, 12, 0).await.unwrap();
        for extent in 0..extents / 4 {
            tank.write("v", extent * 1024, 1).await;
        }
        tank.snapshot("v", "base").await;
        tank.pool.clone_volume(&there, "v@base", "c", 0).await.unwrap();
        tank.pool.flatten(&there, "c").await.unwrap();
        let device = tank.volume("w");
        let mut taken = 0;
        while write(&there, &device, taken * 1024, 2).await == Status::Ok {
            taken += 1;
        }
        let status = tank.pool.flattened(&there, "c").await.unwrap();
        if status.state == FlattenState::Failed {
            assert_eq!(told(&tank).await, [("c".to_string(), FlattenState::Failed)]);
            assert!(status.trouble.unwrap().contains("shows of others takes up to"));
            tank.pool.delete_volume(&there, "w").await.unwrap();
            assert_eq!(flatten(&tank, "c").await.state, FlattenState::Done);
        }
        for extent in 0..extents / 4 {
            tank.expect("c", &[(extent * 1024, 1), (extent * 1024 + 1, 0)]).await;
        }
        tank.audit().await;
        tank.pool.close(&there).await;
    });
}

#[test]
fn only_clones_are_flattened() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let tank = Tank::new(&there, false).await;
        tank.pool.create_volume(&there, "v", 3000, 12, 0).await.unwrap();
        tank.write("v", 0, 1).await;
        tank.snapshot("v", "s").await;
        for (name, expected, text) in [
            ("v", Grounds::State, "volume 'v' is not a clone: nothing lies below it"),
            ("v@s", Grounds::Value, "'v@s' is a snapshot, not a volume"),
            ("w", Grounds::Missing, "has no volume 'w'"),
        ] {
            let refused = tank.pool.flatten(&there, name).await.unwrap_err();
            assert!(matches!(refused, PoolError::Refused { grounds, .. } if grounds == expected), "{refused:?}");
            assert!(refused.to_string().contains(text), "{refused}");
        }
        tank.pool.close(&there).await;
    });
}

#[test]
fn what_cannot_be_read_is_lost_in_the_clone_as_well_and_counted() {
    let reactor = reactor();
    let tank = tank::Tank::filled(&reactor);
    let there = reactor.clone();
    reactor.block_on(async move {
        let superblock = tank.superblock().await;
        let region = superblock.shard_regions(1).next().unwrap();
        let pool = tank.open().await.unwrap();
        pool.snapshot(&there, &[("v", "s")], 0).await.unwrap();
        let clone = pool.clone_volume(&there, "v@s", "c", 0).await.unwrap();
        tank.capacity.flip(region.data_start() + 1, 0);
        pool.flatten(&there, "c").await.unwrap();
        let status = pool.flattened(&there, "c").await.unwrap();
        assert_eq!((status.state, status.lost_blocks), (FlattenState::Done, 1));
        pool.delete_volume_and_snapshots(&there, "v").await.unwrap();
        for block in tank::SETTLED.into_iter().chain(tank::LOGGED).chain([2, 2000]) {
            let expected = if block == 1 { Err(Status::ReadError) } else { Ok(tank::Tank::expected(block)) };
            assert_eq!(tank.read(&clone, block).await, expected, "block {block}");
        }
        tank.write(&clone, 1, 8).await;
        assert_eq!(tank.read(&clone, 1).await, Ok(8));
        pool.close(&there).await;
    });
}

#[test]
fn a_shard_that_fails_is_told_of_while_others_go_on() {
    let reactor = reactor();
    let tank = tank::Tank::filled(&reactor);
    let there = reactor.clone();
    reactor.block_on(async move {
        // Shard 1 has three extents of the volume, and this one is the other's.
        let region = *tank.superblock().await.shard_regions(0).next().unwrap();
        let pool = tank.open().await.unwrap();
        pool.snapshot(&there, &[("v", "s")], 0).await.unwrap();
        pool.clone_volume(&there, "v@s", "c", 0).await.unwrap();
        tank.capacity.refuse_reads(region.data_start() + 7, 3);
        pool.flatten(&there, "c").await.unwrap();
        let told = loop {
            let status = pool.flatten_status(&there, "c").await.unwrap().unwrap();
            if status.trouble.is_some() {
                break status;
            }
            assert_eq!(status.state, FlattenState::Running);
            there.yield_now().await;
        };
        assert!(told.state == FlattenState::Running && told.extents_done < 3, "{told:?}");
        pool.stop_flatten(&there, "c").await.unwrap();
        assert_eq!(pool.flattened(&there, "c").await.unwrap().state, FlattenState::Stopped);
        pool.close(&there).await;
    });
}

/// How long it takes, in virtual time, beside a user who writes or none.
fn time_to_flatten(has_user: bool) -> u64 {
    let prepare = |there: Rc<Reactor>, pool: Arc<Pool>| async move {
        pool.clone_volume(&there, "v@s", "c", 0).await.unwrap();
    };
    time_beside(has_user, prepare, |there, pool| async move {
        pool.flatten(&there, "c").await.unwrap();
        assert_eq!(pool.flattened(&there, "c").await.unwrap().state, FlattenState::Done);
    })
}

#[test]
fn it_gives_way_to_users() {
    let (beside, alone) = (time_to_flatten(true), time_to_flatten(false));
    assert!(beside > 2 * alone, "{beside} ns beside a user, {alone} ns when nobody else is there");
}

#[test]
fn what_was_laid_over_what_is_below_outlives_that_though_a_replay_finds_the_extent_freed() {
    let reactor = reactor();
    let tank = tank::Tank::shaped(&reactor, 24);
    let there = reactor.clone();
    reactor.block_on(async move {
        let pool = tank.open().await.unwrap();
        let volume = |name: &str| -> Arc<dyn BlockDevice> { pool.volume(name).unwrap() };
        pool.create_volume(&there, "b", 3000, 9, 0).await.unwrap();
        for sector in 0..16 {
            assert_eq!(write(&there, &volume("b"), sector, 1).await, Status::Ok);
        }
        pool.snapshot(&there, &[("b", "s")], 0).await.unwrap();
        pool.clone_volume(&there, "b@s", "c", 0).await.unwrap();
        // A block in each shard.
        let pins = [0, 16 * 1024];
        for block in pins {
            assert_eq!(write(&there, &volume("v"), block, 3).await, Status::Ok);
        }
        // It has all that is left, so that the clone gets one of its extents.
        pool.create_volume(&there, "rest", 400 * 1024, 12, 0).await.unwrap();
        for extent in 0..400 {
            let status = write(&there, &volume("rest"), extent * 1024, 7).await;
            assert!(matches!(status, Status::Ok | Status::NoSpace), "{status}");
        }
        pool.settle(&there).await.unwrap();
        // As long as these cannot be read every replay begins with them.
        for block in pins {
            assert_eq!(write(&there, &volume("v"), block, 77).await, Status::Ok);
        }
        let pinned = tank.log.image().into_iter().filter(|(_, bytes)| bytes.iter().all(|byte| *byte == 77));
        let pinned: Vec<u64> = pinned.map(|(block, _)| block).collect();
        assert_eq!(pinned.len(), pins.len());
        pinned.iter().for_each(|block| tank.log.refuse_reads(*block, u64::MAX));
        pool.delete_volume(&there, "rest").await.unwrap();
        pool.reap(&there).await.unwrap();
        assert_eq!(write(&there, &volume("c"), 3, 2).await, Status::Ok);
        assert!(pool.settle(&there).await.is_err());
        pool.flatten(&there, "c").await.unwrap();
        assert_eq!(pool.flattened(&there, "c").await.unwrap().state, FlattenState::Done);
        pool.delete_volume_and_snapshots(&there, "b").await.unwrap();
        pool.reap(&there).await.unwrap();
        let crashed = tank.fork();
        let again = crashed.open().await.unwrap();
        let clone: Arc<dyn BlockDevice> = again.volume("c").unwrap();
        for sector in 0..16 {
            let expected = if sector == 3 { 2 } else { 1 };
            assert_eq!(read(&there, &clone, sector).await, Ok(expected), "sector {sector}");
        }
        again.close(&there).await;
        pool.close(&there).await;
    });
}
