//! Snapshots and clones: what they show, what they take, what becomes of it when they go.

use crate::common::layered::{Tank, everywhere};
use crate::common::*;
use bdev::{BlockDevice, Status};
use engine::ChangeKind;

#[test]
fn a_snapshot_shows_what_was_and_the_volume_goes_on() {
    everywhere(|mut tank, settles| async move {
        tank.pool.create_volume(&tank.reactor, "v", 40_000, 12, 0).await.unwrap();
        for lba in [0, 1, 1023, 1024, 20_000] {
            tank.write("v", lba, 1).await;
        }
        let snapshot = tank.snapshot("v", "one").await;
        assert!(snapshot.identity().is_snapshot && snapshot.name() == "v@one");
        tank.write("v", 1, 2).await;
        tank.write("v", 2, 2).await;
        tank.trim("v", 1023, 2).await;
        tank.snapshot("v", "two").await;
        tank.trim("v", 0, 1).await;
        tank.write("v", 20_001, 3).await;
        let one = [(0, 1), (1, 1), (2, 0), (1023, 1), (1024, 1), (20_000, 1), (20_001, 0), (39_999, 0)];
        let two = [(0, 1), (1, 2), (2, 2), (1023, 0), (1024, 0), (20_000, 1), (20_001, 0), (39_999, 0)];
        let now = [(0, 0), (1, 2), (2, 2), (1023, 0), (1024, 0), (20_000, 1), (20_001, 3), (39_999, 0)];
        for _ in 0..3 {
            tank.expect("v@one", &one).await;
            tank.expect("v@two", &two).await;
            tank.expect("v", &now).await;
            tank.reopen(settles).await;
        }
        let refused = write(&tank.reactor, &tank.volume("v@one"), 0, 9).await;
        assert_eq!(refused, Status::ReadOnly);
        tank.pool.close(&tank.reactor).await;
    });
}

#[test]
fn what_is_written_in_part_lies_over_what_the_snapshot_has() {
    everywhere(|mut tank, settles| async move {
        tank.pool.create_volume(&tank.reactor, "v", 3000, 9, 0).await.unwrap();
        for sector in 0..16 {
            tank.write("v", sector, 1).await;
        }
        tank.snapshot("v", "s").await;
        tank.write("v", 3, 2).await;
        tank.write("v", 9, 2).await;
        for _ in 0..2 {
            tank.expect("v", &[(2, 1), (3, 2), (4, 1), (8, 1), (9, 2), (16, 0)]).await;
            tank.expect("v@s", &[(3, 1), (9, 1)]).await;
            tank.reopen(settles).await;
        }
        // The deltas outlive the snapshot below them.
        tank.pool.delete_snapshot(&tank.reactor, "v@s").await.unwrap();
        tank.pool.reap(&tank.reactor).await.unwrap();
        tank.reopen(settles).await;
        tank.expect("v", &[(2, 1), (3, 2), (4, 1), (8, 1), (9, 2), (16, 0)]).await;
        tank.pool.close(&tank.reactor).await;
    });
}

#[test]
fn deleting_snapshots_in_any_order_leaves_the_others_and_gives_everything_back() {
    everywhere(|mut tank, settles| async move {
        let free = tank.free_extents().await;
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
            tank.pool.create_volume(&tank.reactor, "v", 9000, 12, 0).await.unwrap();
            // Each version writes blocks of its own, those of the next one as well, and leaves holes over the one before.
            for version in 0..4u64 {
                let value = version as u8 + 1;
                for extent in 0..3 {
                    if extent == version {
                        continue;
                    }
                    let first = extent * 1024 + version * 10;
                    for lba in first..first + 20 {
                        tank.write("v", lba, value).await;
                    }
                    tank.trim("v", first + 2, 3).await;
                }
                if version < 3 {
                    tank.snapshot("v", &version.to_string()).await;
                }
            }
            let mut shown = std::collections::BTreeMap::new();
            for name in ["v", "v@0", "v@1", "v@2"] {
                let mut blocks = Vec::new();
                for lba in (0..3).flat_map(|extent| (extent * 1024..extent * 1024 + 60).step_by(1)) {
                    blocks.push((lba, tank.read(name, lba).await));
                }
                shown.insert(name.to_string(), blocks);
            }
            for version in order {
                let name = format!("v@{version}");
                tank.pool.delete_snapshot(&tank.reactor, &name).await.unwrap();
                shown.remove(&name);
                tank.pool.reap(&tank.reactor).await.unwrap();
                for (name, blocks) in &shown {
                    tank.expect(name, blocks).await;
                }
                tank.reopen(settles).await;
                for (name, blocks) in &shown {
                    tank.expect(name, blocks).await;
                }
            }
            assert_eq!(tank.pool.tree(&tank.reactor).await.unwrap().1, 0);
            tank.pool.delete_volume(&tank.reactor, "v").await.unwrap();
            assert_eq!(tank.free_extents().await, free);
        }
        tank.pool.close(&tank.reactor).await;
    });
}

