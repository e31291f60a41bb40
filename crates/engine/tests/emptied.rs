//! Extents that trims have emptied piece by piece are given back, as one trim of all of it gives it back; and only such.

use crate::common::layered::everywhere;

#[test]
fn an_extent_emptied_piece_by_piece_is_given_back_when_it_is_destaged() {
    everywhere(async |mut tank, reopens| {
        tank.pool.create_volume(&tank.reactor, "v", 5000, 12, 0).await.unwrap();
        let all = tank.free_extents().await;
        for lba in [0, 5, 1000, 1023, 1024, 1030, 2048] {
            tank.write("v", lba, 1).await;
        }
        tank.pool.settle(&tank.reactor).await.unwrap();
        // One block stays in extent 1, and one of extent 2 is written anew behind the trims.
        for first in (0..3072).step_by(64) {
            tank.trim("v", first, if first == 1024 { 6 } else { 64 }).await;
        }
        tank.write("v", 1030, 2).await;
        tank.write("v", 3000, 3).await;
        assert_eq!(tank.free_extents().await, all - 3);
        if reopens {
            tank.reopen(false).await;
        }
        tank.pool.settle(&tank.reactor).await.unwrap();
        assert_eq!(tank.free_extents().await, all - 2);
        tank.reopen(reopens).await;
        assert_eq!(tank.free_extents().await, all - 2);
        tank.expect("v", &[(0, 0), (5, 0), (1000, 0), (1023, 0), (1024, 0), (1030, 2), (2048, 0), (3000, 3)]).await;
        // It is a place for anything again.
        tank.write("v", 1000, 4).await;
        tank.reopen(true).await;
        tank.expect("v", &[(0, 0), (1000, 4), (1023, 0)]).await;
        assert_eq!(tank.free_extents().await, all - 3);
    });
}

#[test]
fn holes_over_what_a_snapshot_shows_are_kept() {
    everywhere(async |mut tank, reopens| {
        tank.pool.create_volume(&tank.reactor, "v", 5000, 12, 0).await.unwrap();
        tank.write("v", 7, 1).await;
        tank.snapshot("v", "s").await;
        tank.write("v", 1024, 1).await;
        let before = tank.free_extents().await;
        for first in (0..2048).step_by(256) {
            tank.trim("v", first, 256).await;
        }
        tank.pool.settle(&tank.reactor).await.unwrap();
        // Extent 0 of the volume hides the snapshot's; nothing is below extent 1.
        assert_eq!(tank.free_extents().await, before);
        tank.reopen(reopens).await;
        tank.expect("v", &[(7, 0), (1024, 0)]).await;
        tank.expect("v@s", &[(7, 1), (1024, 0)]).await;
        tank.pool.settle(&tank.reactor).await.unwrap();
        tank.pool.delete_snapshot(&tank.reactor, "v@s").await.unwrap();
        tank.pool.reap(&tank.reactor).await.unwrap();
        assert_eq!(tank.free_extents().await, before + 2, "nothing is left of either");
        tank.reopen(reopens).await;
        tank.expect("v", &[(7, 0), (1024, 0)]).await;
    });
}