#[test]
fn clones_share_what_neither_writes_and_outlive_what_they_are_of() {
    everywhere(|mut tank, settles| async move {
        tank.pool.create_volume(&tank.reactor, "v", 5000, 12, 0).await.unwrap();
        for lba in [0, 1, 2, 3000] {
            tank.write("v", lba, 1).await;
        }
        tank.snapshot("v", "base").await;
        let free = tank.free_extents().await;
        for name in ["a", "b"] {
            let clone = tank.pool.clone_volume(&tank.reactor, "v@base", name, 3).await.unwrap();
            assert_eq!(clone.info().blocks, 5000);
        }
        assert_eq!(tank.free_extents().await, free, "clones take nothing");
        tank.write("a", 1, 2).await;
        tank.write("b", 2, 3).await;
        tank.write("v", 0, 4).await;
        let tree = tank.pool.tree(&tank.reactor).await.unwrap().0;
        assert_eq!(tree[0].clone_of.as_deref(), Some("v@base"));
        assert_eq!((tree[2].clone_of.as_deref(), tree[2].snapshots[0].users), (None, 3));
        // Deleted, it stays for the clones.
        tank.pool.delete_volume_and_snapshots(&tank.reactor, "v").await.unwrap();
        tank.reopen(settles).await;
        assert_eq!(tank.pool.tree(&tank.reactor).await.unwrap().1, 1);
        tank.expect("a", &[(0, 1), (1, 2), (2, 1), (3000, 1)]).await;
        tank.expect("b", &[(0, 1), (1, 1), (2, 3), (3000, 1)]).await;
        tank.pool.delete_volume(&tank.reactor, "a").await.unwrap();
        tank.pool.reap(&tank.reactor).await.unwrap();
        assert_eq!(tank.pool.tree(&tank.reactor).await.unwrap().1, 0, "the last clone takes it over");
        tank.reopen(settles).await;
        tank.expect("b", &[(0, 1), (1, 1), (2, 3), (3000, 1), (4999, 0)]).await;
        tank.pool.close(&tank.reactor).await;
    });
}

#[test]
fn rolling_back_is_what_the_snapshot_was_size_included() {
    everywhere(|mut tank, settles| async move {
        tank.pool.create_volume(&tank.reactor, "v", 3000, 12, 0).await.unwrap();
        tank.write("v", 5, 1).await;
        tank.snapshot("v", "early").await;
        tank.write("v", 5, 2).await;
        let volume = tank.pool.volume("v").unwrap();
        volume.resize(&tank.reactor, 6000).await.unwrap();
        tank.write("v", 5000, 2).await;
        tank.snapshot("v", "late").await;
        tank.write("v", 6, 3).await;
        let uuid = volume.identity().uuid;
        tank.pool.roll_back(&tank.reactor, "v@early").await.unwrap();
        assert_eq!((volume.info().blocks, volume.identity().uuid), (3000, uuid));
        tank.expect("v", &[(5, 1), (6, 0)]).await;
        tank.write("v", 6, 4).await;
        for _ in 0..2 {
            tank.expect("v", &[(5, 1), (6, 4)]).await;
            tank.expect("v@late", &[(5, 2), (6, 0), (5000, 2)]).await;
            tank.reopen(settles).await;
        }
        // What was cut off does not come back with the size.
        tank.volume("v").resize(&tank.reactor, 6000).await.unwrap();
        tank.expect("v", &[(5, 1), (6, 4), (5000, 0)]).await;
        tank.pool.roll_back(&tank.reactor, "v@late").await.unwrap();
        tank.reopen(settles).await;
        tank.expect("v", &[(5, 2), (6, 0), (5000, 2)]).await;
        tank.pool.close(&tank.reactor).await;
    });
}

#[test]
fn volumes_are_rolled_back_together_and_their_snapshots_deleted_together() {
    everywhere(|mut tank, settles| async move {
        for (name, blocks) in [("data", 3000), ("log", 500)] {
            tank.pool.create_volume(&tank.reactor, name, blocks, 12, 0).await.unwrap();
            tank.write(name, 5, 1).await;
        }
        tank.pool.snapshot(&tank.reactor, &[("data", "s"), ("log", "s")], 0).await.unwrap();
        tank.volume("log").resize(&tank.reactor, 700).await.unwrap();
        for name in ["data", "log"] {
            tank.write(name, 5, 2).await;
        }
        for wrong in [&["data@s", "data@s"][..], &["data@s", "log@t"], &["data@s", "log"]] {
            assert!(tank.pool.roll_back_all(&tank.reactor, wrong).await.is_err(), "{wrong:?}");
            tank.expect("data", &[(5, 2)]).await;
        }
        tank.pool.roll_back_all(&tank.reactor, &["data@s", "log@s"]).await.unwrap();
        assert_eq!(tank.volume("log").info().blocks, 500);
        for _ in 0..2 {
            tank.expect("data", &[(5, 1)]).await;
            tank.expect("log", &[(5, 1)]).await;
            tank.reopen(settles).await;
        }
        for wrong in [&["data@s", "data@s"][..], &["data@s", "log@t"], &["data@s", "log"]] {
            assert!(tank.pool.delete_snapshots(&tank.reactor, wrong).await.is_err(), "{wrong:?}");
        }
        tank.expect("data@s", &[(5, 1)]).await;
        tank.pool.delete_snapshots(&tank.reactor, &["data@s", "log@s"]).await.unwrap();
        assert!(tank.pool.volume("data@s").is_none() && tank.pool.volume("log@s").is_none());
        tank.expect("log", &[(5, 1)]).await;
        tank.pool.close(&tank.reactor).await;
    });
}

#[test]
fn what_a_volume_is_cut_off_from_its_snapshot_stays_away() {
    everywhere(|mut tank, settles| async move {
        tank.pool.create_volume(&tank.reactor, "v", 3000, 12, 0).await.unwrap();
        for lba in [100, 1500, 2500] {
            tank.write("v", lba, 1).await;
        }
        tank.snapshot("v", "s").await;
        tank.volume("v").resize(&tank.reactor, 1200).await.unwrap();
        tank.volume("v").resize(&tank.reactor, 3000).await.unwrap();
        tank.expect("v", &[(100, 1), (1500, 0), (2500, 0)]).await;
        tank.expect("v@s", &[(100, 1), (1500, 1), (2500, 1)]).await;
        tank.reopen(settles).await;
        tank.pool.delete_snapshot(&tank.reactor, "v@s").await.unwrap();
        tank.pool.reap(&tank.reactor).await.unwrap();
        tank.reopen(settles).await;
        tank.expect("v", &[(100, 1), (1500, 0), (2500, 0)]).await;
        tank.pool.close(&tank.reactor).await;
    });
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let tank = Tank::new(&there, false).await;
        tank.pool.create_volume(&there, "v", 3000, 12, 0).await.unwrap();
        tank.snapshot("v", "s").await;
        let refusals = [
            (tank.pool.snapshot(&there, &[("w", "s")], 0).await.err(), "has no volume 'w'"),
            (tank.pool.snapshot(&there, &[("v", "s")], 0).await.err(), "already has a snapshot 'v@s'"),
            (tank.pool.snapshot(&there, &[("v@s", "t")], 0).await.err(), "'v@s' is a snapshot"),
            (tank.pool.snapshot(&there, &[("v", "a"), ("v", "b")], 0).await.err(), "named twice"),
            (tank.pool.snapshot(&there, &[("v", "a@b")], 0).await.err(), "with one '@'"),
            (tank.pool.clone_volume(&there, "v", "c", 0).await.err(), "make a snapshot of it"),
            (tank.pool.clone_volume(&there, "v@s", "v", 0).await.err(), "already has a volume 'v'"),
            (tank.pool.create_volume(&there, "x@y", 10, 12, 0).await.err(), "'@' is for snapshots"),
            (tank.pool.delete_volume(&there, "v").await.err(), "has snapshots (1, the first is 'v@s')"),
            (tank.pool.delete_snapshot(&there, "v").await.err(), "is a volume"),
            (tank.pool.roll_back(&there, "v").await.err(), "no snapshot"),
        ];
        for (refusal, text) in refusals {
            let refusal = refusal.expect(text).to_string();
            assert!(refusal.contains(text), "{refusal}");
        }
        let resized = tank.volume("v@s").resize(&there, 4000).await.unwrap_err().to_string();
        assert!(resized.contains("a snapshot cannot be resized"), "{resized}");
        tank.pool.close(&there).await;
    });
}

#[test]
fn a_chain_of_snapshots_is_read_through() {
    everywhere(|mut tank, settles| async move {
        tank.pool.create_volume(&tank.reactor, "v", 3000, 12, 0).await.unwrap();
        for version in 0..9u64 {
            tank.write("v", version, version as u8 + 1).await;
            tank.write("v", 900, version as u8 + 1).await;
            tank.snapshot("v", &format!("{version}")).await;
        }
        tank.reopen(settles).await;
        for version in 0..9u64 {
            let name = format!("v@{version}");
            tank.expect(&name, &[(0, 1), (version, version as u8 + 1), (version + 1, 0), (900, version as u8 + 1)])
                .await;
        }
        tank.pool.delete_volume_and_snapshots(&tank.reactor, "v").await.unwrap();
        tank.audit().await;
        assert_eq!(tank.pool.tree(&tank.reactor).await.unwrap(), (vec![], 0));
        tank.pool.close(&tank.reactor).await;
    });
}

/// What destage has laid over a block of the snapshot must be there when the snapshot is not any more.
#[test]
fn what_was_written_in_part_outlives_the_snapshot_below_it_when_the_process_ends() {
    everywhere(|mut tank, settles| async move {
        tank.pool.create_volume(&tank.reactor, "v", 3000, 9, 0).await.unwrap();
        for sector in 0..16 {
            tank.write("v", sector, 1).await;
        }
        tank.pool.settle(&tank.reactor).await.unwrap();
        tank.snapshot("v", "s").await;
        tank.write("v", 3, 2).await;
        tank.write("v", 12, 3).await;
        if settles {
            tank.pool.settle(&tank.reactor).await.unwrap();
        }
        tank.pool.delete_snapshot(&tank.reactor, "v@s").await.unwrap();
        tank.pool.reap(&tank.reactor).await.unwrap();
        for _ in 0..2 {
            tank.reopen(false).await;
            tank.expect("v", &[(2, 1), (3, 2), (4, 1), (11, 1), (12, 3), (15, 1), (16, 0)]).await;
        }
        tank.pool.close(&tank.reactor).await;
    });
}

/// All that differs, told in pieces.
async fn changes(tank: &Tank, of: &str, since: Option<&str>) -> Vec<engine::Change> {
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(block) = from {
        let found = tank.pool.changes(&tank.reactor, of, since, block, 2).await.unwrap();
        assert!(found.next.is_none_or(|next| next > block), "{found:?}");
        all.extend(found.changes);
        from = found.next;
    }
    assert!(all.windows(2).all(|pair| pair[0].first + pair[0].blocks <= pair[1].first), "{all:?}");
    all
}

fn change(first: u64, blocks: u64, kind: ChangeKind) -> engine::Change {
    engine::Change { first, blocks, kind }
}

#[test]
fn what_differs_from_a_snapshot_is_what_was_written_and_trimmed_since() {
    everywhere(|mut tank, settles| async move {
        use ChangeKind::{Data, Hole};
        tank.pool.create_volume(&tank.reactor, "v", 40_000, 12, 0).await.unwrap();
        for lba in [0, 1, 2, 1023, 1024, 20_000] {
            tank.write("v", lba, 1).await;
        }
        tank.trim("v", 2, 1).await;
        tank.snapshot("v", "one").await;
        tank.write("v", 1, 2).await;
        tank.write("v", 30_000, 2).await;
        tank.snapshot("v", "two").await;
        tank.trim("v", 1023, 2).await;
        tank.write("v", 2, 3).await;
        tank.snapshot("v", "three").await;
        for _ in 0..2 {
            let full = [change(0, 2, Data), change(1023, 2, Data), change(20_000, 1, Data)];
            assert_eq!(changes(&tank, "v@one", None).await, full);
            let two = [change(1, 1, Data), change(30_000, 1, Data)];
            assert_eq!(changes(&tank, "v@two", Some("v@one")).await, two);
            let three = [change(2, 1, Data), change(1023, 2, Hole)];
            assert_eq!(changes(&tank, "v@three", Some("v@two")).await, three);
            let both = [change(1, 2, Data), change(1023, 2, Hole), change(30_000, 1, Data)];
            assert_eq!(changes(&tank, "v@three", Some("v@one")).await, both);
            assert_eq!(changes(&tank, "v", Some("v@three")).await, []);
            tank.reopen(settles).await;
        }
        // What a deleted one in between had counts all the same.
        tank.pool.delete_snapshot(&tank.reactor, "v@two").await.unwrap();
        tank.pool.reap(&tank.reactor).await.unwrap();
        let both = [change(1, 2, Data), change(1023, 2, Hole), change(30_000, 1, Data)];
        assert_eq!(changes(&tank, "v@three", Some("v@one")).await, both);
    });
}

#[test]
fn what_was_cut_off_and_came_back_differs() {
    everywhere(|mut tank, settles| async move {
        use ChangeKind::{Data, Hole};
        tank.pool.create_volume(&tank.reactor, "v", 10_000, 12, 0).await.unwrap();
        tank.write("v", 10, 1).await;
        tank.write("v", 9_000, 1).await;
        tank.snapshot("v", "one").await;
        let volume = tank.volume("v");
        volume.resize(&tank.reactor, 3_000).await.unwrap();
        volume.resize(&tank.reactor, 20_000).await.unwrap();
        tank.write("v", 15_000, 2).await;
        drop(volume);
        tank.reopen(settles).await;
        tank.snapshot("v", "two").await;
        let found = changes(&tank, "v@two", Some("v@one")).await;
        let differs =
            |lba: u64| found.iter().find(|change| (change.first..change.first + change.blocks).contains(&lba));
        assert_eq!(differs(10), None, "{found:?}");
        assert_eq!(differs(9_000).map(|change| change.kind), Some(Hole), "{found:?}");
        assert_eq!(differs(15_000).copied(), Some(change(15_000, 1, Data)), "{found:?}");
        assert!(found.iter().all(|change| change.first >= 3_000 && change.kind != ChangeKind::Lost), "{found:?}");
        assert_eq!(changes(&tank, "v@two", None).await, [change(10, 1, Data), change(15_000, 1, Data)]);
        // A clone goes on from the snapshot; what is not below it is refused.
        tank.pool.clone_volume(&tank.reactor, "v@one", "c", 9).await.unwrap();
        tank.write("c", 11, 4).await;
        assert_eq!(changes(&tank, "c", Some("v@one")).await, [change(11, 1, Data)]);
        let refused = tank.pool.changes(&tank.reactor, "c", Some("v@two"), 0, 1).await.unwrap_err();
        assert!(refused.to_string().contains("'v@two' is not below 'c'"), "{refused}");
    });
}
